"""Which process records a run, and whether it is still there: told apart from a later process of the same number."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from gradwatch.errors import WatchError
from gradwatch.history import Run
from gradwatch.storage.folder import now_iso
from gradwatch.storage.manifest import check_run


def here() -> dict[str, Any]:
    """This process, as the manifest notes it: `pid`, `host`, and when it started (`pid_started`, None if unknown)."""
    return {"pid": os.getpid(), "host": socket.gethostname(), "pid_started": _started(os.getpid())}


def is_gone(pid: int | None, host: str | None, started: str | None = None) -> bool:
    """Whether the process ran on this host and has ended. One of another host cannot be seen: it counts as there."""
    if pid is None or host != socket.gethostname() or _is_elsewhere(started):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it belongs to somebody else
    if _state(pid) == "Z":  # killed, but its parent has not asked for its exit code yet
        return True
    now = _started(pid)
    return started is not None and now is not None and not f"{now}/".startswith(f"{started}/")


def _started(pid: int) -> str | None:
    """The boot of the machine, the clock tick since then at which the process began, and the namespace of its number,
    as of a container; None where /proc lacks it.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{_fields(pid)[19]}/{os.readlink('/proc/self/ns/pid')}"
    except (OSError, IndexError):
        return None


def _is_elsewhere(started: str | None) -> bool:
    """Whether a process that `_started` so has its number in another namespace of this boot: it cannot be seen."""
    there, here = ((text or "").split("/") for text in (started, _started(os.getpid())))
    return len(there) == len(here) == 3 and there[0] == here[0] and there[2] != here[2]  # earlier versions say two


def _state(pid: int) -> str | None:
    try:
        return _fields(pid)[0]
    except (OSError, IndexError):
        return None


def _fields(pid: int) -> list[str]:
    """The fields of proc_pid_stat(5) from the third, `state`, on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def described(**fields: Any) -> Run:
    """The manifest of a run of this process that begins now.

    Raises:
        WatchError: it could be written, and not be read again: more params than it has room for, endless names.
    """
    run = Run(created=now_iso(), first_step=0, **here(), **fields)
    try:
        check_run(run)
    except ValueError as error:
        raise WatchError(f"a run cannot be described so: {error}") from error
    return run
