"""A step that a policy leaves out is none of another optimizer's, and moves nothing."""

import pytest
import torch
from torch import nn
from training import watch

from gradwatch import open_history


def poison(params):
    for p in params:
        p.grad = torch.full_like(p, float("nan"))


def test_the_gradients_of_others_stay(tmp_path):
    """Optimizers that step apart: one accumulates, while the other's steps are left out."""
    parts = nn.ModuleDict({"D": nn.Linear(3, 1), "G": nn.Linear(3, 1)})
    of_d, of_g = (torch.optim.SGD(parts[name].parameters(), lr=0.1) for name in "DG")
    with watch(parts, [of_d, of_g], tmp_path, clip="SkipNonfinite()") as handle:
        for step in range(6):
            poison(parts["D"].parameters())
            of_d.step()
            parts["G"](torch.ones(2, 3)).sum().backward()
            if step % 3 == 2:
                moved = parts["G"].weight.detach().clone()
                of_g.step()
                assert (parts["G"].weight.detach() - moved).abs().max() > 0.1
                of_g.zero_grad()
    assert open_history(handle.dir).total("skipped").sum() == 6


def test_a_buffer_of_gradients_is_used_on(tmp_path):
    net = nn.Linear(3, 1)
    flat = torch.zeros(4)
    net.weight.grad, net.bias.grad = flat[:3].view(1, 3), flat[3:]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with watch(net, optimizer, tmp_path, clip="SkipNonfinite()"):
        for step in range(4):
            flat.zero_()
            net(torch.full((2, 3), float("nan") if step == 1 else 1.0)).sum().backward()
            assert flat.abs().sum() != 0
            optimizer.step()


@pytest.mark.parametrize("bad", [True, False])
def test_no_constraint_acts_on_a_step_that_is_left_out(bad, tmp_path):
    net = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with watch(net, optimizer, tmp_path, clip="SkipNonfinite()", renorm="MaxNorm(0.1)"):
        before = net.weight.detach().clone()
        net(torch.ones(2, 3)).sum().backward()
        if bad:
            poison(net.parameters())
        optimizer.step()
        assert torch.equal(net.weight, before) == bad
