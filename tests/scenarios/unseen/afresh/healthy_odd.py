"""Healthy trainings of an unusual make, first part: memories that turn, layers without a depth, steps by themselves."""

from __future__ import annotations

import itertools
import math

import torch
from nets import batches, digits
from torch import nn, optim
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize
from unseen import dense, fit, healthy, rings, seeded
from unseen.tasks import tend


def flat_digits():
    """`[1797, 64]` between 0 and 1, and their labels."""
    x, y = digits()
    return x.flatten(1), y


# -------------------------------------------------------------------------------------------- memories and depths


class Turning(nn.Module):
    """A recurrent net whose matrix is a rotation, the exponential of a skew matrix, so that nothing fades."""

    def __init__(self, symbols, hidden):
        super().__init__()
        self.read = nn.Linear(symbols, hidden)
        self.turn = nn.Linear(hidden, hidden, bias=False)
        nn.init.eye_(self.turn.weight)
        parametrizations.orthogonal(self.turn, orthogonal_map="matrix_exp")
        angle = (torch.rand(hidden // 2) - 0.5) * 6
        with torch.no_grad():
            self.turn.weight = torch.block_diag(
                *(torch.stack([torch.stack([a.cos(), -a.sin()]), torch.stack([a.sin(), a.cos()])]) for a in angle)
            )
        self.shift = nn.Parameter(torch.zeros(hidden))
        self.write = nn.Linear(hidden, symbols)

    def forward(self, x):
        h = x.new_zeros(len(x), len(self.shift))
        out = []
        with parametrize.cached():
            for t in range(x.shape[1]):
                h = self.turn(h) + self.read(x[:, t])
                h = h.sign() * F.relu(h.abs() + self.shift)
                out.append(self.write(h))
        return torch.stack(out, 1)


@healthy(0.4)
def marks_said_again_after_a_wait(folder):
    """The copying task: four marks, ten blanks, then the four marks again; the loss idles at the guess of a blank."""
    seeded(901)
    net = Turning(8, 64)

    def draw():
        marks = torch.randint(6, (64, 4))
        blank = torch.full((64, 10), 6)
        x = torch.cat([marks, blank, torch.full((64, 1), 7), torch.full((64, 3), 6)], 1)
        y = torch.cat([torch.full((64, 14), 6), marks], 1)
        return F.one_hot(x, 8).float(), y

    def loss_of(step):
        x, y = draw()
        out = net(x)
        right = (out[:, -4:].argmax(2) == y[:, -4:]).float().mean()
        return F.cross_entropy(out.flatten(0, 1), y.flatten()), {"copied": right}

    def score():
        with torch.no_grad():
            x, y = draw()
            return F.cross_entropy(net(x)[:, -4:].flatten(0, 1), y[:, -4:].flatten())

    groups = [
        {"params": [p for n, p in net.named_parameters() if "parametrizations" in n], "lr": 3e-4},
        {"params": [p for n, p in net.named_parameters() if "parametrizations" not in n], "lr": 3e-3},
    ]
    return fit(folder, net, optim.RMSprop(groups, alpha=0.9), loss_of, 220, score=score)


class DistanceOverGradients(optim.Optimizer):
    """DoG: the farthest that one has been from the start, over the root of all squared gradients so far."""

    def __init__(self, params, lr=1.0, first=1e-5):
        super().__init__(params, {"lr": lr})
        self.all = [p for g in self.param_groups for p in g["params"]]
        self.start = [p.detach().clone() for p in self.all]
        size = torch.stack([p.norm() for p in self.start]).norm()
        self.far, self.sum = first * (1 + float(size)), 1e-12

    @torch.no_grad()
    def step(self, closure=None):
        self.sum += sum(float(p.grad.square().sum()) for p in self.all)
        moved = math.sqrt(sum(float((p - s).square().sum()) for p, s in zip(self.all, self.start, strict=True)))
        self.far = max(self.far, moved)
        for p in self.all:
            p.sub_(p.grad, alpha=self.param_groups[0]["lr"] * self.far / math.sqrt(self.sum))


@healthy(0.6)
def steps_as_long_as_the_way_already_gone(folder):
    """The rate is 1 and stays so; the first steps are of a hundred-thousandth and grow by themselves."""
    seeded(902)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip
    batch = batches(64, 902)
    optimizer = DistanceOverGradients(net.parameters())

    def loss_of(step):
        x, y = batch(step)
        return F.cross_entropy(net(x[:, None]), y), {"step_size": optimizer.far / math.sqrt(optimizer.sum)}

    return fit(folder, net, optimizer, loss_of, 450)


@healthy(0.5)
def outputs_that_hardly_change_from_one_moment_to_the_next(folder):
    """Slow features: the outputs are whitened in forward, the loss is how fast they move; no label, no target."""
    seeded(903)
    net = dense(8, 64, 64, 3, act=nn.Tanh)
    mix = torch.randn(6, 24)
    out = torch.randn(24, 8) / 5
    rates = torch.tensor([0.02, 0.033, 0.047, 0.9, 1.3, 2.1])

    def draw():
        start = torch.rand(256, 1) * 2000
        at = torch.stack([start, start + 1], 1)  # [B, 2, 1]
        return torch.tanh((at * rates).sin() @ mix * 0.7) @ out

    def loss_of(step):
        y = net(draw().flatten(0, 1))
        y = y - y.mean(0)
        root = torch.linalg.cholesky(y.T @ y / len(y) + 1e-4 * torch.eye(3))
        y = torch.linalg.solve_triangular(root, y.T, upper=False).T.unflatten(0, (-1, 2))
        return (y[:, 1] - y[:, 0]).square().mean()

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 450)


class Balance(nn.Module):
    """A deep equilibrium: z = tanh(Wz + Ux), solved without gradients; backward solves for the adjoint by hand."""

    def __init__(self, size, hidden):
        super().__init__()
        self.inject = nn.Linear(size, hidden)
        self.again = nn.Linear(hidden, hidden, bias=False)
        nn.init.normal_(self.again.weight, std=0.5 / math.sqrt(hidden))
        self.norm = nn.LayerNorm(hidden)
        self.rounds = 0

    def map(self, z, x):
        return torch.tanh(self.again(z) + x)

    def forward(self, x):
        x = self.norm(self.inject(x))
        with torch.no_grad():
            z = torch.zeros_like(x)
            for self.rounds in range(60):
                z, before = self.map(z, x), z
                if (z - before).norm() < 1e-3 * z.norm():
                    break
        z = self.map(z, x)
        if torch.is_grad_enabled():
            at = z.detach().requires_grad_()
            image = self.map(at, x)

            def solve(grad):
                total = grad
                for _ in range(30):
                    total, last = torch.autograd.grad(image, at, total, retain_graph=True)[0] + grad, total
                    if (total - last).norm() < 1e-3 * total.norm():
                        break
                return total

            z.register_hook(solve)
        return z


@healthy(0.6)
def states_found_where_they_stand_still(folder):
    seeded(904)
    body = Balance(64, 80)
    net = nn.Sequential(body, nn.Linear(80, 10))
    batch = batches(64, 904)

    def loss_of(step):
        x, y = batch(step)
        return F.cross_entropy(net(x.flatten(1)), y), {"solver_rounds": float(body.rounds)}

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 350)


