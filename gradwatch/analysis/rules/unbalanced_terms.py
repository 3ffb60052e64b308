"""A loss that is one of its terms, as they are logged, and next to nothing of the others.

Legend: T recorded steps.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from gradwatch.analysis.rules.facts import middle
from gradwatch.analysis.rules.finding import Finding, whole_run
from gradwatch.analysis.rules.losses import has_rivals
from gradwatch.analysis.rules.progress import progress
from gradwatch.history import Floats, History
from gradwatch.storage.logged_names import is_reward, is_training_loss


def loss_terms_unbalanced(
    history: History,
    most: float = 0.995,
    large: float = 100.0,
    least: float = 10.0,
    min_steps: int = 100,
    beside: float = 0.97,
    won: float = 0.1,
) -> list[Finding]:
    """One of several terms that are logged is all of the loss but next to nothing, and far above 1. A warning.

    Alarm: times one weight it is the share `most` of the loss or more, by the medians of the first and of the last
    tenth of the steps, and the loss is above `large` at first and above `least` in the end: a squared error of numbers
    that are not normalised, mostly; or the share `beside` is enough where another term won less than the share `won` of
    its first value meanwhile. Another term is logged that is no penalty by its name. Not where a reward that is
    logged gets better all the same, nor in parts that train against each other.
    Source: Kendall et al., arXiv:1705.07115, on terms of unlike size; Chen et al., arXiv:1711.02257, on what they do to
    the gradient of shared layers.
    """
    names = [name for name in history.logged if is_training_loss(name)]
    whole = next(filter(_WHOLE.fullmatch, names), "")
    terms = [name for name in names if name != whole and not _PENALTY.search(name)]
    if not whole or len(terms) < 2 or len(history) < min_steps or has_rivals(history):
        return []
    if any(is_reward(p.metric) and p.succeeded(0.2) for p in progress(history)):
        return []
    for name in terms:
        alone = _alone(history.total(whole), history.total(name))
        others = [other for other in terms if other != name]
        stand = any(p.metric in others and p.ended > (1 - won) * p.began for p in progress(history))
        if alone and alone.first > large and alone.end > least and alone.rest < 1 - (beside if stand else most):
            return [_finding(history, whole, name, " and ".join(others), alone)]
    return []


_WHOLE = re.compile(r"(train(ing)?[_/])?(total[_/])?loss([_/]total)?|total", re.IGNORECASE)
_PENALTY = re.compile(r"kl|reg|penal|(^|[^a-z])l[12]([^a-z]|$)|decay|prior|commit|aux|balance", re.IGNORECASE)


class _Alone(NamedTuple):
    """The weight of a term, the loss in the first and last tenth of the steps, and the share of it that is no part of
    the term, the larger of both.
    """

    weight: float
    first: float
    end: float
    rest: float


def _alone(loss: Floats, term: Floats) -> _Alone | None:
    """How much of a loss `[T]` is one of its terms, by least squares; None where its weight is not above 0."""
    known = np.isfinite(loss) & np.isfinite(term)
    loss, term = loss[known].astype(np.float64), term[known].astype(np.float64)
    weight = float(term @ loss / (term @ term)) if term.any() else 0.0
    if not weight > 0:
        return None
    tenth = max(1, len(loss) // 10)
    ends = slice(tenth), slice(-tenth, None)
    first, end = (middle(loss[at]) for at in ends)
    left = max(middle(np.abs(loss - weight * term)[at] / np.abs(loss[at])) for at in ends)
    return _Alone(weight, first, end, left)


def _finding(history: History, whole: str, name: str, others: str, alone: _Alone) -> Finding:
    times = "" if abs(alone.weight - 1) < 0.01 else f"{alone.weight:.3g} times "
    return whole_run(
        history,
        "loss-terms-unbalanced",
        (),
        {"term": name, "weight": alone.weight, "first": alone.first, "end": alone.end, "rest": alone.rest},
        f"{whole} is {times}{name} but for {100 * alone.rest:.2g} % of it, {alone.first:.4g} at first and "
        f"{alone.end:.4g} in the end. In layers that both train, and under a clip, the steps are those of {name}; what "
        f"{others} asks for hardly counts.",
        f"Bring what {name} is asked for to about 1: targets to mean 0 and deviation 1, rewards to returns of about 1. "
        "Or weigh it, so that the terms begin at a like size.",
    )
