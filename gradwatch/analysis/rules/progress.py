"""Whether a training gets better: by its losses, and by the metrics whose direction is known.

Legend: T recorded steps, N logged values of a scalar.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gradwatch.analysis.final_values import lost_since
from gradwatch.analysis.groups import higher_is_better
from gradwatch.analysis.rules.facts import (
    USUAL_RATIO,
    is_adaptive,
    largest_ratio,
    last_matrix,
    matrices,
    measured,
    middle,
    optimizer_kind,
    rates,
    set_rate,
    settings,
    steps_taken,
)
from gradwatch.analysis.rules.finding import Finding, Why, either
from gradwatch.analysis.rules.gradients import has_rivals, scaled_losses
from gradwatch.analysis.rules.schedule import ran_out
from gradwatch.analysis.rules.tries import LOWER, rate_times
from gradwatch.formatting import percent, setting_text
from gradwatch.history import Floats, History


@dataclass(frozen=True)
class Progress:
    """How a scalar went: medians of where it began and ended, and of the best it was in between.

    `gain` is how much better than it began it ended, `error` the standard error of that. `first` is its first value,
    `won` how much better than that it ended. `noise` is the standard deviation of one value.
    """

    metric: str
    first: float
    began: float
    ended: float
    best: float
    gain: float
    won: float
    error: float
    noise: float

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
        a quarter again.
        """
        lost = abs(self.ended - self.best)
        return (
            self.is_large(share) and self.won > share * abs(self.first) and lost <= 0.25 * abs(self.began - self.best)
        )


def progress(history: History, least: int = 20) -> list[Progress]:
    """How each scalar of known direction went that was logged `least` times; losses without a scale are left out."""
    losses = scaled_losses(history)
    found = []
    for name in history.logged:
        rises = higher_is_better(name, [history])
        values = history.total(name)
        values = values[np.isfinite(values)]
        if rises is None or len(values) < least or ("loss" in name.lower() and name not in losses):
            continue
        found.append(_went(name, -values if rises else values, -1 if rises else 1))
    return found


