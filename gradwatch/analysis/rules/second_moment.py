"""Gradients that Adam was not prepared for: far larger than its own estimate, so its step is too long.

Legend: R recorded rows, L layers.
"""

from __future__ import annotations

import numpy as np

from gradwatch.analysis.clips import incoming
from gradwatch.analysis.rules.facts import USUAL_RATIO, middle, rates, settings
from gradwatch.analysis.rules.finding import Evidence, Finding, Severity
from gradwatch.analysis.rules.layer_facts import matrices, measured, pick
from gradwatch.analysis.rules.losses import has_rivals, training_losses
from gradwatch.analysis.rules.progress import comes_to_rest, succeeds
from gradwatch.analysis.rules.series import holds_from
from gradwatch.history import History


def stale_second_moment(
    history: History, limit: float = 3.0, moved: float = 3.0, warm: int = 20, min_rows: int = 16
) -> list[Finding]:
    """Steps in which a layer's gradient was more than `limit` times what Adam's v says, and moved the weights for it.

    By `adam_rms` above `limit`, and an update of that step or the next measured one of more than `moved` times the
    layer's median, from step `warm` on. A clip of the norm does not see it: the gradient may be small beside the
    others. Needs both on the step in question: `slots=True`.
    Source: Wortsman et al. 2023, arXiv:2304.13013 (loss spikes follow within 8 steps where this root mean square is
    well above 1; its StableAdamW divides the learning rate by it).

    Without `slots`, steps that became short as v still holds the gradients of the first ones (`_of_the_first_steps`).
    """
    if "adam_rms" not in history.per_layer:
        return _of_the_first_steps(history)
    rows = np.flatnonzero(np.isfinite(history.layer("adam_rms")).any(axis=1))
    if len(rows) < min_rows:
        return []
    step = history.layer_step[rows]
    rms, lengths = (history.layer(name)[rows].astype(np.float64) for name in ("adam_rms", "update_norm"))
    usual = np.nanmedian(np.where(np.isfinite(lengths).any(axis=0), lengths, 0.0), axis=0)
    following = np.vstack([lengths[1:], lengths[-1:]])  # momentum spreads a step over the next ones
    with np.errstate(invalid="ignore", divide="ignore"):
        times = np.fmax(lengths, following) / usual
        hit = (rms > limit) & (times > moved) & (step >= step[0] + warm)[:, None]  # [R, L]
    if not hit.any():
        return []
    at, layer = np.unravel_index(int(np.argmax(np.where(hit, rms, 0.0))), hit.shape)
    seen = np.flatnonzero(hit.any(axis=1))
    evidence: Evidence = {
        "adam_rms": float(rms[at, layer]), "step": int(step[at]), "layer": history.layers[layer],
        "update_over_usual": float(times[at, layer]), "steps": len(seen),
    }  # fmt: skip
    row = rows[at]
    share = float(history.layer("clipped_norm")[row, layer] / history.total("clipped_norm")[history.layer_rows[row]])
    if np.isfinite(share):
        evidence["share_of_norm"] = share
    severity: Severity = "note" if succeeds(history) else "warning"
    cause = (
        f"At step {step[at]} the gradient of `{history.layers[layer]}` was {rms[at, layer]:.3g} times what Adam's "
        f"second moment said, and moved the weights {times[at, layer]:.2g} times as far as usual: it was not prepared "
        "for a gradient that comes so rarely."
    )
    cure = (
        "Look at that step's batch. A lower beta2 learns the size of gradients sooner; a clip of the total norm does "
        "not see one layer."
    )
    names = pick(history, hit.any(axis=0))
    found = int(step[seen[0]]), int(step[seen[-1]])
    return [Finding("stale-second-moment", severity, names, *found, evidence, cause, cure)]


def _of_the_first_steps(
    history: History, times: float = 100.0, first: int = 10, short: float = 0.1, least: int = 5
) -> list[Finding]:
    """Adam's steps are short for good, since the gradients of the first steps were `times` those of later ones: of the
    `first`, or of as many up to a fifth of the run as were a third of that.

    In most matrices a typical step is less than the share `short` of a usual one, and of the first measured one, at a
    learning rate that is as it was, and v forgets too slowly: its memory, 1 / (1 - beta2) steps, is a third of those
    since at least. Not said where a loss got better since then or `comes_to_rest`, nor of parts that train against each
    other.
    Source: Kingma & Ba, arXiv:1412.6980, algorithm 1: v is a mean of squares over 1 / (1 - beta2) steps.
    """
    betas = [float(group["betas"][1]) for group in settings(history) if isinstance(group.get("betas"), list | tuple)]
    at, ratio = measured(history, "update_ratio")
    wide = matrices(history) & np.isfinite(ratio).any(axis=0) if len(at) else np.zeros(0, bool)
    norm, rate = incoming(history), rates(history)
    late = slice(len(norm) // 2, None)
    if not betas or len(at) < least or not wide.any() or len(norm) < 5 * first or has_rivals(history):
        return []
    if not np.isfinite(norm[:first]).any() or comes_to_rest(history):
        return []
    usual = middle(norm[late])
    first = max(first, holds_from(~(norm[: len(norm) // 5] > times / 3 * usual)))
    large = float(np.nanmax(norm[:first]))
    memory = 1 / max(1 - max(betas), 1e-9)
    steady = middle(rate[late].max(axis=1)) > 0.3 * np.nanmax(rate)
    began, ended = ratio[0, wide], np.array([middle(own) for own in ratio[len(ratio) // 2 :, wide].T])
    steady &= middle(norm[first : 3 * first]) < 3 * usual  # it fell at once
    is_short = np.median(ended) < short * min(USUAL_RATIO[True], float(np.median(began)))
    if not (large > times * usual > 0 and memory > len(norm) / 3 and steady and is_short) or _got_better(
        history, first
    ):
        return []
    names, beta2 = pick(history, wide), max(betas)
    return [
        Finding(
            "stale-second-moment",
            "warning",
            names,
            int(history.step[first]),
            int(history.step[-1]),
            {"first_grad_norm": large, "grad_norm": usual, "update_ratio": float(np.median(ended)), "beta2": beta2},
            f"The gradients of the first steps were {large / usual:.3g} times as large as those since. Adam divides by "
            f"their mean square over the last {memory:,.0f} steps (beta2 = {beta2:g}), which still holds them: a step "
            f"changes the weights by {np.median(ended):.1e} of their size, at first by {np.median(began):.1e}.",
            "Take the first batches' gradients down (a normaliser that has seen data, a clip from the first step on, "
            "targets of usual size), or make the optimizer anew behind them; a beta2 of 0.99 forgets sooner.",
        )
    ]


def _got_better(history: History, first: int, share: float = 0.3) -> bool:
    """Whether a training loss ended better by the `share` than it was after the `first` steps."""
    for name in training_losses(history):
        values = history.total(name)[first:]
        values = values[np.isfinite(values)]
        if len(values) > 20 and middle(values[-len(values) // 4 :]) < (1 - share) * middle(values[:20]):
            return True
    return False
