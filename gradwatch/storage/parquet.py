"""Parquet parts as tables, block by block: a row group of whole steps is an array already and is only reshaped.

A part may come from anybody: `opened` looks at what it says of itself before any of it is read, and what is made of it
is measured before memory is taken.

Legend: T steps of one block, L layers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gradwatch.errors import RunError
from gradwatch.history import SEEN
from gradwatch.sanitize import (
    MAX_COLUMNS,
    MAX_COUNT,
    MAX_GROUP_VALUES,
    MAX_JOINT_VALUES,
    MAX_LANES,
    MAX_LAYERS,
    MAX_NAME,
    MAX_STEP,
    MAX_STEPS_VALUES,
)
from gradwatch.storage.address_space import is_limited
from gradwatch.storage.parquet_footer import Group, row_groups
from gradwatch.table import KEY_COLUMNS, Floats, Table, concat_tables

BYTES = 8  # of a value, as a part holds it unpacked
MAX_SPREAD = 8  # cells of a table for each row of a part


def read_steps(path: Path, start: int) -> Table:
    """A part of the steps table; row groups that end before step `start` are left out."""
    with opened(path, ["optimizer"]) as (file, every):
        groups = _late(file, every, start)
        _require_size([every[i] for i in groups], MAX_STEPS_VALUES)
        table = file.read_row_groups(groups, use_threads=not is_limited())
    names = [name for name in table.column_names if name not in KEY_COLUMNS]
    per_step: dict[str, Floats] = {name: _array(table[name]).astype(np.float64) for name in names}
    names, who = _codes(table["optimizer"], MAX_LANES)
    optimizer = np.asarray(names, dtype=object)[who]
    step, attempt = _numbers(table["step"], MAX_STEP), _numbers(table["attempt"], MAX_COUNT)
    return Table(step, attempt, optimizer, per_step)


def layers_blocks(path: Path, start: int, of: str) -> Iterator[Table]:
    """The rows of a part of the layers table, a block per row group; groups that end before step `start` left out. `of`
    is the column of the layers' names.

    Once a row group does not hold every layer of every one of its steps, in one order, or goes on with the last step of
    the group before it, the rest of the part is one block.
    """
    with opened(path, ["optimizer", of]) as (file, every):
        groups = _late(file, every, start)
        held: Table | None = None
        for i, group in enumerate(groups):
            block = _tile(file.read_row_group(group, use_threads=not is_limited()), of)
            if block is not None and held is not None and _goes_on(held, block) and held.layers == block.layers:
                held = held.take(np.arange(len(held) - 1))  # the step that is handed over again
            if block is None or (held is not None and len(held) and _goes_on(held, block)):
                rest = groups[i if held is None else i - 1 :]
                _require_size([every[i] for i in rest], MAX_GROUP_VALUES)
                yield _pivot(file.read_row_groups(rest, use_threads=not is_limited()), of)
                return
            if held is not None:
                yield held
            held = block
        if held is not None:
            yield held


def count_values(path: Path) -> int:
    """How many values a part of the layers table holds."""
    metadata = pq.read_metadata(path)
    return int(metadata.num_rows * (metadata.num_columns - len(KEY_COLUMNS) - 1))


def require_alike(blocks: Sequence[Table], what: Path) -> None:
    """Refuse blocks whose union would not fit in memory, because each has other layers.

    Raises:
        RunError: so are the blocks of `what`.
    """
    rows, layers = sum(map(len, blocks)), {name for block in blocks for name in block.layers}
    quantities = {name for block in blocks for name in block.values}
    held = sum(len(block) * len(block.layers) * len(block.values) for block in blocks)
    values = rows * len(layers) * len(quantities)
    if len(layers) > MAX_LAYERS:
        raise RunError(f"{what} holds {len(layers):,} layers, and at most {MAX_LAYERS:,} are read")
    if values > max(MAX_JOINT_VALUES, 4 * held):
        raise RunError(f"{what}: {rows:,} steps whose {len(layers):,} layers have little in common are not read")


def joined(blocks: Sequence[Table], what: Path) -> Table:
    """One table out of its blocks.

    Raises:
        RunError: their union would not fit in memory.
    """
    require_alike(blocks, what)
    return concat_tables(blocks)


def limited(blocks: Iterable[Table], what: Path) -> Iterator[Table]:
    """The blocks of a run's steps table.

    Raises:
        RunError: they hold too many values.
    """
    rows, names = 0, set[str]()
    for block in blocks:  # as one table: what a block lacks of the others is empty there
        rows += len(block)
        names.update(block.values)
        if rows * len(names) > MAX_STEPS_VALUES:
            raise RunError(f"{what}: the steps table holds more than the {MAX_STEPS_VALUES:,} values that are read")
        yield block


@contextlib.contextmanager
def opened(path: Path, names: list[str]) -> Iterator[tuple[pq.ParquetFile, list[Group]]]:
    """The part at `path`, with the columns `names` as dictionaries, and its row groups.

    Raises:
        ValueError: it has not the columns of a part, or says that it is larger than what is read.
        OSError, pyarrow.ArrowException: it cannot be opened.
    """
    groups = row_groups(path)
    with pq.ParquetFile(path, read_dictionary=names, pre_buffer=not is_limited()) as file:
        _require_columns(file.schema_arrow, names)
        for group in groups:
            if len(group.columns) != len(file.schema_arrow.names):
                raise ValueError("its row groups have not all the same columns")
            _require_size([group], MAX_GROUP_VALUES)
        yield file, groups


def _require_columns(schema: pa.Schema, names: list[str]) -> None:
    kinds = {"step": pa.types.is_integer, "attempt": pa.types.is_integer, **dict.fromkeys(names, _is_names)}
    lacking = [name for name in kinds if name not in schema.names]
    if lacking or len(schema.names) > MAX_COLUMNS or len(set(schema.names)) < len(schema.names):
        what = f"no column {lacking[0]}" if lacking else f"{len(schema.names):,} columns, or one of them twice"
        raise ValueError(f"it has {what}")
    for field in schema:
        if len(field.name) > MAX_NAME or not kinds.get(field.name, _is_number)(field.type):
            raise ValueError(f"its column {field.name[:60]} holds {str(field.type)[:60]}")


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _is_names(kind: pa.DataType) -> bool:
    return bool(pa.types.is_dictionary(kind) and pa.types.is_string(kind.value_type))


def _require_size(groups: Sequence[Group], most: int) -> None:
    """By what the row groups say of themselves: their rows, and the values and the bytes of each column."""
    values = size = 0
    for group in groups:
        if group.rows < 0 or any(column.values != group.rows for column in group.columns):
            raise ValueError("its columns are not equally long")
        values += group.rows * len(group.columns)
        size += sum(abs(column.size) for column in group.columns)
    if values > most or size > BYTES * most:
        raise ValueError(f"it holds {values:,} values of {size:,} bytes, and at most {most:,} values are read")


def _late(file: pq.ParquetFile, groups: Sequence[Group], start: int) -> list[int]:
    """The row groups that hold a step from `start` on, by their statistics; all of them where there are none."""
    at = file.schema_arrow.names.index("step")
    ends = [group.columns[at].largest for group in groups]
    return [i for i, end in enumerate(ends) if start <= 0 or end is None or end >= start]


def _tile(table: pa.Table, of: str) -> Table | None:
    """The rows as T x L, if that is how they lie: the same layers in the same order in every step; else None."""
    names, code = _codes(table[of], MAX_LAYERS)
    again = np.flatnonzero(code == code[:1])
    width = int(again[1]) if len(again) > 1 else len(code)
    if not width or len(code) % width:
        return None
    optimizers, who = _codes(table["optimizer"], MAX_LANES)
    code = code.reshape(-1, width)
    step, attempt = _numbers(table["step"], MAX_STEP), _numbers(table["attempt"], MAX_COUNT)
    keys = [a.reshape(-1, width) for a in (step, attempt, who)]
    order = code[0]
    if len(np.unique(order)) < width or not (code == order).all() or not all((a == a[:, :1]).all() for a in keys):
        return None
    step, attempt, who = (a[:, 0] for a in keys)
    values = {name: _floats(table[name]).reshape(-1, width) for name in _quantities(table, of)}
    optimizer = np.asarray(optimizers, dtype=object)[who]
    tile = Table(step, attempt, optimizer, values, tuple(names[i] for i in order))
    again = (np.diff(step) == 0) & (np.diff(attempt) == 0) & (np.diff(who) == 0)  # rows that were handed over again
    return tile.take(np.append(~again, True)) if again.any() else tile


def _goes_on(before: Table, after: Table) -> bool:
    """Whether the first row of one block is of the same step as the last row of the block before it."""
    last, first = ((h.step[at], h.attempt[at], h.optimizer[at]) for h, at in ((before, -1), (after, 0)))
    return bool(last == first)


def _pivot(table: pa.Table, of: str) -> Table:
    """The rows as T x L, whatever order they come in within a step."""
    step, attempt = _numbers(table["step"], MAX_STEP), _numbers(table["attempt"], MAX_COUNT)
    names, column = _codes(table[of], MAX_LAYERS)
    optimizers, who = _codes(table["optimizer"], MAX_LANES)
    starts = np.ones(len(step), bool)
    starts[1:] = (np.diff(step) != 0) | (np.diff(attempt) != 0) | (np.diff(who) != 0)
    row = np.cumsum(starts) - 1
    used, column = np.unique(column, return_inverse=True)
    names = [names[i] for i in used]
    if int(starts.sum()) * len(names) > MAX_SPREAD * len(step) + MAX_LANES**2:
        raise ValueError(f"its {int(starts.sum()):,} steps and {len(names):,} layers have little in common")
    values: dict[str, Floats] = {}
    for name in _quantities(table, of):
        values[name] = np.full((int(starts.sum()), len(names)), np.nan, np.float32)
        values[name][row, column] = _floats(table[name])
    optimizer = np.asarray(optimizers, dtype=object)[who[starts]]
    return Table(step[starts], attempt[starts], optimizer, values, tuple(names))


def _quantities(table: pa.Table, of: str) -> list[str]:
    """What is recorded of the layers; how many steps a row stands for is none of it: in a part each is of one step."""
    return [name for name in table.column_names if name not in (*KEY_COLUMNS, of, SEEN)]


def _floats(column: pa.ChunkedArray) -> Floats:
    with np.errstate(over="ignore"):  # a float64 of somebody else's
        return np.asarray(_array(column).astype(np.float32, copy=False))


def _numbers(column: pa.ChunkedArray, most: int) -> NDArray[np.int64]:
    """A column of step or attempt numbers.

    Raises:
        ValueError: one is missing, negative or larger than `most`.
    """
    if column.null_count:
        raise ValueError("a step or an attempt has no number")
    if column.type not in (pa.int32(), pa.int64()):
        # Not as our writer has it. To cast, Arrow imports a module; at exit Python then forgets that it ends by Ctrl-C
        column = column.cast(pa.int64())
    found: NDArray[np.int64] = _array(column).astype(np.int64)
    if len(found) and not 0 <= found.min() <= found.max() <= most:
        raise ValueError(f"a step or an attempt has the number {found.min()} or {found.max()}, wanted 0 to {most}")
    return found


def _codes(column: pa.ChunkedArray, most: int) -> tuple[list[str], Any]:
    """A dictionary column as its names and, for each row, the number of its name.

    Raises:
        ValueError: a row has no name, or there are more than `most` names, one twice, or a very long one.
    """
    if not len(column):
        return [], np.zeros(0, np.int64)
    column.validate(full=True)  # Arrow does not look by itself whether a number has a name
    column = column.unify_dictionaries().combine_chunks()
    column = column if isinstance(column, pa.DictionaryArray) else pa.concat_arrays(column.chunks)
    if column.null_count or column.dictionary.null_count or len(column.dictionary) > most:
        raise ValueError(f"a row has no name, or there are more than {most:,} names")
    names = column.dictionary.to_pylist()
    if len(set(names)) < len(names) or max(map(len, names)) > MAX_NAME:
        raise ValueError(f"a name is there twice, or longer than {MAX_NAME:,} characters")
    return names, _array(pa.chunked_array([column.indices]))


def _array(column: pa.ChunkedArray) -> NDArray[Any]:
    """A column as numpy. Arrow's own `to_numpy` would first import pandas, half a second of who closes a run."""
    plain = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    if not plain or column.null_count or not len(column):
        return np.asarray(column.to_numpy())
    return np.concatenate([np.from_dlpack(chunk) for chunk in column.chunks if len(chunk)])
