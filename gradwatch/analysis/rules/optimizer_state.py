"""An optimizer that lost what it had gathered: its first steps without it are long, and in every direction.

Legend: T recorded steps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.rules.facts import is_adaptive, middle, optimizer_kind, settings
from gradwatch.analysis.rules.finding import Evidence, Finding, Severity, either
from gradwatch.analysis.rules.progress import loss_progress
from gradwatch.analysis.rules.series import OF_MEDIAN
from gradwatch.history import History


def optimizer_state_lost(history: History, width: int = 10, sigmas: float = 4.0) -> list[Finding]:
    """Steps later than the first that an optimizer with moments or momentum began without its state.

    A warning where the run went on from a checkpoint there: nobody means to leave it behind. Within a run it may be
    meant (each round or each task anew): a warning where the training losses of the `width` steps after it are higher
    than of those before, by `sigmas` standard errors over all such steps, or where it is lost so often that it never
    fills (`_never_fills`); else a note. What a rewind brought back is left out.
    Source: torch's tutorial "Saving and loading a general checkpoint"; Kingma & Ba, arXiv:1412.6980, section 3: without
    a past Adam's step is the rate in every direction.
    """
    went_back = np.isfinite(history.total("rewound_to"))
    begins = np.arange(len(history)) == 0  # an optimizer that is due later than another has no state either
    begins &= (history.step == 0) | (history.step != history.run.first_step)
    rows = np.flatnonzero((history.total("empty_state") == 1) & ~begins & ~np.roll(went_back, 1))
    if not len(rows) or not _keeps_state(history):
        return []
    resumed = [int(row) for row in rows if row == 0 or history.attempt[row] != history.attempt[row - 1]]
    errors = _worse_after(history, rows, width)
    empty = _never_fills(history, rows)
    severity: Severity = "warning" if resumed or errors > sigmas or empty else "note"
    steps = [int(step) for step in history.step[rows]]
    shown = ", ".join(map(str, steps[:4])) + (" and so on" if len(steps) > 4 else "")
    evidence: Evidence = {"times": len(rows), "resumed": len(resumed)}
    if np.isfinite(errors):
        evidence["loss_rose_by_errors"] = errors
    causes = () if resumed else _MEANT
    said = f"{optimizer_kind(history)} had no state at {'step' if len(rows) == 1 else 'steps'} {shown}, although it "
    said += "had taken steps before: its moments began anew."
    if resumed:
        said += " The run went on from a checkpoint there, and the optimizer's state was not in it, or not loaded."
    if errors > sigmas:
        said += " The loss was higher in the steps after it than before."
    if empty:
        hold = "1 step" if empty == 1 else f"{empty:g} steps"
        said += f" They never hold more than {hold}, where they are meant to hold {_memory(history):g}."
    said += f" {either(causes)}" if causes else ""
    return [
        Finding(
            "optimizer-state-lost",
            severity,
            (),
            int(history.step[0]) if empty else steps[0],  # each step is like the first ones
            int(history.step[-1]) if severity == "warning" else steps[-1],
            evidence,
            said,
            "Save optimizer.state_dict() (and the scheduler's) beside the weights, and load it into the optimizer "
            "before the first step. Make the optimizer once, before the loop; where it has to begin anew, warm the "
            "rate up again.",
            alternatives=causes,
        )
    ]


_MEANT = (
    "the optimizer is made anew inside the loop",
    "it is meant to begin anew, with another task, or with each client of a round, whose loss is another too",
)


def _keeps_state(history: History) -> bool:
    """Whether the optimizers keep anything from step to step, as far as their names and settings tell."""
    return is_adaptive(history) or any(float(group.get("momentum") or 0) > 0 for group in settings(history))


def _never_fills(history: History, rows: NDArray[np.intp], least: int = 5) -> float:
    """The median number of steps from one loss of the state to the next, where it is less than it is meant to hold.

    0 where it is not, or where the state was lost less than `least` times.
    """
    between = float(np.median(np.diff(history.step[rows]))) if len(rows) >= least else np.inf
    return between if between < _memory(history) else 0.0


def _memory(history: History) -> float:
    """Over how many steps the longest of the optimizer's averages reaches: 1 / (1 - its decay)."""
    decays = [
        float(decay)
        for group in settings(history)
        for decay in (group.get("betas") or [group.get("momentum") or 0, group.get("alpha") or 0])
    ]
    return max((1 / (1 - decay) for decay in decays if 0 <= decay < 1), default=0.0)


def _worse_after(history: History, rows: NDArray[np.intp], width: int) -> float:
    """By how many standard errors the training losses are higher after these rows than before; NaN if not known.

    The loss of a row was computed before its step: where it is high already (by six times its noise), other weights
    were there, set back with the state, as a pruned net is rewound; that row is left out. The worst of the losses
    counts.
    """
    found = [float("nan")]
    for loss in loss_progress(history):
        if not loss.noise > 0:
            continue
        values = history.total(loss.metric)
        before = [middle(values[max(0, row + 1 - width) : row + 1]) for row in rows]
        rises = [
            middle(values[row + 1 : row + 1 + width]) - level
            for row, level in zip(rows, before, strict=True)
            if not values[row] - level > 6 * loss.noise
        ]
        known = np.array([rise for rise in rises if np.isfinite(rise)])
        if len(known):
            error = OF_MEDIAN * loss.noise * np.sqrt(2 / width / len(known))
            found.append(float(known.mean() / error))
    return float(np.nanmax(found)) if np.isfinite(found).any() else float("nan")
