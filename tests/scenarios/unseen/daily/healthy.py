"""Daily healthy trainings, first part: images of letters, and maps of hills. An expert is content with each.

They only count (the group `daily`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import entropy_of, fit, healthy, score_of, seeded
from unseen.daily.healthy_data import LETTERS, SERIFS, UPRIGHT, hills_cut, letters


def drawn_from(x, y, rows):
    """`draw()`: some rows of both."""

    def draw():
        at = torch.randint(len(x), (rows,))
        return x[at], y[at]

    return draw


def vgg(wide=16):
    """Three times two convolutions and a pool, as Simonyan and Zisserman (2015) have them, with norms."""
    parts, size = [], 1
    for out in (wide, 2 * wide):
        for _ in range(2):
            parts += [nn.Conv2d(size, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
            size = out
        parts.append(nn.MaxPool2d(2))
    return nn.Sequential(*parts, nn.Flatten(), nn.Dropout(0.3), nn.Linear(size * 16, len(LETTERS)))


def held_apart(x, y):
    """Of four places of a letter one is for the test: learnt `(x, y)`, kept `(x, y)`."""
    kept = torch.arange(len(x)) % 4 == 3
    return (x[~kept], y[~kept]), (x[kept], y[kept])


def entropy_on(net, x, y):
    """`score()`: the cross-entropy in eval mode."""

    def score():
        net.eval()
        with torch.no_grad():
            loss = float(F.cross_entropy(net(x), y))
        net.train()
        return loss

    return score


@healthy(0.5)
def letters_of_thirteen_fonts(folder):
    """The recipe of every tutorial: Nesterov at 0.05, decay, the rate a tenth twice; accuracy is logged."""
    seeded(1201)
    learnt, kept = held_apart(*letters())
    net, draw = vgg(12), drawn_from(*learnt, 40)
    make = optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": (said.argmax(1) == y).float().mean()}

    plan = optim.lr_scheduler.StepLR(make, 60, 0.1)
    return fit(folder, net, make, loss_of, 140, schedule=plan, score=entropy_on(net, *kept))


@healthy(0.15)
def serifs_tuned_at_a_tiny_rate(folder):
    """It reads what has no serifs; all of it is tuned for those that have, at 5e-5, as one tunes what is large."""
    seeded(1202)
    net, draw = vgg(8), drawn_from(*letters(UPRIGHT), 64)
    before, loss_on = optim.AdamW(net.parameters(), 3e-3), entropy_of(net, draw)
    for step in range(80):
        before.zero_grad()
        loss_on(step).backward()
        before.step()
    learnt, kept = held_apart(*letters(SERIFS))
    make = optim.AdamW(net.parameters(), 5e-5, weight_decay=0.01)
    steps = 150
    plan = optim.lr_scheduler.LambdaLR(make, lambda step: min((step + 1) / 15, (steps - step) / (steps - 15)))
    tuned = entropy_of(net, drawn_from(*learnt, 32))
    options = {"schedule": plan, "clip": "ClipByGlobalNorm(1.0)"}
    return fit(folder, net, make, tuned, steps, score=entropy_on(net, *kept), **options)


class Window(nn.Module):
    """Attention inside windows of four by four, which every second block moves by two (Liu et al. 2021)."""

    def __init__(self, wide, moved):
        super().__init__()
        self.moved, self.norm, self.qkv = moved, nn.LayerNorm(wide), nn.Linear(wide, 3 * wide)
        self.out = nn.Linear(wide, wide)
        self.near = nn.Parameter(torch.zeros(2, 16, 16))
        self.mix = nn.Sequential(nn.LayerNorm(wide), nn.Linear(wide, 2 * wide), nn.GELU(), nn.Linear(2 * wide, wide))

    def forward(self, x):
        rows, high, across, wide = x.shape
        seen = torch.roll(self.norm(x), (-self.moved, -self.moved), (1, 2))
        seen = seen.view(rows, high // 4, 4, across // 4, 4, wide).transpose(2, 3).reshape(-1, 16, wide)
        q, k, v = self.qkv(seen).view(-1, 16, 3, 2, wide // 2).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=self.near).transpose(1, 2).reshape(-1, 16, wide)
        seen = self.out(seen).view(rows, high // 4, across // 4, 4, 4, wide).transpose(2, 3).reshape(x.shape)
        x = x + torch.roll(seen, (self.moved, self.moved), (1, 2))
        return x + self.mix(x)


class Swin(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Sequential(nn.Conv2d(1, 32, 3, 2, 1), nn.GELU(), nn.Conv2d(32, 32, 3, padding=1))
        self.blocks = nn.ModuleList([Window(32, 0), Window(32, 2)])
        self.merge = nn.Linear(128, 64, bias=False)
        self.last, self.norm, self.head = Window(64, 0), nn.LayerNorm(64), nn.Linear(64 * 16, len(LETTERS))

    def forward(self, x):
        x = self.patch(x).permute(0, 2, 3, 1)
        for block in self.blocks:
            x = block(x)
        x = torch.cat([x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)], 3)
        return self.head(self.norm(self.last(self.merge(x))).flatten(1))


@healthy(0.3)
def windows_that_shift(folder):
    """AdamW with a decay of 0.05 for the matrices, warm-up, cosine, softened labels, a clip at 5."""
    seeded(1203)
    net, (learnt, kept) = Swin(), held_apart(*letters())
    matrices = [p for p in net.parameters() if p.ndim > 1]
    rest = [p for p in net.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}]
    make, steps = optim.AdamW(groups, 2e-3), 120
    rise = optim.lr_scheduler.LinearLR(make, 0.01, total_iters=20)
    plan = optim.lr_scheduler.SequentialLR(
        make, [rise, optim.lr_scheduler.CosineAnnealingLR(make, steps - 20, 1e-5)], [20]
    )
    draw = drawn_from(*learnt, 32)

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y, label_smoothing=0.1)

    options = {"schedule": plan, "clip": "ClipByGlobalNorm(5.0)"}
    return fit(folder, net, make, loss_of, steps, score=entropy_on(net, *kept), **options)


class WideKernel(nn.Module):
    """Seven by seven for each channel, then a narrow net, at a millionth of its size, left out at times."""

    def __init__(self, wide, left_out):
        super().__init__()
        self.look, self.norm = nn.Conv2d(wide, wide, 7, padding=3, groups=wide), nn.LayerNorm(wide)
        self.mix = nn.Sequential(nn.Linear(wide, 4 * wide), nn.GELU(), nn.Linear(4 * wide, wide))
        self.share, self.left_out = nn.Parameter(1e-6 * torch.ones(wide)), left_out

    def forward(self, x):
        seen = self.share * self.mix(self.norm(self.look(x).permute(0, 2, 3, 1)))
        if self.training:
            seen = seen * (torch.rand(len(x), 1, 1, 1) > self.left_out) / (1 - self.left_out)
        return x + seen.permute(0, 3, 1, 2)


@healthy(0.3)
def kernels_of_seven_by_seven(folder):
    """A small ConvNeXt (Liu et al. 2022), scored by a running average of its weights."""
    seeded(1204)
    learnt, kept = held_apart(*letters())
    net = nn.Sequential(
        *(nn.Conv2d(1, 24, 2, stride=2), nn.GroupNorm(1, 24), WideKernel(24, 0.1)),
        *(nn.Conv2d(24, 48, 2, stride=2), nn.GroupNorm(1, 48), WideKernel(48, 0.1)),
        *(nn.AvgPool2d(2), nn.Flatten(), nn.LayerNorm(192), nn.Linear(192, len(LETTERS))),
    )
    slow = copy.deepcopy(net).eval()
    make = optim.AdamW(net.parameters(), 1e-2, weight_decay=0.05)
    steps = 150
    plan = optim.lr_scheduler.LambdaLR(
        make, lambda step: min((step + 1) / 20, 0.5 + 0.5 * math.cos(math.pi * step / steps))
    )

    def after(step):
        with torch.no_grad():
            for p, q in zip(slow.parameters(), net.parameters(), strict=True):
                p.lerp_(q, 0.03)

    loss_of = entropy_of(net, drawn_from(*learnt, 32))

    def score():
        with torch.no_grad():
            return float(F.cross_entropy(slow(kept[0]), kept[1]))

    return fit(folder, net, make, loss_of, steps, schedule=plan, after_step=after, score=score)


def down(size, out):
    return nn.Sequential(nn.Conv2d(size, out, 3, padding=1), nn.GroupNorm(4, out), nn.SiLU())


class UNet(nn.Module):
    """One level: half the size in the middle, and what was seen before beside what comes back."""

    def __init__(self, channels, out=1, wide=16):
        super().__init__()
        self.first, self.low = down(channels, wide), nn.Sequential(nn.AvgPool2d(2), down(wide, 2 * wide))
        self.mid, self.up = down(2 * wide, 2 * wide), nn.ConvTranspose2d(2 * wide, wide, 2, stride=2)
        self.last = nn.Sequential(down(2 * wide, wide), nn.Conv2d(wide, out, 1))

    def forward(self, x):
        first = self.first(x)
        low = self.low(first)
        return self.last(torch.cat([first, self.up(low + self.mid(low))], 1))


@healthy(0.3)
def gaps_in_a_map_of_heights(folder):
    """Holes of a real map are filled from what stands around them; the error counts inside the holes alone."""
    seeded(1206)
    net = UNet(2)

    def loss_of(step):
        height = hills_cut(12, 24)
        gap = F.max_pool2d((torch.rand(12, 1, 24, 24) < 0.01).float(), 7, 1, 3)
        height = height - height.mean((2, 3), keepdim=True)
        said = net(torch.cat([height * (1 - gap), gap], 1))
        return ((said - height).abs() * gap).sum() / gap.sum()

    make = optim.Adam(net.parameters(), 2e-3)
    plan = optim.lr_scheduler.OneCycleLR(make, 4e-3, 180)
    return fit(folder, net, make, loss_of, 180, schedule=plan, score=score_of(loss_of))
