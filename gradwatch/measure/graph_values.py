"""What a model looks like inside, by what the graph of its loss keeps for backward: where its non-linearities are flat,
and whether what the last weights are given differs from example to example.

Nothing is computed again for it, and what is kept in another way (a checkpoint, a copy on the host) is left alone. Of
large tensors rows and columns are looked at that are as far apart as a stride without a common factor makes them: an
even one would meet the same token of each row, or the same pixel, again and again.

Legend: N examples, M elements of each, K of what a softmax chooses one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gradwatch.measure import attention
from gradwatch.measure.autograd import without_autograd
from gradwatch.measure.foreach import is_seen_to_be_one
from gradwatch.measure.graph_nodes import Node, hides_its_mask, is_plain, kept, mask_of, name_of, signed
from gradwatch.measure.saturation import SIGMOID_ENDS, TANH_ENDS
from gradwatch.table import IN_LOSS, LAYER_IN_LOSS

MOST = 1 << 14  # elements of each that are looked at
MOST_EXAMPLES = 2  # of an attention
MOST_ROWS = 256  # of a softmax, or of what weights are given
MOST_PARTS = 12  # of each operation, those next to the loss first
LEAST_WEIGHTS = 8  # of choices, from which a mean and a deviation are told
LEAST = 32  # examples without which no unit is called dead


class Given(NamedTuple):
    """Where an operation with weights has what it is given: its place among the operands, and its name there."""

    place: int
    kept: str


GIVEN = {"Addmm": Given(1, "mat1"), "Mm": Given(0, "self"), "Convolution": Given(0, "input"),
         "MkldnnRnnLayer": Given(0, "input"), "CudnnRnn": Given(0, "input")}  # fmt: skip
CUDNN_TANH = 1  # of cuDNN's kinds of recurrence


class Part(NamedTuple):
    """An operation: its `name`, the number of the `layer` that is its own or the next one below it, whether it is
    `at_the_end`, with no weights between it and the loss, whether it is `given_data` beside its weights, whether its
    units are `channels`, along the second axis, or the last one, None where that is not known, and whether it is an
    attention over what its queries are made of (`of_itself`).
    """

    name: str
    node: Node
    layer: int
    at_the_end: bool
    given_data: bool
    channels: bool | None
    of_itself: bool = False


Sample = tuple[Tensor, Tensor]  # of an attention
Look = Callable[[Part], "Tensor | None"]


@without_autograd
def seen(parts: Iterable[Part]) -> dict[str, Tensor]:
    """0-d tensors by name: of the worst of each kind how flat it is, and the number of the layer below it.

    `saturated`: the share of a sigmoid's or tanh's elements whose slope is below a hundredth of its largest;
    `end_saturated`, of those at the end. `certain`: the share of the rows of a softmax, also that of an attention, that
    give all to one. `dead`: the share of a ReLU's units that are 0 for every example. `end_alike`: how much of what the
    last weights are given is the same for every example, 1 - variance / mean square. `dropped_out`: the share of zeros
    among the factors of a dropout, of the strongest. `causal`: the share of the weights of an attention of tokens over
    the same ones that go to no later one, of that where it is largest. `input_rms`: the largest root mean square of the
    elements of a batch that weights are given. NaN where it is not known.
    """
    worst: dict[str, tuple[Tensor, Tensor]] = {}
    for part in parts:
        for kind, look in _looks(part):
            try:
                value = look(part)
            except RuntimeError:  # it was freed, or written to: of the latter torch tells in backward
                continue
            if value is None:
                continue
            most, at = worst.get(kind, (value, torch.full_like(value, float(part.layer))))
            if most.device == value.device:
                more = (value > most) | most.isnan()
                worst[kind] = torch.fmax(value, most), torch.where(more, float(part.layer), at)
    return {f"{IN_LOSS}{kind}": value for kind, (value, _) in worst.items()} | {
        f"{LAYER_IN_LOSS}{kind}": layer for kind, (_, layer) in worst.items()
    }


def of_layer(kind: str, value: Tensor, place: int) -> dict[str, Tensor]:
    """A number that was seen, 0-d, and the layer that it is of by its place among all."""
    return {f"{IN_LOSS}{kind}": value, f"{LAYER_IN_LOSS}{kind}": torch.full_like(value, float(place))}


def factor(product: Node) -> Tensor | None:
    """The constant tensor that something is multiplied by."""
    found = (kept(product, name) for name in ("other", "self"))
    return next((each for each in found if each is not None and not each.requires_grad), None)


def factor_of_all(loss: Node) -> Tensor | None:
    """The constant, 0-d, that a loss is multiplied by at last, as by a loss scale; 1 over what it is divided by. None
    without one, and of a 1 that lies on the host, as in `loss / steps` with one step.
    """
    last = name_of(loss)
    found = factor(loss) if last in ("Mul", "Div") else None
    if found is None or found.numel() != 1 or is_seen_to_be_one(found):
        return None
    number = found.detach().reshape(()).float()
    return number.reciprocal() if last == "Div" else number.clone()


@without_autograd
def weights_of_choices(product: Node) -> dict[str, Tensor]:
    """Mean and deviation of what the logarithms of probabilities are multiplied by: returns, or advantages."""
    weight = factor(product)
    if weight is None or weight.numel() < LEAST_WEIGHTS:
        return {}
    few = _spread(weight.reshape(-1), 0, MOST).float()
    return {f"{IN_LOSS}advantage_mean": few.mean(), f"{IN_LOSS}advantage_std": few.std(correction=0)}


@without_autograd
def codes_used(lookup: Node) -> Tensor | None:
    """The share of a table's rows that a lookup asks for; None where it asks for fewer than there are."""
    name = "indices" if hasattr(lookup, "_saved_indices") else "index"
    kept, asked = getattr(lookup, f"_raw_saved_{name}"), getattr(lookup, f"_saved_{name}")
    if isinstance(asked, (tuple, list)):  # of `table[i]`: one for each axis
        kept, asked = kept[0], asked[0]
    sizes = getattr(lookup, "_saved_self_sym_sizes", None) or (getattr(lookup, "_saved_weight_sym_argsize_0", 0),)
    is_asked = type(asked) is Tensor and asked.dtype == torch.int64 and is_plain(kept)
    if not is_asked or not 1 < sizes[0] <= asked.numel():
        return None
    used = torch.zeros(sizes[0], dtype=torch.float32, device=asked.device)
    return used.index_fill_(0, asked.flatten(), 1.0).mean()


