"""What a model looks like inside, by what the graph of its loss keeps for backward: where its non-linearities are flat,
and whether what the last weights are given differs from example to example.

Nothing is computed again for it, and what is kept in another way (a checkpoint, a copy on the host) is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradwatch.measure import attention
from gradwatch.measure.autograd import without_autograd
from gradwatch.measure.loss_targets import evenly, is_plain, signed
from gradwatch.measure.saturation import SIGMOID_ENDS, TANH_ENDS
from gradwatch.table import IN_LOSS, LAYER_IN_LOSS

MOST = 1 << 14  # elements of each that are looked at
MOST_EXAMPLES = 2  # of an attention
MOST_PARTS = 12  # of each operation, those next to the loss first
LEAST = 32  # examples without which no unit is called dead
Node = Any  # torch.autograd.graph.Node


class Given(NamedTuple):
    """Where an operation with weights has what it is given: its place among the operands, and its name there."""

    place: int
    kept: str


GIVEN = {"Addmm": Given(1, "mat1"), "Mm": Given(0, "self"), "Convolution": Given(0, "input"),
         "MkldnnRnnLayer": Given(0, "input")}  # fmt: skip


class Part(NamedTuple):
    """An operation: its `name`, the number of the `layer` that is its own or the next one below it, whether it is
    `at_the_end`, with no weights between it and the loss, whether it is `given_data` beside its weights, and whether
    its units are `channels`, along the second axis.
    """

    name: str
    node: Node
    layer: int
    at_the_end: bool
    given_data: bool
    channels: bool


Look = Callable[[Part], "Tensor | None"]


@without_autograd
def seen(parts: Iterable[Part]) -> dict[str, Tensor]:
    """0-d tensors by name: of the worst of each kind how flat it is, and the number of the layer below it.

    `saturated`: the share of a sigmoid's or tanh's elements whose slope is below a hundredth of its largest;
    `end_saturated`, of those at the end. `certain`: the share of the rows of a softmax, also that of an attention,
    that give all to one. `dead`: the share of a ReLU's units that are 0 for every example. `end_alike`: how much of
    what the last weights are given is the same for every example, 1 - variance / mean square. `input_rms`: the largest
    root mean square of the elements of a batch that weights are given.
    """
    worst: dict[str, tuple[Tensor, Tensor]] = {}
    for part in parts:
        for kind, look in _looks(part):
            if (value := look(part)) is not None:
                most, at = worst.get(kind, (value, torch.full_like(value, float(part.layer))))
                worst[kind] = torch.fmax(value, most), torch.where(value > most, float(part.layer), at)
    return {f"{IN_LOSS}{kind}": value for kind, (value, _) in worst.items()} | {
        f"{LAYER_IN_LOSS}{kind}": layer for kind, (_, layer) in worst.items()
    }


def _looks(part: Part) -> Iterator[tuple[str, Look]]:
    if part.name in GIVEN:
        if part.at_the_end:
            yield "end_alike", _alike
        if part.given_data:
            yield "input_rms", _root_mean_square
        return
    kind, look = _KINDS[part.name]
    if not part.at_the_end:
        yield kind, look
    elif kind == "saturated":
        yield f"end_{kind}", look


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
    few = slice(None, None, -(-len(query) // MOST_EXAMPLES))
    mask = masks[0] if masks else None
    mask = mask[few] if mask is not None and mask.dim() == 4 and len(mask) == len(query) else mask
    logits = attention.sampled_logits(query[few], key[few], mask, node._saved_is_causal, node._saved_scale)
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
    few = _given(part)
    if few is None or few.dim() < 2 or len(few) < LEAST:
        return None
    return few.mean(0).square().mean() / few.square().mean()


def _root_mean_square(part: Part) -> Tensor | None:
    few = _given(part)
    return None if few is None else few.square().mean().sqrt()


def _given(part: Part) -> Tensor | None:
    """What an operation with weights is given, or evenly spread examples and elements of it."""
    kept = GIVEN[part.name].kept
    if not is_plain(getattr(part.node, f"_raw_saved_{kept}", None)):
        return None
    x = getattr(part.node, f"_saved_{kept}")
    return x[evenly(x.shape, 4 * MOST)].float() if type(x) is Tensor and x.numel() else None


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
}
OPERATIONS = (*_KINDS, *GIVEN)
