"""What the rows of a block say, as a History: numpy's part of the recording, on the thread that writes.

Legend: T steps of one block, L layers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from gradwatch.history import History, Run
from gradwatch.measure import activations, attention, gradient_histogram, largest_logits, routers
from gradwatch.recording.loop_clips import COEF, Applied, clip_columns
from gradwatch.table import SAMPLED, WAS_NAN, Table, is_logged, stack

ACTIVATIONS, HISTOGRAMS, HEADS = SAMPLED
QUANTITIES = {
    ACTIVATIONS: (*activations.QUANTITIES, *attention.QUANTITIES, *routers.QUANTITIES),
    HISTOGRAMS: gradient_histogram.QUANTITIES,
    HEADS: largest_logits.QUANTITIES,
}


class Row(NamedTuple):
    """What is known of a step on the host."""

    step: int
    time: float
    optimizer: str
    lrs: tuple[float, ...]
    present: tuple[bool, ...]
    can_skip: bool  # whether the ring knows if it was skipped
    is_measured: bool = True  # whether the gradients could be looked at
    settings: Mapping[str, float] = {}  # by column, the optimizers' settings that have changed since the first step
    clips: tuple[Applied, ...] = ()  # of the loop's own; `COEF` and its number names the coefficient of each
    is_divided: bool = False  # whether the ring has a divisor of all gradients in the place of the first coefficient
    grad_writes: float = math.nan  # how often the loop wrote to the first gradient since the step before
    weight_writes: float = math.nan  # and to the first weight
    sampled: Mapping[str, tuple[str, ...]] = {}  # of each table of sampled steps: what was looked at, a column each


def history(
    run: Run,
    names: tuple[str, ...],
    kept: Any,
    rows: Sequence[Row],
    fields: dict[str, Any],
    values: Sequence[tuple[int, str, Any]],
) -> History:
    """The History of these rows: `fields` `[T, L]` as the ring had them, of which the layers `kept` are recorded, under
    these `names`, and `values` that were added, each with the row that it belongs to.
    """
    t, fields = len(rows), dict(fields)  # as it was: after an error, and by another thread, it is asked for again
    can_skip = np.array([row.can_skip for row in rows])[:, None]
    skipped = can_skip & (fields.pop("skipped")[:, :1] > 0)
    fields["clip_coef"] = _coefs(rows, fields["clip_coef"])
    here = np.array([row.present for row in rows], bool).reshape(t, -1)
    measured = np.array([row.is_measured for row in rows])
    present = (fields.pop("present", here) > 0) & measured[:, None]
    layers = _per_layer(fields, present, skipped, run.clip is not None)
    steps = _per_step(rows, layers, skipped[:, 0])
    for name in () if measured.all() else ("grad_norm", "clipped_norm", "clip_coef", "clip_rate", "nonfinite"):
        steps[name][~measured] = np.nan
    inside: dict[str, list[tuple[int, Any]]] = {}
    for row, name, value in values:
        if row < 0:
            continue  # of the step that has left already
        array = np.asarray(value)
        if name in SAMPLED:
            inside.setdefault(name, []).append((row, array))
            continue
        table, empty = (layers, (t, len(kept))) if array.ndim else (steps, (t,))
        table.setdefault(name, np.full(empty, np.nan, array.dtype if array.ndim else np.float64))[row] = array
    coefs = {name: steps.pop(name) for name in [*steps] if name.startswith(COEF)}
    steps.update(clip_columns([row.clips for row in rows], coefs, layers))
    for row, name, value in values:
        if row >= 0 and name in steps and is_nan(name, value):
            steps.setdefault(f"{WAS_NAN}{name}", np.full(t, np.nan))[row] = 1
    attempt = np.full(t, run.attempt, np.int64)
    optimizer = np.array([row.optimizer for row in rows], dtype=object)
    block = History.of(
        run,
        names,
        np.array([row.step for row in rows], np.int64),
        attempt,
        optimizer,
        {q: v[:, kept] for q, v in layers.items()},
        steps,
    )
    tables: dict[str, Any] = {name: _sampled(name, block.by_step, rows, found) for name, found in inside.items()}
    if HISTOGRAMS in tables:
        tables[HISTOGRAMS] = tables[HISTOGRAMS].of_layers(np.flatnonzero(kept).tolist())
    return replace(block, **tables)


def is_nan(name: str, value: Any) -> bool:
    """Whether this is a NaN that the loop logged under the name: a step without it looks the same in its column."""
    return is_logged(name) and np.ndim(value) == 0 and bool(np.isnan(value))


def _sampled(name: str, steps: Table, rows: Sequence[Row], found: Sequence[tuple[int, Any]]) -> Table:
    """A table of sampled steps; without those in which nothing was seen (no module was called, on any rank)."""
    tables = []
    for row, values in found:
        if not np.isnan(values).all():
            at, named = steps.take(np.array([row])), zip(QUANTITIES[name], values, strict=False)
            columns = {quantity: each[None].astype(np.float32) for quantity, each in named}
            tables.append(replace(at, values=columns, layers=rows[row].sampled[name]))
    return stack(tables)


def _coefs(rows: Sequence[Row], written: Any) -> Any:
    """The coefficients, `[T, L]`, of what was written in their place: in some rows what all were divided by."""
    divided = np.array([row.is_divided for row in rows])[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(divided, 1 / np.where(divided, written[:, :1], 1), written)


def _per_layer(fields: dict[str, Any], present: Any, skipped: Any, has_policy: bool) -> dict[str, Any]:
    """The quantities of every step, NaN where a layer had no gradient; a skipped step has coefficient 0, and counts as
    clipped only where a policy may have left it out.
    """
    norms, coef = fields.pop("grad_norm"), fields.pop("clip_coef")
    absent, coef = ~present, np.where(skipped, 0, coef)
    changed = (coef != 1) & has_policy
    if "clip_fraction" in fields:  # it knows, also where the norms are NaN and so is their ratio
        changed = (changed & ~np.isnan(coef)) | (fields["clip_fraction"] > 0)
    table = {"grad_norm": norms, "clip_coef": coef, "clip_rate": changed, "nonfinite": ~np.isfinite(norms), **fields}
    if "clipped_norm" in table:
        table["clipped_norm"] = np.where(skipped, 0, table["clipped_norm"])
    return {q: np.where(absent, np.nan, v).astype(np.float32) for q, v in table.items()}


def _per_step(rows: Sequence[Row], layers: dict[str, Any], skipped: Any) -> dict[str, Any]:
    norms = layers["grad_norm"].astype(np.float64)
    absent = np.isnan(layers["nonfinite"])
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        clipped = layers.get("clipped_norm", norms * layers["clip_coef"])
        before, after = _root_sum(norms, absent), np.where(skipped, 0, _root_sum(clipped, absent))
        coef = np.where(absent, np.nan, layers["clip_coef"])
        low, high = (
            f(coef, axis=1, initial=start, where=~np.isnan(coef)) for f, start in ((np.min, np.inf), (np.max, -np.inf))
        )
        ratio = np.where(low == high, low, np.where(before == 0, 1.0, after / before))
    steps = {
        "time": np.array([row.time for row in rows]),
        "grad_norm": before,
        "clipped_norm": after,
        "clip_coef": ratio,
        "clip_rate": (np.nan_to_num(layers["clip_rate"]) > 0).any(axis=1).astype(np.float64),
        "skipped": skipped.astype(np.float64),
        "nonfinite": np.nansum(layers["nonfinite"], axis=1, dtype=np.float64),
    }
    widest = max(len(row.lrs) for row in rows)
    for g in range(widest):
        steps[f"lr/{g}" if g else "lr"] = np.array([row.lrs[g] if g < len(row.lrs) else np.nan for row in rows])
    steps["grad_writes"] = np.array([row.grad_writes for row in rows])
    steps["weight_writes"] = np.array([row.weight_writes for row in rows])
    for name in dict.fromkeys(name for row in rows for name in row.settings):
        steps[name] = np.array([row.settings.get(name, np.nan) for row in rows])
    return steps


def _root_sum(norms: Any, absent: Any) -> Any:
    return np.sqrt(np.where(absent, 0, norms.astype(np.float64) ** 2).sum(axis=1))
