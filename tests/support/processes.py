"""Which processes there are: whoever started them, whatever became of that one."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def start_sweep(*args):
    """`gradwatch sweep` as a process of its own, as a shell starts it."""
    return subprocess.Popen(
        [sys.executable, "-m", "gradwatch", "sweep", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "220"},
        start_new_session=True,
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )


def processes_of(mark):
    """The living processes that have the text `mark` in their command line, environment or working directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            texts = [(process / name).read_bytes() for name in ("cmdline", "environ")]  # of a zombie both are empty
            texts.append(os.readlink(process / "cwd").encode())
            if int(process.name) != os.getpid() and any(str(mark).encode() in text for text in texts):
                found.append(int(process.name))
    return found


def kill(pids):
    """End what may have ended by itself."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def all_ended(mark, seconds=60):
    """Wait until there is no process of `mark`; if some stay it ends them, fails, and says which they were."""
    deadline = time.monotonic() + seconds
    while left := processes_of(mark):
        if time.monotonic() > deadline:
            words = [(Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ") for pid in left]
            kill(left)
            pytest.fail(f"still there: {words}")
        time.sleep(0.05)
