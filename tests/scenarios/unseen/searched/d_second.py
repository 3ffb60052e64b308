"""Optimizers that were written by hand, each after its paper."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.func import functional_call, jacrev
from torch.nn import functional as F
from torch.optim import Optimizer
from unseen import dense, fit, healthy, score_of, seeded
from unseen.tasks import held_out, rounds, tend


class ScheduleFreeAdamW(Optimizer):
    """Defazio et al., 2024: parameters are y while training and x while evaluating."""

    def __init__(self, params, lr=1e-2, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.0, warmup=50):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "warmup": warmup})
        self.count, self.weights = 0, 0.0

    @torch.no_grad()
    def step(self, closure=None):
        self.count += 1
        for group in self.param_groups:
            beta, beta2 = group["betas"]
            rate = group["lr"] * min(1.0, self.count / group["warmup"])
            self.weights += rate**2
            share = rate**2 / self.weights
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state |= {"z": p.clone(), "x": p.clone(), "square": torch.zeros_like(p)}
                z, x, square = state["z"], state["x"], state["square"]
                square.mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                denominator = (square / (1 - beta2**self.count)).sqrt_().add_(group["eps"])
                z.sub_(rate * (p.grad / denominator + group["weight_decay"] * p))
                x.lerp_(z, share)
                p.copy_(z.lerp(x, beta))

    @torch.no_grad()
    def show(self, which):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if state:
                    p.copy_(state["x"] if which == "x" else state["z"].lerp(state["x"], group["betas"][0]))


@healthy()
def yields_of_hop_gardens_without_a_timetable(folder):
    seeded(9466)
    way = torch.randn(8, 4) / 2
    net = nn.Sequential(nn.Linear(8, 48), nn.SiLU(), nn.LayerNorm(48), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))
    optimizer = ScheduleFreeAdamW(net.parameters(), lr=5e-3, weight_decay=0.01)

    def draw(rows):
        x = torch.randn(rows, 8)
        return x, (x @ way).sin().sum(1, keepdim=True) + 0.1 * torch.randn(rows, 1)

    def loss_of(step):
        x, y = draw(64)
        return F.smooth_l1_loss(net(x), y)

    def score():
        optimizer.show("x")
        with torch.no_grad():
            x, y = draw(1024)
            value = float(F.mse_loss(net(x), y))
        optimizer.show("y")
        return value

    return fit(folder, net, optimizer, loss_of, 700, score=score)


class Shampoo(Optimizer):
    """Gupta et al., 2018, for matrices and vectors, each step as long as Adam's would be (grafting)."""

    def __init__(self, params, lr=1e-3, beta=0.9, beta2=0.95, eps=1e-6, every=10):
        super().__init__(params, {"lr": lr, "beta": beta, "beta2": beta2, "eps": eps, "every": every})

    @staticmethod
    def root(matrix, eps, power):
        values, vectors = torch.linalg.eigh(matrix)
        return vectors * values.clamp_min(0).add(eps * values.max().clamp_min(1e-12)).pow(power) @ vectors.T

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                grad = p.grad.flatten(1) if p.dim() > 1 else p.grad[:, None]
                state = self.state[p]
                if not state:
                    left, right = grad.shape
                    state |= {"at": 0, "mean": torch.zeros_like(grad), "square": torch.zeros_like(grad)}
                    state |= {"L": torch.zeros(left, left), "R": torch.zeros(right, right)}
                state["at"] += 1
                keep, keep2 = group["beta"], group["beta2"]
                state["L"].lerp_(grad @ grad.T, 1 - keep2)
                state["R"].lerp_(grad.T @ grad, 1 - keep2)
                state["mean"].lerp_(grad, 1 - keep)
                state["square"].lerp_(grad.square(), 1 - keep2)
                if state["at"] % group["every"] == 1:
                    state["left"] = self.root(state["L"], group["eps"], -0.25)
                    state["right"] = self.root(state["R"], group["eps"], -0.25)
                steady = state["mean"] / (1 - keep ** state["at"])
                adam = steady / ((state["square"] / (1 - keep2 ** state["at"])).sqrt() + 1e-8)
                turned = state["left"] @ steady @ state["right"]
                turned *= adam.norm() / turned.norm().clamp_min(1e-12)
                p.sub_(group["lr"] * turned.view_as(p))


@healthy()
def lichen_on_slates_by_its_outline(folder):
    seeded(9467)
    net = nn.Sequential(
        nn.Conv1d(1, 12, 5, stride=2, padding=2), nn.GELU(), nn.Conv1d(12, 24, 5, stride=2, padding=2), nn.GELU(),
        nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(96, 5),
    )  # fmt: skip
    optimizer = Shampoo(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, 300)
    turn = torch.arange(48) * (2 * math.pi / 48)

    def loss_of(step):
        y = torch.randint(5, (40,))
        lobes = (y + 2)[:, None].float()
        deep = 0.2 + 0.3 * torch.rand(40, 1)
        outline = deep * (lobes * turn + 6.2832 * torch.rand(40, 1)).sin() + 0.25 * torch.randn(40, 48)
        return F.cross_entropy(net(2 * outline[:, None]), y)

    return fit(folder, net, optimizer, loss_of, 300, score=score_of(loss_of), schedule=schedule)


