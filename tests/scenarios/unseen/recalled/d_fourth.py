"""Healthy trainings of kitchens, gardens and animals: the unusual but sound ones."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, rings, seeded
from unseen.tasks import clipped, held_out, in_turn, rounds, tend


@healthy(0.3)
def mushrooms_named_by_hasty_pickers(folder):
    """Three labels in ten are wrong: the training loss stays high, and the clean one falls."""
    seeded(10460)
    kinds = 6
    middle = 1.4 * torch.randn(kinds, 12)
    net = dense(12, 64, 64, kinds)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.1)

    def baskets(rows, wrong):
        y = torch.randint(kinds, (rows,))
        x = middle[y] + torch.randn(rows, 12)
        hasty = torch.rand(rows) < wrong
        return x, torch.where(hasty, torch.randint(kinds, (rows,)), y)

    draw = rounds(64, *baskets(6400, 0.36))
    tx, ty = baskets(512, 0)

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y, label_smoothing=0.1), {"accuracy": (said.argmax(1) == y).float().mean()}

    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@healthy(0.4)
def mites_that_are_rare_among_the_bees(folder):
    """One bee in thirty has mites, which weigh thirty times as much in the loss."""
    seeded(10461)
    net = nn.Sequential(dense(10, 48, 48), nn.ReLU(), nn.Linear(48, 1))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    way, weight = torch.randn(10), torch.tensor(30.0)

    def bees(rows):
        x = torch.randn(30 * rows, 10)
        load = (x @ way + 0.5 * x[:, 0] * x[:, 1]) / way.norm()
        return x, (load > load.sort().values[-rows]).float()

    def loss_on(x, y):
        return F.binary_cross_entropy_with_logits(net(x)[:, 0], y, pos_weight=weight)

    draw, test = rounds(128, *bees(300)), bees(60)

    def loss_of(step):
        x, y = draw()
        with torch.no_grad():
            found = ((net(x)[:, 0] > 0) & (y > 0)).sum() / y.sum().clamp(min=1)
        return loss_on(x, y), {"recall": found}

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: loss_on(*test)))


@healthy(0.3)
def age_of_a_cheese_from_a_hundred_smells(folder):
    """Few rows and many columns: a decoupled weight decay of 2 is what keeps the columns without meaning small."""
    seeded(10462)
    smells, told = 100, 5
    net = dense(smells, 32, 1)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=2.0)
    way = torch.randn(told)

    def cheeses(rows):
        x = torch.randn(rows, smells)
        return x, (x[:, :told] @ way / way.norm() + 0.2 * torch.randn(rows))[:, None]

    draw = rounds(50, *cheeses(300))
    tx, ty = cheeses(512)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


@healthy(0.5)
def soups_told_by_random_noses(folder):
    """A body that is random and frozen on purpose: only the readout learns, by plain SGD."""
    seeded(10463)
    draw = rings(64, 3)
    body = nn.Sequential(nn.Linear(12, 400), nn.ReLU()).requires_grad_(False)
    nn.init.normal_(body[0].weight, std=0.3)
    nn.init.uniform_(body[0].bias, -1, 1)
    net = nn.Sequential(body, nn.LayerNorm(400, elementwise_affine=False), nn.Linear(400, 3))
    optimizer = torch.optim.SGD(net[2].parameters(), 0.1)
    parts = [draw() for _ in range(8)]
    tx, ty = (torch.cat(part) for part in zip(*parts, strict=True))

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y)

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@healthy(0.9)
def a_kettle_that_cools_on_the_sill(folder):
    """Thirty steps of L-BFGS on all rows; the loss asks for the law of cooling, and for where it begins."""
    seeded(10464)
    net = dense(1, 24, 24, 1, act=nn.Tanh)
    optimizer = torch.optim.LBFGS(net.parameters(), 1.0, max_iter=8, line_search_fn="strong_wolfe")
    t = torch.linspace(0, 2, 60)[:, None]

    def loss_of(step):
        at = t.clone().requires_grad_()
        warm = net(at)
        slope = torch.autograd.grad(warm.sum(), at, create_graph=True)[0]
        return (slope + 1.5 * warm).square().mean() + (warm[0] - 1).square().mean()

    def score():
        with torch.no_grad():
            return float((net(t) - (-1.5 * t).exp()).square().mean())

    return fit(folder, net, optimizer, loss_of, 30, score=score, closure=True)


@healthy(0.6)
def feathers_by_a_critic_with_a_penalty(folder):
    """Wasserstein with a gradient penalty: the critic's loss is below zero and comes back to it."""
    seeded(10465)
    make, critic = dense(6, 64, 64, 10), dense(10, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.0, 0.9))
    of_critic = torch.optim.Adam(critic.parameters(), 2e-3, betas=(0.0, 0.9))
    t = torch.linspace(0, 1, 10)

    def feathers(rows):
        long, bent = 0.8 + 0.6 * torch.rand(rows, 1), torch.randn(rows, 1)
        return long * (math.pi * t).sin() + bent * t.square()

    def judge_loss():
        real, fake = feathers(64), make(torch.randn(64, 6)).detach()
        share = torch.rand(64, 1)
        between = (share * real + (1 - share) * fake).requires_grad_()
        slope = torch.autograd.grad(critic(between).sum(), between, create_graph=True)[0].norm(dim=1)
        return critic(fake).mean() - critic(real).mean() + 10 * (slope - 1).square().mean()

    def make_loss():
        return -critic(make(torch.randn(64, 6))).mean()

    test = feathers(512)

    def score():
        with torch.no_grad():
            made = make(torch.randn(512, 6))
            between = torch.cdist(made, test).mean()
            return float(2 * between - torch.cdist(made, made).mean() - torch.cdist(test, test).mean())

    return in_turn(folder, make, critic, of_make, of_critic, judge_loss, make_loss, 250, score, rounds=3,
                   names=("critic", "maker"))  # fmt: skip


