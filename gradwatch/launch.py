"""Runs a script as `python SCRIPT` would, in this process, while every optimizer that steps in it is watched.

Nothing slow is imported before the script: what it sets before its own `import torch` must count.
"""

from __future__ import annotations

import atexit
import builtins
import importlib.abc
import importlib.machinery
import importlib.util
import io
import os
import pkgutil
import runpy
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwatch.advance import RUN_ID, Reservation, suit_mlflow
from gradwatch.errors import GradwatchError, RunError
from gradwatch.seeding import seeded

if TYPE_CHECKING:
    from gradwatch.autowatch import AutoWatch
    from gradwatch.session import Watch

PACKAGE = str(Path(__file__).parent) + os.sep


@dataclass(frozen=True)
class Plan:
    """How a script is to be watched. `watch` are arguments of `gradwatch.watch`; plain data, for child processes."""

    watch: Mapping[str, Any]
    experiment: str | None = None
    replace_clips: bool = False
    metrics: tuple[tuple[str, str], ...] = ()
    source: str = ""
    seed: int | None = None
    spawned: bool = field(default=False, compare=False)


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


def run(program: Program, args: Sequence[str], plan: Plan) -> None:
    """Run the program as `__main__`; ends as Python itself would end."""
    launch = Launch(plan)
    main = types.ModuleType("__main__")
    vars(main).update(program.names, __builtins__=builtins)
    sys.modules["__main__"] = main
    sys.argv[:] = [program.target, *args]
    status = "FAILED"
    try:
        launch.begin()
        exec(program.code, vars(main))
        status = "FINISHED"
    except SystemExit as error:
        status = "FAILED" if error.code else "FINISHED"
        raise
    except BaseException as error:
        status = "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
        _show(error)
        if isinstance(error, KeyboardInterrupt):
            sys.excepthook = lambda *_: None  # it is shown; Python ends itself by the signal
            raise
        raise SystemExit(1) from None
    finally:
        launch.end(status)


