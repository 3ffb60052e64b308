"""Sound trainings with optimizers written by hand: signs, orthogonal steps, Kronecker factors, a look ahead."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded, square_of

# ---------------------------------------------------------------------------------------------------- violin, by signs


class SignDescent(torch.optim.Optimizer):
    """Every weight moves by the rate, whichever way its averaged gradient points."""

    def __init__(self, params, lr=1e-3, momentum=0.9):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                average = self.state[p].setdefault("average", torch.zeros_like(p))
                average.lerp_(p.grad, 1 - group["momentum"])
                p.sub_(average.sign(), alpha=group["lr"])


def bowed_notes(batch=48, samples=128):
    """`draw()`: log spectra of a bowed string, and by how many octaves its pitch is above the open G."""
    time, harmonics = torch.arange(samples), torch.arange(1, 7)
    window = torch.hann_window(samples)

    def draw():
        octaves = 1.5 * torch.rand(batch, 1)
        pitch = 0.025 * 2**octaves
        turns = pitch[:, :, None] * harmonics[:, None] * time + torch.rand(batch, 6, 1)
        loudness = (0.5 + torch.rand(batch, 6, 1)) / harmonics[:, None]
        sound = (loudness * (2 * math.pi * turns).sin()).sum(1) + 0.02 * torch.randn(batch, samples)
        return torch.fft.rfft(sound * window).abs()[:, :48].log1p(), octaves

    return draw


@healthy()
def pitch_of_a_violin_string(folder):
    seeded(2752)
    net = dense(48, 64, 64, 1, act=nn.GELU)
    optimizer = SignDescent(net.parameters(), lr=1e-3)
    loss_of = square_of(net, bowed_notes())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)
    return fit(folder, net, optimizer, loss_of, 400, score=score_of(loss_of), schedule=schedule)


# -------------------------------------------------------------------------------------- galaxies, by orthogonal steps


def orthogonal(matrix, rounds=5):
    """The nearest matrix whose singular values are about one, by Newton and Schulz."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(rounds):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """Orthogonal steps for groups with `orthogonal`, those of Adam for the others."""

    def __init__(self, groups):
        super().__init__(groups, {"lr": 1e-3, "momentum": 0.95, "betas": (0.9, 0.99), "orthogonal": False})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                move = self.turned(p, group) if group["orthogonal"] else self.scaled(p, group)
                p.sub_(move, alpha=group["lr"])

    def turned(self, p, group):
        momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
        momentum.mul_(group["momentum"]).add_(p.grad)
        ahead = p.grad.add(momentum, alpha=group["momentum"]).flatten(1)
        return orthogonal(ahead).view_as(p) * max(1, ahead.shape[0] / ahead.shape[1]) ** 0.5

    def scaled(self, p, group):
        state, (b1, b2) = self.state[p], group["betas"]
        state["steps"] = state.get("steps", 0) + 1
        first = state.setdefault("first", torch.zeros_like(p)).lerp_(p.grad, 1 - b1)
        second = state.setdefault("second", torch.zeros_like(p)).lerp_(p.grad.square(), 1 - b2)
        return first / (1 - b1 ** state["steps"]) / ((second / (1 - b2 ** state["steps"])).sqrt() + 1e-8)


def galaxies(batch=64, size=16):
    """`draw()`: pictures of smooth, edge-on, left-handed and right-handed galaxies, and which they are."""
    line = torch.linspace(-1, 1, size)
    y, x = torch.meshgrid(line, line, indexing="ij")

    def draw():
        kind, tilt = torch.randint(4, (batch,)), math.pi * torch.rand(batch, 1, 1)
        along, across = x * tilt.cos() + y * tilt.sin(), y * tilt.cos() - x * tilt.sin()
        flat = torch.where(kind == 1, 4.0, 1.2)[:, None, None]
        radius = (along.square() + (across * flat).square()).sqrt() + 0.05
        hand = (kind == 2).float() - (kind == 3).float()
        arms = 2 * torch.atan2(across, along) + 4 * hand[:, None, None] * radius.log()
        light = (-3 * radius).exp() * (1 + 0.8 * (hand != 0)[:, None, None] * arms.cos())
        return (light + 0.25 * torch.randn(batch, size, size))[:, None] * 2, kind

    return draw


@healthy()
def handedness_of_galaxies(folder):
    seeded(2753)
    eye = [nn.Conv2d(1, 12, 3, padding=1), nn.GELU(), nn.Conv2d(12, 24, 3, 2, 1), nn.GELU(), nn.Conv2d(24, 24, 3, 2, 1)]
    net = nn.Sequential(*eye, nn.GELU(), nn.Flatten(), nn.Linear(24 * 16, 48), nn.GELU(), nn.Linear(48, 4))
    last = net[-1].weight
    matrices = [p for p in net.parameters() if p.ndim > 1 and p is not last]
    others = [p for p in net.parameters() if p.ndim == 1 or p is last]
    optimizer = Muon([{"params": matrices, "lr": 0.02, "orthogonal": True}, {"params": others, "lr": 2e-3}])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 350)
    draw = galaxies()

    def loss_of(step):
        x, y = draw()
        found = net(x)
        return F.cross_entropy(found, y), {"accuracy": float((found.argmax(1) == y).float().mean())}

    score = score_of(lambda step: loss_of(step)[0])
    return fit(folder, net, optimizer, loss_of, 350, score=score, schedule=schedule)


# ----------------------------------------------------------------------------------------- tides, by Kronecker factors


class Shampoo(torch.optim.Optimizer):
    """A gradient is divided, on each side, by the fourth root of all its squares so far; a vector as Adagrad does."""

    def __init__(self, params, lr=0.1, eps=1e-3, every=5):
        super().__init__(params, {"lr": lr, "eps": eps, "every": every})

    @staticmethod
    def root(square):
        values, vectors = torch.linalg.eigh(square)
        return vectors * values.clamp(min=1e-8) ** -0.25 @ vectors.T

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                move = self.matrix(p, group) if p.ndim == 2 else self.vector(p, group)
                p.sub_(move, alpha=group["lr"])

    def matrix(self, p, group):
        state, grad = self.state[p], p.grad
        if not state:
            state["left"], state["right"] = (group["eps"] * torch.eye(n) for n in p.shape)
            state["steps"] = 0
        state["left"] += grad @ grad.T
        state["right"] += grad.T @ grad
        if state["steps"] % group["every"] == 0:
            state["left root"], state["right root"] = self.root(state["left"]), self.root(state["right"])
        state["steps"] += 1
        return state["left root"] @ grad @ state["right root"]

    def vector(self, p, group):
        squares = self.state[p].setdefault("squares", torch.full_like(p, group["eps"]))
        squares.add_(p.grad.square())
        return p.grad / squares.sqrt()


def tide_gauge(batch=64, hours=24, ahead=6):
    """`draw()`: a day of hourly heights of the sea, and the height six hours on."""
    periods = torch.tensor([12.42, 12.0, 23.93, 25.82])
    heights, phases = torch.tensor([1.2, 0.5, 0.4, 0.3]), 6.283 * torch.rand(4)

    def draw():
        start = 8760 * torch.rand(batch, 1, 1)
        time = start + torch.cat([torch.arange(hours), torch.tensor([hours - 1 + ahead])])[:, None]
        sea = (heights * (6.283 * time / periods + phases).sin()).sum(2)
        shallow = sea + 0.15 * sea.square() + 0.03 * torch.randn(batch, hours + 1)
        return shallow[:, :-1], shallow[:, -1:]

    return draw


@healthy()
def tides_of_a_harbour_six_hours_on(folder):
    seeded(2754)
    net = dense(24, 32, 32, 1, act=nn.Tanh)
    loss_of = square_of(net, tide_gauge())
    return fit(folder, net, Shampoo(net.parameters(), lr=0.03), loss_of, 400, score=score_of(loss_of))


# ---------------------------------------------------------------------------------------------- cheese, on flat ground


class Sam(torch.optim.Optimizer):
    """Momentum along the gradient that is found a little way uphill, where the loss is worst nearby."""

    def __init__(self, params, lr=0.05, momentum=0.9, reach=0.05):
        super().__init__(params, {"lr": lr, "momentum": momentum, "reach": reach})

    def weights(self):
        return [(p, group) for group in self.param_groups for p in group["params"]]

    def step(self, closure):
        loss = closure()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p, _ in self.weights()]).norm() + 1e-12
            climbs = [p.grad * (group["reach"] / norm) for p, group in self.weights()]
            for (p, _), climb in zip(self.weights(), climbs, strict=True):
                p.add_(climb)
        closure()
        with torch.no_grad():
            for (p, group), climb in zip(self.weights(), climbs, strict=True):
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                momentum.mul_(group["momentum"]).add_(p.grad)
                p.sub_(climb).sub_(momentum, alpha=group["lr"])
        return loss


class Ripening(nn.Module):
    """Reads the log of a cellar day by day and tells how moist the cheese has stayed."""

    def __init__(self):
        super().__init__()
        self.days, self.moisture = nn.GRU(3, 24, batch_first=True), nn.Linear(24, 1)

    def forward(self, log):
        return self.moisture(self.days(log)[0][:, -1])


def cellar_logs(wheels, days=20):
    """Temperature, humidity and salt of each day, standardized, and the moisture that is left, standardized."""
    log = torch.randn(wheels, days, 3) + torch.randn(wheels, 1, 3)
    moisture = torch.ones(wheels)
    for warm, humid, salt in log.permute(1, 2, 0):
        moisture = moisture * (1 - 0.04 * torch.sigmoid(warm - humid) - 0.01 * torch.sigmoid(salt))
    moisture = moisture + 0.005 * torch.randn(wheels)
    return log, ((moisture - moisture.mean()) / moisture.std())[:, None]


@healthy()
def moisture_of_a_ripening_cheese(folder):
    seeded(2755)
    net, steps = Ripening(), 300
    log, moisture = cellar_logs(2048)
    batches = [torch.randperm(1792)[:64] for _ in range(steps)]
    optimizer = Sam(net.parameters(), lr=0.03)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    def loss_of(step):
        rows = batches[step]
        return F.mse_loss(net(log[rows]), moisture[rows])

    def score():
        with torch.no_grad():
            return float(F.mse_loss(net(log[1792:]), moisture[1792:]))

    return fit(folder, net, optimizer, loss_of, steps, score=score, closure=True, schedule=schedule)


# --------------------------------------------------------------------------------------------- robot arm, a look ahead


def hand_of(angles, lengths=(1.0, 0.8, 0.5)):
    """Where the hand of an arm of three joints is."""
    turned = angles.cumsum(1)
    reach = torch.tensor(lengths)
    return torch.stack([(reach * turned.cos()).sum(1), (reach * turned.sin()).sum(1)], 1)


def lookahead(net, every=5, share=0.5):
    """`after_step(step)`: the weights go back, every few steps, to between where they were and where they are."""
    slow = [p.detach().clone() for p in net.parameters()]

    @torch.no_grad()
    def after_step(step):
        if step % every == every - 1:
            for kept, p in zip(slow, net.parameters(), strict=True):
                kept.lerp_(p, share)
                p.copy_(kept)

    return after_step


@healthy()
def arm_that_reaches_for_a_point(folder):
    seeded(2756)
    net = dense(2, 64, 64, 3, act=nn.SiLU)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)

    def loss_of(step):
        angle, distance = 3.1416 * torch.rand(128), 0.6 + 1.4 * torch.rand(128)
        target = torch.stack([angle.cos(), angle.sin()], 1) * distance[:, None]
        return (hand_of(net(target)) - target).square().sum(1).mean()

    score = score_of(loss_of)
    return fit(folder, net, optimizer, loss_of, 500, score=score, after_step=lookahead(net), schedule=schedule)
