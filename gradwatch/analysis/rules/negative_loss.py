"""A loss below 0, where that of a classification, a squared error or a likelihood of classes cannot be.

Legend: T recorded steps, C classes.
"""

from __future__ import annotations

import math

import numpy as np

from gradwatch.analysis.clips import incoming
from gradwatch.analysis.rules.facts import middle, settings
from gradwatch.analysis.rules.finding import Finding, Why, either, whole_run
from gradwatch.analysis.rules.layer_facts import chance_loss, last_matrix
from gradwatch.analysis.rules.loss_graph import (
    has_probabilities_for_logarithms,
    is_entropy_of_two,
    is_of_log_probabilities,
    paths,
    without_logarithm,
)
from gradwatch.analysis.rules.losses import has_rivals, training_losses
from gradwatch.analysis.rules.progress import reaches_its_goal
from gradwatch.analysis.rules.sampled_losses import logs_rewards, sampled
from gradwatch.analysis.rules.series import late_median, noise_of_one
from gradwatch.history import Floats, History


def negative_loss(
    history: History, near: float = 0.1, close: float = 0.1, min_steps: int = 20, times: float = 20.0
) -> list[Finding]:
    """A loss that is below 0 from the first step on, as that of a classification cannot be. A warning.

    With C rows in the last matrix, three at least, a cross-entropy begins at log C. Alarm: none of `min_steps` or
    more values of a training loss is above 0, and the first ones are within the share `near` of -log C (it has the
    wrong sign; unless the graph shows that it is of no logarithms), or within `close` of -1 / C and none is below
    -1 (probabilities were given in place of their logarithms), or all lie where kl_div of probabilities in place of
    their logarithms does (`_of_no_logarithm`), or the graph shows that it is given these
    (`has_probabilities_for_logarithms`); or the graph of the loss shows that it is of logarithms of probabilities
    (`is_of_log_probabilities`), or a binary cross-entropy that was written by hand (`is_entropy_of_two`), whose
    last values then are below 0. Of any model: it began within `near` of log 2, the cross-entropy of even odds, and
    fell to `times` that below 0 (its targets are none); or, below 0 throughout, it fell to `times` its first value,
    the second half of the steps by four fifths of the first or more (then a loss without a lower bound is the
    alternative); or it did so from above 0 while the gradient grew as it does on the way to no minimum
    (`_has_no_floor`); or it rose from below 0 to above it (`_rises`). Not of parts that train against each other.
    In any step: the graph of the loss shows nll_loss right above something that is no logarithm.
    Source: the definition of cross_entropy; torch's documentation of NLLLoss and CTCLoss wants log-probabilities.
    """
    shown = without_logarithm(history)
    if shown is not None:
        given, layer = shown
        words = f"nll_loss is given {given}, where it wants the logarithms of probabilities: it gets lower than 0, and "
        words += "what lowers it is no likelihood."
        return [whole_run(history, "negative-loss", layer, {"loss": "nll_loss", "given": given}, words, _LOGARITHM)]
    for name in training_losses(history):
        values = history.total(name)
        values = values[np.isfinite(values)]
        if len(values) < min_steps or has_rivals(history) or _is_of_a_policy(history):
            continue
        why = _of_classes(history, name, values, near, close, times) or _by_its_way(history, name, values, times)
        if why is None:
            continue
        last = last_matrix(history)
        layers = (last.name,) if last is not None else ()
        ends = {"first": float(np.median(values[:3])), "last": float(np.median(values[-3:]))}
        return [why.finding(history, "negative-loss", layers, {"metric": name, **ends})]
    return []


def _is_of_a_policy(history: History) -> bool:
    """Whether choices are weighed, beside a reward that is logged or an entropy in the loss: -log_prob * advantage is
    of either sign. Weights of classes alone weigh log-probabilities, too.
    """
    weighs, of_entropy = (len(sampled(history, name)[0]) for name in ("advantage_std", "entropy_rewarded"))
    return weighs > 0 and (of_entropy > 0 or logs_rewards(history))


