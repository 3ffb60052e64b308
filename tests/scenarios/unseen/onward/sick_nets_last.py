"""Bridges, radio, leaves, violins, grain and wine: outputs, initialisations, codebooks, averages, gates and pairs."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import rounds

# ------------------------------------------------------------------------------------------------------------- bridges


def crossings(count, beam):
    """Axle loads, speed and warmth while a lorry crosses, and the strains of four gauges, most of them pressed."""
    load = torch.randn(count, 8)
    strain = (load @ beam).tanh() - 1.2 + 0.05 * torch.randn(count, 4)
    return load, strain


@sick(
    "dead-layer",
    "dead-units",
    "targets-out-of-range",
    "no-gradient",
    where="the last layer: a ReLU after it gives nothing below zero, where nearly all strains lie, and goes silent",
    cure="no activation after the last layer",
)
def strains_in_a_bridge(folder, ill):
    seeded(2113)
    beam = torch.randn(8, 4) / 2
    held, strains = crossings(400, beam)
    net = dense(8, 64, 64, 4)
    if ill:
        net.append(nn.ReLU())
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def loss_of(step):
        load, strain = crossings(64, beam)
        return F.mse_loss(net(load), strain)

    def score():
        with torch.no_grad():
            return float(F.mse_loss(net(held), strains))

    return fit(folder, net, optimizer, loss_of, 500, score=score)


# --------------------------------------------------------------------------------------------------------------- radio


class Adapted(nn.Module):
    """A frozen layer with a low-rank path beside it."""

    def __init__(self, frozen, spread, rank=4):
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Parameter(spread * torch.randn(rank, frozen.in_features) / math.sqrt(frozen.in_features))
        self.up = nn.Parameter(torch.zeros(frozen.out_features, rank))

    def forward(self, x):
        return self.frozen(x) + x @ self.down.T @ self.up.T


def received(count, channel, kinds=6, moments=24):
    """Samples of a carrier that is modulated in one of several ways, after a channel."""
    kind = torch.randint(kinds, (count,))
    time = torch.linspace(0, 6.2832, moments)
    phase = 6.2832 * torch.rand(count, 1)
    wave = (phase + (1 + kind[:, None]) * time).sin() + 0.4 * torch.randn(count, moments)
    return wave @ channel, kind


def known_receiver(channel):
    """A receiver that was trained in the laboratory, where the channel does nothing."""
    net = dense(24, 64, 64, 6)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(200):
        wave, kind = received(64, channel)
        optimizer.zero_grad()
        F.cross_entropy(net(wave), kind).backward()
        optimizer.step()
    return net


@sick(
    "no-gradient",
    "bad-initialisation",
    "weights-unchanged",
    "adapter-zero-on-both-sides",
    where="down and up of each adapter at every step: both are zero, so neither gives the other a gradient",
    cure="draw one of the two factors at random and leave the other at zero",
)
def modulations_heard_by_radio(folder, ill):
    seeded(2114)
    net = known_receiver(torch.eye(24))
    channel = torch.linalg.qr(torch.eye(24) + 0.4 * torch.randn(24, 24))[0]
    for place in (0, 2):
        net[place] = Adapted(net[place], 0.0 if ill else 1.0)
    net[4].requires_grad_(False)
    held, kinds = received(600, channel)
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 3e-3, weight_decay=0.0)

    def loss_of(step):
        wave, kind = received(64, channel)
        out = net(wave)
        return F.cross_entropy(out, kind), {"accuracy": float((out.argmax(1) == kind).float().mean())}

    def score():
        with torch.no_grad():
            return float(F.cross_entropy(net(held), kinds))

    return fit(folder, net, optimizer, loss_of, 500, score=score)


# -------------------------------------------------------------------------------------------------------------- leaves


class Codes(nn.Module):
    """Each vector becomes the nearest of a table's; gradients pass as if nothing had happened."""

    def __init__(self, count, width):
        super().__init__()
        self.table = nn.Embedding(count, width)

    def forward(self, z):
        near = torch.cdist(z.detach(), self.table.weight.detach()).argmin(1)
        code = self.table(near)
        apart = F.mse_loss(code, z.detach()) + 0.25 * F.mse_loss(z, code.detach())
        return z + (code - z).detach(), apart, near


class LeafCoder(nn.Module):
    """An encoder, a codebook and a decoder of patches of leaves."""

    def __init__(self, pixels, codes=32, width=8):
        super().__init__()
        self.encode, self.codes, self.decode = dense(pixels, 64, width), Codes(codes, width), dense(width, 64, pixels)

    def forward(self, patch):
        z, apart, near = self.codes(self.encode(patch))
        return self.decode(z), apart, near


def leaves(count, blights):
    """Patches of six by six pixels: one of twenty blights, lighter or darker."""
    kind = torch.randint(len(blights), (count,))
    return blights[kind] * (0.9 + 0.2 * torch.rand(count, 1)) + 0.1 * torch.randn(count, blights.shape[1])


