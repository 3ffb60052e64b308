"""Copies of a training's values in the host's memory, taken behind its back.

On CUDA they go into pinned memory on a stream of their own. Weights and the optimizer's state change in
`optimizer.step()` alone, so the next one waits for the copies (`Copier.before_step`); all else is copied first.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradwatch.measure.distributed import local


class Copier:
    """Copies tensors to the host: at once where they are there already, on a stream of its own from a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._cuda: Any = torch.cuda
        self.stream = self._cuda.Stream(device) if device.type == "cuda" else None
        self.pending: Any = None  # the event behind the last copies

    def begin(self) -> None:
        """What is copied from now on is what the training has written so far."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))

    def end(self) -> Any:
        """An event behind all copies; None where they are there."""
        if self.stream is not None:
            self.pending = self._cuda.Event()
            self.pending.record(self.stream)
        return self.pending

    def before_step(self, *_: Any) -> None:
        """Weights are about to change: the current stream waits for the copies. The host does not."""
        if self.pending is not None:
            torch.cuda.current_stream(self.stream.device).wait_event(self.pending)  # type: ignore[union-attr]
            self.pending = None

    def late(self, tensor: Tensor) -> Tensor:
        """A copy of what changes in optimizer steps only."""
        part = local(tensor).detach()
        if self.stream is None or part.device.type != "cuda":
            return part.to("cpu", copy=True)
        with torch.cuda.stream(self.stream):
            host = torch.empty(part.shape, dtype=part.dtype, device="cpu", pin_memory=True)
            host.copy_(part, non_blocking=True)
            part.record_stream(self.stream)
        return host

    def early(self, tensor: Tensor) -> Tensor:
        """A copy of what may change at any time."""
        part = local(tensor).detach()
        if self.stream is None or part.device.type != "cuda":
            return part.to("cpu", copy=True)
        own = part.clone()
        self.begin()
        return self.late(own)


def mapped(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """A deep copy of dicts, lists, tuples and plain values, each tensor as `function` gives it."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):  # a Counter (of MultiStepLR) is one again, and state_dict()'s keeps its versions
        new = copy.copy(value)
        for key, each in value.items():
            new[key] = mapped(each, function)
        return new
    if type(value) in (list, tuple):
        return type(value)(mapped(v, function) for v in value)
    return copy.deepcopy(value)
