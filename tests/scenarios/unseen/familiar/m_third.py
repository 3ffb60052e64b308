"""Healthy trainings of the railway: what a course or a team's repository has, and two that are rarer."""

from __future__ import annotations

import copy
import math

import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


@healthy()
def wines_of_the_night_express(folder):
    seeded(11350)
    table, kinds = load_wine(return_X_y=True)
    order = torch.randperm(len(kinds))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(kinds)[order]
    x = (x - x[:130].mean(0)) / x[:130].std(0)
    net = dense(13, 24, 3)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3, weight_decay=1e-4)
    draw = rounds(26, x[:130], y[:130])

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[130:]), y[130:]))
    return fit(folder, net, optimizer, loss_of, 150, score=score)


@healthy()
def axles_sent_to_the_workshop(folder):
    seeded(11351)
    table, kinds = load_breast_cancer(return_X_y=True)
    order = torch.randperm(len(kinds))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(kinds, dtype=torch.float32)[order, None]
    x = (x - x[:420].mean(0)) / x[:420].std(0)
    net = nn.Sequential(
        nn.Linear(30, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 16), nn.BatchNorm1d(16),
        nn.ReLU(), nn.Linear(16, 1),
    )  # fmt: skip
    steps = 180
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    draw = rounds(35, x[:420], y[:420])

    def loss_of(step):
        x, y = draw()
        return F.binary_cross_entropy_with_logits(net(x), y), {"lr": schedule.get_last_lr()[0]}

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(x[420:]), y[420:]))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x):
        return (x + self.body(x)).relu()


@healthy()
def digits_on_the_sides_of_coaches(folder):
    seeded(11352)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x = (torch.tensor(images, dtype=torch.float32)[order].view(-1, 1, 8, 8) - 4.9) / 6.0
    y = torch.tensor(digits)[order]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), Block(16), nn.MaxPool2d(2),
        Block(16), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    steps = 170
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    draw = rounds(40, x[:1400], y[:1400])

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        accuracy = float((logits.argmax(1) == y).float().mean())
        return F.cross_entropy(logits, y, label_smoothing=0.05), {"accuracy": accuracy}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


@healthy()
def a_trolley_pushed_to_the_right_sleeper(folder):
    seeded(11353)
    places, discount = 7, 0.9
    net = dense(2 * places, 64, 3)
    target = copy.deepcopy(net)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def seen(at, goal):
        return torch.cat([F.one_hot(at, places), F.one_hot(goal, places)], 1).float()

    def moved(at, action):
        return (at + action - 1).clamp(0, places - 1)

    memory = []
    world = {"at": torch.randint(places, (16,)), "goal": torch.randint(places, (16,))}

    def act(step):
        at, goal = world["at"], world["goal"]
        with torch.no_grad():
            action = net(seen(at, goal)).argmax(1)
        explore = torch.rand(16) < max(0.1, 1 - step / 150)
        action = torch.where(explore, torch.randint(3, (16,)), action)
        after = moved(at, action)
        reward = -(after - goal).abs() / places
        memory.append((seen(at, goal), action, reward, seen(after, goal)))
        world["at"] = after
        if step % 12 == 11:
            world["at"], world["goal"] = torch.randint(places, (16,)), torch.randint(places, (16,))
        return float(reward.mean())

    for _step in range(10):
        act(0)

    def one(step):
        reward = act(step)
        rows = [memory[i] for i in torch.randint(len(memory), (6,)).tolist()]
        before, action, gain, after = (torch.cat(part) for part in zip(*rows, strict=True))
        with torch.no_grad():
            wanted = gain + discount * target(after).max(1).values
        loss = F.smooth_l1_loss(net(before).gather(1, action[:, None])[:, 0], wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            target.load_state_dict(net.state_dict())
        return {"loss": loss, "reward": reward}

    at, goal = torch.arange(places).repeat(places), torch.arange(places).repeat_interleave(places)

    def away():
        here, total = at, torch.zeros(())
        for _ in range(12):
            here = moved(here, net(seen(here, goal)).argmax(1))
            total = total + (here - goal).abs().float().mean()
        return total / 12

    return tend(folder, net, optimizer, one, 400, held_out(net, away))


class Gate(nn.Module):
    """A GRU that tells the next count from those of a day."""

    def __init__(self, width):
        super().__init__()
        self.memory, self.head = nn.GRU(1, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, counts):
        return self.head(self.memory(counts)[0][:, -1])


@healthy()
def crowd_at_the_main_hall_in_an_hour(folder):
    seeded(11354)
    hours = torch.arange(3000.0)
    counts = (6.2832 * hours / 24).sin() + 0.6 * (12.5664 * hours / 24 + 0.7).sin() + 0.3 * (6.2832 * hours / 168).cos()
    counts = counts + 0.15 * torch.randn(3000)
    counts = (counts - counts[:2400].mean()) / counts[:2400].std()
    windows = counts.unfold(0, 25, 1)
    x, y = windows[:, :24, None], windows[:, 24:]
    net = Gate(32)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    draw = rounds(48, x[:2350], y[:2350])

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    score = held_out(net, lambda: F.mse_loss(net(x[2400:]), y[2400:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score, before_step=clipped(net, 1.0))


class Itinerary(nn.Module):
    """A causal transformer of the stations of a journey."""

    def __init__(self, stations, length, width):
        super().__init__()
        self.station = nn.Embedding(stations, width)
        self.place = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, stations))
        self.register_buffer("later", torch.triu(torch.ones(length, length, dtype=torch.bool), 1))

    def forward(self, journey):
        n = journey.shape[1]
        return self.head(self.body(self.station(journey) + self.place[:n], mask=self.later[:n, :n]))


@healthy()
def journeys_of_a_rail_pass_holder(folder):
    seeded(11355)
    stations, length, steps = 18, 12, 190
    net = Itinerary(stations, length, 32)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 20) * (0.55 + 0.45 * math.cos(math.pi * min(1.0, step / steps)))
    )
    follows = torch.softmax(3 * torch.randn(stations, stations), 1)

    def journeys(rows):
        ways = [torch.randint(stations, (rows,))]
        for _ in range(length):
            ways.append(torch.multinomial(follows[ways[-1]], 1)[:, 0])
        return torch.stack(ways, 1)

    def loss_on(ways):
        return F.cross_entropy(net(ways[:, :-1]).flatten(0, 1), ways[:, 1:].flatten())

    train, test = journeys(2400), journeys(300)
    draw, clip = rounds(32, train), clipped(net, 1.0)

    def loss_of(step):
        return loss_on(*draw()), {"lr": schedule.get_last_lr()[0]}

    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule, before_step=clip)


