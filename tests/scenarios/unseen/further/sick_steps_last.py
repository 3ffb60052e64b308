"""Sick trainings of the group `further`: the step, third part, and losses, axes and targets."""

from __future__ import annotations

import torch
from nets import batches, digits
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick

# ------------------------------------------------------------------------------------------------------------- digits


@sick(
    "softmax-twice",
    where="the last layer's output, all steps", cure="give cross_entropy the logits, without nn.Softmax behind them",
)  # fmt: skip
def digits_by_a_convnet_of_three_layers(folder, ill):
    seeded(2032)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(),
        nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.BatchNorm2d(24), nn.ReLU(),
        nn.Conv2d(24, 24, 3, stride=2, padding=1), nn.BatchNorm2d(24), nn.ReLU(),
        nn.Flatten(), nn.Linear(96, 10), *([nn.Softmax(1)] if ill else []),
    )  # fmt: skip
    batch, (images, named) = batches(64, seed=2032), digits()

    def loss_of(step):
        x, y = batch(step)
        out = net(x[:, None])
        return F.cross_entropy(out, y), {"accuracy": float((out.argmax(1) == y).float().mean())}

    def score():
        """How unlikely the labels are by the shares that the net gives."""
        net.eval()
        with torch.no_grad():
            out = net(images[:600, None])
        net.train()
        share = out if ill else out.softmax(1)
        return float(-(share.gather(1, named[:600, None]) + 1e-6).log().mean())

    make = optim.SGD(net.parameters(), 0.01, momentum=0.9, weight_decay=1e-4)
    return fit(folder, net, make, loss_of, 100, score=score)


# ------------------------------------------------------------------------------------------------------------- guilds


class Guilds(nn.Module):
    """Two graph convolutions over one graph, whose normalised adjacency is kept."""

    def __init__(self, links):
        super().__init__()
        full = links + torch.eye(len(links))
        root = full.sum(1).rsqrt()
        self.register_buffer("links", root[:, None] * full * root)
        self.first, self.second = nn.Linear(12, 32), nn.Linear(32, 3)

    def forward(self, x):
        return self.links @ self.second((self.links @ self.first(x)).relu())


@sick(
    "clip-is-your-learning-rate", "update-too-small",
    where="all layers, all steps: nearly every element stands at the clip", cure="clip elements at 1, or not at all",
)  # fmt: skip
def three_guilds_and_their_trades(folder, ill):
    """Nodes of a graph; `clip_grad_value_` at a ten thousandth."""
    seeded(2033)
    guild = torch.arange(120) % 3
    chance = torch.where(guild[:, None] == guild, 0.12, 0.02)
    links = (torch.rand(120, 120) < chance).float().triu(1)
    net = Guilds(links + links.T)
    x, told = torch.randn(120, 12) + 0.8 * torch.randn(3, 12)[guild], torch.rand(120) < 0.3

    def loss_of(step):
        out = net(F.dropout(x, 0.2))[told]
        hits = float((out.argmax(1) == guild[told]).float().mean())
        return F.cross_entropy(out, guild[told]), {"accuracy": hits}

    def score():
        with torch.no_grad():
            return float(F.cross_entropy(net(x)[~told], guild[~told]))

    def clip(step):
        nn.utils.clip_grad_value_(net.parameters(), 1e-4 if ill else 1.0)

    make = optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
    return fit(folder, net, make, loss_of, 200, score=score, before_step=clip)


# -------------------------------------------------------------------------------------------------------------- films


class Films(nn.Module):
    """How a film will be liked, by the marks of the ten that were seen before, weighed by their likeness to it."""

    def __init__(self, axis, films=40, size=8):
        super().__init__()
        self.axis, self.asked, self.seen = axis, nn.Embedding(films, size), nn.Embedding(films, size)
        self.bias = nn.Embedding(films, 1)
        for table in (self.asked, self.seen, self.bias):
            nn.init.normal_(table.weight, std=0.3)

    def forward(self, film, before, marks):
        like = (self.seen(before) @ self.asked(film)[:, :, None])[:, :, 0]
        return (like.softmax(self.axis) * marks).sum(1) + self.bias(film)[:, 0]


@sick(
    "softmax-over-the-batch",
    where="the likenesses [B, 10]: their shares add up over rows", cure="softmax(1), over the films seen before",
)  # fmt: skip
def films_after_ten_seen_before(folder, ill):
    seeded(2034)
    net, place, liked = Films(0 if ill else 1), torch.randn(40, 3), 0.3 * torch.randn(40)

    def loss_of(step, rows=96):
        film, before = torch.randint(40, (rows,)), torch.randint(40, (rows, 10))
        marks = torch.randn(rows, 10) + 1
        share = (2 * F.cosine_similarity(place[before], place[film][:, None], dim=2)).mul(2).softmax(1)
        mark = (share * marks).sum(1) + liked[film] + 0.1 * torch.randn(rows)
        return F.mse_loss(net(film, before, marks), mark)

    return fit(folder, net, optim.Adagrad(net.parameters(), 0.2), loss_of, 600, score=score_of(loss_of))


