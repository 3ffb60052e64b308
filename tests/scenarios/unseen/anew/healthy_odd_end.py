"""Healthy trainings with odd curves, last part: choices, vertices, maps, portions, dreams."""

from __future__ import annotations

import copy

import torch
from nets import digits
from torch import nn, optim
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, fit, healthy, seeded
from unseen.anew.healthy_odd import right

import gradwatch


@healthy(0.4)
def three_of_ten_to_be_chosen(folder):
    """SPO+: values are predicted for the choice of three of ten, and its subgradient does not end at a good choice."""
    seeded(44)
    net = dense(5, 48, 1)
    make = optim.Adam(net.parameters(), 2e-3)
    way = torch.randn(5, 2)

    def draw(size=48):
        x = torch.randn(size, 10, 5)
        mean = (x @ way / 2).tanh().sum(2) + 0.3 * (x[..., 0] * x[..., 1])
        return x, mean + 0.2 * torch.randn(size, 10)

    def chosen(values):
        return torch.zeros_like(values).scatter(1, values.topk(3).indices, 1.0)

    def regret(guess, worth):
        best = (chosen(worth) * worth).sum(1)
        return ((best - (chosen(guess.detach()) * worth).sum(1)) / best.abs().mean()).mean()

    def loss_of(step):
        x, worth = draw()
        guess, ideal = net(x)[..., 0], chosen(worth)
        doubled = 2 * guess - worth
        loss = ((chosen(doubled.detach()) - ideal) * doubled).sum(1).mean()
        return loss, {"regret": regret(guess, worth)}

    def score():
        with torch.no_grad():
            x, worth = draw(1000)
            return regret(net(x)[..., 0], worth)

    return fit(folder, net, make, loss_of, 350, score=score)


