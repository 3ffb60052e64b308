"""Hears of `torch.autograd.backward` as the loop calls it: one wrapper for all who listen, whoever leaves first.

Each hears of the calls of the thread that trains its layers. Another thread's backward may come at any moment, also
while these gradients are written to, and to read them then ends the process.
"""

from __future__ import annotations

import functools
import sys
import threading
from traceback import walk_stack
from typing import Any, Protocol

import torch
from torch.autograd import graph

from gradwatch.measure.patch import Function, Patch, Wrapped
from gradwatch.recording.multi_optimizer import inside_backward


class Listener(Protocol):
    """Is told before each call, of what it is called on, and after it."""

    def before(self, losses: Any) -> object:
        """Somebody is about to call backward on these; what is returned is handed to `after`."""

    def after(self, before: Any) -> None:
        """The call is over."""


def _tell(original: Function) -> Function:
    @functools.wraps(original)
    def backward(*args: Any, **words: Any) -> Any:
        if inside_backward():  # a reentrant checkpoint's
            return original(*args, **words)
        losses = args[0] if args else words.get("tensors")
        told = [(listener, listener.before(losses)) for listener in heard.of_this_thread()]
        out = original(*args, **words)
        for listener, before in told:
            listener.after(before)
        return out

    return backward


class _Heard(Wrapped[Listener]):
    """Who listens, and in which thread each does."""

    def __init__(self) -> None:
        super().__init__(lambda: [Patch([(torch.autograd, "backward")], _tell)])
        self._threads: dict[int, int] = {}  # by the id of a listener

    def listen(self, listener: Listener) -> None:
        self._threads[id(listener)] = threading.get_ident()
        super().listen(listener)

    def leave(self, listener: Listener) -> None:
        super().leave(listener)
        self._threads.pop(id(listener), None)

    def from_here(self, *listeners: Listener | None) -> None:
        """Those of them that listen hear of this thread's calls from now on."""
        here = threading.get_ident()
        for listener in map(id, listeners):
            if listener in self._threads:
                self._threads[listener] = here

    def of_this_thread(self) -> list[Listener]:
        """Who hears of a call that this thread makes."""
        here = threading.get_ident()
        return [listener for listener in self.listeners if self._threads.get(id(listener)) == here]


def another_thread_is_in_one() -> bool:
    """Whether a thread beside this one is in a backward: it may be writing to any gradient."""
    here = threading.get_ident()
    others = (frame for thread, frame in sys._current_frames().items() if thread != here)
    return any(caller.f_code is _ENGINE for frame in others for caller, _ in walk_stack(frame))


_ENGINE = graph._engine_run_backward.__code__
heard = _Heard()
