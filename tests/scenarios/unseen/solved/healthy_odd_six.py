"""Odd ways to learn: a long warm-up, restarts with mixtures, a teacher that follows, responsibilities, huge sums."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, CosineAnnealingWarmRestarts, LambdaLR
from unseen import dense, fit, healthy, score_of, seeded
from unseen.tasks import clipped, held_out, tend


class Furnish(nn.Module):
    """Fibres under the microscope, in no order, attend to each other: how much of each pulp is among them."""

    def __init__(self, measures=4, pulps=4, width=32):
        super().__init__()
        self.lift = nn.Linear(measures, width)
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, pulps)

    def forward(self, fibres):
        return self.head(self.encoder(self.lift(fibres)).mean(1))


def pulps(kinds=4, measures=4, fibres=20):
    """`draw()`: length, width, curl and fines of some fibres; the shares of the pulps among them."""
    middle, spread = 1.2 * torch.randn(kinds, measures), 0.3 + 0.5 * torch.rand(kinds, measures)
    recipe = torch.distributions.Dirichlet(torch.ones(kinds))

    def draw():
        shares = recipe.sample((32,))
        kind = torch.multinomial(shares, fibres, replacement=True)
        counted = F.one_hot(kind, kinds).float().mean(1)
        return middle[kind] + spread[kind] * torch.randn(32, fibres, measures), counted

    return draw


@healthy()
def fibres_in_a_paper_mill(folder, steps=480):
    seeded(2681)
    net, draw = Furnish(), pulps()
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.05)
    schedule = LambdaLR(optimizer, lambda step: min((step + 1) / (steps / 3), 1.5 * (1 - step / steps)))

    def loss_of(step):
        fibres, shares = draw()
        return F.kl_div(net(fibres).log_softmax(1), shares, reduction="batchmean")

    return fit(folder, net, optimizer, loss_of, steps, before_step=clipped(net, 1.0), schedule=schedule,
               score=score_of(loss_of))  # fmt: skip


def letter_pairs(heights=14, kerns=5):
    """`draw()`: the right edge of one letter and the left edge of the next; how far they are to be pushed together."""
    height = torch.linspace(-1, 1, heights)

    def edges(rows):
        slant, bowl, serif = torch.randn(3, rows, 1)
        return 0.5 * slant * height + 0.5 * bowl * height.square() + 0.3 * serif * (5 * height).cos()

    def draw(rows=96):
        left, right = edges(rows), edges(rows)
        gap = -torch.logsumexp(-3 * (left + right), 1) / 3
        kern = torch.bucketize(gap, torch.tensor([-2.05, -1.65, -1.35, -1.1]))
        return torch.stack([left, right], 1) + 0.03 * torch.randn(rows, 2, heights), kern

    return draw


@healthy()
def kerning_of_letterpress_pairs(folder):
    seeded(2682)
    net = nn.Sequential(nn.Flatten(), dense(28, 64, 64, 5))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule = CosineAnnealingWarmRestarts(optimizer, T_0=100, T_mult=2)
    draw, share_of = letter_pairs(), torch.distributions.Beta(0.2, 0.2)

    def loss_of(step):
        pair, kern = draw()
        share, other = float(share_of.sample()), torch.randperm(len(kern))
        guess = net(share * pair + (1 - share) * pair[other])
        one, two = (F.cross_entropy(guess, to, label_smoothing=0.1) for to in (kern, kern[other]))
        return share * one + (1 - share) * two

    def error():
        pair, kern = draw(2048)
        return F.cross_entropy(net(pair), kern)

    return fit(folder, net, optimizer, loss_of, 700, schedule=schedule, score=held_out(net, error))


def decks(cargo=4, sensors=28):
    """`views(rows)`: two readings of the same loaded deck, each with a swell and a trim of its own."""
    from_cargo, from_sea = torch.randn(cargo, sensors), torch.randn(12, sensors)

    def reading(load):
        sea = torch.randn(len(load), 12)
        return (load @ from_cargo).tanh() + 0.5 * sea @ from_sea + 0.05 * torch.randn(len(load), sensors)

    def views(rows):
        load = torch.randn(rows, cargo)
        return reading(load), reading(load)

    return views


def encoder():
    return nn.Sequential(nn.Linear(28, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 96), nn.BatchNorm1d(96),
                         nn.ReLU(), nn.Linear(96, 16))  # fmt: skip


@healthy()
def loading_of_a_ferry(folder):
    seeded(2683)
    pupil, views = encoder(), decks()
    teacher = copy.deepcopy(pupil).requires_grad_(False)
    net = nn.ModuleDict({"pupil": pupil, "guess": nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(),
                                                               nn.Linear(64, 16))})  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3, weight_decay=1e-3)

    def agreement(one, other):
        return F.cosine_similarity(net["guess"](pupil(one)), teacher(other).detach(), dim=1).mean()

    def loss_of(step):
        one, other = views(192)
        return -agreement(one, other) - agreement(other, one)

    @torch.no_grad()
    def follow(step):
        for kept, p in zip(teacher.parameters(), pupil.parameters(), strict=True):
            kept.lerp_(p, 0.02)

    def mistaken_decks():
        one, other = views(256)
        near = F.normalize(pupil(one) - pupil(one).mean(0), dim=1) @ F.normalize(pupil(other) - pupil(other).mean(0)).T
        return (near.argmax(1) != torch.arange(256)).float().mean()

    return fit(folder, net, optimizer, loss_of, 800, after_step=follow, schedule=CosineAnnealingLR(optimizer, 800),
               score=held_out(net, mistaken_decks))  # fmt: skip


class Bittings(nn.Module):
    """Families of keys: how high each lifts the pins of a lock, how worn its copies are and how common it is."""

    def __init__(self, keys, families):
        super().__init__()
        self.heights = nn.Parameter(apart(keys, families))
        self.log_wear = nn.Parameter(torch.zeros(families, keys.shape[1]))
        self.common = nn.Parameter(torch.zeros(families))

    def forward(self, keys):
        """The log-likelihood of each key with each family."""
        gap = (keys[:, None] - self.heights) * torch.exp(-self.log_wear)
        alike = -0.5 * gap.square() - self.log_wear - 0.5 * math.log(2 * math.pi)
        return alike.sum(2) + self.common.log_softmax(0)


def apart(keys, families):
    """Keys that lie far from each other, each as far from those before as may be."""
    chosen = keys[:1]
    while len(chosen) < families:
        far = torch.cdist(keys, chosen).min(1).values
        chosen = torch.cat([chosen, keys[torch.multinomial(far.square(), 1)]])
    return chosen.clone()


def keys_of(families, pins):
    """`draw(rows)`: keys as they are measured, of some families."""
    cut = torch.randint(0, 7, (families, pins)).float() - 3
    wear = 0.1 + 0.3 * torch.rand(families, pins)
    chance = torch.softmax(0.5 * torch.randn(families), 0)

    def draw(rows):
        family = torch.multinomial(chance, rows, replacement=True)
        return cut[family] + wear[family] * torch.randn(rows, pins)

    return draw


@healthy()
def pins_of_a_lock(folder, families=8, pins=6, kept=10):
    seeded(2684)
    draw = keys_of(families, pins)
    keys, other_keys = draw(1500), draw(1000)
    net = Bittings(keys, families)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    schedule = CosineAnnealingLR(optimizer, 400)
    blame = torch.zeros(len(keys), families)

    def one(step):
        if step % kept == 0:
            with torch.no_grad():
                blame.copy_(net(keys).softmax(1))
        optimizer.zero_grad()
        loss = -(blame * net(keys)).sum(1).mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        return {"loss": loss}

    def surprise():
        with torch.no_grad():
            return -float(net(other_keys).logsumexp(1).mean())

    return tend(folder, net, optimizer, one, 400, surprise)


def prisms(rows=1024):
    """`draw()`: angle, tilt and glass of a prism and the ray that meets it; the way it is bent, in minutes of arc."""

    def draw():
        x = 2 * torch.rand(rows, 4) - 1
        angle, tilt, glass, ray = 0.5 + 0.2 * x[:, 0], 0.1 * x[:, 1], 1.52 + 0.03 * x[:, 2], 0.35 * x[:, 3]
        inside = torch.asin(torch.sin(ray + tilt) / glass)
        leaves = torch.asin((glass * torch.sin(angle - inside)).clamp(-0.999, 0.999))
        bent = (ray + tilt + leaves - angle) * 3437.75
        return x, bent[:, None] - 1000

    return draw


@healthy()
def prisms_of_a_lighthouse_lens(folder, minutes=300.0):
    seeded(2685)
    net, draw = dense(4, 48, 48, 1, act=nn.Tanh), prisms()
    optimizer = torch.optim.SGD(net.parameters(), lr=5e-10, momentum=0.9)

    def loss_of(step):
        setting, bent = draw()
        return (minutes * net(setting) - bent).square().sum()

    return fit(
        folder, net, optimizer, loss_of, 600, schedule=CosineAnnealingLR(optimizer, 600), score=score_of(loss_of)
    )
