"""Where the units of a module's outputs lie: along which dimension, and which of them this rank has.

Legend: U units.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn

from gradwatch.measure.distributed import is_sharded
from gradwatch.measure.local_block import local_block

_CHANNELS = ("Conv", "BatchNorm", "GroupNorm", "InstanceNorm", "SyncBatchNorm", "LazyConv", "LazyBatchNorm")


class Units(NamedTuple):
    """Of a module's outputs: `dim`, the dimension of the units where it is known, -1 for the last; and where they are
    made by the rows of a weight that is spread over ranks, `weight`.
    """

    dim: int | None = None
    weight: Any = None

    def along(self, y: Tensor) -> int:
        """The dimension of the units: as the layer before says, else the channels of an image, else the last."""
        dim = self.dim if self.dim is not None else (1 if y.ndim > 3 else -1)
        return y.ndim - 1 if dim < 0 or dim >= y.ndim else dim

    def held(self, count: int) -> tuple[int, int]:
        """Of `count` units on this rank, which of all the first is, and how many there are: tensor parallelism gives
        each rank some of them.
        """
        every = count if self.weight is None else int(self.weight.shape[0])
        if every <= count or every % count:
            return 0, count
        return local_block(self.weight)[0].start // count * count, every


def units_of(model: nn.Module) -> dict[int, Units]:
    """Where each module's units lie, by its id: as the last module before it that has weights gives them out."""
    found: dict[int, Units] = {}
    units: Units | None = None
    for module in model.modules():
        if own := dict(module.named_parameters(recurse=False)):
            weight = None if isinstance(module, nn.Embedding) else own.get("weight")
            spread = weight if isinstance(weight, Tensor) and is_sharded(weight) else None
            units = Units(1 if type(module).__name__.startswith(_CHANNELS) else -1, spread)
        if units is not None:
            found[id(module)] = units
    return found
