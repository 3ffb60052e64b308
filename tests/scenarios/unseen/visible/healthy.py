"""Healthy trainings on images of digits: convolutions, residual nets, patches, pairs, boxes, a pupil."""

from __future__ import annotations

import torch
from nets import digits
from torch import nn, optim
from torch.nn import functional as F
from torch.optim import lr_scheduler as plans
from torch.utils.data import DataLoader, TensorDataset
from unseen import fit, healthy, score_of, seeded

# ------------------------------------------------------------------------------------------------- what several share


def parted():
    """The digits to train with, and every fifth, which is kept apart: `(x, y), (x, y)`; images are `[N, 8, 8]`."""
    x, y = digits()
    apart = torch.arange(len(x)) % 5 == 0
    return (x[~apart], y[~apart]), (x[apart], y[apart])


def rounds(*data, batch=64):
    """Batches without end; the rows are shuffled anew in every epoch."""
    loader = DataLoader(TensorDataset(*data), batch, shuffle=True, drop_last=True)
    while True:
        yield from loader


def judged(net, x, y, of=F.cross_entropy):
    """`score()`: what a net is worth in eval mode on rows that were kept apart."""

    def score():
        net.eval()
        with torch.no_grad():
            worth = float(of(net(x), y))
        net.train()
        return worth

    return score


def share_wrong(logits, y):
    return (logits.argmax(1) != y).float().mean()


def shifted(x):
    """Each image moved by a pixel or none."""
    rows, columns = (torch.randint(3, (len(x), 1)) + torch.arange(8) for _ in range(2))
    return F.pad(x, (1, 1, 1, 1))[torch.arange(len(x))[:, None, None], rows[:, :, None], columns[:, None, :]]


def warmed(make, up, steps, end=0.0):
    """A linear warm-up of `up` steps, then a cosine down to the share `end`."""
    rise = plans.LinearLR(make, 1 / up, total_iters=up)
    rest = plans.CosineAnnealingLR(make, steps - up, end * make.param_groups[0]["lr"])
    return plans.SequentialLR(make, [rise, rest], [up])


def convolutions(out=10, width=12):
    return nn.Sequential(
        nn.Unflatten(1, (1, 8)),
        nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(2 * width), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * width, out),
    )  # fmt: skip


class Residual(nn.Module):
    def __init__(self, width, out, stride):
        super().__init__()
        self.one = nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm_one, self.norm_two = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.past = nn.Identity()
        if stride > 1 or width != out:
            self.past = nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        h = self.norm_two(self.two(F.relu(self.norm_one(self.one(x)))))
        return F.relu(h + self.past(x))


def resnet(width=12):
    return nn.Sequential(
        nn.Unflatten(1, (1, 8)),
        nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        Residual(width, width, 1), Residual(width, 2 * width, 2), Residual(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10),
    )  # fmt: skip


class ViT(nn.Module):
    """Sixteen patches of 2 x 2 pixels; their mean gives the answer."""

    def __init__(self, width=32, depth=2, dropout=0.1):
        super().__init__()
        self.patch = nn.Conv2d(1, width, 2, 2)
        self.place = nn.Parameter(0.02 * torch.randn(1, 16, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout, "gelu", batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x):
        h = self.patch((x[:, None] - 0.3) / 0.38).flatten(2).transpose(1, 2) + self.place
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h.mean(1)))


# ------------------------------------------------------------------------------------------------------ kinds of digits


@healthy(0.8)
def shifted_digits_in_shuffled_epochs(folder):
    """Fifteen epochs of 22 batches."""
    seeded(801)
    (x, y), held = parted()
    net, loader = convolutions(), rounds(x, y)
    make = optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)

    def loss_of(step):
        x, y = next(loader)
        return F.cross_entropy(net(shifted(x)), y)

    plan = plans.CosineAnnealingLR(make, 330)
    return fit(folder, net, make, loss_of, 330, schedule=plan, score=judged(net, *held))


@healthy(0.8)
def narrow_resnet_in_one_cycle(folder):
    seeded(802)
    (x, y), held = parted()
    net, loader = resnet(8), rounds(x, y)
    make = optim.AdamW(net.parameters(), 1e-2, weight_decay=0.05)

    def loss_of(step):
        x, y = next(loader)
        return F.cross_entropy(net(shifted(x)), y)

    plan = plans.OneCycleLR(make, 1e-2, total_steps=221)
    return fit(folder, net, make, loss_of, 220, schedule=plan, score=judged(net, *held))


@healthy(0.8)
def vit_without_a_rise(folder):
    seeded(807)
    (x, y), held = parted()
    net, loader = ViT(), rounds(x, y, batch=32)
    make = optim.RAdam(net.parameters(), 1e-2)

    def loss_of(step):
        x, y = next(loader)
        return F.cross_entropy(net(x), y)

    plan = plans.CosineAnnealingLR(make, 400)
    return fit(folder, net, make, loss_of, 400, schedule=plan, score=judged(net, *held))


@healthy(0.8)
def names_believed_by_four_fifths(folder):
    """Smoothed labels: the loss stays above 1 though nearly every held-out digit is named."""
    seeded(829)
    (x, y), held = parted()
    net, loader = convolutions(), rounds(x, y)
    make = optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)

    def loss_of(step):
        x, y = next(loader)
        return F.cross_entropy(net(x), y, label_smoothing=0.2)

    return fit(folder, net, make, loss_of, 250, score=judged(net, *held, of=share_wrong))


