"""What a comparison of many runs keeps of each: of its steps what is read, and once what several have in common."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from gradwatch.history import History
from gradwatch.table import EMPTY, NOT_SAMPLED, WAS_NAN

READ = ("time", "grad_norm", "clip_rate", "skipped", "nonfinite")
USER = "user_"  # before what is recorded of the loop's own clips


def compared(history: History) -> History:
    """The run without its layers, and of its steps what a comparison reads: norms, clips, times, what was logged."""
    logged, steps = {*history.logged}, history.by_step
    values = {
        name: column
        for name, column in steps.values.items()
        if name in READ or name in logged or name.startswith((USER, WAS_NAN))
    }
    return replace(history, by_layer=EMPTY, by_step=replace(steps, values=values), **NOT_SAMPLED)


class Common:
    """Columns that are equal in several runs (the numbers of the steps, what never happened) are in memory once."""

    def __init__(self) -> None:
        self._columns: dict[tuple[str, bytes], NDArray[Any]] = {}

    def shared(self, history: History) -> History:
        """The same run; equal columns of all that were given are one array."""
        steps = history.by_step
        keys: dict[str, Any] = {name: self._one(getattr(steps, name)) for name in ("step", "attempt", "optimizer")}
        values = {name: self._one(column) for name, column in steps.values.items()}
        return replace(history, by_step=replace(steps, **keys, values=values))

    def _one(self, column: NDArray[Any]) -> NDArray[Any]:
        data = "\0".join(column).encode() if column.dtype == object else column.tobytes()
        return self._columns.setdefault((column.dtype.str, hashlib.blake2b(data).digest()), column)
