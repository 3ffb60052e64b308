"""Texts: tickets, clauses, letters, addresses and numbers in words, made by small grammars."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


def documents(rows, kinds, words=400, length=20, share=0.3, odds=None):
    """Codes of words `[N, length]` (0 is padding), of which a share tells the kind, and the kinds."""
    y = torch.multinomial(torch.ones(kinds) if odds is None else odds, rows, replacement=True)
    common = torch.multinomial(1 / torch.arange(1.0, words + 1), rows * length, replacement=True).view(rows, length)
    own = torch.randint(words, (kinds, 12))[y].gather(1, torch.randint(12, (rows, length)))
    x = torch.where(torch.rand(rows, length) < share, own, common) + 1
    x[torch.arange(length) >= torch.randint(length // 2, length + 1, (rows, 1))] = 0
    return x, y


@healthy()
def repair_requests_to_the_right_crew(folder):
    seeded(3213)
    odds = torch.tensor([0.4, 0.25, 0.15, 0.1, 0.05, 0.03, 0.02])
    x, y = documents(9000, 7, odds=odds)
    net = nn.Sequential(nn.EmbeddingBag(401, 32, mode="mean", padding_idx=0), nn.Linear(32, 7))
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.1)
    loss = nn.CrossEntropyLoss(weight=(1 / odds).sqrt())
    draw = rounds(64, x[:8000], y[:8000])

    def loss_of(step):
        a, b = draw()
        out = net(a)
        return loss(out, b), {"accuracy": (out.argmax(1) == b).float().mean().item()}

    score = held_out(net, lambda: loss(net(x[8000:]), y[8000:]))
    return fit(folder, net, optimizer, loss_of, 625, score=score)


class Reader(nn.Module):
    """A small encoder; the mean of what it says of the words goes to the head."""

    def __init__(self, kinds, words=401, width=48, depth=2, length=20, dropout=0.1):
        super().__init__()
        self.words = nn.Embedding(words, width, padding_idx=0)
        self.places = nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout, "gelu", batch_first=True)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, kinds)
        for table in (self.words, self.places):
            nn.init.normal_(table.weight, std=0.02)
        with torch.no_grad():
            self.words.weight[0] = 0

    def forward(self, x):
        there = (x > 0).float()[:, :, None]
        h = self.norm(self.words(x) + self.places.weight[: x.shape[1]])
        h = self.body(h, src_key_padding_mask=x == 0)
        return self.head(self.dropout((h * there).sum(1) / there.sum(1)))


def up_and_down(optimizer, warm, steps):
    """Linear warm-up, then down to zero in a line."""
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, max(0.0, (steps - step) / (steps - warm)))
    )


@healthy()
def clauses_of_leases_by_a_tuned_reader(folder):
    seeded(3214)
    x, y = documents(4000, 16)
    net = Reader(16)
    before = torch.optim.AdamW(net.parameters(), lr=1e-3)
    draw = rounds(64, x, y)
    for _ in range(180):
        a, b = draw()
        before.zero_grad()
        F.cross_entropy(net(a), b).backward()
        before.step()

    x, y = documents(1400, 5)
    net.head = nn.Linear(48, 5)
    body = [p for name, p in net.named_parameters() if not name.startswith("head")]
    optimizer = torch.optim.AdamW(
        [{"params": body, "lr": 3e-4}, {"params": net.head.parameters(), "lr": 2e-3}], weight_decay=0.01
    )
    draw = rounds(32, x[:1100], y[:1100])

    def loss_of(step):
        a, b = draw()
        return F.cross_entropy(net(a), b)

    score = held_out(net, lambda: F.cross_entropy(net(x[1100:]), y[1100:]))
    return fit(
        folder, net, optimizer, loss_of, 204,
        schedule=up_and_down(optimizer, 20, 204), before_step=clipped(net, 1.0), score=score,
    )  # fmt: skip


@healthy()
def moods_of_hotel_guests_in_four_small_batches(folder):
    seeded(3215)
    x, y = documents(3400, 3, share=0.35)
    wrong = torch.rand(3000) < 0.08
    y[:3000][wrong] = torch.randint(3, (int(wrong.sum()),))
    net = Reader(3, depth=1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01)
    draw = rounds(8, x[:3000], y[:3000])

    def loss_of(step):
        a, b = draw()
        return F.cross_entropy(net(a), b) / 4

    score = held_out(net, lambda: F.cross_entropy(net(x[3000:]), y[3000:]))
    return fit(
        folder, net, optimizer, loss_of, 260, accumulate=4,
        schedule=up_and_down(optimizer, 25, 260), before_step=clipped(net, 1.0), score=score,
    )  # fmt: skip


class Writer(nn.Module):
    """A decoder whose last map is its table of tokens."""

    def __init__(self, tokens, width=64, depth=2, length=32):
        super().__init__()
        self.tokens, self.places = nn.Embedding(tokens, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, tokens, bias=False)
        self.head.weight = self.tokens.weight
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(
                    p, std=0.02 / (2 * depth) ** 0.5 if name.endswith(("out_proj.weight", "2.weight")) else 0.02
                )

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        h = self.tokens(x) + self.places.weight[: x.shape[1]]
        return self.head(self.body(h, mask=mask, is_causal=True))


def chain(tokens, length):
    """A long text in which two tokens tell much of the next."""
    likely = torch.randint(tokens, (tokens, tokens, 3))
    fall, pick = torch.rand(length) < 0.15, torch.randint(3, (length,)).tolist()
    other, text = torch.randint(tokens, (length,)).tolist(), [0, 1]
    table, fall = likely.tolist(), fall.tolist()
    for i in range(2, length):
        text.append(other[i] if fall[i] else table[text[-2] % 4][text[-1]][pick[i] % 2])
    return torch.tensor(text)


@healthy()
def minutes_of_a_club_token_by_token(folder):
    seeded(3216)
    text = chain(40, 60_000)
    train, fresh = text[:55_000], text[55_000:]
    net = Writer(40)
    matrices = [p for p in net.parameters() if p.dim() > 1]
    others = [p for p in net.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=2e-3, betas=(0.9, 0.95)
    )
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=30)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 320, eta_min=2e-4)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, fall], [30])

    def loss_on(text, rows=24, length=32):
        piece = text[torch.randint(len(text) - length - 1, (rows, 1)) + torch.arange(length + 1)]
        return F.cross_entropy(net(piece[:, :-1]).flatten(0, 1), piece[:, 1:].flatten())

    return fit(
        folder, net, optimizer, lambda step: loss_on(train), 350,
        schedule=schedule, before_step=clipped(net, 1.0), score=held_out(net, lambda: loss_on(fresh, 100)),
    )  # fmt: skip


def addresses(rows, length=14):
    """Words of addresses and the part that each belongs to: name, street, number, town, country (-100 is padding)."""
    x, y = torch.zeros(rows, length, dtype=torch.long), torch.full((rows, length), -100)
    for row in range(rows):
        parts = []
        for part, most in ((0, 3), (1, 3), (2, 1), (3, 2), (4, 1)):
            if part < 4 or torch.rand(()) < 0.5:
                parts += [part] * int(torch.randint(1, most + 1, ()))
        parts = torch.tensor(parts)
        words = parts * 40 + torch.randint(60, parts.shape) + 1
        x[row, : len(parts)], y[row, : len(parts)] = words, parts
    return x, y


@healthy()
def addresses_taken_apart(folder):
    seeded(3217)
    x, y = addresses(1500)
    net = nn.ModuleDict(
        {"words": nn.Embedding(240, 24, padding_idx=0), "dropout": nn.Dropout(0.3),
         "memory": nn.LSTM(24, 24, batch_first=True, bidirectional=True), "head": nn.Linear(48, 5)}
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    draw = rounds(32, x[:1200], y[:1200])

    def loss_on(x, y):
        h = net["memory"](net["dropout"](net["words"](x)))[0]
        return F.cross_entropy(net["head"](net["dropout"](h)).flatten(0, 1), y.flatten(), ignore_index=-100)

    score = held_out(net, lambda: loss_on(x[1200:], y[1200:]))
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 259, before_step=clipped(net, 5.0), score=score)


class Translator(nn.Module):
    """A recurrent encoder, and a decoder that looks back at it."""

    def __init__(self, source, target, width=48):
        super().__init__()
        self.source, self.target = nn.Embedding(source, width), nn.Embedding(target, width)
        self.read = nn.GRU(width, width, batch_first=True)
        self.write = nn.GRU(width, width, batch_first=True)
        self.join = nn.Linear(2 * width, width)
        self.head = nn.Linear(width, target)

    def forward(self, x, before):
        read, state = self.read(self.source(x))
        h = self.write(self.target(before), state)[0]
        seen = (h @ read.transpose(1, 2) / h.shape[-1] ** 0.5).softmax(-1) @ read
        return self.head(self.join(torch.cat([h, seen], -1)).tanh())


@healthy()
def lot_codes_into_the_new_format(folder):
    seeded(3218)
    swap = torch.randperm(10)

    def draw(rows=48):
        x = torch.randint(10, (rows, 6))
        y = torch.cat([swap[x[:, 3:]], x[:, :3]], 1)
        return x, torch.cat([torch.full((rows, 1), 10), y], 1)

    def loss_on(x, y):
        return F.cross_entropy(net(x, y[:, :-1]).flatten(0, 1), y[:, 1:].flatten())

    net = Translator(10, 11)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    score = held_out(net, lambda: loss_on(*draw(256)))
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 400, before_step=clipped(net, 1.0), score=score)
