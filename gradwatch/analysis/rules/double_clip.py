"""Gradients that are clipped more than once on their way to the step.

Legend: T recorded steps.
"""

from __future__ import annotations

import numpy as np

from gradwatch.analysis.clips import called
from gradwatch.analysis.rules.facts import clips
from gradwatch.analysis.rules.finding import Evidence, Finding
from gradwatch.analysis.rules.sampled_losses import sampled
from gradwatch.formatting import loop_clips, percent, setting_text
from gradwatch.history import Floats, History


def double_clip(history: History, often: float = 0.3, min_steps: int = 20) -> list[Finding]:
    """Gradients that were clipped before they reached the run's own policy: the loop clips as well.

    Seen by the loop's own calls of torch's clips, or by norms of which a share of `often` sits at one round number, the
    largest of all: a threshold that gradwatch did not see being applied. With a policy of the run's own a warning;
    without one, a note in the second case, because the norms recorded are then those that a clip left over. A warning
    also where the loop clips a part of a sum (a clip for each micro-batch) in a share of `often` of the steps.
    Source: traps (Lightning#18669, verl#2282: logged after the clip, a norm saturates at the threshold).
    """
    parts = clips_parts(history, often)
    if parts:
        return [_of_parts(history, parts)]
    own, fixed = loop_clips(history.per_step), clips(history)
    if own:
        rows = np.flatnonzero(called(history))
        if not fixed:
            return []
        evidence: Evidence = {"loop": own, "policy": str(history.run.clip), "steps": len(rows)}
        where = f"The loop itself calls {own}"
        cure = "Keep one: remove that call (of the Hugging Face Trainer: max_grad_norm=0; of Lightning: no "
        cure += "gradient_clip_val), or watch() without clip=; under gradwatch run, --script-clip replace or no --clip."
    else:
        norm = history.total("grad_norm")
        threshold = sits_at(norm, often, min_steps)
        if threshold is None:
            return []
        rows = np.flatnonzero(np.abs(norm / threshold - 1) < 1e-4)
        evidence = {"threshold": threshold, "share": len(rows) / np.isfinite(norm).sum()}
        evidence["policy"] = str(history.run.clip)
        where = f"{len(rows):,} gradients arrive with a norm of {threshold:g}, and none with more: a clip before step()"
        cure = f"Find the call that limits the norm to {threshold:g}; to record true norms, clip here instead: "
        cure += f'clip="ClipByGlobalNorm({setting_text(threshold)})".'
    after = f", and {history.run.clip} clips what is left" if fixed else ", which gradwatch did not see, comes first"
    return [
        Finding(
            "double-clip",
            "warning" if fixed else "note",
            (),
            int(history.step[rows[0]]),
            int(history.step[rows[-1]]),
            evidence,
            f"{where}{after}. The norms recorded are those after the first clip.",
            cure,
        )
    ]


def clips_parts(history: History, often: float = 0.3) -> float:
    """The share of the steps in which the loop cut down a part of a sum before the rest came; 0 below `often`.

    And where the steps that were looked at are of one backward pass: what comes behind its clip is the loop's own, as
    noise is.
    """
    _, passes = sampled(history, "passes")
    if len(passes) and np.median(passes) < 2:
        return 0.0
    share = float((history.total("user_early_coef") < 1).mean()) if len(history) else 0.0
    return share if share >= often else 0.0


def _of_parts(history: History, share: float) -> Finding:
    early = history.total("user_early_coef")
    rows = np.flatnonzero(early < 1)
    coef = float(np.median(early[rows]))
    return Finding(
        "double-clip",
        "warning",
        (),
        int(history.step[rows[0]]),
        int(history.step[rows[-1]]),
        {"share": share, "early_coef": coef},
        f"In {percent(share)} of the steps the loop clips before the gradients of all micro-batches are there: what "
        f"has been gathered is cut down, to {percent(coef)} in a typical step, before the next one is added to it, and "
        "again afterwards. The first micro-batches hardly count, and the sum is no mean of them.",
        "Clip once a step: after the last backward() of the accumulation, before optimizer.step().",
    )


def sits_at(norm: Floats, often: float, min_steps: int) -> float | None:
    """The round number (two digits) at which a share of `often` of these sit and which none exceeds; None if none."""
    found = norm[np.isfinite(norm) & (norm > 0)]
    if len(found) < min_steps:
        return None
    top = float(found.max())
    round_number = float(f"{top:.1e}")
    if abs(top / round_number - 1) > 2e-4 or (found > top * (1 - 1e-4)).mean() < often:
        return None
    return round_number
