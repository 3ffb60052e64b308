"""Trainings that go wrong: the rule finds the disease, its layer and its steps; the healthy twin is healthy."""

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import diseases
import numpy as np
import pytest
import torch
from recordings import Recorded, recorded
from torch import nn
from trainings import fit, one, serious

import gradwatch
from gradwatch.analysis.rules import diagnose, verdict
from gradwatch.analysis.rules.noise import noise_dominated
from gradwatch.analysis.rules.vanishing import vanishing
from gradwatch.history import Run
from gradwatch.launcher.demo import char_rnn
from gradwatch.launcher.demo.data import load_text
from gradwatch.open_run import open_history

d = Recorded(diseases)
HERE = Path(__file__).parent
CLIP = "ClipByGlobalNorm(1.0)"
SKIP = "SkipNonfinite()"


@pytest.mark.parametrize(
    "train",
    {
        "adding problem, clipped": partial(d.adding_rnn, gain=1.5, clip=CLIP),
        "deep ReLU, He's weights": d.deep_relu,
        "regression, low rate": partial(d.regression, lr=0.1),
        "cross_entropy": partial(d.own_softmax, safe=True),
        "square root with epsilon": partial(d.square_root, safe=True),
        "float16, low scale": partial(d.half, scale=2.0**10),
        "deep ReLU instead of sigmoid": partial(d.deep_sigmoid, act=nn.ReLU),
        "ReLU, low rate": d.dying_relu,
        "both heads used": partial(d.two_heads, both=True),
        "spare head frozen": partial(d.two_heads, frozen=True),
        "spare head frozen and not held": partial(d.two_heads, frozen=True, forgotten=True),
        "inputs from 0 to 1": partial(d.unscaled_inputs, scale=1.0, lr=0.1),
        "unscaled": partial(d.forgotten_scaler, right=True),
        "unscaled, SGD and clip": partial(d.forgotten_scaler, right=True, kind=torch.optim.SGD, lr=0.1, clip=CLIP),
        "zeroed, Adam": partial(d.never_zeroed, zero_grad=True),
        "zeroed, SGD": partial(d.never_zeroed, zero_grad=True, kind=torch.optim.SGD, lr=0.1),
    }.items(),
    ids=lambda pair: pair[0],
)
def test_the_healthy_twin_is_healthy(train, tmp_path):
    _, train = train
    history = train(tmp_path)
    assert serious(diagnose(history)) == []
    assert verdict(history) == ("no findings" if len(history) > 31 else "too short to judge")
    loss = history.total("loss")
    assert np.median(loss[-5:]) < np.median(loss[:5])


# ------------------------------------------------------------------------------------------ exploding and non-finite


def test_an_rnn_without_a_clip_explodes_along_time(tmp_path):
    history = d.adding_rnn(tmp_path, gain=1.5)
    (root,) = diagnose(history)
    assert (root.rule, root.severity, root.layers) == ("exploding", "error", ("rnn.weight_hh_l0",))
    assert root.evidence["along"] == "time"
    assert 3 <= root.first_step <= 12
    assert root.last_step == 99
    bad = int(np.flatnonzero(~np.isfinite(history.total("grad_norm")))[0])
    nonfinite = one([root], "nonfinite")
    assert (nonfinite.first_step, nonfinite.evidence["after"]) == (bad, "growth")
    assert 'clip="ClipByGlobalNorm(1.0)"' in root.cure
    assert "only 5 steps were healthy" in root.cure


@pytest.mark.parametrize("seed", range(3))
def test_the_demos_rnn_gets_one_diagnosis_whatever_its_seed(seed, tmp_path):
    """Half of a usual gradient is that of the recurrent weights: no sign that it grew along time."""
    torch.manual_seed(seed)
    text = load_text(None)
    letters, model = torch.from_numpy(text.train), char_rnn.CharRNN(len(text.alphabet))

    def loss_of(step):
        piece = letters[torch.randint(len(letters) - 65, (32, 1)) + torch.arange(65)]
        return char_rnn.next_character_loss(model(piece[:, :-1]), piece[:, 1:])

    def train(folder):
        return fit(folder, model, torch.optim.SGD(model.parameters(), lr=5.0), loss_of, 80)

    history = recorded(f"demos-rnn-seed={seed}", train, tmp_path)
    assert [f.rule for f in diagnose(history) if f.severity == "error"] == ["lr-too-high"]


