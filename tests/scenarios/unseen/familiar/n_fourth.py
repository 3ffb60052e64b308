"""Healthy trainings of weather, mountains and farms: ordinary ones, and others that are unusual but sound."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_digits, load_wine
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


@healthy()
def spread_of_a_calibrated_thermometer(folder):
    seeded(11460)
    kinds = 3
    net = dense(2, 48, 48, 3 * kinds, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def readings(rows):
        x = torch.rand(rows, 2) * 2 - 1
        spread = 0.02 + 0.03 * x[:, 1].abs()
        side = torch.where(torch.rand(rows) < 0.5, 1.0, -1.0)
        return x, 0.3 * side + 0.4 * torch.sin(3 * x[:, 0]) + spread * torch.randn(rows)

    def loss_on(x, y):
        weight, middle, spread = net(x).chunk(3, 1)
        parts = torch.distributions.Normal(middle, F.softplus(spread) + 1e-3)
        mixture = torch.distributions.MixtureSameFamily(torch.distributions.Categorical(logits=weight), parts)
        return -mixture.log_prob(y).mean()

    x, y = readings(4000)
    draw = rounds(128, x, y)
    test = readings(1000)
    score, clip = held_out(net, lambda: loss_on(*test)), clipped(net, 5.0)
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 250, score=score, before_step=clip)


@healthy(0.25)
def a_glider_among_fickle_thermals(folder):
    seeded(11461)
    net = nn.ModuleDict({"actor": dense(4, 48, 4, act=nn.Tanh), "critic": dense(4, 48, 1, act=nn.Tanh)})
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    lift = torch.randn(4, 4)

    def rise(sky):
        return torch.tanh(sky @ lift)

    def loss_of(step):
        sky = torch.randn(64, 4)
        policy = torch.distributions.Categorical(logits=net["actor"](sky))
        action = policy.sample()
        reward = rise(sky).gather(1, action[:, None])[:, 0] + 1.5 * torch.randn(64)
        value = net["critic"](sky)[:, 0]
        advantage = (reward - value).detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        chosen = -(policy.log_prob(action) * advantage).mean()
        loss = chosen + 0.5 * F.mse_loss(value, reward) - 0.01 * policy.entropy().mean()
        return loss, {"return": float(reward.mean()), "entropy": float(policy.entropy().mean().detach())}

    sky = torch.randn(2000, 4)

    def missed():
        best = rise(sky).max(1).values
        return (best - (net["actor"](sky).softmax(1) * rise(sky)).sum(1)).mean()

    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, missed), before_step=clipped(net, 0.5))


@healthy()
def winter_numbers_learnt_from_summer_ones(folder):
    seeded(11462)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x = torch.tensor(images / 8 - 1, dtype=torch.float32)[order].view(-1, 1, 8, 8)
    y = torch.tensor(digits)[order]
    early = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
    late = nn.Sequential(nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten())
    summer = nn.Sequential(early, late, nn.Linear(512, 5))
    before = torch.optim.Adam(summer.parameters(), 2e-3)
    draw = rounds(32, x[y < 5], y[y < 5])
    for _ in range(100):
        images, kinds = draw()
        before.zero_grad()
        F.cross_entropy(summer(images), kinds).backward()
        before.step()

    for parameter in early.parameters():
        parameter.requires_grad_(False)
    net = nn.Sequential(early.eval(), late, nn.Linear(512, 5))
    optimizer = torch.optim.AdamW(
        [{"params": late.parameters(), "lr": 5e-5}, {"params": net[2].parameters(), "lr": 2e-3}], weight_decay=0.01
    )
    x, y = x[y >= 5], y[y >= 5] - 5
    draw = rounds(32, x[:650], y[:650])

    def loss_of(step):
        x, y = draw()
        early.eval()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[650:]), y[650:]))
    return fit(folder, net, optimizer, loss_of, 150, score=score)


@healthy()
def cellars_judged_all_at_once(folder):
    seeded(11463)
    table, kinds = load_wine(return_X_y=True)
    order = torch.randperm(len(kinds))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(kinds)[order]
    x = (x - x[:130].mean(0)) / x[:130].std(0)
    net = nn.Linear(13, 3)
    optimizer = torch.optim.LBFGS(net.parameters(), lr=1.0, max_iter=4, line_search_fn="strong_wolfe")

    def loss_of(step):
        return F.cross_entropy(net(x[:130]), y[:130]) + 0.01 * net.weight.square().sum()

    score = held_out(net, lambda: F.cross_entropy(net(x[130:]), y[130:]))
    return fit(folder, net, optimizer, loss_of, 25, score=score, closure=True)


@healthy()
def lightning_by_hill_and_hour(folder):
    seeded(11464)
    hills, hours = 60, 80
    net = nn.ModuleDict({"hill": nn.Embedding(hills, 6, sparse=True), "hour": nn.Embedding(hours, 6, sparse=True)})
    for table in net.values():
        nn.init.normal_(table.weight, std=0.3)
    optimizer = torch.optim.SparseAdam(net.parameters(), lr=0.02)
    rate = (0.9 * torch.randn(hills, 3) @ torch.randn(3, hours) + 0.5).clamp(max=3.0).exp()
    hill, hour = (part.flatten() for part in torch.meshgrid(torch.arange(hills), torch.arange(hours), indexing="ij"))
    order = torch.randperm(len(hill))
    hill, hour = hill[order], hour[order]
    count = torch.poisson(rate[hill, hour])
    draw = rounds(256, hill[:4200], hour[:4200], count[:4200])

    def loss_on(hill, hour, count):
        return F.poisson_nll_loss((net["hill"](hill) * net["hour"](hour)).sum(1), count, full=True, reduction="sum")

    score = held_out(net, lambda: loss_on(hill[4200:], hour[4200:], count[4200:]))
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 350, score=score)


@healthy()
def brands_read_through_driving_sleet(folder):
    seeded(11465)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x, y = torch.tensor(images / 16, dtype=torch.float32)[order], torch.tensor(digits)[order]
    net = dense(64, 128, 64, 10)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(64, x[:1400], y[:1400])

    def worst(x, y, reach=0.1, times=3):
        moved = (x + reach * (2 * torch.rand_like(x) - 1)).clamp(0, 1)
        for _ in range(times):
            moved.requires_grad_(True)
            with torch.enable_grad():
                (slope,) = torch.autograd.grad(F.cross_entropy(net(moved), y), moved)
            moved = (x + (moved.detach() + 0.05 * slope.sign() - x).clamp(-reach, reach)).clamp(0, 1)
        return moved

    def loss_of(step):
        x, y = draw()
        logits = net(worst(x, y))
        return F.cross_entropy(logits, y), {"robust_accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(worst(x[1400:], y[1400:])), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 250, score=score)


@healthy()
def a_year_of_tides_of_warmth(folder):
    seeded(11466)
    net = dense(5, 64, 64, 1, act=nn.SiLU)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=50, T_mult=2, eta_min=1e-4)

    def days(rows):
        x = torch.randn(rows, 5)
        return x, (x[:, :1] * x[:, 1:2] + torch.sin(2 * x[:, 2:3]) + 0.5 * x[:, 3:4]) / 1.4 + 0.1 * torch.randn(rows, 1)

    x, y = days(4000)
    draw = rounds(64, x, y)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y), {"lr": optimizer.param_groups[0]["lr"]}

    tx, ty = days(1000)
    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 350, score=score, schedule=schedule)


class Diary(nn.Module):
    """A recurrent model of the next word, with its embedding tied to its output."""

    def __init__(self, words, width):
        super().__init__()
        self.word, self.memory = nn.Embedding(words, width), nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, words)
        self.head.weight = self.word.weight
        nn.init.uniform_(self.word.weight, -0.1, 0.1)
        nn.init.zeros_(self.head.bias)

    def forward(self, text, state):
        out, state = self.memory(self.word(text), state)
        return self.head(out), state


@healthy()
def diary_of_an_alpine_warden(folder):
    seeded(11467)
    words, width, rows, length = 20, 48, 20, 20
    net = Diary(words, width)
    optimizer = torch.optim.SGD(net.parameters(), 20.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100, 0.25)
    follows = torch.softmax(3 * torch.randn(words, words), 1)

    def diary(rows, length):
        text = [torch.randint(words, (rows,))]
        for _ in range(length):
            text.append(torch.multinomial(follows[text[-1]], 1)[:, 0])
        return torch.stack(text, 1)

    text, test = diary(rows, 6000), diary(200, 30)
    state = [None]

    def loss_of(step):
        begin = step * length
        logits, after = net(text[:, begin : begin + length], state[0])
        state[0] = tuple(part.detach() for part in after)
        return F.cross_entropy(logits.flatten(0, 1), text[:, begin + 1 : begin + length + 1].flatten())

    score = held_out(net, lambda: F.cross_entropy(net(test[:, :-1], None)[0].flatten(0, 1), test[:, 1:].flatten()))
    clip = clipped(net, 0.25)
    return fit(folder, net, optimizer, loss_of, 300, score=score, schedule=schedule, before_step=clip)


@healthy()
def first_bell_of_a_returning_herd(folder):
    seeded(11468)
    bells, steps = 5, 350
    net = nn.ModuleDict({"memory": nn.GRU(bells, 48, batch_first=True), "head": nn.Linear(48, bells)})
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)

    def loss_on(length, rows=32):
        heard = torch.randint(bells, (rows, length))
        out, _ = net["memory"](F.one_hot(heard, bells).float())
        return F.cross_entropy(net["head"](out[:, -1]), heard[:, 0])

    def loss_of(step):
        length = 2 + min(12, 14 * step // steps)
        return loss_on(length), {"length": length}

    score, clip = held_out(net, lambda: loss_on(14, 512)), clipped(net, 1.0)
    return fit(folder, net, optimizer, loss_of, steps, score=score, before_step=clip)


class Wave(nn.Module):
    """A linear layer and a sine, begun as in SIREN."""

    def __init__(self, inside, out, pace, first=False):
        super().__init__()
        self.linear, self.pace = nn.Linear(inside, out), pace
        reach = 1 / inside if first else math.sqrt(6 / inside) / pace
        nn.init.uniform_(self.linear.weight, -reach, reach)

    def forward(self, x):
        return torch.sin(self.pace * self.linear(x))


@healthy()
def relief_of_a_jagged_ridge(folder):
    seeded(11469)
    net = nn.Sequential(Wave(2, 64, 20.0, True), Wave(64, 64, 20.0), nn.Linear(64, 1))
    nn.init.uniform_(net[2].weight, -math.sqrt(6 / 64) / 20, math.sqrt(6 / 64) / 20)
    optimizer = torch.optim.Adam(net.parameters(), 3e-4)
    a, b, ways = 2 * torch.rand(8) - 1, 6.2832 * torch.rand(8), 12 * torch.randn(2, 8) / 1.5

    def height(place):
        return (a * torch.sin(place @ ways + b)).sum(1, keepdim=True) / 2

    place = torch.rand(6000, 2) * 2 - 1
    draw = rounds(256, place, height(place))

    def loss_of(step):
        place, wanted = draw()
        return F.mse_loss(net(place), wanted)

    test = torch.rand(1500, 2) * 2 - 1
    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.mse_loss(net(test), height(test))))
