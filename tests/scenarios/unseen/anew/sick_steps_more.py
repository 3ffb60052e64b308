"""Sick trainings of the step: rates, schedules, decay, scalers and clips, drawn by lot with tasks; second part."""

from __future__ import annotations

import torch
from sklearn.datasets import load_diabetes
from torch import nn, optim
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, fit, score_of, seeded, sick
from unseen.anew.sick_steps import loop
from unseen.tasks import circle

import gradwatch


@sick(
    "gradients-accumulate", "exploding",
    where="all layers: the gradients of all steps so far are summed", cure="optimizer.zero_grad() in each step",
)  # fmt: skip
def sugar_foretold_a_year_ahead(folder, ill):
    """Nothing is ever zeroed."""
    seeded(307)
    x, y = (torch.tensor(part, dtype=torch.float32) for part in load_diabetes(return_X_y=True))
    x, y = x / x.std(0), ((y - y.mean()) / y.std())[:, None]
    net = dense(10, 32, 32, 1, norm=nn.BatchNorm1d)

    def loss_of(step):
        rows = torch.randint(len(x), (64,))
        return F.mse_loss(net(x[rows]), y[rows])

    def score():
        net.eval()
        with torch.no_grad():
            error = F.mse_loss(net(x), y)
        net.train()
        return error

    make = optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    return fit(folder, net, make, loss_of, 300, score=score, zero_grad=not ill)


@sick(
    "betas-swapped", "momentum-too-high", "update-too-large", "lr-too-high",
    where="all layers: each step goes on for a thousand more", cure="betas=(0.9, 0.999)",
)  # fmt: skip
def weight_and_breed_of_the_same_animal(folder, ill):
    """Betas in the wrong order; a regression and a classification from one body."""
    seeded(308)
    net = nn.ModuleDict({"body": dense(10, 64, 64), "weight": nn.Linear(64, 1), "breed": nn.Linear(64, 5)})
    of_weight, of_breed = torch.randn(10, 3), torch.randn(10, 5)

    def loss_of(step):
        x = torch.randn(64, 10)
        weight, breed = (x @ of_weight).sin().sum(1, keepdim=True), (x.square() @ of_breed).argmax(1)
        h = net["body"](x).relu()
        errors = F.mse_loss(net["weight"](h), weight), F.cross_entropy(net["breed"](h), breed)
        return sum(errors), {"weight_loss": errors[0], "breed_loss": errors[1]}

    make = optim.Adam(net.parameters(), lr=3e-3, betas=(0.999, 0.9) if ill else (0.9, 0.999))
    return fit(folder, net, make, loss_of, 500, score=score_of(lambda step: loss_of(step)[0]))


class Normed(nn.Module):
    """Residual blocks with the norm behind the sum."""

    def __init__(self, inputs, width, depth, outputs):
        super().__init__()
        self.lift, self.head = nn.Linear(inputs, width), nn.Linear(width, outputs)
        self.blocks = nn.ModuleList(dense(width, 2 * width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))

    def forward(self, x):
        h = self.lift(x)
        for block, norm in zip(self.blocks, self.norms, strict=True):
            h = norm(h + block(h))
        return self.head(h)


@sick(
    "lr-too-high", "update-too-large", "no-warmup",
    where="all layers, the first dozen steps", cure="a warm-up of 150 steps to a rate of 0.003",
)  # fmt: skip
def levers_behind_six_norms(folder, ill):
    """A deep policy with its norms behind the sums begins at once, at a high rate of Adam."""
    seeded(309)
    net, best = Normed(6, 48, 6, 4), torch.randn(6, 4)

    def loss_of(step):
        state = torch.randn(64, 6)
        policy = torch.distributions.Categorical(logits=net(state))
        action = policy.sample()
        reward = (state @ best).gather(1, action[:, None])[:, 0] + 0.5 * torch.randn(64)
        loss = -(policy.log_prob(action) * (reward - reward.mean())).mean()
        return loss, {"episode_return": reward.mean(), "entropy": policy.entropy().mean()}

    shown = torch.randn(256, 6)
    most = (shown @ best).max(1).values.mean()

    def regret():
        with torch.no_grad():
            return most - (net(shown).softmax(1) * (shown @ best)).sum(1).mean()

    make = optim.Adam(net.parameters(), lr=2e-2 if ill else 3e-3)
    plan = optim.lr_scheduler.LambdaLR(make, lambda step: 1.0 if ill else min(1.0, (step + 1) / 150))
    return fit(folder, net, make, loss_of, 400, score=regret, schedule=plan)


