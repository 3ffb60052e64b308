"""Why numbers are inf or NaN, and what to do: by a loss scale, by weights of float16, by a scale that vanished."""

from __future__ import annotations

import numpy as np

from gradwatch.analysis.rules.finding import either
from gradwatch.analysis.rules.layer_facts import matrices, measured, root_mean_square
from gradwatch.analysis.rules.loss_graph import paths
from gradwatch.history import History


def of_the_scale(history: History, times: int = 3, held: int = 5) -> tuple[str, str] | None:
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


def of_half_weights(history: History) -> tuple[str, str] | None:
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


def of_a_vanished(history: History, row: int, share: float = 0.3) -> tuple[str, str] | None:
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


def words(history: History, went_first: str, after: str, last: str, following: str, step: int) -> tuple[str, str]:
    """Cause and cure by what went first, what came before, and the layers that bracket where it began."""
    kept = meanwhile(history)
    if after == "unknown":
        return (
            f"The log has a gradient norm or a loss of inf or NaN at step {step}. What came before it, and in which "
            "layer it began, the log does not tell.",
            "Train it again with gradwatch (gradwatch run SCRIPT, or a callback), which records every step and layer. "
            f"{kept}",
        )
    where = f" between {last} and {following}" if last else ""
    if after == "growth":
        return (
            f"The numbers grew until they left the range of their dtype, in step {step}: the steps were too large.",
            f"Lower the learning rate or warm it up. {kept} That does not stop the growth.",
        )
    if after == "float16":
        return (
            f"A float16 number passed 65504{where}: the loss scale is too high for these gradients.",
            "Give the GradScaler a lower init_scale: it drops such steps, and halves the scale. Where there is none, "
            "use one, or bfloat16, which needs no scale.",
        )
    if went_first == "loss":
        operations = {operation.kind for path, _ in paths(history) for operation in path}
        casts = "ToCopy" in operations
        frames = _FRAMES if "CtcLoss" in operations or not operations else ""
        cast = "Autocast to float16: past 65504 it overflows in the forward pass; take bfloat16. " if casts else ""
        return (
            f"The loss of step {step} was already inf or NaN, and no gradient grew before: log(0), 0/0, an overflowing "
            f"exp{', a float16 that overflowed' if casts else ''}, or such a value in the batch.",
            "Run that batch under torch.autograd.set_detect_anomaly(True), which names the operation. A log, exp or "
            "division of your own: the fused losses (cross_entropy, binary_cross_entropy_with_logits, logsumexp), or "
            f"an epsilon. {frames}{cast}Else look for such a value in the batch. {kept}",
        )
    finite = (
        "The loss was finite and its derivative was not" if went_first == "gradient" else "A derivative is not finite"
    )
    return (
        f"{finite}{where}, and nothing grew before: a square root, norm, logarithm or division at 0, perhaps in the "
        "branch of a where() that was not taken.",
        f"Look at the operations{where}: add an epsilon inside the root or the logarithm, or clamp its argument; "
        f"torch.autograd.set_detect_anomaly(True) names the line. {kept}",
    )


_FRAMES = (
    "ctc_loss: it is inf where a row has fewer frames than signs, and one more for each sign that is said twice: more "
    "frames, or zero_infinity=True. "
)


def meanwhile(history: History) -> str:
    """What keeps steps that are not finite out of the weights, a sentence: a GradScaler where there is one."""
    if np.isfinite(history.total("loss_scale")).any():
        return "The GradScaler drops such a step meanwhile, and the weights stay as they are."
    return "SkipNonfinite() first in the chain drops such a step meanwhile, and the weights stay as they are."


def of_an_unknown_loss(history: History, step: int) -> tuple[str, str]:
    """Cause and cure where all layers went at once, nothing grew before, and the loss of that step was not logged."""
    return (
        f"Nothing grew before step {step}, whose loss was not logged. {either(OF_AN_UNKNOWN_LOSS)}",
        "Run that batch under torch.autograd.set_detect_anomaly(True), which names the operation, and look for "
        "such a value in the batch. A loss that is logged in each step tells which of the two it is. "
        + meanwhile(history),
    )


OF_AN_UNKNOWN_LOSS = (
    "it was inf or NaN already (such a value in the batch, log(0), 0/0, an overflowing exp)",
    "it was finite and its derivative was not (a square root, norm, logarithm or division at 0)",
)
