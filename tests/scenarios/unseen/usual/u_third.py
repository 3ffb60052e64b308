"""Healthy trainings of mines, caves, glass and smithies: what a course or a team's repository has."""

from __future__ import annotations

import copy

import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine, make_friedman2, make_moons
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, in_turn, rounds


@healthy()
def engravings_on_the_rims_of_goblets(folder):
    seeded(12150)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x = (torch.tensor(images, dtype=torch.float32)[order].view(-1, 1, 8, 8) - 4.9) / 6.0
    y = torch.tensor(digits)[order]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    steps = 160
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    draw = rounds(64, x[:1400], y[:1400])

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        accuracy = (logits.argmax(1) == y).float().mean()
        return F.cross_entropy(logits, y), {"accuracy": float(accuracy), "lr": schedule.get_last_lr()[0]}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


@healthy()
def vintages_kept_in_a_chalk_cave(folder):
    seeded(12151)
    table, kinds = load_wine(return_X_y=True)
    order = torch.randperm(len(kinds))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(kinds)[order]
    x = (x - x[:130].mean(0)) / x[:130].std(0)
    net = dense(13, 24, 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-3)
    draw = rounds(26, x[:130], y[:130])

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[130:]), y[130:]))
    return fit(folder, net, optimizer, loss_of, 100, score=score)


@healthy()
def seams_told_apart_by_their_cores(folder):
    seeded(12152)
    table, kinds = load_breast_cancer(return_X_y=True)
    order = torch.randperm(len(kinds))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(kinds, dtype=torch.float32)[order]
    x = (x - x[:420].mean(0)) / x[:420].std(0)
    net = nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    criterion = nn.BCEWithLogitsLoss()
    draw = rounds(32, x[:420], y[:420])

    def loss_of(step):
        x, y = draw()
        return criterion(net(x).squeeze(1), y)

    score = held_out(net, lambda: criterion(net(x[420:]).squeeze(1), y[420:]))
    return fit(folder, net, optimizer, loss_of, 250, score=score)


class Furnace(nn.Module):
    """The next hour from the last ones."""

    def __init__(self, gauges, width):
        super().__init__()
        self.memory = nn.GRU(gauges, width, 2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(width, 1)

    def forward(self, hours):
        return self.head(self.memory(hours)[0][:, -1])[:, 0]


@healthy()
def coke_burnt_through_the_night(folder):
    seeded(12153)
    hours = torch.arange(2400.0)
    day, week = (0.2618 * hours).sin(), (0.0374 * hours).cos()
    burnt = day + 0.6 * week + 0.4 * day * week + 0.1 * torch.randn(2400)
    windows = torch.stack([burnt, day, week], 1).unfold(0, 25, 1).transpose(1, 2)
    past, coming = windows[:, :24], windows[:, 24, 0]
    net = Furnace(3, 32)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    draw = rounds(32, past[:1900], coming[:1900])

    def loss_of(step):
        past, coming = draw()
        return F.mse_loss(net(past), coming)

    score = held_out(net, lambda: F.mse_loss(net(past[1930:]), coming[1930:]))
    return fit(folder, net, optimizer, loss_of, 180, score=score, before_step=clipped(net, 1.0))


class Chanter(nn.Module):
    """A small decoder-only transformer."""

    def __init__(self, words, longest, width=32):
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(longest, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, text):
        length = text.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        return self.head(self.norm(self.body(self.word(text) + self.place.weight[:length], mask=mask, is_causal=True)))


@healthy(0.2)
def rhymes_kept_by_hammer_and_bellows(folder):
    seeded(12154)
    words, length, steps = 18, 14, 180
    net = Chanter(words, length)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 20) * max(0.1, 1 - n / steps))
    follows = torch.softmax(3 * torch.randn(words, words), 1)

    def rhymes(rows):
        text = [torch.randint(words, (rows,))]
        for _ in range(length):
            text.append(torch.multinomial(follows[text[-1]], 1)[:, 0])
        return torch.stack(text, 1)

    draw, test = rounds(32, rhymes(2500)), rhymes(300)

    def loss_on(text):
        return F.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    score = held_out(net, lambda: loss_on(test))
    options = {"score": score, "schedule": schedule, "before_step": clipped(net, 1.0)}
    return fit(folder, net, optimizer, lambda _: loss_on(*draw()), steps, **options)


@healthy()
def lace_patterns_cut_into_a_vase(folder):
    seeded(12155)
    images, _ = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32)[torch.randperm(len(images))] / 16
    net = nn.Sequential(*dense(64, 48, 12), *dense(12, 48, 64), nn.Sigmoid())
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    draw = rounds(64, x[:1500])

    def loss_of(step):
        (x,) = draw()
        return F.mse_loss(net(x), x)

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.mse_loss(net(x[1500:]), x[1500:])))


