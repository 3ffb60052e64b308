"""A hospital and its laboratory, healthy: form digits, lumps, beds, letters, wounds, glucose, beats, drugs, menus."""

from __future__ import annotations

import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds, tend


def shuffled(bunch):
    x, y = torch.tensor(bunch.data).float(), torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    return x[order], y[order]


@healthy(0.6)
def numbers_written_on_admission_forms(folder):
    seeded(13950)
    x, y = shuffled(load_digits())
    x = (x.view(-1, 1, 8, 8) / 16 - 0.3) / 0.38
    draw = rounds(64, x[:1400], y[:1400])
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.25), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    validate = now_and_then(net, 21, judged(net, x[1400:], y[1400:]))

    def loss_of(step):
        image, number = draw()
        said = net(image)
        right = (said.argmax(1) == number).float().mean()
        return F.cross_entropy(said, number), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 210, score=score)


@healthy(0.5)
def lumps_sorted_by_their_needle_aspirates(folder):
    seeded(13951)
    x, y = shuffled(load_breast_cancer())
    x, y = (x - x[:420].mean(0)) / x[:420].std(0), y.float()
    draw = rounds(32, x[:420], y[:420])
    net = nn.Sequential(nn.Linear(30, 48), nn.ReLU(), nn.Dropout(0.2), nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 1))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.01)

    def measure():
        said = net(x[420:]).squeeze(1)
        right = ((said > 0) == (y[420:] > 0.5)).float().mean()
        return {"val_loss": F.binary_cross_entropy_with_logits(said, y[420:]), "val_accuracy": right}

    validate = now_and_then(net, 26, measure)

    def loss_of(step):
        rows, benign = draw()
        return F.binary_cross_entropy_with_logits(net(rows).squeeze(1), benign), validate(step)

    return fit(folder, net, optimizer, loss_of, 208, score=held_out(net, lambda: measure()["val_loss"]))


@healthy(0.3)
def course_of_diabetes_a_year_after_admission(folder):
    seeded(13952)
    x, y = shuffled(load_diabetes())
    x, y = x / x[:340].std(0), ((y.float() - y[:340].float().mean()) / y[:340].float().std())[:, None]
    draw = rounds(32, x[:340], y[:340])
    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9, weight_decay=1e-3)
    validate = now_and_then(net, 20, lambda: {"val_loss": F.mse_loss(net(x[340:]), y[340:])})

    def loss_of(step):
        rows, course = draw()
        return F.mse_loss(net(rows), course), validate(step)

    return fit(folder, net, optimizer, loss_of, 150, score=held_out(net, lambda: F.mse_loss(net(x[340:]), y[340:])))


class Letter(nn.Module):
    """To which department a letter of referral belongs; its words are packed."""

    def __init__(self, words, width, kinds):
        super().__init__()
        self.word = nn.Embedding(words + 1, width, padding_idx=0)
        self.memory = nn.GRU(width, 48, batch_first=True)
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(48, kinds))

    def forward(self, words, length):
        packed = nn.utils.rnn.pack_padded_sequence(self.word(words), length, batch_first=True, enforce_sorted=False)
        return self.head(self.memory(packed)[1][0])


@healthy()
def letters_of_referral_by_department(folder):
    seeded(13953)
    habit = 1.5 * torch.randn(6, 70)

    def letters(rows):
        y, length = torch.randint(6, (rows,)), torch.randint(6, 17, (rows,))
        words = torch.multinomial(habit[y].softmax(1), 16, replacement=True) + 1
        return words * (torch.arange(16) < length[:, None]), length, y

    net = Letter(70, 24, 6)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    draw = rounds(48, *letters(3000))
    words, length, kind = letters(400)

    def measure():
        said = net(words, length)
        return {"val_loss": F.cross_entropy(said, kind), "val_accuracy": (said.argmax(1) == kind).float().mean()}

    validate = now_and_then(net, 40, measure)

    def loss_of(step):
        x, size, y = draw()
        return F.cross_entropy(net(x, size), y), validate(step)

    score = held_out(net, lambda: measure()["val_loss"])
    return fit(folder, net, optimizer, loss_of, 240, score=score, before_step=clipped(net, 1.0))


