"""What MLflow is told: few keys, one point per window of steps; the files keep every layer and every step.

Legend: T recorded steps, L layers, B blocks (at most `mlflow_layers`).

A layer's key is its name (`grad_norm/fc1.weight`): it can be typed, and it means the same in a run that watches other
layers. Only when layers are summed up to blocks are numbers zero-padded (`grad_norm/blocks.03`), so that MLflow, which
sorts by text, shows the blocks in model order.

Of a run that several Watches share, what belongs to no layer ends in the name of its part (`grad_norm/total/G`, `lr/G`,
`loss/G`), so that no two write one key; layers carry the name already. What no two names share is in `mlflow_names`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.clips import as_one, incoming, loop_changed, loop_coef
from gradwatch.analysis.noise_scale import estimates, noise_scale
from gradwatch.analysis.rules.facts import limits_of
from gradwatch.history import Floats, History
from gradwatch.table import EMPTY, NOT_SAMPLED, REWINDS, SETTING, joint_norm, spread
from gradwatch.tracking.clip_rates import NO_RATES, Rate, Rates
from gradwatch.tracking.mlflow_names import (
    BEFORE_LOOP,
    BRIEF,
    LOOP,
    SAMPLED_QUANTITIES,
    TOTAL,
    blocks,
    layer_key,
    logged_key,
    part_key,
    safe_name,
)

MAX_POINTS = 1_000  # of one request, which is as many as MLflow takes,
LEAST_POINTS = 50  # and of one to a server that is too slow for more
LAST_TIME = 253_402_300_799_000  # ms, the end of 9999: MLflow refuses times before 1970, and beyond its integers
LOSS = re.compile(r"(train(ing)?[ _./-]?)?loss")  # by its whole name: each window must find the same one
SPARSE = 0.2  # what was logged in at most this share of a window's steps keeps every value


class Point(NamedTuple):
    """One metric value: MLflow's key, a finite value, unix time in milliseconds, the step."""

    key: str
    value: float
    timestamp: int
    step: int


class Nonfinite(NamedTuple):
    """How many steps had an inf or NaN norm so far, and where it began (-1: nowhere yet)."""

    steps: int = 0
    first_step: int = -1
    first_layer: str = ""


NONE_YET = Nonfinite()
# A key, its values `[T]`, how a window sums them up, and whether a point keeps the value's own step.
Series = tuple[str, Floats, Callable[[Floats], float], bool]


@dataclass(frozen=True)
class Window:
    """The points of one window; `stop` is the first step that they do not cover. `nonfinite` and `rates` are so far."""

    stop: int
    points: list[Point]
    nonfinite: Nonfinite
    rates: Rates


# ----------------------------------------------------------------------------------------------------------- windows


def _largest(values: Floats) -> Floats:
    finite = np.isfinite(values)
    return np.asarray(np.where(finite.any(axis=1), np.where(finite, values, -np.inf).max(axis=1), np.nan))


def _smallest(values: Floats) -> Floats:
    return -_largest(-values)


def _middle(values: Floats) -> Floats:
    """`[T, M]` -> `[T]`, the median of the finite ones; NaN where there is none."""
    rows = [row[np.isfinite(row)] for row in values]
    return np.array([np.median(row) if len(row) else np.nan for row in rows])


def _average(values: Floats) -> Floats:
    finite = np.isfinite(values)
    count = finite.sum(axis=1)
    return np.asarray(np.where(finite, values, 0).sum(axis=1, dtype=np.float64) / np.where(count, count, np.nan))


def _max(values: Floats) -> float:
    return float(values.max())


def _mean(values: Floats) -> float:
    return float(values.mean())


# quantity -> (how a block sums up its layers, how a window sums up its steps)
LAYER_QUANTITIES: dict[str, tuple[Callable[[Floats], Floats], Callable[[Floats], float]]] = {
    "grad_norm": (joint_norm, _max),
    "weight_norm": (joint_norm, _max),
    "update_ratio": (_largest, _max),
    "clip_rate": (_average, _mean),
}
SUMMARIES: dict[str, Callable[[Floats], Floats]] = {"largest": _largest, "smallest": _smallest, "median": _middle}
# column of the steps table -> (key, how a window sums it up)
STEP_QUANTITIES: dict[str, tuple[str, Callable[[Floats], float]]] = {
    "grad_norm": (TOTAL, _max),
    "clipped_norm": ("clipped_norm/total", _max),
    "update_norm": ("update_norm/total", _max),
    "clip_rate": ("clip/rate", _mean),
    "clip_coef": ("clip/coef", _mean),
}


