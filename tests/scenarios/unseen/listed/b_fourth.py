"""Healthy trainings as courses and teams have them: a graph, tastes, a maze; and some that are unusual but sound."""

from __future__ import annotations

import random
from collections import deque

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, in_turn, rounds, tend


@healthy(0.3)
def guilds_of_a_medieval_town(folder):
    seeded(10258)
    people = 240
    guild = torch.randint(4, (people,))
    same = guild[:, None] == guild[None]
    known = (torch.rand(people, people) < torch.where(same, 0.10, 0.01)).triu(1)
    known = (known | known.T).float() + torch.eye(people)
    degree = known.sum(1).rsqrt()
    spread = degree[:, None] * known * degree[None]
    x = F.one_hot(guild, 4).float() + 1.2 * torch.randn(people, 4)
    net = nn.ModuleList([nn.Linear(4, 24), nn.Linear(24, 4)])
    optimizer = torch.optim.Adam(net.parameters(), 1e-2, weight_decay=5e-4)
    labelled = torch.rand(people) < 0.3

    def said():
        hidden = F.dropout((spread @ net[0](x)).relu(), 0.3, net.training)
        return spread @ net[1](hidden)

    def loss_of(step):
        return F.cross_entropy(said()[labelled], guild[labelled])

    score = held_out(net, lambda: F.cross_entropy(said()[~labelled], guild[~labelled]))
    return fit(folder, net, optimizer, loss_of, 120, score=score)


@healthy(0.3)
def tastes_in_library_books(folder):
    seeded(10259)
    readers, books = 120, 80
    liking = (torch.randn(readers, 3) @ torch.randn(3, books)) / 1.7
    pairs = torch.cartesian_prod(torch.arange(readers), torch.arange(books))
    pairs = pairs[torch.randperm(len(pairs))]
    stars = (3 + liking[pairs[:, 0], pairs[:, 1]] + 0.2 * torch.randn(len(pairs))).clamp(1, 5)
    net = nn.ModuleDict({
        "reader": nn.Embedding(readers, 8), "book": nn.Embedding(books, 8),
        "reader_bias": nn.Embedding(readers, 1), "book_bias": nn.Embedding(books, 1),
    })  # fmt: skip
    for part in net.values():
        nn.init.normal_(part.weight, std=0.1)
    overall = stars[:5000].mean()
    optimizer = torch.optim.Adam(net.parameters(), 1e-2, weight_decay=1e-5)
    draw = rounds(256, pairs[:5000], stars[:5000])

    def error(who, said):
        reader, book = who.T
        match = (net["reader"](reader) * net["book"](book)).sum(1)
        return F.mse_loss(overall + match + net["reader_bias"](reader)[:, 0] + net["book_bias"](book)[:, 0], said)

    score = held_out(net, lambda: error(pairs[5000:], stars[5000:]))
    return fit(folder, net, optimizer, lambda step: error(*draw()), 500, score=score)


@healthy(0.2)
def a_hedgehog_on_its_way_to_the_compost(folder):
    seeded(10260)
    size, gamma = 5, 0.95
    dice = random.Random(10260)
    net, target = dense(2 * size, 48, 48, 4), dense(2 * size, 48, 48, 4)
    target.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    ways, goal, memory = ((0, 1), (0, -1), (1, 0), (-1, 0)), (4, 4), deque(maxlen=2000)

    def seen(cells):
        cells = torch.tensor(cells)
        return torch.cat([F.one_hot(cells[:, 0], size), F.one_hot(cells[:, 1], size)], 1).float()

    def move(cell, act):
        after = tuple(min(size - 1, max(0, here + way)) for here, way in zip(cell, ways[act], strict=True))
        return after, (1.0 if after == goal else -0.02), after == goal

    starts = [(i, j) for i in range(size) for j in range(size) if (i, j) != goal]

    def score():
        total = 0
        for start in starts:
            cell = start
            for _ in range(20):
                with torch.no_grad():
                    cell, _, done = move(cell, int(net(seen([cell])).argmax()))
                total += 1
                if done:
                    break
        return total / len(starts)

    state = {"cell": dice.choice(starts), "age": 0}

    def one(step):
        explore = max(0.1, 1 - step / 300)
        for _ in range(2):
            cell = state["cell"]
            with torch.no_grad():
                act = dice.randrange(4) if dice.random() < explore else int(net(seen([cell])).argmax())
            after, reward, done = move(cell, act)
            memory.append((cell, act, reward, after, done))
            state["age"] = 0 if done or state["age"] > 40 else state["age"] + 1
            state["cell"] = dice.choice(starts) if state["age"] == 0 else after
        cells, acts, rewards, afters, dones = zip(*dice.choices(memory, k=32), strict=True)
        with torch.no_grad():
            next_value = target(seen(afters)).max(1).values * (1 - torch.tensor(dones).float())
        value = net(seen(cells)).gather(1, torch.tensor(acts)[:, None])[:, 0]
        loss = F.smooth_l1_loss(value, torch.tensor(rewards) + gamma * next_value)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 24:
            target.load_state_dict(net.state_dict())
        return {"loss": loss, "q": value.mean().detach()}

    return tend(folder, net, optimizer, one, 800, score)


