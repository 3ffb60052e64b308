"""Everyday trainings on sequences: reviews, a power grid, sales, names in letters, dates, a small GPT."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import fit, healthy, score_of, seeded
from unseen.tasks import clipped, held_out, rounds, tend


class Reader(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.words = nn.Embedding(words, width, padding_idx=0)
        self.drop = nn.Dropout(0.2)
        self.memory = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, 1)

    def forward(self, text, length):
        h = self.drop(self.words(text))
        packed = nn.utils.rnn.pack_padded_sequence(h, length, batch_first=True, enforce_sorted=False)
        _, (last, _) = self.memory(packed)
        return self.head(self.drop(torch.cat([last[0], last[1]], 1)))[:, 0]


@healthy()
def mood_of_reviews_of_hotels(folder):
    seeded(3073)
    feeling = torch.cat([torch.zeros(10), torch.randn(90) * (torch.rand(90) < 0.6)])

    def reviews(n):
        text, length = torch.randint(6, 100, (n, 16)), torch.randint(6, 17, (n,))
        text = torch.where(torch.rand(n, 16) < 0.08, 1, text) * (torch.arange(16) < length[:, None])
        turned = F.pad(text[:, :-1] == 1, (1, 0))
        total = (feeling[text] * torch.where(turned, -1.5, 1.0)).sum(1)
        return text, length, (total > 0).float()

    net = Reader(100, 24)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    draw, (x_val, n_val, y_val) = rounds(32, *reviews(5000)), reviews(400)

    def loss_of(step):
        text, length, good = draw()
        out = net(text, length)
        return F.binary_cross_entropy_with_logits(out, good), {"accuracy": ((out > 0) == good).float().mean()}

    def score():
        return F.binary_cross_entropy_with_logits(net(x_val, n_val), y_val)

    return fit(folder, net, optimizer, loss_of, 450, score=held_out(net, score), before_step=clipped(net, 1.0))


class Outlook(nn.Module):
    """Reads two days by the hour and says the next six hours."""

    def __init__(self):
        super().__init__()
        self.memory, self.head = nn.GRU(3, 40, batch_first=True), nn.Linear(40, 6)

    def forward(self, x):
        return self.head(self.memory(x)[0][:, -1]) + x[:, -1:, 0]


@healthy()
def hourly_draw_on_a_power_grid(folder):
    seeded(3074)
    hours = torch.arange(2000.0)
    warmth = torch.zeros(2000)
    for t in range(1, 2000):
        warmth[t] = 0.97 * warmth[t - 1] + 0.2 * torch.randn(())
    day = 2 * math.pi * hours / 24
    weekend = (hours // 24 % 7 >= 5).float()
    load = day.sin() + 0.5 * (2 * day).cos() - 0.5 * weekend * (1 + day.sin()) + 0.4 * warmth.abs()
    load = load + 0.05 * torch.randn(2000)
    load = (load - load[:1600].mean()) / load[:1600].std()
    rows = torch.stack([load, warmth, weekend], 1).unfold(0, 54, 1).transpose(1, 2)
    past, ahead = rows[:, :48], rows[:, 48:, 0]
    net = Outlook()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995)
    draw = rounds(32, past[:1540], ahead[:1540])

    def one(step):
        x, y = draw()
        optimizer.zero_grad()
        loss = F.huber_loss(net(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        return {"train/huber": loss}

    return tend(folder, net, optimizer, one, 300, held_out(net, lambda: F.huber_loss(net(past[1600:]), ahead[1600:])))


class Causal(nn.Module):
    def __init__(self, a, b, apart):
        super().__init__()
        self.apart = apart
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(a, b, 3, dilation=apart))
        self.short = nn.Conv1d(a, b, 1)

    def forward(self, x):
        return F.relu(self.conv(F.pad(x, (2 * self.apart, 0)))) + self.short(x)


@healthy()
def loaves_to_bake_for_tomorrow(folder):
    seeded(3075)

    def shops(n):
        t = torch.arange(29.0) + torch.randint(7, (n, 1))
        week = torch.randn(n, 1) + torch.rand(n, 1) * (2 * math.pi * t / 7).sin() + 0.7 * (t % 7 == 5)
        sold = week + 0.03 * torch.randn(n, 1) * t + 0.3 * torch.randn(n, 29) * (1 + 0.5 * week.sigmoid())
        return sold[:, None, :28], sold[:, 28:]

    levels = torch.tensor([0.1, 0.5, 0.9])
    net = nn.Sequential(Causal(1, 24, 1), Causal(24, 24, 2), Causal(24, 24, 4), Causal(24, 24, 8))
    net = nn.ModuleDict({"body": net, "head": nn.Linear(24, 3)})
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 450, 2e-5)
    draw, fresh = rounds(64, *shops(3000)), shops(600)

    def pinball(x, y):
        gap = y - net["head"](net["body"](x)[:, :, -1])
        return torch.maximum(levels * gap, (levels - 1) * gap).mean(0)

    def loss_of(step):
        each = pinball(*draw())
        return each.mean(), {"p10": each[0], "p50": each[1], "p90": each[2]}

    score = held_out(net, lambda: pinball(*fresh).mean())
    return fit(folder, net, optimizer, loss_of, 450, score=score, schedule=schedule)


class Tagger(nn.Module):
    def __init__(self, words, tags):
        super().__init__()
        self.words = nn.Embedding(words, 32, padding_idx=0)
        self.memory = nn.LSTM(32, 32, batch_first=True, bidirectional=True)
        self.drop, self.head = nn.Dropout(0.25), nn.Linear(64, tags)

    def forward(self, x):
        return self.head(self.drop(self.memory(self.drop(self.words(x)))[0]))


@healthy()
def parties_and_places_in_contracts(folder):
    seeded(3076)

    def letters(n):
        x = torch.randint(20, 150, (n, 18))
        tags = torch.zeros(n, 18, dtype=torch.long)
        for cue, tag in ((1, 1), (2, 3), (3, 1)):
            at = torch.randint(0, 15, (n,))
            x[torch.arange(n), at] = cue
            tags[torch.arange(n), at], tags[torch.arange(n), at + 1] = 0, tag
            tags[torch.arange(n), at + 2] = tag + 1
        tags[x < 20] = 0
        shown = torch.arange(18) < torch.randint(10, 19, (n, 1))
        return x * shown, torch.where(shown, tags, -100)

    net = Tagger(150, 5)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    draw, (x_val, y_val) = rounds(32, *letters(2500)), letters(400)

    def error(x, y):
        return F.cross_entropy(net(x).flatten(0, 1), y.flatten(), ignore_index=-100)

    def loss_of(step):
        return error(*draw())

    score = held_out(net, lambda: error(x_val, y_val))
    return fit(folder, net, optimizer, loss_of, 400, score=score, before_step=clipped(net, 5.0))


class Rewriter(nn.Module):
    """An encoder and a decoder that looks back at what was read."""

    def __init__(self, signs, width):
        super().__init__()
        self.signs = nn.Embedding(signs, width)
        self.read = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.begin, self.keys = nn.Linear(2 * width, width), nn.Linear(2 * width, width)
        self.write, self.out = nn.GRU(width, width, batch_first=True), nn.Linear(3 * width, signs)

    def forward(self, x, y):
        seen, last = self.read(self.signs(x))
        start = self.begin(torch.cat([last[0], last[1]], 1)).tanh()[None]
        h, _ = self.write(self.signs(y), start)
        share = (h @ self.keys(seen).transpose(1, 2) / h.shape[2] ** 0.5).softmax(2)
        return self.out(torch.cat([h, share @ seen], 2))


@healthy()
def dates_into_the_form_of_the_standard(folder):
    seeded(3077)

    def dates(n):
        year, month, day = torch.randint(100, (n,)), torch.randint(12, (n,)), torch.randint(28, (n,)) + 1
        ours = torch.randint(2, (n,)) == 0
        number = torch.stack([day // 10, day % 10, 10 + month, year // 10, year % 10], 1)
        swapped = torch.stack([10 + month, day // 10, day % 10, year // 10, year % 10], 1)
        m = month + 1
        said = torch.stack([torch.full((n,), 22), year // 10, year % 10, m // 10, m % 10, day // 10, day % 10], 1)
        return torch.where(ours[:, None], number, swapped), said

    net = Rewriter(23, 40)
    optimizer = torch.optim.RAdam(net.parameters(), lr=3e-3)
    draw, (x_val, y_val) = rounds(64, *dates(6000)), dates(500)

    def one(step):
        x, y = draw()
        optimizer.zero_grad()
        out = net(x, y[:, :-1])
        loss = F.cross_entropy(out.flatten(0, 1), y[:, 1:].flatten())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        exact = (out.argmax(2) == y[:, 1:]).all(1).float().mean()
        return {"loss": loss, "exact_match": exact, "norm": norm}

    def score():
        return F.cross_entropy(net(x_val, y_val[:, :-1]).flatten(0, 1), y_val[:, 1:].flatten())

    return tend(folder, net, optimizer, one, 350, held_out(net, score))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (h.unflatten(2, (4, -1)).transpose(1, 2) for h in self.qkv(self.one(x)).chunk(3, 2))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.proj(seen)
        return x + self.down(F.gelu(self.up(self.two(x))))


class Gpt(nn.Module):
    def __init__(self, signs, width, depth, length):
        super().__init__()
        self.signs, self.places = nn.Embedding(signs, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, signs, bias=False)
        self.head.weight = self.signs.weight
        for name, p in self.named_parameters():
            if p.ndim > 1:
                deep = name.endswith(("proj.weight", "down.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * depth) if deep else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.signs(x) + self.places.weight[: x.shape[1]])))


@healthy()
def logbooks_continued_by_a_small_gpt(folder):
    seeded(3078)
    follow = (2.5 * torch.randn(24, 24, 24)).softmax(2)

    def lines(n):
        text = [torch.randint(24, (n,)), torch.randint(4, (n,))]
        for _ in range(23):
            text.append(torch.multinomial(follow[text[-1], text[-2] % 4], 1)[:, 0])
        return (torch.stack(text, 1),)

    net = Gpt(24, 48, 3, 24)
    decayed, others = ([p for p in net.parameters() if (p.ndim > 1) == big] for big in (True, False))
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))
    steps, warm = 350, 35

    def rate(step):
        if step < warm:
            return (step + 1) / warm
        return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    draw, (fresh,) = rounds(24, *lines(6000)), lines(100)

    def entropy(text):
        return F.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    def loss_of(step):
        return entropy(*draw())

    return fit(folder, net, optimizer, loss_of, steps, score=score_of(lambda step: entropy(fresh), 1),
               before_step=clipped(net, 1.0), schedule=schedule)  # fmt: skip
