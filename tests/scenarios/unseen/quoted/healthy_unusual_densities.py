"""Healthy trainings that learn how data are spread: coupled flows, a variational autoencoder, an energy with chains."""

from __future__ import annotations

import copy
import math

import nets
import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, rounds, tend


def crescents(rows, spread=0.06):
    """Two crescents that hold each other, with about a unit of spread in both directions."""
    angle, upper = math.pi * torch.rand(rows), torch.rand(rows) < 0.5
    x = torch.where(upper, angle.cos(), 1 - angle.cos()) - 0.5
    y = torch.where(upper, angle.sin(), 0.5 - angle.sin()) - 0.25
    return torch.stack([x / 0.87, y / 0.5], 1) + spread * torch.randn(rows, 2)


class Coupling(nn.Module):
    """One half of what comes in is scaled and moved by what the other half says."""

    def __init__(self, first):
        super().__init__()
        self.first, self.net = first, dense(1, 48, 48, 2)
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        kept, moved = (x[:, :1], x[:, 1:]) if self.first else (x[:, 1:], x[:, :1])
        scale, shift = self.net(kept).chunk(2, 1)
        scale = 2 * torch.tanh(scale / 2)
        moved = moved * scale.exp() + shift
        return torch.cat([kept, moved] if self.first else [moved, kept], 1), scale[:, 0]


@healthy(gain=0.2)
def two_flocks_that_part_around_a_tower(folder):
    seeded(3543)
    net = nn.ModuleList(Coupling(i % 2 == 0) for i in range(6))
    optimizer = torch.optim.RAdam(net.parameters(), lr=2e-3, weight_decay=1e-5, decoupled_weight_decay=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)

    def surprise(x):
        total = torch.zeros(len(x))
        for coupling in net:
            x, scale = coupling(x)
            total = total + scale
        return (0.5 * x.square().sum(1) + math.log(2 * math.pi) - total).mean()

    def loss_of(step):
        loss = surprise(crescents(192))
        return loss, {"bits_per_dim": loss.item() / (2 * math.log(2))}

    @torch.no_grad()
    def score():
        return float(surprise(crescents(4000)))

    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule, before_step=clipped(net, 5.0))


@healthy()
def stamps_from_eight_numbers(folder):
    seeded(3544)
    x, _ = nets.digits()
    x = (x > 0.5).float().flatten(1)[torch.randperm(len(x))]
    net = nn.ModuleDict({"encoder": dense(64, 128, 16), "decoder": dense(8, 128, 64)})
    optimizer = torch.optim.Adamax(net.parameters(), lr=3e-3)
    draw = rounds(128, x[:1400])

    def terms(x):
        middle, spread = net["encoder"](x).chunk(2, 1)
        code = middle + (0.5 * spread).exp() * torch.randn_like(middle)
        missed = F.binary_cross_entropy_with_logits(net["decoder"](code), x, reduction="none").sum(1).mean()
        return missed, 0.5 * (middle.square() + spread.exp() - 1 - spread).sum(1).mean()

    def loss_of(step):
        (x,) = draw()
        missed, kl = terms(x)
        beta = min(1.0, (step + 1) / 200)
        return missed + beta * kl, {"reconstruction": missed.item(), "kl": kl.item(), "beta": beta}

    @torch.no_grad()
    def score():
        return float(sum(terms(x[1400:])))

    return fit(folder, net, optimizer, loss_of, 500, score=score)


def wells(rows):
    """Water in five wells around a square, as places in two directions."""
    middle = torch.tensor([[1.2, 1.2], [-1.2, 1.2], [1.2, -1.2], [-1.2, -1.2], [0.0, 0.0]])
    return middle[torch.randint(5, (rows,))] + 0.2 * torch.randn(rows, 2)


def discrepancy(a, b):
    """The maximum mean discrepancy of two clouds, with kernels of three widths."""

    def kernel(p, q):
        far = torch.cdist(p, q).square()
        return sum((-far / (2 * width**2)).exp().mean() for width in (0.2, 0.5, 1.0))

    return float(kernel(a, a) + kernel(b, b) - 2 * kernel(a, b))


@healthy()
def water_that_gathers_in_hollows(folder):
    seeded(3545)
    net = dense(2, 64, 64, 1, act=nn.SiLU)
    average = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, betas=(0.5, 0.999))
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, 500, power=1.0)
    chains = 2 * torch.randn(512, 2)

    def walk(energy, x, times, length=0.15):
        for _ in range(times):
            x = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(energy(x).sum(), x)
            x = x - 0.5 * length**2 * slope + length * torch.randn_like(x)
        return x.detach().clamp(-4, 4)

    def one(step):
        rows = torch.randperm(512)[:128]
        start = torch.where(torch.rand(128, 1) < 0.05, 2 * torch.randn(128, 2), chains[rows])
        chains[rows] = dreamt = walk(net, start, 15)
        true, false = net(wells(128)), net(dreamt)
        gap = true.mean() - false.mean()
        loss = gap + 0.01 * (true.square().mean() + false.square().mean())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            for a, b in zip(average.parameters(), net.parameters(), strict=True):
                a.lerp_(b, 0.02)
        return {"loss": loss, "energy_gap": gap.item(), "energy_of_data": true.mean().item()}

    def score():
        return discrepancy(walk(average, 2 * torch.randn(800, 2), 150), wells(800))

    return tend(folder, net, optimizer, one, 500, score)
