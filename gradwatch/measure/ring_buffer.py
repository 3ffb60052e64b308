"""K rows of measurements on the device, and how they are read: staged, and taken when they are there.

Legend: K ring rows, F fields, L layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.measure.autograd import without_autograd
from gradwatch.measure.staging import Staged, staging_for

Array = NDArray[np.floating[Any]]


class Ahead(NamedTuple):
    """Memory of a row that is about to be written: what is put there need not be written again."""

    norms: Tensor  # [L]
    divisor: Tensor  # 0-d, in the place of the coefficients: what all gradients are divided by


class Ring:
    """A buffer `[K, F, L]` float32 on the device, written round and round: row `n` lies at `n % K`.

    It does not count: which rows are in use is known to whoever writes them, in one place.
    """

    def __init__(self, fields: Sequence[str], layers: int, rows: int, device: torch.device) -> None:
        self.fields, self.rows = tuple(fields), rows
        self.buffer = torch.full((rows, len(self.fields), layers), torch.nan, dtype=torch.float32, device=device)
        if "clip_coef" in self.fields:
            self.buffer.select(1, self.fields.index("clip_coef")).fill_(1.0)  # untouched, until it is written
        self.staging = staging_for(device)
        self._views = [row.unbind() for row in self.buffer.unbind()]
        norm, coef = (self.fields.index(name) if name in self.fields else 0 for name in ("grad_norm", "clip_coef"))
        self._aheads = [Ahead(views[norm], views[coef][0]) for views in self._views] if layers else []

    def ahead(self, row: int) -> Ahead | None:
        """The memory of a row that is about to be written; None in a ring without layers."""
        self.staging.follow()
        return self._aheads[row % self.rows] if self._aheads else None

    def row(self, row: int) -> Sequence[Tensor]:
        """The memory of a row, `[L]` per field."""
        self.staging.follow()
        return self._views[row % self.rows]

    def write(self, row: int, *values: Tensor | None) -> None:
        """Fill a row: one tensor, `[]` or `[L]`, per field; None leaves what an older row had there."""
        for view, value in zip(self._views[row % self.rows], values, strict=True):
            if value is not None and value is not view:
                self.staging.follow()
                view.copy_(value, non_blocking=True)

    def copy(self, value: Tensor) -> Tensor:
        """A copy that may be read with the rows; the tensor may change afterwards."""
        # float32 is what the record keeps; .to() alone would share memory with a float32 tensor
        self.staging.join()
        return value.detach().to(self.buffer.device, torch.float32, copy=True)

    def own(self, value: Tensor) -> Tensor:
        """A tensor that does not change any more, to be read with the rows: a copy only where it is not like them."""
        self.staging.join()
        return value.detach().to(self.buffer.device, torch.float32)

    def scalar(self, value: Tensor) -> Tensor | float:
        """A copy, 0-d, of a tensor of one element; the number itself where only a copy to the device would wait.

        Raises:
            TypeError: it is no plain tensor, nor one that each rank has whole.
        """
        if type(value) not in (Tensor, type(self.buffer)):
            value = _plain(value)
        if value.device.type == "cpu" and self.buffer.device.type != "cpu":
            return float(value.detach().float())
        return self.copy(value.reshape(()))

    @without_autograd
    def stage(self, first: int, count: int, more: Sequence[Tensor]) -> Block:
        """Send `count` rows from `first` on to the host, and the tensors `more`. The rows may be written anew at once;
        what was staged before must have been read.
        """
        start = first % self.rows
        rows = self.buffer[start : start + count], self.buffer[: max(0, start + count - self.rows)]
        shapes = [tuple(values.shape) for values in more]
        return Block(self.staging.stage([*rows, *more]), self.fields, (count, *self.buffer.shape[1:]), shapes)


class Block(NamedTuple):
    """Rows that were staged, `[T, F, L]`, and tensors of these shapes with them."""

    staged: Staged
    fields: tuple[str, ...]
    shape: tuple[int, ...]
    shapes: Sequence[tuple[int, ...]]

    def read(self) -> tuple[dict[str, Array], list[Array]]:
        """`{field: [T, L]}`, and the tensors; only once they are there."""
        sizes = [math.prod(shape) for shape in (self.shape, *self.shapes)]
        table, *rest = np.split(self.staged.read(), np.cumsum(sizes)[:-1])
        table = table.reshape(self.shape)
        fields = {name: table[:, f] for f, name in enumerate(self.fields)}
        return fields, [array.reshape(shape) for array, shape in zip(rest, self.shapes, strict=True)]


def _plain(value: Tensor) -> Tensor:
    """A tensor of a class of its own as a plain one; of a DTensor what this rank holds of it, if that is all."""
    if type(value).__torch_dispatch__ is Tensor.__torch_dispatch__:
        return value.as_subclass(Tensor)
    placements = getattr(value, "placements", ())
    if placements and all(each.is_replicate() for each in placements):
        return value.to_local()  # type: ignore[attr-defined,no-any-return]
    raise TypeError(f"it is a {type(value).__name__}; wanted a plain tensor, as .full_tensor() on all ranks gives it")