@healthy()
def lift_of_a_windmill_sail_by_damped_least_squares(folder):
    seeded(9468)
    net = dense(3, 14, 1, act=nn.Tanh).double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    damping = 0.1

    def draw(rows):
        pitch, wind, twist = (torch.rand(3, rows, dtype=torch.float64) * 2 - 1).unbind()
        lift = (3 * pitch).sin() * (1 + 0.6 * wind) + 0.5 * twist * wind
        return torch.stack([pitch, wind, twist], 1), lift + 0.02 * torch.randn(rows, dtype=torch.float64)

    def one(step):
        x, y = draw(200)
        params = {name: p.detach() for name, p in net.named_parameters()}

        def residual(at):
            gap = functional_call(net, at, (x,))[:, 0] - y
            return gap, gap

        slopes, gap = jacrev(residual, has_aux=True)(params)
        jacobian = torch.cat([slopes[name].flatten(1) for name in params], 1)
        normal = jacobian.T @ jacobian / len(x)
        move = torch.linalg.solve(
            normal + damping * 0.98**step * torch.eye(len(normal), dtype=torch.float64), jacobian.T @ gap / len(x)
        )
        for p, part in zip(net.parameters(), move.split([p.numel() for p in net.parameters()]), strict=True):
            p.grad = part.view_as(p)
        optimizer.step()
        return {"loss": gap.square().mean()}

    def error(step):
        x, y = draw(500)
        return (net(x)[:, 0] - y).square().mean()

    return tend(folder, net, optimizer, one, 150, score_of(error))


class Langevin(Optimizer):
    """Stochastic gradient Langevin dynamics: `lr` is the step of the diffusion."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                drift = p.grad * group["rows"] + p / group["prior"] ** 2
                p.sub_(0.5 * group["lr"] * drift).add_(torch.randn_like(p), alpha=group["lr"] ** 0.5)


@healthy()
def salt_in_a_lagoon_with_its_posterior(folder):
    seeded(9469)
    way = torch.randn(4, 3) / 2
    x = torch.randn(900, 4)
    y = (x @ way).tanh().sum(1, keepdim=True) + 0.3 * torch.randn(900, 1)
    draw = rounds(50, x[:800], y[:800])
    net = dense(4, 32, 1, act=nn.Tanh)
    optimizer = Langevin(net.parameters(), {"lr": 2e-5, "rows": 800, "prior": 1.0})
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (1 + step / 100) ** -0.55)

    def loss_of(step):
        rows, wanted = draw()
        return F.gaussian_nll_loss(net(rows), wanted, torch.full_like(wanted, 0.09))

    score = held_out(net, lambda: F.mse_loss(net(x[800:]), y[800:]))
    return fit(folder, net, optimizer, loss_of, 900, score=score, schedule=schedule)


@healthy()
def seven_weather_huts_that_vote(folder):
    seeded(9470)
    rule = dense(9, 24, 3, act=nn.Tanh).requires_grad_(False)
    rule[0].weight.mul_(2)
    net = dense(9, 40, 40, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)
    params = list(net.parameters())
    usual = rule(torch.randn(2000, 9)).mean(0)

    def loss_at(hut, rows=24):
        x = torch.randn(rows, 9) + 0.3 * (hut - 3) * torch.eye(9)[hut]
        return F.cross_entropy(net(x), (rule(x) - usual).argmax(1))

    def one(step):
        losses = [loss_at(hut) for hut in range(7)]
        votes = [torch.autograd.grad(loss, params) for loss in losses]
        for p, *parts in zip(params, *votes, strict=True):
            p.grad = sum(part.sign() for part in parts).sign()
        optimizer.step()
        schedule.step()
        return {"loss": sum(float(loss) for loss in losses) / 7}

    return tend(folder, net, optimizer, one, 500, score_of(lambda step: loss_at(step % 7, 128), 14))


class ExponentiatedGradient(Optimizer):
    """Rows of each parameter stay on the simplex (Kivinen and Warmuth, 1997)."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.mul_((-group["lr"] * (p.grad - p.grad.amin(1, keepdim=True))).exp()).clamp_(min=1e-7)
                p.div_(p.sum(1, keepdim=True))


@healthy()
def blends_of_a_spice_stall_taken_apart(folder):
    seeded(9471)
    spices, blends, bags = 30, 5, 80
    true_blends = torch.distributions.Dirichlet(torch.full((spices,), 0.15)).sample((blends,))
    true = torch.distributions.Dirichlet(torch.full((blends,), 0.3)).sample((bags,)) @ true_blends
    grains = torch.distributions.Multinomial(400, true).sample() / 400
    net = nn.ParameterDict(
        {
            "bags": torch.distributions.Dirichlet(torch.full((blends,), 5.0)).sample((bags,)),
            "blends": torch.distributions.Dirichlet(torch.full((spices,), 5.0)).sample((blends,)),
        }
    )
    optimizer = ExponentiatedGradient(
        [{"params": [net["bags"]], "lr": 0.3}, {"params": [net["blends"]], "lr": 0.02}], {"lr": 0.3}
    )

    def loss_of(step):
        found = (net["bags"] @ net["blends"]).log()
        return -(grains * found).sum(), {"per_bag": -(grains * found.detach()).sum() / bags}

    def score():
        with torch.no_grad():
            found = (net["bags"] @ net["blends"]).log()
            return float((true * (true.clamp_min(1e-12).log() - found)).sum(1).mean())

    return fit(folder, net, optimizer, loss_of, 350, score=score)