# ----------------------------------------------------------------------------------- layers without a common gradient


@healthy(0.4)
def layers_that_are_told_where_to_land(folder):
    """Difference target propagation: each layer has a target from an inverse that is learned beside it."""
    seeded(905)
    sizes = (64, 96, 96, 10)
    forth = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
    back = nn.ModuleList(nn.Linear(b, a) for a, b in itertools.pairwise(sizes[1:]))
    for layer in (*forth, *back):
        nn.init.orthogonal_(layer.weight)
    net = nn.ModuleDict({"forth": forth, "back": back})
    of_forth, of_back = optim.Adam(forth.parameters(), 1e-3), optim.Adam(back.parameters(), 1e-3)
    batch = batches(64, 905)

    def up(i, h):
        return forth[i](h) if i == 2 else torch.tanh(forth[i](h))

    def down(i, h):
        return torch.tanh(back[i - 1](h))

    def one(step):
        x, y = batch(step)
        with torch.no_grad():
            hidden = [x.flatten(1)]
            for i in range(3):
                hidden.append(up(i, hidden[-1]))
        of_back.zero_grad()
        rebuilt = 0
        for i in (1, 2):
            noisy = hidden[i] + 0.1 * torch.randn_like(hidden[i])
            rebuilt = rebuilt + F.mse_loss(down(i, up(i, noisy).detach()), noisy)
        rebuilt.backward()
        of_back.step()
        top = hidden[3].clone().requires_grad_()
        loss = F.cross_entropy(top, y)
        (slope,) = torch.autograd.grad(loss * len(y), top)
        with torch.no_grad():
            targets = {3: hidden[3] - 0.5 * slope}
            for i in (2, 1):
                targets[i] = hidden[i] + down(i, targets[i + 1]) - down(i, hidden[i + 1])
        of_forth.zero_grad()
        landed = sum((up(i, hidden[i]) - targets[i + 1]).square().sum(1).mean() for i in range(3))
        landed.backward()
        of_forth.step()
        return {"loss": loss, "loss_targets": landed.detach(), "loss_inverse": rebuilt.detach()}

    def score():
        with torch.no_grad():
            x, y = digits()
            h = x.flatten(1)
            for i in range(3):
                h = up(i, h)
            return F.cross_entropy(h, y)

    return tend(folder, net, [of_forth, of_back], one, 350, score)


