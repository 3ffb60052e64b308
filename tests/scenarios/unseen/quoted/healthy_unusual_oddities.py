"""Healthy trainings of an odd make: spikes, kernel widths, unaligned letters, soft permutations, cut off times."""

from __future__ import annotations

import math

import nets
import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


class Spike(torch.autograd.Function):
    """A step whose slope going back is that of a fast sigmoid."""

    @staticmethod
    def forward(ctx, above):
        ctx.save_for_backward(above)
        return (above > 0).float()

    @staticmethod
    def backward(ctx, grad):
        (above,) = ctx.saved_tensors
        return grad / (1 + 5 * above.abs()).square()


class Nerves(nn.Module):
    """Leaky neurons that fire and are set back, read out by leaky ones that do not."""

    def __init__(self):
        super().__init__()
        self.inward, self.outward = nn.Linear(64, 100), nn.Linear(100, 10)
        self.leak = nn.Parameter(torch.full((100,), 2.0))
        nn.init.normal_(self.inward.weight, std=2 / 8)

    def forward(self, x, times=10):
        charge, read, total, fired = torch.zeros(len(x), 100), torch.zeros(len(x), 10), 0.0, 0.0
        for _ in range(times):
            spikes_in = (torch.rand_like(x) < x).float()
            charge = self.leak.sigmoid() * charge + self.inward(spikes_in)
            spikes = Spike.apply(charge - 1)
            charge = charge - spikes.detach()
            read = 0.9 * read + self.outward(spikes)
            total, fired = total + read, fired + spikes.mean()
        return total / times, fired / times


@healthy()
def touches_on_a_whisker(folder):
    seeded(3562)
    x, y = nets.digits()
    order = torch.randperm(len(x))
    x, y = 0.8 * x.flatten(1)[order], y[order]
    net = Nerves()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    draw = rounds(64, x[:1400], y[:1400])

    def loss_of(step):
        x, y = draw()
        read, fired = net(x)
        loss = F.cross_entropy(read, y) + 0.5 * F.relu(fired - 0.2).square()
        return loss, {"firing_rate": fired.item(), "accuracy": (read.argmax(1) == y).float().mean().item()}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:])[0], y[1400:]))
    return fit(folder, net, optimizer, loss_of, 250, score=score)


class Kriging(nn.Module):
    """A Gaussian process with a width for each direction; the logarithms of its three kinds of numbers are learned."""

    def __init__(self, size):
        super().__init__()
        self.widths = nn.Parameter(torch.zeros(size, dtype=torch.float64))
        self.power = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.noise = nn.Parameter(torch.full((), -1.0, dtype=torch.float64))

    def kernel(self, a, b):
        far = (a[:, None] - b[None]) / self.widths.exp()
        return self.power.exp() * (-0.5 * far.square().sum(2)).exp()

    def factor(self, x):
        return torch.linalg.cholesky(self.kernel(x, x) + (self.noise.exp() + 1e-6) * torch.eye(len(x)))

    def surprise(self, x, y):
        factor = self.factor(x)
        half = torch.linalg.solve_triangular(factor, y[:, None], upper=False)
        return 0.5 * half.square().sum() + factor.diagonal().log().sum() + 0.5 * len(x) * math.log(2 * math.pi)

    def forward(self, seen, y, x):
        return (self.kernel(x, seen) @ torch.cholesky_solve(y[:, None], self.factor(seen)))[:, 0]


@healthy()
def ore_between_the_boreholes(folder):
    seeded(3563)
    net = Kriging(5)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    x = 4 * torch.rand(260, 5, dtype=torch.float64) - 2
    y = (2 * x[:, 0]).sin() + 0.5 * x[:, 1].square() - 0.7
    y = y + 0.05 * torch.randn(260)
    seen, told, fresh, truth = x[:110], y[:110], x[110:], y[110:]

    def loss_of(step):
        loss = net.surprise(seen, told)
        return loss, {"noise_variance": net.noise.exp().item(), "signal_variance": net.power.exp().item()}

    @torch.no_grad()
    def score():
        return float(F.mse_loss(net(seen, told, fresh), truth))

    return fit(folder, net, optimizer, loss_of, 100, score=score)


