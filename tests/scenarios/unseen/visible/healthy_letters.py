"""Healthy trainings on rows of letters and signs: recurrent nets, transformers, adapters, numerals."""

from __future__ import annotations

import argparse
import functools
import inspect
from pydoc_data.topics import topics

import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pack_padded_sequence
from torch.optim import lr_scheduler as plans
from trainings import TREATMENT
from unseen import Outcome, fit, healthy, score_of, seeded
from unseen.visible.healthy import warmed

import gradwatch

# ------------------------------------------------------------------------------------------------- what several share

LETTERS = 95


def coded(text):
    return torch.tensor([min(max(ord(letter) - 32, 0), LETTERS - 1) for letter in text])


@functools.cache
def manual():
    """The manual of Python: 50,000 letters to train with, and 10,000."""
    codes = coded(" ".join(" ".join(topics.values()).lower().split())[:60_000])
    return codes[:50_000], codes[50_000:]


@functools.cache
def program():
    codes = coded(inspect.getsource(argparse)[:60_000])
    return codes[:50_000], codes[50_000:]


def passages(codes, rows=16, length=32):
    """Letters, and those that follow."""
    start = torch.randint(len(codes) - length, (rows, 1))
    both = codes[start + torch.arange(length + 1)]
    return both[:, :-1], both[:, 1:]


def surprise(net, codes, rows=16, length=32):
    """`loss_of(step)`: the cross-entropy of the next letters."""

    def loss_of(step):
        x, y = passages(codes, rows, length)
        return F.cross_entropy(net(x).flatten(0, 1), y.flatten())

    return loss_of


class Block(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads, self.norm_one, self.norm_two = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, h):
        rows, length, width = h.shape
        parts = self.qkv(self.norm_one(h)).view(rows, length, 3 * self.heads, -1).transpose(1, 2).chunk(3, 1)
        seen = F.scaled_dot_product_attention(*parts, is_causal=True)
        h = h + self.out(seen.transpose(1, 2).reshape(rows, length, width))
        return h + self.down(F.gelu(self.up(self.norm_two(h))))


class GPT(nn.Module):
    """As nanoGPT begins: weights of 0.02, those that end in the sum smaller; `tied` ends as it begins."""

    def __init__(self, width=48, depth=2, tied=False):
        super().__init__()
        self.embed, self.place = nn.Embedding(LETTERS, width), nn.Embedding(32, width)
        self.blocks, self.norm = nn.ModuleList(Block(width) for _ in range(depth)), nn.LayerNorm(width)
        self.head = nn.Linear(width, LETTERS, bias=False)
        for name, p in self.named_parameters():
            if p.ndim > 1:
                into_sum = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(p, std=0.02 / (2 * depth) ** 0.5 if into_sum else 0.02)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x):
        h = self.embed(x) + self.place.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


# ------------------------------------------------------------------------------------------------------ recurrent nets


