"""The largest singular value of weights, by power iteration that goes on from one measurement to the next.

Legend: L layers, in the order of the Layout. A weight W is a matrix, its first dimension the rows; v is the estimate of
its first right singular vector.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from gradwatch.errors import WatchError
from gradwatch.measure.collectives import Sums
from gradwatch.measure.distributed import is_sharded, local
from gradwatch.measure.exact import exact_dtype
from gradwatch.measure.layout import Layout, at
from gradwatch.measure.local_block import cut_dims, local_block
from gradwatch.measure.slices import few, fits

FIRST, AGAIN = 30, 2  # iterations of the first measurement, and of each later one: weights move little in between


class SingularValues:
    """Of the matrices whose names fit one of the patterns: the largest singular value, from below, and what of the
    weight norm it leaves to the others.

    Raises:
        WatchError: no matrix fits, or one is cut over ranks in a way that is not known here.
    """

    def __init__(self, layout: Layout, patterns: Sequence[str]) -> None:
        self.layout = layout
        self.places = [
            i
            for i, name in enumerate(layout.names)
            if is_matrix(layout, i) and any(fits(name, each) for each in patterns)
        ]
        if not self.places:
            raise WatchError(
                f"singular_values={tuple(patterns)!r:.200} fits no matrix: wanted patterns of layers of two or more "
                f"dimensions; the layers are {few(layout.names)}"
            )
        self._iteration = PowerIteration(layout, self.places)
        self._vectors: list[Tensor] = []  # v of each, of length 1

    def measure(self) -> Sums[Tensor]:
        """`[L]`, NaN for layers that are not asked for."""
        times = AGAIN if self._vectors else FIRST
        vectors = self._vectors or [self._iteration.start(i) for i in self.places]
        self._vectors, values = yield from self._iteration.advance(vectors, times)
        sigma = self.layout.full((len(self.layout.names),), math.nan)
        where = self.layout.constant("matrices", lambda: self.layout.numbers(self.places, torch.int64))
        found = torch.stack([at(self.layout.device, value) for value in values]).to(sigma.dtype)
        return sigma.index_copy_(0, where, found)


class PowerIteration:
    """Estimates of the first right singular vector v of the matrices at these `places`, of length 1.

    Raises:
        WatchError: one is cut over ranks in a way that is not known here.
    """

    def __init__(self, layout: Layout, places: Sequence[int]) -> None:
        self.layout, self.places = layout, places
        self._blocks = {i: _block(layout, i) for i in places}

    def advance(self, vectors: list[Tensor], times: int) -> Sums[tuple[list[Tensor], list[Tensor]]]:
        """The vectors after so many iterations, and the largest singular values by the last, 0-d each.

        sigma = |W^T W v|^(1/2) with |v| = 1 is at most the true value, and grows towards it.
        """
        norms: list[Tensor] = []
        for _ in range(times if vectors else 0):
            products = yield from self._squared(vectors)
            norms = list(torch._foreach_norm(products))
            # what is 0 or not finite leaves v as it was, for weights that become something else: 0 * n + n is
            # above 0 where n is neither, in kernels that all share
            sound = torch._foreach_add(torch._foreach_mul(norms, 0.0), norms)
            pairs = zip(torch._foreach_div(products, norms), vectors, sound, strict=True)
            vectors = [torch.where(ok > 0, new, old) for new, old, ok in pairs]
        return vectors, [norm.sqrt() for norm in norms]

    def start(self, place: int) -> Tensor:
        """A fixed vector without a direction of its own, that costs the training no random number."""
        weight = self.layout.params[place]
        device, columns = local(weight).device, self._size(place, rows=False)
        wave = torch.arange(1, columns + 1, dtype=exact_dtype(device), device=device).square().sin()
        start: Tensor = wave / torch.linalg.vector_norm(wave)
        return start.to(torch.promote_types(weight.dtype, torch.float32))

    def _squared(self, vectors: list[Tensor]) -> Sums[list[Tensor]]:
        """W^T W v of each. Of weights that are spread over ranks each adds what its rows make: one sum over ranks, and
        one before it where a row lies on several of them.
        """
        spread = self.layout.sharding
        if spread is None:
            return self._times(self._times(vectors, transposed=False), transposed=True)
        blocks = [self._blocks[i] for i in self.places]
        parts = self._times([v[own.columns] for v, own in zip(vectors, blocks, strict=True)], transposed=False)
        rows = {i: self._whole(i, part, rows=True) for i, part in zip(self.places, parts, strict=True)
                if self._blocks[i].cuts_rows}  # fmt: skip
        if rows:
            yield [*rows.items()]
            parts = [
                rows[i][own.rows].to(part.dtype) if i in rows else part
                for i, part, own in zip(self.places, parts, blocks, strict=True)
            ]
        parts = self._times(parts, transposed=True)
        whole = [(i, self._whole(i, part, rows=False)) for i, part in zip(self.places, parts, strict=True)]
        yield [*whole]
        return [each.to(v.dtype) for (_, each), v in zip(whole, vectors, strict=True)]

    def _whole(self, place: int, part: Tensor, rows: bool) -> Tensor:
        """What this rank adds to a product, float64: its part, where that belongs."""
        out = part.new_zeros(self._size(place, rows), dtype=torch.float64)
        assert self.layout.sharding is not None
        own = self._blocks[place]
        out[own.rows if rows else own.columns] = part * self.layout.sharding.shares[place]
        return out

    def _times(self, vectors: list[Tensor], transposed: bool) -> list[Tensor]:
        """W v of each, or W^T v, of what this rank has of W; of the slices of one tensor together."""
        out: list[Tensor] = []
        weights, given = self.layout.weights(), iter(vectors)
        for _, several in groupby(self.places, key=lambda place: id(self.layout.params[place])):
            matrices = [weights[i] for i in several]
            vs = [next(given) for _ in matrices]
            with torch.autocast(self.layout.device.type, enabled=False):
                batch = _batch(matrices) if matrices[0].dtype == vs[0].dtype else None
                if batch is not None:
                    out += torch.bmm(batch.mT if transposed else batch, torch.stack(vs)[..., None]).squeeze(2).unbind()
                    continue
                for matrix, v in zip(matrices, vs, strict=True):
                    whole = matrix.flatten(1).to(v.dtype)  # of half precision one layer's copy at a time
                    out.append(torch.mv(whole.T if transposed else whole, v))
        return out

    def _size(self, place: int, rows: bool) -> int:
        shape = self.layout.shapes[place]
        return shape[0] if rows else math.prod(shape[1:])


def _batch(matrices: Sequence[Tensor]) -> Tensor | None:
    """Slices of one tensor that are matrices `[R, C]` at even distances from each other, as `[N, R, C]`; a view."""
    first = matrices[0]
    places = [m.storage_offset() for m in matrices]
    if len(places) < 2 or first.dim() != 2 or len({b - a for a, b in pairwise(places)}) > 1:
        return None
    return first.as_strided((len(places), *first.shape), (places[1] - places[0], *first.stride()))


def is_matrix(layout: Layout, place: int) -> bool:
    """Whether a layer `[out, in, ...]` has a largest singular value, as a matrix of `out` rows."""
    shape = layout.shapes[place]
    return len(shape) > 1 and math.prod(shape) > 0 and not layout.params[place].is_complex()


class _Block(NamedTuple):
    """What of a matrix this rank holds."""

    rows: slice
    columns: slice
    cuts_rows: bool = False  # whether some rank holds a part of a row


def _block(layout: Layout, place: int) -> _Block:
    name, param = layout.names[place], cast("Any", layout.params[place])
    if id(param) in layout.spreads:
        raise WatchError(
            f"the largest singular value of {name}: FullyShardedDataParallel, DeepSpeed's ZeRO and experts= spread a "
            "layer in a way that hides its rows; leave it out, or use fully_shard (FSDP2)"
        )
    if not is_sharded(param):
        return _Block(slice(None), slice(None))
    if name not in layout.whole:
        raise WatchError(
            f"the largest singular value of {name}: it is a slice of a tensor that is cut over ranks; leave it out"
        )
    rows, *others = local_block(param)
    if param.dim() > 2 and others != [slice(0, size) for size in param.shape[1:]]:
        raise WatchError(
            f"the largest singular value of {name}: it is cut over ranks along another dimension than its first; "
            "leave it out"
        )
    inner = math.prod(param.shape[2:])
    return _Block(rows, slice(others[0].start * inner, others[0].stop * inner), any(cut_dims(param)))
