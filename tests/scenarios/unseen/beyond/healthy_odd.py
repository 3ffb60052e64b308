"""Sound trainings by optimizers that are rarely met, most of them written by hand."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, rounds, tend

# -------------------------------------------------------------------------------------------------------- sign descent


class SignDescent(torch.optim.Optimizer):
    """Every weight moves by the rate, against the sign of its gradient's running mean (Signum)."""

    def __init__(self, params, lr, momentum=0.9):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                average = self.state[p].setdefault("average", torch.zeros_like(p))
                average.lerp_(p.grad, 1 - group["momentum"])
                p.sub_(average.sign(), alpha=group["lr"])


@healthy()
def gravity_of_a_fermenting_wort(folder):
    seeded(2330)
    net, days = dense(4, 64, 64, 12), torch.linspace(0, 2, 12)
    optimizer = SignDescent(net.parameters(), lr=2e-3)

    def loss_of(step):
        recipe = torch.randn(128, 4)
        sugar, warmth, pitch, hardness = recipe[:, :, None].unbind(1)
        pace = 4 + warmth.tanh() + pitch.tanh()
        gravity = (1 + 0.2 * sugar) * torch.sigmoid(pace * (1 - days) + 0.5 * hardness) - 0.5
        error = F.mse_loss(net(recipe), gravity + 0.02 * torch.randn(128, 12))
        return error, {"gravity_off_by": error.detach().sqrt()}

    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, 600)
    return fit(folder, net, optimizer, loss_of, 600, schedule=schedule)


# ---------------------------------------------------------------------------------------------------------------- Lion


class Lion(torch.optim.Optimizer):
    """The sign of a mixture of gradient and momentum, with decoupled decay."""

    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=1.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            near, far = group["betas"]
            for p in (p for p in group["params"] if p.grad is not None):
                momentum = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(torch.lerp(p.grad, momentum, near).sign(), alpha=group["lr"])
                momentum.lerp_(p.grad, 1 - far)


class DelayNet(nn.Module):
    """Minutes of delay of a tram, from its stop, the hour and the rain."""

    def __init__(self, stops):
        super().__init__()
        self.stop = nn.Embedding(stops, 8)
        self.body = dense(8 + 3, 64, 64, 1, act=nn.GELU)

    def forward(self, stop, hour, rain):
        turn = hour * math.pi / 12
        return self.body(torch.cat([self.stop(stop), turn.sin(), turn.cos(), rain], 1))[:, 0]


@healthy()
def delays_of_the_morning_trams(folder):
    seeded(2331)
    net, crowd = DelayNet(40), torch.rand(40)
    optimizer = Lion(net.parameters(), lr=1.5e-3, weight_decay=1.0)

    def draw():
        stop, hour, rain = torch.randint(40, (128,)), 24 * torch.rand(128, 1), torch.rand(128, 1)
        rush = torch.exp(-((hour - 8) ** 2) / 6) + torch.exp(-((hour - 17) ** 2) / 8)
        late = 4 * crowd[stop] * rush[:, 0] * (1 + rain[:, 0]) + 0.2 * torch.randn(128)
        return (stop, hour, rain), late

    def loss_of(step):
        journey, late = draw()
        said = net(*journey)
        return F.huber_loss(said, late), {"minutes_off": (said - late).detach().abs().mean()}

    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 800)
    return fit(folder, net, optimizer, loss_of, 800, schedule=schedule)


# ---------------------------------------------------------------------------------------------- orthogonalised momentum


def nearest_orthogonal(matrix, rounds=5):
    """All singular values brought near to one by Newton and Schulz's iteration."""
    wide = matrix.shape[0] <= matrix.shape[1]
    x = matrix if wide else matrix.T
    x = x / (x.norm() + 1e-7)
    for _ in range(rounds):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x if wide else x.T


class Orthogonal(torch.optim.Optimizer):
    """Nesterov's momentum whose matrices are orthogonalised; a kernel counts as the matrix of its output channels."""

    def __init__(self, params, lr, momentum=0.95):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                average = self.state[p].setdefault("momentum", torch.zeros_like(p))
                average.lerp_(p.grad, 1 - group["momentum"])
                ahead = torch.lerp(p.grad, average, group["momentum"]).flatten(1)
                stretch = max(1, ahead.shape[0] / ahead.shape[1]) ** 0.5
                p.sub_(nearest_orthogonal(ahead).view_as(p), alpha=group["lr"] * stretch)


def seismograms(rows, length=64):
    """Noise in which a shaking of random pitch sets in at the sample that is asked for."""
    onset, time = torch.randint(8, length - 8, (rows,)), torch.arange(length)
    since = (time - onset[:, None]).clamp(min=0) * 1.0
    pitch = 0.4 + 0.8 * torch.rand(rows, 1)
    shaking = (since > 0) * 2 * torch.exp(-since / 12) * (pitch * since).sin()
    return (shaking + 0.2 * torch.randn(rows, length))[:, None], onset


@healthy()
def first_arrivals_in_seismograms(folder):
    seeded(2332)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 9, padding=4), nn.GELU(),
        nn.Conv1d(16, 24, 9, padding=4), nn.GELU(),
        nn.Conv1d(24, 24, 9, padding=4), nn.GELU(),
        nn.Conv1d(24, 1, 1), nn.Flatten(),
    )  # fmt: skip
    matrices = [net[2].weight, net[4].weight]
    others = [p for p in net.parameters() if all(p is not m for m in matrices)]
    optimizers = [Orthogonal(matrices, lr=0.02), torch.optim.AdamW(others, lr=3e-3)]
    schedules = [torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.05, 350) for o in optimizers]

    def score():
        trace, onset = seismograms(512)
        with torch.no_grad():
            return (net(trace).argmax(1) - onset).abs().double().mean()

    def one(step):
        trace, onset = seismograms(64)
        loss = F.cross_entropy(net(trace), onset)
        net.zero_grad()
        loss.backward()
        for part in optimizers + schedules:
            part.step()
        return {"loss": loss}

    return tend(folder, net, optimizers, one, 350, score)


