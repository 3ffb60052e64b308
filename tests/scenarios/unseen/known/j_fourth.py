"""Healthy trainings that are unusual and sound."""

from __future__ import annotations

import copy
import math

import torch
from sklearn.datasets import load_digits, load_wine
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


# Plain SGD at a rate of 10 under a clip that acts in nearly every step and is meant: the recipe of word models of old.
@healthy()
def hymns_word_by_word_at_a_rate_of_ten(folder):
    seeded(11060)
    words = 40
    after = torch.stack([torch.randperm(words)[:3] for _ in range(words)])

    def hymns(rows):
        at, said = torch.randint(words, (rows,)), []
        for _ in range(21):
            said.append(at)
            at = after[at, torch.randint(3, (rows,))]
        return torch.stack(said, 1)

    net = nn.ModuleDict({"word": nn.Embedding(words, 48), "read": nn.LSTM(48, 48, batch_first=True)})
    net["say"] = nn.Linear(48, words)
    net["say"].weight = net["word"].weight
    nn.init.uniform_(net["word"].weight, -0.1, 0.1)
    optimizer = torch.optim.SGD(net.parameters(), 10.0)

    def loss_on(text):
        states = net["read"](net["word"](text[:, :-1]))[0]
        return F.cross_entropy(net["say"](states).flatten(0, 1), text[:, 1:].flatten())

    test = hymns(100)
    return fit(folder, net, optimizer, lambda step: loss_on(hymns(20)), 400, before_step=clipped(net, 0.25),
               score=held_out(net, lambda: loss_on(test)))  # fmt: skip


# A density may be above 1, so its negative logarithm ends below 0.
@healthy()
def when_the_bell_rings_for_break(folder):
    seeded(11061)

    def bells(rows):
        x = 4 * torch.rand(rows, 1) - 2
        side = 2 * torch.randint(2, (rows, 1)) - 1
        return x, 0.5 * (1.5 * x).sin() + 0.4 * side + 0.03 * torch.randn(rows, 1)

    net = dense(1, 64, 64, 9, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 800)

    def loss_on(x, y):
        share, middle, spread = net(x).chunk(3, 1)
        spread = spread.clamp(-6, 3)
        each = -((y - middle) / spread.exp()).square() / 2 - spread - math.log(2 * math.pi) / 2
        return -(share.log_softmax(1) + each).logsumexp(1).mean()

    x, y = bells(500)
    score = held_out(net, lambda: loss_on(x, y))
    return fit(folder, net, optimizer, lambda step: loss_on(*bells(128)), 800, score=score, schedule=schedule)


# The loss rises each time the scales grow longer, and comes down again.
@healthy()
def scales_that_grow_longer_each_week(folder):
    seeded(11062)
    net = nn.ModuleDict({"read": nn.GRU(2, 40, batch_first=True), "say": nn.Linear(40, 1)})
    optimizer = torch.optim.RMSprop(net.parameters(), 2e-3)

    def loss_on(rows, length):
        step, kept = torch.rand(rows, length), (torch.rand(rows, length) < 0.4).float()
        wanted = (step * kept).sum(1)
        return F.mse_loss(net["say"](net["read"](torch.stack([step, kept], 2))[0][:, -1])[:, 0], wanted)

    def loss_of(step):
        length = 4 + 4 * (step // 120)
        return loss_on(64, length), {"length": length}

    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, lambda: loss_on(400, 20)),
               before_step=clipped(net, 1.0))  # fmt: skip


# A third of the labels are wrong: a loss that stays high, smoothed, and a net that is right nevertheless.
@healthy()
def genres_guessed_by_careless_clerks(folder):
    seeded(11063)
    kinds, look = 6, torch.randn(6, 16)

    def novels(rows):
        y = torch.randint(kinds, (rows,))
        return look[y] + 0.6 * torch.randn(rows, 16), y

    x, y = novels(3000)
    slip = torch.rand(3000) < 0.33
    y = torch.where(slip, torch.randint(kinds, (3000,)), y)
    draw = rounds(100, x, y)
    net = dense(16, 48, kinds, act=nn.GELU)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y, label_smoothing=0.1)

    tx, ty = novels(500)
    return fit(folder, net, optimizer, loss_of, 240, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


# A table of sums by a net that a decoupled weight decay of 1 holds small.
@healthy()
def sums_on_a_clock_with_seven_hours(folder):
    seeded(11064)
    hours = 7
    a, b = (t.flatten() for t in torch.meshgrid(torch.arange(hours), torch.arange(hours), indexing="ij"))
    order = torch.randperm(hours * hours)
    net = nn.Sequential(nn.Embedding(hours, 48), nn.Flatten(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, hours))
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=1.0, betas=(0.9, 0.98))

    def loss_on(rows):
        return F.cross_entropy(net(torch.stack([a, b], 1)[rows]), ((a + b) % hours)[rows])

    return fit(folder, net, optimizer, lambda step: loss_on(order), 1000, score=held_out(net, lambda: loss_on(order)))


