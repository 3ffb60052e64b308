"""Kitchens, restaurants and market halls, ten healthy ones: garnishes, bills, reviews, covers, prices, sauces."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds, tend


@healthy()
def garnish_laid_on_a_plate(folder):
    seeded(13550)
    leaves = F.interpolate(torch.randn(8, 1, 5, 5), size=(9, 9), mode="bilinear")

    def plates(rows):
        y = torch.randint(8, (rows,))
        image = torch.zeros(rows, 1, 16, 16)
        for row, (top, left) in enumerate(torch.randint(8, (rows, 2)).tolist()):
            image[row, :, top : top + 9, left : left + 9] = leaves[y[row]]
        return image + 0.3 * torch.randn(rows, 1, 16, 16), y

    draw = rounds(64, *plates(3000))
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, 8),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
    tx, ty = plates(400)
    validate = now_and_then(net, 40, judged(net, tx, ty))

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": float((said.argmax(1) == y).float().mean()), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 200, score=score, schedule=schedule)


class Bill(nn.Module):
    """What a table will pay: numbers, and the day and the waiter by their embeddings."""

    def __init__(self):
        super().__init__()
        self.day, self.waiter = nn.Embedding(7, 4), nn.Embedding(15, 6)
        self.body = dense(16, 64, 64, 1)

    def forward(self, numbers, day, waiter):
        return self.body(torch.cat([numbers, self.day(day), self.waiter(waiter)], 1))


@healthy(0.5)
def bill_a_table_will_pay(folder):
    seeded(13551)
    costly, charm = torch.rand(7), torch.randn(15)

    def tables(rows):
        guests, hours = torch.randint(1, 9, (rows,)).float(), 1 + 2 * torch.rand(rows)
        other = torch.randn(rows, 4)
        day, waiter = torch.randint(7, (rows,)), torch.randint(15, (rows,))
        bill = guests * (18 + 8 * costly[day]) * hours.sqrt() + 8 * charm[waiter] + 10 * other[:, 0] * other[:, 1]
        return torch.cat([guests[:, None], hours[:, None], other], 1), day, waiter, bill[:, None]

    numbers, day, waiter, bill = tables(3000)
    centre, spread, middle, wide = numbers.mean(0), numbers.std(0), bill.mean(), bill.std()
    draw = rounds(64, (numbers - centre) / spread, day, waiter, (bill - middle) / wide)
    net = Bill()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    numbers, day, waiter, bill = tables(500)
    numbers, bill = (numbers - centre) / spread, (bill - middle) / wide
    validate = now_and_then(net, 46, lambda: {"val_mae": F.l1_loss(net(numbers, day, waiter), bill)})

    def loss_of(step):
        *given, wanted = draw()
        return F.mse_loss(net(*given), wanted), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(numbers, day, waiter), bill))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


@healthy()
def stars_of_a_restaurant_by_a_review(folder):
    seeded(13552)
    habit = 1.3 * torch.randn(5, 120)

    def reviews(rows):
        stars = torch.randint(5, (rows,))
        return torch.multinomial(habit[stars].softmax(1), 18, replacement=True), stars

    net = nn.Sequential(nn.EmbeddingBag(120, 32), nn.Dropout(0.2), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 5))
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    tx, ty = reviews(500)
    validate = now_and_then(net, 40, judged(net, tx, ty))
    draw = rounds(50, *reviews(3000))

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": float((said.argmax(1) == y).float().mean()), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 360, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@healthy(0.5)
def numbers_chalked_above_the_stalls(folder):
    seeded(13553)
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float() / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = (x[order] - 0.3) / 0.38, y[order]
    draw = rounds(32, x[:1400], y[:1400])
    net = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 64), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 200, 0.2)
    validate = now_and_then(net, 43, judged(net, x[1400:], y[1400:]))

    def loss_of(step):
        image, number = draw()
        said = net(image)
        right = (said.argmax(1) == number).float().mean()
        return F.cross_entropy(said, number), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 430, score=score, schedule=schedule)


class Covers(nn.Module):
    """The covers of the next three evenings, by those of four weeks."""

    def __init__(self):
        super().__init__()
        self.memory = nn.LSTM(1, 40, batch_first=True)
        self.out = nn.Linear(40, 3)

    def forward(self, x):
        return self.out(self.memory(x[..., None])[0][:, -1])


@healthy(0.5)
def covers_of_the_next_three_evenings(folder):
    seeded(13554)

    def evenings(rows):
        day = torch.randint(7, (rows, 1)) + torch.arange(31)
        week = (day / 7 * 6.2832).sin() * (0.6 + 0.8 * torch.rand(rows, 1)) + 0.6 * (day % 7 == 4)
        series = week + 0.02 * torch.randn(rows, 1) * torch.arange(31) + 0.1 * torch.randn(rows, 31)
        return series[:, :28], series[:, 28:]

    net = Covers()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    draw = rounds(64, *evenings(3000))
    tx, ty = evenings(500)
    validate = now_and_then(net, 46, lambda: {"val_loss": F.mse_loss(net(tx), ty)})

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 250, score=score, before_step=clipped(net, 1.0))


class Coupling(nn.Module):
    """Half of the values shift and stretch the other half."""

    def __init__(self, size, flip):
        super().__init__()
        self.net, self.flip = dense(size // 2, 48, size, act=nn.Tanh), flip
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        a, b = x.chunk(2, 1)[::-1] if self.flip else x.chunk(2, 1)
        shift, stretch = self.net(a).chunk(2, 1)
        stretch = 2 * (stretch / 2).tanh()
        b = b * stretch.exp() + shift
        return torch.cat([b, a] if self.flip else [a, b], 1), stretch.sum(1)


class Flow(nn.Module):
    """The density of prices, by coupling layers."""

    def __init__(self, size, depth):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(size, bool(i % 2)) for i in range(depth))

    def forward(self, x):
        volume = 0
        for layer in self.layers:
            x, more = layer(x)
            volume = volume + more
        return (0.5 * x.square() + 0.5 * math.log(2 * math.pi)).sum(1) - volume


@healthy(0.2)
def prices_of_four_fish_on_one_morning(folder):
    seeded(13555)

    def mornings(rows):
        a, b = torch.randn(2, rows)
        rest = 0.15 * torch.randn(rows, 4)
        return torch.stack([a, (a.square() - 1) / 1.4, (2 * b).sin() * 1.3, b + a / 2], 1) * 0.9 + rest

    net = Flow(4, 6)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(128, mornings(6000))
    test = mornings(600)
    validate = now_and_then(net, 46, lambda: {"val_nll": net(test).mean()})

    def loss_of(step):
        (x,) = draw()
        return net(x).mean(), validate(step)

    score = held_out(net, lambda: net(test).mean())
    return fit(folder, net, optimizer, loss_of, 400, score=score, before_step=clipped(net, 5.0))


class Sauce(nn.Module):
    """How thick a sauce is at a time, given how it is made (FiLM)."""

    def __init__(self, kinds, width):
        super().__init__()
        self.kind = nn.Embedding(kinds, 8)
        self.turn = nn.ModuleList(nn.Linear(8, 2 * width) for _ in range(2))
        self.first, self.second, self.out = nn.Linear(3, width), nn.Linear(width, width), nn.Linear(width, 1)

    def forward(self, x, kind):
        code, h = self.kind(kind), x
        for layer, turn in zip((self.first, self.second), self.turn, strict=True):
            gain, shift = turn(code).chunk(2, 1)
            h = F.gelu(layer(h) * (1 + gain) + shift)
        return self.out(h)


@healthy(0.5)
def thickness_of_a_sauce_while_it_cooks(folder):
    seeded(13556)
    way, pace = torch.randn(6, 3), 1 + torch.rand(6)

    def sauces(rows):
        x, kind = torch.randn(rows, 3), torch.randint(6, (rows,))
        thick = (pace[kind] * (x * way[kind]).sum(1)).sin() + 0.4 * way[kind, 0]
        return x, kind, (thick + 0.05 * torch.randn(rows))[:, None]

    net = Sauce(6, 64)
    optimizer = torch.optim.NAdam(net.parameters(), 3e-3)
    draw = rounds(64, *sauces(5000))
    x, kind, thick = sauces(600)

    def loss_of(step):
        x, kind, thick = draw()
        return F.smooth_l1_loss(net(x, kind), thick, beta=0.5)

    score = held_out(net, lambda: F.mse_loss(net(x, kind), thick))
    return fit(folder, net, optimizer, loss_of, 450, score=score)


@healthy(0.25)
def minutes_a_waiter_needs_to_come(folder):
    seeded(13557)

    def calls(rows):
        x = torch.randn(rows, 5)
        busy = torch.rand(rows) < torch.sigmoid(2 * x[:, 0])
        late = torch.where(busy, 1.2 + 0.5 * x[:, 1], -0.8 + 0.4 * (2 * x[:, 2]).sin())
        return x, late + torch.where(busy, 0.3, 0.12) * torch.randn(rows)

    net = dense(5, 64, 64, 12, act=nn.SiLU)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=400)
    draw = rounds(100, *calls(4000))

    def surprise(x, y):
        share, middle, spread = net(x).chunk(3, 1)
        parts = torch.distributions.Normal(middle, F.softplus(spread) + 0.02).log_prob(y[:, None])
        return -(share.log_softmax(1) + parts).logsumexp(1).mean()

    test = calls(600)
    validate = now_and_then(net, 40, lambda: {"val_nll": surprise(*test)})

    def loss_of(step):
        return surprise(*draw()), validate(step)

    score = held_out(net, lambda: surprise(*test))
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule, before_step=clipped(net, 2.0))


class Basket(nn.Module):
    """A value of a set, whatever the order of what is in it."""

    def __init__(self):
        super().__init__()
        self.thing, self.whole = dense(4, 48, 32, act=nn.ELU), dense(64, 48, 1, act=nn.ELU)

    def forward(self, x, there):
        h = self.thing(x)
        mean = (h * there[..., None]).sum(1) / there.sum(1, keepdim=True)
        most = h.masked_fill(there[..., None] == 0, -1e4).amax(1)
        return self.whole(torch.cat([mean, most], 1))


@healthy(0.5)
def baskets_carried_out_of_the_hall(folder):
    seeded(13558)
    dear, heavy = torch.randn(4) / 2, torch.randn(4) / 2

    def baskets(rows):
        x, there = torch.randn(rows, 9, 4), (torch.arange(9) < torch.randint(3, 10, (rows, 1))).float()
        most = (x @ heavy).masked_fill(there == 0, -1e4).amax(1)
        value = ((x @ dear).tanh() * there).sum(1) / there.sum(1) + 0.7 * (most - 0.8)
        return x * there[..., None], there, (value + 0.05 * torch.randn(rows))[:, None]

    net = Basket()
    optimizer = torch.optim.RMSprop(net.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995)
    draw = rounds(64, *baskets(4000))
    x, there, value = baskets(500)
    validate = now_and_then(net, 50, lambda: {"val_loss": F.huber_loss(net(x, there), value)})

    def loss_of(step):
        x, there, value = draw()
        return F.huber_loss(net(x, there), value), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(x, there), value))
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule)


@healthy()
def trolley_steered_between_the_tables(folder):
    seeded(13559)
    net, slow = dense(4, 64, 64, 5), dense(4, 64, 64, 5)
    slow.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    ways = torch.tensor([[0.0, 0.0], [0.3, 0.0], [-0.3, 0.0], [0.0, 0.3], [0.0, -0.3]])

    def move(state, way):
        at = (state[:, :2] + ways[way] + 0.02 * torch.randn(len(state), 2)).clamp(-1, 1)
        far = (at - state[:, 2:]).norm(dim=1)
        there = far < 0.25
        return torch.cat([at, state[:, 2:]], 1), there.float() - 0.1 * far, there

    start = 2 * torch.rand(2000, 4) - 1
    way = torch.randint(5, (2000,))
    memory = [start, way, *move(start, way)]
    state, place = 2 * torch.rand(32, 4) - 1, 0

    def one(step):
        nonlocal state, place
        with torch.no_grad():
            bold = torch.rand(32) < max(0.1, 1 - step / 200)
            way = torch.where(bold, torch.randint(5, (32,)), net(state).argmax(1))
        after, reward, there = move(state, way)
        for kept, new in zip(memory, (state, way, after, reward, there), strict=True):
            kept[place : place + 32] = new
        place = (place + 32) % 1984
        state = torch.where((there | (torch.rand(32) < 0.1))[:, None], 2 * torch.rand(32, 4) - 1, after)
        rows = torch.randint(2000, (64,))
        before, done, then, worth, end = (kept[rows] for kept in memory)
        with torch.no_grad():
            best = net(then).argmax(1, keepdim=True)
            wanted = worth + 0.9 * slow(then).gather(1, best)[:, 0] * ~end
        loss = F.smooth_l1_loss(net(before).gather(1, done[:, None])[:, 0], wanted)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimizer.step()
        with torch.no_grad():
            for kept, new in zip(slow.parameters(), net.parameters(), strict=True):
                kept.lerp_(new, 0.02)
        return {"loss": loss, "reward": float(reward.mean())}

    begin = 2 * torch.rand(300, 4) - 1

    def score():
        at, open_still, steps = begin, torch.ones(300, dtype=torch.bool), torch.zeros(300)
        with torch.no_grad():
            for _ in range(12):
                steps += open_still
                at, _, there = move(at, net(at).argmax(1))
                open_still &= ~there
        return float(steps.mean())

    return tend(folder, net, optimizer, one, 600, score)
