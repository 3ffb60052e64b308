"""Airports, balloons, gliders and towers, healthy: hangars, fuel, reports, skies, engines, polars, aprons, launches."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds, tend


def digits():
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float().view(-1, 1, 8, 8) / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    return (x[order] - 0.3) / 0.38, y[order]


@healthy(0.6)
def numbers_over_the_hangar_doors(folder):
    seeded(13450)
    x, y = digits()
    draw = rounds(64, x[:1400], y[:1400])
    net = nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(24, 48, 3, padding=1, bias=False), nn.BatchNorm2d(48), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Dropout(0.1), nn.Linear(192, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 210)
    validate = now_and_then(net, 21, judged(net, x[1400:], y[1400:]))

    def loss_of(step):
        image, number = draw()
        said = net(image)
        right = (said.argmax(1) == number).float().mean()
        return F.cross_entropy(said, number), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 210, score=score, schedule=schedule)


@healthy(0.6)
def fuel_that_a_flight_will_burn(folder):
    seeded(13451)

    def flights(rows):
        far, load, wind = 300 + 4_700 * torch.rand(rows), 4 + 14 * torch.rand(rows), 25 * torch.randn(rows)
        high, old = 8_000 + 4_000 * torch.rand(rows), 25 * torch.rand(rows)
        hours = far / (820 + 3.6 * wind)
        burnt = hours * (1.9 + 0.06 * load + 0.01 * old + 0.15 * ((high - 10_500) / 1000).square()) + 0.5
        return torch.stack([far, load, wind, high, old], 1), (burnt + 0.1 * torch.randn(rows))[:, None]

    (x, y), (tx, ty) = flights(3000), flights(600)
    centre, spread, middle, wide = x.mean(0), x.std(0), y.mean(), y.std()
    x, tx, y, ty = (x - centre) / spread, (tx - centre) / spread, (y - middle) / wide, (ty - middle) / wide
    draw = rounds(64, x, y)
    net = dense(5, 96, 96, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    validate = now_and_then(net, 46, lambda: {"val_loss": F.mse_loss(net(tx), ty)})

    def loss_of(step):
        rows, fuel = draw()
        return F.mse_loss(net(rows), fuel), validate(step)

    return fit(folder, net, optimizer, loss_of, 460, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


class Report(nn.Module):
    """What weather a report of unlike length tells of."""

    def __init__(self, words, width, kinds):
        super().__init__()
        self.word = nn.Embedding(words + 1, width, padding_idx=0)
        self.memory = nn.LSTM(width, 32, batch_first=True, bidirectional=True)
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(64, kinds)

    def forward(self, words, length):
        packed = nn.utils.rnn.pack_padded_sequence(self.word(words), length, batch_first=True, enforce_sorted=False)
        last = self.memory(packed)[1][0]
        return self.head(self.drop(torch.cat([last[0], last[1]], 1)))


@healthy()
def weather_reports_read_by_a_clerk(folder):
    seeded(13452)
    habit = 1.4 * torch.randn(5, 50)

    def reports(rows):
        y, length = torch.randint(5, (rows,)), torch.randint(8, 19, (rows,))
        words = torch.multinomial(habit[y].softmax(1), 18, replacement=True) + 1
        return words * (torch.arange(18) < length[:, None]), length, y

    net = Report(50, 24, 5)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(48, *reports(3000))
    words, length, kind = reports(400)

    def measure():
        said = net(words, length)
        return {"val_loss": F.cross_entropy(said, kind), "val_accuracy": (said.argmax(1) == kind).float().mean()}

    validate = now_and_then(net, 40, measure)

    def loss_of(step):
        x, size, y = draw()
        said = net(x, size)
        return F.cross_entropy(said, y), {"accuracy": float((said.argmax(1) == y).float().mean()), **validate(step)}

    score = held_out(net, lambda: measure()["val_loss"])
    return fit(folder, net, optimizer, loss_of, 240, score=score, before_step=clipped(net, 1.0))


class Sky(nn.Module):
    """A small U-Net with two halvings."""

    def __init__(self, width):
        super().__init__()

        def block(ins, outs):
            return nn.Sequential(nn.Conv2d(ins, outs, 3, padding=1, bias=False), nn.BatchNorm2d(outs), nn.ReLU())

        self.top, self.mid, self.low = block(1, width), block(width, 2 * width), block(2 * width, 2 * width)
        self.up_mid, self.up_top = block(4 * width, width), block(2 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        top = self.top(x)
        mid = self.mid(F.max_pool2d(top, 2))
        low = F.interpolate(self.low(F.max_pool2d(mid, 2)), scale_factor=2)
        mid = F.interpolate(self.up_mid(torch.cat([mid, low], 1)), scale_factor=2)
        return self.out(self.up_top(torch.cat([top, mid], 1)))


@healthy()
def clouds_cut_out_of_a_picture_of_the_sky(folder):
    seeded(13453)

    def skies(rows):
        field = F.interpolate(torch.randn(rows, 1, 6, 6), size=(20, 20), mode="bicubic")
        cloud = (field > 0.2).float()
        return cloud - 0.4 + 0.7 * torch.randn(rows, 1, 20, 20), cloud

    net = Sky(8)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    draw = rounds(16, *skies(800))
    sky, cloud = skies(120)

    def loss_on(said, cloud):
        share = said.sigmoid()
        dice = 1 - (2 * (share * cloud).sum((1, 2, 3)) + 1) / (share.sum((1, 2, 3)) + cloud.sum((1, 2, 3)) + 1)
        return F.binary_cross_entropy_with_logits(said, cloud) + dice.mean()

    def loss_of(step):
        x, y = draw()
        said = net(x)
        found = (said > 0).float()
        return loss_on(said, y), {"iou": float((found * y).sum() / torch.maximum(found, y).sum())}

    return fit(folder, net, optimizer, loss_of, 180, score=held_out(net, lambda: loss_on(net(sky), cloud)))


@healthy(0.5)
def sound_engines_and_worn_ones(folder):
    seeded(13454)
    bunch = load_breast_cancer()
    x, y = torch.tensor(bunch.data).float(), torch.tensor(bunch.target).float()
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    x = (x - x[:420].mean(0)) / x[:420].std(0)
    draw = rounds(32, x[:420], y[:420])
    net = nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, weight_decay=1e-4)

    def measure():
        said = net(x[420:])[:, 0]
        right = ((said > 0) == (y[420:] > 0.5)).float().mean()
        return {"val_loss": F.binary_cross_entropy_with_logits(said, y[420:]), "val_accuracy": right}

    validate = now_and_then(net, 26, measure)

    def loss_of(step):
        rows, sound = draw()
        return F.binary_cross_entropy_with_logits(net(rows)[:, 0], sound), validate(step)

    return fit(folder, net, optimizer, loss_of, 260, score=held_out(net, lambda: measure()["val_loss"]))


@healthy(0.4)
def polar_of_a_glider_and_how_sure_it_is(folder):
    seeded(13455)

    def glides(rows):
        x = torch.rand(rows, 3) * 2 - 1
        sink = 0.8 * x[:, 0].square() + 0.5 * x[:, 1] * x[:, 0] - 0.3 * (3 * x[:, 2]).sin()
        unsure = 0.05 + 0.3 * torch.sigmoid(4 * x[:, 1])
        return x / 0.577, ((sink + unsure * torch.randn(rows)) / 0.5)[:, None]

    net = dense(3, 64, 64, 2, act=nn.SiLU)
    optimizer = torch.optim.NAdam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400, eta_min=1e-4)
    draw = rounds(64, *glides(4000))
    tx, ty = glides(800)

    def likely(x, y):
        mean, spread = net(x).chunk(2, 1)
        return F.gaussian_nll_loss(mean, y, F.softplus(spread) + 1e-3) + 1

    validate = now_and_then(net, 40, lambda: {"val_loss": likely(tx, ty)})

    def loss_of(step):
        return likely(*draw()), validate(step)

    score = held_out(net, lambda: likely(tx, ty))
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule, before_step=clipped(net, 5.0))


class Glance(nn.Module):
    """An embedding of a tile of an airfield, and what the loss is asked on."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        self.project = dense(288, 64, 24)

    def forward(self, x):
        return F.normalize(self.project(self.body(x)), dim=1)


