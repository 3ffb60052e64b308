"""Healthy trainings of observatories and winter nights: what a course or a team's repository has."""

from __future__ import annotations

import copy

import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine, make_friedman1
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, in_turn, rounds, tend


def scaled(table, targets, train):
    """Shuffled rows, each column standardised by those that are trained on."""
    order = torch.randperm(len(targets))
    x = torch.tensor(table, dtype=torch.float32)[order]
    return (x - x[:train].mean(0)) / x[:train].std(0), torch.tensor(targets)[order]


@healthy()
def numbers_chalked_on_the_dome_door(folder):
    seeded(11850)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x = (torch.tensor(images, dtype=torch.float32)[order].view(-1, 1, 8, 8) - 4.9) / 6.0
    y = torch.tensor(digits)[order]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 110, 0.3)
    draw = rounds(64, x[:1400], y[:1400])

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 260, score=score, schedule=schedule)


@healthy()
def mulled_wine_at_the_star_party(folder):
    seeded(11851)
    x, y = scaled(*load_wine(return_X_y=True), 130)
    net = dense(13, 32, 16, 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-3)
    draw = rounds(26, x[:130], y[:130])

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y)

    score = held_out(net, lambda: F.cross_entropy(net(x[130:]), y[130:]))
    return fit(folder, net, optimizer, loss_of, 150, score=score)


@healthy()
def slides_read_by_an_astronomers_sister(folder):
    seeded(11852)
    x, y = scaled(*load_breast_cancer(return_X_y=True), 450)
    y = y.float()
    net = nn.Sequential(nn.Linear(30, 24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 1))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3, weight_decay=1e-4)
    draw = rounds(45, x[:450], y[:450])

    def loss_of(step):
        x, y = draw()
        return F.binary_cross_entropy_with_logits(net(x)[:, 0], y)

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(x[450:])[:, 0], y[450:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


@healthy()
def sharpness_of_images_from_ten_sensors(folder):
    seeded(11853)
    table, targets = make_friedman1(2000, 10, noise=0.5, random_state=3)
    x, y = scaled(table, targets, 1600)
    y = y.float()[:, None]
    y = (y - y[:1600].mean()) / y[:1600].std()
    net = dense(10, 64, 64, 1, act=nn.SiLU)
    steps = 350
    optimizer = torch.optim.AdamW(net.parameters(), 5e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    draw = rounds(64, x[:1600], y[:1600])

    def loss_of(step):
        x, y = draw()
        return F.smooth_l1_loss(net(x), y), {"lr": schedule.get_last_lr()[0]}

    score = held_out(net, lambda: F.mse_loss(net(x[1600:]), y[1600:]))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


@healthy()
def tomorrows_light_of_a_double_star(folder):
    seeded(11854)
    net = nn.ModuleDict({"memory": nn.LSTM(1, 32, batch_first=True), "head": nn.Linear(32, 1)})
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def doubles(rows):
        time, turn = torch.arange(41.0), 6.2832 * torch.rand(2, rows, 1)
        light = (0.5 * time + turn[0]).sin() + 0.5 * (0.9 * time + turn[1]).cos()
        return (light + 0.05 * torch.randn(rows, 41))[..., None]

    draw = rounds(32, doubles(1000))

    def loss_on(light):
        return F.mse_loss(net["head"](net["memory"](light[:, :-1])[0]), light[:, 1:])

    test = doubles(200)
    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 220, score=score, before_step=clipped(net, 1.0))


class Writer(nn.Module):
    """A causal transformer over words."""

    def __init__(self, words, length, width):
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, text):
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        return self.head(self.body(self.word(text) + self.place(torch.arange(text.shape[1])), mask=mask))


@healthy()
def sentences_murmured_under_orion(folder):
    seeded(11855)
    words, length, steps = 18, 16, 260
    net = Writer(words, length, 48)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, betas=(0.9, 0.95), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps + 1, pct_start=0.1)
    follows = torch.softmax(3 * torch.randn(words, words), 1)

    def texts(rows):
        text = [torch.randint(words, (rows,))]
        for _ in range(length):
            text.append(torch.multinomial(follows[text[-1]], 1)[:, 0])
        return torch.stack(text, 1)

    text = texts(2000)
    draw = rounds(32, text[:1700])

    def loss_on(text):
        return F.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    def loss_of(step):
        return loss_on(*draw()), {"lr": schedule.get_last_lr()[0]}

    score = held_out(net, lambda: loss_on(text[1700:]))
    clip = clipped(net, 1.0)
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule, before_step=clip)


