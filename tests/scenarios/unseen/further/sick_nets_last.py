"""Sick trainings drawn by lot, third part: targets, clips, orders of axes and what has no slope."""

from __future__ import annotations

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick

# ------------------------------------------------------------------------------------------ cards of the coming week


def accounts(batch=32, weeks=9, size=8):
    """`draw()`: tables of what each week of an account is like and whether its card was stopped in that week."""
    look = torch.randn(size, 3) / size**0.5

    def draw():
        x = torch.randn(batch, weeks, size)
        odds = 2.5 * (x @ look).sin().sum(2) - 1.0
        stopped = torch.zeros(batch, weeks)
        stopped[:, 0] = (torch.rand(batch) < 0.3).float()
        for week in range(1, weeks):  # what a week is like decides over the next
            stopped[:, week] = (torch.rand(batch) < odds[:, week - 1].sigmoid()).float()
        return torch.cat([x, stopped[..., None]], 2), stopped

    return draw


@sick(
    "labels-not-shifted", "future-seen",
    where="the first layer: the column of the card's state is all it needs, the loss goes to zero at once",
    cure="shift the labels by a week: each row is asked for the state that it holds itself",
)  # fmt: skip
def cards_stopped_in_the_coming_week(folder, ill):
    seeded(2012)
    net, draw = dense(9, 64, 64, 1), accounts()

    def loss_of(step, ahead=not ill):
        table, stopped = draw()
        rows, wanted = (table[:, :-1], stopped[:, 1:]) if ahead else (table, stopped)
        out = net(rows.flatten(0, 1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(out, wanted.flatten())

    make = optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    return fit(folder, net, make, loss_of, 400, score=score_of(lambda step: loss_of(step, ahead=True), 16))


# -------------------------------------------------------------------------------------------- what a visitor is offered


@sick(
    "clip-is-your-learning-rate", "update-too-small",
    where="all layers, all steps: the norm of the gradients is hundreds of times what the clip leaves",
    cure="a clip of 1, which most steps stay below",
)  # fmt: skip
def dishes_offered_to_guests(folder, ill):
    seeded(2013)
    net, taste = dense(12, 48, 5, act=nn.Tanh), torch.randn(12, 5)

    def paid(guest):
        return (guest @ taste / 2).sigmoid()

    def loss_of(step):
        guest = torch.randn(64, 12)
        choice = torch.distributions.Categorical(logits=net(guest))
        dish = choice.sample()
        took = torch.bernoulli(paid(guest)[torch.arange(64), dish])
        return -(choice.log_prob(dish) * (took - took.mean())).mean(), {"return": took.mean()}

    def regret(step):
        guest = torch.randn(512, 12)
        worth = paid(guest)
        return (worth.max(1).values - (net(guest).softmax(1) * worth).sum(1)).mean()

    def before_step(step):
        nn.utils.clip_grad_norm_(net.parameters(), 1e-3 if ill else 1.0)

    make = optim.SGD(net.parameters(), 0.5)
    return fit(folder, net, make, loss_of, 500, score=score_of(regret), before_step=before_step)


# ---------------------------------------------------------------------------------------------- insects in three ponds


class Causal(nn.Module):
    """Convolutions over time that see nothing ahead."""

    def __init__(self, act, width=32):
        super().__init__()
        sizes = (3, width, width, width, 3)
        self.layers = nn.ModuleList(nn.Conv1d(sizes[i], sizes[i + 1], 2) for i in range(4))
        self.act = act

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(F.pad(x, (1, 0)))
            x = self.act(x) if i < 3 else x
        return x


def ponds(batch=32, length=24):
    """Three numbers that follow a logistic map and leak into one another: `[B, 3, T + 1]`."""
    x = torch.rand(batch, 3)
    seen = []
    for _ in range(20 + length + 1):
        grown = 3.85 * x * (1 - x)
        x = 0.9 * grown + 0.1 * grown.roll(1, 1)
        seen.append(x)
    return (torch.stack(seen[20:], 2) - 0.55) / 0.28


@sick(
    "no-nonlinearity", "linear-network", "no-activation",
    where="all four convolutions: one follows the other in the graph, with nothing between them that bends",
    cure="an activation behind each convolution but the last",
)  # fmt: skip
def insects_in_three_ponds(folder, ill):
    seeded(2014)
    net = Causal(nn.Identity() if ill else nn.GELU())

    def error(step):
        x = ponds()
        return F.mse_loss(net(x[..., :-1]), x[..., 1:])

    return fit(folder, net, optim.NAdam(net.parameters(), 2e-3), error, 400, score=score_of(error))


# -------------------------------------------------------------------------------------------- bicycles at a stand


class Stands(nn.Module):
    """A vector for the stand and one for the hour, of length one; their cosine says how many bicycles are taken."""

    def __init__(self, scaled, width=48, out=12):
        super().__init__()
        self.stand, self.hour = dense(8, width, out), dense(6, width, out)
        self.scale = nn.Parameter(torch.tensor(3.0)) if scaled else None
        self.usual = nn.Parameter(torch.zeros(())) if scaled else None

    def forward(self, stand, hour):
        alike = (F.normalize(self.stand(stand), dim=1) * F.normalize(self.hour(hour), dim=1)).sum(1)
        return alike if self.scale is None else self.scale * alike + self.usual


@sick(
    "logits-bounded",
    where="the logarithm of the rate: a cosine of two vectors of length one, so no count above e is ever expected",
    cure="a scale and an offset that are learned behind the cosine",
)  # fmt: skip
def bicycles_taken_from_stands_by_the_hour(folder, ill):
    seeded(2015)
    net = Stands(not ill)
    stands, hours = torch.randn(8, 4) / 8**0.5, torch.randn(6, 4) / 6**0.5

    def nll(step):
        stand, hour = torch.randn(128, 8), torch.randn(128, 6)
        rate = (1.2 + ((stand @ stands).tanh() * (hour @ hours).tanh()).sum(1) * 1.5).exp()
        taken = torch.poisson(rate.clamp(max=60))
        return F.poisson_nll_loss(net(stand, hour), taken, full=True)

    make = optim.SGD(net.parameters(), 0.02)
    return fit(folder, net, make, nll, 600, score=score_of(nll))


# ------------------------------------------------------------------------------------------------ knots read backwards


class Translator(nn.Module):
    """A recurrent encoder, a recurrent decoder that looks at all that was read."""

    def __init__(self, words=12, width=48):
        super().__init__()
        self.read, self.said = nn.Embedding(words, width), nn.Embedding(words + 1, width)
        self.encoder, self.decoder = nn.GRU(width, width, batch_first=True), nn.GRU(width, width, batch_first=True)
        self.ask, self.head = nn.Linear(width, width), nn.Linear(2 * width, words)

    def forward(self, source, before):
        read, state = self.encoder(self.read(source))
        h, _ = self.decoder(self.said(before), state)
        look = (self.ask(h) @ read.transpose(1, 2)).softmax(2)
        return self.head(torch.cat([h, look @ read], 2))


@sick(
    "gradients-accumulate",
    where="all layers: the gradients are the sum of those of all steps so far, their norms grow from step to step",
    cure="optimizer.zero_grad() before each backward",
)  # fmt: skip
def knots_of_a_quipu_read_backwards(folder, ill):
    seeded(2016)
    net, other = Translator(), torch.randperm(12)

    def loss_of(step):
        source = torch.randint(12, (48, 7))
        target = other[source].flip(1)
        before = torch.cat([torch.full((48, 1), 12), target[:, :-1]], 1)
        out = net(source, before)
        right = (out.argmax(2) == target).float().mean()
        return F.cross_entropy(out.flatten(0, 1), target.flatten()), {"accuracy": right}

    make = optim.Adam(net.parameters(), 3e-3)
    return fit(folder, net, make, loss_of, 300, score=score_of(lambda step: loss_of(step)[0]), zero_grad=not ill)


# ------------------------------------------------------------------------------------------------ notes of a shepherd


class Listener(nn.Module):
    """Convolutions over time, a recurrence, a class for each frame."""

    def __init__(self, bands=12, width=32, classes=10, batch_first=True):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(bands, width, 3, padding=1), nn.ReLU(), nn.Conv1d(width, width, 3, padding=1), nn.ReLU()
        )
        self.memory = nn.GRU(width, width, batch_first=batch_first)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.memory(self.conv(x).transpose(1, 2))[0])


