"""Healthy trainings that learn from what they earn: a double Q network, twin critics, clipped policies."""

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


def blown(state, action):
    """The next flame and what is earned: shutters are moved by -1, 0 or 1 while the wind wanders."""
    height, wind = state[:, 0], state[:, 1]
    height = height + 0.3 * (action - 1) + 0.2 * wind + 0.05 * torch.randn_like(height)
    wind = 0.9 * wind + 0.3 * torch.randn_like(wind)
    return torch.stack([height.clamp(-3, 3), wind], 1), 1 - height.square().clamp(max=1)


@healthy()
def a_lantern_kept_alight_in_a_gale(folder):
    seeded(3537)
    net = dense(2, 64, 64, 3)
    target = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    states, memory, gamma = torch.randn(16, 2), [], 0.95

    def act(epsilon):
        nonlocal states
        with torch.no_grad():
            best = net(states).argmax(1)
        action = torch.where(torch.rand(16) < epsilon, torch.randint(3, (16,)), best)
        after, earned = blown(states, action)
        memory.append((states, action, after, earned))
        del memory[:-400]
        states = torch.where(torch.rand(16, 1) < 0.03, torch.randn(16, 2), after)

    def sample():
        rows = [memory[i] for i in torch.randint(len(memory), (12,)).tolist()]
        return (torch.cat(column) for column in zip(*rows, strict=True))

    def one(step):
        epsilon = max(0.05, 1 - step / 300)
        act(epsilon)
        before, action, after, earned = sample()
        with torch.no_grad():
            best = net(after).argmax(1, keepdim=True)
            wanted = earned + gamma * target(after).gather(1, best)[:, 0]
        value = net(before).gather(1, action[:, None])[:, 0]
        loss = F.smooth_l1_loss(value, wanted)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimizer.step()
        if step % 50 == 49:
            target.load_state_dict(net.state_dict())
        return {"loss": loss, "mean_q": value.mean().item(), "epsilon": epsilon, "reward": earned.mean().item()}

    @torch.no_grad()
    def score():
        at, total = torch.randn(256, 2), 0.0
        for _ in range(30):
            at, earned = blown(at, net(at).argmax(1))
            total += float((1 - earned).mean())
        return total / 30

    for _ in range(20):
        act(1.0)
    return tend(folder, net, optimizer, one, 600, score)


def rowed(state, stroke):
    """The next place and speed of a skiff that wants to be at the origin, the current there, and what is earned."""
    place, speed, current = state[:, :2], state[:, 2:4], state[:, 4:]
    speed = 0.8 * speed + 0.25 * stroke
    place = (place + 0.4 * speed + 0.1 * torch.cat([current, torch.zeros_like(current)], 1)).clamp(-2, 2)
    earned = -place.square().sum(1) - 0.05 * stroke.square().sum(1)
    return torch.cat([place, speed, current], 1), 0.2 * earned


def moored(rows):
    return torch.cat([2 * torch.rand(rows, 2) - 1, torch.zeros(rows, 2), torch.rand(rows, 1) - 0.5], 1)


@healthy()
def a_skiff_rowed_across_a_current(folder):
    seeded(3538)
    actor = nn.Sequential(dense(5, 48, 48, 2), nn.Tanh())
    critics = nn.ModuleList(dense(7, 64, 64, 1) for _ in range(2))
    old_actor, old_critics = (copy.deepcopy(net).requires_grad_(False) for net in (actor, critics))
    of_actor = torch.optim.Adam(actor.parameters(), lr=1e-3)
    of_critics = torch.optim.Adam(critics.parameters(), lr=1e-3)
    states, memory = moored(32), []

    def explore(step):
        nonlocal states
        with torch.no_grad():
            stroke = actor(states) + 0.2 * torch.randn(32, 2) if step >= 0 else 2 * torch.rand(32, 2) - 1
        stroke = stroke.clamp(-1, 1)
        after, earned = rowed(states, stroke)
        memory.append((states, stroke, after, earned))
        del memory[:-500]
        states = torch.where(torch.rand(32, 1) < 0.04, moored(32), after)

    def q(nets, state, stroke):
        return [net(torch.cat([state, stroke], 1))[:, 0] for net in nets]

    @torch.no_grad()
    def score():
        at, total = moored(256), 0.0
        for _ in range(30):
            at, earned = rowed(at, actor(at))
            total -= float(earned.mean())
        return total

    for _ in range(30):
        explore(-1)
    first = score()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(actor, of_actor)}
    w_critics = gradwatch.watch(critics, of_critics, name="critics", **options)
    w_actor = gradwatch.watch(actor, of_actor, name="actor", run=w_critics, **options)
    with w_critics, w_actor:
        for step in range(700):
            explore(step)
            rows = [memory[i] for i in torch.randint(len(memory), (4,)).tolist()]
            state, stroke, after, earned = (torch.cat(column) for column in zip(*rows, strict=True))
            with torch.no_grad():
                noise = (0.2 * torch.randn_like(stroke)).clamp(-0.5, 0.5)
                smaller = torch.minimum(*q(old_critics, after, (old_actor(after) + noise).clamp(-1, 1)))
                wanted = earned + 0.95 * smaller
            found = q(critics, state, stroke)
            loss = sum(F.mse_loss(value, wanted) for value in found)
            of_critics.zero_grad()
            loss.backward()
            of_critics.step()
            w_critics.log(loss=loss, q=found[0].mean().item(), target_q=wanted.mean().item())
            if step % 2:
                critics.requires_grad_(False)
                loss = -q(critics, state, actor(state))[0].mean()
                of_actor.zero_grad()
                loss.backward()
                of_actor.step()
                critics.requires_grad_(True)
                w_actor.log(loss=loss, reward=earned.mean().item())
                with torch.no_grad():
                    for old, new in ((old_actor, actor), (old_critics, critics)):
                        for a, b in zip(old.parameters(), new.parameters(), strict=True):
                            a.lerp_(b, 0.01)
    return Outcome(gradwatch.open_history(w_critics.dir.parent), first, score())


