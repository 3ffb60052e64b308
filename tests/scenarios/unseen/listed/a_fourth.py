"""Healthy: an actor and its critic, triplets, two rates, a reservoir, quantiles, clipping that is meant, a teacher."""

from __future__ import annotations

import copy

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded, waves
from unseen.tasks import clipped, held_out, rounds, tend


@healthy()
def a_punt_kept_in_midstream(folder):
    seeded(10157)
    net = nn.ModuleDict({"actor": dense(2, 32, 3, act=nn.Tanh), "critic": dense(2, 32, 1, act=nn.Tanh)})
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    push = torch.tensor([-0.2, 0.0, 0.2])
    length, gamma, fade = 16, 0.95, 0.9

    def trip(rows):
        state = torch.stack([2 * torch.rand(rows) - 1, torch.zeros(rows)], 1)
        states, actions, rewards = [state], [], []
        for _ in range(length):
            action = torch.distributions.Categorical(logits=net["actor"](state)).sample()
            speed = 0.8 * state[:, 1] + push[action] + 0.05 * torch.randn(rows)
            state = torch.stack([(state[:, 0] + speed).clamp(-2, 2), speed], 1)
            states.append(state)
            actions.append(action)
            rewards.append(-state[:, 0].abs())
        return torch.stack(states), torch.stack(actions), torch.stack(rewards)

    def loss_of(step):
        with torch.no_grad():
            states, actions, rewards = trip(32)
            value = net["critic"](states)[..., 0]
            gap, advantage = torch.zeros(32), torch.zeros_like(rewards)
            for t in reversed(range(length)):
                gap = rewards[t] + gamma * value[t + 1] - value[t] + gamma * fade * gap
                advantage[t] = gap
            aim = advantage + value[:-1]
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy = torch.distributions.Categorical(logits=net["actor"](states[:-1]))
        entropy = policy.entropy().mean()
        policy_loss = -(policy.log_prob(actions) * advantage).mean()
        value_loss = F.mse_loss(net["critic"](states[:-1])[..., 0], aim)
        logged = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, "reward": rewards.mean()}
        return policy_loss + 0.5 * value_loss - 0.01 * entropy, {k: float(v.detach()) for k, v in logged.items()}

    score = held_out(net, lambda: -trip(512)[2].mean())
    return fit(folder, net, optimizer, loss_of, 250, score=score, before_step=clipped(net, 0.5))


@healthy()
def handwriting_of_ten_clerks_apart(folder):
    seeded(10158)
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float() / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    draw = rounds(64, x[:1400], y[:1400])
    net = dense(64, 96, 96, 16, norm=nn.LayerNorm)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)

    def loss_on(x, y):
        far = torch.cdist(F.normalize(net(x), dim=1), F.normalize(net(x), dim=1))
        same = y[:, None] == y
        worst = (far * same).amax(1)
        nearest = far.masked_fill(same, 9).amin(1)
        return F.relu(worst - nearest + 0.3).mean()

    score = held_out(net, lambda: loss_on(x[1400:1600], y[1400:1600]))
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 250, score=score)


@healthy()
def wool_sorted_after_a_new_lamp(folder):
    seeded(10159)
    tints = torch.randn(5, 3)

    def fleeces(rows, tilt):
        y = torch.randint(5, (rows,))
        x = tints[y][:, :, None, None] + 0.8 * torch.randn(rows, 3, 8, 8)
        return x * (1 - tilt * torch.tensor([0.9, 0.2, -0.6])[:, None, None]) + tilt * 0.8, y

    body = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 24, 3, padding=1), nn.GroupNorm(4, 24), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    net = nn.ModuleDict({"body": body, "head": nn.Linear(24, 5)})
    before = torch.optim.Adam(net.parameters(), 3e-3)

    def loss_on(x, y):
        return F.cross_entropy(net["head"](net["body"](x)), y)

    for _ in range(120):
        before.zero_grad()
        loss_on(*fleeces(32, 0)).backward()
        before.step()
    net["head"] = nn.Linear(24, 5)
    optimizer = torch.optim.AdamW([
        {"params": net["body"].parameters(), "lr": 2e-4}, {"params": net["head"].parameters(), "lr": 1e-2},
    ])  # fmt: skip
    test = fleeces(256, 1)
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, lambda step: loss_on(*fleeces(32, 1)), 60, score=score)


class Reservoir(nn.Module):
    """A recurrent net that is drawn once and stays (an echo state), and what is read from it."""

    def __init__(self, size):
        super().__init__()
        self.memory = nn.RNN(1, size, batch_first=True).requires_grad_(False)
        weight = torch.randn(size, size) * (torch.rand(size, size) < 0.1)
        self.memory.weight_hh_l0.copy_(0.9 * weight / torch.linalg.eigvals(weight).abs().max())
        self.memory.weight_ih_l0.uniform_(-0.5, 0.5)
        self.read = nn.Linear(size, 1)

    def forward(self, x):
        return self.read(self.memory(x)[0])


