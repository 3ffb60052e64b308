"""Heard healthy trainings, second part: letters, series and graphs. An expert is content with each.

They only count (the group `heard`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import math

import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from unseen import dense, fit, healthy, score_of, seeded
from unseen.heard.healthy_data import atlas, waves_of_a_brain
from unseen.sent.healthy_data import cuts, manual, program

# ------------------------------------------------------------------------------------------------------------- letters

MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]


def dates(rows):
    """ "7 mar 2019" and "2019-03-07" as codes below 128, 0 behind the end."""
    day, month, year = (torch.randint(*ends, (rows,)).tolist() for ends in ((1, 29), (1, 13), (1950, 2050)))
    pairs = [
        (f"{d} {MONTHS[m - 1]} {y}".ljust(12, "\0"), f"{y}-{m:02}-{d:02}\1")
        for d, m, y in zip(day, month, year, strict=True)
    ]
    return [torch.tensor([[ord(c) for c in pair[i]] for pair in pairs]) for i in (0, 1)]


@healthy(0.3)
def dates_written_another_way(folder):
    """A small T5 from nothing, under Adafactor at a level rate."""
    from transformers import T5Config, T5ForConditionalGeneration

    seeded(1111)
    sizes = {"d_model": 48, "d_kv": 12, "d_ff": 96, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
    net = T5ForConditionalGeneration(T5Config(vocab_size=128, decoder_start_token_id=0, pad_token_id=0, **sizes))

    def loss_of(step):
        x, y = dates(24)
        return net(input_ids=x, attention_mask=(x > 0).long(), labels=y).loss

    make = optim.Adafactor(net.parameters(), 2e-2)
    return fit(folder, net, make, loss_of, 80)


class Sorts(nn.Module):
    """The model of Vaswani et al. (2017), small: one table, its rows times the root of the width."""

    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(16, width)
        nn.init.normal_(self.embed.weight, std=width**-0.5)
        self.body = nn.Transformer(width, 4, 2, 2, 64, 0.0, batch_first=True)
        rate = torch.exp(-math.log(1e4) * torch.arange(0, width, 2) / width)
        angle = torch.arange(16)[:, None] * rate
        self.register_buffer("place", torch.stack([angle.sin(), angle.cos()], -1).flatten(1))

    def forward(self, x, y):
        x, y = (32**0.5 * self.embed(one) + self.place[: one.shape[1]] for one in (x, y))
        mask = nn.Transformer.generate_square_subsequent_mask(y.shape[1])
        return self.body(x, y, tgt_mask=mask, tgt_is_causal=True) @ self.embed.weight.T


@healthy(0.3)
def sorted_as_in_the_first_paper(folder):
    """Norms behind the sums, a rate that rises in a line and falls by the root, softened labels."""
    seeded(1112)
    net = Sorts()
    make = optim.Adam(net.parameters(), 1.0, betas=(0.9, 0.98), eps=1e-9)
    noam = lambda step: 0.5 * 32**-0.5 * min((step + 1) ** -0.5, (step + 1) * 60**-1.5)  # noqa: E731
    plan = optim.lr_scheduler.LambdaLR(make, noam)

    def loss_of(step):
        x = torch.randint(1, 16, (32, 8))
        y = x.sort(1)[0]
        told = F.pad(y[:, :-1], (1, 0))
        return F.cross_entropy(net(x, told).flatten(0, 1), y.flatten(), label_smoothing=0.1)

    return fit(folder, net, make, loss_of, 200, schedule=plan)


class Waves(nn.Module):
    """Tokens mixed by a Fourier transform that has no weights (Lee-Thorp et al. 2022)."""

    def __init__(self, width=48, depth=3):
        super().__init__()
        self.embed, self.place = nn.Embedding(129, width), nn.Parameter(0.02 * torch.randn(32, width))
        self.inner = nn.ModuleList(dense(width, 2 * width, width, act=nn.GELU) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.head = nn.Linear(width, 128)

    def forward(self, x):
        h = self.embed(x) + self.place
        for i, inner in enumerate(self.inner):
            h = self.norms[2 * i](h + torch.fft.fft2(h).real / 8)
            h = self.norms[2 * i + 1](h + inner(h))
        return self.head(h)


@healthy(0.2)
def hidden_letters_by_waves(folder):
    """One letter of seven is hidden, and guessed from the others; NAdam with decay, warm-up, then a level rate."""
    seeded(1113)
    net = Waves()
    make = optim.NAdam(net.parameters(), 3e-3, weight_decay=0.01, decoupled_weight_decay=True)
    plan = optim.lr_scheduler.LinearLR(make, 0.05, total_iters=30)

    def loss_of(step):
        x = cuts(manual(), 24, 32)
        hidden = torch.rand(24, 32) < 0.15
        return F.cross_entropy(net(x.masked_fill(hidden, 128))[hidden], x[hidden])

    return fit(folder, net, make, loss_of, 220, schedule=plan, clip="ClipByGlobalNorm(1.0)")


class Twice(nn.Module):
    """Blocks that are computed again on the way back (Chen et al. 2016)."""

    def __init__(self, width=48, depth=2):
        super().__init__()
        self.embed, self.place = nn.Embedding(128, width), nn.Parameter(0.02 * torch.randn(32, width))
        nn.init.normal_(self.embed.weight, std=0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, nn.GELU(), norm_first=True, batch_first=True)
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        h = self.embed(x) + self.place
        for block in self.blocks:
            h = checkpoint(block, h, mask, use_reentrant=False)
        return self.norm(h) @ self.embed.weight.T


@healthy(0.2)
def program_by_blocks_computed_twice(folder):
    """Checkpointed blocks and a tied table, four parts a step in bfloat16, warm-up and cosine, a clip at 1."""
    seeded(1114)
    net = Twice()
    make = optim.AdamW(net.parameters(), 4e-3, betas=(0.9, 0.95), weight_decay=0.1)
    shape = lambda step: min((step + 1) / 8, 0.55 + 0.45 * math.cos(math.pi * step / 45))  # noqa: E731
    plan = optim.lr_scheduler.LambdaLR(make, shape)

    def loss_of(step):
        x = cuts(program(), 4, 33)
        with torch.autocast("cpu", torch.bfloat16):
            found = net(x[:, :-1])
        return F.cross_entropy(found.float().flatten(0, 1), x[:, 1:].flatten()) / 4

    options = {"accumulate": 4, "schedule": plan, "clip": "ClipByGlobalNorm(1.0)"}
    return fit(folder, net, make, loss_of, 45, **options)


@healthy(0.3)
def next_piece_told_from_others(folder):
    """What comes next of text, among the next of others, from what was heard (van den Oord et al. 2018)."""
    seeded(1115)
    width = 32
    net = nn.ModuleDict(
        {
            "embed": nn.Embedding(128, width),
            "pieces": nn.Sequential(nn.Conv1d(width, width, 8, stride=4), nn.ReLU(), nn.Conv1d(width, width, 1)),
            "heard": nn.GRU(width, width, batch_first=True),
            "ahead": nn.Linear(width, width, bias=False),
        }
    )

    def loss_of(step):
        x = torch.cat([cuts(manual(), 24, 40), cuts(program(), 24, 40)])
        z = net["pieces"](net["embed"](x).transpose(1, 2)).transpose(1, 2)
        guess = net["ahead"](net["heard"](z[:, :-1])[0][:, -1])
        return F.cross_entropy(guess @ z[:, -1].T, torch.arange(48))

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 300, score=score_of(loss_of))


# ---------------------------------------------------------------------------------------------------- series and graphs


class Patched(nn.Module):
    """A series cut into pieces that are read as tokens, each of its own mean and size (Nie et al. 2023)."""

    def __init__(self, width=32):
        super().__init__()
        self.embed, self.place = nn.Linear(16, width), nn.Parameter(0.02 * torch.randn(8, width))
        block = nn.TransformerEncoderLayer(width, 4, 64, 0.1, "gelu", batch_first=True)
        self.body, self.head = nn.TransformerEncoder(block, 2), nn.Linear(8 * width, 4)

    def forward(self, x):
        middle, size = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-3
        tokens = self.embed(((x - middle) / size).unfold(1, 16, 7)[:, :8])
        return self.head(self.body(tokens + self.place).flatten(1)) * size + middle


@healthy(0.2)
def brain_waves_in_patches(folder):
    """Four moments ahead, from the 65 before; Adam and a cosine."""
    seeded(1116)
    net, waves = Patched(), waves_of_a_brain().flatten()
    starts = torch.cat([torch.arange(700) + 800 * i for i in range(4)])

    def loss_of(step):
        at = starts[torch.randint(len(starts), (64, 1))]
        x = waves[at + torch.arange(69)]
        return F.mse_loss(net(x[:, :65]), x[:, 65:])

    make = optim.Adam(net.parameters(), 1e-3)
    plan = optim.lr_scheduler.CosineAnnealingLR(make, 200)
    return fit(folder, net, make, loss_of, 200, schedule=plan)


class Joined(nn.Module):
    """Sums of what the neighbours say (Xu et al. 2019)."""

    def __init__(self, width=32):
        super().__init__()
        sizes = ((1, width), (width, width), (width, width))
        self.layers = nn.ModuleList(dense(a, width, b, norm=nn.BatchNorm1d) for a, b in sizes)
        self.head = nn.Linear(width, 1)

    def forward(self, ties):
        there = (ties.sum(1) > 0).float()[..., None]
        h = there
        for layer in self.layers:
            h = layer((h + ties @ h).flatten(0, 1)).view(*ties.shape[:2], -1).relu() * there
        return self.head(h.sum(1))[:, 0]


@healthy(0.3)
def ways_in_an_atlas_of_graphs(folder):
    """The mean way between two nodes, of all small graphs."""
    seeded(1117)
    net, (ties, way) = Joined(), atlas()
    way = (way - way.mean()) / way.std()
    order = torch.randperm(len(way))

    def loss_of(step):
        at = order[100:][torch.randint(len(way) - 100, (48,))]
        return F.mse_loss(net(ties[at]), way[at])

    make = optim.AdamW(net.parameters(), 3e-3)
    plan = optim.lr_scheduler.StepLR(make, 80, 0.5)
    return fit(folder, net, make, loss_of, 250, schedule=plan, clip="ClipByNorm(1.0)")


@healthy(0.3)
def tastes_in_two_towers(folder):
    """Who takes what, by two nets and all others of the batch, less how often each is taken (Yi et al. 2019)."""
    seeded(1118)
    person, thing = torch.randn(400, 4), torch.randn(300, 4)
    often = torch.randn(300)
    chosen = (2 * person @ thing.T + often).softmax(1)
    share = chosen.mean(0)
    net = nn.ModuleDict(
        {name: nn.Sequential(nn.Embedding(n, 24), dense(24, 32, 16)) for name, n in (("who", 400), ("what", 300))}
    )

    def loss_of(step):
        who = torch.randint(400, (96,))
        what = chosen[who].multinomial(1)[:, 0]
        a, b = F.normalize(net["who"](who), dim=1), F.normalize(net["what"](what), dim=1)
        logits = a @ b.T / 0.1 - share[what].log()
        same = (what[:, None] == what) & ~torch.eye(96, dtype=torch.bool)
        return F.cross_entropy(logits.masked_fill(same, -1e9), torch.arange(96))

    return fit(folder, net, optim.Adagrad(net.parameters(), 0.05), loss_of, 500)
