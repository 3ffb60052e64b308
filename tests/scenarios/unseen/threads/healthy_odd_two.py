"""Trainings that go well though their make is odd: local losses, multipliers, curvature, steps of other laws."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded


def quiet(loss):
    """`score()`: a loss on kept rows, without gradients."""

    def score():
        with torch.no_grad():
            return float(loss())

    return score


@healthy()
def auction_of_fish(folder):
    seeded(2446)
    net = nn.ModuleList([nn.Linear(12, 96), nn.Linear(96, 96)])
    worth = torch.randn(8, 4)

    def lots(rows):
        """Species, weight, freshness and weather of a lot, and in which of four classes its price falls."""
        x = torch.randn(rows, 8)
        return x, (x @ worth).argmax(1)

    def goodness(x, price):
        """Of each layer, none of which sees the gradient of the next (forward-forward)."""
        out, found = torch.cat([x, 3 * F.one_hot(price, 4)], 1), []
        for layer in net:
            out = layer(F.normalize(out.detach(), dim=1) * 3).relu()
            found.append(out.square().mean(1))
        return torch.stack(found)

    def loss_of(step):
        x, price = lots(128)
        other = (price + torch.randint(1, 4, price.shape)) % 4
        gaps = F.softplus(1 - goodness(x, price)) + F.softplus(goodness(x, other) - 1)
        return gaps.mean(), {f"layer {i}": gap for i, gap in enumerate(gaps.detach().mean(1))}

    x_kept, price_kept = lots(512)

    def missed():
        each = [goodness(x_kept, torch.full_like(price_kept, k)).sum(0) for k in range(4)]
        return (torch.stack(each).argmax(0) != price_kept).float().mean()

    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    return fit(folder, net, optimizer, loss_of, 600, score=quiet(missed))


class FixedWayBack(torch.autograd.Function):
    """A linear map whose gradient goes back by a matrix that is not its own (feedback alignment)."""

    @staticmethod
    def forward(ctx, x, weight, bias, back):
        ctx.save_for_backward(x, back)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, slope):
        x, back = ctx.saved_tensors
        return slope @ back, slope.T @ x, slope.sum(0), None


class Aligned(nn.Linear):
    def __init__(self, size, out):
        super().__init__(size, out)
        self.register_buffer("back", torch.randn(out, size) / math.sqrt(size))

    def forward(self, x):
        return FixedWayBack.apply(x, self.weight, self.bias, self.back)


@healthy()
def sugar_of_grape_must(folder):
    seeded(2447)
    net = nn.Sequential(Aligned(16, 64), nn.Tanh(), Aligned(64, 64), nn.Tanh(), Aligned(64, 1))
    bands = torch.randn(3, 16) / 2

    def musts(rows):
        """The absorption of a must in sixteen bands, and its sugar."""
        parts = torch.randn(rows, 3)
        sugar = parts[:, :1] + 0.5 * (2 * parts[:, 1:2]).sin()
        return (parts @ bands).tanh() + 0.05 * torch.randn(rows, 16), sugar

    x_kept, y_kept = musts(512)

    def loss_of(step):
        x, y = musts(64)
        return F.mse_loss(net(x), y)

    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    return fit(folder, net, optimizer, loss_of, 600, score=quiet(lambda: F.mse_loss(net(x_kept), y_kept)))


class Loading(nn.Module):
    """How full a barge is loaded, and the price of a foot of draught above what the lock allows."""

    def __init__(self):
        super().__init__()
        self.load = dense(3, 32, 32, 1, act=nn.Tanh)
        nn.init.constant_(self.load[-1].bias, 2.0)
        self.price = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        water, density, length = x.T
        load = self.load(x)[:, 0].sigmoid()
        draught = 1 + 3 * load * (1 + 0.2 * density) / (1 + 0.2 * length)
        return load.mean(), (draught - 2.5 - 0.5 * water).relu().mean()


@healthy()
def draught_of_barges_in_a_lock(folder):
    seeded(2448)
    net = Loading()
    groups = [
        {"params": net.load.parameters(), "lr": 3e-3},
        {"params": [net.price], "lr": 0.02, "maximize": True},
    ]
    optimizer = torch.optim.Adam(groups, betas=(0.5, 0.99))

    def barges(rows):
        return 2 * torch.rand(rows, 3) - 1

    def loss_of(step):
        earned, over = net(barges(128))
        logged = {"earned": earned.detach(), "too deep": over.detach(), "price": net.price.detach().clone()}
        return -earned + net.price * (over - 0.005), logged

    def hold_price(step):
        with torch.no_grad():
            net.price.clamp_(min=0)

    kept = barges(512)

    def regret():
        earned, over = net(kept)
        return 1 - earned + 5 * over

    return fit(folder, net, optimizer, loss_of, 700, score=quiet(regret), after_step=hold_price)


class Process(nn.Module):
    """A Gaussian process with a length for every input."""

    def __init__(self, inputs):
        super().__init__()
        self.log_length = nn.Parameter(torch.zeros(inputs, dtype=torch.float64))
        self.log_scale = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.log_noise = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, x, y):
        """Minus the log-likelihood of all rows together."""
        near = x / self.log_length.exp()
        gap = (near[:, None] - near[None]).square().sum(2)
        kernel = (2 * self.log_scale - gap / 2).exp() + torch.eye(len(x)) * (2 * self.log_noise).exp()
        root = torch.linalg.cholesky(kernel)
        white = torch.linalg.solve_triangular(root, y, upper=False)
        return 0.5 * white.square().sum() + root.diag().log().sum() + len(x) * math.log(2 * math.pi) / 2


@healthy(gain=0.6)
def posts_of_ambulances(folder):
    seeded(2449)
    net = Process(4)
    place = torch.randn(150, 4, dtype=torch.float64)
    minutes = (2 * place[:, :1]).sin() + place[:, 1:2].cos() * place[:, :1] + 0.3 * place[:, 2:3]
    minutes = minutes + 0.05 * torch.randn(150, 1, dtype=torch.float64)
    optimizer = torch.optim.Adam(net.parameters(), 0.05)
    return fit(
        folder,
        net,
        optimizer,
        lambda step: net(place, minutes),
        250,
        score=quiet(lambda: net(place, minutes)),
    )


class Pattern(nn.Module):
    """A cut's embedding writes the weights of the small net that measures a customer."""

    def __init__(self, cuts, hidden=16):
        super().__init__()
        self.cut, self.hidden = nn.Embedding(cuts, 8), hidden
        self.write = dense(8, 32, 4 * hidden + hidden * 5 + 5)
        with torch.no_grad():
            self.write[-1].weight.mul_(0.5)

    def forward(self, cut, x):
        first, second, bias = self.write(self.cut(cut)).split([4 * self.hidden, 5 * self.hidden, 5], 1)
        inner = torch.einsum("bi,bih->bh", x, first.view(-1, 4, self.hidden)).tanh()
        return torch.einsum("bh,bho->bo", inner, second.view(-1, self.hidden, 5)) + bias


