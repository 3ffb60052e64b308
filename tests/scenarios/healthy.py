"""Healthy trainings of many kinds: whatever a rule says about them is a false alarm.

`HEALTHY` numbers them. Thresholds may be tuned on the even ones only; the odd ones are held out and reported.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from nets import SEED, Recurrent, Transformer, batches, classify, cnn, mlp, pieces, predict
from torch import nn, optim
from torch.nn import functional as F

import gradwatch
from gradwatch import MaxNorm

LambdaLR = optim.lr_scheduler.LambdaLR


@dataclass(frozen=True)
class Healthy:
    """One training: its number (even: tuning, odd: held out), its name, and what runs it into a folder."""

    number: int
    name: str
    train: Callable[[Path], gradwatch.History]


def fit(
    folder, model, optimizer, loss_of, steps, *, schedule=None, own_clip=None, accumulate=1, scaler=None, **options
):
    """A plain loop under a Watch with the defaults that users have; returns the History."""
    watch = gradwatch.watch(model, optimizer, log=None, dir=folder, verbose=False, **options)
    with watch:
        for step in range(steps):
            for part in range(accumulate):
                loss = loss_of(step * accumulate + part) / accumulate
                (scaler.scale(loss) if scaler else loss).backward()
            if own_clip is not None:
                if scaler:
                    scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), own_clip)
            if scaler:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            optimizer.zero_grad()
            if schedule:
                schedule.step()
            watch.log(loss=loss * accumulate)
    return gradwatch.open_history(watch.dir)


# --------------------------------------------------------------------------------------------------------- schedules


def warm(optimizer, steps, total=None):
    """Linear warm-up, then a cosine to zero where `total` is given."""

    def factor(step):
        rise = min(1.0, (step + 1) / steps)
        return rise * (0.5 * (1 + np.cos(np.pi * min(1, step / total))) if total else 1.0)

    return LambdaLR(optimizer, factor)


# -------------------------------------------------------------------------------------------------------- trainings


def plain(model, make, steps=300, data=None, schedule=None, **options):
    """A classification of the digits: `model()` and `make(parameters)` are built when it runs."""

    def train(folder):
        net = model()
        optimizer = make(net.parameters())
        plan = schedule(optimizer) if schedule else None
        return fit(folder, net, optimizer, classify(net, data or batches()), steps, schedule=plan, **options)

    return train


def text(model, make, steps=300, schedule=None, **options):
    def train(folder):
        net = model()
        optimizer = make(net.parameters())
        plan = schedule(optimizer) if schedule else None
        return fit(folder, net, optimizer, predict(net, pieces()), steps, schedule=plan, **options)

    return train


def use(kind, lr, **settings):
    return lambda params: kind(params, lr=lr, **settings)


def half_precision(dtype):
    def train(folder):
        net = mlp()
        optimizer = optim.Adam(net.parameters(), 1e-3)
        batch = batches()
        scaler = (
            torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=100) if dtype is torch.float16 else None
        )

        def loss(step):
            x, y = batch(step)
            with torch.autocast("cpu", dtype):
                return F.cross_entropy(net(x), y)

        return fit(folder, net, optimizer, loss, 300, scaler=scaler, own_clip=1.0)

    return train


def pure_bfloat16(folder):
    net = mlp().bfloat16()
    batch = batches()

    def loss(step):
        x, y = batch(step)
        return F.cross_entropy(net(x.bfloat16()).float(), y)

    return fit(folder, net, optim.SGD(net.parameters(), 0.1, momentum=0.9), loss, 300)


def fine_tuning(lr, freeze, groups=False):
    def train(folder):
        net = mlp(seed=3)
        first = optim.Adam(net.parameters(), 3e-3)
        for step in range(150):
            first.zero_grad()
            classify(net, batches(seed=5))(step).backward()
            first.step()
        first.zero_grad()
        net[-1] = nn.Linear(64, 10)
        for p in net[:freeze].parameters():
            p.requires_grad_(False)
        body, head = list(net[:-1].parameters()), list(net[-1].parameters())
        held = [{"params": body, "lr": lr / 10}, {"params": head}] if groups else body + head
        return fit(folder, net, optim.AdamW(held, lr), classify(net, batches(seed=6)), 300)

    return train


def gan(folder, lr=2e-3, watches=2):
    torch.manual_seed(SEED[0])
    make = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    judge = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    of_make, of_judge = (optim.Adam(m.parameters(), lr, betas=(0.5, 0.999)) for m in (make, judge))
    options = {"log": None, "dir": folder, "verbose": False}
    w_judge = gradwatch.watch(judge, of_judge, name="D", **options)
    w_make = gradwatch.watch(make, of_make, name="G", run=w_judge, **options)
    ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
    bce = F.binary_cross_entropy_with_logits
    with w_judge, w_make:
        for _ in range(400):
            angle = 6.283 * torch.rand(64, 1)
            real = torch.cat([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(64, 2)
            fake = make(torch.randn(64, 8))
            loss = bce(judge(real), ones) + bce(judge(fake.detach()), zeros)
            of_judge.zero_grad()
            loss.backward()
            of_judge.step()
            w_judge.log(loss=loss)
            loss = bce(judge(make(torch.randn(64, 8))), ones)
            of_make.zero_grad()
            loss.backward()
            of_make.step()
            w_make.log(loss=loss)
    return gradwatch.open_history(w_judge.dir.parent)


def reinforce(make, clip=None, steps=400):
    """Policy gradient on a bandit with contexts: a handful of episodes a step, rewards with heavy tails."""

    def train(folder):
        torch.manual_seed(SEED[0])
        net = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 4))
        best = torch.randn(6, 4)
        rng = torch.distributions.StudentT(3.0)

        def loss(step):
            state = torch.randn(16, 6)
            policy = torch.distributions.Categorical(logits=net(state))
            action = policy.sample()
            reward = (state @ best).gather(1, action[:, None])[:, 0] + rng.sample((16,))
            return -(policy.log_prob(action) * (reward - reward.mean())).mean()

        return fit(folder, net, make(net.parameters()), loss, steps, clip=clip)

    return train


def regression(make, steps=400, full=False, plateau=False):
    """A sine; `full`: the same whole batch in each step, `plateau`: the loss has long fallen to the noise."""

    def train(folder):
        torch.manual_seed(1 + SEED[0])
        net = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1))
        fixed = torch.linspace(-3, 3, 128)[:, None]

        def loss(step):
            x = fixed if full else 6 * torch.rand(64, 1) - 3
            y = (0.3 if plateau else 1) * torch.sin(2 * x) + (0.3 * torch.randn(x.shape) if plateau else 0)
            return F.mse_loss(net(x), y)

        return fit(folder, net, make(net.parameters()), loss, steps)

    return train


def autoencoder(folder):
    torch.manual_seed(SEED[0])
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, 64))
    batch = batches()

    def loss(step):
        x, _ = batch(step)
        return F.mse_loss(net(x), x.flatten(1))

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss, 400)


def two_optimizers(folder):
    """One for the body, one for the head, stepping together."""
    net = cnn()
    body, head = optim.Adam(net[:-1].parameters(), 1e-3), optim.SGD(net[-1].parameters(), 0.05)
    loss_of = classify(net, batches())
    watch = gradwatch.watch(net, [body, head], log=None, dir=folder, verbose=False)
    with watch:
        for step in range(300):
            loss = loss_of(step)
            body.zero_grad()
            head.zero_grad()
            loss.backward()
            body.step()
            head.step()
            watch.log(loss=loss)
    return gradwatch.open_history(watch.dir)


SGD, ADAM, ADAMW = optim.SGD, optim.Adam, optim.AdamW
RECIPES: dict[str, Callable[[Path], gradwatch.History]] = {
    "mlp-sgd-0.3": plain(mlp, use(SGD, 0.3)),
    "mlp-sgd-0.03": plain(mlp, use(SGD, 0.03)),
    "mlp-momentum-0.03": plain(mlp, use(SGD, 0.03, momentum=0.9)),
    "mlp-momentum-0.1": plain(mlp, use(SGD, 0.1, momentum=0.9)),
    "mlp-adam-1e-2": plain(mlp, use(ADAM, 1e-2)),
    "mlp-adam-3e-4": plain(mlp, use(ADAM, 3e-4)),
    "mlp-adamw-1e-3": plain(mlp, use(ADAMW, 1e-3, weight_decay=0.1)),
    "mlp-adamw-3e-3": plain(mlp, use(ADAMW, 3e-3)),
    "mlp-rmsprop-1e-3": plain(mlp, use(optim.RMSprop, 1e-3)),
    "mlp-rmsprop-3e-3-centered": plain(mlp, use(optim.RMSprop, 3e-3, centered=True)),
    "mlp-adagrad-1e-2": plain(mlp, use(optim.Adagrad, 1e-2)),
    "mlp-adagrad-5e-2": plain(mlp, use(optim.Adagrad, 5e-2)),
    "mlp-nadam": plain(mlp, use(optim.NAdam, 2e-3)),
    "mlp-radam": plain(mlp, use(optim.RAdam, 3e-3)),
    "mlp-adamax": plain(mlp, use(optim.Adamax, 2e-3)),
    "mlp-adadelta": plain(mlp, use(optim.Adadelta, 1.0)),
    "mlp-tanh-sgd-0.1": plain(lambda: mlp(act=nn.Tanh), use(SGD, 0.1)),
    "mlp-deep-gelu-adam": plain(lambda: mlp(depth=6, act=nn.GELU), use(ADAM, 1e-3)),
    "mlp-batchnorm-sgd-0.1": plain(lambda: mlp(norm=True), use(SGD, 0.1)),
    "mlp-batchnorm-momentum-0.1": plain(lambda: mlp(norm=True, depth=4), use(SGD, 0.1, momentum=0.9)),
    "mlp-dropout-adam": plain(lambda: mlp(dropout=0.5, width=128), use(ADAM, 1e-3)),
    "mlp-dropout-maxnorm": plain(lambda: mlp(dropout=0.5, width=128), use(SGD, 0.1, momentum=0.9), renorm=MaxNorm(3.0)),
    "mlp-noisy-labels-adam": plain(mlp, use(ADAM, 1e-3), data=batches(noise=0.4)),
    "mlp-noisy-labels-small-batch-sgd": plain(mlp, use(SGD, 0.05), data=batches(8, noise=0.3)),
    "mlp-step-schedule": plain(mlp, use(SGD, 0.3), schedule=lambda o: optim.lr_scheduler.StepLR(o, 100, 0.1)),
    "mlp-cosine-to-zero": plain(mlp, use(ADAM, 3e-3), schedule=lambda o: warm(o, 10, 300)),
    "mlp-one-cycle": plain(
        mlp, use(SGD, 0.1, momentum=0.9), schedule=lambda o: optim.lr_scheduler.OneCycleLR(o, 0.3, total_steps=301)
    ),
    "mlp-warm-restarts": plain(
        mlp, use(SGD, 0.2), schedule=lambda o: optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 100)
    ),
    "mlp-accumulation": plain(mlp, use(ADAM, 1e-3), steps=150, accumulate=4, data=batches(16)),
    "mlp-accumulation-sgd": plain(mlp, use(SGD, 0.1), steps=150, accumulate=4, data=batches(16)),
    "cnn-adam-1e-3": plain(cnn, use(ADAM, 1e-3)),
    "cnn-momentum-0.05": plain(cnn, use(SGD, 0.05, momentum=0.9)),
    "cnn-batchnorm-sgd-0.1": plain(lambda: cnn(norm=True), use(SGD, 0.1, momentum=0.9, weight_decay=5e-4)),
    "cnn-batchnorm-adamw-3e-3": plain(lambda: cnn(norm=True), use(ADAMW, 3e-3)),
    "cnn-clipped": plain(cnn, use(SGD, 0.1, momentum=0.9), clip="ClipByGlobalNorm(1.0)"),
    "cnn-agc": plain(cnn, use(SGD, 0.1, momentum=0.9), clip="AGC(0.1)"),
    "rnn-clipped-sgd": text(Recurrent, use(SGD, 1.0), clip="ClipByGlobalNorm(0.5)"),
    "rnn-clipped-sgd-low": text(Recurrent, use(SGD, 0.3), clip="ClipByGlobalNorm(1.0)"),
    "lstm-adam": text(lambda: Recurrent(nn.LSTM), use(ADAM, 1e-2), clip="ClipByGlobalNorm(1.0)"),
    "gru-adam-own-clip": text(lambda: Recurrent(nn.GRU), use(ADAM, 3e-3), own_clip=1.0),
    "transformer-warm-up": text(
        Transformer, use(ADAMW, 3e-3), 300, lambda o: warm(o, 30), clip="ClipByGlobalNorm(1.0)"
    ),
    "transformer-warm-up-cosine": text(Transformer, use(ADAMW, 1e-3), 300, lambda o: warm(o, 30, 300), own_clip=1.0),
    "transformer-tied": text(lambda: Transformer(tied=True), use(ADAM, 1e-3), 300, lambda o: warm(o, 30)),
    "transformer-post-norm": text(lambda: Transformer(pre=False), use(ADAM, 1e-3), 300, lambda o: warm(o, 50)),
    "autocast-bf16": half_precision(torch.bfloat16),
    "autocast-fp16-scaler": half_precision(torch.float16),
    "pure-bf16": pure_bfloat16,
    "autoencoder": autoencoder,
    "fine-tuning-frozen": fine_tuning(1e-3, 2),
    "fine-tuning-frozen-body": fine_tuning(3e-3, 4),
    "fine-tuning-groups": fine_tuning(1e-3, 0, groups=True),
    "fine-tuning-low": fine_tuning(1e-4, 2),
    "gan": gan,
    "gan-slow": functools.partial(gan, lr=5e-4),
    "reinforce-adam": reinforce(use(ADAM, 3e-3)),
    "reinforce-sgd": reinforce(use(SGD, 0.05)),
    "reinforce-clipped": reinforce(use(ADAM, 1e-2), "ClipByGlobalNorm(0.5)"),
    "reinforce-zclip": reinforce(use(SGD, 0.1), "chain(SkipNonfinite(), ZClip())"),
    "regression-full-batch-gd": regression(use(SGD, 0.05), full=True),
    "regression-sgd": regression(use(SGD, 0.05, momentum=0.9)),
    "plateau-adam": regression(use(ADAM, 3e-3), 1200, plateau=True),
    "plateau-sgd": regression(use(SGD, 0.02), 1200, plateau=True),
    "regression-adam": regression(use(ADAM, 1e-2), full=True),
    "two-optimizers": two_optimizers,
}
HEALTHY = tuple(Healthy(number, name, train) for number, (name, train) in enumerate(RECIPES.items()))


def tuning() -> Iterator[Healthy]:
    """Those that thresholds may be chosen by."""
    return (h for h in HEALTHY if h.number % 2 == 0)


def held_out() -> Iterator[Healthy]:
    """Those that only count."""
    return (h for h in HEALTHY if h.number % 2)
