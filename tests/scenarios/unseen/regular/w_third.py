"""Healthy trainings of bicycles, roads and city traffic: what a course or a team's repository has."""

from __future__ import annotations

import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, in_turn, rounds, tend


def shuffled(table, target):
    """Both in one drawn order, as float32 columns and as they are."""
    order = torch.randperm(len(target))
    return torch.tensor(table, dtype=torch.float32)[order], torch.tensor(target)[order]


@healthy()
def licence_plates_of_delivery_bikes(folder):
    seeded(12350)
    x, y = shuffled(*load_digits(return_X_y=True))
    x = (x / 16).view(-1, 1, 8, 8)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Dropout(0.25), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    draw = rounds(64, x[:1400], y[:1400])

    def loss_of(step):
        bx, by = draw()
        logits = net(bx)
        logged = {"accuracy": float((logits.argmax(1) == by).float().mean())}
        if step % 50 == 0:
            net.eval()
            with torch.no_grad():
                logged["val_accuracy"] = float((net(x[1400:]).argmax(1) == y[1400:]).float().mean())
            net.train()
        return F.cross_entropy(logits, by), logged

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


@healthy()
def brake_pads_from_three_workshops(folder):
    seeded(12351)
    x, y = shuffled(*load_wine(return_X_y=True))
    x = (x - x[:130].mean(0)) / x[:130].std(0)
    net = dense(13, 24, 24, 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True)
    draw = rounds(16, x[:130], y[:130])

    def loss_of(step):
        bx, by = draw()
        return F.cross_entropy(net(bx), by)

    score = held_out(net, lambda: F.cross_entropy(net(x[130:]), y[130:]))
    return fit(folder, net, optimizer, loss_of, 160, score=score)


@healthy(0.2)
def strain_of_a_climb_by_ten_measures(folder):
    seeded(12352)
    x, y = shuffled(*load_diabetes(return_X_y=True))
    x, y = (x - x[:350].mean(0)) / x[:350].std(0), y.float()[:, None]
    y = (y - y[:350].mean()) / y[:350].std()
    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    draw = rounds(32, x[:350], y[:350])

    def loss_of(step):
        bx, by = draw()
        return F.mse_loss(net(bx), by)

    score = held_out(net, lambda: F.mse_loss(net(x[350:]), y[350:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


class Counts(nn.Module):
    """The next hour of a counting station, by an LSTM of two layers."""

    def __init__(self, width):
        super().__init__()
        self.lstm = nn.LSTM(1, width, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(width, 1)

    def forward(self, hours):
        return self.head(self.lstm(hours[..., None])[0][:, -1])[:, 0]


@healthy()
def riders_past_a_counting_post(folder):
    seeded(12353)
    net = Counts(24)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def weeks(rows, length=25):
        hour = torch.arange(float(length)) + 24 * torch.rand(rows, 1)
        flow = (6.2832 * hour / 24).sin() + 0.6 * (6.2832 * hour / 12).cos()
        flow = (0.5 + torch.rand(rows, 1)) * flow + 0.1 * torch.randn(rows, length)
        return flow[:, :-1], flow[:, -1]

    draw = rounds(64, *weeks(1500))

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    tx, ty = weeks(400)
    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 180, score=score, before_step=clipped(net, 1.0))


@healthy()
def tyres_worn_or_fit_for_another_season(folder):
    seeded(12354)
    x, y = shuffled(*load_breast_cancer(return_X_y=True))
    x = (x - x[:420].mean(0)) / x[:420].std(0)
    y = y.float()
    net = dense(30, 32, 16, 1, norm=nn.BatchNorm1d)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, weight_decay=1e-4)
    draw = rounds(32, x[:420], y[:420])
    criterion = nn.BCEWithLogitsLoss()

    def loss_of(step):
        bx, by = draw()
        return criterion(net(bx)[:, 0], by)

    score = held_out(net, lambda: criterion(net(x[420:])[:, 0], y[420:]))
    return fit(folder, net, optimizer, loss_of, 180, score=score)


class Lanes(nn.Module):
    """A mask of a view, by an encoder, a decoder and one shortcut."""

    def __init__(self, width):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.down = nn.Sequential(nn.Conv2d(width, 2 * width, 3, 2, 1), nn.BatchNorm2d(2 * width), nn.ReLU())
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.out = nn.Conv2d(2 * width, 1, 1)

    def forward(self, view):
        fine = self.first(view)
        return self.out(torch.cat([fine, self.up(self.down(fine))], 1))


@healthy()
def cycle_lanes_painted_on_asphalt(folder):
    seeded(12355)
    net = Lanes(8)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    grid = torch.linspace(-1, 1, 16)

    def views(rows):
        slope, shift = torch.rand(2, rows, 1, 1) - 0.5
        mask = ((grid - slope * grid[:, None] - shift).abs() < 0.2).float()[:, None]
        return mask + 0.5 * torch.randn(rows, 1, 16, 16), mask

    draw = rounds(24, *views(1000))

    def loss_of(step):
        view, mask = draw()
        return F.binary_cross_entropy_with_logits(net(view), mask)

    tx, ty = views(200)
    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 150, score=score)


class Report(nn.Module):
    """The kind of a short message by the mean of its words' embeddings, padding left out."""

    def __init__(self, words, width, kinds):
        super().__init__()
        self.embed = nn.Embedding(words, width, padding_idx=0)
        self.out = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, kinds))

    def forward(self, text):
        there = (text > 0).float()[..., None]
        return self.out((self.embed(text) * there).sum(1) / there.sum(1))


