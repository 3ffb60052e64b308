"""Whether optimizers that step in turn step on the same gradients, or whether others were computed in between."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor


class SameGradients:
    """The gradients that were measured for all optimizers of a step, to tell them from later ones."""

    def __init__(self) -> None:
        self._seen: dict[Tensor, tuple[Tensor | None, int]] = {}

    def note(self, params: Iterable[Tensor]) -> None:
        """These were measured, and scaled, just now."""
        self._seen = {p: (p.grad, _version(p.grad)) for p in params}

    def forget(self) -> None:
        """The step is over; the gradients are not kept alive."""
        self._seen = {}

    def changed(self, params: Iterable[Tensor], under_scaler: bool) -> bool:
        """Whether any of `params` has another gradient by now: a new tensor, or one that was written to.

        A loss scaler writes to a gradient when it comes to its optimizer: under one only a new tensor counts.
        """
        for p in params:
            grad, version = self._seen.get(p, (None, 0))
            if p.grad is not grad or (not under_scaler and _version(grad) != version):
                return True
        return False


def _version(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor._version
