"""Daily sick trainings, third part: those that were drawn after those of `sick_models`. See `sick`."""

from __future__ import annotations

import torch
from nets import Recurrent, batches, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, entropy_of, fit, rings, score_of, seeded, sick
from unseen.daily.sick import Variational
from unseen.tasks import diffusion


# One place in a hundred is to be found and counts as much as another, in a detector.
@sick(
    "class-imbalance",
    where="the head, all steps: it says no everywhere", cure="pos_weight, or a focal loss",
)  # fmt: skip
def anchors_of_which_one_in_a_hundred_is_right(folder, ill):
    """The score counts what is there as much as what is not there, all in all."""
    seeded(1221)
    net = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 3, padding=1))
    weight = torch.tensor(99.0)

    def draw():
        wanted = (torch.rand(16, 1, 16, 16) < 0.01).float()
        return wanted + 0.6 * torch.randn(16, 1, 16, 16), wanted

    def error(weight):
        def loss_of(step):
            x, y = draw()
            return F.binary_cross_entropy_with_logits(net(x), y, pos_weight=weight)

        return loss_of

    loss_of = error(None if ill else weight)
    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 300, score=score_of(error(weight)))


class Adapted(nn.Module):
    """A layer, and a way of low rank beside it (LoRA)."""

    def __init__(self, layer, rank=4):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.layer(x) + 2 * self.up(self.down(x))


# The optimizer made before the adapters, in a LoRA.
@sick(
    "not-in-optimizer",
    "no-gradient", "weights-unchanged",
    where="down and up of each block, all steps: only the head is in the optimizer", cure="make it behind the adapters",
)  # fmt: skip
def adapters_that_came_after_their_optimizer(folder, ill):
    """A net that knows the digits learns them turned by a quarter."""
    seeded(1222)
    net, batch = dense(64, 96, 96, 96, 10), batches(32)

    def loss_of(step, turned=True):
        x, y = batch(step)
        return F.cross_entropy(net((x.rot90(1, (1, 2)) if turned else x).flatten(1)), y)

    make = optim.Adam(net.parameters(), 2e-3)
    for step in range(150):
        make.zero_grad()
        loss_of(step, False).backward()
        make.step()
    early = optim.AdamW(net[6].parameters(), 3e-3)
    for at in (0, 2, 4):
        net[at] = Adapted(net[at])
    late = optim.AdamW([p for p in net.parameters() if p.requires_grad], 3e-3)
    return fit(folder, net, early if ill else late, loss_of, 250)


# A loss summed over the batch at the rate of a mean, in a diffusion model.
@sick(
    "lr-too-high", "update-too-large", "exploding", "nonfinite", "loss-not-averaged",
    where="all layers, from the first steps: gradients a hundred times as long", cure="reduction='mean'",
)  # fmt: skip
def noise_summed_over_all_points(folder, ill):
    seeded(1224)
    net, loss_of, score = diffusion(torch.ones_like)

    def of_all(step):
        return 128 * loss_of(step) if ill else loss_of(step)

    return fit(folder, net, optim.SGD(net.parameters(), 0.05, momentum=0.9), of_all, 500, score=score)


# Plain SGD at the rate that Adam had, in an autoencoder.
@sick(
    "update-too-small", "no-progress",
    where="all layers, all steps", cure="a rate of 1, or Adam",
)  # fmt: skip
def autoencoder_by_sgd_at_a_thousandth(folder, ill):
    seeded(1225)
    net, batch = dense(64, 64, 12, 64, 64), batches(64)
    make = (optim.SGD if ill else optim.Adam)(net.parameters(), 1e-3)

    def loss_of(step):
        x = batch(step)[0].flatten(1)
        return F.mse_loss(net(x), x)

    return fit(folder, net, make, loss_of, 500)


# All of a net frozen where only its teacher was meant, in a distillation.
@sick(
    "no-gradient", "weights-unchanged",
    where="the body of the student, all steps: it does not require a gradient", cure="freeze net['teacher'] alone",
)  # fmt: skip
def student_frozen_along_with_its_teacher(folder, ill):
    """The head of the student is made afterwards, and is all that learns."""
    seeded(1226)
    net, batch = nn.ModuleDict({"teacher": dense(64, 96, 96, 10), "student": dense(64, 24, 24)}), batches(64)
    make = optim.Adam(net["teacher"].parameters(), 2e-3)
    for step in range(250):
        x, y = batch(step)
        make.zero_grad()
        F.cross_entropy(net["teacher"](x.flatten(1)), y).backward()
        make.step()
    (net if ill else net["teacher"]).requires_grad_(False)
    net["head"] = dense(24, 24, 10)

    def loss_of(step):
        x = batch(1000 + step)[0].flatten(1)
        said, wanted = net["head"](net["student"](x).relu()), net["teacher"](x)
        return F.kl_div(said.log_softmax(1), wanted.softmax(1), reduction="batchmean")

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 250)


