"""Tables, forecasts, images and autoencoders, as they are trained on ordinary days."""

import math

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, MultiStepLR, OneCycleLR
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


def split_digits(train=1500):
    x, y = digits()
    order = torch.randperm(len(x))
    x, y = x[order][:, None], y[order]
    return x[:train], y[:train], x[train:], y[train:]


def warm_cosine(optimizer, warm, steps):
    def share(step):
        if step < warm:
            return (step + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))

    return LambdaLR(optimizer, share)


class Table(nn.Module):
    def __init__(self, kinds, numbers, width=64):
        super().__init__()
        self.embeds = nn.ModuleList(nn.Embedding(k, min(8, k)) for k in kinds)
        size = numbers + sum(min(8, k) for k in kinds)
        self.body = nn.Sequential(
            nn.BatchNorm1d(size),
            nn.Linear(size, width),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(width, width // 2),
            nn.ReLU(),
            nn.Linear(width // 2, 1),
        )

    def forward(self, codes, x):
        parts = [embed(codes[:, i]) for i, embed in enumerate(self.embeds)]
        return self.body(torch.cat([*parts, x], 1))[:, 0]


@healthy()
def gym_members_who_cancel(folder):
    seeded(9261)
    rows = 5000
    plan, branch, x = torch.randint(3, (rows,)), torch.randint(12, (rows,)), torch.randn(rows, 6)
    codes = torch.stack([plan, branch], 1)
    of_plan, of_branch = torch.tensor([-2.0, 0.0, 2.5]), 1.5 * torch.randn(12)
    logit = of_plan[plan] + of_branch[branch] - 3 * x[:, 0] + 2 * x[:, 1] * x[:, 2] + 1.5 * x[:, 3].abs()
    y = torch.bernoulli(logit.sigmoid())
    draw = rounds(128, codes[:4000], x[:4000], y[:4000])
    net = Table([3, 12], 6)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-2)
    schedule = OneCycleLR(optimizer, max_lr=5e-3, total_steps=500)

    def loss_of(step):
        c, v, t = draw()
        out = net(c, v)
        right = ((out > 0) == (t > 0.5)).float().mean()
        return F.binary_cross_entropy_with_logits(out, t), {"accuracy": right}

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(codes[4000:], x[4000:]), y[4000:]))
    return fit(folder, net, optimizer, loss_of, 500, score=score, schedule=schedule)


class Horizon(nn.Module):
    def __init__(self, inputs, hidden, ahead):
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, batch_first=True)
        self.head = nn.Linear(hidden, ahead)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


@healthy()
def bakery_orders_of_the_next_week(folder):
    seeded(9262)
    days = torch.arange(400).float()
    shops = 24
    weekly = torch.randn(shops, 7)
    level = 0.6 * torch.randn(shops, 1) + 0.5 * (6.2832 * days / 180 + 6.2832 * torch.rand(shops, 1)).sin()
    orders = weekly[:, days.long() % 7] + level + 0.2 * torch.randn(shops, 400)
    orders = (orders - orders[:, :320].mean()) / orders[:, :320].std()
    net = Horizon(1, 48, 7)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)

    def windows(rows, begin, end):
        shop, at = torch.randint(shops, (rows,)), torch.randint(begin, end - 35, (rows,))
        piece = orders[shop[:, None], at[:, None] + torch.arange(35)]
        return piece[:, :28, None], piece[:, 28:]

    def loss_of(step):
        x, y = windows(64, 0, 320)
        out = net(x)
        return F.huber_loss(out, y), {"mae": (out - y).abs().mean()}

    x_test, y_test = windows(300, 320, 400)
    score = held_out(net, lambda: F.l1_loss(net(x_test), y_test))
    schedule = CosineAnnealingLR(optimizer, 400, eta_min=1e-5)
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule, before_step=clipped(net, 1.0))


