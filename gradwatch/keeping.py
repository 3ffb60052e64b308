"""Keeps a courier for a training: sends it at the first step, replaces one that was killed, waits for it at the end."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradwatch import delivery

AGAIN_SECONDS = 30.0  # between two couriers, when they are killed one after the other


class Keeper:
    """The courier of one Watch. Nothing here waits, but for `wait`; couriers of several Watches come from `start`."""

    def __init__(self, wanted: bool, start: Callable[[Path], subprocess.Popen[bytes] | None] | None = None) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._wanted, self._start, self._sent = wanted, start, 0.0

    def begin(self, folder: Path) -> None:
        """Send the courier, once."""
        if self._wanted:
            self._wanted = False
            self._send(folder)

    def look(self, folder: Path, at_once: bool = False) -> None:
        """Send another courier in the place of one that was killed; one that ended by itself would end again."""
        if delivery.was_killed(self.process) and (at_once or time.monotonic() - self._sent > AGAIN_SECONDS):
            self._send(folder)

    def wait(self, folder: Path, steps: int, timeout: float) -> tuple[dict[str, Any], str]:
        """The courier's cursor once all `steps` of the run are delivered, `timeout` seconds later at most, and in words
        what is missing then.
        """
        if self.process is None or timeout <= 0:
            return {}, ""
        cursor = delivery.wait_delivered(folder, timeout, self.process)
        if cursor["done"]:
            return cursor, ""
        due = int(cursor.get("next_step", 0))
        missing = "the report is" if due >= steps else f"{steps - due:,} of {steps:,} steps are"
        goes_on = "the courier goes on, and " if self.process.poll() is None else ""
        return cursor, f"{missing} not in MLflow yet; {goes_on}gradwatch sync {folder} makes sure of it"

    def _send(self, folder: Path) -> None:
        self._sent = time.monotonic()
        self.process = (self._start or delivery.start_courier)(folder)
