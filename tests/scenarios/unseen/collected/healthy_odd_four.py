"""Returns: policies, values, mutations, a model of the world, flows of chances."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.distributions import Normal
from torch.nn import functional as F
from unseen import Outcome, dense, fit, healthy, seeded
from unseen.tasks import tend

import gradwatch

# ---------------------------------------------------------------------------------------------------- policy and value


def eddy(state, push):
    """A raft `[x, y, vx, vy]` in water that turns; the new state and what it is worth."""
    place, speed = state[:, :2], state[:, 2:]
    water = torch.stack([-place[:, 1], place[:, 0]], 1) * 0.8
    speed = speed + 0.1 * (1.5 * push.clamp(-1, 1) - 0.5 * (speed - water))
    place = (place + 0.1 * speed).clamp(-3, 3)
    return torch.cat([place, speed], 1), -place.square().sum(1) - 0.05 * push.square().sum(1)


@healthy()
def raft_held_in_an_eddy(folder):
    """Proximal policy optimisation with generalised advantages on 32 rafts at once."""
    seeded(3117)
    net = nn.ModuleDict({"policy": dense(4, 64, 64, 2, act=nn.Tanh), "value": dense(4, 64, 64, 1, act=nn.Tanh)})
    net["spread"] = nn.ParameterList([torch.full((2,), -0.5)])
    for part, gain in (("policy", 0.01), ("value", 1.0)):
        for layer in net[part]:
            if isinstance(layer, nn.Linear):
                nn.init.orthogonal_(layer.weight, gain if layer is net[part][-1] else 2**0.5)
                nn.init.zeros_(layer.bias)
    updates, long, rafts = 36, 40, 32
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, eps=1e-5)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=updates)
    state = torch.cat([3 * torch.rand(rafts, 2) - 1.5, torch.zeros(rafts, 2)], 1)
    age = torch.randint(long, (rafts,))

    def way(s):
        return Normal(net["policy"](s), net["spread"][0].exp())

    @torch.no_grad()
    def rolled():
        nonlocal state, age
        kept = []
        for _ in range(long):
            push = way(state).sample()
            after, worth = eddy(state, push)
            value, later = net["value"](state)[:, 0], net["value"](after)[:, 0]
            age = age + 1
            done = age >= 60
            kept.append((state, push, way(state).log_prob(push).sum(1), value, later, 0.1 * worth, done))
            fresh = torch.cat([3 * torch.rand(rafts, 2) - 1.5, torch.zeros(rafts, 2)], 1)
            state, age = torch.where(done[:, None], fresh, after), torch.where(done, 0, age)
        states, pushes, logs, values, later, worth, done = (torch.stack(part) for part in zip(*kept, strict=True))
        gap, running = worth + 0.97 * later - values, torch.zeros(rafts)
        advantage = torch.zeros_like(gap)
        for t in reversed(range(long)):
            running = advantage[t] = gap[t] + 0.97 * 0.95 * running * ~done[t]
        parts = states, pushes, logs, advantage, advantage + values
        return [part.flatten(0, 1) for part in parts], float(10 * worth.mean())

    @torch.no_grad()
    def score():
        s, total = torch.cat([3 * torch.rand(400, 2) - 1.5, torch.zeros(400, 2)], 1), 0.0
        for _ in range(60):
            s, worth = eddy(s, net["policy"](s))
            total -= float(worth.mean())
        return total

    first = score()
    watch = gradwatch.watch(net, optimizer, log=None, dir=folder, verbose=False)
    with watch:
        for _ in range(updates):
            rows, worth = rolled()
            for _ in range(4):
                for at in torch.randperm(long * rafts).split(320):
                    s, push, old, advantage, wanted = (part[at] for part in rows)
                    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                    now = way(s)
                    ratio = (now.log_prob(push).sum(1) - old).exp()
                    gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
                    value = F.mse_loss(net["value"](s)[:, 0], wanted)
                    loss = -gain + 0.5 * value - 0.001 * now.entropy().sum(1).mean()
                    optimizer.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(net.parameters(), 0.5)
                    optimizer.step()
                    watch.log(loss=loss, policy_loss=-gain, value_loss=value, reward=worth)
            schedule.step()
    return Outcome(gradwatch.open_history(watch.dir), first, score())


@healthy()
def parcels_through_a_maze_of_lifts(folder):
    """Double Q-learning from a memory, with a target that is copied now and then."""
    seeded(3118)
    side, walls = 6, {(1, 1), (1, 2), (3, 3), (3, 4), (4, 1), (2, 4)}
    cells = torch.tensor([(a, b) for a in range(side) for b in range(side) if (a, b) not in walls and (a, b) != (5, 5)])
    blocked = torch.zeros(side, side, dtype=torch.bool)
    blocked[tuple(torch.tensor(sorted(walls)).T)] = True
    ways = torch.tensor([[0, 1], [1, 0], [0, -1], [-1, 0]])
    net = dense(2 * side, 96, 96, 4)
    target = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.RMSprop(net.parameters(), lr=5e-4, alpha=0.95, eps=1e-5)

    def seen(at):
        return F.one_hot(at, side).flatten(1).float()

    def moved(at, way):
        there = (at + ways[way]).clamp(0, side - 1)
        there = torch.where(blocked[there[:, 0], there[:, 1]][:, None], at, there)
        done = (there == side - 1).all(1)
        return there, done.float() - 0.02, done

    def start(rows):
        return cells[torch.randint(len(cells), (rows,))]

    at, age, memory = start(16), torch.zeros(16), []

    @torch.no_grad()
    def walk(step):
        nonlocal at, age
        best = net(seen(at)).argmax(1)
        way = torch.where(torch.rand(16) < max(0.05, 1 - step / 400), torch.randint(4, (16,)), best)
        there, worth, done = moved(at, way)
        memory.append((at, way, there, worth, done.float()))
        age = age + 1
        over = done | (age >= 40)
        at, age = torch.where(over[:, None], start(16), there), torch.where(over, 0.0, age)

    for _ in range(30):
        walk(0)

    def loss_of(step):
        walk(step)
        if step % 100 == 0:
            target.load_state_dict(net.state_dict())
        picked = torch.randint(len(memory), (8,)).tolist()
        was, way, there, worth, done = (torch.cat(part) for part in zip(*(memory[i] for i in picked), strict=True))
        with torch.no_grad():
            best = net(seen(there)).argmax(1, keepdim=True)
            wanted = worth + 0.95 * (1 - done) * target(seen(there)).gather(1, best)[:, 0]
        value = net(seen(was)).gather(1, way[:, None])[:, 0]
        return F.smooth_l1_loss(value, wanted), {"mean_q": value.mean()}

    @torch.no_grad()
    def score():
        place, steps = cells, torch.zeros(len(cells))
        away = torch.ones(len(cells))
        for _ in range(40):
            place, _, done = moved(place, net(seen(place)).argmax(1))
            steps, away = steps + away, away * (1 - done.float())
        return float(steps.mean())

    return fit(folder, net, optimizer, loss_of, 1000, score=score)


@healthy()
def oven_of_a_glass_blower(folder):
    """Soft actor and critics with a temperature of their own; one watch over the three optimizers."""
    seeded(3119)
    actor, log_heat = dense(2, 64, 64, 2), nn.Parameter(torch.tensor(-1.0))
    critics = nn.ModuleList(dense(3, 64, 64, 1) for _ in range(2))
    slow = copy.deepcopy(critics).requires_grad_(False)
    net = nn.ModuleDict({"actor": actor, "critics": critics, "heat": nn.ParameterList([log_heat])})
    of_actor, of_critics = (torch.optim.Adam(part.parameters(), lr=2e-3) for part in (actor, critics))
    of_heat = torch.optim.Adam([log_heat], lr=2e-3)

    def oven(state, fuel):
        warm, trend = state[:, 0], state[:, 1]
        trend = 0.85 * trend + 0.25 * fuel[:, 0] - 0.05 * warm
        warm = (warm + 0.3 * trend).clamp(-3, 3)
        return torch.stack([warm, trend], 1), -warm.square() - 0.05 * fuel[:, 0].square()

    def start(rows):
        return torch.stack([4 * torch.rand(rows) - 2, 0.5 * torch.randn(rows)], 1)

    def acted(s):
        middle, spread = actor(s).chunk(2, 1)
        way = Normal(middle, spread.clamp(-4, 1).exp())
        raw = way.rsample()
        logarithm = (way.log_prob(raw) - 2 * (math.log(2) - raw - F.softplus(-2 * raw))).sum(1)
        return raw.tanh(), logarithm

    def worst(of, s, a):
        return torch.minimum(*(critic(torch.cat([s, a], 1))[:, 0] for critic in of))

    state, age, memory = start(8), torch.zeros(8), []

    @torch.no_grad()
    def live():
        nonlocal state, age
        fuel = acted(state)[0]
        after, worth = oven(state, fuel)
        memory.append((state, fuel, after, worth))
        age = age + 1
        state, age = torch.where((age >= 30)[:, None], start(8), after), torch.where(age >= 30, 0.0, age)

    for _ in range(50):
        live()

    def one(step):
        live()
        picked = torch.randint(len(memory), (16,)).tolist()
        s, a, after, worth = (torch.cat(part) for part in zip(*(memory[i] for i in picked), strict=True))
        heat = log_heat.detach().exp()
        with torch.no_grad():
            then, logarithm = acted(after)
            wanted = worth + 0.93 * (worst(slow, after, then) - heat * logarithm)
        of_critics.zero_grad()
        critic_loss = sum(F.mse_loss(critic(torch.cat([s, a], 1))[:, 0], wanted) for critic in critics)
        critic_loss.backward()
        of_critics.step()
        critics.requires_grad_(False)
        of_actor.zero_grad()
        a, logarithm = acted(s)
        actor_loss = (heat * logarithm - worst(critics, s, a)).mean()
        actor_loss.backward()
        of_actor.step()
        critics.requires_grad_(True)
        of_heat.zero_grad()
        (-log_heat * (logarithm.detach() - 1.0).mean()).backward()
        of_heat.step()
        with torch.no_grad():
            for kept, p in zip(slow.parameters(), critics.parameters(), strict=True):
                kept.lerp_(p, 0.01)
        return {"critic_loss": critic_loss, "actor_loss": actor_loss, "alpha": heat, "reward": worth.mean()}

    @torch.no_grad()
    def score():
        s, total = start(400), 0.0
        for _ in range(30):
            s, worth = oven(s, actor(s)[:, :1].tanh())
            total -= float(worth.mean())
        return total

    return tend(folder, net, [of_critics, of_actor, of_heat], one, 450, score)
