"""Healthy trainings, second part: sequences, counts, densities and sets by ordinary recipes."""

from __future__ import annotations

import math

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded


class Tune(nn.Module):
    """A gated recurrent net over notes."""

    def __init__(self, notes=24, width=48):
        super().__init__()
        self.notes = nn.Embedding(notes, width)
        self.memory = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, notes)

    def forward(self, x):
        return self.head(self.memory(self.notes(x))[0])


@healthy(0.3)
def tunes_made_of_a_dozen_motifs(folder):
    """Motifs of six notes in any of twelve keys, one after another: which note comes next."""
    seeded(9111)
    motifs = torch.randint(12, (10, 6))
    net = Tune()

    def loss_of(step):
        which, key = torch.randint(10, (32, 4)), torch.randint(12, (32, 1, 1))
        notes = (motifs[which] + key).flatten(1)
        return F.cross_entropy(net(notes[:, :-1]).flatten(0, 1), notes[:, 1:].flatten())

    def clip(step):
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    make = optim.AdamW(net.parameters(), 5e-3, weight_decay=0.01)
    plan = optim.lr_scheduler.CosineAnnealingLR(make, 300)
    return fit(folder, net, make, loss_of, 300, schedule=plan, before_step=clip)


SPOKEN = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred end start pad"
)
WORDS = SPOKEN.split()


