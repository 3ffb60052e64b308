"""Mistakes in data, targets and losses: crafts, instruments and sports."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds


@sick("inputs-not-normalised", "columns-on-unlike-scales", "features-not-normalised",
      where="the first layer, all steps", cure="standardise the columns by the rows of training")  # fmt: skip
def finishing_times_of_amateur_rowers(folder, ill):
    seeded(10600)
    # watts, heart rate, kilometres rowed a year, years of training, height in metres, length of the boat in millimetres
    centre = torch.tensor([240.0, 165.0, 1800.0, 6.0, 1.82, 8200.0])
    spread = torch.tensor([45.0, 12.0, 700.0, 3.0, 0.08, 900.0])

    def crew(rows):
        z = torch.randn(rows, 6)
        time = -0.9 * z[:, 0] + 0.5 * z[:, 1] * z[:, 3] - 0.7 * (z[:, 4] > 0.5).float() + 0.4 * (2 * z[:, 4]).sin()
        return centre + spread * z, (time + 0.05 * torch.randn(rows))[:, None]

    x, y = crew(2000)
    test_x, test_y = crew(500)
    y, test_y = (y - y.mean()) / y.std(), (test_y - y.mean()) / y.std()
    if not ill:
        x, test_x = (x - x.mean(0)) / x.std(0), (test_x - x.mean(0)) / x.std(0)
    net = dense(6, 64, 64, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    draw = rounds(64, x, y)

    def loss_of(step):
        a, b = draw()
        return F.mse_loss(net(a), b)

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.mse_loss(net(test_x), test_y)))


@sick("targets-not-normalised", "outputs-not-scaled", where="the output layer and the loss, all steps",
      cure="standardise the targets by the rows of training")  # fmt: skip
def prices_of_old_cellos_at_auction(folder, ill):
    seeded(10601)

    def cellos(rows):
        x = torch.randn(rows, 10)
        price = 180_000 + 60_000 * x[:, 0] + 40_000 * x[:, 1].abs() * x[:, 2] + 30_000 * (x[:, 3] * 2).sin()
        return x, (price + 5_000 * torch.randn(rows))[:, None]

    x, y = cellos(1500)
    test_x, test_y = cellos(400)
    low, wide = y.mean(), y.std()
    if not ill:
        y = (y - low) / wide
    net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Dropout(0.05), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    draw = rounds(50, x, y)

    def loss_of(step):
        a, b = draw()
        return F.mse_loss(net(a), b)

    def error():
        said = net(test_x) if ill else net(test_x) * wide + low
        return ((said - test_y) / wide).square().mean()

    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, error))


@sick("labels-shuffled", "labels-do-not-fit-inputs", "inputs-and-targets-unpaired", "no-progress",
      where="the targets, all steps",
      cure="one permutation for inputs and targets")  # fmt: skip
def numerals_burnt_into_wooden_blocks(folder, ill):
    seeded(10602)
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x).float().view(-1, 1, 8, 8) / 16, torch.tensor(y)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    test_x, test_y = x[1400:], y[1400:]
    x, y = x[:1400], y[:1400]
    order = torch.randperm(len(x))
    x = x[order]
    y = y[torch.randperm(len(y))] if ill else y[order]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    draw = rounds(64, x, y)

    def loss_of(step):
        a, b = draw()
        said = net(a)
        return F.cross_entropy(said, b), {"accuracy": (said.argmax(1) == b).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(test_x), test_y))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


@sick("softmax-twice", "logits-bounded", where="the output, all steps", cure="give logits to the cross-entropy")
def strokes_of_a_swimmer_by_a_wristband(folder, ill):
    seeded(10603)
    strokes, time = 5, torch.linspace(0, 4, 64)
    pace, tilt = torch.linspace(1.0, 2.6, strokes), torch.randn(strokes, 3)

    def band(rows):
        y = torch.randint(strokes, (rows,))
        phase = 6.2832 * (pace[y, None] * time + torch.rand(rows, 1))
        wave = phase.sin()[:, None] * tilt[y, :, None] + (2 * phase).cos()[:, None] * tilt[y].roll(1, 1)[:, :, None]
        return wave + 0.8 * torch.randn(rows, 3, 64), y

    net = nn.Sequential(
        nn.Conv1d(3, 24, 5, 2, 2), nn.BatchNorm1d(24), nn.ReLU(), nn.Conv1d(24, 48, 5, 2, 2), nn.BatchNorm1d(48),
        nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(48, strokes), *([nn.Softmax(1)] if ill else []),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    test_x, test_y = band(500)

    def loss_of(step):
        x, y = band(48)
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": (said.argmax(1) == y).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(test_x), test_y))
    return fit(folder, net, optimizer, loss_of, 250, score=score)


@sick("sigmoid-twice", "activation-on-logits", "logits-bounded", where="the output, all steps",
      cure="no sigmoid in the model: BCEWithLogitsLoss has its own")  # fmt: skip
def worn_patches_on_climbing_ropes(folder, ill):
    seeded(10604)

    def ropes(rows):
        row, column = torch.arange(20.0)[None, :, None], torch.arange(20.0)[None, None, :]
        middle, radius = 4 + 12 * torch.rand(rows, 2, 1, 1), 2 + 2 * torch.rand(rows, 1, 1)
        mask = ((row - middle[:, 0]) ** 2 + (column - middle[:, 1]) ** 2 < radius**2).float()
        twist = 0.5 * (row * 0.9 + column * 0.6 + 6.2832 * torch.rand(rows, 1, 1)).sin()
        image = twist * (1 - mask) + 0.7 * mask * torch.randn(rows, 20, 20) + 0.15 * torch.randn(rows, 20, 20)
        return image[:, None], mask[:, None]

    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 16, 3, padding=2, dilation=2), nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=2, dilation=2), nn.ReLU(), nn.Conv2d(16, 1, 1), *([nn.Sigmoid()] if ill else []),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
    loss = nn.BCEWithLogitsLoss()
    test_x, test_y = ropes(128)

    def loss_of(step):
        x, y = ropes(16)
        return loss(net(x), y)

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: loss(net(test_x), test_y)))


@sick("shapes-broadcast", where="the loss, all steps", cure="targets of the shape of the predictions")
def lengths_of_a_javelin_throw(folder, ill):
    seeded(10605)

    def throws(rows):
        x = torch.randn(rows, 5)
        return x, 1.2 * x[:, 0] + (1.5 * x[:, 1]).sin() - 0.6 * x[:, 2] * x[:, 3] + 0.1 * torch.randn(rows)

    x, y = throws(1600)
    test_x, test_y = throws(400)
    net = dense(5, 48, 48, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    draw = rounds(32, x, y)

    def loss_of(step):
        a, b = draw()
        return F.mse_loss(net(a), b if ill else b[:, None])

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.mse_loss(net(test_x)[:, 0], test_y)))
