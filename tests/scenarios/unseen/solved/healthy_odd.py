"""Odd optimizers, most of them by hand: votes of signs, Lion, Muon beside Adam, Kronecker factors, sharpness-aware."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR
from unseen import dense, entropy_of, fit, healthy, score_of, seeded, square_of
from unseen.tasks import tend


def perfumes(ingredients=10):
    """`draw(rows)`: shares of ingredients, and how strong the top, the heart and the base of the scent are."""
    fading = torch.linspace(0.1, 3.0, ingredients)
    strength = torch.rand(ingredients) + 0.5
    hours = torch.tensor([0.1, 1.0, 4.0])

    def draw(rows):
        shares = (1.5 * torch.randn(rows, ingredients)).softmax(1)
        smelled = (shares * strength) @ torch.exp(-fading[:, None] * hours)
        return (shares - 1 / ingredients) * ingredients, smelled.clamp_min(0.01).log()

    return draw


@healthy()
def chords_of_a_perfume(folder, voters=5):
    seeded(2656)
    draw, net = perfumes(), dense(10, 64, 64, 3, act=nn.GELU)
    optimizer = torch.optim.SGD(net.parameters(), lr=2e-3)
    schedule = LambdaLR(optimizer, lambda step: 1 - step / 400)
    weights = list(net.parameters())
    momenta = [[torch.zeros_like(w) for w in weights] for _ in range(voters)]

    def vote(momentum):
        shares, smelled = draw(32)
        loss = F.mse_loss(net(shares), smelled)
        for kept, grad in zip(momentum, torch.autograd.grad(loss, weights), strict=True):
            kept.lerp_(grad, 0.1)
        return loss.detach()

    def one(step):
        losses = [vote(momentum) for momentum in momenta]
        for w, *ballots in zip(weights, *momenta, strict=True):
            w.grad = torch.stack([ballot.sign() for ballot in ballots]).sum(0).sign()
        optimizer.step()
        schedule.step()
        return {"loss": torch.stack(losses).mean()}

    return tend(folder, net, optimizer, one, 400, score_of(lambda step: F.mse_loss(*predicted(net, draw(256)))))


def predicted(net, batch):
    x, y = batch
    return net(x), y


class Lion(torch.optim.Optimizer):
    """The sign of an interpolated momentum, with decoupled weight decay."""

    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            near, far = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                momentum = state.setdefault("momentum", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(torch.lerp(p.grad, momentum, near).sign(), alpha=-group["lr"])
                momentum.lerp_(p.grad, 1 - far)


def barrels(joints=12):
    """`draw()`: gaps between the staves and the pull of the hoops; the leak, by the cube of a gap, on a log scale."""

    def draw():
        gaps, pull = torch.randn(128, joints), torch.rand(128, 1) * 2 - 1
        left_open = F.relu(0.5 * gaps + 0.5 - 0.4 * pull)
        leak = left_open.pow(3).sum(1, keepdim=True)
        return torch.cat([gaps, pull], 1), torch.log1p(leak) + 0.05 * torch.randn(128, 1)

    return draw


@healthy()
def leaks_of_coopered_barrels(folder):
    seeded(2657)
    net = dense(13, 64, 64, 1, act=nn.SiLU)
    optimizer = Lion(net.parameters(), lr=1e-3, weight_decay=1.0)
    loss_of = square_of(net, barrels())
    return fit(
        folder, net, optimizer, loss_of, 700, schedule=CosineAnnealingLR(optimizer, 700), score=score_of(loss_of)
    )


class Muon(torch.optim.Optimizer):
    """Momentum whose singular values are brought near one by Newton-Schulz."""

    def __init__(self, params, lr, momentum=0.95):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                kept = self.state[p].setdefault("momentum", torch.zeros_like(p))
                kept.lerp_(p.grad, 1 - group["momentum"])
                way = even_singular_values(torch.lerp(p.grad, kept, group["momentum"]))
                p.add_(way, alpha=-group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5)


def even_singular_values(matrix, rounds=5):
    x = matrix / (matrix.norm() + 1e-7)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for _ in range(rounds):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.T if tall else x


def saffron(grades=4, bands=24):
    """`draw()`: absorption in so many bands by three dyes, whose amounts and age make the grade."""
    light = torch.linspace(0, 1, bands)
    peaks = torch.exp(-((light[None] - torch.tensor([0.2, 0.45, 0.8])[:, None]) ** 2) / 0.02)

    def draw():
        dyes = torch.rand(96, 3)
        merit = dyes[:, 0] * (1 - 0.5 * dyes[:, 1]) + 0.3 * dyes[:, 2] ** 2
        grade = torch.bucketize(merit, torch.tensor([0.25, 0.45, 0.68]))
        absorbed = torch.log1p(3 * dyes @ peaks) + 0.02 * torch.randn(96, bands)
        return (absorbed - 0.5) * 2, grade

    return draw


@healthy()
def grades_of_saffron(folder):
    seeded(2658)
    net = dense(24, 64, 64, 4)
    hidden = [net[2].weight]
    rest = [p for p in net.parameters() if p is not hidden[0]]
    optimizers = [Muon(hidden, lr=0.02), torch.optim.AdamW(rest, lr=2e-3, weight_decay=0.01)]
    schedules = [LambdaLR(o, lambda step: min(1, 2 * (1 - step / 500))) for o in optimizers]
    loss_of = entropy_of(net, saffron())

    def one(step):
        net.zero_grad()
        loss = loss_of(step)
        loss.backward()
        for part in (*optimizers, *schedules):
            part.step()
        return {"loss": loss}

    return tend(folder, net, optimizers, one, 500, score_of(loss_of))


class Kronecker(torch.optim.Optimizer):
    """Gradients between the inverse fourth roots of their row and column covariances (Shampoo); RMS for vectors."""

    def __init__(self, params, lr, beta=0.95, momentum=0.9, every=10):
        super().__init__(params, {"lr": lr, "beta": beta, "momentum": momentum, "every": every})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["step"] = state.get("step", 0) + 1
                way = self.of_matrix(p.grad, state, group) if p.dim() == 2 else self.of_vector(p.grad, state, group)
                kept = state.setdefault("momentum", torch.zeros_like(p))
                kept.lerp_(way, 1 - group["momentum"])
                p.add_(kept, alpha=-group["lr"])

    def of_matrix(self, grad, state, group):
        sides = state.setdefault("sides", [torch.zeros(n, n) for n in grad.shape])
        for side, covariance in zip(sides, (grad @ grad.T, grad.T @ grad), strict=True):
            side.lerp_(covariance, 1 - group["beta"])
        if state["step"] % group["every"] == 1:
            seen = 1 - group["beta"] ** state["step"]
            state["roots"] = [inverse_fourth_root(side / seen) for side in sides]
        left, right = state["roots"]
        return left @ grad @ right

    def of_vector(self, grad, state, group):
        square = state.setdefault("square", torch.zeros_like(grad)).lerp_(grad.square(), 1 - group["beta"])
        return grad / ((square / (1 - group["beta"] ** state["step"])).sqrt() + 1e-8)


def inverse_fourth_root(covariance):
    values, vectors = torch.linalg.eigh(covariance)
    return vectors * (values.clamp_min(0) + 1e-3 * values.max() + 1e-12) ** -0.25 @ vectors.T


def drips(weeks=16):
    """`draw()`: the rain of so many weeks above a cave, and the drip that is left once the soil has had its share."""
    lag = torch.exp(-torch.arange(weeks).flip(0) / 4.0)

    def draw():
        rain = -torch.rand(128, weeks).clamp_min(1e-3).log()
        through = F.relu(rain - 0.7)
        drip = (through @ lag)[:, None]
        return rain - 1, torch.log(0.2 + drip) + 0.05 * torch.randn(128, 1)

    return draw


@healthy()
def drip_water_of_a_cave(folder):
    seeded(2659)
    net = dense(16, 48, 48, 1, act=nn.SiLU)
    optimizer = Kronecker(net.parameters(), lr=0.01)
    loss_of = square_of(net, drips())
    return fit(
        folder, net, optimizer, loss_of, 400, schedule=CosineAnnealingLR(optimizer, 400), score=score_of(loss_of)
    )


def slopes(layers=10):
    """`draw(rows)`: hardness and density of the layers of snow on a slope, and whether the slab on them slides."""

    def draw(rows):
        profile = torch.randn(rows, 2, layers)
        above = profile[:, 1].cumsum(1) / 3
        strength = profile[:, 0] - above
        margin = -torch.logsumexp(-2 * strength, 1) / 2 + 2.6
        return profile, (margin + 0.3 * torch.randn(rows) < 0).float()[:, None]

    return draw


@healthy()
def slab_on_a_snow_slope(folder, radius=0.05):
    seeded(2660)
    net = nn.Sequential(nn.Conv1d(2, 24, 3, padding=1), nn.ReLU(), nn.Conv1d(24, 24, 3, padding=1), nn.ReLU(),
                        nn.Flatten(), nn.Linear(240, 48), nn.ReLU(), nn.Linear(48, 1))  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    schedule = CosineAnnealingLR(optimizer, 500)
    draw = slopes()

    def backward(profile, slid):
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(net(profile), slid)
        loss.backward()
        return loss.detach()

    def uphill():
        grads = [p.grad for p in net.parameters()]
        norm = torch.stack([g.norm() for g in grads]).norm() + 1e-12
        return [radius * g / norm for g in grads]

    def moved(ways, sign):
        with torch.no_grad():
            for p, way in zip(net.parameters(), ways, strict=True):
                p.add_(way, alpha=sign)

    def one(step):
        batch = draw(128)
        loss = backward(*batch)
        ways = uphill()
        moved(ways, 1)
        sharp = backward(*batch)
        moved(ways, -1)
        optimizer.step()
        schedule.step()
        return {"loss": loss, "loss_uphill": sharp}

    def error(step):
        profile, slid = draw(512)
        return F.binary_cross_entropy_with_logits(net(profile), slid)

    return tend(folder, net, optimizer, one, 500, score_of(error))