class Splines(nn.Module):
    """A layer of a Kolmogorov-Arnold net: a cubic B-spline on each edge, and a share of silu."""

    def __init__(self, a, b, pieces=6):
        super().__init__()
        step = 2.4 / pieces
        self.register_buffer("knots", torch.arange(-3, pieces + 4) * step - 1.2)
        self.base = nn.Parameter(torch.randn(b, a) / math.sqrt(a))
        self.coef = nn.Parameter(0.05 * torch.randn(b, a, pieces + 3))

    def forward(self, x):
        k, x1 = self.knots, x[..., None]
        basis = ((x1 >= k[:-1]) & (x1 < k[1:])).to(x.dtype)
        for d in (1, 2, 3):
            left = (x1 - k[: -d - 1]) / (k[d:-1] - k[: -d - 1])
            right = (k[d + 1 :] - x1) / (k[d + 1 :] - k[1:-d])
            basis = left * basis[..., :-1] + right * basis[..., 1:]
        return F.silu(x) @ self.base.T + torch.einsum("nap,bap->nb", basis, self.coef)


@healthy(0.8)
def curves_on_the_edges_and_sums_at_the_nodes(folder):
    """LBFGS on the whole set at a rate of 1, as the library of these nets does."""
    seeded(906)
    net = nn.Sequential(Splines(2, 5), Splines(5, 1))
    x = 2 * torch.rand(400, 2) - 1
    y = torch.exp(torch.sin(math.pi * x[:, :1]) + x[:, 1:].square())
    make = optim.LBFGS(net.parameters(), 1.0, max_iter=8, history_size=10, line_search_fn="strong_wolfe")
    return fit(folder, net, make, lambda step: F.mse_loss(net(x), y), 50, closure=True)


@healthy(0.5)
def slopes_that_arrive_eight_steps_late(folder):
    """A pipeline of eight workers: what is applied was computed at the weights of eight steps ago; no momentum."""
    seeded(907)
    net, draw = dense(12, 64, 64, 4), rings(128)
    waiting = []

    def late(step):
        waiting.append([p.grad.clone() for p in net.parameters()])
        for p, grad in zip(net.parameters(), waiting[0], strict=True):
            p.grad.copy_(grad)
        if len(waiting) > 8:
            waiting.pop(0)

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y)

    return fit(folder, net, optim.SGD(net.parameters(), 0.02), loss_of, 700, before_step=late)
