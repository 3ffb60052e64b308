"""Healthy trainings of theatres and markets: what a course, a tutorial or a team's repository has."""

from __future__ import annotations

import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_iris
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, in_turn, rounds, tend


@healthy()
def row_numbers_on_velvet_seats(folder):
    seeded(11550)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x = (torch.tensor(images, dtype=torch.float32)[order].view(-1, 1, 8, 8) - 4.9) / 6.0
    y = torch.tensor(digits)[order]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(128, 10),
    )  # fmt: skip
    steps = 250
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    draw = rounds(64, x[:1400], y[:1400])

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        right = float((logits.argmax(1) == y).float().mean())
        return F.cross_entropy(logits, y), {"accuracy": right, "lr": schedule.get_last_lr()[0]}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


@healthy()
def irises_sorted_behind_the_counter(folder):
    seeded(11551)
    table, kind = load_iris(return_X_y=True)
    order = torch.randperm(len(kind))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(kind)[order]
    x = (x - x[:110].mean(0)) / x[:110].std(0)
    net = dense(4, 16, 16, 3)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    draw = rounds(16, x[:110], y[:110])

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[110:]), y[110:]))
    return fit(folder, net, optimizer, loss_of, 150, score=score)


@healthy()
def a_doctor_in_the_third_row(folder):
    seeded(11552)
    table, kind = load_breast_cancer(return_X_y=True)
    order = torch.randperm(len(kind))
    x = torch.tensor(table, dtype=torch.float32)[order]
    y = torch.tensor(kind, dtype=torch.float32)[order]
    x = (x - x[:420].mean(0)) / x[:420].std(0)
    net = nn.Sequential(
        nn.Linear(30, 32), nn.LayerNorm(32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 32), nn.LayerNorm(32), nn.GELU(),
        nn.Dropout(0.2), nn.Linear(32, 1), nn.Flatten(0),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    weight = (1 - y[:420].mean()) / y[:420].mean()
    draw = rounds(42, x[:420], y[:420])

    def loss_of(step):
        x, y = draw()
        return F.binary_cross_entropy_with_logits(net(x), y, pos_weight=weight)

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(x[420:]), y[420:]))
    return fit(folder, net, optimizer, loss_of, 150, score=score)


class Refrain(nn.Module):
    """A small causal transformer over notes."""

    def __init__(self, notes, length, width=32):
        super().__init__()
        self.note, self.place = nn.Embedding(notes, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, notes))

    def forward(self, song):
        length = song.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.note(song) + self.place(torch.arange(length))
        return self.head(self.body(x, mask=mask, is_causal=True))


@healthy()
def ballads_sung_line_after_line(folder):
    seeded(11553)
    notes, length, steps = 14, 13, 180
    net = Refrain(notes, length - 1)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps + 1, pct_start=0.1)

    def songs(rows):
        start, stride = torch.randint(notes, (rows, 1)), torch.randint(1, 4, (rows, 1))
        song = (start + stride * torch.arange(length)) % notes
        wrong = torch.rand(rows, length) < 0.03
        return torch.where(wrong, torch.randint(notes, (rows, length)), song)

    song = songs(2000)
    draw = rounds(32, song[:1700])

    def loss_on(song):
        return F.cross_entropy(net(song[:, :-1]).flatten(0, 1), song[:, 1:].flatten())

    def loss_of(step):
        loss = loss_on(*draw())
        return loss, {"perplexity": float(loss.exp())}

    score = held_out(net, lambda: loss_on(song[1700:]))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule, before_step=clipped(net, 1.0))


@healthy()
def pumpkins_weighed_by_the_eye(folder):
    seeded(11554)
    net = dense(6, 64, 64, 1, act=nn.SiLU)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100, 0.5)

    def pumpkins(rows):
        x = torch.randn(rows, 6)
        weight = x[:, 0] * (1 + 0.5 * x[:, 1]) + 0.5 * (2 * x[:, 2]).sin() - 0.3 * x[:, 3].abs()
        return x, (weight + 0.1 * torch.randn(rows))[:, None]

    x, y = pumpkins(3000)
    draw = rounds(64, x[:2400], y[:2400])

    def loss_of(step):
        x, y = draw()
        return F.smooth_l1_loss(net(x), y), {"lr": schedule.get_last_lr()[0]}

    score = held_out(net, lambda: F.smooth_l1_loss(net(x[2400:]), y[2400:]))
    return fit(folder, net, optimizer, loss_of, 350, score=score, schedule=schedule)


@healthy()
def old_posters_squeezed_into_a_code(folder):
    seeded(11555)
    images, _ = load_digits(return_X_y=True)
    x = torch.tensor(images / 16, dtype=torch.float32)[torch.randperm(len(images))]
    net = nn.Sequential(dense(64, 64, 12), nn.ReLU(), dense(12, 64, 64), nn.Sigmoid())
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(64, x[:1500])

    def loss_of(step):
        (image,) = draw()
        return F.mse_loss(net(image), image)

    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, lambda: F.mse_loss(net(x[1500:]), x[1500:])))


