"""Unusual trainings in which nothing is wrong: crafts, instruments and sports."""

from __future__ import annotations

import copy
import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


@healthy(0.5)
def a_ball_passed_to_the_free_player(folder):
    """DQN on a small court with a soft target network and rewards at the end only."""
    seeded(10660)
    size, gamma, rows = 5, 0.9, 64
    moves = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])
    net = dense(4, 64, 64, 4)
    target = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def fresh(n):
        return torch.randint(size, (n, 4))

    def view(state):
        return state.float() / (size - 1) * 2 - 1

    def act(state, action):
        there = (state[:, :2] + moves[action]).clamp(0, size - 1)
        done = (there == state[:, 2:]).all(1)
        return torch.cat([there, state[:, 2:]], 1), done.float()

    state = fresh(2000)
    action = torch.randint(4, (2000,))
    after, done = act(state, action)
    draw = rounds(rows, state, action, after, done)

    def one(step):
        s, a, t, end = draw()
        optimizer.zero_grad()
        with torch.no_grad():
            wanted = end + gamma * (1 - end) * target(view(t)).max(1).values
        q = net(view(s))
        loss = F.smooth_l1_loss(q.gather(1, a[:, None])[:, 0], wanted)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), net.parameters(), strict=True):
                slow.lerp_(fast, 0.05)
        return {"loss": loss, "q": q.mean().detach()}

    begin = fresh(300)

    def missed():
        now, reached = begin, torch.zeros(300)
        with torch.no_grad():
            for _ in range(10):
                now, end = act(now, net(view(now)).argmax(1))
                reached = torch.maximum(reached, end)
        return float(1 - reached.mean())

    return tend(folder, net, optimizer, one, 800, missed)


@healthy(0.4)
def stances_seen_by_a_borrowed_eye(folder):
    """The body was trained on other classes and is frozen; only a linear head learns, by SGD at a large rate."""
    seeded(10661)
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x).float() / 16, torch.tensor(y)
    body = dense(64, 96, 48)
    old, head = y < 5, nn.Linear(48, 5)
    before = torch.optim.Adam([*body.parameters(), *head.parameters()], 2e-3)
    for _ in range(150):
        before.zero_grad()
        F.cross_entropy(head(body(x[old]).relu()), y[old]).backward()
        before.step()
    body.requires_grad_(False)
    new_x, new_y = x[~old], y[~old] - 5
    order = torch.randperm(len(new_x))
    train, test = order[:700], order[700:]
    net = nn.Sequential(body, nn.ReLU(), nn.LayerNorm(48, elementwise_affine=False), nn.Linear(48, 5))
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.3)
    draw = rounds(64, new_x[train], new_y[train])

    def loss_of(step):
        a, b = draw()
        return F.cross_entropy(net(a), b)

    score = held_out(net, lambda: F.cross_entropy(net(new_x[test]), new_y[test]))
    return fit(folder, net, optimizer, loss_of, 150, score=score)


@healthy(0.3)
def a_shot_that_scores_once_in_a_while(folder):
    """REINFORCE with rewards of 0 and 1 that are rare at first, a learned baseline and an entropy bonus."""
    seeded(10662)
    net = nn.ModuleDict({"policy": dense(3, 48, 12, act=nn.Tanh), "value": dense(3, 48, 1, act=nn.Tanh)})
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    way = torch.tensor([1.0, -0.7, 0.4])

    def best(s):
        return ((s @ way).tanh() * 6 + 6).long().clamp(0, 11)

    def one(step):
        s = torch.randn(256, 3)
        choice = torch.distributions.Categorical(logits=net["policy"](s))
        a = choice.sample()
        reward = (a == best(s)).float()
        value = net["value"](s)[:, 0]
        gain = reward - value.detach()
        gain = gain / (gain.std() + 1e-6)
        optimizer.zero_grad()
        entropy = choice.entropy().mean()
        loss = -(choice.log_prob(a) * gain).mean() + 0.5 * F.mse_loss(value, reward) - 0.01 * entropy
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        return {"loss": loss, "reward": reward.mean(), "entropy": entropy.detach()}

    test = torch.randn(1000, 3)

    def missed():
        return 1 - net["policy"](test).softmax(1).gather(1, best(test)[:, None]).mean()

    return tend(folder, net, optimizer, one, 700, held_out(net, missed))


