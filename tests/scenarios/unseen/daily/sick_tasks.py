"""Daily sick trainings, last part: those that were drawn last. See `sick`."""

from __future__ import annotations

import torch
from nets import Recurrent, batches, digits, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, entropy_of, fit, rings, score_of, seeded, sick, square_of, waves
from unseen.daily.sick import ByLines, Track


# The rate of a millionth that stood in the config, in a classifier with a GRU.
@sick(
    "update-too-small", "no-progress", "weights-unchanged",
    where="all layers, all steps", cure="the rate that was meant, 3e-3",
)  # fmt: skip
def gru_at_a_millionth(folder, ill):
    seeded(1233)
    net, batch = ByLines(), batches(32)

    def loss_of(step):
        x, y = batch(step)
        return F.cross_entropy(net(x), y)

    return fit(folder, net, optim.Adam(net.parameters(), 1e-6 if ill else 3e-3), loss_of, 250)


# Rows in the order of what is to be foretold, not shuffled, in a regression.
@sick(
    "data-not-shuffled", "no-progress",
    where="all layers, all steps: a batch has one value only, and the next pass forgets the last",
    cure="shuffle=True",
)  # fmt: skip
def rows_in_the_order_of_their_targets(folder, ill):
    seeded(1235)
    net, (x, y) = dense(6, 64, 64, 1), waves(2048)()
    order = y[:, 0].argsort() if ill else torch.randperm(len(x))

    def loss_of(step):
        at = order[(32 * step + torch.arange(32)) % len(x)]
        return F.mse_loss(net(x[at]), y[at])

    make = optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, make, loss_of, 640, score=score_of(lambda step: F.mse_loss(net(x), y)))


# Values in thousands as they were measured, in a forecast with an LSTM.
@sick(
    "inputs-not-normalised", "targets-not-normalised", "saturated", "update-too-small", "no-progress",
    where="the gates and the head, all steps", cure="standardise the series",
)  # fmt: skip
def load_in_megawatts_foretold(folder, ill):
    """The score is the mean squared error as a share of the variance."""
    seeded(1236)
    net = nn.ModuleDict({"memory": nn.LSTM(1, 32, batch_first=True), "head": nn.Linear(32, 1)})
    middle, spread = (3000.0, 500.0) if ill else (0.0, 1.0)

    def error(step):
        at = 6.2832 * torch.rand(32, 1) + 0.4 * torch.arange(25)
        y = middle + spread * (at.sin() + 0.5 * (2.3 * at).sin())
        return F.mse_loss(net["head"](net["memory"](y[:, :-1, None])[0])[..., 0], y[:, 1:])

    score = score_of(lambda step: error(step) / (0.625 * spread**2))
    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), error, 400, score=score)


# StepLR(3) meant for epochs and stepped at each batch, while a net that is there is tuned.
@sick(
    "update-too-small", "schedule-ran-out", "schedule-too-short", "no-progress", "weights-unchanged",
    where="all layers, from the tenth step on: the rate is next to nothing", cure="plan.step() once an epoch",
)  # fmt: skip
def tuning_that_is_over_after_ten_batches(folder, ill):
    seeded(1237)
    net, (x, y) = dense(64, 96, 96, 10), digits()
    make = optim.Adam(net.parameters(), 2e-3)

    def loss_of(step, turned=True):
        at = torch.randint(len(x), (32,))
        image = x[at].rot90(1, (1, 2)) if turned else x[at]
        return F.cross_entropy(net(image.flatten(1)), y[at])

    for step in range(150):
        make.zero_grad()
        loss_of(step, False).backward()
        make.step()
    net[4] = nn.Linear(96, 10)
    make = optim.AdamW(net.parameters(), 1e-3)
    plan = optim.lr_scheduler.StepLR(make, 3, 0.1)

    def after(step):
        if ill or step % 60 == 59:
            plan.step()

    return fit(folder, net, make, loss_of, 240, after_step=after)


# zero_grad() forgotten, in a mixture of experts.
@sick(
    "gradients-accumulate",
    where="all layers, all steps: the gradient of all steps so far", cure="optimizer.zero_grad()",
)  # fmt: skip
def experts_that_nobody_zeroes(folder, ill):
    seeded(1238)
    router, experts = nn.Linear(6, 4), nn.ModuleList(dense(6, 24, 1) for _ in range(4))
    net, draw = nn.ModuleDict({"router": router, "experts": experts}), waves(128)

    def loss_of(step):
        x, y = draw()
        gates = router(x).softmax(1)
        return F.mse_loss((torch.cat([e(x) for e in experts], 1) * gates).sum(1, keepdim=True), y)

    make = optim.Adam(net.parameters(), 3e-3)
    return fit(folder, net, make, loss_of, 400, zero_grad=not ill, score=score_of(loss_of))


# A momentum of 0.99 at the rate of one of 0.9, in a DQN.
@sick(
    "momentum-too-high", "lr-too-high", "update-too-large", "exploding", "nonfinite",
    where="all layers, all steps: ten times as far as was meant", cure="momentum=0.9",
)  # fmt: skip
def values_by_a_momentum_of_99(folder, ill):
    seeded(1239)
    net, late, track, acts = dense(2, 64, 64, 3), dense(2, 64, 64, 3), Track(), torch.tensor([-1.0, 0.0, 1.0])

    def loss_of(step):
        if step % 20 == 0:
            late.load_state_dict(net.state_dict())
        state, act = track.begin(64), torch.randint(3, (64, 1))
        after, reward = track.move(state, acts[act[:, 0]])
        with torch.no_grad():
            wanted = reward + 0.9 * late(after).max(1).values
        return F.mse_loss(net(state).gather(1, act).squeeze(1), wanted)

    make = optim.SGD(net.parameters(), 0.03, momentum=0.99 if ill else 0.9)
    return fit(folder, net, make, loss_of, 500, score=track.score(lambda state: acts[net(state).argmax(1)]))