class FrankWolfe(optim.Optimizer):
    """Steps towards the vertex of an l1 ball that the gradient points away from; the first step goes all the way."""

    def __init__(self, params, radius):
        super().__init__(params, {"radius": radius, "lr": 1.0, "k": 0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] = 2 / (group["k"] + 2)
            group["k"] += 1
            for p in group["params"]:
                at = p.grad.abs().argmax()
                vertex = torch.zeros_like(p).view(-1)
                vertex[at] = -group["radius"] * p.grad.view(-1)[at].sign()
                p.lerp_(vertex.view_as(p), group["lr"])


@healthy(0.5)
def ten_of_three_hundred_columns_by_vertices(folder):
    """Frank-Wolfe: a logistic regression whose weights stay in an l1 ball, one more of them at each step."""
    seeded(61)
    net = nn.Linear(300, 1, bias=False)
    nn.init.zeros_(net.weight)
    true = torch.zeros(300)
    true[torch.randperm(300)[:10]] = 2 * torch.randn(10).sign()
    x = torch.randn(800, 300)
    y = (torch.rand(800) < (x @ true).sigmoid()).float()
    make = FrankWolfe(net.parameters(), radius=18.0)

    def loss_of(step):
        logits = net(x)[:, 0]
        loss = F.binary_cross_entropy_with_logits(logits, y)
        (slope,) = torch.autograd.grad(loss, net.weight, retain_graph=True)
        gap = (slope * net.weight.detach()).sum() + 18.0 * slope.abs().max()
        return loss, {"gap": gap, "accuracy": ((logits > 0) == (y > 0)).float().mean()}

    return fit(folder, net, make, loss_of, 250)


class Map(nn.Module):
    """Units on a square grid, each with a place among the data."""

    def __init__(self, side, size):
        super().__init__()
        self.codes = nn.Parameter(0.1 * torch.randn(side * side, size))
        self.register_buffer("grid", torch.cartesian_prod(torch.arange(side), torch.arange(side)).float())

    def forward(self, x, width):
        gaps = torch.cdist(x, self.codes).square()
        best = gaps.detach().argmin(1)
        near = (-torch.cdist(self.grid[best], self.grid).square() / (2 * width**2)).exp()
        return 0.5 * (near * gaps).sum(1).mean(), gaps.gather(1, best[:, None]).mean()


@healthy(0.5)
def colours_laid_out_on_a_square(folder):
    """A self-organising map by gradients: the neighbourhood shrinks, so each step has a loss of its own."""
    seeded(62)
    net, steps = Map(10, 3), 500
    make = optim.SGD(net.parameters(), 1.0)
    plan = optim.lr_scheduler.LambdaLR(make, lambda step: 0.1 ** (step / steps))

    def loss_of(step):
        loss, error = net(torch.rand(64, 3) * 2 - 1, 4.0 * (0.5 / 4.0) ** (step / steps))
        return loss, {"quantisation_error": error.detach()}

    def score():
        with torch.no_grad():
            return net(torch.rand(1000, 3) * 2 - 1, 0.5)[1]

    return fit(folder, net, make, loss_of, steps, score=score, schedule=plan)


@healthy(0.5)
def portions_that_come_and_weights_that_are_shrunk(folder):
    """Digits come in five portions; at each, the weights are shrunk and mixed with new ones, then tuned on all."""
    seeded(63)
    net = nn.Sequential(nn.Flatten(), dense(64, 96, 96, 10))
    make, portion = optim.Adam(net.parameters(), 1e-3), 280
    x, y = digits()
    order = torch.randperm(len(x))
    test = order[1400:]

    @torch.no_grad()
    def shrink_and_perturb():
        fresh = copy.deepcopy(net)
        for layer in fresh.modules():
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
        for p, new in zip(net.parameters(), fresh.parameters(), strict=True):
            p.mul_(0.4).add_(new, alpha=0.1)

    def loss_of(step):
        if step and step % 110 == 0:
            shrink_and_perturb()
        known = portion * (step // 110 + 1)
        at = order[torch.randint(known, (64,))]
        logits = net(x[at])
        return F.cross_entropy(logits, y[at]), {"accuracy": right(logits, y[at]), "rows": known}

    def score():
        with torch.no_grad():
            return F.cross_entropy(net(x[test]), y[test])

    return fit(folder, net, make, loss_of, 550, score=score)


@healthy(0.2)
def bars_seen_by_day_and_dreamt_by_night(folder):
    """A Helmholtz machine by wake and sleep: each net learns from what the other makes, neither by a joint gradient."""
    seeded(64)
    prior, make, know = nn.Parameter(torch.full((10,), -2.0)), dense(10, 25), dense(25, 48, 10)
    body = nn.ModuleDict({"prior": nn.ParameterList([prior]), "make": make})
    of_make, of_know = optim.Adam(body.parameters(), 1e-2), optim.Adam(know.parameters(), 1e-2)

    def days(size=64):
        rows, columns = (torch.rand(2, size, 5) < 0.12).float()
        return torch.maximum(rows[:, :, None].expand(-1, 5, 5), columns[:, None].expand(-1, 5, 5)).flatten(1)

    def nats(logits, values):
        return F.binary_cross_entropy_with_logits(logits.expand_as(values), values, reduction="none").sum(1)

    def score():
        with torch.no_grad():
            x = days(1000)
            h = torch.bernoulli(know(x).sigmoid())
            return float((nats(make(h), x) + nats(prior, h) - nats(know(x), h)).mean())

    first = score()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(body, of_make)}
    w_make = gradwatch.watch(body, of_make, name="wake", **options)
    w_know = gradwatch.watch(know, of_know, name="sleep", run=w_make, **options)
    with w_make, w_know:
        for _ in range(700):
            x = days()
            with torch.no_grad():
                h = torch.bernoulli(know(x).sigmoid())
            loss = (nats(make(h), x) + nats(prior, h)).mean()
            of_make.zero_grad()
            loss.backward()
            of_make.step()
            w_make.log(loss=loss)
            with torch.no_grad():
                h = torch.bernoulli(prior.sigmoid().expand(64, 10))
                x = torch.bernoulli(make(h).sigmoid())
            loss = nats(know(x), h).mean()
            of_know.zero_grad()
            loss.backward()
            of_know.step()
            w_know.log(loss=loss)
    return Outcome(gradwatch.open_history(w_make.dir.parent), first, score())
