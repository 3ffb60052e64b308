"""Sick trainings drawn by lot, last part: thresholds, widths of first weights, copies and masks of six nets."""

from __future__ import annotations

import math

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import fit, score_of, seeded, sick

# ------------------------------------------------------------------------------------------- members of a small society


class Graph(nn.Module):
    """Three convolutions over a dense adjacency, with dropout before each."""

    def __init__(self, size=24, width=32, kinds=4, p=0.1):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in ((size, width), (width, width), (width, kinds)))
        self.p = p

    def forward(self, x, near):
        for i, layer in enumerate(self.layers):
            x = near @ layer(F.dropout(x, self.p, self.training))
            x = F.relu(x) if i < 2 else x
        return x


@sick(
    "dropout-too-strong", "noise-dominated",
    where="before each of the three layers, all steps: nine in ten of what goes in are dropped",
    cure="p=0.1: p is what is dropped, not what is kept",
)  # fmt: skip
def societies_that_meet_at_random(folder, ill):
    seeded(812)
    kind = torch.randint(4, (160,))
    chance = torch.where(kind[:, None] == kind, 0.12, 0.03)
    edge = (torch.rand(160, 160) < chance).float().triu(1)
    edge = edge + edge.T + torch.eye(160)
    root = edge.sum(1).rsqrt()
    near = root[:, None] * edge * root
    x = torch.randn(160, 24) + 0.8 * torch.randn(4, 24)[kind]
    known = torch.rand(160) < 0.5
    net = Graph(p=0.9 if ill else 0.1)

    def score():
        net.eval()
        with torch.no_grad():
            loss = F.cross_entropy(net(x, near)[~known], kind[~known])
        net.train()
        return loss

    make = optim.Adam(net.parameters(), 5e-3, weight_decay=5e-4)
    return fit(folder, net, make, lambda step: F.cross_entropy(net(x, near)[known], kind[known]), 200, score=score)


# ------------------------------------------------------------------------------------------------------- bars that lean


class Bars(nn.Module):
    """Strided convolutions and a binary code of 16 bits, from which the angle is read."""

    def __init__(self, hard):
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(24 * 16, 16),
        )  # fmt: skip
        self.read = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 8))
        self.hard = hard

    def forward(self, x):
        h = self.convs(x)
        bits = (h > 0).float()
        if not self.hard:
            soft = h.sigmoid()
            bits = soft + (bits - soft).detach()
        return self.read(bits)


@sick(
    "no-gradient", "weights-unchanged", "dead-layer",
    where="convs, all steps: no gradient comes back through the comparison",
    cure="a straight-through estimator: the sigmoid's gradient for the bits",
)  # fmt: skip
def leaning_bars_in_sixteen_bits(folder, ill):
    seeded(813)
    net, line = Bars(hard=ill), torch.arange(16.0)

    def loss_of(step):
        kind = torch.randint(8, (48,))
        angle = (kind + 0.4 * (torch.rand(48) - 0.5)) * math.pi / 8
        at = 7.5 + 4 * (torch.rand(48, 2) - 0.5)
        y, x = line[None, :, None] - at[:, 0, None, None], line[None, None, :] - at[:, 1, None, None]
        off = x * angle.sin()[:, None, None] - y * angle.cos()[:, None, None]
        image = (-off.square() / 2).exp() + 0.3 * torch.randn(48, 16, 16)
        return F.cross_entropy(net(image[:, None]), kind)

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 300, score=score_of(loss_of))


# ------------------------------------------------------------------------------------------------ what a used car costs


class Cars(nn.Module):
    def __init__(self, makes=20, towns=15, width=96):
        super().__init__()
        self.make, self.town = nn.Embedding(makes, 8), nn.Embedding(towns, 8)
        self.body = nn.Sequential(
            nn.Linear(22, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1),
        )  # fmt: skip

    def forward(self, make, town, numbers):
        return self.body(torch.cat([self.make(make), self.town(town), numbers], 1)).squeeze(1)


def drawn_at_one(module):
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=1.0)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


def drawn_by_he(module):
    if isinstance(module, nn.Linear):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        nn.init.zeros_(module.bias)


@sick(
    "bad-initialisation", "exploding",
    where="all layers of body, from the first step: weights of deviation 1 at a fan-in of 96, predictions of hundreds",
    cure="He's initialisation, a deviation of the root of two over the fan-in",
)  # fmt: skip
def second_hand_cars_by_make_and_town(folder, ill):
    seeded(814)
    net, worth, rich = Cars(), 0.6 * torch.randn(20), 0.3 * torch.randn(15)
    net.apply(drawn_at_one if ill else drawn_by_he)

    def loss_of(step):
        make, town, x = torch.randint(20, (96,)), torch.randint(15, (96,)), torch.randn(96, 6)
        price = worth[make] + rich[town] - 0.5 * x[:, 0] + 0.4 * x[:, 1] * x[:, 2] + 0.1 * torch.randn(96)
        return F.mse_loss(net(make, town, x), price)

    return fit(folder, net, optim.AdamW(net.parameters(), 2e-3), loss_of, 400, score=score_of(loss_of))


# ------------------------------------------------------------------------------------------- what a microphone takes up


