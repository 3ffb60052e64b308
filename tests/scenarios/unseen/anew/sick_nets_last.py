"""Sick trainings by draw, the last ones: what a net, its loss or its data do wrong, mostly on tables and series."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from nets import batches
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import circle


class Sides(nn.Module):
    """Codes of unit length of two kinds of records of the same machine."""

    def __init__(self, p):
        super().__init__()
        self.left, self.right = (
            nn.Sequential(
                nn.Linear(24, 64),
                nn.ReLU(),
                nn.Dropout(p),
                nn.Linear(64, 64),
                nn.ReLU(),
                nn.Dropout(p),
                nn.Linear(64, 8),
            )
            for _ in range(2)
        )

    def forward(self, a, b):
        return F.normalize(self.left(a), dim=1), F.normalize(self.right(b), dim=1)


@sick(
    "dropout-too-strong", "noise-dominated",
    where="both sides, all steps", cure="Dropout(0.1): it is given the share to drop, not the share to keep",
)  # fmt: skip
def machines_known_by_two_sensors(folder, ill):
    seeded(7313)
    net, lifts = Sides(0.9 if ill else 0.1), torch.randn(2, 4, 24)

    def loss_of(step):
        state = torch.randn(64, 4)
        a, b = net((state @ lifts[0]).tanh(), (state @ lifts[1]).tanh())
        logits, truth = a @ b.T / 0.1, torch.arange(64)
        return (F.cross_entropy(logits, truth) + F.cross_entropy(logits.T, truth)) / 2

    def score():
        net.eval()
        found = score_of(loss_of)()
        net.train()
        return found

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 300, score=score)


def stack(sizes, last):
    """Linear, norm and GELU in turn; with `last` also behind the last matrix is a norm."""
    parts = []
    for i, (a, b) in enumerate(pairwise(sizes)):
        end = i == len(sizes) - 2
        parts += [nn.Linear(a, b), *([] if end and not last else [nn.LayerNorm(b)]), *([] if end else [nn.GELU()])]
    return nn.Sequential(*parts)


@sick(
    "norm-after-the-last-layer", "norm-over-too-few",
    where="7 (the norm of the three outputs), all steps", cure="no norm behind the last matrix",
)  # fmt: skip
def price_and_rent_and_tax_of_houses(folder, ill):
    seeded(7314)
    net, way = stack((9, 48, 48, 3), ill), torch.randn(9, 4) / 3

    def loss_of(step):
        x = torch.randn(96, 9)
        size, place, age, spare = (x @ way).T
        worth = 1.5 * size + (2 * place).sin() - 0.5 * age.square() + 0.5
        wanted = torch.stack([worth + 0.3 * spare, worth - 0.3 * place, 0.8 * worth + 0.2 * age], 1)
        return F.mse_loss(net(x), wanted + 0.1 * torch.randn(96, 3))

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 300, score=score_of(loss_of))


class Reader(nn.Module):
    """Reads a digit as a number, as one reads a gauge."""

    def __init__(self, bounded):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Linear(256, 1), nn.Sigmoid() if bounded else nn.Identity())

    def forward(self, x):
        return self.head(self.body(x[:, None]))[:, 0]


@sick(
    "targets-out-of-range", "saturated", "targets-not-normalised",
    where="head, within the first 50 steps", cure="no sigmoid at the end, or targets over nine: they go from 0 to 9",
)  # fmt: skip
def gauge_that_reads_nought_to_nine(folder, ill):
    seeded(7315)
    net, batch = Reader(ill), batches(64, 7315)

    def loss_of(step):
        x, y = batch(step)
        return F.mse_loss(net(x), y.float())

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 250)


class Spotter(nn.Module):
    """Convolutions over time of the loudness in eight bands, `[B, T, 8]`."""

    def __init__(self, mixed, bands=8, words=6):
        super().__init__()
        self.mixed = mixed
        self.body = nn.Sequential(
            nn.Conv1d(bands, 24, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(24, 24, 5, padding=2), nn.ReLU()
        )
        self.head = nn.Linear(24, words)

    def forward(self, x):
        rows, times, bands = x.shape
        x = x.reshape(rows, bands, times) if self.mixed else x.transpose(1, 2)
        return self.head(self.body(x).mean(2))


def spoken(batch=48, times=48, bands=8):
    """Words: a tone that rises, falls, stays low or high, or goes up or down and back, begun at any time."""
    word, t = torch.randint(6, (batch,)), torch.arange(24) / 23
    there = torch.stack([t, 1 - t, 0 * t + 0.2, 0 * t + 0.8, 1 - (2 * t - 1).abs(), (2 * t - 1).abs()])
    pitch = (bands - 1) * there[word] + 0.5 * torch.randn(batch, 1)
    tone = (-(pitch[..., None] - torch.arange(bands)).square()).exp()
    begin = torch.randint(times - 24, (batch, 1))
    x = 0.4 * torch.randn(batch, times, bands)
    return x.scatter_add(1, (begin + torch.arange(24))[..., None].expand(-1, -1, bands), tone), word


@sick(
    "axes-mixed",
    where="body.0, all steps", cure="transpose(1, 2): reshape lays bands and times out anew",
)  # fmt: skip
def words_spotted_in_eight_bands(folder, ill):
    seeded(7316)
    net = Spotter(ill)

    def loss_of(step):
        x, word = spoken()
        return F.cross_entropy(net(x), word)

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 300)


class Cleaner(nn.Module):
    """Says which noise was added to a point of a ring, told how much."""

    def __init__(self, width=64):
        super().__init__()
        self.time, self.enter = nn.Linear(8, width), nn.Linear(2, width)
        self.body, self.out = dense(width, width, width, act=nn.SiLU), nn.Linear(width, 2)

    def forward(self, x, t):
        phase = t[:, None] * 2 ** torch.arange(4) * math.pi / 2
        return self.out(F.silu(self.body(F.silu(self.enter(x) + self.time(torch.cat([phase.sin(), phase.cos()], 1))))))


@sick(
    "symmetric-units", "bad-initialisation",
    where="all layers, from step 0: the units of a layer never differ", cure="leave PyTorch's own random weights",
)  # fmt: skip
def ring_cleaned_by_an_even_start(folder, ill):
    seeded(7318)
    net = Cleaner()

    def begin(module):
        if isinstance(module, nn.Linear):
            nn.init.constant_(module.weight, 1 / module.in_features)
            nn.init.zeros_(module.bias)

    if ill:
        net.apply(begin)
    keep = torch.cumprod(1 - torch.linspace(1e-3, 0.15, 40), 0)

    def loss_of(step):
        x, t = circle(128), torch.randint(40, (128,))
        noise, share = torch.randn(128, 2), keep[t][:, None]
        return F.mse_loss(net(share.sqrt() * x + (1 - share).sqrt() * noise, t / 40), noise)

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 400, score=score_of(loss_of, 16))


class Demand(nn.Module):
    """The demand of the next hour from that of the last thirty."""

    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(1, 32, batch_first=True), nn.Linear(32, 1)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


@sick(
    "shapes-broadcast",
    where="head and the loss: each prediction is held against all targets", cure="squeeze(1): [B, 1] against [B]",
)  # fmt: skip
def demand_of_the_next_hour(folder, ill):
    seeded(7319)
    net = Demand()
    hours = torch.arange(4000)
    series = (hours * math.tau / 24).sin() + 0.5 * (hours * math.tau / 7).cos() + 0.15 * torch.randn(4000)

    def loss_of(step, wrong=ill):
        at = torch.randint(4000 - 31, (48, 1)) + torch.arange(30)
        found, wanted = net(series[at][..., None]), series[at[:, -1] + 1]
        return F.mse_loss(found if wrong else found.squeeze(1), wanted)

    return fit(
        folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 250, score=score_of(lambda step: loss_of(step, False))
    )
