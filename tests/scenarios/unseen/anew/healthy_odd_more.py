"""Healthy trainings with odd curves, second part: stages, rows that weigh nothing, bounds, worst groups, relaxation."""

from __future__ import annotations

import torch
from nets import batches, digits
from torch import nn, optim
from torch.func import functional_call
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, fit, healthy, score_of, seeded
from unseen.anew.healthy_odd import right

import gradwatch


@healthy(0.5)
def stages_each_for_what_is_left(folder):
    """Boosting: six small nets, each fitted to what those before it left over; only one at a time has gradients."""
    seeded(20)
    stages = nn.ModuleList(dense(6, 24, 1, act=nn.Tanh) for _ in range(6))
    make, a_stage, shrinkage = optim.Adam(stages.parameters(), 1e-2), 80, 0.7
    way, x = torch.randn(6, 3) / 2, torch.randn(1500, 6)
    y = (x @ way).sin().sum(1, keepdim=True)
    y = (y - y.mean()) / y.std() + 0.05 * torch.randn_like(y)

    def before(rows, stage):
        return shrinkage * sum((s(rows) for s in stages[:stage]), torch.zeros(len(rows), 1))

    def loss_of(step):
        rows, stage = torch.randint(1200, (128,)), step // a_stage
        with torch.no_grad():
            left = y[rows] - before(x[rows], stage)
        return F.mse_loss(stages[stage](x[rows]), left), {"stage": stage}

    @torch.no_grad()
    def score():
        done = len(stages) if make.state else 0
        return F.mse_loss(before(x[1200:], done), y[1200:])

    return fit(folder, stages, make, loss_of, 6 * a_stage, score=score)


@healthy(0.5)
def rows_weighed_by_what_helps_a_clean_few(folder):
    """Half of the labels are wrong; each row weighs what its gradient does for 100 rows that were checked by hand."""
    seeded(21)
    net = nn.Sequential(nn.Flatten(), dense(64, 64, 10))
    make = optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    plan = optim.lr_scheduler.MultiStepLR(make, [300, 400], 0.2)
    x, y = digits()
    order = torch.randperm(len(x))
    clean, rows, test = order[:100], order[100:1300], order[1300:]
    noisy = torch.where(torch.rand(len(y)) < 0.5, torch.randint(10, (len(y),)), y)

    def weights_of(at):
        own = dict(net.named_parameters())
        weights = torch.zeros(len(at), requires_grad=True)
        loss = (weights * F.cross_entropy(functional_call(net, own, (x[at],)), noisy[at], reduction="none")).sum()
        slopes = torch.autograd.grad(loss, list(own.values()), create_graph=True)
        ahead = {name: p - 0.1 * slope for (name, p), slope in zip(own.items(), slopes, strict=True)}
        few = clean[torch.randint(100, (50,))]
        (helps,) = torch.autograd.grad(F.cross_entropy(functional_call(net, ahead, (x[few],)), y[few]), weights)
        helps = (-helps).clamp(min=0)
        return helps / helps.sum().clamp(min=1e-8)

    def loss_of(step):
        at = rows[torch.randint(len(rows), (100,))]
        weights, logits = weights_of(at), net(x[at])
        loss = (weights * F.cross_entropy(logits, noisy[at], reduction="none")).sum()
        return loss, {"accuracy": right(logits, y[at]), "share_used": (weights > 0).float().mean()}

    def score():
        with torch.no_grad():
            return F.cross_entropy(net(x[test]), y[test])

    return fit(folder, net, make, loss_of, 450, score=score, schedule=plan)


class Convex(nn.Module):
    """A function that is convex in its input: no weight on the way from layer to layer is below zero."""

    def __init__(self, size, hidden):
        super().__init__()
        self.first, self.second = nn.Linear(size, hidden), nn.Linear(size, hidden)
        self.between, self.out = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, 1, bias=False)
        self.project()

    @torch.no_grad()
    def project(self):
        for layer in (self.between, self.out):
            layer.weight.clamp_(min=0)

    def forward(self, x):
        z = F.softplus(self.first(x))
        z = F.softplus(self.between(z) + self.second(x))
        return self.out(z) + 0.1 * x.square().sum(1, keepdim=True)

    def slope(self, x):
        x = x if x.requires_grad else x.clone().requires_grad_()
        return torch.autograd.grad(self(x).sum(), x, create_graph=True)[0]


