"""What a schedule made of the learning rate.

Legend: T recorded steps.
"""

from __future__ import annotations

import numpy as np

from gradwatch.analysis.rules.facts import rates, settings
from gradwatch.analysis.rules.finding import Why
from gradwatch.history import History


def ran_out(history: History, gone: float = 1e-3) -> Why | None:
    """What a schedule did that left no learning rate: cause, cure and numbers; None where it left one.

    It ran out when for more than half of the run each group's rate was below `gone` times its highest. It never got
    there when the highest is below a tenth of what was set for the scheduler.
    """
    rate = rates(history)
    highest = np.nanmax(rate, axis=0, initial=0, where=np.isfinite(rate))
    left = np.flatnonzero((rate > gone * highest).any(axis=1))
    row = int(left[-1]) + 1 if len(left) else 0
    if (highest > 0).all() and row < len(history) / 2 and row < len(history):
        step = int(history.step[row])
        return Why(
            f"The schedule ran out: from step {step} on the learning rate is less than a thousandth of what it was.",
            "Stretch the schedule to the length of the run: count its steps as the scheduler is stepped, once a batch "
            "or once an epoch. A higher rate would only decay to nothing as well.",
            {"lr": float(highest[0]), "lr_gone_at": step},
        )
    rates_set = [group.get("lr") for group in settings(history)]
    said = [float(lr) for lr in rates_set if isinstance(lr, int | float)]
    if said and 0 < highest.max() < max(said) / 10:
        return Why(
            f"The schedule never got there: the learning rate rose to {highest.max():.3g} of the {max(said):.3g} that "
            "was set.",
            "Shorten the warm-up to a few hundred steps, or a hundredth of the run.",
            {"lr": float(highest.max()), "lr_set": max(said)},
        )
    return None


def rises_on(history: History, row: int, times: float = 3.0) -> Why | None:
    """What a schedule did that raised the rate `times` up to a row, and as much again to the end of the run.

    A tenth of such a rate comes to the same height later: what helps is an end to its rise.
    Source: Smith, arXiv:1506.01186 (the range test, whose rate rises until the loss does).
    """
    rate = rates(history).max(axis=1)
    if not (rate[row] > times * rate[0] and rate[-1] > times * rate[row]):
        return None
    return Why(
        f"The schedule had raised the learning rate from {rate[0]:.2g} to {rate[row]:.2g} by then, and raised it on to "
        f"{rate[-1]:.2g}.",
        f"Let the rate of the schedule fall, or end its rise: at a tenth of {rate[row]:.2g} at most. A lower rate that "
        "rises in the same way gets there as well, only later.",
        {"lr_there": float(rate[row]), "lr_last": float(rate[-1])},
    )


def raised_before(history: History, row: int, times: float = 3.0, within: int = 50) -> str:
    """A sentence on a schedule that raised the rate `times` in one step, at most `within` rows before this one.

    Empty where none did: a warm-up raises it by less (a linear one doubles it once).
    Source: Loshchilov & Hutter, arXiv:1608.03983 (warm restarts), where losses jump as well.
    """
    rate = rates(history)
    with np.errstate(invalid="ignore", divide="ignore"):
        leaps = (rate[1:] > times * rate[:-1]) & (rate[:-1] > 0)
    rows = np.flatnonzero(leaps.any(axis=1)) + 1
    rows = rows[(rows <= row) & (rows >= row - within)]
    if not len(rows):
        return ""
    last = int(rows[-1])
    group = int(np.flatnonzero(leaps[last - 1])[0])
    return (
        f" At step {int(history.step[last])} the schedule raised the learning rate from {rate[last - 1, group]:.2g} to "
        f"{rate[last, group]:.2g}."
    )
