"""Healthy trainings on pictures: shapes, clocks, scans, digits in patches, new digits for an old net."""

from __future__ import annotations

import math

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from unseen import fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


def grid(size):
    line = torch.linspace(-1, 1, size)
    return line[None, :, None], line[None, None, :]


def shapes(many, size=16):
    """Discs, squares, crosses and frames somewhere on a grey plate."""
    down, right = grid(size)
    place, radius = 0.5 * (2 * torch.rand(2, many, 1, 1) - 1), 0.3 + 0.2 * torch.rand(many, 1, 1)
    a, b = (down - place[0]).abs(), (right - place[1]).abs()
    far = torch.maximum(a, b)
    disc, square = (a**2 + b**2).sqrt() < radius, far < 0.85 * radius
    cross, frame = (torch.minimum(a, b) < 0.1) & (far < radius), square & (far > 0.5 * radius)
    kind = torch.randint(4, (many,))
    ink = torch.stack([disc, square, cross, frame])[kind, torch.arange(many)].float()
    return (ink * (0.6 + 0.4 * torch.rand(many, 1, 1)) + 0.25 * torch.randn(many, size, size))[:, None], kind


@healthy()
def shapes_stamped_on_a_plate(folder):
    seeded(2949)
    x, y = shapes(1600)
    fresh, kinds = shapes(400)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4),
    )  # fmt: skip
    steps, draw = 300, rounds(40, x, y)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    def loss_of(step):
        pictures, named = draw()
        if torch.rand(()) < 0.5:
            pictures = pictures.flip(3)
        if torch.rand(()) < 0.5:
            pictures = pictures.flip(2)
        said = net(pictures)
        right = (said.argmax(1) == named).float().mean()
        return F.cross_entropy(said, named, label_smoothing=0.05), {"accuracy": float(right)}

    score = held_out(net, lambda: F.cross_entropy(net(fresh), kinds))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.one, self.two = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm_one, self.norm_two = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x):
        return F.relu(x + self.norm_two(self.two(F.relu(self.norm_one(self.one(x))))))


def clocks(many, size=18):
    """A hand from the middle of a face, and the sine and cosine of where it points."""
    down, right = grid(size)
    angle = 2 * math.pi * torch.rand(many, 1, 1)
    along = right * angle.cos() + down * angle.sin()
    aside = right * angle.sin() - down * angle.cos()
    hand = torch.exp(-((aside / 0.12) ** 2)) * torch.sigmoid(20 * along) * torch.sigmoid(20 * (0.8 - along))
    return (hand + 0.3 * torch.randn(many, size, size))[:, None], torch.cat([angle.sin(), angle.cos()], 1)[:, :, 0]


@healthy()
def the_hand_of_a_clock(folder):
    seeded(2950)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, stride=2, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        Residual(16), nn.Conv2d(16, 24, 3, padding=1, stride=2), Residual(24),
        nn.Flatten(), nn.Linear(24 * 25, 2),
    )  # fmt: skip
    steps = 250
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=steps)
    fresh, pointed = clocks(300)

    def loss_of(step):
        faces, where = clocks(48)
        return F.mse_loss(net(faces), where)

    score = held_out(net, lambda: F.mse_loss(net(fresh), pointed))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


def block(into, out):
    return nn.Sequential(nn.Conv2d(into, out, 3, padding=1), nn.GroupNorm(4, out), nn.SiLU())


class TinyUnet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.deep, self.up = block(1, 12), block(12, 24), block(24 + 12, 12)
        self.head = nn.Conv2d(12, 1, 1)

    def forward(self, x):
        first = self.down(x)
        deep = self.deep(F.max_pool2d(first, 2))
        return self.head(self.up(torch.cat([first, F.interpolate(deep, scale_factor=2)], 1)))


def scans(many, size=24):
    """One to three round lumps under uneven light, and where they are."""
    down, right = grid(size)
    mask = torch.zeros(many, size, size)
    for most in (1.0, 0.6, 0.3):
        place, radius = 0.7 * (2 * torch.rand(2, many, 1, 1) - 1), 0.18 + 0.17 * torch.rand(many, 1, 1)
        inside = ((down - place[0]) ** 2 + (right - place[1]) ** 2).sqrt() < radius
        mask = torch.maximum(mask, inside.float() * (torch.rand(many, 1, 1) < most))
    light = 0.4 * torch.randn(many, 1, 1) * down + 0.4 * torch.randn(many, 1, 1) * right
    return (0.9 * mask + light + 0.4 * torch.randn(many, size, size))[:, None], mask[:, None]


@healthy()
def lumps_in_a_scan_of_the_lung(folder):
    seeded(2951)
    net = TinyUnet()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [140, 180], gamma=0.2)
    fresh, marked = scans(150)

    def losses(pictures, masks):
        said = net(pictures)
        found = said.sigmoid()
        overlap = 2 * (found * masks).sum((1, 2, 3)) + 1
        dice = 1 - overlap / (found.sum((1, 2, 3)) + masks.sum((1, 2, 3)) + 1)
        return F.binary_cross_entropy_with_logits(said, masks), dice.mean()

    def loss_of(step):
        bce, dice = losses(*scans(16))
        return bce + dice, {"bce": bce.item(), "dice_loss": dice.item()}

    score = held_out(net, lambda: sum(losses(fresh, marked)))
    return fit(folder, net, optimizer, loss_of, 210, score=score, schedule=schedule)


class Patches(nn.Module):
    """A vision transformer of sixteen patches."""

    def __init__(self, width=32, depth=2):
        super().__init__()
        self.embed = nn.Conv2d(1, width, 2, stride=2)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.place = nn.Parameter(0.02 * torch.randn(1, 17, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.place
        return self.head(self.norm(self.body(x)[:, 0]))


@healthy()
def digits_cut_into_patches(folder):
    seeded(2952)
    x, y = digits()
    order = torch.randperm(len(x))
    x, y = (x[order, None] - 0.3) / 0.37, y[order]
    net = Patches()
    steps, warm, draw = 300, 30, rounds(32, x[:1400], y[:1400])
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.05)

    def share(step):
        return (step + 1) / warm if step < warm else 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)

    def loss_of(step):
        pictures, named = draw()
        said = net(pictures)
        right = (said.argmax(1) == named).float().mean()
        return F.cross_entropy(said, named), {"acc": float(right)}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule, before_step=clipped(net, 1.0))


@healthy()
def five_more_digits_for_a_net_of_five(folder):
    seeded(2953)
    x, y = digits()
    low, order = y < 5, torch.randperm(len(x))
    body = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(),
    )  # fmt: skip
    net = nn.Sequential(body, nn.Linear(512, 5))
    draw = rounds(32, x[low][:, None], y[low])
    before = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(200):
        pictures, named = draw()
        before.zero_grad()
        F.cross_entropy(net(pictures), named).backward()
        before.step()

    net[1] = nn.Linear(512, 5)
    high = order[y[order] >= 5]
    x, y = x[high][:, None], y[high] - 5
    draw_new = rounds(32, x[:600], y[:600])
    optimizer = torch.optim.AdamW(
        [{"params": net[0].parameters(), "lr": 1e-4}, {"params": net[1].parameters(), "lr": 1e-3}], weight_decay=0.01
    )
    score = held_out(net, lambda: F.cross_entropy(net(x[600:]), y[600:]))

    def one(step):
        pictures, named = draw_new()
        optimizer.zero_grad()
        loss = F.cross_entropy(net(pictures), named)
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    return tend(folder, net, optimizer, one, 250, score)
