"""How long steps are: the first ones, the rate that makes them usual, and settings that make them longer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gradwatch.analysis.clips import late_calls, of_all_layers
from gradwatch.analysis.rules.facts import USUAL_RATIO, middle, optimizer_kind, rates, settings, steps_by_rate, to_usual
from gradwatch.analysis.rules.layer_facts import directness, largest_ratio, matrices, measured, numel
from gradwatch.analysis.rules.progress import succeeds
from gradwatch.history import History


def first_ratio(history: History) -> float:
    """The update ratio of the median matrix when first measured; NaN where none was."""
    _, ratio = measured(history, "update_ratio")
    return middle(ratio[0, matrices(history)]) if len(ratio) else float("nan")


def lowered(history: History) -> float:
    """By what the rate is multiplied where steps are too long: a tenth, or what makes the first ones usual, to a digit.

    The latter where steps are as long as the rate says: under Adam and most of its kin. RMSprop's first step is
    1 / sqrt(1 - alpha) times as long: its average of squares begins at 0 and is not corrected for that, as Adam's is.
    """
    alphas = [group.get("alpha", 0.0) for group in settings(history)] if "RMSprop" in optimizer_kind(history) else []
    first = first_ratio(history) * float(np.sqrt(1 - max(alphas, default=0.0)))
    if "Muon" in optimizer_kind(history):  # at its usual rate of 0.02 the steps are four times Adam's at 1e-3
        first /= 4
    return to_usual(history, first) if steps_by_rate(history) and first > 10 * USUAL_RATIO[True] else 0.1


class Lengthened(NamedTuple):
    """What makes steps longer than the first rate says, in words; empty where nothing does.

    `first` is a cure that comes before any other rate, `instead` one that may stand in its place.
    """

    cause: str = ""
    first: str = ""
    instead: str = ""

    def around(self, cure: str) -> str:
        """A cure that lowers the rate, with these."""
        return f"{self.first}{cure}{self.instead}"

    def left_of(self, tries: tuple[str, ...]) -> tuple[str, ...]:
        """Of the options that a cure names, those that are left: none of a lower rate where that is not the cure."""
        return () if self.first else tries


def lengthened(history: History, momentum: float = 0.97, apart: float = 100.0) -> Lengthened:
    """What makes steps longer than the first rate says.

    What is added to gradients after a clip, or an optimizer that begins anew in each step, comes before any rate.
    Momentum sums gradients up to 1 / (1 - momentum) times their size (Adam's is the first of its betas); a group's rate
    may be `apart` times another's. Betas the wrong way round are mended first: at a tenth of the rate their mean over a
    thousand steps still follows none of them (docs/findings/cures.md).
    Source: Sutskever et al. 2013 (the terminal velocity of momentum).
    """
    own = settings(history)
    found = [group.get("momentum") for group in own if not group.get("dampening")]
    found += [pair[0] for pair in _betas(history)]
    highest = max((float(m) for m in found if isinstance(m, int | float) and m < 1), default=0.0)
    added = _added(history)
    if added:
        return added
    if is_new_each_step(history):
        cause = " Each step moves the weights by the whole rate, as only the first step of Adam does: its averages are "
        cause += "lost from one step to the next."
        kept = "Build the optimizer once, before the loop, and keep its state (no state.clear()). If it is kept: "
        return Lengthened(cause, first=kept)
    turned = betas_turned(history, momentum)
    if turned:
        cause = f" Its betas {turned} are the wrong way round."
        return Lengthened(cause, first="Begin with betas=(0.9, 0.999); if that is not all: ")
    if highest >= momentum:
        cause = f" A momentum of {highest:g} makes steps up to {1 / (1 - highest):.0f} times as long as lr says."
        return Lengthened(cause, instead=" Or momentum=0.9.")
    group = np.nanmax(np.nan_to_num(rates(history)), axis=0)
    if group.min() > 0 and group.max() >= apart * group.min():
        fastest = int(group.argmax())
        times = group.max() / float(np.sort(group)[-2])
        cause = f" Param group {fastest} has {times:.3g} times the rate of the next."
        return Lengthened(cause, instead=f" Begin with param group {fastest}.")
    return Lengthened()


def betas_turned(history: History, momentum: float = 0.97) -> tuple[float, float] | None:
    """The betas of a group whose first is the larger one, and `momentum` or more, of Adam's kin; None where none is.

    Adan has three, which are counted the other way round.
    """
    if "Adam" not in optimizer_kind(history):
        return None
    return next((pair for pair in _betas(history) if pair[0] > pair[1] and pair[0] >= momentum), None)


def _betas(history: History) -> list[tuple[float, float]]:
    found = (group.get("betas") for group in settings(history))
    return [(pair[0], pair[1]) for pair in found if isinstance(pair, list | tuple) and len(pair) == 2]


def is_new_each_step(history: History, least: int = 100, near: float = 0.05, straight: float = 0.9) -> bool:
    """Whether Adam's steps are as long as the rate says, by the element, within `near` in nine of ten measurements.

    The first one is: m / sqrt(v) is the sign of the gradient. Later ones are shorter where signs differ, as they do
    unless steps get the share `straight` of their way. Of the weight, of `least` elements, whose steps are longest.
    """
    if "Adam" not in optimizer_kind(history) or not steps_by_rate(history):
        return False
    at, lengths = measured(history, "update_norm")
    wide = matrices(history) & (numel(history) >= least)
    rate = np.nanmax(np.nan_to_num(rates(history)), axis=1)[history.layer_rows[at]]
    if len(at) < 20 or not wide.any() or not (rate > 0).all() or not middle(directness(history)[1][wide]) < straight:
        return False
    shares = (lengths[:, i].astype(np.float64) / np.sqrt(numel(history)[i]) / rate for i in np.flatnonzero(wide))
    ends = (np.nanquantile(share, [0.1, 0.9]) for share in shares if np.isfinite(share).any())
    return any(low > 1 - near and high < 1 + near for low, high in ends)


def _added(history: History, times: float = 3.0) -> Lengthened | None:
    """What is added to gradients after the loop's own clip: `times` what it leaves reaches the optimizer."""
    left = np.minimum(history.total("user_grad_norm"), history.total("user_max_norm"))
    with np.errstate(invalid="ignore", divide="ignore"):
        larger = middle(history.total("grad_norm") / left)
    if not larger > times or late_calls(history).any() or not of_all_layers(history).all():
        return None
    cause = f" What reaches the optimizer is {larger:.2g} times what the loop's own clip leaves: something is added "
    first = "Look at what is added to the gradients between clip_grad_norm_ and step(): of noise take "
    first += f"1/{larger:.0f} or less, or batches as many times larger. If nothing is added: "
    return Lengthened(cause + "after it.", first)


def rate_without(history: History, typical: float) -> tuple[float, str]:
    """By what the rate is multiplied where a clip that made steps `typical` times as long is gone, and what that does.

    A training that gets better keeps its steps. Another gets usual ones, at no higher a rate than it has.
    """
    moves = largest_ratio(history)
    factor = min(1.0, USUAL_RATIO[False] * typical / moves) if moves > 0 and not succeeds(history) else 0.0
    return (factor, "are of a usual size") if factor > typical else (typical, "stay as large as they are")
