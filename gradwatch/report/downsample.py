"""Long runs and many layers made small enough to draw, without losing a spike or a non-finite step.

Legend: T recorded steps, L layers, R drawn rows, C drawn columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradwatch.history import Bools, Floats, History

GRID = (60, 160)  # rows and columns of one map among several


@dataclass(frozen=True)
class Heatmap:
    """A quantity over layers and steps; every cell holds the highest finite value of what it stands for, or the lowest.

    `rows` are labels in model order; `value` is `[R, C]`, NaN where nothing finite was recorded; `nonfinite` marks
    cells that hold at least one inf or NaN, `zero` cells in which everything recorded was exactly zero.
    """

    rows: tuple[str, ...]
    step: NDArray[np.int64]
    value: Floats
    nonfinite: Bools
    zero: Bools
    steps_per_column: int
    layers_per_row: int

    @property
    def logs(self) -> Floats:
        """log10 of each `value`; NaN where that is not above 0."""
        return np.asarray(np.log10(np.where(self.value > 0, self.value, np.nan)))


def heatmap(
    history: History, quantity: str, max_rows: int = 200, max_columns: int = 600, lowest: bool = False
) -> Heatmap | None:
    """`quantity` as a heatmap of at most `max_rows` x `max_columns` cells; None when this run never recorded it."""
    best = np.fmin if lowest else np.fmax
    values = history.layer(quantity)  # [T, L]
    bad = np.isinf(values)
    if quantity in ("grad_norm", "rms"):
        bad = bad | (history.layer("nonfinite") > 0)
    recorded = (~np.isnan(values) | bad).any(axis=1)
    if not recorded.any():
        return None
    step = history.layer_step[recorded]
    if not recorded.all():
        values, bad = values[recorded], bad[recorded]
    value = np.where(bad, np.nan, values)
    starts = np.flatnonzero(np.diff(step, prepend=-1))  # parts of one run may each have a step of this number
    if len(starts) < len(step):
        step = step[starts]
        value, bad = best.reduceat(value, starts, axis=0), np.logical_or.reduceat(bad, starts, axis=0)
    columns, rows = _starts(len(step), max_columns), _starts(len(history.layers), max_rows)
    steps = len(np.unique(history.step)) if history.is_reduced else len(step)
    value = best.reduceat(best.reduceat(value, columns, axis=0), rows, axis=1).T
    nonfinite = np.logical_or.reduceat(np.logical_or.reduceat(bad, columns, axis=0), rows, axis=1).T
    return Heatmap(
        rows=_labels(history.layers, rows),
        step=step[columns],
        value=value,
        nonfinite=nonfinite,
        zero=(value == 0) & ~nonfinite,
        steps_per_column=-(-steps // len(columns)),
        layers_per_row=-(-len(history.layers) // len(rows)),
    )


def thin(values: Floats, limit: int) -> NDArray[np.intp]:
    """Row numbers of the finite values worth drawing: all of them, or the lowest and highest of each bucket."""
    rows = np.flatnonzero(np.isfinite(values))
    if len(rows) <= limit:
        return rows
    keep = []
    for bucket in np.array_split(rows, max(1, limit // 2)):
        keep += [bucket[values[bucket].argmin()], bucket[values[bucket].argmax()]]
    return np.unique(keep)


def bucket_mean(values: Floats, limit: int) -> tuple[NDArray[np.intp], Floats]:
    """Row numbers of the middles of at most `limit` buckets of steps, and the mean of the finite values in each."""
    starts = _starts(len(values), limit)
    finite = np.isfinite(values)
    count = np.add.reduceat(finite.astype(float), starts)
    total = np.add.reduceat(np.where(finite, values, 0.0), starts)
    stops = np.append(starts[1:], len(values))
    return (starts + stops - 1) // 2, total / np.where(count, count, np.nan)


def _starts(length: int, limit: int) -> NDArray[np.intp]:
    size = -(-length // limit)
    return np.arange(0, length, max(size, 1))


def _labels(layers: tuple[str, ...], starts: NDArray[np.intp]) -> tuple[str, ...]:
    stops = [*starts[1:], len(layers)]
    return tuple(
        layers[a] if b - a == 1 else f"{layers[a]} … {layers[b - 1]}" for a, b in zip(starts, stops, strict=True)
    )
