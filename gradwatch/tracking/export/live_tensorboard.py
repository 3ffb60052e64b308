"""A run's curves as a TensorBoard event file that grows while the run goes on, from a process of its own.

`tensorboard.json` says how many bytes of the file hold what is delivered; it is written after them. A process that dies
between the two leaves a longer file, of which the next one cuts off what the cursor does not know, and writes it again.
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import ClassVar

from filelock import FileLock, Timeout

from gradwatch.errors import RunError
from gradwatch.history import Run
from gradwatch.sanitize import refuse_links
from gradwatch.storage.delivery_cursor import Cursor
from gradwatch.storage.folder import read_manifest
from gradwatch.storage.run_state import run_state
from gradwatch.tracking.backoff import Backoff
from gradwatch.tracking.export.run_export import by_step
from gradwatch.tracking.export.tensorboard import SUFFIX, head_events, scalar_event
from gradwatch.tracking.metric_keys import Point, Window
from gradwatch.tracking.metric_points import PointSender
from gradwatch.tracking.run_params import run_params

log = logging.getLogger("gradwatch")

EVENTS = "tensorboard"  # the folder in the run's own
POLL_SECONDS, LONGEST_PAUSE = 2.0, 60.0
TRIES = 5  # of a run that is over


@dataclass
class BoardCursor(Cursor):
    """How far a run is in its event file: `tensorboard.json`."""

    FILE: ClassVar[str] = "tensorboard.json"
    size: int = 0  # bytes of the event file


class BoardSender(PointSender):
    """Appends the points of the run in `folder` to its event file."""

    def __init__(self, folder: Path, run: Run) -> None:
        begun = datetime.fromisoformat(run.created).timestamp()
        path = folder / EVENTS / f"events.out.tfevents.{int(begun)}.{run.host or 'host'}{SUFFIX}"
        refuse_links([path.parent, path])
        path.parent.mkdir(exist_ok=True)
        self.cursor = BoardCursor.read(folder)
        if not path.exists() or path.stat().st_size < self.cursor.size:
            self.cursor = BoardCursor()  # it was removed, or lost its end with the machine: the files have it all
        super().__init__(folder, self.cursor)
        self.file = path.open("r+b" if path.exists() else "w+b")
        self.file.truncate(self.cursor.size)
        self.file.seek(self.cursor.size)
        if not self.cursor.size:
            self._write(head_events(run.name, run_params(run), begun))

    def put(self, cursor: Cursor, points: list[Point], window: Window, run: Run) -> None:
        """Append the points, and have the system take them before the cursor says so."""
        ordered = sorted(points, key=attrgetter("step"))
        self._write(scalar_event(*one) for one in by_step(ordered))

    def _write(self, events: object) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        writer = RecordWriter(self.file)
        for event in events:  # type: ignore[attr-defined]
            writer.write(event.SerializeToString())
        self.file.flush()
        self.cursor.size = self.file.tell()

    def show(self, cursor: Cursor, run: Run) -> None:
        """TensorBoard finds its charts itself."""


def follow(folder: Path, poll: float = POLL_SECONDS) -> Path:
    """Keep the event file of the run in `folder` up to date until the run is over; returns the file's folder.

    Raises:
        RunError: `folder` is no run's, another process is at it, or the end of a run that is over cannot be written.
    """
    lock = FileLock(folder / "tensorboard.lock")
    try:
        with lock.acquire(timeout=0):
            return _follow(folder, poll)
    except Timeout:
        raise RunError(f"another process writes {folder / EVENTS} already") from None


def _follow(folder: Path, poll: float) -> Path:
    sender: BoardSender | None = None
    pauses, failed = Backoff(poll, LONGEST_PAUSE), 0
    while True:
        run = read_manifest(folder)
        over = run_state(run).over  # first: what was written before the end is then all there
        try:
            sender = sender or BoardSender(folder, run)
            sender.send(sender.cursor, over)
            failed = 0
            if over:
                sender.file.close()
                return folder / EVENTS
        except OSError as error:  # a full disk may have room later
            failed += 1
            if sender is not None:
                with contextlib.suppress(OSError):
                    sender.file.close()
            sender = None  # which cuts off what was written half
            if failed == 1:
                log.warning("%s: the event file is not written (%s); it is tried again", folder, error)
            if over and failed >= TRIES:
                raise RunError(f"cannot write to {folder / EVENTS}: {error.strerror or error}") from error
        time.sleep(pauses.after(success=not failed))
