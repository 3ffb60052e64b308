"""Sound trainings of an ordinary make: crevasses, abbreviations, a greenhouse, bird songs, a bakery."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds

# ----------------------------------------------------------------------------------------------------------- crevasses


def glaciers(rows, size=16):
    """Ice from above with one to three crevasses: the picture, the cells of a 4 x 4 grid that hold one, their boxes."""
    at = torch.arange(size).float()
    holds, box = torch.zeros(rows, 4, 4), torch.zeros(rows, 4, 4, 4)
    ice = 0.2 * torch.randn(rows, size, size)
    for row in range(rows):
        for cell in torch.randperm(16)[: 1 + int(torch.randint(3, ()))].tolist():
            offset, half = torch.rand(2), 0.7 + 1.3 * torch.rand(2)
            i, j = divmod(cell, 4)
            middle = 4 * (offset + torch.tensor([i, j]))
            inside = [torch.sigmoid(3 * (half[k] - (at + 0.5 - middle[k]).abs())) for k in range(2)]
            ice[row] -= inside[0][:, None] * inside[1]
            holds[row, i, j], box[row, i, j] = 1.0, torch.cat([offset, half.log()])
    return ice[:, None], holds, box


def focal(out, wanted, alpha=0.25, gamma=2.0):
    p = out.sigmoid()
    right = torch.where(wanted > 0, p, 1 - p)
    weight = torch.where(wanted > 0, alpha, 1 - alpha) * (1 - right) ** gamma
    return (weight * F.binary_cross_entropy_with_logits(out, wanted, reduction="none")).sum()


@healthy()
def crevasses_in_a_glacier(folder, steps=500):
    seeded(2425)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 24, 3, padding=1), nn.GroupNorm(4, 24), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(24, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.Conv2d(32, 5, 1),
    )  # fmt: skip
    nn.init.normal_(net[-1].weight, 0, 0.01)
    net[-1].bias.data = torch.tensor([-math.log(0.9 / 0.1), 0.0, 0.0, 0.0, 0.0])
    draw, new = rounds(32, *glaciers(1600)), glaciers(300)
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9, weight_decay=1e-4)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.02, total_iters=50)
    cuts = torch.optim.lr_scheduler.MultiStepLR(optimizer, [350, 450], 0.1)

    def terms(ice, holds, box):
        out = net(ice).permute(0, 2, 3, 1)
        found = holds > 0
        boxes = F.smooth_l1_loss(out[..., 1:][found], box[found], beta=0.1, reduction="sum") / found.sum()
        return focal(out[..., 0], holds) / found.sum(), boxes

    def loss_of(step):
        kind, boxes = terms(*draw())
        return kind + boxes, {"classification": kind, "bbox_regression": boxes}

    def after_step(step):
        warm.step()
        cuts.step()

    score = held_out(net, lambda: sum(terms(*new)))
    return fit(folder, net, optimizer, loss_of, steps, score=score, after_step=after_step)


# ------------------------------------------------------------------------------------------------------- abbreviations


def written_lines(rows, height=12, width=24):
    """A line of minims on parchment, with a bar where something is left out: the picture and the bars."""
    y, x = torch.arange(height).float()[:, None], torch.arange(width).float()
    phase, shade = 6.2832 * torch.rand(rows, 1, 1), 0.5 + 0.5 * torch.rand(rows, 1, 1)
    minims = ((1.3 * x + phase).sin() > 0.3).float() * ((y > 4) & (y < 10)).float()
    left, long, top = (lo + (hi - lo) * torch.rand(rows, 1, 1) for lo, hi in ((1, 16), (4, 8), (0.5, 3)))
    bars = (x >= left) & (x <= left + long) & ((y - top - 0.1 * (x - left) * torch.randn(rows, 1, 1)).abs() < 0.8)
    ink = torch.maximum(minims, bars.float()) * shade
    return (1 - ink + 0.2 * torch.randn(rows, height, width))[:, None], bars.float()[:, None]


def twice(inner, outer):
    return nn.Sequential(
        nn.Conv2d(inner, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(),
        nn.Conv2d(outer, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(),
    )  # fmt: skip


class Unet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.inc, self.down, self.deep = twice(1, width), twice(width, 2 * width), twice(2 * width, 2 * width)
        self.up1, self.up2, self.outc = twice(4 * width, width), twice(2 * width, width), nn.Conv2d(width, 1, 1)

    def forward(self, x):
        fine = self.inc(x)
        middle = self.down(F.max_pool2d(fine, 2))
        deep = self.deep(F.max_pool2d(middle, 2))
        out = self.up1(torch.cat([middle, F.interpolate(deep, scale_factor=2.0)], 1))
        return self.outc(self.up2(torch.cat([fine, F.interpolate(out, scale_factor=2.0)], 1)))


@healthy()
def abbreviations_in_a_charter(folder, steps=220):
    seeded(2426)
    net, draw, new = Unet(), rounds(16, *written_lines(1600)), written_lines(200)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    def terms(page, bars):
        with torch.autocast("cpu", torch.bfloat16):
            out = net(page)
        share = out.float().sigmoid()
        overlap = 2 * (share * bars).sum((1, 2, 3)) + 1
        dice = 1 - (overlap / (share.sum((1, 2, 3)) + bars.sum((1, 2, 3)) + 1)).mean()
        return F.binary_cross_entropy_with_logits(out.float(), bars), dice

    def loss_of(step):
        entropy, dice = terms(*draw())
        return entropy + dice, {"bce": entropy, "dice": 1 - dice}

    score = held_out(net, lambda: sum(terms(*new)))
    before_step = clipped(net, 1.0)
    return fit(folder, net, optimizer, loss_of, steps, score=score, before_step=before_step, schedule=schedule)


# ---------------------------------------------------------------------------------------------------------- greenhouse


def climate(rows, gain, hours=16):
    """Outdoor heat, sun, vents and heating by the hour, and how warm it gets inside a house of some `gain`."""
    t = torch.arange(hours) / 4 + 6.2832 * torch.rand(rows, 1)
    drivers = torch.stack([t.sin() + torch.randn(rows, 1), t.cos().clamp(min=0), *torch.rand(2, rows, hours)], 2)
    inside, warm = torch.randn(rows), []
    for hour in range(hours):
        out, sun, vent, heat = drivers[:, hour].unbind(1)
        inside = inside + gain[0] * vent * (out - inside) + gain[1] * sun + gain[2] * heat - gain[3]
        warm.append(inside)
    seen = torch.cat([drivers, torch.stack(warm, 1)[..., None].roll(1, 1) * (torch.arange(hours) > 0)[:, None]], 2)
    return seen + 0.02 * torch.randn_like(seen), torch.stack(warm, 1)


class Adapted(nn.Module):
    """A layer that is held, with a way of low rank beside it."""

    def __init__(self, base, rank=4, alpha=8):
        super().__init__()
        self.base, self.scaling = base.requires_grad_(False), alpha / rank
        self.lora_a = nn.Linear(base.in_features, rank, bias=False)
        self.lora_b = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x):
        return self.base(x) + self.scaling * self.lora_b(self.lora_a(x))


class House(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.embed, self.place, self.head = nn.Linear(5, width), nn.Embedding(16, width), nn.Linear(width, 1)
        self.layers = nn.ModuleList(self.layer(width) for _ in range(2))

    @staticmethod
    def layer(width):
        maps = {name: nn.Linear(width, width) for name in ("q", "k", "v", "o", "up", "down")}
        return nn.ModuleDict({**maps, "norm1": nn.LayerNorm(width), "norm2": nn.LayerNorm(width)})

    def forward(self, x):
        x = self.embed(x) + self.place.weight
        for layer in self.layers:
            seen = layer["norm1"](x)
            q, k, v = (layer[name](seen).unflatten(2, (4, -1)).transpose(1, 2) for name in "qkv")
            x = x + layer["o"](F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
            x = x + layer["down"](F.gelu(layer["up"](layer["norm2"](x))))
        return self.head(x)[..., 0]


@healthy()
def greenhouse_moved_to_the_north(folder, steps=350, warm=20):
    seeded(2427)
    south, north = [0.2, 0.5, 0.1, 0.1], [0.5, 0.2, 0.5, 0.3]
    net, known = House(), rounds(32, *climate(3200, south))
    learning = torch.optim.AdamW(net.parameters(), 2e-3)
    for _ in range(250):
        seen, inside = known()
        learning.zero_grad()
        F.mse_loss(net(seen), inside).backward()
        learning.step()
    net.requires_grad_(False)
    for layer in net.layers:
        for name in ("q", "v", "up", "down"):
            layer[name] = Adapted(layer[name])
    draw, (seen_new, inside_new) = rounds(32, *climate(1600, north)), climate(300, north)
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 3e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, 0.5 + 0.5 * math.cos(math.pi * step / steps))
    )

    def loss_of(step):
        seen, inside = draw()
        return F.mse_loss(net(seen), inside)

    score = held_out(net, lambda: F.mse_loss(net(seen_new), inside_new))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


# --------------------------------------------------------------------------------------------------------------- songs


def songs(rows, habits):
    """Songs of five species, six to twenty syllables long: which sound follows which is the species' own."""
    sung = []
    for bird in torch.randint(5, (rows,)).tolist():
        syllables = [int(torch.randint(8, ()))]
        for _ in range(5 + int(torch.randint(15, ()))):
            syllables.append(int(torch.multinomial(habits[bird, syllables[-1]], 1)))
        sung.append((torch.tensor(syllables), bird))
    return sung


