"""What is read token by token: tags, dates, prose, recipes, handwriting, gaps."""

import math

import torch
from nets import ALPHABET, CODES, digits
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from unseen import fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


@healthy()
def patches_of_a_till_receipt(folder):
    seeded(3517)
    x, y = digits()
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    patches = x.unfold(1, 2, 2).unfold(2, 2, 2).reshape(-1, 16, 4)

    class Viewer(nn.Module):
        def __init__(self, width=32):
            super().__init__()
            self.lift = nn.Linear(4, width)
            self.token = nn.Parameter(0.02 * torch.randn(1, 1, width))
            self.place = nn.Parameter(0.02 * torch.randn(1, 17, width))
            layer = nn.TransformerEncoderLayer(width, 4, 64, 0.1, "gelu", batch_first=True, norm_first=True)
            self.body = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(width), enable_nested_tensor=False)
            self.head = nn.Linear(width, 10)

        def forward(self, patches):
            h = torch.cat([self.token.expand(len(patches), -1, -1), self.lift(patches)], 1) + self.place
            return self.head(self.body(h)[:, 0])

    net = Viewer()
    draw = rounds(64, patches[:1500], y[:1500])

    def loss_of(step):
        patch, digit = draw()
        out = net(patch)
        loss = F.cross_entropy(out, digit, label_smoothing=0.1)
        return loss, {"accuracy": (out.argmax(1) == digit).float().mean()}

    steps = 23 * 9
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.05)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=40)
    cool = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - 40, eta_min=2e-5)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cool], [40])
    score = held_out(net, lambda: F.cross_entropy(net(patches[1500:]), y[1500:]))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


@healthy()
def harbours_named_in_a_logbook(folder):
    seeded(3518)
    words, tags = 120, 4
    meaning = torch.randint(tags, (words,))

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(words + 1, 24, padding_idx=0)
            self.rnn = nn.GRU(24, 24, batch_first=True, bidirectional=True)
            self.drop = nn.Dropout(0.1)
            self.head = nn.Linear(48, tags)

        def forward(self, x, lengths):
            packed = pack_padded_sequence(self.embed(x), lengths, batch_first=True, enforce_sorted=False)
            h, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=x.shape[1])
            return self.head(self.drop(h))

    net = Tagger()

    def draw(rows=32, longest=14):
        lengths = torch.randint(5, longest + 1, (rows,))
        x = torch.randint(words, (rows, longest))
        own = meaning[x]
        before = torch.cat([torch.zeros(rows, 1, dtype=torch.long), own[:, :-1]], 1)
        y = torch.where(before == 3, (own + 1) % tags, own)
        padded = torch.arange(longest) >= lengths[:, None]
        return (x + 1).masked_fill(padded, 0), lengths, y.masked_fill(padded, -100)

    def of(x, lengths, y):
        return F.cross_entropy(net(x, lengths).flatten(0, 1), y.flatten(), ignore_index=-100)

    fresh = draw(200)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    score = held_out(net, lambda: of(*fresh))
    return fit(folder, net, optimizer, lambda step: of(*draw()), 450, score=score, before_step=clipped(net, 1.0))


class Rewriter(nn.Module):
    """Reads with an LSTM, writes with another that attends to what was read."""

    def __init__(self, tokens, width=40):
        super().__init__()
        self.read = nn.Embedding(tokens, width)
        self.write = nn.Embedding(tokens + 1, width)
        self.encoder = nn.LSTM(width, width, batch_first=True)
        self.decoder = nn.LSTM(width, width, batch_first=True)
        self.query = nn.Linear(width, width, bias=False)
        self.head = nn.Linear(2 * width, tokens)

    def forward(self, x, before):
        memory, state = self.encoder(self.read(x))
        h, _ = self.decoder(self.write(before), state)
        look = (self.query(h) @ memory.transpose(1, 2) / math.sqrt(h.shape[2])).softmax(2)
        return self.head(torch.cat([h, look @ memory], 2))


@healthy()
def dates_turned_year_first(folder):
    seeded(3519)
    net = Rewriter(10)
    order = torch.tensor([4, 5, 6, 7, 2, 3, 0, 1])

    def draw(rows=48):
        day, month, year = (torch.randint(a, b, (rows,)) for a, b in ((1, 29), (1, 13), (1950, 2030)))
        x = torch.stack([day // 10, day % 10, month // 10, month % 10,
                         year // 1000, year // 100 % 10, year // 10 % 10, year % 10], 1)  # fmt: skip
        return x, x[:, order]

    def of(x, y):
        start = torch.full((len(y), 1), 10)
        out = net(x, torch.cat([start, y[:, :-1]], 1))
        return F.cross_entropy(out.flatten(0, 1), y.flatten()), (out.argmax(2) == y).all(1).float().mean()

    def loss_of(step):
        loss, whole = of(*draw())
        return loss, {"exact_match": whole}

    fresh = draw(256)
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.997)
    score = held_out(net, lambda: of(*fresh)[0])
    return fit(folder, net, optimizer, loss_of, 450, score=score, schedule=schedule, before_step=clipped(net, 1.0))


@healthy()
def pangrams_continued_by_an_lstm(folder):
    seeded(3520)
    rows, length = 8, 20
    net = nn.ModuleDict({
        "embed": nn.Embedding(len(ALPHABET), 24),
        "rnn": nn.LSTM(24, 64, num_layers=2, batch_first=True, dropout=0.1),
        "head": nn.Linear(64, len(ALPHABET)),
    })  # fmt: skip
    columns = CODES[: len(CODES) // rows * rows].view(rows, -1)
    starts = range(0, columns.shape[1] - length - 1, length)
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
    state = None

    def run(x, state=None):
        h, state = net["rnn"](net["embed"](x), state)
        return net["head"](h), state

    def one(step):
        nonlocal state
        at = starts[step % len(starts)]
        if step % len(starts) == 0:
            state = None
        x, y = columns[:, at : at + length], columns[:, at + 1 : at + length + 1]
        optimizer.zero_grad(set_to_none=True)
        out, state = run(x, state)
        state = tuple(part.detach() for part in state)
        loss = F.cross_entropy(out.flatten(0, 1), y.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return {"loss": loss, "bits_per_character": loss.detach() / math.log(2)}

    def whole():
        out, _ = run(columns[:, :-1])
        return F.cross_entropy(out.flatten(0, 1), columns[:, 1:].flatten())

    return tend(folder, net, optimizer, one, 300, held_out(net, whole))
