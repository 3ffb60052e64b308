"""Healthy trainings of researchers: equations, flows in time, nets that write nets, spikes and energies."""

import math

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded
from unseen.tasks import clipped, tend

# ------------------------------------------------------------------------------------------------- salt in a still pond


class Pond(nn.Module):
    """Salt over place and time; the start and both banks are right by construction."""

    def __init__(self):
        super().__init__()
        self.net = dense(2, 32, 32, 32, 1, act=nn.Tanh)

    def forward(self, x, t):
        start = (math.pi * x).sin() + 0.5 * (3 * math.pi * x).sin()
        change = self.net(torch.stack([2 * x - 1, 2 * t - 1], 1))[:, 0]
        return start + 4 * t * x * (1 - x) * change


def slope(value, of):
    return torch.autograd.grad(value.sum(), of, create_graph=True)[0]


@healthy()
def salt_that_spreads_in_a_pond(folder):
    seeded(3341)
    net, spread = Pond(), 0.1
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)

    def loss_of(step):
        x, t = torch.rand(2, 200).requires_grad_().unbind()
        salt = net(x, t)
        residual = slope(salt, t) - spread * slope(slope(salt, x), x)
        return residual.square().mean(), {"worst_residual": residual.detach().abs().max()}

    def score():
        x, t = torch.rand(2, 2000).unbind()
        rate = spread * math.pi**2
        truth = (-rate * t).exp() * (math.pi * x).sin() + 0.5 * (-9 * rate * t).exp() * (3 * math.pi * x).sin()
        with torch.no_grad():
            return float((net(x, t) - truth).square().mean().sqrt())

    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 700)
    return fit(folder, net, optimizer, loss_of, 700, score=score, schedule=schedule)


# --------------------------------------------------------------------------------------------------- hunters and hunted


def runge_kutta(flow, z, dt):
    a = flow(z)
    b = flow(z + dt / 2 * a)
    c = flow(z + dt / 2 * b)
    d = flow(z + dt * c)
    return z + dt / 6 * (a + 2 * b + 2 * c + d)


def forest(z):
    """The change of the logarithms of hares and lynx."""
    return torch.stack([1 - z[..., 1].exp(), 0.8 * (z[..., 0].exp() - 1)], -1)


def years(flow, z, count, dt=0.2):
    seen = [z]
    for _ in range(count):
        seen.append(runge_kutta(flow, seen[-1], dt))
    return torch.stack(seen, 1)


@healthy()
def lynx_and_hares_of_a_forest(folder):
    seeded(3342)
    truth = years(forest, 0.6 * torch.randn(24, 2), 60)
    records = truth + 0.01 * torch.randn_like(truth)
    net = dense(2, 32, 32, 2, act=nn.Tanh)
    optimizer = torch.optim.AdamW(net.parameters(), 5e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=300, pct_start=0.1)

    def loss_of(step):
        row, begin = torch.randint(24, (48, 1)), torch.randint(55, (48, 1))
        part = records[row, begin + torch.arange(6)]
        return F.mse_loss(years(net, part[:, 0], 5), part)

    def score():
        z = 0.6 * torch.randn(200, 2)
        with torch.no_grad():
            return float(F.mse_loss(years(net, z, 15), years(forest, z, 15)))

    return fit(folder, net, optimizer, loss_of, 300, score=score, schedule=schedule, before_step=clipped(net, 1.0))


# ---------------------------------------------------------------------------------------------------- strings of a harp


class Writer(nn.Module):
    """Writes all weights of a net of one hidden layer from what is known of a string."""

    def __init__(self, hidden=16):
        super().__init__()
        self.hidden = hidden
        self.body = dense(3, 64, 64, act=nn.SiLU)
        self.head = nn.Linear(64, 3 * hidden + 1)
        with torch.no_grad():
            self.head.weight.mul_(0.3)
            self.head.bias.copy_(torch.cat([2 * torch.randn(2 * hidden), torch.randn(hidden) / 4, torch.zeros(1)]))

    def forward(self, string, x):
        h = self.hidden
        weights = self.head(F.silu(self.body(string)))
        first, shift, second, last = weights.split([h, h, h, 1], 1)
        return ((x[:, :, None] * first[:, None] + shift[:, None]).tanh() * second[:, None]).sum(2) + last


@healthy()
def shapes_of_plucked_harp_strings(folder):
    seeded(3343)
    net = Writer()
    optimizer = torch.optim.NAdam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 800, 3e-5)

    def loss_of(step):
        string, x = 2 * torch.rand(64, 3) - 1, 2 * torch.rand(64, 16) - 1
        height, pitch, phase = string.split(1, 1)
        return F.mse_loss(net(string, x), (1 + 0.5 * height) * ((3 + pitch) * x + phase).sin())

    return fit(folder, net, optimizer, loss_of, 800, score=score_of(loss_of), schedule=schedule)


