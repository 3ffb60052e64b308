"""Novel healthy trainings, third part: little data, large and small numbers, noise. An expert has nothing to say.

They only count (the group `novel`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import copy

import torch
from nets import batches, classify
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded, square_of, waves


@healthy(0.3)
def eighteen_steps_on_the_whole_set(folder):
    seeded(261)
    net = nn.Sequential(nn.Flatten(), *dense(64, 96, 10))
    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), classify(net, batches(1024)), 18)


@healthy(0.9)
def eight_rows_and_a_line(folder):
    """Everything there is, in every step."""
    seeded(262)
    net, x = nn.Linear(2, 1), torch.randn(8, 2)
    y = x @ torch.tensor([[1.5], [-2.0]]) + 0.5 + 0.1 * torch.randn(8, 1)
    return fit(folder, net, optim.SGD(net.parameters(), 0.1), lambda step: F.mse_loss(net(x), y), 200)


@healthy(0.5)
def two_kinds_that_a_line_tells_apart(folder):
    """The weights grow for all of three thousand steps, as they must: the loss has no least value but 0."""
    seeded(263)
    net, x = nn.Linear(8, 1), torch.randn(256, 8)
    way = F.normalize(torch.randn(8, 1), dim=0)
    y = (x @ way > 0).float()
    x = x + 0.5 * (2 * y - 1) * way.T
    loss = score_of(lambda step: F.binary_cross_entropy_with_logits(net(x), y), 1)

    def loss_of(step):
        at = torch.randint(256, (32,))
        return F.binary_cross_entropy_with_logits(net(x[at]), y[at])

    return fit(folder, net, optim.SGD(net.parameters(), 0.5), loss_of, 3000, score=loss)


@healthy(0.5)
def rents_answered_in_money(folder):
    """Losses of a million and gradients as large, under Adam; the last layer's answer is in thousands."""
    seeded(285)
    net, draw = dense(6, 64, 64, 1), waves(64)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(5000 + 1000 * net(x), 5000 + 1000 * y)

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 900)


@healthy(0.3)
def directions_of_a_larger_net(folder):
    """A student is to point where its teacher points, in 128 dimensions: differences of a hundredth, squared."""
    seeded(286)
    teacher = dense(16, 128, 128, act=nn.Tanh).requires_grad_(False)
    net = dense(16, 48, 128)

    def loss_of(step):
        x = torch.randn(64, 16)
        return F.mse_loss(F.normalize(net(x), dim=1), F.normalize(teacher(x), dim=1))

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 500)


@healthy(0.3)
def signal_of_a_twentieth_of_the_noise(folder):
    """Returns: what can be known is a quarter of what is drawn by chance; the score is the error of what can be."""
    seeded(287)
    net, draw = dense(3, 24, 1, act=nn.Tanh), waves(256, 3)
    nn.init.zeros_(net[-1].weight)
    nn.init.zeros_(net[-1].bias)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y + 5 * torch.randn_like(y))

    make = optim.ASGD(net.parameters(), 0.03, lambd=0.0, t0=500)
    return fit(folder, net, make, loss_of, 1500, score=score_of(square_of(net, draw), 32))


@healthy(0.3)
def student_of_a_centred_teacher(folder):
    """DINO (Caron et al. 2021); the score is how well two views find each other, not how well they agree."""
    seeded(288)
    net = dense(12, 64, 64, 24, act=nn.GELU)
    slow, middle = copy.deepcopy(net).requires_grad_(False), torch.zeros(24)
    lift, stray = torch.randn(2, 3, 12)

    def both():
        """What two views share, and what each has for itself."""
        point = torch.randn(96, 3)
        return [point @ lift + 0.7 * torch.randn(96, 3) @ stray for _ in range(2)]

    def loss_of(step):
        a, b = both()
        said = [slow(x) for x in (b, a)]
        wanted = [((z - middle) / 0.04).softmax(1) for z in said]
        middle.lerp_(torch.cat(said).mean(0), 0.1)
        return sum(F.cross_entropy(net(x) / 0.1, w) for x, w in zip((a, b), wanted, strict=True)) / 2

    @torch.no_grad()
    def follow(step):
        for mine, theirs in zip(slow.parameters(), net.parameters(), strict=True):
            mine.lerp_(theirs, 0.02)

    def found(step):
        a, b = (F.normalize(z - z.mean(0), dim=1) for z in (net(part) for part in both()))
        return F.cross_entropy(a @ b.T / 0.1, torch.arange(96))

    make = optim.AdamW(net.parameters(), 1e-3, weight_decay=0.04)
    plan = optim.lr_scheduler.LinearLR(make, 0.05, 1.0, 40)
    return fit(folder, net, make, loss_of, 400, after_step=follow, schedule=plan, score=score_of(found))


@healthy(0.5)
def spiral_by_steps_of_a_flow(folder):
    """A neural ODE (Chen et al. 2018), solved by Runge and Kutta's steps; a clip at 0.5 that binds at first."""
    seeded(289)
    net = dense(2, 48, 2, act=nn.Tanh)
    true = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]])

    def path(slope, x, times=12, dt=0.1):
        seen = []
        for _ in range(times):
            a = slope(x)
            b = slope(x + 0.5 * dt * a)
            c = slope(x + 0.5 * dt * b)
            d = slope(x + dt * c)
            x = x + dt / 6 * (a + 2 * b + 2 * c + d)
            seen.append(x)
        return torch.stack(seen)

    def loss_of(step):
        x = 4 * torch.rand(32, 2) - 2
        return F.l1_loss(path(net, x), path(lambda at: at @ true.T, x))

    def clipped(step):
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 300, before_step=clipped)
