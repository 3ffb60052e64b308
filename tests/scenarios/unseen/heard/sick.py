"""Heard sick trainings, first part: what the optimizer, its rate and its schedule do wrong.

Mistakes that people told of in public because their training was unstable or did not learn, taken as a search met them;
a comment names the thread that each was drawn from. They only count (the group `heard`). Whoever writes or changes a
rule does not read this file.
"""

from __future__ import annotations

import math

import torch
from nets import Recurrent, Transformer, batches, classify, cnn, mlp, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import diffusion


class WarmUp:
    """Multiplies the rates that a schedule gives by a share that rises to 1; dampens them as soon as it is made."""

    def __init__(self, optimizer, steps):
        self.optimizer, self.steps, self.step_count, self.plan = optimizer, steps, 0, None
        self.rates = [group["lr"] for group in optimizer.param_groups]
        self.dampen()

    def dampen(self):
        self.step_count += 1
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * min(1.0, self.step_count / self.steps)

    def step(self):
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate
        self.plan.step()
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.dampen()


# "A BUG in BaseWarmup?" (the schedule is made after the warm-up, which has already divided the rate),
# github.com/Tony-Y/pytorch_warmup/issues/26
@sick(
    "update-too-small", "no-progress", "warmup-too-long",
    where="all layers, all steps: the rate never gets above a hundredth of what was asked for",
    cure="make the schedule before the warm-up",
)  # fmt: skip
def rate_left_at_the_foot_of_its_warm_up(folder, ill):
    net, steps = mlp(seed=1101), 300
    make = optim.SGD(net.parameters(), 0.05, momentum=0.9)

    def plan():
        return optim.lr_scheduler.LambdaLR(make, lambda s: 0.5 * (1 + math.cos(math.pi * min(1, s / steps))))

    before = None if ill else plan()
    warm_up = WarmUp(make, 100)
    warm_up.plan = plan() if ill else before
    return fit(folder, net, make, classify(net, batches(32)), steps, schedule=warm_up)


# "LR Defaults to 1e-6" (that of optimizer.json, whatever the command line says; a night of training),
# github.com/victorchall/EveryDream2trainer/issues/102
@sick(
    "update-too-small", "no-progress", "weights-unchanged",
    where="all layers, all steps", cure="the rate that was asked for, 3e-3",
)  # fmt: skip
def default_rate_of_a_millionth(folder, ill):
    seeded(1102)
    net, loss_of, score = diffusion(torch.ones_like)
    return fit(folder, net, optim.AdamW(net.parameters(), 1e-6 if ill else 3e-3), loss_of, 500, score=score)


class ByConfidence(optim.Optimizer):
    """CAME (Luo et al. 2023): Adafactor, divided by how far its steps are from their mean, which begins at `begin`."""

    def __init__(self, params, lr, begin):
        super().__init__(params, {"lr": lr})
        self.begin = begin

    @staticmethod
    def root(state, name, square, beta, begin):
        """1 / sqrt of what the moving means of rows and columns make of a matrix."""
        row = state.setdefault(f"{name}_row", begin + 0 * square.mean(1)).lerp_(square.mean(1), 1 - beta)
        column = state.setdefault(f"{name}_column", begin + 0 * square.mean(0)).lerp_(square.mean(0), 1 - beta)
        return (row / row.mean()).rsqrt()[:, None] * column.rsqrt()

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state, square = self.state[p], p.grad.square() + 1e-30
                if p.ndim == 2:
                    update = p.grad * self.root(state, "square", square, 0.999, 0.0)
                else:
                    update = p.grad * state.setdefault("square", 0 * square).lerp_(square, 0.001).rsqrt()
                update /= update.square().mean().sqrt().clamp(min=1)
                m = state.setdefault("m", torch.zeros_like(p)).lerp_(update, 0.1)
                if p.ndim == 2:
                    residual = (update - m).square() + 1e-16
                    m = m * self.root(state, "residual", residual, 0.9999, self.begin)
                p.add_(m, alpha=-group["lr"])


# "fix abnormal spike : Init res state to 1.0" (begun at 0, with a mean over ten thousand steps),
# github.com/yangluo7/CAME/pull/6
@sick(
    "update-too-large", "lr-too-high", "spike", "exploding",
    where="all matrices, from the first steps: a root of nearly nothing stands below their steps",
    cure="the means of the residual begin at 1",
)  # fmt: skip
def residual_that_begins_at_nothing(folder, ill):
    net, piece = Transformer(32, 2, seed=1103), pieces(12)
    make = ByConfidence(net.parameters(), 1e-2, 0.0 if ill else 1.0)
    return fit(folder, net, make, predict(net, piece), 250)


