"""A threshold that moves, which is a number to whoever asks for one."""

from __future__ import annotations

from typing import Any


class Ramp(float):
    """A threshold that goes in a line from `start` to `end` over `steps` steps, and stays. Made by `ramp`.

    As a number, as which reports take it, it is `end`.
    """

    start: float
    steps: int

    def at(self, taken: Any) -> Any:
        """Its value after so many steps, a number or a tensor: start + (end - start) * min(1, taken / steps)."""
        share = (taken / self.steps).clip(max=1.0) if hasattr(taken, "clip") else min(1.0, taken / self.steps)
        return self.start + (float(self) - self.start) * share

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ramp) and self._settings() == other._settings()

    def __ne__(self, other: object) -> bool:  # float has its own
        return not self == other

    def __hash__(self) -> int:
        return hash(self._settings())

    def __repr__(self) -> str:
        return f"ramp({', '.join(map(repr, self._settings()))})"

    def _settings(self) -> tuple[float, float, int]:
        return self.start, float(self), self.steps
