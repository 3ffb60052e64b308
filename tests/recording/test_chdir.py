"""A training that changes its working directory after `watch()`, as Hydra and notebooks do, with relative paths."""

import os
import subprocess
import sys

import pytest
import torch

import gradwatch
from gradwatch.open_run import open_history
from gradwatch.recording import courier_process, mlflow_target
from gradwatch.storage.delivery_cursor import read_cursor


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Where the training goes; it begins in `tmp_path`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    place = tmp_path / "elsewhere"
    place.mkdir()
    return place


def train(watch_options=None, steps=5, state=None, elsewhere=None):
    """A training that goes elsewhere once it is watched; its Watch, and its state after so many steps."""
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = gradwatch.watch(model, optimizer, verbose=False, **(watch_options or {}))
    if elsewhere is not None:
        os.chdir(elsewhere)
    if state is not None:
        watch.load_state_dict(state)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    saved = watch.state_dict()
    watch.close()
    return watch, saved


def test_a_run_is_resumed_where_it_began(elsewhere, tmp_path):
    _, saved = train({"log": None, "delivery": "none"}, elsewhere=elsewhere)
    assert os.getcwd() == str(elsewhere)
    again, _ = train({"log": None, "delivery": "none"}, state=saved)
    assert again.dir.is_absolute()
    (folder,) = (tmp_path / "gradwatch-runs").iterdir()  # one run: no second one was begun
    assert again.dir == folder
    assert open_history(folder).step.tolist() == list(range(10))
    assert not any((elsewhere / "gradwatch-runs").glob("*"))


def test_the_parts_of_a_shared_run_stay_together(elsewhere, tmp_path):
    options = {"log": None, "delivery": "none"}
    first, _ = train({**options, "name": "G"}, elsewhere=elsewhere)
    assert open_history(tmp_path / "gradwatch-runs" / first.dir.parent.name).step.tolist() == list(range(5))
    assert first.dir.is_absolute()


def test_a_relative_store_is_noted_as_that_of_the_folder_in_which_the_run_began(elsewhere, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.setattr(mlflow_target.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    assert mlflow_target.target()["tracking_uri"] == f"sqlite:///{tmp_path}/mlflow.db"
    assert mlflow_target.target("0" * 32, "./runs")["tracking_uri"] == f"{tmp_path}/runs"


def test_the_helpers_begin_where_the_training_began(elsewhere, tmp_path, monkeypatch):
    started = []
    real = subprocess.Popen

    def popen(command, **options):
        started.append((command, options))
        return real([sys.executable, "-c", ""], **options)

    monkeypatch.setattr(courier_process.subprocess, "Popen", popen)
    train({"log": "mlflow"}, elsewhere=elsewhere)
    ((command, options),) = started
    assert command[-1].startswith(str(tmp_path / "gradwatch-runs"))
    assert options["cwd"] == str(tmp_path)


def test_where_the_folder_in_which_it_began_is_gone_the_courier_begins_here(tmp_path):
    (folder := tmp_path / "run").mkdir()
    process = courier_process.start_courier(folder, str(tmp_path / "gone"))
    assert process is not None
    process.kill()
    process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("uri", [None, "sqlite:///mlflow.db"])
def test_everything_reaches_the_store_of_the_folder_in_which_it_began(store, elsewhere, monkeypatch, uri):
    if uri is not None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    watch, _ = train(elsewhere=elsewhere)
    cursor = courier_process.wait_delivered(watch.dir, 120)
    assert cursor["done"], (watch.dir / "courier.log").read_text()
    assert read_cursor(watch.dir)["tracking_uri"] == store
    assert not list(elsewhere.iterdir())


SCRIPT = """
import os
import torch
os.chdir("elsewhere")
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
import mlflow
with mlflow.start_run():
    mlflow.log_metric("mine", 1.0)
"""


@pytest.mark.slow
def test_a_script_that_goes_elsewhere_logs_where_it_was_started(store, elsewhere, monkeypatch, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    done = subprocess.run(
        [sys.executable, "-m", "gradwatch", "run", "train.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "gradwatch-runs").iterdir()
    cursor = courier_process.wait_delivered(folder, 120)
    assert cursor["done"], (folder / "courier.log").read_text()
    assert cursor["tracking_uri"] == store
    assert not list(elsewhere.iterdir())
