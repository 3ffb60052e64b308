"""How the elements of each layer's gradient are spread over powers of two, in sampled steps: what a narrower number
format would lose.

Of a layer at most 4,096 elements are looked at, as for the update ratio: constant memory, and no atomic additions.

Legend: L layers, S elements of a layer that are looked at, E edges, B bins, Q quantities.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gradwatch.measure.autograd import without_autograd
from gradwatch.measure.collectives import Sums
from gradwatch.measure.exact import exact_dtype
from gradwatch.measure.gradients import Batch
from gradwatch.measure.layout import Layout, at, sample
from gradwatch.measure.looking import Looking

BINS, WIDTH, LOWEST = 32, 2, -48  # of two powers of two each, from 2^-48 up to 2^16
LOWER = tuple(range(LOWEST, LOWEST + BINS * WIDTH, WIDTH))  # the exponent at which each bin begins
SMALLEST = {"below_bf16": -126, "below_fp16": -14, "below_e4m3": -6}  # exponents of the smallest normal numbers
QUANTITIES = ("zeros", *SMALLEST, *(f"2^{exponent}" for exponent in LOWER))


class Shares(NamedTuple):
    """Of each layer the shares of `QUANTITIES`, `[Q, L]` float32; NaN for a layer without a gradient."""

    names: tuple[str, ...]
    values: Tensor


class GradientHistogram:
    """Looks at the gradients, before any policy, of each step whose number `every` divides."""

    def __init__(self, every: int, looking: Looking) -> None:
        self.every, self._looking = every, looking
        self._is_due = False
        self._seen: tuple[Layout, Tensor] | None = None  # and what `counts` found of it

    def begin(self, step: int) -> None:
        """This step is about to begin."""
        self._is_due, self._seen = step % self.every == 0, None

    def look(self, batch: Batch) -> None:
        """These are the step's gradients, if it is sampled: at first, where it looks at them several times."""
        if not self._is_due:
            return
        self._is_due = False
        with self._looking.at("the histogram of gradients"):
            if batch.layout.places is not None:
                raise ValueError("these optimizers step inside backward, each with a part of the gradients")
            self._seen = batch.layout, counts(batch)

    def end(self) -> Sums[Shares | None]:
        """The step is over: what was found, if it was sampled."""
        seen, self._seen, self._is_due = self._seen, None, False
        if seen is None:
            return None
        layout, found = seen
        if layout.sharding is not None:
            found = yield from layout.sharding.add(found)
        return Shares(layout.names, shares(found))


@without_autograd
def counts(batch: Batch) -> Tensor:
    """What this rank has of each layer, `[1 + E + 1, L]`: how many elements are 0, below each edge, and finite.

    Sorting and searching give the same counts on every device, and wait for none.
    """
    layout = batch.layout
    every = torch.zeros(len(batch.names), 2 + len(_exponents()), dtype=exact_dtype(layout.device), device=layout.device)
    for tensors, index in batch.groups:
        samples = [*map(sample, tensors)]
        rows = pad_sequence(samples, batch_first=True, padding_value=math.nan)
        places = layout.numbers(index, torch.int64)  # not kept: there is no end of patterns of layers
        wide = at(layout.device, rows).to(layout.dtype).abs()
        if batch.unscale is not None:
            wide = wide * (batch.unscale.index_select(0, places)[:, None] if batch.unscale.dim() else batch.unscale)
        found = _counts(layout, wide.nan_to_num(nan=math.inf, posinf=math.inf)).to(every.dtype)
        if layout.sharding is not None:  # an element of a rank's part stands for as many as it was picked from
            each = tuple(t.numel() / few.numel() for t, few in zip(tensors, samples, strict=True))
            found = found * layout.numbers(each, found.dtype)[:, None]
        every.index_copy_(0, places, found)
    return every.T.contiguous()


def _exponents() -> tuple[int, ...]:
    return (SMALLEST["below_bf16"], *LOWER[1:])


def _counts(layout: Layout, values: Tensor) -> Tensor:
    """Of each row `[L, S]` of |g|, inf for what does not count: how many are 0, below each edge, and finite."""
    edges = _numbers(layout, (*(2.0**exponent for exponent in _exponents()), math.inf), layout.dtype)
    below = torch.searchsorted(values.sort(dim=1).values, edges.expand(len(values), -1).contiguous())
    return torch.cat([(values == 0).sum(dim=1, keepdim=True), below], dim=1)


def shares(found: Tensor) -> Tensor:
    """Such counts as the shares of `QUANTITIES`, `[Q, L]`: `zeros` of all finite elements, the others of those that are
    not zero. A bin `2^k` holds 2^k <= |g| < 2^(k+2); the first all that is smaller, too, the last all that is larger.
    """
    zeros, below, finite = found[0], found[1:-1], found[-1]
    other = finite - zeros
    upto = torch.cat([torch.zeros_like(zeros)[None], below[1:] - zeros, other[None]])
    at_edge = {-126: below[0], **{e: below[1 + i] for i, e in enumerate(LOWER[1:])}}
    lost = [(at_edge[e] - zeros) / other for e in SMALLEST.values()]
    return torch.cat([torch.stack([zeros / finite, *lost]), upto.diff(dim=0) / other]).to(torch.float32)


def _numbers(layout: Layout, values: tuple[float, ...], dtype: torch.dtype) -> Tensor:
    return layout.constant((values, dtype), partial(layout.numbers, values, dtype))
