"""Whether a loss falls or rises with the entropy of choices, by the signs on the way from it to p log p."""

from __future__ import annotations

from gradwatch.measure.graph_nodes import Node, children, name_of, through
from gradwatch.measure.graph_signs import terms
from gradwatch.table import IN_LOSS

_CLAMPS = ("Clamp", "ClampMin", "ClampMax")
_PROBABILITIES, _LOGARITHMS = ("Softmax", "SafeSoftmax", "Exp", "Div"), ("LogSoftmax", "Log", "Sub")


def seen(loss: Node) -> dict[str, float]:
    """`entropy_rewarded`: 1 where the loss falls as the entropy rises, 0 where it rises with it.

    Nothing of a loss without one, or where a factor of it lies on a device, which is not asked.
    """
    sign = next((sign for node, sign in terms(loss) if _is_p_log_p(node)), None)
    return {} if sign is None else {f"{IN_LOSS}entropy_rewarded": float(sign > 0)}


def _is_p_log_p(node: Node) -> bool:
    """Whether probabilities are multiplied by their logarithms, whose sum is the entropy's opposite."""
    names = [name_of(through(child, _CLAMPS)) for child in children(node)] if name_of(node) == "Mul" else []
    return len(names) == 2 and any(a in _PROBABILITIES and b in _LOGARITHMS for a, b in (names, names[::-1]))