@healthy(0.4)
def trails_of_ants_that_grow_longer(folder):
    """A curriculum: every so often longer trails are among them, and the loss goes up."""
    seeded(10466)
    kinds, longest, steps = 4, 6, 900
    net = nn.ModuleDict({"read": nn.GRU(kinds + 1, 64, batch_first=True), "head": nn.Linear(64, kinds)})
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)

    def loss_on(length, rows=48):
        """The trail is seen once, and told again in its order."""
        trail = torch.randint(kinds, (rows, length))
        seen = torch.cat([trail, torch.full_like(trail, kinds)], 1)
        told = net["head"](net["read"](F.one_hot(seen, kinds + 1).float())[0][:, length:])
        return F.cross_entropy(told.flatten(0, 1), trail.flatten())

    def loss_of(step):
        most = 2 + step * (longest - 1) // steps
        length = int(torch.randint(2, most + 1, ()))
        return loss_on(length), {"longest": most}

    score = held_out(net, lambda: sum(loss_on(length, 128) for length in (2, 4, 6)) / 3)
    return fit(folder, net, optimizer, loss_of, steps, score=score, before_step=clipped(net, 1.0))


@healthy(0.4)
def jam_that_sets_after_warm_restarts(folder):
    """A rate that begins anew three times, and an average of the weights that is what counts."""
    seeded(10467)
    net = dense(8, 64, 64, 1, act=nn.SiLU)
    average = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 60, 2)
    way = torch.randn(8, 2) / 2.5

    def jams(rows):
        x = torch.randn(rows, 8)
        return x, (x @ way).sin().sum(1, keepdim=True) + 0.2 * torch.randn(rows, 1)

    draw = rounds(32, *jams(1600))
    tx, ty = jams(512)

    def one(step):
        x, y = draw()
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            for kept, new in zip(average.parameters(), net.parameters(), strict=True):
                kept.lerp_(new, 0.02)
        return {"loss": loss.detach(), "lr": optimizer.param_groups[0]["lr"]}

    return tend(folder, net, optimizer, one, 420, lambda: F.mse_loss(average(tx), ty))


@healthy(0.4)
def visits_to_a_foxglove_by_the_hour(folder):
    """Counts with heavy tails: Poisson's loss, which may be below zero, under a clip that acts often and is meant."""
    seeded(10468)
    net = dense(5, 48, 48, 1, act=nn.ELU)
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9)
    way = torch.randn(5) / 2

    def hours(rows):
        x = torch.randn(rows, 5)
        mean = (0.5 + 1.2 * (x @ way).sin() + 0.4 * x[:, 0] * (x[:, 1] > 0)).exp()
        return x, torch.poisson(mean * torch.distributions.Gamma(4.0, 4.0).sample((rows,)))

    draw = rounds(32, *hours(3200))
    tx, ty = hours(1024)

    def score():
        with torch.no_grad():
            log_mean = net(tx)[:, 0]
            return float(2 * (torch.xlogy(ty, ty) - ty * log_mean - ty + log_mean.exp()).mean())

    def loss_of(step):
        x, y = draw()
        return F.poisson_nll_loss(net(x)[:, 0], y)

    return fit(folder, net, optimizer, loss_of, 500, score=score, before_step=clipped(net, 2.0))


@healthy(0.7)
def odd_or_even_eggs_in_three_nests(folder):
    """A parity of three among sixteen: nothing is to be seen for a while, and then it is found."""
    seeded(10469)
    net = dense(16, 128, 2)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def nests(rows):
        x = torch.randint(2, (rows, 16))
        return 2.0 * x - 1, x[:, [2, 7, 11]].sum(1) % 2

    tx, ty = nests(1024)

    def loss_of(step):
        x, y = nests(64)
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": (said.argmax(1) == y).float().mean()}

    return fit(folder, net, optimizer, loss_of, 1500, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))
