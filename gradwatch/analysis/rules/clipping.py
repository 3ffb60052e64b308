"""Clips that do nothing, clips that do everything, and clips in the wrong place.

Legend: T recorded steps, L layers.
"""

from __future__ import annotations

import numpy as np

from gradwatch.analysis.clips import called, incoming, loop_coef
from gradwatch.analysis.rules.double_clip import clips_parts, sits_at
from gradwatch.analysis.rules.facts import FIXED, GUARD, clips, is_adaptive, optimizer_kind
from gradwatch.analysis.rules.finding import Evidence, Finding, Severity
from gradwatch.analysis.rules.layer_facts import measured, pick
from gradwatch.analysis.rules.muon import clip_over_muon
from gradwatch.analysis.rules.once import once
from gradwatch.analysis.rules.owners import rate_by_scale
from gradwatch.analysis.rules.progress import succeeds
from gradwatch.analysis.rules.step_length import rate_without
from gradwatch.analysis.rules.tries import clip_with, new_rate, rate_times, rates_differ
from gradwatch.formatting import loop_clips, percent, setting_text
from gradwatch.history import Bools, Floats, History
from gradwatch.policies.grammar import members
from gradwatch.policies.intervention import Intervention


def clip_inert(history: History, min_steps: int = 1000) -> list[Finding]:
    """A fixed threshold that nothing ever reached, in at least `min_steps` steps: a note, with one that would fire.

    Of the run's policy (`ClipByGlobalNorm`, `ClipByNorm`, `ClipByAverageNorm`, `ClipByValue`, `AGC`), or of the loop's
    own `clip_grad_norm_`. A policy that only skips, or that follows the norms, is meant to rest.
    Source: methods, section 3: 0 % in 1000 steps; a well-known book's clip of 1.0 fires in 0 of 5,500 steps.
    """
    norm = history.total("grad_norm")
    seen = np.isfinite(norm) & (norm > 0)
    if seen.sum() < min_steps:
        return []
    out = []
    fixed = [p for p in clips(history) if isinstance(p, FIXED)]
    if fixed and len(fixed) == len(clips(history)) and not (history.total("clip_rate")[seen] > 0).any():
        out.append(_inert(history, seen, str(history.run.clip), f'clip="{GUARD}"'))
    own, limit = history.total("user_grad_norm"), history.total("user_max_norm")
    both = np.isfinite(own) & np.isfinite(limit)
    if both.sum() >= min_steps and not (own[both] > limit[both]).any():
        bound = setting_text(float(np.quantile(own[both], 0.99)))
        out.append(_inert(history, both, f"the loop's own {loop_clips(history.per_step)}", f"max_norm={bound}"))
    return out


def policy_never_acts(history: History, min_steps: int = 10) -> list[Finding]:
    """A policy that was asked for and had nothing to act on: what trained, trained without it. A warning.

    Of `clip`, where every one of at least `min_steps` steps was dropped by the loss scaler or had no gradient; a policy
    that skips may have dropped them itself. Of `renorm`, where weights were measured and no slice that it applies to.
    Source: torch's GradScaler drops a step whole; `torch.renorm` has no slices of a tensor of one dimension.
    """
    if len(history) < min_steps:
        return []
    norm, skips = history.total("grad_norm"), len(clips(history)) < len(members(history.run.clip))
    idle = (history.total("skipped") > 0) | (norm == 0)
    out = []
    if clips(history) and not skips and idle.all():
        dropped = int((history.total("skipped") > 0).sum())
        out.append(
            _never(
                history,
                str(history.run.clip),
                {"dropped": dropped, "without_gradients": len(history) - dropped},
                "every step was dropped by the loss scaler, or had no gradient that is not 0",
                "Look at the loss: a scaler that drops every step sees no finite gradient.",
            )
        )
    rows, _ = measured(history, "renorm_rate")
    if history.run.renorm and not len(rows) and len(measured(history, "weight_norm")[0]):
        out.append(
            _never(
                history,
                str(history.run.renorm),
                {"layers": len(history.layers)},
                "it constrains slices along its dim of weights that have two dimensions or more, and no layer has any",
                "Train the matrices as well, give a dim= that they have, or leave renorm= out.",
            )
        )
    return out


