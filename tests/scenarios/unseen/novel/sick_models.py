"""Novel sick trainings, second part: architectures, and how they begin.

They only count (the group `novel`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import torch
from nets import batches, classify
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick


@sick(
    "no-gradient", "dead-layer", "weights-unchanged",
    where="read, all steps", cure="hand the state over as it is: .detach() (or .data) cuts the reader off",
)  # fmt: skip
def state_detached_between_reader_and_writer(folder, ill):
    """Read ten signs, write them backwards."""
    seeded(220)
    net = nn.ModuleDict(
        {
            "signs": nn.Embedding(9, 16),
            "read": nn.GRU(16, 48, batch_first=True),
            "write": nn.GRU(16, 48, batch_first=True),
            "head": nn.Linear(48, 8),
        }
    )

    def loss_of(step):
        x = torch.randint(8, (48, 10))
        wanted = x.flip(1)
        state = net["read"](net["signs"](x))[1]
        begun = torch.cat([torch.full((48, 1), 8), wanted[:, :-1]], 1)
        out = net["write"](net["signs"](begun), state.detach() if ill else state)[0]
        return F.cross_entropy(net["head"](out).flatten(0, 1), wanted.flatten())

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 400)


@sick(
    "bad-initialisation", "initialised-too-large", "saturated", "vanishing", "no-progress", "imbalance",
    where="memory, from the first step",
    cure="torch's own initialisation: weights of 0 to 1 hold every gate open and every state at 1",
)  # fmt: skip
def gates_drawn_between_zero_and_one(folder, ill):
    """The next value of a sum of two waves, from the twenty before it."""
    seeded(221)
    net = nn.ModuleDict({"memory": nn.LSTM(1, 32, batch_first=True), "head": nn.Linear(32, 1)})
    if ill:
        for p in net["memory"].parameters():
            nn.init.uniform_(p)

    def loss_of(step):
        time = torch.arange(21) * 0.3 + 6.2832 * torch.rand(48, 1)
        x = time.sin() + (1.7 * time + 6.2832 * torch.rand(48, 1)).sin()
        return F.mse_loss(net["head"](net["memory"](x[:, :20, None])[0][:, -1]), x[:, 20:])

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 120)


@sick(
    "exploding", "spike", "lr-too-high", "nonfinite", "update-too-large", "dead-layer",
    where="draw.weight_hh_l0, from the first steps",
    cure="clip the parameters of the whole net: those of the encoder were never the ones that explode",
)  # fmt: skip
def encoder_clipped_and_decoder_not(folder, ill):
    """A rectified recurrence draws an image pixel by pixel."""
    seeded(222)
    net = nn.ModuleDict(
        {
            "see": dense(64, 64, 40),
            "draw": nn.RNN(2, 40, nonlinearity="relu", batch_first=True),
            "ink": nn.Linear(40, 1),
        }
    )
    nn.init.orthogonal_(net["draw"].weight_hh_l0, gain=1.4)
    draw = batches(32)
    places = torch.stack(torch.meshgrid(torch.linspace(-1, 1, 8), torch.linspace(-1, 1, 8), indexing="ij"), 2)

    def loss_of(step):
        x = draw(step)[0].flatten(1)
        out = net["draw"](places.reshape(1, 64, 2).expand(32, -1, -1), net["see"](x).relu()[None])[0]
        return F.mse_loss(net["ink"](out)[..., 0], x)

    def clipped(step):
        nn.utils.clip_grad_norm_((net["see"] if ill else net).parameters(), 0.5)

    return fit(folder, net, optim.SGD(net.parameters(), 0.2, momentum=0.9), loss_of, 150, before_step=clipped)


class Block(nn.Module):
    """Attention and two layers behind a norm each; what comes in goes round them, or is forgotten."""

    def __init__(self, width, around):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend = nn.MultiheadAttention(width, 4, batch_first=True)
        self.think = dense(width, 2 * width, width, act=nn.GELU)
        self.around = around

    def forward(self, x):
        h = self.first(x)
        x = self.attend(h, h, h, need_weights=False)[0] + (x if self.around else 0)
        return self.think(self.second(x)) + (x if self.around else 0)


class Patches(nn.Module):
    """A transformer on the sixteen patches of an image."""

    def __init__(self, depth, around, width=32):
        super().__init__()
        self.embed, self.place = nn.Linear(4, width), nn.Parameter(0.5 * torch.randn(16, width))
        self.blocks = nn.Sequential(*(Block(width, around) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x):
        parts = F.unfold(x[:, None], 2, stride=2).mT
        return self.head(self.norm(self.blocks(self.embed(parts) + self.place).mean(1)))


@sick(
    "vanishing", "no-progress", "imbalance",
    where="the first blocks and the embedding, all steps", cure="x + attend(norm(x)): the way round was forgotten",
)  # fmt: skip
def six_blocks_with_no_way_round(folder, ill):
    seeded(223)
    net = Patches(6, around=not ill)
    return fit(folder, net, optim.AdamW(net.parameters(), 2e-3), classify(net, batches(32)), 130)


@sick(
    "lr-too-high", "noise-dominated", "update-too-large", "exploding", "spike", "no-progress",
    where="all layers, all steps", cure="a rate in proportion: 0.4 was meant for batches of 512, not of 2",
)  # fmt: skip
def rate_of_a_large_batch_for_two_images(folder, ill):
    seeded(224)
    net = nn.Sequential(
        nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
        nn.Conv2d(16, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip
    make = optim.SGD(net.parameters(), 0.4 if ill else 0.004, momentum=0.9, nesterov=True)
    score = score_of(classify(net, batches(256, seed=9)), 2)
    return fit(folder, net, make, classify(net, batches(2)), 500, score=score)


@sick(
    "inputs-not-normalised", "no-progress", "noise-dominated", "vanishing",
    where="all layers, all steps",
    cure="standardise the columns: a norm over a row with an income in it is the income's sign",
)  # fmt: skip
def norm_over_columns_of_unlike_size(folder, ill):
    """A table with an income, ages, shares; what is asked hangs on the small columns."""
    seeded(225)
    norm, way = (nn.LayerNorm if ill else nn.BatchNorm1d)(6), torch.randn(6, 1)
    net = nn.Sequential(norm, *dense(6, 48, 48, 1))
    way[0] = 0
    way *= 1.5 / way.norm()
    middle = torch.tensor([52_000.0, 41.0, 0.3, 2.0, 0.5, 12.0])
    spread = torch.tensor([18_000.0, 12.0, 0.1, 1.0, 0.2, 4.0])

    def loss_of(step):
        x = torch.randn(64, 6)
        return F.mse_loss(net(middle + spread * x), (x @ way).sin())

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 800)


@sick(
    "noise-dominated", "dropout-too-strong", "vanishing", "no-progress",
    where="cell, all steps", cure="dropout on what goes in, not on the state: half of what is known is lost each time",
)  # fmt: skip
def state_dropped_at_every_step(folder, ill):
    """Which of five signs came first, after ten."""
    seeded(226)
    net = nn.ModuleDict({"cell": nn.GRUCell(5, 40), "head": nn.Linear(40, 5)})

    def run(training):
        x = torch.randint(5, (48, 10))
        state = torch.zeros(48, 40)
        for at in range(10):
            state = net["cell"](F.one_hot(x[:, at], 5).float(), state)
            state = F.dropout(state, 0.5, training and ill)
        return F.cross_entropy(net["head"](state), x[:, 0])

    make = optim.NAdam(net.parameters(), 8e-3)
    return fit(folder, net, make, lambda step: run(True), 300, score=score_of(lambda step: run(False)))


@sick(
    "vanishing", "no-progress", "bad-initialisation", "dead-layer",
    where="the first layers, all steps", cure="two layers, or a way round: sixteen averages make all nodes alike",
)  # fmt: skip
def sixteen_rounds_of_averages(folder, ill):
    """Four groups of nodes with more edges inside than between them; half of the nodes are named."""
    seeded(227)
    group = torch.arange(120) % 4
    chance = torch.where(group[:, None] == group, 0.15, 0.03)
    edges = (torch.rand(120, 120) < chance).float().triu(1)
    edges = edges + edges.T + torch.eye(120)
    share = edges / edges.sum(1, keepdim=True)
    x = F.one_hot(group, 4).float() @ torch.randn(4, 12) + 2 * torch.randn(120, 12)
    known = torch.rand(120) < 0.5
    net = nn.ModuleList([nn.Linear(12, 24), *(nn.Linear(24, 24) for _ in range(15)), nn.Linear(24, 4)])

    def named():
        h = net[0](share @ x).relu()
        for layer in net[1:-1]:
            new = layer(share @ h).relu()
            h = new if ill else h + 0.2 * new
        return net[-1](h)

    def score():
        with torch.no_grad():
            return float(F.cross_entropy(named(), group))

    make = optim.Adam(net.parameters(), 2e-3, weight_decay=5e-4)
    return fit(folder, net, make, lambda step: F.cross_entropy(named()[known], group[known]), 150, score=score)


@sick(
    "loss-terms-apart", "loss-terms-unbalanced", "clip-is-your-learning-rate", "imbalance", "no-progress",
    "noise-dominated",
    where="router, all steps", cure="a balance of 0.01: at 100 it is all of the norm that is clipped",
)  # fmt: skip
def balance_a_hundred_times_the_error(folder, ill):
    """Experts for six kinds of rows."""
    seeded(228)
    net = nn.ModuleDict({"router": nn.Linear(6, 6), "experts": nn.ModuleList(nn.Linear(6, 2) for _ in range(6))})
    centre, maps = 2 * torch.randn(6, 6), torch.randn(6, 6, 2)

    def terms(step):
        kind = torch.randint(6, (96,))
        x = centre[kind] + torch.randn(96, 6)
        y = torch.einsum("bi,bio->bo", x - centre[kind], maps[kind])
        share = net["router"](x).softmax(1)
        out = torch.stack([expert(x) for expert in net["experts"]], 1)
        load = F.one_hot(share.argmax(1), 6).float().mean(0) @ share.mean(0) * 6
        return F.mse_loss((out * share[..., None]).sum(1), y), load

    def loss_of(step):
        error, load = terms(step)
        return error + (100 if ill else 0.01) * load, {"error": error}

    def clipped(step):
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    score = score_of(lambda step: terms(step)[0])
    make = optim.SGD(net.parameters(), 0.03, momentum=0.9)
    return fit(folder, net, make, loss_of, 400, before_step=clipped, score=score)


@sick(
    "exploding", "nonfinite", "spike", "lr-too-high", "noise-dominated",
    where="all couplings, in steps that draw a far point", cure="2 tanh(s) for the scale: exp(s) has no bound",
)  # fmt: skip
def couplings_whose_scale_has_no_bound(folder, ill):
    """A flow (Dinh et al. 2017) of points with heavy tails; the score is their mean likelihood without the far ones."""
    seeded(229)
    net = nn.ModuleList(dense(1, 32, 32, 2) for _ in range(6))

    def surprise(x):
        z, volume = x, torch.zeros(len(x))
        for i, coupling in enumerate(net):
            kept, changed = (z[:, :1], z[:, 1:]) if i % 2 else (z[:, 1:], z[:, :1])
            scale, shift = coupling(kept).chunk(2, 1)
            scale = scale if ill else 2 * (scale / 2).tanh()
            changed = changed * scale.exp() + shift
            volume = volume + scale[:, 0]
            z = torch.cat([kept, changed], 1) if i % 2 else torch.cat([changed, kept], 1)
        return 0.5 * z.square().sum(1) - volume

    def points(far):
        angle = 3.1416 * torch.rand(64)
        base = 2 * torch.stack([angle.cos(), angle.sin()], 1) + 0.1 * torch.randn(64, 2)
        return base + (0.3 * torch.distributions.StudentT(1.5).sample((64, 2)) if far else 0)

    make = optim.Adamax(net.parameters(), 0.03)
    return fit(
        folder, net, make, lambda step: surprise(points(True)).mean(), 400,
        score=score_of(lambda step: surprise(points(False)).mean()),
    )  # fmt: skip
