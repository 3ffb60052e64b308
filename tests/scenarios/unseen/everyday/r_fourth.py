"""Healthy trainings of observatories and winter nights: unusual ones, in which nothing is wrong."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, rounds, tend


class Coupling(nn.Module):
    """An affine coupling of a flow; the other half is moved in the next one."""

    def __init__(self, size, width):
        super().__init__()
        self.half = size // 2
        self.net = dense(self.half, width, 2 * (size - self.half))
        nn.init.zeros_(self.net[-1].weight)

    def forward(self, x):
        kept, moved = x[:, : self.half], x[:, self.half :]
        scale, shift = self.net(kept).chunk(2, 1)
        scale = 2 * (scale / 2).tanh()
        return torch.cat([moved * scale.exp() + shift, kept], 1), scale.sum(1)


@healthy()
def density_of_a_tight_star_stream(folder):
    seeded(11860)
    net = nn.ModuleList(Coupling(4, 48) for _ in range(6))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def stream(rows):
        along = torch.randn(rows)
        place = torch.stack([along, 0.5 * along.square() - 0.5, along.sin(), 0.3 * along], 1)
        return 0.4 * (place + 0.05 * torch.randn(rows, 4))

    draw, test = rounds(128, stream(4000)), stream(1000)

    def loss_on(x):
        total = 0.0
        for part in net:
            x, grown = part(x)
            total = total + grown
        return (0.5 * x.square().sum(1) + 2 * math.log(2 * math.pi) - total).mean()

    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 300, score=held_out(net, lambda: loss_on(test)))


class Kernel(nn.Module):
    """The length, the strength and the noise of a Gaussian process."""

    def __init__(self):
        super().__init__()
        self.length, self.strength, self.noise = (nn.Parameter(torch.zeros(())) for _ in range(3))

    def forward(self, time, light):
        gap = (time[:, None] - time).square()
        cover = self.strength.exp() * (-0.5 * gap / self.length.exp().square()).exp()
        cover = cover + (self.noise.exp() + 1e-5) * torch.eye(len(time), dtype=time.dtype)
        root = torch.linalg.cholesky(cover)
        fitted = torch.cholesky_solve(light[:, None], root)[:, 0]
        return (0.5 * light @ fitted + root.diagonal().log().sum()) / len(time) + 0.5 * math.log(2 * math.pi)


@healthy()
def smooth_dimming_of_a_supernova(folder):
    seeded(11861)
    net = Kernel().double()
    optimizer = torch.optim.Adam(net.parameters(), 0.1)
    time = (10 * torch.rand(80, dtype=torch.float64)).sort().values
    light = (1.3 * time).sin() * (-0.1 * time).exp() + 0.05 * torch.randn(80, dtype=torch.float64)
    score = held_out(net, lambda: net(time, light))
    return fit(folder, net, optimizer, lambda step: net(time, light), 150, score=score)


class Echo(nn.Module):
    """A reservoir that stays as it was drawn, and a readout that is trained."""

    def __init__(self, width):
        super().__init__()
        inner = torch.randn(width, width) / width**0.5
        self.register_buffer("inner", 0.9 * inner / torch.linalg.eigvals(inner).abs().max())
        self.register_buffer("outer", torch.rand(1, width) - 0.5)
        self.read = nn.Linear(width, 1)

    def forward(self, signal):
        states = [signal.new_zeros(len(signal), len(self.inner))]
        for value in signal.split(1, 1):
            states.append((value @ self.outer + states[-1] @ self.inner).tanh())
        return self.read(torch.stack(states[1:], 1))[..., 0]


@healthy()
def echoes_in_the_empty_planetarium(folder):
    seeded(11862)
    net = Echo(100)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2, weight_decay=1e-5)

    def sounds(rows):
        signal = torch.rand(rows, 30) * 2 - 1
        return signal, signal.roll(2, 1) + 0.5 * signal.roll(4, 1)

    def loss_on(signal, late):
        return F.mse_loss(net(signal)[:, 8:], late[:, 8:])

    draw, test = rounds(50, *sounds(1000)), sounds(200)
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 250, score=held_out(net, lambda: loss_on(*test)))


@healthy()
def photon_counts_summed_over_a_night(folder):
    seeded(11863)
    net = dense(5, 48, 48, 1, act=nn.Tanh)
    optimizer = torch.optim.SGD(net.parameters(), 2e-5, momentum=0.9)
    ways = torch.randn(5, 2) / 2

    def counts(rows):
        x = torch.randn(rows, 5)
        turn = x @ ways
        return x, torch.poisson((1.0 + turn[:, 0].tanh() + 0.5 * turn[:, 1].sin()).exp())

    draw = rounds(256, *counts(4000))

    def loss_of(step):
        x, y = draw()
        return F.poisson_nll_loss(net(x)[:, 0], y, full=True, reduction="sum")

    tx, ty = counts(1000)
    score = held_out(net, lambda: F.poisson_nll_loss(net(tx)[:, 0], ty, full=True))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


def plates(noise):
    """The digits of scikit-learn as plates of one channel, with grain."""
    images, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
    order = torch.randperm(len(y))
    return (images[order].float() / 8 - 1).view(-1, 1, 8, 8) + noise * torch.randn(len(y), 1, 8, 8), y[order]


@healthy()
def an_old_spectrograph_given_new_eyes(folder):
    seeded(11864)
    x, y = plates(0.2)
    body = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten())
    net = nn.ModuleDict({"body": body, "head": nn.Linear(128, 10)})
    early = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(50, x[:700], y[:700])
    for _ in range(120):
        image, digit = draw()
        early.zero_grad()
        F.cross_entropy(net["head"](body(image)), digit).backward()
        early.step()

    x, y = x[700:], (y[700:] + y[700:] % 3) % 5
    net["head"] = nn.Linear(128, 5)
    groups = [{"params": body.parameters(), "lr": 1e-5}, {"params": net["head"].parameters(), "lr": 3e-3}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    draw = rounds(32, x[:700], y[:700])

    def loss_of(step):
        image, kind = draw()
        return F.cross_entropy(net["head"](body(image)), kind)

    score = held_out(net, lambda: F.cross_entropy(net["head"](body(x[700:])), y[700:]))
    return fit(folder, net, optimizer, loss_of, 250, score=score)


@healthy()
def signals_read_through_hostile_weather(folder):
    seeded(11865)
    x, y = plates(0.0)
    x = x.flatten(1)
    net = dense(64, 128, 64, 10)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    draw = rounds(64, x[:1400], y[:1400])

    def spoilt(x, y, reach=0.15):
        x = (x + reach * (torch.rand_like(x) - 0.5)).requires_grad_(True)
        (way,) = torch.autograd.grad(F.cross_entropy(net(x), y), x)
        return (x + 0.5 * reach * way.sign()).detach()

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(spoilt(x, y)), y)

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


@healthy(gain=0.1)
def names_that_share_a_page_of_the_almanac(folder):
    seeded(11866)
    words, topics = 400, 8
    net = nn.ModuleDict({"word": nn.Embedding(words, 16, sparse=True), "near": nn.Embedding(words, 16, sparse=True)})
    for table in net.values():
        nn.init.normal_(table.weight, std=0.1)
    optimizer = torch.optim.SparseAdam(list(net.parameters()), 1e-2)
    topic = torch.randint(topics, (words,))
    pages = [(topic == t).nonzero()[:, 0] for t in range(topics)]

    def pairs(rows):
        word = torch.randint(words, (rows,))
        near = torch.stack([pages[t][torch.randint(len(pages[t]), ())] for t in topic[word].tolist()])
        return word, near, torch.randint(words, (rows, 4))

    def loss_on(word, near, others):
        code = net["word"](word)
        alike = (code * net["near"](near)).sum(1)
        apart = (code[:, None] * net["near"](others)).sum(2)
        return -F.logsigmoid(alike).mean() - F.logsigmoid(-apart).sum(1).mean()

    test = pairs(1000)
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, lambda step: loss_on(*pairs(128)), 350, score=score)


@healthy()
def one_nebula_through_two_windows(folder):
    seeded(11867)
    encoder = nn.Sequential(
        nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32), nn.BatchNorm1d(32, affine=False),
    )  # fmt: skip
    guess = nn.Sequential(nn.Linear(32, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 32))
    net = nn.ModuleDict({"encoder": encoder, "guess": guess})
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    shape = torch.randn(6, 32)

    def windows(rows):
        nebula = torch.randn(rows, 6) @ shape
        return [nebula + 0.8 * torch.randn(rows, 32) for _ in range(2)]

    def loss_on(pair):
        codes = [encoder(view) for view in pair]
        ahead = [guess(code) for code in codes]
        found = [F.cosine_similarity(a, c.detach()).mean() for a, c in zip(ahead, codes[::-1], strict=True)]
        return -sum(found) / 2, {"spread": float(F.normalize(codes[0].detach(), dim=1).std(0).mean())}

    test = windows(256)
    score = held_out(net, lambda: loss_on(test)[0])
    return fit(folder, net, optimizer, lambda step: loss_on(windows(128)), 300, score=score)


@healthy()
def confidences_of_the_night_nurse(folder):
    seeded(11868)
    table, targets = load_breast_cancer(return_X_y=True)
    order = torch.randperm(len(targets))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(targets)[order]
    x = (x - x[:450].mean(0)) / x[:450].std(0)
    net = dense(30, 16, 2, act=nn.Tanh)
    optimizer = torch.optim.SGD(net.parameters(), 0.5)
    most, noise, rows = 0.5, 0.6, 90
    draw = rounds(rows, x[:450], y[:450])

    def loss_at(weights, x, y):
        return F.cross_entropy(functional_call(net, weights, (x[None],)), y[None])

    each = vmap(grad(loss_at), in_dims=(None, 0, 0))

    def one(step):
        x, y = draw()
        weights = {name: p.detach() for name, p in net.named_parameters()}
        found = each(weights, x, y)
        norm = sum(g.flatten(1).square().sum(1) for g in found.values()).sqrt()
        share = (most / (norm + 1e-6)).clamp(max=1.0)
        for name, p in net.named_parameters():
            total = torch.einsum("b,b...->...", share, found[name])
            p.grad = (total + noise * most * torch.randn_like(p)) / rows
        optimizer.step()
        with torch.no_grad():
            return {"loss": F.cross_entropy(net(x), y)}

    return tend(folder, net, optimizer, one, 150, held_out(net, lambda: F.cross_entropy(net(x[450:]), y[450:])))


@healthy()
def a_vintage_tasted_every_new_moon(folder):
    seeded(11869)
    table, kinds = load_wine(return_X_y=True)
    order = torch.randperm(len(kinds))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(kinds)[order]
    x = (x - x[:130].mean(0)) / x[:130].std(0)
    net = dense(13, 24, 3, act=nn.SELU)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 40, 2, eta_min=1e-4)
    draw = rounds(32, x[:130], y[:130])

    def loss_of(step):
        x, y = draw()
        return F.multi_margin_loss(net(x), y), {"lr": schedule.get_last_lr()[0]}

    score = held_out(net, lambda: F.multi_margin_loss(net(x[130:]), y[130:]))
    return fit(folder, net, optimizer, loss_of, 280, score=score, schedule=schedule)
