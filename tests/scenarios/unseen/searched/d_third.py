"""Architectures that are seldom met: implicit layers, state spaces, splines, weights out of a net, sets, spikes."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from unseen import dense, fit, healthy, score_of, seeded
from unseen.tasks import clipped, held_out


class Equilibrium(nn.Module):
    """z = tanh(0.8 Wz + Ux), found by iteration; its gradient by the implicit function theorem (Bai et al., 2019)."""

    def __init__(self, size, width):
        super().__init__()
        self.inner = parametrizations.spectral_norm(nn.Linear(width, width, bias=False))
        self.outer = nn.Linear(size, width)

    def forward(self, x):
        drive, weight = self.outer(x), 0.8 * self.inner.weight

        def once(z):
            return (z @ weight.T + drive).tanh()

        with torch.no_grad():
            z = torch.zeros_like(drive)
            for _ in range(20):
                z = once(z)
        z = once(z)
        if torch.is_grad_enabled():
            start = z.detach().requires_grad_()
            again = once(start)

            def solve(grad):
                found = grad
                for _ in range(20):
                    found = torch.autograd.grad(again, start, found, retain_graph=True)[0] + grad
                return found

            z.register_hook(solve)
        return z


@healthy()
def wax_in_a_honeycomb_at_rest(folder):
    seeded(9472)
    net = nn.Sequential(Equilibrium(7, 40), nn.Linear(40, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.992)
    bonds = torch.randn(7, 3) / 2

    def loss_of(step):
        x = torch.randn(64, 7)
        a, b, c = (x @ bonds).unbind(1)
        return F.mse_loss(net(x)[:, 0], a.sin() + b * c.tanh() + 0.05 * torch.randn(64))

    return fit(folder, net, optimizer, loss_of, 400, score=score_of(loss_of), schedule=schedule)


class DiagonalStates(nn.Module):
    """A diagonal state space model (S4D-Lin), applied as a long convolution."""

    def __init__(self, width, states=8):
        super().__init__()
        spread = torch.rand(width, 1) * (math.log(0.1) - math.log(0.01)) + math.log(0.01)
        self.log_step = nn.Parameter(spread)
        self.log_decay = nn.Parameter(torch.full((width, states), math.log(0.5)))
        self.turn = nn.Parameter(math.pi * torch.arange(states).float().repeat(width, 1))
        self.out = nn.Parameter(torch.randn(width, states, 2) * 0.5**0.5)
        self.skip = nn.Parameter(torch.ones(width))

    def forward(self, x):
        length = x.shape[-1]
        poles = torch.complex(-self.log_decay.exp(), self.turn)
        moved = poles * self.log_step.exp()
        weights = torch.view_as_complex(self.out) * (moved.exp() - 1) / poles
        kernel = 2 * torch.einsum("ws,wsl->wl", weights, (moved[..., None] * torch.arange(length)).exp()).real
        heard = torch.fft.rfft(x, n=2 * length) * torch.fft.rfft(kernel, n=2 * length)
        return torch.fft.irfft(heard, n=2 * length)[..., :length] + self.skip[:, None] * x


class StateBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.states = DiagonalStates(width)
        self.mix = nn.Linear(width, 2 * width)

    def forward(self, x):
        heard = F.gelu(self.states(self.norm(x).transpose(1, 2))).transpose(1, 2)
        return x + F.glu(self.mix(heard), dim=-1)


@healthy()
def gears_of_a_tower_clock_by_their_hum(folder):
    seeded(9473)
    net = nn.ModuleDict(
        {"lift": nn.Linear(1, 16), "blocks": nn.Sequential(StateBlock(16), StateBlock(16)), "head": nn.Linear(16, 4)}
    )
    slow = [p for name, p in net.named_parameters() if name.rpartition(".")[2] in ("log_step", "log_decay", "turn")]
    rest = [p for p in net.parameters() if all(p is not other for other in slow)]
    optimizer = torch.optim.AdamW(
        [{"params": rest, "weight_decay": 0.01}, {"params": slow, "lr": 1e-3, "weight_decay": 0.0}], lr=5e-3
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [5e-3, 1e-3], total_steps=240)
    time = torch.arange(100.0)

    def loss_of(step):
        y = torch.randint(4, (24,))
        speed = (0.15 + 0.12 * y + 0.02 * torch.randn(24))[:, None]
        hum = (speed * time + 6.2832 * torch.rand(24, 1)).sin() + 1.2 * torch.randn(24, 100)
        out = net["head"](net["blocks"](net["lift"](hum[..., None])).mean(1))
        return F.cross_entropy(out, y), {"accuracy": (out.argmax(1) == y).float().mean()}

    score = score_of(lambda step: loss_of(step)[0])
    return fit(folder, net, optimizer, loss_of, 240, score=score, schedule=schedule, before_step=clipped(net, 1.0))


class EdgeFunctions(nn.Module):
    """A layer of a Kolmogorov-Arnold net: a sum of Gaussian bumps on each edge and a linear map beside it."""

    def __init__(self, size, width, bumps=8):
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.register_buffer("centres", torch.linspace(-2, 2, bumps))
        self.bumps = nn.Linear(size * bumps, width, bias=False)
        nn.init.trunc_normal_(self.bumps.weight, std=0.1)
        self.base = nn.Linear(size, width)

    def forward(self, x):
        near = (-((self.norm(x)[..., None] - self.centres) / (4 / 7)).square()).exp()
        return self.bumps(near.flatten(1)) + self.base(F.silu(x))


@healthy()
def a_sundial_corrected_through_the_year(folder):
    seeded(9474)
    net = nn.Sequential(EdgeFunctions(4, 8), EdgeFunctions(8, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.994)

    def draw(rows):
        day, place, tilt, hour = (torch.rand(4, rows) * 2 - 1).unbind()
        off = (6.28 * day).sin() * 0.7 + (12.57 * day + 1).sin() * 0.4 + 0.8 * tilt * (3 * hour).cos() + place.abs()
        return torch.stack([day, place, tilt, hour], 1), off[:, None] + 0.03 * torch.randn(rows, 1)

    def loss_of(step):
        x, y = draw(128)
        return F.huber_loss(net(x), y, delta=0.5)

    return fit(folder, net, optimizer, loss_of, 500, score=score_of(loss_of), schedule=schedule)


class Moulds(nn.Module):
    """Weights of a small net for each shape come out of another net; it is asked for distances to the shape's edge."""

    def __init__(self, about, hidden=16):
        super().__init__()
        self.sizes = [(2, hidden), (hidden, hidden), (hidden, 1)]
        self.trunk = nn.Sequential(nn.Linear(about, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.heads = nn.ModuleList(nn.Linear(64, a * b + b) for a, b in self.sizes)
        for head, (size, width) in zip(self.heads, self.sizes, strict=True):
            nn.init.normal_(head.weight, std=0.02)
            nn.init.zeros_(head.bias)
            nn.init.normal_(head.bias[: size * width], std=(2 / size) ** 0.5)

    def forward(self, about, places):
        code = self.trunk(about)
        for i, (head, (size, width)) in enumerate(zip(self.heads, self.sizes, strict=True)):
            weight, bias = head(code).split([size * width, width], 1)
            places = torch.baddbmm(bias[:, None], places, weight.view(-1, size, width))
            places = F.silu(places) if i < len(self.sizes) - 1 else places
        return places[..., 0]


@healthy()
def gingerbread_moulds_by_their_edges(folder):
    seeded(9475)
    net = Moulds(4)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 900)

    def loss_of(step):
        about = torch.rand(16, 4) * 2 - 1
        middle, half = 0.4 * about[:, None, :2], 0.5 + 0.25 * about[:, None, 2:]
        places = 2.4 * torch.rand(16, 64, 2) - 1.2
        beyond = (places - middle).abs() - half
        distance = beyond.clamp_min(0).norm(dim=2) + beyond.amax(2).clamp_max(0)
        return F.l1_loss(net(about, places), distance)

    return fit(folder, net, optimizer, loss_of, 900, score=score_of(loss_of), schedule=schedule)


@healthy()
def tracks_of_a_snail_from_a_few_dots(folder):
    seeded(9476)
    net = nn.ModuleDict({"encode": dense(2, 64, 64, 48), "decode": dense(49, 64, 64, 2)})
    optimizer = torch.optim.RAdam(net.parameters(), lr=2e-3)

    def loss_of(step):
        known = int(torch.randint(3, 16, ()))
        x = 4 * torch.rand(24, known + 24, 1) - 2
        y = (1 + torch.rand(24, 1, 1)) * (1.5 * x + 6.2832 * torch.rand(24, 1, 1)).sin() + 0.05 * torch.randn_like(x)
        seen = net["encode"](torch.cat([x, y], 2)[:, :known]).mean(1, keepdim=True)
        asked, wanted = x[:, known:], y[:, known:]
        middle, wide = net["decode"](torch.cat([seen.expand(-1, 24, -1), asked], 2)).chunk(2, -1)
        likely = torch.distributions.Normal(middle, 0.05 + 0.95 * F.softplus(wide)).log_prob(wanted).mean()
        return -likely, {"error": (middle - wanted).square().mean()}

    return fit(folder, net, optimizer, loss_of, 900, score=score_of(lambda step: loss_of(step)[0], 16))


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, above):
        ctx.save_for_backward(above)
        return (above > 0).float()

    @staticmethod
    def backward(ctx, grad):
        (above,) = ctx.saved_tensors
        return grad / (1 + 5 * above.abs()).square()


