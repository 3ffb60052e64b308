"""What is learned when: turns that grow longer, questions that are worth asking, very many rows at once."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, fit, healthy, score_of, seeded
from unseen.tasks import clipped, tend

import gradwatch

# ------------------------------------------------------------ longer and longer


class Dial(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.turns = nn.Embedding(3, 16)
        self.memory = nn.GRU(16, width, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, 5)

    def forward(self, x):
        return self.out(self.norm(self.memory(self.turns(x))[0]))


@healthy()
def a_safe_opened_by_longer_and_longer_turns(folder):
    seeded(3260)
    net, now = Dial(), {"length": 2, "well": 0.0}
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3, weight_decay=1e-3)

    def error(length, n=96):
        x = torch.randint(3, (n, length))
        place = (x - 1).cumsum(1) % 5
        out = net(x)
        right = (out.argmax(2) == place).float().mean()
        return F.cross_entropy(out.flatten(0, 1), place.flatten()), right

    def one(step):
        length = int(torch.randint(max(2, now["length"] - 2), now["length"] + 1, ()))
        loss, right = error(length)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        now["well"] = 0.9 * now["well"] + 0.1 * float(right)
        if now["well"] > 0.95 and now["length"] < 14:
            now.update(length=now["length"] + 1, well=0.8)
        return {"loss": loss, "accuracy": right, "longest": now["length"]}

    return tend(folder, net, optimizer, one, 600, score_of(lambda step: error(14)[0], 4))


# ------------------------------------------------------------ worth asking about


@healthy()
def mushrooms_worth_asking_about(folder):
    seeded(3261)
    middles, lift = 1.6 * torch.randn(12, 3), torch.randn(3, 10)

    def found(n):
        kind = torch.randint(12, (n,))
        return (middles[kind] + 0.35 * torch.randn(n, 3)) @ lift / 2 + 0.1 * torch.randn(n, 10), kind % 6

    (pool, answers), (x_test, y_test) = found(2000), found(1500)
    net = nn.Sequential(
        nn.Linear(10, 64), nn.SiLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.SiLU(), nn.Dropout(0.1), nn.Linear(64, 6)
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.05)
    asked = torch.zeros(2000, dtype=torch.bool)
    asked[torch.randperm(2000)[:60]] = True

    def score():
        net.eval()
        with torch.no_grad():
            wrong = (net(x_test).argmax(1) != y_test).float().mean()
        net.train()
        return float(wrong)

    first = score()
    options = TREATMENT[-1].begin(net, optimizer)
    with gradwatch.watch(net, optimizer, **{"log": None, "dir": folder, "verbose": False, **options}) as watch:
        for _ in range(10):
            known = asked.nonzero()[:, 0]
            for _ in range(60):
                rows = known[torch.randint(len(known), (32,))]
                loss = F.cross_entropy(net(pool[rows]), answers[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                watch.log(loss=loss, labels=len(known))
            net.eval()
            with torch.no_grad():
                best = net(pool).softmax(1).topk(2, 1)[0]
            net.train()
            doubt = (best[:, 1] - best[:, 0]).masked_fill(asked, -math.inf)
            asked[doubt.topk(30)[1]] = True
    return Outcome(gradwatch.open_history(watch.dir), first, score())


# ------------------------------------------------------------ very many at once


class Lamb(torch.optim.Optimizer):
    """Adam's step, each tensor's as long as its weights are, times a rate."""

    def __init__(self, params, lr, betas=(0.9, 0.99), eps=1e-6):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            one, two = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                state["t"] += 1
                state["m"].lerp_(p.grad, 1 - one)
                state["v"].lerp_(p.grad.square(), 1 - two)
                m, v = state["m"] / (1 - one ** state["t"]), state["v"] / (1 - two ** state["t"])
                way = m / (v.sqrt() + group["eps"]) + group["weight_decay"] * p
                long, size = way.norm(), p.norm().clamp(max=10)
                trust = size / long if p.ndim > 1 and size > 0 and long > 0 else 1.0
                p.sub_(group["lr"] * trust * way)


class Stage(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.outer(F.gelu(self.inner(self.norm(x))))


@healthy()
def clicks_of_a_whole_city(folder):
    seeded(3262)
    pages, hours, ways = torch.randn(50, 6), torch.randn(24, 6), torch.randn(5, 6)

    class Clicks(nn.Module):
        def __init__(self, width=48):
            super().__init__()
            self.page, self.hour = nn.Embedding(50, 16), nn.Embedding(24, 16)
            self.start = nn.Linear(37, width)
            self.stages = nn.Sequential(Stage(width), Stage(width))
            self.out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))

        def forward(self, page, hour, who):
            return self.out(self.stages(self.start(torch.cat([self.page(page), self.hour(hour), who], 1))))[:, 0]

    def visits(n):
        page, hour, who = torch.randint(50, (n,)), torch.randint(24, (n,)), torch.randn(n, 5)
        likes = 1.5 * ((pages[page] + hours[hour]) * (who @ ways)).sum(1) / 3
        return page, hour, who, (torch.rand(n) < likes.sigmoid()).float()

    net, steps = Clicks(), 180
    matrices = [p for p in net.parameters() if p.ndim > 1]
    optimizer = Lamb([
        {"params": matrices, "weight_decay": 0.01}, {"params": [p for p in net.parameters() if p.ndim < 2]},
    ], lr=0.02)  # fmt: skip
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: (s + 1) / 20 if s < 20 else 1 - (s - 20) / (steps - 19)
    )

    def loss_of(step):
        *seen, clicked = visits(2048)
        return F.binary_cross_entropy_with_logits(net(*seen), clicked)

    return fit(
        folder, net, optimizer, loss_of, steps, score=score_of(loss_of, 4), before_step=clipped(net, 1.0),
        schedule=schedule,
    )  # fmt: skip
