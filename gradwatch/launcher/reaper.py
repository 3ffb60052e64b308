"""Ends the processes of a process that is gone: `kill -9` of a sweep leaves no training behind.

A process of its own, which listens on a pipe that only its maker holds. However that one ends, the kernel closes the
pipe, and what is still there is ended. `python -m gradwatch.launcher.reaper SECONDS SIGNAL` reads `+GROUP` and
`-GROUP` lines.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from types import TracebackType

from gradwatch.recording.courier_process import child_environment

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


class Reaper:
    """Ends process groups, each led by the process that it is named after, when this process is gone or closes it.

    `grace` are the seconds between SIGINT, SIGTERM and SIGKILL, of which `first` is sent first. Where no process can be
    started, nothing is guaranteed.
    """

    def __init__(self, grace: float, first: signal.Signals = signal.SIGINT) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gradwatch.launcher.reaper", str(grace), first.name],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=child_environment(),
                start_new_session=True,  # the terminal's Ctrl-C is not for it
            )

    def add(self, group: int) -> None:
        """From now on the group ends with this process."""
        self._tell(f"+{group}\n")

    def discard(self, group: int) -> None:
        """The group has ended: its number may be another's soon."""
        self._tell(f"-{group}\n")

    def close(self) -> None:
        """End the groups that are left, and wait for it."""
        if self._process is not None:
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._process.wait()

    def __enter__(self) -> Reaper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tell(self, line: str) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):  # somebody ended it
                os.write(self._process.stdin.fileno(), line.encode())


def main(grace: float, first: str) -> None:
    """The process: listens until its maker is gone, then ends the groups."""
    with contextlib.suppress(OSError):  # it leads a session already
        os.setsid()  # who kills the whole group of the maker does not mean this
    groups: set[int] = set()
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    for number in SIGNALS[SIGNALS.index(signal.Signals[first]) :]:
        for group in groups:
            send(group, number)
        deadline = time.monotonic() + grace
        while groups and time.monotonic() < deadline:
            groups = {group for group in groups if send(group, 0)}
            time.sleep(0.05)


def send(group: int, number: int) -> bool:
    """Send the signal to a group, or to the process that is about to lead it; False where there is neither."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            with contextlib.suppress(PermissionError):
                kill(group, number)
            return True
    return False


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2])
