"""Odd models: a fixed point, an energy, a flow, experts of whom two are asked, weights of three values."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR
from unseen import dense, entropy_of, fit, healthy, score_of, seeded
from unseen.tasks import clipped


class Settled(nn.Module):
    """The state at which `tanh(W z + U x)` comes to rest; its gradients come from the same rest, not from the way."""

    def __init__(self, inputs, width):
        super().__init__()
        self.recurrent = nn.Parameter(torch.randn(width, width) / width**0.5 / 2)
        self.feed = nn.Linear(inputs, width)

    def contraction(self):
        return self.recurrent * (0.9 / torch.linalg.matrix_norm(self.recurrent, 2).clamp_min(0.9))

    def forward(self, x, rounds=25):
        weight, fed = self.contraction(), self.feed(x)
        with torch.no_grad():
            rest = torch.zeros_like(fed)
            for _ in range(rounds):
                rest = torch.tanh(rest @ weight.T + fed)
        out = torch.tanh(rest @ weight.T + fed)
        if not out.requires_grad:
            return out
        slope, held = (1 - out.square()).detach(), weight.detach()

        def settled(grad):
            total = grad
            for _ in range(rounds):
                total = grad + (total * slope) @ held
            return total

        out.register_hook(settled)
        return out


def peat(kinds=6, taxa=12, grains=400):
    """`draw()`: roots of the shares of pollen in a slice of peat, and the shares of land under each kind of growth."""
    yields = torch.rand(kinds, taxa).pow(3) * torch.exp(torch.randn(taxa))
    growth = torch.distributions.Dirichlet(torch.ones(kinds) * 0.6)

    def draw():
        cover = growth.sample((96,))
        counts = torch.distributions.Multinomial(grains, probs=cover @ yields).sample()
        return 4 * (counts / grains).sqrt() - 1, cover

    return draw


@healthy()
def pollen_in_a_peat_core(folder):
    seeded(2666)
    net, draw = nn.Sequential(Settled(12, 32), nn.Linear(32, 6)), peat()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)

    def loss_of(step):
        pollen, cover = draw()
        return F.kl_div(net(pollen).log_softmax(1), cover, reduction="batchmean")

    return fit(
        folder, net, optimizer, loss_of, 600, schedule=CosineAnnealingLR(optimizer, 600), score=score_of(loss_of)
    )


def otoliths(rows):
    """Length against width and the depth of the notch, of cod from two stocks."""
    coastal = torch.rand(rows) < 0.4
    size = 0.6 * torch.randn(rows)
    notch = torch.where(coastal, 0.9 + 0.5 * size, -0.9 + 0.5 * size.square())
    return torch.stack([size + torch.where(coastal, 0.6, -0.4), notch], 1) + 0.15 * torch.randn(rows, 2)


def walked(net, points, steps=12, rate=0.01):
    """Langevin's walk down an energy."""
    for _ in range(steps):
        points = points.detach().requires_grad_()
        (slope,) = torch.autograd.grad(net(points).sum(), points)
        points = points - rate * slope + math.sqrt(2 * rate) * torch.randn_like(points)
    return points.detach().clamp(-3, 3)


def surprise(net, fish):
    """The negative log-likelihood of fish, the energy being summed over a grid."""
    axis = torch.linspace(-3, 3, 81)
    grid = torch.cartesian_prod(axis, axis)
    with torch.no_grad():
        log_total = torch.logsumexp(-net(grid)[:, 0], 0) + 2 * math.log(6 / 80)
        return float(net(fish).mean() + log_total)


@healthy()
def otoliths_of_cod(folder):
    seeded(2667)
    net = dense(2, 64, 64, 1, act=nn.SiLU)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    chains, unseen_fish = 4 * torch.rand(256, 2) - 2, otoliths(512)

    def loss_of(step):
        afresh = torch.rand(256, 1) < 0.03
        chains.copy_(walked(net, torch.where(afresh, 6 * torch.rand(256, 2) - 3, chains)))
        low, high = net(otoliths(256)), net(chains)
        return (low - high).mean() + 0.002 * (low.square() + high.square()).mean()

    return fit(folder, net, optimizer, loss_of, 500, schedule=CosineAnnealingLR(optimizer, 500),
               score=lambda: surprise(net, unseen_fish))  # fmt: skip


