"""What was recorded of the losses that were looked at: their targets, and what the model said (`in_loss/...`).

Legend: S sampled steps.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gradwatch.analysis.groups import higher_is_better
from gradwatch.analysis.rules.loss_graph import is_one_loss, number_of_classes
from gradwatch.analysis.rules.series import late_median
from gradwatch.history import Bools, Floats, History
from gradwatch.storage.logged_names import is_loss, is_reward
from gradwatch.table import IN_LOSS

LEAST_SAMPLES = 8


def sampled(history: History, *names: str) -> tuple[Floats, ...]:
    """The steps in which all of these numbers were finite, `[S]`, and each of the numbers there."""
    values = [history.total(f"{IN_LOSS}{name}") for name in names]
    known = np.all([np.isfinite(each) for each in values], axis=0)
    return history.step[known].astype(float), *(each[known] for each in values)


def in_most_looks(history: History, name: str, least: int = 3, share: float = 0.8) -> Floats:
    """A number that is there in the `share` of the steps whose losses were looked at, `least` or more, `[S]`; else none
    of it.
    """
    looked, _ = sampled(history, "passes")
    _, found = sampled(history, name)
    return found if len(found) >= max(least, share * len(looked)) else found[:0]


def in_the_beginning(history: History, *names: str, soon: int = 5, share: float = 0.5) -> tuple[float, ...]:
    """Each of these numbers in the first sample; NaN where that is no beginning: `soon` steps after the first one or
    later, or behind steps that have changed the loss by more than `share` of it.

    A watch that begins with the first step of a script has missed its backward, and looks again in a later one.
    """
    at, *values = sampled(history, *names)
    early = len(at) and at[0] - history.step[0] < soon
    if early:
        first, then = history.total("loss")[[0, int(np.searchsorted(history.step, at[0]))]]
        early = not abs(then - first) > share * abs(first)  # NaN where none was recorded
    return tuple(float(each[0]) if early else math.nan for each in values)


def dropped_passes(history: History) -> Floats:
    """How many backward passes came to nothing before each step that was looked at, `[S]`."""
    known = np.isfinite(history.total(f"{IN_LOSS}passes"))
    return np.nan_to_num(history.total(f"{IN_LOSS}dropped"))[known]


def are_left_out(dropped: Floats, least: int = 5) -> bool:
    """Whether as many passes came to nothing before each step as chance has it, not as micro-batches or a loop over an
    epoch would: none before a third of `least` looks or more, and several before others.
    """
    return bool(len(dropped) >= least and (dropped == 0).mean() > 1 / 3 and dropped.max() > 1)


def share_explained(history: History, soft: float = 0.05, far: float = 8.0) -> Floats:
    """The share of the targets' variance that is explained in each sample, `[S]`, or of the entropy of their classes.

    None of it where that says little: batches of less than eight targets, or four for each class; probabilities for
    targets (`soft`), or numbers of which a few lie `far` out, as many of the usual distances from the median, and are
    most of the variance; a loss that is more than one of torch's own.
    """
    _, share, targets = sampled(history, "explained", "targets")
    least = max(8, 4 * (number_of_classes(history) or 1))
    between = sampled(history, "target_soft")[1]
    farthest = sampled(history, "target_farthest")[1]
    few = not len(share) or np.median(targets) < least
    says_little = few or (between > soft).any() or (len(farthest) and np.median(farthest) > far)
    return share[:0] if says_little or not is_one_loss(history) else share


def of_what(history: History) -> tuple[str, str]:
    """What a share of the targets is one of, and what would explain none of it, in words."""
    if len(sampled(history, "predicted_right")[0]):
        return "entropy of the classes", "how frequent each class is"
    return "variance of the numbers", "their mean"


def entropy_of_two(share: float) -> float:
    """Of two classes of which one has this share, in nats."""
    return -share * math.log(share) - (1 - share) * math.log(1 - share)


def follow(history: History) -> float:
    """How the means of targets that are numbers and of what the model says go together, -1 to 1; 0 of classes."""
    _, asked, said = sampled(history, "target_mean", "predicted_mean")
    return float(np.corrcoef(asked, said)[0, 1]) if len(asked) > 2 and np.ptp(asked) and np.ptp(said) else 0.0


def logs_rewards(history: History) -> bool:
    """Whether what is logged is of an agent: what it is asked for moves with what it does."""
    return any(map(is_reward, history.logged))


def own_targets_grow(history: History, follows: float = 0.8, times: float = 3.0, least: int = 8) -> bool:
    """Whether targets that go together with what the model says (`follow`) came to spread over `times` as much.

    So do values that are learnt from the model's own, as its return rises; their loss rises with them.
    Source: Mnih et al. (2015), Nature 518: the targets of Q-learning depend on the weights that are learnt.
    """
    return _grows(history, "target_std", follows, times, least)


def own_targets_move(history: History, follows: float = 0.8, times: float = 3.0, least: int = 8) -> bool:
    """Whether the mean of targets that go together with what the model says came to be `times` as far from 0."""
    return _grows(history, "target_mean", follows, times, least)


def _grows(history: History, of: str, follows: float, times: float, least: int) -> bool:
    _, size, _ = sampled(history, of, "predicted_mean")
    quarter, size = max(3, len(size) // 4), np.abs(size)
    if len(size) < least or follow(history) < follows:
        return False
    return float(np.median(size[-quarter:])) > times * float(np.median(size[:quarter]))


def is_explained(history: History, share: float = 0.5, more: float = 0.05, least: int = 8) -> bool:
    """Whether the model came to explain the `share` of what is asked for, and did not lose it again.

    Then a loss that rises does so with its targets.
    """
    explained = sampled(history, "explained")[1]
    if len(explained) < least:
        return False
    last, began = late_median(explained), float(np.median(explained[: max(3, len(explained) // 4)]))
    return last > max(share, began + more, float(np.sort(explained)[-3]) - more)


def explains_less(history: History, share: float) -> bool:
    """Whether it is known that the model ended by explaining less than the `share` of what is asked for."""
    explained = sampled(history, "explained")[1]
    return len(explained) >= LEAST_SAMPLES and late_median(explained) < share


def another_task(history: History, calm: int = 8) -> Bools:
    """In which rows a loss came to be of another number of targets for good, and the steps after it, `[T]`.

    Rows that grow, a context that is extended: the loss leaps, and no batch is odd. Between two samples of one
    number each, and two of another, the change lies after the first of them and is over at the last. Where `calm`
    samples or more had one number, and a larger one came among others, it may have come up to three samples before
    it was met. So it is where the loop logs what it asks for, and that rises now and then (`_steps_up`).
    """
    at, targets = sampled(history, "targets")
    changed = np.zeros(len(history), bool)
    for i in range(1, len(at) - 2):
        if targets[i - 1] == targets[i] != targets[i + 1] == targets[i + 2]:
            changed |= (history.step > at[i]) & (history.step <= at[i + 2])
    other = np.flatnonzero(targets != targets[:1])[:1]
    if len(other) and other[0] >= calm and targets[other[0]] > targets[0]:
        last = min(other[0] + 2, len(at) - 1)
        changed |= (history.step > at[other[0] - 3]) & (history.step <= at[last])
    return changed | _steps_up(history)


_COUNTS = re.compile(
    r"epoch|step|iter|round|batch|time|token|sample|seen|count|scale|(?<![a-z])(n|lr|rate)(?![a-z])", re.IGNORECASE
)


def _settings(history: History) -> Iterator[Floats]:
    """The values `[T]` of each setting that the loop logs in every step: a length, a level. What gets better or worse,
    as its name says, is none, nor is a count.
    """
    for name in history.logged:
        values = history.total(name)
        judged = is_loss(name) or higher_is_better(name, [history]) is not None
        if not judged and not _COUNTS.search(name) and np.isfinite(values).all():
            yield values


def _steps_up(history: History, few: int = 20, rest: int = 20, after: int = 16) -> Bools:
    """In which rows, or the `after` before them, a setting that is logged rose, which rests for `rest` steps or more at
    each of `few` values at most.
    """
    rose = np.zeros(len(history), bool)
    for values in _settings(history):
        jumps = np.diff(values)
        at = np.flatnonzero(jumps) + 1
        if 0 < len(at) < few and np.diff([0, *at, len(values)]).min() >= rest and (jumps[at - 1] > 0).all():
            for row in at:
                rose[row : row + after] = True
    return rose


def has_other_negatives(history: History, many: int = 64, below: float = 0.9) -> bool:
    """Whether what a loss chooses among gets harder, as the negatives of a queue do: their number only grows, by a
    half; or it always asks for the same one of `many` or more, whose others are no classes then but what a queue holds,
    random numbers at first, and it never rose to the share `below` of what equal odds give.

    Source: He et al. 2020, arXiv:1911.05722, algorithm 1 (a queue that begins at random).
    """
    _, choices, top = sampled(history, "choices", "target_top_share")
    loss = history.total("loss")
    of_one = len(choices) >= LEAST_SAMPLES and bool((top == 1).all() and choices.min() >= many)
    return _only_grows(history, "choices") or (of_one and bool(np.nanmax(loss) < below * math.log(choices.min())))


def _only_grows(history: History, name: str) -> bool:
    _, sizes = sampled(history, name)
    return bool(len(sizes) and (np.diff(sizes) >= 0).all() and sizes[-1] >= 1.5 * sizes[0])


def grows_harder(history: History, share: float = 0.25, least: int = 3) -> bool:
    """Whether a setting that is logged only rises, `least` times or more, over the `share` of the run: a length, a
    noise; or the number of targets that a loss is asked for, by a half, or it `has_other_negatives`. Losses of its
    beginning and its end are of other tasks then.

    Source: Bengio et al. (2009), *Curriculum learning*, ICML.
    """
    if _only_grows(history, "targets") or has_other_negatives(history):
        return True
    for values in _settings(history):
        jumps = np.diff(values)
        at = np.flatnonzero(jumps > 0)
        if len(at) >= least and (jumps >= 0).all() and at[-1] - at[0] > share * len(values):
            return True
    return False


INSIDE = {
    "certain": "of the rows of a softmax give all to one",
    "saturated": "of the elements of a sigmoid or tanh are where it is flat",
    "dead": "of the units of a ReLU are 0 for every example",
}
"""What may be flat inside a model, in words; `in_loss/...` of the worst non-linearity of the kind."""


class Inside(NamedTuple):
    """How flat the worst of a kind was: in the first sample, `soon` after it, and by the median of the last quarter.

    `soon` is the last sample within so many steps of the first, at `soon_step`; NaN where there is none. `least` is the
    least of all samples; `layer` is below the one that was worst in the last.
    """

    first: float
    soon: float
    last: float
    least: float
    first_step: int
    soon_step: int
    layer: str


def given(history: History) -> tuple[str, float] | None:
    """The layer that is given the largest numbers as data, and their root mean square in the first samples."""
    _, sizes, places = sampled(history, "input_rms", "layer_of/input_rms")
    size = float(np.median(sizes[:5])) if len(sizes) else 0.0  # 0 is the first state of a recurrence
    return (layer_at(history, places[0]), size) if size > 0 else None


def other_data_from(history: History, row: int, times: float = 2.0, least: int = 3) -> bool:
    """Whether from a row on the model was seen to be given data of another size, `least` times on either side."""
    at, sizes = sampled(history, "input_rms")
    before, after = sizes[at < history.step[row]], sizes[at > history.step[row]]
    if min(len(before), len(after)) < least or not np.median(before) > 0:
        return False
    ratio = float(np.median(after) / np.median(before))
    return ratio > times or ratio < 1 / times


def layer_at(history: History, place: float) -> str:
    """The layer of a column `in_loss/layer_of/...`, the run's by its place; empty where there is none."""
    layers = history.run.layers
    return layers[int(place)].name if 0 <= place < len(layers) else ""


def inside(history: History, kind: str, min_samples: int = 4, soon: int = 20) -> Inside | None:
    """What was seen of one of `INSIDE`; None where it was seen less often than `min_samples`."""
    at, values, places = sampled(history, kind, f"layer_of/{kind}")
    if len(at) < min_samples:
        return None
    last = late_median(values)
    next_to = int(np.searchsorted(at, at[0] + soon, side="right")) - 1
    early = values[next_to] if next_to else float("nan")
    return Inside(values[0], early, last, values.min(), int(at[0]), int(at[next_to]), layer_at(history, places[-1]))
