"""Healthy trainings that make data out of noise or of codes: straight paths, a guided denoiser, a quantizer."""

from __future__ import annotations

import copy
import math

import nets
import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, rounds, tend


class Averaged:
    """A copy of a net that follows it slowly, the faster the younger it is."""

    def __init__(self, net, decay):
        self.net, self.decay, self.age = copy.deepcopy(net).requires_grad_(False), decay, 0

    @torch.no_grad()
    def follow(self, net):
        self.age += 1
        decay = min(self.decay, (1 + self.age) / (10 + self.age))
        for a, b in zip(self.net.parameters(), net.parameters(), strict=True):
            a.lerp_(b, 1 - decay)


def swirl(rows):
    """Cream in a cup that was stirred: two arms of a spiral."""
    way = torch.rand(rows, 1).sqrt()
    angle = 7 * way + math.pi * (torch.rand(rows, 1) < 0.5)
    return 1.8 * way * torch.cat([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(rows, 2)


@healthy()
def cream_stirred_into_a_cup(folder):
    seeded(3546)
    net = dense(8, 96, 96, 96, 2, act=nn.SiLU)
    slow = Averaged(net, 0.99)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=700)

    def speed(net, x, t):
        waves = torch.cat([x, t, (6.28 * t).sin(), (6.28 * t).cos(), (12.57 * t).sin(), (12.57 * t).cos(), t * t], 1)
        return net(waves)

    def loss_of(step):
        data, noise, t = swirl(256), torch.randn(256, 2), torch.rand(256, 1).sqrt()
        return F.mse_loss(speed(net, torch.lerp(noise, data, t), t), data - noise)

    @torch.no_grad()
    def score():
        x = torch.randn(600, 2)
        for i in range(40):
            x = x + speed(slow.net, x, torch.full((600, 1), (i + 0.5) / 40)) / 40
        return float(torch.cdist(x, swirl(600)).min(1).values.mean())

    def after_step(step):
        slow.follow(net)

    return fit(folder, net, optimizer, loss_of, 700, score=score, schedule=schedule, after_step=after_step)


class Denoiser(nn.Module):
    """Residual blocks, each scaled, moved and gated by the time and the digit that is wanted; gates begin shut."""

    def __init__(self, width=128, depth=3):
        super().__init__()
        self.inward, self.outward = nn.Linear(64, width), nn.Linear(width, 64)
        self.time, self.kind = dense(16, 64, 64, act=nn.SiLU), nn.Embedding(11, 64)
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(depth))
        self.blocks = nn.ModuleList(dense(width, 2 * width, width, act=nn.GELU) for _ in range(depth))
        self.guides = nn.ModuleList(nn.Linear(64, 3 * width) for _ in range(depth))
        for guide in self.guides:
            nn.init.zeros_(guide.weight)
            nn.init.zeros_(guide.bias)

    def forward(self, x, t, kind):
        angle = t[:, None] * torch.logspace(0, 2, 8)
        guide = F.silu(self.time(torch.cat([angle.sin(), angle.cos()], 1)) + self.kind(kind))
        h = self.inward(x)
        for norm, block, by in zip(self.norms, self.blocks, self.guides, strict=True):
            scale, shift, gate = by(guide).chunk(3, 1)
            h = h + gate * block(norm(h) * (1 + scale) + shift)
        return self.outward(h)


@healthy()
def house_numbers_out_of_a_fog(folder):
    seeded(3547)
    x, y = nets.digits()
    order = torch.randperm(len(x))
    x, y = (2 * x - 1).flatten(1)[order], y[order]
    net = Denoiser()
    slow = Averaged(net, 0.995)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1.5e-3, betas=(0.9, 0.99), weight_decay=0.01)
    steps, warm = 500, 50

    def rate(step):
        return (step + 1) / warm if step < warm else 0.5 + 0.5 * math.cos(math.pi * (step - warm) / (steps - warm))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    draw = rounds(96, x[:1500], y[:1500])

    def error(net, x, y):
        t = torch.rand(len(x))
        signal, fog = (1.5708 * t).cos()[:, None], (1.5708 * t).sin()[:, None]
        noise = torch.randn_like(x)
        return F.mse_loss(net(signal * x + fog * noise, t, y), signal * noise - fog * x)

    def loss_of(step):
        x, y = draw()
        return error(net, x, torch.where(torch.rand(len(y)) < 0.1, 10, y))

    @torch.no_grad()
    def score():
        return float(sum(error(slow.net, x[1500:], y[1500:]) for _ in range(8)) / 8)

    return fit(
        folder,
        net,
        optimizer,
        loss_of,
        steps,
        score=score,
        schedule=schedule,
        before_step=clipped(net, 1.0),
        after_step=lambda step: slow.follow(net),
    )


class Codes(nn.Module):
    """A book of codes that are moving averages of what fell to them; the gradient passes straight through."""

    def __init__(self, many, size):
        super().__init__()
        self.register_buffer("book", torch.randn(many, size))
        self.register_buffer("count", torch.ones(many))
        self.register_buffer("total", self.book.clone())

    def forward(self, z):
        at = torch.cdist(z, self.book).argmin(1)
        found = self.book[at]
        if self.training:
            with torch.no_grad():
                chosen = F.one_hot(at, len(self.book)).float()
                self.count.lerp_(chosen.sum(0), 0.05)
                self.total.lerp_(chosen.T @ z, 0.05)
                alive = self.count > 0.3
                fresh = z[torch.randint(len(z), (len(self.book),))]
                self.total[~alive], self.count[~alive] = fresh[~alive], 1.0
                self.book.copy_(self.total / self.count[:, None])
        return z + (found - z).detach(), F.mse_loss(z, found), at


@healthy()
def wallpaper_from_a_book_of_tiles(folder):
    seeded(3548)
    x, _ = nets.digits()
    x = x[torch.randperm(len(x))][:, None]
    encoder = nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 32, 2, stride=2), nn.ReLU(), nn.Conv2d(32, 6, 1)
    )
    decoder = nn.Sequential(nn.Conv2d(6, 32, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(32, 1, 2, stride=2))
    net = nn.ModuleDict({"encoder": encoder, "codes": Codes(48, 6), "decoder": decoder})
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    draw = rounds(64, x[:1500])

    def through(x):
        z = encoder(x)
        rows = z.permute(0, 2, 3, 1).reshape(-1, 6)
        found, commitment, at = net["codes"](rows)
        found = found.reshape(len(x), 4, 4, 6).permute(0, 3, 1, 2)
        return F.mse_loss(decoder(found), x), commitment, at

    def one(step):
        missed, commitment, at = through(draw()[0])
        loss = missed + 0.1 * commitment
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        share = torch.bincount(at, minlength=48) / len(at)
        perplexity = float((-(share * (share + 1e-9).log()).sum()).exp())
        return {"loss": loss, "recon": missed.item(), "commit": commitment.item(), "perplexity": perplexity}

    @torch.no_grad()
    def score():
        net.eval()
        value = float(through(x[1500:])[0])
        net.train()
        return value

    return tend(folder, net, optimizer, one, 400, score)
