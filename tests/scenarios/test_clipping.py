"""Clips that do nothing, everything, or come at the wrong time: real trainings and their healthy twins."""

from functools import partial

import diseases
import numpy as np
import pytest
import step_diseases
from recordings import Recorded
from trainings import one, policies_in, serious

import gradwatch
from gradwatch import ClipByGlobalNorm
from gradwatch.analysis.rules import diagnose
from gradwatch.analysis.rules.double_clip import sits_at
from gradwatch.analysis.rules.skips import skips_often
from gradwatch.history import History, Run

d = Recorded(step_diseases)


@pytest.mark.parametrize(
    "train",
    [
        d.inert, partial(d.inert, own=True), d.throttled, d.clipped_twice, partial(d.clipped_twice, seen=False),
        d.clipped_while_scaled, partial(d.clipped_while_scaled, by_hand=True), d.left_out,
    ],
)  # fmt: skip
def test_the_healthy_twin_has_no_error_and_no_warning(train, tmp_path):
    findings = diagnose(train(tmp_path, sick=False))
    assert serious(findings) == []
    assert {f.rule for f in findings} <= {"double-clip"}  # the note that a clip of the loop's own lines comes first


def test_a_threshold_that_nothing_reaches(tmp_path):
    history = d.inert(tmp_path)
    finding = one(diagnose(history), "clip-inert")
    assert (finding.severity, finding.first_step, finding.last_step) == ("note", 0, 1099)
    (clip,) = policies_in(finding)
    fires = (history.total("grad_norm") > clip.max_norm).mean()
    assert fires == pytest.approx(0.01, abs=0.003)


def test_the_loops_own_threshold_that_nothing_reaches(tmp_path):
    history = d.inert(tmp_path, own=True)
    finding = one(diagnose(history), "clip-inert")
    assert (finding.severity, finding.evidence["steps"]) == ("note", 1100)
    assert "clip_grad_norm_(max_norm=100.0)" in finding.cause
    lower = float(finding.cure.rsplit("max_norm=", 1)[1].rstrip("."))
    assert (history.total("user_grad_norm") > lower).mean() == pytest.approx(0.01, abs=0.003)


def test_a_threshold_below_every_gradient(tmp_path):
    history = d.throttled(tmp_path)
    finding = one(diagnose(history), "clip-is-your-learning-rate")
    assert (finding.severity, finding.layers) == ("warning", ())
    assert (finding.first_step, finding.last_step) == (0, 149)
    assert finding.evidence["clip_rate"] == 1
    assert finding.evidence["times_smaller"] == pytest.approx(12, rel=0.2)
    assert "the real learning rate is 0.008" in finding.cause
    (clip,) = policies_in(finding)
    assert (history.total("grad_norm") > clip.max_norm).mean() == pytest.approx(0.01, abs=0.01)


def test_under_adam_a_low_threshold_is_a_note(tmp_path):
    findings = diagnose(d.throttled(tmp_path, make=d.adam(1e-3)))
    assert serious(findings) == []
    assert "takes the scale out" in one(findings, "clip-is-your-learning-rate").cause


def test_the_loops_own_low_threshold(tmp_path):
    finding = one(diagnose(d.throttled(tmp_path, own=True)), "clip-is-your-learning-rate")
    assert finding.severity == "warning"
    assert "loop's own clip_grad_norm_(max_norm=0.02)" in finding.cause


@pytest.mark.parametrize("clip", ["ClipByNorm(0.005)", "AGC(0.0001)", "AGC(eps=1e-09)", "ClipByValue(-1e-05, 1e-05)"])
def test_instead_of_another_threshold_the_one_from_healthy_steps_is_advised(clip, tmp_path):
    history = d.digits(tmp_path, d.sgd(0.1), 120, clip=clip)
    (policy,) = policies_in(one(diagnose(history), "clip-is-your-learning-rate"))
    assert isinstance(policy, ClipByGlobalNorm)
    mild = d.digits(tmp_path / "raised", d.sgd(0.1), 60, clip=repr(policy))
    assert mild.total("clip_coef").min() > 0.5
    assert history.total("clip_coef").max() < 0.5


def test_two_clips(tmp_path):
    finding = one(diagnose(d.clipped_twice(tmp_path)), "double-clip")
    assert (finding.severity, finding.first_step, finding.last_step) == ("warning", 0, 119)
    assert finding.evidence["loop"] == "clip_grad_norm_(max_norm=0.5)"


def test_a_clip_that_was_not_seen_shows_in_the_norms(tmp_path):
    finding = one(diagnose(d.clipped_twice(tmp_path, seen=False)), "double-clip")
    assert (finding.severity, finding.evidence["threshold"]) == ("warning", 0.25)
    assert finding.evidence["share"] > 0.3


