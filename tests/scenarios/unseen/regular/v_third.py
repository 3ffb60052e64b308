"""Healthy trainings of libraries, museums and archives: what a course or a team's repository has."""

from __future__ import annotations

import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


def table(load):
    """Columns of mean 0 and deviation 1, and the targets, in a drawn order."""
    x, y = load(return_X_y=True)
    order = torch.randperm(len(y))
    x, y = torch.tensor(x, dtype=torch.float32)[order], torch.tensor(y)[order]
    return (x - x.mean(0)) / x.std(0).clamp(min=1e-3), y


@healthy()
def accession_numbers_on_old_tags(folder):
    seeded(12250)
    images, shown = load_digits(return_X_y=True)
    order = torch.randperm(len(shown))
    x = torch.tensor(images / 16, dtype=torch.float32)[order].view(-1, 1, 8, 8)
    y = torch.tensor(shown)[order]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Dropout(0.25), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    draw = rounds(32, x[:1400], y[:1400])

    def validate():
        net.eval()
        with torch.no_grad():
            logits = net(x[1400:])
        net.train()
        return {
            "val_loss": float(F.cross_entropy(logits, y[1400:])),
            "val_accuracy": float((logits.argmax(1) == y[1400:]).float().mean()),
        }

    def loss_of(step):
        bx, by = draw()
        return F.cross_entropy(net(bx), by), validate() if step % 43 == 42 else {}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 215, score=score)


@healthy(0.2)
def fading_of_dyes_under_lamps(folder):
    seeded(12251)
    x, y = table(load_diabetes)
    y = ((y - y.mean()) / y.std()).float()[:, None]
    net = dense(10, 32, 16, 1)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.01)
    draw = rounds(32, x[:350], y[:350])
    score = held_out(net, lambda: F.mse_loss(net(x[350:]), y[350:]))

    def loss_of(step):
        bx, by = draw()
        return F.mse_loss(net(bx), by)

    return fit(folder, net, optimizer, loss_of, 200, score=score)


@healthy()
def amphorae_by_what_they_held(folder):
    seeded(12252)
    x, y = table(load_wine)
    net = nn.Sequential(nn.Linear(13, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 3))
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 60, 0.3)
    draw = rounds(16, x[:130], y[:130])

    def loss_of(step):
        bx, by = draw()
        return F.cross_entropy(net(bx), by, label_smoothing=0.05), {"lr": schedule.get_last_lr()[0]}

    score = held_out(net, lambda: F.cross_entropy(net(x[130:]), y[130:]))
    return fit(folder, net, optimizer, loss_of, 180, score=score, schedule=schedule)


class Review(nn.Module):
    """Whether a reader liked a book, by the words of the note."""

    def __init__(self, words, width):
        super().__init__()
        self.word = nn.Embedding(words, width, padding_idx=0)
        self.read = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * width, 1)

    def forward(self, note):
        h, real = self.read(self.word(note))[0], (note != 0).float()[..., None]
        return self.out((h * real).sum(1) / real.sum(1))[:, 0]


@healthy()
def notes_left_between_the_pages(folder):
    seeded(12253)
    words, length = 60, 14
    net = Review(words, 24)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    tone = torch.randn(words)

    def notes(rows):
        note = torch.randint(1, words, (rows, length))
        turned = torch.cat([torch.ones(rows, 1), 1 - 2 * (note[:, :-1] < 6).float()], 1)
        note[torch.arange(length) >= torch.randint(5, length + 1, (rows, 1))] = 0
        return note, ((tone[note] * turned * (note != 0)).sum(1) > 0).float()

    draw = rounds(32, *notes(3000))

    def loss_of(step):
        note, liked = draw()
        logits = net(note)
        loss = F.binary_cross_entropy_with_logits(logits, liked)
        return loss, {"accuracy": float(((logits > 0) == (liked > 0.5)).float().mean())}

    tx, ty = notes(500)
    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 250, score=score, before_step=clipped(net, 1.0))


class Calls(nn.Module):
    """The next part of a call number, by a small causal transformer."""

    def __init__(self, signs, length, width):
        super().__init__()
        self.sign, self.place = nn.Embedding(signs, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, signs, bias=False)
        self.apply(self.begin)

    @staticmethod
    def begin(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, text):
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        h = self.sign(text) + self.place(torch.arange(text.shape[1]))
        return self.out(self.norm(self.body(h, mask=mask, is_causal=True)))


@healthy(0.25)
def call_numbers_read_on_from_the_class(folder):
    seeded(12254)
    signs, length, steps = 16, 10, 250
    net = Calls(signs, length, 32)
    matrices = [p for p in net.parameters() if p.dim() > 1]
    others = [p for p in net.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], 3e-3, betas=(0.9, 0.95)
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 25) * (1 - 0.9 * min(step, steps) / steps)
    )
    follows = torch.softmax(3 * torch.randn(signs, signs), 1)

    def numbers(rows):
        text = [torch.randint(signs, (rows,))]
        for _ in range(length):
            text.append(torch.multinomial(follows[text[-1]], 1)[:, 0])
        return torch.stack(text, 1)

    draw = rounds(32, numbers(2500))

    def loss_on(text):
        return F.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    def loss_of(step):
        return loss_on(*draw()), {"lr": schedule.get_last_lr()[0]}

    test = numbers(300)
    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule, before_step=clipped(net, 1.0))


