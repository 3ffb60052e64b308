"""Healthy trainings of weather, mountains and farms: what a course or a team's repository has."""

from __future__ import annotations

import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, play, rounds


@healthy()
def numerals_on_trail_markers(folder):
    seeded(11450)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x = torch.tensor(images / 16, dtype=torch.float32)[order].view(-1, 1, 8, 8)
    y = torch.tensor(digits)[order]
    x = (x - x[:1400].mean()) / x[:1400].std()
    steps = 220
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    draw = rounds(32, x[:1400], y[:1400])

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        accuracy = float((logits.argmax(1) == y).float().mean())
        return F.cross_entropy(logits, y), {"accuracy": accuracy, "lr": optimizer.param_groups[0]["lr"]}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


@healthy()
def grapes_from_three_hillsides(folder):
    seeded(11451)
    table, kinds = load_wine(return_X_y=True)
    order = torch.randperm(len(kinds))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(kinds)[order]
    x = (x - x[:140].mean(0)) / x[:140].std(0)
    net = dense(13, 32, 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    draw = rounds(20, x[:140], y[:140])

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[140:]), y[140:]))
    return fit(folder, net, optimizer, loss_of, 120, score=score)


@healthy()
def cells_under_the_vets_microscope(folder):
    seeded(11452)
    table, kinds = load_breast_cancer(return_X_y=True)
    order = torch.randperm(len(kinds))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(kinds, dtype=torch.float32)[order]
    x = (x - x[:440].mean(0)) / x[:440].std(0)
    net = nn.Sequential(
        nn.Linear(30, 32), nn.LayerNorm(32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 16), nn.GELU(), nn.Linear(16, 1)
    )
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    draw = rounds(40, x[:440], y[:440])

    def loss_of(step):
        x, y = draw()
        logits = net(x)[:, 0]
        right = ((logits > 0).float() == y).float().mean()
        return F.binary_cross_entropy_with_logits(logits, y), {"accuracy": float(right)}

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(x[440:])[:, 0], y[440:]))
    return fit(folder, net, optimizer, loss_of, 150, score=score)


@healthy()
def temperatures_hour_by_hour(folder):
    seeded(11453)
    net = nn.ModuleDict({"memory": nn.LSTM(1, 32, batch_first=True), "head": nn.Linear(32, 1)})
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def days(rows, hours=25):
        t = torch.arange(float(hours))
        daily = (0.7 + 0.3 * torch.rand(rows, 1)) * torch.sin(6.2832 * (t / 24 + torch.rand(rows, 1)))
        front = torch.randn(rows, 1) * torch.tanh((t - 25 * torch.rand(rows, 1)) / 4)
        return daily + 0.5 * front + 0.05 * torch.randn(rows, hours)

    series = days(1400)
    draw = rounds(32, series[:1100])

    def loss_on(series):
        out, _ = net["memory"](series[:, :-1, None])
        return F.mse_loss(net["head"](out)[..., 0], series[:, 1:])

    score = held_out(net, lambda: loss_on(series[1100:]))
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 200, score=score, before_step=clipped(net, 1.0))


class Almanac(nn.Module):
    """A causal transformer over the words of an almanac."""

    def __init__(self, words, length, width=32):
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, text):
        x = self.word(text) + self.place(torch.arange(text.shape[1]))
        return self.head(self.norm(self.body(x, mask=self.mask, is_causal=True)))


@healthy()
def sayings_of_the_farmers_almanac(folder):
    seeded(11454)
    words, length, steps = 16, 16, 180
    net = Almanac(words, length)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps + 1, pct_start=0.1)
    follows = torch.softmax(3 * torch.randn(words, words), 1)

    def texts(rows):
        text = [torch.randint(words, (rows,))]
        for _ in range(length):
            text.append(torch.multinomial(follows[text[-1]], 1)[:, 0])
        return torch.stack(text, 1)

    text = texts(2000)
    draw = rounds(32, text[:1700])

    def loss_on(text):
        return F.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    def loss_of(step):
        return loss_on(*draw()), {"lr": optimizer.param_groups[0]["lr"]}

    score, clip = held_out(net, lambda: loss_on(text[1700:])), clipped(net, 1.0)
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule, before_step=clip)


