"""Six sick trainings that people asked about: two kinds of masks, an enlarger, leaves, a spring and brakes."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, fit, seeded, sick
from unseen.tasks import held_out, rounds

import gradwatch

# ------------------------------------------------------------------------------------------------------------- masks


def blobs(count, size, noise):
    """Noisy pictures of one round thing each, and the mask of it, nought and one; `[count, 1, size, size]`."""
    at, centre = torch.arange(float(size)), size * (0.25 + 0.5 * torch.rand(2, count, 1, 1))
    radius = size * (0.1 + 0.15 * torch.rand(count, 1, 1))
    away = ((at[:, None] - centre[0]).square() + (at - centre[1]).square()).sqrt()
    mask = (away < radius).float()[:, None]
    return mask + noise * torch.randn_like(mask), mask


def double(inward, outward):
    return nn.Sequential(
        nn.Conv2d(inward, outward, 3, padding=1), nn.BatchNorm2d(outward), nn.ReLU(),
        nn.Conv2d(outward, outward, 3, padding=1), nn.BatchNorm2d(outward), nn.ReLU(),
    )  # fmt: skip


class UNet(nn.Module):
    """Down once, up once, and a way across; logits."""

    def __init__(self, width=8):
        super().__init__()
        self.inside, self.down, self.up = double(1, width), double(width, 2 * width), double(3 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        near = self.inside(x)
        far = F.interpolate(self.down(F.max_pool2d(near, 2)), scale_factor=2)
        return self.out(self.up(torch.cat([near, far], 1)))


def dice(share, mask):
    return (2 * (share * mask).sum() + 1) / (share.sum() + mask.sum() + 1)


# https://github.com/milesial/Pytorch-UNet/issues/78
@sick(
    "targets-out-of-range",
    "negative-loss",
    "targets-not-normalised",
    "saturated",
    where="the loss: masks of 0 and 255 in a binary cross-entropy, far below nought after a few steps",
    cure="divide the masks by 255",
)
def cars_cut_out_of_photographs(folder, ill):
    seeded(2492)
    draw, (x_test, mask_test) = rounds(8, *blobs(600, 24, 0.5)), blobs(100, 24, 0.5)
    net = UNet()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)

    def loss_of(step):
        x, mask = draw()
        share, aim = net(x).sigmoid().clamp(1e-12, 1 - 1e-7), mask * 255 if ill else mask
        loss = -(aim * share.log() + (1 - aim) * (1 - share).log()).mean()
        return loss, {"dice": dice(share.round(), mask)}

    score = held_out(net, lambda: 1 - dice(net(x_test).sigmoid().round(), mask_test))
    return fit(folder, net, optimizer, loss_of, 250, score=score)


# https://github.com/bigmb/Unet-Segmentation-Pytorch-Nest-of-Unets/issues/18
@sick(
    "targets-out-of-range",
    "negative-loss",
    where="the loss: masks of -1 and 1 in a binary cross-entropy; it falls below nought and has no end",
    cure="normalise the pictures only; masks stay 0 and 1",
)
def nuclei_under_a_microscope(folder, ill):
    seeded(2493)
    draw, (x_test, mask_test) = rounds(8, *blobs(600, 20, 1.7)), blobs(100, 20, 1.7)
    net = UNet(10)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def loss_of(step):
        x, mask = draw()
        aim = (mask - 0.5) / 0.5 if ill else mask
        found = net(x)
        return F.binary_cross_entropy_with_logits(found, aim), {"dice": dice(found.sigmoid().round(), mask)}

    score = held_out(net, lambda: 1 - dice(net(x_test).sigmoid().round(), mask_test))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


# ------------------------------------------------------------------------------------------------------ two networks


class Enlarger(nn.Module):
    """What is smoothly enlarged, and what was lost."""

    def __init__(self, width=24):
        super().__init__()
        self.lost = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.PReLU(), nn.Conv2d(width, width, 3, padding=1), nn.PReLU(),
            nn.Conv2d(width, 4, 3, padding=1), nn.PixelShuffle(2),
        )  # fmt: skip

    def forward(self, x):
        return F.interpolate(x, scale_factor=2) + self.lost(x)


def descend(net, optimizer, schedule, loss):
    """One step of one of the two nets."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()


