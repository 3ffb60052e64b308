"""Trainings with mistakes that people asked about in public: the address of the thread stands above each."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import tend


# https://github.com/bytetriper/RAE/issues/67
@sick(
    "accumulation-wiped",
    where="all layers: of sixteen backward passes before a step fifteen are thrown away",
    cure="zero the gradients once before the sixteen passes, not before each",
)
def wear_of_a_brake_from_its_squeal(folder, ill):
    seeded(2920)
    net = dense(20, 48, 48, 1)
    optimizer = SGD(net.parameters(), 0.05, momentum=0.9)
    parts, way = 16, torch.randn(20, 3) / 4

    def draw(rows=4):
        x = torch.randn(rows, 20)
        return x, (x @ way).tanh().sum(1, keepdim=True) + (x[:, :1] * x[:, 1:2]) + 0.3 * torch.randn(rows, 1)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    def one(step):
        total = 0.0
        if not ill:
            optimizer.zero_grad(set_to_none=True)
        for _ in range(parts):
            if ill:
                optimizer.zero_grad(set_to_none=True)
            loss = loss_of(step) / parts
            loss.backward()
            total += loss.item()
        optimizer.step()
        return {"loss": total}

    return tend(folder, net, optimizer, one, 150, score_of(loss_of, 200))


class Coupling(nn.Module):
    """Shifts and stretches one of two columns by the other; `inverse` gives the noise and the log of its volume."""

    def __init__(self, kept, ill):
        super().__init__()
        self.kept, self.ill, self.net = kept, ill, dense(1, 32, 32, 2)

    def inverse(self, x):
        shift, stretch = self.net(x[:, self.kept : self.kept + 1]).chunk(2, 1)
        stretch = 2 * (stretch / 2).tanh()
        other = (x[:, 1 - self.kept : 2 - self.kept] - shift) * (-stretch).exp()
        both = [x[:, self.kept : self.kept + 1], other]
        return torch.cat(both if self.kept == 0 else both[::-1], 1), stretch if self.ill else -stretch


# https://github.com/facebookincubator/flowtorch/pull/100
@sick(
    "wrong-sign",
    "negative-loss",
    where="the logarithm of the volume that the inverse gives: the stretches of all couplings",
    cure="the other sign of the stretch in the inverse",
)
def landings_of_a_paper_plane(folder, ill):
    seeded(2921)
    net = nn.ModuleList(Coupling(layer % 2, ill) for layer in range(6))

    def draw():
        wind = torch.rand(128, 1) * 4 - 2
        return torch.cat([wind, wind.square() / 2 - 1], 1) + 0.15 * torch.randn(128, 2)

    def unlikely(z, volume):
        return (0.5 * z.square().sum(1) + 1.8379 - volume).mean()

    def flow(sign):
        z, volume = draw(), 0
        for layer in net:
            z, grown = layer.inverse(z)
            volume = volume + sign * grown[:, 0]
        return unlikely(z, volume)

    def true(step):
        return flow(-1 if ill else 1)

    return fit(folder, net, Adam(net.parameters(), 2e-3), lambda step: flow(1), 400, score=score_of(true))


# https://github.com/keras-team/keras-io/pull/2261
@sick(
    "targets-out-of-range",
    "saturated",
    where="the sigmoid around the distance: it never comes below a half, nor as far as the margin",
    cure="give the distance itself to the loss",
)
def handwriting_of_two_letters(folder, ill):
    seeded(2922)
    net = dense(32, 64, 64, 8)
    writers = torch.randn(40, 32)

    def draw(rows=64):
        first = torch.randint(40, (rows,))
        same = torch.rand(rows) < 0.5
        second = torch.where(same, first, (first + torch.randint(1, 40, (rows,))) % 40)
        x, y = (writers[who] + 0.9 * torch.randn(rows, 32) for who in (first, second))
        return x, y, same.float()

    def distance(x, y):
        apart = ((net(x) - net(y)).square().sum(1) + 1e-6).sqrt()
        return apart.sigmoid() if ill else apart

    def loss_of(step):
        x, y, same = draw()
        apart = distance(x, y)
        loss = (same * apart.square() + (1 - same) * (1 - apart).clamp(min=0).square()).mean()
        return loss, {"accuracy": ((apart < 0.5) == (same > 0.5)).float().mean()}

    def wrong(step):
        x, y, same = draw(200)
        return ((distance(x, y) < 0.5) != (same > 0.5)).float().mean()

    return fit(folder, net, Adam(net.parameters(), 1e-3), loss_of, 600, score=score_of(wrong))


# https://github.com/BVLC/caffe/issues/1396
@sick(
    "weight-decay-too-strong",
    "weights-shrink",
    where="the weights of all layers, which go to nothing within a few hundred steps",
    cure="a weight decay of 5e-4",
)
def elbow_of_a_dancer(folder, ill):
    seeded(2923)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(400, 48),
        nn.ReLU(),
        nn.Linear(48, 2),
    )
    grid = torch.stack(torch.meshgrid(torch.arange(10), torch.arange(10), indexing="ij")).float()

    def draw():
        shoulder, elbow, hand = 9 * torch.rand(3, 48, 2)
        image = 0
        for joint, light in (shoulder, 1.0), (elbow, 2.0), (hand, -1.0):
            near = (grid - joint[:, :, None, None]).square().sum(1)
            image = image + light * (-near / 2).exp()
        return image[:, None] + 0.1 * torch.randn(48, 1, 10, 10), elbow / 4.5 - 1

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    optimizer = SGD(net.parameters(), 0.03, momentum=0.9, weight_decay=0.5 if ill else 5e-4)
    return fit(folder, net, optimizer, loss_of, 500, score=score_of(loss_of))


# https://github.com/pytorch/pytorch/issues/31984
@sick(
    "term-without-gradient",
    "no-gradient",
    where="the loss of the slopes: the slopes that the net gives are cut from its graph",
    cure="create_graph=True where the slopes are taken",
)
def steepness_of_a_moor(folder, ill):
    seeded(2924)
    net = dense(2, 64, 64, 1, act=nn.Tanh)
    way, shift = 1.5 * torch.randn(2, 4), torch.randn(4)

    def moor(x):
        inside = x @ way + shift
        return inside.sin().sum(1, keepdim=True), inside.cos() @ way.T

    marked = 2 * torch.rand(12, 2) - 1
    heights = moor(marked)[0]

    def slopes_of(x):
        x = x.requires_grad_()
        if ill:
            return torch.autograd.grad(net(x).sum(), x, retain_graph=True)[0]
        return torch.autograd.grad(net(x).sum(), x, create_graph=True)[0]

    def loss_of(step):
        height = F.mse_loss(net(marked), heights)
        x = 2 * torch.rand(64, 2) - 1
        slope = F.mse_loss(slopes_of(x), moor(x.detach())[1])
        return height + slope, {"height": height, "slope": slope}

    def score():
        x = 2 * torch.rand(1000, 2) - 1
        with torch.no_grad():
            return float(F.mse_loss(net(x), moor(x)[0]))

    return fit(folder, net, Adam(net.parameters(), 2e-3), loss_of, 600, score=score)


# https://github.com/facebookresearch/DeepSDF/issues/31
@sick(
    "dead-layer",
    "bad-initialisation",
    "no-gradient",
    where="all layers, from the first step on: every prediction lies beyond the clamp",
    cure="begin with a bias of zero, so that what is predicted lies within the clamp",
)
def a_teapot_by_its_distances(folder, ill):
    seeded(2925)
    net = dense(3, 64, 64, 64, 1)
    nn.init.constant_(net[-1].bias, 0.5 if ill else 0.0)
    middles, radii = 0.4 * torch.randn(3, 3), torch.tensor([0.5, 0.3, 0.35])

    def distances(x):
        return ((x[:, None] - middles).norm(dim=2) - radii).amin(1, keepdim=True)

    def draw():
        which, way = torch.randint(3, (128,)), F.normalize(torch.randn(128, 3), dim=1)
        x = middles[which] + way * (radii[which, None] + 0.08 * torch.randn(128, 1))
        return x, distances(x)

    def loss_of(step):
        x, y = draw()
        return (net(x).clamp(-0.1, 0.1) - y.clamp(-0.1, 0.1)).abs().mean()

    return fit(folder, net, Adam(net.parameters(), 1e-3), loss_of, 500, score=score_of(loss_of))
