"""Novel healthy trainings, first part: architectures as they are mostly trained. An expert has nothing to say of any.

They only count (the group `novel`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import math

import torch
from nets import ALPHABET, Recurrent, Transformer, batches, classify, cnn, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from torch.nn.utils import parametrize
from unseen import fit, healthy, seeded, waves
from unseen.novel.sick_models import Patches


def pretrain(net, loss_of, steps, rate=3e-3):
    """What somebody else did: without a Watch."""
    make = optim.Adam(net.parameters(), rate)
    for step in range(steps):
        make.zero_grad()
        loss_of(step).backward()
        make.step()


class Residual(nn.Module):
    """Two convolutions with a norm each, and a way round them."""

    def __init__(self, width):
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.last = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x):
        return (x + self.last(self.second(self.norm(self.first(x)).relu()))).relu()


@healthy(0.3)
def residual_net_on_shifted_images(folder):
    """The recipe of most: momentum, a cosine, decay, labels smoothed, images moved by a pixel."""
    seeded(250)
    blocks = [Residual(16) for _ in range(3)]
    net = nn.Sequential(
        nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 16, 3, padding=1), *blocks, nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(256, 10),
    )  # fmt: skip
    draw = batches(32)

    def loss_of(step):
        x, y = draw(step)
        by = torch.randint(-1, 2, (2,)).tolist()
        return F.cross_entropy(net(x.roll(by, (1, 2))), y, label_smoothing=0.1)

    make = optim.SGD(net.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    plan = optim.lr_scheduler.CosineAnnealingLR(make, 250)
    return fit(folder, net, make, loss_of, 250, schedule=plan)


@healthy(0.3)
def letters_by_plain_sgd_and_a_quarter(folder):
    """Two layers of LSTM, a rate of 4, a clip at a quarter that binds in most steps (Zaremba et al. 2014)."""
    net, piece = Recurrent(nn.LSTM, 64, seed=251), pieces(16)
    for p in net.parameters():
        nn.init.uniform_(p, -0.1, 0.1)

    def clipped(step):
        nn.utils.clip_grad_norm_(net.parameters(), 0.25)

    return fit(folder, net, optim.SGD(net.parameters(), 4.0), predict(net, piece), 300, before_step=clipped)


@healthy(0.3)
def patches_of_images_with_a_warm_up(folder):
    seeded(252)
    net = Patches(4, around=True)
    make = optim.AdamW(net.parameters(), 2e-3, weight_decay=0.05)

    def share(step):
        return min((step + 1) / 40, 0.5 + 0.5 * math.cos(math.pi * step / 300))

    plan = optim.lr_scheduler.LambdaLR(make, share)
    return fit(folder, net, make, classify(net, batches(32)), 250, schedule=plan)


class Down(nn.Module):
    """A small U-Net (Ronneberger et al. 2015): what is seen large is put beside what is seen small."""

    def __init__(self):
        super().__init__()
        self.large, self.small = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.deep, self.up = nn.Conv2d(16, 16, 3, padding=1), nn.ConvTranspose2d(16, 8, 2, 2)
        self.out = nn.Conv2d(16, 1, 3, padding=1)

    def forward(self, x):
        large = self.large(x).relu()
        deep = self.deep(self.small(large).relu()).relu()
        return self.out(torch.cat([large, self.up(deep).relu()], 1))


@healthy(0.3)
def discs_cut_out_of_noise(folder):
    """Entropy and overlap together."""
    seeded(253)
    net, at = Down(), torch.arange(16.0)

    def loss_of(step):
        middle, size = 4 + 8 * torch.rand(16, 2, 1, 1), 2 + 2 * torch.rand(16, 1, 1)
        disc = ((at[:, None] - middle[:, 0]).square() + (at - middle[:, 1]).square() < size.square()).float()[:, None]
        out = net(disc + 0.7 * torch.randn_like(disc))
        p = out.sigmoid()
        overlap = (2 * (p * disc).sum((1, 2, 3)) + 1) / (p.sum((1, 2, 3)) + disc.sum((1, 2, 3)) + 1)
        return F.binary_cross_entropy_with_logits(out, disc) + 1 - overlap.mean()

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 250)


class Sorter(nn.Module):
    """Reads digits with a GRU, and writes them with another that looks back at all that was read."""

    def __init__(self, width=48):
        super().__init__()
        self.digits = nn.Embedding(11, width)
        self.read, self.write = nn.GRU(width, width, batch_first=True), nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(2 * width, 10)

    def forward(self, x, begun):
        memory, state = self.read(self.digits(x))
        h = self.write(self.digits(begun), state)[0]
        seen = (h @ memory.mT / 7).softmax(2) @ memory
        return self.head(torch.cat([h, seen], 2))


@healthy(0.3)
def digits_written_in_their_order(folder):
    """Teacher forcing, a clip at 1, a rate that comes up and goes down with the root of the step."""
    seeded(254)
    net = Sorter()

    def loss_of(step):
        x = torch.randint(10, (48, 8))
        wanted = x.sort(1).values
        begun = torch.cat([torch.full((48, 1), 10), wanted[:, :-1]], 1)
        return F.cross_entropy(net(x, begun).flatten(0, 1), wanted.flatten())

    def clipped(step):
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    make = optim.Adam(net.parameters(), 8e-3, betas=(0.9, 0.98))
    plan = optim.lr_scheduler.LambdaLR(make, lambda step: min((step + 1) / 50, (50 / (step + 1)) ** 0.5))
    return fit(folder, net, make, loss_of, 350, before_step=clipped, schedule=plan)


class Looks(nn.Module):
    """What the neighbours say, weighed by attention (Velickovic et al. 2018)."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.lift = nn.Linear(inputs, outputs, bias=False)
        self.mine, self.theirs = nn.Linear(outputs, 1), nn.Linear(outputs, 1)

    def forward(self, x, edges):
        h = self.lift(F.dropout(x, 0.3, self.training))
        said = F.leaky_relu(self.mine(h) + self.theirs(h).T, 0.2).masked_fill(edges == 0, -1e9)
        return said.softmax(1) @ h


