"""Parquet parts as Histories, block by block: a row group of whole steps is an array already and is only reshaped.

Legend: T steps of one block, L layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gradwatch.history import KEY_COLUMNS, History, Run


def steps_blocks(path: Path, run: Run, start: int = 0) -> Iterator[History]:
    """The rows of a part of the steps table, as Histories without layers."""
    with pq.ParquetFile(path, read_dictionary=["optimizer"]) as file:
        table = file.read_row_groups(_groups(file, start))
    per_step = {n: table[n].to_numpy().astype(np.float64) for n in table.column_names if n not in KEY_COLUMNS}
    names, who = _codes(table["optimizer"])
    optimizer = np.asarray(names, dtype=object)[who]
    step, attempt = table["step"].to_numpy(), table["attempt"].to_numpy().astype(np.int64)
    yield History(run, (), step, attempt, optimizer, {}, per_step)


def layers_blocks(path: Path, run: Run, start: int = 0) -> Iterator[History]:
    """The rows of a part of the layers table, a block per row group; groups that end before step `start` left out.

    Once a row group does not hold every layer of every one of its steps, in one order, or goes on with the last step of
    the group before it, the rest of the part is one block.
    """
    with pq.ParquetFile(path, read_dictionary=["optimizer", "layer"]) as file:
        groups = _groups(file, start)
        held: History | None = None
        for i, group in enumerate(groups):
            block = _tile(file.read_row_group(group), run)
            if block is not None and held is not None and _goes_on(held, block) and held.layers == block.layers:
                held = held.take(np.arange(len(held) - 1))  # the step that is handed over again
            if block is None or (held is not None and len(held) and _goes_on(held, block)):
                yield _pivot(file.read_row_groups(groups[i if held is None else i - 1 :]), run)
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


def _groups(file: pq.ParquetFile, start: int) -> list[int]:
    """The row groups that hold a step from `start` on, by their statistics; all of them where there are none."""
    at = file.schema_arrow.names.index("step")
    kept = []
    for group in range(file.num_row_groups):
        known = file.metadata.row_group(group).column(at).statistics
        if known is None or not known.has_min_max or known.max >= start:
            kept.append(group)
    return kept


def _tile(table: pa.Table, run: Run) -> History | None:
    """The rows as T x L, if that is how they lie: the same layers in the same order in every step; else None."""
    names, code = _codes(table["layer"])
    again = np.flatnonzero(code == code[:1])
    width = int(again[1]) if len(again) > 1 else len(code)
    if not width or len(code) % width:
        return None
    optimizers, who = _codes(table["optimizer"])
    code = code.reshape(-1, width)
    keys = [a.reshape(-1, width) for a in (table["step"].to_numpy(), table["attempt"].to_numpy(), who)]
    order = code[0]
    if len(np.unique(order)) < width or not (code == order).all() or not all((a == a[:, :1]).all() for a in keys):
        return None
    step, attempt, who = (a[:, 0] for a in keys)
    per_layer = {
        name: table[name].to_numpy().astype(np.float32, copy=False).reshape(-1, width) for name in _quantities(table)
    }
    optimizer = np.asarray(optimizers, dtype=object)[who]
    tile = History(run, tuple(names[i] for i in order), step, attempt.astype(np.int64), optimizer, per_layer, {})
    again = (np.diff(step) == 0) & (np.diff(attempt) == 0) & (np.diff(who) == 0)  # rows that were handed over again
    return tile.take(np.append(~again, True)) if again.any() else tile


def _goes_on(before: History, after: History) -> bool:
    """Whether the first row of one block is of the same step as the last row of the block before it."""
    last, first = ((h.step[at], h.attempt[at], h.optimizer[at]) for h, at in ((before, -1), (after, 0)))
    return bool(last == first)


def _pivot(table: pa.Table, run: Run) -> History:
    """The rows as T x L, whatever order they come in within a step."""
    step, attempt = table["step"].to_numpy(), table["attempt"].to_numpy().astype(np.int64)
    names, column = _codes(table["layer"])
    optimizers, who = _codes(table["optimizer"])
    starts = np.ones(len(step), bool)
    starts[1:] = (np.diff(step) != 0) | (np.diff(attempt) != 0) | (np.diff(who) != 0)
    row = np.cumsum(starts) - 1
    per_layer = {}
    for name in _quantities(table):
        per_layer[name] = np.full((int(starts.sum()), len(names)), np.nan, np.float32)
        per_layer[name][row, column] = table[name].to_numpy()
    optimizer = np.asarray(optimizers, dtype=object)[who[starts]]
    return History(run, tuple(names), step[starts], attempt[starts], optimizer, per_layer, {})


def _quantities(table: pa.Table) -> list[str]:
    return [name for name in table.column_names if name not in (*KEY_COLUMNS, "layer")]


def _codes(column: pa.ChunkedArray) -> tuple[list[str], Any]:
    """A dictionary column as its names and, for each row, the number of its name."""
    if not len(column):
        return [], np.zeros(0, np.int64)
    column = column.unify_dictionaries().combine_chunks()
    column = column if isinstance(column, pa.DictionaryArray) else pa.concat_arrays(column.chunks)
    return column.dictionary.to_pylist(), column.indices.to_numpy()
