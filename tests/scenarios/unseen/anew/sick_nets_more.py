"""Sick trainings by draw, the next six: what a net, its loss or its data do wrong, mostly in sequences and in play."""

from __future__ import annotations

import torch
from nets import ALPHABET, Recurrent, pieces
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, mean, seeded, sick


@sick(
    "lr-too-high", "update-too-large", "exploding", "loss-not-averaged",
    where="all layers, from the first steps", cure="reduction='mean': the rate was found for the mean over 384 letters",
)  # fmt: skip
def jovial_letters_all_added_up(folder, ill):
    net = Recurrent(nn.GRU, 32, seed=7307)
    piece = pieces()

    def loss_of(step, reduction="sum" if ill else "mean"):
        x, y = piece(step)
        return F.cross_entropy(net(x).flatten(0, 1), y.flatten(), reduction=reduction)

    def score():
        with torch.no_grad():
            return mean([float(loss_of(10_000 + i, "mean")) for i in range(8)])

    return fit(folder, net, optim.SGD(net.parameters(), 0.3, momentum=0.9), loss_of, 250, score=score)


class Courier(nn.Module):
    """An actor and a critic on one trunk."""

    def __init__(self, size, acts):
        super().__init__()
        self.trunk = dense(size, 64, 64, act=nn.Tanh)
        self.actor, self.critic = nn.Linear(64, acts), nn.Linear(64, 1)

    def forward(self, x):
        h = self.trunk(x).tanh()
        return self.actor(h), self.critic(h)[:, 0]


class Yard:
    """Couriers on a yard of 8 by 8, each with a goal of its own; a step costs 0.1, the goal pays 1 and is set anew."""

    ways = torch.tensor([[1, 0], [-1, 0], [0, 1], [0, -1]])

    def __init__(self, count=32, raw=False):
        self.count, self.raw, self.clock = count, raw, 0
        self.at, self.goal = torch.randint(8, (2, count, 2))

    def seen(self):
        clock = torch.full((self.count, 1), float(self.clock % 2000))
        if self.raw:  # pixels of the screen and milliseconds
            return torch.cat([self.at * 64.0, self.goal * 64.0, clock * 16.0], 1)
        return torch.cat([self.at / 4 - 1, self.goal / 4 - 1, clock / 1000 - 1], 1)

    def step(self, act):
        self.clock += 1
        self.at = (self.at + self.ways[act]).clamp(0, 7)
        there = (self.at == self.goal).all(1)
        self.goal = torch.where(there[:, None], torch.randint(8, (self.count, 2)), self.goal)
        return there.float() - 0.1, there


@sick(
    "inputs-not-normalised", "saturated",
    where="trunk.0, all steps", cure="pixels and milliseconds brought to between -1 and 1",
)  # fmt: skip
def couriers_by_pixels_and_milliseconds(folder, ill):
    seeded(7308)
    net, yard = Courier(5, 4), Yard(raw=ill)

    def loss_of(step, length=8, discount=0.9):
        heads, acts, rewards, ends = [], [], [], []
        for _ in range(length):
            logits, value = net(yard.seen())
            policy = torch.distributions.Categorical(logits=logits)
            act = policy.sample()
            reward, there = yard.step(act)
            heads.append((policy, value))
            acts.append(act)
            rewards.append(reward)
            ends.append(there)
        with torch.no_grad():
            follow = net(yard.seen())[1]
        loss = 0.0
        for (policy, value), act, reward, there in reversed(list(zip(heads, acts, rewards, ends, strict=True))):
            follow = reward + discount * torch.where(there, 0.0, follow)
            gain = follow - value
            actor = -(policy.log_prob(act) * gain.detach()).mean() - 0.01 * policy.entropy().mean()
            loss = loss + (actor + 0.5 * gain.square().mean()) / length
        return loss, {"episode_return": torch.stack(rewards).sum(0).mean()}

    def score():
        """How many steps a goal takes."""
        tried = Yard(128, raw=ill)
        with torch.no_grad():
            found = sum(
                int(tried.step(torch.distributions.Categorical(logits=net(tried.seen())[0]).sample())[1].sum())
                for _ in range(64)
            )
        return 128 * 64 / max(found, 1)

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 280, score=score)


class Molecules(nn.Module):
    """Two rounds of messages, the sum over all atoms, a norm, and a number for each molecule."""

    def __init__(self, norm, kinds=4, width=32):
        super().__init__()
        self.embed = nn.Embedding(kinds, width)
        self.rounds = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(2))
        self.norm, self.out = norm(width), dense(width, 32, 1)

    def forward(self, kind, bonds):
        h = self.embed(kind)
        for layer in self.rounds:
            h = h + layer(torch.cat([h, bonds @ h], -1)).relu()
        return self.out(self.norm(h.sum(1)))[:, 0]


def molecules(batch, atoms=10, kinds=4):
    """Atoms and bonds; the energy counts bonds between unlike atoms and, for less, the atoms."""
    kind = torch.randint(kinds, (batch, atoms))
    bonds = (torch.rand(batch, atoms, atoms) < 0.25).float().triu(1)
    bonds = bonds + bonds.transpose(1, 2)
    unlike = (kind[:, None] != kind[..., None]).float()
    energy = 0.15 * (bonds * unlike).sum((1, 2)) / 2 + 0.2 * kind.float().sum(1) - 4.3
    return kind, bonds, energy


