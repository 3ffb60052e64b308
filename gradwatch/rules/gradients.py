"""Diseases of the gradient itself: it is not a number, it explodes, or it is exactly zero.

Legend: T recorded steps, L layers.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from gradwatch.history import Floats, History
from gradwatch.rules.finding import Finding


def nonfinite(history: History) -> list[Finding]:
    """A gradient norm that is inf or NaN: an error, or a warning when the policy skipped every such step.

    `layers` are those of the first such step, in model order.
    Source: SageMaker Debugger's ExplodingTensor (any non-finite value).
    """
    cells = history.layer("nonfinite") > 0  # [T, L]
    bad = cells.any(axis=1) | (history.total("nonfinite") > 0) | np.isinf(history.total("grad_norm"))
    rows = np.flatnonzero(bad)
    if not len(rows):
        return []
    first = rows[0]
    skipped = bool((history.total("skipped")[rows] > 0).all())
    return [
        Finding(
            rule="nonfinite",
            severity="warning" if skipped else "error",
            layers=tuple(name for name, hit in zip(history.layers, cells[first], strict=True) if hit),
            first_step=int(history.step[first]),
            last_step=int(history.step[rows[-1]]),
            evidence={
                "steps": len(rows),
                "layers": int(cells.any(axis=0).sum()),
                "skipped": "yes" if skipped else "no",
            },
            cause="The loss or one of its derivatives left the range of its dtype: too high a learning rate, a "
            "logarithm or square root at 0, or a low-precision overflow.",
            cure="The policy skipped these steps; look at the batches and the loss scale if they keep coming."
            if skipped
            else "Put SkipNonfinite() first in the chain, lower the learning rate, and look at the loss of that step.",
        )
    ]


def dead_layer(history: History, min_steps: int = 10, most: float = 0.5, often: float = 0.5) -> list[Finding]:
    """Layers whose gradient was exactly zero whenever it was seen in the second half of the run.

    Of a network that is dying, most layers are zero for most batches: when more than the share `most` of the layers
    had an exactly zero gradient in more than the share `often` of those steps, these are all dead, and it is an error.
    Fewer layers are a warning, and must be zero throughout (a head that is used now and then is not dead). A layer must
    have been seen in at least `min_steps` steps of that half.
    Source: dead ReLU units give exact zeros (methods: S4); SageMaker Debugger's DyingReLU.
    """
    norm = history.layer("grad_norm")  # [T, L]
    late = norm[len(norm) // 2 :]
    seen = (~np.isnan(late)).sum(axis=0)
    zero_share = np.where(seen >= min_steps, (late == 0).sum(axis=0) / np.maximum(seen, 1), 0)
    dead = zero_share > often
    dying_network = dead.sum() > most * len(dead)
    if not dying_network:
        dead = zero_share == 1
    if not dead.any():
        return []
    gone = ((norm[:, dead] == 0) | np.isnan(norm[:, dead])).all(axis=1)
    return [
        Finding(
            rule="dead-layer",
            severity="error" if dying_network else "warning",
            layers=tuple(name for name, hit in zip(history.layers, dead, strict=True) if hit),
            first_step=int(history.step[gone.argmax()]),
            last_step=int(history.step[-1]),
            evidence={"layers": int(dead.sum()), "of": len(dead)},
            cause="No gradient reaches these weights: their units are dead or saturated, or nothing depends on them.",
            cure="Lower the learning rate, check the initialisation and the biases, or use an activation that leaks; "
            "freeze the layers if they are meant to rest.",
        )
    ]


def exploding(history: History, decades: float = 2.0, blind_decades: float = 3.0, width: int = 5) -> list[Finding]:
    """The training came apart with finite numbers: by the gradient norm, or else by the loss.

    By the norm: it stayed `decades` powers of ten above the run's own early median for `width` steps in a row while the
    training loss did not improve (`blind_decades` where no loss was logged). By the loss: see `_loss_jump` and
    `_thrown_out`. All are relative to the run itself, so noise, one spike, or leaving a plateau gives no alarm.
    Where other parts of the run log losses too they may train against each other: a loss that does not fall is no sign.
    Source: growth against the run's own past (OLMo-core's stability monitor), the jump over the running minimum (S5).
    """
    losses = {name: history.total(name) for name in training_losses(history)}
    alone = not _has_rivals(history)
    growth, rows = _sustained_growth(history.total("grad_norm"), width)
    grown = np.flatnonzero(growth >= (decades if losses and alone else blind_decades))
    if len(grown) and not any(_improved(values, width) for values in losses.values()):
        return [_explosion(history, rows[grown[0]], {"grad_norm_growth": float(10 ** growth.max())})]
    for name, values in losses.items():
        jump = (alone and _loss_jump(values, width)) or _thrown_out(values, history.total("grad_norm"), width)
        if jump:
            row, evidence = jump
            return [_explosion(history, row, {"metric": name, **evidence})]
    return []


def training_losses(history: History) -> list[str]:
    """Logged names that are losses of the training data (a validation loss also rises by over-fitting)."""
    names = [name for name in history.logged if "loss" in name.lower() and not _HELD_OUT.search(name)]
    return [name for name in names if np.isfinite(history.total(name)).sum() > 1]


def _has_rivals(history: History) -> bool:
    """Whether this is a part of a run, or one lane of several and others have logged a loss (not once seen here)."""
    losses = [history.total(name) for name in history.logged if "loss" in name.lower()]
    return history.run.part is not None or any(np.isnan(values).all() for values in losses)


_HELD_OUT = re.compile(r"val|test|eval|dev|hold", re.IGNORECASE)


def _explosion(history: History, row: int, evidence: dict[str, float | str]) -> Finding:
    return Finding(
        rule="exploding",
        severity="error",
        layers=(),
        first_step=int(history.step[row]),
        last_step=int(history.step[-1]),
        evidence=evidence,
        cause="The steps are larger than the loss surface allows: the learning rate is too high for this network, or "
        "one extreme batch threw it out of its valley.",
        cure="Lower the learning rate or warm it up, and clip: ClipByGlobalNorm at the early median of the norm.",
    )


def _sustained_growth(norm: Floats, width: int) -> tuple[Floats, NDArray[np.intp]]:
    """For each `width` finite steps in a row: their lowest log10 over the early median, and the row they start at.

    The early median is that of the first tenth of the finite steps, at least `width` of them.
    """
    rows = np.flatnonzero(np.isfinite(norm) & (norm > 0))
    if len(rows) < 3 * width:
        return np.zeros(0), rows
    logs = np.log10(norm[rows])
    early = np.median(logs[: max(width, len(logs) // 10)])
    return np.lib.stride_tricks.sliding_window_view(logs - early, width).min(axis=1), rows


def _improved(values: Floats, width: int) -> bool:
    """Whether the last values are below the first ones, by their medians."""
    finite = values[np.isfinite(values)]
    n = min(width, len(finite) // 2)
    return bool(np.median(finite[-n:]) < np.median(finite[:n]))


def _loss_jump(
    values: Floats, width: int, share: float = 0.5, sigmas: float = 6.0
) -> tuple[int, dict[str, float | str]] | None:
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
    noise = 1.4826 * float(np.median(np.abs(blocks - smooth[:, None])))
    start, low, end = float(smooth[0]), float(smooth.min()), float(smooth[-1])
    if end - low <= max(share * (start - low), sigmas * noise, abs(start) / 4):
        return None
    lowest = int(smooth.argmin())
    left = lowest + int(np.argmax(smooth[lowest:] > (low + end) / 2))
    return int(rows[left * block]), {"start": start, "lowest": low, "end": end}


def _thrown_out(
    values: Floats, norm: Floats, width: int, jump: float = 5.0, growth: float = 20.0, above: float = 1.1
) -> tuple[int, dict[str, float | str]] | None:
    """The row at which a training was thrown out of its start and never came back, and the numbers.

    Alarm: the loss rose to `jump` times its first value and ended `above` times it, and the gradient norm grew to
    `growth` times its own first value. (A generator's loss may end above its start; its gradients do not grow so.)
    """
    rows, norms = np.flatnonzero(np.isfinite(values)), norm[np.isfinite(norm) & (norm > 0)]
    if len(rows) < 3 * width or not len(norms) or values[rows[0]] <= 0:
        return None
    finite = values[rows]
    start, highest, end = (
        float(finite[0]),
        float(finite.max()),
        float(np.median(finite[-max(width, len(rows) // 40) :])),
    )
    if highest <= jump * start or end <= above * start or norms.max() <= growth * norms[0]:
        return None
    row = rows[int(np.argmax(finite > (1 + jump) / 2 * start))]
    return int(row), {"start": start, "highest": highest, "end": end, "grad_norm_growth": float(norms.max() / norms[0])}
