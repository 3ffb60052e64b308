"""Airports, balloons, gliders and towers, healthy: stations, pilots' talk, tail numbers, tags, taxiing, hubs."""

from __future__ import annotations

import copy
import math

import torch
from sklearn.datasets import load_digits, load_wine
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds


def digits():
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float().view(-1, 1, 8, 8) / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    return (x[order] - 0.3) / 0.38, y[order]


class Station(nn.Module):
    """The pressure at a station three hours on."""

    def __init__(self):
        super().__init__()
        self.memory = nn.LSTM(2, 40, batch_first=True)
        self.out = nn.Linear(40, 1)

    def forward(self, x):
        return self.out(self.memory(x)[0][:, -1])


@healthy(0.5)
def pressure_at_a_station_three_hours_on(folder):
    seeded(13460)

    def weeks(rows):
        hour, phase = torch.arange(27.0), 6.2832 * torch.rand(rows, 2)
        tide = 0.5 * (6.2832 * hour / 12 + phase[:, :1]).sin()
        front = (6.2832 * hour / (30 + 20 * torch.rand(rows, 1)) + phase[:, 1:]).sin()
        height = tide + front + 0.05 * torch.randn(rows, 27)
        wind = front.diff(dim=1, prepend=front[:, :1]) * 5 + 0.2 * torch.randn(rows, 27)
        return torch.stack([height, wind], 2)[:, :24], height[:, 26:]

    net = Station()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100, 0.5)
    draw = rounds(64, *weeks(3000))
    tx, ty = weeks(500)
    validate = now_and_then(net, 46, lambda: {"val_loss": F.mse_loss(net(tx), ty)})

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 280, score=score, schedule=schedule, before_step=clipped(net, 1.0))


class Talk(nn.Module):
    """A small causal transformer whose output shares the table of its words."""

    def __init__(self, words, width, length):
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))
        nn.init.normal_(self.word.weight, std=0.1)
        nn.init.normal_(self.place.weight, std=0.1)

    def forward(self, x):
        h = self.word(x) + self.place(torch.arange(x.shape[1]))
        return self.norm(self.body(h, mask=self.mask, is_causal=True)) @ self.word.weight.T


@healthy()
def talk_between_a_pilot_and_the_tower(folder):
    seeded(13461)
    phrases = torch.randint(24, (12, 5))

    def talks(rows):
        return phrases[torch.randint(12, (rows, 4))].flatten(1)

    net = Talk(24, 32, 19)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, betas=(0.9, 0.95), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min(1, (s + 1) / 20) * (0.55 + 0.45 * math.cos(math.pi * s / 220))
    )

    def loss_on(text):
        return F.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    def loss_of(step):
        loss = loss_on(talks(32))
        return loss, {"perplexity": float(loss.detach().exp())}

    test = talks(128)
    return fit(folder, net, optimizer, loss_of, 220, score=held_out(net, lambda: loss_on(test)), schedule=schedule,
               before_step=clipped(net, 1.0))  # fmt: skip


