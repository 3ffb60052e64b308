"""The loss, picked up where a script calls `backward()` on a scalar. Nothing is read from the device."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


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

    def install(self) -> None:
        """Wrap `torch.autograd.backward`, which every `Tensor.backward` goes through, and `GradScaler.scale`."""
        torch.autograd.backward = self._telling(torch.autograd.backward)
        torch.amp.GradScaler.scale = self._noting(torch.amp.GradScaler.scale)  # type: ignore[method-assign]

    def take(self) -> Tensor | None:
        """The sum since the last call; None when there was none, or it is not known."""
        out = self._sum if self._known else None
        self._sum, self._known, self._frozen, self.since = None, True, False, 0
        self._scaled.clear()
        return out

    def freeze(self) -> None:
        """Count nothing until the sum is taken: a closure's further evaluations belong to the same step."""
        self._frozen = self._sum is not None

    def _telling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
            if grad_tensors is None and kwargs.get("grad_variables") is None:
                self._add([tensors] if isinstance(tensors, Tensor) else tensors)
            return original(tensors, grad_tensors, *args, **kwargs)

        return backward

    def _noting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def scale(scaler: torch.amp.GradScaler, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            if scaler.is_enabled() and isinstance(outputs, Tensor) and isinstance(scaled, Tensor):
                self._scaled.append((weakref.ref(scaled), outputs.detach()))
            return scaled

        return scale

    @torch.no_grad()
    def _add(self, tensors: Any) -> None:
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
