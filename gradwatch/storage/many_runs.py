"""Does the same with each of many runs, in as many processes as there are CPUs once it takes long."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

from gradwatch.errors import RunError

Item = TypeVar("Item")
Made = TypeVar("Made")

ALONE_SECONDS = 2.0  # before others are started, which need a second of processor time each to begin
MOST = 32  # processes: each holds one run
CHUNK = 4  # runs that a process is handed at a time


def each(items: Sequence[Item], make: Callable[[Item], Made]) -> Iterator[Made]:
    """What `make` makes of each, in their order; a function of a module, as other processes must find it.

    Raises:
        RunError: one of the processes was killed.
        Exception: what `make` raises.
    """
    done, began = 0, time.monotonic()
    while done < len(items) and (cpus() == 1 or time.monotonic() - began < ALONE_SECONDS):
        yield make(items[done])
        done += 1
    left = items[done:]
    if not left:
        return
    count = min(cpus(), MOST, -(-len(left) // CHUNK))
    # not forked: this process has threads, of Arrow at the least
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), initializer=_begin)
    try:
        with ctrl_c_waits():
            made = pool.map(make, left, chunksize=CHUNK)
        yield from made
    except BrokenProcessPool:
        raise RunError(
            f"a process that read runs was killed, as the system does when memory runs out: {count} of them held a run "
            f"each; read fewer runs at a time, or use fewer CPUs (taskset)"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def ctrl_c_waits() -> Iterator[None]:
    """Around the start of processes that leave Ctrl-C to this one once they are up: until then it waits, in them, which
    inherit that, and in this thread. Where a platform has no masks of signals nothing waits.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # it unblocks what it blocks
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def cpus() -> int:
    """The number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _begin() -> None:
    """A process of the pool: it leaves Ctrl-C to its parent, and the other CPUs to the others."""
    import pyarrow as pa

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    pa.set_cpu_count(1)


def _end_with_parent() -> None:
    """A parent that was killed hands out nothing more, and the executor's processes would wait for it for good."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
