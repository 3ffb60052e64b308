"""Tensors spread over processes (FSDP2, HSDP, tensor parallel): what this rank holds, and how ranks add up their parts.

Legend: L layers, in the order of the Layout. A collective always carries a vector of fixed length, whatever a rank
holds or lacks: a rank that left one out would hang the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from gradwatch.errors import PolicyError
from gradwatch.measure.autograd import without_autograd
from gradwatch.measure.collectives import Part, Sums, T, all_reduce, of_each_rank
from gradwatch.measure.local_block import cut_dims, local_block

_FLAT = (
    "FullyShardedDataParallel cuts flattened layers, so that no rank sees whose row an element is of: constraints and "
    "policies of units (MaxNorm, Renorm, AGC, ClipByNorm(axes=...)) cannot act. Use a policy of whole layers' norms or "
    "of elements, or fully_shard (FSDP2), which cuts along rows"
)
_BESIDE = (
    "experts= says that ranks hold slices of these layers, cut along the first dimension: a unit that lies across it "
    "(AGC of a bias, ClipByNorm(axes=(0,))) cannot be told. Leave these layers out with only(...)"
)


def is_sharded(tensor: Tensor) -> bool:
    """Whether `tensor` is a DTensor: spread over, or copied to, the ranks of a device mesh."""
    return hasattr(tensor, "device_mesh")


def rank() -> int:
    """This process's rank in a distributed run; 0 outside of one."""
    running = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_rank() if running else 0


def world_size() -> int:
    """The number of processes of a distributed run; 1 outside of one."""
    running = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if running else 1


@without_autograd  # no node in the autograd graph: .to_local() then returns the very tensor
def local(tensor: Tensor) -> Tensor:
    """The part of `tensor` that this rank holds, sharing its memory; the whole of a plain tensor."""
    whole: Any = tensor
    part: Tensor = whole.to_local() if is_sharded(tensor) else tensor
    return part


class Spread(NamedTuple):
    """How one layer is spread over processes, where the tensor itself does not say it as a DTensor does.

    `beside` is a group whose ranks hold, under this name, other slices of the layer: along its first dimension.
    """

    shape: tuple[int, ...]  # of the whole layer
    ranks: frozenset[int] = frozenset()  # that hold this layer's parts together; none: this rank holds all, but for ...
    group: Any = None  # ... the `beside`; their process group
    beside: Any = None
    is_flat: bool = False  # whether a part is cut from the flattened layer: its units cannot be told


