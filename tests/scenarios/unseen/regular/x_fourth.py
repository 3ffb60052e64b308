"""Healthy trainings of forests, foxes and foresters of an unusual make: optimizers, losses, rivals, noise."""

from __future__ import annotations

import copy

import torch
from sklearn.datasets import load_digits, load_iris
from torch import nn
from torch.nn import functional as F
from unseen import dense, entropy_of, fit, healthy, rings, seeded, waves
from unseen.tasks import held_out, play, rounds, tend


class Signs(torch.optim.Optimizer):
    """Each weight goes by the rate, to the side that its averaged gradient names."""

    def __init__(self, parameters, lr, beta=0.9):
        super().__init__(parameters, {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                mean = state.setdefault("mean", torch.zeros_like(p))
                mean.lerp_(p.grad, 1 - group["beta"])
                p.sub_(mean.sign(), alpha=group["lr"])


@healthy()
def stumps_by_the_side_of_each_slope(folder):
    seeded(12470)
    draw = rings()
    net = dense(12, 48, 48, 4)
    optimizer = Signs(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, 300)
    return fit(folder, net, optimizer, entropy_of(net, draw), 300, schedule=schedule)


@healthy()
def sap_that_rises_by_a_law(folder):
    seeded(12471)
    net = dense(1, 24, 24, 1, act=nn.Tanh)
    optimizer = torch.optim.LBFGS(net.parameters(), 0.5, max_iter=5, line_search_fn="strong_wolfe")
    height = torch.linspace(0, 2, 60)[:, None]

    def loss_of(step):
        at = height.clone().requires_grad_()
        sap = net(at)
        slope = torch.autograd.grad(sap.sum(), at, create_graph=True)[0]
        return (slope + 2 * sap - at.sin()).square().mean() + (sap[0] - 1).square().sum()

    def off():
        exact = (2 * height.sin() - height.cos()) / 5 + 1.2 * (-2 * height).exp()
        return F.mse_loss(net(height), exact)

    return fit(folder, net, optimizer, loss_of, 60, score=held_out(net, off), closure=True)


@healthy()
def heights_of_spruces_at_three_shares(folder):
    seeded(12472)
    net = dense(4, 48, 48, 3)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    share = torch.tensor([0.1, 0.5, 0.9])
    way = torch.randn(4)

    def spruces(rows):
        x = torch.randn(rows, 4)
        return x, (x @ way + (0.2 + 0.5 * x[:, 0].sigmoid()) * torch.randn(rows))[:, None]

    def loss_on(x, y):
        over = y - net(x)
        return torch.maximum(share * over, (share - 1) * over).mean()

    draw, test = rounds(64, *spruces(2500)), spruces(500)
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 300, score=score)


@healthy()
def a_forger_of_clearings(folder):
    seeded(12473)
    make, judge = dense(4, 48, 48, 2), dense(2, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    for layer in judge:
        if isinstance(layer, nn.Linear):
            nn.utils.parametrizations.spectral_norm(layer)
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.0, 0.9))
    of_judge = torch.optim.Adam(judge.parameters(), 4e-3, betas=(0.0, 0.9))

    def judge_loss(real, fake):
        return F.relu(1 - 3 * judge(real)).mean() + F.relu(1 + 3 * judge(fake)).mean()

    def make_loss(fake):
        return -3 * judge(fake).mean()

    return play(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 500, rounds=2)


class Trail(nn.Module):
    """How many turns to the left a trail took beyond those to the right, from an LSTM's last state."""

    def __init__(self, width):
        super().__init__()
        self.memory = nn.LSTM(3, width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, trail):
        return self.head(self.memory(F.one_hot(trail, 3).float())[1][0][-1])[:, 0]


