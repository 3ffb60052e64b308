"""A block of steps as Arrow tables: the rows that a part of each table holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gradwatch.history import History
from gradwatch.table import Table


def layers_table(block: History) -> pa.Table:
    """One row for each step and layer."""
    t, n = len(block.by_layer), len(block.layers)
    columns = _keys(block.by_layer, n)
    columns["layer"] = _named(np.tile(np.arange(n, dtype=np.int32), t), block.layers)
    columns.update({q: _column(np.ascontiguousarray(v, np.float32).ravel()) for q, v in block.per_layer.items()})
    return pa.table(columns)


def steps_table(block: History) -> pa.Table:
    """One row for each step."""
    values = {k: _column(np.asarray(v, np.float64)) for k, v in block.per_step.items()}
    return pa.table({**_keys(block.by_step, 1), **values})


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