def tipped(state, push):
    """A stick that stands on a cart which is pushed left or right; whether it fell."""
    x, v, angle, turn = state.unbind(1)
    sine, cosine = angle.sin(), angle.cos()
    pull = (20 * push - 10 + 0.05 * turn.square() * sine) / 1.1
    bend = (9.8 * sine - cosine * pull) / (0.5 * (4 / 3 - 0.1 * cosine.square() / 1.1))
    drift = pull - 0.05 * bend * cosine / 1.1
    after = torch.stack([x + 0.02 * v, v + 0.02 * drift, angle + 0.02 * turn, turn + 0.02 * bend], 1)
    return after, (after[:, 0].abs() > 2.4) | (after[:, 2].abs() > 0.21)


def orthogonal(net, last):
    layers = [layer for layer in net if isinstance(layer, nn.Linear)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight, last if layer is layers[-1] else math.sqrt(2))
        nn.init.zeros_(layer.bias)
    return net


@healthy()
def a_walking_stick_upright_on_a_trolley(folder):
    seeded(3539)
    net = nn.ModuleDict(
        {
            "policy": orthogonal(dense(4, 64, 64, 2, act=nn.Tanh), 0.01),
            "value": orthogonal(dense(4, 64, 64, 1, act=nn.Tanh), 1.0),
        }
    )
    total, envs, length, gamma, lam = 640, 16, 64, 0.98, 0.95
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, eps=1e-5)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total)
    states, falls = 0.1 * torch.rand(envs, 4) - 0.05, 0.0

    @torch.no_grad()
    def collect():
        nonlocal states, falls
        seen, acts, chances, fallen, values = [], [], [], [], [net["value"](states)[:, 0]]
        for _ in range(length):
            policy = torch.distributions.Categorical(logits=net["policy"](states))
            push = policy.sample()
            seen.append(states), acts.append(push), chances.append(policy.log_prob(push))
            after, fell = tipped(states, push)
            states = torch.where(fell[:, None], 0.1 * torch.rand(envs, 4) - 0.05, after)
            fallen.append(fell.float()), values.append(net["value"](states)[:, 0])
        gain, gains = torch.zeros(envs), []
        for t in reversed(range(length)):
            left = 1 - fallen[t]
            delta = 0.05 * left + gamma * left * values[t + 1] - values[t]
            gain = delta + gamma * lam * left * gain
            gains.insert(0, gain)
        falls = float(torch.stack(fallen).mean())
        gains = torch.cat(gains)
        return torch.cat(seen), torch.cat(acts), torch.cat(chances), gains, gains + torch.cat(values[:-1])

    def minibatches():
        while True:
            batch = collect()
            for _ in range(4):
                for rows in torch.randperm(envs * length).split(256):
                    yield [column[rows] for column in batch]

    batches = minibatches()

    def one(step):
        state, push, chance, gain, wanted = next(batches)
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        policy = torch.distributions.Categorical(logits=net["policy"](state))
        change = policy.log_prob(push) - chance
        ratio = change.exp()
        of_policy = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        of_value = F.mse_loss(net["value"](state)[:, 0], wanted)
        entropy = policy.entropy().mean()
        loss = of_policy + 0.5 * of_value - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        kl = float((ratio.detach() - 1 - change.detach()).mean())
        terms = {"policy_loss": of_policy.item(), "value_loss": of_value.item(), "entropy": entropy.item()}
        return {"loss": loss, **terms, "approx_kl": kl, "falls_per_step": falls}

    @torch.no_grad()
    def score():
        at, alive, lasted = 0.1 * torch.rand(64, 4) - 0.05, torch.ones(64), 0.0
        for _ in range(200):
            at, fell = tipped(at, torch.distributions.Categorical(logits=net["policy"](at)).sample())
            alive = alive * (1 - fell.float())
            lasted += float(alive.mean())
        return -lasted

    return tend(folder, net, optimizer, one, total, score)
