"""Whether gradients are new in each step, or were written to where they stood: what nobody zeroes adds up."""

from __future__ import annotations

import math
from itertools import islice
from weakref import ref

from torch import Tensor
from torch.optim import Optimizer

from gradwatch.measure.distributed import world_size
from gradwatch.measure.looking import Looking
from gradwatch.measure.writes import writes

MOST = 100  # parameters that are asked for the first gradient


def first_with_gradient(optimizer: Optimizer) -> Tensor | None:
    """The first of its parameters that has a gradient, of as many as are asked for it."""
    params = (p for group in optimizer.param_groups for p in group["params"])
    return next((p for p in islice(params, MOST) if p.grad is not None), None)


class GradientWrites:
    """Counts how often the loop wrote to an optimizer's first gradient since a step, as torch counts it: a
    backward that adds to it, a `zero_()`, a clip.

    Across ranks, whose communication writes as well, nothing is counted.
    """

    def __init__(self, looking: Looking) -> None:
        self._looking, self._counts = looking, world_size() == 1
        self._last: dict[Optimizer, tuple[Tensor, ref[Tensor], int]] = {}  # a parameter, its gradient, the counter

    def since(self, optimizer: Optimizer) -> float:
        """How often since `note`: 0 where the gradient is another tensor; NaN where that is not known."""
        if optimizer not in self._last:
            return math.nan
        param, was, version = self._last.pop(optimizer)
        grad = param.grad
        if grad is None:
            return math.nan
        return writes(grad) - version if was() is grad else 0

    def note(self, optimizer: Optimizer) -> None:
        """From here on the loop has the gradients."""
        with self._looking.at("grad_writes"):
            param = first_with_gradient(optimizer) if self._counts else None
            if param is not None and param.grad is not None and writes(param.grad) >= 0:
                self._last[optimizer] = param, ref(param.grad), writes(param.grad)
