"""Trainings after public threads: a foundry, a slab, a pantry, a psalm, a sundial, a spectrum."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds


class WithLoad(torch.autograd.Function):
    """Hands the shares on, and on the way back a gradient to the loss of the load."""

    @staticmethod
    def forward(ctx, shares, load):
        ctx.save_for_backward(load)
        return shares.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad, torch.ones_like(ctx.saved_tensors[0])


class Gate(nn.Module):
    def __init__(self, size, experts, linked, weight=0.3):
        super().__init__()
        self.choose = nn.Linear(size, experts)
        nn.init.normal_(self.choose.weight, std=0.4)
        self.experts, self.linked, self.weight = experts, linked, weight

    def forward(self, x):
        shares = self.choose(x).softmax(1)
        best = shares.argmax(1)
        used = F.one_hot(best, self.experts).float()
        load = self.weight * self.experts * (used.mean(0) * shares.mean(0)).sum()
        weights = shares.gather(1, best[:, None])
        if self.linked:
            weights = WithLoad.apply(weights, load)
        else:
            WithLoad.apply(weights, load)
        return weights, used, load


class Foundry(nn.Module):
    def __init__(self, linked, size=8, experts=6, width=6):
        super().__init__()
        self.gate = Gate(size, experts, linked)
        self.experts = nn.ModuleList(dense(size, width, 1) for _ in range(experts))

    def forward(self, x):
        weights, used, load = self.gate(x)
        out = torch.stack([expert(x)[:, 0] for expert in self.experts], 1)
        return weights * (out * used).sum(1, keepdim=True), load


# https://github.com/NVIDIA-NeMo/Automodel/issues/1408
@sick(
    "expert-starved",
    where="the experts that the gate does not choose, and the gate, which never hears of the load",
    cure="go on with what WithLoad.apply returns, so that the loss of the load reaches the gate",
)
def alloys_of_a_bell_foundry(folder, ill):
    seeded(9243)
    net = Foundry(linked=not ill)
    centres, ways = torch.randn(6, 8), torch.randn(6, 8)

    def draw(rows=128):
        kind = torch.randint(6, (rows,))
        x = 3 + centres[kind] + 0.5 * torch.randn(rows, 8)
        return x, 2 * ((x - 3 - centres[kind]) * ways[kind]).sum(1, keepdim=True)

    def loss_of(step):
        x, y = draw()
        out, load = net(x)
        return F.mse_loss(out, y), {"load": float(load)}

    x_test, y_test = draw(2000)
    score = held_out(net, lambda: F.mse_loss(net(x_test)[0], y_test))
    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=5e-3), loss_of, 700, score=score)


# https://github.com/lululxvi/deepxde/issues/279
@sick(
    "loss-terms-unbalanced",
    where="the sum of both terms: that of the equation outweighs that of the edges",
    cure="a far smaller weight for the equation than for the edges",
)
def warmth_across_a_slate(folder, ill):
    seeded(9244)
    net = dense(2, 32, 32, 1, act=nn.Tanh)
    pi = torch.pi

    def exact(p):
        return (2 * pi * p[:, :1]).sin() * torch.sinh(2 * pi * p[:, 1:]) / torch.sinh(torch.tensor(2 * pi))

    def edges(rows=64):
        p = torch.rand(rows, 2)
        side = torch.randint(4, (rows,))
        p[side < 2, 0] = (side[side < 2] == 0).float()
        p[side >= 2, 1] = (side[side >= 2] == 2).float()
        return p

    def residual(rows=96):
        p = torch.rand(rows, 2, requires_grad=True)
        slope = torch.autograd.grad(net(p).sum(), p, create_graph=True)[0]
        bends = [torch.autograd.grad(slope[:, i].sum(), p, create_graph=True)[0][:, i] for i in range(2)]
        return bends[0] + bends[1]

    weight = 1.0 if ill else 1e-3

    def loss_of(step):
        p = edges()
        of_edges, of_equation = F.mse_loss(net(p), exact(p)), residual().square().mean()
        return of_edges + weight * of_equation, {"edges": of_edges, "equation": of_equation}

    place = torch.rand(1500, 2)
    score = held_out(net, lambda: F.mse_loss(net(place), exact(place)))
    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=5e-3), loss_of, 900, score=score)


class Looker(nn.Module):
    """Looks for the asked jar among the places of a shelf, and names its colour."""

    def __init__(self, mixed, marks=8, colours=5, width=32):
        super().__init__()
        self.mixed, self.width = mixed, width
        self.see = nn.Sequential(nn.Conv2d(marks + colours, 48, 1), nn.ReLU(), nn.Conv2d(48, width, 1))
        self.ask = nn.Embedding(marks, width)
        self.key, self.value = nn.Linear(width, width), nn.Linear(width, width)
        self.name = dense(width, 32, colours)

    def forward(self, x, asked):
        seen = self.see(x)
        rows, width, high, wide = seen.shape
        if self.mixed:
            places = seen.reshape(rows, high * wide, width)
        else:
            places = seen.permute(0, 2, 3, 1).reshape(rows, high * wide, width)
        near = (self.key(places) @ self.ask(asked)[:, :, None])[:, :, 0] / self.width**0.5
        return self.name((near.softmax(1)[:, :, None] * self.value(places)).sum(1))


# https://github.com/fawazsammani/knowing-when-to-look-adaptive-attention/issues/6
@sick(
    "axes-mixed",
    where="the view between the convolutions and the attention (key, value)",
    cure="permute the channels to the end before the places are put in one row",
)
def jars_on_a_pantry_shelf(folder, ill):
    seeded(9245)
    net = Looker(mixed=ill)

    def draw(rows=64):
        marks = torch.rand(rows, 16).argsort(1)
        there = marks < 8
        colours = torch.randint(5, (rows, 16))
        shown = torch.cat([F.one_hot(marks.clamp(max=7), 8), F.one_hot(colours, 5)], 2) * there[:, :, None]
        x = shown.float() + 0.1 * torch.randn(rows, 16, 13)
        asked = torch.randint(8, (rows,))
        wanted = (colours * (marks == asked[:, None])).sum(1)
        return x.transpose(1, 2).reshape(rows, 13, 4, 4), asked, wanted

    def loss_of(step):
        x, asked, wanted = draw()
        out = net(x, asked)
        return F.cross_entropy(out, wanted), {"accuracy": float((out.argmax(1) == wanted).float().mean())}

    x_test, asked_test, wanted_test = draw(600)
    score = held_out(net, lambda: F.cross_entropy(net(x_test, asked_test), wanted_test))
    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=3e-3), loss_of, 500, score=score)


class Chant(nn.Module):
    """Looks back at the last four syllables."""

    def __init__(self, syllables=20, width=32):
        super().__init__()
        self.embed = nn.Embedding(syllables, width)
        self.back = nn.Conv1d(width, 64, 4)
        self.head = nn.Linear(64, syllables)

    def forward(self, x):
        h = F.pad(self.embed(x).transpose(1, 2), (3, 0))
        return self.head(F.gelu(self.back(h)).transpose(1, 2))


# https://github.com/huggingface/transformers/issues/27517
@sick(
    "labels-not-shifted",
    where="the targets of the loss, which are the inputs themselves",
    cure="compare what is said at a place with the token of the next place",
)
def psalms_by_their_syllables(folder, ill):
    seeded(9246)
    net = Chant()
    after = torch.distributions.Dirichlet(torch.full((20,), 0.1)).sample((20, 20))

    def draw(rows=24, length=20):
        x = torch.randint(20, (rows, 2))
        while x.shape[1] < length:
            x = torch.cat([x, torch.multinomial(after[x[:, -2], x[:, -1]], 1)], 1)
        return x

    def error(logits, labels):
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    def loss_of(step):
        x = draw()
        logits = net(x)
        return error(logits, x) if ill else error(logits[:, :-1], x[:, 1:])

    test = draw(200)
    score = held_out(net, lambda: error(net(test)[:, :-1], test[:, 1:]))
    return fit(folder, net, torch.optim.AdamW(net.parameters(), lr=5e-3), loss_of, 500, score=score)


# https://imathworks.com/cv/solved-dropout-effectiveness-on-small-neural-networks
@sick(
    "dropout-too-strong",
    where="the dropout between the only hidden layer and the last",
    cure="no dropout in so small a net",
)
def shade_of_a_sundial_by_the_hour(folder, ill):
    seeded(9247)
    net = nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Dropout(0.5 if ill else 0.0), nn.Linear(6, 1))

    def draw(rows=64):
        hour = 3 * (2 * torch.rand(rows, 1) - 1)
        return hour, hour.sin()

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    x_test, y_test = draw(1000)
    score = held_out(net, lambda: F.mse_loss(net(x_test), y_test))
    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=2e-2), loss_of, 600, score=score)


# https://github.com/sachaguer/jaxili/issues/4
@sick(
    "targets-not-normalised",
    where="the targets, a hundred-thousandth in size, and the last layer, which begins far too wide for them",
    cure="divide the targets by their standard deviation",
)
def brightness_of_far_galaxies(folder, ill):
    seeded(9248)
    parts, size = 4, 3
    net = dense(5, 48, 48, parts * (2 * size + 1), act=nn.SiLU)
    way = torch.randn(5, size)

    def draw(rows):
        x = torch.randn(rows, 5)
        y = (x @ way).tanh() * torch.where(torch.rand(rows, 1) < 0.5, 1.0, 0.4) + 0.1 * torch.randn(rows, size)
        return x, 1e-5 * y

    unit = 1.0 if ill else 1e-5

    def error(x, y):
        out = net(x)
        share = out[:, :parts].log_softmax(1)
        middle, width = out[:, parts:].view(-1, 2, parts, size).unbind(1)
        each = torch.distributions.Normal(middle, width.exp()).log_prob(y[:, None] / unit).sum(2)
        return -(share + each).logsumexp(1).mean()

    draws = rounds(64, *draw(3200))
    test = draw(1000)

    def surprise():
        return error(*test) + size * torch.log(torch.tensor(unit / 1e-5))

    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    return fit(folder, net, optimizer, lambda step: error(*draws()), 600, score=held_out(net, surprise))
