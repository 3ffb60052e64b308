"""Hides, flares, soils, rails and perfumes: attention, pictures, words and graphs."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, rounds

# ---------------------------------------------------------------------------------------------------------------- hides


def hides(count):
    """Patches `[N, 16, 16]` of a scanned skin, and its flaw: none, a tick's bite, a scratch or a fold."""
    flaw, across, down = torch.randint(4, (count,)), *torch.meshgrid(torch.arange(16), torch.arange(16), indexing="xy")
    x, y, slope = (torch.rand(count, 1, 1) for _ in range(3))
    bite = -2.5 * torch.exp(-((across - 16 * x) ** 2 + (down - 16 * y) ** 2) / 3)
    scratch = -2.0 * ((across - 3 - 8 * x - slope * down * 0.5).abs() < 0.8)
    fold = 1.2 * torch.exp(-((down - 2 - 12 * y - (slope - 0.5) * across * 0.4) ** 2) / 6)
    marks = torch.stack([torch.zeros_like(bite), bite, scratch, fold], 1)
    skin = marks[torch.arange(count), flaw] + 0.5 * torch.randn(count, 16, 16)
    return F.unfold(skin[:, None], 4, stride=4).transpose(1, 2), flaw


class Inspector(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.lift = nn.Linear(16, width)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(0.02 * torch.randn(1, 17, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(width, 4)

    def forward(self, patches):
        tokens = torch.cat([self.cls.expand(len(patches), -1, -1), self.lift(patches)], 1)
        return self.head(self.encoder(tokens + self.place)[:, 0])


@healthy()
def flaws_of_hides_at_the_tannery(folder):
    seeded(2692)
    (x, y), (x_test, y_test) = hides(2000), hides(400)
    net, draw = Inspector(), rounds(32, x, y)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def loss_of(step):
        patches, flaws = draw()
        logits = net(patches)
        return F.cross_entropy(logits, flaws), {"accuracy": float((logits.argmax(1) == flaws).float().mean())}

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.cross_entropy(net(x_test), y_test)))


# --------------------------------------------------------------------------------------------------------- solar flares


def magnetograms(count):
    """Pictures `[N, 1, 16, 16]` of an active region: a bright pole, a dark one, and the quiet sun."""
    grid = torch.stack(torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="xy"), -1)
    middle, tilt = torch.rand(count, 2) - 0.5, 6.2832 * torch.rand(count)
    reach = (0.25 + 0.25 * torch.rand(count, 1)) * torch.stack([tilt.cos(), tilt.sin()], 1)
    size = 0.05 + 0.1 * torch.rand(count, 1, 1)

    def pole(at):
        return torch.exp(-(grid - at[:, None, None]).square().sum(-1) / size)

    return (pole(middle + reach) - pole(middle - reach) + 0.03 * torch.randn(count, 16, 16))[:, None]


@healthy()
def active_regions_before_solar_flares(folder):
    seeded(2693)
    pictures, later = magnetograms(1500), magnetograms(300)
    encoder = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(256, 16),
    )  # fmt: skip
    decoder = nn.Sequential(
        nn.Linear(16, 256), nn.ReLU(), nn.Unflatten(1, (16, 4, 4)),
        nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1), nn.ReLU(), nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1),
    )  # fmt: skip
    net, draw = nn.Sequential(encoder, decoder), rounds(32, pictures)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def loss_of(step):
        (batch,) = draw()
        return F.mse_loss(net(batch), batch)

    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, lambda: F.mse_loss(net(later), later)))


# ----------------------------------------------------------------------------------------------------------- soil cores

HORIZONS, FAMILIES = 40, 8


