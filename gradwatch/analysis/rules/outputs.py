"""What a loss that never leaves a band says of the outputs it was given.

Legend: T recorded steps, C classes.
"""

from __future__ import annotations

import math

import numpy as np

from gradwatch.analysis.clips import incoming
from gradwatch.analysis.rules.facts import middle, smooth
from gradwatch.analysis.rules.finding import Finding, Why, either, whole_run
from gradwatch.analysis.rules.layer_facts import bias_columns, columns, ends_in, initial_gains, last_matrix
from gradwatch.analysis.rules.loss_graph import is_of_no_choice, paths, squashed, takes_logits
from gradwatch.analysis.rules.losses import has_rivals, scaled_losses
from gradwatch.analysis.rules.no_gradient import no_gradient
from gradwatch.analysis.rules.once import once
from gradwatch.analysis.rules.series import late_median
from gradwatch.formatting import percent
from gradwatch.history import Floats, History

_CURE = "Give cross_entropy the logits: take the softmax out of the model's forward, and use it for predictions only."


@once
def activation_on_logits(
    history: History, min_steps: int = 100, running: int = 500, tiny: float = 1e-3
) -> list[Finding]:
    """A sigmoid or a tanh before a loss that wants logits, and applies one itself: it cannot fall to 0. A warning.

    The graph of the loss shows it, or that it is not so; where it does not, what the loss does, over `min_steps` steps
    (`running` of a run under way): the last of the modules is a Sigmoid and the loss lies where two of these have it
    (`_of_two_sigmoids`), or it does so and its gradient faded (`_of_squashed`).
    Source: torch's documentation of BCEWithLogitsLoss (a sigmoid and BCELoss in one).
    """
    shown = squashed(history)
    if shown is not None:
        return [] if shown[1] == "softmax" else [_shown("activation-on-logits", history, *shown)]
    if any(op.name == "BinaryCrossEntropy" for path, _ in paths(history) for op in path):
        return []  # of probabilities, as the graph shows
    for name, values in _judged(history, min_steps, running).items():
        why = _SIGMOID if ends_in(history, "Sigmoid") and _of_two_sigmoids(values, tiny) else None
        why = why or (_SQUASHED if _of_squashed(history, values, tiny) else None)
        if why:
            return [_finding("activation-on-logits", history, name, values, why)]
    return []


def _shown(rule: str, history: History, loss: str, before: str, layer: str) -> Finding:
    """What the graph shows of a loss, what stands before it, and the layer below."""
    words = f"{loss} is given what comes out of a {before}, and applies one of its own: of numbers between "
    words += f"{-1 if before == 'tanh' else 0} and 1 it cannot fall to 0, and their gradients are small."
    cure = _CURE if before == "softmax" else f"Give {loss} the logits: take the {before} out of the model's forward."
    return whole_run(history, rule, layer, {"loss": loss, "before": before}, words, cure)


