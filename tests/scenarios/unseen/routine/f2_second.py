"""Six sick trainings by rivers and lakes: mill wheels, a lake's level, a ferry, gauges, grayling, a daybook."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, judged, now_and_then, rounds


class Leat(nn.Module):
    """The power of the last wheel, by what comes into the leat, wheel after wheel."""

    def __init__(self, columns, width, wheels, registered):
        super().__init__()
        self.inlet = nn.Linear(columns, width)
        self.wheels = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(wheels)]
        if registered:
            self.wheels = nn.ModuleList(self.wheels)
        self.tail = nn.Linear(width, 1)

    def forward(self, x):
        x = self.inlet(x).relu()
        for wheel in self.wheels:
            x = wheel(x)
        return self.tail(x)


# 7 of the list
@sick(
    "layers-not-registered", "modules-not-registered", "not-in-optimizer",
    where="the stages, every step", cure="nn.ModuleList",
)  # fmt: skip
def mill_wheels_along_the_leat(folder, ill):
    seeded(13206)
    way = torch.randn(7, 3)

    def days(n):
        x = torch.randn(n, 7)
        power = (x @ way / 2).sin().sum(1, keepdim=True) + 0.5 * x[:, :1] * x[:, 1:2]
        return x, power + 0.05 * torch.randn(n, 1)

    net = Leat(7, 24, 4, registered=not ill)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    draw = rounds(64, *days(4000))
    x_val, y_val = days(500)
    validate = now_and_then(net, 25, lambda: {"val_loss": F.mse_loss(net(x_val), y_val)})

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y), validate(step)

    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, lambda: F.mse_loss(net(x_val), y_val)))


class LakeLevel(nn.Module):
    """By how much a lake will have risen or fallen, after two weeks of rain, wind and sluice."""

    def __init__(self, columns=3, width=32, last=None):
        super().__init__()
        self.days = nn.GRU(columns, width, batch_first=True)
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1), *([last] if last else []))

    def forward(self, x):
        return self.head(self.days(x)[0][:, -1])


# 38 of the list
@sick(
    "targets-out-of-range", "relu-on-the-output", "outputs-never-negative",
    where="the last module of the head, every step", cure="no activation at the end",
)  # fmt: skip
def lake_level_by_monday(folder, ill):
    seeded(13207)
    late = torch.linspace(0.2, 1, 14)

    def fortnights(n):
        x = torch.randn(n, 14, 3)
        rise = (late * (x[:, :, 0] - 0.7 * x[:, :, 2])).sum(1, keepdim=True) - x[:, -1, 1:2].abs() * x[:, -1, :1]
        return x, (rise - rise.mean()) / rise.std()

    net = LakeLevel(last=nn.ReLU() if ill else None)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    draw = rounds(64, *fortnights(3000))
    x_val, y_val = fortnights(400)
    validate = now_and_then(net, 25, lambda: {"val_loss": F.mse_loss(net(x_val), y_val)})

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y), validate(step)

    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, lambda: F.mse_loss(net(x_val), y_val)))


class FerryLog(nn.Module):
    """Which landing comes next in a ferry's log."""

    def __init__(self, landings, width=48):
        super().__init__()
        self.embed = nn.Embedding(landings, 24, padding_idx=0)
        self.gru = nn.GRU(24, width, batch_first=True)
        self.out = nn.Linear(width, landings)

    def forward(self, ids):
        return self.out(self.gru(self.embed(ids))[0])


# 17 of the list
@sick("padding-in-loss", where="the loss, every step", cure="ignore_index=PAD")
def ferry_log_continued(folder, ill):
    seeded(13208)
    pad, landings, longest = 0, 13, 32
    usual = torch.randint(1, landings, (landings, landings))

    def logs(n):
        """Landings by the two before, mostly; 3 to 8 of them a day, and 0 up to the longest day in the book."""
        ids = torch.zeros(n, longest, dtype=torch.long)
        ids[:, :2] = torch.randint(1, landings, (n, 2))
        for i in range(2, longest):
            odd = torch.randint(1, landings, (n,))
            ids[:, i] = torch.where(torch.rand(n) < 0.96, usual[ids[:, i - 2], ids[:, i - 1]], odd)
        lengths = torch.randint(4, 10, (n, 1))
        lengths[0] = longest
        return torch.where(torch.arange(longest) < lengths, ids, pad)

    def real(ids):
        """The loss on landings alone."""
        return F.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), ignore_index=pad)

    net = FerryLog(landings)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    draw = rounds(64, logs(6000))
    kept_back = logs(400)

    def loss_of(step):
        (ids,) = draw()
        logits, target = net(ids[:, :-1]), ids[:, 1:]
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=-100 if ill else pad)

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: real(kept_back)))


