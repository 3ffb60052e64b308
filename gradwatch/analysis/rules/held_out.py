"""What is measured on data that are not trained on: how it went, and whether it shows that something is learnt.

Legend: T recorded steps, N logged values of a scalar.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.groups import higher_is_better
from gradwatch.analysis.rules.facts import middle
from gradwatch.analysis.rules.loss_graph import is_one_loss
from gradwatch.analysis.rules.losses import has_rivals
from gradwatch.analysis.rules.progress import ACCURACY, Progress, went
from gradwatch.analysis.rules.sampled_losses import (
    LEAST_SAMPLES,
    in_the_beginning,
    of_what,
    sampled,
    share_explained,
)
from gradwatch.analysis.rules.series import late_median, noise_of_one
from gradwatch.formatting import percent
from gradwatch.history import Floats, History
from gradwatch.storage.logged_names import HELD_OUT, is_loss


def held_out(history: History, least: int) -> Iterator[tuple[str, int, NDArray[np.intp], Floats]]:
    """Each scalar of known direction that is measured on other data, `least` times or more: the sign that makes it
    better when lower, the rows that have one, and the values there with that sign.
    """
    for name in filter(HELD_OUT.search, history.logged):
        rises, values = higher_is_better(name, [history]), history.total(name)
        rows = np.flatnonzero(np.isfinite(values))
        if rises is not None and len(rows) >= least:
            sign = -1 if rises else 1
            yield name, sign, rows, sign * values[rows]


def held_out_progress(history: History, least: int) -> list[Progress]:
    """How each of the `held_out` went."""
    return [went(name, values, sign) for name, sign, _, values in held_out(history, least)]


def learns(history: History, least: int = 5, sigmas: float = 8.0, share: float = 0.01, much: float = 0.05) -> str:
    """What shows that the model tells something of data that it is not trained on, in words; empty where nothing does.

    A loss that ended below what it is to know only how frequent each class is, or the mean (`_of_a_guess`), by `share`
    of that; another metric that rose by `much`, or is as much better than chance gives (`_by_chance`). Both by `sigmas`
    times what they move from value to value in the later half, and no more than a quarter of it was lost again.
    """
    if has_rivals(history):
        return ""
    for name, sign, _, worse in held_out(history, least):
        ended, begun = late_median(worse), float(worse[0])
        if is_loss(name):
            begun, enough = min(begun, _of_a_guess(history)), share * abs(begun)
        else:
            begun, enough = float(np.fmax(begun, sign * _by_chance(history, name))), much
        won = begun - ended
        if won > max(enough, sigmas * noise_of_one(worse[len(worse) // 2 :])) and ended - worse.min() < won / 4:
            return f"On other data {name} came from {sign * worse[0]:.4g} to {sign * ended:.4g}, and stays there"
    return ""


def tells(history: History, much: float = 0.05) -> str:
    """The same of what it is trained on: the outputs came to explain the share `much` of what is asked for, more than
    in the first sample, and never explained as much more.
    """
    explained = share_explained(history)
    told = late_median(explained) if len(explained) >= LEAST_SAMPLES else 0.0
    if not told > much or not told > much + explained[0] or np.sort(explained)[-3] > told + much:
        return ""
    return f"The outputs came to explain {percent(told)} of the {of_what(history)[0]} that are asked for"


def knew(history: History, much: float = 0.1) -> str:
    """Whether the outputs explained the share `much` of what is asked for before the first steps: the model had been
    trained before, and a few steps at a low rate win little. In words.
    """
    (first,) = in_the_beginning(history, "explained")
    if not len(share_explained(history)) or not first > much:
        return ""
    return f"The outputs explained {percent(first)} of the {of_what(history)[0]} from the start: it was trained before"


def rises_alone(history: History, loss: Floats, row: int, least: int = 3, share: float = 0.2, width: int = 9) -> bool:
    """Whether a loss of other data, `least` times or more up to a row and after it, rose there by less than a `share`
    of what a training loss `[T]` did at the same steps, by medians, or another metric of them got no worse: its data
    are harder, or its task, and the weights as good as before.
    """
    for name, _, rows, worse in held_out(history, 2 * least):
        before, after = np.flatnonzero(rows <= row)[-least:], np.flatnonzero(rows > row)
        if min(len(before), len(after)) < least:
            continue
        if not is_loss(name):
            if np.median(worse[after]) <= np.median(worse[before]) >= np.median(worse[after[-least:]]):
                return True
            continue
        training = np.array([middle(loss[max(0, at - width + 1) : at + 1]) for at in rows])
        rose, other = (float(np.median(each[after]) - np.median(each[before])) for each in (training, worse))
        if rose > 0 and other < share * rose and worse[after].max() - np.median(worse[before]) < rose:
            return True
    return False


def _by_chance(history: History, name: str) -> float:
    """What an area under a curve is by chance, and an accuracy of whoever says the most frequent class, by the batches
    that were looked at; NaN of anything else.
    """
    if _AREA.search(name):
        return 0.5
    _, share = sampled(history, "target_top_share")
    return float(np.median(share)) if ACCURACY.search(name) and len(share) >= LEAST_SAMPLES else math.nan


_AREA = re.compile(r"(^|[^a-z])(roc_?)?au(roc|c)($|[^a-z])", re.IGNORECASE)


def _of_a_guess(history: History) -> float:
    """The loss of a model that knows how frequent each class is, or the mean, and nothing else: by the batches that
    were looked at, the median; -inf where that is not known.
    """
    at, explained = sampled(history, "explained")
    loss = history.total("loss")[np.searchsorted(history.step, at)] / (1 - explained)
    known = loss[np.isfinite(loss)]
    return float(np.median(known)) if len(known) >= LEAST_SAMPLES and is_one_loss(history) else -np.inf
