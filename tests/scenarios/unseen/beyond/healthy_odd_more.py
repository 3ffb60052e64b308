"""Sound trainings with odd loops: slow weights, second order, late starts, thawing bodies, two optimizers in turn."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded
from unseen.tasks import rounds, tend

# --------------------------------------------------------------------------------------------------------- slow weights


class Taste(nn.Module):
    """How likely a reader is to borrow a book: two vectors and a fondness of each."""

    def __init__(self, readers, books, size=8):
        super().__init__()
        self.reader, self.book = nn.Embedding(readers, size), nn.Embedding(books, size)
        self.eager, self.loved = nn.Embedding(readers, 1), nn.Embedding(books, 1)
        for table in (self.reader, self.book):
            nn.init.normal_(table.weight, std=0.3)
        for table in (self.eager, self.loved):
            nn.init.zeros_(table.weight)

    def forward(self, reader, book):
        match = (self.reader(reader) * self.book(book)).sum(1)
        return match + self.eager(reader)[:, 0] + self.loved(book)[:, 0]


def lookahead(net, every=6, share=0.5):
    """`after_step(step)`: slow weights follow the fast ones, which then start from there."""
    slow = [p.detach().clone() for p in net.parameters()]

    @torch.no_grad()
    def after_step(step):
        if step % every == every - 1:
            for held, p in zip(slow, net.parameters(), strict=True):
                held.lerp_(p, share)
                p.copy_(held)

    return after_step


@healthy()
def loans_of_a_village_library(folder):
    seeded(2335)
    readers, books = 60, 90
    leaning, genre, fame = 1.5 * torch.randn(readers, 4), 1.5 * torch.randn(books, 4), torch.randn(books) - 1
    net = Taste(readers, books)
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.15)

    def loss_of(step):
        reader, book = torch.randint(readers, (256,)), torch.randint(books, (256,))
        wish = (leaning[reader] * genre[book]).sum(1) + fame[book]
        borrowed = (torch.rand(256) < torch.sigmoid(2 * wish)).float()
        return F.binary_cross_entropy_with_logits(net(reader, book), borrowed)

    return fit(folder, net, optimizer, loss_of, 700, after_step=lookahead(net))


# --------------------------------------------------------------------------------------------------------- second order


@healthy()
def melt_at_the_stakes_of_a_glacier(folder):
    seeded(2336)
    stakes = torch.randn(500, 4)
    warmth, sun, height, dust = stakes.T
    melt = F.softplus(2 * (warmth - 0.5 * height)) + 0.3 * sun * dust.tanh() + 0.05 * torch.randn(500)
    net, melt = dense(4, 24, 1, act=nn.Tanh), (melt - melt.mean()) / melt.std()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=8, history_size=20, line_search_fn="strong_wolfe")
    return fit(folder, net, optimizer, lambda step: F.mse_loss(net(stakes)[:, 0], melt), 30, closure=True)


# ----------------------------------------------------------------------------------------------------- a slow beginning


class Listener(nn.Module):
    """One block of a transformer over the beats of an escapement."""

    def __init__(self, beats, width=32, faults=5):
        super().__init__()
        self.enter = nn.Linear(2, width)
        self.place = nn.Parameter(0.5 * torch.randn(beats, width))
        self.calm, self.attend = nn.LayerNorm(width), nn.MultiheadAttention(width, 4, batch_first=True)
        self.body = nn.Sequential(nn.LayerNorm(width), dense(width, 64, width, act=nn.GELU))
        self.leave = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, faults))

    def forward(self, beats):
        x = self.enter(beats) + self.place
        calm = self.calm(x)
        x = x + self.attend(calm, calm, calm, need_weights=False)[0]
        return self.leave((x + self.body(x)).mean(1))


def late_and_long(step, late=200, down=440, least=1e-3):
    """A rise over a third of the run, a cosine, and a long end at a thousandth."""
    share = min(1.0, (step - late) / (down - late))
    return (step + 1) / late if step < late else least + (1 - least) * 0.5 * (1 + math.cos(math.pi * share))


@healthy()
def faults_heard_in_watch_escapements(folder):
    seeded(2338)
    beats = 16
    net, time = Listener(beats), torch.arange(beats)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.05)
    every = torch.tensor([1.0, 2.0, 3.0, 5.0, 8.0])

    def loss_of(step):
        fault = torch.randint(5, (48,))
        turn = math.pi * time / every[fault, None] + 0.5 * torch.randn(48, 1)
        heard = torch.stack([turn.cos(), turn.sin()], 2) + 0.4 * torch.randn(48, beats, 2)
        guess = net(heard)
        return F.cross_entropy(guess, fault), {"accuracy": (guess.argmax(1) == fault).double().mean()}

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, late_and_long)
    return fit(folder, net, optimizer, loss_of, 600, schedule=schedule)


@healthy()
def cents_that_a_piano_string_is_off(folder):
    seeded(2339)
    bins, partial = torch.linspace(0, 1, 48), torch.arange(1, 6)
    net = dense(48, 64, 64, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9, nesterov=True)

    def loss_of(step):
        cents = torch.randn(96, 1)
        stiffness = 0.002 * torch.rand(96, 1)
        place = 0.17 * partial * (1 + 0.03 * cents) * (1 + stiffness * partial**2).sqrt()
        peaks = torch.exp(-(((bins - place[:, :, None]) / 0.03) ** 2)) * (0.5 + torch.rand(96, 5, 1))
        spectrum = peaks.sum(1) + 0.05 * torch.randn(96, 48)
        return F.mse_loss(net(2 * spectrum - 0.5), cents)

    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 60, T_mult=2)
    return fit(folder, net, optimizer, loss_of, 420, schedule=schedule)


# ------------------------------------------------------------------------------------------------------- a body thaws


def blood_levels(patients, clearance, hours=8):
    """Age, weight, dose and kidney function, and the logarithm of the level over time, one compartment."""
    who, time = torch.randn(patients, 4), torch.linspace(0.5, 6, hours)
    age, weight, dose, kidney = who[:, :, None].unbind(1)
    rate = 0.3 * torch.exp(0.4 * kidney - 0.3 * age.clamp(-2, 2) + clearance)
    uptake = torch.log1p(-torch.exp(-1.5 * time))
    return who, 0.7 * dose - 0.5 * weight - rate * time + uptake + 0.05 * torch.randn(patients, hours)


@healthy()
def doses_for_children_from_those_for_adults(folder):
    seeded(2340)
    net = dense(4, 64, 64, 8, act=nn.SiLU)
    adults = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(300):
        who, level = blood_levels(64, clearance=0.0)
        adults.zero_grad()
        F.mse_loss(net(who), level).backward()
        adults.step()

    layers = [net[4], net[2], net[0]]
    rates = zip(layers, (3e-3, 1e-3, 5e-4), strict=True)
    optimizer = torch.optim.AdamW([{"params": list(part.parameters()), "lr": rate} for part, rate in rates])
    for frozen in layers[1:]:
        frozen.requires_grad_(False)

    def loss_of(step):
        if step in (120, 240):
            layers[step // 120].requires_grad_(True)
        who, level = blood_levels(64, clearance=0.6)
        return F.mse_loss(net(who), level)

    return fit(folder, net, optimizer, loss_of, 480)


# ---------------------------------------------------------------------------------------- a sparse table and its reader


class Ripeness(nn.Module):
    """How ripe a wheel is: what is known of its dairy, and how long it lay at what warmth and damp."""

    def __init__(self, dairies):
        super().__init__()
        self.dairy = nn.Embedding(dairies, 6, sparse=True)
        self.body = dense(6 + 3, 48, 48, 1, act=nn.GELU)

    def forward(self, dairy, cellar):
        return self.body(torch.cat([self.dairy(dairy), cellar], 1))[:, 0]


@healthy()
def ripening_of_cheese_from_many_dairies(folder):
    seeded(2341)
    net, culture, salt = Ripeness(300), 1 + torch.rand(300), torch.randn(300)
    table = torch.optim.SparseAdam(net.dairy.parameters(), lr=0.02)
    body = torch.optim.Adam(net.body.parameters(), lr=2e-3)

    def loss_of(step):
        dairy, cellar = torch.randint(300, (64,)), torch.randn(64, 3)
        weeks, warmth, damp = cellar.T
        ripe = (culture[dairy] * (weeks + 0.5 * warmth)).tanh() + 0.4 * salt[dairy] * damp
        return F.mse_loss(net(dairy, cellar), ripe + 0.05 * torch.randn(64))

    def one(step):
        net.zero_grad()
        loss = loss_of(step)
        loss.backward()
        (body if step % 2 else table).step()
        return {"loss": loss}

    return tend(folder, net, [table, body], one, 900, score_of(loss_of))


# ---------------------------------------------------------------------------------------------- gradients by evolution


def ranked(fitness):
    """Centred ranks, from -0.5 to 0.5."""
    return fitness.argsort().argsort() / (len(fitness) - 1) - 0.5


@healthy()
def grading_of_soils_by_their_spectra(folder):
    seeded(2342)
    net, pairs, spread = dense(10, 12, 4, act=nn.Tanh), 48, 0.1
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    mineral = torch.randn(4, 10)
    grade = torch.randint(4, (600,))
    spectra = mineral[grade] + 1.2 * torch.randn(600, 10)
    wrong_of_all = vmap(lambda weights: (functional_call(net, weights, spectra).argmax(1) != grade).float().mean())

    def score():
        with torch.no_grad():
            return (net(spectra).argmax(1) != grade).float().mean()

    @torch.no_grad()
    def evolve():
        centre = stack_module_state([net])[0]
        noise = {name: torch.randn(pairs, *p.shape[1:]) for name, p in centre.items()}
        both = {name: torch.cat([p + spread * noise[name], p - spread * noise[name]]) for name, p in centre.items()}
        wrong = wrong_of_all(both)
        plus, minus = ranked(wrong).chunk(2)
        for name, p in net.named_parameters():
            p.grad = torch.tensordot(plus - minus, noise[name], 1) / (2 * pairs * spread)
        return wrong.mean()

    def one(step):
        wrong = evolve()
        optimizer.step()
        return {"loss": wrong, "misgraded": score()}

    return tend(folder, net, optimizer, one, 300, score)


# ------------------------------------------------------------------------------------------------------- meta-learning


@healthy()
def calls_of_whale_pods_from_few_notes(folder):
    seeded(2343)
    net = dense(1, 40, 40, 1, act=nn.Tanh)
    start = dict(net.named_parameters())
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)

    def notes(loudness, phase):
        time = 4 * torch.rand(10, 1) - 2
        return time, loudness * (1.5 * time + phase).sin()

    def after_listening(weights, known, asked, pace=0.1):
        for _ in range(2):
            error = F.mse_loss(functional_call(net, weights, known[0]), known[1])
            ways = torch.autograd.grad(error, list(weights.values()), create_graph=True)
            weights = {name: p - pace * way for (name, p), way in zip(weights.items(), ways, strict=True)}
        return F.mse_loss(functional_call(net, weights, asked[0]), asked[1])

    def loss_of(step):
        pods = [(0.5 + 1.5 * torch.rand(()), math.pi * torch.rand(())) for _ in range(4)]
        return torch.stack([after_listening(start, notes(*pod), notes(*pod)) for pod in pods]).mean()

    return fit(folder, net, optimizer, loss_of, 350)


# --------------------------------------------------------------------------------------------------- mixed examples


@healthy()
def bays_for_containers_in_a_hold(folder):
    seeded(2358)
    rule = torch.randn(8, 6)

    def manifest(rows):
        box = torch.randn(rows, 8)
        return box, (box @ rule + 2 * (box[:, :6] * box[:, 2:]).tanh()).argmax(1)

    net, draw, kept = dense(8, 96, 96, 6, act=nn.GELU), rounds(64, *manifest(2000)), manifest(1000)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.05)
    mixing = torch.distributions.Beta(0.3, 0.3)

    def loss_of(step):
        box, bay = draw()
        share, other = mixing.sample(), torch.randperm(len(box))
        guess = net(share * box + (1 - share) * box[other])
        mine, theirs = (F.cross_entropy(guess, to, label_smoothing=0.1) for to in (bay, bay[other]))
        return share * mine + (1 - share) * theirs

    def misplaced():
        with torch.no_grad():
            return (net(kept[0]).argmax(1) != kept[1]).double().mean()

    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)
    return fit(folder, net, optimizer, loss_of, 500, score=misplaced, schedule=schedule)
