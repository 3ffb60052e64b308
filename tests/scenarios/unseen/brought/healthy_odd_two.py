"""Sound trainings of unusual courses: second order, averaged weights, losses below zero, a long warm-up, privacy."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel
from unseen import dense, fit, healthy, score_of, seeded
from unseen.tasks import clipped, held_out, rounds, tend

# ---------------------------------------------------------------------------------------------- glacier, second order


class IceFlow(nn.Module):
    """The log of the speed of ice by Glen's law, whose constants are learned, and a net for how it slides."""

    def __init__(self):
        super().__init__()
        self.softness, self.power = nn.Parameter(torch.tensor(0.0)), nn.Parameter(torch.tensor(1.0))
        self.sliding = dense(2, 12, 12, 1, act=nn.Tanh)

    def forward(self, stress, place):
        return self.softness + self.power * stress + self.sliding(place)[:, 0]


@healthy()
def speed_of_a_glacier(folder):
    seeded(2757)
    place = 2 * torch.rand(1200, 2) - 1
    stress = 0.5 * torch.randn(1200)
    slides = 0.6 * torch.sin(2 * place[:, 0]) * (1 + place[:, 1])
    log_speed = 1.5 + 3 * stress + slides + 0.05 * torch.randn(1200)
    net = IceFlow()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=6, history_size=20, line_search_fn="strong_wolfe")

    def loss_of(step):
        return F.mse_loss(net(stress[:1000], place[:1000]), log_speed[:1000])

    score = held_out(net, lambda: F.mse_loss(net(stress[1000:], place[1000:]), log_speed[1000:]))
    return fit(folder, net, optimizer, loss_of, 40, score=score, closure=True)


# ---------------------------------------------------------------------------------------------- fabric, by its average


def woven(batch=48, size=16):
    """`draw()`: pictures of a weave that is sound, lacks a thread, has a hole or a stain, and which it is."""
    line = torch.arange(size).float()

    def draw():
        kind, shift = torch.randint(4, (batch,)), 6.283 * torch.rand(batch, 2, 1)
        cloth = (1.6 * line + shift[:, 0]).sin()[:, :, None] + (1.6 * line + shift[:, 1]).sin()[:, None, :]
        middle = torch.randint(3, size - 3, (batch, 2))
        row = (line == middle[:, :1]).float()[:, :, None].expand(-1, -1, size)
        apart = (line[:, None] - middle[:, :1, None]).square() + (line - middle[:, 1:, None]).square()
        marks = torch.stack([torch.zeros_like(apart), -2 * row, -3 * (apart < 4).float(), 3 * (-apart / 8).exp()], 1)
        return (cloth + marks[torch.arange(batch), kind] + 0.5 * torch.randn_like(apart))[:, None], kind

    return draw


def inspector():
    layers = []
    for here, there, stride in ((1, 8, 1), (8, 16, 2), (16, 24, 2)):
        layers += [nn.Conv2d(here, there, 3, stride, 1), nn.GroupNorm(4, there), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(24, 4))


@healthy()
def faults_in_a_woven_fabric(folder):
    seeded(2758)
    net, draw, start = inspector(), woven(), 200
    average = AveragedModel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.3, 1 - 0.7 * step / start))

    def loss_of(step):
        x, y = draw()
        found = net(x)
        return F.cross_entropy(found, y), {"accuracy": float((found.argmax(1) == y).float().mean())}

    def of_average(step):
        x, y = draw()
        return F.cross_entropy(average(x), y)

    def after_step(step):
        if step >= start and step % 5 == 0:
            average.update_parameters(net)

    score = score_of(of_average)
    return fit(folder, net, optimizer, loss_of, 400, score=score, after_step=after_step, schedule=schedule)


# ------------------------------------------------------------------------------------- light curve, densities above one


class Brightness(nn.Module):
    """The brightness of a star at a phase of its period, and the log of how much an observation is off."""

    def __init__(self):
        super().__init__()
        self.register_buffer("harmonics", 2 * math.pi * torch.arange(1, 7))
        self.body = dense(12, 64, 64, 2, act=nn.SiLU)

    def forward(self, phase):
        turns = phase[:, None] * self.harmonics
        mean, log_spread = self.body(torch.cat([turns.sin(), turns.cos()], 1)).unbind(1)
        return mean, log_spread