class Wound(nn.Module):
    """A small U-Net with one halving."""

    def __init__(self, width):
        super().__init__()

        def block(ins, outs):
            return nn.Sequential(nn.Conv2d(ins, outs, 3, padding=1, bias=False), nn.BatchNorm2d(outs), nn.ReLU())

        self.top, self.low = nn.Sequential(block(3, width), block(width, width)), block(width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.last = nn.Sequential(block(2 * width, width), nn.Conv2d(width, 1, 1))

    def forward(self, x):
        top = self.top(x)
        return self.last(torch.cat([top, self.up(self.low(F.max_pool2d(top, 2)))], 1))


@healthy()
def edges_of_wounds_in_photographs(folder):
    seeded(13954)
    flesh = torch.tensor([0.8, -0.4, -0.3])[:, None, None]

    def photographs(rows):
        field = F.interpolate(torch.randn(rows, 1, 5, 5), size=(20, 20), mode="bicubic")
        wound = (field > 0.4).float()
        return (wound - 0.3) * flesh + 0.5 * torch.randn(rows, 3, 20, 20), wound

    net = Wound(8)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(16, *photographs(800))
    image, wound = photographs(100)
    weight = torch.tensor(1.5)

    def loss_of(step):
        x, y = draw()
        said = net(x)
        found = (said > 0).float()
        iou = (found * y).sum() / torch.maximum(found, y).sum().clamp(min=1)
        return F.binary_cross_entropy_with_logits(said, y, pos_weight=weight), {"iou": float(iou)}

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(image), wound, pos_weight=weight))
    return fit(folder, net, optimizer, loss_of, 160, score=score)


class Sugar(nn.Module):
    """The glucose an hour on, from that of the hours before."""

    def __init__(self, width):
        super().__init__()
        self.memory = nn.LSTM(2, width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.memory(x)[0][:, -1])


@healthy(0.4)
def glucose_an_hour_after_the_tray(folder):
    seeded(13955)

    def days(rows):
        time = torch.arange(33)
        meal = (torch.rand(rows, 33) < 0.12).float()
        slow = torch.zeros(rows)
        level, course = 0.5 * torch.randn(rows), []
        for t in range(33):
            slow = 0.7 * slow + 1.5 * meal[:, t]
            level = 0.85 * level + 0.5 * slow - 0.35 + 0.1 * torch.randn(rows)
            course.append(level)
        x = torch.stack([torch.stack(course, 1), meal * 2], 2) + 0.05 * torch.randn(rows, len(time), 2)
        return x[:, :30] / 1.5, course[32][:, None] / 1.5

    draw = rounds(48, *days(3000))
    tx, ty = days(500)
    net = Sugar(40)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 120, 0.5)
    validate = now_and_then(net, 50, lambda: {"val_loss": F.mse_loss(net(tx), ty)})

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 300, score=score, schedule=schedule, before_step=clipped(net, 1.0))


@healthy()
def beats_of_the_telemetry_ward_by_shape(folder):
    seeded(13956)
    shapes = torch.randn(5, 6)
    time = torch.linspace(0, 1, 64)

    def beats(rows):
        y = torch.randint(5, (rows,))
        place = torch.linspace(0.15, 0.85, 6) + 0.02 * torch.randn(rows, 6)
        bumps = torch.exp(-((time - place[..., None]) ** 2) / 0.004)
        beat = (shapes[y][..., None] * bumps).sum(1) * (0.7 + 0.6 * torch.rand(rows, 1))
        return (beat + 0.5 * torch.randn(rows, 64))[:, None], y

    draw = rounds(64, *beats(3000))
    tx, ty = beats(500)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 7, padding=3, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(16, 32, 5, padding=2, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.MaxPool1d(4),
        nn.Flatten(), nn.Linear(256, 5),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 230)
    validate = now_and_then(net, 46, judged(net, tx, ty))

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": float((said.argmax(1) == y).float().mean()), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 230, score=score, schedule=schedule)


