"""Pictures that are told apart, masked or compared: tiles, coatings, wood, pollen, cattle, commutators."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import fit, score_of, seeded, sick

SIZE = 16
ROWS, COLUMNS = torch.meshgrid(torch.linspace(-1, 1, SIZE), torch.linspace(-1, 1, SIZE), indexing="ij")


def lines(angles, offsets, width=0.12):
    """`[B, 1, S, S]`: one where a straight line runs, zero elsewhere."""
    across = COLUMNS * angles.cos()[:, None, None] + ROWS * angles.sin()[:, None, None] - offsets[:, None, None]
    return (across.abs() < width).float()[:, None]


def spots(number, radius):
    """`[B, 1, S, S]`: one inside a disc at a place of its own."""
    x, y = (1.4 * torch.rand(2, number, 1, 1) - 0.7).unbind()
    return ((COLUMNS - x) ** 2 + (ROWS - y) ** 2 < radius**2).float()[:, None]


def eye(outputs, width=8):
    """Two strided convolutions and a linear head."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(2 * width * 16, outputs),
    )  # fmt: skip


def painter(width=12):
    """A picture in, a logit for each of its pixels out."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, 1, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 1, 1), nn.ReLU(), nn.Conv2d(width, 1, 1)
    )


# https://stats.stackexchange.com/questions/481881/convolutional-neural-network-fails-even-when-given-answer
@sick(
    "no-gradient", "weights-unchanged", "softmax-of-one-class",
    where="every layer, from the first step: the softmax over the head's single output is one whatever the logit",
    cure="a sigmoid and the binary cross-entropy for one output, or two outputs under the softmax",
)  # fmt: skip
def cracked_roof_tiles(folder, ill):
    seeded(2716)
    net = eye(1)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def draw():
        cracked = torch.randint(2, (32, 1)).float()
        crack = lines(math.pi * torch.rand(32), 0.6 * torch.rand(32) - 0.3)
        return 0.3 * torch.randn(32, 1, SIZE, SIZE) + 0.8 * cracked[:, :, None, None] * crack, cracked

    def crossed(step):
        tiles, cracked = draw()
        return F.binary_cross_entropy_with_logits(net(tiles), cracked)

    def categorical(tiles, cracked):
        shares = net(tiles).softmax(1)
        loss = -(cracked * shares.clamp(1e-7, 1).log()).sum(1).mean()
        return loss, {"accuracy": ((shares > 0.5) == (cracked > 0.5)).float().mean()}

    def binary(tiles, cracked):
        logits = net(tiles)
        loss = F.binary_cross_entropy_with_logits(logits, cracked)
        return loss, {"accuracy": ((logits > 0) == (cracked > 0.5)).float().mean()}

    loss_of = categorical if ill else binary
    return fit(folder, net, optimizer, lambda step: loss_of(*draw()), 400, score=score_of(crossed))


# https://github.com/zacario-li/Segmentation-based-deep-learning-approach-for-surface-defect-detection/issues/2
@sick(
    "targets-out-of-range", "negative-loss",
    where="the loss, at every step: the masks hold 0 and 255 where the cross-entropy expects 0 and 1",
    cure="clamp the masks to the range from 0 to 1",
)  # fmt: skip
def scratched_commutators(folder, ill):
    seeded(2717)
    net = painter()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def draw():
        masks = 255 * lines(math.pi * torch.rand(16), torch.rand(16) - 0.5)
        return 0.4 + 0.2 * torch.randn(16, 1, SIZE, SIZE) - masks / 500, masks

    def loss_of(step):
        metal, masks = draw()
        return F.binary_cross_entropy_with_logits(net(metal), masks if ill else masks.clamp(0, 1))

    def per_pixel(step):
        metal, masks = draw()
        return F.binary_cross_entropy_with_logits(net(metal), masks.clamp(0, 1))

    return fit(folder, net, optimizer, loss_of, 300, score=score_of(per_pixel))


# https://github.com/seanXYZ/SegDecNet/issues/3
@sick(
    "class-imbalance",
    where="the targets of the loss: one picture in forty shows a defect, of a few pixels, and the net calls all sound",
    cure="train the segmentation on the pictures with a defect only",
)  # fmt: skip
def blisters_in_a_coating(folder, ill):
    seeded(2718)
    net = painter()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def draw(share):
        masks = spots(16, 0.25) * (torch.rand(16, 1, 1, 1) < share)
        return 0.5 * torch.randn(16, 1, SIZE, SIZE) + masks, masks

    def loss_of(step):
        coating, masks = draw(0.025 if ill else 1.0)
        logits = net(coating)
        found = ((logits > 0) * masks).sum() / masks.sum().clamp_min(1)
        return F.binary_cross_entropy_with_logits(logits, masks), {"found": found}

    def both_kinds(step):
        coating, masks = draw(1.0)
        each = F.binary_cross_entropy_with_logits(net(coating), masks, reduction="none")
        return each[masks > 0].mean() / 2 + each[masks == 0].mean() / 2

    return fit(folder, net, optimizer, loss_of, 400, score=score_of(both_kinds))


# https://discuss.pytorch.org/t/cross-entropy-loss-is-not-decreasing/43814
@sick(
    "lr-too-high", "dead-layer", "dead-units", "update-too-large",
    where="the first steps throw the weights so far that the rectified units are silent from then on",
    cure="a learning rate a hundred times lower",
)  # fmt: skip
def grain_of_wood_by_its_angle(folder, ill):
    seeded(2719)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1 if ill else 1e-3)

    def draw():
        kinds = torch.randint(10, (32,))
        angles = math.pi * kinds / 10
        across = COLUMNS * angles.cos()[:, None, None] + ROWS * angles.sin()[:, None, None]
        waves = (6 * across + 6.28 * torch.rand(32, 1, 1)).sin()
        return waves[:, None] + 0.3 * torch.randn(32, 1, SIZE, SIZE), kinds

    def loss_of(step):
        boards, kinds = draw()
        logits = net(boards)
        return F.cross_entropy(logits, kinds), {"accuracy": (logits.argmax(1) == kinds).float().mean()}

    return fit(folder, net, optimizer, loss_of, 500, score=score_of(lambda step: loss_of(step)[0]))


# https://github.com/catalyst-team/catalyst/pull/1278
@sick(
    "views-identical",
    where="the loss: both embeddings that are compared come from the very same view, so that it falls to its floor",
    cure="take the second embedding from the second view",
)  # fmt: skip
def pollen_under_two_lights(folder, ill):
    seeded(2720)
    net = nn.Sequential(eye(32), nn.ReLU(), nn.Linear(32, 16))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def grains():
        rings = (9 * torch.rand(48, 1, 1) + 3) * (COLUMNS**2 + ROWS**2).sqrt() + 6.28 * torch.rand(48, 1, 1)
        return rings.cos()[:, None]

    def lit(pictures):
        slope = torch.randn(48, 2, 1, 1, 1)
        light = 1.5 * (slope[:, 0] * COLUMNS + slope[:, 1] * ROWS) + torch.randn(48, 1, 1, 1)
        return pictures + light + 0.2 * torch.randn_like(pictures)

    def contrasted(first, second):
        a, b = F.normalize(net(first), dim=1), F.normalize(net(second), dim=1)
        return F.cross_entropy(a @ b.T / 0.2, torch.arange(48))

    def loss_of(step):
        pictures = grains()
        first, second = lit(pictures), lit(pictures)
        return contrasted(first, first if ill else second)

    def matched(step):
        pictures = grains()
        return contrasted(lit(pictures), lit(pictures))

    return fit(folder, net, optimizer, loss_of, 500, score=score_of(matched))


# https://github.com/facebookarchive/fb.resnet.torch/issues/4
@sick(
    "bad-initialisation", "no-gradient", "weights-unchanged",
    where="the last layer starts as zeros, all embeddings are one point and the triplet loss has no slope there",
    cure="leave the usual random start of the last layer as it is",
)  # fmt: skip
def noses_of_cattle(folder, ill):
    seeded(2721)
    net = eye(16)
    if ill:
        nn.init.zeros_(net[-1].weight)
        nn.init.zeros_(net[-1].bias)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    prints = F.interpolate(torch.randn(40, 1, 5, 5), SIZE, mode="bilinear")

    def seen(which):
        return prints[which] + 0.5 * torch.randn(32, 1, SIZE, SIZE)

    def loss_of(step):
        which = torch.randint(40, (32,))
        other = (which + torch.randint(1, 40, (32,))) % 40
        anchor, same, different = net(seen(which)), net(seen(which)), net(seen(other))
        near, far = (anchor - same).square().sum(1), (anchor - different).square().sum(1)
        return (near - far + 1).relu().mean(), {"violated": (near > far).float().mean()}

    return fit(folder, net, optimizer, loss_of, 400, score=score_of(lambda step: loss_of(step)[0]))
