"""Healthy trainings on series and signals, and of nets that put together what they took apart."""

from __future__ import annotations

import math

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


class Causal(nn.Module):
    """A residual block that looks `2 * gap` hours back."""

    def __init__(self, channels, gap):
        super().__init__()
        self.pad, self.conv = 2 * gap, nn.Conv1d(channels, channels, 3, dilation=gap)
        self.mix, self.drop = nn.Conv1d(channels, channels, 1), nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(self.mix(F.relu(self.conv(F.pad(x, (self.pad, 0))))))


@healthy()
def hourly_demand_of_a_power_grid(folder):
    seeded(2959)
    hours = torch.arange(5000).float()
    weather = F.conv1d(torch.randn(1, 1, 5000 + 71), torch.ones(1, 1, 72) / 72**0.5)[0, 0]
    day, week = 2 * math.pi * hours / 24, 2 * math.pi * hours / 168
    demand = day.sin() + 0.5 * (2 * day + 1).cos() + 0.5 * week.sin() + 0.6 * weather + 0.3 * weather.abs()
    demand = demand + 0.15 * torch.randn(5000)
    demand = (demand - demand[:4000].mean()) / demand[:4000].std()
    windows = torch.stack([demand, day.sin(), day.cos(), weather]).unfold(1, 56, 1).transpose(0, 1)
    x, y = windows[:, :, :48], windows[:, 0, 48:]

    net = nn.Sequential(
        nn.Conv1d(4, 16, 1), *(Causal(16, gap) for gap in (1, 2, 4, 8)), nn.Flatten(), nn.Linear(16 * 48, 8)
    )
    draw = rounds(32, x[:3900].contiguous(), y[:3900].contiguous())
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995)

    def loss_of(step):
        past, coming = draw()
        return F.l1_loss(net(past), coming)

    score = held_out(net, lambda: F.l1_loss(net(x[4000:]), y[4000:]))
    return fit(folder, net, optimizer, loss_of, 280, score=score, schedule=schedule)


