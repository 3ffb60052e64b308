"""The end of a process from outside: SIGTERM and SIGHUP close its Watches first; a fork leaves them to its parent.

Both signals end Python at once, and nothing that `atexit` holds is run. So as long as a Watch is open they are handled
here, if nobody else handles them: the Watches are closed, and then the process ends by the same signal, with the exit
code that it would have had. A handler that the program set, before or later, is left alone and decides alone.

Python runs handlers on the main thread, between two instructions. While that is inside a C call which does not return
(a collective whose other rank hangs), a thread hears of the signal, by the descriptor that Python writes it to at once,
and does the same; rows on a device, which may be what hangs, it leaves there. Where the main thread does close the
Watches, and waits for such a device, a thread ends the process all the same. Either way it ends within ten seconds.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import functools
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from gradwatch.measure.foreach import can_be_read
from gradwatch.recording import open_watches

log = logging.getLogger("gradwatch")

SIGNALS = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
BUSY = (
    "gradwatch.recording.recorder",
    "gradwatch.recording.watch",
    "gradwatch.storage.writer",
)  # what must not be cut in two
RETRY, PATIENCE = 0.02, 3.0  # seconds between two tries, and after which it is cut all the same
STUCK, CLOSING = 1.0, 5.0  # seconds in which the main thread has to answer a signal, and to have closed the Watches
WRITING, DRAINING = 2.0, 3.0  # seconds that a thread gives the disk, and closing as a whole, when it ends the process

_since: list[float] = []  # when the first signal came, if one has
_pipe: list[int] = []  # its two ends, once a thread reads what Python writes at a signal
_overtaking = threading.Lock()  # held for good by the thread that ends the process


def arm() -> None:
    """Handle the signals, where the default would. Only the main thread can."""
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, _end)
        if _is_armed():
            _listen(True)


def disarm() -> None:
    """Give the signals back, once no Watch is open."""
    if not open_watches.watches and threading.current_thread() is threading.main_thread():
        _restore()


def _restore() -> None:
    _listen(False)
    for number in SIGNALS:
        if signal.getsignal(number) is _end:
            signal.signal(number, signal.SIG_DFL)


def is_ending() -> bool:
    """Whether a signal is ending this process: then nobody waits for what may hang."""
    return bool(_since) or _overtaking.locked()


def _is_armed() -> bool:
    return any(signal.getsignal(number) is _end for number in SIGNALS)


def _end(number: int, frame: FrameType | None) -> None:
    if signal.getsignal(number) is not _end:
        return  # called by a handler that was set later
    if not _since:
        _thread.start_new_thread(_insist, (number,))
    _since.append(time.monotonic())
    if _overtaking.locked():
        time.sleep(CLOSING + WRITING)  # it ends before
    if _is_busy(frame) and time.monotonic() - _since[0] < PATIENCE:
        _thread.start_new_thread(_again, (number,))  # threading.Thread takes a lock that may be held just now
        return
    _close_all(number)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _close_all(number: int, on_host: bool = False) -> None:
    """Close the Watches; with `on_host` those alone whose rows are in the host's own memory."""
    for watch in tuple(open_watches.watches):
        if on_host and not can_be_read(watch._recorder.ring.buffer):
            continue
        try:
            watch.close("KILLED", timeout=0)
        except Exception:
            log.exception("gradwatch: a Watch could not be closed after %s", signal.Signals(number).name)


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


def _listen(on: bool) -> None:
    """Have Python write signals to the pipe, or no more. A descriptor of somebody else's (asyncio's) stays."""
    if sys.platform == "win32":
        return  # it takes nothing but sockets there
    if on and not _pipe:
        _pipe.extend(os.pipe())
        try:
            os.set_blocking(_pipe[1], False)
            threading.Thread(target=_hear, args=(_pipe[0],), name="gradwatch-signals", daemon=True).start()
        except BaseException as error:
            read, write = _pipe
            _pipe.clear()
            os.close(write)  # a thread that was started all the same sees that, and closes its own end
            if not isinstance(error, RuntimeError):
                raise
            os.close(read)  # no more threads may be started: then only the main thread hears of a signal
    if _pipe:
        set_fd = functools.partial(signal.set_wakeup_fd, warn_on_full_buffer=False)
        (old,) = map(set_fd, [_pipe[1] if on else -1])  # `map`: no Ctrl-C comes before it is known what was there
        if old not in (-1, _pipe[1]):
            signal.set_wakeup_fd(old)


def _hear(read: int) -> None:
    """On a thread: end the process by a signal that the main thread does not answer."""
    while numbers := os.read(read, 64):
        for number in numbers:
            if number in SIGNALS and signal.getsignal(number) is _end and not _since:
                time.sleep(STUCK)
                if not _since:
                    _take_over(number, closes=True)
    os.close(read)


def _insist(number: int) -> None:
    """On a thread: end the process if the main thread, which closes the Watches, is not done in time."""
    time.sleep(CLOSING)
    _take_over(number, closes=False)


def _take_over(number: int, closes: bool) -> None:
    """As `_end`, bounded: what the main thread waits for may keep a Watch from closing. No device is asked: it may be
    what hangs.
    """
    if not _overtaking.acquire(blocking=False):
        return
    _within(WRITING, _flush_all)
    if closes:
        _within(DRAINING, lambda: _close_all(number, on_host=True))
    _within(WRITING, _close_writers)
    ctypes.CDLL(None).signal(number, ctypes.c_void_p(None))  # to the default: signal.signal is the main thread's alone
    os.kill(os.getpid(), number)


def _within(seconds: float, act: Callable[[], None]) -> None:
    """Do it on a thread, and wait so long at most."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(seconds)


def _flush_all() -> None:
    for watch in tuple(open_watches.watches):
        with contextlib.suppress(Exception):
            watch._flush()  # what has left the device already


def _close_writers() -> None:
    for watch in tuple(open_watches.watches):
        with contextlib.suppress(Exception):
            watch._writer.close("KILLED")


def _forking() -> None:
    """A signal to the child, before it is told that it is one, must not be heard in the parent."""
    if threading.current_thread() is threading.main_thread():
        _listen(False)


def _has_forked() -> None:
    if _is_armed() and threading.current_thread() is threading.main_thread():
        _listen(True)


def _forked() -> None:
    """In a forked process (a data loader's worker): nothing is watched, and a signal ends it as it ends any other."""
    for watch in tuple(open_watches.watches):
        watch._abandon()
    _restore()
    _pipe.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_forking, after_in_parent=_has_forked, after_in_child=_forked)
