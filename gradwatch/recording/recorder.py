"""Turns rows on the device into Histories: what each step recorded waits in a ring and leaves it in blocks.

Legend: T steps of one block, L layers.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradwatch.history import History, Run
from gradwatch.measure.looking import Looking
from gradwatch.measure.ring_buffer import Ahead, Block, Ring
from gradwatch.measure.staging import wait
from gradwatch.measure.transforms import is_inside_a_transform, refuse_transformed
from gradwatch.recording.blocks import Row, history, is_nan
from gradwatch.recording.recent import Recent
from gradwatch.storage.lazy_block import LazyBlock
from gradwatch.table import NOT_SAMPLED, SAMPLED, WAS_NAN

log = logging.getLogger("gradwatch")

ROWS = 128
WAIT_SECONDS = 60.0  # how long close() and state_dict() wait for a device that is busy, or hangs
DRAIN_SECONDS = 2.0
FIRST_SECONDS = 0.25  # after its first step, so that a run that is killed early can be opened


class Sending(NamedTuple):
    """Rows on their way to the host."""

    done: int  # how many
    seen: int  # how many values had been added by then: those that belong to them, and those that stay
    leaving: Sequence[tuple[int, str, float | Tensor]]
    left: list[tuple[int, str, float | Tensor]]
    block: Block


class Sent(NamedTuple):
    """The last step of a block that has left, and what was logged for it since."""

    block: LazyBlock
    late: Mapping[str, Any] = {}  # [1] each

    def again(self) -> History:
        """The step alone, with all that was logged for it."""
        step = self.block.history().take(np.array([-1]))
        by_step = replace(step.by_step, values={**step.per_step, **self.late})
        return replace(step, by_step=by_step, **NOT_SAMPLED)


class Recorder:
    """Collects the rows of the running steps; every `ROWS` rows or `seconds` they become a block for `sink`, the first
    ones sooner. Whoever needs its History makes it: numpy's part of the recording is no work of the training's thread.

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
        sink: Callable[[LazyBlock], None],
        seconds: float = DRAIN_SECONDS,
        looking: Looking | None = None,
    ) -> None:
        self.sink, self.seconds, self.looking = sink, seconds, looking or Looking()
        self.logged: set[str] = set()  # the names that the loop has logged under
        self.first = 0  # the number of the first of `rows`: all before it have left
        self.rows: list[Row] = []
        self.values: list[tuple[int, str, float | Tensor]] = []  # a row's number, a name, its value
        self.sending: Sending | None = None  # the first of `rows`, on their way from a GPU
        self.sent: Sent | None = None  # the last step, where its row has left already
        self.is_logged = self.was_logged = True  # whether something was logged for the last step, and the one before
        self.drained, self.begun, self.pace = time.monotonic(), -math.inf, math.inf  # pace: between two steps
        self.pause = min(FIRST_SECONDS, seconds)  # between two drains
        self.recent: Recent | None = None  # the last rows, from `remember` on
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
            self.recent = None if self.recent is None else Recent(ring)

    def remember(self) -> Recent:
        """Keep the last rows at hand from now on, also those that have left."""
        self.recent = self.recent or Recent(self.ring)
        return self.recent

    @property
    def count(self) -> int:
        """How many rows were recorded so far."""
        return self.first + len(self.rows)

    @property
    def full(self) -> bool:
        """Whether every row of the ring is used. Those that were sent off may be written anew."""
        sending = self.sending  # read once: another thread may hand it over meanwhile
        return len(self.rows) - (sending.done if sending else 0) >= self.ring.rows

    @property
    def due(self) -> bool:
        """Whether the rows so far should leave, or have arrived."""
        sending = self.sending
        if sending is not None:
            return self.full or sending.block.staged.is_there()
        return self.full or (bool(self.rows or self.values) and time.monotonic() - self.drained > self.pause)

    @property
    def due_at_once(self) -> bool:
        """Whether the last row, too, should leave before the next step begins, because that may take long.

        Not while something is still to be logged for it, going by the step before; nor what waits for the first step;
        nor inside a function that torch.func transforms, where a tensor's own memory cannot be read.
        """
        there = (bool(self.rows) or self.sent is not None) and not is_inside_a_transform()
        return there and (self.is_logged or not self.was_logged) and (self.due or self.pace > self.seconds)

    def begin(self, row: Row, fields: Sequence[Tensor | None], values: Mapping[str, Any]) -> None:
        """Record a step: norms `[L]`, coefficients `[]` or `[L]` (None: 1), further fields `[L]`, whether skipped (0-d
        bool); and scalars that are known of it, as far as they can be copied.
        """
        at = self.first + len(self.rows)
        known = self._known(at, values) if values else None
        self.ring.write(at, *fields)
        self.rows.append(row)
        if self.recent is not None:
            self.recent.rows.append((at, row))
        if known:
            self.values += known
        self.is_logged, self.was_logged = False, self.is_logged
        now = time.monotonic()
        if not at:  # the first step of all
            self.drained = now
        self.pace, self.begun = now - self.begun, now

    def row_ahead(self) -> Ahead | None:
        """The memory of the row that `begin` is going to record."""
        return self.ring.ahead(self.first + len(self.rows))

    def amend(self, fields: Sequence[Tensor | None] = (), **known: Any) -> None:
        """Write the last row anew: its fields, if given, and what is `known` of it on the host."""
        if fields:
            self.ring.write(self.count - 1, *fields)
        self.rows[-1] = self.rows[-1]._replace(**known)
        if self.recent is not None and self.recent.rows:
            self.recent.rows[-1] = self.count - 1, self.rows[-1]

    def measured(self, values: Mapping[str, Tensor]) -> None:
        """Add quantities `[L]` that are not measured on every step to the last row; nobody changes them later."""
        at = self.count - 1
        for name, value in values.items():
            with self.looking.at(name):
                self.values.append((at, name, self.ring.own(value)))

    def sampled(self, table: str, names: tuple[str, ...], found: Tensor) -> None:
        """Add a row to a table of sampled steps: `[Q, M]` of what is so called, with the last step."""
        values = self.ring.own(found)
        self.amend(sampled={**self.rows[-1].sampled, table: names})
        self.values.append((self.count - 1, table, values))

    def add(self, values: Mapping[str, Any], ahead: bool = False) -> None:
        """Add scalars (numbers, one-element tensors) to the last step, or to the one that is `ahead`.

        The last value of a name counts. What is added before the first step waits for it. What cannot be copied is
        left out.
        """
        self._add(self._known(self._number(ahead), values))

    def log(self, values: Mapping[str, Any]) -> None:
        """Add what the loop logs when it has stepped: the row then has all that it will have, as far as is known. What
        cannot be copied is left out.
        """
        self.is_logged = True
        found = self._known(self._number(), values)
        self.logged.update(name for _, name, _ in found)
        self._add(found)

    def _add(self, found: list[tuple[int, str, float | Tensor]]) -> None:
        if not self.count:  # what waits for the first step, which may be long in coming: the last of each name counts
            names = {name for _, name, _ in found}
            self.values = [one for one in self.values if one[1] not in names]
        self.values += found

    def _number(self, ahead: bool = False) -> int:
        """The number of the last row, or of the one that is `ahead`."""
        return max(0, self.count - (not ahead))

    def _known(self, at: int, values: Mapping[str, Any]) -> list[tuple[int, str, float | Tensor]]:
        """The values in a row, without what cannot be copied: meta and quantized tensors, those that torch.func has
        wrapped, 10**400, a `__float__` of somebody's own.
        """
        out: list[tuple[int, str, float | Tensor]] = []
        for name, value in values.items():
            with self.looking.at(name):
                refuse_transformed(value)
                kept = self.ring.scalar(value) if isinstance(value, Tensor) else float(value)
                out.append((at, name, kept))
                if self.recent is not None:
                    self.recent.log(at, name, kept)
        return out

    def drain(self, upto: int | None = None, waits: bool = True) -> None:
        """Hand the rows to the sink, as one block. `upto` keeps back those from that number on.

        Without `waits` those on a GPU are only sent off, and handed over by a later call that finds them there; where
        there is no room for the next row, it waits all the same. With it, a device that does not answer is given up
        after `WAIT_SECONDS`.

        Nothing is forgotten before the sink has it. After an exception it may be handed over twice, which is harmless.
        """
        with self._draining:
            if self.sending is not None:
                if not self._has_landed(WAIT_SECONDS if waits else math.inf if self.full else 0.0):
                    return
                self._hand_over(self.sending)
                if not (waits or self.full):
                    return
            self.sending = self._send(self.count if upto is None else upto)
            if self.sending is not None and self._has_landed(WAIT_SECONDS if waits else 0.0):
                self._hand_over(self.sending)

    def _send(self, upto: int) -> Sending | None:
        """Send the rows before `upto` to the host, with what was added to them; None where there is nothing."""
        first, done, seen = self.first, max(0, upto - self.first), len(self.values)
        oldest = first - (self.sent is not None)  # what another thread logged for a row that has left since
        known = [(max(at, oldest), name, v) for at, name, v in self.values[:seen]]
        leaving = [value for value in known if value[0] < first + done]
        if not done and not leaving:
            return None  # scalars logged before the first step wait for it
        now = time.monotonic()
        self.pause = self.seconds if now - self.drained >= self.pause else self.pause
        self.drained = now
        block = self.ring.stage(first, done, [v for _, _, v in leaving if isinstance(v, Tensor)])
        return Sending(done, seen, leaving, [value for value in known if value[0] >= first + done], block)

    def _has_landed(self, seconds: float) -> bool:
        assert self.sending is not None
        if wait(self.sending.block.staged, seconds):
            return True
        if seconds:
            log.warning(
                "gradwatch: the device has not answered for %.0f s: the last %d steps are not recorded",
                seconds,
                len(self.rows),
            )
        return False

    def _hand_over(self, sending: Sending) -> None:
        """What was sent is there."""
        first, (done, seen, leaving, left, block) = self.first, sending
        fields, arrays = block.read()
        read = iter(arrays)
        values = [(at - first, name, next(read) if isinstance(v, Tensor) else v) for at, name, v in leaving]
        sent = self.sent and self._amended(self.sent, values)
        if done:
            rows = self.rows[:done]
            make = partial(history, self.run, self.names, self.kept, rows, fields, values)
            inside = {name for _, name, _ in values if name in SAMPLED}
            suspect = not bool(np.isfinite(fields["grad_norm"]).all())
            sent = Sent(LazyBlock([row.step for row in rows], self.names, inside, suspect, make))
            self.sink(sent.block)
        late = any(at < first + done for at, _, _ in self.values[seen:])  # logged while it was on its way
        sent = sent if late or len(self.rows) <= done else None
        self.first, self.rows[:done], self.values[:seen], self.sent = first + done, [], left, sent
        self.sending = None

    def _amended(self, sent: Sent, values: Sequence[tuple[int, str, Any]]) -> Sent:
        """The step that has left, with what was logged for it since; if that is anything, it is handed over again."""
        late = {name: np.full(1, value, np.float64) for row, name, value in values if row < 0 and np.ndim(value) == 0}
        if late:
            late |= {f"{WAS_NAN}{name}": np.ones(1) for name, value in late.items() if is_nan(name, value[0])}
            sent = Sent(sent.block, {**sent.late, **late})
            last, layers = sent.block.step[-1:].tolist(), sent.block.layers
            self.sink(LazyBlock(last, layers, (), sent.block.is_suspect, sent.again))
        return sent
