"""The clips of the loop's own, beside those of the policy: how often, how much, and the norms before any of them.

Legend: T recorded steps.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gradwatch import formulas
from gradwatch.formatting import loop_clips
from gradwatch.history import Bools, Floats, History

LATE, CALLS, NEAR = 0.8, 10, 1e-3  # the share of at least so many clips that come too late, by norms so near


def clips_itself(history: History) -> bool:
    """Whether the loop itself clips, as far as that is seen."""
    return bool(loop_clips(history.per_step))


def loop_coef(history: History) -> Floats:
    """What the loop's own clips left of the total norm, `[T]`: 1 where there was none; NaN where it is not known."""
    return np.where(np.isnan(history.total("user_step_coef")), 1, history.total("user_step_coef")) * _before_step(
        history
    )


def loop_changed(history: History) -> Floats:
    """Whether the loop's own clips changed a gradient, `[T]`: 1 or 0, and NaN where it is not known.

    Nor is it for a step that was skipped. A clip of a part of the gradients' sum (one a micro-batch) counts.
    """
    early = history.total("user_early_coef")
    coef = np.fmin(loop_coef(history), np.where(np.isnan(early), np.inf, early))
    known = np.isfinite(coef) & ~(history.total("skipped") > 0)
    return np.where(known, coef < 1, np.nan)


def loop_limit(history: History, least: int = 8) -> float | None:
    """The norm that the loop's own clips left at most, by the median of the steps that they changed; None of few."""
    left = incoming(history) * loop_coef(history)
    left = left[(loop_changed(history) == 1) & np.isfinite(left) & (left > 0)]
    return float(np.median(left)) if len(left) >= least else None


def loop_rate(history: History) -> float:
    """Share of the steps in which the loop's own clips changed a gradient; NaN where it does not clip, or not known."""
    changed = loop_changed(history)
    known = np.isfinite(changed)
    return float(changed[known].mean()) if (known & called(history)).any() else float("nan")


def incoming(history: History) -> Floats:
    """The joint norm before any clip that was seen, `[T]`; `grad_norm` where there was none, or it is not known.

    Because a clip of the total norm multiplies all by one coefficient, it is `grad_norm` / that, exactly.
    """
    norm, coef, own = history.total("grad_norm"), _before_step(history), history.total("user_grad_norm")
    old = np.isnan(history.total("user_clip_coef"))  # of an earlier version's folder: as the loop measured it
    with np.errstate(invalid="ignore", divide="ignore"):
        before = np.where(np.isnan(coef), norm, norm / coef)
    measured = ~np.isnan(own) & (old | (coef == 0)) & ~late_calls(history)  # a norm of inf leaves nothing
    return np.where(measured, own, before)


def of_all_layers(history: History) -> Bools:
    """In which steps the loop's own clips multiplied all layers by one known coefficient, or left them alone, `[T]`."""
    is_called, share = called(history), history.total("user_clip_share")
    by_value = ~np.isnan(history.total("user_clip_value"))
    return np.asarray(~is_called | ((share == 1) & ~by_value & np.isfinite(_before_step(history))))


def as_one(history: History) -> History:
    """The same run as if all that clipped it were one: `grad_norm` before any clip, `clip_rate`, `clip_coef` and
    `clipped_norm` of all together; without the columns of the loop's own. The layers stay as they are.
    """
    if not clips_itself(history):
        return history
    late = history.total("user_step_coef")
    values = {name: column for name, column in history.per_step.items() if not name.startswith("user_")}
    values |= {
        "grad_norm": incoming(history),
        "clipped_norm": history.total("clipped_norm") * np.where(np.isnan(late), 1, late),
        "clip_coef": history.total("clip_coef") * loop_coef(history),
        "clip_rate": np.fmax(history.total("clip_rate"), loop_changed(history)),
    }
    return replace(history, by_step=replace(history.by_step, values=values))


def summed_up(history: History) -> str:
    """What a reader must know of how the loop clips, in sentences; empty for a plain clip of all gradients at once."""
    said = []
    if np.isfinite(history.total("user_early_coef")).any():
        said.append("The loop clips, adds to the gradients and clips again (a clip for each micro-batch): every such "
                    "step counts, the coefficient and the norm before it are those of the last clip.")  # fmt: skip
    if (history.total("user_clip_share") < 1).any():
        said.append("The loop clips a part of the layers: the coefficient is that of the total norm.")
    if np.isfinite(history.total("user_step_coef")).any():
        said.append("A clip inside optimizer.step() comes after gradwatch's.")
    if clips_itself(history) and np.isnan(loop_rate(history)):
        said.append("How often the loop's clip fired is not recorded (sharded gradients, or an older gradwatch).")
    return " ".join(said)


def called(history: History) -> Bools:
    """In which steps the loop itself called a clip, `[T]`; a max_norm of inf only measures."""
    return np.isfinite(history.total("user_max_norm")) | np.isfinite(history.total("user_clip_value"))


def late_calls(history: History, often: float = LATE, least: int = CALLS, near: float = NEAR) -> Bools:
    """In which steps the loop's clip came behind the step before, and clipped nothing of this one, `[T]`.

    Its norm is, to `near`, the one that the step before was taken with, and not the one that comes to this; none where
    a share of less than `often` of the calls, or fewer than `least`, are so. Of a run that came apart sooner two do.
    """
    seen, came = history.total("user_grad_norm")[1:], history.total("grad_norm")
    with np.errstate(invalid="ignore", divide="ignore"):
        is_old, is_new = (np.abs(seen / other - 1) < near for other in (came[:-1], came[1:]))
    late, count, found = is_old & ~is_new, int(np.isfinite(seen).sum()), np.zeros(len(came), bool)
    lasted = int(np.isfinite(came).sum())
    if count >= (2 if lasted < min(least, len(came)) else least) and late.sum() >= often * count:
        found[1:] = late
    return found


def _before_step(history: History) -> Floats:
    """What the clips before the step left of the total norm, `[T]`; NaN where that is not known."""
    coef, limit = history.total("user_clip_coef"), history.total("user_max_norm")
    by_value = ~np.isnan(history.total("user_clip_value"))
    late = ~np.isnan(history.total("user_step_coef"))
    early = ~np.isnan(history.total("user_early_coef"))
    with np.errstate(invalid="ignore"):
        last = formulas.clip_coef(history.total("user_grad_norm"), limit)
    # folders of earlier versions hold the last call alone
    coef = np.where(np.isnan(coef) & ~by_value & ~late & ~early, last, coef)
    acts = called(history) & ~late_calls(history)
    return np.where(acts & ~((late | early) & np.isnan(coef)), coef, 1.0)