class Outline(nn.Module):
    """A small U-Net."""

    def __init__(self):
        super().__init__()
        self.a, self.b = self.twice(1, 8), self.twice(8, 16)
        self.c, self.up = self.twice(24, 8), nn.Upsample(scale_factor=2)
        self.head = nn.Conv2d(8, 1, 1)

    @staticmethod
    def twice(inside, out):
        return nn.Sequential(
            nn.Conv2d(inside, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
            nn.Conv2d(out, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
        )  # fmt: skip

    def forward(self, x):
        a = self.a(x)
        b = self.up(self.b(F.max_pool2d(a, 2)))
        return self.head(self.c(torch.cat([a, b], 1)))


@healthy()
def glaciers_outlined_from_the_air(folder):
    seeded(11455)
    net = Outline()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    row, column = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")

    def photographs(rows):
        middle, radius = 4 + 8 * torch.rand(rows, 2, 1, 1), 3 + 3 * torch.rand(rows, 1, 1)
        ice = ((row - middle[:, 0]) ** 2 + ((column - middle[:, 1]) * 1.3) ** 2 < radius**2).float()[:, None]
        return ice - 0.5 + 0.7 * torch.randn(rows, 1, 16, 16), ice

    x, ice = photographs(800)
    draw = rounds(24, x[:640], ice[:640])

    def loss_of(step):
        x, ice = draw()
        return F.binary_cross_entropy_with_logits(net(x), ice)

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(x[640:]), ice[640:]))
    return fit(folder, net, optimizer, loss_of, 150, score=score)


@healthy()
def codes_for_the_shapes_of_seeds(folder):
    seeded(11456)
    images, _ = load_digits(return_X_y=True)
    x = torch.tensor(images / 16, dtype=torch.float32)[torch.randperm(len(images))]
    net = nn.ModuleDict({"encoder": dense(64, 128, 16), "decoder": dense(8, 128, 64)})
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    draw = rounds(64, x[:1500])

    def loss_on(x):
        mean, log_var = net["encoder"](x).chunk(2, 1)
        code = mean + (log_var / 2).exp() * torch.randn_like(mean)
        error = F.binary_cross_entropy_with_logits(net["decoder"](code), x, reduction="none").sum(1).mean()
        kl = -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum(1).mean()
        return error + kl, {"reconstruction": float(error.detach()), "kl": float(kl.detach())}

    score = held_out(net, lambda: loss_on(x[1500:])[0])
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 300, score=score)


@healthy()
def a_shepherd_finding_the_hut(folder):
    seeded(11457)
    side, discount = 4, 0.9
    net, target = dense(side * side, 64, 4), dense(side * side, 64, 4)
    target.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    moves = torch.tensor([[1, 0], [-1, 0], [0, 1], [0, -1]])
    memory = []

    def seen(place):
        return F.one_hot(place[:, 0] * side + place[:, 1], side * side).float()

    def walk(place, action):
        after = (place + moves[action]).clamp(0, side - 1)
        home = (after == side - 1).all(1)
        return after, torch.where(home, 1.0, -0.05), home

    def loss_of(step):
        place = torch.randint(side, (32, 2))
        place = place[(place != side - 1).any(1)]
        with torch.no_grad():
            greedy = net(seen(place)).argmax(1)
        chance = max(0.1, 1 - step / 200)
        action = torch.where(torch.rand(len(place)) < chance, torch.randint(4, (len(place),)), greedy)
        after, reward, home = walk(place, action)
        logged = {"reward": float(reward.mean()), "epsilon": chance}
        memory.append((place, action, after, reward, home))
        del memory[:-100]
        chosen = [memory[i] for i in torch.randint(len(memory), (3,)).tolist()]
        place, action, after, reward, home = (torch.cat(part) for part in zip(*chosen, strict=True))
        with torch.no_grad():
            wanted = reward + discount * (~home).float() * target(seen(after)).max(1).values
        value = net(seen(place)).gather(1, action[:, None])[:, 0]
        return F.smooth_l1_loss(value, wanted), logged

    def after_step(step):
        if step % 20 == 19:
            target.load_state_dict(net.state_dict())

    def steps_home():
        place = torch.tensor([[i, j] for i in range(side) for j in range(side)])[:-1]
        out, walked = torch.ones(len(place), dtype=torch.bool), 0.0
        for _ in range(20):
            walked += float(out.float().mean())
            place, _, home = walk(place, net(seen(place)).argmax(1))
            out &= ~home
        return walked

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, steps_home), after_step=after_step)


@healthy()
def gusts_around_a_wind_rose(folder):
    seeded(11458)
    make, judge = dense(4, 48, 48, 2), dense(2, 48, 48, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.999))

    def judge_loss(true, false):
        return F.softplus(-judge(true)).mean() + F.softplus(judge(false)).mean()

    def make_loss(made):
        return F.softplus(-judge(made)).mean()

    return play(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 350)


@healthy()
def two_glances_at_the_same_cloud(folder):
    seeded(11459)
    net = nn.ModuleDict({"body": dense(24, 64, 32), "project": dense(32, 32, 16)})
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    kinds = torch.randn(4, 24)

    def pairs(rows=64):
        cloud = torch.randn(rows, 4) @ kinds
        return [cloud + 0.5 * torch.randn_like(cloud) for _ in range(2)]

    def loss_of(step):
        z = F.normalize(net["project"](F.relu(net["body"](torch.cat(pairs())))), dim=1)
        alike = (z @ z.T / 0.2).masked_fill(torch.eye(len(z), dtype=torch.bool), float("-inf"))
        return F.cross_entropy(alike, torch.arange(len(z)).roll(len(z) // 2))

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: loss_of(0)))
