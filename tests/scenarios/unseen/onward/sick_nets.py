"""Birdsong, molecules, buses, signs, canal locks and recipes: shapes, losses, scales and labels."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import rounds

# ---------------------------------------------------------------------------------------------------------- birdsong


def calls(count, lift):
    """Spectrograms of calls and how long each call is, about -1 to 1."""
    length = 2 * torch.rand(count) - 1
    moment = torch.linspace(-1, 1, 48)
    sounding = torch.sigmoid(12 * (length[:, None] - moment))
    return sounding[:, None] * lift[:, None] + 0.3 * torch.randn(count, len(lift), 48), length


@sick(
    "shapes-broadcast",
    where="the loss at every step: guesses of [48, 1] meet lengths of [48], and each guess is pulled to their mean",
    cure="give the lengths the guesses' shape",
)
def lengths_of_birdsong_calls(folder, ill):
    seeded(2101)
    lift = torch.rand(12)
    songs, lengths = calls(256, lift)
    net = nn.Sequential(
        nn.Conv1d(12, 24, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool1d(4),
        nn.Conv1d(24, 24, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24 * 12, 1),
    )
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def loss_of(step):
        song, length = calls(48, lift)
        return F.mse_loss(net(song), length if ill else length[:, None])

    def score():
        with torch.no_grad():
            return float((net(songs)[:, 0] - lengths).square().mean())

    return fit(folder, net, optimizer, loss_of, 300, score=score)


# ---------------------------------------------------------------------------------------------------------- molecules


class Bonds(nn.Module):
    """Two rounds of messages between atoms, their sum, and what the molecule is."""

    def __init__(self, kinds, classes, width=48, last=None):
        super().__init__()
        self.atom = nn.Embedding(kinds, width)
        self.own = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.near = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(2))
        self.read = nn.Linear(width, classes)
        self.last = last or nn.Identity()

    def forward(self, atoms, bonds):
        h = self.atom(atoms)
        for own, near in zip(self.own, self.near, strict=True):
            h = F.relu(own(h) + near(bonds @ h / 2))
        return self.last(self.read(h.mean(1)))


def molecules(count, classes=10):
    """Atoms, bonds, and a class by the rare bonds between the first two kinds of atoms and by the rest of the atoms."""
    atoms = torch.randint(5, (count, 14))
    bonds = (torch.rand(count, 14, 14) < 0.15).float().triu(1)
    bonds = bonds + bonds.mT
    first, second = (atoms == 0).float(), (atoms == 1).float()
    between = (first[:, :, None] * bonds * second[:, None]).sum((1, 2))
    many = (atoms == 2).sum(1) + (atoms == 3).sum(1)
    return atoms, bonds, (2 * (many - 3)).clamp(0, classes - 2) + (between > 0).long()


@sick(
    "softmax-twice",
    "logits-bounded",
    where="the output: shares instead of logits enter the cross-entropy, which cannot fall below 1.46",
    cure="hand the cross-entropy the logits",
)
def families_of_small_molecules(folder, ill):
    seeded(2102)
    *held, families = molecules(512)
    net = Bonds(5, 10, last=nn.Softmax(1) if ill else None)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def loss_of(step):
        atoms, bonds, family = molecules(64)
        out = net(atoms, bonds)
        return F.cross_entropy(out, family), {"accuracy": float((out.argmax(1) == family).float().mean())}

    def score():
        with torch.no_grad():
            return float((net(*held).argmax(1) != families).float().mean())

    return fit(folder, net, optimizer, loss_of, 600, score=score)


# --------------------------------------------------------------------------------------------------------------- buses


def journeys(count):
    """Second of the day, metres run, passengers, rain, stops made; and the delay in minutes about its mean."""
    second, metres = 86400 * torch.rand(count), 14000 * torch.rand(count)
    people, rain = 80 * torch.rand(count), (torch.rand(count) < 0.3).float()
    stops = (metres / 450).floor()
    rush = (-((second / 3600 - 8) / 1.5).square()).exp() + (-((second / 3600 - 17.5) / 2).square()).exp()
    delay = 2.5 * rush * (0.5 + people / 80) + rain * metres / 14000 + 0.1 * torch.randn(count)
    return torch.stack([second, metres, people, rain, stops], 1), (delay - 1)[:, None]


@sick(
    "inputs-not-normalised",
    where="the first layer: seconds and metres in the ten thousands beside a zero or one for rain",
    cure="standardise each column by the training rows",
)
def delays_along_a_bus_route(folder, ill):
    seeded(2103)
    x, y = journeys(2000)
    held_x, held_y = journeys(500)
    if not ill:
        held_x = (held_x - x.mean(0)) / x.std(0)
        x = (x - x.mean(0)) / x.std(0)
    net, draw = dense(5, 64, 64, 1), rounds(64, x, y)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)

    def loss_of(step):
        rows, delay = draw()
        return F.smooth_l1_loss(net(rows), delay)

    def score():
        with torch.no_grad():
            return float(F.smooth_l1_loss(net(held_x), held_y))

    return fit(folder, net, optimizer, loss_of, 700, score=score)


# --------------------------------------------------------------------------------------------------------------- signs


class Tagger(nn.Module):
    """Names a sign for each frame of hand positions."""

    def __init__(self, size, signs, width=32):
        super().__init__()
        self.frames = nn.GRU(size, width, batch_first=True)
        self.signs = nn.Linear(width, signs)

    def forward(self, hands):
        return self.signs(self.frames(hands)[0])


def signing(count, poses, longest=60):
    """Frames of several signs in a row, the sign of each frame (0 after the end), and which frames are real."""
    signs = torch.randint(1, len(poses), (count, longest // 3)).repeat_interleave(3, 1)
    real = torch.arange(longest) < torch.randint(4, 9, (count,))[:, None]
    frames = poses[signs] + 0.6 * torch.randn(count, longest, poses.shape[1])
    return frames * real[..., None], signs * real, real


@sick(
    "padding-in-loss",
    "class-imbalance",
    where="the loss: nine frames in ten are padding with the sign 0, and their mean hides the real ones",
    cure="leave the padded frames out of the loss (ignore_index)",
)
def glosses_of_signed_sentences(folder, ill):
    seeded(2104)
    poses = torch.randn(9, 10)
    frames, signs, real = signing(120, poses)
    net = Tagger(10, 9)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)

    def loss_of(step):
        hands, sign, _ = signing(16, poses)
        return F.cross_entropy(net(hands).flatten(0, 1), sign.flatten(), ignore_index=-100 if ill else 0)

    def score():
        with torch.no_grad():
            return float(F.cross_entropy(net(frames)[real], signs[real]))

    return fit(folder, net, optimizer, loss_of, 180, score=score)


# --------------------------------------------------------------------------------------------------------- canal locks


class Basin(nn.Module):
    """Reads a day of gate openings and boats and tells the water that was let through."""

    def __init__(self):
        super().__init__()
        self.day = nn.GRU(3, 32, batch_first=True)
        self.water = nn.Linear(32, 1)

    def forward(self, day):
        return self.water(self.day(day)[1][0])[:, 0]


def days(count):
    """Twenty-four hours of opening, head and boats, and the cubic metres of the day."""
    opening, head, boats = (torch.rand(count, 24) for _ in range(3))
    metres = 1500 * (opening * head.sqrt()).sum(1) + 700 * boats.sum(1) + 3000
    return 2 * torch.stack([opening, head, boats], 2) - 1, metres


@sick(
    "targets-not-normalised",
    where="the loss in hundreds of millions and the last bias, which climbs by the learning rate at each step",
    cure="train on the standardised cubic metres",
)
def water_through_canal_locks(folder, ill):
    seeded(2105)
    held, metres = days(300)
    middle, spread = metres.mean(), metres.std()
    net = Basin()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def loss_of(step):
        day, water = days(48)
        return F.mse_loss(net(day), water if ill else (water - middle) / spread)

    def score():
        with torch.no_grad():
            guess = net(held) if ill else net(held) * spread + middle
            return float(((guess - metres) / spread).square().mean())

    return fit(folder, net, optimizer, loss_of, 400, score=score)


# ------------------------------------------------------------------------------------------------------------- recipes


class Pairing(nn.Module):
    """How well two ingredients go together."""

    def __init__(self, ingredients, width=24):
        super().__init__()
        self.ingredient = nn.Embedding(ingredients, width)
        self.judge = dense(3 * width, 48, 1)

    def forward(self, one, other):
        a, b = self.ingredient(one), self.ingredient(other)
        return self.judge(torch.cat([a + b, a * b, (a - b).abs()], 1))[:, 0]


@sick(
    "class-imbalance",
    "class-weights-inverted",
    where="the loss: one pair in twenty is a good one, and those few are weighted down twentyfold",
    cure="weight the good pairs by how many bad ones there are for each, not by the inverse",
)
def ingredients_that_go_together(folder, ill):
    seeded(2106)
    flavour = torch.randn(60, 3)
    affinity = flavour @ flavour.T
    good = (affinity > affinity.quantile(0.95)).float()
    net = Pairing(60)
    share = float(good.mean())
    weight = torch.tensor(share / (1 - share) if ill else (1 - share) / share)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
    every = torch.cartesian_prod(torch.arange(60), torch.arange(60))
    together = good[every[:, 0], every[:, 1]]

    def loss_of(step):
        one, other = torch.randint(60, (2, 128))
        return F.binary_cross_entropy_with_logits(net(one, other), good[one, other], pos_weight=weight)

    def score():
        with torch.no_grad():
            found = (net(every[:, 0], every[:, 1]) > 0).float()
        missed, wrong = 1 - found[together > 0].mean(), found[together == 0].mean()
        return float(missed + wrong) / 2

    return fit(folder, net, optimizer, loss_of, 600, score=score)
