"""Weights that stay where they are although gradients reach them.

Legend: T recorded steps, L layers, M steps in which weights were measured.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.rules.facts import USUAL_RATIO, is_adaptive, rates, settings
from gradwatch.analysis.rules.finding import Evidence, Finding, Severity, either
from gradwatch.analysis.rules.layer_facts import directness, largest_ratio, matrices, measured, numel, pick
from gradwatch.analysis.rules.owners import rate_columns, written_before
from gradwatch.analysis.rules.progress import all_learnt, succeeds
from gradwatch.analysis.rules.series import holds_from
from gradwatch.analysis.rules.small_updates import update_too_small, weak_gradients
from gradwatch.formatting import setting_text
from gradwatch.history import Bools, Floats, History

Rows = NDArray[np.intp]
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
FEW_MOVE = 8  # below this share of eps a step moves only what is under half of the weights' root mean square


def weights_unchanged(history: History, min_steps: int = 10, min_measured: int = 3) -> list[Finding]:
    """Gradients are there and the weights stay where they are, from some step to the end of the run.

    The cause is named where the record shows it: all steps dropped, learning rate 0, a coefficient of 0, an update
    below the resolution of the weights' dtype. At least `min_steps` steps, and half of the run, must be so. Gradients
    that are absent or exactly 0 in every step are `no-gradient` and `dead-layer`.
    Source: SageMaker Debugger's UnchangedTensor; GradScaler's dropped steps (traps).
    """
    if len(history) < min_steps:
        return []
    return _all_dropped(history, min_steps) or _still(history, min_steps, min_measured) or _put_back(history)


def _tail(mask: Bools, least: int) -> int | None:
    """The row from which `mask` `[T]` holds to the end, if that is at least `least` rows and half of all; else None."""
    start = holds_from(mask)
    return start if len(mask) - start >= max(least, len(mask) / 2) else None


def _all_dropped(history: History, least: int) -> list[Finding]:
    skipped = history.total("skipped") > 0
    start = _tail(skipped, least)
    if start is None:
        return []
    scale = history.total("loss_scale")[start:]
    by_scaler = bool(np.isfinite(scale).all())
    lost = float(np.nanmean(history.total("nonfinite")[start:] > 0))
    evidence: Evidence = {"skipped_steps": int(skipped[start:].sum()), "nonfinite_share": lost}
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
            "Find out why the gradients are not finite; if they are, raise the policy's limit or use SkipNonfinite()."
        )
    return [_finding(history, "error", (), start, evidence, cause, cure)]


def _still(
    history: History, least: int, least_measured: int, converged: float = 1e-4, rounding: float = 1e-6
) -> list[Finding]:
    """Layers that have gradients and do not move; none is left once the norm is below `converged` of its first.

    Nor has a bias any that is nothing but `rounding` beside the whole, as before a batch norm; of a matrix, its square.
    """
    rows, ratio = measured(history, "update_ratio")
    if len(rows) < least_measured:
        return []
    steps, whole = history.layer_rows[rows], history.total("grad_norm")
    gone = whole[steps] < converged * np.nanmax(whole[:least], initial=0.0)  # L-BFGS stops by itself there
    taken = ~((history.total("skipped")[steps] > 0) | gone)
    least_norms = np.nan_to_num(whole[steps])[:, None] * [rounding, rounding**2]
    norm, away = history.layer("grad_norm"), history.per_layer.get("displacement")
    expected, eps = _expected(history, rows), _eps(history)
    share = 0.3 if not is_adaptive(history) else 0.05  # of what the step should have been; Adam's is only bounded
    last, seen = np.zeros(len(eps), np.intp), np.zeros(len(eps), np.intp)
    for i, is_matrix in enumerate(matrices(history)):  # a table of all of them is ten times as large as what is read
        own, wanted, least_norm = ratio[:, i], expected(i), least_norms[:, int(is_matrix)]
        with np.errstate(invalid="ignore"):
            known = taken & np.isfinite(norm[rows, i]) & (norm[rows, i] > least_norm) & ~np.isnan(own)
            still = (own == 0) | ((wanted < 2 * eps[i]) & (wanted > 0) & (own < share * wanted))  # or rounded away
            if is_matrix and eps[i] > EPS["float32"]:  # so that few numbers are small enough to be moved at all
                still |= (wanted < eps[i] / FEW_MOVE) & (own < wanted / 2)  # rounded by chance they move further
            if away is not None:  # put back between two steps, of which the first moved it
                still[1:] |= (own[:-1] > 0) & (away[rows[1:], i] == 0)
        last[i] = holds_from(still | ~known)
        seen[i] = known[last[i] :].sum()
    long = (len(rows) - last >= max(least_measured, len(rows) / 2)) & (
        len(history) - steps[np.minimum(last, len(rows) - 1)] >= least
    )
    which = long & (seen >= least_measured)
    return _explained(history, rows, which, last, expected, eps) if which.any() else []


def _put_back(history: History, share: float = 0.02, least: int = 5) -> list[Finding]:
    """Weights that each step moves and that are soon where they were.

    Between `least` or more measurements most matrices got no further than `share` of the way that their steps made.
    Other trainings of the tests get 0.09 of it and more.
    """
    every, direct = directness(history)
    wide = matrices(history) & np.isfinite(direct)
    if every < 2 or not wide.any() or not np.median(direct[wide]) < share:
        return []
    if len(measured(history, "displacement")[0]) < least:
        return []
    which = wide & (direct < share)
    moves = largest_ratio(history)
    if not moves > _eps(history).max():
        return []  # a step is no longer than rounding: of weights that grew huge, what is left of it is chance
    if succeeds(history):
        return []  # they rest at what was wanted, where a proximal step takes back each step; or averages are loaded
    long = moves > 5 * USUAL_RATIO[is_adaptive(history)] and not len(written_before(history))
    return [
        _finding(
            history,
            "error" if (wide == which).all() else "warning",
            () if (wide == which).all() else pick(history, which),
            0,
            {"update_ratio": moves, "way_that_is_left": float(np.median(direct[which]))},
            f"Each step moves these weights, and after {every:.0f} of them they are where they were. "
            + (either(TAKEN_BACK) if long else f"Most likely {TAKEN_BACK[1]}."),
            "Look for what writes the weights after optimizer.step(): an average that is loaded back, a "
            "load_state_dict, a copy, a constraint." + (" Or lower the learning rate tenfold." if long else ""),
            TAKEN_BACK if long else (),
        )
    ]


TAKEN_BACK = ("they are so long that each undoes the one before", "something puts the weights back")


def _explained(
    history: History,
    rows: Rows,
    still: Bools,
    last: Rows,
    wanted: Callable[[int], Floats],
    eps: Floats,
) -> list[Finding]:
    """One finding for the layers that stand still, with the cause that the record shows."""
    start = int(rows[int(last[still].min())])
    begin = int(history.layer_rows[start])
    groups = rates(history)[begin:]
    expected = np.concatenate([wanted(int(i))[rows >= start] for i in np.flatnonzero(still)])
    median = np.nanmedian(expected) if np.isfinite(expected).any() else np.nan
    coef = history.layer("clip_coef")[start:][:, still]
    columns = {column for column, stands in zip(rate_columns(history), still, strict=True) if stands}
    rate = float(np.nanmedian(groups[:, [column or 0 for column in columns]]))
    evidence: Evidence = {"layers": int(still.sum()), "of": len(still), "lr": rate}
    weights = matrices(history) if matrices(history).any() else np.ones(len(still), bool)
    everything = bool(still[weights].all())
    severity: Severity = "error" if everything else "warning"
    open_: tuple[str, ...] = ()
    zero = [g for g in range(groups.shape[1]) if (groups[:, g] == 0).all()]
    dtypes = sorted({layer.dtype for layer in history.run.layers if layer.name in set(pick(history, still))})
    if zero:
        cause = "The learning rate is 0" + ("." if len(zero) == groups.shape[1] else f" in param group {zero[0]}.")
        cure = "Look at the scheduler: its warm-up must end, and its end must lie behind the last step; to freeze "
        cure += "layers, set requires_grad to False instead."
    elif coef.size and (coef == 0).all():
        cause, cure = f"The policy {history.run.clip} multiplies these gradients by 0.", "Raise its threshold."
    elif np.isnan(median) or median < 2 * float(np.max(eps[still])):
        wide = set(dtypes) <= {"float32", "float64"}
        if wide and not (still & matrices(history)).any():
            return []  # of biases whose gradient is 0 but for rounding, as before a batch norm
        if wide and update_too_small(history):
            return []  # too small for every layer: that some are rounded away follows
        evidence |= {"expected_update_ratio": float(median), "resolution": float(np.max(eps[still]) / 2)}
        cause = (
            f"The update is smaller than {' and '.join(dtypes)} can add to weights of this size: it is rounded away."
        )
        cure = "Keep the weights in float32 (autocast instead of a half-precision model), or raise the learning rate."
        if wide:
            higher = rate * USUAL_RATIO[is_adaptive(history)] / median if median > 0 else 0.0
            weak = weak_gradients(history, float(median), float(higher))
            slow = None not in columns and rate < 1e-3 * float(np.nanmax(groups))
            if slow:
                cause += f" The learning rate of their param group is {setting_text(rate)}."
                cure = "Raise that rate by decades."
            else:
                cause, cure = (weak.cause, weak.cure) if weak else (cause, "Raise the learning rate by decades.")
    elif everything and all_learnt(history):
        return []  # L-BFGS stops by itself where a step no longer lowers the loss
    else:
        evidence["expected_update_ratio"] = float(median)
        open_ = _NO_EFFECT
        cause = f"The gradients are healthy and the step has no effect. {either(open_)}"
        cure = "Look for what writes the weights after optimizer.step(): a load_state_dict, a constraint, a copy."
    layers = () if everything else pick(history, still)
    return [_finding(history, severity, layers, begin, evidence, cause, cure, open_)]


_NO_EFFECT = ("something puts the weights back after it", "the optimizer steps on copies")


def _expected(history: History, rows: Rows) -> Callable[[int], Floats]:
    """The update ratio that a layer's step should have, `[M]`: lr * gradient for SGD, for Adam lr for each element,
    and less where eps stands beside gradients that are smaller.
    """
    every = np.nan_to_num(rates(history)[history.layer_rows[rows]], posinf=0.0, neginf=0.0)
    highest, columns = every.max(axis=1), rate_columns(history)
    weights, norms, by_rate = history.layer("weight_norm"), history.layer("clipped_norm"), is_adaptive(history)
    roots = np.sqrt(numel(history))
    eps = min((e for group in settings(history) if isinstance(e := group.get("eps"), float)), default=0.0)

    def of(layer: int) -> Floats:
        weight = weights[rows, layer].astype(np.float64)
        length, column = norms[rows, layer].astype(np.float64), columns[layer]
        rate = highest if column is None else every[:, column]
        if by_rate:
            length = roots[layer] * (length / (length + eps * roots[layer]) if eps else 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.where(weight > 0, rate * length / weight, np.nan))

    return of


def _eps(history: History) -> Floats:
    dtypes = {layer.name: layer.dtype for layer in history.run.layers}
    return np.array([EPS.get(dtypes.get(name, "float32"), EPS["float32"]) for name in history.layers])


def _finding(
    history: History,
    severity: Severity,
    layers: tuple[str, ...],
    row: int,
    evidence: Evidence,
    cause: str,
    cure: str,
    alternatives: tuple[str, ...] = (),
) -> Finding:
    steps = int(history.step[row]), int(history.step[-1])
    return Finding("weights-unchanged", severity, layers, *steps, evidence, cause, cure, alternatives=alternatives)
