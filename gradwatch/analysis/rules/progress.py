"""Whether a training gets better: by its losses, and by the metrics whose direction is known.

Legend: T recorded steps, N logged values of a scalar.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from gradwatch.analysis.clips import incoming
from gradwatch.analysis.final_values import lost_since
from gradwatch.analysis.groups import higher_is_better
from gradwatch.analysis.rules.facts import middle, rates, steps_taken
from gradwatch.analysis.rules.layer_facts import chance_loss
from gradwatch.analysis.rules.loss_graph import is_one_loss, number_of_classes
from gradwatch.analysis.rules.losses import has_rivals, scaled_losses, training_losses
from gradwatch.analysis.rules.once import once
from gradwatch.analysis.rules.sampled_losses import LEAST_SAMPLES, sampled
from gradwatch.analysis.rules.series import OF_MEDIAN, late_median, noise_of_one
from gradwatch.history import Floats, History
from gradwatch.storage.logged_names import is_loss

ACCURACY = re.compile(r"(^|[^a-z])acc(uracy)?([^a-z]|$)", re.IGNORECASE)
_DIVERGENCE = re.compile(r"(^|[^a-z])kld?([^a-z]|$)", re.IGNORECASE)


@dataclass(frozen=True)
class Progress:
    """How a scalar went: medians of where it began and ended, of its `last` twentieth, and of the best in between.

    It began with so many values (`length`).
    `gain` is how much better than it began it ended, `error` the standard error of that. `first` is its first value,
    `won` how much better than that it ended. `noise` is the standard deviation of one value.
    """

    metric: str
    first: float
    began: float
    ended: float
    last: float
    best: float
    gain: float
    won: float
    error: float
    noise: float
    length: int

    @property
    def is_loss(self) -> bool:
        """Whether it is a loss, by its name: another metric of known direction says what the training is for."""
        return is_loss(self.metric)

    def is_real(self, sigmas: float = 4.0) -> bool:
        """Whether it ended better than it began by more than its noise."""
        return self.gain > sigmas * self.error

    def is_large(self, share: float) -> bool:
        """Whether it ended better by a share of where it began."""
        return self.is_real() and self.gain > share * abs(self.began)

    def is_flat(self, share: float) -> bool:
        """Whether it can hardly have got better by a share of where it began, for all its noise."""
        return self.gain + 2 * self.error < share * abs(self.began)

    def succeeded(self, share: float) -> bool:
        """Whether it ended better by a share of where it began, and of its first value, and lost no more of that than
        a quarter again, nor half of it at the very end.
        """
        most = abs(self.began - self.best)
        kept = abs(self.ended - self.best) <= 0.25 * most and abs(self.last - self.best) <= 0.5 * most
        return self.is_large(share) and self.won > share * abs(self.first) and kept

    @property
    def in_words(self) -> str:
        """That it is no better in the end, or what it came to where it is: a clause, with its numbers."""
        if self.is_real():
            return f"{self.metric} came from {self.first:.4g} to {self.ended:.4g}"
        said = f"{self.metric} is no better in the end than over its first {self.length} values: "
        said += f"{self.began:.4g}, then {self.ended:.4g}"
        apart = abs(self.first - self.began) > max(0.1 * abs(self.began), 4 * self.noise)
        return said + (f" (its very first was {self.first:.4g})" if apart else "")


@once
def progress(history: History, least: int = 20) -> list[Progress]:
    """How each scalar of known direction went that was logged `least` times; losses without a scale are left out.

    So is a divergence beside another loss: it falls to 0 as well where its term outweighs all others.
    """
    losses = scaled_losses(history)
    beside = [name for name in losses if _DIVERGENCE.search(name)] if len(losses) > 1 else []
    found = []
    for name in history.logged:
        if name in beside or (losses and name not in losses and _DIVERGENCE.search(name)):
            continue
        rises = higher_is_better(name, [history])
        values = history.total(name)
        values = values[np.isfinite(values)]
        if rises is None or len(values) < least or (is_loss(name) and name not in losses):
            continue
        found.append(went(name, -values if rises else values, -1 if rises else 1))
    return found


def loss_progress(history: History) -> list[Progress]:
    """How each of the losses among them went."""
    return [p for p in progress(history) if p.is_loss]


def judged_losses(history: History, min_steps: int, running: int) -> list[Progress]:
    """How the losses went of a run that `can_be_judged`; none of another."""
    return loss_progress(history) if can_be_judged(history, min_steps, running) else []


def went(name: str, values: Floats, sign: int, first: int = 5) -> Progress:
    """Of a scalar `[N]` that is better when it is lower.

    It is compared with its end at several lengths of the beginning, 5 values to a quarter of all: some fall within a
    few steps, and of others single values are mostly noise. The clearest of these counts; where none is clear, the one
    that is known best.
    """
    late = values[-max(first, len(values) // 4) :]
    ended = float(np.median(late))
    sigma = noise_of_one(values)
    width = max(first, len(values) // 20)
    blocks = values[len(values) % width :].reshape(-1, width)
    medians = np.median(blocks, axis=1)
    tried = []
    length = first
    while length <= max(first, len(values) // 4):
        began = float(np.median(values[:length]))
        error = OF_MEDIAN * sigma * float(np.sqrt(1 / length + 1 / len(late)))
        tried.append((began, began - ended, error, length))
        length *= 2
    began, gain, error, length = max(tried, key=lambda t: t[1] / t[2] if t[2] else t[1])
    if abs(gain) <= 4 * error:
        began, gain, error, length = tried[-1]
    best = min(float(medians.min()), ended)
    known = {"first": float(values[0]), "began": began, "ended": ended, "last": float(medians[-1]), "best": best}
    shown = {what: sign * value for what, value in known.items()}
    won = float(values[0]) - ended
    return Progress(name, **shown, gain=gain, won=won, error=float(error), noise=sigma, length=length)


def succeeds(history: History, share: float = 0.2) -> bool:
    """Whether the training demonstrably gets better: a scalar ended better by `share` of where it began, for good.

    A loss that came down to what equal odds give, and no further, knows nothing: of a loss that is a cross-entropy and
    nothing else, by that of the batches that were looked at.
    """
    odds = math.log(number_of_classes(history) or 1)  # 0 where they are not known
    _, entropy = sampled(history, "cross_entropy")
    is_known = odds > 0 and len(entropy) >= LEAST_SAMPLES and is_one_loss(history)
    guesses = is_known and late_median(entropy) > 0.98 * odds
    got_better = (p for p in progress(history) if not (guesses if p.is_loss else _by_chance(history, p)))
    return lost_since(history) is None and not has_rivals(history) and any(p.succeeded(share) for p in got_better)


def _by_chance(history: History, metric: Progress, kappa: float = 0.1) -> bool:
    """Whether an accuracy tells hardly more classes right than equal odds do, whatever it began with.

    Source: Cohen 1960, doi:10.1177/001316446002000104 (the share that is right beyond chance, of what could be).
    """
    classes = number_of_classes(history) or 0
    if classes < 2 or not ACCURACY.search(metric.metric) or not 0 <= metric.ended <= 1:
        return False
    return metric.ended - 1 / classes < kappa * (1 - 1 / classes)


def descends(history: History, sigmas: float = 20.0) -> bool:
    """Whether a training loss, which may be below 0 as a likelihood is, ended below where it began by far more than its
    noise, and close to its lowest.
    """
    values = (history.total(name) for name in training_losses(history))
    went_on = (went("loss", each[np.isfinite(each)], 1) for each in values if np.isfinite(each).sum() >= 20)
    return any(p.is_real(sigmas) and p.ended - p.best < 0.25 * p.gain for p in went_on)


def came_down(history: History, left: float) -> bool:
    """Whether a training loss ended below the share `left` of where it began."""
    return any(p.ended < left * p.first for p in loss_progress(history))


def all_learnt(history: History, near: float = 0.02) -> bool:
    """Whether each training loss succeeded, and rests at its lowest, below what equal probabilities give.

    A margin that is kept, a floor under the loss: then no gradient is left.
    """
    losses = loss_progress(history)
    chance = chance_loss(history)
    rests = [p.ended <= (1 + near) * p.best and not p.ended >= 0.9 * chance for p in losses]
    return bool(losses) and all(rests) and succeeds(history)


def comes_to_rest(history: History, times: float = 1e3, near: float = 1e-3, still: float = 1e-5) -> bool:
    """Whether each training loss stands at its lowest without moving, and the gradient is a part in `times` of its
    first: a loss without noise has come to its least, and what is left of the gradient is rounding.
    """
    norm, losses = incoming(history), loss_progress(history)
    faded = middle(norm[-max(1, len(norm) // 4) :]) < middle(norm[:5]) / times
    rests = (p.noise < still * abs(p.ended) and p.ended - p.best < near * abs(p.best) for p in losses)
    return bool(losses) and faded and all(rests)


def learnt_before(history: History, loss: Progress) -> bool:
    """Whether a loss began at less than half of what equal probabilities give: the model had been trained before."""
    return loss.began < chance_loss(history) / 2


def creeps(
    history: History,
    share: float = 0.4,
    pace: float = 0.4,
    sigmas: float = 4.0,
    min_steps: int = 100,
    running: int = 500,
) -> bool:
    """Whether the losses fall, by less than `share`, and hardly slower at the end than at first: they are far from it.

    Each third of a training loss is lower than the one before by its median, the last by no less than the share `pace`
    of what the one before it won, and both together are `sigmas` standard errors. Not asked while the rate still rises,
    nor of a loss that was `learnt_before`.
    """
    if not can_be_judged(history, min_steps, running) or _rises(history):
        return False
    known = progress(history)
    losses = [p for p in known if p.is_loss]
    if not losses or any(p.is_large(share) for p in known) or any(learnt_before(history, p) for p in losses):
        return False
    for p in losses:
        values = history.total(p.metric)
        values = values[np.isfinite(values)]
        thirds = [float(np.median(part)) for part in np.array_split(values, 3)]
        late, error = thirds[1] - thirds[2], OF_MEDIAN * p.noise * np.sqrt(6 / len(values))
        if not (thirds[0] - thirds[2] > sigmas * error and late >= pace * (thirds[0] - thirds[1]) > 0):
            return False
    return True


def hardly_moves(
    history: History, share: float = 0.025, unclear: float = 0.2, min_steps: int = 100, running: int = 500
) -> bool:
    """Whether nothing that was logged got better by more than `share`, for all its noise.

    By no more than `unclear`, where it did not clearly get better. Asked as `creeps` is.
    """
    known = progress(history) if can_be_judged(history, min_steps, running) and not _rises(history) else []
    losses = [p for p in known if p.is_loss and not learnt_before(history, p)]
    return (
        bool(losses)
        and not any(p.is_large(share) for p in known)
        and all(p.is_flat(share if p.is_real() else unclear) for p in losses)
    )


def _rises(history: History) -> bool:
    """Whether the learning rate is a fifth higher in the second half of the run."""
    rate = np.nan_to_num(rates(history)).max(axis=1)
    return middle(rate[len(rate) // 2 :]) > 1.2 * middle(rate[: len(rate) // 2])


def reaches_its_goal(history: History, share: float = 0.2) -> bool:
    """Whether a metric that is no loss got better by `share` of where it began, for good: a return, an accuracy."""
    goals = (p for p in progress(history) if not (p.is_loss or _by_chance(history, p)))
    return not has_rivals(history) and any(p.succeeded(share) for p in goals)


def unmoved(history: History, min_steps: int, running: int, share: float = 0.02) -> list[Progress]:
    """How the training losses went, where nothing that was logged got better and that can be judged.

    A run that is under way can be from `running` steps on, and after a tenth of its `total_steps`.
    """
    known = progress(history) if can_be_judged(history, min_steps, running) else []
    return [] if any(p.is_large(share) for p in known) else [p for p in known if p.is_loss]


def can_be_judged(history: History, min_steps: int, running: int) -> bool:
    """Whether a run is long enough, by itself, and was not resumed: it may have learnt before."""
    under_way = history.run.status == "RUNNING"
    least = max(running, (history.run.total_steps or 0) / 10) if under_way else min_steps
    return steps_taken(history) >= least and not has_rivals(history) and not _goes_on(history)


def _goes_on(history: History) -> bool:
    """Whether steps were taken before the first recorded one; of an imported run, more than from one to the next."""
    usual = float(np.median(np.diff(history.step))) if history.run.source and len(history) > 1 else 0.0
    return bool(history.step[0] > usual)
