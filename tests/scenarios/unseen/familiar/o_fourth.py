"""Healthy trainings of theatres and markets whose making is unusual, and sound."""

from __future__ import annotations

import copy
import math

import torch
from sklearn.datasets import load_diabetes, load_digits, load_wine
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


class Shift(nn.Module):
    """An affine coupling of two columns."""

    def __init__(self, flip):
        super().__init__()
        self.flip, self.net = flip, dense(1, 32, 2, act=nn.Tanh)

    def forward(self, x):
        kept, moved = (x[:, 1:], x[:, :1]) if self.flip else (x[:, :1], x[:, 1:])
        scale, shift = self.net(kept).chunk(2, 1)
        scale = scale.tanh()
        moved = moved * scale.exp() + shift
        return torch.cat([moved, kept] if self.flip else [kept, moved], 1), scale[:, 0]


@healthy()
def density_of_a_crowd_at_the_gate(folder):
    seeded(11560)
    net = nn.ModuleList(Shift(i % 2 == 1) for i in range(6))
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def crowd(rows):
        along = torch.randn(rows, 1)
        return 0.2 * torch.cat([along, 0.5 * along.square() - 0.5 + 0.2 * torch.randn(rows, 1)], 1)

    def loss_on(x):
        grown = 0
        for layer in net:
            x, scale = layer(x)
            grown = grown + scale
        return (0.5 * x.square().sum(1) + math.log(2 * math.pi) - grown).mean()

    test = crowd(1000)
    score, clip = held_out(net, lambda: loss_on(test)), clipped(net, 10.0)
    return fit(folder, net, optimizer, lambda step: loss_on(crowd(128)), 350, score=score, before_step=clip)


@healthy()
def new_company_on_an_old_stage(folder):
    seeded(11561)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x, y = torch.tensor(images / 8 - 1, dtype=torch.float32)[order], torch.tensor(digits)[order]
    body = nn.Sequential(nn.Flatten(), dense(64, 96, 64), nn.ReLU())
    old, new = y < 6, y >= 6
    first = nn.Sequential(body, nn.Linear(64, 6))
    pretrain = torch.optim.Adam(first.parameters(), 2e-3)
    before = rounds(32, x[old], y[old])
    for _ in range(150):
        some, kind = before()
        pretrain.zero_grad()
        F.cross_entropy(first(some), kind).backward()
        pretrain.step()

    body.requires_grad_(False)
    net = nn.Sequential(body, nn.Linear(64, 4))
    optimizer = torch.optim.Adam(net[1].parameters(), 1e-2)
    x, y = x[new], y[new] - 6
    draw = rounds(32, x[:500], y[:500])

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y)

    score = held_out(net, lambda: F.cross_entropy(net(x[500:]), y[500:]))
    return fit(folder, net, optimizer, loss_of, 150, score=score)


@healthy()
def cheeses_paired_with_their_wines(folder):
    seeded(11562)
    table, grower = load_wine(return_X_y=True)
    order = torch.randperm(len(grower))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(grower)[order]
    x = (x - x[:130].mean(0)) / x[:130].std(0)
    net = nn.Sequential(nn.Linear(13, 24), nn.Tanh(), nn.Linear(24, 3))
    optimizer = torch.optim.LBFGS(net.parameters(), lr=1.0, max_iter=5, history_size=10, line_search_fn="strong_wolfe")

    def loss_of(step):
        size = sum(p.square().sum() for p in net.parameters())
        return F.cross_entropy(net(x[:130]), y[:130]) + 1e-3 * size

    score = held_out(net, lambda: F.cross_entropy(net(x[130:]), y[130:]))
    return fit(folder, net, optimizer, loss_of, 20, score=score, closure=True)


@healthy()
def receipts_added_up_in_pence(folder):
    seeded(11563)
    net = dense(8, 64, 64, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def receipts(rows):
        x = torch.randn(rows, 8)
        return x, (x[:, :4].sum(1) + (2 * x[:, 4]).sin() + 0.5 * x[:, 5] * x[:, 6] + 0.1 * torch.randn(rows))[:, None]

    x, y = receipts(3000)
    draw = rounds(256, x[:2400], y[:2400])

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y, reduction="sum")

    score = held_out(net, lambda: F.mse_loss(net(x[2400:]), y[2400:]))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


@healthy()
def a_choirmaster_who_starts_again(folder):
    seeded(11564)
    kinds, steps = 6, 320
    tones = torch.randn(kinds, 20)
    net = dense(20, 64, 64, kinds, norm=nn.LayerNorm)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 40, 1, eta_min=1e-4)

    def voices(rows):
        y = torch.randint(kinds, (rows,))
        loud = (0.5 + torch.rand(rows, 1)) * (torch.randint(2, (rows, 1)) * 2 - 1)
        return loud * tones[y] + 1.2 * torch.randn(rows, 20), y

    def loss_of(step):
        x, y = voices(64)
        logits = net(x)
        right = float((logits.argmax(1) == y).float().mean())
        return F.cross_entropy(logits, y), {"accuracy": right, "lr": schedule.get_last_lr()[0]}

    tx, ty = voices(1000)
    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


