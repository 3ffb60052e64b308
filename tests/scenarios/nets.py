"""Small data and small nets for the scenarios: the digits, a text, and what learns them."""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.nn import functional as F

# ------------------------------------------------------------------------------------------------------------- data


SEED = [0]  # added to every seed: scripts/bench/false_alarms.py trains the same with other weights and batches


@functools.cache
def digits():
    from sklearn.datasets import load_digits

    data = load_digits()
    return torch.tensor(data.images / 16, dtype=torch.float32), torch.tensor(data.target)


def batches(size=64, seed=0, noise=0.0):
    """Random batches of the digits as a function of the step: `[B, 8, 8]` images, `[B]` labels, some of them wrong."""
    x, y = digits()

    def batch(step):
        g = torch.Generator().manual_seed((seed + SEED[0]) * 100_003 + step)
        at = torch.randint(len(x), (size,), generator=g)
        wrong = torch.rand(size, generator=g) < noise
        return x[at], torch.where(wrong, torch.randint(10, (size,), generator=g), y[at])

    return batch


def classify(model, batch):
    def loss(step):
        x, y = batch(step)
        return F.cross_entropy(model(x).float(), y)

    return loss


TEXT = (
    "the quick brown fox jumps over the lazy dog while seven wizards box with a jovial sphinx of black quartz; " * 9
)[:900]
ALPHABET = sorted(set(TEXT))
CODES = torch.tensor([ALPHABET.index(c) for c in TEXT])


def pieces(rows=16, length=24, seed=0):
    def piece(step):
        g = torch.Generator().manual_seed((seed + SEED[0]) * 100_003 + step)
        starts = torch.randint(len(CODES) - length - 1, (rows, 1), generator=g)
        both = CODES[starts + torch.arange(length + 1)]
        return both[:, :-1], both[:, 1:]

    return piece


def predict(model, piece):
    def loss(step):
        x, y = piece(step)
        return F.cross_entropy(model(x).flatten(0, 1).float(), y.flatten())

    return loss


# ----------------------------------------------------------------------------------------------------------- models


def mlp(width=64, depth=2, act=nn.ReLU, norm=False, dropout=0.0, seed=0):
    torch.manual_seed(seed + SEED[0])
    parts: list[nn.Module] = [nn.Flatten()]
    size = 64
    for _ in range(depth):
        parts += [nn.Linear(size, width), *([nn.BatchNorm1d(width)] if norm else []), act()]
        parts += [nn.Dropout(dropout)] if dropout else []
        size = width
    return nn.Sequential(*parts, nn.Linear(size, 10))


def cnn(norm=False, seed=0):
    torch.manual_seed(seed + SEED[0])
    return nn.Sequential(
        nn.Unflatten(1, (1, 8)),
        nn.Conv2d(1, 8, 3, padding=1),
        *([nn.BatchNorm2d(8)] if norm else []),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        *([nn.BatchNorm2d(16)] if norm else []),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


class Recurrent(nn.Module):
    def __init__(self, kind=nn.RNN, hidden=32, seed=0):
        super().__init__()
        torch.manual_seed(seed + SEED[0])
        self.embed = nn.Embedding(len(ALPHABET), hidden)
        self.rnn = kind(hidden, hidden, batch_first=True)
        self.head = nn.Linear(hidden, len(ALPHABET))

    def forward(self, x):
        return self.head(self.rnn(self.embed(x))[0])


class Transformer(nn.Module):
    def __init__(self, width=32, depth=2, seed=0, tied=False, pre=True):
        super().__init__()
        torch.manual_seed(seed + SEED[0])
        self.embed = nn.Embedding(len(ALPHABET), width)
        self.place = nn.Parameter(0.02 * torch.randn(24, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, norm_first=pre, batch_first=True)
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(ALPHABET), bias=False)
        if tied:
            nn.init.normal_(self.embed.weight, std=0.1)
            self.head.weight = self.embed.weight

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        h = self.embed(x) + self.place[: x.shape[1]]
        for block in self.blocks:
            h = block(h, src_mask=mask, is_causal=True)
        return self.head(self.norm(h))
