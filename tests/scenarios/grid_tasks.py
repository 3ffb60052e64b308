"""Ordinary tasks for the grid: a net, its data, its loss, and an optimizer with a rate that suits it.

`data(seed)` gives `batch(step)`, a tuple of tensors (inputs first, what is wanted last), `loss(net, *batch)` a scalar.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from nets import ALPHABET, Recurrent, Transformer, batches, cnn, digits, mlp, pieces
from torch import Tensor, nn, optim
from torch.nn import functional as F
from unseen import dense

Batch = Callable[[int], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Task:
    """What a training is made of while nothing is wrong with it."""

    name: str
    net: Callable[[], nn.Module]
    data: Callable[[int], Batch]
    loss: Callable[..., Tensor]
    optimizer: Callable[..., optim.Optimizer]
    lr: float
    steps: int = 300
    classes: bool = False  # a cross-entropy of what the net gives out
    tokens: bool = False  # whole numbers come in


def drawn(seed: int, step: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed * 100_003 + step)


momentum = partial(optim.SGD, momentum=0.9)


def entropy(net, x, y):
    return F.cross_entropy(net(x).flatten(0, -2).float(), y.flatten())


def square(net, x, y):
    return F.mse_loss(net(x), y)


# ------------------------------------------------------------------------------------------------------ the usual nets


class Residual(nn.Module):
    def __init__(self, width=48, depth=6):
        super().__init__()
        self.first = nn.Linear(64, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
            for _ in range(depth)
        )
        self.last = nn.Linear(width, 10)

    def forward(self, x):
        h = self.first(x.flatten(1))
        for block in self.blocks:
            h = h + block(h)
        return self.last(h)


def waves(seed):
    way = torch.randn(6, 3, generator=drawn(77, 0))

    def batch(step):
        x = torch.randn(64, 6, generator=drawn(seed, step))
        return x, (x @ way).sin().sum(1, keepdim=True)

    return batch


def itself(seed):
    batch = batches(64, seed)
    return lambda step: (batch(step)[0].flatten(1),) * 2


USUAL = [
    Task("mlp-adam", mlp, partial(batches, 64), entropy, optim.Adam, 1e-3, classes=True),
    Task("mlp-sgd", mlp, partial(batches, 64), entropy, momentum, 0.05, classes=True),
    Task("cnn-adam", cnn, partial(batches, 64), entropy, optim.AdamW, 2e-3, classes=True),
    Task("cnnbn-sgd", partial(cnn, norm=True), partial(batches, 64), entropy, momentum, 0.02, classes=True),
    Task("resmlp-adamw", Residual, partial(batches, 64), entropy, optim.AdamW, 1e-3, classes=True),
    Task(
        "gru-adam",
        partial(Recurrent, nn.GRU),
        lambda seed: pieces(seed=seed),
        entropy,
        optim.Adam,
        3e-3,
        300,
        True,
        True,
    ),
    Task(
        "rnn-sgd", partial(Recurrent, nn.RNN), lambda seed: pieces(seed=seed), entropy, momentum, 0.1, 300, True, True
    ),
    Task(
        "transformer-adamw", Transformer, lambda seed: pieces(8, seed=seed), entropy, optim.AdamW, 2e-3, 300, True, True
    ),
    Task("regress-adam", lambda: dense(6, 64, 64, 1, act=nn.Tanh), waves, square, optim.Adam, 2e-3, 400),
    Task("regress-sgd", lambda: dense(6, 64, 64, 1), waves, square, momentum, 0.02, 400),
    Task("auto-adam", lambda: dense(64, 32, 8, 32, 64), itself, square, optim.Adam, 2e-3, 400),
]


# -------------------------------------------------------------------------------------------------------- other kinds


class Variational(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = dense(64, 64, 16), dense(8, 64, 64)

    def forward(self, x):
        mean, spread = self.encode(x).chunk(2, 1)
        code = mean + (spread / 2).exp() * torch.randn_like(mean)
        return self.decode(code), 0.5 * (mean**2 + spread.exp() - 1 - spread).sum(1).mean()


def evidence(net, x, y):
    out, divergence = net(x)
    return F.binary_cross_entropy_with_logits(out, y, reduction="sum") / len(y) + divergence


class Recommender(nn.Module):
    def __init__(self, size=8):
        super().__init__()
        self.users, self.items = nn.Embedding(50, size), nn.Embedding(40, size)
        self.bias = nn.Embedding(40, 1)

    def forward(self, x):
        user, item = x.unbind(1)
        return (self.users(user) * self.items(item)).sum(1, keepdim=True) + self.bias(item)


def ratings(seed):
    tastes, kinds = torch.randn(50, 3, generator=drawn(7, 0)), torch.randn(40, 3, generator=drawn(7, 1))

    def batch(step):
        g = drawn(seed, step)
        x = torch.stack([torch.randint(50, (128,), generator=g), torch.randint(40, (128,), generator=g)], 1)
        return x, (tastes[x[:, 0]] * kinds[x[:, 1]]).sum(1, keepdim=True) + 0.1 * torch.randn(128, 1, generator=g)

    return batch


class Graph(nn.Module):
    """Two graph convolutions over the neighbours' mean."""

    def __init__(self, width=32):
        super().__init__()
        self.first, self.second = nn.Linear(16, width), nn.Linear(width, 4)

    def forward(self, x):
        x, near = x[..., :16], x[..., 16:]
        near = near / near.sum(-1, keepdim=True)
        return self.second(near @ self.first(near @ x).relu())


