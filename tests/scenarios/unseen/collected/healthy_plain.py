"""Everyday trainings on images: a plain CNN, a small ResNet, a U-Net, a tuned body, a cleaner, boxes."""

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from unseen import healthy, seeded
from unseen.tasks import held_out, rounds, tend

GRID = torch.stack(torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij"))


def conv(a, b, stride=1):
    return nn.Sequential(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU())


def line(n, width):
    """How near each pixel is to a line of its own in each of `n` images."""
    angle, shift = 3.1416 * torch.rand(n, 1, 1), 4 * torch.randn(n, 1, 1)
    away = (GRID[0] - 7.5) * angle.cos() + (GRID[1] - 7.5) * angle.sin() - shift
    return (-(away**2) / width).exp()


def spot(n, width):
    y, x = 3 + 10 * torch.rand(2, n, 1, 1)
    return (-((GRID[0] - y) ** 2 + (GRID[1] - x) ** 2) / width).exp()


@healthy()
def scratches_on_phone_glass(folder):
    seeded(3061)

    def photos(n):
        kind = torch.randint(4, (n,))
        marks = torch.stack([torch.zeros(n, 16, 16), line(n, 1.0), spot(n, 6.0), line(n, 1.0) + line(n, 1.0)])
        x = marks[kind, torch.arange(n)] + 0.35 * torch.randn(n, 16, 16)
        return (x[:, None] - 0.15) / 0.5, kind

    net = nn.Sequential(
        conv(1, 12), conv(12, 24, 2), conv(24, 32, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4)
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    draw, (x_val, y_val) = rounds(64, *photos(1600)), photos(500)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)

    def one(step):
        x, y = draw()
        optimizer.zero_grad()
        out = net(x)
        loss = F.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        schedule.step()
        return {"loss": loss, "accuracy": (out.argmax(1) == y).float().mean()}

    return tend(folder, net, optimizer, one, 300, held_out(net, lambda: F.cross_entropy(net(x_val), y_val)))


class Residual(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.one, self.two = conv(a, b, stride), nn.Conv2d(b, b, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(b)
        self.short = nn.Identity()
        if a != b:
            self.short = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b))

    def forward(self, x):
        return F.relu(self.norm(self.two(self.one(x))) + self.short(x))


@healthy()
def shoes_in_a_mail_order_catalogue(folder):
    seeded(3062)
    styles = F.interpolate(torch.randn(18, 3, 5, 5), size=16, mode="bilinear")

    def photos(n):
        style = torch.randint(18, (n,))
        tint = 1 + 0.2 * torch.randn(n, 3, 1, 1)
        x = styles[style] * tint + 0.7 * torch.randn(n, 3, 16, 16)
        moved = [one.roll((int(a), int(b)), (1, 2)) for one, a, b in zip(x, *torch.randint(-2, 3, (2, n)), strict=True)]
        return torch.stack(moved), style % 6

    net = nn.Sequential(
        conv(3, 16),
        Residual(16, 16, 1),
        Residual(16, 32, 2),
        Residual(32, 48, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(48, 6),
    )
    decayed = [p for p in net.parameters() if p.ndim > 1]
    others = [p for p in net.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=280)
    draw, (x_val, y_val) = rounds(32, *photos(2000)), photos(300)
    lossy = nn.CrossEntropyLoss(label_smoothing=0.1)

    def one(step):
        x, y = draw()
        x = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(3), x)
        out = net(x)
        loss = lossy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        return {"loss": loss, "train_acc": (out.argmax(1) == y).float().mean()}

    return tend(folder, net, optimizer, one, 280, held_out(net, lambda: F.cross_entropy(net(x_val), y_val)))


class Outliner(nn.Module):
    """A U-Net of two levels."""

    def __init__(self):
        super().__init__()
        self.top, self.middle, self.low = conv(1, 12), conv(12, 24), conv(24, 32)
        self.up_middle, self.up_top = conv(32 + 24, 24), conv(24 + 12, 12)
        self.out = nn.Conv2d(12, 1, 1)

    def forward(self, x):
        top = self.top(x)
        middle = self.middle(F.max_pool2d(top, 2))
        h = F.interpolate(self.low(F.max_pool2d(middle, 2)), scale_factor=2)
        h = F.interpolate(self.up_middle(torch.cat([h, middle], 1)), scale_factor=2)
        return self.out(self.up_top(torch.cat([h, top], 1)))


@healthy()
def lungs_on_chest_films(folder):
    seeded(3063)

    def films(n):
        mask = torch.zeros(n, 16, 16)
        for side in (4.0, 11.5):
            y, x = 7.5 + torch.randn(n, 1, 1), side + 0.6 * torch.randn(n, 1, 1)
            tall, wide = 4 + 1.5 * torch.rand(n, 1, 1), 2 + torch.rand(n, 1, 1)
            mask = mask.maximum((((GRID[0] - y) / tall) ** 2 + ((GRID[1] - x) / wide) ** 2 < 1).float())
        light = 0.5 * torch.randn(n, 1, 1)
        film = light - mask + 0.6 * line(n, 2.0) + 0.5 * torch.randn(n, 16, 16)
        return film[:, None], mask[:, None]

    net = Outliner()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    draw, (x_val, y_val) = rounds(16, *films(640)), films(160)

    def terms(out, y):
        p = out.sigmoid()
        overlap = (2 * (p * y).sum((1, 2, 3)) + 1) / (p.sum((1, 2, 3)) + y.sum((1, 2, 3)) + 1)
        return F.binary_cross_entropy_with_logits(out, y), 1 - overlap.mean()

    def one(step):
        x, y = draw()
        optimizer.zero_grad()
        bce, dice = terms(net(x), y)
        loss = bce + dice
        loss.backward()
        optimizer.step()
        return {"loss": loss, "bce": bce, "dice": dice}

    return tend(folder, net, optimizer, one, 300, held_out(net, lambda: sum(terms(net(x_val), y_val))))


@healthy()
def amounts_on_handwritten_cheques(folder):
    seeded(3064)
    x, y = digits()
    order = torch.randperm(len(x))
    x, y = (x[order, None] - 0.3) / 0.37, y[order]
    body = nn.Sequential(conv(1, 16), conv(16, 32, 2), conv(32, 32), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    before = nn.Sequential(body, nn.Linear(128, 5))
    known = y[:900] < 5
    earlier = torch.optim.Adam(before.parameters(), lr=2e-3)
    pretraining = rounds(32, x[:900][known], y[:900][known])
    for _ in range(120):
        a, b = pretraining()
        earlier.zero_grad()
        F.cross_entropy(before(a), b).backward()
        earlier.step()

    net = nn.Sequential(body, nn.Dropout(0.1), nn.Linear(128, 10))
    groups = [{"params": net[0].parameters(), "lr": 3e-4}, {"params": net[2].parameters(), "lr": 3e-3}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 350)
    draw, x_val, y_val = rounds(32, x[:1400], y[:1400]), x[1400:], y[1400:]

    def validate():
        return F.cross_entropy(net(x_val), y_val)

    def one(step):
        a, b = draw()
        loss = F.cross_entropy(net(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        extra = {"val_loss": held_out(net, validate)()} if step % 86 == 85 else {}
        return {"train_loss": loss, **extra}

    return tend(folder, net, optimizer, one, 350, held_out(net, validate))


@healthy()
def coffee_stains_off_scanned_receipts(folder):
    seeded(3065)

    def scans(n):
        rows = (GRID[0] % 4 < 2).float() * (torch.rand(n, 16, 16) < 0.55)
        return (rows + 0.7 * spot(n, 20.0) + 0.2 * torch.randn(n, 16, 16))[:, None], rows[:, None]

    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.LeakyReLU(0.1),
        nn.Conv2d(16, 32, 4, 2, 1),
        nn.LeakyReLU(0.1),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.LeakyReLU(0.1),
        nn.ConvTranspose2d(32, 16, 4, 2, 1),
        nn.LeakyReLU(0.1),
        nn.Conv2d(16, 1, 3, padding=1),
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [200, 300], 0.3)
    draw, (x_val, y_val) = rounds(32, *scans(1000)), scans(200)

    def one(step):
        x, y = draw()
        optimizer.zero_grad()
        out = net(x)
        loss = F.l1_loss(out, y)
        loss.backward()
        optimizer.step()
        schedule.step()
        return {"loss": loss, "psnr": -10 * F.mse_loss(out.detach(), y).log10()}

    return tend(folder, net, optimizer, one, 380, held_out(net, lambda: F.l1_loss(net(x_val), y_val)))


class Finder(nn.Module):
    """What stands in the picture, and where: the middle and the size of its box as shares of the picture."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(conv(1, 16), conv(16, 32, 2), conv(32, 32, 2), nn.Flatten(), nn.Linear(512, 64))
        self.kind, self.box = nn.Linear(64, 3), nn.Linear(64, 4)

    def forward(self, x):
        h = F.relu(self.body(x))
        return self.kind(h), self.box(h).sigmoid()


@healthy()
def pallets_before_a_forklift(folder):
    seeded(3066)

    def views(n):
        kind, box = torch.randint(3, (n,)), torch.cat([0.3 + 0.4 * torch.rand(n, 2), 0.2 + 0.4 * torch.rand(n, 2)], 1)
        y, x, tall, wide = (16 * box)[:, :, None, None].unbind(1)
        inside = ((GRID[0] - y).abs() < tall / 2) & ((GRID[1] - x).abs() < wide / 2)
        lines = torch.stack([GRID[0] % 2, GRID[1] % 2, torch.full((16, 16), 0.5)])[kind]
        return (inside * (0.5 + lines) + 0.25 * torch.randn(n, 16, 16))[:, None], kind, box

    net = Finder()
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) / 30, (360 - s) / 330))
    draw, fresh = rounds(32, *views(1200)), views(300)

    def terms(x, kind, box):
        said, found = net(x)
        return F.cross_entropy(said, kind), F.smooth_l1_loss(found, box, beta=0.1)

    def one(step):
        of_kind, of_box = terms(*draw())
        loss = of_kind + 5 * of_box
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        return {"loss": loss, "loss_cls": of_kind, "loss_box": of_box}

    def whole():
        of_kind, of_box = terms(*fresh)
        return of_kind + 5 * of_box

    return tend(folder, net, optimizer, one, 355, held_out(net, whole))
