"""Healthy trainings of kitchens, bread and spices: unusual ones."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_diabetes, load_digits, make_moons
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, rounds, tend


@healthy()
def cheese_stamps_under_the_worst_smudge(folder):
    seeded(11660)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x, y = torch.tensor(images / 16, dtype=torch.float32)[order], torch.tensor(digits)[order]
    net = dense(64, 128, 64, 10)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    draw = rounds(64, x[:1400], y[:1400])

    def smudged(x, y, bound=0.08, times=3):
        smudge = (2 * torch.rand_like(x) - 1) * bound
        for _ in range(times):
            smudge.requires_grad_()
            (slope,) = torch.autograd.grad(F.cross_entropy(net(x + smudge), y), smudge)
            smudge = (smudge.detach() + bound / 2 * slope.sign()).clamp(-bound, bound)
        return (x + smudge).clamp(0, 1)

    def loss_of(step):
        x, y = draw()
        logits = net(smudged(x, y))
        return F.cross_entropy(logits, y), {"robust_accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 250, score=score)


@healthy(gain=1.0)
def kitchen_scales_that_state_their_doubt(folder):
    seeded(11661)
    net = dense(4, 64, 64, 2, act=nn.SiLU)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def weighings(rows):
        x = 2 * torch.rand(rows, 4) - 1
        spread = 0.02 + 0.15 * (x[:, :1] + 1) / 2
        return x, 0.5 * (2 * x[:, 1:2]).sin() + 0.3 * x[:, 2:3] * x[:, 3:] + spread * torch.randn(rows, 1)

    draw, test = rounds(128, *weighings(4000)), weighings(1000)

    def loss_on(x, y):
        middle, raw = net(x).chunk(2, 1)
        return F.gaussian_nll_loss(middle, y, F.softplus(raw) + 1e-4)

    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 400, score=score)


class Pot(nn.Module):
    """An echo state network: the pot rings as it was made, and a linear map of its ringing is learnt."""

    def __init__(self, width):
        super().__init__()
        self.ring = nn.RNN(1, width, batch_first=True)
        with torch.no_grad():
            self.ring.weight_ih_l0.uniform_(-0.5, 0.5)
            weight = torch.randn(width, width) * (torch.rand(width, width) < 0.2)
            self.ring.weight_hh_l0.copy_(0.9 * weight / torch.linalg.eigvals(weight).abs().max())
        self.ring.requires_grad_(False)
        self.read = nn.Linear(width, 1)

    def forward(self, series):
        return self.read(self.ring(series)[0][:, 10:])


@healthy()
def an_echo_in_a_copper_pot(folder):
    seeded(11662)
    net = Pot(80)
    optimizer = torch.optim.Adam(net.read.parameters(), 1e-2)

    def knocks(rows):
        series = [0.1 + 0.8 * torch.rand(rows)]
        for _ in range(40):
            series.append(3.7 * series[-1] * (1 - series[-1]))
        series = torch.stack(series, 1)[:, :, None]
        return series[:, :-1], series[:, 11:]

    x, y = knocks(600)
    draw = rounds(30, x[:480], y[:480])

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: F.mse_loss(net(x[480:]), y[480:])))


class Coupling(nn.Module):
    """Moves one number by the other."""

    def __init__(self, turned):
        super().__init__()
        self.turned, self.net = turned, dense(1, 48, 48, 2, act=nn.Tanh)

    def forward(self, x):
        a, b = x.flip(1).chunk(2, 1) if self.turned else x.chunk(2, 1)
        scale, shift = self.net(a).chunk(2, 1)
        scale = 2 * (scale / 2).tanh()
        out = torch.cat([a, b * scale.exp() + shift], 1)
        return out.flip(1) if self.turned else out, scale[:, 0]


@healthy()
def orange_peel_taken_off_in_one_curl(folder):
    seeded(11663)
    table, _ = make_moons(4000, noise=0.06, random_state=3)
    x = torch.tensor(table, dtype=torch.float32)
    x = 0.15 * (x - x.mean(0))
    net = nn.ModuleList(Coupling(i % 2 == 1) for i in range(6))
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    draw = rounds(128, x[:3200])

    def loss_on(x):
        bends = 0.0
        for layer in net:
            x, bend = layer(x)
            bends = bends + bend
        return (0.5 * x.square().sum(1) + math.log(2 * math.pi) - bends).mean()

    score = held_out(net, lambda: loss_on(x[3200:]))
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 250, score=score)


@healthy()
def sweetness_after_a_year_in_the_jar(folder):
    seeded(11664)
    table, targets = load_diabetes(return_X_y=True)
    order = torch.randperm(len(targets))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(targets, dtype=torch.float32)[order, None]
    x, y = (x - x[:340].mean(0)) / x[:340].std(0), (y - y[:340].mean()) / y[:340].std()
    net = dense(10, 8, 1, act=nn.Tanh)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4, line_search_fn="strong_wolfe")

    def loss_of(step):
        return F.mse_loss(net(x[:340]), y[:340]) + 0.02 * sum(p.square().sum() for p in net.parameters())

    score = held_out(net, lambda: F.mse_loss(net(x[340:]), y[340:]))
    return fit(folder, net, optimizer, loss_of, 25, score=score, closure=True)


@healthy()
def biscuit_cutters_by_their_shape(folder):
    seeded(11665)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, 2, 1), nn.GroupNorm(3, 12), nn.SiLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.GroupNorm(3, 24),
        nn.SiLU(), nn.Flatten(), nn.Linear(24 * 16, 4),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 20, 2, 1e-4)
    grid = torch.linspace(-1, 1, 16)

    def cutters(rows):
        y = torch.randint(4, (rows,))
        middle, size = 0.4 * torch.rand(rows, 2, 1, 1) - 0.2, 0.4 + 0.2 * torch.rand(rows, 1, 1)
        a, b = (grid[:, None] - middle[:, 0]).abs(), (grid - middle[:, 1]).abs()
        far = torch.stack([(a**2 + b**2).sqrt(), torch.maximum(a, b), a + b, torch.minimum(a, b) * 2 + 0.2], 1)
        shape = (far[torch.arange(rows), y] < size).float()
        return (shape + 0.4 * torch.randn(rows, 16, 16))[:, None], y

    def loss_of(step):
        x, y = cutters(32)
        return F.cross_entropy(net(x), y), {"lr": optimizer.param_groups[0]["lr"]}

    tx, ty = cutters(500)
    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 300, score=score, schedule=schedule)


@healthy()
def allergies_of_guests_kept_private(folder):
    seeded(11666)
    net = dense(12, 24, 3, act=nn.Tanh)
    rows, bound, noise = 128, 0.5, 0.8
    optimizer = torch.optim.SGD(net.parameters(), 0.5, momentum=0.5)
    way = torch.randn(12, 3)

    def guests(rows):
        x = torch.randn(rows, 12)
        return x, (x @ way + 0.3 * torch.randn(rows, 3)).argmax(1)

    draw = rounds(rows, *guests(4000))

    def loss_of_one(weights, x, y):
        return F.cross_entropy(functional_call(net, weights, (x[None],)), y[None])

    slopes_of = vmap(grad(loss_of_one), in_dims=(None, 0, 0))

    def one(step):
        x, y = draw()
        slopes = slopes_of({name: p.detach() for name, p in net.named_parameters()}, x, y)
        norms = sum(slope.flatten(1).square().sum(1) for slope in slopes.values()).sqrt()
        share = (bound / norms).clamp(max=1.0)
        for name, p in net.named_parameters():
            total = torch.einsum("r,r...->...", share, slopes[name])
            p.grad = (total + noise * bound * torch.randn_like(p)) / rows
        optimizer.step()
        with torch.no_grad():
            return {"loss": F.cross_entropy(net(x), y)}

    tx, ty = guests(1000)
    return tend(folder, net, optimizer, one, 250, held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@healthy()
def a_second_hand_reader_of_weights(folder):
    seeded(11667)
    images, digits = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 8 - 1, dtype=torch.float32), torch.tensor(digits)
    net = nn.ModuleDict({"body": nn.Sequential(dense(64, 128, 64), nn.ReLU()), "head": nn.Linear(64, 6)})
    early = torch.optim.Adam(net.parameters(), 2e-3)
    draw_early = rounds(64, x[y < 6], y[y < 6])
    for _ in range(150):
        bx, by = draw_early()
        early.zero_grad()
        F.cross_entropy(net["head"](net["body"](bx)), by).backward()
        early.step()

    x, y = x[y >= 6], y[y >= 6] - 6
    order = torch.randperm(len(y))
    x, y = x[order], y[order]
    net["head"] = nn.Linear(64, 4)
    optimizer = torch.optim.AdamW(
        [{"params": net["body"].parameters(), "lr": 2e-5}, {"params": net["head"].parameters(), "lr": 2e-3}],
        weight_decay=0.01,
    )
    draw = rounds(32, x[:560], y[:560])

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net["head"](net["body"](x)), y)

    score = held_out(net, lambda: F.cross_entropy(net["head"](net["body"](x[560:])), y[560:]))
    return fit(folder, net, optimizer, loss_of, 150, score=score)


@healthy()
def rare_spices_on_long_shopping_lists(folder):
    seeded(11668)
    spices, kinds = 2000, 5
    net = nn.EmbeddingBag(spices, kinds, mode="sum", sparse=True)
    nn.init.normal_(net.weight, std=0.1)
    optimizer = torch.optim.Adagrad(net.parameters(), 0.1)
    liking = torch.randn(spices, kinds)
    often = 1 / torch.arange(1.0, spices + 1)

    def lists(rows):
        bought = torch.multinomial(often.expand(rows, -1), 12, replacement=True)
        return bought, (liking[bought].sum(1) + 0.5 * torch.randn(rows, kinds)).argmax(1)

    draw = rounds(64, *lists(6000))

    def loss_of(step):
        bought, kind = draw()
        return F.cross_entropy(net(bought), kind)

    tx, ty = lists(1000)
    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@healthy()
def wafer_patterns_out_of_six_dials(folder):
    seeded(11669)
    images, _ = load_digits(return_X_y=True)
    x = torch.tensor(images / 16, dtype=torch.float32)[torch.randperm(len(images))]
    net = nn.ModuleDict({"read": dense(64, 96, 12), "press": dense(6, 96, 64)})
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(64, x[:1400])

    def parts(x):
        middle, spread = net["read"](x).chunk(2, 1)
        code = middle + (spread / 2).exp() * torch.randn_like(middle)
        error = F.binary_cross_entropy_with_logits(net["press"](code), x, reduction="sum")
        return error, 0.5 * (middle.square() + spread.exp() - 1 - spread).sum()

    def loss_of(step):
        error, apart = parts(*draw())
        return error + apart, {"reconstruction": float(error), "kl": float(apart)}

    def squares():
        middle, _ = net["read"](x[1400:]).chunk(2, 1)
        return F.mse_loss(net["press"](middle).sigmoid(), x[1400:])

    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, squares))
