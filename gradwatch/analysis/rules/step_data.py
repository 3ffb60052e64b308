"""Which data a step saw, as the loop logged it: `batch`, `sample`, `shard`."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from gradwatch.analysis.rules.finding import Finding
from gradwatch.history import History
from gradwatch.table import LISTED

OF_ONE_STEP = {"nonfinite", "spike"}  # rules that name a step whose data may be why
MOST = 16  # numbers of a list that a finding names
_ITEM = re.compile(rf"({'|'.join(LISTED)})(?:\[(\d+)\])?")


def data_of(history: History, step: int) -> dict[str, tuple[int, ...]]:
    """What was logged of the data of a step: `{"batch": (37,), "sample": (3, 5)}`, as far as it was."""
    rows = np.flatnonzero(history.step == step)
    out: dict[str, dict[int, int]] = {}
    for name, values in history.per_step.items():
        match = _ITEM.fullmatch(name)
        for value in values[rows] if match else ():
            if match and np.isfinite(value):
                out.setdefault(match[1], {})[int(match[2] or 0)] = int(value)
    return {name: tuple(items[place] for place in sorted(items)) for name, items in out.items()}


def worst_step(finding: Finding) -> int:
    """The step that a finding is about: that of the odd batch, of the largest value, else its first."""
    return int(finding.evidence.get("odd_batch", finding.evidence.get("largest_step", finding.first_step)))


def with_data(history: History, finding: Finding) -> Finding:
    """The finding with what was logged of the data of its step, where its rule names one."""
    found = data_of(history, worst_step(finding)) if finding.rule in OF_ONE_STEP else {}
    said = {
        name: ", ".join(map(str, numbers[:MOST])) + (", ..." if len(numbers) > MOST else "")
        for name, numbers in found.items()
    }
    return replace(finding, evidence={**finding.evidence, **said}) if said else finding
