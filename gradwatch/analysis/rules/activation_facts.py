"""What rules ask of the activations that were sampled.

Legend: T sampled steps, M modules.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.rules.facts import middle
from gradwatch.history import Floats, History
from gradwatch.table import Table

TWO_ENDED = ("Tanh", "Sigmoid", "Hardtanh", "Hardsigmoid")


def birthplace(activations: Table, step: int) -> str:
    """The module whose output was not finite first, in the first sampled step with such an output; empty where that is
    after `step`: what is not finite is in the weights by then, and everywhere.
    """
    if not len(activations):
        return ""
    bad = activations.values["nonfinite"] > 0  # [T, M]
    rows = np.flatnonzero(bad.any(axis=1) & (activations.step <= step))
    if not len(rows):
        return ""
    order = np.where(bad[rows[0]], activations.values["order"][rows[0]], np.inf)
    return activations.layers[int(order.argmin())]


def medians(values: Floats) -> Floats:
    """Of each column, `[T, M]` -> `[M]`, of what is no NaN; inf counts. NaN where there is nothing else."""
    out = np.full(values.shape[1], np.nan)
    seen = ~np.isnan(values).all(axis=0)
    out[seen] = np.nanmedian(values[:, seen], axis=0)
    return out


def in_forward_order(activations: Table) -> Table:
    """The modules in the order in which their outputs came, by the median step; others as they stood, after these.

    A model may define its parts in another order: a block of Llama its normalisations last.
    """
    if "order" not in activations.values:
        return activations
    return activations.of_layers(np.argsort(medians(activations.values["order"]), kind="stable"))


def still_grows(values: Floats, limit: float, growth: float) -> tuple[NDArray[np.intp], Floats, Floats]:
    """Which columns of `[T, M]` have grown beyond a limit and still grow, and what all were at first and are at last.

    By thirds of the sampled steps: the median of the last is above `limit`, more than `growth` times that of the first
    steps, and above that of the middle third.
    """
    third = len(values) // 3
    first, second, last = (
        medians(part) for part in (values[: max(1, third // 2)], values[third:-third], values[-third:])
    )
    with np.errstate(invalid="ignore"):
        return np.flatnonzero((last > limit) & (last > growth * first) & (last > second)), first, last


def at_the_ends(history: History) -> float:
    """The share of saturated elements of the non-linearities with two ends, but the last module; NaN where unknown.

    Of the median one, by the median of its sampled steps.
    """
    table = history.activations.with_values("saturated")
    at = [i for i, name in enumerate(table.layers) if is_meant(history, name, "saturated")]
    return middle(medians(table.values["saturated"][:, at])) if at else float("nan")


def is_meant(history: History, name: str, rule: str) -> bool:
    """Whether a rule is about this module: `saturated` about those with two ends, but not the last of the model."""
    if rule != "saturated":
        return True
    order = history.activations.values["order"][-1]
    place = history.activations.layers.index(name)
    return history.run.modules.get(name, "") in TWO_ENDED and order[place] < np.nanmax(order)
