"""Sound trainings: rounded weights, thirty steps, three thousand steps, uneven batches, two halves in turn."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded
from unseen.tasks import held_out, in_turn, rounds, tend

# -------------------------------------------------------------------------------------------- oven, rounded weights


def rounded(weight, bits=4):
    """Each output's weights on the few levels of so many bits; backward they pass as they are."""
    step = weight.detach().abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    return weight + ((weight / step).round() * step - weight).detach()


class Rounded(nn.Linear):
    """A linear layer whose weights have four bits."""

    def forward(self, x):
        return F.linear(x, rounded(self.weight), self.bias)


def bakes(batch=96, minutes=32):
    """`draw()`: the temperature of an oven minute by minute, and whether the crust is pale, golden or burnt."""
    time = torch.arange(minutes) / minutes

    def draw():
        top, pace, steam = torch.rand(3, batch, 1).unbind(0)
        damp = 0.4 * steam * (-8 * (time - 0.2).square()).exp()
        heat = (0.6 + 0.8 * top) * (1 - (-(3 + 6 * pace) * time).exp()) - damp
        browned = (3 * (heat - 0.7)).exp().mean(1) + 0.05 * torch.randn(batch)
        crust = (browned > 0.8).long() + (browned > 1.4).long()
        return 2 * (heat - 0.7) + 0.1 * torch.randn(batch, minutes), crust

    return draw


@healthy()
def crust_of_a_loaf_on_a_small_chip(folder):
    seeded(2772)
    net, draw = nn.Sequential(Rounded(32, 48), nn.ReLU(), Rounded(48, 48), nn.ReLU(), Rounded(48, 3)), bakes()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)

    def loss_of(step):
        x, crust = draw()
        found = net(x)
        return F.cross_entropy(found, crust), {"accuracy": float((found.argmax(1) == crust).float().mean())}

    score = score_of(lambda step: loss_of(step)[0])
    return fit(folder, net, optimizer, loss_of, 500, score=score, schedule=schedule)


# --------------------------------------------------------------------------------------------- roads, thirty steps


class Roads(nn.Module):
    """What passes each crossing in an hour, from the last hours there and next to it."""

    def __init__(self, beside, hours, width=32):
        super().__init__()
        self.register_buffer("beside", beside)
        self.here, self.near = nn.Linear(hours, width), nn.Linear(hours, width)
        self.then, self.leave = nn.Linear(2 * width, width), nn.Linear(width, 1)

    def forward(self, counts):
        met = (self.here(counts) + self.near(self.beside @ counts)).relu()
        met = self.then(torch.cat([met, self.beside @ met], 2)).relu()
        return self.leave(met)[..., 0]


def traffic(days, crossings=30, hours=5):
    """The share of each neighbour, and counts `[days, crossings, hours]`, standardized, that flow along the roads."""
    places = torch.rand(crossings, 2)
    beside = (-(torch.cdist(places, places) / 0.15).square()).exp() * (1 - torch.eye(crossings))
    beside = beside / beside.sum(1, keepdim=True)
    counts = [torch.randn(days, crossings)]
    for _ in range(hours):
        flow = 0.4 * counts[-1] + 0.9 * (counts[-1] @ beside.T).tanh()
        counts.append(flow + 0.1 * torch.randn(days, crossings))
    counts = torch.stack(counts, 2)
    return beside, counts / counts.std()


@healthy()
def cars_on_a_network_of_roads(folder):
    seeded(2773)
    beside, counts = traffic(400)
    past, ahead = counts[..., :-1], counts[..., -1]
    net = Roads(beside, past.shape[2])
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=30)
    score = held_out(net, lambda: F.mse_loss(net(past[300:]), ahead[300:]))

    def loss_of(step):
        return F.mse_loss(net(past[:300]), ahead[:300])

    return fit(folder, net, optimizer, loss_of, 30, score=score, schedule=schedule)


# ------------------------------------------------------------------------------------------ steel, three thousand steps


