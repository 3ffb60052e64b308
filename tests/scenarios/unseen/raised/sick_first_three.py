"""Trainings with mistakes that people reported of equations, tiles, heads, enlargements, pairs and rivals."""

from __future__ import annotations

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, fit, score_of, seeded, sick
from unseen.tasks import held_out, rounds

import gradwatch

# ---------------------------------------------------------------------------------------------------------- an equation


def slope(y, x):
    return torch.autograd.grad(y.sum(), x, create_graph=True)[0]


# https://github.com/lululxvi/deepxde/issues/80
@sick("no-second-derivative", where="the term of the equation, in all steps: it passes nothing back",
      cure="a smooth activation, tanh for one")  # fmt: skip
def heat_of_a_rod_by_its_equation(folder, ill):
    seeded(2824)
    net = dense(1, 40, 40, 1, act=nn.ReLU if ill else nn.Tanh)

    def heat(x):
        return (3.1416 * x).sin() + 0.5 * (6.2832 * x).sin()

    def source(x):
        return 9.8696 * (3.1416 * x).sin() + 0.5 * 39.4784 * (6.2832 * x).sin()

    ends = torch.tensor([[0.0], [1.0]])

    def loss_of(step):
        x = torch.rand(64, 1, requires_grad=True)
        pde = (slope(slope(net(x), x), x) + source(x)).square().mean()
        bc = F.mse_loss(net(ends), heat(ends))
        return pde + 100 * bc, {"pde": pde, "bc": bc}

    def score():
        with torch.no_grad():
            x = torch.linspace(0, 1, 200)[:, None]
            return float(F.mse_loss(net(x), heat(x)))

    return fit(folder, net, torch.optim.Adam(net.parameters(), 3e-3), loss_of, 900, score=score)


# ------------------------------------------------------------------------------------------------------------- pictures


def tiles(rows=64):
    """Pictures of 6 by 6 in three colours: one colour for the ground and another one for a square."""
    ground, square = torch.rand(2, rows, 3, 1, 1)
    at, left, top = torch.arange(6), torch.randint(4, (rows, 1)), torch.randint(4, (rows, 1))
    across, down = (at >= left) & (at < left + 3), (at >= top) & (at < top + 3)
    inside = (down[:, :, None] & across[:, None])[:, None]
    return torch.where(inside, square, ground).flatten(1)


# https://github.com/Lasagne/Recipes/issues/54
@sick("targets-out-of-range", "negative-loss", where="the binary cross-entropy of pixels that are no chances",
      cure="the likelihood of a Gaussian for pixels of any size")  # fmt: skip
def painted_tiles_in_three_colours(folder, ill):
    seeded(2825)
    net = nn.ModuleDict({"encoder": dense(108, 96, 24), "decoder": dense(12, 96, 108)})
    some = tiles(2000)
    middle, spread = some.mean(0), some.std(0)

    def parts(x):
        mean, logvar = net["encoder"](x).chunk(2, 1)
        out = net["decoder"](mean + (0.5 * logvar).exp() * torch.randn_like(mean))
        if ill:
            error = F.binary_cross_entropy_with_logits(out, x, reduction="none").sum(1).mean()
            out = out.sigmoid()
        else:
            error = 0.5 * (out - x).square().sum(1).mean()
        return error, -0.5 * (1 + logvar - mean**2 - logvar.exp()).sum(1).mean(), out

    def loss_of(step):
        error, divergence, _ = parts((tiles() - middle) / spread)
        return error + divergence, {"reconstruction": error, "kl": divergence}

    def fresh():
        x = (tiles(512) - middle) / spread
        return F.mse_loss(parts(x)[2], x)

    return fit(folder, net, torch.optim.Adam(net.parameters(), 1e-3), loss_of, 800, score=held_out(net, fresh))


# --------------------------------------------------------------------------------------------------------------- a head


class Pail(nn.Module):
    """What is said of the one thing of many that matters."""

    def __init__(self, dim):
        super().__init__()
        self.value, self.dim = nn.Linear(9, 32), dim
        self.attention = nn.Sequential(nn.Linear(9, 32), nn.Tanh(), nn.Linear(32, 1))
        self.head = dense(32, 64, 5)

    def forward(self, x):
        share = self.attention(x).softmax(self.dim)
        return self.head((share * self.value(x)).sum(1))


# https://github.com/phanideepgampa/stacked-capsule-networks/pull/5
@sick("dead-layer", "softmax-over-one", where="both layers of the attention: its softmax runs over an axis of one",
      cure="the softmax over the things, dim 1")  # fmt: skip
def the_heaviest_pebble_in_a_pail(folder, ill):
    seeded(2826)
    net, looks = Pail(2 if ill else 1), torch.randn(5, 8)

    def pails(rows=64):
        kind, weight = torch.randint(5, (rows, 12)), torch.randn(rows, 12)
        x = torch.cat([looks[kind] + 0.3 * torch.randn(rows, 12, 8), weight[..., None]], 2)
        return x, kind.gather(1, weight.argmax(1)[:, None])[:, 0]

    def loss_of(step):
        x, y = pails()
        out = net(x)
        return F.cross_entropy(out, y), {"accuracy": (out.argmax(1) == y).float().mean()}

    def fresh():
        x, y = pails(512)
        return F.cross_entropy(net(x), y)

    return fit(folder, net, torch.optim.Adam(net.parameters(), 3e-3), loss_of, 600, score=held_out(net, fresh))


