"""Gradients that are inf or NaN: whether the loss or its derivative went first, between which layers, and after what.

Legend: T recorded steps, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.clips import incoming
from gradwatch.analysis.final_values import nonfinite_rows, was_nan
from gradwatch.analysis.rules.facts import middle
from gradwatch.analysis.rules.finding import Finding, Severity, either
from gradwatch.analysis.rules.layer_facts import matrices, pick
from gradwatch.analysis.rules.losses import scaled_losses, without_small_terms
from gradwatch.analysis.rules.nonfinite_causes import (
    OF_AN_UNKNOWN_LOSS,
    of_a_vanished,
    of_an_unknown_loss,
    of_half_weights,
    of_the_scale,
    words,
)
from gradwatch.analysis.rules.origin import origin
from gradwatch.analysis.rules.tries import LOWER, warm_up
from gradwatch.history import Bools, History
from gradwatch.storage.logged_names import is_loss, is_training_loss

LOSS = "the loss"  # where the next layer would stand, for the last one


def nonfinite(
    history: History, growth: float = 100.0, update: float = 1.0, few: int = 10, seldom: float = 0.05
) -> list[Finding]:
    """A gradient norm that is inf or NaN: an error; a warning when every such step was skipped.

    `layers` are those of the first such step, in model order. Backward runs from the loss to the first layer, and what
    is not finite stays so on its way: of the non-finite layers the last one (`last_nonfinite`), and the layer after it
    that was still finite (`next_finite`), bracket the origin. Where the loss of that step was not finite either, the
    forward pass went first, and gradients cannot bracket it. `after` says what came before: `growth` when the norm or
    the loss had risen to `growth` times its early median, or a step had changed the weights by `update` times
    themselves; `float16` when half precision overflowed; else `nothing`: a sudden 0/0, log 0 or sqrt 0.
    Of an imported run, whose rows are not all steps, `unknown`.

    Where activations were recorded in that step or before, `first_activation` is the module whose output was not finite
    first in the forward pass; while all such steps are skipped, in any of them. `weights` is a layer that is itself
    not finite: seen before that step, or while all were skipped, as others are ruined by the step.

    Where no gradient was so and a training loss that was logged is, see `_of_losses`.

    Under a GradScaler dropped steps are its way to find the scale: a note, when there were at most `few` of them or a
    share of `seldom`.
    Source: SageMaker Debugger's ExplodingTensor (any non-finite value); the bracket is that of miles#2198.
    """
    rows = np.flatnonzero(nonfinite_rows(history))
    if not len(rows):
        return _of_losses(history)
    first = int(rows[0])
    counts = history.layer("nonfinite")  # [R, L]
    begin = counts[history.layer_rows == first]  # of the first such step, where its layers are recorded
    bad = (begin > 0).any(axis=0)
    skipped = bool((history.total("skipped")[rows] > 0).all())
    went_first = _went_first(history, first)
    after = _after(history, first, growth, update)
    if history.run.source and after != "growth":  # between two rows of a log anything may have happened
        went_first, after = "unknown", "unknown"
    last, following = _bracket(history.layers, ~np.isnan(begin).all(axis=0), bad)
    said = (of_half_weights(history) or of_the_scale(history)) if after == "float16" else None
    said = said or (of_a_vanished(history, first) if after == "nothing" else None)
    ends = last or history.layers[-1] if bad.any() else ""
    seen = origin(history, first, int(rows[-1]) if skipped else first, bad, ends)
    if went_first == "unknown" and "first_activation" in seen.evidence and not history.run.source:
        went_first = "loss"
    step = int(history.step[first])
    is_open = (went_first, after, last, said) == ("unknown", "nothing", "", None)
    said = said or (of_an_unknown_loss(history, step) if is_open else None)
    cause, cure = said or words(history, went_first, after, last, following, step)
    cure = seen.cure if seen.cure and went_first == "loss" and after == "nothing" and not said else cure
    if skipped and "weights" not in seen.evidence:
        cure = "These steps were skipped. If they keep coming: " + cure[0].lower() + cure[1:]
    return [
        Finding(
            rule="nonfinite",
            severity=_severity(history, rows, skipped, few, seldom),
            layers=pick(history, bad),
            first_step=step,
            last_step=int(history.step[rows[-1]]),
            evidence={
                "steps": len(rows),
                **({"layers": int((counts > 0).any(axis=0).sum())} if history.layers else {}),
                **({} if history.run.source else {"skipped": "yes" if skipped else "no"}),
                "first": went_first,
                "after": after,
                **({"last_nonfinite": last, "next_finite": following} if last else {}),
                **seen.evidence,
            },
            cause=cause + seen.cause,
            cure=cure,
            tries=(LOWER, warm_up(history)) if after == "growth" else (),
            alternatives=OF_AN_UNKNOWN_LOSS if is_open else (),
        )
    ]


def _severity(history: History, rows: NDArray[np.intp], skipped: bool, few: int, seldom: float) -> Severity:
    """An error; a warning where all these steps were skipped, a note where a GradScaler did so, and seldom."""
    scaled = np.isfinite(history.total("loss_scale")).any()
    if skipped and scaled and len(rows) <= max(few, seldom * len(history)):
        return "note"
    return "warning" if skipped else "error"


def _of_losses(history: History) -> list[Finding]:
    """A training loss that was logged as NaN or inf, while every gradient was finite. A warning.

    Such a step may have had no gradient at all: the mean over nothing is 0/0, and no example asks for anything.
    """
    for name in filter(is_training_loss, history.logged):
        rows = np.flatnonzero(was_nan(history, name) | np.isinf(history.total(name)))
        if not len(rows):
            continue
        norm = history.total("grad_norm")[rows]
        empty = bool((norm == 0).all())
        return [
            Finding(
                "nonfinite",
                "warning",
                (),
                int(history.step[rows[0]]),
                int(history.step[rows[-1]]),
                {"metric": name, "steps": len(rows), "first": "loss", "grad_norm": float(np.nanmax(norm, initial=0.0))},
                f"{name} is inf or NaN in {len(rows)} steps, and every gradient is finite"
                + (f": exactly 0 there. {either(_NOTHING_ASKED)}" if empty else f". {either(_FINITE_ALL_THE_SAME)}"),
                "Look at the batch of that step, and at how the loss is averaged: divide by max(count, 1), or leave a "
                "step out whose batch has no target (all ignore_index, an empty mask).",
                alternatives=_NOTHING_ASKED if empty else _FINITE_ALL_THE_SAME,
            )
        ]
    return []


_NOTHING_ASKED = (
    "the loss is a mean over no target at all, 0 / 0",
    "what is not finite is cut off from the weights (a clamp, a where, zero_infinity)",
)


_FINITE_ALL_THE_SAME = (
    "that part of it leads to no weight",
    "its derivative is finite where it is not, as that of the logarithm of a negative number",
)


def growth_before(history: History, row: int, growth: float = 100.0, update: float = 1.0, soon: int = 3) -> int | None:
    """The row in which what ended in `row` began to grow; None where nothing did, or where one of the first `soon`
    divided by 0, as most weights are of float16 (`of_half_weights`).

    Growth: the norm or a loss with a scale (`scaled_losses`) rose to `growth` times the median of its first values, or
    a step changed the median weight matrix by more than `update` times itself, and no step after it was seen to be
    calmer (weights that began near 0 are soon twice their size).
    """
    if row <= soon and of_half_weights(history):
        return None
    begins = []
    names = ["grad_norm", *without_small_terms(scaled_losses(history))]
    for name in names:
        values = history.total(name)[:row]
        finite = np.flatnonzero(np.isfinite(values) & (values > 0))
        if len(finite) < 2:
            continue
        early = np.median(values[finite[: max(1, len(finite) // 10)]])
        if values[finite[-2:]].max() >= growth * early:  # a lone one that was left behind is no growth
            low = np.flatnonzero(values[finite] < growth**0.5 * early)
            begins.append(int(finite[min(low[-1] + 1, len(finite) - 1)]) if len(low) else 0)
    last = np.flatnonzero(history.layer_rows < row)[-10:]
    ratios = history.layer("update_ratio")[last][:, matrices(history)]
    seen = np.flatnonzero(~np.isnan(ratios).all(axis=1)) if ratios.shape[1] else np.zeros(0, int)
    large = [int(history.layer_rows[last[r]]) for r in seen if np.nanmedian(ratios[r]) > update]
    begins += [r for r in large if not _calmer(history, names, r, row)][:1]
    return int(min(begins)) if begins else None


def _calmer(history: History, names: Sequence[str], row: int, end: int) -> bool:
    """Whether between two rows something was seen of each of these totals, and never above the first row's."""
    after = {name: (history.total(name)[row], history.total(name)[row + 1 : end]) for name in names}
    return all(np.isfinite(values).any() and np.nanmax(values) <= first for first, values in after.values())


