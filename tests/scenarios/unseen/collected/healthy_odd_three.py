"""What is drawn from noise: flows, energies, couplings, a critic."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, mean, seeded
from unseen.tasks import clipped, held_out, in_turn, rounds, tend

# --------------------------------------------------------------------------------------------------------------- flows


class Masked(nn.Linear):
    """A linear layer some of whose weights are held at zero."""

    def __init__(self, order_in, order_out, strict):
        super().__init__(len(order_in), len(order_out))
        below = order_in[None, :] < order_out[:, None] if strict else order_in[None, :] <= order_out[:, None]
        self.register_buffer("mask", below.float())

    def forward(self, x):
        return F.linear(x, self.weight * self.mask, self.bias)


class Made(nn.Module):
    """Each number is moved and stretched by what those before it say."""

    def __init__(self, size, width):
        super().__init__()
        place = torch.arange(1, size + 1)
        hidden = torch.arange(width) % (size - 1) + 1
        self.layers = nn.Sequential(
            Masked(place, hidden, False), nn.SiLU(),
            Masked(hidden, hidden, False), nn.SiLU(),
            Masked(hidden, place.repeat(2), True),
        )  # fmt: skip

    def forward(self, x):
        move, stretch = self.layers(x).chunk(2, 1)
        stretch = 2 * torch.tanh(stretch / 2)
        return (x - move) * (-stretch).exp(), -stretch.sum(1)


@healthy()
def grains_of_a_desert_from_five_sieves(folder):
    """A masked autoregressive flow fitted to a table by its likelihood."""
    seeded(3112)
    flow = nn.ModuleList(Made(5, 64) for _ in range(4))
    optimizer = torch.optim.Adam(flow.parameters(), lr=2e-3, weight_decay=1e-6)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)

    def sieve(rows):
        a, b, c, d, e = torch.randn(5, rows)
        return torch.stack([a, 0.5 * a.square() + 0.3 * b, (2 * a).sin() + 0.2 * c, a * b + 0.3 * d, 0.4 * e - b], 1)

    table = sieve(8000)
    centre, size = table.mean(0), table.std(0)
    draw, fresh = rounds(160, (table - centre) / size), (sieve(2000) - centre) / size

    def surprise(x):
        logarithm = 0
        for layer in flow:
            x, more = layer(x)
            x, logarithm = x.flip(1), logarithm + more
        return (0.5 * x.square().sum(1) + 2.5 * math.log(2 * math.pi) - logarithm).mean()

    return fit(
        folder, flow, optimizer, lambda step: surprise(draw()[0]), 500,
        score=held_out(flow, lambda: surprise(fresh)), schedule=schedule, before_step=clipped(flow, 5.0),
    )  # fmt: skip


def apart(a, b):
    """The energy distance of two clouds."""
    return 2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()


@healthy()
def swallows_on_straight_ways(folder):
    """Flow matching, the score that of an average of the weights after twenty steps of Euler."""
    seeded(3113)
    net = dense(2 + 8, 128, 128, 2, act=nn.SiLU)
    slow = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, betas=(0.9, 0.99), weight_decay=0.01)
    waves = math.pi * torch.tensor([0.5, 1.0, 2.0, 4.0])

    def flock(rows):
        angle = 3 * math.pi * torch.rand(rows).sqrt()
        turn = torch.stack([angle.cos(), angle.sin()], 1) * angle[:, None] / 4
        return turn + 0.08 * torch.randn(rows, 2)

    def speed(model, x, t):
        return model(torch.cat([x, (t * waves).sin(), (t * waves).cos()], 1))

    def loss_of(step):
        x, noise, t = flock(256), torch.randn(256, 2), torch.randn(256, 1).sigmoid()
        return F.mse_loss(speed(net, (1 - t) * noise + t * x, t), x - noise)

    def follow(step):
        with torch.no_grad():
            for kept, p in zip(slow.parameters(), net.parameters(), strict=True):
                kept.lerp_(p, 1 - min(0.995, (1 + step) / (10 + step)))

    @torch.no_grad()
    def score():
        x = torch.randn(1000, 2)
        for at in range(20):
            x = x + speed(slow, x, torch.full((1000, 1), at / 20)) / 20
        return float(apart(x, flock(1000)))

    return fit(folder, net, optimizer, loss_of, 900, score=score, after_step=follow)


# ------------------------------------------------------------------------------------------------------------ energies


@healthy()
def hollows_where_sheep_lie(folder):
    """An energy learned against points that roll about in it (Langevin) and are kept between the steps."""
    seeded(3114)
    energy = dense(2, 64, 64, 1, act=nn.SiLU)
    optimizer = torch.optim.Adam(energy.parameters(), lr=1e-3, betas=(0.5, 0.999))
    centres = torch.tensor([[1.5, 0.0], [-1.0, 1.2], [-0.5, -1.5]])
    store = 4 * torch.rand(4000, 2) - 2
    side = torch.linspace(-4, 4, 90)
    grid = torch.cartesian_prod(side, side)

    def sheep(rows):
        return centres[torch.randint(3, (rows,))] + 0.35 * torch.randn(rows, 2)

    def of(x):
        return energy(x)[:, 0] + 0.05 * x.square().sum(1)

    def rolled(x):
        for _ in range(20):
            x = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(of(x).sum(), x)
            x = x - 0.02 * slope + 0.2 * torch.randn_like(x)
        return x.detach()

    def loss_of(step):
        real, at = sheep(128), torch.randperm(4000)[:128]
        start = torch.where(torch.rand(128, 1) < 0.05, 4 * torch.rand(128, 2) - 2, store[at])
        store[at] = made = rolled(start)
        up, down = of(real), of(made)
        held = 0.02 * (up.square() + down.square()).mean()
        loss = up.mean() - down.mean() + held
        return loss, {"real": up.mean(), "made": down.mean()}

    def surprise():
        volume = (-of(grid)).logsumexp(0) + 2 * torch.log(side[1] - side[0])
        return of(sheep(2000)).mean() + volume

    return fit(folder, energy, optimizer, loss_of, 500, score=held_out(energy, surprise))


class Boltzmann(nn.Module):
    """Seats that vote and clubs that nobody sees."""

    def __init__(self, seen, hidden):
        super().__init__()
        self.weight = nn.Parameter(0.05 * torch.randn(seen, hidden))
        self.seen, self.hidden = nn.Parameter(torch.zeros(seen)), nn.Parameter(torch.zeros(hidden))

    def free(self, v):
        return -v @ self.seen - F.softplus(v @ self.weight + self.hidden).sum(1)

    @torch.no_grad()
    def gibbs(self, v, times):
        for _ in range(times):
            h = torch.bernoulli((v @ self.weight + self.hidden).sigmoid())
            v = torch.bernoulli((h @ self.weight.T + self.seen).sigmoid())
        return v


@healthy()
def votes_of_twelve_jurors(folder):
    """Persistent contrastive divergence with chains that go on; the score is the exact surprise by counting all."""
    seeded(3115)
    net = Boltzmann(12, 10)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=1200)
    clubs = torch.bernoulli(torch.full((4, 12), 0.5))
    every = torch.cartesian_prod(*[torch.arange(2.0)] * 12)

    def votes(rows):
        vote = clubs[torch.randint(4, (rows,))]
        return torch.where(torch.rand(rows, 12) < 0.06, 1 - vote, vote)

    chains = torch.bernoulli(torch.full((100, 12), 0.5))
    heard, fresh = votes(3000), votes(2000)

    def one(step):
        batch = heard[torch.randint(3000, (100,))]
        chains.copy_(net.gibbs(chains, 2))
        optimizer.zero_grad()
        gap = net.free(batch).mean() - net.free(chains).mean()
        gap.backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            back = (net.gibbs(batch, 1) - batch).abs().mean()
        return {"free_energy_gap": gap.detach(), "reconstruction": back}

    def surprise():
        return net.free(fresh).mean() + (-net.free(every)).logsumexp(0)

    return tend(folder, net, optimizer, one, 1200, held_out(net, surprise))


# -------------------------------------------------------------------------------------------------------------- a pair


@healthy()
def dew_on_five_threads_of_a_web(folder):
    """Wasserstein with a penalty on the critic's slope, three steps of the critic to one of the maker."""
    seeded(3116)
    make, judge = dense(6, 64, 64, 2), dense(2, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), lr=5e-4, betas=(0.0, 0.9))
    of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3, betas=(0.0, 0.9))
    turn = 2 * math.pi * torch.arange(5) / 5
    threads = 2 * torch.stack([turn.cos(), turn.sin()], 1)

    def dew(rows):
        return threads[torch.randint(5, (rows,))] + 0.15 * torch.randn(rows, 2)

    def judge_loss():
        real, made = dew(96), make(torch.randn(96, 6)).detach()
        between = torch.lerp(real, made, torch.rand(96, 1)).requires_grad_()
        (slope,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
        return judge(made).mean() - judge(real).mean() + (slope.norm(dim=1) - 1).square().mean()

    def make_loss():
        return -judge(make(torch.randn(96, 6))).mean()

    @torch.no_grad()
    def score():
        return mean([float(apart(make(torch.randn(500, 6)), dew(500))) for _ in range(4)])

    return in_turn(
        folder, make, judge, of_make, of_judge, judge_loss, make_loss, 450, score, rounds=3, names=("critic", "maker")
    )
