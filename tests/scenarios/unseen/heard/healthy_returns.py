"""Heard healthy trainings, fifth part: agents that learn values. An expert is content with each.

They only count (the group `heard`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import copy

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded


def flipped(net, rows=32, chance=0.2, bits=7):
    """Bits are turned one by one until they are a wanted row: all seen, `[T, B, ...]`, and who came there."""
    state, goal = torch.randint(2, (2, rows, bits)).float()
    seen = []
    with torch.no_grad():
        for _ in range(bits):
            move = net(torch.cat([state, goal], 1)).argmax(1)
            move = torch.where(torch.rand(rows) < chance, torch.randint(bits, (rows,)), move)
            after = (state - F.one_hot(move, bits)).abs()
            seen.append((state, move, after))
            state = torch.where((state == goal).all(1, keepdim=True), state, after)
    return [torch.stack(column) for column in zip(*seen, strict=True)], goal, (state == goal).all(1)


@healthy(0.3)
def bits_turned_with_goals_of_hindsight(folder):
    """What was reached had been wanted, half of the time (Andrychowicz et al. 2017); successes are logged."""
    seeded(1151)
    net, past = dense(14, 96, 7), []
    slow = copy.deepcopy(net)

    def loss_of(step):
        (state, move, after), goal, there = flipped(net)
        past.append((state, move, after, goal.expand(7, -1, -1)))
        past.append((state, move, after, after[-1].expand(7, -1, -1)))
        rows = [past[i] for i in torch.randint(max(0, len(past) - 200), len(past), (2,)).tolist()]
        state, move, after, goal = (torch.cat(column, 1).flatten(0, 1) for column in zip(*rows, strict=True))
        done = (after == goal).all(1)
        with torch.no_grad():
            ahead = slow(torch.cat([after, goal], 1)).max(1)[0].clamp(-10, 0)
            wanted = torch.where(done, 0.0, -1 + 0.9 * ahead)
        value = net(torch.cat([state, goal], 1)).gather(1, move[:, None])[:, 0]
        return F.mse_loss(value, wanted), {"success_rate": there.float().mean()}

    def after_step(step):
        if step % 10 == 9:
            slow.load_state_dict(net.state_dict())

    score = lambda: -float(flipped(net, 256, 0.0)[2].float().mean())  # noqa: E731
    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 500, after_step=after_step, score=score)


class Duel(nn.Module):
    """A value of the place, and how much better each move is (Wang et al. 2016)."""

    def __init__(self):
        super().__init__()
        self.body, self.place, self.moves = nn.Linear(36, 48), nn.Linear(48, 1), nn.Linear(48, 4)

    def forward(self, at):
        h = self.body(F.one_hot(at, 36).float()).relu()
        more = self.moves(h)
        return self.place(h) + more - more.mean(-1, keepdim=True)


def walked_on(at, move):
    """Six by six cells; the last pays 1 and sends back to anywhere."""
    row, column = at // 6, at % 6
    row = (row + (move == 0).long() - (move == 1).long()).clamp(0, 5)
    column = (column + (move == 2).long() - (move == 3).long()).clamp(0, 5)
    to = 6 * row + column
    return to, to == 35


@healthy(0.3)
def largest_surprises_again(folder):
    """What surprised most is learnt from most (Schaul et al. 2016): nearly nothing is paid, and then values grow."""
    seeded(1152)
    net, at, kept = Duel(), torch.randint(36, (16,)), {"n": 0}
    slow, size = copy.deepcopy(net), 4096
    past, worth = torch.zeros(size, 3, dtype=torch.long), torch.zeros(size)

    def walk():
        nonlocal at
        with torch.no_grad():
            move = torch.where(torch.rand(16) < 0.3, torch.randint(4, (16,)), net(at).argmax(1))
        to, _ = walked_on(at, move)
        place = (kept["n"] + torch.arange(16)) % size
        past[place], worth[place] = torch.stack([at, move, to], 1), float(worth.max()) or 1.0
        kept["n"] += 16
        at = torch.where(to == 35, torch.randint(35, (16,)), to)

    def loss_of(step):
        walk()
        share = worth[: kept["n"]] ** 0.6 / (worth[: kept["n"]] ** 0.6).sum()
        drawn = share.multinomial(64, replacement=True)
        weight = (len(share) * share[drawn]) ** -0.5
        state, move, to = past[drawn].T
        done = to == 35
        with torch.no_grad():
            best = slow(to).gather(1, net(to).argmax(1, keepdim=True))[:, 0]
            wanted = torch.where(done, 1.0, 0.9 * best)
        value = net(state).gather(1, move[:, None])[:, 0]
        worth[drawn] = (value.detach() - wanted).abs() + 1e-3
        return (weight / weight.max() * F.smooth_l1_loss(value, wanted, reduction="none")).mean()

    def after_step(step):
        if step % 20 == 19:
            slow.load_state_dict(net.state_dict())

    def score():
        """How long the way is, from all places."""
        at, length = torch.arange(35), torch.zeros(35)
        for _ in range(40):
            length += at < 35
            with torch.no_grad():
                at = torch.where(at < 35, walked_on(at, net(at).argmax(1))[0], at)
        return float(length.mean())

    options = {"after_step": after_step, "score": score, "clip": "ClipByGlobalNorm(10.0)"}
    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 600, **options)


@healthy(0.3)
def heap_played_against_itself(folder):
    """One to three of twenty are taken in turn, and who takes the last wins: my gain is your loss."""
    seeded(1153)
    net = dense(21, 64, 3)
    slow, heap = copy.deepcopy(net), torch.arange(1, 21)
    taken = torch.arange(1, 4)

    def values(net, at):
        """Of each move; one that takes more than there is has none."""
        return net(F.one_hot(at, 21).float()).masked_fill(taken > at[:, None], -9.0)

    def loss_of(step):
        at = torch.randint(1, 21, (64,))
        with torch.no_grad():
            greedy = torch.rand(64) > 0.3
            move = torch.where(greedy, values(net, at).argmax(1), (3 * torch.rand(64)).long().clamp(max=at - 1))
            left = at - move - 1
            wanted = torch.where(left == 0, 1.0, -values(slow, left.clamp(min=1)).max(1)[0])
        return F.mse_loss(values(net, at).gather(1, move[:, None])[:, 0], wanted)

    def after_step(step):
        if step % 40 == 39:
            slow.load_state_dict(net.state_dict())

    def score():
        """How often it plays wrong where it could win."""
        with torch.no_grad():
            left = heap - values(net, heap).argmax(1) - 1
        return float((left % 4 != 0)[heap % 4 != 0].float().mean())

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 700, after_step=after_step, score=score)