@healthy()
def measures_by_a_tailor(folder):
    seeded(2450)
    net = Pattern(12)
    ways, ease = torch.randn(12, 4, 5) / 2, torch.randn(12, 5) / 2

    def orders(rows):
        """Cut, and height, girth, age and a one; five measures, each cut with an ease of its own."""
        cut, body = torch.randint(12, (rows,)), torch.randn(rows, 4)
        body[:, 3] = 1
        return cut, body, torch.einsum("bi,bio->bo", body, ways[cut]).tanh() + ease[cut]

    kept = orders(512)

    def error(cut, body, sizes):
        return F.mse_loss(net(cut, body), sizes)

    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    return fit(folder, net, optimizer, lambda step: error(*orders(96)), 500, score=quiet(lambda: error(*kept)))


@healthy()
def flashes_of_one_lighthouse(folder):
    seeded(2451)
    rows, rate, net = 1000, 1e-4, dense(13, 24, 5, act=nn.Tanh)
    period = torch.tensor([3.0, 4.0, 5.0, 7.0, 9.0])

    def nights(count):
        """How strongly one of five lights flashes at each of thirteen rates, seen for 24 seconds in haze."""
        light, start = torch.randint(5, (count,)), 9 * torch.rand(count, 1)
        phase = (torch.arange(24) + start) / period[light][:, None]
        bright = (3 * (6.2832 * phase).cos() - 3).exp() + 0.2 * torch.randn(count, 24)
        return torch.fft.rfft(bright - bright.mean(1, keepdim=True)).abs() / 3, light

    (x_all, y_all), (x_kept, y_kept) = nights(rows), nights(512)
    believed = []

    def loss_of(step):
        """Minus the log of the posterior of all rows, as a hundred of them tell it."""
        part = torch.randint(rows, (100,))
        prior = sum(w.square().sum() for w in net.parameters()) / 2
        return rows * F.cross_entropy(net(x_all[part]), y_all[part]) + prior

    @torch.no_grad()
    def wander(step):
        for w in net.parameters():
            w.add_(torch.randn_like(w), alpha=math.sqrt(2 * rate))
        if step >= 400 and step % 10 == 0:
            believed.append(net(x_kept).softmax(1))

    def surprise():
        seen = torch.stack(believed).mean(0) if believed else net(x_kept).softmax(1)
        return F.nll_loss(seen.log(), y_kept)

    optimizer = torch.optim.SGD(net.parameters(), rate)
    return fit(folder, net, optimizer, loss_of, 800, score=quiet(surprise), after_step=wander)


