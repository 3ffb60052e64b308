"""Asked healthy trainings, third part: agents, games, views and tastes. An expert has nothing to say of any.

They only count (the group `asked`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import copy

import torch
from nets import batches
from torch import nn, optim
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm
from unseen import dense, fit, healthy, score_of, seeded
from unseen.tasks import play


@healthy(0.3)
def way_home_by_values(folder):
    """Q-learning from old moves on a 5 x 5 board: a step costs 1, home ends it; a copy lags behind."""
    seeded(641)
    net, moves = dense(2, 48, 48, 4), torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])
    slow = copy.deepcopy(net).requires_grad_(False)

    def moved(at, action):
        there = (at + moves[action]).clamp(0, 4)
        return there, (there == 4).all(1)

    def loss_of(step):
        at, action = torch.randint(5, (64, 2)), torch.randint(4, (64,))
        there, home = moved(at, action)
        with torch.no_grad():
            wanted = -1 + 0.9 * slow(there / 2 - 1).amax(1) * ~home
        said = net(at / 2 - 1).gather(1, action[:, None])[:, 0]
        with torch.no_grad():
            for p, q in zip(net.parameters(), slow.parameters(), strict=True):
                q.lerp_(p, 0.02)
        return F.smooth_l1_loss(said, wanted)

    def score():
        """How many steps home takes, at most 20."""
        at = torch.tensor([[x, y] for x in range(4) for y in range(4)])
        taken = torch.zeros(16)
        with torch.no_grad():
            for _ in range(20):
                away = ~(at == 4).all(1)
                taken += away
                at = torch.where(away[:, None], moved(at, net(at / 2 - 1).argmax(1))[0], at)
        return float(taken.mean())

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 600, score=score)


@healthy(0.3)
def adversaries_with_rates_of_their_own(folder):
    """A judge of spectral norm 1 and four times the rate of what it judges (TTUR, Heusel et al. 2017)."""
    seeded(642)
    make, judge = dense(4, 48, 48, 2), dense(2, 48, 48, 1, act=nn.LeakyReLU)
    for part in judge:
        if isinstance(part, nn.Linear):
            spectral_norm(part)

    def judge_loss(real, made):
        return (1 - 4 * judge(real)).relu().mean() + (1 + 4 * judge(made)).relu().mean()

    def make_loss(made):
        return -4 * judge(made).mean()

    of_make, of_judge = (
        optim.Adam(make.parameters(), 1e-3, (0.0, 0.9)),
        optim.Adam(judge.parameters(), 4e-3, (0.0, 0.9)),
    )
    return play(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 500)


def shaken(x):
    """Images moved a little, dimmed and noisy."""
    x = torch.roll(x, int(torch.randint(-1, 2, ())), 2)
    return (x * (0.7 + 0.6 * torch.rand(len(x), 1, 1)) + 0.15 * torch.randn_like(x)).flatten(1)


@healthy(0.3)
def views_that_predict_one_another(folder):
    """Nothing keeps apart what is unlike but a stopped gradient and a predictor (SimSiam, Chen and He 2021)."""
    seeded(643)
    norm = nn.BatchNorm1d
    net = nn.ModuleDict({"body": dense(64, 48, 24, norm=norm), "guess": dense(24, 12, 24, norm=norm)})
    draw = batches(64)

    def loss_of(step):
        x = draw(step)[0]
        a, b = net["body"](shaken(x)), net["body"](shaken(x))
        pairs = ((net["guess"](a), b.detach()), (net["guess"](b), a.detach()))
        return 1 - sum(F.cosine_similarity(p, z).mean() for p, z in pairs) / 2

    make = optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    return fit(folder, net, make, loss_of, 250, schedule=optim.lr_scheduler.CosineAnnealingLR(make, 250))


@healthy(0.2)
def views_told_from_all_others(folder):
    """Two views of each of 48 digits, to be told from the other 94 (SimCLR, Chen et al. 2020)."""
    seeded(644)
    net, draw = dense(64, 64, 64, 24), batches(48)

    def loss_of(step):
        x = draw(step)[0]
        z = F.normalize(net(torch.cat([shaken(x), shaken(x)])), dim=1)
        alike = (z @ z.T / 0.2).masked_fill(torch.eye(96, dtype=torch.bool), -1e9)
        return F.cross_entropy(alike, (torch.arange(96) + 48) % 96)

    return fit(folder, net, optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-2), loss_of, 250)


@healthy(0.3)
def what_is_liked_before_what_is_not(folder):
    """Two tables of tastes, by pairs (BPR, Rendle et al. 2009); a row is seen now and then."""
    seeded(645)
    net = nn.ModuleDict({"who": nn.Embedding(150, 12), "what": nn.Embedding(200, 12)})
    for table in net.values():
        nn.init.normal_(table.weight, std=0.1)
    taste = torch.randn(150, 4) @ torch.randn(4, 200)

    def loss_of(step):
        who, one, two = torch.randint(150, (256,)), torch.randint(200, (256,)), torch.randint(200, (256,))
        better = taste[who, one] > taste[who, two]
        one, two = torch.where(better, one, two), torch.where(better, two, one)
        gap = (net["who"](who) * (net["what"](one) - net["what"](two))).sum(1)
        return F.softplus(-gap).mean()

    return fit(folder, net, optim.Adam(net.parameters(), 0.01, weight_decay=1e-5), loss_of, 400)


class Turned(torch.autograd.Function):
    """What it is handed; its gradient with the other sign (Ganin and Lempitsky 2015)."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -0.3 * grad


