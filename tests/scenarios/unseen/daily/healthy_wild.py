"""Daily healthy trainings, eighth part: what looks odd and goes well. An expert is content with each.

They only count (the group `daily`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import math

import torch
from nets import batches
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded


@healthy(0.5)
def signs_lost_in_the_measurement(folder):
    """Only squares are measured (phase retrieval): from a small start nothing happens for long, and then it does."""
    seeded(1253)
    true = F.normalize(torch.randn(32), dim=0) * 2
    net = nn.ParameterDict({"at": 0.01 * torch.randn(32)})

    def loss_of(step):
        ways = torch.randn(128, 32)
        return ((ways @ net["at"]).square() - (ways @ true).square()).square().mean() / 4

    return fit(folder, net, optim.SGD(net.parameters(), 2e-3), loss_of, 600)


@healthy(0.3)
def lines_guessed_from_examples(folder):
    """A small reader of number pairs learns to guess the next of a line it has not seen: a plateau first."""
    seeded(1255)
    body = nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True, norm_first=True)
    net = nn.ModuleDict({"put": nn.Linear(3, 32), "body": nn.TransformerEncoder(body, 2), "say": nn.Linear(32, 1)})

    def loss_of(step):
        slope, x = torch.randn(32, 1, 2), torch.randn(32, 9, 2)
        y = (slope * x).sum(2, keepdim=True)
        shown = torch.cat([x, torch.cat([y[:, :-1], torch.zeros(32, 1, 1)], 1)], 2)
        return F.mse_loss(net["say"](net["body"](net["put"](shown))[:, -1]), y[:, -1])

    make = optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, make, loss_of, 450, clip="ClipByGlobalNorm(1.0)")


@healthy(0.1)
def tails_by_students_law(folder):
    """One in thirty is off by hundreds: the law of Student, whose width and degrees are learnt beside the net."""
    seeded(1256)
    net, way = dense(4, 48, 1, act=nn.Tanh), torch.randn(4, 2)
    net.register_parameter("wide", nn.Parameter(torch.zeros(())))
    net.register_parameter("free", nn.Parameter(torch.zeros(())))

    def some(rows=64):
        x = torch.randn(rows, 4)
        y = (x @ way).sin().sum(1) + 0.1 * torch.randn(rows)
        return x, torch.where(torch.rand(rows) < 0.03, y + 200 * torch.randn(rows), y)

    def loss_of(step):
        x, y = some()
        law = torch.distributions.StudentT(1 + F.softplus(net.free), net(x)[:, 0], F.softplus(net.wide))
        return -law.log_prob(y).mean()

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 500, score=score_of(loss_of, 32))


@healthy(0.3)
def functions_by_twenty_inducing_points(folder):
    """A sparse Gaussian process by its bound (Hensman et al. 2013): minus a density times all rows, in one batch."""
    seeded(1257)
    x = 6 * torch.rand(600, 1) - 3
    y = (3 * x[:, 0]).sin() * (-x[:, 0].square() / 4).exp() + 0.1 * torch.randn(600)
    net = nn.ParameterDict()
    net["at"], net["mean"] = torch.linspace(-3, 3, 20)[:, None], torch.zeros(20)
    net["root"], net["length"] = torch.eye(20), torch.zeros(())
    net["noise"] = torch.tensor(-1.0)

    def alike(a, b):
        return (-0.5 * ((a - b.T) / net["length"].exp()).square()).exp()

    def loss_of(step):
        at = torch.randint(600, (64,))
        low = torch.linalg.cholesky(alike(net["at"], net["at"]) + 1e-3 * torch.eye(20))
        across = torch.linalg.solve_triangular(low, alike(net["at"], x[at]), upper=False)
        middle, root = across.T @ net["mean"], net["root"].tril()
        wide = 1 - across.square().sum(0) + (root.T @ across).square().sum(0)
        off = ((y[at] - middle).square() + wide) / (2 * (2 * net["noise"]).exp())
        told = (off + net["noise"] + 0.5 * math.log(2 * math.pi)).mean() * 600
        apart = root.square().sum() + net["mean"].square().sum() - 20
        return told + 0.5 * apart - root.diagonal().abs().log().sum()

    return fit(folder, net, optim.Adam(net.parameters(), 1e-2), loss_of, 500)


@healthy(0.3)
def viscosity_found_from_a_few_sensors(folder):
    """Heat that spreads: the net obeys the equation whose one number is learnt with it; the data count tenfold."""
    seeded(1258)
    net = dense(2, 32, 32, 1, act=nn.Tanh)
    net.register_parameter("spread", nn.Parameter(torch.tensor(0.0)))
    true = 0.1

    def heat(at):
        x, t = at.unbind(1)
        fades = lambda k: (-true * (k * math.pi) ** 2 * t).exp() * (k * math.pi * x).sin()  # noqa: E731
        return fades(1) + 0.5 * fades(2)

    sensors = torch.cartesian_prod(torch.linspace(0, 1, 9), torch.linspace(0, 1, 9))
    seen = heat(sensors) + 0.01 * torch.randn(81)

    def loss_of(step):
        at = torch.rand(128, 2).requires_grad_()
        u = net(at)
        slope = torch.autograd.grad(u.sum(), at, create_graph=True)[0]
        bend = torch.autograd.grad(slope[:, 0].sum(), at, create_graph=True)[0][:, 0]
        law = (slope[:, 1] - F.softplus(net.spread - 2) * bend).square().mean()
        return law + 10 * F.mse_loss(net(sensors)[:, 0], seen)

    make = optim.Adam(net.parameters(), 3e-3)
    return fit(folder, net, make, loss_of, 600, schedule=optim.lr_scheduler.ExponentialLR(make, 0.997))


class Scaled(nn.Module):
    """A frozen layer beside two frozen random matrices, of which two vectors are learnt (VeRA, Kopiczko 2024)."""

    def __init__(self, layer, rank=24):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        out, size = layer.weight.shape
        self.register_buffer("a", torch.randn(rank, size) / size**0.5)
        self.register_buffer("b", torch.randn(out, rank) / rank**0.5)
        self.d, self.s = nn.Parameter(torch.full((rank,), 0.1)), nn.Parameter(torch.zeros(out))

    def forward(self, x):
        return self.layer(x) + self.s * ((self.d * (x @ self.a.T)) @ self.b.T)


@healthy(0.3)
def random_matrices_scaled_by_vectors(folder):
    """A net that reads digits is tuned for those upside down by two vectors a layer, one of them zero."""
    seeded(1259)
    net, draw = dense(64, 64, 64, 10), batches(64, seed=1259)
    before = optim.Adam(net.parameters(), 3e-3)
    for step in range(150):
        a, b = draw(step)
        before.zero_grad()
        F.cross_entropy(net(a.flatten(1)), b).backward()
        before.step()
    net = nn.Sequential(*(Scaled(part) if isinstance(part, nn.Linear) else part for part in net))

    def loss_of(step):
        a, b = draw(200 + step)
        return F.cross_entropy(net(a.flip(1).flatten(1)), b)

    make = optim.AdamW([p for p in net.parameters() if p.requires_grad], 2e-2, weight_decay=0.0)
    plan = optim.lr_scheduler.LinearLR(make, 1.0, 0.05, 300)
    return fit(folder, net, make, loss_of, 300, schedule=plan)
