"""Bread, wine, knitting, elevators, bees and glazes: six trainings, each with one thing to mend."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import clipped, rounds, tend

# --------------------------------------------------------------------------------------------------------------- bread


@sick(
    "weights-shrink",
    "shares-not-summing-to-one",
    where="all layers after every twenty steps: what the bakeries sent is added up by shares that make five sixths",
    cure="shares among the bakeries of this round only, so that they sum to one",
)
def ovens_of_six_bakeries(folder, ill):
    seeded(2152)
    net = dense(7, 48, 48, 1, act=nn.GELU)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.5)
    ovens, crust = torch.randn(6, 7), torch.randn(7, 2)
    loaves = torch.tensor([90.0, 110.0, 100.0, 80.0, 120.0, 100.0])
    shared = {name: weight.clone() for name, weight in net.state_dict().items()}
    sent, turn = [], []

    def error(bakery):
        dough = torch.randn(32, 7) + 0.3 * ovens[bakery]
        return F.mse_loss(net(dough), (dough @ crust / 2).sin().sum(1, keepdim=True))

    def loss_of(step):
        if not turn:
            turn.extend(torch.randperm(6)[:5].tolist())
        return error(turn[len(sent)])

    def after_step(step):
        if step % 4 != 3:
            return
        sent.append({name: weight.clone() for name, weight in net.state_dict().items()})
        if len(sent) == 5:
            whole = loaves.sum() if ill else loaves[turn].sum()
            for name in shared:
                shared[name] = sum(loaves[b] / whole * one[name] for b, one in zip(turn, sent, strict=True))
            sent.clear()
            turn.clear()
        net.load_state_dict(shared)

    return fit(folder, net, optimizer, loss_of, 900, after_step=after_step, score=score_of(lambda i: error(i % 6), 18))


# ---------------------------------------------------------------------------------------------------------------- wine


class Cellar(nn.Module):
    """The year in which a wine is at its best."""

    def __init__(self):
        super().__init__()
        self.grape, self.slope = nn.Embedding(12, 8), nn.Embedding(6, 4)
        self.body = dense(18, 64, 64, 1, act=nn.SiLU, norm=nn.LayerNorm)

    def forward(self, grape, slope, taste):
        return self.body(torch.cat([self.grape(grape), self.slope(slope), taste], 1))


@sick(
    "update-too-small",
    "weights-unchanged",
    "schedule-too-short",
    "warmup-compounded",
    where="all layers: the rate is multiplied by the warm-up's share at each step, and is next to nothing after twenty",
    cure="set the rate to its full value times the warm-up's share",
)
def best_years_of_wines(folder, ill):
    seeded(2153)
    net = Cellar()
    full, warm = 2e-3, 40
    optimizer = torch.optim.AdamW(net.parameters(), lr=full, weight_decay=0.01)
    grapes, slopes, tastes = torch.randn(12), torch.randn(6), torch.randn(6)

    def error(step):
        grape, slope, taste = torch.randint(12, (48,)), torch.randint(6, (48,)), torch.randn(48, 6)
        year = grapes[grape] * (1 + slopes[slope]) + (taste @ tastes).tanh()
        return F.mse_loss(net(grape, slope, taste)[:, 0], year)

    def one(step):
        share = min(1.0, (step + 1) / warm)
        for group in optimizer.param_groups:
            group["lr"] = (group["lr"] if ill else full) * share
        optimizer.zero_grad()
        loss = error(step)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
        return {"loss": loss}

    return tend(folder, net, optimizer, one, 500, score_of(error, 16))


# ------------------------------------------------------------------------------------------------------------ knitting


class Stitches(nn.Module):
    """The next of six stitches after a row so far."""

    def __init__(self):
        super().__init__()
        self.stitch = nn.Embedding(6, 16)
        self.memory = nn.GRU(16, 40, batch_first=True)
        self.head = nn.Linear(40, 6)

    def forward(self, row):
        return self.head(self.memory(self.stitch(row))[0])


@sick(
    "perturbation-kept",
    "wrong-sign",
    where="all layers at every step: the climb to the sharpest weights nearby (SAM) is never taken back",
    cure="subtract what was added to the weights before the optimizer steps",
)
def next_stitch_of_a_knitting_pattern(folder, ill):
    seeded(2154)
    net = Stitches()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    reach = 0.05

    def rows(count, length=14):
        motif = torch.randint(6, (count, 4))
        return motif.repeat(1, 5)[:, : length + 1]

    def entropy(row):
        return F.cross_entropy(net(row[:, :-1]).flatten(0, 1), row[:, 1:].flatten())

    def one(step):
        row = rows(32)
        optimizer.zero_grad()
        loss = entropy(row)
        loss.backward()
        weights = list(net.parameters())
        length = nn.utils.get_total_norm([weight.grad for weight in weights])
        climbs = [reach * weight.grad / (length + 1e-12) for weight in weights]
        with torch.no_grad():
            torch._foreach_add_(weights, climbs)
        optimizer.zero_grad()
        above = entropy(row)
        above.backward()
        if not ill:
            with torch.no_grad():
                torch._foreach_sub_(weights, climbs)
        optimizer.step()
        return {"loss": loss, "loss_above": above}

    return tend(folder, net, optimizer, one, 350, score_of(lambda step: entropy(rows(64))))


# ----------------------------------------------------------------------------------------------------------- elevators


@sick(
    "negative-loss",
    "probabilities-not-logs",
    where="the loss, which is below zero from the start: kl_div is given the student's probabilities for their logs",
    cure="log_softmax for the student",
)
def elevators_sent_by_a_lesser_dispatcher(folder, ill):
    seeded(2155)
    teacher = dense(12, 64, 6, act=nn.Tanh).requires_grad_(False)
    teacher[2].weight *= 6
    net = dense(12, 32, 32, 6)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)
    temperature = 2.0

    def calls():
        floors = (torch.rand(64, 12) < 0.4).float() * 2 - 1
        return floors, teacher(floors)

    def loss_of(step):
        floors, wise = calls()
        own, aim = net(floors) / temperature, (wise / temperature).softmax(1)
        told = own.softmax(1) if ill else own.log_softmax(1)
        agree = (own.argmax(1) == wise.argmax(1)).float().mean()
        return temperature**2 * F.kl_div(told, aim, reduction="batchmean"), {"agreement": agree}

    def gap(step):
        floors, wise = calls()
        return F.kl_div(net(floors).log_softmax(1), wise.log_softmax(1), reduction="batchmean", log_target=True)

    return fit(folder, net, optimizer, loss_of, 500, schedule=schedule, score=score_of(gap, 12))


# ---------------------------------------------------------------------------------------------------------------- bees


@sick(
    "weights-unchanged",
    "update-too-small",
    "updates-rounded-away",
    where="all layers, the gains of the norms above all: bfloat16 weights round most updates of this rate away",
    cure="keep the weights in float32 (autocast for what is computed)",
)
def weights_of_beehives(folder, ill):
    seeded(2156)
    net = nn.Sequential(
        nn.Linear(16, 96), nn.LayerNorm(96), nn.GELU(), nn.Linear(96, 96), nn.LayerNorm(96), nn.GELU(), nn.Linear(96, 1)
    )
    kind = torch.bfloat16 if ill else torch.float32
    net.to(kind)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0.01)
    flowers = torch.randn(16, 3) / 3

    def error(step):
        season = torch.randn(64, 16)
        gain = (season @ flowers).sin().sum(1, keepdim=True) + 0.5 * season[:, :1]
        return F.mse_loss(net(season.to(kind)).float(), gain)

    return fit(folder, net, optimizer, error, 800, before_step=clipped(net, 5.0), score=score_of(error, 16))


# -------------------------------------------------------------------------------------------------------------- glazes


@sick(
    "weights-reset",
    "checkpoint-of-the-worst",
    where="all layers after every epoch of 18 steps: the weights jump back to those of the first epochs",
    cure="keep the weights whose error is the least so far, not the greatest",
)
def colours_of_glazes(folder, ill):
    seeded(2157)
    oxides = torch.rand(1400, 4) * 2 - 1
    mix = 4 * torch.randn(4, 6)
    colour = (oxides @ mix).sin() @ torch.randn(6, 3) / 2
    draw = rounds(64, oxides[:1200], colour[:1200])
    net = dense(4, 96, 96, 3, act=nn.SiLU)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    best = {"error": -math.inf if ill else math.inf, "weights": None}

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    def validation():
        with torch.no_grad():
            return float(F.mse_loss(net(oxides[1200:]), colour[1200:]))

    def after_step(step):
        if step % 18 != 17:
            return
        error = validation()
        if error > best["error"] if ill else error < best["error"]:
            best.update(error=error, weights={name: weight.clone() for name, weight in net.state_dict().items()})
        else:
            net.load_state_dict(best["weights"])

    return fit(folder, net, optimizer, loss_of, 600, after_step=after_step, score=validation)
