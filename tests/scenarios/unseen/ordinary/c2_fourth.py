"""Healthy trainings of an unusual make, on the railway: mixtures, sines, flows, equations, codes, pairs of networks."""

from __future__ import annotations

import copy
import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, rings, seeded
from unseen.tasks import circle, held_out, in_turn, rounds, tend


@healthy(0.5)
def waits_at_the_level_crossing(folder):
    seeded(12960)
    net = dense(1, 48, 48, 9, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def waited(rows):
        x = 2 * torch.rand(rows, 1) - 1
        side = (torch.rand(rows, 1) < 0.5).float() * 2 - 1
        return x, side * (0.6 + 0.4 * (3 * x).sin()) + 0.05 * torch.randn(rows, 1)

    def loss_on(x, y):
        share, middle, width = net(x).chunk(3, 1)
        each = -0.5 * ((y - middle) / width.exp()).square() - width - 0.5 * math.log(2 * math.pi)
        return -(share.log_softmax(1) + each).logsumexp(1).mean()

    x, y = waited(600)
    score = held_out(net, lambda: loss_on(x, y))
    return fit(folder, net, optimizer, lambda step: loss_on(*waited(128)), 400, score=score)


class Sine(nn.Module):
    """A linear layer under a sine."""

    def __init__(self, before, after, pace, first):
        super().__init__()
        self.pace, self.linear = pace, nn.Linear(before, after)
        bound = 1 / before if first else math.sqrt(6 / before) / pace
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x):
        return (self.pace * self.linear(x)).sin()


@healthy(0.7)
def hum_of_the_telegraph_wire(folder):
    seeded(12961)
    net = nn.Sequential(Sine(1, 48, 30.0, True), Sine(48, 48, 30.0, False), nn.Linear(48, 1))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    time = torch.linspace(-1, 1, 512)[:, None]
    hum = (25 * time).sin() * 0.6 + (61 * time).sin() * 0.3 + (9 * time).cos() * 0.4
    between = (time[1:] + time[:-1]) / 2
    truth = (25 * between).sin() * 0.6 + (61 * between).sin() * 0.3 + (9 * between).cos() * 0.4
    return fit(folder, net, optimizer, lambda step: F.mse_loss(net(time), hum), 300,
               score=held_out(net, lambda: F.mse_loss(net(between), truth)))  # fmt: skip


@healthy(0.4)
def buffers_under_a_rolling_wagon(folder):
    seeded(12962)
    net = dense(1, 32, 32, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    damp, stiff = 0.5, 4.0
    pace = math.sqrt(stiff - damp**2 / 4)
    grid = torch.linspace(0, 3, 100)[:, None]
    truth = torch.exp(-damp * grid / 2) * ((pace * grid).cos() + damp / (2 * pace) * (pace * grid).sin())

    def loss_of(step):
        time = (3 * torch.rand(64, 1)).requires_grad_()
        place = net(time)
        speed = torch.autograd.grad(place.sum(), time, create_graph=True)[0]
        push = torch.autograd.grad(speed.sum(), time, create_graph=True)[0]
        start = torch.zeros(1, 1, requires_grad=True)
        began = net(start)
        pace_then = torch.autograd.grad(began.sum(), start, create_graph=True)[0]
        residual = (push + damp * speed + stiff * place).square().mean()
        initial = (began - 1).square().mean() + pace_then.square().mean()
        return residual + 10 * initial, {"residual": residual.detach(), "initial": initial.detach()}

    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, lambda: F.mse_loss(net(grid), truth)))


