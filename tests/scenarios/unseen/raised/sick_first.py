"""Trainings with mistakes that people reported of pictures and fields: rays, codes, gates, masks, a tuned model."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import held_out, rounds, tend

# ------------------------------------------------------------------------------------------------------------- a volume


def look(field, start, way, points=24):
    """What is seen along rays through a field of densities and shades, before a white wall."""
    along = torch.linspace(0, 2, points)
    density, shade = field(start[:, None] + along[:, None] * way[:, None])
    opaque = 1 - torch.exp(-density * 2 / points)
    through = torch.cumprod(torch.cat([torch.ones_like(opaque[:, :1]), 1 - opaque[:, :-1]], 1), 1)
    weight = through * opaque
    return (weight * shade).sum(1) + 1 - weight.sum(1)


def smoke(at):
    inside = (at - torch.tensor([0.1, -0.2])).norm(dim=-1) < 0.4
    return 6.0 * inside, 0.5 + 0.4 * (5 * at[..., 0]).sin()


def rays(rows=64):
    angle = 6.2832 * torch.rand(rows)
    start = torch.stack([angle.cos(), angle.sin()], 1)
    way = F.normalize(1.2 * torch.rand(rows, 2) - 0.6 - start, dim=1)
    return start, way


# https://github.com/munshisanowarraihan/nerf-meta/issues/3
@sick("dead-layer", "dead-units", where="the density and all that comes before it, from the first step",
      cure="a softplus for the density in the place of the relu")  # fmt: skip
def smoke_seen_along_rays(folder, ill):
    seeded(2812)
    net = dense(18, 64, 64, 2)
    waves = 2.0 ** torch.arange(4)
    positive = F.relu if ill else F.softplus

    def field(at):
        turns = (at[..., None] * waves).flatten(-2)
        raw = net(torch.cat([at, turns.sin(), turns.cos()], -1))
        return positive(raw[..., 0] - 1), raw[..., 1].sigmoid()

    def loss_of(step):
        start, way = rays()
        return F.mse_loss(look(field, start, way), look(smoke, start, way))

    return fit(folder, net, torch.optim.Adam(net.parameters(), 2e-3), loss_of, 350, score=score_of(loss_of))


# ----------------------------------------------------------------------------------------------------------- a codebook


class Book(nn.Module):
    """The nearest of a few codes, through which gradients go straight."""

    def __init__(self, codes, size):
        super().__init__()
        self.codes = nn.Embedding(codes, size)
        nn.init.uniform_(self.codes.weight, -1, 1)

    def forward(self, x):
        nearest = torch.cdist(x, self.codes.weight).argmin(1)
        code = self.codes(nearest)
        return x + (code - x).detach(), code


# https://github.com/showlab/Olaf-World/issues/8
@sick("no-gradient", where="the codes of the book, in all steps",
      cure="the loss of the book on what was looked up, not on what goes straight through")  # fmt: skip
def calls_of_owls_by_a_codebook(folder, ill):
    seeded(2813)
    kinds = torch.randn(12, 20)
    net = nn.ModuleDict({"encoder": dense(20, 48, 6), "book": Book(16, 6), "decoder": dense(6, 48, 20)})

    def calls(rows=128):
        return kinds[torch.randint(12, (rows,))] + 0.1 * torch.randn(rows, 20)

    def heard(x):
        inner = net["encoder"](x)
        straight, code = net["book"](inner)
        return inner, straight, code, F.mse_loss(net["decoder"](straight), x)

    def loss_of(step):
        inner, straight, code, error = heard(calls())
        book = F.mse_loss(straight if ill else code, inner.detach())
        commitment = F.mse_loss(inner, code.detach())
        return error + book + 0.25 * commitment, {"reconstruction": error, "commitment": commitment}

    score = held_out(net, lambda: heard(calls(512))[3])
    return fit(folder, net, torch.optim.Adam(net.parameters(), 2e-3), loss_of, 600, score=score)


# --------------------------------------------------------------------------------------------------------------- a gate


class Gated(nn.Module):
    """A scene into which a word is let through a gate."""

    def __init__(self, begins_closed):
        super().__init__()
        self.scene, self.word = nn.Linear(24, 64), nn.Embedding(6, 64)
        self.mix = nn.Linear(64, 64)
        self.gate = nn.Sequential(nn.Linear(64, 64, bias=False), nn.ReLU(), nn.Linear(64, 64, bias=False), nn.Tanh())
        for layer in begins_closed(self.gate):
            nn.init.zeros_(layer.weight)
        self.head = dense(64, 64, 4)

    def forward(self, scene, word):
        seen = self.scene(scene).relu()
        told = self.mix(seen * self.word(word))
        return self.head(seen + self.gate(told) * told)


# https://github.com/yz93/LAVT-RIS/issues/25
@sick("dead-layer", "bad-initialisation", where="both layers of the gate and what it lets in, from the first step",
      cure="zeros for the last layer of the gate only")  # fmt: skip
def the_shelf_that_is_named(folder, ill):
    seeded(2814)
    net = Gated(lambda gate: (gate[0], gate[2]) if ill else (gate[2],))

    def shelves(rows=128):
        held, word = torch.randint(4, (rows, 6)), torch.randint(6, (rows,))
        return F.one_hot(held, 4).flatten(1).float(), word, held.gather(1, word[:, None])[:, 0]

    def loss_of(step):
        scene, word, y = shelves()
        out = net(scene, word)
        return F.cross_entropy(out, y), {"accuracy": (out.argmax(1) == y).float().mean()}

    def fresh():
        scene, word, y = shelves(512)
        return F.cross_entropy(net(scene, word), y)

    return fit(folder, net, torch.optim.Adam(net.parameters(), 2e-3), loss_of, 700, score=held_out(net, fresh))


# --------------------------------------------------------------------------------------------------------------- a mask


def fields_with_hedges(rows):
    """Pictures of two channels, and masks of the bright cross in each."""
    mask = torch.zeros(rows, 14, 14)
    for one, (row, column) in zip(mask, torch.randint(14, (rows, 2)).tolist(), strict=True):
        one[row], one[:, column] = 1, 1
    ground = torch.randn(rows, 1, 14, 14)
    bright = mask[:, None] + 0.8 * torch.randn(rows, 1, 14, 14)
    return torch.cat([bright + ground, ground], 1), mask


# https://github.com/wkentaro/pytorch-fcn/issues/57
@sick("left-in-eval", where="all batch norms, in the steps after each validation",
      cure="train() again after each validation")  # fmt: skip
def hedges_in_aerial_pictures(folder, ill):
    seeded(2815)
    parts, width = [], 2
    for _ in range(7):
        parts += [nn.Conv2d(width, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
        width = 16
    net = nn.Sequential(*parts, nn.Conv2d(16, 1, 1))
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    draw, kept = rounds(16, *fields_with_hedges(320)), fields_with_hedges(64)

    def error(x, mask):
        return F.binary_cross_entropy_with_logits(net(x)[:, 0], mask)

    def validate():
        net.eval()
        with torch.no_grad():
            value = float(error(*kept))
        if not ill:
            net.train()
        return value

    def one(step):
        logged = {}
        if step % 40 == 0:
            net.train()
        if step % 20 == 0:
            logged = {"val_loss": validate()}
        loss = error(*draw())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, **logged}

    return tend(folder, net, optimizer, one, 240, held_out(net, lambda: error(*fields_with_hedges(128))))


# -------------------------------------------------------------------------------------------------------- a tuned model


# https://github.com/ziqi-jin/finetune-anything/issues/57
@sick("schedule-too-short", "negative-learning-rate", where="the learning rate, from step 100 on",
      cure="the length of the schedule in steps, as it is stepped")  # fmt: skip
def ripeness_of_tomatoes(folder, ill):
    seeded(2816)
    lift, steps = torch.randn(3, 20), 400
    net = dense(20, 64, 64, 1)

    def tomatoes(rows=64):
        hue = torch.rand(rows, 3)
        ripe = (3 * hue[:, :1]).sin() * hue[:, 1:2] + (2 * hue[:, 2:] - 1) ** 2
        return (hue - 0.5) @ lift + 0.05 * torch.randn(rows, 20), 2 * ripe

    def loss_of(step):
        x, y = tomatoes()
        return F.mse_loss(net(x), y)

    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    constant, decay = (50, 50) if ill else (steps // 2, steps // 2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 - max(0, epoch + 1 - constant) / decay)
    return fit(folder, net, optimizer, loss_of, steps, schedule=schedule, score=score_of(loss_of))


# ---------------------------------------------------------------------------------------------------- a taste for music


class Taste(nn.Module):
    """How a listener and a song go together."""

    def __init__(self, last):
        super().__init__()
        self.listeners, self.songs = nn.Embedding(120, 8), nn.Embedding(80, 8)
        self.deep, self.last = dense(16, 32, 1), last

    def forward(self, listener, song):
        a, b = self.listeners(listener), self.songs(song)
        return self.last((a * b).sum(1) + self.deep(torch.cat([a, b], 1))[:, 0])


# https://github.com/yudi-mars/daisyRec/pull/15
@sick("softmax-twice", "activation-on-logits", "logits-bounded", where="the last operation of the model and the loss",
      cure="no sigmoid in the model: the loss applies its own")  # fmt: skip
def songs_that_listeners_keep(folder, ill):
    seeded(2817)
    likes, sounds = torch.randn(120, 3), torch.randn(80, 3)
    net = Taste(nn.Sigmoid() if ill else nn.Identity())

    def plays(rows=256):
        listener, song = torch.randint(120, (rows,)), torch.randint(80, (rows,))
        return listener, song, ((likes[listener] * sounds[song]).sum(1) > 0.8).float()

    def loss_of(step):
        listener, song, kept = plays()
        return F.binary_cross_entropy_with_logits(net(listener, song), kept)

    return fit(folder, net, torch.optim.Adam(net.parameters(), 5e-3), loss_of, 900, score=score_of(loss_of))
