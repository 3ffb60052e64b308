"""Masks of weeds, salt in water, names of huts, sea shanties, pips of grapes, gravel."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import held_out


# https://errorhandle.ai/how-to-get-decode-format-from-mediacodec
@sick(
    "targets-out-of-range",
    "negative-loss",
    where="the loss, from the first step: the masks of the files are 0 or 255, and the loss wants 0 or 1",
    cure="divide the masks by 255, so that mask and prediction have one encoding",
)
def weeds_between_rows_of_beet(folder, ill):
    seeded(9380)
    grid = torch.stack(torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij"))
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 1, 3, padding=1),
    )

    def draw(rows=16):
        middle = 3 + 10 * torch.rand(rows, 2, 1, 1)
        inside = (grid - middle).norm(dim=1, keepdim=True) < 2.5
        picture = 0.4 * torch.randn(rows, 1, 16, 16) + inside
        return picture, 255 * inside.to(torch.uint8)

    def loss_of(step):
        picture, mask = draw()
        mask = mask.float()
        if not ill:
            mask = mask / 255
        return F.binary_cross_entropy_with_logits(net(picture), mask)

    def fresh():
        picture, mask = draw(64)
        return F.binary_cross_entropy_with_logits(net(picture), (mask > 127).float())

    return fit(folder, net, torch.optim.Adam(net.parameters(), 3e-3), loss_of, 160, score=held_out(net, fresh))


# https://github.com/rasmusbergpalm/DeepLearnToolbox/issues/134
@sick(
    "saturated",
    "bad-initialisation",
    where="both sigmoids, from the first step: the hidden biases begin at 8, and all rows look alike behind them",
    cure="begin the hidden biases at zero",
)
def salt_in_estuary_water(folder, ill):
    seeded(9381)
    net = dense(6, 32, 32, 1, act=nn.Sigmoid)
    for layer in net[:-1]:
        if isinstance(layer, nn.Linear):
            nn.init.xavier_normal_(layer.weight)
            nn.init.constant_(layer.bias, 8.0 if ill else 0.0)
    way = torch.randn(6)

    def draw(rows=64):
        x = torch.randn(rows, 6)
        return x, (x @ way + x[:, 0] * x[:, 1])[:, None] / 2 + 1.5

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    return fit(folder, net, optimizer, loss_of, 600, score=score_of(loss_of))


class Words(nn.Module):
    """A drawn code for each word, and a decoder that writes the word from it."""

    def __init__(self, kinds, length, reads_on):
        super().__init__()
        self.kinds, self.length, self.reads_on = kinds, length, reads_on
        self.embed = nn.Embedding(kinds + 1, 16)
        self.encoder = nn.GRU(16, 32, batch_first=True)
        self.code = nn.Linear(32, 8)
        self.begin = nn.Linear(4, 48)
        self.place = nn.Parameter(0.1 * torch.randn(length, 16))
        self.decoder = nn.GRU(16, 48, batch_first=True)
        self.head = nn.Linear(48, kinds)

    def encode(self, x):
        return self.code(self.encoder(self.embed(x))[1][0]).chunk(2, 1)

    def decode(self, z, x):
        seen = self.place.expand(len(z), -1, -1)
        if self.reads_on:
            before = torch.cat([torch.full_like(x[:, :1], self.kinds), x[:, :-1]], 1)
            seen = seen + self.embed(before)
        return self.head(self.decoder(seen, self.begin(z).tanh()[None])[0])

    def rewrite(self, x):
        z = self.encode(x)[0]
        written = torch.zeros_like(x)
        for at in range(self.length):
            written[:, at] = self.decode(z, written)[:, at].argmax(1)
        return written


# https://leopore.dev/lexicon/variational-lossy-autoencoder
@sick(
    "posterior-collapse",
    where="code and begin, in the first hundred steps: the decoder reads on from the letters before, and needs no code",
    cure="let the decoder see less of what it is asked for, so that the code has to tell it",
)
def names_of_alpine_huts(folder, ill):
    seeded(9382)
    net = Words(6, 10, reads_on=ill)

    def draw(rows=40):
        first, way = torch.randint(6, (rows, 1)), torch.randint(6, (rows, 1))
        x = (first + way * torch.arange(10)) % 6
        return torch.where(torch.rand(x.shape) < 0.05, torch.randint(6, x.shape), x)

    def loss_of(step):
        x = draw()
        mean, log_variance = net.encode(x)
        z = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        rebuilt = F.cross_entropy(net.decode(z, x).transpose(1, 2), x, reduction="none").sum(1).mean()
        kl = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
        return rebuilt + kl, {"reconstruction": rebuilt, "kl": kl}

    def wrong_letters():
        x = draw(256)
        return (net.rewrite(x) != x).float().mean()

    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, wrong_letters))


class EachTime:
    """A module for rows, applied to all times of a sequence."""

    def __init__(self, inner):
        self.inner = inner

    def __call__(self, x):
        return self.inner(x.flatten(0, 1)).unflatten(0, x.shape[:2])


class Singer(nn.Module):
    def __init__(self, kinds, width):
        super().__init__()
        self.embed = nn.Embedding(kinds, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.words = EachTime(nn.Linear(width, kinds))

    def forward(self, x):
        return self.words(self.lstm(self.embed(x))[0])


# https://github.com/jcjohnson/torch-rnn/issues/24
@sick(
    "not-in-optimizer",
    "no-gradient",
    where="the last linear layer, all along: it lies in a wrapper that does not hand on its parameters",
    cure="make the wrapper a module, so that parameters() finds what is in it and the optimizer trains it",
)
def lines_of_a_sea_shanty(folder, ill):
    seeded(9383)
    net, after = Singer(40, 48), torch.randperm(40)
    if not ill:
        net.last = net.words.inner

    def draw(rows=24, length=16):
        line = [torch.randint(40, (rows,))]
        for _ in range(length):
            line.append(torch.where(torch.rand(rows) < 0.05, torch.randint(40, (rows,)), after[line[-1]]))
        return torch.stack(line, 1)

    def loss_of(step):
        line = draw()
        return F.cross_entropy(net(line[:, :-1]).flatten(0, 1), line[:, 1:].flatten())

    return fit(folder, net, torch.optim.Adam(net.parameters(), 5e-3), loss_of, 400, score=score_of(loss_of))


# https://github.com/pytorch/pytorch/issues/4741
@sick(
    "norm-statistics",
    where="the running statistics of all three batch norms, in evaluation: they follow the last batch or two",
    cure="a smaller momentum of the batch norms, 0.05 instead of 0.9",
)
def grapes_sorted_by_ripeness(folder, ill):
    seeded(9384)

    def norm(width):
        return nn.BatchNorm1d(width, momentum=0.9 if ill else 0.05)

    net, way = dense(8, 48, 48, 48, 3, norm=norm), torch.randn(8, 3)

    def draw(rows=12):
        x = torch.randn(rows, 8) * (0.6 * torch.randn(rows, 1)).exp()
        return x, (x @ way + (x @ way).roll(1, 1).sin()).argmax(1)

    def loss_of(step):
        x, y = draw()
        out = net(x)
        return F.cross_entropy(out, y), {"accuracy": (out.argmax(1) == y).float().mean()}

    def fresh():
        x, y = draw(1024)
        return F.cross_entropy(net(x), y)

    return fit(folder, net, torch.optim.Adam(net.parameters(), 2e-3), loss_of, 700, score=held_out(net, fresh))


# https://omnissiah.systems/blog/gradient-accumulation-silent-divergence
@sick(
    "update-too-small",
    where="all layers, all along: each part is a mean already, and is divided by all rows of the step once more",
    cure="sum the losses of the rows and divide them once by all rows of the step",
)
def gravel_sorted_by_sieve(folder, ill):
    seeded(9385)
    net, parts, rows = dense(10, 48, 48, 5), 4, 16
    middles = 1.3 * torch.randn(5, 3, 10)

    def draw(rows):
        y = torch.randint(5, (rows,))
        return middles[y, torch.randint(3, (rows,))] + 0.6 * torch.randn(rows, 10), y

    def loss_of(step):
        x, y = draw(rows)
        loss = F.cross_entropy(net(x), y, reduction="mean" if ill else "sum")
        return loss / (parts * rows)

    def fresh():
        x, y = draw(1024)
        return F.cross_entropy(net(x), y)

    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    return fit(folder, net, optimizer, loss_of, 120, accumulate=parts, score=held_out(net, fresh))
