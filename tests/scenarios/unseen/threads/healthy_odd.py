"""Trainings that go well though their make is odd: energies, flows, fixed points, learning to learn, local losses."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, tend


def cosine(optimizer, steps):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)


# ------------------------------------------------------------------------------------------------- densities, energies


def roasts(rows):
    """Standardised colour, loss of weight, minutes to the first crack and final heat of light and dark roasts."""
    dark = torch.randint(2, (rows, 1)).float() * 2 - 1
    spread = torch.randn(rows, 4) @ torch.tensor(
        [[0.3, 0.1, 0.0, 0.0], [0.0, 0.3, 0.1, 0.0], [0.0, 0.0, 0.4, 0.1], [0.1, 0.0, 0.0, 0.3]]
    )
    return dark * torch.tensor([0.9, 0.8, 0.6, 0.9]) + spread


@healthy()
def roast_of_coffee(folder):
    seeded(2440)
    slope_of = dense(4, 64, 64, 4, act=nn.SiLU)
    kept = roasts(512)

    def sliced(x):
        """Hyvarinen's objective along random directions: it has no lower bound at zero."""
        x = x.clone().requires_grad_()
        way = torch.randn_like(x)
        slope = slope_of(x)
        bend = torch.autograd.grad((slope * way).sum(), x, create_graph=True)[0]
        return ((bend * way).sum(1) + 0.5 * slope.square().sum(1)).mean()

    optimizer = torch.optim.Adam(slope_of.parameters(), 2e-3)
    return fit(
        folder,
        slope_of,
        optimizer,
        lambda step: sliced(roasts(128)),
        500,
        score=lambda: sum(float(sliced(kept).detach()) for _ in range(8)) / 8,
        schedule=cosine(optimizer, 500),
    )


class Boltzmann(nn.Module):
    """A restricted Boltzmann machine of binary units."""

    def __init__(self, seen, hidden):
        super().__init__()
        self.weight = nn.Parameter(0.05 * torch.randn(seen, hidden))
        self.seen_bias, self.hidden_bias = nn.Parameter(torch.zeros(seen)), nn.Parameter(torch.zeros(hidden))

    def forward(self, seen):
        return -seen @ self.seen_bias - F.softplus(seen @ self.weight + self.hidden_bias).sum(1)

    @torch.no_grad()
    def gibbs(self, seen):
        hidden = (seen @ self.weight + self.hidden_bias).sigmoid().bernoulli()
        return (hidden @ self.weight.T + self.seen_bias).sigmoid().bernoulli()

    @torch.no_grad()
    def surprise(self, seen):
        """Minus the log-likelihood of each unit given all others, summed over the units."""
        total = 0.0
        for unit in range(seen.shape[1]):
            flipped = seen.clone()
            flipped[:, unit] = 1 - flipped[:, unit]
            total += float(F.softplus(self(seen) - self(flipped)).mean())
        return total


@healthy()
def picks_of_earthquakes(folder):
    seeded(2441)
    stations = torch.cartesian_prod(torch.arange(6.0), torch.arange(6.0))

    def picked(rows):
        """Which of the stations on a grid felt a shock of some place and reach."""
        place, reach = 5 * torch.rand(rows, 1, 2), 1 + 2 * torch.rand(rows, 1)
        return ((stations - place).norm(dim=2) < reach).float()

    net, kept = Boltzmann(36, 32), picked(512)
    chains = picked(64)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.5)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.1, 900)

    def loss_of(step):
        nonlocal chains
        for _ in range(3):
            chains = net.gibbs(chains)
        real, dreamt = net(picked(64)).mean(), net(chains).mean()
        return real - dreamt, {"energy of data": real.detach(), "energy of chains": dreamt.detach()}

    return fit(folder, net, optimizer, loss_of, 900, score=lambda: net.surprise(kept), schedule=schedule)


class Coupling(nn.Module):
    """Half of the numbers is moved and scaled by what the other half says (RealNVP)."""

    def __init__(self, mask):
        super().__init__()
        self.register_buffer("mask", mask)
        self.inner = dense(4, 48, 48, 8, act=nn.SiLU)
        nn.init.zeros_(self.inner[-1].weight)
        nn.init.zeros_(self.inner[-1].bias)

    def forward(self, x):
        scale, shift = self.inner(x * self.mask).chunk(2, 1)
        scale = 2 * (scale / 2).tanh() * (1 - self.mask)
        return x * scale.exp() + shift * (1 - self.mask), scale.sum(1)


def calls(rows):
    """Hour, floor of the call, floor wanted and wait, in shares of a day, of the house and of five minutes."""
    evening = torch.rand(rows) < 0.5
    hour = torch.where(evening, 0.72, 0.34) + 0.03 * torch.randn(rows)
    floor = torch.where(evening, 0.05 * torch.randn(rows).abs(), torch.rand(rows))
    wanted = torch.where(evening, torch.rand(rows), 0.05 * torch.randn(rows).abs())
    wait = 0.1 + 0.4 * (floor - wanted).abs() + 0.03 * torch.randn(rows)
    return torch.stack([hour, floor, wanted, wait], 1)


@healthy(gain=1.0)
def calls_of_a_lift(folder):
    seeded(2442)
    even = torch.tensor([1.0, 0.0, 1.0, 0.0])
    net = nn.ModuleList(Coupling(even if i % 2 else 1 - even) for i in range(6))
    kept = calls(1024)

    def surprise(x):
        volume = 0.0
        for layer in net:
            x, grown = layer(x)
            volume = volume + grown
        return (0.5 * x.square().sum(1) + 2 * math.log(2 * math.pi) - volume).mean()

    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, 1, 100)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine(optimizer, 500)], [100])

    def score():
        with torch.no_grad():
            return float(surprise(kept))

    return fit(
        folder,
        net,
        optimizer,
        lambda step: surprise(calls(128)),
        600,
        score=score,
        before_step=clipped(net, 10.0),
        schedule=schedule,
    )


