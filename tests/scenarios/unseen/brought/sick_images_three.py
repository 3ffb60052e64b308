"""Pictures that are found, named and outlined: insects, bottles, cells, leaves, buttons, signs, livers."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import fit, score_of, seeded, sick
from unseen.tasks import rounds

SIZE = 16
ROWS, COLUMNS = torch.meshgrid(torch.linspace(-1, 1, SIZE), torch.linspace(-1, 1, SIZE), indexing="ij")


def stars(kinds, noise=0.3):
    """`[B, 1, S, S]`: a star whose number of points is its kind, turned at random."""
    radius, angle = (COLUMNS**2 + ROWS**2).sqrt(), torch.atan2(ROWS, COLUMNS)
    turn = 6.28 * torch.rand(len(kinds), 1, 1)
    edge = 0.6 + 0.3 * ((kinds[:, None, None] + 2) * angle + turn).sin()
    return (radius < edge).float()[:, None] + noise * torch.randn(len(kinds), 1, SIZE, SIZE)


def eye(outputs, width=12):
    return nn.Sequential(
        nn.Conv2d(1, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(2 * width * 16, 48), nn.ReLU(), nn.Linear(48, outputs),
    )  # fmt: skip


def named(net, pictures, kinds):
    """The cross-entropy and the accuracy, as they are logged."""
    logits = net(pictures)
    return F.cross_entropy(logits, kinds), {"accuracy": (logits.argmax(1) == kinds).float().mean()}


# https://github.com/pytorch/tutorials/pull/640
@sick(
    "schedule-too-short", "update-too-small",
    where="the rate: its decay is meant for seven epochs but taken after seven batches, so that all stands still soon",
    cure="step the schedule once an epoch",
)  # fmt: skip
def insects_by_a_net_that_knows_flowers(folder, ill):
    seeded(2725)
    net = eye(5)
    before = torch.optim.Adam(net.parameters(), lr=2e-3)
    for _ in range(120):
        flowers = torch.randint(5, (32,))
        before.zero_grad()
        named(net, stars(flowers), flowers)[0].backward()
        before.step()
    net[-1] = nn.Linear(48, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.1)
    batches = 20

    def insects():
        kinds = torch.randint(4, (16,))
        return stars(kinds + 3, 0.2), kinds

    def after_step(step):
        if ill or step % batches == batches - 1:
            schedule.step()

    score = score_of(lambda step: named(net, *insects())[0])
    return fit(folder, net, optimizer, lambda step: named(net, *insects()), 300, score=score, after_step=after_step)


# https://github.com/YunYang1994/TensorFlow2.0-Examples/issues/8
@sick(
    "warmup-too-long", "lr-too-high", "dead-units",
    where="the rate, which climbs to the last step, past what the net bears, as the warm-up is longer than the run",
    cure="a warm-up of a few dozen steps to a lower rate, then a decay along a cosine",
)  # fmt: skip
def bottles_on_a_belt_boxed(folder, ill):
    seeded(2728)
    net = eye(5)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.2 if ill else 3e-3)
    steps, warm = 400, 1000 if ill else 40

    def share(step):
        if step < warm:
            return (step + 1) / warm
        return 0.01 + 0.495 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))

    def draw():
        centre, half = torch.rand(32, 2) - 0.5, 0.15 + 0.3 * torch.rand(32, 2)
        there = (torch.rand(32) < 0.7).float()
        inside = ((COLUMNS - centre[:, :1, None]).abs() < half[:, :1, None]) & (
            (ROWS - centre[:, 1:, None]).abs() < half[:, 1:, None]
        )
        pictures = (inside * there[:, None, None])[:, None] + 0.2 * torch.randn(32, 1, SIZE, SIZE)
        return pictures, torch.cat([centre, half], 1), there

    def loss_of(step):
        pictures, boxes, there = draw()
        out = net(pictures)
        found = torch.cat([out[:, :2], 0.3 * out[:, 2:4].exp()], 1)
        box_loss = ((found - boxes).square().sum(1) * there).mean()
        conf_loss = F.binary_cross_entropy_with_logits(out[:, 4], there)
        return 5 * box_loss + conf_loss, {"box_loss": box_loss, "conf_loss": conf_loss}

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
    score = score_of(lambda step: loss_of(step)[0])
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


# http://pullrequest.ru/10248037/cnn-keras-shodyatsya-odnomu-tomu-zhe-znacheniy-nezavisimo-vvoda
@sick(
    "inputs-not-normalised", "dead-layer", "dead-units",
    where="the first layer: pixels from 0 to 255 make its first gradients huge, then all pictures get one answer",
    cure="divide the pixels by 255",
)  # fmt: skip
def blood_cells_named(folder, ill):
    seeded(2729)
    net = eye(5)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)

    def loss_of(step):
        kinds = torch.randint(5, (32,))
        pixels = (255 * (0.2 + 0.5 * stars(kinds, 0.2))).clamp(0, 255).round()
        return named(net, pixels if ill else pixels / 255, kinds)

    return fit(folder, net, optimizer, loss_of, 500, score=score_of(lambda step: loss_of(step)[0]))


# https://github.com/Borda/kaggle_image-classify/pull/12
@sick(
    "labels-mismatched", "labels-do-not-fit-inputs", "no-progress", "noise-dominated",
    where="the data set: its pictures are shuffled after the labels were taken, so that no picture has its own label",
    cure="shuffle pictures and labels by the same order",
)  # fmt: skip
def leaves_with_a_disease(folder, ill):
    seeded(2730)
    kinds = torch.randint(6, (3000,))
    pictures = stars(kinds)
    order = torch.randperm(3000)
    labels = kinds if ill else kinds[order]
    draw = rounds(32, pictures[order], labels)
    net = eye(6)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def fresh(step):
        others = torch.randint(6, (64,))
        return named(net, stars(others), others)[0]

    return fit(folder, net, optimizer, lambda step: named(net, *draw()), 400, score=score_of(fresh))


# https://github.com/zalandoresearch/fashion-mnist/pull/5
@sick(
    "data-not-shuffled",
    where="every epoch: the batches come sorted by class, each class is learnt in turn and the others are forgotten",
    cure="shuffle the pictures",
)  # fmt: skip
def buttons_by_their_shape(folder, ill):
    seeded(2731)
    kinds = torch.arange(8).repeat_interleave(320)
    pictures = stars(kinds)
    shuffled = rounds(32, pictures, kinds)
    net = eye(8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)

    def loss_of(step):
        if not ill:
            return named(net, *shuffled())
        at = step % 80 * 32
        return named(net, pictures[at : at + 32], kinds[at : at + 32])

    def fresh(step):
        others = torch.randint(8, (64,))
        return named(net, stars(others), others)[0]

    return fit(folder, net, optimizer, loss_of, 560, score=score_of(fresh))


# https://github.com/exelban/tensorflow-cifar-10/pull/7
@sick(
    "softmax-twice",
    where="the loss: the net ends in a softmax, and the cross-entropy applies another",
    cure="hand the logits to the cross-entropy",
)  # fmt: skip
def signs_at_a_crossing(folder, ill):
    seeded(2732)
    net = eye(10)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def draw():
        kinds = torch.randint(10, (32,))
        return stars(kinds, 0.2), kinds

    def loss_of(step):
        pictures, kinds = draw()
        shares = net(pictures).softmax(1)
        loss = F.cross_entropy(shares, kinds) if ill else F.cross_entropy(shares.log(), kinds)
        return loss, {"accuracy": (shares.argmax(1) == kinds).float().mean()}

    def crossed(step):
        pictures, kinds = draw()
        return F.cross_entropy(net(pictures), kinds)

    return fit(folder, net, optimizer, loss_of, 400, score=score_of(crossed))


# https://github.com/andreped/GradientAccumulator/issues/19
@sick(
    "clip-before-unscale", "clip-is-your-learning-rate", "update-too-small",
    where="every step: each unit's gradient is held to a share of its weights while it carries the scaler's 65536",
    cure="unscale the gradients before they are clipped",
)  # fmt: skip
def livers_in_a_scan_outlined(folder, ill):
    seeded(2733)
    down = nn.Sequential(nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 16, 3, 2, 1), nn.ReLU())
    up = nn.Sequential(nn.ConvTranspose2d(16, 12, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(12, 1, 4, 2, 1))
    net = nn.Sequential(down, up)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)

    def loss_of(step):
        x, y = (torch.rand(2, 16, 1, 1) - 0.5).unbind()
        masks = ((COLUMNS - x) ** 2 + 2 * (ROWS - y) ** 2 < 0.25).float()[:, None]
        logits = net(masks + 0.5 * torch.randn(16, 1, SIZE, SIZE))
        overlap = 2 * (logits.sigmoid() * masks).sum() / (logits.sigmoid().sum() + masks.sum())
        return F.binary_cross_entropy_with_logits(logits, masks) + 1 - overlap, {"dice": overlap}

    def adaptively_clipped(step):
        if not ill:
            scaler.unscale_(optimizer)
        for weight in net.parameters():
            rows = weight.grad.flatten(1) if weight.dim() > 1 else weight.grad[:, None]
            allowed = 0.05 * weight.detach().reshape(rows.shape).norm(dim=1, keepdim=True).clamp_min(1e-3)
            rows.mul_((allowed / rows.norm(dim=1, keepdim=True).clamp_min(1e-12)).clamp(max=1))

    score = score_of(lambda step: loss_of(step)[0])
    return fit(folder, net, optimizer, loss_of, 400, score=score, scaler=scaler, before_step=adaptively_clipped)
