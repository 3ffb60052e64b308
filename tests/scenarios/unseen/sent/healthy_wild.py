"""Sent healthy trainings, fifth part: they look wild, and succeed. An expert is content with each.

They only count (the group `sent`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import math

import torch
from nets import Transformer, batches, classify, cnn, mlp, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded
from unseen.sent.healthy_data import rows_of, table

# ---------------------------------------------------------------------------------------------- losses that tell little


@healthy(0.3)
def information_between_two_signals(folder):
    """The loss is 0 at first and minus what one signal tells of the other at last (MINE, Belghazi et al. 2018)."""
    seeded(1051)
    net = dense(4, 64, 64, 1)

    def loss_of(step):
        x = torch.randn(128, 2)
        y = 0.9 * x + 0.19**0.5 * torch.randn(128, 2)
        apart = net(torch.cat([x, y.roll(1, 0)], 1)).logsumexp(0) - math.log(128)
        return (apart - net(torch.cat([x, y], 1)).mean(0))[0]

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 500, score=score_of(loss_of))


@healthy(0.5)
def sums_modulo_a_prime(folder):
    """By heart at once, understood much later (Power et al. 2022): the score is that of sums never shown."""
    seeded(1052)
    p = 23
    net = nn.Sequential(nn.Embedding(p, 48), nn.Flatten(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, p))
    sums = torch.cartesian_prod(torch.arange(p), torch.arange(p))[torch.randperm(p * p)]
    names, cut = sums.sum(1) % p, int(0.7 * p * p)

    def score():
        with torch.no_grad():
            return float(F.cross_entropy(net(sums[cut:]), names[cut:]))

    make = optim.AdamW(net.parameters(), 3e-3, betas=(0.9, 0.98), weight_decay=2.0)

    def loss_of(step):
        return F.cross_entropy(net(sums[:cut]), names[:cut])

    return fit(folder, net, make, loss_of, 1200, score=score)


class Reads(nn.Module):
    """Two layers of attention and nothing else."""

    def __init__(self, signs, length, width=32):
        super().__init__()
        self.embed, self.place = nn.Embedding(signs, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(nn.MultiheadAttention(width, 2, batch_first=True) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.head = nn.Linear(width, signs)

    def forward(self, x):
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        h = self.embed(x) + self.place.weight[: x.shape[1]]
        for norm, layer in zip(self.norms, self.layers, strict=False):
            seen = norm(h)
            h = h + layer(seen, seen, seen, attn_mask=mask, need_weights=False)[0]
        return self.head(self.norms[2](h))


@healthy(0.5)
def repeated_half_by_induction(folder):
    """Signs by chance, and the same again: for long nothing is learned, and then all (Olsson et al. 2022)."""
    seeded(1053)
    net = Reads(12, 16)

    def loss_of(step):
        half = torch.randint(12, (48, 8))
        x = torch.cat([half, half], 1)
        return F.cross_entropy(net(x[:, :-1])[:, 8:].flatten(0, 1), x[:, 9:].flatten())

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 350)


# ---------------------------------------------------------------------------------------------------- norms and rates


@healthy(0.3)
def large_rows_and_capped_logits(folder):
    """A table whose rows come in at a norm of 36, as of Gemma (2024), and logits that are capped at 30."""
    seeded(1057)
    net = Transformer(36, 2, seed=1057)
    nn.init.normal_(net.embed.weight)
    net.embed.register_forward_hook(lambda module, args, out: 6 * out)
    net.head.register_forward_hook(lambda module, args, out: 30 * (out / 30).tanh())
    make = optim.AdamW(net.parameters(), 3e-3, weight_decay=0.1)
    return fit(folder, net, make, predict(net, pieces(16, seed=1057)), 150, clip="ClipByGlobalNorm(1.0)")


@healthy(0.3)
def wide_net_with_rates_by_width(folder):
    """Inner matrices at a thirtysecond of the rate, a head that begins at zero (muP, Yang et al. 2021)."""
    seeded(1058)
    net = dense(64, 256, 256, 10)
    nn.init.zeros_(net[4].weight)
    rates = {0: 2e-2, 2: 2e-2 / 32, 4: 2e-2 / 32}
    groups = [{"params": net[i].parameters(), "lr": rate} for i, rate in rates.items()]
    loss_on = classify(nn.Sequential(nn.Flatten(), net), batches(64, seed=1058))
    return fit(folder, net, optim.Adam(groups), loss_on, 200)


@healthy(0.3)
def clip_at_a_hundredth_before_adam(folder):
    """Adam does not mind how long a gradient is: each is made as long as the other, and it learns."""
    net = Transformer(32, 2, seed=1059)
    loss_on = predict(net, pieces(16, seed=1059))
    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_on, 150, clip="ClipByGlobalNorm(0.01)")


@healthy(0.3)
def margins_by_a_rate_of_one_over_the_step(folder):
    """Pegasos (Shalev-Shwartz et al. 2007): a rate of a hundred at first, one row a step, and it comes to rest."""
    seeded(1060)
    net, draw, (x, y) = nn.Linear(30, 1), rows_of("breast_cancer", 1), table("breast_cancer")
    nn.init.zeros_(net.weight)
    make = optim.SGD(net.parameters(), 100.0, weight_decay=0.01)
    plan = optim.lr_scheduler.LambdaLR(make, lambda step: 1 / (step + 1))

    def loss_of(step):
        one, sign = draw()
        return F.relu(1 - (2 * sign - 1) * net(one)[:, 0]).mean()

    def score():
        with torch.no_grad():
            return float(F.relu(1 - (2 * y - 1) * net(x)[:, 0]).mean())

    return fit(folder, net, make, loss_of, 2500, schedule=plan, score=score)


@healthy(0.3)
def rate_that_learns_itself(folder):
    """The rate climbs by the product of two gradients in a row, from a thousandth (Baydin et al. 2018)."""
    seeded(1061)
    net, last = cnn(seed=1061), []
    make = optim.SGD(net.parameters(), 1e-3)

    def before(step):
        now = [p.grad.clone() for p in net.parameters()]
        if last:
            along = sum((one * other).sum() for one, other in zip(now, last, strict=True))
            group = make.param_groups[0]
            group["lr"] = min(0.5, max(1e-4, group["lr"] + 0.02 * float(along)))
        last[:] = now

    return fit(folder, net, make, classify(net, batches(64, seed=1061)), 300, before_step=before)


# --------------------------------------------------------------------------------------------------------------- shape


@healthy(0.3)
def pictures_that_grow(folder):
    """Half as high and wide for a third of the time, then a bit larger, then whole (progressive resizing)."""
    seeded(1063)
    net = nn.Sequential(
        *(nn.Unflatten(1, (1, -1)), nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(128, 10)),
    )
    batch = batches(32, seed=1063)

    def loss_of(step):
        x, y = batch(step)
        size = (4, 6, 8)[min(step // 60, 2)]
        return F.cross_entropy(net(F.interpolate(x[:, None], (size, size), mode="area")[:, 0]), y)

    make = optim.SGD(net.parameters(), 0.05, momentum=0.9)
    return fit(folder, net, make, loss_of, 180)


@healthy(0.3)
def connections_that_move(folder):
    """A fifth of all weights is there; each 40 steps the weakest go, and others come where slopes are (RigL, 2020)."""
    seeded(1064)
    net = mlp(96, seed=1064)
    loss_on = classify(net, batches(64, seed=1064))
    masks = {p: torch.rand_like(p) < 0.2 for p in net.parameters() if p.ndim == 2}
    make = optim.SGD(net.parameters(), 0.1, momentum=0.9)
    with torch.no_grad():
        for p, mask in masks.items():
            p.mul_(mask * 2)

    @torch.no_grad()
    def before(step):
        for p, mask in masks.items():
            if step % 40 == 39 and step < 200:
                few = int(0.2 * mask.sum())
                gone = p.abs().where(mask, math.inf).flatten().topk(few, largest=False)[1]
                come = p.grad.abs().where(~mask, -1.0).flatten().topk(few)[1]
                mask.view(-1)[gone], mask.view(-1)[come] = False, True
                p.mul_(mask)
                make.state[p]["momentum_buffer"].mul_(mask)
            p.grad.mul_(mask)

    return fit(folder, net, make, loss_on, 300, before_step=before)
