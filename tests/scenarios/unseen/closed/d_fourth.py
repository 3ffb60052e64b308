"""An axle, a boat, a car park, a dough, a pipe and an oven."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


class Messages(nn.Module):
    """Neighbours tell each other what they know, twice; each then gives a mixture of three bells."""

    def __init__(self, size, width):
        super().__init__()
        self.enters, self.leaves = nn.Linear(size, width), dense(width, width, 9)
        self.tells = nn.ModuleList(dense(2 * width, width, width) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, x, near):
        h = self.enters(x).relu()
        for tell, norm in zip(self.tells, self.norms, strict=True):
            h = norm(h + tell(torch.cat([h, near @ h], -1)))
        return self.leaves(h).chunk(3, -1)


@healthy(gain=0.5)
def bearings_of_a_rattling_train(folder):
    """Each bearing swings to one side or the other, as far as its neighbours push it."""
    seeded(10067)
    net = Messages(4, 32)
    optimizer = torch.optim.NAdam(net.parameters(), lr=2e-3)
    ring = torch.eye(10)
    near = (ring.roll(1, 0) + ring.roll(-1, 0)) / 2
    way = torch.randn(4, 2)

    def unlikely(rows):
        x = torch.randn(rows, 10, 4)
        push = 1 + (x @ way[:, :1]).sigmoid() + (near @ (x @ way[:, 1:])).tanh()
        side = torch.where(torch.rand(rows, 10, 1) < 0.5, -1.0, 1.0)
        y = side * push + 0.15 * torch.randn(rows, 10, 1)
        share, middle, width = net(x, near)
        width = F.softplus(width) + 0.02
        bells = torch.distributions.Normal(middle, width).log_prob(y) + share.log_softmax(-1)
        return -bells.logsumexp(-1).mean()

    return fit(folder, net, optimizer, lambda step: unlikely(32), 600, before_step=clipped(net, 20.0),
               score=held_out(net, lambda: unlikely(512)))  # fmt: skip


class Flow(nn.Module):
    """A state that moves by a learnt law through six Runge-Kutta steps, then an answer."""

    def __init__(self):
        super().__init__()
        self.law, self.head = dense(6, 32, 6, act=nn.Tanh), nn.Linear(6, 1)

    def forward(self, x):
        h = F.pad(x, (0, 2))
        for _ in range(6):
            a = self.law(h)
            b = self.law(h + a / 12)
            c = self.law(h + b / 12)
            h = h + (a + 2 * b + 2 * c + self.law(h + c / 6)) / 36
        return self.head(h)[:, 0]


@healthy(gain=0.5)
def dinghies_that_a_gust_lays_flat(folder):
    """Heel, speed, sail and wind decide; a fifth of the boats go over and weigh as much as the others."""
    seeded(10068)
    net = Flow()
    optimizer = torch.optim.Adadelta(net.parameters(), lr=1.0)

    def loss_of(rows):
        x = torch.randn(rows, 4)
        over = (x[:, 0] + x[:, 2] * x[:, 3] + 0.5 * x[:, 3].square() > 1.6).float()
        return F.binary_cross_entropy_with_logits(net(x), over, pos_weight=torch.tensor(4.0))

    return fit(folder, net, optimizer, lambda step: loss_of(128), 500, score=held_out(net, lambda: loss_of(2048)))


class Highway(nn.Module):
    """Layers whose gates let most of what comes in go through."""

    def __init__(self, width, depth):
        super().__init__()
        self.turns = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(depth))
        for turn in self.turns:
            nn.init.constant_(turn.bias[width:], -1.0)

    def forward(self, x):
        for turn in self.turns:
            new, gate = turn(x).chunk(2, 1)
            gate = gate.sigmoid()
            x = gate * new.relu() + (1 - gate) * x
        return x


@healthy(gain=0.6)
def hours_that_cars_stay_parked(folder):
    """Durations with the likelihood of a gamma law and a rate that rises once and falls."""
    seeded(10069)
    x = torch.randn(3500, 10)
    stay = (0.6 * (x @ torch.randn(10, 3) / 3).sin().sum(1) + 0.5 * x[:, 0] + 0.5).exp()
    y = torch.distributions.Gamma(torch.tensor(8.0), 8 / stay).sample()
    net = nn.Sequential(nn.Linear(10, 48), Highway(48, 4), nn.Linear(48, 1))
    steps = 700
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
    draw = rounds(64, x[:3000], y[:3000])

    def deviance(x, y):
        found = net(x)[:, 0]
        return 2 * (y * (-found).exp() - 1 - y.log() + found).mean()

    return fit(folder, net, optimizer, lambda step: deviance(*draw()), steps, schedule=schedule,
               score=held_out(net, lambda: deviance(x[3000:], y[3000:])))  # fmt: skip


@healthy(gain=0.5)
def dough_by_its_hour_of_rising(folder):
    """Eight layers with batch norm; a bonus for doubt, and a rate that falls when the held-out loss rests."""
    seeded(10070)
    net = dense(10, *[48] * 7, 6, norm=nn.BatchNorm1d)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=2)
    hour = 6 * torch.rand(3500)
    other = torch.randn(3500, 4)
    mood = torch.stack([(hour * k / 3 + 0.5 * other[:, 0]).sin() for k in range(1, 7)], 1)
    x = torch.cat([mood + 0.15 * torch.randn(3500, 6), other], 1)
    y = hour.long()
    draw = rounds(96, x[:3000], y[:3000])
    score = held_out(net, lambda: F.cross_entropy(net(x[3000:]), y[3000:]))

    def one(step):
        rows, truth = draw()
        found = net(rows)
        logs = found.log_softmax(1)
        loss = F.nll_loss(logs, truth) + 0.05 * (logs.exp() * logs).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        logged = {"loss": loss, "accuracy": float((found.argmax(1) == truth).float().mean())}
        if step % 25 == 24:
            logged["val_loss"] = score()
            schedule.step(logged["val_loss"])
        return logged

    return tend(folder, net, optimizer, one, 500, score)


@healthy(gain=0.8)
def pipe_that_cools_in_a_cold_hotel(folder):
    """The heat equation between two cold ends, from its residual alone; all points at once."""
    seeded(10071)
    net = dense(2, 32, 32, 32, 1, act=nn.Tanh)
    optimizer = torch.optim.Rprop(net.parameters(), lr=1e-3, step_sizes=(1e-6, 0.02))
    x, t = torch.rand(2, 300)
    edge = torch.rand(60)

    def warmth(x, t):
        return net(torch.stack([2 * x - 1, 2 * t - 1], 1))[:, 0]

    def loss_of(step):
        a, b = x.clone().requires_grad_(), t.clone().requires_grad_()
        u = warmth(a, b)
        u_x, u_t = torch.autograd.grad(u.sum(), (a, b), create_graph=True)
        bend = torch.autograd.grad(u_x.sum(), a, create_graph=True)[0]
        inside = (u_t - 0.1 * bend).square().mean()
        start = (warmth(edge, torch.zeros(60)) - (math.pi * edge).sin()).square().mean()
        ends = warmth(torch.zeros(60), edge).square().mean() + warmth(torch.ones(60), edge).square().mean()
        return inside + 5 * start + 5 * ends, {"residual": float(inside)}

    def error():
        true = (math.pi * x).sin() * (-0.1 * math.pi**2 * t).exp()
        return (warmth(x, t) - true).square().mean().sqrt()

    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, error))


class Lasting(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory, self.head = nn.LSTM(2, 32, batch_first=True), nn.Linear(32, 1, bias=False)

    def forward(self, x):
        return self.head(self.memory(x)[1][0][-1])[:, 0]


@healthy(gain=0.4)
def weeks_until_an_oven_fails(folder):
    """Cox's partial likelihood on ovens of a bakery, a quarter of which are still at work."""
    seeded(10072)
    drift = torch.randn(2000, 1)
    days = torch.arange(16.0)
    heat = 0.12 * drift * days + 0.4 * torch.randn(2000, 16)
    draughts = torch.randn(2000, 1) + 0.4 * torch.randn(2000, 16)
    risk = 1.5 * drift[:, 0] + heat[:, -4:].mean(1) + draughts.mean(1)
    weeks = torch.distributions.Exponential(risk.exp()).sample()
    watched = torch.rand(2000) * 8
    failed, until = (weeks < watched).float(), torch.minimum(weeks, watched)
    x = torch.stack([heat, draughts], 2)
    net = Lasting()
    optimizer = torch.optim.Adamax(net.parameters(), lr=5e-3)
    draw = rounds(100, x[:1600], until[:1600], failed[:1600])

    def loss_of(step):
        rows, time, broke = draw()
        order = time.argsort(descending=True)
        found = net(rows[order])
        return -((found - found.logcumsumexp(0)) * broke[order]).sum() / broke.sum()

    def wrong():
        found, time, broke = net(x[1600:]), until[1600:], failed[1600:]
        sooner = (time[:, None] < time) & (broke[:, None] > 0)
        return (found[:, None] < found)[sooner].float().mean()

    return fit(folder, net, optimizer, loss_of, 320, score=held_out(net, wrong))
