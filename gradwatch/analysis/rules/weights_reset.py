"""Weights that the loop itself sets back every so often: what was learnt since is gone each time.

Legend: T recorded steps, E steps before which something else than the optimizer wrote to the weights.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.rules.facts import middle
from gradwatch.analysis.rules.finding import Finding, either, whole_run
from gradwatch.analysis.rules.losses import has_rivals
from gradwatch.analysis.rules.owners import written_before
from gradwatch.analysis.rules.progress import loss_progress, unmoved
from gradwatch.analysis.rules.unchanged import weights_unchanged
from gradwatch.analysis.rules.weight_growth import weights_shrink
from gradwatch.formatting import percent
from gradwatch.history import Floats, History

Rows = NDArray[np.intp]
_RESETS = (
    "what it loads is older than what was learnt since (the worst is kept for the best, a copy of the beginning)",
    "nothing is learnt for another reason, and what it writes is meant (an average)",
)


def weights_reset(
    history: History, least: int = 5, apart: int = 3, kept: float = 0.25, sigmas: float = 8.0
) -> list[Finding]:
    """The loop writes to the weights between some steps, and either the loss leaps up there, nearly as far as it fell
    since the last time, or it never gets better. A warning.

    `weight_writes` counts what is written by torch's own counter of the first weight, in `least` or more gaps between
    steps, at most in every `apart`th. The loss leaps where its median after a gap is above the one before, on the mean
    over all gaps by `sigmas` standard errors of that; and what it leaps to falls from one gap to the next by less than
    the share `kept` of a leap. Not said of parts that train against each other.
    Source: the standard error of a median; torch's documentation of `load_state_dict`, which copies in place.
    """
    at = written_before(history)
    if len(at) < least or len(at) > len(history) / apart or has_rivals(history):
        return []
    for shown in loss_progress(history):
        loss = history.total(shown.metric)
        before, after = _around(loss, at)
        leap, error = _mean(after - before)
        if leap > sigmas * error and after[0] - after[-1] < kept * leap * (len(at) - 1):
            said = (
                f"{shown.metric} leaps from {middle(before):.4g} to {middle(after):.4g} there: most of what was learnt "
                "since the last time is gone."
            )
            return [_finding(history, at, said, ())]
    flat = unmoved(history, 100, 500, 0.02)
    never = flat and np.ptp(at) > len(history) / 2 and all(p.is_flat(0.1) for p in flat)
    if never and not (weights_shrink(history) or weights_unchanged(history)):  # asked last: they go through all layers
        said = f"{flat[0].in_words}."
        return [_finding(history, at, f"{said} {either(_RESETS)}", _RESETS)]
    return []


def _width(at: Rows) -> int:
    """How many steps before and after a gap are looked at: half of what lies between two of them."""
    return int(np.clip(np.median(np.diff(at)) // 2, 1, 10))


def _around(loss: Floats, at: Rows) -> tuple[Floats, Floats]:
    """The median loss before and after each gap, `[E]`."""
    width = _width(at)
    return (
        np.array([middle(loss[max(0, row - width) : row]) for row in at]),
        np.array([middle(loss[row : row + width]) for row in at]),
    )


def _mean(values: Floats) -> tuple[float, float]:
    """The mean of the finite values, and its standard error."""
    known = values[np.isfinite(values)]
    if len(known) < 3:
        return math.nan, math.nan
    return float(known.mean()), float(known.std(ddof=1) / math.sqrt(len(known)))


def _finding(history: History, at: Rows, said: str, causes: tuple[str, ...]) -> Finding:
    every = float(np.median(np.diff(at)))
    return whole_run(  # from the first step: what the optimizer loses with the weights follows from it
        history,
        "weights-reset",
        (),
        {"writes": len(at), "steps_between": every, "share_of_steps": percent(len(at) / len(history))},
        f"The loop writes to the weights between {len(at)} pairs of steps, about every {every:.0f} steps. {said}",
        "Look at what the loop does there: a load_state_dict, a copy_, an average. Which weights are kept, and whether "
        "the comparison that keeps them points the right way; load them once, after the training.",
        causes,
    )
