"""Tensors spread over processes (FSDP2, HSDP, tensor parallel): what this rank holds, and how ranks add up their parts.

Legend: L layers, in the order of the Layout. A collective always carries a vector of fixed length, whatever a rank
holds or lacks: a rank that left one out would hang the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from gradwatch.measure.autograd import without_autograd


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


class Sharding:
    """How L parameters, some of them DTensors, are spread over the ranks of one group.

    `shares[i]` is 1 / the number of ranks that hold the same part of layer i: sums over ranks count each part once.
    A plain tensor beside DTensors is a copy on every rank.
    """

    def __init__(self, params: Sequence[Tensor], device: torch.device) -> None:
        self.params = params
        self.group, size = _group([p.device_mesh for p in params if is_sharded(p)])  # type: ignore[attr-defined]
        shares = [1 / _copies(p, size) for p in params]
        held = [share * local(p).numel() / max(p.numel(), 1) for p, share in zip(params, shares, strict=True)]
        self.shares = torch.tensor(shares, dtype=torch.float64, device=device)
        self.held = torch.tensor(held, dtype=torch.float64, device=device)
        self._known_blocks: dict[object, dict[int, _Block]] = {}

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

    def add(self, parts: Tensor) -> Tensor:
        """The sum over ranks of `[..., L]` float64, every part counted once: one all-reduce."""
        whole = parts * self.shares
        dist.all_reduce(whole, group=self.group)
        return whole

    def mean(self, values: Tensor) -> Tensor:
        """The mean over all elements of each layer, `[L]`, from the mean over those on each rank. One all-reduce."""
        whole = values * self.held
        dist.all_reduce(whole, group=self.group)
        return whole.to(values.dtype)

    def join(self, norms: Tensor, present: Tensor, p: float) -> tuple[Tensor, Tensor]:
        """The p-norms `[L]` of whole layers from those of this rank's parts, and which layers any rank has: `[L]` bool.

        One all-reduce. Sums are float64: the square of a float32 norm may be out of float32's range.
        """
        parts = norms.to(torch.float64)
        if math.isinf(p):
            # A maximum over ranks may lose a NaN: it travels as a flag
            both = torch.stack([parts.nan_to_num(nan=torch.inf, posinf=torch.inf), parts.isnan(), present])
            dist.all_reduce(both, dist.ReduceOp.MAX, group=self.group)
            return torch.where(both[1] > 0, torch.nan, both[0]).to(norms.dtype), both[2] > 0
        both = self.add(torch.stack([parts**p, present.to(torch.float64)]))
        return (both[0] ** (1 / p)).to(norms.dtype), both[1] > 0

    def join_units(self, norms: dict[int, Tensor], dims: dict[int, tuple[int, ...]], p: float) -> dict[int, Tensor]:
        """The p-norms of whole units from those of this rank's parts.

        `norms[i]` are the norms of layer i over `dims[i]`, those kept with length 1 (no dims: of the whole layer).
        One all-reduce for all layers whose units are split over ranks, none where there are no such layers.
        """
        blocks = self._blocks(dims)
        if not blocks:
            return norms
        sums = not math.isinf(p)
        whole = {i: self.shares.new_zeros((2, *block.shape)) for i, block in blocks.items()}
        for i, block in blocks.items():
            if i not in norms:
                continue  # no gradient on this rank
            part = norms[i].to(torch.float64)
            whole[i][0][block.place] = part**p * self.shares[i] if sums else part.nan_to_num(nan=0.0, posinf=torch.inf)
            whole[i][1][block.place] = part.isnan()
        flat = torch.cat([w.flatten() for w in whole.values()])
        dist.all_reduce(flat, dist.ReduceOp.SUM if sums else dist.ReduceOp.MAX, group=self.group)
        joined = {}
        for (i, block), both in zip(
            blocks.items(), torch.split(flat, [w.numel() for w in whole.values()]), strict=True
        ):
            if i not in norms:
                continue
            values, bad = (half.view(block.shape)[block.place] for half in both.chunk(2))
            joined[i] = torch.where(bad > 0, torch.nan, values ** (1 / p) if sums else values).to(norms[i].dtype)
        return {**norms, **joined}

    def _blocks(self, dims: dict[int, tuple[int, ...]]) -> dict[int, _Block]:
        """This rank's place among the units of each layer that has units split over ranks."""
        key = tuple(dims.items())
        if key not in self._known_blocks:
            split = {i: over for i, over in dims.items() if _splits(self.params[i], over)}
            self._known_blocks[key] = {i: _block(self.params[i], over) for i, over in split.items()}
        return self._known_blocks[key]


class _Block(NamedTuple):
    """Where the units of a part lie among those of the whole layer."""

    shape: tuple[int, ...]  # of the whole layer's unit norms: 1 in the dims that are normed over
    place: tuple[slice, ...]


def _splits(param: Tensor, dims: tuple[int, ...]) -> bool:
    """Whether the norm over `dims` (none: all) needs several ranks."""
    if not is_sharded(param):
        return False
    over = {d % param.dim() for d in dims} or set(range(param.dim()))
    sharded: Any = param
    return any(
        placement.is_shard() and placement.dim in over and size > 1
        for placement, size in zip(sharded.placements, sharded.device_mesh.shape, strict=True)
    )


def _block(param: Any, dims: tuple[int, ...]) -> _Block:
    if not dims:
        return _Block((), ())
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    held, start = compute_local_shape_and_global_offset(param.shape, param.device_mesh, param.placements)
    over = {d % param.dim() for d in dims}
    shape = tuple(1 if d in over else n for d, n in enumerate(param.shape))
    place = tuple(
        slice(None) if d in over else slice(s, s + n) for d, (s, n) in enumerate(zip(start, held, strict=True))
    )
    return _Block(shape, place)


def _group(meshes: Sequence[Any]) -> tuple[Any, int]:
    """The process group that holds all of these meshes' ranks, None for the default one, and its size.

    Not simply all processes: under pipeline parallelism each stage has a mesh, and layers, of its own.
    """
    widest = max(meshes, key=lambda mesh: mesh.size())
    if any(not _ranks(mesh) <= _ranks(widest) for mesh in meshes):
        widest = widest._get_root_mesh()
    ranks = _ranks(widest)
    if len(ranks) == dist.get_world_size():
        return None, len(ranks)
    if widest.ndim == 1:
        return widest.get_group(), len(ranks)
    return dist.new_group(sorted(ranks), use_local_synchronization=True), len(ranks)


def _ranks(mesh: Any) -> set[int]:
    return set(mesh.mesh.flatten().tolist())


def _copies(param: Tensor, size: int) -> int:
    """How many of `size` ranks hold the same part of `param`."""
    if not is_sharded(param):
        return size
    sharded: Any = param
    sizes = zip(sharded.placements, sharded.device_mesh.shape, strict=True)
    within = math.prod(int(n) for placement, n in sizes if placement.is_replicate())
    return within * (size // int(sharded.device_mesh.size()))