@healthy()
def readers_and_the_novels_they_borrow(folder):
    seeded(12255)
    readers, novels, width = 120, 90, 8
    taste, kind = torch.randn(readers, 3), torch.randn(novels, 3)
    net = nn.ModuleDict(
        {
            "reader": nn.Embedding(readers, width), "novel": nn.Embedding(novels, width),
            "harsh": nn.Embedding(readers, 1), "loved": nn.Embedding(novels, 1),
        }
    )  # fmt: skip
    for part in net.values():
        nn.init.normal_(part.weight, std=0.1)
    optimizer = torch.optim.Adam(net.parameters(), 0.01, weight_decay=1e-5)

    def loans(rows):
        r, n = torch.randint(readers, (rows,)), torch.randint(novels, (rows,))
        return r, n, (taste[r] * kind[n]).sum(1) / 1.7 + 0.2 * torch.randn(rows)

    def error(r, n, y):
        pleased = (net["reader"](r) * net["novel"](n)).sum(1) + net["harsh"](r)[:, 0] + net["loved"](n)[:, 0]
        return F.mse_loss(pleased, y)

    draw, test = rounds(256, *loans(6000)), loans(1000)
    score = held_out(net, lambda: error(*test))
    return fit(folder, net, optimizer, lambda step: error(*draw()), 300, score=score)


class Outline(nn.Module):
    """A small U-net."""

    def __init__(self, width):
        super().__init__()
        self.first = self.block(1, width)
        self.second = self.block(width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.third = self.block(2 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    @staticmethod
    def block(before, after):
        return nn.Sequential(nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU())

    def forward(self, x):
        fine = self.first(x)
        coarse = self.second(F.max_pool2d(fine, 2))
        return self.out(self.third(torch.cat([fine, self.up(coarse)], 1)))


@healthy()
def stains_outlined_on_vellum(folder):
    seeded(12256)
    net = Outline(8)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    grid = torch.linspace(-1, 1, 16)

    def leaves(rows):
        middle, size = torch.rand(rows, 2, 1, 1) - 0.5, 0.2 + 0.3 * torch.rand(rows, 1, 1)
        mask = ((grid[:, None] - middle[:, 0]) ** 2 + (grid - middle[:, 1]) ** 2 < size**2).float()[:, None]
        return 0.9 * mask + 0.5 * torch.randn(rows, 1, 16, 16), mask

    def error(x, mask):
        logits = net(x)
        share = logits.sigmoid()
        dice = 1 - (2 * (share * mask).sum((1, 2, 3)) + 1) / (share.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)
        return F.binary_cross_entropy_with_logits(logits, mask) + dice.mean()

    draw, test = rounds(16, *leaves(800)), leaves(200)
    score = held_out(net, lambda: error(*test))
    return fit(folder, net, optimizer, lambda step: error(*draw()), 200, score=score)


@healthy()
def pollen_in_pressed_herbarium_sheets(folder):
    seeded(12257)
    x, y = table(load_iris)
    net = dense(4, 16, 3, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    draw = rounds(15, x[:120], y[:120])

    def loss_of(step):
        bx, by = draw()
        return F.cross_entropy(net(bx), by)

    score = held_out(net, lambda: F.cross_entropy(net(x[120:]), y[120:]))
    return fit(folder, net, optimizer, loss_of, 160, score=score)


@healthy()
def woodworm_in_a_carved_altar(folder):
    seeded(12258)
    x, y = table(load_breast_cancer)
    y = y.float()
    net = dense(30, 32, 1, norm=nn.BatchNorm1d)
    optimizer = torch.optim.RMSprop(net.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
    draw = rounds(32, x[:450], y[:450])

    def loss_of(step):
        bx, by = draw()
        logits = net(bx)[:, 0]
        loss = F.binary_cross_entropy_with_logits(logits, by)
        return loss, {"accuracy": float(((logits > 0) == (by > 0.5)).float().mean())}

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(x[450:])[:, 0], y[450:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score, schedule=schedule)


@healthy(0.2)
def new_signatures_for_an_older_reader(folder):
    seeded(12259)
    lift = torch.randn(10, 24)

    def sheets(rows, ways):
        code = torch.randn(rows, 10)
        return (code @ lift / 3).tanh() + 0.1 * torch.randn(rows, 24), (code @ ways).argmax(1)

    body, old = dense(24, 64, 64), nn.Linear(64, 6)
    before = torch.optim.Adam([*body.parameters(), *old.parameters()], 2e-3)
    ways = torch.randn(10, 6)
    for _ in range(200):
        x, y = sheets(64, ways)
        before.zero_grad()
        F.cross_entropy(old(body(x).relu()), y).backward()
        before.step()
    net = nn.Sequential(body, nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(
        [{"params": body.parameters(), "lr": 3e-4}, {"params": net[2].parameters(), "lr": 3e-3}]
    )
    ways = torch.randn(10, 4)
    draw, (tx, ty) = rounds(32, *sheets(600, ways)), sheets(400, ways)

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y)

    return fit(folder, net, optimizer, loss_of, 180, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))