@healthy(0.5)
def tail_numbers_cleaned_of_rain(folder):
    seeded(13462)
    x, _ = digits()
    draw = rounds(64, x[:1500])
    net = nn.Sequential(
        nn.Conv2d(1, 24, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(24, 48, 3, stride=2, padding=1), nn.ReLU(),
        nn.ConvTranspose2d(48, 24, 4, stride=2, padding=1), nn.ReLU(),
        nn.ConvTranspose2d(24, 1, 4, stride=2, padding=1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    clean = x[1500:]
    wet = clean + 0.6 * torch.randn_like(clean)
    validate = now_and_then(net, 46, lambda: {"val_loss": F.mse_loss(net(wet), clean)})

    def loss_of(step):
        (image,) = draw()
        return F.mse_loss(net(image + 0.6 * torch.randn_like(image)), image), validate(step)

    return fit(folder, net, optimizer, loss_of, 460, score=held_out(net, lambda: F.mse_loss(net(wet), clean)))


@healthy(0.5)
def thermals_by_the_hill_they_rise_from(folder):
    seeded(13463)
    bunch = load_wine()
    x, y = torch.tensor(bunch.data).float(), torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    x = (x - x[:120].mean(0)) / x[:120].std(0)
    draw = rounds(24, x[:120], y[:120])
    net = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9, weight_decay=1e-3)
    validate = now_and_then(net, 20, judged(net, x[120:], y[120:]))

    def loss_of(step):
        rows, hill = draw()
        said = net(rows)
        right = (said.argmax(1) == hill).float().mean()
        return F.cross_entropy(said, hill), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(x[120:]), y[120:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


class Tags(nn.Module):
    """A small convolutional body and a head."""

    def __init__(self, kinds):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(288, kinds)

    def forward(self, x):
        return self.head(self.body(x))


@healthy()
def luggage_tags_of_a_new_airline(folder):
    seeded(13464)
    old, new = (F.interpolate(torch.randn(n, 1, 4, 4), size=(12, 12), mode="bilinear") for n in (8, 12))

    def tags(marks, rows):
        y = torch.randint(len(marks), (rows,))
        return marks[y] * (0.7 + 0.6 * torch.rand(rows, 1, 1, 1)) + 0.8 * torch.randn(rows, 1, 12, 12), y

    net = Tags(8)
    before = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(100):
        x, y = tags(old, 48)
        before.zero_grad()
        F.cross_entropy(net(x), y).backward()
        before.step()
    net.zero_grad()
    net.head = nn.Linear(288, 12)
    optimizer = torch.optim.AdamW(
        [{"params": net.body.parameters(), "lr": 2e-4}, {"params": net.head.parameters(), "lr": 2e-3}],
        weight_decay=0.01,
    )
    draw = rounds(32, *tags(new, 1500))
    tx, ty = tags(new, 500)
    validate = now_and_then(net, 46, judged(net, tx, ty))

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": float((said.argmax(1) == y).float().mean()), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 184, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@healthy()
def minutes_of_taxiing_at_three_levels(folder):
    seeded(13465)
    levels = torch.tensor([0.1, 0.5, 0.9])

    def taxis(rows):
        x = torch.randn(rows, 6)
        usual = x[:, 0] + 0.8 * (x[:, 1] * x[:, 2]) + 0.5 * (2 * x[:, 3]).sin()
        queue = F.softplus(x[:, 4]) * torch.rand(rows).neg().add(1).log().neg()
        return x, ((usual + 0.5 * queue - 0.4) / 1.5)[:, None]

    net = dense(6, 96, 96, 3, act=nn.SiLU)
    optimizer = torch.optim.RAdam(net.parameters(), 2e-3)
    draw = rounds(64, *taxis(6000))
    tx, ty = taxis(800)

    def pinball(x, y):
        gap = y - net(x)
        return torch.maximum(levels * gap, (levels - 1) * gap).mean()

    validate = now_and_then(net, 45, lambda: {"val_loss": pinball(tx, ty)})

    def loss_of(step):
        return pinball(*draw()), validate(step)

    return fit(folder, net, optimizer, loss_of, 450, score=held_out(net, lambda: pinball(tx, ty)))


class Hubs(nn.Module):
    """Graph attention, two rounds of it, each with a way past it."""

    def __init__(self, flown, ins, width, kinds):
        super().__init__()
        self.register_buffer("flown", flown)
        self.rise = nn.Linear(ins, width)
        self.send = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.ask = nn.ModuleList(nn.Linear(width, 2) for _ in range(2))
        self.head = nn.Linear(width, kinds)

    def forward(self, x):
        h = F.elu(self.rise(x))
        for send, ask in zip(self.send, self.ask, strict=False):
            to, of = ask(h).unbind(1)
            heed = F.leaky_relu(to[:, None] + of, 0.2).masked_fill(self.flown == 0, -torch.inf).softmax(1)
            h = h + F.elu(heed @ send(h))
        return self.head(h)


@healthy(0.4)
def hubs_by_the_alliance_they_belong_to(folder):
    seeded(13466)
    side = torch.randint(4, (300,))
    flown = (torch.rand(300, 300) < torch.where(side[:, None] == side, 0.12, 0.02)).float().triu(1)
    flown = flown + flown.T + torch.eye(300)
    x = 0.8 * torch.randn(4, 12)[side] + torch.randn(300, 12)
    known, rest = torch.arange(150), torch.arange(150, 300)
    net = Hubs(flown, 12, 32, 4)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3, weight_decay=5e-4)

    def measure():
        said = net(x)[rest]
        right = (said.argmax(1) == side[rest]).float().mean()
        return {"val_loss": F.cross_entropy(said, side[rest]), "val_accuracy": right}

    validate = now_and_then(net, 15, measure)

    def loss_of(step):
        said = net(F.dropout(x, 0.2))[known]
        right = (said.argmax(1) == side[known]).float().mean()
        return F.cross_entropy(said, side[known]), {"accuracy": float(right), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 150, score=held_out(net, lambda: measure()["val_loss"]))


class Sine(nn.Module):
    """A layer of sines, begun as those who thought of it say."""

    def __init__(self, ins, outs, first=False):
        super().__init__()
        self.turn, self.pace = nn.Linear(ins, outs), 15.0 if first else 1.0
        bound = 1 / ins if first else math.sqrt(6 / ins)
        nn.init.uniform_(self.turn.weight, -bound, bound)

    def forward(self, x):
        return (self.pace * self.turn(x)).sin()


@healthy(0.5)
def relief_around_a_gliding_field(folder):
    seeded(13467)
    hills, high, wide = torch.rand(25, 2) * 2 - 1, torch.randn(25), 0.1 + 0.2 * torch.rand(25)

    def heights(rows):
        at = torch.rand(rows, 2) * 2 - 1
        near = torch.exp(-((at[:, None] - hills).square().sum(2)) / (2 * wide**2))
        return at, (near @ high)[:, None] / 0.6

    net = nn.Sequential(Sine(2, 96, first=True), Sine(96, 96), nn.Linear(96, 1))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)
    tx, ty = heights(1000)
    validate = now_and_then(net, 50, lambda: {"val_loss": F.mse_loss(net(tx), ty)})

    def loss_of(step):
        x, y = heights(128)
        return F.mse_loss(net(x), y), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 500, score=score, schedule=schedule)