def no_step(history: History) -> list[Finding]:
    """A run with a policy that ended well before its first optimizer step: `policy_never_acts` of nothing at all."""
    run = history.run
    if len(history) or history.problems or run.status != "FINISHED":
        return []
    why = (
        "no step was seen: the loop took none, or stepped an optimizer other than the one that is watched"
        if run.layers
        else "no torch.optim.Optimizer stepped, so the weights were updated in another way, or not at all"
    )
    cure = "Step a torch.optim.Optimizer that is watched; a clip alone can be had by gradwatch.clip_grads_ in the loop."
    scaled = Intervention(None, None, run.lr_scale, run.warmup)
    asked = [run.clip, run.renorm, None if scaled == Intervention() else scaled.label]
    return [_never(history, text, {}, why, cure) for text in asked if text]


def _never(history: History, policy: str, evidence: Evidence, why: str, cure: str) -> Finding:
    cause = f"{policy} was asked for and never acted: {why}."
    ends = (int(history.step[0]), int(history.step[-1])) if len(history) else (0, -1)
    return Finding("policy-never-acts", "warning", (), *ends, {"steps": len(history), **evidence}, cause, cure)


def _inert(history: History, rows: Bools, what: str, lower: str) -> Finding:
    norm = incoming(history)[rows]
    steps = history.step[rows]
    return Finding(
        "clip-inert",
        "note",
        (),
        int(steps[0]),
        int(steps[-1]),
        {"fired": 0, "steps": len(norm), "p99_norm": float(np.quantile(norm, 0.99)), "largest_norm": float(norm.max())},
        f"In {len(norm):,} steps nothing reached the threshold of {what}: the training is the same without it.",
        f"Remove it, or lower it to where it fires on 1 % of the steps: {lower}.",
    )


# ----------------------------------------------------------------------------------------------------- learning rate


def clip_is_your_learning_rate(
    history: History,
    often: float = 0.9,
    min_steps: int = 100,
    factor: float = 2.0,
    harmless: float = 10.0,
    well: float = 0.6,
) -> list[Finding]:
    """A fixed threshold below almost every gradient: the share of clipped steps is above `often`.

    Under SGD the real steps are then smaller than the learning rate says: a warning from `factor` times on, from
    `harmless` times on where the training succeeds; a note where a loss fell by the share `well`, or under Adam and its
    kin, whose steps hardly depend on the scale. Policies that follow the norms are what they are meant to be.
    Source: methods, section 3 (above 50 %: a second learning rate); a run whose steps were 20 times too small (traps).
    """
    if clip_before_unscale(history):  # its coefficients are those of scaled gradients
        return []
    if is_adaptive(history) and clip_over_muon(history):  # which says it of each group of layers
        return []
    if clips_parts(history):  # the coefficient of the last part is not that of the step
        return []
    coef, threshold = _coefficients(history)
    known = np.isfinite(coef)
    if not threshold or known.sum() < min_steps:
        return []
    fired = known & (coef < 1)
    share = float(fired.sum() / known.sum())
    if share <= often:
        return []
    typical = float(np.median(coef[known]))
    smaller, (rate, kind), without = 1 / max(typical, 1e-30), rate_by_scale(history), rate_without(history, typical)
    adaptive = is_adaptive(history)
    little = smaller < (harmless if succeeds(history) else factor)
    severity: Severity = "note" if adaptive or little or succeeds(history, well) else "warning"
    layer_share = history.clip_rate
    layers = () if (layer_share[~np.isnan(layer_share)] > often).all() else pick(history, layer_share > often)
    cause = f"{threshold[0].upper()}{threshold[1:]} changed {percent(share)} of the steps and made a typical one "
    real, after = _of_the_rate(history, typical, rate, kind, without)
    cause += f"{smaller:.3g} times smaller: {real}"
    own = "loop's own" in threshold
    cure = f'As a guard that fires on 1 % of the steps it would be clip="{GUARD}"'
    cure += ", in place of the loop's own clip (gradwatch run --script-clip replace)" if own else ""
    cure += after + (_TERMS if not adaptive and smaller >= harmless else "")
    alone = adaptive or kind  # every rate would be changed
    tries = (clip_with(GUARD),) if alone else (f"{clip_with(GUARD)} {rate_times(without[0])}", clip_with(GUARD))
    return [
        Finding(
            "clip-is-your-learning-rate",
            severity,
            layers,
            int(history.step[fired][0]),
            int(history.step[fired][-1]),
            {"clip_rate": share, "clip_coef": typical, "times_smaller": smaller, "lr": rate},
            cause,
            cure,
            tries=() if own else tries,  # the loop's own clip stays on an unchanged script
        )
    ]


