"""Six sick trainings that people asked about: clothes, a river, two detectors, city sounds and pollen."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import fit, seeded, sick
from unseen.tasks import held_out, rounds

# ---------------------------------------------------------------------------------------------------------- pictures


def patterns(kinds, size, coarse=4):
    """A smooth grey pattern for each kind; `[kinds, size, size]` from nought to one."""
    return F.interpolate(torch.rand(kinds, 1, coarse, coarse), size=(size, size), mode="bilinear")[:, 0]


def wrong_share(net, x, y):
    """How many of the rows are named wrongly."""
    return held_out(net, lambda: (net(x).argmax(1) != y).float().mean())


def like_keras(net):
    """The initial weights that Keras gives: uniform after Glorot, no bias."""
    for module in net.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    return net


# https://datascience.stackexchange.com/questions/39929/why-normalize-when-all-features-are-on-the-same-scale
@sick(
    "inputs-not-normalised",
    "saturated",
    where="the first layer sees bytes up to 255, the softmax at the end is at its corners from the first step on",
    cure="divide the bytes by 255",
)
def clothes_on_a_conveyor(folder, ill):
    seeded(2480)
    cuts = patterns(10, 14)

    def photographed(count):
        kind = torch.randint(10, (count,))
        light = 0.6 + 0.4 * torch.rand(count, 1, 1)
        grey = (cuts[kind] * light + 0.15 * torch.randn(count, 14, 14)).clamp(0, 1)
        return (255 * grey).round() / (1 if ill else 255), kind

    draw, test = rounds(32, *photographed(3000)), photographed(500)
    net = like_keras(nn.Sequential(nn.Flatten(), nn.Linear(196, 128), nn.ReLU(), nn.Linear(128, 10), nn.Softmax(dim=1)))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def loss_of(step):
        x, y = draw()
        chance = net(x).clamp(1e-7, 1 - 1e-7)
        return F.nll_loss(chance.log(), y), {"accuracy": (chance.argmax(1) == y).float().mean()}

    return fit(folder, net, optimizer, loss_of, 450, score=wrong_share(net, *test))


# ------------------------------------------------------------------------------------------------------- time series


class SeriesAsTokens(nn.Module):
    """Each gauge's past is one token; the first token tells the level to come."""

    def __init__(self, past, width=32):
        super().__init__()
        self.embed = nn.Linear(past, width)
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.1, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.encoder(self.embed(x.transpose(1, 2)))[:, 0])


# https://github.com/jsboige/CoursIA/pull/926
@sick(
    "shapes-broadcast",
    where="the loss: guesses [64, 1] against levels [64], at every step",
    cure="give the levels the shape of the guesses (view_as)",
)
def level_of_a_river_tomorrow(folder, ill):
    seeded(2481)
    past, speed, lag = 24, torch.tensor([0.25, 0.25, 0.4, 0.4, 0.6]), torch.rand(5) * 3

    def gauges(count):
        day = torch.arange(past + 1)[None, :, None] + 40 * torch.rand(count, 1, 1)
        flood = 0.5 + torch.rand(count, 1, 5)
        level = flood * (speed * day + lag).sin() + 0.05 * torch.randn(count, past + 1, 5)
        return level[:, :past], level[:, past, 0] + 0.5 * level[:, past, 2]

    draw, (x_test, y_test) = rounds(64, *gauges(4000)), gauges(500)
    net = SeriesAsTokens(past)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)

    def loss_of(step):
        x, y = draw()
        guess = net(x)
        return F.mse_loss(guess, y if ill else y.view_as(guess))

    score = held_out(net, lambda: (net(x_test)[:, 0] - y_test).square().mean())
    return fit(folder, net, optimizer, loss_of, 350, score=score)


# --------------------------------------------------------------------------------------------------------- detectors


def grid_boxes(cells, stride, side):
    """A square box around the middle of each cell of a grid; `[cells * cells, 4]`, corners."""
    middle = (torch.arange(cells) + 0.5) * stride
    y, x = torch.meshgrid(middle, middle, indexing="ij")
    centre = torch.stack([x, y], -1).reshape(-1, 2)
    return torch.cat([centre - side / 2, centre + side / 2], 1)


