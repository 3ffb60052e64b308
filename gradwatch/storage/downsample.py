"""Makes a layers table that fits in memory of one that does not, while it is read: no spike and no count is lost.

Legend: T recorded steps, L layers, B buckets of consecutive steps, R rows.

The steps of each optimizer are cut into buckets, and a bucket becomes three rows, after M4 aggregation (Jugel et al.,
2014): a layer's first recorded value, its lowest and its highest. Steps with a non-finite gradient and the two ends of
the run are buckets of their own: one row, nothing summed up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.errors import RunError
from gradwatch.history import SEEN
from gradwatch.sanitize import MAX_GROUP_VALUES, MAX_LAYERS
from gradwatch.table import Floats, Table

MAX_VALUES = 60_000_000  # of one run, to be shown: 240 MB

EDGE = 20  # steps kept as they are at each end
MAX_ALONE = 256  # non-finite steps kept as they are; those after them are counted in their buckets
MIN_ROWS = 300
MAX_ROWS = 1 << 18  # of few layers: buckets are filled one by one, and nobody sees more
QUANTITIES = 7  # of a layer, as a rule: how many rows a number of values is
Ints = NDArray[np.intp]


def reduced(blocks: Iterable[Table], steps: Table, layers: int, at_most: int) -> Table:
    """The blocks of a layers table, in any order, as about `at_most` values, of few layers fewer; `steps` is the steps
    table, all of it.

    See `History` for what its rows mean. Rows of `blocks` that a later attempt took again are left out.
    """
    limit = min(MAX_ROWS, max(MIN_ROWS, at_most // (QUANTITIES * max(1, layers))))
    stride = max(4, -(-3 * len(steps) // limit))
    lanes = {name: _lane(steps, at, stride) for name, at in steps.lane_rows().items()}
    rows = np.unique(np.concatenate([lane.rows.ravel() for lane in lanes.values()]))
    out = _Reduced(len(rows))
    for block in blocks:
        found = block.lane_rows()
        for name, at in found.items():
            if name in lanes:
                out.add(block if len(found) == 1 else block.take(at), lanes[name], rows)
    out.finish([np.searchsorted(rows, lane.rows) for lane in lanes.values()])
    return Table(steps.step[rows], steps.attempt[rows], steps.optimizer[rows], out.values, tuple(out.columns))


@dataclass(frozen=True)
class _Lane:
    """The buckets of one optimizer's T steps: `bucket` `[T]` is each step's, `rows` `[B, 3]` the rows of the
    steps table that stand for it: for a layer's first value, its lowest, its highest.
    """

    step: NDArray[np.int64]
    attempt: NDArray[np.int64]
    bucket: Ints
    rows: Ints
    seen: NDArray[np.bool_]  # which of the steps are in the table already


def _lane(steps: Table, at: Ints, stride: int) -> _Lane:
    """The lowest and the highest values stand at the steps of the lowest and the highest total norm."""
    unknown = np.full(len(steps), np.nan)
    norm, bad = (steps.values.get(name, unknown)[at] for name in ("grad_norm", "nonfinite"))
    bucket = _buckets((bad > 0) | np.isinf(norm), stride)
    starts = np.flatnonzero(np.diff(bucket, prepend=-1))
    ends = np.append(starts[1:], len(at)) - 1
    order = np.lexsort((norm, bucket))  # within each bucket by the norm, NaN last
    low, high = order[starts], order[ends]
    free = [(low != starts + i) & (high != starts + i) for i in (0, 1)]
    rows = np.stack([starts + np.select(free, [0, 1], 2), low, high], axis=1)
    rows = np.where((ends > starts)[:, None], rows, starts[:, None])
    return _Lane(steps.step[at], steps.attempt[at], bucket, at[rows], np.zeros(len(at), bool))


def _buckets(bad: NDArray[np.bool_], stride: int) -> Ints:
    """The number of each step's bucket, `[T]`: `stride` steps, but for those that are `bad` or at an end: one step."""
    place = np.arange(len(bad))
    alone = bad & (np.cumsum(bad) <= MAX_ALONE)
    alone |= (place < EDGE) | (place >= len(bad) - EDGE)
    starts = alone.copy()
    starts[1:] |= alone[:-1]
    starts[:1] = True
    starts |= (place - np.maximum.accumulate(np.where(starts, place, 0))) % stride == 0
    bucket = np.cumsum(starts) - 1
    starts |= np.bincount(bucket)[bucket] <= 3  # three rows would not be fewer
    return np.asarray(np.cumsum(starts) - 1)


