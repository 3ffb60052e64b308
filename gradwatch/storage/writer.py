"""Writes a run's folder: one daemon thread that turns blocks of steps into Parquet parts, whatever the disk does."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gradwatch.errors import RunError
from gradwatch.history import Run
from gradwatch.sanitize import refuse_links
from gradwatch.storage.answer import Answer
from gradwatch.storage.compaction import Compactor
from gradwatch.storage.encoding import write_part
from gradwatch.storage.folder import ALL_TABLES, MANIFEST, TABLES, list_parts, now_iso, put, tidy, write_json
from gradwatch.storage.joining import concat
from gradwatch.storage.lazy_block import LazyBlock
from gradwatch.storage.lock import Lock
from gradwatch.table import SAMPLED

log = logging.getLogger("gradwatch")

FLUSH_SECONDS = 2.0
FLUSH_ROWS = 1 << 20  # rows of the layers table that wait at most: memory stays bounded however fast they come
# Kept in memory while the disk refuses, or does not answer, about 200 MB; the oldest go first
MAX_WAITING_ROWS = 8 << 20
_NEW = "new"  # in the queue: a block was handed over


class RunWriter:
    """Appends blocks of steps to a run's folder from one daemon thread; `append` never waits for the disk.

    While the folder cannot be written to, blocks wait in memory. A folder that was removed is made anew, if what it
    lay in is there.

    Raises:
        RunError: another writer, of this process or another one, has the folder, a link lies in it, or it cannot be
            written to.
    """

    def __init__(self, folder: Path, run: Run, flush_seconds: float = FLUSH_SECONDS) -> None:
        self.run, self.flush_seconds = run, flush_seconds
        self.folder = folder.absolute()
        self.closing = self._over = False
        self.compactors = [Compactor(self.folder / table, self._interrupted) for table in ALL_TABLES]
        self.queue: queue.SimpleQueue[str | Run | Answer | None] = queue.SimpleQueue()
        self._new: deque[LazyBlock] = deque()  # not yet seen by the thread; no lock: a signal may come in between
        self._gone: deque[int] = deque()  # the steps of each block that found no room, since it was said last
        self.ended, self._end = False, Answer()  # whether the thread has written all it will, and what tells of it
        self.pending: list[LazyBlock] = []
        self._taken, self._written = _Count(), _Count()  # what was handed over, and what of it is on disk
        self.complained = False
        self._manifest: Run | None = None  # what is yet to be written of it
        self._asked: list[Answer] = []  # who waits for a flush
        self._due = time.monotonic() + flush_seconds
        self.thread = threading.Thread(target=self._work, name="gradwatch-writer", daemon=True)
        try:
            self.lock = Lock(self.folder)
            try:
                self.next_part = self._begin()
            except BaseException:
                self.lock.release()
                raise
        except OSError as error:
            raise RunError(
                f"cannot write to {folder}: {error.strerror or error}; make room, or pass another dir="
            ) from error

    def _begin(self) -> int:
        """The folder as a run begins, or goes on, in it; the number of its next part."""
        tidy(self.folder)
        for table in TABLES:
            (self.folder / table).mkdir(exist_ok=True)
        write_json(self.folder / MANIFEST, self.run.to_json())
        return 1 + max((part.last for t in ALL_TABLES for part in list_parts(self.folder / t)), default=-1)

    def start(self) -> None:
        """Start the thread, once; whoever hands something over does so, too.

        Raises:
            RunError: no more threads may be started.
        """
        if self.thread.ident is not None:
            return
        try:
            self.thread.start()
        except RuntimeError as error:  # a limit of processes (`ulimit -u`) or of address space (`ulimit -v`)
            self.lock.release()
            raise RunError(
                f"cannot record to {self.folder}: {error}; raise the limit of processes or of memory (ulimit -a)"
            ) from error

    def end(self, timeout: float = 5.0) -> None:
        """End the thread, started or not, and let go of the folder; what waits is left. Twice is harmless."""
        self.closing = True
        self.queue.put(None)
        if self.thread.is_alive() and not self.ended:
            self._end.wait(timeout)
        self.lock.release()

    def append(self, block: LazyBlock) -> None:
        """Hand over a block of steps; it is on disk within `flush_seconds`, the first one at once."""
        self._taken.add(block)
        self._new.append(block)
        while _rows(waiting := tuple(self._new)) > MAX_WAITING_ROWS and len(waiting) > 1:
            with contextlib.suppress(IndexError):  # the thread was faster
                self._gone.append(len(self._new.popleft()))
        self._hand_over(_NEW)

    @property
    def lost(self) -> int:
        """How many of the steps that were handed over are not on disk (yet)."""
        return self._taken.steps - self._written.steps

    def update(self, **changes: Any) -> None:
        """Change fields of the manifest."""
        self.run = replace(self.run, **changes)
        self._hand_over(self.run)

    def flush(self, timeout: float = 5.0) -> None:
        """Wait until all that was handed over is on disk, or the disk has refused it, or for `timeout` seconds."""
        asked = Answer()
        self._hand_over(asked)
        if not self.ended:
            asked.wait(timeout)

    def close(self, status: str = "FINISHED", timeout: float = 30.0) -> None:
        """Write what is left, set the run's status, end the thread. A second call finishes one that was interrupted."""
        if not self.ended:
            self.closing = True  # a merge under way is given up: what is merged can wait, who closes cannot
            self.update(status=status, ended=now_iso(), end_step=self._taken.end)
            self.queue.put(None)
            self._end.wait(timeout)
        if not self.ended:
            log.warning(
                "gradwatch: %s was still being written after %.0f s; the end of the run may be missing",
                self.folder,
                timeout,
            )
            return
        self.lock.release()
        left, self.pending = self.pending, []
        if left:
            log.warning("gradwatch: %d steps of %s could not be written", self.lost, self.folder)

    def abandon(self) -> None:
        """In a forked process, which has no part in the writing: let go of the lock, which stays the parent's."""
        self.lock.abandon()

    def _hand_over(self, item: str | Run | Answer) -> None:
        self.start()
        self.queue.put(item)

    # ---------------------------------------------------------------------------------------------------- the thread

    def _work(self) -> None:
        try:
            while not self._over:
                self._receive(max(0.0, self._due - time.monotonic()))
                if self._is_due():
                    self._flush()
        finally:
            self.ended = True
            self._end.give()

    def _receive(self, wait: float = 0.0) -> None:
        """Take one item from the queue, if one comes within `wait` seconds."""
        try:
            item = self.queue.get(timeout=wait) if wait else self.queue.get_nowait()
        except queue.Empty:
            return
        for _ in range(1 if item == _NEW else len(self._new)):  # who hands over may be interrupted between the two
            with contextlib.suppress(IndexError):  # it found no room
                self.pending.append(self._new.popleft())
        if item is None:
            self._over = True
        elif isinstance(item, Run):
            self._manifest = item
        elif isinstance(item, Answer):
            self._asked.append(item)

    def _is_due(self) -> bool:
        asked = self._over or self._manifest is not None or bool(self._asked)
        waits = self._is_full() or (self.pending and not self._written.steps)  # a run that has just begun can be opened
        return asked or time.monotonic() >= self._due or (bool(waits) and not self.complained)

    def _is_full(self) -> bool:
        return _rows(self.pending) >= FLUSH_ROWS

    def _flush(self) -> None:
        self._save()
        try:
            for compactor in () if self.complained else self.compactors:
                compactor.compact()
        except Exception as error:  # the folder went away between the two: the thread must live on
            self._complain(error)

    def _interrupted(self) -> bool:
        """Between two row groups of a merge: what is due is written meanwhile. Whether the merge is to be given up."""
        while not (self.closing or self._is_full() or self.queue.empty()):
            self._receive()
        if not self.closing and self._is_due():
            self._save()
        return self.closing

    def _save(self) -> None:
        """Write what waits; the parts first: a manifest that says FINISHED must find them all, or tell what lacks."""
        writes = bool(self.pending or self._manifest)
        try:
            try:
                if self.pending:
                    self._write_parts()
                    for compactor in self.compactors:
                        compactor.widen()
            finally:
                if self._manifest is not None and (self._over or not self.pending):
                    write_json(self.folder / MANIFEST, self._manifest.to_json())
                    self._manifest = None
            if writes:  # where nothing was written nothing is known
                self._recovered()
        except Exception as error:  # a full disk must not end the thread: the training goes on
            self._complain(error)
        self._due = time.monotonic() + self.flush_seconds
        while self._asked:
            self._asked.pop().give()

    def _write_parts(self) -> None:
        """What waits, as one part of each table; where that cannot be encoded, block by block without those that are
        why: what is in one block never holds up the others.
        """
        self._restore()
        try:
            self._write_part(self.pending)
        except (OSError, MemoryError):  # the disk, not the data
            raise
        except Exception:
            while self.pending:
                try:
                    self._write_part(self.pending[:1])
                except (OSError, MemoryError):
                    raise
                except Exception as error:
                    lost = self.pending.pop(0)
                    log.warning("gradwatch: %d steps from %d on cannot be written: %r", len(lost), lost.step[0], error)

    def _write_part(self, blocks: list[LazyBlock]) -> None:
        """The first blocks of those that wait, as a part of each table."""
        block = concat([each.history() for each in blocks])
        tables = [table for table in ALL_TABLES if table not in SAMPLED or len(getattr(block, table))]
        paths = [self.folder / table / f"part-{self.next_part:06d}.parquet" for table in tables]
        written = []
        try:
            for path in paths:
                written.append(path.with_name(f".{path.name}.tmp"))
                write_part(written[-1], path.parent.name, block)
        except BaseException:
            for temporary in written:  # half a part takes room that the disk does not have
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)
            raise
        for temporary, path in zip(written, paths, strict=True):
            put(temporary, path)
        for one in blocks:
            self._written.add(one)
        del self.pending[: len(blocks)]
        self.next_part += 1

    def _restore(self) -> None:
        """The folder anew, where somebody removed it. What it lay in is not made: it may be a disk that went away."""
        refuse_links(self.folder / table for table in ALL_TABLES)
        tables = {*TABLES, *(table for block in self.pending for table in block.sampled)}
        if all((self.folder / table).is_dir() for table in tables):
            return
        gone = not self.folder.is_dir()
        for folder in (self.folder, *(self.folder / table for table in tables)):
            folder.mkdir(exist_ok=True)
        self._manifest = self._manifest or self.run
        if gone:
            self.lock.renew()

    def _complain(self, error: Exception) -> None:
        """Say once that nothing can be written; of what waits, only so much is kept in memory."""
        if not self.complained:
            log.warning(
                "gradwatch: cannot write to %s (%s); training goes on, writing is tried again", self.folder, error
            )
        self.complained = True
        while len(self.pending) > 1 and _rows(self.pending) > MAX_WAITING_ROWS:
            self._gone.append(len(self.pending.pop(0)))

    def _recovered(self) -> None:
        gone = sum(self._gone.popleft() for _ in range(len(self._gone)))
        if gone:
            log.warning("gradwatch: writing to %s again: %d steps found no room meanwhile", self.folder, gone)
        elif self.complained:
            log.info("gradwatch: writing to %s again: nothing is lost", self.folder)
        self.complained = False


def _rows(blocks: Iterable[LazyBlock]) -> int:
    return sum(len(block) * len(block.layers) for block in blocks)


@dataclass
class _Count:
    """Steps that are handed over in order, the last of a block perhaps once more."""

    steps: int = 0
    end: int | None = None  # the number after the last one

    def add(self, block: LazyBlock) -> None:
        """Count the steps of the next block."""
        new = np.unique(block.step[block.step >= (self.end or 0)])
        if len(new):
            self.steps, self.end = self.steps + len(new), int(new[-1]) + 1