# ------------------------------------------------------------------------------------------------------- a new pendulum


@healthy()
def a_metronome_met_for_the_first_time(folder):
    seeded(3344)
    net = dense(1, 40, 40, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def error(weights, x, y):
        return F.mse_loss(functional_call(net, weights, (x,)), y)

    def after_two_looks(weights, x, y, new_x, new_y):
        for _ in range(2):
            ways = grad(error)(weights, x, y)
            weights = {name: w - 0.1 * ways[name] for name, w in weights.items()}
        return error(weights, new_x, new_y)

    def loss_of(step):
        height, phase = 0.5 + 1.5 * torch.rand(16, 1, 1), 3.1416 * torch.rand(16, 1, 1)
        x = 6 * torch.rand(16, 20, 1) - 3
        y = height * (x + phase).sin()
        together = vmap(after_two_looks, in_dims=(None, 0, 0, 0, 0))
        return together(dict(net.named_parameters()), x[:, :10], y[:, :10], x[:, 10:], y[:, 10:]).mean()

    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 700)
    return fit(
        folder, net, optimizer, loss_of, 700, score=score_of(loss_of), schedule=schedule, before_step=clipped(net, 10.0)
    )


# --------------------------------------------------------------------------------------------------- spikes of crickets


class Spike(torch.autograd.Function):
    """A step forwards, the slope of a fast sigmoid backwards."""

    @staticmethod
    def forward(ctx, above):
        ctx.save_for_backward(above)
        return (above > 0).float()

    @staticmethod
    def backward(ctx, grad_output):
        (above,) = ctx.saved_tensors
        return grad_output / (1 + 10 * above.abs()).square()


class Cells(nn.Module):
    def __init__(self, inputs=24, hidden=64, kinds=5):
        super().__init__()
        self.inward, self.around = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden, bias=False)
        self.out = nn.Linear(hidden, kinds)
        nn.init.normal_(self.around.weight, std=0.05)

    def forward(self, x):
        volt = spikes = x.new_zeros(len(x), self.around.in_features)
        total, fired = 0.0, []
        for moment in self.inward(x).unbind(1):
            volt = 0.85 * volt + moment + self.around(spikes) - spikes.detach()
            spikes = Spike.apply(volt - 1)
            total = total + self.out(spikes)
            fired.append(spikes.mean())
        return total / x.shape[1] * 4, torch.stack(fired).mean()


@healthy()
def crickets_by_trains_of_pulses(folder):
    seeded(3345)
    rates = 0.5 * torch.rand(5, 24, 1).square() * (0.5 + torch.rand(5, 24, 24))
    net = Cells()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def draw(rows):
        y = torch.randint(5, (rows,))
        mixed = 0.6 * rates[y] + 0.4 * rates[torch.randint(5, (rows,))]
        return torch.bernoulli(mixed), y

    def one(step):
        x, y = draw(64)
        optimizer.zero_grad()
        out, rate = net(x)
        loss = F.cross_entropy(out, y) + 0.1 * (rate - 0.1).square()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "firing_rate": rate, "accuracy": (out.argmax(1) == y).float().mean()}

    def score():
        with torch.no_grad():
            x, y = draw(1000)
            return float(F.cross_entropy(net(x)[0], y))

    return tend(folder, net, optimizer, one, 250, score)


# ---------------------------------------------------------------------------------------------- an energy by its slopes


@healthy()
def where_moths_circle_round_six_lamps(folder):
    seeded(3346)
    angle = torch.arange(6) * math.pi / 3
    lamps = 2 * torch.stack([angle.cos(), angle.sin()], 1)
    narrow, noise_size = 0.25, 0.4
    energy = dense(2, 64, 64, 1, act=nn.Softplus)
    optimizer = torch.optim.Adam(energy.parameters(), 5e-3, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 900)

    def moths(rows):
        return lamps[torch.randint(6, (rows,))] + narrow * torch.randn(rows, 2)

    def way(x):
        x = x.detach().requires_grad_()
        return -torch.autograd.grad(energy(x).sum(), x, create_graph=True)[0]

    def loss_of(step):
        noise = torch.randn(256, 2)
        return (noise_size * way(moths(256) + noise_size * noise) + noise).square().sum(1).mean()

    def score():
        x = moths(2000) + noise_size * torch.randn(2000, 2)
        wide = narrow**2 + noise_size**2
        share = (-torch.cdist(x, lamps).square() / (2 * wide)).softmax(1)
        return float((way(x).detach() - (share @ lamps - x) / wide).square().sum(1).mean())

    return fit(folder, energy, optimizer, loss_of, 900, score=score, schedule=schedule)
