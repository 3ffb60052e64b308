"""Steps of an unusual make in which nothing is wrong: long warm-ups, trust ratios, signs, huge rates, restarts."""

import math

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, rounds


class Reverser(nn.Module):
    def __init__(self, kinds=10, length=10, width=40):
        super().__init__()
        self.table, self.place = nn.Embedding(kinds, width), nn.Parameter(torch.randn(length, width) * 0.3)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 80, dropout=0.0, norm_first=False, batch_first=True) for _ in range(3)
        )
        self.out = nn.Linear(width, kinds)
        nn.init.normal_(self.table.weight, std=0.3)

    def forward(self, x):
        h = self.table(x) + self.place
        for block in self.blocks:
            h = block(h)
        return self.out(h)


@healthy()
def a_train_shunted_into_reverse_order(folder):
    """Norms after each sum, hence the published schedule: up for half of the run, down with the step's root."""
    seeded(3466)
    net = Reverser()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3, betas=(0.9, 0.98), eps=1e-9)
    warm = 250
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, math.sqrt(warm / (step + 1)))
    )

    def wagons(rows=48):
        x = torch.randint(10, (rows, 10))
        return x, x.flip(1)

    def loss_of(step):
        x, y = wagons()
        said = net(x)
        loss = F.cross_entropy(said.flatten(0, 1), y.flatten(), label_smoothing=0.05)
        return loss, {"accuracy": (said.argmax(2) == y).float().mean()}

    def wrong():
        x, y = wagons(400)
        return (net(x).argmax(2) != y).float().mean()

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, wrong), schedule=schedule)


class Trusted(torch.optim.Optimizer):
    """Momentum with a rate per tensor: a share of the norm of its weights over that of its gradient (LARS)."""

    def __init__(self, groups, lr, momentum=0.9, trust=0.02):
        super().__init__(groups, {"lr": lr, "momentum": momentum, "trust": trust, "weight_decay": 0.0, "scaled": True})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                slope, rate = p.grad + group["weight_decay"] * p, group["lr"]
                if group["scaled"]:
                    weight, size = p.norm(), p.grad.norm() + group["weight_decay"] * p.norm()
                    if weight > 0 and size > 0:
                        rate = rate * group["trust"] * weight / size
                moved = self.state[p].setdefault("moved", torch.zeros_like(p))
                moved.mul_(group["momentum"]).add_(rate * slope)
                p.sub_(moved)


@healthy()
def a_whole_mail_sack_at_a_glance(folder):
    """Batches of a thousand digits; matrices by LARS, gains and biases by momentum alone."""
    seeded(3467)
    images, labels = digits()
    order = torch.randperm(len(images))
    images, labels = images[order, None], labels[order]
    x, y = images[1500:], labels[1500:]
    net = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(),
                        nn.Conv2d(12, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU(), nn.Flatten(),
                        nn.Linear(384, 10))  # fmt: skip
    groups = [{"params": [p for p in net.parameters() if p.ndim > 1], "weight_decay": 1e-3},
              {"params": [p for p in net.parameters() if p.ndim < 2], "scaled": False, "lr": 0.1}]  # fmt: skip
    optimizer = Trusted(groups, 1.0)
    steps = 120
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 20, (1 - step / steps) ** 2))

    def loss_of(step):
        at = torch.randperm(1500)[:1024]
        said = net(images[at])
        return F.cross_entropy(said, labels[at]), {"accuracy": (said.argmax(1) == labels[at]).float().mean()}

    def wrong():
        return (net(x).argmax(1) != y).float().mean()

    return fit(folder, net, optimizer, loss_of, steps, score=held_out(net, wrong), schedule=schedule)


class Signs(torch.optim.Optimizer):
    """Each weight moves by the rate in the direction that its gradients had of late; weights decay beside it."""

    def __init__(self, params, lr, beta=0.9, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "beta": beta, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                average = self.state[p].setdefault("average", torch.zeros_like(p))
                average.lerp_(p.grad, 1 - group["beta"])
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * average.sign())


