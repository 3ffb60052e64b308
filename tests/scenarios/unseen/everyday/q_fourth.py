"""Healthy trainings of rivers and ferries of an unusual make, with nothing wrong."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_diabetes, load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


def written(classes=range(10)):
    """Digits of some classes, shuffled, from -1 to 1."""
    images, digits = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 8 - 1, dtype=torch.float32), torch.tensor(digits)
    keep = torch.isin(y, torch.tensor(list(classes)))
    order = torch.randperm(int(keep.sum()))
    return x[keep][order], y[keep][order]


class Coupling(nn.Module):
    """Moves and scales half of the columns as the other half says."""

    def __init__(self, size, odd):
        super().__init__()
        self.register_buffer("held", (torch.arange(size) % 2 == int(odd)).float())
        self.of = dense(size, 48, 2 * size, act=nn.Tanh)
        nn.init.zeros_(self.of[-1].weight)
        nn.init.zeros_(self.of[-1].bias)

    def forward(self, x):
        scale, move = self.of(x * self.held).chunk(2, 1)
        scale = scale.tanh() * (1 - self.held)
        return x * scale.exp() + move * (1 - self.held), scale.sum(1)


@healthy()
def where_driftwood_settles_on_the_bars(folder):
    seeded(11760)
    size = 4
    net = nn.ModuleList(Coupling(size, i % 2) for i in range(6))
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def drift(rows):
        far = 0.15 * torch.randn(rows, 1)
        return torch.cat([far, far.square() * 4, -far, far.sin()], 1) + 0.03 * torch.randn(rows, size)

    def loss_on(x):
        logs = torch.zeros(len(x))
        for layer in net:
            x, more = layer(x)
            logs = logs + more
        return (0.5 * x.square().sum(1) + 0.5 * size * math.log(2 * math.pi) - logs).mean()

    test = drift(1000)
    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, lambda step: loss_on(drift(128)), 250, score=score, before_step=clipped(net, 10))


@healthy()
def rents_of_mooring_rings_by_the_foot(folder):
    seeded(11761)
    table, targets = load_diabetes(return_X_y=True)
    order = torch.randperm(len(targets))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(targets, dtype=torch.float32)[order, None]
    x, y = (x - x[:340].mean(0)) / x[:340].std(0), (y - y[:340].mean()) / y[:340].std()
    net = dense(10, 8, 1, act=nn.Tanh)
    optimizer = torch.optim.Rprop(net.parameters(), 1e-3, step_sizes=(1e-6, 0.05))

    def loss_of(step):
        error = (net(x[:340]) - y[:340]).square().sum()
        return error + 5.0 * sum(p.square().sum() for p in net.parameters() if p.ndim > 1)

    score = held_out(net, lambda: F.mse_loss(net(x[340:]), y[340:]))
    return fit(folder, net, optimizer, loss_of, 60, score=score)


class Features(nn.Module):
    """Cosines of a random projection that stays as it is, and a linear map on them."""

    def __init__(self, size, many, spread):
        super().__init__()
        self.random = nn.Linear(size, many).requires_grad_(False)
        nn.init.normal_(self.random.weight, std=1 / spread)
        nn.init.uniform_(self.random.bias, 0, 2 * math.pi)
        self.read = nn.Linear(many, 1)

    def forward(self, x):
        return self.read(math.sqrt(2) * self.random(x).cos())


@healthy()
def the_height_of_a_weir_by_its_roar(folder):
    seeded(11762)
    net = Features(3, 300, 1.5)
    optimizer = torch.optim.SGD(net.read.parameters(), 1e-3, momentum=0.9)
    way = torch.randn(3, 2)

    def roars(rows):
        x = torch.randn(rows, 3)
        return x, (x @ way / 2).sin().sum(1, keepdim=True) + 0.05 * torch.randn(rows, 1)

    x, y = roars(2000)
    draw = rounds(64, x, y)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    test = roars(500)
    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, lambda: F.mse_loss(net(test[0]), test[1])))


@healthy()
def buoy_numbers_read_through_heavy_spray(folder):
    seeded(11763)
    x, y = written()
    net = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(64, x[:1400], y[:1400])
    size = 0.15

    def attacked(x, y):
        spray = size * (2 * torch.rand_like(x) - 1)
        for _ in range(2):
            spray.requires_grad_(True)
            (slope,) = torch.autograd.grad(F.cross_entropy(net(x + spray), y), spray)
            spray = (spray.detach() + 0.75 * size * slope.sign()).clamp(-size, size)
        return (x + spray).clamp(-1, 1)

    def loss_of(step):
        x, y = draw()
        logits = net(attacked(x, y))
        return F.cross_entropy(logits, y), {"robust_accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 220, score=score)


@healthy()
def the_swing_of_a_bell_buoy_by_its_law(folder):
    seeded(11764)
    net = dense(1, 32, 32, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995)

    def height(t):
        return 1 + t.square() * net(t)

    def loss_of(step):
        t = (3 * torch.rand(64, 1)).requires_grad_(True)
        y = height(t)
        (speed,) = torch.autograd.grad(y.sum(), t, create_graph=True)
        (haste,) = torch.autograd.grad(speed.sum(), t, create_graph=True)
        return (haste + 0.4 * speed + 4 * y).square().mean()

    at = torch.linspace(0, 3, 200)[:, None]
    rate = math.sqrt(4 - 0.04)
    true = (-0.2 * at).exp() * ((rate * at).cos() + 0.2 / rate * (rate * at).sin())
    score = held_out(net, lambda: F.mse_loss(height(at), true))
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule)


@healthy()
def old_river_pilots_on_a_new_reach(folder):
    seeded(11765)
    x, y = written(range(5))
    body, head = dense(64, 96, 48), nn.Linear(48, 5)
    teach = torch.optim.Adam([*body.parameters(), *head.parameters()], 2e-3)
    draw = rounds(64, x, y)
    for _ in range(100):
        old, kind = draw()
        teach.zero_grad()
        F.cross_entropy(head(body(old).relu()), kind).backward()
        teach.step()

    x, y = written(range(5, 10))
    y = y - 5
    net = nn.Sequential(body, nn.ReLU(), nn.Linear(48, 5))
    optimizer = torch.optim.AdamW(
        [{"params": body.parameters(), "lr": 5e-5}, {"params": net[2].parameters(), "lr": 5e-3}], weight_decay=0.01
    )
    draw = rounds(32, x[:700], y[:700])

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[700:]), y[700:]))
    return fit(folder, net, optimizer, loss_of, 150, score=score)


class Affinity(nn.Module):
    """Who likes what: two sparse tables and their products."""

    def __init__(self, anglers, pools, width):
        super().__init__()
        self.angler = nn.Embedding(anglers, width, sparse=True)
        self.pool = nn.Embedding(pools, width, sparse=True)
        self.liked = nn.Embedding(pools, 1, sparse=True)
        for table in (self.angler, self.pool, self.liked):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, angler, pool):
        return (self.angler(angler) * self.pool(pool)).sum(1) + self.liked(pool)[:, 0]


@healthy()
def pools_that_anglers_come_back_to(folder):
    seeded(11766)
    anglers, pools = 300, 120
    net = Affinity(anglers, pools, 6)
    optimizer = torch.optim.SparseAdam(net.parameters(), 1e-2)
    tastes, gifts, fame = torch.randn(anglers, 2), torch.randn(pools, 2), torch.randn(pools)
    angler, pool = torch.randint(anglers, (12000,)), torch.randint(pools, (12000,))
    stars = 0.7 * (tastes[angler] * gifts[pool]).sum(1) + 0.7 * fame[pool] + 0.3 * torch.randn(12000)
    draw = rounds(256, angler[:10000], pool[:10000], stars[:10000])

    def loss_of(step):
        angler, pool, stars = draw()
        return F.mse_loss(net(angler, pool), stars)

    score = held_out(net, lambda: F.mse_loss(net(angler[10000:], pool[10000:]), stars[10000:]))
    return fit(folder, net, optimizer, loss_of, 350, score=score)


@healthy()
def sums_of_two_marked_tributaries(folder):
    seeded(11769)
    net = nn.ModuleDict({"memory": nn.GRU(2, 48, batch_first=True), "head": nn.Linear(48, 1)})
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)

    def rivers(rows, length):
        flow, marks = torch.rand(rows, length), torch.zeros(rows, length)
        marks.scatter_(1, torch.rand(rows, length).topk(2, 1).indices, 1.0)
        return torch.stack([flow, marks], 2), (flow * marks).sum(1, keepdim=True)

    def loss_on(x, y):
        return F.mse_loss(net["head"](net["memory"](x)[1][0]), y)

    def loss_of(step):
        length = min(20, 4 + step // 15)
        return loss_on(*rivers(48, length)), {"length": length}

    test = rivers(512, 20)
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, loss_of, 300, score=score, before_step=clipped(net, 1.0))
