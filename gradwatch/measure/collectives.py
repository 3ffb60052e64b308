"""Several tensors in one collective: what a message costs is mostly that there is one.

Legend: L layers, W ranks.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from gradwatch.measure.looking import Looking

T = TypeVar("T")
# What ranks add up, float64: a tensor of any shape, of the layer at this place, or `[..., L]` of all layers (None).
Part: TypeAlias = tuple[int | None, Tensor]
# A measurement: it yields the parts that it has here, and goes on when they have been added up over ranks, in place.
# Where nothing is spread it yields none. All ranks yield the same.
Sums: TypeAlias = Generator[list[Part], None, T]

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


def together(asked: Mapping[str, Sums[T]], looking: Looking) -> Sums[dict[str, T]]:
    """What comes of several measurements, by name, without those that raised: what each of them adds up next is added
    up together, so that they take as many all-reduces as the longest of them alone.
    """
    found: dict[str, T] = {}
    running = dict(asked)
    while running:
        parts: list[Part] = []
        for name, sums in [*running.items()]:
            del running[name]
            with looking.at(name):
                try:
                    parts += next(sums)
                    running[name] = sums
                except StopIteration as end:
                    found[name] = end.value
        if running:
            yield parts
    return found


def add_and_compare(
    sums: Sequence[Tensor], largest: Sequence[Tensor], marks: Tensor, group: Any, place: int | None
) -> Sums[Tensor]:
    """Replace the `sums`, float64, by those over ranks, and the `largest` values, none of them NaN, by the largest of
    all; returns what each rank has of the `marks`, `[W, ...]` float64.

    One all-reduce over the `group`, which others share where a layer at a `place` is spread over it: each rank adds
    its largest values in a place of its own. With so many ranks that these places are more than `PLACES` numbers, a
    second one takes the maximum.
    """
    count, rank = dist.get_world_size(group), dist.get_rank(group)
    most = torch.cat([marks, *largest]) if count * sum(map(len, largest)) <= PLACES else marks
    each = of_each_rank(most, rank, count)
    if place is None:
        all_reduce([*sums, each], dist.ReduceOp.SUM, group)
    else:
        yield [(place, t) for t in (*sums, each)]
    if most is marks:
        all_reduce(largest, dist.ReduceOp.MAX, group)
    else:
        found = torch.split(each[:, len(marks) :].amax(dim=0), [len(t) for t in largest])
        for t, part in zip(largest, found, strict=True):
            t.copy_(part)
    return each[:, : len(marks)]
