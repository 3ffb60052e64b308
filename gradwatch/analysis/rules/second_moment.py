"""Gradients that Adam was not prepared for: far larger than its own estimate, so its step is too long.

Legend: R recorded rows, L layers.
"""

from __future__ import annotations

import numpy as np

from gradwatch.analysis.rules.facts import pick
from gradwatch.analysis.rules.finding import Finding, Severity
from gradwatch.analysis.rules.progress import succeeds
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
    """
    if "adam_rms" not in history.per_layer:
        return []
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
    evidence: dict[str, float | str] = {
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
