"""Healthy trainings that rebuild or make something: codes, variational nets, adversaries, diffusion, a distance."""

from __future__ import annotations

import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.optim import lr_scheduler as plans
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from trainings import TREATMENT
from unseen import Outcome, dense, fit, healthy, score_of, seeded
from unseen.visible.healthy import parted, rounds

import gradwatch

# -------------------------------------------------------------------------------------------------------------- codes


@healthy(0.5)
def code_of_twelve_numbers(folder):
    seeded(809)
    (x, _), (apart, _) = parted()
    loader = rounds(x)
    net = nn.Sequential(
        nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(96, 12), nn.Linear(12, 96), nn.ReLU(), nn.Unflatten(1, (24, 2, 2)),
        nn.ConvTranspose2d(24, 12, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(12, 1, 4, 2, 1), nn.Flatten(1, 2),
    )  # fmt: skip
    make = optim.Adam(net.parameters(), 4e-3)

    def loss_on(x):
        return F.mse_loss(net(x), x)

    return fit(
        folder, net, make, lambda step: loss_on(*next(loader)), 400, schedule=plans.StepLR(make, 160, 0.3),
        score=score_of(lambda step: loss_on(apart)),
    )  # fmt: skip


class Variational(nn.Module):
    """`net(x)`: the mean over the rows of the summed error of the rebuilt pixels, and of the divergence."""

    def __init__(self, width=128, size=8):
        super().__init__()
        self.encoder, self.decoder = dense(64, width, 2 * size), dense(size, width, 64)

    def forward(self, x):
        middle, spread = self.encoder(x.flatten(1)).chunk(2, 1)
        z = middle + (spread / 2).exp() * torch.randn_like(middle)
        error = F.binary_cross_entropy_with_logits(self.decoder(z), x.flatten(1), reduction="sum") / len(x)
        return error, 0.5 * (middle.square() + spread.exp() - 1 - spread).sum(1).mean()


@healthy(0.3)
def digits_from_eight_numbers(folder):
    seeded(810)
    (x, _), (apart, _) = parted()
    net, loader = Variational(), rounds(x, batch=128)

    def loss_of(step):
        error, apart_from_prior = net(*next(loader))
        return error + apart_from_prior, {"rebuilt": error, "divergence": apart_from_prior}

    score = score_of(lambda step: sum(net(apart)))
    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 400, score=score)


@healthy(0.3)
def divergence_that_comes_in_slowly(folder):
    """The weight of the divergence rises from 0 to 1 in half of the run, and the loss with it, as it should."""
    seeded(826)
    (x, _), (apart, _) = parted()
    net, loader = Variational(64, 6), rounds(x)

    def loss_of(step):
        error, divergence = net(*next(loader))
        weight = min(1.0, step / 250)
        return error + weight * divergence, {"rebuilt": error, "divergence": divergence, "weight": weight}

    score = score_of(lambda step: sum(net(apart)))
    return fit(folder, net, optim.AdamW(net.parameters(), 3e-3), loss_of, 500, score=score)


# ------------------------------------------------------------------------------------------------------ out of noise


class Brush(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Linear(16, 128, bias=False), nn.Unflatten(1, (32, 2, 2)), nn.BatchNorm2d(32), nn.ReLU(),
            nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Tanh(),
        )  # fmt: skip


class Critic(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 16, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(16, 32, 4, 2, 1, bias=False), nn.BatchNorm2d(32), nn.LeakyReLU(0.2),
            nn.Flatten(), nn.Linear(128, 1), nn.Flatten(0),
        )  # fmt: skip


@healthy(0.3)
def strokes_by_a_convolving_pair(folder):
    """As in DCGAN; the score is how far sorted projections of what is made are from those of real digits."""
    seeded(811)
    (x, _), _ = parted()
    real, loader = x[:, None] * 2 - 1, rounds(x[:, None] * 2 - 1)
    make, judge = Brush(), Critic()
    for part in (*make.modules(), *judge.modules()):
        if isinstance(part, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.normal_(part.weight, std=0.05)
    of_make, of_judge = (optim.Adam(net.parameters(), 1e-3, betas=(0.5, 0.999)) for net in (make, judge))
    ways = F.normalize(torch.randn(64, 100), dim=0)

    def score():
        make.eval()
        with torch.no_grad():
            made = make(torch.randn(1000, 16)).flatten(1) @ ways
        make.train()
        wanted = real[:1000].flatten(1) @ ways
        return float((made.sort(0).values - wanted.sort(0).values).abs().mean())

    first, one = score(), torch.ones(64)
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(make, of_make)}
    watch_judge = gradwatch.watch(judge, of_judge, name="D", **options)
    watch_make = gradwatch.watch(make, of_make, name="G", run=watch_judge, **options)
    with watch_judge, watch_make:
        for _ in range(300):
            made = make(torch.randn(64, 16))
            of_judge.zero_grad()
            right = F.binary_cross_entropy_with_logits(judge(*next(loader)), 0.9 * one)
            wrong = F.binary_cross_entropy_with_logits(judge(made.detach()), 0 * one)
            (right + wrong).backward()
            of_judge.step()
            watch_judge.log(loss=right + wrong)
            of_make.zero_grad()
            loss = F.binary_cross_entropy_with_logits(judge(made), one)
            loss.backward()
            of_make.step()
            watch_make.log(loss=loss)
    return Outcome(gradwatch.open_history(watch_judge.dir.parent), first, score())


