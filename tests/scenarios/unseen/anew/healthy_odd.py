"""Healthy trainings with odd curves, first part: tickets, games, radii that grow, sharp densities, prices, flows."""

from __future__ import annotations

import copy
import math

import torch
from nets import batches, cnn, digits
from torch import nn, optim
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, fit, healthy, score_of, seeded
from unseen.tasks import circle

import gradwatch


def right(logits, y):
    """The share of rows that are named rightly."""
    return (logits.argmax(1) == y).float().mean()


@healthy(0.5)
def tickets_rewound_to_step_twenty(folder):
    """Lottery tickets: a round of training, the smallest weights pruned, weights and optimizer rewound to step 20."""
    seeded(3)
    net, batch = nn.Sequential(nn.Flatten(), dense(64, 100, 100, 10)), batches(64)
    make = optim.Adam(net.parameters(), 1.2e-3)
    matrices = [p for p in net.parameters() if p.dim() == 2]
    masks = [torch.ones_like(p) for p in matrices]
    kept, a_round = {}, 130

    def prune_and_rewind():
        for p, mask, share in zip(matrices, masks, (0.35, 0.35, 0.18), strict=True):
            alive = p.detach().abs()[mask > 0]
            mask.mul_((p.detach().abs() > alive.quantile(share)).float())
        net.load_state_dict(kept["net"])
        make.load_state_dict(copy.deepcopy(kept["make"]))
        apply_masks()

    @torch.no_grad()
    def apply_masks():
        for p, mask in zip(matrices, masks, strict=True):
            p.mul_(mask)

    def loss_of(step):
        if step == 20:
            kept.update(net=copy.deepcopy(net.state_dict()), make=copy.deepcopy(make.state_dict()))
        if step and step % a_round == 0:
            prune_and_rewind()
        x, y = batch(step)
        logits = net(x)
        pruned = 1 - sum(float(m.sum()) for m in masks) / sum(m.numel() for m in masks)
        return F.cross_entropy(logits, y), {"accuracy": right(logits, y), "sparsity": pruned}

    def mask_gradients(step):
        for p, mask in zip(matrices, masks, strict=True):
            p.grad.mul_(mask)

    def score():
        with torch.no_grad():
            x, y = digits()
            return F.cross_entropy(net(x), y)

    return fit(
        folder, net, make, loss_of, 4 * a_round, score=score, before_step=mask_gradients,
        after_step=lambda step: apply_masks(),
    )  # fmt: skip


@healthy(0.3)
def throws_against_a_rival_who_learns(folder):
    """Self-play on a zero-sum game whose payoffs depend on what both see; the score is how far it can be exploited."""
    seeded(4)
    pays = torch.randn(4, 3, 3)
    one, two = dense(3, 48, 3, act=nn.Tanh), dense(3, 48, 3, act=nn.Tanh)
    of_one, of_two = (optim.Adam(m.parameters(), 5e-3) for m in (one, two))

    def game(state):
        return pays[0] + 0.5 * torch.einsum("bk,kij->bij", state, pays[1:])

    @torch.no_grad()
    def exploited(state):
        table, p, q = game(state), one(state).softmax(1), two(state).softmax(1)
        best = torch.einsum("bij,bj->bi", table, q).max(1).values
        return float((best - torch.einsum("bi,bij->bj", p, table).min(1).values).mean())

    seen = torch.randn(512, 3)
    first = exploited(seen)
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(one, of_one)}
    w_one = gradwatch.watch(one, of_one, name="one", **options)
    w_two = gradwatch.watch(two, of_two, name="two", run=w_one, **options)
    with w_one, w_two:
        for step in range(500):
            state = torch.randn(128, 3)
            warmth = 0.3 * (1 - step / 500) + 0.3
            log_p, log_q = one(state).log_softmax(1), two(state).log_softmax(1)
            p, q, table = log_p.exp(), log_q.exp(), game(state)
            mine = torch.einsum("bi,bij,bj->b", p, table, q.detach()) - warmth * (p * log_p).sum(1)
            theirs = torch.einsum("bi,bij,bj->b", p.detach(), table, q) + warmth * (q * log_q).sum(1)
            of_one.zero_grad()
            of_two.zero_grad()
            (-mine.mean()).backward()
            theirs.mean().backward()
            of_one.step()
            of_two.step()
            w_one.log(loss=-mine.mean(), exploitability=exploited(state))
            w_two.log(loss=theirs.mean())
    return Outcome(gradwatch.open_history(w_one.dir.parent), first, exploited(seen))


