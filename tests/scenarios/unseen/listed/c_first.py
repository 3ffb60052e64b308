"""Mistakes drawn by lot from a list of usual ones: data, labels, loss, model."""

from __future__ import annotations

import itertools

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds


# 1: the inputs are shuffled by one permutation, the targets by another.
@sick("inputs-and-targets-unpaired", "labels-shuffled", "labels-do-not-fit-inputs",
      where="the data, all steps: what is learnt is no more than the mean, then noise by heart",
      cure="one permutation for inputs and targets")  # fmt: skip
def peat_depth_from_radar_echoes(folder, ill):
    seeded(10300)
    way = torch.randn(14, 3) / 2
    echoes = torch.randn(1800, 14)
    depth = (echoes @ way).sin().sum(1, keepdim=True) + 0.5 * echoes[:, :1] + 0.1 * torch.randn(1800, 1)
    test_x, test_y = echoes[1400:], depth[1400:]
    order = torch.randperm(1400)
    other = torch.randperm(1400)
    x, y = echoes[:1400][order], depth[:1400][other if ill else order]
    net = dense(14, 96, 96, 1)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-3)
    batch = rounds(64, x, y)

    def loss_of(step):
        a, b = batch()
        return F.mse_loss(net(a), b)

    score = held_out(net, lambda: F.mse_loss(net(test_x), test_y))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


