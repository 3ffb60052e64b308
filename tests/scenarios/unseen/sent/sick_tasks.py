"""Sent sick trainings, fourth part: agents, tables of preferences, a picture by its places.

They only count (the group `sent`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick


class Walk(nn.Module):
    """Points are pushed for twelve steps and paid after twenty, by proximal steps of a policy with a critic (PPO)."""

    def __init__(self, seed):
        super().__init__()
        seeded(seed)
        self.choose, self.value = dense(3, 48, 5, act=nn.Tanh), dense(3, 48, 1)
        self.pushes = 0.3 * torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [0.0, 0.0]])
        self.kept = None

    def play(self, seen_by_critic, shuffled):
        """Twenty steps of 32 points: what was seen, done, how likely that was, and how much better than expected."""
        at, rows = torch.randn(32, 2), []
        with torch.no_grad():
            for t in range(20):
                seen = torch.cat([at, torch.full((32, 1), t / 20)], 1)
                logs = self.choose(seen).log_softmax(1)
                done = logs.exp().multinomial(1)
                at = at + self.pushes[done[:, 0]] * (t < 12)
                rows.append((seen, done, logs.gather(1, done), -at.norm(dim=1) * (t == 19), torch.full((32,), t == 19)))
            self.distance = float(at.norm(dim=1).mean())
            seen, done, logs, paid, last = (torch.stack(column, 1).flatten(0, 1) for column in zip(*rows, strict=True))
            if shuffled:
                order = torch.randperm(640)
                seen, done, logs, paid, last = (x[order] for x in (seen, done, logs, paid, last))
            value = self.value(seen_by_critic(seen))[:, 0]
            better, after, ahead = [], 0.0, 0.0
            for gain, ends, worth in reversed(list(zip(paid.tolist(), last.tolist(), value.tolist(), strict=True))):
                after = gain - worth if ends else gain + ahead - worth + 0.95 * after
                ahead = worth
                better.append(after)
            better = torch.tensor(better[::-1])
        self.kept = [seen, done, logs, better, better + value]

    def loss(self, seen_by_critic):
        seen, done, logs, better, worth = self.kept
        now = self.choose(seen).log_softmax(1)
        ratio = (now.gather(1, done) - logs)[:, 0].exp()
        better = (better - better.mean()) / (better.std() + 1e-8)
        gain = torch.minimum(ratio * better, ratio.clamp(0.8, 1.2) * better).mean()
        entropy = -(now.exp() * now).sum(1).mean()
        return F.mse_loss(self.value(seen_by_critic(seen))[:, 0], worth) * 0.5 - gain - 0.003 * entropy


def walked(folder, seed, seen_by_critic, shuffled=False):
    """Eighty rounds of four proximal steps; the score is how far from the middle they end."""
    net = Walk(seed)

    def loss_of(step):
        if step % 4 == 0:
            net.play(seen_by_critic, shuffled)
        return net.loss(seen_by_critic), {"return": -net.distance}

    def before(step):
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)

    def score():
        net.play(seen_by_critic, shuffled)
        return net.distance

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3, eps=1e-5), loss_of, 320, before_step=before, score=score)


# "Bug - PPO is broken" (flush hands back what was gathered in a random order),
# github.com/UoA-CARES/cares_reinforcement_learning/issues/46
@sick(
    "labels-mismatched", "labels-do-not-fit-inputs", "noise-dominated", "no-progress",
    where="the policy, all steps: what is to come is that of other steps", cure="in the order in which it was gathered",
)  # fmt: skip
def steps_handed_back_in_any_order(folder, ill):
    return walked(folder, 1031, lambda seen: seen, shuffled=ill)


# "Possible normalization issue with optimizer.critic" (only what the actor sees is normalised; metres, and radians),
# github.com/Unity-Technologies/ml-agents/issues/5583
@sick(
    "inputs-not-normalised", "imbalance",
    where="the first layer of the critic, all steps; by the clip of both its gradients leave nothing for the actor",
    cure="the same normalisation for both",
)  # fmt: skip
def critic_that_sees_metres(folder, ill):
    sizes = torch.tensor([1000.0, 1000.0, 1.0]) if ill else torch.ones(3)
    return walked(folder, 1032, lambda seen: seen * sizes)


# "Both test loss and validation loss go to 0.5" (a penalty on the whole table in every batch),
# github.com/maciejkula/triplet_recommendations_keras/issues/10
@sick(
    "weights-shrink", "weight-decay-too-strong",
    where="both tables, all steps: rows that a batch does not have shrink, too",
    cure="the rows of the batch alone, or none",
)  # fmt: skip
def tables_that_a_penalty_empties(folder, ill):
    seeded(1034)
    net = nn.ModuleDict({"who": nn.Embedding(300, 16), "what": nn.Embedding(400, 16)})
    for table in net.values():
        nn.init.normal_(table.weight, std=0.3)
    likes = torch.randn(300, 4) @ torch.randn(4, 400)

    def triplets():
        who, what = torch.randint(300, (128,)), torch.randint(400, (128, 2))
        right = likes[who[:, None], what].argsort(1, descending=True)
        what = what.gather(1, right)
        who, what = net["who"](who), net["what"](what)
        return (0.5 - (who * (what[:, 0] - what[:, 1])).sum(1)).relu().mean()

    def loss_of(step):
        penalty = sum(table.weight.square().sum() for table in net.values())
        return triplets() + (1e-3 if ill else 0.0) * penalty

    def score():
        with torch.no_grad():
            return sum(float(triplets()) for _ in range(8)) / 8

    return fit(folder, net, optim.Adam(net.parameters(), 1e-2), loss_of, 500, score=score)


# "Is the model sensitive to initialization?" (black images where most of the background is; a lower rate helped),
# github.com/sxyu/pixel-nerf/issues/45
@sick(
    "lr-too-high", "update-too-large", "dead-units", "dead-layer",
    where="all layers, from the first steps: the dark background throws all outputs below zero, where a ReLU ends them",
    cure="a thirtieth of the rate",
)  # fmt: skip
def picture_that_goes_black(folder, ill):
    seeded(1038)
    net = nn.Sequential(dense(18, 64, 64, 64, 1), nn.ReLU())
    places = torch.rand(2000, 2)
    waves = torch.cat([f(3.1416 * k * places) for k in (1, 2, 3, 4) for f in (torch.sin, torch.cos)] + [places], 1)
    light = (1 - 4 * (places - 0.6).norm(dim=1)).relu()[:, None]

    def loss_of(step):
        row = torch.randint(2000, (128,))
        return F.mse_loss(net(waves[row]), light[row])

    return fit(folder, net, optim.Adam(net.parameters(), 3e-2 if ill else 1e-3), loss_of, 400)
