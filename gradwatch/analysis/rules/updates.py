"""Diseases of the step: weights that do not move, or move too much or too little.

Legend: T recorded steps, L layers, M steps in which weights were measured.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.rules.facts import (
    LEAST_STEPS,
    is_adaptive,
    matrices,
    measured,
    optimizer_kind,
    pick,
    present,
    rates,
    set_rate,
    steps_taken,
)
from gradwatch.analysis.rules.finding import Finding
from gradwatch.formatting import percent, setting_text
from gradwatch.history import Bools, Floats, History

Rows = NDArray[np.intp]
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
USUAL = {True: 0.008, False: 0.04}  # measured update ratios: Adam at 1e-3, SGD at 0.5
_STRAY = re.compile(r"(^|\.)param_groups\.\d+\.\d+$|(^|\.)optimizer\.")


# --------------------------------------------------------------------------------------------------------- unchanged


def weights_unchanged(history: History, min_steps: int = 10, min_measured: int = 3) -> list[Finding]:
    """Gradients are there and the weights stay where they are, from some step to the end of the run.

    The cause is named where the record shows it: all steps dropped, gradients gone before the step, learning rate 0, a
    coefficient of 0, an update below the resolution of the weights' dtype. At least `min_steps` steps, and half of the
    run, must be so.
    Source: SageMaker Debugger's UnchangedTensor; GradScaler's dropped steps and zeroed gradients (traps).
    """
    if len(history) < min_steps:
        return []
    whole = _all_dropped(history, min_steps) or _no_gradients(history)
    return whole or _still(history, min_steps, min_measured)


def _tail(mask: Bools, least: int) -> int | None:
    """The row from which `mask` `[T]` holds to the end, if that is at least `least` rows and half of all; else None."""
    broken = np.flatnonzero(~mask)
    start = int(broken[-1]) + 1 if len(broken) else 0
    return start if len(mask) - start >= max(least, len(mask) / 2) else None


def _all_dropped(history: History, least: int) -> list[Finding]:
    skipped = history.total("skipped") > 0
    start = _tail(skipped, least)
    if start is None:
        return []
    scale = history.total("loss_scale")[start:]
    by_scaler = bool(np.isfinite(scale).all())
    lost = float(np.nanmean(history.total("nonfinite")[start:] > 0))
    evidence: dict[str, float | str] = {"skipped_steps": int(skipped[start:].sum()), "nonfinite_share": lost}
    if by_scaler:
        evidence["loss_scale"] = float(scale[-1])
        cause = f"The GradScaler drops every step: gradients overflow even at a loss scale of {scale[-1]:g}."
        cure = (
            "Look for the layer that overflows (nonfinite), keep it in float32 or bfloat16, and lower init_scale if "
            "the scale is still falling."
        )
    else:
        cause = f"The policy {history.run.clip} skips every step."
        cure = (
            "Find out why the gradients are not finite; if they are, raise the policy's sigma or use SkipNonfinite()."
        )
    return [_finding(history, "error", (), start, evidence, cause, cure)]


def _no_gradients(history: History) -> list[Finding]:
    norm, there = history.layer("grad_norm"), present(history)
    absent, zero = not there.any(), ((norm == 0) | ~there).all()
    if not zero or not norm.shape[1]:
        return []
    stray = [name for name in history.layers if _STRAY.search(name)]
    evidence: dict[str, float | str] = {"layers": norm.shape[1], "gradients": "absent" if absent else "exactly 0"}
    if absent and 2 * len(stray) > norm.shape[1]:
        evidence["not_in_model"] = len(stray)
        cause = f"The optimizer holds {len(stray)} tensors that the model does not: no gradient ever reaches them."
        cure = "Build the optimizer from model.parameters(), after the model was moved, wrapped or changed."
    else:
        cause = (
            "Every gradient is "
            + ("absent" if absent else "exactly 0")
            + " when the optimizer steps: zero_grad() stands "
            "between backward() and step(), or the loss does not depend on the weights."
        )
        cure = "The order is optimizer.zero_grad(), loss.backward(), optimizer.step()."
    return [_finding(history, "error", (), 0, evidence, cause, cure)]


def _still(history: History, least: int, least_measured: int) -> list[Finding]:
    """Layers that have gradients and do not move."""
    rows, ratio = measured(history, "update_ratio")
    if len(rows) < least_measured:
        return []
    norm, steps = history.layer("grad_norm")[rows], history.layer_rows[rows]
    dropped = history.total("skipped")[steps] > 0
    alive = np.isfinite(norm) & (norm > 0) & ~dropped[:, None]
    expected, eps = _expected(history, rows), _eps(history)
    share = 0.3 if not is_adaptive(history) else 0.05  # of what the step should have been; Adam's is only bounded
    with np.errstate(invalid="ignore"):
        frozen = ratio == 0
        lost = (expected < 2 * eps) & (expected > 0) & (ratio < share * expected)
    known = alive & ~np.isnan(ratio)
    moves = known & ~(frozen | lost)
    last = np.where(moves.any(axis=0), len(rows) - np.argmax(moves[::-1], axis=0), 0)  # [L]: still from here
    long = (len(rows) - last >= max(least_measured, len(rows) / 2)) & (
        len(history) - steps[np.minimum(last, len(rows) - 1)] >= least
    )
    seen = np.array([known[k:, i].sum() for i, k in enumerate(last)])
    still = long & (seen >= least_measured)
    return _explained(history, rows, still, last, expected, eps) if still.any() else []


def _explained(
    history: History,
    rows: Rows,
    still: Bools,
    last: Floats,
    expected: Floats,
    eps: Floats,
) -> list[Finding]:
    """One finding for the layers that stand still, with the cause that the record shows."""
    start = int(rows[int(last[still].min())])
    begin = int(history.layer_rows[start])
    groups = rates(history)[begin:]
    median = (
        np.nanmedian(expected[rows >= start][:, still])
        if np.isfinite(expected[rows >= start][:, still]).any()
        else np.nan
    )
    coef = history.layer("clip_coef")[start:][:, still]
    evidence: dict[str, float | str] = {
        "layers": int(still.sum()),
        "of": len(still),
        "lr": float(np.nanmedian(groups[:, 0])),
    }
    weights = matrices(history) if matrices(history).any() else np.ones(len(still), bool)
    everything = bool(still[weights].all())
    severity = "error" if everything else "warning"
    zero = [g for g in range(groups.shape[1]) if (groups[:, g] == 0).all()]
    dtypes = sorted({layer.dtype for layer in history.run.layers if layer.name in set(pick(history, still))})
    if zero:
        cause = "The learning rate is 0" + ("." if len(zero) == groups.shape[1] else f" in param group {zero[0]}.")
        cure = "Look at the scheduler: its warm-up must end, and its end must lie behind the last step; to freeze "
        cure += "layers, set requires_grad to False instead."
    elif coef.size and (coef == 0).all():
        cause, cure = f"The policy {history.run.clip} multiplies these gradients by 0.", "Raise its threshold."
    elif np.isnan(median) or median < 2 * float(np.max(eps[still])):
        evidence |= {"expected_update_ratio": float(median), "resolution": float(np.max(eps[still]) / 2)}
        cause = (
            f"The update is smaller than {' and '.join(dtypes)} can add to weights of this size: it is rounded away."
        )
        cure = "Keep the weights in float32 (autocast instead of a half-precision model), or raise the learning rate."
        if set(dtypes) <= {"float32", "float64"}:
            cure = "Raise the learning rate by decades."
    else:
        evidence["expected_update_ratio"] = float(median)
        cause = "The gradients are healthy and the step has no effect: something puts the weights back after it, or "
        cause += "the optimizer steps on copies."
        cure = "Look for what writes the weights after optimizer.step(): a load_state_dict, a constraint, a copy."
    return [_finding(history, severity, () if everything else pick(history, still), begin, evidence, cause, cure)]


def _expected(history: History, rows: Rows) -> Floats:
    """The update ratio that the step should have, `[M, L]`: lr * gradient for SGD, lr for each element for Adam."""
    rate = np.nanmax(np.where(np.isfinite(r := rates(history)[history.layer_rows[rows]]), r, 0.0), axis=1)[:, None]
    sizes = {layer.name: layer.numel for layer in history.run.layers}
    numel = np.array([sizes.get(name, 1) for name in history.layers])
    length = np.sqrt(numel)[None] if is_adaptive(history) else history.layer("clipped_norm")[rows]
    weight = history.layer("weight_norm")[rows].astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(weight > 0, rate * length / weight, np.nan))


def _eps(history: History) -> Floats:
    dtypes = {layer.name: layer.dtype for layer in history.run.layers}
    return np.array([EPS.get(dtypes.get(name, "float32"), EPS["float32"]) for name in history.layers])


def _finding(
    history: History,
    severity: str,
    layers: tuple[str, ...],
    row: int,
    evidence: dict[str, float | str],
    cause: str,
    cure: str,
    rule: str = "weights-unchanged",
    last_row: int = -1,
) -> Finding:
    step = history.step
    return Finding(rule, severity, layers, int(step[row]), int(step[last_row]), evidence, cause, cure)  # type: ignore[arg-type]


# -------------------------------------------------------------------------------------------------- too large, small


def update_too_large(
    history: History, adaptive: float = 0.2, sgd: float = 0.5, steps: int = 10, long: int = 50, plain: float = 1.0
) -> list[Finding]:
    """Weights that change by a large share of themselves in step after step.

    Of layers with two or more dimensions: the update ratio was above `adaptive` (Adam and its kin) or `sgd` in every
    measurement of more than `steps` steps, three at least. An error when most layers were so for more than `long`
    steps, or when each measurement of a run that is too short to judge otherwise had most of them above `plain`.
    Source: CS231n's update to weight ratio of about 1e-3; measured healthy: .008 (Adam 1e-3), .04 (SGD .5). The
    healthy trainings of the tests stay below .14 (Adam, first step) and .5 (SGD, first step), and below .04 later.
    """
    kind = is_adaptive(history)
    limit = adaptive if kind else sgd
    at, ratio = measured(history, "update_ratio")
    rows = history.layer_rows[at]
    wide = matrices(history)
    spells = {i: _spells(rows, ratio[:, i] > limit, steps) for i in np.flatnonzero(wide)}
    spells = {i: found for i, found in spells.items() if found}
    plainly = _plainly(history, ratio[:, wide], plain)
    if plainly:
        spells = {i: [(0, len(rows) - 1)] for i in np.flatnonzero(wide) if (ratio[:, i] > plain).any()}
    if not spells:
        return []
    first, end = min(s[0] for f in spells.values() for s in f), max(s[1] for f in spells.values() for s in f)
    lasting = sum(max(rows[b] - rows[a] for a, b in found) > long for found in spells.values())
    largest = max(float(np.nanmedian(ratio[a : b + 1, i])) for i, found in spells.items() for a, b in found)
    rate = set_rate(history)
    lower = setting_text(float(f"{rate * USUAL[kind] / largest:.0e}"))
    return [
        _finding(
            history,
            "error" if plainly or lasting > wide.sum() / 2 else "warning",
            pick(history, np.isin(np.arange(len(wide)), list(spells))),
            int(rows[first]),
            {"update_ratio": largest, "limit": limit, "usual": USUAL[kind], "lr": rate},
            f"Each step changes these weights by {percent(largest)} of their size; under {optimizer_kind(history)} "
            f"{percent(USUAL[kind])} is usual.",
            f"Lower the learning rate to about {lower}, or warm it up over the first few hundred steps"
            + (
                ": the size of a step does not depend on the size of the gradient here, so clipping does not help."
                if kind
                else "; clip if single batches do it."
            ),
            "update-too-large",
            int(rows[end]),
        )
    ]


def _plainly(history: History, ratio: Floats, limit: float) -> bool:
    """Whether all that a short run measured are steps longer than the weights themselves, `[M, W]`."""
    ratio = np.where(np.isfinite(ratio), ratio, np.nan)
    known = ratio[~np.isnan(ratio).all(axis=1)] if ratio.shape[1] else ratio[:0]
    return bool(steps_taken(history) < LEAST_STEPS and len(known) and (np.nanmedian(known, axis=1) > limit).all())


def _spells(rows: Rows, mask: Bools, steps: int) -> list[tuple[int, int]]:
    """Where `mask` `[M]` holds without a break over more than `steps` steps, three measurements at least."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    spells = zip(edges[::2], edges[1::2] - 1, strict=True)
    return [(int(a), int(b)) for a, b in spells if b - a >= 2 and rows[b] - rows[a] > steps]


