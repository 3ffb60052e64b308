"""The suggested policy: it parses, comes from the healthy norms and helps; none is offered where clipping does not."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from make_run import changed, make_history, write_shared
from torch import nn

import gradwatch
from gradwatch import open_history, parse
from gradwatch.analysis.rules import Finding
from gradwatch.analysis.rules.guard import TOO_LARGE_STEPS, WRONG_NORMS, healthy_norms
from gradwatch.analysis.suggest import CLIPPING_HELPS, suggest
from gradwatch.analysis.whatif import zclip
from gradwatch.formatting import percent
from gradwatch.report import build_report


def finding(rule, first=100, last=199, severity="error", **more):
    return Finding(rule, severity, (), first, last, cure="Do the right thing.", **more)


def under(optimizer, **options):
    return make_history(steps=200, optimizers=({"name": optimizer, "class": optimizer, "settings": {"lr": 0.1}},),
                        **{"clip": None, **options})  # fmt: skip


def one(history, *findings):
    (suggestion,) = suggest(history, findings)
    return suggestion


# ------------------------------------------------------------------------------------------------------ where it helps


def test_the_threshold_is_the_99th_percentile_of_the_norms_before_it_went_wrong():
    history = under("SGD")
    history.total("grad_norm")[120:] *= 1e5
    suggestion = one(history, finding("exploding", 120))
    limit = parse(suggestion.policy).max_norm
    assert limit == float(f"{np.quantile(history.total('grad_norm')[:120], 0.99):.2g}")
    share = (history.total("grad_norm") + 1e-6 > limit).mean()
    assert f"{percent(share)} of all steps" in " ".join(suggestion.reasons)
    assert "the 120 steps before it went wrong" in suggestion.reasons[0]


@pytest.mark.parametrize(("severity", "steps"), [("error", 30), ("warning", 200)])
def test_dead_layers_that_ruined_a_training_end_its_healthy_steps(severity, steps):
    history = under("SGD", layers=("0.weight",))
    assert len(healthy_norms(history, [finding("dead-layer", 30, severity=severity)])) == pytest.approx(steps, abs=2)


def test_outliers_do_not_raise_the_threshold():
    history = under("SGD")
    calm = parse(one(history).policy).max_norm
    history.total("grad_norm")[::20] = 1e4
    assert parse(one(history).policy).max_norm == pytest.approx(calm, rel=0.2)


def test_without_a_healthy_stretch_it_is_the_usual_value_and_says_so():
    history = under("SGD")
    suggestion = one(history, finding("exploding", 30))
    assert suggestion.policy == "ClipByGlobalNorm(1.0)"
    assert "Only 30 of 200 steps were healthy, and 50" in suggestion.reasons[0]
    assert "None of 200 steps was healthy, and 50" in one(history, finding("exploding", 0)).reasons[0]


@pytest.mark.parametrize("rule", [None, "spike", "clip-inert", "nonfinite"])
def test_no_threshold_is_taken_from_a_few_steps(rule):
    """20 steps of a median norm of 8,650 (a summed loss): 1.0 would be a second learning rate."""
    history = under("SGD").slice(0, 20)
    history.total("grad_norm")[:] *= 8650
    suggestion = one(history, *([finding(rule, 5, 5, "warning")] if rule else []))
    assert "ClipByGlobalNorm" not in suggestion.policy
    assert "All 20 steps were healthy, and 50 are wanted" in " ".join(suggestion.reasons) or rule == "nonfinite"


def test_a_share_says_which_steps_it_is_of():
    history = under("SGD")
    history.total("grad_norm")[100:] = np.nan
    history.total("nonfinite")[100:] = 7
    reasons = " ".join(one(history, finding("exploding", 100), finding("nonfinite", 100)).reasons)
    assert "of the 100 steps whose norm was finite" in reasons
    history.total("grad_norm")[100:] = 1.0
    assert "of all steps" in " ".join(one(history).reasons)


def test_nonfinite_steps_are_skipped_first():
    history = under("SGD", nan_at=150)
    root = finding("exploding", 120, consequences=(finding("nonfinite", 150),))
    assert one(history, root).policy.startswith("chain(SkipNonfinite(), ClipByGlobalNorm(")


def test_a_nan_out_of_the_blue_is_skipped_and_not_clipped():
    history = under("SGD", nan_at=150)
    suggestion = one(history, finding("nonfinite", 150, 150))
    assert suggestion.policy == "SkipNonfinite()"
    assert "it is not the cure" in " ".join(suggestion.reasons)
    history.layer("update_ratio")[140, 0] = 2.0  # the step before moved a layer by twice its norm
    history.layer("update_ratio")[149, 0] = 2.0
    assert "ClipByGlobalNorm" in one(history, finding("nonfinite", 150, 150)).policy


def test_one_nonfinite_step_leaves_the_rest_of_the_run_healthy():
    history = under("SGD", nan_at=5)
    assert len(healthy_norms(history, [finding("nonfinite", 5, 5)])) > 180
    assert len(healthy_norms(history, [finding("nonfinite", 5, 199)])) == 5


def test_spikes_are_for_zclip():
    history = under("Adam")
    history.total("grad_norm")[100::25] *= 300
    suggestion = one(history, finding("spike", severity="warning"))
    assert suggestion.policy == "ZClip(z=3.0)"
    rates = (zclip(history.total("grad_norm"), [2.5, 3.0]) < 1).mean(axis=1)
    assert rates[0] > 0.03 >= rates[1]
    assert f"{percent(rates[1])} of all steps" in suggestion.reasons[1]


def test_where_no_zclip_would_leave_most_steps_alone_it_is_each_layers_own_past():
    history = under("Adam")
    history.total("grad_norm")[:] = 1.0 + 0.01 * np.arange(200) % 0.05
    history.total("grad_norm")[60:] *= 1.5 ** np.arange(140)
    suggestion = one(history, finding("spike", severity="warning"))
    assert suggestion.policy == "AdaGC()"


def test_spikes_before_skip_spike_can_act_are_not_for_it():
    history = under("SGD").slice(0, 40)
    assert "acts from step 64 on" in one(history, finding("spike", 11)).reasons[0]
    assert one(history, finding("spike", 70)).policy == "SkipSpike()"


def test_what_follows_from_another_finding_ends_the_healthy_steps_too():
    ran_off = replace(finding("negative-loss", 0), consequences=(finding("exploding", 120),))
    assert len(healthy_norms(under("SGD"), [ran_off])) == 120


def test_a_clip_that_came_too_late_is_not_kept():
    suggestion = one(make_history(), replace(finding("clip-after-step"), severity="note"))
    assert not any(reason.startswith("Keep") for reason in suggestion.reasons)


def test_a_clip_that_is_the_learning_rate_gets_a_guard_and_the_rate_that_keeps_the_pace():
    history = under("SGD", clip="ClipByGlobalNorm(0.01)", max_norm=0.01)
    suggestion = one(history, finding("clip-is-your-learning-rate", severity="warning"))
    assert parse(suggestion.policy).max_norm > 0.5
    assert suggestion.reasons[-1].endswith("set the one that the finding names with it.")


def test_a_healthy_run_without_a_clip_is_offered_a_guard():
    suggestion = one(under("AdamW"))
    assert suggestion.policy.startswith("ClipByGlobalNorm(")
    assert "Nothing needs a cure" in suggestion.reasons[0]


# -------------------------------------------------------------------------------------------------- where it does not


@pytest.mark.parametrize("rule", ["vanishing", "dead-layer", "no-gradient", "weights-unchanged", "update-too-small",
                                  "imbalance", "renorm-binds", "noise-dominated", *sorted(WRONG_NORMS)])  # fmt: skip
def test_no_clip_for_what_a_clip_does_not_cure(rule):
    suggestion = one(under("SGD"), finding(rule))
    assert suggestion.policy == ""
    assert rule in suggestion.reasons[0]
    assert "Do the right thing." in suggestion.reasons[0]


@pytest.mark.parametrize("rule", sorted(TOO_LARGE_STEPS))
@pytest.mark.parametrize("name", ["Adam", "AdamW", "RMSprop", "Lion", "Adafactor", "Adam8bit"])
def test_no_clip_for_too_high_a_rate_of_an_optimizer_that_divides_the_scale_out(name, rule):
    suggestion = one(under(name), finding(rule))
    assert suggestion.policy == ""
    assert "lower the learning rate, or warm it up" in suggestion.reasons[1]
    assert one(under("SGD"), finding(rule)).policy


def test_norms_that_are_wrong_forbid_a_threshold_whatever_else_is_found():
    for rule in WRONG_NORMS:
        assert one(under("SGD"), finding("exploding"), finding(rule)).policy == ""


def test_a_policy_that_works_is_kept():
    suggestion = one(make_history())
    assert suggestion.policy == ""
    assert suggestion.reasons[0].startswith("Keep ClipByGlobalNorm(1.0)")


def test_the_loops_own_clip_is_kept_as_it_was_in_the_end():
    history = under("SGD")
    limits = np.where(np.arange(200) < 100, 0.3, np.where(np.arange(200) < 199, 1.0, np.nan))
    (said,) = one(changed(history, per_step={**history.per_step, "user_max_norm": limits})).reasons
    assert said.startswith("Keep clip_grad_norm_(max_norm=1.0): ")


def test_a_note_counts_only_where_it_is_about_the_threshold_or_the_norms():
    history = make_history(clip="ClipByGlobalNorm(100.0)", max_norm=100.0)
    assert one(history, finding("vanishing", severity="note")) == one(history)
    assert parse(one(history, finding("clip-inert", severity="note")).policy).max_norm < 5
    assert "a threshold taken from them" in one(history, finding("scaled-gradients", severity="note")).reasons[0]


def test_a_run_without_one_finite_step_is_not_helped_by_a_policy():
    history = under("SGD")
    history.total("grad_norm")[:] = np.nan
    suggestion = one(history, finding("nonfinite", 0))
    assert suggestion.policy == ""
    assert "Do the right thing." in suggestion.reasons[0]


# -------------------------------------------------------------------------------------------------------- always


@pytest.mark.parametrize("rule", sorted(CLIPPING_HELPS))
@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_every_suggestion_parses(rule, scale):
    history = under("SGD", nan_at=150)
    history.total("grad_norm")[:] *= scale
    policy = one(history, finding(rule), finding("nonfinite", 150, 150)).policy
    assert repr(parse(policy))
    short = one(history.slice(0, 3), finding(rule, 1, 2)).policy
    assert bool(short) == (rule in TOO_LARGE_STEPS | {"nonfinite"})
    assert not short or parse(short)


def test_each_part_has_its_own(tmp_path):
    d = make_history(steps=200, seed=1, clip=None, logged=())
    d.total("grad_norm")[:] *= 100
    history = open_history(write_shared(tmp_path, "gan", G=make_history(steps=200, clip=None, logged=()), D=d))
    found = {suggestion.optimizer: parse(suggestion.policy).max_norm for suggestion in suggest(history, [])}
    assert found["D"] == pytest.approx(100 * found["G"], rel=0.3)
    sick = suggest(history, [finding("dead-layer", optimizer="D")])
    assert [(suggestion.optimizer, bool(suggestion.policy)) for suggestion in sick] == [("D", False), ("G", True)]


def test_many_runs_that_are_compared_get_none():
    report = build_report([make_history(seed=s) for s in (0, 1)])
    assert [(run.suggestions, run.what_if) for run in report.runs] == [((), ()), ((), ())]


# ------------------------------------------------------------------------------------------------------- a real cure


class Adder(nn.Module):
    """The tanh RNN of the adding problem, its recurrent weights `gain` times orthogonal."""

    def __init__(self, gain):
        super().__init__()
        self.rnn, self.head = nn.RNN(2, 32, batch_first=True), nn.Linear(32, 1)
        with torch.no_grad():
            nn.init.orthogonal_(self.rnn.weight_hh_l0).mul_(gain)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])[:, 0]


def add(folder, clip, gain=1.5, steps=60, length=60):
    """Train the adding problem with SGD 0.1; gives the history."""
    torch.manual_seed(0)
    model, rows = Adder(gain), torch.arange(16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradwatch.watch(model, optimizer, clip=clip, log=None, dir=folder, verbose=False) as handle:
        for _ in range(steps):
            x = torch.rand(16, length, 2) * torch.tensor([1.0, 0.0])
            marks = torch.randint(length // 2, (2, 16)) + torch.tensor([[0], [length // 2]])
            x[rows, marks, 1] = 1
            loss = (model(x) - x[rows, marks, 0].sum(0)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            handle.log(loss=loss.detach())
    return open_history(handle.dir)


def test_an_exploding_rnn_learns_under_its_own_suggestion(tmp_path):
    sick = build_report([add(tmp_path / "sick", None)]).runs[0]
    assert sick.verdict != "no findings"
    (suggestion,) = sick.suggestions
    assert "ClipByGlobalNorm" in suggestion.policy
    cured = add(tmp_path / "cured", suggestion.policy)
    assert np.isfinite(cured.total("grad_norm")).all()
    assert cured.total("loss")[-10:].mean() < 1.0
    assert not sick.final["loss"] < 100