class Reader(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed, self.memory = nn.Embedding(LETTERS, 32), nn.LSTM(32, width, batch_first=True)
        self.head = nn.Linear(width, LETTERS)

    def forward(self, x):
        return self.head(self.memory(self.embed(x))[0])


@healthy(0.3)
def letters_while_a_plateau_is_watched(folder):
    seeded(803)
    net, (text, apart) = Reader(), manual()
    make = optim.Adam(net.parameters(), 5e-3)
    plan = plans.ReduceLROnPlateau(make, factor=0.5, patience=2)
    score = score_of(surprise(net, apart, 32))

    def watch_plateau(step):
        if step % 25 == 24:
            plan.step(score())

    return fit(
        folder, net, make, surprise(net, text), 350, score=score, after_step=watch_plateau,
        before_step=lambda step: clip_grad_norm_(net.parameters(), 1.0),
    )  # fmt: skip


class Judge(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.memory, self.head = nn.Embedding(13, 16), nn.GRU(16, 32, batch_first=True), nn.Linear(32, 1)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(self.embed(x), lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.memory(packed)[1][0])[:, 0]


@healthy(0.5)
def verdicts_of_packed_rows(folder):
    """Good words against bad ones, and a word that turns the next one round, in reviews of 5 to 24 words."""
    seeded(804)
    net = Judge()
    worth = torch.tensor([1.0, 1, 1, 1, -1, -1, -1, -1, 0, 0, 0, 0, 0])

    def loss_of(step):
        x, lengths = torch.randint(13, (64, 24)), torch.randint(5, 25, (64,))
        turned = F.pad(x[:, :-1] == 12, (1, 0), value=False)
        said = worth[x] * torch.where(turned, -1, 1) * (torch.arange(24) < lengths[:, None])
        return F.binary_cross_entropy_with_logits(net(x, lengths), (said.sum(1) > 0).float())

    make = optim.RMSprop(net.parameters(), 6e-3, alpha=0.9)
    return fit(folder, net, make, loss_of, 400, score=score_of(loss_of))


class Translator(nn.Module):
    """A recurrent encoder, and a decoder that looks at all of its states."""

    def __init__(self, width=48):
        super().__init__()
        self.read, self.write = nn.Embedding(11, 24), nn.Embedding(9, 24)
        self.encoder = nn.GRU(24, width // 2, batch_first=True, bidirectional=True)
        self.decoder, self.ask = nn.GRU(24, width, batch_first=True), nn.Linear(width, width, bias=False)
        self.head = nn.Linear(2 * width, 9)

    def forward(self, x, before):
        states, last = self.encoder(self.read(x))
        h, _ = self.decoder(self.write(before), torch.cat([*last], 1)[None])
        found = (self.ask(h) @ states.transpose(1, 2)).softmax(2) @ states
        return self.head(torch.cat([h, found], 2))


ROMAN = {100: "C", 90: "XC", 50: "L", 40: "XL", 10: "X", 9: "IX", 5: "V", 4: "IV", 1: "I"}


def roman(number):
    text = ""
    for value, sign in ROMAN.items():
        text, number = text + number // value * sign, number % value
    return text


@healthy(0.5)
def roman_numerals_by_attention(folder):
    """From 1 to 399; teacher forcing, padding left out of the loss."""
    seeded(818)
    net = Translator()
    signs = [[1, *("IVXLC".index(sign) + 3 for sign in roman(number)), 2] for number in range(1, 400)]
    rows = torch.tensor([row + [0] * (15 - len(row)) for row in signs])
    figures = torch.tensor([[int(figure) for figure in f"{number:03}"] for number in range(1, 400)])
    make = optim.Adadelta(net.parameters(), 1.0, rho=0.95)

    def loss_of(step):
        at = torch.randint(399, (64,))
        y = rows[at]
        return F.cross_entropy(net(figures[at], y[:, :-1]).flatten(0, 1), y[:, 1:].flatten(), ignore_index=0)

    return fit(
        folder, net, make, loss_of, 400, score=score_of(loss_of),
        before_step=lambda step: clip_grad_norm_(net.parameters(), 1.0),
    )  # fmt: skip


# -------------------------------------------------------------------------------------------------------- transformers


class Tagger(nn.Module):
    def __init__(self, width=32, depth=2):
        super().__init__()
        self.embed, self.place = nn.Embedding(4, width, padding_idx=0), nn.Parameter(0.1 * torch.randn(20, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 6)

    def forward(self, x):
        return self.head(self.body(self.embed(x) + self.place, src_key_padding_mask=x == 0))


@healthy(0.5)
def depths_of_brackets_tagged(folder):
    """How deep each place is, at most 5; rows of 8 to 20 signs, padding left out."""
    seeded(805)
    net = Tagger()
    make = optim.Adafactor(net.parameters(), 4e-2)

    def loss_of(step):
        lengths = torch.randint(8, 21, (32,))
        depth, x, y = torch.zeros(32, dtype=torch.long), [], []
        for _ in range(20):
            sign = torch.where(depth == 0, torch.randint(1, 3, (32,)) * 2 - 1, torch.randint(1, 4, (32,)))
            sign = torch.where((depth == 5) & (sign == 1), 2, sign)
            depth = depth + (sign == 1).long() - (sign == 2).long()
            x.append(sign)
            y.append(depth)
        x, y = torch.stack(x, 1), torch.stack(y, 1)
        outside = torch.arange(20) >= lengths[:, None]
        logits = net(x.masked_fill(outside, 0))
        return F.cross_entropy(logits.flatten(0, 1), y.masked_fill(outside, -100).flatten())

    plan = plans.LinearLR(make, 0.1, total_iters=40)
    return fit(folder, net, make, loss_of, 400, schedule=plan, score=score_of(loss_of))


@healthy(0.3)
def small_gpt_in_four_micro_batches(folder):
    seeded(806)
    net, (text, apart) = GPT(), manual()
    matrices = [p for p in net.parameters() if p.ndim > 1]
    vectors = [p for p in net.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    make = optim.AdamW(groups, 5e-3, betas=(0.9, 0.95))
    loss_of = surprise(net, text, 8)
    return fit(
        folder, net, make, lambda step: loss_of(step) / 4, 150, accumulate=4, schedule=warmed(make, 15, 150, 0.1),
        score=score_of(surprise(net, apart, 32)), before_step=lambda step: clip_grad_norm_(net.parameters(), 1.0),
    )  # fmt: skip


class Thin(nn.Module):
    """A frozen linear layer, and beside it a product of two thin ones (Hu et al. 2021)."""

    def __init__(self, frozen, rank=8, alpha=16):
        super().__init__()
        self.frozen, self.share = frozen.requires_grad_(False), alpha / rank
        self.lora_a = nn.Linear(frozen.in_features, rank, bias=False)
        self.lora_b = nn.Linear(rank, frozen.out_features, bias=False)
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x):
        return self.frozen(x) + self.share * self.lora_b(self.lora_a(x))


@healthy(0.15)
def new_text_through_thin_adapters(folder):
    """A GPT that has read the manual learns to read a program; only the adapters learn."""
    seeded(822)
    net, (text, apart) = GPT(), program()
    before, known = optim.AdamW(net.parameters(), 5e-3), surprise(net, manual()[0])
    for step in range(250):
        before.zero_grad()
        known(step).backward()
        before.step()
    net.zero_grad()
    net.requires_grad_(False)
    for block in net.blocks:
        for name in ("qkv", "out", "up", "down"):
            setattr(block, name, Thin(getattr(block, name)))
    make = optim.AdamW([p for p in net.parameters() if p.requires_grad], 5e-3, weight_decay=0.0)
    plan = plans.LinearLR(make, 1.0, 0.0, 200)
    score = score_of(surprise(net, apart, 32))
    return fit(folder, net, make, surprise(net, text), 200, schedule=plan, score=score)


@healthy(0.3)
def tied_letters_in_orthogonal_steps(folder):
    """Muon moves the matrices of the blocks, AdamW the table, which is the head too, and the norms."""
    seeded(823)
    net, (text, apart) = GPT(tied=True), manual()
    inner = [p for p in net.blocks.parameters() if p.ndim == 2]
    chosen = {id(p) for p in inner}
    rest = [p for p in net.parameters() if id(p) not in chosen]
    both = [optim.Muon(inner, 0.02, weight_decay=0.01), optim.AdamW(rest, 5e-3, betas=(0.9, 0.95), weight_decay=0.0)]
    flat_then_down = [plans.LambdaLR(make, lambda step: min(1.0, (250 - step) / 100)) for make in both]
    loss_of, score = surprise(net, text), score_of(surprise(net, apart, 32))
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(net, both)}
    first, watch = score(), gradwatch.watch(net, both, **options)
    with watch:
        for step in range(250):
            for make in both:
                make.zero_grad()
            loss = loss_of(step)
            loss.backward()
            for make, plan in zip(both, flat_then_down, strict=True):
                make.step()
                plan.step()
            watch.log(loss=loss)
    return Outcome(gradwatch.open_history(watch.dir), first, score())
