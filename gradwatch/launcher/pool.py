"""Runs tasks, a few at a time. What a slot is (a process here, a task of a cluster) is its own affair."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any

POLL_SECONDS = 0.5


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


@dataclass(frozen=True)
class Resources:
    """What each task asks a cluster for: CPUs, GPUs (a share of one below 1), bytes of memory; None is not said."""

    cpus: int | None = None
    gpus: float | None = None
    memory: int | None = None


@dataclass(frozen=True)
class Control:
    """What the pool and the slot of a task tell each other."""

    begun: Callable[[], None]  # for the slot to call, once the task is at work
    stop: threading.Event  # set: end the task, and give it the time to close what it has open
    hurry: threading.Event  # set: no more time


Slot = Callable[[Task, Control], End]  # runs one task at a time, in a thread
Moment = tuple[set[int], dict[int, End]]
Pool = Callable[[Iterable[Task]], Generator[Moment, None, None]]


def run_all(tasks: Iterable[Task], slots: Sequence[Slot]) -> Generator[Moment, None, None]:
    """Run the tasks, as many at a time as there are slots; one is taken from `tasks` when a slot is free, not before.

    Yields the numbers of the tasks at work, and the ends of those that ended, about twice a second. Whoever stops
    early (Ctrl-C, SIGTERM, `close()`) has all tasks ended first.
    """
    with _terminable() as told, ThreadPoolExecutor(len(slots), thread_name_prefix="gradwatch-sweep") as executor:
        crew, coming = _Crew(slots), enumerate(tasks)
        left: dict[Future[End], int] = {}
        try:
            while True:
                while len(left) < len(slots) and (found := next(coming, None)) is not None:
                    left[executor.submit(crew.work, *found)] = found[0]
                if not left:
                    return
                done, _ = wait(left, POLL_SECONDS, FIRST_COMPLETED)
                if told.is_set():
                    raise KeyboardInterrupt
                yield set(crew.working), {left.pop(future): future.result() for future in done}
        finally:
            _end(crew, executor)


def _end(crew: _Crew, executor: ThreadPoolExecutor) -> None:
    crew.stop.set()
    try:
        executor.shutdown(cancel_futures=True)
    except KeyboardInterrupt:  # a second Ctrl-C: no more patience
        crew.hurry.set()
        executor.shutdown(cancel_futures=True)
        raise


class _Crew:
    def __init__(self, slots: Sequence[Slot]) -> None:
        self.stop, self.hurry = threading.Event(), threading.Event()
        self.working: set[int] = set()
        self.free: SimpleQueue[Slot] = SimpleQueue()
        for slot in slots:
            self.free.put(slot)

    def work(self, number: int, task: Task) -> End:
        """Run one task in a free slot. In a thread of the executor."""
        slot = self.free.get()
        began = time.monotonic()
        try:
            if self.stop.is_set():
                end = End(None, 0.0, "interrupted")
            else:
                end = slot(task, Control(partial(self.working.add, number), self.stop, self.hurry))
        except OSError as error:
            end = End(None, time.monotonic() - began, problem=f"{task.command[0]}: {error.strerror}")
        try:
            task.at_end(end)
            return end
        finally:
            self.working.discard(number)
            self.free.put(slot)


@contextlib.contextmanager
def _terminable() -> Iterator[threading.Event]:
    """SIGTERM and SIGHUP end us as Ctrl-C does, so that no training is left behind.

    The event is set then: an exception alone is lost where it is raised in a callback of C code, or in some imports.
    """
    told = threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> Any:
        told.set()
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield told
        return
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
