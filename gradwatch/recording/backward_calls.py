"""Hears of `torch.autograd.backward` as the loop calls it: one wrapper for all who listen, whoever leaves first."""

from __future__ import annotations

import functools
from typing import Any, Protocol

import torch

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
        told = [(listener, listener.before(losses)) for listener in heard.listeners]
        out = original(*args, **words)
        for listener, before in told:
            listener.after(before)
        return out

    return backward


heard: Wrapped[Listener] = Wrapped(lambda: [Patch([(torch.autograd, "backward")], _tell)])
