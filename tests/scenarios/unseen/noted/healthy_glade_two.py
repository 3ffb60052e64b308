"""Everyday trainings on text: topics, tags, next letters, dates, masked words and their use, spoken numbers."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from unseen import fit, healthy, score_of, seeded
from unseen.tasks import clipped, held_out, tend


@healthy()
def desks_of_a_newspaper(folder):
    seeded(3317)
    topics, words, rows = 5, 500, 3200
    use = (torch.randn(topics, words) * 0.9).softmax(1)

    def articles(rows):
        y = torch.randint(topics, (rows,))
        lengths = torch.randint(12, 40, (rows,))
        return [torch.multinomial(use[topic], n, True) for topic, n in zip(y, lengths, strict=True)], y

    def packed(texts):
        ends = torch.tensor([len(text) for text in texts]).cumsum(0)
        return torch.cat(texts), F.pad(ends[:-1], (1, 0))

    texts, y = articles(rows)
    texts_test, y_test = articles(400)
    net = nn.ModuleDict({"bag": nn.EmbeddingBag(words, 32), "head": nn.Linear(32, topics)})
    nn.init.uniform_(net["bag"].weight, -0.5, 0.5)
    nn.init.uniform_(net["head"].weight, -0.5, 0.5)
    nn.init.zeros_(net["head"].bias)
    optimizer = torch.optim.SGD(net.parameters(), lr=2.0)
    per_epoch = rows // 32
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4 * per_epoch, gamma=0.2)
    order = [torch.randperm(rows) for _ in range(6)]

    def loss_of(step):
        epoch, batch = divmod(step, per_epoch)
        rows_now = order[epoch][32 * batch : 32 * batch + 32]
        out = net["head"](net["bag"](*packed([texts[i] for i in rows_now])))
        return F.cross_entropy(out, y[rows_now]), {"accuracy": (out.argmax(1) == y[rows_now]).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net["head"](net["bag"](*packed(texts_test))), y_test))
    return fit(
        folder, net, optimizer, loss_of, 6 * per_epoch, schedule=schedule, score=score, before_step=clipped(net, 1.0)
    )


class Tagger(nn.Module):
    def __init__(self, words, tags):
        super().__init__()
        self.embed = nn.Embedding(words, 24, padding_idx=0)
        self.drop = nn.Dropout(0.2)
        self.lstm = nn.LSTM(24, 32, batch_first=True, bidirectional=True)
        self.head = nn.Linear(64, tags)

    def forward(self, x, lengths):
        h = pack_padded_sequence(self.drop(self.embed(x)), lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.drop(pad_packed_sequence(self.lstm(h)[0], batch_first=True)[0]))


@healthy()
def parts_of_speech_in_short_sentences(folder):
    seeded(3318)
    tags, words = 6, 90
    follows = (torch.randn(tags, tags) * 2).softmax(1)
    says = (torch.randn(tags, words) * 1.8).softmax(1)

    def sentences(rows):
        lengths = torch.randint(5, 15, (rows,))
        tag = [torch.randint(tags, (rows,))]
        for _ in range(int(lengths.max()) - 1):
            tag.append(torch.multinomial(follows[tag[-1]], 1)[:, 0])
        tag = torch.stack(tag, 1)
        x = 1 + torch.multinomial(says[tag.flatten()], 1).view(tag.shape)
        over = torch.arange(tag.shape[1]) >= lengths[:, None]
        return x.masked_fill(over, 0), tag.masked_fill(over, -100), lengths

    net = Tagger(words + 1, tags)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 300)
    test = sentences(200)

    def entropy(x, tag, lengths):
        return F.cross_entropy(net(x, lengths).flatten(0, 1), tag.flatten(), ignore_index=-100)

    score = held_out(net, lambda: entropy(*test))
    return fit(folder, net, optimizer, lambda step: entropy(*sentences(32)), 300, schedule=schedule, score=score)


class Speller(nn.Module):
    """A decoder of letters; the table at both ends is one."""

    def __init__(self, letters, width=48, depth=2, most=32):
        super().__init__()
        self.embed = nn.Embedding(letters, width)
        self.place = nn.Embedding(most, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.05, "gelu", batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        for table in (self.embed, self.place):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        h = self.embed(x) + self.place(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = block(h, src_mask=mask, is_causal=True)
        return self.norm(h) @ self.embed.weight.T


@healthy()
def orders_called_into_a_kitchen(folder):
    seeded(3319)
    dishes = ["soup", "stew", "trout", "pie", "salad", "toast", "risotto", "omelette"]
    sides = ["chips", "rice", "greens", "beans", "bread"]
    wishes = ["no salt", "well done", "to share", "in a hurry", "for table six"]

    def pick(of):
        return of[int(torch.randint(len(of), (1,)))]

    text = " ".join(f"{pick(['one', 'two', 'three'])} {pick(dishes)} with {pick(sides)} {pick(wishes)}."
                    for _ in range(1500))  # fmt: skip
    letters = sorted(set(text))
    codes = torch.tensor([letters.index(c) for c in text])
    train, test = codes[: 9 * len(codes) // 10], codes[9 * len(codes) // 10 :]

    def entropy(of, rows=12, length=32):
        at = torch.randint(len(of) - length - 1, (rows, 1)) + torch.arange(length + 1)
        both = of[at]
        return F.cross_entropy(net(both[:, :-1]).flatten(0, 1), both[:, 1:].flatten())

    net = Speller(len(letters))
    matrices = [p for p in net.parameters() if p.ndim > 1]
    others = [p for p in net.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))
    steps, warm = 220, 20

    def rate(step):
        if step < warm:
            return (step + 1) / warm
        return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)

    def one(step):
        total = 0.0
        for _ in range(2):
            loss = entropy(train) / 2
            loss.backward()
            total += float(loss)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        return {"loss": total, "perplexity": math.exp(total)}

    return tend(folder, net, optimizer, one, steps, held_out(net, lambda: entropy(test, 64)))


MONTHS = ["january", "february", "march", "april", "may", "june", "july", "august", "september", "october",
          "november", "december"]  # fmt: skip
SIGNS = ["<pad>", "<go>", *"abcdefghijklmnopqrstuvwxyz0123456789 -"]


class Rewriter(nn.Module):
    """A recurrent reader and a writer that attends to what was read."""

    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Embedding(len(SIGNS), 32, padding_idx=0)
        self.reader = nn.GRU(32, width // 2, batch_first=True, bidirectional=True)
        self.writer = nn.GRU(32, width, batch_first=True)
        self.ask = nn.Linear(width, width, bias=False)
        self.mix = nn.Linear(2 * width, width)
        self.out = nn.Linear(width, len(SIGNS))

    def forward(self, source, before):
        memory, end = self.reader(self.embed(source))
        h, _ = self.writer(self.embed(before), torch.cat([end[0], end[1]], 1)[None])
        fit_to = (self.ask(h) @ memory.transpose(1, 2)).masked_fill(source[:, None] == 0, -torch.inf)
        found = fit_to.softmax(2) @ memory
        return self.out(self.mix(torch.cat([h, found], 2)).tanh())


@healthy()
def dates_put_into_iso_form(folder):
    seeded(3320)

    def coded(text, size):
        codes = [SIGNS.index(c) for c in text]
        return codes + [0] * (size - len(codes))

    def dates(rows):
        day, month, year = (torch.randint(a, b, (rows,)).tolist() for a, b in ((1, 29), (1, 13), (1950, 2030)))
        source, target = [], []
        for d, m, y in zip(day, month, year, strict=True):
            source.append(coded(f"{d} {MONTHS[m - 1]} {y}", 17))
            target.append(coded(f"{y}-{m:02}-{d:02}", 10))
        return torch.tensor(source), torch.tensor(target)

    def entropy(source, target):
        before = F.pad(target[:, :-1], (1, 0), value=1)
        return F.cross_entropy(net(source, before).flatten(0, 1), target.flatten())

    net = Rewriter()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    (source, target), test = dates(2000), dates(200)

    def loss_of(step):
        rows = torch.randint(len(source), (48,))
        return entropy(source[rows], target[rows])

    score = held_out(net, lambda: entropy(*test))
    return fit(folder, net, optimizer, loss_of, 350, score=score, before_step=clipped(net, 1.0))


@healthy()
def complaints_sorted_after_masked_words(folder):
    seeded(3321)
    kinds, words, width = 4, 60, 32
    use = (torch.randn(kinds, words) * 1.1).softmax(1)

    def letters(rows, length=16):
        y = torch.randint(kinds, (rows,))
        x = 2 + torch.multinomial(use[y], length, True)
        return F.pad(x, (1, 0), value=0), y

    layer = nn.TransformerEncoderLayer(width, 4, 64, 0.1, "gelu", batch_first=True, norm_first=True)
    body = nn.Sequential(
        nn.Embedding(words + 2, width), nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
    )
    guess = nn.Linear(width, words + 2)
    first = torch.optim.AdamW([*body.parameters(), *guess.parameters()], lr=2e-3)
    for _ in range(150):
        x, _ = letters(32)
        hidden = (torch.rand(x.shape) < 0.15) & (x > 1)
        out = guess(body(x.masked_fill(hidden, 1)))
        first.zero_grad()
        F.cross_entropy(out[hidden], x[hidden]).backward()
        first.step()

    net = nn.ModuleDict({"body": body, "head": nn.Sequential(nn.Dropout(0.1), nn.Linear(width, kinds))})
    plain = [p for p in net.parameters() if p.ndim < 2]
    decayed = [p for p in net.parameters() if p.ndim > 1]
    optimizer = torch.optim.AdamW([{"params": decayed}, {"params": plain, "weight_decay": 0.0}], lr=1e-3)
    steps = 160
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 16, max(0.0, (steps - step) / (steps - 16)))
    )

    def entropy(rows):
        x, y = letters(rows)
        return F.cross_entropy(net["head"](net["body"](x)[:, 0]), y)

    return fit(
        folder, net, optimizer, lambda step: entropy(24), steps,
        schedule=schedule, score=held_out(net, lambda: entropy(300)), before_step=clipped(net, 1.0),
    )  # fmt: skip


@healthy()
def numbers_spoken_in_a_row(folder):
    seeded(3322)
    sounds = torch.randn(10, 12)

    def calls(rows, digits=4, frames=24):
        said = torch.randint(10, (rows, digits))
        heard = torch.zeros(rows, frames, 12)
        for row in range(rows):
            at = int(torch.randint(0, 4, (1,)))
            for digit in said[row]:
                long = int(torch.randint(3, 5, (1,)))
                heard[row, at : at + long] = sounds[digit]
                at += long + 1
        return heard + 0.4 * torch.randn_like(heard), said + 1

    net = nn.ModuleDict({
        "front": nn.Sequential(nn.Conv1d(12, 32, 3, padding=1), nn.ReLU()),
        "gru": nn.GRU(32, 32, batch_first=True, bidirectional=True),
        "head": nn.Linear(64, 11),
    })  # fmt: skip

    def loss_of(step):
        heard, said = calls(24)
        h = net["front"](heard.transpose(1, 2)).transpose(1, 2)
        out = net["head"](net["gru"](h)[0]).log_softmax(2).transpose(0, 1)
        return F.ctc_loss(out, said, torch.full((24,), 24), torch.full((24,), 4), zero_infinity=True)

    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3)
    score = score_of(loss_of, 4)
    return fit(folder, net, optimizer, loss_of, 300, score=score, before_step=clipped(net, 5.0))
