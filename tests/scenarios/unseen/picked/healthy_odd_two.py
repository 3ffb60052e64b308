"""Makers: one against a critic with a gradient penalty, one against a judge of held norms, one that is a flow."""

from __future__ import annotations

import copy
import math

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, in_turn


def sliced(a, b, ways=128):
    """The Wasserstein distance of two clouds of as many points, averaged over random directions."""
    way = F.normalize(torch.randn(a.shape[1], ways), dim=0)
    return float(((a @ way).sort(0)[0] - (b @ way).sort(0)[0]).abs().mean())


# ------------------------------------------------------------ Wasserstein, gradient penalty


def shoals(n):
    """Fish stand in five shoals around a reef, each a short arc."""
    which = torch.randint(5, (n,)) * (2 * math.pi / 5)
    angle = which + 0.25 * torch.randn(n)
    return 1.4 * torch.stack([angle.cos(), angle.sin()], 1) + 0.06 * torch.randn(n, 2)


@healthy()
def shoals_around_a_reef(folder):
    seeded(3239)
    make = dense(8, 48, 48, 2)
    judge = dense(2, 48, 48, 48, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), lr=1e-3, betas=(0.5, 0.9))
    of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3, betas=(0.5, 0.9))

    def judge_loss():
        real = shoals(128)
        with torch.no_grad():
            fake = make(torch.randn(128, 8))
        share = torch.rand(128, 1)
        between = (share * real + (1 - share) * fake).requires_grad_()
        (slope,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        return judge(fake).mean() - judge(real).mean() + penalty

    def make_loss():
        return -judge(make(torch.randn(128, 8))).mean()

    def score():
        with torch.no_grad():
            return sliced(make(torch.randn(1024, 8)), shoals(1024))

    return in_turn(
        folder, make, judge, of_make, of_judge, judge_loss, make_loss, 140, score, rounds=5, names=("critic", "maker")
    )


# ------------------------------------------------------------ hinge, spectral norm, projection


class Maker(nn.Module):
    def __init__(self):
        super().__init__()
        self.kind = nn.Embedding(10, 16)
        self.start = nn.Linear(32, 48 * 4, bias=False)
        self.rest = nn.Sequential(
            nn.BatchNorm2d(48),
            nn.ReLU(),
            nn.ConvTranspose2d(48, 32, 4, 2, 1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.ConvTranspose2d(32, 1, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, y):
        noise = torch.randn(len(y), 16)
        return self.rest(self.start(torch.cat([noise, self.kind(y)], 1)).view(-1, 48, 2, 2))


class Judge(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            spectral_norm(nn.Conv2d(1, 24, 3, 1, 1)),
            nn.LeakyReLU(0.1),
            spectral_norm(nn.Conv2d(24, 32, 4, 2, 1)),
            nn.LeakyReLU(0.1),
            spectral_norm(nn.Conv2d(32, 48, 3, 1, 1)),
            nn.LeakyReLU(0.1),
        )
        self.real = spectral_norm(nn.Linear(48, 1))
        self.kind = spectral_norm(nn.Embedding(10, 48))

    def forward(self, x, y):
        seen = self.body(x).sum((2, 3))
        return self.real(seen)[:, 0] + (self.kind(y) * seen).sum(1)


@healthy()
def postcodes_made_by_hand(folder):
    seeded(3240)
    images, labels = digits()
    images = 2 * images[:, None] - 1
    make, judge = Maker(), Judge()
    shown = copy.deepcopy(make).requires_grad_(False)
    of_make = torch.optim.Adam(make.parameters(), lr=5e-4, betas=(0.0, 0.9))
    of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3, betas=(0.0, 0.9))

    def judge_loss():
        at = torch.randint(len(images), (48,))
        y = torch.randint(10, (48,))
        with torch.no_grad():
            fake = make(y)
        return F.relu(1 - judge(images[at], labels[at])).mean() + F.relu(1 + judge(fake, y)).mean()

    def make_loss():
        y = torch.randint(10, (48,))
        return -judge(make(y), y).mean()

    @torch.no_grad()
    def average():
        for slow, fast in zip(shown.parameters(), make.parameters(), strict=True):
            slow.lerp_(fast, 0.03)
        for slow, fast in zip(shown.buffers(), make.buffers(), strict=True):
            slow.copy_(fast)

    def score():
        at = torch.randperm(len(images))[:1000]
        y = labels[at]
        shown.eval()
        with torch.no_grad():
            fake = shown(y)
        kind = 2 * F.one_hot(y, 10).float()
        return sliced(torch.cat([fake.flatten(1), kind], 1), torch.cat([images[at].flatten(1), kind], 1), 512)

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 160, score, after_judge=average)


# ------------------------------------------------------------ affine couplings


class Coupling(nn.Module):
    """Half of the columns are scaled and shifted by what the other half says."""

    def __init__(self, size, first):
        super().__init__()
        self.keep = torch.arange(size) % 2 == first
        self.net = dense(size // 2, 48, 48, size, act=nn.SiLU)
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        log_scale, shift = self.net(x[:, self.keep]).chunk(2, 1)
        log_scale = 2 * torch.tanh(log_scale / 2)
        out = x.clone()
        out[:, ~self.keep] = x[:, ~self.keep] * log_scale.exp() + shift
        return out, log_scale.sum(1)


class Flow(nn.Module):
    def __init__(self, size, depth):
        super().__init__()
        self.parts = nn.ModuleList(Coupling(size, i % 2) for i in range(depth))

    def log_prob(self, x):
        total = 0.0
        for part in self.parts:
            x, log_det = part(x)
            total = total + log_det
        return total - 0.5 * (x.square() + math.log(2 * math.pi)).sum(1)


def grazing(n):
    """Where a herd grazes on two banks of a bend, and when: four columns that hang together."""
    angle, bank = math.pi * torch.rand(n), torch.randint(2, (n,)).float()
    x = torch.where(bank > 0, 1 - angle.cos(), angle.cos()) - 0.5
    y = torch.where(bank > 0, 0.5 - angle.sin(), angle.sin()) - 0.25
    hour = torch.sin(2 * x) + 0.1 * torch.randn(n)
    damp = y * hour + 0.1 * torch.randn(n)
    return torch.stack([x + 0.07 * torch.randn(n), y + 0.07 * torch.randn(n), hour, damp], 1)


@healthy()
def where_and_when_a_herd_grazes(folder):
    seeded(3241)
    rows, fresh = grazing(4000), grazing(2000)
    middle, spread = rows.mean(0), rows.std(0)
    rows, fresh = (rows - middle) / spread, (fresh - middle) / spread
    net, steps = Flow(4, 6), 400
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-5)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps, pct_start=0.1)

    def loss_of(step):
        loss = -net.log_prob(rows[torch.randint(len(rows), (200,))]).mean()
        return loss, {"bits_per_column": loss / (4 * math.log(2))}

    return fit(
        folder, net, optimizer, loss_of, steps, score=held_out(net, lambda: -net.log_prob(fresh).mean()),
        before_step=clipped(net, 5.0), schedule=schedule,
    )  # fmt: skip
