"""Gradients that are inf or NaN: whether the loss or its derivative went first, between which layers, and after what.

Legend: T recorded steps, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.final_values import nonfinite_rows, was_nan
from gradwatch.analysis.rules.facts import matrices, measured, pick, root_mean_square
from gradwatch.analysis.rules.finding import Finding, Severity, either
from gradwatch.analysis.rules.losses import scaled_losses, without_small_terms
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
    said = (_of_half_weights(history) or _of_the_scale(history)) if after == "float16" else None
    said = said or (_of_a_vanished(history, first) if after == "nothing" else None)
    cause, cure = said or _words(went_first, after, last, following, int(history.step[first]))
    ends = last or history.layers[-1] if bad.any() else ""
    seen = origin(history, first, int(rows[-1]) if skipped else first, bad, ends)
    cure = seen.cure if seen.cure and went_first == "loss" and after == "nothing" and not said else cure
    if skipped and "weights" not in seen.evidence:
        cure = "These steps were skipped. If they keep coming: " + cure[0].lower() + cure[1:]
    return [
        Finding(
            rule="nonfinite",
            severity=_severity(history, rows, skipped, few, seldom),
            layers=pick(history, bad),
            first_step=int(history.step[first]),
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
            cause=cause + seen.said,
            cure=cure,
            tries=(LOWER, warm_up(history)) if after == "growth" else (),
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


def _of_the_scale(history: History, times: int = 3, held: int = 5) -> tuple[str, str] | None:
    """What the history of a GradScaler's scale says beyond that it was too high once: cause and cure.

    It fell below 1 (float16 passes its largest number without any scale), was doubled and halved `times` each, or stays
    where it is after `held` dropped steps and more.
    Source: torch.amp.GradScaler: halved when a step was dropped, doubled after growth_interval steps (2,000).
    """
    scale = history.total("loss_scale")
    dropped = (history.total("skipped")[:-1] > 0) & np.isfinite(scale[1:])
    stays = scale[1:][dropped] >= scale[:-1][dropped]
    scale = scale[np.isfinite(scale) & (scale > 0)]
    if not len(scale):
        return None
    if len(stays) >= held and stays.all():
        return (
            f"The loss scale stays at {scale[-1]:g} although steps are dropped: nothing lowers it, and numbers pass "
            "65504 again and again.",
            "Make the GradScaler once, before the loop, and call scaler.update() behind each scaler.step(), without a "
            "value: it halves the scale after a step that was dropped. A value sets it back, and a backoff_factor of 1 "
            "holds it.",
        )
    if scale.min() < 1:
        return (
            f"The loss scale was halved down to {scale.min():.2g}, and numbers still passed 65504: they are too large "
            "for float16 without any scale.",
            "Train in bfloat16, which has the range; or look at what is so large: logits, a sum over many, weights "
            "that grow.",
        )
    moves = np.diff(np.log2(scale))
    doubled, halved = int((moves > 0.5).sum()), int((moves < -0.5).sum())
    if min(doubled, halved) < times:
        return None
    return (
        f"The loss scale was doubled {doubled} times and halved {halved} times: it comes back to where it overflows, "
        "and each time a step is dropped.",
        "Give the GradScaler a longer growth_interval (torch's is 2,000 steps), or train in bfloat16, which needs no "
        "scale.",
    )


def _of_half_weights(history: History) -> tuple[str, str] | None:
    """What float16 does to weights that are kept in it: cause and cure; None where others are.

    Source: numpy.finfo(float16): 65504 is the largest, 6e-8 the smallest number; torch.amp.GradScaler refuses to
    unscale gradients of float16.
    """
    kept = [layer for layer in history.run.layers if layer.dtype == "float16"]
    if 2 * len(kept) <= len(history.run.layers):
        return None
    return (
        f"{len(kept)} of {len(history.run.layers)} layers have weights of float16, which holds nothing above 65504 nor "
        "below 6e-8: Adam's eps of 1e-8 is 0 in it, so that it divides by 0, and squares of gradients are.",
        "Keep the weights in float32 (no .half()) and run forward and loss under torch.autocast; or bfloat16, which "
        "has the range of float32. A GradScaler refuses gradients of float16, so that a loss scale is no cure.",
    )


def _of_a_vanished(history: History, row: int, share: float = 0.3) -> tuple[str, str] | None:
    """What a vector did that came near 0 before numbers went: cause and cure; None where none did.

    One that is no bias and no gain beside a weight, began above 0.1 by the element and lost more than 1 - `share` of
    its norm, down to its last measurement before the row: a spread, a scale, a temperature.
    """
    at, norm = measured(history, "weight_norm")
    norm = norm[history.layer_rows[at] < row].astype(np.float64)
    beside = [name.rpartition(".")[2] in ("bias", "weight") for name in history.layers]
    own = ~matrices(history) & ~np.array(beside, bool)
    if len(norm) < 2 or not own.any():
        return None
    began = root_mean_square(history, norm[0])
    gone = own & (began > 0.1) & (norm[-1] < share * norm[0]) & (norm[-1] <= np.fmin.reduce(norm, axis=0))
    if not gone.any():
        return None
    i = int(np.flatnonzero(gone)[0])
    name, last = history.layers[i], root_mean_square(history, norm[-1])[i]
    return (
        f"{name} fell from {began[i]:.2g} to {last:.2g} by the element before step {int(history.step[row])}: at 0 and "
        "below it, its logarithm or a division by it is not finite.",
        f"Learn the logarithm of {name} and take exp() of it, or softplus: so it stays above 0. A clamp to a small "
        "number holds it too, but passes no gradient where it acts.",
    )


def growth_before(history: History, row: int, growth: float = 100.0, update: float = 1.0, soon: int = 3) -> int | None:
    """The row in which what ended in `row` began to grow; None where nothing did, or where one of the first `soon`
    divided by 0, as most weights are of float16 (`_of_half_weights`).

    Growth: the norm or a loss (`scaled_losses`) rose to `growth` times the median of its first values, or a step
    changed the median matrix by `update` times itself, and none after it was calmer (those from near 0 soon double).
    """
    if row <= soon and _of_half_weights(history):
        return None
    begins = []
    names = ["grad_norm", *without_small_terms(scaled_losses(history))]
    for name in names:
        values = history.total(name)[:row]
        finite = np.flatnonzero(np.isfinite(values) & (values > 0))
        if len(finite) < 2:
            continue
        early = np.median(values[finite[: max(1, len(finite) // 10)]])
        if values[finite[-5:]].max() >= growth * early:
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
    scaled = np.isfinite(history.total("loss_scale")).any()
    return "float16" if scaled or "float16" in dtypes else "nothing"


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


def _words(went_first: str, after: str, last: str, following: str, step: int) -> tuple[str, str]:
    if after == "unknown":
        return (
            f"The log has a gradient norm or a loss of inf or NaN at step {step}. What came before it, and in which "
            "layer it began, the log does not tell.",
            "Train it again with gradwatch (gradwatch run SCRIPT, or a callback), which records every step and layer; "
            "SkipNonfinite() first in the chain protects the weights meanwhile.",
        )
    where = f" between {last} and {following}" if last else ""
    if after == "growth":
        return (
            f"The numbers grew until they left the range of their dtype, in step {step}: the steps were too large.",
            "Lower the learning rate or warm it up; SkipNonfinite() first in the chain keeps such a step out of the "
            "weights, and does not stop the growth.",
        )
    if after == "float16":
        return (
            f"A float16 number passed 65504{where}: the loss scale is too high for these gradients.",
            "Use a GradScaler with a lower init_scale, which drops such steps and halves the scale, or bfloat16, "
            "which needs no scale.",
        )
    if went_first == "loss":
        return (
            f"The loss of step {step} was already inf or NaN, and nothing grew before: log(0), 0/0, an overflowing "
            "exp, or such a value in the batch.",
            "Run that batch under torch.autograd.set_detect_anomaly(True), which names the operation. A log, exp or "
            "division of your own: the fused losses (cross_entropy, binary_cross_entropy_with_logits, logsumexp), or "
            "an epsilon. ctc_loss: it is inf where a row has fewer frames than signs, and one more for each sign that "
            "is said twice: more frames, or zero_infinity=True. Else look for such a value in the batch. "
            "SkipNonfinite() first in the chain protects the weights.",
        )
    finite = (
        "The loss was finite and its derivative was not" if went_first == "gradient" else "A derivative is not finite"
    )
    return (
        f"{finite}{where}, and nothing grew before: a square root, norm, logarithm or division at 0, perhaps in the "
        "branch of a where() that was not taken.",
        f"Look at the operations{where}: add an epsilon inside the root or the logarithm, or clamp its argument; "
        "torch.autograd.set_detect_anomaly(True) names the line; SkipNonfinite() protects the weights meanwhile.",
    )
