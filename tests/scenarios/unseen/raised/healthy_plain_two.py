"""Pictures: shapes, digits in patches, cells, a ball in a frame, a net that is tuned for other pictures."""

import math

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from unseen import fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend

AXIS = torch.arange(16.0)


def signs(rows, noise=0.15):
    """Discs, rings, squares, crosses, bars and triangles somewhere in 16 by 16 pixels."""
    kind = torch.randint(6, (rows,))
    middle, size = 5 + 6 * torch.rand(rows, 2, 1, 1), (2.5 + 2 * torch.rand(rows))[:, None, None]
    dy, dx = AXIS[:, None] - middle[:, 0], AXIS[None] - middle[:, 1]
    far, most = (dy.square() + dx.square()).sqrt(), torch.maximum(dy.abs(), dx.abs())
    forms = [
        far < size, (far < size) & (far > size - 1.5), most < 0.9 * size,
        (torch.minimum(dy.abs(), dx.abs()) < 0.8) & (most < size), (dy.abs() < 1) & (dx.abs() < size),
        (dy.abs() < size) & (dx.abs() < (dy + size) / 2),
    ]  # fmt: skip
    pictures = torch.stack(forms, 1)[torch.arange(rows), kind].float()
    contrast = 0.5 + 0.5 * torch.rand(rows, 1, 1)
    return (pictures * contrast + noise * torch.randn(rows, 16, 16) - 0.15)[:, None] / 0.35, kind


class Residual(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(after)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(after)
        self.past = nn.Identity()
        if before != after:
            self.past = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        h = self.first_norm(self.first(x)).relu()
        return (self.second_norm(self.second(h)) + self.past(x)).relu()


@healthy()
def traffic_signs_by_their_outline(folder):
    seeded(2853)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        Residual(8, 8, 1), Residual(8, 16, 2), Residual(16, 32, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 6),
    )  # fmt: skip
    x, y = signs(2000)
    fresh, fresh_y = signs(500)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)
    draw = rounds(48, x, y)

    def loss_of(step):
        pictures, kinds = draw()
        flip = torch.rand(len(pictures)) < 0.5
        pictures = torch.where(flip[:, None, None, None], pictures.flip(3), pictures)
        out = net(pictures)
        right = (out.argmax(1) == kinds).float().mean()
        return F.cross_entropy(out, kinds, label_smoothing=0.1), {"accuracy": right}

    score = held_out(net, lambda: F.cross_entropy(net(fresh), fresh_y))
    return fit(folder, net, optimizer, loss_of, 300, score=score, schedule=schedule)


class Patches(nn.Module):
    """A small vision transformer: patches of 2 by 2, a token for the class."""

    def __init__(self, width=32, depth=2):
        super().__init__()
        self.cut = nn.Conv2d(1, width, 2, 2)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(0.02 * torch.randn(1, 17, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x):
        h = self.cut(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(len(h), -1, -1), h], 1) + self.place
        return self.head(self.norm(self.blocks(h))[:, 0])


@healthy()
def meter_readings_cut_into_squares(folder):
    seeded(2854)
    x, y = digits()
    order = torch.randperm(len(x))
    x, y = x[order, None], y[order]
    net, steps = Patches(), 350
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min((s + 1) / 40, 0.5 * (1 + math.cos(math.pi * s / steps)))
    )
    draw = rounds(48, x[:1400], y[:1400])

    def loss_of(step):
        pictures, labels = draw()
        return F.cross_entropy(net(pictures + 0.05 * torch.randn_like(pictures)), labels)

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule, before_step=clipped(net, 1.0))


