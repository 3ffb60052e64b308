"""Trainings that make things: adversaries, flows, a codebook, energies, codes with a prior."""

import copy
import math

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, in_turn, rounds, tend


def apart(a, b):
    """The energy distance of two clouds."""
    return float(2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean())


def crescents(n):
    angle, side = math.pi * torch.rand(n), torch.randint(2, (n,)).float()
    x = torch.stack([angle.cos() + side - 0.5, angle.sin() * (1 - 2 * side) + 0.5 * side - 0.25], 1)
    return 1.5 * x + 0.08 * torch.randn(n, 2)


@healthy()
def sand_blown_into_two_crescents(folder):
    seeded(3641)
    make, judge = dense(4, 48, 48, 2), dense(2, 48, 48, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), lr=5e-4, betas=(0.0, 0.9))
    of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3, betas=(0.0, 0.9))

    def judged():
        real, fake = crescents(96), make(torch.randn(96, 4)).detach()
        between = fake.lerp(real, torch.rand(96, 1)).requires_grad_()
        (slope,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
        return judge(fake).mean() - judge(real).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()

    def made():
        return -judge(make(torch.randn(96, 4))).mean()

    def score():
        with torch.no_grad():
            return apart(make(torch.randn(512, 4)), crescents(512))

    return in_turn(
        folder, make, judge, of_make, of_judge, judged, made, 180, score, rounds=3, names=("critic", "maker")
    )


@healthy()
def winds_of_each_month(folder):
    seeded(3642)

    def month(n):
        return 6.2832 * torch.rand(n, 1)

    def wind(when):
        return 1 + 0.6 * when.cos() + (0.3 + 0.15 * when.sin()) * torch.randn_like(when).exp().clamp(max=6) / 2

    def around(when):
        return torch.cat([when.sin(), when.cos()], 1)

    norm = nn.utils.parametrizations.spectral_norm
    make = dense(6, 48, 48, 1)
    judge = nn.Sequential(
        norm(nn.Linear(3, 64)), nn.LeakyReLU(0.1), norm(nn.Linear(64, 64)), nn.LeakyReLU(0.1), norm(nn.Linear(64, 1))
    )
    of_make = torch.optim.Adam(make.parameters(), lr=5e-4, betas=(0.5, 0.99))
    of_judge = torch.optim.Adam(judge.parameters(), lr=2e-3, betas=(0.5, 0.99))

    def sample(when):
        return make(torch.cat([around(when), torch.randn(len(when), 4)], 1))

    def judged():
        when = month(128)
        real = judge(torch.cat([around(when), wind(when)], 1))
        fake = judge(torch.cat([around(when), sample(when).detach()], 1))
        return F.relu(1 - real).mean() + F.relu(1 + fake).mean()

    def made():
        when = month(128)
        return -judge(torch.cat([around(when), sample(when)], 1)).mean()

    def score():
        gaps = []
        with torch.no_grad():
            for at in torch.linspace(0, 5.5, 12):
                when = at.expand(512, 1)
                gaps.append((sample(when).sort(0)[0] - wind(when).sort(0)[0]).abs().mean())
        return float(torch.stack(gaps).mean())

    return in_turn(folder, make, judge, of_make, of_judge, judged, made, 350, score, rounds=2)


@healthy()
def figures_that_flow_out_of_noise(folder):
    seeded(3643)
    images = digits()[0].flatten(1) * 2 - 1
    draw = rounds(128, images[:1500])
    net = dense(64 + 16, 192, 192, 64, act=nn.GELU)
    slow = copy.deepcopy(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1, (s + 1) / 50) * (1 - s / 450) ** 0.5)
    tones = 2.0 ** torch.arange(8) * math.pi / 4

    def gap(net, x, spread=None):
        t = torch.randn(len(x), 1).sigmoid() if spread is None else spread
        noise = torch.randn_like(x)
        at = torch.cat([noise.lerp(x, t), (t * tones).sin(), (t * tones).cos()], 1)
        return F.mse_loss(net(at), x - noise)

    def follow(step):
        share = min(0.99, (1 + step) / (10 + step))
        with torch.no_grad():
            for p, q in zip(slow.parameters(), net.parameters(), strict=True):
                p.lerp_(q, 1 - share)

    def score():
        with torch.no_grad():
            return float(gap(slow, images[1500:], torch.linspace(0.02, 0.98, 297)[:, None]))

    return fit(
        folder, net, optimizer, lambda step: gap(net, draw()[0]), 400, score=score, after_step=follow, schedule=schedule
    )


class Coupling(nn.Module):
    """An affine map of the half that is not kept, its scale and shift told by the other half."""

    def __init__(self, keep):
        super().__init__()
        self.register_buffer("keep", keep)
        self.net = dense(4, 48, 48, 8, act=nn.SiLU)
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        scale, shift = self.net(x * self.keep).chunk(2, 1)
        scale = 2 * (scale / 2).tanh() * (1 - self.keep)
        return x * scale.exp() + shift * (1 - self.keep), scale.sum(1)