class Curvature:
    """Running Kronecker factors of each linear layer, by which `before_step` divides its gradient (K-FAC)."""

    def __init__(self, net, rate, keep=0.95, damping=0.1, most=0.01):
        self.layers = [part for part in net if isinstance(part, nn.Linear)]
        self.factors, self.rate, self.keep, self.damping, self.most = {}, rate, keep, damping, most
        for layer in self.layers:
            layer.register_forward_hook(self.look)

    def look(self, layer, inputs, out):
        if out.requires_grad:
            x = torch.cat([inputs[0].detach(), torch.ones(len(out), 1)], 1)
            self.mix(layer, "in", x.T @ x / len(x))
            out.register_hook(lambda slope: self.mix(layer, "out", slope.T @ slope * len(slope)))

    def mix(self, layer, side, factor):
        old = self.factors.get((layer, side), factor)
        self.factors[layer, side] = self.keep * old + (1 - self.keep) * factor

    def solve(self, layer, side, rows):
        factor = self.factors[layer, side]
        return torch.linalg.solve(factor + math.sqrt(self.damping) * torch.eye(len(factor)), rows)

    @torch.no_grad()
    def before_step(self, step):
        found, power = {}, 0.0
        for layer in self.layers:
            slope = torch.cat([layer.weight.grad, layer.bias.grad[:, None]], 1)
            found[layer] = self.solve(layer, "in", self.solve(layer, "out", slope).T).T
            power += float((found[layer] * slope).sum()) * self.rate**2
        share = min(1.0, math.sqrt(self.most / (power + 1e-12)))
        for layer, way in found.items():
            layer.weight.grad.copy_(share * way[:, :-1])
            layer.bias.grad.copy_(share * way[:, -1])


@healthy()
def doses_of_a_pharmacy(folder):
    seeded(2452)
    net = dense(7, 48, 48, 5, act=nn.Tanh)
    curvature = Curvature(net, rate=0.1)

    def patients(rows):
        """Weight, age, kidneys, liver and three others; which of five doses is right."""
        x = torch.randn(rows, 7)
        clears = x[:, 0] - 0.5 * x[:, 1] + x[:, 2] * x[:, 3].sigmoid()
        return x, torch.bucketize(clears, torch.tensor([-1.2, -0.4, 0.4, 1.2]))

    x_kept, y_kept = patients(512)

    def loss_of(step):
        x, y = patients(128)
        return F.cross_entropy(net(x), y)

    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    score = quiet(lambda: F.cross_entropy(net(x_kept), y_kept))
    return fit(folder, net, optimizer, loss_of, 300, score=score, before_step=curvature.before_step)