def test_a_deep_network_with_large_weights_explodes_along_its_depth(tmp_path):
    (root,) = diagnose(d.deep_relu(tmp_path, gain=2.0))
    assert (root.rule, root.first_step, root.evidence["along"]) == ("exploding", 0, "depth")
    assert root.layers[0].startswith("0.")
    assert root.evidence["growth_per_layer"] == pytest.approx(2.0, rel=0.15)
    assert [f.rule for f in root.consequences] == ["nonfinite"]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_too_high_a_rate_stands_above_its_explosion_and_the_cure_knows_the_optimizer(kind, tmp_path):
    adam = kind is torch.optim.Adam
    history = d.deep_relu(tmp_path, lr=3.0, kind=kind) if adam else d.regression(tmp_path, lr=1.0)
    (root,) = diagnose(history)
    apart = next(f for f in root.consequences if f.rule == "exploding")
    assert (root.rule, root.severity) == ("lr-too-high", "error")
    assert (apart.layers, apart.evidence["along"]) == ((), "steps")
    assert max(root.first_step, apart.first_step) <= 15
    assert [("ClipByGlobalNorm" in f.cure) != adam for f in (root, apart)] == [True, True]


def test_a_loss_that_is_nan_first_is_told_from_a_gradient_that_is(tmp_path):
    (found,) = diagnose(d.own_softmax(tmp_path / "softmax"))
    assert (found.rule, found.first_step, found.last_step) == ("nonfinite", 20, 39)
    assert (found.evidence["first"], found.evidence["after"]) == ("loss", "nothing")
    assert "log(0)" in found.cause
    (found,) = diagnose(d.square_root(tmp_path / "root"))
    assert (found.rule, found.first_step, found.last_step) == ("nonfinite", 20, 39)
    assert (found.evidence["first"], found.evidence["after"]) == ("gradient", "nothing")


def test_the_layers_on_both_sides_of_a_nan_bracket_its_origin(tmp_path):
    (found,) = diagnose(d.square_root(tmp_path))
    assert found.layers == ("body.weight", "body.bias", "arm.weight", "arm.bias")
    assert (found.evidence["last_nonfinite"], found.evidence["next_finite"]) == ("arm.bias", "head.weight")
    assert "between arm.bias and head.weight" in found.cause


def test_a_float16_overflow_is_told_from_a_sudden_nan(tmp_path):
    (found,) = diagnose(d.half(tmp_path))
    assert (found.rule, found.first_step, found.evidence["after"]) == ("nonfinite", 0, "float16")
    assert (found.evidence["last_nonfinite"], found.evidence["next_finite"]) == ("2.bias", "the loss")
    assert "65504" in found.cause


def test_steps_that_the_policy_skipped_are_a_warning(tmp_path):
    (found,) = diagnose(d.square_root(tmp_path, clip=SKIP, until=23))
    assert (found.rule, found.severity, found.evidence["skipped"]) == ("nonfinite", "warning", "yes")
    assert (found.first_step, found.last_step) == (20, 22)


def test_a_scaler_that_finds_its_scale_is_a_note(tmp_path):
    history = d.scaled_by_a_scaler(tmp_path)
    (found,) = diagnose(history)
    assert (found.rule, found.severity) == ("nonfinite", "note")
    assert found.evidence["steps"] == history.total("skipped").sum() > 0


# ------------------------------------------------------------------------------------------- vanishing, dead, absent


def test_ten_sigmoid_layers_vanish(tmp_path):
    (found,) = diagnose(d.deep_sigmoid(tmp_path))
    assert (found.rule, found.severity, found.first_step, found.last_step) == ("vanishing", "warning", 0, 149)
    assert found.layers[:2] == ("0.weight", "2.weight")
    assert "20.weight" not in found.layers
    assert found.evidence["shrinks_per_layer_by"] == pytest.approx(1 / 0.24, rel=0.15)  # methods: S2


def test_under_adam_it_is_a_note_because_every_layer_moves(tmp_path):
    history = d.deep_sigmoid(tmp_path, kind=torch.optim.Adam, lr=1e-3)
    falls = {**history.per_step, "loss": np.linspace(1.4, 0.5, len(history))}
    (found,) = vanishing(replace(history, by_step=replace(history.by_step, values=falls)))
    assert (found.rule, found.severity) == ("vanishing", "note")
    assert found.evidence["update_ratio_decades"] < 1
    assert vanishing(history)[0].severity == "warning"
    (root,) = diagnose(history)  # whose losses come to no more than chance, all the same
    assert (root.rule, root.severity, root.consequences[0].rule) == ("vanishing", "warning", "no-progress")


def test_units_that_are_dead_from_the_start(tmp_path):
    (found,) = diagnose(d.dying_relu(tmp_path, bias=-30.0))
    assert (found.rule, found.first_step, found.last_step) == ("bad-initialisation", 0, 119)
    assert found.layers == ("0.weight", "0.bias", "2.weight")
    assert "biases began far from 0, those of `0` by 30" in found.cause
    assert found.evidence["since"] == "the start"


def test_units_that_one_batch_has_killed(tmp_path):
    (root,) = diagnose(d.dying_relu(tmp_path, lr=0.2, shock=1000.0))
    assert (root.rule, root.first_step, root.evidence["odd_batch"]) == ("spike", 40, 40)
    assert one([root], "exploding").first_step == 41  # what that batch did
    dead = one([root], "dead-layer")
    assert dead.layers == ("0.weight", "0.bias", "2.weight", "2.bias", "4.weight")
    assert 41 <= dead.first_step <= 50
    assert dead.evidence["since"] == f"step {dead.first_step}"


