"""Daily healthy trainings, seventh part: agents. An expert is content with each.

They only count (the group `daily`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import copy

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded


def pushed(place, force):
    """A point on a plane is pushed; nearer to the middle pays more."""
    place = (place + 0.3 * force.clamp(-1, 1)).clamp(-3, 3)
    return place, 1 - place.norm(dim=-1)


@healthy(0.3)
def point_pushed_to_the_middle(folder):
    """PPO for what is continuous: four passes over what was seen, advantages of mean zero, the return logged."""
    seeded(1248)
    net = nn.ModuleDict({"act": dense(2, 32, 2, act=nn.Tanh), "worth": dense(2, 32, 1, act=nn.Tanh)})
    net.register_parameter("wide", nn.Parameter(torch.full((2,), -0.5)))
    kept = {}

    @torch.no_grad()
    def played(rows=32, length=16):
        place, seen, moves, paid = 4 * torch.rand(rows, 2) - 2, [], [], []
        for _ in range(length):
            force = torch.distributions.Normal(net["act"](place), net.wide.exp()).sample()
            seen.append(place)
            moves.append(force)
            place, reward = pushed(place, force)
            paid.append(reward)
        worth = [net["worth"](one)[:, 0] for one in [*seen, place]]
        gained, better = [], torch.zeros(rows)
        for t in reversed(range(length)):
            better = paid[t] + 0.95 * worth[t + 1] - worth[t] + 0.95 * 0.9 * better
            gained.append(better)
        gained = torch.stack(gained[::-1])
        kept["seen"], kept["moves"] = torch.stack(seen).flatten(0, 1), torch.stack(moves).flatten(0, 1)
        kept["better"] = gained.flatten()
        kept["wanted"] = (gained + torch.stack(worth[:-1])).flatten()
        law = torch.distributions.Normal(net["act"](kept["seen"]), net.wide.exp())
        kept["before"] = law.log_prob(kept["moves"]).sum(1)
        kept["return"] = float(torch.stack(paid).sum(0).mean())

    def loss_of(step):
        if step % 8 == 0:
            played()
        at = torch.randint(512, (256,))
        law = torch.distributions.Normal(net["act"](kept["seen"][at]), net.wide.exp())
        share = (law.log_prob(kept["moves"][at]).sum(1) - kept["before"][at]).exp()
        better = kept["better"][at]
        better = (better - better.mean()) / (better.std() + 1e-8)
        push = -torch.minimum(share * better, share.clamp(0.8, 1.2) * better).mean()
        error = F.mse_loss(net["worth"](kept["seen"][at])[:, 0], kept["wanted"][at])
        return push + 0.5 * error, {"episode_return": kept["return"]}

    def score():
        played(256)
        return -kept["return"]

    make = optim.Adam(net.parameters(), 1e-3, eps=1e-5)
    return fit(folder, net, make, loss_of, 400, score=score, clip="ClipByGlobalNorm(0.5)")


@healthy(0.3)
def values_by_twenty_one_atoms(folder):
    """C51 (Bellemare et al. 2017), with 21 atoms, on a slippery way of ten places; the loss alone is logged."""
    seeded(1249)
    net, atoms = dense(10, 48, 2 * 21), torch.linspace(0, 1, 21)
    slow = copy.deepcopy(net)

    def law(net, at):
        return net(F.one_hot(at, 10).float()).view(-1, 2, 21).log_softmax(2)

    def moved(at, move):
        way = torch.where(torch.rand(len(at)) < 0.1, -1, 1) * (2 * move - 1)
        to = (at + way).clamp(0, 9)
        return to, to == 9

    def loss_of(step):
        at, move = torch.randint(9, (64,)), torch.randint(2, (64,))
        to, done = moved(at, move)
        with torch.no_grad():
            after = law(slow, to).exp()
            after = after[torch.arange(64), (after @ atoms).argmax(1)]
            worth = torch.where(done[:, None], 1.0, 0.9 * atoms).clamp(0, 1) * 20
            low = worth.floor().long()
            up = (low + 1).clamp(max=20)
            share = worth - low
            wanted = torch.zeros(64, 21).scatter_add_(1, low, after * (1 - share)).scatter_add_(1, up, after * share)
        return -(wanted * law(net, at)[torch.arange(64), move]).sum(1).mean()

    def after_step(step):
        if step % 25 == 24:
            slow.load_state_dict(net.state_dict())

    @torch.no_grad()
    def score():
        """How far the values are from the true ones."""
        true = torch.zeros(10)
        for _ in range(200):
            ahead = torch.cat([0.9 * true[1:9], torch.ones(1)])
            back = 0.9 * true[:9][torch.arange(9).sub(1).clamp(min=0)]
            true = torch.cat([0.9 * ahead + 0.1 * back, torch.zeros(1)])
        said = (law(net, torch.arange(9)).exp() @ atoms).amax(1)
        return float((said - true[:9]).abs().mean())

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 500, after_step=after_step, score=score)


@healthy(0.3)
def two_who_are_paid_together(folder):
    """QMIX (Rashid et al. 2018): two see a part each, and their values are mixed by weights above zero."""
    seeded(1250)
    net = nn.ModuleDict({"each": dense(4, 32, 3), "weigh": nn.Linear(4, 2), "shift": dense(4, 16, 1)})

    def paid(seen, move):
        """What both were shown tells which moves pay: each its own, and more if both are right."""
        right = (move == (seen[..., 0] > 0).long() + (seen[..., 1] > 0).long()).float()
        return right.sum(1) + 2 * right.prod(1)

    def played(rows, chance):
        seen = torch.randn(rows, 2, 2)
        who = torch.eye(2).expand(rows, 2, 2)
        values = net["each"](torch.cat([seen, who], 2))
        move = torch.where(torch.rand(rows, 2) < chance, torch.randint(3, (rows, 2)), values.argmax(2))
        return seen, values.gather(2, move[..., None])[..., 0], paid(seen, move)

    def loss_of(step):
        seen, values, reward = played(64, max(0.1, 1 - step / 200))
        state = seen.flatten(1)
        mixed = (values * net["weigh"](state).abs()).sum(1) + net["shift"](state)[:, 0]
        return F.mse_loss(mixed, reward), {"episode_return": reward.mean()}

    def score():
        with torch.no_grad():
            return -float(played(512, 0.0)[2].mean())

    make = optim.RMSprop(net.parameters(), 1e-3, alpha=0.99, eps=1e-5)
    return fit(folder, net, make, loss_of, 500, score=score, clip="ClipByGlobalNorm(10.0)")


@healthy(0.3)
def machines_chosen_by_what_is_seen(folder):
    """A bandit with contexts: one of five arms pays, by chance. The loss stays as large as chance is."""
    seeded(1251)
    net, way = dense(6, 48, 5), torch.randn(6, 5)

    def drawn(rows, chance):
        x = torch.randn(rows, 6)
        arm = torch.where(torch.rand(rows) < chance, torch.randint(5, (rows,)), net(x).argmax(1))
        likely = (2 * (x @ way)).sigmoid()
        return x, arm, torch.bernoulli(likely.gather(1, arm[:, None])[:, 0]), likely.amax(1)

    def loss_of(step):
        x, arm, paid, _ = drawn(32, 0.1)
        said = net(x).gather(1, arm[:, None])[:, 0]
        return F.binary_cross_entropy_with_logits(said, paid), {"reward": paid.mean()}

    def score():
        """What is missed."""
        with torch.no_grad():
            _, _, paid, best = drawn(4096, 0.0)
        return float((best - paid).mean())

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 600, score=score)


@healthy(0.3)
def careful_values_from_old_moves(folder):
    """CQL (Kumar et al. 2020): from moves by chance alone, what was not done is held down; the loss alone is logged."""
    seeded(1252)
    net, size = dense(12, 48, 2), 4000
    slow, at = copy.deepcopy(net), torch.randint(12, (size,))
    move = torch.randint(2, (size,))
    to = (at + 2 * move - 1).clamp(0, 11)
    hot = lambda at: F.one_hot(at, 12).float()  # noqa: E731

    def loss_of(step):
        some = torch.randint(size, (64,))
        said = net(hot(at[some]))
        done = to[some] == 11
        with torch.no_grad():
            wanted = torch.where(done, 1.0, 0.9 * slow(hot(to[some])).amax(1))
        value = said.gather(1, move[some, None])[:, 0]
        return F.mse_loss(value, wanted) + 0.1 * (said.logsumexp(1) - value).mean()

    def after_step(step):
        with torch.no_grad():
            for p, q in zip(slow.parameters(), net.parameters(), strict=True):
                p.lerp_(q, 0.05)

    def score():
        """From how many places it goes the wrong way."""
        with torch.no_grad():
            return float((net(hot(torch.arange(11))).argmax(1) == 0).float().mean())

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 500, after_step=after_step, score=score)
