"""Models that make things: clock faces, digits, heights of twins, noise taken away, a density."""

import math

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, in_turn, rounds, tend


def faces(rows, size=16):
    """Pictures of clocks: a rim and two hands."""
    axis = torch.linspace(-1, 1, size)
    far = (axis[:, None].square() + axis.square()).sqrt()
    picture = (-((far - 0.9) / 0.1).square()).exp().expand(rows, size, size)
    for long, wide in ((0.5, 0.15), (0.8, 0.1)):
        angle = 6.2832 * torch.rand(rows, 1, 1)
        along = axis * angle.cos() + axis[:, None] * angle.sin()
        aside = axis * angle.sin() - axis[:, None] * angle.cos()
        hand = (-(aside / wide).square()).exp() * ((along > 0) & (along < long))
        picture = torch.maximum(picture, hand)
    return picture[:, None]


@healthy()
def faces_of_station_clocks_made_small(folder):
    seeded(2863)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(512, 24),
        nn.Linear(24, 512), nn.ReLU(), nn.Unflatten(1, (32, 4, 4)),
        nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Sigmoid(),
    )  # fmt: skip
    x, fresh = faces(2000), faces(300)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    draw = rounds(64, x)

    def loss_of(step):
        (pictures,) = draw()
        return F.mse_loss(net(pictures), pictures)

    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, lambda: F.mse_loss(net(fresh), fresh)))


class Variational(nn.Module):
    def __init__(self, pixels=64, wide=96, hidden=8):
        super().__init__()
        self.read = dense(pixels, wide, wide, 2 * hidden)
        self.write = dense(hidden, wide, wide, pixels)

    def forward(self, x):
        mean, log_var = self.read(x).chunk(2, 1)
        code = mean + (log_var / 2).exp() * torch.randn_like(mean) if self.training else mean
        return self.write(code), mean, log_var


@healthy()
def postal_codes_drawn_anew(folder):
    seeded(2864)
    x = digits()[0].flatten(1)
    x = x[torch.randperm(len(x))]
    net = Variational()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    draw, floor = rounds(100, x[:1500]), float(F.binary_cross_entropy(x[1500:], x[1500:], reduction="sum")) / 297

    def loss_of(step):
        (pictures,) = draw()
        out, mean, log_var = net(pictures)
        drawn = F.binary_cross_entropy_with_logits(out, pictures, reduction="sum") / len(pictures)
        apart = 0.5 * (mean.square() + log_var.exp() - log_var - 1).sum(1).mean()
        return drawn + min(1.0, step / 200) * apart, {"reconstruction": drawn, "kl": apart}

    def left():
        return F.binary_cross_entropy_with_logits(net(x[1500:])[0], x[1500:], reduction="sum") / 297 - floor

    return fit(folder, net, optimizer, loss_of, 700, score=held_out(net, left))


@healthy()
def heights_and_weights_of_players_invented(folder):
    seeded(2865)
    means = torch.tensor([[-1.0, -0.8], [0.9, 0.2], [0.1, 1.2]])

    def players(rows):
        return means[torch.randint(3, (rows,))] + 0.25 * torch.randn(rows, 2) @ torch.tensor([[1.0, 0.6], [0.0, 0.8]])

    make = dense(8, 64, 64, 2)
    judge = dense(2, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), lr=5e-4, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), lr=5e-4, betas=(0.5, 0.999))

    def judged():
        real, made = judge(players(128)), judge(make(torch.randn(128, 8)).detach())
        return F.softplus(-real).mean() + F.softplus(made).mean()

    def made():
        return F.softplus(-judge(make(torch.randn(128, 8)))).mean()

    def score():
        with torch.no_grad():
            a, b = players(800), make(torch.randn(800, 8))
            return float(2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean())

    return in_turn(folder, make, judge, of_make, of_judge, judged, made, 700, score)


class Denoiser(nn.Module):
    """Convolutions over 8 by 8 pixels that are told how much noise there is."""

    def __init__(self, width=20):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 2 * width), nn.SiLU(), nn.Linear(2 * width, 2 * width))
        self.begin, self.end = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, 1, 3, padding=1)
        self.first = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(3))
        self.second = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(3))
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(3))
        nn.init.zeros_(self.end.weight)
        nn.init.zeros_(self.end.bias)

    def forward(self, x, t):
        angle = t[:, None] * torch.exp(-math.log(1000) * torch.arange(8) / 8)
        scale, shift = self.time(torch.cat([angle.sin(), angle.cos()], 1))[:, :, None, None].chunk(2, 1)
        h = self.begin(x)
        for first, second, norm in zip(self.first, self.second, self.norms, strict=True):
            h = h + second(F.silu(norm(first(h)) * (1 + scale) + shift))
        return self.end(F.silu(h))


@healthy()
def numerals_out_of_static(folder):
    seeded(2866)
    x = digits()[0][:, None] * 2 - 1
    x = x[torch.randperm(len(x))]
    keep = torch.cumprod(1 - torch.linspace(1e-3, 0.08, 100), 0)
    net, slow = Denoiser(), Denoiser()
    slow.load_state_dict(net.state_dict())
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
    draw = rounds(48, x[:1500])

    def error(model, pictures):
        t, noise = torch.randint(100, (len(pictures),)), torch.randn_like(pictures)
        kept = keep[t][:, None, None, None]
        return F.mse_loss(model(kept.sqrt() * pictures + (1 - kept).sqrt() * noise, t.float()), noise)

    @torch.no_grad()
    def follow(step):
        rate = min(0.99, (1 + step) / (10 + step))
        for mine, its in zip(slow.parameters(), net.parameters(), strict=True):
            mine.lerp_(its, 1 - rate)

    def loss_of(step):
        return error(net, draw()[0])

    score = held_out(slow, lambda: error(slow, x[1500:].repeat(4, 1, 1, 1)))
    before = clipped(net, 1.0)
    return fit(folder, net, optimizer, loss_of, 400, score=score, before_step=before, after_step=follow)


class Couplings(nn.Module):
    """A flow: each layer shifts and scales one half of the columns by what the other half says (RealNVP)."""

    def __init__(self, columns=4, layers=6, width=48):
        super().__init__()
        half = columns // 2
        self.nets = nn.ModuleList(dense(half, width, width, 2 * half, act=nn.Tanh) for _ in range(layers))

    def forward(self, x):
        volume = 0.0
        for net in self.nets:
            a, b = x.chunk(2, 1)
            log_scale, shift = net(a).chunk(2, 1)
            log_scale = 2 * (log_scale / 2).tanh()
            x, volume = torch.cat([b * log_scale.exp() + shift, a], 1), volume + log_scale.sum(1)
        return -0.5 * x.square().sum(1) - 0.5 * x.shape[1] * math.log(2 * math.pi) + volume


@healthy()
def readings_of_four_gauges_and_how_likely(folder):
    seeded(2867)

    def readings(rows):
        turn = 3 * torch.rand(rows) - 1.5
        first = torch.stack([turn, turn.square() - 0.75, (3 * turn).sin(), 0.5 * turn + torch.randn(rows).abs()], 1)
        return first + 0.15 * torch.randn(rows, 4)

    net = Couplings()
    x, fresh = readings(4000), readings(1000)
    middle, spread = x.mean(0), x.std(0)
    x, fresh = (x - middle) / spread, (fresh - middle) / spread
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500, eta_min=1e-5)
    draw = rounds(128, x)

    def one(step):
        loss = -net(draw()[0]).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimizer.step()
        schedule.step()
        return {"loss": loss}

    return tend(folder, net, optimizer, one, 500, held_out(net, lambda: -net(fresh).mean()))
