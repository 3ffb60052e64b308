"""torchtune's recipe for one device, unedited, under `gradwatch run`, of a Llama of a few hundred weights on a CPU."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import gradwatch
from gradwatch import open_history

needed = ("torchtune", "sentencepiece", "omegaconf", "datasets")
pytestmark = [
    pytest.mark.slow,
    *(pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"needs {name}") for name in needed),
]
RECIPE = "full_finetune_single_device.py"
MODEL = {"num_layers": 2, "num_heads": 2, "num_kv_heads": 2, "embed_dim": 16, "max_seq_len": 128, "vocab_size": 300}
WAYS = {
    "clipped": {"clip_grad_norm": 0.5, "gradient_accumulation_steps": 1, "optimizer_in_bwd": False},
    "accumulated": {"clip_grad_norm": "inf", "gradient_accumulation_steps": 2, "optimizer_in_bwd": False},
    "inside backward": {"clip_grad_norm": None, "gradient_accumulation_steps": 1, "optimizer_in_bwd": True},
}


def kit(folder):
    """A tokenizer, 24 examples and random weights; the paths of a configuration."""
    import sentencepiece
    from torchtune.models.llama2 import llama2

    text = [f"sort the numbers {i} {7 * i % 13} and say {i % 5} words" for i in range(24)]
    (folder / "text").write_text("\n".join(text))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text"), model_prefix=str(folder / "m"), vocab_size=300, byte_fallback=True,
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    rows = [{"instruction": line, "input": "", "output": line[::-1]} for line in text]
    (folder / "data.json").write_text(json.dumps(rows))
    torch.manual_seed(0)
    torch.save(llama2(**MODEL).state_dict(), folder / "weights.pt")


def config(folder, way):
    return {
        "output_dir": str(folder / "out"), "device": "cpu", "dtype": "fp32", "seed": 1, "shuffle": True, "epochs": 1,
        "tokenizer": {"_component_": "torchtune.models.llama2.llama2_tokenizer",
                      "path": str(folder.parent / "kit" / "m.model"), "max_seq_len": 64},
        "dataset": {"_component_": "torchtune.datasets.alpaca_dataset", "source": "json",
                    "data_files": str(folder.parent / "kit" / "data.json"), "split": "train"},
        "model": {"_component_": "torchtune.models.llama2.llama2", **MODEL},
        "checkpointer": {"_component_": "torchtune.training.FullModelTorchTuneCheckpointer",
                         "checkpoint_dir": str(folder.parent / "kit"), "checkpoint_files": ["weights.pt"],
                         "output_dir": str(folder / "out"), "model_type": "LLAMA2"},
        "resume_from_checkpoint": False, "batch_size": 2, "max_steps_per_epoch": 5, "compile": False,
        "optimizer": {"_component_": "torch.optim.AdamW", "lr": 0.01}, "log_every_n_steps": 1,
        "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"},
        "metric_logger": {"_component_": "torchtune.training.metric_logging.DiskLogger", "log_dir": str(folder / "log"),
                          "filename": "log.txt"},
        **way,
    }  # fmt: skip


def trained(folder, way, *watching):
    """The weights that the recipe leaves, and the norms that it logs."""
    folder.mkdir()
    (folder / "config.yaml").write_text(json.dumps(config(folder, way)))
    recipe = Path(importlib.util.find_spec("recipes").origin).with_name(RECIPE)
    path = os.pathsep.join([str(Path(gradwatch.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "HF_HOME": str(folder / "hf"), "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, *watching, str(recipe), "--config", "config.yaml"],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    (left,) = (folder / "out" / "epoch_0").glob("*model*.bin")
    logged = (folder / "log" / "log.txt").read_text()
    return torch.load(left), [float(norm) for norm in re.findall(r"grad_norm:([\d.e+-]+)", logged)]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torchtune")
    (folder / "kit").mkdir()
    kit(folder / "kit")
    return folder


@pytest.mark.parametrize("way", WAYS)
def test_the_unedited_recipe_trains_as_without_and_its_norms_are_recorded(way, prepared):
    name = way.replace(" ", "-")
    bare, _ = trained(prepared / f"{name}-bare", WAYS[way])
    folder = prepared / f"{name}-watched"
    watching = ["-m", "gradwatch", "run", "--log", "none", "--dir", "runs"]
    weights, logged = trained(folder, WAYS[way], *watching)
    assert bare.keys() == weights.keys()
    assert [key for key in bare if not torch.equal(bare[key], weights[key])] == []
    history = open_history(next((folder / "runs").iterdir()))
    assert (len(history), set(history.layers)) == (5, {*weights})
    assert np.isfinite(history.layer("grad_norm")).all()
    if logged:
        coef = np.nan_to_num(history.total("user_clip_coef"), nan=1.0)
        np.testing.assert_allclose(history.total("grad_norm") / coef, logged, rtol=1e-4)
    assert (len(logged) == 5) == (way != "inside backward")
