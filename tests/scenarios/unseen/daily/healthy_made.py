"""Daily healthy trainings, fifth part: what is made of noise, and what is learnt without names. An expert is content.

They only count (the group `daily`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import math

import torch
from nets import digits
from torch import nn, optim
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, fit, healthy, rings, score_of, seeded
from unseen.daily.healthy import drawn_from
from unseen.daily.healthy_data import letters

import gradwatch


@healthy(0.3)
def letters_drawn_by_their_names(folder):
    """A conditional variational autoencoder, its error summed over the pixels: hundreds, and Adam at 1e-3."""
    seeded(1228)
    draw = drawn_from(*letters(), 64)
    net = nn.ModuleDict({"encode": dense(256 + 36, 128, 20), "decode": dense(10 + 36, 128, 256)})

    def loss_of(step):
        x, y = draw()
        x, name = x.flatten(1), F.one_hot(y, 36).float()
        middle, wide = net["encode"](torch.cat([x, name], 1)).chunk(2, 1)
        code = middle + (wide / 2).exp() * torch.randn_like(middle)
        rebuilt = net["decode"](torch.cat([code, name], 1))
        error = F.binary_cross_entropy_with_logits(rebuilt, x, reduction="sum") / 64
        apart = 0.5 * (middle.square() + wide.exp() - 1 - wide).sum(1).mean()
        return error + apart, {"reconstruction": error.detach(), "kl": apart.detach()}

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 350)


@healthy(0.3)
def outlines_filled_in(folder):
    """Pix2pix (Isola et al. 2017): a judge of patches, and a hundredfold error of the pixels beside it."""
    seeded(1229)
    draw = drawn_from(*letters(), 16)
    lean = lambda: nn.LeakyReLU(0.2)  # noqa: E731
    make = nn.Sequential(
        *(nn.Conv2d(1, 16, 4, 2, 1), lean(), nn.Conv2d(16, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1)),
        nn.Sigmoid(),
    )
    judge = nn.Sequential(
        *(nn.Conv2d(2, 16, 4, 2, 1), lean(), nn.Conv2d(16, 32, 4, 2, 1), nn.BatchNorm2d(32), lean()),
        nn.Conv2d(32, 1, 3, 1, 1),
    )
    for part in [*make, *judge]:
        if isinstance(part, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.normal_(part.weight, std=0.05)
    of_make = optim.Adam(make.parameters(), 1e-3, (0.5, 0.999))
    of_judge = optim.Adam(judge.parameters(), 2e-4, (0.5, 0.999))

    def some():
        x = draw()[0]
        return (F.max_pool2d(x, 3, 1, 1) + F.max_pool2d(-x, 3, 1, 1)).clamp(0, 1), x

    def judged(said, true):
        return F.binary_cross_entropy_with_logits(said, torch.full_like(said, true))

    @torch.no_grad()
    def score():
        edge, x = (torch.cat(part) for part in zip(*(some() for _ in range(8)), strict=True))
        return float(F.l1_loss(make(edge), x))

    first = score()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(make, of_make)}
    w_judge = gradwatch.watch(judge, of_judge, name="D", **options)
    w_make = gradwatch.watch(make, of_make, name="G", run=w_judge, **options)
    with w_judge, w_make:
        for _step in range(250):
            edge, x = some()
            made = make(edge)
            of_judge.zero_grad()
            real, false = judge(torch.cat([edge, x], 1)), judge(torch.cat([edge, made.detach()], 1))
            of_d = 0.5 * (judged(real, 1.0) + judged(false, 0.0))
            of_d.backward()
            of_judge.step()
            w_judge.log(d_loss=of_d)
            of_make.zero_grad()
            pixels = F.l1_loss(made, x)
            of_g = judged(judge(torch.cat([edge, made], 1)), 1.0) + 100 * pixels
            of_g.backward()
            of_make.step()
            w_make.log(g_loss=of_g, l1=pixels)
    return Outcome(gradwatch.open_history(w_judge.dir), first, score())


class Denoiser(nn.Module):
    """Said by convolutions, told how noisy it is."""

    def __init__(self, wide=24):
        super().__init__()
        self.time, self.first = dense(16, wide, wide, act=nn.SiLU), nn.Conv2d(1, wide, 3, padding=1)
        self.mid = nn.ModuleList(
            [nn.Sequential(nn.GroupNorm(4, wide), nn.SiLU(), nn.Conv2d(wide, wide, 3, padding=1)) for _ in range(3)]
        )
        self.last = nn.Conv2d(wide, 1, 3, padding=1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, x, t):
        angle = t[:, None] * 2.0 ** torch.arange(8)
        x = self.first(x) + self.time(torch.cat([angle.sin(), angle.cos()], 1))[..., None, None]
        for part in self.mid:
            x = x + part(x)
        return self.last(x)


@healthy(0.3)
def digits_from_noise_by_their_velocity(folder):
    """A cosine of noise, the velocity as the target (Salimans and Ho 2022), a last map that begins at zero."""
    seeded(1230)
    net, x = Denoiser(), 2 * digits()[0][:, None] - 1

    def loss_of(step):
        clean, t = x[torch.randint(len(x), (32,))], torch.rand(32)
        share, noise = (t * math.pi / 2)[:, None, None, None], torch.randn(32, 1, 8, 8)
        said = net(share.cos() * clean + share.sin() * noise, t)
        return F.mse_loss(said, share.cos() * noise - share.sin() * clean)

    make = optim.AdamW(net.parameters(), 2e-3, weight_decay=0.0)
    rise = optim.lr_scheduler.LinearLR(make, 0.01, total_iters=30)
    options = {"schedule": rise, "clip": "ClipByGlobalNorm(1.0)"}
    return fit(folder, net, make, loss_of, 160, score=score_of(loss_of), **options)


@healthy(0.3)
def smooth_where_nothing_is_named(folder):
    """Forty names; elsewhere the worst of small moves may not matter (Miyato et al. 2018): that part begins at zero."""
    seeded(1234)
    draw, (x, y) = rings(256, 3, 6), (None, None)
    x, y = draw()
    few, many = (x[:40], y[:40]), draw
    net, test = dense(6, 64, 64, 3), draw()

    def loss_of(step):
        unnamed = many()[0][:64]
        with torch.no_grad():
            said = net(unnamed).softmax(1)
        way = F.normalize(torch.randn_like(unnamed), dim=1).requires_grad_()
        apart = F.kl_div(net(unnamed + 0.1 * way).log_softmax(1), said, reduction="batchmean")
        way = F.normalize(torch.autograd.grad(apart, way)[0], dim=1)
        smooth = F.kl_div(net(unnamed + 0.3 * way).log_softmax(1), said, reduction="batchmean")
        named = F.cross_entropy(net(few[0]), few[1])
        return named + smooth, {"supervised_loss": named.detach(), "vat_loss": smooth.detach()}

    def score():
        with torch.no_grad():
            return float(F.cross_entropy(net(test[0]), test[1]))

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 500, score=score)
