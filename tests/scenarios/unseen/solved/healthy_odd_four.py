"""Odd runs: thirty steps, three thousand, uneven micro-batches, tasks that weigh themselves, longer and longer rows."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR
from unseen import dense, fit, healthy, score_of, seeded, square_of
from unseen.tasks import clipped, tend


def sundials(rows):
    """`draw()`: latitude, lean of the wall and hour; the direction of the hour's line on the dial."""

    def draw():
        latitude, lean, hour = 0.4 + 0.7 * torch.rand(rows), 0.6 * torch.randn(rows), 2.4 * torch.rand(rows) - 1.2
        height = torch.sin(latitude + lean)
        angle = torch.atan2(height * torch.sin(hour), torch.cos(hour))
        x = torch.stack([(latitude - 0.75) * 5, lean / 0.6, hour * 1.4], 1)
        return x, torch.stack([torch.sin(angle), torch.cos(angle)], 1)

    return draw


@healthy()
def hour_lines_of_a_sundial(folder):
    seeded(2671)
    net = dense(3, 64, 64, 2, act=nn.SiLU)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    schedule = OneCycleLR(optimizer, max_lr=0.02, total_steps=30, pct_start=0.2)
    loss_of = square_of(net, sundials(4096))
    return fit(folder, net, optimizer, loss_of, 30, schedule=schedule, score=score_of(loss_of))


def cups(rows, marks=5):
    """`draw()`: what a leaf holds and how it was brewed; the mark that a taster gives of five."""

    def draw():
        x = torch.randn(rows, 8)
        body = torch.tanh(x[:, 0] + 0.5 * x[:, 1]) + 0.4 * x[:, 2]
        bitter = F.softplus(x[:, 3] + x[:, 4])
        merit = body - 0.6 * bitter + 0.5 * torch.sin(1.5 * x[:, 5]) + 0.15 * torch.randn(rows)
        return x, torch.bucketize(merit, torch.tensor([-1.4, -0.8, -0.3, 0.3]))

    return draw


@healthy()
def cupping_of_tea(folder, steps=3000):
    seeded(2672)
    net = dense(8, 48, 48, 5, act=nn.GELU)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.04, momentum=0.9)
    schedule = LambdaLR(optimizer, lambda step: (1 - step / steps) ** 3)
    draw, draw_many = cups(4), cups(256)

    def loss_of(step, draw=draw):
        leaf, mark = draw()
        return F.cross_entropy(net(leaf), mark)

    return fit(folder, net, optimizer, loss_of, steps, schedule=schedule,
               score=score_of(lambda step: loss_of(step, draw_many)))  # fmt: skip


def herringbone(i, j):
    return (i + j) // 2 % 2


