"""Pictures again: a thing located, a borrowed eye, patches that attend, a small net that imitates."""

import copy

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from trainings import TREATMENT
from unseen import Outcome, dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend

import gradwatch


def things(rows, kinds=4, side=20):
    """Grey pictures of one thing each: a bar, an upright bar, a disc or a frame; its kind and its box."""
    line = torch.arange(side).float()
    kind = torch.randint(kinds, (rows,))
    middle = 6 + (side - 12) * torch.rand(rows, 2)
    half = 2 + 3 * torch.rand(rows, 2)
    half[:, 0] = torch.where(kind == 0, half[:, 0] * 0.5, half[:, 0])
    half[:, 1] = torch.where(kind == 1, half[:, 1] * 0.5, half[:, 1])
    y = (line[:, None] - middle[:, 0, None, None]).abs() / half[:, 0, None, None]
    x = (line[None] - middle[:, 1, None, None]).abs() / half[:, 1, None, None]
    box, disc = torch.maximum(x, y) < 1, x * x + y * y < 1
    mask = torch.stack([box, box, disc, box & (torch.maximum(x, y) > 0.5)], 1)[torch.arange(rows), kind].float()
    picture = mask * (0.6 + 0.4 * torch.rand(rows, 1, 1)) + 0.1 * torch.randn(rows, side, side)
    return picture[:, None], kind, torch.cat([middle, half], 1) / side


class Finder(nn.Module):
    def __init__(self, kinds=4):
        super().__init__()
        self.eye = nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(800, 96),
        )
        self.kind, self.box = nn.Linear(96, kinds), nn.Linear(96, 4)

    def forward(self, x):
        h = self.eye(x).relu()
        return self.kind(h), self.box(h)


@healthy()
def a_stapler_found_on_the_desk(folder):
    seeded(9430)
    net = Finder()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[250, 350], gamma=0.2)
    draw = rounds(32, *things(3200))
    test = things(500)

    def terms(x, kind, box):
        named, placed = net(x)
        return F.cross_entropy(named, kind), F.smooth_l1_loss(placed, box, beta=0.1)

    def one(step):
        named, placed = terms(*draw())
        loss = named + 10 * placed
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        return {"loss": loss, "cls_loss": named, "box_loss": placed}

    def error():
        named, placed = terms(*test)
        return named + 10 * placed

    return tend(folder, net, optimizer, one, 420, held_out(net, error))


def eye_of_another_task():
    """The layers of a net that has learned to tell kinds of things."""
    net = Finder()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    draw = rounds(64, *things(3200))
    for _ in range(200):
        x, kind, _ = draw()
        optimizer.zero_grad()
        F.cross_entropy(net(x)[0], kind).backward()
        optimizer.step()
    return net.eye


@healthy()
def cutlery_sorted_with_a_borrowed_eye(folder):
    seeded(9431)
    eye = eye_of_another_task()
    for parameter in eye.parameters():
        parameter.requires_grad = False
    net = nn.Sequential(eye, nn.ReLU(), nn.Linear(96, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(filter(lambda p: p.requires_grad, net.parameters()), lr=1e-3)
    x, _, box = things(1500)
    upright = (box[:, 2] > box[:, 3]).long()
    loader = DataLoader(TensorDataset(x[:1200], upright[:1200]), batch_size=32, shuffle=True)
    criterion = nn.CrossEntropyLoss()
    validate = held_out(net, lambda: criterion(net(x[1200:]), upright[1200:]))
    first = validate()
    options = TREATMENT[-1].begin(net, optimizer)
    with gradwatch.watch(net, optimizer, **{"log": None, "dir": folder, "verbose": False, **options}) as watch:
        for _ in range(10):
            for x_part, y_part in loader:
                loss = criterion(net(x_part), y_part)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                watch.log(loss=loss)
    return Outcome(gradwatch.open_history(watch.dir), first, validate())


@healthy()
def pegs_measured_after_finetuning(folder):
    seeded(9432)
    net = nn.ModuleDict({"eye": eye_of_another_task(), "head": dense(96, 32, 1)})
    optimizer = torch.optim.AdamW(
        [{"params": net["eye"].parameters(), "lr": 2e-4}, {"params": net["head"].parameters(), "lr": 2e-3}],
        weight_decay=0.01,
    )

    def warm(step):
        return min(1, (step + 1) / 30) * (1 - step / 420)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, warm)
    x, _, box = things(2000)
    area = (400 * box[:, 2:3] * box[:, 3:4]).log()
    area = (area - area.mean()) / area.std()
    draw = rounds(40, x[:1600], area[:1600])

    def predict(x):
        return net["head"](net["eye"](x).relu())

    def loss_of(step):
        x, y = draw()
        return F.huber_loss(predict(x), y)

    score = held_out(net, lambda: (predict(x[1600:]) - area[1600:]).abs().mean())
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule, before_step=clipped(net, 5.0))


class Patches(nn.Module):
    def __init__(self, width=32, depth=2):
        super().__init__()
        self.cut = nn.Conv2d(1, width, 2, 2)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(0.02 * torch.randn(1, 17, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.1, activation="gelu", norm_first=True, batch_first=True
        )
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x):
        h = self.cut(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.first.expand(len(h), -1, -1), h], 1) + self.place
        return self.head(self.norm(self.body(h)[:, 0]))


@healthy()
def meter_readings_by_patches(folder):
    seeded(9433)
    images, labels = digits()
    order = torch.randperm(len(images))
    images, labels = (images[order, None] - 0.3) / 0.37, labels[order]
    net = Patches()
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.05)
    steps = 260
    schedule = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=25),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - 25),
        ],
        [25],
    )
    draw = rounds(48, images[:1400], labels[:1400])

    def loss_of(step):
        x, y = draw()
        out = net(x)
        return F.cross_entropy(out, y), {"acc": (out.argmax(1) == y).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(images[1400:]), labels[1400:]))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule, before_step=clipped(net, 1.0))


@healthy()
def a_pocket_reader_taught_by_a_large_one(folder):
    seeded(9434)
    images, labels = digits()
    order = torch.randperm(len(images))
    x, y = images[order].flatten(1), labels[order]
    teacher, pupil = dense(64, 256, 256, 10), dense(64, 24, 10)
    learning = torch.optim.Adam(teacher.parameters(), lr=1e-3)
    draw = rounds(64, x[:1400], y[:1400])
    for _ in range(200):
        some, named = draw()
        learning.zero_grad()
        F.cross_entropy(teacher(some), named).backward()
        learning.step()
    teacher.eval().requires_grad_(False)
    average = copy.deepcopy(pupil)
    optimizer = torch.optim.Adam(pupil.parameters(), lr=3e-3)
    warmth = 3.0

    def loss_of(step):
        some, named = draw()
        out = pupil(some)
        with torch.no_grad():
            told = (teacher(some) / warmth).softmax(1)
        soft = F.kl_div((out / warmth).log_softmax(1), told, reduction="batchmean") * warmth**2
        hard = F.cross_entropy(out, named)
        return 0.7 * soft + 0.3 * hard, {"soft_loss": soft, "hard_loss": hard}

    def follow(step):
        with torch.no_grad():
            for kept, new in zip(average.parameters(), pupil.parameters(), strict=True):
                kept.lerp_(new, 0.02)

    score = held_out(average, lambda: F.cross_entropy(average(x[1400:]), y[1400:]))
    return fit(folder, pupil, optimizer, loss_of, 600, score=score, after_step=follow)
