"""The largest logit of each attention head in a step, exactly: what `QKClip` goes by.

Legend: B examples, H heads of queries, G of keys, T queries, S keys, D features of a head; L layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradwatch.errors import WatchError, warn
from gradwatch.measure.attention_calls import AttentionCalls, Calls, by_head, mask_by_head
from gradwatch.measure.attention_heads import Heads, Run, attention_heads
from gradwatch.measure.autograd import without_autograd
from gradwatch.measure.collectives import all_reduce
from gradwatch.measure.layout import Layout, at

QUANTITIES = ("qk_clips", "logit_max")  # of each head since the row before: steps in which it was scaled; the largest
PIECE = 1 << 24  # logits that are computed together
PATIENCE = 2  # steps in which all attention should have been called: `gradwatch run` sees the second forward pass first


class HeadClips(NamedTuple):
    """What came of these heads, `h.0.attn[3]`: `[2, H]` float32 of `QUANTITIES`; no largest logit is NaN."""

    names: tuple[str, ...]
    values: Tensor


class LargestLogits(AttentionCalls):
    """Hears every attention of the model whose rows are known, in every step, from `begin` to `stop`.

    `group`: over which ranks the batch is spread; `part`: the name of the Watch, which those of heads begin with.

    Raises:
        WatchError: there is no attention to be heard.
    """

    def __init__(self, model: nn.Module, group: dist.ProcessGroup | None = None, part: str | None = None) -> None:
        compiled = next((n for n, m in model.named_modules() if m._compiled_call_impl is not None), None)
        if compiled is not None or hasattr(model, "_orig_mod"):
            raise WatchError(
                f"QKClip hears attention as it is called, and {compiled or type(model).__name__} is compiled: compile "
                "the parts around the attention"
            )
        self.heads: dict[int, Heads] = {}
        self.names: dict[int, str] = {}
        for name, heads in attention_heads(model).items():
            self.heads[id(heads.module)], self.names[id(heads.module)] = heads, name
        super().__init__(self.heads)
        self._group = group
        self._calls = {key: Calls() for key in self.heads}
        self._largest: dict[int, Tensor] = {}  # [H] of those that were called in this step
        self._joined: list[Tensor] | None = None  # [G] of each, over ranks
        self._scaled: dict[int, Tensor] = {}  # [G] bool of those that were scaled in this step
        prefix = f"{part}." if part else ""
        self._rows = [f"{prefix}{self.names[key]}[{i}]" for key, one in self.heads.items() for i in range(one.queries)]
        self._since: Tensor | None = None  # [2, H] of `QUANTITIES`
        self._unheard, self._steps = {*self.heads}, 0

    @without_autograd
    def end(self, sampled: bool) -> HeadClips | None:
        """The step is over. Where it is `sampled`: what came of each head of queries since the time before."""
        if self._joined is not None:
            found = [(self._scaled.get(key, j > math.inf), j) for key, j in zip(self.heads, self._joined, strict=True)]
            wide = [one.queries // one.keys for one in self.heads.values()]
            clips, largest = (
                torch.cat([each.repeat_interleave(k) for each, k in zip(part, wide, strict=True)])
                for part in zip(*found, strict=True)
            )
            now = torch.stack([clips.float(), largest])
            if self._since is not None:
                now = torch.stack([self._since[0] + now[0], torch.maximum(self._since[1], now[1])])
            self._since = now
        self._largest, self._joined, self._scaled = {}, None, {}
        for calls in self._calls.values():
            calls.clear()
        if not sampled or self._since is None:
            return None
        clips, largest = self._since
        self._since = None
        heard = torch.where(largest == -math.inf, math.nan, largest)
        return HeadClips(tuple(self._rows), torch.stack([clips, heard]))

    # ---------------------------------------------------------------------------------------------------- what it hears

    def scores(self, q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> None:
        """Somebody calls `scaled_dot_product_attention`."""
        self._take(
            by_head(q).shape[1], lambda: largest_of(by_head(q), by_head(k), mask_by_head(mask, q, k), causal, scale)
        )

    def softmax(self, x: Tensor, dim: Any) -> None:
        """Somebody takes a softmax: of logits, if over the last of three or more dimensions."""
        module = self.innermost
        if module is None or x.ndim < 3 or dim not in (-1, x.ndim - 1):
            return
        logits = by_head(x, self.heads[id(module)].queries if x.ndim == 3 else None)
        self._take(logits.shape[1], lambda: logits.detach().amax(dim=(0, 2, 3)).float())

    def _take(self, heads: int, look: Callable[[], Tensor]) -> None:
        module = self.innermost
        if module is None or torch.compiler.is_compiling() or heads != self.heads[id(module)].queries:
            return
        if self._calls[id(module)].counts():
            found, before = look(), self._largest.get(id(module))
            self._largest[id(module)] = found if before is None else torch.maximum(before, found)

    # --------------------------------------------------------------------------------------------------- after the step

    @without_autograd
    def of_rows(self, layout: Layout) -> tuple[list[Tensor | None], list[Tensor | None]]:
        """Of each row of each layer the largest logit of its head, and to which power its factor is taken (0 for rows
        of neither queries nor keys); shaped to be multiplied with the layer, None for layers that have no heads.

        Heads that share their keys have the largest of all of them, as in Megatron-LM.

        Raises:
            WatchError: after two steps no attention was heard.
        """
        logits = self._over_ranks(layout.device)
        places = layout.places_of()
        found: list[Tensor | None] = [None] * len(layout.names)
        powers: list[Tensor | None] = [None] * len(layout.names)
        for values, heads in zip(logits, self.heads.values(), strict=True):
            for param, dim, runs in heads.weights:
                place, *others = places.get(id(param), [-1])
                if place < 0 or others:
                    why = "cut by split=" if others else "not trained by the watched optimizer"
                    raise WatchError(
                        f"QKClip: a weight of {self.names[id(heads.module)]} is {why}: queries and keys must be scaled "
                        "together"
                    )
                shape = [1] * param.dim()
                shape[dim] = param.shape[dim]
                head = layout.constant(("head", place), partial(_spread, runs, "head", torch.int64, layout))
                power = layout.constant(("power", place), partial(_spread, runs, "power", torch.float32, layout))
                found[place], powers[place] = values[head].view(shape), power.view(shape)
        return found, powers

    @without_autograd
    def note_scaled(self, weights: Collection[int], tau: float) -> None:
        """The heads above `tau` were scaled, of the attention that these weights (ids) are of."""
        for (key, heads), largest in zip(self.heads.items(), self._joined or (), strict=False):
            if any(id(rows.param) in weights for rows in heads.weights):
                above = (largest > tau) & (largest < math.inf)
                self._scaled[key] = above | self._scaled[key] if key in self._scaled else above

    def _over_ranks(self, device: torch.device) -> list[Tensor]:
        """The largest logits of each attention, `[G]`, -inf where none was heard; over ranks: one all-reduce a step."""
        if self._joined is None:
            self._note_unheard()
            found = [self._of(key, device) for key in self.heads]
            if self._group is not None:
                all_reduce(found, dist.ReduceOp.MAX, self._group)
            self._joined = found
        return self._joined

    def _of(self, key: int, device: torch.device) -> Tensor:
        heads, values = self.heads[key], self._largest.get(key)
        if values is None:
            return torch.full((heads.keys,), -math.inf, dtype=torch.float32, device=device)
        # a maximum over ranks may lose a NaN, and what is not finite is not acted on
        return at(device, values).nan_to_num(nan=math.inf, posinf=math.inf).view(heads.keys, -1).amax(dim=1)

    def _note_unheard(self) -> None:
        self._unheard -= self._largest.keys()
        self._steps += 1
        if not self._unheard or self._steps != PATIENCE:
            return
        names = ", ".join(self.names[key] for key in self._unheard)[:200]
        why = "flash-attn, xformers and compiled code do not call scaled_dot_product_attention or softmax"
        if len(self._unheard) == len(self.heads):
            raise WatchError(f"QKClip: none of the attention was heard in {PATIENCE} steps ({names}): {why}")
        warn(f"QKClip: {names} was not heard and is not clipped: {why}")


def _spread(runs: Sequence[Run], field: str, dtype: torch.dtype, layout: Layout) -> Tensor:
    """A field of runs of rows, for each row."""
    parts = [torch.full((r.size,), getattr(r, field), dtype=dtype, device=layout.device) for r in runs]
    return torch.cat(parts)


@without_autograd
def largest_of(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> Tensor:
    """The largest logit of each head, `[H]` float32, of q `[B, H, T, D]` and k `[B, H or fewer, S, D]`: all products,
    in pieces and in the precision of q. What a mask hides does not count.
    """
    b, h, t, width = q.shape
    keys, shared = k.shape[2], h // k.shape[1]
    most = torch.full((h,), -math.inf, dtype=torch.float32, device=q.device)
    scale = 1 / math.sqrt(width) if scale is None else float(scale)
    examples = max(1, PIECE // max(1, h * t * keys))
    rows = max(1, PIECE // max(1, h * keys)) if examples == 1 else t
    hidden = _hidden(mask, causal, (b, h, t, keys), q.device)
    for i in range(0, b, examples):
        few = k[i : i + examples].to(q.dtype).repeat_interleave(shared, dim=1)
        for first in range(0, t, rows):
            last = min(first + rows, t)
            seen = min(last, keys) if causal else keys  # later keys are hidden from all of these
            with torch.autocast(q.device.type, enabled=False):
                logits = (q[i : i + examples, :, first:last] * scale) @ few[:, :, :seen].transpose(-2, -1)
            for each in hidden:
                part = each[i : i + examples, :, first:last, :seen]
                logits = logits.masked_fill(part, -math.inf) if part.dtype == torch.bool else logits + part
            most = torch.maximum(most, logits.amax(dim=(0, 2, 3)).float())
    return most


def _hidden(mask: Tensor | None, causal: bool, shape: tuple[int, ...], device: torch.device) -> list[Tensor]:
    """Where queries do not see keys, `[B, H, T, S]` bool; or what is added to their logits."""
    *_, t, keys = shape
    found = []
    if causal:
        later = torch.arange(keys, device=device) > torch.arange(t, device=device)[:, None]
        found.append(later.expand(shape))
    if mask is not None:
        whole = mask.expand(shape)
        found.append(~whole if whole.dtype == torch.bool else whole)
    return found
