"""Healthy trainings of an unusual make, third part: laws, corners, and kinds that nobody names."""

from __future__ import annotations

import math

import torch
from nets import batches
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.afresh.healthy_odd import flat_digits
from unseen.tasks import tend

# --------------------------------------------------------------------------------------------- laws and corners


@healthy(0.9)
def laws_of_a_butterfly_from_its_flight(folder):
    """Sparse identification: shares of products, and every twelve steps of LBFGS the small ones are struck out."""
    seeded(918)

    def law(s):
        x, y, z = s.unbind(-1)
        return torch.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z], -1)

    state, path = torch.randn(16, 3) * 5 + torch.tensor([0.0, 0.0, 25.0]), []
    for _ in range(200):
        for _ in range(4):
            k1 = law(state)
            state = state + 0.005 * law(state + 0.0025 * k1)
        path.append(state)
    path = torch.cat(path[20:])
    slopes = law(path) + 0.5 * torch.randn_like(path)
    x, y, z = path.unbind(1)
    terms = torch.stack([x, y, z, x * x, x * y, x * z, y * y, y * z, z * z], 1)
    sizes, unit = terms.square().mean(0).sqrt(), slopes.square().mean(0).sqrt()[:, None]
    net = nn.Linear(9, 3, bias=False)
    alive = torch.ones(3, 9)
    optimizer = optim.LBFGS(net.parameters(), 1.0, max_iter=10, line_search_fn="strong_wolfe")
    true = torch.zeros(3, 9)
    true[0, 0], true[0, 1], true[1, 0], true[1, 1], true[1, 5] = -10.0, 10.0, 28.0, -1.0, -1.0
    true[2, 4], true[2, 2] = 1.0, -8 / 3

    def loss_of(step):
        return F.mse_loss(F.linear(terms / sizes, net.weight * alive), slopes / unit[:, 0])

    @torch.no_grad()
    def strike(step):
        if step % 12 == 11:
            alive.mul_((net.weight * unit / sizes).abs() > 0.15)
            net.weight.mul_(alive)

    @torch.no_grad()
    def score():
        return ((net.weight * alive * unit / sizes - true).square().sum() / true.square().sum()).sqrt()

    return fit(folder, net, optimizer, loss_of, 60, score=score, after_step=strike, closure=True)


class FrankWolfe(optim.Optimizer):
    """Each step goes a share 2/(t+2) of the way to that corner of a ball of absolute values which the slope names."""

    def __init__(self, params, radius, lr=1.0):
        super().__init__(params, {"lr": lr, "radius": radius})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            share = group["lr"] * 2 / (self.steps + 2)
            for p in group["params"]:
                corner = torch.zeros_like(p).view(-1)
                at = p.grad.view(-1).abs().argmax()
                corner[at] = -group["radius"] * p.grad.view(-1)[at].sign()
                p.lerp_(corner.view_as(p), share)
        self.steps += 1


@healthy(0.8)
def one_corner_in_each_step(folder):
    """The first step goes all the way to a corner of the ball, the last ones a two-hundredth; it begins at zero."""
    seeded(921)
    net = nn.Linear(200, 1, bias=False)
    nn.init.zeros_(net.weight)
    true = torch.zeros(200)
    true[torch.randperm(200)[:8]] = torch.tensor([1.5, -1.5, 1.0, -1.0, 1.0, -1.0, 0.5, 0.5])

    def loss_of(step):
        x = torch.randn(256, 200)
        return F.mse_loss(net(x)[:, 0], x @ true + 0.1 * torch.randn(256))

    return fit(folder, net, FrankWolfe(net.parameters(), 8.0), loss_of, 400)


# ---------------------------------------------------------------------------------------- kinds that nobody names


def share_of_strangers(kinds, y):
    """The share of rows that are not of the commonest label of their kind."""
    table = torch.zeros(int(kinds.max()) + 1, 10)
    table.index_put_((kinds, y), torch.ones(len(y)), accumulate=True)
    return 1 - float(table.max(1).values.sum()) / len(y)


def shaken(x):
    """`[B, 8, 8]` images moved by up to a pixel, brightened and with noise."""
    moved = torch.stack([torch.roll(x, (dx, dy), (1, 2)) for dx in (-1, 0, 1) for dy in (-1, 0, 1)])
    x = moved[torch.randint(9, (len(x),)), torch.arange(len(x))]
    return (x * (0.8 + 0.4 * torch.rand(len(x), 1, 1)) + 0.1 * torch.randn_like(x)).flatten(1)


@healthy(0.4)
def kinds_that_two_looks_agree_upon(folder):
    """Invariant information clustering: minus the information of two looks' kinds; no label, a loss below zero."""
    seeded(922)
    net = dense(64, 128, 128, 20, norm=nn.BatchNorm1d)
    batch = batches(400, 922)
    x, y = flat_digits()

    def loss_of(step):
        images, _ = batch(step)
        looks = [shaken(images) for _ in range(2)]
        a, b = (net(look).softmax(1) for look in looks)
        joint = a.T @ b / len(a)
        joint = ((joint + joint.T) / 2).clamp(min=1e-8)
        return (joint * (joint.sum(0).log() + joint.sum(1, keepdim=True).log() - joint.log())).sum()

    def score():
        return share_of_strangers(net(x).argmax(1), y)

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 300, score=score)


