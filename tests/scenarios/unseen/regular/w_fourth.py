"""Healthy trainings of bicycles, roads and city traffic of an unusual make: each looks odd and is sound."""

from __future__ import annotations

import copy

import torch
from sklearn.datasets import load_digits, load_iris
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, rings, seeded, waves
from unseen.tasks import clipped, held_out, rounds, tend


@healthy()
def gears_shifted_by_the_sign_alone(folder):
    seeded(12360)
    net, draw = dense(12, 64, 64, 4), rings(64)
    average = [torch.zeros_like(p) for p in net.parameters()]
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)

    def before_step(step):
        for p, m in zip(net.parameters(), average, strict=False):
            way = (0.9 * m + 0.1 * p.grad).sign()
            m.lerp_(p.grad, 0.01)
            p.grad.copy_(way)

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y)

    tx, ty = [torch.cat(part) for part in zip(*[draw() for _ in range(6)], strict=False)]
    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 250, score=score, before_step=before_step)


@healthy()
def minutes_to_the_station_nine_times_in_ten(folder):
    seeded(12361)
    net = dense(4, 48, 48, 3)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    levels = torch.tensor([0.1, 0.5, 0.9])

    def rides(rows):
        x = torch.randn(rows, 4)
        lights = torch.distributions.Gamma(2.0, 2.0).sample((rows,))
        return x, 2 * x[:, 0].sin() + x[:, 1] * x[:, 2] / 2 + 0.6 * (1 + x[:, 3].abs()) * (lights - 1)

    def pinball(x, y):
        gap = y[:, None] - net(x)
        return torch.maximum(levels * gap, (levels - 1) * gap).mean()

    test = rides(600)
    score = held_out(net, lambda: pinball(*test))
    return fit(folder, net, optimizer, lambda step: pinball(*rides(64)), 250, score=score)


@healthy(0.15)
def witnesses_of_a_crash_who_often_err(folder):
    seeded(12362)
    net, draw = dense(12, 64, 64, 4), rings(128)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def loss_of(step):
        x, y = draw()
        y = torch.where(torch.rand(len(y)) < 0.4, torch.randint(4, (len(y),)), y)
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    tx, ty = [torch.cat(part) for part in zip(*[draw() for _ in range(4)], strict=False)]
    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@healthy()
def a_bend_in_the_road_by_second_order(folder):
    seeded(12363)
    net = dense(2, 20, 20, 1, act=nn.Tanh)
    optimizer = torch.optim.LBFGS(net.parameters(), lr=1.0, max_iter=8, history_size=20, line_search_fn="strong_wolfe")
    x = 2 * torch.rand(300, 2) - 1
    y = (3 * x[:, :1]).sin() * x[:, 1:] + 0.02 * torch.randn(300, 1)
    return fit(folder, net, optimizer, lambda step: F.mse_loss(net(x), y), 40, closure=True)


@healthy()
def couriers_who_only_remember_the_best(folder):
    """Advantage-weighted regression on logged choices: the weights are exponentials, cut at 20."""
    seeded(12364)
    ways = 5
    net = dense(6, 48, ways)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    worth = torch.randn(6, ways)
    states, chosen = torch.randn(3000, 6), torch.randint(ways, (3000,))
    gain = (states @ worth).gather(1, chosen[:, None])[:, 0]
    weight = (gain + 0.3 * torch.randn(3000) - gain.mean()).exp().clamp(max=20)
    draw = rounds(64, states, chosen, weight)

    def loss_of(step):
        s, a, w = draw()
        return (w * F.cross_entropy(net(s), a, reduction="none")).mean()

    tests = torch.randn(500, 6)

    def regret():
        return ((tests @ worth).max(1).values - (net(tests).softmax(1) * (tests @ worth)).sum(1)).mean()

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, regret))


