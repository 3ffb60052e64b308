"""Rooms, digits, stamps, a telescope and coins."""

from __future__ import annotations

import copy
import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, entropy_of, fit, healthy, seeded
from unseen.tasks import held_out, rounds, tend


class Attention(nn.Module):
    """A layer of graph attention with several heads."""

    def __init__(self, size, heads, each):
        super().__init__()
        self.lift = nn.Linear(size, heads * each)
        self.heads, self.each = heads, each
        self.says = nn.Parameter(torch.randn(2, heads, each) / each**0.5)

    def forward(self, x, linked):
        h = self.lift(x).view(len(x), self.heads, self.each)
        source, target = ((h * w).sum(2).T for w in self.says)
        score = F.leaky_relu(target[:, :, None] + source[:, None, :], 0.2)
        share = score.masked_fill(~linked, -torch.inf).softmax(2)
        return torch.einsum("hij,jhd->ihd", share, h).reshape(len(x), -1)


@healthy(gain=0.4)
def museum_rooms_that_belong_together(folder):
    """Two views of a graph, links and traits dropped, whose nodes find each other again."""
    seeded(10056)
    theme = torch.randint(5, (100,))
    near = torch.rand(100, 100) < torch.where(theme[:, None] == theme, 0.15, 0.01)
    near = near | near.T | torch.eye(100, dtype=torch.bool)
    traits = torch.randn(5, 24)[theme] + torch.randn(100, 24)
    net = nn.ModuleList([Attention(24, 4, 12), Attention(48, 4, 12), dense(48, 48, 16)])
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.02)

    def seen():
        links = near & (torch.rand(100, 100) < 0.8) | torch.eye(100, dtype=torch.bool)
        x = traits * (torch.rand(24) < 0.85)
        x = F.elu(net[0](x, links))
        return F.normalize(net[2](F.elu(net[1](x, links))), dim=1)

    def loss_of(step):
        alike = seen() @ seen().T / 0.2
        own = torch.arange(100)
        return (F.cross_entropy(alike, own) + F.cross_entropy(alike.T, own)) / 2

    def score():
        return torch.stack([loss_of(0) for _ in range(20)]).mean()

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, score))


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.body = nn.LayerNorm(width), dense(width, width, width)

    def forward(self, x):
        return x + self.body(self.norm(x))


@healthy(gain=0.6)
def digit_traits_even_looped_prime(folder):
    """Four yes-or-no traits of a handwritten digit."""
    seeded(10057)
    data = load_digits()
    order = torch.randperm(len(data.target))
    x, digit = torch.tensor(data.data).float()[order] / 8 - 1, torch.tensor(data.target)[order]
    traits = torch.zeros(4, 10)
    for row, members in enumerate([(0, 2, 4, 6, 8), (0, 6, 8, 9), (2, 3, 5, 7), (5, 6, 7, 8, 9)]):
        traits[row, list(members)] = 1
    y = traits.T[digit]
    net = nn.Sequential(nn.Linear(64, 64), *[Residual(64) for _ in range(3)], nn.LayerNorm(64), nn.Linear(64, 4))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.994)
    draw = rounds(64, x[:1400], y[:1400])

    def loss_of(step):
        rows, truth = draw()
        found = net(rows)
        right = float(((found > 0) == truth.bool()).float().mean())
        return F.binary_cross_entropy_with_logits(found, truth), {"accuracy": right}

    return fit(folder, net, optimizer, loss_of, 350, schedule=schedule,
               score=held_out(net, lambda: F.binary_cross_entropy_with_logits(net(x[1400:]), y[1400:])))  # fmt: skip


class Shortcut(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x):
        return (x + self.body(x)).relu()


