"""Few bits, few weights, layers that learn alone, spikes."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F
from unseen import fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds

# ----------------------------------------------------------------------------------------------- few bits, few weights


def rounded(x, step, low, high):
    """Learned step sizes (LSQ): the number is rounded, its gradient goes straight through between the bounds."""
    share = 1 / math.sqrt(x.numel() * high)
    step = step.detach() * (1 - share) + step * share
    whole = (x / step).clamp(low, high)
    return (whole + (whole.round() - whole).detach()) * step


class FewBits(nn.Conv1d):
    def __init__(self, *sizes, signed, **options):
        super().__init__(*sizes, **options)
        self.low, self.high = (-8, 7) if signed else (0, 15)
        self.of_weight = nn.Parameter(2 * self.weight.detach().abs().mean() / 7**0.5)
        self.of_input = nn.Parameter(torch.tensor(2 * 0.7 / self.high**0.5))

    def forward(self, x):
        x = rounded(x, self.of_input, self.low, self.high)
        return self._conv_forward(x, rounded(self.weight, self.of_weight, -8, 7), self.bias)


@healthy()
def kernels_of_maize_heard_on_a_chute(folder):
    """Weights and inputs of four bits all along, with steps that are learned at a tenth of the rate."""
    seeded(3123)
    net = nn.Sequential(
        FewBits(1, 16, 7, signed=True, stride=2, padding=3, bias=False), nn.BatchNorm1d(16), nn.ReLU(),
        FewBits(16, 24, 5, signed=False, stride=2, padding=2, bias=False), nn.BatchNorm1d(24), nn.ReLU(),
        nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(96, 4),
    )  # fmt: skip
    steps = [p for name, p in net.named_parameters() if ".of_" in name]
    rest = [p for name, p in net.named_parameters() if ".of_" not in name]
    groups = [{"params": rest}, {"params": steps, "lr": 0.002, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=0.02, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 350)
    tones, t = torch.tensor([0.25, 0.4, 0.6, 0.9]), torch.arange(64.0)

    def draw(rows):
        y = torch.randint(4, (rows,))
        at = 10 + 30 * torch.rand(rows, 1)
        ring = (-(t - at).clamp(min=0) / 12).exp() * (t > at) * ((t - at) * tones[y][:, None]).sin()
        return (2 * ring + 0.5 * torch.randn(rows, 64))[:, None], y

    def loss_of(step):
        x, y = draw(64)
        out = net(x)
        return F.cross_entropy(out, y), {"accuracy": (out.argmax(1) == y).float().mean()}

    x, y = draw(1500)
    fresh = held_out(net, lambda: F.cross_entropy(net(x), y))
    return fit(folder, net, optimizer, loss_of, 350, score=fresh, schedule=schedule)


class Gated(nn.Linear):
    """Each input has a gate that may close for good (hard concrete)."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.gate = nn.Parameter(1.5 + 0.01 * torch.randn(sizes[0]))

    def forward(self, x):
        if self.training:
            u = torch.rand(x.shape).clamp(1e-6, 1 - 1e-6)
            s = ((u.logit() + self.gate) / 0.66).sigmoid()
        else:
            s = self.gate.sigmoid()
        return super().forward(x * (1.2 * s - 0.1).clamp(0, 1))

    def open_gates(self):
        return (self.gate - 0.66 * math.log(0.1 / 1.1)).sigmoid().sum()


@healthy()
def turbines_and_forty_gauges(folder):
    """Few of the forty gauges matter: a penalty on the number of open gates finds which."""
    seeded(3124)
    net = nn.Sequential(Gated(40, 48), nn.SiLU(), Gated(48, 1))
    gates = [layer.gate for layer in net if isinstance(layer, Gated)]
    rest = [p for p in net.parameters() if all(p is not gate for gate in gates)]
    optimizer = torch.optim.Adam([{"params": rest}, {"params": gates, "lr": 0.02}], lr=4e-3)
    use = torch.randperm(40)[:5]

    def power(x):
        a, b, c, d, e = x[:, use].T
        return (1.5 * a * b + (2 * c).sin() + d - 0.5 * e.square())[:, None]

    x = torch.randn(6000, 40)
    draw = rounds(128, x, power(x) + 0.1 * torch.randn(6000, 1))
    fresh = torch.randn(1500, 40)

    def loss_of(step):
        x, y = draw()
        error = F.mse_loss(net(x), y)
        number = net[0].open_gates() + net[2].open_gates()
        return error + 0.002 * min(1.0, step / 200) * number, {"error": error, "open_gates": number}

    return fit(folder, net, optimizer, loss_of, 800, score=held_out(net, lambda: F.mse_loss(net(fresh), power(fresh))))


