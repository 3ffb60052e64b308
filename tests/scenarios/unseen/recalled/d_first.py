"""Mistakes of people's own loops and settings, drawn by lot: kitchens, gardens and animals, the first six."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds


@sick("shapes-broadcast", where="the loss, all steps", cure="squeeze the predictions before the loss")
def weights_of_hens_from_their_measures(folder, ill):
    seeded(10400)
    way = torch.randn(9)

    def hens(rows):
        x = torch.randn(rows, 9)
        return x, x @ way / 3 + (x[:, 0] * x[:, 1]).tanh() + 0.05 * torch.randn(rows)

    net = dense(9, 64, 64, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    draw = rounds(32, *hens(1600))
    tx, ty = hens(512)

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.mse_loss(said if ill else said.squeeze(1), y)

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.mse_loss(net(tx).squeeze(1), ty)))


@sick("data-not-shuffled", "batches-of-one-label", where="the order of the rows, all steps",
      cure="shuffle=True in the loader")  # fmt: skip
def kitchen_herbs_told_by_their_leaves(folder, ill):
    seeded(10401)
    kinds = 8
    leaves = F.avg_pool2d(torch.randn(kinds, 1, 14, 14), 3, 1) * 2.5

    def herbs(labels):
        turned = leaves[labels].clone()
        flip = torch.rand(len(labels)) < 0.5
        turned[flip] = turned[flip].flip(3)
        return turned + 0.6 * torch.randn(len(labels), 1, 12, 12), labels

    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 9, 64), nn.ReLU(), nn.Linear(64, kinds),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9)
    rows = herbs(torch.arange(kinds).repeat_interleave(160))
    loader = DataLoader(TensorDataset(*rows), 32, shuffle=not ill)
    tx, ty = herbs(torch.randint(kinds, (512,)))

    def epochs():
        while True:
            yield from loader

    batches = epochs()

    def loss_of(step):
        x, y = next(batches)
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": (said.argmax(1) == y).float().mean()}

    return fit(folder, net, optimizer, loss_of, 240, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@sick("bad-initialisation", "saturated", "initialised-too-large", where="all linear layers, from the first step",
      cure="Xavier's initialisation")  # fmt: skip
def ripeness_of_pears_in_a_crate(folder, ill):
    seeded(10402)
    net = dense(10, 80, 80, 80, 80, 1, act=nn.Tanh)
    for part in net:
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=1.0) if ill else nn.init.xavier_normal_(part.weight)
            nn.init.zeros_(part.bias)
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    way = torch.randn(10, 2) / 3

    def pears(rows):
        x = torch.randn(rows, 10)
        return x, (x @ way).sin().sum(1, keepdim=True) + 0.05 * torch.randn(rows, 1)

    draw = rounds(64, *pears(3200))
    tx, ty = pears(512)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


@sick("bad-initialisation", "vanishing", "initialised-too-small", where="all convolutions, from the first step",
      cure="He's initialisation")  # fmt: skip
def calls_of_birds_at_a_feeder(folder, ill):
    seeded(10403)
    kinds, length = 5, 64
    net = nn.Sequential(
        nn.Conv1d(1, 16, 5, 2, 2), nn.ReLU(), nn.Conv1d(16, 24, 5, 2, 2), nn.ReLU(), nn.Conv1d(24, 32, 3, 1, 1),
        nn.ReLU(), nn.Conv1d(32, 32, 3, 2, 1), nn.ReLU(), nn.Conv1d(32, 32, 3, 1, 1), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, kinds),
    )  # fmt: skip
    for part in net:
        if isinstance(part, nn.Conv1d | nn.Linear):
            if ill:
                nn.init.normal_(part.weight, std=0.001)
            else:
                nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
            nn.init.zeros_(part.bias)
    optimizer = torch.optim.SGD(net.parameters(), 0.03, momentum=0.9, weight_decay=1e-4)

    def calls(rows):
        y, t = torch.randint(kinds, (rows,)), torch.linspace(0, 1, length)
        pitch = (3 + 3 * y[:, None]) * (1 + 0.08 * torch.randn(rows, 1))
        sound = (6.2832 * (pitch * t + torch.rand(rows, 1))).sin()
        return (sound + 0.3 * torch.randn(rows, length))[:, None], y

    draw = rounds(32, *calls(1600))
    tx, ty = calls(512)

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y)

    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@sick("vanishing", "saturated", "activation-unsuited", where="the first layers, all steps", cure="ReLU")
def rise_of_a_sourdough_by_the_hour(folder, ill):
    seeded(10404)
    act = nn.Sigmoid if ill else nn.ReLU
    net = dense(6, 48, 48, 48, 48, 48, 48, 4, act=act)
    optimizer = torch.optim.SGD(net.parameters(), 0.03, momentum=0.9)
    way = torch.randn(6, 2) / 2.5

    def doughs(rows):
        x = torch.randn(rows, 6)
        rise = (x @ way).sin().sum(1)
        return x, (rise > -0.8).long() + (rise > 0) + (rise > 0.8)

    draw = rounds(64, *doughs(3200))
    tx, ty = doughs(512)

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y)

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@sick("weight-decay-too-strong", "weights-shrink", where="all layers, all steps",
      cure="a weight decay of 1e-4, or AdamW")  # fmt: skip
def slugs_or_snails_among_the_lettuce(folder, ill):
    seeded(10405)
    net = nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.1), nn.Linear(96, 2),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, weight_decay=0.1 if ill else 1e-4)
    grid = torch.linspace(-1, 1, 12)
    down, across = grid[:, None], grid[None]

    def patches(rows):
        y = torch.randint(2, (rows,))
        at = 0.6 * torch.rand(rows, 2, 1, 1) - 0.3
        far = (down - at[:, 0]).square() + (across - at[:, 1]).square()
        round_one = ((far.sqrt() * 12).cos() * (far < 0.3)).float()
        long_one = ((down - at[:, 0]).abs() < 0.2).float().expand(rows, 12, 12)
        shape = torch.where(y[:, None, None] == 0, long_one, round_one)
        green = torch.tensor([0.2, 0.8, 0.2])[:, None, None]
        return green + shape[:, None] * 0.6 + 0.4 * torch.randn(rows, 3, 12, 12), y

    draw = rounds(32, *patches(1280))
    tx, ty = patches(512)

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": (said.argmax(1) == y).float().mean()}

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))
