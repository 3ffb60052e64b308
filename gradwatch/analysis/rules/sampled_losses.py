"""What was recorded of the losses that were looked at: their targets, and what the model said (`in_loss/...`).

Legend: S sampled steps.
"""

from __future__ import annotations

import numpy as np

from gradwatch.history import Bools, Floats, History
from gradwatch.table import IN_LOSS


def sampled(history: History, *names: str) -> tuple[Floats, ...]:
    """The steps in which all of these numbers were finite, `[S]`, and each of the numbers there."""
    values = [history.total(f"{IN_LOSS}{name}") for name in names]
    known = np.all([np.isfinite(each) for each in values], axis=0)
    return history.step[known].astype(float), *(each[known] for each in values)


def follow(history: History) -> float:
    """How the means of targets that are numbers and of what the model says go together, -1 to 1; 0 of classes."""
    _, asked, said = sampled(history, "target_mean", "predicted_mean")
    return float(np.corrcoef(asked, said)[0, 1]) if len(asked) > 2 and np.ptp(asked) and np.ptp(said) else 0.0


def own_targets_grow(history: History, follows: float = 0.8, times: float = 3.0, least: int = 8) -> bool:
    """Whether targets that go together with what the model says (`follow`) came to spread over `times` as much.

    So do values that are learnt from the model's own, as its return rises; their loss rises with them.
    Source: Mnih et al. (2015), Nature 518: the targets of Q-learning depend on the weights that are learnt.
    """
    _, spread, _ = sampled(history, "target_std", "predicted_mean")
    quarter = max(3, len(spread) // 4)
    if len(spread) < least or follow(history) < follows:
        return False
    return float(np.median(spread[-quarter:])) > times * float(np.median(spread[:quarter]))


def another_task(history: History) -> Bools:
    """In which rows a loss came to be of another number of targets for good, and the steps after it, `[T]`.

    Rows that grow, a context that is extended: the loss leaps, and no batch is odd. Between two samples of one number
    each, and two of another, the change lies after the first of them and is over at the last.
    """
    at, targets = sampled(history, "targets")
    changed = np.zeros(len(history), bool)
    for i in range(1, len(at) - 2):
        if targets[i - 1] == targets[i] != targets[i + 1] == targets[i + 2]:
            changed |= (history.step > at[i]) & (history.step <= at[i + 2])
    return changed