@healthy()
def tiles_of_an_airfield_seen_twice(folder):
    seeded(13456)
    parts = torch.randn(8, 12, 12)

    def pair(rows):
        tile = (torch.randn(rows, 8) @ parts.flatten(1) / 2.8).view(rows, 1, 12, 12)
        views = []
        for _ in range(2):
            light = 0.6 + 0.8 * torch.rand(rows, 1, 1, 1)
            views.append(tile * light + 0.7 * torch.randn(rows, 1, 12, 12))
        return views

    net = Glance()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=1e-4)

    def loss_on(a, b):
        like = net(a) @ net(b).T / 0.2
        same = torch.arange(len(a))
        return (F.cross_entropy(like, same) + F.cross_entropy(like.T, same)) / 2

    def loss_of(step):
        return loss_on(*pair(64))

    tests = [pair(64) for _ in range(4)]
    score = held_out(net, lambda: sum(loss_on(*test) for test in tests) / 4)
    return fit(folder, net, optimizer, loss_of, 250, score=score)


class Flow(nn.Module):
    """The speed with which noise moves towards the place of a balloon."""

    def __init__(self):
        super().__init__()
        self.body = dense(2 + 8, 96, 96, 2, act=nn.GELU)
        self.register_buffer("pace", math.pi * 2.0 ** torch.arange(4))

    def forward(self, x, t):
        angle = t * self.pace
        return self.body(torch.cat([x, angle.sin(), angle.cos()], 1))