def strips(count):
    """Gap, force, tensions, speed, heat and widths of a rolling mill, and how thick the strip comes out."""
    state = torch.randn(count, 8)
    gap, force, back, front, speed, heat = state[:, :6].unbind(1)
    thick = gap + 0.5 * force * torch.sigmoid(-heat) - 0.3 * back * front + 0.4 * (2 * speed).tanh()
    thick = thick + 0.05 * torch.randn(count)
    return state, ((thick - thick.mean()) / thick.std())[:, None]


@healthy()
def thickness_of_a_rolled_strip(folder):
    seeded(2774)
    state, thick = strips(9000)
    net, draw = dense(8, 32, 32, 1, act=nn.Tanh), rounds(32, state[:8000], thick[:8000])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9985)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    score = held_out(net, lambda: F.mse_loss(net(state[8000:]), thick[8000:]))
    return fit(folder, net, optimizer, loss_of, 3000, score=score, schedule=schedule)


# ------------------------------------------------------------------------------------------------ board, uneven batches


def boards(batch):
    """Boards of three by three with three crosses and noughts each, and whether cross can win at once."""
    order = torch.rand(batch, 9).argsort(1)
    signs = torch.tensor([1.0, 1, 1, -1, -1, -1, 0, 0, 0])
    board = torch.zeros(batch, 9).scatter_(1, order, signs.expand(batch, 9))
    lines = torch.tensor([[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]])
    wins = (board[:, lines].sum(2) == 2) & ((board[:, lines] < 0).sum(2) == 0)
    return torch.cat([(board > 0).float(), (board < 0).float()], 1), wins.any(1).float()


@healthy()
def crosses_about_to_win(folder):
    seeded(2775)
    net, steps = dense(18, 128, 128, 1, act=nn.GELU), 900
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    def error(board, wins):
        return F.binary_cross_entropy_with_logits(net(board)[:, 0], wins)

    def one(step):
        optimizer.zero_grad()
        board, wins = boards(128)
        cuts = [0, *(torch.randperm(126)[:3] + 1).sort().values.tolist(), 128]
        total = 0.0
        for start, end in pairwise(cuts):
            part = error(board[start:end], wins[start:end]) * ((end - start) / 128)
            part.backward()
            total += float(part.detach())
        optimizer.step()
        schedule.step()
        return {"loss": total}

    return tend(folder, net, optimizer, one, steps, score_of(lambda step: error(*boards(256))))


# --------------------------------------------------------------------------------------------- wine, two halves in turn


class Spectra(nn.Module):
    """The light that each compound takes away, above zero everywhere."""

    def __init__(self, compounds, waves):
        super().__init__()
        self.raw = nn.Parameter(0.5 * torch.randn(compounds, waves) - 1)

    def forward(self):
        return F.softplus(self.raw)


class Shares(nn.Module):
    """How much of each compound is in each wine."""

    def __init__(self, wines, compounds):
        super().__init__()
        self.raw = nn.Parameter(0.1 * torch.randn(wines, compounds))

    def forward(self):
        return self.raw.softmax(1)


def cellar(wines=200, compounds=4, waves=60):
    """The spectra of wines that are mixed of a few compounds."""
    line, middles = torch.arange(waves).float(), torch.tensor([8.0, 22.0, 36.0, 50.0])
    pure = 3 * (-((line - middles[:compounds, None]) / 7).square()).exp() + 0.2 * torch.rand(compounds, waves)
    return (1.5 * torch.randn(wines, compounds)).softmax(1) @ pure + 0.03 * torch.randn(wines, waves)


@healthy()
def compounds_in_the_spectra_of_wines(folder):
    seeded(2776)
    seen, spectra, shares = cellar(), Spectra(4, 60), Shares(200, 4)
    of_spectra = torch.optim.Adam(spectra.parameters(), lr=0.03)
    of_shares = torch.optim.Adam(shares.parameters(), lr=0.05)

    def loss_of_spectra():
        return F.mse_loss(shares().detach() @ spectra(), seen)

    def loss_of_shares():
        return F.mse_loss(shares() @ spectra().detach(), seen)

    def score():
        with torch.no_grad():
            return float(F.mse_loss(shares() @ spectra(), seen))

    turns = (of_shares, of_spectra, loss_of_spectra, loss_of_shares, 400, score)
    return in_turn(folder, shares, spectra, *turns, names=("spectra", "shares"))
