"""Healthy trainings of clocks, looms and weavers that are unusual and sound: odd steps, odd losses, rivals, noise."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, rings, seeded, waves
from unseen.tasks import clipped, held_out, rounds, tend


def digits():
    """Images [N, 64] between -1 and 1 and what they show, in a drawn order."""
    images, shown = load_digits(return_X_y=True)
    order = torch.randperm(len(shown))
    return torch.tensor(images / 8 - 1, dtype=torch.float32)[order], torch.tensor(shown)[order]


class Signs(torch.optim.Optimizer):
    """Steps of one length, by the sign of a moving average."""

    def __init__(self, params, lr, momentum=0.9):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                average = self.state[p].setdefault("average", torch.zeros_like(p))
                average.lerp_(p.grad, 1 - group["momentum"])
                p.add_(average.sign(), alpha=-group["lr"])


@healthy()
def a_ratchet_moved_tooth_by_tooth(folder):
    seeded(12760)
    net, draw = dense(12, 64, 64, 4), rings(64)
    steps = 300
    optimizer = Signs(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y)

    return fit(folder, net, optimizer, loss_of, steps, schedule=schedule)


@healthy()
def earliest_and_latest_a_bolt_is_done(folder):
    seeded(12761)
    net, draw = dense(4, 64, 64, 3), waves(96, 4)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
    levels = torch.tensor([0.1, 0.5, 0.9])

    def loss_on(x, y):
        gap = y + 0.3 * x[:, :1].abs() * torch.randn_like(y) - net(x)
        return torch.maximum(levels * gap, (levels - 1) * gap).mean()

    test = [torch.cat(part) for part in zip(*[draw() for _ in range(6)], strict=True)]
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 350, score=score)


@healthy()
def shuttle_thrown_by_an_unsteady_hand(folder):
    seeded(12762)
    net = nn.ModuleDict({"aim": dense(3, 48, 2, act=nn.Tanh), "value": dense(3, 48, 1, act=nn.Tanh)})
    net.spread = nn.Parameter(torch.full((2,), -0.7))
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    way = 0.7 * torch.randn(3, 2)

    def reward_of(state, throw):
        return 1 - (throw - (state @ way).tanh()).square().sum(1)

    def one(step):
        state = torch.randn(128, 3)
        with torch.no_grad():
            before = torch.distributions.Normal(net["aim"](state), net.spread.exp())
            throw = before.sample()
            told = before.log_prob(throw).sum(1)
            reward = reward_of(state, throw) + 0.3 * torch.randn(128)
            gain = reward - net["value"](state)[:, 0]
            gain = (gain - gain.mean()) / gain.std()
        for _ in range(2):
            now = torch.distributions.Normal(net["aim"](state), net.spread.exp())
            ratio = (now.log_prob(throw).sum(1) - told).exp()
            policy = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
            value = F.mse_loss(net["value"](state)[:, 0], reward)
            loss = policy + 0.5 * value - 0.001 * now.entropy().sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
        return {"loss": loss, "reward": reward.mean()}

    states = torch.randn(500, 3)
    return tend(
        folder, net, optimizer, one, 250, held_out(net, lambda: 1 - reward_of(states, net["aim"](states)).mean())
    )


@healthy()
def forged_hallmarks_on_the_case(folder):
    seeded(12763)
    x, y = digits()
    net = dense(64, 128, 128, 10)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(64, x[:1400], y[:1400])

    def forged(x, y, far=0.15):
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(F.cross_entropy(net(x), y), x)
        return (x + far * slope.sign()).detach().clamp(-1, 1)

    def loss_of(step):
        bx, by = draw()
        return F.cross_entropy(net(forged(bx, by)), by)

    def score():
        worst = forged(x[1400:], y[1400:])
        with torch.no_grad():
            return float(F.cross_entropy(net(worst), y[1400:]))

    return fit(folder, net, optimizer, loss_of, 250, score=score)


class Reversed(torch.autograd.Function):
    """The same forwards, the gradient turned round backwards."""

    @staticmethod
    def forward(ctx, x, share):
        ctx.share = share
        return x.clone()

    @staticmethod
    def backward(ctx, slope):
        return -ctx.share * slope, None


@healthy()
def old_looms_and_new_ones_alike(folder):
    seeded(12764)
    net = nn.ModuleDict({"body": dense(10, 48, 24), "kind": dense(24, 24, 4), "mill": dense(24, 24, 1)})
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    middle, apart = 1.5 * torch.randn(4, 10), torch.randn(10)

    def looms(rows, new):
        y = torch.randint(4, (rows,))
        return middle[y] + 0.8 * torch.randn(rows, 10) + new * apart, y

    steps = 250

    def loss_of(step):
        (old, y), (new, _) = looms(48, 0.0), looms(48, 1.0)
        h = net["body"](torch.cat([old, new])).relu()
        share = 0.3 * (2 / (1 + math.exp(-10 * step / steps)) - 1)
        mill = net["mill"](Reversed.apply(h, share))[:, 0]
        of_mill = torch.cat([torch.zeros(48), torch.ones(48)])
        kind_loss = F.cross_entropy(net["kind"](h[:48]), y)
        mill_loss = F.binary_cross_entropy_with_logits(mill, of_mill)
        return kind_loss + mill_loss, {"kind_loss": kind_loss, "mill_loss": mill_loss}

    tx, ty = looms(500, 1.0)
    score = held_out(net, lambda: F.cross_entropy(net["kind"](net["body"](tx).relu()), ty))
    return fit(folder, net, optimizer, loss_of, steps, score=score)


@healthy()
def figures_copied_by_a_sleepy_apprentice(folder):
    seeded(12765)
    x, y = digits()
    told = torch.where(torch.rand(len(y)) < 0.35, torch.randint(10, (len(y),)), y)
    net = dense(64, 96, 10)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.02)
    draw = rounds(64, x[:1400], told[:1400])

    def loss_of(step):
        bx, by = draw()
        chance = net(bx).softmax(1).gather(1, by[:, None])
        return ((1 - chance.clamp(min=1e-6) ** 0.7) / 0.7).mean()

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 220, score=score)


@healthy()
def both_faces_of_a_damask(folder):
    seeded(12766)
    net = nn.Sequential(dense(24, 64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    lift = torch.randn(4, 24)

    def faces(rows):
        point = torch.randn(rows, 4)
        return [(point @ lift).tanh() + 0.2 * torch.randn(rows, 24) for _ in range(2)]

    def loss_on(one, other):
        a, b = net(one), net(other)
        near = F.mse_loss(a, b)
        wide = sum((1 - (z.var(0) + 1e-4).sqrt()).relu().mean() for z in (a, b))
        apart = sum((z.T.cov() - z.T.cov().diag().diag()).square().sum() / 16 for z in (a, b))
        return 5 * near + 5 * wide + 0.2 * apart, {"invariance": near, "variance": wide}

    test = faces(500)
    return fit(
        folder, net, optimizer, lambda step: loss_on(*faces(96)), 250, score=held_out(net, lambda: loss_on(*test)[0])
    )


@healthy()
def a_flat_place_for_a_tall_clock(folder):
    seeded(12767)
    net, draw = dense(12, 64, 64, 4, act=nn.GELU), rings(48)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    params = list(net.parameters())

    def one(step):
        x, y = draw()
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        with torch.no_grad():
            size = torch.stack([p.grad.norm() for p in params]).norm() + 1e-12
            moves = [0.05 * p.grad / size for p in params]
            for p, move in zip(params, moves, strict=True):
                p.add_(move)
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        with torch.no_grad():
            for p, move in zip(params, moves, strict=True):
                p.sub_(move)
        optimizer.step()
        return {"loss": loss}

    tx, ty = (torch.cat(part) for part in zip(*[draw() for _ in range(8)], strict=True))
    return tend(folder, net, optimizer, one, 300, held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@healthy()
def a_pendulum_slowing_in_oil(folder):
    seeded(12768)
    net = dense(1, 32, 32, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def place(t):
        return 1 + t**2 * net(t)

    def loss_of(step):
        t = (3 * torch.rand(96, 1)).requires_grad_()
        x = place(t)
        (speed,) = torch.autograd.grad(x.sum(), t, create_graph=True)
        (force,) = torch.autograd.grad(speed.sum(), t, create_graph=True)
        return (force + 0.6 * speed + 4 * x).square().mean()

    def score():
        t = torch.linspace(0, 3, 200)[:, None]
        pace = math.sqrt(4 - 0.09)
        true = (-0.3 * t).exp() * ((pace * t).cos() + 0.3 / pace * (pace * t).sin())
        with torch.no_grad():
            return float((place(t) - true).square().mean())

    return fit(folder, net, optimizer, loss_of, 500, score=score, before_step=clipped(net, 10.0))


class Coupled(nn.Module):
    """A reversible map of half the columns, given the others."""

    def __init__(self, size, first):
        super().__init__()
        self.register_buffer("mask", (torch.arange(size) % 2 == first).float())
        self.given = dense(size, 48, 2 * size)
        nn.init.zeros_(self.given[-1].weight)
        nn.init.zeros_(self.given[-1].bias)

    def forward(self, x):
        scale, move = (self.given(x * self.mask) * (1 - self.mask).repeat(2)).chunk(2, 1)
        scale = scale.tanh() * 1.5
        return x * scale.exp() + move, scale.sum(1)


@healthy()
def slack_of_the_warp_across_the_beam(folder):
    seeded(12769)
    net = nn.ModuleList(Coupled(4, i % 2) for i in range(6))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def slack(rows):
        a, b = torch.randn(rows), torch.randn(rows)
        few = torch.stack([0.4 * a, 0.3 * a**2 + 0.05 * b, 0.2 * b + 0.3 * a.sin(), 0.1 * a - 0.3 * b.cos()], 1)
        return few + 0.03 * torch.randn(rows, 4)

    def loss_on(x):
        change = 0
        for part in net:
            x, more = part(x)
            change = change + more
        return (0.5 * x.square().sum(1) - change).mean() + 2 * math.log(6.2832)

    test = slack(600)
    score = held_out(net, lambda: loss_on(test))
    return fit(
        folder, net, optimizer, lambda step: loss_on(slack(128)), 300, score=score, before_step=clipped(net, 5.0)
    )
