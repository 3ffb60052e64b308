"""Healthy trainings on graphs and by rewards."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, tend


class Convolved(nn.Module):
    """Two layers of a graph convolution."""

    def __init__(self, size, hidden, classes):
        super().__init__()
        self.one, self.two = nn.Linear(size, hidden), nn.Linear(hidden, classes)
        self.drop = nn.Dropout(0.5)

    def forward(self, x, near):
        return near @ self.two(self.drop(F.relu(near @ self.one(self.drop(x)))))


@healthy()
def articles_that_quote_each_other(folder):
    seeded(2970)
    papers, fields = 600, 5
    field = torch.randint(fields, (papers,))
    chance = torch.where(field[:, None] == field, 0.03, 0.004)
    cites = (torch.rand(papers, papers) < chance).float().triu(1)
    near = cites + cites.T + torch.eye(papers)
    near = near / (near.sum(0)[:, None] * near.sum(0)).sqrt()
    topics = torch.rand(fields, 60) ** 3
    x = (torch.rand(papers, 60) < 0.4 * topics[field] + 0.06).float()
    x = x / x.sum(1, keepdim=True).clamp(min=1)
    known, asked = torch.arange(150), torch.arange(200, papers)

    net = Convolved(60, 24, fields)
    optimizer = torch.optim.Adam(
        [{"params": net.one.parameters(), "weight_decay": 5e-4}, {"params": net.two.parameters(), "weight_decay": 0}],
        lr=0.01,
    )

    def loss_of(step):
        said = net(x, near)[known]
        right = (said.argmax(1) == field[known]).float().mean()
        return F.cross_entropy(said, field[known]), {"train_acc": float(right)}

    score = held_out(net, lambda: F.cross_entropy(net(x, near)[asked], field[asked]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


class Molecule(nn.Module):
    def __init__(self, kinds=5, width=32, depth=3):
        super().__init__()
        self.embed = nn.Embedding(kinds, width)
        self.layers = nn.ModuleList(dense(width, width, width, norm=nn.LayerNorm) for _ in range(depth))
        self.own = nn.Parameter(torch.zeros(depth))
        self.head = dense(2 * width, width, 1)

    def forward(self, atoms, bonds, there):
        h = self.embed(atoms) * there
        for own, layer in zip(self.own, self.layers, strict=True):
            h = h + layer((1 + own) * h + bonds @ h) * there
        return self.head(torch.cat([h.sum(1) / 10, h.amax(1)], 1))[:, 0]


@healthy()
def melting_points_of_small_molecules(folder):
    seeded(2971)
    weight, pull = torch.rand(5), 0.5 * torch.randn(5, 5)

    def molecules(many, most=10):
        atoms = torch.randint(5, (many, most))
        there = torch.arange(most) < torch.randint(5, most + 1, (many, 1))
        bonds = torch.zeros(many, most, most)
        for at in range(1, most):
            to = (torch.rand(many) * at).long()
            bonds[torch.arange(many), at, to] = 1
        bonds = bonds * there[:, :, None] * there[:, None]
        bound = (bonds * pull[atoms[:, :, None], atoms[:, None]]).sum((1, 2))
        bonds = bonds + bonds.transpose(1, 2)
        rings = ((bonds.sum(2) > 2) & there).sum(1)
        melts = (weight[atoms] * there).sum(1) + bound + 0.5 * rings + 0.1 * torch.randn(many)
        return atoms, bonds, there[..., None].float(), melts

    *x, y = molecules(2400)
    middle, spread = y[:2000].mean(), y[:2000].std()
    y = (y - middle) / spread
    net = Molecule()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.994)

    def error(rows):
        return F.mse_loss(net(*(part[rows] for part in x)), y[rows])

    def loss_of(step):
        return error(torch.randint(2000, (64,)))

    score = held_out(net, lambda: error(slice(2000, None)))
    return fit(folder, net, optimizer, loss_of, 350, score=score, schedule=schedule)


WALLS = torch.tensor([[0, 0, 0, 0, 0], [0, 1, 1, 0, 1], [0, 0, 0, 0, 0], [1, 1, 0, 1, 0], [0, 0, 0, 0, 0]])
MOVES = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])


def walk(place, move):
    """Where one comes to, what it earns, and whether the fodder in the far corner is reached."""
    there = (place + MOVES[move]).clamp(0, 4)
    there = torch.where((WALLS[there[:, 0], there[:, 1]] == 1)[:, None], place, there)
    done = (there == 4).all(1)
    return there, torch.where(done, 1.0, -0.05), done


def seen(place):
    return torch.cat([F.one_hot(place[:, 0], 5), F.one_hot(place[:, 1], 5)], 1).float()


def anywhere(many):
    free = (WALLS == 0).nonzero()[:-1]
    return free[torch.randint(len(free), (many,))]


@healthy()
def a_goat_on_the_way_to_its_fodder(folder):
    seeded(2972)
    net = dense(10, 64, 64, 4)
    target = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    size, goats = 4000, 8
    kept = {"place": torch.zeros(size, 2).long(), "move": torch.zeros(size).long(), "reward": torch.zeros(size)}
    kept |= {"there": torch.zeros(size, 2).long(), "done": torch.zeros(size)}
    place, age, filled = anywhere(goats), torch.zeros(goats), 0

    def explore(share):
        nonlocal place, age, filled
        with torch.no_grad():
            best = net(seen(place)).argmax(1)
        move = torch.where(torch.rand(goats) < share, torch.randint(4, (goats,)), best)
        there, reward, done = walk(place, move)
        at = (filled + torch.arange(goats)) % size
        new = {"place": place, "move": move, "reward": reward, "there": there, "done": done.float()}
        for name, values in new.items():
            kept[name][at] = values
        filled, age = filled + goats, age + 1
        again = done | (age >= 40)
        place, age = torch.where(again[:, None], anywhere(goats), there), age.masked_fill(again, 0)
        return float(reward.mean())

    for _ in range(60):
        explore(1.0)

    def one(step):
        epsilon = max(0.1, 1 - step / 500)
        earned = explore(epsilon)
        at = torch.randint(min(filled, size), (64,))
        reward, done = kept["reward"][at], kept["done"][at]
        with torch.no_grad():
            goal = reward + 0.95 * (1 - done) * target(seen(kept["there"][at])).amax(1)
        said = net(seen(kept["place"][at])).gather(1, kept["move"][at][:, None])[:, 0]
        loss = F.smooth_l1_loss(said, goal)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimizer.step()
        if step % 50 == 49:
            target.load_state_dict(net.state_dict())
        return {"loss": loss, "reward": earned, "epsilon": epsilon, "q": said.detach().mean()}

    def score():
        """Minus what goats earn in 25 moves that the net likes best."""
        here, alive, earned = anywhere(200), torch.ones(200), torch.zeros(200)
        with torch.no_grad():
            for _ in range(25):
                here, reward, done = walk(here, net(seen(here)).argmax(1))
                earned += reward * alive
                alive = alive * (~done).float()
        return -float(earned.mean())

    return tend(folder, net, optimizer, one, 1000, score)


class Pilot(nn.Module):
    def __init__(self):
        super().__init__()
        self.policy, self.value = (dense(4, 48, 48, out, act=nn.Tanh) for out in (3, 1))
        nn.init.orthogonal_(self.policy[-1].weight, 0.01)
        nn.init.zeros_(self.policy[-1].bias)

    def forward(self, x):
        return torch.distributions.Categorical(logits=self.policy(x)), self.value(x)[..., 0]


@healthy()
def a_balloon_held_at_its_height(folder):
    seeded(2973)
    balloons, length, gamma = 32, 16, 0.95
    net = Pilot()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3, eps=1e-5)

    def start(many):
        return torch.cat([2 * torch.randn(many, 1), torch.zeros(many, 1), 2 * torch.randn(many, 1)], 1)

    def view(state):
        return torch.cat([state, state[:, :1] - state[:, 2:]], 1) / 2

    def fly(state, move):
        height, speed, wanted = state.T
        speed = 0.9 * speed + 0.2 * (move - 1) + 0.03 * torch.randn(len(state))
        height = (height + speed).clamp(-6, 6)
        return torch.stack([height, speed, wanted], 1), -0.05 * (height - wanted).abs()

    state = start(balloons)

    def one(step):
        nonlocal state
        logs, values, rewards, chaos = [], [], [], []
        for _ in range(length):
            policy, value = net(view(state))
            move = policy.sample()
            state, reward = fly(state, move)
            logs.append(policy.log_prob(move))
            values.append(value)
            rewards.append(reward)
            chaos.append(policy.entropy())
        with torch.no_grad():
            later, returns = net(view(state))[1], []
            for reward in reversed(rewards):
                later = reward + gamma * later
                returns.insert(0, later)
        returns, values = torch.stack(returns), torch.stack(values)
        better = (returns - values).detach()
        better = (better - better.mean()) / (better.std() + 1e-8)
        policy_loss = -(torch.stack(logs) * better).mean()
        value_loss, entropy = F.mse_loss(values, returns), torch.stack(chaos).mean()
        loss = policy_loss + 0.5 * value_loss - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        if step % 4 == 3:
            state = start(balloons)
        earned = torch.stack(rewards).mean()
        return {
            "loss": loss,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "return": earned,
        }

    def score():
        here, lost = start(256), 0.0
        with torch.no_grad():
            for _ in range(40):
                here, reward = fly(here, net(view(here))[0].sample())
                lost -= float(reward.mean())
        return lost

    return tend(folder, net, optimizer, one, 250, score)
