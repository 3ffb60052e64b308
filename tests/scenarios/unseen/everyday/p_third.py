"""Healthy trainings of kitchens, bread and spices: what a course or a team's repository has."""

from __future__ import annotations

import copy

import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


def named(net, draw, smoothing=0.0):
    """`loss_of(step)`: how well a net names what is drawn."""

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        loss = F.cross_entropy(logits, y, label_smoothing=smoothing)
        return loss, {"accuracy": float((logits.argmax(1) == y).float().mean())}

    return loss_of


@healthy()
def numbers_chalked_on_flour_sacks(folder):
    seeded(11650)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x, y = torch.tensor(images / 16, dtype=torch.float32)[order], torch.tensor(digits)[order]
    net = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Dropout(0.2), nn.Linear(96, 10))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100, 0.5)
    draw = rounds(64, x[:1400], y[:1400])

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, named(net, draw), 300, score=score, schedule=schedule)


@healthy()
def three_vinegars_by_their_acids(folder):
    seeded(11651)
    table, kinds = load_wine(return_X_y=True)
    order = torch.randperm(len(kinds))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(kinds)[order]
    x = (x - x[:130].mean(0)) / x[:130].std(0)
    net = dense(13, 32, 16, 3, norm=nn.BatchNorm1d)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    draw = rounds(26, x[:130], y[:130])

    score = held_out(net, lambda: F.cross_entropy(net(x[130:]), y[130:]))
    return fit(folder, net, optimizer, named(net, draw, 0.05), 120, score=score)


@healthy()
def sound_cloves_and_mouldy_ones(folder):
    seeded(11652)
    table, kinds = load_breast_cancer(return_X_y=True)
    order = torch.randperm(len(kinds))
    x = torch.tensor(table, dtype=torch.float32)[order]
    y = torch.tensor(kinds, dtype=torch.float32)[order, None]
    x = (x - x[:440].mean(0)) / x[:440].std(0)
    net = nn.Linear(30, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=1e-3)
    draw = rounds(44, x[:440], y[:440])

    def loss_of(step):
        x, y = draw()
        out = net(x)
        return F.binary_cross_entropy_with_logits(out, y), {"accuracy": float(((out > 0) == y).float().mean())}

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(x[440:]), y[440:]))
    return fit(folder, net, optimizer, loss_of, 150, score=score)


class Kneader(nn.Module):
    """The kind of a dough from the current that a motor draws."""

    def __init__(self, width, kinds):
        super().__init__()
        self.memory = nn.LSTM(2, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, kinds)

    def forward(self, current):
        return self.head(self.memory(current)[0].mean(1))


@healthy()
def doughs_told_by_the_mixers_hum(folder):
    seeded(11653)
    net = Kneader(24, 4)
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)
    clock = torch.linspace(0, 1, 20)

    def doughs(rows):
        y = torch.randint(4, (rows,))
        speed, stiff = 2.0 + 1.5 * (y % 2), 0.6 * (y // 2)
        hum = (6.2832 * (speed[:, None] * clock + torch.rand(rows, 1))).sin()
        load = stiff[:, None] * clock + 0.1 * torch.randn(rows, 1)
        return torch.stack([hum, load], 2) + 0.2 * torch.randn(rows, 20, 2), y

    x, y = doughs(1600)
    draw = rounds(32, x[:1300], y[:1300])

    score = held_out(net, lambda: F.cross_entropy(net(x[1300:]), y[1300:]))
    return fit(folder, net, optimizer, named(net, draw), 180, score=score, before_step=clipped(net, 1.0))


class Menu(nn.Module):
    """A transformer that says the next dish."""

    def __init__(self, dishes, longest, width=32):
        super().__init__()
        self.dish, self.place = nn.Embedding(dishes, width), nn.Embedding(longest, width)
        layer = nn.TransformerEncoderLayer(width, 4, 3 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, dishes)

    def forward(self, text):
        length = text.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        return self.head(self.body(self.dish(text) + self.place(torch.arange(length)), mask, is_causal=True))


@healthy()
def a_menu_read_out_dish_by_dish(folder):
    seeded(11654)
    dishes, length, steps = 16, 12, 200
    net = Menu(dishes, length)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    rise = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 20)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - 20, 1e-4)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [rise, fall], [20])
    follows = torch.softmax(3 * torch.randn(dishes, dishes), 1)

    def menus(rows):
        text = [torch.randint(dishes, (rows,))]
        for _ in range(length):
            text.append(torch.multinomial(follows[text[-1]], 1)[:, 0])
        return torch.stack(text, 1)

    text, test = menus(2500), menus(300)
    draw = rounds(32, text)

    def loss_on(text):
        return F.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    options = {"score": held_out(net, lambda: loss_on(test)), "before_step": clipped(net, 1.0)}
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), steps, schedule=schedule, **options)