@healthy(0.25)
def attacked_within_a_radius_that_grows(folder):
    """Adversarial training: the attack's radius rises for half of the run, and the loss with it."""
    seeded(5)
    net, batch = cnn(seed=5), batches(48, seed=5)
    make = optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    plan = optim.lr_scheduler.CosineAnnealingLR(make, 300)

    def attacked(x, y, radius):
        shift = torch.empty_like(x).uniform_(-radius, radius)
        for _ in range(3):
            shift.requires_grad_()
            (slope,) = torch.autograd.grad(F.cross_entropy(net(x + shift), y), shift)
            shift = (shift.detach() + 0.5 * radius * slope.sign()).clamp(-radius, radius)
        return (x + shift).clamp(0, 1)

    def loss_of(step):
        x, y = batch(step)
        radius = 0.15 * min(1.0, step / 150)
        logits = net(attacked(x, y, radius))
        with torch.no_grad():
            clean = right(net(x), y)
        return F.cross_entropy(logits, y), {"robust_accuracy": right(logits, y), "accuracy": clean, "radius": radius}

    def score():
        x, y = (t[:500] for t in digits())
        return float(F.cross_entropy(net(attacked(x, y, 0.15)), y).detach())

    return fit(folder, net, make, loss_of, 300, score=score, schedule=plan)


class MaskedLinear(nn.Linear):
    """A linear layer some of whose weights are always zero (MADE)."""

    def __init__(self, mask):
        super().__init__(mask.shape[1], mask.shape[0])
        self.register_buffer("mask", mask)

    def forward(self, x):
        return F.linear(x, self.weight * self.mask, self.bias)


class Autoregressive(nn.Module):
    """A shift and a log-scale for each column from the columns before it."""

    def __init__(self, columns, hidden):
        super().__init__()
        of_in, of_hidden = torch.arange(columns), torch.arange(hidden) % (columns - 1)
        last = (of_in[:, None] > of_hidden[None]).float().repeat(2, 1)
        middle = (of_hidden[:, None] >= of_hidden[None]).float()
        self.net = nn.Sequential(
            MaskedLinear((of_hidden[:, None] >= of_in[None]).float()), nn.ReLU(),
            MaskedLinear(middle), nn.ReLU(), MaskedLinear(last),
        )  # fmt: skip

    def forward(self, x):
        shift, log_scale = self.net(x).chunk(2, 1)
        log_scale = 3 * (log_scale / 3).tanh()
        return (x - shift) * (-log_scale).exp(), -log_scale.sum(1)


@healthy(0.5)
def columns_that_nearly_follow_from_each_other(folder):
    """A masked autoregressive flow of standardised columns that two numbers nearly give: the loss sinks below zero."""
    seeded(6)
    flow = nn.ModuleList(Autoregressive(6, 60) for _ in range(3))
    ways = torch.randn(2, 6)
    x = (torch.randn(4000, 2) @ ways).tanh() + 0.03 * torch.randn(4000, 6)
    x = (x - x.mean(0)) / x.std(0)
    make = optim.Adam(flow.parameters(), 2e-3)
    plan = optim.lr_scheduler.CosineAnnealingLR(make, 450)

    def loss_of(step):
        z, log_det = x[torch.randint(len(x), (128,))], 0
        for i, block in enumerate(flow):
            z, more = block(z.flip(1) if i else z)
            log_det = log_det + more
        return (0.5 * z.square().sum(1) + 3 * math.log(2 * math.pi) - log_det).mean()

    return fit(folder, flow, make, loss_of, 450, schedule=plan, clip="ClipByGlobalNorm(5.0)")


@healthy(0.5)
def branches_each_row_to_the_nearest(folder):
    """Hard EM: all rows are given to the branch that says them best, then ten steps on what was given."""
    seeded(7)
    net = nn.ModuleList(dense(1, 24, 1, act=nn.Tanh) for _ in range(3))
    make = optim.Adam(net.parameters(), 1e-2)
    x, kind = 4 * torch.rand(600, 1) - 2, torch.randint(3, (600,))
    slopes, heights = torch.tensor([0.8, 0.0, -0.6]), torch.tensor([2.0, 0.0, -2.0])
    y = (slopes[kind] * (1.5 * x[:, 0]).sin() + heights[kind] + 0.1 * torch.randn(600))[:, None]
    given = torch.arange(600) % 3

    def said(rows):
        return torch.cat([branch(x[rows]) for branch in net], 1)

    def loss_of(step):
        nonlocal given
        if step % 10 == 0 and step:
            with torch.no_grad():
                given = (said(slice(None)) - y).square().argmin(1)
        rows = torch.randint(600, (96,))
        loss = F.mse_loss(said(rows).gather(1, given[rows, None]), y[rows])
        return loss, {"smallest_share": given.bincount(minlength=3).min() / 600}

    # k-means++ in small: the branches begin at three rows that are far apart.
    with torch.no_grad():
        for branch, row in zip(net, (y.argmax(), (y - y.median()).abs().argmin(), y.argmin()), strict=True):
            branch[-1].bias.copy_(y[row])
    return fit(folder, net, make, loss_of, 400)


