"""Signals in time: sales to come, beats and bangs to be named."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from trainings import TREATMENT
from unseen import Outcome, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend

import gradwatch


def windows(series, back, ahead):
    cut = series.unfold(0, back + ahead, 1)
    return cut[:, :back], cut[:, back:]


class Forecaster(nn.Module):
    def __init__(self, hidden=40, ahead=1):
        super().__init__()
        self.lstm = nn.LSTM(1, hidden, num_layers=2, batch_first=True, dropout=0.1)
        self.out = nn.Linear(hidden, ahead)

    def forward(self, x):
        return self.out(self.lstm(x[:, :, None])[0][:, -1])


@healthy()
def loaves_sold_on_a_corner(folder):
    seeded(9440)
    day = torch.arange(1500).float()
    by_weekday = torch.tensor([0.0, -6, -4, 2, 14, 30, -25])
    sold = 120 + by_weekday[torch.arange(1500) % 7] + 15 * (6.2832 * day / 90).sin() + 4 * torch.randn(1500)
    middle, spread = sold[:1200].mean(), sold[:1200].std()
    series = (sold - middle) / spread
    x, y = windows(series[:1200], 14, 1)
    test_x, test_y = windows(series[1186:], 14, 1)
    net = Forecaster()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    criterion = nn.MSELoss()
    validate = held_out(net, lambda: criterion(net(test_x), test_y))
    first = validate()
    options = TREATMENT[-1].begin(net, optimizer)
    watch = gradwatch.watch(net, optimizer, **{"log": None, "dir": folder, "verbose": False, **options})
    with watch:
        for _ in range(7):
            for x_part, y_part in loader:
                optimizer.zero_grad()
                loss = criterion(net(x_part), y_part)
                loss.backward()
                optimizer.step()
                watch.log(loss=loss.item())
    return Outcome(gradwatch.open_history(watch.dir), first, validate())


def beats(rows, length=96):
    """Two beats each: even, early, broad or without the small wave before the peak."""
    kind = torch.randint(4, (rows,))
    time = torch.arange(length).float()
    start, gap = 18 + 8 * torch.rand(rows), 40 + 6 * torch.randn(rows)
    gap = torch.where(kind == 1, gap * 0.6, gap)
    broad = torch.where(kind == 2, 4.0, 1.6)

    def bump(at, width, height):
        return height[:, None] * (-(((time - at[:, None]) / width[:, None]) ** 2)).exp()

    signal = torch.zeros(rows, length)
    ones = torch.ones(rows)
    for at in (start, start + gap):
        signal += bump(at - 9, 3 * ones, torch.where(kind == 3, 0.0, 0.35)) + bump(at, broad, 1.5 * ones)
        signal += bump(at + 14, 5 * ones, 0.4 * ones)
    drift = 0.3 * torch.randn(rows, 1) * (time / 40 + 6 * torch.rand(rows, 1)).sin()
    return (signal + drift + 0.12 * torch.randn(rows, length))[:, None], kind


class Dilated(nn.Module):
    def __init__(self, wide, step):
        super().__init__()
        self.conv = nn.Conv1d(wide, wide, 3, padding=step, dilation=step)
        self.norm = nn.GroupNorm(4, wide)

    def forward(self, x):
        return x + F.gelu(self.norm(self.conv(x)))


@healthy()
def pulses_of_joggers_told_apart(folder):
    seeded(9441)
    net = nn.Sequential(
        nn.Conv1d(1, 24, 5, padding=2),
        *(Dilated(24, step) for step in (1, 2, 4, 8)),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(24, 4),
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)
    draw = rounds(32, *beats(2400))
    test_x, test_y = beats(400)

    def loss_of(step):
        x, y = draw()
        out = net(x * (0.9 + 0.2 * torch.rand(len(x), 1, 1)))
        return F.cross_entropy(out, y), {"accuracy": (out.argmax(1) == y).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(test_x), test_y))
    return fit(folder, net, optimizer, loss_of, 300, score=score, schedule=schedule)


class Stack(nn.Module):
    """A block foretells, takes off what it has explained, and hands the rest to the next."""

    def __init__(self, back=48, ahead=12, blocks=3, width=64):
        super().__init__()
        self.back = back
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(back, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, back + ahead)
            )
            for _ in range(blocks)
        )

    def forward(self, x):
        total = 0
        for at, block in enumerate(self.blocks):
            out = block(x)
            total = total + out[:, self.back :]
            if at < len(self.blocks) - 1:
                x = x - out[:, : self.back]
        return total


@healthy()
def power_drawn_by_a_laundry(folder):
    seeded(9442)
    hour = torch.arange(3000).float()
    daily = (6.2832 * hour / 24).sin() + 0.6 * (6.2832 * hour / 12 + 1).cos()
    use = 5 + daily * (1 + 0.5 * (6.2832 * hour / 168).sin()) + 0.25 * torch.randn(3000)
    use = (use - use[:2500].mean()) / use[:2500].std()
    net = Stack()
    optimizer = torch.optim.NAdam(net.parameters(), lr=1e-3)
    draw = rounds(128, *windows(use[:2500], 48, 12))
    test_x, test_y = windows(use[2500:], 48, 12)

    def loss_of(step):
        x, y = draw()
        return F.l1_loss(net(x), y)

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.l1_loss(net(test_x), test_y)))


def sounds(rows, length=1024):
    """A clap, a knock, a ring or a whistle that rises, as log spectrograms."""
    kind, time = torch.randint(4, (rows, 1)), torch.arange(length) / length
    late = (time - 0.1 - 0.3 * torch.rand(rows, 1)).clamp(min=0)
    begun = (late > 0).float()
    pitch = 60 + 40 * torch.rand(rows, 1)
    clap = torch.randn(rows, length) * (-late * 25).exp()
    knock = (6.2832 * 0.5 * pitch * late).sin() * (-late * 18).exp()
    ring = ((6.2832 * 2 * pitch * late).sin() + (6.2832 * 3.1 * pitch * late).sin()) * (-late * 3).exp()
    whistle = (6.2832 * pitch * late * (1 + 2 * late)).sin() * 0.7
    wave = torch.stack([clap, knock, ring, whistle], 1)[torch.arange(rows), kind[:, 0]] * begun
    wave = wave * (0.5 + torch.rand(rows, 1)) + 0.3 * torch.randn(rows, length)
    spectrum = torch.stft(wave, 64, 32, window=torch.hann_window(64), return_complex=True).abs()
    return (spectrum**2 + 1e-4).log()[:, None], kind[:, 0]


@healthy()
def knocks_and_rings_at_a_front_door(folder):
    seeded(9443)
    x, y = sounds(1600)
    middle, spread = x.mean(), x.std()
    test_x, test_y = sounds(300)
    test_x = (test_x - middle) / spread
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, 2, 1),
        nn.BatchNorm2d(12),
        nn.LeakyReLU(0.1),
        nn.Conv2d(12, 24, 3, 2, 1),
        nn.BatchNorm2d(24),
        nn.LeakyReLU(0.1),
        nn.Conv2d(24, 32, 3, 2, 1),
        nn.BatchNorm2d(32),
        nn.LeakyReLU(0.1),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 4),
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    draw = rounds(32, (x - middle) / spread, y)

    def one(step):
        x, y = draw()
        row, column = int(torch.randint(30, ())), int(torch.randint(30, ()))
        x[:, :, row : row + 3] = 0
        x[:, :, :, column : column + 3] = 0
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(x)
            loss = F.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss.item(), "train_acc": (out.argmax(1) == y).float().mean().item()}

    return tend(folder, net, optimizer, one, 250, held_out(net, lambda: F.cross_entropy(net(test_x), test_y)))


class Riders(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.gru, self.out = nn.GRU(3, hidden, batch_first=True), nn.Linear(hidden, 2)

    def forward(self, x):
        middle, spread = self.out(self.gru(x)[0]).chunk(2, 2)
        return middle[:, :, 0], F.softplus(spread[:, :, 0]) + 1e-3


@healthy()
def taxis_called_hour_by_hour(folder):
    seeded(9444)
    hour = torch.arange(2400).float()
    clock = 6.2832 * hour / 24
    night = (clock.cos() < -0.3).float()
    shape = clock.sin() + 1.5 * (torch.arange(2400) % 168 > 120) * (2 * clock).cos()
    calls = shape + (0.1 + 0.4 * night) * torch.randn(2400)
    calls = (calls - calls.mean()) / calls.std()
    table = torch.stack([calls, clock.sin(), clock.cos()], 1)
    x, y = table.unfold(0, 48, 1)[:-1].transpose(1, 2), calls[1:].unfold(0, 48, 1)
    net = Riders()
    optimizer = torch.optim.RMSprop(net.parameters(), lr=2e-3)
    draw = rounds(32, x[:1900], y[:1900])

    def loss_of(step):
        x, y = draw()
        middle, spread = net(x)
        return F.gaussian_nll_loss(middle, y, spread**2), {"mae": (middle - y).abs().mean()}

    score = held_out(net, lambda: (net(x[1950:])[0] - y[1950:]).abs().mean())
    return fit(folder, net, optimizer, loss_of, 400, score=score, before_step=clipped(net, 10.0))