class Patches(nn.Module):
    def __init__(self, width=32, depth=2):
        super().__init__()
        self.cut = nn.Linear(4, width)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(0.02 * torch.randn(1, 17, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        h = self.cut(F.unfold(x, 2, stride=2).transpose(1, 2))
        h = torch.cat([self.first.expand(len(h), -1, -1), h], 1) + self.place
        return self.head(self.body(h)[:, 0])


@healthy()
def digits_snipped_into_sixteen_squares(folder):
    seeded(9263)
    x, y, x_test, y_test = split_digits()
    draw, net = rounds(32, x, y), Patches()
    decay = [p for p in net.parameters() if p.ndim > 1]
    rest = [p for p in net.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}], lr=3e-3, betas=(0.9, 0.98)
    )

    def loss_of(step):
        a, b = draw()
        out = net(a)
        return F.cross_entropy(out, b, label_smoothing=0.1), {"accuracy": (out.argmax(1) == b).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(x_test), y_test))
    schedule = warm_cosine(optimizer, 30, 200)
    return fit(folder, net, optimizer, loss_of, 200, score=score, schedule=schedule, before_step=clipped(net, 1.0))


class Residual(nn.Module):
    def __init__(self, inside, outside, stride=1):
        super().__init__()
        self.one = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm_one = nn.BatchNorm2d(outside)
        self.two = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm_two = nn.BatchNorm2d(outside)
        self.skip = nn.Identity()
        if stride != 1 or inside != outside:
            self.skip = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x):
        h = self.norm_two(self.two(self.norm_one(self.one(x)).relu()))
        return (h + self.skip(x)).relu()


@healthy()
def jiggled_digits_by_a_small_resnet(folder):
    seeded(9264)
    x, y, x_test, y_test = split_digits()
    draw = rounds(128, x, y)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1, bias=False),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        Residual(12, 12),
        Residual(12, 24, 2),
        Residual(24, 48, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(48, 10),
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)

    def jiggle(images):
        down, right = torch.randint(-1, 2, (2,)).tolist()
        wide = F.pad(images, (1, 1, 1, 1))
        return wide[:, :, 1 + down : 9 + down, 1 + right : 9 + right] + 0.05 * torch.randn_like(images)

    def loss_of(step):
        a, b = draw()
        return F.cross_entropy(net(jiggle(a)), b)

    score = held_out(net, lambda: (net(x_test).argmax(1) != y_test).float().mean())
    return fit(folder, net, optimizer, loss_of, 250, score=score, schedule=MultiStepLR(optimizer, [130, 200]))


@healthy()
def scratched_digits_made_whole(folder):
    seeded(9265)
    x, _, x_test, _ = split_digits()
    x, x_test = x.flatten(1), x_test.flatten(1)
    draw = rounds(100, x)
    net = nn.Sequential(dense(64, 128, 32, act=nn.ELU), nn.ELU(), dense(32, 128, 64, act=nn.ELU), nn.Sigmoid())
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def scratched(images):
        return images * (torch.rand_like(images) > 0.3)

    def loss_of(step):
        (a,) = draw()
        return F.mse_loss(net(scratched(a)), a)

    spoilt = scratched(x_test)
    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, lambda: F.mse_loss(net(spoilt), x_test)))


class Variational(nn.Module):
    def __init__(self, codes=8):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1), nn.SiLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.SiLU(), nn.Flatten()
        )
        self.middle = nn.Linear(128, 2 * codes)
        self.decoder = nn.Sequential(
            nn.Linear(codes, 128),
            nn.SiLU(),
            nn.Unflatten(1, (32, 2, 2)),
            nn.ConvTranspose2d(32, 16, 4, 2, 1),
            nn.SiLU(),
            nn.ConvTranspose2d(16, 1, 4, 2, 1),
        )

    def forward(self, x):
        mean, log_var = self.middle(self.encoder(x)).chunk(2, 1)
        code = mean + (0.5 * log_var).exp() * torch.randn_like(mean)
        return self.decoder(code), mean, log_var


@healthy()
def digits_dreamt_from_eight_numbers(folder):
    seeded(9266)
    x, _, x_test, _ = split_digits()
    draw, net, steps = rounds(64, x), Variational(), 500
    optimizer = torch.optim.Adam(net.parameters(), lr=1.5e-3)

    def terms(images):
        out, mean, log_var = net(images)
        drawn = F.binary_cross_entropy_with_logits(out, images, reduction="none").sum((1, 2, 3)).mean()
        away = 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum(1).mean()
        return drawn, away

    def loss_of(step):
        drawn, away = terms(draw()[0])
        beta = min(1.0, step / 150)
        return drawn + beta * away, {"reconstruction": drawn, "kl": away}

    return fit(folder, net, optimizer, loss_of, steps, score=held_out(net, lambda: sum(terms(x_test))))
