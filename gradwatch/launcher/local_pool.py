"""Runs tasks on this machine, each in a process group of its own that ends with this process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from functools import partial

from gradwatch.launcher.fork_server import Forked, can_fork
from gradwatch.launcher.pool import Control, End, Moment, Task, run_all
from gradwatch.launcher.reaper import SIGNALS, Reaper

GRACE_SECONDS = 30.0  # between SIGINT, SIGTERM and SIGKILL: a training closes its run, MLflow's clients have retries


def run_here(tasks: Iterable[Task], slots: Sequence[Mapping[str, str]]) -> Generator[Moment, None, None]:
    """Run the tasks as `run_all` does; a slot is what it adds to a task's environment.

    Processes are ended by SIGINT, later SIGTERM, later SIGKILL. Where this process is killed, its `Reaper` does the
    same.
    """
    with Reaper(GRACE_SECONDS) as reaper:
        yield from run_all(tasks, [partial(run_process, reaper, {**os.environ, **slot}) for slot in slots])


def run_process(reaper: Reaper, environment: Mapping[str, str], task: Task, control: Control) -> End:
    """Run a task in a process with this environment and its own, to its end.

    Raises:
        OSError: it cannot be started.
    """
    began = time.monotonic()
    process = _start(task, {**environment, **task.environment})
    control.begun()
    reaper.add(process.pid)
    try:
        return _wait(process, task, control, began)
    finally:
        reaper.discard(process.pid)


def _wait(process: subprocess.Popen[bytes] | Forked, task: Task, control: Control, began: float) -> End:
    cut = ""
    while not cut:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return End(process.wait(0.1), time.monotonic() - began)
        late = task.timeout is not None and time.monotonic() - began > task.timeout
        cut = "interrupted" if control.stop.is_set() else "timeout" if late else ""
    _finish(process, control)
    return End(process.returncode, time.monotonic() - began, cut)


def _finish(process: subprocess.Popen[bytes] | Forked, control: Control) -> None:
    for number in SIGNALS:
        _signal_group(process, number)
        deadline = time.monotonic() + GRACE_SECONDS
        while process.poll() is None and time.monotonic() < deadline and not control.hurry.is_set():
            time.sleep(0.05)
        if process.poll() is not None:
            break
    _signal_group(process, signal.SIGKILL)  # what a launcher left behind
    process.wait()


def _start(task: Task, environment: dict[str, str]) -> subprocess.Popen[bytes] | Forked:
    """The task's process: the terminal's Ctrl-C reaches us alone, and we end its whole group."""
    if task.warm and can_fork():
        return Forked(task.command, environment, task.output)
    with open(task.output, "wb") as output:
        return subprocess.Popen(
            list(task.command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=task.folder,
            start_new_session=True,
        )


def _signal_group(process: subprocess.Popen[bytes] | Forked, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
