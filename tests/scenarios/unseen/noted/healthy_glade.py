"""Everyday trainings on images: kinds, outlines, tags, boxes and a head put on a body that was trained before."""

from __future__ import annotations

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from unseen import fit, healthy, seeded
from unseen.tasks import held_out, rounds


def shifted(x):
    """Each image moved by up to one pixel, a crop of the padded one."""
    padded = F.pad(x, (1, 1, 1, 1))
    down, right = torch.randint(3, (2,)).tolist()
    return padded[..., down : down + x.shape[-2], right : right + x.shape[-1]]


def split_digits(held=297):
    x, y = digits()
    order = torch.randperm(len(x))
    x, y = x[order][:, None], y[order]
    middle = x[held:].mean(), x[held:].std()
    x = (x - middle[0]) / middle[1]
    return x[held:], y[held:], x[:held], y[:held]


@healthy()
def house_numbers_on_letterboxes(folder):
    seeded(3311)
    x, y, x_test, y_test = split_digits()
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(32, 10),
    )  # fmt: skip
    draw, steps = rounds(64, x, y), 230
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-4, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps + 1)

    def loss_of(step):
        images, labels = draw()
        out = net(shifted(images))
        accuracy = (out.argmax(1) == labels).float().mean()
        return F.cross_entropy(out, labels, label_smoothing=0.05), {"accuracy": accuracy}

    score = held_out(net, lambda: F.cross_entropy(net(x_test), y_test))
    return fit(folder, net, optimizer, loss_of, steps, schedule=schedule, score=score)


class Residual(nn.Module):
    def __init__(self, size_in, size, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(size_in, size, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(size)
        self.conv2 = nn.Conv2d(size, size, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(size)
        same = stride == 1 and size_in == size
        self.short = nn.Identity() if same else nn.Conv2d(size_in, size, 1, stride, bias=False)

    def forward(self, x):
        h = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (h + self.short(x)).relu()


def cloths(rows):
    """Pictures of threads in five weaves that differ by direction and by how dense they are."""
    kind = torch.randint(5, (rows,))
    turn = torch.tensor([0.0, 0.8, 1.6, 0.4, 1.2])[kind] + 0.1 * torch.randn(rows)
    dense_by = torch.tensor([1.4, 0.9, 1.4, 2.0, 0.9])[kind]
    row, column = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    along = turn.cos()[:, None, None] * row + turn.sin()[:, None, None] * column
    picture = (dense_by[:, None, None] * along + 6.28 * torch.rand(rows, 1, 1)).sin()
    return (picture + 0.7 * torch.randn(rows, 16, 16))[:, None], kind


@healthy()
def threads_of_five_cloths_by_residual_blocks(folder):
    seeded(3312)
    (x, y), (x_test, y_test) = cloths(2000), cloths(400)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(),
        Residual(12, 12), Residual(12, 24, 2), Residual(24, 32, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5),
    )  # fmt: skip
    draw, steps = rounds(50, x, y), 200
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    def loss_of(step):
        images, labels = draw()
        return F.cross_entropy(net(images), labels)

    score = held_out(net, lambda: F.cross_entropy(net(x_test), y_test))
    return fit(folder, net, optimizer, loss_of, steps, schedule=schedule, score=score)


def roofs(rows, size=32):
    """Noisy pictures with two bright rectangles each, and where they are."""
    at = torch.arange(size)
    mask = torch.zeros(rows, size, size)
    for _ in range(2):
        top, left = torch.randint(size - 14, (2, rows, 1))
        high, wide = torch.randint(6, 14, (2, rows, 1))
        inside_rows = (at >= top) & (at < top + high)
        inside_columns = (at >= left) & (at < left + wide)
        mask = torch.maximum(mask, (inside_rows[:, :, None] & inside_columns[:, None]).float())
    ground = F.interpolate(torch.randn(rows, 1, 8, 8), size=(size, size), mode="bilinear")[:, 0]
    return (mask + 0.5 * ground + 0.3 * torch.randn(rows, size, size))[:, None], mask[:, None]


class UNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.down1 = self.block(1, width)
        self.down2 = self.block(width, 2 * width)
        self.bottom = self.block(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.join2 = self.block(4 * width, 2 * width)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.join1 = self.block(2 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def block(self, size_in, size):
        return nn.Sequential(nn.Conv2d(size_in, size, 3, padding=1), nn.BatchNorm2d(size), nn.ReLU())

    def forward(self, x):
        fine = self.down1(x)
        coarse = self.down2(F.max_pool2d(fine, 2))
        h = self.bottom(F.max_pool2d(coarse, 2))
        h = self.join2(torch.cat([self.up2(h), coarse], 1))
        return self.out(self.join1(torch.cat([self.up1(h), fine], 1)))


def dice(out, mask):
    found = out.sigmoid()
    both = (found * mask).sum((1, 2, 3))
    return (1 - (2 * both + 1) / (found.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)).mean()


@healthy()
def rooftops_seen_from_the_air(folder):
    seeded(3313)
    net = UNet()
    x_test, mask_test = roofs(64)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def loss_of(step):
        x, mask = roofs(16)
        out = net(x)
        bce, overlap = F.binary_cross_entropy_with_logits(out, mask), dice(out, mask)
        return bce + overlap, {"bce": bce, "dice": overlap}

    score = held_out(net, lambda: dice(net(x_test), mask_test))
    return fit(folder, net, optimizer, loss_of, 250, score=score)


@healthy()
def late_digits_by_a_reader_of_early_ones(folder):
    seeded(3314)
    x, y, x_test, y_test = split_digits()
    body = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 64), nn.ReLU(),
    )  # fmt: skip
    before = nn.Sequential(body, nn.Linear(64, 5))
    optimizer = torch.optim.Adam(before.parameters(), lr=2e-3)
    draw = rounds(64, x[y < 5], y[y < 5])
    for _ in range(150):
        images, labels = draw()
        optimizer.zero_grad()
        F.cross_entropy(before(images), labels).backward()
        optimizer.step()

    net = nn.Sequential(body, nn.Linear(64, 5))
    optimizer = torch.optim.Adam([
        {"params": net[0].parameters(), "lr": 2e-4},
        {"params": net[1].parameters(), "lr": 2e-3},
    ])  # fmt: skip
    draw = rounds(32, x[y >= 5], y[y >= 5] - 5)
    x_late, y_late = x_test[y_test >= 5], y_test[y_test >= 5] - 5

    def loss_of(step):
        images, labels = draw()
        out = net(images)
        return F.cross_entropy(out, labels), {"train_acc": (out.argmax(1) == labels).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(x_late), y_late))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


@healthy()
def things_on_a_kitchen_table(folder):
    seeded(3315)
    stamps = F.avg_pool2d(torch.randn(6, 3, 12, 12), 2) * 3

    def tables(rows, size=20):
        there = (torch.rand(rows, 6) < torch.tensor([0.5, 0.4, 0.3, 0.3, 0.2, 0.2])).float()
        x = 0.5 * torch.randn(rows, 3, size, size)
        for row, thing in there.nonzero().tolist():
            top, left = torch.randint(size - 6, (2,)).tolist()
            x[row, :, top : top + 6, left : left + 6] += stamps[thing]
        return x, there

    (x, there), (x_test, there_test) = tables(1600), tables(300)
    net = nn.Sequential(
        nn.Conv2d(3, 24, 5, padding=2), nn.GroupNorm(4, 24), nn.GELU(), nn.MaxPool2d(2),
        nn.Conv2d(24, 48, 3, padding=1), nn.GroupNorm(4, 48), nn.GELU(),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(48, 6),
    )  # fmt: skip
    weight = ((1 - there).sum(0) / there.sum(0)).clamp(max=4)
    draw = rounds(40, x, there)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 250, eta_min=1e-5)

    def loss_of(step):
        images, labels = draw()
        return F.binary_cross_entropy_with_logits(net(images), labels, pos_weight=weight)

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(x_test), there_test))
    return fit(folder, net, optimizer, loss_of, 250, schedule=schedule, score=score)


