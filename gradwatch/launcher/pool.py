"""Runs commands, a few at a time, each in a process group of its own that ends with this process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any

from gradwatch.launcher.fork_server import Forked, can_fork
from gradwatch.launcher.reaper import SIGNALS, Reaper

POLL_SECONDS = 0.5
GRACE_SECONDS = 30.0  # between SIGINT, SIGTERM and SIGKILL: a training closes its run, MLflow's clients have retries


@dataclass(frozen=True)
class Task:
    """A command, what its environment has beside ours, and the file that gets its output. Seconds, or no limit."""

    command: Sequence[str]
    environment: Mapping[str, str]
    output: Path
    timeout: float | None = None
    at_end: Callable[[End], None] = lambda end: None  # in a thread, whether anybody still listens or not
    warm: bool = False  # whether `python -m gradwatch ...` may begin in a process that has imported torch already
    folder: Path | None = None  # where it begins; here if not said


@dataclass(frozen=True)
class End:
    """How a command ended: its exit code (None: it could not be started), and whether we ended it, and why."""

    code: int | None
    seconds: float
    cut: str = ""  # `timeout` or `interrupted`
    problem: str = ""


def run_all(tasks: Sequence[Task], slots: Sequence[Mapping[str, str]]) -> Generator[Moment, None, None]:
    """Run the tasks, as many at a time as there are slots; a slot is what it adds to a task's environment.

    Yields the numbers of the tasks at work, and the ends of those that ended, about twice a second. Whoever stops
    early (Ctrl-C, SIGTERM, `close()`) has all processes ended first: SIGINT, later SIGTERM, later SIGKILL. Where this
    process is killed, its `Reaper` does the same.
    """
    with (
        _terminable(),
        Reaper(GRACE_SECONDS) as reaper,
        ThreadPoolExecutor(len(slots), thread_name_prefix="gradwatch-sweep") as pool,
    ):
        crew = _Crew(slots, reaper)
        try:
            left = {pool.submit(crew.work, number, task): number for number, task in enumerate(tasks)}
            while left:
                done, _ = wait(left, POLL_SECONDS, FIRST_COMPLETED)
                yield set(crew.working), {left.pop(future): future.result() for future in done}
        finally:
            _end(crew, pool)


def _end(crew: _Crew, pool: ThreadPoolExecutor) -> None:
    crew.stop.set()
    try:
        pool.shutdown(cancel_futures=True)
    except KeyboardInterrupt:  # a second Ctrl-C: no more patience
        crew.hurry.set()
        pool.shutdown(cancel_futures=True)
        raise


Moment = tuple[set[int], dict[int, End]]


class _Crew:
    def __init__(self, slots: Sequence[Mapping[str, str]], reaper: Reaper) -> None:
        self.reaper = reaper
        self.stop, self.hurry = threading.Event(), threading.Event()
        self.working: set[int] = set()
        self.free: SimpleQueue[Mapping[str, str]] = SimpleQueue()
        for slot in slots:
            self.free.put(slot)

    def work(self, number: int, task: Task) -> End:
        """Run one task in a free slot. In a thread of the pool."""
        slot = self.free.get()
        self.working.add(number)
        began = time.monotonic()
        try:
            end = self._run(task, slot, began)
        except OSError as error:
            end = End(None, time.monotonic() - began, problem=f"{task.command[0]}: {error.strerror}")
        try:
            task.at_end(end)
            return end
        finally:
            self.working.discard(number)
            self.free.put(slot)

    def _run(self, task: Task, slot: Mapping[str, str], began: float) -> End:
        if self.stop.is_set():
            return End(None, 0.0, "interrupted")
        process = _start(task, {**os.environ, **slot, **task.environment})
        self.reaper.add(process.pid)
        try:
            return self._wait(process, task, began)
        finally:
            self.reaper.discard(process.pid)

    def _wait(self, process: subprocess.Popen[bytes] | Forked, task: Task, began: float) -> End:
        cut = ""
        while not cut:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return End(process.wait(0.1), time.monotonic() - began)
            late = task.timeout is not None and time.monotonic() - began > task.timeout
            cut = "interrupted" if self.stop.is_set() else "timeout" if late else ""
        self._finish(process)
        return End(process.returncode, time.monotonic() - began, cut)

    def _finish(self, process: subprocess.Popen[bytes] | Forked) -> None:
        for number in SIGNALS:
            _signal_group(process, number)
            deadline = time.monotonic() + GRACE_SECONDS
            while process.poll() is None and time.monotonic() < deadline and not self.hurry.is_set():
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


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM and SIGHUP end us as Ctrl-C does, so that no training is left behind."""

    def interrupt(number: int, frame: FrameType | None) -> Any:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