@sick(
    "axes-mixed",
    where="memory: its input is [batch, time, width] but it is read as [time, batch, width], so the state runs from "
    "one recording to the next and never along the time",
    cure="batch_first=True",
)  # fmt: skip
def whistles_between_two_valleys(folder, ill):
    seeded(2017)
    net, spectra = Listener(batch_first=not ill), torch.randn(5, 12)

    def loss_of(step):
        whistle = torch.where(torch.rand(32, 20) < 0.1, torch.randint(2, (32, 20)), torch.randint(2, 5, (32, 20)))
        valley = torch.zeros(32, 20, dtype=torch.long)
        for t in range(20):  # whistles 0 and 1 say to which valley all that follow are addressed
            kept = valley[:, t - 1] if t else valley[:, 0]
            valley[:, t] = torch.where(whistle[:, t] < 2, whistle[:, t], kept)
        heard = spectra[whistle].transpose(1, 2) + 0.3 * torch.randn(32, 12, 20)
        out, wanted = net(heard).flatten(0, 1), (2 * whistle + valley).flatten()
        return F.cross_entropy(out, wanted), {"accuracy": (out.argmax(1) == wanted).float().mean()}

    make = optim.SGD(net.parameters(), 0.2, momentum=0.9)
    return fit(folder, net, make, loss_of, 220, score=score_of(lambda step: loss_of(step)[0]))


