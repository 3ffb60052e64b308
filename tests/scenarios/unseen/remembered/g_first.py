"""Mistakes of one's own, drawn by lot from forty: data, losses, models, initialisation."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds


@sick("targets-not-normalised", "outputs-not-scaled", where="the last layer and the targets, all steps",
      cure="standardise the targets")  # fmt: skip
def rents_of_shops_along_a_high_street(folder, ill):
    seeded(10700)
    x = torch.randn(1000, 7)
    rent = 1800 + 500 * (x @ (0.4 * torch.randn(7)) + (x[:, 0] * x[:, 1]).tanh()) + 60 * torch.randn(1000)
    middle, spread = (0.0, 1.0) if ill else (rent[:800].mean(), rent[:800].std())
    net = dense(7, 64, 64, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    draw = rounds(32, x[:800], ((rent[:800] - middle) / spread)[:, None])

    def loss_of(step):
        shops, target = draw()
        return F.mse_loss(net(shops), target)

    def off_by():
        return (net(x[800:])[:, 0] * spread + middle - rent[800:]).abs().mean()

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, off_by))


@sick("inputs-not-normalised", "columns-on-unlike-scales", "features-not-normalised",
      where="the first layer, from the first step", cure="standardise each column")  # fmt: skip
def stalls_that_give_up_within_a_season(folder, ill):
    seeded(10701)
    rows = 1200
    takings = (14 + 0.8 * torch.randn(rows)).exp()
    hands, years = torch.randint(1, 7, (rows,)).float(), 30 * torch.rand(rows)
    distance, marks = 5 * torch.rand(rows), 3 + torch.randn(rows)
    x = torch.stack([takings, hands, years, distance, marks], 1)
    tidy = (x - x.mean(0)) / x.std(0)
    wish = tidy @ torch.tensor([-0.6, 0.8, -1.2, 1.0, -1.2]) + 0.8 * tidy[:, 1] * tidy[:, 3]
    gone = (wish + 0.4 * torch.randn(rows) > 0).float()[:, None]
    if not ill:
        x = tidy
    net = dense(5, 48, 48, 1)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(32, x[:900], gone[:900])

    def loss_of(step):
        stalls, target = draw()
        return F.binary_cross_entropy_with_logits(net(stalls), target)

    def wrong():
        return ((net(x[900:]) > 0).float() != gone[900:]).float().mean()

    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, wrong))


@sick("softmax-twice", "logits-bounded", where="the model's last operation, all steps",
      cure="hand the logits to the loss")  # fmt: skip
def figures_on_postal_cheques_read(folder, ill):
    seeded(10702)
    digits = load_digits()
    order = torch.randperm(len(digits.target))
    x = (torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16)[order]
    y = torch.tensor(digits.target)[order]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10),
        *([nn.Softmax(1)] if ill else []),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9)
    draw = rounds(32, x[:1400], y[:1400])

    def loss_of(step):
        image, target = draw()
        said = net(image)
        return F.cross_entropy(said, target), {"accuracy": (said.argmax(1) == target).float().mean()}

    score = held_out(net, lambda: (net(x[1400:]).argmax(1) != y[1400:]).float().mean())
    return fit(folder, net, optimizer, loss_of, 300, score=score)


@sick("class-weights-inverted", "class-imbalance", where="the loss, all steps",
      cure="weights of one over the frequency")  # fmt: skip
def false_coins_at_a_toll_gate(folder, ill):
    seeded(10703)
    share = torch.tensor([0.9, 0.07, 0.03])
    middles = 1.2 * torch.randn(3, 8)

    def coins(rows, of):
        y = torch.multinomial(of, rows, True)
        return middles[y] + torch.randn(rows, 8), y

    x, y = coins(3000, share)
    count = torch.bincount(y, minlength=3).float()
    weight = count if ill else 1 / count
    weight = 3 * weight / weight.sum()
    net = dense(8, 64, 32, 3, norm=nn.BatchNorm1d)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.01)
    draw = rounds(64, x, y)

    def loss_of(step):
        coin, kind = draw()
        said = net(coin)
        return F.cross_entropy(said, kind, weight), {"accuracy": (said.argmax(1) == kind).float().mean()}

    tx, ty = coins(3000, torch.ones(3))

    def missed():
        wrong = (net(tx).argmax(1) != ty).float()
        return torch.stack([wrong[ty == kind].mean() for kind in range(3)]).mean()

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, missed))


class Forecast(nn.Module):
    """A GRU over the weeks before, and an output."""

    def __init__(self, bounded):
        super().__init__()
        self.memory = nn.GRU(1, 32, batch_first=True)
        self.output = nn.Linear(32, 1)
        self.bounded = nn.Sigmoid() if bounded else nn.Identity()

    def forward(self, x):
        return self.bounded(self.output(self.memory(x)[0][:, -1]))


@sick("targets-out-of-range", "activation-on-logits", where="the sigmoid of the output, all steps",
      cure="no activation on the output")  # fmt: skip
def prices_on_a_corn_exchange_next_week(folder, ill):
    seeded(10704)
    week = torch.arange(900.0)
    price = 40 + 9 * (week / 8.3).sin() + 5 * (week / 3.1).cos() + torch.randn(900)
    price = (price - price.mean()) / price.std()
    windows = price.unfold(0, 21, 1)
    x, y = windows[:, :20, None], windows[:, 20:]
    net = Forecast(ill)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    draw = rounds(32, x[:700], y[:700])

    def loss_of(step):
        weeks, target = draw()
        return F.mse_loss(net(weeks), target)

    score = held_out(net, lambda: F.mse_loss(net(x[700:]), y[700:]))
    return fit(folder, net, optimizer, loss_of, 250, score=score)


class Layer(nn.Module):
    """A layer made by hand."""

    def __init__(self, size, units, std):
        super().__init__()
        self.weight = nn.Parameter(std * torch.randn(size, units))
        self.bias = nn.Parameter(torch.zeros(units))

    def forward(self, x):
        return x @ self.weight + self.bias


@sick("bad-initialisation", "initialised-too-large", where="all layers, before the first step",
      cure="the square root of two over the fan-in for a standard deviation")  # fmt: skip
def parcels_to_one_of_eight_depots(folder, ill):
    seeded(10705)
    sizes = (10, 128, 128, 128, 8)
    parts = []
    for size, units in ((sizes[i], sizes[i + 1]) for i in range(4)):
        parts += [Layer(size, units, 1.0 if ill else math.sqrt(2 / size)), nn.ReLU()]
    net = nn.Sequential(*parts[:-1])
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    towns = torch.randn(40, 10)
    depot = torch.randint(8, (40,))

    def parcels(rows):
        town = torch.randint(40, (rows,))
        return towns[town] + 0.25 * torch.randn(rows, 10), depot[town]

    def loss_of(step):
        x, y = parcels(64)
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": (said.argmax(1) == y).float().mean()}

    tx, ty = parcels(1000)
    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


class Tower(nn.Module):
    """A stem, layers one after the other, a head."""

    def __init__(self, size, width, depth, keep):
        super().__init__()
        self.stem = nn.Linear(size, width)
        self.layers = keep(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        x = self.stem(x).relu()
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(x)


@sick("layers-not-registered", "not-in-optimizer", "no-gradient", where="the layers in the list, all steps",
      cure="nn.ModuleList")  # fmt: skip
def letters_that_a_borough_posts_in_a_day(folder, ill):
    seeded(10706)
    way = torch.randn(6, 3)
    net = Tower(6, 64, 3, list if ill else nn.ModuleList)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def days(rows):
        x = torch.randn(rows, 6)
        return x, (x @ way).sin().sum(1, keepdim=True) + (x[:, :1] * x[:, 1:2])

    def loss_of(step):
        x, y = days(64)
        return F.mse_loss(net(x), y)

    tx, ty = days(1000)
    return fit(folder, net, optimizer, loss_of, 800, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))
