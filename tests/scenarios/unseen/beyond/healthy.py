"""Ordinary trainings that go well: classifiers, a regressor, small language models, adapters, transfer."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, MultiStepLR, OneCycleLR
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


def accuracy(logits, y):
    return float((logits.argmax(-1) == y).float().mean())


def standardised(x):
    return (x - x.mean(0)) / x.std(0)


def classify(net, x, y, rows, kept=600):
    """`loss_of(step)` and `score()` of a classifier; the last `kept` rows are held out."""
    draw = rounds(rows, x[:-kept], y[:-kept])

    def loss_of(step):
        seen, wanted = draw()
        logits = net(seen)
        return F.cross_entropy(logits, wanted), {"accuracy": accuracy(logits, wanted)}

    return loss_of, held_out(net, lambda: F.cross_entropy(net(x[-kept:]), y[-kept:]))


@healthy()
def birds_by_their_song(folder):
    seeded(2300)
    species, songs, bands = 6, 3, 40
    typical = torch.randn(species, songs, bands)
    y, song = torch.randint(species, (3600,)), torch.randint(songs, (3600,))
    loudness = 0.7 + 0.6 * torch.rand(3600, 1)
    x = standardised(loudness * typical[y, song] + 1.2 * torch.randn(3600, bands))
    net = dense(bands, 64, 64, species)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    loss_of, score = classify(net, x, y, 64)
    return fit(folder, net, optimizer, loss_of, 600, score=score, schedule=CosineAnnealingLR(optimizer, 600))


@healthy()
def loaves_that_a_bakery_will_sell(folder):
    seeded(2301)
    days = 4000
    weekday, holiday = torch.randint(7, (days,)), (torch.rand(days) < 0.1).float()
    warmth, rain, sold_last_week = torch.randn(days), torch.rand(days), torch.randn(days)
    of_weekday = torch.tensor([-0.4, -0.5, -0.2, 0.0, 0.5, 1.2, 0.8])
    sold = of_weekday[weekday] + 0.8 * sold_last_week - rain * (1 + warmth.tanh()) + 1.5 * holiday * (weekday < 5)
    sold = standardised(sold + 0.15 * torch.randn(days))[:, None]
    x = torch.cat([F.one_hot(weekday, 7), torch.stack([holiday, warmth, rain, sold_last_week], 1)], 1)
    net = dense(11, 64, 64, 1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01)
    draw = rounds(64, x[:3400], sold[:3400])

    def loss_of(step):
        seen, wanted = draw()
        return F.mse_loss(net(seen), wanted)

    score = held_out(net, lambda: F.mse_loss(net(x[3400:]), sold[3400:]))
    schedule = OneCycleLR(optimizer, max_lr=5e-3, total_steps=500)
    return fit(folder, net, optimizer, loss_of, 500, score=score, schedule=schedule)


def conv_block(into, out):
    return [nn.Conv1d(into, out, 5, padding=2, bias=False), nn.BatchNorm1d(out), nn.ReLU(), nn.MaxPool1d(2)]


@healthy()
def grades_of_wine_from_infrared(folder):
    seeded(2302)
    acid, sugar, tannin = torch.rand(3, 3000)
    at, spectrum = torch.linspace(0, 1, 64), torch.zeros(3000, 64)
    for amount, centre in ((acid, 0.2), (sugar, 0.45), (tannin, 0.75)):
        shifted = centre + 0.02 * torch.randn(3000, 1)
        spectrum += amount[:, None] * torch.exp(-((at - shifted) ** 2) / 0.005)
    merit = (3 * (acid - sugar)).sin() + tannin
    grade = torch.bucketize(merit, merit.quantile(torch.tensor([1 / 3, 2 / 3])))
    x = standardised(spectrum + 0.05 * torch.randn(3000, 64))[:, None]
    net = nn.Sequential(
        *conv_block(1, 16), *conv_block(16, 32), *conv_block(32, 32), nn.Flatten(), nn.Linear(32 * 8, 3)
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    loss_of, score = classify(net, x, grade, 64)
    return fit(folder, net, optimizer, loss_of, 450, score=score, schedule=MultiStepLR(optimizer, [225, 340], 0.1))


class Block(nn.Module):
    """Pre-norm attention over the past, and an MLP."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self, kinds, length, width=48, heads=4, depth=2):
        super().__init__()
        self.token, self.place = nn.Embedding(kinds, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, kinds, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens):
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def warm_cosine(warm, steps, least=0.1):
    def factor(step):
        if step < warm:
            return (step + 1) / warm
        return least + (1 - least) * 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))

    return factor


