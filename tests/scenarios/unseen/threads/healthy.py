"""Sound trainings of an ordinary make: stitches and their teacher, charters, a timetable, knots, pollen."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from unseen import dense, fit, healthy, mean, seeded
from unseen.tasks import held_out, rounds


def warmed_cosine(optimizer, warm, steps, floor=0.0):
    def share(step):
        if step < warm:
            return (step + 1) / warm
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, share)


def by_dimension(net, decay):
    """Matrices and kernels decay, biases and norms do not."""
    wide = [p for p in net.parameters() if p.requires_grad and p.dim() >= 2]
    narrow = [p for p in net.parameters() if p.requires_grad and p.dim() < 2]
    return [{"params": wide, "weight_decay": decay}, {"params": narrow, "weight_decay": 0.0}]


def grid(size):
    row = torch.arange(size, dtype=torch.float32)
    return row[:, None].expand(size, size), row[None, :].expand(size, size)


# ------------------------------------------------------------------------------------------------------------ knitting


def swatches(rows, size=12):
    """Charts of six stitches, shifted, in any contrast: `[B, 1, size, size]` and `[B]`."""
    y, x = grid(size)
    periods = torch.tensor([[0, 2], [2, 0], [2, 2], [0, 4], [4, 4], [3, -3]])
    rate = torch.where(periods == 0, torch.zeros(6, 2), 6.2832 / periods)
    kind, phase = torch.randint(6, (rows,)), 6.2832 * torch.rand(rows, 1, 1)
    turn = rate[kind, 0, None, None] * y + rate[kind, 1, None, None] * x
    ink = (turn + phase).sin() * (0.4 + torch.rand(rows, 1, 1))
    return (ink + 0.6 * torch.randn(rows, size, size))[:, None], kind


def chart_reader(width):
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(8 * width, 6),
    )  # fmt: skip


@healthy()
def stitches_named_by_an_apprentice(folder):
    seeded(2400)
    master, apprentice = chart_reader(12), chart_reader(4)
    draw, (x_new, y_new) = rounds(64, *swatches(3000)), swatches(512)
    learning = torch.optim.Adam(master.parameters(), 3e-3)
    for _ in range(150):
        x, y = draw()
        learning.zero_grad()
        F.cross_entropy(master(x), y).backward()
        learning.step()
    master.requires_grad_(False).eval()
    optimizer = torch.optim.SGD(apprentice.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)

    def loss_of(step, warmth=4.0):
        x, y = draw()
        out, wanted = apprentice(x), master(x)
        hard = F.cross_entropy(out, y)
        soft = F.kl_div((out / warmth).log_softmax(1), (wanted / warmth).softmax(1), reduction="batchmean")
        return 0.3 * hard + 0.7 * warmth**2 * soft, {"hard": hard, "accuracy": (out.argmax(1) == y).float().mean()}

    score = held_out(apprentice, lambda: F.cross_entropy(apprentice(x_new), y_new))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)
    return fit(folder, apprentice, optimizer, loss_of, 400, score=score, schedule=schedule)


# ------------------------------------------------------------------------------------------------------------ charters


def pairs_of_charters(rows, of_formulas):
    """What two charters have of 30 formulas, and whether the later cites the earlier."""
    later, earlier = (torch.randn(rows, 6) for _ in range(2))
    affinity = (later * earlier).sum(1) + later[:, 0].abs() + 0.5 * torch.randn(rows)
    formulas = torch.cat([later @ of_formulas, earlier @ of_formulas], 1)
    return formulas + 0.1 * torch.randn(rows, 60), (affinity > 0.8).float()


@healthy(gain=0.2)
def charters_that_cite_each_other(folder, epoch=62, epochs=14, average_from=10):
    seeded(2401)
    of_formulas = torch.randn(6, 30) / 6**0.5
    x_all, y_all = pairs_of_charters(4000, of_formulas)
    x_new, y_new = pairs_of_charters(1000, of_formulas)
    net = dense(60, 96, 96, 1, norm=nn.BatchNorm1d)
    draw, averaged = rounds(64, x_all, y_all), AveragedModel(net)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    level = SWALR(optimizer, swa_lr=0.03, anneal_epochs=2)

    def loss_of(step):
        x, y = draw()
        out = net(x)[:, 0]
        return F.binary_cross_entropy_with_logits(out, y), {"accuracy": ((out > 0) == (y > 0)).float().mean()}

    def after_step(step):
        if (step + 1) % epoch == 0:
            if (step + 1) // epoch > average_from:
                averaged.update_parameters(net)
                level.step()
            else:
                cosine.step()

    def score():
        update_bn(x_all.split(500), averaged)
        return held_out(averaged, lambda: F.binary_cross_entropy_with_logits(averaged(x_new)[:, 0], y_new))()

    return fit(folder, net, optimizer, loss_of, epoch * epochs, score=score, after_step=after_step)


# -------------------------------------------------------------------------------------------------------------- trains


def run_of_trains(policy, trains, stations=20):
    """Each station a train is hurried, let be or held: log-probabilities and costs `[stations, trains]`, entropy."""
    delay, crowd = torch.randn(trains), torch.rand(trains)
    chances, costs, entropy = [], [], 0.0
    for station in range(stations):
        left = torch.full((trains,), 1 - station / stations)
        choice = torch.distributions.Categorical(logits=policy(torch.stack([delay / 4, crowd, left], 1)))
        action = choice.sample()
        chances.append(choice.log_prob(action))
        entropy += choice.entropy().mean() / stations
        delay = delay + crowd - 0.2 + 0.4 * torch.randn(trains) + (action.float() - 1)
        crowd = (0.7 * crowd + 0.3 * torch.rand(trains) + 0.02 * delay).clamp(0, 2)
        costs.append(delay.abs())
    return torch.stack(chances), torch.stack(costs), entropy


@healthy()
def timetable_kept_by_a_dispatcher(folder):
    seeded(2402)
    policy = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 3))
    optimizer = torch.optim.Adam(policy.parameters(), 5e-3)

    def loss_of(step):
        chances, costs, entropy = run_of_trains(policy, 16)
        returns = torch.zeros_like(costs)
        to_come = torch.zeros(costs.shape[1])
        for station in reversed(range(len(costs))):
            to_come = 0.9 * to_come - costs[station]
            returns[station] = to_come
        level = (returns - returns.mean()) / (returns.std() + 1e-8)
        return -(chances * level).mean(), {"return": -costs.sum(0).mean(), "entropy": entropy}

    def score():
        with torch.no_grad():
            return float(run_of_trains(policy, 256)[1].mean())

    return fit(folder, policy, optimizer, loss_of, 250, score=score)


# -------------------------------------------------------------------------------------------------------------- timber


def boards(rows, size=16):
    """Grain of a sawn board with a sound knot, a dead knot, a split, or clear."""
    y, x = grid(size)
    kind, centre = torch.randint(4, (rows,)), 4 + 8 * torch.rand(2, rows, 1, 1)
    radius = ((y - centre[0]).square() + (x - centre[1]).square()).sqrt()
    size_of = 2 + 1.5 * torch.rand(rows, 1, 1)
    disc, ring = torch.sigmoid(2 * (size_of - radius)), torch.exp(-2 * (radius - size_of).square())
    split = torch.exp(-2 * (y - centre[0] - (0.5 * torch.randn(rows, 1, 1)) * (x - centre[1])).square())
    marks = torch.stack([torch.zeros_like(disc), disc, ring, split], 1)[torch.arange(rows), kind]
    grain = 0.4 * (1.2 * y + 6.2832 * torch.rand(rows, 1, 1)).sin()
    return (grain - marks + 0.25 * torch.randn(rows, size, size))[:, None], kind


def separable(inner, outer, stride):
    return nn.Sequential(
        nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False), nn.BatchNorm2d(inner), nn.Hardswish(),
        nn.Conv2d(inner, outer, 1, bias=False), nn.BatchNorm2d(outer), nn.Hardswish(),
    )  # fmt: skip


@healthy()
def knots_in_sawn_timber(folder, epoch=40):
    seeded(2403)
    stem = nn.Sequential(nn.Conv2d(1, 12, 3, 1, 1, bias=False), nn.BatchNorm2d(12), nn.Hardswish())
    end = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4))
    net = nn.Sequential(stem, separable(12, 16, 2), separable(16, 32, 2), end)
    draw, (x_new, y_new) = rounds(64, *boards(epoch * 64)), boards(400)
    optimizer = torch.optim.RMSprop(net.parameters(), 0.004, alpha=0.9, eps=0.0316, momentum=0.9, weight_decay=1e-5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2 * epoch, 0.7)

    def loss_of(step):
        x, y = draw()
        out = net(x)
        return F.cross_entropy(out, y), {"acc1": 100 * (out.argmax(1) == y).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(x_new), y_new))
    return fit(folder, net, optimizer, loss_of, 10 * epoch, score=score, schedule=schedule)


# -------------------------------------------------------------------------------------------------------------- pollen


def grains(rows):
    """What makes a grain: its size, its spikes and their height, its rim."""
    spikes = torch.randint(3, 9, (rows,)).float()
    return torch.stack([3 + 3 * torch.rand(rows), spikes, 1.5 * torch.rand(rows), torch.rand(rows)], 1)[..., None, None]


def seen(grain, size=16):
    """A grain as it happens to lie under the lens: turned, shifted, in some light."""
    y, x = grid(size)
    rows = len(grain)
    shift, turn = 7.5 + torch.randn(2, rows, 1, 1), 6.2832 * torch.rand(rows, 1, 1)
    far = ((y - shift[0]).square() + (x - shift[1]).square()).sqrt()
    edge = grain[:, 0] + grain[:, 2] * (grain[:, 1] * torch.atan2(y - shift[0], x - shift[1]) + turn).sin()
    shape = torch.sigmoid(2 * (edge - far)) - grain[:, 3] * torch.sigmoid(2 * (edge - 1.5 - far))
    return (shape * (0.8 + 0.4 * torch.rand(rows, 1, 1)) + 0.1 * torch.randn(rows, size, size))[:, None]


def two_views(net, grain, warmth):
    z = F.normalize(torch.cat([net(seen(grain)), net(seen(grain))]), dim=1)
    alike = (z @ z.T / warmth).masked_fill(torch.eye(len(z), dtype=torch.bool), -math.inf)
    partner = torch.arange(len(z)).roll(len(grain))
    return F.cross_entropy(alike, partner), (alike.argmax(1) == partner).float().mean()


@healthy()
def pollen_under_the_lens(folder, steps=400):
    seeded(2404)
    body = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
    )  # fmt: skip
    net = nn.Sequential(body, dense(96, 64, 24))
    draw, unseen_grains = rounds(64, grains(2000)), grains(64)
    optimizer = torch.optim.SGD(by_dimension(net, 1e-4), 0.1, momentum=0.9)
    schedule = warmed_cosine(optimizer, 50, steps)

    def loss_of(step):
        loss, top = two_views(net, draw()[0], 0.2)
        return loss, {"top1": top}

    score = held_out(net, lambda: mean([float(two_views(net, unseen_grains, 0.2)[0]) for _ in range(6)]))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)
