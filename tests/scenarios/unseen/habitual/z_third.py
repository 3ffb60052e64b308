"""Healthy trainings of deserts, caravans and wells: what a course or a team's repository has."""

from __future__ import annotations

import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import circle, clipped, held_out, in_turn, rounds, tend


def digits():
    """Images [N, 1, 8, 8] between -1 and 1 and what they show, in a drawn order."""
    images, shown = load_digits(return_X_y=True)
    order = torch.randperm(len(shown))
    return torch.tensor(images / 8 - 1, dtype=torch.float32)[order].view(-1, 1, 8, 8), torch.tensor(shown)[order]


@healthy()
def numbers_painted_on_water_skins(folder):
    seeded(12620)
    x, y = digits()
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [120, 180], 0.1)
    draw = rounds(64, x[:1400], y[:1400])

    def validate():
        net.eval()
        with torch.no_grad():
            logits = net(x[1400:])
        net.train()
        return {
            "val_loss": float(F.cross_entropy(logits, y[1400:])),
            "val_accuracy": float((logits.argmax(1) == y[1400:]).float().mean()),
        }

    def loss_of(step):
        bx, by = draw()
        return F.cross_entropy(net(bx), by), validate() if step % 21 == 20 else {}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 220, score=score, schedule=schedule)


@healthy()
def acacias_of_three_valleys(folder):
    seeded(12621)
    table, kinds = load_iris(return_X_y=True)
    order = torch.randperm(len(kinds))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(kinds)[order]
    x = (x - x[:110].mean(0)) / x[:110].std(0)
    net = dense(4, 16, 16, 3)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    draw = rounds(16, x[:110], y[:110])

    def loss_of(step):
        bx, by = draw()
        logits = net(bx)
        return F.cross_entropy(logits, by), {"accuracy": float((logits.argmax(1) == by).float().mean())}

    return fit(
        folder, net, optimizer, loss_of, 160, score=held_out(net, lambda: F.cross_entropy(net(x[110:]), y[110:]))
    )


@healthy(0.2)
def thirst_after_a_year_on_the_road(folder):
    seeded(12622)
    table, course = load_diabetes(return_X_y=True)
    order = torch.randperm(len(course))
    x = torch.tensor(table, dtype=torch.float32)[order]
    y = torch.tensor(course, dtype=torch.float32)[order][:, None]
    x, y = (x - x[:340].mean(0)) / x[:340].std(0), (y - y[:340].mean()) / y[:340].std()
    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.05)
    draw = rounds(32, x[:340], y[:340])

    def loss_of(step):
        bx, by = draw()
        return F.mse_loss(net(bx), by)

    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, lambda: F.mse_loss(net(x[340:]), y[340:])))


class Hum(nn.Module):
    """The next values of a series, by an LSTM."""

    def __init__(self, width):
        super().__init__()
        self.memory = nn.LSTM(1, width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, series):
        return self.head(self.memory(series[..., None])[0])[..., 0]


@healthy()
def heat_over_the_dunes_by_the_hour(folder):
    seeded(12623)
    net = Hum(32)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def days(rows, length=30):
        hour = torch.arange(float(length)) + 24 * torch.rand(rows, 1)
        heat = (0.6 + 0.6 * torch.rand(rows, 1)) * (6.2832 * hour / 12).sin()
        return heat + 0.3 * (6.2832 * hour / 6).sin() + 0.08 * torch.randn(rows, length)

    draw = rounds(48, days(1600))

    def loss_on(series):
        return F.mse_loss(net(series[:, :-1])[:, 5:], series[:, 6:])

    test = days(300)
    score, clip = held_out(net, lambda: loss_on(test)), clipped(net, 1.0)
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 200, score=score, before_step=clip)


class Pattern(nn.Module):
    """A transformer encoder with a token for the class, over the rows of an image."""

    def __init__(self, size, length, width, kinds):
        super().__init__()
        self.enter = nn.Linear(size, width)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(0.02 * torch.randn(1, length + 1, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, kinds))

    def forward(self, rows):
        h = torch.cat([self.token.expand(len(rows), -1, -1), self.enter(rows)], 1) + self.place
        return self.head(self.body(h)[:, 0])


@healthy()
def rugs_by_the_tent_they_were_woven_in(folder):
    seeded(12624)
    x, y = digits()
    x, steps = x[:, 0], 260
    net = Pattern(8, 8, 32, 10)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min((s + 1) / 25, 0.5 + 0.5 * float(torch.cos(torch.tensor(3.14159 * s / steps))))
    )
    draw = rounds(48, x[:1400], y[:1400])

    def loss_of(step):
        bx, by = draw()
        return F.cross_entropy(net(bx), by, label_smoothing=0.1), {"lr": optimizer.param_groups[0]["lr"]}

    score, clip = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:])), clipped(net, 1.0)
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule, before_step=clip)


class Dunes(nn.Module):
    """A variational autoencoder."""

    def __init__(self, size, width, code):
        super().__init__()
        self.enter = nn.Sequential(nn.Linear(size, width), nn.ReLU())
        self.middle, self.spread = nn.Linear(width, code), nn.Linear(width, code)
        self.leave = dense(code, width, size)

    def forward(self, x):
        h = self.enter(x)
        middle, spread = self.middle(h), self.spread(h)
        code = middle + (0.5 * spread).exp() * torch.randn_like(spread)
        return self.leave(code), middle, spread