def layers_of_cores(cores, depth):
    """Kinds of the layers down each core; a core stays in a family of kinds and seldom changes it."""
    family, kinds = torch.randint(FAMILIES, (cores,)), []
    for _ in range(depth):
        moves = torch.rand(cores) < 0.1
        family = torch.where(moves, torch.randint(FAMILIES, (cores,)), family)
        kinds.append(family + FAMILIES * torch.randint(HORIZONS // FAMILIES, (cores,)))
    return torch.stack(kinds, 1)


def neighbours(kinds):
    """Pairs of a layer and one that lies at most two above or below."""
    pairs = [torch.stack([kinds[:, gap:].flatten(), kinds[:, :-gap].flatten()], 1) for gap in (1, 2)]
    return torch.cat([*pairs, *(pair.flip(1) for pair in pairs)])


class SkipGram(nn.Module):
    def __init__(self, kinds, width):
        super().__init__()
        self.centre, self.context = nn.Embedding(kinds, width), nn.Embedding(kinds, width)
        nn.init.uniform_(self.centre.weight, -0.5 / width, 0.5 / width)
        nn.init.zeros_(self.context.weight)

    def forward(self, pairs, others):
        here = self.centre(pairs[:, 0])
        near = (here * self.context(pairs[:, 1])).sum(1)
        far = torch.einsum("bd,bnd->bn", here, self.context(others))
        return -(F.logsigmoid(near) + F.logsigmoid(-far).sum(1)).mean()


@healthy()
def soil_horizons_by_the_company_they_keep(folder):
    seeded(2694)
    pairs, later = (neighbours(layers_of_cores(cores, 12)) for cores in (300, 60))
    net, draw = SkipGram(HORIZONS, 16), rounds(128, pairs)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)

    def loss_of(rows):
        return net(rows, torch.randint(HORIZONS, (len(rows), 5)))

    score = held_out(net, lambda: loss_of(later))
    return fit(folder, net, optimizer, lambda step: loss_of(draw()[0]), 600, score=score)


# ----------------------------------------------------------------------------------------------------------- tram lines


def streets(count):
    """Aerial pictures `[N, 3, 32, 32]` with a curve of rails, lane marks and parked cars; the mask of the rails."""
    across, down = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="xy")
    start, slope, bend = (torch.rand(count, 1, 1) for _ in range(3))
    line = 6 + 20 * start + (slope - 0.5) * (down - 16) + (bend - 0.5) * 0.05 * (down - 16) ** 2
    mask = ((across - line).abs() < 1.6).float()
    mark = ((across - 32 * torch.rand(count, 1, 1)).abs() < 1) & (down % 6 < 3)
    car = ((across - 32 * torch.rand(count, 1, 1)).abs() < 3) & ((down - 32 * torch.rand(count, 1, 1)).abs() < 4)
    light = torch.stack([0.4 + 0.3 * mask, 0.4 + 0.2 * mask + 0.3 * mark, 0.4 + 0.3 * mark + 0.3 * car], 1)
    return ((light - 0.45) / 0.15 + 0.8 * torch.randn(count, 3, 32, 32)), mask[:, None]


def double(came, gone):
    return nn.Sequential(
        nn.Conv2d(came, gone, 3, padding=1), nn.BatchNorm2d(gone), nn.ReLU(),
        nn.Conv2d(gone, gone, 3, padding=1), nn.BatchNorm2d(gone), nn.ReLU(),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.top, self.middle, self.bottom = double(3, width), double(width, 2 * width), double(2 * width, 4 * width)
        self.up_one = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.up_two = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.join_one, self.join_two = double(4 * width, 2 * width), double(2 * width, width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        top = self.top(x)
        middle = self.middle(F.max_pool2d(top, 2))
        low = self.bottom(F.max_pool2d(middle, 2))
        low = self.join_one(torch.cat([self.up_one(low), middle], 1))
        return self.head(self.join_two(torch.cat([self.up_two(low), top], 1)))


def dice(logits, mask):
    found = logits.sigmoid()
    return (2 * (found * mask).sum() + 1) / (found.sum() + mask.sum() + 1)


@healthy()
def rails_of_the_tram_from_above(folder):
    seeded(2695)
    (x, y), (x_test, y_test) = streets(400), streets(64)
    net, draw = UNet(), rounds(8, x, y)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def loss(logits, mask):
        return F.binary_cross_entropy_with_logits(logits, mask) + 1 - dice(logits, mask)

    def loss_of(step):
        picture, mask = draw()
        logits = net(picture)
        return loss(logits, mask), {"dice": float(dice(logits, mask).detach())}

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: loss(net(x_test), y_test)))


# ------------------------------------------------------------------------------------------------------------- perfumes

ATOMS = torch.tensor([0.5, 0.25, 0.15, 0.1])
NOTES = ((1, 2), (0, 3), (1, 1))


def molecules(count, size=10):
    """Trees of atoms of four kinds `[N, size, 4]`, their bonds `[N, size, size]`; three notes that bonds bring."""
    kinds = torch.multinomial(ATOMS, count * size, replacement=True).view(count, size)
    bonds = torch.zeros(count, size, size)
    for atom in range(1, size):
        to = (torch.rand(count) * atom).long()
        bonds[torch.arange(count), atom, to] = bonds[torch.arange(count), to, atom] = 1
    atoms = F.one_hot(kinds, 4).float()
    met = atoms.transpose(1, 2) @ bonds @ atoms
    return atoms, bonds, torch.stack([met[:, a, b] > 0 for a, b in NOTES], 1).float()


class MessagePassing(nn.Module):
    def __init__(self, width=48, rounds_of_talk=3):
        super().__init__()
        self.lift = nn.Linear(4, width)
        self.talk = nn.ModuleList(dense(2 * width, width, width) for _ in range(rounds_of_talk))
        self.head = dense(width, width, 3)

    def forward(self, atoms, bonds):
        state = self.lift(atoms)
        for talk in self.talk:
            state = state + talk(torch.cat([state, bonds @ state], 2))
        return self.head(state.mean(1))


@healthy()
def notes_of_perfume_molecules(folder):
    seeded(2696)
    train, test = molecules(3000), molecules(500)
    net, draw = MessagePassing(), rounds(64, *train)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def loss(atoms, bonds, notes):
        return F.binary_cross_entropy_with_logits(net(atoms, bonds), notes)

    return fit(folder, net, optimizer, lambda step: loss(*draw()), 600, score=held_out(net, lambda: loss(*test)))
