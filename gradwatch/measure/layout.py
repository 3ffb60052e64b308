"""The watched parameters in model order, the constants that measuring them needs, and their norms of one step.

Legend: L layers, in the order of the Layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gradwatch.measure.distributed import Sharding, Spread, is_sharded, local
from gradwatch.measure.pipeline import Stages

SAMPLE = 4096  # elements of a layer that the update ratio looks at
WIDE, WIDE_ROW = 2**15, 64  # elements from which a second thread pays, and of a row
SUM_IN_ROWS = 2**17  # elements from which one thread takes rows too, for the digits: 4e-6 is what it forgoes below


class Layout:
    """The watched parameters in model order, and the small constant tensors that measuring them needs.

    Constants are made once and kept as long as it: what they depend on must not change from step to step.
    `held` says which of them the optimizers still step, None for all: a param group may have been taken out. Of a part
    of another layout, `places` says where its layers are in that one. `spreads` says how layers (by id) are spread over
    processes, where their tensors do not; `stages` that other ranks hold the other stages of a pipeline. `shapes` are
    those of whole layers.
    """

    def __init__(
        self,
        params: Mapping[str, Tensor],
        held: Sequence[bool] | None = None,
        places: Sequence[int] | None = None,
        spreads: Mapping[int, Spread] | None = None,
        stages: Stages | None = None,
    ) -> None:
        self.held, self.places, self.spreads, self.stages = held, places, spreads or {}, stages
        self.names = tuple(params)
        self.params = tuple(params.values())
        devices = [p.device for p in self.params]  # an accelerator, if any: what waits for none lives there
        self.device = next((d for d in devices if d.type != "cpu"), devices[0] if devices else torch.device("cpu"))
        self.every = tuple(range(len(self.params)))  # the index of all layers
        self.devices = set(devices)
        self.one_device = len(self.devices) == 1
        self.mixes_devices = len({device.type for device in self.devices}) > 1  # a CPU's and an accelerator's
        self.dtypes = {p.dtype for p in self.params}
        self.is_float32 = self.dtypes == {torch.float32}
        self.has_complex = any(dtype.is_complex for dtype in self.dtypes)
        is_spread = any(is_sharded(p) or id(p) in self.spreads for p in self.params)
        self.sharding = Sharding(self.params, self.device, self.spreads) if is_spread else None
        self.shapes = self.sharding.shapes if self.sharding is not None else [tuple(p.shape) for p in self.params]
        self.wide = frozenset(i for i, p in enumerate(self.params) if is_wide(local(p)))
        self.has_empty = not all(local(p).numel() for p in self.params)
        self.dtype = torch.float64 if self.dtypes & {torch.float64, torch.complex128} else torch.float32
        self._constants: dict[object, Tensor] = {}

    def weights(self) -> list[Tensor]:
        """The weights as real tensors that share their memory; of a DTensor the part that this rank holds."""
        if self.sharding is None and not self.has_complex:
            return list(self.params)
        return [real(local(p)) for p in self.params]

    def check_units(self) -> None:
        """Refuse what looks at units (rows, ...) of layers that are spread over ranks in a way that hides them.

        Raises:
            PolicyError: they are.
        """
        if self.sharding is not None:
            self.sharding.check_units()

    def part(self, places: Sequence[int]) -> Layout:
        """The layers at these places, alone."""
        return Layout({self.names[i]: self.params[i] for i in places}, places=places, spreads=self.spreads)

    def constant(self, key: object, make: Callable[[], Tensor]) -> Tensor:
        """The constant called `key`, made on first use."""
        if key not in self._constants:
            self._constants[key] = make()
        return self._constants[key]

    def numbers(self, values: Sequence[float], dtype: torch.dtype) -> Tensor:
        """`values` on the device: each an argument of a kernel that fills, because a copy from the host would wait."""
        filled = [torch.full((), value, dtype=dtype, device=self.device) for value in values]
        return torch.stack(filled) if filled else torch.empty(0, dtype=dtype, device=self.device)

    def which(self, flags: Sequence[bool]) -> Tensor:
        """`flags` on the device, `[L]` bool: put together from two constants, as there is no end of patterns."""
        yes, no = (
            self.constant(flag, lambda: torch.full((), flag, device=self.device))  # noqa: B023
            for flag in (True, False)
        )
        if all(flags):
            return self.constant(("all", len(flags)), lambda: yes.expand(len(flags)).clone())
        return torch.stack([yes if flag else no for flag in flags])

    def numel(self) -> Tensor:
        """Number of elements of each layer, `[L]`."""
        return self.constant("numel", lambda: self.numbers([math.prod(shape) for shape in self.shapes], self.dtype))

    def full(self, shape: tuple[int, ...], value: float) -> Tensor:
        """A tensor full of `value`, like the norms."""
        return torch.full(shape, value, dtype=self.dtype, device=self.device)

    def counter(self) -> Tensor:
        """0, for what is counted or averaged over a whole training: 0-d float64, where the device has it."""
        dtype = torch.float32 if self.device.type == "mps" else torch.float64
        return torch.zeros((), dtype=dtype, device=self.device)


class Norms(NamedTuple):
    """What a norm policy sees of one step; `[L]` each. An absent gradient (None) has norm 0 and `present` False."""

    l2: Tensor
    names: tuple[str, ...]
    others: dict[float, Tensor]
    here: Callable[[], Tensor]  # these two cost kernels, and few policies ask for them
    sizes: Callable[[], Tensor]
    stages: Stages | None = None  # of a pipeline, over which the norm over all layers is one
    known: dict[float, Tensor] | None = None  # such norms, by p: each is joined once; None without stages

    @property
    def present(self) -> Tensor:
        """Which layers have a gradient, on any rank: `[L]` bool."""
        return self.here()

    @property
    def numel(self) -> Tensor:
        """Number of elements of each layer, `[L]`."""
        return self.sizes()

    def layer(self, p: float = 2.0) -> Tensor:
        """The p-norm of each layer's gradient, `[L]`. p other than 2 must be in the policy's `norm_types`."""
        return self.l2 if p == 2.0 else self.others[p]

    def total(self, p: float = 2.0) -> Tensor:
        """The p-norm over all layers, 0-d, those of all stages: the p-norm of the layers' norms, as in torch."""
        if self.known and p in self.known:
            return self.known[p]
        own = torch.linalg.vector_norm(self.layer(p), p) if self.l2.numel() else self.l2.sum()
        if self.stages is None or self.known is None:
            return own
        self.known[p] = self.stages.norm(own, p)
        return self.known[p]

    def excess(self, limit: float, eps: float, p: float = 2.0) -> Tensor:
        """How many times `limit` the p-norm over all layers plus `eps` is, at least 1; 0-d, in two kernels."""
        return torch.add(eps / limit, self.total(p), alpha=1 / limit).clamp(min=1.0)

    def scaled(self, coef: Tensor) -> Norms:
        """The norms after multiplying the gradients by `coef` (`[]` or `[L]`, not negative)."""
        scaled = self._replace(l2=self.l2 * coef, others={p: n * coef for p, n in self.others.items()})
        if self.known is None:
            return scaled
        return scaled._replace(known={} if coef.dim() else {p: n * coef for p, n in self.known.items()})

    def take(self, index: Tensor, names: tuple[str, ...]) -> Norms:
        """The norms of some layers."""
        return Norms(
            self.l2.index_select(0, index),
            names,
            {p: n.index_select(0, index) for p, n in self.others.items()},
            lambda: self.present.index_select(0, index),
            lambda: self.numel.index_select(0, index),
            self.stages,
            {},
        )