@healthy()
def ripples_in_a_bucket(folder):
    seeded(10160)
    net = Reservoir(120)
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], 5e-3)

    def signal(rows):
        x = torch.rand(rows, 40, 1)
        y = torch.zeros(rows, 40, 1)
        for t in range(2, 40):
            y[:, t] = 0.3 * y[:, t - 1] + 0.1 * y[:, t - 1] * y[:, t - 2] + 1.2 * x[:, t - 1] * x[:, t - 2] + 0.1
        return x, y

    def loss_on(x, y):
        return F.mse_loss(net(x)[:, 10:], y[:, 10:])

    test = signal(128)
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, lambda step: loss_on(*signal(32)), 400, score=score)


@healthy()
def how_late_the_last_bus_is(folder):
    seeded(10161)
    levels = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95])
    net = dense(5, 64, 64, 5, act=nn.SiLU)
    optimizer = torch.optim.RMSprop(net.parameters(), 1e-3)
    student = torch.distributions.StudentT(2.5)

    def trips(rows):
        x = torch.randn(rows, 5)
        return x, 2 + 3 * (x[:, :1] + x[:, 1:2].sin()) + (0.5 * x[:, 2:3]).exp() * student.sample((rows, 1))

    def pinball(x, y):
        gap = y - net(x)
        return torch.maximum(levels * gap, (levels - 1) * gap).mean()

    test = trips(2048)
    score = held_out(net, lambda: pinball(*test))
    return fit(folder, net, optimizer, lambda step: pinball(*trips(64)), 500, score=score)


@healthy()
def proverbs_by_a_steep_slope(folder):
    seeded(10162)
    net = nn.ModuleDict({
        "word": nn.Embedding(15, 40), "memory": nn.LSTM(40, 40, batch_first=True), "drop": nn.Dropout(0.1),
        "head": nn.Linear(40, 15),
    })  # fmt: skip
    for weight in net["head"].parameters():
        nn.init.uniform_(weight, -0.1, 0.1)
    # as for the recurrent language models of old: a rate of ten or more, and a norm of 0.1 for every step
    optimizer = torch.optim.SGD(net.parameters(), 10.0)
    after = torch.stack([torch.randperm(15) for _ in range(4)])

    def lines(rows):
        words, kind = [torch.randint(15, (rows,))], torch.randint(4, (rows,))
        for _ in range(20):
            words.append(after[kind, words[-1]])
        return torch.stack(words, 1)

    def loss_on(text):
        said = net["head"](net["drop"](net["memory"](net["word"](text[:, :-1]))[0]))
        return F.cross_entropy(said.flatten(0, 1), text[:, 1:].flatten())

    test = lines(128)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [200, 260], 0.25)
    return fit(folder, net, optimizer, lambda step: loss_on(lines(32)), 320, schedule=schedule,
               score=held_out(net, lambda: loss_on(test)), before_step=clipped(net, 0.1))  # fmt: skip


@healthy()
def few_labelled_butterflies(folder):
    seeded(10163)
    way = torch.randn(3, 20) / 2

    def wings(rows):
        y, turn = torch.randint(3, (rows,)), 6.2832 * torch.rand(rows)
        flat = torch.stack([turn.cos(), turn.sin()], 1) * (0.6 + 0.7 * y[:, None])
        return torch.cat([flat, 0.1 * torch.randn(rows, 1)], 1) @ way, y

    known, kind = wings(60)
    student = dense(20, 64, 64, 3)
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.Adam(student.parameters(), 2e-3)
    test, truth = wings(1024)

    def one(step):
        free = wings(96)[0]
        with torch.no_grad():
            aim = teacher(free + 0.05 * torch.randn_like(free)).softmax(1)
        label_loss = F.cross_entropy(student(known + 0.05 * torch.randn_like(known)), kind)
        agree = F.mse_loss(student(free + 0.15 * torch.randn_like(free)).softmax(1), aim)
        loss = label_loss + min(1.0, step / 150) * 5 * agree
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mine, theirs in zip(teacher.parameters(), student.parameters(), strict=True):
                mine.lerp_(theirs, 0.02)
        return {"loss": loss, "label_loss": label_loss, "consistency": agree}

    return tend(folder, student, optimizer, one, 400, held_out(teacher, lambda: F.cross_entropy(teacher(test), truth)))


@healthy()
def swell_against_a_harbour_wall(folder):
    seeded(10164)
    draw = waves(256, 5)
    net = dense(5, 80, 80, 1, act=nn.Tanh)
    optimizer = torch.optim.Adagrad(net.parameters(), 0.02)

    def loss_on(x, y):
        return F.huber_loss(net(x), y, delta=0.5)

    test = draw()
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 800, score=score)
