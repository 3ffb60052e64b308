"""Healthy trainings, last part: five more ordinary ones, and four that look frightening and are right."""

from __future__ import annotations

import math

import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from trainings import TREATMENT
from unseen import Outcome, dense, fit, healthy, score_of, seeded

import gradwatch

# ------------------------------------------------------------------------------------------------------------ ordinary


class Straight(nn.Module):
    """A swing lifted to where its motion is a linear map (Koopman)."""

    def __init__(self, width=12):
        super().__init__()
        self.lift, self.lower = dense(2, 48, width, act=nn.Tanh), dense(width, 48, 2, act=nn.Tanh)
        self.move = nn.Linear(width, width, bias=False)
        nn.init.eye_(self.move.weight)


@healthy(0.5)
def swing_lifted_to_where_it_is_linear(folder):
    seeded(9131)
    net = Straight()

    def loss_of(step):
        state, seen = 2 * torch.rand(64, 2) - 1, []
        for _ in range(5):
            seen.append(state)
            for _ in range(4):
                push = -state[:, 0] - 2 * state[:, 0] ** 3 - 0.2 * state[:, 1]
                state = torch.stack([state[:, 0] + 0.05 * state[:, 1], state[:, 1] + 0.05 * push], 1)
        h = net.lift(seen[0])
        loss = F.mse_loss(net.lower(h), seen[0])
        for later in seen[1:]:
            h = net.move(h)
            loss = loss + F.mse_loss(net.lower(h), later) + 0.1 * F.mse_loss(h, net.lift(later))
        return loss

    make = optim.Adam(net.parameters(), 3e-3)
    plan = optim.lr_scheduler.ExponentialLR(make, 0.995)
    return fit(folder, net, make, loss_of, 250, schedule=plan)


@healthy(0.5)
def turn_of_a_cloud_in_six_numbers(folder):
    """The turn of a known cloud of points, as two columns that are made orthogonal."""
    seeded(9132)
    cloud = torch.randn(12, 3)
    net = dense(36, 96, 96, 6, norm=nn.LayerNorm)

    def matrix(six):
        a = F.normalize(six[:, :3], dim=1)
        b = F.normalize(six[:, 3:] - (a * six[:, 3:]).sum(1, keepdim=True) * a, dim=1)
        return torch.stack([a, b, torch.linalg.cross(a, b)], 2)

    def loss_of(step):
        turn = matrix(torch.randn(64, 6))
        seen = cloud @ turn.transpose(1, 2) + 0.05 * torch.randn(64, 12, 3)
        return (matrix(net(seen.flatten(1))) - turn).square().sum((1, 2)).mean()

    make = optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    rise = optim.lr_scheduler.LinearLR(make, 0.1, total_iters=30)
    fall = optim.lr_scheduler.MultiStepLR(make, [250, 340], 0.1)
    plan = optim.lr_scheduler.SequentialLR(make, [rise, fall], [30])
    return fit(folder, net, make, loss_of, 400, schedule=plan)


class Gated(nn.Module):
    """A block of gMLP: half of the features, mixed over places, gate the others; the gate begins open."""

    def __init__(self, width, places):
        super().__init__()
        self.norm, self.wide = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.gate_norm, self.mix = nn.LayerNorm(2 * width), nn.Linear(places, places)
        self.back = nn.Linear(2 * width, width)
        nn.init.normal_(self.mix.weight, std=1e-2)
        nn.init.ones_(self.mix.bias)

    def forward(self, x):
        a, b = F.gelu(self.wide(self.norm(x))).chunk(2, 2)
        return x + self.back(a * self.mix(self.gate_norm(b).transpose(1, 2)).transpose(1, 2))


@healthy(0.3)
def motifs_found_by_gates_over_places(folder):
    """Which of four motifs of six bases stands somewhere in a strand."""
    seeded(9133)
    motifs = torch.randint(4, (4, 6))
    first = nn.Conv1d(4, 32, 5, padding=2)
    body, head = nn.Sequential(Gated(32, 24), Gated(32, 24), nn.LayerNorm(32)), nn.Linear(32, 4)
    net = nn.ModuleDict({"first": first, "body": body, "head": head})

    def loss_of(step):
        strand, kind, at = torch.randint(4, (32, 24)), torch.randint(4, (32,)), torch.randint(19, (32, 1))
        strand = strand.scatter(1, at + torch.arange(6), motifs[kind])
        h = first(F.one_hot(strand, 4).float().transpose(1, 2)).transpose(1, 2)
        return F.cross_entropy(head(body(h).mean(1)), kind)

    return fit(folder, net, optim.Adafactor(net.parameters(), 1e-2), loss_of, 250)


