"""The times that a training was taken back (`gradwatch.Rewind`), as its steps record them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gradwatch.history import History
from gradwatch.table import REWINDS


class Rewound(NamedTuple):
    """After step `after`, because of step `cause`, back to the state before step `to`; so many batches left out."""

    after: int
    to: int
    cause: int
    left_out: int


def rewinds(history: History) -> Iterator[Rewound]:
    """Those of a run, in order."""
    to, cause, left_out = (history.total(name) for name in REWINDS)
    for row in np.flatnonzero(np.isfinite(to) & np.isfinite(cause) & np.isfinite(left_out)):
        yield Rewound(int(history.step[row]), int(to[row]), int(cause[row]), int(left_out[row]))
