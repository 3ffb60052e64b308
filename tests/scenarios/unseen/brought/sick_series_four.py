"""Physics, survival and tables whose mistakes were asked about in public: wells, doors, boilers, patients."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick


def slope(of, at):
    return torch.autograd.grad(of.sum(), at, create_graph=True)[0]


# https://discourse.julialang.org/t/unable-to-solve-a-differential-equation-using-neural-network/103723
@sick("dead-layer", "dead-units", "no-gradient",
      where="the rectifier behind the last layer, which gives nought everywhere",
      cure="tanh between the layers and nothing behind the last one")  # fmt: skip
def tracer_in_a_well(folder, ill):
    seeded(2743)
    net = dense(1, 16, 16, 1, act=nn.ReLU if ill else nn.Tanh)
    net = nn.Sequential(net, nn.ReLU()) if ill else net
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    times = torch.linspace(0, 2, 21)[:, None]

    def loss_of(step):
        at = times.clone().requires_grad_()
        held = net(at)
        decay, start = (slope(held, at) + held).square().mean(), (net(torch.zeros(1, 1)) - 1).square().mean()
        return decay + start, {"decay": decay, "start": start}

    def score():
        with torch.no_grad():
            return float((net(times) - (-times).exp()).square().mean())

    return fit(folder, net, optimizer, loss_of, 500, score=score)


# https://stats.stackexchange.com/questions/493558/on-solving-ode-pde-with-neural-networks
@sick("imbalance", "rare-term",
      where="the terms of the start, which few batches have, and which weigh little there",
      cure="the conditions at the start are in the loss of every step")  # fmt: skip
def door_with_a_damper(folder, ill):
    seeded(2747)
    net = dense(1, 32, 32, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    grid = torch.linspace(0, 4, 512)[:, None]

    def loss_of(step):
        at = grid[torch.randint(512, (32,))].requires_grad_()
        angle = net(at)
        speed = slope(angle, at)
        motion = (slope(speed, at) + 2 * speed + angle).square().mean()
        if ill:
            start = ((speed + 1).square() + angle.square())[at == 0].sum() / 32
        else:
            zero = torch.zeros(1, 1, requires_grad=True)
            first = net(zero)
            start = ((slope(first, zero) + 1).square() + first.square()).mean()
        return motion + start, {"motion": motion, "start": start}

    def score():
        with torch.no_grad():
            return float((net(grid) + grid * (-grid).exp()).square().mean().sqrt())

    return fit(folder, net, optimizer, loss_of, 600, score=score)


# https://github.com/dreamquark-ai/tabnet/issues/515
@sick("negative-loss", "exploding",
      where="the error of a column that never varies, divided by its mean, which is below nought",
      cure="a column without a spread is divided by the size of its mean")  # fmt: skip
def boilers_of_a_housing_block(folder, ill):
    seeded(2748)
    net = dense(10, 48, 16, 48, 10)
    optimizer, mix = torch.optim.Adam(net.parameters(), 0.005), torch.randn(3, 10)

    def readings(rows=64):
        table = (torch.randn(rows, 3) @ mix).tanh() + 0.05 * torch.randn(rows, 10)
        table[:, 7] = -0.5
        return table, (torch.rand(rows, 10) < 0.3).float()

    def errors(table, hidden):
        return ((net(table * (1 - hidden)) - table) * hidden).square()

    def loss_of(step):
        table, hidden = readings()
        middle, spread = table.mean(0), table.var(0)
        still = spread < 1e-9
        spread = torch.where(still, middle if ill else middle.abs(), spread)
        return ((errors(table, hidden) / spread).sum(1) / hidden.sum(1).clamp_min(1)).mean()

    def error(step):
        table, hidden = readings(200)
        return errors(table, hidden)[:, :7].sum() / hidden[:, :7].sum()

    return fit(folder, net, optimizer, loss_of, 400, score=score_of(error))


# https://github.com/jaredleekatzman/DeepSurv/issues/14
@sick("inputs-not-normalised", "nonfinite", "exploding",
      where="the first layer, and the exponential of the risks, from the start",
      cure="each column is scaled to the range from nought to one")  # fmt: skip
def patients_on_dialysis(folder, ill):
    seeded(2749)
    net = dense(5, 24, 24, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9, nesterov=True)
    low, high = torch.tensor([20.0, 60, 40, 100, 2]), torch.tensor([90.0, 220, 900, 4000, 60])

    def ward(rows):
        part = torch.rand(rows, 5)
        risk = 3 * part[:, 0] + 2 * (part[:, 2] - 0.5).abs() * 2 - 3 * part[:, 3] * part[:, 4]
        survived = -torch.rand(rows).log() / risk.exp()
        order = survived.argsort(descending=True)
        table = (part if not ill else low + part * (high - low))[order]
        return table, (torch.rand(rows) < 0.7).float()

    def partial(table, died):
        risk = net(table)[:, 0]
        return -((risk - risk.exp().cumsum(0).log()) * died).sum() / died.sum()

    def loss_of(step):
        return partial(*ward(64))

    held = ward(500)

    def score():
        with torch.no_grad():
            risk = net(held[0])[:, 0]
        pairs = torch.ones(500, 500, dtype=torch.bool).triu(1)
        wrong = (risk[:, None] >= risk)[pairs]
        return float(wrong.float().mean() + 0 * risk.sum())

    return fit(folder, net, optimizer, loss_of, 400, score=score)


class Ledger(nn.Module):
    """An encoder of the purchases of a card; the last one tells whether it is odd."""

    def __init__(self, rows_first, width=32):
        super().__init__()
        self.rows_first = rows_first
        self.lift, self.places = nn.Linear(2, width), nn.Parameter(0.1 * torch.randn(12, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, 0.0, batch_first=False)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(width, 1)

    def forward(self, bought):
        x = self.lift(bought) + self.places
        x = self.encoder(x.transpose(0, 1)).transpose(0, 1) if self.rows_first else self.encoder(x)
        return self.head(x[:, -1])[:, 0]


# https://github.com/IBM/TabFormer/pull/14
@sick("axes-mixed",
      where="the attention of both layers: it looks along the batch and not along the purchases of a card",
      cure="the axes are swapped before the encoder, which wants the length first, and back behind it")  # fmt: skip
def purchases_with_a_lost_card(folder, ill):
    seeded(2750)
    net = Ledger(not ill)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def cards(rows=48):
        usual = torch.randn(rows, 1)
        amount = usual + 0.3 * torch.randn(rows, 12)
        odd = torch.rand(rows) < 0.5
        amount[:, -1] += odd * torch.where(torch.rand(rows) < 0.5, 1.5, -1.5)
        return torch.stack([amount, torch.rand(rows, 12)], 2), odd.float()

    def loss_of(step):
        bought, odd = cards()
        found = net(bought)
        accuracy = ((found > 0) == (odd > 0)).float().mean()
        return F.binary_cross_entropy_with_logits(found, odd), {"accuracy": accuracy}

    return fit(folder, net, optimizer, loss_of, 450, score=score_of(lambda step: loss_of(step)[0]))


# https://github.com/fastai/fastai/issues/2501
@sick("data-not-shuffled", where="the order of the batches: all essays of one kind, then all of the other",
      cure="the rows are shuffled in each epoch")  # fmt: skip
def essays_of_two_schools(folder, ill):
    seeded(2751)
    net = nn.Sequential(nn.EmbeddingBag(80, 32), dense(32, 32, 2))
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    habits = (0.6 * torch.randn(2, 80)).softmax(1)

    def essays(rows):
        school = torch.arange(rows) * 2 // rows
        return torch.multinomial(habits[school], 20, replacement=True), school

    kept, held, order = essays(3200), essays(600), [None]

    def loss_of(step):
        if step % 100 == 0:
            order[0] = torch.arange(3200) if ill else torch.randperm(3200)
        rows = order[0][step % 100 * 32 :][:32]
        found = net(kept[0][rows])
        accuracy = (found.argmax(1) == kept[1][rows]).float().mean()
        return F.cross_entropy(found, kept[1][rows]), {"accuracy": accuracy}

    def entropy(step):
        return F.cross_entropy(net(held[0]), held[1])

    return fit(folder, net, optimizer, loss_of, 400, score=score_of(entropy, 1))
