"""Healthy trainings whose numbers frighten: noise, jumps, flat starts, drifts, losses below zero, tiny rates."""

from __future__ import annotations

import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.optim import lr_scheduler as plans
from unseen import dense, fit, healthy, score_of, seeded
from unseen.visible.healthy import ViT, judged, parted, rounds, warmed
from unseen.visible.healthy_letters import Block

# -------------------------------------------------------------------------------------------- sizes far from the usual


@healthy(0.9)
def counts_from_none_to_thousands(folder):
    """A Poisson likelihood: the largest rows of a batch make its gradient, which ranges over orders of magnitude."""
    seeded(827)
    way, net = F.normalize(torch.randn(5, 2), dim=0), dense(5, 48, 48, 1, act=nn.SiLU)

    def counts(rows):
        x = torch.randn(rows, 5)
        h = x @ way
        return x, torch.poisson((2 + 1.5 * h[:, 0] + (2 * h[:, 1]).sin()).exp().clamp_max(5000))

    def loss_of(step):
        x, y = counts(64)
        return F.poisson_nll_loss(net(x)[:, 0], y)

    @torch.no_grad()
    def score():
        x, y = counts(2000)
        found = net(x)[:, 0]
        return 2 * float((torch.xlogy(y, y) - y * found - y + found.exp()).mean())

    return fit(
        folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 600, score=score,
        before_step=lambda step: clip_grad_norm_(net.parameters(), 10.0),
    )  # fmt: skip


class Chain(nn.Module):
    """Twelve springs in a row, held at one end: how far each joint is moved, in millimetres, by forces in newtons."""

    def __init__(self, stiffness):
        super().__init__()
        self.stiffness = nn.Parameter(stiffness)
        self.register_buffer("stretch", torch.eye(12) - torch.eye(12).roll(1, 0).tril())

    def forward(self, force):
        whole = self.stretch.T @ (self.stiffness[:, None] * self.stretch)
        return 1e3 * torch.linalg.solve(whole, force.T).T


@healthy(0.6)
def stiffness_of_twelve_springs(folder):
    """What is learned are hundreds of newtons per metre, by Adam at a rate of 5 of them."""
    seeded(834)
    real, net = Chain(250 + 600 * torch.rand(12)).requires_grad_(False), Chain(torch.full((12,), 500.0))
    make = optim.Adam(net.parameters(), 5.0)

    def loss_of(step):
        force = torch.randn(16, 12)
        return F.mse_loss(net(force), real(force) + 0.3 * torch.randn(16, 12))

    def score():
        return float((net.stiffness / real.stiffness - 1).abs().mean())

    return fit(folder, net, make, loss_of, 400, schedule=plans.StepLR(make, 250, 0.2), score=score)


