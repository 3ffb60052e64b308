"""Sent healthy trainings, first part: images and tables, as one trains them on any day. An expert is content.

They only count (the group `sent`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import copy

import torch
from nets import batches, classify, digits
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, entropy_of, fit, healthy, score_of, seeded
from unseen.sent.healthy_data import photo, rows_of, table


@healthy(0.5)
def tumours_told_while_the_rate_waits(folder):
    """Epochs over 400 women; a rate that halves where the others' loss has not fallen for three epochs."""
    seeded(1001)
    (x, y), net = table("breast_cancer"), dense(30, 32, 16, 2, norm=nn.BatchNorm1d)
    make = optim.Adam(net.parameters(), 1e-3, weight_decay=1e-4)
    wait = optim.lr_scheduler.ReduceLROnPlateau(make, factor=0.5, patience=3)
    order = torch.randperm(len(x))
    left = []

    def score():
        net.eval()
        with torch.no_grad():
            loss = F.cross_entropy(net(x[order[400:]]), y[order[400:]])
        net.train()
        return float(loss)

    def loss_of(step):
        if not left:
            left.extend(order[:400][torch.randperm(400)].split(40))
        at = left.pop()
        return F.cross_entropy(net(x[at]), y[at])

    def after(step):
        if step % 10 == 9:
            wait.step(score())

    return fit(folder, net, make, loss_of, 300, after_step=after, score=score)


class OfNumbers(nn.Module):
    """A token of each number, one that answers, and attention among them."""

    def __init__(self, numbers, kinds, width=24):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(numbers, width) / width**0.5)
        self.bias = nn.Parameter(torch.zeros(numbers, width))
        self.answer = nn.Parameter(torch.randn(1, 1, width) / width**0.5)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 48, 0.1, "gelu", batch_first=True, norm_first=True) for _ in range(2)
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, kinds))

    def forward(self, x):
        h = torch.cat([self.answer.expand(len(x), -1, -1), x[..., None] * self.weight + self.bias], 1)
        for block in self.blocks:
            h = block(h)
        return self.head(h[:, 0])


@healthy(0.5)
def wine_by_tokens_of_its_numbers(folder):
    seeded(1003)
    net = OfNumbers(13, 3)
    make = optim.AdamW(net.parameters(), 1e-3, weight_decay=1e-5)
    return fit(folder, net, make, entropy_of(net, rows_of("wine")), 200)


class Dense(nn.Module):
    """Each layer hears all that came before it (Huang et al. 2017)."""

    def __init__(self, layers=5, more=6):
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        sizes = [8 + more * i for i in range(layers + 1)]
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(size), nn.ReLU(), nn.Conv2d(size, more, 3, padding=1, bias=False))
            for size in sizes[:-1]
        )
        self.norm, self.head = nn.BatchNorm2d(sizes[-1]), nn.Linear(sizes[-1], 10)

    def forward(self, x):
        h = self.first(x[:, None])
        for layer in self.layers:
            h = torch.cat([h, layer(h)], 1)
        return self.head(F.relu(self.norm(h)).mean((2, 3)))