def windows(
    history: History,
    size: int,
    limit: int,
    *,
    ended: bool,
    start: int = 0,
    nonfinite: Nonfinite = NONE_YET,
    rates: Rates = NO_RATES,
) -> Iterator[Window]:
    """The closed windows of `history` from step `start` on.

    A window is the fixed range `[w * size, (w + 1) * size)`; it is closed when a later step exists or the run has
    `ended`. The rest of a window that an end cut short is a window of its own once the run goes on.

    Norms are the window's largest finite value (a curve that is sampled cannot hide a spike), rates and the
    coefficient the mean, the learning rates and what was logged the last finite value. A logged value sits at the step
    it was logged for, all others at the last step of the window; what was logged in at most a fifth of the window's
    steps (an accuracy once an epoch) keeps every value. What has no finite value gives no point. `nonfinite` and
    `rates` are what the windows before `start` came to.
    """
    history = _timed(history)
    history = history.take((history.step >= start) & np.isfinite(history.total("time")))
    if not len(history):
        return
    state, count = nonfinite, part_key("clip/nonfinite_steps", history.run.part)
    own_series = [*_series(history, limit), *_brief_series(history, clipped=bool(history.run.clip))]
    own_series += _noise_series(history, size)
    series = [*own_series, *_loop_series(history), *([] if history.run.clip else _clip_series(history))]
    totals = replace(history, by_layer=EMPTY, **NOT_SAMPLED)  # the layers are not copied for each window
    bad = history.total("nonfinite") > 0
    bad[history.layer_rows[(history.layer("nonfinite") > 0).any(axis=1)]] = True
    stamps = (history.total("time") * 1000).round().clip(0, LAST_TIME).astype(np.int64)
    number = history.step // size
    edges = np.flatnonzero(np.diff(number)) + 1
    for rows in np.split(np.arange(len(history)), edges):
        last = rows[-1] == len(history) - 1
        if last and not ended:
            return
        state = _count(history, rows[bad[rows]], state)
        at_end = int(stamps[rows[-1]]), int(history.step[rows[-1]])
        rates = rates.after(totals.take(rows), size)
        told = {"clip": rates.policy, **({LOOP: rates.loop} if rates.loop_clips else {})}
        points = [Point(count, float(state.steps), *at_end)]
        for name, rate in told.items():
            points += [Point(part_key(f"{name}/{k}", history.run.part), v, *at_end) for k, v in rate.values.items()]
        of_all = rates.policy if history.run.clip else rates.loop if rates.loop_clips else Rate()
        key = part_key(f"{BRIEF}/clip_rate_so_far", history.run.part)
        points += [Point(key, v, *at_end) for k, v in of_all.values.items() if k == "rate_so_far"]
        for key, values, reduce, own_step in series if rates.loop_clips else own_series:
            found = rows[np.isfinite(values[rows])]
            if own_step and len(found) <= size * SPARSE:
                points += [Point(key, float(values[at]), int(stamps[at]), int(history.step[at])) for at in found]
            elif len(found):
                at = found[-1] if own_step else rows[-1]
                points.append(Point(key, reduce(values[found]), int(stamps[at]), int(history.step[at])))
        stop = int(history.step[rows[-1]]) + 1 if last else int(number[rows[0]] + 1) * size
        yield Window(stop, points, state, rates)


def _timed(history: History) -> History:
    """Of an imported run whose log had no times, each step at its start: a step without a time makes no point."""
    time = history.total("time")
    if history.run.source is None or np.isfinite(time).any():
        return history
    created = np.full(len(history), datetime.fromisoformat(history.run.created).timestamp())
    return replace(history, by_step=replace(history.by_step, values={**history.per_step, "time": created}))


