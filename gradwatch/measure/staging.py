"""How recorded rows leave the device: at once from the host's own memory, behind the training's back from a GPU's.

On CUDA they are copied into pinned memory on the stream that wrote them, an event is recorded behind the copy, and
nobody waits: later, when the event has passed, they are there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Flat = NDArray[np.floating[Any]]
LONGEST_POLL = 0.005  # seconds between two looks of somebody who waits


class Staged(Protocol):
    """Numbers on their way to the host."""

    def is_there(self) -> bool:
        """Whether they have arrived; asks, and does not wait."""

    def read(self) -> Flat:
        """All of them in a row, once they are there; nobody changes them later."""


class Staging(Protocol):
    """What copies tensors of one device to the host."""

    def follow(self) -> None:
        """Rows are about to be written, on the stream that is current now."""

    def join(self) -> None:
        """Something that will leave with the rows was made, on the stream that is current now."""

    def stage(self, tensors: Sequence[Tensor]) -> Staged:
        """Send them; what was sent before must have been read."""


def staging_for(device: torch.device) -> Staging:
    """How rows leave this device."""
    return OnStream(device) if device.type == "cuda" and torch.cuda.is_available() else AtOnce()


def wait(staged: Staged, seconds: float) -> bool:
    """Wait until it is there, `seconds` at most; returns whether it is. Python's signals are heard meanwhile."""
    deadline, pause = time.monotonic() + seconds, LONGEST_POLL / 64
    while not staged.is_there():
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_POLL)
    return True


class Arrived:
    """Numbers in the host's memory."""

    def __init__(self, flat: Flat) -> None:
        self.flat = flat

    def is_there(self) -> bool:
        """They are."""
        return True

    def read(self) -> Flat:
        """They themselves."""
        return self.flat


class AtOnce:
    """For the host's own memory, and for devices whose copies cannot be asked about (MPS): there `stage` waits."""

    def follow(self) -> None:
        """Nothing."""

    def join(self) -> None:
        """Nothing."""

    def stage(self, tensors: Sequence[Tensor]) -> Arrived:
        """A copy."""
        try:
            return Arrived(torch.cat([t.flatten() for t in tensors]).cpu().numpy())
        except torch.OutOfMemoryError:  # a training that ends for want of memory leaves none for one more tensor
            return Arrived(np.concatenate([t.cpu().numpy().ravel() for t in tensors]))


class OnStream:
    """For CUDA; `cuda` and `pinned`, which makes pinned memory of so many floats, are torch's."""

    def __init__(self, device: torch.device, cuda: Any = torch.cuda, pinned: Any = None) -> None:
        self.device, self.cuda = device, cuda
        self._make = pinned or (lambda n: torch.empty(n, dtype=torch.float32, device="cpu", pin_memory=True))
        self._pinned: Tensor | None = None
        self._stream: Any = None  # that wrote the last row: it waits for those that wrote before
        self._others: list[Any] = []  # on which something was made since the last staging

    def follow(self) -> None:
        """The stream that writes now goes behind the one that wrote before, and so behind its stagings."""
        stream = self.cuda.current_stream(self.device)
        if self._stream is None or stream != self._stream:  # torch says False of `stream != None`
            if self._stream is not None:
                stream.wait_stream(self._stream)
            self._stream = stream

    def join(self) -> None:
        """The next staging goes behind what is on this stream."""
        stream = self.cuda.current_stream(self.device)
        if stream not in (self._stream, *self._others):
            self._others.append(stream)

    def stage(self, tensors: Sequence[Tensor]) -> OnTheWay:
        """Queue the copy, on the stream that wrote: it sees all rows, and who writes next does so behind it."""
        stream = self._stream or self.cuda.current_stream(self.device)
        with self.cuda.stream(stream):
            while self._others:
                stream.wait_stream(self._others.pop())
            sizes = [t.numel() for t in tensors]
            if self._pinned is None or self._pinned.numel() < sum(sizes):
                self._pinned = self._make(1 << sum(sizes).bit_length())  # soon it is large enough for good
            to = self._pinned[: sum(sizes)]
            try:
                to.copy_(torch.cat([t.flatten() for t in tensors]), non_blocking=True)
            except torch.OutOfMemoryError:  # see AtOnce
                for part, t in zip(to.split(sizes), tensors, strict=True):
                    part.copy_(t.flatten(), non_blocking=True)
            event = self.cuda.Event()
            event.record(stream)
        return OnTheWay(to, event, tensors)


class OnTheWay:
    """Numbers that are in pinned memory once their event has passed; until then their sources are kept."""

    def __init__(self, to: Tensor, event: Any, sources: Sequence[Tensor]) -> None:
        self._to, self._event, self._sources = to, event, sources

    def is_there(self) -> bool:
        """Whether the event has passed."""
        return bool(self._event.query())

    def read(self) -> Flat:
        """A copy: the pinned memory is used again."""
        return self._to.numpy().copy()
