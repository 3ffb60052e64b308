"""Surveys, ages, notes, prices, logs and telegrams: first lessons in nets, sequences and a small GPT."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


def accuracy(logits, y):
    return float((logits.argmax(-1) == y).float().mean())


# ------------------------------------------------------------------------------------------------------ coral reefs


def reef_surveys(rows):
    """Weeks of heat, depth in metres, turbidity, grazers, cover, current; how badly the reef is bleached (0 to 3)."""
    heat, turbid, grazers, cover, current = (torch.rand(rows) for _ in range(5))
    depth = 1 + 11 * torch.rand(rows)
    stress = 3 * heat - 0.12 * depth - turbid + heat * (1 - grazers) - 0.6 * current * heat + 0.05 * torch.randn(rows)
    x = torch.stack([4 * heat, depth, turbid, grazers, cover, current], 1)
    return x, torch.bucketize(stress, torch.tensor([-0.6, 0.4, 1.4]))


@healthy()
def bleaching_of_reefs_on_dive_transects(folder):
    seeded(2686)
    (x, y), (x_test, y_test) = reef_surveys(2000), reef_surveys(500)
    net, draw = dense(6, 64, 64, 4), rounds(32, x, y)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def loss_of(step):
        rows, labels = draw()
        logits = net(rows)
        return F.cross_entropy(logits, labels), {"accuracy": accuracy(logits, labels)}

    return fit(folder, net, optimizer, loss_of, 800, score=held_out(net, lambda: F.cross_entropy(net(x_test), y_test)))


# ---------------------------------------------------------------------------------------------------- teeth on x-rays


def jaws(children):
    """Seven teeth's stages of growth from 0 to 1 and the sex; the age, standardised."""
    age, girl = 4 + 12 * torch.rand(children, 1), torch.randint(2, (children, 1)).float()
    middle = torch.tensor([6.0, 7.0, 9.0, 10.0, 10.5, 7.0, 12.0])
    stage = torch.sigmoid((age + 0.5 * girl - middle) / 1.5 + 0.3 * torch.randn(children, 7))
    return torch.cat([(7 * stage).round() / 7, girl], 1), (age - 10) / 3.5


@healthy()
def age_of_a_child_by_its_teeth(folder):
    seeded(2687)
    (x, y), (x_test, y_test) = jaws(1200), jaws(400)
    net = nn.Sequential(
        nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1)
    )
    optimizer, draw, steps = torch.optim.AdamW(net.parameters(), lr=1e-3), rounds(32, x, y), 600
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps + 1)

    def loss_of(step):
        rows, ages = draw()
        out = net(rows)
        return F.mse_loss(out, ages), {"years_off": float((out - ages).abs().mean().detach()) * 3.5}

    score = held_out(net, lambda: F.mse_loss(net(x_test), y_test))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


# --------------------------------------------------------------------------------------------------------- bank notes


def notes(count):
    """Worn scans of guillochés `[N, 1, 16, 16]` and which of five values they are."""
    value = torch.randint(5, (count,))
    across, down = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="xy")
    waves, lobes = 4 + 1.5 * value[:, None, None], 2 + value[:, None, None]
    radius, angle = (across**2 + down**2).sqrt(), torch.atan2(down, across)
    shift = 6.2832 * torch.rand(count, 1, 1)
    ink = torch.sin(waves * radius + shift) + torch.cos(lobes * angle + shift)
    return (ink + 0.7 * torch.randn(count, 16, 16))[:, None], value


def conv_block(came, gone):
    return nn.Sequential(
        nn.Conv2d(came, gone, 3, padding=1, bias=False), nn.BatchNorm2d(gone), nn.ReLU(), nn.MaxPool2d(2)
    )


@healthy()
def values_of_worn_bank_notes(folder):
    seeded(2688)
    (x, y), (x_test, y_test) = notes(1500), notes(300)
    net = nn.Sequential(conv_block(1, 12), conv_block(12, 24), conv_block(24, 32), nn.Flatten(), nn.Linear(128, 5))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [200, 320], gamma=0.1)
    draw = rounds(32, x, y)

    def loss_of(step):
        scans, values = draw()
        logits = net(scans)
        return F.cross_entropy(logits, values), {"accuracy": accuracy(logits, values)}

    score = held_out(net, lambda: F.cross_entropy(net(x_test), y_test))
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule)


# ------------------------------------------------------------------------------------------------------ fish auctions


def auction_days(days):
    """Price, catch and weekday (as sine and cosine) of each day `[days, 4]`; prices follow catch, week and season."""
    day = torch.arange(days).float()
    week, season = 6.2832 * day / 7, 6.2832 * day / 90
    catch, rows = 0.0, []
    for i in range(days):
        catch = 0.8 * catch + 0.6 * float(torch.randn(()))
        price = -0.8 * catch + 0.7 * math.sin(float(week[i])) + 0.6 * math.sin(float(season[i]))
        rows.append([price + 0.15 * float(torch.randn(())), catch])
    table = torch.cat([torch.tensor(rows), week.sin()[:, None], week.cos()[:, None]], 1)
    return (table - table.mean(0)) / table.std(0)


