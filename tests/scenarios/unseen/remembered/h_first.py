"""Mistakes drawn from a list of forty: data, shapes, heads, clips."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, rounds, tend


@sick("inputs-not-normalised", "columns-on-unlike-scales", where="the first layer, all steps",
      cure="standardise each column")  # fmt: skip
def timber_volume_from_a_forest_inventory(folder, ill):
    seeded(10800)
    rows = 3000
    height, diameter = 5 + 35 * torch.rand(rows), 60 + 800 * torch.rand(rows)  # m, mm
    acidity, altitude = 4 + 4 * torch.rand(rows), 2400 * torch.rand(rows)  # pH, m
    stems, rain = 50 + 2900 * torch.rand(rows), 300 + 1700 * torch.rand(rows)  # per ha, mm
    x = torch.stack([height, diameter, acidity, altitude, stems, rain], 1)
    y = (height / 12).sin() * (diameter / 400) + 1.2 * (2 * acidity).cos() + stems / 2000 + 0.1 * torch.randn(rows)
    y = ((y - y.mean()) / y.std())[:, None]
    if not ill:
        x = (x - x.mean(0)) / x.std(0)
    net = dense(6, 64, 64, 1)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(64, x[:2400], y[:2400])

    def loss_of(step):
        xs, ys = draw()
        return F.mse_loss(net(xs), ys)

    score = held_out(net, lambda: F.l1_loss(net(x[2400:]), y[2400:]))
    return fit(folder, net, optimizer, loss_of, 500, score=score)


@sick("labels-shuffled", "labels-do-not-fit-inputs", "inputs-and-targets-unpaired", "no-progress",
      where="the batches, all steps",
      cure="one permutation for the images and their labels")  # fmt: skip
def numbers_chalked_on_ore_carts(folder, ill):
    seeded(10801)
    digits = load_digits()
    order = torch.randperm(len(digits.target))
    x = torch.tensor(digits.images, dtype=torch.float32)[order, None] / 8 - 1
    y = torch.tensor(digits.target)[order]
    train_x, train_y, test_x, test_y = x[:1440], y[:1440], x[1440:], y[1440:]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    waiting = []

    def one(step):
        if not waiting:
            order = torch.randperm(1440)
            other = torch.randperm(1440) if ill else order
            images, labels = train_x[order], train_y[other]
            waiting.extend((images[i : i + 48], labels[i : i + 48]) for i in range(0, 1440, 48))
        images, labels = waiting.pop()
        optimizer.zero_grad()
        said = net(images)
        loss = F.cross_entropy(said, labels)
        loss.backward()
        optimizer.step()
        return {"loss": loss, "accuracy": (said.argmax(1) == labels).float().mean()}

    return tend(folder, net, optimizer, one, 300, held_out(net, lambda: F.cross_entropy(net(test_x), test_y)))


class Gauge(nn.Module):
    """What comes after a window of readings, of its last state."""

    def __init__(self, inputs, width):
        super().__init__()
        self.memory, self.head = nn.GRU(inputs, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.memory(x)[0][:, -1])


@sick("shapes-broadcast", where="the loss, all steps", cure="squeeze the outputs to the shape of the targets")
def methane_in_the_air_of_a_gallery(folder, ill):
    seeded(10802)
    net = Gauge(3, 32)
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)

    def air(rows):
        x = torch.randn(rows, 16, 3).cumsum(1) / 4
        gas = (x[:, :, 0] * 0.5 + x[:, :, 1].tanh() - 0.3 * x[:, :, 2]).mean(1) + x[:, -1, 0]
        return x, gas

    def loss_of(step):
        x, gas = air(64)
        said = net(x)
        return F.mse_loss(said if ill else said.squeeze(1), gas)

    tx, ty = air(512)
    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.mse_loss(net(tx)[:, 0], ty)))


@sick("targets-out-of-range", "relu-on-the-output", where="the last layer, all steps",
      cure="no ReLU behind the last layer")  # fmt: skip
def night_frost_below_the_canopy(folder, ill):
    seeded(10803)
    parts = [
        nn.Conv1d(4, 24, 5, padding=2), nn.BatchNorm1d(24), nn.ReLU(), nn.Conv1d(24, 32, 5, stride=2, padding=2),
        nn.BatchNorm1d(32), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 32), nn.ReLU(),
        nn.Linear(32, 2),
    ]  # fmt: skip
    net = nn.Sequential(*parts, *([nn.ReLU()] if ill else []))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    mix = torch.randn(4, 2)

    def nights(rows):
        x = torch.randn(rows, 4, 24) + torch.randn(rows, 4, 1)
        degrees = x.mean(2) @ mix + 0.5 * x.std(2)[:, :2] + 0.1 * torch.randn(rows, 2) - 0.5
        return x, degrees

    def loss_of(step):
        x, degrees = nights(48)
        said = net(x)
        return F.mse_loss(said, degrees), {"mae": (said - degrees).abs().mean().detach()}

    tx, ty = nights(512)
    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


class Reader(nn.Module):
    """A body of convolutions and a head."""

    def __init__(self, kinds):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(96, kinds)

    def forward(self, x):
        return self.head(self.body(x))


@sick("not-in-optimizer", where="the new head, all steps", cure="make the optimizer after the head was replaced")
def fungi_told_apart_after_leaves(folder, ill):
    seeded(10804)
    leaves, fungi = torch.randn(6, 1, 8, 8), torch.randn(8, 1, 8, 8)

    def picture(kinds, rows):
        y = torch.randint(len(kinds), (rows,))
        return kinds[y] + 0.8 * torch.randn(rows, 1, 8, 8), y

    net = Reader(6)
    before = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(120):
        x, y = picture(leaves, 48)
        before.zero_grad()
        F.cross_entropy(net(x), y).backward()
        before.step()

    def groups():
        return torch.optim.AdamW(
            [{"params": net.body.parameters(), "lr": 5e-5}, {"params": net.head.parameters(), "lr": 5e-3}]
        )

    if ill:
        optimizer = groups()
        net.head = nn.Linear(96, 8)
    else:
        net.head = nn.Linear(96, 8)
        optimizer = groups()

    def loss_of(step):
        x, y = picture(fungi, 32)
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": (said.argmax(1) == y).float().mean()}

    tx, ty = picture(fungi, 512)
    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@sick("clip-is-your-learning-rate", "update-too-small", where="all layers, all steps",
      cure="a threshold above the usual norms")  # fmt: skip
def seedlings_counted_from_a_drone(folder, ill):
    seeded(10805)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 16, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 36, 32), nn.ReLU(), nn.Linear(32, 1),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9, weight_decay=1e-4)
    shape = torch.tensor([[0.3, 0.6, 0.3], [0.6, 1.0, 0.6], [0.3, 0.6, 0.3]])[None, None]

    def beds(rows):
        chance = 0.02 + 0.15 * torch.rand(rows, 1, 1, 1)
        spots = (torch.rand(rows, 1, 12, 12) < chance).float()
        image = F.conv2d(spots, shape, padding=1) + 0.1 * torch.randn(rows, 1, 12, 12)
        return image - 0.5, (spots.sum((1, 2, 3)) / 10 - 1.4)[:, None]

    def loss_of(step):
        x, y = beds(32)
        return F.mse_loss(net(x), y)

    tx, ty = beds(512)
    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 300, score=score, before_step=clipped(net, 0.005 if ill else 5.0))
