"""A clip by the norm over Muon's matrices: what it does not do, and where that is said."""

from dataclasses import replace

import numpy as np
import pytest
import step_diseases
import torch
from make_run import changed
from recordings import Recorded
from trainings import one, policies_in

from gradwatch import ClipByGlobalNorm, only
from gradwatch.analysis.rules import diagnose
from gradwatch.analysis.rules.muon import clip_over_muon
from gradwatch.analysis.suggest import suggest

d = Recorded(step_diseases)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_a_factor_on_all_gradients_changes_no_step_of_muon(tmp_path):
    def losses(threshold):
        train = step_diseases.muon_clipped
        return train(tmp_path / str(threshold), alone=True, threshold=threshold, steps=20).total("loss")

    clipped = losses(0.02)
    assert (clipped == losses(0.02 / 8)).all()  # all gradients an eighth as large
    assert (clipped != losses(100.0)).any()  # which leaves the gradients their weights


def test_a_clip_over_muon_and_adamw_is_a_note_with_a_clip_for_adamw(tmp_path):
    history = d.muon_clipped(tmp_path)
    findings = diagnose(history)
    (finding,) = findings
    matrices = [i for i, name in enumerate(history.layers) if name.endswith("weight")]
    biases = [i for i in range(len(history.layers)) if i not in matrices]
    assert (finding.rule, finding.severity) == ("clip-over-muon", "note")
    assert finding.layers == tuple(history.layers[i] for i in matrices)
    assert (finding.first_step, finding.last_step, finding.evidence["clip_rate"]) == (0, 149, 1)
    joint = history.total("grad_norm")
    own = np.linalg.norm(history.layer("grad_norm")[:, matrices].astype(float), axis=1)
    assert finding.evidence["muon_share"] == pytest.approx(np.median((own / joint) ** 2), rel=1e-4)
    theirs = np.linalg.norm(history.layer("grad_norm")[:, biases].astype(float), axis=1)
    limit = float(f"{np.quantile(theirs, 0.99):.2g}")
    assert policies_in(finding)[-1] == only("optimizer:AdamW", ClipByGlobalNorm(limit))
    assert "stepped by AdamW, which takes the scale out" in finding.cause
    (suggestion,) = suggest(history, findings)
    assert suggestion.policy == ""
    assert "does not cure clip-over-muon" in suggestion.reasons[0]


@pytest.mark.parametrize("alone", [False, True])
def test_of_the_twins_nothing_is_said(alone, tmp_path):
    assert diagnose(d.muon_clipped(tmp_path, sick=False, alone=alone)) == []


def test_alone_it_is_a_warning_unless_the_training_succeeds(tmp_path):
    (finding,) = diagnose(d.muon_clipped(tmp_path / "fine", alone=True))
    assert (finding.rule, finding.severity, finding.layers) == ("clip-over-muon", "note", ())
    assert "muon_share" not in finding.evidence
    finding = one(diagnose(d.muon_clipped(tmp_path / "too_long", alone=True, lr=2.0)), "clip-over-muon")
    assert finding.severity == "warning"


@pytest.fixture
def history(tmp_path):
    return d.muon_clipped(tmp_path)


def under(history, clip):
    return replace(history, run=replace(history.run, clip=clip))


@pytest.mark.parametrize("clip", [None, "ClipByValue(-0.1, 0.1)", "AGC(0.01)", "ClipByNorm(0.1, axes=(1,))", "Mine()"])
def test_what_changes_the_direction_of_a_gradient_or_is_unknown_is_not_meant(clip, history):
    assert clip_over_muon(under(history, clip)) == []


def test_where_each_kind_has_a_norm_of_its_own_none_is_called_a_joint_one(history):
    own = "chain(only('optimizer:Muon', ClipByGlobalNorm(0.02)), only('optimizer:AdamW', ClipByGlobalNorm(0.01)))"
    (finding,) = clip_over_muon(under(history, own))
    assert "muon_share" not in finding.evidence
    assert "joint" not in finding.cause


def test_few_steps_and_a_clip_that_leaves_every_other_step_alone_say_nothing(history):
    assert clip_over_muon(history.slice(0, 99)) == []
    every_other = history.layer("clip_rate").copy()
    every_other[::2] = 0
    assert clip_over_muon(changed(history, per_layer={**history.per_layer, "clip_rate": every_other})) == []


def test_the_loops_own_clip_of_all_gradients_counts(history):
    norm = history.total("grad_norm") * 10
    own = {"user_max_norm": 0.1 * norm, "user_grad_norm": norm, "user_clip_coef": np.full(len(norm), 0.1)}
    unclipped = changed(
        under(history, None),
        per_step={**history.per_step, "clip_rate": 0 * norm, **own, "user_clip_share": np.ones(len(norm))},
        per_layer={**history.per_layer, "clip_rate": 0 * history.layer("clip_rate")},
    )
    (finding,) = clip_over_muon(unclipped)
    assert finding.evidence["clip"].startswith("The loop's own clip_grad_norm_")
    assert finding.evidence["clip_rate"] == 1
    assert policies_in(finding)[-1] == only("optimizer:AdamW", ClipByGlobalNorm(1.0))


def test_groups_that_an_optimizer_of_that_name_steps_by_adam_are_not_muons(history):
    both = {
        "name": "Muon+AdamW",
        "class": "MuonWithAuxAdam",
        "groups": [
            {"layers": ["1.weight", "1.bias"], "settings": {"use_muon": True}},
            {"layers": ["3.weight", "3.bias", "5.weight", "5.bias"], "settings": {"use_muon": False}},
        ],
    }
    (finding,) = clip_over_muon(replace(history, run=replace(history.run, optimizers=(both,))))
    assert finding.layers == ("1.weight",)
    assert "optimizer:" not in finding.cure
