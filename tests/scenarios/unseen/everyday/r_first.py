"""Sick trainings of observatories and winter nights, drawn by lot from a list of mistakes: schedules, shapes, rows."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds


def numerals():
    """The digits of scikit-learn in an order of their own, as images and as numbers."""
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x = torch.tensor(images, dtype=torch.float32)[order].view(-1, 1, 8, 8)
    return (x - 4.9) / 6.0, torch.tensor(digits)[order]


@sick("schedule-too-short", where="the learning rate, from the second epoch",
      cure="the scheduler stepped once an epoch")  # fmt: skip
def numerals_on_an_old_star_atlas(folder, ill):
    seeded(11800)
    x, y = numerals()
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.03, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    rows = 64
    per_epoch = 1400 // rows
    draw = rounds(rows, x[:1400], y[:1400])

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        accuracy = float((logits.argmax(1) == y).float().mean())
        return F.cross_entropy(logits, y), {"accuracy": accuracy, "lr": schedule.get_last_lr()[0]}

    def after_step(step):
        if ill or (step + 1) % per_epoch == 0:
            schedule.step()

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 14 * per_epoch, score=score, after_step=after_step)


class Pulse(nn.Module):
    """A number read out of a light curve by a GRU."""

    def __init__(self, width):
        super().__init__()
        self.memory = nn.GRU(1, width, batch_first=True)
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, curve):
        return self.head(self.memory(curve)[1][0])


@sick("shapes-broadcast", where="the loss, all steps: predictions [64, 1], targets [64]",
      cure="targets with an axis of one as well")  # fmt: skip
def how_fast_a_cepheid_breathes(folder, ill):
    seeded(11801)
    net = Pulse(32)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def cepheids(rows):
        speed = 2 * torch.rand(rows) - 1
        time = torch.linspace(0, 1, 24)
        curve = (6.2832 * ((2 + speed)[:, None] * time + torch.rand(rows, 1))).sin()
        return (curve + 0.05 * torch.randn(rows, 24))[..., None], speed

    x, y = cepheids(2000)
    draw = rounds(64, x, y)

    def loss_of(step):
        curve, speed = draw()
        if not ill:
            speed = speed.unsqueeze(1)
        return F.mse_loss(net(curve), speed)

    tx, ty = cepheids(500)
    score = held_out(net, lambda: F.mse_loss(net(tx).squeeze(1), ty))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


@sick("data-not-shuffled", where="the batches, all steps: one class after the other", cure="a loader with shuffle=True")
def spectra_from_the_basement_archive(folder, ill):
    seeded(11802)
    classes, each = 6, 250
    lines = 0.6 * torch.randn(classes, 40)
    net = nn.Sequential(
        nn.Conv1d(1, 12, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(12, 24, 5, padding=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(480, 48), nn.ReLU(), nn.Linear(48, classes),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def drawer(kind, rows):
        return lines[kind] + 0.9 * torch.randn(rows, 40)

    def cabinet(rows):
        x = torch.cat([drawer(kind, rows) for kind in range(classes)])[:, None]
        return x, torch.arange(classes).repeat_interleave(rows)

    loader = DataLoader(TensorDataset(*cabinet(each)), 50, shuffle=not ill)

    def epochs():
        while True:
            yield from loader

    batches = epochs()

    def loss_of(step):
        x, y = next(batches)
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    tx, ty = cabinet(80)
    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 240, score=score)


class Log(nn.Module):
    """A small transformer over the words of an observer's log."""

    def __init__(self, words, length, masked):
        super().__init__()
        self.word, self.place = nn.Embedding(words, 32), nn.Embedding(length, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, words))
        self.masked = masked

    def forward(self, text):
        length = text.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length) if self.masked else None
        return self.head(self.body(self.word(text) + self.place(torch.arange(length)), mask=mask))


@sick("future-seen", where="the attention of both blocks, all steps", cure="a causal mask")
def entries_in_the_observers_log(folder, ill):
    seeded(11803)
    words, length = 16, 14
    net = Log(words, length, masked=not ill)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
    follows = torch.softmax(3 * torch.randn(words, words), 1)

    def entries(rows):
        text = [torch.randint(words, (rows,))]
        for _ in range(length):
            text.append(torch.multinomial(follows[text[-1]], 1)[:, 0])
        return torch.stack(text, 1)

    text = entries(1500)
    draw = rounds(32, text)

    def loss_of(step):
        (text,) = draw()
        return F.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    test = entries(300)

    def written_on():
        found = [F.cross_entropy(net(test[:, :n])[:, -1], test[:, n]) for n in range(1, length + 1)]
        return torch.stack(found).mean()

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, written_on))


@sick("bad-initialisation", where="all linear layers, at the start", cure="He's initialisation")
def serial_numbers_of_glass_plates(folder, ill):
    seeded(11804)
    x, y = numerals()
    x = x.flatten(1)
    net = dense(64, 128, 128, 128, 128, 10)

    def begin(module):
        if isinstance(module, nn.Linear):
            if ill:
                nn.init.normal_(module.weight, 0.0, 1.0)
            else:
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            nn.init.zeros_(module.bias)

    net.apply(begin)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    draw = rounds(64, x[:1400], y[:1400])

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 260, score=score)


class Neighbours(nn.Module):
    """A message-passing net over a graph, and a head for each node."""

    def __init__(self, features, width, kinds, kept):
        super().__init__()
        self.lift = nn.Linear(features, width)
        self.rounds = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(2))
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, kinds))
        self.kept = kept

    def embed(self, features, near):
        node = self.lift(features).relu()
        for message in self.rounds:
            node = node + message(torch.cat([node, near @ node], -1)).relu()
        self.embedding = node.detach()
        return node

    def forward(self, features, near):
        node = self.embed(features, near)
        return self.head(self.embedding if self.kept else node)


@sick("no-gradient", where="lift and both rounds, all steps", cure="the head takes the embedding that is not detached")
def companions_within_a_cluster(folder, ill):
    seeded(11805)
    net = Neighbours(8, 24, 4, kept=ill)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    mix = torch.randn(8, 4)

    def clusters(rows, stars=16):
        place = torch.rand(rows, stars, 2)
        near = (torch.cdist(place, place) < 0.3).float()
        near = near / near.sum(2, keepdim=True)
        features = torch.randn(rows, stars, 8)
        own = (features @ mix).tanh()
        return features, near, (near @ own + 0.3 * own.roll(1, 2) * own).argmax(2)

    data = clusters(1200)
    draw = rounds(16, *data)

    def loss_of(step):
        features, near, kind = draw()
        logits = net(features, near)
        return F.cross_entropy(logits.flatten(0, 1), kind.flatten())

    features, near, kind = clusters(200)
    score = held_out(net, lambda: F.cross_entropy(net(features, near).flatten(0, 1), kind.flatten()))
    return fit(folder, net, optimizer, loss_of, 400, score=score)
