"""Reported healthy trainings, first part: optimizers, schedules, precisions. An expert has nothing to say of any.

They only count (the group `reported`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import copy

import torch
from nets import Recurrent, Transformer, batches, classify, cnn, digits, mlp, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, entropy_of, fit, healthy, rings, score_of, seeded, square_of, waves


class ScheduleFree(optim.Optimizer):
    """SGD whose average needs no schedule (Defazio et al. 2024); the weights are where gradients are taken."""

    def __init__(self, params, lr, beta=0.9):
        super().__init__(params, {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self, closure=None):
        for part in self.param_groups:
            for p in part["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=0, free=p.clone(), mean=p.clone())
                state["step"] += 1
                state["free"].sub_(p.grad, alpha=part["lr"])
                state["mean"].lerp_(state["free"], 1 / state["step"])
                p.copy_(state["free"].lerp(state["mean"], part["beta"]))


@healthy(0.3)
def average_in_the_place_of_a_schedule(folder):
    net = cnn(norm=True, seed=401)
    return fit(folder, net, ScheduleFree(net.parameters(), 0.3), classify(net, batches(32)), 250)


class Signs(optim.Optimizer):
    """Lion (Chen et al. 2023): the sign of a blend of the mean gradient and this one, and decay."""

    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for part in self.param_groups:
            near, far = part["betas"]
            for p in part["params"]:
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                p.mul_(1 - part["lr"] * part["weight_decay"])
                p.sub_(mean.lerp(p.grad, 1 - near).sign(), alpha=part["lr"])
                mean.lerp_(p.grad, 1 - far)


@healthy(0.3)
def signs_for_letters_in_bfloat16(folder):
    net, piece = Transformer(48, 2, seed=402), pieces(16)

    def loss_of(step):
        with torch.autocast("cpu", torch.bfloat16):
            return predict(net, piece)(step)

    make = Signs(net.parameters(), 5e-4, weight_decay=0.3)
    plan = optim.lr_scheduler.LambdaLR(make, lambda step: min(1, (step + 1) / 20) * (1 - step / 160))
    return fit(folder, net, make, loss_of, 150, schedule=plan)


@healthy(0.3)
def rows_and_columns_of_second_moments(folder):
    """torch's own Adafactor, whose step is relative to the weights, on a GRU."""
    net = Recurrent(nn.GRU, 48, seed=403)
    make = optim.Adafactor(net.parameters(), lr=0.02)
    return fit(folder, net, make, predict(net, pieces(16)), 200)


def orthogonal(g, times=5):
    """The nearest matrix whose singular values are all near 1, by Newton and Schulz."""
    x = g / (g.norm() + 1e-7)
    x = x.T if len(g) > len(g.T) else x
    for _ in range(times):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if len(g) > len(g.T) else x


class Orthogonal(optim.Optimizer):
    """Muon (Jordan 2024) for matrices, and plain momentum for the rest."""

    def __init__(self, params, lr, momentum=0.9):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for part in self.param_groups:
            for p in part["params"]:
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                mean.mul_(part["momentum"]).add_(p.grad)
                step = orthogonal(mean) * (max(p.shape) ** 0.5) * 0.2 if p.ndim == 2 else mean
                p.sub_(step, alpha=part["lr"])


@healthy(0.3)
def images_rebuilt_by_orthogonal_steps(folder):
    seeded(404)
    net, draw = dense(64, 64, 16, 64, 64, act=nn.GELU), batches(64)

    def loss_of(step):
        x = draw(step)[0].flatten(1)
        return F.mse_loss(net(x), x)

    make = Orthogonal(net.parameters(), 0.02)
    plan = optim.lr_scheduler.LinearLR(make, 1.0, 0.02, 200)
    return fit(folder, net, make, loss_of, 200, schedule=plan)


@healthy(0.5)
def twenty_steps_with_a_line_search(folder):
    """A linear classification of all digits, by L-BFGS."""
    seeded(405)
    net, (x, y) = nn.Linear(64, 10), digits()
    make = optim.LBFGS(net.parameters(), max_iter=5, line_search_fn="strong_wolfe")

    def loss_of(step):
        return F.cross_entropy(net(x.flatten(1)), y) + 1e-3 * net.weight.square().sum()

    return fit(folder, net, make, loss_of, 20, closure=True)