@healthy()
def warblers_told_by_their_calls(folder):
    """One-dimensional convolutions, trained by signs of averaged gradients at a rate that falls to nothing."""
    seeded(3468)
    time = torch.linspace(0, 1, 96)
    start, bend, beat = torch.tensor([[8.0, 12, 8, 14, 12], [6.0, -4, 0, -8, 5], [3.0, 3, 6, 6, 4]])
    net = nn.Sequential(nn.Conv1d(1, 16, 9, 2, 4), nn.ReLU(), nn.Conv1d(16, 32, 5, 2, 2), nn.ReLU(),
                        nn.Conv1d(32, 32, 5, 2, 2), nn.ReLU(), nn.AdaptiveAvgPool1d(2), nn.Flatten(),
                        nn.Linear(64, 5))  # fmt: skip
    optimizer = Signs(net.parameters(), 1e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, 400, 1.0)

    def calls(rows=48):
        kind, off = torch.randint(5, (rows,)), torch.rand(rows, 1)
        turn = (start[kind, None] + 0.5 * off) * time + bend[kind, None] * time.square() + torch.rand(rows, 1)
        loud = 1 + 0.7 * (2 * math.pi * (beat[kind, None] * time + off)).cos()
        return (loud * (2 * math.pi * turn).sin() + 0.3 * torch.randn(rows, 96))[:, None], kind

    def loss_of(step):
        call, kind = calls()
        return F.cross_entropy(net(call), kind)

    def wrong():
        call, kind = calls(800)
        return (net(call).argmax(1) != kind).float().mean()

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, wrong), schedule=schedule)


class Crowd(nn.Module):
    """The mean of what two thousand units say."""

    def __init__(self, size, units=2048):
        super().__init__()
        self.ways, self.says = nn.Parameter(torch.randn(units, size + 1)), nn.Parameter(torch.randn(units))

    def forward(self, x):
        seen = torch.cat([x, torch.ones(len(x), 1)], 1) @ self.ways.T
        return (seen.tanh() * self.says).mean(1)


@healthy()
def warmth_inside_a_compost_heap(folder):
    """The mean-field limit: a slope of one over the number of units each, and a rate that makes up for it."""
    seeded(3469)
    layers = torch.randn(4, 3)

    def heaps(rows=128):
        x = torch.randn(rows, 4)
        return x, (x @ layers).tanh().sum(1) + 0.05 * torch.randn(rows)

    net = Crowd(4)
    optimizer = torch.optim.SGD(net.parameters(), 0.3 * 2048)

    def loss_of(step):
        x, y = heaps()
        return F.mse_loss(net(x), y)

    def error():
        x, y = heaps(1000)
        return F.mse_loss(net(x), y)

    return fit(folder, net, optimizer, loss_of, 800, score=held_out(net, error))


class Field(nn.Module):
    """Takes millimetres, degrees and kilograms as they are and answers in kilograms per hectare."""

    def __init__(self, x, y):
        super().__init__()
        self.register_buffer("middle", x.mean(0))
        self.register_buffer("spread", x.std(0))
        self.register_buffer("usual", y.mean())
        self.register_buffer("range", y.std())
        self.body = dense(5, 64, 64, 1, act=nn.SiLU, norm=nn.LayerNorm)

    def scaled(self, y):
        return (y - self.usual) / self.range

    def forward(self, x):
        return self.usual + self.range * self.body((x - self.middle) / self.spread)[:, 0]


@healthy()
def tonnes_of_barley_off_a_field(folder):
    """Natural units outside, plain ones within; a cosine that starts again after 60, 120 and 240 steps."""
    seeded(3470)

    def fields(rows):
        rain, warm, acid = 550 + 120 * torch.randn(rows), 15 + 2 * torch.randn(rows), 6.3 + 0.5 * torch.randn(rows)
        feed, salt = 180 * torch.rand(rows), 0.002 * torch.rand(rows)
        wet = torch.exp(-((rain - 600) / 200).square()) * torch.exp(-((warm - 15) / 5).square())
        grain = 7500 * wet * (0.4 + 0.6 * (1 - torch.exp(-feed / 60))) - 900 * (acid - 6.5).abs() - 4e5 * salt
        return torch.stack([rain, warm, acid, feed, salt], 1), grain + 150 * torch.randn(rows)

    x, y = fields(2000)
    other, answer = fields(600)
    net, draw = Field(x, y), rounds(64, x, y)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 60, 2, 5e-4)

    def loss_of(step):
        row, grain = draw()
        found = net(row)
        loss = F.smooth_l1_loss(net.scaled(found), net.scaled(grain))
        return loss, {"kilograms_off": (found - grain).abs().mean()}

    def off():
        return (net(other) - answer).abs().mean()

    return fit(folder, net, optimizer, loss_of, 420, score=held_out(net, off), schedule=schedule)
