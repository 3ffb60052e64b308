"""Hydra's configuration becomes params; a program without it pays nothing, and a broken one harms nothing."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

import gradwatch
from gradwatch.recording.hydra_params import hydra_params

SCRIPT = """
import hydra, torch, gradwatch

@hydra.main(version_base=None, config_path=".", config_name="config")
def main(cfg):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.optim.lr)
    with gradwatch.watch(model, optimizer, log=None, dir=cfg.out, verbose=False, params={"args.seed": 9}):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

main()
"""
CONFIG = """
seed: 1
out: ???
optim: {lr: 0.1, twice: "${optim.lr}", betas: [0.9, 0.99]}
logger: {api_key: abc, uri: "http://user:secret@host/x"}
"""


@pytest.mark.slow
def test_a_configuration_becomes_params(tmp_path):
    pytest.importorskip("hydra")
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "config.yaml").write_text(CONFIG)
    words = [sys.executable, "train.py", "optim.lr=0.25", f"out={tmp_path / 'runs'}"]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, text=True)
    (folder,) = (tmp_path / "runs").iterdir()
    params = gradwatch.open_history(folder).run.params
    params.pop("torch")
    assert params == {
        "args.seed": "9",  # what the program says itself counts
        "args.out": str(tmp_path / "runs"),
        "args.optim.lr": "0.25",
        "args.optim.twice": "0.25",
        "args.optim.betas": "[0.9, 0.99]",
        "args.logger.api_key": "***",
        "args.logger.uri": "http://host/x",
    }


def config(**own):
    return SimpleNamespace(HydraConfig=SimpleNamespace(initialized=lambda: True, get=lambda: SimpleNamespace(**own)))


@pytest.mark.parametrize("core", [None, object(), config(), config(runtime=1, output_subdir=None)])
def test_whatever_stands_in_hydras_place_harms_nothing(core, monkeypatch):
    monkeypatch.setitem(sys.modules, "hydra.core.hydra_config", core)
    monkeypatch.setitem(sys.modules, "omegaconf", SimpleNamespace())
    assert hydra_params() == {}
