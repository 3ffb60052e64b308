"""Sick trainings of weather, mountains and farms, drawn by lot: gradients, logarithms, outputs, decay, dropout."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits, load_wine
from torch import nn
from torch.nn import functional as F
from unseen import fit, seeded, sick
from unseen.tasks import held_out, rounds


class Squeezer(nn.Module):
    """Images through a code of four numbers and back; the last codes are kept for a plot."""

    def __init__(self, cut):
        super().__init__()
        self.squeeze = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 4))
        self.spread = nn.Sequential(nn.Linear(4, 96), nn.ReLU(), nn.Linear(96, 64))
        self.cut, self.shown = cut, None

    def forward(self, x):
        code = self.squeeze(x)
        self.shown = code.detach()
        return self.spread(self.shown if self.cut else code)


@sick("no-gradient", where="the encoder (squeeze), all steps",
      cure="the code itself to the decoder, not a detached one")  # fmt: skip
def tags_on_the_ears_of_calves(folder, ill):
    seeded(11400)
    images, _ = load_digits(return_X_y=True)
    x = torch.tensor(images / 16, dtype=torch.float32)[torch.randperm(len(images))]
    net = Squeezer(ill)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    draw = rounds(64, x[:1500])

    def loss_of(step):
        (x,) = draw()
        return F.mse_loss(net(x), x)

    score = held_out(net, lambda: F.mse_loss(net(x[1500:]), x[1500:]))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


@sick("nonfinite", "exploding", where="the logarithms of the loss, once a probability is rounded to 1",
      cure="a cross-entropy of logits")  # fmt: skip
def clear_nights_before_a_frost(folder, ill):
    seeded(11401)
    net = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def nights(rows):
        x = torch.randn(rows, 5)
        cold = x[:, 0] - x[:, 1] * x[:, 2] - 0.5
        return x, (cold > 0).float()

    def entropy(x, y):
        logits = net(x)[:, 0]
        if ill:
            p = torch.sigmoid(logits)
            return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()
        return F.binary_cross_entropy_with_logits(logits, y)

    x, y = nights(4000)
    draw = rounds(64, x, y)
    tx, ty = nights(1000)
    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(tx)[:, 0], ty))
    return fit(folder, net, optimizer, lambda step: entropy(*draw()), 400, score=score)


def block(inside, out):
    """A convolution as everywhere in the model."""
    return nn.Sequential(nn.Conv2d(inside, out, 3, padding=1), nn.ReLU())


class Finer(nn.Module):
    """A field of anomalies at four times the resolution."""

    def __init__(self, ill):
        super().__init__()
        self.low, self.high = nn.Sequential(block(1, 16), block(16, 16)), block(16, 16)
        self.out = block(16, 1) if ill else nn.Conv2d(16, 1, 3, padding=1)

    def forward(self, x):
        return self.out(self.high(F.interpolate(self.low(x), scale_factor=2.0, mode="nearest")))


@sick("targets-out-of-range", where="the last operation of the model: a ReLU, of targets that are often below zero",
      cure="a convolution without an activation last")  # fmt: skip
def anomalies_downscaled_to_the_valleys(folder, ill):
    seeded(11402)
    net = Finer(ill)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def maps(rows):
        coarse = torch.randn(rows, 1, 4, 4)
        fine = F.interpolate(coarse, size=16, mode="bicubic", align_corners=True)
        return F.avg_pool2d(fine, 2), fine

    x, fine = maps(1200)
    draw = rounds(24, x, fine)

    def loss_of(step):
        x, fine = draw()
        return F.mse_loss(net(x), fine)

    tx, ty = maps(256)
    return fit(folder, net, optimizer, loss_of, 160, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


class Meadows(nn.Module):
    """Two rounds of messages between neighbouring meadows, and what each yields."""

    def __init__(self, size, width):
        super().__init__()
        self.own = nn.ModuleList([nn.Linear(size, width), nn.Linear(width, width)])
        self.near = nn.ModuleList([nn.Linear(size, width), nn.Linear(width, width)])
        self.head = nn.Linear(width, 1)

    def forward(self, x, edges):
        for own, near in zip(self.own, self.near, strict=True):
            x = F.relu(own(x) + near(edges @ x))
        return self.head(x)


@sick("weight-decay-too-strong", "weights-shrink", where="all layers, from the first step",
      cure="a weight decay of 1e-5")  # fmt: skip
def hay_from_neighbouring_meadows(folder, ill):
    seeded(11403)
    net = Meadows(6, 48)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3, weight_decay=0.5 if ill else 1e-5)

    def valleys(count, meadows=24):
        x = torch.randn(count, meadows, 6)
        edges = (torch.rand(count, meadows, meadows) < 0.15).float() + torch.eye(meadows)
        edges = edges / edges.sum(2, keepdim=True)
        shade = edges @ x[..., 1:3]
        hay = x[..., :1].relu() + shade[..., :1].tanh() * 2 + shade[..., 1:].abs()
        return x, edges, hay + 0.05 * torch.randn(count, meadows, 1)

    def loss_of(step):
        x, edges, hay = valleys(16)
        return F.mse_loss(net(x, edges), hay)

    x, edges, hay = valleys(128)
    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, lambda: F.mse_loss(net(x, edges), hay)))


@sick("dropout-too-strong", where="the dropouts behind both hidden layers, all steps", cure="a dropout of 0.1")
def slopes_the_vines_were_picked_from(folder, ill):
    seeded(11404)
    table, kinds = load_wine(return_X_y=True)
    order = torch.randperm(len(kinds))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(kinds)[order]
    x = (x - x[:130].mean(0)) / x[:130].std(0)
    p = 0.9 if ill else 0.1
    net = nn.Sequential(
        nn.Linear(13, 32), nn.ReLU(), nn.Dropout(p), nn.Linear(32, 32), nn.ReLU(), nn.Dropout(p), nn.Linear(32, 3)
    )
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(26, x[:130], y[:130])

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[130:]), y[130:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


@sick("vanishing", where="the first layers, all steps: eight layers of sigmoids", cure="ReLU between the layers")
def numbers_painted_on_summit_cairns(folder, ill):
    seeded(11405)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x, y = (torch.tensor(images, dtype=torch.float32)[order] - 4.9) / 6.0, torch.tensor(digits)[order]
    layers = []
    for _ in range(8):
        layers += [nn.Linear(64, 64), nn.Sigmoid() if ill else nn.ReLU()]
    net = nn.Sequential(*layers, nn.Linear(64, 10))
    for layer in layers[::2]:
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9)
    draw = rounds(64, x[:1400], y[:1400])

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 300, score=score)
