"""What a Watch does and did, in words: which way each optimizer's gradients are scaled, and why; how it ended."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from gradwatch.formatting import loop_clips
from gradwatch.history import Run
from gradwatch.measure.autograd import without_autograd
from gradwatch.measure.fused import why_not_folded, why_not_left_out
from gradwatch.measure.layout import Layout
from gradwatch.policies.intervention import Intervention
from gradwatch.recording.clipper import READ_STEPS
from gradwatch.recording.learning_rate import RateScale

if TYPE_CHECKING:
    from gradwatch.recording.stepper import Stepper


def plan(stepper: Stepper) -> str:
    """One line for each thing that happens on a step. Takes no step and reads nothing from the device."""
    clip, renorm, layout = stepper.clipper.policy, stepper.weights.renorm, stepper.layout
    rates, matrices = stepper.rate_scale, stepper.weights.matrices
    spectra = f", and the largest singular value of {matrices} matrices," if matrices else ""
    own = loop_clips(stepper.loop_clips.last)
    collectives = ", and one all-reduce over the processes" if layout.sharding is not None else ""
    collectives += ", and the norm joined over the stages of the pipeline" if layout.stages is not None else ""
    return "\n".join(
        [
            f"{len(layout.names)} layers, one norm pass a step on {layout.device}{_kernels(layout)}{collectives}",
            f"clip: {clip!r}{'' if clip else '; gradients are left alone'}",
            *(f"  {line}" for line in _scaling(stepper)),
            *(_skipping(stepper) if clip is not None and clip.can_skip else []),
            *([f"the loop itself clips: {own}"] if own else []),
            *([f"learning rates: {rates!r}, around each step"] if rates != RateScale() else []),
            f"renorm: {renorm!r}{', after each step' if renorm else ''}",
            f"weight norms and update ratios{spectra} every {stepper.weights.every} steps",
            *stepper.notes.values(),
            *stepper.inside.plan(),
        ]
    )


def _kernels(layout: Layout) -> str:
    """Where it matters, whether one kernel goes over all layers of a dtype."""
    if layout.device.type != "cuda":
        return ""
    at_once = all(layout.multi_tensor(p.device, p.dtype) for p in layout.params)
    return ", in one kernel for all" if at_once else ", in torch's calls for lists"


def _skipping(stepper: Stepper) -> list[str]:
    """How steps are left out."""
    why = why_not_left_out(stepper.clipper.optimizers, stepper.layout)
    if stepper.layout.device.type == "cpu" or why:
        because = f": {why}" if why and stepper.layout.device.type != "cpu" else ""
        return [f"one bool is read from the device on each step: this policy can skip steps{because}"]
    policy = stepper.clipper.policy
    counts = policy is not None and policy.limits()
    read = f"one number is read every {READ_STEPS} steps, for at_most" if counts else "nothing is read"
    return [f"steps that the policy skips are left out by the fused kernel (found_inf): {read}"]


@without_autograd
def _scaling(stepper: Stepper) -> list[str]:
    """How the gradients of each optimizer, and where they differ each param group, are scaled."""
    clipper = stepper.clipper
    if clipper.policy is None:
        return []
    batch = clipper.no_gradients()
    clipper.policy.apply(batch, clipper.state)  # without gradients: only the kind of its answer matters
    batch.settle()
    how = _pass(batch.pending, elements=batch.fraction is not None)
    lines = []
    for name, optimizer in zip(clipper.names, clipper.optimizers, strict=True):
        why = "" if batch.pending is None else why_not_folded(clipper.optimizers, clipper.layout, batch.pending.dim())
        if batch.fraction is None and batch.pending is not None and not why:
            lines.append(f"{name}: its fused kernel scales (grad_scale): no pass of its own")
        else:
            groups = f" ({len(optimizer.param_groups)} param groups)" if len(optimizer.param_groups) > 1 else ""
            lines.append(f"{name}{groups}: {how}{f'; not in the kernel, because {why}' if why else ''}")
    return lines


def _pass(coef: Tensor | None, elements: bool) -> str:
    if elements:
        return "each tensor is changed by the policy itself"
    if coef is None:
        return "nothing is scaled: the policy only lets steps happen or not"
    return "one pass that scales all gradients" if coef.dim() == 0 else "one pass that scales each layer by its own"


def outcome(run: Run, steps: int, lost: int, folder: Path) -> str:
    """What a training that took `steps` has recorded: what is on disk, and not what was taken."""
    where = f"{steps - lost - (run.first_step or 0):,} steps recorded in {folder}"
    return f"{where}; the other {lost:,} could not be written" if lost else where


def nothing_seen(run: Run, folder: Path) -> str:
    """Why a training may have recorded nothing; and that what was asked for never acted."""
    asked = Intervention.of(run)
    never = "" if asked == Intervention() else f" and {asked.label} never acted"
    if run.status != "FINISHED":
        return f"the training ended before its first optimizer step, so {folder} is empty{never}"
    return (
        f"no optimizer step was seen, so {folder} is empty{never}: the loop took "
        "none, stepped an optimizer other than the one that watch() was given, or replayed its steps from a CUDA graph"
    )
