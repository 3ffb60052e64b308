"""Eleven trainings that go well, most of them unusual."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


class Reach(nn.Module):
    """What each gauge hears from its neighbours, and from itself."""

    def __init__(self, a, b):
        super().__init__()
        self.own, self.others = nn.Linear(a, b), nn.Linear(a, b, bias=False)

    def forward(self, x, near):
        return self.own(x) + self.others(near @ x)


@healthy(0.5)
def nitrate_at_the_forks_of_a_river_system(folder):
    seeded(10560)
    gauges = 120
    parent = torch.tensor([0] + [int(torch.randint(i, (1,))) for i in range(1, gauges)])
    near = torch.zeros(gauges, gauges)
    near[torch.arange(gauges), parent] = near[parent, torch.arange(gauges)] = 1.0
    near.fill_diagonal_(0)
    near = near / near.sum(1, keepdim=True).clamp(min=1)
    x = torch.randn(gauges, 5)
    load = x[:, :1] + x[:, 1:2].relu()
    y = 0.5 * load + near @ load + 0.7 * near @ (near @ load)
    y = (y - y.mean()) / y.std()
    known = torch.rand(gauges) < 0.75
    net = nn.ModuleList([Reach(5, 24), Reach(24, 24), Reach(24, 1)])
    optimizer = torch.optim.Adam(net.parameters(), 5e-3, weight_decay=5e-3)

    def say():
        hidden = x
        for layer in net[:-1]:
            hidden = F.dropout(layer(hidden, near).relu(), 0.1, net.training)
        return net[-1](hidden, near)

    score = held_out(net, lambda: F.mse_loss(say()[~known], y[~known]))
    return fit(folder, net, optimizer, lambda step: F.mse_loss(say()[known], y[known]), 200, score=score)


class Harmonics(nn.Module):
    """A sum of waves whose speeds are nearly known."""

    def __init__(self, speeds):
        super().__init__()
        self.shift, self.of_sin, self.of_cos = (nn.Parameter(t) for t in torch.zeros(3, len(speeds)))
        self.register_buffer("speeds", speeds)
        self.mean = nn.Parameter(torch.zeros(1))

    def forward(self, hours):
        at = hours[:, None] * self.speeds + (hours[:, None] / 150 - 1) * self.shift
        return self.mean + at.sin() @ self.of_sin + at.cos() @ self.of_cos


@healthy(0.9)
def constituents_of_the_tide_behind_a_reef(folder):
    seeded(10561)
    hours = 300 * torch.rand(500)
    speeds = torch.tensor([0.506, 0.524, 0.262, 0.243])
    y = 2 + (hours[:, None] * speeds + 1).cos() @ torch.tensor([1.3, 0.5, 0.3, 0.2])
    y = y + 0.05 * torch.randn(500)
    net = Harmonics(speeds + 0.001 * torch.randn(4))
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=5, history_size=20, line_search_fn="strong_wolfe")
    return fit(folder, net, optimizer, lambda step: F.mse_loss(net(hours), y), 30, closure=True)


@healthy(0.3)
def three_guesses_for_the_height_of_a_flood(folder):
    seeded(10562)
    shares = torch.tensor([0.1, 0.5, 0.9])
    net = dense(5, 64, 64, 3)
    optimizer = torch.optim.Adagrad(net.parameters(), 0.03)
    way = torch.randn(5, 2)

    def floods(rows):
        x = torch.randn(rows, 5)
        low, spread = (x @ way).unbind(1)
        return x, (low.sin() * 2 + (spread / 2).exp() * torch.randn(rows).exp() * 0.4)[:, None]

    def pinball(x, y):
        off = y - net(x)
        return torch.maximum(shares * off, (shares - 1) * off).mean()

    test = floods(1024)
    score = held_out(net, lambda: pinball(*test))
    return fit(folder, net, optimizer, lambda step: pinball(*floods(64)), 400, score=score)


@healthy(0.4)
def one_sunset_after_another_by_its_colour(folder):
    seeded(10563)
    net = dense(4, 32, 3, act=nn.Tanh)
    optimizer = torch.optim.SGD(net.parameters(), 0.03)
    way = torch.randn(4, 3)

    def sunsets(rows):
        x = torch.randn(rows, 4)
        return x, (2 * (x @ way).sin() + x @ way).argmax(1)

    def loss_of(step):
        x, y = sunsets(1)
        return F.cross_entropy(net(x), y)

    x, y = sunsets(1000)
    return fit(folder, net, optimizer, loss_of, 1500, score=held_out(net, lambda: F.cross_entropy(net(x), y)))


@healthy(0.5)
def dust_in_the_air_by_an_average_of_many(folder):
    seeded(10564)
    net = dense(6, 64, 64, 1)
    average = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    way = torch.randn(6, 3) / 2

    def airs(rows, noise=0.7):
        x = torch.randn(rows, 6)
        return x, (x @ way).sin().sum(1, keepdim=True) + noise * torch.randn(rows, 1)

    def loss_of(step):
        x, y = airs(32)
        return F.mse_loss(net(x), y)

    def follow(step):
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), net.parameters(), strict=True):
                slow.lerp_(fast, max(0.02, 1 / (step + 1)))

    x, y = airs(1024, 0.0)
    score = held_out(average, lambda: F.mse_loss(average(x), y))
    return fit(folder, net, optimizer, loss_of, 600, score=score, after_step=follow)


@healthy(0.3)
def birds_of_passage_named_by_careless_watchers(folder):
    seeded(10565)
    classes = 5
    net = nn.Sequential(nn.Linear(10, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64),
                        nn.ReLU(), nn.Linear(64, classes))  # fmt: skip
    optimizer = torch.optim.RMSprop(net.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 75, eta_min=1e-5)
    way = torch.randn(10, classes)

    def birds(rows):
        x = torch.randn(rows, 10)
        return x, (x @ way + (2 * x @ way).sin()).argmax(1)

    x, y = birds(3000)
    noted = torch.where(torch.rand(3000) < 0.25, torch.randint(classes, (3000,)), y)
    draw = rounds(100, x, noted)

    def loss_of(step):
        a, b = draw()
        return F.cross_entropy(net(a), b, label_smoothing=0.1)

    tx, ty = birds(1000)
    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 300, score=score, schedule=schedule)


@healthy(0.3)
def lightning_within_the_next_quarter_hour(folder):
    seeded(10566)
    net = dense(8, 48, 48, 1)
    net[-1].bias.data.fill_(-3.2)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
    way = torch.randn(8, 2)

    def skies(rows):
        x = torch.randn(rows, 8)
        charge, lift = (x @ way / 2.8).unbind(1)
        return x, (charge + lift.abs() + 0.1 * torch.randn(rows) > 2.1).float()[:, None]

    x, y = skies(12000)
    draw = rounds(256, x[:9000], y[:9000])

    def loss_on(a, b):
        said = net(a)
        sure = torch.where(b > 0, said.sigmoid(), 1 - said.sigmoid())
        weight = torch.where(b > 0, 0.8, 0.2)
        each = F.binary_cross_entropy_with_logits(said, b, reduction="none")
        hit = ((said > 0).float() * b).sum() / b.sum().clamp(min=1)
        return (weight * (1 - sure) ** 2 * each).mean(), {"recall": hit}

    def loss_of(step):
        return loss_on(*draw())

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: loss_on(x[9000:], y[9000:])[0]))


@healthy(0.5)
def which_of_two_hundred_stations_foretell_a_drought(folder):
    seeded(10567)
    stations, rows = 200, 600
    true = torch.zeros(stations)
    true[:6] = torch.tensor([1.5, -1.0, 1.2, 0.8, -1.4, 1.0])
    net = nn.Linear(stations, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9, weight_decay=0.3)
    x = torch.randn(rows + 1000, stations)
    y = (x @ true + torch.randn(len(x)))[:, None]
    draw = rounds(40, x[:rows], y[:rows])

    def loss_of(step):
        a, b = draw()
        return F.mse_loss(net(a), b)

    score = held_out(net, lambda: F.mse_loss(net(x[rows:]), y[rows:]))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


@healthy(0.4)
def gusts_at_a_mountain_hut_with_wild_readings(folder):
    seeded(10568)
    net = nn.Sequential(nn.Conv1d(2, 16, 5, padding=2), nn.GELU(), nn.Conv1d(16, 16, 5, padding=2), nn.GELU(),
                        nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(64, 1))  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, 300)

    def winds(rows, wild=True):
        x = F.interpolate(torch.randn(rows, 2, 8), 32, mode="linear") * 1.5
        y = (x[:, 0].square().mean(1) + x[:, 1, 16:].mean(1))[:, None]
        odd = torch.distributions.StudentT(1.5).sample((rows, 1)) * 0.5
        return x + 0.1 * torch.randn_like(x), y + (odd if wild else 0)

    def loss_of(step):
        x, y = winds(48)
        return F.huber_loss(net(x), y, delta=2.0)

    x, y = winds(600, False)
    score = held_out(net, lambda: F.mse_loss(net(x), y))
    return fit(folder, net, optimizer, loss_of, 300, score=score, schedule=schedule, before_step=clipped(net, 0.3))


@healthy(0.5)
def warmth_that_sinks_into_a_lake_bed(folder):
    seeded(10569)
    net = dense(2, 32, 32, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.998)
    speed = 0.1

    def one(step):
        depth, time = torch.rand(2, 128, 1).requires_grad_()
        heat = net(torch.cat([depth, time], 1))
        by_depth, by_time = torch.autograd.grad(heat.sum(), (depth, time), create_graph=True)
        twice = torch.autograd.grad(by_depth.sum(), depth, create_graph=True)[0]
        physics = (by_time - speed * twice).square().mean()
        at = torch.rand(64, 1)
        start = (net(torch.cat([at, 0 * at], 1)) - (3.14159 * at).sin()).square().mean()
        sides = (net(torch.cat([0 * at, at], 1)).square() + net(torch.cat([1 + 0 * at, at], 1)).square()).mean()
        loss = physics + 10 * start + 10 * sides
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        return {"loss": loss, "physics": physics, "start": start, "sides": sides}

    place = torch.rand(500, 2)
    true = (3.14159 * place[:, :1]).sin() * (-speed * 3.14159**2 * place[:, 1:]).exp()
    return tend(folder, net, optimizer, one, 600, held_out(net, lambda: F.mse_loss(net(place), true)))


@healthy(0.3)
def buoys_that_repeat_ever_longer_signals(folder):
    seeded(10570)
    kinds = 6
    net = nn.ModuleDict({"in": nn.Embedding(kinds + 2, 24), "memory": nn.GRU(24, 64, batch_first=True),
                         "out": nn.Linear(64, kinds)})  # fmt: skip
    optimizer = torch.optim.NAdam(net.parameters(), 3e-3)

    def loss_on(length, rows):
        said = torch.randint(kinds, (rows, length))
        seen = torch.cat([said, torch.full((rows, length), kinds)], 1)
        heard = net["out"](net["memory"](net["in"](seen))[0][:, length:])
        return F.cross_entropy(heard.flatten(0, 1), said.flatten())

    def loss_of(step):
        length = 1 + step // 150
        return loss_on(length, 64), {"length": float(length)}

    score = held_out(net, lambda: loss_on(4, 512))
    return fit(folder, net, optimizer, loss_of, 600, score=score, before_step=clipped(net, 1.0))
