"""Which terms a loss is the sum of, where the loop logs them beside it, and how much each of them is of it.

Legend: T recorded steps, K terms.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradwatch.analysis.final_values import quarters
from gradwatch.analysis.rules.facts import middle
from gradwatch.analysis.rules.finding import Why
from gradwatch.formatting import percent
from gradwatch.history import History


def outweighed(history: History, loss: str, others: Sequence[str], most: float = 0.8) -> Why | None:
    """The cause where one term is the share `most` of a loss that falls; `others` may be terms of it, as they are
    logged. None where they do not add up to it.
    """
    found = weights_of(history, loss, others)
    first = max(found, key=lambda name: found[name][1], default="")
    if len(found) < 2 or found[first][1] < most:
        return None
    sum_of = " + ".join(
        name if abs(weight - 1) < 0.01 else f"{weight:.3g} {name}" for name, (weight, _) in found.items()
    )
    weight, share = found[first]
    return Why(
        f"{loss} is {sum_of}, and {percent(share)} of what it began at is {first}: that falls, and what else it "
        "asks for hardly counts.",
        f"Weigh the terms so that they begin at a like size: {first} by {weight * (1 - share) / share:.2g} or so.",
        {"share": share},
    )


def is_partly_learnt(history: History, loss: str, left: float = 0.1, least: float = 0.1) -> bool:
    """Whether a term of a loss, the share `least` of it at first or more, ended below the share `left` of its first."""
    terms = weights_of(history, loss, [name for name in history.logged if name != loss])
    first = {name: middle(history.total(name)[:5]) for name in (loss, *terms)}
    large = [name for name, (weight, _) in terms.items() if weight * first[name] >= least * first[loss]]
    return any(quarters(history, name)[-1] < left * first[name] for name in large)


def weights_of(
    history: History, loss: str, others: Sequence[str], near: float = 1e-3, most: int = 8
) -> dict[str, tuple[float, float]]:
    """Of each term its weight, and its share of the loss over the first tenth of the steps.

    By least squares over the steps in which all were logged; empty where what is left is above the share `near` of the
    loss, a weight is below 0, or there are too few steps for so many `others`.
    """
    if not 1 < len(others) <= most:
        return {}
    values = np.array([history.total(name) for name in others], np.float64).T  # [T, K]
    total = history.total(loss).astype(np.float64)
    known = np.isfinite(values).all(1) & np.isfinite(total)
    values, total = values[known], total[known]
    if len(total) < 8 * len(others):
        return {}
    weights, *_ = np.linalg.lstsq(values, total, rcond=None)
    if np.sqrt(np.mean((values @ weights - total) ** 2)) > near * np.sqrt(np.mean(total**2)):
        return {}
    early = slice(max(1, len(total) // 10))
    shares = np.median(weights * values[early] / total[early, None], axis=0)
    terms = {name: (float(w), float(s)) for name, w, s in zip(others, weights, shares, strict=True) if abs(s) > near}
    return terms if all(weight > 0 and share > 0 for weight, share in terms.values()) else {}
