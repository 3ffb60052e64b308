"""With which sign the terms of a loss are added up, as its graph shows, and whether a thing is taken off itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor

from gradwatch.measure.autograd import without_autograd
from gradwatch.measure.graph_nodes import Node, children, is_written_in_python, name_of, shape_of
from gradwatch.measure.graph_values import factor
from gradwatch.table import IN_LOSS, LAYER_IN_LOSS

MOST = 200  # operations that are met on the way down
_SAME_SIGN = ("Add", "Mean", "Sum", "Squeeze", "Unsqueeze", "View", "Expand", "Select", "ToCopy", "Stack", "Cat")
_OF_PYTHON = (torch.float64, torch.float32, torch.int64)  # what a number of Python's is kept as


Sign = int | Tensor


def terms(loss: Node, of_factor: Callable[[Tensor | None], Sign] | None = None) -> Iterator[tuple[Node, Sign]]:
    """The nodes that a loss is a weighted sum of, from the loss down, and whether it rises with them, 1, or falls, -1.

    No further than a product with a number that is not known: one that lies on a device is not asked, unless
    `of_factor` does.
    """
    waiting: list[tuple[Node, Sign]] = [(loss, 1)]
    left = MOST
    while waiting and left:
        node, sign = waiting.pop()
        left -= 1
        yield node, sign
        waiting += [(child, sign * turned) for child, turned in _signs(node, of_factor or _sign)]


def seen(loss: Node | None, own: Callable[[Node], str], places: Mapping[str, int]) -> dict[str, float]:
    """`scored_one_way`: where a loss adds up the scores of a layer, one for each example, at two places or more, as a
    critic's of what is real and of what is made, 1 if it does so with one sign and 0 if with both; and that layer, by
    its place. Nothing of other losses. `own` tells an operation's layer.

    With one sign it has no least: the layer's bias lowers it for ever. Source: Arjovsky et al., arXiv:1701.07875,
    equation 2: a critic's loss is a difference.
    """
    signs: dict[str, list[Sign]] = {}
    for node, sign in terms(loss) if loss is not None else ():
        if name_of(node) in ("Addmm", "Mm") and shape_of(node)[-1:] == (1,) and (layer := own(node)):
            signs.setdefault(layer, []).append(sign)
    several = ((layer, float(len({*each}) == 1)) for layer, each in signs.items() if len(each) > 1)
    return next(
        ({f"{IN_LOSS}scored_one_way": one, f"{LAYER_IN_LOSS}scored_one_way": float(places[at])} for at, one in several),
        {},
    )


def of_itself(nodes: Iterable[Node]) -> dict[str, float]:
    """`of_itself`, 1, where one of these is the difference of a thing with itself, or their quotient: 0, or 1, whatever
    it is, and without a gradient. A ratio to old log-probabilities that kept their graph is one.
    """
    for node in nodes:
        if name_of(node) in ("Sub", "Div") and not is_written_in_python(node):
            first, *second = node.next_functions
            if first[0] is not None and [first] == second and getattr(node, "_saved_alpha", 1) == 1:
                return {f"{IN_LOSS}of_itself": 1.0}
    return {}


def _signs(node: Node, of_factor: Callable[[Tensor | None], Sign]) -> Iterator[tuple[Node, Sign]]:
    """What a node adds up, and whether with its own sign, 1, or with the other, -1; nothing of what does else."""
    name = "" if is_written_in_python(node) else name_of(node)
    turned: Sign = {"Neg": -1, "Rsub": -1, **dict.fromkeys(_SAME_SIGN, 1)}.get(name, 0)
    if name in ("Mul", "Div") and len(children(node)) == 1:
        turned = of_factor(factor(node))
    goes_on = isinstance(turned, Tensor) or turned != 0 or name == "Sub"
    for place, (child, _) in enumerate(node.next_functions if goes_on else ()):
        if child is not None:
            yield child, (-1 if place else 1) if name == "Sub" else turned


@without_autograd
def sign_of_all(factor: Tensor | None) -> Sign:
    """As `_sign`; of any other factor that of all its elements, on its device, 0 where they differ."""
    if factor is None or _is_of_python(factor) or factor.is_complex():
        return _sign(factor)
    return (factor >= 0).all().int() - (factor <= 0).all().int()


def _sign(factor: Tensor | None) -> int:
    """Of a number that was written into the loss, which torch keeps on the host; 0 of 0 and of any other, which is not
    known.
    """
    if factor is None or not _is_of_python(factor):
        return 0
    number = factor.numpy().item()
    return int(number > 0) - int(number < 0)


def _is_of_python(factor: Tensor) -> bool:
    return factor.device.type == "cpu" and factor.numel() == 1 and factor.dtype in _OF_PYTHON