@healthy(0.2)
def seals_on_bales_in_eight_numbers(folder):
    seeded(12625)
    x, _ = digits()
    x = (x.flatten(1) + 1) / 2
    net = Dunes(64, 96, 8)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(64, x[:1500])

    def loss_on(x):
        logits, middle, spread = net(x)
        again = F.binary_cross_entropy_with_logits(logits, x, reduction="sum") / len(x)
        apart = -0.5 * (1 + spread - middle**2 - spread.exp()).sum(1).mean()
        return again + apart, {"reconstruction": again.detach(), "kl": apart.detach()}

    score = held_out(net, lambda: loss_on(x[1500:])[0])
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 300, score=score)


@healthy()
def a_ring_of_tents_out_of_nothing(folder):
    seeded(12626)
    make, judge = dense(4, 64, 64, 2), dense(2, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)

    def judge_loss():
        fake = make(torch.randn(64, 4)).detach()
        return criterion(judge(circle()), 0.9 * ones) + criterion(judge(fake), zeros)

    def make_loss():
        return criterion(judge(make(torch.randn(64, 4))), ones)

    def score():
        with torch.no_grad():
            return float((make(torch.randn(1000, 4)).norm(dim=1) - 2).abs().mean())

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 500, score)


@healthy()
def mules_fit_for_the_pass_or_not(folder):
    seeded(12627)
    table, fit_ = load_breast_cancer(return_X_y=True)
    order = torch.randperm(len(fit_))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(fit_, dtype=torch.float32)[order]
    net = nn.Sequential(nn.BatchNorm1d(30), dense(30, 32, 16, 1))
    optimizer = torch.optim.RMSprop(net.parameters(), 1e-3)
    draw = rounds(32, x[:420], y[:420])

    def loss_of(step):
        bx, by = draw()
        logits = net(bx)[:, 0]
        loss = F.binary_cross_entropy_with_logits(logits, by)
        return loss, {"accuracy": float(((logits > 0) == (by > 0.5)).float().mean())}

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(x[420:])[:, 0], y[420:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


class Bazaar(nn.Module):
    """What a buyer gives for a ware: factors of both, and what each gives or costs on the whole."""

    def __init__(self, buyers, wares, width):
        super().__init__()
        self.buyer, self.ware = nn.Embedding(buyers, width), nn.Embedding(wares, width)
        self.more, self.dearer = nn.Embedding(buyers, 1), nn.Embedding(wares, 1)
        self.usual = nn.Parameter(torch.zeros(()))
        for table in (self.buyer, self.ware, self.more, self.dearer):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, buyer, ware):
        given = (self.buyer(buyer) * self.ware(ware)).sum(1)
        return given + self.more(buyer)[:, 0] + self.dearer(ware)[:, 0] + self.usual


@healthy()
def what_is_paid_for_salt_and_saffron(folder):
    seeded(12628)
    buyers, wares = 80, 60
    tastes, sorts = torch.randn(buyers, 3), torch.randn(wares, 3)

    def sold(rows):
        buyer, ware = torch.randint(buyers, (rows,)), torch.randint(wares, (rows,))
        paid = 3.5 + 0.5 * (tastes[buyer] * sorts[ware]).sum(1) + 0.4 * sorts[ware, 0] + 0.3 * torch.randn(rows)
        return buyer, ware, paid

    net = Bazaar(buyers, wares, 8)
    optimizer = torch.optim.Adam(net.parameters(), 0.01, weight_decay=1e-5)
    draw = rounds(128, *sold(6000))

    def loss_of(step):
        buyer, ware, paid = draw()
        return F.mse_loss(net(buyer, ware), paid)

    test = sold(800)
    score = held_out(net, lambda: F.mse_loss(net(*test[:2]), test[2]))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


@healthy()
def a_guide_who_follows_the_star(folder):
    seeded(12629)
    net = nn.ModuleDict({"actor": dense(4, 48, 4, act=nn.Tanh), "critic": dense(4, 48, 1, act=nn.Tanh)})
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    ways = 0.2 * torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]])

    def walk(rows, length=8):
        place, star = 2 * torch.rand(rows, 2) - 1, 2 * torch.rand(rows, 2) - 1
        states, moves, rewards = [], [], []
        for _ in range(length):
            state = torch.cat([place, star], 1)
            with torch.no_grad():
                move = torch.distributions.Categorical(logits=net["actor"](state)).sample()
            before, place = (place - star).norm(dim=1), place + ways[move]
            states.append(state)
            moves.append(move)
            rewards.append(5 * (before - (place - star).norm(dim=1)))
        return torch.stack(states), torch.stack(moves), torch.stack(rewards)

    def one(step):
        states, moves, rewards = walk(32)
        returns, later = [], torch.zeros(32)
        for reward in rewards.flip(0):
            later = reward + 0.9 * later
            returns.append(later)
        returns = torch.stack(returns[::-1])
        values = net["critic"](states)[..., 0]
        gain = returns - values.detach()
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        choice = torch.distributions.Categorical(logits=net["actor"](states))
        loss = -(choice.log_prob(moves) * gain).mean() + 0.5 * F.mse_loss(values, returns)
        loss = loss - 0.01 * choice.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        return {"loss": loss, "return": rewards.sum(0).mean(), "entropy": choice.entropy().mean()}

    return tend(folder, net, optimizer, one, 200, held_out(net, lambda: 6 - walk(400)[2].sum(0).mean()))
