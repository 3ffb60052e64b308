"""Looks inside attention, in the steps that are sampled: how large each head's logits get, and how sharp their softmax.

No attention runs in another way for it: it is heard as it is called (`attention_calls`). Of the logits a sample of rows
is computed anew.

Legend: B examples, H heads, T queries, S keys, D features of a head; E examples and R rows of those that are sampled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gradwatch.measure.attention_calls import AttentionCalls, Calls, by_head, mask_by_head
from gradwatch.measure.autograd import without_autograd
from gradwatch.measure.distributed import local
from gradwatch.measure.looking import Looking

QUANTITIES = ("logit_bound", "logit_max", "entropy")
ROWS = 64  # queries of each example whose logits are looked at, evenly spread up to the last
LOGITS = 1 << 22  # of one call that are looked at, at most: of too many fewer examples, and of one fewer rows
HEADS = 128  # of a module that are told apart
MASKED = -1e4  # a mask that is added is about -inf: float16 has -65504
FADED = -math.log(torch.finfo(torch.float32).tiny)  # so far below its row's largest a logit has no weight: Swin's -100


class Logits(NamedTuple):
    """What one call showed of each head, `[H]`: a bound and the largest of |logit|; a sum over rows, and how many."""

    bound: Tensor
    largest: Tensor
    entropy: Tensor
    rows: Tensor


class Attention(AttentionCalls):
    """Measures, between `begin` and `stop`, every attention inside the modules `slots` (by id), innermost first."""

    def __init__(self, modules: Mapping[str, nn.Module], slots: Mapping[int, Calls], looking: Looking) -> None:
        self.names = {id(m): name for name, m in modules.items() if any(True for _ in m.children())}
        super().__init__(self.names, looking)
        self.heads = {key: _Heads() for key in self.names}
        self._slots = slots

    def stop(self) -> None:
        """Listen no more, and forget what was heard."""
        super().stop()
        for heads in self.heads.values():
            heads.clear()

    # ---------------------------------------------------------------------------------------------------- what it hears

    def scores(self, q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> None:
        """Somebody calls `scaled_dot_product_attention`."""
        own_q, own_k = local(q), local(k)
        self._take(lambda: of_scores(by_head(own_q), by_head(own_k), mask_by_head(mask, own_q, own_k), causal, scale))

    def softmax(self, x: Tensor, dim: Any) -> None:
        """Somebody takes a softmax: of logits, if over the last of three or more dimensions inside an attention."""
        if not self._is_attention() or x.ndim < 3 or dim not in (-1, x.ndim - 1):
            return
        heads = getattr(self._inside[-1], "num_heads", None) if x.ndim == 3 else None  # nn.MultiheadAttention
        self._take(lambda: of_softmax(by_head(local(x), heads)))

    def _is_attention(self) -> bool:
        for module in reversed(self._inside):
            if "attn" in type(module).__name__.lower() or "attention" in type(module).__name__.lower():
                return True
            if id(module) in self.names:
                return False
        return False

    def _take(self, look: Callable[[], Logits]) -> None:
        """One more call of the innermost of the modules, where it counts."""
        module = self.innermost
        if module is None or torch.compiler.is_compiling() or not self._slots[id(module)].counts():
            return
        with self.looking.at("attention"):
            self.heads[id(module)].add(look(), module)

    # --------------------------------------------------------------------------------------------------- after the step

    def parts(self, device: torch.device, dtype: torch.dtype, fixed: bool) -> tuple[list[Tensor], list[Tensor]]:
        """What adds up over ranks and what the largest counts of, of each module `[2 * H]`; `fixed`: `HEADS` of each,
        whatever this rank saw.
        """
        sums, largest = [], []
        for heads in self.heads.values():
            size = HEADS if fixed else heads.count
            sums.append(_spread(heads.sums, heads.first, size, 0.0, device, dtype))
            largest.append(_spread(heads.largest, heads.first, size, -math.inf, device, torch.float32))
        return sums, largest

    def joined(self, sums: list[Tensor], largest: list[Tensor]) -> tuple[tuple[str, ...], Tensor]:
        """Names such as `h.0.attn[3]`, and `[3, H]` of `QUANTITIES` for all heads, out of such parts."""
        names: list[str] = []
        found: list[Tensor] = []
        for key, total, top in zip(self.names, sums, largest, strict=True):
            count = self.heads[key].count
            names += [f"{self.names[key]}[{i}]" for i in range(count)]
            entropy, rows = total.view(2, -1)[:, :count]
            both = top.view(2, -1)[:, :count]
            found.append(torch.cat([torch.where(both == -math.inf, math.nan, both), (entropy / rows)[None].to(both)]))
        nothing = torch.zeros(len(QUANTITIES), 0, dtype=torch.float32, device="cpu")
        return tuple(names), torch.cat(found, dim=1) if found else nothing


class _Heads:
    """What was seen of one module's heads in this step: `count`, of which this rank has those from `first` on."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.count = self.first = 0
        self.sums: Tensor | None = None  # [2, H]: of entropies, and how many
        self.largest: Tensor | None = None  # [2, H]: the bound, and the largest

    def add(self, seen: Logits, module: nn.Module) -> None:
        """One more call. Its heads, where they are spread over ranks, are those of this rank's place."""
        place, size = _place(module)
        mine = len(seen.bound)
        count, first = min(mine * size, HEADS), min(mine * place, HEADS)
        if self.count not in (0, count):
            raise ValueError(f"{type(module).__name__} has {count} heads in one call and {self.count} in another")
        sums = torch.stack([seen.entropy, seen.rows])[:, : count - first]
        largest = torch.stack([seen.bound, seen.largest])[:, : count - first].to(torch.float32)
        self.sums = sums if self.sums is None else self.sums + sums
        self.largest = largest if self.largest is None else torch.maximum(self.largest, largest)
        self.count, self.first = count, first