def eclipses(observations):
    """Phases and brightness of a pair of stars that cover each other, more noisy where it is dim."""
    phase = torch.rand(observations)
    deep = torch.exp(-((phase - 0.3) / 0.05).square() / 2)
    shallow = torch.exp(-((phase - 0.8) / 0.05).square() / 2)
    light = 1 - 0.6 * deep - 0.25 * shallow + 0.05 * (4 * math.pi * phase).cos()
    return phase, light + (0.01 + 0.03 * deep) * torch.randn(observations)


@healthy()
def brightness_of_an_eclipsing_pair(folder):
    seeded(2759)
    net = Brightness()
    phase, light = eclipses(6000)
    draw = rounds(128, phase[:5000], light[:5000])

    def surprise(phase, light):
        mean, log_spread = net(phase)
        return (0.5 * ((light - mean) / log_spread.exp()).square() + log_spread).mean()

    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 700)
    score = held_out(net, lambda: surprise(phase[5000:], light[5000:]))
    options = {"score": score, "schedule": schedule, "before_step": clipped(net, 2.0)}
    return fit(folder, net, optimizer, lambda step: surprise(*draw()), 700, **options)


# ----------------------------------------------------------------------------------------- ships, a third is warm-up


class Helmsman(nn.Module):
    """Guesses each next move of a ship from those before it."""

    def __init__(self, width=32, length=20):
        super().__init__()
        self.enter, self.leave = nn.Linear(2, width), nn.Linear(width, 2)
        self.place = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, moves):
        return self.leave(self.layers(self.enter(moves) + self.place, mask=self.mask))


def voyages(batch=32, length=21):
    """The moves of ships that turn at a pace of their own."""
    course = 6.283 * torch.rand(batch, 1) + (0.8 * torch.rand(batch, 1) - 0.4) * torch.arange(length)
    speed = 0.7 + 0.6 * torch.rand(batch, 1, 1)
    return speed * torch.stack([course.cos(), course.sin()], 2) + 0.02 * torch.randn(batch, length, 2)


@healthy()
def next_move_of_a_ship(folder):
    seeded(2760)
    net, steps = Helmsman(), 300
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 1e-2, 1.0, steps // 3)
    cool_down = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - steps // 3)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm_up, cool_down], [steps // 3])

    def loss_of(step):
        moves = voyages()
        return F.mse_loss(net(moves[:, :-1]), moves[:, 1:])

    return fit(folder, net, optimizer, loss_of, steps, score=score_of(loss_of), schedule=schedule)


# ------------------------------------------------------------------------------------------- elevator, in privacy


def rides(batch, floors=8):
    """`draw()`: hour, weekday and office of who enters an elevator, and to which floor they go."""

    def draw():
        hour, weekend = 24 * torch.rand(batch), (torch.rand(batch) < 0.2).float()
        office = torch.randint(floors, (batch,))
        floor = torch.where((hour > 11) & (hour < 14), torch.full_like(office, 7), office)
        floor = torch.where((hour > 16) | (weekend > 0), torch.zeros_like(office), floor)
        floor = torch.where(torch.rand(batch) < 0.02, torch.randint(floors, (batch,)), floor)
        clock = torch.stack([(k * 0.2618 * hour + q).sin() for k in (1, 2, 3) for q in (0, 1.5708)], 1)
        return torch.cat([clock, weekend[:, None], F.one_hot(office, floors).float()], 1), floor

    return draw


def private_gradients(net, most, noise):
    """`put(x, y)`: each person's gradient is held to `most`, noise is added to their sum; the mean loss."""

    def loss(weights, x, y):
        return F.cross_entropy(functional_call(net, weights, (x[None],)), y[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))

    def put(x, y):
        found = each({name: p.detach() for name, p in net.named_parameters()}, x, y)
        norm = torch.stack([g.flatten(1).norm(dim=1) for g in found.values()]).norm(dim=0)
        share = (most / norm).clamp(max=1)
        for name, p in net.named_parameters():
            total = torch.einsum("b,b...->...", share, found[name])
            p.grad = (total + most * noise * torch.randn_like(total)) / len(x)
        with torch.no_grad():
            return {"loss": float(F.cross_entropy(net(x), y)), "clipped": float((share < 1).float().mean())}

    return put


@healthy()
def floor_that_a_rider_wants_in_privacy(folder):
    seeded(2761)
    net, draw, steps = dense(15, 48, 8, act=nn.Tanh), rides(256), 400
    optimizer = torch.optim.SGD(net.parameters(), lr=1.5)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    put = private_gradients(net, most=1.0, noise=0.8)

    def one(step):
        logged = put(*draw())
        optimizer.step()
        schedule.step()
        return logged

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y)

    return tend(folder, net, optimizer, one, steps, score_of(loss_of))
