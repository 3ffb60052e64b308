"""The watched parameters in model order, the constants that measuring them needs, and their norms of one step.

Legend: L layers, in the order of the Layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from gradwatch.formulas import TORCH_EPS
from gradwatch.measure.distributed import Sharding, Spread, is_sharded, local
from gradwatch.measure.exact import exact_dtype
from gradwatch.measure.multi_tensor import MultiTensor, multi_tensor
from gradwatch.measure.pipeline import Stages
from gradwatch.measure.row_length import row_length
from gradwatch.measure.rows import first_rows
from gradwatch.measure.slices import Cut, Split, cuts
from gradwatch.measure.small_tensors import SmallTensors, small_tensors

T = TypeVar("T")
SAMPLE = 4096  # elements of a layer that the update ratio looks at


class Layout:
    """The watched parameters in model order, and the small constant tensors that measuring them needs.

    Each of the parameters, `whole`, is a layer, but for those that are cut as `split` says: there each slice is one.
    `names`, `shapes` (over all processes) and `params` are of the layers; a slice's is the parameter that it is of.

    Constants are made once and kept as long as it: what they depend on must not change from step to step.
    `held` says which parameters the optimizers still step, None for all: a param group may have been taken out. Of a
    part of another layout, `places` says where its layers are in that one. `spreads` says how parameters (by id) are
    spread over processes, where their tensors do not; `stages` that other ranks hold the other stages of a pipeline.
    `rows` are the patterns of the layers whose largest row is looked for.

    Raises:
        WatchError: a parameter cannot be cut so, or its rows cannot be looked at.
    """

    def __init__(
        self,
        whole: Mapping[str, Tensor],
        held: Sequence[bool] | None = None,
        places: Sequence[int] | None = None,
        spreads: Mapping[int, Spread] | None = None,
        stages: Stages | None = None,
        split: Split | None = None,
        rows: Sequence[str] = (),
    ) -> None:
        self.whole, self.places, self.spreads, self.stages = dict(whole), places, spreads or {}, stages
        self.split, self.rows = split or {}, rows
        known = cuts(whole, self.split, self.spreads) if split else {}
        self._cuts = [known.get(name) for name in whole] if known else None
        self.names = tuple(self._each(whole, lambda name, cut: [f"{name}[{i}]" for i in range(len(cut.lengths))]))
        self.params = tuple(self._each(whole.values(), lambda p, cut: [p] * len(cut.lengths)))
        self.held = None if held is None else self._each(held, lambda own, cut: [own] * len(cut.lengths))
        shapes = [self.spreads[id(p)].shape if id(p) in self.spreads else tuple(p.shape) for p in whole.values()]
        self.shapes = self._each(shapes, lambda _, cut: [cut.shape] * len(cut.lengths))
        devices = [p.device for p in self.params]  # an accelerator, if any: what waits for none lives there
        self.device = next((d for d in devices if d.type != "cpu"), devices[0] if devices else torch.device("cpu"))
        self.every = tuple(range(len(self.params)))  # the index of all layers
        self.devices = set(devices)
        self.one_device = len(self.devices) == 1
        self.mixes_devices = len({device.type for device in self.devices}) > 1  # a CPU's and an accelerator's
        self.dtypes = {p.dtype for p in self.params}
        self.has_complex = any(dtype.is_complex for dtype in self.dtypes)
        parts = self._parts()
        self.wide = {i: length for i, part in enumerate(parts) if (length := row_length(part))}
        self.first_rows = first_rows(self, rows) if rows else {}
        self.by_rows = {*self.wide, *self.first_rows}  # whose norms are taken row by row
        self.has_empty = not all(part.numel() for part in parts)
        # Slices whose elements do not lie side by side: torch takes them, and a list with one of them, one by one
        along = self._each([None] * len(whole), lambda _, cut: [(cut.dim, cut.is_index)] * len(cut.lengths))
        self.strided = frozenset(i for i, cut in enumerate(along) if cut is not None and cut[0] > 0)
        self.sharding: Sharding | None = None
        if any(is_sharded(p) or id(p) in self.spreads for p in self.params):
            held_here = [part.numel() / max(n, 1) for part, n in zip(parts, self._sizes(), strict=True)]
            self.sharding = Sharding(self.params, self.device, self.spreads, held_here, along)
        self.dtype = torch.float64 if self.dtypes & {torch.float64, torch.complex128} else torch.float32
        self.all_here = (True,) * len(self.params)  # what a step has in which every layer has a gradient
        as_they_are = self.sharding is None and self._cuts is None and not (self.has_complex or self.has_empty or rows)
        # Whether a kernel may go over many of its tensors at once: see `multi_tensor`
        self.at_once = self.device.type == "cuda" and self.dtype is torch.float32 and not self.wide
        self.is_plain = as_they_are and self.one_device and len(self.dtypes) == 1  # see `measure_plain`
        self._constants: dict[object, Tensor] = {}
        self._excess: dict[float, tuple[Tensor, Tensor, Tensor]] = {}  # see `excess`
        self._small: dict[tuple[torch.device, torch.dtype], list[SmallTensors]] = {}
        self._multi: dict[tuple[torch.device, torch.dtype], MultiTensor | None] = {}

    def weights(self) -> list[Tensor]:
        """The weights as real tensors that share their memory; of a DTensor the part that this rank holds."""
        if self.sharding is None and not self.has_complex and self._cuts is None:
            return list(self.params)
        return [real(part) for part in self._parts()]

    def _parts(self) -> list[Tensor]:
        return self.slices([local(p) for p in self.whole.values()])

    def slices(self, tensors: list[Any]) -> list[Any]:
        """A tensor or None of each parameter, shaped like this rank's part of it -> of each layer. Views."""
        if self._cuts is None:
            return tensors
        return self._each(tensors, lambda t, cut: [None] * len(cut.lengths) if t is None else cut.slices(t))

    def of_whole(self, each: Sequence[T]) -> Sequence[T]:
        """What is known of each layer and the same for all slices of a parameter -> of each parameter."""
        if self._cuts is None:
            return each
        known = {id(p): value for p, value in zip(self.params, each, strict=True)}
        return [known[id(p)] for p in self.whole.values()]

    def _each(self, of_whole: Iterable[Any], of_slices: Callable[[Any, Cut], Iterable[Any]]) -> list[Any]:
        """What is known of each parameter -> of each layer."""
        if self._cuts is None:
            return [*of_whole]
        pairs = zip(of_whole, self._cuts, strict=True)
        return [one for value, cut in pairs for one in ([value] if cut is None else of_slices(value, cut))]

    def places_of(self) -> dict[int, list[int]]:
        """Where the layers of each parameter are, by the parameter's id."""
        found: dict[int, list[int]] = {}
        for i, p in enumerate(self.params):
            found.setdefault(id(p), []).append(i)
        return found

    def check_units(self) -> None:
        """Refuse what looks at units (rows, ...) of layers that are spread over ranks in a way that hides them.

        Raises:
            PolicyError: they are.
        """
        if self.sharding is not None:
            self.sharding.check_units()

    def fits_elsewhere(self, path: tuple[str, ...], here: bool) -> bool:
        """Whether the patterns may fit no layer of this: it is a part, or of a pipeline in which a layer fits them."""
        return self.places is not None if self.stages is None else self.stages.have(path, here, self.device)

    def part(self, places: Sequence[int]) -> Layout:
        """The layers at these places, alone: all slices of a parameter, or none."""
        own = {id(self.params[i]) for i in places}
        whole = {name: p for name, p in self.whole.items() if id(p) in own}
        return Layout(whole, places=places, spreads=self.spreads, split=self.split, rows=self.rows)

    def ordered(self, names: Sequence[str]) -> Layout:
        """The same layers in this order; the slices of a parameter stay together."""
        known, params = {id(p): n for n, p in self.whole.items()}, dict(zip(self.names, self.params, strict=True))
        order = dict.fromkeys(known[id(params[name])] for name in names)
        whole = {name: self.whole[name] for name in order}
        return Layout(whole, spreads=self.spreads, stages=self.stages, split=self.split, rows=self.rows)

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
            self.constant(flag, lambda: torch.full((), flag, dtype=torch.bool, device=self.device))  # noqa: B023
            for flag in (True, False)
        )
        if all(flags):
            return self.constant(("all", len(flags)), lambda: yes.expand(len(flags)).clone())
        return torch.stack([yes if flag else no for flag in flags])

    def numel(self) -> Tensor:
        """Number of elements of each layer, `[L]`."""
        return self.constant("numel", lambda: self.numbers(self._sizes(), self.dtype))

    def _sizes(self) -> list[int]:
        return [math.prod(shape) for shape in self.shapes]

    def small_tensors(self, device: torch.device, dtype: torch.dtype) -> list[SmallTensors]:
        """Room for the small layers of this device and dtype, made on first use."""
        key = (device, dtype)
        if key not in self._small:
            self._small[key] = small_tensors(self._weights_of(*key))
        return self._small[key]

    def multi_tensor(self, device: torch.device, dtype: torch.dtype) -> MultiTensor | None:
        """What goes over the layers of this device and dtype in one kernel, made on first use; None: torch's calls."""
        key = (device, dtype)
        if self.at_once and key not in self._multi:
            self._multi[key] = multi_tensor(self._weights_of(*key), len(self.names))
        return self._multi.get(key)

    @cached_property
    def all_in_one(self) -> MultiTensor | None:
        """`multi_tensor` of all layers, where they are of one device and dtype."""
        return self.multi_tensor(self.device, *self.dtypes) if self.one_device and len(self.dtypes) == 1 else None

    def _weights_of(self, device: torch.device, dtype: torch.dtype) -> dict[int, Tensor]:
        return {i: w for i, w in enumerate(self.weights()) if w.device == device and w.dtype is dtype}

    def ones(self, count: int) -> Tensor:
        """So many ones, like the norms."""
        return self.constant(("ones", count), lambda: self.full((count,), 1.0))

    def excess(self, total: Tensor, limit: float, out: Tensor | None = None) -> Tensor:
        """How many times its limit a norm is, at least 1: 1 / `clip_coef(total, limit)`, 0-d, `out` if it is given."""
        known = self._excess.get(limit)
        if known is None:  # tensors: a number would be a copy
            known = self.full((), TORCH_EPS / limit), self.full((), 1 / limit), self.full((), 1.0)
            self._excess[limit] = known
        start, slope, one = known
        return torch.maximum(torch.addcmul(start, total, slope), one, out=out)

    def full(self, shape: tuple[int, ...], value: float) -> Tensor:
        """A tensor full of `value`, like the norms."""
        return torch.full(shape, value, dtype=self.dtype, device=self.device)

    def counter(self) -> Tensor:
        """0, for what is counted or averaged over a whole training: 0-d float64, where the device has it."""
        return torch.zeros((), dtype=exact_dtype(self.device), device=self.device)


