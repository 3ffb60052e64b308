"""Pictures, small ones, made of gratings, lines and blobs."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


def warm_cosine(optimizer, warm, steps):
    def share(step):
        if step < warm:
            return (step + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, share)


def gratings(rows, kinds, size=16, noise=0.4):
    """Colour pictures `[N, 3, size, size]` of stripes: a kind has a slope, a width and a colour."""
    y = torch.randint(kinds, (rows,))
    slope, width = 3.1416 * torch.rand(kinds), 0.5 + 1.2 * torch.rand(kinds)
    colour = 0.4 + 0.6 * torch.rand(kinds, 3)
    at = torch.arange(float(size))
    along = slope[y].cos()[:, None, None] * at[None, :, None] + slope[y].sin()[:, None, None] * at
    wave = (width[y][:, None, None] * along + 6.2832 * torch.rand(rows, 1, 1)).sin()
    x = wave[:, None] * colour[y][:, :, None, None] * (0.6 + 0.6 * torch.rand(rows, 1, 1, 1))
    return x + noise * torch.randn(rows, 3, size, size), y


class Block(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.first = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(outer)
        self.second = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm_after = nn.BatchNorm2d(outer)
        self.short = nn.Conv2d(inner, outer, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x):
        h = self.norm_after(self.second(F.relu(self.norm(self.first(x)))))
        return F.relu(h + self.short(x))


def residual(kinds, width=12):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(), Block(width, width, 1),
        Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4 * width, kinds),
    )  # fmt: skip


@healthy()
def fabrics_on_a_shop_counter(folder):
    seeded(3207)
    x, y = gratings(2600, 8, noise=0.8)
    net = residual(8, width=8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    draw = rounds(48, x[:2200], y[:2200])

    def loss_of(step):
        a, b = draw()
        a = torch.roll(F.pad(a, (2, 2, 2, 2)), torch.randint(-2, 3, (2,)).tolist(), (2, 3))[:, :, 2:-2, 2:-2]
        out = net(a)
        return F.cross_entropy(out, b), {"accuracy": (out.argmax(1) == b).float().mean().item()}

    score = held_out(net, lambda: F.cross_entropy(net(x[2200:]), y[2200:]))
    return fit(folder, net, optimizer, loss_of, 160, schedule=warm_cosine(optimizer, 12, 160), score=score)


def pages(rows, size=20):
    """Pages of a left-aligned text, turned by quarters."""
    page = torch.zeros(rows, size, size)
    for line in range(2, size - 4, 3):
        ends = torch.randint(size // 2, size - 1, (rows, 1))
        page[:, line] = ((torch.arange(size) > 1) & (torch.arange(size) < ends)).float()
    page = page * (0.5 + 0.5 * torch.rand(rows, 1, 1)) + 0.35 * torch.randn(rows, size, size)
    turn = torch.arange(rows) % 4
    page = torch.stack([torch.rot90(one, int(k)) for one, k in zip(page, turn, strict=True)])
    return page[:, None], turn


@healthy()
def forms_that_were_scanned_lying_on_their_side(folder):
    seeded(3208)
    x, y = pages(3000)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.25), nn.Linear(24 * 25, 64), nn.ReLU(), nn.Linear(64, 4),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    draw = rounds(48, x[:2600], y[:2600])

    def loss_of(step):
        a, b = draw()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(a)
        return F.cross_entropy(out.float(), b, label_smoothing=0.05)

    score = held_out(net, lambda: F.cross_entropy(net(x[2600:]), y[2600:]))
    return fit(folder, net, optimizer, loss_of, 270, score=score)


def spots(rows, size=24):
    """Grey walls with one to three dark spots, and where these are."""
    at = torch.arange(float(size))
    mask = torch.zeros(rows, size, size, dtype=torch.bool)
    for nth in range(3):
        cx, cy = (size * torch.rand(2, rows, 1, 1)).unbind()
        there = (at[:, None] - cy).square() + (at - cx).square() < (1.5 + 3 * torch.rand(rows, 1, 1)).square()
        mask |= there & (torch.rand(rows, 1, 1) < (1.0, 0.6, 0.3)[nth])
    light = torch.linspace(-0.5, 0.5, size) * torch.randn(rows, 1, 1)
    wall = light - 0.9 * mask.float() + 0.35 * torch.randn(rows, size, size)
    return wall[:, None], mask[:, None].float()


class SmallUNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.down = self.two(1, width)
        self.deep = self.two(width, 2 * width)
        self.deepest = self.two(2 * width, 2 * width)
        self.raised = nn.ConvTranspose2d(2 * width, 2 * width, 2, 2)
        self.middle = self.two(4 * width, width)
        self.lifted = nn.ConvTranspose2d(width, width, 2, 2)
        self.up = self.two(2 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    @staticmethod
    def two(inner, outer):
        return nn.Sequential(
            nn.Conv2d(inner, outer, 3, padding=1), nn.GroupNorm(4, outer), nn.ReLU(),
            nn.Conv2d(outer, outer, 3, padding=1), nn.GroupNorm(4, outer), nn.ReLU(),
        )  # fmt: skip

    def forward(self, x):
        a = self.down(x)
        b = self.deep(F.max_pool2d(a, 2))
        h = self.middle(torch.cat([b, self.raised(self.deepest(F.max_pool2d(b, 2)))], 1))
        return self.out(self.up(torch.cat([a, self.lifted(h)], 1)))


@healthy()
def mould_on_the_walls_of_flats(folder):
    seeded(3209)
    x, y = spots(700)
    net = SmallUNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    draw = rounds(16, x[:600], y[:600])

    def overlap(out, y):
        p = out.sigmoid()
        return 1 - ((2 * (p * y).sum((1, 2, 3)) + 1) / (p.sum((1, 2, 3)) + y.sum((1, 2, 3)) + 1)).mean()

    def loss_of(step):
        a, b = draw()
        out = net(a)
        bce, dice = F.binary_cross_entropy_with_logits(out, b), overlap(out, b)
        return bce + dice, {"bce": bce.item(), "dice": dice.item()}

    score = held_out(net, lambda: overlap(net(x[600:]), y[600:]))
    return fit(folder, net, optimizer, loss_of, 160, score=score)


@healthy()
def new_wallpapers_by_a_body_that_knows_others(folder):
    seeded(3210)
    x, y = gratings(1600, 12, noise=1.0)
    body = residual(12, width=8)
    before = torch.optim.Adam(body.parameters(), lr=3e-3)
    draw = rounds(64, x, y)
    for _ in range(90):
        a, b = draw()
        before.zero_grad()
        F.cross_entropy(body(a), b).backward()
        before.step()

    x, y = gratings(700, 5, noise=1.0)
    net = copy.deepcopy(body)
    net.requires_grad_(False)
    net[-1] = nn.Linear(net[-1].in_features, 5)
    optimizer = torch.optim.Adam(net[-1].parameters(), lr=1e-2)
    draw = rounds(32, x[:500], y[:500])

    def loss_of(step):
        net.eval()
        net[-1].train()
        a, b = draw()
        return F.cross_entropy(net(a), b)

    score = held_out(net, lambda: F.cross_entropy(net(x[500:]), y[500:]))
    return fit(folder, net, optimizer, loss_of, 225, score=score)


class Patches(nn.Module):
    def __init__(self, kinds, width=48, depth=3):
        super().__init__()
        self.cut = nn.Conv2d(3, width, 4, 4)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(0.02 * torch.randn(1, 17, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, kinds)

    def forward(self, x):
        h = self.cut(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.first.expand(len(h), -1, -1), h], 1) + self.place
        return self.head(self.body(h)[:, 0])


@healthy()
def veneers_of_a_cabinet_maker(folder):
    seeded(3211)
    x, y = gratings(2600, 6, noise=0.5)
    net = Patches(6, depth=2)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.05)
    draw = rounds(64, x[:2200], y[:2200])
    mix = torch.distributions.Beta(0.2, 0.2)

    def loss_of(step):
        a, b = draw()
        share, order = mix.sample(), torch.randperm(len(b))
        out = net(share * a + (1 - share) * a[order])
        return share * F.cross_entropy(out, b) + (1 - share) * F.cross_entropy(out, b[order])

    score = held_out(net, lambda: F.cross_entropy(net(x[2200:]), y[2200:]))
    return fit(
        folder, net, optimizer, loss_of, 210,
        schedule=warm_cosine(optimizer, 20, 210), before_step=clipped(net, 1.0), score=score,
    )  # fmt: skip


@healthy()
def holiday_slides_made_sharp(folder):
    seeded(3212)
    fine = gratings(700, 40, size=24, noise=0.05)[0]
    coarse = F.avg_pool2d(fine, 2)
    net = nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1), nn.PReLU(), nn.Conv2d(24, 24, 3, padding=1), nn.PReLU(),
        nn.Conv2d(24, 12, 3, padding=1), nn.PixelShuffle(2),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 120, 0.5)
    draw = rounds(16, coarse[:600], fine[:600])

    def loss_of(step):
        small, large = draw()
        return F.l1_loss(net(small), large)

    score = held_out(net, lambda: F.l1_loss(net(coarse[600:]), fine[600:]))
    return fit(folder, net, optimizer, loss_of, 320, schedule=schedule, score=score)