class Sharding:
    """How L parameters, some of them DTensors or otherwise `spreads` (by id), are spread over ranks.

    `shares[i]` is 1 / the number of ranks that hold the same part of layer i: sums over ranks count each part once.
    A plain tensor beside spread ones is a copy on every rank. A layer's parts are added up over its own group, or over
    one that holds that whole: under pipeline parallelism each stage has a mesh, and layers, of its own.

    `held[i]` is how much of layer i this rank has. Of a layer that is a slice, `params[i]` is the parameter, and
    `cuts[i]` the dimension along which it is cut, and whether the slice lacks that.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        device: torch.device,
        spreads: Mapping[int, Spread],
        held: Sequence[float],
        cuts: Sequence[tuple[int, bool] | None],
    ) -> None:
        self.params, self.spreads, self.cuts = params, spreads, cuts
        self.is_flat = any(spread.is_flat for spread in spreads.values())
        groups, shares = self._joined()
        self.shares = torch.tensor(shares, dtype=torch.float64, device=device)
        self.held = self.shares * torch.tensor(held, dtype=torch.float64, device=device)
        everything = list(range(len(params)))
        self._sums = [
            (
                group,
                None if places == everything else torch.tensor(places, dtype=torch.int64, device=device),
                frozenset(places),
            )
            for group, places in groups
        ]
        self._known_blocks: dict[object, dict[int, _Block]] = {}

    @property
    def group(self) -> Any:
        """The group of the ranks that hold the first layers together."""
        return self._sums[0][0] or dist.group.WORLD

    @property
    def first_place(self) -> int:
        """That of a layer which the ranks of the `group` hold together."""
        return min(self._sums[0][2])

    def _joined(self) -> tuple[list[tuple[Any, list[int]]], list[float]]:
        """The process groups over which parts are added up, one after the other, with their layers; and the shares."""
        ranks = [_ranks(p, self.spreads.get(id(p))) for p in self.params]
        widest: list[frozenset[int]] = []  # of these, none holds another
        for each in sorted(dict.fromkeys(r for r in ranks if r), key=len, reverse=True):
            if not any(each <= other for other in widest):
                widest.append(each)
        places: dict[frozenset[int], list[int]] = {each: [] for each in widest}
        shares = [1.0] * len(self.params)
        for i, (p, own) in enumerate(zip(self.params, ranks, strict=True)):
            spread = self.spreads.get(id(p))
            if not widest or (not own and spread is not None):
                continue
            joined = next(each for each in widest if own <= each)
            copies = _copies(p) if own else 1
            # of several slices beside each other it is not known which rank of a wider group holds which
            home = own if spread is not None and spread.beside is not None else joined
            shares[i] = 1 / (copies * (len(home) // max(len(own), 1)))
            places.setdefault(home, []).append(i)
        groups = [(self._group(each), own) for each, own in places.items() if own]
        beside: dict[Any, list[int]] = {}
        for i, p in enumerate(self.params):
            spread = self.spreads.get(id(p))
            if spread is not None and spread.beside is not None:
                beside.setdefault(spread.beside, []).append(i)
        return [*groups, *beside.items()], shares

    def _group(self, ranks: frozenset[int]) -> Any:
        """The process group of these ranks, None for the default one."""
        if len(ranks) == dist.get_world_size():
            return None
        for p in self.params:
            spread = self.spreads.get(id(p))
            if _ranks(p, spread) == ranks:
                if spread is not None and spread.group is not None:
                    return spread.group
                mesh = p.device_mesh  # type: ignore[attr-defined]
                if mesh.ndim == 1:
                    return mesh.get_group()
        return dist.new_group(sorted(ranks), use_local_synchronization=True)

    def gradient(self, param: Tensor, grad: Tensor, keep: bool) -> Tensor:
        """This rank's part of the gradient of `param`, spread as the parameter is.

        A gradient whose ranks still hold addends (`Partial`, as of norm layers under sequence parallelism) is summed
        up first; `keep` makes the sum the gradient, so that what is done to it reaches the optimizer.
        """
        whole: Any = grad
        if is_sharded(grad) and whole.placements != param.placements:  # type: ignore[attr-defined]
            whole = whole.redistribute(placements=param.placements)  # type: ignore[attr-defined]
            if keep:
                param.grad = whole
        part: Tensor = local(whole)
        return part

    def add(self, parts: Tensor) -> Sums[Tensor]:
        """The sum over ranks of `[..., L]` float64, every part counted once."""
        whole = parts * self.shares
        yield [(None, whole)]
        return whole

    def reduce(self, parts: Sequence[Part], op: Any = dist.ReduceOp.SUM) -> None:
        """Reduce the parts in place, each over the ranks of its layers: one all-reduce for each of the groups."""
        for group, places, layers in self._sums:
            own = [(place, t) for place, t in parts if place is None or place in layers]
            here = [t if place is not None or places is None else t.index_select(-1, places) for place, t in own]
            all_reduce(here, op, group)
            for (place, t), part in zip(own, here, strict=True):
                if place is None and places is not None:
                    t.index_copy_(-1, places, part)

    def mean(self, values: Tensor) -> Tensor:
        """The mean over all elements of each layer, `[L]`, from the mean over those on each rank. One all-reduce."""
        whole = values * self.held
        self.reduce([(None, whole)])
        return whole.to(values.dtype)

    def join(
        self, norms: Tensor, present: Tensor, p: float, own: Mapping[int, Tensor] | None = None
    ) -> tuple[Tensor, Tensor, dict[int, Tensor]]:
        """The p-norms `[L]` of whole layers from those of this rank's parts, and which layers any rank has: `[L]` bool;
        of what is this rank's `own` of some layers, the same ones on all ranks, what each of the W has, `[W, ...]`.

        One all-reduce. Sums are float64: the square of a float32 norm may be out of float32's range.
        """
        parts = norms.to(torch.float64)
        if math.isinf(p):
            # A maximum over ranks may lose a NaN: it travels as a flag
            both = torch.stack([parts.nan_to_num(nan=torch.inf, posinf=torch.inf), parts.isnan(), present])
            self.reduce([(None, both)], dist.ReduceOp.MAX)
            return torch.where(both[1] > 0, torch.nan, both[0]).to(norms.dtype), both[2] > 0, {}
        each = {i: of_each_rank(t, rank(), world_size()) for i, t in (own or {}).items()}
        both = torch.stack([parts**p, present.to(torch.float64)]) * self.shares
        self.reduce([(None, both), *each.items()])
        return (both[0] ** (1 / p)).to(norms.dtype), both[1] > 0, each

    def check_units(self) -> None:
        """Refuse what looks at units (rows, ...) where this rank cannot tell them.

        Raises:
            PolicyError: parts are cut from flattened layers.
        """
        if self.is_flat:
            raise PolicyError(_FLAT)

    def join_units(self, norms: dict[int, Tensor], dims: dict[int, tuple[int, ...]], p: float) -> dict[int, Tensor]:
        """The p-norms of whole units from those of this rank's parts.

        `norms[i]` are the norms of layer i over `dims[i]`, those kept with length 1 (no dims: of the whole layer).
        One all-reduce for all layers whose units are split over a group's ranks, none where there are no such layers.

        Raises:
            PolicyError: units are split over ranks in a way that cannot be told.
        """
        blocks = self._blocks(dims)
        sums = not math.isinf(p)
        whole = {i: self.shares.new_zeros((2, *block.shape)) for i, block in blocks.items()}
        for i, block in blocks.items():
            if i not in norms:
                continue  # no gradient on this rank
            part = norms[i].to(torch.float64)
            whole[i][0][block.place] = part**p * self.shares[i] if sums else part.nan_to_num(nan=0.0, posinf=torch.inf)
            whole[i][1][block.place] = part.isnan()
        joined = {}
        self.reduce([*whole.items()], dist.ReduceOp.SUM if sums else dist.ReduceOp.MAX)
        for i, both in whole.items():
            if i not in norms:
                continue
            values, bad = (half[blocks[i].place] for half in both)
            joined[i] = torch.where(bad > 0, torch.nan, values ** (1 / p) if sums else values).to(norms[i].dtype)
        return {**norms, **joined}

    def _blocks(self, dims: dict[int, tuple[int, ...]]) -> dict[int, _Block]:
        """This rank's place among the units of each layer that has units split over ranks."""
        key = tuple(dims.items())
        if key not in self._known_blocks:
            split = {i: over for i, over in dims.items() if _splits(self.params[i], over, self.cuts[i])}
            for i, over in dims.items():
                spread = self.spreads.get(id(self.params[i]))
                if spread is not None and spread.beside is not None and (0 in over or not over):
                    raise PolicyError(_BESIDE)
            self._known_blocks[key] = {i: _block(self.params[i], over) for i, over in split.items()}
        return self._known_blocks[key]