@healthy(0.5)
def least_effort_at_a_price_that_finds_itself(folder):
    """Pushes of least effort that end near a goal: a multiplier climbs until the constraint holds (dual ascent)."""
    seeded(8)
    net, price = dense(4, 48, 12, act=nn.Tanh), nn.Parameter(torch.tensor(0.5))
    of_net = optim.Adam(net.parameters(), 3e-3)
    of_price = optim.SGD([price], 0.05, maximize=True)

    def play(start):
        pushes = net(start).view(-1, 6, 2)
        place, pace = start[:, :2], start[:, 2:]
        for push in pushes.unbind(1):
            pace = 0.9 * pace + push
            place = place + 0.5 * pace
        return pushes.square().sum((1, 2)).mean(), place.square().sum(1).mean()

    def missed():
        with torch.no_grad():
            return float(play(torch.randn(512, 4))[1])

    first = missed()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(net, [of_net, of_price])}
    watch = gradwatch.watch(net, [of_net, of_price], **options)
    with watch:
        for _ in range(500):
            effort, miss = play(torch.randn(96, 4))
            loss = effort + price * (miss - 0.05)
            of_net.zero_grad()
            of_price.zero_grad()
            loss.backward()
            of_net.step()
            of_price.step()
            with torch.no_grad():
                price.clamp_(min=0)
            watch.log(loss=loss, effort=effort, violation=miss - 0.05, multiplier=price)
    return Outcome(gradwatch.open_history(watch.dir), first, missed())


@healthy(0.3)
def corners_of_a_grid_in_proportion(folder):
    """A GFlowNet on an 8x8 grid by trajectory balance; log Z has a rate of its own; scored by its shares."""
    seeded(9)
    side = 8
    net, log_z = dense(2 * side, 64, 64, 3), nn.Parameter(torch.zeros(()))
    make = optim.Adam([{"params": net.parameters(), "lr": 2e-3}, {"params": [log_z], "lr": 0.1}])
    axis = (torch.arange(side) / (side - 1) * 2 - 1).abs()
    a, b = axis[:, None].expand(side, side), axis[None].expand(side, side)
    pays = 0.05 + 0.5 * ((a > 0.5) & (b > 0.5)).float() + 2.0 * ((a > 0.6) & (b > 0.6) & (a < 0.9) & (b < 0.9)).float()
    eye = torch.eye(side)

    def chances(at):
        logits = net(torch.cat([eye[at[:, 0]], eye[at[:, 1]]], 1))
        edge = torch.cat([at == side - 1, torch.zeros(len(at), 1, dtype=torch.bool)], 1)
        return logits.masked_fill(edge, -torch.inf).log_softmax(1)

    def loss_of(step):
        at, alive = torch.zeros(32, 2, dtype=torch.long), torch.ones(32, dtype=torch.bool)
        balance = log_z.expand(32)
        for _ in range(2 * side - 1):
            log_p = chances(at)
            drawn = log_p.detach().exp().lerp(log_p.detach().isfinite().float().mul(1 / 3), 0.05)
            act = torch.multinomial(drawn, 1)[:, 0]
            balance = balance + torch.where(alive, log_p.gather(1, act[:, None])[:, 0], 0.0)
            alive = alive & (act < 2)
            at = at + F.one_hot(act, 3)[:, :2] * alive[:, None]
            parents = (at > 0).sum(1).clamp(min=1)
            balance = balance + torch.where(alive, parents.log(), 0.0)
        reward = pays[at[:, 0], at[:, 1]]
        return (balance - reward.log()).square().mean(), {"reward": reward.mean(), "log_z": log_z.detach()}

    @torch.no_grad()
    def score():
        grid = torch.cartesian_prod(torch.arange(side), torch.arange(side))
        p = chances(grid).exp().view(side, side, 3)
        flow, ends = torch.zeros(side + 1, side + 1), torch.zeros(side, side)
        flow[0, 0] = 1
        for i in range(side):
            for j in range(side):
                ends[i, j] = flow[i, j] * p[i, j, 2]
                flow[i + 1, j] += flow[i, j] * p[i, j, 0]
                flow[i, j + 1] += flow[i, j] * p[i, j, 1]
        return float((ends - pays / pays.sum()).abs().sum())

    return fit(folder, nn.ModuleDict({"policy": net, "z": nn.ParameterList([log_z])}), make, loss_of, 250, score=score)


@healthy(0.5)
def prices_of_carrying_one_cloud_to_another(folder):
    """Entropic transport by its two dual potentials: what is logged is minus the dual, which sinks below zero."""
    seeded(10)
    net = nn.ModuleDict({"here": dense(2, 64, 64, 1, act=nn.SiLU), "there": dense(2, 64, 64, 1, act=nn.SiLU)})
    make = optim.Adam(net.parameters(), 1e-3)
    plan = optim.lr_scheduler.CosineAnnealingLR(make, 500)
    blur = 0.5

    def loss_of(step):
        x, y = circle(96), 0.5 * torch.randn(96, 2) + torch.tensor([1.0, -1.0])
        u, v = net["here"](x), net["there"](y)
        cost = 0.5 * torch.cdist(x, y).square()
        over = blur * ((u + v.T - cost) / blur).exp().mean() - blur
        return -(u.mean() + v.mean() - over)

    return fit(folder, net, make, loss_of, 500, schedule=plan, score=score_of(loss_of), clip="ClipByGlobalNorm(1.0)")
