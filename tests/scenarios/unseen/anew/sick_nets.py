"""Sick trainings by draw, first six: what a net, its loss or its data do wrong, on pictures, texts and graphs."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from nets import ALPHABET, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, mean, score_of, seeded, sick


class Refiner(nn.Module):
    """Codes a picture, refines the code over some rounds and paints what kind of thing each pixel shows."""

    def __init__(self, kinds=3, width=8, rounds=3, cut=False):
        super().__init__()
        self.rounds, self.cut = rounds, cut
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, width, 3, stride=2, padding=1), nn.Tanh()
        )
        self.mix = nn.Conv2d(width, width, 3, padding=1)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(width, 16, 2, stride=2), nn.ReLU(), nn.ConvTranspose2d(16, kinds, 2, stride=2)
        )

    def forward(self, x):
        state = self.encoder(x)
        for _ in range(self.rounds):
            if self.cut:
                state = state.detach()
            state = state + 0.5 * torch.tanh(self.mix(state))
        return self.decoder(state)


def bars(batch=32, size=16):
    """Noisy pictures of one lying and one standing bar; what each pixel is of."""
    place = torch.arange(size)
    at, to = torch.randint(1, size - 3, (2, batch, 1, 1)), torch.randint(1, size - 9, (2, batch, 1, 1))
    rows, columns = place[:, None], place[None]
    lying = (rows >= at[0]) & (rows < at[0] + 2) & (columns >= to[0]) & (columns < to[0] + 8)
    standing = (columns >= at[1]) & (columns < at[1] + 2) & (rows >= to[1]) & (rows < to[1] + 8)
    kind = torch.where(standing, 2, lying.long())
    return ((kind > 0).float() + 0.3 * torch.randn(batch, size, size))[:, None], kind


@sick(
    "no-gradient", "weights-unchanged", "state-detached",
    where="encoder.0 and encoder.2, all steps", cure="keep the graph between the rounds: detach() cuts off the encoder",
)  # fmt: skip
def bars_painted_in_three_rounds(folder, ill):
    seeded(7301)
    net = Refiner(cut=ill)

    def loss_of(step):
        x, kind = bars()
        return F.cross_entropy(net(x), kind)

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 300, score=score_of(loss_of))


class Block(nn.Module):
    """Causal attention of one's own and an MLP, both behind a norm."""

    def __init__(self, width, heads, scale):
        super().__init__()
        self.heads, self.scale = heads, scale
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.mlp = dense(width, 4 * width, width, act=nn.GELU)

    def forward(self, x):
        h = self.norm1(x)
        q, k, v = (f(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = (q @ k.transpose(-2, -1) * self.scale).masked_fill(later, float("-inf")).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Writer(nn.Module):
    """A language model of two such blocks."""

    def __init__(self, width=32, heads=2, scale=1.0):
        super().__init__()
        self.embed = nn.Embedding(len(ALPHABET), width)
        self.place = nn.Parameter(0.1 * torch.randn(24, width))
        self.blocks = nn.Sequential(*(Block(width, heads, scale) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, len(ALPHABET))

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.embed(x) + self.place[: x.shape[1]])))


@sick(
    "attention-collapsed", "attention-logits-grow", "saturated", "bad-initialisation", "attention-not-scaled",
    where="q and k of both blocks, all steps", cure="divide q.k by the root of the head's width, and Xavier's weights",
)  # fmt: skip
def sphinx_of_quartz_by_bare_products(folder, ill):
    seeded(7302)
    net = Writer(scale=1.0 if ill else 0.25)
    for block in net.blocks:
        for linear in (block.q, block.k):
            nn.init.normal_(linear.weight, std=1.0) if ill else nn.init.xavier_uniform_(linear.weight)
    loss_of = predict(net, pieces())
    return fit(folder, net, optim.AdamW(net.parameters(), 2e-3), loss_of, 150)


class Reviews:
    """Reviews of one to three sentences of six words, filled up to 24 sentences; each sentence has one of 4 moods."""

    def __init__(self, words=400, moods=4):
        self.words, self.moods = words, moods
        self.lean = torch.randn(moods, words) * 1.5

    def batch(self, rows=8, longest=24):
        count = torch.randint(1, 4, (rows, 1))
        real = torch.arange(longest) < count
        mood = torch.randint(self.moods, (rows, longest))
        words = torch.multinomial(self.lean[mood.flatten()].softmax(1), 6, replacement=True) + 1
        return words.view(rows, longest, 6) * real[..., None], torch.where(real, mood, 0), real


class MoodOfSentences(nn.Module):
    def __init__(self, words, moods):
        super().__init__()
        self.embed = nn.Embedding(words + 1, 32, padding_idx=0)
        self.mlp = dense(32, 48, moods)

    def forward(self, words):
        known = (words > 0)[..., None]
        return self.mlp((self.embed(words) * known).sum(-2) / known.sum(-2).clamp(min=1))


