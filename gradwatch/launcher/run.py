"""Runs a script as `python SCRIPT` would, in this process, while every optimizer that steps in it is watched.

Nothing slow is imported before the script: what it sets before its own `import torch` must count.
"""

from __future__ import annotations

import atexit
import builtins
import functools
import importlib.util
import os
import random
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwatch.errors import GradwatchError, TrainingHalted, status_of, tell
from gradwatch.launcher import patches
from gradwatch.launcher.arguments import Arguments
from gradwatch.launcher.mlflow_run import TRACKING_URI, Reservation
from gradwatch.launcher.patches import RUN_ID
from gradwatch.launcher.script import Program, show_uncaught
from gradwatch.storage.places import absolute_uri

if TYPE_CHECKING:
    from gradwatch.launcher.autowatch import AutoWatch
    from gradwatch.launcher.losses import Losses
    from gradwatch.policies.intervention import Intervention
    from gradwatch.recording.watch import Watch


@dataclass(frozen=True)
class Plan:
    """How a script is to be watched. `watch` are arguments of `gradwatch.watch`; plain data, for child processes."""

    watch: Mapping[str, Any]
    experiment: str | None = None
    replace_clips: bool = False
    metrics: tuple[tuple[str, str], ...] = ()
    source: str = ""
    seed: int | None = None
    command: Mapping[str, Any] | None = None
    spawned: bool = field(default=False, compare=False)


def run(program: Program, args: Sequence[str], plan: Plan) -> None:
    """Run the program as `__main__`; ends as Python itself would end."""
    launch = Launch(plan, args)
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
    except TrainingHalted as error:
        found = error.finding
        launch.say(f"halted: {f'{found.summary}: {found.cause} {found.cure}' if found else error}")
        raise SystemExit(1) from None
    except BaseException as error:
        status = status_of(error)
        show_uncaught(error)
        if isinstance(error, KeyboardInterrupt):
            launch.patch(patches.silence())
            raise
        raise SystemExit(1) from None
    finally:
        launch.end(status)


