"""Values and parameters that a training may have, and a recorder does not expect: it goes on, and records the rest."""

from decimal import Decimal

import numpy as np
import pytest
import torch
from torch import nn
from training import watch

import gradwatch
from gradwatch import GradwatchWarning, open_history


def trained(model, optimizer, folder, between=lambda step: None, steps=4, **options):
    with watch(model, optimizer, folder, **{"every": 1, **options}) as handle:
        for step in range(steps):
            optimizer.zero_grad()
            model(torch.randn(4, 3)).square().mean().backward()
            between(step)
            optimizer.step()
            handle.log(loss=1.0)
    return open_history(handle.dir)


@pytest.fixture
def pair():
    model = nn.Linear(3, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


@pytest.mark.parametrize("transform", ["vmap", "grad"])
@pytest.mark.filterwarnings("ignore::gradwatch.GradwatchWarning")
def test_what_is_logged_inside_a_transform_is_left_out(pair, transform, tmp_path):
    """It stands for many values, or has no memory of its own: a drain could not read it."""
    model, optimizer = pair
    params = dict(model.named_parameters())

    def loss_of(params, x):
        loss = torch.func.functional_call(model, params, (x,)).square().sum()
        gradwatch.log(inside=loss, plain=1.0)
        return loss

    def between(step):
        x = torch.randn(4, 3)
        torch.vmap(loss_of, (None, 0))(params, x) if transform == "vmap" else torch.func.grad(loss_of)(params, x)

    history = trained(model, optimizer, tmp_path, between, flush_every=1e-9)
    assert len(history) == 4
    assert "inside" not in history.logged
    assert (history.total("plain") == 1).any()


@pytest.mark.parametrize("limit", ["1.0", Decimal("1.0"), np.array(1.0), True])
def test_a_clip_of_the_loop_may_be_given_whatever_torch_takes(pair, limit, tmp_path):
    model, optimizer = pair

    def between(step):
        nn.utils.clip_grad_norm_(model.parameters(), limit)
        nn.utils.clip_grad_value_(model.parameters(), limit)

    history = trained(model, optimizer, tmp_path, between)
    assert (history.total("user_max_norm") == 1).all()


@pytest.mark.parametrize("clip", [None, "AGC(0.01)"])
@pytest.mark.parametrize("kind", [torch.int8, torch.bool, torch.float8_e4m3fn, "csr"])
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_frozen_weights_of_other_kinds_cost_the_others_nothing(clip, kind, tmp_path):
    model = nn.Linear(3, 2)
    other = torch.ones(4, 4).to_sparse_csr() if kind == "csr" else torch.ones(4, 4).to(kind)
    model.codes = nn.Parameter(other, requires_grad=False)
    history = trained(model, torch.optim.SGD(model.parameters(), lr=0.01), tmp_path, clip=clip)
    at = history.layers.index("weight")
    assert np.isfinite(history.layer("weight_norm")[:, at]).all()
    assert np.isfinite(history.layer("grad_norm")[:, at]).all()


def test_lazy_modules_in_a_plain_list_are_not_looked_at(tmp_path):
    model = nn.Linear(3, 2)
    model.later = [nn.LazyLinear(2)]
    assert len(trained(model, torch.optim.SGD(model.parameters(), lr=0.01), tmp_path)) == 4


def test_a_history_clip_goes_on_where_the_optimizers_state_is_thrown_away(tmp_path):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adamax(model.parameters(), lr=0.01)
    history = trained(model, optimizer, tmp_path, lambda step: step == 2 and optimizer.state.clear(),
                      clip="ClipByHistory()")  # fmt: skip
    assert len(history) == 4


def test_what_waits_for_the_first_step_is_the_last_of_each_name(pair, tmp_path):
    model, optimizer = pair
    with watch(model, optimizer, tmp_path) as handle:
        for value in range(2000):
            handle.log(loss=float(value))
        assert [value for _, name, value in handle._recorder.values if name == "loss"] == [1999.0]
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
    assert open_history(handle.dir).total("loss").tolist() == [1999.0]


def test_that_a_value_is_left_out_is_said(pair, tmp_path):
    model, optimizer = pair

    def between(step):
        torch.vmap(lambda x: (gradwatch.log(inside=x.sum()), x)[1])(torch.randn(4, 3))

    with pytest.warns(GradwatchWarning, match="inside cannot be recorded.*hand it back, and log it outside"):
        trained(model, optimizer, tmp_path, between)
