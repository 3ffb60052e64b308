"""Sent healthy trainings, third part: tuning, likeness, images that are made. An expert is content with each.

They only count (the group `sent`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import copy
import math

import torch
from nets import ALPHABET, Transformer, batches, classify, digits, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded
from unseen.sent.healthy_data import photo

# -------------------------------------------------------------------------------------------------------------- tuning


def reader(seed, steps=150):
    """A net that has read the text."""
    net = Transformer(32, 2, seed=seed)
    make, loss_on = optim.Adam(net.parameters(), 3e-3), predict(net, pieces(16, seed=seed))
    for step in range(steps):
        make.zero_grad()
        loss_on(step).backward()
        make.step()
    return net


@healthy(0.3)
def answers_alone_are_learned(folder):
    """A net that has read a text is asked for the last letter of every word; the question counts nothing."""
    net = reader(1021)
    make = optim.AdamW(net.parameters(), 5e-4, weight_decay=0.0)
    plan = optim.lr_scheduler.LambdaLR(make, lambda step: min((step + 1) / 10, (200 - step) / 190))
    gap = ALPHABET.index(" ")

    def loss_of(step):
        x, _ = pieces(16, length=16, seed=1021)(step)
        last = torch.stack([row[:-1][row[1:] == gap][:2] for row in x])
        whole = torch.cat([x, torch.full((16, 1), ALPHABET.index(";")), last], 1)
        names = whole[:, 1:].clone()
        names[:, :16] = -100
        out = net(whole[:, :-1])
        return F.cross_entropy(out.flatten(0, 1), names.flatten(), ignore_index=-100)

    return fit(folder, net, make, loss_of, 200, schedule=plan, clip="ClipByGlobalNorm(1.0)")


@healthy(0.3)
def answers_ranked_by_a_tuned_reader(folder):
    """Which of two texts is whole, which has letters out of place? The first loss is the logarithm of two."""
    net = reader(1022)
    net.head = nn.Linear(32, 1, bias=False)
    nn.init.normal_(net.head.weight, std=1 / 33**0.5)
    make = optim.AdamW(net.parameters(), 5e-4, weight_decay=0.01)
    plan = optim.lr_scheduler.CosineAnnealingLR(make, 150)

    def loss_of(step):
        good, _ = pieces(24, seed=1022)(step)
        wrong = torch.where(torch.rand(good.shape) < 0.2, torch.randint(len(ALPHABET), good.shape), good)
        better, worse = net(good).mean((1, 2)), net(wrong).mean((1, 2))
        return -F.logsigmoid(better - worse).mean(), {"accuracy": (better > worse).float().mean()}

    return fit(folder, net, make, loss_of, 150, schedule=plan, clip="ClipByGlobalNorm(1.0)")


class Turned(nn.Module):
    """A layer at rest whose directions move in few ways, and the lengths of its rows (DoRA, Liu et al. 2024)."""

    def __init__(self, layer, rank=4):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(layer.out_features, rank))
        self.length = nn.Parameter(layer.weight.norm(dim=1, keepdim=True).detach())

    def forward(self, x):
        way = self.layer.weight + 2 * self.b @ self.a
        return F.linear(x, self.length * way / way.norm(dim=1, keepdim=True).detach(), self.layer.bias)


@healthy(0.3)
def magnitudes_and_directions_tuned_apart(folder):
    """A net that knows digits learns them mirrored."""
    seeded(1023)
    net = nn.Sequential(nn.Flatten(), dense(64, 64, 64, 10))
    make, loss_on = optim.Adam(net.parameters(), 3e-3), classify(net, batches(64, seed=1023))
    for step in range(100):
        make.zero_grad()
        loss_on(step).backward()
        make.step()
    for i in (0, 2, 4):
        net[1][i] = Turned(net[1][i])
    tuned = [p for p in net.parameters() if p.requires_grad]
    batch = batches(64, seed=1024)

    def loss_of(step):
        x, y = batch(step)
        return F.cross_entropy(net(x.flip(2)), y)

    return fit(folder, net, optim.AdamW(tuned, 2e-3, weight_decay=0.0), loss_of, 250)


@healthy(0.3)
def two_passes_that_agree(folder):
    """Every row goes twice through other units, and both answers are to be alike (R-Drop, Liang et al. 2021)."""
    from schedulefree import AdamWScheduleFree

    seeded(1025)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Dropout(0.3), nn.Linear(96, 10))
    batch = batches(48, seed=1025)

    def loss_of(step):
        x, y = batch(step)
        logs = net(torch.cat([x, x])).log_softmax(1)
        one, other = logs.chunk(2)
        apart = F.kl_div(one, other, log_target=True, reduction="batchmean")
        apart = apart + F.kl_div(other, one, log_target=True, reduction="batchmean")
        return F.nll_loss(logs, torch.cat([y, y])) + apart / 2

    make = AdamWScheduleFree(net.parameters(), 5e-3, warmup_steps=20)
    make.train()
    return fit(folder, net, make, loss_of, 300)


# ---------------------------------------------------------------------------------------------- likeness and its likes


@healthy(0.3)
def proxies_for_each_kind(folder):
    """A proxy for each digit attracts and repels (Kim et al. 2020), at a hundred times the rate of the body."""
    seeded(1028)
    body, proxies = nn.Sequential(nn.Flatten(), dense(64, 64, 16)), nn.Embedding(10, 16)
    nn.init.kaiming_normal_(proxies.weight, mode="fan_out")
    net, batch = nn.ModuleDict({"body": body, "proxies": proxies}), batches(64, seed=1028)
    groups = [{"params": body.parameters()}, {"params": proxies.parameters(), "lr": 3e-2}]

    def loss_of(step):
        x, y = batch(step)
        near = F.normalize(body(x), dim=1) @ F.normalize(proxies.weight, dim=1).T
        same = F.one_hot(y, 10).bool()
        pull = (-32 * (near - 0.1)).exp().where(same, 0.0).sum(0).log1p()[same.any(0)].mean()
        return pull + (32 * (near + 0.1)).exp().where(~same, 0.0).sum(0).log1p().mean()

    return fit(folder, net, optim.AdamW(groups, 3e-4, weight_decay=1e-4), loss_of, 300)


@healthy(0.3)
def queue_of_others_that_fills_up(folder):
    """MoCo (He et al. 2020): the queue is empty at first, so the loss begins near zero and rises as others come."""
    seeded(1029)
    net, x = nn.Sequential(nn.Flatten(), dense(64, 96, 24, norm=nn.BatchNorm1d)), digits()[0]
    slow, queue = copy.deepcopy(net), []

    def view(images):
        row, column = torch.randint(-1, 2, (2,)).tolist()
        return images.roll((row, column), (1, 2)) * (torch.rand_like(images) > 0.2) * (0.6 + 0.8 * torch.rand(1))

    def loss_of(step):
        images = x[torch.randint(len(x), (24,))]
        with torch.no_grad():
            key = F.normalize(slow(view(images)), dim=1)
        query = F.normalize(net(view(images)), dim=1)
        others = query @ torch.cat(queue).T if queue else query.new_zeros(24, 0)
        queue.append(key)
        del queue[:-40]
        return F.cross_entropy(torch.cat([(query * key).sum(1, keepdim=True), others], 1) / 0.1, torch.zeros(24).long())

    def after(step):
        with torch.no_grad():
            for p, q in zip(slow.parameters(), net.parameters(), strict=True):
                p.lerp_(q, 0.005)

    def score():
        with torch.no_grad():
            one, other = (F.normalize(net(view(x[:400])), dim=1) for _ in range(2))
            return float(F.cross_entropy(one @ other.T / 0.1, torch.arange(400)))

    make = optim.SGD(net.parameters(), 0.03, momentum=0.9, weight_decay=1e-4)
    return fit(folder, net, make, loss_of, 500, after_step=after, score=score)


# ------------------------------------------------------------------------------------------------ images that are made


@healthy(0.2)
def sum_of_all_bits(folder):
    """The autoencoder of PyTorch's examples: errors and divergence are summed over pixels and rows."""
    seeded(1030)
    net = nn.ModuleDict({"code": dense(64, 64, 16), "image": dense(8, 64, 64)})
    batch = batches(128, seed=1030)

    def loss_of(step):
        x = batch(step)[0].flatten(1)
        middle, spread = net["code"](x).chunk(2, 1)
        out = net["image"](middle + torch.randn_like(middle) * (spread / 2).exp())
        apart = -0.5 * (1 + spread - middle.square() - spread.exp()).sum()
        return F.binary_cross_entropy_with_logits(out, x, reduction="sum") + apart

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 400)