@healthy()
def places_of_balloons_grown_out_of_noise(folder):
    seeded(13457)

    def places(rows):
        angle = 6.2832 * torch.randint(5, (rows, 1)) / 5
        return 2 * torch.cat([angle.cos(), angle.sin()], 1) + 0.15 * torch.randn(rows, 2)

    net = Flow()
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)

    def loss_of(step):
        x, noise, t = places(256), torch.randn(256, 2), torch.rand(256, 1)
        return F.mse_loss(net((1 - t) * noise + t * x, t), x - noise)

    noise, there = torch.randn(400, 2), places(400)

    def apart():
        x = noise
        for i in range(20):
            x = x + net(x, torch.full((400, 1), (i + 0.5) / 20)) / 20
        return 2 * torch.cdist(x, there).mean() - torch.cdist(x, x).mean() - torch.cdist(there, there).mean()

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, apart), schedule=schedule)


class Approach(nn.Module):
    """Which aeroplane of those in sight has to land first: attention among a set, no places."""

    def __init__(self, ins, width):
        super().__init__()
        self.rise = nn.Linear(ins, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))

    def forward(self, x):
        return self.out(self.body(self.rise(x)))[..., 0]


@healthy()
def who_of_eight_is_to_land_first(folder):
    seeded(13458)

    def sights(rows):
        far, fast, fuel = torch.rand(3, rows, 8)
        urgent = (fuel < 0.15).float() * 2 + (0.3 + fast) / (0.2 + far) - 0.5 * fuel
        crowd = (far.sort(1).values[:, 1:] - far.sort(1).values[:, :-1]).mean(1, keepdim=True)
        chosen = (urgent + 4 * crowd * fast).argmax(1)
        return (torch.stack([far, fast, fuel], 2) - 0.5) / 0.29, chosen

    net = Approach(3, 32)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=301)
    draw = rounds(48, *sights(4000))
    tx, ty = sights(500)
    validate = now_and_then(net, 50, judged(net, tx, ty))

    def loss_of(step):
        x, first = draw()
        said = net(x)
        right = (said.argmax(1) == first).float().mean()
        return F.cross_entropy(said, first), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 300, score=score, schedule=schedule)


@healthy()
def a_winch_that_learns_how_hard_to_pull(folder):
    seeded(13459)
    net = nn.ModuleDict({"actor": dense(4, 64, 2, act=nn.Tanh), "critic": dense(4, 64, 1, act=nn.Tanh)})
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    states = torch.randn(512, 4)

    def best(state):
        return torch.stack([0.8 * state[:, 0] - 0.4 * state[:, 1], (state[:, 2] + state[:, 3]).tanh()], 1)

    def reward_of(state, pull):
        return -(pull - best(state)).square().sum(1)

    def one(step):
        state = torch.randn(128, 4)
        choice = torch.distributions.Normal(net["actor"](state), 0.4)
        pull = choice.sample()
        reward = reward_of(state, pull)
        value = net["critic"](state)[:, 0]
        gain = (reward - value).detach()
        gain = (gain - gain.mean()) / (gain.std() + 1e-6)
        policy = -(choice.log_prob(pull).sum(1) * gain).mean()
        loss = policy + 0.5 * F.smooth_l1_loss(value, reward)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return {"loss": loss, "return": float(reward.mean())}

    def score():
        with torch.no_grad():
            return -float(reward_of(states, net["actor"](states)).mean())

    return tend(folder, net, optimizer, one, 500, score)