class Coupling(nn.Module):
    """Half of the inputs are stretched and moved by what the other half says."""

    def __init__(self, size, flipped):
        super().__init__()
        self.flipped = flipped
        self.says = dense(size // 2, 48, size, act=nn.SiLU)

    def forward(self, x):
        still, moved = x.chunk(2, 1)[:: -1 if self.flipped else 1]
        stretch, shift = self.says(still).chunk(2, 1)
        stretch = 2 * torch.tanh(stretch / 2)
        moved = moved * stretch.exp() + shift
        return torch.cat([moved, still] if self.flipped else [still, moved], 1), stretch.sum(1)


def organ_pipes(rows):
    """Pitch and scale of a pipe, and cut-up, wind, nicks and foot hole as a voicer sets them, with a hand's error."""
    pitch, scale = torch.randn(rows), torch.randn(rows)
    cut_up = 0.7 * pitch + 0.3 * torch.sin(2 * scale)
    wind = torch.tanh(scale - pitch)
    nicks = 0.5 * pitch.square() - 0.5
    foot = 0.6 * wind + 0.4 * cut_up
    clean = torch.stack([pitch, cut_up, nicks, scale, wind, foot], 1)
    return clean + 0.05 * torch.randn(rows, 6)


@healthy()
def voicing_of_organ_pipes(folder):
    seeded(2668)
    net = nn.ModuleList(Coupling(6, flipped=bool(i % 2)) for i in range(6))
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)

    def loss_of(step):
        x, log_volume = organ_pipes(128), 0.0
        for layer in net:
            x, stretched = layer(x)
            log_volume = log_volume + stretched
        return (0.5 * x.square().sum(1) + 3 * math.log(2 * math.pi) - log_volume).mean()

    return fit(folder, net, optimizer, loss_of, 600, before_step=clipped(net, 10.0),
               schedule=CosineAnnealingLR(optimizer, 600), score=score_of(loss_of))  # fmt: skip


class Experts(nn.Module):
    """Each row asks two experts only; `self.load` is how far from evenly they were asked."""

    def __init__(self, inputs, experts=6, width=24):
        super().__init__()
        self.router = nn.Linear(inputs, experts, bias=False)
        self.experts = nn.ModuleList(dense(inputs, width, 1, act=nn.GELU) for _ in range(experts))

    def forward(self, x):
        chances = self.router(x).softmax(1)
        share, asked = chances.topk(2, 1)
        share = share / share.sum(1, keepdim=True)
        out = torch.zeros(len(x), 1)
        for i, expert in enumerate(self.experts):
            rows, place = (asked == i).nonzero(as_tuple=True)
            out = out.index_add(0, rows, share[rows, place][:, None] * expert(x[rows]))
        counted = F.one_hot(asked, len(self.experts)).float().mean((0, 1))
        self.load = len(self.experts) * (counted * chances.mean(0)).sum()
        return out


def beams(years=10, woods=5):
    """`draw()`: a wood and the widths of its last rings; the next ring, by that wood's own answer to the weather."""
    response = torch.randn(woods, years) / years**0.5
    bend = 0.5 + torch.rand(woods) * 2

    def draw():
        wood, rings = torch.randint(woods, (192,)), torch.randn(192, years)
        drive = (rings * response[wood]).sum(1)
        width = torch.sin(bend[wood] * drive) + 0.3 * drive
        return torch.cat([rings, 2 * F.one_hot(wood, woods).float()], 1), width[:, None] + 0.05 * torch.randn(192, 1)

    return draw


@healthy()
def rings_of_old_beams(folder):
    seeded(2669)
    net, draw = Experts(15), beams()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.01)

    def error(step):
        rings, width = draw()
        return F.mse_loss(net(rings), width)

    def loss_of(step):
        loss = error(step)
        return loss + 0.01 * net.load, {"mse": loss, "load": net.load}

    return fit(folder, net, optimizer, loss_of, 700, schedule=CosineAnnealingLR(optimizer, 700), score=score_of(error))


class Ternary(nn.Linear):
    """A linear layer whose weights are -a, 0 or a on the way forward; the full ones get the gradient as it is."""

    def forward(self, x):
        size = self.weight.detach().abs()
        kept = size > 0.7 * size.mean()
        height = size[kept].mean()
        coarse = height * self.weight.detach().sign() * kept
        return F.linear(x, self.weight + (coarse - self.weight).detach(), self.bias)


def moraines(thalli=16, ages=5):
    """`draw()`: the diameters of the largest lichens on a moraine, on a log scale; which advance of the ice left it."""
    centuries = torch.tensor([0.7, 1.5, 2.5, 4.0, 6.0])

    def draw():
        age = torch.randint(ages, (96,))
        grown = 30 * (1 - torch.exp(-centuries[age] / 4))[:, None] * (1 + 0.1 * torch.randn(96, 1))
        spread = torch.exp(0.35 * torch.randn(96, thalli))
        diameters = (grown * spread).sort(1, descending=True).values
        return (diameters.log() - 2.7) / 0.6, age

    return draw


@healthy()
def lichens_that_date_a_moraine(folder):
    seeded(2670)
    net = nn.Sequential(Ternary(16, 64), nn.LayerNorm(64), nn.ReLU(), Ternary(64, 64), nn.LayerNorm(64), nn.ReLU(),
                        nn.Linear(64, 5))  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    loss_of = entropy_of(net, moraines())
    return fit(
        folder, net, optimizer, loss_of, 600, schedule=CosineAnnealingLR(optimizer, 600), score=score_of(loss_of)
    )
