"""Healthy trainings of rivers and ferries: what a course or a team's repository has."""

from __future__ import annotations

import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine, make_friedman1
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


def table_of(load, rows):
    """Columns in the deviations of the first `rows`, shuffled; classes."""
    table, classes = load(return_X_y=True)
    order = torch.randperm(len(classes))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(classes)[order]
    return (x - x[:rows].mean(0)) / x[:rows].std(0), y


@healthy()
def depths_painted_on_a_lock_wall(folder):
    seeded(11750)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x = torch.tensor(images / 8 - 1, dtype=torch.float32)[order].view(-1, 1, 8, 8)
    y = torch.tensor(digits)[order]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 66, 0.3)
    draw = rounds(64, x[:1400], y[:1400])

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score, schedule=schedule)


@healthy()
def vineyards_on_the_southern_bank(folder):
    seeded(11751)
    x, y = table_of(load_wine, 130)
    net = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    draw = rounds(26, x[:130], y[:130])

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[130:]), y[130:]))
    return fit(folder, net, optimizer, loss_of, 120, score=score)


@healthy()
def sound_timbers_of_an_old_trestle(folder):
    seeded(11752)
    x, y = table_of(load_breast_cancer, 430)
    y = y.float()[:, None]
    net = nn.Linear(30, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, weight_decay=1e-3)
    draw = rounds(43, x[:430], y[:430])

    def loss_of(step):
        x, y = draw()
        return F.binary_cross_entropy_with_logits(net(x), y)

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(x[430:]), y[430:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


class Shanty(nn.Module):
    """A recurrent model of the next letter."""

    def __init__(self, letters, width):
        super().__init__()
        self.letter, self.memory = nn.Embedding(letters, 24), nn.GRU(24, width, 2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(width, letters)

    def forward(self, text):
        return self.head(self.memory(self.letter(text))[0])


@healthy()
def songs_sung_while_hauling_the_rope(folder):
    seeded(11753)
    lines = "haul away the rope boys|row the ferry over|low is the water and long is the way|home by the morning"
    lines = (lines + "|the river runs down to the sea|pull for the far shore pull").split("|")
    letters = sorted(set(" ".join(lines)))
    song = " ".join(lines[i] for i in torch.randint(len(lines), (400,)).tolist())
    code = torch.tensor([letters.index(letter) for letter in song])
    text = code[: len(code) // 33 * 33].view(-1, 33)
    cut = len(text) * 4 // 5
    net = Shanty(len(letters), 64)
    optimizer = torch.optim.AdamW(net.parameters(), 5e-3)
    draw = rounds(32, text[:cut])

    def loss_on(text):
        return F.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    score = held_out(net, lambda: loss_on(text[cut:]))
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 120, score=score, before_step=clipped(net, 1.0))


class Channel(nn.Module):
    """A small U-Net with two stairs."""

    def __init__(self, width):
        super().__init__()
        self.top = self.pair(1, width)
        self.middle = self.pair(width, 2 * width)
        self.bottom = self.pair(2 * width, 2 * width)
        self.up_middle, self.up_top = self.pair(4 * width, width), self.pair(2 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    @staticmethod
    def pair(came, goes):
        return nn.Sequential(nn.Conv2d(came, goes, 3, padding=1, bias=False), nn.BatchNorm2d(goes), nn.ReLU())

    def forward(self, image):
        top = self.top(image)
        middle = self.middle(F.max_pool2d(top, 2))
        bottom = self.bottom(F.max_pool2d(middle, 2))
        middle = self.up_middle(torch.cat([middle, F.interpolate(bottom, scale_factor=2)], 1))
        return self.out(self.up_top(torch.cat([top, F.interpolate(middle, scale_factor=2)], 1)))


@healthy()
def rivers_traced_on_aerial_photographs(folder):
    seeded(11754)
    net = Channel(8)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=1e-3)
    grid = torch.linspace(-1, 1, 16)

    def photographs(rows):
        bend, shift, turn = torch.rand(3, rows, 1)
        course = 0.6 * (3 * bend * grid + 6.28 * turn).sin() + 0.4 * (shift - 0.5)
        mask = ((grid[:, None] - course[:, None]).abs() < 0.2).float()[:, None]
        shade = F.interpolate(torch.randn(rows, 1, 4, 4), size=16, mode="bilinear", align_corners=False)
        return shade - mask + 0.4 * torch.randn(rows, 1, 16, 16), mask

    def loss_on(image, mask):
        return F.binary_cross_entropy_with_logits(net(image), mask)

    test = photographs(256)
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, lambda step: loss_on(*photographs(24)), 150, score=score)


@healthy()
def a_ledger_of_barges_kept_in_brief(folder):
    seeded(11755)
    images, _ = load_digits(return_X_y=True)
    x = torch.tensor(images / 16, dtype=torch.float32)[torch.randperm(len(images))]
    net = nn.Sequential(dense(64, 48, 12), dense(12, 48, 64), nn.Sigmoid())
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    draw = rounds(64, x[:1400])

    def loss_of(step):
        (x,) = draw()
        return F.mse_loss(net(x), x)

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.mse_loss(net(x[1400:]), x[1400:])))