@healthy(gain=0.2)
def heights_and_spans_of_trees(folder):
    seeded(3644)
    even = torch.tensor([1.0, 0, 1, 0])
    net = nn.ModuleList(Coupling(even if i % 2 else 1 - even) for i in range(6))
    optimizer = torch.optim.Adamax(net.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500, 1e-4)

    def trees(n=128):
        age = torch.rand(n) * 2 - 1
        height = (2 * age).tanh() + 0.1 * torch.randn(n)
        span = 0.8 * height.square() + 0.15 * torch.randn(n)
        girth = age * (1 + 0.3 * torch.randn(n))
        return torch.stack([height, span, girth, age + 0.2 * torch.randn(n)], 1)

    def bits(x):
        total = 0.0
        for part in net:
            x, grown = part(x)
            total = total + grown
        return (0.5 * (x.square() + math.log(2 * math.pi)).sum(1) - total).mean() / math.log(2)

    def loss_of(step):
        loss = bits(trees())
        return loss, {"bits_per_number": loss / 4}

    return fit(
        folder, net, optimizer, loss_of, 500,
        score=held_out(net, lambda: bits(trees(2000))), before_step=clipped(net, 5.0),
        schedule=schedule,
    )  # fmt: skip


class Nearest(torch.autograd.Function):
    """The nearest row of a book; the gradient passes as if nothing had been looked up."""

    @staticmethod
    def forward(ctx, z, book):
        at = torch.cdist(z, book).argmin(1)
        ctx.mark_non_differentiable(at)
        return book[at], at

    @staticmethod
    def backward(ctx, grad, _):
        return grad, None


@healthy()
def tiles_named_by_a_codebook(folder):
    seeded(3645)
    images = digits()[0][:, None]
    draw = rounds(64, images[:1500])
    down = nn.Sequential(
        nn.Conv2d(1, 24, 4, 2, 1), nn.ReLU(), nn.Conv2d(24, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 8, 1)
    )
    up = nn.Sequential(nn.Conv2d(8, 32, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(32, 1, 4, 2, 1))
    net = nn.ModuleDict({"down": down, "up": up})
    net.register_buffer("book", torch.randn(48, 8) * 0.1)
    counts, sums = torch.ones(48), net.book.clone()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def coded(x):
        z = net["down"](x)
        flat = z.permute(0, 2, 3, 1).reshape(-1, 8)
        code, at = Nearest.apply(flat, net.book)
        found = code.reshape(len(x), 4, 4, 8).permute(0, 3, 1, 2)
        return net["up"](found), flat, at

    def one(step):
        (x,) = draw()
        out, flat, at = coded(x)
        rebuilt = F.mse_loss(out, x)
        commit = F.mse_loss(flat, net.book[at])
        loss = rebuilt + 0.25 * commit
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            chosen = F.one_hot(at, 48).float()
            counts.lerp_(chosen.sum(0), 0.05)
            sums.lerp_(chosen.T @ flat, 0.05)
            net.book.copy_(sums / (counts[:, None] + 1e-3))
            unused = counts < 0.2
            if step % 20 == 0 and unused.any():
                again = flat[torch.randint(len(flat), (int(unused.sum()),))]
                net.book[unused], sums[unused], counts[unused] = again, again, 1.0
        share = chosen.mean(0)
        return {
            "loss": loss,
            "rebuilt": rebuilt,
            "commit": commit,
            "codes_in_use": (-(share * (share + 1e-9).log()).sum()).exp(),
        }

    return tend(
        folder, net, optimizer, one, 400, held_out(net, lambda: F.mse_loss(coded(images[1500:])[0], images[1500:]))
    )


@healthy()
def moths_around_five_lamps(folder):
    seeded(3646)
    angle = torch.arange(5) * 1.2566
    lamps = 1.5 * torch.stack([angle.cos(), angle.sin()], 1)
    net = dense(2, 64, 64, 1, act=nn.SiLU)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, betas=(0.5, 0.999))
    pool = 4 * torch.rand(2048, 2) - 2

    def moths(n):
        return lamps[torch.randint(5, (n,))] + 0.2 * torch.randn(n, 2)

    def wander(x, moves, size=0.02):
        for _ in range(moves):
            x = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(net(x).sum(), x)
            x = x - size * slope + (2 * size) ** 0.5 * torch.randn_like(x)
        return x.detach()

    def loss_of(step):
        at = torch.randint(len(pool), (128,))
        start = torch.where(torch.rand(128, 1) < 0.05, 4 * torch.rand(128, 2) - 2, pool[at])
        made = wander(start, 10)
        pool[at] = made
        low, high = net(moths(128)), net(made)
        loss = low.mean() - high.mean() + 0.01 * (low.square() + high.square()).mean()
        return loss, {"energy_of_data": low.mean(), "energy_of_samples": high.mean()}

    def score():
        return apart(wander(4 * torch.rand(400, 2) - 2, 100), moths(400))

    return fit(folder, net, optimizer, loss_of, 350, score=score)


@healthy(gain=0.2)
def scribbles_from_eight_numbers(folder):
    seeded(3647)
    images = digits()[0].flatten(1)
    draw = rounds(100, images[:1500])
    net = nn.ModuleDict({"read": dense(64, 128, 16, act=nn.ELU), "write": dense(8, 128, 64, act=nn.ELU)})
    optimizer = torch.optim.NAdam(net.parameters(), lr=2e-3)

    def terms(x):
        middle, log_var = net["read"](x).chunk(2, 1)
        z = middle + (0.5 * log_var).exp() * torch.randn_like(middle)
        drawn = F.binary_cross_entropy_with_logits(net["write"](z), x, reduction="none").sum(1).mean()
        return drawn, 0.5 * (middle.square() + log_var.exp() - 1 - log_var).sum(1).mean()

    def loss_of(step):
        drawn, kl = terms(draw()[0])
        beta = min(1.0, step / 200)
        return drawn + beta * kl, {"drawn": drawn, "kl": kl, "beta": beta, "minus_elbo": drawn + kl}

    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, lambda: sum(terms(images[1500:]))))
