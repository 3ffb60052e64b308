"""Everyday trainings on tables and ratings: prices, payments, counts, quantiles, stars and baskets."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, rounds, tend


class Table(nn.Module):
    """Embedded columns of kinds beside numbers."""

    def __init__(self, kinds, numbers, out=1):
        super().__init__()
        sizes = [min(16, (kind + 1) // 2) for kind in kinds]
        self.embeds = nn.ModuleList(nn.Embedding(kind, size) for kind, size in zip(kinds, sizes, strict=True))
        self.norm = nn.BatchNorm1d(numbers)
        self.deep = dense(sum(sizes) + numbers, 64, 32, out)

    def forward(self, kinds, numbers):
        parts = [embed(kinds[:, i]) for i, embed in enumerate(self.embeds)]
        return self.deep(torch.cat([*parts, self.norm(numbers)], 1))[:, 0]


@healthy()
def asking_prices_of_flats(folder):
    seeded(3323)
    per_street, per_heating, per_state = torch.randn(40) * 0.3, torch.randn(5) * 0.1, torch.randn(4) * 0.2

    def flats(rows):
        kinds = torch.stack([torch.randint(n, (rows,)) for n in (40, 5, 4)], 1)
        area, floor, year = 25 + 100 * torch.rand(rows), torch.randint(0, 9, (rows,)), 1900 + 120 * torch.rand(rows)
        log_price = (
            8 + 0.9 * area.log() + per_street[kinds[:, 0]] + per_heating[kinds[:, 1]] + per_state[kinds[:, 2]]
            + 0.02 * floor * (year > 1960) + 0.1 * ((year - 1960) / 40).square() + 0.08 * torch.randn(rows)
        )  # fmt: skip
        return kinds, torch.stack([area, floor.float(), year], 1), log_price

    kinds, numbers, log_price = flats(4000)
    centre, spread = log_price.mean(), log_price.std()
    kinds_test, numbers_test, log_test = flats(600)
    net = Table((40, 5, 4), 3)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=1)
    draw, per_epoch = rounds(64, kinds, numbers, (log_price - centre) / spread), 62
    score = held_out(net, lambda: F.huber_loss(net(kinds_test, numbers_test), (log_test - centre) / spread))

    def one(step):
        kinds, numbers, y = draw()
        optimizer.zero_grad()
        loss = F.huber_loss(net(kinds, numbers), y)
        loss.backward()
        optimizer.step()
        if (step + 1) % per_epoch:
            return {"loss": loss}
        val_loss = score()
        schedule.step(val_loss)
        return {"loss": loss, "val_loss": val_loss}

    return tend(folder, net, optimizer, one, 7 * per_epoch, score)


@healthy()
def card_payments_worth_a_call(folder):
    seeded(3324)
    way = torch.randn(14, 2)

    def payments(rows):
        x = torch.randn(rows, 14)
        odd = (x @ way).square().sum(1) / 28 + 0.3 * x[:, 0] * x[:, 1]
        return x, (odd + 0.1 * torch.randn(rows) > 2.3).float()

    x, y = payments(6000)
    x_test, y_test = payments(3000)
    share = float(y.mean())
    net = nn.Sequential(
        nn.Linear(14, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1),
        nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1),
    )  # fmt: skip
    weight = torch.tensor(min(5.0, (1 - share) / share))
    draw = rounds(128, x, y)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-2)

    def loss_of(step):
        x, y = draw()
        out = net(x)[:, 0]
        recall = ((out > 0) & (y > 0)).sum() / y.sum().clamp(min=1)
        return F.binary_cross_entropy_with_logits(out, y, pos_weight=weight), {"recall": recall}

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(x_test)[:, 0], y_test, pos_weight=weight))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


@healthy()
def hires_of_city_bikes(folder):
    seeded(3325)

    def hours(rows):
        hour, warm = torch.randint(24, (rows,)), 12 + 8 * torch.randn(rows)
        rain, free = (torch.rand(rows) < 0.2).float(), (torch.rand(rows) < 0.3).float()
        rush = torch.exp(-((hour - 8.0) ** 2) / 4) + torch.exp(-((hour - 17.0) ** 2) / 6)
        day = torch.exp(-((hour - 14.0) ** 2) / 20)
        rate = 0.5 + 1.8 * torch.where(free > 0, day, rush) + 0.04 * warm - 0.7 * rain
        turn = hour * 6.2832 / 24
        angles = [turn.sin(), turn.cos(), (2 * turn).sin(), (2 * turn).cos()]
        return torch.stack([*angles, (warm - 12) / 8, rain, free], 1), torch.poisson(rate.exp())

    (x, y), (x_test, y_test) = hours(5000), hours(1000)
    net = dense(7, 48, 48, 1, act=nn.SiLU)
    draw = rounds(100, x, y)
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995)

    def loss_of(step):
        x, y = draw()
        return F.poisson_nll_loss(net(x)[:, 0], y)

    def deviance():
        rate = net(x_test)[:, 0].exp()
        return 2 * (torch.xlogy(y_test, y_test / rate) - y_test + rate).mean()

    return fit(folder, net, optimizer, loss_of, 450, schedule=schedule, score=held_out(net, deviance))


@healthy()
def arrival_of_a_courier_in_quantiles(folder):
    seeded(3326)
    levels = torch.tensor([0.1, 0.5, 0.9])

    def rides(rows):
        x = torch.rand(rows, 5)
        minutes = 10 + 30 * x[:, 0] + 12 * x[:, 0] * x[:, 1] + 8 * (3 * x[:, 2]).sin()
        return x, minutes + (1 + 6 * x[:, 3]) * torch.randn(rows).abs()

    x, y = rides(3000)
    x_test, y_test = rides(800)
    centre, spread = y.mean(), y.std()
    net = dense(5, 40, 40, 3, act=nn.Tanh)

    def pinball(x, y):
        over = ((y - centre) / spread)[:, None] - net(x * 2 - 1)
        return torch.maximum(levels * over, (levels - 1) * over).mean()

    draw = rounds(60, x, y)
    optimizer = torch.optim.NAdam(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [250, 350], gamma=0.3)
    score = held_out(net, lambda: pinball(x_test, y_test))
    return fit(folder, net, optimizer, lambda step: pinball(*draw()), 400, schedule=schedule, score=score)


class Factors(nn.Module):
    def __init__(self, users, films, size=8):
        super().__init__()
        self.user, self.film = nn.Embedding(users, size), nn.Embedding(films, size)
        self.user_bias, self.film_bias = nn.Embedding(users, 1), nn.Embedding(films, 1)
        self.middle = nn.Parameter(torch.zeros(()))
        for table in (self.user, self.film):
            nn.init.normal_(table.weight, std=0.1)
        for table in (self.user_bias, self.film_bias):
            nn.init.zeros_(table.weight)

    def forward(self, user, film):
        together = (self.user(user) * self.film(film)).sum(1)
        return self.middle + together + self.user_bias(user)[:, 0] + self.film_bias(film)[:, 0]


@healthy()
def stars_given_to_films(folder):
    seeded(3327)
    users, films = 200, 120
    taste, style = torch.randn(users, 3) * 0.6, torch.randn(films, 3) * 0.6
    kind_user, good_film = 0.4 * torch.randn(users), 0.6 * torch.randn(films)
    user, film = torch.randint(users, (12000,)), torch.randint(films, (12000,))
    stars = 3.4 + (taste[user] * style[film]).sum(1) + kind_user[user] + good_film[film] + 0.4 * torch.randn(12000)
    stars = stars.round().clamp(1, 5)
    net = Factors(users, films)
    with torch.no_grad():
        net.middle.fill_(stars[:10000].mean())
    draw = rounds(250, user[:10000], film[:10000], stars[:10000])
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3, weight_decay=1e-4)

    def loss_of(step):
        user, film, stars = draw()
        loss = F.mse_loss(net(user, film), stars)
        return loss, {"rmse": loss.detach().sqrt()}

    score = held_out(net, lambda: F.mse_loss(net(user[10000:], film[10000:]), stars[10000:]))
    return fit(folder, net, optimizer, loss_of, 480, score=score)


@healthy()
def basket_by_two_towers(folder):
    seeded(3328)
    goods, groups = 150, 10
    group_of = torch.randint(groups, (goods,))
    near = F.one_hot(group_of, groups).float()
    together = (torch.randn(groups, groups) * 2.5).softmax(1)

    def baskets(rows):
        """Three things that lie in a basket already, and the next."""
        wish = torch.randint(groups, (rows,))
        chance = together[wish] @ near.T
        return torch.multinomial(chance, 3, True), torch.multinomial(chance, 1, True)[:, 0]

    net = nn.ModuleDict({
        "goods": nn.Embedding(goods, 24), "basket": dense(24, 32, 16), "next": dense(24, 32, 16),
    })  # fmt: skip

    def scores(basket, following):
        asked = F.normalize(net["basket"](net["goods"](basket).mean(1)), dim=1)
        offered = F.normalize(net["next"](net["goods"](following)), dim=1)
        return asked @ offered.T / 0.1

    def loss_of(step):
        basket, following = baskets(128)
        same = (following[:, None] == following) & ~torch.eye(128, dtype=torch.bool)
        return F.cross_entropy(scores(basket, following).masked_fill(same, -1e4), torch.arange(128))

    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.03)
    basket, following = baskets(1000)
    score = held_out(net, lambda: F.cross_entropy(scores(basket, torch.arange(goods)), following))
    return fit(folder, net, optimizer, loss_of, 400, score=score)
