"""Healthy trainings: ice, honey, knots, a rope walk's songs and a carillon."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


def accuracy(net, x, y):
    """On rows that are not trained on, in evaluation mode."""
    net.eval()
    with torch.no_grad():
        share = float((net(x).argmax(1) == y).float().mean())
    net.train()
    return share


@healthy(gain=0.5)
def glaciers_by_the_grain_of_their_ice(folder):
    """Six glaciers, each with three sorts of ice; batch norm, some dropout, AdamW along a cosine."""
    seeded(9701)
    kind, sort = torch.randint(6, (3000,)), torch.randint(3, (3000,))
    x = 1.3 * torch.randn(6, 3, 10)[kind, sort] + 0.7 * torch.randn(3000, 10)
    x = (x - x[:2400].mean(0)) / x[:2400].std(0)
    net = nn.Sequential(
        nn.Linear(10, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Dropout(0.1),
        nn.Linear(96, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Dropout(0.1),
        nn.Linear(96, 6),
    )  # fmt: skip
    draw = rounds(64, x[:2400], kind[:2400])
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)

    def loss_of(step):
        logged = {"val_acc": accuracy(net, x[2400:], kind[2400:])} if step % 25 == 0 else {}
        rows, named = draw()
        return F.cross_entropy(net(rows), named), logged

    score = held_out(net, lambda: F.cross_entropy(net(x[2400:]), kind[2400:]))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600)
    return fit(folder, net, optimizer, loss_of, 600, score=score, schedule=schedule)


class Hive(nn.Module):
    """The meadow, the race of the bees and five readings to the weight of honey."""

    def __init__(self):
        super().__init__()
        self.meadow, self.race = nn.Embedding(20, 6), nn.Embedding(5, 3)
        self.body = dense(14, 64, 64, 1)

    def forward(self, meadow, race, readings):
        return self.body(torch.cat([self.meadow(meadow), self.race(race), readings], 1))[:, 0]


@healthy(gain=0.5)
def honey_weighed_from_the_diary_of_a_hive(folder):
    """A table of numbers and categories; Huber loss against some outliers, Adam, a rate that steps down."""
    seeded(9702)
    n = 4000
    meadow, race, readings = torch.randint(20, (n,)), torch.randint(5, (n,)), torch.randn(n, 5)
    honey = torch.randn(20)[meadow] + 0.6 * torch.randn(5)[race] * readings[:, 0] + (1.5 * readings[:, 1]).sin()
    honey = honey + 0.5 * readings[:, 2] * readings[:, 3] + 0.2 * torch.randn(n)
    honey = honey + 4 * torch.randn(n) * (torch.rand(n) < 0.02)
    honey = (honey - honey.mean()) / honey.std()
    parts = [meadow, race, readings, honey]
    net, draw = Hive(), rounds(128, *[part[:3200] for part in parts])
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def loss_of(step):
        *rows, kilos = draw()
        return F.huber_loss(net(*rows), kilos)

    *unseen_rows, unseen_kilos = [part[3200:] for part in parts]
    score = held_out(net, lambda: F.huber_loss(net(*unseen_rows), unseen_kilos))
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [500, 700], 0.3)
    return fit(folder, net, optimizer, loss_of, 800, score=score, schedule=schedule)


def knots(n):
    """Pictures `[n, 1, 16, 16]` of five knots: a ring, a cross, a bar, two loops, a square; shifted, in noise."""
    across, down = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="xy")
    kind = torch.randint(5, (n,))
    across = across - 7.5 - 4 * (torch.rand(n, 1, 1) - 0.5)
    down = down - 7.5 - 4 * (torch.rand(n, 1, 1) - 0.5)
    size = 3 + 1.5 * torch.rand(n, 1, 1)
    radius = (across**2 + down**2).sqrt()
    loop = torch.minimum(((across - size / 2) ** 2 + down**2).sqrt(), ((across + size / 2) ** 2 + down**2).sqrt())
    far = torch.maximum(across.abs(), down.abs())
    near = torch.minimum(across.abs(), down.abs())
    gaps = [
        (radius - size).abs(),
        torch.where(far < size, near, far),
        torch.where(across.abs() < size, down.abs(), far),
        (loop - size / 2).abs(),
        (far - size).abs(),
    ]
    gap = torch.stack(gaps, 1)[torch.arange(n), kind]
    pictures = (-gap.square()).exp() + 0.35 * torch.randn(n, 16, 16)
    return ((pictures - pictures.mean()) / pictures.std())[:, None], kind


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.one, self.two = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm_one, self.norm_two = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x):
        return (x + self.norm_two(self.two(self.norm_one(self.one(x)).relu()))).relu()


@healthy(gain=0.6)
def knots_photographed_on_deck(folder):
    """A small residual net by SGD with Nesterov momentum over one cycle."""
    seeded(9703)
    x, y = knots(1600)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        Residual(8), nn.MaxPool2d(2),
        nn.Conv2d(8, 20, 3, padding=1, bias=False), nn.BatchNorm2d(20), nn.ReLU(),
        Residual(20), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(20, 5),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.04, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.04, total_steps=240)
    draw = rounds(48, x[:1300], y[:1300])

    def loss_of(step):
        logged = {"val_accuracy": accuracy(net, x[1300:], y[1300:])} if step % 20 == 0 else {}
        pictures, named = draw()
        return F.cross_entropy(net(pictures), named), logged

    score = held_out(net, lambda: F.cross_entropy(net(x[1300:]), y[1300:]))
    return fit(folder, net, optimizer, loss_of, 240, score=score, schedule=schedule)


class Letters(nn.Module):
    def __init__(self, letters, width=64):
        super().__init__()
        self.table, self.memory = nn.Embedding(letters, 24), nn.LSTM(24, width, batch_first=True)
        self.head = nn.Linear(width, letters)

    def forward(self, x):
        return self.head(self.memory(self.table(x))[0])


@healthy(gain=0.5)
def songs_of_a_rope_walk_letter_by_letter(folder):
    """An LSTM on lines that a small grammar sings; Adam, the norm of all gradients held at one."""
    seeded(9704)
    words = [
        "haul",
        "the",
        "long",
        "hemp",
        "walk",
        "and",
        "twist",
        "strand",
        "by",
        "strand",
        "tar",
        "on",
        "every",
        "yarn",
        "oh",
        "pull",
        "lads",
        "pull",
    ]
    follows = torch.randn(len(words), len(words)).mul(2).softmax(1)
    at, sung = 0, []
    for _ in range(6000):
        sung.append(words[at])
        at = int(torch.multinomial(follows[at], 1))
    text = " ".join(sung)
    alphabet = sorted(set(text))
    letters = torch.tensor([alphabet.index(letter) for letter in text])
    lines = letters[: len(letters) // 41 * 41].view(-1, 41)
    net, held = Letters(len(alphabet)), lines[-80:]
    draw = rounds(32, lines[:-80])

    def entropy(rows):
        return F.cross_entropy(net(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    optimizer = torch.optim.Adam(net.parameters(), 4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 350, 2e-4)
    score = held_out(net, lambda: entropy(held))
    return fit(folder, net, optimizer, lambda step: entropy(*draw()), 350, score=score, schedule=schedule,
               before_step=clipped(net, 1.0))  # fmt: skip


class Carillon(nn.Module):
    """Two causal blocks, normed first, over the bells that were struck."""

    def __init__(self, bells, length, width=48):
        super().__init__()
        self.bell, self.place = nn.Embedding(bells, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, bells)
        self.register_buffer("later", torch.ones(length, length).triu(1).bool())
        for table in (self.bell, self.place):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, x):
        n = x.shape[1]
        return self.head(self.blocks(self.bell(x) + self.place.weight[:n], mask=self.later[:n, :n]))


@healthy(gain=0.35)
def tunes_of_a_carillon_with_refrains(folder):
    """A small decoder: tunes by a Markov chain that repeat their first half; AdamW, warm-up and a cosine."""
    seeded(9705)
    follows = torch.randn(12, 12).mul(1.5).softmax(1)
    bells = [torch.randint(12, (2500,))]
    for _ in range(7):
        bells.append(torch.multinomial(follows[bells[-1]], 1)[:, 0])
    tunes = torch.stack(bells * 2, 1)
    net, held = Carillon(12, 16), tunes[-300:]
    draw = rounds(32, tunes[:-300])

    def entropy(rows):
        return F.cross_entropy(net(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01, betas=(0.9, 0.98))
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=40)
    down = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 360, 1e-4)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, down], [40])
    score = held_out(net, lambda: entropy(held))
    return fit(folder, net, optimizer, lambda step: entropy(*draw()), 400, score=score, schedule=schedule,
               before_step=clipped(net, 1.0))  # fmt: skip
