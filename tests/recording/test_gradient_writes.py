"""How often the loop writes to a gradient between two steps: 0 where it makes a new one."""

import numpy as np
import pytest
import torch
from torch import nn

import gradwatch
from gradwatch.analysis.rules import diagnose


def trained(folder, zero, passes=1, own_clip=False, steps=8, make=torch.optim.SGD, every=1, **options):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = make(net.parameters(), lr=1e-3)
    with gradwatch.watch(net, optimizer, log=None, dir=folder, verbose=False, every=every, **options) as watch:
        for _ in range(steps):
            zero(optimizer)
            for _ in range(passes):
                loss = net(torch.ones(8, 8)).square().mean() + net(torch.randn(8, 8)).mean()
                loss.backward()
            if own_clip:
                nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
            optimizer.step()
            watch.log(loss=loss)
    return gradwatch.open_history(watch.dir)


def never(optimizer):
    """Nothing is zeroed."""


def in_place(optimizer):
    optimizer.zero_grad(set_to_none=False)


@pytest.mark.parametrize("clip", [None, "ClipByGlobalNorm(1e-3)", "ClipByValue(1e-6)"])
@pytest.mark.parametrize(
    ("zero", "passes", "own_clip", "writes"),
    [
        (lambda optimizer: optimizer.zero_grad(), 1, False, 0),
        (lambda optimizer: optimizer.zero_grad(), 3, True, 0),
        (in_place, 1, False, 2),
        (in_place, 2, True, 4),
        (never, 1, False, 1),
        (never, 2, False, 2),
        (never, 1, True, 2),
    ],
)
def test_what_the_loop_writes_counts_and_what_the_policy_writes_does_not(
    zero, passes, own_clip, writes, clip, tmp_path
):
    found = trained(tmp_path, zero, passes, own_clip, clip=clip)
    assert found.total("grad_writes").tolist() == pytest.approx([np.nan, *[writes] * 7], nan_ok=True)
    assert found.logged == ("loss",)


def test_it_is_counted_after_steps_that_measure_the_weights(tmp_path):
    known = np.isfinite(trained(tmp_path, never, every=3).total("grad_writes"))
    assert np.flatnonzero(known).tolist() == [1, 4, 7]


def test_a_fused_optimizer_that_clips_by_itself_writes_nothing_either(tmp_path):
    def fused(params, lr):
        return torch.optim.AdamW(params, lr=lr, fused=True)

    found = trained(tmp_path, never, make=fused, clip="ClipByGlobalNorm(1e-3)")
    assert set(found.total("grad_writes")[1:]) == {1}


def test_no_gradient_is_kept_alive_for_it(tmp_path):
    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with gradwatch.watch(net, optimizer, log=None, dir=tmp_path, verbose=False, every=1) as watch:
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        kept = watch._stepper.gradient_writes._last[optimizer][1]
        assert kept() is net.weight.grad
        optimizer.zero_grad()
        assert kept() is None


def test_a_sum_is_named_by_it_and_gradients_that_are_new_never_are(tmp_path):
    (root,) = (f for f in diagnose(trained(tmp_path / "sum", never, steps=40)) if f.severity != "note")
    assert root.rule == "gradients-accumulate"
    assert "they were as the step before had left them" in root.cause
    new = trained(tmp_path / "new", lambda optimizer: optimizer.zero_grad(), steps=40)
    assert "gradients-accumulate" not in {f.rule for f in diagnose(new)}


def test_a_module_can_be_swapped_between_steps(tmp_path):
    """torch refuses to swap a tensor that somebody has a weak reference to: tensor subclasses, and all if asked."""
    torch.manual_seed(0)
    net, other = nn.Linear(4, 4), nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with gradwatch.watch(net, optimizer, log=None, dir=tmp_path, verbose=False) as watch:
            for _ in range(4):
                optimizer.zero_grad()
                other(net(torch.randn(2, 4))).square().mean().backward()
                optimizer.step()
            net.bfloat16(), other.bfloat16()
            net.float(), other.float()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert gradwatch.open_history(watch.dir).step.tolist() == [0, 1, 2, 3]
