"""The step that is being taken, as far as it has come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from gradwatch.measure import fused
from gradwatch.recording import learning_rate
from gradwatch.recording.loop_clips import NO_CLIPS, StepClips
from gradwatch.recording.multi_optimizer import Pieces, Seen


@dataclass(eq=False)
class Step:
    """The step that is being taken: made when it begins, dropped when it ends, so that nothing of it outlives it."""

    optimizers: list[Optimizer]  # those that have begun it; the first leads it
    scaler: GradScaler | None  # that the last of them runs under
    inside: bool  # whether the last of them steps inside backward
    rate: float  # by what the learning rates are multiplied in it
    number: int  # of the steps before it
    # What follows comes later, and in most steps not at all: these are the class's until they are set
    is_measured: bool = field(default=False, init=False)  # whether the weights are measured in it
    running: Optimizer | None = field(default=None, init=False)  # whose step has begun and not ended
    young: Sequence[dict[str, Any]] = field(default=(), init=False)  # its groups whose momentum comes into being
    here: tuple[bool, ...] | None = field(default=None, init=False)  # which layers its row has; None: no row yet
    evaluations: int = field(default=0, init=False)  # how often the closure of its leader ran
    is_lost: bool = field(default=False, init=False)  # whether the loss scaler dropped its leader before it began
    is_unscaled: bool = field(default=False, init=False)  # whether the gradients were unscaled here, for all optimizers
    seen: Seen = field(default_factory=dict)  # the gradients that were measured for all of them
    pieces: Pieces | None = field(default=None, init=False)  # what was measured inside backward, an optimizer at a time
    renorm_rate: Tensor | None = field(default=None, init=False)  # [L]
    clips: StepClips = field(default=NO_CLIPS, init=False)  # the loop's own


def clear_up(*optimizers: Optimizer) -> None:
    """Take back what a step that raised has left set on these optimizers."""
    for each in optimizers:
        fused.restore(each)
        learning_rate.restore(each)
