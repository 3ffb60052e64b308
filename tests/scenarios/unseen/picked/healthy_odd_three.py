"""Densities without their constant: a denoiser, a score by random slices, an energy by its own samples."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, tend


def sliced(a, b, ways=128):
    """The Wasserstein distance of two clouds of as many points, averaged over random directions."""
    way = F.normalize(torch.randn(a.shape[1], ways), dim=0)
    return float(((a @ way).sort(0)[0] - (b @ way).sort(0)[0]).abs().mean())


# ------------------------------------------------------------ preconditioned denoiser


def shells(n):
    """Points on a coil of two turns."""
    turn = 0.5 + 3.5 * math.pi * torch.rand(n).sqrt()
    flat = torch.stack([turn * turn.cos(), turn * turn.sin()], 1) / 6
    return flat + 0.03 * torch.randn(n, 2)


class Denoiser(nn.Module):
    def __init__(self, spread):
        super().__init__()
        self.spread = spread
        self.net = dense(2 + 8, 80, 80, 80, 2, act=nn.SiLU)
        self.register_buffer("waves", torch.randn(4))

    def weight(self, sigma):
        return (sigma**2 + self.spread**2) / (sigma * self.spread) ** 2

    def forward(self, x, sigma):
        whole = sigma**2 + self.spread**2
        level = (sigma.log() / 4) * self.waves * 2 * math.pi
        out = self.net(torch.cat([x / whole.sqrt(), level.sin(), level.cos()], 1))
        return x * self.spread**2 / whole + out * sigma * self.spread / whole.sqrt()


@torch.no_grad()
def drawn(net, n, steps=18, low=0.02, high=8.0):
    """Heun's method from noise to points."""
    ramp = torch.linspace(high ** (1 / 7), low ** (1 / 7), steps) ** 7
    levels = [*ramp.tolist(), 0.0]
    x = high * torch.randn(n, 2)
    for now, after in pairwise(levels):
        slope = (x - net(x, torch.full((n, 1), now))) / now
        there = x + (after - now) * slope
        if after > 0:
            other = (there - net(there, torch.full((n, 1), after))) / after
            there = x + (after - now) * (slope + other) / 2
        x = there
    return x


@healthy()
def the_coil_of_a_snails_shell(folder):
    seeded(3242)
    net, steps = Denoiser(float(shells(4000).std())), 800
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3, betas=(0.9, 0.99), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1, (s + 1) / 50) * (1 - 0.95 * s / steps))
    shown = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.98))

    def loss_of(step):
        x = shells(256)
        sigma = (1.2 * torch.randn(256, 1) - 0.5).exp()
        found = net(x + sigma * torch.randn_like(x), sigma)
        return (net.weight(sigma) * (found - x).square()).mean()

    def score():
        return sliced(drawn(shown.module, 1500), shells(1500))

    return fit(
        folder, net, optimizer, loss_of, steps, score=score, before_step=clipped(net, 1.0), schedule=schedule,
        after_step=lambda step: shown.update_parameters(net),
    )  # fmt: skip


# ------------------------------------------------------------ sliced score matching


@healthy()
def pollen_between_three_hedges(folder):
    seeded(3243)
    middles = torch.tensor([[1.2, 0.0, 0.4], [-0.8, 1.0, -0.4], [-0.4, -1.2, 0.2]])
    spread = 0.5
    share = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(torch.tensor([0.5, 0.3, 0.2])),
        torch.distributions.Independent(torch.distributions.Normal(middles, spread), 1),
    )
    rows = share.sample((6000,))
    net = dense(3, 64, 64, 3, act=nn.Softplus)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600, eta_min=1e-4)

    def loss_of(step):
        x = rows[torch.randint(len(rows), (256,))].requires_grad_()
        way = torch.randn_like(x)
        slope = net(x)
        (bend,) = torch.autograd.grad((slope * way).sum(), x, create_graph=True)
        trace, size = (bend * way).sum(1).mean(), slope.square().sum(1).mean() / 2
        return trace + size, {"trace": trace, "size": size}

    def score():
        x = share.sample((1000,)).requires_grad_()
        (true,) = torch.autograd.grad(share.log_prob(x).sum(), x)
        with torch.no_grad():
            return float((net(x) - true).square().sum(1).mean())

    return fit(folder, net, optimizer, loss_of, 600, score=score, schedule=schedule)


# ------------------------------------------------------------ an energy, by persistent chains


def tracks(n):
    """Where deer trod the snow: along two bows."""
    angle, side = math.pi * torch.rand(n), 2.0 * torch.randint(2, (n,)) - 1
    x = torch.stack([angle.cos() * 1.3 + 0.4 * side, side * (angle.sin() * 1.3 - 0.3)], 1)
    return x + 0.15 * torch.randn(n, 2)


class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = dense(2, 64, 64, 1, act=nn.SiLU)

    def forward(self, x):
        return self.net(x)[:, 0] + x.square().sum(1) / 8


@healthy()
def tracks_of_deer_in_the_snow(folder):
    seeded(3244)
    net, width = Energy(), 3.0
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3, betas=(0.5, 0.99))
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [240, 320], 0.3)
    chains = width * (2 * torch.rand(2000, 2) - 1)

    def wander(x, steps=15, pace=0.02):
        for _ in range(steps):
            x = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(net(x).sum(), x)
            x = x - pace * slope + math.sqrt(2 * pace) * torch.randn_like(x)
            x = x.clamp(-width, width)
        return x.detach()

    def one(step):
        at = torch.randperm(len(chains))[:256]
        start = chains[at]
        anew = torch.rand(256, 1) < 0.05
        start = torch.where(anew, width * (2 * torch.rand(256, 2) - 1), start)
        chains[at] = fake = wander(start)
        real, false = net(tracks(256)), net(fake)
        gap, size = real.mean() - false.mean(), (real.square() + false.square()).mean()
        loss = gap + 0.01 * size
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        return {"loss": loss, "energy_of_data": real.mean(), "energy_of_samples": false.mean()}

    line = torch.linspace(-width, width, 120)
    grid, cell = torch.cartesian_prod(line, line), (2 * width / 119) ** 2

    def score():
        with torch.no_grad():
            whole = torch.logsumexp(-net(grid), 0) + math.log(cell)
            return float(net(tracks(2000)).mean() + whole)

    return tend(folder, net, optimizer, one, 360, score)