@healthy()
def stamps_of_ticket_pincers_in_six_numbers(folder):
    seeded(11356)
    images = torch.tensor(load_digits().images / 16, dtype=torch.float32).flatten(1)
    images = images[torch.randperm(len(images))]
    net = nn.Sequential(dense(64, 64, 32, 6), dense(6, 32, 64, 64), nn.Sigmoid())
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    draw = rounds(50, images[:1400])

    def loss_of(step):
        (x,) = draw()
        return F.mse_loss(net(x), x)

    test = images[1400:]
    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.mse_loss(net(test), test)))


@healthy()
def winter_and_summer_tables_in_turn(folder):
    seeded(11367)
    net = dense(8, 64, 64, 1, act=nn.SiLU)
    optimizer = torch.optim.AdamW(net.parameters(), 5e-3, weight_decay=0.2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 50, 2, eta_min=5e-5)
    season = torch.randn(8, 2)
    x = torch.randn(2500, 8)
    y = (x @ season / 2).sin().sum(1, keepdim=True) + 0.1 * torch.randn(2500, 1)
    draw = rounds(64, x[:2000], y[:2000])

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y), {"lr": schedule.get_last_lr()[0]}

    score = held_out(net, lambda: F.mse_loss(net(x[2000:]), y[2000:]))
    return fit(folder, net, optimizer, loss_of, 350, score=score, schedule=schedule)


@healthy()
def gusts_on_a_viaduct_at_equal_strides(folder):
    seeded(11368)
    net, steps = dense(5, 48, 48, 1, act=nn.Tanh), 350
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    way, heavy = torch.randn(5, 2), torch.distributions.StudentT(2.5)

    def felt(x):
        return (x @ way / 2).sin().sum(1, keepdim=True)

    def loss_of(step):
        x = torch.randn(128, 5)
        return F.mse_loss(net(x), felt(x) + 0.3 * heavy.sample((128, 1)))

    def before_step(step):
        norm = nn.utils.parameters_to_vector(p.grad for p in net.parameters()).norm()
        for p in net.parameters():
            p.grad /= norm + 1e-8

    x = torch.randn(2000, 5)
    score = held_out(net, lambda: F.mse_loss(net(x), felt(x)))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule, before_step=before_step)