# "fix: save and restore AdamW optimizer state for proper training resume" (loss spikes after a restart),
# github.com/EvolvingLMMs-Lab/OneVision-Encoder/pull/65
@sick(
    "spike", "lr-too-high", "update-too-large", "optimizer-state-lost",
    where="all layers, at each restart, every 40 steps: steps of full length in every direction",
    cure="load the state of the optimizer, too",
)  # fmt: skip
def restarted_without_its_moments(folder, ill):
    """A text, on machines that are taken away again and again: each time the weights alone come back."""
    net = Transformer(64, 3, seed=1104)
    make = optim.AdamW(net.parameters(), 3e-2, (0.9, 0.999))
    plan = optim.lr_scheduler.LambdaLR(make, lambda s: min(1, (s + 1) / 40))

    def before(step):
        if ill and step % 40 == 38:
            make.state.clear()

    score = score_of(predict(net, pieces(12, seed=4)))
    return fit(folder, net, make, predict(net, pieces(12)), 200, before_step=before, schedule=plan, score=score)


# "Strange behavior with Adam optimizer when training for too long",
# qastack.com.br/datascience/25024 (stackexchange)
@sick(
    "stale-second-moment", "spike", "lr-too-high",
    where="the only layer, from some hundreds of steps on: the squares of the gradients are forgotten",
    cure="a rate that falls, or amsgrad=True",
)  # fmt: skip
def line_fitted_for_thousands_of_steps(folder, ill):
    """64 rows of a thousand columns; the score is how many digits are right."""
    seeded(1105)
    net, x, y = nn.Linear(1000, 1), torch.randn(64, 1000), torch.randn(64, 1)
    make = optim.Adam(net.parameters(), 1e-3)
    plan = None if ill else optim.lr_scheduler.CosineAnnealingLR(make, 3000)

    def loss_of(step):
        return F.mse_loss(net(x), y, reduction="sum")

    def score():
        with torch.no_grad():
            return float((loss_of(0) + 1e-14).log10())

    return fit(folder, net, make, loss_of, 3000, schedule=plan, score=score)


class Orthogonal(optim.Optimizer):
    """Muon (Jordan 2024), whose steps, all of them together, are clipped to a norm of `clip`."""

    def __init__(self, params, lr, clip):
        super().__init__(params, {"lr": lr})
        self.clip = clip

    @torch.no_grad()
    def step(self, closure=None):
        updates = []
        for p in self.param_groups[0]["params"]:
            m = self.state[p].setdefault("m", torch.zeros_like(p)).mul_(0.95).add_(p.grad)
            x = p.grad.add(m, alpha=0.95)
            x /= x.norm() + 1e-7
            for _ in range(5):
                square = x @ x.T
                x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
            updates.append(x)
        norm = math.sqrt(sum(float(x.square().sum()) for x in updates))
        share = min(1.0, self.clip / norm)
        for p, x in zip(self.param_groups[0]["params"], updates, strict=True):
            p.add_(x, alpha=-share * self.param_groups[0]["lr"])


# "[BUG] The different lr for Muon doesn't work?" (gradient_clipping of 1.0 clips what was made orthogonal),
# github.com/deepspeedai/DeepSpeed/issues/7713
@sick(
    "clip-over-muon", "clip-is-your-learning-rate", "update-too-small", "no-progress",
    where="all matrices, all steps: they go a twentieth of what the rate says", cure="gradient_clipping: 0",
)  # fmt: skip
def orthogonal_steps_clipped_at_one(folder, ill):
    seeded(1106)
    net = nn.Sequential(nn.Flatten(), *dense(64, 256, 256, 256, 10, act=nn.GELU))
    for part in net:
        if isinstance(part, nn.Linear):
            part.bias = None
    make = Orthogonal(net.parameters(), 2e-2, 1.0 if ill else math.inf)
    return fit(folder, net, make, classify(net, batches(32)), 120)


# "Momentum again" (the error falls at first and then flattens out: 1 - momentum times the gradient),
# github.com/mdenil/dropout/issues/7
@sick(
    "update-too-small", "no-progress",
    where="all layers, all steps: a hundredth of the rate that it was copied with", cure="dampening=0",
)  # fmt: skip
def gradient_dampened_by_its_momentum(folder, ill):
    net = cnn(seed=1107)
    make = optim.SGD(net.parameters(), 2e-3, momentum=0.99, dampening=0.99 if ill else 0.0)
    return fit(folder, net, make, classify(net, batches(32)), 300)


# "Perplexity increasing exponentially with GRU" (1.0 is the rate of the recipe with an LSTM),
# github.com/tensorflow/nmt/issues/164
@sick(
    "lr-too-high", "update-too-large", "exploding",
    where="all layers, from the first steps", cure="a tenth of it or less, or Adam",
)  # fmt: skip
def gru_at_the_rate_of_an_lstm(folder, ill):
    net = Recurrent(nn.GRU, 64, seed=1108)

    def before(step):
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)

    make = optim.SGD(net.parameters(), 50.0 if ill else 2.0)
    return fit(folder, net, make, predict(net, pieces(16)), 250, before_step=before)