@healthy(0.5)
def layers_that_hear_all_before(folder):
    seeded(1004)
    net = Dense()
    make = optim.SGD(net.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    plan = optim.lr_scheduler.MultiStepLR(make, [80, 120])
    return fit(folder, net, make, classify(net, batches(32, seed=1004)), 150, schedule=plan)


class Standard(nn.Conv2d):
    """Each filter less its mean, over its deviation, times a gain (Brock et al. 2021)."""

    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.gain = nn.Parameter(torch.ones(self.out_channels, 1, 1, 1))

    def forward(self, x):
        flat = self.weight.flatten(1)
        scale = (flat.var(1) * flat.shape[1] + 1e-4).rsqrt()[:, None, None, None]
        weight = (self.weight - flat.mean(1)[:, None, None, None]) * scale * self.gain
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


@healthy(0.5)
def no_norms_but_standard_weights(folder):
    """The clip is adaptive and ours, the head is left out of it, as in the paper."""
    seeded(1005)
    body = [Standard(1 if i == 0 else 12, 12, 3, padding=1, stride=1 + (i == 2)) for i in range(4)]
    net = nn.Sequential(nn.Unflatten(1, (1, 8)), *(part for conv in body for part in (conv, nn.SiLU())))
    net.extend([nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(48, 10)])
    make = optim.SGD(net.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=2e-5)
    plan = optim.lr_scheduler.CosineAnnealingLR(make, 200)
    return fit(folder, net, make, classify(net, batches(64, seed=1005)), 200, schedule=plan, clip="AGC(0.02)")


class Grid(nn.Module):
    """Numbers on a grid of 15 places whose width is learned (LSQ, Esser et al. 2020)."""

    def __init__(self, width):
        super().__init__()
        self.width = nn.Parameter(torch.tensor(width))

    def forward(self, w):
        slow = 1 / (w.numel() * 7) ** 0.5
        width = (self.width * (1 - slow)).detach() + self.width * slow
        place = (w / width).clamp(-7, 7)
        return (place + (place.round() - place).detach()) * width


@healthy(0.3)
def steps_of_a_grid_that_is_learned(folder):
    """A net is trained as it is, and then goes on with rounded weights at a tenth of the rate."""
    seeded(1006)
    net = dense(64, 48, 48, 10)
    before = optim.Adam(net.parameters(), 3e-3)
    loss_on = classify(nn.Sequential(nn.Flatten(), net), batches(64, seed=1006))
    for step in range(60):
        before.zero_grad()
        loss_on(step).backward()
        before.step()
    for layer in (net[0], net[2], net[4]):
        width = 2 * float(layer.weight.detach().abs().mean()) / 7**0.5
        nn.utils.parametrize.register_parametrization(layer, "weight", Grid(width))
    return fit(folder, net, optim.Adam(net.parameters(), 3e-4), lambda step: loss_on(60 + step), 300)


@healthy(0.3)
def names_given_by_itself_when_sure(folder):
    """Sixty named digits; of all others what is named surely is learned under more noise (Sohn et al. 2020)."""
    seeded(1007)
    (x, y), net = digits(), nn.Sequential(nn.Flatten(), dense(64, 96, 96, 10))
    mean_net = copy.deepcopy(net)
    make = optim.SGD(net.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)

    def loss_of(step):
        named, other = torch.randint(60, (32,)), torch.randint(60, 1500, (128,))
        loss = F.cross_entropy(net(x[named] + 0.05 * torch.randn(32, 8, 8)), y[named])
        with torch.no_grad():
            sure, found = net(x[other] + 0.05 * torch.randn(128, 8, 8)).softmax(1).max(1)
        hard = x[other] * (torch.rand(128, 8, 8) > 0.25) + 0.15 * torch.randn(128, 8, 8)
        errors = F.cross_entropy(net(hard), found, reduction="none")
        return loss + (errors * (sure > 0.95)).mean(), {"mask": (sure > 0.95).float().mean()}

    def after(step):
        with torch.no_grad():
            for p, q in zip(mean_net.parameters(), net.parameters(), strict=True):
                p.lerp_(q, 0.02)

    def score():
        with torch.no_grad():
            return float((mean_net(x[1500:]).argmax(1) != y[1500:]).float().mean())

    return fit(folder, net, make, loss_of, 500, after_step=after, score=score)


@healthy(0.5)
def boxes_found_by_their_centres(folder):
    """A map of centres by a focal loss, and height and width where a centre is (Zhou et al. 2019)."""
    seeded(1009)
    net = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 24, 3, padding=1)),
        *(nn.GroupNorm(4, 24), nn.ReLU(), nn.Conv2d(24, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 3, 1)),
    )
    nn.init.zeros_(net[-1].bias)
    net[-1].bias.data[0] = -2.19
    line = torch.arange(24)
    tens = torch.arange(12)

    def loss_of(step):
        middle, half = torch.randint(4, 20, (16, 2)), torch.randint(2, 5, (16, 2))
        inside = [(line - middle[:, i, None]).abs() <= half[:, i, None] for i in (0, 1)]
        image = (inside[0][:, :, None] & inside[1][:, None]).float()[:, None] + 0.2 * torch.randn(16, 1, 24, 24)
        far = [(tens - middle[:, i, None] // 2).square() for i in (0, 1)]
        heat = (-(far[0][:, :, None] + far[1][:, None]) / 2.0).exp()
        out = net(image)
        p = out[:, 0].sigmoid().clamp(1e-4, 1 - 1e-4)
        hit = heat == 1
        focal = torch.where(hit, (1 - p) ** 2 * p.log(), (1 - heat) ** 4 * p**2 * (1 - p).log())
        sizes = out[torch.arange(16), 1:, middle[:, 0] // 2, middle[:, 1] // 2]
        return -focal.sum() / 16 + 0.1 * F.l1_loss(sizes, half.float())

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 200)


class Sharper(nn.Module):
    """Blocks without norms, and places made of channels (EDSR, Lim et al. 2017)."""

    def __init__(self, width=16):
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1))
            for _ in range(3)
        )
        self.last = nn.Sequential(nn.Conv2d(width, 12, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, x):
        h = first = self.first(x)
        for block in self.blocks:
            h = h + 0.1 * block(h)
        return self.last(h + first)


@healthy(0.5)
def photo_made_sharper(folder):
    seeded(1010)
    net, image = Sharper(), photo(96, 128)
    make = optim.Adam(net.parameters(), 1e-3)
    plan = optim.lr_scheduler.StepLR(make, 80, 0.5)

    def loss_of(step):
        at = torch.stack([torch.randint(96 - 16, (12,)), torch.randint(128 - 16, (12,))], 1).tolist()
        sharp = torch.stack([image[:, i : i + 16, j : j + 16] for i, j in at])
        return F.l1_loss(net(F.avg_pool2d(sharp, 2) - 0.5), sharp - 0.5)

    return fit(folder, net, make, loss_of, 200, schedule=plan, score=score_of(loss_of))