def area(box):
    return (box[..., 2:] - box[..., :2]).prod(-1)


def overlap(a, b):
    """Intersection over union."""
    least, most = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    both = (most - least).clamp(min=0).prod(-1)
    return both / (area(a) + area(b) - both)


def slides(count, size=32):
    """Noisy pictures with one bright thing of six to ten pixels, and the corners of its box."""
    side = 6 + 4 * torch.rand(count, 2)
    start = torch.rand(count, 2) * (size - side)
    box, at = torch.cat([start, start + side], 1), torch.arange(size) + 0.5
    across, down = ((at >= box[:, i, None]) & (at < box[:, i + 2, None]) for i in (0, 1))
    picture = (down[:, :, None] & across[:, None, :]).float() + 0.3 * torch.randn(count, size, size)
    return picture[:, None], box


class Detector(nn.Module):
    """A body, and for each cell of its map the odds of a thing and the corners of its box relative to the anchor."""

    def __init__(self, body, width, anchors):
        super().__init__()
        self.body, self.anchors = body, anchors
        self.kind = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 1, 3, padding=1))
        self.place = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 4, 3, padding=1))
        nn.init.constant_(self.kind[-1].bias, -math.log(99))

    def forward(self, x):
        seen = self.body(x)
        return self.kind(seen).flatten(1), self.place(seen).flatten(2).transpose(1, 2)

    def loss(self, x, box, extra=0.0):
        """The focal loss of what is where, and the smooth error of the corners where a thing is."""
        odds, corners = self(x)
        share = overlap(self.anchors, box[:, None])
        thing = share >= 0.5
        side = (self.anchors[0, 2] - self.anchors[0, 0]) * 0.2
        aim, things = (box[:, None] - self.anchors) / side, (thing.sum() + extra).clamp(min=1)
        sure = torch.where(thing, odds, -odds).sigmoid()
        focal = torch.where(thing, 0.25, 0.75) * (1 - sure).square() * -F.logsigmoid(torch.where(thing, odds, -odds))
        kind = (focal * (thing | (share < 0.4))).sum() / things
        place = (F.smooth_l1_loss(corners, aim, reduction="none").sum(-1) * thing).sum() / things
        return kind + place, {"class_loss": kind, "box_loss": place}

    def missed(self, x, box):
        """`score()`: one minus the overlap of the likeliest box with the true one."""

        def of_the_likeliest():
            odds, corners = self(x)
            side = (self.anchors[0, 2] - self.anchors[0, 0]) * 0.2
            row, best = torch.arange(len(x)), odds.argmax(1)
            return 1 - overlap(self.anchors[best] + corners[row, best] * side, box).mean()

        return held_out(self, of_the_likeliest)


# https://github.com/fizyr/keras-retinanet/issues/1343
@sick(
    "anchors-too-large",
    "no-gradient",
    "class-imbalance",
    where="the loss of the boxes and the gradients of `place` are nought at every step: no anchor meets a thing",
    cure="anchors of the size of the things (8 pixels, not 32)",
)
def bins_seen_from_a_crane(folder, ill):
    seeded(2482)
    draw, test = rounds(16, *slides(1500)), slides(300)
    body = nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 24, 3, padding=1), nn.ReLU(),
        nn.Conv2d(24, 24, 3, padding=1), nn.ReLU(),
    )  # fmt: skip
    net = Detector(body, 24, grid_boxes(16, 2, 32 if ill else 8))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    return fit(folder, net, optimizer, lambda step: net.loss(*draw()), 250, score=net.missed(*test))


