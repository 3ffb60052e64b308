"""The courier's process, as a training sees it: started at the first step, restarted if killed, awaited at the end."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from gradwatch.errors import RunError
from gradwatch.sanitize import refuse_links
from gradwatch.storage.delivery_cursor import is_done, read_cursor
from gradwatch.storage.places import working_directory

# The courier is not a rank: it must not look like one to whatever it imports.
_RANK_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_NAME",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)

log = logging.getLogger("gradwatch")

CLOSE_SECONDS = 10.0  # how long close() waits for a courier that has begun, of a run shorter than LONG_RUN seconds,
LONG_RUN = 60.0
LAST_SECONDS = 1.5  # and of a longer one, for which the courier has all but the end
RESTART_SECONDS = 30.0  # between two couriers, when they are killed one after the other


# a run's folder, and the working directory in which it began
Launch: TypeAlias = Callable[[Path, str | None], subprocess.Popen[bytes] | None]


class CourierProcess:
    """The courier of one Watch, and beside it, where `board` is, the process that writes for TensorBoard.

    Nothing here waits, but for `wait`; Watches that share couriers give a `launch`.
    """

    def __init__(self, wanted: bool, board: bool = False, launch: Launch | None = None) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._wanted, self._launch, self._started_at = wanted, launch, 0.0
        self._made, self._place = time.monotonic(), working_directory()
        self._board = CourierProcess(True, launch=start_board) if board else None

    def start(self, folder: Path) -> None:
        """Start the courier, once."""
        if self._wanted:
            self._start(folder)
            self._wanted = False  # if this is interrupted there may be two of them, of which one waits; never none
        if self._board is not None:
            self._board.start(folder)

    def restart_if_killed(self, folder: Path, at_once: bool = False) -> None:
        """Start another courier in the place of one that was killed; one that ended by itself would end again."""
        if was_killed(self.process) and (at_once or time.monotonic() - self._started_at > RESTART_SECONDS):
            self._start(folder)
        if self._board is not None:
            self._board.restart_if_killed(folder, at_once)

    def wait(
        self, folder: Path, steps: range, timeout: float | None = None, to: str = ""
    ) -> tuple[dict[str, Any], str]:
        """The courier's cursor once all `steps` of the run, by their numbers, are delivered, `timeout` seconds later at
        most, and in words what is missing then, and where it will appear (`to`).

        By default it waits as long as is decent after a training of that length, and not at all for a courier that has
        not begun: one that is still importing MLflow, as after a training of a few seconds.
        """
        if timeout is None:
            decent = CLOSE_SECONDS if time.monotonic() - self._made < LONG_RUN else LAST_SECONDS
            timeout = decent if read_cursor(folder) else 0.0
        elif timeout <= 0:
            return {}, ""
        if self.process is None:
            return {}, ""
        cursor = wait_delivered(folder, timeout, self.process)
        if cursor["done"]:
            return cursor, ""
        due = max(int(cursor.get("next_step", 0)), steps.start)
        missing = "the report is" if due >= steps.stop else f"{steps.stop - due:,} of {len(steps):,} steps are"
        alone = f"the courier goes on by itself{f', to {to}' if to else ''}, and "
        goes_on = alone if self.process.poll() is None else ""
        return cursor, f"{missing} not in MLflow yet; {goes_on}gradwatch sync {folder} makes sure of it"

    def _start(self, folder: Path) -> None:
        self._started_at = time.monotonic()
        self.process = (self._launch or start_courier)(folder, self._place)


def start_courier(folder: Path, place: str | None = None) -> subprocess.Popen[bytes] | None:
    """Start the process that delivers `folder` (a run, or a directory of runs) to MLflow while the training goes on.

    It is detached, in the working directory `place` (MLflow's default store is relative to it; by default this
    process' own, as where `place` is gone), and logs to `FOLDER/courier.log`. Returns None, with one log line, when it
    cannot be started.
    """
    return _start(folder, "sync", "courier.log", "gradwatch sync {} delivers the run later", place)


def start_diagnosis(folder: Path) -> subprocess.Popen[bytes] | None:
    """Start the process that diagnoses the run in `folder` while it goes on: of a run that has no courier to do it.

    It is detached like a courier, and logs to `FOLDER/check.log`.
    """
    return _start(folder, "check", "check.log", "gradwatch check {} diagnoses the run")


def start_board(folder: Path, place: str | None = None) -> subprocess.Popen[bytes] | None:
    """Start the process that writes the run in `folder` for TensorBoard as it goes on; it logs to `tensorboard.log`."""
    again = "gradwatch export --to tensorboard --follow {} writes the event file later"
    return _start(folder, "export", "tensorboard.log", again, place, "--to", "tensorboard")


def _start(
    folder: Path, command: str, output: str, instead: str, place: str | None = None, *options: str
) -> subprocess.Popen[bytes] | None:
    """`gradwatch COMMAND --follow FOLDER` as a detached process; None, and a log line that says what to do instead."""
    try:
        refuse_links([folder / output])
        if not sys.executable:
            raise RunError("the interpreter does not know its own path")
        with open(folder / output, "ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "gradwatch", command, *options, "--follow", str(Path(folder).resolve())],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=child_environment(),
                cwd=place if place is not None and os.path.isdir(place) else None,
                start_new_session=True,
            )
    except (OSError, RunError) as error:
        log.warning("gradwatch: cannot start %s (%s); %s", Path(output).stem, error, instead.format(folder))
        return None
    # Reaped when it ends: no zombie in a long notebook, no ResourceWarning when the handle is dropped.
    with contextlib.suppress(RuntimeError):  # no more threads may be started: a zombie, then
        threading.Thread(target=process.wait, name=f"gradwatch-{command}", daemon=True).start()
    return process


def was_killed(process: subprocess.Popen[bytes] | None) -> bool:
    """Whether a signal ended it. Costs nothing: the thread that reaps it waits, this one only asks."""
    return process is not None and (process.poll() or 0) < 0


def wait_delivered(folder: Path, timeout: float, courier: subprocess.Popen[bytes] | None = None) -> dict[str, Any]:
    """Wait until everything of the run is in MLflow, at most `timeout` seconds, or until `courier` has ended.

    Returns the courier's cursor: `done` tells whether it is, `url` where to look.
    """
    deadline = time.monotonic() + timeout
    while True:
        running = courier is None or courier.poll() is None
        cursor = read_cursor(folder)
        if is_done(cursor, folder) or not running or time.monotonic() >= deadline:
            return {**cursor, "done": is_done(cursor, folder)}
        time.sleep(0.1)


def child_environment() -> dict[str, str]:
    """The environment of a process that serves a training: it is no rank, and imports this gradwatch."""
    dropped = [name for name in os.environ if name in _RANK_VARIABLES or name.startswith("TORCHELASTIC_")]
    env = {name: value for name, value in os.environ.items() if name not in dropped}
    env["PYTHONSAFEPATH"] = "1"  # a user's queue.py or mlflow.py in the working directory must not be imported
    root = str(Path(__file__).resolve().parents[2])
    if root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [root, env.get("PYTHONPATH")]))
    return env
