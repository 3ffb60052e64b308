"""Healthy trainings on text: letters, words, a code to translate, reviews, names in a report."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from unseen import fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend

WHO = ["farmer", "baker", "miller", "sailor", "teacher", "girl", "boy", "dog", "cat", "hen", "goat", "king"]
HOW = ["old", "young", "tired", "happy", "small", "proud", "hungry"]
DOES = ["sees", "likes", "finds", "follows", "greets", "calls", "paints"]
WHERE = ["barn", "river", "mill", "market", "harbour", "tower", "garden"]


def one_of(words):
    return words[int(torch.randint(len(words), ()))]


def person():
    return ["the", *([one_of(HOW)] if torch.rand(()) < 0.5 else []), one_of(WHO)]


def tale(sentences):
    """Words of simple sentences, one after the other."""
    words = []
    for _ in range(sentences):
        words += [*person(), one_of(DOES), *person()]
        words += ["near", "the", one_of(WHERE)] if torch.rand(()) < 0.6 else []
        words += ["."]
    return words


class Speller(nn.Module):
    def __init__(self, letters, hidden=64):
        super().__init__()
        self.embed = nn.Embedding(letters, 24)
        self.lstm = nn.LSTM(24, hidden, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(hidden, letters)

    def forward(self, x, state=None):
        out, state = self.lstm(self.embed(x), state)
        return self.head(self.drop(out)), state


@healthy()
def letters_of_a_village_tale(folder):
    seeded(2954)
    text = " ".join(tale(1500))
    letters = sorted(set(text))
    codes = torch.tensor([letters.index(c) for c in text])
    cut = len(codes) * 9 // 10
    rows, length = 24, 24
    train = codes[: (cut - 1) // rows * rows].view(rows, -1)
    fresh = codes[cut:][: (len(codes) - cut) // 8 * 8].view(8, -1)[:, :300]
    net = Speller(len(letters))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    state, at = None, 0

    def one(step):
        nonlocal state, at
        if at + length + 1 > train.shape[1]:
            state, at = None, 0
        x, y = train[:, at : at + length], train[:, at + 1 : at + length + 1]
        at += length
        said, state = net(x, state)
        state = tuple(part.detach() for part in state)
        loss = F.cross_entropy(said.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return {"loss": loss, "perplexity": loss.detach().exp()}

    score = held_out(net, lambda: F.cross_entropy(net(fresh[:, :-1])[0].flatten(0, 1), fresh[:, 1:].flatten()))
    return tend(folder, net, optimizer, one, 220, score)


class Block(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads = heads
        self.norm_one, self.norm_two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = self.qkv(self.norm_one(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.mlp(self.norm_two(x))


class SmallGpt(nn.Module):
    def __init__(self, words, length, width=48, depth=2):
        super().__init__()
        self.embed, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.Embedding):
                nn.init.normal_(part.weight, std=0.02)
            if isinstance(part, nn.Linear) and part.bias is not None:
                nn.init.zeros_(part.bias)

    def forward(self, x):
        h = self.embed(x) + self.place.weight[: x.shape[1]]
        for layer in self.blocks:
            h = layer(h)
        return self.head(self.norm(h))


@healthy()
def words_of_a_village_tale(folder):
    seeded(2955)
    words = tale(2500)
    known = sorted(set(words))
    codes = torch.tensor([known.index(word) for word in words])
    cut, length = len(codes) * 9 // 10, 24
    net = SmallGpt(len(known), length)
    matrices = [p for p in net.parameters() if p.dim() >= 2]
    others = [p for p in net.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=3e-3, betas=(0.9, 0.95)
    )
    steps, warm, parts = 220, 20, 2

    def share(step):
        if step < warm:
            return (step + 1) / warm
        return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)

    def error(start):
        piece = codes[start[:, None] + torch.arange(length + 1)]
        return F.cross_entropy(net(piece[:, :-1]).flatten(0, 1), piece[:, 1:].flatten())

    def one(step):
        total = 0.0
        optimizer.zero_grad(set_to_none=True)
        for _ in range(parts):
            loss = error(torch.randint(cut - length - 1, (16,))) / parts
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return {"loss": total}

    fresh = torch.arange(cut, len(codes) - length - 1, length)
    return tend(folder, net, optimizer, one, steps, held_out(net, lambda: error(fresh)))


class Translator(nn.Module):
    def __init__(self, signs, width=48):
        super().__init__()
        self.source, self.target = nn.Embedding(signs, width, padding_idx=0), nn.Embedding(signs, width, padding_idx=0)
        self.place = nn.Parameter(0.1 * torch.randn(12, width))
        self.body = nn.Transformer(width, 4, 1, 1, 96, dropout=0.05, batch_first=True, norm_first=True)
        self.head = nn.Linear(width, signs)

    def forward(self, x, y):
        later = torch.ones(y.shape[1], y.shape[1], dtype=torch.bool).triu(1)
        out = self.body(
            self.source(x) + self.place[: x.shape[1]], self.target(y) + self.place[: y.shape[1]], tgt_mask=later,
            src_key_padding_mask=x == 0, tgt_key_padding_mask=y == 0, memory_key_padding_mask=x == 0,
        )  # fmt: skip
        return self.head(out)


@healthy()
def a_secret_writing_read_aloud(folder):
    seeded(2956)
    key = 3 + torch.randperm(10)

    def pairs(rows, most=6):
        size = torch.randint(3, most + 1, (rows, 1))
        at = torch.arange(most)[None]
        x = torch.where(at < size, torch.randint(3, 13, (rows, most)), 0)
        back = x.gather(1, (size - 1 - at).clamp(min=0))
        y = torch.zeros(rows, most + 2, dtype=torch.long)
        y[:, 0], y[:, 1:-1] = 1, torch.where(at < size, key[(back - 3).clamp(min=0)], 0)
        return x, y.scatter(1, size + 1, 2)

    net = Translator(13)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3, betas=(0.9, 0.98), eps=1e-9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) / 60, (60 / (s + 1)) ** 0.5))

    def error(x, y, smooth=0.0):
        said = net(x, y[:, :-1])
        return F.cross_entropy(said.flatten(0, 1), y[:, 1:].flatten(), ignore_index=0, label_smoothing=smooth)

    fresh = pairs(300)
    return fit(
        folder, net, optimizer, lambda step: error(*pairs(48), 0.1), 280,
        score=held_out(net, lambda: error(*fresh)), schedule=schedule, before_step=clipped(net, 1.0),
    )  # fmt: skip


@healthy()
def reviews_of_inns(folder):
    seeded(2957)
    rows, words, length = 4000, 600, 30
    praise = torch.randn(words) * (torch.rand(words) < 0.3)
    often = 1 / (5 + torch.arange(words)).float()
    said = torch.multinomial(often.expand(rows, -1), length, replacement=True)
    spoken = torch.arange(length) < torch.randint(8, length + 1, (rows, 1))
    liked = ((praise[said] * spoken).sum(1) + 0.3 * torch.randn(rows) > 0).float()
    said = torch.where(spoken, said + 1, 0)

    net = nn.Sequential(nn.EmbeddingBag(words + 1, 32, mode="mean", padding_idx=0), nn.Linear(32, 1))
    draw = rounds(64, said[:3400], liked[:3400])
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.1)

    def loss_of(step):
        review, good = draw()
        return F.binary_cross_entropy_with_logits(net(review)[:, 0], good)

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(said[3400:])[:, 0], liked[3400:]))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


class Tagger(nn.Module):
    def __init__(self, words, tags=3):
        super().__init__()
        self.embed = nn.Embedding(words, 24, padding_idx=0)
        self.gru = nn.GRU(24, 32, batch_first=True, bidirectional=True)
        self.head = nn.Linear(64, tags)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(self.embed(x), lengths, batch_first=True, enforce_sorted=False)
        return self.head(pad_packed_sequence(self.gru(packed)[0], batch_first=True, total_length=x.shape[1])[0])


@healthy()
def people_named_in_a_report(folder):
    seeded(2958)
    words, length = 80, 16

    def reports(rows):
        """A title begins a name of one to three words; the verb after it ends it; words of names are met elsewhere."""
        x = torch.randint(10, words, (rows, length))
        tags = torch.zeros(rows, length, dtype=torch.long)
        for start in (1, 8):
            row = torch.arange(rows)[torch.rand(rows) < 0.8]
            size = torch.randint(1, 4, (len(row),))
            x[row, start] = torch.randint(1, 5, (len(row),))
            for i in range(1, 4):
                inside = row[size >= i]
                x[inside, start + i] = torch.randint(30, words, (len(inside),))
                tags[inside, start + i] = 1 if i == 1 else 2
            x[row, start + size + 1] = torch.randint(5, 10, (len(row),))
        lengths = torch.randint(10, length + 1, (rows,))
        over = torch.arange(length) >= lengths[:, None]
        return x.masked_fill(over, 0), tags.masked_fill(over, -100), lengths

    net = Tagger(words)
    optimizer = torch.optim.NAdam(net.parameters(), lr=3e-3)

    def error(x, tags, lengths):
        return F.cross_entropy(net(x, lengths).flatten(0, 1), tags.flatten(), ignore_index=-100)

    fresh = reports(400)
    score = held_out(net, lambda: error(*fresh))
    return fit(folder, net, optimizer, lambda s: error(*reports(32)), 250, score=score, before_step=clipped(net, 5.0))
