"""Healthy trainings of two that work against each other: a gradient penalty, spectral norms, a reversed gradient."""

from __future__ import annotations

import math

import nets
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm
from unseen import dense, healthy, seeded
from unseen.tasks import in_turn, tend


def sliced(ways):
    """`distance(a, b)`: how far the sorted projections of two clouds of as many points are apart, in the mean."""

    def distance(a, b):
        with torch.no_grad():
            return float(((a @ ways).sort(0).values - (b @ ways).sort(0).values).abs().mean())

    return distance


def pebbles(rows):
    """Length, width and height of pebbles of two kinds, in units of their spread."""
    flat = torch.rand(rows, 1) < 0.4
    size = 0.4 * torch.randn(rows, 1)
    middle = torch.where(flat, torch.tensor([[1.0, 0.8, -1.2]]), torch.tensor([[-0.7, -0.6, 0.8]]))
    return middle + size * torch.tensor([[1.0, 0.9, 0.7]]) + 0.15 * torch.randn(rows, 3)


@healthy()
def pebbles_as_a_stream_rounds_them(folder):
    seeded(3540)
    make = dense(4, 64, 64, 3)
    judge = dense(3, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), lr=5e-4, betas=(0.5, 0.9))
    of_judge = torch.optim.Adam(judge.parameters(), lr=5e-4, betas=(0.5, 0.9))
    distance, real, noise = sliced(F.normalize(torch.randn(3, 32), dim=0)), pebbles(1000), torch.randn(1000, 4)

    def judge_loss():
        true, made = pebbles(64), make(torch.randn(64, 4)).detach()
        between = torch.lerp(made, true, torch.rand(64, 1)).requires_grad_()
        (slope,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        return judge(made).mean() - judge(true).mean() + 10 * penalty

    def make_loss():
        return -judge(make(torch.randn(64, 4))).mean()

    def score():
        with torch.no_grad():
            return distance(make(noise), real)

    names = ("critic", "generator")
    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 250, score, rounds=5, names=names)


@healthy()
def numerals_by_a_forger(folder):
    seeded(3541)
    x, _ = nets.digits()
    x = (2 * x - 1)[:, None]
    make = nn.Sequential(
        nn.Linear(16, 32 * 4),
        nn.Unflatten(1, (32, 2, 2)),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 24, 4, stride=2, padding=1),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.ConvTranspose2d(24, 1, 4, stride=2, padding=1),
        nn.Tanh(),
    )
    judge = nn.Sequential(
        spectral_norm(nn.Conv2d(1, 24, 3, padding=1)),
        nn.LeakyReLU(0.1),
        spectral_norm(nn.Conv2d(24, 32, 4, stride=2, padding=1)),
        nn.LeakyReLU(0.1),
        nn.Flatten(),
        spectral_norm(nn.Linear(32 * 16, 1)),
    )
    of_make = torch.optim.Adam(make.parameters(), lr=5e-4, betas=(0.0, 0.9))
    of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3, betas=(0.0, 0.9))
    distance = sliced(F.normalize(torch.randn(64, 64), dim=0))

    def judge_loss():
        true = x[torch.randint(len(x), (64,))]
        made = make(torch.randn(64, 16)).detach()
        return F.relu(1 - judge(true)).mean() + F.relu(1 + judge(made)).mean()

    def make_loss():
        return -judge(make(torch.randn(64, 16))).mean()

    def score():
        with torch.no_grad():
            return distance(make(torch.randn(len(x), 16)).flatten(1), x.flatten(1))

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 250, score)


class Reversed(torch.autograd.Function):
    """What goes forward unchanged comes back with the other sign, at a share."""

    @staticmethod
    def forward(ctx, x, share):
        ctx.share = share
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.share * grad, None


@healthy()
def figures_in_two_ledgers(folder):
    seeded(3542)
    x, y = nets.digits()
    order = torch.randperm(len(x))
    home, away, last = order[:800], order[800:1500], order[1500:]
    faded = (0.25 + 0.5 * x + 0.05 * torch.randn_like(x)).flatten(1)
    x = (x.flatten(1) - 0.3) / 0.37
    faded = (faded - 0.3) / 0.37
    body = dense(64, 96, 48)
    net = nn.ModuleDict({"body": body, "names": dense(48, 32, 10), "ledger": dense(48, 32, 1)})
    optimizer = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9, nesterov=True, weight_decay=1e-4)
    steps = 600
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (1 + 10 * step / steps) ** -0.75)
    side = torch.cat([torch.zeros(32), torch.ones(32)])

    def one(step):
        share = 2 / (1 + math.exp(-10 * step / steps)) - 1
        mine, others = home[torch.randint(800, (32,))], away[torch.randint(700, (32,))]
        features = F.relu(body(torch.cat([x[mine], faded[others]])))
        named = F.cross_entropy(net["names"](features[:32]), y[mine])
        told = F.binary_cross_entropy_with_logits(net["ledger"](Reversed.apply(features, 0.3 * share))[:, 0], side)
        loss = named + told
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        return {"loss": loss, "label_loss": named.item(), "domain_loss": told.item(), "reversal": share}

    @torch.no_grad()
    def score():
        return F.cross_entropy(net["names"](F.relu(body(faded[last]))), y[last])

    return tend(folder, net, optimizer, one, steps, score)
