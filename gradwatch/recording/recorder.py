"""Turns rows on the device into Histories: what each step recorded waits in a ring and leaves it in blocks.

Legend: T steps of one block, L layers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from gradwatch.history import STEP_COLUMNS, History, Run
from gradwatch.measure.ring_buffer import Ring

ROWS = 128
DRAIN_SECONDS = 2.0
LATE = -1  # in place of a row's number: the step that has left already


class Row(NamedTuple):
    """What is known of a step on the host."""

    step: int
    time: float
    optimizer: str
    lrs: tuple[float, ...]
    present: tuple[bool, ...]


class Recorder:
    """Collects the rows of the running steps; every `ROWS` rows or `seconds` they become a History for `sink`.

    A row is complete when the next step begins, because `log` belongs to the last step taken. One that left earlier,
    because its process may be killed before the next step, is handed over again if more is logged for it.
    """

    def __init__(
        self,
        run: Run,
        kept: Sequence[bool],
        fields: Sequence[str],
        device: torch.device,
        sink: Callable[[History], None],
        seconds: float = DRAIN_SECONDS,
    ) -> None:
        self.run, self.sink, self.seconds = run, sink, seconds
        self.kept = np.asarray(kept, bool)
        self.names = tuple(layer.name for layer, keep in zip(run.layers, kept, strict=True) if keep)
        self.ring = Ring(["grad_norm", "clip_coef", *fields, "skipped"], len(kept), ROWS, device)
        self.rows: list[Row] = []
        self.values: list[tuple[int, str, float | None]] = []  # row, name, number; None: the ring's next kept tensor
        self.sent: History | None = None  # the last step, where its row has left already
        self.is_logged = self.was_logged = True  # whether something was logged for the last step, and the one before
        self.drained, self.begun, self.pace = time.monotonic(), -math.inf, math.inf  # pace: between two steps

    @property
    def due(self) -> bool:
        """Whether the rows so far should leave."""
        return self.ring.full or (bool(self.rows or self.values) and time.monotonic() - self.drained > self.seconds)

    @property
    def due_at_once(self) -> bool:
        """Whether the last row, too, should leave before the next step begins, because that may take long.

        Not while something is still to be logged for it, going by the step before.
        """
        return (self.is_logged or not self.was_logged) and (self.due or self.pace > self.seconds)

    def begin(self, row: Row, norms: Tensor, coef: Tensor, extra: Sequence[Tensor], skipped: Tensor | None) -> None:
        """Record a step: norms `[L]`, coefficients `[]` or `[L]`, the extra fields `[L]`, the skip flag (0-d bool)."""
        self.ring.write(norms, coef, *extra, skipped)
        self.rows.append(row)
        self.is_logged, self.was_logged = False, self.is_logged
        now = time.monotonic()
        self.pace, self.begun = now - self.begun, now

    def correct(self, optimizer: str, present: tuple[bool, ...]) -> None:
        """The last row is of these layers only, those of `optimizer`."""
        if self.rows:
            both = tuple(a and b for a, b in zip(self.rows[-1].present, present, strict=True))
            self.rows[-1] = self.rows[-1]._replace(optimizer=optimizer, present=both)

    def amend(self, present: tuple[bool, ...], values: Sequence[Tensor]) -> None:
        """Write the last row anew: which layers it has, and norms, coefficients and extra fields, `[L]` each."""
        self.rows[-1] = self.rows[-1]._replace(present=present)
        self.ring.used -= 1
        self.ring.write(*values, None)

    def measured(self, values: Mapping[str, Tensor]) -> None:
        """Add quantities `[L]` that are not measured on every step to the last row."""
        for name, value in values.items():
            self._keep(len(self.rows) - 1, name, value)

    def log(self, values: Mapping[str, Any]) -> None:
        """Add scalars (numbers or 0-d tensors) to the last step; the last value of a name counts."""
        self.is_logged = True
        self.note(values)

    def note(self, values: Mapping[str, Any]) -> None:
        """The same, for what is recorded of every step: it says nothing of what else will come."""
        self._log(values, len(self.rows) - 1 if self.rows else 0 if self.sent is None else LATE)

    def log_next(self, values: Mapping[str, Any]) -> None:
        """Add scalars to the row that is about to begin."""
        self._log(values, len(self.rows))

    def _log(self, values: Mapping[str, Any], at: int) -> None:
        for name, value in values.items():
            if isinstance(value, Tensor):
                self._keep(at, name, value.reshape(()))
            else:
                self.values.append((at, name, float(value)))

    def _keep(self, at: int, name: str, value: Tensor) -> None:
        self.values.append((at, name, None))
        self.ring.keep(value)

    def take_over(self, old: Recorder) -> None:
        """Go on for a drained recorder: what was logged for a step still to come, or for one that has left."""
        self.values, self.sent = old.values, old.sent
        self.is_logged, self.was_logged, self.pace, self.begun = old.is_logged, old.was_logged, old.pace, old.begun
        for value in old.ring.extras:
            self.ring.keep(value)

    def drain(self, last_too: bool = True) -> None:
        """Hand the rows to the sink, as one History; waits for the device. `last_too` False keeps the last row back.

        Nothing is forgotten before the sink has it: an exception on the way (Ctrl-C, no memory) leaves the rows here.
        """
        self.drained = time.monotonic()
        done = max(0, len(self.rows) - (not last_too))
        if not done and not any(row == LATE for row, _, _ in self.values):
            return  # scalars logged before the first step wait for it
        self._put_last(done)
        left = [(row - done, name, number) for row, name, number in self.values if row >= done]
        fields, extras = self.ring.read()
        tensors = iter(extras)
        values = [(row, name, next(tensors) if number is None else number) for row, name, number in self.values]
        sent = self.sent and self._amended(self.sent, values)
        if done:
            block = self._history(self.rows, fields, values).take(np.arange(done))
            self.sink(block)
            sent = block.take(np.array([-1]))
        self.ring.forget(len(self.rows) - done, sum(number is None for _, _, number in left))
        self.rows, self.values = self.rows[done:], left
        self.sent = None if self.rows else sent

    def _amended(self, sent: History, values: Sequence[tuple[int, str, Any]]) -> History:
        """The step that has left, with what was logged for it since; if that is anything, it is handed over again."""
        late = {name: np.full(1, value, np.float64) for row, name, value in values if row == LATE}
        amended = replace(sent, by_step=replace(sent.by_step, values={**sent.per_step, **late}))
        if late:
            self.sink(amended)
        return amended

    def _put_last(self, done: int) -> None:
        """What was logged for rows that stay goes behind the rest, in the ring too: that keeps its last tensors."""
        stays = [row >= done for row, _, _ in self.values]
        tensors = [late for late, (_, _, number) in zip(stays, self.values, strict=True) if number is None]
        self.values = [self.values[i] for i in sorted(range(len(stays)), key=stays.__getitem__)]
        self.ring.extras = [self.ring.extras[i] for i in sorted(range(len(tensors)), key=tensors.__getitem__)]

    def _history(self, rows: list[Row], fields: dict[str, Any], values: Sequence[tuple[int, str, Any]]) -> History:
        t = len(rows)
        skipped = np.nan_to_num(fields.pop("skipped")[:, :1], nan=0.0) > 0
        here = np.array([row.present for row in rows], bool).reshape(t, -1)
        layers = _per_layer(fields, fields.pop("present", here) > 0, skipped)
        steps = _per_step(rows, layers, skipped[:, 0])
        for row, name, value in values:
            if not 0 <= row < t:
                continue  # of a step that is still to come, or of one that has left
            array = np.asarray(value)
            table, empty = (layers, (t, len(self.kept))) if array.ndim else (steps, (t,))
            table.setdefault(name, np.full(empty, np.nan, array.dtype if array.ndim else np.float64))[row] = array
        attempt = np.full(t, self.run.attempt, np.int64)
        optimizer = np.array([row.optimizer for row in rows], dtype=object)
        return History.of(
            self.run,
            self.names,
            np.array([row.step for row in rows], np.int64),
            attempt,
            optimizer,
            {q: v[:, self.kept] for q, v in layers.items()},
            steps,
        )


def learning_rates(optimizers: Sequence[Optimizer]) -> tuple[tuple[float, ...], dict[str, Tensor]]:
    """The rate of each param group, in order; those that are tensors (capturable optimizers) by name,
    and NaN among the others.

    Those travel with the ring: reading them would wait for the device.
    """
    rates = [group["lr"] for o in optimizers for group in o.param_groups if "lr" in group]
    on_device = {}
    for g, rate in enumerate(rates):
        if isinstance(rate, Tensor):
            on_device[f"lr/{g}" if g else "lr"], rates[g] = rate, np.nan
    return tuple(rates), on_device


def refusal(values: Mapping[str, object]) -> str | None:
    """Why these cannot be logged: a name that the record uses itself, or a value that is not one number; else None."""
    for name, value in values.items():
        if name in STEP_COLUMNS or name.startswith(("lr/", "rank_grad_norm/")):
            return f"{name}=...): gradwatch records {name} itself; choose another name"
        if isinstance(value, Tensor):
            fits, found = value.numel() == 1 and not value.is_complex(), f"tensor of shape {tuple(value.shape)}"
        else:
            fits, found = hasattr(value, "__float__") and getattr(value, "ndim", 0) == 0, f"{value!r:.80}"
        if not fits:
            return f"{name}={found}): wanted a number or a tensor of one element"
    return None


def _per_layer(fields: dict[str, Any], present: Any, skipped: Any) -> dict[str, Any]:
    """The quantities of every step, NaN where a layer had no gradient; a skipped step has coefficient 0."""
    norms, coef = fields.pop("grad_norm"), fields.pop("clip_coef")
    absent, coef = ~present, np.where(skipped, 0, coef)
    changed = coef != 1
    if "clip_fraction" in fields:  # it knows, also where the norms are NaN and so is their ratio
        changed = (changed & ~np.isnan(coef)) | (fields["clip_fraction"] > 0)
    table = {"grad_norm": norms, "clip_coef": coef, "clip_rate": changed, "nonfinite": ~np.isfinite(norms), **fields}
    if "clipped_norm" in table:
        table["clipped_norm"] = np.where(skipped, 0, table["clipped_norm"])
    return {q: np.where(absent, np.nan, v).astype(np.float32) for q, v in table.items()}


def _per_step(rows: list[Row], layers: dict[str, Any], skipped: Any) -> dict[str, Any]:
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
    return steps


def _root_sum(norms: Any, absent: Any) -> Any:
    return np.sqrt(np.where(absent, 0, norms.astype(np.float64) ** 2).sum(axis=1))
