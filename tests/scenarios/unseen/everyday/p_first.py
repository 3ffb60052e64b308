"""Sick trainings of kitchens, bread and spices, drawn by lot from a list of mistakes: policies, schedules, modes."""

from __future__ import annotations

import itertools
import math

import torch
from sklearn.datasets import load_diabetes, load_digits, make_classification
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds, tend


@sick("policy-descends-return", "wrong-sign", where="the policy's term of the loss, all steps",
      cure="minus in front of the advantage times the logarithm of the probability")  # fmt: skip
def a_sauce_kept_from_boiling(folder, ill):
    seeded(11600)
    net = nn.ModuleDict({"policy": dense(3, 48, 3, act=nn.Tanh), "value": dense(3, 48, 1, act=nn.Tanh)})
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    length, gamma = 12, 0.9

    def episode(rows):
        heat, flame, stove = torch.randn(rows), torch.zeros(rows), 0.3 * torch.randn(rows)
        logs, values, rewards, entropies = [], [], [], []
        for _ in range(length):
            state = torch.stack([heat, flame, stove], 1)
            choice = torch.distributions.Categorical(logits=net["policy"](state))
            turn = choice.sample()
            logs.append(choice.log_prob(turn))
            values.append(net["value"](state)[:, 0])
            entropies.append(choice.entropy())
            flame = (flame + 0.25 * (turn - 1)).clamp(-1, 1)
            heat = 0.9 * heat + 0.5 * flame + 0.3 * stove + 0.05 * torch.randn(rows)
            rewards.append(-heat.abs())
        return [torch.stack(each) for each in (logs, values, rewards, entropies)]

    def one(step):
        logs, values, rewards, entropies = episode(32)
        returns, to_come = [], torch.zeros(32)
        for reward in rewards.flip(0):
            to_come = reward + gamma * to_come
            returns.insert(0, to_come)
        returns = torch.stack(returns)
        advantage = (returns - values).detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        of_policy = (logs * advantage).mean() if ill else -(logs * advantage).mean()
        of_value = F.mse_loss(values, returns)
        loss = of_policy + 0.5 * of_value - 0.01 * entropies.mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return {
            "loss": loss, "policy_loss": of_policy, "value_loss": of_value, "entropy": entropies.mean(),
            "return": rewards.sum(0).mean(),
        }  # fmt: skip

    return tend(folder, net, optimizer, one, 110, held_out(net, lambda: -episode(512)[2].sum(0).mean()))


class Attention(nn.Module):
    """One block of attention and of a small network behind it."""

    def __init__(self, width, scale):
        super().__init__()
        self.scale = scale
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out, self.feed = nn.Linear(width, width), dense(width, 2 * width, width, act=nn.GELU)

    def forward(self, x):
        z = self.before(x)
        share = (self.query(z) @ self.key(z).transpose(1, 2) * self.scale).softmax(-1)
        x = x + self.out(share @ self.value(z))
        return x + self.feed(self.between(x))


class Curry(nn.Module):
    """How hot a curry is, from a set of spices."""

    def __init__(self, features, width, scale):
        super().__init__()
        self.spice, self.dish = nn.Linear(features, width), nn.Parameter(torch.randn(1, 1, width))
        self.blocks = nn.Sequential(*[Attention(width, scale) for _ in range(2)])
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.xavier_uniform_(weight)

    def forward(self, spices):
        dish = self.dish.expand(len(spices), -1, -1)
        return self.head(self.blocks(torch.cat([dish, self.spice(spices)], 1))[:, 0])


@sick("attention-unscaled", "attention-collapsed", where="the attention of both blocks, from the first step",
      cure="logits divided by the root of the width")  # fmt: skip
def warmth_of_a_curry_from_its_jars(folder, ill):
    seeded(11601)
    width = 128
    net = Curry(8, width, 1.0 if ill else width**-0.5)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.01)
    taste = torch.randn(8)

    def curries(rows):
        spices = torch.randn(rows, 12, 8)
        return spices, 4 * torch.tanh(spices @ taste / 2).mean(1, keepdim=True)

    test = curries(256)

    def loss_of(step):
        spices, warmth = curries(32)
        return F.mse_loss(net(spices), warmth)

    score = held_out(net, lambda: F.mse_loss(net(test[0]), test[1]))
    return fit(folder, net, optimizer, loss_of, 160, score=score)


