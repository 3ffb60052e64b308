"""Physics: an operator in the space of frequencies, a wave function by its own samples, a motion by its adjoint."""

from __future__ import annotations

import math

import torch
from torch import nn
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, rounds, tend

# ------------------------------------------------------------ a Fourier neural operator


@torch.no_grad()
def jams(n, points=64, viscosity=0.04, pace=0.004, steps=125):
    """Densities of traffic on a ring, at first and later, by Burgers' equation: `[n, points]` both."""
    place = torch.arange(points) / points
    waves = torch.arange(1, 5)
    size = torch.randn(n, 4, 2) / waves[:, None]
    angle = 2 * math.pi * waves[:, None] * place
    u = 0.5 * (size[..., :1] * angle.sin() + size[..., 1:] * angle.cos()).sum(1)
    way = 2 * math.pi * torch.arange(points // 2 + 1)
    keep = (way < 2 * math.pi * points / 3).float()
    fade = torch.exp(-viscosity * way.square() * pace / 4)

    def moved(u_hat):
        u = torch.fft.irfft(u_hat, points)
        return -0.5j * way * torch.fft.rfft(u.square()) * keep / 4

    u_hat = torch.fft.rfft(u)
    for _ in range(steps):
        half = u_hat + pace / 2 * moved(u_hat)
        u_hat = (u_hat + pace * moved(half)) * fade
    return u, torch.fft.irfft(u_hat, points)


class Spectral(nn.Module):
    """A linear map of the lowest frequencies and, beside it, one of each point."""

    def __init__(self, width, modes):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(width, width, modes, dtype=torch.cfloat) / width)
        self.beside = nn.Conv1d(width, width, 1)

    def forward(self, x):
        low = torch.fft.rfft(x)[..., : self.modes]
        mixed = torch.einsum("bim,iom->bom", low, self.weight)
        return torch.fft.irfft(mixed, x.shape[-1]) + self.beside(x)


class Operator(nn.Module):
    def __init__(self, width=20, modes=12, depth=3):
        super().__init__()
        self.lift = nn.Conv1d(3, width, 1)
        self.parts = nn.ModuleList(Spectral(width, modes) for _ in range(depth))
        self.out = nn.Sequential(nn.Conv1d(width, 48, 1), nn.GELU(), nn.Conv1d(48, 1, 1))

    def forward(self, u):
        angle = (2 * math.pi * torch.arange(u.shape[1]) / u.shape[1]).expand_as(u)
        x = self.lift(torch.stack([u, angle.sin(), angle.cos()], 1))
        for i, part in enumerate(self.parts):
            x = part(x) if i == len(self.parts) - 1 else nn.functional.gelu(part(x))
        return self.out(x)[:, 0]


@healthy()
def a_traffic_jam_on_a_ring_road(folder):
    seeded(3248)
    u, later = jams(700)
    net, steps = Operator(), 320
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, weight_decay=1e-5)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    draw = rounds(20, u[:600], later[:600])

    def off(found, true):
        return ((found - true).norm(dim=1) / true.norm(dim=1)).mean()

    def loss_of(step):
        x, y = draw()
        return off(net(x), y)

    def score():
        with torch.no_grad():
            return float(off(net(u[600:]), later[600:]))

    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


# ------------------------------------------------------------ variational Monte Carlo


class Pair(nn.Module):
    """The logarithm of the wave of two electrons in a bowl, the same when they change places."""

    def __init__(self):
        super().__init__()
        self.net = dense(2, 24, 24, 1, act=nn.Tanh)

    def forward(self, x):
        a, b = x[:, :3], x[:, 3:]
        apart, middle = (a - b).norm(dim=1), (a + b).norm(dim=1) / 2
        return self.net(torch.stack([apart, middle], 1) / 2)[:, 0] - x.square().sum(1) / 4


