"""Steps that change the weights too much.

Legend: M steps in which weights were measured, W layers with two or more dimensions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.rules.facts import (
    LEAST_STEPS,
    USUAL_RATIO,
    is_adaptive,
    middle,
    optimizer_kind,
    set_rate,
    steps_taken,
    to_usual,
)
from gradwatch.analysis.rules.finding import Finding, whole_run
from gradwatch.analysis.rules.layer_facts import (
    matrices,
    measured,
    pick,
)
from gradwatch.analysis.rules.sampled_losses import inside
from gradwatch.analysis.rules.series import stretches
from gradwatch.analysis.rules.step_length import lengthened
from gradwatch.analysis.rules.tries import new_rate, rate_times, warm_up
from gradwatch.formatting import percent
from gradwatch.history import Bools, Floats, History

Rows = NDArray[np.intp]


def update_too_large(
    history: History, adaptive: float = 0.2, sgd: float = 0.5, steps: int = 10, long: int = 50, plain: float = 1.0
) -> list[Finding]:
    """Weights that change by a large share of themselves in step after step.

    Of layers with two or more dimensions: the update ratio was above `adaptive` (Adam and its kin) or `sgd` in every
    measurement of more than `steps` steps, three at least. An error when most layers were so for more than `long`
    steps, or when each measurement of a run that is too short to judge otherwise had most of them above `plain`. Or
    the first steps alone were so long, of most layers, and threw the units of a ReLU to where they are dead
    (`_threw_units`).
    Source: CS231n's update to weight ratio of about 1e-3; measured healthy: .008 (Adam 1e-3), .04 (SGD .5). The
    healthy trainings of the tests stay below .14 (Adam, first step) and .5 (SGD, first step), and below .04 later.
    """
    kind = is_adaptive(history)
    limit = adaptive if kind else sgd
    at, ratio = measured(history, "update_ratio")
    rows = history.layer_rows[at]
    wide = matrices(history)
    spells = {i: _spells(rows, ratio[:, i] > limit, steps) for i in np.flatnonzero(wide)}
    spells = {i: found for i, found in spells.items() if found}
    plainly = _plainly(history, ratio[:, wide], plain)
    if plainly:
        spells = {i: [(0, len(rows) - 1)] for i in np.flatnonzero(wide) if (ratio[:, i] > plain).any()}
    if not spells:
        return _threw_units(history, rows, ratio[:, wide], limit)
    first, end = min(s[0] for f in spells.values() for s in f), max(s[1] for f in spells.values() for s in f)
    lasting = sum(max(rows[b] - rows[a] for a, b in found) > long for found in spells.values())
    largest = max(float(np.nanmedian(ratio[a : b + 1, i])) for i, found in spells.items() for a, b in found)
    rate = set_rate(history)
    longer = lengthened(history)
    lower = new_rate(history, to_usual(history, largest))
    return [
        Finding(
            "update-too-large",
            "error" if plainly or lasting > wide.sum() / 2 else "warning",
            pick(history, np.isin(np.arange(len(wide)), list(spells))),
            int(history.step[rows[first]]),
            int(history.step[rows[end]]),
            {"update_ratio": largest, "limit": limit, "usual": USUAL_RATIO[kind], "lr": rate},
            f"Each step changes these weights by {percent(largest)} of their size; under {optimizer_kind(history)} "
            f"{percent(USUAL_RATIO[kind])} is usual." + longer.cause,
            longer.around(
                f"Lower the learning rate to {lower}, or warm it up over the first few hundred steps"
                + (
                    ": the size of a step does not depend on the size of the gradient here, so clipping does not help."
                    if kind
                    else "; clip if single batches do it."
                )
            ),
            tries=longer.left_of((rate_times(USUAL_RATIO[kind] / largest), warm_up(history))),
        )
    ]


def _threw_units(
    history: History, rows: Rows, ratio: Floats, limit: float, alive: float = 0.3, dead: float = 0.8
) -> list[Finding]:
    """Of the first measured step, in the beginning, the median layer changed by more than `limit`, `[M, W]`, and of the
    worst ReLU's units, of which less than `alive` were dead, `dead` were soon after it, and nearly as many in the end.
    """
    worst = inside(history, "dead")
    if worst is None or not len(rows) or rows[0] >= LEAST_STEPS / 4:
        return []
    first = middle(ratio[0])
    if not (first > limit and worst.first < alive and worst.soon > dead and worst.last > 0.9 * dead):
        return []
    kind, usual = optimizer_kind(history), USUAL_RATIO[is_adaptive(history)]
    return [
        whole_run(
            history,
            "update-too-large",
            (worst.layer,) if worst.layer else (),
            {"update_ratio": first, "limit": limit, "usual": usual, "dead": worst.last, "lr": set_rate(history)},
            f"The first step changed the median layer by {percent(first)} of its size; under {kind} {percent(usual)} "
            f"is usual. It threw units to where they are dead: of the worst ReLU, behind `{worst.layer}`, "
            f"{percent(worst.first)} were so before it, {percent(worst.soon)} by step {worst.soon_step}, and "
            f"{percent(worst.last)} in the end.",
            f"Lower the learning rate to {new_rate(history, to_usual(history, first))}, or warm it up over the first "
            "few hundred steps. If the weights were trained before, most of what they knew went with that step.",
            tries=(rate_times(usual / first), warm_up(history)),
        )
    ]


def _plainly(history: History, ratio: Floats, limit: float) -> bool:
    """Whether all that a short run measured are steps longer than the weights themselves, `[M, W]`."""
    if steps_taken(history) >= LEAST_STEPS:
        return False
    ratio = np.where(np.isfinite(ratio), ratio, np.nan)
    known = ratio[~np.isnan(ratio).all(axis=1)] if ratio.shape[1] else ratio[:0]
    return bool(len(known) and (np.nanmedian(known, axis=1) > limit).all())


def _spells(rows: Rows, mask: Bools, steps: int) -> list[tuple[int, int]]:
    """Where `mask` `[M]` holds without a break over more than `steps` steps, three measurements at least."""
    spells = stretches(mask) - [0, 1]
    return [(int(a), int(b)) for a, b in spells if b - a >= 2 and rows[b] - rows[a] > steps]
