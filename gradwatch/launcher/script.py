"""What Python does around a script, done in a process that is running already: finding it, `__main__`, tracebacks.

Nothing slow is imported here: what a script sets before its own imports must count.
"""

from __future__ import annotations

import importlib.machinery
import io
import os
import pkgutil
import runpy
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwatch.errors import RunError

PACKAGE = str(Path(__file__).parents[1]) + os.sep


@dataclass(frozen=True)
class Program:
    """The code of a script, and what its `__main__` holds before it begins."""

    target: str
    code: types.CodeType
    names: Mapping[str, Any]


def find_program(target: str, module: bool = False) -> Program:
    """The script, or the module, that Python would run; makes its folder the first on `sys.path`.

    Raises:
        RunError: there is none.
        SystemExit: its code is no Python, which has been said.
    """
    code, names = _module(target) if module else _script(target)
    return Program(names["__file__"] if module else target, code, names)


# ------------------------------------------------------------------------------------------------------------- __main__


def _script(path: str) -> tuple[types.CodeType, dict[str, Any]]:
    """The code and the names of `__main__` for `python PATH`: a file, or a folder or zip file with a `__main__.py`."""
    full = os.path.abspath(path)
    if os.path.exists(full) and pkgutil.get_importer(full) is not None:  # a folder, or a zip file
        _first_on_path(full)
        try:
            return _as_main(*runpy._get_main_module_details())  # type: ignore[attr-defined]
        except ImportError as error:
            raise RunError(f"can't find '__main__' module in {path!r}") from error
    try:
        with io.open_code(full) as file:
            source = file.read()
    except OSError as error:
        raise RunError(f"can't open file {path!r}: {error.strerror}; wanted a Python script, or -m MODULE") from error
    _first_on_path(os.path.dirname(os.path.realpath(full)))
    loader = importlib.machinery.SourceFileLoader("__main__", full)
    names = {"__file__": full, "__loader__": loader, "__spec__": None, "__package__": None, "__cached__": None}
    return _compiled(source, full), names


def _compiled(source: bytes, path: str) -> types.CodeType:
    try:
        return compile(source, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        sys.excepthook(type(error), error.with_traceback(None), None)
        raise SystemExit(1) from None


def _module(name: str) -> tuple[types.CodeType, dict[str, Any]]:
    """The code and the names of `__main__` for `python -m NAME`."""
    _first_on_path(os.getcwd())
    try:
        return _as_main(*runpy._get_module_details(name))  # type: ignore[attr-defined]
    except ImportError as error:
        raise RunError(f"cannot run module {name!r}: {error}") from error


def _as_main(name: str, spec: importlib.machinery.ModuleSpec, code: types.CodeType) -> tuple[types.CodeType, Any]:
    return code, {
        "__file__": spec.origin,
        "__loader__": spec.loader,
        "__spec__": spec,
        "__package__": spec.parent,
        "__cached__": spec.cached,
    }


def _first_on_path(folder: str) -> None:
    if not getattr(sys.flags, "safe_path", False):  # -P and -I keep the script's folder away
        sys.path[0] = folder


# ----------------------------------------------------------------------------------------------------------- tracebacks


def show_uncaught(error: BaseException) -> None:
    """Print an uncaught exception as Python does, with the script's own `sys.excepthook`, without our frames."""
    strip(error, set())
    tb = error.__traceback__
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, tb
    sys.stdout.flush()
    try:
        sys.excepthook(type(error), error, tb)
    except Exception as raised:
        strip(raised, {id(error)})
        last: BaseException = raised
        while last.__context__ not in (None, error):
            last = last.__context__
        last.__context__ = None  # Python calls the hook after the error, not while it is handled
        print("Error in sys.excepthook:", file=sys.stderr)
        sys.__excepthook__(type(raised), raised, raised.__traceback__)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(error), error, tb)


def strip(error: BaseException, seen: set[int]) -> None:
    """Take gradwatch's frames out of the traceback; those of an error that began in gradwatch stay."""
    if id(error) in seen:
        return
    seen.add(id(error))
    frames = []
    tb = error.__traceback__
    while tb is not None:
        frames.append(tb)
        tb = tb.tb_next
    mine = [f.tb_frame.f_code.co_filename.startswith(PACKAGE) for f in frames]
    if frames and not (mine[-1] and len(frames) > 1):
        kept = None
        for frame, own in reversed(list(zip(frames, mine, strict=True))):
            if not own:
                kept = types.TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
        error.__traceback__ = kept
    for other in (error.__cause__, error.__context__):
        if other is not None:
            strip(other, seen)
