"""Sick trainings that no rule was written for, first part: what the loop, the schedule and the optimizer do wrong."""

from __future__ import annotations

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, entropy_of, fit, rings, seeded, sick, square_of, waves


@sick(
    "below-epsilon", "update-too-small", "no-progress",
    where="all layers, all steps", cure="eps back to 1e-8: it outweighs the root of the second moment",
)  # fmt: skip
def adam_epsilon_of_ten(folder, ill):
    seeded()
    net, draw = dense(12, 64, 64, 4), rings()
    make = optim.Adam(net.parameters(), 1e-3, eps=10.0 if ill else 1e-8)
    return fit(folder, net, make, entropy_of(net, draw), 300)


@sick(
    "update-too-small", "no-progress",
    where="all layers, all steps", cure="initial_accumulator_value 0: the sum starts far above all gradients",
)  # fmt: skip
def adagrad_accumulator_full(folder, ill):
    seeded(1)
    net, draw = dense(12, 64, 64, 4), rings()
    start = 1e6 if ill else 0.0
    make = optim.Adagrad(net.parameters(), 0.03, initial_accumulator_value=start)
    return fit(folder, net, make, entropy_of(net, draw), 300)


@sick(
    "schedule-ran-out", "schedule-too-short", "weights-unchanged", "update-too-small", "no-progress",
    where="all layers, from step 40 or so", cure="step the schedule once an epoch, not once a batch",
)  # fmt: skip
def epoch_schedule_stepped_per_batch(folder, ill):
    seeded(2)
    net, draw = dense(12, 64, 64, 4), rings()
    make = optim.SGD(net.parameters(), 0.1, momentum=0.9)
    plan = optim.lr_scheduler.ExponentialLR(make, 0.85 if ill else 0.998)
    return fit(folder, net, make, entropy_of(net, draw), 300, schedule=plan)


@sick(
    "update-too-small", "warmup-too-long", "no-progress",
    where="all layers, all steps", cure="a warm-up of 30 steps, not of 100,000",
)  # fmt: skip
def warmup_longer_than_the_run(folder, ill):
    seeded(3)
    net, draw = dense(12, 64, 64, 4), rings()
    make = optim.AdamW(net.parameters(), 3e-3)
    plan = optim.lr_scheduler.LambdaLR(make, lambda step: min(1.0, (step + 1) / (100_000 if ill else 30)))
    return fit(folder, net, make, entropy_of(net, draw), 300, schedule=plan)


@sick(
    "weight-decay-too-strong", "weights-shrink", "no-progress",
    where="all weights shrink within 50 steps", cure="a weight decay of 0.01",
)  # fmt: skip
def decoupled_decay_of_thirty(folder, ill):
    seeded(4)
    net, draw = dense(12, 64, 64, 4), rings()
    make = optim.AdamW(net.parameters(), 3e-3, weight_decay=30.0 if ill else 0.01)
    return fit(folder, net, make, entropy_of(net, draw), 300)


@sick(
    "weight-decay-too-strong", "weights-shrink", "vanishing", "no-progress",
    where="all weights shrink within 50 steps", cure="a weight decay of 1e-4",
)  # fmt: skip
def l2_of_a_half(folder, ill):
    seeded(5)
    net, draw = dense(12, 64, 64, 4), rings()
    make = optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=0.5 if ill else 1e-4)
    return fit(folder, net, make, entropy_of(net, draw), 300)


@sick(
    "lr-too-high", "update-too-large", "exploding", "momentum-too-high",
    where="all layers, all steps", cure="momentum 0.9: at 0.999 a step lives for a thousand more",
)  # fmt: skip
def momentum_near_one(folder, ill):
    seeded(6)
    net, draw = dense(6, 64, 1, act=nn.Tanh), waves()
    make = optim.SGD(net.parameters(), 0.05, momentum=0.999 if ill else 0.9)
    return fit(folder, net, make, square_of(net, draw), 300)


