"""K rows of measurements on the device, and `read`: the one place that waits for it.

Legend: K ring rows, F fields, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.floating[Any]]


class Ring:
    """A buffer `[K, F, L]` float32 on the device, and a list of odd tensors that travel with it.

    One `read` is one copy from the device, whatever it holds.
    """

    def __init__(self, fields: Sequence[str], layers: int, rows: int, device: torch.device) -> None:
        self.fields = tuple(fields)
        self.buffer = torch.full((rows, len(self.fields), layers), torch.nan, dtype=torch.float32, device=device)
        self.rows, self.used = rows, 0
        self.extras: list[Tensor] = []
        self._views = [[row[f] for f in range(len(self.fields))] for row in self.buffer]

    @property
    def full(self) -> bool:
        """Whether every row is used."""
        return self.used == self.rows

    def write(self, *values: Tensor | None) -> None:
        """Fill the next row: one tensor, `[]` or `[L]`, per field; None leaves the field NaN."""
        for view, value in zip(self._views[self.used], values, strict=True):
            if value is not None:
                view.copy_(value)
        self.used += 1

    def keep(self, value: Tensor) -> None:
        """Let a tensor travel with the next drain; it is copied now, so it may change afterwards."""
        # float32 is what the record keeps; .to() alone would share memory with a float32 tensor
        self.extras.append(value.detach().to(self.buffer.device, torch.float32, copy=True))

    @torch.no_grad()
    def read(self) -> tuple[dict[str, Array], list[Array]]:
        """Wait for the device; `{field: [rows used, L]}` and the kept tensors, in order. They stay in the ring."""
        used, extras = self.buffer[: self.used], self.extras
        try:
            flat = torch.cat([used.flatten(), *(e.flatten() for e in extras)]).cpu().numpy()
        except torch.OutOfMemoryError:  # a training that ends for want of memory leaves none for one more tensor
            flat = np.concatenate([values.cpu().numpy().ravel() for values in (used, *extras)])
        sizes = np.cumsum([used.numel(), *(e.numel() for e in extras)])
        rows, *rest = np.split(flat, sizes[:-1]) if len(sizes) > 1 else [flat]
        table = rows.reshape(used.shape)
        fields = {name: table[:, f] for f, name in enumerate(self.fields)}
        return fields, [values.reshape(e.shape) for values, e in zip(rest, extras, strict=True)]

    @torch.no_grad()
    def forget(self, rows_left: int = 0, extras_left: int = 0) -> None:
        """Empty the ring, but for the last `rows_left` (0 or 1) rows and `extras_left` tensors, which still grow."""
        if rows_left:
            self.buffer[0].copy_(self.buffer[self.used - 1])
        self.buffer[rows_left:].fill_(torch.nan)
        self.used, self.extras = rows_left, self.extras[len(self.extras) - extras_left :]
