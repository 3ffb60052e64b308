"""Healthy trainings of the railway: a few more of the usual kind, and some that are unusual and sound."""

from __future__ import annotations

import torch
from sklearn.datasets import load_diabetes, load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


@healthy()
def loops_of_a_model_railway(folder):
    seeded(11357)
    net = dense(3, 96, 96, 2, act=nn.SiLU)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
    kept = torch.cumprod(1 - torch.linspace(0.001, 0.2, 40), 0)

    def loops(rows):
        angle = 6.2832 * torch.rand(rows)
        return 1.4 * torch.stack([angle.sin(), (2 * angle).sin()], 1) + 0.05 * torch.randn(rows, 2)

    def loss_on(x, t, noise):
        noisy = kept[t, None].sqrt() * x + (1 - kept[t, None]).sqrt() * noise
        return F.mse_loss(net(torch.cat([noisy, t[:, None] / 20 - 1], 1)), noise)

    def loss_of(step):
        return loss_on(loops(128), torch.randint(40, (128,)), torch.randn(128, 2))

    test = loops(2000), torch.randint(40, (2000,)), torch.randn(2000, 2)
    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, lambda: loss_on(*test)))


@healthy()
def stars_given_to_scenic_routes(folder):
    seeded(11358)
    net = nn.ModuleDict({"who": nn.Embedding(120, 8), "which": nn.Embedding(60, 8), "liked": nn.Embedding(60, 1)})
    for table in net.values():
        nn.init.normal_(table.weight, std=0.2)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2, weight_decay=1e-5)
    who, which = torch.randint(120, (9000,)), torch.randint(60, (9000,))
    likes, offers, fame = torch.randn(120, 2), torch.randn(60, 2), torch.randn(60)
    stars = (likes[who] * offers[which]).sum(1) + fame[which] + 0.3 * torch.randn(9000)
    stars = (stars - stars[:8000].mean()) / stars[:8000].std()

    def loss_on(who, which, stars):
        return F.mse_loss((net["who"](who) * net["which"](which)).sum(1) + net["liked"](which)[:, 0], stars)

    draw = rounds(200, who[:8000], which[:8000], stars[:8000])
    score = held_out(net, lambda: loss_on(who[8000:], which[8000:], stars[8000:]))
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 250, score=score)


@healthy()
def rare_hot_boxes_on_a_long_line(folder):
    seeded(11359)
    net = dense(9, 48, 48, 1)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    heat = torch.randn(9, 2)
    x = torch.randn(6000, 9)
    felt = (x @ heat / 3).square().sum(1) + 0.05 * torch.randn(6000)
    y = (felt > felt.quantile(0.93)).float()[:, None]
    rare = (1 - y[:5000].mean()) / y[:5000].mean()
    draw = rounds(128, x[:5000], y[:5000])

    def loss_of(step):
        x, y = draw()
        return F.binary_cross_entropy_with_logits(net(x), y, pos_weight=rare)

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(x[5000:]), y[5000:], pos_weight=rare))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


class Coupling(nn.Module):
    """Half of the numbers says how the other half is stretched and moved."""

    def __init__(self, size, flip):
        super().__init__()
        self.flip, self.net = flip, dense(size // 2, 32, size)
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        a, b = x.chunk(2, 1)
        a, b = (b, a) if self.flip else (a, b)
        stretch, move = self.net(a).chunk(2, 1)
        stretch = 2 * (stretch / 2).tanh()
        b = b * stretch.exp() + move
        return torch.cat([b, a] if self.flip else [a, b], 1), stretch.sum(1)


@healthy()
def arrivals_and_departures_as_one_density(folder):
    seeded(11360)
    net = nn.ModuleList(Coupling(4, i % 2 == 1) for i in range(6))
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def trains(rows):
        due = torch.randn(rows, 1)
        late = 0.3 * due.square() + 0.1 * torch.randn(rows, 1)
        stay = (2 * due).sin() + 0.05 * torch.randn(rows, 1)
        return torch.cat([due, late, stay, late + 0.5 * stay + 0.05 * torch.randn(rows, 1)], 1)

    def loss_on(x):
        volume = 0.0
        for layer in net:
            x, more = layer(x)
            volume = volume + more
        return (0.5 * x.square().sum(1) + 2 * 1.8379 - volume).mean()

    test = trains(1500)
    score = held_out(net, lambda: loss_on(test))
    clip = clipped(net, 10.0)
    return fit(folder, net, optimizer, lambda step: loss_on(trains(128)), 300, score=score, before_step=clip)


@healthy()
def stops_known_by_their_neighbours(folder):
    seeded(11361)
    stops = 400
    net = nn.ModuleDict({side: nn.Embedding(stops, 24, sparse=True) for side in ("stop", "near")})
    for table in net.values():
        nn.init.normal_(table.weight, std=0.1)
    optimizer = torch.optim.SparseAdam(net.parameters(), 2e-2)

    def pairs(rows):
        stop = (stops * torch.rand(rows).square()).long()
        near = (stop // 20) * 20 + torch.randint(20, (rows,))
        return stop, near, torch.randint(stops, (rows, 5))

    def loss_on(stop, near, other):
        here = net["stop"](stop)
        true = (here * net["near"](near)).sum(1)
        false = torch.einsum("bw,bkw->bk", here, net["near"](other))
        return -(F.logsigmoid(true) + F.logsigmoid(-false).sum(1)).mean()

    test = pairs(3000)
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, lambda step: loss_on(*pairs(256)), 350, score=score)


@healthy()
def fitness_of_firemen_on_the_footplate(folder):
    seeded(11362)
    table, targets = load_diabetes(return_X_y=True)
    order = torch.randperm(len(targets))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(targets, dtype=torch.float32)[order, None]
    x, y = (x - x[:340].mean(0)) / x[:340].std(0), (y - y[:340].mean()) / y[:340].std()
    net = dense(10, 6, 1, act=nn.Tanh)
    optimizer = torch.optim.Rprop(net.parameters(), 1e-3, step_sizes=(1e-6, 0.1))

    def loss_of(step):
        return F.mse_loss(net(x[:340]), y[:340])

    score = held_out(net, lambda: F.mse_loss(net(x[340:]), y[340:]))
    return fit(folder, net, optimizer, loss_of, 40, score=score)


@healthy()
def heads_counted_at_every_turnstile(folder):
    seeded(11363)
    net = dense(6, 48, 48, 1, act=nn.GELU)
    way = torch.randn(6, 2)

    def hours(rows):
        x = torch.randn(rows, 6)
        return x, torch.poisson((3.0 + (x @ way / 2).sin().sum(1, keepdim=True)).exp())

    x, heads = hours(4000)
    with torch.no_grad():
        net[-1].bias.fill_(float(heads.mean().log()))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(128, x, heads)

    def loss_of(step):
        x, heads = draw()
        return F.poisson_nll_loss(net(x), heads, reduction="sum")

    tx, ty = hours(1000)

    def deviance():
        rate = net(tx)
        return 2 * (torch.xlogy(ty, ty) - ty * rate - ty + rate.exp()).mean()

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, deviance))


