"""Pictures that are made or outlined: knots, footprints, snowflakes, rings of a tree, roads."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, fit, score_of, seeded, sick
from unseen.tasks import held_out

import gradwatch

SIZE = 12
ROWS, COLUMNS = torch.meshgrid(torch.linspace(-1, 1, SIZE), torch.linspace(-1, 1, SIZE), indexing="ij")


def blobs(number, width=0.3):
    """`[B, 1, S, S]` from 0 to 1: two soft blobs at places of their own."""
    x, y = (1.4 * torch.rand(2, number, 2, 1, 1) - 0.7).unbind()
    return (-((COLUMNS - x) ** 2 + (ROWS - y) ** 2) / width**2).exp().amax(1, keepdim=True)


def rings(number):
    """`[B, 1, S, S]` from 0 to 1: a ring of a radius and a brightness of its own."""
    radius, bright = 0.3 + 0.5 * torch.rand(number, 1, 1), 0.7 + 0.3 * torch.rand(number, 1, 1)
    return (bright * (-(((COLUMNS**2 + ROWS**2).sqrt() - radius) ** 2) / 0.02).exp())[:, None]


def flakes(number):
    """`[B, 1, S, S]` from 0 to 1: a six-pointed star of a size of its own."""
    size = 0.3 + 0.4 * torch.rand(number, 1, 1)
    edge = size * (1 + 0.4 * (6 * torch.atan2(ROWS, COLUMNS)).cos())
    return torch.sigmoid(12 * (edge - (COLUMNS**2 + ROWS**2).sqrt()))[:, None]


def apart(make, real, noise=16):
    """`score()`: how far the made pictures lie from real ones along random directions (sliced Wasserstein)."""
    ways, wanted = F.normalize(torch.randn(SIZE * SIZE, 64), dim=0), real(256).flatten(1)

    def score():
        with torch.no_grad():
            made = make(torch.randn(256, noise)).flatten(1)
        return float(((made @ ways).sort(0).values - (wanted @ ways).sort(0).values).abs().mean())

    return score


def maker(noise=16, width=64):
    """A generator of pictures from noise."""
    return nn.Sequential(
        nn.Linear(noise, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, width), nn.BatchNorm1d(width),
        nn.ReLU(), nn.Linear(width, SIZE * SIZE), nn.Sigmoid(), nn.Unflatten(1, (1, SIZE, SIZE)),
    )  # fmt: skip


def judge_of_pictures():
    """A discriminator of pictures."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(SIZE * SIZE, 64), nn.LeakyReLU(0.2),
        nn.Linear(64, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1),
    )  # fmt: skip


def contest(folder, make, judge, of_make, of_judge, judge_turn, make_turn, steps, score):
    """Judge and maker in turn, each under a Watch of its own; a turn does all of a step and gives its loss."""
    first = score()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(make, of_make)}
    w_judge = gradwatch.watch(judge, of_judge, name="D", **options)
    w_make = gradwatch.watch(make, of_make, name="G", run=w_judge, **options)
    with w_judge, w_make:
        for _ in range(steps):
            w_judge.log(loss=judge_turn())
            w_make.log(loss=make_turn())
    return Outcome(gradwatch.open_history(w_judge.dir.parent), first, score())


def real_or_made(judge, real, made):
    told, fooled = judge(real), judge(made)
    return F.binary_cross_entropy_with_logits(told, torch.ones_like(told)) + F.binary_cross_entropy_with_logits(
        fooled, torch.zeros_like(fooled)
    )


def fooling(judge, made):
    told = judge(made)
    return F.binary_cross_entropy_with_logits(told, torch.ones_like(told))


# https://github.com/mikesj-public/convolutional_autoencoder/pull/9
@sick(
    "targets-out-of-range",
    where="the rectified output: the standardised pictures that it has to give back lie below zero for the most part",
    cure="leave the pictures in the range from 0 to 1 (or give the decoder a linear output)",
)  # fmt: skip
def knots_in_planks_rebuilt(folder, ill):
    seeded(2722)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(144, 24),
        nn.Linear(24, 144), nn.ReLU(), nn.Unflatten(1, (16, 3, 3)),
        nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(8, 1, 4, 2, 1), nn.ReLU(),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    many = blobs(512)
    middle, spread = (many.mean(), many.std()) if ill else (torch.tensor(0.0), torch.tensor(1.0))

    def loss_of(step):
        planks = (blobs(32) - middle) / spread
        return F.mse_loss(net(planks), planks)

    def missed(step):
        planks = blobs(64)
        return (net((planks - middle) / spread) * spread + middle - planks).square().mean() / planks.var()

    return fit(folder, net, optimizer, loss_of, 500, score=score_of(missed))