# ---------------------------------------------------------------------------------------- readers of a village library


class Library(nn.Module):
    """Each reader belongs to one of six circles, each circle has its tastes, each book its kind."""

    def __init__(self, choose, readers=200, books=120, circles=6, width=8):
        super().__init__()
        self.reader = nn.Embedding(readers, width)
        self.belongs = nn.Linear(width, circles)
        self.tastes = nn.Parameter(0.5 * torch.randn(circles, width))
        self.book, self.liked = nn.Embedding(books, width), nn.Embedding(books, 1)
        self.choose = choose
        nn.init.normal_(self.book.weight, std=0.5)
        nn.init.zeros_(self.liked.weight)

    def forward(self, reader, book):
        circle = self.choose(self.belongs(self.reader(reader)))
        return ((circle @ self.tastes) * self.book(book)).sum(1) + self.liked(book).squeeze(1)


@sick(
    "no-gradient", "weights-unchanged",
    where="reader and belongs: behind an argmax, they get no gradient in any step and stay as they were drawn",
    cure="a softmax over the circles in training",
)  # fmt: skip
def readers_of_a_village_library(folder, ill):
    seeded(2018)
    net = Library((lambda x: F.one_hot(x.argmax(1), 6).float()) if ill else (lambda x: x.softmax(1)))
    marks = torch.randn(6, 5)[torch.randint(6, (200,))] @ torch.randn(5, 120) / 5**0.5

    def error(step):
        reader, book = torch.randint(200, (256,)), torch.randint(120, (256,))
        return F.mse_loss(net(reader, book), marks[reader, book] + 0.2 * torch.randn(256))

    return fit(folder, net, optim.Adagrad(net.parameters(), 0.1), error, 500, score=score_of(error))
