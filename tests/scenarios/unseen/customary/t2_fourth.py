"""Ten healthy ones: tugs, covers, alloys, pens on a current, tape hiss, ferries, shelves, ovens, feed, songs."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds, tend


@healthy(0.5)
def tugs_sent_to_ships_by_a_policy_with_advantages(folder):
    seeded(14622)
    way = torch.randn(6, 4)

    def eased(ships):
        return (ships @ way).tanh()

    kept = torch.randn(1000, 6)
    net = dense(6, 48, 48, 4, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def one(step):
        ships = torch.randn(128, 6)
        policy = torch.distributions.Categorical(logits=net(ships))
        tug = policy.sample()
        reward = eased(ships).gather(1, tug[:, None])[:, 0] + 0.2 * torch.randn(128)
        advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
        entropy = policy.entropy().mean()
        loss = -(policy.log_prob(tug) * advantage).mean() - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return {"policy_loss": loss, "reward": reward.mean(), "entropy": entropy}

    def regret():
        gains = eased(kept)
        return (gains.max(1).values - (net(kept).softmax(1) * gains).sum(1)).mean()

    return tend(folder, net, optimizer, one, 300, held_out(net, regret))


@healthy(0.4)
def covers_of_one_edition_pulled_together_by_triplets(folder):
    seeded(14623)
    works, lift = torch.randn(60, 6), torch.randn(6, 32)

    def covers(work):
        return (works[work] @ lift).tanh() + 0.5 * torch.randn(len(work), 32)

    net = dense(32, 96, 96, 12)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=1e-2)

    def triplets(rows, low, high):
        work = torch.randint(low, high, (rows,))
        other = low + (work - low + torch.randint(1, high - low, (rows,))) % (high - low)
        anchor, near, far = (F.normalize(net(covers(of)), dim=1) for of in (work, work, other))
        gap = (anchor - far).norm(dim=1) - (anchor - near).norm(dim=1)
        return (0.4 - gap).relu().mean(), (gap > 0).float().mean()

    def loss_of(step):
        loss, ordered = triplets(96, 0, 45)
        return loss, {"ordered": float(ordered)}

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: triplets(3000, 45, 60)[0]))


@healthy(0.4)
def hardness_of_alloys_with_an_upper_and_a_lower_bound(folder):
    seeded(14624)
    way = torch.randn(7, 2) / 7**0.5
    shares = torch.tensor([0.1, 0.5, 0.9])

    def alloys(rows):
        x = torch.randn(rows, 7)
        a, b = (x @ way).unbind(1)
        return x, (2 * a).sin() + b + (0.1 + 0.3 * b.sigmoid()) * torch.randn(rows)

    (x, y), (tx, ty) = alloys(3000), alloys(1000)
    draw = rounds(100, x, y)
    net = nn.Sequential(
        nn.Linear(7, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 3)
    )
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 360, eta_min=1e-4)

    def pinball(x, y):
        gap = y[:, None] - net(x)
        return torch.maximum(shares * gap, (shares - 1) * gap).mean()

    validate = now_and_then(net, 30, lambda: {"val_loss": pinball(tx[:400], ty[:400])})

    def loss_of(step):
        return pinball(*draw()), validate(step)

    score = held_out(net, lambda: pinball(tx[400:], ty[400:]))
    return fit(folder, net, optimizer, loss_of, 360, schedule=schedule, score=score)


class Current(nn.Module):
    """A graph convolution with a path for the node itself and one for its neighbours."""

    def __init__(self, mixing, before, after):
        super().__init__()
        self.register_buffer("mixing", mixing)
        self.own, self.near = nn.Linear(before, after), nn.Linear(before, after, bias=False)

    def forward(self, x):
        return self.own(x) + self.near(self.mixing @ x)


@healthy(0.5)
def pens_downstream_of_each_other_and_their_algae(folder):
    seeded(14625)
    flows = (torch.rand(40, 40) < 0.1).float() + torch.eye(40)
    mixing = flows / flows.sum(1, keepdim=True)
    way = torch.randn(5, 2)

    def mornings(rows):
        water = torch.randn(rows, 40, 5)
        seen = water @ way / 2
        return water, (mixing @ seen[:, :, 0].tanh()[:, :, None])[:, :, 0] * 2 + 0.5 * seen[:, :, 1].sin()

    (x, y), (tx, ty) = mornings(600), mornings(150)
    draw = rounds(16, x, y)
    net = nn.Sequential(Current(mixing, 5, 32), nn.ReLU(), Current(mixing, 32, 32), nn.ReLU(), nn.Linear(32, 1),
                        nn.Flatten(1))  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 3e-3, weight_decay=1e-5)
    validate = now_and_then(net, 37, lambda: {"val_loss": F.mse_loss(net(tx[:50]), ty[:50])})

    def loss_of(step):
        water, algae = draw()
        return F.mse_loss(net(water), algae), validate(step)

    return fit(folder, net, optimizer, loss_of, 260, score=held_out(net, lambda: F.mse_loss(net(tx[50:]), ty[50:])))


@healthy(0.5)
def hiss_taken_from_old_tapes_of_interviews(folder):
    seeded(14626)
    time = torch.linspace(0, 6.28, 64)

    def tapes(rows):
        pitch, phase = 1 + 5 * torch.rand(rows, 2, 1), 6.28 * torch.rand(rows, 2, 1)
        voice = (pitch * time + phase).sin().sum(1, keepdim=True)
        return voice + 0.7 * torch.randn(rows, 1, 64), voice

    (x, y), (tx, ty) = tapes(2000), tapes(400)
    draw = rounds(32, x, y)
    layers = [nn.Conv1d(1, 24, 5, padding=2), nn.LeakyReLU(0.1)]
    for dilation in (1, 2, 4):
        layers += [nn.Conv1d(24, 24, 5, padding=2 * dilation, dilation=dilation), nn.LeakyReLU(0.1)]
    net = nn.Sequential(*layers, nn.Conv1d(24, 1, 5, padding=2))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def loss_of(step):
        tape, voice = draw()
        return F.l1_loss(net(tape), voice)

    return fit(folder, net, optimizer, loss_of, 220, score=held_out(net, lambda: F.l1_loss(net(tx), ty)))


@healthy(0.3)
def delays_of_ferries_as_a_mixture_of_two_bells(folder):
    seeded(14627)
    way = torch.randn(6, 3) / 6**0.5

    def trips(rows):
        x = torch.randn(rows, 6)
        a, b, c = (x @ way).unbind(1)
        late = torch.rand(rows) < (2 * c).sigmoid()
        return x, torch.where(late, 2 + a, -1 + b.sin()) + 0.2 * torch.randn(rows)

    (x, y), (tx, ty) = trips(4000), trips(1000)
    draw = rounds(128, x, y)
    net = dense(6, 64, 64, 6, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def surprise(x, y):
        share, centre, width = net(x).view(-1, 3, 2).unbind(1)
        bells = torch.distributions.Normal(centre, F.softplus(width) + 0.05)
        return -(share.log_softmax(1) + bells.log_prob(y[:, None])).logsumexp(1).mean()

    validate = now_and_then(net, 31, lambda: {"val_nll": surprise(tx[:400], ty[:400])})

    def loss_of(step):
        return surprise(*draw()), validate(step)

    score = held_out(net, lambda: surprise(tx[400:], ty[400:]))
    return fit(folder, net, optimizer, loss_of, 400, before_step=clipped(net, 5.0), score=score)


@healthy(0.5)
def shelf_numbers_after_a_trunk_that_knows_other_numbers(folder):
    seeded(14628)
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float() / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = (x[order] - 0.3) / 0.38, y[order]
    old, new = y < 5, y >= 5
    trunk, head = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU()), nn.Linear(48, 5)
    first = nn.Sequential(trunk, head)
    of_first, draw = torch.optim.Adam(first.parameters(), 2e-3), rounds(64, x[old], y[old])
    for _ in range(120):
        mark, number = draw()
        of_first.zero_grad()
        F.cross_entropy(first(mark), number).backward()
        of_first.step()
    x, y = x[new], y[new] - 5
    draw = rounds(32, x[:400], y[:400])
    net = nn.Sequential(trunk, nn.Dropout(0.1), nn.Linear(48, 5))
    optimizer = torch.optim.AdamW(
        [{"params": net[0].parameters(), "lr": 5e-4}, {"params": net[2].parameters(), "lr": 3e-3}], weight_decay=1e-2
    )
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 180)
    validate = now_and_then(net, 12, judged(net, x[400:600], y[400:600]))

    def loss_of(step):
        mark, number = draw()
        return F.cross_entropy(net(mark), number), validate(step)

    score = held_out(net, lambda: F.cross_entropy(net(x[600:]), y[600:]))
    return fit(folder, net, optimizer, loss_of, 180, schedule=schedule, score=score)


@healthy(0.6)
def a_cooling_oven_wall_that_obeys_the_heat_equation(folder):
    seeded(14629)
    net = dense(2, 48, 48, 48, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995)

    def heat(place, time):
        return (3.1416 * place).sin() * (-time).exp()

    def one(step):
        place, time = torch.rand(128, 1, requires_grad=True), torch.rand(128, 1, requires_grad=True)
        u = net(torch.cat([place, time], 1))
        by_place, by_time = torch.autograd.grad(u.sum(), (place, time), create_graph=True)
        twice = torch.autograd.grad(by_place.sum(), place, create_graph=True)[0]
        inside = (by_time - twice / 3.1416**2).square().mean()
        start, when = torch.rand(64, 1), torch.rand(64, 1)
        side = torch.randint(2, (64, 1)).float()
        begin = (net(torch.cat([start, 0 * start], 1)) - heat(start, 0 * start)).square().mean()
        border = net(torch.cat([side, when], 1)).square().mean()
        loss = inside + begin + border
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        return {"loss": loss, "equation": inside, "start": begin, "border": border}

    grid = torch.rand(2000, 2)
    score = held_out(net, lambda: (net(grid) - heat(grid[:, :1], grid[:, 1:])).abs().mean())
    return tend(folder, net, optimizer, one, 400, score)


@healthy(0.6)
def feed_that_is_left_over_after_a_meal_in_four_small_batches(folder):
    seeded(14630)
    way = torch.randn(10, 3) / 10**0.5

    def meals(rows):
        x = torch.randn(rows, 10)
        a, b, c = (x @ way).unbind(1)
        return x, (a * b + c.cos() - 0.6 + 0.1 * torch.randn(rows))[:, None]

    (x, y), (tx, ty) = meals(3000), meals(800)
    draw = rounds(24, x, y)
    net = nn.Sequential(
        nn.Linear(10, 64), nn.GroupNorm(8, 64), nn.SiLU(), nn.Linear(64, 64), nn.GroupNorm(8, 64), nn.SiLU(),
        nn.Linear(64, 1),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 4e-3, weight_decay=1e-2)

    def loss_of(part):
        meal, left = draw()
        return F.mse_loss(net(meal), left) / 4

    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 250, accumulate=4, score=score)


@healthy(0.4)
def songs_that_a_listener_would_rather_hear_next(folder):
    seeded(14631)
    taste, style = torch.randn(80, 4), torch.randn(120, 4)
    liking = taste @ style.T / 2
    net = nn.ModuleDict({"listeners": nn.Embedding(80, 8), "songs": nn.Embedding(120, 8)})
    for table in net.values():
        nn.init.normal_(table.weight, std=0.3)
    optimizer = torch.optim.Adagrad(net.parameters(), 0.1)

    def pairs(rows):
        who, one, other = torch.randint(80, (rows,)), torch.randint(120, (rows,)), torch.randint(120, (rows,))
        better = torch.rand(rows) < (3 * (liking[who, one] - liking[who, other])).sigmoid()
        return who, torch.where(better, one, other), torch.where(better, other, one)

    draw, kept = rounds(256, *pairs(12000)), pairs(3000)

    def error(who, heard, skipped):
        listener = net["listeners"](who)
        gap = (listener * (net["songs"](heard) - net["songs"](skipped))).sum(1)
        return -F.logsigmoid(gap).mean(), (gap > 0).float().mean()

    validate = now_and_then(net, 46, lambda: dict(zip(("val_loss", "val_auc"), error(*kept), strict=True)))

    def loss_of(step):
        loss, ordered = error(*draw())
        return loss, {"auc": float(ordered), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: error(*kept)[0]))
