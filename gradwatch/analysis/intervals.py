"""Means and differences over seeds with their 95 % intervals: Student's t, by scipy.

Seeds are the sample: what is said holds for other seeds of the same script, data and machine, not for other data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gradwatch.formatting import counted

CONFIDENCE = 0.95
NAN = float("nan")
RATIOS = "as ratios"


@dataclass(frozen=True)
class Estimate:
    """A mean or a difference of means over `n` seeds; `low` to `high` is its 95 % interval, NaN where n is too small.

    `method` says what a difference was taken over; of ratios it is a share (see `change`). `p` is the two-sided p-value
    of a difference of 0, NaN where there is no interval.
    """

    value: float
    low: float = NAN
    high: float = NAN
    n: int = 0
    method: str = ""
    p: float = NAN

    @property
    def has_interval(self) -> bool:
        """Whether there were seeds enough (two) for an interval."""
        return self.low == self.low

    @property
    def is_share(self) -> bool:
        """Whether this is a relative change."""
        return self.method.startswith(RATIOS)

    def side(self) -> int:
        """1 where the whole interval lies above 0, -1 where below; 0 where it holds 0, or is none."""
        return 1 if self.low > 0 else -1 if self.high < 0 else 0


def mean(values: Sequence[float]) -> Estimate:
    """The mean of the finite values with its t interval; without one where there are fewer than two."""
    sample = np.asarray(values, np.float64)
    sample = sample[np.isfinite(sample)]
    n = len(sample)
    if n < 2:
        return Estimate(float(sample.mean()) if n else NAN, n=n)
    centre, error = float(sample.mean()), float(sample.std(ddof=1) / np.sqrt(n))
    if error == 0:  # the t distribution of scale 0 is NaN
        return Estimate(centre, centre, centre, n, p=float(centre == 0))
    from scipy import stats

    low, high = stats.t.interval(CONFIDENCE, n - 1, loc=centre, scale=error)
    return Estimate(centre, float(low), float(high), n, p=float(2 * stats.t.sf(abs(centre) / error, n - 1)))


def difference(ours: Mapping[str, float], theirs: Mapping[str, float]) -> Estimate:
    """Ours minus theirs: by pairs of runs with the same seed where there are at least two, else by Welch's interval.

    Both map a seed to the final value of its run; values that are not finite are left out.
    """
    ours, theirs = _finite(ours), _finite(theirs)
    common = [seed for seed in ours if seed in theirs]
    if len(common) > 1 or (common and len(ours) == len(theirs) == 1):
        paired = mean([ours[seed] - theirs[seed] for seed in common])
        method = f"paired over {counted(len(common), 'seed')}"
        return replace(paired, method=method)
    return _welch(list(ours.values()), list(theirs.values()))


def change(ours: Mapping[str, float], theirs: Mapping[str, float]) -> Estimate:
    """How much larger ours are than theirs, as a share (-0.25: a quarter less): `difference` of the logarithms.

    Where seeds hardly differ it agrees with the difference of the values. Where they do, as with a loss that is about
    to explode, losses are spread by factors, and one large value would widen the interval of a difference for all.
    All values must be positive.
    """
    logs = [{seed: float(np.log(value)) for seed, value in _finite(values).items()} for values in (ours, theirs)]
    found = difference(*logs)
    value, low, high = (float(np.expm1(x)) for x in (found.value, found.low, found.high))
    return replace(found, value=value, low=low, high=high, method=f"{RATIOS}, {found.method}")


def _welch(ours: list[float], theirs: list[float]) -> Estimate:
    """The difference of two independent means, whose spreads may differ [Welch 1947]."""
    method = f"not paired: {len(ours)} and {len(theirs)} runs of different seeds"
    n = min(len(ours), len(theirs))
    if n == 0:
        return Estimate(NAN, method=method)
    value = float(np.mean(ours) - np.mean(theirs))
    if n < 2:
        return Estimate(value, n=n, method=method)
    if np.std(ours) == np.std(theirs) == 0:
        return Estimate(value, value, value, n, method, p=float(value == 0))
    from scipy import stats

    test = stats.ttest_ind(ours, theirs, equal_var=False)
    found = test.confidence_interval(CONFIDENCE)
    method = f"{method}, by Welch's interval"
    return Estimate(value, float(found.low), float(found.high), n, method, float(test.pvalue))


def seeds_wanted(found: Estimate, most: int = 50) -> int | None:
    """How many seeds would show a difference that stays as large, beside seeds that differ as much; None: over `most`.

    The smallest m at which t(m - 1) * s / sqrt(m) is below the difference; s is what the interval of `n` seeds says. Of
    ratios it is counted in logarithms, as the interval is.
    """
    from scipy import stats

    ends = np.array([found.low, found.high])
    low, high = np.log1p(ends) if found.is_share else ends

    def width(seeds: int) -> float:
        return float(stats.t.ppf((1 + CONFIDENCE) / 2, seeds - 1) / np.sqrt(seeds))

    reached = abs(low + high) / (high - low) * width(found.n) if high > low else np.inf
    return next((seeds for seeds in range(found.n + 1, most + 1) if width(seeds) < reached), None)


def holm(p_values: Sequence[float]) -> list[bool]:
    """Which of several differences are shown together, so that one false verdict in all of them has at most 5 % chance.

    Holm's step-down of Bonferroni: the smallest p is held against 0.05 / k, the next against 0.05 / (k - 1), and so on,
    until one fails [Holm 1979]. A p that is NaN takes no part and is not shown.
    """
    ranked = sorted((p, i) for i, p in enumerate(p_values) if not np.isnan(p))
    shown = [False] * len(p_values)
    for done, (p, i) in enumerate(ranked):
        if p > (1 - CONFIDENCE) / (len(ranked) - done):
            break
        shown[i] = True
    return shown


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    return {seed: value for seed, value in values.items() if np.isfinite(value)}
