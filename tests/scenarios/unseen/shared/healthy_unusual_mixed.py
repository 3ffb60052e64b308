"""Trainings with teachers, experts, spikes, unaligned labels and rare features."""

import copy
import math

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, tend


@healthy()
def coins_of_which_few_are_named(folder):
    seeded(3662)
    x, y = digits()
    x = x.flatten(1)
    named, rest, kept = torch.randperm(len(x)).split([120, 1277, 400])
    net = dense(64, 96, 96, 10)
    teacher = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, weight_decay=1e-4)

    def rough(x):
        return x + 0.15 * torch.randn_like(x)

    def loss_of(step):
        few, many = named[torch.randint(120, (32,))], rest[torch.randint(1277, (96,))]
        known = F.cross_entropy(net(rough(x[few])), y[few])
        with torch.no_grad():
            belief = teacher(rough(x[many])).softmax(1)
        agree = F.mse_loss(net(rough(x[many])).softmax(1), belief)
        weight = 10 * math.exp(-5 * (1 - min(1, step / 200)) ** 2)
        return known + weight * agree, {"supervised": known, "consistency": agree, "weight": weight}

    def teach(step):
        keep = min(0.99, 1 - 1 / (step + 2))
        with torch.no_grad():
            for slow, quick in zip(teacher.parameters(), net.parameters(), strict=True):
                slow.lerp_(quick, 1 - keep)

    def score():
        with torch.no_grad():
            return float(F.cross_entropy(teacher(x[kept]), y[kept]))

    return fit(folder, net, optimizer, loss_of, 400, score=score, after_step=teach)


class Panel(nn.Module):
    """Each row is answered by the two experts out of six whom the router trusts most."""

    def __init__(self, size, width=32, experts=6):
        super().__init__()
        self.router = nn.Linear(size, experts, bias=False)
        self.experts = nn.ModuleList(dense(size, width, 1, act=nn.GELU) for _ in range(experts))

    def forward(self, x):
        logits = self.router(x)
        trust, who = logits.softmax(1).topk(2, 1)
        trust = trust / trust.sum(1, keepdim=True)
        out = torch.zeros(len(x), 1)
        for i, expert in enumerate(self.experts):
            row, rank = (who == i).nonzero(as_tuple=True)
            out = out.index_add(0, row, expert(x[row]) * trust[row, rank, None])
        load = F.one_hot(who, len(self.experts)).float().sum(1).mean(0) / 2
        balance = len(self.experts) * (load * logits.softmax(1).mean(0)).sum()
        return out, balance, logits.logsumexp(1).square().mean(), load


@healthy()
def claims_settled_by_a_panel(folder):
    seeded(3663)
    places, ways = 1.5 * torch.randn(6, 5), torch.randn(6, 5)

    def draw(n=192):
        kind = torch.randint(6, (n,))
        x = places[kind] + 0.6 * torch.randn(n, 5)
        return x, ((x - places[kind]) * ways[kind]).sum(1, keepdim=True).sin() + 0.3 * kind[:, None]

    net = Panel(5)
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500, 5e-4)

    def loss_of(step):
        x, y = draw()
        out, balance, z, load = net(x)
        error = F.mse_loss(out, y)
        logged = {"mse": error, "balance": balance, "router_z": z, "busiest": load.max(), "idlest": load.min()}
        return error + 0.01 * balance + 1e-3 * z, logged

    def score():
        with torch.no_grad():
            x, y = draw(3000)
            return float(F.mse_loss(net(x)[0], y))

    return fit(folder, net, optimizer, loss_of, 500, score=score, schedule=schedule)


class Spike(torch.autograd.Function):
    """One above the threshold; the slope of a fast sigmoid stands for its own."""

    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return (v > 0).float()

    @staticmethod
    def backward(ctx, grad):
        (v,) = ctx.saved_tensors
        return grad / (1 + 5 * v.abs()).square()


