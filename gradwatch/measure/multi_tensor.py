"""Many tensors of one CUDA device and dtype in one kernel: their norms, a multiplication in place, a sample of each.

torch's calls for lists make a tensor of each norm, and launch a kernel for each factor that is not the same for all.
Those here are Triton's, which torch's builds for CUDA bring along. Where it is missing, fails, or is not wanted
(`GRADWATCH_TRITON=0`), torch's calls are taken; they are what these are tested against.

Legend: L layers, in the order of the Layout; C chunks of at most `CHUNK` elements, each of one layer.
"""

from __future__ import annotations

import importlib.util
import logging
import operator
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

logger = logging.getLogger(__name__)
SWITCH = "GRADWATCH_TRITON"  # the environment variable; 0: torch's calls
FEW = 4  # tensors up to which torch's calls take the host no longer
CHUNK, BLOCK, WARPS = 2**14, 2**11, 4  # elements of a program, and of a turn of its loop; 32 threads each
SUMS = 256  # of chunks, in a turn of the loop that adds them up
SAMPLED = 2**10  # elements of a program that samples
ALIGNED = 16  # bytes that a thread reads at once
KEPT = 8  # lists of addresses that are kept on the device: of gradients, of weights, of what an optimizer keeps
DTYPES = {torch.float32, torch.bfloat16, torch.float16}
PLAIN = {Tensor, nn.Parameter}  # whose elements lie where `data_ptr` says
_DTYPE = operator.attrgetter("dtype")


class Pointers(NamedTuple):
    """Where tensors lie."""

    on_device: Tensor  # [L] int64, 0 for one that is absent
    align: int  # bytes that divide all of them: `ALIGNED`, or 1