class Launch:
    """What is done around a script: before torch and MLflow are imported, after they are, and at the end."""

    def __init__(self, plan: Plan, words: Sequence[str] = ()) -> None:
        self.plan, self.pid, self.status = plan, os.getpid(), "FINISHED"
        self.arguments = Arguments(words)
        self.losses: Losses | None = None  # from `import torch` on
        self.auto: AutoWatch | None = None  # from the first optimizer on
        self.first: Reservation | None = None
        self.waiting: list[tuple[Watch, Reservation]] = []
        self.unused: list[Reservation] = []  # what was kept for a Watch that closed too soon
        self._patches = ExitStack()  # what takes them off again
        self.began = time.time()

    def begin(self) -> None:
        """Get ready for what the script will import."""
        plan = self.plan
        to_mlflow = "mlflow" in (plan.watch.get("log") or ())
        if to_mlflow and self._writes() and importlib.util.find_spec("mlflow") is None:
            self.say("mlflow is not installed, so this run stays in its files; --log none says nothing of it")
        elif to_mlflow:
            if plan.experiment is not None:
                os.environ["MLFLOW_EXPERIMENT_NAME"] = plan.experiment
                os.environ.pop("MLFLOW_EXPERIMENT_ID", None)
            if TRACKING_URI in os.environ:  # one store for us and for the script, which may change its directory
                os.environ[TRACKING_URI] = absolute_uri(os.environ[TRACKING_URI])
            if self._writes() and self._delivers() and not plan.spawned and not os.environ.get(RUN_ID):
                self.first = self._reserve(export=True)
        if plan.metrics:
            from gradwatch.launcher.stdout import Tee

            self.patch(patches.printed(lambda stream: Tee(stream, plan.metrics)))
        then = {"argparse": self._argparse, "torch": self._torch, "mlflow": self._mlflow}
        self.patch(patches.after_imports(seeded(then, plan.seed)))
        self.patch(patches.spawned(_Stowaway(plan, self.arguments)))
        atexit.register(self._patches.close)
        atexit.register(self._at_exit)

    def end(self, status: str) -> None:
        """The script has ended; other threads of it may still train, until the interpreter exits."""
        self.status = status
        self._name_runs()
        for _, reservation in self.waiting:
            reservation.abandon()  # the courier creates a run when it is ready; two would be one too many
        if self.auto is not None and status != "FINISHED":
            self.auto.close(status)

    def say(self, text: str) -> None:
        """One line on stderr, from one of several ranks."""
        if self._writes():
            tell(f"gradwatch: {text}")

    def patch(self, undo: patches.Undo) -> None:
        """Keep a patch until the interpreter exits; `undo` takes it off."""
        self._patches.callback(undo)

    def _writes(self) -> bool:
        return os.environ.get("RANK", "0") == "0"

    def _delivers(self) -> bool:
        return bool(self.plan.watch.get("delivery") != "none")

    # ----------------------------------------------------------------------------------------------- after an import

    def _argparse(self) -> None:
        self.patch(patches.parsed(self.arguments.note))

    def _torch(self) -> None:
        """Whatever is slow to import waits for an optimizer: a data loader's process never has one."""
        from gradwatch.launcher.losses import Losses

        self.losses = Losses()
        self.patch(patches.backwards(self.losses))
        self.patch(patches.first_optimizer(functools.partial(self._watch_all, self.losses)))

    def _watch_all(self, losses: Losses) -> None:
        from gradwatch.launcher.autowatch import AutoWatch, refusal

        options = with_arguments(self.plan.watch, self.arguments)
        if os.getpid() != self.pid:  # forked
            options["run_name"] += f"-{os.getpid()}"
        if importlib.util.find_spec("mlflow") is None:
            options["log"] = [name for name in options.get("log") or () if name != "mlflow"]
        try:
            self.auto = AutoWatch(options, losses, self._join, self.say, self.plan.replace_clips)
        except GradwatchError as error:
            raise refusal(error) from None
        self.patch(patches.steps(self.auto.before, self.auto.after))
        self.patch(patches.leaving(self.auto.close_in_a_hurry))

    def _mlflow(self) -> None:
        target = self.first.wait() if self.first is not None else None
        if target is not None:
            self.patch(patches.start_run(target))

    # ------------------------------------------------------------------------------------------------ the MLflow runs

    def _reserve(self, export: bool) -> Reservation:
        tags = {"mlflow.source.name": self.plan.source, "mlflow.source.type": "LOCAL"}
        return Reservation({"name": self.plan.watch["run_name"], "tags": tags}, export)

    def _join(self, made: Watch | None) -> None:
        """Give a new Watch the MLflow run that is kept for it; name the runs that have come into being since."""
        if made is not None and self.plan.command is not None:
            made._writer.update(command=self.arguments.recorded(self.plan.command))
        if made is not None and made._shared is not None and len(made._shared.names) > 1:
            return  # it goes where the first part goes
        if made is not None and made._target is not None and self._delivers():
            joined = made._target["run_id"]
            if joined is None:
                self._keep_for(made)
            elif self.first is not None and self.first.target and self.first.target["run_id"] == joined:
                self.first.released = True
        if self.waiting:
            self._name_runs()

    def _keep_for(self, made: Watch) -> None:
        reservation = self.first
        if reservation is None or reservation.released or os.getpid() != self.pid:
            reservation = self._reserve(export=False)
        reservation.released = True
        self.waiting.append((made, reservation))

    def _name_runs(self) -> None:
        """Tell the Watches of the runs that are there now. No waiting: a courier makes one that comes too late."""
        for made, reservation in tuple(self.waiting):
            if made.closed:
                self.unused.append(reservation)
                self.waiting.remove((made, reservation))
                continue
            if reservation.target is not None:
                made._deliver_to(reservation.target)
            if reservation.ready:
                self.waiting.remove((made, reservation))

    # --------------------------------------------------------------------------------------------------------- the end

    def _at_exit(self) -> None:
        """After the script's own exit functions: end what they trained, and say so where nothing was ever watched."""
        if os.getpid() != self.pid:
            return
        if self.auto is not None:
            self.auto.close(self.status)
        self.unused += [reservation for _, reservation in self.waiting]
        if self.first is not None and not self.first.released:
            self.unused.append(self.first)
        for reservation in self.unused:
            reservation.settle(self.status)
        if self.plan.spawned or self.status != "FINISHED" or (self.auto is not None and self.auto.seen):
            return
        if not self._recorded_elsewhere() and self._writes():
            self._say_nothing()

    def _say_nothing(self) -> None:
        """That nothing was recorded, and why; where something was asked for that never acted, a run is left."""
        from gradwatch.policies.intervention import Intervention

        if self.losses is None:
            why = "the script did not import torch"
        elif self.losses.calls:
            why = (
                f"backward() was called {self.losses.calls:,} times, but no torch.optim.Optimizer stepped in this "
                "process, so the script updates its weights in another way"
            )
        else:
            why = "no torch.optim.Optimizer stepped in this process"
        asked = Intervention.of(self.plan.watch)
        if asked == Intervention():
            self.say(f"nothing was recorded: {why}")
        else:
            options = " and ".join(" ".join(pair) for pair in asked.options.items())
            self.say(f"nothing was recorded, and {options} never acted: {why}{self._leave_empty(asked)}")

    def _leave_empty(self, asked: Intervention) -> str:
        """Leave a run without steps, whose finding is that what was asked for never acted; returns where, in words."""
        from gradwatch.policies import parse
        from gradwatch.storage.folder import MANIFEST, create_folder, now_iso, write_json
        from gradwatch.storage.owner import described

        watch = with_arguments(self.plan.watch, self.arguments)
        told = {key: watch[key] for key in ("tags", "params") if watch.get(key)}
        told |= {k: repr(parse(str(v))) if k in ("clip", "renorm") else v for k, v in asked.arguments.items()}
        try:
            run = described(name=watch["run_name"], status="FINISHED", ended=now_iso(), end_step=0, **told)
            folder = create_folder(Path(watch["dir"]), run.name)
            write_json(folder / MANIFEST, run.to_json())
        except (GradwatchError, OSError) as error:
            return f" ({' '.join(str(error).split())})"
        return f"; `gradwatch check` finds that in {folder}"

    def _recorded_elsewhere(self) -> bool:
        """Whether a process that this one started has recorded a run."""
        from gradwatch.storage.folder import folder_name

        folders = Path(self.plan.watch["dir"]).glob(f"*-{folder_name(self.plan.watch['run_name'])}-*")
        return any(folder.stat().st_mtime >= self.began for folder in folders)


