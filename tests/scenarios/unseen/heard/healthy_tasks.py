"""Heard healthy trainings, third part: what is tuned, told apart or ranked. An expert is content with each.

They only count (the group `heard`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import torch
from nets import batches, classify, digits
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded
from unseen.sent.healthy_data import cuts, manual, program

# --------------------------------------------------------------------------------------------------------------- tuned


class Reader(nn.Module):
    """A small model of letters."""

    def __init__(self, width=32):
        super().__init__()
        self.embed, self.place = nn.Embedding(128, width), nn.Parameter(0.02 * torch.randn(32, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, norm_first=True, batch_first=True) for _ in range(2)
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 128))

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        h = self.embed(x) + self.place[: x.shape[1]]
        for block in self.blocks:
            h = block(h, src_mask=mask, is_causal=True)
        return self.head(h)


def next_of(net, codes, rows=16):
    """`loss_of(step)`: the next letters of a text."""

    def loss_of(step):
        x = cuts(codes, rows, 32)
        return F.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())

    return loss_of


def taught(net, loss_of, steps, rate=4e-3):
    """What it was before it is tuned."""
    make = optim.Adam(net.parameters(), rate)
    for step in range(steps):
        make.zero_grad()
        loss_of(step).backward()
        make.step()
    return net


@healthy(0.1)
def all_of_a_reader_tuned_gently(folder):
    """From a manual to a program, at an eighth of the rate that taught it; the rate falls to zero in a line."""
    seeded(1121)
    net = Reader()
    taught(net, next_of(net, manual()), 60)
    make = optim.AdamW(net.parameters(), 5e-4, weight_decay=0.01)
    plan = optim.lr_scheduler.LinearLR(make, 1.0, 0.0, total_iters=120)
    loss_of = next_of(net, program())
    return fit(folder, net, make, loss_of, 120, schedule=plan, score=score_of(loss_of), clip="ClipByGlobalNorm(1.0)")


class Scaled(nn.Module):
    """A frozen layer whose outputs are scaled (IA3, Liu et al. 2022)."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.scale = layer.requires_grad_(False), nn.Parameter(torch.ones(layer.out_features))

    def forward(self, x):
        return self.layer(x) * self.scale


@healthy(0.3)
def scales_alone_are_tuned(folder):
    """Some hundred numbers beside a frozen net: digits through a lens that is dim in places."""
    seeded(1122)
    net = nn.Sequential(nn.Flatten(), dense(64, 96, 96, 10))
    taught(net, classify(net, batches(64, seed=1122)), 150, 3e-3)
    for i in (0, 2, 4):
        net[1][i] = Scaled(net[1][i])
    batch, dim = batches(32, seed=1123), 2 * torch.rand(8, 8).square()

    def loss_of(step):
        x, y = batch(step)
        return F.cross_entropy(net(dim * x), y)

    make = optim.AdamW([p for p in net.parameters() if p.requires_grad], 1e-2, weight_decay=0.0)
    return fit(folder, net, make, loss_of, 200)


class FourBits(nn.Module):
    """Weights on a grid of sixteen by row, and two thin matrices beside it (QLoRA, Dettmers et al. 2023)."""

    def __init__(self, layer, rank=4):
        super().__init__()
        grid = torch.distributions.Normal(0.0, 1.0).icdf(torch.linspace(0.03, 0.97, 16))
        grid = grid / grid.max()
        size = layer.weight.data.abs().amax(1, keepdim=True)
        near = (layer.weight.data / size)[..., None].sub(grid).abs().argmin(-1)
        self.register_buffer("weight", grid[near] * size)
        self.register_buffer("bias", layer.bias.data)
        self.a = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x):
        return F.linear(x, self.weight, self.bias) + 4 * F.linear(F.linear(x, self.a), self.b)


@healthy(0.3)
def thin_matrices_beside_four_bits(folder):
    """The matrix that begins at zero has sixteen times the rate of the other (LoRA+, Hayou et al. 2024)."""
    seeded(1123)
    net = nn.Sequential(nn.Flatten(), dense(64, 96, 96, 10))
    taught(net, classify(net, batches(64, seed=1124)), 150, 3e-3)
    for i in (0, 2, 4):
        net[1][i] = FourBits(net[1][i])
    batch = batches(32, seed=1125)
    of = {name: [p for key, p in net.named_parameters() if key.endswith(name)] for name in ("a", "b")}
    make = optim.AdamW([{"params": of["a"], "lr": 2e-4}, {"params": of["b"], "lr": 3.2e-3}], weight_decay=0.0)

    def loss_of(step):
        x, y = batch(step)
        return F.cross_entropy(net(x.transpose(1, 2)), y)

    return fit(folder, net, make, loss_of, 200, clip="ClipByGlobalNorm(0.3)")


# --------------------------------------------------------------------------------------------------- told and ranked


class Spells(nn.Module):
    """What it sees, letter by letter."""

    def __init__(self):
        super().__init__()
        self.eye = nn.Sequential(
            *(nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(256, 48)),
        )
        self.embed, self.cell, self.head = nn.Embedding(28, 16), nn.LSTM(16, 48, batch_first=True), nn.Linear(48, 28)

    def forward(self, x, told):
        h = self.eye(x).tanh()[None]
        return self.head(self.cell(self.embed(told), (h, torch.zeros_like(h)))[0])


@healthy(0.5)
def digits_described_in_letters(folder):
    """An image, and "s", "e", "v", "e", "n"; the rate falls to a tenth, a clip at 5."""
    seeded(1127)
    net, batch = Spells(), batches(48, seed=1128)
    names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    words = torch.tensor([[*(ord(c) - 96 for c in name), *[27] * (6 - len(name))] for name in names])

    def loss_of(step):
        x, y = batch(step)
        told = F.pad(words[y][:, :-1], (1, 0))
        return F.cross_entropy(net(x, told).flatten(0, 1), words[y].flatten())

    make = optim.RMSprop(net.parameters(), 2e-3)
    plan = optim.lr_scheduler.StepLR(make, 170, 0.1)
    return fit(folder, net, make, loss_of, 220, schedule=plan, clip="ClipByGlobalNorm(5.0)")


@healthy(0.3)
def old_digits_kept_by_showing_them_again(folder):
    """Two new kinds every eighty steps, half of each batch from those before (Rolnick et al. 2019)."""
    seeded(1131)
    (x, y), net = digits(), nn.Sequential(nn.Flatten(), dense(64, 96, 10))
    order = y[:1500].sort()[1]
    ends = torch.bincount(y[:1500]).cumsum(0).tolist()

    def loss_of(step):
        now = min(step // 80, 4)
        first, last = ends[2 * now - 1] if now else 0, ends[2 * now + 1]
        at = torch.cat([torch.randint(first, last, (32,)), torch.randint(last, (32,))])
        return F.cross_entropy(net(x[order[at]]), y[order[at]])

    def score():
        with torch.no_grad():
            return float(F.cross_entropy(net(x[1500:]), y[1500:]))

    return fit(folder, net, optim.SGD(net.parameters(), 0.05, momentum=0.9), loss_of, 400, score=score)
