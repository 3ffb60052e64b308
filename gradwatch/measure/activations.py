"""Looks inside a model: what each chosen module gives out, in the steps that are sampled.

What is measured is kept on the device as sums, counts and largest values until the step ends: micro-batches add up,
and ranks do. Nothing hangs on the model: while a step is sampled one hook of torch's own hears of every module's call.

Legend: M modules, Q quantities, N modules that are known non-linearities, U of their units (the last dimension, or the
channels of a convolution).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from gradwatch.measure import attention, eager
from gradwatch.measure.attention_calls import Calls
from gradwatch.measure.autograd import without_autograd
from gradwatch.measure.collectives import Sums, add_and_compare
from gradwatch.measure.copies import Copies, mark
from gradwatch.measure.distributed import local
from gradwatch.measure.exact import exact_dtype
from gradwatch.measure.looking import Looking
from gradwatch.measure.multi_tensor import sent
from gradwatch.measure.routers import Router, Tokens
from gradwatch.measure.saturation import Flat, flat_of
from gradwatch.measure.units import Units

QUANTITIES = ("rms", "max", "zeros", "saturated", "dead", "nonfinite", "order")
FIRST = 2  # steps at the beginning that are all sampled: `gradwatch run` sees the second forward pass first
UNITS = 1024  # of a non-linearity that are followed one by one, evenly spread over more
ELEMENTS = 32  # of a unit, without which a step does not say whether it is dead: it may be idle for a few examples
_ADDENDS = "under tensor parallelism each rank has addends of its outputs; those of the module around it are recorded"
ALIVE = float(1 << 20)  # more than there are ranks
MOST_CALLS = 256  # of a module in a step that are kept apart
PIECE = 1 << 24  # elements that are looked at together: what is held meanwhile stays small beside a large output


class Sample(NamedTuple):
    """What was sampled in a step: `[Q, M]` float32 of `QUANTITIES`, for these modules; and where there is attention, of
    `attention.QUANTITIES` and `routers.QUANTITIES` too, and after the modules their heads, `h.0.attn[3]`, and experts.
    NaN for what does not apply.
    """

    names: tuple[str, ...]
    values: Tensor


class Activations:
    """Measures the outputs of `modules` (by name) in the first two steps, and in each whose number `every` divides.

    `begin(step)` before the step's forward pass, `end()` when the step is over; in between compiled code runs as it was
    written, because what is compiled cannot be seen. With no modules neither does anything. `group`: over which ranks
    the batch is spread, and `place` that of a layer that is spread over them, if one is; `units`: as of `units_of`.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module] | None = None,
        units: Mapping[int, Units] | None = None,
        every: int = 50,
        group: dist.ProcessGroup | None = None,
        looking: Looking | None = None,
        routers: Mapping[str, Router] | None = None,
        place: int | None = None,
    ) -> None:
        self.names, self.every, self.group, self._place = tuple(modules or ()), every, group, place
        self._looking = looking or Looking()
        known = units or {}
        self._slots = {id(m): _Slot(m, flat_of(m), known.get(id(m), Units()), group) for m in (modules or {}).values()}
        self._attention = attention.Attention(modules or {}, self._slots, self._looking)
        self._tokens = Tokens(routers or {}, group)
        self._routers = {id(r.module): Calls() for r in (routers or {}).values()}
        self._copies = Copies()
        self._first: int | None = None
        self._hook: Any = None
        self._order: dict[int, None] = {}

    @property
    def is_open(self) -> bool:
        """Whether the coming step, or the one under way, is sampled."""
        return self._hook is not None

    def begin(self, step: int) -> None:
        """The forward pass of this step is about to begin."""
        self._first = step if self._first is None else self._first
        if self.names and not self.is_open and (step < self._first + FIRST or step % self.every == 0):
            with self._looking.at("activations of compiled modules"):
                eager.want(self)
            self._attention.begin()
            self._hook = register_module_forward_hook(self._note)

    def stop(self) -> None:
        """Hear of no more calls, and forget what was heard."""
        if self._hook is not None:
            self._hook.remove()
        self._attention.stop()
        self._tokens.clear()
        self._hook, self._order = None, {}
        for slot in (*self._slots.values(), *self._routers.values()):
            slot.clear()
        eager.leave(self)

    def end(self, device: torch.device) -> Sums[Sample | None]:
        """The step is over: its sample on `device`, NaN for a module that was not called; `order` is the place in the
        forward pass. None where the step was not sampled, or no module was called.
        """
        if not self.is_open:
            return None
        try:
            if self.group is None and not any(slot.is_seen for slot in self._slots.values()):
                return None
            return (yield from self._joined(device))
        finally:
            self.stop()

    # ------------------------------------------------------------------------------------------------ during the step

    def _note(self, module: nn.Module, args: Any, output: Any) -> None:
        router = self._routers.get(id(module))
        if router is not None and not torch.compiler.is_compiling() and router.counts():
            with self._looking.at("tokens of experts"):
                self._tokens.add(module, output)
        slot = self._slots.get(id(module))
        if slot is None or torch.compiler.is_compiling():
            return
        self._order.setdefault(id(module))  # also without autograd: so a reentrant checkpoint runs its part at first
        if not slot.counts():
            return
        with self._looking.at("activations"):
            found = tensor_of(output)
            if any(placement.is_partial() for placement in getattr(found, "placements", ())):
                self._looking.miss(f"activations of {type(module).__name__}", _ADDENDS)
            elif found is not None and found.numel() and found.is_floating_point():
                slot.add(local(found), tensor_of(args))

    # -------------------------------------------------------------------------------------------------- after the step

    def _joined(self, device: torch.device) -> Sums[Sample]:
        slots = list(self._slots.values())
        sums, largest = _of_calls(slots, device)  # [M, 5], [M]
        alive = [slot.alive_units(device) for slot in slots if slot.flat is not None]  # N of [U]
        heads, tops = self._attention.parts(device, exact_dtype(device), self.group is not None)
        tokens = self._tokens.sums(device, exact_dtype(device))
        if self.group is not None:
            marks = torch.stack([*(slot.marked(device) for slot in slots), *self._tokens.marked(device)])
            adding = [sums, *alive, *heads, *tokens]
            marks = yield from add_and_compare(adding, [largest, *tops], marks, self.group, self._place)
            copies = self._copies.of(marks)  # on how many ranks the same is
            sums = sums / copies[: len(slots), None]
            tokens = [total / many for total, many in zip(tokens, copies[len(slots) :], strict=True)]
        own = self._of_modules(sums, largest, alive)
        parts = [(self.names, own), self._attention.joined(heads, tops), self._tokens.joined(tokens)]
        while not parts[-1][0]:  # no experts; no heads
            parts.pop()
        names = tuple(name for names, _ in parts for name in names)
        values, row, column = own.new_full((sum(len(found) for _, found in parts), len(names)), math.nan), 0, 0
        for those, found in parts:  # each has rows and columns of its own
            values[row : row + len(found), column : column + len(those)] = found
            row, column = row + len(found), column + len(those)
        return Sample(names, values)

    def _of_modules(self, sums: Tensor, largest: Tensor, alive: list[Tensor]) -> Tensor:
        """`[Q, M]` float32 of sums `[M, 5]`, largest values `[M]` and, of the N known non-linearities, units `[U]`."""
        squares, zeros, flat, bad, count = sums.unbind(1)
        slots, places = self._slots.values(), {key: place for place, key in enumerate(self._order)}
        order = _numbers([places.get(key, math.nan) for key in self._slots], count.dtype, count.device)
        enough = _numbers([ELEMENTS * slot.units for slot in slots], count.dtype, count.device)  # NaN of some
        dead = torch.full_like(count, math.nan)
        if alive:
            with_flat = [i for i, slot in enumerate(slots) if slot.flat is not None]
            units = torch.stack(alive)
            there = units > 0
            shares = (there & (units < ALIVE)).sum(dim=1).to(dead) / there.sum(dim=1)
            dead.index_copy_(0, _numbers(with_flat, torch.int64, count.device), shares)
        dead = torch.where(count >= enough, dead, math.nan)
        found = [(squares / count).sqrt(), largest.to(count), zeros / count, flat / count, dead, bad, order]
        return torch.where(count > 0, torch.stack(found), math.nan).to(torch.float32)


