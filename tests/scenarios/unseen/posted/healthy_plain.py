"""Ordinary trainings that go well: tables, small images and what is rebuilt from a code."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, rounds


def halves(part, *tensors):
    """The first `part` rows to train on, the rest to validate on."""
    return [t[:part] for t in tensors], [t[part:] for t in tensors]


def accuracy(logits, y):
    return (logits.argmax(1) == y).float().mean()


def classify(net, draw):
    """`loss_of(step)`: the cross-entropy of a batch, with its accuracy to log."""

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": accuracy(logits, y)}

    return loss_of


@healthy()
def wagons_that_are_due_in_the_workshop(folder):
    seeded(2590)
    wagons = torch.randn(3000, 14)
    wear = wagons[:, :7] @ torch.randn(7, 4) + 2 * (wagons[:, 7:] @ torch.randn(7, 4)).tanh()
    due = torch.where(torch.rand(3000) < 0.03, torch.randint(4, (3000,)), wear.argmax(1))
    wagons[:, 13] = 4 + 2 * wagons[:, 13]
    (x, y), (x_val, y_val) = halves(2400, wagons, due)
    net = nn.Sequential(
        nn.Linear(14, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1),
        nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 4),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    score = held_out(net, lambda: F.cross_entropy(net(x_val), y_val))
    return fit(folder, net, optimizer, classify(net, rounds(64, x, y)), 600, score=score)


def coats(count, size=16):
    """Photographs of cows: patches whose shape and colour go by the breed."""
    breed = torch.randint(4, (count,))
    grain = torch.randn(count, 1, size, size)
    shapes = [(1, 7), (7, 1), (3, 3), (7, 7)]
    smooth = [F.avg_pool2d(grain, s, 1, (s[0] // 2, s[1] // 2)) * (s[0] * s[1]) ** 0.5 for s in shapes]
    patches = (torch.stack(smooth)[breed, torch.arange(count)] > 0).float()
    tint = torch.rand(count, 3, 1, 1)
    return ((patches * tint + 0.1 * torch.randn(count, 3, size, size)) - 0.25) / 0.35, breed


@healthy()
def breeds_of_a_dairy_herd(folder):
    seeded(2591)
    (x, y), (x_val, y_val) = halves(1500, *coats(1900))
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 4),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)
    score = held_out(net, lambda: F.cross_entropy(net(x_val), y_val))
    return fit(folder, net, optimizer, classify(net, rounds(32, x, y)), 500, score=score, schedule=schedule)


@healthy()
def urgency_at_the_hospital_door(folder):
    seeded(2592)
    usual = torch.tensor([80.0, 125.0, 75.0, 16.0, 97.0, 37.0, 3.0, 55.0, 1.0])
    spread = torch.tensor([18.0, 20.0, 12.0, 4.0, 2.5, 0.8, 2.5, 20.0, 0.4])
    signs = usual + spread * torch.randn(4000, 9)
    alarm = (signs - usual) / spread @ torch.randn(9, 5) * 1.5 + torch.tensor([0.0, 0.5, 1.5, 1.0, 0.0])
    level = torch.distributions.Categorical(logits=alarm).sample()
    (x, y), (x_val, y_val) = halves(3200, signs, level)
    average, deviation = x.mean(0), x.std(0)
    x, x_val = (x - average) / deviation, (x_val - average) / deviation
    net = nn.Linear(9, 5)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    score = held_out(net, lambda: F.cross_entropy(net(x_val), y_val))
    return fit(folder, net, optimizer, classify(net, rounds(64, x, y)), 600, score=score)


@healthy()
def sugar_of_the_grapes_at_harvest(folder):
    seeded(2593)
    seasons = torch.randn(2600, 10)
    sun, rain, age = seasons[:, 0], seasons[:, 1], seasons[:, 2]
    brix = 22 + 1.6 * sun - 0.9 * rain.relu() ** 1.5 + 0.8 * (age * sun).tanh() + seasons[:, 3:] @ torch.randn(7) * 0.3
    brix = brix + 0.3 * torch.randn(2600)
    (x, y), (x_val, y_val) = halves(2000, seasons, ((brix - brix.mean()) / brix.std())[:, None])
    net, draw = dense(10, 64, 64, 1), rounds(50, x, y)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=3)
    score = held_out(net, lambda: F.mse_loss(net(x_val), y_val))

    def loss_of(step):
        rows, sugar = draw()
        return F.mse_loss(net(rows), sugar)

    def after_step(step):
        if step % 40 == 39:
            plateau.step(score())

    return fit(folder, net, optimizer, loss_of, 800, score=score, after_step=after_step)


@healthy()
def spectra_of_a_coral_reef(folder):
    seeded(2594)
    band = torch.linspace(0, 1, 48)
    peaks = torch.exp(-((band - torch.rand(6, 1)) ** 2) / 0.01)
    share = torch.distributions.Dirichlet(torch.full((6,), 0.6)).sample((2400,))
    light = 0.5 + 0.5 * torch.rand(2400, 1)
    spectra = (light * (share @ peaks) + 0.02 * torch.randn(2400, 48)).clamp(0, 1)
    (x,), (x_val,) = halves(2000, spectra)
    net = nn.Sequential(dense(48, 64, 32, 6), dense(6, 32, 64, 48), nn.Sigmoid())
    optimizer, draw = torch.optim.Adam(net.parameters(), lr=1e-3), rounds(64, x)

    def loss_of(step):
        (rows,) = draw()
        return F.mse_loss(net(rows), rows)

    return fit(folder, net, optimizer, loss_of, 900, score=held_out(net, lambda: F.mse_loss(net(x_val), x_val)))


def bowed(count, length=128):
    """Short recordings of a bowed string: a pitch, its harmonics, a swell."""
    time = torch.linspace(0, 1, length)
    pitch = 3 + 7 * torch.rand(count, 1)
    tone = sum((6.2832 * k * pitch * time + 6.2832 * torch.rand(count, 1)).sin() / k for k in range(1, 5))
    return (tone * (3.1416 * time).sin().clamp(min=0).sqrt())[:, None]


@healthy()
def hiss_on_recordings_of_a_violin(folder):
    seeded(2595)
    (x,), (x_val,) = halves(1600, bowed(2000))
    hissed = x_val + 0.5 * torch.randn_like(x_val)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 9, 2, 4), nn.ReLU(), nn.Conv1d(16, 32, 9, 2, 4), nn.ReLU(),
        nn.ConvTranspose1d(32, 16, 8, 2, 3), nn.ReLU(), nn.ConvTranspose1d(16, 1, 8, 2, 3),
    )  # fmt: skip
    optimizer, draw = torch.optim.Adam(net.parameters(), lr=1e-3), rounds(32, x)

    def loss_of(step):
        (clean,) = draw()
        return F.mse_loss(net(clean + 0.5 * torch.randn_like(clean)), clean)

    score = held_out(net, lambda: F.mse_loss(net(hissed), x_val))
    return fit(folder, net, optimizer, loss_of, 450, score=score)


def vessels(count, size=16):
    """Silhouettes of pots: foot, belly and lip are drawn at random."""
    height = torch.linspace(0, 1, size)
    foot, belly, lip = 0.2 + 0.6 * torch.rand(3, count, 1)
    radius = foot * (1 - height) ** 2 + 4 * belly * height * (1 - height) * 0.9 + lip * height**2
    across = torch.linspace(-1, 1, size).abs()
    return (across[None, None] < radius[:, :, None]).float()


class Shapes(nn.Module):
    """A variational autoencoder of silhouettes."""

    def __init__(self, pixels=256, code=4):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(pixels, 128), nn.ReLU())
        self.center, self.log_variance = nn.Linear(128, code), nn.Linear(128, code)
        self.decoder = dense(code, 128, pixels)

    def forward(self, x):
        hidden = self.encoder(x)
        center, log_variance = self.center(hidden), self.log_variance(hidden)
        code = center + torch.randn_like(center) * (log_variance / 2).exp()
        return self.decoder(code), center, log_variance


def evidence(net, x):
    """The two terms of the bound, by the picture."""
    logits, center, log_variance = net(x)
    rebuilt = F.binary_cross_entropy_with_logits(logits, x.flatten(1), reduction="sum") / len(x)
    divergence = -0.5 * (1 + log_variance - center.square() - log_variance.exp()).sum() / len(x)
    return rebuilt, divergence


@healthy()
def silhouettes_of_pots_from_a_kiln(folder):
    seeded(2596)
    (x,), (x_val,) = halves(2000, vessels(2400))
    net = Shapes()
    optimizer, draw = torch.optim.Adam(net.parameters(), lr=1e-3), rounds(64, x)

    def loss_of(step):
        rebuilt, divergence = evidence(net, *draw())
        return rebuilt + divergence, {"rebuilt": rebuilt, "divergence": divergence}

    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, lambda: sum(evidence(net, x_val))))
