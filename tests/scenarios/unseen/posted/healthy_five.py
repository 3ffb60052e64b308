"""Healthy trainings that are short or long, estimate their gradients, warm up for long, or start anew."""

import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


def meals(n):
    """Carbohydrates, fat, insulin, its lead, glucose before and a walk; and the glucose of the next four hours."""
    x = torch.rand(n, 6)
    carbs, fat, insulin, lead, before, walk = (column[:, None] for column in x.T)
    hours = torch.arange(1, 9) / 2
    slow = 0.5 + 1.2 * fat
    taken_up = carbs * (1 - torch.exp(-hours / slow) * (1 + hours / slow))
    lowered = insulin * (0.7 + 0.6 * walk) * (1 - torch.exp(-(hours + lead) / 1.1))
    level = before + 2.2 * taken_up - 1.6 * lowered - 0.15 * before * hours
    return 3.4 * x - 1.7, (level + 0.03 * torch.randn(n, 8) - 0.5) / 0.6


@healthy()
def glucose_after_a_meal(folder):
    seeded(2583)
    (x, y), (new_x, new_y) = meals(2048), meals(512)
    draw = rounds(256, x, y)
    net = dense(6, 64, 64, 8, act=nn.SiLU)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=30, pct_start=0.2)

    def loss_of(step):
        meal, level = draw()
        return F.mse_loss(net(meal), level)

    score = held_out(net, lambda: F.mse_loss(net(new_x), new_y))
    return fit(folder, net, optimizer, loss_of, 30, score=score, schedule=schedule)


def gauge(heights, lags, n=64, damped=0.0):
    """24 hours of a tide gauge and of the wind, and the level six hours on; `heights`, `lags` are of the harbour."""
    beats = 6.2832 / torch.tensor([12.42, 12.0, 25.82, 6.21])
    start, wind = 700 * torch.rand(n, 1), torch.randn(n, 1)
    hours = start + torch.arange(30)
    level = (heights * (hours[:, :, None] * beats - lags).cos()).sum(2)
    level = level / (1 + damped * level.abs()) + 0.2 * wind
    seen = level + 0.03 * torch.randn(n, 30)
    return torch.cat([seen[:, :24], wind], 1), seen[:, 29:]


@healthy()
def tide_gauge_beyond_the_new_pier(folder):
    seeded(2584)
    old = torch.tensor([1.0, 0.4, 0.2, 0.05]), 6.2832 * torch.rand(4)
    new = torch.tensor([0.6, 0.25, 0.45, 0.3]), 6.2832 * torch.rand(4)
    net = dense(25, 48, 48, 1, act=nn.Tanh)
    before = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(400):
        x, y = gauge(*old)
        before.zero_grad()
        F.mse_loss(net(x), y).backward()
        before.step()
    before.zero_grad()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)

    def loss_of(step):
        x, y = gauge(*new, damped=0.4)
        return F.mse_loss(net(x), y)

    x, y = gauge(*new, n=1024, damped=0.4)
    return fit(folder, net, optimizer, loss_of, 3000, score=held_out(net, lambda: F.mse_loss(net(x), y)))


def gusts(n, steps=50):
    """Winds around a mean of their own, with gusts that come and go."""
    mean, gust, winds = 0.3 * torch.randn(n), torch.zeros(n), []
    for _ in range(steps):
        gust = 0.9 * gust + 0.25 * torch.randn(n)
        winds.append(mean + gust)
    return torch.stack(winds)