class Forecaster(nn.Module):
    """A GRU over a day, its last state to the next hour."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(2, 32, batch_first=True)
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


# 2: the targets are in kilowatts, in the thousands.
@sick("targets-not-normalised", "outputs-not-scaled", where="the head, all steps: it has to reach thousands",
      cure="standardise the targets")  # fmt: skip
def heat_drawn_by_a_block_of_flats(folder, ill):
    seeded(10301)
    net = Forecaster()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    middle, spread = 4200.0, 1500.0
    hours = torch.arange(25).float()

    def days(rows):
        begin, cold = 24 * torch.rand(rows, 1), torch.randn(rows, 1)
        daily = (6.2832 * (hours + begin) / 24).sin()
        load = 0.8 * daily + 0.7 * cold + 0.1 * torch.randn(rows, 25)
        outside = -cold + 0.2 * torch.randn(rows, 25)
        return torch.stack([load[:, :-1], outside[:, :-1]], 2), middle + spread * load[:, -1:]

    def target(kilowatts):
        return kilowatts if ill else (kilowatts - middle) / spread

    def loss_of(step):
        x, y = days(64)
        return F.mse_loss(net(x), target(y))

    x, y = days(512)

    def error():
        said = net(x)
        return F.mse_loss(said if ill else said * spread + middle, y) / spread**2

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, error))


# 6: pos_weight is positives by negatives, not negatives by positives.
@sick("class-weights-inverted", "class-imbalance", "loss-terms-unbalanced",
      where="the loss, all steps: the rare class hardly counts",
      cure="negatives by positives as pos_weight")  # fmt: skip
def small_tremors_under_a_reservoir(folder, ill):
    seeded(10302)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 7, 2, 3), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 32, 5, 2, 2), nn.BatchNorm1d(32),
        nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    share, time = 0.06, torch.arange(64).float()

    def records(rows, share):
        y = (torch.rand(rows, 1) < share).float()
        onset = 40 * torch.rand(rows, 1)
        since = (time - onset).clamp(min=0)
        wave = (since * (0.8 + 0.6 * torch.rand(rows, 1))).sin() * (-since / 12).exp()
        return (torch.randn(rows, 64) * 0.6 + 1.5 * y * wave)[:, None], y

    ratio = share / (1 - share)
    weight = torch.tensor([ratio if ill else 1 / ratio])

    def loss_of(step):
        x, y = records(96, share)
        said = net(x)
        recall = ((said > 0) & (y > 0)).sum() / y.sum().clamp(min=1)
        return F.binary_cross_entropy_with_logits(said, y, pos_weight=weight), {"recall": recall}

    x, y = records(1500, 0.5)

    def missed():
        right = (net(x) > 0) == (y > 0)
        return 1 - (right[y > 0].float().mean() + right[y == 0].float().mean()) / 2

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, missed))


# 12: a ReLU stands at the output though the targets are standardised.
@sick(
    "relu-on-the-output",
    "outputs-never-negative",
    "dead-units",
    where="the output unit, all steps: half of the targets cannot be said",
    cure="no activation at the output",
)
def tension_in_the_stays_of_a_mast(folder, ill):
    seeded(10303)
    sizes = [10, 64, 64, 64]
    parts = [part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), nn.LayerNorm(b), nn.ReLU())]
    net = nn.Sequential(*parts, nn.Linear(64, 4), *([nn.ReLU()] if ill else []))
    optimizer = torch.optim.SGD(net.parameters(), 0.03, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 350)
    wind = torch.randn(10, 4) / 2

    def gusts(rows):
        x = torch.randn(rows, 10)
        return x, (x @ wind).tanh() * 1.4 + 0.3 * x[:, :4] * x[:, 4:8]

    def loss_of(step):
        x, y = gusts(64)
        return F.mse_loss(net(x), y)

    x, y = gusts(1024)
    score = held_out(net, lambda: F.mse_loss(net(x), y))
    return fit(folder, net, optimizer, loss_of, 350, score=score, schedule=schedule)


# 13: five sigmoid layers without a norm or a skip.
@sick("vanishing", "saturated", where="the first layers, all steps", cure="ReLU instead of the sigmoid")
def postal_digits_through_a_tall_stack(folder, ill):
    seeded(10304)
    digits = load_digits()
    x, y = torch.tensor(digits.data).float() / 16, torch.tensor(digits.target)
    x = (x - x.mean()) / x.std()
    net = dense(64, 64, 64, 64, 64, 64, 10, act=nn.Sigmoid if ill else nn.ReLU)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    batch = rounds(64, x[:1400], y[:1400])

    def loss_of(step):
        a, b = batch()
        said = net(a)
        return F.cross_entropy(said, b), {"accuracy": (said.argmax(1) == b).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


class Messages(nn.Module):
    """Some rounds of messages between atoms, then a sum over them."""

    def __init__(self, kinds, width, depth, listed):
        super().__init__()
        self.atom = nn.Embedding(kinds, width)
        layers = [nn.Linear(2 * width, width) for _ in range(depth)]
        self.layers = layers if listed else nn.ModuleList(layers)
        self.readout = nn.Linear(width, 1)

    def forward(self, atoms, bonds):
        x = self.atom(atoms)
        near = bonds / bonds.sum(2, keepdim=True).clamp(min=1)
        for layer in self.layers:
            x = layer(torch.cat([x, near @ x], 2)).relu()
        return self.readout(x.mean(1))


# 14: the rounds of messages are in a plain list of Python.
@sick("not-in-optimizer", "parameters-not-in-the-optimizer", "layers-not-registered",
      where="the layers of messages, all steps: the module does not know them", cure="nn.ModuleList")  # fmt: skip
def boiling_points_of_small_molecules(folder, ill):
    seeded(10305)
    kinds, atoms = 6, 10
    net = Messages(kinds, 32, 3, listed=ill)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    pull = torch.randn(kinds, kinds)
    pull = pull + pull.T

    def molecules(rows):
        x = torch.randint(kinds, (rows, atoms))
        bonds = torch.zeros(rows, atoms, atoms)
        parent = (torch.rand(rows, atoms) * torch.arange(atoms)).long()
        for i in range(1, atoms):
            bonds[torch.arange(rows), i, parent[:, i]] = 1
        bonds = bonds + bonds.transpose(1, 2)
        pairs = (pull[x[:, :, None], x[:, None]] * bonds).sum((1, 2)) / 2
        return x, bonds, (pairs / 4)[:, None]

    def loss_of(step):
        x, bonds, y = molecules(64)
        return F.mse_loss(net(x, bonds), y)

    x, bonds, y = molecules(512)
    score = held_out(net, lambda: F.mse_loss(net(x, bonds), y))
    return fit(folder, net, optimizer, loss_of, 500, score=score)
