"""Densities, equations, fixed points, weights that are made and weights that may not be negative."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, tend


class Rising(nn.Module):
    """Two layers of summed sigmoids, rising in y, whose weights a net makes out of the conditions."""

    def __init__(self, conditions, parts=8):
        super().__init__()
        self.parts = parts
        self.made = dense(conditions, 48, 48, 6 * parts, act=nn.SiLU)
        with torch.no_grad():
            self.made[-1].weight.mul_(0.3)
            begun = torch.stack([torch.zeros(parts), torch.ones(parts), torch.linspace(-2, 2, parts)])
            self.made[-1].bias.copy_(begun.flatten().repeat(2))

    def forward(self, condition, y):
        """The logarithm of the density of y."""
        made, log = self.made(condition).view(len(y), 2, 3, self.parts), torch.zeros(len(y))
        for layer in range(2):
            share, steep, shift = made[:, layer, 0].softmax(1), F.softplus(made[:, layer, 1]) + 0.1, made[:, layer, 2]
            s = (steep * (y[:, None] - shift)).sigmoid()
            u = 1e-6 + (1 - 2e-6) * (share * s).sum(1)
            log = log + (share * steep * s * (1 - s)).sum(1).clamp(min=1e-12).log() - (u * (1 - u)).log()
            y = u.log() - (1 - u).log()
        return log + F.logsigmoid(y) + F.logsigmoid(-y)


@healthy()
def heights_of_swash_on_a_beach(folder):
    seeded(2989)

    def tide(n):
        wind = torch.randn(n, 3)
        up = torch.rand(n) < (2 * wind[:, 0]).sigmoid()
        height = torch.where(up, 0.8 + 0.4 * wind[:, 1].tanh(), -0.7 + 0.3 * wind[:, 2].sin())
        return wind, height + 0.06 * torch.randn(n)

    net = Rising(3)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)
    fresh = tide(1500)
    return fit(folder, net, optimizer, lambda step: -net(*tide(96)).mean(), 300,
               score=held_out(net, lambda: -net(*fresh).mean()), before_step=clipped(net, 5.0),
               schedule=schedule)  # fmt: skip


class Wall(nn.Module):
    """The warmth of a wall whose faces are held at nought, and how well it conducts."""

    def __init__(self):
        super().__init__()
        self.net = dense(2, 32, 32, 32, 1, act=nn.Tanh)
        self.log_conduct = nn.Parameter(torch.tensor(-1.0))

    def forward(self, place, time):
        x = torch.stack([2 * place - 1, 2 * time - 1], 1)
        return 4 * place * (1 - place) * self.net(x)[:, 0]


@healthy()
def heat_through_a_stone_wall(folder):
    seeded(2990)
    conduct = 0.08

    def true(place, time):
        first = (-conduct * math.pi**2 * time).exp() * (math.pi * place).sin()
        return first + 0.5 * (-4 * conduct * math.pi**2 * time).exp() * (2 * math.pi * place).sin()

    net = Wall()
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.997)
    gauges, hours = torch.rand(60), torch.rand(60)
    readings = true(gauges, hours) + 0.01 * torch.randn(60)

    def one(step):
        place, time = torch.rand(160, requires_grad=True), torch.rand(160, requires_grad=True)
        warm = net(place, time)
        by_place, by_time = torch.autograd.grad(warm.sum(), (place, time), create_graph=True)
        (bend,) = torch.autograd.grad(by_place.sum(), place, create_graph=True)
        equation = (by_time - net.log_conduct.exp() * bend).square().mean()
        begun = torch.rand(80)
        start = F.mse_loss(net(begun, torch.zeros(80)), true(begun, torch.zeros(80)))
        data = F.mse_loss(net(gauges, hours), readings)
        loss = equation + 10 * start + 10 * data
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        return {"loss": loss, "equation": equation, "start": start, "data": data, "conduct": net.log_conduct.exp()}

    place, time = torch.rand(1000), torch.rand(1000)
    return tend(
        folder, net, optimizer, one, 700, held_out(net, lambda: F.mse_loss(net(place, time), true(place, time)))
    )


class Settled(nn.Module):
    """What z = 0.8 tanh(W z + U x) comes to; the slope through it is a fixed point as well."""

    def __init__(self, inputs, width, outputs):
        super().__init__()
        self.again = spectral_norm(nn.Linear(width, width, bias=False))
        self.taken, self.head = nn.Linear(inputs, width), nn.Linear(width, outputs)

    def forward(self, x):
        weight, given = self.again.weight, self.taken(x)
        with torch.no_grad():
            z = torch.zeros_like(given)
            for _ in range(25):
                z = 0.8 * (z @ weight.T + given).tanh()
        z = 0.8 * (z @ weight.T + given).tanh()
        if z.requires_grad:
            before = z.detach().requires_grad_()
            after = 0.8 * (before @ weight.T + given).tanh()

            def through(slope):
                total = slope
                for _ in range(25):
                    total = slope + torch.autograd.grad(after, before, total, retain_graph=True)[0]
                return total

            z.register_hook(through)
        return self.head(z)


@healthy()
def acids_in_a_settled_vat(folder):
    seeded(2991)

    def vats(n):
        """Four acids share one strength of the vat, which is found by halving."""
        poured, base = torch.rand(n, 4), 2 * torch.rand(n, 1)
        strength = torch.tensor([0.3, 1.0, 3.0, 8.0])
        low, high = torch.full((n, 1), -6.0), torch.full((n, 1), 6.0)
        for _ in range(30):
            middle = (low + high) / 2
            loose = (poured * strength / (strength + middle.exp())).sum(1, keepdim=True)
            too_much = middle.exp() + base < loose
            low, high = torch.where(too_much, middle, low), torch.where(too_much, high, middle)
        return 2 * torch.cat([poured, base / 2], 1) - 1, (low + 1) / 2

    net = Settled(5, 40, 1)
    optimizer = torch.optim.RAdam(net.parameters(), lr=4e-3)
    fresh = vats(1000)

    def loss_of(step):
        x, y = vats(64)
        return F.smooth_l1_loss(net(x), y, beta=0.3)

    return fit(folder, net, optimizer, loss_of, 450,
               score=held_out(net, lambda: F.l1_loss(net(fresh[0]), fresh[1])))  # fmt: skip


class Plated(nn.Module):
    """A net that writes the small net of a gauge from what stands on its plate."""

    def __init__(self, plate, hidden=16):
        super().__init__()
        self.sizes = [hidden, hidden, hidden * hidden, hidden, hidden, 1]
        self.hidden, self.written = hidden, dense(plate, 48, 48, sum(self.sizes), act=nn.SiLU)
        with torch.no_grad():
            self.written[-1].weight.mul_(0.1)
            begun = [
                torch.randn(n) * s for n, s in zip(self.sizes, [1, 1, hidden**-0.5, 0, hidden**-0.5, 0], strict=True)
            ]
            self.written[-1].bias.copy_(torch.cat(begun))

    def forward(self, plate, x):
        n = self.hidden
        w1, b1, w2, b2, w3, b3 = self.written(plate).split(self.sizes, 1)
        h = (x[:, :, None] * w1[:, None] + b1[:, None]).tanh()
        h = (h @ w2.view(-1, n, n) + b2[:, None]).tanh()
        return (h @ w3[:, :, None])[..., 0] + b3


@healthy()
def gauges_written_from_their_plates(folder):
    seeded(2992)

    def gauges(n):
        plate = 2 * torch.rand(n, 3) - 1
        x = 4 * torch.rand(n, 20) - 2
        height, pace, shift = (p[:, None] for p in plate.unbind(1))
        return plate, x, (1 + 0.5 * height) * ((1.5 + 0.7 * pace) * x + shift).sin() + 0.05 * torch.randn(n, 20)

    net = Plated(3)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, 500)
    fresh = gauges(400)

    def loss_of(step):
        plate, x, y = gauges(32)
        return F.mse_loss(net(plate, x), y)

    return fit(folder, net, optimizer, loss_of, 500, schedule=schedule, before_step=clipped(net, 1.0),
               score=held_out(net, lambda: F.mse_loss(net(*fresh[:2]), fresh[2])))  # fmt: skip


class Palette(nn.Module):
    def __init__(self, spots, colours, pigments):
        super().__init__()
        self.amounts = nn.Parameter(torch.rand(spots, pigments))
        self.pigments = nn.Parameter(torch.rand(pigments, colours))

    def forward(self):
        return self.amounts @ self.pigments


@healthy()
def pigments_mixed_in_frescoes(folder):
    seeded(2993)
    shares = torch.distributions.Dirichlet(torch.full((5,), 0.3)).sample((150,))
    bands = (torch.linspace(0, 1, 40) - torch.rand(5, 2, 1)).square().div(-0.02).exp().sum(1)
    counts = torch.poisson(60 * shares @ bands) / 60
    measured = torch.rand(150, 40) < 0.85
    net = Palette(150, 40, 6)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)

    def divergence(where):
        mixed = net()[where] + 1e-4
        return (mixed - counts[where] * mixed.log()).mean()

    def one(step):
        optimizer.zero_grad()
        loss = divergence(measured) + 1e-3 * net.amounts.mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for p in net.parameters():
                p.clamp_(min=0)
        return {"loss": loss, "none at all": (net.amounts == 0).float().mean()}

    return tend(
        folder, net, optimizer, one, 400, held_out(net, lambda: F.mse_loss(net()[~measured], counts[~measured]))
    )