@healthy()
def songs_of_birds_at_dawn(folder, steps=350):
    seeded(2428)
    habits = torch.distributions.Dirichlet(torch.full((8,), 0.4)).sample((5, 8))
    heard, new, calls = songs(1200, habits), songs(250, habits), torch.randn(8, 10)
    lstm = nn.LSTM(10, 32, batch_first=True, bidirectional=True)
    net = nn.ModuleDict({"lstm": lstm, "head": nn.Sequential(nn.Dropout(0.2), nn.Linear(64, 5))})
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 120, 0.5)

    def loss(batch):
        lengths = torch.tensor([len(song) for song, _ in batch])
        sounds = pad_sequence([calls[song] + 0.3 * torch.randn(len(song), 10) for song, _ in batch], batch_first=True)
        _, (last, _) = lstm(pack_padded_sequence(sounds, lengths, batch_first=True, enforce_sorted=False))
        return F.cross_entropy(net["head"](torch.cat([last[0], last[1]], 1)), torch.tensor([bird for _, bird in batch]))

    def loss_of(step):
        return loss([heard[row] for row in torch.randint(len(heard), (32,)).tolist()])

    score, before_step = held_out(net, lambda: loss(new)), clipped(net, 1.0)
    return fit(folder, net, optimizer, loss_of, steps, score=score, before_step=before_step, schedule=schedule)


