"""Which batches a run's trouble came with: the steps at which it began, and what the loop logged of their data.

Legend: T recorded steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from gradwatch.analysis.final_values import nonfinite_rows
from gradwatch.analysis.rewinds import rewinds
from gradwatch.analysis.rules.finding import Finding
from gradwatch.analysis.rules.losses import training_losses
from gradwatch.analysis.rules.step_data import data_of, worst_step
from gradwatch.history import Bools, History
from gradwatch.table import WAS_NAN


@dataclass(frozen=True)
class Suspect:
    """A step, why it is named, and what was logged for it as `batch`, `sample` and `shard`: numbers, in order."""

    step: int
    why: str
    batch: tuple[int, ...] = ()
    sample: tuple[int, ...] = ()
    shard: tuple[int, ...] = ()

    @property
    def batches(self) -> tuple[int, ...]:
        """The numbers of its batches: those that were logged; else the step's own, which is that of its batch in a loop
        of one pass without accumulation.
        """
        return self.batch or (self.step,)


def suspects(history: History, findings: Iterable[Finding]) -> list[Suspect]:
    """The steps in which something went wrong at once, in order: where a norm or a training loss stopped being finite,
    where a spike was largest, and those because of which the training was taken back.
    """
    found: dict[int, list[str]] = {}
    for row in np.flatnonzero(_began(_nonfinite(history))):
        found.setdefault(int(history.step[row]), []).append("not finite")
    for finding in findings:
        for one in (finding, *finding.consequences):
            if one.rule == "spike":
                found.setdefault(worst_step(one), []).append("spike")
    for back in rewinds(history):
        found.setdefault(back.cause, []).append("rewound")
    return [
        Suspect(step, ", ".join(dict.fromkeys(why)), **data_of(history, step)) for step, why in sorted(found.items())
    ]


def _nonfinite(history: History) -> Bools:
    """Steps in which a gradient or a training loss was inf or NaN, `[T]`."""
    bad = nonfinite_rows(history)
    for name in training_losses(history):
        bad |= np.isinf(history.total(name)) | (history.total(f"{WAS_NAN}{name}") > 0)
    return bad


def _began(bad: Bools) -> Bools:
    """The first of each stretch, `[T]`."""
    began: Bools = bad & ~np.concatenate([[False], bad[:-1]])
    return began