def parcels(rows, size=24):
    """One parcel a picture, plain or striped: pictures, boxes (middle and sizes as shares of the picture), kinds."""
    at = (torch.arange(size) + 0.5) / size
    box = torch.cat([0.3 + 0.4 * torch.rand(rows, 2), 0.2 + 0.3 * torch.rand(rows, 2)], 1)
    kind = torch.randint(2, (rows,))
    down = ((at - box[:, :1]).abs() < box[:, 2:3] / 2).float()
    right = ((at - box[:, 1:2]).abs() < box[:, 3:] / 2).float()
    stripes = torch.where(torch.arange(size) % 2 == 0, 1.5, 0.5)
    fill = torch.where(kind[:, None] == 1, stripes, torch.ones(size))
    x = (down * fill)[:, :, None] * right[:, None]
    return (x + 0.2 * torch.randn(rows, size, size))[:, None], box, kind


@healthy()
def one_parcel_on_a_conveyor(folder):
    seeded(3316)
    body = nn.Sequential(
        nn.Conv2d(1, 12, 3, 2, 1), nn.LeakyReLU(0.1), nn.Conv2d(12, 24, 3, 2, 1), nn.LeakyReLU(0.1),
        nn.Flatten(), nn.Linear(24 * 36, 64), nn.LeakyReLU(0.1),
    )  # fmt: skip
    net = nn.ModuleDict({"body": body, "box": nn.Linear(64, 4), "kind": nn.Linear(64, 2)})
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 150, gamma=0.3)
    x_test, box_test, _ = parcels(256)

    def loss_of(step):
        x, box, kind = parcels(48)
        h = net["body"](x)
        box_loss = F.smooth_l1_loss(net["box"](h).sigmoid(), box, beta=0.05)
        kind_loss = F.cross_entropy(net["kind"](h), kind)
        return 5 * box_loss + kind_loss, {"box_loss": box_loss, "kind_loss": kind_loss}

    score = held_out(net, lambda: F.l1_loss(net["box"](net["body"](x_test)).sigmoid(), box_test))
    return fit(folder, net, optimizer, loss_of, 400, schedule=schedule, score=score)
