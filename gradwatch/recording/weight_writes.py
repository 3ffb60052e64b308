"""Whether something else than the optimizer writes to the weights: what loads, averages or resets them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice

from torch import Tensor
from torch.optim import Optimizer

from gradwatch.measure.distributed import world_size
from gradwatch.recording.gradient_writes import MOST


class WeightWrites:
    """Counts how often an optimizer's first weight with a gradient was written to between two of its steps, by torch's
    own counter (`Tensor._version`), which what goes through `.data` is not seen by.

    Across ranks, whose communication writes as well, nothing is counted.
    """

    def __init__(self) -> None:
        self._counts = world_size() == 1
        self._last: dict[Optimizer, tuple[Tensor, int]] = {}  # a parameter, and its counter

    def since(self, optimizer: Optimizer) -> float:
        """How often since `note`; NaN where that is not known."""
        if optimizer not in self._last:
            return math.nan
        param, version = self._last.pop(optimizer)
        return param._version - version

    def note(self, optimizers: Iterable[Optimizer]) -> None:
        """These have stepped: from here on the loop has the weights."""
        for optimizer in optimizers if self._counts else ():
            params = (p for group in optimizer.param_groups for p in group["params"])
            param = next((p for p in islice(params, MOST) if p.grad is not None), None)
            if param is not None:
                self._last[optimizer] = param, param._version
