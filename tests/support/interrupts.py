"""A Ctrl-C at every place where Python can raise one: an exception is raised there, once, on purpose."""

from __future__ import annotations

import dis
import sys
from collections.abc import Collection
from types import CodeType, FrameType
from typing import Any

# In the place of the last instruction: it raised. Python goes to the handler without a look for signals. What is
# raised there on purpose leaves the handled exception in memory for good, with all frames that it came through.
RAISED = -1


class Stop(BaseException):
    """What is raised in the middle, as a KeyboardInterrupt is."""


class Injected:
    """Raises at the `number`-th place reached in `files`, once; None at none. `places` are those reached, in order.

    Places are the beginnings of lines, or with `calls` those where CPython looks whether a signal has come: after a
    call, at the beginning of a function, and where a loop goes back. `fresh` counts a place once, however often it
    is passed.
    """

    def __init__(self, files: Collection[str], number: int | None = None, calls: bool = False, fresh: bool = False,
                 error: type[BaseException] = Stop) -> None:  # fmt: skip
        self.files, self.number, self.calls, self.fresh, self.error = files, number, calls, fresh, error
        self.places: list[str] = []
        self.raised = False
        self._known: set[tuple[Any, int]] = set()
        self._last: dict[FrameType, int] = {}

    def __enter__(self) -> Injected:
        self._before = sys.gettrace()
        sys.settrace(self._entered)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)
        self._last.clear()

    def _entered(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in self.files:
            return None
        frame.f_trace_opcodes = self.calls
        return self._traced

    def _traced(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            before, self._last[frame] = self._last.get(frame), frame.f_lasti
            here = frame.f_code.co_code
            if before is None or (
                before != RAISED
                and _may_be_interrupted(here[before], frame.f_lasti < before)
                # Python raises in the instruction before, and goes to its handler: from here it would go to another
                and _handler(frame.f_code, before) == _handler(frame.f_code, frame.f_lasti)
            ):
                self._reached(frame)
        elif event == "exception":
            self._last[frame] = RAISED
        elif event == "line" and not self.calls and not _leaves_with(frame.f_code.co_code, frame.f_lasti):
            self._reached(frame)
        elif event == "return":
            self._last.pop(frame, None)
        return self._traced

    def _reached(self, frame: FrameType) -> None:
        key = frame.f_code, frame.f_lasti
        if self.fresh and key in self._known:
            return
        self._known.add(key)
        self.places.append(f"{frame.f_code.co_name}, line {frame.f_lineno}")
        if len(self.places) - 1 == self.number:
            self.raised = True
            raise self.error(self.places[-1])


def _may_be_interrupted(opcode: int, back: bool) -> bool:
    return back or dis.opname[opcode].startswith(("CALL", "RESUME"))


def _handler(code: CodeType, at: int) -> int | None:
    """Where an exception of this instruction goes, in the code that it is in; None: to the caller."""
    if not hasattr(code, "co_exceptiontable"):  # before Python 3.11 a stack of blocks says so
        return None
    regions = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    return next((region.target for region in regions if region.start <= at < region.end), None)


def _leaves_with(code: bytes, at: int) -> bool:
    """Whether a `with` ends here, by the three Nones that its exit is called with. Nothing raises before that call: an
    exception would leave what was entered as it is, as a lock held for good.
    """
    loads = {code[at : at + 2], code[at + 2 : at + 4], code[at + 4 : at + 6]}
    return len(loads) == 1 and dis.opname[code[at]] == "LOAD_CONST"


class ExitFunctions(list[Any]):
    """Stands in for `atexit`: what is called when the interpreter ends, whatever the one before raised."""

    def register(self, function: Any) -> None:
        self.append(function)

    def unregister(self, function: Any) -> None:
        self[:] = [other for other in self if other != function]