@healthy(0.9)
def arcs_of_a_hammer_by_newtons_kin(folder):
    """LBFGS on all rows at once, 40 steps, to a loss that is next to nothing."""
    seeded(10663)
    time = torch.linspace(-1, 1, 120)[:, None]
    arc = (4 * time).sin() * (-time.square()).exp()
    net = dense(1, 24, 24, 1, act=nn.Tanh)
    optimizer = torch.optim.LBFGS(net.parameters(), 0.8, max_iter=5, history_size=20, line_search_fn="strong_wolfe")

    def loss_of(step):
        return F.mse_loss(net(time), arc)

    return fit(folder, net, optimizer, loss_of, 40, score=held_out(net, lambda: loss_of(0)), closure=True)


@healthy(0.4)
def melodies_that_grow_longer_by_the_week(folder):
    """A curriculum: the melody to be echoed grows, and the loss jumps each time and comes down again."""
    seeded(10664)
    notes = 4
    net = nn.ModuleDict(
        {"note": nn.Embedding(notes + 1, 32), "memory": nn.GRU(32, 64, batch_first=True), "head": nn.Linear(64, notes)}
    )
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)

    def loss_on(rows, length):
        x = torch.randint(notes, (rows, length))
        heard = torch.cat([x, torch.full_like(x, notes)], 1)
        said = net["head"](net["memory"](net["note"](heard))[0][:, length:])
        return F.cross_entropy(said.flatten(0, 1), x.flatten())

    score = held_out(net, lambda: loss_on(400, 4))

    def loss_of(step):
        length = 1 + min(3, step // 150)
        return loss_on(48, length), {"length": float(length)}

    return fit(folder, net, optimizer, loss_of, 600, score=score, before_step=clipped(net, 1.0))


@healthy(0.3)
def referees_who_often_err(folder):
    """A third of the labels is wrong, and the loss (generalised cross-entropy) is made for it: it stays high."""
    seeded(10665)
    way = torch.randn(8, 5)

    def calls(rows, err):
        x = torch.randn(rows, 8)
        y = (x @ way).argmax(1)
        return x, torch.where(torch.rand(rows) < err, torch.randint(5, (rows,)), y)

    x, y = calls(3000, 0.4)
    test_x, test_y = calls(800, 0.0)
    net = dense(8, 64, 5)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(128, x, y)

    def loss_of(step):
        a, b = draw()
        p = net(a).softmax(1).gather(1, b[:, None])
        return ((1 - p.pow(0.5)) / 0.5).mean()

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.cross_entropy(net(test_x), test_y)))


@healthy(0.3)
def scores_of_a_gymnast_with_their_doubt(folder):
    """A Gaussian likelihood: the loss goes below zero, as a density may; warm restarts of the rate."""
    seeded(10666)

    def routines(rows):
        x = torch.rand(rows, 3) * 2 - 1
        wide = 0.02 + 0.1 * x[:, :1].abs()
        return x, (3 * x[:, 1:2]).sin() * x[:, 2:] + wide * torch.randn(rows, 1)

    net = dense(3, 64, 64, 2, act=nn.SiLU)
    optimizer = torch.optim.AdamW(net.parameters(), 4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 100, 2)

    def loss_on(x, y):
        mean, log_variance = net(x).chunk(2, 1)
        return F.gaussian_nll_loss(mean, y, log_variance.exp() + 1e-4)

    test = routines(1500)
    return fit(folder, net, optimizer, lambda step: loss_on(*routines(64)), 700,
               score=held_out(net, lambda: loss_on(*test)), schedule=schedule)  # fmt: skip