def _of_the_rate(
    history: History, typical: float, rate: float, kind: str, without: tuple[float, str]
) -> tuple[str, str]:
    """What a clip that leaves `typical` of most steps makes of the `rate` of optimizers of a `kind`, and what one is
    wanted `without` it, in words.
    """
    factor, steps = without
    if is_adaptive(history):
        said = f"{optimizer_kind(history)} takes the scale out of the gradients again, so nothing needs to change."
        return said, "."
    if (history.total("user_clip_share") < 1).any():  # of the layers that have a gradient
        said = "a part of the layers is clipped, whose steps are shorter than the learning rate says; others' are not."
        return said, "."
    if not kind and rates_differ(history):
        said = f"the real learning rates are {new_rate(history, typical)}."
        return said, f"; at {new_rate(history, factor)} the steps {steps}."
    return (
        f"the real learning rate{kind and f' of {kind}'} is {setting_text(rate * typical)}, not {rate:g}.",
        f"; with {kind and f'{kind} at '}lr={setting_text(rate * factor)} the steps {steps}.",
    )


_TERMS = (
    " If the loss is a sum of terms, look at the gradient norm of each by itself: one that outweighs the others is all "
    "of what is clipped. Bring the terms to one size first."
)


def _coefficients(history: History) -> tuple[Floats, str]:
    """What fixed thresholds multiplied each step by, `[T]` (NaN in skipped ones), and whose they are, as code."""
    coef, whose = np.full(len(history), np.nan), []
    dropped = (history.total("skipped") > 0) | ~np.isfinite(history.total("grad_norm"))
    if clips(history) and all(isinstance(p, FIXED) for p in clips(history)):
        coef = np.where(dropped, np.nan, history.total("clip_coef"))
        whose.append(str(history.run.clip))
    loops = np.where(called(history), loop_coef(history), np.nan)
    if np.isfinite(loops).any() and loop_clips(history.per_step):
        coef = loops if not whose else coef * np.where(np.isnan(loops), 1, loops)
        whose.append(f"the loop's own {loop_clips(history.per_step)}")
    return coef, " and ".join(whose)


# --------------------------------------------------------------------------------------------------------- too early


@once
def clip_before_unscale(
    history: History, min_steps: int = 10, often: float = 0.8, least_power: int = 4
) -> list[Finding]:
    """The loop clips gradients that still carry the loss scale, so that each ends up far below the threshold: an error.

    Seen where the loop's `clip_grad_norm_` fired and left norms that are its `max_norm` times a power of two (at least
    2^-`least_power`) once the scale is taken out, or, where the clip itself was not seen, where norm x loss scale sits
    at a round number through changes of the scale.
    Source: the order is unscale_, measure, clip, step (torch's AMP notes; traps: nano-world-model#22).
    """
    norm, limit, own = (history.total(name) for name in ("grad_norm", "user_max_norm", "user_grad_norm"))
    scale = history.total("loss_scale")
    fired = np.isfinite(norm) & (norm > 0) & np.isfinite(limit) & (own > limit)
    if fired.sum() >= min_steps:
        power = np.log2(limit[fired] / norm[fired])
        whole = (np.abs(power - np.round(power)) < 0.01) & (power > least_power - 0.5)
        if whole.mean() < often:
            return []
        rows, threshold, factor = (
            np.flatnonzero(fired)[whole],
            float(np.median(limit[fired])),
            2.0 ** float(np.median(power)),
        )
    else:
        at = sits_at(norm * scale, 0.3, min_steps)
        if at is None or (scale == 1).all() or sits_at(norm, 0.3, min_steps) is not None:
            return []
        rows, threshold, factor = np.flatnonzero(np.abs(norm * scale / at - 1) < 1e-3), at, float(np.nanmedian(scale))
    return [
        Finding(
            "clip-before-unscale",
            "error",
            (),
            int(history.step[rows[0]]),
            int(history.step[rows[-1]]),
            {
                "threshold": threshold,
                "loss_scale": factor,
                "steps": len(rows),
                "norm_left": float(np.median(norm[rows])),
            },
            f"The loop clips to {threshold:g} while the gradients still carry the loss scale of {factor:g}: "
            f"what reaches {optimizer_kind(history)} has a norm of {np.median(norm[rows]):.2g}.",
            "Call scaler.unscale_(optimizer) before the clip, or leave the clip to watch(), which sees unscaled "
            f'gradients: clip="ClipByGlobalNorm({setting_text(threshold)})".',
        )
    ]