# https://github.com/pytorch/examples/pull/226
@sick(
    "posterior-collapse",
    where="the encoder's head: the divergence, summed over the code, outweighs an error that is a mean over all pixels",
    cure="sum the error over the pixels as well, or divide the divergence by their number",
)  # fmt: skip
def footprints_in_the_snow(folder, ill):
    seeded(2723)
    net = nn.ModuleDict({
        "encode": nn.Sequential(nn.Flatten(), nn.Linear(144, 100), nn.ReLU(), nn.Linear(100, 2 * 8)),
        "decode": nn.Sequential(nn.Linear(8, 100), nn.ReLU(), nn.Linear(100, 144)),
    })  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def rebuilt(code, prints):
        return F.binary_cross_entropy_with_logits(net["decode"](code), prints.flatten(1))

    def loss_of(step):
        prints = blobs(64)
        mean, log_var = net["encode"](prints).chunk(2, 1)
        error = rebuilt(mean + (log_var / 2).exp() * torch.randn_like(mean), prints)
        divergence = -0.5 * (1 + log_var - mean**2 - log_var.exp()).sum(1).mean()
        return error + divergence / (1 if ill else 144), {"error": error, "divergence": divergence}

    def missed(step):
        prints = blobs(64)
        mean = net["encode"](prints).chunk(2, 1)[0]
        return F.mse_loss(net["decode"](mean).sigmoid(), prints.flatten(1)) / prints.var()

    return fit(folder, net, optimizer, loss_of, 600, score=score_of(missed))


# https://github.com/Adversarial-Deep-Learning/code-soup/issues/69
@sick(
    "gradients-accumulate",
    where="the discriminator, D: its gradients are never cleared, and the generator's passes add to them as well",
    cure="clear the discriminator's gradients before each of its steps",
)  # fmt: skip
def snowflakes_out_of_noise(folder, ill):
    seeded(2724)
    make, judge = maker(), judge_of_pictures()
    of_make = torch.optim.Adam(make.parameters(), lr=5e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), lr=2e-3, betas=(0.5, 0.999))

    def judge_turn():
        if not ill:
            of_judge.zero_grad()
        loss = real_or_made(judge, flakes(48), make(torch.randn(48, 16)).detach())
        loss.backward()
        of_judge.step()
        return loss

    def make_turn():
        of_make.zero_grad()
        loss = fooling(judge, make(torch.randn(64, 16)))
        loss.backward()
        of_make.step()
        return loss

    return contest(folder, make, judge, of_make, of_judge, judge_turn, make_turn, 400, apart(make, flakes))


# https://github.com/carpedm20/DCGAN-tensorflow/pull/24
@sick(
    "inputs-not-normalised", "generator-starves",
    where="the discriminator sees real pictures from 0 to 255 beside made ones from 0 to 1, tells them apart at"
    " once and leaves the generator without a slope",
    cure="divide the real pictures by 255",
)  # fmt: skip
def rings_of_a_tree_out_of_noise(folder, ill):
    seeded(2726)
    make, judge = maker(), judge_of_pictures()
    of_make = torch.optim.Adam(make.parameters(), lr=3e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3, betas=(0.5, 0.999))

    def judge_turn():
        of_judge.zero_grad()
        loss = real_or_made(judge, rings(64) * (255 if ill else 1), make(torch.randn(64, 16)).detach())
        loss.backward()
        of_judge.step()
        return loss

    def make_turn():
        of_make.zero_grad()
        loss = fooling(judge, make(torch.randn(64, 16)))
        loss.backward()
        of_make.step()
        return loss

    return contest(folder, make, judge, of_make, of_judge, judge_turn, make_turn, 400, apart(make, rings))


# https://github.com/hiwonjoon/tf-frrn/issues/2
@sick(
    "norm-statistics",
    where="the normalisation layers: their running statistics are never updated, and evaluation uses the first ones",
    cure="let the running statistics follow the batches",
)  # fmt: skip
def roads_in_aerial_tiles(folder, ill):
    seeded(2727)
    momentum = 0.0 if ill else 0.1
    net = nn.Sequential(
        nn.Conv2d(3, 12, 3, 1, 1), nn.BatchNorm2d(12, momentum=momentum), nn.ReLU(),
        nn.Conv2d(12, 12, 3, 1, 1), nn.BatchNorm2d(12, momentum=momentum), nn.ReLU(), nn.Conv2d(12, 1, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)

    def loss_of(step):
        angle, offset = 3.14 * torch.rand(16, 1, 1), torch.rand(16, 1, 1) - 0.5
        roads = ((COLUMNS * angle.cos() + ROWS * angle.sin() - offset).abs() < 0.2).float()[:, None]
        land = torch.tensor([0.3, 0.45, 0.2])[:, None, None] + 0.15 * torch.randn(16, 3, SIZE, SIZE)
        return F.binary_cross_entropy_with_logits(net(land + 0.2 * roads), roads)

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, score_of(loss_of)))