@healthy(0.5)
def long_tail_with_moved_logits(folder):
    """Of 0 there are 140, of 9 there are 4; logits are moved by the logarithm of the shares. The score is balanced."""
    seeded(837)
    (x, y), held = parted()
    counts = [round(140 * 40 ** (-kind / 9)) for kind in range(10)]
    kept = torch.cat([(y == kind).nonzero()[:many, 0] for kind, many in enumerate(counts)])
    x, y = x[kept], y[kept]
    share = torch.tensor(counts) / sum(counts)
    net, loader = resnet(8), rounds(x, y)
    make = optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-3)

    def loss_of(step):
        x, y = next(loader)
        return F.cross_entropy(net(shifted(x)) + share.log(), y)

    plan = plans.CosineAnnealingLR(make, 300)
    return fit(folder, net, make, loss_of, 300, schedule=plan, score=judged(net, *held, of=share_wrong))


# -------------------------------------------------------------------------------------------- pairs, boxes, and a pupil


@healthy(0.3)
def two_shifted_copies_drawn_together(folder):
    """SimCLR: two views of 64 digits, the other 126 are what they are told from."""
    seeded(812)
    (x, y), (apart, _) = parted()
    net = nn.Sequential(convolutions(64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32))
    loader = rounds(x, y)
    make = optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)

    def view(x):
        x = shifted(x) * (0.7 + 0.6 * torch.rand(len(x), 1, 1))
        return x + 0.1 * torch.randn_like(x)

    def loss_on(x):
        z = F.normalize(net(torch.cat([view(x), view(x)])), dim=1)
        alike = (z @ z.T / 0.2).fill_diagonal_(float("-inf"))
        return F.cross_entropy(alike, torch.arange(len(z)).roll(len(x)))

    return fit(
        folder, net, make, lambda step: loss_on(next(loader)[0]), 300, schedule=warmed(make, 20, 300),
        score=score_of(lambda step: loss_on(apart[step::5][:64])),
    )  # fmt: skip


@healthy(0.8)
def pairs_pushed_past_a_margin(folder):
    """A siamese net: digits of one kind are drawn together, others pushed a distance of 1 apart."""
    seeded(824)
    (x, y), held = parted()
    net, loader = convolutions(16), rounds(x, y)
    make = optim.NAdam(net.parameters(), 1e-3)

    def loss_on(x, y):
        order, other = y.argsort(stable=True), torch.randperm(len(y))
        left = torch.cat([order[0::2], other[0::2]])
        right = torch.cat([order[1::2], other[1::2]])
        points = net(x)
        distance = (points[left] - points[right]).square().sum(1).add(1e-6).sqrt()
        return torch.where(y[left] == y[right], distance.square(), F.relu(1 - distance).square()).mean()

    score = score_of(lambda step: loss_on(*held))
    return fit(folder, net, make, lambda step: loss_on(*next(loader)), 300, score=score)


class Finder(nn.Module):
    """One body, three heads: is there a digit, which is it, and where is its middle."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU(),
            nn.Conv2d(12, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU(),
            nn.Flatten(), nn.Linear(24 * 16, 64), nn.ReLU(),
        )  # fmt: skip
        self.there, self.kind, self.middle = nn.Linear(64, 1), nn.Linear(64, 10), nn.Linear(64, 2)

    def forward(self, x):
        h = self.body(x[:, None])
        return self.there(h)[:, 0], self.kind(h), self.middle(h)


@healthy(0.5)
def one_digit_placed_and_named(folder):
    seeded(819)
    (x, y), _ = parted()
    net = Finder()
    make = optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)

    def loss_of(step):
        at, place = torch.randint(len(x), (64,)), torch.randint(9, (64, 2))
        there, scene = torch.rand(64) < 0.75, 0.1 * torch.randn(64, 16, 16)
        for image, digit, (top, left), real in zip(scene, x[at], place.tolist(), there, strict=True):
            if real:
                image[top : top + 8, left : left + 8] += digit
        said, kind, middle = net(scene)
        found = F.binary_cross_entropy_with_logits(said, there.float())
        named = F.cross_entropy(kind[there], y[at][there])
        placed = F.smooth_l1_loss(middle[there], place[there] / 4 - 1)
        return found + named + 2 * placed, {"found": found, "named": named, "placed": placed}

    rise = plans.LinearLR(make, 0.1, total_iters=30)
    plan = plans.SequentialLR(make, [rise, plans.MultiStepLR(make, [250, 350], 0.1)], [30])
    return fit(folder, net, make, loss_of, 400, schedule=plan)


@healthy(0.5)
def depthwise_pupil_of_a_wide_teacher(folder):
    """The answers of a teacher at a temperature of 3, and the labels for a tenth."""
    seeded(821)
    (x, y), held = parted()
    loader, teacher = rounds(x, y), convolutions(width=24)
    of_teacher = optim.Adam(teacher.parameters(), 3e-3)
    for _ in range(120):
        rows, kinds = next(loader)
        of_teacher.zero_grad()
        F.cross_entropy(teacher(rows), kinds).backward()
        of_teacher.step()
    teacher.eval().requires_grad_(False)
    net = nn.Sequential(
        nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6(),
        nn.Conv2d(16, 16, 3, 1, 1, groups=16, bias=False), nn.BatchNorm2d(16), nn.ReLU6(),
        nn.Conv2d(16, 32, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    make = optim.RMSprop(net.parameters(), 1e-3, alpha=0.9, momentum=0.9, eps=1e-3)

    def loss_of(step):
        rows, kinds = next(loader)
        said = net(rows)
        soft = F.kl_div((said / 3).log_softmax(1), (teacher(rows) / 3).softmax(1), reduction="batchmean") * 9
        return 0.9 * soft + 0.1 * F.cross_entropy(said, kinds)

    plan = plans.ExponentialLR(make, 0.992)
    return fit(folder, net, make, loss_of, 300, schedule=plan, score=judged(net, *held))
