"""The MLflow run that is there before a watched script needs it: a child process creates it while Python starts.

Nothing here imports mlflow into the process of the script. The child is `python -m gradwatch.tracking.create_run`.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

from gradwatch.launcher.patches import RUN_ID
from gradwatch.recording.courier_process import child_environment
from gradwatch.tracking.create_run import TAKEN

SECONDS = 45.0  # how long a script that needs the run waits for a slow server
TRACKING_URI = "MLFLOW_TRACKING_URI"


class Reservation:
    """An MLflow run that a child process is creating; `target` is what a manifest notes of it."""

    def __init__(self, order: Mapping[str, Any], export: bool) -> None:
        self.target: dict[str, Any] | None = None
        self.problem = ""
        self.released = False
        self._export, self._abandoned, self._answering = export, False, threading.Lock()
        self._child = _child("create", order)
        self._thread = threading.Thread(target=self._listen, name="gradwatch-advance", daemon=True)
        self._thread.start()

    @property
    def ready(self) -> bool:
        """Whether it is known how the creation went."""
        return not self._thread.is_alive()

    def wait(self, seconds: float = SECONDS) -> dict[str, Any] | None:
        """The target, once it is there; None when there is none to be had."""
        self._thread.join(seconds)
        return self.target

    def abandon(self) -> None:
        """The script is over: a run that is not there yet is not wanted any more; its creator ends, or deletes it."""
        with self._answering:
            self._abandoned = True
        if self.target is None and self._child is not None:
            self._child.terminate()

    def settle(self, status: str) -> None:
        """Delete the run if it holds nothing, else give it an end, in a process of its own. For a run never watched.

        Waits for nothing: a run that is still being created is deleted by its creator, whom nobody answers any more.
        """
        self.abandon()
        if self.target is not None:
            _child("settle", {**self.target, "status": status})

    def _listen(self) -> None:
        if self._child is None:
            self.problem = "no process could be started"
            return
        answer = _answer(self._child)
        with self._answering:
            if not self._abandoned:
                self._take(answer)
        self._child.communicate("" if self.target is None else TAKEN)
        if not (self.target or self.problem):
            self.problem = f"the process that creates it ended with exit code {self._child.returncode}"

    def _take(self, answer: dict[str, Any]) -> None:
        self.problem = answer.pop("problem", "")
        if self.problem or not answer:
            return
        full = answer.pop("full_uri")
        self.target = answer
        if self._export:
            os.environ.setdefault(TRACKING_URI, full)  # absolute: the script may change its directory
            os.environ.setdefault(RUN_ID, answer["run_id"])


def _answer(child: subprocess.Popen[str]) -> dict[str, Any]:
    """The line of JSON that it writes, whatever MLflow writes before; empty where it ended without."""
    assert child.stdout is not None
    for line in child.stdout:
        with contextlib.suppress(ValueError):
            return dict(json.loads(line))
    return {}


def _child(what: str, order: Mapping[str, Any]) -> subprocess.Popen[str] | None:
    """Start the child: it is not of the script's process group, so that Ctrl-C ends the script alone."""
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "gradwatch.tracking.create_run", what, json.dumps(order)],
            stdin=subprocess.PIPE if what == "create" else subprocess.DEVNULL,
            stdout=subprocess.PIPE if what == "create" else subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=child_environment(),
            start_new_session=True,
            text=True,
        )
    except OSError:
        return None