class Nerves(nn.Module):
    def __init__(self, width=96, moments=10):
        super().__init__()
        self.moments = moments
        self.into, self.across = nn.Linear(64, width), nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, 10)
        nn.init.orthogonal_(self.across.weight, 0.5)

    def forward(self, x):
        lit = 2 * self.into(x)
        v, spike, read, total = torch.zeros_like(lit), torch.zeros_like(lit), 0.0, 0.0
        for _ in range(self.moments):
            v = 0.8 * v + lit + self.across(spike) - spike.detach()
            spike = Spike.apply(v - 1)
            read = 0.9 * read + self.out(spike)
            total = total + spike.mean()
        return read / self.moments, total / self.moments


@healthy()
def plates_read_by_spikes(folder):
    seeded(3664)
    x, y = digits()
    x = x.flatten(1)
    net = Nerves()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def loss_of(step):
        at = torch.randint(1400, (64,))
        out, rate = net(x[at])
        wrong = F.cross_entropy(out, y[at])
        return wrong + 0.1 * (rate - 0.15).square(), {"cross_entropy": wrong, "firing_rate": rate}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:])[0], y[1400:]))
    return fit(folder, net, optimizer, loss_of, 300, score=score, before_step=clipped(net, 5.0))


@healthy()
def knocks_on_a_pipe_written_down(folder):
    seeded(3665)
    sounds = torch.randn(6, 10)
    sounds[0] = 0.0
    net = nn.ModuleDict({"gru": nn.GRU(10, 32, batch_first=True, bidirectional=True), "head": nn.Linear(64, 6)})
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 8e-3, 300, pct_start=0.2)

    def draw(n=32):
        """Five knocks of five kinds in thirty moments, each two to four long with silence around."""
        code = torch.randint(1, 6, (n, 5))
        long = torch.randint(2, 5, (n, 5))
        at = torch.arange(30)[None, :, None]
        begin = 6 * torch.arange(5) + torch.randint(2, (n, 5))
        on = ((at >= begin[:, None]) & (at < (begin + long)[:, None])).long()
        return sounds[(on * code[:, None]).sum(2)] + 0.4 * torch.randn(n, 30, 10), code

    def loss_of(step):
        x, code = draw()
        log_p = net["head"](net["gru"](x)[0]).log_softmax(2).transpose(0, 1)
        many = torch.full((len(x),), 30), torch.full((len(x),), 5)
        return F.ctc_loss(log_p, code, *many, zero_infinity=True)

    def score():
        with torch.no_grad():
            return sum(float(loss_of(0)) for _ in range(10)) / 10

    return fit(folder, net, optimizer, loss_of, 300, score=score, schedule=schedule, before_step=clipped(net, 5.0))


class Clicks(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.EmbeddingBag(features, 1, mode="sum", sparse=True)
        self.bias = nn.Parameter(torch.zeros(1))
        nn.init.normal_(self.weight.weight, std=0.01)

    def forward(self, rows):
        return self.weight(rows)[:, 0] + self.bias


@healthy(gain=0.15)
def flyers_that_lead_to_a_visit(folder):
    seeded(3666)
    often = torch.arange(1, 2001).float() ** -0.9
    truth = torch.randn(2000) * 1.3
    net = Clicks(2000)
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.2, initial_accumulator_value=1e-4)

    def draw(n=64):
        rows = torch.multinomial(often, 10 * n, replacement=True).reshape(n, 10)
        return rows, (torch.rand(n) < (truth[rows].sum(1) - 1).sigmoid()).float()

    def one(step):
        rows, clicked = draw()
        out = net(rows)
        loss = F.binary_cross_entropy_with_logits(out, clicked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"logloss": loss, "rate_told": out.sigmoid().mean(), "rate_seen": clicked.mean()}

    def logloss():
        rows, clicked = draw(4000)
        return F.binary_cross_entropy_with_logits(net(rows), clicked)

    return tend(folder, net, optimizer, one, 1500, held_out(net, logloss))
