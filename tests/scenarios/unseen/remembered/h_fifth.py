"""Healthy trainings: factors in turn, a teacher of averages, restarts, lessons, counts, an equation."""

from __future__ import annotations

import copy

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, in_turn, rounds, tend


class Factors(nn.Module):
    """A vector and an offset for each of many things."""

    def __init__(self, things, width):
        super().__init__()
        self.vector, self.offset = nn.Embedding(things, width), nn.Embedding(things, 1)
        nn.init.normal_(self.vector.weight, std=0.3)
        nn.init.zeros_(self.offset.weight)

    def forward(self, thing):
        return self.vector(thing), self.offset(thing)[:, 0]


@healthy(0.3)
def which_seed_thrives_on_which_plot(folder):
    seeded(10864)
    seeds, plots = Factors(60, 6), Factors(50, 6)
    a, b = torch.randn(60, 3), torch.randn(50, 3)
    thrives = a @ b.T + 0.5 * torch.randn(60, 1) + 0.1 * torch.randn(60, 50)
    pairs = torch.cartesian_prod(torch.arange(60), torch.arange(50))[torch.randperm(3000)]
    of_seeds = torch.optim.Adam(seeds.parameters(), 0.02, weight_decay=1e-4)
    of_plots = torch.optim.Adam(plots.parameters(), 0.02, weight_decay=1e-4)

    def error(rows):
        (u, of_u), (v, of_v) = seeds(rows[:, 0]), plots(rows[:, 1])
        return F.mse_loss((u * v).sum(1) + of_u + of_v, thrives[rows[:, 0], rows[:, 1]])

    def loss():
        return error(pairs[torch.randint(2400, (256,))])

    def score():
        with torch.no_grad():
            return float(error(pairs[2400:]))

    return in_turn(folder, seeds, plots, of_seeds, of_plots, loss, loss, 300, score, names=("plots", "seeds"))


@healthy(0.3)
def cattle_brands_with_few_labels(folder):
    seeded(10865)
    digits = load_digits()
    order = torch.randperm(1797)
    x = torch.tensor(digits.data, dtype=torch.float32)[order] / 8 - 1
    y = torch.tensor(digits.target)[order]
    net = dense(64, 128, 64, 10)
    teacher = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.01)

    def one(step):
        few = torch.randint(120, (32,))
        many = x[torch.randint(1400, (96,))]
        optimizer.zero_grad()
        known = F.cross_entropy(net(x[few] + 0.2 * torch.randn(32, 64)), y[few])
        with torch.no_grad():
            wanted = teacher(many + 0.2 * torch.randn(96, 64)).softmax(1)
        apart = F.mse_loss(net(many + 0.2 * torch.randn(96, 64)).softmax(1), wanted)
        loss = known + 10 * min(1.0, step / 100) * apart
        loss.backward()
        optimizer.step()
        kept = min(0.98, 1 - 1 / (step + 2))
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), net.parameters(), strict=True):
                slow.lerp_(fast, 1 - kept)
        return {"loss": loss, "supervised": known.detach(), "consistency": apart.detach()}

    def score():
        with torch.no_grad():
            return float(F.cross_entropy(teacher(x[1400:]), y[1400:]))

    return tend(folder, net, optimizer, one, 300, score)


@healthy(0.3)
def ploughland_and_pasture_from_a_kite(folder):
    seeded(10866)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 5, padding=2), nn.GroupNorm(3, 12), nn.SiLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1), nn.GroupNorm(4, 24), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(24, 4),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 50, 2)
    at = torch.linspace(0, 1, 12)
    ways = torch.tensor([[14.0, 0.0], [0.0, 14.0], [10.0, 10.0], [5.0, -5.0]])

    def land(rows):
        y = torch.randint(4, (rows,))
        way = ways[y] * (1 + 0.1 * torch.randn(rows, 1))
        turn = way[:, :1, None] * at[None, :, None] + way[:, 1:, None] * at[None, None, :]
        furrows = (turn + 6.2832 * torch.rand(rows, 1, 1)).sin()
        return furrows[:, None] + 1.2 * torch.randn(rows, 1, 12, 12), y

    def loss_of(step):
        x, y = land(32)
        return F.cross_entropy(net(x), y)

    tx, ty = land(512)
    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 350, score=score, schedule=schedule)


class Tally(nn.Module):
    """A sum of what is marked in a row."""

    def __init__(self):
        super().__init__()
        self.memory, self.head = nn.GRU(2, 40, batch_first=True), nn.Linear(40, 1)

    def forward(self, x):
        return self.head(self.memory(x)[1][0])[:, 0]


@healthy(0.3)
def marked_sheaves_counted_on_longer_rows(folder):
    seeded(10867)
    net = Tally()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def row(rows, length):
        weight = torch.rand(rows, length)
        marked = torch.zeros(rows, length).scatter_(1, torch.rand(rows, length).topk(2, 1).indices, 1.0)
        return torch.stack([weight, marked], 2), (weight * marked).sum(1)

    def loss_of(step):
        length = 4 + 4 * (step // 120)
        x, y = row(48, length)
        return F.mse_loss(net(x), y), {"length": length}

    tx, ty = row(512, 20)
    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


@healthy(0.3)
def molehills_counted_in_each_meadow(folder):
    seeded(10868)
    rows = 3000
    x, hectares = torch.randn(rows, 5), 0.5 + 3 * torch.rand(rows)
    rate = (1.2 + 0.6 * x[:, 0].sin() + 0.5 * x[:, 1] * x[:, 2].tanh() - 0.3 * x[:, 3].abs()).exp()
    hills = torch.poisson(rate * hectares)
    net = dense(5, 48, 48, 1, act=nn.GELU)
    optimizer = torch.optim.AdamW(net.parameters(), 5e-4, weight_decay=0.01)
    draw = rounds(64, x[:2400], hectares[:2400], hills[:2400])

    def loss_of(step):
        xs, area, count = draw()
        return F.poisson_nll_loss(net(xs)[:, 0] + area.log(), count)

    score = held_out(net, lambda: (net(x[2400:])[:, 0] - rate[2400:].log()).square().mean())
    return fit(folder, net, optimizer, loss_of, 1500, score=score)


@healthy(0.5)
def warmth_inside_a_damp_haystack(folder):
    seeded(10869)
    net = dense(1, 32, 32, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.998)
    pi = torch.pi

    def loss_of(step):
        at = torch.rand(64, 1).requires_grad_()
        warm = net(at)
        slope = torch.autograd.grad(warm.sum(), at, create_graph=True)[0]
        bend = torch.autograd.grad(slope.sum(), at, create_graph=True)[0]
        made = pi**2 * (pi * at).sin() + 2 * pi**2 * (2 * pi * at).sin()
        inside = (bend + made).square().mean() / 100
        rim = net(torch.tensor([[0.0], [1.0]])).square().mean()
        return inside + 10 * rim, {"inside": inside.detach(), "rim": rim.detach()}

    at = torch.linspace(0, 1, 101)[:, None]
    truth = (pi * at).sin() + 0.5 * (2 * pi * at).sin()
    return fit(folder, net, optimizer, loss_of, 800, score=held_out(net, lambda: F.mse_loss(net(at), truth)),
               schedule=schedule)  # fmt: skip
