"""Six sick trainings: trams, blood, lichens, scents, railway sleepers and a fish auction."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, tend

# ---------------------------------------------------------------------------------------------------------------- trams


def tram_runs(rows, signals=16):
    """What a tram met at each signal, `[rows, signals, 4]`, and its delay in minutes at the terminus."""
    aspect = torch.randint(3, (rows, signals))
    stand = torch.rand(rows, signals) * (aspect == 2)
    broken = (torch.rand(rows, signals) < 0.004) * (20 + 60 * torch.rand(rows, signals))
    delay = torch.zeros(rows)
    for at in range(signals):
        delay = (delay + stand[:, at] + broken[:, at] - 0.2).clamp(min=0)
    seen = torch.cat([F.one_hot(aspect, 3).float(), (stand + broken).log1p()[..., None]], 2)
    return seen, delay


@sick(
    "clip-after-step",
    "clip-inert",
    "exploding",
    where="all layers, from the first trams that broke down on: gradients of large norm are applied before the clip",
    cure="clip_grad_norm_ between backward and step",
)
def signals_of_a_tram_line(folder, ill):
    seeded(2280)
    net = nn.ModuleDict({"ride": nn.GRU(4, 32, batch_first=True), "delay": nn.Linear(32, 1)})
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    kept = tram_runs(512)

    def minutes(seen):
        return net["delay"](net["ride"](seen)[0][:, -1])[:, 0]

    def loss_of(step):
        seen, delay = tram_runs(48)
        return F.mse_loss(minutes(seen), delay)

    @torch.no_grad()
    def score():
        return float((minutes(kept[0]) - kept[1]).abs().mean())

    hooks = {"after_step" if ill else "before_step": clipped(net, 1.0)}
    return fit(folder, net, optimizer, loss_of, 300, score=score, **hooks)


# ---------------------------------------------------------------------------------------------------------------- blood


@sick(
    "accumulation-wiped",
    where="all layers at every step: of four micro-batches only the last one's gradients reach the optimizer",
    cure="zero_grad once per step, before the first micro-batch",
)
def stocks_of_a_blood_bank(folder, ill):
    seeded(2281)
    groups, days = 4, 14
    rhythm = torch.randn(groups, days) / days**0.5
    net = dense(days + groups, 64, 64, 1)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def ledger(group, rows):
        past = torch.randn(rows, days)
        label = F.one_hot(torch.full((rows,), group), groups).float()
        return torch.cat([past, label], 1), (past @ rhythm[group] * 2).tanh()

    kept = [ledger(group, 256) for group in range(groups)]

    def error(book):
        past, need = book
        return F.mse_loss(net(past)[:, 0], need)

    def one(step):
        total = 0.0
        for group in range(groups):
            if ill or group == 0:
                optimizer.zero_grad()
            loss = error(ledger(group, 32)) / groups
            loss.backward()
            total += float(loss.detach())
        optimizer.step()
        return {"loss": total}

    @torch.no_grad()
    def score():
        return sum(float(error(book)) for book in kept) / groups

    return tend(folder, net, optimizer, one, 450, score)


# -------------------------------------------------------------------------------------------------------------- lichens


@sick(
    "logits-bounded",
    "temperature-inverted",
    where="the logits of the loss, at every step: cosines times 0.07 can't leave the loss of a uniform guess",
    cure="divide the cosines by the temperature",
)
def ages_of_lichens_on_gravestones(folder, ill):
    seeded(2282)
    temperature, rows = 0.07, 64
    growth, carving = torch.randn(4, 20), torch.randn(4, 14)
    net = nn.ModuleDict({"thallus": dense(20, 64, 64, 12), "stone": dense(14, 64, 64, 12)})
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)

    def churchyard():
        years = torch.randn(rows, 4)
        thallus = (years @ growth).tanh() + 0.05 * torch.randn(rows, 20)
        return thallus, (years @ carving).sin() + 0.05 * torch.randn(rows, 14)

    def cosines(thallus, stone):
        return F.normalize(net["thallus"](thallus), dim=1) @ F.normalize(net["stone"](stone), dim=1).T

    def loss_of(step):
        alike = cosines(*churchyard())
        logits = alike * temperature if ill else alike / temperature
        found = (alike.argmax(1) == torch.arange(rows)).float().mean()
        return F.cross_entropy(logits, torch.arange(rows)), {"recall": float(found)}

    kept = [churchyard() for _ in range(8)]

    @torch.no_grad()
    def score():
        return sum(float(F.cross_entropy(cosines(*pair) / temperature, torch.arange(rows))) for pair in kept) / 8

    return fit(folder, net, optimizer, loss_of, 500, score=score)


# --------------------------------------------------------------------------------------------------------------- scents

MILLIDALTONS = torch.tensor([1008.0, 12011.0, 14007.0, 15999.0, 32060.0])


class Molecule(nn.Module):
    """Two rounds of messages between bonded atoms, then a sum over the molecule."""

    def __init__(self, features, width, scents):
        super().__init__()
        self.atom = nn.Linear(features, width)
        self.bond = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(2))
        self.scent = nn.Linear(width, scents)

    def forward(self, atoms, bonds):
        state = self.atom(atoms).relu()
        for bond in self.bond:
            state = bond(torch.cat([state, bonds @ state / 3], 2)).relu()
        return self.scent(state.mean(1))


@sick(
    "inputs-not-normalised",
    "activation-outlier",
    where="atom, and all that follows it, from the first step: one column of the atoms is in the tens of thousands",
    cure="bring the masses to mean zero and a spread of one, as the other columns",
)
def scents_of_molecules(folder, ill):
    seeded(2283)
    size, scents = 9, 4
    net = Molecule(7, 48, scents)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    taste = torch.randn(5, 5, scents)

    def bottle(rows):
        kind = torch.randint(5, (rows, size))
        links = (torch.rand(rows, size, size) < 0.3).float().triu(1)
        bonds = links + links.mT
        element = F.one_hot(kind, 5).float()
        strength = torch.einsum("bik,bij,bjl,kls->bs", element, bonds, element, taste)
        mass = MILLIDALTONS[kind] if ill else (MILLIDALTONS[kind] - MILLIDALTONS.mean()) / MILLIDALTONS.std()
        atoms = torch.cat([element, bonds.sum(2, keepdim=True) / 3, mass[..., None]], 2)
        return atoms, bonds, (strength > 0).float()

    def loss_of(step):
        atoms, bonds, smelt = bottle(64)
        return F.binary_cross_entropy_with_logits(net(atoms, bonds), smelt)

    kept = bottle(512)

    @torch.no_grad()
    def score():
        return float(((net(*kept[:2]) > 0).float() != kept[2]).float().mean())

    return fit(folder, net, optimizer, loss_of, 500, score=score)


# ------------------------------------------------------------------------------------------------------------- sleepers


def cracked(rows, size=12):
    """Photographs of sleepers, `[rows, 1, size, size]`, and how many pixels long each one's crack is."""
    length, row, column = torch.randint(1, 11, (rows,)), torch.randint(size, (rows,)), torch.randint(size, (rows,))
    photo, each = 0.2 * torch.randn(rows, size, size), torch.arange(rows)
    for part in range(10):
        photo[each, (row + part) % size, column] += (part < length).float()
        column = (column + torch.randint(-1, 2, (rows,))) % size
    return photo[:, None], length


