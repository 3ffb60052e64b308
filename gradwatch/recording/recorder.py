"""Turns rows on the device into Histories: what each step recorded waits in a ring and leaves it in blocks.

Legend: T steps of one block, L layers.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradwatch.errors import WatchError
from gradwatch.history import History, Run
from gradwatch.measure.activations import QUANTITIES
from gradwatch.measure.looking import Looking
from gradwatch.measure.ring_buffer import Ring
from gradwatch.recording.loop_clips import COEF, Applied, clip_columns
from gradwatch.storage.folder import ACTIVATIONS
from gradwatch.storage.manifest import text_of
from gradwatch.table import EMPTY, Table

ROWS = 128
DRAIN_SECONDS = 2.0
FIRST_SECONDS = 0.25  # after its first step, so that a run that is killed early can be opened


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


class Recorder:
    """Collects the rows of the running steps; every `ROWS` rows or `seconds` they become a History for `sink`, the
    first ones sooner.

    A row is complete when the next step begins, because `log` belongs to the last step taken. One that left earlier,
    because its process may be killed before the next step, is handed over again if more is logged for it.

    Rows are numbered from the first of the run on, and what is added to one carries its number. What was recorded
    changes in one statement, when all that could fail is done: an exception anywhere (Ctrl-C, no memory) costs at most
    the row of its step. One thread records; any may log and drain, so both lists are changed in place.
    """

    def __init__(
        self,
        run: Run,
        kept: Sequence[bool],
        fields: Sequence[str],
        device: torch.device,
        sink: Callable[[History], None],
        seconds: float = DRAIN_SECONDS,
        looking: Looking | None = None,
    ) -> None:
        self.sink, self.seconds, self.looking = sink, seconds, looking or Looking()
        self.modules: tuple[str, ...] = ()  # whose activations are recorded
        self.logged: set[str] = set()  # the names that the loop has logged under
        self.first = 0  # the number of the first of `rows`: all before it have left
        self.rows: list[Row] = []
        self.values: list[tuple[int, str, float | Tensor]] = []  # a row's number, a name, its value
        self.sent: History | None = None  # the last step, where its row has left already
        self.is_logged = self.was_logged = True  # whether something was logged for the last step, and the one before
        self.drained, self.begun, self.pace = time.monotonic(), -math.inf, math.inf  # pace: between two steps
        self.pause = min(FIRST_SECONDS, seconds)  # between two drains
        self._draining = threading.RLock()  # a signal's handler may close a Watch that is draining
        self.restart(run, kept, fields, device)

    def restart(self, run: Run, kept: Sequence[bool], fields: Sequence[str], device: torch.device) -> None:
        """Go on with other layers, on another device, or as another attempt; what was recorded so far is drained."""
        ring = Ring(["grad_norm", "clip_coef", *fields, "skipped"], len(kept), ROWS, device)
        names = tuple(layer.name for layer, keep in zip(run.layers, kept, strict=True) if keep)
        values = [(at, name, ring.copy(v) if isinstance(v, Tensor) else v) for at, name, v in self.values]
        seen, known = slice(len(values)), np.asarray(kept, bool)
        with self._draining:
            self.run, self.kept, self.names, self.ring, self.values[seen] = run, known, names, ring, values

    @property
    def count(self) -> int:
        """How many rows were recorded so far."""
        return self.first + len(self.rows)

    @property
    def full(self) -> bool:
        """Whether every row of the ring is used."""
        return len(self.rows) == self.ring.rows

    @property
    def due(self) -> bool:
        """Whether the rows so far should leave."""
        return self.full or (bool(self.rows or self.values) and time.monotonic() - self.drained > self.pause)

    @property
    def due_at_once(self) -> bool:
        """Whether the last row, too, should leave before the next step begins, because that may take long.

        Not while something is still to be logged for it, going by the step before.
        """
        return (self.is_logged or not self.was_logged) and (self.due or self.pace > self.seconds)

    def begin(self, row: Row, fields: Sequence[Tensor | None], values: Mapping[str, Any]) -> None:
        """Record a step: norms `[L]`, coefficients `[]` or `[L]` (None: 1), further fields `[L]`, whether skipped (0-d
        bool); and scalars that are known of it, as far as they can be copied.
        """
        at = self.count
        known = self._known(at, values)
        self.ring.write(at, *fields)
        self.rows.append(row)
        self.values += known
        self.is_logged, self.was_logged = False, self.is_logged
        now = time.monotonic()
        if self.begun == -math.inf:  # the first step of all
            self.drained = now
        self.pace, self.begun = now - self.begun, now

    def row_ahead(self) -> Sequence[Tensor]:
        """The memory of the row that `begin` is going to record, `[L]` per field."""
        return self.ring.row(self.count)

    def amend(self, fields: Sequence[Tensor | None] = (), **known: Any) -> None:
        """Write the last row anew: its fields, if given, and what is `known` of it on the host."""
        if fields:
            self.ring.write(self.count - 1, *fields)
        self.rows[-1] = self.rows[-1]._replace(**known)

    def measured(self, values: Mapping[str, Tensor]) -> None:
        """Add quantities `[L]` that are not measured on every step to the last row; nobody changes them later."""
        at = self.count - 1
        for name, value in values.items():
            with self.looking.at(name):
                self.values.append((at, name, self.ring.own(value)))

    def sampled(self, modules: tuple[str, ...], values: Tensor) -> None:
        """Add the activations of these M modules to the last row: `[Q, M]` of `activations.QUANTITIES`."""
        self.modules = modules
        self.values.append((self.count - 1, ACTIVATIONS, self.ring.own(values)))

    def add(self, values: Mapping[str, Any], ahead: bool = False) -> None:
        """Add scalars (numbers, one-element tensors) to the last step, or to the one that is `ahead`.

        The last value of a name counts. What is added before the first step waits for it. What cannot be copied is
        left out.
        """
        self.values += self._known(self._number(ahead), values)

    def log(self, values: Mapping[str, Any]) -> None:
        """Add what the loop logs when it has stepped: the row then has all that it will have, as far as is known.

        Raises:
            WatchError: a value cannot be copied.
        """
        self.is_logged = True
        self.logged.update(values)
        self.values += self._scalars(self._number(), values)

    def _number(self, ahead: bool = False) -> int:
        """The number of the last row, or of the one that is `ahead`."""
        return max(0, self.count - (not ahead))

    def _known(self, at: int, values: Mapping[str, Any]) -> list[tuple[int, str, float | Tensor]]:
        """`_scalars` without what cannot be copied."""
        out: list[tuple[int, str, float | Tensor]] = []
        for name, value in values.items():
            with self.looking.at(name):
                out += self._scalars(at, {name: value})
        return out

    def _scalars(self, at: int, values: Mapping[str, Any]) -> list[tuple[int, str, float | Tensor]]:
        out: list[tuple[int, str, float | Tensor]] = []
        for name, value in values.items():
            try:
                kept = self.ring.scalar(value) if isinstance(value, Tensor) else float(value)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # meta and quantized tensors, 10**400, a `__float__` of somebody's own
                raise WatchError(
                    f"watch.log({name}=...): this value cannot be copied: {text_of(error):.200}"
                ) from error
            out.append((at, name, kept))
        return out

    def drain(self, upto: int | None = None) -> None:
        """Hand the rows to the sink, as one History; waits for the device. `upto` keeps back those from that number on.

        Nothing is forgotten before the sink has it. After an exception it may be handed over twice, which is harmless.
        """
        with self._draining:
            self._drain(self.count if upto is None else upto)

    def _drain(self, upto: int) -> None:
        now = time.monotonic()
        self.pause = self.seconds if now - self.drained >= self.pause else self.pause
        self.drained = now
        first, done, seen = self.first, max(0, upto - self.first), len(self.values)
        oldest = first - (self.sent is not None)  # what another thread logged for a row that has left since
        known = [(max(at, oldest), name, v) for at, name, v in self.values[:seen]]
        leaving = [value for value in known if value[0] < first + done]
        if not done and not leaving:
            return  # scalars logged before the first step wait for it
        fields, arrays = self.ring.read(first, done, [v for _, _, v in leaving if isinstance(v, Tensor)])
        read = iter(arrays)
        values = [(at - first, name, next(read) if isinstance(v, Tensor) else v) for at, name, v in leaving]
        sent = self.sent and self._amended(self.sent, values)
        if done:
            block = self._history(self.rows[:done], fields, values)
            self.sink(block)
            sent = block.take(np.array([-1]))
        left, sent = [value for value in known if value[0] >= first + done], None if len(self.rows) > done else sent
        self.first, self.rows[:done], self.values[:seen], self.sent = first + done, [], left, sent

    def _amended(self, sent: History, values: Sequence[tuple[int, str, Any]]) -> History:
        """The step that has left, with what was logged for it since; if that is anything, it is handed over again."""
        late = {name: np.full(1, value, np.float64) for row, name, value in values if row < 0 and np.ndim(value) == 0}
        amended = replace(sent, activations=EMPTY, by_step=replace(sent.by_step, values={**sent.per_step, **late}))
        if late:
            self.sink(amended)
        return amended

    def _history(self, rows: list[Row], fields: dict[str, Any], values: Sequence[tuple[int, str, Any]]) -> History:
        t = len(rows)
        can_skip = np.array([row.can_skip for row in rows])[:, None]
        skipped = can_skip & (fields.pop("skipped")[:, :1] > 0)
        here = np.array([row.present for row in rows], bool).reshape(t, -1)
        measured = np.array([row.is_measured for row in rows])
        layers = _per_layer(fields, (fields.pop("present", here) > 0) & measured[:, None], skipped)
        steps = _per_step(rows, layers, skipped[:, 0])
        for name in () if measured.all() else ("grad_norm", "clipped_norm", "clip_coef", "clip_rate", "nonfinite"):
            steps[name][~measured] = np.nan
        inside: list[tuple[int, Any]] = []
        for row, name, value in values:
            if row < 0:
                continue  # of the step that has left already
            array = np.asarray(value)
            if name == ACTIVATIONS:
                inside.append((row, array))
                continue
            table, empty = (layers, (t, len(self.kept))) if array.ndim else (steps, (t,))
            table.setdefault(name, np.full(empty, np.nan, array.dtype if array.ndim else np.float64))[row] = array
        coefs = {name: steps.pop(name) for name in [*steps] if name.startswith(COEF)}
        steps.update(clip_columns([row.clips for row in rows], coefs, layers))
        attempt = np.full(t, self.run.attempt, np.int64)
        optimizer = np.array([row.optimizer for row in rows], dtype=object)
        block = History.of(
            self.run,
            self.names,
            np.array([row.step for row in rows], np.int64),
            attempt,
            optimizer,
            {q: v[:, self.kept] for q, v in layers.items()},
            steps,
        )
        return replace(block, activations=_activations(block.by_step, self.modules, inside))


def _activations(steps: Table, modules: tuple[str, ...], found: Sequence[tuple[int, Any]]) -> Table:
    """The table of the sampled steps; without those in which no module was called, on any rank."""
    found = [(row, values) for row, values in found if not np.isnan(values).all()]
    if not found:
        return EMPTY
    values = np.stack([values for _, values in found]).astype(np.float32)  # [T, Q, M]
    at = steps.take(np.array([row for row, _ in found]))
    return replace(at, values={q: values[:, i] for i, q in enumerate(QUANTITIES)}, layers=modules)


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
    for name in dict.fromkeys(name for row in rows for name in row.settings):
        steps[name] = np.array([row.settings.get(name, np.nan) for row in rows])
    return steps


def _root_sum(norms: Any, absent: Any) -> Any:
    return np.sqrt(np.where(absent, 0, norms.astype(np.float64) ** 2).sum(axis=1))
