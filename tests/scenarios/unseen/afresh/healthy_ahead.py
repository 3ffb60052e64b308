"""Ordinary healthy trainings, fourth part: what comes next in many series. An expert is content with each."""

from __future__ import annotations

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import fit, healthy, seeded
from unseen.tasks import clipped


def rivers(many=12, long=800):
    """Levels of rivers that have a day, a week and a slow wandering in common, each in its own measure."""
    time = torch.arange(long)
    day, week = (6.2832 * time / 12).sin(), (6.2832 * time / 48).sin()
    wander = torch.randn(many, long).cumsum(1) * 0.03
    mixed = (0.5 + torch.rand(many, 1)) * day + torch.randn(many, 1) * week + wander + 0.1 * torch.randn(many, long)
    return (5 * torch.rand(many, 1)).exp() * (mixed - mixed.min(1, keepdim=True).values + 0.5)


def windows(series, rows, long):
    """Some windows of some series, and of which ones."""
    of, at = torch.randint(len(series), (rows, 1)), torch.randint(series.shape[1] - long, (rows, 1))
    return series[of, at + torch.arange(long)], of[:, 0]


class Patches(nn.Module):
    """Each series on its own, measured by its window, cut in patches (Nie et al. 2023)."""

    def __init__(self, wide=48, seen=48, patch=8, ahead=12):
        super().__init__()
        self.patch, self.cut = patch, nn.Linear(patch, wide)
        self.place = nn.Parameter(0.02 * torch.randn(seen // patch, wide))
        layer = nn.TransformerEncoderLayer(wide, 4, 2 * wide, 0.1, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, nn.LayerNorm(wide), enable_nested_tensor=False)
        self.head = nn.Linear(wide * seen // patch, ahead)

    def forward(self, x):
        return self.head(self.body(self.cut(x.unflatten(1, (-1, self.patch))) + self.place).flatten(1))


@healthy(0.4)
def rivers_ahead_in_patches_of_their_past(folder):
    """Squares in units of each window, Adam in one cycle; the absolute error is logged."""
    seeded(5331)
    series, net = rivers(), Patches()

    def loss_of(step):
        x, _ = windows(series, 64, 60)
        middle, spread = x[:, :48].mean(1, keepdim=True), x[:, :48].std(1, keepdim=True) + 1e-5
        x = (x - middle) / spread
        said = net(x[:, :48])
        return F.mse_loss(said, x[:, 48:]), {"mae": F.l1_loss(said.detach(), x[:, 48:])}

    make, steps = optim.Adam(net.parameters(), 2e-3), 300
    plan = optim.lr_scheduler.OneCycleLR(make, 2e-3, total_steps=steps, pct_start=0.3)
    return fit(folder, net, make, loss_of, steps, schedule=plan)


class Likely(nn.Module):
    """An LSTM that is told the series and its scale, and hands out a mean and a spread for the next reading."""

    def __init__(self, many, wide=40):
        super().__init__()
        self.table = nn.Embedding(many, 8)
        self.rnn, self.both = nn.LSTM(10, wide, 2, batch_first=True, dropout=0.1), nn.Linear(wide, 2)

    def forward(self, x, of, scale):
        told = torch.cat([self.table(of), scale.log()], 1)[:, None].expand(-1, x.shape[1], -1)
        mean, spread = self.both(self.rnn(torch.cat([x[..., None], told], 2))[0]).unbind(2)
        return mean, F.softplus(spread) + 1e-3


@healthy(0.3)
def next_level_with_its_spread_by_lstm(folder):
    """The likelihood of the next reading in units of the window's mean, Adam at 2e-3, a clip at ten."""
    seeded(5332)
    series, net = rivers(), Likely(12)

    def loss_of(step):
        x, of = windows(series, 32, 37)
        scale = x[:, :36].mean(1, keepdim=True)
        x = x / scale
        mean, spread = net(x[:, :-1], of, scale)
        loss = F.gaussian_nll_loss(mean, x[:, 1:], spread.square())
        return loss, {"rmse": (mean - x[:, 1:]).detach().square().mean().sqrt()}

    make = optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, make, loss_of, 300, before_step=clipped(net, 10.0))
