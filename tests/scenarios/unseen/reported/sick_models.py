"""Reported sick trainings, third part: nets, data and agents.

Mistakes that people made and asked about; a comment names the thread that each was drawn from. They only count
(the group `reported`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import copy
import math

import torch
from nets import ALPHABET, batches, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick


# "White space", github.com/munshisanowarraihan/nerf-meta/issues/3
@sick(
    "dead-units", "dead-layer", "no-progress", "no-gradient",
    where="all layers, once the density is 0 everywhere", cure="softplus in the place of relu for the density",
)  # fmt: skip
def density_that_is_nowhere(folder, ill):
    """A small dark disc before a white wall, seen along lines; what no density hides is white."""
    seeded(341)
    field, depth = dense(2, 48, 48, 2), torch.linspace(-1, 1, 24)
    nn.init.constant_(field[-1].bias, -0.5)

    def loss_of(step):
        angle, off = 6.2832 * torch.rand(128, 1), 1.6 * torch.rand(128, 1) - 0.8
        along = torch.cat([angle.cos(), angle.sin()], 1)
        across = torch.cat([-angle.sin(), angle.cos()], 1)
        out = field(off[:, :, None] * across[:, None] + depth[:, None] * along[:, None])
        dense_here = (out[..., 0].relu() if ill else F.softplus(out[..., 0])) * 4 / 24
        left = (-dense_here.cumsum(1)).exp()
        seen = left[:, -1] + ((torch.cat([torch.ones(128, 1), left[:, :-1]], 1) - left) * out[..., 1].sigmoid()).sum(1)
        return F.mse_loss(seen, 1 - 0.9 * (off[:, 0].abs() < 0.3).float())

    return fit(folder, field, optim.Adam(field.parameters(), 5e-3), loss_of, 400)


class Tied(nn.Module):
    """Reads signs from a table, and writes them with the same."""

    def __init__(self, width=128):
        super().__init__()
        self.table = nn.Embedding(len(ALPHABET), width)
        self.memory = nn.GRU(width, width, batch_first=True)

    def forward(self, x):
        rows = self.table(x)
        return F.layer_norm(rows + self.memory(rows)[0], rows.shape[2:]) @ self.table.weight.T


# "Better initialization in Embedding class", github.com/pytorch/pytorch/issues/3121;
# "lm_head weights initialization: set variance to reciprocal", github.com/huggingface/transformers/pull/26441
@sick(
    "bad-initialisation", "initialised-too-large",
    where="the table, from the first step: a loss far above the logarithm of the alphabet",
    cure="a standard deviation of 0.02 for the table that is also the last layer",
)  # fmt: skip
def table_of_unit_size_at_both_ends(folder, ill):
    seeded(342)
    net = Tied()
    if not ill:
        nn.init.normal_(net.table.weight, std=0.02)
    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), predict(net, pieces(16)), 150)


class Forecast(nn.Module):
    """A memory, and a few layers behind its last state: in a list that the module knows, or in one that it does not."""

    def __init__(self, known):
        super().__init__()
        self.memory = nn.LSTM(1, 4, batch_first=True)
        parts = [nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 5)]
        self.parts = nn.ModuleList(parts) if known else parts

    def forward(self, x):
        h = self.memory(x)[0][:, -1]
        for part in self.parts:
            h = part(h)
        return h


# "Loss not decreasing in LSTM network", discuss.pytorch.org/t/159152
@sick(
    "not-in-optimizer",
    "no-gradient", "no-progress",
    where="the layers behind the memory, which parameters() does not name", cure="nn.ModuleList, not a list",
)  # fmt: skip
def layers_in_a_plain_list(folder, ill):
    """The next five values of two waves."""
    seeded(343)
    net = Forecast(known=not ill)

    def loss_of(step):
        at = 20 * torch.rand(64, 1) + 0.4 * torch.arange(25)
        wave = at.sin() + 0.5 * (2.3 * at).cos()
        return F.mse_loss(net(wave[:, :20, None]), wave[:, 20:])

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 300)


# "The dangers of reshaping and other fun mistakes I've learnt from PyTorch",
# medium.com/mcgill-artificial-intelligence-review (b6a5bdc1c275)
@sick(
    "no-progress", "noise-dominated", "axes-mixed",
    where="the last layer: what it reads of a row are states of other rows", cure="transpose before the reshape",
)  # fmt: skip
def states_of_other_rows(folder, ill):
    seeded(344)
    net = nn.ModuleDict({"memory": nn.GRU(8, 24, batch_first=True, bidirectional=True), "head": nn.Linear(48, 10)})
    draw = batches(64)

    def loss_of(step):
        x, y = draw(step)
        last = net["memory"](x)[1]
        return F.cross_entropy(net["head"]((last if ill else last.transpose(0, 1)).reshape(64, 48)), y)

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 250)


# "Linear regression predicts Boston housing prices & the reason for loss is NAN", syntaxbug.com/d1e7d3ba69
@sick(
    "inputs-not-normalised", "exploding", "lr-too-high", "nonfinite", "update-too-large", "weight-growth",
    where="the only layer, from the first steps", cure="columns of mean 0 and unit size",
)  # fmt: skip
def houses_by_their_raw_columns(folder, ill):
    seeded(345)
    net = nn.Linear(6, 1)
    middle, spread = torch.tensor([4.0, 11, 0.5, 6, 400, 18]), torch.tensor([8.0, 7, 0.1, 0.7, 170, 2])
    worth = torch.tensor([-1.0, -0.5, -2, 4, -1.5, -2])

    def loss_of(step):
        unit = torch.randn(32, 6)
        price = 22 + unit @ worth + torch.randn(32)
        return F.mse_loss(net(middle + spread * unit if ill else unit)[:, 0], price)

    return fit(folder, net, optim.SGD(net.parameters(), 0.01), loss_of, 300)


# "Stock Price Prediction and Forecasting using Stacked LSTM" (it is very sensitive to the scale),
# analyticsvidhya.com/blog/2021/05/stock-price-prediction-and-forecasting-using-stacked-lstm
@sick(
    "inputs-not-normalised", "saturated", "no-progress",
    where="the memory, whose gates stand at their ends", cure="prices scaled to unit size before they go in",
)  # fmt: skip
def line_for_every_price(folder, ill):
    """The price of the day after from twenty days; the target is scaled in both."""
    seeded(346)
    net = nn.ModuleDict({"memory": nn.LSTM(1, 32, 2, batch_first=True), "head": nn.Linear(32, 1)})

    def loss_of(step):
        at = 30 * torch.rand(64, 1) + 0.5 * torch.arange(21)
        price = 3000 + 300 * at.sin() + 30 * torch.randn(64, 21)
        unit = (price - 3000) / 300
        seen = price if ill else unit
        return F.mse_loss(net["head"](net["memory"](seen[:, :20, None])[0][:, -1])[:, 0], unit[:, 20])

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 200)


# "DCGAN Batch Norm initialization" (all weights around 0, or gains around 1), github.com/pytorch/examples/issues/516
@sick(
    "bad-initialisation", "vanishing",
    where="the gains of the norms, which began at 0.02, and all that lies before them",
    cure="gains of 1: only the other weights are drawn around 0",
)  # fmt: skip
def gains_drawn_as_if_they_were_weights(folder, ill):
    seeded(347)
    parts = [nn.Unflatten(1, (1, 8))]
    for i in range(8):
        parts += [nn.Conv2d(1 if i == 0 else 12, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU()]
    net, draw = nn.Sequential(*parts, nn.Flatten(), nn.Linear(768, 10)), batches(32)
    for part in net.modules():
        if isinstance(part, (nn.Linear, nn.Conv2d)):
            nn.init.normal_(part.weight, 0, 0.02)
        elif isinstance(part, nn.BatchNorm2d):
            nn.init.normal_(part.weight, 0 if ill else 1, 0.02)

    def loss_of(step):
        x, y = draw(step)
        return F.cross_entropy(net(x), y)

    return fit(folder, net, optim.SGD(net.parameters(), 0.02, momentum=0.9), loss_of, 80)


# "ReLU and residual connections", github.com/ComputationalDomain/PINNs/issues/1
@sick(
    "no-progress",
    where="all layers: the equation's half of the loss gives them nothing",
    cure="tanh: the second derivative of a net of relus is 0",
)  # fmt: skip
def equation_for_a_net_of_corners(folder, ill):
    """u'' = -9 sin 3x, u(0) = 0, u(3) = sin 9; the score is how far it is from sin 3x."""
    seeded(348)
    net = dense(1, 48, 48, 1, act=nn.ReLU if ill else nn.Tanh)
    ends = torch.tensor([[0.0], [3.0]])

    def loss_of(step):
        x = (3 * torch.rand(64, 1)).requires_grad_(True)
        slope = torch.autograd.grad(net(x).sum(), x, create_graph=True)[0]
        bend = torch.autograd.grad(slope.sum(), x, create_graph=True)[0] if slope.requires_grad else 0 * x
        return (bend / 9 + (3 * x.detach()).sin()).square().mean() + F.mse_loss(net(ends), (3 * ends).sin())

    def score():
        x = torch.linspace(0, 3, 100)[:, None]
        with torch.no_grad():
            return float(F.mse_loss(net(x), (3 * x).sin()))

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 800, score=score)


# "RuntimeError normal expects std >= 0.0 - Gradient Explosion", github.com/amazon-far/holosoma/issues/25
@sick(
    "nonfinite", "exploding",
    where="the spread, once it is 0 or below", cure="learn the logarithm of the spread",
)  # fmt: skip
def spread_that_may_go_below_zero(folder, ill):
    """Pushes that pay more the nearer they come to what the state asks for."""
    seeded(350)
    net, way = dense(3, 48, 48, 2), torch.randn(3, 2)
    spread = nn.Parameter(torch.full((2,), 0.6 if ill else math.log(0.6)))
    net.register_parameter("spread", spread)

    def paid(state, action):
        return -(action - (state @ way).tanh()).square().sum(1)

    def loss_of(step):
        state = torch.randn(256, 3)
        middle, wide = net(state), spread if ill else spread.exp()
        with torch.no_grad():
            action = middle + wide * torch.randn(256, 2)
            gain = paid(state, action)
            gain = (gain - gain.mean()) / gain.std()
        log = (-0.5 * ((action - middle) / wide).square() - wide.log()).sum(1)
        share = (log - log.detach()).exp()
        return -torch.minimum(share * gain, share.clamp(0.8, 1.2) * gain).mean()

    def score():
        state = torch.randn(512, 3)
        with torch.no_grad():
            return -float(paid(state, net(state)).mean())

    return fit(folder, net, optim.Adam(net.parameters(), 1e-2), loss_of, 400, score=score)


# "TD loss diverging in DQN workflow", github.com/facebookresearch/ReAgent/issues/189;
# "not using target network in the dqn", github.com/abhi1345/deep-q-rank/issues/4
@sick(
    "exploding", "lr-too-high", "weight-growth", "nonfinite",
    where="all layers: a value is chased by the value it follows", cure="a copy that is refreshed every hundred steps",
)  # fmt: skip
def values_that_chase_themselves(folder, ill):
    """A walk on a line of length two, paid at its right end; the score is the error of the best values."""
    seeded(351)
    net = dense(1, 64, 64, 2)
    slow = copy.deepcopy(net).requires_grad_(False)

    def moved(at, action):
        there = (at + 0.2 * (2 * action[:, None] - 1)).clamp(-1, 1)
        return there, (there[:, 0] > 0.9).float()

    def loss_of(step):
        if step % 100 == 0:
            slow.load_state_dict(net.state_dict())
        at, action = 2 * torch.rand(64, 1) - 1, torch.randint(2, (64,))
        there, paid = moved(at, action)
        with torch.no_grad():
            target = paid + 0.95 * (net if ill else slow)(there).max(1).values
        return F.mse_loss(net(at).gather(1, action[:, None])[:, 0], target)

    def score():
        at = torch.linspace(-0.9, 0.9, 10)[:, None]
        steps = ((0.9 - at[:, 0]) / 0.2).floor()
        with torch.no_grad():
            return float((net(at).max(1).values - 20 * 0.95**steps).abs().mean())

    return fit(folder, net, optim.SGD(net.parameters(), 0.05, momentum=0.9), loss_of, 2500, score=score)