@healthy(gain=0.6)
def stamps_by_their_hatching(folder):
    """Six ways of hatching; weights decay, gains and biases do not."""
    seeded(10058)
    kind = torch.randint(6, (1400,))
    turn, pace = (kind % 3) * math.pi / 3, 1.0 + 0.7 * (kind // 3)
    grid = torch.arange(14.0)
    across = turn.cos()[:, None, None] * grid + turn.sin()[:, None, None] * grid[:, None]
    ink = (across * pace[:, None, None] + 6.2832 * torch.rand(1400, 1, 1)).sin()[:, None]
    ink = ink + 0.8 * torch.randn_like(ink)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        Shortcut(16), Shortcut(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 6),
    )  # fmt: skip
    weights = [p for p in net.parameters() if p.dim() > 1]
    others = [p for p in net.parameters() if p.dim() == 1]
    optimizer = torch.optim.Adam([{"params": weights, "weight_decay": 1e-4}, {"params": others}], lr=2e-3)
    draw = rounds(32, ink[:1100], kind[:1100])
    score = held_out(net, lambda: F.cross_entropy(net(ink[1100:]), kind[1100:]))
    return fit(folder, net, optimizer, entropy_of(net, draw), 200, score=score)


@healthy(gain=0.3)
def telescope_between_passing_clouds(folder):
    """Deep Q-learning with a memory and a target net: which of five fields to look at next, slewing costs time."""
    seeded(10059)
    net = dense(10, 64, 64, 5)
    target = copy.deepcopy(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    memory = {"s": torch.zeros(6400, 10), "a": torch.zeros(6400, dtype=torch.long), "r": torch.zeros(6400),
              "n": torch.zeros(6400, 10)}  # fmt: skip

    def skies(rows):
        return torch.cat([F.one_hot(torch.randint(5, (rows,)), 5).float(), torch.randn(rows, 5)], 1)

    def turn(state, field):
        clouds = 0.9 * state[:, 5:] + 0.43 * torch.randn(len(state), 5)
        slew = (state[:, :5].argmax(1) - field).abs() * 0.08
        clear = torch.sigmoid(-2 * clouds.gather(1, field[:, None])[:, 0])
        return torch.cat([F.one_hot(field, 5).float(), clouds], 1), clear - slew

    def lost():
        state, total = skies(256), 0.0
        for _ in range(30):
            state, reward = turn(state, net(state).argmax(1))
            total += float((1 - reward).mean())
        return torch.tensor(total / 30)

    now = skies(16)

    def one(step):
        nonlocal now
        with torch.no_grad():
            chance = max(0.1, 1 - step / 200)
            field = torch.where(torch.rand(16) < chance, torch.randint(5, (16,)), net(now).argmax(1))
            ahead, reward = turn(now, field)
        place = slice(16 * step % 6400, 16 * step % 6400 + 16)
        for key, value in zip("sarn", (now, field, reward, ahead), strict=True):
            memory[key][place] = value
        now = ahead
        rows = torch.randint(min(6400, 16 * (step + 1)), (64,))
        with torch.no_grad():
            goal = memory["r"][rows] + 0.8 * target(memory["n"][rows]).max(1).values
        found = net(memory["s"][rows]).gather(1, memory["a"][rows][:, None])[:, 0]
        loss = F.smooth_l1_loss(found, goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, quick in zip(target.parameters(), net.parameters(), strict=True):
                slow.lerp_(quick, 0.02)
        return {"loss": loss, "reward": float(reward.mean())}

    return tend(folder, net, optimizer, one, 900, held_out(net, lost))


@healthy(gain=0.6)
def mints_of_worn_coins(folder):
    """Eight mints with two dies each, told by a margin."""
    seeded(10060)
    mint, die = torch.randint(8, (3000,)), torch.randint(2, (3000,))
    x = torch.randn(8, 2, 10)[mint, die] + 0.7 * torch.randn(3000, 10)
    net = nn.Sequential(
        nn.Linear(10, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 8)
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600)
    draw = rounds(64, x[:2500], mint[:2500])

    def loss_of(step):
        rows, truth = draw()
        found = net(rows)
        return F.multi_margin_loss(found, truth), {"accuracy": float((found.argmax(1) == truth).float().mean())}

    return fit(folder, net, optimizer, loss_of, 600, schedule=schedule,
               score=held_out(net, lambda: F.multi_margin_loss(net(x[2500:]), mint[2500:])))  # fmt: skip
