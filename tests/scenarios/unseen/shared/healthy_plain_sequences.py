"""Sequences and language: letters, tokens, tags, dates, sentences."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


def chain(kinds, spread=0.15):
    """`write(rows, length)`: sequences of which each token hangs on the two before it."""
    table = (torch.randn(kinds, kinds, kinds) / spread**0.5).softmax(2)

    def write(rows, length):
        text = [torch.randint(kinds, (rows,)), torch.randint(kinds, (rows,))]
        for _ in range(length - 2):
            text.append(torch.multinomial(table[text[-2], text[-1]], 1)[:, 0])
        return torch.stack(text, 1)

    return write


@healthy()
def spellings_of_village_names(folder):
    seeded(3617)
    write = chain(12)
    train, test = write(1500, 21), write(200, 21)
    draw = rounds(32, train)

    class Speller(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(12, 24)
            self.rnn = nn.GRU(24, 64, batch_first=True)
            self.head = nn.Linear(64, 12)

        def forward(self, x):
            return self.head(self.rnn(self.embed(x))[0])

    net = Speller()
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)

    def loss_on(text):
        return F.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    def loss_of(step):
        loss = loss_on(draw()[0])
        return loss, {"perplexity": loss.detach().exp()}

    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, loss_of, 500, score=score, before_step=clipped(net, 1.0))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self, kinds, width=48, depth=3, heads=4, length=32):
        super().__init__()
        self.embed, self.place = nn.Embedding(kinds, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, kinds, bias=False)
        self.head.weight = self.embed.weight
        for name, p in self.named_parameters():
            if p.dim() > 1:
                deep = name.endswith(("out.weight", "mlp.2.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * depth) if deep else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.embed(x) + self.place.weight[: x.shape[1]])))


@healthy(gain=0.2)
def stage_directions_word_by_word(folder):
    seeded(3618)
    write = chain(16)
    train, test = write(3000, 25), write(200, 25)
    draw = rounds(32, train)
    net = Decoder(16)
    decayed = [p for p in net.parameters() if p.dim() > 1]
    rest = [p for p in net.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))
    steps, warm = 500, 40

    def share(step):
        if step < warm:
            return (step + 1) / warm
        return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)

    def loss_on(text):
        return F.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    score = held_out(net, lambda: loss_on(test))
    return fit(
        folder,
        net,
        optimizer,
        lambda step: loss_on(draw()[0]),
        steps,
        score=score,
        before_step=clipped(net, 1.0),
        schedule=schedule,
    )


@healthy()
def persons_and_places_in_news(folder):
    seeded(3619)
    rows, length, words = 1600, 16, 120
    text = torch.randint(1, words, (rows, length))
    size = torch.randint(6, length + 1, (rows,))
    is_title = text < 10
    is_preposition = (text >= 10) & (text < 20)
    before = torch.roll(torch.where(is_title, 1, torch.where(is_preposition, 2, 0)), 1, 1)
    before[:, 0] = 0
    tags = torch.where(text % 3 > 0, before, 0)
    tags = torch.where(is_title | is_preposition, 0, tags)
    past = torch.arange(length) >= size[:, None]
    text, tags = text.masked_fill(past, 0), tags.masked_fill(past, -100)
    draw = rounds(32, text[:1300], tags[:1300], size[:1300])

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(words, 32, padding_idx=0)
            self.drop = nn.Dropout(0.2)
            self.lstm = nn.LSTM(32, 32, batch_first=True, bidirectional=True)
            self.head = nn.Linear(64, 3)

        def forward(self, x, size):
            h = nn.utils.rnn.pack_padded_sequence(
                self.drop(self.embed(x)), size, batch_first=True, enforce_sorted=False
            )
            h, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(h)[0], batch_first=True, total_length=x.shape[1])
            return self.head(self.drop(h))

    net = Tagger()
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)

    def loss_on(x, y, n):
        return F.cross_entropy(net(x, n).flatten(0, 1), y.flatten(), ignore_index=-100)

    score = held_out(net, lambda: loss_on(text[1300:], tags[1300:], size[1300:]))
    return fit(
        folder,
        net,
        optimizer,
        lambda step: loss_on(*draw()),
        360,
        score=score,
        before_step=clipped(net, 5.0),
    )


class Translator(nn.Module):
    def __init__(self, kinds, width=48):
        super().__init__()
        self.source, self.target = nn.Embedding(kinds, width), nn.Embedding(kinds + 1, width)
        self.encoder = nn.GRU(width, width // 2, batch_first=True, bidirectional=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.query = nn.Linear(width, width, bias=False)
        self.out = nn.Sequential(nn.Linear(2 * width, width), nn.Tanh(), nn.Linear(width, kinds))

    def forward(self, x, y):
        keys, last = self.encoder(self.source(x))
        start = torch.full_like(y[:, :1], self.target.num_embeddings - 1)
        given = torch.cat([start, y[:, :-1]], 1)
        h, _ = self.decoder(self.target(given), torch.cat([last[0], last[1]], 1)[None])
        weights = (self.query(h) @ keys.transpose(1, 2) / keys.shape[-1] ** 0.5).softmax(2)
        return self.out(torch.cat([h, weights @ keys], 2))


@healthy()
def american_dates_written_the_european_way(folder):
    seeded(3620)
    rows = 3000
    month, day = torch.randint(1, 13, (rows,)), torch.randint(1, 29, (rows,))
    year = torch.randint(1950, 2030, (rows,))
    slash, dot = torch.full((rows,), 10), torch.full((rows,), 11)

    def digits(value, count):
        return [value // 10**i % 10 for i in reversed(range(count))]

    x = torch.stack([*digits(month, 2), slash, *digits(day, 2), slash, *digits(year, 4)], 1)
    y = torch.stack([*digits(day, 2), dot, *digits(month, 2), dot, *digits(year, 4)], 1)
    draw = rounds(64, x[:2600], y[:2600])
    net = Translator(12)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)

    def loss_on(a, b):
        return F.cross_entropy(net(a, b).flatten(0, 1), b.flatten())

    score = held_out(net, lambda: loss_on(x[2600:], y[2600:]))
    return fit(
        folder,
        net,
        optimizer,
        lambda step: loss_on(*draw()),
        400,
        score=score,
        before_step=clipped(net, 1.0),
    )


@healthy(gain=0.2)
def intents_of_callers(folder):
    seeded(3621)
    rows, length, words, intents = 2500, 14, 150, 8
    y = torch.randint(intents, (rows,))
    text = torch.randint(41, words, (rows, length))
    size = torch.randint(5, length + 1, (rows,))
    first, second = torch.randint(0, 5, (2, rows))
    text[torch.arange(rows), first] = 1 + 5 * (y // 2) + torch.randint(5, (rows,))
    other = torch.where(second == first, (first + 1) % 5, second)
    text[torch.arange(rows), other] = 21 + 10 * (y % 2) + torch.randint(10, (rows,))
    text = text.masked_fill(torch.arange(length) >= size[:, None], 0)
    draw = rounds(50, text[:2100], y[:2100])

    class Reader(nn.Module):
        def __init__(self, width=32):
            super().__init__()
            self.embed = nn.Embedding(words, width, padding_idx=0)
            self.place = nn.Parameter(0.02 * torch.randn(length, width))
            layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.1, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(width, intents)

        def forward(self, x):
            empty = x == 0
            h = self.encoder(self.embed(x) + self.place, src_key_padding_mask=empty)
            kept = (~empty)[..., None].float()
            return self.head((h * kept).sum(1) / kept.sum(1))

    net = Reader()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 40)
    loss_fn = nn.CrossEntropyLoss(label_smoothing=0.05)

    def loss_of(step):
        a, b = draw()
        out = net(a)
        return loss_fn(out, b), {"accuracy": (out.argmax(1) == b).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(text[2100:]), y[2100:]))
    return fit(folder, net, optimizer, loss_of, 420, score=score, schedule=schedule)
