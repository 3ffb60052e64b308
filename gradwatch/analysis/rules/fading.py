"""Layers whose gradient fades as a training goes on, while those behind them keep theirs.

Legend: R recorded rows, W weight matrices in model order.
"""

from __future__ import annotations

import numpy as np

from gradwatch.analysis.rules.facts import middle, smooth
from gradwatch.analysis.rules.finding import Finding, either, whole_run
from gradwatch.analysis.rules.layer_facts import bias_columns, matrices, pick
from gradwatch.analysis.rules.losses import has_rivals
from gradwatch.analysis.rules.progress import came_down, loss_progress, reaches_its_goal, succeeds, unmoved
from gradwatch.analysis.rules.series import holds_from
from gradwatch.history import Floats, History


def fades(
    history: History,
    times: float = 5.0,
    faded: float = 0.3,
    min_steps: int = 100,
    first: int = 5,
    left: float = 0.1,
    well: float = 0.4,
) -> list[Finding]:
    """The first layers of a network get ever less of the gradient: what they give out matters less and less. A warning.

    Each weight matrix up to some layer lost `times` more of its gradient than each one behind it, from the median of
    its `first` rows to that of the last quarter, and was left with less than the share `faded`. Said as `vanishing`,
    which is along the depth from the start; this is along time. Not of a loss that came below the share `left` of where
    it began (nothing is left to learn), nor where a metric that is no loss got better by the share `well` or nothing
    got better, nor of parts that train against each other.
    Source: Bowman et al., arXiv:1511.06349 (a decoder that does without its code); in healthy trainings of the tests
    the first layers lose up to 2.6 times more.
    """
    names = pick(history, matrices(history))
    if len(history) < min_steps or len(names) < 3 or has_rivals(history):
        return []
    if not loss_progress(history) or came_down(history, left) or reaches_its_goal(history, well):
        return []
    if unmoved(history, min_steps, 5 * min_steps):
        return []  # nothing got better at all: `no-progress` is more than that
    norm = history.layer("grad_norm")[:, matrices(history)]
    kept = _kept(norm, first)
    behind_of = (k for k in range(1, len(kept)) if np.isfinite(kept[k:].min()))  # inf: they had none at first
    places = [k for k in behind_of if 0 < kept[:k].max() < min(faded, kept[k:].min() / times)]
    if not places:
        return []
    place = places[-1]
    front, behind = float(kept[:place].max()), float(kept[place:].min())
    return [
        Finding(
            "vanishing",
            "warning",
            names[:place],
            int(history.layer_step[_faded_since(norm[:, :place].astype(np.float64), faded, first)]),
            int(history.step[-1]),
            {"left_of_the_gradient": front, "left_behind_them": behind},
            f"The gradients of these layers faded to {front:.2g} of what they were at first, and those from "
            f"{names[place]} on to {behind:.2g}: what these layers give out hardly matters to the loss any more. "
            f"{either(_UNHEARD)}",
            "Look at what stands between these layers and the next: a noise or a dropout that drowns it, "
            "a penalty that outweighs the rest of the loss, a normalisation over few rows, units at their ends.",
            alternatives=_UNHEARD,
        )
    ]


def _kept(norm: Floats, first: int) -> Floats:
    """What is left of the gradient of each matrix `[R, W]` in the last quarter, as a share of what it had first."""
    early, late = (part.T.astype(np.float64) for part in (norm[:first], norm[-max(first, len(norm) // 4) :]))
    with np.errstate(invalid="ignore", divide="ignore"):
        kept = np.array([middle(column) for column in late]) / np.array([middle(column) for column in early])
    return np.where(np.isfinite(kept), kept, np.inf)


def _faded_since(norm: Floats, faded: float, first: int) -> int:
    """The row after the last one at which these matrices `[R, W]` mostly had that share of their first gradient.

    Not the first one below it: the first step's may be small beside those of the steps that it is followed by.
    """
    level = np.array([middle(row) for row in norm / np.array([middle(column) for column in norm[:first].T])])
    return min(holds_from(smooth(np.where(np.isfinite(level), level, np.inf)) < faded), len(norm) - 1)


_UNHEARD = (
    "what lies behind them learnt to do without what they give out",
    "their units died or came to their ends",
)


def lost_in_time(history: History, share: float = 1e-4, min_steps: int = 20, well: float = 0.6) -> list[Finding]:
    """A recurrence whose input weights get next to no gradient beside the bias that is added with them.

    Both get the same gradient at each time step, times the input and times 1: where their quotient is below a `share`,
    by the median step, the steps that have an input get none. In healthy trainings of the tests it is .09 at least. Not
    said where the training succeeds.
    Source: Pascanu et al. 2013, "On the difficulty of training recurrent neural networks", section 2.2.
    """
    if len(history) < min_steps or succeeds(history, well):
        return []
    for weight, bias in bias_columns(history).items():
        name = history.layers[weight]
        if "weight_ih" not in name:
            continue
        norm = history.layer("grad_norm")[:, [weight, bias]].astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            quotient = middle(norm[:, 0] / norm[:, 1])
        if quotient < share:
            return [
                whole_run(
                    history,
                    "vanishing",
                    (name,),
                    {"share_of_its_bias": quotient},
                    f"The gradient of {name}, by which the recurrence is given its inputs, is {quotient:.1g} of that "
                    "of the bias beside it: it comes from time steps that are given next to nothing (padding), and to "
                    "those that are given something none gets back.",
                    "Read the state at each row's own last step (pack_padded_sequence, or gather by its length), or "
                    "pad in front. If nothing is padded: fewer time steps, or the mean of all states in the place of "
                    "the last.",
                )
            ]
    return []