@healthy(0.5)
def months_until_a_reader_leaves(folder):
    """Discrete hazards of twelve months, with readers who are still there; scored against the true curves."""
    seeded(9134)
    net, month = dense(8, 48, 48, 12), torch.arange(12.0)

    def truth(x):
        return (-2.0 + x[:, :1] * (x[:, 1:2] > 0) + (0.1 + 0.15 * x[:, 2:3]) * (month - 6)).sigmoid()

    def loss_of(step):
        x = torch.randn(256, 8)
        leaves = (torch.rand(256, 12) < truth(x)).float()
        here = torch.cat([torch.ones(256, 1), (1 - leaves).cumprod(1)[:, :-1]], 1)
        here = here * (month < torch.randint(4, 16, (256, 1)))
        each = F.binary_cross_entropy_with_logits(net(x), leaves, reduction="none")
        return (each * here).sum() / here.sum()

    @torch.no_grad()
    def score():
        x = torch.randn(1024, 8)
        return ((1 - truth(x)).cumprod(1) - (1 - net(x).sigmoid()).cumprod(1)).abs().mean()

    make = optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01, amsgrad=True)
    plan = optim.lr_scheduler.CosineAnnealingLR(make, 400)
    return fit(folder, net, make, loss_of, 400, score=score, schedule=plan)


class Latents(nn.Module):
    """Eight latent vectors that look at a long series (Perceiver)."""

    def __init__(self, width=32):
        super().__init__()
        self.latents = nn.Parameter(0.02 * torch.randn(8, width))
        self.lift = nn.Linear(9, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.look = nn.MultiheadAttention(width, 4, batch_first=True)
        self.block = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(width, 4)

    def forward(self, series):
        time = torch.linspace(-1, 1, series.shape[1])[:, None] * torch.tensor([1.0, 2, 4, 8]) * math.pi
        places = torch.cat([time.sin(), time.cos()], 1).expand(len(series), -1, -1)
        x = self.norms[0](self.lift(torch.cat([series[..., None], places], 2)))
        h = self.latents.expand(len(series), -1, -1)
        h = h + self.look(self.norms[1](h), x, x, need_weights=False)[0]
        return self.head(self.norms[2](self.block(h)).mean(1))


@healthy(0.3)
def shapes_of_long_waves_by_eight_latents(folder):
    """Scored by a moving average of the weights."""
    seeded(9135)
    net = Latents()
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.97))
    time = torch.linspace(-1, 1, 64)

    def error(of):
        kind, at, wide = torch.randint(4, (64, 1)), torch.rand(64, 1) - 0.5, 0.15 + 0.1 * torch.rand(64, 1)
        gap = (time - at) / wide
        bell, jump = (-gap.square()).exp() * 2, gap.tanh()
        pair = torch.where(kind % 2 == 0, 1.0, -1.0)
        series = torch.where(kind < 2, bell, jump) * pair + 0.3 * torch.randn(64, 64)
        return F.cross_entropy(of(series), kind[:, 0])

    make = optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    plan = optim.lr_scheduler.LinearLR(make, 0.1, total_iters=30)
    return fit(
        folder, net, make, lambda step: error(net), 180, schedule=plan, score=score_of(lambda step: error(average)),
        after_step=lambda step: average.update_parameters(net),
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- frightening


@healthy(0.5)
def prices_of_sand_that_is_carried(folder):
    """Entropic transport by its dual: two nets with an optimizer each; the loss falls below zero and is noisy there."""
    seeded(9136)
    net = nn.ModuleDict({"here": dense(2, 64, 64, 1, act=nn.SiLU), "there": dense(2, 64, 64, 1, act=nn.SiLU)})
    makes = [optim.Adam(part.parameters(), 2e-3) for part in net.values()]
    soft = 0.5

    def loss_of():
        angle = 6.2832 * torch.rand(256, 1)
        here = 0.4 * torch.randn(256, 2)
        there = torch.cat([angle.cos(), angle.sin()], 1) * 1.2 + 0.05 * torch.randn(256, 2)
        u, v = net["here"](here), net["there"](there)
        cost = torch.cdist(here, there).square()
        return -(u.mean() + v.mean() - soft * (((u + v.T - cost) / soft).exp().mean() - 1))

    score = score_of(lambda step: loss_of())
    first = score()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(net, makes[0])}
    watch = gradwatch.watch(net, makes, **options)
    with watch:
        for _ in range(300):
            for make in makes:
                make.zero_grad()
            loss = loss_of()
            loss.backward()
            for make in makes:
                make.step()
            watch.log(loss=loss)
    return Outcome(gradwatch.open_history(watch.dir), first, score())


