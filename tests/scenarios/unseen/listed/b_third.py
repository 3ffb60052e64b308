"""Healthy trainings as courses and teams have them: tables, images, series, text, codes."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_digits, load_wine
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


def digits():
    """Shuffled images of 8 x 8 pixels in [0, 1] and what they show."""
    x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
    order = torch.randperm(len(x))
    return x[order].float().view(-1, 1, 8, 8) / 16, y[order]


@healthy(0.5)
def growers_of_three_wines(folder):
    seeded(10251)
    x, y = (torch.tensor(part) for part in load_wine(return_X_y=True))
    order = torch.randperm(len(x))
    x, y = x[order].float(), y[order]
    x = (x - x[:130].mean(0)) / x[:130].std(0)
    net = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    draw = rounds(16, x[:130], y[:130])

    def loss_of(step):
        a, b = draw()
        said = net(a)
        return F.cross_entropy(said, b), {"accuracy": (said.argmax(1) == b).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(x[130:]), y[130:]))
    return fit(folder, net, optimizer, loss_of, 160, score=score)


@healthy(0.5)
def digits_off_a_gas_meter(folder):
    seeded(10252)
    x, y = digits()
    parts, before = [], 1
    for width in (16, 32):
        parts += [nn.Conv2d(before, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
        before = width
    net = nn.Sequential(*parts, nn.Flatten(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)
    draw = rounds(64, x[:1400], y[:1400])

    def loss_of(step):
        a, b = draw()
        return F.cross_entropy(net(a), b, label_smoothing=0.05)

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 300, score=score, schedule=schedule)


@healthy(0.5)
def ice_cream_sold_by_the_hour(folder):
    seeded(10253)
    net = nn.ModuleDict({"memory": nn.LSTM(1, 32, 2, batch_first=True, dropout=0.1), "head": nn.Linear(32, 1)})
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    hour = torch.arange(2000.0)
    sold = (6.2832 * hour / 24).sin() + 0.5 * (6.2832 * hour / 168).sin() + 0.1 * torch.randn(2000)
    sold = (sold - sold.mean()) / sold.std()
    window = sold.unfold(0, 31, 1)[:, :, None]

    def error(rows):
        return F.mse_loss(net["head"](net["memory"](rows[:, :30])[0][:, -1]), rows[:, 30])

    draw = rounds(32, window[:1600])
    score = held_out(net, lambda: error(window[1640:]))
    return fit(folder, net, optimizer, lambda step: error(*draw()), 250, score=score, before_step=clipped(net, 1.0))


class Block(nn.Module):
    """Attention to what was before, then a small network."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = dense(width, 4 * width, width, act=nn.GELU)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norms[0](x)).chunk(3, -1)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(seen)
        return x + self.mlp(self.norms[1](x))


@healthy(0.3)
def letters_of_a_counting_rhyme(folder):
    seeded(10254)
    text = " ".join([
        "one for sorrow two for joy three for a girl four for a boy five for silver six for gold",
        "seven for a secret never to be told eight for a wish nine for a kiss ten for a bird that is best to miss",
    ]) * 4  # fmt: skip
    letters = sorted(set(text))
    code = torch.tensor([letters.index(letter) for letter in text])
    length, width = 32, 48
    net = nn.ModuleDict({
        "letter": nn.Embedding(len(letters), width), "place": nn.Embedding(length, width),
        "blocks": nn.Sequential(Block(width, 4), Block(width, 4)), "norm": nn.LayerNorm(width),
        "head": nn.Linear(width, len(letters), bias=False),
    })  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    steps, warmup = 220, 20
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda i: (i + 1) / warmup if i < warmup else 0.55 + 0.45 * math.cos(math.pi * (i - warmup) / (steps - warmup)),
    )

    def loss_on(at):
        rows = code[at[:, None] + torch.arange(length + 1)]
        x = net["letter"](rows[:, :-1]) + net["place"].weight
        said = net["head"](net["norm"](net["blocks"](x)))
        return F.cross_entropy(said.flatten(0, 1), rows[:, 1:].flatten())

    def loss_of(step):
        return loss_on(torch.randint(len(code) - length, (16,)))

    score = held_out(net, lambda: loss_on(torch.arange(0, len(code) - length, 7)))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule, before_step=clipped(net, 1.0))


@healthy(0.3)
def smudged_digits_made_clean(folder):
    seeded(10255)
    x = digits()[0].flatten(1)
    net = nn.Sequential(*dense(64, 128, 32, 128, 64), nn.Sigmoid())
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    draw = rounds(64, x[:1500])

    def loss_of(step):
        (clean,) = draw()
        return F.mse_loss(net(clean + 0.3 * torch.randn_like(clean)), clean)

    smudged = x[1500:] + 0.3 * torch.randn_like(x[1500:])
    score = held_out(net, lambda: F.mse_loss(net(smudged), x[1500:]))
    return fit(folder, net, optimizer, loss_of, 800, score=score)


@healthy(0.3)
def digits_squeezed_into_eight_numbers(folder):
    seeded(10256)
    x = digits()[0].flatten(1)
    net = nn.ModuleDict({"encoder": dense(64, 96, 16), "decoder": dense(8, 96, 64)})
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(64, x[:1500])

    def parts(rows):
        mean, logvar = net["encoder"](rows).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (logvar / 2).exp()
        rebuilt = F.binary_cross_entropy_with_logits(net["decoder"](z), rows, reduction="none").sum(1).mean()
        kl = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).sum(1).mean()
        return rebuilt, kl

    def loss_of(step):
        rebuilt, kl = parts(*draw())
        return rebuilt + kl, {"reconstruction": rebuilt, "kl": kl}

    score = held_out(net, lambda: sum(parts(x[1500:])))
    return fit(folder, net, optimizer, loss_of, 500, score=score)


class Hourglass(nn.Module):
    """A small U-Net."""

    def __init__(self):
        super().__init__()
        self.down, self.deep, self.up = self.pair(1, 12), self.pair(12, 24), self.pair(36, 12)
        self.last = nn.Conv2d(12, 1, 1)

    @staticmethod
    def pair(before, width):
        return nn.Sequential(
            nn.Conv2d(before, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
        )  # fmt: skip

    def forward(self, x):
        near = self.down(x)
        far = F.interpolate(self.deep(F.max_pool2d(near, 2)), scale_factor=2)
        return self.last(self.up(torch.cat([near, far], 1)))


@healthy(0.5)
def puddles_on_a_wet_yard(folder):
    seeded(10257)
    net = Hourglass()
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=1e-2)
    grid = torch.linspace(-1, 1, 16)

    def yards(rows):
        at, size = 1.4 * torch.rand(rows, 2, 1, 1) - 0.7, 0.2 + 0.3 * torch.rand(rows, 1, 1)
        inside = ((grid[None, :, None] - at[:, 0]) ** 2 + (grid[None, None] - at[:, 1]) ** 2) < size**2
        return (inside * 0.8 + 0.4 * torch.randn(rows, 16, 16))[:, None], inside.float()[:, None]

    def both(x, y):
        said = net(x)
        chance = said.sigmoid()
        dice = 1 - (2 * (chance * y).sum((1, 2, 3)) + 1) / (chance.sum((1, 2, 3)) + y.sum((1, 2, 3)) + 1)
        return F.binary_cross_entropy_with_logits(said, y), dice.mean()

    def loss_of(step):
        entropy, dice = both(*yards(16))
        return entropy + dice, {"bce": entropy, "dice": dice}

    x, y = yards(128)
    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, lambda: sum(both(x, y))))