@healthy()
def landings_of_a_balloon_as_a_mixture(folder):
    seeded(13468)

    def flights(rows):
        wind = torch.rand(rows, 2) * 2 - 1
        layer = torch.randint(2, (rows, 1)) * 2.0 - 1
        turn = torch.stack([-wind[:, 1], wind[:, 0]], 1)
        return wind / 0.58, 1.2 * wind + layer * (0.6 * turn + 0.3) + 0.1 * torch.randn(rows, 2)

    net = dense(2, 64, 64, 4 * 5, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(96, *flights(5000))
    tx, ty = flights(800)

    def surprise(x, y):
        out = net(x).view(-1, 4, 5)
        spread = out[..., 3:].clamp(-4, 3)
        parts = torch.distributions.Normal(out[..., 1:3], spread.exp()).log_prob(y[:, None]).sum(2)
        return -(out[..., 0].log_softmax(1) + parts).logsumexp(1).mean() + 2

    validate = now_and_then(net, 52, lambda: {"val_loss": surprise(tx, ty)})

    def loss_of(step):
        return surprise(*draw()), validate(step)

    score = held_out(net, lambda: surprise(tx, ty))
    return fit(folder, net, optimizer, loss_of, 500, score=score, before_step=clipped(net, 5.0))


@healthy()
def signs_of_marshallers_taught_by_a_moving_average(folder):
    seeded(13469)
    signs = torch.randn(8, 6, 16)

    def waves(rows):
        y = torch.randint(8, (rows,))
        return signs[y] * (0.6 + 0.8 * torch.rand(rows, 1, 1)) + 1.6 * torch.randn(rows, 6, 16), y

    net = nn.Sequential(
        nn.Conv1d(6, 32, 3, padding=1), nn.ReLU(), nn.Conv1d(32, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Dropout(0.2), nn.Linear(256, 8),
    )  # fmt: skip
    teacher = copy.deepcopy(net).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.02)
    draw, more = rounds(32, *waves(800)), rounds(64, *waves(4000))
    tx, ty = waves(600)
    validate = now_and_then(net, 30, judged(net, tx, ty))

    def loss_of(step):
        (x, y), (unknown, _) = draw(), more()
        plain = F.cross_entropy(net(x), y)
        wish = teacher(unknown).softmax(1)
        alike = F.mse_loss(net(unknown + 0.3 * torch.randn_like(unknown)).softmax(1), wish)
        loss = plain + 5 * min(1, step / 100) * alike
        return loss, {"supervised": float(plain.detach()), "consistency": float(alike.detach()), **validate(step)}

    def follow(step):
        with torch.no_grad():
            for old, now in zip(teacher.parameters(), net.parameters(), strict=False):
                old.lerp_(now, 1 / min(step + 2, 50))

    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 300, score=score, after_step=follow)
