"""The Watches that are open in this process, and `log()`, which reaches them from anywhere in a program."""

from __future__ import annotations

from typing import Any, Protocol


class Open(Protocol):
    """What is listed here: a Watch."""

    def log(self, **values: Any) -> None:
        """Add scalars to the last step taken."""

    def close(self, status: str = ..., timeout: float | None = ...) -> None:
        """Write what is left and end."""

    def _abandon(self) -> None:
        """End without a trace, in a forked process."""


watches: list[Open] = []  # in the order in which they were made; a Watch enters and leaves the list by itself


def log(**values: Any) -> None:
    """Add scalars to the last step of every Watch that is open in this process; without one, do nothing.

    So a script may call it whether it is watched (`gradwatch run`, or its own `gradwatch.watch`) or not. What can be
    logged is what `Watch.log` takes: numbers, or one-element tensors on any device.

    Raises:
        WatchError: as `Watch.log`.
    """
    for watch in tuple(watches):
        watch.log(**values)