@healthy(0.8)
def sensor_read_to_a_thousandth(folder):
    """A swing that fades is read on; the loss falls far below zero, as the density of so sure a guess is above 1."""
    seeded(839)
    net = nn.ModuleDict({"memory": nn.GRU(1, 32, batch_first=True), "head": nn.Linear(32, 2)})
    time = torch.arange(25.0)

    def guessed():
        """The middle and the logarithm of the spread of what comes next, once four values were read, and what came."""
        pitch, phase = 0.3 + 0.5 * torch.rand(64, 1), 6.2832 * torch.rand(64, 1)
        x = (pitch * time + phase).sin() * (-0.04 * time).exp() + 0.003 * torch.randn(64, 25)
        return *net["head"](net["memory"](x[:, :-1, None])[0])[:, 3:].unbind(2), x[:, 4:]

    def loss_of(step):
        middle, spread, ahead = guessed()
        return (0.5 * ((ahead - middle) / spread.exp()).square() + spread).mean()

    def missed(step):
        middle, _, ahead = guessed()
        return F.mse_loss(middle, ahead).sqrt()

    return fit(
        folder, net, optim.NAdam(net.parameters(), 6e-3), loss_of, 500, score=score_of(missed),
        before_step=lambda step: clip_grad_norm_(net.parameters(), 1.0),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------- noise that is meant


class RowByRow(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.memory, self.head = nn.LSTM(8, width, batch_first=True), nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.memory(x)[0][:, -1])


@healthy(0.7)
def memory_whose_weights_tremble(folder):
    """Noise on all weights while a gradient is taken, against learning by heart; scored without it."""
    seeded(828)
    (x, y), held = parted()
    net, loader = RowByRow(), rounds(x, y)
    weights, noise = list(net.parameters()), []

    def loss_of(step):
        noise[:] = [0.06 * torch.randn_like(p) for p in weights]
        with torch.no_grad():
            torch._foreach_add_(weights, noise)
        x, y = next(loader)
        return F.cross_entropy(net(x), y)

    def still(step):
        with torch.no_grad():
            torch._foreach_sub_(weights, noise)
        clip_grad_norm_(weights, 1.0)

    make = optim.SGD(weights, 0.1, momentum=0.9)
    return fit(folder, net, make, loss_of, 450, score=judged(net, *held), before_step=still)


@healthy(0.6)
def few_rows_and_most_units_at_rest(folder):
    """150 digits, and six of ten units left out: the loss stays high and noisy; digits kept apart are named best so."""
    seeded(830)
    (x, y), held = parted()
    at = torch.randperm(len(x))[:150]
    net, loader = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.6), nn.Linear(256, 256), nn.ReLU(), nn.Dropout(0.6),
        nn.Linear(256, 10),
    ), rounds(x[at], y[at], batch=50)  # fmt: skip
    make = optim.SGD(net.parameters(), 0.03, momentum=0.9)

    def loss_of(step):
        x, y = next(loader)
        return F.cross_entropy(net(x), y)

    return fit(folder, net, make, loss_of, 400, score=judged(net, *held))


# ---------------------------------------------------------------------------------------------- tasks that do not stay


@healthy(0.7)
def rollouts_that_reach_further(folder):
    """A pendulum foretold one step ahead, then two, up to ten: the loss leaps whenever the reach grows."""
    seeded(831)
    net = dense(2, 48, 48, 2, act=nn.Tanh)

    def swung(state):
        angle, speed = state.unbind(1)
        for _ in range(4):
            speed = speed - 0.1 * (angle.sin() + 0.1 * speed)
            angle = angle + 0.1 * speed
        return torch.stack([angle, speed], 1)

    def missed(reach):
        state = 1.5 * torch.randn(64, 2)
        guess, missed = state, 0.0
        for _ in range(reach):
            state, guess = swung(state), guess + net(guess)
            missed = missed + F.mse_loss(guess, state)
        return missed

    score = score_of(lambda step: missed(10))
    make = optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, make, lambda step: missed(min(10, 1 + step // 50)), 550, score=score)


@healthy(0.5)
def demand_that_drifts_day_by_day(folder):
    """Each batch is seen once, and what is asked turns slowly; the rate stays, so that the net can follow."""
    seeded(838)
    net, one, other = dense(6, 48, 1, act=nn.Tanh), torch.randn(6, 1), torch.randn(6, 1)
    now = {"angle": torch.tensor(0.0)}

    def today():
        x, angle = torch.randn(32, 6), now["angle"]
        y = x @ (one * angle.cos() + other * angle.sin()) / 2 + (x @ (other * angle.cos() - one * angle.sin())).sin()
        return x, y + 0.1 * torch.randn(32, 1)

    def error(step):
        x, y = today()
        return F.mse_loss(net(x), y)

    def loss_of(step):
        now["angle"] = torch.tensor(step / 500)
        return error(step)

    make = optim.SGD(net.parameters(), 0.1)
    return fit(folder, net, make, loss_of, 1500, score=score_of(error, 20))


class Deciding(nn.Module):
    """A decision transformer: what is still to be earned, the state, the move, step after step."""

    def __init__(self, width=32):
        super().__init__()
        self.earn, self.state, self.move = nn.Linear(1, width), nn.Linear(2, width), nn.Linear(2, width)
        self.place, self.norm = nn.Embedding(8, width), nn.LayerNorm(width)
        self.blocks, self.head = nn.ModuleList(Block(width) for _ in range(2)), nn.Linear(width, 2)

    def forward(self, earn, state, move):
        tokens = torch.stack([self.earn(earn), self.state(state), self.move(move)], 2) + self.place.weight[:, None]
        h = tokens.flatten(1, 2)
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h[:, 1::3]))


