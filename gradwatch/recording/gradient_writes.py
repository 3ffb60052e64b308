"""Whether gradients are new in each step, or were written to where they stood: what nobody zeroes adds up."""

from __future__ import annotations

import math
from weakref import ref

from torch import Tensor
from torch.optim import Optimizer

from gradwatch.measure.distributed import world_size
from gradwatch.measure.looking import Looking

MOST = 100  # parameters that are asked for the first gradient


class GradientWrites:
    """Counts how often the loop wrote to an optimizer's first gradient since its last step, by torch's own counter.

    A tensor's `_version` grows by one with each operation in place: a backward that adds to it, a `zero_()`, a clip.
    Across ranks, whose communication writes as well, nothing is counted.
    """

    def __init__(self, looking: Looking) -> None:
        self._looking, self._counts = looking, world_size() == 1
        self._last: dict[Optimizer, tuple[ref[Tensor], int]] = {}

    def since(self, optimizer: Optimizer) -> float:
        """How often since `note`: 0 where the gradient is another tensor; NaN where that is not known."""
        with self._looking.at("grad_writes"):
            last = self._last.pop(optimizer, None)
            if last is None:
                return math.nan
            was, version = last
            grad = _first(optimizer)
            return math.nan if grad is None else float(grad._version - version) if was() is grad else 0.0
        return math.nan

    def note(self, optimizer: Optimizer) -> None:
        """From here on the loop has the gradients."""
        with self._looking.at("grad_writes"):
            grad = _first(optimizer) if self._counts else None
            if grad is not None:
                self._last[optimizer] = ref(grad), grad._version


def _first(optimizer: Optimizer) -> Tensor | None:
    params = (p for group in optimizer.param_groups for p in group["params"])
    return next((p.grad for p, _ in zip(params, range(MOST), strict=False) if p.grad is not None), None)
