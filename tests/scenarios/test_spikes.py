"""Single steps that stand out, and learning rates that throw the training about: real trainings and their twins."""

from dataclasses import replace

import numpy as np
import pytest
import step_diseases
from make_run import changed, make_history
from nets import ALPHABET
from recordings import Recorded
from trainings import one, policies_in, serious

import gradwatch
from gradwatch.analysis.rules import diagnose
from gradwatch.analysis.rules.long_steps import lr_too_high
from gradwatch.analysis.rules.spikes import spike

d = Recorded(step_diseases)
CLIP = "chain(SkipNonfinite(), ClipByGlobalNorm(1.0))"


@pytest.mark.parametrize("train", [d.odd_batch, d.rate_too_high, d.rnn_rate_too_high])
def test_the_healthy_twin_has_no_error_and_no_warning(train, tmp_path):
    assert serious(diagnose(train(tmp_path, sick=False))) == []


@pytest.mark.parametrize(
    ("settings", "cause", "cure"),
    [
        ([{"momentum": 0.99}], "A momentum of 0.99 makes steps up to 100 times as long", "Or momentum=0.9."),
        ([{"momentum": 0.99, "dampening": 0.99}], "instead of falling.", "clip="),
        ([{"momentum": 0.9}, {"lr": 1e-3}], "Param group 0 has 300 times the rate of the next.", "with param group 0."),
    ],
)
def test_what_makes_steps_longer_than_the_rate_says_is_named(settings, cause, cure, tmp_path):
    history = d.rate_too_high(tmp_path)
    (adam,) = history.run.optimizers
    sgd = {**adam, "class": "SGD", "groups": [{"settings": group} for group in settings]}
    rates = {f"lr/{g}": np.full(len(history), group["lr"]) for g, group in enumerate(settings) if g}
    other = changed(history, per_step={**history.per_step, **rates})
    (found,) = lr_too_high(replace(other, run=replace(history.run, optimizers=(sgd,))))
    assert cause in found.cause
    assert cure in found.cure
    assert ("momentum" in found.cause) == ("momentum" in cause)


def test_an_odd_batch_that_throws_the_training_out(tmp_path):
    findings = diagnose(d.odd_batch(tmp_path))
    assert findings[0].rule == "spike"
    finding = one(findings, "spike")
    assert (finding.severity, finding.first_step, finding.last_step) == ("error", 150, 259)
    assert "1.weight" in finding.layers
    assert finding.evidence["largest_step"] == 150
    assert finding.evidence["times_usual"] > 100
    assert "the clip caught" not in finding.cause  # there is none
    assert (finding.evidence["caught"], finding.evidence["recovered"]) == (0, "no")
    assert len(policies_in(finding)) == 2


@pytest.mark.parametrize(("end", "severity", "causes"), [(0.2, "warning", 2), (0.69, "error", 0)])
def test_a_loss_that_leaps_out_of_a_calm_may_be_of_a_harder_task(end, severity, causes):
    history = make_history(steps=600, clip=None)
    leap = np.concatenate([np.geomspace(0.69, 0.005, 100), np.full(5, 2.0), np.geomspace(2, end, 495)])
    norm = np.concatenate([np.geomspace(0.5, 0.012, 100), np.full(500, 1.0)])
    (found,) = spike(changed(history, per_step={**history.per_step, "loss": leap, "grad_norm": norm}))
    assert (found.severity, found.evidence["odd_batch"], len(found.alternatives)) == (severity, 100, causes)


def test_under_adam_the_same_batch_is_a_warning(tmp_path):
    finding = one(diagnose(d.odd_batch(tmp_path, make=d.adam(1e-3))), "spike")
    assert (finding.severity, finding.first_step, finding.last_step) == ("warning", 150, 150)
    assert (finding.evidence["caught"], finding.evidence["recovered"]) == (0, "yes")
    limit = policies_in(finding)[0]
    assert isinstance(limit.policies[1], gradwatch.ClipByGlobalNorm)


@pytest.mark.parametrize("clip", [CLIP, "SkipSpike()"])
def test_a_spike_that_the_policy_caught_is_a_note(clip, tmp_path):
    findings = diagnose(d.odd_batch(tmp_path, clip=clip))
    finding = one(findings, "spike")
    assert serious(findings) == []
    assert (finding.severity, finding.first_step) == ("note", 150)
    assert (finding.evidence["caught"], finding.evidence["recovered"]) == (1, "yes")


def test_a_spike_at_the_very_end_has_an_unknown_outcome(tmp_path):
    finding = one(diagnose(d.odd_batch(tmp_path, steps=155)), "spike")
    assert (finding.first_step, finding.evidence["recovered"]) == (150, "unknown")