# --------------------------------------------------------------------------------------------------------- enlargements


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)
        )

    def forward(self, x):
        return x + self.inner(x)


# https://github.com/jmiller656/EDSR-Tensorflow/issues/50
@sick("lr-too-high", where="the learning rate, in the later steps: it never falls",
      cure="a learning rate that falls exponentially")  # fmt: skip
def frost_on_a_window_enlarged(folder, ill):
    seeded(2827)
    net = nn.Sequential(nn.Conv2d(1, 24, 3, padding=1), Block(24), Block(24), Block(24), Block(24),
                        nn.Conv2d(24, 4, 3, padding=1), nn.PixelShuffle(2))  # fmt: skip

    def frost(rows=16):
        at = torch.linspace(0, 1, 12)
        way, phase = 10 * torch.randn(3, rows, 2, 1, 1), 6.2832 * torch.rand(3, rows, 1, 1)
        fine = (way[:, :, 0] * at[:, None] + way[:, :, 1] * at + phase).sin().mean(0)[:, None]
        return F.avg_pool2d(fine, 2), fine

    def loss_of(step):
        coarse, fine = frost()
        return F.l1_loss(net(coarse), fine)

    optimizer = torch.optim.Adam(net.parameters(), 2e-2)
    falling = None if ill else torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    return fit(folder, net, optimizer, loss_of, 400, schedule=falling, score=score_of(loss_of))


# --------------------------------------------------------------------------------------------------- a pair of networks


def dunes(rows=128):
    x = 4 * torch.rand(rows) - 2
    return torch.stack([x, (2 * x).sin() + 0.05 * torch.randn(rows)], 1)


def apart(a, b):
    """How far two clouds are from each other (energy distance)."""
    return float(2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean())


# https://github.com/Lightning-AI/pytorch-lightning/issues/591
@sick("gradients-accumulate", where="the discriminator: what the generator's loss left there is in each of its steps",
      cure="the gradients of both are cleared before each backward pass")  # fmt: skip
def dunes_made_by_a_pair(folder, ill):
    seeded(2828)
    make, judge = dense(4, 64, 64, 2), dense(2, 64, 64, 1)
    of_make, of_judge = (torch.optim.Adam(net.parameters(), 1e-3, betas=(0.5, 0.999)) for net in (make, judge))

    def generator_step():
        return -judge(make(torch.randn(128, 4))).mean()

    def discriminator_step():
        fake = make(torch.randn(128, 4)).detach()
        return (1 - judge(dunes())).relu().mean() + (1 + judge(fake)).relu().mean()

    def score():
        with torch.no_grad():
            return apart(make(torch.randn(1500, 4)), dunes(1500))

    first = score()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(make, of_make)}
    w_judge = gradwatch.watch(judge, of_judge, name="discriminator", **options)
    w_make = gradwatch.watch(make, of_make, name="generator", run=w_judge, **options)
    turns = [(w_make, of_make, generator_step), (w_judge, of_judge, discriminator_step)]
    with w_judge, w_make:
        for _ in range(800):
            for watch, optimizer, training_step in turns:
                if not ill:
                    of_make.zero_grad()
                    of_judge.zero_grad()
                loss = training_step()
                loss.backward()
                optimizer.step()
                if ill:
                    optimizer.zero_grad()
                watch.log(loss=loss)
    return Outcome(gradwatch.open_history(w_judge.dir.parent), first, score())


# ---------------------------------------------------------------------------------------------------------- screenshots


# https://github.com/keras-team/keras/issues/255
@sick("inputs-not-normalised", "inputs-are-zero", "dead-layer",
      where="what comes into the first layer: nothing but zeros",
      cure="the pixels divided as floats, not as integers")  # fmt: skip
def screenshots_with_a_rival(folder, ill):
    seeded(2829)
    drawn, labels = digits()
    pixels = (250 * drawn).to(torch.uint8)
    x = pixels // 255 if ill else pixels.float() / 255
    x, y = x.float()[:, None], (labels % 2 == 0).long()
    order = torch.randperm(len(x))
    train, test = order[:1400], order[1400:]
    net = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.ReLU(),
                        nn.Flatten(), nn.Linear(384, 32), nn.ReLU(), nn.Linear(32, 2))  # fmt: skip
    draw = rounds(32, x[train], y[train])

    def loss_of(step):
        shots, rival = draw()
        out = net(shots)
        return F.cross_entropy(out, rival), {"accuracy": (out.argmax(1) == rival).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(x[test]), y[test]))
    return fit(folder, net, torch.optim.SGD(net.parameters(), 0.02, momentum=0.9), loss_of, 300, score=score)
