"""Blind sick trainings, second part: architectures and how they begin.

They only count (the group `blind`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from nets import batches, classify
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick, square_of, waves


class Blocks(nn.Module):
    """A residual net of the digits; `norm` stands in each block, or nowhere."""

    def __init__(self, norm, depth=16, width=32):
        super().__init__()
        self.stem, self.head = nn.Linear(64, width), nn.Linear(width, 10)
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width) if norm else nn.Identity(),
                nn.Linear(width, width),
                nn.ReLU(),
                nn.Linear(width, width),
            )
            for _ in range(depth)
        )
        for block in self.blocks:
            for part in (block[1], block[3]):
                nn.init.kaiming_normal_(part.weight)

    def forward(self, x):
        h = self.stem(x.flatten(1))
        for block in self.blocks:
            h = h + block(h)
        return self.head(self.norm(h))


@sick(
    "exploding", "lr-too-high", "nonfinite", "update-too-large", "imbalance",
    where="all blocks, from the first step", cure="a LayerNorm in each block: 16 of them double the variance each",
)  # fmt: skip
def blocks_added_up_without_a_norm(folder, ill):
    seeded(20)
    net = Blocks(not ill)
    make = optim.SGD(net.parameters(), 0.01, momentum=0.9)
    return fit(folder, net, make, classify(net, batches(32)), 150)


@sick(
    "exploding", "nonfinite", "spike", "lr-too-high", "imbalance",
    where="memory.weight_hh_l0, from the first steps", cure="a recurrence of norm 1 or less, and a clip",
)  # fmt: skip
def recurrence_that_multiplies(folder, ill):
    """The sum of a row of 30 numbers."""
    seeded(21)
    memory, head = nn.RNN(1, 24, nonlinearity="relu", batch_first=True), nn.Linear(24, 1)
    with torch.no_grad():
        memory.weight_hh_l0.copy_((1.4 if ill else 0.95) * torch.eye(24))
        memory.weight_ih_l0.mul_(0.1)
    net = nn.ModuleDict({"memory": memory, "head": head})

    def loss_of(step):
        x = torch.randn(32, 30, 1)
        return F.mse_loss(head(memory(x)[0][:, -1]), x.sum(1) / 5)

    def clipped(step):
        if not ill:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    return fit(folder, net, optim.Adam(net.parameters(), 0.005), loss_of, 400, before_step=clipped)


@sick(
    "vanishing", "no-progress", "update-too-small", "weights-unchanged",
    where="the first convolutions, all steps", cure="He's initialisation: eight layers of 0.01 leave no image",
)  # fmt: skip
def eight_convolutions_begun_at_a_hundredth(folder, ill):
    seeded(22)
    parts = [nn.Unflatten(1, (1, 8))]
    for i in range(8):
        conv = nn.Conv2d(8 if i else 1, 8, 3, padding=1)
        if ill:
            nn.init.normal_(conv.weight, std=0.01)
        else:
            nn.init.kaiming_normal_(conv.weight)
        nn.init.zeros_(conv.bias)
        parts += [conv, nn.ReLU()]
    net = nn.Sequential(*parts, nn.Flatten(), nn.Linear(512, 10))
    return fit(folder, net, optim.SGD(net.parameters(), 0.02, momentum=0.9), classify(net, batches(32)), 200)


@sick(
    "saturated", "no-progress", "vanishing", "update-too-small",
    where="user and item, all steps", cure="tables that begin at 0.05: 128 products of normals make a logit of 11",
)  # fmt: skip
def dot_products_of_wide_tables(folder, ill):
    """A recommender: does this user take that item?"""
    seeded(23)
    net = nn.ModuleDict({"user": nn.Embedding(200, 128), "item": nn.Embedding(100, 128)})
    if not ill:
        for table in net.values():
            nn.init.normal_(table.weight, std=0.05)
    taste, kind = torch.randn(200, 3), torch.randn(100, 3)

    def loss_of(step):
        u, i = torch.randint(200, (256,)), torch.randint(100, (256,))
        logit = (net["user"](u) * net["item"](i)).sum(1)
        return F.binary_cross_entropy_with_logits(logit, ((taste[u] * kind[i]).sum(1) > 0).float())

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 400)


@sick(
    "dead-layer", "vanishing", "no-progress", "norm-over-too-few",
    where="all before the last norm, all steps", cure="no norm over one feature: it is zero whatever came before",
)  # fmt: skip
def layer_norm_of_one_feature(folder, ill):
    seeded(24)
    net, draw = dense(6, 48, 48, 1, act=nn.GELU), waves()
    if ill:
        net.append(nn.LayerNorm(1))
    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), square_of(net, draw), 300)


@sick(
    "no-progress", "vanishing", "dead-layer",
    where="cell, all steps", cure="detach between sequences, not between steps: nothing learns to remember",
)  # fmt: skip
def state_detached_in_every_step(folder, ill):
    """Name the first of ten tokens."""
    seeded(25)
    net = nn.ModuleDict({"cell": nn.GRUCell(4, 32), "head": nn.Linear(32, 4)})

    def loss_of(step):
        x = torch.randint(4, (32, 10))
        h = torch.zeros(32, 32)
        for t in range(10):
            h = net["cell"](F.one_hot(x[:, t], 4).float(), h.detach() if ill else h)
        return F.cross_entropy(net["head"](h), x[:, 0])

    return fit(folder, net, optim.Adam(net.parameters(), 0.01), loss_of, 300)


class Graph(nn.Module):
    """Layers that pass sums over neighbours on, `[N, F]` to `[N, classes]`."""

    def __init__(self, way, sizes):
        super().__init__()
        self.register_buffer("way", way)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = self.way @ layer(x)
            x = x if i == len(self.layers) - 1 else x.relu()
        return x


@sick(
    "exploding", "lr-too-high", "update-too-large", "imbalance", "dead-layer",
    where="all layers, from the first step", cure="divide by the degrees: a node has fifty neighbours",
)  # fmt: skip
def neighbours_added_up(folder, ill):
    seeded(26)
    kind = torch.arange(120) % 3
    near = torch.rand(120, 120) < torch.where(kind[:, None] == kind, 0.6, 0.1)
    way = (near | near.T).float().fill_diagonal_(1)
    if not ill:
        root = way.sum(1).rsqrt()
        way = root[:, None] * way * root
    net = Graph(way, (8, 16, 16, 3))
    x = torch.randn(120, 8) + 1.5 * F.one_hot(kind, 8)
    make = optim.SGD(net.parameters(), 0.2, momentum=0.9)
    return fit(folder, net, make, lambda step: F.cross_entropy(net(x), kind), 150)


@sick(
    "dead-layer", "no-gradient", "vanishing",
    where="encode, all steps", cure="pass the gradient through the rounding: code + (code.round() - code).detach()",
)  # fmt: skip
def code_rounded_with_no_way_back(folder, ill):
    seeded(27)
    net = nn.ModuleDict({"encode": dense(64, 32, 12), "decode": dense(12, 32, 64)})
    draw = batches(64)

    def loss_of(step):
        x = draw(step)[0].flatten(1)
        code = net["encode"](x).sigmoid()
        hard = code.round() if ill else code + (code.round() - code).detach()
        return F.mse_loss(net["decode"](hard), x)

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 500)
