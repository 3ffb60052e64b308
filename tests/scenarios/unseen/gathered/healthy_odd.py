"""Steps that few people take: damped, preconditioned on both sides, sharpness-aware, voted for, natural."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributions import Categorical, kl_divergence
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from unseen import dense, healthy, seeded
from unseen.tasks import held_out, rounds, tend


class Marquardt(torch.optim.Optimizer):
    """Gauss-Newton steps, damped more after one that is of no use and less after one that is."""

    def __init__(self, params, damping=1.0):
        super().__init__(params, {"damping": damping})

    @torch.no_grad()
    def step(self, residuals, jacobian):
        group = self.param_groups[0]
        now, j, before = residuals(), jacobian(), parameters_to_vector(group["params"])
        square, slope = j.T @ j, j.T @ now
        for _ in range(6):
            damped = square + group["damping"] * torch.eye(len(square))
            vector_to_parameters(before - torch.linalg.solve(damped, slope), group["params"])
            if residuals().square().sum() < now.square().sum():
                group["damping"] = max(group["damping"] / 3, 1e-4)
                return
            group["damping"] = min(group["damping"] * 4, 1e6)
        vector_to_parameters(before, group["params"])


@healthy()
def compass_swayed_by_iron(folder):
    seeded(2974)
    net = dense(2, 10, 10, 1, act=nn.Tanh)
    optimizer = Marquardt(net.parameters())

    def places(n):
        x = 4 * torch.rand(n, 2) - 2
        sway = (2 * x[:, :1]).sin() * (-x[:, 1:].square() / 2).exp() + 0.3 * x[:, 1:]
        return x, sway + 0.03 * torch.randn(n, 1)

    x, y = places(300)
    fresh = places(500)

    def residuals():
        return (net(x) - y)[:, 0]

    def jacobian():
        weights = dict(net.named_parameters())
        parts = vmap(grad(lambda w, row: functional_call(net, w, (row,))[0]), (None, 0))(weights, x)
        return torch.cat([parts[name].flatten(1) for name in weights], 1).detach()

    def one(step):
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step(residuals, jacobian)
        return {"loss": loss, "damping": optimizer.param_groups[0]["damping"]}

    return tend(folder, net, optimizer, one, 100, held_out(net, lambda: F.mse_loss(net(fresh[0]), fresh[1])))


class Shampoo(torch.optim.Optimizer):
    """A root of the summed outer products on each side of a gradient, refreshed every few steps."""

    def __init__(self, params, lr=0.05, momentum=0.9, epsilon=1e-3, refresh=10):
        super().__init__(params, {"lr": lr, "momentum": momentum, "epsilon": epsilon, "refresh": refresh})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(self.direction(p, group), alpha=-group["lr"])

    def direction(self, p, group):
        slope, state = p.grad.reshape(p.shape[0], -1), self.state[p]
        if not state:
            state["step"] = 0
            state["sums"] = [group["epsilon"] * torch.eye(n) for n in slope.shape]
            state["roots"] = [None, None]
            state["velocity"] = torch.zeros_like(p)
        state["sums"][0] += slope @ slope.T
        state["sums"][1] += slope.T @ slope
        if state["step"] % group["refresh"] == 0:
            for side, total in enumerate(state["sums"]):
                values, vectors = torch.linalg.eigh(total)
                state["roots"][side] = vectors * values.clamp(min=group["epsilon"]) ** -0.25 @ vectors.T
        state["step"] += 1
        left, right = state["roots"]
        state["velocity"].mul_(group["momentum"]).add_((left @ slope @ right).view_as(p))
        return state["velocity"]


@healthy()
def planks_by_their_grain(folder):
    seeded(2975)
    rows, columns = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")

    def saw(n):
        kind = torch.randint(5, (n,))
        angle = 3.1416 * kind / 5 + 0.12 * torch.randn(n)
        across = angle.cos()[:, None, None] * rows + angle.sin()[:, None, None] * columns
        pitch, phase = 0.9 + 0.5 * torch.rand(n, 1, 1), 6.2832 * torch.rand(n, 1, 1)
        return ((pitch * across + phase).sin() + 0.7 * torch.randn(n, 12, 12))[:, None], kind

    net = nn.Sequential(
        nn.Conv2d(1, 10, 5, bias=False), nn.BatchNorm2d(10), nn.ReLU(),
        nn.Conv2d(10, 12, 3, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(108, 5),
    )  # fmt: skip
    optimizer = Shampoo(net.parameters(), lr=0.02)
    fresh = saw(600)

    def one(step):
        x, kind = saw(64)
        optimizer.zero_grad()
        out = net(x)
        loss = F.cross_entropy(out, kind)
        loss.backward()
        optimizer.step()
        return {"loss": loss, "accuracy": (out.argmax(1) == kind).float().mean()}

    return tend(folder, net, optimizer, one, 250, held_out(net, lambda: F.cross_entropy(net(fresh[0]), fresh[1])))


@healthy()
def seashells_by_their_outline(folder):
    seeded(2976)
    shapes = torch.randn(8, 4, 2) / torch.arange(1.0, 5.0)[:, None]
    turns = torch.arange(28.0) * 6.2832 / 28

    def gather(n):
        kind = torch.randint(8, (n,))
        waves = shapes[kind] + 0.18 * torch.randn(n, 4, 2)
        around = turns[None] + 0.5 * torch.randn(n, 1)
        orders = torch.arange(1.0, 5.0)[:, None, None] * around
        radius = (waves[..., :1] * orders.cos().transpose(0, 1) + waves[..., 1:] * orders.sin().transpose(0, 1)).sum(1)
        return radius + 0.1 * torch.randn(n, 28), kind

    net = dense(28, 64, 64, 8, act=nn.GELU)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)
    draw, fresh, reach = rounds(50, *gather(1500)), gather(1000), 0.05

    def one(step):
        x, kind = draw()
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), kind)
        loss.backward()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in net.parameters()]).norm() + 1e-12
            shifts = [reach * p.grad / norm for p in net.parameters()]
            for p, shift in zip(net.parameters(), shifts, strict=True):
                p.add_(shift)
        optimizer.zero_grad()
        uphill = F.cross_entropy(net(x), kind)
        uphill.backward()
        with torch.no_grad():
            for p, shift in zip(net.parameters(), shifts, strict=True):
                p.sub_(shift)
        optimizer.step()
        schedule.step()
        return {"loss": loss, "loss uphill": uphill}

    return tend(folder, net, optimizer, one, 500, held_out(net, lambda: F.cross_entropy(net(fresh[0]), fresh[1])))


@healthy()
def ores_by_their_glow(folder):
    seeded(2977)
    lines = torch.rand(6, 3)
    channels = torch.linspace(0, 1, 40)

    def glow(n):
        kind = torch.randint(6, (n,))
        strength = 0.5 + torch.rand(n, 3)
        peaks = (-(channels - lines[kind][..., None] - 0.02 * torch.randn(n, 3, 1)).square() / 0.002).exp()
        return (strength[..., None] * peaks).sum(1) + 0.3 * torch.randn(n, 40), kind

    net = dense(40, 48, 48, 6, norm=nn.LayerNorm)
    optimizer = torch.optim.SGD(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(1 - step / 400, 0.02))
    memories = [[torch.zeros_like(p) for p in net.parameters()] for _ in range(5)]
    fresh = glow(800)

    def one(step):
        """Each of five workers sends but the signs of its momentum; the majority of them is the step."""
        losses, votes = [], [torch.zeros_like(p) for p in net.parameters()]
        for memory in memories:
            x, kind = glow(24)
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), kind)
            loss.backward()
            losses.append(loss.detach())
            for held, vote, p in zip(memory, votes, net.parameters(), strict=True):
                held.mul_(0.9).add_(p.grad, alpha=0.1)
                vote.add_(held.sign())
        for vote, p in zip(votes, net.parameters(), strict=True):
            p.grad = vote.sign()
        optimizer.step()
        schedule.step()
        return {"loss": torch.stack(losses).mean()}

    return tend(folder, net, optimizer, one, 400, held_out(net, lambda: F.cross_entropy(net(fresh[0]), fresh[1])))


def conjugate(product, target, times=10):
    """The solution of `product(x) = target`."""
    x, left = torch.zeros_like(target), target.clone()
    way, size = left.clone(), left @ left
    for _ in range(times):
        moved = product(way)
        share = size / (way @ moved + 1e-10)
        x, left = x + share * way, left - share * moved
        size, before = left @ left, size
        way = left + size / (before + 1e-10) * way
    return x


@healthy()
def raft_held_midstream(folder):
    seeded(2978)
    net = dense(3, 24, 24, 3, act=nn.Tanh)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)

    def drift(n=64, length=20):
        """States, actions and costs of poles put left, right or not at all, in a stream that is not the same twice."""
        place, speed, stream = 2 * torch.rand(n) - 1, torch.zeros(n), 0.6 * torch.rand(n) - 0.3
        seen, acts, costs = [], [], []
        with torch.no_grad():
            for _ in range(length):
                state = torch.stack([place, speed, stream], 1)
                act = Categorical(logits=net(state)).sample()
                speed = 0.8 * speed + 0.3 * (act - 1.0) + 0.3 * stream + 0.02 * torch.randn(n)
                place = place + 0.3 * speed
                seen, acts, costs = [*seen, state], [*acts, act], [*costs, place.square() + 0.02 * (act != 1)]
        return torch.stack(seen), torch.stack(acts), torch.stack(costs)

    def one(step):
        seen, acts, costs = drift()
        ahead = costs.flip(0).cumsum(0).flip(0)
        gain = -(ahead - ahead.mean(1, keepdim=True)) / (ahead.std() + 1e-8)
        optimizer.zero_grad()
        loss = -(Categorical(logits=net(seen)).log_prob(acts) * gain).mean()
        loss.backward()
        slope = torch.cat([p.grad.flatten() for p in net.parameters()])
        with torch.no_grad():
            old = Categorical(logits=net(seen))
        apart = kl_divergence(old, Categorical(logits=net(seen))).mean()
        first = torch.cat([g.flatten() for g in torch.autograd.grad(apart, net.parameters(), create_graph=True)])

        def fisher(v):
            second = torch.autograd.grad(first @ v, net.parameters(), retain_graph=True)
            return torch.cat([g.flatten() for g in second]) + 0.01 * v

        way = conjugate(fisher, slope)
        way = way * (2 * 0.01 / (way @ fisher(way) + 1e-10)).sqrt()
        at = 0
        for p in net.parameters():
            p.grad = way[at : at + p.numel()].view_as(p)
            at += p.numel()
        optimizer.step()
        return {"loss": loss, "return": -costs.sum(0).mean()}

    return tend(folder, net, optimizer, one, 100, lambda: drift(400)[2].sum(0).mean())
