"""Steps that do nothing, too much or too little, and weights that run away: real trainings and their healthy twins."""

import itertools

import numpy as np
import pytest
import step_diseases
from recordings import Recorded
from trainings import one, policies_in, serious

import gradwatch
from gradwatch.analysis.rules import diagnose
from gradwatch.analysis.rules.unchanged import weights_unchanged

d = Recorded(step_diseases)
FIRST = ("1.weight", "1.bias")
WEIGHTS = ("1.weight", "3.weight", "5.weight")


@pytest.mark.parametrize(
    "train",
    [
        d.rate_zero, d.group_rate_zero, d.bfloat16_weights, d.zeroed_before_step, d.scaler_drops_all, d.strangers,
        d.put_back, d.huge_rate, d.rnn_rate_too_high, d.tiny_rate, d.runaway, d.tight_norm,
    ],
)  # fmt: skip
def test_the_healthy_twin_has_no_error_and_no_warning(train, tmp_path):
    assert serious(diagnose(train(tmp_path, sick=False))) == []


# --------------------------------------------------------------------------------------------------------- unchanged


@pytest.mark.parametrize(
    ("train", "layers", "steps", "severity", "word"),
    [
        (d.rate_zero, (), (29, 99), "error", "learning rate is 0."),
        (d.group_rate_zero, FIRST, (0, 59), "warning", "learning rate is 0 in param group 0"),
        (d.bfloat16_weights, (), (0, 59), "error", "smaller than bfloat16"),
        (d.scaler_drops_all, (), (0, 59), "error", "GradScaler drops every step"),
        (d.put_back, (), (0, 59), "error", "puts the weights back"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_weights_that_do_not_move_are_found_with_their_cause(train, layers, steps, severity, word, tmp_path):
    finding = one(diagnose(train(tmp_path)), "weights-unchanged")
    assert (finding.layers, finding.severity) == (layers, severity)
    assert (finding.first_step, finding.last_step) == steps
    assert word in finding.cause


@pytest.mark.parametrize(
    ("how", "rule", "word"), [({}, "dead-layer", "exactly 0"), ({"to_none": True}, "no-gradient", "absent")]
)
def test_gradients_that_are_gone_before_the_step(how, rule, word, tmp_path):
    """No layer has any: that is what is said, and not that the weights stand still, which follows."""
    (finding,) = diagnose(d.zeroed_before_step(tmp_path, **how))
    assert (finding.rule, finding.severity, finding.layers) == (rule, "error", ())
    assert (finding.first_step, finding.last_step) == (0, 59)
    assert f"Every gradient is {word}" in finding.cause
    assert any("zero_grad()" in cause for cause in finding.alternatives)
    assert not any(f.rule == "weights-unchanged" for f in finding.consequences)


def test_the_tensors_of_another_model_get_no_gradient(tmp_path):
    (finding,) = diagnose(d.strangers(tmp_path))
    assert (finding.rule, finding.severity, finding.alternatives) == ("no-gradient", "error", ())
    assert "holds 6 tensors that the model does not" in finding.cause


def test_a_policy_that_skips_every_step_is_named(tmp_path):
    (finding,) = weights_unchanged(d.always_nan(tmp_path, clip="SkipNonfinite()"))
    assert "The policy SkipNonfinite() skips every step" in finding.cause
    assert finding.evidence["skipped_steps"] == 60


def test_layers_that_were_frozen_are_not_still(tmp_path):
    assert weights_unchanged(d.frozen_body(tmp_path)) == []


def test_a_float32_step_below_its_resolution(tmp_path):
    finding = one(diagnose(d.digits(tmp_path, d.sgd(1e-12), 40)), "weights-unchanged")
    assert "smaller than float32" in finding.cause
    assert finding.evidence["resolution"] == 2.0**-24


# ---------------------------------------------------------------------------------------------- too large, too small


def last_of_long_runs(history, limit, steps):
    """The last step of all runs of more than `steps` steps in which a weight's update ratio stays above `limit`."""
    ends = []
    for layer in history.run.layers:
        large = history.layer("update_ratio")[:, history.layers.index(layer.name)] > limit
        for above, run in itertools.groupby(history.step, key=large.__getitem__):
            found = list(run)
            if above and len(layer.shape) > 1 and found[-1] - found[0] > steps:
                ends.append(found[-1])
    return max(ends)


def test_adamw_whose_steps_are_as_large_as_the_weights(tmp_path):
    history = d.huge_rate(tmp_path)
    (root,) = diagnose(history)
    assert root.rule == "lr-too-high"
    assert "Clipping does not help" in root.cure
    finding = one([root], "update-too-large")
    assert (finding.severity, finding.layers) == (
        "warning",
        (  # it learns all the same
            "1.weight",
            "4.weight",
            "7.weight",
        ),
    )
    assert finding.first_step <= 20
    assert finding.last_step == last_of_long_runs(history, limit=0.2, steps=10)
    assert finding.last_step > 100
    assert finding.evidence["usual"] == 0.008
    assert finding.evidence["update_ratio"] > 0.2


def test_sgd_under_a_clip_at_a_high_rate(tmp_path):
    finding = one(diagnose(d.rnn_rate_too_high(tmp_path, clip="ClipByGlobalNorm(1.0)")), "update-too-large")
    assert (finding.severity, finding.layers, finding.first_step) == ("warning", ("head.weight",), 0)
    assert 10 <= finding.last_step <= 40
    assert finding.evidence["usual"] == 0.04
    assert "clipping does not help" not in finding.cure


def test_steps_that_are_decades_too_small(tmp_path):
    finding = one(diagnose(d.tiny_rate(tmp_path)), "update-too-small")
    assert (finding.severity, finding.layers) == ("warning", ())
    assert (finding.first_step, finding.last_step) == (0, 99)
    assert 1e-9 < finding.evidence["update_ratio"] < 1e-6
    words = "to about 0.0012, which would give usual steps; where the model was trained before, to about 0.00012 first."
    assert words in finding.cure


# ------------------------------------------------------------------------------------------------------ growth, norm


def test_weights_without_a_bound(tmp_path):
    finding = one(diagnose(d.runaway(tmp_path)), "weight-growth")
    assert (finding.severity, finding.layers, finding.last_step) == ("warning", ("weight",), 149)
    assert 5 <= finding.first_step <= 60
    assert finding.evidence["growth"] > 10
    (renorm,) = policies_in(finding)
    assert isinstance(renorm, gradwatch.Renorm)


def test_a_max_norm_that_holds_every_unit(tmp_path):
    finding = one(diagnose(d.tight_norm(tmp_path)), "renorm-binds")
    assert (finding.severity, finding.layers) == ("warning", WEIGHTS)
    assert (finding.first_step, finding.last_step) == (0, 99)
    assert finding.evidence["renorm_rate"] == pytest.approx(1, abs=0.2)
    assert policies_in(finding) == [gradwatch.MaxNorm(0.6)]


def test_a_max_norm_at_rest_is_no_finding(tmp_path):
    rate = d.tight_norm(tmp_path, sick=False).layer("renorm_rate")
    assert np.nanmean(rate) < 0.5
