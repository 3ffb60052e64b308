"""Sick trainings drawn by lot, second part: penalties, units, bounds and blocks of six nets."""

from __future__ import annotations

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick

# ----------------------------------------------------------------------------------------------- blobs in a small U-net


class Unet(nn.Module):
    """Two levels down and up; `forward` also gives the feature maps of both, for a penalty on them."""

    def __init__(self, width=12):
        super().__init__()
        self.fine = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU())
        self.coarse = nn.Sequential(
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU(),
        )  # fmt: skip
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.merge = nn.Sequential(nn.Conv2d(2 * width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 1, 1))

    def forward(self, x):
        fine = self.fine(x)
        coarse = self.coarse(fine)
        return self.merge(torch.cat([fine, self.up(coarse)], 1)), (fine, coarse)


def blobs(batch=16, size=16):
    """Bright discs under noise and darker distractors, and where the discs are."""
    line = torch.arange(size).float()
    y, x = torch.meshgrid(line, line, indexing="ij")
    image, mask = 0.5 * torch.randn(batch, 1, size, size), torch.zeros(batch, 1, size, size)
    for sign in (1.0, 1.0, -1.0):
        at, radius = 2 + (size - 4) * torch.rand(batch, 2, 1, 1, 1), 2 + 2 * torch.rand(batch, 1, 1, 1)
        disc = ((y - at[:, 0]).square() + (x - at[:, 1]).square() < radius.square()).float()
        image, mask = image + sign * disc, torch.maximum(mask, disc) if sign > 0 else mask
    return image, mask


@sick(
    "loss-terms-unbalanced", "auxiliary-dominates", "dead-layer", "dead-units",
    where="fine and coarse: the penalty is nine tenths of the loss and more, their units die; the cross-entropy stays",
    cure="average the penalty over batch, channels and places as the cross-entropy is",
)  # fmt: skip
def discs_from_few_bright_maps(folder, ill):
    seeded(806)
    net = Unet()

    def parts():
        image, mask = blobs()
        logits, maps = net(image)
        sparse = sum(m.abs().sum() if ill else m.abs().mean() for m in maps)
        return F.binary_cross_entropy_with_logits(logits, mask), sparse

    def loss_of(step):
        wanted, sparse = parts()
        return wanted + 0.01 * sparse, {"bce": wanted, "sparsity": sparse}

    score = score_of(lambda step: parts()[0])
    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 220, score=score)


# ------------------------------------------------------------------------------------------------ load, hour after hour


class Causal(nn.Module):
    """Dilated convolutions that see the past only; the last place says the next four values."""

    def __init__(self, columns=3, width=24, ahead=4):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(columns if d == 1 else width, width, 3, dilation=d) for d in (1, 2, 4, 8))
        self.head = nn.Linear(width, ahead)

    def forward(self, x):
        for conv in self.convs:
            x = F.relu(conv(F.pad(x, (2 * conv.dilation[0], 0))))
        return self.head(x[..., -1])


@sick(
    "inputs-not-normalised", "imbalance", "exploding",
    where="convs.0.weight: the column of hours since 1970 is 480,000, all others are about 1",
    cure="hours since the start of the record, divided by its length (or the hour of the day)",
)  # fmt: skip
def hours_since_1970_beside_the_load(folder, ill):
    seeded(807)
    net, hours = Causal(), torch.arange(4000.0)
    load = (hours * 6.2832 / 24).sin() + 0.6 * (hours * 6.2832 / 37).cos() + hours / 2000 - 1
    load = load + 0.1 * torch.randn(4000)
    warm = (hours * 6.2832 / 24 + 1).cos() + 0.2 * torch.randn(4000)
    clock = hours + 480_000 if ill else hours / 2000 - 1
    record = torch.stack([load, warm, clock])

    def loss_of(step):
        start = torch.randint(0, 4000 - 52, (48,))
        window = record[:, start[:, None] + torch.arange(48)].transpose(0, 1)
        return F.smooth_l1_loss(net(window), load[start[:, None] + 48 + torch.arange(4)])

    make = optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-3)
    return fit(folder, net, make, loss_of, 400, score=score_of(loss_of))


# ------------------------------------------------------------------------------------------------- how long a pump runs


@sick(
    "output-clamped", "dead-units", "dead-layer", "saturated", "vanishing",
    where="the last layer, from the first step: about half of the hazards lie at the lower bound, where clamp is flat",
    cure="a sigmoid (with the loss of logits) in the place of clamp",
)  # fmt: skip
def pumps_that_wear_out(folder, ill):
    seeded(808)
    net, wear = dense(8, 64, 64, 10), torch.randn(8) / 8**0.5

    def hazards(x):
        raw = net(x)
        return raw.clamp(1e-4, 1 - 1e-4) if ill else raw.sigmoid().clamp(1e-4, 1 - 1e-4)

    def loss_of(step):
        """Minus the likelihood of surviving the intervals before the last, and of failing in it unless censored."""
        x = torch.randn(128, 8)
        truth = (0.35 * torch.arange(10) / 3 - 2.5 + 2.0 * (x @ wear)[:, None]).sigmoid()
        fails = torch.rand(128, 10) < truth
        fails[:, -1] |= ~fails.any(1) & (torch.rand(128) < 0.2)
        last = torch.where(fails.any(1), fails.float().argmax(1), 9)
        event = F.one_hot(last, 10) * fails.any(1)[:, None]
        at_risk = (torch.arange(10) <= last[:, None]).float()
        h = hazards(x)
        return -((event * h.log() + (1 - event) * (1 - h).log()) * at_risk).sum(1).mean()

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 400, score=score_of(loss_of))