class Cleaner(nn.Module):
    """The noise in an image, told its time and its name, if it has one."""

    def __init__(self, width=24):
        super().__init__()
        self.told, self.name = nn.Linear(2, width), nn.Embedding(11, width)
        self.first, self.last = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, 1, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)) for _ in range(3)
        )

    def forward(self, x, t, y):
        h = self.first(x[:, None])
        seen = (self.told(torch.stack([t, 1 - t], 1)) + self.name(y))[..., None, None]
        for block in self.blocks:
            h = h + block(h + seen)
        return self.last(F.silu(h))[:, 0]


@healthy(0.3)
def digits_out_of_noise_by_their_names(folder):
    """What is asked for is a blend of noise and image (v); a tenth of the names is hidden (Ho and Salimans 2022)."""
    seeded(1031)
    net, batch = Cleaner(), batches(32, seed=1031)
    make = optim.AdamW(net.parameters(), 2e-3)
    plan = optim.lr_scheduler.LinearLR(make, 0.05, 1.0, 20)

    def loss_of(step):
        x, y = batch(step)
        t, noise = torch.rand(32), torch.randn(32, 8, 8)
        a, b = (t * math.pi / 2).cos()[:, None, None], (t * math.pi / 2).sin()[:, None, None]
        x = 2 * x - 1
        name = y.where(torch.rand(32) > 0.1, 10)
        return F.mse_loss(net(a * x + b * noise, t, name), a * noise - b * x)

    return fit(folder, net, make, loss_of, 200, schedule=plan, clip="ClipByGlobalNorm(1.0)")


