"""Sick trainings that no rule was written for: mistakes on the side of the step, drawn by lot, part three."""

from __future__ import annotations

import copy
import math

import torch
from nets import batches
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.again.sick_steps import watched

# ------------------------------------------------------------------------------------------------------- actor, critic


@sick(
    "weights-put-back", "update-too-small", "weights-unchanged", "no-progress",
    where="all layers, all steps: what a step changes is taken back but for a two-hundredth",
    cure="restore the trained weights after each evaluation with the averaged ones",
)  # fmt: skip
def advised_by_its_shadow(folder, ill):
    seeded(1212)
    net, best = nn.ModuleDict({"actor": dense(8, 48, 5), "critic": dense(8, 48, 1)}), torch.randn(8, 5) / 2
    make, shadow = optim.Adam(net.parameters(), 5e-3), copy.deepcopy(net).requires_grad_(False)
    fixed = torch.randn(512, 8)

    def regret(of):
        with torch.no_grad():
            pays = fixed @ best
            return (pays.amax(1) - (of["actor"](fixed).softmax(1) * pays).sum(1)).mean()

    def train_step(step):
        state = torch.randn(64, 8)
        policy = torch.distributions.Categorical(logits=net["actor"](state))
        action, value = policy.sample(), net["critic"](state)[:, 0]
        reward = (state @ best).gather(1, action[:, None])[:, 0] + 0.3 * torch.randn(64)
        gain = (reward - value).detach()
        loss = -(policy.log_prob(action) * gain).mean() + 0.5 * F.mse_loss(value, reward)
        loss = loss - 0.01 * policy.entropy().mean()
        make.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        make.step()
        for mine, p in zip(shadow.parameters(), net.parameters(), strict=True):
            mine.lerp_(p.detach(), 0.005)
        kept = copy.deepcopy(net.state_dict())
        net.load_state_dict(shadow.state_dict())
        regret(net)
        if not ill:
            net.load_state_dict(kept)
        return loss

    return watched(folder, net, make, train_step, 300, lambda: regret(net))


# ------------------------------------------------------------------------------------------------------------ seq2seq


class Reverser(nn.Module):
    def __init__(self, kinds=8, width=48):
        super().__init__()
        self.embed = nn.Embedding(kinds + 1, 16)
        self.encoder, self.decoder = nn.GRU(16, width, batch_first=True), nn.GRU(16, width, batch_first=True)
        self.head = nn.Linear(width, kinds)

    def forward(self, x, given):
        return self.head(self.decoder(self.embed(given), self.encoder(self.embed(x))[1])[0])


@sick(
    "optimizer-state-lost", "schedule-restarted", "lr-too-high", "update-too-large",
    where="all layers, from step 345 on: the rate is back at its peak and Adam has forgotten its averages",
    cure="save and load the optimizer and the schedule along with the weights",
)  # fmt: skip
def reversed_words_after_the_machine_was_lost(folder, ill):
    seeded(1213)
    net, whole, lost = Reverser(), 360, 345
    make = optim.Adam(net.parameters(), 3e-2)
    as_made = copy.deepcopy(make.state_dict())
    plan = optim.lr_scheduler.CosineAnnealingLR(make, whole)
    plans = [plan]

    def loss_of(step):
        x = torch.randint(8, (32, 5))
        back = x.flip(1)
        given = torch.cat([torch.full((32, 1), 8), back[:, :-1]], 1)
        return F.cross_entropy(net(x, given).flatten(0, 1), back.flatten())

    def train_step(step):
        if ill and step == lost:  # the job starts again from the file with the weights
            make.load_state_dict(copy.deepcopy(as_made))
            plans[0] = optim.lr_scheduler.CosineAnnealingLR(make, whole)
        make.zero_grad()
        loss = loss_of(step)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        make.step()
        plans[0].step()
        return loss

    return watched(folder, net, make, train_step, whole, score_of(loss_of, 20))


# ------------------------------------------------------------------------------------------------ prices from a table


class Prices(nn.Module):
    def __init__(self):
        super().__init__()
        self.place, self.make = nn.Embedding(20, 6), nn.Embedding(12, 4)
        self.body = dense(15, 64, 64, 1)

    def forward(self, place, make, numbers):
        return self.body(torch.cat([self.place(place), self.make(make), numbers], 1))[:, 0]


@sick(
    "schedule-too-short", "schedule-ran-out", "weights-unchanged", "update-too-small", "no-progress",
    where="all layers, from step 15 on: the rate is zero",
    cure="total_iters in batches, for it is stepped once a batch",
)  # fmt: skip
def prices_whose_fifteen_epochs_pass_at_once(folder, ill):
    seeded(1214)
    net, epochs, per_epoch = Prices(), 15, 20
    by_place, by_make, way = torch.randn(20), torch.randn(12), torch.randn(5, 2)

    def loss_of(step):
        place, kind, numbers = torch.randint(20, (64,)), torch.randint(12, (64,)), torch.randn(64, 5)
        worth = by_place[place] + by_make[kind] * numbers[:, 0] + (numbers @ way).sin().sum(1)
        return F.mse_loss(net(place, kind, numbers), worth / 1.7)

    make = optim.AdamW(net.parameters(), 5e-3)
    plan = optim.lr_scheduler.PolynomialLR(make, total_iters=epochs if ill else epochs * per_epoch, power=0.9)
    return fit(folder, net, make, loss_of, epochs * per_epoch, score=score_of(loss_of, 10), schedule=plan)


# ------------------------------------------------------------------------------------------------------------- an lstm


class Listener(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 32, batch_first=True), nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


