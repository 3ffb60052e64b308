"""Models of what data look like in which nothing is wrong: energies, scores, flows, codes, and views of one thing."""

import copy
import math

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, rounds, tend


@healthy(gain=0.2)
def two_sickles_by_their_energy(folder):
    """An energy by contrastive divergence; its samples come from Langevin steps that go on from where they were."""
    seeded(3449)
    net = dense(2, 96, 96, 1, act=nn.SiLU)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, betas=(0.0, 0.999))
    chains = 6 * torch.rand(1024, 2) - 3

    def real(rows=128):
        angle, lower = math.pi * torch.rand(rows), torch.rand(rows) < 0.5
        x = torch.where(lower, 1 - angle.cos(), angle.cos()) - 0.5
        y = torch.where(lower, 0.5 - angle.sin(), angle.sin()) - 0.25
        return 1.5 * torch.stack([x, y], 1) + 0.1 * torch.randn(rows, 2)

    def walked(x, times=15, size=0.02):
        for _ in range(times):
            x = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(net(x).sum(), x)
            x = (x - size * slope + math.sqrt(2 * size) * torch.randn_like(x)).clamp(-3, 3)
        return x.detach()

    def loss_of(step):
        at = torch.randperm(1024)[:128]
        begin = torch.where(torch.rand(128, 1) < 0.05, 6 * torch.rand(128, 2) - 3, chains[at])
        made = chains[at] = walked(begin)
        low, high = net(real()), net(made)
        held = (low.square() + high.square()).mean()
        gap = low.mean() - high.mean()
        return gap + 0.01 * held, {"energy_real": low.mean(), "energy_made": high.mean()}

    side = torch.linspace(-3, 3, 101)
    cells = torch.cartesian_prod(side, side)

    def score():
        """The negative log-likelihood; the integral is taken over a fine lattice."""
        with torch.no_grad():
            return float(net(real(2000)).mean() + torch.logsumexp(-net(cells)[:, 0], 0) + 2 * math.log(0.06))

    return fit(folder, net, optimizer, loss_of, 400, score=score)


class Denoiser(nn.Module):
    """A preconditioned denoiser of digits at any level of noise."""

    def __init__(self, spread=0.4):
        super().__init__()
        self.spread = spread
        self.into, self.level, self.out = nn.Linear(64, 192), nn.Linear(16, 192), nn.Linear(192, 64)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(192), *dense(192, 192, 192, act=nn.SiLU)) for _ in "ab")
        self.register_buffer("waves", torch.randn(8))
        nn.init.zeros_(self.out.weight)

    def forward(self, x, sigma):
        both = (sigma.square() + self.spread**2).sqrt()
        turn = 2 * math.pi * sigma.log() / 4 * self.waves
        h = self.into(x / both) + self.level(torch.cat([turn.cos(), turn.sin()], 1))
        for block in self.blocks:
            h = h + block(h)
        return x * self.spread**2 / both.square() + self.out(h) * sigma * self.spread / both


@healthy()
def digits_out_of_snow(folder):
    """A score model at levels of noise drawn log-normally; what is scored is the average of its weights."""
    seeded(3450)
    images = digits()[0].flatten(1) - 0.3
    order = torch.randperm(len(images))
    draw, others = rounds(128, images[order[:1500]]), images[order[1500:]]
    net = Denoiser()
    average = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, betas=(0.9, 0.99))

    def error(model, x):
        sigma = (1.0 * torch.randn(len(x), 1) - 1.0).exp()
        weight = (sigma.square() + 0.16) / (sigma * 0.4).square()
        return (weight * (model(x + sigma * torch.randn_like(x), sigma) - x).square()).mean()

    def follow(step):
        with torch.no_grad():
            for kept, new in zip(average.parameters(), net.parameters(), strict=True):
                kept.lerp_(new, 1 - min(0.99, (1 + step) / (10 + step)))

    def score():
        with torch.no_grad():
            return sum(float(error(average, others)) for _ in range(8)) / 8

    return fit(folder, net, optimizer, lambda step: error(net, *draw()), 700, score=score, after_step=follow)


