"""Ordinary trainings that go well: noise taken away, words, tags, routes and a residual net."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F
from unseen import fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds

KEPT = torch.cumprod(1 - torch.linspace(1e-4, 0.06, 100), 0)


def loaves(count, points=16):
    """Outlines of loaves from above: long or round, with a cut or none."""
    along = torch.linspace(-1, 1, points)
    long, cut = 0.6 + 0.4 * torch.rand(count, 1), (torch.rand(count, 1) < 0.5).float()
    crust = (1 - (along / long).square()).clamp(min=0).sqrt()
    return 2 * (crust - 0.3 * cut * torch.exp(-((along / 0.2) ** 2))) - 1 + 0.02 * torch.randn(count, points)


class Denoiser(nn.Module):
    """Says what noise was added, from the noisy outline and the time."""

    def __init__(self, points=16, width=96):
        super().__init__()
        self.register_buffer("rates", torch.exp(torch.linspace(0, -4, 16)))
        self.time, self.enter = nn.Sequential(nn.Linear(32, width), nn.SiLU()), nn.Linear(points, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
            for _ in range(3)
        )
        self.leave = nn.Linear(width, points)

    def forward(self, x, t):
        angle = t[:, None] * self.rates
        when, hidden = self.time(torch.cat([angle.sin(), angle.cos()], 1)), self.enter(x)
        for block in self.blocks:
            hidden = hidden + block(hidden + when)
        return self.leave(hidden)


def noise_left(net, x):
    t, noise = torch.randint(100, (len(x),)), torch.randn_like(x)
    noisy = KEPT[t].sqrt()[:, None] * x + (1 - KEPT[t]).sqrt()[:, None] * noise
    return F.mse_loss(net(noisy, t), noise)


@healthy()
def outlines_of_loaves(folder):
    seeded(2615)
    net, draw, last = Denoiser(), rounds(64, loaves(4000)), loaves(1000)
    average = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def follow(step):
        for slow, fast in zip(average.parameters(), net.parameters(), strict=True):
            slow.lerp_(fast.detach(), 0.02)

    def loss_of(step):
        return noise_left(net, *draw())

    score = held_out(average, lambda: noise_left(average, last))
    return fit(folder, net, optimizer, loss_of, 600, score=score, before_step=clipped(net, 1.0), after_step=follow)


def notes(count, kinds=5, words=400, longest=24):
    """Observers' notes: some words belong to a kind of object, a pair of words to another; 0 fills up."""
    kind = torch.randint(kinds, (count,))
    text = torch.randint(1, words, (count, longest))
    own = 1 + kind[:, None] * 12 + torch.randint(12, (count, longest))
    text = torch.where(torch.rand(count, longest) < 0.15, own, text)
    length = torch.randint(8, longest + 1, (count, 1))
    return text.masked_fill(torch.arange(longest) >= length, 0), kind


class Reader(nn.Module):
    """Convolutions of several widths over words, the strongest answer of each."""

    def __init__(self, words=400, kinds=5):
        super().__init__()
        self.word = nn.Embedding(words, 32, padding_idx=0)
        self.looks = nn.ModuleList(nn.Conv1d(32, 24, wide, padding=1) for wide in (2, 3, 4))
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(72, kinds)

    def forward(self, x):
        words = self.word(x).mT
        return self.head(self.drop(torch.cat([look(words).relu().amax(2) for look in self.looks], 1)))


@healthy()
def notes_of_a_telescope_survey(folder):
    seeded(2616)
    net, draw, (x_val, y_val) = Reader(), rounds(32, *notes(4000)), notes(800)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": (logits.argmax(1) == y).float().mean()}

    return fit(folder, net, optimizer, loss_of, 800, score=held_out(net, lambda: F.cross_entropy(net(x_val), y_val)))


FIELDS = torch.tensor([[0, 40], [30, 80], [70, 110], [100, 119]])


def slips(count, longest=16):
    """Slips of a library: author, title, publisher and year, some words of which could be either; -100 is no field."""
    lengths = torch.randint(1, 5, (count, 4))
    ends = lengths.cumsum(1)
    field = (torch.arange(longest) >= ends[:, :, None]).sum(1)
    low, high = FIELDS[field.clamp(max=3)].unbind(-1)
    words = low + (torch.rand(count, longest) * (high - low)).long() + 1
    past = field > 3
    return words.masked_fill(past, 0), field.masked_fill(past, -100)


