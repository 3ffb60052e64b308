"""Steps that are left out are those that a loop would have left out by hand."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from training import mlp, state_tensors, train, watch

from gradwatch import open_history

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
        model.weight.grad = torch.tensor([[value]])
        optimizer.step()
    assert (open_history(handle.dir).total("skipped") > 0).tolist() == [value not in (0.1, 1.0)]
    assert (model.weight.grad is None) == (value not in (0.1, 1.0))


def test_skip_norm_after_a_clip_sees_what_the_clip_left(tmp_path):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path, clip="chain(ClipByGlobalNorm(0.1), SkipNorm(0.2))") as handle:
        train(model, optimizer, 5)
    history = open_history(handle.dir)
    assert (history.total("grad_norm") > 0.2).all()
    assert not history.total("skipped").any()