@sick(
    "lr-too-high", "update-too-large", "exploding", "dead-layer",
    where="all layers, from the first steps", cure="reduction='mean', or a rate 512 times smaller",
)  # fmt: skip
def summed_loss_with_the_rate_of_a_mean(folder, ill):
    seeded(7)
    net, draw = dense(12, 64, 64, 4), rings(512)

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y, reduction="sum" if ill else "mean")

    def score():
        with torch.no_grad():
            x, y = draw()
            return F.cross_entropy(net(x), y)

    return fit(folder, net, optim.SGD(net.parameters(), 0.1), loss_of, 200, score=score)


@sick(
    "lr-too-high", "update-too-large", "exploding", "dead-layer", "loss-not-averaged",
    where="all layers, from the first steps", cure="divide the loss of each micro-batch by their number",
)  # fmt: skip
def micro_batches_not_averaged(folder, ill):
    seeded(8)
    net, draw = dense(6, 48, 48, 1), waves(8)

    def loss_of(step):
        return square_of(net, draw)(step) / (1 if ill else 32)

    def score():
        with torch.no_grad():
            return sum(float(square_of(net, draw)(0)) for _ in range(32)) / 32

    make = optim.SGD(net.parameters(), 0.05, momentum=0.9)
    return fit(folder, net, make, loss_of, 60, accumulate=32, score=score)


@sick(
    "clip-is-your-learning-rate", "update-too-small", "no-progress",
    where="all layers, all steps", cure="clip_grad_value_ at 1: 1e-6 is below every element",
)  # fmt: skip
def elements_clipped_to_a_millionth(folder, ill):
    seeded(9)
    net, draw = dense(12, 64, 64, 4), rings()

    def clip(step):
        nn.utils.clip_grad_value_(net.parameters(), 1e-6 if ill else 1.0)

    make = optim.SGD(net.parameters(), 0.1, momentum=0.9)
    return fit(folder, net, make, entropy_of(net, draw), 250, before_step=clip)


@sick(
    "weights-put-back", "update-too-small", "weights-unchanged", "no-progress",
    where="all layers, all steps", cure="evaluate with the average and train on without it",
)  # fmt: skip
def average_loaded_after_each_step(folder, ill):
    seeded(10)
    net, draw = dense(12, 64, 64, 4), rings()
    kept = [p.detach().clone() for p in net.parameters()]

    @torch.no_grad()
    def average(step):
        for mine, p in zip(kept, net.parameters(), strict=True):
            mine.lerp_(p, 0.001)
            if ill:
                p.copy_(mine)

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), entropy_of(net, draw), 250, after_step=average)


@sick(
    "lr-too-high", "exploding", "nonfinite", "update-too-large",
    where="all layers, from the first steps", cure="line_search_fn='strong_wolfe'",
)  # fmt: skip
def lbfgs_without_a_line_search(folder, ill):
    seeded(11)
    net, draw = dense(6, 32, 32, 1, act=nn.Tanh), waves(128)
    x, y = draw()
    make = optim.LBFGS(
        net.parameters(), 5.0 if ill else 1.0, max_iter=5, line_search_fn=None if ill else "strong_wolfe"
    )
    return fit(folder, net, make, lambda step: F.mse_loss(net(x), y), 60, closure=True)


@sick(
    "lr-too-high", "spike", "exploding", "dead-layer", "update-too-large",
    where="all layers, at each restart (steps 100, 200)", cure="restart to the first rate, not to a hundred times it",
)  # fmt: skip
def restart_to_a_hundredfold_rate(folder, ill):
    seeded(12)
    net, draw = dense(12, 64, 64, 4), rings()
    make = optim.SGD(net.parameters(), 0.05, momentum=0.9)
    plan = optim.lr_scheduler.LambdaLR(make, lambda step: 100.0 if ill and step >= 100 and step % 100 < 20 else 1.0)
    return fit(folder, net, make, entropy_of(net, draw), 280, schedule=plan)


