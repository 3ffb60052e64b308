"""A function of somebody else's, replaced for a while and put back."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

Function = Callable[..., Any]
L = TypeVar("L")
# Held by whoever changes what is replaced. One that its own thread may take again: a signal or a garbage collection may
# end a listener in the middle. In a forked process nobody holds it: whoever did is not there to give it back.
LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=LOCK._at_fork_reinit)  # type: ignore[attr-defined]


class Patch:
    """`wrap(function)` in the place of a function, between `on` and `off`; each is harmless twice, or interrupted.

    What someone else has put in the place since is left alone by `off`.
    """

    def __init__(self, places: Sequence[tuple[Any, str]], wrap: Callable[[Function], Function]) -> None:
        self._places, self._wrap = places, wrap
        self._old: Function | None = None
        self._new: Function | None = None
        # in a class or object that has it from a class it is not put back but taken out
        self._inherited = [name not in getattr(holder, "__dict__", {name: None}) for holder, name in places]

    def on(self) -> None:
        """Put it there."""
        if self._new is None:
            self._old = getattr(*self._places[0])
            self._new = self._wrap(self._old)
            for holder, name in self._places:
                setattr(holder, name, self._new)

    def off(self) -> None:
        """Take it away."""
        for (holder, name), inherited in zip(self._places, self._inherited, strict=True):
            if self._new is None or getattr(holder, name) is not self._new:
                continue
            if inherited:
                delattr(holder, name)
            else:
                setattr(holder, name, self._old)
        self._new = None


class Wrapped(Generic[L]):
    """Functions that carry wrappers while at least one listener wants to be told of their calls.

    `patches` makes what is put on for the first listener and taken off with the last.
    """

    def __init__(self, patches: Callable[[], list[Patch]]) -> None:
        self.listeners: tuple[L, ...] = ()  # replaced, never changed: a call may be walking through it
        self._make = patches
        self._patches: list[Patch] = []

    def listen(self, listener: L) -> None:
        """Tell it of every call from now on, until `leave`."""
        with LOCK:
            is_first, self.listeners = not self.listeners, (*self.listeners, listener)
            if is_first:
                self._patches = self._make()
                for patch in self._patches:
                    patch.on()

    def leave(self, listener: L) -> None:
        """Tell it no more; harmless twice, and where it was never told."""
        with LOCK:
            self.listeners = tuple(other for other in self.listeners if other is not listener)
            if not self.listeners:
                for patch in self._patches:
                    patch.off()
                self._patches = []
