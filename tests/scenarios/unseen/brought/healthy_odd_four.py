"""Sound trainings: learning to learn, a fixed point, an energy, a flow, experts that share the work."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded
from unseen.tasks import clipped, held_out, rounds

# ----------------------------------------------------------------------------------------- insurance, learning to learn


def regions(count=5, policies=10):
    """For each region, drivers' ages and the log of their claims: a few to learn from, and as many to be judged by."""
    height, shift = 0.5 + 1.5 * torch.rand(count, 1, 1), 3.1416 * torch.rand(count, 1, 1)
    age = 4 * torch.rand(count, 2 * policies, 1) - 2
    claims = height * (1.5 * age + shift).sin() + 0.05 * torch.randn_like(age)
    return zip(age[:, :policies], claims[:, :policies], age[:, policies:], claims[:, policies:], strict=True)


@healthy()
def claims_of_an_insurer_in_a_new_region(folder):
    seeded(2767)
    net = dense(1, 40, 40, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 450)

    def adapted(age, claims, rate=0.05, rounds=2):
        weights = dict(net.named_parameters())
        for _ in range(rounds):
            loss = F.mse_loss(functional_call(net, weights, (age,)), claims)
            grads = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            weights = {name: w - rate * g for (name, w), g in zip(weights.items(), grads, strict=True)}
        return weights

    def loss_of(step):
        errors = []
        for age, claims, new_age, new_claims in regions():
            errors.append(F.mse_loss(functional_call(net, adapted(age, claims), (new_age,)), new_claims))
        return torch.stack(errors).mean()

    def score():
        return sum(float(loss_of(step).detach()) for step in range(12)) / 12

    return fit(folder, net, optimizer, loss_of, 450, score=score, schedule=schedule)


# ---------------------------------------------------------------------------------------------- cipher, a fixed point


class Settled(nn.Module):
    """A layer that feeds itself until it rests; backward solves for the gradient at rest."""

    def __init__(self, inputs, width, rounds=25):
        super().__init__()
        self.enter, self.again, self.rounds = nn.Linear(inputs, width), nn.Linear(width, width, bias=False), rounds

    def weight(self):
        norm = torch.linalg.matrix_norm(self.again.weight, 2)
        return self.again.weight * (0.8 / norm.clamp(min=0.8))

    def forward(self, x):
        weight, given = self.weight(), self.enter(x)
        with torch.no_grad():
            rest = torch.zeros_like(given)
            for _ in range(self.rounds):
                rest = (rest @ weight.T + given).tanh()
        out = (rest @ weight.T + given).tanh()
        if out.requires_grad:
            slope = 1 - out.detach().square()
            out.register_hook(lambda grad: self.solved(grad, slope, weight.detach()))
        return out

    def solved(self, grad, slope, weight):
        total = grad
        for _ in range(self.rounds):
            total = grad + (total * slope) @ weight
        return total


@healthy()
def letters_of_a_cipher_under_a_key(folder):
    seeded(2768)
    letters = 8
    net = nn.Sequential(Settled(2 * letters, 64), nn.Linear(64, letters))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)

    def loss_of(step):
        plain, key = torch.randint(letters, (2, 128))
        shown = torch.cat([F.one_hot((plain + key) % letters, letters), F.one_hot(key, letters)], 1).float()
        found = net(shown)
        return F.cross_entropy(found, plain), {"accuracy": float((found.argmax(1) == plain).float().mean())}

    score = score_of(lambda step: loss_of(step)[0])
    return fit(folder, net, optimizer, loss_of, 500, score=score, schedule=schedule)


# --------------------------------------------------------------------------------------------------- rain, an energy


class Weather(nn.Module):
    """A restricted Boltzmann machine of where it rains."""

    def __init__(self, stations=24, hidden=16):
        super().__init__()
        self.weight = nn.Parameter(0.05 * torch.randn(stations, hidden))
        self.wet, self.hidden = nn.Parameter(torch.zeros(stations)), nn.Parameter(torch.zeros(hidden))

    def forward(self, days):
        return -days @ self.wet - F.softplus(days @ self.weight + self.hidden).sum(-1)

    @torch.no_grad()
    def dreamt(self, days, rounds):
        for _ in range(rounds):
            hidden = torch.bernoulli(torch.sigmoid(days @ self.weight + self.hidden))
            days = torch.bernoulli(torch.sigmoid(hidden @ self.weight.T + self.wet))
        return days

    def surprise(self, days):
        """Minus the mean log chance of each station given all others."""
        flipped = (days[:, None] - torch.eye(days.shape[1])).abs()
        return F.softplus(self(days)[:, None] - self(flipped)).mean()


def rainy_days(days, stations=24):
    """Where it rained: fronts from two sides, showers about a place, or hardly anywhere."""
    places = torch.rand(stations, 2)
    centres, widths = torch.tensor([[0.0, 0.5], [1.0, 0.2], [0.5, 1.0], [0.5, 0.4]]), torch.tensor([0.5, 0.5, 0.4, 0.2])
    near = 5 * (widths[:, None] - torch.cdist(centres, places)) / widths[:, None]
    kind = torch.randint(4, (days,))
    return torch.bernoulli(torch.sigmoid(2 * near[kind]))


