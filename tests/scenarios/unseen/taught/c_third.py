"""Healthy trainings: chamber music, clay tablets, puddles, a fair and a herbal."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


@healthy(gain=0.5)
def instruments_in_a_chamber_recording(folder):
    """Which of five play at once, some of them rarely: one-dimensional convolutions, weights for the rare ones."""
    seeded(9711)
    n, time = 2000, torch.arange(96.0)
    shares = torch.tensor([0.5, 0.4, 0.3, 0.2, 0.1])
    playing = (torch.rand(n, 5) < shares).float()
    pitch = torch.tensor([0.15, 0.35, 0.7, 1.2, 2.0])[:, None] * (1 + 0.1 * (torch.rand(n, 5, 1) - 0.5))
    tones = (pitch * time + 6.2832 * torch.rand(n, 5, 1)).sin() * (0.7 + 0.6 * torch.rand(n, 5, 1))
    x = (playing[:, :, None] * tones).sum(1, keepdim=True) + 0.5 * torch.randn(n, 1, 96)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 9, stride=2, padding=4), nn.GroupNorm(4, 16), nn.ReLU(),
        nn.Conv1d(16, 32, 5, stride=2, padding=2), nn.GroupNorm(4, 32), nn.ReLU(),
        nn.Conv1d(32, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(32, 5),
    )  # fmt: skip
    weights = ((1 - shares) / shares).sqrt()
    draw = rounds(64, x[:1700], playing[:1700])

    def entropy(sound, heard):
        return F.binary_cross_entropy_with_logits(net(sound), heard, pos_weight=weights)

    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 350, 5e-5)
    score = held_out(net, lambda: entropy(x[1700:], playing[1700:]))
    return fit(folder, net, optimizer, lambda step: entropy(*draw()), 350, score=score, schedule=schedule)


class Scribe(nn.Module):
    """Reads signs with a GRU, writes others with a second one that looks back at what was read."""

    def __init__(self, signs, width=48):
        super().__init__()
        self.sign, self.written = nn.Embedding(signs, width), nn.Embedding(signs + 1, width)
        self.place = nn.Embedding(18, width)
        self.reader, self.writer = (nn.GRU(width, width, batch_first=True) for _ in range(2))
        self.ask, self.head = nn.Linear(width, width, bias=False), nn.Linear(2 * width, signs)

    def forward(self, read, so_far):
        places, n = self.place.weight, read.shape[1]
        states, last = self.reader(self.sign(read) + places[:n])
        out, _ = self.writer(self.written(so_far) + places[9 : 9 + n], last)
        looked = (self.ask(out) @ states.transpose(1, 2) * out.shape[-1] ** -0.5).softmax(2) @ states
        return self.head(torch.cat([out, looked], 2))


@healthy(gain=0.7)
def clay_tablets_copied_from_right_to_left(folder):
    """A sequence to a sequence: signs in reverse, each by its later form; teacher forcing, short tablets first."""
    seeded(9712)
    later = torch.randperm(12)
    net = Scribe(12)

    def entropy(rows, length):
        read = torch.randint(12, (rows, length))
        write = later[read.flip(1)]
        so_far = torch.cat([torch.full((rows, 1), 12), write[:, :-1]], 1)
        return F.cross_entropy(net(read, so_far).flatten(0, 1), write.flatten())

    optimizer = torch.optim.Adam(net.parameters(), 4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500, 2e-4)
    score = held_out(net, lambda: entropy(256, 9))
    return fit(folder, net, optimizer, lambda step: entropy(32, min(9, 4 + step // 40)), 500, score=score,
               schedule=schedule, before_step=clipped(net, 1.0))  # fmt: skip


def puddles(n):
    """Pictures `[n, 1, 24, 24]` of a paved square with two puddles, and where they are."""
    across, down = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="xy")
    middle, size = 4 + 16 * torch.rand(n, 2, 2, 1, 1), 2 + 2.5 * torch.rand(n, 2, 2, 1, 1)
    far = ((across - middle[:, :, 0]) / size[:, :, 0]) ** 2 + ((down - middle[:, :, 1]) / size[:, :, 1]) ** 2
    wet = (far < 1).any(1).float()
    slabs = 0.4 * ((across % 6 == 0) | (down % 6 == 0)).float()
    light = 0.3 * torch.randn(n, 1, 1) + slabs - 0.8 * wet + 0.35 * torch.randn(n, 24, 24)
    return light[:, None], wet[:, None]


def block(ins, outs):
    return nn.Sequential(nn.Conv2d(ins, outs, 3, padding=1), nn.BatchNorm2d(outs), nn.ReLU())


class Outliner(nn.Module):
    """A net of the shape of a U with one bridge at each of two sizes."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.deep = block(1, 8), block(8, 16), block(16, 24)
        self.back, self.out = block(40, 16), block(24, 8)
        self.head = nn.Conv2d(8, 1, 1)

    def forward(self, x):
        one = self.one(x)
        two = self.two(F.max_pool2d(one, 2))
        deep = self.deep(F.max_pool2d(two, 2))
        back = self.back(torch.cat([F.interpolate(deep, scale_factor=2), two], 1))
        return self.head(self.out(torch.cat([F.interpolate(back, scale_factor=2), one], 1)))


