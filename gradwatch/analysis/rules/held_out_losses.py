"""Losses that fall while what is measured on other data is never better, or gets worse at once: both `no-progress`.

Legend: T recorded steps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.groups import higher_is_better
from gradwatch.analysis.rules.finding import Finding, Why, either
from gradwatch.analysis.rules.held_out import held_out, held_out_progress
from gradwatch.analysis.rules.plateaus import finding_of
from gradwatch.analysis.rules.progress import judged_losses
from gradwatch.analysis.rules.series import deviation
from gradwatch.history import History


def not_held_out(history: History, min_steps: int, running: int, share: float, least: int = 20) -> list[Finding]:
    """The training losses fall to less than half, and nothing that is measured on other data was ever better."""
    known = judged_losses(history, min_steps, running)
    if not known or not all(p.is_large(0.5) for p in known):
        return []
    unseen = held_out_progress(history, least)
    good = (higher_is_better(p.metric, [history]) and 0.9 < p.ended <= 1 for p in unseen)  # from the first epoch on
    better = (
        p.is_large(share) or p.won > 0.2 * abs(p.first) or abs(p.best - p.began) > 0.05 * abs(p.began) for p in unseen
    )
    if not unseen or any(better) or any(good):
        return []
    shown, other = known[0], unseen[0]
    return finding_of(
        history,
        other,
        Why(
            f"{shown.metric} falls from {shown.began:.4g} to {shown.ended:.4g}, and {other.in_words}. "
            f"{either(_BY_HEART)}",
            f"Measure what {other.metric} measures on the training data: if it is good there, regularise or take more "
            "data; if not, look at what else lowers the loss (all outputs alike, for one).",
            {},
            alternatives=_BY_HEART,
        ),
    )


_BY_HEART = (
    "the training data are learnt by heart",
    "the loss can be lowered without what is measured on other data",
)


def lost_at_once(history: History, least: int = 8, part: float = 0.5, sigmas: float = 6.0) -> list[Finding]:
    """What is measured on other data got worse from one value to the next, and no later value came back half the way.

    By more than the share `part` of all that it had won, and `sigmas` times what it moves from value to value. What is
    learnt by heart makes it worse little by little.
    """
    for name, sign, rows, worse in held_out(history, least):
        steps = np.diff(worse)
        at = 3 + int(steps[2:-2].argmax())
        before, after = float(np.median(worse[at - 3 : at])), float(np.median(worse[at:]))
        lost, won = after - before, worse[0] - before
        usual = deviation(steps)
        if lost > max(part * won, sigmas * usual, 0) and won > 0 and (worse[at:] > before + lost / 2).all():
            return [_lost(history, name, sign, (before, after), rows[at - 1 : at + 1])]
    return []


def _lost(history: History, name: str, sign: int, values: tuple[float, float], rows: NDArray[np.intp]) -> Finding:
    last, first = (int(step) for step in history.step[rows])
    before, after = (sign * value for value in values)
    return Finding(
        "no-progress",
        "warning",
        (),
        last,
        int(history.step[-1]),
        {"metric": name, "before": before, "after": after, "lost_by": first},
        f"{name} had come to {before:.4g} by step {last}, and stands at {after:.4g} from step {first} on. "
        f"{either(_OF_A_LOSS)}",
        f"Compare batches from before step {last} with those after it: their order, their labels, how they are made. "
        "If they are alike, look at what else came there (a reload, a schedule, a spike), and go on from a checkpoint "
        "from before it.",
        alternatives=_OF_A_LOSS,
    )


_OF_A_LOSS = (
    "the training data, or what is asked for, are others from there on",
    "the weights were thrown out or written to there",
)
