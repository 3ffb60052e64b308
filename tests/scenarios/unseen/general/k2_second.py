"""A small town's services: buses, letters, water meters, a weather gauge, fingerposts, a suggestion box."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from unseen import fit, seeded, sick
from unseen.tasks import held_out, judged, now_and_then, rounds, tend


class Ride(nn.Module):
    """How late a bus is: numbers of the day, and the line by its embedding."""

    def __init__(self, lines, last):
        super().__init__()
        self.line = nn.Embedding(lines, 6)
        self.layers = nn.Sequential(
            nn.Linear(11, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1), last
        )  # fmt: skip

    def forward(self, line, x):
        return self.layers(torch.cat([self.line(line), x], 1))


# 27 of the list
@sick("targets-out-of-range", "outputs-never-negative", "relu-on-the-output",
      where="the end of the model, all steps: half of the targets are below zero",
      cure="no ReLU after the last layer")  # fmt: skip
def minutes_a_town_bus_is_early_or_late(folder, ill):
    seeded(13706)
    slow = torch.randn(9)

    def rides(rows):
        line, x = torch.randint(9, (rows,)), torch.randn(rows, 5)
        rush = torch.exp(-x[:, 0].square())
        minutes = slow[line] + 2 * rush * x[:, 1] + 0.8 * x[:, 2] - 0.7 * (2 * x[:, 3]).sin() - 0.8
        return line, x, (minutes + 0.2 * torch.randn(rows))[:, None]

    net = Ride(9, nn.ReLU() if ill else nn.Identity())
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    draw = rounds(64, *rides(4000))
    line, given, late = rides(600)
    validate = now_and_then(net, 40, lambda: {"val_mae": F.l1_loss(net(line, given), late)})

    def loss_of(step):
        *known, minutes = draw()
        return F.mse_loss(net(*known), minutes), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(line, given), late))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


# 10 of the list
@sick("data-not-shuffled", "batches-of-one-label", where="the loader, all steps: each batch is of one round",
      cure="shuffle=True in the loader")  # fmt: skip
def letters_laid_into_the_postmans_rounds(folder, ill):
    seeded(13707)
    streets = torch.randn(10, 3, 24)

    def letters(rows):
        y = torch.randint(10, (rows,))
        return streets[y, torch.randint(3, (rows,))] + 0.8 * torch.randn(rows, 24), y

    x, y = letters(3200)
    order = y.argsort()
    dataset = TensorDataset(x[order], y[order])
    loader = DataLoader(dataset, batch_size=64, shuffle=not ill)
    net = nn.Sequential(nn.Linear(24, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    tx, ty = letters(600)
    validate = now_and_then(net, 25, judged(net, tx, ty))
    batches = (batch for _ in range(8) for batch in loader)

    def one(step):
        rows, kind = next(batches)
        optimizer.zero_grad()
        said = net(rows)
        loss = F.cross_entropy(said, kind)
        loss.backward()
        optimizer.step()
        return {"loss": loss, "accuracy": float((said.argmax(1) == kind).float().mean()), **validate(step)}

    return tend(folder, net, optimizer, one, 400, held_out(net, lambda: F.cross_entropy(net(tx), ty)))


def listening(kinds, dense=48):
    """Convolutions over the hum of a meter."""
    parts, ins = [], 1
    for outs in (16, 32, 32):
        parts += [nn.Conv1d(ins, outs, 5, stride=2, padding=2), nn.BatchNorm1d(outs), nn.ReLU()]
        ins = outs
    head = [nn.Linear(ins, dense), nn.BatchNorm1d(dense), nn.ReLU(), nn.Linear(dense, kinds)]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool1d(1), nn.Flatten(), *head)


# 33 of the list
@sick("norm-over-too-few", "norm-statistics-noisy", where="all batch norms, that of the head before all, all steps",
      cure="batches of thirty-two")  # fmt: skip
def taps_left_running_by_the_meters_hum(folder, ill):
    seeded(13708)
    tones = 3 + 11 * torch.rand(6, 2)
    time = torch.linspace(0, 6.2832, 64)

    def hums(rows):
        y = torch.randint(6, (rows,))
        phase, loud = 6.2832 * torch.rand(rows, 2, 1), 0.5 + torch.rand(rows, 2, 1)
        wave = (loud * (tones[y][..., None] * time + phase).sin()).sum(1)
        return (wave + 0.8 * torch.randn(rows, 64))[:, None], y

    draw = rounds(2 if ill else 32, *hums(3000))
    net = listening(6)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    tx, ty = hums(500)
    validate = now_and_then(net, 50, judged(net, tx, ty))

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": float((said.argmax(1) == y).float().mean()), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


class Gauge(nn.Module):
    """What the weather will be, by an LSTM over days of readings: `[rows, days, columns]`."""

    def __init__(self, columns, kinds, ill):
        super().__init__()
        self.rnn = nn.LSTM(columns, 48)
        self.out = nn.Linear(48, kinds)
        self.ill = ill

    def forward(self, x):
        rows, days, columns = x.shape
        x = x.view(days, rows, columns) if self.ill else x.transpose(0, 1)  # the LSTM wants the days first
        _, (last, _) = self.rnn(x)
        return self.out(last[-1])


# 38 of the list
@sick("axes-mixed", where="the input of rnn, all steps: days of one row are spread over many rows",
      cure="a transpose in place of the view")  # fmt: skip
def tomorrows_weather_by_the_town_hall_gauge(folder, ill):
    seeded(13709)
    way = torch.randn(3, 5)

    def weeks(rows):
        state = torch.randn(rows, 3)
        days = []
        for _ in range(21):
            state = 0.85 * state + 0.5 * torch.randn(rows, 3) + 0.2 * state.roll(1, 1).tanh()
            days.append(state @ way + 0.3 * torch.randn(rows, 5))
        kind = (state[:, 0] > 0).long() + 2 * (state[:, 1] + 0.5 * state[:, 2] > 0).long()
        return torch.stack(days, 1) / 2, kind

    net = Gauge(5, 4, ill)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    draw = rounds(64, *weeks(3000))
    tx, ty = weeks(500)
    validate = now_and_then(net, 30, judged(net, tx, ty))

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": float((said.argmax(1) == y).float().mean()), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


# 35 of the list
@sick("augmentation-changes-label", "augmentation-changes-labels", "augmentation-destroys-labels",
      "labels-do-not-fit-inputs", where="the flips of the training images, all steps",
      cure="contrast and brightness alone, no flips")  # fmt: skip
def fingerposts_by_the_way_they_point(folder, ill):
    seeded(13710)
    grid = torch.stack(torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij"), 0)

    def posts(rows):
        y = torch.randint(8, (rows,))
        angle = y * 0.7854 + 0.15 * torch.randn(rows)
        way = torch.stack([angle.sin(), angle.cos()], 1)
        along = torch.einsum("bk,khw->bhw", way, grid)
        across = torch.einsum("bk,khw->bhw", torch.stack([-way[:, 1], way[:, 0]], 1), grid)
        arm = (across.abs() < 0.5 * (0.8 - along)) & (along > -0.2) & (along < 0.8)
        return arm.float()[:, None] - 0.2 + 0.5 * torch.randn(rows, 1, 16, 16), y

    def augment(x):
        x = x * (0.7 + 0.6 * torch.rand(len(x), 1, 1, 1)) + 0.1 * torch.randn(len(x), 1, 1, 1)
        if ill:
            x = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(3), x)
            x = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(2), x)
        return x

    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 8),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9, weight_decay=5e-4)
    draw = rounds(64, *posts(2400))
    tx, ty = posts(400)
    validate = now_and_then(net, 37, judged(net, tx, ty))

    def loss_of(step):
        x, y = draw()
        said = net(augment(x))
        return F.cross_entropy(said, y), {"accuracy": float((said.argmax(1) == y).float().mean()), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 220, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


class Note(nn.Module):
    """The office that a note is meant for: a transformer encoder, read at a first token of its own."""

    def __init__(self, words, width, kinds, longest, ill):
        super().__init__()
        self.word = nn.Embedding(words + 1, width, padding_idx=0)
        self.first = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.place = nn.Parameter(0.02 * torch.randn(1, longest + 1, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, kinds))
        self.ill = ill

    def forward(self, x):
        h = torch.cat([self.first.expand(len(x), -1, -1), self.word(x)], 1) + self.place
        real = F.pad(x != 0, (1, 0), value=True)
        h = self.encoder(h, src_key_padding_mask=real if self.ill else ~real)
        return self.out(h[:, 0])


# 16 of the list
@sick("mask-inverted", "mask-is-wrong", where="all attention layers, all steps: they see nothing but the padding",
      cure="True for the padding in the mask")  # fmt: skip
def notes_in_the_suggestion_box_by_their_office(folder, ill):
    seeded(13711)
    habit = 1.5 * torch.randn(6, 60)

    def notes(rows):
        y, length = torch.randint(6, (rows,)), torch.randint(6, 16, (rows,))
        words = torch.multinomial(habit[y].softmax(1), 16, replacement=True) + 1
        return words * (torch.arange(16) < length[:, None]), y

    net = Note(60, 32, 6, 16, ill)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    draw = rounds(48, *notes(3000))
    tx, ty = notes(400)
    validate = now_and_then(net, 40, judged(net, tx, ty))

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": float((said.argmax(1) == y).float().mean()), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 180, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))