@healthy()
def greenhouse_warmth_as_tokens(folder):
    seeded(2303)
    kinds, length, steps = 24, 32, 500
    hour = torch.arange(length + 1) + torch.randint(24, (3000, 1))
    warmth, drift = 1.5 * (6.2832 * hour / 24).sin(), torch.zeros(3000)
    for t in range(length + 1):
        drift = 0.9 * drift + 0.25 * torch.randn(3000)
        warmth[:, t] += drift
    tokens = torch.bucketize(warmth, torch.linspace(-2.5, 2.5, kinds - 1))
    net, draw = Gpt(kinds, length), rounds(32, tokens[:2600])
    matrices, vectors = ([p for p in net.parameters() if (p.ndim > 1) == many] for many in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))

    def next_token(x):
        return F.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())

    return fit(
        folder, net, optimizer, lambda step: next_token(draw()[0]), steps,
        score=held_out(net, lambda: next_token(tokens[2600:])),
        before_step=clipped(net, 1.0), schedule=LambdaLR(optimizer, warm_cosine(40, steps)),
    )  # fmt: skip


@healthy()
def the_next_stitch_of_a_pattern(folder):
    seeded(2304)
    stitches, length = 6, 33
    book = [torch.randint(stitches, (int(size),)) for size in torch.randint(5, 9, (12,))]

    def row():
        motif = book[int(torch.randint(12, ()))]
        start = int(torch.randint(len(motif), ()))
        return motif.repeat(8)[start : start + length]

    rows = torch.stack([row() for _ in range(1500)])
    slips = torch.rand(rows.shape) < 0.03
    rows = torch.where(slips, torch.randint(stitches, rows.shape), rows)
    net = nn.ModuleDict({
        "embed": nn.Embedding(stitches, 16), "memory": nn.LSTM(16, 64, batch_first=True),
        "head": nn.Linear(64, stitches),
    })  # fmt: skip
    optimizer, draw = torch.optim.Adam(net.parameters(), lr=3e-3), rounds(32, rows[:1300])

    def next_stitch(x):
        read, _ = net["memory"](net["embed"](x[:, :-1]))
        return F.cross_entropy(net["head"](read).flatten(0, 1), x[:, 1:].flatten())

    return fit(
        folder, net, optimizer, lambda step: next_stitch(draw()[0]), 450,
        score=held_out(net, lambda: next_stitch(rows[1300:])), before_step=clipped(net, 1.0),
    )  # fmt: skip


class Diary(nn.Module):
    def __init__(self, words, grades):
        super().__init__()
        self.embed = nn.Embedding(words, 16, padding_idx=0)
        self.memory, self.head = nn.GRU(16, 48, batch_first=True), nn.Linear(48, grades)

    def forward(self, notes, days):
        packed = pack_padded_sequence(self.embed(notes), days, batch_first=True, enforce_sorted=False)
        return self.head(self.memory(packed)[1][0])


@healthy()
def cheese_graded_by_its_diary(folder):
    seeded(2305)
    words, most = 24, 16
    days = torch.randint(8, most + 1, (3000,))
    notes = torch.randint(1, words, (3000, most)) * (torch.arange(most) < days[:, None])
    effect, ripe = torch.cat([torch.zeros(1), torch.randn(words - 1)]), torch.zeros(3000)
    for t in range(most):
        ripe = torch.where(t < days, 0.8 * ripe + effect[notes[:, t]], ripe)
    grade = torch.bucketize(ripe, ripe.quantile(torch.tensor([1 / 3, 2 / 3])))
    net, draw = Diary(words, 3), rounds(64, notes[:2500], days[:2500], grade[:2500])
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)

    def loss_of(step):
        read, length, wanted = draw()
        logits = net(read, length)
        return F.cross_entropy(logits, wanted), {"accuracy": accuracy(logits, wanted)}

    score = held_out(net, lambda: F.cross_entropy(net(notes[2500:], days[2500:]), grade[2500:]))
    return fit(folder, net, optimizer, loss_of, 450, score=score)