@healthy(0.5)
def map_that_is_the_slope_of_a_convex_net(folder):
    """Optimal transport by two input-convex nets in a minimax: the score is how far the map is from the known one."""
    seeded(22)
    f, g = Convex(2, 32), Convex(2, 32)
    of_f, of_g = (optim.Adam(m.parameters(), 5e-3, betas=(0.5, 0.9)) for m in (f, g))
    stretch, centre = torch.tensor([[1.6, 0.5], [0.5, 0.7]]), torch.tensor([1.5, -1.0])

    def score():
        y = torch.randn(512, 2)
        return float((g.slope(y) - (y @ stretch + centre)).norm(dim=1).mean().detach())

    first = score()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(f, of_f)}
    w_f = gradwatch.watch(f, of_f, name="f", **options)
    w_g = gradwatch.watch(g, of_g, name="g", run=w_f, **options)
    with w_f, w_g:
        for _ in range(160):
            for _ in range(5):
                y = torch.randn(96, 2)
                of_g.zero_grad()
                moved = g.slope(y)
                loss = (f(moved)[:, 0] - (y * moved).sum(1)).mean()
                loss.backward()
                of_g.step()
                g.project()
                w_g.log(loss=loss)
            x, y = torch.randn(96, 2) @ stretch + centre, torch.randn(96, 2)
            of_f.zero_grad()
            moved = g.slope(y).detach()
            loss = (f(x) - f(moved)).mean()
            loss.backward()
            of_f.step()
            f.project()
            w_f.log(loss=loss)
    return Outcome(gradwatch.open_history(w_f.dir.parent), first, score())


@healthy(0.2)
def thousand_words_in_three_bands(folder):
    """An adaptive softmax over words as frequent as Zipf says: the bands of rare words have few rows, or none."""
    seeded(23)
    words = 1000
    net = nn.ModuleDict(
        {
            "embed": nn.Embedding(words, 48),
            "memory": nn.GRU(48, 48, batch_first=True),
            "head": nn.AdaptiveLogSoftmaxWithLoss(48, words, cutoffs=[20, 200], div_value=2.0),
        }
    )
    make = optim.Adagrad(net.parameters(), 0.05)
    often = 1 / (torch.arange(words) + 1.0) ** 1.2
    after = torch.multinomial(often, words, replacement=True)

    def texts(rows=24, length=20):
        fresh = torch.multinomial(often, rows * (length + 1), replacement=True).view(rows, -1)
        said = [fresh[:, 0]]
        for i in range(1, length + 1):
            said.append(torch.where(torch.rand(rows) < 0.75, after[said[-1]], fresh[:, i]))
        return torch.stack(said, 1)

    def loss_of(step):
        text = texts()
        h, _ = net["memory"](net["embed"](text[:, :-1]))
        return net["head"](h.flatten(0, 1), text[:, 1:].flatten()).loss

    return fit(folder, net, make, loss_of, 450, score=score_of(loss_of))


@healthy(0.5)
def reasons_of_a_walker_who_was_watched(folder):
    """Maximum-entropy inverse RL: rewards under which soft value iteration walks as the one who was watched."""
    seeded(24)
    side, sight = 6, torch.randn(36, 5)
    net = dense(5, 24, 1, act=nn.Tanh)
    make = optim.Adam(net.parameters(), 5e-3)
    row, column = torch.arange(36) // side, torch.arange(36) % side
    moves = [(-1, 0), (1, 0), (0, -1), (0, 1)]
    after = torch.stack([(row + r).clamp(0, 5) * side + (column + c).clamp(0, 5) for r, c in moves], 1)

    def log_policy(reward):
        value = torch.zeros(36)
        for _ in range(30):
            q = reward[:, None] + 0.9 * value[after]
            value = q.logsumexp(1)
        return q - value[:, None]

    truth = log_policy((sight[:, 0] * sight[:, 1]).tanh() + sight[:, 2])

    def loss_of(step):
        at = torch.randint(36, (128,))
        act = torch.multinomial(truth[at].exp(), 1)
        log_p = log_policy(net(sight)[:, 0])[at].gather(1, act)[:, 0]
        return -log_p.mean(), {"agreement": log_p.detach().exp().mean()}

    @torch.no_grad()
    def score():
        return (truth.exp() * (truth - log_policy(net(sight)[:, 0]))).sum(1).mean()

    return fit(folder, net, make, loss_of, 350, score=score)


