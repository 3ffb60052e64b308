"""Healthy trainings of rivers and ferries with loops of their own."""

from __future__ import annotations

import copy

import torch
from sklearn.datasets import load_breast_cancer
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from unseen import dense, healthy, seeded
from unseen.tasks import held_out, rounds, tend


@healthy()
def a_cable_ferry_called_to_the_landing(folder):
    seeded(11757)
    places, goal, gamma = 9, 8, 0.95
    net = dense(places, 64, 2)
    target = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    memory = []

    def seen(place):
        return F.one_hot(place, places).float()

    def moved(place, way):
        slips = torch.rand(place.shape) < 0.1
        place = (place + torch.where(slips, 1 - way, way) * 2 - 1).clamp(0, goal)
        return place, (place == goal).float() - 0.02

    def journeys(rows):
        place, live, total = torch.zeros(rows, dtype=torch.long), torch.ones(rows), torch.zeros(rows)
        for _ in range(30):
            place, reward = moved(place, net(seen(place)).argmax(1))
            total, live = total + live * reward, live * (place != goal)
        return total.mean()

    returns = [0.0]
    state = {"place": torch.zeros(1, dtype=torch.long), "earned": 0.0, "age": 0}

    def act(share):
        place = state["place"]
        with torch.no_grad():
            way = torch.randint(2, (1,)) if torch.rand(()) < share else net(seen(place)).argmax(1)
        after, reward = moved(place, way)
        memory.append((place, way, reward, after, (after == goal).float()))
        state.update(place=after, earned=state["earned"] + float(reward), age=state["age"] + 1)
        if after == goal or state["age"] == 40:
            returns.append(state["earned"])
            state.update(place=torch.zeros(1, dtype=torch.long), earned=0.0, age=0)

    for _ in range(400):
        act(1.0)

    def one(step):
        for _ in range(4):
            act(max(0.1, 1 - step / 150))
        rows = torch.randint(len(memory), (64,)).tolist()
        place, way, reward, after, done = (torch.cat(column) for column in zip(*(memory[i] for i in rows), strict=True))
        with torch.no_grad():
            asked = reward + gamma * (1 - done) * target(seen(after)).max(1).values
        loss = F.smooth_l1_loss(net(seen(place)).gather(1, way[:, None])[:, 0], asked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            target.load_state_dict(net.state_dict())
        return {"loss": loss, "return": sum(returns[-10:]) / len(returns[-10:])}

    return tend(folder, net, optimizer, one, 350, held_out(net, lambda: 1 - journeys(256)))


class Helm(nn.Module):
    """A policy with a deviation of its own, and a critic apart from it."""

    def __init__(self):
        super().__init__()
        self.actor, self.critic = dense(3, 32, 1, act=nn.Tanh), dense(3, 32, 1, act=nn.Tanh)
        self.log_spread = nn.Parameter(torch.tensor(-0.5))

    def choices(self, seen):
        return torch.distributions.Normal(self.actor(seen)[:, 0], self.log_spread.exp())


@healthy()
def a_raft_held_midstream_in_gusts(folder):
    seeded(11767)
    net = Helm()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    gamma, lam = 0.95, 0.9

    def voyage(rows):
        place, speed, gust = torch.randn(rows), torch.zeros(rows), torch.randn(rows)
        seen, moves, rewards = [], [], []
        for _ in range(20):
            seen.append(torch.stack([place, speed, gust], 1))
            with torch.no_grad():
                moves.append(net.choices(seen[-1]).sample())
            speed = 0.8 * speed + 0.3 * moves[-1].clamp(-2, 2) + 0.15 * gust
            place, gust = (place + 0.5 * speed).clamp(-4, 4), 0.9 * gust + 0.4 * torch.randn(rows)
            rewards.append(-0.1 * place.square() - 0.01 * moves[-1].square())
        seen.append(torch.stack([place, speed, gust], 1))
        return torch.stack(seen), torch.stack(moves), torch.stack(rewards)

    def one(step):
        seen, moves, rewards = voyage(32)
        values = net.critic(seen.flatten(0, 1)).view(seen.shape[:2])
        known, gain, gains = values.detach(), torch.zeros(32), []
        for t in reversed(range(20)):
            gain = rewards[t] + gamma * known[t + 1] - known[t] + gamma * lam * gain
            gains.append(gain)
        gains = torch.stack(gains[::-1])
        choices = net.choices(seen[:-1].flatten(0, 1))
        weight = (gains - gains.mean()) / (gains.std() + 1e-8)
        policy = -(choices.log_prob(moves.flatten()) * weight.flatten()).mean()
        value = F.smooth_l1_loss(values[:-1], gains + known[:-1])
        loss = policy + 0.5 * value - 0.001 * choices.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return {"loss": loss, "return": rewards.sum(0).mean(), "value_loss": value}

    return tend(folder, net, optimizer, one, 250, held_out(net, lambda: -voyage(512)[2].sum(0).mean()))


@healthy()
def passengers_whose_names_stay_unknown(folder):
    seeded(11768)
    table, classes = load_breast_cancer(return_X_y=True)
    order = torch.randperm(len(classes))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(classes, dtype=torch.float32)[order]
    x = ((x - x[:450].mean(0)) / x[:450].std(0)).clamp(-3, 3)
    net = dense(30, 16, 1, act=nn.Tanh)
    optimizer = torch.optim.SGD(net.parameters(), 0.5)
    most, noise = 0.5, 0.6
    draw = rounds(90, x[:450], y[:450])

    def loss_of_one(weights, x, y):
        return F.binary_cross_entropy_with_logits(functional_call(net, weights, (x,))[0], y)

    slopes_of = vmap(grad(loss_of_one), in_dims=(None, 0, 0))

    def one(step):
        x, y = draw()
        slopes = slopes_of({name: p.detach() for name, p in net.named_parameters()}, x, y)
        norms = torch.stack([slope.flatten(1).norm(dim=1) for slope in slopes.values()]).norm(dim=0)
        share = (most / (norms + 1e-6)).clamp(max=1)
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(net(x)[:, 0], y)
        for name, p in net.named_parameters():
            total = torch.einsum("n,n...->...", share, slopes[name])
            p.grad = (total + noise * most * torch.randn_like(p)) / len(x)
        optimizer.step()
        return {"loss": loss}

    test = x[450:], y[450:]
    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(test[0])[:, 0], test[1]))
    return tend(folder, net, optimizer, one, 200, score)