@healthy()
def where_it_rains_on_a_day(folder):
    seeded(2769)
    net, days = Weather(), rainy_days(4500)
    draw = rounds(100, days[:4000])
    with torch.no_grad():
        net.wet.copy_(days[:4000].mean(0).clamp(0.01, 0.99).logit())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 800)

    def loss_of(step):
        (seen,) = draw()
        return net(seen).mean() - net(net.dreamt(seen, 5)).mean()

    score = held_out(net, lambda: net.surprise(days[4000:]))
    return fit(folder, net, optimizer, loss_of, 800, score=score, schedule=schedule)


# ---------------------------------------------------------------------------------------------------- readers, a flow


class Coupling(nn.Module):
    """Half of the ratings scales and shifts the other half."""

    def __init__(self, size, odd):
        super().__init__()
        self.register_buffer("kept", ((torch.arange(size) + odd) % 2).float())
        self.rule = dense(size, 48, 2 * size, act=nn.SiLU)
        nn.init.zeros_(self.rule[-1].weight)
        nn.init.zeros_(self.rule[-1].bias)

    def forward(self, x):
        scale, shift = self.rule(x * self.kept).chunk(2, 1)
        scale = 1.5 * (scale / 1.5).tanh() * (1 - self.kept)
        return x * scale.exp() + shift * (1 - self.kept), scale.sum(1)


class Flow(nn.Module):
    """The density of what passes through couplings into a normal distribution."""

    def __init__(self, size=8, layers=6):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(size, i % 2) for i in range(layers))

    def forward(self, x):
        gained = x.new_zeros(len(x))
        for layer in self.layers:
            x, more = layer(x)
            gained = gained + more
        return 0.5 * x.square().sum(1) + 0.5 * x.shape[1] * math.log(2 * math.pi) - gained


def readers(count, books=8):
    """Marks from one to five by readers of two tastes, each mark spread evenly over its unit, standardized."""
    taste, liking = torch.randn(count, 2), torch.randn(2, books)
    marks = (3 + 1.2 * taste @ liking + 0.3 * torch.randn(count, books)).round().clamp(1, 5)
    spread = marks + torch.rand(count, books) - 3.5
    return spread / spread.std()


@healthy(gain=0.15)
def tastes_of_the_readers_of_a_library(folder):
    seeded(2770)
    net, marks = Flow(), readers(6000)
    draw = rounds(128, marks[:5000])
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)
    score = held_out(net, lambda: net(marks[5000:]).mean())
    options = {"score": score, "schedule": schedule, "before_step": clipped(net, 5.0)}
    return fit(folder, net, optimizer, lambda step: net(draw()[0]).mean(), 500, **options)


# ------------------------------------------------------------------------------------------------- pharmacy, experts


class Experts(nn.Module):
    """Two of several experts answer each question; `load` is how evenly they are asked."""

    def __init__(self, inputs, count=5, width=24):
        super().__init__()
        self.router = nn.Linear(inputs, count, bias=False)
        self.experts = nn.ModuleList(dense(inputs, width, 1, act=nn.SiLU) for _ in range(count))

    def forward(self, x):
        share = self.router(x).softmax(1)
        best, which = share.topk(2, 1)
        answers = torch.cat([expert(x) for expert in self.experts], 1).gather(1, which)
        asked = F.one_hot(which, len(self.experts)).float().sum(1).mean(0) / 2
        load = len(self.experts) * (asked @ share.mean(0))
        return (answers * best / best.sum(1, keepdim=True)).sum(1), load


def orders(batch=128, drugs=6):
    """`draw()`: drug, season and weekday, and how many packs are ordered."""
    height, phase, weekly = 1 + 1.5 * torch.rand(drugs), 6.283 * torch.rand(drugs), torch.rand(drugs)

    def draw():
        drug, season, week = torch.randint(drugs, (batch,)), 6.283 * torch.rand(batch), 6.283 * torch.rand(batch)
        level = height[drug] + 0.8 * (season + phase[drug]).sin() + weekly[drug] * 0.6 * week.cos()
        clock = torch.stack([season.sin(), season.cos(), week.sin(), week.cos()], 1)
        return torch.cat([F.one_hot(drug, drugs).float(), clock], 1), torch.poisson(level.exp())

    return draw


@healthy()
def packs_that_a_pharmacy_orders(folder):
    seeded(2771)
    net, draw = Experts(10), orders()
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)

    def both(step):
        x, packs = draw()
        level, load = net(x)
        return F.poisson_nll_loss(level, packs), load

    def loss_of(step):
        error, load = both(step)
        return error + 0.02 * load, {"load": float(load.detach())}

    score = score_of(lambda step: both(step)[0])
    options = {"score": score, "schedule": schedule, "before_step": clipped(net, 5.0)}
    return fit(folder, net, optimizer, loss_of, 500, **options)