@healthy(0.3)
def neighbours_weighed_by_attention(folder):
    """All of a graph in each step; a third of the nodes is named."""
    seeded(255)
    group = torch.arange(150) % 5
    edges = (torch.rand(150, 150) < torch.where(group[:, None] == group, 0.15, 0.01)).float()
    edges = (edges + edges.T + torch.eye(150)).clamp(max=1)
    x = F.one_hot(group, 5).float() @ torch.randn(5, 16) + torch.randn(150, 16)
    known = torch.rand(150) < 0.33
    net = nn.ModuleList([Looks(16, 24), Looks(24, 5)])

    def named():
        return net[1](F.elu(net[0](x, edges)), edges)

    def score():
        with torch.no_grad():
            net.eval()
            error = float(F.cross_entropy(named()[~known], group[~known]))
            net.train()
        return error

    make = optim.Adam(net.parameters(), 5e-3, weight_decay=5e-4)
    return fit(folder, net, make, lambda step: F.cross_entropy(named()[known], group[known]), 200, score=score)


@healthy(0.3)
def tuned_with_its_norms_at_rest(folder):
    """A net that is good already meets darker images; the norms are frozen in what they know."""
    net, draw = cnn(norm=True, seed=256), batches(64)
    pretrain(net, classify(net, draw), 120)
    net.eval()
    for part in net:
        if isinstance(part, nn.BatchNorm2d):
            part.requires_grad_(False)

    def loss_of(step):
        x, y = draw(4000 + step)
        return F.cross_entropy(net(0.4 * x + 0.1), y)

    make = optim.SGD([p for p in net.parameters() if p.requires_grad], 0.003, momentum=0.9)
    return fit(folder, net, make, loss_of, 80)


class Narrow(nn.Module):
    """Adds a product of low rank to a matrix (Hu et al. 2022)."""

    def __init__(self, outputs, inputs, rank=8):
        super().__init__()
        self.a = nn.Parameter(torch.randn(rank, inputs) / inputs**0.5)
        self.b = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, w):
        return w + 2 * self.b @ self.a


