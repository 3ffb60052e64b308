"""A research vessel at sea, healthy: sound, diatoms, rolling, bottles, squalls, watches, pumps, orders, moorings."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds, tend


def digits():
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float().view(-1, 1, 8, 8) / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    return (x[order] - 0.3) / 0.38, y[order]


@healthy(0.7)
def speed_of_sound_from_salt_warmth_and_pressure(folder):
    seeded(13850)

    def waters(rows):
        warm, salt, deep = 30 * torch.rand(rows), 30 + 8 * torch.rand(rows), 4000 * torch.rand(rows)
        speed = 1449.2 + 4.6 * warm - 0.055 * warm**2 + 2.9e-4 * warm**3
        speed = speed + (1.34 - 0.01 * warm) * (salt - 35) + 0.016 * deep
        return torch.stack([warm, salt, deep], 1), (speed + torch.randn(rows))[:, None]

    (x, y), (tx, ty) = waters(3000), waters(600)
    centre, spread, middle, wide = x.mean(0), x.std(0), y.mean(), y.std()
    x, tx, y, ty = (x - centre) / spread, (tx - centre) / spread, (y - middle) / wide, (ty - middle) / wide
    draw = rounds(64, x, y)
    net = dense(3, 64, 64, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    validate = now_and_then(net, 46, lambda: {"val_loss": F.mse_loss(net(tx), ty)})

    def loss_of(step):
        rows, speed = draw()
        return F.mse_loss(net(rows), speed), validate(step)

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


@healthy(0.6)
def labels_written_on_sample_bottles(folder):
    seeded(13851)
    x, y = digits()
    draw = rounds(64, x[:1400], y[:1400])
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Flatten(), nn.Dropout(0.25), nn.Linear(512, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.03, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
    validate = now_and_then(net, 21, judged(net, x[1400:], y[1400:]))

    def loss_of(step):
        image, number = draw()
        said = net(image)
        right = (said.argmax(1) == number).float().mean()
        return F.cross_entropy(said, number), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score, schedule=schedule)


class Motion(nn.Module):
    """How far the ship will roll, by what it did until now."""

    def __init__(self):
        super().__init__()
        self.memory = nn.LSTM(2, 40, batch_first=True)
        self.out = nn.Linear(40, 1)

    def forward(self, x):
        return self.out(self.memory(x)[0][:, -1])


@healthy(0.5)
def rolling_of_the_ship_five_seconds_ahead(folder):
    seeded(13852)

    def watches(rows):
        time, phase = torch.arange(35.0), 6.2832 * torch.rand(2, rows, 1)
        swell = (6.2832 * time / (9 + 3 * torch.rand(rows, 1)) + phase[0]).sin()
        sea = 0.4 * (6.2832 * time / (4.5 + torch.rand(rows, 1)) + phase[1]).sin()
        roll = swell + sea
        pitch = 0.6 * roll.roll(1, 1) + 0.1 * torch.randn(rows, 35)
        seen = torch.stack([roll + 0.05 * torch.randn(rows, 35), pitch], 2)
        return seen[:, 1:30], roll[:, 34:]

    draw = rounds(64, *watches(3000))
    net = Motion()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    tx, ty = watches(500)
    validate = now_and_then(net, 46, lambda: {"val_loss": F.mse_loss(net(tx), ty)})

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 300, score=score, before_step=clipped(net, 1.0))


@healthy(0.5)
def diatoms_by_their_outline_on_a_slide(folder):
    seeded(13853)
    angle = torch.linspace(0, 6.2832, 65)[:-1]
    shape = torch.randn(9, 5, 2) / torch.arange(1.0, 6)[:, None]

    def slides(rows):
        y, turn = torch.randint(9, (rows,)), 6.2832 * torch.rand(rows, 1)
        around = torch.stack([(k * (angle + turn)).cos() for k in range(1, 6)], 1)
        across = torch.stack([(k * (angle + turn)).sin() for k in range(1, 6)], 1)
        radius = (around * shape[y][:, :, :1] + across * shape[y][:, :, 1:]).sum(1)
        return (radius + 0.4 * torch.randn(rows, 64))[:, None], y

    draw = rounds(64, *slides(3000))
    net = nn.Sequential(
        nn.Conv1d(1, 24, 9, padding=4, padding_mode="circular"), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(24, 48, 9, padding=4, padding_mode="circular"), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
        nn.Linear(48, 9),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 120, 0.4)
    tx, ty = slides(500)
    validate = now_and_then(net, 40, judged(net, tx, ty))

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": float((said.argmax(1) == y).float().mean()), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 300, score=score, schedule=schedule)


class Radar(nn.Module):
    """A small U-Net with one halving."""

    def __init__(self, width):
        super().__init__()

        def block(ins, outs):
            return nn.Sequential(nn.Conv2d(ins, outs, 3, padding=1), nn.GroupNorm(4, outs), nn.ReLU())

        self.top, self.low = block(1, width), nn.Sequential(block(width, 2 * width), block(2 * width, 2 * width))
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.join, self.out = block(2 * width, width), nn.Conv2d(width, 1, 1)

    def forward(self, x):
        top = self.top(x)
        low = self.up(self.low(F.max_pool2d(top, 2)))
        return self.out(self.join(torch.cat([top, low], 1)))


@healthy(0.4)
def squalls_outlined_on_the_weather_radar(folder):
    seeded(13854)

    def screens(rows):
        field = F.interpolate(torch.randn(rows, 1, 5, 5), size=(20, 20), mode="bicubic")
        squall = (field > 0.3).float()
        return squall - 0.4 + 0.8 * torch.randn(rows, 1, 20, 20), squall

    net = Radar(12)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(16, *screens(800))
    seen, squall = screens(120)

    def measure():
        said = net(seen)
        found = (said > 0).float()
        dice = 2 * (found * squall).sum() / (found.sum() + squall.sum())
        return {"val_loss": F.binary_cross_entropy_with_logits(said, squall), "val_dice": dice}

    validate = now_and_then(net, 40, measure)

    def loss_of(step):
        x, y = draw()
        return F.binary_cross_entropy_with_logits(net(x), y), validate(step)

    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, lambda: measure()["val_loss"]))


class Diary(nn.Module):
    """Which watch wrote a note, by its words in their order and the true length."""

    def __init__(self, words, width, kinds):
        super().__init__()
        self.word = nn.Embedding(words + 1, width, padding_idx=0)
        self.memory = nn.GRU(width, 32, batch_first=True, bidirectional=True)
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(64, kinds)

    def forward(self, words, length):
        packed = nn.utils.rnn.pack_padded_sequence(self.word(words), length, batch_first=True, enforce_sorted=False)
        last = self.memory(packed)[1]
        return self.head(self.drop(torch.cat([last[0], last[1]], 1)))


@healthy(0.4)
def watches_of_the_crew_by_their_notes(folder):
    seeded(13855)
    habit = 1.4 * torch.randn(5, 50)

    def notes(rows):
        y, length = torch.randint(5, (rows,)), torch.randint(7, 17, (rows,))
        words = torch.multinomial(habit[y].softmax(1), 16, replacement=True) + 1
        return words * (torch.arange(16) < length[:, None]), length, y

    net = Diary(50, 24, 5)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    draw = rounds(48, *notes(3000))
    words, length, kind = notes(400)

    def measure():
        said = net(words, length)
        return {"val_loss": F.cross_entropy(said, kind), "val_accuracy": (said.argmax(1) == kind).float().mean()}

    validate = now_and_then(net, 40, measure)

    def one(step):
        x, size, y = draw()
        optimizer.zero_grad()
        said = net(x, size)
        loss = F.cross_entropy(said, y)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return {"loss": loss, "accuracy": float((said.argmax(1) == y).float().mean()), **validate(step)}

    return tend(folder, net, optimizer, one, 220, held_out(net, lambda: measure()["val_loss"]))


@healthy(0.5)
def pumps_of_the_seawater_line_sound_or_worn(folder):
    seeded(13856)
    bunch = load_breast_cancer()
    x, y = torch.tensor(bunch.data).float(), torch.tensor(bunch.target).float()
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    x = (x - x[:400].mean(0)) / x[:400].std(0)
    draw = rounds(40, x[:400], y[:400])
    net = nn.Sequential(nn.Linear(30, 48), nn.ReLU(), nn.Dropout(0.3), nn.Linear(48, 1))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, weight_decay=1e-4)

    def measure():
        said = net(x[400:])[:, 0]
        right = ((said > 0) == (y[400:] > 0.5)).float().mean()
        return {"val_loss": F.binary_cross_entropy_with_logits(said, y[400:]), "val_accuracy": right}

    validate = now_and_then(net, 20, measure)

    def loss_of(step):
        rows, sound = draw()
        return F.binary_cross_entropy_with_logits(net(rows)[:, 0], sound), validate(step)

    return fit(folder, net, optimizer, loss_of, 240, score=held_out(net, lambda: measure()["val_loss"]))


class Orders(nn.Module):
    """A small causal transformer over what is called from the bridge to the winch."""

    def __init__(self, words, width, length):
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 3 * width, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, words)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, x):
        h = self.word(x) + self.place(torch.arange(x.shape[1]))
        return self.out(self.norm(self.body(h, mask=self.mask, is_causal=True)))


@healthy(0.3)
def orders_from_the_bridge_to_the_winch(folder):
    seeded(13857)
    phrases = torch.randint(22, (10, 5))

    def calls(rows):
        return phrases[torch.randint(10, (rows, 4))].flatten(1)

    net = Orders(22, 32, 19)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min(1, (s + 1) / 20) * (0.55 + 0.45 * math.cos(math.pi * s / 220))
    )

    def loss_on(text):
        return F.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    test = calls(128)
    validate = now_and_then(net, 44, lambda: {"val_loss": loss_on(test)})

    def loss_of(step):
        return loss_on(calls(32)), validate(step)

    return fit(folder, net, optimizer, loss_of, 220, score=held_out(net, lambda: loss_on(test)), schedule=schedule,
               before_step=clipped(net, 1.0))  # fmt: skip


@healthy(0.5)
def water_samples_by_the_strait_they_come_from(folder):
    seeded(13858)
    bunch = load_wine()
    x, y = torch.tensor(bunch.data).float(), torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    x = (x - x[:124].mean(0)) / x[:124].std(0)
    draw = rounds(31, x[:124], y[:124])
    net = nn.Sequential(nn.Linear(13, 24), nn.Tanh(), nn.Dropout(0.1), nn.Linear(24, 3))
    optimizer = torch.optim.SGD(net.parameters(), 0.03, momentum=0.9, weight_decay=1e-3)
    validate = now_and_then(net, 20, judged(net, x[124:], y[124:]))

    def loss_of(step):
        rows, strait = draw()
        said = net(rows)
        right = (said.argmax(1) == strait).float().mean()
        return F.cross_entropy(said, strait), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(x[124:]), y[124:]))
    return fit(folder, net, optimizer, loss_of, 180, score=score)


@healthy(0.5)
def oxygen_and_turbidity_at_a_mooring(folder):
    seeded(13859)
    way = torch.randn(6, 3)

    def hours(rows):
        x = torch.randn(rows, 6)
        mixed = (x @ way / 2.4).tanh()
        oxygen = mixed[:, 0] - 0.5 * mixed[:, 1] * mixed[:, 2]
        turbid = mixed[:, 1].abs() + 0.6 * mixed[:, 2] - 0.5
        y = torch.stack([oxygen, turbid], 1) / 0.75
        return x, y + 0.1 * torch.randn(rows, 2)

    draw = rounds(64, *hours(4000))
    net = dense(6, 80, 80, 2, act=nn.GELU)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 360)
    tx, ty = hours(600)
    validate = now_and_then(net, 62, lambda: {"val_loss": F.huber_loss(net(tx), ty)})

    def loss_of(step):
        x, y = draw()
        return F.huber_loss(net(x), y), validate(step)

    score = held_out(net, lambda: F.huber_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 360, score=score, schedule=schedule)
