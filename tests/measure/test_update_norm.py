"""`total("update_norm")`: how far a step moved all weights together, beside float64 of the weights before and after."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from training import watch

from gradwatch import open_history
from gradwatch.table import stack
from gradwatch.tracking.metric_keys import windows


def train(folder, optimizer, width=8, steps=6, **options):
    """Train; what was recorded, and the joint norm of each step's update in float64."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 3))
    made, wanted = optimizer(model.parameters()), []
    with watch(model, made, folder, **options) as handle:
        for _ in range(steps):
            made.zero_grad()
            model(torch.randn(4, 6)).square().mean().backward()
            before = [p.detach().double() for p in model.parameters()]
            made.step()
            moved = [p.detach().double() - w for p, w in zip(model.parameters(), before, strict=True)]
            wanted.append(float(torch.stack([m.square().sum() for m in moved]).sum().sqrt()))
    return open_history(handle.dir), np.array(wanted)


@pytest.mark.parametrize("lr", [0.01, 0.3])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_it_is_the_oracles_to_within_the_update_ratio(kind, lr, tmp_path):
    for options in ({}, {"renorm": "MaxNorm(0.3)"}):
        history, wanted = train(tmp_path / str(len(options)), lambda p: kind(p, lr=lr), every=1, **options)
        bound = history.layer("update_ratio").max(axis=1)
        assert (np.abs(history.total("update_norm") - wanted) <= (bound + 1e-5) * wanted).all()


def test_of_large_layers_it_is_an_estimate(tmp_path):
    history, wanted = train(tmp_path, lambda p: torch.optim.SGD(p, lr=0.01), width=2000, every=1)
    np.testing.assert_allclose(history.total("update_norm"), wanted, rtol=0.05)


@pytest.mark.parametrize("every", [1, 3])
def test_with_slots_it_is_measured_on_every_step(every, tmp_path):
    for width, rtol in ((8, 1e-5), (2000, 0.05)):  # layers of more than 4,096 elements are estimated
        folder = tmp_path / str(width)
        history, wanted = train(folder, lambda p: torch.optim.SGD(p, lr=0.01), width=width, every=every, slots=True)
        np.testing.assert_allclose(history.total("update_norm"), wanted, rtol=rtol)
        assert len(np.flatnonzero(np.isfinite(history.layer("update_ratio")[:, 0]))) == 6 // every


def test_looks_in_between_leave_the_displacement_as_it_is(tmp_path):
    found = [
        train(tmp_path / str(slots), lambda p: torch.optim.Adam(p, lr=0.1), every=2, steps=9, slots=slots)[0]
        for slots in (False, True)
    ]
    for quantity in ("displacement", "update_ratio"):
        np.testing.assert_allclose(*(history.layer(quantity) for history in found), rtol=1e-6)
    assert np.isfinite(found[0].layer("displacement")[2::2]).all()


def test_where_one_attempt_recorded_it_and_another_did_not_both_have_it(tmp_path):
    slots, plain = (
        train(tmp_path / str(asked), lambda p: torch.optim.SGD(p, lr=0.001), every=1, steps=4, slots=asked)[0]
        for asked in (True, False)
    )
    later = replace(plain.by_layer, step=plain.by_layer.step + 4)
    both = stack([slots.by_layer, later]).quantity("update_norm")
    np.testing.assert_array_equal(both, np.vstack([slots.layer("update_norm"), plain.layer("update_norm")]))
    assert np.isfinite(both[:, 0]).all()


def test_it_stands_where_it_was_measured_and_is_sent(tmp_path):
    history, wanted = train(tmp_path, lambda p: torch.optim.SGD(p, lr=0.001), every=3, steps=7)
    found = history.total("update_norm")
    np.testing.assert_array_equal(np.flatnonzero(np.isfinite(found)), [0, 3, 6])
    np.testing.assert_allclose(found[::3], wanted[::3], rtol=0.01)
    points = [p for w in windows(history, 7, 16, ended=True) for p in w.points if p.key == "update_norm/total"]
    assert [(p.step, p.value) for p in points] == [(6, found[::3].max())]


def test_a_layer_that_was_zero_before_the_step_is_left_out(tmp_path):
    model = nn.Linear(3, 2)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, optimizer, tmp_path, every=1) as handle:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(4, 3)).sum().backward()
            optimizer.step()
    history = open_history(handle.dir)
    first, second = history.total("update_norm")
    assert first == pytest.approx(history.layer("update_norm")[0, 0])
    assert second == pytest.approx(np.hypot(*history.layer("update_norm")[1].astype(np.float64)))


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_the_trust_ratio_is_that_of_lars_with_each_groups_rate(decay, tmp_path):
    """Norm of the weights over that of gradient and decay, in float64; one layer has a group and a rate of its own."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)).double()
    groups = [{"params": model[0].parameters()}, {"params": model[1].parameters(), "lr": 1e-4}]
    optimizer, wanted = torch.optim.SGD(groups, lr=0.01, weight_decay=decay), []
    with watch(model, optimizer, tmp_path, every=2) as handle:
        for step in range(5):
            optimizer.zero_grad()
            model(torch.randn(4, 6).double()).square().mean().backward()
            if step % 2 == 0:
                wanted.append([float(p.norm() / (p.grad + decay * p).norm()) for p in model.parameters()])
            optimizer.step()
            optimizer.param_groups[1]["lr"] *= 2
    found = open_history(handle.dir).layer("trust_ratio")
    np.testing.assert_allclose(found[::2], wanted, rtol=1e-5)
    assert np.isnan(found[1::2]).all()


def test_the_trust_ratio_of_adamw_is_lambs(tmp_path):
    history, _ = train(tmp_path, lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.0, 0.0), eps=0.0), every=1, steps=2)
    size = np.sqrt([layer.numel for layer in history.run.layers])  # the first update is 1 or -1 in each element
    wanted = history.layer("weight_norm")[0] / size
    found = history.layer("trust_ratio")
    np.testing.assert_allclose(found[0], wanted, rtol=0.15)
    points = [p for w in windows(history, 1, 16, ended=True) for p in w.points if p.key.startswith("trust_ratio/")]
    assert {(p.key, p.step): p.value for p in points} == {
        (f"trust_ratio/{word}", step): pytest.approx(of(found[step]))
        for word, of in (("smallest", np.min), ("median", np.median))
        for step in range(2)
    }


@pytest.mark.parametrize("change", ["lies otherwise", "grows"])
def test_weights_that_lie_otherwise_or_grow_are_measured_from_there_on(change, tmp_path):
    """Displacement is between two measurements: elements that lie elsewhere in memory are others."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with watch(model, optimizer, tmp_path, every=2) as handle:
        for step in range(10):
            if step == 5 and change == "grows":
                model[0].weight.data = torch.randn(12, 3, 3, 3) * 0.1
                model[0].bias.data = torch.ones(12)
                model[2].weight.data = torch.randn(4, 12, 3, 3) * 0.1
            elif step == 5:
                model.to(memory_format=torch.channels_last)
            optimizer.zero_grad()
            model(torch.randn(4, 3, 8, 8)).square().mean().backward()
            optimizer.step()
    history = open_history(handle.dir)
    moved, ratio = history.layer("displacement")[::2], history.layer("update_ratio")[::2]
    assert np.isfinite(moved[[1, 2, 4]]).all()
    assert np.isnan(moved[[0, 3]]).all()
    assert np.nanmax(moved) < 0.01
    assert np.nanmax(ratio) < 0.01
