"""Layers inside one tensor: an expert, a head or a scanned layer is a slice of a parameter, and a layer of its own."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradwatch.errors import WatchError
from gradwatch.measure.distributed import is_sharded
from gradwatch.measure.local_block import cut_dims, local_block

Split = Mapping[str, int | tuple[int, int]]  # by pattern: a dimension; or a dimension and how many equal pieces it has
MOST = 4096  # slices of one tensor
_SLICE = re.compile(r"\[(\d+)\]$")


class Cut(NamedTuple):
    """How one parameter is cut along `dim` into slices of one shape."""

    dim: int
    shape: tuple[int, ...]
    is_index: bool  # whether a slice is one index of `dim`, and lacks it: an expert of `[E, N, M]` is `[N, M]`
    lengths: tuple[int, ...]  # of each slice, how much of it this rank holds along `dim`

    def slices(self, part: Tensor) -> Sequence[Tensor]:
        """The slices of the parameter's part on this rank, or of what is shaped like it; views, empty of other ranks'.

        One call takes them all: a hundred experts in each of many tensors are asked for on every step.
        """
        if part.dim() <= self.dim or part.shape[self.dim] != sum(self.lengths):
            raise WatchError(f"split= cannot cut a sparse gradient, {tuple(part.shape)}: leave its layer out of split=")
        if not self.is_index:
            return torch.split(part, [*self.lengths], self.dim)
        held = part.unbind(self.dim)
        if len(held) == len(self.lengths):
            return held
        near, own = min(self.dim, part.dim() - 2), iter(held)
        nothing = part.narrow(self.dim, 0, 0).flatten(near, near + 1)
        return [next(own) if length else nothing for length in self.lengths]


def cuts(params: Mapping[str, Tensor], split: Split, spreads: Collection[int] = ()) -> dict[str, Cut]:
    """How each parameter is cut whose name fits a pattern, the first counts.

    Raises:
        WatchError: one has not the dimension, cannot be cut so, or is spread over ranks in a way that cannot be cut,
            as those of the `spreads`, by id, are.
    """
    asked = {name: next((each for each in split if fnmatchcase(name, each)), None) for name in params}
    hidden = next(
        (name for name, pattern in asked.items() if pattern is not None and id(params[name]) in spreads), None
    )
    if hidden is not None:
        raise WatchError(
            f"split= cuts {hidden}, of which FullyShardedDataParallel, DeepSpeed's ZeRO or experts= give each rank a "
            "part whose place is not known: leave it out of split=, or use fully_shard (FSDP2)"
        )
    found = {name: _cut(name, params[name], split[pattern]) for name, pattern in asked.items() if pattern is not None}
    return {name: cut for name, cut in found.items() if cut.lengths}


def _cut(name: str, param: Tensor, how: int | tuple[int, int]) -> Cut:
    shape = tuple(param.shape)
    what = f"split= cuts {name}, of shape {shape}, along dimension {how}"
    given, pieces = (how, None) if isinstance(how, int) else how
    if not -len(shape) <= given < len(shape):
        raise WatchError(f"{what}, which it has not: wanted a pattern that leaves it out, or another dimension")
    dim = given % len(shape)
    size = shape[dim]
    pieces = size if pieces is None else pieces
    if pieces > MOST:
        raise WatchError(f"{what} into {pieces:,} layers: wanted at most {MOST:,}; of an embedding rows= asks less")
    if pieces < 1 or size % pieces:
        raise WatchError(f"{what}, whose {size:,} are no {pieces:,} equal pieces")
    length = size // pieces
    is_index = isinstance(how, int) and len(shape) > 1
    rest = shape[:dim] + (() if is_index else (length,)) + shape[dim + 1 :]
    return Cut(dim, rest, is_index, _held(what, param, dim, [(i * length, (i + 1) * length) for i in range(pieces)]))


def _held(what: str, param: Any, dim: int, slices: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """How much of each slice, from its first index to its last, is in the part of the parameter on this rank."""
    first, last = 0, param.shape[dim]
    if is_sharded(param):
        if cut_dims(param).count(dim) > 1:
            raise WatchError(
                f"{what}, which is spread over ranks twice (FSDP2 beside tensor parallelism): a rank's part of it is "
                "not of consecutive slices; leave it out of split="
            )
        here = local_block(param)[dim]
        first, last = here.start, here.stop
    return tuple(max(0, min(last, end) - max(first, begin)) for begin, end in slices)


def fits(name: str, pattern: str) -> bool:
    """Whether a layer's name fits a shell-style pattern (`*` crosses dots). A slice, `w[7]`, also fits that of its
    tensor, `w`, and the pattern that ends as it does.
    """
    if fnmatchcase(name, pattern):
        return True
    found = _SLICE.search(name)
    literal = _SLICE.sub(r"[[]\1]", pattern)
    return found is not None and (fnmatchcase(name[: found.start()], pattern) or fnmatchcase(name, literal))


def few(names: Sequence[str]) -> str:
    """The first of these names, for an error."""
    return f"{', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
