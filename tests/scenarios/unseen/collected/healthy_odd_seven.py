"""Many tasks, rows that come once, ropes that grow."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import Outcome, dense, fit, healthy, mean, seeded
from unseen.tasks import clipped, held_out, tend

import gradwatch


@healthy()
def hops_malt_and_yeast_of_one_brew(folder):
    """Gradients of three tasks that disagree are projected onto each other's normal plane before they are added."""
    seeded(3127)
    net = nn.ModuleDict({"body": dense(8, 64, 48), "heads": nn.ModuleList(nn.Linear(48, 1) for _ in range(3))})
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    way, body = torch.randn(8, 3) / 8**0.5, list(net["body"].parameters())

    def draw(rows):
        x = torch.randn(rows, 8)
        a, b, c = (x @ way).T
        return x, torch.stack([(2 * a).sin() + b, a * b - c, (a - c).square() - 1], 1)

    def losses_of(rows):
        x, y = draw(rows)
        lively = net["body"](x).relu()
        return [F.mse_loss(head(lively)[:, 0], y[:, i]) for i, head in enumerate(net["heads"])]

    def one(step):
        losses = losses_of(128)
        optimizer.zero_grad()
        slopes = []
        for loss, head in zip(losses, net["heads"], strict=True):
            ours, its = torch.autograd.grad(loss, [*body], retain_graph=True), list(head.parameters())
            slopes.append(torch.cat([slope.flatten() for slope in ours]))
            for p, slope in zip(its, torch.autograd.grad(loss, its, retain_graph=True), strict=True):
                p.grad = slope
        total = torch.zeros_like(slopes[0])
        for i, slope in enumerate(slopes):
            mine = slope.clone()
            for j in torch.randperm(3).tolist():
                along = mine @ slopes[j]
                if j != i and along < 0:
                    mine -= along / slopes[j].square().sum() * slopes[j]
            total += mine
        for p, part in zip(body, total.split([p.numel() for p in body]), strict=True):
            p.grad = part.view_as(p).clone()
        optimizer.step()
        names = ("hops", "malt", "yeast")
        return {"loss": sum(losses).detach(), **{name: loss.detach() for name, loss in zip(names, losses, strict=True)}}

    return tend(folder, net, optimizer, one, 600, held_out(net, lambda: sum(losses_of(1500))))


@healthy()
def clicks_on_a_gazette_row_by_row(folder):
    """Each row is seen once, first foretold and then learned from; what readers like drifts slowly."""
    seeded(3128)
    net = nn.ModuleDict({"words": nn.EmbeddingBag(200, 8, mode="sum"), "bent": dense(8, 16, 1)})
    nn.init.normal_(net["words"].weight, std=0.1)
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.05)
    taste, drift = torch.randn(200), 0.0007 * torch.randn(200)
    chance = 1 / torch.arange(1.0, 201)
    losses = []

    watch = gradwatch.watch(net, optimizer, log=None, dir=folder, verbose=False)
    with watch:
        for step in range(1500):
            words = torch.multinomial(chance, 6)[None]
            liked = (1.5 * (taste + step * drift)[words].sum(1)).sigmoid()
            y = torch.bernoulli(liked)
            optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(net["bent"](net["words"](words))[:, 0], y)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
            watch.log(loss=losses[-1], average=mean(losses[-200:]))
    return Outcome(gradwatch.open_history(watch.dir), mean(losses[:50]), mean(losses[-300:]))


@healthy()
def knots_along_a_growing_rope(folder):
    """A sum of marked numbers over ropes that get longer whenever the present ones are mastered."""
    seeded(3129)
    net = nn.ModuleDict({"read": nn.GRU(2, 48, batch_first=True), "sum": nn.Linear(48, 1)})
    optimizer = torch.optim.RMSprop(net.parameters(), lr=2e-3, alpha=0.99)
    long, lately = 4, 0.2

    def draw(rows, length):
        x = torch.rand(rows, length)
        marks = F.one_hot(torch.rand(rows, length).topk(2, 1).indices, length).sum(1).float()
        return torch.stack([x, marks], 2), (x * marks).sum(1, keepdim=True)

    def error(rows, length):
        x, y = draw(rows, length)
        return F.mse_loss(net["sum"](net["read"](x)[0][:, -1]), y)

    def loss_of(step):
        return error(64, long), {"length": long}

    def grow(step):
        nonlocal long, lately
        with torch.no_grad():
            lately = 0.95 * lately + 0.05 * float(error(64, long))
        if lately < 0.01 and long < 24:
            long, lately = long + 2, 0.05

    return fit(
        folder, net, optimizer, loss_of, 1100,
        score=held_out(net, lambda: error(800, 24)), after_step=grow, before_step=clipped(net, 1.0),
    )  # fmt: skip