@pytest.mark.parametrize(("by_hand", "threshold"), [(False, 1.0), (True, 0.5)])
def test_a_clip_of_scaled_gradients(by_hand, threshold, tmp_path):
    findings = diagnose(d.clipped_while_scaled(tmp_path, by_hand=by_hand))
    finding = one(findings, "clip-before-unscale")
    assert (finding.severity, finding.first_step, finding.last_step) == ("error", 0, 119)
    assert finding.evidence["threshold"] == threshold
    assert finding.evidence["loss_scale"] in (2.0**12, pytest.approx(2.0**13), 2.0**14)
    assert policies_in(finding) == [gradwatch.ClipByGlobalNorm(threshold)]


@pytest.mark.parametrize(
    ("norms", "found"),
    [
        ([0.5] * 40 + [0.1, 0.2, 0.3] * 20, 0.5),
        ([0.5] * 10 + [0.1, 0.2, 0.3] * 20, None),  # too few sit there
        ([0.5] * 40 + [0.6] * 20, 0.6),  # a third of all, and none is larger
        ([0.5237] * 40 + [0.1, 0.2] * 20, None),  # no round number
        ([0.5] * 10, None),  # too short a run
    ],
)
def test_a_threshold_is_where_norms_sit(norms, found):
    assert sits_at(np.array(norms), 0.3, 20) == found


# ------------------------------------------------------------------------------------------------------------- skips


def test_a_skip_below_the_norms_of_a_training_on_its_way_is_found_and_a_clip_is_named(tmp_path):
    history = d.left_out(tmp_path)
    (root,) = diagnose(history)
    skipped = history.total("skipped") > 0
    assert (root.rule, root.severity, root.first_step) == ("skips-often", "warning", np.flatnonzero(skipped)[0])
    assert (root.evidence["policy"], root.evidence["steps"]) == ("SkipNorm(0.4)", skipped.sum())
    assert root.evidence["in_a_row"] == max(map(len, "".join("x" if s else " " for s in skipped).split()))
    assert root.evidence["skipped_norm"] > 0.4 > root.evidence["usual_norm"]
    (policy,) = policies_in(root)
    healthy = history.total("grad_norm")
    assert f"{np.quantile(healthy, 0.99):.2g}" in repr(policy)
    assert root.tries == (f"--clip '{policy!r}'",)


def test_skips_of_numbers_that_are_not_finite_follow_from_these(tmp_path):
    (root,) = diagnose(Recorded(diseases).square_root(tmp_path, until=35, clip="SkipNonfinite()"))
    assert root.rule == "nonfinite"
    (finding,) = [f for f in root.consequences if f.rule == "skips-often"]
    assert (finding.layers, finding.first_step, finding.last_step) == (root.layers, 20, 34)
    assert (finding.evidence["steps"], finding.evidence["nonfinite"], finding.tries) == (15, 15, ())


def skipping(skipped, clip="SkipSpike()", **more):
    """A history of steps of norm 1, these left out with a norm of 5."""
    skipped = np.asarray(skipped, bool)
    steps = np.arange(len(skipped), dtype=np.int64)
    values = {"grad_norm": np.where(skipped, 5.0, 1.0), "skipped": skipped.astype(float), "nonfinite": 0.0 * steps}
    names = np.array(["SGD"] * len(steps), object)
    return History.of(Run("any", "2026-01-01", clip=clip), (), steps, 0 * steps, names, {}, values | more)


def test_a_few_skips_or_short_rows_of_them_say_nothing():
    steps = np.arange(1000)
    assert skips_often(skipping(steps % 11 == 0)) == []
    assert skips_often(skipping((steps > 100) & (steps <= 149))) == []
    assert skips_often(skipping(steps[:40] % 5 == 0)) == []  # 8 of them
    assert skips_often(skipping(steps % 2 == 0, clip="ClipByGlobalNorm(1.0)")) == []


def test_a_tenth_of_the_steps_or_a_long_row_is_found():
    steps = np.arange(1000)
    (often,) = skips_often(skipping(steps % 10 == 0))
    assert (often.evidence["steps"], often.evidence["in_a_row"], often.first_step) == (100, 1, 0)
    (lasting,) = skips_often(skipping(steps >= 950, clip="chain(SkipNonfinite(), SkipSpike(at_most=60))"))
    assert (lasting.evidence["in_a_row"], lasting.first_step, lasting.last_step) == (50, 950, 999)
    assert lasting.evidence["policy"] == "SkipSpike(6.0, at_most=60)"
    assert "rose for good" in lasting.cause


def test_what_a_loss_scaler_drops_is_not_the_policys():
    dropped = np.arange(100) < 30
    lost = {"grad_norm": np.where(dropped, np.inf, 1.0), "nonfinite": dropped.astype(float)}
    assert len(skips_often(skipping(dropped, clip="SkipNonfinite()", **lost))) == 1
    assert skips_often(skipping(dropped, clip="SkipNonfinite()", **lost, loss_scale=np.full(100, 8.0))) == []