class _Call(NamedTuple):
    """What one call of a module showed, or a piece of one; 0-d each. All are brought together when the step is over."""

    numel: int
    norms: tuple[Tensor, Tensor]  # L2, and the largest
    counts: tuple[Tensor, Tensor]  # not zero, not finite
    flat: Tensor | None


class _Slot(Calls):
    """What was seen of one module in this step."""

    def __init__(self, module: nn.Module, flat: Flat | None, units: Units, group: dist.ProcessGroup | None) -> None:
        self.module, self.flat, self.where, self.group = module, flat, units, group
        self.clear()

    def clear(self) -> None:
        super().clear()
        self.calls: list[_Call] = []
        self._mark: Tensor | None = None  # of the values, where other ranks may have the same
        self.units = math.nan  # how many there are
        self.first = 0  # of those on this rank that are followed, the place among all that are
        self._alive: Tensor | None = None  # [at most U] bool: units that were not flat somewhere

    @property
    def is_seen(self) -> bool:
        """Whether a call of this step counts."""
        return bool(self.calls)

    @without_autograd
    def add(self, y: Tensor, x: Tensor | None) -> None:
        """One more call: y = module(x)."""
        x = None if x is None else local(x)
        if self.group is not None:
            found = mark(y)
            self._mark = found if self._mark is None else self._mark + found
        flat = self.flat if x is not None and x.shape == y.shape else None
        dim = self.where.along(y)
        for part, inner in _pieces(y, y if x is None or flat is None else x, dim if flat else None):
            is_flat = flat(self.module, inner, part) if flat else None
            self._take(part, is_flat, dim)

    def _take(self, y: Tensor, flat: Tensor | None, dim: int) -> None:
        wide = torch.float64 if y.dtype == torch.float64 else torch.float32
        norms = torch.linalg.vector_norm(y, dtype=wide), torch.linalg.vector_norm(y, math.inf, dtype=wide)
        # inf - inf and NaN - NaN are NaN, and all else is 0
        counts = torch.count_nonzero(y), torch.count_nonzero(y - y)
        self.calls.append(_Call(y.numel(), norms, counts, None if flat is None else torch.count_nonzero(flat)))
        if len(self.calls) > MOST_CALLS:  # an agent acts many times between two steps
            self.calls = [_as_one(self.calls)]
        if flat is not None:
            others = [d for d in range(flat.ndim) if d != dim]
            alive = (~flat).any(dim=others) if others else ~flat
            first, self.units = self.where.held(len(alive))
            step = -(-int(self.units) // UNITS)
            self.first, alive = -(-first // step), alive[-first % step :: step]
            self._alive = alive if self._alive is None else self._alive | alive

    def marked(self, device: torch.device) -> Tensor:
        """As `mark`, of all calls; 0 where there were none."""
        return torch.zeros((), dtype=torch.float64, device=device) if self._mark is None else self._mark.to(device)

    def alive_units(self, device: torch.device) -> Tensor:
        """`[U]`: `ALIVE` for a unit that was not flat everywhere, 1 for one that was, 0 for none: to be added up."""
        out = torch.zeros(UNITS, dtype=exact_dtype(device), device=device)
        if self._alive is not None:
            out[self.first : self.first + len(self._alive)] = torch.where(self._alive, ALIVE, 1.0).to(device)
        return out


def tensor_of(value: Any) -> Tensor | None:
    """The first tensor in what a module takes or gives: itself, or in a tuple, list or mapping; a loss is none."""
    if isinstance(value, Tensor):
        return value.detach() if value.dim() else None
    values = value.values() if isinstance(value, Mapping) else value if isinstance(value, (tuple, list)) else ()
    return next((found for part in values if (found := tensor_of(part)) is not None), None)


def _of_calls(slots: Sequence[_Slot], device: torch.device) -> tuple[Tensor, Tensor]:
    """Of all calls of each module: sums of squares, zeros, flat ones (NaN where that is not known), non-finite ones and
    all, `[M, 5]`, of the precision that counts need; and the largest, `[M]` float32, -1 where nothing was seen.
    """
    exact = exact_dtype(device)
    sums = torch.zeros(len(slots), 5, dtype=exact, device=device)
    largest = torch.full((len(slots),), -1.0, dtype=torch.float32, device=device)
    calls = [(i, call) for i, slot in enumerate(slots) for call in slot.calls]
    if not calls:
        return sums, largest
    owner = _numbers([i for i, _ in calls], torch.int64, device)
    numel = _numbers([call.numel for _, call in calls], exact, device)
    norm, most = _together([n for _, call in calls for n in call.norms], device, exact).view(-1, 2).unbind(1)
    used, bad = _together([n for _, call in calls for n in call.counts], device, exact).view(-1, 2).unbind(1)
    flat = torch.full_like(numel, math.nan)
    known = [n for n, (_, call) in enumerate(calls) if call.flat is not None]
    if known:
        flats = [call.flat for _, call in calls if call.flat is not None]
        flat.index_copy_(0, _numbers(known, torch.int64, device), _together(flats, device, exact))
    sums.index_add_(0, owner, torch.stack([norm.square(), numel - used, flat, bad, numel], dim=1))
    most = most.nan_to_num(nan=math.inf, posinf=math.inf).to(torch.float32)
    return sums, largest.scatter_reduce_(0, owner, most, "amax")


def _as_one(calls: Sequence[_Call]) -> _Call:
    """What several calls showed, as if it were one."""
    device = calls[0].norms[0].device
    norms = _together([n for call in calls for n in call.norms], device, exact_dtype(device)).view(-1, 2)
    used, bad = _together([n for call in calls for n in call.counts], device, exact_dtype(device)).view(-1, 2).sum(0)
    flats = [call.flat for call in calls if call.flat is not None]
    flat = _together(flats, device, exact_dtype(device)).sum() if len(flats) == len(calls) else None
    both = torch.linalg.vector_norm(norms[:, 0]), norms[:, 1].amax()
    return _Call(sum(call.numel for call in calls), both, (used, bad), flat)


def _numbers(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    host = torch.empty(len(values), dtype=dtype, device="cpu")
    host.numpy()[:] = values
    return sent(host, device)


def _together(numbers: Sequence[Tensor], device: torch.device, dtype: torch.dtype) -> Tensor:
    """0-d tensors of any device and dtype in one."""
    if len({(n.device, n.dtype) for n in numbers}) > 1:
        numbers = [n.to(device, dtype) for n in numbers]
    return torch.stack([*numbers]).to(device, dtype)


def _pieces(y: Tensor, x: Tensor, keep: int | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Both in pieces of about `PIECE` elements, cut along one dimension that is not `keep`."""
    count = -(-y.numel() // PIECE)
    free = [d for d in range(y.ndim) if d != keep]
    if count < 2 or not free:
        yield y, x
        return
    dim = max(free, key=lambda d: y.shape[d])
    yield from zip(y.chunk(count, dim), x.chunk(count, dim), strict=True)