@sick(
    "update-too-large", "lr-too-high",
    where="the hidden matrices, all steps", cure="Muon at 0.02: its steps are orthogonal, whatever the gradient",
)  # fmt: skip
def muon_at_two(folder, ill):
    seeded(13)
    net, draw = dense(12, 64, 64, 4), rings()
    for layer in net[::2]:
        layer.bias.requires_grad_(False)
    weights = [layer.weight for layer in net[::2]]
    make = optim.Muon(weights, 2.0 if ill else 0.02, weight_decay=0.0)
    return fit(folder, net, make, entropy_of(net, draw), 150)


@sick(
    "noise-dominated", "no-progress", "lr-too-high",
    where="all layers, all steps", cure="Adam: Rprop reads the sign of single gradients, which noise flips",
)  # fmt: skip
def rprop_on_tiny_batches(folder, ill):
    seeded(14)
    net, draw = dense(12, 64, 64, 4), rings(4)
    make = optim.Rprop(net.parameters(), 0.05) if ill else optim.Adam(net.parameters(), 3e-3)
    return fit(folder, net, make, entropy_of(net, draw), 400)


@sick(
    "exploding", "spike", "lr-too-high", "nonfinite", "clip-inert", "clip-without-gradient",
    where="rnn.weight_hh_l0, within the first 60 steps", cure="clip between backward and step",
)  # fmt: skip
def clipped_before_backward(folder, ill):
    seeded(15)
    rnn, head = nn.RNN(2, 32, batch_first=True), nn.Linear(32, 1)
    nn.init.orthogonal_(rnn.weight_hh_l0, 1.6)
    net = nn.ModuleDict({"rnn": rnn, "head": head})

    def loss_of(step):
        x = torch.rand(20, 40, 2)
        return F.mse_loss(head(rnn(x)[0][:, -1]), x[:, -3:, :1].sum(1))

    def clip(step):
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)

    hook = {"before_backward" if ill else "before_step": clip}
    return fit(folder, net, optim.SGD(net.parameters(), 0.1), loss_of, 150, **hook)


@sick(
    "spike",
    where="every layer, every 20th step", cure="mend the data, or skip such batches (SkipSpike)",
)  # fmt: skip
def every_twentieth_batch_unscaled(folder, ill):
    seeded(16)
    net, draw = dense(12, 64, 64, 4), rings()

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x * 200 if ill and step % 20 == 19 else x), y)

    def score():
        with torch.no_grad():
            x, y = draw()
            return F.cross_entropy(net(x), y)

    return fit(folder, net, optim.SGD(net.parameters(), 0.05), loss_of, 300, score=score)


@sick(
    "exploding", "weight-growth", "wrong-sign",
    where="all layers; the loss falls without end", cure="minimise the cross-entropy: its sign is turned",
)  # fmt: skip
def loss_with_the_wrong_sign(folder, ill):
    seeded(17)
    net, draw = dense(12, 64, 64, 4), rings()
    loss = entropy_of(net, draw)

    def score():
        with torch.no_grad():
            return loss(0)

    make = optim.Adam(net.parameters(), 3e-3)
    return fit(folder, net, make, lambda step: -loss(step) if ill else loss(step), 250, score=score)


@sick(
    "update-too-small", "no-progress",
    where="all layers, all steps", cure="Adam at 1e-3: plain SGD at 1e-4 gets nowhere in this time",
)  # fmt: skip
def sgd_rate_of_adam(folder, ill):
    seeded(18)
    net, draw = dense(12, 64, 64, 4), rings()
    make = optim.SGD(net.parameters(), 1e-4) if ill else optim.Adam(net.parameters(), 3e-3)
    return fit(folder, net, make, entropy_of(net, draw), 300)


@sick(
    "update-too-small", "imbalance", "rates-apart", "no-progress",
    where="0.weight and 2.weight, all steps", cure="one rate for body and head",
)  # fmt: skip
def body_at_a_millionth_of_the_heads_rate(folder, ill):
    seeded(19)
    net, draw = dense(12, 64, 64, 4), rings()
    groups = [
        {"params": net[:4].parameters(), "lr": 3e-9 if ill else 3e-3},
        {"params": net[4:].parameters(), "lr": 3e-3},
    ]
    return fit(folder, net, optim.Adam(groups), entropy_of(net, draw), 300)
