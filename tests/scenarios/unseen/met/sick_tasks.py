"""Met sick trainings, fourth part: agents, rivals, graphs, what is rendered.

They only count (the group `met`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import math

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import play


class Choosing(nn.Module):
    """A choice of two, and the logarithm of what its entropy is worth (SAC, Haarnoja et al. 2018)."""

    def __init__(self):
        super().__init__()
        self.choose, self.worth = dense(6, 32, 2, act=nn.Tanh), nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return self.choose(x).log_softmax(1)


# "Mean of expectation in SAC_discrete.py possibly wrong?" (an entropy of 0.98 of the largest is never reached),
# github.com/p-christ/Deep-Reinforcement-Learning-Algorithms-with-PyTorch/issues/54
@sick(
    "weight-growth", "loss-terms-apart", "loss-terms-unbalanced", "entropy-too-strong", "no-progress",
    where="the worth of the entropy, which rises all the time; the choice is a coin at last",
    cure="an entropy that a good choice has, such as a third of the largest",
)  # fmt: skip
def entropy_that_no_good_choice_has(folder, ill):
    seeded(925)
    net, best, states = Choosing(), torch.randn(6, 2), torch.randn(512, 6)
    wanted = (0.98 if ill else 0.3) * math.log(2)

    def loss_of(step):
        x = states[torch.randint(512, (64,))]
        logs = net(x)
        shares, gains = logs.exp(), 0.5 * x @ best + 0.2 * torch.randn(64, 2)
        entropy = -(shares * logs).sum(1)
        worth = net.worth.exp()
        return (-(shares * gains).sum(1) - worth.detach() * entropy + worth * (entropy.detach() - wanted)).mean()

    def score():
        with torch.no_grad():
            return 1 - float((net(states).exp() * 0.5 * (states @ best)).sum(1).mean())

    return fit(folder, net, optim.Adam(net.parameters(), 1e-2), loss_of, 500, score=score)


# "White space" (an unlucky beginning behind a ReLU; softplus learns), github.com/munshisanowarraihan/nerf-meta/issues/3
@sick(
    "dead-units", "dead-layer", "no-gradient", "no-progress",
    where="all layers, all steps: a density below zero everywhere, and nothing comes back through its ReLU",
    cure="softplus for the density",
)  # fmt: skip
def density_that_is_nowhere_above_zero(folder, ill):
    """A disc seen along straight lines, before white (NeRF, Mildenhall et al. 2020)."""
    seeded(926)
    net, rates = dense(16, 48, 48, 4), 2.0 ** torch.arange(4)
    with torch.no_grad():
        net[-1].bias[3] = -1.5
        net[-1].weight[3] *= 0.3

    def loss_of(step):
        turn, aside = 6.28 * torch.rand(64, 1), 2 * torch.rand(64, 1) - 1
        along = torch.linspace(-1, 1, 24)
        spots = torch.stack([along * turn.cos() - aside * turn.sin(), along * turn.sin() + aside * turn.cos()], 2)
        waves = (spots[..., None] * rates).flatten(2)
        out = net(torch.cat([waves.sin(), waves.cos()], 2))
        dense_at = out[..., 3].relu() if ill else F.softplus(out[..., 3])
        passed = (-dense_at * 0.4).exp()
        before = torch.cat([torch.ones(64, 1), passed.cumprod(1)], 1)
        weights = before[:, :-1] * (1 - passed)
        seen = (weights[..., None] * out[..., :3].sigmoid()).sum(1) + before[:, -1:]
        hit = ((spots - torch.tensor([0.2, 0.1])).norm(dim=2) < 0.6).any(1)
        return F.mse_loss(seen, torch.tensor([0.1, 0.3, 0.8]).where(hit[:, None], 1.0))

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 300)


# "[BUG]" (the edges of the first graph for a batch of many), github.com/ai4co/rl4co/issues/227
@sick(
    "edges-missing", "no-progress",
    where="the layer of messages: of fifteen graphs in sixteen no node hears another", cure="edges of every graph",
)  # fmt: skip
def edges_of_the_first_graph_for_all(folder, ill):
    """What is the largest difference that each node has to a neighbour?"""
    seeded(929)
    net = nn.ModuleDict({"say": dense(2, 32, 32), "hear": dense(33, 32, 1)})

    def loss_of(step):
        x = torch.randn(16, 12, 1)
        links = torch.rand(16, 12, 12) < 0.25
        links = links | links.transpose(1, 2) | torch.eye(12, dtype=torch.bool)
        wanted = (x - x.transpose(1, 2)).abs().where(links, 0.0).amax(2, keepdim=True)
        if ill:
            links[1:] = torch.eye(12, dtype=torch.bool)
        pairs = torch.stack([x.expand(16, 12, 12), x.transpose(1, 2).expand(16, 12, 12)], 3)
        heard = net["say"](pairs).where(links[..., None], -1e9).amax(2)
        return F.mse_loss(net["hear"](torch.cat([x, heard], 2)), wanted)

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 300)


class Pushing(nn.Module):
    """A push that is drawn around what the net says, with a deviation that is learned."""

    def __init__(self):
        super().__init__()
        self.middle, self.spread = dense(4, 32, 1, act=nn.Tanh), nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return torch.distributions.Normal(self.middle(x)[:, 0], self.spread.exp())


# "[Question] Continuous action space not being searched well" (from -2000 to 2000, drawn around 0 by 1),
# github.com/hill-a/stable-baselines/issues/637
@sick(
    "update-too-small", "no-progress", "noise-dominated", "outputs-not-scaled",
    where="the last layer: pushes of one where thousands are wanted", cure="pushes from -1 to 1, scaled where they act",
)  # fmt: skip
def pushes_of_one_where_thousands_are_wanted(folder, ill):
    seeded(930)
    net, way, unit = Pushing(), torch.randn(4), 1.0 if ill else 2000.0

    def gains(push, x):
        return -(push * unit - 1200 * (x @ way).tanh()).abs() / 1000

    def loss_of(step):
        x = torch.randn(128, 4)
        pushes = net(x)
        push = pushes.sample()
        gain = gains(push, x)
        ahead = (gain - gain.mean()) / (gain.std() + 1e-8)
        return -(ahead * pushes.log_prob(push)).mean(), {"return": gain.mean()}

    def score():
        with torch.no_grad():
            x = torch.randn(1024, 4)
            return -float(gains(net(x).mean, x).mean())

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 500, score=score)


# "fix: numerical instability in WGAN-GP gradient norm computation", github.com/keras-team/keras-io/pull/2364
@sick(
    "nonfinite",
    where="the judge, in the first step: the root of a slope that is exactly 0", cure="an epsilon below the root",
)  # fmt: skip
def slope_of_a_judge_that_says_nothing_yet(folder, ill):
    """The judge's last layer begins at zero."""
    seeded(950)
    make, judge = dense(4, 48, 48, 2), dense(2, 48, 48, 1)
    nn.init.zeros_(judge[-1].weight)

    def judge_loss(real, made):
        share = torch.rand(len(real), 1)
        between = (share * real + (1 - share) * made).requires_grad_()
        slope = torch.autograd.grad(judge(between).sum(), between, create_graph=True)[0]
        length = (slope.square().sum(1) + (0.0 if ill else 1e-8)).sqrt()
        return judge(made).mean() - judge(real).mean() + (length - 1).square().mean()

    of_make, of_judge = (optim.Adam(net.parameters(), 2e-3, (0.5, 0.9)) for net in (make, judge))
    return play(folder, make, judge, of_make, of_judge, judge_loss, lambda made: -judge(made).mean(), 250, rounds=3)


# "Scaling target variables" (all around -2700: what is said is their mean), discuss.pytorch.org/t/41046
@sick(
    "targets-not-normalised", "saturated", "dead-units", "lr-too-high", "no-progress",
    where="all layers, in the first steps: an error of thousands drives every tanh to its end",
    cure="targets of mean 0 and deviation 1",
)  # fmt: skip
def targets_far_below_zero(folder, ill):
    """Two layers of five, inputs between -1 and 1."""
    seeded(951)
    net = dense(3, 5, 5, 1, act=nn.Tanh)

    def draw():
        x = 2 * torch.rand(32, 3) - 1
        y = (2 * x[:, :1] + x[:, 1:2] * x[:, 2:]).sin()
        return x, 40 * y - 2700 if ill else y

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    def score():
        with torch.no_grad():
            x, y = draw()
            return float((net(x) - y).square().mean().sqrt()) / (40 if ill else 1)

    return fit(folder, net, optim.SGD(net.parameters(), 0.05, momentum=0.9), loss_of, 600, score=score)
