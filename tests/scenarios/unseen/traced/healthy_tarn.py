"""Trainings by reward in which nothing is wrong: of values and of policies."""

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, tend


class Grid:
    """Couriers on a square of streets, each with a door to find; all that have arrived start anew."""

    moves = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])

    def __init__(self, rows, side=6, most=30):
        self.side, self.most = side, most
        self.at, self.door = torch.randint(side, (rows, 2)), torch.randint(side, (rows, 2))
        self.age = torch.zeros(rows, dtype=torch.long)

    def seen(self):
        both = torch.cat([self.at, self.door], 1)
        return F.one_hot(both, self.side).flatten(1).float()

    def step(self, action):
        """The reward, whether the door is reached, and what is seen of the place where the move led to."""
        self.at = (self.at + self.moves[action]).clamp(0, self.side - 1)
        self.age += 1
        there = (self.at == self.door).all(1)
        after = self.seen()
        fresh = there | (self.age >= self.most)
        n = int(fresh.sum())
        self.at[fresh], self.door[fresh] = torch.randint(self.side, (n, 2)), torch.randint(self.side, (n, 2))
        self.age[fresh] = 0
        return there.float() - 0.02, there, after


@healthy()
def a_bicycle_courier_in_six_streets(folder):
    """Double Q-learning with a replay and a target that is copied every fifty steps."""
    seeded(3441)
    net = dense(24, 96, 96, 4)
    target = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    world, size = Grid(32), 16_000
    kept = [torch.zeros(size, 24), torch.zeros(size, dtype=torch.long), torch.zeros(size), torch.zeros(size),
            torch.zeros(size, 24)]  # fmt: skip
    count = [0]

    def explore(chance):
        before = world.seen()
        with torch.no_grad():
            best = net(before).argmax(1)
        action = torch.where(torch.rand(32) < chance, torch.randint(4, (32,)), best)
        reward, there, after = world.step(action)
        rows = (count[0] + torch.arange(32)) % size
        for store, new in zip(kept, (before, action, reward, there.float(), after), strict=True):
            store[rows] = new
        count[0] += 32
        return reward.mean()

    for _ in range(30):
        explore(1.0)

    def one(step):
        chance = max(0.05, 1 - step / 300)
        reward = explore(chance)
        at = torch.randint(min(count[0], size), (128,))
        before, action, gain, there, after = (store[at] for store in kept)
        with torch.no_grad():
            choice = net(after).argmax(1, keepdim=True)
            goal = gain + 0.95 * (1 - there) * target(after).gather(1, choice)[:, 0]
        value = net(before).gather(1, action[:, None])[:, 0]
        loss = F.smooth_l1_loss(value, goal)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimizer.step()
        if (step + 1) % 50 == 0:
            target.load_state_dict(net.state_dict())
        return {"loss": loss, "value": value.mean(), "epsilon": chance, "reward": reward}

    def score():
        """The streets that a courier needs, thirty at most."""
        trial = Grid(300, most=1000)
        needed, on_the_way = torch.zeros(300), torch.ones(300)
        with torch.no_grad():
            for _ in range(30):
                needed += on_the_way
                _, there, _ = trial.step(net(trial.seen()).argmax(1))
                on_the_way *= 1 - there.float()
        return needed.mean()

    return tend(folder, net, optimizer, one, 800, score)


def hover(state, push):
    """A tenth of a second of flight: `[B, 4]` of place and speed."""
    push = push.clamp(-2, 2)
    speed = 0.95 * state[:, 2:] + 0.1 * push
    place = state[:, :2] + 0.1 * speed
    cost = place.square().sum(1) + 0.1 * speed.square().sum(1) + 0.01 * push.square().sum(1)
    return torch.cat([place, speed], 1), cost


class Pilot(nn.Module):
    def __init__(self):
        super().__init__()
        self.policy, self.value = dense(4, 48, 48, 2, act=nn.Tanh), dense(4, 48, 48, 1, act=nn.Tanh)
        self.log_std = nn.Parameter(torch.zeros(2) - 0.5)
        for net, last in ((self.policy, 0.01), (self.value, 1.0)):
            for layer in net[::2]:
                nn.init.orthogonal_(layer.weight, last if layer is net[-1] else math.sqrt(2))
                nn.init.zeros_(layer.bias)

    def forward(self, state):
        return torch.distributions.Normal(self.policy(state), self.log_std.exp()), self.value(state)[:, 0]


