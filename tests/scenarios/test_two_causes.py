"""Where two things could be said the right one is: which finding is the root, and which is not made at all."""

import diseases
import numpy as np
import pytest
import two_causes
from make_run import changed
from recordings import FOLDER, Recorded
from trainings import one, serious

from gradwatch import open_history
from gradwatch.analysis.rules import Finding, diagnose
from gradwatch.analysis.rules.gradient_scale import scaled_gradients
from gradwatch.analysis.rules.roots import group
from gradwatch.analysis.suggest import suggest

d = Recorded(two_causes)


def rules_of(findings):
    return {f.rule for root in findings for f in (root, *root.consequences)}


def test_a_clip_before_unscale_is_no_forgotten_scaler(tmp_path):
    findings = diagnose(d.clipped_while_scaled_adamw(tmp_path))
    assert findings[0].rule == "clip-before-unscale"
    assert "scaled-gradients" not in rules_of(findings)


def test_a_training_whose_loss_does_not_stay_down_has_no_forgotten_scaler(tmp_path):
    history = Recorded(diseases).forgotten_scaler(tmp_path)
    assert [f.rule for f in scaled_gradients(history)] == ["scaled-gradients"]
    loss = history.total("loss").copy()
    loss[60:] += np.linspace(0, 20, 60)
    assert scaled_gradients(changed(history, per_step={**history.per_step, "loss": loss})) == []


@pytest.mark.parametrize("seed", [0, 1])
def test_what_a_bad_batch_does_to_the_weights_stands_under_it(seed, tmp_path):
    findings = diagnose(d.bad_batch_that_grows_the_weights(tmp_path, seed=seed))
    assert [(f.rule, f.first_step) for f in findings if f.severity != "note"] == [("spike", 300)]
    if seed == 1:
        assert one(findings, "weight-growth").first_step >= 300


def test_growth_is_measured_every_few_steps_so_it_may_show_after_the_spike_is_over():
    spike, growth = Finding("spike", "warning", (), 300, 300), Finding("weight-growth", "warning", (), 310, 499)
    (root,) = group([growth, spike])
    assert (root.rule, [f.rule for f in root.consequences]) == ("spike", ["weight-growth"])
    assert len(group([Finding("weight-growth", "warning", (), 400, 499), spike])) == 2


def test_the_last_bias_of_a_critic_is_not_dead(tmp_path):
    history = d.wgan_critic(tmp_path)
    assert (history.layer("grad_norm")[:, -1] == 0).all()
    assert diagnose(history) == []


@pytest.mark.parametrize("seed", [0, 1])
def test_a_loss_that_grows_because_the_agent_lives_longer_is_no_alarm(seed, tmp_path):
    history = d.actor_critic(tmp_path, seed=seed)
    loss = history.total("loss")
    assert loss.max() > 3 * loss[:50].max()
    assert serious(diagnose(history)) == []


def test_what_sums_up_a_run_follows_from_what_began_later_in_it():
    """Losses that are mostly noise are so from the first step on, and the spikes that make them so come later."""
    noise, spike = Finding("noise-dominated", "warning", (), 0, 299), Finding("spike", "error", (), 12, 299)
    (root,) = group([noise, spike])
    assert (root.rule, [f.rule for f in root.consequences]) == ("spike", ["noise-dominated"])
    assert len(group([noise, Finding("spike", "warning", (), 12, 40)])) == 2  # it was over


@pytest.mark.parametrize("seed", [1, 2])
def test_the_note_of_a_clip_that_is_the_learning_rate_and_the_suggestion_advise_the_same(seed):
    history = open_history(FOLDER / f"seed{seed}-clip-is-your-learning-rate")
    findings = diagnose(history)
    (note,) = findings
    (suggestion,) = suggest(history, findings)
    assert note.rule == "clip-is-your-learning-rate"
    assert suggestion.policy
    assert suggestion.policy in note.cure