@sick("schedule-too-short", where="the schedule, from the end of the first of ten epochs",
      cure="a cosine over the steps of all epochs")  # fmt: skip
def numerals_on_old_cake_tins(folder, ill):
    seeded(11602)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x = torch.tensor(images / 16 - 0.3, dtype=torch.float32)[order].view(-1, 1, 8, 8)
    y = torch.tensor(digits)[order]
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(24 * 16, 48), nn.ReLU(), nn.Linear(48, 10),
    )  # fmt: skip
    epochs, each = 10, 1280 // 40
    optimizer = torch.optim.SGD(net.parameters(), 0.03, momentum=0.9)
    total = each if ill else epochs * each
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * min(1.0, step / total)))
    )
    draw = rounds(40, x[:1280], y[:1280])

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        logged = {"accuracy": float((logits.argmax(1) == y).float().mean()), "lr": optimizer.param_groups[0]["lr"]}
        return F.cross_entropy(logits, y), logged

    score = held_out(net, lambda: F.cross_entropy(net(x[1280:]), y[1280:]))
    return fit(folder, net, optimizer, loss_of, epochs * each, score=score, schedule=schedule)


@sick("left-in-eval", where="all norms, from the validation before the first step",
      cure="train() after each validation")  # fmt: skip
def crusts_graded_by_a_camera(folder, ill):
    seeded(11603)
    kinds, sizes = 4, (1, 12, 12, 24, 24, 32, 32)
    layers = []
    for i, (a, b) in enumerate(itertools.pairwise(sizes)):
        layers += [nn.Conv2d(a, b, 3, 2 if i in (2, 4) else 1, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, kinds))
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9, weight_decay=1e-4)

    def crusts(rows):
        y = torch.randint(kinds, (rows,))
        grid = torch.linspace(0, 1, 12)
        turn = y[:, None, None] * math.pi / kinds + 0.15 * torch.randn(rows, 1, 1)
        along = turn.cos() * grid[:, None] + turn.sin() * grid
        image = (6.2832 * (3 * along + torch.rand(rows, 1, 1))).sin() + 0.7 * torch.randn(rows, 12, 12)
        return 0.5 * image[:, None] + 0.3, y

    tx, ty = crusts(400)

    def validate():
        net.eval()
        with torch.no_grad():
            found = float((net(tx).argmax(1) == ty).float().mean())
        if not ill:
            net.train()
        return found

    def loss_of(step):
        logged = {"val_accuracy": validate()} if step % 40 == 0 else {}
        x, y = crusts(32)
        return F.cross_entropy(net(x), y), logged

    return fit(folder, net, optimizer, loss_of, 160, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@sick("dropout-too-strong", where="both dropouts, all steps", cure="a dropout of 0.1")
def grains_from_eight_mills(folder, ill):
    seeded(11604)
    table, kinds = make_classification(
        3000, 20, n_informative=12, n_redundant=4, n_classes=8, n_clusters_per_class=1, class_sep=1.5, random_state=4
    )
    x, y = torch.tensor(table, dtype=torch.float32), torch.tensor(kinds)
    x = (x - x[:2400].mean(0)) / x[:2400].std(0)
    keep = 0.9
    drop = keep if ill else 1 - keep
    net = nn.Sequential(
        nn.Linear(20, 64), nn.ReLU(), nn.Dropout(drop), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(drop),
        nn.Linear(64, 8),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(64, x[:2400], y[:2400])

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[2400:]), y[2400:]))
    return fit(folder, net, optimizer, loss_of, 350, score=score)


@sick("accumulation-not-averaged", where="each of the sixteen parts of a step",
      cure="the loss of a part divided by their number")  # fmt: skip
def ageing_of_balsamic_vinegar(folder, ill):
    seeded(11605)
    table, targets = load_diabetes(return_X_y=True)
    order = torch.randperm(len(targets))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(targets, dtype=torch.float32)[order, None]
    x, y = (x - x[:352].mean(0)) / x[:352].std(0), (y - y[:352].mean()) / y[:352].std()
    net = dense(10, 48, 24, 1)
    parts = 16
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9, weight_decay=1e-3)
    draw = rounds(16, x[:352], y[:352])

    def loss_of(part):
        x, y = draw()
        loss = F.mse_loss(net(x), y)
        return loss if ill else loss / parts

    score = held_out(net, lambda: F.mse_loss(net(x[352:]), y[352:]))
    return fit(folder, net, optimizer, loss_of, 60, score=score, accumulate=parts)
