"""Things sorted into classes, as it is done at work: tables, pictures, words, signals, tags."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, rounds


class Subscribers(nn.Module):
    def __init__(self, sizes=(6, 12, 4), numbers=8):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, 4) for size in sizes)
        self.norm = nn.BatchNorm1d(numbers)
        self.body = nn.Sequential(
            nn.Linear(4 * len(sizes) + numbers, 48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 24), nn.ReLU()
        )
        self.out = nn.Linear(24, 1)

    def forward(self, kinds, numbers):
        parts = [table(kinds[:, i]) for i, table in enumerate(self.tables)]
        return self.out(self.body(torch.cat([*parts, self.norm(numbers)], 1)))[:, 0]


@healthy(gain=0.2)
def phone_subscribers_about_to_leave(folder):
    seeded(3607)
    rows = 5000
    kinds = torch.stack([torch.randint(size, (rows,)) for size in (6, 12, 4)], 1)
    numbers = torch.randn(rows, 8) * torch.tensor([1, 3, 10, 0.5, 2, 1, 5, 20.0]) + 4
    z = (numbers - numbers.mean(0)) / numbers.std(0)
    plan, region = torch.randn(6), 0.7 * torch.randn(12)
    logit = 1.5 * plan[kinds[:, 0]] + region[kinds[:, 1]] + 1.5 * z[:, 0] - 1.2 * z[:, 1] * z[:, 2] + z[:, 3] - 2
    left = torch.bernoulli(logit.sigmoid())
    draw = rounds(128, kinds[:4000], numbers[:4000], left[:4000])
    net = Subscribers()
    weight = (left[:4000] == 0).sum() / left[:4000].sum()
    loss_fn = nn.BCEWithLogitsLoss(pos_weight=weight)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def loss_of(step):
        k, n, y = draw()
        out = net(k, n)
        return loss_fn(out, y), {"accuracy": ((out > 0) == (y > 0)).float().mean()}

    score = held_out(net, lambda: loss_fn(net(kinds[4000:], numbers[4000:]), left[4000:]))
    return fit(folder, net, optimizer, loss_of, 620, score=score)


def icons(rows, size=16):
    y = torch.randint(6, (rows,))
    at = torch.arange(size).float()
    row, column = at[None, :, None], at[None, None, :]
    cy, cx = (5 + 6 * torch.rand(2, rows, 1, 1)).unbind(0)
    r = 2.5 + 2 * torch.rand(rows, 1, 1)
    dy, dx = (row - cy), (column - cx)
    far = (dy.square() + dx.square()).sqrt()
    shapes = torch.stack(
        [
            far < r,
            (far - r).abs() < 1,
            (dy.abs() < r) & (dx.abs() < r),
            (dy.abs() < 1) & (dx.abs() < r + 1) | (dx.abs() < 1) & (dy.abs() < r + 1),
            (dy - dx).abs().lt(1.5) & (dy.abs() < r),
            (dy.abs() + dx.abs()) < r,
        ],
        1,
    ).float()
    ink = 0.5 + torch.rand(rows, 3, 1, 1)
    x = shapes[torch.arange(rows), y][:, None] * ink + 0.25 * torch.randn(rows, 3, size, size)
    return x, y


@healthy()
def icons_of_a_toolbar(folder):
    seeded(3608)
    x, y = icons(3000)
    mean, std = x.mean((0, 2, 3), keepdim=True), x.std((0, 2, 3), keepdim=True)
    x = (x - mean) / std
    draw = rounds(64, x[:2400], y[:2400])

    def block(a, b):
        return [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2)]

    net = nn.Sequential(*block(3, 12), *block(12, 24), *block(24, 32), nn.Flatten(), nn.Linear(128, 6))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    steps = 300
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)

    def loss_of(step):
        a, b = draw()
        shift = torch.randint(-1, 2, (2,)).tolist()
        a = a.roll(shift, (2, 3))
        out = net(a)
        return F.cross_entropy(out, b), {"accuracy": (out.argmax(1) == b).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(x[2400:]), y[2400:]))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


@healthy()
def stars_given_to_restaurants(folder):
    seeded(3609)
    words, rows, length = 800, 4000, 30
    mood = torch.randn(words) * (torch.rand(words) < 0.3)
    often = 1 / torch.arange(1.0, words + 1) ** 0.6
    text = torch.multinomial(often.expand(rows, -1), length, replacement=True)
    feeling = mood[text].mean(1) * 8 + 0.3 * torch.randn(rows)
    edges = feeling.quantile(torch.tensor([0.33, 0.66]))
    stars = torch.bucketize(feeling, edges)
    draw = rounds(50, text[:3200], stars[:3200])
    net = nn.Sequential(nn.EmbeddingBag(words, 32, mode="mean"), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)

    def loss_of(step):
        t, s = draw()
        return F.cross_entropy(net(t), s)

    score = held_out(net, lambda: F.cross_entropy(net(text[3200:]), stars[3200:]))
    return fit(folder, net, optimizer, loss_of, 384, score=score)


@healthy()
def gestures_felt_by_a_wristband(folder):
    seeded(3610)
    rows, length = 2400, 48
    y = torch.randint(5, (rows,))
    time = torch.arange(length) / length
    pace = torch.tensor([1.0, 2, 3, 2, 5])[y][:, None] * (0.9 + 0.2 * torch.rand(rows, 1))
    phase = 6.28 * torch.rand(rows, 1)
    swing = (6.28 * pace * time + phase).sin()
    lift = torch.where((y == 3)[:, None], swing.abs(), swing)
    twist = (6.28 * pace * time + phase + 1.57 * (y % 2)[:, None]).sin()
    x = torch.stack([swing, lift, twist], 1) + 0.5 * torch.randn(rows, 3, length)
    draw = rounds(32, x[:2000], y[:2000])
    net = nn.Sequential(
        nn.Conv1d(3, 16, 5, padding=2),
        nn.GroupNorm(4, 16),
        nn.GELU(),
        nn.Conv1d(16, 32, 5, stride=2, padding=2),
        nn.GroupNorm(4, 32),
        nn.GELU(),
        nn.Conv1d(32, 32, 3, stride=2, padding=1),
        nn.GELU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(32, 5),
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)

    def loss_of(step):
        a, b = draw()
        return F.cross_entropy(net(a), b)

    score = held_out(net, lambda: F.cross_entropy(net(x[2000:]), y[2000:]))
    return fit(folder, net, optimizer, loss_of, 500, score=score, schedule=schedule)


@healthy()
def tags_of_forum_questions(folder):
    seeded(3611)
    words, tags, rows = 200, 15, 4000
    topics = torch.rand(tags, words).pow(6)
    given = (torch.rand(rows, tags) < 0.15).float()
    counts = torch.poisson((given @ topics) * 2 + 0.1)
    x = counts.log1p()
    draw = rounds(64, x[:3400], given[:3400])
    net = dense(words, 96, 64, tags, norm=nn.LayerNorm)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-2)

    def loss_of(step):
        a, b = draw()
        out = net(a)
        hit = ((out > 0) & (b > 0)).sum()
        f1 = 2 * hit / ((out > 0).sum() + b.sum()).clamp(min=1)
        return F.binary_cross_entropy_with_logits(out, b), {"f1": f1}

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(x[3400:]), given[3400:]))
    return fit(folder, net, optimizer, loss_of, 530, score=score)
