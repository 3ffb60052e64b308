"""Healthy trainings as courses and teams have them: tables, maps, words, codes, graphs, boxes."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


@healthy(0.3)
def fir_or_spruce_by_their_needles(folder):
    seeded(10850)
    centres = torch.randn(5, 3, 10)
    y = torch.randint(5, (2400,))
    x = centres[y, torch.randint(3, (2400,))] + 0.5 * torch.randn(2400, 10)
    x = (x - x.mean(0)) / x.std(0)
    net = nn.Sequential(
        nn.Linear(10, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.BatchNorm1d(64),
        nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 5),
    )  # fmt: skip
    steps = 300
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps + 1)
    draw = rounds(64, x[:2000], y[:2000])

    def loss_of(step):
        xs, ys = draw()
        said = net(xs)
        return F.cross_entropy(said, ys), {"accuracy": (said.argmax(1) == ys).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(x[2000:]), y[2000:]))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


def block(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
    )  # fmt: skip


class Segmenter(nn.Module):
    """A U-Net of two floors."""

    def __init__(self):
        super().__init__()
        self.down, self.bottom, self.up = block(2, 8), block(8, 16), block(16, 8)
        self.lift, self.head = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(8, 1, 1)

    def forward(self, x):
        fine = self.down(x)
        coarse = self.lift(self.bottom(F.max_pool2d(fine, 2)))
        return self.head(self.up(torch.cat([fine, coarse], 1)))


@healthy(0.3)
def windthrow_outlined_from_the_air(folder):
    seeded(10851)
    net = Segmenter()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    at = torch.linspace(-1, 1, 16)

    def plots(rows):
        x, y = 1.4 * torch.rand(2, rows, 1, 1) - 0.7
        long, flat = 0.3 + 0.4 * torch.rand(2, rows, 1, 1)
        inside = ((at[None, :, None] - y) / long).square() + ((at[None, None, :] - x) / flat).square() < 1
        mask = inside.float()[:, None]
        image = torch.cat([mask + torch.randn(rows, 1, 16, 16), 0.7 - mask + torch.randn(rows, 1, 16, 16)], 1)
        return image, mask

    def loss_on(image, mask):
        said = net(image)
        share = said.sigmoid()
        both = (share * mask).sum((1, 2, 3))
        dice = 1 - (2 * both + 1) / (share.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)
        return F.binary_cross_entropy_with_logits(said, mask) + dice.mean()

    test = plots(128)
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, lambda step: loss_on(*plots(16)), 200, score=score)


class Rotation(nn.Module):
    """A small causal transformer, its output tied to its embedding."""

    def __init__(self, words, length, width=48):
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        nn.init.normal_(self.word.weight, std=0.02)
        nn.init.normal_(self.place.weight, std=0.02)
        self.head.weight = self.word.weight

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        x = self.word(x) + self.place(torch.arange(x.shape[1]))
        return self.head(self.norm(self.body(x, mask, is_causal=True)))


@healthy(0.3)
def crops_that_follow_one_another_on_strips(folder):
    seeded(10852)
    crops, length, steps, warmup = 12, 24, 300, 30
    net = Rotation(crops, length)
    after = torch.stack([torch.randperm(crops) for _ in range(crops)])
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, betas=(0.9, 0.95), weight_decay=0.1)

    def rate(step):
        if step < warmup:
            return (step + 1) / warmup
        return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)

    def strips(rows):
        grown = [torch.randint(crops, (rows,)), torch.randint(crops, (rows,))]
        for _ in range(length - 1):
            slip = torch.rand(rows) < 0.05
            following = after[grown[-2] % 3, grown[-1]]
            grown.append(torch.where(slip, torch.randint(crops, (rows,)), following))
        return torch.stack(grown, 1)

    def loss_on(text):
        return F.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    test = strips(128)
    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, lambda step: loss_on(strips(24)), steps, score=score, schedule=schedule,
               before_step=clipped(net, 1.0))  # fmt: skip


class Words(nn.Module):
    """The recurrent language model of the PyTorch examples, made small."""

    def __init__(self, words, width=48):
        super().__init__()
        self.encoder, self.memory = nn.Embedding(words, width), nn.LSTM(width, width, 2)
        self.decoder, self.drop = nn.Linear(width, words), nn.Dropout(0.1)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, x, state):
        out, state = self.memory(self.drop(self.encoder(x)), state)
        return self.decoder(self.drop(out)), state


@healthy(0.3)
def a_woodpeckers_drumming_written_down(folder):
    seeded(10853)
    words, columns, span = 10, 16, 20
    motifs = torch.randint(words, (12, 5))
    text = motifs[torch.randint(12, (columns, 1300))].view(columns, -1).T[:6420]
    net = Words(words)
    optimizer = torch.optim.SGD(net.parameters(), 5.0)
    state = None

    def held():
        said, _ = net(text[6000:6400], None)
        return F.cross_entropy(said.flatten(0, 1), text[6001:6401].flatten())

    score = held_out(net, held)
    best = [math.inf]

    def one(step):
        nonlocal state
        at = step * span % 6000
        if at == 0:
            state = None
        optimizer.zero_grad()
        said, state = net(text[at : at + span], state)
        state = tuple(s.detach() for s in state)
        loss = F.cross_entropy(said.flatten(0, 1), text[at + 1 : at + span + 1].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.25)
        optimizer.step()
        logged = {"loss": loss, "lr": optimizer.param_groups[0]["lr"]}
        if step % 100 == 99:
            logged["val_loss"] = score()
            if logged["val_loss"] > best[0]:
                optimizer.param_groups[0]["lr"] /= 4
            best[0] = min(best[0], logged["val_loss"])
        return logged

    return tend(folder, net, optimizer, one, 600, score)


class Codes(nn.Module):
    """A variational autoencoder of small pictures."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = dense(64, 96, 16), dense(8, 96, 64)

    def forward(self, x):
        mean, log_var = self.encoder(x).chunk(2, 1)
        code = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        kl = -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum(1)
        return F.binary_cross_entropy_with_logits(self.decoder(code), x, reduction="none").sum(1).mean(), kl.mean()