@without_autograd
def of_scores(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> Logits:
    """What the logits of q `[B, H, T, D]` and k `[B, H or fewer, S, D]` show.

    |q . k| <= |q| |k|, so the largest norm of a query times that of a key, in an example, bounds all its logits but for
    what a mask adds.
    """
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    wide = torch.promote_types(q.dtype, torch.float32)
    shared = q.shape[1] // k.shape[1]  # queries' heads that share one of the keys'
    longest = [torch.linalg.vector_norm(x, dim=-1, dtype=wide).amax(dim=-1) for x in (q, k)]  # [B, H]
    bound = _number(longest[0] * longest[1].repeat_interleave(shared, dim=1) * abs(scale)).amax(dim=0)
    return Logits(bound, *_of_rows(sampled_logits(q, k, mask, causal, scale)))


def sampled_logits(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> Tensor:
    """Of a sample of the examples and queries `[E, H, R, S]`, at least as wide as float32; masked ones are -inf."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    wide = torch.promote_types(q.dtype, torch.float32)
    examples, rows = sampled(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    few = k[examples].repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    with torch.autocast(q.device.type, enabled=False):
        logits = (q[examples, :, rows].to(wide) * scale) @ few.to(wide).transpose(-2, -1)
    if causal:
        queries = torch.arange(q.shape[2], device=q.device)[rows]
        logits = logits.masked_fill(torch.arange(k.shape[2], device=q.device) > queries[:, None], -math.inf)
    if mask is not None:
        inner = mask.expand(*q.shape[:3], k.shape[2])[examples, :, rows]
        logits = logits.masked_fill(~inner, -math.inf) if inner.dtype == torch.bool else logits + inner
    return logits


@without_autograd
def of_softmax(x: Tensor) -> Logits:
    """What logits `[B, H, T, S]` that are there show; the bound is the largest of all, the rest of the sampled rows."""
    examples, rows = sampled(*x.shape)
    largest, entropy, count = _of_rows(x[examples, :, rows].to(torch.promote_types(x.dtype, torch.float32)))
    return Logits(torch.maximum(_number(x.amax(dim=(0, 2, 3)).to(largest)), largest), largest, entropy, count)


def _of_rows(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`[E, H, R, S]` -> of each head: the largest |logit| that has a weight, the sum of the entropies of the rows'
    softmaxes, each as a share of log(keys that it may see), and how many rows those are: one key has no entropy.
    """
    logits = logits.masked_fill(logits <= MASKED, -math.inf)
    masked = logits == -math.inf
    keys = (~masked).sum(dim=-1)
    p = torch.special.softmax(logits, -1)
    entropy = -torch.xlogy(p, p).sum(dim=-1) / keys.to(p.dtype).log()
    counts = (keys > 1) & entropy.isfinite()
    faded = masked | (logits < logits.amax(dim=-1, keepdim=True) - FADED)
    largest = _number(logits.masked_fill(faded, 0.0).abs()).amax(dim=(0, 2, 3))
    return largest, entropy.masked_fill(~counts, 0.0).sum(dim=(0, 2)), counts.sum(dim=(0, 2)).to(logits.dtype)


def sampled(examples: int, heads: int, queries: int, keys: int) -> tuple[slice, slice]:
    """Which examples and queries are looked at: evenly spread, and never without the last query, which sees most."""
    rows = max(1, min(ROWS, queries, LOGITS // max(1, heads * keys)))
    every = -(-queries // rows)
    few = max(1, min(examples, LOGITS // max(1, heads * rows * keys)))
    return slice(None, None, -(-examples // few)), slice((queries - 1) % every, None, every)


def _number(x: Tensor) -> Tensor:
    return x.nan_to_num(nan=math.inf, posinf=math.inf)


def _place(module: nn.Module) -> tuple[int, int]:
    """This rank's place among those over which the module's weights, and so its heads, are spread; and how many."""
    for weight in module.parameters():
        spread: Any = weight
        placements = getattr(spread, "placements", ())
        for dim, placement in enumerate(placements):
            if placement.is_shard():
                return int(spread.device_mesh.get_local_rank(dim)), int(spread.device_mesh.size(dim))
    return 0, 1


def _spread(
    values: Tensor | None, first: int, size: int, rest: float, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """`[2, H]` -> `[2 * size]`, from the place `first` on, and `rest` beside them."""
    out = torch.full((2, size), rest, dtype=dtype, device=device)
    if values is not None:
        out[:, first : first + values.shape[1]] = values.to(device, dtype)
    return out.flatten()
