"""What a model looks like inside, by what the graph of its loss keeps for backward: where its non-linearities are flat,
and whether what the last weights are given differs from example to example.

Nothing is computed again for it, and what is kept in another way (a checkpoint, a copy on the host) is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradwatch.measure import attention
from gradwatch.measure.autograd import without_autograd
from gradwatch.measure.loss_targets import evenly, is_plain, signed
from gradwatch.measure.saturation import SIGMOID_ENDS, TANH_ENDS
from gradwatch.table import IN_LOSS, LAYER_IN_LOSS

MOST = 1 << 16  # elements of each that are looked at
MOST_PARTS = 12  # of each operation, those next to the loss first
LEAST = 32  # examples without which no unit is called dead
Node = Any  # torch.autograd.graph.Node


class Part(NamedTuple):
    """An operation: its `name`, the number of the `layer` that is its own or the next one below it, whether it is
    `at_the_end`, with no weights between it and the loss, and whether its units are `channels`, along the second axis.
    """

    name: str
    node: Node
    layer: int
    at_the_end: bool
    channels: bool


@without_autograd
def seen(parts: Iterable[Part]) -> dict[str, Tensor]:
    """0-d tensors by name: of the worst of each kind how flat it is, and the number of the layer below it.

    `saturated`: the share of a sigmoid's or tanh's elements whose slope is below a hundredth of its largest;
    `end_saturated`, of those at the end. `certain`: the share of the rows of a softmax, also that of an attention,
    that give all to one. `dead`: the share of a ReLU's units that are 0 for every example. `end_alike`: how much of
    what the last weights are given is the same for every example, 1 - variance / mean square.
    """
    worst: dict[str, tuple[Tensor, Tensor]] = {}
    for part in parts:
        kind, look = _KINDS[part.name]
        kind = f"end_{kind}" if part.at_the_end else kind
        flat = look(part) if kind in QUANTITIES else None
        if flat is None:
            continue
        most, at = worst.get(kind, (torch.full_like(flat, -1.0), torch.full_like(flat, -1.0)))
        worst[kind] = torch.fmax(flat, most), torch.where(flat > most, float(part.layer), at)
    return {f"{IN_LOSS}{kind}": flat for kind, (flat, _) in worst.items()} | {
        f"{LAYER_IN_LOSS}{kind}": layer for kind, (_, layer) in worst.items()
    }


QUANTITIES = ("saturated", "end_saturated", "certain", "dead", "end_alike")


def _result(part: Part) -> Tensor | None:
    """What the operation gave out; None where that is not there as it is, or torch does not tell."""
    if not is_plain(getattr(part.node, "_raw_saved_result", None)):
        return None
    result = part.node._saved_result
    return result if type(result) is Tensor and result.numel() else None


def _flat_sigmoid(part: Part) -> Tensor | None:
    if (y := _result(part)) is None:
        return None
    few = y[evenly(y.shape, MOST)].float()
    return ((few < 1 - SIGMOID_ENDS) | (few > SIGMOID_ENDS)).float().mean()


def _flat_tanh(part: Part) -> Tensor | None:
    if (y := _result(part)) is None:
        return None
    return (y[evenly(y.shape, MOST)].float().abs() > TANH_ENDS).float().mean()


def _certain(part: Part) -> Tensor | None:
    """Of the rows that have several to choose from: one alone is certain, as at the head of a causal attention."""
    if (p := _result(part)) is None or not p.dim():
        return None
    rows = p.movedim(signed(int(part.node._saved_dim)), -1)
    few = rows[(*evenly(rows.shape[:-1], max(MOST // rows.shape[-1], 64)), slice(None))].float()
    return _share(few.amax(-1) > SIGMOID_ENDS, (few > 0).sum(-1) > 1, few.shape[-1])


def _certain_attention(part: Part) -> Tensor | None:
    """As `_certain`, of the logits of a sample of the queries, which are computed for it."""
    node = part.node
    names = [name for name in ("query", "key", "attn_mask", "attn_bias") if hasattr(node, f"_saved_{name}")]
    if not all(is_plain(getattr(node, f"_raw_saved_{name}")) for name in names):
        return None
    query, key, *masks = (getattr(node, f"_saved_{name}") for name in names)
    if query.dim() != 4 or key.dim() != 4:
        return None
    mask = masks[0] if masks else None
    logits = attention.sampled_logits(query, key, mask, node._saved_is_causal, node._saved_scale)
    return _share(logits.softmax(-1).amax(-1) > SIGMOID_ENDS, logits.isfinite().sum(-1) > 1, logits.shape[-1])


def _share(hit: Tensor, counts: Tensor, choices: int) -> Tensor | None:
    """Of the rows that count; where none does, a logit was so far above all others that nothing else is left."""
    if choices < 2:
        return None
    of = counts.sum()
    return torch.where(of > 0, (hit & counts).sum() / of, hit.float().mean())


def _dead(part: Part) -> Tensor | None:
    if (y := _result(part)) is None or y.dim() < 2:
        return None
    units = y.movedim(1, -1) if part.channels else y
    units = units.reshape(-1, units.shape[-1])
    if len(units) < LEAST:
        return None
    return (units[evenly(units.shape, 4 * MOST)] == 0).all(0).float().mean()


def _alike(part: Part) -> Tensor | None:
    """Of what an operation with weights is given, `[N, ...]`: the share of its square that is that of its mean."""
    at = _INPUTS[part.name]
    if not is_plain(getattr(part.node, f"_raw_saved_{at}", None)):
        return None
    x = getattr(part.node, f"_saved_{at}")
    if type(x) is not Tensor or x.dim() < 2 or len(x) < LEAST:
        return None
    few = x[evenly(x.shape, 4 * MOST)].float()
    return few.mean(0).square().mean() / few.square().mean()


Look = Callable[[Part], "Tensor | None"]
_INPUTS = {"Addmm": "mat1", "Mm": "self", "Convolution": "input"}
_ATTENTION = (
    "FlashAttentionForCpu",
    "FlashAttention",
    "EfficientAttention",
    "CudnnAttention",
    "FusedAttentionOverrideable",
)
_KINDS: dict[str, tuple[str, Look]] = {
    "Sigmoid": ("saturated", _flat_sigmoid),
    "Tanh": ("saturated", _flat_tanh),
    "Softmax": ("certain", _certain),
    "SafeSoftmax": ("certain", _certain),
    **{f"ScaledDotProduct{name}": ("certain", _certain_attention) for name in _ATTENTION},
    "Relu": ("dead", _dead),
    **dict.fromkeys(_INPUTS, ("alike", _alike)),
}
OPERATIONS = (*_KINDS,)