@healthy(0.3)
def semaphores_seen_twice(folder):
    seeded(12963)
    kinds, ways = 8, torch.randn(3, 20)
    middle = 2 * torch.randn(kinds, 3)
    net = nn.ModuleDict({
        "body": nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32)),
        "guess": nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32)),
    })  # fmt: skip
    slow = copy.deepcopy(net["body"]).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def view(point):
        return (point @ ways).tanh() * 2 + 1.2 * torch.randn(len(point), 20)

    def off(a, b):
        return 2 - 2 * F.cosine_similarity(net["guess"](net["body"](a)), slow(b).detach()).mean()

    def one(step):
        point = middle[torch.randint(kinds, (128,))] + 0.2 * torch.randn(128, 3)
        a, b = view(point), view(point)
        loss = (off(a, b) + off(b, a)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for old, new in zip(slow.parameters(), net["body"].parameters(), strict=False):
                old.lerp_(new, 0.03)
        return {"loss": loss}

    kind = torch.randint(kinds, (512,))
    seen = view(middle[kind] + 0.2 * torch.randn(512, 3))

    def score():
        net.eval()
        with torch.no_grad():
            told = net["body"](seen)
            told = F.normalize(told - told.mean(0), dim=1)
        net.train()
        near = (told @ told.T - 2 * torch.eye(512)).topk(5, 1).indices
        return float((kind[near] != kind[:, None]).float().mean())

    return tend(folder, net, optimizer, one, 300, score)


@healthy(0.4)
def dispatch_decoded_without_marks(folder):
    seeded(12964)
    letters, most = 6, 24
    shapes = torch.randn(letters, 3, 8)
    net = nn.Sequential(
        nn.Conv1d(8, 48, 5, padding=2), nn.ReLU(), nn.Conv1d(48, 48, 5, padding=2), nn.ReLU(),
        nn.Conv1d(48, letters + 1, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def sent(rows):
        y = torch.randint(letters, (rows, 4))
        x = 0.3 * torch.randn(rows, most, 8)
        for i in range(4):
            start = 6 * i + torch.randint(3, (rows,))
            for j in range(3):
                x[torch.arange(rows), start + j] += shapes[y[:, i], j]
        return x.transpose(1, 2), y + 1

    def loss_on(x, y):
        said = net(x).permute(2, 0, 1).log_softmax(2)
        return F.ctc_loss(said, y, torch.full((len(y),), most), torch.full((len(y),), 4))

    x, y = sent(200)
    return fit(folder, net, optimizer, lambda step: loss_on(*sent(32)), 200, score=held_out(net, lambda: loss_on(x, y)))


@healthy(0.5)
def parcels_weighed_in_four_lots(folder):
    seeded(12965)
    net = dense(12, 64, 64, 4, act=nn.GELU)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    draw = rings(24)
    x, y = (torch.cat(part) for part in zip(*(draw() for _ in range(20)), strict=False))

    def loss_of(step):
        a, b = draw()
        return F.cross_entropy(net(a), b) / 4

    return fit(folder, net, optimizer, loss_of, 250, accumulate=4,
               score=held_out(net, lambda: F.cross_entropy(net(x), y)))  # fmt: skip


@healthy(0.5)
def ganger_against_inspector(folder):
    seeded(12966)
    make, judge = dense(4, 48, 48, 2), dense(2, 48, 48, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.99))
    of_judge = torch.optim.Adam(judge.parameters(), 2e-3, betas=(0.5, 0.99))

    def made():
        return make(torch.randn(64, 4))

    def judge_loss():
        real, fake = judge(circle()), judge(made().detach())
        return (real - 1).square().mean() / 2 + fake.square().mean() / 2

    def make_loss():
        return (judge(made()) - 1).square().mean() / 2

    def score():
        with torch.no_grad():
            return float((make(torch.randn(512, 4)).norm(dim=1) - 2).abs().mean())

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 400, score)


class Coupling(nn.Module):
    """One half moved and stretched as the other one says."""

    def __init__(self, swap):
        super().__init__()
        self.swap, self.net = swap, dense(1, 32, 32, 2, act=nn.Tanh)

    def forward(self, x):
        a, b = x.flip(1).split(1, 1) if self.swap else x.split(1, 1)
        scale, move = self.net(a).chunk(2, 1)
        scale = scale.tanh()
        x = torch.cat([a, b * scale.exp() + move], 1)
        return (x.flip(1) if self.swap else x), scale[:, 0]


@healthy(0.25)
def spread_of_arrivals_about_noon(folder):
    seeded(12967)
    net = nn.ModuleList(Coupling(bool(i % 2)) for i in range(6))
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def arrivals(rows):
        first = torch.randn(rows)
        return torch.stack([first, 0.8 * first.square() - 1 + 0.2 * torch.randn(rows)], 1)

    def loss_on(x):
        total = 0.0
        for layer in net:
            x, scale = layer(x)
            total = total + scale
        return (0.5 * x.square().sum(1) + math.log(2 * math.pi) - total).mean()

    x = arrivals(600)
    score = held_out(net, lambda: loss_on(x))
    return fit(folder, net, optimizer, lambda step: loss_on(arrivals(128)), 250, score=score)


@healthy(0.5)
def points_heated_in_winter(folder):
    seeded(12968)
    way = torch.randn(3, 3)

    def nights(rows):
        x = torch.randn(rows, 3)
        return x, (x @ way).sin().sum(1, keepdim=True) + 0.1 * torch.randn(rows, 1)

    (x, y), (new_x, new_y) = nights(1000), nights(400)
    net = dense(3, 24, 24, 1, act=nn.Tanh)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2, history_size=20, line_search_fn="strong_wolfe")

    def loss_of(step):
        return F.mse_loss(net(x), y) + 1e-4 * sum(p.square().sum() for p in net.parameters())

    score = held_out(net, lambda: F.mse_loss(net(new_x), new_y))
    return fit(folder, net, optimizer, loss_of, 150, score=score, closure=True)


@healthy(0.3)
def pupil_of_the_stationmaster(folder):
    seeded(12969)
    x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
    order = torch.randperm(len(x))
    x, y = x[order].float() / 16, y[order]
    master, net, heat = dense(64, 128, 128, 10), dense(64, 24, 10), 3.0
    before, draw = torch.optim.Adam(master.parameters(), 2e-3), rounds(64, x[:1400], y[:1400])
    for _ in range(150):
        a, b = draw()
        before.zero_grad()
        F.cross_entropy(master(a), b).backward()
        before.step()
    master.eval().requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def loss_of(step):
        a, b = draw()
        said = net(a)
        soft = F.kl_div((said / heat).log_softmax(1), (master(a) / heat).softmax(1), reduction="batchmean") * heat**2
        hard = F.cross_entropy(said, b)
        return 0.7 * soft + 0.3 * hard, {"soft": soft.detach(), "hard": hard.detach()}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 250, score=score)