class Forecaster(nn.Module):
    def __init__(self, inputs, width):
        super().__init__()
        self.lstm = nn.LSTM(inputs, width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.lstm(x)[0])[..., 0]


@healthy()
def tomorrows_price_at_the_fish_auction(folder):
    seeded(2689)
    windows = auction_days(1600).unfold(0, 29, 1).transpose(1, 2)
    train, test = windows[:1200], windows[1300:]
    net, draw = Forecaster(4, 48), rounds(32, train)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def error(window):
        return F.mse_loss(net(window[:, :-1]), window[:, 1:, 0])

    return fit(
        folder, net, optimizer, lambda step: error(draw()[0]), 500,
        score=held_out(net, lambda: error(test)), before_step=clipped(net, 1.0),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------- forest fires

DRY, RAIN, STORM, CALM, FIRE = 0, 1, 2, 9, 10


def rangers_log(days, posts):
    """Three signs a day at each post: the weather, the danger (3 to 8) that days without rain add up to, the event."""
    weather, danger = torch.zeros(posts, dtype=torch.long), torch.zeros(posts, dtype=torch.long)
    signs = []
    for _ in range(days):
        draw = torch.rand(posts)
        fresh = torch.where(draw < 0.6, DRY, torch.where(draw < 0.8, RAIN, STORM))
        weather = torch.where(torch.rand(posts) < 0.6, weather, fresh)
        danger = torch.where(weather == RAIN, 0, (danger + 1).clamp(max=5))
        burns = (weather == STORM) & (danger >= 3) & (torch.rand(posts) < 0.9)
        signs += [weather, 3 + danger, torch.where(burns, FIRE, CALM)]
    return torch.stack(signs, 1)


class Reader(nn.Module):
    def __init__(self, signs, width):
        super().__init__()
        self.embed = nn.Embedding(signs, 16)
        self.gru = nn.GRU(16, width, batch_first=True)
        self.head = nn.Linear(width, signs)

    def forward(self, x, memory=None):
        states, memory = self.gru(self.embed(x), memory)
        return self.head(states), memory


@healthy()
def next_sign_in_the_rangers_log(folder):
    seeded(2690)
    log, later, length = rangers_log(700, 24), rangers_log(40, 32), 35
    net = Reader(11, 64)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    chunks, memory = (log.shape[1] - 1) // length, [None]

    def entropy(signs, state=None):
        logits, state = net(signs[:, :-1], state)
        return F.cross_entropy(logits.flatten(0, 1), signs[:, 1:].flatten()), state

    def loss_of(step):
        at = step % chunks * length
        state = memory[0].detach() if at else None
        loss, memory[0] = entropy(log[:, at : at + length + 1], state)
        return loss, {"perplexity": float(loss.detach().exp())}

    score = held_out(net, lambda: entropy(later)[0])
    return fit(folder, net, optimizer, loss_of, 400, score=score, before_step=clipped(net, 1.0))


# --------------------------------------------------------------------------------------------------- Morse telegraphy

CODE = {"a": ".-", "d": "-..", "e": ".", "h": "....", "n": "-.", "o": "---", "r": ".-.", "s": "...", "t": "-"}
WORDS = ["the", "road", "ends", "no", "horse", "stands", "here", "send", "tea", "at", "noon", "to", "ned"]


def telegrams(symbols):
    """A stream of words in Morse: 0 and 1 are dot and dash, 2 ends a letter and 3 a word."""
    stream = []
    while len(stream) < symbols:
        word = WORDS[int(torch.randint(len(WORDS), ()))]
        letters = [[".-".index(sign) for sign in CODE[letter]] + [2] for letter in word]
        stream += [sign for letter in letters for sign in letter] + [3]
    return torch.tensor(stream[:symbols])


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, 2))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.between(x))


class TinyGPT(nn.Module):
    def __init__(self, signs, length, width=32, heads=4, depth=2):
        super().__init__()
        self.token, self.place = nn.Embedding(signs, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, signs, bias=False)
        self.apply(self.small)

    @staticmethod
    def small(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.token(x) + self.place.weight[: x.shape[1]])))


@healthy()
def telegraphist_who_guesses_the_next_dot(folder):
    seeded(2691)
    stream, later, length, steps = telegrams(20_000), telegrams(4_000), 40, 400
    net = TinyGPT(4, length)
    groups = [
        {"params": [p for p in net.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in net.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=5e-3, betas=(0.9, 0.95))
    warm, low = 40, 0.1

    def share(step):
        if step < warm:
            return (step + 1) / warm
        return low + (1 - low) * 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))

    def entropy(text, batch):
        starts = torch.randint(len(text) - length - 1, (batch,))
        rows = text[starts[:, None] + torch.arange(length + 1)]
        return F.cross_entropy(net(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    return fit(
        folder, net, optimizer, lambda step: entropy(stream, 16), steps,
        score=held_out(net, lambda: entropy(later, 128)), before_step=clipped(net, 1.0),
        schedule=torch.optim.lr_scheduler.LambdaLR(optimizer, share),
    )  # fmt: skip
