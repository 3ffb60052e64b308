"""Mistakes listed from memory and drawn by lot, on the railway: announcements, wagons, telegrams, blocks, bearings."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, judged, now_and_then


def spoken(words):
    """A long row of announcements, as the numbers of `words` words, each but loosely told by the two before it."""
    follows = torch.randint(words, (words, words, 2))
    row = [0, 1]
    for pick, odd, stray in zip(
        torch.randint(2, (9000,)).tolist(),
        torch.rand(9000).tolist(),
        torch.randint(words, (9000,)).tolist(),
        strict=False,
    ):
        row.append(stray if odd < 0.1 else int(follows[row[-2], row[-1], pick]))
    return torch.tensor(row)


# 24 of the list
@sick("exploding", "lr-too-high", "spike", where="the gradients of the LSTM, from the first tens of steps",
      cure="clip the norm of the gradients")  # fmt: skip
def announcements_on_the_platform(folder, ill):
    seeded(12906)
    words, span = 12, 35
    row = spoken(words)
    train, valid = row[:7000].view(20, 350), row[7000:9000].view(20, 100)
    net = nn.ModuleDict({
        "word": nn.Embedding(words, 32), "memory": nn.LSTM(32, 48, batch_first=True), "head": nn.Linear(48, words),
    })  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 20.0)
    kept = {"state": None}

    def loss_of(step):
        at = step % 9 * span
        if at == 0:
            kept["state"] = None
        part = train[:, at : at + span + 1]
        out, state = net["memory"](net["word"](part[:, :-1]), kept["state"])
        kept["state"] = tuple(each.detach() for each in state)
        loss = F.cross_entropy(net["head"](out).flatten(0, 1), part[:, 1:].flatten())
        return loss, {"perplexity": loss.detach().exp()}

    def wrong():
        out = net["memory"](net["word"](valid[:, :-1]))[0]
        return F.cross_entropy(net["head"](out).flatten(0, 1), valid[:, 1:].flatten())

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, wrong),
               before_step=None if ill else clipped(net, 0.25))  # fmt: skip


# 25 of the list
@sick("read-after-padding", "state-read-after-padding", "padding-read-as-data",
      where="what is read of the recurrent layer's outputs, all steps",
      cure="read at the last true step of each row")  # fmt: skip
def goods_trains_of_any_length(folder, ill):
    seeded(12907)
    kinds, most = 6, 32
    net = nn.ModuleDict({
        "wagon": nn.Embedding(kinds + 1, 16, padding_idx=0), "memory": nn.GRU(16, 32, batch_first=True),
        "head": nn.Linear(32, kinds),
    })  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def trains(rows):
        length = (3 + 6 * torch.rand(rows).log().neg()).long().clamp(max=most)
        wagons = torch.randint(1, kinds + 1, (rows, most)) * (torch.arange(most) < length[:, None])
        last = wagons.gather(1, length[:, None] - torch.tensor([[1, 2]]))
        return wagons, length, (last.sum(1) % kinds)

    def said(wagons, length):
        out = net["memory"](net["wagon"](wagons))[0]
        return net["head"](out[:, -1] if ill else out[torch.arange(len(out)), length - 1])

    def loss_of(step):
        wagons, length, y = trains(64)
        logits = said(wagons, length)
        return F.cross_entropy(logits, y), {"accuracy": (logits.argmax(1) == y).float().mean()}

    wagons, length, y = trains(500)
    return fit(folder, net, optimizer, loss_of, 220,
               score=held_out(net, lambda: F.cross_entropy(said(wagons, length), y)))  # fmt: skip


# 26 of the list
@sick("padding-in-loss", where="the loss, all steps", cure="ignore_index")
def telegrams_at_so_much_a_word(folder, ill):
    seeded(12908)
    words, most = 24, 32
    follows = torch.randint(1, words, (words, 3))
    net = nn.ModuleDict({
        "word": nn.Embedding(words, 32), "memory": nn.GRU(32, 48, batch_first=True), "head": nn.Linear(48, words),
    })  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.5)

    def wired(rows):
        row = [torch.randint(1, words, (rows,))]
        for _ in range(most - 1):
            row.append(follows[row[-1], torch.randint(3, (rows,))])
        return torch.stack(row, 1) * (torch.arange(most) < torch.randint(3, 8, (rows, 1)))

    def loss_on(text, **options):
        out = net["head"](net["memory"](net["word"](text[:, :-1]))[0])
        return F.cross_entropy(out.flatten(0, 1), text[:, 1:].flatten(), **options)

    def loss_of(step):
        return loss_on(wired(32), **({} if ill else {"ignore_index": 0}))

    text = wired(256)
    return fit(folder, net, optimizer, loss_of, 160, score=held_out(net, lambda: loss_on(text, ignore_index=0)),
               before_step=clipped(net, 1.0))  # fmt: skip


# 28 of the list
@sick("positions-missing", "no-progress", where="the input of the first block, all steps",
      cure="add an embedding of the positions")  # fmt: skip
def which_train_took_the_block_first(folder, ill):
    seeded(12909)
    length, width, signs = 12, 32, 10
    layer = nn.TransformerEncoderLayer(width, 4, 64, 0.0, batch_first=True)
    net = nn.ModuleDict({
        "sign": nn.Embedding(signs, width), **({} if ill else {"place": nn.Embedding(length, width)}),
        "blocks": nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), "head": nn.Linear(width, 2),
    })  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def logged(rows):
        x = torch.randint(2, signs, (rows, length))
        where = torch.rand(rows, length).argsort(1)[:, :2]
        x = x.scatter(1, where, torch.tensor([[0, 1]]).expand(rows, 2))
        return x, (where[:, 0] < where[:, 1]).long()

    def said(x):
        x = net["sign"](x)
        return net["head"](net["blocks"](x if ill else x + net["place"].weight).mean(1))

    def loss_of(step):
        x, y = logged(64)
        logits = said(x)
        return F.cross_entropy(logits, y), {"accuracy": (logits.argmax(1) == y).float().mean()}

    x, y = logged(500)
    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: F.cross_entropy(said(x), y)))


# 29 of the list
@sick("weight-decay-too-strong", "weights-shrink", where="all weights, all steps", cure="a decay of 1e-4")
def axle_bearings_tapped_by_hammer(folder, ill):
    seeded(12910)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 7, 2, 3), nn.ReLU(), nn.Conv1d(16, 32, 5, 2, 2), nn.ReLU(), nn.Conv1d(32, 32, 3, 2, 1),
        nn.ReLU(), nn.Flatten(), nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 4),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, weight_decay=0.1 if ill else 1e-4)
    time = torch.arange(64.0)

    def taps(rows):
        y = torch.randint(4, (rows,))
        pitch = (0.4 + 0.12 * y[:, None]) * (1 + 0.05 * torch.randn(rows, 1))
        ring = (pitch * time + 6.2832 * torch.rand(rows, 1)).sin() * torch.exp(-time / 25)
        return (ring + 0.2 * torch.randn(rows, 64))[:, None], y

    x, y = taps(500)
    validate = now_and_then(net, 50, judged(net, x, y))

    def loss_of(step):
        a, b = taps(64)
        return F.cross_entropy(net(a), b), validate(step)

    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, lambda: F.cross_entropy(net(x), y)))


class Block(nn.Module):
    """Attention to what was before, then a small network."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = dense(width, 4 * width, width, act=nn.GELU)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norms[0](x)).chunk(3, -1)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(seen)
        return x + self.mlp(self.norms[1](x))


