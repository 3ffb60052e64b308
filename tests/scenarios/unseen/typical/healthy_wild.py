"""Typical healthy trainings, third part: what looks odd and is meant (the group "typical").

They only count: whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import math

import torch
from torch import nn, optim
from torch.func import functional_call
from torch.nn import functional as F
from unseen import Outcome, dense, fit, healthy, rings, score_of, seeded, waves
from unseen.tasks import circle
from unseen.typical.healthy_data import entropy_in_eval, images, pretrain, some, watched

import gradwatch


# Labels from a crowd: six of ten are drawn at random. The loss hardly falls, and the clean images are told well.
@healthy(0.3)
def six_labels_of_ten_are_drawn_at_random(folder):
    seeded(1531)
    (x, y), kept = images()
    y = torch.where(torch.rand(len(y)) < 0.6, torch.randint(10, y.shape), y)
    net, draw = nn.Sequential(nn.Flatten(), dense(64, 64, 10)), some(x, y, 128)
    make, steps = optim.AdamW(net.parameters(), 2e-3, weight_decay=0.05), 150
    plan = optim.lr_scheduler.CosineAnnealingLR(make, steps)

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y)

    return fit(folder, net, make, loss_of, steps, schedule=plan, score=entropy_in_eval(net, *kept))


class Coupling(nn.Module):
    """RealNVP: one coordinate moves and scales the other."""

    def __init__(self, fixed):
        super().__init__()
        self.fixed, self.net = fixed, dense(1, 32, 32, 2, act=nn.Tanh)
        nn.init.zeros_(self.net[-1].weight)

    def forward(self, x):
        a, b = x[:, self.fixed], x[:, 1 - self.fixed]
        scale, move = self.net(a[:, None]).unbind(1)
        scale = 2 * (scale / 2).tanh()
        parts = [a, b * scale.exp() + move]
        return torch.stack(parts if self.fixed == 0 else parts[::-1], 1), scale


# A flow on two thin moons: minus the log of a density that is above one, so the loss goes below zero, as it may.
@healthy(0.5)
def density_of_two_thin_moons(folder):
    seeded(1532)
    net, steps = nn.ModuleList(Coupling(i % 2) for i in range(6)), 300

    def loss_of(step):
        angle, side = math.pi * torch.rand(256), torch.randint(2, (256,)) * 2.0 - 1
        x = torch.stack([angle.cos() + 0.5 * side, side * (angle.sin() - 0.25)], 1) * 0.3
        x, volume = x + 0.01 * torch.randn_like(x), 0.0
        for layer in net:
            x, scale = layer(x)
            volume = volume + scale
        return (0.5 * x.square().sum(1) + math.log(2 * math.pi) - volume).mean()

    make = optim.Adam(net.parameters(), 3e-3)
    plan = optim.lr_scheduler.CosineAnnealingLR(make, steps)
    return fit(folder, net, make, loss_of, steps, schedule=plan, score=score_of(loss_of), clip="ClipByGlobalNorm(5.0)")


# Physics-informed: u'' = f on a line with u = 0 at both ends; the loss begins in the hundreds by its nature.
@healthy(0.7)
def bent_beam_from_its_equation(folder):
    seeded(1533)
    net, steps = dense(1, 32, 32, 1, act=nn.Tanh), 400
    ends = torch.tensor([[-1.0], [1.0]])

    def loss_of(step):
        x = (2 * torch.rand(64, 1) - 1).requires_grad_()
        u = net(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
        wanted = -((2 * math.pi) ** 2) * (2 * math.pi * x).sin()
        inside, rim = F.mse_loss(bend, wanted), net(ends).square().mean()
        return inside + 100 * rim, {"pde": inside.detach(), "bc": rim.detach()}

    def score():
        x = torch.linspace(-1, 1, 101)[:, None]
        with torch.no_grad():
            return float(F.mse_loss(net(x), (2 * math.pi * x).sin()))

    make = optim.Adam(net.parameters(), 5e-3)
    plan = optim.lr_scheduler.ExponentialLR(make, 0.993)
    return fit(folder, net, make, loss_of, steps, schedule=plan, score=score)


# An ordinary differential equation by Runge and Kutta through the net, of cubes as in torchdiffeq's demo.
@healthy(0.6)
def spiral_by_runge_and_kutta(folder):
    seeded(1534)
    net, turn = dense(2, 48, 2, act=nn.Tanh), torch.tensor([[-0.1, 2.0], [-2.0, -0.1]])

    def path(slope, x, times=16, by=0.1):
        seen = []
        for _ in range(times):
            k1 = slope(x)
            k2 = slope(x + by / 2 * k1)
            k3 = slope(x + by / 2 * k2)
            k4 = slope(x + by * k3)
            x = x + by / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            seen.append(x)
        return torch.stack(seen)

    def loss_of(step):
        x = 3 * torch.rand(24, 2) - 1.5
        return (path(lambda at: net(at**3), x) - path(lambda at: (at**3 / 2) @ turn.T, x)).abs().mean()

    make = optim.RMSprop(net.parameters(), 3e-3)
    plan = optim.lr_scheduler.ExponentialLR(make, 0.985)
    return fit(folder, net, make, loss_of, 120, schedule=plan, score=score_of(loss_of), clip="ClipByGlobalNorm(1.0)")


# MAML on sines, of second order: scored after one inner step on a task not seen.
@healthy(0.2)
def sines_learnt_in_one_inner_step(folder):
    seeded(1535)
    net = dense(1, 40, 40, 1)

    def task():
        size, phase = 0.1 + 4.9 * torch.rand(()), math.pi * torch.rand(())
        x = 10 * torch.rand(20, 1) - 5
        return x, size * (x + phase).sin()

    def loss_of(step):
        losses, weights = [], dict(net.named_parameters())
        with torch.enable_grad():
            for _ in range(8):
                x, y = task()
                inner = F.mse_loss(functional_call(net, weights, (x[:10],)), y[:10])
                slopes = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
                fast = {name: w - 0.03 * g for (name, w), g in zip(weights.items(), slopes, strict=True)}
                losses.append(F.mse_loss(functional_call(net, fast, (x[10:],)), y[10:]))
        return torch.stack(losses).mean()

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 250, score=score_of(loss_of, 16))


# Evolution strategies (Salimans et al. 2017): no backward at all, a guess of the gradient from pairs of mirrored kicks.
@healthy(0.2)
def guessed_from_mirrored_kicks(folder):
    seeded(1536)
    net, draw = dense(6, 12, 1, act=nn.Tanh), waves(64)
    make, weights = optim.Adam(net.parameters(), 0.02), list(net.parameters())

    def fitness(x, y):
        return float(-F.mse_loss(net(x), y))

    score = score_of(lambda step: F.mse_loss(net(draws[step][0]), draws[step][1]))
    draws = [draw() for _ in range(8)]
    first = score()
    with watched(folder, net, make) as watch, torch.no_grad():
        for _ in range(250):
            (x, y), found = draw(), []
            kicks = [[0.05 * torch.randn_like(w) for w in weights] for _ in range(16)]
            for kick in kicks:
                both = []
                for way in (1, -2):
                    for w, k in zip(weights, kick, strict=True):
                        w.add_(k, alpha=way)
                    both.append(fitness(x, y))
                for w, k in zip(weights, kick, strict=True):
                    w.add_(k)
                found.append((both[0] - both[1]) / 2)
            for i, w in enumerate(weights):
                w.grad = -sum(f * kick[i] for f, kick in zip(found, kicks, strict=True)) / (16 * 0.05**2)
            make.step()
            watch.log(reward=fitness(x, y))
    return Outcome(gradwatch.open_history(watch.dir), first, score())


class FourBits(torch.autograd.Function):
    """Rounded to fifteen values a row; the gradient passes where nothing was cut off."""

    @staticmethod
    def forward(ctx, w):
        size = w.abs().amax(1, keepdim=True) / 7
        return (w / size).round() * size

    @staticmethod
    def backward(ctx, slope):
        return slope


class Rounded(nn.Linear):
    def forward(self, x):
        return F.linear(x, FourBits.apply(self.weight), self.bias)


# Quantisation-aware: trained in full, then tuned with weights of four bits at a low rate; good from the start.
@healthy(0.15)
def tuned_with_weights_of_four_bits(folder):
    seeded(1537)
    net, draw = nn.Sequential(Rounded(12, 24), nn.ReLU(), Rounded(24, 24), nn.ReLU(), Rounded(24, 4)), rings()
    full = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 4))

    def entropy(model):
        def loss_of(step):
            x, y = draw()
            return F.cross_entropy(model(x), y)

        return loss_of

    pretrain(full, optim.Adam(full.parameters(), 5e-3), entropy(full), 500)
    net.load_state_dict(full.state_dict())
    make = optim.Adam(net.parameters(), 5e-4)
    plan = optim.lr_scheduler.CosineAnnealingLR(make, 200)
    return fit(folder, net, make, entropy(net), 200, schedule=plan, score=score_of(entropy(net), 16))


# SimSiam: minus a cosine, from about 0 towards -1; the other side is stopped; scored by its nearest neighbours.
@healthy(0.5)
def cosines_of_two_sides_one_stopped(folder):
    seeded(1538)
    body = nn.Sequential(nn.Linear(24, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU())
    project = nn.Sequential(nn.Linear(64, 32, bias=False), nn.BatchNorm1d(32, affine=False))
    predict = nn.Sequential(nn.Linear(32, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 32))
    net, steps = nn.ModuleDict({"body": body, "project": project, "predict": predict}), 300
    centres, mixed = torch.randn(8, 6), torch.randn(16, 24) / 4

    def things(rows):
        kind = torch.randint(8, (rows,))
        return centres[kind] + 0.3 * torch.randn(rows, 6), kind

    def look(thing):
        return torch.cat([thing, 1.5 * torch.randn(len(thing), 10)], 1) @ mixed

    def loss_of(step):
        thing, _ = things(128)
        z = [project(body(look(thing))) for _ in range(2)]
        p = [predict(one) for one in z]
        return -(F.cosine_similarity(p[0], z[1].detach()) + F.cosine_similarity(p[1], z[0].detach())).mean() / 2

    def score():
        net.eval()
        (known, kind), (asked, truth) = things(800), things(400)
        with torch.no_grad():
            known, asked = (F.normalize(project(body(look(part))), dim=1) for part in (known, asked))
        net.train()
        return float((kind[(asked @ known.T).topk(9, 1).indices].mode(1).values != truth).float().mean())

    make = optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    plan = optim.lr_scheduler.CosineAnnealingLR(make, steps)
    return fit(folder, net, make, loss_of, steps, schedule=plan, score=score)


# An energy model by contrastive divergence: a difference about zero that says nothing, Langevin's chains with noise.
@healthy(0.3)
def energy_of_a_circle(folder):
    seeded(1539)
    net = dense(2, 48, 48, 1, act=nn.SiLU)
    make, chains = optim.Adam(net.parameters(), 2e-3, betas=(0.5, 0.999)), 3 * torch.randn(256, 2)

    def down(x, times=20):
        for _ in range(times):
            x = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(net(x).sum(), x)
            x = x - 0.05 * slope.clamp(-2, 2) + 0.05 * torch.randn_like(x)
        return x.detach()

    def score():
        return float((down(3 * torch.randn(256, 2), 60).norm(dim=1) - 2).abs().mean())

    first = score()
    with watched(folder, net, make, clip="ClipByGlobalNorm(1.0)") as watch:
        for _ in range(200):
            at = torch.randperm(256)[:64]
            chains[at] = torch.where(torch.rand(64, 1) < 0.05, 3 * torch.randn(64, 2), down(chains[at]))
            real, made = net(circle()), net(chains[at])
            loss = real.mean() - made.mean() + 0.1 * (real.square() + made.square()).mean()
            make.zero_grad()
            loss.backward()
            make.step()
            watch.log(loss=loss, gap=(real.mean() - made.mean()).item())
    return Outcome(gradwatch.open_history(watch.dir), first, score())
