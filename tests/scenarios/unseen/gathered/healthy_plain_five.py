"""Healthy trainings that make, denoise and compare; and two that recommend."""

from __future__ import annotations

import copy
import math

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, in_turn, rounds, tend


def energy(a, b):
    """The energy distance between two clouds."""
    return float(2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean())


@healthy()
def footprints_in_a_crescent(folder):
    seeded(2964)

    def found(many):
        angle = math.pi * torch.rand(many)
        return torch.stack([angle.cos(), angle.sin() - 0.5], 1) * 1.5 + 0.1 * torch.randn(many, 2)

    make = dense(8, 64, 64, 2, act=nn.ReLU)
    judge = dense(2, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), lr=1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3, betas=(0.5, 0.999))
    seen, seeds = found(800), torch.randn(800, 8)

    def judge_loss():
        real, made = judge(found(128)), judge(make(torch.randn(128, 8)).detach())
        return F.softplus(-real).mean() + F.softplus(made).mean()

    def make_loss():
        return F.softplus(-judge(make(torch.randn(128, 8)))).mean()

    def score():
        with torch.no_grad():
            return energy(make(seeds), seen)

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 600, score)


class Denoiser(nn.Module):
    def __init__(self, width=160):
        super().__init__()
        self.register_buffer("pace", torch.exp(torch.linspace(0, 5, 16)))
        self.time = nn.Sequential(nn.Linear(32, width), nn.SiLU(), nn.Linear(width, width))
        self.into, self.out = nn.Linear(64, width), nn.Linear(width, 64)
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width)) for _ in range(3))

    def forward(self, x, share):
        waves = share[:, None] * self.pace
        when = self.time(torch.cat([waves.sin(), waves.cos()], 1))
        h = self.into(x)
        for layer in self.layers:
            h = h + F.silu(layer(h + when))
        return self.out(h)


@healthy()
def ink_out_of_snow(folder):
    seeded(2965)
    x = digits()[0].flatten(1) * 2 - 1
    x = x[torch.randperm(len(x))]
    levels = 100
    keep = torch.cos(torch.linspace(0.02, 1.5, levels)) ** 2
    net = Denoiser()
    average = copy.deepcopy(net).requires_grad_(False)
    draw = rounds(128, x[:1500])
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=40),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 460, eta_min=1e-4),
        ],
        [40],
    )

    def error(of, clean, noise, level):
        noisy = keep[level].sqrt()[:, None] * clean + (1 - keep[level]).sqrt()[:, None] * noise
        return F.mse_loss(of(noisy, level / levels), noise)

    fresh = x[1500:].repeat(4, 1)
    noise, level = torch.randn_like(fresh), torch.randint(levels, (len(fresh),))

    def score():
        with torch.no_grad():
            return error(average, fresh, noise, level)

    def loss_of(step):
        (clean,) = draw()
        return error(net, clean, torch.randn_like(clean), torch.randint(levels, (len(clean),)))

    def follow(step):
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), net.parameters(), strict=True):
                slow.lerp_(fast, 1 - min(0.98, (step + 1) / (step + 10)))

    return fit(
        folder, net, optimizer, loss_of, 500,
        score=score, schedule=schedule, before_step=clipped(net, 1.0), after_step=follow,
    )  # fmt: skip


@healthy()
def two_glances_at_one_digit(folder):
    seeded(2966)
    x = digits()[0][:, None]
    x = x[torch.randperm(len(x))]

    def glance(pictures):
        at = torch.randint(-1, 2, (2,)).tolist()
        pictures = pictures.roll(at, (2, 3)) * (0.7 + 0.6 * torch.rand(len(pictures), 1, 1, 1))
        pictures = pictures * (torch.rand(len(pictures), 1, 8, 8) > 0.15)
        return pictures + 0.1 * torch.randn_like(pictures)

    body = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    )  # fmt: skip
    net = nn.Sequential(body, dense(128, 64, 32))
    draw = rounds(64, x[:1500])
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-3)

    def contrast(pictures):
        both = F.normalize(net(torch.cat([glance(pictures), glance(pictures)])), dim=1)
        alike = (both @ both.T / 0.2).masked_fill(torch.eye(len(both), dtype=torch.bool), -math.inf)
        twin = torch.arange(len(both)).roll(len(pictures))
        return F.cross_entropy(alike, twin), {"found": float((alike.argmax(1) == twin).float().mean())}

    def score():
        return held_out(net, lambda: sum(contrast(part)[0] for part in x[1500:1756].split(64)) / 4)()

    return fit(folder, net, optimizer, lambda step: contrast(*draw()), 220, score=score)


