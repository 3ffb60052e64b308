"""Tables, as they come out of the databases of offices, shops and workshops."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, rounds, tend


def seldom(kinds, rows, power=1.0):
    """Codes of which the first are common and the last are rare."""
    return torch.multinomial(torch.arange(1.0, kinds + 1) ** -power, rows, replacement=True)


def standard(x, rows):
    """Columns with the mean and the spread of the first `rows` taken out."""
    return (x - x[:rows].mean(0)) / x[:rows].std(0)


class Mixed(nn.Module):
    """Numbers and codes side by side."""

    def __init__(self, numbers, kinds, out, width=96, dropout=0.1):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(k, min(16, (k + 1) // 2)) for k in kinds)
        size = numbers + sum(table.embedding_dim for table in self.tables)
        self.body = nn.Sequential(
            nn.Linear(size, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, width // 2), nn.ReLU(),
            nn.Dropout(dropout), nn.Linear(width // 2, out),
        )  # fmt: skip

    def forward(self, numbers, codes):
        found = [table(codes[:, i]) for i, table in enumerate(self.tables)]
        return self.body(torch.cat([numbers, *found], 1))


@healthy()
def hours_that_a_car_stays_in_the_workshop(folder):
    seeded(3201)
    rows, train = 7000, 6000
    age, run = torch.rand(rows) * 18, torch.randn(rows).exp() * 60
    codes = torch.stack([seldom(35, rows), seldom(12, rows, 0.5), seldom(80, rows, 1.2)], 1)
    effects = [0.3 * torch.randn(35), 0.7 * torch.randn(12), 0.2 * torch.randn(80)]
    hours = 0.05 * age + 0.2 * (run / 60).log() + 0.3 * torch.randn(rows)
    hours = hours + sum(e[codes[:, i]] for i, e in enumerate(effects)) + 0.04 * age * effects[1][codes[:, 1]]
    numbers, target = standard(torch.stack([age, run.log1p()], 1), train), standard(hours[:, None], train)
    net = Mixed(2, [35, 12, 80], 1)
    steps = 47 * 14
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=steps)
    draw = rounds(128, numbers[:train], codes[:train], target[:train])

    def loss_of(step):
        x, c, y = draw()
        out = net(x, c)
        return F.smooth_l1_loss(out, y), {"mae": (out - y).abs().mean().item()}

    score = held_out(net, lambda: F.smooth_l1_loss(net(numbers[train:], codes[train:]), target[train:]))
    return fit(folder, net, optimizer, loss_of, steps, schedule=schedule, score=score)


@healthy()
def parcels_that_arrive_broken(folder):
    seeded(3202)
    rows, train = 14000, 12000
    x = torch.randn(rows, 14)
    x[:, 3:6] = x[:, 3:6].exp().clamp(max=12)
    risk = 1.2 * x[:, 0] + 0.9 * x[:, 1] * (x[:, 2] > 0) + 0.5 * x[:, 3] - 0.8 * x[:, 6].abs()
    risk = risk + 0.5 * torch.randn(rows)
    y = (risk > risk.quantile(0.97)).float()
    x = standard(x, train)
    net = dense(14, 64, 64, 1, norm=nn.BatchNorm1d)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=1e-5)
    weight = ((1 - y[:train]).sum() / y[:train].sum()).sqrt()
    loss = nn.BCEWithLogitsLoss(pos_weight=weight)
    draw = rounds(256, x[:train], y[:train])

    def loss_of(step):
        a, b = draw()
        out = net(a)[:, 0]
        return loss(out, b), {"alarms": (out > 0).float().mean().item(), "broken": b.mean().item()}

    score = held_out(net, lambda: loss(net(x[train:])[:, 0], y[train:]))
    return fit(folder, net, optimizer, loss_of, 46 * 12, score=score)


@healthy(gain=0.1)
def rents_that_are_paid_late(folder):
    seeded(3203)
    rows, train, columns, size = 26000, 24000, 9, 1500
    starts = torch.arange(columns) * size // columns
    codes = torch.stack([seldom(size // columns, rows, 0.9) for _ in range(columns)], 1) + starts
    truth = 0.7 * torch.randn(size)
    y = torch.bernoulli((truth[codes].sum(1) - 1.2).sigmoid())
    net = nn.EmbeddingBag(size, 1, mode="sum")
    nn.init.zeros_(net.weight)
    bias = nn.Parameter(torch.zeros(1))
    net.register_parameter("bias", bias)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, weight_decay=1e-6)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step / 600))
    draw = rounds(64, codes[:train], y[:train])

    def loss_of(step):
        c, late = draw()
        return F.binary_cross_entropy_with_logits(net(c)[:, 0] + bias, late)

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(codes[train:])[:, 0] + bias, y[train:]))
    return fit(folder, net, optimizer, loss_of, 1500, schedule=schedule, score=score)


@healthy()
def sugar_in_the_grapes_of_a_small_vineyard(folder):
    seeded(3204)
    x = torch.randn(240, 7)
    sugar = 18 + 1.5 * x[:, 0] - x[:, 1].square() + 0.8 * x[:, 2] * x[:, 3] + 0.4 * torch.randn(240)
    y = standard(sugar[:, None], 180)
    net = dense(7, 24, 24, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3, weight_decay=1e-3)

    def loss_of(step):
        return F.mse_loss(net(x[:180]), y[:180])

    score = held_out(net, lambda: F.mse_loss(net(x[180:]), y[180:]))
    return fit(folder, net, optimizer, loss_of, 350, score=score)


@healthy()
def hours_of_a_delivery_in_three_quantiles(folder):
    seeded(3205)
    rows, train = 9000, 8000
    x = torch.rand(rows, 5)
    rush = (6.2832 * x[:, 0]).sin()
    hours = 3 + 6 * x[:, 1] + 1.5 * rush * x[:, 2] + (0.3 + x[:, 3]) * torch.randn(rows).abs()
    x, y = standard(x, train), hours[:, None] / 4 - 1.6
    levels = torch.tensor([0.1, 0.5, 0.9])
    net = dense(5, 48, 48, 3, act=nn.SiLU)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    epoch = train // 100
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.85)
    draw = rounds(100, x[:train], y[:train])

    def pinball(out, y):
        return torch.maximum(levels * (y - out), (levels - 1) * (y - out)).mean()

    score = held_out(net, lambda: pinball(net(x[train:]), y[train:]))

    def one(step):
        a, b = draw()
        out = net(a)
        loss = pinball(out, b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        logged = {"loss": loss.item(), "covered": ((b > out[:, :1]) & (b < out[:, 2:])).float().mean().item()}
        if step % epoch == epoch - 1:
            schedule.step()
            logged["val_loss"] = score()
        return logged

    return tend(folder, net, optimizer, one, 9 * epoch, score)


@healthy()
def guests_of_a_canteen_per_day(folder):
    seeded(3206)
    rows, train = 5000, 4400
    day, site = torch.randint(5, (rows,)), torch.randint(20, (rows,))
    x = torch.randn(rows, 4)
    log_rate = 2.5 + 0.4 * torch.randn(20)[site] + 0.5 * torch.randn(5)[day] + 0.3 * x[:, 0] - 0.2 * x[:, 1].square()
    guests = torch.poisson(log_rate.exp())
    inputs = torch.cat([x, F.one_hot(day, 5), F.one_hot(site, 20)], 1)
    net = dense(29, 64, 32, 1, act=nn.ELU)
    nn.init.constant_(net[-1].bias, float(guests[:train].mean().log()))
    optimizer = torch.optim.NAdam(net.parameters(), lr=1e-3)
    draw = rounds(64, inputs[:train], guests[:train])

    def loss_of(step):
        a, b = draw()
        return F.poisson_nll_loss(net(a)[:, 0], b)

    def deviance():
        rate, seen = net(inputs[train:])[:, 0].exp(), guests[train:]
        return 2 * (torch.xlogy(seen, seen / rate) - seen + rate).mean()

    return fit(folder, net, optimizer, loss_of, 68 * 8, score=held_out(net, deviance))
