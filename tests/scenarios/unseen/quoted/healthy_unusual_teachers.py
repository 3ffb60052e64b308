"""Healthy trainings of nets that listen to others: a mean teacher, a large teacher, two of eight experts at a time."""

from __future__ import annotations

import copy
import math

import nets
import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


def scanned():
    """The digits in random order, standardized."""
    x, y = nets.digits()
    order = torch.randperm(len(x))
    return (x.flatten(1)[order] - 0.3) / 0.37, y[order]


@healthy()
def postcodes_of_which_few_are_checked(folder):
    seeded(3559)
    x, y = scanned()
    net = dense(64, 128, 64, 10, norm=nn.BatchNorm1d)
    teacher = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
    known, unknown = rounds(30, x[:120], y[:120]), rounds(90, x[120:1400])

    def jittered(x):
        return x + 0.3 * torch.randn_like(x)

    def loss_of(step):
        (x, y), (others,) = known(), unknown()
        both = torch.cat([x, others])
        out = net(jittered(both))
        with torch.no_grad():
            wanted = teacher(jittered(both)).softmax(1)
        named = F.cross_entropy(out[:30], y)
        agreed = (out.softmax(1) - wanted).square().sum(1).mean()
        weight = 3 * math.exp(-5 * (1 - min(1, step / 100)) ** 2)
        return named + weight * agreed, {"supervised": named.item(), "consistency": agreed.item(), "weight": weight}

    @torch.no_grad()
    def after_step(step):
        decay = min(0.98, 1 - 1 / (step + 2))
        for a, b in zip(teacher.parameters(), net.parameters(), strict=True):
            a.lerp_(b, 1 - decay)
        for a, b in zip(teacher.buffers(), net.buffers(), strict=True):
            a.copy_(b)

    score = held_out(teacher, lambda: F.cross_entropy(teacher(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 300, score=score, after_step=after_step)


@healthy()
def a_foreman_and_his_apprentice(folder):
    seeded(3560)
    x, y = scanned()
    large = dense(64, 256, 128, 10)
    of_large = torch.optim.Adam(large.parameters(), lr=1e-3)
    draw = rounds(100, x[:1400], y[:1400])
    for _ in range(200):
        rows, names = draw()
        of_large.zero_grad()
        F.cross_entropy(large(rows), names).backward()
        of_large.step()
    large.requires_grad_(False).eval()
    net, heat = dense(64, 20, 10, act=nn.Hardswish), 3.0
    optimizer = torch.optim.Adadelta(net.parameters(), lr=1.0, rho=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 14 * 8, 0.6)

    def loss_of(step):
        rows, names = draw()
        said, wanted = net(rows), large(rows)
        copied = F.kl_div((said / heat).log_softmax(1), (wanted / heat).softmax(1), reduction="batchmean") * heat**2
        named = F.cross_entropy(said, names)
        accuracy = (said.argmax(1) == names).float().mean().item()
        return 0.7 * copied + 0.3 * named, {"kd": copied.item(), "ce": named.item(), "accuracy": accuracy}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 14 * 32, score=score, schedule=schedule)


class Guild(nn.Module):
    """Eight experts, of whom the two that a noisy router likes best are asked."""

    def __init__(self, size=6, many=8):
        super().__init__()
        self.router, self.many = nn.Linear(size, many, bias=False), many
        self.experts = nn.ModuleList(dense(size, 24, 1, act=nn.SiLU) for _ in range(many))
        nn.init.normal_(self.router.weight, std=0.1)

    def forward(self, x):
        logits = self.router(x)
        noisy = logits + torch.randn_like(logits) / self.many if self.training else logits
        shares = noisy.softmax(1)
        best, at = noisy.topk(2, 1)
        weights, out = best.softmax(1), torch.zeros(len(x), 1)
        for i, expert in enumerate(self.experts):
            rows, slot = (at == i).nonzero(as_tuple=True)
            out = out.index_add(0, rows, weights[rows, slot, None] * expert(x[rows]))
        used = F.one_hot(at, self.many).float().mean((0, 1))
        return out, self.many * (used * shares.mean(0)).sum(), logits.logsumexp(1).square().mean(), used


@healthy()
def repairs_handed_to_the_right_bench(folder):
    seeded(3561)
    net = Guild()
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 700, eta_min=1e-5)
    kinds, ways = 2 * F.normalize(torch.randn(6, 6), dim=1), torch.randn(6, 6) / 2

    def jobs(rows):
        kind = torch.randint(6, (rows,))
        x = kinds[kind] + 0.5 * torch.randn(rows, 6)
        return x, (x * ways[kind]).sum(1, keepdim=True).sin() + 0.3 * (kind[:, None] - 2.5)

    def loss_of(step):
        x, y = jobs(256)
        found, balance, size, used = net(x)
        missed = F.mse_loss(found, y)
        logged = {"mse": missed.item(), "balance": balance.item(), "busiest_expert": used.max().item()}
        return missed + 0.01 * balance + 1e-3 * size, logged

    x, y = jobs(2000)
    score = held_out(net, lambda: F.mse_loss(net(x)[0], y))
    before_step = clipped(net, 1.0)
    return fit(folder, net, optimizer, loss_of, 700, score=score, schedule=schedule, before_step=before_step)