def test_a_head_that_nothing_uses_has_no_gradient(tmp_path):
    (found,) = diagnose(d.two_heads(tmp_path))
    assert (found.rule, found.severity, found.layers) == ("no-gradient", "warning", ("spare.weight", "spare.bias"))
    assert (found.first_step, found.last_step, found.evidence["missing"]) == (0, 59, "no gradient")


def test_a_bias_that_a_loss_of_derivatives_does_not_know_is_no_disease(tmp_path):
    torch.manual_seed(0)
    energy = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(energy.parameters(), 1e-2)
    with gradwatch.watch(energy, optimizer, dir=tmp_path, log=None, verbose=False) as watch:
        for _ in range(60):
            x = torch.randn(32, 2, requires_grad=True)
            (slope,) = torch.autograd.grad(energy(x).sum(), x, create_graph=True)
            loss = (slope - x.detach()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.log(loss=loss)
    history = open_history(watch.dir)
    assert not np.isfinite(history.layer("grad_norm")[:, -1]).any()
    assert not [f for f in diagnose(history) if f.rule == "no-gradient"]


def test_a_head_that_no_optimizer_holds_is_named(tmp_path):
    history = d.two_heads(tmp_path, both=True, forgotten=True)
    (found,) = diagnose(history)
    assert (found.rule, found.layers) == ("not-in-optimizer", ("spare.weight", "spare.bias"))
    assert history.layers == ("body.weight", "body.bias", "head.weight", "head.bias")


def test_the_manifest_keeps_what_was_frozen_and_what_nobody_holds(tmp_path):
    run = diseases.two_heads(tmp_path, frozen=True, steps=1).run
    assert [layer.name for layer in run.layers if layer.frozen] == ["spare.weight", "spare.bias"]
    assert Run.from_json(run.to_json()) == run
    assert Run.from_json({"name": "x", "created": "now", "layers": [{"name": "w", "shape": [2]}]}).unheld == ()


# -------------------------------------------------------------------------------------- scale, accumulation, balance


def test_inputs_of_255_make_one_layer_the_whole_norm(tmp_path):
    (root,) = diagnose(d.unscaled_inputs(tmp_path))
    assert (root.rule, root.severity, root.layers) == ("inputs-not-normalised", "warning", ("0.weight",))
    assert 50 < root.evidence["input_rms"] < 1000
    found = one([root], "imbalance")
    assert (found.severity, found.layers) == ("warning", ("0.weight",))
    assert (found.first_step, found.last_step) == (0, 199)
    assert "only('0.weight', ClipByNorm(" in found.cure


def test_a_scaler_without_its_step_is_found(tmp_path):
    options = {"kind": torch.optim.SGD, "lr": 1e-3, "clip": CLIP}
    found = one(diagnose(d.forgotten_scaler(tmp_path / "sgd", **options)), "scaled-gradients")
    assert (found.severity, found.first_step, found.last_step) == ("warning", 0, 119)
    assert 1e4 < found.evidence["times_too_large_for_the_loss"] < 1e6
    (found,) = diagnose(d.forgotten_scaler(tmp_path / "adam"))
    assert (found.rule, found.severity) == ("scaled-gradients", "note")  # Adam does not mind


@pytest.mark.parametrize(("kind", "lr"), [(torch.optim.Adam, 1e-3), (torch.optim.SGD, 1e-2), (torch.optim.Adam, 1e-2)])
def test_gradients_that_nothing_zeroes_are_found(kind, lr, tmp_path):
    (found,) = diagnose(d.never_zeroed(tmp_path, kind=kind, lr=lr))
    severity = "warning" if lr == 1e-3 else "error"  # at so low a rate it learns all the same
    assert (found.rule, found.severity, found.first_step, found.last_step) == ("gradients-accumulate", severity, 0, 99)
    assert 0.5 < found.evidence["grows_per_step_by"] / found.evidence["first_grad_norm"] < 1.1


@pytest.mark.slow
def test_batches_that_are_mostly_noise_are_told_from_those_that_agree(tmp_path):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, (HERE.parents[1], HERE)))}
    start = [sys.executable, HERE / "two_ranks.py", tmp_path]
    ranks = [subprocess.Popen([*start, str(rank)], env=env, stderr=subprocess.PIPE, text=True) for rank in (0, 1)]
    for rank in ranks:
        _, said = rank.communicate(timeout=200)
        assert rank.returncode == 0, said[-3000:]
    noisy, clear = (open_history(next((tmp_path / name).iterdir())) for name in ("noisy", "clear"))
    (found,) = noise_dominated(noisy)
    assert (found.severity, found.first_step, found.last_step) == ("note", 50, 99)
    assert found.evidence["noise_scale_in_batches"] > 10
    assert diagnose(clear) == []