class Leaky(nn.Module):
    def __init__(self, size, width):
        super().__init__()
        self.inward = nn.Linear(size, width)
        self.leak = nn.Parameter(torch.full((width,), 2.0))

    def forward(self, x):
        charge, spikes, keep = 0.0, [], self.leak.sigmoid()
        for current in self.inward(x).unbind(1):
            charge = keep * charge + current
            spikes.append(Spike.apply(charge - 1))
            charge = charge - spikes[-1].detach()
        return torch.stack(spikes, 1)


@healthy()
def a_cats_whiskers_in_spikes(folder):
    seeded(9477)
    net = nn.ModuleDict({"first": Leaky(20, 64), "second": Leaky(64, 48), "read": nn.Linear(48, 5)})
    optimizer = torch.optim.Adamax(net.parameters(), lr=5e-3)
    usual = torch.rand(5, 24, 20) * (0.4 + torch.rand(5, 1, 20))

    def loss_of(step, rows=32):
        y = torch.randint(5, (rows,))
        moved = torch.stack([usual[k].roll(int(torch.randint(3, ())), 0) for k in y])
        touched = (torch.rand(rows, 24, 20) < 0.6 * moved).float()
        spikes = net["first"](touched)
        later = net["second"](spikes)
        out = net["read"](later.mean(1) * 4)
        rate = spikes.mean() + later.mean()
        return F.cross_entropy(out, y) + 0.02 * rate, {"rate": rate / 2}

    score = held_out(net, lambda: loss_of(0, 512)[0])
    return fit(folder, net, optimizer, loss_of, 250, score=score)
