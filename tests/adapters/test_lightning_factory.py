"""GRADWATCH_LIGHTNING: every Trainer of a script that nobody edits is watched."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gradwatch
from gradwatch.adapters.lightning_factory import VARIABLE, callbacks

try:
    import tomllib
except ImportError:
    import tomli as tomllib

torch, pl = pytest.importorskip("torch"), pytest.importorskip("lightning.pytorch")


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class EntryPoint:
    name = "gradwatch"

    def load(self):
        return callbacks


@pytest.fixture
def fit(tmp_path, monkeypatch):
    """A fit of a Trainer that has the entry point, as an installed gradwatch gives it one."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    group = "lightning.pytorch.callbacks_factory"
    assert project["entry-points"][group] == {"gradwatch": f"{callbacks.__module__}:callbacks"}
    monkeypatch.setattr(
        "lightning.fabric.utilities.registry.entry_points", lambda group: [EntryPoint()] if "pytorch" in group else []
    )
    monkeypatch.setattr("gradwatch.recording.courier_process.start_courier", lambda *_: None)
    monkeypatch.chdir(tmp_path)

    def fitted(*own):
        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(40, 4)), batch_size=4)
        trainer = pl.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, callbacks=list(own),
        )  # fmt: skip
        trainer.fit(Net(), data)
        return [gradwatch.open_history(path) for path in sorted(tmp_path.glob("gradwatch-runs/*"))]

    return fitted


@pytest.mark.parametrize("value", [None, "", "0", "no"])
def test_without_the_variable_there_is_no_callback(value, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False) if value is None else monkeypatch.setenv(VARIABLE, value)
    assert callbacks() == []


@pytest.mark.parametrize(("value", "clip"), [("1", None), ("ClipByGlobalNorm(0.01)", "ClipByGlobalNorm(0.01)")])
def test_a_trainer_is_watched_with_the_policy_of_the_variable(value, clip, fit, monkeypatch):
    monkeypatch.setenv(VARIABLE, value)
    (history,) = fit()
    assert (len(history), history.run.clip, history.run.status) == (10, clip, "FINISHED")
    assert "loss" in history.logged


def test_a_callback_of_the_scripts_own_is_the_only_one(fit, monkeypatch):
    from gradwatch.adapters.lightning import GradWatch

    monkeypatch.setenv(VARIABLE, "ClipByGlobalNorm(0.01)")
    (history,) = fit(GradWatch(log=None))
    assert (len(history), history.run.clip) == (10, None)


def test_who_does_not_use_it_pays_nothing():
    code = (
        "import sys; from gradwatch.adapters.lightning_factory import callbacks; assert callbacks() == []\n"
        "assert not {'torch', 'lightning', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_a_trainer_of_pytorch_lightning_is_watched_too(tmp_path):
    """In a process of its own: the two packages are one code under two names."""
    pytest.importorskip("pytorch_lightning")
    group = "pytorch_lightning.callbacks_factory"
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"][group] == {"gradwatch": f"{callbacks.__module__}:callbacks"}
    script = f"""
import torch, pytorch_lightning as pl, lightning_fabric.utilities.registry as registry
from gradwatch.adapters.lightning_factory import callbacks

class EntryPoint:
    name = "gradwatch"
    def load(self):
        return callbacks

registry.entry_points = lambda group: [EntryPoint()] if group == {group!r} else []

class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch):
        return self.layer(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(40, 4)), batch_size=4)
pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
           enable_model_summary=False).fit(Net(), data)
"""
    told = {VARIABLE: "ClipByGlobalNorm(0.01)", "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}"}
    code = "import gradwatch.recording.courier_process as c; c.start_courier = lambda *_: None\n" + script
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env={**os.environ, **told})
    (folder,) = tmp_path.glob("gradwatch-runs/*")
    history = gradwatch.open_history(folder)
    assert (len(history), history.run.clip, history.run.status) == (10, "ClipByGlobalNorm(0.01)", "FINISHED")
    assert "loss" in history.logged
