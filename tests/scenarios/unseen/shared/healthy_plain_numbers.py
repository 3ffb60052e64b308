"""Numbers foretold from tables, pictures and measurements, with the losses that are usual for each."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, rounds, tend


@healthy()
def rents_asked_for_student_rooms(folder):
    seeded(3612)
    rows = 3000
    area = 30 + 90 * torch.rand(rows)
    floor = torch.randint(0, 8, (rows,)).float()
    age = 80 * torch.rand(rows)
    place = torch.rand(rows, 2)
    lift = (torch.rand(rows) < 0.5).float()
    centre = (place - 0.5).norm(dim=1)
    rent = area * (18 - 14 * centre) * (1 - 0.003 * age) + 20 * floor * (2 * lift - 1) + 40 * torch.randn(rows)
    x = torch.cat([torch.stack([area, floor, age, lift], 1), place], 1)
    train, test = slice(0, 2500), slice(2500, None)
    x = (x - x[train].mean(0)) / x[train].std(0)
    y = ((rent - rent[train].mean()) / rent[train].std())[:, None]
    draw = rounds(100, x[train], y[train])
    net = dense(6, 64, 64, 1)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=2)

    def error():
        return F.l1_loss(net(x[test]), y[test])

    score = held_out(net, error)

    def loss_of(step):
        a, b = draw()
        return F.smooth_l1_loss(net(a), b)

    def after_step(step):
        if step % 25 == 24:
            plateau.step(score())

    return fit(folder, net, optimizer, loss_of, 750, score=score, after_step=after_step)


@healthy()
def delivery_times_and_their_spread(folder):
    seeded(3613)
    levels = torch.tensor([0.1, 0.5, 0.9])
    rows = 4000
    x = torch.rand(rows, 5)
    middle = 1 + 3 * x[:, 0] + 2 * (6 * x[:, 1]).sin() * x[:, 2]
    minutes = middle + (0.2 + x[:, 3]) * torch.empty(rows).exponential_()
    y = (minutes - minutes[:3400].mean()) / minutes[:3400].std()
    inputs = 2 * x - 1
    draw = rounds(128, inputs[:3400], y[:3400])
    net = dense(5, 48, 48, 3, act=nn.SiLU)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)

    def pinball(out, y):
        gap = y[:, None] - out
        return torch.maximum(levels * gap, (levels - 1) * gap).mean()

    def loss_of(step):
        a, b = draw()
        out = net(a)
        inside = (b > out[:, 0]) & (b < out[:, 2])
        return pinball(out, b), {"coverage": inside.float().mean()}

    score = held_out(net, lambda: pinball(net(inputs[3400:]), y[3400:]))
    return fit(folder, net, optimizer, loss_of, 520, score=score)


@healthy()
def hires_of_city_bicycles(folder):
    seeded(3614)
    hours = 24 * 150
    at = torch.arange(hours)
    hour, day = at % 24, at // 24 % 7
    warm = 15 + 8 * (6.283 * at / hours).sin() + 3 * torch.randn(hours)
    wet = (torch.rand(hours) < 0.15).float()
    peak = torch.exp(-(hour - 8).square() / 4) + torch.exp(-(hour - 17.5).square() / 8)
    weekend = (day >= 5).float()
    leisure = torch.exp(-(hour - 14).square() / 18)
    rate = torch.exp(0.5 + 0.05 * warm - 0.9 * wet + 1.6 * peak * (1 - weekend) + 1.5 * leisure * weekend)
    count = torch.poisson(rate)
    x = torch.cat([F.one_hot(hour, 24), F.one_hot(day, 7), ((warm - 15) / 6)[:, None], wet[:, None]], 1).float()
    order = torch.randperm(hours)
    train, test = order[:3000], order[3000:]
    draw = rounds(64, x[train], count[train])
    net = dense(33, 64, 32, 1)
    nn.init.zeros_(net[-1].weight)
    nn.init.constant_(net[-1].bias, math.log(float(count[train].mean())))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def loss_of(step):
        a, b = draw()
        return F.poisson_nll_loss(net(a)[:, 0], b, log_input=True)

    def deviance():
        out = net(x[test])[:, 0]
        y = count[test]
        return 2 * (torch.xlogy(y, y) - y * out - y + out.exp()).mean()

    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, deviance))


@healthy()
def angles_of_pointers_on_dials(folder):
    seeded(3615)
    rows, size = 2500, 14
    angle = 6.2832 * torch.rand(rows)
    grid = torch.linspace(-1, 1, size)
    v, u = torch.meshgrid(grid, grid, indexing="ij")
    along = u * angle.cos()[:, None, None] + v * angle.sin()[:, None, None]
    across = -u * angle.sin()[:, None, None] + v * angle.cos()[:, None, None]
    hand = torch.exp(-across.square() / 0.02) * ((along > 0) & (along < 0.9))
    x = hand[:, None] + 0.2 * torch.randn(rows, 1, size, size)
    target = torch.stack([angle.cos(), angle.sin()], 1)
    draw = rounds(50, x[:2000], target[:2000])

    class Dial(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(1, 8, 3, padding=1),
                nn.BatchNorm2d(8),
                nn.LeakyReLU(0.1),
                nn.MaxPool2d(2),
                nn.Conv2d(8, 16, 3, padding=1),
                nn.BatchNorm2d(16),
                nn.LeakyReLU(0.1),
                nn.Flatten(),
                nn.Linear(16 * 49, 32),
                nn.LeakyReLU(0.1),
            )
            self.place = nn.Linear(32, 2)
            self.doubt = nn.Linear(32, 1)

        def forward(self, x):
            h = self.body(x)
            return self.place(h), self.doubt(h).clamp(-6, 4)

    net = Dial()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=1e-5)

    def loss_of(step):
        a, b = draw()
        place, log_var = net(a)
        gap = (place - b).square()
        return (0.5 * (gap * (-log_var).exp() + log_var)).mean(), {"mse": gap.mean()}

    score = held_out(net, lambda: F.mse_loss(net(x[2000:])[0], target[2000:]))
    return fit(folder, net, optimizer, loss_of, 320, score=score)


@healthy()
def sag_of_loaded_shelves(folder):
    seeded(3616)
    rows = 400
    x = torch.rand(rows, 4)
    length, load, thickness, stiffness = (0.5 + x).unbind(1)
    sag = (load * length**3 / (stiffness * thickness**2)).log()
    y = (sag + 0.02 * torch.randn(rows))[:, None]
    y = (y - y[:300].mean()) / y[:300].std()
    x = 2 * x - 1
    net = dense(4, 16, 16, 1, act=nn.Tanh)
    optimizer = torch.optim.LBFGS(net.parameters(), lr=1, max_iter=4, history_size=20, line_search_fn="strong_wolfe")
    score = held_out(net, lambda: F.mse_loss(net(x[300:]), y[300:]))

    def one(step):
        def closure():
            optimizer.zero_grad()
            loss = F.mse_loss(net(x[:300]), y[:300]) + 1e-5 * sum(p.square().sum() for p in net.parameters())
            loss.backward()
            return loss

        return {"loss": optimizer.step(closure)}

    return tend(folder, net, optimizer, one, 100, score)
