"""Mistakes in code of one's own: data and targets, labels, the model's end and beginning, the loop, clipping."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, rounds, tend


@sick("targets-not-normalised", "lr-too-low", where="the targets; the head and all layers, all steps",
      cure="standardise the prices and scale the predictions back")  # fmt: skip
def asking_prices_of_allotments(folder, ill):
    seeded(10100)
    way = torch.randn(10)

    def plots(rows):
        x = torch.randn(rows, 10)
        worth = (x @ way) / way.norm() + 0.5 * (x[:, 0] * x[:, 1]).tanh() + 0.05 * torch.randn(rows)
        return x, 310_000 + 90_000 * worth[:, None]

    x, y = plots(2000)
    centre, spread = (0.0, 1.0) if ill else (y.mean(), y.std())
    draw = rounds(64, x, (y - centre) / spread)
    net = dense(10, 64, 64, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    tx, ty = plots(512)
    score = held_out(net, lambda: F.l1_loss(net(tx) * spread + centre, ty) / 1000)
    return fit(folder, net, optimizer, loss_of, 300, score=score)


@sick("class-imbalance", where="the labels: one in fifty is faulty; the loss, all steps",
      cure="weight the faulty ones by how rare they are")  # fmt: skip
def faulty_welds_on_a_conveyor(folder, ill):
    seeded(10101)

    def welds(rows, share):
        faulty = torch.rand(rows) < share
        image = 0.5 * torch.randn(rows, 1, 12, 12)
        image[:, :, 5:7] += 1
        gap = F.one_hot(torch.randint(1, 11, (rows,)), 12).float()
        gap = gap + gap.roll(1, 1)
        image[:, 0, 5:7] -= 1.2 * (faulty[:, None] * gap)[:, None]
        return image, faulty.float()

    draw = rounds(64, *welds(4000, 0.02))
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(24, 1),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
    weight = None if ill else torch.tensor(49.0)

    def loss_of(step):
        image, faulty = draw()
        said = net(image)[:, 0]
        loss = F.binary_cross_entropy_with_logits(said, faulty, pos_weight=weight)
        right = ((said > 0) == (faulty > 0.5)).float().mean()
        return loss, {"accuracy": float(right), "flagged": float((said > 0).float().mean())}

    image, faulty = welds(512, 0.5)
    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(image)[:, 0], faulty))
    return fit(folder, net, optimizer, loss_of, 250, score=score)


class Drift(nn.Module):
    """Reads a log of wind and current, and says where the buoy ends."""

    def __init__(self, last):
        super().__init__()
        self.memory = nn.GRU(4, 32, batch_first=True)
        self.hidden = nn.Linear(32, 32)
        self.out = nn.Linear(32, 2)
        self.last = last

    def forward(self, x):
        return self.last(self.out(F.relu(self.hidden(self.memory(x)[0][:, -1]))))


@sick("relu-on-the-output", "outputs-never-negative", "dead-units", where="the last layer, all steps",
      cure="no activation after the last layer")  # fmt: skip
def where_a_buoy_drifts_to(folder, ill):
    seeded(10102)
    net = Drift(nn.ReLU() if ill else nn.Identity())
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def log(rows):
        x = torch.randn(rows, 12, 4)
        fade = torch.linspace(0.2, 1, 12)[:, None]
        return x, ((0.6 * x[..., :2] + 0.4 * x[..., 2:]) * fade).sum(1)

    def loss_of(step):
        x, y = log(64)
        return F.mse_loss(net(x), y)

    tx, ty = log(512)
    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


@sick("symmetric-units", "bad-initialisation", where="all layers from the first step: the units of a layer are alike",
      cure="draw the weights at random (Xavier)")  # fmt: skip
def kinds_of_soil_from_a_spectrum(folder, ill):
    seeded(10103)
    peaks = torch.rand(6, 3)
    grid = torch.linspace(0, 1, 40)

    def spectra(rows):
        y = torch.randint(6, (rows,))
        at = peaks[y] + 0.02 * torch.randn(rows, 3)
        curve = torch.exp(-((grid - at[:, :, None]) ** 2) / 0.005).sum(1) * (0.7 + 0.6 * torch.rand(rows, 1))
        return curve - 0.5 + 0.1 * torch.randn(rows, 40), y

    net = dense(40, 48, 48, 6, act=nn.Tanh)
    for part in net:
        if isinstance(part, nn.Linear):
            if ill:
                nn.init.constant_(part.weight, 0.05)
            else:
                nn.init.xavier_uniform_(part.weight)
            nn.init.zeros_(part.bias)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    draw = rounds(50, *spectra(2000))

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": float((said.argmax(1) == y).float().mean())}

    tx, ty = spectra(500)
    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@sick("zeroed-before-the-step", "weights-unchanged", "no-gradient", where="every layer, every step",
      cure="zero_grad before backward, not between it and the step")  # fmt: skip
def patterns_of_kitchen_tiles(folder, ill):
    seeded(10104)
    tiles = torch.randn(8, 3, 4, 4).sign()

    def walls(rows):
        y = torch.randint(8, (rows,))
        wall = tiles[y].repeat(1, 1, 4, 4)
        shift = torch.randint(4, (1,)).item()
        return wall.roll(shift, 3) + 1.0 * torch.randn(rows, 3, 16, 16), y

    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, 8),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)

    def one(step):
        x, y = walls(32)
        if not ill:
            optimizer.zero_grad()
        said = net(x)
        loss = F.cross_entropy(said, y)
        loss.backward()
        if ill:
            optimizer.zero_grad()
        optimizer.step()
        return {"loss": loss, "accuracy": float((said.argmax(1) == y).float().mean())}

    tx, ty = walls(256)
    return tend(folder, net, optimizer, one, 150, held_out(net, lambda: F.cross_entropy(net(tx), ty)))


class Tune(nn.Module):
    """The next note of a melody."""

    def __init__(self, notes, width):
        super().__init__()
        self.note = nn.Embedding(notes, width)
        self.memory = nn.LSTM(width, width, batch_first=True)
        self.out = nn.Linear(width, notes)

    def forward(self, x):
        return self.out(self.memory(self.note(x))[0])


@sick("clip-is-your-learning-rate", "update-too-small", where="all layers, all steps: every step is clipped to 0.001",
      cure="clip at 1")  # fmt: skip
def melodies_hummed_in_the_dark(folder, ill):
    seeded(10105)
    steps = torch.tensor([1, 2, -1, 5, -3])

    def melody(rows):
        where = torch.randint(5, (rows, 1)) + torch.arange(24)
        moves = steps[where % 5]
        tune = (torch.randint(12, (rows, 1)) + moves.cumsum(1)) % 12
        slip = torch.rand(rows, 24) < 0.03
        return torch.where(slip, torch.randint(12, (rows, 24)), tune)

    net = Tune(12, 48)
    optimizer = torch.optim.SGD(net.parameters(), 0.5, momentum=0.9)

    def loss_on(tune):
        return F.cross_entropy(net(tune[:, :-1]).flatten(0, 1), tune[:, 1:].flatten())

    test = melody(128)
    score = held_out(net, lambda: loss_on(test))
    before = clipped(net, 1e-3 if ill else 1.0)
    return fit(folder, net, optimizer, lambda step: loss_on(melody(32)), 300, score=score, before_step=before)