@healthy()
def knocks_through_a_prison_wall(folder):
    seeded(3564)
    sounds = F.normalize(torch.randn(6, 8), dim=1) * 2
    net = nn.ModuleDict(
        {
            "front": nn.Sequential(nn.Conv1d(8, 24, 5, padding=2), nn.ReLU()),
            "memory": nn.GRU(24, 24, batch_first=True, bidirectional=True),
            "head": nn.Linear(48, 7),
        }
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 115, 2, eta_min=1e-4)

    def messages(rows):
        letters, held = torch.randint(6, (rows, 4)), torch.randint(2, 6, (rows, 4))
        heard = 0.4 * torch.randn(rows, 26, 8)
        for i in range(rows):
            at = 1
            for letter, long in zip(letters[i].tolist(), held[i].tolist(), strict=True):
                heard[i, at : at + long] += sounds[letter]
                at += long + 1
        return heard, letters

    draw, fresh = rounds(8, *messages(1600)), messages(200)

    def error(heard, letters):
        rows = len(heard)
        h = net["front"](heard.mT).mT
        chances = net["head"](net["memory"](h)[0]).log_softmax(2).transpose(0, 1)
        return F.ctc_loss(chances, letters + 1, torch.full((rows,), 26), torch.full((rows,), 4))

    def score():
        with torch.no_grad():
            return float(error(*fresh))

    before_step = clipped(net, 5.0)
    return fit(
        folder,
        net,
        optimizer,
        lambda step: error(*draw()),
        805,
        score=score,
        schedule=schedule,
        before_step=before_step,
    )


def settled(scores, times=15):
    """A matrix whose rows and columns each add up to one, by Sinkhorn's steps in logarithms."""
    for _ in range(times):
        scores = scores - scores.logsumexp(2, keepdim=True)
        scores = scores - scores.logsumexp(1, keepdim=True)
    return scores.exp()


@healthy()
def melons_lined_up_by_ripeness(folder):
    seeded(3565)
    net = dense(5, 48, 48, 6, act=nn.ELU)
    optimizer = torch.optim.NAdam(net.parameters(), lr=2e-3)
    way = torch.randn(5, 2)

    def stalls(rows):
        x = torch.randn(rows, 6, 5)
        a, b = (x @ way).unbind(2)
        return x, torch.tanh(a) + 0.5 * b.sin()

    def loss_of(step):
        x, ripe = stalls(64)
        heat = max(0.3, 1 - step / 500)
        gumbel = -(-torch.rand(64, 6, 6).clamp(1e-6, 1 - 1e-6).log()).log()
        placed = settled((net(x) + 0.3 * gumbel) / heat)
        loss = F.mse_loss((placed.mT @ ripe[..., None])[..., 0], ripe.sort(1).values)
        return loss, {"temperature": heat}

    @torch.no_grad()
    def score():
        x, ripe = stalls(1000)
        place = settled(net(x) / 0.3) @ torch.arange(6.0)
        return float((place.argsort(1).argsort(1) - ripe.argsort(1).argsort(1)).abs().float().mean())

    return fit(folder, net, optimizer, loss_of, 800, score=score)


@healthy()
def umbrellas_until_they_break(folder):
    seeded(3566)
    net = dense(10, 32, 32, 1, act=nn.SELU)
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.03, weight_decay=1e-4)
    x = torch.randn(2500, 10)
    risk = 1.5 * x[:, 0] + x[:, 1].square() - x[:, 2] * x[:, 3]
    broke = -torch.rand(2500).log() * (-risk).exp()
    lost = -torch.rand(2500).log() * 3.0
    time, seen = torch.minimum(broke, lost), (broke <= lost).float()
    draw = rounds(200, x[:2000], time[:2000], seen[:2000])

    def surprise(x, time, seen):
        order = time.argsort(descending=True)
        hazard, seen = net(x[order])[:, 0], seen[order]
        return -((hazard - hazard.logcumsumexp(0)) * seen).sum() / seen.sum()

    @torch.no_grad()
    def discordance():
        hazard, times = net(x[2000:])[:, 0], time[2000:]
        earlier = (times[:, None] < times[None]) & (seen[2000:, None] > 0)
        return (hazard[:, None] < hazard[None])[earlier].float().mean()

    def loss_of(step):
        loss = surprise(*draw())
        return loss, ({"c_index": 1 - discordance().item()} if step % 20 == 0 else {})

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, discordance))
