"""Healthy trainings of an unusual make, last part: things drawn or foreseen, by losses that say little of them."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.afresh.healthy_odd import flat_digits


def energy_distance(a, b):
    """How far two clouds of points are apart; 0 if they are drawn alike."""
    return 2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()


def five_heaps(rows):
    """`[B, 2]`: five heaps on a circle of radius 2."""
    angle = torch.randint(5, (rows,)) * (2 * math.pi / 5)
    return 2 * torch.stack([angle.cos(), angle.sin()], 1) + 0.15 * torch.randn(rows, 2)


@healthy(0.7)
def heaps_that_are_compared_along_lines(folder):
    """A generator by the sliced Wasserstein distance: other lines in each step, sorted, and no judge."""
    seeded(931)
    net = dense(4, 96, 96, 2)

    def loss_of(step):
        lines = F.normalize(torch.randn(2, 24), dim=0)
        made = (net(torch.randn(256, 4)) @ lines).sort(0).values
        return (made - (five_heaps(256) @ lines).sort(0).values).square().mean()

    @torch.no_grad()
    def score():
        return energy_distance(net(torch.randn(600, 4)), five_heaps(600))

    optimizer = optim.Adam(net.parameters(), 2e-3, betas=(0.5, 0.9))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


@healthy(0.7)
def heaps_in_one_step_by_agreeing_with_oneself(folder):
    """Consistency training: two noises of one point are to give the same; the grid is refined, so the loss rises."""
    seeded(932)
    steps, low, high, spread = 600, 0.01, 5.0, 1.4
    net = dense(3, 96, 96, 2, act=nn.SiLU)

    def clean(x, sigma):
        skip = spread**2 / ((sigma - low).square() + spread**2)
        out = spread * (sigma - low) / (sigma.square() + spread**2).sqrt()
        scaled = x / (sigma.square() + spread**2).sqrt()
        return skip * x + out * net(torch.cat([scaled, sigma.log() / 4], 1))

    def loss_of(step):
        n = min(5 * 2 ** (step // (steps // 5)), 80)
        ramp = torch.linspace(0, 1, n + 1)
        grid = (low ** (1 / 7) + ramp * (high ** (1 / 7) - low ** (1 / 7))) ** 7
        at = torch.randint(n, (256,))
        less, more = grid[at][:, None], grid[at + 1][:, None]
        x, noise = five_heaps(256), torch.randn(256, 2)
        student = clean(x + more * noise, more)
        with torch.no_grad():
            teacher = clean(x + less * noise, less)
        apart = ((student - teacher).square().sum(1) + 0.03**2).sqrt() - 0.03
        return (apart / (more - less)[:, 0]).mean(), {"grid": float(n)}

    @torch.no_grad()
    def score():
        noise = high * torch.randn(600, 2)
        return energy_distance(clean(noise, torch.full((600, 1), high)), five_heaps(600))

    return fit(folder, net, optim.RAdam(net.parameters(), 1e-3), loss_of, steps, score=score)


@healthy(0.7)
def wells_filled_while_it_grows_cold(folder):
    """A Boltzmann generator: a flow trained on an energy alone; what weighs the energy grows, and so does the loss."""
    seeded(933)
    net = nn.ModuleList(dense(1, 48, 2, act=nn.Tanh) for _ in range(6))
    for part in net:
        nn.init.zeros_(part[-1].weight)

    def energy(x):
        return 2 * (x[:, 0].square() - 2).square() + 2 * (x[:, 1] - 0.5 * x[:, 0].square()).square() + 0.5 * x[:, 0]

    def draw(rows):
        z = torch.randn(rows, 2)
        density = -0.5 * z.square().sum(1) - math.log(2 * math.pi)
        x = 1.5 * z
        density = density - 2 * math.log(1.5)
        for i, part in enumerate(net):
            x = x.flip(1) if i else x
            scale, shift = part(x[:, :1]).chunk(2, 1)
            scale = 1.5 * scale.tanh()
            x = torch.cat([x[:, :1], x[:, 1:] * scale.exp() + shift], 1)
            density = density - scale.sum(1)
        return x.flip(1), density

    def loss_of(step):
        beta = min(1.0, 0.05 + step / 300)
        x, density = draw(256)
        return (beta * energy(x) + density).mean(), {"beta": beta, "energy": energy(x).detach().mean()}

    line = torch.linspace(-4, 4, 200)
    grid = torch.stack(torch.meshgrid(line, 2 * line, indexing="ij"), 2).flatten(0, 1)
    log_z = torch.logsumexp(-energy(grid), 0) + math.log(2 * (8 / 199) ** 2)

    @torch.no_grad()
    def score():
        x, density = draw(4000)
        return (energy(x) + density).mean() + log_z

    optimizer = optim.Adam(net.parameters(), 3e-3)
    return fit(folder, net, optimizer, loss_of, 420, score=score, clip="ClipByGlobalNorm(5.0)")


@healthy(0.4)
def ten_pictures_asked_of_one_who_removes_noise(folder):
    """Score distillation: a frozen denoiser's error is the slope at a picture; the loss says nothing."""
    seeded(934)
    x, y = flat_digits()
    keep = torch.cumprod(1 - torch.linspace(1e-3, 0.2, 40), 0)
    denoiser, namer = dense(64 + 11 + 1, 160, 160, 64, act=nn.SiLU), dense(64, 64, 10)
    before = optim.Adam([*denoiser.parameters(), *namer.parameters()], 2e-3)

    def guess(noisy, t, kind):
        return denoiser(torch.cat([noisy, kind, t[:, None] / 40], 1))

    for _ in range(500):
        at, t = torch.randint(len(x), (128,)), torch.randint(40, (128,))
        noise, share = torch.randn(128, 64), keep[t][:, None]
        named = torch.where(torch.rand(128) < 0.15, 10, y[at])
        noisy = share.sqrt() * (2 * x[at] - 1) + (1 - share).sqrt() * noise
        loss = F.mse_loss(guess(noisy, t, F.one_hot(named, 11).float()), noise)
        before.zero_grad()
        (loss + F.cross_entropy(namer(x[at] + 0.3 * torch.randn(128, 64)), y[at])).backward()
        before.step()
    for p in (*denoiser.parameters(), *namer.parameters()):
        p.requires_grad_(False)

    wished, nothing = torch.eye(11)[torch.arange(10)], torch.eye(11)[torch.full((10,), 10)]
    net = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 64))
    eye = torch.eye(10)

    def loss_of(step):
        picture = net(eye).tanh()
        slope = 0
        with torch.no_grad():
            for _ in range(4):
                t, noise = torch.randint(2, 36, (10,)), torch.randn(10, 64)
                share = keep[t][:, None]
                noisy = share.sqrt() * picture + (1 - share).sqrt() * noise
                plain, asked = guess(noisy, t, nothing), guess(noisy, t, wished)
                slope = slope + (1 - share) * (plain + 4 * (asked - plain) - noise) / 4
        return (slope * picture).sum() / 10, {"slope": slope.norm()}

    @torch.no_grad()
    def score():
        return F.cross_entropy(namer((net(eye).tanh() + 1) / 2), torch.arange(10))

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 350, score=score)