def _looks(part: Part) -> Iterator[tuple[str, Look]]:
    if part.name in GIVEN:
        if part.at_the_end:
            yield "end_alike", _alike
        if part.given_data:
            yield "input_rms", _root_mean_square
        if part.name == "CudnnRnn" and part.node._saved_mode == CUDNN_TANH:
            yield "saturated", _flat_tanh
        return
    if part.name in _FUSED:
        if part.at_the_end:
            return
        once = functools.cache(functools.partial(_sampled_attention, part.node))  # its logits are computed
        yield "certain", lambda _: _certain_attention(once())
        if part.of_itself:
            yield "causal", lambda each: _causal_attention(each.node, once())
        return
    kind, look = _KINDS[part.name]
    if kind == "dropped_out" or not part.at_the_end:
        yield kind, look
        if kind == "certain" and part.of_itself:
            yield "causal", _causal
    elif kind == "saturated":
        yield f"end_{kind}", look


def _spread(x: Tensor, dim: int, most: int) -> Tensor:
    """`most` places along one axis, or all, at a stride without a common factor with its length."""
    length = x.shape[dim]
    if length <= most:
        return x
    stride = next(step for step in range(int(0.618 * length), length) if math.gcd(step, length) == 1)
    return x.index_select(dim, torch.arange(most, device=x.device) * stride % length)


def _elements(part: Part) -> Tensor | None:
    y = kept(part.node, "result0" if part.name == "CudnnRnn" else "result")
    return None if y is None else _spread(y.reshape(-1), 0, MOST).float()


def _flat_sigmoid(part: Part) -> Tensor | None:
    few = _elements(part)
    return None if few is None else ((few < 1 - SIGMOID_ENDS) | (few > SIGMOID_ENDS)).float().mean()


def _flat_tanh(part: Part) -> Tensor | None:
    few = _elements(part)
    return None if few is None else (few.abs() > TANH_ENDS).float().mean()


def _certain(part: Part) -> Tensor | None:
    """Of the rows that have several to choose from: one alone is certain, as at the head of a causal attention.

    A row of one number above 0 may be masked, or so sure that nothing else is left: where most are so, nothing is said.
    """
    p = kept(part.node, "result")
    if p is None or not p.dim():
        return None
    rows = p.movedim(signed(int(part.node._saved_dim)), -1)
    few = _spread(rows.reshape(-1, rows.shape[-1]), 0, MOST_ROWS).float()
    return _share(few.amax(-1) > SIGMOID_ENDS, (few > 0).sum(-1) > 1)


def _certain_attention(sample: Sample | None) -> Tensor | None:
    """As `_certain`, of a fused attention."""
    if sample is None:
        return None
    logits, _ = sample
    several = (logits > attention.MASKED).sum(-1) > 1
    return _share(logits.softmax(-1).amax(-1) > SIGMOID_ENDS, several)


