"""Sounds, numerals, pictures and a table: ordinary trainings that go well."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


class Wide(nn.Module):
    """A block of ConvNeXt over time: depthwise, normed over channels, four times as wide, and back."""

    def __init__(self, width):
        super().__init__()
        self.deep = nn.Conv1d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        inner = self.norm(self.deep(x).transpose(1, 2))
        return x + self.down(F.gelu(self.up(inner))).transpose(1, 2)


@healthy()
def coins_by_their_ring(folder):
    seeded(9801)
    pitch = 0.25 + 0.9 * torch.rand(6, 3)
    fade = 0.01 + 0.04 * torch.rand(6, 3)
    time = torch.arange(128.0)

    def record(rows):
        y = torch.randint(6, (rows,))
        tuned = pitch[y] * (1 + 0.02 * torch.randn(rows, 1))
        phase = 6.2832 * torch.rand(rows, 3, 1)
        tones = (tuned[..., None] * time + phase).sin() * (-fade[y][..., None] * time).exp()
        return tones.sum(1, keepdim=True) + 0.2 * torch.randn(rows, 1, 128), y

    draw, (x_new, y_new) = rounds(48, *record(1600)), record(400)
    net = nn.Sequential(
        nn.Conv1d(1, 24, 8, stride=4), *(Wide(24) for _ in range(3)), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
        nn.LayerNorm(24), nn.Linear(24, 6),
    )  # fmt: skip

    def loss_of(step):
        x, y = draw()
        out = net(x)
        return F.cross_entropy(out, y), {"accuracy": float((out.argmax(1) == y).float().mean())}

    opt = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=261, pct_start=0.1, cycle_momentum=False)
    score = held_out(net, lambda: F.cross_entropy(net(x_new), y_new))
    return fit(folder, net, opt, loss_of, 260, schedule=schedule, score=score)


def roman(number):
    signs = [(1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL"),
             (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]  # fmt: skip
    text = ""
    for worth, sign in signs:
        text += sign * (number // worth)
        number %= worth
    return text


class Scribe(nn.Module):
    """A GRU that reads, a GRU that writes, and a look back at what was read."""

    def __init__(self, width=64):
        super().__init__()
        self.digits, self.signs = nn.Embedding(10, 24), nn.Embedding(9, 24)
        self.reader = nn.GRU(24, width // 2, batch_first=True, bidirectional=True)
        self.writer = nn.GRU(24, width, batch_first=True)
        self.head = nn.Linear(2 * width, 9)

    def forward(self, read, written):
        notes, last = self.reader(self.digits(read))
        out, _ = self.writer(self.signs(written), torch.cat([last[0], last[1]], 1)[None])
        seen = (out @ notes.transpose(1, 2) / out.shape[-1] ** 0.5).softmax(2) @ notes
        return self.head(torch.cat([out, seen], 2))


@healthy()
def arabic_numbers_in_roman_signs(folder):
    seeded(9802)
    letters = {sign: i + 2 for i, sign in enumerate("IVXLCDM")}
    numbers = torch.randperm(3999) + 1
    read = torch.stack([numbers // 10**k % 10 for k in (3, 2, 1, 0)], 1)
    written = torch.full((3999, 17), -100)
    for row, number in enumerate(numbers.tolist()):
        codes = [0, *(letters[sign] for sign in roman(number)), 1]
        written[row, : len(codes)] = torch.tensor(codes)
    draw, net = rounds(64, read[:3500], written[:3500]), Scribe()

    def loss(read, written):
        out = net(read, written[:, :-1].clamp_min(0))
        return F.cross_entropy(out.flatten(0, 1), written[:, 1:].flatten())

    opt = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.994)
    score = held_out(net, lambda: loss(read[3500:], written[3500:]))
    return fit(folder, net, opt, lambda step: loss(*draw()), 400, schedule=schedule, score=score,
               before_step=clipped(net, 1.0))  # fmt: skip


class Meter(nn.Module):
    def __init__(self):
        super().__init__()
        self.look = nn.Sequential(
            nn.Conv2d(1, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d((2, 1)),
            nn.Conv2d(24, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d((2, 2)),
        )  # fmt: skip
        self.along = nn.GRU(64, 48, batch_first=True, bidirectional=True)
        self.head = nn.Linear(96, 11)

    def forward(self, x):
        seen = self.look(x).flatten(1, 2).transpose(1, 2)
        return self.head(self.along(seen)[0]).log_softmax(2).transpose(0, 1)


@healthy(gain=0.5)
def figures_on_an_odometer(folder):
    seeded(9803)
    images, names = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    images, net = images.reshape(-1, 8, 8).float() / 16, Meter()

    def strip(rows, low, high):
        at = torch.randint(low, high, (rows, 4))
        return images[at].transpose(1, 2).reshape(rows, 1, 8, 32), names[at] + 1

    def loss(x, y):
        out = net(x)
        rows = len(x)
        return F.ctc_loss(out, y, torch.full((rows,), out.shape[0]), torch.full((rows,), 4))

    kept = strip(200, 1400, 1797)
    opt = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=301, pct_start=0.15, cycle_momentum=False)
    return fit(folder, net, opt, lambda step: loss(*strip(32, 0, 1400)), 300, schedule=schedule,
               score=held_out(net, lambda: loss(*kept)), before_step=clipped(net, 5.0))  # fmt: skip


@healthy(gain=0.7)
def hours_on_a_sundial(folder):
    seeded(9804)
    line = torch.linspace(-1, 1, 20)
    rows_at, columns_at = torch.meshgrid(line, line, indexing="ij")

    def photograph(rows):
        hour = 6.2832 * torch.rand(rows, 1, 1)
        reach = 0.5 + 0.4 * torch.rand(rows, 1, 1)
        along = columns_at * hour.cos() + rows_at * hour.sin()
        across = columns_at * hour.sin() - rows_at * hour.cos()
        shadow = (-((across / 0.12) ** 2)).exp() * ((along > 0) & (along < reach))
        x = shadow + 0.2 * torch.randn(rows, 20, 20)
        return x[:, None], torch.cat([hour.cos(), hour.sin()], 1).flatten(1)

    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(24 * 25, 48), nn.ReLU(), nn.Linear(48, 2),
    )  # fmt: skip
    draw, (x_new, y_new) = rounds(32, *photograph(2400)), photograph(300)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    opt = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 350)
    return fit(folder, net, opt, loss_of, 350, schedule=schedule,
               score=held_out(net, lambda: F.mse_loss(net(x_new), y_new)))  # fmt: skip


class Stall(nn.Module):
    def __init__(self, kinds):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(count, 6) for count in kinds)
        self.body = nn.Sequential(nn.Linear(6 * len(kinds) + 4, 64), nn.ReLU(), nn.Dropout(0.05),
                                  nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))  # fmt: skip

    def forward(self, which, numbers):
        parts = [table(which[:, i]) for i, table in enumerate(self.tables)]
        return self.body(torch.cat([*parts, numbers], 1))[:, 0]


@healthy(gain=0.6)
def rent_of_a_market_stall(folder):
    seeded(9805)
    kinds = (30, 12, 4)
    worth = [0.6 * torch.randn(count) for count in kinds]
    which = torch.stack([torch.randint(count, (4000,)) for count in kinds], 1)
    numbers = torch.randn(4000, 4)
    rent = sum(table[which[:, i]] for i, table in enumerate(worth))
    rent = rent + 0.5 * numbers[:, 0] + 0.4 * numbers[:, 1] * worth[1][which[:, 1]] + 0.3 * numbers[:, 2].abs()
    rent = (rent - rent.mean()) / rent.std() + 0.1 * torch.randn(4000)
    net, draw = Stall(kinds), rounds(128, which[:3200], numbers[:3200], rent[:3200])
    opt = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=2)
    score = held_out(net, lambda: F.huber_loss(net(which[3200:], numbers[3200:]), rent[3200:]))

    def loss_of(step):
        which_now, numbers_now, rent_now = draw()
        return F.huber_loss(net(which_now, numbers_now), rent_now)

    def after_step(step):
        if step % 25 == 24:
            schedule.step(score())

    return fit(folder, net, opt, loss_of, 600, score=score, after_step=after_step)


def pair(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU(),
                         nn.Conv2d(outputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU())  # fmt: skip


class Bridged(nn.Module):
    """A U of three levels."""

    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList([pair(1, 12), pair(12, 24)])
        self.deepest = pair(24, 24)
        self.up = nn.ModuleList([pair(48, 12), pair(24, 12)])
        self.head = nn.Conv2d(12, 1, 1)

    def forward(self, x):
        kept = []
        for part in self.down:
            kept.append(part(x))
            x = F.max_pool2d(kept[-1], 2)
        x = self.deepest(x)
        for part in self.up:
            x = part(torch.cat([F.interpolate(x, scale_factor=2), kept.pop()], 1))
        return self.head(x)


@healthy(gain=0.6)
def embroidery_without_its_stray_stitches(folder):
    seeded(9806)
    line = torch.arange(16.0)

    def sew(rows):
        way = 0.3 + 0.9 * torch.rand(rows, 4, 1, 1)
        shift = 6.2832 * torch.rand(rows, 2, 1, 1)
        one = (way[:, 0] * line[:, None] + way[:, 1] * line + shift[:, 0]).sin()
        two = (way[:, 2] * line[:, None] - way[:, 3] * line + shift[:, 1]).sin()
        clean = ((one + two) > 0.2).float()[:, None]
        stray = (torch.rand_like(clean) < 0.12).float()
        return (clean - stray).abs(), clean

    net, (x_new, y_new) = Bridged(), sew(200)

    def loss_of(step):
        x, y = sew(16)
        return F.binary_cross_entropy_with_logits(net(x), y)

    opt = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 220, eta_min=1e-4)
    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(x_new), y_new))
    return fit(folder, net, opt, loss_of, 220, schedule=schedule, score=score)
