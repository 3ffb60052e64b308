"""Where this rank's part of a parameter lies that is spread over ranks as a DTensor."""

from __future__ import annotations

from typing import Any


def local_block(param: Any) -> tuple[slice, ...]:
    """Of each dimension, which indices of the whole are here."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    held, start = compute_local_shape_and_global_offset(param.shape, param.device_mesh, param.placements)
    return tuple(slice(s, s + n) for s, n in zip(start, held, strict=True))


def cut_dims(param: Any) -> list[int]:
    """The dimensions that it is cut along, twice one that is cut twice: by FSDP2 beside tensor parallelism."""
    over = zip(param.placements, param.device_mesh.shape, strict=True)
    return [placement.dim % param.dim() for placement, size in over if placement.is_shard() and size > 1]
