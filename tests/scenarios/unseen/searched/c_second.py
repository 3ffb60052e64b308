"""Small pictures: named, cut out, cleaned and measured."""

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from trainings import TREATMENT
from unseen import Outcome, fit, healthy, seeded
from unseen.tasks import held_out, rounds, tend

import gradwatch


def grid(side):
    line = torch.linspace(-1, 1, side)
    return torch.meshgrid(line, line, indexing="ij")


def shapes(kind, at, size, side=16):
    """`[B, side, side]` masks of discs, squares, diamonds, rings, crosses and bars."""
    down, across = grid(side)
    y = (down - at[:, 0, None, None]).abs() / size[:, None, None]
    x = (across - at[:, 1, None, None]).abs() / size[:, None, None]
    far = (x * x + y * y).sqrt()
    every = torch.stack(
        [
            far < 1,
            torch.maximum(x, y) < 0.9,
            x + y < 1.2,
            (far < 1.1) & (far > 0.55),
            (torch.minimum(x, y) < 0.3) & (torch.maximum(x, y) < 1),
            (y < 0.35) & (x < 1.1),
        ],
        1,
    )
    return every[torch.arange(len(kind)), kind].float()


@healthy()
def pin_codes_on_bank_slips(folder):
    seeded(9426)
    images, labels = digits()
    order = torch.randperm(len(images))
    images, labels = images[order, None], labels[order]
    loader = DataLoader(TensorDataset(images[:1400], labels[:1400]), batch_size=32, shuffle=True)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(64, 10),
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.3)
    criterion = nn.CrossEntropyLoss()
    validate = held_out(net, lambda: criterion(net(images[1400:]), labels[1400:]))
    first = validate()
    options = TREATMENT[-1].begin(net, optimizer)
    watch = gradwatch.watch(net, optimizer, **{"log": None, "dir": folder, "verbose": False, **options})
    with watch:
        for _ in range(8):
            net.train()
            for x, y in loader:
                optimizer.zero_grad()
                out = net(x)
                loss = criterion(out, y)
                loss.backward()
                optimizer.step()
                watch.log(loss=loss.item(), accuracy=(out.argmax(1) == y).float().mean().item())
            schedule.step()
    return Outcome(gradwatch.open_history(watch.dir), first, validate())


class Block(nn.Module):
    def __init__(self, before, after, stride=1):
        super().__init__()
        self.one = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm_one = nn.BatchNorm2d(after)
        self.two = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm_two = nn.BatchNorm2d(after)
        self.past = nn.Identity()
        if stride > 1 or before != after:
            self.past = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        h = F.relu(self.norm_one(self.one(x)))
        return F.relu(self.norm_two(self.two(h)) + self.past(x))


def signs(rows):
    kind = torch.randint(6, (rows,))
    mask = shapes(kind, 0.3 * torch.rand(rows, 2) - 0.15, 0.5 + 0.3 * torch.rand(rows))
    paint, sky = torch.rand(rows, 3, 1, 1), torch.rand(rows, 3, 1, 1)
    picture = sky + mask[:, None] * (paint - sky)
    return (picture + 0.12 * torch.randn(rows, 3, 16, 16) - 0.5) / 0.3, kind


@healthy()
def road_signs_in_the_rain(folder):
    seeded(9427)
    x, y = signs(2000)
    test_x, test_y = signs(400)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        Block(16, 16),
        Block(16, 32, 2),
        Block(32, 48, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(48, 6),
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=240)
    draw = rounds(50, x, y)

    def loss_of(step):
        x, y = draw()
        x = x.flip(3) if torch.rand(()) < 0.5 else x
        down, across = torch.randint(3, (2,)).tolist()
        x = F.pad(x, (1, 1, 1, 1))[:, :, down : down + 16, across : across + 16]
        out = net(x)
        return F.cross_entropy(out, y, label_smoothing=0.1), {"train_accuracy": (out.argmax(1) == y).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(test_x), test_y))
    return fit(folder, net, optimizer, loss_of, 240, score=score, schedule=schedule)


def double(before, after):
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1),
        nn.BatchNorm2d(after),
        nn.ReLU(inplace=True),
        nn.Conv2d(after, after, 3, padding=1),
        nn.BatchNorm2d(after),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, wide=8):
        super().__init__()
        self.top, self.middle, self.bottom = double(1, wide), double(wide, 2 * wide), double(2 * wide, 4 * wide)
        self.raise_middle = nn.ConvTranspose2d(4 * wide, 2 * wide, 2, 2)
        self.back_middle = double(4 * wide, 2 * wide)
        self.raise_top = nn.ConvTranspose2d(2 * wide, wide, 2, 2)
        self.back_top = double(2 * wide, wide)
        self.out = nn.Conv2d(wide, 1, 1)

    def forward(self, x):
        top = self.top(x)
        middle = self.middle(F.max_pool2d(top, 2))
        bottom = self.bottom(F.max_pool2d(middle, 2))
        middle = self.back_middle(torch.cat([middle, self.raise_middle(bottom)], 1))
        return self.out(self.back_top(torch.cat([top, self.raise_top(middle)], 1)))


def meadow(rows, side=24):
    mask = torch.zeros(rows, side, side)
    for _ in range(3):
        at, size = 1.6 * torch.rand(rows, 2) - 0.8, 0.15 + 0.25 * torch.rand(rows)
        mask = torch.maximum(mask, shapes(torch.zeros(rows, dtype=torch.long), at, size, side))
    light = 0.4 * torch.randn(rows, 1, 1) + 0.3 * torch.randn(rows, 1, 1) * grid(side)[0]
    return (light - 0.8 * mask + 0.4 * torch.randn(rows, side, side))[:, None], mask[:, None]


@healthy()
def puddles_seen_from_a_drone(folder):
    seeded(9428)
    net = UNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    draw = rounds(16, *meadow(480))
    test_x, test_y = meadow(96)

    def dice(out, y):
        p = out.sigmoid()
        return 1 - (2 * (p * y).sum((1, 2, 3)) + 1) / (p.sum((1, 2, 3)) + y.sum((1, 2, 3)) + 1)

    def one(step):
        x, y = draw()
        optimizer.zero_grad(set_to_none=True)
        out = net(x)
        bce, overlap = F.binary_cross_entropy_with_logits(out, y), dice(out, y).mean()
        loss = bce + overlap
        loss.backward()
        optimizer.step()
        return {"loss": loss, "bce": bce, "dice_loss": overlap}

    return tend(folder, net, optimizer, one, 270, held_out(net, lambda: dice(net(test_x), test_y).mean()))


@healthy()
def crumpled_receipts_made_clean(folder):
    seeded(9429)
    images = digits()[0][:, None]
    net = nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(24, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 24, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(24, 1, 3, padding=1),
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.996)
    draw = rounds(64, images[:1500])
    clean = images[1500:]
    dirty = clean + 0.3 * torch.randn_like(clean)

    def loss_of(step):
        (x,) = draw()
        return F.mse_loss(net(x + 0.3 * torch.randn_like(x)), x)

    score = held_out(net, lambda: F.mse_loss(net(dirty), clean))
    return fit(folder, net, optimizer, loss_of, 500, score=score, schedule=schedule)