@healthy(0.7)
def how_often_each_room_will_be_entered(folder):
    """Successor features by temporal differences: no reward; what is foreseen grows tenfold, and its loss with it."""
    seeded(935)
    rooms, patience = 16, 0.95
    chances = torch.zeros(rooms, rooms)
    for s in range(rooms):
        row, column = divmod(s, 4)
        for a, b in ((row, column + 1), (row, column - 1), (row + 1, column), (row - 1, column)):
            chances[s, min(max(a, 0), 3) * 4 + min(max(b, 0), 3)] += 0.25
    true = torch.linalg.inv(torch.eye(rooms) - patience * chances)
    looks = torch.randn(rooms, 24)
    net = dense(24, 96, 96, rooms)
    nn.init.zeros_(net[-1].weight)
    slow = copy.deepcopy(net).requires_grad_(False)
    eye = torch.eye(rooms)

    def loss_of(step):
        if step % 10 == 0:
            slow.load_state_dict(net.state_dict())
        now = torch.randint(rooms, (128,))
        after = torch.multinomial(chances[now], 1)[:, 0]
        with torch.no_grad():
            target = eye[now] + patience * slow(looks[after] + 0.02 * torch.randn(128, 24))
        foreseen = net(looks[now] + 0.02 * torch.randn(128, 24))
        loss = F.mse_loss(foreseen, target, reduction="none").sum(1).mean()
        return loss, {"foreseen": foreseen.detach().sum(1).mean()}

    @torch.no_grad()
    def score():
        return (net(looks) - true).square().mean() / true.square().mean()

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 1000, score=score)