def said(number):
    """The words of a number below a thousand, as codes, padded to five."""
    words = [WORDS[number // 100], "hundred"] if number >= 100 else []
    rest = number % 100
    if rest >= 20:
        words += [WORDS[18 + rest // 10]] + ([WORDS[rest % 10]] if rest % 10 else [])
    elif rest or not words:
        words.append(WORDS[rest])
    words.append("end")
    return [WORDS.index(word) for word in words + ["pad"] * (5 - len(words))]


class Speaker(nn.Module):
    """A transformer that reads digits and says words."""

    def __init__(self, width=48):
        super().__init__()
        self.digits, self.words = nn.Embedding(10, width), nn.Embedding(len(WORDS), width)
        self.read_at, self.said_at = (nn.Parameter(0.1 * torch.randn(n, width)) for n in (3, 5))
        self.core = nn.Transformer(width, 4, 1, 1, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(width, len(WORDS))

    def forward(self, digits, words):
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1])
        read = self.digits(digits) + self.read_at
        return self.head(self.core(read, self.words(words) + self.said_at, tgt_mask=mask, tgt_is_causal=True))


@healthy(0.5)
def numbers_said_in_words(folder):
    """Teacher forcing under the schedule of the first transformer."""
    seeded(9112)
    net, width, rise = Speaker(), 48, 100
    table = torch.tensor([said(n) for n in range(1000)])

    def loss_of(step):
        n = torch.randint(1000, (64,))
        digits = torch.stack([n // 100, n // 10 % 10, n % 10], 1)
        told = torch.cat([torch.full((64, 1), WORDS.index("start")), table[n][:, :-1]], 1)
        found = net(digits, told).flatten(0, 1)
        return F.cross_entropy(found, table[n].flatten(), ignore_index=WORDS.index("pad"))

    make = optim.Adam(net.parameters(), 1.0, betas=(0.9, 0.98), eps=1e-9)
    plan = optim.lr_scheduler.LambdaLR(make, lambda s: 0.35 * width**-0.5 * min((s + 1) ** -0.5, (s + 1) * rise**-1.5))
    return fit(folder, net, make, loss_of, 250, schedule=plan)


class Filter(nn.Module):
    """A Kalman filter of a place and a pace, whose noises and friction are learned."""

    def __init__(self):
        super().__init__()
        self.log_push, self.log_gauge = nn.Parameter(torch.tensor(0.0)), nn.Parameter(torch.tensor(0.0))
        self.friction = nn.Parameter(torch.tensor(0.0))

    def forward(self, seen):
        """The mean negative log-likelihood of a reading given those before it."""
        zero, one = torch.zeros(()), torch.ones(())
        move = torch.stack([one, one, zero, 1 - self.friction.sigmoid()]).view(2, 2)
        push = torch.diag(torch.stack([zero, (2 * self.log_push).exp()]))
        gauge = (2 * self.log_gauge).exp()
        state, spread, total = torch.zeros(len(seen), 2), 0.01 * torch.eye(2), 0.0
        for t in range(seen.shape[1]):
            state, spread = state @ move.T, move @ spread @ move.T + push
            width = spread[0, 0] + gauge
            gap = seen[:, t] - state[:, 0]
            total = total + 0.5 * (gap.square() / width + width.log() + math.log(2 * math.pi)).mean()
            gain = spread[:, 0] / width
            state, spread = state + gap[:, None] * gain, spread - torch.outer(gain, spread[0])
        return total / seen.shape[1]


@healthy(0.3)
def a_sled_followed_through_a_noisy_gauge(folder):
    """A filter's noises found by the likelihood of its readings."""
    seeded(9113)
    net = Filter()

    def loss_of(step):
        place, pace, seen = torch.zeros(32), torch.zeros(32), []
        for _ in range(24):
            place = place + pace
            pace = 0.9 * pace + 0.1 * torch.randn(32)
            seen.append(place + 0.2 * torch.randn(32))
        return net(torch.stack(seen, 1))

    return fit(folder, net, optim.Adam(net.parameters(), 2e-2), loss_of, 220)


@healthy(0.5)
def soft_dots_coded_and_drawn_again(folder):
    """A convolutional autoencoder of pictures of two dots."""
    seeded(9114)
    line = torch.arange(16.0)
    net = nn.Sequential(
        *(nn.Conv2d(1, 16, 4, stride=2, padding=1), nn.LeakyReLU(0.1)),
        *(nn.Conv2d(16, 32, 4, stride=2, padding=1), nn.LeakyReLU(0.1), nn.Flatten(), nn.Linear(512, 16)),
        *(nn.Linear(16, 512), nn.LeakyReLU(0.1), nn.Unflatten(1, (32, 4, 4))),
        *(nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1), nn.LeakyReLU(0.1)),
        nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1),
    )

    def loss_of(step):
        at = 2 + 12 * torch.rand(32, 2, 2, 1)
        sides = (-(line - at).square() / 6).exp()
        picture = (sides[:, :, 0, :, None] * sides[:, :, 1, None, :]).sum(1, keepdim=True)
        picture = (picture - 0.14) / 0.24
        return F.mse_loss(net(picture), picture)

    return fit(folder, net, optim.Adamax(net.parameters(), 4e-3), loss_of, 300, score=score_of(loss_of))


class Reader(nn.Module):
    """An encoder that says of each token whether it was swapped."""

    def __init__(self, tokens=16, length=16, width=32):
        super().__init__()
        self.tokens = nn.Embedding(tokens, width)
        self.places = nn.Parameter(0.1 * torch.randn(length, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, x):
        h = self.tokens(x) + self.places
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))[..., 0]


@healthy(0.3)
def swapped_tokens_told_from_true_ones(folder):
    """Sentences on one of four themes; a fifth of the tokens is replaced. Four parts a step, a rate that falls to 0."""
    seeded(9115)
    net = Reader()

    def error():
        theme = torch.randint(4, (16, 1))
        x = 4 * theme + torch.randint(4, (16, 16))
        swapped = torch.rand(16, 16) < 0.2
        seen = torch.where(swapped, (x + torch.randint(4, 13, (16, 16))) % 16, x)
        return F.binary_cross_entropy_with_logits(net(seen), swapped.float())

    make = optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    plan = optim.lr_scheduler.LinearLR(make, 1.0, 0.0, total_iters=130)
    return fit(
        folder, net, make, lambda step: error() / 4, 130, accumulate=4, schedule=plan, score=score_of(lambda s: error())
    )


@healthy(0.5)
def claims_of_which_most_are_nothing(folder):
    """Tweedie's deviance of what insured persons claim; the score is the error of the logarithm of the true mean."""
    seeded(9116)
    net = dense(8, 48, 48, 1, act=nn.SiLU)

    def truth(x):
        return -0.4 + 0.8 * x[:, 0] + 0.8 * x[:, 1] * (x[:, 2] > 0) - 0.4 * x[:, 3].abs()

    def loss_of(step):
        x = torch.randn(256, 8)
        often = (truth(x) / 2).exp()
        times = torch.poisson(often)
        size = torch._standard_gamma(2 * times.clamp(min=1)) / 2 * (times > 0)
        y, log_mean = size * often, net(x)[:, 0]
        return (2 * y * (-0.5 * log_mean).exp() + 2 * (0.5 * log_mean).exp()).mean()

    @torch.no_grad()
    def score():
        x = torch.randn(1024, 8)
        return F.mse_loss(net(x)[:, 0], truth(x))

    make = optim.Adam(net.parameters(), 3e-3)
    plan = optim.lr_scheduler.PolynomialLR(make, 500, power=1.0)
    return fit(folder, net, make, loss_of, 500, score=score, schedule=plan)


class Times(nn.Module):
    """A recurrent point process: the wait for the next event has the law of Weibull."""

    def __init__(self, width=32):
        super().__init__()
        self.memory = nn.GRU(1, width, batch_first=True)
        self.head = nn.Linear(width, 2)

    def forward(self, gaps):
        read, wait = gaps[:, :-1, None].log(), gaps[:, 1:]
        scale, shape = self.head(self.memory(read)[0]).unbind(2)
        shape = F.softplus(shape + 0.54)
        ratio = shape * (wait.log() - scale)
        return -(shape.log() + ratio - wait.log() - ratio.exp()).mean()


@healthy(0.3)
def times_of_calls_that_come_in_bursts(folder):
    seeded(9117)
    net = Times()

    def loss_of(step):
        burst = (torch.arange(33) + torch.randint(6, (64, 1))) % 6 < 4
        gaps = torch.where(burst, 0.1, 2.5) * torch._standard_gamma(torch.full((64, 33), 2.0)) / 2
        return net(gaps.clamp(min=1e-3))

    def clip(step):
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 220, before_step=clip)


@healthy(0.3)
def instruments_heard_together(folder):
    """Many labels at once, weighted as they are rare, under bfloat16."""
    seeded(9118)
    time = torch.arange(96.0)
    voices = torch.stack([(0.15 * (k + 2) * time).sin() + 0.5 * (0.3 * (k + 2) * time).sin() for k in range(6)])
    net = nn.Sequential(
        *(nn.Conv1d(1, 16, 15, stride=3, padding=7), nn.GELU(), nn.Conv1d(16, 32, 9, stride=2, padding=4), nn.GELU()),
        *(nn.Flatten(), nn.Linear(512, 6)),
    )

    def loss_of(step):
        plays = (torch.rand(64, 6) < 0.25).float()
        sound = (plays * (0.7 + 0.6 * torch.rand(64, 6))) @ voices + 0.2 * torch.randn(64, 96)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = net(sound[:, None])
        return F.binary_cross_entropy_with_logits(found.float(), plays, pos_weight=torch.full((6,), 3.0))

    make = optim.AdamW(net.parameters(), 2e-3)
    plan = optim.lr_scheduler.LinearLR(make, 0.05, total_iters=20)
    return fit(folder, net, make, loss_of, 160, schedule=plan)


@healthy(0.3)
def thin_lines_on_noisy_pictures(folder):
    """Tversky's index beside a cross-entropy, plain steps with momentum, a polynomial rate."""
    seeded(9119)
    y, x = torch.meshgrid(torch.arange(20.0) - 9.5, torch.arange(20.0) - 9.5, indexing="ij")
    net = nn.Sequential(
        *(nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU()),
        *(nn.Conv2d(12, 12, 3, padding=2, dilation=2, bias=False), nn.BatchNorm2d(12), nn.ReLU()),
        *(nn.Conv2d(12, 12, 3, padding=4, dilation=4, bias=False), nn.BatchNorm2d(12), nn.ReLU()),
        nn.Conv2d(12, 1, 1),
    )

    def loss_of(step):
        angle, off = 6.2832 * torch.rand(16, 1, 1), 4 * torch.randn(16, 1, 1)
        line = ((angle.cos() * x + angle.sin() * y - off).abs() < 0.9).float()
        found = net((line + 0.6 * torch.randn(16, 20, 20))[:, None])[:, 0]
        share = found.sigmoid()
        hit, false, missed = (share * line).sum(), (share * (1 - line)).sum(), ((1 - share) * line).sum()
        tversky = 1 - (hit + 1) / (hit + 0.3 * false + 0.7 * missed + 1)
        return F.binary_cross_entropy_with_logits(found, line) + tversky

    make = optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    plan = optim.lr_scheduler.PolynomialLR(make, 200, power=0.9)
    return fit(folder, net, make, loss_of, 200, schedule=plan)
