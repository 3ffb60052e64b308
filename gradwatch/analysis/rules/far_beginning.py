"""Trainings that begin far from the usual: losses far above what outputs of unit size give, weights next to 0."""

from __future__ import annotations

import math
from itertools import pairwise

from gradwatch.analysis.rules.facts import is_adaptive
from gradwatch.analysis.rules.layer_facts import chance_loss, initial_gains
from gradwatch.analysis.rules.loss_graph import paths
from gradwatch.analysis.rules.losses import first_values
from gradwatch.history import History


def begins_far(history: History, cause: str, cure: str, times: float = 3.0) -> tuple[str, str] | None:
    """The cause and the cure of steps that are too long where the loss of a classification began at more than `times`
    log C: what brings it there comes before the `cure`, a sentence. None where it began nearer. A sum over
    many is far above by nature (`of_a_sum`).

    Source: Karpathy 2019, A Recipe for Training Neural Networks ("verify loss @ init").
    """
    if summed := of_a_sum(history, cause, cure):
        return summed
    began, chance = max(first_values(history).values(), default=0.0), chance_loss(history)
    if not began > times * chance:
        return None
    norms = any("Norm" in module for module in history.run.modules.values())
    return (
        f"{cause} The loss began at {began:.3g}, where outputs of unit size give about {chance:.2g}.",
        "Bring what comes in and what is given out to unit size: (x - mean) / deviation, x / 255 of bytes; a mean in "
        "the place of a sum over neighbours or tokens; F.normalize() on vectors whose products are the logits"
        + ("" if norms else "; a norm in each block that is added up, x = x + block(norm(x))")
        + f". If that is not it: {cure[0].lower()}{cure[1:]}",
    )


def of_a_sum(history: History, cause: str, cure: str) -> tuple[str, str] | None:
    """The same where a loss of classes is a sum over rows, and the optimizer's steps grow with the gradient."""
    rows = _rows_summed(history)
    if rows < 2 or is_adaptive(history):
        return None
    return (
        f"{cause} The loss is a sum over {rows} predictions, no mean, and its gradient {rows} times as large.",
        f"Take the mean (reduction='mean', .mean()), or a rate {rows} times lower. If that is not it: "
        f"{cure[0].lower()}{cure[1:]}",
    )


def _rows_summed(history: History) -> int:
    """Of how many predictions the loss of classes is a sum; 1 of a mean, and where what becomes of it is not known."""
    for path, _ in paths(history):
        for i, (above, below) in enumerate(pairwise(path)):
            if above.name.startswith("NllLoss") and len(below.shape) > 1:
                over = {each.name for each in path[:i]}
                summed = above.name.endswith("/sum") or (over and math.prod(above.shape) > 1 and "Sum" in over)
                return math.prod(below.shape) // below.shape[1] if summed and over <= _OF_THE_WHOLE else 1
    return 1


_OF_THE_WHOLE = {"Sum", "View", "Squeeze", "Unsqueeze"}


def begins_small(history: History, small: float = 0.1) -> bool:
    """Whether half of the matrices began next to 0 (`initial_gains`): they have to grow to their size."""
    gain = initial_gains(history)
    return bool((gain > small).sum() <= (gain > 0).sum() / 2)
