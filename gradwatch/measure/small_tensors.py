"""Small tensors that are multiplied together, each by a number of its own: one launch for many instead of one for each.

Legend: L layers; B blocks of a few elements, in which the small layers lie one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

SMALL = 2**16  # elements up to which a launch of its own costs more than the work: a chunk of torch's own kernels
FEW = 3  # tensors from which it pays
ROOM = 2**22  # elements that tensors which are multiplied together have at most: 16 MiB of float32
BLOCK = 64  # elements; each tensor begins with a block of its own


class SmallTensors:
    """Small layers, and places for tensors like their weights in a `room`, `[>= B, BLOCK]`. A kernel for many tensors
    takes only factors that are as large as they: the room is where these are, so that a step allocates nothing.
    """

    def __init__(self, weights: Mapping[int, Tensor], room: Tensor) -> None:
        blocks = [*map(_blocks, weights.values())]
        filled = [
            torch.full((n,), i, dtype=torch.int64, device=room.device) for i, n in zip(weights, blocks, strict=True)
        ]
        self.layers = torch.cat(filled)  # [B] of which layer each block is
        self.room = room[: sum(blocks)]
        self.factors = torch.empty(sum(blocks), dtype=torch.float32, device=room.device)  # [B] of halves
        parts = torch.split(self.room.view(-1), [n * BLOCK for n in blocks])
        self.places = {i: p[: w.numel()].view(w.shape) for (i, w), p in zip(weights.items(), parts, strict=True)}

    def scale_(self, tensors: Mapping[int, Tensor], coef: Tensor) -> list[int]:
        """Multiply those of the tensors, by layer, that there is room for by their number of `coef`, `[L]`, each
        product rounded once; returns which these are.
        """
        layers = [i for i, place in self.places.items() if i in tensors and _are_alike(tensors[i], place)]
        if len(layers) < FEW:
            return []
        own, places = [tensors[i] for i in layers], [self.places[i] for i in layers]
        if coef.dtype is self.room.dtype:
            torch.index_select(coef.unsqueeze(1).expand(-1, BLOCK), 0, self.layers, out=self.room)
            torch._foreach_mul_(own, places)
        else:  # halves: a kernel for many tensors takes no factors of another dtype
            torch._foreach_copy_(places, own)
            self.room.mul_(torch.index_select(coef, 0, self.layers, out=self.factors).unsqueeze(1))
            torch._foreach_copy_(own, places)
        return layers


def _are_alike(tensor: Tensor, place: Tensor) -> bool:
    return tensor.shape == place.shape and tensor.is_contiguous()


def small_tensors(weights: Mapping[int, Tensor]) -> list[SmallTensors]:
    """The small ones of these weights, by layer, which are of one device and dtype: as many together as have room."""
    together: list[dict[int, Tensor]] = []
    blocks: list[int] = []  # of each of them
    for i, w in weights.items():
        if 0 < w.numel() <= SMALL:
            if not blocks or blocks[-1] + _blocks(w) > ROOM // BLOCK:
                together.append({})
                blocks.append(0)
            together[-1][i] = w
            blocks[-1] += _blocks(w)
    if sum(map(len, together)) < FEW:
        return []
    like = next(iter(together[0].values()))
    room = torch.empty(max(blocks), BLOCK, dtype=like.dtype, device=like.device)  # one after the other fills it
    return [SmallTensors(each, room) for each in together]


def _blocks(tensor: Tensor) -> int:
    return -(-tensor.numel() // BLOCK)