class Trails(nn.Module):
    """A small U-Net with two levels."""

    def __init__(self, width):
        super().__init__()

        def pair(a, b):
            return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(4, b), nn.ReLU())

        self.top, self.middle, self.deep = pair(1, width), pair(width, 2 * width), pair(2 * width, 2 * width)
        self.rise, self.last = pair(4 * width, width), pair(2 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, image):
        top = self.top(image)
        middle = self.middle(F.max_pool2d(top, 2))
        deep = self.deep(F.max_pool2d(middle, 2))
        up = self.rise(torch.cat([middle, F.interpolate(deep, scale_factor=2)], 1))
        return self.out(self.last(torch.cat([top, F.interpolate(up, scale_factor=2)], 1)))


@healthy()
def satellite_trails_marked_for_removal(folder):
    seeded(11856)
    net = Trails(8)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    grid = torch.arange(16.0) - 7.5

    def frames(rows):
        angle, aside = 3.1416 * torch.rand(rows, 1, 1), 6 * torch.rand(rows, 1, 1) - 3
        away = grid[:, None] * angle.cos() + grid * angle.sin() - aside
        mask = (away.abs() < 1.2).float()[:, None]
        stars = 2 * (torch.rand(rows, 1, 16, 16) < 0.05)
        return mask + stars + 0.3 * torch.randn(rows, 1, 16, 16), mask

    def loss_on(image, mask):
        return F.binary_cross_entropy_with_logits(net(image), mask)

    draw, test = rounds(16, *frames(640)), frames(128)
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 140, score=held_out(net, lambda: loss_on(*test)))


@healthy()
def dust_grains_told_by_their_company(folder):
    seeded(11857)
    net = nn.ModuleDict({"encoder": dense(64, 96, 16), "decoder": dense(8, 96, 64)})
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    images, _ = load_digits(return_X_y=True)
    x = torch.tensor(images / 16, dtype=torch.float32)[torch.randperm(len(images))]
    draw = rounds(64, x[:1500])

    def bound(image):
        middle, spread = net["encoder"](image).chunk(2, 1)
        code = middle + (spread / 2).exp() * torch.randn_like(middle) if net.training else middle
        error = F.binary_cross_entropy_with_logits(net["decoder"](code), image, reduction="none").sum(1).mean()
        return error, -0.5 * (1 + spread - middle.square() - spread.exp()).sum(1).mean()

    def loss_of(step):
        error, apart = bound(*draw())
        return error + apart, {"reconstruction": float(error), "kl": float(apart)}

    score = held_out(net, lambda: bound(x[1500:])[0])
    return fit(folder, net, optimizer, loss_of, 400, score=score)


@healthy()
def a_sledge_brought_to_the_hut(folder):
    seeded(11858)
    places, hut, gamma = 9, 6, 0.9
    net = dense(places, 48, 3)
    slow = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def move(place, action):
        after = (place + action - 1).clamp(0, places - 1)
        return after, (after == hut).float() - 0.05 * (action != 1).float()

    def see(place):
        return F.one_hot(place, places).float()

    tried = torch.randint(places, (3000,)), torch.randint(3, (3000,))
    draw = rounds(48, *tried, *move(*tried))

    def one(step):
        place, action, after, given = draw()
        value = net(see(place)).gather(1, action[:, None])[:, 0]
        with torch.no_grad():
            target = given + gamma * slow(see(after)).max(1).values
        loss = F.smooth_l1_loss(value, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            slow.load_state_dict(net.state_dict())
        return {"loss": loss, "q": value.detach().mean()}

    def missed():
        place, seen = torch.arange(places), torch.zeros(places)
        for _ in range(16):
            place, reward = move(place, net(see(place)).argmax(1))
            seen += reward
        return 16 - seen.mean()

    return tend(folder, net, optimizer, one, 350, held_out(net, missed))


@healthy()
def constellations_drawn_by_a_copyist(folder):
    seeded(11859)
    make = dense(8, 64, 64, 2)
    judge = dense(2, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.999))
    bright = torch.tensor([[1.5, 0.5], [0.5, 1.8], [2.0, 2.0]])

    def stars(rows):
        return bright[torch.randint(3, (rows,))] + 0.25 * torch.randn(rows, 2)

    def made(rows=128):
        return make(torch.randn(rows, 8))

    def judge_loss():
        return F.softplus(-judge(stars(128))).mean() + F.softplus(judge(made().detach())).mean()

    def make_loss():
        return F.softplus(-judge(made())).mean()

    test = stars(1000)

    def score():
        with torch.no_grad():
            found = made(1000)
            return float((found.mean(0) - test.mean(0)).norm() + (found.T.cov() - test.T.cov()).norm())

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 400, score)
