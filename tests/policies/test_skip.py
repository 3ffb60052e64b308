"""Steps that are left out are those that a loop would have left out by hand."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from training import mlp, state_tensors, train, watch

from gradwatch import SkipNonfinite, SkipNorm, SkipSpike, TrainingHalted, open_history

KINDS = [{"foreach": False}, {"foreach": True}, {"fused": True}]


@pytest.mark.parametrize("settings", KINDS, ids=str)
@pytest.mark.parametrize("cls", [torch.optim.SGD, torch.optim.AdamW])
def test_skip_norm_is_a_loop_that_compares_the_norm_itself(cls, settings, tmp_path):
    limit, total = 0.45, nn.utils.get_total_norm
    model, by_hand = mlp(torch.float32), mlp(torch.float32)
    optimizer = cls(model.parameters(), lr=0.1, **settings)
    with watch(model, optimizer, tmp_path, clip=f"SkipNorm({limit})") as handle:
        train(model, optimizer, 40, dtype=torch.float32)
    plain, left_out = cls(by_hand.parameters(), lr=0.1, **settings), []

    class Loop:
        zero_grad = plain.zero_grad

        def step(self):
            left_out.append(bool(total([p.grad for p in by_hand.parameters()]) > limit))
            if not left_out[-1]:
                plain.step()

    train(by_hand, Loop(), 40, dtype=torch.float32)
    assert 5 < sum(left_out) < 35
    assert np.array_equal(open_history(handle.dir).total("skipped") > 0, left_out)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), by_hand.parameters(), strict=True))
    state, want = state_tensors(optimizer), state_tensors(plain)
    assert all(torch.equal(state[k], want[k]) for k in want)


@pytest.mark.parametrize("value", [0.1, 1.0, 1.0000001, math.inf, math.nan])
def test_skip_norm_skips_above_its_threshold_and_what_is_not_finite(value, tmp_path):
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with watch(model, optimizer, tmp_path, clip="SkipNorm(1.0)") as handle:
        before = model.weight.detach().clone()
        model.weight.grad = torch.tensor([[value]])
        optimizer.step()
    assert (open_history(handle.dir).total("skipped") > 0).tolist() == [value not in (0.1, 1.0)]
    assert torch.equal(model.weight, before) == (value not in (0.1, 1.0))


def test_skip_norm_after_a_clip_sees_what_the_clip_left(tmp_path):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path, clip="chain(ClipByGlobalNorm(0.1), SkipNorm(0.2))") as handle:
        train(model, optimizer, 5)
    history = open_history(handle.dir)
    assert (history.total("grad_norm") > 0.2).all()
    assert not history.total("skipped").any()


# ------------------------------------------------------------------------------------------------------------- at_most


def feed(model, optimizer, norms):
    """Step on gradients of these norms; returns how many of the steps were taken."""
    for done, norm in enumerate(norms):
        model.weight.grad = torch.tensor([[norm]])
        try:
            optimizer.step()
        except TrainingHalted as error:
            return done, str(error)
    return len(norms), ""


def single(**settings):
    model = nn.Linear(1, 1, bias=False)
    return model, torch.optim.SGD(model.parameters(), lr=1.0, **settings)


def test_a_skip_prints_without_the_bound_that_it_has_not():
    assert repr(SkipNonfinite()) == "SkipNonfinite()"
    assert repr(SkipNonfinite(at_most=8)) == "SkipNonfinite(at_most=8)"
    assert repr(SkipNorm(1, at_most=2)) == "SkipNorm(1.0, at_most=2)"
    assert repr(SkipSpike(at_most=2)) == "SkipSpike(6.0, at_most=2)"


@pytest.mark.parametrize(
    ("clip", "good", "bad"),
    [
        ("SkipNonfinite(at_most=3)", 1.0, math.nan),
        ("SkipNorm(2.0, at_most=3)", 1.0, 3.0),
        ("only('*', chain(ClipByGlobalNorm(9.0), SkipNorm(2.0, at_most=3)))", 1.0, 3.0),
        ("SkipSpike(window=4, at_most=3)", 1.0, 900.0),
    ],
)
def test_so_many_skips_in_a_row_end_the_training(clip, good, bad, tmp_path):
    model, optimizer = single()
    calm = [good, 1.1 * good, good, 0.9 * good]
    with watch(model, optimizer, tmp_path, clip=clip) as handle:
        done, said = feed(model, optimizer, [*calm, bad, bad, good, bad, bad, bad, good, good])
        assert done == 10
        assert "at_most=3) left out 3 steps in a row" in said
        assert str(handle.dir) in said
    history = open_history(handle.dir)
    assert (history.total("skipped") > 0).tolist() == [False] * 4 + [True, True, False, True, True, True]
    assert history.run.status == "FAILED"


def test_the_count_goes_on_after_a_checkpoint(tmp_path):
    clip = "chain(SkipNonfinite(), SkipNorm(2.0, at_most=3))"
    model, optimizer = single()
    with watch(model, optimizer, tmp_path / "a", clip=clip) as handle:
        feed(model, optimizer, [1.0, 3.0, 3.0])
        state = handle.state_dict()
    model, optimizer = single()
    with watch(model, optimizer, tmp_path / "b", clip=clip) as handle:
        handle.load_state_dict(state)
        assert feed(model, optimizer, [3.0, 1.0, 1.0])[0] == 1


def test_where_the_kernel_leaves_steps_out_it_ends_at_the_next_look(tmp_path, monkeypatch):
    """The bad steps are over by then: what counts is the most in a row since the last look."""
    monkeypatch.setattr("gradwatch.recording.clipper.can_be_read", lambda _: False)
    model, optimizer = single(fused=True)
    with watch(model, optimizer, tmp_path, clip="SkipNorm(2.0, at_most=3)"):
        assert feed(model, optimizer, [1.0, 3.0, 3.0] * 6 + [3.0] * 3 + [1.0] * 20)[0] == 32
    model, optimizer = single(fused=True)
    with watch(model, optimizer, tmp_path, clip="SkipNorm(2.0, at_most=3)"):
        assert feed(model, optimizer, [1.0, 3.0, 3.0] * 20) == (60, "")


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_the_scaler_drops_is_none_that_the_policy_left_out(fused, tmp_path):
    model, optimizer = single(fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
    with watch(model, optimizer, tmp_path, clip="SkipNonfinite(at_most=3)") as handle:
        for _ in range(6):
            model.weight.grad = torch.tensor([[math.inf]])
            scaler.scale(torch.ones(()))
            scaler.step(optimizer)
            scaler.update()
    assert (open_history(handle.dir).total("skipped") > 0).sum() == 6