@healthy(0.5)
def actions_for_a_return_that_is_asked(folder):
    """Walks home of good and bad walkers; the loss is a sum over the walk, and the paper's clip of 0.25 always acts."""
    seeded(832)
    net = Deciding()
    make = optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-4)

    def loss_of(step):
        state, skill, rows = 2 * torch.randn(32, 2), torch.rand(32, 1), []
        for _ in range(8):
            move = -skill * state + 0.1 * torch.randn(32, 2)
            after = state + move + 0.3 * torch.randn(32, 2)
            rows.append((state, move, -after.square().sum(1, keepdim=True) / 10))
            state = after
        state, move, paid = (torch.stack(part, 1) for part in zip(*rows, strict=True))
        earn = paid.flip(1).cumsum(1).flip(1)
        return (net(earn, state, move) - move).square().sum((1, 2)).mean()

    plan = plans.LinearLR(make, 0.02, total_iters=50)
    return fit(
        folder, net, make, loss_of, 400, schedule=plan, score=score_of(loss_of),
        before_step=lambda step: clip_grad_norm_(net.parameters(), 0.25),
    )  # fmt: skip


# ----------------------------------------------------------------------------------- long before it, and right after it


@healthy(0.5)
def two_marked_numbers_added(folder):
    """The adding problem: nothing is learned for a long while, and then all of it."""
    seeded(835)
    net = nn.ModuleDict({"memory": nn.LSTM(2, 32, batch_first=True), "head": nn.Linear(32, 1)})

    def loss_of(step):
        value, mark = torch.rand(64, 20), torch.zeros(64, 20)
        mark.scatter_(1, torch.rand(64, 20).topk(2).indices, 1.0)
        found = net["head"](net["memory"](torch.stack([value, mark], 2))[0][:, -1])[:, 0]
        return F.mse_loss(found, (value * mark).sum(1))

    return fit(
        folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 600, score=score_of(loss_of),
        before_step=lambda step: clip_grad_norm_(net.parameters(), 1.0),
    )  # fmt: skip


@healthy(0.06)
def patches_carried_to_thinner_strokes(folder):
    """A ViT that knows digits is tuned on 100 paler, thinner ones, most of which it names already, at a tiny rate."""
    seeded(840)
    (x, y), held = parted()
    net, loader = ViT(24), rounds(x, y, batch=32)
    before = optim.AdamW(net.parameters(), 8e-3)
    plan = plans.OneCycleLR(before, 8e-3, total_steps=251)
    for _ in range(250):
        rows, kinds = next(loader)
        before.zero_grad()
        F.cross_entropy(net(rows), kinds).backward()
        before.step()
        plan.step()
    net.zero_grad()
    at = torch.randperm(len(x))[:100]
    few = rounds(x[at], y[at], batch=32)

    def thinned(x):
        return (x - 0.25).clamp_min(0) / 0.75

    def loss_of(step):
        x, y = next(few)
        return F.cross_entropy(net(thinned(x)), y)

    make = optim.AdamW(net.parameters(), 3e-4, weight_decay=0.01)
    score = judged(net, thinned(held[0]), held[1])
    return fit(folder, net, make, loss_of, 120, schedule=warmed(make, 12, 120), score=score)
