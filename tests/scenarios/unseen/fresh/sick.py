"""Fresh sick trainings, first part: what the loop, the schedule and the optimizer do wrong.

They only count (the group `fresh`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import torch
from nets import batches, classify, cnn, mlp
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, entropy_of, fit, rings, score_of, seeded, sick, square_of, waves


@sick(
    "lr-too-high", "exploding", "update-too-large", "dead-layer", "nonfinite",
    where="all layers, from the first steps", cure="a rate of 0.02: 0.5 is for nets with a batch norm in each block",
)  # fmt: skip
def recipe_of_normed_nets_on_a_plain_one(folder, ill):
    net = cnn(seed=101)
    make = optim.SGD(net.parameters(), 0.5 if ill else 0.02, momentum=0.9, weight_decay=1e-4)
    return fit(folder, net, make, classify(net, batches(32)), 200)


@sick(
    "update-too-small", "weights-unchanged", "no-progress",
    where="all layers, all steps", cure="LambdaLR wants a factor: a rate that it is given is squared",
)  # fmt: skip
def factor_that_is_the_rate_itself(folder, ill):
    seeded(102)
    net, draw = dense(12, 48, 48, 4), rings()
    make = optim.AdamW(net.parameters(), 3e-3)
    plan = optim.lr_scheduler.LambdaLR(make, lambda step: (3e-3 if ill else 1.0) * 0.997**step)
    return fit(folder, net, make, entropy_of(net, draw), 400, schedule=plan)


@sick(
    "gradients-accumulate",
    where="decode, from the first steps", cure="zero the gradients of the whole net, not of the encoder alone",
)  # fmt: skip
def half_of_the_net_never_zeroed(folder, ill):
    seeded(103)
    net = nn.ModuleDict({"encode": dense(64, 32, 12), "decode": dense(12, 32, 64)})
    draw = batches(32)

    def loss_of(step):
        (net["encode"] if ill else net).zero_grad()
        x = draw(step)[0].flatten(1)
        return F.mse_loss(net["decode"](net["encode"](x)), x, reduction="none").sum(1).mean()

    make = optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, make, loss_of, 400, zero_grad=False)


@sick(
    "update-too-small", "no-progress",
    where="all layers, all steps", cure="divide by the number of micro-batches once: the trainer did it already",
)  # fmt: skip
def divided_twice_by_the_micro_batches(folder, ill):
    net, parts = mlp(48, seed=104), 16
    loss = classify(net, batches(8))
    make = optim.SGD(net.parameters(), 0.1, momentum=0.5)
    score = score_of(classify(net, batches(256, seed=9)), 2)
    share = parts**2 if ill else parts
    return fit(folder, net, make, lambda step: loss(step) / share, 120, accumulate=parts, score=score)


class Past:
    """A loss is scaled, and the optimizer steps as if it were not: no `scaler.step`, hence no `scaler.update`."""

    def __init__(self, scaler):
        self.scale = scaler.scale

    def step(self, optimizer):
        optimizer.step()

    def update(self):
        pass


@sick(
    "scaled-gradients", "exploding", "lr-too-high", "nonfinite", "update-too-large",
    where="all layers, from the first step", cure="scaler.step(optimizer): it takes the scale out of the gradients",
)  # fmt: skip
def stepped_past_the_scaler(folder, ill):
    net = mlp(48, seed=105)
    scaler = torch.amp.GradScaler("cpu")
    make = optim.SGD(net.parameters(), 0.02, momentum=0.9)
    return fit(folder, net, make, classify(net, batches(64)), 200, scaler=Past(scaler) if ill else scaler)


@sick(
    "lr-too-high", "exploding", "update-too-large", "nonfinite",
    where="all layers, from step 150 or so", cure="gamma below 1: a range test was left where the schedule belongs",
)  # fmt: skip
def rate_that_rises_by_a_fiftieth_each_step(folder, ill):
    seeded(106)
    net, draw = dense(6, 48, 48, 1), waves()
    make = optim.Adam(net.parameters(), 3e-3)
    plan = optim.lr_scheduler.ExponentialLR(make, 1.02 if ill else 0.995)
    return fit(folder, net, make, square_of(net, draw), 400, schedule=plan)


@sick(
    "lr-too-high", "update-too-large", "dead-layer", "exploding", "spike",
    where="the pretrained layers, from the first steps", cure="1e-3 for what is trained already, 1e-2 for its new head",
)  # fmt: skip
def one_rate_for_a_new_head_and_its_body(folder, ill):
    net, draw = mlp(64, depth=3, seed=107), batches(64)
    loss, before = classify(net, draw), optim.Adam(net.parameters(), 2e-3)
    for step in range(120):
        before.zero_grad()
        loss(step).backward()
        before.step()
    net[-1] = nn.Linear(64, 5)
    x, y = batches(100, seed=4)(0)
    unseen = batches(256, seed=9)

    def loss_of(step):
        at = torch.randint(100, (20,))
        return F.cross_entropy(net(x[at]), y[at] // 2)

    def tested(step):
        a, b = unseen(step)
        return F.cross_entropy(net(a), b // 2)

    head = list(net[-1].parameters())
    groups = [{"params": list(net[:-1].parameters()), "lr": 0.1 if ill else 1e-3}, {"params": head}]
    make = optim.AdamW(groups, 0.1 if ill else 1e-2)
    return fit(folder, net, make, loss_of, 150, score=score_of(tested, 2))


@sick(
    "exploding", "weight-growth", "wrong-sign", "lr-too-high", "loss-unbounded",
    where="all layers, all steps; the loss falls below zero without an end",
    cure="cross_entropy, or nll_loss of a log_softmax",
)  # fmt: skip
def likelihood_of_raw_scores(folder, ill):
    net, draw = mlp(48, seed=108), batches(64)

    def loss_of(step):
        x, y = draw(step)
        out = net(x)
        return F.nll_loss(out if ill else out.log_softmax(1), y)

    score = score_of(classify(net, batches(256, seed=9)), 2)
    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 300, score=score)


@sick(
    "momentum-too-high", "lr-too-high", "update-too-large", "weight-growth",
    where="all layers, all steps", cure="betas=(0.9, 0.999): a mean over a thousand steps, scaled by one over ten",
)  # fmt: skip
def betas_the_wrong_way_round(folder, ill):
    seeded(109)
    net, draw = dense(6, 48, 48, 1), waves()
    make = optim.Adam(net.parameters(), 1e-3, betas=(0.999, 0.9) if ill else (0.9, 0.999))
    return fit(folder, net, make, square_of(net, draw), 400)


@sick(
    "weight-decay-too-strong", "weights-shrink", "vanishing", "no-progress",
    where="all weights, all steps", cure="AdamW: in Adam the decay is part of the gradient, and is scaled up with it",
)  # fmt: skip
def decay_of_adamw_handed_to_adam(folder, ill):
    net = mlp(64, depth=3, seed=110)
    make = (optim.Adam if ill else optim.AdamW)(net.parameters(), 2e-3, weight_decay=0.1)
    return fit(folder, net, make, classify(net, batches(64)), 400)


@sick(
    "spike", "update-too-small", "no-progress",
    where="all layers, from step 5", cure="leave false readings out; AMSGrad never forgets the largest gradient",
)  # fmt: skip
def maximum_that_remembers_false_readings(folder, ill):
    seeded(111)
    net, draw = dense(6, 48, 48, 1), waves()

    def loss_of(step):
        x, y = draw()
        if step == 5 and ill:
            y[:16] = 99_999.0  # what the sensor says while it is off
        return F.mse_loss(net(x), y)

    make = optim.Adam(net.parameters(), 5e-3, amsgrad=True)
    return fit(folder, net, make, loss_of, 400, score=score_of(square_of(net, draw)))


@sick(
    "exploding", "spike", "lr-too-high", "nonfinite", "update-too-large", "clip-inert", "clip-without-gradient",
    where="all layers, from the first steps", cure="clip between backward and step: behind it nothing is left to limit",
)  # fmt: skip
def clipped_behind_the_step(folder, ill):
    """Counts with a log link: the first gradients are of hundreds."""
    seeded(112)
    net, way = dense(6, 48, 48, 1), 0.5 * torch.randn(6, 1)

    def loss_of(step):
        x = torch.randn(128, 6)
        return F.poisson_nll_loss(net(x), torch.poisson((x @ way + 4).exp()), full=True)

    def clipped(step):
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    place = {"after_step" if ill else "before_step": clipped}
    return fit(folder, net, optim.SGD(net.parameters(), 0.01, momentum=0.9), loss_of, 300, **place)


@sick(
    "clip-is-your-learning-rate", "update-too-small", "no-progress",
    where="all layers, all steps", cure="a share of 0.05: no unit moves by more than 1e-5 times the rate of itself",
)  # fmt: skip
def units_clipped_to_a_hundred_thousandth(folder, ill):
    net = cnn(seed=113)
    make = optim.SGD(net.parameters(), 0.1, momentum=0.9)
    policy = "AGC(1e-05)" if ill else "AGC(0.05)"
    return fit(folder, net, make, classify(net, batches(32)), 200, clip=policy)