@without_autograd
def add_up(sums: Sums[T], sharding: Sharding | None) -> T:
    """What comes of a measurement, or of several `together`; adds up what they yield."""
    try:
        while True:
            parts = next(sums)
            if sharding is not None:
                sharding.reduce(parts)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


class _Block(NamedTuple):
    """Where the units of a part lie among those of the whole layer."""

    shape: tuple[int, ...]  # of the whole layer's unit norms: 1 in the dims that are normed over
    place: tuple[slice, ...]


def _splits(param: Any, dims: tuple[int, ...], cut: tuple[int, bool] | None) -> bool:
    """Whether the norm over `dims` (none: all) of a parameter, or of its slices, needs several ranks.

    Raises:
        PolicyError: it does, of units of a slice.
    """
    if not is_sharded(param):
        return False
    along, lacks = cut or (0, False)
    own = [d for d in range(param.dim()) if not (lacks and d == along)]  # the dimensions of the layer
    over = {own[d] for d in dims} or set(range(param.dim()))
    found = not over.isdisjoint(cut_dims(param))
    if found and dims and cut is not None:
        raise PolicyError(
            f"a policy that looks at units, of slices of a parameter of shape {tuple(param.shape)}: its units are "
            f"spread over ranks ({param.placements}); leave it out of split=, or out of the policy with only()"
        )
    return found


def _block(param: Any, dims: tuple[int, ...]) -> _Block:
    if not dims:
        return _Block((), ())
    over = {d % param.dim() for d in dims}
    shape = tuple(1 if d in over else n for d, n in enumerate(param.shape))
    place = tuple(slice(None) if d in over else here for d, here in enumerate(local_block(param)))
    return _Block(shape, place)


def _ranks(param: Any, spread: Spread | None) -> frozenset[int]:
    """The ranks that hold the parts of this parameter together; none of a plain one."""
    if is_sharded(param):
        return frozenset(param.device_mesh.mesh.flatten().tolist())
    return frozenset() if spread is None else spread.ranks


def _copies(param: Any) -> int:
    """How many of the ranks of its mesh hold the same part of `param`."""
    if not is_sharded(param):
        return 1
    sizes = zip(param.placements, param.device_mesh.shape, strict=True)
    return math.prod(int(n) for placement, n in sizes if placement.is_replicate())
