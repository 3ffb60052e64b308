"""Healthy trainings of an unusual make: grids of few bits, sets, wires that are cut."""

from __future__ import annotations

import math

import torch
from nets import batches
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded


class Stepped(nn.Module):
    """LSQ: whole numbers of a learned step; the step's gradient is scaled by the root of how many share it."""

    def __init__(self, first, low, high, count):
        super().__init__()
        self.step, self.low, self.high = nn.Parameter(torch.tensor(float(first))), low, high
        self.scale = 1 / math.sqrt(count * high)

    def forward(self, x):
        s = self.step * self.scale + (self.step * (1 - self.scale)).detach()
        z = (x / s).clamp(self.low, self.high)
        return (z + (z.round() - z).detach()) * s


class Coarse(nn.Linear):
    def __init__(self, a, b, first):
        super().__init__(a, b)
        size = float(self.weight.detach().abs().mean())
        self.of_weight = Stepped(2 * size / math.sqrt(3), -4, 3, self.weight.numel())
        self.of_input = Stepped(first, 0, 15, a)

    def forward(self, x):
        return F.linear(self.of_input(x), self.of_weight(self.weight), self.bias)


@healthy(0.5)
def steps_of_a_grid_learned_for_three_bits(folder):
    """Three bits for weights, four for what comes in; the steps of the grids are learned along."""
    seeded(2076)
    net = nn.Sequential(Coarse(64, 96, 0.07), nn.ReLU(), Coarse(96, 96, 0.05), nn.ReLU(), Coarse(96, 10, 0.05))
    batch = batches(64, 2076)
    steps = [p for n, p in net.named_parameters() if n.endswith("step")]
    rest = [p for n, p in net.named_parameters() if not n.endswith("step")]
    optimizer = optim.AdamW([{"params": rest}, {"params": steps, "lr": 2e-4, "weight_decay": 0.0}], 1e-3)
    rate = optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)

    def loss_of(step):
        x, y = batch(step)
        out = net(x.flatten(1))
        return F.cross_entropy(out, y), {"accuracy": (out.argmax(1) == y).float().mean()}

    return fit(folder, net, optimizer, loss_of, 500, schedule=rate)


@healthy(0.7)
def largest_of_a_handful_by_two_rounds_of_looking(folder):
    """A small set transformer: a seed that gathers; the largest of five to ten numbers."""
    seeded(2077)

    class Look(nn.Module):
        def __init__(self):
            super().__init__()
            self.look = nn.MultiheadAttention(32, 4, batch_first=True)
            self.after, self.last, self.turn = nn.LayerNorm(32), nn.LayerNorm(32), dense(32, 64, 32)

        def forward(self, q, k):
            h = self.after(q + self.look(q, k, k, need_weights=False)[0])
            return self.last(h + self.turn(h))

    net = nn.ModuleDict({"lift": nn.Linear(1, 32), "first": Look(), "second": Look(), "gather": Look()})
    net["out"] = nn.Linear(32, 1)
    net.points = nn.Parameter(0.3 * torch.randn(1, 2, 32))

    def loss_of(step):
        x = torch.rand(64, int(torch.randint(5, 11, (1,))), 1) * 2 - 1
        h = net["lift"](x)
        h = net["first"](h, h)
        h = net["second"](h, h)
        seed = net.points[0].expand(64, -1, -1)
        h = net["gather"](seed, h).mean(1)
        return F.l1_loss(net["out"](h), x.amax(1))

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 260, score=score_of(loss_of, 16))


@healthy(0.5)
def four_fifths_of_the_wires_cut_one_after_another(folder):
    """Pruning by size along a cubic schedule from step 100 to 350; what is cut stays nought."""
    seeded(2078)
    net, batch = dense(64, 100, 100, 10), batches(64, 2078)
    masks = {p: torch.ones_like(p) for p in net.parameters() if p.ndim == 2}
    optimizer = optim.SGD(net.parameters(), 0.1, 0.9, weight_decay=1e-4)

    @torch.no_grad()
    def cut(step):
        if 100 <= step <= 350 and step % 10 == 0:
            share = 0.8 * (1 - (1 - (step - 100) / 250) ** 3)
            for p, mask in masks.items():
                kept = p.abs().flatten().kthvalue(max(1, int(share * p.numel()))).values
                mask.copy_((p.abs() > kept).float())
        for p, mask in masks.items():
            p.mul_(mask)

    def loss_of(step):
        x, y = batch(step)
        kept = sum(float(m.sum()) for m in masks.values()) / sum(m.numel() for m in masks.values())
        return F.cross_entropy(net(x.flatten(1)), y), {"density": kept}

    rate = optim.lr_scheduler.CosineAnnealingLR(optimizer, 550)
    return fit(folder, net, optimizer, loss_of, 550, after_step=cut, schedule=rate)
