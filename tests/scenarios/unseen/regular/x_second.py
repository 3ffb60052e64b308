"""Sick trainings of forests, foxes and foresters, by lot from listed mistakes: rewards, layers, rates, terms."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds, tend


class Hunter(nn.Module):
    """A policy and values over a common body."""

    def __init__(self, size, width, moves):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(size, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.policy = nn.Linear(width, moves)
        self.value = nn.Linear(width, 1)

    def forward(self, state):
        h = self.body(state)
        return torch.distributions.Categorical(logits=self.policy(h)), self.value(h)[:, 0]


@sick("advantage-not-detached", "policy-loss-trains-critic", "actor-loss-trains-critic", "critic-not-detached",
      where="the values and the common body, all steps",
      cure="advantage.detach() in the loss of the policy")  # fmt: skip
def a_fox_beside_a_running_hare(folder, ill):
    seeded(12406)
    net = Hunter(4, 48, 5)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    ways = torch.tensor([[0.0, 0.0], [0.3, 0.0], [-0.3, 0.0], [0.0, 0.3], [0.0, -0.3]])

    def begin(rows):
        return 2 * torch.rand(rows, 4) - 1

    def act(state, move):
        fox, hare = state[:, :2], state[:, 2:]
        fox = (fox + ways[move]).clamp(-1, 1)
        hare = (hare + 0.1 * torch.randn_like(hare)).clamp(-1, 1)
        return torch.cat([fox, hare], 1), -0.1 * (fox - hare).norm(dim=1)

    state = begin(8)

    def one(step):
        nonlocal state
        log_probs, values, rewards, entropies = [], [], [], []
        for _ in range(5):
            policy, value = net(state)
            move = policy.sample()
            state, reward = act(state, move)
            log_probs.append(policy.log_prob(move))
            values.append(value)
            rewards.append(reward)
            entropies.append(policy.entropy())
        with torch.no_grad():
            following = net(state)[1]
        returns = []
        for reward in reversed(rewards):
            following = reward + 0.8 * following
            returns.insert(0, following)
        state = torch.where(torch.rand(8, 1) < 0.2, begin(8), state)
        advantage = torch.stack(returns) - torch.stack(values)
        weight = advantage if ill else advantage.detach()
        policy_loss = -(torch.stack(log_probs) * weight).mean()
        value_loss = advantage.square().mean()
        entropy = torch.stack(entropies).mean()
        loss = policy_loss + 0.5 * value_loss - 1e-3 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        return {
            "loss": loss, "policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy,
            "reward": torch.stack(rewards).mean(),
        }  # fmt: skip

    def cost():
        now, total = begin(300), 0.0
        for _ in range(12):
            now, reward = act(now, net(now)[0].sample())
            total -= float(reward.mean())
        return total

    return tend(folder, net, optimizer, one, 400, held_out(net, cost))


class Slope(nn.Module):
    """How much wood fell, by as many hidden layers as are asked for."""

    def __init__(self, size, width, depth, group):
        super().__init__()
        self.enter = nn.Linear(size, width)
        self.hidden = group([nn.Linear(width, width) for _ in range(depth)])
        self.leave = nn.Linear(width, 1)

    def forward(self, x):
        x = F.relu(self.enter(x))
        for layer in self.hidden:
            x = F.relu(layer(x))
        return self.leave(x)


@sick("modules-not-registered", "layers-not-registered", "not-in-optimizer", "parameters-not-in-the-optimizer",
      where="the hidden layers in a Python list, all steps", cure="an nn.ModuleList")  # fmt: skip
def windfall_by_the_lie_of_a_slope(folder, ill):
    seeded(12407)
    net = Slope(6, 48, 4, list if ill else nn.ModuleList)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    way = torch.randn(6, 3)

    def plots(rows):
        x = torch.randn(rows, 6)
        y = (x @ way).sin().sum(1) + (x[:, 0] * x[:, 1]) + 0.1 * torch.randn(rows)
        return x, y[:, None] / 1.5

    draw, (tx, ty) = rounds(64, *plots(4000)), plots(600)
    score = held_out(net, lambda: F.mse_loss(net(tx), ty))

    def loss_of(step):
        logged = {"val_loss": score()} if step % 60 == 59 else {}
        x, y = draw()
        return F.mse_loss(net(x), y), logged

    return fit(folder, net, optimizer, loss_of, 500, score=score)


@sick("returns-in-the-wrong-direction", "returns-of-the-past",
      where="the returns that weigh the log-probabilities, all steps: rewards before an action, not after it",
      cure="rewards summed from the end to the action")  # fmt: skip
def a_forester_back_to_the_lodge(folder, ill):
    seeded(12408)
    side, longest, walks = 5, 16, 24
    net = dense(side * side, 64, 4)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    ways = torch.tensor([[1, 0], [-1, 0], [0, 1], [0, -1]])

    def walk(rows):
        at = torch.randint(side, (rows, 2))
        at[(at == 2).all(1)] = 0
        there = torch.zeros(rows, dtype=torch.bool)
        log_probs, rewards, out = [], [], []
        for _ in range(longest):
            cell = F.one_hot(at[:, 0] * side + at[:, 1], side**2).float()
            policy = torch.distributions.Categorical(logits=net(cell))
            move = policy.sample()
            out.append(~there)
            at = torch.where(there[:, None], at, (at + ways[move]).clamp(0, side - 1))
            arrived = (at == 2).all(1) & ~there
            there = there | arrived
            log_probs.append(policy.log_prob(move))
            rewards.append(arrived.float())
        return torch.stack(log_probs), torch.stack(rewards), torch.stack(out).float()

    def returns_of(rewards, gamma=0.9):
        total, returns = torch.zeros(rewards.shape[1]), []
        for reward in rewards if ill else rewards.flip(0):
            total = reward + gamma * total
            returns.append(total)
        returns = torch.stack(returns)
        return returns if ill else returns.flip(0)

    def one(step):
        log_probs, rewards, out = walk(walks)
        returns = returns_of(rewards)
        returns = (returns - returns[out > 0].mean()) / (returns[out > 0].std() + 1e-6)
        loss = -(log_probs * returns * out).sum() / out.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "return": rewards.sum(0).mean(), "length": out.sum(0).mean()}

    return tend(folder, net, optimizer, one, 200, held_out(net, lambda: walk(400)[2].sum(0).mean()))


@sick("lr-too-high", "update-too-large", "pretrained-weights-lost",
      where="the pretrained convolutions, the first steps above all", cure="a rate thirty times smaller")  # fmt: skip
def stamps_of_a_second_forest_district(folder, ill):
    seeded(12409)
    images, shown = load_digits(return_X_y=True)
    order = torch.randperm(len(shown))
    x = torch.tensor(images / 8 - 1, dtype=torch.float32).view(-1, 1, 8, 8)[order]
    y = torch.tensor(shown)[order]
    old, new = y < 5, y >= 5
    body = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 16, 64), nn.ReLU(),
    )  # fmt: skip
    net = nn.Sequential(body, nn.Linear(64, 5))
    before, draw = torch.optim.Adam(net.parameters(), 1e-3), rounds(64, x[old], y[old])
    for _ in range(100):
        bx, by = draw()
        before.zero_grad()
        F.cross_entropy(net(bx), by).backward()
        before.step()

    net[1] = nn.Linear(64, 5)
    x, y = x[new], y[new] - 5
    optimizer = torch.optim.SGD(net.parameters(), 0.1 if ill else 0.003, momentum=0.9)
    tune = rounds(16, x[:160], y[:160])
    score = held_out(net, lambda: F.cross_entropy(net(x[160:]), y[160:]))

    def loss_of(step):
        logged = {"val_loss": score()} if step % 20 == 19 else {}
        bx, by = tune()
        return F.cross_entropy(net(bx), by), logged

    return fit(folder, net, optimizer, loss_of, 200, score=score)


class Crowns(nn.Module):
    """A variational autoencoder of small images."""

    def __init__(self, size, width, code):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(size, width), nn.ReLU())
        self.mean, self.log_var = nn.Linear(width, code), nn.Linear(width, code)
        self.decoder = nn.Sequential(nn.Linear(code, width), nn.ReLU(), nn.Linear(width, size), nn.Sigmoid())

    def forward(self, x):
        h = self.encoder(x)
        mean, log_var = self.mean(h), self.log_var(h)
        code = mean + torch.randn_like(mean) * (0.5 * log_var).exp() if self.training else mean
        return self.decoder(code), mean, log_var


@sick("posterior-collapse", "posterior-collapsed", "loss-terms-out-of-balance", "loss-terms-imbalanced",
      "loss-terms-unbalanced", where="the loss and the encoder's mean and variance, all steps",
      cure="both terms summed alike")  # fmt: skip
def crowns_of_beeches_in_eight_numbers(folder, ill):
    seeded(12410)
    images, _ = load_digits(return_X_y=True)
    x = torch.tensor(images / 16, dtype=torch.float32)[torch.randperm(len(images))]
    net = Crowns(64, 128, 8)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(64, x[:1500])
    reduction = "mean" if ill else "sum"

    def loss_of(step):
        (bx,) = draw()
        out, mean, log_var = net(bx)
        reconstruction = F.binary_cross_entropy(out, bx, reduction=reduction)
        kl = -0.5 * (1 + log_var - mean**2 - log_var.exp()).sum()
        loss = reconstruction + kl
        return loss, {"reconstruction": float(reconstruction.detach()), "kl": float(kl.detach())}

    score = held_out(net, lambda: F.mse_loss(net(x[1500:])[0], x[1500:]))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


@sick("targets-not-normalised", where="the loss and the last layer, all steps",
      cure="targets less their mean, over their spread")  # fmt: skip
def cubic_metres_of_a_stand(folder, ill):
    seeded(12411)
    net = dense(7, 64, 64, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def stands(rows):
        x = torch.rand(rows, 7)
        y = 1200 + 2500 * x[:, 0] * x[:, 1] + 900 * (3 * x[:, 2]).sin() - 700 * x[:, 3] + 1500 * (x[:, 4] - 0.5) ** 2
        return x, (y + 60 * torch.randn(rows))[:, None]

    (x, y), (tx, ty) = stands(2500), stands(500)
    middle, spread = x.mean(0), x.std(0)
    x, tx = (x - middle) / spread, (tx - middle) / spread
    at, unit = (0.0, 1.0) if ill else (y.mean(), y.std())
    draw = rounds(64, x, (y - at) / unit)
    score = held_out(net, lambda: F.mse_loss(net(tx) * unit + at, ty) / y.var())

    def loss_of(step):
        logged = {}
        if step % 50 == 49:
            logged["val_loss"] = score() * float(y.var() / unit**2)
        bx, by = draw()
        return F.mse_loss(net(bx), by), logged

    return fit(folder, net, optimizer, loss_of, 300, score=score)