@healthy(0.4)
def strings_that_snap_on_a_harp(folder):
    """Three rows of a hundred are of the class that matters: weighted in the loss, on purpose."""
    seeded(10667)

    def strings(rows):
        x = torch.randn(rows, 8)
        pull = x[:, 0] + x[:, 1] * x[:, 2] + 0.2 * torch.randn(rows)
        return x, (pull > 2.7).float()

    x, y = strings(6000)
    test_x, test_y = strings(4000)
    weight = (1 - y.mean()) / y.mean()
    net = dense(8, 64, 32, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    draw = rounds(256, x, y)

    def loss_on(a, b):
        return F.binary_cross_entropy_with_logits(net(a)[:, 0], b, pos_weight=weight)

    def loss_of(step):
        a, b = draw()
        return loss_on(a, b)

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: loss_on(test_x, test_y)))


@healthy(0.3)
def whittled_down_to_a_few_knives(folder):
    """Large decoupled decay, which is meant: 60 columns, of which three matter, and 200 rows."""
    seeded(10668)
    way = torch.zeros(60, 1)
    way[:3, 0] = torch.tensor([2.0, -1.5, 1.0])

    def knives(rows):
        x = torch.randn(rows, 60)
        return x, x @ way + 0.5 * torch.randn(rows, 1)

    x, y = knives(200)
    test_x, test_y = knives(1000)
    net = dense(60, 32, 1)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.5)
    draw = rounds(50, x, y)

    def loss_of(step):
        a, b = draw()
        return F.mse_loss(net(a), b)

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.mse_loss(net(test_x), test_y)))


@healthy(0.5)
def knots_untied_by_a_slow_twin(folder):
    """A student is drawn to the centred, sharpened answer of its own average beside a few labelled rows."""
    seeded(10669)
    kinds, loops = 5, torch.randn(5, 20) * 1.2
    net = dense(20, 64, kinds)
    twin = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)

    def knots(rows):
        y = torch.randint(kinds, (rows,))
        return loops[y] + 0.9 * torch.randn(rows, 20), y

    few_x, few_y = knots(50)

    def one(step):
        x, _ = knots(96)
        optimizer.zero_grad()
        with torch.no_grad():
            wanted = (twin(x + 0.1 * torch.randn_like(x)) / 0.7).softmax(1)
        agree = F.mse_loss(net(x + 0.3 * torch.randn_like(x)).softmax(1), wanted)
        labelled = F.cross_entropy(net(few_x), few_y)
        loss = labelled + min(1.0, step / 100) * 2 * agree
        loss.backward()
        optimizer.step()
        keep = min(0.99, 1 - 1 / (step + 2))
        with torch.no_grad():
            for slow, fast in zip(twin.parameters(), net.parameters(), strict=True):
                slow.lerp_(fast, 1 - keep)
        return {"loss": loss, "labelled": labelled, "agree": agree}

    test_x, test_y = knots(1000)
    return tend(folder, net, optimizer, one, 250, held_out(net, lambda: F.cross_entropy(net(test_x), test_y)))


@healthy(0.6)
def balls_by_their_bounce_in_grams(folder):
    """A sum over rows and outputs as the loss, in the tens of thousands, with a rate that is made for it."""
    seeded(10670)
    way = torch.randn(6, 12)

    def bounces(rows):
        x = torch.randn(rows, 6)
        return x, 8 * (x @ way / math.sqrt(6)).sin()

    net = dense(6, 128, 12, act=nn.Tanh)
    optimizer = torch.optim.SGD(net.parameters(), 2e-5, momentum=0.9, nesterov=True)
    test_x, test_y = bounces(1000)

    def loss_of(step):
        x, y = bounces(128)
        return F.mse_loss(net(x), y, reduction="sum")

    return fit(folder, net, optimizer, loss_of, 1200, score=held_out(net, lambda: F.mse_loss(net(test_x), test_y)))
