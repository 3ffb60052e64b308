"""Data and small helpers of the typical healthy trainings (the group "typical"): no training stands here."""

from __future__ import annotations

import math

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from trainings import TREATMENT

import gradwatch


def watched(folder, net, optimizer, **more):
    """A Watch over a loop of one's own."""
    options = {"log": None, "dir": folder, "verbose": False, **more, **TREATMENT[-1].begin(net, optimizer)}
    return gradwatch.watch(net, optimizer, **options)


def images():
    """The digits, standardised, `[N, 1, 8, 8]`: three of four to learn from, the fourth for the test."""
    x, y = digits()
    x = ((x - 0.3) / 0.38)[:, None]
    kept = torch.arange(len(x)) % 4 == 3
    return (x[~kept], y[~kept]), (x[kept], y[kept])


def some(x, y, rows):
    """`draw()`: some rows of both."""

    def draw():
        at = torch.randint(len(x), (rows,))
        return x[at], y[at]

    return draw


def entropy_in_eval(net, x, y, weight=None):
    """`score()`: the cross-entropy of what is kept apart."""

    def score():
        was = net.training
        net.eval()
        with torch.no_grad():
            loss = float(F.cross_entropy(net(x), y, weight=weight))
        net.train(was)
        return loss

    return score


def rise_and_cosine(steps, rise, floor=0.0):
    """For a LambdaLR: up in a line, then down as a cosine."""

    def share(step):
        if step < rise:
            return (step + 1) / rise
        along = (step - rise) / max(1, steps - rise)
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, along)))

    return share


def decayed_apart(net, decay):
    """Groups of parameters: matrices decay; biases, gains and the like do not."""
    matrices = [p for p in net.parameters() if p.requires_grad and p.ndim > 1]
    rest = [p for p in net.parameters() if p.requires_grad and p.ndim < 2]
    return [{"params": matrices, "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}]


def pretrain(net, optimizer, loss_of, steps):
    """What somebody else did before: nobody watches."""
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(step).backward()
        optimizer.step()


def shapes(batch=8, size=24):
    """Images of one disc and one square over noise; the class of each pixel: 0, 1, 2, and 255 (void) at the rims."""
    axis = torch.arange(size).float()
    rows, columns = axis[None, :, None], axis[None, None, :]
    image, mask = 0.4 * torch.randn(batch, size, size), torch.zeros(batch, size, size, dtype=torch.long)
    places = []
    for kind in (1, 2):
        at = torch.rand(batch, 2, 1, 1) * (size - 10) + 5
        half = torch.rand(batch, 1, 1) * 2 + 2.5
        up, left = (rows - at[:, 0]).abs(), (columns - at[:, 1]).abs()
        far = torch.hypot(up, left) if kind == 1 else torch.maximum(up, left)
        inside, rim = far < half, (far - half).abs() < 0.5
        image = torch.where(inside, image + (1.2 if kind == 1 else 0.8), image)
        mask = torch.where(rim, 255, torch.where(inside, kind, mask))
        places.append(torch.cat([at[:, :, 0, 0], half[:, 0]], 1))
    return image[:, None], mask, places


def clusters_of_words(nodes=400, kinds=4, words=200):
    """A graph of papers: words that hint at the kind, in rows that sum to one; a normalised matrix of links."""
    kind = torch.arange(nodes) % kinds
    same = kind[:, None] == kind[None]
    link = (torch.rand(nodes, nodes) < torch.where(same, 0.025, 0.003)).float().triu(1)
    link = link + link.T + torch.eye(nodes)
    root = link.sum(1).rsqrt()
    likes = torch.rand(kinds, words) < 0.15
    bag = (torch.rand(nodes, words) < torch.where(likes[kind], 0.08, 0.04)).float()
    return bag / bag.sum(1, keepdim=True).clamp(min=1), root[:, None] * link * root[None], kind


class Poles:
    """Many carts with a pole each, as in gym's CartPole-v1; one that falls begins anew."""

    def __init__(self, many, limit=200):
        self.many, self.limit = many, limit
        self.state, self.age = torch.rand(many, 4) * 0.1 - 0.05, torch.zeros(many)
        self.lengths: list[float] = []

    def step(self, action):
        """Reward, and whether each episode ended (by a fall, by time); `state` is the next, a new one if it ended."""
        x, v, angle, spin = self.state.unbind(1)
        force = torch.where(action == 1, 10.0, -10.0)
        cos, sin = angle.cos(), angle.sin()
        push = (force + 0.05 * spin**2 * sin) / 1.1
        turn = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        pull = push - 0.05 * turn * cos / 1.1
        self.state = torch.stack([x + 0.02 * v, v + 0.02 * pull, angle + 0.02 * spin, spin + 0.02 * turn], 1)
        self.seen = self.state
        self.age += 1
        fell = (self.state[:, 0].abs() > 2.4) | (self.state[:, 2].abs() > 0.2095)
        late = self.age >= self.limit
        over = fell | late
        if over.any():
            self.lengths += self.age[over].tolist()
            self.state = torch.where(over[:, None], torch.rand(self.many, 4) * 0.1 - 0.05, self.state)
            self.age = torch.where(over, 0.0, self.age)
        return torch.ones(self.many), fell, late


def minus_length(act, many=32, limit=200):
    """Minus the mean length of an episode under `act(state)`, each of at most `limit` steps."""
    with torch.no_grad():
        poles, alive, total = Poles(many, limit), torch.ones(many, dtype=torch.bool), 0.0
        for _ in range(limit):
            total += float(alive.sum())
            _, fell, late = poles.step(act(poles.state))
            alive &= ~(fell | late)
            if not alive.any():
                break
    return -total / many


def orthogonal(layer, gain=1.414):
    """As PPO's reference code begins a layer."""
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
