"""Typical healthy trainings, fourth part: optimizers of one's own, odd lengths (the group "typical").

They only count: whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import torch
from nets import digits
from torch import nn, optim
from torch.nn import functional as F
from unseen import Outcome, dense, entropy_of, fit, healthy, rings, score_of, seeded, square_of, waves
from unseen.typical.healthy_data import entropy_in_eval, images, rise_and_cosine, some, watched

import gradwatch


class Codes(nn.Module):
    """The nearest of 32 codes, by an average of what is near it; the gradient goes straight through."""

    def __init__(self, many=32, wide=8):
        super().__init__()
        self.register_buffer("book", 0.5 * torch.randn(many, wide))
        self.register_buffer("count", torch.ones(many))
        self.register_buffer("total", self.book.clone())

    def forward(self, z):
        at = torch.cdist(z, self.book).argmin(1)
        if self.training and torch.is_grad_enabled():
            with torch.no_grad():
                one = F.one_hot(at, len(self.book)).float()
                self.count.lerp_(one.sum(0), 0.05)
                self.total.lerp_(one.T @ z, 0.05)
                self.book.copy_(self.total / (self.count + 1e-3)[:, None])
                unused = self.count < 0.2
                if unused.any():
                    self.book[unused] = z[torch.randint(len(z), (int(unused.sum()),))]
                    self.total[unused], self.count[unused] = self.book[unused], 1.0
        near = self.book[at]
        return z + (near - z).detach(), F.mse_loss(z, near)


# VQ-VAE: codes by a running average, those that nobody takes begin anew, a commitment of a quarter.
@healthy(0.35)
def digits_in_four_of_thirty_two_codes(folder):
    seeded(1541)
    x = digits()[0].flatten(1) * 2 - 1
    net, draw = nn.ModuleDict({"enc": dense(64, 96, 32), "codes": Codes(), "dec": dense(32, 96, 64)}), some(x, x, 64)

    def loss_of(step):
        pixels, _ = draw()
        z, commit = net["codes"](net["enc"](pixels).view(-1, 8))
        error = F.mse_loss(net["dec"](z.view(-1, 32)), pixels)
        return error + 0.25 * commit, {"recon": error.detach()}

    score = score_of(lambda step: loss_of(step)[1]["recon"])
    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 400, score=score)


# Two of four experts for each row, with noise on the router and a share for equal loads (Shazeer et al. 2017).
@healthy(0.4)
def two_of_four_experts_under_noise(folder):
    seeded(1542)
    router, noise = nn.Linear(3, 4, bias=False), nn.Linear(3, 4, bias=False)
    nn.init.zeros_(router.weight)
    nn.init.zeros_(noise.weight)
    experts = nn.ModuleList(dense(3, 32, 1) for _ in range(4))
    net, draw = nn.ModuleDict({"router": router, "noise": noise, "experts": experts}), waves(128, 3)

    def loss_of(step):
        x, y = draw()
        logits = router(x) + torch.randn(128, 4) * F.softplus(noise(x))
        best, at = logits.topk(2, 1)
        share = torch.zeros(128, 4).scatter(1, at, best.softmax(1))
        out = (torch.cat([expert(x) for expert in experts], 1) * share).sum(1, keepdim=True)
        load = share.sum(0)
        return F.mse_loss(out, y) + 0.05 * load.var() / load.mean() ** 2

    make, steps = optim.AdamW(net.parameters(), 5e-3), 400
    plan = optim.lr_scheduler.CosineAnnealingLR(make, steps)
    return fit(folder, net, make, loss_of, steps, schedule=plan, score=score_of(loss_of))


# A multinomial regression of all rows by L-BFGS with a line search: twelve steps, each with many closures.
@healthy(0.8)
def wines_by_lbfgs(folder):
    seeded(1543)
    from sklearn.datasets import load_wine

    x, y = (torch.tensor(part) for part in load_wine(return_X_y=True))
    x = ((x - x.mean(0)) / x.std(0)).float()
    net = nn.Linear(13, 3)
    make = optim.LBFGS(net.parameters(), max_iter=5, line_search_fn="strong_wolfe")

    def loss_of(step):
        return F.cross_entropy(net(x), y) + 1e-3 * net.weight.square().sum()

    return fit(folder, net, make, loss_of, 12, closure=True, score=score_of(loss_of, 1))


# Sharpness-aware (Foret et al. 2021): up to the worst point nearby, and back; the loss of the first pass is logged.
@healthy(0.5)
def back_from_the_worst_point_nearby(folder):
    seeded(1544)
    learnt, kept = images()
    net, draw = nn.Sequential(nn.Flatten(), dense(64, 64, 64, 10)), some(*learnt, 64)
    make, weights, steps = optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=5e-4), [*net.parameters()], 150
    plan, score = optim.lr_scheduler.CosineAnnealingLR(make, steps), entropy_in_eval(net, *kept)
    first = score()
    with watched(folder, net, make) as watch:
        for _ in range(steps):
            x, y = draw()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            with torch.no_grad():
                norm = torch.stack([w.grad.norm() for w in weights]).norm()
                kicks = [0.05 * w.grad / (norm + 1e-12) for w in weights]
                for w, kick in zip(weights, kicks, strict=True):
                    w.add_(kick)
            make.zero_grad()
            F.cross_entropy(net(x), y).backward()
            with torch.no_grad():
                for w, kick in zip(weights, kicks, strict=True):
                    w.sub_(kick)
            make.step()
            make.zero_grad()
            plan.step()
            watch.log(loss=loss)
    return Outcome(gradwatch.open_history(watch.dir), first, score())


class Signum(optim.Optimizer):
    """Momentum, and of it the sign alone (Bernstein et al. 2018)."""

    def __init__(self, params, lr, momentum=0.9, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                m.lerp_(p.grad, 1 - group["momentum"])
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(m.sign(), alpha=group["lr"])


# Steps of the sign alone, at a rate of 0.003 that goes down in a line to nothing.
@healthy(0.6)
def signs_of_the_momentum(folder):
    seeded(1545)
    net, steps = dense(12, 64, 64, 4), 250
    loss_of, make = entropy_of(net, rings()), Signum(net.parameters(), 3e-3, 0.9, 0.01)
    plan = optim.lr_scheduler.LinearLR(make, 1.0, 0.0, steps)
    return fit(folder, net, make, loss_of, steps, schedule=plan, score=score_of(loss_of))


class Sophia(optim.Optimizer):
    """The momentum over an estimate of the curvature, each step cut off at the rate (Liu et al. 2023)."""

    def __init__(self, params, lr, rho=0.05, weight_decay=0.1):
        super().__init__(params, {"lr": lr, "rho": rho, "weight_decay": weight_decay})

    @torch.no_grad()
    def curve(self):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p].setdefault("h", torch.zeros_like(p)).lerp_(p.grad.square() * group["rows"], 0.01)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p)).lerp_(p.grad, 0.04)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_((m / (group["rho"] * self.state[p]["h"] + 1e-12)).clamp(-1, 1), alpha=group["lr"])


# Sophia-G: every tenth step a backward of labels that the net itself draws, for the curvature.
@healthy(0.5)
def curvature_from_labels_of_its_own(folder):
    seeded(1546)
    net, draw, steps = dense(12, 64, 64, 4), rings(64), 300
    loss_of, make = entropy_of(net, draw), Sophia(net.parameters(), 3e-3)
    make.param_groups[0]["rows"] = 64
    plan, score = optim.lr_scheduler.LambdaLR(make, rise_and_cosine(steps, 20, 0.05)), score_of(loss_of)
    first = score()
    with watched(folder, net, make) as watch:
        for step in range(steps):
            if step % 10 == 0:
                said = net(draw()[0])
                F.cross_entropy(said, torch.distributions.Categorical(logits=said.detach()).sample()).backward()
                make.curve()
                make.zero_grad()
            loss = loss_of(step)
            loss.backward()
            make.step()
            make.zero_grad()
            plan.step()
            watch.log(loss=loss)
    return Outcome(gradwatch.open_history(watch.dir), first, score())


# One click at a time, hashed, by Adagrad, sparse: each step touches six rows, and says next to nothing alone.
@healthy(0.1)
def clicks_one_at_a_time(folder):
    seeded(1547)
    table, truth = nn.EmbeddingBag(2000, 1, mode="sum", sparse=True), 1.2 * torch.randn(6, 20)
    nn.init.zeros_(table.weight)
    fields = torch.arange(6) * 331

    def loss_of(step, rows=1):
        at = (torch.rand(rows, 6) ** 2 * 20).long()
        y = (torch.rand(rows) < (truth.gather(1, at.T).sum(0) - 1).sigmoid()).float()
        return F.binary_cross_entropy_with_logits(table(at + fields)[:, 0], y)

    make = optim.Adagrad(table.parameters(), 0.2)
    return fit(folder, table, make, loss_of, 1500, score=score_of(lambda step: loss_of(step, 1000)))


# Three thousand steps of a small net under a rate that goes up and down twenty times, less each time.
@healthy(0.6)
def three_thousand_steps_up_and_down(folder):
    seeded(1548)
    net = dense(4, 48, 48, 1, act=nn.SiLU)
    make, loss_of = optim.SGD(net.parameters(), 0.01, momentum=0.9), square_of(net, waves(32, 4))
    plan = optim.lr_scheduler.CyclicLR(make, 0.002, 0.05, 75, mode="exp_range", gamma=0.999, cycle_momentum=True)
    return fit(folder, net, make, loss_of, 3000, schedule=plan, score=score_of(loss_of), clip="ClipByGlobalNorm(5.0)")
