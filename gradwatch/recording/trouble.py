"""Which step went wrong: a norm or a loss that is not finite, or that stands out among those before it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from gradwatch.measure.distributed import rank, world_size
from gradwatch.policies.skip import SkipSpike
from gradwatch.recording.recent import Seen

SPIKE = SkipSpike()  # what stands out, and among how many
LATEST = 2**62  # a step number that none has


class Trouble(NamedTuple):
    """A step that went wrong. `is_broken`: something is not finite, and what comes after it cannot be right."""

    step: int
    why: str
    is_broken: bool


class TroubleFinder:
    """Looks at one step after the other. A step that was left out did no harm, and counts for nothing."""

    def __init__(self) -> None:
        self.windows: dict[str, deque[float]] = {}  # the last values of each norm and each loss that did not stand out

    def find(self, steps: Iterable[Seen]) -> Trouble | None:
        """The first of these that went wrong; those after it are not looked at."""
        for seen in steps:
            norm = f"the gradient norm of {seen.optimizer}" if seen.optimizer else "the gradient norm"
            named = {} if seen.norm is None else {norm: seen.norm}
            named.update(seen.losses)
            if seen.skipped:
                continue
            for name, value in named.items():
                if not math.isfinite(value):
                    return Trouble(seen.step, f"{name} was {value:g}", is_broken=True)
            for name, value in named.items():
                window = self.windows.setdefault(name, deque(maxlen=SPIKE.window))
                if stands_out(value, window):
                    usual = np.median(window)
                    return Trouble(seen.step, f"{name} was {value:.3g}, {usual:.3g} before", is_broken=False)
            for name, value in named.items():
                self.windows[name].append(value)
        return None

    def state_dict(self) -> dict[str, list[float]]:
        """The values that it compares with."""
        return {name: [*window] for name, window in self.windows.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Compare with those."""
        self.windows = {name: deque(values, maxlen=SPIKE.window) for name, values in state.items()}


def stands_out(value: float, window: deque[float]) -> bool:
    """Whether a value is a spike as `SkipSpike()` sees it: more than 6 sample deviations above the mean of the last
    128, of which half must be there; never while they are all equal.
    """
    if len(window) < SPIKE.window // 2:
        return False
    before = np.fromiter(window, np.float64)
    deviation = before.std(ddof=1)
    return bool(deviation > 0 and value > before.mean() + SPIKE.sigma * deviation)


def agreed(trouble: Trouble | None, device: torch.device) -> Trouble | None:
    """The first that a rank has found, the same on all. A collective of one number, and more when there is one."""
    if world_size() == 1:
        return trouble
    own = -1 if trouble is None else LATEST - trouble.step
    first = torch.full((), own, dtype=torch.int64, device=device)
    dist.all_reduce(first, dist.ReduceOp.MAX)
    if int(first) < 0:
        return None
    source = torch.full((), rank() if own == int(first) else -1, dtype=torch.int64, device=device)
    dist.all_reduce(source, dist.ReduceOp.MAX)
    told = [trouble]
    dist.broadcast_object_list(told, src=int(source), device=device)
    return told[0]
