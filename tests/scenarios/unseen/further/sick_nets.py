"""Sick trainings drawn by lot, first part: data, losses, shapes and weights at the start of six nets."""

from __future__ import annotations

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick

# ------------------------------------------------------------------------------------ how readily a molecule dissolves


class Messages(nn.Module):
    """Three rounds of messages between atoms that are bound, a sum over the atoms, a head."""

    def __init__(self, size=6, width=32):
        super().__init__()
        self.lift = nn.Linear(size, width)
        self.tells = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.keeps = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.head = dense(width, width, 1)

    def forward(self, atoms, bonds):
        h = self.lift(atoms).relu()
        share = bonds / bonds.sum(2, keepdim=True).clamp(min=1)
        for tell, keep in zip(self.tells, self.keeps, strict=True):
            h = (keep(h) + share @ tell(h)).relu()
        return self.head(h.mean(1)).squeeze(1)


def molecules(batch=64, atoms=9, size=6):
    """`draw()`: atoms with descriptors, which of them are bound, their solubility; one descriptor in twelve is -999."""
    own, near = torch.randn(size) / size**0.5, torch.randn(size) / size**0.5

    def draw():
        x = torch.randn(batch, atoms, size)
        bonds = torch.rand(batch, atoms, atoms).triu(1) < 0.3
        bonds = (bonds | bonds.transpose(1, 2)).float()
        share = bonds / bonds.sum(2, keepdim=True).clamp(min=1)
        y = ((x @ own) + (share @ x) @ near).tanh().mean(1) * 4
        return x.masked_fill(torch.rand(x.shape) < 1 / 12, -999.0), bonds, y

    return draw


@sick(
    "inputs-not-normalised", "activation-outlier", "missing-values-as-numbers",
    where="the inputs of lift: values of -999 beside a spread of 1, in each batch; lift.weight, all steps",
    cure="-999 says that a descriptor is missing: put the column's mean (zero) in its place",
)  # fmt: skip
def solubility_from_a_databank_of_molecules(folder, ill):
    seeded(2000)
    net, draw = Messages(), molecules()

    def loss_of(step):
        x, bonds, y = draw()
        if not ill:
            x = x.masked_fill(x == -999.0, 0.0)
        return F.mse_loss(net(x, bonds), y)

    make = optim.RMSprop(net.parameters(), 1e-3)
    return fit(folder, net, make, loss_of, 400, score=score_of(loss_of))


# ------------------------------------------------------------------------------------------ what a house was sold for


def sales(batch=128, years=12):
    """`draw()`: houses, their prices (the logarithm, standardised) in the years in which they were sold, else zero."""
    worth, trend = torch.randn(10, 3) / 10**0.5, torch.randn(3, years)

    def draw():
        house = torch.randn(batch, 10)
        price = 0.6 * (house @ worth).tanh() @ trend + 0.1 * torch.randn(batch, years)
        sold = torch.rand(batch, years) < 0.15
        return house, price * sold, sold

    return draw


@sick(
    "padding-in-loss",
    where="the loss: six in seven of its terms are years without a sale whose price is filled up with zero",
    cure="the loss over the years with a sale alone",
)  # fmt: skip
def prices_of_houses_in_twelve_years(folder, ill):
    seeded(2001)
    net, draw = dense(10, 64, 64, 12, norm=nn.BatchNorm1d), sales()

    def loss_of(step, every=ill):
        house, price, sold = draw()
        gap = (net(house) - price).square()
        return gap.mean() if every else (gap * sold).sum() / sold.sum()

    score = score_of(lambda step: loss_of(step, every=False))
    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 400, score=score)


# ------------------------------------------------------------------------------------------------ where the beak is


def birds(batch=8, size=12):
    """A cross on noise among two squares, and a heat map with a peak of 1 where the cross is."""
    axis = torch.arange(size)
    images = 0.2 * torch.randn(batch, 1, size, size)
    at = torch.randint(1, size - 1, (batch, 2))
    for image, (i, j) in zip(images[:, 0], at.tolist(), strict=True):
        for a, b in torch.randint(0, size - 3, (2, 2)).tolist():
            image[a : a + 3, b : b + 3] += 0.7
        image[i - 1 : i + 2, j] += 1.0
        image[i, j - 1 : j + 2] += 1.0
    away = (axis[:, None] - at[:, 0, None, None]).square() + (axis - at[:, 1, None, None]).square()
    return images, (-away / 2.0).exp()[:, None]


@sick(
    "scaled-gradients", "update-too-small",
    where="all layers: gradients and steps of an eighth of what the rate was chosen for, all steps",
    cure="divide by the eight micro batches once: either the loss or the gradients before the step",
)  # fmt: skip
def beak_of_a_bird_by_its_heat_map(folder, ill):
    seeded(2002)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 1, 3, padding=1),
    )  # fmt: skip
    parts = 8

    def error(step):
        x, y = birds()
        return F.mse_loss(net(x), y)

    def averaged(step):
        if ill:
            for p in net.parameters():
                p.grad /= parts

    make = optim.SGD(net.parameters(), 0.3, momentum=0.9)
    return fit(
        folder, net, make, lambda step: error(step) / parts, 110,
        score=score_of(error, 32), accumulate=parts, before_step=averaged,
    )  # fmt: skip


