"""Around the optimizer: a slow copy, whole sets at once, averaged weights, a search distribution, inner steps."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, CyclicLR
from torch.optim.swa_utils import AveragedModel
from unseen import dense, fit, healthy, score_of, seeded, square_of
from unseen.tasks import clipped


def thatched_roofs():
    """`draw()`: pitch, shade, rain, moss, the straw's diameter and nitrogen; decades that it lasts."""

    def draw():
        x = torch.randn(96, 7)
        pitch, shade, rain, moss, thick, wide, nitrogen = x.T
        wet = F.softplus(rain + 0.7 * shade - pitch)
        rot = wet * torch.sigmoid(moss + nitrogen) + 0.3 * F.softplus(nitrogen)
        decades = 2.5 + 0.8 * thick + 0.3 * torch.sin(2 * wide) - rot
        return x, decades[:, None] + 0.1 * torch.randn(96, 1)

    return draw


@healthy()
def straw_of_a_thatched_roof(folder, every=6, share=0.5):
    seeded(2661)
    net = dense(7, 48, 48, 1, act=nn.Tanh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.25)
    slow = [p.detach().clone() for p in net.parameters()]
    loss_of = square_of(net, thatched_roofs())

    @torch.no_grad()
    def looked_ahead(step):
        if step % every == every - 1:
            for kept, p in zip(slow, net.parameters(), strict=True):
                p.copy_(kept.lerp_(p, share))

    return fit(folder, net, optimizer, loss_of, 840, after_step=looked_ahead,
               schedule=CosineAnnealingLR(optimizer, 840), score=score_of(loss_of))  # fmt: skip


class Strike(nn.Module):
    """A bell's sound as partials that die away, begun at the ratios of a bell in tune."""

    def __init__(self):
        super().__init__()
        self.register_buffer("ratios", torch.tensor([0.5, 1.0, 1.2, 1.5, 2.0]))
        self.cents = nn.Parameter(torch.zeros(5))
        self.in_phase = nn.Parameter(0.2 * torch.ones(5))
        self.out_of_phase = nn.Parameter(torch.zeros(5))
        self.log_decay = nn.Parameter(torch.zeros(5))

    def forward(self, seconds):
        turns = 6.2832 * 3 * self.ratios * (1 + 0.01 * self.cents) * seconds[:, None]
        wave = self.in_phase * turns.cos() + self.out_of_phase * turns.sin()
        return (torch.exp(-self.log_decay.exp() * seconds[:, None]) * wave).sum(1)


def recorded(seconds):
    """What a microphone heard of a bell that is out of tune by a few hundredths."""
    bell = Strike()
    with torch.no_grad():
        bell.cents.copy_(2 * torch.randn(5))
        bell.in_phase.copy_(0.3 + 0.5 * torch.rand(5))
        bell.out_of_phase.copy_(0.5 * torch.randn(5))
        bell.log_decay.copy_(torch.linspace(-0.7, 0.7, 5))
        return bell(seconds) + 0.02 * torch.randn(len(seconds))


@healthy()
def partials_of_a_carillon(folder):
    seeded(2662)
    seconds = torch.linspace(0, 2, 400)
    heard, net = recorded(seconds), Strike()
    optimizer = torch.optim.LBFGS(net.parameters(), lr=1.0, max_iter=2, history_size=20, line_search_fn="strong_wolfe")

    def loss_of(step):
        return F.mse_loss(net(seconds), heard)

    return fit(folder, net, optimizer, loss_of, 40, closure=True, score=score_of(loss_of, 1))


def waggles(steps=20):
    """`draw(rows)`: the path of a dancing bee on the comb; the field's direction as a point, and its distance."""
    time = torch.linspace(0, 1, steps)

    def draw(rows):
        bearing, far = 6.2832 * torch.rand(rows, 1), torch.rand(rows, 1)
        along, aside = (0.3 + far) * time, 0.2 * torch.sin(6.2832 * (4 * time + torch.rand(rows, 1)))
        x = along * bearing.cos() - aside * bearing.sin()
        y = along * bearing.sin() + aside * bearing.cos()
        path = torch.stack([x, y], 1) + 0.15 * torch.randn(rows, 2, steps)
        return path, torch.cat([bearing.cos(), bearing.sin(), 2 * far - 1], 1)

    return draw


