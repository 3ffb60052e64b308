"""A clip of the loop's own that comes when the step is taken already, or before there is anything to clip."""

from __future__ import annotations

import numpy as np

from gradwatch.analysis.clips import CALLS, LATE, NEAR, late_calls
from gradwatch.analysis.rules.finding import Finding
from gradwatch.analysis.rules.progress import succeeds
from gradwatch.formatting import setting_text
from gradwatch.history import Bools, History


def clip_after_step(history: History, often: float = LATE, min_steps: int = CALLS, near: float = NEAR) -> list[Finding]:
    """The loop clips behind `optimizer.step()`: what it clips was used already.

    A warning; a note where the training succeeds, or no norm is above the limit: then it only looks at them.

    Alarm: in a share of `often` of at least `min_steps` calls the norm that the loop's clip sees is, to `near`, the one
    that the step before was taken with, and not the one that comes to the next.
    Source: torch's documentation of `clip_grad_norm_` (between backward and step, as in its AMP examples).
    """
    late = late_calls(history, often, min_steps, near)
    if not late.any():
        return []
    limit = float(np.nanmedian(history.total("user_max_norm")))
    calls = int(np.isfinite(history.total("user_grad_norm")).sum())
    where = "behind optimizer.step(): it clips the gradients of a step that is taken already, and the next backward "
    where += "makes others"
    numbers = {"calls": calls, "of_the_step_before": int(late.sum())}
    return [_finding("clip-after-step", history, late, limit, int(history.step[0]), numbers, where)]


def clip_without_gradient(history: History, often: float = 0.8, min_steps: int = 10) -> list[Finding]:
    """The loop clips before `backward()`: there is no gradient yet, or one of zeros.

    A warning; a note where the training succeeds, or no norm is above the limit.

    Alarm: in a share of `often` of at least `min_steps` calls the loop's clip of all layers measured a norm of exactly
    0, and the step was taken with another.
    Source: torch's documentation of `clip_grad_norm_` (between backward and step, as in its AMP examples).
    """
    seen, limits, norm = (history.total(name) for name in ("user_grad_norm", "user_max_norm", "grad_norm"))
    called = np.isfinite(seen) & ~np.isnan(norm) & ~(history.total("user_clip_share") < 1)  # by one clip of all
    empty = called & (seen == 0) & (norm != 0)
    if empty.sum() < min_steps or empty.sum() < often * called.sum():
        return []
    first = int(history.step[np.flatnonzero(empty)[0]])
    where = "before backward(), when the gradients are cleared: it measures a norm of 0 and changes nothing"
    numbers = {"calls": int(called.sum()), "of_nothing": int(empty.sum())}
    limit = float(np.nanmedian(limits[empty]))
    return [_finding("clip-without-gradient", history, empty, limit, first, numbers, where)]


def _finding(
    rule: str, history: History, vain: Bools, limit: float, first: int, numbers: dict[str, int], where: str
) -> Finding:
    """What comes of calls to clip to `limit` that were in `vain`, `[T]`, and `where` they come."""
    above = float((history.total("grad_norm")[vain] > limit).mean())
    return Finding(
        rule,
        "warning" if above and not succeeds(history) else "note",
        (),
        first,
        int(history.step[np.flatnonzero(vain)[-1]]),
        {**numbers, "max_norm": limit, "above": above},
        f"The loop's clip to {setting_text(limit)} comes {where}. No step is clipped.",
        "The order is optimizer.zero_grad(), loss.backward(), clip_grad_norm_(), optimizer.step().",
        tries=(f"--clip 'ClipByGlobalNorm({setting_text(limit)})'",),
    )
