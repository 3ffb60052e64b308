"""An optimizer whose state is gone as it steps is told of: in its first step, and wherever it had some before."""

import numpy as np
import pytest
import torch
from torch import nn

import gradwatch

ADAM = torch.optim.Adam


def trained(folder, make=ADAM, before=lambda step, optimizer: None, steps=6, **options):
    """The History of a few steps, before each of which `before` may do something to the optimizer."""
    net = nn.Linear(4, 1)
    optimizer = make(net.parameters(), lr=1e-3)
    with gradwatch.watch(net, optimizer, log=None, dir=folder, verbose=False, **options) as watch:
        for step in range(steps):
            before(step, optimizer)
            optimizer.zero_grad()
            net(torch.ones(8, 4)).square().mean().backward()
            optimizer.step()
    return gradwatch.open_history(watch.dir)


def empty_in(history):
    return np.flatnonzero(history.total("empty_state") == 1).tolist()


@pytest.mark.parametrize("make", [ADAM, torch.optim.SGD])
def test_the_first_step_has_none_and_after_it_nothing_is_told(make, tmp_path):
    assert empty_in(trained(tmp_path, make)) == [0]


def test_state_that_is_thrown_away_is_told_each_time(tmp_path):
    found = trained(tmp_path, before=lambda step, optimizer: step in (2, 4) and optimizer.state.clear())
    assert empty_in(found) == [0, 2, 4]
    assert "empty_state" not in found.logged


def test_state_that_is_thrown_away_in_each_step_is_told_in_each_and_what_never_has_any_in_none(tmp_path):
    def reset(step, optimizer):
        optimizer.load_state_dict({**optimizer.state_dict(), "state": {}})

    assert empty_in(trained(tmp_path, before=reset)) == [*range(6)]
    assert empty_in(trained(tmp_path / "sgd", torch.optim.SGD, before=reset)) == [0]


@pytest.mark.parametrize("loaded", [False, True])
def test_a_run_that_goes_on_without_its_state_is_told(loaded, tmp_path):
    net = nn.Linear(4, 1)

    def train(steps, checkpoint=None):
        optimizer = ADAM(net.parameters(), lr=1e-3)
        with gradwatch.watch(net, optimizer, log=None, dir=tmp_path, verbose=False) as watch:
            if checkpoint:
                watch.load_state_dict(checkpoint[0])
                if loaded:
                    optimizer.load_state_dict(checkpoint[1])
            for _ in range(steps):
                optimizer.zero_grad()
                net(torch.ones(8, 4)).square().mean().backward()
                optimizer.step()
            return watch.dir, (watch.state_dict(), optimizer.state_dict())

    _, checkpoint = train(5)
    folder, _ = train(5, checkpoint)
    history = gradwatch.open_history(folder)
    assert history.step.tolist() == [*range(10)]
    assert empty_in(history) == ([0] if loaded else [0, 5])


def test_an_optimizer_whose_state_is_no_dict_is_watched_as_any_other(tmp_path):
    class Own(torch.optim.SGD):
        state = None

        def __setattr__(self, name, value):
            if name != "state":
                super().__setattr__(name, value)

        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                p.data -= 0.1 * p.grad

    assert empty_in(trained(tmp_path, Own)) == []
