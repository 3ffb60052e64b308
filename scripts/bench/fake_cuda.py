"""An optimizer step on CUDA tensors that hold no values, on a machine without a GPU: what it would launch and wait for.

`step_of` makes a real Stepper over parameters that are fake, and `Trace` is told of each operation of torch in it.
Launches are counted by the rules of ATen's kernels (MultiTensorApply.cuh, ForeachUtils.h, Shape.cu) for CUDA 12, whose
kernel arguments hold the fewest tensors; the counts are a model of the device, and no GPU was asked. Triton's kernels,
where a Watch has them, are one launch each.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gradwatch.history import Layer, Run
from gradwatch.measure.layout import Layout
from gradwatch.measure.multi_tensor import FEW, SMALL, MultiTensor, Pointers
from gradwatch.measure.weight_updates import Weights
from gradwatch.policies import Policy
from gradwatch.recording.clipper import Clipper
from gradwatch.recording.learning_rate import RateScale
from gradwatch.recording.recorder import Recorder
from gradwatch.recording.stepper import Stepper

ATEN = torch.ops.aten
CHUNK, BLOCKS = 65_536, 320  # elements of a block of a multi-tensor kernel, and blocks of a launch
LISTS = (110, 64, 48, 36, 30)  # tensors of a launch that works on one list, two, ...
CAT, CAT_STRIDED, NORMS = 128, 64, 400  # tensors of one launch of cat, of strided ones, of the end of _foreach_norm
SHARES = {  # what gives the same memory again, or none
    "view", "_unsafe_view", "reshape", "slice", "select", "unbind", "expand", "detach", "alias", "t", "transpose",
    "permute", "as_strided", "split", "split_with_sizes", "unsqueeze", "squeeze", "view_as_real", "device",
    "_record_function_enter_new", "_record_function_exit",
}  # fmt: skip
VIEWS = SHARES | {"empty", "empty_like", "new_empty", "empty_strided"}  # what launches nothing
READS = {"_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal"}


@contextmanager
def fake_cuda() -> Iterator[None]:
    """Within, tensors made on `cuda` hold no values and need no GPU; reading one raises."""
    capturing = patch("torch.cuda.is_current_stream_capturing", lambda: False)
    with FakeTensorMode(), torch.no_grad(), _NoDeviceGuard(), capturing:
        yield


@contextmanager
def with_triton(kind: Callable[[Mapping[int, Tensor], int], MultiTensor] | None = None) -> Iterator[None]:
    """Within, layouts go over many tensors at once, as where there is Triton, by this kind of MultiTensor: by default
    what it would launch is counted.
    """

    def made(weights: Mapping[int, Tensor], layers: int) -> MultiTensor | None:
        return (kind or _Counted)(weights, layers) if len(weights) >= FEW else None

    with patch("gradwatch.measure.layout.multi_tensor", made):
        yield


class _Counted(MultiTensor):
    """Tensors that hold nothing have no addresses. A kernel is no operation of torch: one that writes stands for it."""

    def __init__(self, weights: Mapping[int, Tensor], layers: int) -> None:
        like = next(iter(weights.values()))
        self.device, self._dtypes, self.works = like.device, {like.dtype}, True
        self.layers, self._count, self._small = layers, 1, max(w.numel() for w in weights.values()) <= SMALL
        self._chunks = tuple(torch.empty(1, device=like.device) for _ in range(3))

    def pointers(self, tensors: Sequence[Tensor], index: tuple[int, ...]) -> Pointers | None:
        there = all(map(_is_dense, tensors)) and {t.dtype for t in tensors} == self._dtypes
        return Pointers(self._chunks[0], 16) if there else None

    def sent(self, values: Tensor) -> Tensor:
        return torch.empty(values.shape, device=self.device)

    def _launch(self, name: str, grid: tuple[int, ...], *args: Tensor, **how: Any) -> None:
        self._chunks[0].zero_()


_META = torch.library.Library("aten", "IMPL", "Meta")
_META.impl("_fused_sgd_", lambda *args, **kwargs: None)  # torch has none: it writes in place, which has no shape
READ = (Tensor.item, Tensor.__float__, Tensor.__int__, Tensor.__bool__)
BINDINGS: dict[Any, Any] = {
    Tensor.copy_: ATEN.copy_.default,
    Tensor.__invert__: ATEN.bitwise_not.default,
    torch._fused_sgd_: ATEN._fused_sgd_.default,
    **dict.fromkeys(READ, ATEN._local_scalar_dense.default),
}
DTYPES: dict[Any, torch.dtype] = {
    Tensor.float: torch.float32,
    Tensor.double: torch.float64,
    Tensor.long: torch.int64,
    Tensor.bool: torch.bool,
}


class _NoDeviceGuard(TorchFunctionMode):
    """Python's bindings of these ask for a CUDA device before anything else does; the operations themselves do not."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in BINDINGS:
            return BINDINGS[func](*args, **kwargs)
        if func in DTYPES:
            return _moved(args[0], DTYPES[func])
        if func is Tensor.to and not isinstance(args[1] if len(args) > 1 else None, Tensor):
            return _moved(args[0], *args[1:], **kwargs)
        if func is Tensor.__getitem__ and isinstance(args[1], int):
            return ATEN.select.int(args[0], 0, args[1])
        if func is Tensor.__getitem__ and isinstance(args[1], slice):
            return ATEN.slice.Tensor(args[0], 0, args[1].start, args[1].stop, args[1].step or 1)
        return func(*args, **kwargs)


