"""Clip rates of a run so far, carried from window to window: what a courier knows of those that it has sent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gradwatch.analysis.clips import called, loop_changed
from gradwatch.history import Floats, History

MEMORY = 10  # windows after which a step counts e times less in the smoothed rate


class Rate(NamedTuple):
    """How many steps were clipped so far, of how many; and the same with weights that fade: the smoothed rate."""

    clipped: float = 0.0
    steps: float = 0.0
    recent: float = 0.0
    weight: float = 0.0

    def after(self, changed: Floats, memory: float) -> Rate:
        """With the steps of one window more: `changed` is 1 or 0 of each, NaN where it is not known."""
        known = changed[np.isfinite(changed)]
        if not len(known):
            return self
        keep = math.exp(-len(known) / memory)
        recent = keep * self.recent + (1 - keep) * float(known.mean())
        weight = keep * self.weight + (1 - keep)
        return Rate(self.clipped + float(known.sum()), self.steps + len(known), recent, weight)

    @property
    def values(self) -> dict[str, float]:
        """The rate of the run so far, and the smoothed one, by name; empty before the first step with a known one."""
        if not self.steps:
            return {}
        return {"rate_so_far": self.clipped / self.steps, "rate_smoothed": self.recent / self.weight}


class Rates(NamedTuple):
    """The policy's clip rate and that of the loop's own clips, and whether the loop ever called one."""

    policy: Rate = Rate()
    loop: Rate = Rate()
    loop_clips: bool = False

    def after(self, history: History, size: int) -> Rates:
        """With a window of `size` steps more."""
        policy = self.policy.after(history.total("clip_rate"), MEMORY * size)
        loop = self.loop.after(loop_changed(history), MEMORY * size)
        return Rates(policy, loop, self.loop_clips or bool(called(history).any()))

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> Rates:
        """The inverse of what json makes of it."""
        policy, loop, loop_clips = data
        return cls(Rate(*policy), Rate(*loop), bool(loop_clips))


NO_RATES = Rates()
