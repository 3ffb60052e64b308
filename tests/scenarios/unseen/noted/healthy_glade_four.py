"""Everyday trainings on series, signals and graphs: loads, anomalies, sales, passengers, spoken commands, citations."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


def windows(series, back, ahead):
    """`[N, back]` and `[N, ahead]` of each series in `[S, T]`."""
    both = series.unfold(1, back + ahead, 1).flatten(0, 1)
    return both[:, :back], both[:, back:]


@healthy()
def load_of_a_transformer_station(folder):
    seeded(3329)
    hour = torch.arange(24 * 120)
    day = (hour // 24) % 7
    level = 1 + 0.4 * (6.2832 * (hour - 6) / 24).sin() + 0.2 * (12.566 * hour / 24).sin() - 0.25 * (day >= 5)
    slow = torch.randn(120).cumsum(0)[hour // 24] * 0.02
    load = level + slow + 0.04 * torch.randn(len(hour))
    end = 24 * 100
    load = (load - load[:end].mean()) / load[:end].std()
    x, y = windows(load[None, :end], 48, 1)
    x_test, y_test = windows(load[None, end:], 48, 1)
    net = nn.ModuleDict({"lstm": nn.LSTM(1, 32, batch_first=True), "head": nn.Linear(32, 1)})

    def forecast(x):
        return net["head"](net["lstm"](x[:, :, None])[0][:, -1])

    draw = rounds(64, x, y)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(forecast(x), y)

    score = held_out(net, lambda: F.mse_loss(forecast(x_test), y_test))
    return fit(folder, net, optimizer, loss_of, 250, score=score, before_step=clipped(net, 1.0))


@healthy()
def readings_of_a_compressor(folder):
    seeded(3330)
    mix = torch.randn(4, 20)

    def readings(rows):
        state = torch.randn(rows, 4)
        state = torch.cat([state[:, :2], state[:, 2:].sin()], 1)
        return (state @ mix) / 2 + 0.3 * (state[:, :1] * state[:, 1:2]) + 0.1 * torch.randn(rows, 20)

    x, x_test = readings(4000), readings(500)
    centre, spread = x.mean(0), x.std(0)
    x, x_test = (x - centre) / spread, (x_test - centre) / spread
    net = nn.Sequential(
        nn.Linear(20, 48), nn.ELU(), nn.Linear(48, 24), nn.ELU(), nn.Linear(24, 5),
        nn.Linear(5, 24), nn.ELU(), nn.Linear(24, 48), nn.ELU(), nn.Linear(48, 20),
    )  # fmt: skip
    draw = rounds(64, x)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, weight_decay=1e-5)

    def loss_of(step):
        (x,) = draw()
        return F.mse_loss(net(x), x)

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.mse_loss(net(x_test), x_test)))


class Block(nn.Module):
    """One block of N-BEATS: what it explains of the past and what that says of the days ahead."""

    def __init__(self, back, ahead, width=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(back, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.past, self.future = nn.Linear(width, back), nn.Linear(width, ahead)

    def forward(self, x):
        h = self.body(x)
        return x - self.past(h), self.future(h)


class Stack(nn.Module):
    def __init__(self, back, ahead, blocks=3):
        super().__init__()
        self.ahead = ahead
        self.blocks = nn.ModuleList(Block(back, ahead) for _ in range(blocks))

    def forward(self, x):
        level = x.mean(1, keepdim=True)
        x, total = x - level, level.expand(-1, self.ahead)
        for block in self.blocks:
            x, part = block(x)
            total = total + part
        return total


@healthy()
def sales_of_a_chain_of_bakeries(folder):
    seeded(3331)
    shops, days = 30, 280
    day = torch.arange(days)
    week = torch.randn(shops, 7) * 0.6
    trend = torch.randn(shops, 1) * day / days
    sales = 2 * torch.randn(shops, 1) + trend + week[:, day % 7] + 0.15 * torch.randn(shops, days)
    x, y = windows(sales[:, :220], 28, 7)
    x_test, y_test = windows(sales[:, 192:], 28, 7)
    net = Stack(28, 7)
    draw = rounds(128, x, y)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.997)

    def loss_of(step):
        x, y = draw()
        return F.l1_loss(net(x), y)

    score = held_out(net, lambda: F.l1_loss(net(x_test), y_test))
    return fit(folder, net, optimizer, loss_of, 350, schedule=schedule, score=score)


class Causal(nn.Module):
    """Dilated convolutions that see the past alone; a mean and a spread for the next hour at each place."""

    def __init__(self, width=20):
        super().__init__()
        self.begin = nn.Conv1d(1, width, 1)
        self.layers = nn.ModuleList(nn.Conv1d(width, width, 2, dilation=2**i) for i in range(5))
        self.end = nn.Conv1d(width, 2, 1)

    def forward(self, x):
        h = self.begin(x)
        for layer in self.layers:
            h = h + layer(F.pad(h, (layer.dilation[0], 0))).relu()
        mean, raw = self.end(h).unbind(1)
        return mean, F.softplus(raw) + 1e-3


@healthy()
def passengers_of_a_ferry(folder):
    seeded(3332)

    def trips(rows, length=64):
        at = torch.arange(length) + torch.randint(16, (rows, 1))
        busy = (6.2832 * at / 16).sin() * (0.6 + torch.rand(rows, 1)) + 0.5 * (12.566 * at / 16).cos()
        return busy + torch.where(at % 16 < 8, 0.25, 0.08) * torch.randn(rows, length)

    net = Causal()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def loss_of(series):
        mean, spread = net(series[:, None, :-1])
        mean, spread, target = mean[:, 24:], spread[:, 24:], series[:, 25:]
        return F.gaussian_nll_loss(mean, target, spread.square()), (mean - target).square().mean()

    def train_loss(step):
        loss, mse = loss_of(trips(32))
        return loss, {"mse": mse}

    test = trips(200)
    score = held_out(net, lambda: loss_of(test)[1])
    return fit(folder, net, optimizer, train_loss, 300, score=score, before_step=clipped(net, 10.0))


@healthy()
def commands_spoken_to_a_lamp(folder):
    seeded(3333)
    words, bands, frames = 8, 16, 40
    spoken = F.interpolate(torch.randn(words, bands, 5), size=30, mode="linear")

    def clips(rows):
        word = torch.randint(words, (rows,))
        x = 0.8 * torch.randn(rows, bands, frames)
        start = torch.randint(frames - 30, (rows,)).tolist()
        loud = (0.7 + 0.6 * torch.rand(rows)).tolist()
        for row in range(rows):
            x[row, :, start[row] : start[row] + 30] += loud[row] * spoken[word[row]]
        return x, word

    (x, word), (x_test, word_test) = clips(1920), clips(300)
    net = nn.Sequential(
        nn.Conv1d(bands, 32, 5, 2, 2), nn.BatchNorm1d(32), nn.ReLU(),
        nn.Conv1d(32, 32, 5, 2, 2), nn.BatchNorm1d(32), nn.ReLU(),
        nn.Conv1d(32, 48, 3, 1, 1), nn.BatchNorm1d(48), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(48, words),
    )  # fmt: skip
    draw = rounds(32, x, word)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [180, 240], gamma=0.1)

    def masked(x):
        """A few frames left out, as SpecAugment does."""
        at = int(torch.randint(frames - 4, (1,)))
        return torch.cat([x[..., :at], torch.zeros_like(x[..., :4]), x[..., at + 4 :]], 2)

    def loss_of(step):
        clip, word = draw()
        out = net(masked(clip))
        return F.cross_entropy(out, word), {"acc": (out.argmax(1) == word).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(x_test), word_test))
    return fit(folder, net, optimizer, loss_of, 300, schedule=schedule, score=score)


class Convolved(nn.Module):
    """Two layers of a graph convolution."""

    def __init__(self, features, classes, width=32):
        super().__init__()
        self.first, self.second = nn.Linear(features, width), nn.Linear(width, classes)

    def forward(self, x, near):
        h = F.dropout(near @ self.first(F.dropout(x, 0.3, self.training)), 0.5, self.training).relu()
        return near @ self.second(h)


@healthy()
def articles_linked_by_citations(folder):
    seeded(3334)
    papers, fields, words = 600, 5, 100
    field = torch.randint(fields, (papers,))
    chance = torch.where(field[:, None] == field, 0.03, 0.002)
    links = (torch.rand(papers, papers) < chance).float().triu(1)
    links = links + links.T + torch.eye(papers)
    root = links.sum(1).rsqrt()
    near = root[:, None] * links * root
    use = torch.sigmoid(torch.randn(fields, words) - 2.0)
    x = (torch.rand(papers, words) < use[field]).float()
    x = x / x.sum(1, keepdim=True).clamp(min=1)
    train, test = torch.arange(120), torch.arange(300, papers)
    net = Convolved(words, fields)
    optimizer = torch.optim.Adam([
        {"params": net.first.parameters(), "weight_decay": 5e-4},
        {"params": net.second.parameters(), "weight_decay": 0.0},
    ], lr=0.01)  # fmt: skip

    def loss_of(step):
        out = net(x, near)[train]
        return F.cross_entropy(out, field[train]), {"train_acc": (out.argmax(1) == field[train]).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(x, near)[test], field[test]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)