class Norms(NamedTuple):
    """What a norm policy sees of one step; `[L]` each. An absent gradient (None) has norm 0 and `present` False."""

    l2: Tensor
    names: tuple[str, ...]
    others: dict[float, Tensor]
    layout: Layout
    here: Tensor | tuple[bool, ...]  # which of the layout's layers have a gradient
    places: Tensor | None = None  # where these layers are among the layout's; None: they are those
    known: dict[float, Tensor] | None = None  # norms over all stages of a pipeline, by p: each is joined once

    @property
    def present(self) -> Tensor:
        """Which layers have a gradient, on any rank: `[L]` bool."""
        here = self.here
        return self._of_these(here if isinstance(here, Tensor) else self.layout.which(here))

    @property
    def numel(self) -> Tensor:
        """Number of elements of each layer, `[L]`."""
        return self._of_these(self.layout.numel())

    def _of_these(self, values: Tensor) -> Tensor:
        return values if self.places is None else values.index_select(0, self.places)

    def layer(self, p: float = 2.0) -> Tensor:
        """The p-norm of each layer's gradient, `[L]`. p other than 2 must be in the policy's `norm_types`."""
        return self.l2 if p == 2.0 else self.others[p]

    def total(self, p: float = 2.0) -> Tensor:
        """The p-norm over all layers, 0-d, those of all stages: the p-norm of the layers' norms, as in torch."""
        norms = self.layer(p)
        own: Tensor = torch.linalg.vector_norm(norms, p) if p == 2.0 or norms.numel() else norms.sum()
        if self.known is None or self.layout.stages is None:
            return own
        if p not in self.known:
            self.known[p] = self.layout.stages.norm(own, p)
        return self.known[p]

    def scaled(self, coef: Tensor) -> Norms:
        """The norms after multiplying the gradients by `coef` (`[]` or `[L]`, not negative)."""
        scaled = self._replace(l2=self.l2 * coef, others={p: n * coef for p, n in self.others.items()})
        if self.known is None:
            return scaled
        return scaled._replace(known={} if coef.dim() else {p: n * coef for p, n in self.known.items()})

    def take(self, index: Tensor, names: tuple[str, ...]) -> Norms:
        """The norms of some layers."""
        return self._replace(
            l2=self.l2.index_select(0, index),
            names=names,
            others={p: n.index_select(0, index) for p, n in self.others.items()},
            places=index if self.places is None else self.places.index_select(0, index),
            known=None if self.known is None else {},
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


@lru_cache(maxsize=4096)
def stride(numel: int) -> int:
    """The step of the sample: coprime to the size, so that it visits every row and column of any shape."""
    step = max(1, math.ceil(numel / SAMPLE))
    while numel and math.gcd(step, numel) != 1:
        step += 1
    return step


def sample(tensor: Tensor) -> Tensor:
    """At most 4,096 elements, each a `stride` from the last; where possible without a copy, in the memory's order."""
    step = stride(tensor.numel())
    if torch.ops.aten.is_non_overlapping_and_dense(tensor):
        return tensor.as_strided((math.ceil(tensor.numel() / step),), (step,), tensor.storage_offset())
    return tensor.reshape(-1)[::step]