class _Reduced:
    """The per-layer quantities of R rows, filled block by block."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.columns: dict[str, int] = {}
        self.values: dict[str, Floats] = {}

    def add(self, block: Table, lane: _Lane, rows: Ints) -> None:
        """Add the steps of one optimizer."""
        place = np.clip(np.searchsorted(lane.step, block.step, side="right") - 1, 0, None)
        current = (lane.step[place] != block.step) | (lane.attempt[place] == block.attempt)
        current &= ~lane.seen[place]  # a row that was handed over again has the same layers
        lane.seen[place[current]] = True
        if not current.all():
            block, place = block.take(current), place[current]
        if not len(block):
            return
        columns = self._columns(block.layers)
        bucket = lane.bucket[place]
        starts = np.flatnonzero(np.diff(bucket, prepend=-1))
        spans = list(zip(starts, np.append(starts[1:], len(block)), strict=True))
        places = np.searchsorted(rows, lane.rows[bucket[starts]])
        counted = [*(block.values[name] for name in ("clip_rate", "nonfinite") if name in block.values)]
        for name, values in block.values.items():
            out = self._quantity(name)
            for (a, b), (first, lowest, highest) in zip(spans, places, strict=True):
                if name == "nonfinite":
                    _add(out[highest], columns, values[a:b])
                elif name == "clip_rate":
                    _add(out[first], columns, values[a:b])
                else:
                    _first(out[first], columns, values[a:b])
                    if lowest != first:
                        _extreme(np.fmin, out[lowest], columns, values[a:b])
                        _extreme(np.fmax, out[highest], columns, values[a:b])
        for found in (counted or [*block.values.values()])[:1]:
            out = self._quantity(SEEN)
            for (a, b), (first, _, _) in zip(spans, places, strict=True):
                _add(out[first], columns, ~np.isnan(found[a:b]))

    def finish(self, places: list[Ints]) -> None:
        """Turn sums into shares, once all blocks are in; `places` are the rows of each lane's buckets."""
        if SEEN not in self.values:
            return
        seen, rate, bad = self.values[SEEN], self.values.get("clip_rate"), self.values.get("nonfinite")
        first, lowest, highest = np.concatenate(places).T
        for b in range(len(first)):
            count = seen[first[b]]
            absent = np.isnan(count) | (count == 0)
            if rate is not None:
                share = np.where(absent, np.nan, rate[first[b]] / np.where(absent, 1, count))
                rate[first[b]] = rate[lowest[b]] = rate[highest[b]] = share
            if bad is not None:
                for row in {first[b], lowest[b]} - {highest[b]}:
                    bad[row] = np.where(absent, np.nan, 0)
                bad[highest[b], absent] = np.nan
            for row in {lowest[b], highest[b]} - {first[b]}:
                seen[row] = 0
            seen[first[b]] = np.nan_to_num(count)

    def _columns(self, layers: tuple[str, ...]) -> slice | Ints:
        new = [name for name in layers if name not in self.columns]
        if new:
            count = len(self.columns) + len(new)
            if count > MAX_LAYERS or count * self.rows * max(1, len(self.values)) > MAX_GROUP_VALUES:
                raise RunError(f"this run holds {count:,} layers or more, far more than its manifest names: not read")
            self.columns.update({name: len(self.columns) + i for i, name in enumerate(new)})
            for name, values in self.values.items():
                wider = np.full((self.rows, len(new)), np.nan, np.float32)
                self.values[name] = np.concatenate([values, wider], axis=1)
        if layers == tuple(self.columns):
            return slice(None)
        return np.array([self.columns[name] for name in layers])

    def _quantity(self, name: str) -> Floats:
        if name not in self.values:
            if self.rows * len(self.columns) * len(self.values) > MAX_GROUP_VALUES:
                raise RunError(f"this run holds {len(self.values):,} quantities of {len(self.columns):,} layers: "
                               "more than is read")  # fmt: skip
            self.values[name] = np.full((self.rows, len(self.columns)), np.nan, np.float32)
        return self.values[name]


def _add(row: Floats, columns: slice | Ints, values: NDArray[Any]) -> None:
    """Add the sum of `values` `[T, L]` to a row; where all of them are NaN nothing is added."""
    seen = ~np.isnan(values)
    total = (values if seen.all() else np.where(seen, values, 0)).sum(axis=0, dtype=np.float32)
    row[columns] = np.where(seen.any(axis=0), np.nan_to_num(row[columns]) + total, row[columns])


def _first(row: Floats, columns: slice | Ints, values: Floats) -> None:
    """Fill what is still NaN in a row with the first value `[T, L]` that is not."""
    here = row[columns]
    for candidate in values:
        missing = np.isnan(here)
        if not missing.any():
            break
        here = np.where(missing, candidate, here)
    row[columns] = here


def _extreme(choose: np.ufunc, row: Floats, columns: slice | Ints, values: Floats) -> None:
    """The lowest or highest of a row and of `values` `[T, L]`; NaN is left out."""
    row[columns] = choose(row[columns], choose.reduce(values, axis=0))
