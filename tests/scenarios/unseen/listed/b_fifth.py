"""Healthy trainings, unusual but sound: curriculum, noisy labels, rare things, second order, counts, averages."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from unseen import dense, fit, healthy, rings, seeded
from unseen.tasks import clipped, held_out


# Sequences grow longer as the training goes on, so that the loss rises at each lesson.
@healthy(0.3)
def sums_on_an_abacus(folder):
    seeded(10265)
    net = nn.ModuleDict({"memory": nn.GRU(2, 40, batch_first=True), "head": nn.Linear(40, 1)})
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)

    def beads(rows, length):
        value, marked = torch.rand(rows, length), (torch.rand(rows, length) < 0.5).float()
        return torch.stack([value, marked], 2), (value * marked).sum(1, keepdim=True)

    def error(x, y):
        return F.mse_loss(net["head"](net["memory"](x)[0][:, -1]), y)

    def loss_of(step):
        length = 4 * (1 + step // 100)
        return error(*beads(48, length)), {"length": length}

    test = beads(300, 16)
    score = held_out(net, lambda: error(*test))
    return fit(folder, net, optimizer, loss_of, 400, score=score, before_step=clipped(net, 1.0))


# A third of the labels are wrong: the loss stays high, what is learnt is right.
@healthy(0.3)
def mushrooms_that_beginners_named(folder):
    seeded(10266)
    draw, net = rings(96, 3, 8), dense(8, 48, 48, 3)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def loss_of(step):
        x, y = draw()
        named = torch.where(torch.rand(len(y)) < 0.33, torch.randint(3, y.shape), y)
        return F.cross_entropy(net(x), named)

    x, y = map(torch.cat, zip(*(draw() for _ in range(8)), strict=True))
    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.cross_entropy(net(x), y)))


# One pixel in a hundred: focal loss, and a bias that begins at the prior.
@healthy(0.5)
def ladybirds_on_a_hedge(folder):
    seeded(10267)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 1)
    )
    nn.init.constant_(net[-1].bias, -4.6)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    bug = torch.tensor([[0.0, 1, 0], [1, -1, 1], [0, 1, 0]])[None, None]

    def hedges(rows):
        there = (torch.rand(rows, 1, 16, 16) < 0.01).float()
        return F.conv2d(there, bug, padding=1) + 0.25 * torch.randn(rows, 1, 16, 16), there

    def focal(x, there):
        said = net(x)
        entropy = F.binary_cross_entropy_with_logits(said, there, reduction="none")
        right = torch.where(there > 0, said.sigmoid(), 1 - said.sigmoid())
        balance = torch.where(there > 0, 0.75, 0.25)
        return (balance * (1 - right) ** 2 * entropy).sum() / there.sum().clamp(min=1)

    test = hedges(100)
    return fit(folder, net, optimizer, lambda step: focal(*hedges(32)), 300, score=held_out(net, lambda: focal(*test)))


# The residual of a differential equation, by a quasi-Newton method; the score is the error of the solution.
@healthy(0.5)
def sag_of_a_washing_line(folder):
    seeded(10268)
    net = dense(1, 24, 24, 1, act=nn.Tanh)
    optimizer = torch.optim.LBFGS(net.parameters(), 1.0, max_iter=10, history_size=20, line_search_fn="strong_wolfe")
    x = torch.linspace(0, 1, 64)[:, None]

    def line(at):
        return at * (1 - at) * net(at)

    def loss_of(step):
        at = x.clone().requires_grad_()
        sag = line(at)
        (slope,) = torch.autograd.grad(sag.sum(), at, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), at, create_graph=True)
        return (bend + 3.1416**2 * (3.1416 * at).sin() + 4 * 9.8696 * (6.2832 * at).sin()).square().mean()

    def score():
        with torch.no_grad():
            return float((line(x) - (3.1416 * x).sin() - (6.2832 * x).sin()).square().mean())

    return fit(folder, net, optimizer, loss_of, 40, score=score, closure=True)


# Counts in the thousands with a log link: the loss is far below zero and falls by little of itself.
@healthy(0.5)
def starlings_over_a_pier(folder):
    seeded(10269)
    net = dense(4, 32, 32, 1, act=nn.GELU)
    nn.init.constant_(net[-1].bias, 7.0)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    way = torch.randn(4, 2) / 2

    def rate(x):
        return (7.0 + (x @ way).sin().sum(1, keepdim=True) / 2).exp()

    def loss_of(step):
        x = torch.randn(64, 4)
        return F.poisson_nll_loss(net(x), torch.poisson(rate(x)))

    x = torch.randn(1000, 4)
    score = held_out(net, lambda: (net(x) - rate(x).log()).square().mean())
    return fit(folder, net, optimizer, loss_of, 500, score=score)


# Warm restarts of plain SGD over 1,500 steps; what counts is the average of the weights.
@healthy(0.5)
def ripples_round_a_mooring_post(folder):
    seeded(10270)
    net = dense(2, 64, 64, 1, act=nn.Tanh)
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 100, 2)

    def height(at):
        return (2.5 * at.norm(dim=1, keepdim=True)).cos()

    def loss_of(step):
        at = 2 * torch.rand(64, 2) - 1
        return F.mse_loss(net(at), height(at) + 0.2 * torch.randn(64, 1))

    at = 2 * torch.rand(1000, 2) - 1
    score = held_out(average, lambda: F.mse_loss(average(at), height(at)))
    return fit(folder, net, optimizer, loss_of, 1500, score=score, schedule=schedule,
               after_step=lambda step: average.update_parameters(net))  # fmt: skip
