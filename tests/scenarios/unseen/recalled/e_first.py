"""Twelve mistakes of one's own code and settings: data, model, optimizer, clip, accumulation, norm."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, rounds, tend


@sick("inputs-not-normalised", "columns-on-unlike-scales", "features-not-normalised",
      where="the first layer, all steps", cure="standardise each column")  # fmt: skip
def flow_of_brooks_from_their_catchments(folder, ill):
    seeded(10500)
    rows = 3000
    area, rain, height = 5 + 495 * torch.rand(rows), 500 + 1500 * torch.rand(rows), 100 + 2400 * torch.rand(rows)
    slope, forest, clay = 0.3 * torch.rand(rows), torch.rand(rows), torch.rand(rows)
    x = torch.stack([area, rain, height, slope, forest, clay], 1)
    share = torch.sigmoid(6 * slope / 0.3 - 5 * forest + 3 * clay - 1 + (height - 1300) / 1500)
    y = (rain / 1000 * share).log()[:, None] + 0.05 * torch.randn(rows, 1)
    y = (y - y.mean()) / y.std()
    if not ill:
        x = (x - x.mean(0)) / x.std(0)
    net = dense(6, 64, 64, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    draw = rounds(64, x[:2400], y[:2400])

    def loss_of(step):
        a, b = draw()
        return F.mse_loss(net(a), b)

    score = held_out(net, lambda: F.mse_loss(net(x[2400:]), y[2400:]))
    return fit(folder, net, optimizer, loss_of, 450, score=score)


def skies(rows, kinds, offset):
    """Pictures of stripes, 16 by 16, whose kind is their direction and width."""
    kind = torch.randint(kinds, (rows,))
    angle = (kind + offset) * math.pi / kinds
    at = torch.linspace(-1, 1, 16)
    along = at[None, :, None] * angle.cos()[:, None, None] + at[None, None] * angle.sin()[:, None, None]
    phase = 6.2832 * torch.rand(rows, 1, 1)
    return ((7 * along + phase).sin() + 0.5 * torch.randn(rows, 16, 16))[:, None], kind


@sick("not-in-optimizer", "not-in-the-optimizer", where="the new head, all steps",
      cure="make the optimizer after the head is replaced")  # fmt: skip
def bands_of_cirrus_by_their_direction(folder, ill):
    seeded(10501)
    body = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32),
        nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
    )  # fmt: skip
    net = nn.Sequential(body, nn.Linear(128, 5))
    before = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(80):
        x, y = skies(64, 5, 0)
        before.zero_grad()
        F.cross_entropy(net(x), y).backward()
        before.step()

    def made():
        groups = [{"params": net[0].parameters(), "lr": 1e-4}, {"params": net[1].parameters(), "lr": 3e-3}]
        return torch.optim.AdamW(groups, weight_decay=0.01)

    optimizer = made()
    net[1] = nn.Linear(128, 8)
    if not ill:
        optimizer = made()

    def loss_of(step):
        x, y = skies(32, 8, 0.5)
        return F.cross_entropy(net(x), y)

    x, y = skies(512, 8, 0.5)
    return fit(folder, net, optimizer, loss_of, 150, score=held_out(net, lambda: F.cross_entropy(net(x), y)))


class Reader(nn.Module):
    """A small encoder of sequences with one answer for each."""

    def __init__(self, columns, length, classes, width=32):
        super().__init__()
        self.read = nn.Linear(columns, width)
        self.place = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.body(self.read(x) + self.place).mean(1))


@sick("lr-too-high", "update-too-large", where="all layers, from the first step", cure="a rate near 1e-3")
def fronts_in_a_barograph_of_a_day(folder, ill):
    seeded(10502)
    net = Reader(2, 24, 4)
    optimizer = torch.optim.Adam(net.parameters(), 0.1 if ill else 1e-3)
    hours = torch.arange(24.0)

    def days(rows):
        kind, when = torch.randint(4, (rows,)), 6 + 12 * torch.rand(rows, 1)
        after = (hours - when).clamp(min=0)
        warm, dip = ((kind % 2) * 2 - 1)[:, None], (kind // 2)[:, None]
        pressure = -dip * (2 - (hours - when).abs() / 3).clamp(min=0) + 0.05 * after
        heat = warm * (after / 3).tanh() + (6.2832 * hours / 24).sin() / 2
        return torch.stack([pressure, heat], 2) + 0.4 * torch.randn(rows, 24, 2), kind

    def loss_of(step):
        x, y = days(32)
        return F.cross_entropy(net(x), y)

    x, y = days(512)
    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: F.cross_entropy(net(x), y)))


@sick("bad-initialisation", "symmetric-units", where="all matrices, from the first step",
      cure="the initialisation of PyTorch, or He's")  # fmt: skip
def fog_on_the_valley_road_at_dawn(folder, ill):
    seeded(10503)
    net = dense(6, 48, 48, 48, 2)

    def init_weights(part):
        if isinstance(part, nn.Linear):
            if ill:
                nn.init.zeros_(part.weight)
            else:
                nn.init.kaiming_normal_(part.weight)
            nn.init.zeros_(part.bias)

    net.apply(init_weights)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, weight_decay=1e-5)
    x = torch.randn(4000, 6)
    still, damp = x[:, 0].square() + x[:, 1].square(), x[:, 2] * x[:, 3] + x[:, 4]
    y = ((still < 1.6) & (damp > -0.4)).long()
    draw = rounds(64, x[:3200], y[:3200])

    def loss_of(step):
        a, b = draw()
        said = net(a)
        return F.cross_entropy(said, b), {"accuracy": (said.argmax(1) == b).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(x[3200:]), y[3200:]))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


class Felt(nn.Module):
    """How the air feels to a walker: three layers, and what stands between them is written in `forward`."""

    def __init__(self, act):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(4, 64), nn.Linear(64, 64), nn.Linear(64, 1)
        self.act = act

    def forward(self, x):
        x = self.fc1(x)
        if self.act:
            x = F.relu(x)
        x = self.fc2(x)
        if self.act:
            x = F.relu(x)
        return self.fc3(x)


@sick("no-activation", "no-nonlinearity", "linear-network", where="between the linear layers, all steps",
      cure="a ReLU after each hidden layer")  # fmt: skip
def how_warm_the_air_feels_to_a_walker(folder, ill):
    seeded(10504)
    net = Felt(not ill)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)

    def air(rows):
        x = torch.randn(rows, 4)
        heat, damp, wind, sun = x.unbind(1)
        felt = heat + heat.clamp(min=0) * damp - (-heat).clamp(min=0) * wind.abs() + 0.7 * (2 * sun).sin() * wind
        return x, felt[:, None] + 0.05 * torch.randn(rows, 1)

    def loss_of(step):
        x, y = air(64)
        return F.mse_loss(net(x), y)

    x, y = air(1024)
    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.mse_loss(net(x), y)))


@sick("clip-is-your-learning-rate", where="every step, all layers", cure="a threshold of 1")
def level_at_the_lower_lock_tomorrow(folder, ill):
    seeded(10505)
    net = nn.ModuleDict({"memory": nn.GRU(2, 32, batch_first=True), "head": nn.Linear(32, 1)})
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)

    def past(rows):
        rain = (torch.randn(rows, 24) - 0.8).clamp(min=0)
        level, upper = [torch.zeros(rows)], torch.zeros(rows)
        for hour in range(24):
            upper = 0.8 * upper + rain[:, hour]
            level.append(0.7 * level[-1] + 0.3 * upper)
        level = torch.stack(level, 1)
        return torch.stack([rain, level[:, :-1] + 0.02 * torch.randn(rows, 24)], 2), level[:, -1:]

    def loss_of(step):
        x, y = past(32)
        return F.mse_loss(net["head"](net["memory"](x)[0][:, -1]), y)

    x, y = past(512)
    score = held_out(net, lambda: F.mse_loss(net["head"](net["memory"](x)[0][:, -1]), y))
    clip = clipped(net, 1e-3 if ill else 1.0)
    return fit(folder, net, optimizer, loss_of, 300, score=score, before_step=clip)


@sick("accumulation-not-divided", "lr-too-high", "update-too-large", where="all layers, every step",
      cure="divide the loss of each micro-batch by their number")  # fmt: skip
def hail_stones_counted_on_a_tarpaulin(folder, ill):
    seeded(10506)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 16, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 6),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    parts, spots = 16, torch.arange(12.0)

    def sheets(rows):
        count, at = torch.randint(6, (rows,)), 1 + 9 * torch.rand(rows, 5, 2)
        near = [torch.exp(-(spots - at[:, :, i : i + 1]).square()) for i in (0, 1)]
        shown = (torch.arange(5) < count[:, None]).float()[:, :, None, None]
        image = (near[0][:, :, :, None] * near[1][:, :, None] * shown).sum(1)
        return (image + 0.1 * torch.randn(rows, 12, 12))[:, None], count

    def one(step):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(parts):
            x, y = sheets(8)
            loss = F.cross_entropy(net(x), y)
            (loss if ill else loss / parts).backward()
            total += float(loss.detach()) / parts
        optimizer.step()
        return {"loss": total}

    x, y = sheets(512)
    return tend(folder, net, optimizer, one, 120, held_out(net, lambda: F.cross_entropy(net(x), y)))


@sick("norm-over-too-few", where="the batch norms, all steps",
      cure="a norm over the features of each row, or larger batches")  # fmt: skip
def echoes_of_a_rain_radar_by_kind(folder, ill):
    seeded(10507)
    norm = nn.BatchNorm1d if ill else nn.LayerNorm
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(384, 64), norm(64), nn.ReLU(), nn.Linear(64, 48), norm(48), nn.ReLU(), nn.Linear(48, 5),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def loss_of(step):
        x, y = skies(2, 5, 0.25)
        return F.cross_entropy(net(x), y)

    x, y = skies(512, 5, 0.25)
    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, lambda: F.cross_entropy(net(x), y)))
