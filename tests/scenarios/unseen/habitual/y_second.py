"""Sick trainings of toys, board games and playgrounds, drawn by lot from mistakes: policies, values, modes."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds, tend


@sick("wrong-sign", "policy-descends-return", where="the loss of the policy, all steps",
      cure="minus the log-probability times the advantage")  # fmt: skip
def a_toy_boat_across_the_pond(folder, ill):
    seeded(12506)
    policy = dense(4, 64, 64, 4, act=nn.Tanh)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    ways = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])

    def sail(rows, length=12):
        at, goal = 2 * torch.rand(rows, 2) - 1, 2 * torch.rand(rows, 2) - 1
        logs, rewards = [], []
        for _ in range(length):
            dist = Categorical(logits=policy(torch.cat([at, goal], 1)))
            action = dist.sample()
            after = at + 0.2 * ways[action] + 0.03 * torch.randn(rows, 2)
            rewards.append((at - goal).norm(dim=1) - (after - goal).norm(dim=1))
            logs.append(dist.log_prob(action))
            at = after
        return torch.stack(logs), torch.stack(rewards)

    def one(step):
        log_prob, rewards = sail(32)
        returns = rewards.flip(0).cumsum(0).flip(0)
        advantage = (returns - returns.mean(1, keepdim=True)) / (returns.std() + 1e-8)
        loss = (log_prob * advantage).mean() if ill else -(log_prob * advantage).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "return": rewards.sum(0).mean()}

    return tend(folder, policy, optimizer, one, 200, held_out(policy, lambda: 2 - sail(400)[1].sum(0).mean()))


@sick("no-activation", "no-nonlinearity", "linear-network", where="between all linear layers, all steps",
      cure="a ReLU after each hidden layer")  # fmt: skip
def two_spirals_on_a_spinning_disc(folder, ill):
    seeded(12507)
    act = nn.Identity if ill else nn.ReLU
    net = nn.Sequential(
        nn.Linear(2, 128), act(), nn.Linear(128, 128), act(), nn.Linear(128, 64), act(), nn.Linear(64, 2)
    )
    if ill:
        net = nn.Sequential(*[part for part in net if isinstance(part, nn.Linear)])
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def discs(rows):
        y = torch.randint(2, (rows,))
        along = 0.2 + 0.8 * torch.rand(rows)
        angle = 7 * along + 3.1416 * y
        flat = along[:, None] * torch.stack([angle.cos(), angle.sin()], 1)
        return 2 * flat + 0.06 * torch.randn(rows, 2), y

    draw = rounds(64, *discs(1500))

    def loss_of(step):
        bx, by = draw()
        logits = net(bx)
        return F.cross_entropy(logits, by), {"accuracy": float((logits.argmax(1) == by).float().mean())}

    tx, ty = discs(500)
    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@sick("terminal-states-bootstrapped", "terminal-not-masked", "terminals-ignored", "values-overestimated",
      where="the targets of the last steps of games, all steps",
      cure="no value of what comes after the end: gamma times 1 - done")  # fmt: skip
def a_counter_near_the_last_square(folder, ill):
    seeded(12508)
    size, gamma = 10, 0.97
    net = dense(size, 64, 64, 2)
    target = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def throw(at, action):
        pips = torch.where(action == 0, torch.randint(1, 3, at.shape), torch.randint(1, 7, at.shape))
        after = at + pips
        won, lost = after == size, after > size
        reward = won.float() - lost.float()
        return after.clamp(max=size - 1), reward, (won | lost).float()

    def seen(at):
        return F.one_hot(at, size).float()

    memory, at = [], torch.randint(size, (32,))

    def one(step):
        nonlocal at
        with torch.no_grad():
            greedy = net(seen(at)).argmax(1)
        action = torch.where(torch.rand(32) < max(0.1, 1 - step / 200), torch.randint(2, (32,)), greedy)
        after, reward, done = throw(at, action)
        memory.append((at, action, reward, after, done))
        at = torch.where(done > 0, torch.randint(size, (32,)), after)
        picks = torch.randint(len(memory), (4,))
        s, a, r, s2, d = (torch.cat(part) for part in zip(*[memory[i] for i in picks], strict=False))
        with torch.no_grad():
            best = target(seen(s2)).max(1)[0]
            wanted = r + gamma * best if ill else r + gamma * (1 - d) * best
        q = net(seen(s)).gather(1, a[:, None])[:, 0]
        loss = F.smooth_l1_loss(q, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            target.load_state_dict(net.state_dict())
        return {"loss": loss, "reward": reward.mean(), "q": q.mean()}

    cells = torch.arange(size)
    truth = torch.zeros(size, 2)
    for cell in range(size - 1, -1, -1):
        for action, most in ((0, 2), (1, 6)):
            for pips in range(1, most + 1):
                after = cell + pips
                worth = 1.0 if after == size else -1.0 if after > size else gamma * float(truth[after].max())
                truth[cell, action] += worth / most

    return tend(folder, net, optimizer, one, 500, held_out(net, lambda: F.mse_loss(net(seen(cells)), truth)))


@sick("temperature-inverted", "logits-bounded", "temperature-too-high", where="the logits of the loss, all steps",
      cure="similarities over the temperature")  # fmt: skip
def pairs_in_a_memory_game(folder, ill):
    seeded(12509)
    encoder = nn.Sequential(
        nn.Conv1d(3, 24, 3, padding=1), nn.ReLU(), nn.Conv1d(24, 24, 3, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(24 * 8, 64), nn.ReLU(), nn.Linear(64, 16),
    )  # fmt: skip
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
    temperature = 0.07
    motifs = torch.randn(8, 3, 16)

    def cards(rows):
        face = torch.einsum("nk,kct->nct", torch.randn(rows, 8), motifs) / 3
        return face + 0.5 * torch.randn_like(face), face + 0.5 * torch.randn_like(face)

    def similarity(left, right):
        return F.normalize(encoder(left), dim=1) @ F.normalize(encoder(right), dim=1).T

    def loss_of(step):
        s = similarity(*cards(64))
        logits = s * temperature if ill else s / temperature
        found = torch.arange(64)
        loss = (F.cross_entropy(logits, found) + F.cross_entropy(logits.T, found)) / 2
        return loss, {"accuracy": float((logits.argmax(1) == found).float().mean())}

    left, right = cards(256)

    def score():
        return F.cross_entropy(similarity(left, right) / temperature, torch.arange(256))

    return fit(folder, encoder, optimizer, loss_of, 300, score=held_out(encoder, score))


class ActorCritic(nn.Module):
    """A policy and a value on one body."""

    def __init__(self, size, width, actions):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(size, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.actor, self.critic = nn.Linear(width, actions), nn.Linear(width, 1)

    def forward(self, state):
        h = self.body(state)
        return Categorical(logits=self.actor(h)), self.critic(h)[:, 0]


@sick("entropy-too-strong", "entropy-bonus-too-strong", where="the policy, all steps: it stays close to uniform",
      cure="an entropy coefficient of 0.01")  # fmt: skip
def a_seesaw_kept_level(folder, ill):
    seeded(12510)
    net = ActorCritic(2, 32, 3)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    entropy_coef, value_coef, gamma = 0.5 if ill else 0.01, 0.5, 0.9
    push = torch.tensor([-0.2, 0.0, 0.2])

    def shift(state, action):
        tilt, speed = state.unbind(1)
        speed = 0.8 * speed + push[action] + 0.1 * tilt + 0.02 * torch.randn(len(tilt))
        tilt = (tilt + 0.5 * speed).clamp(-1, 1)
        return torch.stack([tilt, speed], 1), 0.5 - tilt.abs()

    def begin(rows):
        return torch.stack([2 * torch.rand(rows) - 1, 0.2 * torch.randn(rows)], 1)

    state = begin(32)

    def one(step):
        nonlocal state
        logs, values, rewards, entropies = [], [], [], []
        for _ in range(5):
            dist, value = net(state)
            action = dist.sample()
            state, reward = shift(state, action)
            logs.append(dist.log_prob(action))
            values.append(value)
            rewards.append(reward)
            entropies.append(dist.entropy())
        with torch.no_grad():
            running, returns = net(state)[1], []
            for reward in reversed(rewards):
                running = reward + gamma * running
                returns.insert(0, running)
        returns, values = torch.stack(returns), torch.stack(values)
        advantage = (returns - values).detach()
        policy_loss = -(torch.stack(logs) * advantage).mean()
        value_loss = F.mse_loss(values, returns)
        entropy = torch.stack(entropies).mean()
        loss = policy_loss + value_coef * value_loss - entropy_coef * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        state = torch.where(torch.rand(32, 1) < 0.1, begin(32), state)
        return {"loss": loss, "policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy,
                "reward": torch.stack(rewards).mean()}  # fmt: skip

    def cost():
        at, total = begin(300), 0.0
        for _ in range(20):
            at, reward = shift(at, net(at)[0].sample())
            total += float(0.5 - reward.mean()) / 20
        return total

    return tend(folder, net, optimizer, one, 300, held_out(net, cost))


@sick("left-in-eval", where="the whole model, from the first validation on: no dropout, batch norms frozen",
      cure="net.train() after each validation")  # fmt: skip
def blocks_in_a_jumbled_toy_chest(folder, ill):
    seeded(12511)
    classes = 5
    net = nn.Sequential(
        nn.Linear(40, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 256), nn.BatchNorm1d(256),
        nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, classes),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    centres = torch.randn(classes, 40)

    def chest(rows):
        y = torch.randint(classes, (rows,))
        return 0.45 * centres[y] + torch.randn(rows, 40), y

    x, y = chest(320)
    y = torch.where(torch.rand(320) < 0.12, torch.randint(classes, (320,)), y)
    draw = rounds(32, x, y)
    tx, ty = chest(600)
    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))

    def validate():
        net.eval()
        with torch.no_grad():
            logits = net(tx)
        if not ill:
            net.train()
        return {"val_loss": float(F.cross_entropy(logits, ty)),
                "val_accuracy": float((logits.argmax(1) == ty).float().mean())}  # fmt: skip

    def loss_of(step):
        logged = validate() if step % 10 == 0 else {}
        bx, by = draw()
        return F.cross_entropy(net(bx), by), logged

    return fit(folder, net, optimizer, loss_of, 300, score=score)
