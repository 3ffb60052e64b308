"""Healthy trainings: a greenhouse, digits, prints of mushrooms, a year of diabetes, wines."""

from __future__ import annotations

import torch
from sklearn.datasets import load_diabetes, load_digits, load_wine
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


class Ahead(nn.Module):
    """The last state of a GRU to the next six hours, as differences from the last reading."""

    def __init__(self):
        super().__init__()
        self.memory, self.head = nn.GRU(3, 40, batch_first=True), nn.Linear(40, 6)

    def forward(self, x):
        return x[:, -1, :1] + self.head(self.memory(x)[1][0])


@healthy(gain=0.5)
def six_hours_ahead_in_a_palm_house(folder):
    """The warmth of a glass house from a day of readings; Adam, the last tenth of the year held out."""
    seeded(9706)
    hours = torch.arange(3000.0)
    day = 6.2832 * hours / 24
    cloud = F.avg_pool1d(torch.randn(1, 1, 3046), 47, 1)[0, 0, :3000] * 6
    warmth = (day.sin() * (1.2 - 0.5 * cloud.sigmoid())) + 0.4 * (2 * day).cos() + 0.5 * cloud
    warmth = warmth + 0.1 * torch.randn(3000)
    warmth = (warmth - warmth[:2600].mean()) / warmth[:2600].std()
    series = torch.stack([warmth, day.sin(), day.cos()], 1)
    past = series.unfold(0, 24, 1)[:-6].transpose(1, 2)
    ahead = warmth[24:].unfold(0, 6, 1)
    past = past[: len(ahead)]
    net, draw = Ahead(), rounds(32, past[:2500], ahead[:2500])
    held = slice(2600, None)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400, 1e-4)
    score = held_out(net, lambda: F.mse_loss(net(past[held]), ahead[held]))
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule, before_step=clipped(net, 1.0))


@healthy(gain=0.5)
def digits_through_a_waist_of_ten(folder):
    """An autoencoder of small digits by Adam with warm restarts, each period twice as long as the last."""
    seeded(9707)
    pixels = torch.tensor(load_digits().data, dtype=torch.float32)[torch.randperm(1797)] / 16
    net = nn.Sequential(dense(64, 128, 64, 10, act=nn.GELU), dense(10, 64, 128, 64, act=nn.GELU), nn.Sigmoid())
    draw = rounds(128, pixels[:1500])
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 100, 2, 1e-5)

    def loss_of(step):
        (x,) = draw()
        return F.mse_loss(net(x), x)

    score = held_out(net, lambda: F.mse_loss(net(pixels[1500:]), pixels[1500:]))
    return fit(folder, net, optimizer, loss_of, 700, score=score, schedule=schedule)


def prints(n, ways, kinds):
    """Spore prints `[n, 1, 12, 12]`: a grating of a direction and a pitch for each kind, with a phase of its own."""
    kind = torch.randint(kinds, (n,))
    across, down = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="xy")
    way = ways[kind]
    waves = (way[:, :1, None] * across + way[:, 1:, None] * down + 6.2832 * torch.rand(n, 1, 1)).sin()
    return (waves + 0.7 * torch.randn(n, 12, 12))[:, None], kind


@healthy(gain=0.5)
def spore_prints_after_ten_other_kinds(folder):
    """Fine-tuning: a body that knows ten kinds, a new head for six others, a gentle rate for the body."""
    seeded(9708)
    body = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, 48), nn.ReLU(),
    )  # fmt: skip
    ways = 0.9 * torch.randn(16, 2)
    x, y = prints(1500, ways[:10], 10)
    before, draw = nn.Sequential(body, nn.Linear(48, 10)), rounds(64, x, y)
    optimizer = torch.optim.Adam(before.parameters(), 3e-3)
    for _ in range(300):
        pictures, named = draw()
        optimizer.zero_grad()
        F.cross_entropy(before(pictures), named).backward()
        optimizer.step()

    x, y = prints(900, ways[10:], 6)
    net, draw = nn.Sequential(body, nn.Linear(48, 6)), rounds(32, x[:600], y[:600])
    groups = [{"params": body.parameters(), "lr": 5e-4}, {"params": net[1].parameters(), "lr": 3e-3}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)

    def loss_of(step):
        pictures, named = draw()
        guess = net(pictures)
        return F.cross_entropy(guess, named), {"accuracy": float((guess.argmax(1) == named).float().mean())}

    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, 300)
    score = held_out(net, lambda: F.cross_entropy(net(x[600:]), y[600:]))
    return fit(folder, net, optimizer, loss_of, 300, score=score, schedule=schedule)


@healthy(gain=0.35)
def diabetes_a_year_later(folder):
    """Few rows, a small net, dropout and decay against learning them by heart; the held-out error is watched."""
    seeded(9709)
    data = load_diabetes()
    order = torch.randperm(442)
    x = torch.tensor(data.data, dtype=torch.float32)[order]
    y = torch.tensor(data.target, dtype=torch.float32)[order]
    x, y = (x - x[:330].mean(0)) / x[:330].std(0), (y - y[:330].mean()) / y[:330].std()
    net = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 1))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.1)
    draw = rounds(32, x[:330], y[:330])
    score = held_out(net, lambda: F.mse_loss(net(x[330:])[:, 0], y[330:]))

    def one(step):
        logged = {"val_loss": score()} if step % 10 == 0 else {}
        rows, after = draw()
        optimizer.zero_grad()
        loss = F.mse_loss(net(rows)[:, 0], after)
        loss.backward()
        optimizer.step()
        return {"loss": loss, **logged}

    return tend(folder, net, optimizer, one, 400, score)


@healthy(gain=0.7)
def wines_of_three_growers(folder):
    """Thirteen measures of a wine, standardised; a small tanh net by SGD with momentum, smoothed labels."""
    seeded(9710)
    data, order = load_wine(), torch.randperm(178)
    x, y = torch.tensor(data.data, dtype=torch.float32)[order], torch.tensor(data.target)[order]
    x = (x - x[:130].mean(0)) / x[:130].std(0)
    net = dense(13, 20, 20, 3, act=nn.Tanh)
    optimizer = torch.optim.SGD(net.parameters(), 0.03, momentum=0.9, weight_decay=1e-3)
    draw = rounds(26, x[:130], y[:130])

    def loss_of(step):
        rows, grower = draw()
        guess = net(rows)
        loss = F.cross_entropy(guess, grower, label_smoothing=0.05)
        return loss, {"accuracy": float((guess.argmax(1) == grower).float().mean())}

    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
    score = held_out(net, lambda: F.cross_entropy(net(x[130:]), y[130:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score, schedule=schedule)
