"""Healthy trainings as courses, tutorials and teams have them: digits, text, tables, masks, graphs."""

from __future__ import annotations

import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, play, rounds


@healthy(0.6)
def cloakroom_tickets_read_by_a_camera(folder):
    seeded(10350)
    digits = load_digits()
    x, y = torch.tensor(digits.images).float()[:, None] / 16, torch.tensor(digits.target)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.25), nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=250)
    batch = rounds(64, x[:1400], y[:1400])

    def loss_of(step):
        a, b = batch()
        said = net(a)
        return F.cross_entropy(said, b), {"accuracy": (said.argmax(1) == b).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 250, score=score, schedule=schedule)


@healthy(0.3)
def tissue_samples_sorted_by_thirty_columns(folder):
    seeded(10351)
    table = load_breast_cancer()
    x, y = torch.tensor(table.data).float(), torch.tensor(table.target).float()[:, None]
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    x = (x - x[:400].mean(0)) / x[:400].std(0)
    net = dense(30, 32, 16, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    batch = rounds(32, x[:400], y[:400])

    def loss_of(step):
        a, b = batch()
        return F.binary_cross_entropy_with_logits(net(a), b)

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(x[400:]), y[400:]))
    return fit(folder, net, optimizer, loss_of, 240, score=score)


class Writer(nn.Module):
    """A model of characters: an embedding, two layers of LSTM, a head."""

    def __init__(self, letters):
        super().__init__()
        self.letter = nn.Embedding(letters, 24)
        self.rnn = nn.LSTM(24, 48, 2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(48, letters)

    def forward(self, text):
        return self.head(self.rnn(self.letter(text))[0])


@healthy(0.3)
def nonsense_verse_letter_by_letter(folder):
    seeded(10352)
    words = ["tum ", "tiddle ", "bam ", "bo ", "fiddle ", "ram ", "zo "]
    letters = sorted(set("".join(words)))
    index = {letter: i for i, letter in enumerate(letters)}
    spoken = "".join(words[i] for i in torch.randint(len(words), (2500,)).tolist())
    text = torch.tensor([index[letter] for letter in spoken])
    train, test = text[:9000], text[9000 : 9000 + 640].view(20, 32)
    net = Writer(len(letters))
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def loss_on(rows):
        return F.cross_entropy(net(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    def loss_of(step):
        begin = torch.randint(len(train) - 32, (24, 1))
        return loss_on(train[begin + torch.arange(32)])

    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, loss_of, 160, score=score, before_step=clipped(net, 1.0))


class Unet(nn.Module):
    """One level down, one up, and a skip."""

    def __init__(self):
        super().__init__()
        self.into = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.GroupNorm(4, 12), nn.ReLU())
        self.down = nn.Sequential(nn.Conv2d(12, 24, 3, 2, 1), nn.GroupNorm(4, 24), nn.ReLU())
        self.up = nn.ConvTranspose2d(24, 12, 2, 2)
        self.out = nn.Sequential(nn.Conv2d(24, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1))

    def forward(self, x):
        fine = self.into(x)
        return self.out(torch.cat([fine, self.up(self.down(fine))], 1))


@healthy(0.3)
def cracks_found_in_a_glazed_tile(folder):
    seeded(10353)
    net, grid = Unet(), torch.linspace(-1, 1, 16)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)

    def tiles(rows):
        turn, shift = 3.1416 * torch.rand(rows, 1, 1), 0.8 * torch.rand(rows, 1, 1) - 0.4
        off = turn.cos() * grid[None, :, None] + turn.sin() * grid + 0.15 * (5 * grid).sin() - shift
        crack = (off.abs() < 0.12).float()[:, None]
        return crack + 0.5 * torch.randn(rows, 1, 16, 16), crack

    def loss_on(x, crack):
        said = net(x)
        p = said.sigmoid()
        dice = 1 - (2 * (p * crack).sum() + 1) / (p.sum() + crack.sum() + 1)
        return F.binary_cross_entropy_with_logits(said, crack) + dice

    x, crack = tiles(128)
    score = held_out(net, lambda: loss_on(x, crack))
    return fit(folder, net, optimizer, lambda step: loss_on(*tiles(16)), 150, score=score)


