"""Sick trainings of clocks, looms and weavers, drawn by lot from a list of mistakes: pairs, returns, rates."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, now_and_then, rounds, tend


class Towers(nn.Module):
    """Embeddings of length one for swatches and for what is written of them."""

    def __init__(self, words, width, size):
        super().__init__()
        self.swatch = nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten(),
            nn.Linear(32 * 9, size),
        )  # fmt: skip
        self.word = nn.EmbeddingBag(words, width, mode="mean")
        self.note = dense(width, width, size)

    def forward(self, swatch, note):
        return F.normalize(self.swatch(swatch), dim=1), F.normalize(self.note(self.word(note)), dim=1)


@sick("temperature-too-high", "logit-scale-too-small", "logits-bounded",
      where="the similarities that the loss is given, all steps", cure="similarities over 0.1")  # fmt: skip
def swatches_beside_the_weavers_notes(folder, ill):
    seeded(12706)
    words = 40
    net = Towers(words, 48, 24)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    temperature = 10.0 if ill else 0.1
    look = torch.randn(words, 144) * 0.5

    def pairs(rows):
        note = torch.randint(words, (rows, 3))
        return (look[note].sum(1) + 0.8 * torch.randn(rows, 144)).view(rows, 1, 12, 12), note

    def similar(swatch, note):
        a, b = net(swatch, note)
        return a @ b.T

    draw = rounds(48, *pairs(2400))
    test = pairs(600)
    own = torch.arange(600)

    def wrong():
        found = similar(*test)
        return 1 - ((found.argmax(1) == own).float().mean() + (found.argmax(0) == own).float().mean()) / 2

    validate = now_and_then(net, 50, lambda: {"val_accuracy": 1 - wrong()})

    def loss_of(step):
        logits = similar(*draw()) / temperature
        labels = torch.arange(len(logits))
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2, validate(step)

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, wrong))


@sick("returns-not-normalised", "no-baseline", where="the policy's loss, all steps: large returns, all above zero",
      cure="returns less their mean, over their spread")  # fmt: skip
def weaver_minding_three_looms(folder, ill):
    seeded(12712)
    net = dense(3, 48, 48, 3)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    used = torch.tensor([0.3, 0.2, 0.12])

    def mind(yarn, loom):
        yarn = torch.where(F.one_hot(loom, 3) > 0, 1.0, yarn)
        yarn = (yarn - used * (0.5 + torch.rand(len(yarn), 3))).clamp(min=0)
        return yarn, 10 * (yarn > 0).float().sum(1)

    def one(step):
        yarn, logs, rewards = torch.rand(8, 3), [], []
        for _ in range(15):
            choice = torch.distributions.Categorical(logits=net(2 * yarn - 1))
            loom = choice.sample()
            yarn, reward = mind(yarn, loom)
            logs.append(choice.log_prob(loom))
            rewards.append(reward)
        returns, coming = [], torch.zeros(8)
        for reward in reversed(rewards):
            coming = reward + 0.9 * coming
            returns.insert(0, coming)
        returns = torch.stack(returns)
        if not ill:
            returns = (returns - returns.mean(1, keepdim=True)) / (returns.std() + 1e-6)
        loss = -(torch.stack(logs) * returns).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "return": float(torch.stack(rewards).sum(0).mean())}

    def idle():
        yarn, total = torch.rand(400, 3), 0.0
        for _ in range(15):
            yarn, reward = mind(yarn, net(2 * yarn - 1).argmax(1))
            total += (30 - reward).mean() / 15
        return total

    return tend(folder, net, optimizer, one, 200, held_out(net, idle))


@sick("relu-on-the-output", "targets-out-of-range", "outputs-never-negative",
      where="the last operation of the net, all steps", cure="no activation after the last layer")  # fmt: skip
def seconds_gained_by_a_regulator_clock(folder, ill):
    seeded(12708)
    parts = [nn.Linear(7, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)]
    net = nn.Sequential(*parts, nn.ReLU()) if ill else nn.Sequential(*parts)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def days(rows):
        x = torch.randn(rows, 7)
        gain = -0.8 * x[:, 0] + 0.6 * x[:, 1] * x[:, 2] + 0.5 * x[:, 3].sin() - 0.3 * x[:, 4].abs()
        return x, (gain + 0.24 + 0.1 * torch.randn(rows))[:, None]

    draw = rounds(64, *days(2000))
    tx, ty = days(500)
    validate = now_and_then(net, 62, lambda: {"val_loss": F.mse_loss(net(tx), ty)})

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y), validate(step)

    return fit(folder, net, optimizer, loss_of, 372, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


class Keeper(nn.Module):
    """What to do and what it is worth, from one trunk."""

    def __init__(self, width):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.policy, self.value = nn.Linear(width, 3), nn.Linear(width, 1)

    def forward(self, state):
        h = self.trunk(state)
        return self.policy(h), self.value(h)[:, 0]


@sick("value-outweighs-policy", "loss-terms-out-of-balance", "loss-terms-unbalanced", "auxiliary-dominates",
      "rewards-not-normalised", where="the shared trunk and the clip, all steps",
      cure="rewards scaled so that returns are of size 1")  # fmt: skip
def keeper_of_the_cathedral_clock(folder, ill):
    seeded(12709)
    net = Keeper(48)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3, eps=1e-5)
    turn = torch.tensor([-0.15, 0.0, 0.15])
    scale = 1.0 if ill else 0.002

    def begin(rows):
        return torch.stack([2 * torch.rand(rows) - 1, 0.2 * torch.rand(rows) - 0.1, torch.rand(rows) - 0.5], 1)

    def act(state, move):
        error, drift, weather = state.unbind(1)
        error = (error + drift + 0.1 * weather + turn[move] + 0.02 * torch.randn(len(error))).clamp(-2, 2)
        weather = 0.8 * weather + 0.2 * torch.randn(len(error)) * 0.5
        return torch.stack([error, drift, weather], 1), 100 * (1 - error.abs())

    def one(step):
        state, logs, values, rewards, entropies = begin(16), [], [], [], []
        for _ in range(16):
            logits, value = net(state)
            choice = torch.distributions.Categorical(logits=logits)
            move = choice.sample()
            state, reward = act(state, move)
            logs.append(choice.log_prob(move))
            entropies.append(choice.entropy())
            values.append(value)
            rewards.append(reward)
        with torch.no_grad():
            returns, coming = [], net(state)[1]
        for reward in reversed(rewards):
            coming = scale * reward + 0.9 * coming
            returns.insert(0, coming)
        returns, values = torch.stack(returns), torch.stack(values)
        advantage = returns - values.detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy_loss = -(torch.stack(logs) * advantage).mean()
        value_loss = F.mse_loss(values, returns)
        entropy = torch.stack(entropies).mean()
        loss = policy_loss + 0.5 * value_loss - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        reward = float(torch.stack(rewards).sum(0).mean())
        return {"loss": loss, "policy_loss": policy_loss, "value_loss": value_loss, "return": reward}

    def cost():
        state, total = begin(400), 0.0
        for _ in range(16):
            state, reward = act(state, net(state)[0].argmax(1))
            total += (1 - reward / 100).mean()
        return total

    return tend(folder, net, optimizer, one, 200, held_out(net, cost))


class Reader(nn.Module):
    """A small convolutional body and its head."""

    def __init__(self, classes):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(128, classes)

    def forward(self, image):
        return self.head(self.body(image))


@sick("lr-too-high", "update-too-large", where="the pretrained body, from the first steps",
      cure="a rate a hundredth of that")  # fmt: skip
def dials_of_a_second_clockmaker(folder, ill):
    seeded(12710)
    images, shown = load_digits(return_X_y=True)
    order = torch.randperm(len(shown))
    x = torch.tensor(images / 8 - 1, dtype=torch.float32).view(-1, 1, 8, 8)[order]
    y = torch.tensor(shown)[order]
    net = Reader(10)
    before = torch.optim.Adam(net.parameters(), 2e-3)
    earlier = rounds(64, x[:1200], y[:1200])
    for _ in range(250):
        bx, by = earlier()
        before.zero_grad()
        F.cross_entropy(net(bx), by).backward()
        before.step()

    def other(x):
        return -0.7 * x + 0.3 + 0.3 * torch.randn_like(x)

    x = other(x)
    mx, my, tx, ty = x[1200:1400], y[1200:1400], x[1400:], y[1400:]
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-2 if ill else 5e-4, weight_decay=0.01)
    draw = rounds(25, mx, my)

    def measure():
        logits = net(tx)
        return {"val_loss": F.cross_entropy(logits, ty), "val_accuracy": (logits.argmax(1) == ty).float().mean()}

    validate = now_and_then(net, 24, measure)

    def loss_of(step):
        bx, by = draw()
        logits = net(bx)
        accuracy = float((logits.argmax(1) == by).float().mean())
        return F.cross_entropy(logits, by), {"accuracy": accuracy, **validate(step)}

    return fit(folder, net, optimizer, loss_of, 160, score=held_out(net, lambda: measure()["val_loss"]))


class Tension(nn.Module):
    """How a tension goes on, by an LSTM."""

    def __init__(self, width, ahead):
        super().__init__()
        self.memory = nn.LSTM(2, width, batch_first=True)
        self.head = nn.Linear(width, ahead)

    def forward(self, series):
        return self.head(self.memory(series)[0][:, -1])


@sick("schedule-too-short", "scheduler-stepped-per-batch", "schedule-ran-out",
      where="the schedule, from some 60 steps on", cure="a step of the schedule once an epoch")  # fmt: skip
def tension_of_the_yarn_on_the_beam(folder, ill):
    seeded(12711)
    net = Tension(40, 4)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.95)

    def beams(rows, length=24):
        time = torch.arange(float(length + 4)) + 20 * torch.rand(rows, 1)
        pace, load = 0.4 + 0.5 * torch.rand(rows, 1), torch.rand(rows, 1)
        pull = (pace * time).sin() * (0.5 + load) + 0.3 * (2 * pace * time).cos()
        pull = pull + 0.05 * torch.randn(rows, length + 4)
        return torch.stack([pull[:, :length], load.expand(-1, length)], 2), pull[:, length:]

    batches = 25
    draw = rounds(64, *beams(64 * batches))
    tx, ty = beams(400)
    validate = now_and_then(net, batches, lambda: {"val_loss": F.mse_loss(net(tx), ty)})

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y), {"lr": optimizer.param_groups[0]["lr"], **validate(step)}

    def after_step(step):
        if ill or (step + 1) % batches == 0:
            schedule.step()

    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    clip = clipped(net, 1.0)
    return fit(folder, net, optimizer, loss_of, 400, score=score, before_step=clip, after_step=after_step)