@sick(
    "saturated", "inputs-not-normalised", "vanishing", "dead-layer",
    where="the first layer, all steps: its tanh is at -1 or 1 for all rows, hardly any gradient comes back",
    cure="standardise the readings: they are counts of a converter of twelve bits, around 2,048",
)  # fmt: skip
def counts_of_a_converter_cleaned(folder, ill):
    seeded(815)
    net = nn.Sequential(
        nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 10), nn.Tanh(), nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 32)
    )
    at = torch.linspace(0, 1, 32)

    def loss_of(step):
        rate, phase, size = 1 + 2 * torch.rand(64, 1), 6.2832 * torch.rand(64, 1), 0.5 + torch.rand(64, 1)
        clean = size * (6.2832 * rate * at + phase).sin()
        noisy = clean + 0.3 * torch.randn(64, 32)
        counts = (2048 + 600 * noisy).round().clamp(0, 4095)
        return F.mse_loss(net(counts if ill else (counts - 2048) / 600), clean)

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 500, score=score_of(loss_of))


# --------------------------------------------------------------------------------------------- solids from their points


class Solids(nn.Module):
    """Points one by one, their maximum, and beside it how wide the cloud is."""

    def __init__(self, copied):
        super().__init__()
        self.point = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 12))
        self.head = nn.Sequential(nn.Linear(13, 48), nn.ReLU(), nn.Linear(48, 5))
        self.copied = copied

    def forward(self, clouds):
        rows = [torch.cat([self.point(cloud).amax(0), cloud.std().view(1)]) for cloud in clouds]
        pooled = torch.tensor([row.tolist() for row in rows]) if self.copied else torch.stack(rows)
        return self.head(pooled)


def clouds_of_points(batch=24):
    """Spheres, cubes, cylinders, octahedra and tetrahedra-like clouds of 40 to 64 points, turned about one axis."""
    kind, clouds = torch.randint(5, (batch,)), []
    for k in kind.tolist():
        p = torch.randn(int(torch.randint(40, 65, ())), 3)
        unit = p / p.norm(dim=1, keepdim=True)
        high = p.tanh()[:, 2:]
        p = (
            unit,
            p / p.abs().amax(1, keepdim=True),
            torch.cat([p[:, :2] / p[:, :2].norm(dim=1, keepdim=True), high], 1),
            p / p.abs().sum(1, keepdim=True),
            torch.cat([unit[:, :2] * (1 - high.abs()), high], 1),
        )[k]
        turn = 6.2832 * torch.rand(())
        c, s = turn.cos(), turn.sin()
        about = torch.stack([torch.stack([c, -s]), torch.stack([s, c])])
        p = torch.cat([p[:, :2] @ about, p[:, 2:]], 1)
        clouds.append(p / p.std() + 0.05 * torch.randn_like(p))
    return clouds, kind


@sick(
    "no-gradient", "weights-unchanged", "dead-layer", "detached",
    where="point.0 and point.2, all steps: torch.tensor makes a copy without a graph",
    cure="torch.stack of the rows in the place of torch.tensor of their lists",
)  # fmt: skip
def solids_from_their_points(folder, ill):
    seeded(816)
    net = Solids(copied=ill)

    def loss_of(step):
        clouds, kind = clouds_of_points()
        return F.cross_entropy(net(clouds), kind)

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 240, score=score_of(loss_of))


# -------------------------------------------------------------------------------------------------- digits put in order


class Sorter(nn.Module):
    """A GRU reads the digits, another says them in order; 0 fills up, 1 begins, 2 to 11 are the digits."""

    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Embedding(12, 24, padding_idx=0)
        self.reader, self.writer = nn.GRU(24, width, batch_first=True), nn.GRU(24, width, batch_first=True)
        self.head = nn.Linear(width, 12)

    def forward(self, x, said):
        state = self.reader(self.embed(x))[1]
        return self.head(self.writer(self.embed(said), state)[0])


@sick(
    "padding-in-loss", "mask-inverted", "only-padding-in-loss",
    where="the loss: its targets are all 0 (padding), it falls to nothing at once; all gradients die with it",
    cure="weigh by the mask of real places; `mask` is True where there is padding",
)  # fmt: skip
def few_digits_brought_into_their_order(folder, ill):
    seeded(817)
    net = Sorter()

    def each():
        digits, length = torch.randint(2, 12, (64, 7)), torch.randint(3, 8, (64, 1))
        gone = torch.arange(7) >= length
        ordered = digits.masked_fill(gone, 99).sort(1).values.masked_fill(gone, 0)
        # The reader gets them from the right, so that padding comes first.
        said = F.pad(ordered[:, :-1], (1, 0), value=1)
        logits = net(digits.masked_fill(gone, 0).flip(1), said)
        return F.cross_entropy(logits.transpose(1, 2), ordered, reduction="none"), gone

    def loss_of(step):
        loss, mask = each()
        weight = mask.float() if ill else 1 - mask.float()
        return (loss * weight).sum() / weight.sum().clamp(min=1)

    def real(step):
        loss, mask = each()
        return loss[~mask].mean()

    return fit(folder, net, optim.Adam(net.parameters(), 4e-3), loss_of, 300, score=score_of(real))
