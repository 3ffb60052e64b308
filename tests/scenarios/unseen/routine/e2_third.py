"""Ten ordinary trainings of a theatre, all healthy."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence
from unseen import dense, fit, healthy, score_of, seeded
from unseen.tasks import held_out, judged, now_and_then, rounds, tend

# ---------------------------------------------------------------------------------------------------------- playbills


def playbills(rows, words=200, seasons=5, length=20):
    """Twenty words each; a season likes some words more than others."""
    season = torch.randint(seasons, (rows,))
    likes = (1.2 * torch.randn(seasons, words)).softmax(1)
    return torch.multinomial(likes[season], length, replacement=True), season


class PlaybillNet(nn.Module):
    def __init__(self, words=200, seasons=5):
        super().__init__()
        self.bag = nn.EmbeddingBag(words, 32, mode="mean")
        self.head = nn.Linear(32, seasons)

    def forward(self, words):
        return self.head(self.bag(words))


@healthy(0.4)
def playbill_sorted_by_its_season(folder):
    seeded(13150)
    x, y = playbills(3600)
    net = PlaybillNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    draw = rounds(64, x[:3200], y[:3200])
    held_x, held_y = x[3200:], y[3200:]
    validate = now_and_then(net, 25, judged(net, held_x, held_y))

    def loss_of(step):
        words, season = draw()
        logits = net(words)
        accuracy = (logits.argmax(1) == season).float().mean()
        return F.cross_entropy(logits, season), {"accuracy": float(accuracy), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(held_x), held_y))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


# ----------------------------------------------------------------------------------------------------------- costumes


class Wardrobe(nn.Module):
    """Twenty-four measures of a costume, kept in six numbers."""

    def __init__(self):
        super().__init__()
        self.encoder = dense(24, 64, 6, act=nn.GELU)
        self.decoder = dense(6, 64, 24, act=nn.GELU)

    def forward(self, x):
        return self.decoder(self.encoder(x))


@healthy(0.5)
def wardrobe_keeping_costumes_in_six_numbers(folder):
    seeded(13151)
    way, bend = torch.randn(4, 24) / 2, torch.randn(4, 24)
    cut = torch.randn(4000, 4)
    x = cut @ way + 0.5 * (cut @ bend).sin() + 0.1 * torch.randn(4000, 24)
    x = (x - x.mean(0)) / x.std(0)
    net = Wardrobe()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    draw = rounds(64, x[:3500])

    def loss_of(step):
        (rows,) = draw()
        return F.mse_loss(net(rows), rows)

    score = held_out(net, lambda: F.mse_loss(net(x[3500:]), x[3500:]))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


# ------------------------------------------------------------------------------------------------------------- violin


class Vibrato(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(1, 40, batch_first=True)
        self.out = nn.Linear(40, 1)

    def forward(self, x):
        return self.out(self.gru(x)[0])


@healthy(0.6)
def violin_guessing_its_next_sample(folder):
    seeded(13152)
    net = Vibrato()
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    time = torch.arange(31.0)

    def draw(rows=48):
        pitch, swing = 0.4 + 0.3 * torch.rand(rows, 1), 0.8 * torch.rand(rows, 1)
        phase = 6.2832 * torch.rand(rows, 2)
        tone = (pitch * time + swing * (0.3 * time + phase[:, :1]).sin() + phase[:, 1:]).sin()
        return (1.4 * tone + 0.05 * torch.randn(rows, 31))[..., None]

    def loss_of(step):
        wave = draw()
        return F.mse_loss(net(wave[:, :-1]), wave[:, 1:])

    return fit(folder, net, optimizer, loss_of, 300, score=score_of(loss_of))


# -------------------------------------------------------------------------------------------------------- stage plans


def plans(rows):
    """A square of a plan, 16 by 16: a wall, a stair, a round well or a pillar, somewhere in it."""
    kind = torch.randint(4, (rows,))
    down, across = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    dx, dy = (grid - 5 - 6 * torch.rand(rows, 1, 1) for grid in (across, down))
    far = (dx**2 + dy**2).sqrt()
    near = (dx.abs() < 5) & (dy.abs() < 5)
    drawn = torch.stack(
        [
            (dy.abs() < 1) & (dx.abs() < 6),
            (torch.remainder(dx, 3) < 1) & near,
            (far > 3) & (far < 4.5),
            (far < 2.5),
        ],
        1,
    )[torch.arange(rows), kind]
    x = 2 * drawn.float() - 0.4 + 0.7 * torch.randn(rows, 16, 16)
    return x[:, None], kind


class PlanNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.body = nn.Sequential(
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(2 * width), nn.ReLU()
        )
        self.head = nn.Linear(2 * width, 4)

    def forward(self, x):
        return self.head(self.body(self.stem(x)).mean((2, 3)))


@healthy(0.5)
def plan_of_the_stage_read_square_by_square(folder):
    seeded(13153)
    (x, y), (held_x, held_y) = plans(2000), plans(300)
    net = PlanNet()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=250)
    draw = rounds(50, x, y)
    validate = now_and_then(net, 25, judged(net, held_x, held_y))

    def loss_of(step):
        rows, kind = draw()
        return F.cross_entropy(net(rows), kind), validate(step)

    score = held_out(net, lambda: F.cross_entropy(net(held_x), held_y))
    return fit(folder, net, optimizer, loss_of, 250, schedule=schedule, score=score)


# ---------------------------------------------------------------------------------------------------------- cloakroom


@healthy(0.5)
def cloakroom_guessing_what_a_coat_weighs(folder):
    seeded(13154)
    x = torch.randn(5000, 8)
    weight = 2 * x[:, 0] + x[:, 1] * x[:, 2] + (2 * x[:, 3]).sin() + x[:, 4].relu() - 0.5 * x[:, 5]
    y = weight + 0.2 * torch.randn(5000)
    y = ((y - y.mean()) / y.std())[:, None]
    net = dense(8, 64, 64, 1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    draw = rounds(64, x[:4500], y[:4500])
    held_x, held_y = x[4500:], y[4500:]
    validate = now_and_then(net, 25, lambda: {"val_loss": F.mse_loss(net(held_x), held_y)})

    def loss_of(step):
        rows, wanted = draw()
        return F.mse_loss(net(rows), wanted), validate(step)

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.mse_loss(net(held_x), held_y)))


# -------------------------------------------------------------------------------------------------------------- choir


class Choir(nn.Module):
    """One half of a choir answers the other: a decoder of notes."""

    def __init__(self, notes=10, width=48, length=13):
        super().__init__()
        self.note, self.place = nn.Embedding(notes, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, notes)
        self.register_buffer("ahead", torch.triu(torch.ones(length, length, dtype=torch.bool), 1))

    def forward(self, notes):
        length = notes.shape[1]
        x = self.note(notes) + self.place(torch.arange(length))
        return self.head(self.norm(self.blocks(x, mask=self.ahead[:length, :length])))


@healthy(0.5)
def choir_answering_a_third_higher(folder):
    seeded(13155)
    net = Choir()
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    steps = 280

    def rate(step):
        return min(1.0, (step + 1) / 25) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps))))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)

    def loss_of(step):
        call = torch.randint(10, (48, 7))
        song = torch.cat([call, (call + 2) % 10], 1)
        return F.cross_entropy(net(song[:, :-1])[:, 6:].flatten(0, 1), song[:, 7:].flatten())

    return fit(folder, net, optimizer, loss_of, steps, schedule=schedule, score=score_of(loss_of))


# ---------------------------------------------------------------------------------------------------------- spotlight


class Gallery(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 8, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU()
        )
        self.head = dense(16 * 5 * 5, 48, 2)

    def forward(self, x):
        return self.head(self.conv(x).flatten(1))


@healthy(0.6)
def gallery_telling_where_the_spotlight_falls(folder):
    seeded(13156)
    net = Gallery()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    line = torch.linspace(-1, 1, 20)

    def draw(rows=48):
        place = 1.8 * torch.rand(rows, 2) - 0.9
        spot = -((line[None, :, None] - place[:, 1, None, None]) ** 2 + (line - place[:, 0, None, None]) ** 2) / 0.08
        return (3 * spot.exp() + 0.5 * torch.randn(rows, 20, 20) - 0.15)[:, None], place

    def loss_of(step):
        x, place = draw()
        return F.smooth_l1_loss(net(x), place)

    return fit(folder, net, optimizer, loss_of, 300, score=score_of(loss_of))


# ------------------------------------------------------------------------------------------------------------ reviews


def reviews(rows, words=60, longest=16):
    """Words from 1 on, 0 behind the end, how many, and whether the critic was pleased."""
    valence = torch.randn(words)
    valence[0] = 0
    length = torch.randint(5, longest + 1, (rows,))
    text = torch.randint(1, words, (rows, longest))
    text = text * (torch.arange(longest) < length[:, None])
    return text, length, (valence[text].sum(1) > 0).float()


class Reader(nn.Module):
    def __init__(self, words=60):
        super().__init__()
        self.word = nn.Embedding(words, 24, padding_idx=0)
        self.lstm = nn.LSTM(24, 32, batch_first=True, bidirectional=True)
        self.head = nn.Linear(64, 1)

    def forward(self, text, length):
        packed = pack_padded_sequence(self.word(text), length, batch_first=True, enforce_sorted=False)
        _, (hidden, _) = self.lstm(packed)
        return self.head(torch.cat([hidden[0], hidden[1]], 1))[:, 0]


@healthy(0.5)
def manager_reading_what_the_critics_wrote(folder):
    seeded(13157)
    text, length, pleased = reviews(4400)
    net = Reader()
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    draw = rounds(64, text[:4000], length[:4000], pleased[:4000])

    def measure():
        logits = net(text[4000:], length[4000:])
        right = ((logits > 0).float() == pleased[4000:]).float().mean()
        return {"val_loss": F.binary_cross_entropy_with_logits(logits, pleased[4000:]), "val_accuracy": right}

    validate = now_and_then(net, 25, measure)

    def loss_of(step):
        words, many, label = draw()
        return F.binary_cross_entropy_with_logits(net(words, many), label), validate(step)

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: measure()["val_loss"]))


# -------------------------------------------------------------------------------------------------------------- wines


@healthy(0.6)
def bar_in_the_foyer_sorting_its_wines(folder):
    seeded(13158)
    measures, maker = load_wine(return_X_y=True)
    x, y = torch.tensor(measures, dtype=torch.float32), torch.tensor(maker)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    x = (x - x[:128].mean(0)) / x[:128].std(0)
    net = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    draw = rounds(32, x[:128], y[:128])
    held_x, held_y = x[128:], y[128:]
    validate = now_and_then(net, 16, judged(net, held_x, held_y))

    def loss_of(step):
        rows, label = draw()
        return F.cross_entropy(net(rows), label), validate(step)

    score = held_out(net, lambda: F.cross_entropy(net(held_x), held_y))
    return fit(folder, net, optimizer, loss_of, 160, score=score)


# ------------------------------------------------------------------------------------------------------------ ratings


class Taste(nn.Module):
    """What a theatregoer thinks of a play: a few factors of each, and a bias of each."""

    def __init__(self, goers, plays, factors=4):
        super().__init__()
        self.goer, self.play = nn.Embedding(goers, factors), nn.Embedding(plays, factors)
        self.goer_bias, self.play_bias = nn.Embedding(goers, 1), nn.Embedding(plays, 1)
        for table in (self.goer, self.play):
            nn.init.normal_(table.weight, std=0.3)
        for table in (self.goer_bias, self.play_bias):
            nn.init.zeros_(table.weight)

    def forward(self, goer, play):
        likes = (self.goer(goer) * self.play(play)).sum(1)
        return likes + self.goer_bias(goer)[:, 0] + self.play_bias(play)[:, 0]


@healthy(0.5)
def theatregoers_and_the_plays_they_liked(folder):
    seeded(13159)
    goers, plays = 120, 60
    likes = torch.randn(goers, 2) @ torch.randn(2, plays) + 0.5 * torch.randn(goers, 1) + 0.5 * torch.randn(plays)
    likes = (likes - likes.mean()) / likes.std() + 0.2 * torch.randn(goers, plays)
    seen = torch.randperm(goers * plays)
    goer, play = seen // plays, seen % plays
    rating = likes[goer, play]
    many = 5700
    net = Taste(goers, plays)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    draw = rounds(128, goer[:many], play[:many], rating[:many])
    score = held_out(net, lambda: F.mse_loss(net(goer[many:], play[many:]), rating[many:]))

    def one(step):
        who, what, stars = draw()
        optimizer.zero_grad()
        loss = F.mse_loss(net(who, what), stars)
        loss.backward()
        optimizer.step()
        return {"loss": loss, **({"val_loss": score()} if step % 44 == 0 else {})}

    return tend(folder, net, optimizer, one, 440, score)
