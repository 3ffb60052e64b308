"""The Watches that are open in this process, and `log()`, which reaches them from anywhere in a program."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

EXIT_CALLS = 3  # of what closes a Watch at exit: a Ctrl-C ends one of them, and the next goes on


class Open(Protocol):
    """What is listed here: a Watch, with its Recorder and its writer."""

    _recorder: Any
    _writer: Any

    def log(self, /, **values: Any) -> None:
        """Add scalars to the last step taken."""

    def close(self, status: str = ..., timeout: float | None = ...) -> None:
        """Write what is left and end."""

    @property
    def dir(self) -> Path:
        """The folder recorded to."""

    def _say(self, text: str) -> None:
        """Say it to the user, where it is verbose."""

    def _flush(self) -> None:
        """Put what is recorded so far on disk."""

    def _abandon(self) -> None:
        """End without a trace, in a forked process."""


watches: list[Open] = []  # in the order in which they were made


def enter(watch: Open, at_exit: Callable[[], None]) -> None:
    """A Watch is open from now on; `at_exit` closes it when the interpreter ends."""
    for _ in range(EXIT_CALLS):
        atexit.register(at_exit)
    watches.append(watch)


def leave(watch: Open, at_exit: Callable[[], None]) -> None:
    """It has ended."""
    watches[:] = [other for other in watches if other is not watch]
    atexit.unregister(at_exit)


def flush(folder: Path) -> None:
    """Put on disk what the Watches of this process that record to the run in `folder` have recorded so far."""
    home = folder.resolve()
    for watch in tuple(watches):
        if home in (watch.dir.resolve(), watch.dir.resolve().parent):
            watch._flush()


def log(**values: Any) -> None:
    """Add scalars to the last step of every Watch that is open in this process; without one, do nothing.

    So a script may call it whether it is watched (`gradwatch run`, or its own `gradwatch.watch`) or not. What can be
    logged is what `Watch.log` takes: numbers, or one-element tensors on any device.
    """
    for watch in tuple(watches):
        watch.log(**values)
