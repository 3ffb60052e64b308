"""Ordinary healthy trainings, third part: words, strands, sounds and readings. An expert is content with each."""

from __future__ import annotations

import math
import re

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.afresh.healthy import right, without_decay
from unseen.tasks import clipped, rounds

# ------------------------------------------------------------------------------------------------------------- words


def words_of_manuals():
    """The descriptions of scikit-learn's data sets as numbers of words, and how many words there are."""
    from sklearn import datasets

    load = (datasets.load_iris, datasets.load_wine, datasets.load_breast_cancer, datasets.load_diabetes)
    said = re.findall(r"[a-z]+|[.,:()]", " ".join(one().DESCR for one in load).lower())
    often = sorted({word for word in said if said.count(word) > 2})
    return torch.tensor([often.index(word) + 1 if word in often else 0 for word in said]), len(often) + 1


class Reader(nn.Module):
    """Two layers of GRU whose last table is the first one."""

    def __init__(self, kinds, wide=64):
        super().__init__()
        self.table, self.drop = nn.Embedding(kinds, wide), nn.Dropout(0.2)
        nn.init.uniform_(self.table.weight, -0.1, 0.1)
        self.rnn = nn.GRU(wide, wide, 2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(wide, kinds)
        self.head.weight = self.table.weight

    def forward(self, x):
        return self.head(self.drop(self.rnn(self.drop(self.table(x)))[0]))


@healthy(0.15)
def words_of_manuals_by_two_gated_layers(folder):
    """Adam at 3e-3, a twentieth less after each epoch, a clip at a half; the perplexity is logged."""
    seeded(5321)
    codes, kinds = words_of_manuals()
    net = Reader(kinds)

    def loss_of(step):
        at = torch.randint(len(codes) - 17, (16, 1)) + torch.arange(17)
        piece = codes[at]
        loss = F.cross_entropy(net(piece[:, :-1]).flatten(0, 1), piece[:, 1:].flatten())
        return loss, {"perplexity": loss.detach().exp()}

    make = optim.Adam(net.parameters(), 3e-3)
    plan = optim.lr_scheduler.StepLR(make, 20, 0.95)
    return fit(folder, net, make, loss_of, 320, schedule=plan, before_step=clipped(net, 0.5))


def plurals(rows, long=9, room=12):
    """Made-up nouns and how one says several of them, as letters: 0 fills up, 1 begins, 2 ends, 3 to 28 are a to z."""
    a = ord("a") - 3
    vowels, others = torch.tensor([ord(c) - a for c in "aeiou"]), torch.tensor([ord(c) - a for c in "bdfhklmnprsxyz"])
    letters = torch.where(
        torch.arange(long) % 2 == 1, vowels[torch.randint(5, (rows, long))], others[torch.randint(14, (rows, long))]
    )
    lengths = torch.randint(3, long + 1, (rows,))
    source, target = torch.zeros(rows, long, dtype=torch.long), torch.zeros(rows, room, dtype=torch.long)
    for i, n in enumerate(lengths.tolist()):
        source[i, :n] = letters[i, :n]
        noun = "".join(chr(c + a) for c in letters[i, :n].tolist())
        if noun[-1] in "sxzh":
            noun += "es"
        elif noun[-1] in "yf":
            noun = noun[:-1] + ("ies" if noun[-1] == "y" else "ves")
        else:
            noun += "s"
        written = torch.tensor([ord(c) - a for c in noun] + [2])
        target[i, : min(len(written), room)] = written[:room]
    return source, lengths, target


class Translator(nn.Module):
    """A reader in both directions, a writer that looks back at what was read (Luong et al. 2015)."""

    def __init__(self, wide=64):
        super().__init__()
        self.table = nn.Embedding(29, 32, padding_idx=0)
        self.reader = nn.GRU(32, wide // 2, batch_first=True, bidirectional=True)
        self.writer, self.bridge = nn.GRU(32, wide, batch_first=True), nn.Linear(wide, wide)
        self.look, self.mix = nn.Linear(wide, wide, bias=False), nn.Linear(2 * wide, wide)
        self.head = nn.Linear(wide, 29)

    def forward(self, source, lengths, given):
        packed = nn.utils.rnn.pack_padded_sequence(self.table(source), lengths, True, enforce_sorted=False)
        read, state = self.reader(packed)
        read, _ = nn.utils.rnn.pad_packed_sequence(read, True, total_length=source.shape[1])
        state = self.bridge(torch.cat([state[0], state[1]], 1)).tanh()[None]
        written, _ = self.writer(self.table(given), state)
        fits = (self.look(written) @ read.mT).masked_fill(source[:, None] == 0, -math.inf).softmax(2)
        return self.head(self.mix(torch.cat([written, fits @ read], 2)).tanh())


@healthy(0.4)
def nouns_set_in_the_plural(folder):
    """Letters to letters with attention; padding is left out of the loss; Adam, a cosine, a clip at one."""
    seeded(5322)
    net = Translator()

    def loss_of(step):
        source, lengths, target = plurals(48)
        given = torch.cat([torch.ones(48, 1, dtype=torch.long), target[:, :-1]], 1)
        said = net(source, lengths, given).flatten(0, 1)
        wanted, counts = target.flatten(), target.flatten() > 0
        return F.cross_entropy(said, wanted, ignore_index=0), {"accuracy": right(said[counts], wanted[counts])}

    make, steps = optim.Adam(net.parameters(), 3e-3), 300
    plan = optim.lr_scheduler.CosineAnnealingLR(make, steps)
    return fit(folder, net, make, loss_of, steps, schedule=plan, before_step=clipped(net, 1.0))


class Dilated(nn.Module):
    """A norm, a dilated convolution, a mix; added to what came in."""

    def __init__(self, wide, apart):
        super().__init__()
        self.norm1, self.conv = nn.LayerNorm(wide), nn.Conv1d(wide, wide, 5, padding=2 * apart, dilation=apart)
        self.norm2, self.mix = nn.LayerNorm(wide), dense(wide, 2 * wide, wide, act=nn.GELU)

    def forward(self, x):
        x = x + F.gelu(self.conv(self.norm1(x).mT).mT)
        return x + self.mix(self.norm2(x))


@healthy(0.2)
def bases_hidden_in_strands_of_known_motifs(folder):
    """Masked bases by dilated convolutions: AdamW, a rise, then the inverse root."""
    seeded(5323)
    motifs = torch.randint(4, (8, 10))
    net = nn.Sequential(nn.Embedding(5, 32), Dilated(32, 1), Dilated(32, 3), nn.LayerNorm(32), nn.Linear(32, 4))

    def loss_of(step):
        x = motifs[torch.randint(8, (24, 6))].flatten(1)
        x = torch.where(torch.rand(x.shape) < 0.03, torch.randint(4, x.shape), x)
        chosen, chance = torch.rand(x.shape) < 0.15, torch.rand(x.shape)
        seen = torch.where(chosen & (chance < 0.8), 4, x)
        seen = torch.where(chosen & (chance > 0.9), torch.randint(4, x.shape), seen)
        said = net(seen)[chosen]
        return F.cross_entropy(said, x[chosen]), {"accuracy": right(said, x[chosen])}

    make = optim.AdamW(without_decay(net, 0.01), 3e-3, betas=(0.9, 0.98))
    plan = optim.lr_scheduler.LambdaLR(make, lambda step: min((step + 1) / 40, math.sqrt(40 / (step + 1))))
    return fit(folder, net, make, loss_of, 300, schedule=plan)


# ---------------------------------------------------------------------------------------------------- sounds, readings


def hall(rows, bands=24, frames=24):
    """Spectrograms in which up to four kinds of sound begin and end, and which of them is heard in each frame."""
    x = 0.5 * torch.randn(rows, 1, bands, frames)
    start, long = torch.randint(frames - 8, (rows, 4)), torch.randint(6, 16, (rows, 4))
    time, band = torch.arange(frames), torch.arange(bands)
    heard = (time >= start[..., None]) & (time < (start + long)[..., None]) & (torch.rand(rows, 4, 1) < 0.5)
    hum = (band < 4).float()[None, :, None].expand(rows, bands, frames)
    tone = (band % 6 == 3).float()[None, :, None].expand(rows, bands, frames)
    since = time - start[..., None]
    sweep = ((band[None, :, None] - 6 - since[:, 2, None]).abs() < 2).float()
    bursts = (since[:, 3, None] % 3 == 0).float().expand(rows, bands, frames)
    forms = torch.stack([hum, tone, sweep, bursts], 1)
    return x + 1.5 * (forms * heard[:, :, None]).sum(1, keepdim=True), heard.float()


class Listener(nn.Module):
    """Convolutions that pool the bands alone, a GRU in both directions, an answer for each frame."""

    def __init__(self, wide=12):
        super().__init__()
        parts, size = [], 1
        for out in (wide, wide, 2 * wide):
            parts += [nn.Conv2d(size, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
            parts += [nn.MaxPool2d((2, 1)), nn.Dropout(0.1)]
            size = out
        self.body, self.rnn = nn.Sequential(*parts), nn.GRU(6 * wide, 24, batch_first=True, bidirectional=True)
        self.head = nn.Linear(48, 4)

    def forward(self, x):
        return self.head(self.rnn(self.body(x).flatten(1, 2).mT)[0]).mT


@healthy(0.4)
def sounds_of_a_hall_marked_in_each_frame(folder):
    """A convolving recurrent net, four answers a frame, Adam in one cycle, two micro-batches; F1 is logged."""
    seeded(5324)
    net = Listener()

    def loss_of(step):
        x, heard = hall(8)
        said = net(x)
        found = (said > 0).float()
        f1 = 2 * (found * heard).sum() / (found.sum() + heard.sum()).clamp(min=1)
        return F.binary_cross_entropy_with_logits(said, heard) / 2, {"f1": f1}

    make, steps = optim.Adam(net.parameters(), 4e-3), 140
    plan = optim.lr_scheduler.OneCycleLR(make, 4e-3, total_steps=steps)
    return fit(folder, net, make, loss_of, steps, accumulate=2, schedule=plan)


@healthy(0.4)
def bearings_by_a_first_kernel_of_sixty_four(folder):
    """Which part of a bearing knocks, from the raw vibration; wide first kernel, SGD under a cosine."""
    seeded(5325)
    time = torch.arange(512) / 512
    net = nn.Sequential(nn.Conv1d(1, 16, 64, 8, 28, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.MaxPool1d(2))
    for size, out in ((16, 32), (32, 32), (32, 48)):
        net.extend([nn.Conv1d(size, out, 3, padding=1, bias=False), nn.BatchNorm1d(out), nn.ReLU(), nn.MaxPool1d(2)])
    net.extend([nn.Flatten(), nn.Linear(192, 48), nn.ReLU(), nn.Linear(48, 4)])

    def loss_of(step):
        y = torch.randint(4, (48,))
        knocks = torch.tensor([0.0, 7.0, 11.0, 18.0])[y, None]
        phase = ((time * knocks * (0.97 + 0.06 * torch.rand(48, 1)) + torch.rand(48, 1)) % 1) / knocks.clamp(min=1)
        ring = (-120 * phase).exp() * (6.2832 * 90 * phase).sin() * (knocks > 0)
        shaft = 0.3 * (6.2832 * (3 * time + torch.rand(48, 1))).sin()
        said = net((ring + shaft + 0.2 * torch.randn(48, 512))[:, None] / 0.35)
        return F.cross_entropy(said, y), {"accuracy": right(said, y)}

    make, steps = optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-4), 300
    plan = optim.lr_scheduler.CosineAnnealingLR(make, steps)
    return fit(folder, net, make, loss_of, steps, schedule=plan)


def turbines(rows):
    """Wind, its direction and the air's density, and the power that comes of it, the less certain the steeper."""
    wind, way, air = 12 * torch.rand(rows, 1) + 2, 6.2832 * torch.rand(rows, 1), 1 + 0.1 * torch.randn(rows, 1)
    power = torch.sigmoid((wind * (1 + 0.1 * way.cos()) - 8) * air)
    power = power + 0.4 * power * (1 - power) * torch.randn(rows, 1)
    return torch.cat([(wind - 8) / 3.5, way.cos(), way.sin(), (air - 1) * 10], 1), power


@healthy(0.4)
def power_of_turbines_between_its_bounds(folder):
    """Five quantiles by the pinball loss, NAdam with a milestone, shuffled epochs; the coverage is logged."""
    seeded(5326)
    draw, net = rounds(64, *turbines(2000)), dense(4, 64, 64, 5, act=nn.SiLU)
    levels = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95])

    def loss_of(step):
        x, y = draw()
        said = net(x)
        gap = y - said
        inside = ((y >= said[:, :1]) & (y <= said[:, -1:])).float().mean()
        return torch.maximum(levels * gap, (levels - 1) * gap).sum(1).mean(), {"coverage": inside}

    make = optim.NAdam(net.parameters(), 2e-3)
    plan = optim.lr_scheduler.MultiStepLR(make, [300], 0.1)
    return fit(folder, net, make, loss_of, 400, schedule=plan)
