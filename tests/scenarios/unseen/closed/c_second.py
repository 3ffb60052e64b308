"""Signals and sequences: forecasts, words, sounds, copies."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau, StepLR
from unseen import fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory = nn.LSTM(1, 32, 2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.memory(x)[0][:, -1])


@healthy(gain=0.5)
def demand_of_a_bakery_for_the_next_hours(folder):
    """A forecast of four hours from two days; the rate is halved where the held-out loss stands still."""
    seeded(10005)
    t = torch.arange(2000.0)
    noise = torch.zeros(2000)
    for i in range(1, 2000):
        noise[i] = 0.7 * noise[i - 1] + 0.15 * torch.randn(())
    series = (6.2832 * t / 24).sin() + 0.6 * (6.2832 * t / 12 + 1).cos() + 0.4 * (6.2832 * t / 168).sin() + noise
    series = (series - series[:1600].mean()) / series[:1600].std()
    windows = series.unfold(0, 52, 1)
    x, y = windows[:, :48, None], windows[:, 48:]
    net = Forecast()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    rate, draw = ReduceLROnPlateau(optimizer, factor=0.5, patience=2), rounds(32, x[:1500], y[:1500])
    score = held_out(net, lambda: F.mse_loss(net(x[1600::6]), y[1600::6]))

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y), {"val_loss": score()} if step % 46 == 0 else {}

    def after_step(step):
        if step % 46 == 45:
            rate.step(score())

    return fit(folder, net, optimizer, loss_of, 322, score=score, after_step=after_step)


class Reader(nn.Module):
    """A small decoder-only transformer with tied embeddings."""

    def __init__(self, kinds, width=48, depth=2, most=32):
        super().__init__()
        self.table, self.place = nn.Embedding(kinds, width), nn.Embedding(most, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        for table in (self.table, self.place):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, x):
        n = x.shape[1]
        ahead = torch.full((n, n), -math.inf).triu(1)
        h = self.body(self.table(x) + self.place.weight[:n], mask=ahead)
        return h @ self.table.weight.T


@healthy(gain=0.4)
def next_letter_of_a_fishermans_almanac(folder):
    """Letters of made-up sentences: AdamW, a warm-up, a cosine to a tenth, norms held at one."""
    seeded(10006)
    words = ["net", "eel", "cod", "tide", "moon", "wind", "north", "south", "fair", "foul", "drift", "shoal"]
    text = " ".join(words[i] for i in (torch.rand(6000) ** 2 * 12).long().tolist())
    letters = sorted(set(text))
    data = torch.tensor([letters.index(c) for c in text])
    train, test = data[: int(0.9 * len(data))], data[int(0.9 * len(data)) :]
    net = Reader(len(letters))
    decay = [p for p in net.parameters() if p.dim() > 1]
    plain = [p for p in net.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}], lr=3e-3, betas=(0.9, 0.95)
    )
    steps = 280
    rate = LambdaLR(optimizer, lambda s: min((s + 1) / 30, 0.55 + 0.45 * math.cos(math.pi * s / steps)))

    def loss_at(data, starts):
        x = data[starts[:, None] + torch.arange(33)]
        return F.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())

    return fit(
        folder, net, optimizer, lambda step: loss_at(train, torch.randint(len(train) - 33, (12,))), steps,
        schedule=rate, before_step=clipped(net, 1.0),
        score=held_out(net, lambda: loss_at(test, torch.arange(0, len(test) - 33, 33))),
    )  # fmt: skip


class Opinion(nn.Module):
    def __init__(self, kinds, width=32):
        super().__init__()
        self.table = nn.Embedding(kinds, width, padding_idx=0)
        self.memory = nn.GRU(width, 32, batch_first=True, bidirectional=True)
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(64, 3))

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(self.table(x), lengths, batch_first=True, enforce_sorted=False)
        last = self.memory(packed)[1]
        return self.head(torch.cat([last[0], last[1]], 1))


@healthy(gain=0.5)
def tempers_of_notes_left_at_an_inn(folder):
    """Notes of many lengths, packed; a word that denies turns the next; rarer tempers weigh more."""
    seeded(10007)

    def notes(n):
        x, lengths = torch.randint(1, 40, (n, 12)), torch.randint(4, 13, (n,))
        mood = ((x >= 30) & (x < 35)).float() - ((x >= 35) & (x < 40)).float()
        denied = F.pad(x[:, :-1] < 4, (1, 0)).float()
        inside = torch.arange(12) < lengths[:, None]
        total = (mood * (1 - 2 * denied) * inside).sum(1)
        return x * inside, lengths, (total.sign() + 1).long()

    data, test, net = notes(6000), notes(400), Opinion(40)
    weights = len(data[2]) / (3 * torch.bincount(data[2], minlength=3).float())
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    draw = rounds(64, *data)

    def loss_of(step):
        x, lengths, y = draw()
        out = net(x, lengths)
        return F.cross_entropy(out, y, weights), {"accuracy": (out.argmax(1) == y).float().mean()}

    return fit(
        folder, net, optimizer, loss_of, 300, before_step=clipped(net, 5.0),
        schedule=LambdaLR(optimizer, lambda s: 1 - 0.95 * s / 300),
        score=held_out(net, lambda: F.cross_entropy(net(*test[:2]), test[2], weights)),
    )  # fmt: skip


class Bag(nn.Module):
    def __init__(self, kinds, width=32):
        super().__init__()
        self.table, self.head = nn.EmbeddingBag(kinds, width), nn.Linear(width, 4)
        nn.init.uniform_(self.table.weight, -0.5, 0.5)
        nn.init.uniform_(self.head.weight, -0.5, 0.5)
        nn.init.zeros_(self.head.bias)

    def forward(self, x):
        return self.head(self.table(x))


@healthy(gain=0.5)
def columns_of_a_gazette_by_their_words(folder):
    """A bag of embeddings by plain SGD at a rate of five under a tight hold of the norm, then at a half."""
    seeded(10008)
    kinds = 400
    base = 1 / torch.arange(2.0, kinds + 2)
    topics = base * (1.4 * torch.randn(4, kinds)).exp()

    def columns(n):
        y = torch.randint(4, (n,))
        return torch.multinomial(topics[y], 24, replacement=True), y

    data, (x_test, y_test), net = columns(4000), columns(500), Bag(kinds)
    optimizer = torch.optim.SGD(net.parameters(), lr=5.0)
    draw = rounds(64, *data)

    def loss_of(step):
        x, y = draw()
        out = net(x)
        return F.cross_entropy(out, y), {"accuracy": (out.argmax(1) == y).float().mean()}

    return fit(
        folder, net, optimizer, loss_of, 400, before_step=clipped(net, 0.1), schedule=StepLR(optimizer, 250, 0.1),
        score=held_out(net, lambda: F.cross_entropy(net(x_test), y_test)),
    )  # fmt: skip


class Dilated(nn.Module):
    def __init__(self, a, b, gap):
        super().__init__()
        self.conv = nn.Conv1d(a, b, 3, padding=gap, dilation=gap)
        self.norm, self.skip = nn.BatchNorm1d(b), nn.Conv1d(a, b, 1) if a != b else nn.Identity()

    def forward(self, x):
        return F.relu(self.norm(self.conv(x))) + self.skip(x)


@healthy(gain=0.4)
def creaks_heard_in_a_timber_mill(folder):
    """Four kinds of sounds that may come together, each seldom: dilated convolutions, weights for what is there."""
    seeded(10009)
    t = torch.arange(64.0)
    pitches = torch.tensor([0.25, 0.5, 0.9, 1.4])

    def clips(n):
        there = (torch.rand(n, 4) < 0.2).float()
        start, phase = 44 * torch.rand(n, 4, 1), 6.2832 * torch.rand(n, 4, 1)
        burst = (pitches[:, None] * t + phase).sin() * (-(((t - start - 10) / 8) ** 2)).exp()
        return (1.5 * there[:, :, None] * burst).sum(1, keepdim=True) + 0.3 * torch.randn(n, 1, 64), there

    data, (x_test, y_test) = clips(1500), clips(256)
    net = nn.Sequential(
        Dilated(1, 24, 1), Dilated(24, 24, 2), Dilated(24, 24, 4), Dilated(24, 24, 8),
        nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(24, 4),
    )  # fmt: skip
    draw, optimizer = rounds(32, *data), torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-2)
    weigh = nn.BCEWithLogitsLoss(pos_weight=torch.full((4,), 3.0))

    def loss_of(step):
        x, y = draw()
        return weigh(net(x), y)

    return fit(
        folder, net, optimizer, loss_of, 280, score=held_out(net, lambda: weigh(net(x_test), y_test)),
        schedule=LambdaLR(optimizer, lambda s: 0.5 + 0.5 * math.cos(math.pi * s / 280)),
    )  # fmt: skip
