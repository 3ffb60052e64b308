"""Mistakes in models and loops: crafts, instruments and sports."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, rings, seeded, sick
from unseen.tasks import held_out, rounds, tend


@sick("padding-in-loss", where="the loss, all steps", cure="ignore_index for the padding")
def fingerings_for_a_wooden_recorder(folder, ill):
    seeded(10610)
    notes, holes, longest, none = 12, 8, 24, 0
    finger = torch.randint(1, holes, (notes + 1, notes + 1))

    def tunes(rows):
        length = torch.randint(2, 6, (rows, 1))
        length[0] = longest
        there = torch.arange(longest) < length
        x = torch.randint(1, notes + 1, (rows, longest)) * there
        before = F.pad(x[:, :-1], (1, 0))
        return x, finger[before, x] * there

    net = nn.ModuleDict({
        "note": nn.Embedding(notes + 1, 24, padding_idx=0),
        "memory": nn.GRU(24, 32, batch_first=True, bidirectional=True),
        "head": nn.Linear(64, holes),
    })  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.3, momentum=0.9)

    def loss_on(x, y, ignored):
        said = net["head"](net["memory"](net["note"](x))[0])
        return F.cross_entropy(said.flatten(0, 1), y.flatten(), ignore_index=ignored)

    test_x, test_y = tunes(200)
    score = held_out(net, lambda: loss_on(test_x, test_y, none))
    return fit(folder, net, optimizer, lambda step: loss_on(*tunes(24), -100 if ill else none), 150, score=score)


@sick("no-activation", "linear-network", "no-nonlinearity", where="between the linear layers, all steps",
      cure="a ReLU between them")  # fmt: skip
def rings_of_a_target_for_archers(folder, ill):
    seeded(10611)

    class Scorer(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2, self.fc3 = nn.Linear(12, 64), nn.Linear(64, 64), nn.Linear(64, 4)

        def forward(self, x):
            if ill:
                return self.fc3(self.fc2(self.fc1(x)))
            return self.fc3(self.fc2(self.fc1(x).relu()).relu())

    net, draw = Scorer(), rings(64)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    test_x, test_y = rings_of(draw)

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": (said.argmax(1) == y).float().mean()}

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.cross_entropy(net(test_x), test_y)))


def rings_of(draw, times=8):
    """Several batches in one."""
    drawn = [draw() for _ in range(times)]
    return torch.cat([x for x, _ in drawn]), torch.cat([y for _, y in drawn])


class Weaver(nn.Module):
    """An autoencoder whose code is kept for a plot as well."""

    def __init__(self, cut):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU(), nn.Flatten(),
            nn.Linear(24 * 9, 6),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            nn.Linear(6, 24 * 9), nn.ReLU(), nn.Unflatten(1, (24, 3, 3)), nn.ConvTranspose2d(24, 12, 4, 2, 1),
            nn.ReLU(), nn.ConvTranspose2d(12, 1, 4, 2, 1),
        )  # fmt: skip
        self.cut, self.codes = cut, None

    def forward(self, x):
        code = self.encoder(x)
        if self.cut:
            code = code.detach()
        self.codes = code.detach()
        return self.decoder(code)


@sick("detached-path", "no-gradient", "detached", where="the encoder, all steps", cure="detach only what is plotted")
def borders_of_a_woven_carpet(folder, ill):
    seeded(10612)

    def carpets(rows):
        at, turn = torch.linspace(-1, 1, 12), 6.2832 * torch.rand(rows, 1, 1)
        pitch = 2 + 3 * torch.rand(rows, 1, 1)
        across = turn.cos() * at[None, :, None] + turn.sin() * at[None, None]
        return (pitch * across).cos()[:, None] + 0.03 * torch.randn(rows, 1, 12, 12)

    net = Weaver(ill)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    test = carpets(256)

    def loss_of(step):
        x = carpets(32)
        return F.mse_loss(net(x), x)

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.mse_loss(net(test), test)))


@sick("bad-initialisation", "initialised-too-large", where="all weights, from the first step",
      cure="He's initialisation")  # fmt: skip
def grain_of_a_bow_makers_wood(folder, ill):
    seeded(10613)
    kinds, grain = 6, torch.randn(6, 3, 16)

    def planks(rows):
        y = torch.randint(kinds, (rows,))
        part = torch.randint(3, (rows,))
        return grain[y, part] + 0.6 * torch.randn(rows, 16), y

    net = dense(16, 128, 128, 128, kinds)
    for layer in net:
        if isinstance(layer, nn.Linear):
            if ill:
                nn.init.normal_(layer.weight, 0.0, 1.0)
            else:
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    test_x, test_y = planks(600)

    def loss_of(step):
        x, y = planks(64)
        return F.cross_entropy(net(x), y)

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: F.cross_entropy(net(test_x), test_y)))


@sick("accumulation-not-divided", "accumulation-not-averaged", "lr-too-high",
      where="every step: its gradient is the sum of sixteen micro-batches", cure="divide each loss by 16")  # fmt: skip
def digits_on_the_shirts_of_a_team(folder, ill):
    seeded(10614)
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x).float().view(-1, 1, 8, 8) / 8 - 1, torch.tensor(y)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    test_x, test_y, parts = x[1500:], y[1500:], 16
    draw = rounds(8, x[:1500], y[:1500])
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, 1, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)

    def one(step):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(parts):
            a, b = draw()
            loss = F.cross_entropy(net(a), b)
            (loss if ill else loss / parts).backward()
            total += float(loss.detach()) / parts
        optimizer.step()
        return {"loss": total}

    return tend(folder, net, optimizer, one, 80, held_out(net, lambda: F.cross_entropy(net(test_x), test_y)))


@sick("state-not-resumed", "optimizer-state-lost", "schedule-restarted",
      where="step 400, where the job was resumed, and all behind it",
      cure="load the state of the optimizer and of the schedule with the weights")  # fmt: skip
def tempo_of_a_drummer_by_ear(folder, ill):
    seeded(10615)
    time = torch.linspace(0, 1, 48)

    def drums(rows):
        tempo = torch.rand(rows, 1)
        beat = (6.2832 * ((2 + 4 * tempo) * time + 0.5 * torch.rand(rows, 1))).cos()
        return (4 * beat - 3).exp() + 0.1 * torch.randn(rows, 48), tempo * 2 - 1

    net = dense(48, 128, 128, 1)
    steps, cut = 450, 400
    begun = {"at": 0}
    optimizer = torch.optim.AdamW(net.parameters(), 3e-2, weight_decay=0.01)

    def rate(step):
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - begun["at"]) / steps)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)

    def resume(step):
        if ill and step == cut - 1:
            # what a new process has that loads checkpoint["model"] only
            optimizer.state.clear()
            begun["at"] = cut

    def loss_of(step):
        x, y = drums(8)
        return F.mse_loss(net(x), y)

    test_x, test_y = drums(1000)
    score = held_out(net, lambda: F.mse_loss(net(test_x), test_y))
    return fit(folder, net, optimizer, loss_of, steps, score=score, after_step=resume, schedule=schedule)
