"""What is seen in pictures: digits, leaves, cells, cars, faces of a kind."""

import math

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from unseen import fit, healthy, seeded
from unseen.tasks import held_out, rounds


def split_digits(rows=1400):
    """Images with a channel, shuffled: those to learn from and those held out."""
    x, y = digits()
    order = torch.randperm(len(x))
    x, y = x[order, None], y[order]
    return (x[:rows], y[:rows]), (x[rows:], y[rows:])


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride=1):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.short = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        h = F.relu(self.norm1(self.first(x)))
        return F.relu(self.norm2(self.second(h)) + self.short(x))


@healthy()
def meter_digits_by_a_small_resnet(folder):
    seeded(3512)
    train, test = split_digits()
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(),
        Residual(12, 12), Residual(12, 24, 2), Residual(24, 48, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10),
    )  # fmt: skip
    for part in net.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
    draw = rounds(64, *train)

    def shifted(x):
        up, left = torch.randint(0, 3, (2,)).tolist()
        return F.pad(x, (1, 1, 1, 1))[:, :, up : up + 8, left : left + 8]

    def loss_of(step):
        x, y = draw()
        out = net(shifted(x))
        return F.cross_entropy(out, y), {"accuracy": (out.argmax(1) == y).float().mean()}

    steps = 21 * 10
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    score = held_out(net, lambda: F.cross_entropy(net(test[0]), test[1]))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


class Hourglass(nn.Module):
    """A U-Net of two levels."""

    def __init__(self, inputs=3, width=8):
        super().__init__()
        self.down1, self.down2 = self.pair(inputs, width), self.pair(width, 2 * width)
        self.bottom = self.pair(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.join2, self.join1 = self.pair(4 * width, 2 * width), self.pair(2 * width, width)
        self.head = nn.Conv2d(width, 1, 1)

    def pair(self, inputs, outputs):
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
        )  # fmt: skip

    def forward(self, x):
        one = self.down1(x)
        two = self.down2(F.max_pool2d(one, 2))
        low = self.bottom(F.max_pool2d(two, 2))
        two = self.join2(torch.cat([self.up2(low), two], 1))
        return self.head(self.join1(torch.cat([self.up1(two), one], 1)))[:, 0]


def disks(rows, size, lowest, highest):
    """Masks of one round spot each, their centres and radii."""
    at = torch.arange(size).float()
    centre = size * (0.2 + 0.6 * torch.rand(rows, 2))
    radius = lowest + (highest - lowest) * torch.rand(rows)
    far = (at[None, :, None] - centre[:, 0, None, None]) ** 2 + (at[None, None, :] - centre[:, 1, None, None]) ** 2
    return (far < radius[:, None, None] ** 2).float(), centre, radius


@healthy()
def rust_spots_outlined_on_leaves(folder):
    seeded(3513)

    def draw(rows=8):
        mask = torch.maximum(disks(rows, 24, 2, 6)[0], disks(rows, 24, 2, 4)[0])
        leaf = torch.tensor([-0.4, 0.6, -0.5])[:, None, None] + 0.3 * torch.randn(rows, 3, 1, 1)
        rust = torch.tensor([0.5, 0.1, -0.4])[:, None, None]
        return torch.where(mask[:, None] > 0, rust, leaf) + 0.35 * torch.randn(rows, 3, 24, 24), mask

    net = Hourglass()
    fresh = draw(48)

    def terms(x, mask):
        out = net(x)
        share = out.sigmoid()
        overlap = 2 * (share * mask).sum((1, 2)) + 1
        dice = 1 - (overlap / (share.sum((1, 2)) + mask.sum((1, 2)) + 1)).mean()
        return F.binary_cross_entropy_with_logits(out, mask), dice

    def loss_of(step):
        bce, dice = terms(*draw())
        return bce + dice, {"bce": bce, "dice": dice}

    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, 251, power=0.9)
    score = held_out(net, lambda: sum(terms(*fresh)))
    return fit(folder, net, optimizer, loss_of, 250, score=score, schedule=schedule)


@healthy()
def postmarks_freed_of_speckles(folder):
    seeded(3514)
    (clean, _), (other, _) = split_digits()
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.LeakyReLU(0.1),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.LeakyReLU(0.1),
        nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1), nn.LeakyReLU(0.1),
        nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1), nn.Sigmoid(),
    )  # fmt: skip
    draw = rounds(40, clean)

    def speckled(x):
        return (x + 0.3 * torch.randn_like(x)).clamp(0, 1)

    fixed = speckled(other)

    def loss_of(step):
        (x,) = draw()
        return F.mse_loss(net(speckled(x)), x)

    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    score = held_out(net, lambda: F.mse_loss(net(fixed), other))
    return fit(folder, net, optimizer, loss_of, 500, score=score)


@healthy()
def parcels_boxed_on_a_belt(folder):
    seeded(3515)
    size, cells = 24, 6
    body = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GroupNorm(4, 32), nn.SiLU(),
        nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.GroupNorm(4, 32), nn.SiLU(),
    )  # fmt: skip
    heat, box = nn.Conv2d(32, 1, 1), nn.Conv2d(32, 3, 1)
    nn.init.constant_(heat.bias, -math.log(cells * cells - 1))
    net = nn.ModuleDict({"body": body, "heat": heat, "box": box})

    def draw(rows=32):
        mask, centre, radius = disks(rows, size, 2, 5)
        image = mask * (0.5 + 0.5 * torch.rand(rows, 1, 1)) + 0.25 * torch.randn(rows, size, size)
        place = (centre / 4).clamp(0, cells - 0.01)
        cell = place.long()
        return image[:, None], cell, torch.cat([place - cell, radius[:, None] / 5], 1)

    def terms(image, cell, target):
        rows = torch.arange(len(image))
        h = net["body"](image)
        truth = torch.zeros(len(image), cells, cells)
        truth[rows, cell[:, 0], cell[:, 1]] = 1
        raw = net["heat"](h)[:, 0]
        miss = torch.where(truth > 0, 1 - raw.sigmoid(), raw.sigmoid())
        focal = (miss**2 * F.binary_cross_entropy_with_logits(raw, truth, reduction="none")).sum() / len(image)
        found = net["box"](h)[rows, :, cell[:, 0], cell[:, 1]]
        return focal, F.smooth_l1_loss(found, target, beta=0.1)

    def loss_of(step):
        focal, edges = terms(*draw())
        return focal + 2 * edges, {"heatmap": focal, "box": edges}

    steps = 400
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-4)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=30)
    cool = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - 30)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cool], [30])
    fresh = draw(200)
    score = held_out(net, lambda: sum(terms(*fresh)))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


@healthy()
def stamps_of_the_same_issue_side_by_side(folder):
    seeded(3516)
    train, test = split_digits()
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 24),
    )  # fmt: skip

    def draw(x, y, rows):
        anchor = torch.randint(len(x), (rows,))
        same = (y[anchor][:, None] == y).float()
        near = torch.multinomial(same, 1)[:, 0]
        far = torch.multinomial(1 - same, 1)[:, 0]
        return x[torch.cat([anchor, near, far])]

    def triplet(x):
        return F.triplet_margin_loss(*F.normalize(net(x), dim=1).chunk(3), margin=0.5)

    fresh = draw(*test, 300)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    score = held_out(net, lambda: triplet(fresh))
    return fit(folder, net, optimizer, lambda step: triplet(draw(*train, 48)), 350, score=score)
