"""The Stepper's other half: it writes the row of a step, with norms, settings, the loss scale, the loop's own clips."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from torch import Tensor

from gradwatch.measure.autograd import without_autograd
from gradwatch.recording.blocks import Row
from gradwatch.recording.clipper import Clipped
from gradwatch.recording.hooks import untraced
from gradwatch.recording.loop_clips import Clip
from gradwatch.recording.optimizer_settings import UNKNOWN, Now
from gradwatch.recording.step import Step

if TYPE_CHECKING:
    from gradwatch.recording.stepper import Stepper


def record(stepper: Stepper, step: Step, clipped: Clipped | None) -> None:
    """Begin the step's row, with its fields and the scalars that are known of it by now; without norms where they are
    not `clipped`.
    """
    now, values = _looked_up(stepper, step)
    can_skip = is_divided = False
    if clipped is not None:
        can_skip, is_divided = clipped.skipped is not None, clipped.divisor is not None
        values.update(clipped.totals)
    if clipped is None or step.inside:  # inside backward they come when it has ended
        here: tuple[bool, ...] = (False,) * len(stepper.layout.params)
        skipped = None if clipped is None else clipped.skipped
        fields: list[Tensor | None] = [*[None] * (len(stepper.recorder.ring.fields) - 1), skipped]
    else:
        here, fields = clipped.batch.here, clipped.fields
    row = Row(
        step.number, time.time(), stepper.lane(step), now.rates, here, can_skip, clipped is not None,
        now.changed, step.clips.applied, is_divided, step.grad_writes,
        step.weight_writes,
    )  # fmt: skip
    stepper.recorder.begin(row, fields, values)
    step.here = here
    if step.is_measured:
        stepper.gradient_writes.note(step.optimizers[0])


def look_back(stepper: Stepper, step: Step) -> None:
    """At what the loop has done to the gradients of this step, before a policy writes to them: its clips, for one."""
    if stepper.inside.loss_targets.is_open:
        stepper.inside.loss_targets.stepping()
    if stepper.loop_clips.last:  # it has clipped before
        with stepper.weights.looking.at("the loop's own clips"):
            clipped_for = stepper.optimizers if stepper.together else step.optimizers
            scaled = step.scaler is not None
            step.clips = stepper.loop_clips.take(clipped_for, stepper.layout.params, under_scaler=scaled)


@untraced
@without_autograd
def record_late(stepper: Stepper, step: Step, clip: Clip) -> None:
    """The loop has clipped inside the optimizer's step, whose row is begun."""
    with stepper.weights.looking.at("the loop's own clips"):
        step.clips = stepper.loop_clips.late(step.clips, clip, stepper.layout.params)
        stepper.recorder.add(step.clips.values)
        stepper.recorder.amend(clips=step.clips.applied)


def _looked_up(stepper: Stepper, step: Step) -> tuple[Now, dict[str, Any]]:
    """The optimizers' settings, and the scalars that are known of the step."""
    looking, now = stepper.weights.looking, UNKNOWN
    with looking.at("lr"):
        now = stepper.settings.now(step.rate)
    values: dict[str, Any] = {**now.tensors, **step.clips.values}
    scale = None if step.scaler is None else step.scaler._scale  # get_scale() would wait for the device
    if scale is not None:
        values["loss_scale"] = scale
    inside = stepper.inside
    if inside.loss_targets.is_open:
        own = None if stepper.together else stepper.clipper.held(step.optimizers[0])
        rescaled = bool(step.clips.applied) or step.scaler is not None
        clips = sum(all(clip.layers) for clip in step.clips.applied)
        values.update(inside.loss_targets.take(stepper.lane(step), own, rescaled, clips))
        with looking.at("norm_batches"):
            values.update({} if inside.mode is None else inside.mode.now())
    if inside.mode is not None and not inside.mode.model.training:
        values["eval_mode"] = 1.0
    if stepper.settings.lost_state(step.optimizers[0]):
        values["empty_state"] = 1.0
    if inside.rank_norms is not None:
        with looking.at("rank_grad_norm"):
            values.update(inside.rank_norms.values(scale))
    if inside.micro_batches is not None and stepper.together:  # apart, each steps on a part of what was measured
        with looking.at("micro_grad_norm"):
            inside.micro_batches.end(scale)
    return now, values
