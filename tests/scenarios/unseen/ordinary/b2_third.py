"""Bakeries, mills and breads, healthy: crumbs, spectra of flour, order notes, outlines, songs, sacks, sales, ovens."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds, tend


def digits():
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float().view(-1, 1, 8, 8) / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    return (x[order] - 0.3) / 0.38, y[order]


@healthy()
def crumb_of_a_slice_under_a_camera(folder):
    seeded(12850)
    weaves = torch.randn(6, 1, 5, 5)

    def slices(rows):
        y = torch.randint(6, (rows,))
        raw = torch.randn(rows, 20, 20)
        crumb = F.conv2d(raw[None], weaves[y], groups=rows)[0] / 5
        return crumb[:, None] + 0.2 * torch.randn(rows, 1, 16, 16), y

    draw = rounds(64, *slices(3000))
    net = nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(24, 6),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 160)
    tx, ty = slices(400)
    validate = now_and_then(net, 40, judged(net, tx, ty))

    def loss_of(step):
        x, y = draw()
        said = net(x)
        right = (said.argmax(1) == y).float().mean()
        return F.cross_entropy(said, y), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 160, score=score, schedule=schedule)


@healthy(0.5)
def protein_of_flour_from_a_spectrum(folder):
    seeded(12851)
    bumps = torch.exp(-((torch.linspace(0, 1, 30) - torch.linspace(0.1, 0.9, 5)[:, None]) ** 2) / 0.01)

    def lots(rows):
        parts = torch.rand(rows, 5)
        spectrum = parts @ bumps + 0.03 * torch.randn(rows, 30)
        protein = 9 + 4 * parts[:, 0] + 2 * parts[:, 1] * parts[:, 2] - parts[:, 3] ** 2
        return spectrum, (protein + 0.05 * torch.randn(rows))[:, None]

    x, y = lots(2000)
    tx, ty = lots(500)
    centre, spread = x.mean(0), x.std(0)
    middle, wide = y.mean(), y.std()
    x, tx, y, ty = (x - centre) / spread, (tx - centre) / spread, (y - middle) / wide, (ty - middle) / wide
    draw = rounds(64, x, y)
    net = dense(30, 64, 64, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    validate = now_and_then(net, 31, lambda: {"val_loss": F.mse_loss(net(tx), ty)})

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y), validate(step)

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


@healthy()
def notes_pinned_to_a_bakery_door(folder):
    seeded(12852)
    net = nn.ModuleDict({
        "word": nn.Embedding(31, 24, padding_idx=0),
        "memory": nn.LSTM(24, 32, batch_first=True),
        "drop": nn.Dropout(0.1),
        "head": nn.Linear(32, 4),
    })  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    habit = 1.5 * torch.randn(4, 30)

    def notes(rows):
        y, length = torch.randint(4, (rows,)), torch.randint(6, 15, (rows,))
        words = torch.multinomial(habit[y].softmax(1), 14, replacement=True) + 1
        return words * (torch.arange(14) < length[:, None]), length, y

    def said(words, length):
        packed = nn.utils.rnn.pack_padded_sequence(net["word"](words), length, True, False)
        return net["head"](net["drop"](net["memory"](packed)[1][0][-1]))

    draw = rounds(50, *notes(2500))

    def loss_of(step):
        words, length, y = draw()
        out = said(words, length)
        return F.cross_entropy(out, y), {"accuracy": float((out.argmax(1) == y).float().mean())}

    words, length, y = notes(400)
    score = held_out(net, lambda: F.cross_entropy(said(words, length), y))
    return fit(folder, net, optimizer, loss_of, 220, score=score, before_step=clipped(net, 1.0))


class Outline(nn.Module):
    """A small U-Net."""

    def __init__(self, width):
        super().__init__()

        def block(ins, outs):
            return nn.Sequential(nn.Conv2d(ins, outs, 3, padding=1, bias=False), nn.BatchNorm2d(outs), nn.ReLU())

        self.down, self.low = block(1, width), block(width, 2 * width)
        self.rise = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.up = block(2 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        high = self.down(x)
        return self.out(self.up(torch.cat([high, self.rise(self.low(F.max_pool2d(high, 2)))], 1)))


@healthy()
def loaf_cut_out_of_its_board(folder):
    seeded(12853)
    grid = torch.linspace(-1, 1, 20)

    def boards(rows):
        at, wide, high = 0.6 * torch.rand(rows, 2, 1, 1) - 0.3, 0.4 + 0.4 * torch.rand(rows, 1, 1), 0.5
        far = ((grid - at[:, 0]) / wide) ** 2 + ((grid[:, None] - at[:, 1]) / high) ** 2
        loaf = (far < 1).float()[:, None]
        return 1.5 * loaf - 0.5 + 0.8 * torch.randn(rows, 1, 20, 20), loaf

    net = Outline(8)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(16, *boards(600))

    def loss_of(step):
        image, loaf = draw()
        said = net(image)
        cover = (said > 0).float()
        overlap = (cover * loaf).sum() / torch.maximum(cover, loaf).sum()
        return F.binary_cross_entropy_with_logits(said, loaf), {"iou": float(overlap)}

    image, loaf = boards(100)
    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(image), loaf))
    return fit(folder, net, optimizer, loss_of, 160, score=score)


class Song(nn.Module):
    """A small causal transformer."""

    def __init__(self, words, width, length):
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.05)

    def forward(self, x):
        h = self.word(x) + self.place(torch.arange(x.shape[1]))
        return self.head(self.norm(self.body(h, mask=self.mask, is_causal=True)))


@healthy()
def songs_sung_by_millers_at_work(folder):
    seeded(12854)
    refrains = torch.randint(18, (10, 4))

    def songs(rows):
        return refrains[torch.randint(10, (rows, 5))].flatten(1)[:, :17]

    net = Song(18, 32, 16)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, betas=(0.9, 0.95), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min(1, (s + 1) / 20) * (0.1 + 0.45 * (1 + math.cos(math.pi * s / 180)))
    )

    def loss_on(text):
        return F.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    def loss_of(step):
        loss = loss_on(songs(32))
        return loss, {"perplexity": float(loss.detach().exp())}

    test = songs(128)
    return fit(folder, net, optimizer, loss_of, 180, score=held_out(net, lambda: loss_on(test)), schedule=schedule,
               before_step=clipped(net, 1.0))  # fmt: skip


@healthy()
def sack_numbers_kept_in_ten_values(folder):
    seeded(12855)
    x, _ = digits()
    draw = rounds(64, x[:1500])
    net = nn.Sequential(
        nn.Sequential(nn.Flatten(), dense(64, 96, 10)), nn.Sequential(dense(10, 96, 64), nn.Unflatten(1, (1, 8, 8)))
    )
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    validate = now_and_then(net, 46, lambda: {"val_loss": F.mse_loss(net(x[1500:]), x[1500:])})

    def loss_of(step):
        (image,) = draw()
        return F.mse_loss(net(image), image), validate(step)

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.mse_loss(net(x[1500:]), x[1500:])))


class Ahead(nn.Module):
    """The next value of a series."""

    def __init__(self):
        super().__init__()
        self.memory = nn.GRU(2, 32, batch_first=True)
        self.out = nn.Linear(32, 1)

    def forward(self, x):
        return self.out(self.memory(x)[0][:, -1])


@healthy(0.5)
def baguettes_wanted_tomorrow(folder):
    seeded(12856)

    def weeks(rows):
        start, size = torch.randint(7, (rows, 1)), 0.7 + 0.6 * torch.rand(rows, 1)
        day = start + torch.arange(22)
        swing = size * (day / 7 * 6.2832).sin() + 0.4 * ((day % 7) == 5) + 0.1 * torch.randn(rows, 22)
        return torch.stack([swing[:, :-1], ((day[:, 1:] % 7) == 5).float()], 2), swing[:, -1:]

    net = Ahead()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100, 0.5)
    draw = rounds(64, *weeks(3000))
    tx, ty = weeks(500)
    validate = now_and_then(net, 46, lambda: {"val_mae": F.l1_loss(net(tx), ty)})

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 250, score=score, schedule=schedule, before_step=clipped(net, 1.0))


@healthy(0.5)
def sound_kernels_and_mouldy_ones(folder):
    seeded(12857)
    bunch = load_breast_cancer()
    x, y = torch.tensor(bunch.data).float(), torch.tensor(bunch.target).float()
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    x = (x - x[:420].mean(0)) / x[:420].std(0)
    draw = rounds(30, x[:420], y[:420])
    net = nn.Sequential(nn.Linear(30, 24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 1))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.01)

    def measure():
        said = net(x[420:])[:, 0]
        right = ((said > 0) == (y[420:] > 0.5)).float().mean()
        return {"val_loss": F.binary_cross_entropy_with_logits(said, y[420:]), "val_accuracy": right}

    validate = now_and_then(net, 28, measure)

    def loss_of(step):
        rows, sound = draw()
        return F.binary_cross_entropy_with_logits(net(rows)[:, 0], sound), validate(step)

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: measure()["val_loss"]))


class Twice(nn.Module):
    """A residual block."""

    def __init__(self, width):
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.other = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x):
        return F.relu(x + self.other(self.second(F.relu(self.norm(self.first(x))))))


@healthy(0.6)
def figures_on_a_millers_invoice(folder):
    seeded(12858)
    x, y = digits()
    draw = rounds(64, x[:1400], y[:1400])
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), Twice(16), nn.MaxPool2d(2),
        Twice(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 170)
    validate = now_and_then(net, 21, judged(net, x[1400:], y[1400:]))

    def loss_of(step):
        image, figure = draw()
        said = net(image)
        right = (said.argmax(1) == figure).float().mean()
        return F.cross_entropy(said, figure), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 170, score=score, schedule=schedule)


@healthy()
def which_oven_door_to_open_next(folder):
    seeded(12859)
    taste = torch.randn(6, 5)
    net = nn.ModuleDict({"actor": dense(6, 48, 5, act=nn.Tanh), "critic": dense(6, 48, 1, act=nn.Tanh)})
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)
    states = torch.randn(512, 6)

    def worth(state, door):
        return ((state @ taste) / 2).tanh().gather(1, door[:, None])[:, 0]

    def one(step):
        state = torch.randn(64, 6)
        choice = torch.distributions.Categorical(logits=net["actor"](state))
        door = choice.sample()
        reward = worth(state, door) + 0.1 * torch.randn(64)
        value = net["critic"](state)[:, 0]
        gain = (reward - value).detach()
        gain = (gain - gain.mean()) / (gain.std() + 1e-6)
        policy, critic = -(choice.log_prob(door) * gain).mean(), F.mse_loss(value, reward)
        open_minded = choice.entropy().mean()
        loss = policy + 0.5 * critic - 0.01 * open_minded
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return {"loss": loss, "return": float(reward.mean()), "entropy": float(open_minded.detach())}

    def score():
        with torch.no_grad():
            share = net["actor"](states).softmax(1)
            return 1 - float((share * ((states @ taste) / 2).tanh()).sum(1).mean())

    return tend(folder, net, optimizer, one, 350, score)
