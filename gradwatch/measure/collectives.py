"""Several tensors in one collective: what a message costs is mostly that there is one.

Legend: W ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

PLACES = 1 << 20  # numbers that the largest values of all ranks may take together: 8 MiB


def all_reduce(tensors: Sequence[Tensor], op: Any, group: Any) -> None:
    """Reduce tensors of one dtype in place, by one collective; by none where there are none."""
    if len(tensors) > 1:
        together = torch.cat([t.flatten() for t in tensors])
        dist.all_reduce(together, op, group=group)
        for t, part in zip(tensors, torch.split(together, [t.numel() for t in tensors]), strict=True):
            t.copy_(part.view(t.shape))
    elif tensors:
        dist.all_reduce(tensors[0], op, group=group)


def of_each_rank(own: Tensor, rank: int, count: int) -> Tensor:
    """`[W, ...]` float64 with what is this rank's `own` in its place and 0 in the others': the sum over ranks has what
    each of them has, exactly: x + 0 is x, also of inf and NaN.
    """
    whole = own.new_zeros((count, *own.shape), dtype=torch.float64)
    whole[rank] = own
    return whole


def add_and_compare(sums: Sequence[Tensor], largest: Sequence[Tensor], marks: Tensor, group: Any) -> Tensor:
    """Replace the `sums`, float64, by those over ranks, and the `largest` values, none of them NaN, by the largest of
    all; returns what each rank has of the `marks`, `[W, ...]` float64.

    One all-reduce: each rank adds its largest values in a place of its own. With so many ranks that these places are
    more than `PLACES` numbers, a second one takes the maximum.
    """
    count, rank = dist.get_world_size(group), dist.get_rank(group)
    most = torch.cat([marks, *largest]) if count * sum(map(len, largest)) <= PLACES else marks
    each = of_each_rank(most, rank, count)
    all_reduce([*sums, each], dist.ReduceOp.SUM, group)
    if most is marks:
        all_reduce(largest, dist.ReduceOp.MAX, group)
    else:
        found = torch.split(each[:, len(marks) :].amax(dim=0), [len(t) for t in largest])
        for t, part in zip(largest, found, strict=True):
            t.copy_(part)
    return each[:, : len(marks)]