class WeirNet(nn.Module):
    """Which of the gauges is silted, by the levels of all: `[B, hours, gauges]` in."""

    def __init__(self, gauges, scrambled):
        super().__init__()
        self.scrambled = scrambled
        self.body = nn.Sequential(
            nn.Conv1d(gauges, 24, 5, padding=2), nn.ReLU(), nn.Conv1d(24, 24, 5, padding=2), nn.ReLU()
        )
        self.head = nn.Linear(24, gauges)

    def forward(self, x):
        rows, hours, gauges = x.shape
        x = x.view(rows, gauges, hours) if self.scrambled else x.transpose(1, 2)
        return self.head(self.body(x).mean(2))


# 23 of the list
@sick("axes-mixed", where="the input of the first convolution, every step", cure="transpose(1, 2)")
def gauges_above_and_below_the_weir(folder, ill):
    seeded(13209)

    def weeks(n, hours=40, gauges=6):
        """A wave passes all gauges, a little sooner or later each; a silted one follows late and slowly."""
        y = torch.randint(gauges, (n,))
        t, when = torch.arange(hours).float(), 8 + 16 * torch.rand(n, 1, 1)
        silted = F.one_hot(y, gauges).float()[:, None]
        peak = when + torch.randn(n, 1, gauges) + 4 * silted
        wave = (-((t[:, None] - peak) ** 2) / (8 + 20 * silted)).exp()
        x = 2 * wave + 0.3 * torch.randn(n, 1, gauges) + 0.25 * torch.randn(n, hours, gauges)
        return (x - x.mean()) / x.std(), y

    net = WeirNet(6, scrambled=ill)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    draw = rounds(64, *weeks(3000))
    x_val, y_val = weeks(500)
    validate = now_and_then(net, 25, judged(net, x_val, y_val))

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        accuracy = float((logits.argmax(1) == y).float().mean())
        return F.cross_entropy(logits, y), {"accuracy": accuracy, **validate(step)}

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.cross_entropy(net(x_val), y_val)))


# 24 of the list
@sick("weight-decay-too-strong", "weights-shrink", where="all layers, every step", cure="weight_decay=1e-4")
def grayling_aged_by_their_scales(folder, ill):
    seeded(13210)

    def scales(n, points=40):
        """How dark a scale is from its centre to its rim: a ring for each winter, closer and closer."""
        age = torch.randint(1, 6, (n,))
        r = torch.linspace(0, 1, points)
        growth = 0.25 + 0.15 * torch.rand(n, 1)
        winters = (1 - (1 - growth) ** torch.arange(1, 6)) + 0.015 * torch.randn(n, 5)
        rings = (-((r[None, None] - winters[:, :, None]) ** 2) / 0.0012).exp()
        dark = (rings * (torch.arange(1, 6) <= age[:, None]).float()[:, :, None]).sum(1)
        x = dark + 0.15 * torch.randn(n, points)
        return (x - x.mean()) / x.std(), age - 1

    net = dense(40, 96, 48, 5)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, weight_decay=0.3 if ill else 1e-4)
    draw = rounds(64, *scales(4000))
    x_val, y_val = scales(500)
    validate = now_and_then(net, 25, judged(net, x_val, y_val))

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y), validate(step)

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.cross_entropy(net(x_val), y_val)))


class Daybook(nn.Module):
    """What an entry in a bailiff's daybook is about: the first place reads all others."""

    def __init__(self, words, kinds, longest, inverted, width=32):
        super().__init__()
        self.inverted = inverted
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(0.1 * torch.randn(longest + 1, width))
        self.first = nn.Parameter(0.1 * torch.randn(1, 1, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, kinds))

    def forward(self, ids):
        mask = ids != 0 if self.inverted else ids == 0
        mask = F.pad(mask, (1, 0), value=self.inverted)
        x = torch.cat([self.first.expand(len(ids), -1, -1), self.words(ids)], 1) + self.places
        return self.head(self.encoder(x, src_key_padding_mask=mask)[:, 0])


# 18 of the list
@sick("mask-inverted", where="the attentions, every step", cure="ids == PAD")
def bailiff_reading_the_daybook(folder, ill):
    seeded(13211)
    words, kinds, longest = 41, 4, 20

    def entries(n):
        """5 to 18 words, most of no weight; two tell of poachers, permits, spills or swans."""
        y, lengths = torch.randint(kinds, (n,)), torch.randint(5, 19, (n, 1))
        ids = torch.randint(21, words, (n, longest))
        telling = 1 + 5 * y[:, None] + torch.randint(5, (n, 2))
        blank = torch.arange(longest) >= lengths
        ids.scatter_(1, torch.rand(n, longest).masked_fill(blank, -1).topk(2).indices, telling)
        return ids.masked_fill(blank, 0), y

    net = Daybook(words, kinds, longest, inverted=ill)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
    draw = rounds(48, *entries(3000))
    x_val, y_val = entries(300)
    validate = now_and_then(net, 25, judged(net, x_val, y_val))

    def loss_of(step):
        ids, y = draw()
        logits = net(ids)
        accuracy = float((logits.argmax(1) == y).float().mean())
        return F.cross_entropy(logits, y), {"accuracy": accuracy, **validate(step)}

    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, lambda: F.cross_entropy(net(x_val), y_val)))