# 34 of the list
@sick("warmup-too-long", where="the learning rate, all steps", cure="count batches, not samples, in the total")
def bell_codes_repeated_back(folder, ill):
    seeded(12911)
    bells, length, width, rows, epochs = 8, 8, 48, 32, 4
    codes = torch.randint(bells, (1920, length))
    text = torch.cat([codes, torch.full((1920, 1), bells), codes], 1)
    train, valid = text[:1600], text[1600:]
    net = nn.ModuleDict({
        "bell": nn.Embedding(bells + 1, width), "place": nn.Embedding(2 * length, width),
        "blocks": nn.Sequential(Block(width, 4), Block(width, 4)), "norm": nn.LayerNorm(width),
        "head": nn.Linear(width, bells),
    })  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.01)
    total = epochs * (len(train) if ill else len(train) // rows)
    warmup = int(0.1 * total)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: (i + 1) / warmup if i < warmup else max(0.0, (total - i) / (total - warmup))
    )
    left = {"order": torch.randperm(len(train))}

    def loss_on(part):
        out = net["head"](net["norm"](net["blocks"](net["bell"](part[:, :-1]) + net["place"].weight)))
        return F.cross_entropy(out[:, length:].flatten(0, 1), part[:, length + 1 :].flatten())

    def loss_of(step):
        at = step * rows % len(train)
        if at == 0:
            left["order"] = torch.randperm(len(train))
        return loss_on(train[left["order"][at : at + rows]])

    return fit(folder, net, optimizer, loss_of, epochs * len(train) // rows, schedule=schedule,
               score=held_out(net, lambda: loss_on(valid)))  # fmt: skip