@sick(
    "accumulation-wiped", "noise-dominated",
    where="all layers, all steps: of eight parts the last one alone is left",
    cure="zero_grad once in each step, before the first part",
)  # fmt: skip
def chirps_heard_four_at_a_time(folder, ill):
    """Zero_grad stands within the loop over eight micro-batches of four rows."""
    seeded(310)
    net = nn.ModuleDict({"gru": nn.GRU(1, 24, batch_first=True), "head": nn.Linear(24, 3)})

    def chirps(rows):
        kind, time = torch.randint(3, (rows,)), torch.linspace(0, 1, 24)
        bend = torch.tensor([-6.0, 0.0, 6.0])[kind][:, None]
        phase = 6.28 * torch.rand(rows, 1) + 6.28 * (4 * time + bend * (time - 0.5).square() * (time - 0.5).sign())
        return (phase.sin() + 0.3 * torch.randn(rows, 24))[:, :, None], kind

    def error(rows):
        x, kind = chirps(rows)
        return F.cross_entropy(net["head"](net["gru"](x)[0][:, -1]), kind)

    make = optim.SGD(net.parameters(), lr=0.3, momentum=0.9)

    def zero(part):
        if ill:
            make.zero_grad()

    return fit(
        folder, net, make, lambda step: error(4) / 8, 100, accumulate=8, before_backward=zero,
        score=score_of(lambda step: error(64)),
    )  # fmt: skip


@sick(
    "clip-before-unscale", "scaled-gradients", "clip-is-your-learning-rate",
    where="both nets, all steps", cure="scaler.unscale_(optimizer) before clip_grad_norm_",
)  # fmt: skip
def ring_of_points_by_two_that_quarrel(folder, ill):
    """Both nets are clipped at 1 while their gradients are still multiplied by 65536."""
    seeded(311)
    maker, judge = dense(4, 48, 48, 2), dense(2, 48, 48, 1, act=nn.GELU)
    of_maker, of_judge = optim.SGD(maker.parameters(), lr=0.05), optim.SGD(judge.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    entropy = F.binary_cross_entropy_with_logits

    def score():
        with torch.no_grad():
            return float((maker(torch.randn(512, 4)).norm(dim=1) - 2).abs().mean())

    def step_of(net, optimizer, loss):
        scaler.scale(loss).backward()
        if not ill:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    first = score()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(maker, of_maker)}
    w_judge = gradwatch.watch(judge, of_judge, name="judge", **options)
    w_maker = gradwatch.watch(maker, of_maker, name="maker", run=w_judge, **options)
    with w_judge, w_maker:
        for _ in range(600):
            of_judge.zero_grad()
            real, fake = judge(circle()), judge(maker(torch.randn(64, 4)).detach())
            loss = entropy(real, torch.ones_like(real)) + entropy(fake, torch.zeros_like(fake))
            step_of(judge, of_judge, loss)
            w_judge.log(loss=loss)
            of_maker.zero_grad()
            fake = judge(maker(torch.randn(64, 4)))
            loss = entropy(fake, torch.ones_like(fake))
            step_of(maker, of_maker, loss)
            w_maker.log(loss=loss)
    return Outcome(gradwatch.open_history(w_judge.dir.parent), first, score())


class Pooled(nn.Module):
    """A set transformer: elements attend to each other, a learned seed attends to them."""

    def __init__(self, inputs, width=32):
        super().__init__()
        self.lift = nn.Linear(inputs, width)
        self.block = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True)
        self.seed = nn.Parameter(torch.randn(1, 1, width))
        self.pool = nn.MultiheadAttention(width, 4, batch_first=True)

    def forward(self, x):
        h = self.block(self.lift(x))
        return self.pool(self.seed.expand(len(x), -1, -1), h, h, need_weights=False)[0][:, 0]


@sick(
    "update-too-small", "imbalance", "rates-apart", "no-progress",
    where="the set's encoder and its pooling, all steps", cure="a rate of 1e-3 for both optimizers",
)  # fmt: skip
def parcels_of_which_the_heaviest_counts(folder, ill):
    """Two optimizers; the one of the encoder is a thousand times slower than the head's."""
    seeded(312)
    net = nn.ModuleDict({"of_set": Pooled(3), "head": dense(32, 32, 1)})

    def loss_of(step):
        x = torch.randn(64, 8, 3)
        y = x[:, :, 0].max(1).values + (x[:, :, 1] * x[:, :, 2]).max(1).values
        return F.mse_loss(net["head"](net["of_set"](x)), y[:, None] - 2.5)

    both = [
        optim.AdamW(net["of_set"].parameters(), lr=1e-6 if ill else 1e-3),
        optim.AdamW(net["head"].parameters(), lr=1e-3),
    ]

    def one(step):
        for optimizer in both:
            optimizer.zero_grad()
        loss = loss_of(step)
        loss.backward()
        for optimizer in both:
            optimizer.step()
        return {"loss": loss}

    return loop(folder, net, both, one, 500, score_of(loss_of))