class Gauge(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.gru = nn.GRU(2, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.head(self.gru(x)[0])[..., 0]


@healthy()
def a_river_after_the_rain(folder):
    seeded(2960)

    def seasons(many, length=48):
        """Rain fills a soil that drains quickly when it is full and dries when it is warm."""
        rain = torch.distributions.Gamma(0.4, 0.5).sample((many, length)) * (torch.rand(many, length) < 0.4)
        warm = torch.sin(0.13 * torch.arange(length) + 6.28 * torch.rand(many, 1)) + 0.2 * torch.randn(many, length)
        soil, flows = torch.ones(many), []
        for day in range(length):
            soil = soil + rain[:, day]
            flow = 0.05 * soil + 0.3 * (soil - 3).clamp(min=0)
            soil = (soil - flow) * (1 - 0.03 * (1 + warm[:, day]).clamp(min=0))
            flows.append(flow)
        return torch.stack([(1 + rain).log(), warm], 2), torch.stack(flows, 1).log()

    x, y = seasons(1200)
    middle, spread = y[:1000, 8:].mean(), y[:1000, 8:].std()
    x = (x - x[:1000].mean((0, 1))) / x[:1000].std((0, 1))
    y = (y - middle) / spread
    net = Gauge()
    draw = rounds(32, x[:1000], y[:1000])
    optimizer = torch.optim.RMSprop(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 120, gamma=0.5)

    def error(rain, level):
        return F.mse_loss(net(rain)[:, 8:], level[:, 8:])

    return fit(
        folder, net, optimizer, lambda step: error(*draw()), 300,
        score=held_out(net, lambda: error(x[1000:], y[1000:])), schedule=schedule, before_step=clipped(net, 1.0),
    )  # fmt: skip


def heartbeats(many, length=96):
    """Regular ones, those that come early, and those that are too broad."""
    at, kind = torch.arange(length).float(), torch.randint(3, (many,))
    start, gap = 8 * torch.rand(many, 1), 22 + 4 * torch.randn(many, 1)
    wave = torch.zeros(many, length)
    for beat in range(5):
        early = (0.3 * gap) * ((kind == 1) & (beat == 2))[:, None]
        broad = torch.where(kind == 2, 2.2, 1.2)[:, None]
        middle = start + beat * gap - early
        wave += torch.exp(-(((at - middle) / broad) ** 2)) - 0.3 * torch.exp(-(((at - middle - 4) / 2) ** 2))
        wave += 0.25 * torch.exp(-(((at - middle - 9) / 3) ** 2))
    drift = 0.3 * torch.sin(0.05 * at + 6.28 * torch.rand(many, 1))
    return (wave * (0.7 + 0.6 * torch.rand(many, 1)) + drift + 0.15 * torch.randn(many, length))[:, None], kind


@healthy()
def heartbeats_out_of_step(folder):
    seeded(2961)
    x, y = heartbeats(2000)
    fresh, kinds = heartbeats(500)
    parts = []
    for into, out in ((1, 16), (16, 24), (24, 32)):
        parts += [nn.Conv1d(into, out, 5, padding=2, bias=False), nn.BatchNorm1d(out), nn.ReLU(), nn.MaxPool1d(2)]
    net = nn.Sequential(*parts, nn.Flatten(), nn.Dropout(0.3), nn.Linear(32 * 12, 3))
    draw = rounds(50, x, y)
    optimizer = torch.optim.RAdam(net.parameters(), lr=2e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=280, power=1.0)

    def loss_of(step):
        waves, named = draw()
        return F.cross_entropy(net(waves), named)

    score = held_out(net, lambda: F.cross_entropy(net(fresh), kinds))
    return fit(folder, net, optimizer, loss_of, 240, score=score, schedule=schedule)


class Variational(nn.Module):
    def __init__(self, code=6):
        super().__init__()
        self.into = dense(64, 128, 64)
        self.mean, self.spread = nn.Linear(64, code), nn.Linear(64, code)
        self.out = dense(code, 64, 128, 64)

    def forward(self, x):
        h = F.relu(self.into(x))
        mean, log_var = self.mean(h), self.spread(h)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        return self.out(z), mean, log_var


@healthy()
def handwriting_from_six_numbers(folder):
    seeded(2962)
    x = digits()[0].flatten(1)
    x = x[torch.randperm(len(x))]
    net = Variational()
    draw = rounds(64, x[:1500])
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def terms(pictures):
        said, mean, log_var = net(pictures)
        rebuilt = F.binary_cross_entropy_with_logits(said, pictures, reduction="none").sum(1).mean()
        return rebuilt, -0.5 * (1 + log_var - mean**2 - log_var.exp()).sum(1).mean()

    def loss_of(step):
        rebuilt, kl = terms(*draw())
        return rebuilt + min(1.0, (step + 1) / 200) * kl, {"reconstruction": rebuilt.item(), "kl": kl.item()}

    return fit(folder, net, optimizer, loss_of, 700, score=held_out(net, lambda: sum(terms(x[1500:]))))


@healthy()
def shaking_of_a_bridge_without_the_noise(folder):
    seeded(2963)
    at = torch.linspace(0, 1, 64)
    modes = torch.stack([(math.pi * k * at).sin() for k in range(1, 6)])

    def shaken(many):
        strong = torch.randn(many, 5) / torch.arange(1, 6)
        return (strong @ modes) * (1 + 0.3 * torch.sin(12 * at + strong[:, :1]))

    x = shaken(3000)
    middle, spread = x[:2500].mean(0), x[:2500].std()
    x = (x - middle) / spread
    fresh = x[2500:] + 0.5 * torch.randn(500, 64)
    net = nn.Sequential(dense(64, 48, 24, 8, act=nn.GELU), dense(8, 24, 48, 64, act=nn.GELU))
    draw = rounds(100, x[:2500])
    optimizer = torch.optim.Adamax(net.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600, eta_min=1e-4)

    def loss_of(step):
        (clean,) = draw()
        return F.smooth_l1_loss(net(clean + 0.5 * torch.randn_like(clean)), clean)

    score = held_out(net, lambda: F.smooth_l1_loss(net(fresh), x[2500:]))
    return fit(folder, net, optimizer, loss_of, 600, score=score, schedule=schedule)