class Crossings(nn.Module):
    """A transformer that says of each lantern whether another of its colour came before."""

    def __init__(self, kinds, length, width=32):
        super().__init__()
        self.kind, self.place = nn.Embedding(kinds, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2))

    def forward(self, lanterns):
        length = lanterns.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        return self.head(self.body(self.kind(lanterns) + self.place(torch.arange(length)), mask, is_causal=True))


@healthy()
def lanterns_seen_twice_on_the_embankment(folder):
    seeded(11756)
    kinds, length, steps = 10, 12, 250
    net = Crossings(kinds, length)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps + 1, pct_start=0.1)

    def walks(rows):
        lanterns = torch.randint(kinds, (rows, length))
        before = torch.ones(length, length).tril(-1).bool()
        return lanterns, ((lanterns[:, :, None] == lanterns[:, None]) & before).any(2).long()

    def loss_on(lanterns, again):
        return F.cross_entropy(net(lanterns).flatten(0, 1), again.flatten())

    test = walks(512)
    score = held_out(net, lambda: loss_on(*test))
    clip = clipped(net, 1.0)
    return fit(folder, net, optimizer, lambda step: loss_on(*walks(48)), steps, score=score, schedule=schedule,
               before_step=clip)  # fmt: skip


class Streams(nn.Module):
    """Graph convolutions with a way around the second."""

    def __init__(self, size, width, kinds):
        super().__init__()
        self.enter, self.middle, self.leave = nn.Linear(size, width), nn.Linear(width, width), nn.Linear(width, kinds)

    def forward(self, near, x):
        x = F.relu(near @ self.enter(x))
        x = x + F.relu(near @ self.middle(x))
        return self.leave(F.dropout(x, 0.3, self.training))


@healthy()
def villages_told_by_their_tributaries(folder):
    seeded(11758)
    nodes, kinds = 360, 3
    y = torch.randint(kinds, (nodes,))
    edges = (torch.rand(nodes, nodes) < torch.where(y[:, None] == y[None], 0.05, 0.01)).float().triu(1)
    edges = edges + edges.T + torch.eye(nodes)
    near = edges / edges.sum(1, keepdim=True)
    x = F.one_hot(y, kinds).float() @ torch.randn(kinds, 12) * 0.6 + torch.randn(nodes, 12)
    seen = torch.rand(nodes) < 0.6
    net = Streams(12, 32, kinds)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3, weight_decay=5e-4)

    def loss_of(step):
        out = net(near, x)[seen]
        return F.cross_entropy(out, y[seen]), {"accuracy": float((out.argmax(1) == y[seen]).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(near, x)[~seen], y[~seen]))
    return fit(folder, net, optimizer, loss_of, 120, score=score)


@healthy()
def sag_of_a_footbridge_under_a_crowd(folder):
    seeded(11759)
    table, targets = make_friedman1(1500, 7, noise=0.5, random_state=59)
    x, y = torch.tensor(table, dtype=torch.float32), torch.tensor(targets, dtype=torch.float32)[:, None]
    x, y = (x - x[:1200].mean(0)) / x[:1200].std(0), (y - y[:1200].mean()) / y[:1200].std()
    net = dense(7, 64, 32, 1, norm=nn.LayerNorm)
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [180, 250], 0.2)
    draw = rounds(40, x[:1200], y[:1200])

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y), {"lr": optimizer.param_groups[0]["lr"]}

    score = held_out(net, lambda: F.mse_loss(net(x[1200:]), y[1200:]))
    return fit(folder, net, optimizer, loss_of, 300, score=score, schedule=schedule)
