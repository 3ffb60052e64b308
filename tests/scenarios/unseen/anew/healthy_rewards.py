"""Healthy trainings of every day that learn from rewards: an actor with its critic, and values with a replay."""

from __future__ import annotations

import copy

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.anew.healthy import evaluated


class Poles:
    """Gym's CartPole, many at once: `step(action)` tells which fell, or stood for 200 steps; these begin anew."""

    def __init__(self, n):
        self.state, self.age = 0.1 * torch.rand(n, 4) - 0.05, torch.zeros(n)
        self.lengths = []

    def step(self, action):
        x, speed, angle, turn = self.state.T
        part = (20.0 * action - 10 + 0.05 * turn.square() * angle.sin()) / 1.1
        bend = (9.8 * angle.sin() - angle.cos() * part) / (0.5 * (4 / 3 - 0.1 * angle.cos().square() / 1.1))
        push = part - 0.05 * bend * angle.cos() / 1.1
        self.state = torch.stack([x + 0.02 * speed, speed + 0.02 * push, angle + 0.02 * turn, turn + 0.02 * bend], 1)
        self.age += 1
        done = (self.state[:, 0].abs() > 2.4) | (self.state[:, 2].abs() > 0.2095) | (self.age >= 200)
        self.lengths += self.age[done].tolist()
        self.state = torch.where(done[:, None], 0.1 * torch.rand_like(self.state) - 0.05, self.state)
        self.age = self.age * ~done
        return done


@healthy(0.3)
def poles_in_sixteen_environments(folder):
    """A2C: eight steps and what the critic makes of the rest, entropy, RMSprop, a clip of 0.5."""
    seeded(31)
    net = nn.ModuleDict({"actor": dense(4, 64, 64, 2, act=nn.Tanh), "critic": dense(4, 64, 64, 1, act=nn.Tanh)})
    poles = Poles(16)

    def loss_of(step):
        seen = []
        with torch.no_grad():
            for _ in range(8):
                state = poles.state
                action = torch.distributions.Categorical(logits=net["actor"](state)).sample()
                seen.append((state, action, poles.step(action)))
            gain, gains = net["critic"](poles.state)[:, 0], []
            for _, _, done in reversed(seen):
                gain = 1 + 0.99 * gain * ~done
                gains.insert(0, gain)
        state, action = (torch.cat([part[i] for part in seen]) for i in (0, 1))
        gain, value = torch.cat(gains), net["critic"](state)[:, 0]
        advantage = (gain - value).detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy = torch.distributions.Categorical(logits=net["actor"](state))
        of_policy, entropy = -(policy.log_prob(action) * advantage).mean(), policy.entropy().mean()
        of_value = F.mse_loss(value, gain)
        recent = poles.lengths[-30:] or [0.0]
        logged = {"episode_return": sum(recent) / len(recent), "entropy": entropy, "loss_value": of_value}
        return of_policy + 0.5 * of_value - 0.01 * entropy, logged

    def missing():
        held = Poles(32)
        alive = torch.ones(32, dtype=torch.bool)
        stood = torch.zeros(32)
        for _ in range(200):
            stood += alive
            alive = alive & ~held.step(net["actor"](held.state).argmax(1))
        return 200 - stood.mean()

    def clip(step):
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)

    make = optim.RMSprop(net.parameters(), 1e-3, alpha=0.99, eps=1e-5)
    return fit(folder, net, make, loss_of, 380, score=evaluated(net, missing), before_step=clip)


@healthy(0.5)
def home_through_a_gap_by_replayed_steps(folder):
    """DQN on a floor of six by six with a wall: a replay, a copy each twenty steps, Huber's loss, RMSprop.

    The score is the mean length of the greedy ways home, thirty at most.
    """
    seeded(32)
    net = dense(12, 64, 64, 4)
    slow = copy.deepcopy(net).requires_grad_(False)
    ways = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])

    def seen(at):
        return torch.cat([F.one_hot(at[:, 0], 6), F.one_hot(at[:, 1], 6)], 1).float()

    def fresh(n):
        return torch.stack([torch.randint(6, (n,)), torch.randint(3, (n,))], 1)

    def moved(at, action):
        then = (at + ways[action]).clamp(0, 5)
        wall = (then[:, 1] == 3) & (then[:, 0] != 1)
        then = torch.where(wall[:, None], at, then)
        return then, (then == 5).all(1)

    memory, returns = [], []
    now = {"at": fresh(8), "age": torch.zeros(8), "sum": torch.zeros(8)}

    def act(chance):
        at = now["at"]
        with torch.no_grad():
            best = net(seen(at)).argmax(1)
        action = torch.where(torch.rand(8) < chance, torch.randint(4, (8,)), best)
        then, home = moved(at, action)
        reward = torch.where(home, 1.0, -0.02)
        memory.append((at, action, reward, then, home))
        now["sum"], now["age"] = now["sum"] + reward, now["age"] + 1
        over = home | (now["age"] >= 40)
        returns.extend(now["sum"][over].tolist())
        now["at"] = torch.where(over[:, None], fresh(8), then)
        now["sum"], now["age"] = now["sum"] * ~over, now["age"] * ~over

    for _ in range(60):
        act(1.0)

    def loss_of(step):
        act(max(0.1, 1 - step / 500))
        drawn = torch.randint(max(0, len(memory) - 400), len(memory), (8,)).tolist()
        at, action, reward, then, home = (torch.cat(parts) for parts in zip(*(memory[i] for i in drawn), strict=True))
        with torch.no_grad():
            target = reward + 0.95 * slow(seen(then)).amax(1) * ~home
        value = net(seen(at)).gather(1, action[:, None])[:, 0]
        recent = returns[-30:] or [-0.8]
        return F.smooth_l1_loss(value, target), {"episode_return": sum(recent) / len(recent)}

    def copied(step):
        if step % 20 == 19:
            slow.load_state_dict(net.state_dict())

    def length():
        at = torch.cartesian_prod(torch.arange(6), torch.arange(3))
        away, steps = torch.ones(18, dtype=torch.bool), torch.zeros(18)
        for _ in range(30):
            steps += away
            at, home = moved(at, net(seen(at)).argmax(1))
            away = away & ~home
        return steps.mean()

    make = optim.RMSprop(net.parameters(), 1e-3)
    return fit(folder, net, make, loss_of, 800, score=evaluated(net, length), after_step=copied)