def _went_first(history: History, row: int) -> str:
    """`loss`, `gradient`, or `unknown` where the loss of that step was not logged."""
    names = list(filter(is_loss, history.logged))
    if any(was_nan(history, name)[row] for name in names):
        return "loss"
    here = [history.total(name)[row] for name in names if not np.isnan(history.total(name)[:row]).any()]
    if any(not np.isfinite(value) for value in here):
        return "loss"
    return "gradient" if here else "unknown"


def _after(history: History, row: int, growth: float, update: float) -> str:
    if growth_before(history, row, growth, update) is not None:
        return "growth"
    dtypes = {layer.dtype for layer in history.run.layers}
    return "float16" if "float16" in dtypes or _may_overflow(history, row) else "nothing"


def _may_overflow(history: History, row: int, share: float = 0.01, largest: float = 65504.0) -> bool:
    """Whether a loss scale brings gradients of the size before a row to a `share` of float16's largest number."""
    scale, norm = history.total("loss_scale")[: row + 1], incoming(history)[:row]
    if not np.isfinite(scale).any():
        return bool(np.isfinite(history.total("loss_scale")).any())
    usual = middle(norm[np.isfinite(norm)])
    return not float(scale[np.isfinite(scale)][-1]) * usual < share * largest  # NaN where none came before


def _bracket(layers: Sequence[str], seen: Bools, bad: Bools) -> tuple[str, str]:
    """Of one step the last non-finite layer, and the next one that was finite; empty where all were bad.

    Slices of one tensor stand beside each other: no slice comes after another.
    """
    if not bad.any() or bad[seen].all():
        return "", ""
    last = int(np.flatnonzero(bad)[-1])
    tensor = layers[last].rpartition("[")[0]
    rest = zip(layers[last + 1 :], seen[last + 1 :], strict=True)
    after = [name for name, here in rest if here and (not tensor or name.rpartition("[")[0] != tensor)]
    return layers[last], after[0] if after else LOSS