@healthy(0.5)
def surprise_at_a_net_that_nobody_trains(folder):
    """Random network distillation: a frozen random target; scored by how often the strange seems known."""
    seeded(9137)
    target = dense(16, 64, 64, 16, act=nn.LeakyReLU).requires_grad_(False)
    for layer in target[::2]:
        nn.init.orthogonal_(layer.weight, math.sqrt(2))
    net = nn.ModuleDict({"target": target, "guess": dense(16, 64, 64, 64, 16, act=nn.LeakyReLU)})
    known, strange = torch.randn(4, 16), torch.randn(4, 16)

    def surprise(basis):
        x = torch.randn(128, 4) @ basis / 2
        return (net["guess"](x) - target(x)).square().mean(1)

    @torch.no_grad()
    def score():
        return (surprise(strange)[:, None] <= surprise(known)).float().mean()

    make = optim.Adam(net["guess"].parameters(), 1e-3)
    return fit(folder, net, make, lambda step: surprise(known).mean(), 300, score=score)


@healthy(0.5)
def baskets_explained_by_shaken_tastes(folder):
    """A perturbed maximum (Fenchel-Young): the loss of a choice of three of nine keeps its noise, and its floor."""
    seeded(9138)
    net, way = dense(10, 48, 9), torch.randn(10, 9)

    def chosen(taste):
        return torch.zeros_like(taste).scatter(1, taste.topk(3).indices, 1.0)

    def loss_of(step):
        x = torch.randn(64, 10)
        taste, basket = net(x), chosen(x @ way + 1.5 * torch.randn(64, 9))
        shaken = (taste + torch.randn(2, 64, 9)).topk(3).values.sum(2).mean(0)
        return (shaken - (taste * basket).sum(1)).mean()

    @torch.no_grad()
    def score():
        x = torch.randn(1024, 10)
        return (chosen(net(x)) * (1 - chosen(x @ way))).sum(1).mean() / 3

    make = optim.SGD(net.parameters(), 0.05, momentum=0.9)
    return fit(folder, net, make, loss_of, 300, score=score)


class Slice(nn.Module):
    """A picture whose shadows are compared with those that were measured."""

    def __init__(self, rays):
        super().__init__()
        self.register_buffer("rays", rays)
        self.picture = nn.Parameter(torch.zeros(rays.shape[1]))

    def forward(self):
        return self.rays @ self.picture


@healthy(0.5)
def slice_of_a_body_from_its_shadows(folder):
    """Tomography in millimetres: the step is one over the largest curvature, some 1e-5; no pixel below 0."""
    seeded(9139)
    line = torch.arange(16.0) - 7.5
    y, x = (part.flatten() for part in torch.meshgrid(line, line, indexing="ij"))
    body = ((x / 6) ** 2 + (y / 7) ** 2 < 1).float() + ((x - 2) ** 2 + (y + 1) ** 2 < 6).float()
    angle, bins = torch.linspace(0, math.pi, 25)[:-1, None, None], (torch.arange(23.0) - 11)[:, None]
    rays = 10 * (1 - (angle.cos() * x + angle.sin() * y - bins).abs()).clamp(min=0).flatten(0, 1)
    net = Slice(rays)
    seen = rays @ body + 0.5 * torch.randn(len(rays))
    curvature = float(torch.linalg.matrix_norm(rays, 2)) ** 2

    @torch.no_grad()
    def above_zero(step):
        net.picture.clamp_(min=0)

    def score():
        with torch.no_grad():
            return (net.picture - body).square().mean().sqrt()

    make = optim.SGD(net.parameters(), 1 / curvature)
    return fit(
        folder, net, make, lambda step: 0.5 * (net() - seen).square().sum(), 300, score=score, after_step=above_zero
    )
