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
from gradwatch.analysis.rules.facts import set_rate
from gradwatch.analysis.rules.gradients import exploding
from gradwatch.analysis.rules.guard import healthy
from gradwatch.analysis.rules.long_steps import lr_too_high
from gradwatch.analysis.rules.small_updates import weak_gradients
from gradwatch.analysis.rules.spikes import spike
from gradwatch.analysis.rules.step_length import lengthened, lowered
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


# ----------------------------------------------------------------------------------------------- what made others worse


def run_of(kind, loss, norm=None, rate=0.1, **settings):
    """A History of one optimizer with these losses, gradient norms and rates."""
    optimizers = ({"name": kind, "class": kind, "settings": {"lr": 0.1, **settings}},)
    history = make_history(len(loss), optimizers=optimizers, clip=None, logged=("loss",))
    norm = np.ones(len(loss)) if norm is None else norm
    rows = {"loss": loss, "grad_norm": norm, "clipped_norm": norm, "lr": np.broadcast_to(rate, len(loss))}
    return changed(history, per_step={**history.per_step, **rows})


def test_steps_in_which_the_loss_was_on_its_way_up_already_set_no_threshold():
    """Their norms are those of the explosion: a clip at the highest of them does not hold it."""
    loss = np.concatenate([np.linspace(3, 0.3, 60), np.linspace(0.3, 5, 60), np.full(80, 1e6)])
    history = run_of("SGD", loss)
    came_apart = Finding("exploding", "error", (), 120, 199)
    assert 55 <= healthy(history, [came_apart]).sum() <= 75
    assert healthy(run_of("SGD", np.linspace(3, 0.3, 200)), [came_apart]).sum() == 120


def test_betas_the_wrong_way_round_are_mended_before_any_rate():
    turned = run_of("Adam", np.linspace(2, 1, 200), betas=[0.999, 0.9])
    longer = lengthened(turned)
    assert longer.around("Lower it.").startswith("Begin with betas=(0.9, 0.999)")
    assert longer.left_of(("--lr-scale 0.1",)) == ()
    assert lengthened(run_of("Adam", np.linspace(2, 1, 200), betas=[0.9, 0.999])).left_of(("a",)) == ("a",)


@pytest.mark.parametrize("rule", [lr_too_high, exploding])
def test_of_a_rate_that_rises_to_the_end_no_tenth_is_tried(rule):
    """It would get to the same height later."""
    loss = np.concatenate([np.linspace(2, 1, 100), np.linspace(1, 30, 100)])
    (rising,) = rule(run_of("SGD", loss, np.maximum(1, loss), rate=1e-4 * 1.05 ** np.arange(200)))
    (steady,) = rule(run_of("SGD", loss, np.maximum(1, loss)))
    assert rising.tries == ()
    assert "schedule" in rising.cure
    assert steady.tries


def test_the_first_step_of_rmsprop_is_ten_times_as_long_as_those_that_follow(tmp_path):
    def scale(make, folder):
        net = mlp()
        return lowered(fit(folder, net, make(net.parameters(), 0.3), classify(net, batches()), 40))

    by_adam, by_rmsprop = (scale(make, tmp_path / make.__name__) for make in (torch.optim.Adam, torch.optim.RMSprop))
    assert by_adam < 0.1
    assert 0.5 < by_rmsprop / by_adam < 2


@pytest.mark.parametrize(("steps", "clipped"), [(1, True), (4, False)])
def test_a_loss_that_stays_up_for_several_steps_asks_for_no_clip(steps, clipped):
    """One odd batch is over in one."""
    row, noise = np.arange(400), 0.01 * np.random.default_rng(0).standard_normal(400)
    up = (row > 100) & (row % 50 < steps)
    (finding,) = spike(run_of("SGD", np.where(up, 9.0, np.linspace(1.5, 1, 400) + noise)))
    assert finding.evidence["in_loss"] == up.sum()
    assert ("clip=" in finding.cure) == clipped
    assert any("--clip" in text for text in finding.tries) == clipped


def test_no_rate_is_advised_that_nobody_uses_under_adam():
    why = weak_gradients(run_of("Adam", np.full(200, 2.3)), 1e-7, 320.0)
    assert "not for the learning rate" in why.cause
    assert why.tries == ()
    assert weak_gradients(run_of("Adam", np.full(200, 2.3)), 1e-4, 0.1) is None


def test_gradients_that_a_first_long_step_threw_away_ask_for_a_lower_rate():
    loss = np.concatenate([[2.3, 90.0], np.full(198, 2.3)])
    history = run_of("SGD", loss)
    ratio = history.layer("update_ratio") * 0 + 1e-6
    ratio[0] = 0.8
    thrown = changed(history, per_layer={**history.per_layer, "update_ratio": ratio})
    why = weak_gradients(thrown, 1e-6, set_rate(thrown))
    assert why.tries[0] == "--lr-scale 0.1"
    ratio = np.where(ratio > 0.5, 1e-6, ratio)
    assert weak_gradients(changed(history, per_layer={**history.per_layer, "update_ratio": ratio}), 1e-6, 0.1) is None


@pytest.mark.parametrize(("kind", "end", "first"), [
    ("SGD", 3.0, "--lr-scale 0.1 --clip"), ("SGD", 0.5, "--lr-scale 0.3 --clip"),
    ("Adam", 3.0, "--lr-scale 0.1"), ("Adam", 0.5, "--lr-scale 0.3"),
])  # fmt: skip
def test_a_training_that_learns_at_its_rate_is_slowed_less(kind, end, first):
    loss = np.concatenate([np.linspace(2, 1, 60), np.linspace(1, 8, 40), np.full(100, end)])
    (finding,) = lr_too_high(run_of(kind, loss))
    assert finding.tries[0].startswith(first)
