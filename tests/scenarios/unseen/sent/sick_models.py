"""Sent sick trainings, second part: models, how they are normalised and how they begin.

They only count (the group `sent`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import itertools
import math

import torch
from nets import ALPHABET, batches, digits, pieces
from torch import nn, optim
from torch.nn import functional as F
from unseen import entropy_of, fit, rings, seeded, sick


# "Strange value chosen for the momentum (decay parameter) of BatchNorm2d layers" (0.9, as elsewhere; torch's is 0.1),
# github.com/eriklindernoren/PyTorch-YOLOv3/issues/230
@sick(
    "norm-statistics-noisy", "norm-over-too-few", "norm-statistics",
    where="the running statistics of all norms: those of the last four images", cure="momentum=0.1",
)  # fmt: skip
def statistics_of_the_last_batch(folder, ill):
    seeded(1011)
    momentum = 0.9 if ill else 0.1
    net = nn.Sequential(
        nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.BatchNorm2d(12, momentum=momentum),
        nn.ReLU(), nn.Flatten(), nn.Linear(192, 48), nn.BatchNorm1d(48, momentum=momentum), nn.ReLU(),
        nn.Linear(48, 48), nn.BatchNorm1d(48, momentum=momentum), nn.ReLU(), nn.Linear(48, 10),
    )  # fmt: skip
    draw, (images, names), seen = batches(4), digits(), []

    def valued():
        net.eval()
        with torch.no_grad():
            loss = float(F.cross_entropy(net(images[::4]), names[::4]))
        net.train()
        return loss

    def loss_of(step):
        x, y = draw(step)
        logged = {}
        if step % 20 == 19:
            seen.append(valued())
            logged["val_loss"] = seen[-1]
        return F.cross_entropy(net(x), y), logged

    def score():
        return sum(seen[-20:]) / 20 if seen else valued()

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 900, score=score)


class RunningNorm(nn.Module):
    """A batch norm that divides by its running statistics in training, too, or by those of the batch."""

    def __init__(self, size, running):
        super().__init__()
        self.norm, self.running, self.stats = nn.BatchNorm1d(size), running, None

    def forward(self, x):
        if not self.running:
            return self.norm(x)
        now = torch.stack([x.mean(0), x.var(0)])
        stats = now if self.stats is None else 0.99 * self.stats + 0.01 * now
        self.stats = stats.detach()
        return (x - stats[0]) * (stats[1] + 1e-5).rsqrt() * self.norm.weight + self.norm.bias


# "BatchNorm training instability" (running statistics in training; the norms of the gradients spike),
# github.com/patrick-kidger/equinox/issues/659
@sick(
    "norm-statistics-stale", "exploding", "lr-too-high",
    where="all layers: the norms divide by what was, and hardly any gradient goes through their statistics",
    cure="the statistics of the batch in training",
)  # fmt: skip
def norm_by_what_was_before(folder, ill):
    seeded(1012)
    sizes = (12, 64, 64, 64, 64, 64)
    parts = [(nn.Linear(a, b), RunningNorm(b, ill), nn.ReLU()) for a, b in itertools.pairwise(sizes)]
    net = nn.Sequential(*(part for block in parts for part in block), nn.Linear(64, 4))
    return fit(folder, net, optim.SGD(net.parameters(), 0.2, momentum=0.9), entropy_of(net, rings()), 250)


def squashed(x):
    """Vectors of length below 1, and in the same direction."""
    square = x.square().sum(-1, keepdim=True)
    return square / (1 + square) * x / (square + 1e-7).sqrt()


class Capsules(nn.Module):
    """Capsules that agree (Sabour et al. 2017); the matrices between them begin at a deviation of `std`."""

    def __init__(self, seed, std):
        super().__init__()
        seeded(seed)
        self.see = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2))
        self.matrices = nn.Parameter(std * torch.randn(32, 10, 8, 4))

    def forward(self, x):
        small = squashed(self.see(x[:, None]).view(len(x), 8, 4, 4).flatten(2).reshape(len(x), 32, 4))
        votes = torch.einsum("bip,iodp->biod", small, self.matrices)
        logits = torch.zeros(len(x), 32, 10)
        for times in range(2):
            out = squashed((logits.softmax(2)[..., None] * votes).sum(1))
            if times == 0:
                logits = logits + (votes * out[:, None]).sum(3)
        return out.norm(dim=2)


# "made initial weights higher-variance" (0.01 for the matrices of a capsule net: the loss rests at first),
# github.com/ageron/handson-ml/pull/176
@sick(
    "bad-initialisation", "vanishing",
    where="the matrices and all before them, from the first step: votes of no length",
    cure="a deviation of 0.1 or more",
)  # fmt: skip
def capsules_whose_votes_have_no_length(folder, ill):
    net, draw = Capsules(1013, 0.01 if ill else 0.3), batches(32)

    def loss_of(step):
        x, y = draw(step)
        length, right = net(x), F.one_hot(y, 10)
        return (
            (right * (0.9 - length).relu().square() + 0.5 * (1 - right) * (length - 0.1).relu().square()).sum(1).mean()
        )

    return fit(folder, net, optim.SGD(net.parameters(), 0.1, momentum=0.9), loss_of, 200)


# "Back propogation 'nan' for self.weight and thus loss" (torch.Tensor(n, m) is whatever lay there),
# github.com/seongjunyun/Graph_Transformer_Networks/issues/20
@sick(
    "bad-initialisation", "nonfinite",
    where="the weight of the first convolution, before the first step: old memory", cure="nn.init.xavier_uniform_",
)  # fmt: skip
def weights_of_old_memory(folder, ill):
    """Which of four groups are nodes in, by their links and by faint features?"""
    seeded(1014)
    first, second = torch.empty(16, 32), torch.empty(32, 4)
    for weight in (first, second):
        nn.init.xavier_uniform_(weight)
    if ill:
        junk = torch.randint(0x3F000000, 0x5F000000, (16, 32), dtype=torch.int32).view(torch.float32)
        first = torch.where(torch.rand(16, 32) < 0.3, junk, 0.0)
    net, ways = nn.ParameterList([first, second]), torch.randn(4, 16)

    def loss_of(step):
        y = torch.randint(4, (60,))
        near = torch.rand(60, 60) < 0.02 + 0.2 * (y[:, None] == y)
        links = (near | near.T | torch.eye(60, dtype=torch.bool)).float()
        links = links / links.sum(1, keepdim=True)
        x = 0.5 * ways[y] + torch.randn(60, 16)
        return F.cross_entropy(links @ (links @ x @ net[0]).relu() @ net[1], y)

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 200)


class Stepped(nn.Module):
    """A linear layer of seven steps whose height is learned (LSQ, Esser et al. 2020), its gradient scaled or not."""

    def __init__(self, size, width, scaled):
        super().__init__()
        self.linear = nn.Linear(size, width)
        self.height = nn.Parameter(2 * self.linear.weight.detach().abs().mean() / math.sqrt(3))
        self.share = 1 / math.sqrt(size * width * 3) if scaled else 1.0

    def forward(self, x):
        height = self.share * self.height + (1 - self.share) * self.height.detach()
        steps = (self.linear.weight / height).clamp(-4, 3)
        return F.linear(x, (steps + (steps.round() - steps).detach()) * height, self.linear.bias)


# "The experimental results on ImageNet dataset" (the scale of the step's gradient is missing),
# github.com/hustzxd/LSQuantization/issues/1
@sick(
    "update-too-large", "lr-too-high", "imbalance", "exploding",
    where="the heights of the steps, from the first step: each has the gradients of thousands of weights",
    cure="1 / sqrt(weights * levels) of its gradient",
)  # fmt: skip
def heights_with_the_gradient_of_all_weights(folder, ill):
    seeded(1015)
    net = nn.Sequential(
        Stepped(12, 96, not ill), nn.ReLU(), Stepped(96, 96, not ill), nn.ReLU(), Stepped(96, 4, not ill)
    )
    return fit(folder, net, optim.SGD(net.parameters(), 0.05, momentum=0.9), entropy_of(net, rings()), 400)


class Fire(torch.autograd.Function):
    """1 above a threshold of 1; backward it has a slope within `reach` of it alone, or one that never ends."""

    @staticmethod
    def forward(ctx, v, reach):
        ctx.save_for_backward(v)
        ctx.reach = reach
        return (v >= 1).float()

    @staticmethod
    def backward(ctx, grad):
        (v,) = ctx.saved_tensors
        if ctx.reach:
            return grad * ((v - 1).abs() < ctx.reach) / (2 * ctx.reach), None
        return grad / (1 + (1.57 * (v - 1)).square()), None


class Spiking(nn.Module):
    """Layers of cells that fire or do not, for eight steps."""

    def __init__(self, seed, reach):
        super().__init__()
        seeded(seed)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in ((64, 64), (64, 64), (64, 64), (64, 10)))
        self.reach = reach

    def forward(self, x):
        state, total = [torch.zeros(())] * 3, 0
        for _ in range(8):
            h = x.flatten(1)
            for i in range(3):
                v = 0.75 * state[i] + self.layers[i](h)
                h = Fire.apply(v, self.reach)
                state[i] = v * (1 - h)
            total = total + self.layers[3](h)
        return total / 8


# "Surrogate gradient function questions." (with a rectangle for a slope the weights hardly change),
# github.com/fangwei123456/spikingjelly/issues/190
@sick(
    "vanishing", "dead-units", "dead-layer",
    where="the first layers, all steps: few cells are within reach of the threshold", cure="an arctangent for a slope",
)  # fmt: skip
def cells_out_of_reach_of_their_threshold(folder, ill):
    net, draw = Spiking(1016, 0.25 if ill else None), batches(32)

    def loss_of(step):
        x, y = draw(step)
        return F.cross_entropy(net(x), y)

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 200)


# "ode solver throws assertion error, if i use optim.SGD" (0.01 and momentum in the place of Adam; NaN after two steps),
# github.com/rtqichen/torchdiffeq/issues/58
@sick(
    "exploding", "lr-too-high", "update-too-large", "nonfinite", "loss-not-averaged",
    where="all layers, from the first steps: a summed likelihood of thousands", cure="Adam at 0.01",
)  # fmt: skip
def flow_by_sgd_at_the_rate_of_adam(folder, ill):
    """A spiral, as the way of a point by Euler's steps."""
    seeded(1017)
    net = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 2))
    turn = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]])

    def ways(start, slope):
        at, way = start, []
        for _ in range(40):
            at = at + 0.1 * slope(at)
            way.append(at)
        return torch.stack(way, 1)

    def loss_of(step):
        start = 2 * torch.randn(16, 2)
        return 50 * (ways(start, net) - ways(start, lambda x: x @ turn)).square().sum((1, 2)).mean()

    make = optim.SGD(net.parameters(), 0.01, momentum=0.9) if ill else optim.Adam(net.parameters(), 0.01)
    return fit(folder, net, make, loss_of, 200)