class Outliner(nn.Module):
    """A U-Net of two levels."""

    def __init__(self, width=12):
        super().__init__()

        def twice(before, after):
            return nn.Sequential(
                nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(4, after), nn.SiLU(),
                nn.Conv2d(after, after, 3, padding=1), nn.GroupNorm(4, after), nn.SiLU(),
            )  # fmt: skip

        self.down, self.middle = twice(1, width), twice(width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.last, self.head = twice(2 * width, width), nn.Conv2d(width, 1, 1)

    def forward(self, x):
        high = self.down(x)
        low = self.up(self.middle(F.max_pool2d(high, 2)))
        return self.head(self.last(torch.cat([high, low], 1)))


@healthy()
def yeast_cells_outlined(folder):
    seeded(2855)

    def cells(rows, size=24, most=4):
        axis, there = torch.arange(float(size)), torch.rand(rows, most, 1, 1) < 0.7
        middle, radius = size * torch.rand(rows, most, 2, 1, 1), 2 + 2.5 * torch.rand(rows, most, 1, 1)
        far = ((axis[:, None] - middle[:, :, 0]).square() + (axis - middle[:, :, 1]).square()).sqrt()
        mask = ((far < radius) & there).any(1, keepdim=True).float()
        dust = F.avg_pool2d(torch.randn(rows, 1, size, size), 3, 1, 1)
        return mask * (0.4 + 0.4 * torch.rand(rows, 1, 1, 1)) + 0.6 * dust + 0.1 * torch.randn_like(mask), mask

    def dice(out, mask):
        p = out.sigmoid()
        return 1 - ((2 * (p * mask).sum((1, 2, 3)) + 1) / (p.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)).mean()

    net = Outliner()
    x, y = cells(600)
    fresh, fresh_mask = cells(150)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    draw = rounds(16, x, y)

    def loss_of(step):
        pictures, masks = draw()
        out = net(pictures)
        apart, overlap = F.binary_cross_entropy_with_logits(out, masks), dice(out, masks)
        return apart + overlap, {"bce": apart, "dice": overlap}

    score = held_out(net, lambda: dice(net(fresh), fresh_mask))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


@healthy()
def shuttlecock_boxed_in_each_frame(folder):
    seeded(2856)

    def frames(rows):
        seen = (torch.rand(rows) < 0.6).float()
        centre, half = 3 + 10 * torch.rand(rows, 2), 1 + 2 * torch.rand(rows, 2)
        inside = ((AXIS[:, None] - centre[:, 0, None, None]).abs() < half[:, 0, None, None]) & (
            (AXIS - centre[:, 1, None, None]).abs() < half[:, 1, None, None]
        )
        court = 0.3 * torch.sin(AXIS / 3 + 6 * torch.rand(rows, 1, 1))
        pictures = inside.float() * seen[:, None, None] + court + 0.15 * torch.randn(rows, 16, 16)
        return pictures[:, None], seen, torch.cat([(centre - 8) / 8, half / 4], 1)

    def terms(out, seen, box):
        apart = (F.smooth_l1_loss(out[:, 1:], box, reduction="none", beta=0.2).sum(1) * seen).sum() / seen.sum()
        return F.binary_cross_entropy_with_logits(out[:, 0], seen), apart

    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.LeakyReLU(0.1), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.LeakyReLU(0.1), nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1), nn.LeakyReLU(0.1),
        nn.Flatten(), nn.Linear(512, 64), nn.LeakyReLU(0.1), nn.Linear(64, 5),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [300, 400], 0.2)
    fresh = frames(400)

    def loss_of(step):
        pictures, seen, box = frames(32)
        there, place = terms(net(pictures), seen, box)
        return there + 2 * place, {"objectness": there, "box": place}

    score = held_out(net, lambda: sum(terms(net(fresh[0]), *fresh[1:])))
    return fit(folder, net, optimizer, loss_of, 450, score=score, schedule=schedule)


@healthy()
def digits_lying_on_their_side(folder):
    seeded(2857)
    x, y = digits()
    order = torch.randperm(len(x))
    x, y = x[order, None], y[order]
    body = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(),
    )  # fmt: skip
    upright = nn.Sequential(body, nn.Linear(512, 10))
    first, draw = torch.optim.Adam(upright.parameters(), lr=2e-3), rounds(64, x[:900], y[:900])
    for _ in range(120):
        pictures, labels = draw()
        first.zero_grad()
        F.cross_entropy(upright(pictures), labels).backward()
        first.step()

    x = x.rot90(1, (2, 3))
    head = nn.Sequential(nn.Dropout(0.3), nn.Linear(512, 10))
    net = nn.Sequential(body, head)
    body.requires_grad_(False)
    groups = [{"params": body.parameters(), "lr": 2e-4}, {"params": head.parameters(), "lr": 1e-3}]
    optimizer, draw = torch.optim.AdamW(groups, weight_decay=0.01), rounds(32, x[900:1300], y[900:1300])

    def one(step):
        if step == 80:
            body.requires_grad_(True)
        pictures, labels = draw()
        loss = F.cross_entropy(net(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    score = held_out(net, lambda: F.cross_entropy(net(x[1300:]), y[1300:]))
    return tend(folder, net, optimizer, one, 320, score)
