"""Sick trainings of theatres and markets, drawn by lot from a list of mistakes: decay, rates, heads, gradients."""

from __future__ import annotations

import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, rounds


@sick("weight-decay-too-strong", "weights-shrink", where="all layers, from the first steps on",
      cure="a weight decay of 5e-4")  # fmt: skip
def tickets_torn_at_the_balcony_door(folder, ill):
    seeded(11500)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x = torch.tensor(images / 8 - 1, dtype=torch.float32)[order].view(-1, 1, 8, 8)
    y = torch.tensor(digits)[order]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    steps = 250
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=0.1 if ill else 5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    draw = rounds(64, x[:1400], y[:1400])

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


@sick("lr-too-high", "update-too-large", "exploding", where="all layers, all steps", cure="a rate of 0.02")
def fiddles_known_by_their_overtones(folder, ill):
    seeded(11501)
    kinds = 6
    overtones = torch.rand(kinds, 8) / torch.arange(1, 9) ** 0.5
    net = nn.Sequential(
        nn.Conv1d(1, 16, 9, 2, 4), nn.ReLU(), nn.Conv1d(16, 32, 9, 2, 4), nn.ReLU(), nn.AvgPool1d(4), nn.Flatten(),
        nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, kinds),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 1.0 if ill else 0.02, momentum=0.9)
    time = torch.linspace(0, 2, 64)

    def bowed(rows):
        y = torch.randint(kinds, (rows,))
        pitch = 1 + 0.05 * torch.randn(rows, 1, 1)
        waves = (6.2832 * pitch * torch.arange(1, 9)[:, None] * time).sin()
        return (overtones[y][..., None] * waves).sum(1, keepdim=True) + 0.3 * torch.randn(rows, 1, 64), y

    def loss_of(step):
        x, y = bowed(64)
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    tx, ty = bowed(512)
    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@sick("not-in-optimizer", where="the new head, all steps", cure="the optimizer made once the head is in place")
def playbills_of_the_other_company(folder, ill):
    seeded(11502)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x, y = torch.tensor(images / 8 - 1, dtype=torch.float32)[order], torch.tensor(digits)[order]
    old, new = y < 6, y >= 6
    net = nn.ModuleDict({"body": nn.Sequential(nn.Flatten(), dense(64, 64, 64), nn.ReLU()), "head": nn.Linear(64, 6)})
    pretrain = torch.optim.Adam(net.parameters(), 2e-3)
    before = rounds(32, x[old], y[old])
    for _ in range(150):
        some, kind = before()
        pretrain.zero_grad()
        F.cross_entropy(net["head"](net["body"](some)), kind).backward()
        pretrain.step()

    def made():
        rates = {"body": 1e-4, "head": 5e-3}
        return torch.optim.AdamW([{"params": net[part].parameters(), "lr": rate} for part, rate in rates.items()])

    optimizer = made() if ill else None
    net["head"] = nn.Linear(64, 4)
    optimizer = optimizer or made()
    x, y = x[new], y[new] - 6
    draw = rounds(32, x[:500], y[:500])

    def loss_of(step):
        x, y = draw()
        logits = net["head"](net["body"](x))
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net["head"](net["body"](x[500:])), y[500:]))
    return fit(folder, net, optimizer, loss_of, 90, score=score)


class Listener(nn.Module):
    """Names what a melody is by the last state of a GRU."""

    def __init__(self, notes, width, kinds):
        super().__init__()
        self.note, self.memory = nn.Embedding(notes, width), nn.GRU(width, 2 * width, batch_first=True)
        self.head = nn.Linear(2 * width, kinds)

    def forward(self, melody):
        return self.head(self.memory(self.note(melody))[0][:, -1])


@sick("gradients-accumulate", where="all layers, from the second step on", cure="zero_grad in each step")
def modes_told_from_a_street_organ(folder, ill):
    seeded(11503)
    notes, kinds = 12, 4
    net = Listener(notes, 24, kinds)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    scales = torch.softmax(1.5 * torch.randn(kinds, notes), 1)

    def melodies(rows):
        y = torch.randint(kinds, (rows,))
        return torch.multinomial(scales[y], 14, replacement=True), y

    x, y = melodies(2000)
    draw = rounds(32, x, y)

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    tx, ty = melodies(600)
    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 250, score=score, zero_grad=not ill)


@sick("vanishing", where="the first layers, all steps", cure="ReLU between the layers")
def a_prompters_chest_examined(folder, ill):
    seeded(11504)
    table, kind = load_breast_cancer(return_X_y=True)
    order = torch.randperm(len(kind))
    x = torch.tensor(table, dtype=torch.float32)[order]
    y = torch.tensor(kind, dtype=torch.float32)[order, None]
    x = (x - x[:420].mean(0)) / x[:420].std(0)
    net = dense(30, *[32] * 8, 1, act=nn.Sigmoid if ill else nn.ReLU)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    draw = rounds(32, x[:420], y[:420])

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        right = ((logits > 0).float() == y).float().mean()
        return F.binary_cross_entropy_with_logits(logits, y), {"accuracy": float(right)}

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(x[420:]), y[420:]))
    return fit(folder, net, optimizer, loss_of, 120, score=score)


class Till(nn.Module):
    """A recurrent net of rectified units that begins as a sum of what it has read."""

    def __init__(self, width):
        super().__init__()
        self.memory = nn.RNN(2, width, nonlinearity="relu", batch_first=True)
        self.head = nn.Linear(width, 1)
        nn.init.eye_(self.memory.weight_hh_l0)
        nn.init.zeros_(self.memory.bias_hh_l0)
        nn.init.zeros_(self.memory.bias_ih_l0)

    def forward(self, evening):
        return self.head(self.memory(evening)[0][:, -1])


@sick("clip-after-step", where="all layers, all steps: the clip of the loop comes behind the step",
      cure="the clip between backward and step")  # fmt: skip
def takings_of_an_evening_summed(folder, ill):
    seeded(11505)
    net = Till(48)
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9)

    def evenings(rows, length=30):
        price, paid = torch.rand(rows, length), torch.rand(rows, length) < 0.2
        return torch.stack([price, paid.float()], 2), (price * paid).sum(1, keepdim=True) - 3

    def loss_of(step):
        x, y = evenings(32)
        return F.mse_loss(net(x), y)

    tx, ty = evenings(512)
    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    place = {"after_step" if ill else "before_step": clipped(net, 1.0)}
    return fit(folder, net, optimizer, loss_of, 300, score=score, **place)