# clip_grad_value_ with a tiny value, in a variational autoencoder.
@sick(
    "clip-is-your-learning-rate", "update-too-small", "no-progress",
    where="all layers, all steps: nearly every element is cut", cure="clip_grad_norm_(1.0)",
)  # fmt: skip
def coder_whose_elements_are_cut_at_a_ten_thousandth(folder, ill):
    seeded(1227)
    net, batch = Variational(), batches(64)

    def loss_of(step):
        x = batch(step)[0].flatten(1)
        drawn, divergence = net(x)
        return (drawn - x).square().sum(1).mean() + 0.2 * divergence

    def before(step):
        if ill:
            nn.utils.clip_grad_value_(net.parameters(), 1e-4)
        else:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    make = optim.SGD(net.parameters(), 2e-2, momentum=0.9)
    return fit(folder, net, make, loss_of, 500, before_step=before)


# A warm-up made for a hundred thousand steps, in a recommender that takes a few hundred.
@sick(
    "update-too-small", "warmup-too-long", "no-progress",
    where="all layers, all steps: the rate ends at a two-hundredth", cure="a warm-up of a twentieth of the run",
)  # fmt: skip
def tastes_in_the_foot_of_a_long_warm_up(folder, ill):
    seeded(1229)
    likes = (torch.randn(200, 4) @ torch.randn(4, 80)).sign()
    net = nn.ModuleDict({"users": nn.Embedding(200, 12), "goods": nn.Embedding(80, 12)})
    make = optim.Adam(net.parameters(), 1e-2)
    plan = optim.lr_scheduler.LambdaLR(make, lambda s: min(1, s / (100_000 if ill else 25)))

    def loss_of(step):
        user, item = torch.randint(200, (128,)), torch.randint(80, (128,))
        match = (net["users"](user) * net["goods"](item)).sum(1)
        return F.binary_cross_entropy_with_logits(match, (likes[user, item] > 0).float())

    return fit(folder, net, make, loss_of, 500, schedule=plan)


class Small(nn.Module):
    """A U-Net of two floors, `[B, 1, 16, 16]` to `[B, 1, 16, 16]`."""

    def __init__(self, norm=nn.Identity, width=8):
        super().__init__()

        def two(size, out):
            return nn.Sequential(nn.Conv2d(size, out, 3, padding=1), norm(out), nn.ReLU())

        self.top, self.low, self.up = two(1, width), two(width, 2 * width), two(3 * width, width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        top = self.top(x)
        low = F.interpolate(self.low(F.max_pool2d(top, 2)), scale_factor=2)
        return self.head(self.up(torch.cat([top, low], 1)))


def blots(rows=16):
    """A disc under noise: `[B, 1, 16, 16]`, and where it is."""
    centre, at = 4 + 8 * torch.rand(rows, 2, 1, 1), torch.arange(16.0)
    far = (at[:, None] - centre[:, :1]).square() + (at - centre[:, 1:]).square()
    inside = (far < (2 + 2 * torch.rand(rows, 1, 1, 1)).square()).float()
    return inside + 0.5 * torch.randn(rows, 1, 16, 16), inside


# A clip at a norm of 1e-3 that another recipe had, under SGD, in a U-Net.
@sick(
    "clip-is-your-learning-rate", "update-too-small", "no-progress",
    where="all layers, all steps: each gradient is cut down", cure="clip_grad_norm_(1.0)",
)  # fmt: skip
def segmenter_clipped_at_a_thousandth(folder, ill):
    seeded(1231)
    net = Small()

    def loss_of(step):
        x, y = blots()
        return F.binary_cross_entropy_with_logits(net(x), y)

    def before(step):
        nn.utils.clip_grad_norm_(net.parameters(), 1e-3 if ill else 1.0)

    make = optim.SGD(net.parameters(), 0.1, momentum=0.9)
    return fit(folder, net, make, loss_of, 200, before_step=before)


# Weights drawn with a deviation of 0.01, in a deep net for a table.
@sick(
    "bad-initialisation", "vanishing", "no-progress",
    where="all layers, from the first step: each makes a tenth of what comes in", cure="kaiming_normal_",
)  # fmt: skip
def table_by_seven_layers_of_a_hundredth(folder, ill):
    seeded(1232)
    net, draw = dense(12, *[64] * 6, 4), rings()
    for part in net:
        if isinstance(part, nn.Linear):
            nn.init.zeros_(part.bias)
            if ill:
                nn.init.normal_(part.weight, std=0.01)
            else:
                nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
    return fit(folder, net, optim.SGD(net.parameters(), 0.02, momentum=0.9), entropy_of(net, draw), 400)


# ReduceLROnPlateau asked at each batch, in a language model with an LSTM.
@sick(
    "update-too-small", "schedule-ran-out", "schedule-too-short", "no-progress", "weights-unchanged",
    where="all layers, after the first hundred steps: the rate has come down to nothing", cure="ask it once an epoch",
)  # fmt: skip
def plateau_that_is_asked_at_each_batch(folder, ill):
    net = Recurrent(nn.LSTM, 64, seed=1230)
    make = optim.Adam(net.parameters(), 3e-3)
    plan, told, of = optim.lr_scheduler.ReduceLROnPlateau(make, patience=2), [], predict(net, pieces(4))

    def loss_of(step):
        loss = of(step)
        told.append(float(loss.detach()))
        return loss

    def after(step):
        if ill:
            plan.step(told[-1])
        elif step % 50 == 49:
            plan.step(sum(told[-50:]) / 50)

    return fit(folder, net, make, loss_of, 300, after_step=after)
