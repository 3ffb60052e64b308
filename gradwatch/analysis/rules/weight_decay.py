"""A weight decay that is a large part of what moves the weights.

Legend: L layers, M steps in which weights were measured, W matrices.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.final_values import quarters
from gradwatch.analysis.rules.facts import is_adaptive, middle, optimizer_kind, set_rate, settings
from gradwatch.analysis.rules.finding import Finding, whole_run
from gradwatch.analysis.rules.held_out import held_out
from gradwatch.analysis.rules.layer_facts import matrices, measured, pick
from gradwatch.analysis.rules.progress import loss_progress
from gradwatch.formatting import percent
from gradwatch.history import Floats, History

_ADDS_DECAY = re.compile("Adam|RAdam|NAdam|Adamax|Adagrad|RMSprop|Adadelta|SparseAdam")


def weight_decay_too_strong(
    history: History, share: float = 0.2, usual: float = 1e-3, min_measured: int = 5
) -> list[Finding]:
    """A decay above `usual` that is added to the gradient (L2) of an adaptive optimizer, and is more than a `share` of
    it in the first quarter of the run, in the median matrix; or of SGD, whose weights it `_shrinks`, or whose loss
    rests where the decay holds it (`_holds`). A warning.

    In the gradient it passes through the moments: each weight is drawn to 0 by up to the learning rate, whatever the
    decay, and those whose gradients are small most of all. A decay of AdamW's size handed to Adam does it, and a class
    of somebody's own that is called AdamW and adds it (`_draws_more`).
    Source: Loshchilov & Hutter, arXiv:1711.05101, section 2 and figure 1. In healthy trainings of the tests it is at
    most 0.03 of the gradient early on.
    """
    own = [group for group in settings(history) if is_decay(group.get("weight_decay"))]
    at, norm = measured(history, "weight_norm")
    if not own or len(at) < min_measured:
        return []
    kind, decay, wide = optimizer_kind(history), max(decay_of_groups(history)), matrices(history)
    early, quarter = slice(-(-len(at) // 4)), norm[: -(-len(at) // 4), wide].astype(np.float64)
    torch_s_own = any("decoupled_weight_decay" in group for group in own)
    adds = _ADDS_DECAY.fullmatch(kind) and not any(group.get("decoupled_weight_decay") for group in own)
    if kind == "SGD" and decay > usual:
        norm = norm[:, wide].astype(np.float64)
        return _shrinks(history, at, norm, decay) or _holds(history, at, norm, decay)
    if not adds and (torch_s_own or not _draws_more(history, at[early], quarter, decay)):
        return []
    of_gradient = _of_gradient(history, at[early], quarter, decay)
    if decay <= usual or not of_gradient > share:
        return []
    return [
        whole_run(
            history,
            "weight-decay-too-strong",
            pick(history, wide),
            {"decay_over_gradient": of_gradient, "weight_decay": decay, "lr": set_rate(history)},
            f"{kind} adds the decay of {decay:g} times the weights to their gradients, where it was "
            f"{percent(of_gradient)} of them: it passes through the moments, and draws each weight to 0 by up to the "
            "learning rate in a step.",
            "Take torch.optim.AdamW, which takes lr x weight_decay of the weights and leaves the moments alone; or a "
            f"decay of 1e-4 or less with {kind}.",
        )
    ]


def _shrinks(
    history: History,
    at: NDArray[np.intp],
    norm: Floats,
    decay: float,
    share: float = 0.5,
    left: float = 0.7,
    faded: float = 0.1,
    won: float = 0.1,
) -> list[Finding]:
    """A decay under SGD that is more than the `share` of the gradient in the first quarter of the run, in the median
    matrix, and draws most of them below `left` of their first size, before the loss is heard: in that quarter it won
    less than the share `won`. Not below `faded` for good, which is `weights-shrink`.

    Source: Krogh & Hertz 1991 (the decay leaves what the gradient holds against it). In the healthy trainings of the
    tests it is 0.14 of the gradient early on, at most.
    """
    early = slice(-(-len(at) // 4))
    pulls = _of_gradient(history, at[early], norm[early], decay)
    with np.errstate(invalid="ignore", divide="ignore"):
        shrank = middle((norm / norm[0]).min(axis=0))
    if not share < pulls < np.inf or not shrank < left or middle(norm[-1] / norm[0]) < faded:
        return []
    losses = loss_progress(history)
    if not losses or any(quarters(history, p.metric)[0] < (1 - won) * p.first for p in losses):
        return []
    return [
        whole_run(
            history,
            "weight-decay-too-strong",
            pick(history, matrices(history)),
            {"decay_over_gradient": pulls, "weight_decay": decay, "shrank_to": shrank},
            f"In the first quarter of the run the pull of the decay, {decay:g} times the weights, is {percent(pulls)} "
            f"of the gradient: it drew most weights down to {shrank:.2g} of their size, and what the loss asks for had "
            "to be won against it.",
            "Lower the weight decay to 1e-3 or less.",
        )
    ]


def _holds(
    history: History,
    at: NDArray[np.intp],
    norm: Floats,
    decay: float,
    share: float = 0.25,
    left: float = 0.2,
    least: float = 0.3,
) -> list[Finding]:
    """A loss that rests above `left` of its first value under SGD, and won less than a tenth of all that it won since
    the second quarter of the run, where in the second half the decay is the `share` of the gradient, in the
    median matrix, and half of it times the squared weights `least` of the loss: there one balances the other.
    Not where a value of other data got better by a tenth.

    Source: Krogh & Hertz 1991, A Simple Weight Decay Can Improve Generalization (in the minimum of loss and penalty
    their gradients cancel). A healthy training of the tests rests at 0.17 of its first value, by a decay of 0.17.
    """
    if any(worse[0] - middle(worse[-3:]) > abs(worse[0]) / 10 for *_, worse in held_out(history, least=4)):
        return []  # what it takes from the training data it may give to others
    late = slice(len(at) // 2, None)
    pulls = _of_gradient(history, at[late], norm[late], decay)
    losses = loss_progress(history)
    if not share < pulls < np.inf or not losses:
        return []
    for loss in losses:
        _, second, _, last = quarters(history, loss.metric)
        if not (min(loss.won, last) > left * loss.first and second - last < loss.won / 10):
            return []
    loss, penalty = losses[0], decay / 2 * float(middle((norm[late] ** 2).sum(axis=1)))
    if not penalty > least * loss.ended:
        return []
    return [
        whole_run(
            history,
            "weight-decay-too-strong",
            pick(history, matrices(history)),
            {"decay_over_gradient": pulls, "weight_decay": decay, "end": loss.ended, "penalty": penalty},
            f"{loss.metric} rests at {loss.ended:.4g} since the second quarter of the run. The pull of the decay, "
            f"{decay:g} times the weights, is {percent(pulls)} of the gradient of a batch there: what the loss asks "
            "for, the decay takes back.",
            "Lower the weight decay to 1e-3 or less. If the loss rests there without it, too, it is not "
            "why; if it is what keeps other data good, leave it.",
        )
    ]


def _of_gradient(history: History, at: NDArray[np.intp], norm: Floats, decay: float) -> float:
    """What a decay of the matrices `[M, W]` adds, as a share of the gradient that reaches the optimizer: the median."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return middle(decay * norm / history.layer("clipped_norm")[at][:, matrices(history)])