# -------------------------------------------------------------------------------------------------- other ways to learn


class Glad(nn.Module):
    """Layers that each learn to be lively for true pairs and quiet for false ones: the forward-forward algorithm."""

    def __init__(self, *sizes):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))

    def forward(self, x):
        lively = []
        for layer in self.layers:
            x = layer(F.normalize(x.detach(), dim=1) * x.shape[1] ** 0.5).relu()
            lively.append(x.square().mean(1))
        return lively


@healthy()
def stitches_of_a_jersey_layer_by_layer(folder):
    seeded(3125)
    net = Glad(12 + 5, 128, 128)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    centres = 1.3 * torch.randn(5, 2, 12)

    def draw(rows):
        y = torch.randint(5, (rows,))
        return centres[y, torch.randint(2, (rows,))] + 0.7 * torch.randn(rows, 12), y

    def pair(x, y):
        return torch.cat([x, 3 * F.one_hot(y, 5).float()], 1)

    def loss_of(step):
        x, y = draw(128)
        wrong = (y + torch.randint(1, 5, y.shape)) % 5
        losses = [
            F.softplus(1 - true).mean() + F.softplus(false - 1).mean()
            for true, false in zip(net(pair(x, y)), net(pair(x, wrong)), strict=True)
        ]
        return sum(losses), {f"layer_{i}": loss for i, loss in enumerate(losses)}

    x, y = draw(1500)

    def wrong():
        lively = torch.stack([sum(net(pair(x, torch.full_like(y, kind)))) for kind in range(5)], 1)
        return (lively.argmax(1) != y).float().mean()

    return fit(folder, net, optimizer, loss_of, 700, score=held_out(net, wrong))


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x > 0).float()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient / (1 + 5 * x.abs()).square()


class Spiking(nn.Module):
    def __init__(self, size, width, kinds):
        super().__init__()
        self.inward, self.out = nn.Linear(size, width), nn.Linear(width, kinds)
        self.again = nn.Linear(width, width, bias=False)
        nn.init.normal_(self.inward.weight, std=2 / size**0.5)
        nn.init.orthogonal_(self.again.weight, 0.3)

    def forward(self, x):
        charge = spike = torch.zeros(len(x), self.again.in_features)
        read, rate = 0.0, 0.0
        for t in range(x.shape[1]):
            charge = 0.9 * charge * (1 - spike.detach()) + self.inward(x[:, t]) + self.again(spike)
            spike = Spike.apply(charge - 1)
            read, rate = read + self.out(spike), rate + spike.mean()
        return read / x.shape[1], rate / x.shape[1]


@healthy()
def whiskers_of_a_mouse_in_spikes(folder):
    """Leaky cells that fire, through a softer slope than theirs, held to fire seldom."""
    seeded(3126)
    net = Spiking(10, 64, 4)
    optimizer = torch.optim.Adamax(net.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 120, 0.5)
    delays, t = torch.randint(12, (4, 10)), torch.arange(20)[:, None]

    def draw(rows):
        y = torch.randint(4, (rows,))
        touch = (t - delays[y][:, None] - torch.randint(3, (rows, 1, 1))).abs() <= 1
        return (touch ^ (torch.rand(touch.shape) < 0.08)).float(), y

    def loss_of(step):
        x, y = draw(64)
        out, rate = net(x)
        named = F.cross_entropy(4 * out, y)
        return named + 0.5 * (rate - 0.1).square(), {"named": named, "firing_rate": rate}

    def fresh():
        x, y = draw(800)
        return F.cross_entropy(4 * net(x)[0], y)

    run = {"score": held_out(net, fresh), "schedule": schedule, "before_step": clipped(net, 5.0)}
    return fit(folder, net, optimizer, loss_of, 300, **run)