@healthy(gain=0.6)
def puddles_cut_out_of_a_market_square(folder):
    """Segmentation: cross-entropy and Dice in one loss, AdamW; the Dice on unseen pictures is logged."""
    seeded(9713)
    x, wet = puddles(700)
    net, draw = Outliner(), rounds(24, x[:600], wet[:600])

    def overlap(guess, truth):
        share = guess.sigmoid()
        both = (share * truth).sum((1, 2, 3))
        return ((2 * both + 1) / (share.sum((1, 2, 3)) + truth.sum((1, 2, 3)) + 1)).mean()

    def missed(pictures, truth):
        guess = net(pictures)
        return F.binary_cross_entropy_with_logits(guess, truth) + 1 - overlap(guess, truth)

    on_unseen = held_out(net, lambda: overlap(net(x[600:]), wet[600:]))

    def loss_of(step):
        logged = {"val_dice": on_unseen()} if step % 25 == 0 else {}
        return missed(*draw()), logged

    optimizer = torch.optim.AdamW(net.parameters(), 4e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 250, 1e-4)
    score = held_out(net, lambda: missed(x[600:], wet[600:]))
    return fit(folder, net, optimizer, loss_of, 250, score=score, schedule=schedule)


class Guilds(nn.Module):
    """Two graph convolutions over a normed neighbourhood."""

    def __init__(self, near, features, kinds, width=32):
        super().__init__()
        self.register_buffer("near", near)
        self.one, self.two, self.drop = nn.Linear(features, width), nn.Linear(width, kinds), nn.Dropout(0.3)

    def forward(self, x):
        return self.near @ self.two(self.drop((self.near @ self.one(x)).relu()))


@healthy(gain=0.5)
def guilds_of_stalls_by_whom_they_trade_with(folder):
    """Nodes of a graph: all of it in each step, the labels of a third; Adam with a little decay."""
    seeded(9714)
    n, kinds = 400, 5
    guild = torch.randint(kinds, (n,))
    likely = torch.where(guild[:, None] == guild, 0.06, 0.008)
    trade = (torch.rand(n, n) < likely).float().triu(1)
    trade = trade + trade.T + torch.eye(n)
    by_degree = trade.sum(1).rsqrt()
    x = F.normalize(torch.randn(kinds, 24)[guild] + 2.5 * torch.randn(n, 24), dim=1) * 24**0.5
    named, hidden = torch.arange(n) < 130, torch.arange(n) >= 200
    net = Guilds(by_degree[:, None] * trade * by_degree, 24, kinds)

    def entropy(where):
        return F.cross_entropy(net(x)[where], guild[where])

    score = held_out(net, lambda: entropy(hidden))

    def loss_of(step):
        return entropy(named), {"val_loss": score()} if step % 10 == 0 else {}

    optimizer = torch.optim.Adam(net.parameters(), 1e-2, weight_decay=5e-3)
    return fit(folder, net, optimizer, loss_of, 150, score=score)


class Herbal(nn.Module):
    """An encoder over words; what is read is the mean over those that are no padding."""

    def __init__(self, words, kinds, width=48):
        super().__init__()
        self.word, self.place = nn.Embedding(words, width, padding_idx=0), nn.Embedding(14, width)
        layer = nn.TransformerEncoderLayer(width, 4, 96, dropout=0.1, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, kinds)

    def forward(self, x):
        there = (x != 0)[:, :, None]
        out = self.blocks(self.word(x) + self.place.weight, src_key_padding_mask=(x == 0))
        return self.head((out * there).sum(1) / there.sum(1))


@healthy(gain=0.5)
def remedies_sorted_by_the_words_of_a_herbal(folder):
    """Entries of six to fourteen words, each ailment with words of its own among common ones; AdamW with a warm-up."""
    seeded(9715)
    n = 2400
    ailment = torch.randint(6, (n,))
    common, own = torch.randint(1, 80, (n, 14)), 80 + 20 * ailment[:, None] + torch.randint(20, (n, 14))
    x = torch.where(torch.rand(n, 14) < 0.4, own, common)
    x = torch.where(torch.rand(n, 14) < 0.1, torch.randint(80, 200, (n, 14)), x)
    x[torch.arange(14) >= torch.randint(6, 15, (n, 1))] = 0
    net, draw = Herbal(200, 6), rounds(32, x[:2000], ailment[:2000])
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.05)

    def loss_of(step):
        words, named = draw()
        guess = net(words)
        return F.cross_entropy(guess, named), {"accuracy": float((guess.argmax(1) == named).float().mean())}

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min((i + 1) / 30, (300 - i) / 270))
    score = held_out(net, lambda: F.cross_entropy(net(x[2000:]), ailment[2000:]))
    return fit(folder, net, optimizer, loss_of, 300, score=score, schedule=schedule,
               before_step=clipped(net, 1.0))  # fmt: skip
