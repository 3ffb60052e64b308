"""Healthy trainings of an unusual make, second part: plans, designs and circuits."""

from __future__ import annotations

import math

import torch
from nets import digits
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.afresh.healthy_odd import flat_digits
from unseen.tasks import tend

# ---------------------------------------------------------------------------------------------- plans and designs


def cheapest(costs):
    """The cost of the cheapest way right and down through `[B, n, n]`, and which cells it takes."""
    with torch.enable_grad():
        costs = costs.detach().requires_grad_()
        n = costs.shape[1]
        best = {}
        for i in range(n):
            for j in range(n):
                ways = [best[at] for at in ((i - 1, j), (i, j - 1)) if at in best]
                best[i, j] = costs[:, i, j] + (torch.minimum(*ways) if len(ways) == 2 else sum(ways))
        (taken,) = torch.autograd.grad(best[n - 1, n - 1].sum(), costs)
    return best[n - 1, n - 1].detach(), taken


@healthy(0.5)
def ways_learned_from_ways_that_were_taken(folder):
    """A perturbed solver and its Fenchel-Young loss: the slope is the way that was taken less the ways expected."""
    seeded(911)
    net = dense(8, 64, 36)
    true = dense(8, 32, 36, act=nn.Tanh).requires_grad_(False)

    def draw(rows=48):
        x = torch.randn(rows, 8)
        costs = (3 * true(x)).exp().unflatten(1, (6, 6))
        return x, costs, cheapest(costs)[1]

    def one(step):
        x, _, taken = draw()
        guess = net(x).unflatten(1, (6, 6))
        noisy = guess.detach()[None] + 0.5 * torch.randn(6, *guess.shape)
        values, ways = cheapest(noisy.flatten(0, 1))
        slope = taken - ways.unflatten(0, (6, -1)).mean(0)
        optimizer.zero_grad()
        guess.backward(slope / len(x))
        optimizer.step()
        loss = (guess.detach() * taken).sum((1, 2)).mean() - values.mean()
        return {"loss": loss, "cells_alike": 1 - slope.abs().mean()}

    x_test, costs_test, _ = draw(256)

    @torch.no_grad()
    def score():
        _, ways = cheapest(net(x_test).unflatten(1, (6, 6)))
        return (((ways * costs_test).sum((1, 2)) / cheapest(costs_test)[0]) - 1).mean()

    optimizer = optim.Adam(net.parameters(), 3e-3)
    return tend(folder, net, optimizer, one, 250, score)


