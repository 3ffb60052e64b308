"""Gradients of gradients: rates that are learned, weights of examples that are learned, steps through a curvature."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from unseen import dense, fit, healthy, seeded
from unseen.tasks import tend

# ------------------------------------------------------------ a start and its rates


class Quick(nn.Module):
    """A start for each task and, for each tensor, a rate of the steps that are taken from there."""

    def __init__(self):
        super().__init__()
        self.net = dense(1, 40, 40, 1, act=nn.Tanh)
        self.log_rates = nn.Parameter(torch.full((6,), math.log(0.1)))

    def of(self, parts, x):
        for i in range(0, len(parts), 2):
            x = x @ parts[i].transpose(1, 2) + parts[i + 1][:, None]
            x = x.tanh() if i < len(parts) - 2 else x
        return x

    def after(self, x, y, steps=2):
        parts = [p.expand(len(x), *p.shape) for p in self.net.parameters()]
        for _ in range(steps):
            loss = (self.of(parts, x) - y).square().mean((1, 2)).sum()
            slopes = torch.autograd.grad(loss, parts, create_graph=True)
            parts = [p - r.exp() * g for p, r, g in zip(parts, self.log_rates, slopes, strict=True)]
        return parts


def harbours(n, readings):
    """The tides of `n` harbours: heights and delays differ."""
    height, delay = 0.5 + 1.5 * torch.rand(n, 1, 1), math.pi * torch.rand(n, 1, 1)
    x = 2 * torch.rand(n, readings, 1) - 1
    return x, height * (3 * x + delay).sin()


@healthy()
def tides_of_a_harbour_from_ten_readings(folder):
    seeded(3245)
    net = Quick()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 350, eta_min=3e-4)

    def loss_of(step, n=20):
        x, y = harbours(n, 25)
        parts = net.after(x[:, :10], y[:, :10])
        loss = F.mse_loss(net.of(parts, x[:, 10:]), y[:, 10:])
        return loss, {"inner_rate": net.log_rates.exp().mean()}

    def score():
        return float(loss_of(0, 200)[0])

    return fit(folder, net, optimizer, loss_of, 350, score=score, schedule=schedule)


# ------------------------------------------------------------ weights of the examples


@healthy()
def labels_by_hasty_volunteers(folder):
    seeded(3246)
    middles, lift = 1.5 * torch.randn(10, 4), torch.randn(4, 12) / 2

    def photos(n):
        part = torch.randint(10, (n,))
        return (middles[part] + 0.4 * torch.randn(n, 4)) @ lift + 0.1 * torch.randn(n, 12), part % 5

    x, y = photos(1200)
    hasty = torch.where(torch.rand(1200) < 0.4, torch.randint(5, (1200,)), y)
    (x_sure, y_sure), (x_test, y_test) = photos(150), photos(1000)
    net = nn.ModuleDict({"main": dense(12, 48, 48, 5), "weigher": dense(1, 32, 1)})
    main, weigher, rate = net["main"], net["weigher"], 0.05
    of_main = torch.optim.SGD(main.parameters(), lr=rate, momentum=0.9, weight_decay=1e-4)
    of_weigher = torch.optim.Adam(weigher.parameters(), lr=2e-3, weight_decay=1e-4)

    def weighed(losses):
        weight = weigher(losses.detach()[:, None])[:, 0].sigmoid()
        return (weight * losses).sum() / weight.sum().clamp(min=1e-3), weight

    def one(step):
        rows, sure = torch.randint(1200, (100,)), torch.randint(150, (50,))
        parts = dict(main.named_parameters())
        losses = F.cross_entropy(functional_call(main, parts, (x[rows],)), hasty[rows], reduction="none")
        slopes = torch.autograd.grad(weighed(losses)[0], list(parts.values()), create_graph=True)
        ahead = {name: p - rate * g for (name, p), g in zip(parts.items(), slopes, strict=True)}
        meta = F.cross_entropy(functional_call(main, ahead, (x_sure[sure],)), y_sure[sure])
        of_weigher.zero_grad()
        meta.backward(inputs=list(weigher.parameters()))
        of_weigher.step()

        losses = F.cross_entropy(main(x[rows]), hasty[rows], reduction="none")
        with torch.no_grad():
            weight = weigher(losses[:, None])[:, 0].sigmoid()
        loss = (weight * losses).sum() / weight.sum().clamp(min=1e-3)
        of_main.zero_grad()
        loss.backward()
        of_main.step()
        right = (y[rows] == hasty[rows]).float()
        ratio = (weight * right).sum() / right.sum() / weight.mean()
        return {"loss": loss, "meta_loss": meta, "weight_of_right_ones": ratio}

    def score():
        with torch.no_grad():
            return float((main(x_test).argmax(1) != y_test).float().mean())

    return tend(folder, net, [of_main, of_weigher], one, 450, score)


# ------------------------------------------------------------ steps through curvature


class GaussNewton(torch.optim.Optimizer):
    """Damped Gauss-Newton: it asks for the Jacobian of the outputs of a batch, `[rows, parameters]`, before a step."""

    def __init__(self, params, lr=0.5, damping=1.0, decay=0.98, floor=1e-2):
        super().__init__(params, {"lr": lr, "damping": damping, "decay": decay, "floor": floor})
        self.jacobian = None

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            params = group["params"]
            slope = torch.cat([p.grad.flatten() for p in params])
            curve = self.jacobian.T @ self.jacobian / len(self.jacobian)
            curve.diagonal().add_(group["damping"])
            way = torch.cholesky_solve(slope[:, None], torch.linalg.cholesky(curve))[:, 0]
            vector_to_parameters(parameters_to_vector(params) - group["lr"] * way, params)
            group["damping"] = max(group["floor"], group["damping"] * group["decay"])


@healthy()
def pull_of_a_rubber_band(folder):
    seeded(3247)
    net = dense(3, 14, 14, 1, act=nn.Tanh)
    optimizer = GaussNewton(net.parameters())

    def bands(n):
        x = torch.randn(n, 3)
        pull = x[:, :1].sinh() / 2 - 0.4 * x[:, 1:2] * x[:, :1] + (2 * x[:, 2:]).sin()
        return x, pull + 0.05 * torch.randn(n, 1)

    def out(parts, x):
        return functional_call(net, parts, (x[None],))[0, 0]

    def one(step):
        x, y = bands(256)
        parts = {name: p.detach() for name, p in net.named_parameters()}
        rows = vmap(grad(out), (None, 0))(parts, x)
        optimizer.jacobian = torch.cat([rows[name].flatten(1) for name in parts], 1)
        loss = (net(x) - y).square().mean() / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "damping": optimizer.param_groups[0]["damping"]}

    x_test, y_test = bands(1000)

    def score():
        with torch.no_grad():
            return float(F.mse_loss(net(x_test), y_test))

    return tend(folder, net, optimizer, one, 250, score)
