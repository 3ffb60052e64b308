"""Targets that are the noise in what a model is given, and whether it is given anything else."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gradwatch.measure.loss_graph import LossGraph
from gradwatch.measure.noise_targets import noise_in

ROWS = 256


class Told(nn.Module):
    """A denoiser of pairs that may be told the level, in one of three ways."""

    def __init__(self, way=""):
        super().__init__()
        self.way = way
        self.first, self.last = nn.Linear(3 if way == "beside" else 2, 16), nn.Linear(16, 2)
        self.table, self.other, self.scale = nn.Embedding(4, 16), nn.Linear(1, 16), nn.Parameter(torch.ones(16))

    def forward(self, x, level):
        number = level[:, None].float()
        h = self.first(torch.cat([x, number], 1) if self.way == "beside" else x)
        added = {"table": self.table, "other": lambda _: self.other(number), "scaled": lambda _: number * self.scale}
        h = h + added[self.way](level) if self.way in added else h
        return self.last(h.relu())


def recorded(net, noise, x, level):
    loss = F.mse_loss(net(x, level), noise)
    graph = LossGraph(loss, {id(p): name for name, p in net.named_parameters()})
    return graph.targets().get("in_loss/noise_in_data")


@pytest.mark.parametrize(
    ("way", "heard"), [("", True), ("table", False), ("other", False), ("scaled", False), ("beside", False)]
)
def test_noise_is_told_where_the_model_is_given_nothing_else(way, heard):
    noise, level = torch.randn(ROWS, 2), torch.randint(4, (ROWS,))
    found = recorded(Told(way), noise, torch.randn(ROWS, 2) + level[:, None] * noise, level)
    assert (found is not None) == heard
    assert found is None or 0.5 < float(found) < 1


def test_the_correlation_of_what_is_asked_for_and_given():
    noise, clean = torch.randn(4096), torch.randn(4096)
    data = clean + 2 * noise
    expected = torch.corrcoef(torch.stack([data, noise]))[0, 1]
    assert float(noise_in(data, noise)) == pytest.approx(float(expected), abs=1e-4)
    for other in (3 * noise, noise + 1, torch.rand(4096), noise.sign()):
        assert math.isnan(noise_in(data, other))