@healthy()
def hecklers_who_sharpen_the_comedian(folder):
    seeded(11565)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x, y = torch.tensor(images / 16, dtype=torch.float32)[order].flatten(1), torch.tensor(digits)[order]
    net = dense(64, 128, 64, 10)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(64, x[:1400], y[:1400])

    def heckled(x, y, most=0.08, turns=3):
        near = x + most * (2 * torch.rand_like(x) - 1)
        for _ in range(turns):
            near = near.detach().requires_grad_()
            (slope,) = torch.autograd.grad(F.cross_entropy(net(near), y), near)
            near = x + (near.detach() + most / 2 * slope.sign() - x).clamp(-most, most)
        return near.detach().clamp(0, 1)

    def loss_of(step):
        x, y = draw()
        logits = net(heckled(x, y))
        return F.cross_entropy(logits, y), {"robust accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 220, score=score)


@healthy(0.2)
def range_of_prices_for_a_rare_score(folder):
    seeded(11566)
    table, targets = load_diabetes(return_X_y=True)
    order = torch.randperm(len(targets))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(targets, dtype=torch.float32)[order, None]
    x, y = (x - x[:340].mean(0)) / x[:340].std(0), (y - y[:340].mean()) / y[:340].std()
    net = dense(10, 32, 3)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    share = torch.tensor([0.1, 0.5, 0.9])
    draw = rounds(34, x[:340], y[:340])

    def loss_on(x, y):
        gap = y - net(x)
        return torch.maximum(share * gap, (share - 1) * gap).mean()

    score = held_out(net, lambda: loss_on(x[340:], y[340:]))
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 150, score=score)


@healthy()
def understudy_with_a_slow_memory(folder):
    seeded(11567)
    lift = torch.randn(5, 24)
    net = nn.ModuleDict({"see": dense(24, 64, 16, norm=nn.BatchNorm1d), "guess": dense(16, 32, 16)})
    slow = copy.deepcopy(net["see"]).requires_grad_(False)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-4)

    def views(rows):
        actor = torch.randn(rows, 5) @ lift
        return actor + 0.4 * torch.randn(rows, 24), actor + 0.4 * torch.randn(rows, 24)

    def away(a, b):
        return 2 - 2 * F.cosine_similarity(net["guess"](net["see"](a)), slow(b).detach()).mean()

    def loss_of(step):
        a, b = views(128)
        return (away(a, b) + away(b, a)) / 2

    def follow(step):
        with torch.no_grad():
            for s, p in zip(slow.parameters(), net["see"].parameters(), strict=True):
                s.lerp_(p, 0.02)

    test = views(512)
    score = held_out(net, lambda: away(*test))
    return fit(folder, net, optimizer, loss_of, 300, score=score, after_step=follow)


@healthy()
def words_of_a_libretto_by_their_company(folder):
    seeded(11568)
    words, topics = 300, 10
    net = nn.ModuleDict({"word": nn.Embedding(words, 16, sparse=True), "near": nn.Embedding(words, 16, sparse=True)})
    nn.init.uniform_(net["word"].weight, -0.5 / 16, 0.5 / 16)
    nn.init.zeros_(net["near"].weight)
    optimizer = torch.optim.SparseAdam(list(net.parameters()), 2e-2)

    def pairs(rows):
        topic = torch.randint(topics, (rows, 1))
        pair = torch.randint(words // topics, (rows, 2)) * topics + topic
        return pair[:, 0], pair[:, 1], torch.randint(words, (rows, 5))

    def loss_on(word, near, others):
        middle = net["word"](word)
        told = (middle * net["near"](near)).sum(1)
        apart = (net["near"](others) @ middle[:, :, None])[..., 0]
        return F.softplus(-told).mean() + F.softplus(apart).sum(1).mean()

    test = pairs(2000)
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, lambda step: loss_on(*pairs(256)), 350, score=score)


@healthy()
def arias_of_growing_length_repeated(folder):
    seeded(11569)
    notes = 6
    net = nn.ModuleDict({"hear": nn.GRU(notes + 1, 64, batch_first=True), "sing": nn.Linear(64, notes)})
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def loss_on(aria):
        length = aria.shape[1]
        heard = F.pad(F.one_hot(aria, notes + 1).float(), (0, 0, 0, length))
        heard[:, length:, notes] = 1.0
        sung = net["sing"](net["hear"](heard)[0][:, length:])
        return F.cross_entropy(sung.flatten(0, 1), aria.flatten())

    def one(step):
        length = 2 + step // 100
        loss = loss_on(torch.randint(notes, (64, length)))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return {"loss": loss, "length": length}

    test = torch.randint(notes, (512, 4))
    return tend(folder, net, optimizer, one, 380, held_out(net, lambda: loss_on(test)))