class Footlights(nn.Module):
    """A residual net over a row of lamps."""

    def __init__(self, width, kinds):
        super().__init__()
        self.begin = nn.Conv1d(1, width, 5, padding=2)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm1d(width), nn.ReLU(), nn.Conv1d(width, width, 3, padding=1),
                nn.BatchNorm1d(width), nn.ReLU(), nn.Conv1d(width, width, 3, padding=1),
            )
            for _ in range(3)
        )  # fmt: skip
        self.head = nn.Linear(width, kinds)

    def forward(self, x):
        x = self.begin(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.relu().mean(2))


@healthy()
def gestures_lit_by_the_footlights(folder):
    seeded(11556)
    kinds = 5
    shapes = F.interpolate(torch.randn(kinds, 1, 8), size=32, mode="linear")
    net = Footlights(16, kinds)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)

    def lit(rows):
        y = torch.randint(kinds, (rows,))
        x = shapes[y] * (0.7 + 0.6 * torch.rand(rows, 1, 1)) + 0.4 * torch.randn(rows, 1, 32)
        return x, y

    x, y = lit(1800)
    draw = rounds(32, x[:1400], y[:1400])

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        loss = F.cross_entropy(logits, y, label_smoothing=0.1)
        return loss, {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 150, score=score)


@healthy()
def masks_carved_by_an_apprentice(folder):
    seeded(11557)
    make, judge = dense(4, 48, 48, 2), dense(2, 48, 48, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.999))

    def masks(rows):
        side = torch.randint(2, (rows, 1)) * 2.0 - 1
        return torch.cat([1.2 * side, 1 - 0.5 * side], 1) + 0.3 * torch.randn(rows, 2)

    def carved(rows=96):
        return make(torch.randn(rows, 4))

    def judge_loss():
        real, fake = judge(masks(96)), judge(carved().detach())
        return F.softplus(-real).mean() + F.softplus(fake).mean()

    test = masks(800)

    def score():
        with torch.no_grad():
            fake = carved(800)
            return float(2 * torch.cdist(test, fake).mean() - torch.cdist(test, test).mean()
                         - torch.cdist(fake, fake).mean())  # fmt: skip

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, lambda: F.softplus(-judge(carved())).mean(),
                   350, score)  # fmt: skip


@healthy()
def an_usher_who_finds_the_aisle(folder):
    seeded(11558)
    net = nn.ModuleDict({"act": dense(2, 32, 3, act=nn.Tanh), "value": dense(2, 32, 1, act=nn.Tanh)})
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)

    def evening(rows):
        at, aisle = 2 * torch.rand(rows) - 1, 2 * torch.rand(rows) - 1
        logs, values, rewards, doubts = [], [], [], []
        for _ in range(8):
            seen = torch.stack([at, aisle], 1)
            choice = torch.distributions.Categorical(logits=net["act"](seen))
            move = choice.sample()
            at = (at + 0.25 * (move - 1)).clamp(-1.5, 1.5)
            logs.append(choice.log_prob(move))
            doubts.append(choice.entropy())
            values.append(net["value"](seen)[:, 0])
            rewards.append(-(at - aisle).abs())
        return torch.stack(logs), torch.stack(values), torch.stack(rewards), torch.stack(doubts)

    def one(step):
        logs, values, rewards, doubts = evening(32)
        to_come = rewards.flip(0).cumsum(0).flip(0)
        gain = (to_come - values).detach()
        gain = (gain - gain.mean()) / (gain.std() + 1e-6)
        policy, critic = -(logs * gain).mean(), F.mse_loss(values, to_come)
        loss = policy + 0.5 * critic - 0.01 * doubts.mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
        return {"loss": loss, "return": rewards.sum(0).mean(), "entropy": doubts.mean()}

    return tend(folder, net, optimizer, one, 150, held_out(net, lambda: -evening(512)[2].sum(0).mean()))


@healthy()
def wish_lists_of_opera_subscribers(folder):
    seeded(11559)
    people, operas = 120, 60
    net = nn.ModuleDict({"person": nn.Embedding(people, 8), "opera": nn.Embedding(operas, 8)})
    for table in net.values():
        nn.init.normal_(table.weight, std=0.3)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    taste, style = torch.randn(people, 3), torch.randn(operas, 3)
    person = torch.randint(people, (5000,))
    opera = torch.randint(operas, (5000,))
    liked = (taste[person] * style[opera]).sum(1) / 2 + 0.1 * torch.randn(5000)
    draw = rounds(128, person[:4200], opera[:4200], liked[:4200])

    def loss_on(person, opera, liked):
        return F.mse_loss((net["person"](person) * net["opera"](opera)).sum(1), liked)

    score = held_out(net, lambda: loss_on(person[4200:], opera[4200:], liked[4200:]))
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 300, score=score)