# --------------------------------------------------------------------------------------------------- preconditioned


def fourth_root_inverse(gram):
    values, vectors = torch.linalg.eigh(gram)
    return (vectors * values.clamp(min=1e-6) ** -0.25) @ vectors.T


class Shampoo(torch.optim.Optimizer):
    """Both sides of a matrix preconditioned by the sums of its gradients' squares; vectors by their diagonal."""

    def __init__(self, params, lr, every=10, epsilon=1e-3):
        super().__init__(params, {"lr": lr, "every": every, "epsilon": epsilon})

    def start(self, p, epsilon):
        grams = [epsilon * torch.eye(size) for size in p.shape] if p.ndim == 2 else [torch.full_like(p, epsilon)]
        return {"count": 0, "grams": grams, "roots": []}

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p] = self.state.get(p) or self.start(p, group["epsilon"])
                p.sub_(self.direction(p.grad, state, group["every"]), alpha=group["lr"])

    def direction(self, grad, state, every):
        if grad.ndim == 1:
            state["grams"][0].add_(grad**2)
            return grad * state["grams"][0].rsqrt()
        left, right = state["grams"]
        left.add_(grad @ grad.T)
        right.add_(grad.T @ grad)
        if state["count"] % every == 0:
            state["roots"] = [fourth_root_inverse(left), fourth_root_inverse(right)]
        state["count"] += 1
        return state["roots"][0] @ grad @ state["roots"][1]


@healthy()
def worn_letterpress_glyphs(folder):
    seeded(2333)
    strokes = (F.interpolate(torch.randn(10, 1, 4, 4), size=8, mode="bilinear") > 0).float()[:, 0]
    net = nn.Sequential(nn.Flatten(), dense(64, 48, 10))
    optimizer = Shampoo(net.parameters(), lr=0.15)

    def loss_of(step):
        letter, shift = torch.randint(10, (96,)), int(torch.randint(-1, 2, ()))
        inked = strokes[letter].roll(shift, 2) * (torch.rand(96, 8, 8) > 0.15)
        guess = net(inked + 0.3 * torch.randn(96, 8, 8) - 0.45)
        right = (guess.argmax(1) == letter).double().mean()
        return F.cross_entropy(guess, letter), {"accuracy": right}

    return fit(folder, net, optimizer, loss_of, 400)


# ------------------------------------------------------------------------------------------------ sharpness-aware steps


@torch.no_grad()
def climb(net, radius):
    """Goes uphill by `radius`; hands back what has to be taken off again."""
    ways = [p.grad.clone() for p in net.parameters()]
    size = torch.stack([way.norm() for way in ways]).norm() + 1e-12
    for p, way in zip(net.parameters(), ways, strict=True):
        p.add_(way.mul_(radius / size))
    return ways


@torch.no_grad()
def come_down(net, ways):
    for p, way in zip(net.parameters(), ways, strict=True):
        p.sub_(way)


@healthy()
def provenance_of_timber_by_its_rings(folder):
    seeded(2334)
    climate = torch.randn(5, 30).cumsum(1) * 0.3

    def timber(rows):
        site = torch.randint(5, (rows,))
        age_trend = torch.randn(rows, 1) * torch.linspace(1, -1, 30)
        return climate[site] - climate.mean() + age_trend + 0.8 * torch.randn(rows, 30), site

    net, draw, kept = dense(30, 64, 64, 5), rounds(64, *timber(1500)), timber(1000)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 450)

    def score():
        with torch.no_grad():
            return F.cross_entropy(net(kept[0]), kept[1])

    def one(step):
        widths, site = draw()
        optimizer.zero_grad()
        loss = F.cross_entropy(net(widths), site)
        loss.backward()
        ways = climb(net, 0.05)
        optimizer.zero_grad()
        F.cross_entropy(net(widths), site).backward()
        come_down(net, ways)
        optimizer.step()
        schedule.step()
        return {"loss": loss, **({"val_loss": score()} if step % 25 == 24 else {})}

    return tend(folder, net, optimizer, one, 450, score)


# ------------------------------------------------------------------------------------------------------ always clipped


@healthy()
def figure_errors_of_a_ground_lens(folder):
    seeded(2337)
    spots, nanometres = torch.randn(6, 32) / 6**0.5, 120.0
    net = dense(32, 96, 96, 6, act=nn.SiLU)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def loss_of(step):
        figure = torch.randn(128, 6)
        interference = (figure @ spots).sin() + 0.05 * torch.randn(128, 32)
        error = (nanometres * (net(interference) - figure)).square().sum(1).mean()
        return error, {"rms_nm": error.detach().sqrt()}

    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600)
    unit_length = clipped(net, 1.0)
    return fit(folder, net, optimizer, loss_of, 600, before_step=unit_length, schedule=schedule)


@healthy()
def mushrooms_by_what_foragers_say(folder):
    seeded(2357)
    words, kinds, said = 300, 6, 20
    habit = torch.softmax(1.2 * torch.randn(kinds, words), 1)
    kind = torch.randint(kinds, (6000,))
    heard = torch.multinomial(habit[kind], said, replacement=True)
    shares = F.one_hot(heard, words).float().mean(1)
    net = nn.Linear(words, kinds, bias=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=30.0)

    def loss_of(step):
        rows = torch.randint(len(kind), (64,))
        return F.cross_entropy(net(shares[rows]), kind[rows])

    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, 3000)
    return fit(folder, net, optimizer, loss_of, 3000, schedule=schedule)
