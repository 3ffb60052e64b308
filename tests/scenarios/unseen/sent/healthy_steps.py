"""Sent healthy trainings, sixth part: steps that are not those of a plain gradient. An expert is content with each.

They only count (the group `sent`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import copy
import itertools

import torch
from nets import batches, classify, digits, mlp
from torch import nn, optim
from torch.func import functional_call
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, entropy_of, fit, healthy, rings, score_of, seeded

import gradwatch


@healthy(0.3)
def weights_copied_from_a_better_one(folder):
    """Four at once; each 50 steps one copies the best and shakes its rate (Jaderberg et al. 2017)."""
    seeded(1071)
    nets = [mlp(48, seed=1071 + i) for i in range(4)]
    makers = [
        optim.SGD(net.parameters(), rate, momentum=0.9) for net, rate in zip(nets, (1e-3, 3e-3, 0.01, 0.1), strict=True)
    ]
    losses = [classify(net, batches(64, seed=1071 + i)) for i, net in enumerate(nets)]
    found = [0.0] * 4

    def loss_of(step):
        for i in (1, 2, 3):
            makers[i].zero_grad()
            loss = losses[i](step)
            loss.backward()
            makers[i].step()
            found[i] += 0.1 * (float(loss.detach()) - found[i])
        return losses[0](step)

    def after(step):
        if step % 50 == 49:
            best = min((1, 2, 3), key=lambda i: found[i])
            nets[0].load_state_dict(nets[best].state_dict())
            makers[0].param_groups[0]["lr"] = makers[best].param_groups[0]["lr"] * (0.8 if step % 100 == 49 else 1.2)

    return fit(folder, nets[0], makers[0], loss_of, 300, after_step=after)


@healthy(0.3)
def start_from_which_one_step_is_enough(folder):
    """MAML (Finn et al. 2017): through a step on ten points of a wave, for ten others; sixteen waves a batch."""
    seeded(1072)
    net = dense(1, 32, 32, 1)

    def after_one(weights, x, y):
        slopes = torch.func.grad(lambda w: F.mse_loss(functional_call(net, w, (x[:10],)), y[:10]))(weights)
        moved = {name: w - 0.05 * slopes[name] for name, w in weights.items()}
        return F.mse_loss(functional_call(net, moved, (x[10:],)), y[10:])

    def loss_of(step):
        x = 6 * torch.rand(16, 20, 1) - 3
        y = (0.5 + 2 * torch.rand(16, 1, 1)) * (x + 3.1 * torch.rand(16, 1, 1)).sin()
        return torch.func.vmap(after_one, (None, 0, 0))(dict(net.named_parameters()), x, y).mean()

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 400)


@healthy(0.3)
def updates_of_clients_as_gradients(folder):
    """Five clients train where they are; the mean of how far they came is what Adam gets (Reddi et al. 2021)."""
    seeded(1073)
    (x, y), net = digits(), nn.Sequential(nn.Flatten(), dense(64, 48, 10))
    shards = [((y[:1500] == kind) | (y[:1500] == (kind + 1) % 10)).nonzero()[:, 0] for kind in range(10)]

    def loss_of(step):
        losses = []
        far = [torch.zeros_like(p) for p in net.parameters()]
        for client in torch.randperm(10)[:5].tolist():
            local = copy.deepcopy(net)
            make = optim.SGD(local.parameters(), 0.05)
            for _ in range(4):
                at = shards[client][torch.randint(len(shards[client]), (16,))]
                loss = F.cross_entropy(local(x[at]), y[at])
                make.zero_grad()
                loss.backward()
                make.step()
            losses.append(loss.detach())
            for sum_of_ways, p, q in zip(far, net.parameters(), local.parameters(), strict=True):
                sum_of_ways.add_(p.detach() - q.detach(), alpha=0.2)
        for p, way in zip(net.parameters(), far, strict=True):
            p.far = way
        return sum(losses) / 5 + 0 * sum(p.sum() for p in net.parameters())

    def before(step):
        for p in net.parameters():
            p.grad = p.far

    def score():
        with torch.no_grad():
            return float(F.cross_entropy(net(x[1500:]), y[1500:]))

    make = optim.Adam(net.parameters(), 1e-2, betas=(0.9, 0.99), eps=1e-3)
    return fit(folder, net, make, loss_of, 100, before_step=before, score=score)


class ByFactors(optim.Optimizer):
    """Steps by the inverses of two small matrices a layer, of what comes in and what goes back (K-FAC, 2015)."""

    def __init__(self, net, lr):
        super().__init__(net.parameters(), {"lr": lr})
        self.layers = [m for m in net.modules() if isinstance(m, nn.Linear)]
        self.seen, self.factors = {}, {}
        for layer in self.layers:
            layer.register_forward_hook(lambda m, args, out: self.seen.update({(m, "in"): args[0].detach()}))
            layer.register_full_backward_hook(lambda m, a, out: self.seen.update({(m, "out"): out[0] * len(out[0])}))

    @torch.no_grad()
    def step(self, closure=None):
        for layer in self.layers:
            rows = F.pad(self.seen[layer, "in"], (0, 1), value=1.0)
            inverse = []
            for key, x in (((layer, 0), rows), ((layer, 1), self.seen[layer, "out"])):
                now = x.T @ x / len(x)
                self.factors[key] = now if key not in self.factors else 0.95 * self.factors[key] + 0.05 * now
                inverse.append(torch.linalg.inv(self.factors[key] + 0.03 * torch.eye(len(now))))
            slope = torch.cat([layer.weight.grad, layer.bias.grad[:, None]], 1)
            way = inverse[1] @ slope @ inverse[0]
            way *= min(1.0, (0.01 / float((way * slope).sum() + 1e-12)) ** 0.5)
            layer.weight.sub_(way[:, :-1], alpha=self.param_groups[0]["lr"])
            layer.bias.sub_(way[:, -1], alpha=self.param_groups[0]["lr"])


@healthy(0.5)
def curvature_of_rows_and_columns(folder):
    seeded(1074)
    net, draw = dense(12, 48, 48, 4, act=nn.Tanh), rings(128)
    return fit(folder, net, ByFactors(net, 0.5), entropy_of(net, draw), 200)


class Spins(nn.Module):
    """The logarithm of how likely a row of spins is (Carleo and Troyer 2017)."""

    def __init__(self, spins=8, hidden=16):
        super().__init__()
        self.line, self.inner = nn.Parameter(0.3 * torch.randn(spins)), nn.Linear(spins, hidden)
        nn.init.normal_(self.inner.weight, std=0.3)

    def forward(self, s):
        return s @ self.line + (2 * self.inner(s).cosh()).log().sum(-1)


@healthy(0.2)
def lowest_state_of_a_ring_of_spins(folder):
    """Eight spins in a field; the loss is their energy and falls far below 0. Each slope is divided by the metric."""
    seeded(1076)
    net = Spins()
    states = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=8)))
    flips = states[:, None] * (1 - 2 * torch.eye(8))
    weights = list(net.parameters())

    def loss_of(step):
        log = net(states)
        local = -(states * states.roll(1, 1)).sum(1) - (net(flips) - log[:, None]).exp().sum(1).detach()
        share = (2 * log).softmax(0)
        return (share * local).sum()

    def before(step):
        share = (2 * net(states)).softmax(0).detach()
        rows = torch.func.vmap(torch.func.grad(lambda w, s: functional_call(net, w, (s,))), (None, 0))
        slopes = torch.cat([g.flatten(1) for g in rows(dict(net.named_parameters()), states).values()], 1).detach()
        slopes = slopes - share @ slopes
        metric = slopes.T @ (share[:, None] * slopes) + 1e-2 * torch.eye(slopes.shape[1])
        way = torch.linalg.solve(metric, torch.cat([p.grad.flatten() for p in weights]))
        for p, part in zip(weights, way.split([p.numel() for p in weights]), strict=True):
            p.grad = part.view_as(p).clone()

    return fit(folder, net, optim.SGD(weights, 0.03), loss_of, 150, before_step=before)


class Paths(nn.Module):
    """Three ways through each of two layers, and how much each of them counts (DARTS, Liu et al. 2019)."""

    def __init__(self, width=32):
        super().__init__()
        self.first, self.last = nn.Linear(64, width), nn.Linear(width, 10)
        self.ways = nn.ModuleList(
            nn.ModuleList([nn.Identity(), dense(width, width), dense(width, 16, width)]) for _ in range(2)
        )
        self.shares = nn.Parameter(1e-3 * torch.randn(2, 3))

    def forward(self, x):
        h = F.relu(self.first(x.flatten(1)))
        for ways, share in zip(self.ways, self.shares.softmax(1), strict=True):
            h = F.relu(sum(s * way(h) for s, way in zip(share, ways, strict=True)))
        return self.last(h)


@healthy(0.3)
def choice_among_paths(folder):
    """Weights learn from one half of the digits, shares from the other, each with an optimizer of its own, in turn."""
    seeded(1077)
    net = Paths()
    rest = [p for name, p in net.named_parameters() if name != "shares"]
    of_rest, of_shares = optim.SGD(rest, 0.05, momentum=0.9, weight_decay=3e-4), optim.Adam([net.shares], 3e-3)
    one, other = (classify(net, batches(48, seed=seed)) for seed in (1077, 1078))
    first = score_of(one)()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(net, of_rest)}
    with gradwatch.watch(net, [of_rest, of_shares], **options) as watch:
        for step in range(200):
            of_shares.zero_grad()
            other(step).backward()
            of_shares.step()
            of_rest.zero_grad()
            loss = one(step)
            loss.backward()
            nn.utils.clip_grad_norm_(rest, 5.0)
            of_rest.step()
            watch.log(loss=loss)
    return Outcome(gradwatch.open_history(watch.dir), first, score_of(lambda step: one(1000 + step))())


@healthy(0.5)
def throw_through_a_simulator(folder):
    """Angle and speed of a throw with drag that is to hit a place: slopes through 60 steps of its flight."""
    seeded(1079)
    net = dense(1, 16, 2, act=nn.Tanh)

    def loss_of(step):
        goal = 2 + 4 * torch.rand(32, 1)
        speed = F.softplus(net(goal / 6)) * 4
        place = torch.zeros(32, 2)
        for _ in range(60):
            speed = speed - 0.03 * (torch.tensor([0.0, 9.8]) + 0.1 * speed * speed.norm(dim=1, keepdim=True))
            place = place + 0.03 * speed
        return (place - torch.cat([goal, torch.zeros(32, 1)], 1)).square().sum(1).mean()

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 200)