# The string's equation is the loss, by second derivatives of the net; both ends and the pluck are built in.
@healthy()
def a_plucked_string_from_its_equation(folder):
    seeded(11065)
    net = dense(2, 32, 32, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def sway(x, t):
        return (math.pi * x).sin() + t.square() * x * (1 - x) * net(torch.cat([2 * x - 1, 2 * t - 1], 1))

    def loss_of(step):
        x, t = torch.rand(96, 1, requires_grad=True), torch.rand(96, 1, requires_grad=True)
        u = sway(x, t)
        by_x, by_t = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
        by_xx = torch.autograd.grad(by_x.sum(), x, create_graph=True)[0]
        by_tt = torch.autograd.grad(by_t.sum(), t, create_graph=True)[0]
        return (by_tt - by_xx).square().mean()

    x, t = torch.rand(500, 1), torch.rand(500, 1)

    def score():
        with torch.no_grad():
            return float((sway(x, t) - (math.pi * x).sin() * (math.pi * t).cos()).square().mean())

    return fit(folder, net, optimizer, loss_of, 500, score=score)


# A pretrained body stays frozen, in evaluation mode; the optimizer holds the new head alone.
@healthy()
def shelf_marks_on_top_of_a_frozen_reader(folder):
    seeded(11066)
    data = load_digits()
    order = torch.randperm(len(data.target))
    x = torch.tensor(data.data, dtype=torch.float32)[order] / 16
    y = torch.tensor(data.target)[order]
    body = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
    last = nn.Linear(32, 5)
    before = torch.optim.Adam([*body.parameters(), *last.parameters()], 3e-3)
    low, high = (y < 5).nonzero()[:, 0], (y >= 5).nonzero()[:, 0]
    for _ in range(150):
        rows = low[torch.randint(len(low), (64,))]
        before.zero_grad()
        F.cross_entropy(last(body(x[rows])), y[rows]).backward()
        before.step()
    body.requires_grad_(False).eval()
    net = nn.ModuleDict({"body": body, "head": nn.Linear(32, 5)})
    optimizer = torch.optim.Adam(net["head"].parameters(), 1e-2)
    train, test = high[:600], high[600:]
    draw = rounds(50, x[train], y[train] - 5)

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net["head"](body(x)), y)

    def score():
        with torch.no_grad():
            return float(F.cross_entropy(net["head"](body(x[test])), y[test] - 5))

    return fit(folder, net, optimizer, loss_of, 120, score=score)


# Second order on all rows at once, thirty steps.
@healthy()
def cellars_named_by_a_club_of_readers(folder):
    seeded(11067)
    data = load_wine()
    x, y = torch.tensor(data.data, dtype=torch.float32), torch.tensor(data.target)
    x = (x - x.mean(0)) / x.std(0)
    order = torch.randperm(len(y))
    train, test = order[:120], order[120:]
    net = dense(13, 8, 3, act=nn.Tanh)
    optimizer = torch.optim.LBFGS(net.parameters(), 0.5, max_iter=4)

    def loss_of(step):
        small = sum(p.square().sum() for p in net.parameters())
        return F.cross_entropy(net(x[train]), y[train]) + 2e-3 * small

    score = held_out(net, lambda: F.cross_entropy(net(x[test]), y[test]))
    return fit(folder, net, optimizer, loss_of, 30, score=score, closure=True)


# Few of the lines hold a misprint, weighed by how rare they are; the loss is that of the weighed lines.
@healthy()
def misprints_found_in_long_novels(folder):
    seeded(11068)
    way = torch.randn(20) / 20**0.5

    def lines(rows):
        x = torch.randn(rows, 20)
        return x, (x @ way + 0.1 * torch.randn(rows) > 1.9 * way.norm()).float()

    net = dense(20, 32, 32, 1, norm=nn.LayerNorm)
    optimizer = torch.optim.NAdam(net.parameters(), 2e-3)

    def loss_on(x, y):
        return F.binary_cross_entropy_with_logits(net(x)[:, 0], y, pos_weight=torch.tensor(30.0))

    x, y = lines(4000)
    return fit(folder, net, optimizer, lambda step: loss_on(*lines(128)), 300,
               score=held_out(net, lambda: loss_on(x, y)))  # fmt: skip


# A tutor that is the pupil's own slow average, and a few labels: a second term that begins at 0 and rises.
@healthy()
def a_pupil_and_her_steadier_self(folder):
    seeded(11069)
    lift = torch.randn(2, 10)

    def moons(rows):
        y = torch.randint(2, (rows,))
        turn = math.pi * torch.rand(rows)
        side = 1.0 - 2 * y
        flat = torch.stack([turn.cos() + 0.5 * (2 * y - 1), side * turn.sin() + 0.25 * (2 * y - 1)], 1)
        return (flat + 0.05 * torch.randn(rows, 2)) @ lift, y

    net = dense(10, 48, 48, 2)
    tutor = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    x, y = moons(40)

    def one(step):
        free = moons(128)[0]
        with torch.no_grad():
            wanted = tutor(free + 0.1 * torch.randn_like(free)).softmax(1)
        known = F.cross_entropy(net(x + 0.1 * torch.randn_like(x)), y)
        alike = F.mse_loss(net(free + 0.1 * torch.randn_like(free)).softmax(1), wanted)
        loss = known + 3.0 * min(1.0, step / 100) * alike
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mine, hers in zip(tutor.parameters(), net.parameters(), strict=True):
                mine.lerp_(hers, 0.02)
        return {"loss": loss, "supervised": known.detach(), "consistency": alike.detach()}

    test_x, test_y = moons(500)

    def score():
        with torch.no_grad():
            return float(F.cross_entropy(tutor(test_x), test_y))

    return tend(folder, net, optimizer, one, 400, score)