@sick(
    "lr-too-high", "update-too-large", "exploding",
    where="all layers, from the first step", cure="Adam at 5e-3: the rate was that of SGD",
)  # fmt: skip
def motifs_heard_at_the_rate_of_another(folder, ill):
    seeded(1216)
    net, motifs = Listener(), torch.randn(4, 5, 4)

    def loss_of(step):
        y, at = torch.randint(4, (32,)), torch.randint(11, (32,))
        x = 0.5 * torch.randn(32, 15, 4)
        x[torch.arange(32)[:, None], at[:, None] + torch.arange(5)] += motifs[y]
        return F.cross_entropy(net(x), y)

    make = optim.Adam(net.parameters(), 0.5 if ill else 5e-3)
    return fit(folder, net, make, loss_of, 250, score=score_of(loss_of, 10))


# --------------------------------------------------------------------------------------------------------------- a vae


class Vae(nn.Module):
    def __init__(self, kept=6):
        super().__init__()
        self.encoder, self.decoder = dense(64, 64, 2 * kept), dense(kept, 64, 64)

    def forward(self, x):
        middle, spread = self.encoder(x).chunk(2, 1)
        drawn = middle + (spread / 2).exp() * torch.randn_like(middle)
        return self.decoder(drawn), middle, spread


@sick(
    "below-epsilon", "update-too-small", "no-progress",
    where="all layers, all steps", cure="eps=1e-8: 1.0 outweighs the root of the second moment in every element",
)  # fmt: skip
def digits_drawn_with_an_epsilon_of_inception(folder, ill):
    seeded(1217)
    net, batch = Vae(), batches(64)

    def loss_of(step):
        x = batch(step)[0].flatten(1)
        out, middle, spread = net(x)
        divergence = 0.5 * (middle.square() + spread.exp() - spread - 1).mean()
        return F.binary_cross_entropy_with_logits(out, x) + 0.01 * divergence

    make = optim.Adam(net.parameters(), 3e-3, eps=1.0 if ill else 1e-8)
    return fit(folder, net, make, loss_of, 300, score=score_of(loss_of, 10))


# -------------------------------------------------------------------------------------------------------- segmentation


class UNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.top, self.low = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, 2 * width, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(2 * width, width, 2, 2), nn.Conv2d(2 * width, width, 3, padding=1)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        top = F.relu(self.top(x))
        low = F.relu(self.low(F.max_pool2d(top, 2)))
        return self.head(F.relu(self.last(torch.cat([top, F.relu(self.up(low))], 1))))


@sick(
    "update-too-small", "weights-unchanged", "no-progress", "schedule-ran-out", "rate-came-with-the-state",
    where="all layers, all steps: load_state_dict brought the last rate of the first training along",
    cure="set the rate of each group after the state has been loaded",
)  # fmt: skip
def blobs_outlined_for_a_second_time(folder, ill):
    seeded(1218)
    net = UNet()
    line = torch.arange(16.0)

    def loss_of(step):
        middle, wide = 3 + 10 * torch.rand(16, 2, 1), 2 + 2 * torch.rand(16, 1, 1)
        far = (line - middle[:, 0])[:, :, None] ** 2 + (line - middle[:, 1])[:, None, :] ** 2
        mask = (far < wide**2).float()[:, None]
        out = net(0.8 * mask + 0.6 * torch.randn(16, 1, 16, 16))
        found = out.sigmoid()
        dice = 1 - (2 * (found * mask).sum() + 1) / (found.sum() + mask.sum() + 1)
        return F.binary_cross_entropy_with_logits(out, mask) + 0.5 * dice

    before = optim.AdamW(net.parameters(), 1e-3)
    plan = optim.lr_scheduler.LambdaLR(before, lambda step: 1e-5 + (1 + math.cos(math.pi * min(1.0, step / 40))) / 2)
    for step in range(41):
        before.zero_grad()
        loss_of(step).backward()
        before.step()
        plan.step()
    make = optim.AdamW(net.parameters(), 2e-3)
    make.load_state_dict(before.state_dict())
    if not ill:
        for group in make.param_groups:
            group["lr"] = 2e-3
    return fit(folder, net, make, loss_of, 150, score=score_of(loss_of, 10))


# ------------------------------------------------------------------------------------------------------------- a graph


class Gcn(nn.Module):
    def __init__(self, hops, seen=16):
        super().__init__()
        self.register_buffer("hops", hops)
        self.first, self.second = nn.Linear(seen, 32), nn.Linear(32, 4)

    def forward(self, x):
        return self.second(self.hops @ F.relu(self.first(self.hops @ x)))


@sick(
    "lr-too-high", "update-too-large", "noise-dominated", "exploding",
    where="all layers, all steps", cure="a rate in proportion to the batch: it was found for all nodes, not for four",
)  # fmt: skip
def neighbourhoods_of_four_nodes(folder, ill):
    seeded(1219)
    y = torch.arange(240) % 4
    edges = (torch.rand(240, 240) < torch.where(y[:, None] == y, 0.06, 0.02)).float().triu(1)
    edges = edges + edges.T + torch.eye(240)
    root = edges.sum(1).rsqrt()
    net, x = Gcn(root[:, None] * edges * root), 0.35 * torch.randn(4, 16)[y] + torch.randn(240, 16)
    make = optim.SGD(net.parameters(), 2.0 if ill else 2.0 * 4 / 160, momentum=0.9)
    known = torch.randperm(240)[:160]

    def loss_of(step):
        seeds = known[torch.randperm(160)[:4]]
        return F.cross_entropy(net(x)[seeds], y[seeds])

    def score():
        with torch.no_grad():
            return F.cross_entropy(net(x)[known], y[known])

    return fit(folder, net, make, loss_of, 300, score=score)
