"""Healthy trainings, some ordinary, most unusual but sound: rewards, contrasts, restarts, frozen bodies, closures."""

from __future__ import annotations

import copy
from collections import deque

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


@healthy(0.3)
def twins_among_smudged_digits(folder):
    seeded(10358)
    x = torch.tensor(load_digits().images).float()[:, None] / 16
    body = nn.Sequential(nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU(), nn.Flatten())
    net = nn.Sequential(body, nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 24))
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=1e-4)
    batch = rounds(64, x[:1400])

    def smudge(x):
        sheet = x.roll(int(torch.randint(-1, 2, (1,))), int(torch.randint(2, 4, (1,))))
        return sheet * (torch.rand_like(x) > 0.1) + 0.05 * torch.randn_like(x)

    def loss_on(x):
        z = F.normalize(torch.cat([net(smudge(x)), net(smudge(x))]), dim=1)
        table = (z @ z.T / 0.2).masked_fill(torch.eye(len(z), dtype=torch.bool), -torch.inf)
        return F.cross_entropy(table, torch.arange(len(z)).roll(len(x)))

    score = held_out(net, lambda: loss_on(x[1400:1464]))
    return fit(folder, net, optimizer, lambda step: loss_on(batch()[0]), 350, score=score)


@healthy(0.3)
def a_mole_and_the_shortest_tunnel(folder):
    seeded(10359)
    size = 5
    net = dense(2 * size, 48, 48, 4)
    target = copy.deepcopy(net)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    moves = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])
    memory = deque(maxlen=4000)

    def seen(at):
        return F.one_hot(at, size).flatten(-2).float()

    def go(at, action):
        then = (at + moves[action]).clamp(0, size - 1)
        done = (then == size - 1).all(-1)
        return then, done.float() - 0.04, done

    def score():
        with torch.no_grad():
            at, lost, alive = torch.zeros(1, 2, dtype=torch.long), 0.0, True
            for _ in range(20):
                if alive:
                    at, reward, done = go(at, net(seen(at)).argmax(1))
                    lost -= float(reward)
                    alive = not bool(done)
            return lost + 1.0

    place = [torch.zeros(2, dtype=torch.long), 0]

    def one(step):
        for _ in range(4):
            at, age = place
            greedy = torch.rand(()) > max(0.1, 1 - step / 300)
            with torch.no_grad():
                action = net(seen(at)).argmax() if greedy else torch.randint(4, ())
            then, reward, done = go(at, action)
            memory.append((at, action, reward, then, done))
            over = bool(done) or age > 40
            place[:] = (torch.randint(size - 1, (2,)), 0) if over else (then, age + 1)
        pick = torch.randint(len(memory), (48,)).tolist()
        at, action, reward, then, done = (torch.stack(c) for c in zip(*(memory[i] for i in pick), strict=False))
        with torch.no_grad():
            goal = reward + 0.95 * target(seen(then)).max(1).values * (~done)
        loss = F.smooth_l1_loss(net(seen(at)).gather(1, action[:, None])[:, 0], goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 24:
            target.load_state_dict(net.state_dict())
        return {"loss": loss, "reward": reward.mean()}

    return tend(folder, net, optimizer, one, 500, score)


# The reward comes only at the end of a corridor: for long nothing seems to be learnt.
@healthy(0.5)
def a_lamplighter_in_a_dark_corridor(folder):
    seeded(10360)
    length, walkers = 8, 64
    net = dense(length, 32, 2, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    eye = torch.eye(length)

    def walk():
        at, alive = torch.zeros(walkers, dtype=torch.long), torch.ones(walkers)
        logs, ent, gain = [], [], torch.zeros(walkers)
        for _ in range(10):
            policy = torch.distributions.Categorical(logits=net(eye[at]))
            action = policy.sample()
            logs.append(policy.log_prob(action) * alive)
            ent.append((policy.entropy() * alive).mean())
            at = (at + 2 * action - 1).clamp(0, length - 1)
            there = at == length - 1
            gain = gain + alive * there.float()
            alive = alive * (~there).float()
        return torch.stack(logs).sum(0), torch.stack(ent).mean(), gain

    def score():
        with torch.no_grad():
            return 1 - sum(float(walk()[2].mean()) for _ in range(8)) / 8

    state = {"baseline": 0.0}

    def one(step):
        log, entropy, gain = walk()
        loss = -((gain - state["baseline"]) * log).mean() - 0.01 * entropy
        state["baseline"] += 0.1 * (float(gain.mean()) - state["baseline"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "reward": gain.mean(), "entropy": entropy.detach()}

    return tend(folder, net, optimizer, one, 400, score)


# The body is random and stays so, as in a reservoir: the head alone learns.
@healthy(0.3)
def ripples_in_a_bucket_foretell_the_tide(folder):
    seeded(10361)
    bucket = nn.RNN(1, 80, batch_first=True).requires_grad_(False)
    with torch.no_grad():
        bucket.weight_hh_l0.normal_()
        bucket.weight_hh_l0 *= 0.9 / torch.linalg.eigvals(bucket.weight_hh_l0).abs().max()
        bucket.weight_ih_l0.uniform_(-0.5, 0.5)
    net = nn.ModuleDict({"bucket": bucket, "head": nn.Linear(80, 1)})
    optimizer = torch.optim.RMSprop(net["head"].parameters(), 2e-3)

    def tides(rows):
        time = torch.arange(40) + 100 * torch.rand(rows, 1)
        level = (time * 0.5).sin() + 0.6 * (time * 0.23 + 1).sin() + 0.03 * torch.randn(rows, 40)
        return level[:, :-2, None], level[:, -1:]

    def loss_of(step):
        x, y = tides(48)
        return F.mse_loss(net["head"](net["bucket"](x)[0][:, -1]), y)

    return fit(folder, net, optimizer, loss_of, 350)


# Every step is clipped, which is meant: gradients of one length, and a rate that suits it.
@healthy(0.5)
def knots_counted_along_a_rope(folder):
    seeded(10362)
    net = nn.ModuleDict({"rnn": nn.GRU(1, 32, batch_first=True), "head": nn.Linear(32, 7)})
    optimizer = torch.optim.SGD(net.parameters(), 1.0, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 400)

    def loss_of(step):
        x = torch.randint(2, (64, 6, 1)).float()
        return F.cross_entropy(net["head"](net["rnn"](x)[0][:, -1]), x.sum((1, 2)).long())

    return fit(folder, net, optimizer, loss_of, 400, before_step=clipped(net, 0.05), schedule=schedule)


# A weight decay of one, as in studies of grokking, which is meant: it leaves no room to know the sums by heart.
@healthy(0.3)
def sums_on_a_clock_of_twenty_nine_hours(folder):
    seeded(10363)
    hours = 29
    pairs = torch.cartesian_prod(torch.arange(hours), torch.arange(hours))
    pairs = pairs[torch.randperm(len(pairs))]
    y = pairs.sum(1) % hours
    net = nn.Sequential(nn.EmbeddingBag(hours, 64, mode="sum"), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, hours))
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, betas=(0.9, 0.98), weight_decay=1.0)
    n = 600

    def loss_of(step):
        said = net(pairs[:n])
        return F.cross_entropy(said, y[:n]), {"train_accuracy": (said.argmax(1) == y[:n]).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(pairs[n:]), y[n:]))
    return fit(folder, net, optimizer, loss_of, 1500, score=score)


# A differential equation by L-BFGS, in forty steps of a closure.
@healthy(0.9)
def a_gong_that_fades_by_its_equation(folder):
    seeded(10364)
    net = dense(1, 24, 24, 1, act=nn.Tanh)
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=8, history_size=20)
    time = torch.linspace(0, 3, 48)[:, None].requires_grad_(True)

    def slope(u):
        return torch.autograd.grad(u.sum(), time, create_graph=True)[0]

    def loss_of(step):
        u = net(time)
        v = slope(u)
        rest = slope(v) + 0.6 * v + 4 * u
        return rest.square().mean() + 10 * (u[0] - 1).square().sum() + 10 * v[0].square().sum()

    return fit(folder, net, optimizer, loss_of, 40, closure=True)
