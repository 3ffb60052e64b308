"""Of optimizers that step apart each is judged by its own learning rates, wherever their columns stand."""

import numpy as np
import pytest
import torch
from torch import nn
from training import watch

from gradwatch import open_history
from gradwatch.analysis.rules import diagnose
from gradwatch.analysis.rules.facts import rates, set_rate
from gradwatch.analysis.rules.owners import rate_by_scale, rate_columns

ADAM, SGD = [1e-3, 2e-3], 0.5


@pytest.mark.filterwarnings("ignore:the watched optimizers do not step together")
@pytest.mark.parametrize("parts", [True, False], ids=["two parts", "one Watch"])
def test_each_has_its_own_rates(parts, tmp_path):
    torch.manual_seed(0)
    first, second = nn.Linear(4, 4), nn.Linear(4, 1)
    adam = torch.optim.Adam([{"params": [p], "lr": lr} for p, lr in zip(first.parameters(), ADAM, strict=True)])
    sgd = torch.optim.SGD(second.parameters(), lr=SGD)
    if parts:
        a = watch(first, adam, tmp_path, name="Adam")
        watches = [a, watch(second, sgd, tmp_path, name="SGD", run=a)]
    else:
        watches = [watch(nn.ModuleList([first, second]), [adam, sgd], tmp_path)]
    for _ in range(30):
        for optimizer in (adam, sgd):
            optimizer.zero_grad()
            second(first(torch.randn(8, 4))).square().mean().backward()
            optimizer.step()
    for each in reversed(watches):
        each.close()
    history = open_history(watches[0].dir.parent if parts else watches[0].dir)
    lanes = history.lanes()
    assert {name: rates(lane)[0].tolist() for name, lane in lanes.items()} == {"Adam": ADAM, "SGD": [SGD]}
    assert {name: set_rate(lane) for name, lane in lanes.items()} == {"Adam": ADAM[0], "SGD": SGD}
    assert {name: rate_columns(lane) for name, lane in lanes.items()} == {"Adam": [0, 1], "SGD": [0, 0]}
    assert rate_by_scale(lanes["SGD"]) == (SGD, "")
    known = np.isfinite(history.layer("update_ratio"))
    times = [*ADAM, SGD, SGD] / history.layer("update_ratio")
    np.testing.assert_allclose(history.layer("trust_ratio")[known], times[known], rtol=1e-6)


@pytest.mark.filterwarnings("ignore:the watched optimizers do not step together")
def test_what_both_show_of_a_layer_is_said_once(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    adam, sgd = torch.optim.Adam(model[0].parameters()), torch.optim.SGD(model[1].parameters(), lr=0.5)
    with watch(model, [adam, sgd], tmp_path) as handle:
        for step in range(60):
            model.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            adam.step()
            if step % 2 == 0:
                sgd.step()
    history = open_history(handle.dir)
    assert len(history.lanes()) == 3
    assert [(f.rule, f.layers) for f in diagnose(history)] == [("no-activation", ("1.weight",))]
