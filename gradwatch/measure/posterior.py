"""How much a drawn code tells of its example: the deviation of mean + deviation x noise, beside the prior's, 1.

Source: Kingma and Welling (2014), arXiv:1312.6114, section 2.4 (codes drawn so that gradients reach mean and
deviation).

Legend: N examples, Z units of a code.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor
from torch.nn.functional import softplus

from gradwatch.measure.autograd import without_autograd
from gradwatch.measure.graph_nodes import LONGEST, SAME_INPUT, Node, children, kept, name_of, through
from gradwatch.measure.graph_values import factor

MOST = 4  # codes of a loss
LEAST_EXAMPLES = 8
INFORMATIVE = 0.05  # that the mean variance of a unit is away from 1
_DEVIATIONS = ("Exp", "Softplus", "Sqrt")


def seen(nodes: Sequence[Node], outer: Collection[Node]) -> tuple[Node, Tensor] | None:
    """Of what is drawn below weights the deviation next to the loss, and the share of the units that are `informative`,
    0-d, of the code that has most of them.

    The loss must be taken of the deviation besides, as a divergence is: `outer` are the nodes between it and the first
    weights. What is drawn there is no code, but a prediction.
    """
    found = [(node, share) for node in islice(_drawn(nodes, outer), MOST) if (share := informative(node)) is not None]
    together = [share for _, share in found if share.device == found[0][1].device]
    return (found[0][0], torch.stack(together).amax()) if found else None


@without_autograd
def informative(deviation: Node) -> Tensor | None:
    """The share of the units whose variance, by its mean over the examples, is not that of the prior; 0-d.

    A unit that tells something of its example is drawn more narrowly: the variances of its means and of the noise about
    them sum up to 1 (cf. Burda et al., arXiv:1509.00519, section 5.2, which units are active).
    """
    y = kept(deviation, "self" if name_of(deviation) == "Softplus" else "result")
    if y is None or y.dim() < 2 or len(y) < LEAST_EXAMPLES:
        return None
    y = softplus(y) if name_of(deviation) == "Softplus" else y
    return ((y.float().square().mean(0) - 1).abs() > INFORMATIVE).float().mean()


def _drawn(nodes: Sequence[Node], outer: Collection[Node]) -> Iterator[Node]:
    sources = {_source(node) for node in outer}
    for node in nodes:
        for product in children(node) if name_of(node) == "Add" and node not in outer else ():
            if name_of(product) != "Mul" or len(children(product)) != 1 or factor(product) is None:
                continue
            deviation = through(children(product)[0], SAME_INPUT)
            if name_of(deviation) in _DEVIATIONS and _source(deviation) in sources:
                yield deviation


def _source(node: Node) -> Node:
    """What a deviation, or a variance, is made of: the numbers in front of an exponential and a factor."""
    for _ in range(LONGEST):
        if len(below := children(node)) != 1 or name_of(node) not in (*_DEVIATIONS, "Mul", "Div", *SAME_INPUT):
            break
        node = below[0]
    return node
