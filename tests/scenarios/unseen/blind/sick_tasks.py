"""Blind sick trainings, third part: losses, data and games.

They only count (the group `blind`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import torch
from nets import batches
from torch import nn, optim
from torch.nn import functional as F
from trainings import blobs
from unseen import dense, fit, rings, score_of, seeded, sick, square_of, waves
from unseen.tasks import play, views


@sick(
    "no-progress", "noise-dominated", "shapes-broadcast",
    where="all layers, all steps", cure="squeeze: [B] less [B, 1] is [B, B], every row is fitted to every target",
)  # fmt: skip
def predictions_broadcast_over_targets(folder, ill):
    seeded(30)
    net, draw = dense(6, 48, 48, 1), waves()

    def loss_of(step):
        x, y = draw()
        return (net(x) - (y[:, 0] if ill else y)).square().mean()

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 500, score=score_of(square_of(net, draw)))


@sick(
    "spike", "noise-dominated", "lr-too-high", "no-progress", "data-not-shuffled",
    where="the last layers, at every change of class", cure="shuffle: the rows lie sorted by their class",
)  # fmt: skip
def rows_sorted_by_class(folder, ill):
    seeded(31)
    net = dense(16, 48, 4)
    draw = blobs(4, 16, 256, spread=2.5)

    def loss_of(step):
        x, y = draw(step)
        here = y == step // 25 % 4 if ill else torch.arange(256) < 64
        return F.cross_entropy(net(x[here]), y[here])

    def score():
        x, y = draw(10_000)
        with torch.no_grad():
            return float(F.cross_entropy(net(x), y))

    return fit(folder, net, optim.SGD(net.parameters(), 0.01, momentum=0.9), loss_of, 400, score=score)


@sick(
    "loss-terms-apart", "loss-terms-unbalanced", "no-progress", "imbalance", "vanishing", "dead-layer",
    where="encode and decode, all steps", cure="both terms summed over a row, or both averaged: the code holds nothing",
)  # fmt: skip
def divergence_summed_error_averaged(folder, ill):
    """A variational autoencoder of the digits; the score is its error."""
    seeded(32)
    net = nn.ModuleDict({"encode": dense(64, 48, 16), "decode": dense(8, 48, 64)})
    draw = batches(64)

    def terms(step):
        x = draw(step)[0].flatten(1)
        middle, log_var = net["encode"](x).chunk(2, 1)
        z = middle + (log_var / 2).exp() * torch.randn_like(middle)
        apart = 0.5 * (middle**2 + log_var.exp() - log_var - 1).sum(1).mean()
        return F.mse_loss(net["decode"](z), x, reduction="none").sum(1).mean(), apart

    def loss_of(step):
        error, apart = terms(step)
        return (error / 64 if ill else error) + apart * (1.0 if ill else 0.1), {"error": error / 64}

    score = score_of(lambda step: terms(step)[0] / 64)
    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 500, score=score)


@sick(
    "no-progress", "vanishing", "dead-layer", "update-too-small", "weights-unchanged",
    where="all layers, after the first steps", cure="negatives: without them all views come to lie on one point",
)  # fmt: skip
def pairs_that_only_attract(folder, ill):
    seeded(33)
    net, pull, score = views(0.1)
    lifts = torch.randn(2, 3, 12)

    def loss_of(step):
        if not ill:
            return pull(step), {"val_loss": score()} if step % 10 == 0 else {}
        point = torch.randn(48, 3)
        a, b = (net[side]((point @ lift).tanh()) for side, lift in zip(net, lifts, strict=True))
        return F.mse_loss(a, b), {"val_loss": score()} if step % 10 == 0 else {}

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 300, score=score)


@sick(
    "weight-growth", "exploding", "no-progress", "lr-too-high", "imbalance",
    where="all layers, values grow without an end", cure="no value behind an end: target = reward + (1 - done) * ...",
)  # fmt: skip
def values_carried_over_the_end(folder, ill):
    """A walk of 10 states to a reward of 1 at its end, values bootstrapped; the score is their error."""
    seeded(34)
    net = dense(10, 32, 1)
    state = torch.eye(10)
    true = 0.99 ** torch.arange(9, -1, -1.0)

    def loss_of(step):
        at = torch.randint(10, (32,))
        done = at == 9
        with torch.no_grad():
            after = net(state[torch.where(done, 0, at + 1)])[:, 0]
        target = done.float() + 0.99 * after * (1.0 if ill else 1 - done.float())
        return F.mse_loss(net(state[at])[:, 0], target)

    def score():
        with torch.no_grad():
            return float((net(state)[:, 0] - true).square().mean())

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 1500, score=score)


@sick(
    "nonfinite",
    where="all layers, from the first batch with a row twice", cure="an epsilon under the root: its slope at 0 is inf",
)  # fmt: skip
def distance_of_a_row_to_itself(folder, ill):
    seeded(35)
    net = dense(12, 48, 4)
    rows, kinds = (torch.cat(part) for part in zip(*(rings(40)() for _ in range(2)), strict=True))
    bar = 0.0 if ill else 1e-6

    def loss_of(step):
        i, j = torch.randint(80, (2, 4 if step < 20 else 64))
        apart = ((net(rows[i]) - net(rows[j])).square().sum(1) + bar).sqrt()
        return torch.where(kinds[i] == kinds[j], apart, (2 - apart).relu()).square().mean()

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 300)


@sick(
    "update-too-small", "no-progress", "loss-terms-apart", "loss-terms-unbalanced", "vanishing",
    where="all layers, all steps", cure="overlap of the probabilities: a mask that is cut at a half has no slope",
)  # fmt: skip
def overlap_of_masks_cut_at_a_half(folder, ill):
    """Segmentation: find the bright disc."""
    seeded(36)
    net = nn.Sequential(nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 1, 5, padding=2))
    grid = torch.stack(torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij"))

    def draw():
        centre = 3 + 10 * torch.rand(16, 2, 1, 1)
        mask = ((grid - centre).square().sum(1, keepdim=True) < 6).float()
        return mask + 0.7 * torch.randn(16, 1, 16, 16), mask

    def overlap(p, mask):
        return 1 - (2 * (p * mask).sum() + 1) / (p.sum() + mask.sum() + 1)

    def loss_of(step):
        x, mask = draw()
        logits = net(x)
        p = (logits > 0).float() if ill else logits.sigmoid()
        return overlap(p, mask) + 1e-3 * F.binary_cross_entropy_with_logits(logits, mask)

    def score():
        x, mask = draw()
        with torch.no_grad():
            return float(overlap(net(x).sigmoid(), mask))

    return fit(folder, net, optim.SGD(net.parameters(), 0.2, momentum=0.9), loss_of, 150, score=score)


@sick(
    "below-epsilon", "update-too-small", "no-progress", "underflow",
    where="all layers, once the outputs have come near zero", cure="targets in units of their own size, not in metres",
)  # fmt: skip
def displacements_in_metres(folder, ill):
    """Waves of micrometres; the score is in units of their variance."""
    seeded(37)
    net, draw = dense(6, 48, 48, 1), waves()
    unit = 1e-6 if ill else 1.0
    nn.init.zeros_(net[-1].weight)
    nn.init.zeros_(net[-1].bias)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), unit * y)

    score = score_of(lambda step: loss_of(step) / unit**2)
    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 400, score=score)


@sick(
    "rates-apart", "update-too-small", "weights-unchanged",
    where="all layers of D, all steps", cure="a rate of 3e-3 for D too: 1e-7 was meant for its weight decay",
)  # fmt: skip
def judge_that_hardly_learns(folder, ill):
    seeded(40)
    make, judge = dense(4, 32, 32, 2), dense(2, 32, 32, 1)
    of_make = optim.Adam(make.parameters(), 3e-3, betas=(0.5, 0.9))
    of_judge = optim.Adam(judge.parameters(), 1e-7 if ill else 3e-3, betas=(0.5, 0.9))

    def judge_loss(real, made):
        return F.softplus(-judge(real)).mean() + F.softplus(judge(made)).mean()

    return play(folder, make, judge, of_make, of_judge, judge_loss, lambda x: F.softplus(-judge(x)).mean(), 400)