@sick(
    "padding-in-loss", "class-imbalance",
    where="all layers: eleven of twelve labels are of sentences that fill up", cure="ignore_index for what fills up",
)  # fmt: skip
def reviews_filled_up_to_24_sentences(folder, ill):
    seeded(7303)
    data = Reviews()
    net = MoodOfSentences(data.words, data.moods)

    def loss_of(step):
        words, mood, real = data.batch()
        target = mood if ill else torch.where(real, mood, -100)
        return F.cross_entropy(net(words).flatten(0, 1), target.flatten())

    def score():
        with torch.no_grad():
            words, mood, real = data.batch(400)
            return F.cross_entropy(net(words)[real], mood[real])

    make = optim.SGD(net.parameters(), 0.1, momentum=0.9)
    return fit(folder, net, make, loss_of, 400, score=score)


class Papers:
    """A graph of 240 papers of 5 fields that mostly cite their own; `near` is its normalised adjacency."""

    def __init__(self, count=240, fields=5, size=32):
        self.field = torch.arange(count) % fields
        same = self.field[:, None] == self.field
        cites = (torch.rand(count, count) < torch.where(same, 0.08, 0.012)).float().triu(1)
        cites = cites + cites.T + torch.eye(count)
        root = cites.sum(1).rsqrt()
        self.near = root[:, None] * cites * root
        self.x = torch.randn(fields, size)[self.field] * 0.5 + torch.randn(count, size)
        self.train = torch.rand(count) < 0.5


class Convolved(nn.Module):
    """A graph-convolutional net (Kipf and Welling)."""

    def __init__(self, near, sizes):
        super().__init__()
        self.register_buffer("near", near)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = F.dropout(layer(self.near @ x).relu(), 0.3, self.training)
        return self.layers[-1](self.near @ x)


def named(net, papers, folder, optimizer, steps):
    """The fields of the papers in the one half; the score is that of the other half."""

    def loss_of(step):
        return F.cross_entropy(net(papers.x)[papers.train], papers.field[papers.train])

    def score():
        net.eval()
        with torch.no_grad():
            loss = F.cross_entropy(net(papers.x)[~papers.train], papers.field[~papers.train])
        net.train()
        return loss

    return fit(folder, net, optimizer, loss_of, steps, score=score)


@sick(
    "bad-initialisation", "exploding",
    where="both layers at step 0", cure="Glorot's weights: normal_ has a deviation of 1 if none is given",
)  # fmt: skip
def fields_of_papers_from_loud_weights(folder, ill):
    seeded(7304)
    papers = Papers()
    net = Convolved(papers.near, (32, 64, 5))
    for layer in net.layers:
        nn.init.normal_(layer.weight) if ill else nn.init.xavier_normal_(layer.weight)
        nn.init.zeros_(layer.bias)
    return named(net, papers, folder, optim.Adam(net.parameters(), 0.01, weight_decay=5e-4), 150)


@sick(
    "targets-out-of-range", "negative-loss", "targets-not-normalised",
    where="the loss and 4.weight, all steps", cure="the flag for a target: the column that is read holds euros",
)  # fmt: skip
def chargebacks_as_they_stand_in_the_table(folder, ill):
    seeded(7305)
    net = dense(10, 48, 48, 1)
    way = torch.randn(2, 10)

    def draw():
        x = torch.randn(128, 10)
        first, second = (x @ way.T).T
        charged = (torch.rand(128) < torch.sigmoid(first * second.sign() - 1.5)).float()
        return x, charged, charged * (30 + 120 * torch.rand(128))

    def loss_of(step):
        x, charged, euros = draw()
        return F.binary_cross_entropy_with_logits(net(x)[:, 0], euros if ill else charged)

    def score():
        with torch.no_grad():
            drawn = [draw() for _ in range(16)]
            return mean([float(F.binary_cross_entropy_with_logits(net(x)[:, 0], flag)) for x, flag, _ in drawn])

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 300, score=score)


class Angles(nn.Module):
    """Names by the angle between what a body says and one direction per class, times a scale."""

    def __init__(self, body, size, classes, scale):
        super().__init__()
        self.body, self.scale = body, scale
        self.ways = nn.Parameter(torch.randn(classes, size) / math.sqrt(size))

    def forward(self, x):
        return self.scale * F.linear(F.normalize(self.body(x), dim=-1), F.normalize(self.ways, dim=-1))


@sick(
    "temperature-too-high", "logit-scale-too-small", "logits-bounded",
    where="ways and the loss, all steps", cure="a scale of 8: bare cosines say at most e squared to one",
)  # fmt: skip
def fields_of_papers_by_bare_cosines(folder, ill):
    seeded(7306)
    papers = Papers()
    net = Angles(Convolved(papers.near, (32, 64, 16)), 16, 5, 1.0 if ill else 8.0)
    return named(net, papers, folder, optim.Adam(net.parameters(), 0.01), 200)
