"""What gradwatch raises and says: each message says what was found, what was wanted and what to do."""

import contextlib
import importlib.util
import logging
import re
import sys
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import Any

log = logging.getLogger("gradwatch")
_NO_ROOM = re.compile("failed to map segment|cannot allocate memory", re.IGNORECASE)  # in the words of the loader
_NOT_THE_PROGRAM = ("gradwatch.", "torch.", "contextlib")


def tell(text: str) -> None:
    """One line on stderr; of a program that has closed its stderr, to nobody."""
    if sys.stderr is not None:  # print() would take stdout instead
        with contextlib.suppress(OSError, ValueError):
            print(text, file=sys.stderr)


def status_of(error: BaseException | type[BaseException] | None) -> str:
    """How a training ended that raised `error`, as MLflow calls it: KILLED is what somebody from outside did."""
    if error is None:
        return "FINISHED"
    kind = error if isinstance(error, type) else type(error)
    return "KILLED" if issubclass(kind, KeyboardInterrupt) else "FAILED"


class GradwatchError(Exception):
    """Base of every error gradwatch raises; the command line prints it as one line and exits with code 2."""


class PolicyError(GradwatchError, ValueError):
    """A policy's text or its settings make no sense."""


class WatchError(GradwatchError, ValueError):
    """A Watch cannot be attached, or was used against its contract."""


class RunError(GradwatchError):
    """A run cannot be found, read or written."""


class AccessError(RunError):
    """MLflow refuses the credentials: others may help, waiting alone does not."""


class TrainingHalted(GradwatchError):  # noqa: N818  (a training that is asked to stop is no error of its own)
    """Raised by `optimizer.step()` where `watch(..., halt_on=...)` or a policy's `at_most` asked for it.

    `finding` says why `halt_on` did.
    """

    def __init__(self, message: str, finding: Any = None) -> None:
        super().__init__(message)
        self.finding = finding


@contextlib.contextmanager
def no_room_said() -> Iterator[None]:
    """A library that cannot be loaded for want of memory (`ulimit -v`) is a RunError; another ImportError stays."""
    try:
        yield
    except ImportError as error:
        if not _NO_ROOM.search(str(error)):
            raise
        raise RunError(
            f"there is not enough memory to load a library ({error}): raise the limit (ulimit -v), or free some"
        ) from error


def require(module: str, extra: str, why: str = "") -> None:
    """See that a library is there that an `extra` of this package brings; `why` follows where the error says it is not.

    Raises:
        RunError: it is not installed.
    """
    if importlib.util.find_spec(module) is None:
        raise RunError(f"{module} is not installed{why}: pip install 'gradwatch[{extra}]'")


class GradwatchWarning(UserWarning):
    """Something was left out or degraded; training goes on."""


def warn(text: str) -> None:
    """A `GradwatchWarning` that points at the line of the program below which this happened, not at one of ours."""
    level = 1
    frame: FrameType | None = sys._getframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(_NOT_THE_PROGRAM):
        level, frame = level + 1, frame.f_back
    try:
        warnings.warn(text, GradwatchWarning, stacklevel=level)
    except GradwatchWarning:  # of who makes errors of warnings: it would end the training in its step
        log.warning("gradwatch: %s", text)
