"""Ordinary healthy trainings, sixth part: two who act. An expert is content with each."""

from __future__ import annotations

import copy
import math
from collections import deque

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped


class Stones:
    """Many who stand in a row of five while stones fall; a step that is outlived is worth one, thirty are the end."""

    def __init__(self, many):
        self.many, self.done = many, deque(maxlen=50)
        self.at, self.stones = torch.full((many,), 2), torch.zeros(many, 4, 5)
        self.age = torch.zeros(many)

    def seen(self):
        return torch.cat([F.one_hot(self.at, 5).float(), self.stones.flatten(1)], 1)

    def step(self, act):
        self.at = (self.at + act - 1).clamp(0, 4)
        fallen = self.stones[:, -1]
        hit = fallen.gather(1, self.at[:, None])[:, 0] > 0
        new = torch.zeros(self.many, 5)
        new[torch.arange(self.many), torch.randint(5, (self.many,))] = 1.0
        more = (torch.rand(self.many, 5) < 0.2).float()
        more[torch.arange(self.many), torch.randint(5, (self.many,))] = 0
        row = torch.maximum(new, more)
        self.stones = torch.cat([row[:, None], self.stones[:, :-1]], 1)
        self.age += 1
        reward, over = torch.where(hit, -1.0, 1.0), hit | (self.age >= 30)
        self.done.extend(self.age[over].tolist())
        after = self.seen()
        self.stones[over], self.age[over], self.at[over] = 0, 0, 2
        return after, reward, hit, over


class Duel(nn.Module):
    """What it is worth to be here, and what each act adds (Wang et al. 2016)."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(dense(25, 64, 64), nn.ReLU())
        self.value, self.more = nn.Linear(64, 1), nn.Linear(64, 3)

    def forward(self, x):
        x = self.body(x)
        more = self.more(x)
        return self.value(x) + more - more.mean(1, keepdim=True)


@healthy(0.3)
def stones_avoided_by_a_duelling_net(folder):
    """The recipe of PyTorch's tutorial: AdamW with amsgrad, Huber, elements held at 100, a copy that follows."""
    seeded(5351)
    net = Duel()
    copied = copy.deepcopy(net).requires_grad_(False)
    world, memory = Stones(16), deque(maxlen=400)

    def act(seen, greed):
        with torch.no_grad():
            best = net(seen).argmax(1)
        return torch.where(torch.rand(len(seen)) < greed, torch.randint(3, best.shape), best)

    def play(greed):
        seen = world.seen()
        choice = act(seen, greed)
        after, reward, hit, _ = world.step(choice)
        memory.append((seen, choice, reward, after, hit))

    def lost():
        """How much of thirty steps is missing, on the average, when it acts as it thinks best."""
        test = Stones(64)
        for _ in range(60):
            test.step(act(test.seen(), 0.0))
        ages = list(test.done) or [30.0]
        return 31 - sum(ages) / len(ages)

    for _ in range(20):
        play(1.0)

    def loss_of(step):
        greed = 0.05 + 0.85 * math.exp(-step / 150)
        play(greed)
        picked = torch.randint(len(memory), (8,)).tolist()
        seen, choice, reward, after, hit = (torch.cat(part) for part in zip(*(memory[i] for i in picked), strict=True))
        with torch.no_grad():
            wanted = reward + 0.95 * copied(after).max(1).values * ~hit
        loss = F.smooth_l1_loss(net(seen).gather(1, choice[:, None])[:, 0], wanted)
        return loss, {"return": sum(world.done) / max(1, len(world.done)), "epsilon": greed}

    def hold(step):
        nn.utils.clip_grad_value_(net.parameters(), 100)

    def follow(step):
        with torch.no_grad():
            for slow, p in zip(copied.parameters(), net.parameters(), strict=True):
                slow.lerp_(p, 0.02)

    make = optim.AdamW(net.parameters(), 1e-3, amsgrad=True)
    return fit(folder, net, make, loss_of, 600, before_step=hold, after_step=follow, score=lost)


