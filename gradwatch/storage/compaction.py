"""Merges the parts of a table while the run goes on: few files however long it lasts, each row written a few times.

Two levels, as in a log-structured merge tree: 64 flushes become a part of level 1, 64 of those one of level 2. Parts
of one level that reach 64 MiB together are merged before they are 64. A part of level 2 or of 64 MiB is closed: it is
never touched again, and the courier may carry it away.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gradwatch.storage.folder import CLOSED_BYTES, FAN_IN, Part, is_closed, list_parts, put
from gradwatch.storage.parquet import opened
from gradwatch.table import SAMPLED

log = logging.getLogger("gradwatch")


GROUP_ROWS = 1 << 20  # rows of a row group, the unit in which tables are merged and read: about 50 MB of memory
GROUP_VALUES = 1 << 24  # rows x columns of one: where many scalars are logged it has fewer rows
COLUMNS = {
    "layers": ["optimizer", "layer"],
    "steps": ["optimizer"],
    **{table: ["optimizer", of] for table, of in SAMPLED.items()},
}  # those that hold names


_NO_COLUMNS = pa.schema([])


class Compactor:
    """Keeps the parts of one table few; `cancelled` is asked between row groups, and a merge it stops is undone.

    It may write new parts meanwhile: those that are merged are known when a merge begins.
    """

    def __init__(self, folder: Path, cancelled: Callable[[], bool]) -> None:
        self.folder, self.cancelled = folder, cancelled
        self.left_alone: set[Path] = set()  # parts that cannot be read, or not be merged
        self.refused = False
        self.schema = _NO_COLUMNS  # grows with what parts have

    def widen(self) -> None:
        """Give the first part the columns that only later ones have, as null: pandas takes those of a folder's first.

        One that is closed stays as it is.
        """
        parts = list_parts(self.folder)
        if not parts or is_closed(parts[0]):
            return
        try:
            self.schema = pa.unify_schemas([self.schema, pq.read_schema(parts[-1].path)])
            if not {*self.schema.names} <= {*pq.read_schema(parts[0].path).names}:
                merge(parts[:1], wider=self.schema)
        except (ValueError, pa.ArrowException) as error:
            log.debug("%s stays as it is: %s", parts[0].path, error)

    def compact(self) -> None:
        """Merge whatever is due. Parts that cannot be read stay as they are; readers name them."""
        while not self.cancelled():
            parts = due(list_parts(self.folder), self.left_alone, self.folder.name in SAMPLED)
            if not parts:
                return
            broken = [part.path for part in parts if not _opens(part.path)]
            if broken:
                log.warning("gradwatch: %s is unreadable and stays as it is", broken[0])
                self.left_alone.update(broken)
            elif not self._merged(parts):
                return

    def _merged(self, parts: Sequence[Part]) -> bool:
        """Merge them; False where that was cancelled, or the disk refused: it is tried again after the next flush.

        Parts that do not fit together, because the reader would refuse what came of it, are not tried again.
        """
        try:
            done = merge(parts, self.cancelled)
        except (OSError, ValueError, pa.ArrowException) as error:
            if not self.refused:
                log.warning("gradwatch: the parts in %s cannot be merged (%s); nothing is lost", self.folder, error)
            self.refused = True
            if isinstance(error, OSError):
                return False
            self.left_alone.update(part.path for part in parts)
            return True
        self.refused = self.refused and not done
        return done


def due(parts: Sequence[Part], left_alone: Collection[Path] = (), sparse: bool = False) -> list[Part]:
    """Neighbours of one level that are to become one part: 64 of them, or fewer that hold 64 MiB; empty for none.

    Between neighbours no part is missing or `left_alone`: what is merged across it would stand for it as well. In a
    `sparse` table none is missing: a flush that had nothing for it has no part.
    """
    group: list[Part] = []
    size = 0
    for part in parts:
        if part.path in left_alone or is_closed(part):
            group = []
            continue
        if group and (part.level != group[-1].level or (part.first != group[-1].last + 1 and not sparse)):
            group = []
        group.append(part)
        size = part.path.stat().st_size + (size if len(group) > 1 else 0)
        if len(group) == FAN_IN or (len(group) > 1 and size >= CLOSED_BYTES):
            return group
    return []


def merge(parts: Sequence[Part], cancelled: Callable[[], bool] = lambda: False, wider: pa.Schema = _NO_COLUMNS) -> bool:
    """Make one part of several that follow each other, a row group at a time, with the columns of `wider` too; False,
    and no change, if `cancelled`, which is asked at each row group that is read.

    Row groups of the parts are joined, never split: each goes on to hold whole steps.

    Raises:
        ValueError, pyarrow.ArrowException: they do not fit together, or the reader would refuse the one part.
        OSError: the disk refuses.
    """
    merged = parts[0].path.with_name(f"part-{parts[0].first:06d}-{parts[-1].last:06d}.parquet")
    target = merged if len(parts) > 1 else parts[0].path
    temporary = target.with_name(f".{target.name}.tmp")
    schema = pa.unify_schemas([*(pq.read_schema(part.path) for part in parts), wider])
    try:
        with pq.ParquetWriter(temporary, schema, **options(schema)) as writer:
            for table in _joined(_row_groups(parts, schema, cancelled)):
                writer.write_table(table, row_group_size=len(table))
        with opened(temporary, COLUMNS[target.parent.name]):
            put(temporary, target)
    except _CancelledError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    for part in parts:
        if part.path != target:
            part.path.unlink()
    return True


def group_rows(columns: int) -> int:
    """How many rows a row group of so many columns has at most."""
    return min(GROUP_ROWS, max(1, GROUP_VALUES // columns))


def options(schema: pa.Schema) -> dict[str, Any]:
    """How parts are compressed: the bytes of floats apart by their place, everything else through a dictionary."""
    floats = [f.name for f in schema if pa.types.is_floating(f.type)]
    return {
        "compression": "zstd",
        "compression_level": 3,
        "use_byte_stream_split": floats,
        "use_dictionary": [f.name for f in schema if f.name not in floats],
    }


def _opens(path: Path) -> bool:
    try:
        pq.read_metadata(path)
    except (OSError, ValueError, pa.ArrowException):
        return False
    return True


class _CancelledError(Exception):
    """Whoever merges is asked to stop."""


def _row_groups(parts: Sequence[Part], schema: pa.Schema, cancelled: Callable[[], bool]) -> Iterator[pa.Table]:
    """Every row group of the parts with the columns of `schema`; null where a part lacks one."""
    for part in parts:
        with pq.ParquetFile(part.path, pre_buffer=False) as file:
            for group in range(file.num_row_groups):
                if cancelled():
                    raise _CancelledError
                table = file.read_row_group(group, use_threads=False)  # which are the training's
                here = dict(zip(table.column_names, table.columns, strict=True))
                missing = {kind: pa.nulls(len(table), kind) for kind in {f.type for f in schema if f.name not in here}}
                columns = [here[f.name] if f.name in here else missing[f.type] for f in schema]
                yield pa.table(columns, names=schema.names)


def _joined(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Consecutive tables joined until they are a row group."""
    waiting: list[pa.Table] = []
    for table in tables:
        if waiting and sum(map(len, waiting)) + len(table) > group_rows(table.num_columns):
            yield pa.concat_tables(waiting).unify_dictionaries()
            waiting = []
        waiting.append(table)
    if waiting:
        yield pa.concat_tables(waiting).unify_dictionaries()
