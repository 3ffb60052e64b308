"""What several unseen trainings share: loops of their own, two networks at play, rewards, experts, a memory."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from trainings import TREATMENT

import gradwatch
from unseen import Outcome, dense, score_of, waves

# -------------------------------------------------------------------------------------------------------------- loops


def tend(folder, net, optimizer, one, steps, score) -> Outcome:
    """A loop of its own under a Watch: `one(step)` does all of a step and hands back what is logged."""
    first = float(score())
    options = TREATMENT[-1].begin(net, optimizer)
    watch = gradwatch.watch(net, optimizer, **{"log": None, "dir": folder, "verbose": False, **options})
    with watch:
        for step in range(steps):
            watch.log(**one(step))
    last = float(score())
    return Outcome(gradwatch.open_history(watch.dir), first, last if math.isfinite(last) else math.inf)


def rounds(rows, *tensors):
    """`draw()`: the next batch of shuffled epochs without an end."""
    loader = DataLoader(TensorDataset(*tensors), rows, shuffle=True, drop_last=True)

    def endless():
        while True:
            yield from loader

    batches = endless()
    return lambda: next(batches)


def clipped(net, most):
    """`before_step(step)`: the norm of all gradients is held."""

    def before_step(step):
        nn.utils.clip_grad_norm_(net.parameters(), most)

    return before_step


def held_out(net, loss):
    """`score()`: a loss on rows that are not trained on, in evaluation mode."""

    def score():
        net.eval()
        with torch.no_grad():
            value = float(loss())
        net.train()
        return value

    return score


def now_and_then(net, every, measure):
    """`validate(step)`: what `measure` says in evaluation mode every so often, as a dict; else an empty one."""

    def validate(step):
        if step % every:
            return {}
        net.eval()
        with torch.no_grad():
            found = {name: float(value) for name, value in measure().items()}
        net.train()
        return found

    return validate


def judged(net, x, y):
    """`measure()`: the validation loss and accuracy of a classifier."""

    def measure():
        logits = net(x)
        return {"val_loss": F.cross_entropy(logits, y), "val_accuracy": (logits.argmax(1) == y).float().mean()}

    return measure


# ------------------------------------------------------------------------------------------------ two networks at play


def circle(batch=64):
    angle = 6.2832 * torch.rand(batch)
    return torch.stack([angle.cos(), angle.sin()], 1) * 2 + 0.05 * torch.randn(batch, 2)


def in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, steps, score, rounds=1, after_judge=None,
            names=("D", "G")):  # fmt: skip
    """The judge learns `rounds` times, then the maker once, each under a Watch of its own; losses draw a batch."""
    first = score()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(make, of_make)}
    w_judge = gradwatch.watch(judge, of_judge, name=names[0], **options)
    w_make = gradwatch.watch(make, of_make, name=names[1], run=w_judge, **options)
    with w_judge, w_make:
        for _ in range(steps):
            for _ in range(rounds):
                of_judge.zero_grad()
                loss = judge_loss()
                loss.backward()
                of_judge.step()
                if after_judge:
                    after_judge()
                w_judge.log(loss=loss)
            of_make.zero_grad()
            loss = make_loss()
            loss.backward()
            of_make.step()
            w_make.log(loss=loss)
    return Outcome(gradwatch.open_history(w_judge.dir.parent), first, score())


def play(folder, make, judge, of_make, of_judge, judge_loss, make_loss, steps, rounds=1, after_judge=None):
    """Two networks in turn; the score is how far the radii of what is made are from 2."""

    def score():
        with torch.no_grad():
            return float((make(torch.randn(512, 4)).norm(dim=1) - 2).abs().mean())

    def judged():
        return judge_loss(circle(), make(torch.randn(64, 4)).detach())

    def made():
        return make_loss(make(torch.randn(64, 4)))

    return in_turn(folder, make, judge, of_make, of_judge, judged, made, steps, score, rounds, after_judge)


# ------------------------------------------------------------------------------------------------------- single models


def bandit(net, best):
    """Minus the return that a policy expects on fixed states."""
    states = torch.randn(256, best.shape[0])

    def score():
        with torch.no_grad():
            return -float((net(states).softmax(1) * (states @ best)).sum(1).mean()) + 10

    return score


def mixture(balance, width=24):
    """Four experts, the best one chosen, and the `loss_of(step)` of both with a share `balance` for equal loads."""
    router, experts = nn.Linear(6, 4), nn.ModuleList(dense(6, width, 1) for _ in range(4))
    net, draw = nn.ModuleDict({"router": router, "experts": experts}), waves(128)

    def loss_of(step):
        x, y = draw()
        share = router(x).softmax(1)
        best = share.argmax(1)
        out = torch.stack([e(x)[:, 0] for e in experts], 1)
        found = (out * share * F.one_hot(best, 4)).sum(1, keepdim=True)
        load = F.one_hot(best, 4).float().mean(0) @ share.mean(0) * 4
        return F.mse_loss(found, y) + balance * load

    return net, loss_of


def diffusion(weight_of):
    """A denoiser of the circle, its `loss_of(step)` with a weight for the share of the signal that is kept, its score.

    The score is the loss without weights (DDPM).
    """
    net = dense(3, 64, 64, 2, act=nn.SiLU)
    keep = torch.cumprod(1 - torch.linspace(1e-6, 0.1, 50), 0)

    def error(weight):
        def loss_of(step):
            x, t = circle(), torch.randint(50, (64,))
            noise = torch.randn_like(x)
            noisy = keep[t].sqrt()[:, None] * x + (1 - keep[t]).sqrt()[:, None] * noise
            gap = (net(torch.cat([noisy, t[:, None] / 50], 1)) - noise).square().mean(1)
            return (weight(keep[t]) * gap).mean()

        return loss_of

    return net, error(weight_of), score_of(error(torch.ones_like))


def recall(memory, kinds=4):
    """A recurrent net, and its `loss_of(step)`: name the first of `length` tokens once all are read."""
    net = nn.ModuleDict({"memory": memory, "head": nn.Linear(memory.hidden_size, kinds)})

    def loss_of(step, length=12):
        x = torch.randint(kinds, (32, length))
        return F.cross_entropy(net["head"](memory(F.one_hot(x, kinds).float())[0][:, -1]), x[:, 0])

    return net, loss_of


def views(temperature):
    """Two nets for two views of a point: the pair, its `loss_of(step)`, its score at a temperature of 0.1 (InfoNCE)."""
    net = nn.ModuleDict({"left": dense(12, 48, 8), "right": dense(12, 48, 8)})
    lifts = {"left": torch.randn(3, 12), "right": torch.randn(3, 12)}

    def at(temperature):
        def loss_of(step):
            point = torch.randn(48, 3)
            a, b = (F.normalize(net[side]((point @ lifts[side]).tanh()), dim=1) for side in lifts)
            return F.cross_entropy(a @ b.T / temperature, torch.arange(48))

        return loss_of

    return net, at(temperature), score_of(at(0.1))