class Helm(nn.Module):
    """A mean, a spread that does not look, and a value; layers as orthogonal as usual."""

    def __init__(self):
        super().__init__()
        self.actor, self.critic = dense(4, 48, 48, 2, act=nn.Tanh), dense(4, 48, 48, 1, act=nn.Tanh)
        self.log_std = nn.Parameter(torch.zeros(2))
        for part, last in ((self.actor, 0.01), (self.critic, 1.0)):
            for layer in part[::2]:
                nn.init.orthogonal_(layer.weight, last if layer is part[-1] else 2**0.5)
                nn.init.zeros_(layer.bias)

    def of(self, x):
        return torch.distributions.Normal(self.actor(x), self.log_std.exp())


def sail(state, act):
    """The boat after one step in the wind, and what that was worth."""
    place, speed = state.chunk(2, 1)
    speed = 0.9 * speed + 0.2 * act.clamp(-1, 1) + torch.tensor([0.03, -0.02])
    place = (place + 0.2 * speed).clamp(-2, 2)
    return torch.cat([place, speed], 1), -place.norm(dim=1) - 0.02 * act.square().sum(1)


def boats(many):
    return torch.cat([2 * torch.rand(many, 2) - 1, torch.zeros(many, 2)], 1)


@healthy(0.3)
def boats_brought_to_a_buoy_by_ppo(folder):
    """The usual details: 32 boats by 32 steps, four epochs of four batches, a rate that falls to nothing, a clip."""
    seeded(5352)
    net, rounds_ = Helm(), 25
    batch, logged = {}, {}

    def collect():
        state, kept = boats(32), []
        with torch.no_grad():
            for _ in range(32):
                policy = net.of(state)
                act = policy.sample()
                after, reward = sail(state, act)
                kept.append((state, act, policy.log_prob(act).sum(1), reward, net.critic(state)[:, 0]))
                state = after
            states, acts, logs, rewards, values = (torch.stack(part) for part in zip(*kept, strict=True))
            following, gain, gains = net.critic(state)[:, 0], torch.zeros(32), []
            for t in reversed(range(32)):
                gain = rewards[t] + 0.95 * following - values[t] + 0.95 * 0.95 * gain
                following = values[t]
                gains.insert(0, gain)
        gains = torch.stack(gains)
        wanted = gains + values
        parts = {"states": states, "acts": acts, "logs": logs, "gains": gains, "wanted": wanted}
        batch.update({name: part.flatten(0, 1) for name, part in parts.items()})
        logged["return"] = rewards.sum(0).mean()

    def loss_of(step):
        if step % 16 == 0:
            collect()
        if step % 4 == 0:
            batch["order"] = torch.randperm(1024)
        at = batch["order"].view(4, 256)[step % 4]
        policy = net.of(batch["states"][at])
        change = policy.log_prob(batch["acts"][at]).sum(1) - batch["logs"][at]
        ratio, gain = change.exp(), batch["gains"][at]
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        actor = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        critic = 0.5 * (net.critic(batch["states"][at])[:, 0] - batch["wanted"][at]).square().mean()
        spread = policy.entropy().sum(1).mean()
        kl = (ratio - 1 - change).mean()
        return actor + 0.5 * critic - 0.001 * spread, {**logged, "value_loss": critic, "entropy": spread, "kl": kl}

    def lost():
        with torch.no_grad():
            state, total = boats(256), 0.0
            for _ in range(32):
                state, reward = sail(state, net.actor(state))
                total -= float(reward.mean())
        return total

    make = optim.Adam(net.parameters(), 1e-3, eps=1e-5)
    plan = optim.lr_scheduler.LinearLR(make, 1.0, 0.01, 16 * rounds_)
    options = {"schedule": plan, "before_step": clipped(net, 0.5), "score": lost}
    return fit(folder, net, make, loss_of, 16 * rounds_, **options)
