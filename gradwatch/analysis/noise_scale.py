"""The gradient noise scale: how many batches' worth of examples a step could average before its direction is clear.

Legend: T recorded steps.
"""

from __future__ import annotations

import numpy as np

from gradwatch.analysis.clips import incoming
from gradwatch.history import Floats, History
from gradwatch.table import nanmean


def estimates(history: History) -> tuple[Floats, Floats]:
    """The squared norm of the true gradient, |G|^2, and the variance of a batch's gradient, S, of each step: `[T]`,
    unbiased and so noisy that single ones may be negative; NaN where they are not known.

    Of a step the norm is known for its whole batch, B, and for a part b of it: the first of its micro-batches
    (`watch(..., noise_scale=True)`), or each rank's own (`ranks=True`). With n = B / b
    |G|^2 = (n |G_B|^2 - |G_b|^2) / (n - 1), S = (|G_b|^2 - |G_B|^2) / (n - 1), in units of the batch B.
    Source: McCandlish et al. 2018, arXiv:1812.06162, appendix A.1.
    """
    ranks = [history.total(name) for name in history.per_step if name.startswith("rank_grad_norm/")]
    if len(ranks) > 1 and "micro_grad_norm" not in history.per_step:
        n, small = np.full(len(history), float(len(ranks))), np.mean(np.square(ranks), axis=0)
    else:
        n, small = history.total("micro_batches"), history.total("micro_grad_norm") ** 2
    large = incoming(history) ** 2
    known = np.isfinite(small) & np.isfinite(large) & (n > 1)
    n, small, large = (np.where(known, values, np.nan) for values in (n, small, large))
    return (n * large - small) / (n - 1), (small - large) / (n - 1)


def noise_scale(signal: Floats, noise: Floats) -> float:
    """S / |G|^2 in batches, of the means over these steps; inf where the signal is lost, NaN where nothing is known.

    Averaged first and divided then: the quotient of a single step is biased, and may be of two negative numbers.
    """
    g2, s = float(nanmean(signal)), float(nanmean(noise))
    return max(s, 0.0) / g2 if g2 > 0 else float("nan") if np.isnan(g2) else float("inf")


def trailing(signal: Floats, noise: Floats, width: int) -> Floats:
    """The noise scale over the last `width` steps up to each of these, `[T]`, of which none is NaN."""
    sums = [np.cumsum(np.append(np.zeros(1), values)) for values in (signal, noise)]
    start = np.maximum(np.arange(len(signal)) + 1 - width, 0)
    g2, s = (total[1:] - total[start] for total in sums)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(g2 > 0, np.maximum(s, 0) / g2, np.inf)