@sick(
    "shapes-broadcast",
    where="the loss at every step: values [B, 1] against returns [B] make [B, B] differences; the mean is learned only",
    cure="values.squeeze(1), so that each value meets its own return",
)
def cracks_in_railway_sleepers(folder, ill):
    seeded(2284)
    critic = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 16, 3, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(400, 48), nn.ReLU(), nn.Linear(48, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(critic.parameters(), 1e-3)

    def returns_of(length, discount=0.9, unsafe=11):
        years = torch.arange(unsafe)
        left = (length[:, None] + years < unsafe).float() * discount**years
        return (left.sum(1) - 3.5) / 2

    def loss_of(step):
        photo, length = cracked(64)
        values = critic(photo) if ill else critic(photo).squeeze(1)
        return F.mse_loss(values, returns_of(length))

    kept_photo, kept_length = cracked(512)

    @torch.no_grad()
    def score():
        return F.mse_loss(critic(kept_photo)[:, 0], returns_of(kept_length))

    return fit(folder, critic, optimizer, loss_of, 500, score=score)


# ----------------------------------------------------------------------------------------------------------------- fish


class Bidder(nn.Module):
    """The price of a lot from its species and five numbers."""

    def __init__(self, species, width):
        super().__init__()
        self.species = nn.Embedding(species, 8)
        self.price = dense(13, width, width, 1)

    def forward(self, species, facts):
        return self.price(torch.cat([self.species(species), facts], 1))[:, 0]


@sick(
    "schedule-too-short",
    "update-too-small",
    "plateau-mode-inverted",
    where="all layers after the first hundred steps: the rate falls tenfold again and again while the loss is falling",
    cure='ReduceLROnPlateau with mode="min" for a loss',
)
def bids_at_a_fish_auction(folder, ill):
    seeded(2285)
    worth, season = torch.randn(12), torch.randn(12, 5)
    net = Bidder(12, 64)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max" if ill else "min", factor=0.1, patience=5)

    def morning(rows):
        species, facts = torch.randint(12, (rows,)), torch.randn(rows, 5)
        return species, facts, worth[species] + (facts * season[species]).sum(1).sin()

    held = morning(512)

    @torch.no_grad()
    def score():
        return float(F.mse_loss(net(*held[:2]), held[2]))

    def loss_of(step):
        species, facts, price = morning(64)
        return F.mse_loss(net(species, facts), price)

    def after_step(step):
        if step % 10 == 9:
            plateau.step(score())

    return fit(folder, net, optimizer, loss_of, 800, score=score, after_step=after_step)
