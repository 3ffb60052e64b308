"""Healthy trainings of an unusual make: a pupil, echoes, experts, a rod, harbours."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


@healthy(gain=0.5)
def a_pupil_of_a_master_of_seals(folder):
    """Distillation: a small net learns from few labels and from a large one's soft answers at a temperature of 3."""
    seeded(9721)
    middles = torch.randn(8, 2, 16)
    kind = torch.randint(8, (5000,))
    x = middles[kind, torch.randint(2, (5000,))] + 0.8 * torch.randn(5000, 16)
    master, draw = dense(16, 192, 192, 8), rounds(128, x[:4000], kind[:4000])
    optimizer = torch.optim.AdamW(master.parameters(), 2e-3, weight_decay=0.05)
    for _ in range(250):
        rows, named = draw()
        optimizer.zero_grad()
        F.cross_entropy(master(rows), named, label_smoothing=0.05).backward()
        optimizer.step()
    master.eval().requires_grad_(False)

    pupil = dense(16, 32, 32, 8)
    draw = rounds(64, x[:1500], kind[:1500])
    optimizer = torch.optim.Adam(pupil.parameters(), 3e-3)

    def loss_of(step):
        rows, named = draw()
        guess, told = pupil(rows), master(rows)
        soft = F.kl_div((guess / 3).log_softmax(1), (told / 3).log_softmax(1), log_target=True, reduction="batchmean")
        hard = F.cross_entropy(guess, named)
        return 0.7 * 9 * soft + 0.3 * hard, {"soft": 9 * soft, "hard": hard}

    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600, 1e-4)
    score = held_out(pupil, lambda: F.cross_entropy(pupil(x[4000:]), kind[4000:]))
    return fit(folder, pupil, optimizer, loss_of, 600, score=score, schedule=schedule)


@healthy(gain=0.4)
def echoes_of_twelve_bridges_without_names(folder):
    """Contrastive: two views of an echo, shifted, scaled and in noise, are to lie close and all others far."""
    seeded(9722)
    time = torch.arange(64.0)

    def echoes(n):
        """Three tones of paces of their own in each."""
        pace = 0.1 + 1.2 * torch.rand(n, 3, 1)
        return (pace * time + 6.2832 * torch.rand(n, 3, 1)).sin().mul(torch.rand(n, 3, 1) + 0.3).sum(1)

    known, others = echoes(2000), echoes(192)
    encoder = nn.Sequential(
        nn.Conv1d(1, 16, 7, stride=2, padding=3), nn.BatchNorm1d(16), nn.ReLU(),
        nn.Conv1d(16, 32, 5, stride=2, padding=2), nn.BatchNorm1d(32), nn.ReLU(),
        nn.Conv1d(32, 48, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
    )  # fmt: skip
    net = nn.Sequential(encoder, dense(48, 48, 24))
    draw = rounds(96, known)

    def view(sound):
        at = torch.randint(64, (len(sound), 1))
        turned = sound.gather(1, (torch.arange(64) + at) % 64)
        return ((0.7 + 0.6 * torch.rand(len(sound), 1)) * turned + 0.2 * torch.randn_like(sound))[:, None]

    def contrast(sound):
        n = len(sound)
        codes = F.normalize(net(torch.cat([view(sound), view(sound)])), dim=1)
        alike = (codes @ codes.T / 0.2).masked_fill(torch.eye(2 * n).bool(), -1e4)
        partner = torch.arange(2 * n).roll(n)
        return F.cross_entropy(alike, partner), float((alike.argmax(1) == partner).float().mean())

    def loss_of(step):
        loss, found = contrast(*draw())
        return loss, {"top1": found}

    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 350, 5e-5)
    score = held_out(net, lambda: contrast(others)[0])
    return fit(folder, net, optimizer, loss_of, 350, score=score, schedule=schedule)


class Experts(nn.Module):
    """Six small nets of which a router asks two for each row."""

    def __init__(self, size, width=32):
        super().__init__()
        self.router = nn.Linear(size, 6, bias=False)
        self.experts = nn.ModuleList(dense(size, width, 1) for _ in range(6))

    def forward(self, x):
        """The answer, and how evenly the rows are shared out: one where it is quite even."""
        shares = self.router(x).softmax(1)
        top, chosen = shares.topk(2, 1)
        asked = F.one_hot(chosen, 6).float()
        weights = (asked * (top / top.sum(1, keepdim=True))[:, :, None]).sum(1)
        out = torch.cat([expert(x) for expert in self.experts], 1)
        return (out * weights).sum(1), 6 * (asked.sum(1).mean(0) / 2) @ shares.mean(0)