def communities(seed):
    mark = torch.randn(4, 16, generator=drawn(5, 0))

    def batch(step):
        g = drawn(seed, step)
        y = torch.randint(4, (60,), generator=g)
        alike = y[:, None] == y
        near = (torch.rand(60, 60, generator=g) < torch.where(alike, 0.3, 0.03)).float() + torch.eye(60)
        return torch.cat([mark[y] * 0.4 + torch.randn(60, 16, generator=g), near], 1)[None], y[None]

    return batch


def two_views(net, x, y):
    """InfoNCE between two noisy views; the second one is `y`."""
    a, b = (F.normalize(net(v), dim=1) for v in (x, y))
    return F.cross_entropy(a @ b.T / 0.1, torch.arange(len(x)))


def views(seed):
    batch = batches(64, seed)

    def both(step):
        x, g = batch(step)[0].flatten(1), drawn(seed, step)
        return x + 0.1 * torch.randn(x.shape, generator=g), x + 0.1 * torch.randn(x.shape, generator=g)

    return both


def noised(seed):
    """A ring under noise of a random size, which is the third input; what is wanted is the noise."""

    def batch(step):
        g = drawn(seed, step)
        angle, time = 6.2832 * torch.rand(128, generator=g), torch.rand(128, 1, generator=g)
        clean, noise = torch.stack([angle.cos(), angle.sin()], 1) * 2, torch.randn(128, 2, generator=g)
        return torch.cat([(1 - time).sqrt() * clean + time.sqrt() * noise, time], 1), noise

    return batch


class Patches(nn.Module):
    """A vision transformer of four patches and a token for the class."""

    def __init__(self, width=32):
        super().__init__()
        self.patch = nn.Linear(16, width)
        self.place, self.token = (nn.Parameter(0.02 * torch.randn(n, width)) for n in (5, 1))
        layer = nn.TransformerEncoderLayer(
            width, 4, 64, dropout=0.0, activation="gelu", norm_first=True, batch_first=True
        )
        self.body, self.norm = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        h = self.patch(x.unfold(1, 4, 4).unfold(2, 4, 4).flatten(1, 2).flatten(2))
        h = torch.cat([self.token.expand(len(h), 1, -1), h], 1) + self.place
        return self.head(self.norm(self.body(h))[:, 0])


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(1, 32, 2, batch_first=True), nn.Linear(32, 1)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


def sines(seed):
    def batch(step):
        g = drawn(seed, step)
        start, pace = 6.2832 * torch.rand(32, 1, generator=g), 0.2 + 0.4 * torch.rand(32, 1, generator=g)
        x = (start + pace * torch.arange(31)).sin() + 0.05 * torch.randn(32, 31, generator=g)
        return x[:, :30, None], x[:, 30:]

    return batch


