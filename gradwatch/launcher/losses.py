"""The loss, picked up where a script calls `backward()` on a scalar. Nothing is read from the device."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwatch.measure.autograd import without_autograd


class Losses(threading.local):
    """The sum of the scalars that went through `backward()` since it was last taken: what the gradient is of.

    A scalar from `GradScaler.scale` counts as what was scaled. One that was computed from such a scalar carries the
    scale, nobody knows how often: then the sum is not known. Each thread has its own, for the steps it takes.
    """

    def __init__(self) -> None:
        self.calls = 0  # of backward on a scalar
        self.since = 0  # how many of them since the sum was last taken
        self._sum: Tensor | None = None
        self._known, self._frozen = True, False
        self._scaled: list[tuple[weakref.ref[Tensor], Tensor]] = []

    def take(self) -> Tensor | None:
        """The sum since the last call; None when there was none, or it is not known."""
        out = self._sum if self._known else None
        self._sum, self._known, self._frozen, self.since = None, True, False, 0
        self._scaled.clear()
        return out

    def freeze(self) -> None:
        """Count nothing until the sum is taken: a closure's further evaluations belong to the same step."""
        self._frozen = self._sum is not None

    def note_scaled(self, loss: Any, scaled: Any) -> None:
        """`scaled` is what a loss scaler made of `loss`."""
        if isinstance(loss, Tensor) and isinstance(scaled, Tensor):
            there = [pair for pair in self._scaled if pair[0]() is not None]  # of many the step is never seen
            self._scaled = [*there, (weakref.ref(scaled), loss.detach())]

    def add(self, tensors: Any) -> None:
        """What `backward` is called on: a tensor, or a sequence of them; of one that cannot be copied nobody knows."""
        try:
            self._add(tensors)
        except Exception:  # it is only looked at
            self._known = False

    @without_autograd
    def _add(self, tensors: Any) -> None:
        tensors = [tensors] if isinstance(tensors, Tensor) else tensors
        if not isinstance(tensors, Sequence) or not all(type(t) is Tensor and t.numel() == 1 for t in tensors):
            return
        if self._frozen or torch.compiler.is_compiling():
            return
        self.calls += 1
        self.since += 1
        for tensor in tensors:
            plain = next((true for scaled, true in self._scaled if scaled() is tensor), None)
            if plain is None and self._scaled:
                self._known = False
            value = (tensor.detach() if plain is None else plain).reshape(()).float()
            # a copy: the script may go on to change its loss in place
            self._sum = value.clone() if self._sum is None else self._sum + value
