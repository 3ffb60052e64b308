"""Heard healthy trainings, fourth part: densities, and what is made of noise. An expert is content with each.

They only count (the group `heard`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import copy
import math

import torch
from nets import batches, digits
from torch import nn, optim
from torch.nn import functional as F
from torch.nn.utils import parametrize
from unseen import dense, fit, healthy, score_of, seeded
from unseen.sent.healthy_data import table


@healthy(0.3)
def functions_from_a_few_points(folder):
    """A conditional neural process (Garnelo et al. 2018), whose loss is minus a density."""
    seeded(1128)
    net = nn.ModuleDict({"read": dense(2, 64, 64), "tell": dense(65, 64, 64, 2)})

    def loss_of(step):
        x = 4 * torch.rand(24, 24, 1) - 2
        y = (0.5 + torch.rand(24, 1, 1)) * ((1 + torch.rand(24, 1, 1)) * x + 6.3 * torch.rand(24, 1, 1)).sin()
        given = net["read"](torch.cat([x, y], 2)[:, : 3 + step % 8]).mean(1, keepdim=True)
        middle, wide = net["tell"](torch.cat([x, given.expand(-1, 24, -1)], 2)).chunk(2, 2)
        return -torch.distributions.Normal(middle, 0.05 + 0.95 * F.softplus(wide)).log_prob(y).mean()

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 500)


@healthy(0.2)
def bound_by_sixteen_guesses(folder):
    """Images by a bound of sixteen samples, summed over the pixels (Burda et al. 2016)."""
    seeded(1129)
    net, batch = nn.ModuleDict({"encode": dense(64, 96, 16), "decode": dense(8, 96, 64)}), batches(48, seed=1129)

    def loss_of(step):
        x = (batch(step)[0].flatten(1) > 0.5).float()
        middle, wide = net["encode"](x).chunk(2, 1)
        found = torch.distributions.Normal(middle, (0.5 * wide).exp())
        z = found.rsample((16,))
        seen = -F.binary_cross_entropy_with_logits(net["decode"](z), x.expand(16, -1, -1), reduction="none").sum(2)
        weight = seen + torch.distributions.Normal(0.0, 1.0).log_prob(z).sum(2) - found.log_prob(z).sum(2)
        return (math.log(16) - weight.logsumexp(0)).mean()

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 300)


class Masked(nn.Module):
    """A weight whose forbidden entries are zero."""

    def __init__(self, mask):
        super().__init__()
        self.register_buffer("mask", mask.float())

    def forward(self, weight):
        return weight * self.mask


@healthy(0.1)
def columns_one_after_another(folder):
    """Each column of a table from those before it, by masked weights (MAF, Papamakarios et al. 2017)."""
    seeded(1130)
    x, size, wide = table("breast_cancer")[0].clamp(-4, 4), 30, 90
    at, inner = torch.arange(size), torch.arange(wide) % (size - 1)
    net = dense(size, wide, 2 * size, act=nn.Tanh)
    masks = {0: inner[:, None] >= at, 2: at.repeat(2)[:, None] > inner}
    for i, mask in masks.items():
        parametrize.register_parametrization(net[i], "weight", Masked(mask))

    def loss_of(step):
        rows = x[torch.randint(len(x), (64,))]
        middle, wide = net(rows + 0.05 * torch.randn_like(rows)).chunk(2, 1)
        return (0.5 * ((rows - middle) / wide.exp()).square() + wide + 0.5 * math.log(2 * math.pi)).sum(1).mean()

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 400, clip="ClipByGlobalNorm(20.0)")


@healthy(0.3)
def pairs_judged_one_by_one(folder):
    """An image and a drawing of its name: does the one go with the other? (SigLIP, Zhai et al. 2023)"""
    seeded(1132)
    batch, drawn = batches(48, seed=1132), (torch.rand(10, 24) < 0.5).float()
    net = nn.ModuleDict({"image": dense(64, 64, 24), "name": dense(24, 48, 24)})
    net.register_parameter("scale", nn.Parameter(torch.tensor(10.0).log()))
    net.register_parameter("shift", nn.Parameter(torch.tensor(-10.0)))

    def loss_of(step):
        x, y = batch(step)
        seen = F.normalize(net["image"](x.flatten(1)), dim=1)
        read = F.normalize(net["name"](drawn[y] + 0.2 * torch.randn(48, 24)), dim=1)
        logits = net.scale.exp() * seen @ read.T + net.shift
        return -F.logsigmoid(logits * (2.0 * (y[:, None] == y) - 1)).sum(1).mean()

    make = optim.AdamW(net.parameters(), 2e-3, betas=(0.9, 0.95), weight_decay=1e-4)
    return fit(folder, net, make, loss_of, 220)


@healthy(0.3)
def noise_of_sizes_drawn_from_a_bell(folder):
    """Images out of noise whose logarithm is normal; what comes in and goes out is scaled (Karras et al. 2022)."""
    seeded(1133)
    x = 2 * digits()[0].flatten(1) - 1
    net = dense(65, 128, 128, 64, act=nn.SiLU)
    slow = copy.deepcopy(net)

    def error(net):
        clean = x[torch.randint(len(x), (96,))]
        size = (-0.5 + 1.2 * torch.randn(96, 1)).exp()
        all_of = (size.square() + 0.5).sqrt()
        noisy = clean + size * torch.randn_like(clean)
        said = net(torch.cat([noisy / all_of, size.log() / 4], 1))
        wanted = (clean - 0.5 / all_of.square() * noisy) * all_of / (size * 0.5**0.5)
        return F.mse_loss(said, wanted)

    def after(step):
        with torch.no_grad():
            for p, q in zip(slow.parameters(), net.parameters(), strict=True):
                p.lerp_(q, 0.02)

    score = score_of(lambda step: error(slow))
    make = optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, make, lambda step: error(net), 400, after_step=after, score=score)
