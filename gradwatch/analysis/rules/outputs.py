"""What a loss that never leaves a band says of the outputs it was given.

Legend: T recorded steps, C classes.
"""

from __future__ import annotations

import math

import numpy as np

from gradwatch.analysis.rules.facts import ends_in, initial_gains, last_matrix
from gradwatch.analysis.rules.finding import Finding, Why, either
from gradwatch.analysis.rules.losses import scaled_losses
from gradwatch.formatting import percent
from gradwatch.history import Floats, History

_CURE = "Give cross_entropy the logits: take the softmax out of the model's forward, and use it for predictions only."


def softmax_twice(
    history: History,
    min_steps: int = 100,
    running: int = 500,
    uniform: float = 0.2,
    near: float = 0.05,
    tiny: float = 1e-3,
    tight: float = 1e-3,
) -> list[Finding]:
    """A softmax before a loss that applies its own: the loss cannot fall to 0. A warning.

    cross_entropy over C probabilities instead of logits lies between log(e + C - 1) - 1 (the right class has all of
    the probability) and log(e + C - 1). Alarm: the training loss began within `uniform` of log C, all of its values of
    `min_steps` steps (`running` of a run under way) lie in that band, and either they came to within `near` of its
    floor and no further, or the last of the model's modules is a Softmax (then a loss that is that of probabilities as
    it should be is the alternative), or the loss fell from within the share `tight` of log C though the last weights
    did not begin small (then small outputs are the alternative). Or the last of the modules is a Sigmoid and the loss
    lies where two of these have it (`_of_two_sigmoids`). C is the number of rows of the last weight matrix.
    Source: the definition of cross_entropy; torch's documentation of CrossEntropyLoss wants logits.
    """
    last = last_matrix(history)
    least = running if history.run.status == "RUNNING" else min_steps
    if last is None:
        return []
    classes = last.shape[0]
    ceiling = math.log(math.e + classes - 1)
    floor = ceiling - 1
    for name, logged in scaled_losses(history).items():
        values = logged[np.isfinite(logged)]
        if len(values) < least:
            continue
        if ends_in(history, "Sigmoid") and _of_two_sigmoids(values, tiny):
            return [_finding(history, name, values, _SIGMOID)]
        if classes < 2 or values.min() < floor - tiny or values.max() > ceiling + tiny:
            continue
        if abs(float(np.median(values[:5])) - math.log(classes)) > uniform:
            continue
        why = _why(history, values, floor, near, classes, tight)
        if why:
            words = f"No {name} fell below {floor:.3f}, the least that cross_entropy gives for {classes} probabilities "
            numbers = {"classes": classes, "lowest_possible": floor, **why.evidence}
            why = why._replace(cause=f"{words}in place of logits. {why.cause}", evidence=numbers)
            return [_finding(history, name, values, why)]
    return []


def _finding(history: History, metric: str, values: Floats, why: Why) -> Finding:
    last = last_matrix(history)
    return Finding(
        "softmax-twice",
        "warning",
        (last.name,) if last is not None else (),
        int(history.step[0]),
        int(history.step[-1]),
        {"metric": metric, "lowest": float(values.min()), **why.evidence},
        why.cause,
        why.cure,
        alternatives=why.alternatives,
    )


def _of_two_sigmoids(values: Floats, tiny: float, even: float = 0.7) -> bool:
    """Whether a loss is as binary_cross_entropy_with_logits gives for numbers between 0 and 1 in place of logits.

    For these it lies between log(1 + 1/e) and log(1 + e), and begins near 0.72 or, with few positives, up to 0.97;
    binary_cross_entropy of what one sigmoid gives begins at log 2.
    """
    low, high = math.log1p(1 / math.e) - tiny, math.log1p(math.e) + tiny
    return bool(values.min() >= low and values.max() <= high and np.median(values[:5]) > even)


_TWO_SIGMOIDS = (
    "the loss is binary_cross_entropy_with_logits, which applies a sigmoid of its own",
    "it is binary_cross_entropy, and the first outputs were far from even",
)
_SIGMOID = Why(
    "The model ends in a Sigmoid, and the loss lies where two of them would have it: between 0.313 and 1.313. "
    f"{either(_TWO_SIGMOIDS)}",
    "Look at the loss. Give binary_cross_entropy_with_logits the logits: take the sigmoid out of the model's forward.",
    {"last_module": "Sigmoid", "lowest_possible": math.log1p(1 / math.e)},
    alternatives=_TWO_SIGMOIDS,
)


def _why(history: History, values: Floats, floor: float, near: float, classes: int, tight: float) -> Why | None:
    late = values[-max(5, len(values) // 4) :]
    if float(np.median(late)) - floor < near:
        return Why("It came down to that and stays there: a softmax stands before it.", _CURE, {})
    if not ends_in(history, "Softmax", "Softmax2d"):
        return _by_its_beginning(history, values, classes, tight)
    causes = (
        "the loss is cross_entropy, which applies a softmax of its own",
        "it is the negative logarithm of these probabilities, as it should be, and has not fallen further yet",
    )
    return Why(
        f"The model ends in a Softmax. {either(causes)}",
        f"Look at the loss. {_CURE}",
        {"last_module": "Softmax"},
        alternatives=causes,
    )


def _by_its_beginning(history: History, values: Floats, classes: int, tight: float) -> Why | None:
    """Logits of usual first weights are further apart than probabilities, which hardly differ from 1 / C."""
    last, gains = last_matrix(history), initial_gains(history)
    gain = float(gains[history.layers.index(last.name)]) if last and last.name in history.layers else 0.0
    chance = math.log(classes)
    fell = float(np.median(values[-max(5, len(values) // 4) :])) < 0.98 * chance
    if not (fell and gain > 0.2 and np.abs(values[:3] - chance).max() < tight * chance):
        return None
    causes = (
        "the loss is cross_entropy and a softmax stands before it",
        "what reaches the last layer begins next to 0, and the loss has not fallen further yet",
    )
    return Why(
        f"It began within {percent(tight)} of log {classes}, as if all outputs were alike. {either(causes)}",
        f"Look at the outputs: where they sum to 1, there is one softmax too many. {_CURE}",
        {"first": float(values[0])},
        alternatives=causes,
    )
