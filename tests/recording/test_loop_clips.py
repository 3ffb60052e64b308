"""The loop's own clips, held against what the loop itself saw: the joint norm before the first of them, and after."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from training import batches, mlp, watch

from gradwatch import open_history
from gradwatch.analysis.clips import incoming, loop_changed, loop_coef, of_all_layers
from gradwatch.analysis.whatif import what_if
from gradwatch.report import build_report
from gradwatch.report.text import render_json, render_markdown

INF = float("inf")


def norm(model):
    return torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm().item()


def by_parts(model, limit):
    clip_grad_norm_(model[0].parameters(), limit)
    clip_grad_norm_(model[2].parameters(), limit / 2)


CLIPS = {
    "norm": lambda m, limit: clip_grad_norm_(m.parameters(), limit),
    "largest element": lambda m, limit: clip_grad_norm_(m.parameters(), limit / 4, norm_type=INF),
    "twice": lambda m, limit: [clip_grad_norm_(m.parameters(), limit / n) for n in (1, 2)],
    "a part": lambda m, limit: clip_grad_norm_(m[0].parameters(), limit),
    "in parts": by_parts,
    "a part, then all": lambda m, limit: [clip_grad_norm_(x.parameters(), limit) for x in (m[2], m)],
    "value": lambda m, limit: clip_grad_value_(m.parameters(), limit / 8),
    "value, then norm": lambda m, limit: [clip_grad_value_(m.parameters(), limit / 8), CLIPS["norm"](m, limit / 2)],
}


@pytest.mark.parametrize("clip", [None, "ClipByGlobalNorm(0.01)", "ClipByValue(0.001)", "SkipNonfinite()"])
@pytest.mark.parametrize("form", CLIPS)
def test_the_norm_before_and_what_was_left_of_it_are_those_that_the_loop_saw(form, clip, tmp_path):
    """Whatever a policy writes to the gradients afterwards."""
    model, saw = mlp(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path, clip=clip) as handle:
        for i, (x, y) in enumerate(batches(30)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            before = norm(model)
            if i % 3:
                CLIPS[form](model, 0.2 if i % 2 else 50.0)
            saw.append((before, norm(model)))
            optimizer.step()
    history, (before, after) = open_history(handle.dir), np.transpose(saw)
    np.testing.assert_allclose(incoming(history), before, rtol=1e-5)
    np.testing.assert_allclose(loop_coef(history), after / before, rtol=1e-5)
    changed = loop_changed(history)
    assert changed.tolist() == (after < before * (1 - 1e-7)).tolist()
    assert 0 < changed.mean() < 1
    norms_alone = not any(word in form for word in ("part", "value"))
    assert of_all_layers(history).all() == norms_alone


def test_a_single_element_that_is_clamped_is_a_changed_step(tmp_path):
    model = nn.Linear(1000, 1000, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model, optimizer, tmp_path) as handle:
        for top in (1.0, 1.00001, 2.0):
            model.weight.grad = torch.ones(1000, 1000)
            model.weight.grad[3, 4] = top
            clip_grad_value_(model.parameters(), 1.0)
            optimizer.step()
    assert loop_changed(open_history(handle.dir)).tolist() == [0, 1, 1]


def test_a_clip_for_each_micro_batch_counts_and_the_norm_is_that_of_the_last(tmp_path):
    model, saw = mlp(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path) as handle:
        for limits in ((0.05, 50.0), (50.0, 0.05), (50.0, 50.0), (0.05, 0.05)):
            optimizer.zero_grad()
            for (x, y), limit in zip(batches(2), limits, strict=True):
                nn.functional.cross_entropy(model(x), y).backward()
                before = norm(model)
                clip_grad_norm_(model.parameters(), limit)
            saw.append((before, norm(model)))
            optimizer.step()
    history, (before, after) = open_history(handle.dir), np.transpose(saw)
    np.testing.assert_allclose(incoming(history), before, rtol=1e-5)
    np.testing.assert_allclose(loop_coef(history), after / before, rtol=1e-5)
    assert loop_changed(history).tolist() == [1, 1, 0, 1]
    (run,) = build_report([history]).runs
    assert "a clip for each micro-batch" in run.loop_clips_note


def test_clips_of_gradients_that_were_thrown_away_are_forgotten(tmp_path):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path) as handle:
        for x, y in batches(3):
            for limit in (1e-3, 50.0):  # the first is of a batch that the loop leaves out
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                clip_grad_norm_(model.parameters(), limit)
            optimizer.step()
    history = open_history(handle.dir)
    assert loop_coef(history).tolist() == [1, 1, 1]
    assert loop_changed(history).tolist() == [0, 0, 0]


class ClipsItself(torch.optim.SGD):
    """An optimizer that clips in its own step, when gradwatch has measured."""

    limit = 0.5

    def step(self, closure=None):
        clip_grad_norm_([p for group in self.param_groups for p in group["params"]], self.limit)
        return super().step(closure)


@pytest.mark.parametrize("clip", [None, "ClipByGlobalNorm(1.0)"])
def test_a_clip_inside_the_optimizers_own_step_belongs_to_that_step(clip, tmp_path):
    model, before = mlp(), []
    optimizer = ClipsItself(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path, clip=clip) as handle:
        for i, (x, y) in enumerate(batches(8)):
            optimizer.limit = 50.0 if i % 2 else 0.3
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            before.append(norm(model))
            optimizer.step()
    history, before = open_history(handle.dir), np.array(before)
    np.testing.assert_allclose(incoming(history), before, rtol=1e-5)
    first = np.minimum(1, 1.0 / before) if clip else np.ones(8)
    np.testing.assert_allclose(
        loop_coef(history), np.minimum(1, np.where(np.arange(8) % 2, 50.0, 0.3) / (before * first)), rtol=1e-4
    )
    assert loop_changed(history).tolist() == (before * first > np.where(np.arange(8) % 2, 50.0, 0.3)).tolist()
    assert 0 < loop_changed(history).mean() < 1
    assert history.total("user_max_norm").tolist() == [0.3, 50.0] * 4


def test_of_a_closure_the_clip_of_its_first_evaluation_is_recorded(tmp_path):
    model, saw = mlp(), []
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
    (x, y), *_ = batches(1)

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        saw[-1].append(norm(model))
        clip_grad_norm_(model.parameters(), 0.4)
        return loss

    with watch(model, optimizer, tmp_path) as handle:
        for _ in range(4):
            saw.append([])
            optimizer.step(closure)
    assert min(map(len, saw)) > 1
    history, first = open_history(handle.dir), np.array([values[0] for values in saw])
    np.testing.assert_allclose(incoming(history), first, rtol=1e-5)
    np.testing.assert_allclose(loop_coef(history), np.minimum(1, 0.4 / first), rtol=1e-4)


def test_every_page_says_how_often_the_loop_clipped_and_the_norm_before(tmp_path):
    model, before = mlp(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, optimizer, tmp_path) as handle:
        for i, (x, y) in enumerate(batches(80)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            before.append(clip_grad_norm_(model.parameters(), 0.25 if i % 4 == 0 else 100.0).item())
            optimizer.step()
    history = open_history(handle.dir)
    report = build_report([history])
    (run,) = report.runs
    assert run.clip_rate == 0
    assert run.loop_clip_rate == 0.25
    assert run.median_grad_norm == pytest.approx(np.median(before), rel=1e-5)
    assert '"loop_clip_rate": 0.25' in render_json(report)
    assert "25.0 % by the loop" in render_markdown(report)
    for outcome in what_if(history, []):
        if outcome.kind == "ClipByGlobalNorm":
            limit = float(outcome.policy[17:-1])
            assert outcome.clip_rate == pytest.approx(np.mean(np.array(before) > limit - 1e-6), abs=1 / 80)
    assert "in its place" in run.what_if_note
    table = build_report([history, history]).comparison
    assert table["loop_clip_rate"].tolist() == [0.25]
    assert table["median_grad_norm"][0] == pytest.approx(np.median(before), rel=1e-5)


def test_a_folder_of_an_earlier_version_is_read_by_its_last_call(tmp_path):
    model, before = mlp(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path) as handle:
        for x, y in batches(10):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            before.append(clip_grad_norm_(model.parameters(), 1.0).item())
            optimizer.step()
    new = open_history(handle.dir)
    own = {"user_clip_coef", "user_clip_share"}
    assert own <= new.per_step.keys()
    old = new.take(np.arange(len(new)))
    for name in own:
        del old.per_step[name]
    for history in (new, old):
        np.testing.assert_allclose(incoming(history), before, rtol=1e-5)
        np.testing.assert_allclose(loop_coef(history), np.minimum(1, 1.0 / (np.array(before) + 1e-6)), rtol=1e-5)