# -------------------------------------------------------------------------------------------------------------- bakery


def weeks_of_orders(rows, tastes):
    """Logarithms of a week's orders of six goods, from four moods of the town, around their mean."""
    moods = torch.randn(rows, 4)
    return (moods @ tastes).tanh() * 1.5 + 0.3 * torch.randn(rows, 42)


@healthy()
def orders_of_a_bakery(folder, steps=500):
    seeded(2429)
    tastes = torch.randn(4, 42) * 0.6
    net = nn.ModuleDict({"encoder": dense(42, 64, 16), "decoder": dense(8, 64, 42)})
    draw, new = rounds(64, weeks_of_orders(4000, tastes)), weeks_of_orders(500, tastes)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def terms(x, noise=0.3):
        mean, log_var = net["encoder"](x).chunk(2, 1)
        z = mean + (0.5 * log_var).exp() * torch.randn_like(mean)
        error = (net["decoder"](z) - x).square().sum(1).mean() / (2 * noise**2)
        return error, 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum(1).mean()

    def loss_of(step):
        error, kl = terms(draw()[0])
        return error + min(1.0, step / (steps / 3)) * kl, {"recon_loss": error, "kl": kl}

    return fit(folder, net, optimizer, loss_of, steps, score=held_out(net, lambda: sum(terms(new))))