# The loss without its minus, in a contrastive training.
@sick(
    "wrong-sign", "negative-loss",
    where="all layers, all steps: the loss falls without end, below zero", cure="the minus",
)  # fmt: skip
def pairs_without_the_minus(folder, ill):
    seeded(1241)
    net = nn.ModuleDict({"left": dense(24, 64, 16), "right": dense(24, 64, 16)})
    lifts, sign = torch.randn(2, 4, 24), 1 if ill else -1

    def likely():
        point = torch.randn(64, 4)
        a = F.normalize(net["left"]((point @ lifts[0]).sin()), dim=1)
        b = F.normalize(net["right"]((point @ lifts[1]).cos()), dim=1)
        return (10 * a @ b.T).log_softmax(1).diag().mean()

    score = score_of(lambda step: -likely())
    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), lambda step: sign * likely(), 400, score=score)


# Two rows in a thousand in cents and not in euros, in a table.
@sick(
    "spike", "targets-not-normalised", "noise-dominated", "outliers-in-the-data", "stale-second-moment",
    where="all layers, each step with such a row in its batch", cure="mend the rows, or a Huber loss",
)  # fmt: skip
def table_with_some_rows_in_cents(folder, ill):
    seeded(1242)
    net, draw = dense(6, 64, 64, 1), waves(64)

    def loss_of(step):
        x, y = draw()
        if ill:
            y = torch.where(torch.rand(len(y), 1) < 0.002, 100 * y, y)
        return F.mse_loss(net(x), y)

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 500, score=score_of(square_of(net, draw)))


class Dropped(Recurrent):
    """A language model with a dropout on either side of its memory."""

    def __init__(self, share, seed):
        super().__init__(nn.LSTM, 64, seed=seed)
        self.drop = nn.Dropout(share)

    def forward(self, x):
        return self.head(self.drop(self.rnn(self.drop(self.embed(x)))[0]))


# A dropout of 0.9 where 0.9 was what is to be kept, in a language model with an LSTM.
@sick(
    "dropout-too-strong", "noise-dominated", "no-progress",
    where="the inputs and outputs of the memory, all steps: a tenth of them is left", cure="nn.Dropout(0.1)",
)  # fmt: skip
def letters_of_which_nine_in_ten_are_dropped(folder, ill):
    net = Dropped(0.9 if ill else 0.1, seed=1243)
    of, seen = predict(net, pieces(12)), score_of(predict(net, pieces(12, seed=4)))

    def score():
        net.eval()
        value = seen()
        net.train()
        return value

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), of, 300, score=score)


# Batch norm at two images a step, in a CNN.
@sick(
    "norm-over-too-few", "norm-statistics-noisy", "norm-statistics", "noise-dominated",
    where="the batch norms, all steps: a mean and a deviation of two images", cure="GroupNorm",
)  # fmt: skip
def convolutions_normed_over_two_images(folder, ill):
    """The score is that in eval mode."""
    seeded(1244)

    def three(size, out):
        norm = nn.BatchNorm2d(out) if ill else nn.GroupNorm(4, out)
        return [nn.Conv2d(size, out, 3, stride=2, padding=1), norm, nn.ReLU()]

    net = nn.Sequential(nn.Unflatten(1, (1, 8)), *three(1, 16), *three(16, 32), *three(32, 32), nn.Flatten())
    net.append(nn.Linear(32, 10))
    two, many = batches(2), batches(256, seed=3)

    def loss_of(step):
        x, y = two(step)
        return F.cross_entropy(net(x), y)

    def score():
        net.eval()
        with torch.no_grad():
            x, y = many(0)
            value = float(F.cross_entropy(net(x), y))
        net.train()
        return value

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 800, score=score)


# The logarithm of a count that is zero in some rows, in a regression.
@sick(
    "nonfinite",
    where="the first layer and then all, from the first step with such a row", cure="log1p, or no row without a count",
)  # fmt: skip
def logarithm_of_a_count_of_none(folder, ill):
    seeded(1247)
    net, way = dense(6, 64, 64, 1), torch.randn(6, 3)

    def loss_of(step):
        count = torch.poisson(torch.full((32, 6), 9.0))
        x = (count.log() if ill else count.log1p()) - 2.2
        y = ((count.log1p() - 2.3) @ way).mul(2).sin().sum(1, keepdim=True)
        return F.mse_loss(net(x), y)

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 400, score=score_of(loss_of))


# Sigmoids between the layers of a deep net, for a table.
@sick(
    "vanishing", "saturated", "no-progress",
    where="the first layers, all steps: each sigmoid leaves a quarter of the gradient at most", cure="ReLU",
)  # fmt: skip
def table_by_five_layers_of_sigmoids(folder, ill):
    seeded(1246)
    net, draw = dense(12, *[48] * 5, 4, act=nn.Sigmoid if ill else nn.ReLU), rings()
    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), entropy_of(net, draw), 400)
