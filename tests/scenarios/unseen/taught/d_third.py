"""Unusual trainings that go well: permutations, energies, rays, episodes, operators, inducing points."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


@healthy(gain=0.6)
def beads_put_in_the_order_of_their_size(folder):
    """A net scores bead against place; Sinkhorn's rounds make a soft permutation of it."""
    seeded(9816)
    lift = torch.randn(1, 10)

    def string(rows):
        size = torch.rand(rows, 7)
        looks = (3 * size[..., None] * lift + torch.linspace(-2, 2, 10)).sin()
        return looks + 0.02 * torch.randn_like(looks), size.argsort(1).argsort(1)

    net = nn.ModuleDict({"bead": dense(10, 48, 32), "place": dense(64, 48, 7)})

    def loss(looks, rank):
        bead = net["bead"](looks)
        scores = net["place"](torch.cat([bead, bead.mean(1, keepdim=True).expand_as(bead)], 2))
        for _ in range(6):
            scores = scores.log_softmax(1).log_softmax(2)
        return F.nll_loss(scores.flatten(0, 1), rank.flatten())

    kept = string(300)
    opt = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 600, eta_min=1e-4)
    return fit(folder, net, opt, lambda step: loss(*string(64)), 600, schedule=schedule,
               score=held_out(net, lambda: loss(*kept)))  # fmt: skip


@healthy(gain=0.3)
def deepest_note_of_an_uneven_drum(folder):
    """Ritz: the net is the mode whose quotient of strain and swing is the least."""
    seeded(9817)
    net = dense(2, 32, 32, 1, act=nn.Tanh)

    def quotient(points):
        points.requires_grad_()
        rim = (points * (1 - points)).prod(1, keepdim=True) * 32
        swing = rim * net(points)
        slope = torch.autograd.grad(swing.sum(), points, create_graph=True)[0]
        heavy = 1 + 40 * (-((points - 0.22) ** 2).sum(1, keepdim=True) / 0.02).exp()
        size = swing.square().mean()
        return slope.square().sum(1).mean() / (heavy * swing.square()).mean(), size

    middle = (torch.arange(20) + 0.5) / 20
    grid = torch.cartesian_prod(middle, middle)

    def loss_of(step):
        note, size = quotient(grid + (torch.rand_like(grid) - 0.5) / 20)
        return note + size.log().square(), {"quotient": float(note.detach())}

    opt = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 700, eta_min=1e-5)
    return fit(folder, net, opt, loss_of, 700, schedule=schedule,
               score=lambda: float(quotient(grid.clone())[0].detach()))  # fmt: skip


class Inside(nn.Module):
    """Fourier features with frequencies that stay, and a density above zero."""

    def __init__(self):
        super().__init__()
        self.register_buffer("waves", 4 * torch.randn(2, 24))
        self.body = dense(48, 48, 48, 1)

    def forward(self, points):
        angle = points @ self.waves
        return F.softplus(self.body(torch.cat([angle.sin(), angle.cos()], -1)))[..., 0]


@healthy(gain=0.6)
def bubbles_in_a_marble_from_its_shadows(folder):
    """Only sums along rays are seen; the score is the error of the density itself."""
    seeded(9818)
    bubbles, net = 1.0 * torch.rand(5, 2) - 0.5, Inside()
    along = torch.linspace(-1, 1, 25)

    def density(points):
        return (-(points[..., None, :] - bubbles).square().sum(-1) / 0.03).exp().sum(-1)

    def loss_of(step):
        angle, offset = 3.1416 * torch.rand(64, 1), 1.6 * torch.rand(64, 1) - 0.8
        across = torch.stack([angle.cos(), angle.sin()], 2)
        points = offset[..., None] * across + along[:, None] * torch.stack([-angle.sin(), angle.cos()], 2)
        return F.mse_loss(net(points).mean(1), density(points).mean(1)) * 10

    line = torch.linspace(-0.7, 0.7, 24)
    grid = torch.cartesian_prod(line, line)
    opt = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.995)
    return fit(folder, net, opt, loss_of, 500, schedule=schedule,
               score=held_out(net, lambda: F.mse_loss(net(grid), density(grid))))  # fmt: skip