class Adapted(nn.Module):
    def __init__(self, linear, rank=4, alpha=8):
        super().__init__()
        self.linear, self.scale = linear.requires_grad_(False), alpha / rank
        self.down = nn.Linear(linear.in_features, rank, bias=False)
        self.up = nn.Linear(rank, linear.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.linear(x) + self.scale * self.up(self.down(x))


class Listener(nn.Module):
    def __init__(self, patch=8, patches=12, width=48):
        super().__init__()
        self.inlet, self.outlet, self.norm = nn.Linear(patch, width), nn.Linear(width, patch), nn.LayerNorm(width)
        self.place = nn.Parameter(0.02 * torch.randn(patches, width))
        self.blocks = nn.Sequential(Block(width, 4), Block(width, 4))

    def forward(self, x):
        return self.outlet(self.norm(self.blocks(self.inlet(x) + self.place)))


def vibrations(count, slowest, fastest, overtones, patch=8, patches=13):
    speed = slowest + (fastest - slowest) * torch.rand(count, 1)
    angle = speed * torch.arange(patch * patches) + 6.2832 * torch.rand(count, 1)
    signal = sum(height * (angle * (k + 1)).sin() for k, height in enumerate(overtones))
    return (signal + 0.1 * torch.randn(signal.shape)).view(count, patches, patch)


@healthy()
def a_new_bearing_by_adapters(folder):
    seeded(2314)
    net = Listener()

    def next_patch(x):
        return F.mse_loss(net(x[:, :-1]), x[:, 1:])

    before = torch.optim.AdamW(net.parameters(), lr=2e-3)
    draw_old = rounds(32, vibrations(2000, 0.1, 0.4, [1.0, 0.5]))
    for _ in range(300):
        before.zero_grad()
        next_patch(draw_old()[0]).backward()
        before.step()
    net.requires_grad_(False)
    for block in net.blocks:
        block.qkv, block.out = Adapted(block.qkv), Adapted(block.out)
        block.mlp[0], block.mlp[2] = Adapted(block.mlp[0]), Adapted(block.mlp[2])
    heard = vibrations(2000, 0.3, 0.6, [0.4, 0.3, 1.0])
    draw = rounds(32, heard[:1600])
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=3e-3)
    score = held_out(net, lambda: next_patch(heard[1600:]))
    return fit(folder, net, optimizer, lambda step: next_patch(draw()[0]), 400, score=score)


def brain_waves(kinds, count):
    """Half a minute of a sleeper's brain: each kind has a rhythm, a second one and how strong that is."""
    y, at = torch.randint(len(kinds), (count,)), torch.arange(96.0)
    slow, fast, share = torch.tensor(kinds)[y].T[..., None]
    pace, phase = 1 + 0.1 * torch.randn(count, 1), 6.2832 * torch.rand(2, count, 1)
    signal = (slow * pace * at + phase[0]).sin() + share * (fast * pace * at + phase[1]).sin()
    return (signal + 0.7 * torch.randn(count, 96))[:, None], y


@healthy()
def stages_of_sleep_after_transfer(folder):
    seeded(2322)
    body = nn.Sequential(*conv_block(1, 16), *conv_block(16, 32), *conv_block(32, 32), nn.Flatten())
    awake = nn.Sequential(body, nn.Linear(32 * 12, 3))
    before = torch.optim.Adam(awake.parameters(), lr=2e-3)
    learn, _ = classify(awake, *brain_waves([(0.2, 0.9, 0.5), (0.5, 1.2, 0.5), (0.9, 0.3, 0.3)], 2600), 64)
    for step in range(200):
        before.zero_grad()
        learn(step)[0].backward()
        before.step()
    x, stage = brain_waves([(0.1, 0.6, 0.3), (0.3, 0.9, 0.6), (0.3, 1.3, 0.6), (0.6, 1.3, 0.3)], 2600)
    net = nn.Sequential(body, head := nn.Linear(32 * 12, 4))
    groups = [{"params": body.parameters(), "lr": 3e-4}, {"params": head.parameters(), "lr": 2e-3}]
    optimizer = torch.optim.AdamW(groups)
    loss_of, score = classify(net, x, stage, 64)
    return fit(folder, net, optimizer, loss_of, 350, score=score, schedule=LambdaLR(optimizer, lambda s: 1 - s / 350))