def _moved(tensor: Tensor, *args: Any, copy: bool = False, **kwargs: Any) -> Tensor:
    device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)  # type: ignore[attr-defined]
    device, dtype = device or tensor.device, dtype or tensor.dtype
    if (device.type, dtype) == (tensor.device.type, tensor.dtype) and not copy:
        return tensor
    moved: Tensor = ATEN._to_copy.default(tensor, dtype=dtype, device=device, non_blocking=non_blocking)
    return moved


def parameters(shapes: Mapping[str, Sequence[int]], dtype: torch.dtype, device: str = "cuda") -> dict[str, Tensor]:
    """Fake parameters of these shapes."""
    return {name: nn.Parameter(torch.empty(shape, dtype=dtype, device=device)) for name, shape in shapes.items()}


def step_of(
    params: Mapping[str, Tensor],
    optimizer: Optimizer,
    clip: Policy | None = None,
    renorm: Policy | None = None,
    every: int = 10,
    slots: bool = False,
) -> Stepper:
    """A Stepper on that optimizer, with a Recorder that hands its blocks to nobody."""
    layout = Layout(params)
    clipper, weights = Clipper(layout, {"optimizer": optimizer}, clip), Weights(layout, renorm, every, slots)
    run = Run("fake", "now", layers=tuple(Layer(name, tuple(p.shape)) for name, p in params.items()))
    recorder = Recorder(run, [True] * len(run.layers), clipper.fields, layout.device, lambda block: None)
    stepper = Stepper(clipper, weights, recorder, RateScale(), lambda: None, lambda: None)
    stepper.attach()
    return stepper


def take_step(
    params: Mapping[str, Tensor], optimizer: Optimizer, absent: Callable[[int], bool] = lambda i: False
) -> None:
    """Give each parameter a gradient, but for those that are `absent(i)`, and step."""
    for i, p in enumerate(params.values()):
        p.grad = None if absent(i) else torch.empty_like(p)
    optimizer.step()


