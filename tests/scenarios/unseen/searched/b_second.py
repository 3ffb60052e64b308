"""Trams, slabs of marble, ships in boxes, a hot poker, gossip, paws of dogs."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import held_out


class Step(nn.Module):
    """A soft step with a quiet zone, made for this task."""

    def forward(self, x):
        return torch.sigmoid(2 * x) ** 3


# https://cognitivehub.in/model-is-not-learning-problem-with-custom-activation-function-and-or-with-custom-loss-function
@sick(
    "vanishing",
    where="the first layers, from the first step: each of the own activations hands back a small share of its gradient",
    cure="an activation with gradients near one, a ReLU for instance",
)
def noise_of_trams_by_speed(folder, ill):
    seeded(9386)
    net = dense(6, 32, 32, 32, 32, 32, 32, 1, act=Step if ill else nn.ReLU)
    way = torch.randn(6, 2)

    def draw(rows=64):
        x = torch.randn(rows, 6)
        seen = x @ way
        return x, (seen[:, :1].abs() + seen[:, 1:].sin()) / 2

    def loss_of(step):
        x, y = draw()
        return F.smooth_l1_loss(net(x), y)

    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    return fit(folder, net, optimizer, loss_of, 500, score=score_of(loss_of))


class Grades(nn.Module):
    """What is measured in steps of a quarter, as the graders of the quarry write it down."""

    def __init__(self, inputs, outputs, through):
        super().__init__()
        self.linear, self.through = nn.Linear(inputs, outputs), through

    def forward(self, x):
        y = self.linear(x)
        graded = torch.round(4 * y) / 4
        return y + (graded - y).detach() if self.through else graded


# http://www.bqtyf.cn/networking/why-is-my-neural-network-s-loss-function-gradient-zero-durin-1765892766.html
@sick(
    "dead-layer",
    "no-gradient",
    where="grades.linear and the layers before it, from the first step: rounding hands nothing back",
    cure="let the gradient go straight through the rounding, or leave the rounding out of the training",
)
def grades_of_marble_slabs(folder, ill):
    seeded(9387)
    net = nn.Sequential(dense(8, 32, 32), nn.ReLU(), Grades(32, 6, through=not ill), dense(6, 24, 4))
    way = torch.randn(8, 4)

    def draw(rows=64):
        x = torch.randn(rows, 8)
        return x, ((x @ way).sin() + 0.3 * x[:, :4]).argmax(1)

    def loss_of(step):
        x, y = draw()
        out = net(x)
        return F.cross_entropy(out, y), {"accuracy": (out.argmax(1) == y).float().mean()}

    def fresh():
        x, y = draw(1024)
        return F.cross_entropy(net(x), y)

    return fit(folder, net, torch.optim.Adam(net.parameters(), 3e-3), loss_of, 500, score=held_out(net, fresh))


# https://donghao.org/2019/06/11/debugging-the-problem-of-nan-value-in-training/
@sick(
    "nonfinite",
    where="the loss of the boxes, after few steps: width and height are read as a far corner, and have no logarithm",
    cure="read the boxes of the file as corner, width and height",
)
def ships_in_a_harbour_basin(folder, ill):
    seeded(9388)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 32),
        nn.ReLU(),
        nn.Linear(32, 4),
    )
    at = torch.arange(16) / 16

    def draw(rows=12):
        corner, size = 0.36 * torch.rand(rows, 2), 0.3 + 0.3 * torch.rand(rows, 2)
        along = [(at >= corner[:, i, None]) & (at < (corner + size)[:, i, None]) for i in (0, 1)]
        picture = (along[0][:, :, None] & along[1][:, None, :]).float() + 0.2 * torch.randn(rows, 16, 16)
        return picture[:, None], torch.cat([corner, size], 1)

    def encode(boxes, far):
        near, far = boxes[:, :2], boxes[:, 2:] if far else boxes[:, :2] + boxes[:, 2:]
        return torch.cat([(near + far) / 2 / 0.4, torch.log((far - near) / 0.4)], 1)

    def loss_of(step):
        picture, boxes = draw()
        found, wanted = net(picture), encode(boxes, far=ill)
        middle, size = F.smooth_l1_loss(found[:, :2], wanted[:, :2]), F.smooth_l1_loss(found[:, 2:], wanted[:, 2:])
        return middle + size, {"middle": middle, "size": size}

    def fresh():
        picture, boxes = draw(256)
        return F.smooth_l1_loss(net(picture), encode(boxes, far=False))

    return fit(folder, net, torch.optim.Adam(net.parameters(), 2e-3), loss_of, 250, score=held_out(net, fresh))


# https://www.reddlx.com/sub/ResearchML
@sick(
    "loss-terms-unbalanced",
    where="the term of the ends: its gradient is lost beside that of the equation, which is thousands of times larger",
    cure="weigh the terms of the loss by the size of their gradients",
)
def heat_along_a_poker(folder, ill):
    seeded(9389)
    net, turns = dense(1, 32, 32, 1, act=nn.Tanh), 4 * math.pi
    with torch.no_grad():
        for one in net[0].parameters():
            one.mul_(4)
    ends = torch.tensor([[0.0], [1.0]])

    def heat(x):
        return (turns * x).sin() + 3 - 2 * x

    def loss_of(step):
        x = torch.rand(64, 1, requires_grad=True)
        u = net(x)
        first = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
        second = torch.autograd.grad(first.sum(), x, create_graph=True)[0]
        equation = (second + turns**2 * (turns * x).sin()).square().mean()
        boundary = (net(ends) - heat(ends)).square().mean()
        loss = equation + boundary if ill else equation / turns**4 + boundary / 10
        return loss, {"equation": equation, "boundary": boundary}

    def fresh():
        x = torch.linspace(0, 1, 101)[:, None]
        return (net(x) - heat(x)).square().mean()

    return fit(folder, net, torch.optim.Adam(net.parameters(), 3e-3), loss_of, 800, score=held_out(net, fresh))


class Neighbours(nn.Module):
    """Each listens to its neighbours, to some of them more than to others."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.told = nn.Linear(inputs, outputs, bias=False)
        self.teller, self.hearer = nn.Linear(outputs, 1), nn.Linear(outputs, 1)

    def forward(self, x, near):
        told = self.told(x)
        weight = F.leaky_relu(self.hearer(told) + self.teller(told).transpose(-1, -2), 0.2)
        return weight.masked_fill(~near, -torch.inf).softmax(-1) @ told