@healthy()
def a_drone_above_its_landing_mat(folder):
    """Proximal policy optimisation with advantages over several steps, four epochs of four parts per rollout."""
    seeded(3442)
    net = Pilot()
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, eps=1e-5)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=40)

    def start(rows):
        return torch.cat([2 * torch.rand(rows, 2) - 1, torch.zeros(rows, 2)], 1)

    def rollout(rows=64, length=40):
        state, seen = start(rows), []
        with torch.no_grad():
            for _ in range(length):
                way, value = net(state)
                push = way.sample()
                after, cost = hover(state, push)
                seen.append((state, push, way.log_prob(push).sum(1), value, -0.2 * cost))
                state = after
            states, pushes, chances, values, rewards = (torch.stack(part) for part in zip(*seen, strict=True))
            following, advantage, advantages = net(state)[1], torch.zeros(rows), []
            for t in reversed(range(length)):
                surprise = rewards[t] + 0.95 * following - values[t]
                advantage = surprise + 0.95 * 0.9 * advantage
                following = values[t]
                advantages.insert(0, advantage)
        advantages = torch.stack(advantages)
        parts = (states, pushes, chances, advantages, advantages + values)
        return [part.flatten(0, 1) for part in parts], rewards.sum(0).mean()

    def one(step):
        (states, pushes, chances, advantages, returns), got = rollout()
        logged = {}
        for _ in range(4):
            for at in torch.randperm(len(states)).chunk(4):
                way, value = net(states[at])
                ratio = (way.log_prob(pushes[at]).sum(1) - chances[at]).exp()
                gain = (advantages[at] - advantages[at].mean()) / (advantages[at].std() + 1e-8)
                policy = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
                value = F.mse_loss(value, returns[at])
                entropy = way.entropy().sum(1).mean()
                loss = policy + 0.5 * value - 0.001 * entropy
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(net.parameters(), 0.5)
                optimizer.step()
                logged = {"loss": loss, "policy_loss": policy, "value_loss": value, "entropy": entropy}
        schedule.step()
        return logged | {"episode_return": got}

    def score():
        """What forty tenths of a second cost by the mean of the policy."""
        state, paid = start(300), 0.0
        with torch.no_grad():
            for _ in range(40):
                state, cost = hover(state, net.policy(state))
                paid += cost.mean()
        return paid

    return tend(folder, net, optimizer, one, 40, score)


class Mouse(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory, self.policy, self.value = nn.GRUCell(5, 32), nn.Linear(32, 3), nn.Linear(32, 1)

    def walk(self, rows, greedy=False):
        """Episodes through a corridor of four steps; a lamp at its entrance tells the side that holds the cheese."""
        side, place, h = torch.randint(2, (rows,)), torch.zeros(rows, dtype=torch.long), torch.zeros(rows, 32)
        awake, seen = torch.ones(rows), []
        for t in range(10):
            lamp = F.one_hot(side, 2).float() * (t == 0)
            view = torch.stack([(place == 4).float(), (place < 4).float(), torch.ones(rows)], 1)
            h = self.memory(torch.cat([lamp, view], 1), h)
            way = torch.distributions.Categorical(logits=self.policy(h))
            action = way.logits.argmax(1) if greedy else way.sample()
            turned, fork = action < 2, place == 4
            cheese = torch.where(action == side, 1.0, -0.5)
            reward = torch.where(fork & turned, cheese, torch.where(fork == turned, -0.02, -0.1)) * awake
            seen.append((way.log_prob(action), way.entropy(), self.value(h)[:, 0], reward, awake))
            place = torch.where(~turned & ~fork, place + 1, place)
            awake = awake * (1 - (fork & turned).float())
        return [torch.stack(part) for part in zip(*seen, strict=True)]


@healthy()
def a_mouse_that_recalls_the_lamp(folder):
    """Advantage actor-critic over whole episodes with a recurrent policy."""
    seeded(3443)
    net = Mouse()
    optimizer = torch.optim.RMSprop(net.parameters(), 2e-3, alpha=0.99, eps=1e-5)

    def loss_of(step):
        chance, entropy, value, reward, awake = net.walk(96)
        ahead, returns = torch.zeros(96), []
        for t in reversed(range(10)):
            ahead = reward[t] + 0.97 * ahead
            returns.insert(0, ahead)
        gap = (torch.stack(returns) - value) * awake
        n = awake.sum()
        policy, error, spread = -(chance * gap.detach()).sum() / n, gap.square().sum() / n, (entropy * awake).sum() / n
        logged = {"policy_loss": policy, "value_loss": error, "entropy": spread, "reward": reward.sum(0).mean()}
        return policy + 0.5 * error - 0.02 * spread, logged

    def score():
        with torch.no_grad():
            return 1 - float(net.walk(400, greedy=True)[3].sum(0).mean())

    return fit(folder, net, optimizer, loss_of, 320, score=score, before_step=clipped(net, 0.5))
