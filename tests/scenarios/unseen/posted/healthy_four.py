"""Healthy trainings with weights of one bit, experts, weighted tasks, harder steps, uneven parts and unit gradients."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, tend


class OneBit(nn.Module):
    """A linear layer whose weights are signs; the gradient goes straight through to what they are the signs of."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.latent = nn.Parameter(torch.empty(outputs, inputs).uniform_(-0.1, 0.1))

    def forward(self, x):
        signs = self.latent.sign()
        return F.linear(x, self.latent + (signs - self.latent).detach()) / math.sqrt(x.shape[1])


@healthy()
def sections_of_a_newspaper(folder):
    seeded(2577)
    words, length = 300, 60
    themes = (1.2 * torch.randn(8, words)).softmax(1)
    mixed = torch.rand(6, 8).pow(3)

    def articles(n=64):
        section = torch.randint(6, (n,))
        about = mixed[section] * -torch.rand(n, 8).log()
        read = torch.multinomial((about / about.sum(1, keepdim=True)) @ themes, length, replacement=True)
        return F.one_hot(read, words).sum(1).float().log1p(), section

    net = nn.Sequential(
        *(nn.Linear(words, 96), nn.BatchNorm1d(96), nn.Hardtanh()),
        *(OneBit(96, 96), nn.BatchNorm1d(96), nn.Hardtanh()),
        *(OneBit(96, 96), nn.BatchNorm1d(96), nn.Hardtanh()),
        nn.Linear(96, 6),
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, 450)
    hidden = [part for part in net if isinstance(part, OneBit)]

    def loss_of(step):
        x, y = articles()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    @torch.no_grad()
    def stay_within_one(step):
        for part in hidden:
            part.latent.clamp_(-1, 1)

    x, y = articles(512)
    score = held_out(net, lambda: F.cross_entropy(net(x), y))
    return fit(folder, net, optimizer, loss_of, 450, score=score, schedule=schedule, after_step=stay_within_one)


class TwoOfSix(nn.Module):
    """Six experts; each row is sent to the two that the router likes best."""

    def __init__(self, inputs, width=32, experts=6):
        super().__init__()
        self.router = nn.Linear(inputs, experts)
        self.experts = nn.ModuleList(dense(inputs, width, 1, act=nn.SiLU) for _ in range(experts))

    def forward(self, x):
        logits = self.router(x)
        noisy = logits + 0.3 * torch.randn_like(logits) if self.training else logits
        best, which = noisy.topk(2, dim=1)
        share = torch.zeros_like(logits).scatter(1, which, best.softmax(1))
        out = torch.zeros(len(x), 1)
        for i, expert in enumerate(self.experts):
            rows = (which == i).any(1).nonzero()[:, 0]
            out = out.index_add(0, rows, share[rows, i : i + 1] * expert(x[rows]))
        load = (share > 0).float().mean(0)
        return out, (load * logits.softmax(1).mean(0)).sum() * len(self.experts) / 2


def spans(n):
    """How far a bridge swings (a logarithm) for its kind, length, mass, damping and the beat of what crosses it."""
    kind, numbers = torch.randint(3, (n,)), torch.rand(n, 4)
    length, mass, damping, beat = numbers.T
    own = torch.tensor([0.9, 0.6, 0.35])[kind] * (1.6 - length) / (0.6 + 0.6 * mass).sqrt()
    ratio = (0.2 + beat) / own
    swing = ((1 - ratio**2) ** 2 + (2 * (0.08 + 0.2 * damping) * ratio) ** 2).rsqrt().log()
    return torch.cat([4 * numbers - 2, F.one_hot(kind, 3).float()], 1), swing[:, None] + 0.02 * torch.randn(n, 1)


@healthy()
def bridges_that_swing(folder):
    seeded(2578)
    net = TwoOfSix(7)
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600)

    def loss_of(step):
        x, y = spans(128)
        out, balance = net(x)
        error = F.mse_loss(out, y)
        return error + 0.01 * balance, {"error": error, "balance": balance}

    x, y = spans(1024)
    score = held_out(net, lambda: F.mse_loss(net(x)[0], y))
    return fit(folder, net, optimizer, loss_of, 600, score=score, schedule=schedule)


