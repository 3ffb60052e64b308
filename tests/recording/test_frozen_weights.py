"""Weights that are frozen as they were drawn: how many are counted, and when it is said."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from make_run import changed, make_history
from torch import nn
from training import watch

import gradwatch
from gradwatch.analysis.rules import diagnose
from gradwatch.analysis.rules.no_gradient import no_gradient

ROWS = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))


def body(change=None):
    """Two frozen layers of 256 and 512 weights and a head of 64 that is trained."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
    with torch.no_grad():
        for layer in (net[0], net[2]):
            if change:
                change(layer.weight)
    for layer in (net[0], net[2]):
        layer.requires_grad_(False)
    return net


def trained(tmp_path, net, steps=2):
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=1e-2)
    with watch(net, optimizer, tmp_path) as watched:
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.mse_loss(net(ROWS.to(net[0].weight.dtype)).float(), ROWS[:, :2]).backward()
            optimizer.step()
    return gradwatch.open_history(watched.dir)


@pytest.mark.parametrize(
    ("net", "drawn"),
    [
        (body(), 768),
        (body(nn.init.kaiming_normal_), 768),
        (body(lambda w: nn.init.kaiming_normal_(w, mode="fan_out")), 768),
        (body(nn.init.xavier_normal_), 768),
        (body(nn.init.normal_), 768),
        (body(lambda w: nn.init.normal_(w, std=0.02)), 768),
        (body(lambda w: w.mul_(3)), 0),  # as if it had been trained
        (body().bfloat16(), 768),
    ],
)
def test_matrices_as_large_as_weights_are_drawn(net, drawn, tmp_path):
    found = trained(tmp_path, net)
    np.testing.assert_array_equal(found.total("frozen_elements"), [768, np.nan])
    np.testing.assert_array_equal(found.total("frozen_as_drawn"), [drawn, np.nan])
    assert not {"frozen_elements", "frozen_as_drawn"} & {*found.logged}


@pytest.mark.parametrize(
    ("change", "untouched"),
    [(None, 1), (lambda w: w.mul_(1.01), 0), (lambda w: w.mul_(0.9), 0), (nn.init.kaiming_normal_, 0)],
)
def test_a_head_that_is_frozen_as_torch_draws_it(change, untouched, tmp_path):
    net = body().requires_grad_()
    with torch.no_grad():
        if change:
            change(net[4].weight)
    net[4].weight.requires_grad_(False)
    found = trained(tmp_path, net)
    assert found.total("frozen_head")[0] == untouched


def test_it_is_said_of_a_head_right_below_the_loss(tmp_path):
    """Not of the same frozen layer inside."""
    said = []
    for inside in (False, True):
        net = body().requires_grad_()
        net[4].weight.requires_grad_(False)
        net = nn.Sequential(*net, nn.Linear(2, 2)) if inside else net
        optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=1e-5)
        with watch(net, optimizer, tmp_path / str(inside)) as watched:
            for _ in range(150):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(net(torch.randn(64, 16)), torch.randint(2, (64,)))
                loss.backward()
                optimizer.step()
                watched.log(loss=loss)
        found = diagnose(gradwatch.open_history(watched.dir))
        said += ["frozen as it was drawn" in f.cause for f in found if f.rule == "no-gradient"]
    assert said == [True]


def test_where_nothing_is_frozen_or_the_optimizer_holds_it_there_is_no_such_number(tmp_path):
    whole = body().requires_grad_()
    assert "frozen_elements" not in trained(tmp_path, whole).per_step
    held = body()
    optimizer = torch.optim.Adam(held.parameters(), lr=1e-2)
    with watch(held, optimizer, tmp_path / "held") as watched:
        held(ROWS).sum().backward()
        optimizer.step()
    assert "frozen_elements" not in gradwatch.open_history(watched.dir).per_step


def test_it_is_said_where_the_loss_gets_hardly_better(tmp_path):
    """Of outputs that the frozen layers do not let through: the targets are noise to them."""
    net = body()
    noise = torch.randn(4096, 2, generator=torch.Generator().manual_seed(2))
    optimizer = torch.optim.Adam(net[4].parameters(), lr=1e-3)
    with watch(net, optimizer, tmp_path) as watched:
        for _ in range(150):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(torch.randn(64, 16)), noise[torch.randint(4096, (64,))])
            loss.backward()
            optimizer.step()
            watched.log(loss=loss)
    found = diagnose(gradwatch.open_history(watched.dir))
    assert (found[0].rule, found[0].severity) == ("no-gradient", "warning")
    assert "768 of the model's weights are frozen, beside 66 that are trained" in found[0].cause
    assert "no-progress" in {f.rule for f in found[0].consequences}


FLAT = np.full(200, 2.0) + 0.01 * np.random.default_rng(0).standard_normal(200)


@pytest.mark.parametrize(
    ("frozen", "drawn", "loss", "said"),
    [
        (1e6, 9e5, FLAT, True),
        (1e6, 9e5, np.geomspace(2, 1, 200), False),  # it gets better all the same
        (1e6, 4e5, FLAT, False),  # most of what is frozen was trained
        (112, 112, FLAT, False),  # less than what is trained, as a copy of it is
        (1e6, 9e5, np.full(200, np.nan), False),  # nothing is known
    ],
)
@pytest.mark.parametrize("logged", [("loss",), ("loss", "accuracy")])  # which doubles soon from chance
def test_each_of_its_conditions(frozen, drawn, loss, said, logged):
    history = make_history(200, clip=None, logged=logged)
    first = {
        "frozen_elements": np.r_[frozen, np.full(199, np.nan)],
        "frozen_as_drawn": np.r_[drawn, np.full(199, np.nan)],
    }
    history = replace(history, run=replace(history.run, status="FINISHED"))
    values = {"loss": loss, "accuracy": np.linspace(0.1, 0.2, 200) + 0 * loss}
    history = changed(history, per_step={**history.per_step, **first, **{name: values[name] for name in logged}})
    assert [f.evidence["missing"] for f in no_gradient(history)] == ["training"] * said
