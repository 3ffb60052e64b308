"""Healthy trainings: values, games, pairs, second order, rare rewards, wrong labels, frozen bodies."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, in_turn, rounds, tend


@healthy(0.3)
def a_mole_that_digs_to_its_larder(folder):
    seeded(10857)
    size, goal, discount = 5, 23, 0.9
    net = dense(size * size, 64, 64, 4)
    target = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    moves = torch.tensor([[0, 1], [1, 0], [0, -1], [-1, 0]])
    places = F.one_hot(torch.arange(size * size), size * size).float()

    def move(place, action):
        at = torch.stack([place // size, place % size], 1) + moves[action]
        at = at.clamp(0, size - 1)
        after = at[:, 0] * size + at[:, 1]
        return after, (after == goal).float()

    seen = []

    def dig(share):
        """Eight moles take a step each."""
        nonlocal moles
        best = net(places[moles]).argmax(1)
        action = torch.where(torch.rand(8) < share, torch.randint(4, (8,)), best)
        after, reward = move(moles, action)
        seen.append((moles, action, reward, after))
        lost = (reward > 0) | (torch.rand(8) < 0.05)
        moles = torch.where(lost, torch.randint(size * size - 2, (8,)), after)
        del seen[:-400]

    moles = torch.randint(size * size - 2, (8,))
    with torch.no_grad():
        for _ in range(60):
            dig(1.0)

    def one(step):
        with torch.no_grad():
            dig(max(0.1, 1 - step / 200))
        rows = torch.randint(len(seen), (8,)).tolist()
        place, action, reward, after = (torch.cat([seen[row][i] for row in rows]) for i in range(4))
        with torch.no_grad():
            wanted = reward + discount * (1 - reward) * target(places[after]).amax(1)
        values = net(places[place])[torch.arange(len(place)), action]
        loss = F.smooth_l1_loss(values, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 24:
            target.load_state_dict(net.state_dict())
        return {"loss": loss, "q": values.detach().mean(), "reward": reward.mean()}

    def score():
        with torch.no_grad():
            place, steps = torch.arange(size * size), torch.zeros(size * size)
            there = place == goal
            for _ in range(20):
                steps += (~there).float()
                after, reward = move(place, net(places[place]).argmax(1))
                place = torch.where(there, place, after)
                there |= reward > 0
        return float(steps.mean())

    return tend(folder, net, optimizer, one, 600, score)


@healthy(0.3)
def crystals_grown_by_a_forger(folder):
    seeded(10858)
    make = nn.Sequential(
        nn.Linear(8, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64, bias=False),
        nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2),
    )  # fmt: skip
    judge = nn.Sequential(
        spectral_norm(nn.Linear(2, 64)), nn.LeakyReLU(0.2), spectral_norm(nn.Linear(64, 64)), nn.LeakyReLU(0.2),
        spectral_norm(nn.Linear(64, 1)),
    )  # fmt: skip
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.0, 0.9))
    of_judge = torch.optim.Adam(judge.parameters(), 2e-3, betas=(0.0, 0.9))

    def real(rows):
        turn = torch.randint(6, (rows,)) * 1.0472
        return 2 * torch.stack([turn.cos(), turn.sin()], 1) + 0.1 * torch.randn(rows, 2)

    def judge_loss():
        fake = make(torch.randn(64, 8)).detach()
        return F.relu(1 - judge(real(64))).mean() + F.relu(1 + judge(fake)).mean()

    def make_loss():
        return -judge(make(torch.randn(64, 8))).mean()

    def score():
        with torch.no_grad():
            gaps = torch.cdist(real(512), make(torch.randn(512, 8)))
            return float(gaps.amin(1).mean() + gaps.amin(0).mean())

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 500, score, rounds=2)


@healthy(0.3)
def scents_of_the_same_meadow(folder):
    seeded(10859)
    lift = torch.randn(6, 48) / 2
    body, head = dense(48, 96, 32, norm=nn.BatchNorm1d), dense(32, 32, 16)
    net = nn.ModuleDict({"body": body, "head": head})
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-4)

    def breath(meadow):
        kept = (torch.rand(len(meadow), 48) < 0.8).float()
        return ((meadow + 0.15 * torch.randn_like(meadow)) @ lift).tanh() * kept + 0.1 * torch.randn(len(meadow), 48)

    def loss_on(meadow):
        both = torch.cat([breath(meadow), breath(meadow)])
        found = F.normalize(net["head"](net["body"](both)), dim=1)
        rows = len(meadow)
        table = (found @ found.T / 0.2).masked_fill(torch.eye(2 * rows, dtype=torch.bool), -1e9)
        return F.cross_entropy(table, torch.arange(2 * rows).roll(rows))

    test = torch.randn(48, 6)
    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, lambda step: loss_on(torch.randn(48, 6)), 300, score=score)


@healthy(0.5)
def a_leafs_answer_to_the_light(folder):
    seeded(10860)
    light, warmth = torch.rand(400, 1), torch.rand(400, 1)
    x = torch.cat([light, warmth], 1) * 2 - 1
    y = 6 * light / (0.3 + light) * (-(((warmth - 0.6) / 0.25) ** 2)).exp() + 0.05 * torch.randn(400, 1)
    y = (y - y.mean()) / y.std()
    net = dense(2, 20, 20, 1, act=nn.Tanh)
    optimizer = torch.optim.LBFGS(net.parameters(), 1.0, max_iter=5, history_size=20, line_search_fn="strong_wolfe")

    def loss_of(step):
        return F.mse_loss(net(x[:300]), y[:300])

    score = held_out(net, lambda: F.mse_loss(net(x[300:]), y[300:]))
    return fit(folder, net, optimizer, loss_of, 40, score=score, closure=True)


@healthy(0.3)
def a_miner_in_search_of_the_shaft(folder):
    seeded(10861)
    length, time, rows = 9, 20, 64
    net = dense(length, 32, 2, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    places, baseline = torch.eye(length), 0.0

    def walk(rows):
        place, done = torch.zeros(rows, dtype=torch.long), torch.zeros(rows, dtype=torch.bool)
        logs, entropies = [], []
        for _ in range(time):
            choice = torch.distributions.Categorical(logits=net(places[place]))
            step = choice.sample()
            logs.append(choice.log_prob(step) * ~done)
            entropies.append(choice.entropy() * ~done)
            after = (place + 2 * step - 1).clamp(0, length - 1)
            place = torch.where(done, place, after)
            done = done | (place == length - 1)
        return torch.stack(logs).sum(0), torch.stack(entropies).mean(), done.float()

    def one(step):
        nonlocal baseline
        logs, entropy, reward = walk(rows)
        loss = -((reward - baseline) * logs).mean() - 0.01 * entropy
        baseline = 0.9 * baseline + 0.1 * float(reward.mean())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "reward": reward.mean(), "entropy": entropy.detach()}

    def score():
        with torch.no_grad():
            return 1 - float(walk(512)[2].mean())

    return tend(folder, net, optimizer, one, 250, score)


@healthy(0.3)
def weeds_named_by_hurried_helpers(folder):
    seeded(10862)
    kinds, rows = 6, 2400
    centres = 1.3 * torch.randn(kinds, 2, 12)
    true = torch.randint(kinds, (rows,))
    x = centres[true, torch.randint(2, (rows,))] + 0.6 * torch.randn(rows, 12)
    named = torch.where(torch.rand(rows) < 0.35, torch.randint(kinds, (rows,)), true)
    net = nn.Sequential(nn.Linear(12, 96), nn.ReLU(), nn.Dropout(0.3), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 6))
    steps = 400
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    draw = rounds(64, x[:1800], named[:1800])

    def loss_of(step):
        xs, ys = draw()
        said = net(xs)
        share = said.softmax(1)[torch.arange(len(ys)), ys]
        accuracy = (said.argmax(1) == ys).float().mean()
        return ((1 - share.clamp(min=1e-6) ** 0.7) / 0.7).mean(), {"accuracy": accuracy}  # generalised cross-entropy

    score = held_out(net, lambda: (net(x[1800:]).argmax(1) != true[1800:]).float().mean())
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


@healthy(0.3)
def ores_assayed_by_a_head_alone(folder):
    seeded(10863)
    lines = torch.randn(9, 40)
    body = nn.Sequential(
        nn.Conv1d(1, 16, 5, padding=2), nn.BatchNorm1d(16), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(16, 16, 5, padding=2), nn.BatchNorm1d(16), nn.ReLU(), nn.Flatten(),
    )  # fmt: skip

    def spectra(rows, first, kinds):
        y = torch.randint(kinds, (rows,))
        return (lines[first + y] + 0.7 * torch.randn(rows, 40))[:, None], y

    former = nn.Sequential(body, nn.Linear(320, 5))
    before = torch.optim.Adam(former.parameters(), 3e-3)
    for _ in range(80):
        x, y = spectra(48, 0, 5)
        before.zero_grad()
        F.cross_entropy(former(x), y).backward()
        before.step()
    body.requires_grad_(False).eval()
    head = nn.Linear(320, 4)
    net = nn.Sequential(body, head)
    optimizer = torch.optim.SGD(head.parameters(), 0.01, momentum=0.9)

    def loss_of(step):
        x, y = spectra(32, 5, 4)
        return F.cross_entropy(net(x), y)

    tx, ty = spectra(256, 5, 4)

    def score():
        with torch.no_grad():
            return float(F.cross_entropy(net(tx), ty))

    return fit(folder, net, optimizer, loss_of, 60, score=score)
