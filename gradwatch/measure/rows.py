"""Of tensors whose rows are things of their own, as an embedding's are: the row with the largest gradient.

Legend: L layers, in the order of the Layout; R of them whose rows are looked at; W ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradwatch.errors import WatchError
from gradwatch.measure.distributed import is_sharded
from gradwatch.measure.local_block import cut_dims, local_block
from gradwatch.measure.slices import fits

if TYPE_CHECKING:
    from gradwatch.measure.layout import Layout

QUANTITIES = ("row_share", "row_index")
MOST = 2**24  # rows: their numbers are recorded as float32


def first_rows(layout: Layout, patterns: Sequence[str]) -> dict[int, int]:
    """The places of the layers of two and more dimensions that fit a pattern, and which row is the first on this rank.

    Raises:
        WatchError: a row of one is spread over ranks, or it has too many.
    """
    hidden = {place for place, p in enumerate(layout.params) if id(p) in layout.spreads}
    return {
        place: _first(name, shape, layout.params[place], name in layout.whole, place in hidden)
        for place, (name, shape) in enumerate(zip(layout.names, layout.shapes, strict=True))
        if len(shape) > 1 and any(fits(name, pattern) for pattern in patterns)
    }


def _first(name: str, shape: Sequence[int], param: Any, is_whole: bool, is_hidden: bool) -> int:
    if shape[0] > MOST:
        raise WatchError(f"rows=: {name} has {shape[0]:,} rows, and at most {MOST:,} can be told apart: leave it out")
    if is_hidden:
        raise WatchError(
            f"rows=: FullyShardedDataParallel, DeepSpeed's ZeRO or experts= hide which rows of {name} are here: leave "
            "it out"
        )
    if not is_sharded(param):
        return 0
    cut = cut_dims(param)
    if not is_whole or any(cut) or len(cut) > 1:
        what = "its rows are" if is_whole else "it is a slice of a tensor that is"
        raise WatchError(f"rows=: {name}: {what} spread over ranks as {param.placements}: leave it out")
    return int(local_block(param)[0].start)


class LargestRows:
    """What the norm pass of one step finds: `norms[i]` are those of the rows of layer i that this rank holds."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.norms: dict[int, Tensor] = {}

    def pairs(self) -> dict[int, Tensor]:
        """Of each layer the norm and the number of the largest row on this rank, `[2]`."""
        layout = self.layout
        # Over ranks a smaller one than any other's; of one process there is none: it has no gradient, or one that is
        # sparse in more than its rows
        nothing = layout.constant("no row", lambda: layout.full((2,), math.nan if layout.sharding is None else 0.0))
        return {i: self._largest(i) if i in self.norms else nothing for i in layout.first_rows}

    def fields(self, norms: Tensor, pairs: dict[int, Tensor]) -> list[Tensor]:
        """`QUANTITIES`, `[L]` each, NaN of other layers: of the largest row the norm as a share of the layer's, of
        which the `norms` are `[L]`, and its number. `pairs` are `[2]`, under sharding `[W, 2]` of each rank.
        """
        layout, found = self.layout, pairs
        if layout.sharding is not None:
            found = {i: _largest_of(each).to(layout.dtype) for i, each in pairs.items()}
        out = layout.constant("no rows", lambda: layout.full((2, len(layout.names)), math.nan))
        if found:
            norm, number = torch.stack([*found.values()]).unbind(dim=1)
            places = layout.constant("rows", lambda: layout.numbers([*found], torch.int64))
            share = norm / norms.index_select(0, places)
            out = out.index_copy(1, places, torch.stack([share, number]))
        return [*out.unbind()]

    def _largest(self, place: int) -> Tensor:
        """The largest norm of a row on this rank, and the number of that row in the whole tensor, `[2]`."""
        layout = self.layout
        norm, number = self.norms[place].max(dim=0)  # NaN is larger than all
        grad = layout.params[place].grad
        if grad is not None and grad.is_sparse and layout.names[place] in layout.whole:  # of the rows that it has
            number = grad.coalesce().indices()[0].index_select(0, number.view(1)).view(())
        pair = torch.stack([norm.to(layout.dtype), (number + layout.first_rows[place]).to(layout.dtype)])
        return pair.to(layout.device, non_blocking=layout.device.type != "cpu")


def _largest_of(pairs: Tensor) -> Tensor:
    """The pair `[2]` with the largest norm, of `[W, 2]`."""
    return pairs.index_select(0, pairs[:, 0].argmax(dim=0, keepdim=True)).squeeze(0)
