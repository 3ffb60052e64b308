"""How many ranks have the same values: what they have in common, as under tensor parallelism, is counted once.

Legend: W ranks, K things whose values are compared.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwatch.measure.layout import sample


def mark(values: Tensor) -> Tensor:
    """A number, 0-d float64, that two ranks have in common if they have the same values and, but for chance, only then:
    of at most 4,096 of them. 0 where none of these is finite, or all are 0: then nothing can be told.
    """
    few = sample(values).to(torch.float64)
    return few.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).square().sum()


class Copies:
    """On how many ranks the same values are, as long as nothing can be told as many as were there before."""

    def __init__(self) -> None:
        self._known: Tensor | None = None  # [K]

    def of(self, marks: Tensor) -> Tensor:
        """`[W, K]` marks of all ranks -> `[K]`: W by the number of those that differ."""
        differ = 1 + (marks.sort(dim=0).values.diff(dim=0) != 0).sum(dim=0)
        before = torch.ones_like(marks[0]) if self._known is None else self._known
        self._known = torch.where((marks != 0).all(dim=0), len(marks) / differ, before)
        return self._known