@healthy()
def waggle_dance_of_bees(folder, cycle=60):
    seeded(2663)
    net = nn.Sequential(nn.Conv1d(2, 16, 5), nn.ReLU(), nn.Conv1d(16, 16, 5), nn.ReLU(), nn.Flatten(),
                        nn.Linear(192, 48), nn.ReLU(), nn.Linear(48, 3))  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    schedule = CyclicLR(optimizer, 0.005, 0.05, step_size_up=1, step_size_down=cycle - 1, cycle_momentum=False)
    average, draw = AveragedModel(net), waggles()

    def loss_of(step):
        path, field = draw(64)
        return F.mse_loss(net(path), field)

    def averaged(step):
        if step >= 4 * cycle and step % cycle == cycle - 1:
            average.update_parameters(net)

    def error(step):
        path, field = draw(256)
        return F.mse_loss(average(path), field)

    return fit(
        folder, net, optimizer, loss_of, 10 * cycle, after_step=averaged, schedule=schedule, score=score_of(error)
    )


class Recipes(nn.Module):
    """A normal distribution over recipes of a varnish: resins, oils, turpentine, days in the sun."""

    def __init__(self, parts):
        super().__init__()
        self.middle = nn.Parameter(torch.zeros(parts))
        self.log_spread = nn.Parameter(torch.zeros(parts))

    def drawn(self, pairs):
        noise = torch.randn(pairs, len(self.middle))
        with torch.no_grad():
            return self.middle + self.log_spread.exp() * torch.cat([noise, -noise])

    def log_likelihood(self, recipes):
        return torch.distributions.Normal(self.middle, self.log_spread.exp()).log_prob(recipes).sum(1)


def panel(parts):
    """`marks(recipes)`: the mark, of 30, that a panel gives for gloss and for tone, a little out of mood each time."""
    best = 1.5 * torch.randn(parts)
    weight = 0.5 + torch.rand(parts)

    def marks(recipes):
        gap = ((recipes - best).square() * weight).sum(1)
        return 30 / (1 + gap / 6) + torch.randn(len(recipes))

    return marks


def centred_ranks(marks):
    ranks = marks.argsort().argsort().float()
    return ranks / (len(marks) - 1) - 0.5


@healthy()
def varnish_of_violins(folder, parts=8):
    seeded(2664)
    net, marks = Recipes(parts), panel(parts)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.03)

    def loss_of(step):
        recipes = net.drawn(48)
        tasted = marks(recipes)
        surrogate = -(centred_ranks(tasted) * net.log_likelihood(recipes)).mean()
        return surrogate, {"mark": tasted.mean()}

    def missing_marks():
        return 30 - float(marks(net.drawn(512)).mean())

    return fit(folder, net, optimizer, loss_of, 400, schedule=CosineAnnealingLR(optimizer, 400), score=missing_marks)


def melts():
    """`melt()`: a glass of its own; `melt()(rows)` are cooling rates and the stress that is frozen in."""

    def melt():
        strain, middle, steep = 0.5 + 1.5 * torch.rand(1), 1.5 * torch.randn(1), 1 + torch.rand(1)

        def cooled(rows):
            rate = 4 * torch.rand(rows, 1) - 2
            return rate, strain * torch.tanh(steep * (rate - middle)) + 0.02 * torch.randn(rows, 1)

        return cooled

    return melt


@healthy()
def annealing_of_glass(folder, inner_rate=0.1):
    seeded(2665)
    net, melt = dense(1, 40, 40, 1, act=nn.Tanh), melts()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def adapted(rows, steps=2):
        weights = dict(net.named_parameters())
        rate, stress = rows
        for _ in range(steps):
            loss = F.mse_loss(functional_call(net, weights, (rate,)), stress)
            grads = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            weights = {name: w - inner_rate * g for (name, w), g in zip(weights.items(), grads, strict=True)}
        return weights

    def after_adapting():
        cooled = melt()
        weights = adapted(cooled(10))
        rate, stress = cooled(20)
        return F.mse_loss(functional_call(net, weights, (rate,)), stress)

    def loss_of(step):
        return torch.stack([after_adapting() for _ in range(4)]).mean()

    def score():
        return sum(float(after_adapting().detach()) for _ in range(64)) / 64

    return fit(folder, net, optimizer, loss_of, 400, before_step=clipped(net, 10.0),
               schedule=CosineAnnealingLR(optimizer, 400, eta_min=1e-4), score=score)  # fmt: skip
