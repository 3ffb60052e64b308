"""Series of measurements and of sound."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.rnn import pack_padded_sequence
from unseen import fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


def windows(series, past, ahead):
    """`[N, past, C]` and the first column of the `ahead` that follow."""
    cut = series.unfold(0, past + ahead, 1).transpose(1, 2)
    return cut[:, :past].contiguous(), cut[:, past:, 0].contiguous()


@healthy()
def stock_that_a_pharmacy_sells_in_a_week(folder):
    seeded(3219)
    day = torch.arange(2200.0)
    walk = (0.05 * torch.randn(2200)).cumsum(0)
    sold = (6.2832 * day / 7).sin() + 0.7 * (6.2832 * day / 90).cos() + walk - walk.mean() + 0.2 * torch.randn(2200)
    series = torch.stack([sold, (6.2832 * day / 7).cos(), (6.2832 * day / 7).sin()], 1)
    series = (series - series[:1700].mean(0)) / series[:1700].std(0)
    x, y = windows(series[:1700], 28, 7)
    fresh_x, fresh_y = windows(series[1700:], 28, 7)
    net = nn.ModuleDict({"memory": nn.LSTM(3, 32, 2, batch_first=True, dropout=0.1), "head": nn.Linear(32, 7)})
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=2)
    draw, epoch = rounds(64, x, y), len(x) // 64

    def loss_on(x, y):
        return F.mse_loss(net["head"](net["memory"](x)[0][:, -1]), y)

    score = held_out(net, lambda: loss_on(fresh_x, fresh_y))

    def one(step):
        loss = loss_on(*draw())
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        logged = {"loss": loss.item(), "norm_before_clip": norm.item()}
        if step % epoch == epoch - 1:
            logged["val_loss"] = score()
            schedule.step(logged["val_loss"])
        return logged

    return tend(folder, net, optimizer, one, 10 * epoch, score)


def motions(rows, kinds=6, length=64):
    """Three axes of a wristband: a kind has a pace, a shape and a share of each axis."""
    y = torch.randint(kinds, (rows,))
    pace, axes, second = 1 + 6 * torch.rand(kinds), torch.randn(kinds, 3), torch.rand(kinds)
    at = torch.linspace(0, 6.2832, length)
    phase = 6.2832 * torch.rand(rows, 1) + pace[y][:, None] * at * (0.9 + 0.2 * torch.rand(rows, 1))
    wave = phase.sin() + second[y][:, None] * (2 * phase).sin()
    x = axes[y][:, :, None] * wave[:, None] + torch.randn(rows, 3, 1) * 0.3 + 1.3 * torch.randn(rows, 3, length)
    return x, y


@healthy()
def movements_under_a_wristband(folder):
    seeded(3220)
    x, y = motions(3600)
    net = nn.Sequential(
        nn.Conv1d(3, 24, 7, padding=3, bias=False), nn.BatchNorm1d(24), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(24, 32, 5, padding=2, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.AdaptiveAvgPool1d(1),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(32, 6),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [250, 350], 0.1)
    draw = rounds(64, x[:3200], y[:3200])

    def loss_of(step):
        a, b = draw()
        out = net(a)
        return F.cross_entropy(out, b), {"accuracy": (out.argmax(1) == b).float().mean().item()}

    score = held_out(net, lambda: F.cross_entropy(net(x[3200:]), y[3200:]))
    return fit(folder, net, optimizer, loss_of, 400, schedule=schedule, score=score)


class Causal(nn.Module):
    """Convolutions that see further and further back."""

    def __init__(self, channels, width=24):
        super().__init__()
        self.first = nn.Conv1d(channels, width, 1)
        self.layers = nn.ModuleList(weight_norm(nn.Conv1d(width, width, 3, dilation=d)) for d in (1, 2, 4, 8))
        self.head = nn.Conv1d(width, 1, 1)

    def forward(self, x):
        h = self.first(x)
        for layer in self.layers:
            h = h + F.dropout(F.relu(layer(F.pad(h, (2 * layer.dilation[0], 0)))), 0.05, self.training)
        return self.head(h)[:, 0]


@healthy()
def heat_that_a_school_needs_next_hour(folder):
    seeded(3221)
    hours = 5000
    hour = torch.arange(float(hours))
    outside = 6 * (6.2832 * hour / 24).sin() + 0.2 * torch.randn(hours).cumsum(0).clamp(-60, 60)
    open_ = ((hour % 24 > 7) & (hour % 24 < 17) & (hour % 168 < 120)).float()
    lagged = torch.zeros(hours)
    for i in range(1, hours):
        lagged[i] = 0.85 * lagged[i - 1] + 0.15 * (18 - outside[i]).clamp(min=0) * (0.4 + 0.6 * open_[i])
    heat = lagged + 0.3 * torch.randn(hours)
    x = torch.stack([(outside - outside.mean()) / outside.std(), open_ - 0.4])
    y = (heat - heat.mean()) / heat.std()
    train = x[:, :4000].unfold(1, 96, 4).transpose(0, 1), y[:4000].unfold(0, 96, 4)
    fresh = x[:, 4000:].unfold(1, 96, 48).transpose(0, 1), y[4000:].unfold(0, 96, 48)
    net = Causal(2)
    optimizer = torch.optim.RAdam(net.parameters(), lr=3e-3)
    draw = rounds(32, *train)

    def loss_on(x, y):
        return F.mse_loss(net(x)[:, 30:], y[:, 30:])

    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 300, score=held_out(net, lambda: loss_on(*fresh)))


def hums(rows, kinds=5, bands=24, frames=32):
    """Log spectra of machines: some bands that hum, and a rattle at a beat of its own."""
    y = torch.randint(kinds, (rows,))
    tone, beat = torch.randn(kinds, bands), torch.randint(3, 9, (kinds,))
    rattle = ((torch.arange(frames) + torch.randint(9, (rows, 1))) % beat[y][:, None] == 0).float()
    x = 0.4 * tone[y][:, :, None] + 0.8 * rattle[:, None] * (torch.arange(bands) > 14)[:, None]
    return (x + 2 * torch.randn(rows, bands, frames))[:, None] / 2, y


@healthy()
def machines_known_by_their_hum(folder):
    seeded(3222)
    x, y = hums(2400)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 24, 3, padding=1),
        nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(2), nn.AvgPool1d(8), nn.Flatten(),
        nn.Dropout(0.3), nn.Linear(144, 5),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.02)
    draw = rounds(48, x[:2000], y[:2000])

    def masked(x):
        x = x.clone()
        band, frame = torch.randint(20, ()), torch.randint(26, ())
        x[:, :, band : band + 4] = 0
        x[:, :, :, frame : frame + 6] = 0
        return x

    def loss_of(step):
        a, b = draw()
        return F.cross_entropy(net(masked(a)), b)

    score = held_out(net, lambda: F.cross_entropy(net(x[2000:]), y[2000:]))
    return fit(folder, net, optimizer, loss_of, 205, score=score)


@healthy()
def weeks_that_a_pump_will_last(folder):
    seeded(3223)
    rows, longest = 1800, 40
    wear, life = 0.02 + 0.06 * torch.rand(rows), torch.randint(12, longest + 1, (rows,))
    at = torch.arange(float(longest))
    level = wear[:, None] * at + 0.2 * torch.randn(rows, longest)
    x = torch.stack([level, level.square() + 0.2 * torch.randn(rows, longest), torch.randn(rows, longest)], 2)
    x[at[None] >= life[:, None]] = 0
    y = ((4 - wear * life) / wear).clamp(max=60) / 60
    net = nn.ModuleDict({"memory": nn.GRU(3, 32, batch_first=True), "head": nn.Linear(32, 1)})
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    draw = rounds(48, x[:1500], life[:1500], y[:1500])

    def loss_on(x, life, y):
        _, last = net["memory"](pack_padded_sequence(x, life, batch_first=True, enforce_sorted=False))
        return F.mse_loss(net["head"](last[-1])[:, 0], y)

    score = held_out(net, lambda: loss_on(x[1500:], life[1500:], y[1500:]))
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 310, before_step=clipped(net, 1.0), score=score)


@healthy()
def ordinary_days_of_a_compressor(folder):
    seeded(3224)
    load, phase = torch.rand(6000, 1), 6.2832 * torch.rand(6000, 1)
    at = torch.linspace(0, 12.566, 48)
    x = (0.5 + load) * (at + phase).sin() + 0.5 * load * (3 * at + phase).cos() + 2 * load + 0.1 * torch.randn(6000, 48)
    x = (x - x[:5400].mean(0)) / x[:5400].std(0)
    net = nn.Sequential(
        nn.Linear(48, 32), nn.LeakyReLU(), nn.Linear(32, 4), nn.Linear(4, 32), nn.LeakyReLU(), nn.Linear(32, 48)
    )
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    draw = rounds(128, x[:5400])

    def loss_of(step):
        (a,) = draw()
        return F.mse_loss(net(a), a)

    score = held_out(net, lambda: F.mse_loss(net(x[5400:]), x[5400:]))
    return fit(folder, net, optimizer, loss_of, 42 * 12, score=score)