class MultiTensor:
    """The layers of one device and dtype. Others of the Layout are as if they were absent: of norm 0.

    Every method that launches says whether it could: where not, nothing has happened, and nothing is launched again.
    """

    def __init__(self, weights: Mapping[int, Tensor], layers: int, kernels: Any) -> None:
        like = next(iter(weights.values()))
        self.device, self.dtype, self._kernels, self.works = like.device, like.dtype, kernels, True
        self._type = getattr(kernels.tl, str(like.dtype).removeprefix("torch."))
        self.sizes = [weights[i].numel() if i in weights else 0 for i in range(layers)]
        numel = torch.tensor(self.sizes)
        chunks = (numel + CHUNK - 1) // CHUNK
        first = torch.cat([torch.zeros(1, dtype=torch.int64), chunks.cumsum(0)])
        owner = torch.repeat_interleave(torch.arange(layers), chunks)
        self._most = 1 << (int(chunks.max()) - 1).bit_length()
        self._owner, self._first = self.sent(owner.to(torch.int32)), self.sent(first.to(torch.int32))
        self._numel = self.sent(numel)
        self._pointers: dict[tuple[int, ...], Pointers] = {}

    def sent(self, values: Tensor) -> Tensor:
        """Numbers of the host on the device, by a copy that nothing waits for."""
        return values.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else values

    def pointers(self, tensors: Sequence[Tensor], index: Sequence[int]) -> Pointers | None:
        """Where the tensors of these layers, in their order, are; None where one of them is not as a kernel takes it
        for: as large as the layer's weight, of its dtype, and without gaps.
        """
        try:
            sizes = self.sizes if len(index) == len(self.sizes) else [self.sizes[i] for i in index]
            if not self.works or [*map(Tensor.numel, tensors)] != sizes:
                return None
            if not {*map(type, tensors)} <= PLAIN or {*map(_DTYPE, tensors)} != {self.dtype}:
                return None
            if not (all(map(Tensor.is_contiguous, tensors)) or all(map(_is_dense, tensors))):
                return None
            addresses = tuple(map(Tensor.data_ptr, tensors))
        except (AttributeError, TypeError, RuntimeError):  # of a None, and of what has no memory of its own
            return None
        if 0 in addresses:
            return None
        if len(addresses) < len(self.sizes):
            here = dict(zip(index, addresses, strict=True))
            addresses = tuple(here.get(i, 0) for i in range(len(self.sizes)))
        known = self._pointers.get(addresses)
        if known is None:
            if len(self._pointers) >= KEPT:
                del self._pointers[next(iter(self._pointers))]
            align = 1 if any(a % ALIGNED for a in addresses) else ALIGNED
            known = self._pointers[addresses] = Pointers(self.sent(torch.tensor(addresses)), align)
        return known

    def norms(self, at: Pointers, into: Tensor | None = None) -> Tensor | None:
        """The L2 norm of each layer, `[L]` float32, added up in float32; put `into` a tensor if given."""
        out = torch.empty(len(self.sizes), device=self.device) if into is None or not into.is_contiguous() else into
        sums = torch.empty(len(self._owner), device=self.device)
        self._launch("sums_of_squares", len(sums), *self._chunks(at), sums, **self._how(at))
        self._launch("roots", len(out), sums, self._first, out, most=self._most, per_turn=SUMS, num_warps=1)
        if not self.works:
            return None
        return out if into is None or out is into else into.copy_(out)

    def multiply_(self, at: Pointers, tensors: Sequence[Tensor], factors: Tensor) -> bool:
        """Multiply the tensors, which are `at` there, by their layer's number of `factors`, float32 `[L]`, or by one
        for all, `[]`; each product is rounded once.
        """
        how = {"step": factors.dim(), **self._how(at)}
        self._launch("multiply", len(self._owner), *self._chunks(at), factors.contiguous(), **how)
        if self.works:
            increment_version(tensors)  # as torch's operations in place do
        return self.works

    def sample(self, at: Pointers, places: Tensor, most: int, out: Tensor) -> bool:
        """Some elements of each layer, `most` of one, into `out`. `places`, `[3, L]` int64, says where those of a layer
        begin there, how far one is from the last in the layer's memory, and how many they are.
        """
        programs, how = -(-most // SAMPLED), {"per_turn": SAMPLED, "dtype": self._type}
        self._launch("sample", len(self.sizes), at.on_device, *places.unbind(), out, programs=programs, **how)
        return self.works

    def _chunks(self, at: Pointers) -> tuple[Tensor, ...]:
        return at.on_device, self._owner, self._first, self._numel

    def _how(self, at: Pointers) -> dict[str, Any]:
        return {"per_chunk": CHUNK, "per_turn": BLOCK, "dtype": self._type, "align": at.align, "num_warps": WARPS}

    def _launch(self, name: str, grid: int, *args: Any, programs: int = 1, **how: Any) -> None:
        try:
            with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
                getattr(self._kernels, name)[(grid, programs)](*args, **how)
        except Exception as error:  # of a compiler, a full disk, a driver: torch's calls are there
            logger.info("Triton failed, and torch's own calls are taken instead: %r", error)
            self.works = False


def _is_dense(tensor: Tensor) -> bool:
    return bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))


def multi_tensor(weights: Mapping[int, Tensor], layers: int) -> MultiTensor | None:
    """For these layers, which are of one device and dtype, of so many; None where torch's calls are to be taken.

    It is tried on the weights: kernels that are not known yet are compiled here.
    """
    weights = {i: w for i, w in weights.items() if w.numel()}
    if len(weights) < FEW or (found := kernels()) is None:
        return None
    like = next(iter(weights.values()))
    if like.device.type != "cuda" or like.dtype not in DTYPES or not {*map(type, weights.values())} <= PLAIN:
        return None
    made = MultiTensor(weights, layers, found)
    at = made.pointers([*weights.values()], [*weights])
    return made if at is not None and made.norms(at) is not None else None


@cache
def kernels() -> Any:
    """The module of the kernels; None where there is no Triton, or it is not wanted."""
    if os.environ.get(SWITCH) == "0" or torch.version.hip or importlib.util.find_spec("triton") is None:
        return None
    try:
        from gradwatch.measure import triton_kernels
    except Exception as error:  # what it needs may be missing, or of another version
        logger.info("Triton cannot be imported, and torch's own calls are taken instead: %r", error)
        return None
    return triton_kernels
