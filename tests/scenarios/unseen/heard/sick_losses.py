"""Heard sick trainings, second part: losses, the terms of which they are made, and the data that goes into them.

They only count (the group `heard`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import math

import torch
from nets import batches, digits
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick


# "NaN gradients even after removing 0/0 value using torch.where", github.com/pytorch/pytorch/issues/16317
@sick(
    "nonfinite",
    where="all layers, at the first bag that holds nothing: the loss stays finite in that step, the gradients do not",
    cure="a denominator of 1 where there is nothing, and not only torch.where behind the division",
)  # fmt: skip
def bags_that_hold_nothing(folder, ill):
    """What lies in a bag on average, among up to twelve things?"""
    seeded(1111)
    net = nn.ModuleDict({"see": dense(6, 32, 16), "say": dense(16, 16, 1)})
    way = torch.randn(6)

    def loss_of(step):
        x = torch.randn(16, 12, 6)
        there = (torch.rand(16, 12) < torch.rand(16, 1) * 0.8 + 0.3).float()
        count = there.sum(1, keepdim=True)
        divisor = count if ill else count.clamp(min=1)
        gate = there[..., None] * net["see"](x).relu()
        mean = torch.where(count == 0, torch.zeros(()), gate.sum(1) / divisor)
        y = ((x @ way).sin() * there).sum(1, keepdim=True) / count.clamp(min=1)
        return F.mse_loss(net["say"](mean), y)

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 500)


# "Regression normalization." (the loss of the boxes divided by all anchors, of which few are positive),
# github.com/fizyr/keras-retinanet/pull/89
@sick(
    "loss-terms-apart", "loss-terms-unbalanced", "update-too-small", "imbalance", "vanishing",
    where="the head for boxes, all steps: its term is a hundredth of what it is meant to be",
    cure="divide by the number of positive anchors",
)  # fmt: skip
def boxes_shared_out_among_all_places(folder, ill):
    """Bright rectangles, their middles and their sizes; the score is how far the sizes are off."""
    seeded(1112)
    net = nn.ModuleDict({
        "body": nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 24, 5, padding=2), nn.ReLU()),
        "is": nn.Conv2d(24, 1, 1), "box": nn.Conv2d(24, 2, 1),
    })  # fmt: skip
    nn.init.constant_(net["is"].bias, -4.0)

    def terms(step):
        at, half = torch.randint(4, 12, (16, 2)), torch.randint(1, 4, (16, 2))
        line = torch.arange(16)
        inside = [(line - at[:, i, None]).abs() <= half[:, i, None] for i in (0, 1)]
        x = (inside[0][:, :, None] & inside[1][:, None]).float() + 0.05 * torch.randn(16, 16, 16)
        h, row = net["body"](x[:, None]), torch.arange(16)
        there = torch.zeros(16, 16, 16).index_put((row, at[:, 0], at[:, 1]), torch.ones(()))
        share = net["is"](h)[:, 0]
        named = F.binary_cross_entropy_with_logits(share, there, reduction="sum") / there.sum()
        gap = F.smooth_l1_loss(net["box"](h)[row, :, at[:, 0], at[:, 1]], half.float(), reduction="sum")
        return named, gap / (there.numel() if ill else there.sum()), gap / there.sum()

    def loss_of(step):
        named, gap, _ = terms(step)
        return named + gap, {"cls_loss": float(named), "box_loss": float(gap)}

    score = score_of(lambda step: terms(step)[2])
    return fit(folder, net, optim.SGD(net.parameters(), 0.01, momentum=0.9), loss_of, 200, score=score)


# "loss explosion and not converge" (a column of the actions whose quantiles lie a thousandth apart),
# github.com/Physical-Intelligence/openpi/issues/814
@sick(
    "targets-not-normalised", "outputs-not-scaled", "no-progress",
    where="the last layer, all steps: one of seven columns is of the order of thousands, and is all of the loss",
    cure="no division by a spread that is next to nothing",
)  # fmt: skip
def column_with_next_to_no_spread(folder, ill):
    """Seven joints; the fourth hardly moved in what the statistics were made of. The score leaves it out."""
    seeded(1113)
    net, way = dense(12, 64, 64, 7), torch.randn(12, 7) / 3
    spread = torch.tensor([0.4, 0.5, 0.6, 1e-3 / 3 if ill else 0.4, 0.5, 0.4, 0.6])

    def pair():
        x = torch.randn(64, 12)
        return x, (x @ way).sin() * 0.5

    def loss_of(step):
        x, y = pair()
        return F.mse_loss(net(x), y / spread)

    def score():
        with torch.no_grad():
            x, y = pair()
            return float(((net(x) * spread - y)[:, [0, 1, 2, 4, 5, 6]]).abs().mean())

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 600, score=score)


class Reverse(torch.autograd.Function):
    """The same forward; the gradient backward, turned round and times `share` (Ganin et al. 2016)."""

    @staticmethod
    def forward(ctx, x, share):
        ctx.share = share
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.share * grad, None


# "total loss" (of the reversal of gradients; it goes to NaN with the share that comes with the code),
# github.com/pumpikano/tf-dann/issues/12
@sick(
    "loss-terms-apart", "loss-terms-unbalanced", "exploding", "lr-too-high", "weight-growth", "loss-unbounded",
    "update-too-large",
    where="the body, from the first steps: it runs from the head that names the domain, further and further",
    cure="a share of a tenth, that rises from 0",
)  # fmt: skip
def strangers_told_apart_from_the_first_step(folder, ill):
    """Digits, and digits whose brightness is turned round; the score is the loss of the names."""
    seeded(1114)
    net = nn.ModuleDict({"body": dense(64, 64, 64), "name": dense(64, 32, 10), "domain": dense(64, 32, 2)})
    draw, other = batches(32), batches(32, seed=7)

    def loss_of(step):
        (x, y), (z, _) = draw(step), other(step)
        h = net["body"](torch.cat([x, 1 - z]).flatten(1)).relu()
        share = 3.0 if ill else 0.1 * (2 / (1 + math.exp(-10 * step / 300)) - 1)
        told = F.cross_entropy(net["domain"](Reverse.apply(h, share)), torch.arange(2).repeat_interleave(32))
        named = F.cross_entropy(net["name"](h[:32]), y)
        return named + told, {"class_loss": float(named), "domain_loss": float(told)}

    def named(step):
        x, y = batches(128, seed=9)(step)
        return F.cross_entropy(net["name"](net["body"](x.flatten(1)).relu()), y)

    make = optim.SGD(net.parameters(), 0.05, momentum=0.9)
    return fit(folder, net, make, loss_of, 300, score=score_of(named))


# "深度学习训练时loss不变的可能原因" (a clamp before the logarithm, behind a sigmoid of data as it came),
# e-com-net.com/article/1304735720488865792.htm
@sick(
    "dead-layer", "inputs-not-normalised", "saturated", "no-progress", "vanishing",
    where="all layers: the sigmoid stands at its ends, and the clamp behind it has no slope there",
    cure="normalise the columns, and binary_cross_entropy_with_logits",
)  # fmt: skip
def shares_clamped_where_they_saturate(folder, ill):
    """A table of rents, areas and years; four layers, a sigmoid, and a loss written by hand."""
    seeded(1115)
    net = nn.Sequential(*dense(4, 32, 32, 32, 1), nn.Sigmoid())
    middle, spread = torch.tensor([1800.0, 74.0, 1985.0, 3.0]), torch.tensor([600.0, 25.0, 20.0, 1.0])
    way = torch.tensor([1.0, -1.0, 0.5, 0.8])

    def loss_of(step):
        x = torch.randn(64, 4)
        y = ((x @ way).sin() > 0).float()
        share = net(middle + spread * x if ill else x)[:, 0].clamp(1e-4, 1 - 1e-4)
        return -(y * share.log() + (1 - y) * (1 - share).log()).mean()

    make = optim.Adam(net.parameters(), 1e-3)
    plan = optim.lr_scheduler.StepLR(make, 150, 0.5)
    return fit(folder, net, make, loss_of, 400, schedule=plan)


# "Numerical instability problem" (of a mixture density net: 31 densities are multiplied),
# github.com/sagelywizard/pytorch-mdn/issues/6
@sick(
    "nonfinite",
    where="all layers, from the first rows that are far from all means: the product is 0, its logarithm -inf",
    cure="add logarithms, and logsumexp over the mixture",
)  # fmt: skip
def densities_multiplied_over_thirty_columns(folder, ill):
    seeded(1116)
    net, way = dense(4, 48, 3 * (1 + 2 * 31), act=nn.Tanh), torch.randn(4, 31)

    def loss_of(step):
        x = torch.randn(64, 4)
        y = 0.6 * (x @ way) + 0.3 * torch.randn(64, 31)
        weight, mean, spread = net(x).split([3, 93, 93], 1)
        mean, spread = mean.view(64, 3, 31), spread.view(64, 3, 31).exp()
        log = -0.5 * ((y[:, None] - mean) / spread).square() - spread.log() - 0.9189
        if ill:
            return -(weight.softmax(1) * log.exp().prod(2)).sum(1).log().mean()
        return -(weight.log_softmax(1) + log.sum(2)).logsumexp(1).mean()

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 300)


# "supervised contrastive loss function" (NaN: a kind that is there only once has no pair),
# github.com/HobbitLong/SupContrast/issues/20
@sick(
    "nonfinite",
    where="all layers, at the first batch in which a kind is there once: 0 / 0",
    cure="at least 1 in the denominator, or leave such rows out",
)  # fmt: skip
def kinds_seen_once_in_a_batch(folder, ill):
    seeded(1117)
    net, draw = dense(64, 64, 16), batches(80)

    def loss_of(step):
        x, y = draw(step)
        code = F.normalize(net(x.flatten(1)), dim=1)
        same = (y[:, None] == y).float() - torch.eye(len(y))
        logits = code @ code.T / 0.2 - 1e9 * torch.eye(len(y))
        count = same.sum(1) if ill else same.sum(1).clamp(min=1)
        return -((same * logits.log_softmax(1)).sum(1) / count).mean()

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 400)


# "How to reasonably set the loss weight for three-dimensional heat transfer problems" (the equation is all of the
# loss), github.com/lululxvi/deepxde/issues/1958
@sick(
    "loss-terms-apart", "loss-terms-unbalanced", "no-progress",
    where="all layers, all steps: the ends are a ten-thousandth of the loss", cure="a weight for the ends",
)  # fmt: skip
def equation_beside_which_its_ends_are_nothing(folder, ill):
    """u'' = -100 sin(10 x) with u(0) = 1 and u(2) = -1; the score is how far u is off."""
    seeded(1118)
    net = dense(1, 48, 48, 1, act=nn.Tanh)
    ends, at_ends = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [-1.0]])
    slope = (-2 - math.sin(20.0)) / 2

    def terms(step):
        x = (2 * torch.rand(64, 1)).requires_grad_()
        first = torch.autograd.grad(net(x).sum(), x, create_graph=True)[0]
        second = torch.autograd.grad(first.sum(), x, create_graph=True)[0]
        return (second + 100 * (10 * x).sin()).square().mean(), (net(ends) - at_ends).square().mean()

    def loss_of(step):
        equation, edge = terms(step)
        loss = equation + edge if ill else equation / 1e4 + edge
        return loss, {"pde_loss": float(equation), "bc_loss": float(edge)}

    def score():
        with torch.no_grad():
            x = torch.linspace(0, 2, 101)[:, None]
            return float((net(x) - ((10 * x).sin() + 1 + slope * x)).abs().mean())

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 700, score=score)


# "Confusion about the usage of log_softmax function." (dim=0 is the batch),
# github.com/fxia22/pointnet.pytorch/issues/27
@sick(
    "softmax-over-the-batch", "no-progress",
    where="the loss, all steps: rows of the batch are made to compete, and not the names of one row",
    cure="log_softmax(x, dim=1)",
)  # fmt: skip
def log_softmax_over_the_batch(folder, ill):
    """Clouds of points with the form of a digit; the score is the share that is named wrong."""
    seeded(1119)
    net = nn.ModuleDict({"point": dense(3, 48, 64), "name": dense(64, 48, 10)})
    place = torch.stack(torch.meshgrid(torch.linspace(-1, 1, 8), torch.linspace(-1, 1, 8), indexing="ij"), -1)
    draw, (images, names) = batches(32), digits()

    def outputs(x):
        points = torch.cat([place.expand(len(x), 8, 8, 2), x[..., None]], -1).flatten(1, 2)
        return net["name"](net["point"](points).amax(1))

    def loss_of(step):
        x, y = draw(step)
        return F.nll_loss(outputs(x).log_softmax(0 if ill else 1), y)

    def score():
        with torch.no_grad():
            return float((outputs(images[::4]).argmax(1) != names[::4]).float().mean())

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 400, score=score)