def _of_classes(history: History, name: str, values: Floats, near: float, close: float, times: float) -> Why | None:
    """What a loss says that begins where one of C classes does, but for its sign or a logarithm."""
    chance, last = chance_loss(history), last_matrix(history)
    first, classes = float(np.median(values[:3])), last.shape[0] if last is not None else 0
    end, even = float(np.median(values[-3:])), math.log(2)
    if end < 0 and is_entropy_of_two(history):
        return Why(f"{name} falls below 0, to {end:.3g}: {_OUTSIDE}", f"{_TARGETS} {_BYTES}", {})
    if values.max() > 0:
        if not (end < -times * values[0] and abs(values[0] - even) < near * even):
            return None
        falls = f"{name} begins at the {values[0]:.2g} of even odds and falls to {end:.3g}. "
        return Why(falls + either(_ODD), _TARGETS, {}, alternatives=_ODD)
    if abs(first + chance) < near * chance and _may_be_of_logarithms(history):
        return Why(_where(name, f"minus the logarithm of {classes}", classes) + _TURNED, _TURN, {})
    if abs(first * classes + 1) < close and values.min() >= -1 and chance > 0:
        words = _where(name, f"minus 1 / {classes}", classes)
        return Why(f"{words}it is the mean of minus the probabilities, without their logarithm.", _LOGARITHM, {})
    if _of_probabilities(history) and not _is_meant_to_fall(history):
        said = f"{name} is minus a mean of probabilities, without their logarithm: it never falls by as much as 1, and "
        return Why(f"{said}where the model is wrong and sure of it, hardly any gradient is left.", _LOGARITHM, {})
    if has_probabilities_for_logarithms(history):
        words = f"{name} is below 0 from the first step on, as a divergence cannot be: kl_div is given probabilities, "
        return Why(f"{words}and its first argument is their logarithm.", _GIVE_LOGARITHM, {})
    if is_of_log_probabilities(history) and not _is_meant_to_fall(history):
        said = f"{name} is a mean of logarithms of probabilities, which are below 0, and not of minus these. "
        return Why(said + either(_LIKELIHOOD), _TURN, {}, alternatives=_LIKELIHOOD)
    if _of_no_logarithm(values, chance):
        said = f"{name} is below 0 from the first step on, and never falls by as much as 1. {either(_DIVERGENCE)}"
        return Why(said, _GIVE_LOGARITHM, {}, alternatives=_DIVERGENCE)
    return None


def _of_probabilities(history: History) -> bool:
    """Whether the graph shows a loss that is minus the mean of what a sigmoid or a softmax gives out."""
    squashed = ({"Neg"}, {"Mean", "Sum"}, {"Sigmoid", "Softmax", "Gather"})
    first = ([op.kind for op in path[:3]] for path, _ in paths(history))
    return any(len(names) == 3 and all(n in of for n, of in zip(names, squashed, strict=True)) for names in first)


def _may_be_of_logarithms(history: History) -> bool:
    """Whether the first losses are of logarithms, as the graph shows it, or it is not known of what they are."""
    names = {each.kind for path, _ in paths(history) for each in path}
    return not names or any("Log" in name or "NllLoss" in name for name in names)


def _is_meant_to_fall(history: History) -> bool:
    """Whether a likelihood is no loss with the wrong sign: steps lead uphill, or choices are weighed, as a policy's."""
    uphill = any(group.get("maximize") for group in settings(history))
    weighed = len(sampled(history, "advantage_mean")[0]) > 0
    return uphill or weighed or logs_rewards(history)


