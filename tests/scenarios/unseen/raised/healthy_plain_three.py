"""Texts and sequences: recipes, opinions, dates, a heat network, tags of words."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from unseen import fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


def cookbook(lines):
    """Letters as numbers, of lines that a small grammar writes."""

    def one_of(words):
        return words[int(torch.randint(len(words), ()))]

    verbs, tools = ["stir", "fold", "whisk", "beat"], ["a bowl", "a pan", "the oven", "a jug"]
    things = ["eggs", "spoons of flour", "cups of milk", "onions", "grams of butter", "leaves of mint"]
    text = "".join(
        f"{one_of(verbs)} {int(torch.randint(2, 9, ()))} {one_of(things)} in {one_of(tools)}"
        f"{one_of(['', ' slowly', ' until smooth', ' and wait'])}.\n"
        for _ in range(lines)
    )
    letters = sorted(set(text))
    return torch.tensor([letters.index(c) for c in text]), len(letters)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.first(x)).chunk(3, 2))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.second(x))))


class Writer(nn.Module):
    """A small GPT whose head is its table."""

    def __init__(self, letters, length, width=48, depth=2):
        super().__init__()
        self.table, self.place = nn.Embedding(letters, width), nn.Embedding(length, width)
        self.blocks, self.norm = nn.ModuleList(Block(width, 4) for _ in range(depth)), nn.LayerNorm(width)
        self.head = nn.Linear(width, letters, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for block in self.blocks:
            for layer in (block.out, block.narrow):
                nn.init.normal_(layer.weight, std=0.02 / math.sqrt(2 * depth))
        self.head.weight = self.table.weight

    def forward(self, x):
        h = self.table(x) + self.place.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


@healthy()
def cookbook_letter_by_letter(folder):
    seeded(2858)
    text, letters = cookbook(500)
    train, test, length, steps, parts = text[:-2000], text[-2000:], 40, 220, 4
    net = Writer(letters, length)
    decayed = [p for p in net.parameters() if p.dim() > 1]
    others = [p for p in net.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))

    def share(step):
        if step < 25:
            return (step + 1) / 25
        return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - 25) / (steps - 25)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)

    def loss_on(source, rows):
        at = torch.randint(len(source) - length, (rows, 1)) + torch.arange(length + 1)
        both = source[at]
        return F.cross_entropy(net(both[:, :-1]).flatten(0, 1), both[:, 1:].flatten())

    def one(step):
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for _ in range(parts):
            loss = loss_on(train, 6) / parts
            loss.backward()
            total += loss.item()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return {"loss": total, "norm": float(norm)}

    return tend(folder, net, optimizer, one, steps, held_out(net, lambda: loss_on(test, 64)))


@healthy()
def opinions_on_hotels_by_their_words(folder):
    seeded(2859)
    words, length = 2000, 30
    likely = 1 / (torch.arange(words) + 5.0)
    feeling = torch.randn(words) * (torch.rand(words) < 0.25)

    def reviews(rows):
        good = torch.randint(2, (rows,))
        tilt = (0.6 * feeling * (2 * good[:, None] - 1)).exp() * likely
        read = torch.multinomial(tilt, length, replacement=True) + 1
        long = torch.randint(8, length + 1, (rows, 1))
        return read * (torch.arange(length) < long), good

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(words + 1, 32, mode="mean", padding_idx=0)
            self.drop = nn.Dropout(0.3)
            self.head = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))

        def forward(self, x):
            return self.head(self.drop(self.bag(x)))

    net = Reader()
    x, y = reviews(6000)
    fresh, fresh_y = reviews(1000)
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.05)
    draw = rounds(64, x, y)

    def loss_of(step):
        read, good = draw()
        out = net(read)
        return F.cross_entropy(out, good), {"accuracy": float((out.argmax(1) == good).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(fresh), fresh_y))
    return fit(folder, net, optimizer, loss_of, 600, score=score)


class Clerk(nn.Module):
    """Reads with a recurrent net, writes with another one that attends to what was read."""

    def __init__(self, signs, width=48):
        super().__init__()
        self.table = nn.Embedding(signs, width)
        self.read = nn.GRU(width, width // 2, batch_first=True, bidirectional=True)
        self.write = nn.GRU(width, width, batch_first=True)
        self.ask, self.head = nn.Linear(width, width, bias=False), nn.Linear(2 * width, signs)

    def forward(self, given, written):
        kept, _ = self.read(self.table(given))
        state, _ = self.write(self.table(written), kept.mean(1)[None].contiguous())
        weight = (self.ask(state) @ kept.transpose(1, 2) / kept.shape[2] ** 0.5).softmax(2)
        return self.head(torch.cat([state, weight @ kept], 2))


@healthy()
def dates_of_letters_put_in_order(folder):
    seeded(2860)
    alphabet = " 0123456789abcdefghijklmnoprstuvy-,^"
    months = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]

    def dates(rows):
        given, wanted = [], []
        for day, month, year, way in zip(
            torch.randint(1, 29, (rows,)).tolist(), torch.randint(12, (rows,)).tolist(),
            torch.randint(1850, 1950, (rows,)).tolist(), torch.randint(3, (rows,)).tolist(),
            strict=True,
        ):  # fmt: skip
            name = months[month]
            given.append((f"{name} {day}, {year}", f"{day} {name} {year}", f"{year}, {day} {name}")[way].ljust(12))
            wanted.append(f"^{year}-{month + 1:02}-{day:02}")
        return tuple(torch.tensor([[alphabet.index(c) for c in line] for line in lines]) for lines in (given, wanted))

    net = Clerk(len(alphabet))
    given, wanted = dates(4000)
    fresh, fresh_wanted = dates(400)
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    draw = rounds(64, given, wanted)

    def error(given, wanted):
        return F.cross_entropy(net(given, wanted[:, :-1]).flatten(0, 1), wanted[:, 1:].flatten())

    score = held_out(net, lambda: error(fresh, fresh_wanted))
    return fit(folder, net, optimizer, lambda step: error(*draw()), 400, score=score, before_step=clipped(net, 1.0))


class Forecaster(nn.Module):
    def __init__(self, seen, ahead, width=32):
        super().__init__()
        self.memory = nn.LSTM(seen, width, 2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(width, ahead)

    def forward(self, past):
        return self.head(self.memory(past)[0][:, -1])


@healthy()
def demand_of_a_heat_network(folder):
    seeded(2861)
    hours, ahead, past = 3000, 12, 36
    t = torch.arange(float(hours))
    cold = torch.zeros(hours)
    for i in range(1, hours):
        cold[i] = 0.98 * cold[i - 1] + 0.2 * torch.randn(())
    day, week = torch.sin(6.2832 * t / 24), ((t // 24) % 7 >= 5).float()
    load = 50 + 8 * cold.clamp(min=-2) + 10 * day * (1 - 0.4 * week) + torch.randn(hours)
    load = load + 4 * torch.cos(12.5664 * t / 24)
    columns = torch.stack([load, day, torch.cos(6.2832 * t / 24), week, cold], 1)
    columns[:, 0] = (load - load[:2400].mean()) / load[:2400].std()
    windows = columns.unfold(0, past + ahead, 1).transpose(1, 2)
    x, y = windows[:, :past], windows[:, past:, 0]
    net = Forecaster(5, ahead)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=2)
    draw, score = rounds(64, x[:2300], y[:2300]), held_out(net, lambda: F.l1_loss(net(x[2400:]), y[2400:]))

    def one(step):
        rows, target = draw()
        loss = F.l1_loss(net(rows), target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
        if (step + 1) % 35:
            return {"loss": loss}
        unseen = score()
        plateau.step(unseen)
        return {"loss": loss, "val_loss": unseen}

    return tend(folder, net, optimizer, one, 350, score)


class Tagger(nn.Module):
    def __init__(self, words, tags, width=24):
        super().__init__()
        self.table = nn.Embedding(words, width, padding_idx=0)
        self.memory = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(2 * width, tags)

    def forward(self, x, long):
        packed = pack_padded_sequence(self.table(x), long, batch_first=True, enforce_sorted=False)
        h, _ = pad_packed_sequence(self.memory(packed)[0], batch_first=True, total_length=x.shape[1])
        return self.head(self.drop(h))


@healthy()
def streets_and_people_marked_in_reports(folder):
    seeded(2862)
    length, words = 18, 300
    nature = torch.randint(4, (words,))

    def reports(rows):
        x = torch.randint(1, words, (rows, length))
        kind = nature[x]
        before = F.pad(kind, (1, 0), value=0)[:, :-1]
        after = F.pad(kind, (0, 1), value=0)[:, 1:]
        tag = torch.where(kind == 1, 1 + (before == 2), torch.where((kind == 3) & (after == 1), 3, 0))
        long = torch.randint(6, length + 1, (rows,))
        gone = torch.arange(length) >= long[:, None]
        at_end = torch.arange(length) == long[:, None] - 1
        tag = torch.where((kind == 3) & at_end, 0, tag)
        return x.masked_fill(gone, 0), long, tag.masked_fill(gone, -100)

    net = Tagger(words, 4)
    x, long, tag = reports(3000)
    fresh = reports(300)
    optimizer = torch.optim.NAdam(net.parameters(), lr=4e-3)
    draw = rounds(50, x, long, tag)

    def error(x, long, tag):
        return F.cross_entropy(net(x, long).flatten(0, 1), tag.flatten(), ignore_index=-100)

    score = held_out(net, lambda: error(*fresh))
    return fit(folder, net, optimizer, lambda step: error(*draw()), 300, score=score)
