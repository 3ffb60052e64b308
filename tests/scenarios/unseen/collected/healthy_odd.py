"""Laws of nature and odd optimizers: energies, equations, fixed points, curvature."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.func import functional_call, jacrev
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded, waves
from unseen.tasks import clipped, held_out, tend

# ------------------------------------------------------------------------------------------------------------- physics


@healthy()
def pendulum_of_a_tower_clock_by_its_energy(folder):
    """A Hamiltonian net: only the slopes of its one output are compared with what was measured."""
    seeded(3100)
    energy = nn.Sequential(nn.Linear(2, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 1, bias=False))
    optimizer = torch.optim.Adam(energy.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 700, eta_min=1e-5)

    def draw(rows, noise):
        x = (torch.rand(rows, 2) - 0.5) * torch.tensor([5.0, 4.0])
        moves = torch.stack([x[:, 1], -x[:, 0].sin()], 1)
        return x.requires_grad_(), moves + noise * torch.randn_like(moves)

    def error(rows=128, noise=0.05):
        x, moves = draw(rows, noise)
        (slope,) = torch.autograd.grad(energy(x).sum(), x, create_graph=True)
        return F.mse_loss(torch.stack([slope[:, 1], -slope[:, 0]], 1), moves)

    return fit(
        folder, energy, optimizer, lambda step: error(), 700,
        score=lambda: float(error(1024, 0.0).detach()), schedule=schedule,
    )  # fmt: skip


@healthy()
def poker_cooling_in_a_bucket(folder):
    """The heat equation from its residual, its ends and its beginning."""
    seeded(3101)
    net, speed = dense(2, 40, 40, 40, 1, act=nn.Tanh), 0.15
    for layer in net:
        if isinstance(layer, nn.Linear):
            nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.997)

    def slope(y, x):
        return torch.autograd.grad(y.sum(), x, create_graph=True)[0]

    def begin(x):
        return (math.pi * x).sin() + 0.5 * (2 * math.pi * x).sin()

    def exact(x, t):
        first = (-speed * math.pi**2 * t).exp() * (math.pi * x).sin()
        return first + 0.5 * (-4 * speed * math.pi**2 * t).exp() * (2 * math.pi * x).sin()

    def loss_of(step):
        x, t = torch.rand(200, 1).requires_grad_(), torch.rand(200, 1).requires_grad_()
        u = net(torch.cat([x, t], 1))
        law = (slope(u, t) - speed * slope(slope(u, x), x)).square().mean()
        start = torch.rand(64, 1)
        initial = F.mse_loss(net(torch.cat([start, torch.zeros(64, 1)], 1)), begin(start))
        ends = torch.stack([torch.randint(2, (64,)).float(), torch.rand(64)], 1)
        edges = net(ends).square().mean()
        return law + 10 * initial + 10 * edges, {"law": law, "initial": initial, "edges": edges}

    def score():
        x, t = torch.rand(1000, 1), torch.rand(1000, 1)
        with torch.no_grad():
            true = exact(x, t)
            return float((net(torch.cat([x, t], 1)) - true).norm() / true.norm())

    return fit(folder, net, optimizer, loss_of, 800, score=score, schedule=schedule)


@healthy()
def membrane_of_a_kettledrum_by_least_work(folder):
    """The deep Ritz method: the energy of a pressed membrane, which is below zero at its least."""
    seeded(3102)
    net = dense(2, 32, 32, 1, act=nn.Softplus)
    optimizer = torch.optim.RAdam(net.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [350, 500], 0.3)

    def height(x):
        return 16 * (x * (1 - x)).prod(1) * net(2 * x - 1)[:, 0]

    def exact(x):
        return (math.pi * x).sin().prod(1)

    def loss_of(step):
        x = torch.rand(512, 2).requires_grad_()
        u = height(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        return (0.5 * slope.square().sum(1) - 2 * math.pi**2 * exact(x) * u).mean()

    def score():
        x = torch.rand(2000, 2)
        with torch.no_grad():
            return float((height(x) - exact(x)).norm() / exact(x).norm())

    return fit(folder, net, optimizer, loss_of, 600, score=score, schedule=schedule)


# -------------------------------------------------------------------------------------------------------- fixed points


class AtRest(nn.Module):
    """An equilibrium layer: its output is where a contraction stays; its gradient is that of the implicit function."""

    def __init__(self, size, width):
        super().__init__()
        self.drive = nn.Linear(size, width)
        self.mix = nn.Parameter(torch.randn(width, width) * 0.5 / width**0.5)
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        mix = self.mix * (0.9 / torch.linalg.matrix_norm(self.mix, 2)).clamp(max=1)
        drive = self.drive(x)

        def once(z):
            return torch.tanh(z @ mix.T + drive)

        with torch.no_grad():
            z = torch.zeros_like(drive)
            for _ in range(30):
                z = once(z)
        if torch.is_grad_enabled():
            z = once(z)
            still = z.detach().requires_grad_()
            moved = once(still)

            def back(gradient):
                total = gradient
                for _ in range(20):
                    total = gradient + torch.autograd.grad(moved, still, total, retain_graph=True)[0]
                return total

            z.register_hook(back)
        return self.head(z)


@healthy()
def lagoon_that_has_come_to_rest(folder):
    seeded(3103)
    net = AtRest(5, 32)
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3, weight_decay=1e-3)
    couple, inflow = torch.randn(12, 12) * 0.7 / 12**0.5, torch.randn(12, 5)

    def draw(rows):
        x = torch.randn(rows, 5)
        level = torch.zeros(rows, 12)
        for _ in range(50):
            level = torch.tanh(level @ couple.T + x @ inflow.T)
        return x, torch.stack([level[:, :6].sum(1), level[:, 6:].sum(1)], 1)

    def loss_of(step):
        x, y = draw(64)
        return F.smooth_l1_loss(net(x), y)

    def fresh():
        x, y = draw(1000)
        return F.mse_loss(net(x), y) / y.var()

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, fresh), before_step=clipped(net, 2.0))


# ----------------------------------------------------------------------------------------------------------- curvature


class Marquardt(torch.optim.Optimizer):
    """Least squares by Levenberg and Marquardt: the damping falls after a step that helps and grows after one not."""

    def __init__(self, params, residuals, damping=1.0):
        super().__init__(params, {"damping": damping})
        self.residuals = residuals

    @torch.no_grad()
    def step(self):
        group, residuals = self.param_groups[0], self.residuals
        where = nn.utils.parameters_to_vector(group["params"])
        now, jacobian = residuals(where), jacrev(residuals)(where)
        square, pull = jacobian.T @ jacobian, jacobian.T @ now
        for _ in range(6):
            there = where - torch.linalg.solve(square + group["damping"] * torch.eye(len(where)).to(where), pull)
            if residuals(there).square().sum() < now.square().sum():
                group["damping"] = max(group["damping"] / 3, 1e-6)
                nn.utils.vector_to_parameters(there, group["params"])
                return
            group["damping"] *= 4


@healthy()
def springs_of_an_old_sofa(folder):
    seeded(3104)
    net = dense(2, 8, 8, 1, act=nn.Tanh).double()
    names, shapes = zip(*((name, p.shape) for name, p in net.named_parameters()), strict=True)

    def draw(rows, noise):
        x = 2 * torch.rand(rows, 2, dtype=torch.float64) - 1
        force = (3 * x[:, :1]).sin() * (1 + x[:, 1:].square()) + 0.5 * x[:, 1:].pow(3)
        return x, force + noise * torch.randn_like(force)

    x, y = draw(400, 0.03)

    def residuals(vector):
        parts = vector.split([shape.numel() for shape in shapes])
        weights = {name: part.view(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
        return (functional_call(net, weights, (x,)) - y)[:, 0]

    optimizer = Marquardt(net.parameters(), residuals)

    def one(step):
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        return {"loss": loss, "damping": optimizer.param_groups[0]["damping"]}

    fresh, true = draw(1000, 0.0)
    return tend(folder, net, optimizer, one, 120, held_out(net, lambda: F.mse_loss(net(fresh), true)))


class HessianAdam(torch.optim.Optimizer):
    """Adam whose second moment is that of the diagonal of the Hessian, as one random vector tells it (AdaHessian)."""

    def __init__(self, params, lr=0.1, betas=(0.9, 0.999), eps=1e-4, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def gradients(self, loss):
        params = [p for group in self.param_groups for p in group["params"]]
        slopes = torch.autograd.grad(loss, params, create_graph=True)
        signs = [torch.randint_like(p, 2) * 2 - 1 for p in params]
        products = torch.autograd.grad(slopes, params, signs)
        for p, slope, sign, product in zip(params, slopes, signs, products, strict=True):
            p.grad = slope.detach()
            diagonal = sign * product
            if p.ndim > 1:
                diagonal = diagonal.abs().mean(1, keepdim=True).expand_as(p)
            self.state[p]["diagonal"] = diagonal

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if "step" not in state:
                    state.update(step=0, exp_avg=torch.zeros_like(p), exp_hessian_sq=torch.zeros_like(p))
                state["step"] += 1
                state["exp_avg"].lerp_(p.grad, 1 - first)
                state["exp_hessian_sq"].mul_(second).add_((1 - second) * state["diagonal"].square())
                mean = state["exp_avg"] / (1 - first ** state["step"])
                scale = (state["exp_hessian_sq"] / (1 - second ** state["step"])).sqrt() + group["eps"]
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * mean / scale)


@healthy()
def strain_in_a_gliders_wing(folder):
    seeded(3105)
    net, draw = dense(6, 48, 48, 1, act=nn.Tanh), waves(128)
    optimizer = HessianAdam(net.parameters(), lr=0.05, weight_decay=1e-4)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=30)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 670)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, fall], [30])

    def one(step):
        x, y = draw()
        loss = F.mse_loss(net(x), y)
        optimizer.gradients(loss)
        optimizer.step()
        schedule.step()
        return {"loss": loss.detach()}

    x, y = (torch.cat(parts) for parts in zip(*(draw() for _ in range(8)), strict=True))
    return tend(folder, net, optimizer, one, 700, held_out(net, lambda: F.mse_loss(net(x), y)))
