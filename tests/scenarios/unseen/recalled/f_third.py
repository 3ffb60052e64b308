"""Ordinary trainings that go well: crafts, instruments and sports."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_digits, load_wine
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, in_turn, rounds


@healthy(0.5)
def digits_carved_by_a_whittler(folder):
    seeded(10650)
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x).float().view(-1, 1, 8, 8) / 16, torch.tensor(y)
    x = (x - 0.305) / 0.376
    order = torch.randperm(len(x))
    train, test = order[:1500], order[1500:]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    steps = 230
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps + 1)
    draw = rounds(64, x[train], y[train])

    def loss_of(step):
        a, b = draw()
        said = net(a)
        return F.cross_entropy(said, b), {"accuracy": (said.argmax(1) == b).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(x[test]), y[test]))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


@healthy(0.5)
def ticks_of_two_metronomes_ahead(folder):
    seeded(10651)

    def ticks(rows):
        time = torch.arange(33.0)
        first, second = (0.2 + 0.5 * torch.rand(rows, 1) for _ in range(2))
        one, two = ((pace * time + 6.3 * torch.rand(rows, 1)).sin() for pace in (first, second))
        return (one + 0.5 * two)[:, :, None] + 0.02 * torch.randn(rows, 33, 1)

    net = nn.ModuleDict({"memory": nn.LSTM(1, 32, batch_first=True), "head": nn.Linear(32, 1)})
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    test = ticks(200)

    def loss_on(x):
        return F.mse_loss(net["head"](net["memory"](x[:, :-1])[0])[:, 8:], x[:, 9:])

    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, lambda step: loss_on(ticks(32)), 250, score=score, before_step=clipped(net, 1.0))


@healthy(0.3)
def juggling_patterns_throw_by_throw(folder):
    seeded(10652)
    heights, length, width = 8, 24, 32
    net = nn.ModuleDict({
        "token": nn.Embedding(heights, width),
        "place": nn.Embedding(length, width),
        "body": nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, 4, 64, dropout=0.1, batch_first=True, norm_first=True), 2,
            enable_nested_tensor=False,
        ),
        "norm": nn.LayerNorm(width),
        "head": nn.Linear(width, heights),
    })  # fmt: skip
    steps = 300
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)

    def rate(step):
        warm = min(1.0, (step + 1) / 30)
        return warm * 0.5 * (1 + math.cos(math.pi * step / steps))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    mask = torch.full((length, length), -torch.inf).triu(1)

    def patterns(rows):
        period = torch.randint(2, 5, (rows, 1))
        base = torch.randint(heights, (rows, 5))
        return base.gather(1, torch.arange(length + 1).expand(rows, -1) % period)

    def loss_on(x):
        h = net["token"](x[:, :-1]) + net["place"](torch.arange(length))
        said = net["head"](net["norm"](net["body"](h, mask=mask)))
        return F.cross_entropy(said.flatten(0, 1), x[:, 1:].flatten())

    test = patterns(128)
    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, lambda step: loss_on(patterns(24)), steps, score=score, schedule=schedule,
               before_step=clipped(net, 1.0))  # fmt: skip


class Nest(nn.Module):
    """A small U-net."""

    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.ReLU())
        self.deep = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.GroupNorm(4, 24), nn.ReLU())
        self.up = nn.ConvTranspose2d(24, 12, 2, 2)
        self.out = nn.Sequential(nn.Conv2d(24, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1))

    def forward(self, x):
        high = self.down(x)
        return self.out(torch.cat([high, self.up(self.deep(high))], 1))


@healthy(0.4)
def cracks_in_a_glazed_bowl(folder):
    seeded(10653)

    def bowls(rows):
        at = torch.linspace(-1, 1, 16)
        turn, off = 3.1416 * torch.rand(rows, 1, 1), torch.rand(rows, 1, 1) - 0.5
        line = turn.cos() * at[:, None] + turn.sin() * at - off + 0.1 * (5 * at[:, None]).sin()
        crack = (line.abs() < 0.13).float()
        return (0.3 * torch.randn(rows, 16, 16) - 0.6 * crack + 0.5)[:, None], crack[:, None]

    net = Nest()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def loss_on(x, y):
        said = net(x)
        p = said.sigmoid()
        dice = 1 - (2 * (p * y).sum((1, 2, 3)) + 1) / (p.sum((1, 2, 3)) + y.sum((1, 2, 3)) + 1)
        return F.binary_cross_entropy_with_logits(said, y) + dice.mean(), {"dice": 1 - dice.mean().detach()}

    test = bowls(128)
    score = held_out(net, lambda: loss_on(*test)[0])
    return fit(folder, net, optimizer, lambda step: loss_on(*bowls(16)), 200, score=score)


@healthy(0.3)
def shapes_of_hand_blown_vases(folder):
    seeded(10654)
    height = torch.linspace(0, 1, 32)

    def vases(rows):
        a, b, c = torch.rand(3, rows, 1)
        return 0.2 + 0.6 * torch.exp(-((height - a) ** 2) / (0.02 + 0.1 * b)) + 0.3 * c * height

    net = nn.ModuleDict({"encoder": dense(32, 64, 8), "decoder": dense(4, 64, 32)})
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def parts(x):
        mean, log_variance = net["encoder"](x).chunk(2, 1)
        z = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        error = (net["decoder"](z) - x).square().sum(1).mean() / 0.02
        return error, 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()

    def loss_of(step):
        error, divergence = parts(vases(64))
        return error + min(1.0, step / 100) * divergence, {"reconstruction": error, "kl": divergence}

    test = vases(500)
    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: sum(parts(test))))


@healthy(0.8)
def darts_thrown_by_a_machine(folder):
    seeded(10655)
    centres = 2 * torch.tensor([[1.0, 0.0], [-0.5, 0.87], [-0.5, -0.87]])

    def darts(rows):
        return centres[torch.randint(3, (rows,))] + 0.2 * torch.randn(rows, 2)

    make, judge = dense(4, 64, 64, 2), dense(2, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.9))
    of_judge = torch.optim.Adam(judge.parameters(), 2e-3, betas=(0.5, 0.9))

    def judged():
        board = darts(128).requires_grad_(True)
        real, fake = judge(board), judge(make(torch.randn(128, 4)).detach())
        slope = torch.autograd.grad(real.sum(), board, create_graph=True)[0]
        return F.softplus(-real).mean() + F.softplus(fake).mean() + 0.05 * slope.square().sum(1).mean()

    def made():
        return F.softplus(-judge(make(torch.randn(128, 4)))).mean()

    real = darts(400)

    def score():
        with torch.no_grad():
            fake = make(torch.randn(400, 4))
            cross = torch.cdist(real, fake).mean()
            return float(2 * cross - torch.cdist(real, real).mean() - torch.cdist(fake, fake).mean())

    return in_turn(folder, make, judge, of_make, of_judge, judged, made, 800, score)


@healthy(0.3)
def two_takes_of_the_same_banjo(folder):
    seeded(10656)
    lift = torch.randn(6, 40) / 2
    net = nn.ModuleDict({"body": dense(40, 96, 48, norm=nn.BatchNorm1d), "project": dense(48, 48, 16)})
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-4)

    def loss_on(rows):
        tune = torch.randn(rows, 6) @ lift
        takes = torch.cat([(tune + 0.25 * torch.randn(rows, 40)).tanh() for _ in range(2)])
        z = F.normalize(net["project"](net["body"](takes)), dim=1)
        near = (z @ z.T / 0.2).fill_diagonal_(-1e9)
        return F.cross_entropy(near, torch.arange(2 * rows).roll(rows))

    score = held_out(net, lambda: sum(loss_on(48) for _ in range(8)) / 8)
    return fit(folder, net, optimizer, lambda step: loss_on(48), 250, score=score)


@healthy(0.5)
def casks_told_apart_by_a_cooper(folder):
    seeded(10657)
    x, y = load_wine(return_X_y=True)
    x, y = torch.tensor(x).float(), torch.tensor(y)
    order = torch.randperm(len(x))
    train, test = order[:130], order[130:]
    x = (x - x[train].mean(0)) / x[train].std(0)
    net = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 60, 0.3)
    draw = rounds(16, x[train], y[train])

    def loss_of(step):
        a, b = draw()
        return F.cross_entropy(net(a), b)

    score = held_out(net, lambda: F.cross_entropy(net(x[test]), y[test]))
    return fit(folder, net, optimizer, loss_of, 160, score=score, schedule=schedule)


@healthy(0.4)
def leagues_of_a_fencing_federation(folder):
    seeded(10658)
    clubs, leagues = 240, 4
    league = torch.randint(leagues, (clubs,))
    same = league[:, None] == league
    bouts = (torch.rand(clubs, clubs) < torch.where(same, 0.12, 0.015)).float()
    bouts = ((bouts + bouts.T) > 0).float().fill_diagonal_(1)
    root = bouts.sum(1).rsqrt()
    near = root[:, None] * bouts * root
    x = torch.randn(leagues, 16)[league] * 0.6 + torch.randn(clubs, 16)
    first, second = nn.Linear(16, 32), nn.Linear(32, leagues)
    net = nn.ModuleDict({"first": first, "second": second, "drop": nn.Dropout(0.4)})
    optimizer = torch.optim.Adam(net.parameters(), 1e-2, weight_decay=5e-4)
    known = torch.randperm(clubs)[:80]
    other = torch.ones(clubs, dtype=torch.bool).index_fill(0, known, False)

    def out():
        return near @ second(net["drop"](near @ first(x)).relu())

    return fit(folder, net, optimizer, lambda step: F.cross_entropy(out()[known], league[known]), 120,
               score=held_out(net, lambda: F.cross_entropy(out()[other], league[other])))  # fmt: skip