@healthy(0.3)
def attention_tuned_in_few_directions(folder):
    """A language model learns to read from right to left by matrices of rank 8; all else is frozen."""
    net = Transformer(depth=2, seed=257)
    pretrain(net, predict(net, pieces(8)), 120)
    net.requires_grad_(False)
    for block in net.blocks:
        for owner, name in ((block.self_attn, "in_proj_weight"), (block.linear1, "weight"), (block.linear2, "weight")):
            parametrize.register_parametrization(owner, name, Narrow(*getattr(owner, name).shape))
    forwards = pieces(16, seed=1)

    def loss_of(step):
        x, y = forwards(step)
        row = torch.cat([x, y[:, -1:]], 1).flip(1)
        return F.cross_entropy(net(row[:, :-1]).flatten(0, 1), row[:, 1:].flatten())

    make = optim.AdamW([p for p in net.parameters() if p.requires_grad], 5e-3, weight_decay=0.0)
    return fit(folder, net, make, loss_of, 250)


@healthy(0.3)
def kinds_and_numbers_of_a_table(folder):
    """Embeddings of categories beside numbers, a norm and dropout, and a rate that falls once an epoch of 60 steps."""
    seeded(258)
    net = nn.ModuleDict(
        {
            "town": nn.Embedding(30, 6),
            "trade": nn.Embedding(12, 4),
            "body": nn.Sequential(
                nn.Linear(14, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2),
                nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1),
            ),
        }
    )  # fmt: skip
    of_town, of_trade, draw = torch.randn(30, 1), torch.randn(12, 1), waves(64, 4)

    def loss_of(step):
        town, trade = torch.randint(30, (64,)), torch.randint(12, (64,))
        x, y = draw()
        said = net["body"](torch.cat([net["town"](town), net["trade"](trade), x], 1))
        return F.smooth_l1_loss(said, 0.5 * y + of_town[town] + of_trade[trade] + 0.3 * torch.randn(64, 1))

    make = optim.AdamW(net.parameters(), 5e-3, weight_decay=1e-2)
    plan = optim.lr_scheduler.StepLR(make, 60, 0.7)
    return fit(folder, net, make, loss_of, 420, schedule=plan)


@healthy(0.2)
def letters_marked_from_both_sides(folder):
    """Is a letter the first of its word? Rows of unlike length, packed; what stands behind the end counts nothing."""
    seeded(259)
    net = nn.ModuleDict(
        {
            "signs": nn.Embedding(len(ALPHABET) + 1, 16, padding_idx=len(ALPHABET)),
            "memory": nn.LSTM(16, 24, batch_first=True, bidirectional=True),
            "head": nn.Linear(48, 2),
        }
    )
    piece, space = pieces(16), ALPHABET.index(" ")

    def loss_of(step):
        x, y = piece(step)
        length = torch.randint(6, 25, (16,))
        behind = torch.arange(24) >= length[:, None]
        marks = (x == space).long().roll(1, 1).masked_fill(behind, -100)
        rows = net["signs"](x.masked_fill(behind, len(ALPHABET)))
        packed = nn.utils.rnn.pack_padded_sequence(rows, length, batch_first=True, enforce_sorted=False)
        out = nn.utils.rnn.pad_packed_sequence(net["memory"](packed)[0], batch_first=True, total_length=24)[0]
        return F.cross_entropy(net["head"](out).flatten(0, 1), marks.flatten(), ignore_index=-100)

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 200)


@healthy(0.3)
def clicks_by_products_of_pairs(folder):
    """A factorisation machine (Rendle 2010) on five fields of twenty values."""
    seeded(260)
    net = nn.ModuleDict({"factors": nn.Embedding(100, 6), "usual": nn.Embedding(100, 1)})
    nn.init.normal_(net["factors"].weight, std=0.05)
    nn.init.zeros_(net["usual"].weight)
    true = 0.9 * torch.randn(100, 3)

    def pairs(table, at):
        rows = table[at]
        return 0.5 * (rows.sum(1).square() - rows.square().sum(1)).sum(1)

    def loss_of(step):
        at = torch.randint(20, (256, 5)) + 20 * torch.arange(5)
        clicked = (pairs(true, at) > 0).float()
        said = pairs(net["factors"].weight, at) + net["usual"](at).sum((1, 2))
        return F.binary_cross_entropy_with_logits(said, clicked)

    return fit(folder, net, optim.Adagrad(net.parameters(), 0.1), loss_of, 600)
