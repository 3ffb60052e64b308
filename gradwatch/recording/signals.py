"""The end of a process from outside: SIGTERM and SIGHUP close its Watches first; a fork leaves them to its parent.

Both signals end Python at once, and nothing that `atexit` holds is run. So as long as a Watch is open they are handled
here, if nobody else handles them: the Watches are closed, and then the process ends by the same signal, with the exit
code that it would have had. A handler that the program set, before or later, is left alone and decides alone.
"""

from __future__ import annotations

import _thread
import logging
import os
import signal
import threading
import time
from types import FrameType

from gradwatch.recording import open_watches

log = logging.getLogger("gradwatch")

SIGNALS = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
BUSY = (
    "gradwatch.recording.recorder",
    "gradwatch.recording.watch",
    "gradwatch.storage.writer",
)  # what must not be cut in two
RETRY, PATIENCE = 0.02, 10.0  # seconds between two tries, and after which it is cut all the same

_since: list[float] = []  # when the first signal came, if one has


def arm() -> None:
    """Handle the signals, where the default would. Only the main thread can."""
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, _end)


def disarm() -> None:
    """Give the signals back, once no Watch is open."""
    if not open_watches.watches and threading.current_thread() is threading.main_thread():
        _restore()


def _restore() -> None:
    for number in SIGNALS:
        if signal.getsignal(number) is _end:
            signal.signal(number, signal.SIG_DFL)


def _end(number: int, frame: FrameType | None) -> None:
    if signal.getsignal(number) is not _end:
        return  # called by a handler that was set later
    _since.append(time.monotonic())
    if _is_busy(frame) and time.monotonic() - _since[0] < PATIENCE:
        _thread.start_new_thread(_again, (number,))  # threading.Thread takes a lock that may be held just now
        return
    for watch in tuple(open_watches.watches):
        try:
            watch.close("KILLED", timeout=0)
        except Exception:
            log.exception("gradwatch: a Watch could not be closed after %s", signal.Signals(number).name)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _is_busy(frame: FrameType | None) -> bool:
    """Whether the signal came while a row was handed over, or a Watch was being closed."""
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith(BUSY):
            return True
        frame = frame.f_back
    return False


def _again(number: int) -> None:
    time.sleep(RETRY)
    os.kill(os.getpid(), number)


def _forked() -> None:
    """In a forked process (a data loader's worker): nothing is watched, and a signal ends it as it ends any other."""
    for watch in tuple(open_watches.watches):
        watch._abandon()
    _restore()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
