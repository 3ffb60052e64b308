"""Mistakes that people reported of frozen bodies, rectifiers at the wrong place and lopsided classes, rebuilt."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds


def accuracy(out, y):
    return {"accuracy": (out.argmax(1) == y).float().mean().item()}


def strides(horses, slowest):
    """How hard a hoof presses over time, for five gaits that differ in their rate; `[N, 1, 48]` and `[N]`."""
    kind = torch.randint(5, (horses,))
    rate = slowest + 0.5 * torch.arange(5.0)[kind][:, None] + 0.1 * torch.randn(horses, 1)
    time = torch.linspace(0, 6, 48)
    return ((time * rate + 6.28 * torch.rand(horses, 1)).sin() + 0.2 * torch.randn(horses, 48))[:, None], kind


def trained_on_dogs():
    """A body that tells the gaits of dogs apart, which are faster, frozen."""
    body = nn.Sequential(
        nn.Conv1d(1, 32, 7, stride=2), nn.ReLU(), nn.Conv1d(32, 64, 5, stride=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
    )  # fmt: skip
    head, draw = nn.Linear(64, 5), rounds(32, *strides(900, 3))
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=2e-3)
    for _ in range(200):
        x, y = draw()
        optimizer.zero_grad()
        F.cross_entropy(head(body(x)), y).backward()
        optimizer.step()
    body.zero_grad()
    return body.requires_grad_(False)


# https://github.com/vfeofanov/mantis/issues/14
@sick(
    "inputs-not-normalised",
    "features-not-normalised",
    where="the head, whose inputs are the raw features of the frozen body",
    cure="scale each feature before the head, by a batch normalisation for instance",
)
def gaits_of_horses_from_a_frozen_body(folder, ill):
    seeded(2372)
    body, (presses, kind) = trained_on_dogs(), strides(900, 1)
    head = nn.Linear(64, 5) if ill else nn.Sequential(nn.BatchNorm1d(64), nn.Linear(64, 5))
    net, draw = nn.Sequential(body, head), rounds(32, presses, kind)

    def loss_of(step):
        x, y = draw()
        out = net(x)
        return F.cross_entropy(out, y), accuracy(out, y)

    optimizer = torch.optim.AdamW(head.parameters(), lr=2e-3)
    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.cross_entropy(net(presses), kind)))


def cracks(walls, size):
    """Thin lines at a slope of their own; `[N, size, size]` of zeros and ones."""
    axis = torch.arange(size).float()
    start, slope = torch.rand(walls, 1) * size, 2 * torch.rand(walls, 1) - 1
    height = start + slope * (axis - size / 2)
    return ((axis[None, :, None] - height[:, None, :]).abs() < 0.5).long()


# https://github.com/NVIDIA/DeepLearningExamples/issues/263
@sick(
    "class-imbalance",
    where="the loss of each step: one pixel in twenty-five is a crack", cure="weights of 0.05 and 0.95 for the classes",
)  # fmt: skip
def cracks_in_concrete(folder, ill):
    seeded(2373)
    line = cracks(240, 24)
    walls = line[:, None].float() * 0.9 + 0.8 * torch.randn(240, 1, 24, 24)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 2, 1)
    )
    weight = None if ill else torch.tensor([0.05, 0.95])
    draw = rounds(8, walls, line)

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y, weight=weight)

    def score():
        said = net(walls).argmax(1)
        missed = ((said == 0) & (line == 1)).sum() / (line == 1).sum()
        return (missed + ((said == 1) & (line == 0)).sum() / (line == 0).sum()) / 2

    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, score))


# https://github.com/MollyZhang/Multi-task-TCGA-learning/issues/15
@sick(
    "dead-layer", "dead-units", "lr-too-high",
    where="the hidden layers, whose units give 0 for each row", cure="leaky rectifiers",
)  # fmt: skip
def genes_of_a_tumour_squeezed(folder, ill):
    seeded(2374)
    levels = (torch.randn(600, 4) @ torch.randn(4, 60) + 0.1 * torch.randn(600, 60)).sigmoid()
    net = dense(60, 24, 6, 6, 24, 60, act=nn.ReLU if ill else nn.LeakyReLU)
    draw = rounds(32, levels)

    def loss_of(step):
        (x,) = draw()
        return F.mse_loss(net(x), x)

    optimizer = torch.optim.Adam(net.parameters(), lr=0.03)
    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.mse_loss(net(levels), levels)))


# https://github.com/FluxML/model-zoo/pull/34
@sick(
    "dead-units", "dead-layer",
    where="the rectifier at the output: pixels that are 0 for every cloth", cure="a leaky rectifier, or none, there",
)  # fmt: skip
def weaves_of_cloth_squeezed(folder, ill):
    seeded(2375)
    causes = torch.rand(1000, 5)
    pixels = (causes @ torch.rand(5, 100)) / 2.5
    act = nn.ReLU if ill else nn.LeakyReLU
    net = nn.Sequential(nn.Linear(100, 24), act(), nn.Linear(24, 100), act())
    draw = rounds(50, pixels)

    def loss_of(step):
        (x,) = draw()
        return F.mse_loss(net(x), x)

    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, lambda: F.mse_loss(net(pixels), pixels)))


# https://github.com/bowang-lab/Transformer-GCN-QA/pull/32
@sick(
    "softmax-twice", "logits-bounded",
    where="the softmax at the end of the net, in each step", cure="hand the loss the scores before the softmax",
)  # fmt: skip
def wines_by_their_grape(folder, ill):
    seeded(2376)
    grape = torch.randint(80, (2000,))
    tests = torch.randn(80, 12)[grape] + 0.4 * torch.randn(2000, 12)
    scores = dense(12, 64, 64, 80)
    net = nn.Sequential(scores, nn.Softmax(dim=1)) if ill else scores
    draw = rounds(32, tests, grape)

    def loss_of(step):
        x, y = draw()
        out = net(x)
        return F.cross_entropy(out, y), accuracy(out, y)

    def wrong():
        return (net(tests).argmax(1) != grape).float().mean()

    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, wrong))


class Shortcut(nn.Module):
    """A residual block."""

    def __init__(self, width):
        super().__init__()
        self.way = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x):
        return F.relu(x + self.way(x))


# https://github.com/gcr/torch-residual-networks/issues/1
@sick(
    "logits-bounded", "dead-units", "dead-layer", "no-gradient",
    where="the rectifier between the last layer and the log-softmax", cure="no rectifier there",
)  # fmt: skip
def stamps_of_ten_countries(folder, ill):
    seeded(2377)
    land = torch.randint(10, (800,))
    stamps = torch.randn(10, 1, 10, 10)[land] + 0.7 * torch.randn(800, 1, 10, 10)
    end = [nn.ReLU()] if ill else []
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), Shortcut(16), nn.AvgPool2d(2), Shortcut(16),
        nn.Flatten(), nn.Linear(400, 10), *end, nn.LogSoftmax(dim=1),
    )  # fmt: skip
    draw = rounds(32, stamps, land)

    def loss_of(step):
        x, y = draw()
        out = net(x)
        return F.nll_loss(out, y), accuracy(out, y)

    def wrong():
        return (net(stamps).argmax(1) != land).float().mean()

    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, wrong))
