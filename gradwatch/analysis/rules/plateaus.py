"""Losses that fall and then stand far above 0, or stand at equal odds and fall late: both are `no-progress`.

Legend: T recorded steps.
"""

from __future__ import annotations

import numpy as np

from gradwatch.analysis.clips import incoming
from gradwatch.analysis.final_values import quarters
from gradwatch.analysis.rules.facts import middle
from gradwatch.analysis.rules.finding import Evidence, Finding, Severity, Why, either
from gradwatch.analysis.rules.held_out import knew, learns, tells
from gradwatch.analysis.rules.layer_facts import ends_in
from gradwatch.analysis.rules.loss_graph import paths, wants_its_sigmoid
from gradwatch.analysis.rules.progress import Progress, comes_to_rest, judged_losses, reaches_its_goal, succeeds
from gradwatch.analysis.rules.sampled_losses import LEAST_SAMPLES, of_what, sampled, share_explained
from gradwatch.analysis.rules.series import late_median
from gradwatch.analysis.rules.standstill import equal_odds, left_odds, rests_since
from gradwatch.analysis.rules.weight_decay import taken_by_decay
from gradwatch.formatting import percent
from gradwatch.history import History


def finding_of(history: History, shown: Progress, why: Why, severity: Severity = "warning") -> list[Finding]:
    """The finding of a loss or metric that went so, for the cause that the record shows.

    Where it leaves several, or the loss `comes_to_rest`, and the model `learns` something of other data, or `tells`
    something of these, or `knew` it, it is a note: there may be no more.
    """
    is_open = severity == "warning" and (why.alternatives or comes_to_rest(history))
    if is_open and (known := learns(history) or tells(history) or knew(history)):
        severity, why = "note", Why(f"{shown.in_words}. {known}. It may be all that can be learnt.", _MORE, {})
    began = shown.first if shown.is_real() else shown.began  # as `Progress.in_words` has it
    evidence: Evidence = {"metric": shown.metric, "began": began, "ended": shown.ended, "noise": shown.error}
    return [why.finding(history, "no-progress", (), evidence, severity)]


def rests(
    history: History,
    min_steps: int,
    running: int,
    left: float = 0.25,
    much: float = 0.7,
    large: float = 1e4,
    pull: float = 0.002,
    known: float = 0.2,
) -> list[Finding]:
    """Each loss fell at first and stands since, at a large part of where it began, and nothing else got better.

    The share `left` of the first value is left at least, and from the second quarter of the run to the last it won
    nothing that is clear of its noise; or less than a quarter of the whole, where the last module bounds or drops what
    is given out: a ReLU cuts off all below 0, a dropout sets outputs to 0 by chance (`rests_since`). Without such a
    module, or where it is the sigmoid that a binary_cross_entropy is to be given, it is a note where the training
    `succeeds`, less than the share `much` is left, or the outputs explain the share `known` of numbers that are asked
    for: so end healthy trainings whose targets have noise.
    But of a loss that began above `large`, whose targets are a hundred times what a net gives out at first, a fifth of
    `left` is much. A weight decay that takes the share `pull` of the weights in each step, twice what is usual, is a
    cause, too.
    """
    taken = next((kind for kind in ("ReLU", "Dropout", "Sigmoid", "Tanh") if ends_in(history, kind)), "")
    taken = "" if taken == "Sigmoid" and wants_its_sigmoid(history) else taken
    losses = judged_losses(history, min_steps, running)
    if not losses or reaches_its_goal(history):
        return []
    far = losses[0].first > large
    if not all(rests_since(history, p, left / 5 if far else left, bool(taken)) for p in losses):
        return []
    shown = losses[0]
    causes: tuple[str, ...]
    causes, cure = _OF_LARGE if far else _AT_A_FLOOR
    decay = taken_by_decay(history)
    if decay > pull:
        causes = (f"a weight decay, which takes {percent(decay)} of the weights in each step, holds them back", *causes)
        cure = f"Lower the weight decay a hundredfold: if the loss falls on, that was it. If not: {cure}"
    if taken:
        causes = (f"its last module, a {taken}, takes away what the loss asks for", _NO_MORE)
        cure = f"Take the {taken} out from behind the last layer of weights."
    why = Why(
        f"{shown.metric} falls from {shown.first:.4g} to {shown.ended:.4g}, the most of it in the first quarter of the "
        f"run, and stands there since. {either(causes)}",
        cure,
        {"left": shown.ended / shown.first, **({"last_module": taken} if taken else {})},
        alternatives=causes,
    )
    share = share_explained(history)
    chooses = len(sampled(history, "predicted_right")[0]) > 0
    tells = not chooses and len(share) >= LEAST_SAMPLES and late_median(share) > known
    well = succeeds(history) or shown.ended < much * shown.first or tells or _is_own_likelihood(history)
    return finding_of(history, shown, why, "note" if well and not (taken or far) else "warning")


def _is_own_likelihood(history: History) -> bool:
    """Whether a loss is minus something that no logarithm of torch's gives, or a mean of what an exponential does, as
    the graph shows: its floor is not known.

    So is a partial likelihood (Cox 1972), and that of counts (`poisson_nll_loss`) or of times, whose least is far from
    0.
    """
    every = [[each.kind for each in path] for path, _ in paths(history)]
    own = [names for names in every if not any(word in name for name in names for word in _KNOWN_FLOORS)]
    return any("Neg" in names[:3] or "Exp" in names[:5] for names in own)