class Adapted(nn.Module):
    """A linear layer that stays as it is, and a small one beside it."""

    def __init__(self, layer, rank):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x):
        return self.layer(x) + 2 * x @ self.down.T @ self.up.T


@healthy()
def numerals_seen_through_a_wet_window(folder):
    seeded(11364)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x, y = torch.tensor(images / 16, dtype=torch.float32)[order], torch.tensor(digits)[order]
    net = dense(64, 96, 96, 10)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(50, x[:700], y[:700])
    for _ in range(250):
        bx, by = draw()
        optimizer.zero_grad()
        F.cross_entropy(net(bx), by).backward()
        optimizer.step()

    for i in (0, 2, 4):
        net[i] = Adapted(net[i], 6)
    wet = F.avg_pool2d(x.view(-1, 1, 8, 8).flip(3), 3, 1, 1).flatten(1) * 0.8 + 0.1
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 3e-3, weight_decay=0.01)
    draw = rounds(40, wet[700:1400], y[700:1400])

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y)

    score = held_out(net, lambda: F.cross_entropy(net(wet[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 250, score=score)


@healthy()
def heat_that_leaves_a_brake_disc(folder):
    seeded(11365)
    net = dense(2, 32, 32, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def truth(at):
        return (-(3.1416**2) * 0.1 * at[:, 1:]).exp() * (3.1416 * at[:, :1]).sin()

    def loss_of(step):
        at = torch.rand(96, 2, requires_grad=True)
        slope = torch.autograd.grad(net(at).sum(), at, create_graph=True)[0]
        bend = torch.autograd.grad(slope[:, 0].sum(), at, create_graph=True)[0][:, :1]
        inside = (slope[:, 1:] - 0.1 * bend).square().mean()
        start, edge = torch.rand(48, 2) * torch.tensor([1.0, 0.0]), torch.rand(48, 2)
        edge[:, 0] = edge[:, 0].round()
        border = F.mse_loss(net(start), truth(start)) + net(edge).square().mean()
        return inside + 10 * border, {"inside": float(inside), "border": float(border)}

    test = torch.rand(1000, 2)
    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, lambda: F.mse_loss(net(test), truth(test))))


@healthy()
def figures_on_a_timetable_that_someone_tampers_with(folder):
    seeded(11366)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x, y = torch.tensor(images / 16, dtype=torch.float32)[order], torch.tensor(digits)[order]
    net = dense(64, 128, 64, 10)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    draw = rounds(50, x[:1400], y[:1400])

    def tampered(x, y):
        with torch.enable_grad():
            near = (x + 0.08 * (2 * torch.rand_like(x) - 1)).requires_grad_()
            slope = torch.autograd.grad(F.cross_entropy(net(near), y), near)[0]
        return (x + (near.detach() + 0.08 * slope.sign() - x).clamp(-0.08, 0.08)).clamp(0, 1)

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(tampered(x, y)), y)

    score = held_out(net, lambda: F.cross_entropy(net(tampered(x[1400:], y[1400:])), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


@healthy()
def latest_of_ever_longer_rows_of_trains(folder):
    seeded(11369)
    net = nn.ModuleDict({"memory": nn.LSTM(1, 32, batch_first=True), "head": nn.Linear(32, 1)})
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def loss_on(delays):
        return F.mse_loss(net["head"](net["memory"](delays)[0][:, -1]), delays.amax(1))

    def loss_of(step):
        length = 2 + min(step, 240) // 20
        return loss_on(torch.randn(64, length, 1)), {"length": length}

    test = torch.randn(1000, 14, 1)
    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, loss_of, 350, score=score, before_step=clipped(net, 1.0))