class Clearance(nn.Module):
    """How fast a drug leaves a patient: tables for drug and ward, and columns."""

    def __init__(self, drugs, wards):
        super().__init__()
        self.drug, self.ward = nn.Embedding(drugs, 8), nn.Embedding(wards, 4)
        self.body = nn.Sequential(
            nn.Linear(17, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 32), nn.ReLU(),
            nn.Linear(32, 1),
        )  # fmt: skip

    def forward(self, drug, ward, x):
        return self.body(torch.cat([self.drug(drug), self.ward(ward), x], 1))


@healthy(0.4)
def how_fast_a_drug_leaves_a_patient(folder):
    seeded(13957)
    pull, taste = torch.randn(30, 5) / 2, torch.randn(8) / 2

    def patients(rows):
        drug, ward, x = torch.randint(30, (rows,)), torch.randint(8, (rows,)), torch.randn(rows, 5)
        rate = (pull[drug] * x).sum(1) + taste[ward] + 0.4 * x[:, 0].square() - 0.4
        return drug, ward, x, ((rate + 0.2 * torch.randn(rows)) / 1.4)[:, None]

    draw = rounds(64, *patients(5000))
    *test, ty = patients(700)
    net = Clearance(30, 8)
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)
    validate = now_and_then(net, 60, lambda: {"val_loss": F.mse_loss(net(*test), ty)})

    def loss_of(step):
        *x, y = draw()
        return F.mse_loss(net(*x), y), validate(step)

    return fit(folder, net, optimizer, loss_of, 420, score=held_out(net, lambda: F.mse_loss(net(*test), ty)))


class Attends(nn.Module):
    """An encoder of torch's own over the orders of a day."""

    def __init__(self, words, width, kinds):
        super().__init__()
        self.word, self.place = nn.Embedding(words + 1, width, padding_idx=0), nn.Embedding(14, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, kinds)

    def forward(self, x):
        empty = x == 0
        h = self.body(self.word(x) + self.place.weight[: x.shape[1]], src_key_padding_mask=empty)
        kept = (~empty).float()[..., None]
        return self.head((h * kept).sum(1) / kept.sum(1))


@healthy()
def orders_of_a_day_and_the_illness_behind(folder):
    seeded(13958)
    habit = 1.6 * torch.randn(6, 50)

    def orders(rows):
        y, length = torch.randint(6, (rows,)), torch.randint(5, 15, (rows,))
        words = torch.multinomial(habit[y].softmax(1), 14, replacement=True) + 1
        return words * (torch.arange(14) < length[:, None]), y

    net = Attends(50, 32, 6)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 30))
    draw = rounds(48, *orders(3000))
    tx, ty = orders(400)
    validate = now_and_then(net, 50, judged(net, tx, ty))

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": float((said.argmax(1) == y).float().mean()), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 220, score=score, schedule=schedule, before_step=clipped(net, 1.0))


@healthy(0.4)
def sounds_of_the_lung_squeezed_to_eight(folder):
    seeded(13959)
    lift = torch.randn(8, 32) / 8**0.5

    def sounds(rows):
        return (torch.randn(rows, 8) @ lift).tanh() / 0.6 + 0.05 * torch.randn(rows, 32)

    draw, test = rounds(64, sounds(4000)), sounds(600)
    net = nn.Sequential(dense(32, 96, 8), dense(8, 96, 32))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    validate = now_and_then(net, 50, lambda: {"val_loss": F.mse_loss(net(test), test)})

    def one(step):
        (x,) = draw()
        optimizer.zero_grad(set_to_none=True)
        loss = F.mse_loss(net(x), x)
        loss.backward()
        optimizer.step()
        return {"loss": loss, **validate(step)}

    return tend(folder, net, optimizer, one, 350, held_out(net, lambda: F.mse_loss(net(test), test)))
