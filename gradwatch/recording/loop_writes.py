"""What the loop itself writes to: gradients that nobody zeroes add up, weights are loaded, averaged or reset."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import islice
from weakref import ref

from torch import Tensor
from torch.optim import Optimizer

from gradwatch.measure.distributed import world_size
from gradwatch.measure.looking import Looking
from gradwatch.measure.writes import weakly, writes

MOST = 100  # parameters that are asked for the first gradient


def _first_with_gradient(optimizer: Optimizer) -> Tensor | None:
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
            param = _first_with_gradient(optimizer) if self._counts else None
            grad = None if param is None else param.grad
            if param is not None and grad is not None and writes(grad) >= 0 and (found := weakly(grad)):
                self._last[optimizer] = param, found, writes(grad)


class WeightWrites:
    """Counts how often an optimizer's first weight with a gradient was written to between two of its steps, as
    torch counts it.

    Across ranks, whose communication writes as well, nothing is counted.
    """

    def __init__(self, looking: Looking) -> None:
        self._looking, self._counts = looking, world_size() == 1
        self._first: dict[Optimizer, Tensor] = {}  # the weight that is asked
        self._last: dict[Optimizer, int] = {}  # its counter, when the optimizer had stepped

    def since(self, optimizer: Optimizer) -> float:
        """How often since `note`; NaN where that is not known."""
        last = self._last.pop(optimizer, None)
        return math.nan if last is None else writes(self._first[optimizer]) - last

    def note(self, optimizers: Iterable[Optimizer]) -> None:
        """These have stepped: from here on the loop has the weights."""
        for optimizer in optimizers if self._counts else ():
            if optimizer in self._first or self._has_first(optimizer):
                self._last[optimizer] = writes(self._first[optimizer])

    def _has_first(self, optimizer: Optimizer) -> bool:
        with self._looking.at("weight_writes"):
            param = _first_with_gradient(optimizer)
            if param is not None and writes(param) >= 0:  # not every kind of tensor counts
                self._first[optimizer] = param
                return True
        return False


class StepsElsewhere:
    """Tells once that the loop goes on, and the weights change, without a step that is seen: of another optimizer than
    the watched one, such as one that is made anew. What is logged from there on is left out.
    """

    def __init__(self, looking: Looking, least: int = 10, most: int = 8) -> None:
        self._looking = looking
        self._least, self._most = least, most  # times on end; weights whose counters are asked
        self._steps = self._writes = self._times = 0

    def are_taken(self, steps: int, weights: Sequence[Tensor]) -> bool:
        """Whether what the loop logs now, `steps` after the run began, is of no step that was seen."""
        now = sum(map(writes, weights[: self._most]))
        self._times = self._times + (now > self._writes) if steps == self._steps else 0
        self._steps, self._writes = steps, now
        if self._times >= self._least:
            last = f"the last one was step {steps - 1:,}" if steps else "there was none"
            self._looking.miss(
                "what the loop does now",
                f"it logs, and writes to the weights, without a step of the watched optimizer ({last}). Does it step "
                "another one, made anew? Make the optimizer once, before watch(), or watch the new one too",
            )
        return self._times >= self._least
