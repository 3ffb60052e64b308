"""Whether a gradient norm or a loss came apart, by its own values over the steps alone.

Legend: T recorded steps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.rules.finding import Evidence
from gradwatch.analysis.rules.series import OF_MEDIAN, deviation, noise_of_one
from gradwatch.history import Floats


def leapt(norm: Floats, row: int, times: float = 30.0, usual: int = 16) -> bool:
    """Whether the norm leapt in one step near a row, to `times` the highest of the `usual` ones before it."""
    before = np.lib.stride_tricks.sliding_window_view(norm, usual)[:-1].max(axis=1)  # of norm[usual:]
    with np.errstate(invalid="ignore", divide="ignore"):
        leaps = usual + np.flatnonzero(norm[usual:] > times * before)
    return bool((np.abs(leaps - row) <= usual).any())


def sustained_growth(norm: Floats, width: int) -> tuple[Floats, NDArray[np.intp]]:
    """For each `width` finite steps in a row: their lowest log10 over the early median, and the row they start at.

    The early median is that of the first tenth of the finite steps, at least `width` of them, or of the first `width`
    where these were higher: from a norm that collapsed nothing has grown.
    """
    rows = np.flatnonzero(np.isfinite(norm) & (norm > 0))
    if len(rows) < 3 * width:
        return _risen(norm[rows]), rows[-(len(rows) // 3) :]
    logs = np.log10(norm[rows])
    early = max(np.median(logs[: max(width, len(logs) // 10)]), np.median(logs[:width]))
    return np.lib.stride_tricks.sliding_window_view(logs - early, width).min(axis=1), rows


def _risen(norm: Floats, least: int = 4) -> Floats:
    """Of a short run: log10 of the lowest norm of its last third over the highest of its first, one value or none."""
    third = len(norm) // 3
    return np.log10(norm[-third:].min(keepdims=True) / norm[:third].max()) if len(norm) >= least else np.zeros(0)


def improved(values: Floats, width: int) -> bool:
    """Whether the last values are below the first ones, by their medians."""
    finite = values[np.isfinite(values)]
    n = min(width, len(finite) // 2)
    return bool(np.median(finite[-n:]) < np.median(finite[:n]))


def loss_jump(values: Floats, width: int, share: float = 0.5, sigmas: float = 6.0) -> tuple[int, Evidence] | None:
    """The row at which a loss left its minimum for good, and the numbers; None for a loss that stayed near it.

    Alarm: it ended above its smoothed minimum by more than `share` of all it had won, by more than `sigmas` robust
    standard deviations of its noise, and by more than a quarter of where it started.
    """
    rows = np.flatnonzero(np.isfinite(values))
    block = max(width, len(rows) // 40)  # medians of blocks: the minimum of a noisy curve is low by luck
    if len(rows) < 3 * block:
        return None
    rows = rows[len(rows) % block :]
    blocks = values[rows].reshape(-1, block)
    smooth = np.median(blocks, axis=1)
    noise = deviation(blocks - smooth[:, None])
    start, low, end = float(smooth[0]), float(smooth.min()), float(smooth[-1])
    if end - low <= max(share * (start - low), sigmas * noise, abs(start) / 4):
        return None
    lowest = int(smooth.argmin())
    left = lowest + int(np.argmax(smooth[lowest:] > (low + end) / 2))
    return int(rows[left * block]), {"start": start, "lowest": low, "end": end}


def ran_off(
    values: Floats, norm: Floats, width: int, times: float = 20.0, least: float = 0.1, steeper: float = 10.0
) -> tuple[int, Evidence] | None:
    """The row at which a rival's loss left the size it began with for good, and the numbers.

    Alarm: in the last quarter of the run it is `times` its first values, by the median, and these say something: above
    `least`. In healthy trainings of the tests it is 3 times them at most. Of what is ever below 0, a score whose
    level says nothing, the gradient `norm` must have grown, too: to `steeper` times its first ones.
    """
    rows, norms = np.flatnonzero(np.isfinite(values)), norm[np.isfinite(norm)]
    if len(rows) < 4 * width:
        return None
    if values[rows].min() < 0 and not np.median(norms[-(len(norms) // 4) :]) > steeper * np.median(norms[:3]):
        return None
    finite = np.abs(values[rows])
    start, end = float(np.median(finite[:3])), float(np.median(finite[-(len(rows) // 4) :]))
    if start < least or end <= times * start:
        return None
    row = rows[int(np.argmax(finite > np.sqrt(times) * start))]
    return int(row), {"start": start, "highest": float(finite.max()), "end": end}


def thrown_out(
    values: Floats, norm: Floats, width: int, alone: bool, jump: float = 5.0, growth: float = 20.0, above: float = 1.1
) -> tuple[int, Evidence] | None:
    """The row at which a training was thrown out of its start and never came back, and the numbers.

    Alarm: the loss rose to `jump` times its first value and ended `above` times it, clear of its noise, and the
    gradient norm grew to `growth` times its own first value; of rivals to as many times its median over their first
    quarter, for a judge that knows nothing yet hands on next to no gradient. (A generator's loss may end above its
    start.) What is ever below 0 is a score, whose level says nothing.
    """
    rows, norms = np.flatnonzero(np.isfinite(values)), norm[np.isfinite(norm) & (norm > 0)]
    finite = values[rows]
    if len(rows) < 3 * width or not len(norms) or finite[0] <= 0 or finite.min() < 0:
        return None
    start, highest, end = (
        float(finite[0]),
        float(finite.max()),
        float(np.median(finite[-max(width, len(rows) // 40) :])),
    )
    first = float(norms[0] if alone else np.median(norms[: -(-len(norms) // 4)]))
    unclear = 3 * OF_MEDIAN * noise_of_one(finite) / np.sqrt(max(width, len(rows) // 40))  # of the median at the end
    if highest <= jump * start or end <= above * start + unclear or norms.max() <= growth * first:
        return None
    row = rows[int(np.argmax(finite > (1 + jump) / 2 * start))]
    return int(row), {"start": start, "highest": highest, "end": end, "grad_norm_growth": float(norms.max() / first)}
