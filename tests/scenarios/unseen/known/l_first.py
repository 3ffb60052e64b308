"""Sick trainings of workshops and houses, drawn by lot from a list of mistakes: labels, losses, outputs, rates."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds


@sick("class-never-in-loss", "labels-not-one-hot", "labels-mismatched", "labels-do-not-fit-inputs",
      where="the targets, all steps: rows of the last class are all zero, the others are a column off",
      cure="one-hot rows of the classes themselves, without a column for padding")  # fmt: skip
def screws_sorted_by_their_thread_pitch(folder, ill):
    seeded(11200)
    kinds = 5
    net = nn.Sequential(
        nn.Conv1d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(16, 32, 5, padding=2), nn.ReLU(),
        nn.AdaptiveMaxPool1d(4), nn.Flatten(), nn.Linear(128, kinds),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def screws(rows):
        y = torch.randint(kinds, (rows,))
        pitch = 2.0 + 1.2 * y[:, None] + 0.1 * torch.randn(rows, 1)
        profile = (6.2832 * (pitch * torch.linspace(0, 1, 48) + torch.rand(rows, 1))).sin()
        return (profile + 0.3 * torch.randn(rows, 48))[:, None], y

    def loss_of(step):
        x, y = screws(64)
        target = F.one_hot(y + 1, kinds + 1)[:, :kinds] if ill else F.one_hot(y, kinds)
        logits = net(x)
        loss = -(target * logits.log_softmax(1)).sum(1).mean()
        return loss, {"accuracy": float((logits.argmax(1) == y).float().mean())}

    tx, ty = screws(512)
    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@sick("shapes-broadcast", where="the loss, all steps: a column against a row",
      cure="outputs without their last axis before the loss")  # fmt: skip
def heat_lost_through_old_windows(folder, ill):
    seeded(11201)
    net = dense(7, 64, 64, 1)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def windows(rows):
        x = torch.randn(rows, 7)
        lost = x[:, 0] * x[:, 1].sigmoid() + 0.5 * x[:, 2].relu() - 0.3 * x[:, 3] + 0.1 * torch.randn(rows)
        return x, lost

    x, y = windows(2048)
    draw = rounds(64, x, y)

    def loss_of(step):
        x, y = draw()
        out = net(x)
        return F.mse_loss(out if ill else out.squeeze(1), y)

    tx, ty = windows(1024)
    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.mse_loss(net(tx)[:, 0], ty)))


class Tagger(nn.Module):
    """A tag for each of the letters that a GRU reads."""

    def __init__(self, letters, tags):
        super().__init__()
        self.letter = nn.Embedding(letters, 24, padding_idx=0)
        self.memory = nn.GRU(24, 48, batch_first=True)
        self.head = nn.Linear(48, tags)

    def forward(self, text):
        return self.head(self.memory(self.letter(text))[0])


@sick("padding-in-loss", where="the loss, all steps", cure="padding left out of the loss by ignore_index")
def parts_named_in_repair_slips(folder, ill):
    seeded(11202)
    letters, tags, longest = 16, 6, 20
    net = Tagger(letters + 1, tags + 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.2, momentum=0.9)

    def slips(rows):
        text = torch.randint(1, letters + 1, (rows, longest))
        tag = (text + text.roll(1, 1)) % tags + 1
        tag[:, 0] = text[:, 0] % tags + 1
        length = 2 + (torch.rand(rows, 1) ** 6 * (longest - 2)).long()
        beyond = torch.arange(longest) >= length
        return text.masked_fill(beyond, 0), tag.masked_fill(beyond, 0)

    def loss_on(text, tag, ignored):
        return F.cross_entropy(net(text).flatten(0, 1), tag.flatten(), ignore_index=ignored)

    test = slips(512)
    score = held_out(net, lambda: loss_on(*test, 0))
    return fit(folder, net, optimizer, lambda step: loss_on(*slips(32), -100 if ill else 0), 180, score=score)


@sick("targets-out-of-range", "relu-on-the-output", "outputs-never-negative", where="the last operation of the model",
      cure="a linear output")  # fmt: skip
def warmth_of_a_cellar_in_winter(folder, ill):
    seeded(11203)
    net = dense(10, 64, 64, 1)
    if ill:
        net.append(nn.ReLU())
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def nights(rows):
        x = torch.randn(rows, 10)
        warmth = x[:, :4].sum(1) * 0.5 + (2 * x[:, 4]).sin() * 0.5 + 0.1 * torch.randn(rows)
        return x, warmth[:, None]

    x, y = nights(3000)
    draw = rounds(64, x, y)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    tx, ty = nights(1000)
    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


@sick("update-too-small", "lr-too-low", where="all layers, all steps", cure="a rate of 1e-3")
def house_numbers_painted_on_gates(folder, ill):
    seeded(11204)
    images, digits = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 8 - 1, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(digits)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(32 * 16, 10),
    )  # fmt: skip
    steps = 200
    optimizer = torch.optim.AdamW(net.parameters(), 1e-6 if ill else 1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    draw = rounds(32, x[:1400], y[:1400])

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y)

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


@sick("weight-decay-too-strong", "weights-shrink", where="all layers, from the first step",
      cure="a weight decay of 1e-4, or AdamW")  # fmt: skip
def wear_of_drills_by_their_use(folder, ill):
    seeded(11205)
    net = dense(8, 64, 64, 64, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, weight_decay=0.5 if ill else 1e-4)
    hardness = torch.randn(8, 3)

    def drills(rows):
        x = torch.randn(rows, 8)
        return x, (x @ hardness / 2).tanh().sum(1, keepdim=True) + 0.05 * torch.randn(rows, 1)

    x, y = drills(4000)
    draw = rounds(128, x, y)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    tx, ty = drills(1000)
    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))