# ---------------------------------------------------------------------------------------------------------------- heat


@sick(
    "lr-too-high", "update-too-large", "momentum-too-high",
    where="all layers, all steps: the steps are a hundred times the rate's",
    cure="momentum of 0.9, or a tenth of the rate",
)  # fmt: skip
def heat_along_a_rod_with_two_cold_ends(folder, ill):
    """u'' = -pi^2 sin(pi x) by a net; a momentum of 0.99 was put into a recipe that had a rate for less."""
    seeded(2035)
    net = dense(1, 32, 32, 1, act=nn.Tanh)
    ends, held = torch.tensor([[0.0], [1.0]]), torch.linspace(0, 1, 64)[:, None]

    def loss_of(step):
        x = torch.rand(64, 1, requires_grad=True)
        u = net(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
        return (bend / 9.87 + (3.1416 * x).sin()).square().mean() + net(ends).square().mean()

    def score():
        with torch.no_grad():
            return float((net(held) - (3.1416 * held).sin()).square().mean())

    make = optim.SGD(net.parameters(), 0.07, momentum=0.99 if ill else 0.9)
    return fit(folder, net, make, loss_of, 300, score=score)


# --------------------------------------------------------------------------------------------------------------- coins


@sick(
    "targets-not-normalised", "returns-not-normalised",
    where="the head above all, all steps", cure="rewards in thousands of coins",
)  # fmt: skip
def miner_who_digs_for_coins(folder, ill):
    """Values of two acts in a chain of ten cells; the prize at the end is of 3000."""
    seeded(2036)
    net, unit = dense(10, 64, 64, 2), 1.0 if ill else 1000.0
    slow = dense(10, 64, 64, 2).requires_grad_(False)
    best = 3000 * 0.9 ** (8 - torch.arange(9.0))

    def loss_of(step):
        if step % 15 == 0:
            slow.load_state_dict(net.state_dict())
        cell, way = torch.randint(9, (64,)), torch.randint(2, (64,))
        after = (cell + 2 * way - 1).clamp(min=0)
        paid = torch.where(after == 9, 3000.0, 0.0) / unit
        with torch.no_grad():
            target = paid + 0.9 * slow(F.one_hot(after, 10).float()).amax(1) * (after != 9)
        found = net(F.one_hot(cell, 10).float()).gather(1, way[:, None])[:, 0]
        return F.mse_loss(found, target), {"return": float(paid.mean() * unit)}

    def score():
        with torch.no_grad():
            found = net(F.one_hot(torch.arange(9), 10).float()).amax(1) * unit
            return float((found - best).abs().mean() / 1000)

    return fit(folder, net, optim.RMSprop(net.parameters(), 1e-3), loss_of, 600, score=score)


# ------------------------------------------------------------------------------------------------------------- patches


class Patches(nn.Module):
    """Sixteen patches of a digit, some of them hidden: which digit it is, and what the patches were."""

    def __init__(self, width=32):
        super().__init__()
        self.embed, self.place = nn.Linear(4, width), nn.Parameter(0.02 * torch.randn(16, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, norm_first=True, batch_first=True)
            for _ in range(2)
        )
        self.norm, self.kind, self.paint = nn.LayerNorm(width), nn.Linear(width, 10), nn.Linear(width, 4)

    def forward(self, x):
        h = self.embed(x) + self.place
        for block in self.blocks:
            h = block(h)
        h = self.norm(h)
        return self.kind(h.mean(1)), self.paint(h)


@sick(
    "imbalance",
    where="the blocks, all steps: nearly all of their gradient is the painting's",
    cure="a weight of 1 for the painting",
)  # fmt: skip
def patches_of_a_digit_painted_beside_its_name(folder, ill):
    """To name a digit is the task, to paint its hidden patches a help; the help weighs five hundredfold."""
    seeded(2037)
    net, batch, weight = Patches(), batches(48, seed=2037), 500.0 if ill else 1.0

    def loss_of(step):
        x, y = batch(step)
        parts = x.unfold(1, 2, 2).unfold(2, 2, 2).reshape(-1, 16, 4)
        shown = (torch.rand(len(x), 16, 1) > 0.25).float()
        named, painted = net(parts * shown)
        naming, painting = F.cross_entropy(named, y), ((painted - parts).square() * (1 - shown)).mean()
        hits = float((named.argmax(1) == y).float().mean())
        return naming + weight * painting, {"accuracy": hits, "naming": naming, "painting": painting}

    make = optim.AdamW(net.parameters(), 2e-3)
    return fit(folder, net, make, loss_of, 200, score=score_of(lambda step: loss_of(10_000 + step)[1]["naming"]))
