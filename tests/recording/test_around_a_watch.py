"""What stands around a Watch harms no training: what is logged before its first step, warnings, copies of a model."""

import copy
import gc
import pickle
import warnings
import weakref

import pytest
import torch
from training import mlp, train, watch

import gradwatch
from gradwatch.measure.looking import MOST
from gradwatch.recording.courier_process import start_diagnosis


def test_what_waits_for_the_first_step_is_not_looked_through_at_each_value(tmp_path, monkeypatch):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path) as watching:
        drains = []
        monkeypatch.setattr(watching, "_drain", lambda *_, **__: drains.append(1))
        for i in range(100):
            watching.log(before=float(i))
        assert drains == []
        monkeypatch.undo()
        train(model, optimizer, 1)
    assert gradwatch.open_history(watching.dir).total("before").tolist() == [99.0]


def test_a_loop_that_gives_each_value_a_name_of_its_own_is_told_so_a_few_times(tmp_path):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path) as watching, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for i in range(3 * MOST):
            watching.log(**{f"sample_{i}": torch.ones(3)})
    assert len(warned) == MOST
    assert str(warned[-1].message).endswith("; of what else is left out nothing is said")


def test_what_makes_errors_of_warnings_is_not_ended_by_ours(tmp_path, caplog):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watching = watch(model, optimizer, tmp_path)
    watching.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watching.log(loss=1.0)
    assert "after close(): nothing was recorded" in caplog.text


def test_a_model_that_keeps_its_watch_can_be_copied_and_saved(tmp_path):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.watching = watch(model, optimizer, tmp_path)
    assert copy.deepcopy(model).watching is None
    assert pickle.loads(pickle.dumps(model)).watching is None
    torch.optim.swa_utils.AveragedModel(model)
    model.watching.close()


def test_a_process_that_does_not_know_its_python_trains_all_the_same(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("sys.executable", None)
    assert start_diagnosis(tmp_path) is None
    assert "gradwatch: cannot start check" in caplog.text


class Scripted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.rest = torch.jit.script(torch.nn.Linear(6, 6)), torch.nn.Linear(6, 3)

    def forward(self, x):
        return self.rest(torch.relu(self.first(x)))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_part_in_torchscript_is_looked_past(tmp_path):
    model = Scripted()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path, activations=True, every=1) as watching:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 6)).square().mean().backward()
            optimizer.step()
    assert len(gradwatch.open_history(watching.dir)) == 3


def test_a_frozen_part_that_is_deleted_is_gone(tmp_path):
    model = torch.nn.ModuleDict({"net": mlp(), "teacher": mlp().requires_grad_(False)})
    optimizer = torch.optim.SGD(model["net"].parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path):
        train(model["net"], optimizer, 1)
        weight = weakref.ref(model["teacher"][0].weight)
        del model["teacher"]
        gc.collect()
        assert weight() is None
