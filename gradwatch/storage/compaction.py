"""Merges the parts of a table while the run goes on: few files however long it lasts, each row written a few times.

Two levels, as in a log-structured merge tree: 64 flushes become a part of level 1, 64 of those one of level 2. Parts
of one level that reach 64 MiB together are merged before they are 64. A part of level 2 or of 64 MiB is closed: it is
never touched again, and the courier may carry it away.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gradwatch.storage.folder import CLOSED_BYTES, FAN_IN, Part, is_closed, list_parts

log = logging.getLogger("gradwatch")


GROUP_ROWS = 1 << 20  # rows of a row group, the unit in which tables are merged and read: about 50 MB of memory


class Compactor:
    """Keeps the parts of one table few; `cancelled` is asked between row groups, and a merge it stops is undone.

    It may write new parts meanwhile: those that are merged are known when a merge begins.
    """

    def __init__(self, folder: Path, cancelled: Callable[[], bool] = lambda: False) -> None:
        self.folder, self.cancelled = folder, cancelled
        self.unreadable: set[Path] = set()
        self.refused = False

    def compact(self) -> None:
        """Merge whatever is due. Parts that cannot be read stay as they are; readers name them."""
        while not self.cancelled():
            parts = due([part for part in list_parts(self.folder) if part.path not in self.unreadable])
            if not parts:
                return
            broken = [part.path for part in parts if not _opens(part.path)]
            if broken:
                log.warning("gradwatch: %s is unreadable and stays as it is", broken[0])
                self.unreadable.update(broken)
            elif not self._merged(parts):
                return

    def _merged(self, parts: Sequence[Part]) -> bool:
        """Merge them; False where that was cancelled, or the disk refused: it is tried again after the next flush."""
        try:
            done = merge(parts, self.cancelled)
        except (OSError, ValueError, pa.ArrowException) as error:
            if not self.refused:
                log.warning("gradwatch: the parts in %s cannot be merged (%s); nothing is lost", self.folder, error)
            self.refused = True
            return False
        self.refused = self.refused and not done
        return done


def due(parts: Sequence[Part]) -> list[Part]:
    """Neighbours of one level that are to become one part: 64 of them, or fewer that hold 64 MiB; empty for none."""
    for _, found in groupby(parts, key=lambda part: -1 if is_closed(part) else part.level):
        group = list(found)
        if is_closed(group[0]):
            continue
        size = 0
        for count, part in enumerate(group, start=1):
            size += part.path.stat().st_size
            if count == FAN_IN or (count > 1 and size >= CLOSED_BYTES):
                return group[:count]
    return []


def merge(parts: Sequence[Part], cancelled: Callable[[], bool] = lambda: False) -> bool:
    """Make one part of several that follow each other, a row group at a time; False, and no change, if `cancelled`.

    Row groups of the parts are joined, never split: each goes on to hold whole steps.
    """
    target = parts[0].path.with_name(f"part-{parts[0].first:06d}-{parts[-1].last:06d}.parquet")
    temporary = target.with_name(f".{target.name}.tmp")
    schema = pa.unify_schemas([pq.read_schema(part.path) for part in parts])
    try:
        with pq.ParquetWriter(temporary, schema, **options(schema)) as writer:
            for table in _joined(_row_groups(parts, schema)):
                if cancelled():
                    return False
                writer.write_table(table, row_group_size=len(table))
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    for part in parts:
        if part.path != target:
            part.path.unlink()
    return True


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


def _row_groups(parts: Sequence[Part], schema: pa.Schema) -> Iterator[pa.Table]:
    """Every row group of the parts with the columns of `schema`; null where a part lacks one."""
    for part in parts:
        with pq.ParquetFile(part.path) as file:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group)
                for field in schema:
                    if field.name not in table.column_names:
                        table = table.append_column(field, pa.nulls(len(table), field.type))
                yield table.select(schema.names)


def _joined(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Consecutive tables joined until they have `GROUP_ROWS` rows."""
    waiting: list[pa.Table] = []
    for table in tables:
        if waiting and sum(map(len, waiting)) + len(table) > GROUP_ROWS:
            yield pa.concat_tables(waiting).unify_dictionaries()
            waiting = []
        waiting.append(table)
    if waiting:
        yield pa.concat_tables(waiting).unify_dictionaries()