@healthy(0.3)
def mean_of_the_last_weights(folder):
    """Stochastic weight averaging (Izmailov et al. 2018) from step 200; the score is that of the mean."""
    net, draw = mlp(48, seed=406), batches(32, noise=0.05)
    mean = copy.deepcopy(net).requires_grad_(False)
    make = optim.SGD(net.parameters(), 0.05, momentum=0.9)
    plan = optim.swa_utils.SWALR(make, 0.02, anneal_epochs=50)

    def after(step):
        with torch.no_grad():
            for p, q in zip(net.parameters(), mean.parameters(), strict=True):
                q.lerp_(p, 1 / max(1, step - 198))

    score = score_of(classify(mean, batches(256, seed=7)), 2)
    return fit(folder, net, make, classify(net, draw), 400, after_step=after, schedule=plan, score=score)


@healthy(0.3)
def scaler_beside_bfloat16(folder):
    """Nobody needs a scaler for bfloat16; it does no harm."""
    net, draw = cnn(seed=407), batches(32)

    def loss_of(step):
        x, y = draw(step)
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(net(x).float(), y)

    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
    return fit(folder, net, optim.SGD(net.parameters(), 0.1, momentum=0.9), loss_of, 200, scaler=scaler)


@healthy(0.3)
def adamax_for_many_words(folder):
    """Bags of words: which of five subjects; a word is seen now and then."""
    seeded(408)
    net = nn.ModuleDict({"words": nn.EmbeddingBag(600, 16, mode="mean"), "subject": nn.Linear(16, 5)})
    usual = torch.randn(5, 600).mul(1.5).softmax(1)

    def loss_of(step):
        y = torch.randint(5, (64,))
        return F.cross_entropy(net["subject"](net["words"](torch.multinomial(usual[y], 20))), y)

    return fit(folder, net, optim.Adamax(net.parameters(), 0.02), loss_of, 300)


@healthy(0.3)
def three_thousand_steps_of_a_polynomial_rate(folder):
    seeded(409)
    net = dense(6, 24, 1, act=nn.Tanh)
    make = optim.SGD(net.parameters(), 0.1, momentum=0.5)
    plan = optim.lr_scheduler.PolynomialLR(make, 3000, 2)
    return fit(folder, net, make, square_of(net, waves(16)), 3000, schedule=plan)


@healthy(0.3)
def clip_of_ours_over_parts_of_a_batch(folder):
    """Four micro-batches a step, averaged, and a global norm of at most 1 that gradwatch keeps."""
    net = Recurrent(nn.RNN, 48, seed=410)
    loss = predict(net, pieces(8))
    make = optim.AdamW(net.parameters(), 3e-3)
    clip = "ClipByGlobalNorm(1.0)"
    return fit(folder, net, make, lambda step: loss(step) / 4, 150, accumulate=4, clip=clip)


@healthy(0.3)
def nadam_with_a_clip_of_each_unit(folder):
    """Adaptive clips (Brock et al. 2021) in a net without norms."""
    seeded(411)
    net = dense(12, 64, 64, 64, 4, act=nn.SiLU)
    return fit(folder, net, optim.NAdam(net.parameters(), 2e-3), entropy_of(net, rings(64)), 300, clip="AGC(0.05)")


@healthy(0.3)
def unlike_rates_for_a_table_and_the_rest(folder):
    """Groups: no decay for the norms and the table, a tenth of the rate for the table."""
    net = Transformer(32, 2, seed=412)
    table = [net.embed.weight, net.place]
    flat = [p for p in net.parameters() if p.ndim == 1]
    rest = [p for p in net.parameters() if p.ndim > 1 and not any(p is q for q in table)]
    groups = [
        {"params": table, "lr": 1e-3, "weight_decay": 0.0},
        {"params": flat, "weight_decay": 0.0},
        {"params": rest, "weight_decay": 0.1},
    ]
    return fit(folder, net, optim.AdamW(groups, 4e-3, betas=(0.9, 0.95)), predict(net, pieces(16)), 150)
