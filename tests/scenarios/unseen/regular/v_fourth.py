"""Healthy trainings of libraries, museums and archives: unusual, and sound."""

from __future__ import annotations

import copy

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.distributions import Bernoulli
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, in_turn, rounds, tend


def digits():
    """Images [N, 64] between 0 and 1 and what they show, in a drawn order."""
    images, shown = load_digits(return_X_y=True)
    order = torch.randperm(len(shown))
    return torch.tensor(images / 16, dtype=torch.float32)[order], torch.tensor(shown)[order]


@healthy()
def weights_of_coins_to_the_last_grain(folder):
    seeded(12260)
    x = torch.linspace(-2, 2, 80)[:, None]
    y = (2 * x).sin() + 0.3 * x
    net = dense(1, 20, 20, 1, act=nn.Tanh)
    optimizer = torch.optim.LBFGS(net.parameters(), 1.0, max_iter=8, line_search_fn="strong_wolfe")
    return fit(folder, net, optimizer, lambda step: F.mse_loss(net(x), y), 40, closure=True)


@healthy()
def names_from_a_register_half_misread(folder):
    seeded(12261)
    kinds = 6
    net = dense(16, 64, 64, kinds)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    ways = torch.randn(kinds, 16)

    def entries(rows, misread):
        y = torch.randint(kinds, (rows,))
        x = ways[y] + 0.7 * torch.randn(rows, 16)
        return x, torch.where(torch.rand(rows) < misread, torch.randint(kinds, (rows,)), y)

    draw, (tx, ty) = rounds(64, *entries(5000, 0.5)), entries(800, 0.0)

    def loss_of(step):
        x, y = draw()
        sure = net(x).softmax(1).gather(1, y[:, None])
        return ((1 - sure.clamp(min=1e-6) ** 0.5) / 0.5).mean()

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@healthy()
def a_reading_room_by_votes_of_signs(folder):
    seeded(12262)
    x, y = digits()
    net = dense(64, 64, 10)
    optimizer = torch.optim.SGD(net.parameters(), 2e-3)
    draw = rounds(64, x[:1400], y[:1400])

    def loss_of(step):
        bx, by = draw()
        return F.cross_entropy(net(bx), by)

    averages = [torch.zeros_like(p) for p in net.parameters()]

    def before_step(step):
        for p, average in zip(net.parameters(), averages, strict=True):
            way = (0.9 * average + 0.1 * p.grad).sign()
            average.lerp_(p.grad, 0.01)
            p.grad = way + 0.1 * p.detach()

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score, before_step=before_step)


@healthy()
def lamps_dimmed_room_by_room(folder):
    seeded(12263)
    net = dense(6, 32, 4, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    need = torch.randn(6, 4)
    usual = torch.zeros(())

    def reward_of(state, lit):
        return -(lit - (state @ need > 0).float()).abs().sum(1)

    def one(step):
        nonlocal usual
        state = torch.randn(64, 6)
        policy = Bernoulli(logits=net(state))
        lit = policy.sample()
        reward = reward_of(state, lit)
        loss = -(policy.log_prob(lit).sum(1) * (reward - usual)).mean() - 0.01 * policy.entropy().sum(1).mean()
        usual = 0.9 * usual + 0.1 * reward.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "reward": reward.mean()}

    test = torch.randn(500, 6)
    return tend(
        folder, net, optimizer, one, 350, held_out(net, lambda: -reward_of(test, (net(test) > 0).float()).mean())
    )


