"""The step that is being taken, as far as it has come."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from gradwatch.measure import fused
from gradwatch.recording import learning_rate
from gradwatch.recording.loop_clips import NO_CLIPS, StepClips
from gradwatch.recording.multi_optimizer import Pieces, Seen


class Step:
    """The step that is being taken: made when it begins, dropped when it ends, so that nothing of it outlives it."""

    # What comes later, and in most steps not at all
    is_measured = False  # whether the weights are measured in it
    grad_writes = math.nan  # how often the loop wrote to the leader's first gradient since the step before
    weight_writes = math.nan  # and to the first of its weights
    running: Optimizer | None = None  # whose step has begun and not ended
    is_scaled = False  # whether a loss scaler has set what the kernel of one of them does to its gradients
    young: Sequence[dict[str, Any]] = ()  # its groups whose momentum comes into being
    here: tuple[bool, ...] | None = None  # which layers its row has; None: no row yet
    evaluations = 0  # how often the closure of its leader ran
    is_lost = False  # whether the loss scaler dropped its leader before it began
    is_unscaled = False  # whether the gradients were unscaled here, for all optimizers
    seen: Seen | None = None  # the gradients that were measured for all of them
    pieces: Pieces | None = None  # what was measured inside backward, an optimizer at a time
    renorm_rate: Tensor | None = None  # [L]
    left_out: Sequence[
        tuple[Tensor, Tensor | None]
    ] = ()  # the gradients that were taken away, where the policy skips it
    clips: StepClips = NO_CLIPS  # the loop's own

    def __init__(self, leader: Optimizer, scaler: GradScaler | None, inside: bool, rate: float, number: int) -> None:
        self.optimizers = [leader]  # those that have begun it
        self.scaler = scaler  # that the last of them runs under
        self.inside = inside  # whether the last of them steps inside backward
        self.rate = rate  # by what the learning rates are multiplied in it
        self.number = number  # of the steps before it


def clear_up(*optimizers: Optimizer) -> None:
    """Take back what a step that raised has left set on these optimizers."""
    for each in optimizers:
        fused.restore(each)
        learning_rate.restore(each)