def update_too_small(
    history: History, adaptive: float = 1e-6, sgd: float = 1e-7, min_measured: int = 10
) -> list[Finding]:
    """All weights move, and so little that the run is as good as standing still.

    The 90th percentile over time of the update ratio is below `adaptive` or `sgd`, and above 0, for every layer with
    two or more dimensions that has gradients. (One quiet layer among others is `vanishing`.)
    Source: CS231n; SageMaker Debugger's WeightUpdateRatio (1e-8). The healthy trainings of the tests are above 3e-4.
    """
    kind = is_adaptive(history)
    limit = adaptive if kind else sgd
    at, ratio = measured(history, "update_ratio")
    rows = history.layer_rows[at]
    which = matrices(history) & (~np.isnan(ratio)).any(axis=0)
    skipped = history.total("skipped") > 0
    if len(rows) < min_measured or not which.any() or skipped.all():
        return []
    high = np.nanquantile(ratio[:, which], 0.9, axis=0)
    if not ((high > 0) & (high < limit)).all():
        return []
    rate, found = set_rate(history), float(high.max())
    factor = 10.0 ** np.floor(np.log10(USUAL[kind] / found) - 0.5)
    return [
        _finding(
            history,
            "warning",
            (),
            int(rows[0]),
            {"update_ratio": found, "limit": limit, "usual": USUAL[kind], "lr": rate},
            f"No layer changes by more than {found:.1e} of its size in a step; under {optimizer_kind(history)} "
            f"{USUAL[kind]:g} is usual.",
            f"Raise the learning rate by decades: {setting_text(rate * factor)} would give usual steps; try "
            f"{setting_text(rate * factor / 10)}.",
            "update-too-small",
        )
    ]