@healthy(0.2)
def digits_squeezed_through_six_numbers(folder):
    seeded(10354)
    x = torch.tensor(load_digits().data).float() / 16
    net = nn.ModuleDict({"encode": dense(64, 96, 12), "decode": dense(6, 96, 64)})
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    batch = rounds(64, x[:1400])

    def parts(x):
        middle, log_var = net["encode"](x).chunk(2, 1)
        z = middle + torch.randn_like(middle) * (log_var / 2).exp()
        error = F.binary_cross_entropy_with_logits(net["decode"](z), x, reduction="none").sum(1).mean()
        kl = -0.5 * (1 + log_var - middle.square() - log_var.exp()).sum(1).mean()
        return error, kl

    def loss_of(step):
        error, kl = parts(batch()[0])
        weight = min(1.0, (step + 1) / 150)
        return error + weight * kl, {"reconstruction": error.detach(), "kl": kl.detach()}

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: sum(parts(x[1400:]))))


class Picker(nn.Module):
    """A small transformer that reads its answer from a token of its own."""

    def __init__(self, words, length, classes):
        super().__init__()
        self.word = nn.Embedding(words, 32)
        self.place = nn.Parameter(0.02 * torch.randn(length + 1, 32))
        self.ask = nn.Parameter(0.02 * torch.randn(1, 1, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, classes)

    def forward(self, text):
        x = torch.cat([self.ask.expand(len(text), 1, 32), self.word(text)], 1) + self.place
        return self.head(self.norm(self.body(x)[:, 0]))


@healthy(0.3)
def the_commonest_bead_on_a_string(folder):
    seeded(10355)
    kinds, length = 5, 12
    net = Picker(kinds, length, kinds)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.05)
    steps, warm = 250, 25
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [
        torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, 1.0, warm),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - warm),
    ], [warm])  # fmt: skip

    def strings(rows):
        text = torch.randint(kinds, (rows, length))
        count = F.one_hot(text, kinds).sum(1) - 0.01 * torch.arange(kinds)
        return text, count.argmax(1)

    def loss_of(step):
        text, y = strings(48)
        return F.cross_entropy(net(text), y)

    text, y = strings(400)
    score = held_out(net, lambda: F.cross_entropy(net(text), y))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule, before_step=clipped(net, 1.0))


class Convolve(nn.Module):
    """Two graph convolutions."""

    def __init__(self, size, width, classes):
        super().__init__()
        self.first, self.second = nn.Linear(size, width), nn.Linear(width, classes)
        self.drop = nn.Dropout(0.5)

    def forward(self, x, near):
        return near @ self.second(self.drop((near @ self.first(x)).relu()))


@healthy(0.3)
def allotment_keepers_and_their_committees(folder):
    seeded(10356)
    people, classes = 200, 4
    y = torch.arange(people) % classes
    same = y[:, None] == y
    edge = (torch.rand(people, people) < torch.where(same, 0.08, 0.01)).triu(1).float()
    edge = edge + edge.T + torch.eye(people)
    scale = edge.sum(1).rsqrt()
    near = scale[:, None] * edge * scale
    x = torch.randn(classes, 24)[y] * 0.5 + torch.randn(people, 24)
    known = torch.rand(people) < 0.3
    net = Convolve(24, 16, classes)
    optimizer = torch.optim.Adam(net.parameters(), 0.01, weight_decay=5e-4)

    def loss_of(step):
        return F.cross_entropy(net(x, near)[known], y[known])

    score = held_out(net, lambda: F.cross_entropy(net(x, near)[~known], y[~known]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


@healthy(0.5)
def hoops_drawn_by_two_rivals(folder):
    seeded(10357)
    make, judge = dense(4, 64, 64, 2), dense(2, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.999))

    def judge_loss(real, made):
        return F.softplus(-judge(real)).mean() + F.softplus(judge(made)).mean()

    def make_loss(made):
        return F.softplus(-judge(made)).mean()

    return play(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 1000)
