"""A function of somebody else's, replaced for a while and put back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Function = Callable[..., Any]


class Patch:
    """`wrap(function)` in the place of a function, between `on` and `off`; each is harmless twice, or interrupted.

    What someone else has put in the place since is left alone by `off`.
    """

    def __init__(self, places: Sequence[tuple[Any, str]], wrap: Callable[[Function], Function]) -> None:
        self._places, self._wrap = places, wrap
        self._old: Function | None = None
        self._new: Function | None = None
        # in a class that has it from another one it is not put back but taken out
        self._inherited = [isinstance(holder, type) and name not in vars(holder) for holder, name in places]

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
