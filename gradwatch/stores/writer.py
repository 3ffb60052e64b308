"""Writes a run's folder: one daemon thread that turns Histories into Parquet parts, whatever the disk does."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gradwatch.history import History, Run, concat
from gradwatch.stores.compact import GROUP_ROWS, Compactor, options
from gradwatch.stores.files import MANIFEST, TABLES, list_parts, now_iso, write_json

log = logging.getLogger("gradwatch")

FLUSH_SECONDS = 2.0
FLUSH_ROWS = 1 << 20  # rows of the layers table that wait at most: memory stays bounded however fast they come
MAX_PENDING_BLOCKS = 1_000  # what is kept in memory while the disk refuses; the oldest go first, and are counted


class RunWriter:
    """Appends Histories to a run's folder from one daemon thread; `append` never waits for the disk."""

    def __init__(self, folder: Path, run: Run, flush_seconds: float = FLUSH_SECONDS) -> None:
        self.folder, self.run, self.flush_seconds = folder, run, flush_seconds
        for table in TABLES:
            (folder / table).mkdir(exist_ok=True)
        self.next_part = 1 + max((part.last for t in TABLES for part in list_parts(folder / t)), default=-1)
        self.closing = False
        self.compactors = [Compactor(folder / table, lambda: self.closing) for table in TABLES]
        self.queue: queue.SimpleQueue[History | Run | None] = queue.SimpleQueue()
        self.pending: list[History] = []
        self.dropped = 0
        self.complained = False
        write_json(folder / MANIFEST, run.to_json())
        self.thread = threading.Thread(target=self._work, name="gradwatch-writer", daemon=True)
        self.thread.start()

    def append(self, block: History) -> None:
        """Hand over a block of steps; it is on disk within `flush_seconds`."""
        self.queue.put(block)

    def update(self, **changes: Any) -> None:
        """Change fields of the manifest."""
        self.run = replace(self.run, **changes)
        self.queue.put(self.run)

    def close(self, status: str = "FINISHED", timeout: float = 30.0) -> None:
        """Write what is left, set the run's status, end the thread. Calling it twice is harmless."""
        if not self.thread.is_alive():
            return
        self.closing = True  # a merge under way is given up: what is merged can wait, who closes cannot
        self.update(status=status, ended=now_iso())
        self.queue.put(None)
        self.thread.join(timeout)
        if self.thread.is_alive():
            log.warning(
                "gradwatch: %s was still being written after %.0f s; the end of the run may be missing",
                self.folder,
                timeout,
            )

    def _work(self) -> None:
        due = time.monotonic() + self.flush_seconds
        manifest: Run | None = None
        open_ = True
        while open_:
            with contextlib.suppress(queue.Empty):
                item = self.queue.get(timeout=max(0.0, due - time.monotonic()))
                open_ = item is not None
                if isinstance(item, History):
                    self.pending.append(item)
                elif item is not None:
                    manifest = item
            waiting = sum(len(block) * len(block.layers) for block in self.pending)
            if (
                time.monotonic() >= due
                or not open_
                or manifest is not None
                or (waiting >= FLUSH_ROWS and not self.complained)
            ):
                try:  # the parts first: a manifest that says FINISHED must find them all
                    self._flush()
                    if manifest is not None:
                        write_json(self.folder / MANIFEST, manifest.to_json())
                        manifest = None
                except Exception as error:  # a full disk must not end the thread: the training goes on
                    self._complain(error)
                due = time.monotonic() + self.flush_seconds

    def _flush(self) -> None:
        if self.pending:
            block = concat(self.pending)
            for table, (build, rows_per_step) in _BUILDERS.items():
                part = self.folder / table / f"part-{self.next_part:06d}.parquet"
                _write_part(part, build(block), rows_per_step(block))
            self.pending.clear()
            self.next_part += 1
            for compactor in self.compactors:
                compactor.compact()
        self.complained = False

    def _complain(self, error: Exception) -> None:
        if not self.complained:
            log.warning(
                "gradwatch: cannot write to %s (%s); training goes on, writing is tried again", self.folder, error
            )
        self.complained = True
        excess = len(self.pending) - MAX_PENDING_BLOCKS
        if excess > 0:
            self.dropped += sum(len(block) for block in self.pending[:excess])
            log.warning("gradwatch: %d recorded steps of %s dropped so far", self.dropped, self.folder)
            del self.pending[:excess]


class NullWriter:
    """Stands in for the writer where nothing is to be written: on every rank of a distributed run but the first."""

    def __init__(self, folder: Path, run: Run) -> None:
        self.folder, self.run = folder, run

    def append(self, block: History) -> None:
        """Nothing."""

    def update(self, **changes: Any) -> None:
        """Change fields of the manifest, in memory."""
        self.run = replace(self.run, **changes)

    def close(self, status: str = "FINISHED") -> None:
        """Nothing."""


def _layers_table(block: History) -> pa.Table:
    t, n = len(block), len(block.layers)
    columns = _keys(block, n)
    columns["layer"] = _named(np.tile(np.arange(n, dtype=np.int32), t), block.layers)
    columns.update({q: _column(np.ascontiguousarray(v, np.float32).ravel()) for q, v in block.per_layer.items()})
    return pa.table(columns)


def _steps_table(block: History) -> pa.Table:
    return pa.table({**_keys(block, 1), **{k: _column(np.asarray(v, np.float64)) for k, v in block.per_step.items()}})


def _keys(block: History, repeat: int) -> dict[str, pa.Array]:
    names, codes = np.unique(np.asarray(block.optimizer, dtype=str), return_inverse=True)
    return {
        "attempt": _column(np.repeat(block.attempt.astype(np.int32), repeat)),
        "optimizer": _named(np.repeat(codes.astype(np.int32), repeat), list(names)),
        "step": _column(np.repeat(block.step, repeat)),
    }


def _column(values: np.ndarray[Any, Any]) -> pa.Array:
    """Numbers as an Arrow array, NaN kept. `pa.array` would first import pandas, half a second of a training's time."""
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def _named(codes: np.ndarray[Any, Any], names: Sequence[str]) -> pa.DictionaryArray:
    """Names by their int32 codes."""
    texts = [name.encode() for name in names]
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(texts))]
    return pa.DictionaryArray.from_arrays(_column(codes), pa.Array.from_buffers(pa.string(), len(texts), buffers))


# table -> (its rows out of a block, how many of them one step has)
_BUILDERS: dict[str, tuple[Callable[[History], pa.Table], Callable[[History], int]]] = {
    "layers": (_layers_table, lambda block: len(block.layers)),
    "steps": (_steps_table, lambda block: 1),
}


def _write_part(path: Path, table: pa.Table, rows_per_step: int = 1) -> None:
    """Write a part under a temporary name and rename it; its row groups hold whole steps."""
    temporary = path.with_name(f".{path.name}.tmp")
    rows = max(1, GROUP_ROWS // max(1, rows_per_step)) * max(1, rows_per_step)
    pq.write_table(table, temporary, row_group_size=rows, **options(table.schema))
    temporary.replace(path)