@healthy()
def voices_of_the_same_person(folder):
    seeded(2967)
    people, habit = 120, dense(10, 40, 30, act=nn.Tanh).requires_grad_(False)
    nn.init.normal_(habit[0].weight)
    whose = torch.randn(people, 6)

    def spoken(person):
        return habit(torch.cat([whose[person], 1.2 * torch.randn(len(person), 4)], 1)) * 3

    def triplets(low, high, many):
        person = torch.randint(low, high, (many,))
        other = low + (person - low + torch.randint(1, high - low, (many,))) % (high - low)
        return spoken(person), spoken(person), spoken(other)

    net = dense(30, 96, 96, 16)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=1e-5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 200, gamma=0.5)
    strangers = triplets(100, people, 1000)

    def apart(voices):
        anchor, same, other = (F.normalize(net(voice), dim=1) for voice in voices)
        near, far = (anchor - same).square().sum(1), (anchor - other).square().sum(1)
        return near, far

    def loss_of(step):
        near, far = apart(triplets(0, 100, 256))
        return (near - far + 0.3).relu().mean(), {"wrong": float((near > far).float().mean())}

    def mistaken():
        near, far = apart(strangers)
        return (near > far).float().mean()

    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, mistaken), schedule=schedule)


class Taste(nn.Module):
    def __init__(self, readers, books, size=8):
        super().__init__()
        self.reader, self.book = nn.Embedding(readers, size), nn.Embedding(books, size)
        self.of_reader, self.of_book = nn.Embedding(readers, 1), nn.Embedding(books, 1)
        for part in (self.reader, self.book):
            nn.init.normal_(part.weight, std=0.1)
        for part in (self.of_reader, self.of_book):
            nn.init.zeros_(part.weight)
        self.level = nn.Parameter(torch.tensor(3.5))

    def forward(self, reader, book):
        both = (self.reader(reader) * self.book(book)).sum(1)
        return self.level + both + self.of_reader(reader)[:, 0] + self.of_book(book)[:, 0]


@healthy()
def stars_that_readers_give_to_books(folder):
    seeded(2968)
    readers, books, many = 300, 200, 16000
    reader, book = torch.randint(readers, (many,)), torch.randint(books, (many,))
    tastes, kinds = torch.randn(readers, 3), torch.randn(books, 3)
    stars = 3.5 + 0.5 * torch.randn(readers)[reader] + 0.6 * torch.randn(books)[book]
    stars = (stars + 0.5 * (tastes[reader] * kinds[book]).sum(1) + 0.3 * torch.randn(many)).round().clamp(1, 5)
    cut = 14000
    draw = rounds(200, reader[:cut], book[:cut], stars[:cut])
    net = Taste(readers, books)
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=0.05)
    score = held_out(net, lambda: F.mse_loss(net(reader[cut:], book[cut:]), stars[cut:]))

    def one(step):
        who, what, given = draw()
        loss = F.mse_loss(net(who, what), given)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "rmse": loss.detach().sqrt(), **({"val_rmse": score() ** 0.5} if step % 70 == 69 else {})}

    return tend(folder, net, optimizer, one, 560, score)


class Towers(nn.Module):
    def __init__(self, cooks, recipes, tags, size=16):
        super().__init__()
        self.cook, self.recipe = nn.Embedding(cooks, size), nn.Embedding(recipes, size)
        for part in (self.cook, self.recipe):
            nn.init.normal_(part.weight, std=0.1)
        self.left, self.right = dense(size, 32, size), dense(size + tags, 32, size)

    def forward(self, cook, recipe, tags):
        return (self.left(self.cook(cook)) * self.right(torch.cat([self.recipe(recipe), tags[recipe]], -1))).sum(-1)


@healthy()
def recipes_that_cooks_will_save(folder):
    seeded(2969)
    cooks, recipes = 250, 150
    tastes, kinds = torch.randn(cooks, 4), torch.randn(recipes, 4)
    tags = F.one_hot((kinds @ torch.randn(4, 8)).argmax(1), 8).float()
    saved = (tastes @ kinds.T + 0.5 * torch.randn(cooks, recipes)) > 2.0
    rows = saved.nonzero()
    rows = rows[torch.randperm(len(rows))]
    cut = len(rows) * 85 // 100
    train, fresh = rows[:cut], rows[cut:]

    net = Towers(cooks, recipes, 8)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, weight_decay=1e-6)

    def unsaved(cook):
        tries = torch.randint(recipes, (len(cook), 8))
        free = ~saved[cook[:, None], tries]
        return tries.gather(1, free.float().argmax(1, keepdim=True))[:, 0]

    def gap(pairs):
        cook, recipe = pairs.T
        return net(cook, recipe, tags) - net(cook, unsaved(cook), tags)

    def loss_of(step):
        return -F.logsigmoid(gap(train[torch.randint(cut, (256,))])).mean()

    score = held_out(net, lambda: (gap(fresh) <= 0).float().mean())
    return fit(folder, net, optimizer, loss_of, 450, score=score)