def test_adam_at_a_rate_that_is_too_high(tmp_path):
    finding = one(diagnose(d.rate_too_high(tmp_path)), "lr-too-high")
    assert (finding.severity, finding.layers) == ("warning", ())
    assert finding.first_step <= finding.last_step <= 20
    assert finding.evidence["jump"] > 1
    assert "warm it up" in finding.cure
    assert "Clipping does not help" in finding.cure
    assert policies_in(finding) == []


def test_sgd_at_a_rate_that_is_too_high(tmp_path):
    history = d.rnn_rate_too_high(tmp_path)
    finding = one(diagnose(history), "lr-too-high")
    assert (finding.severity, finding.last_step) == ("error", 199)
    loss = history.total("loss")
    worse_than_chance = int(np.argmax(loss > np.log(len(ALPHABET))))
    noise = 1.4826 * np.median(np.abs(np.diff(loss))) / 2**0.5
    level = np.array([np.median(loss[max(0, at - 4) : at + 5]) for at in range(len(loss))])
    thrown_out = int(np.argmax(level - level.min() > 3 * noise))  # half of the six standard deviations that it takes
    assert worse_than_chance <= finding.first_step <= min(20, thrown_out)
    (clip,) = policies_in(finding)
    assert isinstance(clip, gradwatch.ClipByGlobalNorm)
    assert "about 1.0" in finding.cure


def synthetic(steps=300, **columns):
    """A run of a quiet norm and a loss that falls in a straight line, but for `columns`."""
    history = make_history(steps=steps, logged=("loss",))
    quiet = 1 + 0.01 * np.random.default_rng(0).standard_normal(steps)
    plain = {"grad_norm": quiet, "clipped_norm": quiet, "loss": np.linspace(2.0, 1.0, steps)}
    return changed(history, per_step={**history.per_step, **plain, **columns})


@pytest.mark.parametrize(("times", "found"), [(5.0, 0), (20.0, 1)])
def test_a_spike_is_ten_times_the_usual_norm(times, found):
    norm = synthetic().total("grad_norm").copy()
    norm[150] *= times
    assert len(spike(synthetic(grad_norm=norm))) == found


def test_a_norm_that_rises_and_stays_is_no_spike():
    norm = synthetic().total("grad_norm").copy()
    norm[150:] *= 20
    assert spike(synthetic(grad_norm=norm)) == []


def ruined(loss_of_step_150):
    """A run whose norms are NaN from step 151 on, and whose loss at step 150 is this."""
    history = synthetic()
    norm, loss = history.total("grad_norm").copy(), history.total("loss").copy()
    norm[151:], loss[151:], loss[150] = np.nan, np.nan, loss_of_step_150
    return synthetic(grad_norm=norm, clipped_norm=norm, loss=loss)


def test_a_loss_of_inf_is_no_spike():
    assert spike(ruined(np.inf)) == []


def test_a_training_that_is_over_after_a_jump_of_its_loss_has_not_recovered():
    (finding,) = spike(ruined(1e6))
    assert (finding.severity, finding.last_step, finding.evidence["recovered"]) == ("error", 299, "no")
    assert "Nothing needs to change" not in finding.cure


@pytest.mark.parametrize(("rise", "found"), [(0.2, 0), (0.5, 1)])
def test_the_loss_must_rise_by_a_third_of_where_it_began(rise, found):
    loss = np.linspace(2.0, 1.0, 300)
    loss[195:260] += 2.0 * rise * np.minimum(np.arange(65) / 8, 1)  # over several steps: other data come in one
    findings = lr_too_high(synthetic(loss=loss))
    assert len(findings) == found
    assert all(195 <= f.first_step <= 210 and f.severity == "warning" for f in findings)


def test_a_lower_rate_is_lower_than_the_one_that_was_set_not_than_one_on_its_way():
    loss = np.linspace(2.0, 1.0, 300)
    loss[200:] += 2
    cosine = 0.15 * (1 + np.cos(np.pi * np.arange(300) / 300))
    (finding,) = lr_too_high(synthetic(loss=loss, lr=cosine))
    assert "about 0.03," in finding.cure
    (finding,) = lr_too_high(synthetic(loss=loss, lr=np.minimum(1, np.arange(300) / 50) * 0.3))
    assert "about 0.03," in finding.cure


def test_a_loss_that_begins_below_zero_is_not_judged():
    loss = np.linspace(-1.0, -2.0, 300)
    loss[200:] += 5
    assert lr_too_high(synthetic(loss=loss)) == []