class Cavern(nn.Module):
    """A small U-Net."""

    def __init__(self, width):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.GroupNorm(2, width), nn.ReLU())
        self.deep = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.out = nn.Sequential(nn.Conv2d(2 * width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 1, 1))

    def forward(self, image):
        wide = self.down(image)
        return self.out(torch.cat([wide, self.up(self.deep(wide))], 1))


@healthy()
def hollows_found_by_radar_in_limestone(folder):
    seeded(12156)
    net = Cavern(8)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def scans(rows, size=16):
        grid, middle = torch.arange(float(size)), 3 + (size - 6) * torch.rand(rows, 2, 1, 1)
        radius = 2 + 2.5 * torch.rand(rows, 1, 1)
        away = (grid[:, None] - middle[:, 0]).square() + (grid - middle[:, 1]).square()
        hollow = (away < radius.square()).float()[:, None]
        return hollow - 0.5 + 0.8 * torch.randn(rows, 1, size, size), hollow

    test = scans(200)
    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(test[0]), test[1]))

    def loss_of(step):
        scan, hollow = scans(16)
        out = net(scan)
        both = ((out > 0) & (hollow > 0)).sum() / ((out > 0) | (hollow > 0)).sum().clamp(min=1)
        return F.binary_cross_entropy_with_logits(out, hollow), {"iou": float(both)}

    return fit(folder, net, optimizer, loss_of, 150, score=score)


@healthy()
def a_blind_mole_in_search_of_water(folder):
    seeded(12157)
    cells, gamma, moles = 9, 0.9, 24
    net = dense(cells, 48, 2)
    target = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    memory, at = [], torch.randint(cells - 1, (moles,))

    def act(epsilon):
        nonlocal at
        with torch.no_grad():
            way = net(F.one_hot(at, cells).float()).argmax(1)
        way = torch.where(torch.rand(moles) < epsilon, torch.randint(2, (moles,)), way)
        there = (at + 2 * way - 1).clamp(min=0)
        wet = (there == cells - 1).float()
        memory.append((at, way, wet, there))
        del memory[:-150]
        at = torch.where(wet > 0, torch.randint(cells - 1, (moles,)), there)
        return float(wet.mean())

    def loss_of(step):
        reward = act(max(0.1, 1 - step / 200))
        place, way, wet, there = (torch.cat(part) for part in zip(*memory, strict=True))
        pick = torch.randint(len(way), (64,))
        with torch.no_grad():
            after = target(F.one_hot(there[pick], cells).float()).max(1).values
        value = net(F.one_hot(place[pick], cells).float()).gather(1, way[pick, None])[:, 0]
        loss = F.smooth_l1_loss(value, wet[pick] + gamma * (1 - wet[pick]) * after)
        return loss, {"reward": reward}

    def after_step(step):
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), net.parameters(), strict=True):
                slow.lerp_(fast, 0.05)

    def score():
        with torch.no_grad():
            values = net(torch.eye(cells))[:-1].max(1).values
        return float((values - gamma ** torch.arange(cells - 2, -1, -1.0)).abs().mean())

    return fit(folder, net, optimizer, loss_of, 400, score=score, after_step=after_step)


@healthy()
def two_crescents_of_molten_glass(folder):
    seeded(12158)
    points, _ = make_moons(2000, noise=0.05, random_state=3)
    points = torch.tensor(points, dtype=torch.float32)
    points = (points - points.mean(0)) / points.std(0)
    make, judge = dense(4, 64, 64, 2), dense(2, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.99))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.99))
    draw = rounds(128, points)

    def made(rows=128):
        return make(torch.randn(rows, 4))

    def judge_loss():
        return F.softplus(-judge(draw()[0])).mean() + F.softplus(judge(made().detach())).mean()

    def make_loss():
        return F.softplus(-judge(made())).mean()

    def score():
        with torch.no_grad():
            found, real = made(500), points[:500]
            within = torch.cdist(found, found).mean() + torch.cdist(real, real).mean()
            return float(2 * torch.cdist(found, real).mean() - within)

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 350, score)


@healthy()
def current_drawn_by_the_winding_engine(folder):
    seeded(12159)
    table, current = make_friedman2(1500, noise=20.0, random_state=5)
    x, y = torch.tensor(table, dtype=torch.float32), torch.tensor(current, dtype=torch.float32)[:, None]
    x, y = (x - x[:1200].mean(0)) / x[:1200].std(0), (y - y[:1200].mean()) / y[:1200].std()
    net = dense(4, 64, 64, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 120, 0.5)
    draw = rounds(32, x[:1200], y[:1200])

    def loss_of(step):
        x, y = draw()
        return F.huber_loss(net(x), y)

    score = held_out(net, lambda: F.huber_loss(net(x[1200:]), y[1200:]))
    return fit(folder, net, optimizer, loss_of, 300, score=score, schedule=schedule)
