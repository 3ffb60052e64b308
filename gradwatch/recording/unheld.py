"""Whether gradients come to parameters that ask for them and that no optimizer holds."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.nn.parameter import is_lazy

from gradwatch.measure.writes import Mark, mark_of


class Unheld:
    """The parameters of a model that ask for a gradient, and are not among those that are `trained`, by their ids."""

    def __init__(self, model: nn.Module, trained: Iterable[int]) -> None:
        known = {*trained}
        self._waiting = [
            (p, _mark(p)) for p in model.parameters() if p.requires_grad and id(p) not in known and not is_lazy(p)
        ]
        self._all = len(self._waiting)

    def reached(self) -> float | None:
        """The share of them that a gradient came to since this was made; None where there are none.

        What an earlier training left in them is no gradient that came.
        """
        if not self._all:
            return None
        self._waiting = [(p, first) for p, first in self._waiting if p.grad is None or _mark(p) == first]
        return 1 - len(self._waiting) / self._all


def _mark(p: nn.Parameter) -> Mark | None:
    return None if p.grad is None else mark_of(p.grad)
