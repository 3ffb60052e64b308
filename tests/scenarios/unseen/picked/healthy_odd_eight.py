"""Weights made by another network, a memory that is asked twice, tasks one after the other that are not forgotten."""

from __future__ import annotations

import math

import torch
from nets import digits
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, fit, healthy, mean, score_of, seeded
from unseen.tasks import clipped

import gradwatch

# ------------------------------------------------------------ weights from a condition


class Halls(nn.Module):
    """A small network for each hall, its weights made from what is known of the hall."""

    def __init__(self, known=3, width=16):
        super().__init__()
        self.shapes = [(width, 2), (width,), (width, width), (width,), (1, width), (1,)]
        self.body = dense(known, 48, 48, act=nn.SiLU)
        self.heads = nn.ModuleList(nn.Linear(48, math.prod(shape)) for shape in self.shapes)
        for head, shape in zip(self.heads, self.shapes, strict=True):
            nn.init.normal_(head.weight, std=0.05 / math.sqrt(48))
            bound = 1 / math.sqrt(shape[-1]) if len(shape) == 2 else 0.1
            nn.init.uniform_(head.bias, -math.sqrt(3) * bound, math.sqrt(3) * bound)

    def forward(self, hall, x):
        h = F.silu(self.body(hall))
        parts = [head(h).view(-1, *shape) for head, shape in zip(self.heads, self.shapes, strict=True)]
        for i in (0, 2, 4):
            x = torch.baddbmm(parts[i + 1][:, None], x, parts[i].transpose(1, 2))
            x = x.tanh() if i < 4 else x
        return x[..., 0]


@healthy()
def the_echo_of_any_hall(folder):
    seeded(3257)
    net, steps = Halls(), 500
    optimizer = torch.optim.RAdam(net.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, steps, power=1.5)

    def loss_of(step):
        hall, x = 2 * torch.rand(48, 3) - 1, 2 * torch.rand(48, 20, 2) - 1
        size, damp, wall = hall[:, None].unbind(2)
        true = (2 * x[..., 0] * (1.5 + size) + wall).sin() * torch.exp(-0.5 * (1 + damp) * (1 + x[..., 1]))
        return F.mse_loss(net(hall, x), true)

    return fit(
        folder, net, optimizer, loss_of, steps, score=score_of(loss_of, 10), before_step=clipped(net, 2.0),
        schedule=schedule,
    )  # fmt: skip


# ------------------------------------------------------------ a memory, asked twice


class Memory(nn.Module):
    """Facts are read by keys; what a first look finds changes what the second asks for."""

    def __init__(self, words, width=32):
        super().__init__()
        self.key, self.value, self.ask = (nn.Embedding(words, width) for _ in range(3))
        for table in (self.key, self.value, self.ask):
            nn.init.normal_(table.weight, std=0.3)
        self.turn = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, 8)

    def forward(self, facts, question):
        u = self.ask(question)
        keys, values = self.key(facts[..., 0]), self.value(facts[..., 1])
        for _ in range(2):
            share = torch.einsum("bfw,bw->bf", keys, u).softmax(1)
            u = self.turn(u) + torch.einsum("bf,bfw->bw", share, values)
        return self.out(u)


@healthy()
def who_sits_at_whose_table(folder):
    seeded(3258)
    net = Memory(10 + 8)
    optimizer = torch.optim.Adam(net.parameters(), lr=8e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 900, eta_min=1e-4)

    def loss_of(step, n=96):
        who = torch.rand(n, 10).argsort(1)
        table = torch.randint(8, (n, 5))
        friend = torch.randint(5, (n, 5))
        known = torch.stack([who[:, :5], 10 + table], 2)
        along = torch.stack([who[:, 5:], who.gather(1, friend)], 2)
        facts = torch.cat([known, along], 1)
        asked = torch.randint(10, (n, 1))
        direct = torch.where(asked < 5, asked, friend.gather(1, (asked - 5).clamp(min=0)))
        out = net(facts, who.gather(1, asked)[:, 0])
        true = table.gather(1, direct)[:, 0]
        return F.cross_entropy(out, true), {"accuracy": (out.argmax(1) == true).float().mean()}

    return fit(
        folder, net, optimizer, loss_of, 900, score=score_of(lambda step: loss_of(step)[0]),
        before_step=clipped(net, 10.0), schedule=schedule,
    )  # fmt: skip


# ------------------------------------------------------------ one task after the other


@healthy()
def scripts_learned_one_after_the_other(folder):
    seeded(3259)
    images, labels = digits()
    order = torch.randperm(len(images))
    images, labels = images[order].flatten(1), labels[order]
    mixed = [torch.randperm(64) for _ in range(3)]
    net = dense(64, 128, 10)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    anchors = []

    def error(task):
        with torch.no_grad():
            return float(F.cross_entropy(net(images[1400:, mixed[task]]), labels[1400:]))

    def one_loss(parts, x, y):
        return F.cross_entropy(functional_call(net, parts, (x[None],)), y[None])

    def remember(task):
        """What each weight matters to this task, by labels drawn from the network's own answers."""
        parts = {name: p.detach().clone() for name, p in net.named_parameters()}
        x = images[torch.randperm(1400)[:500]][:, mixed[task]]
        with torch.no_grad():
            said = torch.distributions.Categorical(logits=net(x)).sample()
        slopes = vmap(grad(one_loss), (None, 0, 0))(parts, x, said)
        anchors.append([(parts[name], slopes[name].square().mean(0)) for name in parts])

    first = mean([error(task) for task in range(3)])
    options = TREATMENT[-1].begin(net, optimizer)
    with gradwatch.watch(net, optimizer, **{"log": None, "dir": folder, "verbose": False, **options}) as watch:
        for task in range(3):
            for _ in range(250):
                at = torch.randint(1400, (64,))
                new = F.cross_entropy(net(images[at][:, mixed[task]]), labels[at])
                held = torch.zeros(())
                for anchor in anchors:
                    for p, (old, matters) in zip(net.parameters(), anchor, strict=True):
                        held = held + (matters * (p - old).square()).sum()
                loss = new + 50 * held
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                watch.log(loss=loss, task_loss=new, held=held)
            remember(task)
    return Outcome(gradwatch.open_history(watch.dir), first, mean([error(task) for task in range(3)]))
