"""A block of steps as Arrow tables, and as parts of a run's folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gradwatch.history import History
from gradwatch.storage.compaction import group_rows, options
from gradwatch.table import SAMPLED, Table


def wide_table(table: Table, of: str) -> pa.Table:
    """One row for each step and layer (or module: `of` is the column of its name)."""
    t, n = len(table), len(table.layers)
    columns = _keys(table, n)
    columns[of] = _named(np.tile(np.arange(n, dtype=np.int32), t), table.layers)
    columns.update({q: _column(np.ascontiguousarray(v, np.float32).ravel()) for q, v in table.values.items()})
    return pa.table(columns)


def steps_table(block: History) -> pa.Table:
    """One row for each step."""
    values = {k: _column(np.asarray(v, np.float64)) for k, v in block.per_step.items()}
    return pa.table({**_keys(block.by_step, 1), **values})


def write_part(path: Path, table: str, block: History) -> None:
    """Write what a table has of a block, as a Parquet file; its row groups hold whole steps."""
    if table in SAMPLED:
        found, each = sampled_table(block, table), len(getattr(block, table).layers)
    elif table == "layers":
        found, each = wide_table(block.by_layer, "layer"), len(block.layers)
    else:
        found, each = steps_table(block), 1
    each = max(1, each)
    rows = max(1, group_rows(found.num_columns) // each) * each
    pq.write_table(found, path, row_group_size=rows, **options(found.schema))


def sampled_table(block: History, table: str) -> pa.Table:
    """One row for each sampled step and module, or layer."""
    return wide_table(getattr(block, table), SAMPLED[table])


def _keys(table: Table, repeat: int) -> dict[str, pa.Array]:
    names, codes = np.unique(np.asarray(table.optimizer, dtype=str), return_inverse=True)
    return {
        "attempt": _column(np.repeat(table.attempt.astype(np.int32), repeat)),
        "optimizer": _named(np.repeat(codes.astype(np.int32), repeat), list(names)),
        "step": _column(np.repeat(table.step, repeat)),
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
