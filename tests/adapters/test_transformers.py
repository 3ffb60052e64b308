"""The Hugging Face callback in a real Trainer, on a tiny model with random weights."""

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from gradwatch import open_history
from gradwatch.adapters import __file__ as adapters

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments  # noqa: E402

from gradwatch.adapters.transformers import GradWatchCallback  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_accelerator")


def build(dtype=torch.float32, dropout=0.0):
    torch.manual_seed(0)
    size = {"vocab_size": 32, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    drop = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    return GPT2LMHeadModel(GPT2Config(**size, **drop, bos_token_id=0, eos_token_id=0)).to(dtype)


def data(rows):
    tokens = torch.randint(32, (rows, 12), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in tokens]


class Norms(TrainerCallback):
    """The float64 norms of the gradients right before each step, as an oracle."""

    def __init__(self):
        self.seen = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.seen.append([p.grad.double().norm().item() for p in model.parameters()])


class Stops(TrainerCallback):
    """Ends the training with an exception, after `step` steps."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise RuntimeError("power cut")


def trainer(model, tmp_path, *callbacks, kind=Trainer, **options):
    quiet = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "logging_steps": 1, "save_strategy": "no"}
    steps = {"per_device_train_batch_size": 4, "max_steps": 6, "learning_rate": 0.01, "optim": "adamw_torch"}
    args = TrainingArguments(tmp_path / "out", **{**quiet, **steps, **options})
    return kind(model, args, train_dataset=data(64), eval_dataset=data(8), callbacks=[*callbacks])


def gradwatch(tmp_path, **options):
    return GradWatchCallback(**{"log": None, "dir": tmp_path / "runs", "verbose": False, **options})


def logs(trained, name):
    return [entry[name] for entry in trained.state.log_history if name in entry]


# ------------------------------------------------------------------------------------------------- what is measured


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 3}, {"bf16": True}], ids=str)
def test_the_recorded_norms_are_those_before_each_step(options, tmp_path):
    norms, callback = Norms(), gradwatch(tmp_path, clip="ClipByGlobalNorm(0.1)")
    trained = trainer(build(), tmp_path, norms, callback, max_grad_norm=0, **options)
    trained.train()
    history = open_history(callback.watch.dir)
    assert history.step.tolist() == list(range(6))
    assert history.layers[0] == "transformer.wte.weight"
    np.testing.assert_allclose(history.layer("grad_norm"), norms.seen, rtol=1e-5)
    # the Trainer's own measurement, float32
    np.testing.assert_allclose(history.total("grad_norm"), logs(trained, "grad_norm"), rtol=1e-5)
    assert history.run.total_steps == 6
    assert history.run.status == "FINISHED"


def test_the_trainers_own_clip_comes_first(tmp_path):
    callback = gradwatch(tmp_path)
    trained = trainer(build(), tmp_path, callback, max_grad_norm=0.5)
    trained.train()
    before, history = logs(trained, "grad_norm"), open_history(callback.watch.dir)
    assert min(before) > 0.5
    np.testing.assert_allclose(history.total("grad_norm"), 0.5, rtol=1e-5)
    assert set(history.total("user_max_norm")) == {0.5}
    np.testing.assert_allclose(history.total("user_grad_norm"), before, rtol=1e-6)


def test_clip_by_global_norm_does_what_max_grad_norm_does(tmp_path):
    want, got = build(), build()
    trainer(want, tmp_path, max_grad_norm=0.1).train()
    trainer(got, tmp_path, gradwatch(tmp_path, clip="ClipByGlobalNorm(0.1)"), max_grad_norm=0).train()
    torch.testing.assert_close(got.state_dict(), want.state_dict(), rtol=1e-5, atol=1e-6)


def test_without_a_policy_training_is_bit_identical(tmp_path):
    models, random = [build(dropout=0.2) for _ in range(2)], []
    for model, callbacks in zip(models, ([], [gradwatch(tmp_path, slots=True, every=2)]), strict=True):
        trainer(model, tmp_path, *callbacks, gradient_accumulation_steps=2).train()
        random.append(torch.rand(1))
    torch.testing.assert_close(models[0].state_dict(), models[1].state_dict(), rtol=0, atol=0)
    assert random[0] == random[1]


def test_loss_and_metrics_stand_at_the_step_they_are_of(tmp_path):
    callback = gradwatch(tmp_path)
    options = {"logging_steps": 2, "eval_strategy": "steps", "eval_steps": 3}
    trained = trainer(build(), tmp_path, callback, **options)
    trained.train()
    trained.evaluate()  # after the training: nothing to record, nothing to warn of
    history = open_history(callback.watch.dir)
    assert set(history.logged) == {"loss", "eval_loss", "train_loss"}
    for name, steps in (("loss", [1, 3, 5]), ("eval_loss", [2, 5])):
        values = history.total(name)
        assert np.flatnonzero(np.isfinite(values)).tolist() == steps
        np.testing.assert_array_equal(values[steps], np.float64(logs(trained, name)[: len(steps)]))


# --------------------------------------------------------------------------------------------------------- the end


@pytest.mark.slow
@pytest.mark.parametrize("restore", [False, True])
def test_a_training_from_a_checkpoint_goes_on_where_it_was_saved(restore, tmp_path):
    clip = "AutoClip(50)"
    options = {"save_strategy": "steps", "save_steps": 4, "max_steps": 9}
    want, whole = build(), gradwatch(tmp_path, clip=clip)
    trainer(want, tmp_path / "whole", whole, **options).train()

    first, second = gradwatch(tmp_path, clip=clip), gradwatch(tmp_path, clip=clip)
    with pytest.raises(RuntimeError, match="power cut"):
        trainer(build(), tmp_path, first, Stops(6), **options).train()
    first.watch.close("FAILED")
    got = build()
    resumed = trainer(got, tmp_path, second, restore_callback_states_from_checkpoint=restore, **options)
    resumed.train(resume_from_checkpoint=True)
    (second,) = [c for c in resumed.callback_handler.callbacks if isinstance(c, GradWatchCallback)]

    torch.testing.assert_close(got.state_dict(), want.state_dict(), rtol=0, atol=0)
    a, b = open_history(whole.watch.dir), open_history(second.watch.dir)
    assert second.watch.dir == first.watch.dir.resolve()
    assert (b.step.tolist(), b.attempt.tolist()) == (list(range(9)), [0] * 4 + [1] * 5)
    for quantity in ("grad_norm", "clip_coef"):
        np.testing.assert_array_equal(a.layer(quantity), b.layer(quantity))
    kept, loaded = whole.watch.state_dict()["policy_state"], second.watch.state_dict()["policy_state"]
    torch.testing.assert_close(loaded, kept, rtol=0, atol=0, equal_nan=True)


def test_a_checkpoint_of_an_unwatched_training_is_watched_from_here_on(tmp_path):
    options = {"save_strategy": "steps", "save_steps": 2}
    trainer(build(), tmp_path, max_steps=2, **options).train()
    callback = gradwatch(tmp_path, params={"seed": 0}, clip="ClipByNorm(1.0)")
    trainer(build(), tmp_path, callback, max_steps=4, **options).train(resume_from_checkpoint=True)
    assert open_history(callback.watch.dir).step.tolist() == [0, 1]
    kept = json.loads((tmp_path / "out/checkpoint-4/trainer_state.json").read_text())["stateful_callbacks"]
    assert kept["GradWatchCallback"]["args"]["clip"] == "ClipByNorm(1.0)"


def test_a_second_training_is_a_run_of_its_own(tmp_path):
    callback = gradwatch(tmp_path)
    trained = trainer(build(), tmp_path, callback)
    trained.train()
    first = callback.watch
    trained.train()
    assert callback.watch.dir != first.dir
    assert len(open_history(callback.watch.dir)) == len(open_history(first.dir)) == 6


def test_a_training_that_raised_has_failed_when_the_next_begins(tmp_path):
    callback = gradwatch(tmp_path)
    with pytest.raises(RuntimeError, match="power cut"):
        trainer(build(), tmp_path, callback, Stops(3)).train()
    failed = callback.watch.dir
    assert not callback.watch.closed  # the Trainer tells nobody
    trainer(build(), tmp_path, callback).train()
    assert open_history(failed).run.status == "FAILED"
    assert len(open_history(failed)) == 3


@pytest.mark.slow
def test_a_script_whose_training_raises_ends_and_says_so(tmp_path):
    script = """
from pathlib import Path
from test_transformers import Stops, build, gradwatch, trainer
trainer(build(), Path.cwd(), gradwatch(Path.cwd()), Stops(3)).train()
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert "RuntimeError: power cut" in done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    history = open_history(folder)
    assert (history.run.status, len(history)) == ("FAILED", 3)


# ------------------------------------------------------------------------------------------------------------ MLflow


def test_the_trainers_mlflow_run_is_joined(store, tmp_path):
    import mlflow

    from gradwatch.tracking.courier import Courier

    mlflow.set_tracking_uri(store)
    callback = gradwatch(tmp_path, log="mlflow", delivery="none")
    try:
        trainer(build(), tmp_path, callback, report_to="mlflow").train()
        mlflow.flush_async_logging()
    finally:
        mlflow.end_run()
        mlflow.set_tracking_uri(None)
    assert Courier(callback.watch.dir).deliver().done
    client = mlflow.MlflowClient(store)
    (run,) = client.search_runs(["0"])
    assert {"grad_norm/total", "loss", "learning_rate", "train_loss"} <= set(run.data.metrics)
    assert run.data.params["gradwatch.clip"] == "None"


# ----------------------------------------------------------------------------------------------------------- install


def test_without_transformers_one_sentence_says_what_to_install(monkeypatch):
    for name in ("transformers", "transformers.trainer_callback"):
        monkeypatch.setitem(sys.modules, name, None)
    spec = importlib.util.spec_from_file_location("again", adapters.replace("__init__", "transformers"))
    with pytest.raises(ImportError, match=r"pip install 'gradwatch\[transformers\]'"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
