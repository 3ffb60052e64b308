"""The step that is being taken, as far as it has come."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from gradwatch.measure import fused
from gradwatch.recording import learning_rate
from gradwatch.recording.loop_clips import StepClips
from gradwatch.recording.multi_optimizer import Pieces, Seen


@dataclass(slots=True, eq=False)
class Step:
    """The step that is being taken: made when it begins, dropped when it ends, so that nothing of it outlives it."""

    optimizers: list[Optimizer]  # those that have begun it; the first leads it
    scaler: GradScaler | None  # that the last of them runs under
    inside: bool  # whether the last of them steps inside backward
    rate: float  # by what the learning rates are multiplied in it
    is_measured: bool = False  # whether the weights are measured in it
    running: Optimizer | None = None  # whose step has begun and not ended
    young: list[dict[str, Any]] = field(default_factory=list)  # its param groups whose momentum comes into being
    here: tuple[bool, ...] | None = None  # which layers its row has; None until there is a row
    evaluations: int = 0  # how often the closure of its leader ran
    is_lost: bool = False  # whether the loss scaler dropped its leader before it began
    is_unscaled: bool = False  # whether the gradients were unscaled here, for all optimizers that take part
    seen: Seen = field(default_factory=dict)  # the gradients that were measured for all of them
    pieces: Pieces | None = None  # what was measured inside backward, an optimizer at a time
    renorm_rate: Tensor | None = None  # [L]
    clips: StepClips = field(default_factory=StepClips)  # the loop's own


def clear_up(*optimizers: Optimizer) -> None:
    """Take back what a step that raised has left set on these optimizers."""
    for each in optimizers:
        fused.restore(each)
        learning_rate.restore(each)
