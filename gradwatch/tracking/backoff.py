"""How long to wait before something is tried again."""

from __future__ import annotations


class Backoff:
    """A `pause` that doubles with every failure in a row, from `first` to `longest` seconds."""

    def __init__(self, first: float, longest: float) -> None:
        self.first, self.longest, self.pause = first, longest, first

    def after(self, success: bool) -> float:
        """The pause after an attempt that went so."""
        self.pause = self.first if success else min(2 * self.pause, self.longest)
        return self.pause
