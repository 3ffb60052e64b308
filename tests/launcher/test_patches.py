"""What `gradwatch run` patches does what was there before, and is taken off without a trace."""

import multiprocessing.spawn
import os
import sys
import types

import pytest
import torch

from gradwatch.launcher import patches
from gradwatch.launcher.losses import Losses


def state():
    """Everything that a patch may replace."""
    return (
        *(sys.stdout, sys.excepthook, multiprocessing.spawn.get_preparation_data, os._exit, os.execv, os.execve),
        *(torch.optim.Optimizer._patch_step_function, torch.autograd.backward, torch.amp.GradScaler.scale),
        *(getattr(sys.modules.get(name), "start_run", None) for name in ("mlflow", "mlflow.tracking.fluent")),
    )


@pytest.fixture
def mlflow(monkeypatch):
    """As far as it is patched."""
    fluent = types.SimpleNamespace(start_run=lambda *args, **kwargs: (args, kwargs))
    face = types.SimpleNamespace(start_run=fluent.start_run, get_tracking_uri=lambda: "uri")
    monkeypatch.setitem(sys.modules, "mlflow", face)
    monkeypatch.setitem(sys.modules, "mlflow.tracking.fluent", fluent)
    return face, fluent


APPLY = {
    "printed": lambda: patches.printed(lambda stream: types.SimpleNamespace(write=stream.write)),
    "silence": patches.silence,
    "spawned": lambda: patches.spawned("stowaway"),
    "leaving": lambda: patches.leaving(lambda status: None),
    "first_optimizer": lambda: patches.first_optimizer(lambda: None),
    "backwards": lambda: patches.backwards(Losses()),
    "start_run": lambda: patches.start_run({"run_id": "r", "experiment_id": "1"}),
}


@pytest.mark.parametrize("apply", APPLY.values(), ids=APPLY)
def test_a_patch_is_taken_off_without_a_trace(apply, mlflow):
    before = state()
    undo = apply()
    assert state() != before
    undo()
    assert state() == before


def test_what_someone_else_put_there_since_stays():
    first = patches.backwards(Losses())
    second = patches.backwards(Losses())
    theirs = torch.autograd.backward
    first()
    assert torch.autograd.backward is theirs
    second()
    first()


def test_steps_are_told_until_that_ends():
    told = []
    undo = patches.steps(lambda *_: told.append("before"), lambda *_: told.append("after"))
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    optimizer.step()
    undo()
    optimizer.step()
    assert told == ["before", "after"]


def test_a_finder_that_is_taken_off_finds_nothing():
    called = []
    undo = patches.after_imports({"sys": lambda: called.append("at once"), "no_such_module": lambda: called.append(1)})
    assert called == ["at once"]
    undo()
    assert all(finder.find_spec("no_such_module") is None for finder in sys.meta_path[:1])


def test_a_run_that_is_ready_is_left_for_another_experiment(mlflow, monkeypatch):
    face, fluent = mlflow
    undo = patches.start_run({"run_id": "r", "experiment_id": "1"})
    monkeypatch.setenv("MLFLOW_RUN_ID", "r")
    assert face.start_run("x", "1", nested=True) == (("x", "1"), {"nested": True})
    assert os.environ["MLFLOW_RUN_ID"] == "r"
    assert fluent.start_run(experiment_id="2") == ((None, "2"), {})
    assert "MLFLOW_RUN_ID" not in os.environ
    undo()


@pytest.mark.parametrize(
    ("args", "kwargs", "status"), [((0,), {}, "FINISHED"), ((), {"status": 0}, "FINISHED"), ((3,), {}, "FAILED")]
)
def test_a_script_that_leaves_by_exit_tells_how(args, kwargs, status, monkeypatch):
    said = []

    def _exit(status):
        """Leaves nothing."""

    monkeypatch.setattr(os, "_exit", _exit)
    undo = patches.leaving(said.append)
    os._exit(*args, **kwargs)
    undo()
    assert said[0] == status
