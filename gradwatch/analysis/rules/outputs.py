"""What a loss that never leaves a band says of the outputs it was given.

Legend: T recorded steps, C classes.
"""

from __future__ import annotations

import math

import numpy as np

from gradwatch.analysis.rules.facts import last_matrix
from gradwatch.analysis.rules.finding import Finding, Why, either
from gradwatch.analysis.rules.gradients import scaled_losses
from gradwatch.history import Floats, History

_CURE = "Give cross_entropy the logits: take the softmax out of the model's forward, and use it for predictions only."


def softmax_twice(
    history: History,
    min_steps: int = 100,
    running: int = 500,
    uniform: float = 0.2,
    near: float = 0.05,
    tiny: float = 1e-3,
) -> list[Finding]:
    """A softmax before a loss that applies its own: the loss cannot fall to 0. A warning.

    cross_entropy over C probabilities instead of logits lies between log(e + C - 1) - 1 (the right class has all of
    the probability) and log(e + C - 1). Alarm: the training loss began within `uniform` of log C, all of its values of
    `min_steps` steps (`running` of a run under way) lie in that band, and either they came to within `near` of its
    floor and no further, or the last of the model's modules is a Softmax (then a loss that is that of probabilities as
    it should be is the alternative). C is the number of rows of the last weight matrix.
    Source: the definition of cross_entropy; torch's documentation of CrossEntropyLoss wants logits.
    """
    last = last_matrix(history)
    if last is None or last.shape[0] < 2:
        return []
    classes = last.shape[0]
    ceiling = math.log(math.e + classes - 1)
    floor = ceiling - 1
    least = running if history.run.status == "RUNNING" else min_steps
    for name, logged in scaled_losses(history).items():
        values = logged[np.isfinite(logged)]
        if len(values) < least or values.min() < floor - tiny or values.max() > ceiling + tiny:
            continue
        if abs(float(np.median(values[:5])) - math.log(classes)) > uniform:
            continue
        why = _why(history, values, floor, near)
        if why:
            evidence: dict[str, float | str] = {"metric": name, "classes": classes, "lowest": float(values.min())}
            return [
                Finding(
                    "softmax-twice",
                    "warning",
                    (last.name,),
                    int(history.step[0]),
                    int(history.step[-1]),
                    evidence | {"lowest_possible": floor, **why.evidence},
                    f"No {name} fell below {floor:.3f}, the least that cross_entropy gives for {classes} probabilities "
                    f"in place of logits. {why.cause}",
                    why.cure,
                    alternatives=why.alternatives,
                )
            ]
    return []


def _why(history: History, values: Floats, floor: float, near: float) -> Why | None:
    late = values[-max(5, len(values) // 4) :]
    if float(np.median(late)) - floor < near:
        return Why("It came down to that and stays there: a softmax stands before it.", _CURE, {})
    kinds = list(history.run.modules.values())
    if not kinds or kinds[-1] not in ("Softmax", "Softmax2d"):
        return None
    causes = (
        "the loss is cross_entropy, which applies a softmax of its own",
        "it is the negative logarithm of these probabilities, as it should be, and has not fallen further yet",
    )
    return Why(
        f"The model ends in a Softmax. {either(causes)}",
        f"Look at the loss. {_CURE}",
        {"last_module": kinds[-1]},
        alternatives=causes,
    )