class Denoiser(nn.Module):
    """Two residual blocks that are told the time."""

    def __init__(self, width=24):
        super().__init__()
        self.stem, self.end = nn.Conv2d(1, width, 3, 1, 1), nn.Conv2d(width, 1, 3, 1, 1)
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU())
        self.tell = nn.ModuleList(nn.Linear(32, width) for _ in range(2))
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, width, 3, 1, 1),
                nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, width, 3, 1, 1),
            )
            for _ in range(2)
        )  # fmt: skip
        self.norm = nn.GroupNorm(4, width)
        nn.init.zeros_(self.end.weight)

    def forward(self, x, t):
        angle = t[:, None] * torch.logspace(0, -2, 8)
        time, h = self.time(torch.cat([angle.sin(), angle.cos()], 1)), self.stem(x)
        for tell, block in zip(self.tell, self.blocks, strict=True):
            h = h + block(h + tell(time)[:, :, None, None])
        return self.end(F.silu(self.norm(h)))


@healthy(0.5)
def digits_out_of_noise_and_their_average(folder):
    """DDPM; what is scored is an average of the weights."""
    seeded(817)
    (x, _), (apart, _) = parted()
    net, loader = Denoiser(), rounds(x[:, None] * 2 - 1, batch=32)
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.98))
    keep = torch.cumprod(1 - torch.linspace(1e-3, 0.1, 100), 0)
    make = optim.AdamW(net.parameters(), 2e-3)

    def error(of, x):
        t, noise = torch.randint(100, (len(x),)), torch.randn_like(x)
        share = keep[t][:, None, None, None]
        return F.mse_loss(of(share.sqrt() * x + (1 - share).sqrt() * noise, t), noise)

    return fit(
        folder, net, make, lambda step: error(net, *next(loader)), 350,
        schedule=plans.LinearLR(make, 0.05, total_iters=20),
        score=score_of(lambda step: error(average, apart[:, None] * 2 - 1), 3),
        before_step=lambda step: clip_grad_norm_(net.parameters(), 1.0),
        after_step=lambda step: average.update_parameters(net),
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------------- a distance


class Waves(nn.Module):
    """A net of the waves of its coordinates, as in NeRF."""

    def __init__(self, octaves=3):
        super().__init__()
        self.pitch = 2.0 ** torch.arange(octaves)
        self.body = dense(2 + 4 * octaves, 48, 48, 48, 1, act=nn.SiLU)

    def forward(self, x):
        angle = (x[:, :, None] * self.pitch).flatten(1)
        return self.body(torch.cat([x, angle.sin(), angle.cos()], 1))[:, 0]


def heart(p):
    """How far each point is from the rim of a heart; below zero inside."""
    x, y = p[:, 0].abs(), p[:, 1] + 0.5
    round_part = ((x - 0.25).square() + (y - 0.75).square()).sqrt() - 8**0.5 / 8
    top = x.square() + (y - 1).square()
    along = 0.5 * (x + y).clamp_min(0)
    side = torch.minimum(top, (x - along).square() + (y - along).square()).clamp_min(1e-8).sqrt() * (x - y).sign()
    return torch.where(x + y > 1, round_part, side)


@healthy(0.5)
def heart_as_a_distance(folder):
    """The slope of a distance has a length of 1: a gradient of a gradient is a tenth of the loss."""
    seeded(820)
    net = Waves()
    make = optim.Adam(net.parameters(), 2e-3)

    def loss_of(step):
        at = (2 * torch.rand(128, 2) - 1).requires_grad_()
        found = net(at)
        (slope,) = torch.autograd.grad(found.sum(), at, create_graph=True)
        far, uneven = (found - heart(at.detach())).abs().mean(), (slope.norm(dim=1) - 1).square().mean()
        return far + 0.1 * uneven, {"far": far, "uneven": uneven}

    def distance(step):
        at = 2 * torch.rand(512, 2) - 1
        return (net(at) - heart(at)).abs().mean()

    plan = plans.ExponentialLR(make, 0.995)
    return fit(folder, net, make, loss_of, 500, schedule=plan, score=score_of(distance))