def _series(history: History, limit: int) -> list[Series]:
    """What is sent of every run: each key with its values."""
    part = history.run.part
    out: list[Series] = [
        (part_key(key, part), history.total(column), reduce, False) for column, (key, reduce) in STEP_QUANTITIES.items()
    ]
    groups = blocks(history.layers, limit)
    for quantity, (block, reduce) in LAYER_QUANTITIES.items():
        if quantity == "clip_rate" and not history.run.clip:
            continue  # 0 in every layer and step
        values = history.layer(quantity)
        for name, at in groups.items():
            curve = spread(block(values[:, at]), history.layer_rows, len(history))
            out.append((layer_key(quantity, name), curve, reduce, False))
    out += [(part_key(key, part), values, _max, False) for key, values in _of_sampled(history)]
    rates = [name for name in history.per_step if name == "lr" or name.startswith(("lr/", SETTING))]
    out += [(part_key(safe_name(name), part), history.per_step[name], _last, False) for name in rates]
    out += [(part_key(name, part), history.per_step[name], _last, True) for name in REWINDS if name in history.per_step]
    return out + [(logged_key(name, part), history.per_step[name], _last, True) for name in history.logged]


def _noise_series(history: History, size: int) -> list[Series]:
    """The gradient noise scale of each window that has one."""
    signal, noise = estimates(history)
    values = np.full(len(history), np.nan)
    number = history.step // size
    for window in np.unique(number[np.isfinite(signal)]):
        values[number == window] = noise_scale(signal[number == window], noise[number == window])
    return [(part_key("noise_scale/batches", history.run.part), values, _last, False)]


def _brief_series(history: History, clipped: bool) -> list[Series]:
    """What a run's page opens on: the total norm, before and after all clips where it is `clipped`, and the loss."""
    part = history.run.part
    found: list[Series] = [(part_key(f"{BRIEF}/norm_before", part), as_one(history).total("grad_norm"), _max, False)]
    losses = [name for name in history.logged if LOSS.fullmatch(name)]
    found += [(part_key(safe_name(f"{BRIEF}/{name}"), part), history.per_step[name], _last, True) for name in losses]
    return [*found, *(_clip_series(history) if clipped else ())]


def _clip_series(history: History) -> list[Series]:
    """The rest of it where something clips: the norm that is left, and the threshold, of a clip that has one."""
    part, limits = history.run.part, limits_of(history)
    after = as_one(history).total("clipped_norm")
    bound = np.full(len(history), np.nan) if limits is None else limits
    return [(part_key(f"{BRIEF}/norm_after", part), after, _max, False),
            (part_key(f"{BRIEF}/norm_threshold", part), bound, _last, False)]  # fmt: skip


def _of_sampled(history: History) -> Iterator[tuple[str, Floats]]:
    """What sums up modules, heads or layers at each sampled step, NaN at the others: `[T]` by key."""
    for (name, quantity), (key, words) in SAMPLED_QUANTITIES.items():
        table = getattr(history, name)
        values = history.layer(quantity) if name == "by_layer" else table.with_values(quantity).values.get(quantity)
        if values is None or not np.isfinite(values).any():
            continue
        at = history.by_step.find(table)
        yield from ((f"{key}/{word}", spread(SUMMARIES[word](values), at, len(history))) for word in words)


def _loop_series(history: History) -> list[Series]:
    """The same for the clips of the loop's own."""
    found = ((f"{LOOP}/rate", loop_changed(history), _mean), (f"{LOOP}/coef", loop_coef(history), _mean),
             (BEFORE_LOOP, incoming(history), _max))  # fmt: skip
    return [(part_key(key, history.run.part), values, reduce, False) for key, values, reduce in found]


def _last(values: Floats) -> float:
    return float(values[-1])


def _count(history: History, bad: NDArray[np.int64], state: Nonfinite) -> Nonfinite:
    """`bad` are the rows of a window whose gradients were not finite."""
    if not len(bad):
        return state
    first = state if state.steps else Nonfinite(0, int(history.step[bad[0]]), _first_layer(history, bad[0]))
    return first._replace(steps=state.steps + len(bad))


def _first_layer(history: History, row: np.int64) -> str:
    layers = np.flatnonzero((history.layer("nonfinite")[history.layer_rows == row] > 0).any(axis=0))
    return history.layers[int(layers[0])] if len(layers) else ""


def batches(found: Iterable[Window], most: Callable[[], int] = lambda: MAX_POINTS) -> Iterator[list[Window]]:
    """Whole windows, as many as fit in one request of `most()` points, but one at least."""
    batch: list[Window] = []
    size = 0
    for window in found:
        if batch and size + len(window.points) > most():
            yield batch
            batch, size = [], 0
        batch.append(window)
        size += len(window.points)
    if batch:
        yield batch
