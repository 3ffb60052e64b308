"""The mode that a model trains in, and what its batch norms are set to, are in the run."""

import numpy as np
import pytest
import torch
from torch import nn

import gradwatch


def trained(folder, net, train_of=lambda step, net: None, steps=6, wrapped=None, **options):
    """The History of a few steps, before each of which `train_of` sets the mode."""
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with gradwatch.watch(wrapped or net, optimizer, log=None, dir=folder, verbose=False, **options) as watch:
        for step in range(steps):
            train_of(step, net)
            optimizer.zero_grad()
            net(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    return gradwatch.open_history(watch.dir)


def normed(momentum=0.1, **options):
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=momentum, **options), nn.Linear(4, 1))


def test_the_steps_in_eval_mode_are_told_where_the_mode_changes_anything(tmp_path):
    def train_of(step, net):
        net.train(step not in (2, 5))

    for i, net in enumerate((normed(), nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5)))):
        found = trained(tmp_path / str(i), net, train_of)
        assert found.total("eval_mode").tolist() == pytest.approx([np.nan, np.nan, 1, np.nan, np.nan, 1], nan_ok=True)
        assert "eval_mode" not in found.logged
    for i, net in enumerate((nn.Linear(4, 1), nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.0)))):
        assert "eval_mode" not in trained(tmp_path / f"plain{i}", net, train_of).per_step


def test_norms_that_are_frozen_alone_are_no_model_in_eval_mode(tmp_path):
    assert "eval_mode" not in trained(tmp_path, normed(), lambda step, net: net[1].eval()).per_step


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile])
def test_the_mode_is_that_of_the_model_inside_a_wrapper(wrap, tmp_path):
    net = normed()
    found = trained(tmp_path, net, lambda step, net: net.eval(), wrapped=wrap(net))
    assert (found.total("eval_mode") == 1).all()
    assert found.run.batch_norms == {"1": 0.1}


def test_the_running_mean_is_known_as_it_was_before_the_first_step(tmp_path):
    known = trained(tmp_path / "new", normed())
    assert known.total("norm_mean").tolist() == pytest.approx([0, *[np.nan] * 5], nan_ok=True)
    net = normed()
    net[1].running_mean[2] = -3.0
    assert trained(tmp_path / "loaded", net).total("norm_mean")[0] == 3


def test_the_manifest_has_the_momentum_of_norms_with_running_statistics(tmp_path):
    nets = (
        normed(0),
        normed(None),
        normed(float("inf")),
        normed(track_running_stats=False),
        nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)),
    )
    found = [trained(tmp_path / str(i), net, name="G").run.batch_norms for i, net in enumerate(nets)]
    assert found == [{"G.1": 0.0}, {}, {}, {}, {}]


def test_a_running_mean_that_cannot_be_looked_at_ends_no_training(tmp_path):
    net = normed()
    net[1].running_mean = torch.zeros(0)
    with pytest.warns(UserWarning, match="norm_mean cannot be recorded"):
        found = trained(tmp_path, net[::2], wrapped=net)
    assert len(found) == 6
    assert "norm_mean" not in found.per_step