def _sampled_attention(node: Node) -> Sample | None:
    """The logits of some examples and queries of a fused attention `[E, H, R, S]`, and which queries `[R]`."""
    query, key = kept(node, "query"), kept(node, "key")
    if query is None or key is None or query.dim() != 4 or key.dim() != 4:
        return None
    if hides_its_mask(node):
        return None
    mask = mask_of(node)
    few = slice(None, None, -(-len(query) // MOST_EXAMPLES))
    mask = mask[few] if mask is not None and mask.dim() == 4 and len(mask) == len(query) else mask
    query, key = query[few], key[few]
    _, rows = attention.sampled(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    logits = attention.sampled_logits(query, key, mask, node._saved_is_causal, node._saved_scale)
    return logits, torch.arange(query.shape[2], device=query.device)[rows]


def _causal(part: Part) -> Tensor | None:
    """Of an attention `[..., T, T]` that is written out: the share of its weights that go to no later token."""
    p = kept(part.node, "result")
    if p is None or p.dim() < 3 or not 1 < p.shape[-1] == p.shape[-2]:
        return None
    if signed(int(part.node._saved_dim)) % p.dim() != p.dim() - 1:
        return None
    few = _spread(p.reshape(-1, *p.shape[-2:]), 0, MOST_EXAMPLES).float()
    return few.tril().sum() / few.sum()


def _causal_attention(node: Node, sample: Sample | None) -> Tensor | None:
    """The same of a fused one."""
    if sample is None or not 1 < node._saved_query.shape[2] == node._saved_key.shape[2]:
        return None
    logits, queries = sample
    p, token = logits.softmax(-1), torch.arange(logits.shape[-1], device=logits.device)
    return (p * (token <= queries[:, None])).nansum() / p.nansum()


def _dropped(part: Part) -> Tensor | None:
    """The share of zeros among factors that are 0 or one over the rest, as those of a dropout are; else NaN."""
    noise = factor(part.node)
    if noise is None or noise.dtype == torch.bool or noise.numel() < LEAST:
        return None
    few = _spread(noise.reshape(-1), 0, MOST).float()
    zeros = (few == 0).float().mean()
    rest = few.masked_fill(few == 0, torch.nan)
    is_noise = (few.amax() == rest.nan_to_num(torch.inf).amin()) & ((few.amax() * (1 - zeros) - 1).abs() < 0.1)
    return torch.where(is_noise, zeros, torch.nan)


def _dropped_by_mask(part: Part) -> Tensor | None:
    """The same of the kernel that CUDA has for a dropout, which keeps what is left."""
    left = kept(part.node, "result1")
    return None if left is None else 1 - _spread(left.reshape(-1), 0, MOST).float().mean()


def _share(hit: Tensor, counts: Tensor) -> Tensor:
    """Of the rows that count; NaN where less than half of them do."""
    of = counts.sum()
    return torch.where(2 * of >= counts.numel(), (hit & counts).sum().float() / of, math.nan)


def _dead(part: Part) -> Tensor | None:
    y = kept(part.node, "result")
    if y is None or y.dim() < 2 or part.channels is None:
        return None
    units = y.flatten(2) if part.channels and y.dim() > 2 else y.reshape(-1, y.shape[-1])[..., None]  # [N, M, places]
    if units.shape[0] * units.shape[2] < LEAST:
        return None
    few = _spread(_spread(units, 0, 64), 2, MOST // 64) if part.channels else _spread(units, 0, MOST_ROWS)
    return (few == 0).all(2).all(0).float().mean()


def _given(part: Part) -> Tensor | None:
    """What an operation with weights is given `[N, M]`, or some examples and elements of it."""
    x = kept(part.node, GIVEN[part.name].kept)
    if x is None or x.dim() < 2:
        return None
    return _spread(_spread(x.reshape(len(x), -1), 0, MOST_ROWS), 1, MOST // 64).float()


def _alike(part: Part) -> Tensor | None:
    """The share of its square that is that of its mean over the examples."""
    few = _given(part)
    if few is None or len(few) < LEAST:
        return None
    return few.mean(0).square().mean() / few.square().mean()


def _root_mean_square(part: Part) -> Tensor | None:
    few = _given(part)
    return None if few is None else few.square().mean().sqrt()


_FUSED = tuple(
    f"ScaledDotProduct{name}"
    for name in (
        "FlashAttentionForCpu", "FlashAttention", "EfficientAttention", "CudnnAttention", "FusedAttentionOverrideable",
    )
)  # fmt: skip
_KINDS: dict[str, tuple[str, Look]] = {
    "Sigmoid": ("saturated", _flat_sigmoid),
    "Tanh": ("saturated", _flat_tanh),
    "Softmax": ("certain", _certain),
    "SafeSoftmax": ("certain", _certain),
    "Relu": ("dead", _dead),
    "Mul": ("dropped_out", _dropped),
    "NativeDropout": ("dropped_out", _dropped_by_mask),
}
OPERATIONS = (*_KINDS, *_FUSED, *GIVEN)
ATTENTIONS = (*_FUSED, *(name for name, (kind, _) in _KINDS.items() if kind == "certain"))
LOOKUPS = ("Embedding", "Index", "IndexSelect")
