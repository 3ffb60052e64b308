"""Novel sick trainings, first part: what the loop, the schedule and the optimizer do wrong.

They only count (the group `novel`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import copy
import math

import torch
from nets import Recurrent, Transformer, batches, classify, cnn, mlp, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, entropy_of, fit, rings, score_of, seeded, sick


@sick(
    "gradients-accumulate", "lr-too-high", "exploding",
    where="all layers; the norm climbs for eight steps and falls back",
    cure="optimizer.step() once eight micro-batches are in, where the gradients are zeroed",
)  # fmt: skip
def stepped_in_every_micro_batch(folder, ill):
    net, piece = Recurrent(nn.LSTM, 48, seed=201), pieces(4)
    loss, score = predict(net, piece), score_of(predict(net, pieces(32, seed=9)), 2)
    make = optim.SGD(net.parameters(), 3.0, momentum=0.9)

    def loss_of(step):
        if ill and step % 8 == 0:
            make.zero_grad()
        return loss(step) / 8

    if ill:
        return fit(folder, net, make, loss_of, 640, zero_grad=False, score=score)
    return fit(folder, net, make, loss_of, 80, accumulate=8, score=score)


class Rows(nn.Module):
    """Reads an image row by row, and names it from the last state."""

    def __init__(self, memory):
        super().__init__()
        self.memory, self.head = memory, nn.Linear(memory.hidden_size, 10)

    def forward(self, x):
        return self.head(self.memory(x)[0][:, -1])


@sick(
    "lr-too-high", "update-too-large", "saturated", "exploding", "weight-growth",
    where="all layers, from the first steps", cure="a rate of 2e-3: RMSprop moves each weight by about the rate",
)  # fmt: skip
def rmsprop_at_the_rate_of_sgd(folder, ill):
    seeded(202)
    net = Rows(nn.GRU(8, 32, batch_first=True))
    make = optim.RMSprop(net.parameters(), 0.1 if ill else 2e-3)
    return fit(folder, net, make, classify(net, batches(64)), 250)


def moved(at, action):
    """One move of a fifth north, east, south or west in a square, and what it pays: more the nearer to the middle."""
    ways = torch.tensor([[0.0, 0.2], [0.2, 0.0], [0.0, -0.2], [-0.2, 0.0]])
    there = (at + ways[action]).clamp(-1, 1)
    return there, -there.norm(dim=1)


@sick(
    "gradients-accumulate",
    where="all layers, all steps", cure="zero the gradients of the net that learns, not those of its frozen copy",
)  # fmt: skip
def copy_zeroed_in_its_place(folder, ill):
    """Q-learning on a square; the score is how far from the middle twelve greedy moves end."""
    seeded(203)
    net = dense(2, 48, 48, 4)
    slow = copy.deepcopy(net)

    def loss_of(step):
        (slow if ill else net).zero_grad()
        if step % 25 == 0:
            slow.load_state_dict(net.state_dict())
        at, action = 2 * torch.rand(64, 2) - 1, torch.randint(4, (64,))
        there, paid = moved(at, action)
        with torch.no_grad():
            target = paid + 0.8 * slow(there).max(1).values
        return F.smooth_l1_loss(net(at).gather(1, action[:, None])[:, 0], target)

    def score():
        at = 2 * torch.rand(256, 2) - 1
        with torch.no_grad():
            for _ in range(12):
                at, paid = moved(at, net(at).argmax(1))
        return -float(paid.mean())

    make = optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, make, loss_of, 800, zero_grad=False, score=score)


@sick(
    "clip-is-your-learning-rate", "update-too-small", "no-progress", "weights-unchanged",
    where="all layers, all steps", cure="a threshold of 1: every norm is above a thousandth",
)  # fmt: skip
def threshold_of_a_thousandth_under_sgd(folder, ill):
    net = Transformer(depth=2, seed=204)

    def clipped(step):
        nn.utils.clip_grad_norm_(net.parameters(), 1e-3 if ill else 1.0)

    make = optim.SGD(net.parameters(), 0.1, momentum=0.9)
    return fit(folder, net, make, predict(net, pieces(8)), 200, before_step=clipped)


def convolved(code=16):
    """An autoencoder of images of 8 x 8."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(192, code),
        nn.Linear(code, 192), nn.ReLU(), nn.Unflatten(1, (12, 4, 4)), nn.ConvTranspose2d(12, 1, 4, 2, 1), nn.Flatten(1),
    )  # fmt: skip


@sick(
    "weights-unchanged", "update-too-small", "no-progress",
    where="all layers, all steps: the rate is 0", cure="schedule.step(): the warm-up begins at 0 and is never moved",
)  # fmt: skip
def warm_up_that_is_never_stepped(folder, ill):
    seeded(205)
    net, draw = convolved(), batches(64)

    def loss_of(step):
        x = draw(step)[0]
        return F.mse_loss(net(x), x.flatten(1))

    make = optim.AdamW(net.parameters(), 3e-3)
    plan = optim.lr_scheduler.LambdaLR(make, lambda step: min(1.0, step / 40))
    return fit(folder, net, make, loss_of, 250, schedule=None if ill else plan)