@sick(
    "norm-over-too-few", "norm-statistics", "noise-dominated",
    where="norm, all steps", cure="a layer norm, which looks at each molecule by itself; the memory holds only two",
)  # fmt: skip
def energies_of_two_molecules_at_once(folder, ill):
    seeded(7309)
    net = Molecules(nn.BatchNorm1d if ill else nn.LayerNorm)

    def loss_of(step):
        kind, bonds, energy = molecules(2)
        return F.l1_loss(net(kind, bonds), energy)

    def score():
        net.eval()
        with torch.no_grad():
            kind, bonds, energy = molecules(256)
            loss = F.l1_loss(net(kind, bonds), energy)
        net.train()
        return loss

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 500, score=score)


class Tagger(nn.Module):
    def __init__(self, words, tags):
        super().__init__()
        self.embed = nn.Embedding(words, 24)
        self.lstm = nn.LSTM(24, 24, batch_first=True, bidirectional=True)
        self.head = nn.Linear(48, tags)

    def forward(self, x):
        return self.head(self.lstm(self.embed(x))[0])


@sick(
    "class-imbalance", "class-weights-inverted",
    where="head and the loss, all steps", cure="weigh by one over the share of a tag, not by the share itself",
)  # fmt: skip
def entities_weighed_by_their_shares(folder, ill):
    seeded(7310)
    words, tags = 200, 5
    shares = torch.tensor([0.88, 0.03, 0.03, 0.03, 0.03])
    lean = torch.randn(tags, words) * 0.9
    net = Tagger(words, tags)
    weight = shares if ill else 1 / shares
    weight = weight / (weight * shares).sum()

    def draw(rows=32, length=16):
        tag = torch.multinomial(shares, rows * length, replacement=True)
        return torch.multinomial(lean[tag].softmax(1), 1).view(rows, length), tag.view(rows, length)

    def loss_of(step):
        x, tag = draw()
        return F.cross_entropy(net(x).flatten(0, 1), tag.flatten(), weight=weight)

    def score():
        """The mean over the tags, each as much as any other."""
        with torch.no_grad():
            x, tag = draw(256)
            losses = F.cross_entropy(net(x).flatten(0, 1), tag.flatten(), reduction="none")
            return mean([float(losses[tag.flatten() == i].mean()) for i in range(tags)])

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 200, score=score)


@sick(
    "rewards-not-normalised", "returns-not-normalised", "no-baseline", "noise-dominated",
    where="all layers, all steps: loss and gradients are in hundreds", cure="the return less its mean, over its spread",
)  # fmt: skip
def letters_paid_in_hundreds(folder, ill):
    seeded(7311)
    net = Recurrent(nn.GRU, 32, seed=7311)
    size = len(ALPHABET)

    def written(rows=24, length=10):
        """Letters drawn one after another, the logarithms of their chances, and how many follow in the alphabet."""
        last, state, said, chances = torch.randint(size, (rows, 1)), None, [], []
        for _ in range(length):
            h, state = net.rnn(net.embed(last), state)
            policy = torch.distributions.Categorical(logits=net.head(h[:, 0]))
            letter = policy.sample()
            said.append((letter > last[:, 0]) & (letter <= last[:, 0] + 6))
            chances.append(policy.log_prob(letter))
            last = letter[:, None]
        return torch.stack(chances, 1).sum(1), torch.stack(said, 1).sum(1)

    def loss_of(step):
        chance, good = written()
        reward = 100.0 * good
        gain = reward if ill else (reward - reward.mean()) / (reward.std() + 1e-6)
        return -(chance * gain).mean(), {"episode_return": reward.mean()}

    def score():
        with torch.no_grad():
            return 10 - written(512)[1].float().mean()

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 250, score=score)


class Twins(nn.Module):
    """Whether two records are of the same person: a logit that falls with the distance of their codes."""

    def __init__(self):
        super().__init__()
        self.code = dense(16, 64, 64, 16)
        self.slope, self.bias = nn.Parameter(torch.ones(())), nn.Parameter(torch.zeros(()))

    def forward(self, a, b):
        return self.bias - self.slope * (self.code(a) - self.code(b)).square().mean(1)


@sick(
    "class-imbalance",
    where="bias and the loss: one pair of forty is of one person", cure="as many pairs of one person as of two",
)  # fmt: skip
def same_person_or_not_by_any_two_records(folder, ill):
    seeded(7312)
    net, people, lift = Twins(), torch.randn(40, 4), torch.randn(4, 16)

    def draw(balanced, batch=64):
        left, right = torch.randint(40, (2, batch))
        if balanced:
            right = torch.where(torch.rand(batch) < 0.5, left, right)
        a, b = ((people[who] + 0.5 * torch.randn(batch, 4)) @ lift for who in (left, right))
        return a, b, (left == right).float()

    def loss_of(step):
        a, b, same = draw(not ill)
        return F.binary_cross_entropy_with_logits(net(a, b), same)

    def score():
        with torch.no_grad():
            a, b, same = draw(True, 4096)
            return F.binary_cross_entropy_with_logits(net(a, b), same)

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 300, score=score)