@healthy(gain=0.4)
def unknown_seals_from_five_impressions(folder):
    """Prototypical episodes; the score is of seals that no episode showed."""
    seeded(9819)
    seals = F.interpolate(torch.randn(80, 1, 4, 4), size=12, mode="bicubic")
    block = [(1, 16), (16, 24), (24, 32)]
    net = nn.Sequential(*(
        layer for inputs, outputs in block for layer in
        (nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.ReLU(), nn.MaxPool2d(2))
    ), nn.Flatten(), nn.Linear(32, 32))  # fmt: skip

    def episode(low, high):
        chosen = low + torch.randperm(high - low)[:6]
        prints = seals[chosen][:, None].repeat(1, 9, 1, 1, 1)
        turned = torch.roll(prints, tuple(torch.randint(-1, 2, (2,)).tolist()), (3, 4))
        worn = torch.rand(6, 9, 1, 12, 12) < 0.3
        return (turned + 0.9 * torch.randn_like(turned)).masked_fill(worn, 0)

    def distances(prints):
        codes = net(prints.flatten(0, 1)).view(6, 9, 32)
        return -torch.cdist(codes[:, 5:].flatten(0, 1), codes[:, :5].mean(1)).square() / 32

    y = torch.arange(6).repeat_interleave(4)
    kept = [episode(60, 80) for _ in range(12)]

    def loss_of(step):
        out = distances(episode(0, 60))
        return F.cross_entropy(out, y), {"accuracy": float((out.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: sum(F.cross_entropy(distances(prints), y) for prints in kept) / 12)
    opt = torch.optim.Adam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.StepLR(opt, 150, 0.5)
    return fit(folder, net, opt, loss_of, 450, schedule=schedule, score=score)


class Sounded(nn.Module):
    """An attentive conditional process: soundings are looked up by the place that is asked for."""

    def __init__(self, width=48):
        super().__init__()
        self.ask, self.key = dense(1, width, width), dense(1, width, width)
        self.note = dense(2, width, width, width)
        self.tell = dense(2 * width + 1, width, width, 2)

    def forward(self, at, depth, asked):
        notes = self.note(torch.cat([at, depth], 2))
        look = F.scaled_dot_product_attention(self.ask(asked), self.key(at), notes)
        whole = notes.mean(1, keepdim=True).expand_as(look)
        middle, spread = self.tell(torch.cat([look, whole, asked], 2)).chunk(2, 2)
        return torch.distributions.Normal(middle, 0.1 + F.softplus(spread))


@healthy(gain=0.3)
def beds_of_fjords_from_a_few_soundings(folder):
    seeded(9820)
    net = Sounded()

    def fjord(rows, points=24):
        at = 4 * torch.rand(rows, points, 1) - 2
        pace, shift, height = (torch.rand(3, rows, 1, 2) * torch.tensor([1.5, 6.28, 1.0]).view(3, 1, 1, 1)).unbind(0)
        depth = ((0.4 + height) * (at * (0.5 + pace) + shift).sin()).sum(2, keepdim=True)
        return at, depth + 0.03 * torch.randn_like(depth)

    def loss(at, depth, seen):
        said = net(at[:, :seen], depth[:, :seen], at[:, seen:])
        return -said.log_prob(depth[:, seen:]).mean()

    kept = fjord(200)
    opt = torch.optim.Adam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 700, eta_min=5e-5)
    return fit(folder, net, opt, lambda step: loss(*fjord(40), int(torch.randint(8, 14, ()))), 700, schedule=schedule,
               score=held_out(net, lambda: loss(*kept, 10)), before_step=clipped(net, 5.0))  # fmt: skip


class Spectral(nn.Module):
    """The lowest modes are mapped by a matrix each, the rest by a line."""

    def __init__(self, width, modes):
        super().__init__()
        self.modes = nn.Parameter(torch.randn(2, modes, width, width) / width / math.sqrt(2))
        self.past = nn.Conv1d(width, width, 1)

    def forward(self, x):
        mapped = torch.complex(*self.modes)
        low = torch.einsum("bim,mio->bom", torch.fft.rfft(x)[..., : len(mapped)], mapped)
        return F.gelu(torch.fft.irfft(low, n=x.shape[-1]) + self.past(x))


@healthy(gain=0.7)
def flood_wave_an_hour_later(folder):
    """An operator: from any wave of Burgers to what becomes of it."""
    seeded(9821)
    points = 48
    wave = torch.fft.rfftfreq(points, 1 / points)

    def begin(rows):
        strength = torch.randn(rows, 5, 2) / torch.arange(1, 6)[:, None]
        angle = torch.arange(1, 6)[:, None] * torch.arange(points) / points * 2 * math.pi
        return strength[..., 0] @ angle.sin() + strength[..., 1] @ angle.cos()

    def later(u, steps=100, pace=0.005):
        fade = (-0.1 * wave.square() * pace).exp()
        for _ in range(steps):
            flow = torch.fft.rfft(u.square() / 2) * 1j * wave
            u = torch.fft.irfft((torch.fft.rfft(u) - pace * flow) * fade * (wave < 16), n=points)
        return u

    first = begin(700)
    last = later(first)
    x = torch.stack([first, torch.linspace(0, 1, points).expand(700, points)], 1)
    net = nn.Sequential(nn.Conv1d(2, 20, 1), *(Spectral(20, 12) for _ in range(3)), nn.Conv1d(20, 32, 1), nn.GELU(),
                        nn.Conv1d(32, 1, 1))  # fmt: skip

    def loss(x, y):
        return ((net(x)[:, 0] - y).norm(dim=1) / y.norm(dim=1)).mean()

    draw = rounds(32, x[:600], last[:600])
    opt = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=451, pct_start=0.1, cycle_momentum=False)
    return fit(folder, net, opt, lambda step: loss(*draw()), 450, schedule=schedule,
               score=held_out(net, lambda: loss(x[600:], last[600:])))  # fmt: skip