@healthy(0.5)
def states_that_settle_before_weights_move(folder):
    """Predictive coding: states relax under the energy, then each layer learns from the errors beside it alone."""
    seeded(25)
    net = nn.ModuleList([nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)])
    make, batch = optim.Adam(net.parameters(), 1e-3), batches(48, seed=25)

    def said(layer, x):
        return net[layer](x if layer == 0 else x.tanh())

    def energy(states):
        return sum(0.5 * (states[i + 1] - said(i, states[i])).square().sum(1).mean() for i in range(3))

    def forward(x):
        states = [x]
        for layer in range(3):
            states.append(said(layer, states[-1]))
        return states

    def loss_of(step):
        x, y = batch(step)
        x = x.flatten(1)
        with torch.no_grad():
            _, one, two, out = forward(x)
        goal = F.one_hot(y, 10).float()
        for _ in range(8):
            one.requires_grad_()
            two.requires_grad_()
            slopes = torch.autograd.grad(len(x) * energy([x, one, two, goal]), (one, two))
            one, two = (s.detach() - 0.2 * slope for s, slope in zip((one, two), slopes, strict=True))
        return energy([x, one, two, goal]), {"accuracy": right(out, y), "mse": F.mse_loss(out, goal)}

    def score():
        with torch.no_grad():
            x, y = digits()
            return 1 - right(forward(x.flatten(1))[-1], y)

    return fit(folder, net, make, loss_of, 300, score=score)


@healthy(0.2)
def groups_that_weigh_what_they_cost(folder):
    """Group DRO: a shortcut holds for most rows; others gain weight, and the plain mean suffers."""
    seeded(26)
    net = dense(12, 48, 2)
    make = optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-3)
    shares, weights = torch.tensor([0.48, 0.04, 0.04, 0.44]), torch.ones(4) / 4
    core, short = torch.randn(12), torch.randn(12)

    def draw(size, shares):
        group = torch.multinomial(shares, size, replacement=True)
        y, sign = group // 2, group % 2
        x = torch.randn(size, 12) + 0.35 * (2 * y - 1)[:, None] * core + 0.6 * (2 * sign - 1)[:, None] * short
        return x, y, group

    def group_losses(x, y, group):
        each = F.cross_entropy(net(x), y, reduction="none")
        of_group = F.one_hot(group, 4).float()
        return (each @ of_group) / of_group.sum(0).clamp(min=1), each.mean()

    def loss_of(step):
        nonlocal weights
        x, y, group = draw(128, shares)
        losses, plain = group_losses(x, y, group)
        weights = weights * (0.05 * losses.detach()).exp()
        weights = weights / weights.sum()
        return weights @ losses, {"mean_loss": plain.detach(), "worst_group": losses.detach().max()}

    def score():
        with torch.no_grad():
            return group_losses(*draw(2000, torch.ones(4)))[0].max()

    return fit(folder, net, make, loss_of, 400, score=score)


@healthy(0.3)
def digits_held_within_bounds(folder):
    """Interval bounds: the radius and the share of the worst case rise over most of the run, and the loss with them."""
    seeded(27)
    net, batch = nn.Sequential(nn.Flatten(), dense(64, 96, 96, 10)), batches(96, seed=27)
    make = optim.Adam(net.parameters(), 2e-3)
    plan = optim.lr_scheduler.MultiStepLR(make, [380], 0.2)

    def worst(x, y, radius):
        middle, reach = x.flatten(1), torch.full((len(x), 64), radius)
        for layer in net[1]:
            if isinstance(layer, nn.Linear):
                middle, reach = layer(middle), F.linear(reach, layer.weight.abs())
            else:
                low, high = layer(middle - reach), layer(middle + reach)
                middle, reach = (high + low) / 2, (high - low) / 2
        own = F.one_hot(y, 10).bool()
        return torch.where(own, middle - reach, middle + reach)

    def loss_of(step):
        x, y = batch(step)
        ramp = min(1.0, max(0, step - 50) / 300)
        logits, bound = net(x), worst(x, y, 0.06 * ramp)
        loss = (1 - 0.5 * ramp) * F.cross_entropy(logits, y) + 0.5 * ramp * F.cross_entropy(bound, y)
        return loss, {"accuracy": right(logits, y), "certified": right(bound, y), "radius": 0.06 * ramp}

    def score():
        with torch.no_grad():
            return F.cross_entropy(worst(*digits(), 0.06), digits()[1])

    return fit(folder, net, make, loss_of, 450, score=score, schedule=plan)