_KNOWN_FLOORS = ("Log", "Nll", "Loss", "Entropy")


def stops(history: History, min_steps: int, running: int, much: float = 0.6, share: float = 0.125) -> list[Finding]:
    """The gradient faded to less than a `share` of its first, and each loss has the share `much` of its first left.

    Both by the medians of the last quarter, in which the gradient still fades: noise in the targets leaves one that
    stays. A note where the training `succeeds`: so ends each that gets to the least of its loss.
    """
    losses = judged_losses(history, min_steps, running)
    quarters = [middle(part) for part in np.array_split(incoming(history), 4)]
    kept = quarters[3] / max(middle(incoming(history)[:5]), 1e-30)
    if not losses or not 0 < kept < share or quarters[3] > 0.75 * quarters[2]:
        return []
    if any(p.ended < much * p.began for p in losses) or reaches_its_goal(history):
        return []
    shown = losses[0]
    why = Why(
        f"{shown.metric} still is {shown.ended:.4g} of the {shown.began:.4g} that it began with, and the gradients of "
        f"all layers faded to {kept:.2g} of what they were. {either(_STOPPED)}",
        "Look at the outputs: if most are the same numbers (0 and 1, -1 and 1), take what bounds them out of the way, "
        "or begin closer to the targets: normalise these.",
        {"left_of_the_gradient": kept},
        alternatives=_STOPPED,
    )
    return finding_of(history, shown, why, "note" if succeeds(history) else "warning")


def begins_late(history: History, min_steps: int, running: int, late: float = 0.7) -> list[Finding]:
    """Each loss stood at what equal odds give for the share `late` of the run, and fell only then (`left_odds`).

    In the healthy trainings of the tests the longest such plateau is .53 of the run.
    """
    losses = judged_losses(history, min_steps, running)
    shares = [left_odds(history, p) for p in losses]
    if not losses or not all(late < share < 1 for share in shares) or reaches_its_goal(history):
        return []
    shown, row = losses[0], int(min(shares) * len(history))
    why = Why(
        f"{shown.metric} stood at the {equal_odds(history):.3g} of equal probabilities until step "
        f"{int(history.step[row])}, and falls only since: most of the run taught nothing. {either(_LATE)}",
        "Train twice as long: if it comes down, that was all. To get there sooner look at what carries the signal: "
        "biases that hold gates open or shut, a state that fades or is dropped out, products that are not scaled.",
        {"left_at": min(shares)},
        alternatives=_LATE,
    )
    return finding_of(history, shown, why)


def explains_nothing(
    history: History,
    min_steps: int,
    running: int,
    late: float = 0.03,
    ever: float = 0.05,
    still: float = 0.03,
) -> list[Finding]:
    """The outputs tell nothing of the targets, whatever the loss did: to know their mean is as good.

    The share of the targets' variance that is explained, or of the entropy of their classes, is below `late` in the
    last quarter of the samples, by the median, and at its third highest below `ever` (`share_explained`). Not where the
    loss fell by the share `still` since the quarter of the run before: then it may come yet.
    """
    share = share_explained(history)
    if len(share) < LEAST_SAMPLES:
        return []
    rest, best = late_median(share), float(np.sort(share)[-3])
    losses = judged_losses(history, min_steps, running)
    if not losses or rest > late or best > ever or reaches_its_goal(history):
        return []
    shown = losses[0]
    *_, before, last = quarters(history, shown.metric)
    if last < (1 - still) * before:
        return []
    of, constant = of_what(history)
    why = Why(
        f"The outputs explain {percent(max(rest, 0.0))} of the {of} that are asked for: "
        f"{constant} would do as well. {shown.metric} went from "
        f"{shown.first:.4g} to {shown.ended:.4g}. {either(_AT_A_FLOOR[0])}",
        _AT_A_FLOOR[1],
        {"explained": rest, "explained_at_best": best},
        alternatives=_AT_A_FLOOR[0],
    )
    return finding_of(history, shown, why)


_MORE = (
    "Train on a few hundred rows alone. If their loss falls far lower, what is left is noise in the targets, or what "
    "only more data tell; if not, the model or the loss holds it back."
)
_LATE = (
    "what the answer depends on hardly gets through the model as it begins",
    "it is a plateau of this task, and the run is short for it",
)
_NO_MORE = "there is no more to be learnt"
_STOPPED = ("the outputs came to where what bounds them is flat (a sigmoid, a tanh, a softmax, a clamp)", _NO_MORE)
_OF_LARGE = (
    (
        "the targets, or a sum in the loss, are far larger than what the model gives out, and what is left is their "
        "size",
        f"{_NO_MORE} (noise in the targets)",
    ),
    "Bring the targets to mean 0 and deviation 1 (where rows are normalised one by one, by the numbers of their "
    "inputs), and scale back what is given out.",
)
_AT_A_FLOOR = (
    (
        "the outputs are alike for all inputs: of the targets only the mean is learnt, or one term of the loss "
        "outweighs the others",
        f"{_NO_MORE} (noise in the targets)",
    ),
    "Look at the outputs for two unlike inputs. If they are alike, what is learnt is the mean: look at what lies "
    "between inputs and outputs, at the shapes that the loss is given, at how inputs and targets are put together, and "
    "at each term of the loss by itself.",
)
