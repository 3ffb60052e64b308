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
