"""What rules ask of a series: how much of it is noise, where it came to, and where something holds in it.

Legend: N values of a series, or places of a mask; S stretches of it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from gradwatch.history import Bools, Floats

ROBUST = 1.4826  # the standard deviation over the median distance from the median, of normal values
OF_MEDIAN = 1.2533  # the standard error of a median over that of a mean: pi / 2 more variance, of normal values


def deviation(distances: Floats) -> float:
    """The standard deviation of what lies so far from where it would be, `[N]`, whatever stands out.

    Source: Rousseeuw & Croux 1993, doi:10.1080/01621459.1993.10476408, section 1 (the median absolute deviation).
    """
    return ROBUST * float(np.median(np.abs(distances)))


def noise_of_one(values: Floats) -> float:
    """The standard deviation of one value `[N]`, whatever the trend: by the steps from each to the next."""
    return deviation(np.diff(values)) / math.sqrt(2)


def quietest(distances: Floats) -> float:
    """The `deviation` in the quarter of the series where it is least."""
    return min(deviation(part) for part in np.array_split(distances, 4))


def late_median(values: Floats, least: int = 3) -> float:
    """Where a series `[N]` came to: the median of its last quarter, of the `least` last values or more."""
    return float(np.median(values[-max(least, len(values) // 4) :]))


def stretches(mask: Bools) -> NDArray[np.intp]:
    """Where a mask `[N]` holds without a break: the first place of each stretch and the one after it, `[S, 2]`."""
    return np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0, append=0)).reshape(-1, 2)


def holds_from(mask: Bools | np.bool_) -> int:  # which numpy types of what `all(axis=1)` gives
    """The place from which on a mask `[N]` holds to its end; N where its last place is broken."""
    broken = np.flatnonzero(~mask)
    return int(broken[-1]) + 1 if len(broken) else 0
