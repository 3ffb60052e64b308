"""Losses that stand still, and what they stand at: equal odds for all classes, or far above 0.

Legend: T recorded steps.
"""

from __future__ import annotations

import math

import numpy as np

from gradwatch.analysis.final_values import quarters
from gradwatch.analysis.rules.facts import smooth
from gradwatch.analysis.rules.layer_facts import chance_loss, ends_in, last_matrix
from gradwatch.analysis.rules.loss_graph import may_choose, number_of_classes
from gradwatch.analysis.rules.progress import Progress, reaches_its_goal
from gradwatch.analysis.rules.series import OF_MEDIAN
from gradwatch.history import History


def rests_since(history: History, loss: Progress, left: float, bounded: bool) -> bool:
    """Whether a loss fell, has the share `left` of its first value, and won nothing since the run's second quarter.

    Nothing: less than three standard errors of the quarters' medians, or a hundredth; unclear where these are a
    seventh. Where outputs are `bounded`, less than a quarter of what it won at all.
    """
    values = history.total(loss.metric)
    parts = np.array_split(values[np.isfinite(values)], 4)
    second, last = (float(np.median(part)) for part in parts[1::2])
    if not (0 < left * loss.first < loss.ended and loss.won > max(0.1 * loss.first, 3 * loss.noise)):
        return False
    if bounded and second - loss.ended <= loss.won / 4:
        return True
    unclear = 3 * OF_MEDIAN * loss.noise * math.sqrt(2 / len(parts[1]))
    lost = loss.ended - loss.best
    return second - last < max(unclear, loss.ended / 100) and lost < 2 * unclear < loss.ended / 3.5


def at_chance(
    history: History, loss: Progress, near: float = 0.01, high: float = 0.12, largest: float = 2.0**20
) -> bool:
    """Whether a loss ended at log C and was never lower by more than twice `near`.

    C are the rows of the last matrix; two where it has one, or a Sigmoid ends the model, and of any model where the
    loss began next to log 2: not all rows need be used. Any power of two up to the `largest` batch whose pairs are told
    apart, where the loss hardly differs from it, nor from step to step. A noisy loss may end somewhat
    above it (`high`; half of that where it began at twice log C): what is drawn anew in each step adds, as a dropout.
    One that still falls passes by.
    """
    *_, third, last = quarters(history, loss.metric)
    if last < (1 - 5 * near) * third or number_of_classes(history) == 1:  # it passes by, or is of numbers
        return False
    pairs = round(loss.ended / math.log(2)) * math.log(2) if math.isfinite(loss.ended) else 0.0
    if 0 < pairs <= math.log(largest) and abs(loss.ended - pairs) < near / 10 * pairs and loss.noise < near * pairs:
        return min(loss.best, loss.began) > (1 - 2 * near) * pairs
    for chance in (equal_odds(history), math.log(2) if abs(loss.began / math.log(2) - 1) < 15 * near else math.nan):
        above = (high if loss.first < 2 * chance else high / 2) if loss.noise > near * chance else near
        there = -near * chance < loss.ended - chance < above * chance  # where it is NaN, nothing is near it
        if there and min(loss.best, loss.began) > (1 - 2 * near) * chance:
            return True
    return False


def equal_odds(history: History) -> float:
    """What equal odds give: log C, and log 2 of a binary loss (`number_of_classes`).

    Where the graph does not tell: where the last matrix has at most two rows, or a Sigmoid ends the model.
    """
    last, classes = last_matrix(history), number_of_classes(history)
    if classes is not None:
        return math.log(classes) if classes > 1 else math.nan
    if not may_choose(history):
        return math.nan
    of_two = ends_in(history, "Sigmoid") or (last is not None and last.shape[0] <= 2)
    return math.log(2) if of_two else chance_loss(history)


def stands(history: History, loss: Progress, high: float = 0.8, late: float = 0.02) -> bool:
    """Whether a loss that began at log C or somewhat above ended above `high` of it, and has stopped to fall.

    From the second quarter of the run to the last it won less than the share `late` of log C, it was never better than
    at its end by twice that, and no other metric got better. Of healthy trainings of the tests the highest ended at
    0.72 of it, and still fell.
    """
    chance = equal_odds(history)
    if not (0.9 * chance < loss.began < 1.3 * chance and high * chance < loss.ended < 1.05 * chance):
        return False
    _, second, _, last = quarters(history, loss.metric)
    was_better = loss.ended - loss.best > 2 * late * chance
    return second - last < late * chance and not was_better and not reaches_its_goal(history)


def left_odds(history: History, loss: Progress, near: float = 0.03, less: float = 0.05) -> float:
    """The share of the run after which a loss that stood at equal odds, within `near`, was `less` below that.

    It stood by its median after the first steps, and was below by its running median, clear of its noise. NaN where it
    did not stand there, 1 where it never fell.
    """
    values = history.total(loss.metric)
    values = values[np.isfinite(values)]
    twentieth = max(5, len(values) // 20)
    level = float(np.median(values[twentieth : 3 * twentieth]))
    if not abs(level / equal_odds(history) - 1) < near:
        return math.nan
    below = np.flatnonzero(smooth(values) < level - max(less * level, OF_MEDIAN * loss.noise))
    return float(below[0] / len(values)) if len(below) else 1.0