def _by_its_way(history: History, name: str, values: Floats, times: float) -> Why | None:
    """What the way of a loss says, whatever it is of: it falls ever faster, or rises from below 0 to above it."""
    first, half, end = float(np.median(values[:3])), float(values[len(values) // 2]), float(np.median(values[-3:]))
    tenth = values[: max(10, len(values) // 10)]
    below = first < -2.0 * noise_of_one(tenth)  # weights that grow lower one that begins at 0
    if values.max() <= 0 and below and end < times * first and half - end > 0.8 * (first - half):
        falls = f"{name} is below 0 from the first step on and falls on and on, from {first:.3g} to {end:.3g}. "
        return Why(falls + either(_UNBOUNDED), f"{_TURN} {_GIVEN}", {}, alternatives=_UNBOUNDED)
    if _has_no_floor(history, values, times):
        falls = f"{name} falls ever faster, from {first:.3g} to {end:.3g}, and the gradient grows with it. "
        return Why(falls + either(_NO_FLOOR), _FLOOR, {}, alternatives=_NO_FLOOR)
    if _rises(history, values):
        rises = f"{name} begins below 0, at {first:.3g}, and the steps that lower a loss raise it, to {end:.3g}. "
        return Why(rises + either(_RISING), _RAW, {}, alternatives=_RISING)
    return None


def _has_no_floor(history: History, values: Floats, times: float, growth: float = 10.0) -> bool:
    """Whether a loss fell to `times` its first value below 0, and the gradient grew to `growth` times its first on it.

    It fell by more in the second half of the run than in the first, or to the square of `times`. A likelihood of
    continuous data may fall below 0 as it should: it does so ever more slowly. A first value below 1 counts as 1. In
    healthy trainings of the tests it falls to 11 times its first value at most.
    """
    first, lowest = max(1.0, float(np.median(np.abs(values[:3])))), float(np.quantile(values, 0.1))
    halves = [float(np.median(part)) for part in np.array_split(values, 4)[1::2]]
    norm = incoming(history)
    tenth = max(3, len(norm) // 10)
    late = norm[-tenth:]
    grew = not np.isfinite(late).any() or middle(late) > growth * middle(norm[:tenth])
    faster = values[0] - halves[0] < halves[0] - halves[1] or lowest < -(times**2) * first
    return bool(lowest < -times * first and halves[1] < 0 and grew and faster)


def _rises(history: History, values: Floats, sigmas: float = 4.0, share: float = 0.1) -> bool:
    """Whether a loss began below 0 and ended above it, both clear of its noise, and nothing else got better.

    By `sigmas` of its standard deviation, and by the `share` of the range of its values.
    """
    least = max(sigmas * noise_of_one(values), share * float(np.ptp(values)))
    late = late_median(values, 5)
    return bool(np.median(values[:3]) < -least and late > least and not reaches_its_goal(history))


def _where(name: str, begins: str, classes: int) -> str:
    usual = f"{math.log(classes):.3g}"
    return f"{name} begins at {begins}, where a cross-entropy of {classes} classes begins at {usual}: "


def _of_no_logarithm(values: Floats, chance: float) -> bool:
    """Whether a loss is as kl_div gives it for C probabilities p in place of their logarithms.

    The sum of t log t - t p lies between -H - 1 and -H, with H the entropy of the targets t, at most log C. It ends
    below -1: a cosine does not, nor does the mean of rewards of 0 and 1, whatever single batches do.
    Source: the definition of kl_div, whose first argument is a logarithm; a divergence is never below 0.
    """
    within = -chance - 1 < values.min() and values.max() < 0  # NaN, where C is not known, is not
    return bool(within and np.ptp(values) < 1 and late_median(values) < min(-1, values[0]))


_DIVERGENCE = (
    "kl_div was given probabilities, and its first argument is their logarithm",
    "it is no divergence, and may be below 0",
)
_GIVE_LOGARITHM = "Give kl_div log_softmax(logits): a divergence of the logarithms is never below 0."
_LIKELIHOOD = (
    "it has the wrong sign, and the training makes it worse",
    "these are meant to fall: they are weighed by what something cost, or something is to be unlearnt",
)
_TURNED = "it has the wrong sign, and the training makes it worse."
_TURN = "Look at the sign of the loss: take the minus away, or minimise what is maximised now."
_LOGARITHM = "Give nll_loss log_softmax(logits), or cross_entropy the logits."
_ODD = ("binary_cross_entropy was given targets that are not between 0 and 1", "it is no cross-entropy")
_OUTSIDE = (
    "a sum of targets times logarithms of probabilities, which are below 0, is so only where a target is not between "
    "0 and 1."
)
_BYTES = "A mask of 255 is divided by it."
_TARGETS = "Look at the targets: 0 and 1, not -1 and 1. A cross-entropy of these is never below 0."
_GIVEN = f"If it is right: {_LOGARITHM} Give binary_cross_entropy targets from 0 to 1. {_BYTES}"
_UNBOUNDED = ("it has the wrong sign", "it has no lower bound, and outputs or weights that grow lower it")
_NO_FLOOR = ("a term of it has the wrong sign", "it has no lower bound, and outputs or weights that grow lower it")
_FLOOR = "Log each term of the loss by itself: the one that falls without end has the wrong sign, or wants a bound."
_RISING = (
    "its gradient is that of logarithms of probabilities, and it was given something else (ctc_loss, nll_loss, kl_div)",
    "what is logged is not what is minimised",
)
_RAW = (
    "Give it log_softmax(logits): a loss of probabilities is never below 0. Log the loss that backward() is called on."
)
