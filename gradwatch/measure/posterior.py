"""How much a drawn code tells of its example: the deviation of mean + deviation x noise, beside the prior's, 1.

Source: Kingma and Welling (2014), arXiv:1312.6114, section 2.4 (codes drawn so that gradients reach mean and
deviation).

Legend: N examples, Z units of a code.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

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


class Told(NamedTuple):
    """The share of a code's units whose variance is not that of the prior, and what all tell of an example in nats;
    0-d each.
    """

    informative: Tensor
    nats: Tensor


def seen(nodes: Sequence[Node], outer: Collection[Node]) -> tuple[Node, Told] | None:
    """Of what is drawn below weights the deviation next to the loss, and how `informative` it is: the most of any code,
    of both numbers.

    The loss must be taken of the deviation besides, as a divergence is: `outer` are the nodes between it and the first
    weights. What is drawn there is no code, but a prediction.
    """
    found = [(node, told) for node in islice(_drawn(nodes, outer), MOST) if (told := informative(node)) is not None]
    together = [told for _, told in found if told.informative.device == found[0][1].informative.device]
    return (found[0][0], Told(*(torch.stack(each).amax() for each in zip(*together, strict=True)))) if found else None


@without_autograd
def informative(deviation: Node) -> Told | None:
    """How far the variances of the units, by their means over the examples, are from that of the prior.

    A unit that tells something of its example is drawn more narrowly: the variances of its means and of the noise about
    them sum up to 1 (cf. Burda et al., arXiv:1509.00519, section 5.2, which units are active). It tells half the
    logarithm of one over its variance then (Cover & Thomas 2006, *Elements of Information Theory*, section 9.1: the
    capacity of a Gaussian channel).
    """
    y = kept(deviation, "self" if name_of(deviation) == "Softplus" else "result")
    if y is None or y.dim() < 2 or len(y) < LEAST_EXAMPLES:
        return None
    y = softplus(y) if name_of(deviation) == "Softplus" else y
    variance = y.float().square().mean(0)
    nats = -variance.clamp(1e-12, 1).log().sum() / 2
    return Told(((variance - 1).abs() > INFORMATIVE).float().mean(), nats)


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