def basket(i, j):
    return (i // 2 + j // 2) % 2


def chevron(i, j):
    return (i + (j % 6 - 3).abs()) // 2 % 2


def brick(i, j):
    return (j + 2 * (i % 2)) % 4 // 2


def floors(size=12):
    """`draw(rows)`: which way each block of a floor lies, the floor being moved and worn; the pattern's name."""
    i, j = torch.meshgrid(torch.arange(size + 12), torch.arange(size + 12), indexing="ij")
    patterns = torch.stack([p(i, j).float() for p in (herringbone, basket, chevron, brick)])

    def draw(rows):
        name = torch.randint(4, (rows,))
        top, left = torch.randint(12, (2, rows))
        span = torch.arange(size)
        laid = patterns[name[:, None, None], top[:, None, None] + span[:, None], left[:, None, None] + span]
        worn = torch.rand(laid.shape) < 0.2
        seen = torch.where(worn, 1 - laid, laid) * 2 - 1
        return seen[:, None] + 0.3 * torch.randn(rows, 1, size, size), name

    return draw


@healthy()
def parquet_patterns(folder, shares=(40, 12, 28, 16)):
    seeded(2673)
    net = nn.Sequential(nn.Conv2d(1, 12, 3), nn.ReLU(), nn.Conv2d(12, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
                        nn.Flatten(), nn.Linear(64, 4))  # fmt: skip
    optimizer, draw = torch.optim.AdamW(net.parameters(), lr=8e-3, weight_decay=0.01), floors()
    schedule = CosineAnnealingLR(optimizer, 300)

    def part(rows):
        seen, name = draw(rows)
        loss = F.cross_entropy(net(seen), name, reduction="sum") / sum(shares)
        loss.backward()
        return loss.detach()

    def one(step):
        optimizer.zero_grad()
        loss = sum(part(shares[(i + step) % len(shares)]) for i in range(len(shares)))
        optimizer.step()
        schedule.step()
        return {"loss": loss}

    def error(step):
        seen, name = draw(128)
        return F.cross_entropy(net(seen), name)

    return tend(folder, net, optimizer, one, 300, score_of(error))


class Ropes(nn.Module):
    """One body for three questions about an oyster rope, and how unsure each answer is thought to be."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(dense(8, 64, 64, act=nn.SiLU), nn.SiLU())
        self.heads = nn.ModuleDict({name: nn.Linear(64, 1) for name in ("spat", "growth", "silt")})
        self.log_variance = nn.ParameterDict({name: nn.Parameter(torch.zeros(())) for name in self.heads})

    def forward(self, x):
        body = self.body(x)
        return {name: head(body) for name, head in self.heads.items()}


def ropes():
    """`draw()`: tide, depth, salt and the like along a rope; log of the spat settled, the growth and the silt."""
    ways = torch.randn(3, 8, 2) / 2

    def draw():
        x = torch.randn(128, 8)
        clean = {name: torch.sin(x @ way).sum(1, keepdim=True)
                 for name, way in zip(("spat", "growth", "silt"), ways, strict=True)}  # fmt: skip
        noise = {"spat": 0.02, "growth": 0.1, "silt": 0.4}
        return x, {name: y + noise[name] * torch.randn(128, 1) for name, y in clean.items()}

    return draw


@healthy()
def spat_on_oyster_ropes(folder):
    seeded(2674)
    net, draw = Ropes(), ropes()
    optimizer = torch.optim.Adam(net.parameters(), lr=6e-3)

    def errors():
        x, truth = draw()
        return {name: F.mse_loss(found, truth[name]) for name, found in net(x).items()}

    def loss_of(step):
        terms = errors()
        weighed = [terms[name] * torch.exp(-s) / 2 + s / 2 for name, s in net.log_variance.items()]
        return sum(weighed), terms

    return fit(folder, net, optimizer, loss_of, 800, schedule=CosineAnnealingLR(optimizer, 800),
               score=score_of(lambda step: sum(errors().values())))  # fmt: skip


class Counter(nn.Module):
    """Reads a row of a chart stitch by stitch and says after each how many have been won or lost."""

    def __init__(self, stitches=5, counts=9, width=48):
        super().__init__()
        self.table = nn.Embedding(stitches, 12)
        self.memory = nn.GRU(12, width, batch_first=True)
        self.head = nn.Linear(width, counts)

    def forward(self, row):
        return self.head(self.memory(self.table(row))[0])


def chart(rows, length):
    """Stitches (knit, purl, yarn over, two together, slip) and the count after each, kept between -4 and 4."""
    change = torch.tensor([0, 0, 1, -1, 0])
    row = torch.randint(5, (rows, length))
    count, counts = torch.zeros(rows, dtype=torch.long), []
    for stitch in row.T:
        count = (count + change[stitch]).clamp(-4, 4)
        counts.append(count)
    return row, torch.stack(counts, 1) + 4


@healthy()
def stitches_of_a_knitted_chart(folder):
    seeded(2675)
    net = Counter()
    optimizer = torch.optim.Adam(net.parameters(), lr=8e-3)
    schedule = LambdaLR(optimizer, lambda step: min(1.0, 2.5 * (1 - step / 500)))

    def error(length):
        row, counts = chart(48, length)
        return F.cross_entropy(net(row)[:, -1], counts[:, -1])

    def every_stitch(length):
        row, counts = chart(48, length)
        return F.cross_entropy(net(row).flatten(0, 1), counts.flatten())

    def loss_of(step):
        length = 2 + 2 * (step // 50)
        return every_stitch(length), {"length": length}

    return fit(folder, net, optimizer, loss_of, 500, before_step=clipped(net, 1.0), schedule=schedule,
               score=score_of(lambda step: error(20)))  # fmt: skip
