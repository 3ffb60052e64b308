"""Healthy trainings with odd curves, third part: nudges, pondering, multipliers, a tolerance, regrets."""

from __future__ import annotations

import itertools

import torch
from nets import batches, digits
from torch import nn, optim
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, fit, healthy, seeded
from unseen.anew.healthy_odd import right

import gradwatch


@healthy(0.5)
def net_that_is_nudged_towards_the_label(folder):
    """Equilibrium propagation: the gradient by hand is the difference of two states of rest, free and nudged."""
    seeded(40)
    net, batch = nn.ModuleList([nn.Linear(64, 64), nn.Linear(64, 10)]), batches(48, seed=40)
    make = optim.SGD([{"params": net[0].parameters(), "lr": 0.5}, {"params": net[1].parameters(), "lr": 0.2}])
    nudge = 0.5

    def settle(x, hidden, out, steps, pull=0.0, goal=None):
        for _ in range(steps):
            back = net[0](x) + out @ net[1].weight
            towards = net[1](hidden) + (pull * (goal - out) if pull else 0)
            hidden, out = (0.5 * hidden + 0.5 * back).clamp(0, 1), (0.5 * out + 0.5 * towards).clamp(0, 1)
        return hidden, out

    @torch.no_grad()
    def free(x):
        return settle(x, torch.zeros(len(x), 64), torch.zeros(len(x), 10), 15)

    @torch.no_grad()
    def contrast(x, rest, nudged, pull):
        for layer, before, after in ((net[0], (x, x), (rest[0], nudged[0])), (net[1], (rest[0], nudged[0]), None)):
            low, high = after or (rest[1], nudged[1])
            layer.weight.grad = (low.T @ before[0] - high.T @ before[1]) / (pull * len(x))
            layer.bias.grad = (low - high).mean(0) / pull

    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(net, make)}
    images, names = digits()
    first = float(1 - right(free(images.flatten(1))[1], names))
    watch = gradwatch.watch(net, make, **options)
    with watch:
        for step in range(500):
            x, y = batch(step)
            x, goal = x.flatten(1), F.one_hot(y, 10).float()
            pull = nudge if step % 2 else -nudge
            make.zero_grad()
            with torch.no_grad():
                rest = free(x)
                nudged = settle(x, *rest, 6, pull, goal)
            contrast(x, rest, nudged, pull)
            make.step()
            watch.log(loss=F.mse_loss(rest[1], goal), accuracy=right(rest[1], y))
    last = float(1 - right(free(images.flatten(1))[1], names))
    return Outcome(gradwatch.open_history(watch.dir), first, last)


@healthy(0.5)
def parity_with_time_to_ponder(folder):
    """Adaptive computation time: a cell decides how often it looks at four signs, and each look has its price."""
    seeded(41)
    net = nn.ModuleDict({"cell": nn.GRUCell(5, 48), "halt": nn.Linear(48, 1), "head": nn.Linear(48, 1)})
    nn.init.constant_(net["halt"].bias, 1.0)
    make = optim.Adam(net.parameters(), 5e-3)

    def ponder(x, most=4):
        state, mixed = torch.zeros(len(x), 48), torch.zeros(len(x), 48)
        total, rest, looks = torch.zeros(len(x), 1), torch.zeros(len(x), 1), torch.zeros(len(x), 1)
        ended = torch.zeros(len(x), 1, dtype=torch.bool)
        for n in range(most):
            state = net["cell"](torch.cat([x, torch.full((len(x), 1), float(n == 0))], 1), state)
            p = net["halt"](state).sigmoid()
            ends = ~ended & ((total + p >= 0.99) | (n == most - 1))
            weight = torch.where(ended, 0.0, torch.where(ends, 1 - total, p))
            rest = torch.where(ends, 1 - total, rest)
            looks = looks + (~ended).float()
            mixed, total, ended = mixed + weight * state, total + weight, ended | ends
        return net["head"](mixed)[:, 0], looks.mean(), (looks + rest).mean()

    def loss_of(step):
        x = torch.randint(2, (64, 4)).float() * 2 - 1
        y = (x.prod(1) > 0).float()
        logits, looks, cost = ponder(x)
        loss = F.binary_cross_entropy_with_logits(logits, y)
        found = ((logits > 0) == (y > 0)).float().mean()
        return loss + 0.001 * cost, {"accuracy": found, "looks": looks}

    return fit(folder, net, make, loss_of, 700, clip="ClipByGlobalNorm(1.0)")