class Trace(TorchDispatchMode):
    """What happens within: launches by operation, and what would wait for the device or need much of its memory."""

    def __init__(self, large: int = 1 << 16) -> None:
        super().__init__()
        self.large = large  # bytes from which an allocation is noted
        self.launches: Counter[str] = Counter()
        self.reads: list[str] = []  # the host waits for a value
        self.copies: list[str] = []  # between devices, waiting or not
        self.allocations: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.name().split("::")[1].split(".")[0]
        if name == "_amp_foreach_non_finite_check_and_unscale_" and args[0][0].dtype is torch.bfloat16:
            raise NotImplementedError(f"\"{name}cuda\" not implemented for 'BFloat16'")  # as torch's own says
        self.launches[name] += launches(name, args, kwargs)
        self._note_reads_and_copies(name, args, kwargs)
        if name == "_foreach_norm":  # fake ones are computed tensor by tensor, which would be noted too
            dtype = (args[2] if len(args) > 2 else kwargs.get("dtype")) or args[0][0].dtype
            return [torch.empty((), dtype=dtype, device=t.device) for t in args[0]]
        out = func(*args, **kwargs)
        if name not in SHARES and not name.endswith("_") and "out" not in kwargs:
            made = [t for t in (out if isinstance(out, list | tuple) else [out]) if isinstance(t, Tensor)]
            size = sum(t.numel() * t.element_size() for t in made)
            if size >= self.large:
                self.allocations.append(f"{name}: {size:,} bytes")
        return out

    def _note_reads_and_copies(self, name: str, args: Any, kwargs: Any) -> None:
        masked = name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])
        if name in READS or masked:
            self.reads.append(name)
        if name == "lift_fresh":  # torch.tensor(values, device=...)
            self.copies.append("a tensor made of Python numbers")
        if name == "_to_copy":
            target = torch.device(kwargs.get("device") or args[0].device)
            if target.type != args[0].device.type:
                self.copies.append(f"{args[0].device} to {target}")
        if name == "copy_" and args[0].device.type != args[1].device.type:
            self.copies.append(f"{args[1].device} to {args[0].device}")

    @property
    def total(self) -> int:
        """Launches in all."""
        return sum(self.launches.values())


def launches(name: str, args: Any, kwargs: Any) -> int:
    """How many kernels one call launches on CUDA 12, by the rules of ATen."""
    if name in VIEWS:
        return 0
    if name == "_foreach_norm":
        tensors, p = args[0], float(args[1]) if len(args) > 1 else 2.0
        fast = p in (1.0, 2.0, math.inf) and all(map(_is_dense, tensors))
        return 1 + _multi(tensors, 1) + -(-len(tensors) // NORMS) if fast else len(tensors)
    if name == "_amp_foreach_non_finite_check_and_unscale_":
        return _multi(args[0], 1)
    if name.startswith("_fused_"):
        return _multi(args[0], sum(map(bool, args[:3])) if "sgd" in name else 4)
    if name.startswith("_foreach_"):
        return _foreach(name, args)
    if name in ("stack", "cat"):
        tensors, out = args[0], kwargs.get("out")
        if out is not None and any(t.dtype is not out.dtype for t in tensors):
            return len(tensors)
        return -(-len(tensors) // (CAT if all(t.is_contiguous() for t in tensors) else CAT_STRIDED))
    return 1


def _foreach(name: str, args: Any) -> int:
    tensors = args[0]
    lists = [a for a in args[1:] if isinstance(a, list | tuple) and a and isinstance(a[0], Tensor)]
    same = all(
        a.shape == b.shape and a.stride() == b.stride() and (a.dtype is b.dtype or "copy" in name) and _is_dense(b)
        for other in lists
        for a, b in zip(tensors, other, strict=True)
    )
    scalars = all(a.dtype is tensors[0].dtype for a in args[1:] if isinstance(a, Tensor))
    if not same or not scalars or not all(map(_is_dense, tensors)):
        return len(tensors)
    return _multi(tensors, 1 + len(lists) + (not name.endswith("_")))


def _multi(tensors: Sequence[Tensor], lists: int) -> int:
    """Launches of a multi-tensor kernel over `lists` lists of tensors of these sizes."""
    most, count, held, blocks = LISTS[min(lists, len(LISTS)) - 1], 0, 0, 0
    for t in tensors:
        chunks = -(-t.numel() // CHUNK)
        held += chunks > 0
        for chunk in range(1, chunks + 1):
            blocks += 1
            if (held == most and chunk == chunks) or blocks == BLOCKS:
                count, blocks, held = count + 1, 0, int(chunk < chunks)
    return count + (blocks > 0)


def _is_dense(tensor: Tensor) -> bool:
    return bool(ATEN.is_non_overlapping_and_dense(tensor))
