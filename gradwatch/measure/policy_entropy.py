"""Whether a loss falls or rises with the entropy of choices, by the signs on the way from it to p log p."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwatch.measure.autograd import without_autograd
from gradwatch.measure.graph_nodes import Node, children, name_of, through
from gradwatch.measure.graph_signs import sign_of_all, terms
from gradwatch.table import IN_LOSS

_CLAMPS = ("Clamp", "ClampMin", "ClampMax")
_PROBABILITIES, _LOGARITHMS = ("Softmax", "SafeSoftmax", "Exp", "Div"), ("LogSoftmax", "Log", "Sub")


@without_autograd
def seen(loss: Node) -> dict[str, Tensor | float]:
    """`entropy_rewarded`: 1 where the loss falls as the entropy rises, 0 where it rises with it.

    Also of one that is averaged with a mask; NaN where a factor has elements of both signs. Nothing of a loss without
    an entropy.
    """
    sign = next((sign for node, sign in terms(loss, sign_of_all) if _is_p_log_p(node)), None)
    if isinstance(sign, Tensor):
        return {f"{IN_LOSS}entropy_rewarded": torch.where(sign == 0, torch.nan, (sign > 0).float())}
    return {} if sign is None else {f"{IN_LOSS}entropy_rewarded": float(sign > 0)}


def _is_p_log_p(node: Node) -> bool:
    """Whether probabilities are multiplied by their logarithms, whose sum is the entropy's opposite."""
    names = [name_of(through(child, _CLAMPS)) for child in children(node)] if name_of(node) == "Mul" else []
    return len(names) == 2 and any(a in _PROBABILITIES and b in _LOGARITHMS for a, b in (names, names[::-1]))
