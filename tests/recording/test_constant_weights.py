"""Weights that all begin at one number: how many matrices are counted, and when it is said."""

import numpy as np
import pytest
import torch
from torch import nn
from training import watch

import gradwatch
from gradwatch.analysis.rules import diagnose

ROWS = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))


def net(*values, behind=()):
    """Linear layers that each begin at one of these numbers, at random where it is None."""
    torch.manual_seed(0)
    layers = [nn.Linear(6, 6) for _ in values]
    for layer, value in zip(layers, values, strict=True):
        if value is not None:
            nn.init.constant_(layer.weight, value)
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh())), *behind)


def trained(tmp_path, model, steps):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with watch(model, optimizer, tmp_path) as watched:
        x = ROWS.to(next(model.parameters()).dtype)
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), x.flip(1).tanh()).backward()
            optimizer.step()
    return gradwatch.open_history(watched.dir)


@pytest.mark.parametrize(
    ("model", "count"),
    [
        (net(None, None), 0),
        (net(0.1, None, 0.1), 2),
        (net(0.0, 0.0), 0),  # a product of zeros passes nothing on, which another finding says
        (net(None, behind=[nn.LayerNorm(6)]), 0),  # gains are a single row
        (net(-0.5, None).to(torch.bfloat16), 1),
        (net(0.1, 0.1).requires_grad_(False).append(nn.Linear(6, 6)), 0),  # nobody trains them
    ],
)
def test_the_matrices_that_are_one_number_before_the_first_step(model, count, tmp_path):
    found = trained(tmp_path, model, steps=2)
    np.testing.assert_array_equal(found.total("constant_weights"), [count, np.nan])
    assert "constant_weights" not in found.logged


def test_a_model_without_a_matrix_has_no_such_number(tmp_path):
    assert "constant_weights" not in trained(tmp_path, nn.LayerNorm(6), steps=2).per_step


def test_it_is_said_of_most_matrices_whatever_the_loss_does(tmp_path):
    found = trained(tmp_path, net(0.1, 0.1), steps=100)
    (said,) = (f for f in diagnose(found) if f.rule == "bad-initialisation")
    assert (said.severity, said.layers) == ("warning", ("0.weight", "2.weight"))
    assert "all elements of 2 of the 2 weight matrices were one number" in said.cause


@pytest.mark.parametrize("model", [net(None, None), net(0.1, None, None), net(None, behind=[nn.LayerNorm((64, 6))])])
def test_it_is_not_said_of_one_among_others_or_of_gains(model, tmp_path):
    assert "bad-initialisation" not in {f.rule for f in diagnose(trained(tmp_path, model, steps=100))}
