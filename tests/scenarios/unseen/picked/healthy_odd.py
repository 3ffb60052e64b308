"""Three ways to learn from rewards: by values, by proximal policies, by a soft actor and its critics."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, healthy, seeded
from unseen.tasks import tend

import gradwatch


class Lifts:
    """Many lifts of seven floors, each with one passenger at a time."""

    def __init__(self, n):
        self.at, self.waits, self.goal = (torch.randint(7, (n,)) for _ in range(3))
        self.aboard = torch.zeros(n, dtype=torch.bool)

    def seen(self):
        wished = torch.where(self.aboard, self.goal, self.waits)
        floors = [F.one_hot(floor, 7).float() for floor in (self.at, wished)]
        return torch.cat([*floors, self.aboard[:, None].float()], 1)

    def move(self, action):
        self.at = (self.at + (action == 1).long() - (action == 0).long()).clamp(0, 6)
        opens = action == 2
        picks = opens & ~self.aboard & (self.at == self.waits)
        drops = opens & self.aboard & (self.at == self.goal)
        self.aboard = (self.aboard | picks) & ~drops
        self.waits = torch.where(drops, torch.randint(7, drops.shape), self.waits)
        self.goal = torch.where(drops, torch.randint(7, drops.shape), self.goal)
        return 0.5 * picks.float() + drops.float() - 0.05


@healthy()
def a_lift_between_seven_floors(folder):
    seeded(3236)
    net = dense(15, 64, 64, 3)
    target = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    lifts, memory = Lifts(16), []

    def live(epsilon):
        seen = lifts.seen()
        with torch.no_grad():
            best = net(seen).argmax(1)
        action = torch.where(torch.rand(16) < epsilon, torch.randint(3, (16,)), best)
        reward = lifts.move(action)
        memory.append((seen, action, reward, lifts.seen()))
        return float(reward.mean())

    for _ in range(100):
        live(1.0)

    def one(step):
        epsilon = max(0.05, 1 - step / 450)
        reward = live(epsilon)
        rows = [memory[i] for i in torch.randint(len(memory), (8,)).tolist()]
        seen, action, rewards, after = (torch.cat(column) for column in zip(*rows, strict=True))
        with torch.no_grad():
            best = net(after).argmax(1, keepdim=True)
            aim = rewards + 0.95 * target(after).gather(1, best)[:, 0]
        value = net(seen).gather(1, action[:, None])[:, 0]
        loss = F.smooth_l1_loss(value, aim)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), net.parameters(), strict=True):
                slow.lerp_(fast, 0.02)
        return {"loss": loss, "reward": reward, "q": float(value.detach().mean()), "explore": epsilon}

    def score():
        trial, total = Lifts(64), 0.0
        with torch.no_grad():
            for _ in range(60):
                total += float(trial.move(net(trial.seen()).argmax(1)).mean())
        return -total

    return tend(folder, net, optimizer, one, 900, score)


class Gliders:
    """Gliders that fly at one speed around a thermal and choose how fast they turn."""

    def __init__(self, n):
        angle = 2 * math.pi * torch.rand(n)
        self.place = torch.stack([angle.cos(), angle.sin()], 1) * (1 + torch.rand(n, 1))
        self.heading = 2 * math.pi * torch.rand(n)

    def seen(self):
        way = torch.stack([self.heading.cos(), self.heading.sin()], 1)
        inward = (way * self.place).sum(1, keepdim=True)
        across = (way[:, :1] * self.place[:, 1:]) - (way[:, 1:] * self.place[:, :1])
        return torch.cat([inward, across, self.place.norm(dim=1, keepdim=True) - 1], 1)

    def fly(self, turn):
        self.heading = self.heading + 0.8 * turn.clamp(-1, 1)
        self.place = self.place + 0.25 * torch.stack([self.heading.cos(), self.heading.sin()], 1)
        return torch.exp(-self.place.square().sum(1)) - 0.2


class Pilot(nn.Module):
    def __init__(self):
        super().__init__()
        self.policy = dense(3, 48, 48, 1, act=nn.Tanh)
        self.value = dense(3, 48, 48, 1, act=nn.Tanh)
        self.log_spread = nn.Parameter(torch.full((1,), -0.5))
        with torch.no_grad():
            self.policy[-1].weight.mul_(0.1)
            self.policy[-1].bias.zero_()

    def forward(self, seen):
        return torch.distributions.Normal(self.policy(seen)[:, 0], self.log_spread.exp()), self.value(seen)[:, 0]


@healthy()
def a_glider_that_circles_in_a_thermal(folder):
    seeded(3237)
    net, length, n = Pilot(), 40, 48
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, eps=1e-5)

    def flown():
        gliders, rows = Gliders(n), []
        with torch.no_grad():
            for _ in range(length):
                seen = gliders.seen()
                policy, value = net(seen)
                turn = policy.sample()
                rows.append((seen, turn, policy.log_prob(turn), value, gliders.fly(turn)))
            following = net(gliders.seen())[1]
            seen, turn, log_p, value, reward = (torch.stack(column) for column in zip(*rows, strict=True))
            ahead, advantage = torch.zeros(n), torch.zeros(length, n)
            for t in reversed(range(length)):
                ahead = reward[t] + 0.95 * following - value[t] + 0.95 * 0.95 * ahead
                advantage[t], following = ahead, value[t]
        batch = [part.flatten(0, 1) for part in (seen, turn, log_p, advantage, advantage + value)]
        return batch, float(reward.sum(0).mean())

    def score():
        gliders, total = Gliders(128), 0.0
        with torch.no_grad():
            for _ in range(length):
                total += float(gliders.fly(net(gliders.seen())[0].mean).mean())
        return -total

    first = score()
    options = TREATMENT[-1].begin(net, optimizer)
    rounds = 28
    with gradwatch.watch(net, optimizer, **{"log": None, "dir": folder, "verbose": False, **options}) as watch:
        for turn_of in range(rounds):
            optimizer.param_groups[0]["lr"] = 1e-3 * (1 - turn_of / rounds)
            (seen, turn, old, advantage, returns), total = flown()
            for _ in range(4):
                for rows in torch.randperm(len(seen)).chunk(4):
                    policy, value = net(seen[rows])
                    ratio = (policy.log_prob(turn[rows]) - old[rows]).exp()
                    gain = (advantage[rows] - advantage[rows].mean()) / (advantage[rows].std() + 1e-8)
                    surrogate = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
                    fitted, spread = F.mse_loss(value, returns[rows]), policy.entropy().mean()
                    loss = surrogate + 0.5 * fitted - 0.002 * spread
                    optimizer.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(net.parameters(), 0.5)
                    optimizer.step()
                    watch.log(loss=loss, policy_loss=surrogate, value_loss=fitted, entropy=spread, episode_return=total)
    return Outcome(gradwatch.open_history(watch.dir), first, score())


class Showers:
    """The water of a mixing valve arrives two steps late; the valve is moved by at most a fifth at a time."""

    def __init__(self, n):
        self.cold, self.wish = 5 + 15 * torch.rand(n), 34 + 8 * torch.rand(n)
        self.pipe = [torch.rand(n)] * 3
        self.warmth = self.cold + self.pipe[0] * (60 - self.cold)

    def seen(self):
        gap = (self.warmth - self.wish) / 10
        return torch.stack([gap, *[2 * v - 1 for v in self.pipe], (self.cold - 12) / 8, (self.wish - 38) / 4], 1)

    def turn(self, action):
        self.pipe = [*self.pipe[1:], (self.pipe[-1] + 0.2 * action).clamp(0, 1)]
        self.warmth = self.warmth + 0.5 * (self.cold + self.pipe[0] * (60 - self.cold) - self.warmth)
        return -((self.warmth - self.wish) / 10).square() - 0.01 * action.square()


class Plumber(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = dense(6, 48, 48, 2)
        self.critics = nn.ModuleList(dense(7, 48, 48, 1) for _ in range(2))
        self.log_alpha = nn.Parameter(torch.tensor(-1.5))

    def act(self, seen):
        middle, log_spread = self.actor(seen).chunk(2, 1)
        normal = torch.distributions.Normal(middle, log_spread.clamp(-5, 2).exp())
        raw = normal.rsample()
        log_p = normal.log_prob(raw) - 2 * (math.log(2) - raw - F.softplus(-2 * raw))
        return raw.tanh(), log_p


def valued(critics, seen, action):
    both = torch.cat([seen, action], 1)
    return [critic(both) for critic in critics]


@healthy()
def a_shower_that_comes_out_warm(folder):
    seeded(3238)
    net = Plumber()
    slow = copy.deepcopy(net.critics).requires_grad_(False)
    of_actor = torch.optim.Adam(net.actor.parameters(), lr=1e-3)
    of_critics = torch.optim.Adam(net.critics.parameters(), lr=1e-3)
    of_alpha = torch.optim.Adam([net.log_alpha], lr=3e-3)
    memory, now = [], {"showers": Showers(16), "age": 0}

    def live(free):
        showers, seen = now["showers"], now["showers"].seen()
        with torch.no_grad():
            action = 2 * torch.rand(16, 1) - 1 if free else net.act(seen)[0]
        reward = showers.turn(action[:, 0])
        memory.append((seen, action, reward[:, None], showers.seen()))
        now["age"] += 1
        if now["age"] == 30:
            now.update(showers=Showers(16), age=0)
        return float(reward.mean())

    for _ in range(60):
        live(True)

    def one(step):
        reward = live(False)
        rows = [memory[i] for i in torch.randint(len(memory), (8,)).tolist()]
        seen, action, rewards, after = (torch.cat(column) for column in zip(*rows, strict=True))
        alpha = net.log_alpha.detach().exp()
        with torch.no_grad():
            following, log_p = net.act(after)
            aim = rewards + 0.95 * (torch.min(*valued(slow, after, following)) - alpha * log_p)
        critic_loss = sum(F.mse_loss(q, aim) for q in valued(net.critics, seen, action))
        of_critics.zero_grad()
        critic_loss.backward()
        of_critics.step()

        net.critics.requires_grad_(False)
        chosen, log_p = net.act(seen)
        actor_loss = (alpha * log_p - torch.min(*valued(net.critics, seen, chosen))).mean()
        of_actor.zero_grad()
        actor_loss.backward()
        of_actor.step()
        net.critics.requires_grad_(True)

        alpha_loss = -(net.log_alpha * (log_p.detach() - 1.0).mean())
        of_alpha.zero_grad()
        alpha_loss.backward()
        of_alpha.step()
        with torch.no_grad():
            for late, early in zip(slow.parameters(), net.critics.parameters(), strict=True):
                late.lerp_(early, 0.01)
        return {"loss": critic_loss, "actor_loss": actor_loss, "alpha": float(alpha), "reward": reward}

    def score():
        trial, total = Showers(128), 0.0
        with torch.no_grad():
            for _ in range(30):
                total -= float(trial.turn(net.actor(trial.seen())[:, 0].tanh()).mean())
        return total

    return tend(folder, net, [of_actor, of_critics, of_alpha], one, 700, score)