# -------------------------------------------------------------------------------------------------- roles in a sequence


class Tagger(nn.Module):
    def __init__(self, words=24, tags=5, width=32, length=16):
        super().__init__()
        self.embed, self.place = nn.Embedding(words, width, padding_idx=0), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, tags)

    def forward(self, x):
        h = self.embed(x) + self.place.weight[: x.shape[1]]
        return self.head(self.encoder(h, src_key_padding_mask=x == 0))


def tagged(batch=32, length=16):
    """Words of 1..23, some rows shorter; a word's tag depends on itself and on the word before it."""
    x = torch.randint(1, 24, (batch, length))
    before = F.pad(x[:, :-1], (1, 0))
    tag = (x // 5 + (before > 12).long()) % 5
    gone = torch.arange(length) >= torch.randint(6, length + 1, (batch, 1))
    return x.masked_fill(gone, 0), tag.masked_fill(gone, -100)


@sick(
    "negative-loss", "weight-growth", "exploding", "wrong-sign",
    where="head.weight and head.bias: the logits run away together, the loss falls below zero without end",
    cure="add the square of the log-partition to the loss; it was taken away",
)  # fmt: skip
def roles_with_a_quiet_partition(folder, ill):
    seeded(809)
    net = Tagger()

    def parts():
        x, tag = tagged()
        logits = net(x)
        z = torch.logsumexp(logits, 2)[x > 0].square().mean()
        return F.cross_entropy(logits.flatten(0, 1), tag.flatten()), z

    def loss_of(step):
        wanted, z = parts()
        return wanted - 0.1 * z if ill else wanted + 0.1 * z

    make = optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    return fit(folder, net, make, loss_of, 300, score=score_of(lambda step: parts()[0]))


# ---------------------------------------------------------------------------------------- cars at a crossing, and delay


class Crossing(nn.Module):
    """From hour, weekday and place the logarithm of the number of cars, and how long each waits."""

    def __init__(self, places=12, width=64):
        super().__init__()
        self.place, self.day = nn.Embedding(places, 8), nn.Embedding(7, 4)
        self.trunk = nn.Sequential(dense(14, width, width), nn.ReLU())
        self.log_rate, self.delay = nn.Linear(width, 1), nn.Linear(width, 1)

    def forward(self, hour, day, place):
        turn = hour * 6.2832 / 24
        x = torch.cat([self.place(place), self.day(day), turn.sin()[:, None], turn.cos()[:, None]], 1)
        h = self.trunk(x)
        return self.log_rate(h).squeeze(1), self.delay(h).squeeze(1)


@sick(
    "targets-not-normalised", "loss-terms-unbalanced", "imbalance",
    where="the trunk and log_rate: the delay's squared error is a hundred million times the other term",
    cure="the delay in units of its deviation, not in milliseconds",
)  # fmt: skip
def cars_and_their_wait_at_a_crossing(folder, ill):
    seeded(810)
    net, busy, rush = Crossing(), 0.5 * torch.randn(12), 24 * torch.rand(12)

    def draw():
        hour, day, place = 24 * torch.rand(128), torch.randint(7, (128,)), torch.randint(12, (128,))
        log_rate = 0.8 + busy[place] + 1.2 * ((hour - rush[place]) * 6.2832 / 24).cos() - 0.8 * (day > 4)
        cars = torch.poisson(log_rate.exp())
        wait = 0.5 * (hour * 6.2832 / 12).sin() + (day == 2) + 0.3 * torch.randn(128)
        return (hour, day, place), log_rate, cars, wait * 20_000 + 45_000 if ill else wait

    def loss_of(step):
        asked, _, cars, wait = draw()
        log_rate, delay = net(*asked)
        return F.poisson_nll_loss(log_rate, cars) + F.mse_loss(delay, wait)

    def deviance(step):
        asked, truth, _, _ = draw()
        guess = net(*asked)[0]
        return (guess.exp() - truth.exp() + truth.exp() * (truth - guess)).mean()

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 400, score=score_of(deviance))


# -------------------------------------------------------------------------------------------------- where two marks are


class Block(nn.Module):
    def __init__(self, width, loud):
        super().__init__()
        self.one, self.two = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        for conv in (self.one, self.two):
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
            nn.init.zeros_(conv.bias)
        if not loud:
            nn.init.zeros_(self.two.weight)

    def forward(self, x):
        return x + self.two(F.relu(self.one(x)))


@sick(
    "bad-initialisation", "exploding",
    where="all blocks, from the first step: each adds a branch as large as its input, twelve of them",
    cure="the second convolution of each branch begins at zero (or is scaled by one over the root of their number)",
)  # fmt: skip
def two_marks_through_twelve_blocks(folder, ill):
    seeded(811)
    width = 12
    net = nn.Sequential(
        nn.Conv2d(1, width, 3, stride=2, padding=1), nn.ReLU(),
        *(Block(width, loud=ill) for _ in range(12)),
        nn.Flatten(), nn.Linear(width * 36, 4),
    )  # fmt: skip
    line = torch.arange(12.0)

    def loss_of(step):
        at = 1 + 9 * torch.rand(24, 2, 2)
        row = (-(line - at[..., :1]).square() / 2).exp()
        column = (-(line - at[..., 1:]).square() / 2).exp()
        marks = row[..., :, None] * column[..., None, :]
        image = (marks[:, 0] - marks[:, 1])[:, None] + 0.05 * torch.randn(24, 1, 12, 12)
        return F.mse_loss(net(image), at.flatten(1) / 5.5 - 1)

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 150, score=score_of(loss_of))
