"""`ramp` and `after`: each step beside a plain policy with that step's threshold, on the same gradients."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from training import mlp, state_tensors, watch

from gradwatch import (
    AGC,
    AutoClip,
    ClipByAverageNorm,
    ClipByGlobalNorm,
    ClipByNorm,
    ClipByValue,
    MaxNorm,
    PolicyError,
    SkipNonfinite,
    SkipNorm,
    TrainingHalted,
    after,
    chain,
    only,
    open_history,
    parse,
    ramp,
)
from gradwatch.analysis.rules.facts import limits_of, threshold
from gradwatch.policies.grammar import members
from gradwatch.report.run_charts import norm_chart

STEPS = 12


def gradients(seed=1, steps=STEPS):
    generator = torch.Generator().manual_seed(seed)
    like = [p.shape for p in mlp(torch.float32).parameters()]
    return [[torch.randn(shape, generator=generator) for shape in like] for _ in range(steps)]


def stepped(tmp_path, clips, grads=None, fused=False):
    """The weights after these gradients, and the coefficients; of a list of clips each step has a Watch of its own."""
    model = mlp(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=fused)
    handle, coefs = None, []
    for i, step in enumerate(grads or gradients()):
        if handle is None or isinstance(clips, list):
            coefs += closed(handle)
            handle = watch(model, optimizer, tmp_path, clip=clips[i] if isinstance(clips, list) else clips)
        for p, grad in zip(model.parameters(), step, strict=True):
            p.grad = grad.clone()
        optimizer.step()
    coefs += closed(handle)
    return [*model.parameters(), *state_tensors(optimizer).values()], np.array(coefs)


def closed(handle):
    if handle is None:
        return []
    handle.close()
    return open_history(handle.dir).layer("clip_coef").tolist()


def values(start, end, steps):
    return [start + (end - start) * min(1, i / steps) for i in range(STEPS)]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("kind", "start", "end"),
    [
        (ClipByGlobalNorm, 4.0, 0.5),
        (ClipByNorm, 4.0, 0.5),
        (ClipByAverageNorm, 0.1, 0.01),
        (lambda v: ClipByNorm(v, axes=(1,)), 4.0, 0.5),
    ],
)
def test_a_ramp_is_in_each_step_that_number(kind, start, end, fused, tmp_path):
    got, coefs = stepped(tmp_path, kind(ramp(start, end, 8)), fused=fused)
    want, plain = stepped(tmp_path, [kind(value) for value in values(start, end, 8)], fused=fused)
    np.testing.assert_allclose(coefs, plain, rtol=1e-6)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert len(np.unique(coefs[:, 0])) > 5


def test_a_chart_has_the_threshold_of_each_step(tmp_path):
    """Beside what the clip left: every gradient is above it. A step that is not finite moves no ramp."""
    grads = gradients()
    grads[3][0][0] = math.inf
    model = mlp(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path, clip=chain(SkipNonfinite(), ClipByGlobalNorm(ramp(2.0, 0.5, 8)))) as handle:
        for step in grads:
            for p, grad in zip(model.parameters(), step, strict=True):
                p.grad = grad.clone()
            optimizer.step()
    history = open_history(handle.dir)
    limits, finite = limits_of(history), np.isfinite(history.total("grad_norm"))
    np.testing.assert_allclose(limits[finite], history.total("clipped_norm")[finite], rtol=1e-4)
    assert limits[3] == limits[4] < limits[2]
    (drawn,) = [trace for trace in norm_chart(history).figure["data"] if "threshold" in trace["name"]]
    assert drawn["name"] == "threshold 2 to 0.5"


def test_a_ramp_of_a_skip(tmp_path):
    """Norms of 3 under a threshold that falls from 5 to 1: while steps are left out the count stands."""
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with watch(model, optimizer, tmp_path, clip=SkipNorm(ramp(5.0, 1.0, 8))) as handle:
        for norm in [3.0] * 7 + [0.5] * 2 + [2.4]:
            model.weight.grad = torch.tensor([[norm]])
            optimizer.step()
    assert open_history(handle.dir).total("skipped").tolist() == [0] * 5 + [1] * 2 + [0] * 2 + [1]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    "policy",
    [
        ClipByGlobalNorm(0.5), ClipByNorm(0.5), ClipByValue(0.1), AGC(0.01), ClipByNorm(0.2, axes=(1,)), SkipNorm(0.1),
        chain(ClipByValue(0.5), only("0.*", ClipByGlobalNorm(0.2))),
    ],
    ids=repr,
)  # fmt: skip
def test_after_so_many_steps_it_is_the_policy(policy, fused, tmp_path):
    got, _ = stepped(tmp_path, after(5, policy), fused=fused)
    want, _ = stepped(tmp_path, [None] * 5 + [policy] * (STEPS - 5), fused=fused)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
    untouched, _ = stepped(tmp_path, after(STEPS, policy), fused=fused)
    for a, b in zip(untouched, stepped(tmp_path, None, fused=fused)[0], strict=True):
        assert torch.equal(a, b)


def test_what_begins_later_has_seen_the_norms_before(tmp_path):
    grads = gradients()
    _, coefs = stepped(tmp_path, after(6, AutoClip(50, 20)), grads)
    _, always = stepped(tmp_path, AutoClip(50, 20), grads)
    np.testing.assert_array_equal(coefs[:6], 1)
    np.testing.assert_array_equal(coefs[6:], always[6:])


def test_skips_that_it_only_would_have_made_end_no_training(tmp_path):
    grads = [[1000 * g for g in step] for step in gradients(steps=20)]
    with pytest.raises(TrainingHalted, match="left out 3 steps in a row"):
        stepped(tmp_path, after(10, SkipNorm(1.0, at_most=3)), grads)
    assert stepped(tmp_path, after(20, SkipNorm(1.0, at_most=3)), grads)


def test_both_go_on_after_a_checkpoint(tmp_path):
    policy, grads = chain(ClipByNorm(ramp(3.0, 1.0, 8)), after(6, ClipByGlobalNorm(0.5))), gradients()
    whole, _ = stepped(tmp_path / "whole", policy, grads)
    model = mlp(torch.float32)
    optimizer, state = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), None
    for half in (grads[:7], grads[7:]):
        with watch(model, optimizer, tmp_path / "halves", clip=policy) as handle:
            if state is not None:
                handle.load_state_dict(state)
            for step in half:
                for p, grad in zip(model.parameters(), step, strict=True):
                    p.grad = grad.clone()
                optimizer.step()
            state = handle.state_dict()
    for a, b in zip(whole, [*model.parameters(), *state_tensors(optimizer).values()], strict=True):
        assert torch.equal(a, b)


def test_as_text_as_copies_and_for_a_reader():
    policy = chain(after(100, ClipByGlobalNorm(ramp(10, 1, 1000))), SkipNorm(ramp(9.0, 2.0, 5), at_most=3))
    text = "chain(after(100, ClipByGlobalNorm(ramp(10.0, 1.0, 1000))), SkipNorm(ramp(9.0, 2.0, 5), at_most=3))"
    assert repr(policy) == text
    assert parse(text) == policy == copy.deepcopy(policy) == pickle.loads(pickle.dumps(policy))
    assert ramp(10.0, 1.0, 1000) != ramp(5.0, 1.0, 1000)
    assert [type(one).__name__ for one in members(text)] == ["ClipByGlobalNorm", "SkipNorm"]
    assert float(threshold("ClipByGlobalNorm(ramp(10.0, 1.0, 1000))")) == 1.0
    assert threshold("after(100, ClipByGlobalNorm(1.0))") is None


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ramp(0, 1, 10), "start=0: wanted a number above 0"),
        (lambda: ramp(1, math.inf, 10), "wanted finite numbers"),
        (lambda: ramp(2, 1, 0), "steps=0: wanted a whole number from 1"),
        (lambda: after(-1, ClipByNorm(1.0)), "steps=-1"),
        (lambda: after(5, 1.0), "after: found 1.0"),
        (lambda: after(5, MaxNorm(1.0)), "it constrains weights"),
        (lambda: parse("ramp(2.0, 1.0, 10)"), "is not a policy"),
        (lambda: parse("ClipByGlobalNorm(ramp)"), "ramp needs parentheses"),
        (lambda: parse("ClipByGlobalNorm(ClipByNorm(1.0))"), "wanted a number"),
        (lambda: parse("ClipByValue(ramp(2.0, 1.0, 10))"), "wanted a number"),
    ],
)
def test_what_makes_no_sense_is_refused(make, said):
    with pytest.raises(PolicyError, match=said):
        make()