class Pyramid(nn.Module):
    """Two scales, mixed with weights that are learned."""

    def __init__(self, width):
        super().__init__()
        self.fine, self.coarse = self.separable(1, width), self.separable(width, width)
        self.mix, self.out = nn.Parameter(torch.ones(2)), self.separable(width, width, stride=1)

    @staticmethod
    def separable(inward, outward, stride=2):
        return nn.Sequential(
            nn.Conv2d(inward, inward, 3, stride=stride, padding=1, groups=inward, bias=False),
            nn.Conv2d(inward, outward, 1), nn.BatchNorm2d(outward), nn.SiLU(),
        )  # fmt: skip

    def forward(self, x):
        fine = self.fine(x)
        coarse = F.interpolate(self.coarse(fine), scale_factor=2)
        share = self.mix.relu() / (self.mix.relu().sum() + 1e-4)
        return self.out(share[0] * fine + share[1] * coarse)


# https://github.com/google/automl/issues/106
@sick(
    "targets-all-zero",
    "no-gradient",
    "class-imbalance",
    where="the loss of the boxes and the gradients of `place` are nought at every step: the records hold no boxes",
    cure="write the records again, with the file of annotations",
)
def ships_on_a_radar_screen(folder, ill):
    seeded(2483)
    picture, box = slides(1500)
    draw, test = rounds(16, picture, torch.zeros_like(box) if ill else box), slides(300)
    net = Detector(Pyramid(24), 24, grid_boxes(16, 2, 8))
    optimizer = torch.optim.SGD(net.parameters(), 0.03, momentum=0.9, weight_decay=4e-5)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=30)
    wane = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 220)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, wane], [30])
    return fit(
        folder, net, optimizer, lambda step: net.loss(*draw(), extra=1.0), 250,
        score=net.missed(*test), schedule=schedule,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- sound


# https://github.com/musikalkemist/pytorchforaudio/pull/10
@sick(
    "softmax-twice",
    "logits-bounded",
    where="the last layer: what cross-entropy takes for logits are shares already, at every step",
    cure="leave the softmax out of the net",
)
def noises_of_a_city(folder, ill):
    seeded(2484)
    pitch, rhythm = torch.rand(10, 16, 1).pow(3), 0.2 + torch.rand(10, 1, 24).pow(2)

    def recorded(count):
        kind = torch.randint(10, (count,))
        loud = 60 + 240 * torch.rand(count, 1, 1)
        power = loud * (pitch * rhythm)[kind] * -torch.rand(count, 16, 24).clamp(min=1e-6).log()
        return power[:, None], kind

    draw, test = rounds(64, *recorded(3000)), recorded(500)
    layers = [
        nn.Conv2d(1, 8, 3, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * 5 * 7, 10),
    ]  # fmt: skip
    net = nn.Sequential(*layers, *([nn.Softmax(dim=1)] if ill else []))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y)

    return fit(folder, net, optimizer, loss_of, 300, score=wrong_share(net, *test))


# ------------------------------------------------------------------------------------------------------------- order


# https://github.com/BVLC/caffe/issues/2343
@sick(
    "data-not-shuffled",
    where="the loss falls for half of each round of 62 batches, leaps and falls again; all layers",
    cure="shuffle the pictures before they are written into the database",
)
def pollen_of_two_trees(folder, ill):
    seeded(2485)
    count, rows = 3968, 64
    shapes = patterns(2, 16, coarse=6)
    kind = torch.arange(count) * 2 // count
    picture = 0.5 * (shapes[kind] - 0.5 + 0.8 * torch.randn(count, 16, 16))[:, None]
    order = torch.arange(count) if ill else torch.randperm(count)
    picture_test = 0.5 * (shapes[kind[::8]] - 0.5 + 0.8 * torch.randn(count // 8, 16, 16))[:, None]
    net = nn.Sequential(
        nn.Conv2d(1, 8, 5), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9, weight_decay=5e-4)

    def loss_of(step):
        batch = order[(torch.arange(rows) + step * rows) % count]
        return F.cross_entropy(net(picture[batch]), kind[batch])

    score = held_out(net, lambda: F.cross_entropy(net(picture_test), kind[::8]))
    return fit(folder, net, optimizer, loss_of, 372, score=score)
