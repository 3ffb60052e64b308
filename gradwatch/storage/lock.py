"""One run, one writer: a lock on the run's folder. It ends with the process that holds it, however that ends.

It is an advisory lock (`flock`) on an open file, so the kernel lets go of it after `kill -9` too. On NFS it holds
between hosts if the mount supports locks. Where a file system supports none, there is no lock, and one log line.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import os
import socket
import time
from datetime import datetime
from pathlib import Path

from gradwatch.errors import RunError
from gradwatch.sanitize import refuse_links

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("gradwatch")

LOCK = "writer.lock"
PATIENCE = 1.0  # seconds: a writer that was told to end may need a moment


class Lock:
    """The lock of the run in `folder`, taken when this is made.

    Raises:
        RunError: another writer has it, or a link lies in its place.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: io.FileIO | None = None  # closed with its last reference: an interrupt leaves none open
        self.renew()

    def renew(self) -> None:
        """Take it, or take it anew after the folder was removed."""
        self.abandon()
        path, deadline = self.folder / LOCK, time.monotonic() + PATIENCE
        refuse_links([path])
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        # `map`: between the two calls no Python is run, so no Ctrl-C comes before somebody holds the descriptor
        (file,) = map(io.FileIO, map(os.open, [path], [flags], [0o644]), ["r+"])
        self._file = file
        while fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    self.abandon()
                    raise RunError(_refusal(self.folder, path)) from None
                time.sleep(0.05)
            except OSError as error:
                log.warning("gradwatch: %s cannot be locked (%s): see that one process at a time records there",
                            self.folder, errno.errorcode.get(error.errno or 0, error))  # fmt: skip
                break
        file.truncate(0)
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": f"{datetime.now():%Y-%m-%d %H:%M:%S}"}
        file.write(json.dumps(holder).encode())

    def release(self) -> None:
        """Let go of it."""
        if self._file is not None and fcntl is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_UN)  # at once, though a forked process may have the file open
        self.abandon()

    def abandon(self) -> None:
        """Close the file; a lock that another process holds by the same file stays."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _refusal(folder: Path, path: Path) -> str:
    try:
        holder = json.loads(path.read_text())
        who = f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
        if holder["pid"] == os.getpid() and holder["host"] == socket.gethostname():
            who = "a Watch of this process"
    except (OSError, ValueError, KeyError, TypeError):
        who = "another process"
    return (
        f"{folder} is being recorded to by {who}, and a run has one writer: close that Watch or end that process, or "
        "record a run of its own (watch() without load_state_dict)"
    )