class Field(nn.Module):
    """One body, four probes in the ground, and how unsure each of these is (a logarithm of the variance)."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(dense(14, 64, 64, act=nn.SiLU), nn.SiLU())
        self.probes = nn.Linear(64, 4)
        self.unsure = nn.Parameter(torch.zeros(4))

    def forward(self, x):
        return self.probes(self.body(x))


@healthy()
def moisture_of_the_soil(folder):
    seeded(2579)
    noise = torch.tensor([0.3, 0.1, 0.05, 0.02])
    slow = torch.tensor([0.9, 0.7, 0.5, 0.3])

    def weeks(n):
        """Rain and heat of seven days, and the moisture at four depths, the deeper the calmer."""
        rain, heat = torch.randn(n, 7), torch.randn(n, 7)
        ages = torch.arange(6, -1, -1)[:, None]
        kept = (1 - slow) ** (ages / 2) / (1 + ages * slow)
        return torch.cat([rain, heat], 1), rain.relu() @ kept * (1 - 0.3 * heat.mean(1, keepdim=True).tanh())

    usual = weeks(4096)[1]
    middle, width = usual.mean(0), usual.std(0)

    def measured(n):
        weather, wet = weeks(n)
        return weather, (wet - middle) / width + noise * torch.randn(n, 4)

    net = Field()
    free = [net.unsure]
    rest = [*net.body.parameters(), *net.probes.parameters()]
    optimizer = torch.optim.AdamW([{"params": rest}, {"params": free, "lr": 2e-2, "weight_decay": 0.0}], lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600)

    def loss_of(step):
        x, y = measured(128)
        errors = (net(x) - y).square().mean(0)
        loss = 0.5 * ((-net.unsure).exp() * errors + net.unsure).sum()
        return loss, {f"error_{depth}": float(error) for depth, error in enumerate(errors)}

    x, y = measured(1024)
    score = held_out(net, lambda: F.mse_loss(net(x), y))
    return fit(folder, net, optimizer, loss_of, 600, score=score, schedule=schedule)


class Shelf(nn.Module):
    """Scores books by what a reader has borrowed before: a memory of four books against a table of all."""

    def __init__(self, books, width=32):
        super().__init__()
        self.table = nn.Embedding(books, width)
        nn.init.normal_(self.table.weight, std=0.3)
        self.mix = dense(4 * width, 96, width, act=nn.GELU)

    def forward(self, history, offered):
        taste = self.mix(self.table(history).flatten(1))
        return (self.table(offered) @ taste[:, :, None])[:, :, 0]


@healthy()
def books_that_readers_borrow(folder):
    seeded(2580)
    books, kinds = 240, 12

    def readers(n=128):
        """Each likes a kind of books, and often goes on with the next volume."""
        kind = torch.randint(kinds, (n,))
        history = torch.randint(books // kinds, (n, 4)) * kinds + kind[:, None]
        another = torch.randint(books // kinds, (n,)) * kinds + kind
        following = torch.rand(n) < 0.6
        return history, torch.where(following, (history[:, 3] + kinds) % books, another)

    net = Shelf(books)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    harder = [3, 15, 63, 239]

    def loss_of(step):
        history, borrowed = readers()
        others = (borrowed[:, None] + 1 + torch.rand(len(history), books - 1).argsort(1)) % books
        offered = torch.cat([borrowed[:, None], others[:, : harder[min(step // 150, 3)]]], 1)
        logits = net(history, offered)
        loss = F.cross_entropy(logits, torch.zeros(len(history), dtype=torch.long))
        return loss, {"choices": offered.shape[1], "accuracy": float((logits.argmax(1) == 0).float().mean())}

    history, borrowed = readers(512)
    everything = torch.arange(books).expand(512, books)
    score = held_out(net, lambda: F.cross_entropy(net(history, everything), borrowed))
    return fit(folder, net, optimizer, loss_of, 750, score=score)


class Crossing(nn.Module):
    """The delay on each road of a crossing, by the road itself and by all that meet there."""

    def __init__(self, width=48):
        super().__init__()
        self.road, self.delay = dense(3, width, width), dense(2 * width, width, 1)

    def forward(self, roads, there):
        each = self.road(roads)
        met = (each * there[:, :, None]).sum(1, keepdim=True) / there.sum(1)[:, None, None]
        return self.delay(torch.cat([each, met.expand_as(each)], 2))[:, :, 0]


def crossings(n):
    """Crossings of three to six roads: flow, share of green and lanes, and the delay by Webster with turning cars."""
    there = (torch.arange(6) < torch.randint(3, 7, (n, 1))).float()
    flow, green, lanes = 0.1 + 0.8 * torch.rand(n, 6), 0.2 + 0.5 * torch.rand(n, 6), torch.randint(1, 4, (n, 6))
    turning = (flow * there).sum(1, keepdim=True) / there.sum(1, keepdim=True)
    full = (flow * (1 + 0.5 * turning) / (green * lanes.sqrt() * 2.2)).clamp(max=0.95)
    delay = (1 - green) ** 2 / (1 - full * green) + 0.05 * full**2 / (1 - full)
    roads = torch.stack([4 * flow - 2, 8 * green - 3.6, lanes - 2.0], 2)
    return roads, there, 3 * delay - 1.5 + 0.05 * torch.randn(n, 6)


@healthy()
def crossroads_and_their_lights(folder):
    seeded(2581)
    net = Crossing()
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)

    def squares(roads, there, delay):
        return ((net(roads, there) - delay).square() * there).sum()

    def one(step):
        parts = [crossings(int(n)) for n in torch.randint(4, 40, (4,))]
        roads = sum(there.sum() for _, there, _ in parts)
        optimizer.zero_grad()
        total = 0.0
        for part in parts:
            loss = squares(*part) / roads
            loss.backward()
            total += float(loss.detach())
        optimizer.step()
        schedule.step()
        return {"loss": total, "roads": float(roads)}

    new = crossings(512)
    return tend(folder, net, optimizer, one, 400, held_out(net, lambda: squares(*new) / new[1].sum()))


class Molecule(nn.Module):
    """Three rounds of messages along the bonds, and the sum over all atoms."""

    def __init__(self, kinds=4, width=32):
        super().__init__()
        self.table = nn.Embedding(kinds, width)
        self.messages = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(3))
        self.read = dense(2 * width, width, 1, act=nn.SiLU)

    def forward(self, atoms, bonds, there):
        h = self.table(atoms)
        for message in self.messages:
            h = h + F.silu(message(torch.cat([h, bonds @ h], 2)))
        h = h * there[:, :, None]
        return self.read(torch.cat([h.sum(1) / 9, h.amax(1)], 1))[:, 0]


def molecules(n, most=9):
    """Random trees of C, O, N and Cl and their boiling points: by size, by branches, by what bonds to hydrogen."""
    there = (torch.arange(most) < torch.randint(3, most + 1, (n, 1))).float()
    parent = (torch.rand(n, most) * torch.arange(most)).long()
    bonds = torch.zeros(n, most, most)
    for atom in range(1, most):
        bonds[torch.arange(n), atom, parent[:, atom]] = there[:, atom]
    bonds = bonds + bonds.transpose(1, 2)
    atoms = torch.multinomial(torch.tensor([0.7, 0.12, 0.1, 0.08]), n * most, replacement=True).view(n, most)
    branches = (bonds.sum(2) - 2).relu().sum(1)
    outer = (bonds.sum(2) == 1).float() * there
    polar = torch.tensor([0.0, 1.0, 0.6, 0.3])[atoms] * (0.4 * there + 0.6 * outer)
    kelvin = 150 + 75 * there.sum(1).sqrt() - 14 * branches + 60 * polar.sum(1).sqrt() + 3 * torch.randn(n)
    return atoms, bonds, there, (kelvin - 390) / 60


@healthy()
def boiling_points_of_solvents(folder):
    seeded(2582)
    net = Molecule()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 450)

    def loss_of(step):
        *molecule, boiling = molecules(64)
        return F.mse_loss(net(*molecule), boiling)

    *molecule, boiling = molecules(512)
    score = held_out(net, lambda: F.mse_loss(net(*molecule), boiling))
    held = clipped(net, 0.1)
    return fit(folder, net, optimizer, loss_of, 450, score=score, schedule=schedule, before_step=held)