@healthy()
def blades_of_a_wind_turbine(folder):
    seeded(2585)
    net, pairs, spread = dense(3, 12, 1, act=nn.Tanh), 24, 0.1
    optimizer = torch.optim.Adam(net.parameters(), lr=0.03)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)

    def cost(weights, winds):
        """What it costs that the rotor strays from its speed, and that the blades are turned."""
        speed = drift = pitch = torch.zeros_like(winds[0])
        total = 0.0
        for wind in winds:
            seen = torch.stack([speed, drift, wind], 1)
            turn = functional_call(net, weights, (seen,))[:, 0].tanh()
            pitch = pitch + 0.5 * (turn - pitch)
            speed = speed + 0.3 * (wind - 1.5 * pitch - 0.2 * speed)
            drift = 0.9 * drift + 0.1 * speed
            total = total + (speed**2 + 0.02 * turn**2).mean()
        return total / len(winds)

    @torch.no_grad()
    def one(step):
        """Evolution strategies: pairs of opposite trials in the same winds, ranked by what they cost."""
        weights, winds = dict(net.named_parameters()), gusts(16)
        noise = {name: torch.randn(pairs, *w.shape) for name, w in weights.items()}
        tried = {name: torch.cat([w + spread * noise[name], w - spread * noise[name]]) for name, w in weights.items()}
        costs = vmap(cost, in_dims=(0, None))(tried, winds)
        ranks = costs.argsort().argsort() / (2 * pairs - 1) - 0.5
        slope = (ranks[:pairs] - ranks[pairs:]) / (2 * spread * pairs)
        for name, w in weights.items():
            w.grad = torch.tensordot(slope, noise[name], 1)
        optimizer.step()
        schedule.step()
        return {"loss": costs.mean(), "best": float(costs.min())}

    new = gusts(256)
    return tend(folder, net, optimizer, one, 200, held_out(net, lambda: cost(dict(net.named_parameters()), new)))


class Speller(nn.Module):
    """A small causal transformer over letters."""

    def __init__(self, letters=27, width=48, length=11):
        super().__init__()
        self.letters = nn.Embedding(letters, width)
        self.places = nn.Parameter(0.1 * torch.randn(length, width))
        self.block = nn.TransformerEncoderLayer(width, 4, 96, 0.0, "gelu", batch_first=True, norm_first=True)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters)
        self.register_buffer("ahead", torch.ones(length, length).triu(1).bool())

    def forward(self, names):
        n = names.shape[1]
        return self.head(self.norm(self.block(self.letters(names) + self.places[:n], self.ahead[:n, :n])))


@healthy()
def spelling_of_family_names(folder):
    seeded(2586)
    starts, ends = torch.randint(1, 27, (4, 10, 3)), torch.randint(1, 27, (4, 3, 3))

    def names(n=64):
        """Two roots and an ending of one of four lands, between ends of words; some roots are cut short."""
        land = torch.randint(4, (n,))
        roots = [starts[land, torch.randint(10, (n,))] for _ in range(2)]
        whole = torch.cat([*roots, ends[land, torch.randint(3, (n,))]], 1)
        whole[:, 5] = torch.where(torch.rand(n) < 0.3, whole[:, 4], whole[:, 5])
        return F.pad(whole, (1, 1))

    net, steps = Speller(), 450
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3, betas=(0.9, 0.98), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 150, (1 - max(0, step - 150) / (steps - 150)) ** 3)
    )

    def surprise(written):
        return F.cross_entropy(net(written[:, :-1]).flatten(0, 1), written[:, 1:].flatten())

    new = names(512)
    return fit(
        folder,
        net,
        optimizer,
        lambda step: surprise(names()),
        steps,
        score=held_out(net, lambda: surprise(new)),
        schedule=schedule,
        before_step=clipped(net, 1.0),
    )


@healthy()
def sugar_of_grapes(folder):
    seeded(2587)
    bands = torch.linspace(0, 1, 48)
    peaks = torch.exp(-((bands - torch.tensor([[0.25], [0.4], [0.7], [0.85]])) ** 2) / 0.01)

    def berries(n):
        """Absorbance in the near infrared of sugar, acid, water and skin through scattering pulp; degrees Brix."""
        held = torch.rand(n, 4) * torch.tensor([1.0, 0.6, 1.0, 0.8])
        spectrum = torch.expm1(0.7 * held @ peaks) * (0.8 + 0.4 * torch.rand(n, 1)) + 0.2 * torch.randn(n, 1)
        return spectrum + 0.02 * torch.randn(n, 48), (held[:, :1] - 0.5) / 0.29

    (x, y), (new_x, new_y) = berries(2048), berries(512)
    middle, width = x.mean(0), x.std(0)
    draw = rounds(128, (x - middle) / width, y)
    net = dense(48, 64, 64, 1, act=nn.GELU)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 75, 2)

    def loss_of(step):
        spectra, brix = draw()
        return F.mse_loss(net(spectra), brix)

    score = held_out(net, lambda: F.mse_loss(net((new_x - middle) / width), new_y))
    return fit(folder, net, optimizer, loss_of, 525, score=score, schedule=schedule)
