"""Mistakes that people reported of normalisation, scales, first weights and heads, rebuilt on other tasks."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds


def wrong_share(net, x, y):
    """The share of rows whose class is not the one that the net puts first."""
    return lambda: (net(x).argmax(1) != y).float().mean()


def patterns(rows, classes, size, noise):
    """Pictures of `classes` kinds, each a pattern of its own under noise; `[N, 1, size, size]` and `[N]`."""
    kinds, y = torch.randn(classes, 1, size, size), torch.randint(classes, (rows,))
    return kinds[y] + noise * torch.randn(rows, 1, size, size), y


# https://github.com/chemprop/chemprop/issues/607
@sick(
    "norm-statistics",
    where="the running statistics of the batch normalisation over the summed messages, which trail behind",
    cure="normalise by the batch in evaluation too, or train for longer, or a momentum that follows sooner",
)
def boiling_points_of_molecules(folder, ill):
    seeded(2366)
    atoms = torch.rand(640, 30, 6)
    points = (atoms.mean(1) - 0.5) @ torch.randn(6, 1) * 8
    messages = nn.Sequential(nn.Linear(6, 200), nn.ReLU())
    norm = nn.BatchNorm1d(200, track_running_stats=ill)
    net = nn.ModuleDict({"messages": messages, "norm": norm, "head": dense(200, 64, 1)})
    draw = rounds(64, atoms, points)

    def predicted(x):
        return net["head"](net["norm"](net["messages"](x).mean(1) / 10))

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(predicted(x), y)

    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    score = held_out(net, lambda: F.mse_loss(predicted(atoms), points))
    return fit(folder, net, optimizer, loss_of, 60, score=score)


# https://github.com/arslan-chaudhry/dcsp_segmentation/issues/1
@sick(
    "lr-too-high", "exploding", "nonfinite", "update-too-large",
    where="all layers within the first tens of steps", cure="a lower learning rate",
)  # fmt: skip
def fields_seen_by_a_satellite(folder, ill):
    seeded(2367)
    borders = (torch.rand(200, 2) * 10 + 3).long()
    axis = torch.arange(16)
    kinds = (axis > borders[:, :1]).long()[:, :, None] + 2 * (axis > borders[:, 1:]).long()[:, None, :]
    light = torch.randn(4, 3)[kinds].permute(0, 3, 1, 2) + 0.5 * torch.randn(200, 3, 16, 16)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.LeakyReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.LeakyReLU(),
        nn.Conv2d(16, 16, 3, padding=1), nn.LeakyReLU(), nn.Conv2d(16, 4, 1),
    )  # fmt: skip
    draw = rounds(4, light, kinds)

    def loss_of(step):
        x, y = draw()
        out = net(x)
        right = (out.argmax(1) == y).float().mean().item()
        return F.cross_entropy(out, y, reduction="sum"), {"pixel_accuracy": right}

    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3 if ill else 1e-4, momentum=0.9)
    score = held_out(net, lambda: F.cross_entropy(net(light), kinds))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


# https://discuss.pytorch.org/t/neural-network-could-not-learn-on-this-type-of-data-why/96648
@sick(
    "targets-not-normalised", "inputs-not-normalised",
    where="the loss from the first step on, and the last layer, which has to grow for thousands of steps",
    cure="speeds and distances with a mean of 0 and a deviation of 1",
)  # fmt: skip
def stopping_distance_of_a_train(folder, ill):
    seeded(2368)
    speed = torch.arange(1.0, 401.0)[:, None]
    metres = speed**2 / 9
    x, y = speed, metres
    if not ill:
        x, y = (speed - speed.mean()) / speed.std(), (metres - metres.mean()) / metres.std()
    net = dense(1, 50, 1)

    def relative():
        out = net(x) if ill else net(x) * metres.std() + metres.mean()
        return F.mse_loss(out, metres) / metres.var()

    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    return fit(folder, net, optimizer, lambda step: F.mse_loss(net(x), y), 800, score=held_out(net, relative))


# https://openillumi.com/en/en-pytorch-performance-fix-standardization
@sick(
    "inputs-not-normalised", "saturated",
    where="the sigmoids of the first layer, from the start", cure="pulses with a mean of 0 and a deviation of 1",
)  # fmt: skip
def strain_read_from_the_pulse(folder, ill):
    seeded(2369)
    pulse = 85 + 12 * torch.randn(1000, 4)
    rise = pulse[:, 1:] - pulse[:, :-1]
    strained = ((rise.square().mean(1, keepdim=True)) > 250).float()
    x = pulse if ill else (pulse - pulse.mean()) / pulse.std()
    net = nn.Sequential(dense(4, 32, 1, act=nn.Sigmoid), nn.Sigmoid())
    draw = rounds(50, x, strained)

    def loss_of(step):
        rows, y = draw()
        out = net(rows)
        return F.binary_cross_entropy(out, y), {"accuracy": ((out > 0.5) == y).float().mean().item()}

    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    score = held_out(net, lambda: F.binary_cross_entropy(net(x), strained))
    return fit(folder, net, optimizer, loss_of, 800, score=score)


def first_weights(net, deviation, bias):
    """Normal weights and one constant for the biases of all but the last layer."""
    layers = [part for part in net.modules() if isinstance(part, nn.Conv2d | nn.Linear)]
    for layer in layers:
        nn.init.normal_(layer.weight, std=deviation)
        nn.init.constant_(layer.bias, 0.0 if layer is layers[-1] else bias)


# https://github.com/BVLC/caffe/issues/2085
@sick(
    "bad-initialisation",
    "dead-layer",
    "dead-units",
    where="the biases of the convolutions at the start, beside which their inputs hardly count",
    cure="biases that start at a tenth or at 0",
)
def leaves_of_eight_trees(folder, ill):
    seeded(2370)
    x, y = patterns(800, 8, 12, 0.8)
    net = nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(24, 32, 3, padding=1), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(24 * 9, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 8),
    )  # fmt: skip
    first_weights(net, 0.05, 1.0 if ill else 0.1)
    draw = rounds(32, x, y)

    def loss_of(step):
        rows, kind = draw()
        out = net(rows)
        return F.cross_entropy(out, kind), {"accuracy": (out.argmax(1) == kind).float().mean().item()}

    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, wrong_share(net, x, y)))


def focal(chance, there):
    """The focal loss of detectors, per object."""
    chance = chance.clamp(1e-4, 1 - 1e-4)
    right = torch.where(there == 1, chance, 1 - chance)
    share = torch.where(there == 1, 0.25, 0.75)
    return (share * (1 - right).square() * -right.log()).sum() / there.sum()


# https://github.com/yhenon/pytorch-retinanet/issues/41
@sick(
    "bad-initialisation", "saturated", "class-imbalance", "lr-too-high", "no-gradient",
    where="the last convolution of the classifier, within the first tens of steps",
    cure="weights of 0 and a bias that says one in a hundred in the last convolution",
)  # fmt: skip
def buoys_in_a_radar_sweep(folder, ill):
    seeded(2371)
    there = F.one_hot(torch.randint(400, (300,)), 400).view(300, 1, 20, 20).float()
    echo = F.conv2d(there, torch.ones(1, 1, 3, 3), padding=1) + 0.3 * torch.randn(300, 1, 20, 20)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 3, padding=1), nn.Sigmoid(),
    )  # fmt: skip
    if not ill:
        nn.init.zeros_(net[6].weight)
        nn.init.constant_(net[6].bias, -math.log(99))
    draw = rounds(4, echo, there)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)

    def loss_of(step):
        x, mark = draw()
        return focal(net(x), mark)

    def missed():
        return (net(echo).flatten(1).argmax(1) != there.flatten(1).argmax(1)).float().mean()

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, missed))
