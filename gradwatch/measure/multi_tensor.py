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
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from gradwatch.formulas import TORCH_EPS

logger = logging.getLogger(__name__)
FAILED = "Triton failed, and torch's own calls are taken instead: %r"
SWITCH = "GRADWATCH_TRITON"  # the environment variable; 0: torch's calls
FEW = 4  # tensors from which torch's calls take the host longer (H200: of 4 34 us and 32, of 74 144 and 46)
CHUNK, BLOCK, WARPS = 2**14, 2**10, 8  # elements of a program, and of a turn of its loop; 32 threads each
SMALL, TURN = 4 * CHUNK, 2**12  # elements of a layer that one program goes over, and of a turn of its loop
SUMS = 256  # of chunks or layers, in a turn of the loop that adds them up
SAMPLED = 2**10  # elements of a program that samples
ALIGNED = 16  # bytes that a thread reads at once
KEPT = 8  # lists of addresses that are kept on the device: of gradients, of weights, of what an optimizer keeps
DTYPES = {torch.float32, torch.bfloat16, torch.float16}
PLAIN = {Tensor, nn.Parameter}  # whose elements lie where `data_ptr` says
_DTYPE, _NBYTES = map(operator.attrgetter, ("dtype", "nbytes"))


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
        self.device, self.works, self._kernels, self._dtypes = like.device, True, kernels, {like.dtype}
        self.layers, self._nbytes = layers, [weights[i].nbytes if i in weights else 0 for i in range(layers)]
        numel = torch.tensor(self._nbytes, dtype=torch.int64, device="cpu") // like.itemsize
        chunks = (numel + CHUNK - 1) // CHUNK
        first = torch.cat([torch.zeros(1, dtype=torch.int64, device="cpu"), chunks.cumsum(0)])
        owner = torch.repeat_interleave(torch.arange(layers, device="cpu"), chunks)
        # Which layer each chunk is of, which chunk is the first of each layer, and how large each layer is
        self._chunks = tuple(map(self.sent, (owner.to(torch.int32), first.to(torch.int32), numel)))
        self._count, largest = len(owner), int(numel.max())
        self._small = largest <= SMALL  # whether one program may go over a whole layer
        dtype = getattr(kernels.tl, str(like.dtype).removeprefix("torch."))
        of_chunks = {"per_chunk": CHUNK, "per_turn": BLOCK, "dtype": dtype, "num_warps": WARPS}
        self._constants: dict[str, dict[str, Any]] = {
            "sums_of_squares": of_chunks,
            "roots": {"most": _power(int(chunks.max())), "per_turn": SUMS, "num_warps": 1},
            "norms_of_small": {"most": _power(largest), "per_turn": TURN, "dtype": dtype, "num_warps": WARPS},
            "excess": {"most": _power(layers), "per_turn": SUMS, "num_warps": 1},
            "multiply": of_chunks,
            "sample": {"per_turn": SAMPLED, "dtype": dtype},
        }
        self._compiled: dict[object, tuple[Callable[..., Any], list[Any]] | None] = {}
        self._known: dict[object, Pointers] = {}

    def sent(self, values: Tensor) -> Tensor:
        """As `sent`, on its device."""
        return sent(values, self.device)

    def pointers(self, tensors: Sequence[Tensor], index: tuple[int, ...]) -> Pointers | None:
        """Where the tensors of these layers, in their order, are; None where one of them is not as a kernel takes it
        for: as large as the layer's weight, of its dtype, and without gaps. Asked on every step, as in `foreach`.
        """
        whole = len(index) == self.layers
        try:
            addresses = tuple(map(Tensor.data_ptr, tensors))
            sizes = self._nbytes if whole else [self._nbytes[i] for i in index]
            alike = {*map(_DTYPE, tensors)} == self._dtypes and [*map(_NBYTES, tensors)] == sizes
            dense = fill_memory(tensors)
        except (AttributeError, TypeError, RuntimeError):  # of a None, and of what has no memory of its own
            return None
        if not (alike and dense and self.works):
            return None
        key = addresses if whole else (index, addresses)
        return self._known.get(key) or self._sent_pointers(key, tensors, index, addresses)

    def _sent_pointers(
        self, key: object, tensors: Sequence[Tensor], index: tuple[int, ...], addresses: tuple[int, ...]
    ) -> Pointers | None:
        if 0 in addresses or not {*map(type, tensors)} <= PLAIN:
            return None
        if len(self._known) >= KEPT:
            del self._known[next(iter(self._known))]
        of_all = torch.zeros(self.layers, dtype=torch.int64, device="cpu")
        of_all[[*index]] = torch.tensor(addresses, dtype=torch.int64, device="cpu")
        align = 1 if any(a % ALIGNED for a in addresses) else ALIGNED
        try:
            self._known[key] = Pointers(self.sent(of_all), align)
        except RuntimeError as error:  # no more memory that a device can read
            self._give_up(error)
        return self._known.get(key)

    def norms(self, at: Pointers, into: Tensor | None = None) -> Tensor | None:
        """The L2 norm of each layer, `[L]` float32, added up in float32; put `into` a tensor if given."""
        out = self._empty(self.layers) if into is None or not into.is_contiguous() else into
        if self._small:
            self._launch("norms_of_small", (self.layers,), at.on_device, self._chunks[2], out, align=at.align)
        else:
            sums = self._empty(self._count)
            self._launch("sums_of_squares", (self._count,), at.on_device, *self._chunks, sums, align=at.align)
            self._launch("roots", (self.layers,), sums, self._chunks[1], out)
        if not self.works:
            return None
        return out if into is None or out is into else into.copy_(out)

    def excess(self, norms: Tensor, limit: float, out: Tensor | None = None) -> Tensor | None:
        """As `Layout.excess` of the joint L2 norm of layers with these `norms`, `[L]`; None: torch does it."""
        if not (self.works and norms.dtype is torch.float32 and norms.is_contiguous()):
            return None
        out = self._empty() if out is None else out
        self._launch("excess", (1,), norms, len(norms), TORCH_EPS / limit, 1 / limit, out)
        return out if self.works else None

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=self.device)

    def multiply_(self, at: Pointers, tensors: Sequence[Tensor], factors: Tensor) -> bool:
        """Multiply the tensors, which are `at` there, by their layer's number of `factors`, float32 `[L]`, or by one
        for all, `[]`; each product is rounded once.
        """
        how = {"align": at.align, "step": factors.dim()}
        self._launch("multiply", (self._count,), at.on_device, *self._chunks, factors.contiguous(), **how)
        if self.works:
            _count_write(tensors)
        return self.works

    def sample(self, at: Pointers, places: Tensor, most: int, out: Tensor) -> bool:
        """Some elements of each layer, `most` of one, into `out`. `places`, `[3, L]` int64, says where those of a layer
        begin there, how far one is from the last in the layer's memory, and how many they are.
        """
        grid = self.layers, -(-most // SAMPLED)
        self._launch("sample", grid, at.on_device, *places.unbind(), out)
        return self.works

    def _launch(self, name: str, grid: tuple[int, ...], *args: Tensor | float, **variant: int) -> None:
        try:
            is_current = self.device.type != "cuda" or torch.cuda.current_device() == self.device.index
            with nullcontext() if is_current else torch.cuda.device(self.device):
                self._hand_over((name, grid, *variant.values()), *args, **variant)
        except Exception as error:  # of a compiler, a full disk, a driver: torch's calls are there
            self._give_up(error)

    def _hand_over(self, key: tuple[Any, ...], *args: Tensor | float, **variant: int) -> None:
        """The first time as Triton is meant to be asked, which looks at each argument for what to compile. That is most
        of what a launch takes the host, and always the same here: so what it compiled is kept, and handed on as it is.
        """
        if (compiled := self._compiled.get(key)) is not None:
            run, constants = compiled
            try:
                run(*args, *constants)
            except TypeError:  # Triton 3.2 wants no constants here; it has launched nothing
                self._compiled[key] = None
            else:
                return
        name, grid = key[:2]
        kernel, named = getattr(self._kernels, name), {**self._constants[name], **variant}
        made = kernel[grid](*args, **named)
        if key not in self._compiled:
            try:  # it is launched: whatever another version of Triton says here, it must not be again
                self._compiled[key] = made[(*grid, 1, 1)[:3]], [named[n] for n in kernel.arg_names if n in named]
            except Exception:  # its interpreter has compiled nothing
                self._compiled[key] = None

    def _give_up(self, error: Exception) -> None:
        logger.info(FAILED, error)
        self.works = False


def sent(values: Tensor, device: torch.device) -> Tensor:
    """Numbers of the host on a device, by a copy that nothing waits for."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


def _power(count: int) -> int:
    """The least power of two that is as large: so that few kernels are compiled."""
    return 1 << max(0, count - 1).bit_length()


def _count_write(tensors: Sequence[Tensor]) -> None:
    """As torch's operations in place count theirs, in `Tensor._version`."""
    try:
        increment_version(tensors)
    except (TypeError, AttributeError):  # torch 2.6 takes one at a time
        for tensor in tensors:
            increment_version(tensor)


def fill_memory(tensors: Sequence[Tensor]) -> bool:
    """Whether each fills its memory, an element a place, in whatever order: a kernel that asks for no strides may write
    to it then. An expanded one does not.
    """
    return all(map(Tensor.is_contiguous, tensors)) or all(map(_is_dense, tensors))


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
    try:
        made = MultiTensor(weights, layers, found)
    except RuntimeError as error:  # no memory for its tables
        logger.info(FAILED, error)
        return None
    at = made.pointers([*weights.values()], tuple(weights))
    return made if at is not None and made.norms(at) is not None else None


@cache
def kernels() -> Any:
    """The module of the kernels; None where there is no Triton, or it is not wanted."""
    if os.environ.get(SWITCH) == "0" or torch.version.hip or importlib.util.find_spec("triton") is None:
        return None
    try:
        from gradwatch.measure import triton_kernels
    except Exception as error:  # what it needs may be missing, or of another version
        logger.info(FAILED, error)
        return None
    return triton_kernels