@healthy()
def keys_for_longer_and_longer_corridors(folder):
    seeded(12264)
    net = nn.ModuleDict({"walk": nn.GRU(2, 32, batch_first=True), "say": nn.Linear(32, 2)})
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def doors(rows, length):
        signs = torch.randint(2, (rows, length))
        return F.one_hot(signs, 2).float(), signs.sum(1) % 2

    def loss_on(x, y):
        return F.cross_entropy(net["say"](net["walk"](x)[0][:, -1]), y)

    tx, ty = doors(400, 6)
    score = held_out(net, lambda: loss_on(tx, ty))
    return fit(
        folder, net, optimizer, lambda step: loss_on(*doors(64, 2 + step // 100)), 600, score=score,
        before_step=clipped(net, 1.0),
    )  # fmt: skip


@healthy()
def plaster_casts_of_an_antique_ring(folder):
    seeded(12265)
    make = dense(4, 64, 64, 2)
    judge = dense(2, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.RMSprop(make.parameters(), 1e-3)
    of_judge = torch.optim.Adam(judge.parameters(), 2e-3, betas=(0.0, 0.9))

    def rings(rows=64):
        angle = 6.2832 * torch.rand(rows)
        return torch.stack([angle.cos(), angle.sin()], 1) * 1.5 + 0.05 * torch.randn(rows, 2) + 1

    def made(rows=64):
        return make(torch.randn(rows, 4))

    def judge_loss():
        real, fake = rings(), made().detach()
        between = real.lerp(fake, torch.rand(64, 1)).requires_grad_()
        (slope,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
        return judge(fake).mean() - judge(real).mean() + (slope.norm(dim=1) - 1).square().mean()

    def score():
        with torch.no_grad():
            x = made(1000) - 1
            return float((x.norm(dim=1) - 1.5).abs().mean() + x.mean(0).norm())

    return in_turn(
        folder, make, judge, of_make, of_judge, judge_loss, lambda: -judge(made()).mean(), 200, score, rounds=3
    )


@healthy()
def a_copyist_who_follows_a_slower_self(folder):
    seeded(12266)
    x, y = digits()
    net = nn.Sequential(dense(64, 96, 32, norm=nn.BatchNorm1d), dense(32, 32, 32, norm=nn.BatchNorm1d))
    slow = copy.deepcopy(net[0]).requires_grad_(False)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    draw = rounds(128, x[:1500])

    def view(x):
        return x * (torch.rand_like(x) > 0.2) + 0.1 * torch.randn_like(x)

    def apart(a, b):
        return 2 - 2 * F.cosine_similarity(net(a), slow(b).detach()).mean()

    def one(step):
        (x,) = draw()
        a, b = view(x), view(x)
        loss = (apart(a, b) + apart(b, a)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for late, now in zip(slow.parameters(), net[0].parameters(), strict=True):
                late.lerp_(now, 0.05)
        return {"loss": loss}

    test = x[1500:]
    once, twice = view(test), view(test)
    return tend(folder, net, optimizer, one, 250, held_out(net, lambda: apart(once, twice)))


@healthy()
def height_of_a_vault_from_its_plan(folder):
    seeded(12267)
    grid = torch.stack(torch.meshgrid(torch.linspace(-1, 1, 24), torch.linspace(-1, 1, 24), indexing="ij"), -1)
    place = grid.flatten(0, 1)
    height = (4 * place[:, :1]).cos() * (4 * place[:, 1:]).cos() + 0.5 * (9 * place[:, :1] * place[:, 1:]).sin()

    class Sine(nn.Module):
        def forward(self, x):
            return (15 * x).sin()

    net = dense(2, 48, 48, 1, act=Sine)
    with torch.no_grad():
        net[2].weight.uniform_(-((6 / 48) ** 0.5) / 15, (6 / 48) ** 0.5 / 15)
        net[4].weight.uniform_(-((6 / 48) ** 0.5) / 15, (6 / 48) ** 0.5 / 15)
    optimizer = torch.optim.Adam(net.parameters(), 5e-4)
    return fit(folder, net, optimizer, lambda step: F.mse_loss(net(place), height), 300)


@healthy()
def a_clerk_who_files_one_card_at_a_time(folder):
    seeded(12268)
    net = nn.Linear(12, 4)
    optimizer = torch.optim.SGD(net.parameters(), 0.05)
    ways = torch.randn(12, 4)

    def cards(rows):
        x = torch.randn(rows, 12)
        return x, (x @ ways).argmax(1)

    def loss_of(step):
        x, y = cards(1)
        return F.cross_entropy(net(x), y)

    tx, ty = cards(500)
    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@healthy()
def visitors_between_two_guesses(folder):
    seeded(12269)
    net = dense(5, 48, 48, 3, act=nn.SiLU)
    optimizer = torch.optim.NAdam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 100)
    shares = torch.tensor([0.1, 0.5, 0.9])
    way = torch.randn(5)

    def days(rows):
        x = torch.randn(rows, 5)
        spread = 0.2 + 0.3 * x[:, 0].abs()
        return x, (x @ way).sin() * 2 + x[:, 1] + spread * torch.distributions.StudentT(3.0).sample((rows,))

    def pinball(x, y):
        out = net(x)
        gap = y[:, None] - torch.cat([out[:, :1], F.softplus(out[:, 1:])], 1).cumsum(1)
        return torch.maximum(shares * gap, (shares - 1) * gap).mean()

    draw, test = rounds(64, *days(2500)), days(600)

    def loss_of(step):
        return pinball(*draw()), {"lr": schedule.get_last_lr()[0]}

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: pinball(*test)), schedule=schedule)
