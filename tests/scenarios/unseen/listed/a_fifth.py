"""Healthy: wrong labels, a strong decay, a foe that grows, rare ones, two networks in turn, a differential equation."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, in_turn, rounds


@healthy()
def mushrooms_named_by_beginners(folder):
    seeded(10165)
    middles = 1.2 * torch.randn(6, 16)

    def finds(rows, wrong):
        y = torch.randint(6, (rows,))
        x = middles[y] + torch.randn(rows, 16)
        said = torch.where(torch.rand(rows) < wrong, torch.randint(6, (rows,)), y)
        return x, said

    draw = rounds(64, *finds(3000, 0.4))
    net = dense(16, 64, 64, 6)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-3)

    def loss_of(step):  # a generalised cross-entropy, which wrong labels mislead less
        x, y = draw()
        share = net(x).softmax(1).gather(1, y[:, None])
        return ((1 - share.clamp(min=1e-6) ** 0.7) / 0.7).mean()

    x, y = finds(1024, 0)
    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.cross_entropy(net(x), y)))


@healthy()
def hours_added_on_a_ships_clock(folder):
    seeded(10166)
    hours = 24
    a, b = torch.cartesian_prod(torch.arange(hours), torch.arange(hours)).T
    order = torch.randperm(len(a))
    kept, rest = order[:460], order[460:]
    net = nn.ModuleDict({"hour": nn.Embedding(hours, 64), "body": dense(64, 128, hours)})
    # the decay is meant: with it the sum is found, and not a table learnt by heart
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))

    def loss_on(rows):
        said = net["body"](net["hour"](a[rows]) + net["hour"](b[rows]))
        return F.cross_entropy(said, (a[rows] + b[rows]) % hours)

    def loss_of(step):
        with torch.no_grad():
            unseen_loss = loss_on(rest)
        return loss_on(kept), {"val_loss": float(unseen_loss)}

    score = held_out(net, lambda: loss_on(rest))
    return fit(folder, net, optimizer, loss_of, 1500, score=score, schedule=schedule)


@healthy()
def coins_under_scratched_glass(folder):
    seeded(10167)
    faces = (torch.randn(5, 1, 10, 10) > 0).float()
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 25, 48), nn.ReLU(),
        nn.Linear(48, 5),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def coins(rows):
        y = torch.randint(5, (rows,))
        return faces[y] + 0.3 * torch.randn(rows, 1, 10, 10), y

    def scratched(x, y, most):
        push = torch.zeros_like(x)
        for _ in range(3):
            push.requires_grad_(True)
            (slope,) = torch.autograd.grad(F.cross_entropy(net(x + push), y), push)
            push = (push.detach() + most / 2 * slope.sign()).clamp(-most, most)
        return x + push

    def loss_of(step):  # the scratches grow, so the loss rises now and then while the net gets better
        x, y = coins(48)
        most = 0.45 * min(1.0, step / 250)
        return F.cross_entropy(net(scratched(x, y, most)), y), {"epsilon": most}

    test = coins(256)

    def score():
        return float(F.cross_entropy(net(scratched(*test, 0.3)), test[1]).detach())

    return fit(folder, net, optimizer, loss_of, 300, score=score)


@healthy()
def rare_meteors_in_night_frames(folder):
    seeded(10168)

    def frames(rows, share):
        y = (torch.rand(rows) < share).float()
        image = 0.3 * torch.randn(rows, 14, 14)
        at, slant = torch.randint(2, 9, (rows, 2)), torch.randint(2, (rows,))
        for i in range(4):
            across = torch.where(slant > 0, at[:, 1] + i, at[:, 1])
            image[torch.arange(rows), at[:, 0] + i, across] += 1.5 * y
        return image[:, None], y

    draw = rounds(128, *frames(6000, 0.03))
    net = nn.Sequential(
        nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d(1),
        nn.Flatten(), nn.Linear(12, 1),
    )  # fmt: skip
    nn.init.constant_(net[-1].bias, -math.log(0.97 / 0.03))
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)

    def focal(x, y):
        said = net(x)[:, 0]
        missed = torch.where(y > 0, 1 - said.sigmoid(), said.sigmoid())
        each = F.binary_cross_entropy_with_logits(said, y, reduction="none") * missed.square()
        return (torch.where(y > 0, 0.75, 0.25) * each).sum() / y.sum().clamp(min=1)

    test = frames(1000, 0.1)
    score = held_out(net, lambda: focal(*test))
    return fit(folder, net, optimizer, lambda step: focal(*draw()), 200, score=score)


@healthy()
def pebbles_on_a_storm_beach(folder):
    seeded(10169)
    middles = torch.tensor([[2.0, 0.0], [-1.0, 1.7], [-1.0, -1.7]])
    ways = F.normalize(torch.randn(2, 32), dim=0)
    make, judge = dense(4, 48, 48, 2), dense(2, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.0, 0.9))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.0, 0.9))

    def pebbles(rows):
        return middles[torch.randint(3, (rows,))] + 0.3 * torch.randn(rows, 2)

    def judge_loss():
        real, fake = pebbles(64), make(torch.randn(64, 4)).detach()
        between = torch.lerp(real, fake, torch.rand(64, 1)).requires_grad_(True)
        (slope,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
        return judge(fake).mean() - judge(real).mean() + 5 * (slope.norm(dim=1) - 1).square().mean()

    real, noise = pebbles(1024), torch.randn(1024, 4)

    def score():
        with torch.no_grad():
            a, b = ((rows @ ways).sort(0).values for rows in (real, make(noise)))
            return float((a - b).abs().mean())

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, lambda: -judge(make(torch.randn(64, 4))).mean(),
                   350, score, rounds=3)  # fmt: skip


@healthy()
def a_spring_scale_coming_to_rest(folder):
    seeded(10170)
    net = dense(1, 40, 40, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.998)

    def height(t):  # h'' + 0.8 h' + 6 h = 0, which starts at 1 and at rest
        return 1 + t * t * net(t)

    def loss_of(step):
        t = (3 * torch.rand(64, 1)).requires_grad_(True)
        h = height(t)
        (speed,) = torch.autograd.grad(h.sum(), t, create_graph=True)
        (force,) = torch.autograd.grad(speed.sum(), t, create_graph=True)
        return (force + 0.8 * speed + 6 * h).square().mean()

    time = torch.linspace(0, 3, 100)[:, None]
    beat = math.sqrt(6 - 0.16)
    truth = (-0.4 * time).exp() * ((beat * time).cos() + 0.4 / beat * (beat * time).sin())
    return fit(folder, net, optimizer, loss_of, 1000, schedule=schedule,
               score=held_out(net, lambda: (height(time) - truth).abs().mean()))  # fmt: skip
