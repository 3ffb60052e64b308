"""Masks, boxes, quantiles, counts, lifetimes and graphs."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, PolynomialLR, ReduceLROnPlateau
from unseen import dense, fit, healthy, mean, seeded
from unseen.tasks import held_out, rounds, tend


def twice(inside, outside):
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(inplace=True),
        nn.Conv2d(outside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(inplace=True),
    )  # fmt: skip


class Ladder(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.down = twice(1, width)
        self.bottom = twice(width, 2 * width)
        self.lift = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.up = twice(2 * width, width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        a = self.down(x)
        b = self.lift(self.bottom(F.max_pool2d(a, 2)))
        return self.head(self.up(torch.cat([a, b], 1)))


@healthy()
def cells_outlined_under_the_microscope(folder):
    seeded(9279)
    lines = torch.arange(16.0)

    def draw(rows=16):
        masks = torch.zeros(rows, 16, 16)
        for _ in range(3):
            down, right = 16 * torch.rand(2, rows, 1, 1)
            wide = 1.5 + 2 * torch.rand(rows, 1, 1)
            masks = masks.maximum(((lines[:, None] - down) ** 2 + (lines - right) ** 2 < wide**2).float())
        light = 0.4 * torch.randn(rows, 1, 1) + 0.03 * lines
        return (masks * 0.8 + light + 0.4 * torch.randn(rows, 16, 16))[:, None], masks[:, None]

    net = Ladder()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    schedule = ReduceLROnPlateau(optimizer, factor=0.5, patience=2)

    def terms(x, masks):
        out = net(x)
        p = out.sigmoid()
        overlap = (p * masks).sum((1, 2, 3)) + 1
        dice = 1 - (2 * overlap / ((p + masks).sum((1, 2, 3)) + 2)).mean()
        return F.binary_cross_entropy_with_logits(out, masks), dice

    x_train, y_train = draw(400)
    batch, (x_test, y_test) = rounds(16, x_train, y_train), draw(80)
    score = held_out(net, lambda: sum(terms(x_test, y_test)))

    def one(step):
        entropy, dice = terms(*batch())
        loss = entropy + dice
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        logged = {"loss": loss, "bce": entropy, "dice": dice}
        if (step + 1) % 25 == 0:
            logged["val_loss"] = score()
            schedule.step(logged["val_loss"])
        return logged

    return tend(folder, net, optimizer, one, 250, score)


@healthy()
def parcels_framed_on_the_belt(folder):
    seeded(9280)
    lines = torch.arange(20.0)

    def draw(rows=32):
        middle, half = 5 + 10 * torch.rand(rows, 2), 1.5 + 3 * torch.rand(rows, 2)
        inside = (lines - middle[:, :, None]).abs() < half[:, :, None]
        x = (inside[:, 0, :, None] & inside[:, 1, None]).float() * (0.6 + 0.4 * torch.rand(rows, 1, 1))
        return (x + 0.15 * torch.randn(rows, 20, 20))[:, None], torch.cat([middle, half], 1) / 20

    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.GroupNorm(2, 8), nn.SiLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.SiLU(),
        nn.Flatten(), nn.Linear(400, 64), nn.SiLU(), nn.Linear(64, 4),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-4)

    def loss_of(step):
        x, boxes = draw()
        out = net(x)
        return F.smooth_l1_loss(out, boxes, beta=0.1), {"pixels_off": 20 * (out - boxes).abs().mean()}

    x, boxes = draw(300)
    score = held_out(net, lambda: F.l1_loss(net(x), boxes))
    schedule = PolynomialLR(optimizer, 400, power=0.9)
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule)


@healthy()
def pizzas_promised_within_the_hour(folder):
    seeded(9281)
    shares = torch.tensor([0.1, 0.5, 0.9])

    def draw(rows=128):
        far, crowd, rain = 6 * torch.rand(rows), torch.randn(rows), torch.bernoulli(torch.full((rows,), 0.3))
        hour = 24 * torch.rand(rows)
        rush = (-((hour - 19) ** 2) / 8).exp()
        minutes = 12 + 4 * far + 8 * rush + 3 * crowd.relu() + 5 * rain * far / 3
        minutes = minutes + (2 + far + 3 * rush) * torch.distributions.Gumbel(0.0, 0.6).sample((rows,))
        x = torch.stack([far / 3 - 1, crowd, rain, (hour / 3.82).sin(), (hour / 3.82).cos()], 1)
        return x, (minutes - 30) / 12

    net = dense(5, 64, 64, 3, act=nn.Mish)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    schedule = CosineAnnealingWarmRestarts(optimizer, 100, T_mult=2, eta_min=1e-5)

    def loss_of(step):
        x, y = draw()
        gap = y[:, None] - net(x)
        pinball = torch.maximum(shares * gap, (shares - 1) * gap).mean()
        return pinball, {"covered": ((gap[:, 0] > 0) & (gap[:, 2] < 0)).float().mean()}

    def test():
        with torch.no_grad():
            return mean([float(loss_of(0)[0]) for _ in range(10)])

    return fit(folder, net, optimizer, loss_of, 700, score=test, schedule=schedule)


@healthy(gain=0.1)
def bicycles_hired_each_hour(folder):
    seeded(9282)
    hours = torch.arange(24 * 300)
    hour, day = hours % 24, hours // 24 % 7
    warm = 0.5 * (6.2832 * hours / 7200).sin() + 0.3 * torch.randn(len(hours))
    work = (day < 5).float()
    morning, evening = (-((hour - 8) ** 2) / 4).exp(), (-((hour - 17) ** 2) / 6).exp()
    rate = (0.3 + 1.6 * work * (morning + evening) + (1 - work) * (-((hour - 14) ** 2) / 20).exp() + 0.8 * warm).exp()
    hired = torch.poisson(rate)
    x = torch.cat([F.one_hot(hour, 24), F.one_hot(day, 7), warm[:, None]], 1)
    train = torch.rand(len(hours)) < 0.8
    draw, net = rounds(200, x[train], hired[train]), dense(32, 32, 32, 1)
    optimizer = torch.optim.Adamax(net.parameters(), lr=5e-3)

    def loss_of(step):
        a, b = draw()
        return F.poisson_nll_loss(net(a)[:, 0], b)

    def deviance():
        out, y = net(x[~train])[:, 0], hired[~train]
        return 2 * (torch.xlogy(y, y) - y * out - y + out.exp()).mean()

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, deviance))


@healthy(gain=0.25)
def pumps_of_the_waterworks_month_by_month(folder):
    seeded(9283)
    months = 12

    def draw(rows=256):
        x = torch.randn(rows, 8)
        worn = x[:, 0] - 0.8 * x[:, 1] * x[:, 2] + 1.5 * (x[:, 3] > 0.5).float() - 0.7 * x[:, 4]
        fails = (-(2.2 * worn - 1.2).exp()[:, None] * torch.ones(rows, months) / 10).exp()
        alive = torch.bernoulli(fails).cumprod(1)
        last = torch.randint(3, months + 1, (rows,))
        seen = (torch.arange(months) < last[:, None]).float()
        risk = torch.cat([torch.ones(rows, 1), alive[:, :-1]], 1) * seen
        return x, 1 - alive, risk

    net = nn.Sequential(
        nn.Linear(8, 48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, months)
    )
    nn.init.constant_(net[-1].bias, -2.0)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, weight_decay=1e-4)

    def likelihood(x, failed, risk):
        each = F.binary_cross_entropy_with_logits(net(x), failed, reduction="none")
        return (each * risk).sum() / risk.sum()

    test = draw(3000)
    score = held_out(net, lambda: likelihood(*test))
    return fit(folder, net, optimizer, lambda step: likelihood(*draw()), 400, score=score)


class Neighbours(nn.Module):
    def __init__(self, inputs, kinds, width=16):
        super().__init__()
        self.one, self.two = nn.Linear(inputs, width, bias=False), nn.Linear(width, kinds, bias=False)
        self.bias_one, self.bias_two = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(kinds))
        nn.init.xavier_uniform_(self.one.weight)
        nn.init.xavier_uniform_(self.two.weight)

    def forward(self, x, mix):
        x = F.dropout(x, 0.5, self.training)
        h = (mix @ self.one(x) + self.bias_one).relu()
        return mix @ self.two(F.dropout(h, 0.5, self.training)) + self.bias_two


@healthy()
def villages_sorted_by_their_roads(folder):
    seeded(9284)
    count, kinds = 400, 5
    y = torch.randint(kinds, (count,))
    chance = torch.where(y[:, None] == y, 0.05, 0.004)
    upper = torch.bernoulli(chance).triu(1)
    roads = upper + upper.T + torch.eye(count)
    scale = roads.sum(1).rsqrt()
    mix = scale[:, None] * roads * scale
    words = torch.rand(kinds, 60) ** 3
    x = torch.bernoulli(0.1 + 0.25 * words[y])
    x = x / x.sum(1, keepdim=True).clamp(min=1)
    order = torch.randperm(count)
    train, test = order[:100], order[200:]
    net = Neighbours(60, kinds)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=5e-4)

    def loss_of(step):
        out = net(x, mix)
        right = (out[train].argmax(1) == y[train]).float().mean()
        return F.cross_entropy(out[train], y[train]), {"train_accuracy": right}

    score = held_out(net, lambda: (net(x, mix)[test].argmax(1) != y[test]).float().mean())
    return fit(folder, net, optimizer, loss_of, 200, score=score)
