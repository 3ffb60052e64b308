"""What the activations show that no gradient does: units that give nothing back, values that outgrow the others.

Legend: T sampled steps, M modules.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.rules.facts import middle
from gradwatch.analysis.rules.finding import Finding, Severity
from gradwatch.analysis.rules.progress import succeeds
from gradwatch.history import Floats, History
from gradwatch.table import Table


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


def dead_units(history: History, share: float = 0.5, min_rows: int = 3) -> list[Finding]:
    """Non-linearities most of whose units give nothing back, whatever goes in: their slope is flat for every element.

    `dead` of a module, by the median of the last third of the sampled steps, is more than `share`. It is recorded where
    each unit had at least 32 elements in a step. From the first sampled step after which half of that was never
    undercut.
    Source: SageMaker Debugger's DeadRelu (a unit is dead that hardly ever fires; alarm for more than half of a layer).
    """
    return _held(history, "dead", share, min_rows, "dead-units", _dead_words)


def saturated(history: History, share: float = 0.5, min_rows: int = 3) -> list[Finding]:
    """A tanh or a sigmoid that sits at its ends: for more than `share` of the elements its slope is below 1 %.

    By the median of the last third of the sampled steps, from the first after which half of that was never undercut.
    Not of the last module of the forward pass: an output is meant to be sure of itself.
    Source: Glorot and Bengio 2010, "Understanding the difficulty of training deep feedforward neural networks".
    """
    return _held(history, "saturated", share, min_rows, "saturated", _saturated_words)


TWO_ENDED = ("Tanh", "Sigmoid", "Hardtanh", "Hardsigmoid")
Words = Callable[[float, int, int], tuple[str, str]]  # of the worst share, how many modules, since which step


def _held(history: History, quantity: str, share: float, min_rows: int, rule: str, words: Words) -> list[Finding]:
    """The finding of modules of which more than `share` is held in the end; a note where the training succeeds."""
    table = history.activations.with_values(quantity)
    if not table.layers:
        return []
    known = np.isfinite(table.values[quantity])
    late = np.arange(len(table)) >= len(table) - max(min_rows, len(table) // 3)
    at = [
        i for i, name in enumerate(table.layers) if _is_meant(history, name, rule) and known[late, i].sum() >= min_rows
    ]
    typical = {i: float(np.nanmedian(table.values[quantity][late, i])) for i in at}
    hit = [i for i in at if typical[i] > share]
    if not hit:
        return []
    below = ~(table.values[quantity][:, hit] > share / 2).all(axis=1)
    began = int(np.flatnonzero(below)[-1]) + 1 if below.any() else 0
    first = int(table.step[min(began, len(table) - 1)])
    worst = max(typical[i] for i in hit)
    cause, cure = words(worst, len(hit), first)
    evidence: dict[str, float | str] = {"share": worst, "modules": len(hit), "of": len(at)}
    names = tuple(table.layers[i] for i in hit)
    severity: Severity = "note" if succeeds(history) else "warning"
    return [Finding(rule, severity, names, first, int(history.step[-1]), evidence, cause, cure)]


def at_the_ends(history: History) -> float:
    """The share of saturated elements of the non-linearities with two ends, but the last module; NaN where unknown.

    Of the median one, by the median of its sampled steps.
    """
    table = history.activations.with_values("saturated")
    at = [i for i, name in enumerate(table.layers) if _is_meant(history, name, "saturated")]
    return middle(medians(table.values["saturated"][:, at])) if at else float("nan")


def _is_meant(history: History, name: str, rule: str) -> bool:
    if rule != "saturated":
        return True
    order = history.activations.values["order"][-1]
    place = history.activations.layers.index(name)
    return history.run.modules.get(name, "") in TWO_ENDED and order[place] < np.nanmax(order)


def _dead_words(worst: float, count: int, first: int) -> tuple[str, str]:
    at_first = first == 0
    begun = "from the first sampled step on: the weights or biases began so" if at_first else f"from step {first} on"
    begin, lower = "Begin with biases at 0 and He's initialisation", "Lower the learning rate or warm it up"
    return (
        f"Up to {worst:.0%} of the units of {_modules(count)} are flat for every example, {begun}. Nothing comes back "
        "through them, and with a ReLU nothing goes out.",
        f"{begin if at_first else lower}: {'a unit' if at_first else 'one step that is too long can push a unit'} "
        f"beyond all its inputs{' learns nothing' if at_first else ''}. {lower if at_first else begin}; a LeakyReLU, "
        "GELU or SiLU, or a normalisation before it, lets units come back.",
    )


def _saturated_words(worst: float, count: int, first: int) -> tuple[str, str]:
    begun = "from the first sampled step on" if first == 0 else f"from step {first} on"
    return (
        f"In {_modules(count)} up to {worst:.0%} of the elements lie where the slope is below 1 % of its largest, "
        f"{begun}: what comes in is too large, or the biases are, and hardly any gradient passes.",
        "Scale the inputs to unit size, begin with smaller weights (Xavier's initialisation) and biases at 0, lower "
        "the learning rate, or put a normalisation before the non-linearity.",
    )


def _modules(count: int) -> str:
    return "one module" if count == 1 else f"{count} modules"
