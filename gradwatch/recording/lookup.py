"""What is known of a step beside its gradients: the optimizers' settings, the loss scale, the loop's own clips."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradwatch.recording.optimizer_settings import UNKNOWN, Now
from gradwatch.recording.step import Step

if TYPE_CHECKING:
    from gradwatch.recording.stepper import Stepper


def looked_up(stepper: Stepper, step: Step) -> tuple[Now, dict[str, Any]]:
    """The optimizers' settings, and the scalars that are known of the step; its `clips` are taken over."""
    looking, now = stepper.weights.looking, UNKNOWN
    with looking.at("lr"):
        now = stepper.settings.now(step.rate)
    values: dict[str, Any] = {**now.tensors}
    if stepper.loop_clips.last:  # it has clipped before
        with looking.at("the loop's own clips"):
            clipped_for = stepper.optimizers if stepper.together else step.optimizers
            scaled = step.scaler is not None
            step.clips = stepper.loop_clips.take(clipped_for, stepper.layout.params, under_scaler=scaled)
            values.update(step.clips.values)
    scale = None if step.scaler is None else step.scaler._scale  # get_scale() would wait for the device
    if scale is not None:
        values["loss_scale"] = scale
    inside = stepper.inside
    if inside.rank_norms is not None:
        with looking.at("rank_grad_norm"):
            values.update(inside.rank_norms.values(scale))
    if inside.micro_batches is not None and stepper.together:  # apart, each steps on a part of what was measured
        with looking.at("micro_grad_norm"):
            values.update(inside.micro_batches.end(scale))
    return now, values
