"""Common healthy trainings of the wild kind, second part: losses over pairs, kernels and shares, and unusual outputs.

They only count (the group `common`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import math

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded
from unseen.common.healthy_wild import kept_apart


def of_rows(net, loss_on, rows):
    """`loss_of(step)` and `score()`: `loss_on(said, x, y)` for rows that are learnt, and for all that are kept."""
    (x, y), kept = kept_apart()

    def loss_of(step):
        at = torch.randint(len(x), (rows,))
        return loss_on(net(x[at]), x[at], y[at])

    def score():
        net.eval()
        with torch.no_grad():
            loss = float(loss_on(net(kept[0]), *kept))
        net.train()
        return loss

    return loss_of, score


@healthy(0.5)
def order_of_all_pairs_of_a_query(folder):
    """All differences of scores within a list, under a logistic loss (Burges et al. 2005)."""
    seeded(4330)
    net, way = dense(16, 48, 48, 1), torch.randn(16, 3)

    def loss_of(step):
        x = torch.randn(12, 24, 16)
        grade = (x @ way / 4).tanh().sum(2) + 0.1 * torch.randn(12, 24) > torch.tensor([[-1.0], [0], [1]])[:, None]
        grade = grade.sum(0)
        score = net(x)[..., 0]
        gap, above = score[:, :, None] - score[:, None], grade[:, :, None] > grade[:, None]
        return (F.softplus(-gap) * above).sum() / above.sum()

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 1800, score=score_of(loss_of))


@healthy(0.6)
def area_under_a_curve_by_squares(folder):
    """One kind in ten, threes, against all others: the squared hinge of every pair of a batch."""
    seeded(4331)
    net = nn.Sequential(dense(64, 48, 48, 1), nn.Tanh())

    def loss_on(said, x, y):
        gap = said[y == 3] - said[y != 3].T
        return (1 - gap).clamp(min=0).square().mean()

    loss_of, score = of_rows(net, loss_on, 128)
    make = optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    return fit(folder, net, make, loss_of, 2500, score=score)


@healthy(0.6)
def cloud_matched_by_five_kernels(folder):
    """A generator of two moons under the maximum mean discrepancy (Li et al. 2015), with batches of 200."""
    seeded(4332)
    net = dense(4, 64, 64, 64, 2)

    def moons(rows):
        angle, which = math.pi * torch.rand(rows), (torch.rand(rows) < 0.5).float()
        sign = 1 - 2 * which
        points = torch.stack([sign * angle.cos() + which - 0.5, sign * angle.sin() + 0.5 * which - 0.25], 1)
        return points + 0.05 * torch.randn(rows, 2)

    def kernel(a, b):
        far = (a[:, None] - b[None]).square().sum(2)
        return sum((-far / (2 * wide**2)).exp().mean() for wide in (0.1, 0.2, 0.5, 1.0, 2.0))

    def apart(rows):
        made, real = net(torch.randn(rows, 4)), moons(rows)
        return kernel(made, made) + kernel(real, real) - 2 * kernel(made, real)

    def score():
        with torch.no_grad():
            return float(apart(1000))

    make = optim.Adam(net.parameters(), 1e-3)
    return fit(folder, net, make, lambda step: apart(200), 900, score=score)


@healthy(0.5)
def upper_halves_found_by_lower_ones(folder):
    """Which two halves are of one digit, asked both ways (Radford et al. 2021), with a learnt, clamped temperature."""
    seeded(4333)
    net = nn.ModuleDict({"up": dense(32, 96, 96, 24, act=nn.GELU), "low": dense(32, 96, 96, 24, act=nn.GELU)})
    net.heat = nn.Parameter(torch.tensor(1 / 0.07).log())
    (x, _), kept = kept_apart()

    def of(x):
        up, low = (F.normalize(net[side](half), dim=1) for side, half in zip(("up", "low"), x.chunk(2, 1), strict=True))
        like, truth = net.heat.exp() * up @ low.T, torch.arange(len(x))
        return (F.cross_entropy(like, truth) + F.cross_entropy(like.T, truth)) / 2

    def loss_of(step):
        return of(x[torch.randint(len(x), (96,))])

    def after(step):
        with torch.no_grad():
            net.heat.clamp_(0, math.log(100))

    def score():
        with torch.no_grad():
            return sum(float(of(part)) for part in kept[0].split(90)[:3]) / 3

    matrices = [p for p in net.parameters() if p.ndim > 1]
    rest = [p for p in net.parameters() if p.ndim < 2]
    make = optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0}], 1e-3)
    plan = optim.lr_scheduler.CosineAnnealingLR(make, 2400)
    return fit(folder, net, make, loss_of, 2400, score=score, schedule=plan, after_step=after)


@healthy(0.5)
def flat_map_that_keeps_the_distances(folder):
    """All distances of a batch against those in a plane, weighed by the inverse as Sammon (1969) has it."""
    seeded(4334)
    net = dense(64, 128, 128, 2, act=nn.SiLU)

    def loss_on(said, x, y):
        real, above = torch.cdist(x, x), torch.ones(len(x), len(x)).triu(1) > 0
        real = real[above].clamp(min=0.1)
        near = ((said[:, None] - said[None]).square().sum(2)[above] + 1e-6).sqrt()
        return ((near - real).square() / real).sum() / real.sum()

    loss_of, score = of_rows(net, loss_on, 128)
    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 2500, score=score)


@healthy(0.4)
def ink_that_is_never_below_zero(folder):
    """Right halves from left ones, through a ReLU at the output whose bias begins at the mean of the ink."""
    seeded(4335)
    (x, _), kept = kept_apart()

    def halves(x):
        x = x.view(-1, 8, 8)
        return x[:, :, :4].flatten(1), x[:, :, 4:].flatten(1)

    net = nn.Sequential(dense(32, 128, 128, 32), nn.ReLU())
    with torch.no_grad():
        net[0][-1].bias.copy_(halves(x)[1].mean(0) + 0.1)

    def loss_of(step):
        given, wanted = halves(x[torch.randint(len(x), (64,))])
        return F.mse_loss(net(given), wanted)

    def score():
        with torch.no_grad():
            given, wanted = halves(kept[0])
            return float(F.mse_loss(net(given), wanted))

    make = optim.Adam(net.parameters(), 1e-3)
    plan = optim.lr_scheduler.ExponentialLR(make, 0.9985)
    return fit(folder, net, make, loss_of, 3000, score=score, schedule=plan)


@healthy(0.25)
def shares_by_a_beta(folder):
    """The likelihood of shares between nought and one, whose two numbers are a softplus and one part in a hundred."""
    seeded(4336)
    net, way = dense(8, 48, 48, 2), torch.randn(8, 2)

    def loss_of(step):
        x = torch.randn(128, 8)
        mean = (x @ way / 2).sin().sum(1).sigmoid()
        wanted = torch.distributions.Beta(20 * mean, 20 * (1 - mean)).sample().clamp(0.001, 0.999)
        ab = F.softplus(net(x)) + 0.01
        return 3 - torch.distributions.Beta(ab[:, 0], ab[:, 1]).log_prob(wanted).mean()

    make = optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, make, loss_of, 3500, score=score_of(loss_of), clip="ClipByGlobalNorm(10.0)")


@healthy(0.3)
def angles_by_von_mises(folder):
    """Where a point stands as seen from a moved one: the likelihood of an angle, with its concentration."""
    seeded(4337)
    net, way = dense(6, 48, 48, 3, act=nn.Tanh), torch.randn(6, 2)

    def loss_of(step):
        x = torch.randn(96, 6)
        seen = (x @ way / 2).sin() + 0.3 * x[:, :2]
        angle = torch.atan2(seen[:, 0], seen[:, 1]) + 0.2 * torch.randn(96)
        said = net(x)
        much, mean = F.softplus(said[:, 2]) + 0.01, torch.atan2(said[:, 0], said[:, 1])
        whole = math.log(2 * math.pi) + torch.special.i0e(much).log() + much
        return (whole - much * (angle - mean).cos()).mean()

    make = optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, make, loss_of, 3500, score=score_of(loss_of), clip="ClipByGlobalNorm(5.0)")


@healthy(0.5)
def evidence_gathered_for_each_kind(folder):
    """Sensoy et al. (2018): squared errors under a Dirichlet, and a pull to no evidence that comes in slowly."""
    seeded(4338)
    net = dense(64, 64, 10)

    def square(said, x, y):
        alpha = F.softplus(said) + 1
        whole = alpha.sum(1, keepdim=True)
        mean = alpha / whole
        return ((F.one_hot(y, 10) - mean).square() + mean * (1 - mean) / (whole + 1)).sum(1).mean()

    (x, y), _ = kept_apart()
    _, score = of_rows(net, square, 64)

    def loss_of(step):
        at = torch.randint(len(x), (64,))
        said, truth = net(x[at]), F.one_hot(y[at], 10)
        wrong = torch.distributions.Dirichlet(truth + (1 - truth) * (F.softplus(said) + 1))
        pull = torch.distributions.kl_divergence(wrong, torch.distributions.Dirichlet(torch.ones(64, 10))).mean()
        return square(said, x[at], y[at]) + 0.1 * min(1, step / 1000) * pull

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 2500, score=score)


def fallen(make, steps):
    """A line down to a twentieth of the rate."""
    return optim.lr_scheduler.LambdaLR(make, lambda step: 1 - 0.95 * step / steps)


@healthy(0.3)
def expectiles_that_never_cross(folder):
    """Five expectiles at once, the gaps between them softplus; noise that is wider on one side."""
    seeded(4339)
    net, levels = dense(1, 64, 64, 5, act=nn.SiLU), torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9])

    def loss_of(step):
        x = 4 * torch.rand(128, 1) - 2
        wanted = (2 * x).sin() + (0.2 + 0.3 * x.abs()) * (torch.randn(128, 1).exp() - 1)
        said = net(x)
        said = torch.cat([said[:, :1], F.softplus(said[:, 1:])], 1).cumsum(1)
        gap = wanted.clamp(max=4) - said
        return ((gap > 0) * levels + (gap <= 0) * (1 - levels)).mul(gap.square()).mean()

    make = optim.AdamW(net.parameters(), 2e-3)
    return fit(folder, net, make, loss_of, 4000, score=score_of(loss_of, 20), schedule=fallen(make, 4000))
