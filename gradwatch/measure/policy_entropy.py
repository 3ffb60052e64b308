"""Choices that are weighed in a loss, and whether it falls or rises with their entropy, by the signs on the way from it
to p log p.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradwatch.measure.autograd import without_autograd
from gradwatch.measure.graph_nodes import SAME_NUMBERS, Node, children, is_written_in_python, kept, name_of, through
from gradwatch.measure.graph_signs import sign_of_all, terms
from gradwatch.measure.graph_values import MOST_ROWS
from gradwatch.table import IN_LOSS

_CLAMPS = ("Clamp", "ClampMin", "ClampMax")
_CHOICES = ("Gather", "Index", "NllLoss")  # of log-probabilities
_PROBABILITIES, _LOGARITHMS = ("Softmax", "SafeSoftmax", "Exp", "Div"), ("LogSoftmax", "Log", "Sub")


def weighs_choices(product: Node) -> bool:
    """Whether log-probabilities of choices are multiplied by a constant, or `exp(new - old)` of them."""
    below = [] if is_written_in_python(product) else children(product)
    if len(below) != 1:
        return False
    chosen = through(below[0], (*SAME_NUMBERS, "Clamp"))
    chosen = through(children(chosen)[0], (*SAME_NUMBERS, "Sub")) if name_of(chosen) == "Exp" else chosen
    return name_of(chosen) in _CHOICES


@without_autograd
def seen(loss: Node) -> dict[str, Tensor | float]:
    """`entropy_rewarded`: 1 where the loss falls as the entropy rises, 0 where it rises with it.

    Also of one that is averaged with a mask; NaN where a factor has elements of both signs. `choice_entropy`: how large
    it is, by the mean over the rows, as a share of that of equal odds. Nothing of a loss without an entropy.
    """
    met = next(((node, sign) for node, sign in terms(loss, sign_of_all) if _is_p_log_p(node)), None)
    if met is None:
        return {}
    node, sign = met
    known = torch.where(sign == 0, torch.nan, (sign > 0).float()) if isinstance(sign, Tensor) else float(sign > 0)
    return {f"{IN_LOSS}entropy_rewarded": known, **_size(node)}


def _size(product: Node) -> dict[str, Tensor | float]:
    one, other = kept(product, "self"), kept(product, "other")
    if one is None or other is None or one.shape != other.shape or one.dim() == 0 or one.shape[-1] < 2:
        return {}
    p, log_p = (factor.reshape(-1, one.shape[-1]) for factor in (one, other))
    few = slice(None, None, -(-len(p) // MOST_ROWS))
    entropy = -(p[few].float() * log_p[few].float()).nan_to_num().sum(-1).mean()  # 0 * -inf: a choice that is ruled out
    return {f"{IN_LOSS}choice_entropy": entropy / math.log(p.shape[-1])}


def _is_p_log_p(node: Node) -> bool:
    """Whether probabilities are multiplied by their logarithms, whose sum is the entropy's opposite."""
    names = [name_of(through(child, _CLAMPS)) for child in children(node)] if name_of(node) == "Mul" else []
    return len(names) == 2 and any(a in _PROBABILITIES and b in _LOGARITHMS for a, b in (names, names[::-1]))