class Launch:
    """What is done around a script: before torch and MLflow are imported, after they are, and at the end."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.pid, self.status = plan, os.getpid(), "FINISHED"
        self.auto: AutoWatch | None = None
        self.first: Reservation | None = None
        self.waiting: list[tuple[Watch, Reservation]] = []
        self.began = time.time()
        self.used: set[str] = set()  # MLflow runs that hold a training already

    def begin(self) -> None:
        """Get ready for what the script will import."""
        plan = self.plan
        if plan.watch.get("log") is not None and self._writes() and importlib.util.find_spec("mlflow") is None:
            self.say("mlflow is not installed, so this run stays in its files; --log none says nothing of it")
        elif plan.watch.get("log") is not None:
            if plan.experiment is not None:
                os.environ["MLFLOW_EXPERIMENT_NAME"] = plan.experiment
                os.environ.pop("MLFLOW_EXPERIMENT_ID", None)
            if self._writes() and not plan.spawned and not os.environ.get(RUN_ID):
                self.first = self._reserve(export=True)
        if plan.metrics:
            from gradwatch.metrics import Tee

            sys.stdout = Tee(sys.stdout, plan.metrics)
        when_imported(seeded({"torch": self._torch, "mlflow": self._mlflow}, plan.seed))
        _follow_spawned(plan)
        atexit.register(self._at_exit)

    def end(self, status: str) -> None:
        """The script has ended; other threads of it may still train, until the interpreter exits."""
        self.status = status
        self._name_runs(wait=True)
        if self.auto is not None and status != "FINISHED":
            self.auto.close(status)

    def say(self, text: str) -> None:
        """One line on stderr, from one of several ranks."""
        if self._writes():
            print(f"gradwatch: {text}", file=sys.stderr)

    def _writes(self) -> bool:
        return os.environ.get("RANK", "0") == "0"

    # ----------------------------------------------------------------------------------------------- after an import

    def _torch(self) -> None:
        from gradwatch.autowatch import AutoWatch

        options = dict(self.plan.watch)
        if importlib.util.find_spec("mlflow") is None:
            options["log"] = None
        try:
            self.auto = AutoWatch(options, self._join, self.plan.replace_clips, self.say)
        except GradwatchError as error:
            print(f"Error: {' '.join(str(error).split())}", file=sys.stderr)
            raise SystemExit(2) from None

    def _mlflow(self) -> None:
        if self.first is not None:
            suit_mlflow(self.first)

    # ------------------------------------------------------------------------------------------------ the MLflow runs

    def _reserve(self, export: bool) -> Reservation:
        tags = {"mlflow.source.name": self.plan.source, "mlflow.source.type": "LOCAL"}
        return Reservation({"name": self.plan.watch["run_name"], "tags": tags}, export)

    def _join(self, made: Watch | None) -> None:
        """Give a new Watch the MLflow run that is kept for it; name the runs that have come into being since."""
        if made is not None and made.shared is not None and len(made.shared.names) > 1:
            return  # it goes where the first part goes
        if made is not None and made.target is not None:
            joined = made.target["run_id"]
            reserved = self.first.target["run_id"] if self.first is not None and self.first.target else None
            if joined is not None and joined != reserved and joined not in self.used:
                self.used.add(joined)
            else:
                self._keep_for(made)
        if self.waiting:
            self._name_runs(wait=False)

    def _keep_for(self, made: Watch) -> None:
        reservation = self.first
        if reservation is None or reservation.released or os.getpid() != self.pid:
            reservation = self._reserve(export=False)
        reservation.released = True
        self.waiting.append((made, reservation))

    def _name_runs(self, wait: bool) -> None:
        for made, reservation in tuple(self.waiting):
            target = reservation.wait() if wait or reservation.ready else None
            if target is not None:
                made.deliver_to(target)
                self.used.add(target["run_id"])
            if wait or reservation.ready:
                self.waiting.remove((made, reservation))

    # --------------------------------------------------------------------------------------------------------- the end

    def _at_exit(self) -> None:
        """After the Watches have closed: what there is to say of a script in which none was made."""
        if os.getpid() != self.pid:
            return
        if self.first is not None:
            self.first.settle(self.status)
        if self.plan.spawned or self.status != "FINISHED" or (self.auto is not None and self.auto.seen):
            return
        if self._recorded_elsewhere():
            return
        if self.auto is None:
            self.say("nothing was recorded: the script did not import torch")
        elif self.auto.losses.calls:
            self.say(
                f"nothing was recorded: backward() was called {self.auto.losses.calls:,} times, but no "
                "torch.optim.Optimizer stepped in this process, so the script updates its weights in another way"
            )
        else:
            self.say("nothing was recorded: no torch.optim.Optimizer stepped in this process")

    def _recorded_elsewhere(self) -> bool:
        """Whether a process that this one started has recorded a run."""
        folders = Path(self.plan.watch["dir"]).glob(f"*-{self.plan.watch['run_name']}-*")
        return any(folder.stat().st_mtime >= self.began for folder in folders)


# ------------------------------------------------------------------------------------------------------- after imports


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls `then[name]()` when the module `name` has been imported whole; changes nothing in how that is found."""

    def __init__(self, then: dict[str, Callable[[], None]]) -> None:
        self.then, self.looking = then, False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """The spec that the other finders give, with the call behind its loading."""
        if self.looking or name not in self.then:
            return None
        self.looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.looking = False
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                load(module)
                then = self.then.pop(name, None)
                if then is not None:
                    then()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def when_imported(then: dict[str, Callable[[], None]]) -> None:
    """Call these once the modules of these names are imported; at once for those that are."""
    for name in [name for name in then if name in sys.modules]:
        then.pop(name)()
    if then:
        sys.meta_path.insert(0, _AfterImport(then))


# ------------------------------------------------------------------------------------------------------ child processes


class _Stowaway:
    """Goes along with what multiprocessing tells a process that it spawns: unpickled there, it watches that process."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def __reduce__(self) -> tuple[Callable[[Plan], None], tuple[Plan]]:
        return _watch_spawned, (self.plan,)


def _watch_spawned(plan: Plan) -> None:
    Launch(plan).begin()


def _follow_spawned(plan: Plan) -> None:
    from multiprocessing import spawn

    original = spawn.get_preparation_data
    name = f"{plan.watch['run_name']}-"

    def with_stowaway(*args: Any, **kwargs: Any) -> dict[str, Any]:
        child = Plan({**plan.watch, "run_name": name + "spawned"}, plan.experiment, plan.replace_clips, spawned=True)
        return {**original(*args, **kwargs), "gradwatch": _Stowaway(child)}

    spawn.get_preparation_data = with_stowaway


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


def _show(error: BaseException) -> None:
    """Print an uncaught exception as Python does, with the script's own `sys.excepthook`, without our frames."""
    strip(error, set())
    tb = error.__traceback__
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, tb
    sys.stdout.flush()
    sys.excepthook(type(error), error, tb)


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