@sick(
    "nonfinite", "underflow",
    where="all layers, at the first steps",
    cure="weights of float32 under autocast: the epsilon of 1e-8 is nothing in float16",
)  # fmt: skip
def weights_of_float16_under_adam(folder, ill):
    net, draw = mlp(64, seed=206), batches(64)
    if ill:
        net.half()

    def loss_of(step):
        x, y = draw(step)
        return F.cross_entropy(net(x.half() if ill else x).float(), y)

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 200)


@sick(
    "update-too-small", "no-progress", "weights-unchanged",
    where="both tables, all steps", cure="the sum over pairs: 0.025 is a rate for one pair, and the mean is over 512",
)  # fmt: skip
def rate_of_one_pair_for_the_mean_of_many(folder, ill):
    """Skip-grams with negative samples (Mikolov et al. 2013); words of one of ten subjects stand together."""
    seeded(207)
    net = nn.ModuleDict({"word": nn.Embedding(200, 16), "beside": nn.Embedding(200, 16)})
    nn.init.uniform_(net["word"].weight, -0.5 / 16, 0.5 / 16)
    nn.init.zeros_(net["beside"].weight)

    def pairs(step):
        word = torch.randint(200, (512,))
        near = word % 10 + 10 * torch.randint(20, (512,))
        far = torch.randint(200, (512, 4))
        at = net["word"](word)
        right = (at * net["beside"](near)).sum(1)
        wrong = (at[:, None] * net["beside"](far)).sum(2)
        return F.softplus(-right) + F.softplus(wrong).sum(1)

    def loss_of(step):
        return pairs(step).mean() if ill else pairs(step).sum()

    score = score_of(lambda step: pairs(step).mean())
    return fit(folder, net, optim.SGD(net.parameters(), 0.025), loss_of, 500, score=score)


@sick(
    "weights-shrink", "weight-decay-too-strong", "loss-terms-apart", "loss-terms-unbalanced", "vanishing",
    "no-progress", "dead-layer",
    where="all weights, all steps", cure="1e-6: the term is a sum over ten thousand weights, the error a mean",
)  # fmt: skip
def sum_of_all_weights_beside_a_mean(folder, ill):
    seeded(208)
    net, draw = dense(64, 64, 16, 64, 64), batches(64)

    def error(step):
        x = draw(step)[0].flatten(1)
        return F.mse_loss(net(x), x)

    def loss_of(step):
        return error(step) + (1e-2 if ill else 1e-6) * sum(p.abs().sum() for p in net.parameters())

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 400, score=score_of(error))


@sick(
    "update-too-small", "weights-unchanged", "no-progress", "schedule-ran-out",
    where="all layers, all steps: the rate is that of the end of the run before",
    cure="set the rate after load_state_dict: it brings back the one that was saved",
)  # fmt: skip
def rate_that_came_back_with_the_state(folder, ill):
    """Images the other way round, for a net that was trained to the end of its cosine."""
    net, draw, turned = cnn(seed=209), batches(64), batches(64, seed=5)
    before = optim.AdamW(net.parameters(), 2e-3)
    plan, loss = optim.lr_scheduler.CosineAnnealingLR(before, 150, eta_min=1e-7), classify(net, draw)
    for step in range(150):
        before.zero_grad()
        loss(step).backward()
        before.step()
        plan.step()
    make = optim.AdamW(net.parameters(), 1e-3)
    make.load_state_dict(before.state_dict())
    if not ill:
        for part in make.param_groups:
            part["lr"] = 1e-3

    def loss_of(step):
        x, y = turned(step)
        return F.cross_entropy(net(1 - x), y)

    return fit(folder, net, make, loss_of, 200)


@sick(
    "rate-below-zero", "schedule-too-short", "wrong-sign", "exploding", "lr-too-high", "weight-growth", "nonfinite",
    where="all layers, from step 150", cure="max(0, ...): the line goes on below zero, and every step leads uphill",
)  # fmt: skip
def line_that_goes_on_below_zero(folder, ill):
    net = cnn(norm=True, seed=210)
    make = optim.SGD(net.parameters(), 0.05, momentum=0.9)
    end = 150 if ill else 300
    plan = optim.lr_scheduler.LambdaLR(make, lambda step: 1 - step / end)
    return fit(folder, net, make, classify(net, batches(32)), 300, schedule=plan)


@sick(
    "weights-put-back", "update-too-small", "weights-unchanged", "no-progress",
    where="all layers, all steps",
    cure="the average follows the student: here each step draws the student back to where the average began",
)  # fmt: skip
def average_that_leads(folder, ill):
    """Mean teacher (Tarvainen and Valpola 2017) with its two nets taken for each other."""
    seeded(211)
    net, draw = dense(12, 48, 48, 4), rings()
    slow = copy.deepcopy(net)
    named = entropy_of(net, draw)

    def loss_of(step):
        x = draw()[0]
        with torch.no_grad():
            said = slow(x + 0.05 * torch.randn_like(x)).softmax(1)
        return named(step) + min(1.0, math.exp(step / 100 - 3)) * F.mse_loss(net(x).softmax(1), said)

    @torch.no_grad()
    def follow(step):
        for mine, theirs in zip(net.parameters(), slow.parameters(), strict=True):
            if ill:
                mine.lerp_(theirs, 0.05)
            else:
                theirs.lerp_(mine, 0.05)

    make = optim.SGD(net.parameters(), 0.05, momentum=0.9)
    return fit(folder, net, make, loss_of, 500, after_step=follow, score=score_of(named))
