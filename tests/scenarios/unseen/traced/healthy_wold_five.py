"""Six everyday trainings: pizzas, blog posts, jumpers, photographs enlarged, mail, bakeries."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


@healthy()
def minutes_until_a_pizza_arrives(folder):
    seeded(3435)
    rows = 6000
    far, oven, hour = 8 * torch.rand(rows), torch.randint(12, (rows,)).float(), 11 + 12 * torch.rand(rows)
    rain, rush = (torch.rand(rows) < 0.2).float(), torch.exp(-((hour - 19) ** 2) / 3)
    middle = 10 + 3.2 * far + 1.5 * oven + 8 * rain * rush + 10 * rush
    minutes = middle + (0.6 + 0.4 * far + 2 * rain) * torch.randn(rows)
    x = torch.stack([far, oven, (hour / 24 * 6.283).sin(), (hour / 24 * 6.283).cos(), rain], 1)
    x = (x - x[:5000].mean(0)) / x[:5000].std(0)
    y = (minutes - minutes[:5000].mean()) / minutes[:5000].std()
    levels = torch.tensor([0.1, 0.5, 0.9])
    net, draw = dense(5, 64, 64, 3, act=nn.GELU), rounds(128, x[:5000], y[:5000])
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)

    def pinball(x, y):
        gap = y[:, None] - net(x)
        return torch.maximum(levels * gap, (levels - 1) * gap).mean()

    def loss_of(step):
        return pinball(*draw())

    return fit(folder, net, optimizer, loss_of, 420, score=held_out(net, lambda: pinball(x[5000:], y[5000:])))


class Graph(nn.Module):
    def __init__(self, words, hidden, kinds):
        super().__init__()
        self.one, self.two, self.drop = nn.Linear(words, hidden), nn.Linear(hidden, kinds), nn.Dropout(0.5)

    def forward(self, x, links):
        x = (links @ self.one(self.drop(x))).relu()
        return links @ self.two(self.drop(x))


@healthy()
def themes_of_blogs_that_link_to_each_other(folder):
    seeded(3436)
    many, kinds, words = 500, 5, 200
    theme = torch.randint(kinds, (many,))
    alike = theme[:, None] == theme[None, :]
    links = (torch.rand(many, many) < torch.where(alike, 0.03, 0.002)).float().triu(1)
    links = links + links.T + torch.eye(many)
    share = links.sum(1).rsqrt()
    links = share[:, None] * links * share[None, :]
    favourite = torch.rand(kinds, words) < 0.15
    x = (torch.rand(many, words) < torch.where(favourite[theme], 0.12, 0.04)).float()
    x = x / x.sum(1, keepdim=True).clamp(min=1)
    order = torch.randperm(many)
    seen, valid, test = order[:100], order[100:200], order[200:]
    net = Graph(words, 16, kinds)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=5e-4)

    def one(epoch):
        net.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x, links)[seen], theme[seen])
        loss.backward()
        optimizer.step()
        net.eval()
        with torch.no_grad():
            right = (net(x, links).argmax(1) == theme)[valid].float().mean()
        return {"loss": loss, "val_accuracy": right}

    return tend(
        folder, net, optimizer, one, 200, held_out(net, lambda: F.cross_entropy(net(x, links)[test], theme[test]))
    )


def jumpers(rows, side=16):
    """Patterns of wool: stripes either way, both, dots, zigzags and plain ones, in two colours."""
    kind, axis = torch.randint(6, (rows,)), torch.arange(side).float()
    beat, phase = (0.8 + 0.8 * torch.rand(rows, 1, 1)), 6.283 * torch.rand(2, rows, 1, 1)
    down = (beat * axis[:, None] + phase[0]).expand(rows, side, side)
    over = (beat * axis[None, :] + phase[1]).expand(rows, side, side)
    bend = (down + 2 * (over.sin().asin())).sin()
    every = torch.stack([down.sin(), over.sin(), torch.maximum(down.sin(), over.sin()), down.sin() * over.sin(), bend,
                         torch.zeros_like(down)])  # fmt: skip
    cloth = (every[kind, torch.arange(rows)][:, None] > 0.2).float()
    ink, ground = torch.randn(2, rows, 3, 1, 1)
    return cloth * ink + (1 - cloth) * ground + 0.2 * torch.randn(rows, 3, side, side), kind


class Vision(nn.Module):
    def __init__(self, kinds, width=48, depth=2, patches=16):
        super().__init__()
        self.cut = nn.Conv2d(3, width, 4, 4)
        self.kind, self.place = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(torch.zeros(1, patches + 1, width))
        nn.init.trunc_normal_(self.kind, std=0.02)
        nn.init.trunc_normal_(self.place, std=0.02)
        layer = nn.TransformerEncoderLayer(
            width, 4, 96, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, kinds)

    def forward(self, x):
        x = self.cut(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.kind.expand(len(x), -1, -1), x], 1) + self.place
        return self.head(self.body(x)[:, 0])


@healthy()
def jumpers_by_a_small_vision_transformer(folder):
    seeded(3437)
    (x, y), (x_test, y_test) = jumpers(2000), jumpers(300)
    net, draw = Vision(6), rounds(48, x, y)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=200, pct_start=0.2)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    def one(step):
        a, b = draw()
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(a)
            loss = criterion(out, b)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return {"loss": loss, "accuracy": (out.argmax(1) == b).float().mean()}

    return tend(folder, net, optimizer, one, 200, held_out(net, lambda: F.cross_entropy(net(x_test), y_test)))


def views(rows, side=24):
    """Small pictures of roofs, fields and roads."""
    axis = torch.linspace(-1, 1, side)
    image = 0.4 + 0.1 * torch.randn(rows, 1, 1).expand(rows, side, side)
    for _ in range(4):
        turn, middle = 3.1416 * torch.rand(rows, 1, 1), 1.6 * torch.rand(2, rows, 1, 1) - 0.8
        down, over = axis[:, None] - middle[0], axis[None, :] - middle[1]
        a, b = turn.cos() * down + turn.sin() * over, turn.cos() * over - turn.sin() * down
        long, wide = 0.2 + 0.8 * torch.rand(rows, 1, 1), 0.08 + 0.3 * torch.rand(rows, 1, 1)
        image = torch.where((a.abs() < long) & (b.abs() < wide), torch.rand(rows, 1, 1), image)
    return image[:, None]


class Larger(nn.Module):
    """What is missing of the picture that interpolation enlarges."""

    def __init__(self, width=24):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.PReLU(), nn.Conv2d(width, width, 3, padding=1), nn.PReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.PReLU(), nn.Conv2d(width, 4, 3, padding=1), nn.PixelShuffle(2),
        )  # fmt: skip

    def forward(self, x):
        return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False) + self.body(x)


@healthy()
def roofs_from_above_at_twice_the_size(folder):
    seeded(3438)
    train, test = views(800), views(100)
    net, draw = Larger(), rounds(16, train)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=300, gamma=0.5)

    def loss_of(step):
        (y,) = draw()
        return F.l1_loss(net(F.avg_pool2d(y, 2)), y)

    score = held_out(net, lambda: F.l1_loss(net(F.avg_pool2d(test, 2)), test))
    return fit(folder, net, optimizer, loss_of, 450, score=score, schedule=schedule)


class Bert(nn.Module):
    def __init__(self, words, width=48, most=16):
        super().__init__()
        self.embed, self.place, self.norm = nn.Embedding(words, width), nn.Embedding(most, width), nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(width, 4, 96, dropout=0.1, activation="gelu", batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        for table in (self.embed, self.place):
            nn.init.normal_(table.weight, std=0.05)

    def forward(self, x):
        return self.body(self.norm(self.embed(x) + self.place.weight[: x.shape[1]]))


class Sorter(nn.Module):
    def __init__(self, body, kinds, width=48):
        super().__init__()
        self.body, self.drop, self.head = body, nn.Dropout(0.1), nn.Linear(width, kinds)

    def forward(self, x):
        return self.head(self.drop(self.body(x)[:, 0]))


@healthy()
def mail_of_a_company_by_a_tuned_reader(folder):
    seeded(3439)
    share = (2.0 * torch.randn(8, 150)).softmax(1)

    def mail(rows):
        kind = torch.randint(4, (rows,))
        theme = torch.where(torch.rand(rows, 15) < 0.5, kind[:, None], torch.randint(4, 8, (rows, 15)))
        word = 2 + torch.multinomial(share[theme.flatten()], 1).view(rows, 15)
        return torch.cat([torch.zeros(rows, 1, dtype=torch.long), word], 1), kind

    body, guess = Bert(152), nn.Linear(48, 152)
    weights = [*body.parameters(), *guess.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=2e-3)
    draw = rounds(64, mail(4000)[0])
    for _ in range(200):
        (word,) = draw()
        hidden = (torch.rand(word.shape) < 0.15) & (word > 1)
        loss = F.cross_entropy(guess(body(word.masked_fill(hidden, 1)))[hidden], word[hidden])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()

    net, steps, rise = Sorter(body, 4), 200, 20
    train, test = mail(1000), mail(300)
    draw = rounds(16, *train)
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-4, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / rise, (steps - step) / (steps - rise))
    )

    def loss_of(step):
        word, kind = draw()
        return F.cross_entropy(net(word), kind)

    score = held_out(net, lambda: F.cross_entropy(net(test[0]), test[1]))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule, before_step=clipped(net, 1.0))


class Stack(nn.Module):
    """Blocks that each explain a part of the past and of the time to come, and hand on what is left (N-BEATS)."""

    def __init__(self, past=28, ahead=7, width=64, depth=3):
        super().__init__()
        self.past, self.blocks = past, nn.ModuleList(dense(past, width, width, past + ahead) for _ in range(depth))

    def forward(self, x):
        total = 0
        for block in self.blocks:
            out = block(x)
            x, total = x - out[:, : self.past], total + out[:, self.past :]
        return total


@healthy()
def rolls_sold_by_a_chain_of_bakeries(folder):
    seeded(3440)
    shops, days = 30, 300
    week, day = torch.randn(shops, 7), torch.arange(days)
    rate = 3.5 + 0.4 * torch.randn(shops, 1) + 0.5 * week[:, day % 7]
    rate = rate + 0.3 * (6.283 * day / 90 + 6.283 * torch.rand(shops, 1)).sin()
    sold = torch.poisson(rate.exp())
    level = sold[:, :200].mean(1, keepdim=True)
    table = (sold / level).log1p()
    table = (table - table[:, :200].mean()) / table[:, :200].std()
    x = table.unfold(1, 35, 1)
    train, test = x[:, :166].reshape(-1, 35), x[:, 200:].reshape(-1, 35)
    net, draw = Stack(), rounds(128, train)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=100, T_mult=2)

    def loss_of(step):
        (row,) = draw()
        return F.smooth_l1_loss(net(row[:, :28]), row[:, 28:])

    score = held_out(net, lambda: F.smooth_l1_loss(net(test[:, :28]), test[:, 28:]))
    return fit(folder, net, optimizer, loss_of, 700, score=score, schedule=schedule)