def energies(net, x):
    """The local energy of each pair; the exact ground state has 2 in these units."""
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    bends = [torch.autograd.grad(slope[:, i].sum(), x, retain_graph=True)[0][:, i] for i in range(6)]
    kinetic = -0.5 * (torch.stack(bends, 1) + slope.square()).sum(1)
    return (kinetic + x.square().sum(1) / 8 + 1 / (x[:, :3] - x[:, 3:]).norm(dim=1)).detach()


@torch.no_grad()
def walked(net, x, steps, pace=0.6):
    now = net(x)
    for _ in range(steps):
        there = x + pace * torch.randn_like(x)
        then = net(there)
        goes = torch.rand(len(x)).log() < 2 * (then - now)
        x, now = torch.where(goes[:, None], there, x), torch.where(goes, then, now)
    return x


@healthy()
def two_electrons_in_a_bowl(folder):
    seeded(3249)
    net = Pair()
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1 / (1 + s / 100))
    held = {"x": walked(net, torch.randn(400, 6), 100)}

    def one(step):
        held["x"] = x = walked(net, held["x"], 8)
        local = energies(net, x)
        middle = local.median()
        wide = 5 * (local - middle).abs().mean()
        local = local.clamp(middle - wide, middle + wide)
        loss = 2 * ((local - local.mean()) * net(x)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        return {"loss": local.mean(), "variance": local.var()}

    def score():
        x = walked(net, torch.randn(4000, 6), 100)
        return float(energies(net, x).mean()) - 2

    return tend(folder, net, optimizer, one, 350, score)


# ------------------------------------------------------------ an ordinary differential equation


def onward(field, y, pace):
    """One step of Runge and Kutta."""
    a = field(y)
    b = field(y + pace / 2 * a)
    c = field(y + pace / 2 * b)
    d = field(y + pace * c)
    return y + pace / 6 * (a + 2 * b + 2 * c + d)


class Solved(torch.autograd.Function):
    """All states from the first on; the way back takes up each step anew and keeps no graph between them."""

    @staticmethod
    def forward(ctx, field, pace, steps, y, *params):
        states = [y]
        for _ in range(steps):
            states.append(onward(field, states[-1], pace))
        ctx.field, ctx.pace = field, pace
        ctx.save_for_backward(torch.stack(states), *params)
        return torch.stack(states)

    @staticmethod
    def backward(ctx, slopes):
        states, *params = ctx.saved_tensors
        adjoint, of_params = slopes[-1], [torch.zeros_like(p) for p in params]
        for i in reversed(range(len(states) - 1)):
            with torch.enable_grad():
                y = states[i].detach().requires_grad_()
                after = onward(ctx.field, y, ctx.pace)
            of_y, *parts = torch.autograd.grad(after, [y, *params], adjoint)
            adjoint = of_y + slopes[i]
            of_params = [whole + part for whole, part in zip(of_params, parts, strict=True)]
        return None, None, None, adjoint, *of_params


@healthy()
def a_church_bell_that_swings_to_rest(folder):
    seeded(3250)
    pace, length = 0.25, 8

    def true(y):
        return torch.stack([y[:, 1], -1.5 * y[:, 0].sin() - 0.2 * y[:, 1] * (1 + y[:, 1].abs())], 1)

    @torch.no_grad()
    def swings(n):
        y = torch.randn(n, 2) * torch.tensor([1.2, 0.8])
        states = [y]
        for _ in range(length):
            for _ in range(4):
                y = onward(true, y, pace / 4)
            states.append(y)
        return torch.stack(states)

    net = dense(2, 40, 40, 2, act=nn.Tanh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=8e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.985)

    def loss_of(step):
        seen = swings(64)
        seen = seen + 0.02 * torch.randn_like(seen)
        found = Solved.apply(net, pace, length, seen[0], *net.parameters())
        return (found[1:] - seen[1:]).square().mean()

    def score():
        with torch.no_grad():
            seen = swings(500)
            return float((Solved.apply(net, pace, length, seen[0], *net.parameters()) - seen).square().mean())

    return fit(folder, net, optimizer, loss_of, 180, score=score, before_step=clipped(net, 1.0), schedule=schedule)
