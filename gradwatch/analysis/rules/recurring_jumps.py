"""Jumps of a loss that come again after so many steps each: something is exchanged in the training, no batch is odd."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.rules.finding import Finding


def exchanged(steps: NDArray[Any]) -> Finding | None:
    """The note that the loss jumps in these steps, every so many; None where it is not so."""
    every = period(steps)
    if not every:
        return None
    return Finding(
        "spike",
        "note",
        (),
        int(steps[0]),
        int(steps[-1]),
        {"spikes": len(steps), "in_loss": len(steps), "every": every},
        f"The loss jumps every {every} steps, and falls again: something is exchanged there, as a target network that "
        "is copied, or data that come in turn. No batch is odd.",
        "Nothing needs to change where a target network is copied so: from then on another thing is asked for. A copy "
        "that moves a little in every step (tau = 0.005) makes no such jumps. Where data come in turn, mix them.",
    )


def period(
    steps: NDArray[Any], least: int = 16, within: float = 0.2, share: float = 0.9, turns: int = 3, most: float = 0.7
) -> int:
    """After how many steps the jumps in these steps come again, `least` at least; 0 where they do not.

    The `share` of the steps lies at the beginning of a period, `within` that part of it; and so begin `most` periods
    from the first to the last, and as many as `turns`: the beginning of the training is one where they are counted from
    there, as a copy every so many steps is.
    """
    begins = steps[np.flatnonzero(np.diff(steps, prepend=-2) > 1)]
    for start, length in [(0, begins[0]), *((begins[0], later - begins[0]) for later in begins[1:])]:
        if length < least:
            continue
        turn, behind = np.divmod(steps + 1 - start, length)  # a step of tolerance: who counts from 1
        near = behind <= within * length
        hit = np.unique(np.append(turn[near], 0))
        if near.mean() >= share and len(hit) >= max(turns, most * (hit[-1] + 1)):
            return int(length)
    return 0