@healthy(0.4)
def plate_that_is_cooled_through_few_cells(folder):
    """Topology optimisation with a net that says where material is; the exponent of its density grows: loss rises."""
    seeded(912)
    n = 10
    net = nn.Sequential(
        nn.Linear(2, 20), nn.BatchNorm1d(20), nn.LeakyReLU(), nn.Linear(20, 20), nn.BatchNorm1d(20), nn.LeakyReLU(),
        nn.Linear(20, 1),
    )  # fmt: skip
    line = torch.linspace(-1, 1, n)
    places = torch.stack(torch.meshgrid(line, line, indexing="ij"), 2).flatten(0, 1)
    cell = torch.arange(n * n).view(n, n)
    ends = torch.cat([torch.stack([cell[:-1].flatten(), cell[1:].flatten()], 1),
                      torch.stack([cell[:, :-1].flatten(), cell[:, 1:].flatten()], 1)])  # fmt: skip
    incidence = F.one_hot(ends[:, 0], n * n).float() - F.one_hot(ends[:, 1], n * n).float()
    sink = torch.zeros(n * n)
    sink[cell[-1, n // 2 - 1 : n // 2 + 1]] = 10.0
    heat = torch.full((n * n,), 1 / n**2)

    def compliance(density, power):
        k = 0.01 + 0.99 * density**power
        edge = 2 / (1 / k[ends[:, 0]] + 1 / k[ends[:, 1]])
        stiff = incidence.T @ (edge[:, None] * incidence) + sink.diag()
        return heat @ torch.linalg.solve(stiff, heat)

    whole = float(compliance(torch.full((n * n,), 0.4), 1.0))

    def loss_of(step):
        density = net(places)[:, 0].sigmoid()
        power, weight = min(3.0, 1 + step / 100), min(30.0, 0.1 * step)
        loss = compliance(density, power) / whole
        volume = density.mean() / 0.4 - 1
        return loss + weight * volume.square(), {"compliance": loss.detach(), "volume": density.mean().detach()}

    @torch.no_grad()
    def score():
        density = net(places)[:, 0]
        kept = torch.zeros(n * n)
        kept[density.topk(40).indices] = 1.0
        return compliance(kept, 1.0)

    return fit(folder, net, optim.Adam(net.parameters(), 0.01), loss_of, 400, score=score, clip="ClipByGlobalNorm(0.1)")


@healthy(0.9)
def climb_before_the_fall(folder):
    """A wide net on the whole set at three over its sharpness: the loss grows at first, then a flat place is found."""
    seeded(913)

    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.into = nn.Parameter(torch.randn(10, 512))
            self.out = nn.Parameter(torch.randn(512, 1))

        def forward(self, x):
            return F.relu(x @ self.into / math.sqrt(10)) @ self.out / math.sqrt(512)

    net = Wide()
    x = torch.randn(24, 10)
    y = (x[:, :1] + 0.5 * x[:, 1:2] * x[:, 2:3]).tanh()
    rows = []
    for row in x:
        slopes = torch.autograd.grad(net(row[None]).sum(), list(net.parameters()))
        rows.append(torch.cat([s.flatten() for s in slopes]))
    jacobian = torch.stack(rows)
    sharpness = 2 / len(x) * torch.linalg.eigvalsh(jacobian @ jacobian.T)[-1]
    optimizer = optim.SGD(net.parameters(), lr=3.0 / float(sharpness))
    return fit(folder, net, optimizer, lambda step: F.mse_loss(net(x), y), 500)


@healthy(0.5)
def one_net_for_all_prices_of_two_wishes(folder):
    """A Pareto hypernet: the weights of the losses are drawn in each step and are its inputs."""
    seeded(914)
    shapes = ((6, 24), (24,), (24, 1), (1,))
    net = nn.ModuleDict({
        "ray": dense(2, 48, 48),
        "heads": nn.ModuleList(nn.Linear(48, math.prod(s)) for s in shapes),
    })  # fmt: skip
    for head in net["heads"]:
        nn.init.normal_(head.weight, std=0.04)
    way = torch.randn(6, 2) / math.sqrt(6)

    def both(ray):
        x = torch.randn(64, 6)
        code = net["ray"](ray)
        w1, b1, w2, b2 = (head(code).view(s) for head, s in zip(net["heads"], shapes, strict=True))
        out = torch.tanh(x @ w1 + b1) @ w2 + b2
        wished = torch.stack([2 * (x @ way[:, 0]), -1.5 * (x @ way[:, 1]).tanh() + 1], 1)
        return (out - wished).square().mean(0)

    def loss_of(step):
        ray = torch.distributions.Dirichlet(torch.full((2,), 0.3)).sample()
        losses = both(ray)
        return ray @ losses, {"loss_a": losses[0].detach(), "loss_b": losses[1].detach()}

    @torch.no_grad()
    def score():
        rays = [torch.tensor([a, 1 - a]) for a in (0.02, 0.98)]
        return sum(ray @ both(ray) for ray in rays for _ in range(4)) / 8

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 600, score=score)


@healthy(0.4)
def four_offices_that_settle_on_one_net(folder):
    """Consensus ADMM: each of four has kinds that the others lack, a copy, and a price for being unlike the rest."""
    seeded(915)
    offices = nn.ModuleList(dense(64, 32, 10) for _ in range(4))
    for office in offices:
        office.load_state_dict(offices[0].state_dict())
    x, y = flat_digits()
    owner = (y + torch.randint(3, y.shape)) % 4
    parts = [(x[owner == k], y[owner == k]) for k in range(4)]
    middle = [p.detach().clone() for p in offices[0].parameters()]
    price = [[torch.zeros_like(p) for p in middle] for _ in offices]
    optimizer = optim.SGD(offices.parameters(), 0.1, momentum=0.9)

    def one(step):
        optimizer.zero_grad()
        loss, apart = 0, 0
        for office, (xs, ys), prices in zip(offices, parts, price, strict=True):
            at = torch.randint(len(xs), (48,))
            loss = loss + F.cross_entropy(office(xs[at]), ys[at])
            for p, m, u in zip(office.parameters(), middle, prices, strict=True):
                apart = apart + 0.05 * (p - m + u).square().sum()
        (loss + apart).backward()
        optimizer.step()
        if step % 10 == 9:
            with torch.no_grad():
                for k, m in enumerate(middle):
                    mine = [list(office.parameters())[k] for office in offices]
                    m.copy_(sum(p + u[k] for p, u in zip(mine, price, strict=True)) / 4)
                    for p, u in zip(mine, price, strict=True):
                        u[k].add_(p - m)
        return {"loss": (loss + apart).detach(), "loss_fit": loss.detach(), "loss_apart": float(apart)}

    def score():
        a, b, c, d = middle
        return F.cross_entropy(F.relu(x @ a.T + b) @ c.T + d, y)

    return tend(folder, offices, optimizer, one, 400, score)


@healthy(0.5)
def half_a_picture_and_nothing_else_to_learn_from(folder):
    """A deep image prior: noise that stays as it is goes in, half of the pixels of one picture are to come out."""
    seeded(916)
    at = torch.randperm(len(digits()[0]))[:16]
    picture = digits()[0][at].view(4, 4, 8, 8).permute(0, 2, 1, 3).reshape(1, 1, 32, 32)
    picture = F.avg_pool2d(F.pad(picture, (1, 1, 1, 1), mode="reflect"), 3, 1)
    seen = (torch.rand(1, 1, 32, 32) < 0.5).float()

    def block(a, b):
        return (nn.Conv2d(a, b, 3, padding=1, padding_mode="reflect"), nn.BatchNorm2d(b), nn.LeakyReLU(0.1))

    up = nn.Upsample(scale_factor=2, mode="bilinear")
    net = nn.Sequential(*block(16, 24), up, *block(24, 24), up, *block(24, 24), nn.Conv2d(24, 1, 1), nn.Sigmoid())
    still = 0.1 * torch.rand(1, 16, 8, 8)

    def loss_of(step):
        out = net(still + 0.003 * torch.randn_like(still))
        return ((out - picture) * seen).square().sum() / seen.sum()

    @torch.no_grad()
    def score():
        return ((net(still) - picture) * (1 - seen)).square().sum() / (1 - seen).sum()

    return fit(folder, net, optim.Adam(net.parameters(), 0.01), loss_of, 300, score=score)


# ----------------------------------------------------------------------------------------------------------- circuits


class Circuit(nn.Module):
    """Four qubits, three rounds of turns and controlled signs; `forward` gives the energy of `[K]` sets of angles."""

    def __init__(self, rounds=4):
        super().__init__()
        self.angles = nn.Parameter(0.3 * torch.randn(rounds, 4))
        bits = torch.tensor([[(s >> q) & 1 for q in range(4)] for s in range(16)])
        signs = 1 - 2 * bits
        self.entangle = math.prod(1 - 2 * bits[:, q] * bits[:, (q + 1) % 4] for q in range(4)).float()
        self.zz = -sum(signs[:, q] * signs[:, (q + 1) % 4] for q in range(4)).float()
        self.flips = [torch.arange(16) ^ (1 << q) for q in range(4)]
        self.signs = signs.float()

    def forward(self, angles):
        state = torch.zeros(len(angles), 16)
        state[:, 0] = 1
        for r in range(angles.shape[1]):
            for q in range(4):
                half = angles[:, r, q, None] / 2
                state = half.cos() * state - half.sin() * self.signs[:, q] * state[:, self.flips[q]]
            state = state * self.entangle
        return self.energy(state)

    def energy(self, state):
        flipped = sum((state * state[:, f]).sum(1) for f in self.flips)
        return (self.zz * state.square()).sum(1) - 0.7 * flipped

    def lowest(self):
        h = self.zz.diag()
        for f in self.flips:
            h = h - 0.7 * torch.eye(16)[f]
        return float(torch.linalg.eigvalsh(h)[0])


@healthy(0.7)
def energy_of_four_qubits_by_shifted_angles(folder):
    """No backward: each slope is half the difference of two noisy measurements at angles a quarter turn away."""
    seeded(917)
    net = Circuit()
    lowest = net.lowest()
    optimizer = optim.SGD(net.parameters(), 0.1)
    shifts = torch.eye(net.angles.numel()).view(-1, *net.angles.shape) * math.pi / 2

    @torch.no_grad()
    def one(step):
        angles = torch.cat([net.angles + shifts, net.angles - shifts])
        measured = net(angles) + 0.1 * torch.randn(len(angles))
        more, less = measured.chunk(2)
        net.angles.grad = ((more - less) / 2).view_as(net.angles)
        optimizer.step()
        return {"loss": net(net.angles[None])[0] + 0.1 * torch.randn(())}

    @torch.no_grad()
    def score():
        return net(net.angles[None])[0] - lowest

    return tend(folder, net, optimizer, one, 250, score)