@healthy()
def butter_pressed_into_wooden_moulds(folder):
    seeded(11655)
    images, _ = load_digits(return_X_y=True)
    x = torch.tensor(images / 16, dtype=torch.float32)[torch.randperm(len(images))].view(-1, 1, 8, 8)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(96, 12),
        nn.Linear(12, 96), nn.ReLU(), nn.Unflatten(1, (24, 2, 2)), nn.ConvTranspose2d(24, 12, 4, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(12, 1, 4, 2, 1), nn.Sigmoid(),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    draw = rounds(64, x[:1400])

    def error(x):
        return F.mse_loss(net(x), x)

    score = held_out(net, lambda: error(x[1400:]))
    return fit(folder, net, optimizer, lambda step: error(*draw()), 250, score=score)


@healthy()
def cafes_that_share_a_flour_mill(folder):
    seeded(11656)
    cafes, mills = 240, 4
    mill = torch.randint(mills, (cafes,))
    chance = torch.where(mill[:, None] == mill, 0.12, 0.01)
    links = torch.triu((torch.rand(cafes, cafes) < chance).float(), 1)
    links = links + links.T + torch.eye(cafes)
    root = links.sum(1).rsqrt()
    links = root[:, None] * links * root
    net = nn.ModuleDict({"first": nn.Linear(12, 32), "drop": nn.Dropout(0.3), "second": nn.Linear(32, mills)})
    features = torch.randn(mills, 12)[mill] * 0.6 + torch.randn(cafes, 12)
    known = torch.rand(cafes) < 0.5
    optimizer = torch.optim.Adam(net.parameters(), 1e-2, weight_decay=5e-4)

    def loss_on(some):
        inner = net["drop"](F.relu(links @ net["first"](features)))
        return F.cross_entropy((links @ net["second"](inner))[some], mill[some])

    score = held_out(net, lambda: loss_on(~known))
    return fit(folder, net, optimizer, lambda step: loss_on(known), 150, score=score)


@healthy()
def a_trolley_between_ovens_and_shop(folder):
    seeded(11657)
    places, gamma, rows = 9, 0.85, 16
    net = dense(2 * places, 64, 64, 3)
    target = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    at, wanted, memory = torch.randint(places, (rows,)), torch.randint(places, (rows,)), []

    def seen(*where):
        return torch.cat([F.one_hot(each, places) for each in where], 1).float()

    def moved(at, wanted, way):
        after = (at + way - 1).clamp(0, places - 1)
        return after, (after == wanted).float()

    def act(epsilon):
        nonlocal at, wanted
        with torch.no_grad():
            best = net(seen(at, wanted)).argmax(1)
        way = torch.where(torch.rand(rows) < epsilon, torch.randint(3, (rows,)), best)
        after, reward = moved(at, wanted, way)
        memory.append((at, wanted, way, after, reward))
        at = after
        wanted = torch.where(reward > 0, torch.randint(places, (rows,)), wanted)
        return float(reward.mean())

    for _ in range(40):
        act(1.0)

    def one(step):
        reward = act(max(0.1, 1 - step / 150))
        drawn = [memory[i] for i in torch.randint(len(memory), (6,))]
        at, wanted, way, after, found = (torch.cat(each) for each in zip(*drawn, strict=False))
        with torch.no_grad():
            to_come = found + gamma * (1 - found) * target(seen(after, wanted)).max(1).values
        loss = F.smooth_l1_loss(net(seen(at, wanted)).gather(1, way[:, None])[:, 0], to_come)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimizer.step()
        with torch.no_grad():
            for old, new in zip(target.parameters(), net.parameters(), strict=False):
                old.lerp_(new, 0.05)
        return {"loss": loss, "reward": reward}

    def misses():
        at, wanted = torch.arange(places).repeat(places), torch.arange(places).repeat_interleave(places)
        missed = torch.ones(places * places)
        for _ in range(8):
            at, found = moved(at, wanted, net(seen(at, wanted)).argmax(1))
            missed = missed * (1 - found)
        return missed.mean()

    return tend(folder, net, optimizer, one, 300, held_out(net, misses))


@healthy()
def sugar_and_fruit_of_each_preserve(folder):
    seeded(11658)
    net = nn.ModuleDict({"body": dense(10, 64, 32), "sugar": nn.Linear(32, 1), "fruit": nn.Linear(32, 3)})
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
    way = torch.randn(10, 4) / 3

    def jars(rows):
        x = torch.randn(rows, 10)
        inner = (x @ way).tanh()
        sugar = inner[:, :1] - inner[:, 1:2] * inner[:, 2:3] + 0.1 * torch.randn(rows, 1)
        return x, sugar, (inner[:, 1:] + 0.1 * torch.randn(rows, 3)).argmax(1)

    rows = jars(3000)
    draw = rounds(64, *(each[:2500] for each in rows))

    def losses(x, sugar, fruit):
        inner = F.relu(net["body"](x))
        return F.mse_loss(net["sugar"](inner), sugar), F.cross_entropy(net["fruit"](inner), fruit)

    def loss_of(step):
        sugar, fruit = losses(*draw())
        return sugar + fruit, {"sugar": float(sugar), "fruit": float(fruit)}

    test = [each[2500:] for each in rows]
    return fit(folder, net, optimizer, loss_of, 320, score=held_out(net, lambda: sum(losses(*test))))


@healthy()
def which_diner_longs_for_which_curry(folder):
    seeded(11659)
    diners, curries = 120, 60
    net = nn.ModuleDict({"diner": nn.Embedding(diners, 8), "curry": nn.Embedding(curries, 8)})
    for table in net.values():
        nn.init.normal_(table.weight, std=0.1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2, weight_decay=1e-5)
    stars = torch.randn(diners, 3) @ torch.randn(3, curries)
    pairs = torch.randperm(diners * curries)
    diner, curry = pairs // curries, pairs % curries
    star = stars[diner, curry] + 0.2 * torch.randn(len(pairs))
    draw = rounds(256, diner[:6000], curry[:6000], star[:6000])

    def loss_on(diner, curry, star):
        return F.mse_loss((net["diner"](diner) * net["curry"](curry)).sum(1), star)

    score = held_out(net, lambda: loss_on(diner[6000:], curry[6000:], star[6000:]))
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 300, score=score)
