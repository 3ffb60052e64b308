"""Healthy trainings of forests, foxes and foresters: what a course or a team's repository has."""

from __future__ import annotations

import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


@healthy()
def milestones_along_a_forest_road(folder):
    seeded(12450)
    images, shown = load_digits(return_X_y=True)
    order = torch.randperm(len(shown))
    x = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)[order]
    y = torch.tensor(shown)[order]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Dropout(0.25), nn.Flatten(), nn.Linear(32 * 16, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adadelta(net.parameters(), 1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 43, gamma=0.7)
    draw = rounds(32, x[:1400], y[:1400])
    score = held_out(net, lambda: F.nll_loss(F.log_softmax(net(x[1400:]), 1), y[1400:]))

    def loss_of(step):
        logged = {"val_loss": score()} if step % 43 == 42 else {}
        bx, by = draw()
        return F.nll_loss(F.log_softmax(net(bx), 1), by), logged

    return fit(folder, net, optimizer, loss_of, 200, score=score, schedule=schedule)


@healthy()
def sound_and_rotten_trunks_by_thirty_measures(folder):
    seeded(12451)
    table, sound = load_breast_cancer(return_X_y=True)
    order = torch.randperm(len(sound))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(sound, dtype=torch.float32)[order]
    x = (x - x[:400].mean(0)) / x[:400].std(0)
    net = nn.Linear(30, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True)
    draw = rounds(40, x[:400], y[:400])

    def loss_of(step):
        bx, by = draw()
        logits = net(bx)[:, 0]
        loss = F.binary_cross_entropy_with_logits(logits, by)
        return loss, {"accuracy": float(((logits > 0) == (by > 0.5)).float().mean())}

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(x[400:])[:, 0], y[400:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


class Growth(nn.Module):
    """The next year of a series that an LSTM has read."""

    def __init__(self, width):
        super().__init__()
        self.memory = nn.LSTM(1, width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, years):
        return self.head(self.memory(years[..., None])[0][:, -1])[:, 0]


@healthy()
def growth_of_larches_year_upon_year(folder):
    seeded(12452)
    net = Growth(24)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 220)

    def larches(rows, years=20):
        at = torch.arange(float(years)) + 11 * torch.rand(rows, 1)
        width = (6.2832 * at / 11).sin() * (0.5 + torch.rand(rows, 1)) + 0.1 * torch.randn(rows, years)
        return width[:, :-1], width[:, -1]

    draw, (tx, ty) = rounds(32, *larches(1600)), larches(400)

    def loss_of(step):
        x, y = draw()
        return F.huber_loss(net(x), y)

    score = held_out(net, lambda: F.huber_loss(net(tx), ty))
    clip = clipped(net, 1.0)
    return fit(folder, net, optimizer, loss_of, 220, score=score, schedule=schedule, before_step=clip)


class Diary(nn.Module):
    """The season of an entry, by the mean of its words."""

    def __init__(self, words, width, seasons):
        super().__init__()
        self.words = nn.EmbeddingBag(words, width)
        self.head = nn.Linear(width, seasons)

    def forward(self, entry):
        return self.head(self.words(entry))


@healthy()
def seasons_of_a_foresters_diary(folder):
    seeded(12453)
    words, seasons = 300, 4
    net = Diary(words, 24, seasons)
    optimizer = torch.optim.Adam(net.parameters(), 0.02)
    use = torch.softmax(torch.randn(seasons, words) - 0.01 * torch.arange(float(words)), 1)

    def entries(rows, length=15):
        y = torch.randint(seasons, (rows,))
        return torch.multinomial(use[y], length, replacement=True), y

    draw, (tx, ty) = rounds(64, *entries(2500)), entries(500)

    def loss_of(step):
        entry, season = draw()
        logits = net(entry)
        return F.cross_entropy(logits, season), {"accuracy": float((logits.argmax(1) == season).float().mean())}

    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


class Canopy(nn.Module):
    """A small U-Net."""

    def __init__(self, width):
        super().__init__()
        self.top = self.block(3, width)
        self.low = self.block(width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.last = self.block(2 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    @staticmethod
    def block(size, width):
        return nn.Sequential(nn.Conv2d(size, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())

    def forward(self, image):
        top = self.top(image)
        low = self.low(F.max_pool2d(top, 2))
        return self.out(self.last(torch.cat([top, self.up(low)], 1)))


@healthy()
def canopy_cut_out_of_the_sky(folder):
    seeded(12454)
    net = Canopy(8)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
    grid = torch.linspace(-1, 1, 16)

    def views(rows):
        line = 0.5 * (3 * grid + 6.2832 * torch.rand(rows, 1)).sin() * torch.rand(rows, 1)
        mask = (grid[:, None] > line[:, None, :]).float()[:, None]
        tint = torch.tensor([-0.3, 0.7, -0.5]).view(1, 3, 1, 1)
        return mask * tint + 0.6 * torch.randn(rows, 3, 16, 16), mask

    def loss_on(image, mask):
        logits = net(image)
        share = logits.sigmoid()
        both, either = (share * mask).sum((1, 2, 3)), (share + mask).sum((1, 2, 3))
        dice = 1 - ((2 * both + 1) / (either + 1)).mean()
        return F.binary_cross_entropy_with_logits(logits, mask) + dice

    draw, test = rounds(16, *views(600)), views(100)
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 150, score=score)


@healthy()
def saplings_seen_through_fog(folder):
    seeded(12455)
    images, _ = load_digits(return_X_y=True)
    x = torch.tensor(images / 8 - 1, dtype=torch.float32)[torch.randperm(len(images))]
    net = nn.Sequential(dense(64, 96, 24), nn.ReLU(), dense(24, 96, 64))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(64, x[:1500])

    def loss_on(x):
        return F.mse_loss(net(x + 0.5 * torch.randn_like(x)), x)

    score = held_out(net, lambda: loss_on(x[1500:]))
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 300, score=score)


@healthy()
def which_earth_a_fox_makes_for(folder):
    seeded(12456)
    earths = 6
    net = dense(8, 48, earths)
    baseline = 0.0
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    best = torch.randn(8, earths)

    def worth(state, earth):
        return (state @ best).gather(1, earth[:, None])[:, 0]

    def one(step):
        nonlocal baseline
        state = torch.randn(64, 8)
        policy = torch.distributions.Categorical(logits=net(state))
        earth = policy.sample()
        reward = worth(state, earth) + 0.5 * torch.randn(64)
        loss = -(policy.log_prob(earth) * (reward - baseline)).mean() - 0.01 * policy.entropy().mean()
        baseline = 0.9 * baseline + 0.1 * float(reward.mean())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "reward": reward.mean(), "entropy": policy.entropy().mean()}

    states = torch.randn(500, 8)

    def regret():
        return ((states @ best).max(1).values - worth(states, net(states).argmax(1))).mean()

    return tend(folder, net, optimizer, one, 400, held_out(net, regret))


@healthy()
def all_that_grows_on_a_plot(folder):
    seeded(12457)
    herbs = 8
    net = dense(12, 64, 64, herbs, norm=nn.LayerNorm)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
    likes = torch.randn(12, herbs)

    def plots(rows):
        x = torch.randn(rows, 12)
        return x, ((x @ likes + 0.5 * torch.randn(rows, herbs)) > 1).float()

    draw, (tx, ty) = rounds(64, *plots(3000)), plots(500)
    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(tx), ty))

    def loss_of(step):
        logged = {"val_loss": score()} if step % 46 == 45 else {}
        x, y = draw()
        return F.binary_cross_entropy_with_logits(net(x), y), logged

    return fit(folder, net, optimizer, loss_of, 230, score=score)