@healthy(0.5)
def digits_drawn_within_a_tolerance(folder):
    """GECO: the divergence is minimised while a multiplier holds the error of what is drawn under a tolerance."""
    seeded(42)
    net = nn.ModuleDict({"in": dense(64, 96, 24), "out": dense(12, 96, 64)})
    make, batch, tolerance = optim.Adam(net.parameters(), 2e-3), batches(96, seed=42), 0.03
    held = {"multiplier": torch.tensor(1000.0), "average": None}

    def loss_of(step):
        x = batch(step)[0].flatten(1)
        mean, log_var = net["in"](x).chunk(2, 1)
        z = mean + (log_var / 2).exp() * torch.randn_like(mean)
        error = F.mse_loss(net["out"](z).sigmoid(), x)
        divergence = 0.5 * (mean.square() + log_var.exp() - log_var - 1).sum(1).mean()
        over = error - tolerance
        before = held["average"]
        held["average"] = over.detach() if before is None else 0.95 * before + 0.05 * over.detach()
        over = over + (held["average"] - over).detach()
        loss = divergence + held["multiplier"] * over
        grown = held["multiplier"] * (0.5 * held["average"] / tolerance).clamp(-0.1, 0.1).exp()
        held["multiplier"] = grown.clamp(1, 1e4)
        return loss, {"error": error, "divergence": divergence, "multiplier": held["multiplier"]}

    @torch.no_grad()
    def score():
        x = digits()[0].flatten(1)
        return F.mse_loss(net["out"](net["in"](x).chunk(2, 1)[0]).sigmoid(), x)

    return fit(folder, net, make, loss_of, 500, score=score)


# ------------------------------------------------------------------------------------------------------- Kuhn's poker

DEALS = list(itertools.permutations(range(3), 2))
PLACES = [(card, told) for card in range(3) for told in ("", "p", "b", "pb")]


def paid(deal, told):
    """What the first player wins at an end; None elsewhere."""
    higher = 1 if deal[0] > deal[1] else -1
    return {"pp": higher, "bp": 1, "pbp": -1, "bb": 2 * higher, "pbb": 2 * higher}.get(told)


def regrets_of(policy):
    """The counterfactual regret of each act at each place, and the reach of its owner."""
    regret, reach = torch.zeros(len(PLACES), 2), torch.zeros(len(PLACES))

    def walk(deal, told, mine, theirs):
        end = paid(deal, told)
        if end is not None:
            return end if len(told) % 2 == 0 else -end
        who = len(told) % 2
        at = PLACES.index((deal[who], told))
        p = policy[at]
        values = [-walk(deal, told + act, theirs, mine * p[i]) for i, act in enumerate("pb")]
        value = p[0] * values[0] + p[1] * values[1]
        for i in range(2):
            regret[at, i] += theirs * (values[i] - value) / 6
        reach[at] = mine
        return value

    for deal in DEALS:
        walk(deal, "", 1.0, 1.0)
    return regret, reach


def exploitability(policy):
    """How much the best replies win from it on average."""

    def best(who):
        plans = itertools.product(range(2), repeat=6)
        places = [i for i, (_, told) in enumerate(PLACES) if len(told) % 2 == who]
        rows = [[float(a) for a in row] for row in policy]
        worth = []
        for plan in plans:
            mixed = list(rows)
            for at, act in zip(places, plan, strict=True):
                mixed[at] = [1.0 - act, float(act)]
            worth.append(sum(expected(mixed, deal, "") for deal in DEALS) / 6)
        return max(worth) if who == 0 else -min(worth)

    return (best(0) + best(1)) / 2


def expected(policy, deal, told):
    end = paid(deal, told)
    if end is not None:
        return end
    p = policy[PLACES.index((deal[len(told) % 2], told))]
    return sum(p[i] * expected(policy, deal, told + act) for i, act in enumerate("pb") if p[i])


@healthy(0.5)
def bluffs_learned_from_regrets(folder):
    """Kuhn poker by deep regret minimisation: a net follows the mean of regrets, and its loss has a floor."""
    seeded(43)
    net = dense(7, 64, 64, 2)
    make = optim.Adam(net.parameters(), 2e-3)
    codes = torch.zeros(len(PLACES), 7)
    for i, (card, told) in enumerate(PLACES):
        codes[i, card] = codes[i, 3 + ("", "p", "b", "pb").index(told)] = 1
    memory, summed = [], torch.full((len(PLACES), 2), 1e-3)

    def policy_of(advantages):
        over = advantages.clamp(min=0)
        return torch.where(over.sum(1, keepdim=True) > 1e-6, over / over.sum(1, keepdim=True).clamp(min=1e-6), 0.5)

    def average():
        return summed / summed.sum(1, keepdim=True)

    def play():
        nonlocal summed
        with torch.no_grad():
            policy = policy_of(net(codes)) if memory else torch.full((len(PLACES), 2), 0.5)
        regret, reach = regrets_of(policy.tolist())
        summed = summed + (len(memory) + 1) * reach[:, None] * policy
        memory.append(regret)

    def loss_of(step):
        if step % 8 == 0:
            play()
        rounds = torch.randint(len(memory), (256,))
        at, weight = torch.randint(len(PLACES), (256,)), (rounds + 1.0) / (len(memory) / 2 + 1)
        goal = 6 * torch.stack(memory)[rounds, at]
        loss = (weight[:, None] * (net(codes[at]) - goal).square()).mean()
        return loss, {"exploitability": exploitability(average())} if step % 40 == 0 else {}

    return fit(folder, net, make, loss_of, 600, score=lambda: exploitability(average()))