class Tagger(nn.Module):
    def __init__(self, words=120, fields=4):
        super().__init__()
        self.word, self.drop = nn.Embedding(words, 24, padding_idx=0), nn.Dropout(0.2)
        self.memory, self.head = nn.LSTM(24, 32, batch_first=True, bidirectional=True), nn.Linear(64, fields)

    def forward(self, x):
        return self.head(self.drop(self.memory(self.drop(self.word(x)))[0])).flatten(0, 1)


@healthy()
def fields_on_a_library_slip(folder):
    seeded(2617)
    net, draw, (x_val, y_val) = Tagger(), rounds(32, *slips(3000)), slips(500)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y.flatten())

    score = held_out(net, lambda: F.cross_entropy(net(x_val), y_val.flatten()))
    return fit(folder, net, optimizer, loss_of, 400, score=score, before_step=clipped(net, 5.0))


def rides(count, streets, length=6):
    """Stations of a ride, and what a rider is told: two words for each, the last station first."""
    ride = torch.randint(20, (count, length))
    told = streets[ride.flip(1)].flatten(1)
    return ride, torch.cat([torch.zeros(count, 1, dtype=torch.long), told], 1)


class Guide(nn.Module):
    """An encoder, and a decoder that looks back at it."""

    def __init__(self, stations=20, words=16, width=64):
        super().__init__()
        self.station, self.word = nn.Embedding(stations, 32), nn.Embedding(words, 32)
        self.encoder, self.decoder = (nn.GRU(32, width, batch_first=True) for _ in range(2))
        self.look, self.join = nn.Linear(width, width), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, words)

    def forward(self, ride, before):
        memory, state = self.encoder(self.station(ride))
        hidden = self.decoder(self.word(before), state)[0]
        seen = (hidden @ self.look(memory).mT).softmax(2) @ memory
        return self.head(self.join(torch.cat([hidden, seen], 2)).tanh())


@healthy()
def directions_for_a_shared_bicycle(folder):
    seeded(2618)
    streets = torch.randint(1, 16, (20, 2))
    net, draw, (ride, told) = Guide(), rounds(64, *rides(4000, streets)), rides(300, streets)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def error(stations, words):
        return F.cross_entropy(net(stations, words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())

    score = held_out(net, lambda: error(ride, told))
    return fit(folder, net, optimizer, lambda step: error(*draw()), 500, score=score, before_step=clipped(net, 1.0))


def echoes(count, size=16):
    """What a harbour's radar sees: four kinds of vessel, by length and by how many masts answer."""
    kind, heading = torch.randint(4, (count,)), 6.2832 * torch.rand(count)
    grid = torch.stack(torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij"), -1)
    way = torch.stack([heading.cos(), heading.sin()], 1)
    center, reach = 0.5 * torch.rand(count, 1, 1, 1, 2) - 0.25, 0.3 + 0.3 * (kind // 2)
    masts = torch.where((kind % 2 == 1)[:, None], torch.tensor([-1.0, 0.0, 1.0]), torch.tensor([-1.0, 1.0, 1.0]))
    at = center + (masts * reach[:, None])[:, :, None, None, None] * way[:, None, None, None]
    echo = torch.exp(-((grid - at).square().sum(-1)) / 0.015).sum(1)
    return (echo + 0.15 * torch.randn(count, size, size))[:, None], kind


class Residual(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outside) for _ in range(2))
        self.skip = nn.Conv2d(inside, outside, 1, stride)

    def forward(self, x):
        hidden = self.norms[0](self.first(x)).relu()
        return (self.norms[1](self.second(hidden)) + self.skip(x)).relu()


@healthy()
def vessels_on_the_harbour_radar(folder):
    seeded(2619)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(),
        Residual(12, 16, 2), Residual(16, 32, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4),
    )  # fmt: skip
    draw, (x_val, y_val) = rounds(32, *echoes(2000)), echoes(400)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=400)

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y, label_smoothing=0.1), {"accuracy": (logits.argmax(1) == y).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(x_val), y_val))
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule)
