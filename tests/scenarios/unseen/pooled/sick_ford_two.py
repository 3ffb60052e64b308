"""Trainings after public threads: a loaf, shells, footprints, stars."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds, tend


# https://github.com/EvolvingLMMs-Lab/OneVision-Encoder/pull/82
@sick(
    "schedule-too-short",
    where="the learning rate, gone after a quarter of the steps",
    cure="step the schedule where the optimizer steps, not after every backward pass",
)
def rise_of_a_sourdough(folder, ill):
    seeded(9235)
    net = dense(7, 48, 48, 1, act=nn.SiLU)
    way = torch.randn(7, 4)

    def draw(rows=16):
        x = torch.randn(rows, 7)
        return x, (1.3 * x @ way / 7**0.5).sin().sum(1, keepdim=True) + 0.1 * torch.randn(rows, 1)

    steps, parts = 320, 4
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=16)
    decay = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=steps - 16, power=2)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, decay], [16])

    def one(step):
        total = 0.0
        optimizer.zero_grad()
        for part in range(parts):
            x, y = draw()
            loss = F.mse_loss(net(x), y) / parts
            loss.backward()
            total += float(loss.detach())
            if part == parts - 1:
                optimizer.step()
                if not ill:
                    schedule.step()
            if ill:
                schedule.step()
        return {"loss": total}

    x_test, y_test = draw(1000)
    return tend(folder, net, optimizer, one, steps, held_out(net, lambda: F.mse_loss(net(x_test), y_test)))


def alike(features, labels, guard, temperature=0.2):
    """The supervised contrastive loss: rows of one label are to be near each other."""
    same = (labels[:, None] == labels[None, :]).float().fill_diagonal_(0)
    others = 1 - torch.eye(len(labels))
    logits = features @ features.T / temperature
    logits = logits - logits.max(1, keepdim=True).values.detach()
    log_prob = logits - (logits.exp() * others).sum(1, keepdim=True).log()
    pairs = same.sum(1)
    if guard:
        pairs = torch.where(pairs < 1e-6, torch.ones_like(pairs), pairs)
    return -((same * log_prob).sum(1) / pairs).mean()


# https://github.com/HobbitLong/SupContrast/pull/142
@sick(
    "nonfinite",
    where="the loss of the first batch in which a kind occurs once, and every layer after it",
    cure="do not divide by the number of partners of a row that has none",
)
def sea_shells_by_their_kind(folder, ill):
    seeded(9236)
    kinds = 2 * torch.randn(6, 4)
    lift = torch.randn(4, 20)

    def shells(labels):
        return ((kinds[labels] + 0.9 * torch.randn(len(labels), 4)) @ lift).tanh() + 0.1 * torch.randn(len(labels), 20)

    labels = torch.cat([torch.arange(5).repeat_interleave(150), torch.full((2,), 5)])
    draw = rounds(40, shells(labels), labels)
    y_test = torch.arange(6).repeat_interleave(30)
    x_test = shells(y_test)
    net = dense(20, 64, 64, 8)

    def loss_of(step):
        x, y = draw()
        return alike(F.normalize(net(x), dim=1), y, guard=not ill)

    score = held_out(net, lambda: alike(F.normalize(net(x_test), dim=1), y_test, guard=True))
    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=2e-3), loss_of, 300, score=score)


def focal(p, y, gamma=2.0, alpha=0.5):
    joined = alpha * (1 - p) ** gamma * y * p.log()
    apart = (1 - alpha) * p**gamma * (1 - y) * (1 - p).log()
    return -(joined + apart).mean()


# https://github.com/gnn-tracking/gnn_tracking/issues/138
@sick(
    "nonfinite",
    where="the loss, once a probability is exactly 0 or 1",
    cure="keep the probabilities away from 0 and 1 before their logarithm is taken",
)
def footprints_joined_into_tracks(folder, ill):
    seeded(9237)
    net = dense(7, 48, 48, 1)

    def draw(rows=128):
        y = (torch.rand(rows) < 0.5).float()
        start, turn = 2 * torch.rand(rows, 2) - 1, 6.2832 * torch.rand(rows)
        gap = 0.1 + 0.4 * torch.rand(rows, 1)
        way = torch.stack([turn.cos(), turn.sin()], 1)
        stray = 0.5 * torch.randn(rows, 2)
        end = start + gap * way + torch.where(y[:, None] > 0, 0.05 * torch.randn(rows, 2), stray)
        depth = torch.distributions.Exponential(1.0).sample((rows, 1)) * 20 * (y[:, None] + 0.1)
        return torch.cat([start, end, way, depth], 1), y

    def error(x, y, safe):
        p = net(x)[:, 0].sigmoid()
        return focal(p.clamp(1e-6, 1 - 1e-6) if safe else p, y)

    def loss_of(step):
        return error(*draw(), safe=not ill)

    x_test, y_test = draw(1000)
    score = held_out(net, lambda: error(x_test, y_test, safe=True))
    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=1e-2), loss_of, 500, score=score)


class Stars(nn.Module):
    """An embedding of each star that knows of all the others."""

    def __init__(self, width=48, last=None):
        super().__init__()
        self.near = dense(3, width, width)
        self.far = nn.Linear(width, width)
        self.mix = nn.Sequential(nn.ReLU(), nn.Linear(width, width), *([last] if last else []))

    def forward(self, x):
        gaps = x[:, :, None] - x[:, None]
        ways = torch.cat([gaps, gaps.norm(dim=3, keepdim=True)], 3)
        return self.mix(self.far(self.near(ways).relu().sum(2)))


# https://github.com/mlelarge/graph_neural_net/pull/9
@sick(
    "dead-units",
    where="the last layer (mix), whose units give zero for every star",
    cure="end the block with a linear layer instead of a ReLU",
)
def stars_matched_between_two_nights(folder, ill):
    seeded(9238)
    net = Stars(last=nn.ReLU() if ill else None)

    def draw(rows=12, stars=10):
        first = 4 * torch.randn(rows, stars, 2)
        return first, first + 0.1 * torch.randn(rows, stars, 2)

    def error(first, second):
        scores = net(first) @ net(second).transpose(1, 2) / 48**0.5
        wanted = torch.arange(first.shape[1]).expand(len(first), -1)
        right = (scores.argmax(2) == wanted).float().mean()
        return F.cross_entropy(scores.flatten(0, 1), wanted.flatten()), right

    def loss_of(step):
        loss, right = error(*draw())
        return loss, {"matched": float(right)}

    test = draw(100)
    optimizer = torch.optim.Adam(net.parameters(), lr=6e-2)
    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: error(*test)[0]))
