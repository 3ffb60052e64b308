"""Ordinary trainings that go well: what courses, tutorials and repositories have."""

from __future__ import annotations

import copy
import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, in_turn, rounds, tend


def figures():
    """Digits of 8 by 8 in shuffled order, and their labels."""
    digits = load_digits()
    order = torch.randperm(len(digits.target))
    return (torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16)[order], torch.tensor(digits.target)[order]


@healthy(0.7)
def figures_on_price_tags_of_a_fair(folder):
    seeded(10750)
    x, y = figures()
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Dropout(0.25), nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, 400)
    draw = rounds(32, x[:1400], y[:1400])

    def loss_of(step):
        image, target = draw()
        said = net(image)
        return F.cross_entropy(said, target), {"accuracy": (said.argmax(1) == target).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule)


@healthy()
def takings_of_a_bakery_by_its_weather(folder):
    seeded(10751)
    x = torch.randn(1500, 9)
    takings = 900 + 200 * (x @ (0.4 * torch.randn(9)) + x[:, 0].abs() * x[:, 1]) + 30 * torch.randn(1500)
    y = ((takings - takings[:1200].mean()) / takings[:1200].std())[:, None]
    net = dense(9, 64, 64, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 200, 0.3)
    draw = rounds(64, x[:1200], y[:1200])

    def loss_of(step):
        days, target = draw()
        return F.mse_loss(net(days), target)

    score = held_out(net, lambda: F.mse_loss(net(x[1200:]), y[1200:]))
    return fit(folder, net, optimizer, loss_of, 500, score=score, schedule=schedule)


@healthy()
def notices_on_a_town_hall_door_spelled_on(folder):
    seeded(10752)
    words = ["market ", "on ", "monday ", "bread ", "and ", "cheese ", "closed ", "at ", "noon ", "by ", "order "]
    letters = sorted(set("".join(words)))
    code = [torch.tensor([letters.index(c) for c in word]) for word in words]

    class Speller(nn.Module):
        def __init__(self):
            super().__init__()
            self.letter = nn.Embedding(len(letters), 24)
            self.memory = nn.LSTM(24, 64, 2, batch_first=True, dropout=0.1)
            self.head = nn.Linear(64, len(letters))

        def forward(self, x):
            return self.head(self.memory(self.letter(x))[0])

    def text(rows, length=32):
        of = [torch.cat([code[i] for i in torch.randint(len(code), (12,))])[: length + 1] for _ in range(rows)]
        return torch.stack(of)

    net = Speller()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def loss_on(x):
        return F.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())

    test = text(64)
    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, lambda step: loss_on(text(24)), 200, score=score,
               before_step=clipped(net, 1.0))  # fmt: skip


@healthy()
def numerals_on_house_doors_packed_small(folder):
    seeded(10753)
    x = figures()[0].flatten(1)
    net = nn.ModuleDict({"pack": dense(64, 48, 12), "unpack": dense(12, 48, 64)})
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(64, x[:1500])

    def loss_on(x):
        return F.mse_loss(net["unpack"](net["pack"](x)), x)

    score = held_out(net, lambda: loss_on(x[1500:]))
    return fit(folder, net, optimizer, lambda step: loss_on(draw()[0]), 600, score=score)


@healthy()
def shop_signs_drawn_from_a_code(folder):
    seeded(10754)
    x = figures()[0].flatten(1)
    net = nn.ModuleDict({"read": dense(64, 64, 16), "write": dense(8, 64, 64)})
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(64, x[:1500])

    def terms(x):
        middle, log_var = net["read"](x).chunk(2, 1)
        drawn = middle + (log_var / 2).exp() * torch.randn_like(middle)
        written = F.binary_cross_entropy_with_logits(net["write"](drawn), x, reduction="none").sum(1).mean()
        return written, -0.5 * (1 + log_var - middle.square() - log_var.exp()).sum(1).mean()

    def loss_of(step):
        written, apart = terms(draw()[0])
        return written + min(1.0, (step + 1) / 150) * apart, {"reconstruction": written, "kl": apart}

    score = held_out(net, lambda: sum(terms(x[1500:])))
    return fit(folder, net, optimizer, loss_of, 500, score=score)


@healthy()
def orders_of_a_grocer_read_from_the_end(folder):
    seeded(10755)
    goods, length, steps = 12, 8, 400

    class Clerk(nn.Module):
        def __init__(self):
            super().__init__()
            self.word, self.place = nn.Embedding(goods, 48), nn.Parameter(torch.randn(length, 48))
            layer = nn.TransformerEncoderLayer(48, 4, 96, 0.0, "gelu", batch_first=True, norm_first=True)
            self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.norm, self.head = nn.LayerNorm(48), nn.Linear(48, goods)

        def forward(self, x):
            return self.head(self.norm(self.body(self.word(x) + self.place)))

    net = Clerk()
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.05)

    def rate(step):
        return min((step + 1) / 40, 0.5 * (1 + math.cos(math.pi * step / steps)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)

    def loss_on(x):
        return F.cross_entropy(net(x).flatten(0, 1), x.flip(1).flatten())

    test = torch.randint(goods, (200, length))
    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, lambda step: loss_on(torch.randint(goods, (32, length))), steps, score=score,
               schedule=schedule, before_step=clipped(net, 1.0))  # fmt: skip