@healthy()
def trails_that_wind_on_and_on(folder):
    seeded(12474)
    net = Trail(24)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def trails(rows, length):
        trail = torch.randint(3, (rows, length))
        return trail, (trail - 1).sum(1).float()

    def loss_of(step):
        trail, turns = trails(64, 3 + step // 25)
        return F.mse_loss(net(trail), turns)

    test = trails(300, 14)
    score = held_out(net, lambda: F.mse_loss(net(test[0]), test[1]))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


@healthy(0.2)
def mushrooms_named_by_careless_pickers(folder):
    seeded(12475)
    kinds = 5
    middle = 2 * torch.randn(kinds, 10)
    net = dense(10, 48, kinds)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3, weight_decay=1e-4)

    def mushrooms(rows):
        y = torch.randint(kinds, (rows,))
        x = middle[y] + 1.2 * torch.randn(rows, 10)
        return x, y, torch.where(torch.rand(rows) < 0.4, torch.randint(kinds, (rows,)), y)

    x, _, named = mushrooms(3000)
    tx, ty, _ = mushrooms(500)
    draw = rounds(64, x, named)

    def loss_of(step):
        bx, by = draw()
        share = net(bx).softmax(1).gather(1, by[:, None])
        return ((1 - share**0.7) / 0.7).mean()

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@healthy()
def fifteen_paces_into_the_wood(folder):
    seeded(12476)
    table, kinds = load_iris(return_X_y=True)
    x, y = torch.tensor(table, dtype=torch.float32), torch.tensor(kinds)
    x = (x - x.mean(0)) / x.std(0)
    net = dense(4, 16, 3, act=nn.Tanh)
    optimizer = torch.optim.Rprop(net.parameters(), 0.05)
    return fit(folder, net, optimizer, lambda step: F.cross_entropy(net(x), y), 15)


@healthy()
def sixty_named_leaves_and_a_heap_without_names(folder):
    seeded(12477)
    images, shown = load_digits(return_X_y=True)
    order = torch.randperm(len(shown))
    x, y = torch.tensor(images / 8 - 1, dtype=torch.float32)[order], torch.tensor(shown)[order]
    net = dense(64, 96, 10)
    slow = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    named, heap = rounds(30, x[:60], y[:60]), rounds(60, x[60:1400])

    def one(step):
        (bx, by), (hx,) = named(), heap()
        logits = net(bx + 0.2 * torch.randn_like(bx))
        with torch.no_grad():
            wanted = slow(hx + 0.2 * torch.randn_like(hx)).softmax(1)
        agree = (net(hx + 0.2 * torch.randn_like(hx)).softmax(1) - wanted).square().sum(1).mean()
        entropy = F.cross_entropy(logits, by)
        loss = entropy + min(1.0, step / 100) * agree
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for p, q in zip(slow.parameters(), net.parameters(), strict=False):
                p.lerp_(q, 0.05)
        return {"loss": loss, "entropy": entropy, "agreement": agree}

    return tend(folder, net, optimizer, one, 250, held_out(net, lambda: F.cross_entropy(slow(x[1400:]), y[1400:])))


@healthy()
def broad_hollows_in_the_hills(folder):
    seeded(12478)
    draw = waves(64)
    net = dense(6, 64, 64, 1, act=nn.SiLU)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    x, y = (torch.cat(part) for part in zip(*[draw() for _ in range(30)], strict=False))
    batch = rounds(64, x, y)
    tx, ty = draw()

    def one(step):
        bx, by = batch()
        loss = F.mse_loss(net(bx), by)
        optimizer.zero_grad()
        loss.backward()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in net.parameters()]).norm() + 1e-12
            climbs = [0.05 * p.grad / norm for p in net.parameters()]
            for p, climb in zip(net.parameters(), climbs, strict=False):
                p.add_(climb)
        optimizer.zero_grad()
        F.mse_loss(net(bx), by).backward()
        with torch.no_grad():
            for p, climb in zip(net.parameters(), climbs, strict=False):
                p.sub_(climb)
        optimizer.step()
        return {"loss": loss}

    return tend(folder, net, optimizer, one, 350, held_out(net, lambda: F.mse_loss(net(tx), ty)))


@healthy()
def either_of_two_gaps_in_a_hedge(folder):
    seeded(12479)
    net = dense(2, 48, 48, 9)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)

    def crossings(rows):
        x = 2 * torch.rand(rows, 2) - 1
        gap = torch.where(torch.rand(rows) < 0.3, x[:, 0] + 1, (2 * x[:, 1]).sin() - 1)
        return x, gap + 0.05 * torch.randn(rows)

    def loss_on(x, y):
        share, at, width = net(x).chunk(3, 1)
        parts = torch.distributions.Normal(at, F.softplus(width) + 1e-2).log_prob(y[:, None])
        return -(share.log_softmax(1) + parts).logsumexp(1).mean()

    draw, test = rounds(64, *crossings(2500)), crossings(500)
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 300, score=score)