@sick(
    "codebook-collapse",
    "bad-initialisation",
    where="the codebook: its rows start far outside of what the encoder gives, and one or two of 32 are ever near",
    cure="start the rows at what the encoder gives for some patches",
)
def blights_on_patches_of_leaves(folder, ill):
    seeded(2115)
    blights = torch.randn(20, 36)
    held, net = leaves(400, blights), LeafCoder(36)
    with torch.no_grad():
        table = net.codes.table.weight
        table.copy_(10 * torch.randn_like(table) if ill else net.encode(leaves(32, blights)))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def loss_of(step):
        patch = leaves(64, blights)
        again, apart, near = net(patch)
        error = F.mse_loss(again, patch)
        return error + apart, {"error": float(error), "codes used": len(near.unique())}

    def score():
        with torch.no_grad():
            return float(F.mse_loss(net(held)[0], held))

    return fit(folder, net, optimizer, loss_of, 600, score=score)


# ------------------------------------------------------------------------------------------------------------- violins


def strings(count, moments=64):
    """A bowed string's overtones `[count, 1, moments]` and how far it is out of tune."""
    pitch = 2 * torch.rand(count) - 1
    time = torch.linspace(0, 1, moments)
    turns = 6.2832 * (4 + pitch)[:, None] * time
    wave = turns.sin() + 0.5 * (2 * turns).sin() + 0.25 * (3 * turns).sin()
    return (wave + 0.2 * torch.randn(count, moments))[:, None], pitch[:, None]


@sick(
    "update-too-small",
    "scaled-gradients",
    "loss-averaged-twice",
    where="the loss: a mean that is divided by the 64 of the batch once more, and SGD's steps with it",
    cure="take the mean once",
)
def violin_strings_out_of_tune(folder, ill):
    seeded(2116)
    held, pitches = strings(400)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 9, stride=4),
        nn.ReLU(),
        nn.Conv1d(16, 24, 5, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24 * 5, 32),
        nn.ReLU(),
        nn.Linear(32, 1),
    )
    optimizer = torch.optim.SGD(net.parameters(), 0.05)

    def loss_of(step):
        wave, pitch = strings(64)
        error = F.mse_loss(net(wave), pitch)
        return error / len(wave) if ill else error

    def score():
        with torch.no_grad():
            return float(F.mse_loss(net(held), pitches))

    return fit(folder, net, optimizer, loss_of, 300, score=score)


# --------------------------------------------------------------------------------------------------------------- grain


class Highway(nn.Module):
    """A layer, and a gate that says how much of it is let in beside what was there."""

    def __init__(self, width, shut):
        super().__init__()
        self.layer, self.gate = nn.Linear(width, width), nn.Linear(width, width)
        nn.init.constant_(self.gate.bias, -shut)

    def forward(self, x):
        share = self.gate(x).sigmoid()
        return share * self.layer(x).relu() + (1 - share) * x


def spectra(count, bands):
    """Near-infrared spectra of grain and its moisture, which is no straight line of them."""
    water, starch, oil = torch.randn(3, count)
    spectrum = torch.stack([water, starch, oil], 1) @ bands + 0.05 * torch.randn(count, bands.shape[1])
    return spectrum, (water.square() - 1 + (2 * starch).sin() * oil)[:, None]


@sick(
    "saturated",
    "bad-initialisation",
    "vanishing",
    "below-epsilon",
    "no-gradient",
    where="the gates of all six layers from the start: their biases of -20 let neither signal nor gradient in",
    cure="start the gates' biases at about -1",
)
def moisture_of_grain(folder, ill):
    seeded(2117)
    bands = torch.randn(3, 30) / 2
    held, moisture = spectra(500, bands)
    net = nn.Sequential(nn.Linear(30, 32), *(Highway(32, 20.0 if ill else 1.0) for _ in range(6)), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def loss_of(step):
        spectrum, water = spectra(64, bands)
        return F.mse_loss(net(spectrum), water)

    def score():
        with torch.no_grad():
            return float(F.mse_loss(net(held), moisture))

    return fit(folder, net, optimizer, loss_of, 500, score=score)


# ---------------------------------------------------------------------------------------------------------------- wine


def notes(words, each=40, length=10):
    """Tasting notes of wines, wine by wine: ten words each, of the wine's own vocabulary."""
    wines = torch.arange(len(words)).repeat_interleave(each)
    return torch.stack([torch.multinomial(words[wine], length, True) for wine in wines]), wines


def apart(one, other, same, margin=1.0):
    """Notes of one wine are drawn together and others pushed a margin apart (Hadsell)."""
    distance = ((one - other).square().sum(1) + 1e-6).sqrt()
    return torch.where(same, distance.square(), (margin - distance).clamp(min=0).square()).mean()


@sick(
    "representation-collapse",
    "data-not-shuffled",
    "class-imbalance",
    where="the pairs: neighbours in a list that is sorted by wine are of the same wine, and nothing pushes apart",
    cure="pair each note with a neighbour or with one from anywhere, half and half",
)
def tasting_notes_of_wines(folder, ill):
    seeded(2118)
    said, wines = notes((2 * torch.randn(12, 60)).softmax(1))
    net = nn.Sequential(nn.EmbeddingBag(60, 24), dense(24, 48, 8))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(64, torch.arange(len(said)))

    def pairs(places, share):
        neighbour = places // 40 * 40 + (places % 40 + 1) % 40
        anywhere = torch.randint(len(said), places.shape)
        return torch.where(torch.rand(len(places)) < share, anywhere, neighbour)

    def cost(places, share):
        other = pairs(places, share)
        return apart(net(said[places]), net(said[other]), wines[places] == wines[other])

    def score():
        with torch.no_grad():
            return float(cost(torch.arange(len(said)), 0.5))

    return fit(folder, net, optimizer, lambda step: cost(*draw(), 0.0 if ill else 0.5), 500, score=score)