class Outliner(nn.Module):
    """A small U-net."""

    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU())
        self.deep = nn.Sequential(nn.Conv2d(12, 24, 3, 2, 1), nn.BatchNorm2d(24), nn.ReLU())
        self.up = nn.ConvTranspose2d(24, 12, 2, 2)
        self.out = nn.Sequential(nn.Conv2d(24, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1))

    def forward(self, x):
        near = self.down(x)
        return self.out(torch.cat([near, self.up(self.deep(near))], 1))


@healthy()
def awnings_outlined_above_a_square(folder):
    seeded(10756)
    net = Outliner()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    grid = torch.arange(16.0)

    def squares(rows):
        at, size = 3 + 10 * torch.rand(rows, 2, 1), 2 + 3 * torch.rand(rows, 2, 1)
        inside = (grid - at).abs() < size
        mask = (inside[:, 0, :, None] & inside[:, 1, None]).float()[:, None]
        return mask * (0.6 + 0.4 * torch.rand(rows, 1, 1, 1)) + 0.35 * torch.randn(rows, 1, 16, 16), mask

    def loss_on(x, mask):
        said = net(x)
        share = said.sigmoid()
        dice = 1 - (2 * (share * mask).sum((1, 2, 3)) + 1) / ((share + mask).sum((1, 2, 3)) + 1)
        return F.binary_cross_entropy_with_logits(said, mask) + dice.mean()

    test = squares(200)
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, lambda step: loss_on(*squares(16)), 200, score=score)


@healthy(0.5)
def false_weights_beside_true_ones(folder):
    seeded(10757)
    make, judge = dense(4, 64, 64, 2), dense(2, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make, of_judge = (torch.optim.Adam(net.parameters(), 1e-3, betas=(0.5, 0.999)) for net in (make, judge))
    centre, mix = torch.tensor([2.0, -1.0]), torch.tensor([[0.6, 0.3], [0.0, 0.4]])

    def judged():
        true, false = centre + torch.randn(64, 2) @ mix, make(torch.randn(64, 4)).detach()
        return F.softplus(-judge(true)).mean() + F.softplus(judge(false)).mean()

    def score():
        with torch.no_grad():
            made = make(torch.randn(2048, 4))
        return float((made.mean(0) - centre).norm() + (made.T.cov() - mix.T @ mix).norm())

    return in_turn(folder, make, judge, of_make, of_judge, judged,
                   lambda: F.softplus(-judge(make(torch.randn(64, 4)))).mean(), 500, score)  # fmt: skip


@healthy(0.5)
def errands_through_a_row_of_rooms(folder):
    seeded(10758)
    rooms, reach = 7, 0.9
    net = dense(rooms, 48, 48, 2)
    target = copy.deepcopy(net)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    seen, room = [], 3
    true = reach ** torch.arange(rooms - 2.0, -1, -1)

    def value(at, of):
        return of(F.one_hot(at, rooms).float())

    def move():
        nonlocal room
        to_right = int(torch.randint(2, (1,)))
        to = max(0, room + 2 * to_right - 1)
        seen.append((room, to_right, float(to == rooms - 1), to))
        room = int(torch.randint(rooms - 1, (1,))) if to == rooms - 1 else to

    for _ in range(200):
        move()

    def one(step):
        for _ in range(4):
            move()
        batch = [seen[int(i)] for i in torch.randint(len(seen), (64,))]
        at, act, reward, to = (torch.tensor(column) for column in zip(*batch, strict=True))
        with torch.no_grad():
            wanted = reward + reach * (1 - reward) * value(to, target).max(1).values
        loss = F.smooth_l1_loss(value(at, net).gather(1, act[:, None])[:, 0], wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 24:
            target.load_state_dict(net.state_dict())
        return {"loss": loss, "reward": reward.mean()}

    def off():
        return (value(torch.arange(rooms - 1), net)[:, 1] - true).abs().mean()

    return tend(folder, net, optimizer, one, 900, held_out(net, off))


@healthy()
def quarters_of_a_town_by_their_alleys(folder):
    seeded(10759)
    nodes, quarters = 240, 4
    y = torch.randint(quarters, (nodes,))
    likely = torch.where(y[:, None] == y, 0.09, 0.01)
    edge = (torch.rand(nodes, nodes) < likely).float().triu(1)
    edge = edge + edge.T + torch.eye(nodes)
    near = edge / (edge.sum(1)[:, None] * edge.sum(1)).sqrt()
    x = torch.randn(quarters, 16)[y] * 0.5 + torch.randn(nodes, 16)
    net = nn.ModuleList([nn.Linear(16, 32), nn.Linear(32, quarters)])
    optimizer = torch.optim.Adam(net.parameters(), 0.01, weight_decay=5e-4)
    train = torch.rand(nodes) < 0.4

    def said():
        hidden = F.dropout((near @ net[0](x)).relu(), 0.5, net.training)
        return near @ net[1](hidden)

    score = held_out(net, lambda: F.cross_entropy(said()[~train], y[~train]))
    return fit(folder, net, optimizer, lambda step: F.cross_entropy(said()[train], y[train]), 150, score=score)