# A reservoir: the recurrent weights are random and stay so, only the readout learns.
@healthy(0.5)
def echoes_in_a_water_tank(folder):
    seeded(10261)
    net = nn.ModuleDict({"tank": nn.RNN(1, 120, batch_first=True), "read": nn.Linear(120, 1)})
    with torch.no_grad():
        recurrent = torch.randn(120, 120) / 120**0.5
        net["tank"].weight_hh_l0.copy_(0.9 * recurrent)
        net["tank"].weight_ih_l0.normal_(std=0.4)
    net["tank"].requires_grad_(False)
    optimizer = torch.optim.Adam(net["read"].parameters(), 5e-3)

    def echo(rows):
        x = torch.rand(rows, 40, 1) - 0.5
        return x, (x.roll(3, 1) + 0.6 * x.roll(5, 1) - 0.4 * x)[:, 8:]

    def error(x, y):
        return F.mse_loss(net["read"](net["tank"](x)[0][:, 8:]), y)

    test = echo(100)
    return fit(folder, net, optimizer, lambda step: error(*echo(16)), 500, score=held_out(net, lambda: error(*test)))


# Few rows, and most of a hundred columns mean nothing: strong decoupled decay is what makes it general.
@healthy(0.2)
def genes_that_make_a_rose_climb(folder):
    seeded(10262)
    way = torch.zeros(100, 1)
    way[:6] = 0.8
    x = torch.randn(700, 100)
    y = x @ way + 0.5 * torch.randn(700, 1)
    net = dense(100, 32, 1)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=2.0)
    draw = rounds(50, x[:300], y[:300])

    def loss_of(step):
        a, b = draw()
        return F.mse_loss(net(a), b)

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.mse_loss(net(x[300:]), y[300:])))


# Errors with heavy tails: the clip acts on many steps, and is meant to.
@healthy(0.5)
def depths_from_a_faulty_sonar(folder):
    seeded(10263)
    net = dense(3, 48, 48, 1, act=nn.SiLU)
    optimizer = torch.optim.SGD(net.parameters(), 0.03, momentum=0.9)
    heavy = torch.distributions.StudentT(1.8)

    def true(x):
        return x[:, :1].sin() + x[:, 1:2] * x[:, 2:] / 2 + 1

    def loss_of(step):
        x = torch.randn(64, 3)
        return F.mse_loss(net(x), true(x) + 0.3 * heavy.sample((64, 1)))

    x = torch.randn(1000, 3)
    score = held_out(net, lambda: F.mse_loss(net(x), true(x)))
    return fit(folder, net, optimizer, loss_of, 700, score=score, before_step=clipped(net, 0.5))


# A critic with a penalty on the gradient, five rounds to the maker's one (WGAN-GP).
@healthy(0.5)
def acorns_dropped_by_two_jays(folder):
    seeded(10264)
    make, judge = dense(4, 48, 48, 2), dense(2, 48, 48, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 1e-3, (0.0, 0.9))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, (0.0, 0.9))

    def acorns(rows):
        side = 2 * torch.randint(2, (rows, 1)) - 1
        return side * torch.tensor([2.0, 1.0]) + 0.3 * torch.randn(rows, 2)

    def judge_loss():
        real, fake = acorns(64), make(torch.randn(64, 4)).detach()
        share = torch.rand(64, 1)
        between = (share * real + (1 - share) * fake).requires_grad_()
        (slope,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
        return judge(fake).mean() - judge(real).mean() + (slope.norm(dim=1) - 1).square().mean()

    def make_loss():
        return -judge(make(torch.randn(64, 4))).mean()

    def score():
        with torch.no_grad():
            a, b = acorns(500), make(torch.randn(500, 4))
            return float(2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean())

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 400, score, rounds=5)