@healthy(gain=0.5)
def tolls_under_six_old_laws(folder):
    """A mixture of experts, two of six for each row, with a small loss for even loads; Adam."""
    seeded(9723)
    x = torch.randn(6000, 8)
    middles, laws = 1.5 * torch.randn(6, 8), torch.randn(6, 8) * 0.5
    law = torch.cdist(x, middles).argmin(1)
    toll = (x * laws[law]).sum(1) + torch.randn(6)[law] + 0.1 * torch.randn(6000)
    toll = (toll - toll.mean()) / toll.std()
    net, draw = Experts(8), rounds(128, x[:5000], toll[:5000])

    def loss_of(step):
        rows, paid = draw()
        guess, evenness = net(rows)
        error = F.mse_loss(guess, paid)
        return error + 0.01 * evenness, {"mse": error, "evenness": evenness}

    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 800, 1e-4)
    score = held_out(net, lambda: F.mse_loss(net(x[5000:])[0], toll[5000:]))
    return fit(folder, net, optimizer, loss_of, 800, score=score, schedule=schedule, before_step=clipped(net, 1.0))


@healthy(gain=0.8)
def warmth_along_a_rod_from_its_law(folder):
    """No data but the equation of heat, a cold start at both ends and a bump at first; tanh, Adam, a falling rate."""
    seeded(9724)
    net = dense(2, 32, 32, 32, 1, act=nn.Tanh)
    at, when = torch.meshgrid(torch.linspace(0, 1, 41), torch.linspace(0, 1, 21), indexing="ij")
    places = torch.stack([at.flatten(), when.flatten()], 1)

    def law(x, t):
        return torch.sin(3.1416 * x) * torch.exp(-t) + 0.5 * torch.sin(6.2832 * x) * torch.exp(-4 * t)

    truth = law(places[:, 0], places[:, 1])

    def loss_of(step):
        inside = torch.rand(200, 2, requires_grad=True)
        first = torch.autograd.grad(net(inside).sum(), inside, create_graph=True)[0]
        second = torch.autograd.grad(first[:, 0].sum(), inside, create_graph=True)[0][:, 0]
        equation = (first[:, 1] - second / 3.1416**2).square().mean()
        x, t = torch.rand(100), torch.rand(100)
        begin = net(torch.stack([x, torch.zeros(100)], 1))[:, 0] - law(x, torch.zeros(100))
        ends = net(torch.stack([torch.arange(100) % 2, t], 1))
        begun, held = begin.square().mean(), ends.square().mean()
        return equation + 5 * begun + 5 * held, {"pde": equation, "initial": begun, "boundary": held}

    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.997)
    score = held_out(net, lambda: (net(places)[:, 0] - truth).square().mean() / truth.square().mean())
    return fit(folder, net, optimizer, loss_of, 900, score=score, schedule=schedule)


@healthy(gain=0.4)
def tides_of_a_harbour_after_ten_soundings(folder):
    """Meta-learning with second derivatives: one step from ten points of a sine, judged on ten others."""
    seeded(9725)
    net = dense(1, 40, 40, 1, act=nn.Tanh)

    def harbours(n):
        height, phase = 0.5 + 1.5 * torch.rand(n, 1, 1), 3.1416 * torch.rand(n, 1, 1)
        x = 10 * torch.rand(n, 20, 1) - 5
        return x, height * (x + phase).sin()

    def error(weights, x, y):
        return F.mse_loss(functional_call(net, weights, (x,)), y)

    def adapted(weights, x, y):
        slopes = grad(error)(weights, x[:10], y[:10])
        nearer = {name: weight - 0.05 * slopes[name] for name, weight in weights.items()}
        return error(nearer, x[10:], y[10:])

    def loss_of(step, n=24):
        x, y = harbours(n)
        return vmap(adapted, (None, 0, 0))(dict(net.named_parameters()), x, y).mean()

    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600, 1e-4)
    score = held_out(net, lambda: loss_of(0, 400))
    return fit(folder, net, optimizer, loss_of, 600, score=score, schedule=schedule, before_step=clipped(net, 2.0))