class Village(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.ModuleList([Neighbours(3, width), Neighbours(width, width), Neighbours(width, width)])
        self.head = nn.Linear(width, 4)

    def forward(self, x, near):
        for layer in self.layers:
            x = F.elu(layer(x, near))
        return self.head(x)


# https://github.com/FluxML/GeometricFlux.jl/issues/154
@sick(
    "representation-collapse",
    "over-smoothing",
    where="the layers, from the first step: in a graph of all pairs each node hears the same, and all become alike",
    cure="a graph of near neighbours instead of one in which everybody is everybody's neighbour",
)
def gossip_on_a_village_green(folder, ill):
    seeded(9390)
    net = Village(24)

    def draw(villages=12, people=24):
        place = torch.rand(villages, people, 2) * 2 - 1
        apart = torch.cdist(place, place)
        near = torch.ones_like(apart, dtype=torch.bool) if ill else apart < 0.35
        x = torch.cat([place, torch.randn(villages, people, 1)], 2)
        return x, near, 2 * (place[..., 0] > 0).long() + (place[..., 1] > 0).long()

    def loss_of(step):
        x, near, y = draw()
        out = net(x, near)
        return F.cross_entropy(out.flatten(0, 1), y.flatten()), {"accuracy": (out.argmax(-1) == y).float().mean()}

    return fit(
        folder, net, torch.optim.Adam(net.parameters(), 5e-3), loss_of, 300, score=score_of(lambda step: loss_of(0)[0])
    )


# https://github.com/xiaolonw/caffe-video_triplet/issues/8
@sick(
    "representation-collapse",
    "lr-too-high",
    where="all layers, in the first steps: all pictures come to one embedding, and the loss stays at the margin",
    cure="a smaller learning rate",
)
def paws_of_dogs_told_apart(folder, ill):
    seeded(9391)
    net, dogs = dense(16, 64, 64, 8), 1.2 * torch.randn(30, 16)
    optimizer = torch.optim.Adam(net.parameters(), 0.2 if ill else 2e-3)

    def apart(rows=48):
        which = torch.rand(rows, 30).argsort(1)
        dog, other = dogs[which[:, 0]], dogs[which[:, 1]]
        anchor, same, other = (net(d + 0.7 * torch.randn(rows, 16)) for d in (dog, dog, other))
        return (anchor - same).square().sum(1), (anchor - other).square().sum(1)

    def loss_of(step):
        same, other = apart()
        return F.relu(same - other + 0.5).mean(), {"same": same.mean(), "other": other.mean()}

    def wrong():
        same, other = apart(1024)
        return (same >= other - 1e-6).float().mean()

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, wrong))