@healthy(0.4)
def two_judges_that_differ_where_nothing_is_named(folder):
    """Maximum classifier discrepancy on moons that are turned: name, disagree, then agree; three steps in turn."""
    seeded(924)
    body = dense(2, 48, 48, act=nn.ReLU)
    heads = nn.ModuleList(dense(48, 48, 2) for _ in range(2))
    net = nn.ModuleDict({"body": body, "heads": heads})
    of_body, of_heads = optim.Adam(body.parameters(), 2e-3), optim.Adam(heads.parameters(), 2e-3)

    def moons(rows, turn):
        y = torch.randint(2, (rows,))
        angle = math.pi * torch.rand(rows)
        x = torch.stack([angle.cos() * (1 - 2 * y) + y - 0.5, angle.sin() * (1 - 2 * y) + 0.5 * y - 0.25], 1)
        x = x + 0.06 * torch.randn(rows, 2)
        c, s = math.cos(turn), math.sin(turn)
        return x @ torch.tensor([[c, s], [-s, c]]), y

    def parts(x):
        code = body(x).relu()
        return [head(code) for head in heads]

    def apart(x):
        a, b = (out.softmax(1) for out in parts(x))
        return (a - b).abs().mean()

    def one(step):
        x, y = moons(96, 0.0)
        other, _ = moons(96, 0.52)
        both = (of_body, of_heads)

        def take(loss, *optimizers):
            for optimizer in both:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            return loss.detach()

        named = take(sum(F.cross_entropy(out, y) for out in parts(x)), *both)
        if step > 100:
            take(sum(F.cross_entropy(out, y) for out in parts(x)) - apart(other), of_heads)
            for _ in range(3):
                agreed = take(apart(other), of_body)
        else:
            agreed = apart(other).detach()
        return {"loss": named, "discrepancy": agreed}

    @torch.no_grad()
    def score():
        x, y = moons(1000, 0.52)
        return float((sum(parts(x)).argmax(1) != y).float().mean())

    return tend(folder, net, [of_body, of_heads], one, 400, score)


@healthy(0.3)
def wires_that_fire_together(folder):
    """Sanger's rule: in `.grad` stands Hebb's product less what earlier outputs explain; backward never runs."""
    seeded(925)
    net = nn.Linear(64, 10, bias=False)
    nn.init.normal_(net.weight, std=0.05)
    x, _ = flat_digits()
    x = x - x.mean(0)
    optimizer = optim.SGD(net.parameters(), 0.02)
    schedule = optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step / 200))
    total = x.square().sum(1).mean()

    @torch.no_grad()
    def one(step):
        rows = x[torch.randint(len(x), (16,))]
        y = net(rows)
        net.weight.grad = -(y.T @ rows - (y.T @ y).tril() @ net.weight) / len(rows)
        optimizer.step()
        schedule.step()
        return {"loss": (rows - y @ net.weight).square().sum(1).mean(), "output_power": y.square().mean()}

    @torch.no_grad()
    def score():
        axes = torch.linalg.qr(net.weight.T)[0]
        return (x - x @ axes @ axes.T).square().sum(1).mean() / total

    return tend(folder, net, optimizer, one, 600, score)


@healthy(0.3)
def inner_worlds_of_walkers_that_are_told_apart(folder):
    """Diversity is all: four skills in a hall, and who guesses the skill from the place pays the walker for it."""
    seeded(926)
    walker, judge = dense(49 + 4, 64, 5, act=nn.Tanh), dense(49, 64, 4)
    net = nn.ModuleDict({"walker": walker, "judge": judge})
    of_walker, of_judge = optim.Adam(walker.parameters(), 3e-3), optim.Adam(judge.parameters(), 2e-3)
    moves = torch.tensor([[0, 0], [0, 1], [0, -1], [1, 0], [-1, 0]])

    def walk(rows):
        skill = torch.randint(4, (rows,))
        at = torch.full((rows, 2), 3)
        said, doubts, places = [], [], []
        for _ in range(8):
            seen = torch.cat([F.one_hot(at[:, 0] * 7 + at[:, 1], 49), F.one_hot(skill, 4)], 1).float()
            policy = torch.distributions.Categorical(logits=walker(seen))
            act = policy.sample()
            said.append(policy.log_prob(act))
            doubts.append(policy.entropy())
            at = (at + moves[act]).clamp(0, 6)
            places.append(F.one_hot(at[:, 0] * 7 + at[:, 1], 49).float())
        return skill, torch.stack(said), torch.stack(doubts), torch.stack(places)

    def one(step):
        skill, said, doubts, places = walk(64)
        with torch.no_grad():
            told = judge(places).log_softmax(2).gather(2, skill.expand(8, -1)[..., None])[..., 0] + math.log(4)
            later = told.flip(0).cumsum(0).flip(0)
            later = later - later.mean(1, keepdim=True)
        loss = -(said * later).mean() - 0.05 * doubts.mean()
        of_walker.zero_grad()
        loss.backward()
        of_walker.step()
        guess = F.cross_entropy(judge(places).flatten(0, 1), skill.repeat(8))
        of_judge.zero_grad()
        guess.backward()
        of_judge.step()
        return {"loss_policy": loss, "loss_discriminator": guess, "reward": told.mean(), "entropy": doubts.mean()}

    @torch.no_grad()
    def score():
        skill, _, _, places = walk(256)
        return F.cross_entropy(judge(places[-1]), skill)

    return tend(folder, net, [of_walker, of_judge], one, 220, score)
