"""Healthy trainings of an unusual make: likelihoods below zero, judges, walks, heat, sums, means."""

from __future__ import annotations

import math

import torch
from nets import batches, digits
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded
from unseen.tasks import tend

# ---------------------------------------------------------------------------------------- likelihoods, distances, walks


class Masked(nn.Linear):
    def __init__(self, a, b, mask):
        super().__init__(a, b)
        self.register_buffer("mask", mask.float())

    def forward(self, x):
        return F.linear(x, self.weight * self.mask, self.bias)


class Made(nn.Module):
    """Each number's mean and scale from those before it."""

    def __init__(self, size, hidden):
        super().__init__()
        at, unit = torch.arange(size), torch.arange(hidden) % (size - 1)
        self.net = nn.Sequential(
            Masked(size, hidden, unit[:, None] >= at),
            nn.Tanh(),
            Masked(hidden, hidden, unit[:, None] >= unit),
            nn.Tanh(),
            Masked(hidden, 2 * size, at.repeat(2)[:, None] > unit),
        )

    def forward(self, x):
        shift, scale = self.net(x).chunk(2, 1)
        scale = 3 * (scale / 3).tanh()
        return (x - shift) * (-scale).exp(), -scale.sum(1)


@healthy(0.8)
def thin_ribbon_in_five_rooms_by_masked_layers(folder):
    """A masked autoregressive flow; the data lies almost on a surface, so its loss goes below zero and on."""
    seeded(2088)
    net = nn.ModuleList(Made(5, 64) for _ in range(3))

    def loss_of(step):
        a, b = torch.randn(2, 128)
        x = torch.stack([a, b, (a * 1.5).sin(), a * b / 2, (b - a).tanh()], 1)
        x = x + 0.04 * torch.randn_like(x)
        whole = 0
        for made in net:
            x, more = made(x)
            x, whole = x.flip(1), whole + more
        return (0.5 * x.square().sum(1) + 2.5 * math.log(2 * math.pi) - whole).mean()

    optimizer = optim.Adam(net.parameters(), 3e-3)
    rate = optim.lr_scheduler.CosineAnnealingLR(optimizer, 700)
    return fit(
        folder,
        net,
        optimizer,
        loss_of,
        700,
        schedule=rate,
        before_step=lambda _: nn.utils.clip_grad_norm_(net.parameters(), 5.0),
    )


@healthy(0.7)
def distance_of_two_flocks_by_one_who_judges(folder):
    """Only a critic, with a penalty for slopes that are not one: minus its loss grows up to the way between them."""
    seeded(2089)
    net, far = dense(4, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2)), torch.tensor([6.0, -4.0, 2.0, 0.0])

    def loss_of(step):
        a, b = torch.randn(64, 4), torch.randn(64, 4) * 1.2 + far
        at = torch.lerp(a, b, torch.rand(64, 1)).requires_grad_()
        (slope,) = torch.autograd.grad(net(at).sum(), at, create_graph=True)
        way = net(b).mean() - net(a).mean()
        penalty = (slope.norm(dim=1) - 1).square().mean()
        return 10 * penalty - way, {"wasserstein": way, "penalty": penalty}

    return fit(folder, net, optim.Adam(net.parameters(), 5e-4, betas=(0.5, 0.9)), loss_of, 450)


@healthy(0.15)
def neighbours_met_on_walks_through_towns(folder):
    """Node2vec: two thousand nodes, walks of five, negatives drawn evenly; only rows that were met have a slope."""
    seeded(2090)
    nodes, towns = 2000, 40
    net = nn.ModuleDict({"node": nn.Embedding(nodes, 16, sparse=True), "near": nn.Embedding(nodes, 16, sparse=True)})
    with torch.no_grad():
        net["node"].weight.mul_(0.25)
        net["near"].weight.mul_(0.25)
    home = torch.randint(towns, (nodes,))
    order = home.argsort()
    start = torch.searchsorted(home[order], torch.arange(towns))
    size = torch.bincount(home, minlength=towns)

    def step_on(at):
        inside = order[start[home[at]] + (torch.rand(at.shape) * size[home[at]]).long()]
        return torch.where(torch.rand(at.shape) < 0.9, inside, torch.randint(nodes, at.shape))

    def loss_of(step):
        at = torch.randint(nodes, (256,))
        walk = [at]
        for _ in range(4):
            walk.append(step_on(walk[-1]))
        here, there = net["node"](at)[:, None], torch.stack(walk[1:], 1)
        other = torch.randint(nodes, there.shape)
        yes, no = ((here * net["near"](t)).sum(2) for t in (there, other))
        return -(F.logsigmoid(yes).mean() + F.logsigmoid(-no).mean())

    return fit(folder, net, optim.SparseAdam(list(net.parameters()), 0.01), loss_of, 450)


