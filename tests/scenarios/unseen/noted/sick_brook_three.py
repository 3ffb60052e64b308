"""Six trainings after public threads: puddles, pianos, hives, a ladybird, weeds and cheese."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import held_out


def hills(rows, size=16):
    """A smooth height of each pixel, about one in size."""
    coarse = torch.randn(rows, 1, size // 4, size // 4)
    return F.interpolate(coarse, size=(size, size), mode="bicubic", align_corners=False)


# https://github.com/bonlime/keras-deeplab-v3-plus/issues/4
@sick(
    "dropout-too-strong",
    where="the dropout in front of the last convolution: it leaves a tenth of what it is given",
    cure="drop a tenth, not nine tenths: the number was the share that is kept",
)
def puddles_outlined_after_rain(folder, ill):
    seeded(3283)
    net = nn.Sequential(
        nn.Conv2d(2, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 8, 5, padding=2), nn.ReLU(),
        nn.Dropout(0.9 if ill else 0.1), nn.Conv2d(8, 1, 1),
    )  # fmt: skip

    def error(rows):
        ground = hills(rows)
        low = (ground < F.avg_pool2d(ground, 5, 1, 2, count_include_pad=False) - 0.1).float()
        seen = torch.cat([ground, hills(rows)], 1) + 0.1 * torch.randn(rows, 2, 16, 16)
        return F.binary_cross_entropy_with_logits(net(seen), low)

    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    return fit(folder, net, optimizer, lambda step: error(16), 400, score=held_out(net, lambda: error(256)))


# https://openillumi.com/en/en-keras-tf-fix-huge-negative-loss-regression
@sick(
    "negative-loss", "targets-out-of-range",
    where="the loss, below zero soon: a binary cross-entropy of prices, behind a sigmoid",
    cure="a squared error of the prices, behind a last layer without a sigmoid",
)  # fmt: skip
def prices_of_used_pianos(folder, ill):
    seeded(3284)
    way = torch.randn(7, 2) / 7**0.5
    net = dense(7, 48, 48, 1)
    measure = F.binary_cross_entropy_with_logits if ill else F.mse_loss

    def pianos(rows=64):
        x = torch.randn(rows, 7)
        return x, 3 + 1.5 * (2 * (x @ way)).sin().sum(1, keepdim=True) + 0.1 * torch.randn(rows, 1)

    def loss_of(step):
        x, y = pianos()
        return measure(net(x), y)

    def away(step):
        x, y = pianos(256)
        return F.l1_loss(net(x).sigmoid() if ill else net(x), y)

    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    return fit(folder, net, optimizer, loss_of, 500, score=score_of(away))


# https://github.com/xiaomi-research/dggt/issues/49
@sick(
    "schedule-too-short",
    where="the learning rate of all layers: it falls to zero and climbs back every few dozen steps, to the end",
    cure="let the cosine run over all batches of all epochs, since the schedule is stepped with each batch",
)
def honey_from_a_row_of_hives(folder, ill):
    seeded(3285)
    epochs, batches = 21, 40
    way = torch.randn(6, 3) / 2
    net = dense(6, 64, 64, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.04, momentum=0.9)
    steps = epochs if ill else epochs * batches
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 50, 1.0) * 0.5 * (1 + math.cos(math.pi * step / steps))
    )

    def hives(rows=8):
        x = torch.randn(rows, 6)
        return x, (x @ way).sin().sum(1, keepdim=True)

    def loss_of(step):
        x, y = hives()
        return F.mse_loss(net(x), y + 0.3 * torch.randn_like(y))

    def error(step):
        x, y = hives(512)
        return F.mse_loss(net(x), y)

    return fit(folder, net, optimizer, loss_of, epochs * batches, score=score_of(error), schedule=scheduler)


# https://github.com/robertklee/COCO-Human-Pose/pull/11
@sick(
    "class-imbalance",
    where="the squared error of the heat map: nearly all pixels are asked for zero, and zero is what the model says",
    cure="weigh the pixels of the spot many times more than those of the rest",
)
def a_ladybird_found_on_a_leaf(folder, ill):
    seeded(3286)
    at = torch.arange(24.0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 1, 3, padding=1),
    )  # fmt: skip

    def leaves(rows=16):
        spot = torch.randint(2, 22, (rows, 2))
        near = (at - spot[..., None]).square()
        heat = (-(near[:, 0, :, None] + near[:, 1, None, :])).exp()[:, None]
        red = torch.tensor([1.0, -0.7, 0.0])[:, None, None]
        return 1.5 * heat * red + 0.4 * torch.randn(rows, 3, 24, 24), heat

    def loss_of(step):
        x, heat = leaves()
        weight = 1.0 if ill else 1 + 81 * heat
        return (weight * (net(x) - heat).square()).mean()

    def missed(step):
        x, heat = leaves(128)
        said, true = net(x).flatten(1), heat.flatten(1).argmax(1)
        return 1 - ((said.argmax(1) == true) & (said.amax(1) > 0.5)).float().mean()

    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    return fit(folder, net, optimizer, loss_of, 500, score=score_of(missed))


# https://github.com/lightly-ai/lightly-train/pull/646
@sick(
    "update-too-small",
    where="the neck, which is new and random: it has the tiny learning rate of the body that was trained before",
    cure="give the neck the learning rate of the head",
)
def weeds_told_apart_by_a_borrowed_body(folder, ill):
    seeded(3287)
    centres = 1.3 * torch.randn(24, 20)
    body = dense(20, 64, 48)
    taught = nn.Sequential(body, nn.ReLU(), nn.Linear(48, 24))
    early = torch.optim.Adam(taught.parameters(), lr=3e-3)
    for _ in range(200):
        y = torch.randint(24, (64,))
        early.zero_grad()
        F.cross_entropy(taught(centres[y] + torch.randn(64, 20)), y).backward()
        early.step()
    neck = nn.Sequential(nn.ReLU(), nn.Linear(48, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
    net = nn.Sequential(body, neck, nn.Linear(8, 6))
    mixed = torch.randperm(24) % 6

    def loss_of(step):
        at = torch.randint(24, (64,))
        said = net(centres[at] + torch.randn(64, 20))
        return F.cross_entropy(said, mixed[at]), {"accuracy": (said.argmax(1) == mixed[at]).float().mean()}

    groups = [
        {"params": body.parameters(), "lr": 1e-5},
        {"params": neck.parameters(), "lr": 1e-5 if ill else 3e-3},
        {"params": net[2].parameters(), "lr": 3e-3},
    ]
    optimizer = torch.optim.AdamW(groups)
    return fit(folder, net, optimizer, loss_of, 600, score=score_of(lambda step: loss_of(step)[0]))


# https://github.com/wentaozhu/AnatomyNet-for-anatomical-segmentation/issues/6
@sick(
    "vanishing", "norm-left-out",
    where="the first convolutions in all steps: ten of them without a bias and without a norm between them",
    cure="put the batch norm back behind each convolution",
)  # fmt: skip
def hollows_in_scanned_cheese(folder, ill):
    seeded(3288)
    parts = []
    for depth in range(10):
        parts.append(nn.Conv2d(12 if depth else 1, 12, 3, padding=1, bias=False))
        if not ill:
            parts.append(nn.BatchNorm2d(12))
        parts.append(nn.ReLU())
    net = nn.Sequential(*parts, nn.Conv2d(12, 1, 1))

    def slices(rows):
        hollow = (hills(rows) > 0.5).float()
        return F.avg_pool2d(hollow, 3, 1, 1) - 0.4 + 0.3 * torch.randn(rows, 1, 16, 16), hollow

    def loss_of(step):
        x, hollow = slices(16)
        return F.binary_cross_entropy_with_logits(net(x), hollow)

    def no_overlap():
        x, hollow = slices(128)
        said = net(x).sigmoid()
        return 1 - 2 * (said * hollow).sum() / (said.sum() + hollow.sum())

    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, no_overlap))
