"""Ends a training in which a finding of severity error shows: the rules look at what is on disk, from a thread."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from gradwatch.errors import RunError
from gradwatch.rules import diagnose
from gradwatch.stores.parts import read_whole

PAUSE = 2.0  # seconds between two looks, at least; and twenty times as long as a look takes
MAX_VALUES = 2_000_000  # a longer run is looked at reduced


class Halt:
    """Looks at the runs that it is told of; `check()` ends the program once one of them is in a bad way."""

    def __init__(self) -> None:
        self.found = ""
        self._folders: list[Path] = []

    def add(self, folder: Path) -> None:
        """Look at this run too; the first one starts the thread."""
        self._folders.append(folder)
        if len(self._folders) == 1:
            threading.Thread(target=self._look, name="gradwatch-halt", daemon=True).start()

    def check(self) -> None:
        """Called between two steps.

        Raises:
            SystemExit: with code 1, after one line, when there is an error among the findings.
        """
        if self.found:
            print(f"gradwatch: halted: {self.found}", file=sys.stderr)
            raise SystemExit(1)

    def _look(self) -> None:
        while not self.found:
            began = time.monotonic()
            for folder in tuple(self._folders):
                self.found = self.found or _error(folder)
            time.sleep(max(PAUSE, 20 * (time.monotonic() - began)))


def _error(folder: Path) -> str:
    try:
        history = read_whole(folder, at_most=MAX_VALUES)
    except (RunError, OSError):
        return ""  # nothing is written yet
    errors = [finding for finding in diagnose(history) if finding.severity == "error"] if len(history) else []
    return errors[0].summary if errors else ""
