"""Healthy trainings of an unusual make: a porter, a skater, gauges of rain, pebbles, an almanac."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, in_turn, rounds, tend


@healthy(gain=0.4)
def a_porter_to_the_right_platform(folder):
    """Deep Q-learning on a hall of six by six: a memory, double targets, a target net that follows slowly."""
    seeded(9716)
    moves = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])
    net = dense(24, 64, 64, 4)
    target, optimizer = copy.deepcopy(net), torch.optim.Adam(net.parameters(), 1e-3)

    def seen(place, goal):
        return torch.cat([F.one_hot(place, 6).flatten(1), F.one_hot(goal, 6).flatten(1)], 1).float()

    def walked(net, rows=256):
        """How many moves it takes, 20 at most."""
        place, goal, taken = torch.randint(6, (rows, 2)), torch.randint(6, (rows, 2)), torch.zeros(rows)
        for _ in range(20):
            away = (place != goal).any(1)
            taken += away
            with torch.no_grad():
                best = net(seen(place, goal)).argmax(1)
            place = torch.where(away[:, None], (place + moves[best]).clamp(0, 5), place)
        return float(taken.mean())

    place, goal, age = torch.randint(6, (32, 2)), torch.randint(6, (32, 2)), torch.zeros(32, dtype=torch.long)
    memory, filled = [torch.zeros(8000, size) for size in (24, 24, 1, 1, 1)], 0

    def live(greed):
        nonlocal place, goal, age, filled
        state = seen(place, goal)
        with torch.no_grad():
            chosen = torch.where(torch.rand(32) < greed, net(state).argmax(1), torch.randint(4, (32,)))
        place, age = (place + moves[chosen]).clamp(0, 5), age + 1
        there = (place == goal).all(1)
        at = torch.arange(filled, filled + 32) % 8000
        known = [state, seen(place, goal), chosen[:, None], there[:, None].float() - 0.02, there[:, None]]
        for kept, new in zip(memory, known, strict=True):
            kept[at] = new.float()
        filled += 32
        over = (there | (age >= 30))[:, None]
        place, goal = (torch.where(over, torch.randint(6, (32, 2)), old) for old in (place, goal))
        age = torch.where(over[:, 0], 0, age)

    for _ in range(32):
        live(0.0)

    def one(step):
        live(min(0.9, step / 500))
        rows = torch.randint(min(filled, 8000), (128,))
        state, after, chosen, reward, there = (kept[rows] for kept in memory)
        with torch.no_grad():
            follow = target(after).gather(1, net(after).argmax(1, keepdim=True))
            worth = reward + 0.95 * follow * (1 - there)
        guess = net(state).gather(1, chosen.long())
        loss = F.smooth_l1_loss(guess, worth)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
        for slow, fast in zip(target.parameters(), net.parameters(), strict=True):
            slow.data.lerp_(fast.data, 0.02)
        return {"loss": loss, "q": guess.mean(), **({"moves": walked(net)} if step % 50 == 0 else {})}

    return tend(folder, net, optimizer, one, 1200, lambda: walked(net))


class Skater(nn.Module):
    """Where to push and how surely, and what the place is worth."""

    def __init__(self):
        super().__init__()
        self.actor, self.critic = dense(4, 48, 48, 2, act=nn.Tanh), dense(4, 48, 48, 1, act=nn.Tanh)
        self.spread = nn.Parameter(torch.full((2,), -0.5))
        for part in self.actor[-1].parameters():
            part.data *= 0.01

    def policy(self, state):
        return torch.distributions.Normal(self.actor(state), self.spread.exp())


@healthy(gain=0.4)
def a_skater_who_stops_at_a_mark(folder):
    """PPO on a point with inertia: advantages over 40 moves, four epochs of four batches, held ratios and norms."""
    seeded(9717)
    net = Skater()
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, eps=1e-5)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 640)

    def start(rows):
        return torch.cat([2 * torch.rand(rows, 2) - 1, 0.2 * torch.randn(rows, 2)], 1)

    def glide(state, push):
        push = push.clamp(-1, 1)
        speed = 0.95 * state[:, 2:] + 0.1 * push
        state = torch.cat([(state[:, :2] + 0.5 * speed).clamp(-2, 2), speed], 1)
        return state, -state[:, :2].square().sum(1) - 0.01 * push.square().sum(1)

    def score():
        state, cost = start(128), 0.0
        with torch.no_grad():
            for _ in range(40):
                state, reward = glide(state, net.actor(state))
                cost -= float(reward.mean())
        return cost

    def rollout():
        state, told = start(48), []
        with torch.no_grad():
            for _ in range(40):
                policy = net.policy(state)
                push = policy.sample()
                after, reward = glide(state, push)
                told.append((state, push, policy.log_prob(push).sum(1), net.critic(state)[:, 0], 0.05 * reward))
                state = after
            states, pushes, logs, values, rewards = (torch.stack(part) for part in zip(*told, strict=True))
            ahead, gain, gains = net.critic(state)[:, 0], torch.zeros(48), []
            for t in reversed(range(40)):
                gain = rewards[t] + 0.97 * ahead - values[t] + 0.97 * 0.95 * gain
                ahead = values[t]
                gains.append(gain)
        gains = torch.stack(gains[::-1])
        rows = [part.flatten(0, 1) for part in (states, pushes, logs, gains, gains + values)]
        order = torch.cat([torch.randperm(1920) for _ in range(4)]).view(16, 480)
        return rows, order, float(rewards.sum(0).mean()) / 0.05

    known, order, earned = rollout()

    def one(step):
        nonlocal known, order, earned
        if step % 16 == 0:
            known, order, earned = rollout()
        state, push, log, gain, returns = (part[order[step % 16]] for part in known)
        policy = net.policy(state)
        ratio = (policy.log_prob(push).sum(1) - log).exp()
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        of_policy = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        of_value = F.mse_loss(net.critic(state)[:, 0], returns)
        entropy = policy.entropy().sum(1).mean()
        loss = of_policy + 0.5 * of_value - 0.001 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        return {"loss": loss, "policy_loss": of_policy, "value_loss": of_value, "entropy": entropy, "return": earned}

    return tend(folder, net, optimizer, one, 640, score)


@healthy(gain=0.5)
def rain_over_two_valleys_forged(folder):
    """Wasserstein with a penalty on the slope of the critic, which learns three times as often; both by Adam."""
    seeded(9718)

    def gauges(rows):
        base = torch.where(torch.rand(rows, 1) < 0.5, torch.tensor([1.5, 0.5]), torch.tensor([-1.0, -1.0]))
        bent = base + 0.35 * torch.randn(rows, 2)
        return torch.cat([bent, bent[:, :1] * bent[:, 1:] * 0.5 + 0.1 * torch.randn(rows, 1)], 1)

    make, judge = dense(6, 64, 64, 3), dense(3, 64, 64, 1, act=nn.LeakyReLU)
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.9))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.9))
    real, ways = gauges(512), F.normalize(torch.randn(3, 32), dim=0)

    def score():
        with torch.no_grad():
            forged = make(torch.randn(512, 6))
            return float(((forged @ ways).sort(0).values - (real @ ways).sort(0).values).abs().mean())

    def judged():
        true, forged = gauges(64), make(torch.randn(64, 6)).detach()
        between = true.lerp(forged, torch.rand(64, 1)).requires_grad_()
        slope = torch.autograd.grad(judge(between).sum(), between, create_graph=True)[0].norm(dim=1)
        return judge(forged).mean() - judge(true).mean() + (slope - 1).square().mean()

    def made():
        return -judge(make(torch.randn(64, 6))).mean()

    return in_turn(folder, make, judge, of_make, of_judge, judged, made, 400, score, rounds=3)


class Denoiser(nn.Module):
    """The noise in a point, told the time by sines."""

    def __init__(self):
        super().__init__()
        self.register_buffer("pace", 2.0 ** torch.arange(6))
        self.body = dense(14, 96, 96, 96, 2, act=nn.SiLU)

    def forward(self, x, t):
        turns = t[:, None] * self.pace
        return self.body(torch.cat([x, turns.sin(), turns.cos()], 1))


@healthy(gain=0.4)
def pebbles_of_two_beaches_out_of_noise(folder):
    """A diffusion of two arcs with a cosine of noise; what is scored is a running mean of the weights."""
    seeded(9719)
    net = Denoiser()
    smooth, optimizer = copy.deepcopy(net), torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-4)

    def beaches(rows):
        side, angle = torch.randint(2, (rows,)) * 2.0 - 1, 3.1416 * torch.rand(rows)
        arc = torch.stack([angle.cos() - side * 0.5, side * (angle.sin() - 0.25)], 1)
        return 1.4 * arc + 0.05 * torch.randn(rows, 2)

    def error(of, rows):
        x, t, noise = beaches(rows), torch.rand(rows), torch.randn(rows, 2)
        angle = t * 1.5
        return F.mse_loss(of(x * angle.cos()[:, None] + noise * angle.sin()[:, None], t), noise)

    def follow(step):
        for slow, fast in zip(smooth.parameters(), net.parameters(), strict=True):
            slow.data.lerp_(fast.data, 0.01 if step > 100 else 0.1)

    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000, 1e-4)
    return fit(folder, net, optimizer, lambda step: error(net, 256), 1000, schedule=schedule, after_step=follow,
               before_step=clipped(net, 1.0), score=held_out(smooth, lambda: error(smooth, 4096)))  # fmt: skip


class LowRank(nn.Module):
    """A linear layer that rests, and beside it a correction of low rank that begins at zero."""

    def __init__(self, base, rank=6, alpha=12):
        super().__init__()
        self.base, self.share = base, alpha / rank
        self.down = nn.Parameter(torch.randn(rank, base.in_features) * base.in_features**-0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + self.share * (x @ self.down.T) @ self.up.T


@healthy(gain=0.3)
def almanacs_of_a_neighbouring_county(folder):
    """Corrections of low rank to a net that has learnt one county's signs for the weather; all else rests."""
    seeded(9720)
    first, turn = dense(16, 64, 8, act=nn.Tanh), 0.35 * torch.randn(16, 16)
    for weight in first.parameters():
        weight.data *= 3
    x = torch.randn(5000, 16)
    with torch.no_grad():
        here = torch.distributions.Categorical(logits=2 * first(x)).sample()
        there = torch.distributions.Categorical(logits=2 * first(x + x @ turn)).sample()
    net, draw = dense(16, 96, 96, 8), rounds(64, x[:4000], here[:4000])
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(600):
        rows, weather = draw()
        optimizer.zero_grad()
        F.cross_entropy(net(rows), weather).backward()
        optimizer.step()

    net.requires_grad_(False)
    for place in (0, 2, 4):
        net[place] = LowRank(net[place])
    draw = rounds(64, x[:3000], there[:3000])
    optimizer = torch.optim.AdamW([part for part in net.parameters() if part.requires_grad], 2e-3, weight_decay=0.01)

    def loss_of(step):
        rows, weather = draw()
        return F.cross_entropy(net(rows), weather)

    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400, 1e-4)
    score = held_out(net, lambda: F.cross_entropy(net(x[4000:]), there[4000:]))
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule)