class Field(nn.Module):
    """What is where, in waves of the place: a density and a shade."""

    def __init__(self):
        super().__init__()
        self.net = dense(20, 64, 64, 2)

    def forward(self, at):
        waves = at[..., None] * math.pi * 2.0 ** torch.arange(5)
        out = self.net(torch.cat([waves.sin(), waves.cos()], -1).flatten(-2))
        return F.softplus(out[..., 0]), out[..., 1].sigmoid()


@healthy(0.5)
def field_seen_along_rays(folder):
    """Shades of a flat world as seen along rays through it (NeRF, Mildenhall et al. 2020)."""
    seeded(1032)
    net, t = Field(), torch.linspace(0, 2.4, 32)
    make = optim.Adam(net.parameters(), 5e-3)

    def loss_of(step):
        angle, side = 6.2832 * torch.rand(96), 1.2 * torch.rand(96) - 0.6
        way = torch.stack([angle.cos(), angle.sin()], 1)
        at = -1.2 * way + side[:, None] * way.flip(1) * torch.tensor([-1.0, 1.0])
        at = at[:, None] + t[:, None] * way[:, None]
        seen = []
        for thick, shade in (net(at), true(at)):
            through = (-thick * 0.08).exp()
            left = torch.cat([torch.ones(96, 1), through[:, :-1]], 1).cumprod(1)
            seen.append((left * (1 - through) * shade).sum(1))
        return F.mse_loss(*seen)

    def true(at):
        one, other = (at - 0.3).norm(dim=-1) < 0.25, (at + 0.3).norm(dim=-1) < 0.3
        return 30.0 * (one | other), torch.where(one, 0.9, 0.4)

    plan = optim.lr_scheduler.ExponentialLR(make, 0.995)
    return fit(folder, net, make, loss_of, 300, schedule=plan, score=score_of(loss_of))


class Hashed(nn.Module):
    """Rows of tables at the corners of finer and finer grids, by hashes (Müller et al. 2022), and a small net."""

    def __init__(self, levels=6, rows=512):
        super().__init__()
        self.tables = nn.ParameterList(1e-4 * (2 * torch.rand(rows, 2) - 1) for _ in range(levels))
        self.net = dense(2 * levels, 32, 3)

    def forward(self, at):
        seen = []
        for level, rows in enumerate(self.tables):
            place = at * 4 * 1.6**level
            low = place.long()
            part, found = place - low, 0
            for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
                share = (part[:, 0] if i else 1 - part[:, 0]) * (part[:, 1] if j else 1 - part[:, 1])
                where = ((low[:, 0] + i) ^ ((low[:, 1] + j) * 2654435761)) % len(rows)
                found = found + share[:, None] * rows[where]
            seen.append(found)
        return self.net(torch.cat(seen, 1))


@healthy(0.5)
def picture_from_hashed_grids(folder):
    """Adam as in the paper, with an eps of 1e-15 and little memory of squares."""
    seeded(1033)
    net, image = Hashed(), photo(48, 64)
    make = optim.Adam(net.parameters(), 1e-2, betas=(0.9, 0.99), eps=1e-15)

    def loss_of(step):
        at = torch.rand(512, 2)
        row, column = (at * torch.tensor([48, 64])).long().T
        return F.mse_loss(net(at).sigmoid(), image[:, row, column].T)

    return fit(folder, net, make, loss_of, 400)