def _judged(history: History, min_steps: int, running: int) -> dict[str, Floats]:
    """The finite values of losses that are long enough, of a model whose graph does not show that logits go in."""
    if last_matrix(history) is None or takes_logits(history) or is_of_no_choice(history):
        return {}
    least = running if history.run.status == "RUNNING" else min_steps
    found = {name: logged[np.isfinite(logged)] for name, logged in scaled_losses(history).items()}
    return {name: values for name, values in found.items() if len(values) >= least}


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

    The graph of the loss shows it, or that it is not so; where it does not (a part is compiled), what the loss does.
    cross_entropy over C probabilities instead of logits lies between log(e + C - 1) - 1 (the right class has all of
    the probability) and log(e + C - 1). Alarm: the training loss began within `uniform` of log C, all of its values of
    `min_steps` steps (`running` of a run under way) lie in that band, and either they came to within `near` of its
    floor and no further, or the last of the model's modules is a Softmax (then a loss that is that of probabilities as
    it should be is the alternative), or the loss fell from within the share `tight` of log C though the last weights
    did not begin small (then small outputs are the alternative), or it slows down in the lowest third of the band (then
    that there is no more to learn is). C is the number of rows of the last weight matrix, or of another if the loss
    began next to its logarithm: modules stand as they were made.
    Source: the definition of cross_entropy; torch's documentation of CrossEntropyLoss wants logits.
    """
    shown = squashed(history)
    if shown is not None:
        return [_shown("softmax-twice", history, *shown)] if shown[1] == "softmax" else []
    for name, values in () if activation_on_logits(history) else _judged(history, min_steps, running).items():
        if _over_the_batch(history, values, tight):
            return [_finding("softmax-twice", history, name, values, _OVER_THE_BATCH)]
        classes = _classes(history, values, uniform, near)
        ceiling = math.log(math.e + classes - 1)
        floor = ceiling - 1
        if classes < 2 or values.min() < floor - tiny or values.max() > ceiling + tiny:
            continue
        why = _why(history, values, floor, near, classes, tight)
        if why:
            words = f"No {name} fell below {floor:.3f}, the least that cross_entropy gives for {classes} probabilities "
            numbers = {"classes": classes, "lowest_possible": floor, **why.evidence}
            why = why._replace(cause=f"{words}in place of logits. {why.cause}", evidence=numbers)
            return [_finding("softmax-twice", history, name, values, why)]
    return []


def _classes(history: History, values: Floats, uniform: float, near: float) -> int:
    """The rows of the last matrix within `uniform` of whose logarithm a loss began, or of one within a tenth of `near`.

    0 where there is none.
    """
    begun, last = float(np.median(values[:5])), last_matrix(history)
    rows = [layer.shape[0] for layer in history.run.layers if len(layer.shape) == 2 and layer.shape[0] > 2]
    if last is not None and last.shape[0] > 1 and abs(begun - math.log(last.shape[0])) <= uniform:
        return last.shape[0]
    return next((n for n in rows if abs(begun - math.log(n)) < near / 10 * math.log(n)), 0)


def _finding(rule: str, history: History, metric: str, values: Floats, why: Why) -> Finding:
    last = last_matrix(history)
    layers = (last.name,) if last is not None else ()
    return why.finding(history, rule, layers, {"metric": metric, "lowest": float(values.min())})


def _over_the_batch(history: History, values: Floats, tight: float, no_gradient: float = 1e-4) -> bool:
    """Whether what the last layer gives out is set beside the other rows of the batch, not beside the other classes.

    Then its bias falls out, whose gradient is nothing but rounding: below `no_gradient` of its weight's. And the loss
    begins at the logarithm of the batch's rows, a power of two, within ten times `tight`; C is another.
    """
    last = last_matrix(history)
    weight = columns(history).get(last.name, -1) if last is not None else -1
    bias = bias_columns(history).get(weight)
    if last is None or bias is None or last.shape[0] < 3:
        return False
    of_bias, of_weight = history.layer("grad_norm")[:, [bias, weight]].T.astype(np.float64)
    share = middle(of_bias / of_weight)
    power = float(np.median(values[:3])) / math.log(2)
    is_power = 3 <= round(power) <= 16 and abs(power - round(power)) < 10 * tight * power
    return share < no_gradient and is_power and abs(power * math.log(2) - math.log(last.shape[0])) > 0.1


_OVER_THE_BATCH = Why(
    "The loss begins at the logarithm of a power of two that is not the number of classes, and the bias of the last "
    "layer gets no gradient: it adds the same to all rows of the batch, and a softmax over these takes that away.",
    "Take the softmax over the classes: dim=1 (or -1) in the place of dim=0; or give cross_entropy the logits.",
    {},
)


def _of_two_sigmoids(values: Floats, tiny: float, even: float = 0.7) -> bool:
    """Whether a loss is as binary_cross_entropy_with_logits gives for numbers between 0 and 1 in place of logits.

    For these it lies between log(1 + 1/e) and log(1 + e), and begins near 0.72 or, with few positives, up to 0.974,
    log(1 + e^0.5): what begins above that is another loss. binary_cross_entropy of what one sigmoid gives begins at
    log 2.
    """
    low, high = math.log1p(1 / math.e) - tiny, math.log1p(math.e) + tiny
    begins = even < np.median(values[:5]) < math.log1p(math.exp(0.5)) + tiny
    return bool(begins and values.min() >= low and values.max() <= high)


def _of_squashed(history: History, values: Floats, tiny: float, near: float = 0.08, faded: float = 0.2) -> bool:
    """Whether binary_cross_entropy_with_logits was given outputs between 0 and 1, by what it does.

    Such outputs begin at a half, and the loss at log(1 + e^0.5) - p / 2, with p the share of the positive targets; it
    never falls below log 2 - p (log 2 - log(1 + 1/e)). Alarm: it came to within `near` of that, no lower, and there the
    gradient is less than the share `faded` of its first: the outputs are at their ends. Of a part that trains against
    another, all of whose targets are 1: it began at 0.474 and never left what lies between 0.313 and log 2.
    """
    begun, even, least = float(np.median(values[:5])), math.log1p(math.exp(0.5)), math.log1p(1 / math.e)
    if has_rivals(history):
        inside = values.min() > least - tiny and values.max() < math.log(2) + tiny
        return bool(inside and abs(begun - even + 0.5) < near / 5)
    if not 0.7 < begun < even + near / 8 or ends_in(history, "Softmax"):
        return False
    positive = 2 * (even - begun)
    lowest = math.log(2) - positive * (math.log(2) - least)
    level, norm = smooth(values), incoming(history)
    late = late_median(values, 5)
    fades = middle(norm[-max(5, len(norm) // 4) :]) < faded * middle(norm[:5])
    return bool(fades and level.min() > lowest - near / 2 and late < lowest + near)


_SQUASHES = (
    "a sigmoid stands before binary_cross_entropy_with_logits, which applies one of its own",
    "there is no more to be learnt than this",
)
_SQUASHED = Why(
    "The loss began and stays where binary_cross_entropy_with_logits has it for numbers between 0 and 1 in the place "
    f"of logits, and no lower. {either(_SQUASHES)}",
    "Look at the outputs that the loss is given: if none is below 0 or above 1, take the sigmoid out of the way.",
    {},
    alternatives=_SQUASHES,
)

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
    if late_median(values, 5) - floor < near:
        return Why("It came down to that and stays there: a softmax stands before it.", _CURE, {})
    if not ends_in(history, "Softmax", "Softmax2d"):
        untrained = any(str(f.evidence["missing"]).startswith("training") for f in no_gradient(history))
        return None if untrained else _by_its_beginning(history, values, classes, tight)
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
    at = columns(history).get(last.name) if last else None
    gain = 0.0 if at is None else float(gains[at])
    chance = math.log(classes)
    late = late_median(values, 5)
    floor, fell = math.log(math.e + classes - 1) - 1, late < 0.98 * chance
    quarters = [float(np.median(part)) for part in np.array_split(values, 4)]
    slows = quarters[2] - quarters[3] < 0.35 * (quarters[0] - quarters[1])
    even = abs(float(np.median(values[:5])) - chance) < 5 * tight * chance
    if even and slows and late < floor + 0.3 * (chance - floor):
        words = f"It began within {percent(5 * tight)} of log {classes}, and slows down above that. {either(_BOUNDED)}"
        return Why(words, f"Look at what the loss is given. {_CURE}", {}, alternatives=_BOUNDED)
    off, norm = values[:3] - chance, incoming(history)
    grows = float(np.nanmax(smooth(norm), initial=0.0)) > 2.5 * middle(
        norm[:5]
    )  # as shares leave the middle: then it falls already
    if not (fell and gain > 0.2 and off.max() < tight * chance and off.min() > -(3 if grows else 1) * tight * chance):
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


_BOUNDED = (
    "cross_entropy is given numbers between 0 and 1: a softmax or a sigmoid stands before it",
    "there is no more to be learnt than this",
)