class Inducing(nn.Module):
    """A sparse variational process with whitened values at points of its own."""

    def __init__(self, places):
        super().__init__()
        count = len(places)
        self.places, self.middle = nn.Parameter(places.clone()), nn.Parameter(torch.zeros(count))
        self.factor = nn.Parameter(torch.eye(count))
        self.reach, self.height = nn.Parameter(torch.full((2,), -0.5)), nn.Parameter(torch.zeros(1))
        self.noise = nn.Parameter(torch.full((1,), -1.0))

    def kernel(self, a, b):
        return self.height.exp() * (-torch.cdist(a / self.reach.exp(), b / self.reach.exp()).square() / 2).exp()

    def bound(self, x, y, rows):
        """The negative evidence bound for a row."""
        count = len(self.places)
        root = torch.linalg.cholesky(self.kernel(self.places, self.places) + 1e-3 * torch.eye(count))
        across = torch.linalg.solve_triangular(root, self.kernel(self.places, x), upper=False)
        factor = self.factor.tril()
        spread = self.height.exp() - across.square().sum(0) + (factor.T @ across).square().sum(0)
        miss = (y - across.T @ self.middle).square() + spread.clamp_min(1e-6)
        fit_of_rows = (miss / self.noise.exp() + self.noise + math.log(2 * math.pi)).mean() / 2
        apart = (factor.square().sum() + self.middle.square().sum() - count) / 2 - factor.diagonal().abs().log().sum()
        return fit_of_rows + apart / rows


@healthy(gain=0.4)
def level_of_the_ground_water_between_wells(folder):
    seeded(9822)
    x = 4 * torch.rand(1200, 2) - 2
    y = (1.5 * x[:, 0]).sin() + (x[:, 0] * x[:, 1]).cos() + 0.1 * torch.randn(1200)
    y = (y - y.mean()) / y.std()
    net, draw = Inducing(x[:40]), rounds(128, x[:1000], y[:1000])
    opt = torch.optim.Adam(net.parameters(), 2e-2)
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.996)
    return fit(folder, net, opt, lambda step: net.bound(*draw(), 1000), 500, schedule=schedule,
               score=held_out(net, lambda: net.bound(x[1000:], y[1000:], 1000)))  # fmt: skip