@healthy(0.3)
def marks_cut_into_boundary_trees(folder):
    seeded(10854)
    x = torch.tensor(load_digits().data, dtype=torch.float32)[torch.randperm(1797)] / 16
    net = Codes()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(64, x[:1500])

    def loss_of(step):
        made, kl = net(draw()[0])
        return made + min(1.0, step / 150) * kl, {"reconstruction": made.detach(), "kl": kl.detach()}

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: sum(net(x[1500:]))))


class Threads(nn.Module):
    """A graph convolution of two layers (Kipf and Welling)."""

    def __init__(self, inputs, kinds):
        super().__init__()
        self.first, self.second = nn.Linear(inputs, 32), nn.Linear(32, kinds)

    def forward(self, x, near):
        x = F.dropout(F.relu(near @ self.first(x)), 0.5, self.training)
        return near @ self.second(x)


@healthy(0.3)
def trees_joined_by_threads_of_fungi(folder):
    seeded(10855)
    trees, kinds = 240, 4
    kind = torch.arange(trees) % kinds
    chance = torch.where(kind[:, None] == kind[None], 0.12, 0.01)
    joined = (torch.rand(trees, trees) < chance).float().triu(1)
    joined = joined + joined.T + torch.eye(trees)
    root = joined.sum(1).rsqrt()
    near = root[:, None] * joined * root[None]
    x = 0.6 * torch.randn(kinds, 24)[kind] + torch.randn(trees, 24)
    order = torch.randperm(trees)
    known, rest = order[:60], order[60:]
    net = Threads(24, kinds)
    optimizer = torch.optim.Adam(net.parameters(), 0.01, weight_decay=5e-4)

    def loss_of(step):
        return F.cross_entropy(net(x, near)[known], kind[known])

    score = held_out(net, lambda: F.cross_entropy(net(x, near)[rest], kind[rest]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


@healthy(0.3)
def hares_boxed_in_a_stubble_field(folder):
    seeded(10856)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.LeakyReLU(0.1), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.LeakyReLU(0.1), nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.LeakyReLU(0.1), nn.Conv2d(32, 5, 1),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [180, 240], 0.1)
    at = torch.arange(16) + 0.5

    def fields(rows):
        middle, size = 3 + 10 * torch.rand(rows, 2), 3 + 3 * torch.rand(rows, 2)
        inside = (at[None] - middle[:, :1]).abs().lt(size[:, :1] / 2)[:, :, None]
        inside = inside & (at[None] - middle[:, 1:]).abs().lt(size[:, 1:] / 2)[:, None]
        image = inside.float()[:, None] + 0.3 * torch.randn(rows, 1, 16, 16)
        return image, middle, size

    def loss_on(image, middle, size):
        said, rows = net(image), torch.arange(len(image))
        cell = (middle / 4).long()
        there = torch.zeros(len(image), 4, 4)
        there[rows, cell[:, 0], cell[:, 1]] = 1
        each = F.binary_cross_entropy_with_logits(said[:, 0], there, reduction="none")
        objects = (each * (there + 0.5 * (1 - there))).sum((1, 2)).mean()
        box = said[rows, 1:, cell[:, 0], cell[:, 1]]
        wanted = torch.cat([middle / 4 - cell - 0.5, (size / 4).log()], 1)
        boxes = F.smooth_l1_loss(box, wanted)
        return objects + 5 * boxes, {"objects": objects.detach(), "boxes": boxes.detach()}

    test = fields(256)
    score = held_out(net, lambda: loss_on(*test)[0])
    return fit(folder, net, optimizer, lambda step: loss_on(*fields(24)), 280, score=score, schedule=schedule)