@healthy()
def complaints_sent_to_the_road_office(folder):
    seeded(12356)
    words, kinds, longest = 200, 5, 16
    net = Report(words, 32, kinds)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    usage = (2 * torch.randn(kinds, words - 1)).softmax(1)

    def messages(rows):
        y = torch.randint(kinds, (rows,))
        text = 1 + torch.multinomial(usage[y], longest, replacement=True)
        return text * (torch.arange(longest) < torch.randint(4, longest + 1, (rows, 1))), y

    draw = rounds(32, *messages(1500))

    def loss_of(step):
        text, kind = draw()
        return F.cross_entropy(net(text), kind)

    tx, ty = messages(400)
    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


@healthy()
def potholes_placed_at_random_by_a_forger(folder):
    seeded(12357)
    make, judge = dense(4, 48, 48, 2), dense(2, 48, 48, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.999))
    turn = torch.tensor([[1.0, 0.6], [0.0, 0.5]])

    def real(rows=64):
        return torch.randn(rows, 2) @ turn + torch.tensor([1.0, -0.5])

    def judge_loss():
        fake = make(torch.randn(64, 4)).detach()
        return F.softplus(-judge(real())).mean() + F.softplus(judge(fake)).mean()

    def make_loss():
        return F.softplus(-judge(make(torch.randn(64, 4)))).mean()

    def score():
        with torch.no_grad():
            x, r = make(torch.randn(800, 4)), real(800)
            return float((x.mean(0) - r.mean(0)).norm() + (x.T.cov() - r.T.cov()).norm())

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 300, score)


@healthy()
def a_traffic_light_that_counts_the_queue(folder):
    seeded(12358)
    net = dense(2, 32, 2, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def hour(rows, times=12):
        queues = 3 * torch.rand(rows, 2)
        logs, rewards = [], []
        for _ in range(times):
            policy = torch.distributions.Categorical(logits=net(queues - 1.5))
            green = policy.sample()
            queues = (queues - 1.2 * F.one_hot(green, 2) + torch.rand(rows, 2)).clamp(0, 5)
            logs.append(policy.log_prob(green))
            rewards.append(-queues.square().sum(1) / 5)
        return torch.stack(logs), torch.stack(rewards)

    def one(step):
        logs, rewards = hour(32)
        returns = torch.stack([(rewards[t:] * 0.8 ** torch.arange(12.0 - t)[:, None]).sum(0) for t in range(12)])
        weight = (returns - returns.mean(1, keepdim=True)) / (returns.std(1, keepdim=True) + 1e-6)
        loss = -(logs * weight).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "reward": rewards.mean()}

    return tend(folder, net, optimizer, one, 120, held_out(net, lambda: -hour(400)[1].mean()))


@healthy()
def routes_home_named_by_a_transformer(folder):
    seeded(12359)
    kinds, length, width, steps = 4, 14, 32, 220
    layer = nn.TransformerEncoderLayer(width, 4, 64, 0.1, batch_first=True, norm_first=True)
    net = nn.ModuleDict({
        "enter": nn.Linear(2, width),
        "body": nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        "out": nn.Linear(width, kinds),
    })  # fmt: skip
    place = nn.Parameter(0.02 * torch.randn(length, width))
    net.register_parameter("place", place)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    rise = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 20)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - 20)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [rise, fall], [20])
    bend = torch.tensor([-0.25, -0.08, 0.08, 0.25])

    def routes(rows):
        y = torch.randint(kinds, (rows,))
        angle = 6.2832 * torch.rand(rows, 1) + bend[y][:, None] * torch.arange(float(length))
        step = torch.stack([angle.cos(), angle.sin()], 2)
        return step + 0.3 * torch.randn(rows, length, 2), y

    def says(route):
        return net["out"](net["body"](net["enter"](route) + place).mean(1))

    draw = rounds(48, *routes(2000))

    def loss_of(step):
        route, kind = draw()
        return F.cross_entropy(says(route), kind), {"lr": optimizer.param_groups[0]["lr"]}

    tx, ty = routes(400)
    score = held_out(net, lambda: F.cross_entropy(says(tx), ty))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule, before_step=clipped(net, 1.0))