class Coupling(nn.Module):
    def __init__(self, size, flip):
        super().__init__()
        self.flip, self.net, self.most = flip, dense(size // 2, 48, 48, size, act=nn.Tanh), nn.Parameter(torch.ones(1))
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        fixed, moved = x.chunk(2, 1)[:: -1 if self.flip else 1]
        scale, shift = self.net(fixed).chunk(2, 1)
        scale = self.most * scale.tanh()
        moved = (moved - shift) * (-scale).exp()
        return torch.cat([fixed, moved][:: -1 if self.flip else 1], 1), -scale.sum(1)


@healthy()
def starlings_straightened_out(folder):
    """A flow of eight couplings, by its likelihood."""
    seeded(3451)
    net = nn.ModuleList(Coupling(4, bool(i % 2)) for i in range(8))
    optimizer = torch.optim.Adamax(net.parameters(), 5e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995)

    def flock(rows=256):
        t = 3 * torch.rand(rows).sqrt()
        bird = torch.stack([t * (2 * t).cos(), t * (2 * t).sin(), (t - 2) * 2, 2 * (3 * t).sin()], 1)
        return bird + 0.15 * torch.randn(rows, 4)

    def loss_of(step):
        x, volume = flock(), 0.0
        for layer in net:
            x, more = layer(x)
            volume = volume + more
        log_prior = -0.5 * x.square().sum(1) - 2 * math.log(2 * math.pi)
        return -(log_prior + volume).mean()

    return fit(folder, net, optimizer, loss_of, 400, schedule=schedule,
               score=held_out(net, lambda: sum(loss_of(0) for _ in range(8)) / 8))  # fmt: skip


class Tiles(nn.Module):
    """Digits of four codes out of sixty-four."""

    def __init__(self):
        super().__init__()
        self.read = nn.Sequential(nn.Conv2d(1, 32, 4, 2, 1), nn.ReLU(), nn.Conv2d(32, 32, 4, 2, 1), nn.ReLU(),
                                  nn.Conv2d(32, 16, 1))  # fmt: skip
        self.draw = nn.Sequential(nn.ConvTranspose2d(16, 32, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(32, 1, 4, 2, 1))
        self.codes = nn.Parameter(torch.randn(64, 16) * 0.1)

    def forward(self, x):
        found = self.read(x).movedim(1, 3)
        nearest = torch.cdist(found.reshape(-1, 16), self.codes).argmin(1)
        code = self.codes[nearest].view_as(found)
        commit, follow = F.mse_loss(found, code.detach()), F.mse_loss(code, found.detach())
        through = found + (code - found).detach()
        return self.draw(through.movedim(3, 1)), follow + 0.25 * commit, nearest


@healthy()
def stamps_put_together_from_tiles(folder):
    """A quantised autoencoder; codes that lie idle are moved to where something is."""
    seeded(3452)
    images = digits()[0][:, None]
    order = torch.randperm(len(images))
    draw, others = rounds(96, images[order[:1500]]), images[order[1500:]]
    net = Tiles()
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-4)
    used = torch.zeros(64)

    def one(step):
        (x,) = draw()
        back, quantised, nearest = net(x)
        error = F.mse_loss(back, x)
        loss = error + 0.2 * quantised
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        used.mul_(0.97).add_(torch.bincount(nearest, minlength=64))
        if step % 40 == 39 and step < 400:
            with torch.no_grad():
                idle = used < 1.0
                found = net.read(x).movedim(1, 3).reshape(-1, 16)
                net.codes[idle] = found[torch.randperm(len(found))[: int(idle.sum())]]
                used[idle] = 10.0
        return {"loss": loss, "reconstruction": error, "quantisation": quantised, "codes_used": (used > 1).sum()}

    return tend(folder, net, optimizer, one, 500, held_out(net, lambda: F.mse_loss(net(others)[0], others)))


class Sketch(nn.Module):
    def __init__(self):
        super().__init__()
        self.read, self.draw = dense(64, 128, 24, act=nn.ELU), dense(12, 128, 64, act=nn.ELU)

    def forward(self, x):
        """Nats of the ink and of each of twelve latents."""
        middle, log_var = self.read(x).chunk(2, 1)
        z = middle + (0.5 * log_var).exp() * torch.randn_like(middle)
        ink = F.binary_cross_entropy_with_logits(self.draw(z), x, reduction="none").sum(1)
        return ink.mean(), 0.5 * (middle.square() + log_var.exp() - 1 - log_var).mean(0)


@healthy(gain=0.2)
def pen_strokes_from_twelve_numbers(folder):
    """A variational autoencoder whose divergence is warmed up and left free below a tenth of a nat each."""
    seeded(3453)
    images = digits()[0].flatten(1)
    order = torch.randperm(len(images))
    draw, others = rounds(100, images[order[:1500]]), images[order[1500:]]
    net = Sketch()
    optimizer = torch.optim.Adam(net.parameters(), 1.5e-3)

    def loss_of(step):
        beta = min(1.0, step / 300)
        ink, nats = net(*draw())
        return ink + beta * nats.clamp(min=0.1).sum(), {"ink": ink, "divergence": nats.sum(), "beta": beta}

    def bound():
        ink, nats = net(others)
        return ink + nats.sum()

    return fit(folder, net, optimizer, loss_of, 700, score=held_out(net, bound))


@healthy()
def one_melody_on_two_instruments(folder):
    """Two views pulled together while variances are held up and covariances down; scored by retrieval."""
    seeded(3454)
    reads = nn.ModuleList(dense(20, 64, 32, 32, norm=nn.BatchNorm1d) for _ in range(2))
    played = [torch.randn(5, 20), torch.randn(5, 20)]
    optimizer = torch.optim.SGD(reads.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)

    def views(rows):
        tune = torch.randn(rows, 5)
        return [read((tune @ way).sin() + 0.1 * torch.randn(rows, 20)) for read, way in zip(reads, played, strict=True)]

    def loss_of(step):
        pair = views(192)
        near, wide, loose = F.mse_loss(*pair), 0.0, 0.0
        for view in pair:
            z = view - view.mean(0)
            wide = wide + (1 - (z.var(0) + 1e-4).sqrt()).relu().mean()
            shared = z.T @ z / (len(z) - 1)
            loose = loose + (shared.square().sum() - shared.diagonal().square().sum()) / 32
        loss = near + wide + 0.04 * loose
        return loss, {"invariance": near, "variance": wide, "covariance": loose}

    def missed():
        a, b = views(256)
        return 1 - (torch.cdist(a, b).argmin(1) == torch.arange(256)).float().mean()

    return fit(folder, reads, optimizer, loss_of, 500, schedule=schedule, score=held_out(reads, missed))
