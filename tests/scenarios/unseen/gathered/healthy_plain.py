"""Healthy trainings on tables: rents, customers, beams, beetles, claims."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, rounds, tend


class RentNet(nn.Module):
    def __init__(self, districts=12, kinds=4, numbers=6):
        super().__init__()
        self.district = nn.Embedding(districts, 6)
        self.kind = nn.Embedding(kinds, 3)
        self.body = dense(6 + 3 + numbers, 64, 64, 1)

    def forward(self, district, kind, numbers):
        return self.body(torch.cat([self.district(district), self.kind(kind), numbers], 1))[:, 0]


@healthy()
def rents_of_flats_by_district(folder):
    seeded(2944)
    rows = 3000
    district, kind, numbers = torch.randint(12, (rows,)), torch.randint(4, (rows,)), torch.randn(rows, 6)
    level, per_metre = torch.randn(12), 1 + 0.3 * torch.randn(4)
    rent = level[district] + per_metre[kind] * numbers[:, 0] + 0.5 * numbers[:, 1] * numbers[:, 2].tanh()
    rent = 850 + 240 * (rent + 0.4 * numbers[:, 3].abs() + 0.2 * torch.randn(rows))
    average, spread = rent[:2400].mean(), rent[:2400].std()
    rent = (rent - average) / spread

    draw = rounds(64, district[:2400], kind[:2400], numbers[:2400], rent[:2400])
    net = RentNet()
    steps = 450
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    def loss_of(step):
        *x, y = draw()
        said = net(*x)
        return F.mse_loss(said, y), {"mae": float((said - y).abs().mean().detach() * spread)}

    score = held_out(net, lambda: F.mse_loss(net(district[2400:], kind[2400:], numbers[2400:]), rent[2400:]))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


@healthy()
def customers_who_leave_a_phone_company(folder):
    seeded(2945)
    x = torch.randn(5000, 18)
    pull = 1.5 * x[:, 0] - 1.2 * x[:, 1] + x[:, 2] * x[:, 3] + x[:, 4].relu() - 2.6
    y = (torch.rand(5000) < torch.sigmoid(3 * pull)).float()
    x = torch.cat([x, (x[:, :2] + 0.3 * torch.randn(5000, 2) > 0).float()], 1)
    x = (x - x[:4000].mean(0)) / x[:4000].std(0)
    rare = (1 - y[:4000].mean()) / y[:4000].mean()

    net = nn.Sequential(
        nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(32, 1),
    )  # fmt: skip
    draw = rounds(128, x[:4000], y[:4000])
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 200, gamma=0.3)
    loss = nn.BCEWithLogitsLoss(pos_weight=rare)

    def loss_of(step):
        rows, leaves = draw()
        said = net(rows)[:, 0]
        return loss(said, leaves), {"accuracy": float(((said > 0) == (leaves > 0)).float().mean())}

    score = held_out(net, lambda: loss(net(x[4000:])[:, 0], y[4000:]))
    return fit(folder, net, optimizer, loss_of, 600, score=score, schedule=schedule)


@healthy()
def loads_that_break_a_beam(folder):
    seeded(2946)
    wide, deep, span = (0.5 + torch.rand(2000) for _ in range(3))
    wood, damp = torch.randint(5, (2000,)), torch.rand(2000)
    strength = 1 + torch.rand(5)
    load = wide * deep**2 * strength[wood] * (1 - 0.5 * damp**2) / span
    load = (load * (0.05 * torch.randn(2000)).exp()).log()
    x = torch.cat([torch.stack([wide, deep, span, damp], 1), F.one_hot(wood, 5).float()], 1)
    x, load = (x - x[:1600].mean(0)) / x[:1600].std(0), (load - load[:1600].mean()) / load[:1600].std()

    net = dense(9, 48, 48, 1, act=nn.ELU)
    draw = rounds(32, x[:1600], load[:1600, None])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=3, min_lr=2e-4)
    score = held_out(net, lambda: F.huber_loss(net(x[1600:]), load[1600:, None]))

    def one(step):
        rows, y = draw()
        loss = F.huber_loss(net(rows), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        logged = {"loss": loss}
        if step % 50 == 49:
            logged["val_loss"] = score()
            schedule.step(logged["val_loss"])
        return logged

    return tend(folder, net, optimizer, one, 900, score)


@healthy()
def beetles_by_their_measures(folder):
    seeded(2947)
    centres, shape = torch.randn(6, 9), torch.eye(9) + 0.3 * torch.randn(9, 9)

    def caught(many):
        y = torch.randint(6, (many,))
        return 1.1 * centres[y] + 0.7 * torch.randn(many, 9) @ shape, y

    x, y = caught(1500)
    fresh, kinds = caught(500)
    middle, spread = x.mean(0), x.std(0)
    x, fresh = (x - middle) / spread, (fresh - middle) / spread

    net = nn.Linear(9, 6)
    draw = rounds(32, x, y)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=400)

    def loss_of(step):
        rows, named = draw()
        return F.cross_entropy(net(rows), named)

    score = held_out(net, lambda: F.cross_entropy(net(fresh), kinds))
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule)


@healthy()
def claims_of_drivers_in_a_year(folder):
    seeded(2948)
    x, years = torch.randn(6000, 10), 0.2 + 0.8 * torch.rand(6000)
    rate = (0.8 * x[:, 0] - 0.7 * x[:, 1] + 0.6 * x[:, 2] * x[:, 3] + 0.5 * x[:, 4].abs() - 0.4).clamp(max=2.5).exp()
    claims = torch.poisson(rate * years)

    net = dense(10, 48, 48, 1)
    nn.init.zeros_(net[-1].weight)
    nn.init.constant_(net[-1].bias, float((claims[:5000].sum() / years[:5000].sum()).log()))
    draw = rounds(128, x[:5000], years[:5000], claims[:5000])
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def loss_of(step):
        rows, exposure, seen = draw()
        return F.poisson_nll_loss(net(rows)[:, 0] + exposure.log(), seen)

    def deviance():
        said, seen = net(x[5000:])[:, 0].exp() * years[5000:], claims[5000:]
        return 2 * (torch.xlogy(seen, seen / said) - seen + said).mean()

    return fit(folder, net, optimizer, loss_of, 800, score=held_out(net, deviance))
