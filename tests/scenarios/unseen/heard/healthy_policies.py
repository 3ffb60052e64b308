"""Heard healthy trainings, sixth part: agents that learn what to do. An expert is content with each.

They only count (the group `heard`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import copy
import math

import torch
from nets import ALPHABET, CODES, Recurrent, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.sent.healthy_returns import Poles, falls


@healthy(0.3)
def cue_remembered_to_the_end(folder):
    """What is right at the end was said at the beginning: nothing is paid for long, then all. Returns are logged."""
    seeded(1154)
    net = nn.ModuleDict({"rnn": nn.GRU(4, 32, batch_first=True), "act": nn.Linear(32, 2), "value": nn.Linear(32, 1)})

    def paid(rows):
        cue = torch.randint(2, (rows,))
        seen = torch.zeros(rows, 10, 4)
        seen[:, 0, :2] = F.one_hot(cue, 2).float()
        seen[:, 1:9, 2] = torch.randn(rows, 8)
        seen[:, 9, 3] = 1
        last = net["rnn"](seen)[0][:, 9]
        policy = torch.distributions.Categorical(logits=net["act"](last))
        move = policy.sample()
        return policy, move, 2.0 * (move == cue) - 1, net["value"](last)[:, 0]

    def loss_of(step):
        policy, move, reward, value = paid(48)
        push = -(policy.log_prob(move) * (reward - value.detach())).mean()
        loss = push + 0.5 * F.mse_loss(value, reward) - 0.01 * policy.entropy().mean()
        return loss, {"episode_return": reward.mean()}

    def score():
        with torch.no_grad():
            return -float(paid(512)[2].mean())

    make = optim.RMSprop(net.parameters(), 2e-3, alpha=0.99, eps=1e-5)
    return fit(folder, net, make, loss_of, 400, score=score, clip="ClipByGlobalNorm(0.5)")


@healthy(0.3)
def letters_rewarded_near_their_start(folder):
    """A small model of letters is paid for vowels; four tries against each other, and it stays near what it was."""
    seeded(1155)
    net = Recurrent(nn.GRU, 48, seed=1155)
    before, loss_on = optim.Adam(net.parameters(), 5e-3), predict(net, pieces(16, seed=1155))
    for step in range(80):
        before.zero_grad()
        loss_on(step).backward()
        before.step()
    start, vowels = copy.deepcopy(net), torch.tensor([c in "aeiou" for c in ALPHABET]).float()

    @torch.no_grad()
    def written(rows):
        at = torch.randint(len(CODES) - 4, (rows, 1)) + torch.arange(4)
        x = CODES[at].repeat_interleave(4, 0)
        for _ in range(12):
            x = torch.cat([x, net(x)[:, -1].softmax(1).multinomial(1)], 1)
        return x, vowels[x[:, 4:]].mean(1)

    def loss_of(step):
        x, reward = written(12)
        logs = [one(x[:, :-1])[:, 3:].log_softmax(2).gather(2, x[:, 4:, None])[..., 0] for one in (net, start)]
        apart = (logs[0] - logs[1]).detach().sum(1)
        total = (reward - 0.02 * apart).view(12, 4)
        gain = (total - (total.sum(1, keepdim=True) - total) / 3).flatten()
        return -(gain * logs[0].sum(1)).mean(), {"reward": reward.mean(), "kl": apart.mean()}

    score = lambda: -float(written(64)[1].mean())  # noqa: E731
    make = optim.AdamW(net.parameters(), 2e-3, weight_decay=0.0)
    return fit(folder, net, make, loss_of, 120, score=score, clip="ClipByGlobalNorm(1.0)")


@healthy(0.3)
def teacher_asked_where_the_pupil_went(folder):
    """Each thirty steps the pupil walks, and a teacher says what it would have done there (Ross et al. 2011)."""
    seeded(1156)
    net, poles = dense(4, 32, 2, act=nn.Tanh), Poles(16)
    seen, said = [], []

    def teacher(state):
        return (state @ torch.tensor([0.1, 0.3, 1.0, 0.6]) > 0).long()

    @torch.no_grad()
    def walk():
        for _ in range(30):
            seen.append(poles.state)
            said.append(teacher(poles.state))
            policy = net(poles.state).softmax(1)
            poles.push(policy.multinomial(1)[:, 0])

    def loss_of(step):
        if step % 30 == 0:
            walk()
        states, moves = torch.cat(seen), torch.cat(said)
        at = torch.randint(len(states), (64,))
        return F.cross_entropy(net(states[at]), moves[at])

    score = lambda: falls(lambda s: net(s).argmax(1))  # noqa: E731
    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 450, score=score)


@healthy(0.3)
def moves_by_what_is_to_be_paid(folder):
    """From walks by chance alone: which move was made where so much was paid later (Emmons et al. 2022)."""
    seeded(1157)
    net, ways = dense(4, 64, 64, 4), torch.tensor([[0.0, 1.0], [0.0, -1.0], [1.0, 0.0], [-1.0, 0.0]])
    place, move = 6 * torch.rand(1500, 2) - 3, torch.randint(4, (8, 1500))
    walks = torch.stack([place, *(place + 0.5 * ways[move].cumsum(0))])
    paid = -walks[-1].norm(dim=1)

    def asked(state, wanted, left):
        return net(torch.cat([state, wanted[:, None], left[:, None]], 1))

    def loss_of(step):
        at, when = torch.randint(1500, (128,)), torch.randint(8, (128,))
        return F.cross_entropy(asked(walks[when, at], paid[at], (8 - when) / 8), move[when, at])

    @torch.no_grad()
    def score():
        state = 5 * torch.rand(256, 2) - 2.5
        for step in range(8):
            policy = asked(state, torch.zeros(256), torch.full((256,), (8 - step) / 8)).softmax(1)
            state = state + 0.5 * ways[policy.argmax(1)]
        return float(state.norm(dim=1).mean())

    return fit(folder, net, optim.AdamW(net.parameters(), 2e-3), loss_of, 600, score=score)


@healthy(0.3)
def plans_through_what_was_learnt(folder):
    """Three nets say what pushes do; of sixty plans the best is begun (Chua et al. 2018). What it pays is logged."""
    seeded(1158)
    net = nn.ModuleList(dense(4, 48, 48, 2, act=nn.SiLU) for _ in range(3))
    past, last = [], [0.0]

    def turned(state, push):
        """An angle from upright, its speed."""
        speed = (state[..., 1] + 0.1 * (8 * state[..., 0].sin() + 9 * push)).clamp(-8, 8)
        return torch.stack([state[..., 0] + 0.1 * speed, speed], -1)

    def said(one, state, push):
        seen = torch.stack([state[..., 0].sin(), state[..., 0].cos(), state[..., 1] / 4, push], -1)
        return state + one(seen)

    @torch.no_grad()
    def lived(rows, steps=30):
        state, cost = torch.stack([math.pi * (2 * torch.rand(rows) - 1), torch.zeros(rows)], 1), 0.0
        for _ in range(steps):
            plans = (2 * torch.rand(rows, 60, 4) - 1).repeat_interleave(3, 2)
            ahead, price = state[:, None].expand(-1, 60, -1), torch.zeros(rows, 60)
            for t in range(12):
                ahead = said(net[t % 3], ahead, plans[..., t])
                price += 1 - ahead[..., 0].cos()
            push = plans[torch.arange(rows), price.argmin(1), 0]
            after = turned(state, push)
            past.append((state, push, after))
            state = after
            cost += float((1 - state[:, 0].cos()).mean()) / steps
        return cost

    def loss_of(step):
        if step % 50 == 0:
            last[0] = -lived(4)
        state, push, after = (torch.cat(column) for column in zip(*past, strict=True))
        at = torch.randint(len(state), (3, 64))
        errors = [F.mse_loss(said(one, state[i], push[i]), after[i]) for one, i in zip(net, at, strict=True)]
        return sum(errors), {"episode_return": last[0]}

    def score():
        kept = len(past)
        cost = lived(32)
        del past[kept:]
        return cost

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 400, score=score)