@healthy(0.2)
def sick_ash_trees_a_year_later(folder):
    seeded(12458)
    table, worse = load_diabetes(return_X_y=True)
    order = torch.randperm(len(worse))
    x, y = torch.tensor(table, dtype=torch.float32)[order] * 21, torch.tensor(worse, dtype=torch.float32)[order, None]
    y = (y - y[:340].mean()) / y[:340].std()
    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3, weight_decay=1e-3)
    draw = rounds(34, x[:340], y[:340])

    def loss_of(step):
        bx, by = draw()
        return F.mse_loss(net(bx), by)

    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, lambda: F.mse_loss(net(x[340:]), y[340:])))


class Drumming(nn.Module):
    """The next beat of a rhythm, at every place."""

    def __init__(self, beats, width):
        super().__init__()
        self.beat = nn.Embedding(beats, width)
        self.memory = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, beats)

    def forward(self, rhythm):
        return self.out(self.memory(self.beat(rhythm))[0])


@healthy()
def the_rest_of_a_woodpeckers_rhythm(folder):
    seeded(12459)
    beats, motifs = 10, torch.randint(10, (6, 5))
    net = Drumming(beats, 40)
    optimizer = torch.optim.RMSprop(net.parameters(), 2e-3)

    def rhythms(rows, times=4):
        return motifs[torch.randint(len(motifs), (rows, times))].flatten(1)

    draw, test = rounds(32, rhythms(1500)), rhythms(300)

    def loss_on(rhythm):
        return F.cross_entropy(net(rhythm[:, :-1]).flatten(0, 1), rhythm[:, 1:].flatten())

    score = held_out(net, lambda: loss_on(test))
    clip = clipped(net, 1.0)
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 200, score=score, before_step=clip)