@healthy()
def plates_read_in_ever_thicker_fog(folder):
    """The curriculum lets the loss rise: the fog thickens all the while, and the score is in thick fog."""
    seeded(12365)
    images, shown = load_digits(return_X_y=True)
    order = torch.randperm(len(shown))
    x, y = torch.tensor(images / 8 - 1, dtype=torch.float32)[order], torch.tensor(shown)[order]
    net = dense(64, 128, 64, 10, norm=nn.LayerNorm)
    steps = 300
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    draw = rounds(64, x[:1400], y[:1400])

    def loss_of(step):
        bx, by = draw()
        fog = min(0.8, step / steps)
        return F.cross_entropy(net((1 - fog / 2) * bx + fog * torch.randn_like(bx)), by), {"fog": fog}

    thick = 0.6 * x[1400:] + 0.8 * torch.randn_like(x[1400:])
    return fit(
        folder, net, optimizer, loss_of, steps, score=held_out(net, lambda: F.cross_entropy(net(thick), y[1400:]))
    )


@healthy()
def twelve_spokes_trued_in_forty_turns(folder):
    seeded(12366)
    table, kind = load_iris(return_X_y=True)
    x, y = torch.tensor(table, dtype=torch.float32), torch.tensor(kind)
    x = (x - x.mean(0)) / x.std(0)
    net = dense(4, 12, 3)
    optimizer = torch.optim.Adam(net.parameters(), 0.03)
    return fit(folder, net, optimizer, lambda step: F.cross_entropy(net(x), y), 40)


@healthy()
def riders_in_the_slipstream_of_their_own_average(folder):
    seeded(12367)
    draw = waves(64)
    net = dense(6, 64, 64, 1, act=nn.SiLU)
    slow = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.NAdam(net.parameters(), 3e-3)

    def after_step(step):
        with torch.no_grad():
            for s, p in zip(slow.parameters(), net.parameters(), strict=False):
                s.lerp_(p, max(0.03, 1 / (step + 1)))

    def loss_of(step):
        x, y = draw()
        near = x + 0.1 * torch.randn_like(x)
        return F.mse_loss(net(x), y) + 0.2 * F.mse_loss(net(near), slow(x))

    tx, ty = [torch.cat(part) for part in zip(*[draw() for _ in range(8)], strict=False)]
    score = held_out(slow, lambda: F.mse_loss(slow(tx), ty))
    return fit(folder, net, optimizer, loss_of, 400, score=score, after_step=after_step, before_step=clipped(net, 1.0))


class Lamps(nn.Module):
    """Lamps that are on or off: their gradient is that of the sigmoid beneath."""

    def __init__(self, size, lamps, kinds):
        super().__init__()
        self.sense, self.read = nn.Linear(size, lamps), nn.Linear(lamps, kinds)

    def forward(self, x):
        soft = (2 * self.sense(x)).sigmoid()
        return self.read((soft > 0.5).float() + soft - soft.detach())


@healthy()
def bicycle_lamps_either_on_or_off(folder):
    seeded(12368)
    draw = rings(64, classes=3)
    net = Lamps(12, 96, 3)
    optimizer = torch.optim.RMSprop(net.parameters(), 3e-3)

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y, label_smoothing=0.05)

    tx, ty = [torch.cat(part) for part in zip(*[draw() for _ in range(6)], strict=False)]
    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@healthy()
def a_toll_gate_played_against_a_smuggler(folder):
    """Small shifts of the inputs are sought against the model before each of its steps (adversarial training)."""
    seeded(12369)
    draw, reach = rings(64), 0.1
    net = dense(12, 64, 64, 4)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def worst(x, y):
        shift = reach * (2 * torch.rand_like(x) - 1)
        for _ in range(2):
            shift.requires_grad_(True)
            with torch.enable_grad():
                (way,) = torch.autograd.grad(F.cross_entropy(net(x + shift), y), shift)
            shift = (shift.detach() + reach * way.sign()).clamp(-reach, reach)
        return x + shift

    def one(step):
        x, y = draw()
        loss = F.cross_entropy(net(worst(x, y)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    tx, ty = [torch.cat(part) for part in zip(*[draw() for _ in range(6)], strict=False)]
    score = held_out(net, lambda: F.cross_entropy(net(worst(tx, ty)), ty))
    return tend(folder, net, optimizer, one, 250, score)
