"""What a cure advises is tried on small trainings: words that fit the cause, numbers that help."""

import re

import numpy as np
import pytest
import step_diseases as d
import torch
from diseases import sgd
from make_run import changed, make_history
from nets import batches, classify, mlp
from torch import nn
from torch.nn import functional as F
from trainings import fit, one, policies_in

import gradwatch
from gradwatch.analysis.rules import Finding, diagnose
from gradwatch.analysis.rules.guard import healthy
from gradwatch.analysis.rules.spikes import spike
from gradwatch.launcher.cures import applied
from gradwatch.policies.intervention import Intervention

OWN_PAST = gradwatch.parse("chain(SkipNonfinite(), AdaGC())")


def end(history):
    return float(np.median(history.total("loss")[-10:]))


def tried(finding, n=0):
    """The arguments of `watch()` that a cure stands for."""
    return applied(Intervention(), finding.tries[n]).arguments


# ---------------------------------------------------------------------------------------------------------- the words


@pytest.mark.parametrize(("bias", "rule"), [(-17.0, "update-too-small"), (-25.0, "weights-unchanged")])
def test_gradients_that_are_small_behind_a_saturated_output_ask_for_no_higher_rate(bias, rule, tmp_path):
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    nn.init.constant_(net.bias, bias)
    x = torch.randn(64, 4)
    y = (x[:, :1] > 0).float()
    history = fit(tmp_path, net, sgd(net, 0.5), lambda step: F.mse_loss(net(x).sigmoid(), y), 60)
    finding = one(diagnose(history), rule)
    assert "saturated" in finding.cure
    assert finding.tries == ()


def test_a_rate_that_is_small_is_to_be_raised(tmp_path):
    assert one(diagnose(d.tiny_rate(tmp_path)), "update-too-small").tries
    assert "Raise" in one(diagnose(d.digits(tmp_path / "sgd", d.sgd(1e-7), 60)), "update-too-small").cure


def test_a_loss_that_begins_in_the_millions_is_said_before_the_rate(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(64, 8)

    def train(folder, scale, rate):
        net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        loss_of = lambda step: F.mse_loss(net(x), scale * x[:, :1])  # noqa: E731
        return one(diagnose(fit(folder, net, sgd(net, rate), loss_of, 60)), "exploding")

    assert "Scale the targets" in train(tmp_path / "large", 1e4, 0.5).cure
    assert "Scale the targets" not in train(tmp_path / "unit", 1.0, 3.0).cure


# -------------------------------------------------------------------------------------------------------- the numbers


def test_where_a_clip_kept_a_training_from_learning_its_cure_does_not(tmp_path):
    tight = "ClipByValue(-1e-06, 1e-06)"
    history = d.digits(tmp_path / "tight", d.sgd(0.1), 120, clip=tight)
    finding = one(diagnose(history), "clip-is-your-learning-rate")
    assert "of a usual size" in finding.cure
    untreated = end(history)
    net = mlp()
    treated = fit(tmp_path / "treated", net, sgd(net, 0.1), classify(net, batches()), 120, **tried(finding))
    assert untreated > 2.2 > 1.8 > end(treated)


def test_in_the_place_of_the_loops_own_clip_nothing_can_be_tried_on_an_unchanged_script(tmp_path):
    finding = one(diagnose(d.throttled(tmp_path, own=True)), "clip-is-your-learning-rate")
    assert finding.tries == ()
    assert "in place of the loop's own clip (gradwatch run --script-clip replace)" in finding.cure
    assert len(policies_in(finding)) == 1


def test_a_higher_rate_is_the_one_that_makes_usual_steps(tmp_path):
    found = one(diagnose(d.digits(tmp_path, d.sgd(4e-5), 120)), "no-progress")
    scale = float(re.fullmatch(r"--lr-scale (\S+)", found.tries[0])[1])
    assert 0.6 < scale * found.evidence["update_ratio"] / found.evidence["usual"] < 1.6


def spiky(kind, every):
    """A run of a quiet norm, a spike in each `every` steps."""
    optimizers = ({"name": kind, "class": kind, "settings": {"lr": 0.1}},)
    history = make_history(300, optimizers=optimizers, clip=None, logged=())
    norm = 1 + 0.01 * np.random.default_rng(0).standard_normal(300)
    norm[50::every] *= 50
    return changed(history, per_step={**history.per_step, "grad_norm": norm, "clipped_norm": norm})


@pytest.mark.parametrize(("kind", "every", "own_past"), [("Adam", 25, True), ("Adam", 400, False), ("SGD", 25, False)])
def test_many_spikes_under_adam_are_bounded_by_each_layers_own_past(kind, every, own_past):
    (finding,) = spike(spiky(kind, every))
    assert ("AdaGC" in finding.cure) == own_past
    assert (finding.tries[0] == "--clip 'chain(SkipNonfinite(), AdaGC())'") == own_past


@pytest.mark.parametrize(("severity", "steps"), [("error", 50), ("warning", 293)])
def test_after_a_spike_that_ruined_a_training_no_step_is_healthy(severity, steps):
    history = spiky("SGD", 40)
    finding = Finding("spike", severity, (), 50, 250)
    assert healthy(history, [finding]).sum() == steps
