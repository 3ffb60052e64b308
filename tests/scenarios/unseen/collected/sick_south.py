"""Graphs, optimizers of one's own and series of time: mistakes that people told about in public."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import held_out, rounds

# ------------------------------------------------------------------------------------------------------------- graphs


class Messages(nn.Module):
    """Each node hears its neighbours several times; the mean of all nodes goes to a head."""

    def __init__(self, sizes, ill):
        super().__init__()
        layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]
        self.layers = layers if ill else nn.ModuleList(layers)
        self.head = dense(sizes[-1], 16, 1)

    def forward(self, x, near):
        for layer in self.layers:
            x = F.relu(layer(x + near @ x))
        return self.head(x.mean(1))


# https://github.com/qbxlvnf11/graph-neural-networks-for-graph-classification/pull/3
@sick(
    "not-in-optimizer",
    where="all layers that pass messages, from the first step on; only the head is trained",
    cure="keep the layers in an nn.ModuleList",
)
def boiling_of_liquids_by_their_bonds(folder, ill):
    seeded(3031)
    way = torch.randn(20) / 2

    def draw(rows=32, nodes=8):
        x = torch.randn(rows, nodes, 20)
        bonds = (torch.rand(rows, nodes, nodes) < 0.25).float().triu(1)
        bonds = bonds + bonds.transpose(1, 2)
        near = bonds / bonds.sum(2, keepdim=True).clamp(min=1)
        y = 2 * ((x + near @ x) @ way).abs().mean(1, keepdim=True) - 4
        return x, near, y

    net = Messages([20, 16, 16], ill)

    def loss_of(step):
        x, near, y = draw()
        return F.mse_loss(net(x, near), y)

    optimizer = torch.optim.Adam(net.parameters(), 4e-3)
    return fit(folder, net, optimizer, loss_of, 450, score=score_of(loss_of, 16))


class Neighbours(nn.Module):
    """Attention among the members of a set that is filled up to the longest one of its batch."""

    def __init__(self, size, width, empty):
        super().__init__()
        self.inward = nn.Linear(size, width)
        self.ask, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.head = dense(width, width, 1)
        self.empty = empty

    def forward(self, x, there):
        h = self.inward(x).tanh()
        weights = self.ask(h) @ self.key(h).transpose(1, 2) / h.shape[-1] ** 0.5
        both = there[:, :, None] & there[:, None, :]
        weights = weights.masked_fill(~both, self.empty).softmax(-1)
        h = h + weights @ self.value(h)
        each = torch.zeros(there.shape).masked_scatter(there, self.head(h[there])[:, 0])
        return each.sum(1) / there.sum(1)


# https://github.com/dmlc/dgl/issues/2657
@sick(
    "nonfinite",
    where="the layers before the attention, from the first backward on: rows of the softmax that are masked all over",
    cure="a large negative number in place of minus infinity, or no mask for rows that are padding themselves",
)
def votes_of_committees(folder, ill):
    seeded(3032)
    way = torch.randn(5)

    def draw(rows=48, most=9):
        x = torch.randn(rows, most, 5)
        there = torch.arange(most) < torch.randint(2, most + 1, (rows, 1))
        x = x * there[:, :, None]
        mean = x.sum(1, keepdim=True) / there.sum(1)[:, None, None]
        y = (((x - mean) @ way).abs() * there).sum(1) / there.sum(1)
        return x, there, y

    net = Neighbours(5, 24, -float("inf") if ill else -1e9)

    def loss_of(step):
        x, there, y = draw()
        return F.mse_loss(net(x, there), y)

    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    return fit(folder, net, optimizer, loss_of, 500, score=score_of(loss_of))


# https://github.com/DeepGraphLearning/graphvite/issues/6
@sick(
    "bad-initialisation",
    where="both tables, all steps: their products have no gradient where all factors are zero",
    cure="draw the tables at random before training",
)
def kin_in_a_village(folder, ill):
    seeded(3033)
    people, ways = 0.7 * torch.randn(60, 6), torch.randn(5, 6)

    class Facts(nn.Module):
        def __init__(self, width=12):
            super().__init__()
            self.people = nn.Parameter(torch.zeros(60, width))
            self.ways = nn.Parameter(torch.zeros(5, width))
            if not ill:
                nn.init.normal_(self.people, std=0.5)
                nn.init.normal_(self.ways, std=0.5)

        def forward(self, who, how, whom):
            return (self.people[who] * self.ways[how] * self.people[whom]).sum(1)

    net = Facts()

    def loss_of(step):
        who, whom, how = torch.randint(60, (256,)), torch.randint(60, (256,)), torch.randint(5, (256,))
        true = ((people[who] * ways[how] * people[whom]).sum(1) > 0).float()
        return F.binary_cross_entropy_with_logits(net(who, how, whom), true)

    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    return fit(folder, net, optimizer, loss_of, 800, score=score_of(loss_of))


# ----------------------------------------------------------------------------------------- optimizers of one's own


class Heavy(torch.optim.Optimizer):
    """Gradient descent with a velocity."""

    def __init__(self, params, lr, momentum, ill):
        super().__init__(params, {"lr": lr, "momentum": momentum})
        self.ill = ill

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "velocity" not in state:
                    state["velocity"] = torch.zeros_like(p)
                velocity = state["velocity"]
                if self.ill:
                    velocity.add_(p.grad, alpha=group["momentum"])
                else:
                    velocity.mul_(group["momentum"]).add_(p.grad)
                p.add_(velocity, alpha=-group["lr"])


# https://github.com/ooples/AiDotNet/issues/2008
@sick(
    "momentum-never-decays",
    "update-too-large",
    where="all layers; the steps grow from the first one on",
    cure="v = momentum * v + gradient: the coefficient belongs to the velocity",
)
def weight_of_fish(folder, ill):
    seeded(3034)
    x = torch.randn(2000, 7)
    y = (x[:, :1] * x[:, 1:2] + (x[:, 2:5] @ torch.randn(3, 1)).sin()) + 0.1 * torch.randn(2000, 1)
    net, draw = dense(7, 48, 48, 1, act=nn.Tanh), rounds(64, x[:1600], y[:1600])

    def loss_of(step):
        rows, wanted = draw()
        return F.mse_loss(net(rows), wanted)

    score = held_out(net, lambda: F.mse_loss(net(x[1600:]), y[1600:]))
    return fit(folder, net, Heavy(net.parameters(), 0.02, 0.9, ill), loss_of, 900, score=score)


class Moments(torch.optim.Optimizer):
    """Adam, as its authors write it down."""

    def __init__(self, params, lr, ill, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})
        self.ill = ill

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                state["t"] += 1
                m = state["m"].clone().mul_(b1).add_(p.grad, alpha=1 - b1)
                v = state["v"].clone().mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                if not self.ill:
                    state["m"], state["v"] = m, v
                mean, square = m / (1 - b1 ** state["t"]), v / (1 - b2 ** state["t"])
                p.sub_(group["lr"] * mean / (square.sqrt() + group["eps"]))


# https://github.com/raskr/rust-autograd/issues/16
@sick(
    "optimizer-state-lost",
    where="all layers, all steps: the moments begin at zero each time",
    cure="store the new moments in the state of the optimizer",
)
def ferry_around_the_lake(folder, ill):
    seeded(3035)
    places, moves = 24, torch.tensor([-1, 0, 1])
    angle = 6.2832 * torch.arange(places) / places
    seen = torch.stack([f(k * angle) for k in (1, 2, 3) for f in (torch.sin, torch.cos)], 1)
    pay = (2 * angle).sin() + (angle + 1).cos()
    after = (torch.arange(places)[:, None] + moves) % places
    worth = torch.zeros(places, 3)
    for _ in range(200):
        worth = pay[after] + 0.8 * worth.max(1).values[after]
    pay, worth = pay - 0.2 * worth.mean(), worth - worth.mean()
    net, behind = dense(6, 64, 64, 3), dense(6, 64, 64, 3)

    def loss_of(step):
        if step % 20 == 0:
            behind.load_state_dict(net.state_dict())
        at, move = torch.randint(places, (64,)), torch.randint(3, (64,))
        then = after[at, move]
        with torch.no_grad():
            wanted = pay[then] + 1.5 * torch.randn(64) + 0.8 * behind(seen[then]).max(1).values
        value = net(seen[at]).gather(1, move[:, None])[:, 0]
        return F.smooth_l1_loss(value, wanted), {"value": value.mean()}

    score = held_out(net, lambda: (net(seen) - worth).square().mean())
    return fit(folder, net, Moments(net.parameters(), 8e-3, ill), loss_of, 800, score=score)


# ------------------------------------------------------------------------------------------------------ series of time


# https://github.com/sktime/sktime/issues/10931
@sick(
    "shapes-broadcast",
    where="the loss, all steps; the head learns the mean of the batch",
    cure="squeeze the predictions to the shape of the targets",
)
def pulse_of_runners(folder, ill):
    seeded(3036)

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv1d(2, 16, 5), nn.ReLU(), nn.Conv1d(16, 16, 5), nn.ReLU())
            self.head = nn.Linear(16, 1)

        def forward(self, x):
            return self.head(self.body(x).mean(2))

    time = torch.linspace(0, 1, 40)
    rate, height = 2 + 4 * torch.rand(1200, 1), 0.5 + torch.rand(1200, 1)
    first = height * (6.2832 * rate * time).sin()
    x = torch.stack([first, torch.randn(1200, 40) * 0.3 + height], 1) + 0.1 * torch.randn(1200, 2, 40)
    y = (rate[:, 0] - 4) * height[:, 0]
    net, draw = Reader(), rounds(48, x[:1000], y[:1000])

    def loss_of(step):
        rows, wanted = draw()
        found = net(rows)
        return F.mse_loss(found if ill else found[:, 0], wanted)

    score = held_out(net, lambda: F.mse_loss(net(x[1000:])[:, 0], y[1000:]))
    return fit(folder, net, torch.optim.Adam(net.parameters(), 3e-3), loss_of, 600, score=score)