# --------------------------------------------------------------------------------------- which page answers a question


def found_pages(batch=96, size=24):
    """`draw()`: the features of two pages, and of which the better comes first."""
    look = torch.randn(size, 4) / size**0.5

    def worth(x):
        return (x @ look).sin().sum(1)

    def draw():
        a, b = torch.randn(batch, size), torch.randn(batch, size)
        better = (worth(a) + 0.2 * torch.randn(batch) > worth(b))[:, None]
        return torch.where(better, a, b), torch.where(better, b, a)

    return draw


@sick(
    "bad-initialisation", "saturated",
    where="all layers at the start: weights of a spread of 1 into 24 to 64 units, tanh at its ends",
    cure="the layers' own initialisation, whose spread falls with the root of the inputs' number",
)  # fmt: skip
def which_page_answers_a_question(folder, ill):
    seeded(2003)
    net, draw = dense(24, 64, 64, 64, 1, act=nn.Tanh), found_pages()
    if ill:
        for p in net.parameters():
            nn.init.normal_(p)

    def loss_of(step):
        better, worse = draw()
        gap = (net(better) - net(worse)).squeeze(1)
        return F.softplus(-gap).mean(), {"accuracy": (gap > 0).float().mean()}

    make = optim.RMSprop(net.parameters(), 1e-3)
    return fit(folder, net, make, loss_of, 500, score=score_of(lambda step: loss_of(step)[0]))


# --------------------------------------------------------------------------------------------- what a member is keen on


class Circles(nn.Module):
    """Two rounds over the neighbours' means; whether a node has each of six labels."""

    def __init__(self, size=16, width=48, labels=6, shares=False):
        super().__init__()
        self.first, self.second = nn.Linear(size, width), nn.Linear(width, labels)
        self.end = nn.Sigmoid() if shares else nn.Identity()

    def forward(self, x, mix):
        return self.end(mix @ self.second((mix @ self.first(x)).relu()))


@sick(
    "softmax-twice", "logits-bounded",
    where="the last layer: its logits pass through a sigmoid before a loss that takes logits: they lie in 0 and 1",
    cure="no sigmoid in the model: binary_cross_entropy_with_logits has its own",
)  # fmt: skip
def members_of_a_club_and_what_they_are_keen_on(folder, ill):
    seeded(2004)
    nodes, labels = 240, 6
    circle = torch.randint(8, (nodes,))
    likes = (torch.rand(8, labels) < 0.25).float()[circle]
    tie = torch.rand(nodes, nodes) < torch.where(circle[:, None] == circle, 0.2, 0.01)
    tie = (tie | tie.T).float() + torch.eye(nodes)
    mix = tie / tie.sum(1, keepdim=True)
    x = torch.randn(8, 16)[circle] + 1.5 * torch.randn(nodes, 16)
    known = torch.arange(nodes) < nodes // 2
    net = Circles(shares=ill)

    def error(of):
        return F.binary_cross_entropy_with_logits(net(x, mix)[of], likes[of])

    make = optim.Adam(net.parameters(), 1e-2, weight_decay=5e-4)
    return fit(folder, net, make, lambda step: error(known), 200, score=score_of(lambda step: error(~known), 1))


# ------------------------------------------------------------------------------------------------- cells under a lens


class Unet(nn.Module):
    """Down once, up once, with a way past the middle."""

    def __init__(self, width=8):
        super().__init__()
        self.into = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU())
        self.down = nn.Sequential(nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.ReLU())
        self.middle = nn.Sequential(nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.out = nn.Sequential(nn.Conv2d(2 * width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 1, 1))

    def forward(self, x):
        wide = self.into(x)
        return self.out(torch.cat([wide, self.up(self.middle(self.down(wide)))], 1))


def cells(batch=16, size=16):
    """Three discs on noise, and which pixels are theirs: `[B, 1, H, W]` and `[B, H, W]`."""
    axis = torch.arange(size)
    at = torch.rand(batch, 3, 2) * size
    away = (axis[:, None] - at[..., 0, None, None]).square() + (axis - at[..., 1, None, None]).square()
    inside = (away < 7.0).any(1).float()
    return (inside + 0.5 * torch.randn(batch, size, size))[:, None], inside


@sick(
    "shapes-broadcast",
    where="the loss: [B, 1, H, W] against [B, H, W] gives [B, B, H, W], each image against the masks of all",
    cure="squeeze the channel of the prediction",
)  # fmt: skip
def cells_in_sixteen_fields_of_view(folder, ill):
    seeded(2005)
    net = Unet()

    def focal(squeeze):
        x, y = cells()
        p = net(x).sigmoid().clamp(1e-6, 1 - 1e-6)
        p = p.squeeze(1) if squeeze else p
        right = p * y + (1 - p) * (1 - y)
        return -((1 - right).square() * right.log()).mean()

    make = optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, make, lambda step: focal(not ill), 250, score=score_of(lambda step: focal(True)))
