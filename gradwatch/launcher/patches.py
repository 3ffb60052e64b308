"""All that `gradwatch run` puts in the place of something of Python's, torch's or MLflow's while a script runs.

    after_imports    a finder in sys.meta_path: the others wait until the script imports torch, numpy or MLflow
    printed          sys.stdout, with --metric-regex: numbers out of what the script prints
    parsed           argparse.ArgumentParser.parse_known_args, as parse_args calls it: the script's arguments
    spawned          multiprocessing.spawn.get_preparation_data: a process that the script spawns is watched too
    leaving          os._exit, os.execv, os.execve: they run no exit function, and the run has to be written
    silence          sys.excepthook, after Ctrl-C: the traceback was shown, and Python would show it again
    first_optimizer  Optimizer._patch_step_function, until it is called: slow imports wait for an optimizer
    steps            torch's global hooks around Optimizer.step: a script's optimizers are watched from the first step
    backwards        torch.autograd.backward, GradScaler.scale: the loss
    start_run        mlflow.start_run: it would refuse a script that wants another experiment than that of the run
                     which is ready for it

Each function applies one patch and returns what takes it off again: `Launch` does so in its last exit function, after
the script's own. While a Watch is open, also without `gradwatch run`, GradScaler.step and the clips of torch.nn.utils
are wrapped too: `recording.torch_patches`.

Nothing slow is imported here: what a script sets before its own imports must count.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.amp import GradScaler

    from gradwatch.launcher.losses import Losses

Undo = Callable[[], None]
RUN_ID = "MLFLOW_RUN_ID"


def _replace(holder: Any, name: str, new: Any) -> Undo:
    """Put `new` in the place of `holder.name`; what someone else has put there since is left alone by the undoing."""
    old = getattr(holder, name)
    setattr(holder, name, new)

    def undo() -> None:
        if getattr(holder, name) is new:
            setattr(holder, name, old)

    return undo


def _all(*undoings: Undo) -> Undo:
    def undo() -> None:
        for each in undoings:
            each()

    return undo


# ----------------------------------------------------------------------------------------------------------- Python


def after_imports(then: Mapping[str, Callable[[], None]]) -> Undo:
    """Call these once the modules of these names are imported; at once for those that are."""
    waiting = dict(then)
    for name in [name for name in waiting if name in sys.modules]:
        waiting.pop(name)()
    finder = _AfterImport(waiting)
    if waiting:
        sys.meta_path.insert(0, finder)
    return waiting.clear  # the finder then finds nothing


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


def printed(wrap: Callable[[Any], Any]) -> Undo:
    """Let `wrap(sys.stdout)` stand for it, so that what the script prints can be looked at."""
    return _replace(sys, "stdout", wrap(sys.stdout))


def parsed(note: Callable[[Any, Any], None]) -> Undo:
    """Tell `note(args, (namespace, rest))` of each command line that argparse reads; `args` None is sys.argv."""
    parser = sys.modules["argparse"].ArgumentParser
    original = parser.parse_known_args

    @functools.wraps(original)
    def parse_known_args(self: Any, args: Any = None, *more: Any, **named: Any) -> Any:
        found = original(self, args, *more, **named)
        note(args, found)
        return found

    return _replace(parser, "parse_known_args", parse_known_args)


def silence() -> Undo:
    """Let Python print no traceback of its own: ours was shown, and Python has yet to end itself by the signal."""
    return _replace(sys, "excepthook", lambda *_: None)


def spawned(stowaway: Any) -> Undo:
    """Let `stowaway` go along with what multiprocessing tells a process that it spawns, which unpickles it."""
    from multiprocessing import spawn

    original = spawn.get_preparation_data

    def get_preparation_data(*args: Any, **kwargs: Any) -> dict[str, Any]:
        return {**original(*args, **kwargs), "gradwatch": stowaway}

    return _replace(spawn, "get_preparation_data", get_preparation_data)


def leaving(close: Callable[[str], None]) -> Undo:
    """Call `close(status)` before `os._exit`, and before the execs, through which every other `os.exec` goes."""

    def closing(leave: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(leave)
        def left(*args: Any, **kwargs: Any) -> Any:
            is_exit = leave.__name__ == "_exit"
            close("FAILED" if is_exit and (*args, *kwargs.values()) != (0,) else "FINISHED")
            return leave(*args, **kwargs)

        return left

    return _all(*(_replace(os, name, closing(getattr(os, name))) for name in ("_exit", "execv", "execve")))


# ------------------------------------------------------------------------------------------------------------ torch


def first_optimizer(then: Callable[[], None]) -> Undo:
    """Call `then` as the first optimizer is made, in which torch puts its hooks around the class's `step`.

    The patch takes itself off before that. A data loader's process has no optimizer, and pays for nothing.
    """
    optimizer: Any = sys.modules["torch"].optim.Optimizer
    original = optimizer._patch_step_function

    def first(new: Any) -> None:
        undo()
        then()
        original(new)

    undo = _replace(optimizer, "_patch_step_function", first)
    return undo


def steps(before: Callable[..., Any], after: Callable[..., Any]) -> Undo:
    """Call these around each step of every optimizer, by torch's own global hooks."""
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    return _all(register_optimizer_step_pre_hook(before).remove, register_optimizer_step_post_hook(after).remove)


def backwards(losses: Losses) -> Undo:
    """Tell `losses` of what goes through `torch.autograd.backward`, as every `Tensor.backward` does, without a gradient
    of its own; and of what `GradScaler.scale` made of a loss.
    """
    torch = sys.modules["torch"]
    of_backward, of_scale = torch.autograd.backward, torch.amp.GradScaler.scale

    @functools.wraps(of_backward)
    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        if grad_tensors is None and kwargs.get("grad_variables") is None:
            losses.add(tensors)
        return of_backward(tensors, grad_tensors, *args, **kwargs)

    @functools.wraps(of_scale)
    def scale(scaler: GradScaler, outputs: Any) -> Any:
        scaled = of_scale(scaler, outputs)
        if scaler.is_enabled():
            losses.note_scaled(outputs, scaled)
        return scaled

    return _all(_replace(torch.autograd, "backward", backward), _replace(torch.amp.GradScaler, "scale", scale))


# ----------------------------------------------------------------------------------------------------------- MLflow


def start_run(target: Mapping[str, Any]) -> Undo:
    """Let a script that has set another experiment or store than that of the run in MLFLOW_RUN_ID have its own run.

    `mlflow.start_run` joins the run of MLFLOW_RUN_ID, and refuses to when the script has set another experiment.
    """
    mlflow, fluent = (sys.modules.get(name) for name in ("mlflow", "mlflow.tracking.fluent"))
    if mlflow is None or fluent is None:
        return _all()
    original: Callable[..., Any] = fluent.start_run
    uri = mlflow.get_tracking_uri()

    @functools.wraps(original)
    def start_run(run_id: str | None = None, experiment_id: Any = None, *args: Any, **kwargs: Any) -> Any:
        wanted = experiment_id or getattr(fluent, "_active_experiment_id", None)
        elsewhere = wanted is not None and str(wanted) != target["experiment_id"]
        if os.environ.get(RUN_ID) == target["run_id"] and (elsewhere or mlflow.get_tracking_uri() != uri):
            del os.environ[RUN_ID]
        return original(run_id, experiment_id, *args, **kwargs)

    places = (module for module in (mlflow, fluent) if getattr(module, "start_run", None) is original)
    return _all(*(_replace(module, "start_run", start_run) for module in places))