# ------------------------------------------------------------------------------------------------------ child processes


class _Stowaway:
    """Goes along with what multiprocessing tells a process that it spawns: unpickled there, it watches that process."""

    def __init__(self, plan: Plan, arguments: Arguments) -> None:
        watch = {**plan.watch, "run_name": f"{plan.watch['run_name']}-spawned"}
        made = Plan(watch, plan.experiment, plan.replace_clips, command=plan.command, spawned=True)
        self.plan, self.arguments = made, arguments

    def __reduce__(self) -> tuple[Callable[[Plan], None], tuple[Plan]]:
        watch = with_arguments(self.plan.watch, self.arguments)
        command = self.plan.command and self.arguments.recorded(self.plan.command)
        return _watch_spawned, (replace(self.plan, watch=watch, command=command),)


def with_arguments(watch: Mapping[str, Any], arguments: Arguments) -> dict[str, Any]:
    """The arguments of `watch()` with the script's own among the params; what the user names so goes before them."""
    return {**watch, "params": {**arguments.params(), **(watch.get("params") or {})}}


def _watch_spawned(plan: Plan) -> None:
    Launch(plan).begin()


Call = Callable[[], None]


def seeded(then: Mapping[str, Call], seed: int | None) -> dict[str, Call]:
    """Seed `random` now; returns `then`, what to call after the imports of modules, with their seeding before it.

    Without a seed, `then` as it is.
    """
    if seed is None:
        return dict(then)
    random.seed(seed)

    def numpy() -> None:
        sys.modules["numpy"].random.seed(seed % 2**32)
        then.get("numpy", _nothing)()

    def torch() -> None:
        sys.modules["torch"].manual_seed(seed)  # of every device
        then.get("torch", _nothing)()

    return {**then, "numpy": numpy, "torch": torch}


def _nothing() -> None:
    pass