def at(device: torch.device, value: Tensor) -> Tensor:
    """`value` on `device`. A copy to the CPU waits until it is there: nothing else would."""
    return value.to(device, non_blocking=device.type != "cpu")


def real(tensor: Tensor) -> Tensor:
    """A complex tensor seen as real, with a last dimension of 2; any other as it is."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def share(changed: Tensor, device: torch.device) -> Tensor:
    """The share of true entries, 0-d float32 on `device`, 0 of none; what is no mask is a share already."""
    if changed.dtype is torch.bool:
        changed = changed.sum(dtype=torch.float32) / max(changed.numel(), 1)
    return changed.to(device, torch.float32)


def is_wide(tensor: Tensor) -> bool:
    """Whether the norm of the whole tensor is better taken row by row.

    On a CPU torch's own takes one thread, and adds up in float32 from end to end: 1 % low at 16 million equal elements.
    """
    threads = torch.get_num_threads()
    enough = tensor.numel() >= (WIDE if threads > 1 else SUM_IN_ROWS)
    return enough and tensor.device.type == "cpu" and tensor.dim() > 1 and tensor[0].numel() >= WIDE_ROW


def stride(numel: int) -> int:
    """The step of the sample: coprime to the size, so that it visits every row and column of any shape."""
    step = max(1, math.ceil(numel / SAMPLE))
    while numel and math.gcd(step, numel) != 1:
        step += 1
    return step