def _went(name: str, values: Floats, sign: int, first: int = 5) -> Progress:
    """Of a scalar `[N]` that is better when it is lower.

    It is compared with its end at several lengths of the beginning, 5 values to a quarter of all: some fall within a
    few steps, and of others single values are mostly noise. The clearest of these counts.
    """
    late = values[-max(first, len(values) // 4) :]
    ended = float(np.median(late))
    sigma = 1.4826 * float(np.median(np.abs(np.diff(values)))) / np.sqrt(2)  # whatever the trend
    width = max(first, len(values) // 20)
    blocks = values[len(values) % width :].reshape(-1, width)
    best = float(np.median(blocks, axis=1).min())
    tried = []
    length = first
    while length <= max(first, len(values) // 4):
        began = float(np.median(values[:length]))
        error = 1.2533 * sigma * float(np.sqrt(1 / length + 1 / len(late)))  # of a median: pi / 2 more variance
        tried.append((began, began - ended, error))
        length *= 2
    began, gain, error = max(tried, key=lambda t: t[1] / t[2] if t[2] else t[1])
    known = {"first": float(values[0]), "began": began, "ended": ended, "best": min(best, ended)}
    shown = {what: sign * value for what, value in known.items()}
    return Progress(name, **shown, gain=gain, won=float(values[0]) - ended, error=float(error), noise=float(sigma))


def succeeds(history: History, share: float = 0.2) -> bool:
    """Whether the training demonstrably gets better: a scalar ended better by `share` of where it began, for good."""
    return (
        lost_since(history) is None and not has_rivals(history) and any(p.succeeded(share) for p in progress(history))
    )


def creeps(history: History, share: float = 0.2, min_steps: int = 100, running: int = 500) -> bool:
    """Whether the losses fall, by less than `share`, and no slower at the end than at first: they are far from it.

    Each third of a training loss is lower than the one before by its median, the last by no less than three quarters of
    what the one before it won. Not asked while the rate still rises.
    """
    least = max(running, (history.run.total_steps or 0) / 10) if history.run.status == "RUNNING" else min_steps
    rate = np.nanmean(rates(history), axis=1)
    rises = middle(rate[len(rate) // 2 :]) > 1.2 * middle(rate[: len(rate) // 2])
    known = progress(history)
    if steps_taken(history) < least or has_rivals(history) or history.step[0] > 0 or rises:
        return False
    losses = [p for p in known if "loss" in p.metric.lower()]
    if not losses or any(p.is_large(share) for p in known) or not all(p.is_real() for p in losses):
        return False
    for p in losses:
        values = history.total(p.metric)
        thirds = [float(np.median(part)) for part in np.array_split(values[np.isfinite(values)], 3)]
        if not 0 < 0.75 * (thirds[0] - thirds[1]) <= thirds[1] - thirds[2]:
            return False
    return True


def no_progress(
    history: History, min_steps: int = 100, running: int = 500, share: float = 0.02, most: float = 0.1
) -> list[Finding]:
    """Nothing that was logged gets better: neither a training loss, nor a metric whose direction is known.

    Each of them ended within its noise of where it began (four standard errors), or by less than `share` of it better;
    and that it won more than the share `most` is out of the question for a loss (two standard errors). Or the losses
    came to what equal probabilities for all classes give, from above, and no further (`_at_chance`).
    A run that is under way is judged from `running` steps on, and after a tenth of its `total_steps`. Not judged: a run
    that was resumed (it may have learnt before), parts that train against each other, a loss that is below 0 early.
    The cause is the first of these that the record shows: a schedule that ran out, or never got where it should; steps
    that are small, or that take each other back. Where it shows none, two remain.
    Source: the standard error of a median; the sizes of steps as in `update-too-small`.
    """
    losses = unmoved(history, min_steps, running, share)
    if not losses or not all(p.is_flat(most) for p in losses):
        losses = [p for p in unmoved(history, min_steps, running, 0.2) if _at_chance(history, p)]
    if not losses:
        return []
    shown = losses[0]
    chance = ""
    if _at_chance(history, shown):
        chance = " That is what equal probabilities for all classes give: nothing was learnt of them."
    evidence: dict[str, float | str] = {"metric": shown.metric, "began": shown.began, "ended": shown.ended,
                                        "noise": shown.error}  # fmt: skip
    why = _why(history)
    return [
        Finding(
            "no-progress",
            "warning",
            (),
            int(history.step[0]),
            int(history.step[-1]),
            evidence | why.evidence,
            f"{shown.metric} is no better than it was at first: {shown.began:.4g}, then {shown.ended:.4g}.{chance} "
            f"{why.cause}",
            why.cure,
            tries=why.tries,
            alternatives=why.alternatives,
        )
    ]


def _at_chance(history: History, loss: Progress, near: float = 0.01) -> bool:
    """Whether a loss ended at log C, C the rows of the last matrix, and was never lower by more than twice `near`."""
    last = last_matrix(history)
    if last is None or last.shape[0] < 3:
        return False
    chance = math.log(last.shape[0])
    return abs(loss.ended - chance) < near * chance and min(loss.best, loss.began) > (1 - 2 * near) * chance


def unmoved(history: History, min_steps: int, running: int, share: float = 0.02) -> list[Progress]:
    """How the training losses went, where nothing that was logged got better and that can be judged.

    A run that is under way can be from `running` steps on, and after a tenth of its `total_steps`.
    """
    under_way = history.run.status == "RUNNING"
    known = progress(history)
    if (
        steps_taken(history) < (max(running, (history.run.total_steps or 0) / 10) if under_way else min_steps)
        or has_rivals(history)
        or history.step[0] > 0
        or any(p.is_large(share) for p in known)
    ):
        return []
    return [p for p in known if "loss" in p.metric.lower()]


def _why(history: History) -> Why:
    """The cause that the record shows, or what tells those apart that remain."""
    scheduled = ran_out(history)
    if scheduled:
        return scheduled
    kind = is_adaptive(history)
    at, ratio = measured(history, "update_ratio")
    wide = matrices(history) & (~np.isnan(ratio)).any(axis=0)
    if not len(at) or not wide.any():
        return _OPEN
    moves = largest_ratio(history)
    numbers: dict[str, float | str] = {"update_ratio": moves, "usual": USUAL_RATIO[kind]}
    if moves < USUAL_RATIO[kind] / 30:
        begun = [group.get("initial_accumulator_value") for group in settings(history)]
        begins_at = max((float(value) for value in begun if isinstance(value, int | float)), default=0.0)
        rate = set_rate(history)
        times = float(f"{USUAL_RATIO[kind] / max(moves, 1e-12):.0e}")
        weak = None if begins_at else weak_gradients(history, moves, rate * times)
        return weak or Why(
            f"No layer changes by more than {moves:.1e} of its size in a step; under {optimizer_kind(history)} "
            f"{USUAL_RATIO[kind]:g} is usual."
            + (f" Its sum of squares begins at {begins_at:g}, far above all gradients." if begins_at else ""),
            "Begin that sum at 0: initial_accumulator_value=0."
            if begins_at
            else f"Raise the learning rate to about {setting_text(rate * times)}.",
            numbers | {"lr": rate},
            () if begins_at else (rate_times(times),),
        )
    if moves > 5 * USUAL_RATIO[kind]:
        times = float(f"{USUAL_RATIO[kind] / moves:.0e}")
        return Why(
            f"Each step changes the weights by {percent(moves)} of their size; under {optimizer_kind(history)} "
            f"{percent(USUAL_RATIO[kind])} is usual: they are too long to get anywhere.",
            f"Lower the learning rate to about {setting_text(set_rate(history) * times)}.",
            numbers | {"lr": set_rate(history)},
            (rate_times(times),),
        )
    _, away = measured(history, "displacement")
    every = float(np.median(np.diff(history.layer_rows[at]))) if len(at) > 1 else 1.0
    known = wide & (~np.isnan(away)).any(axis=0) if len(away) else np.zeros(len(wide), bool)
    if known.any() and every > 1:
        share = float(np.median(np.nanmedian(away[:, known], axis=0) / np.nanmedian(ratio[:, known], axis=0)))
        numbers["displacement_in_steps"] = share
        if share < 0.3 * np.sqrt(every):  # a walk without direction gets sqrt(k) steps far in k
            return Why(
                f"The steps take each other back: {every:.0f} of them move the weights as far as {share:.1g} would. "
                + either(_TAKEN_BACK),
                "Lower the learning rate tenfold for some steps: if the loss falls, they were too long. If not, look "
                "for what writes the weights after optimizer.step(): an average, a load_state_dict, a constraint.",
                numbers,
                (LOWER,),
                _TAKEN_BACK,
            )
    return _OPEN._replace(evidence=numbers)


def weak_gradients(history: History, moves: float, wanted: float, highest: float = 10.0) -> Why | None:
    """Why steps of `moves` are so small where no rate mends it: the one `wanted` is above all that SGD is used with.

    Under Adam and its kin the size of a step hardly depends on the gradients. Source: CS231n searches rates up to 10.
    """
    if is_adaptive(history) or not wanted > highest:
        return None
    return Why(
        f"No layer changes by more than {moves:.1e} of its size in a step, and not for the learning rate: usual steps "
        f"would take one of {setting_text(wanted)}. The gradients are what is small.",
        "Look at what stands between the weights and the loss: an output that is saturated (a sigmoid or a softmax far "
        "out, by its bias or its scale), a temperature, a factor of the loss. A higher rate would throw the weights "
        "out as soon as the gradients come back.",
        {},
    )


_TAKEN_BACK = ("they are so long that each undoes the one before", "something puts the weights back")
_LEFT = (
    "nothing in the batches leads to their targets",
    "the loss does not reward it (its sign, its reduction, what is detached)",
)
_OPEN = Why(
    f"The steps are of a usual size and lead away from where they began. {either(_LEFT)}",
    "Train on one batch again and again. If its loss falls, look at how inputs and targets are put together, and at "
    "dropout and augmentation; if not, at the loss, its sign, and what lies between it and the weights.",
    {},
    alternatives=_LEFT,
)
