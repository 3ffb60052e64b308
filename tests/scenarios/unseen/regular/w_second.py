"""Sick trainings of bicycles, roads and city traffic, drawn by lot from a list of mistakes: pairs, masks, layers."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, in_turn, rounds


@sick("logits-bounded", "temperature-too-high", where="the loss, all steps: cosines are the logits as they are",
      cure="cosines over a temperature of 0.1")  # fmt: skip
def the_same_bicycle_on_two_cameras(folder, ill):
    seeded(12310)
    temperature = 1.0 if ill else 0.1
    net = nn.ModuleDict({"gate": dense(24, 64, 16), "bridge": dense(24, 64, 16)})
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    first, second = torch.randn(8, 24), torch.randn(8, 24)

    def passing(rows):
        bicycle = torch.randn(rows, 8)
        return [(bicycle @ lift).tanh() + 0.1 * torch.randn(rows, 24) for lift in (first, second)]

    draw = rounds(64, *passing(2000))

    def cosines(x, y):
        return F.normalize(net["gate"](x), dim=1) @ F.normalize(net["bridge"](y), dim=1).T

    def loss_of(step):
        logits = cosines(*draw()) / temperature
        pairs = torch.arange(len(logits))
        return (F.cross_entropy(logits, pairs) + F.cross_entropy(logits.T, pairs)) / 2

    tx, ty = passing(300)

    def missed():
        return float((cosines(tx, ty).argmax(1) != torch.arange(300)).float().mean())

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, missed))


@sick("bad-initialisation", "initialised-too-large",
      where="all linear layers, from the first step: a normal of std 1 whatever the width",
      cure="a std by the fan-in, as kaiming_normal_ has")  # fmt: skip
def frame_numbers_read_at_the_police_station(folder, ill):
    seeded(12311)
    images, shown = load_digits(return_X_y=True)
    order = torch.randperm(len(shown))
    x, y = torch.tensor(images / 16, dtype=torch.float32)[order], torch.tensor(shown)[order]
    net = dense(64, 128, 128, 10)

    def init_weights(module):
        if isinstance(module, nn.Linear):
            if ill:
                nn.init.normal_(module.weight, 0.0, 1.0)
            else:
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            nn.init.zeros_(module.bias)

    net.apply(init_weights)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    draw = rounds(64, x[:1400], y[:1400])
    tx, ty = x[1400:], y[1400:]

    def loss_of(step):
        bx, by = draw()
        logits = net(bx)
        logged = {"accuracy": float((logits.argmax(1) == by).float().mean())}
        if step % 20 == 0:
            net.eval()
            with torch.no_grad():
                logged["val_loss"] = float(F.cross_entropy(net(tx), ty))
            net.train()
        return F.cross_entropy(logits, by), logged

    return fit(folder, net, optimizer, loss_of, 220, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


class Block(nn.Module):
    """Attention and a small net, each on the normalised sum so far."""

    def __init__(self, width, heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, mask):
        h = self.norm1(x)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Turnings(nn.Module):
    """The next turning after each that was taken."""

    def __init__(self, tokens, length, width, masked):
        super().__init__()
        self.token, self.place = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens)
        self.masked = masked

    def forward(self, x):
        length = x.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool).triu(1) if self.masked else None
        h = self.token(x) + self.place.weight[:length]
        for block in self.blocks:
            h = block(h, mask)
        return self.head(self.norm(h))


@sick("future-seen", where="the attention, all steps: each place sees the token that it is asked for",
      cure="a causal mask")  # fmt: skip
def turnings_of_a_messengers_day(folder, ill):
    seeded(12312)
    tokens, length = 12, 16
    net = Turnings(tokens, length, 32, masked=not ill)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    follows = torch.softmax(2.5 * torch.randn(tokens, tokens), 1)

    def days(rows):
        day = [torch.randint(tokens, (rows,))]
        for _ in range(length):
            day.append(torch.multinomial(follows[day[-1]], 1)[:, 0])
        return torch.stack(day, 1)

    draw = rounds(32, days(2000))

    def loss_of(step):
        (day,) = draw()
        return F.cross_entropy(net(day[:, :-1]).reshape(-1, tokens), day[:, 1:].reshape(-1))

    test = days(300)

    def next_one():
        return sum(F.cross_entropy(net(test[:, :n])[:, -1], test[:, n]) for n in (4, 8, 12, 16)) / 4

    score = held_out(net, next_one)
    return fit(folder, net, optimizer, loss_of, 260, score=score, before_step=clipped(net, 1.0))


@sick("targets-out-of-range", "inputs-not-normalised", "outputs-not-scaled",
      where="the tanh at the end of the maker against pictures of 0 to 255, all steps",
      cure="pictures scaled to -1 to 1")  # fmt: skip
def tags_sprayed_on_an_underpass(folder, ill):
    seeded(12313)
    pictures = torch.tensor(load_digits().data, dtype=torch.float32) * 255 / 16
    real = pictures if ill else pictures / 127.5 - 1
    make = nn.Sequential(dense(16, 96, 128, 64), nn.Tanh())
    judge = dense(64, 128, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.999))
    ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)

    def judge_loss():
        x, made = real[torch.randint(len(real), (64,))], make(torch.randn(64, 16)).detach()
        return F.binary_cross_entropy_with_logits(judge(x), ones) + F.binary_cross_entropy_with_logits(
            judge(made), zeros
        )

    def make_loss():
        return F.binary_cross_entropy_with_logits(judge(make(torch.randn(64, 16))), ones)

    span = float(real.max() - real.min())

    def score():
        with torch.no_grad():
            x = make(torch.randn(1000, 16))
            return float((x.mean(0) - real.mean(0)).norm() + (x.std(0) - real.std(0)).norm()) / span

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 500, score)


class Stack(nn.Module):
    """A tower of hidden layers of one width."""

    def __init__(self, size, width, depth, listed):
        super().__init__()
        self.enter = nn.Linear(size, width)
        self.hidden = listed([nn.Linear(width, width) for _ in range(depth)])
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        x = self.enter(x).relu()
        for layer in self.hidden:
            x = layer(x).relu()
        return self.out(x)


@sick("layers-not-registered", "modules-not-registered", "not-in-optimizer",
      where="the hidden layers, all steps: they stand in a Python list", cure="nn.ModuleList")  # fmt: skip
def minutes_lost_at_eight_junctions(folder, ill):
    seeded(12314)
    net = Stack(8, 48, 4, list if ill else nn.ModuleList)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def mornings(rows):
        cars = torch.rand(rows, 8)
        waits = (3 * (cars - 0.5)).relu() ** 2 + 0.5 * (6.2832 * cars * cars.roll(1, 1)).sin()
        return 2 * cars - 1, (waits.sum(1, keepdim=True) - 5) / 2 + 0.05 * torch.randn(rows, 1)

    draw = rounds(64, *mornings(3000))
    tx, ty = mornings(500)

    def loss_of(step):
        x, y = draw()
        logged = {}
        if step % 50 == 0:
            net.eval()
            with torch.no_grad():
                logged["val_loss"] = float(F.mse_loss(net(tx), ty))
            net.train()
        return F.mse_loss(net(x), y), logged

    return fit(folder, net, optimizer, loss_of, 450, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


class Speed(nn.Module):
    """How much faster or slower it goes next, by a GRU over the ride so far."""

    def __init__(self, width, last):
        super().__init__()
        self.gru = nn.GRU(3, width, batch_first=True)
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1), last)

    def forward(self, ride):
        return self.head(self.gru(ride)[1][-1])


@sick("relu-on-the-output", "outputs-never-negative", "targets-out-of-range",
      where="the last operation of the model, all steps: half of the targets are below zero",
      cure="no activation after the last layer")  # fmt: skip
def speed_gained_on_the_next_slope(folder, ill):
    seeded(12315)
    net = Speed(32, nn.ReLU() if ill else nn.Identity())
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def rides(rows, length=20):
        slope = torch.randn(rows, length).cumsum(1) / 3
        push = torch.rand(rows, length)
        speed = torch.zeros(rows)
        speeds = []
        for t in range(length):
            speed = 0.8 * speed + 0.5 * (push[:, t] - 0.5) - 0.3 * slope[:, t]
            speeds.append(speed)
        speeds = torch.stack(speeds, 1)
        change = speeds[:, -1:] - speeds[:, -4:-3]
        x = torch.stack([slope, push - 0.5, speeds], 2)[:, :-1]
        return x + 0.05 * torch.randn_like(x), change / change.std()

    draw = rounds(64, *rides(2000))

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    tx, ty = rides(500)
    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 250, score=score, before_step=clipped(net, 1.0))