# -------------------------------------------------------------------------------------------------------- fixed points


class Equilibrium(nn.Module):
    """A layer that is applied until it rests; the gradient is solved for at the rest itself."""

    def __init__(self, size, width):
        super().__init__()
        self.within = spectral_norm(nn.Linear(width, width, bias=False))
        self.into, self.width = nn.Linear(size, width), width

    def once(self, rest, x):
        return torch.tanh(0.9 * self.within(rest) + x)

    @staticmethod
    def settle(move, start, rounds=40):
        for _ in range(rounds):
            moved = move(start)
            if float((moved - start).norm()) < 1e-4 * (1e-6 + float(moved.norm())):
                return moved
            start = moved
        return start

    def forward(self, x):
        x = self.into(x)
        with torch.no_grad():
            rest = self.settle(lambda z: self.once(z, x), x.new_zeros(len(x), self.width))
        out = self.once(rest, x)
        if out.requires_grad:
            at = out.detach().requires_grad_()
            ahead = self.once(at, x.detach())

            def solve(slope):
                back = lambda s: torch.autograd.grad(ahead, at, s, retain_graph=True)[0] + slope  # noqa: E731
                return self.settle(back, slope)

            out.register_hook(solve)
        return out


def swings(rows):
    """A trolley's eight accelerations with the cable's length; the load's angle and its rate when it halts."""
    push, length = torch.randn(rows, 8), 0.5 + torch.rand(rows, 1)
    angle, rate = torch.zeros(rows, 1), torch.zeros(rows, 1)
    for part in range(8):
        for _ in range(5):
            rate = rate - 0.1 * ((2 * angle.sin() + 0.5 * push[:, part : part + 1] * angle.cos()) / length + 0.2 * rate)
            angle = angle + 0.1 * rate
    return torch.cat([push, 4 * (length - 1)], 1), torch.cat([angle, rate], 1)


@healthy()
def sway_of_a_crane(folder):
    seeded(2443)
    net = nn.Sequential(Equilibrium(9, 48), nn.Linear(48, 2))
    x_kept, y_kept = swings(512)
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)

    def loss_of(step):
        x, y = swings(64)
        return F.mse_loss(net(x), y)

    def score():
        with torch.no_grad():
            return float(F.mse_loss(net(x_kept), y_kept))

    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=cosine(optimizer, 400))


# ------------------------------------------------------------------------------------------ learning by other gradients


@healthy()
def pests_of_an_orchard(folder):
    seeded(2444)
    net = dense(1, 32, 32, 1, act=nn.Tanh)

    def orchard():
        """Ten traps to learn from and ten to foresee: moths by the warmth of the week, another peak in each orchard."""
        peak, at = 1 + 2 * torch.rand(1), 3 * torch.rand(1) - 1.5
        warmth = 4 * torch.rand(20, 1) - 2
        return warmth, peak * (-2 * (warmth - at).square()).exp()

    def foreseen(warmth, moths, rate=0.1, rounds=2):
        weights = dict(net.named_parameters())
        for _ in range(rounds):
            loss = F.mse_loss(functional_call(net, weights, warmth[:10]), moths[:10])
            slopes = torch.autograd.grad(loss, weights.values(), create_graph=True)
            weights = {name: w - rate * slope for (name, w), slope in zip(weights.items(), slopes, strict=True)}
        return F.mse_loss(functional_call(net, weights, warmth[10:]), moths[10:])

    kept = [orchard() for _ in range(32)]
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    return fit(
        folder,
        net,
        optimizer,
        lambda step: torch.stack([foreseen(*orchard()) for _ in range(4)]).mean(),
        320,
        score=lambda: sum(float(foreseen(*one).detach()) for one in kept) / len(kept),
        before_step=clipped(net, 10.0),
        schedule=cosine(optimizer, 320),
    )


@healthy()
def rings_of_trees(folder):
    seeded(2445)
    net, pairs, reach = dense(6, 16, 3, act=nn.Tanh), 64, 0.1
    optimizer = torch.optim.Adam(net.parameters(), 0.03)

    def years(rows):
        """Ring widths of six trees, and whether the year was dry, fair or wet."""
        rain = torch.randn(rows)
        width = (rain[:, None] * torch.linspace(0.5, 1.5, 6)).tanh() + 0.2 * torch.randn(rows, 6)
        return width, torch.bucketize(rain, torch.tensor([-0.45, 0.45]))

    kept = years(1024)

    def missed(weights, x, y):
        return (functional_call(net, weights, x).argmax(1) != y).float().mean()

    @torch.no_grad()
    def one(step):
        x, y = years(256)
        weights = dict(net.named_parameters())
        noise = {name: torch.randn(pairs, *w.shape) for name, w in weights.items()}
        crowd = {name: torch.cat([w + reach * noise[name], w - reach * noise[name]]) for name, w in weights.items()}
        cost = vmap(lambda some: missed(some, x, y))(crowd)
        lean = (cost[:pairs] - cost[pairs:]) / (2 * reach * pairs)
        for name, w in weights.items():
            w.grad = torch.tensordot(lean, noise[name], 1)
        optimizer.step()
        return {"loss": cost.mean(), "best": cost.min()}

    return tend(folder, net, optimizer, one, 300, lambda: missed(dict(net.named_parameters()), *kept))
