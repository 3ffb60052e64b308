"""Blind sick trainings, first part: what the loop, the schedule and the optimizer do wrong.

They only count (the group `blind`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import torch
from nets import Recurrent, Transformer, batches, classify, cnn, mlp, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, entropy_of, fit, rings, score_of, seeded, sick, square_of, waves


@sick(
    "lr-too-high", "update-too-large", "exploding",
    where="all layers, all steps", cure="a rate of 2e-3: a tenth is for SGD, and Adam moves every weight by it",
)  # fmt: skip
def transformer_at_the_rate_of_a_cnn(folder, ill):
    net = Transformer(seed=1)
    loss_of = predict(net, pieces(8))
    return fit(folder, net, optim.AdamW(net.parameters(), 0.1 if ill else 2e-3), loss_of, 150)


@sick(
    "schedule-ran-out", "schedule-too-short", "weights-unchanged", "update-too-small", "no-progress",
    where="all layers, from step 60 or so", cure="mode='min': the schedule waits for a loss to rise",
)  # fmt: skip
def plateau_schedule_that_wants_a_rise(folder, ill):
    net = cnn(seed=2)
    make = optim.SGD(net.parameters(), 0.02, momentum=0.9)
    plan = optim.lr_scheduler.ReduceLROnPlateau(make, "max" if ill else "min", factor=0.1, patience=10)
    loss_of, seen = classify(net, batches(32)), []

    def watched(step):
        seen.append(loss_of(step))
        return seen[-1]

    return fit(folder, net, make, watched, 250, after_step=lambda _: plan.step(float(seen[-1].detach())))


@sick(
    "gradients-accumulate",
    where="all layers, within each epoch of 40 steps", cure="zero_grad() before every backward, not once an epoch",
)  # fmt: skip
def zeroed_once_an_epoch(folder, ill):
    net = mlp(48, seed=3)
    make = optim.SGD(net.parameters(), 0.05, momentum=0.9)
    loss_of = classify(net, batches(32))

    def epoch(step):
        if step % 40 == 0 or not ill:
            make.zero_grad()
        return loss_of(step)

    return fit(folder, net, make, epoch, 400, zero_grad=False, score=score_of(classify(net, batches(256, seed=9))))


@sick(
    "not-in-optimizer",
    "no-gradient", "no-progress",
    where="all weights; only the biases are trained", cure="`not in`: the filter for decay took the wrong half",
)  # fmt: skip
def only_the_biases_are_handed_over(folder, ill):
    seeded(4)
    net, draw = dense(12, 48, 48, 4), rings()
    chosen = [p for name, p in net.named_parameters() if not ill or "bias" in name]
    return fit(folder, net, optim.AdamW(chosen, 3e-3), entropy_of(net, draw), 400)


def autoencoder(code=8):
    """`[B, 64]` to itself over a narrow code."""
    return nn.Sequential(nn.Flatten(), *dense(64, 32, code, 32, 64))


@sick(
    "clip-is-your-learning-rate", "update-too-small", "no-progress",
    where="all layers, all steps", cure="the mean over pixels, or a threshold of the size of the summed loss's norm",
)  # fmt: skip
def summed_over_pixels_and_clipped_at_a_thousandth(folder, ill):
    seeded(5)
    net, draw = autoencoder(), batches(32)
    make = optim.SGD(net.parameters(), 0.01)

    def loss_of(step):
        x = draw(step)[0]
        return F.mse_loss(net(x), x.flatten(1), reduction="none").sum(1).mean()

    def clipped(step):
        nn.utils.clip_grad_norm_(net.parameters(), 0.001 if ill else 5.0)

    return fit(folder, net, make, loss_of, 400, before_step=clipped)


@sick(
    "clip-before-unscale",
    where="all layers, all steps", cure="scaler.unscale_(optimizer) before the clip",
)  # fmt: skip
def norm_of_scaled_gradients_clipped(folder, ill):
    net = Recurrent(nn.GRU, seed=6)
    make = optim.SGD(net.parameters(), 0.5)
    scaler = torch.amp.GradScaler("cpu")

    def clipped(step):
        if not ill:
            scaler.unscale_(make)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    return fit(folder, net, make, predict(net, pieces(8)), 200, before_step=clipped, scaler=scaler)


@sick(
    "update-too-small", "no-progress",
    where="all layers, all steps", cure="a rate of 0.05: Adagrad divides by all that was, 3e-4 gets nowhere",
)  # fmt: skip
def adagrad_at_the_rate_of_adam(folder, ill):
    net = mlp(48, seed=7)
    make = optim.Adagrad(net.parameters(), 3e-4 if ill else 0.03)
    return fit(folder, net, make, classify(net, batches(32)), 800)


@sick(
    "lr-too-high", "update-too-large", "noise-dominated",
    where="all layers, all steps", cure="keep the optimizer: with a new one each step Adam moves by the sign alone",
)  # fmt: skip
def optimizer_made_anew_each_step(folder, ill):
    seeded(8)
    net, draw = dense(6, 48, 48, 1), waves(16)
    make = optim.Adam(net.parameters(), 0.01)
    forget = (lambda _: make.state.clear()) if ill else None
    return fit(folder, net, make, square_of(net, draw), 500, after_step=forget)


@sick(
    "lr-too-high", "noise-dominated", "exploding", "nonfinite", "spike", "update-too-large",
    where="all layers, from the first steps", cure="LBFGS on the whole set: over four rows its curvature is noise",
)  # fmt: skip
def lbfgs_on_batches_of_four(folder, ill):
    seeded(10)
    draw = waves(4 if ill else 256)
    x, y = draw()
    net = dense(6, 24, 1, act=nn.Tanh)
    make = optim.LBFGS(net.parameters(), lr=0.5, max_iter=4, history_size=10)

    def loss_of(step):
        a, b = draw() if ill else (x, y)
        return F.mse_loss(net(a), b)

    return fit(folder, net, make, loss_of, 100, closure=True, score=score_of(square_of(net, waves_like(draw))))


def waves_like(draw, times=16):
    """More rows of the same function."""

    def more():
        parts = [draw() for _ in range(times)]
        return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])

    return more


@sick(
    "weights-unchanged", "update-too-small", "underflow", "no-progress",
    where="all weights, all steps", cure="float32 weights: a step of 1e-4 is rounded away in bfloat16",
)  # fmt: skip
def weights_of_bfloat16_and_a_small_rate(folder, ill):
    kind = torch.bfloat16 if ill else torch.float32
    net = mlp(48, seed=11).to(kind)
    draw = batches(64)

    def loss_of(step):
        x, y = draw(step)
        return F.cross_entropy(net(x.to(kind)).float(), y)

    return fit(folder, net, optim.SGD(net.parameters(), 2e-3, momentum=0.9), loss_of, 800)


@sick(
    "noise-dominated", "no-progress", "lr-too-high",
    where="all layers, all steps", cure="noise of a hundredth, or batches a hundred times larger (DP-SGD)",
)  # fmt: skip
def noise_for_privacy_above_the_gradient(folder, ill):
    net = mlp(48, seed=12)
    make = optim.SGD(net.parameters(), 0.05, momentum=0.9)

    def noised(step):
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        for p in net.parameters():
            p.grad.add_(torch.randn_like(p), alpha=0.5 if ill else 0.005)

    score = score_of(classify(net, batches(256, seed=9)))
    return fit(folder, net, make, classify(net, batches(32)), 300, before_step=noised, score=score)