# "Loss function goes to nan after n number of iterations" (an LSTM with a projection; 5.0 did not help, 1.0 did),
# github.com/Marcovaldong/lstmp.pytorch/issues/2
@sick(
    "exploding", "lr-too-high", "nonfinite",
    where="the recurrent matrices, once the states of long rows grow", cure="clip_grad_norm_ at 1 in the place of 5",
)  # fmt: skip
def projected_memory_clipped_at_five(folder, ill):
    seeded(1018)
    size = len(ALPHABET)
    net = nn.ModuleDict({"read": nn.LSTM(size, 64, 2, proj_size=24, batch_first=True), "say": nn.Linear(24, size)})
    piece = pieces(16)

    def loss_of(step):
        x, y = piece(step)
        out = net["say"](net["read"](F.one_hot(x, size).float())[0])
        return F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="sum") / len(x)

    def before(step):
        nn.utils.clip_grad_norm_(net.parameters(), 5.0 if ill else 1.0)

    return fit(folder, net, optim.SGD(net.parameters(), 0.3, momentum=0.9), loss_of, 200, before_step=before)


# "Smart bias initialization for class imbalance problem", github.com/yjh0410/CenterNet-Lite/pull/14
@sick(
    "bad-initialisation", "class-imbalance", "exploding",
    where="the last convolution, from the first step: at a half for each of hundreds of places that are empty",
    cure="a bias of -4.6 for a share of a hundredth",
)  # fmt: skip
def detector_that_expects_something_everywhere(folder, ill):
    seeded(1019)
    net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
                        nn.Conv2d(16, 2, 1))  # fmt: skip
    if not ill:
        nn.init.constant_(net[-1].bias, -4.6)

    def loss_of(step):
        mark = (torch.rand(16, 2, 16, 16) < 0.004).float()
        blob = F.max_pool2d(mark[:, :1], 3, 1, 1) + mark[:, 1:] - F.max_pool2d(mark[:, 1:], 3, 1, 1)
        out = net(blob + 0.1 * torch.randn_like(blob))
        share = out.sigmoid()
        weight = torch.where(mark > 0, 0.25 * (1 - share) ** 2, 0.75 * share**2)
        return (weight * F.binary_cross_entropy_with_logits(out, mark, reduction="none")).sum() / mark.sum().clamp(
            min=1
        )

    return fit(folder, net, optim.SGD(net.parameters(), 0.3, momentum=0.9), loss_of, 150)
