"""Whether a loss falls or rises with the entropy of choices, by the signs on the way from it to p log p."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gradwatch.measure.graph_nodes import Node, children, is_written_in_python, name_of, through
from gradwatch.measure.graph_values import factor
from gradwatch.table import IN_LOSS

MOST = 200  # operations between the loss and the choices
_SAME_SIGN = ("Add", "Mean", "Sum", "Squeeze", "Unsqueeze", "View", "Expand", "Select", "ToCopy", "Stack", "Cat")
_CLAMPS = ("Clamp", "ClampMin", "ClampMax")
_OF_PYTHON = (torch.float64, torch.float32, torch.int64)  # what a number of Python's is kept as
_PROBABILITIES, _LOGARITHMS = ("Softmax", "SafeSoftmax", "Exp", "Div"), ("LogSoftmax", "Log", "Sub")


def seen(loss: Node) -> dict[str, float]:
    """`entropy_rewarded`: 1 where the loss falls as the entropy rises, 0 where it rises with it.

    Nothing of a loss without one, or where a factor of it lies on a device, which is not asked.
    """
    waiting, left = [(loss, 1)], MOST
    while waiting and left:
        node, sign = waiting.pop()
        left -= 1
        if _is_p_log_p(node):
            return {f"{IN_LOSS}entropy_rewarded": float(sign > 0)}
        waiting += [(child, sign * turned) for child, turned in _signs(node)]
    return {}


def _is_p_log_p(node: Node) -> bool:
    """Whether probabilities are multiplied by their logarithms, whose sum is the entropy's opposite."""
    names = [name_of(through(child, _CLAMPS)) for child in children(node)] if name_of(node) == "Mul" else []
    return len(names) == 2 and any(a in _PROBABILITIES and b in _LOGARITHMS for a, b in (names, names[::-1]))


def _signs(node: Node) -> Iterator[tuple[Node, int]]:
    """What a node adds up, and whether with its own sign, 1, or with the other, -1; nothing of what does else."""
    name = "" if is_written_in_python(node) else name_of(node)
    turned = {"Neg": -1, "Rsub": -1, **dict.fromkeys(_SAME_SIGN, 1)}.get(name, 0)
    if name in ("Mul", "Div") and len(children(node)) == 1:
        turned = _sign(factor(node))
    for place, (child, _) in enumerate(node.next_functions if turned or name == "Sub" else ()):
        if child is not None:
            yield child, turned or (-1 if place else 1)


def _sign(factor: Tensor | None) -> int:
    """Of a number that was written into the loss, which torch keeps on the host; 0 of 0 and of any other, which is not
    known.
    """
    if factor is None or factor.device.type != "cpu" or factor.numel() != 1 or factor.dtype not in _OF_PYTHON:
        return 0
    number = factor.numpy().item()
    return int(number > 0) - int(number < 0)