@healthy(0.7)
def rod_that_cools_by_its_equation(folder):
    """A physics-informed net: the equation of heat inside, both ends at nought, a hump at the start."""
    seeded(2091)
    net = dense(2, 40, 40, 40, 1, act=nn.Tanh)
    for layer in net:
        if isinstance(layer, nn.Linear):
            nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def truth(x, t):
        decay = torch.exp(-0.1 * math.pi**2 * t)
        return decay * torch.sin(math.pi * x) + 0.5 * decay**9 * torch.sin(3 * math.pi * x)

    def loss_of(step):
        x, t = torch.rand(2, 200, 1).requires_grad_()
        u = net(torch.cat([x, t], 1))
        u_x, u_t = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
        (u_xx,) = torch.autograd.grad(u_x.sum(), x, create_graph=True)
        inside = (u_t - 0.1 * u_xx).square().mean()
        at = torch.rand(64, 1)
        first = (net(torch.cat([at, torch.zeros_like(at)], 1)) - truth(at, 0 * at)).square().mean()
        ends = torch.cat([torch.randint(2, (64, 1)).float(), torch.rand(64, 1)], 1)
        edge = net(ends).square().mean()
        return inside + 10 * first + 10 * edge, {"loss_pde": inside, "loss_start": first, "loss_edge": edge}

    x, t = torch.rand(2, 500, 1)

    def score():
        with torch.no_grad():
            return float((net(torch.cat([x, t], 1)) - truth(x, t)).norm() / truth(x, t).norm())

    optimizer = optim.Adam(net.parameters(), 2e-3)
    rate = optim.lr_scheduler.ExponentialLR(optimizer, 0.998)
    return fit(folder, net, optimizer, loss_of, 900, score=score, schedule=rate)


# ------------------------------------------------------------------------------------------------ harder, slower, means


@healthy(0.4)
def sums_of_ever_longer_numbers(folder):
    """A curriculum: numbers of two figures, then three, then four; the loss jumps up whenever a figure is added."""
    seeded(2092)
    net = nn.ModuleDict({"memory": nn.GRU(20, 48, batch_first=True), "out": nn.Linear(48, 10)})

    def draw(figures):
        a, b = torch.randint(10, (2, 64, figures))
        a[:, -1], b[:, -1] = 0, 0
        carry, total = torch.zeros(64, dtype=torch.long), []
        for i in range(figures):
            both = a[:, i] + b[:, i] + carry
            total.append(both % 10)
            carry = both // 10
        return torch.cat([F.one_hot(a, 10), F.one_hot(b, 10)], 2).float(), torch.stack(total, 1)

    def at(figures):
        x, y = draw(figures)
        out = net["out"](net["memory"](x)[0])
        return F.cross_entropy(out.flatten(0, 1), y.flatten()), (out.argmax(2) == y).float().mean()

    def loss_of(step):
        figures = 3 + min(3, step // 200)
        loss, right = at(figures)
        return loss, {"accuracy": right, "figures": figures}

    optimizer = optim.Adam(net.parameters(), 5e-3)
    return fit(folder, net, optimizer, loss_of, 850, score=score_of(lambda _: at(6)[0]))


class Ranger(optim.RAdam):
    """RAdam on centred gradients, with slow weights that are met half way every six steps."""

    def __init__(self, params, lr, **options):
        super().__init__(params, lr, **options)
        self.slow = [p.detach().clone() for g in self.param_groups for p in g["params"]]
        self.count = 0

    @torch.no_grad()
    def step(self, closure=None):
        every = [p for g in self.param_groups for p in g["params"]]
        for p in every:
            if p.ndim > 1:
                p.grad -= p.grad.mean(dim=tuple(range(1, p.ndim)), keepdim=True)
        super().step(closure)
        self.count += 1
        if self.count % 6 == 0:
            for p, slow in zip(every, self.slow, strict=True):
                p.copy_(slow.lerp_(p, 0.5))


@healthy(0.6)
def figures_flat_for_long_and_then_down(folder):
    """Ranger: a flat rate for seven tenths, then a cosine to nothing; mish, a little decay."""
    seeded(2093)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.Mish(),
        nn.Conv2d(16, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24), nn.Mish(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(96, 10),
    )  # fmt: skip
    batch, steps = batches(64, 2093), 320
    optimizer = Ranger(net.parameters(), 8e-3, weight_decay=0.01, decoupled_weight_decay=True, betas=(0.95, 0.999))
    rate = optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: 1.0 if s < 0.7 * steps else 0.5 * (1 + math.cos(math.pi * (s / steps - 0.7) / 0.3))
    )

    def loss_of(step):
        x, y = batch(step)
        return F.cross_entropy(net(x[:, None]), y)

    return fit(folder, net, optimizer, loss_of, steps, schedule=rate)


@healthy(0.6)
def cells_averaged_over_the_last_third(folder):
    """SWA: a cosine for two thirds, then one rate and an average of weights, whose statistics are read anew."""
    seeded(2094)
    x, y = digits()
    order = torch.randperm(len(x))
    train, test = order[:1408], order[1408:]
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(96, 10),
    )  # fmt: skip
    average = optim.swa_utils.AveragedModel(net)
    optimizer = optim.SGD(net.parameters(), 0.05, 0.9, nesterov=True, weight_decay=5e-4)
    down = optim.lr_scheduler.CosineAnnealingLR(optimizer, 12 * 22)
    level = optim.swa_utils.SWALR(optimizer, 0.02, anneal_epochs=1)
    rows = []

    def one(step):
        if not rows:
            rows.extend(torch.randperm(1408).split(64))
        at = train[rows.pop()]
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x[at, None]), y[at])
        loss.backward()
        optimizer.step()
        if step < 12 * 22:
            down.step()
        elif not rows:
            average.update_parameters(net)
            level.step()
        return {"loss": loss.detach()}

    def score():
        if average.n_averaged > 0:
            optim.swa_utils.update_bn([x[rows, None] for rows in train.split(64)], average)
        model = average.eval()
        with torch.no_grad():
            return F.cross_entropy(model(x[test, None]), y[test])

    return tend(folder, net, optimizer, one, 18 * 22, score)