def rare(seed):
    """One in ten is what is looked for."""
    way = torch.randn(12, generator=drawn(3, 0))

    def batch(step):
        x = torch.randn(128, 12, generator=drawn(seed, step))
        return x, ((x @ way + 0.3 * (x[:, :1] * x[:, 1:2])[:, 0]) > 4.4).float()[:, None]

    return batch


def logistic(net, x, y):
    return F.binary_cross_entropy_with_logits(net(x), y)


class Copy(nn.Module):
    """A GRU reads letters, another one writes them again, backwards."""

    def __init__(self, width=48):
        super().__init__()
        self.embed = nn.Embedding(len(ALPHABET), width)
        self.read, self.write = nn.GRU(width, width, batch_first=True), nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, len(ALPHABET))

    def forward(self, x):
        seen = self.embed(x)
        _, state = self.read(seen)
        return self.head(self.write(torch.zeros_like(seen), state)[0])


def backwards(seed):
    def batch(step):
        x = torch.randint(len(ALPHABET), (32, 5), generator=drawn(seed, step))
        return x, x.flip(1)

    return batch


def denoiser():
    def layer(a, b):
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())

    return nn.Sequential(
        nn.Unflatten(1, (1, 8)),
        layer(1, 12),
        layer(12, 12),
        layer(12, 12),
        nn.Conv2d(12, 1, 3, padding=1),
        nn.Flatten(1, 2),
    )


def grainy(seed):
    batch = batches(32, seed)

    def noisy(step):
        x = batch(step)[0]
        return x + 0.3 * torch.randn(x.shape, generator=drawn(seed, step)), x

    return noisy


class Deep(nn.Module):
    """Convolutions with residuals and group norms."""

    def __init__(self, width=16, depth=4):
        super().__init__()
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.GroupNorm(4, width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1))
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        h = F.avg_pool2d(self.first(x[:, None]), 2)
        for block in self.blocks:
            h = h + block(h)
        return self.head(h.mean((2, 3)))


def choose(net, x, y):
    """REINFORCE on a bandit: action `y` pays 1, every other one nothing; the mean reward is the baseline."""
    choice = torch.distributions.Categorical(logits=net(x))
    action = choice.sample()
    reward = (action == y).float()
    return -((reward - reward.mean()) * choice.log_prob(action)).mean() - 0.01 * choice.entropy().mean()


def regret(net, x, y):
    return 1 - net(x).softmax(1).gather(1, y[:, None]).mean()


def few(seed):
    """A table of 80 rows that is seen again and again, as in fine-tuning."""
    x, y = digits()
    return lambda step: (x[:80][(at := torch.randint(80, (16,), generator=drawn(seed, step)))], y[:80][at])


OTHERS = [
    Task("vae-adam", Variational, itself, evidence, optim.Adam, 2e-3),
    Task("recommender-adam", Recommender, ratings, square, optim.Adam, 0.02, 500, tokens=True),
    Task("graph-adam", Graph, communities, entropy, optim.Adam, 0.01, 150, classes=True),
    Task("views-sgd", lambda: dense(64, 96, 32), views, two_views, momentum, 0.03),
    Task("diffusion-adam", lambda: dense(3, 64, 64, 64, 2, act=nn.SiLU), noised, square, optim.AdamW, 2e-3, 500),
    Task("vit-adamw", Patches, partial(batches, 64), entropy, optim.AdamW, 1e-3, classes=True),
    Task("lstm-adam", Forecast, sines, square, optim.Adam, 3e-3, 250),
    Task("detect-sgd", lambda: dense(12, 48, 48, 1), rare, logistic, momentum, 0.05, 400),
    Task("copy-adam", Copy, backwards, entropy, optim.Adam, 5e-3, 400, True, True),
    Task("denoise-adam", denoiser, grainy, square, optim.Adam, 3e-3, 150),
    Task("resnet-sgd", Deep, partial(batches, 32), entropy, momentum, 0.03, classes=True),
    Task(
        "bandit-adam",
        lambda: nn.Sequential(nn.Flatten(), *dense(64, 64, 10)),
        partial(batches, 64),
        choose,
        optim.Adam,
        3e-3,
        400,
    ),
    Task("few-rmsprop", mlp, few, entropy, optim.RMSprop, 1e-3, classes=True),
]
TASKS = USUAL + OTHERS
