"""A sample of at most 4,096 elements of each layer's tensor, those of all layers side by side in one buffer.

Legend: L layers, in the order of the Layout; R rows of samples; N elements of a row.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor

from gradwatch.measure.autograd import without_autograd
from gradwatch.measure.layout import SAMPLE, Layout, sample, stride
from gradwatch.measure.multi_tensor import MultiTensor

FEW = 8  # layers that share one size of sample, on average, from which a kernel for each size is fewer
_DEVICE, _DTYPE = operator.attrgetter("device"), operator.attrgetter("dtype")


class Samples:
    """A buffer `[R, N]` that is filled again and again, by one `cat` or kernel per device and dtype: constant memory,
    and no large allocation in steady state. Layers with samples of one size lie side by side, so that one kernel norms
    them all.
    """

    def __init__(self, layout: Layout, rows: int) -> None:
        self.layout, self._rows = layout, rows
        weights = layout.weights()
        self._kinds = _kinds(weights)
        self.steps = [stride(w.numel()) for w in weights]
        self.sizes = [math.ceil(w.numel() / step) for w, step in zip(weights, self.steps, strict=True)]
        self._groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}  # layers, which lie together in a buffer
        for i in sorted(layout.every, key=self.sizes.__getitem__):
            self._groups.setdefault((weights[i].device, weights[i].dtype), []).append(i)
        self._order = [i for layers in self._groups.values() for i in layers]
        self._blocks = [(size, len([*run])) for size, run in groupby(self.sizes[i] for i in self._order)]
        self._buffers: dict[object, Tensor] = {}
        self._places: dict[tuple[torch.device, torch.dtype], Tensor] = {}  # of a group: starts, steps, sizes, `[3, L]`

    def fit(self, tensors: Sequence[Tensor]) -> bool:
        """Whether these are as the weights are: of their devices, dtypes and sizes."""
        return _kinds(tensors) == self._kinds

    @without_autograd
    def look(self, row: int, tensors: Sequence[Tensor]) -> None:
        """The samples of tensors that `fit`, one of each layer, into this row; each in the order of its memory."""
        for layers, own, _ in self._parts():
            many = self.layout.multi_tensor(own.device, own.dtype)
            if many is None or not self._sampled_at_once(many, tensors, layers, own[row]):
                torch.cat([sample(tensors[i]) for i in layers], out=own[row])

    def rows(self) -> Tensor:
        """What was looked at, `[R, N]`, in the layout's dtype and on its device: all groups side by side."""
        for _, own, part in self._parts():
            if own is not part:
                part.copy_(own, non_blocking=own.device.type != "cpu" or part.device.type == "cpu")
        return self._whole()

    def norms(self, rows: Tensor) -> Tensor:
        """The L2 norm of each layer's part of each of these rows, `[R, L]`."""
        if len(self._blocks) * FEW > len(self.sizes):
            sizes = [self.sizes[i] for i in self._order]
            parts = [part for row in rows for part in torch.split(row, sizes)]
            norms = torch.stack(torch._foreach_norm(parts)).view(len(rows), -1)
        else:
            norms, start, place = rows.new_empty(len(rows), len(self.sizes)), 0, 0
            for size, count in self._blocks:
                block = rows.narrow(1, start, size * count).view(-1, count, size)
                torch.linalg.vector_norm(block, dim=2, out=norms.narrow(1, place, count))
                start, place = start + size * count, place + count
        return norms.index_select(1, self.layout.constant("places", self._places_in_order))

    def _places_in_order(self) -> Tensor:
        """Where each layer lies in the order of the samples, `[L]`."""
        places: list[int] = sorted(self.layout.every, key=self._order.__getitem__)
        return self.layout.numbers(places, torch.int64)

    def _sampled_at_once(
        self, many: MultiTensor, tensors: Sequence[Tensor], layers: Sequence[int], out: Tensor
    ) -> bool:
        """Whether one kernel has put the samples of these layers side by side."""
        layers = [i for i in layers if self.sizes[i]]
        in_order = tuple(sorted(layers))
        at = many.pointers([tensors[i] for i in in_order], in_order)
        if at is None:
            return False
        if (key := (out.device, out.dtype)) not in self._places:
            start, own = 0, [[0, 1, 0] for _ in tensors]
            for i in layers:
                own[i] = [start, self.steps[i], self.sizes[i]]
                start += self.sizes[i]
            self._places[key] = many.sent(torch.tensor(own, dtype=torch.int64, device="cpu").T.contiguous())
        return many.sample(at, self._places[key], SAMPLE, out)

    def _parts(self) -> Iterator[tuple[Sequence[int], Tensor, Tensor]]:
        """Of each group its layers, the buffer that is looked into, and its part of the whole: mostly the same."""
        whole, start = self._whole(), 0
        for (device, dtype), layers in self._groups.items():
            size = sum(self.sizes[i] for i in layers)
            part, start = whole.narrow(1, start, size), start + size
            is_like = (device, dtype) == (whole.device, whole.dtype)
            yield layers, part if is_like else self._buffer((device, dtype), size, device, dtype), part

    def _whole(self) -> Tensor:
        return self._buffer("whole", sum(self.sizes), self.layout.device, self.layout.dtype)

    def _buffer(self, name: object, size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        if name not in self._buffers:
            self._buffers[name] = torch.zeros((self._rows, size), dtype=dtype, device=device)
        return self._buffers[name]


def _kinds(tensors: Sequence[Tensor]) -> list[tuple[torch.device, torch.dtype, int]]:
    return [*zip(map(_DEVICE, tensors), map(_DTYPE, tensors), map(Tensor.numel, tensors), strict=True)]