@healthy(0.3)
def kinds_told_and_origins_forgotten(folder):
    """Two cameras; the features are to name the digit and not the camera: one loss is climbed on purpose."""
    seeded(646)
    net = nn.ModuleDict({"body": dense(64, 48, 32), "kind": nn.Linear(32, 10), "origin": dense(32, 24, 2)})
    draw, tint = batches(64), 0.5 * torch.randn(2, 64)

    def parts(step):
        x, y = draw(step)
        origin = torch.randint(2, (64,))
        h = net["body"](x.flatten(1) + tint[origin]).relu()
        return F.cross_entropy(net["kind"](h), y), F.cross_entropy(net["origin"](Turned.apply(h)), origin)

    def loss_of(step):
        kind, origin = parts(step)
        return kind + origin, {"kind": kind, "origin": origin}

    score = score_of(lambda step: parts(9000 + step)[0], 4)
    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 300, score=score)


def moons(rows=64):
    """Two half circles around one another; `[B, 2]`."""
    angle, upper = 3.1416 * torch.rand(rows, 1), torch.rand(rows, 1) < 0.5
    x = torch.where(upper, angle.cos(), 1 - angle.cos()) - 0.5
    return torch.cat([x, torch.where(upper, angle.sin(), 0.5 - angle.sin()) - 0.25], 1) + 0.05 * torch.randn(rows, 2)


@healthy(0.15)
def moons_out_of_noise(folder):
    """What there was before the noise, under a cosine of noise (Nichol and Dhariwal 2021); its average counts."""
    seeded(647)
    net = dense(4, 64, 64, 2, act=nn.SiLU)
    mean = copy.deepcopy(net).requires_grad_(False)

    def error(of):
        def loss_of(step):
            x, t = moons(), torch.rand(64, 1)
            keep = (1.5708 * t).cos()
            noisy = keep * x + (1 - keep.square()).sqrt() * torch.randn_like(x)
            return F.mse_loss(of(torch.cat([noisy, keep, t], 1)), x)

        return loss_of

    def after(step):
        with torch.no_grad():
            for p, q in zip(net.parameters(), mean.parameters(), strict=True):
                q.lerp_(p, 0.01)

    make = optim.AdamW(net.parameters(), 2e-3)
    return fit(folder, net, make, error(net), 600, after_step=after, score=score_of(error(mean), 16))