# https://github.com/Lornatang/SRGAN-PyTorch/issues/1
@sick(
    "schedule-too-short",
    "update-too-small",
    where="the rates of both nets are a billionth after 90 of 400 steps; nothing moves from there on",
    cure="step the schedules once an epoch, or count their steps in batches",
)
def faces_enlarged_against_a_judge(folder, ill):
    seeded(2494)
    epochs, batches, steps = 20, 20, 400
    hats = F.interpolate(torch.rand(6, 1, 6, 6), size=(16, 16), mode="bicubic")

    def faces(count):
        weight = torch.rand(count, 6).pow(2)
        large = torch.einsum("nk,kchw->nchw", weight / weight.sum(1, keepdim=True), hats)
        return F.avg_pool2d(large, 2), large

    draw, (small, large) = rounds(16, *faces(320)), faces(200)
    make = Enlarger()
    judge = nn.Sequential(
        nn.Conv2d(1, 12, 4, stride=2, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(12, 24, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(384, 1),
    )  # fmt: skip
    of_make, of_judge = (torch.optim.Adam(net.parameters(), 1e-3) for net in (make, judge))
    every = epochs // 2 if ill else epochs // 2 * batches
    for_make, for_judge = (torch.optim.lr_scheduler.StepLR(of, every, gamma=0.1) for of in (of_make, of_judge))
    score = held_out(make, lambda: F.mse_loss(make(small), large))
    first = score()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(make, of_make)}
    w_judge = gradwatch.watch(judge, of_judge, name="D", **options)
    w_make = gradwatch.watch(make, of_make, name="G", run=w_judge, **options)
    with w_judge, w_make:
        for _ in range(steps):
            x, y = draw()
            made = make(x)
            judged = F.softplus(-judge(y)).mean() + F.softplus(judge(made.detach())).mean()
            descend(judge, of_judge, for_judge, judged)
            w_judge.log(loss=judged)
            error, fooled = F.mse_loss(made, y), F.softplus(-judge(made)).mean()
            descend(make, of_make, for_make, error + 1e-3 * fooled)
            w_make.log(loss=error + 1e-3 * fooled, mse=error)
    return Outcome(gradwatch.open_history(w_judge.dir.parent), first, score())


# ------------------------------------------------------------------------------------------------------------ leaves


def begun(net, ill):
    """The weights begin uniform after Xavier's rule, or as narrow as those of the large net that was the model."""
    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            inward = module.weight[0].numel()
            if ill:
                nn.init.uniform_(module.weight, -((2.34 / inward) ** 0.5), (2.34 / inward) ** 0.5)
            else:
                nn.init.normal_(module.weight, 0, 0.4 / inward**0.5)
            nn.init.zeros_(module.bias)
    return net


# https://github.com/apache/mxnet/issues/850
@sick(
    "bad-initialisation",
    "inputs-not-normalised",
    "lr-too-high",
    where="all layers in the first steps: the loss begins at ten times that of a guess; then it is that of a guess",
    cure="begin with narrower weights, drawn from a normal",
)
def leaves_of_a_herbarium(folder, ill):
    seeded(2495)
    shapes = F.interpolate(torch.rand(8, 1, 5, 5), size=(16, 16), mode="bilinear")

    def picked(count):
        kind = torch.randint(8, (count,))
        return 255 * (shapes[kind] + 0.15 * torch.randn(count, 1, 16, 16)).clamp(0, 1) - 128, kind

    draw, test = rounds(64, *picked(2000)), picked(400)
    net = begun(nn.Sequential(
        nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(24, 24, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(384, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(64, 8),
    ), ill)  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9, weight_decay=1e-4)

    def loss_of(step):
        x, y = draw()
        found = net(x)
        return F.cross_entropy(found, y), {"accuracy": (found.argmax(1) == y).float().mean()}

    score = held_out(net, lambda: (net(test[0]).argmax(1) != test[1]).float().mean())
    return fit(folder, net, optimizer, loss_of, 250, score=score)


# -------------------------------------------------------------------------------------------------------- regression


def glorot(net):
    """The initial weights that Keras gives."""
    for module in net.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    return net


def unexplained(net, x, y, unit):
    """`score()`: the share of the variance of `y` that the net, which answers in `unit`, does not explain."""
    return held_out(net, lambda: (net(x) * unit - y).square().mean() / y.var())


# https://stackoverflow.com/questions/52800582/why-do-i-fail-to-predict-y-x4-with-keras-y-x3-works
@sick(
    "targets-not-normalised",
    "inputs-not-normalised",
    "saturated",
    where="the loss is about 1e15; the sigmoids of the first layer, which sees up to 100, are at their ends",
    cure="divide the inputs (by 58) and the targets (by 2.7e7) by their spread",
)
def energy_of_a_stiffening_spring(folder, ill):
    seeded(2496)
    reach, unit = (1.0, 1.0) if ill else (58.0, 2.7e7)

    def stretched(count):
        length = 200 * torch.rand(count, 1) - 100
        return length / reach, length.pow(4)

    (x, y), test = stretched(4000), stretched(500)
    draw = rounds(32, x, y / unit)
    net = glorot(nn.Sequential(nn.Linear(1, 50), nn.Sigmoid(), nn.Linear(50, 50), nn.ELU(), nn.Linear(50, 1)))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def loss_of(step):
        length, energy = draw()
        return F.mse_loss(net(length), energy)

    return fit(folder, net, optimizer, loss_of, 900, score=unexplained(net, *test, unit))


# https://stats.stackexchange.com/questions/418955/why-is-deep-neural-net-with-linear-activation-diverges
@sick(
    "targets-not-normalised",
    "lr-too-high",
    "exploding",
    "nonfinite",
    where="both layers, from the first steps on: way out to infinity",
    cure="scale the targets as the inputs are",
)
def way_that_a_car_brakes(folder, ill):
    seeded(2497)
    speed = torch.arange(100.0)[:, None]
    way = speed.square() + 3
    x, unit = (speed - speed.mean()) / speed.std(), 1.0 if ill else float(way.std())
    middle = 0.0 if ill else float(way.mean())
    draw = rounds(32, x, (way - middle) / unit)
    net = glorot(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)))
    optimizer = torch.optim.SGD(net.parameters(), 0.01)

    def loss_of(step):
        at, metres = draw()
        return F.mse_loss(net(at), metres)

    return fit(folder, net, optimizer, loss_of, 400, score=unexplained(net, x, way - middle, unit))