def _draws_more(history: History, at: NDArray[np.intp], norm: Floats, decay: float, left: float = 0.6) -> bool:
    """Whether most of these matrices `[M, W]` came to less than `left` of their size under an adaptive optimizer, where
    a decay of its rate times `decay` in each step would have taken less than a tenth.
    """
    steps = int(history.layer_step[at[-1]] - history.layer_step[at[0]])
    taken = 1 - (1 - min(set_rate(history) * decay, 1.0)) ** steps
    return is_adaptive(history) and taken < 0.1 and middle(norm[-1] / norm[0]) < left


def taken_by_decay(history: History) -> float:
    """The share of the weights that a decay takes in a step: rate x decay, where no second moment divides it."""
    if not decouples(history):
        return 0.0
    return max(decay_of_groups(history), default=0.0) * set_rate(history)


def decay_of_groups(history: History) -> list[float]:
    """The weight decay of each param group, 0 where it has none."""
    return [float(g["weight_decay"]) if is_decay(g.get("weight_decay")) else 0.0 for g in settings(history)]


def decouples(history: History) -> bool:
    """Whether no second moment divides what a decay takes."""
    return not is_adaptive(history) or "AdamW" in optimizer_kind(history)


def is_decay(setting: object) -> bool:
    """Whether a group's `weight_decay` is a number above 0."""
    return isinstance(setting, int | float) and setting > 0
