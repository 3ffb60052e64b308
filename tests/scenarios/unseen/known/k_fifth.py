"""Trainings in which nothing is wrong, of an unusual make: at sea and on the ice."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, rounds


@healthy(0.3)
def distances_rowed_over_ever_longer_legs(folder):
    """A curriculum: the legs grow from 3 to 15, and the loss rises each time they do."""
    seeded(11167)
    net = nn.ModuleDict({"read": nn.GRU(2, 32, batch_first=True), "head": nn.Linear(32, 1)})
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)

    def legs(rows, length):
        turn = torch.rand(rows, length) * 6.2832
        leg = torch.stack([turn.cos(), turn.sin()], 2) / 2
        return leg, leg.sum(1).norm(dim=1, keepdim=True)

    def loss_on(leg, far):
        return F.mse_loss(net["head"](net["read"](leg)[1][0]), far)

    test = legs(512, 15)
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, lambda step: loss_on(*legs(64, 3 + 3 * (step // 140))), 700, score=score)


@healthy(0.3)
def one_berg_in_fifty_that_is_about_to_roll(folder):
    """One row of fifty is positive and weighs as much as all others; the score is the mean error of both classes."""
    seeded(11168)
    net = dense(8, 48, 48, 1)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 100, eta_min=1e-5)
    way = torch.randn(8, 2) / 8**0.5

    def bergs(rows):
        x = torch.randn(rows, 8)
        return x, ((x @ way).square().sum(1, keepdim=True) > 7.0).float()

    x, y = bergs(8000)
    weight = (1 - y).sum() / y.sum()
    draw = rounds(128, x, y)

    def loss_of(step):
        x, y = draw()
        return F.binary_cross_entropy_with_logits(net(x), y, pos_weight=weight)

    tx, ty = bergs(6000)

    def wrong():
        said = (net(tx) > 0).float()
        return ((said != ty)[ty == 1].float().mean() + (said != ty)[ty == 0].float().mean()) / 2

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, wrong), schedule=schedule)


@healthy(0.5)
def warmth_of_a_floe_from_its_equation(folder):
    """Heat in a slab, its ends held at 0: no data but the first profile; second derivatives in the loss."""
    seeded(11169)
    net = dense(2, 32, 32, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def heat(x, t):
        return net(torch.cat([x, t], 1)) * 4 * x * (1 - x)

    def loss_of(step):
        x, t = torch.rand(128, 1, requires_grad=True), torch.rand(128, 1, requires_grad=True)
        u = heat(x, t)
        u_x, u_t = torch.autograd.grad(u.sum(), [x, t], create_graph=True)
        (u_xx,) = torch.autograd.grad(u_x.sum(), x, create_graph=True)
        begin = torch.rand(64, 1)
        inside = (u_t - 0.1 * u_xx).square().mean()
        first = (heat(begin, torch.zeros(64, 1)) - (math.pi * begin).sin()).square().mean()
        return inside + 10 * first, {"residual": inside.detach(), "initial": first.detach()}

    x, t = torch.rand(1000, 1), torch.rand(1000, 1)
    true = (math.pi * x).sin() * (-0.1 * math.pi**2 * t).exp()
    return fit(folder, net, optimizer, loss_of, 700, score=held_out(net, lambda: (heat(x, t) - true).abs().mean()))


class Coupling(nn.Module):
    """One half of the numbers shifts and stretches the other."""

    def __init__(self, turned):
        super().__init__()
        self.turned, self.net = turned, dense(1, 48, 48, 2, act=nn.Tanh)

    def forward(self, x):
        a, b = (x[:, 1:], x[:, :1]) if self.turned else (x[:, :1], x[:, 1:])
        stretch, shift = self.net(a).chunk(2, 1)
        stretch = 2 * (stretch / 2).tanh()
        b = b * stretch.exp() + shift
        return torch.cat([b, a] if self.turned else [a, b], 1), stretch[:, 0]


@healthy(0.5)
def where_the_krill_swarm_by_a_flow_of_couplings(folder):
    """Minus the logarithm of a density: it falls below 0, since the swarm is narrow."""
    seeded(11170)
    net = nn.ModuleList(Coupling(i % 2 == 1) for i in range(6))
    optimizer = torch.optim.Adamax(net.parameters(), 4e-3)

    def krill(rows):
        x = 0.3 * torch.randn(rows, 1)
        return torch.cat([x, 0.3 * (5 * x).sin() + 0.02 * torch.randn(rows, 1)], 1)

    def loss_on(x):
        total = 0
        for part in net:
            x, stretch = part(x)
            total = total + stretch
        return (0.5 * x.square().sum(1) + math.log(2 * math.pi) - total).mean()

    test = krill(1000)
    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, lambda step: loss_on(krill(128)), 600, score=score)
