"""Losses that are seldom met: transport, covariance, evidence, energy scores, permutations, determinants."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, mean, score_of, seeded


def transport(x, y, eps=0.1, rounds=10):
    """The cost of entropic transport between two clouds of equal weights; its plan is held fixed for the gradient."""
    cost = torch.cdist(x, y).square() if x is not y else (x[:, None] - x).square().sum(2)
    with torch.no_grad():
        f, g, each = torch.zeros(len(x)), torch.zeros(len(y)), -torch.tensor(float(len(x))).log()
        for _ in range(rounds):
            f = -eps * ((g - cost) / eps + each).logsumexp(1)
            g = -eps * ((f[:, None] - cost) / eps + each).logsumexp(0)
        plan = ((f[:, None] + g - cost) / eps + 2 * each).exp()
    return (plan * cost).sum()


@healthy()
def sheep_scattered_like_yesterday(folder):
    seeded(9478)
    net = dense(4, 64, 64, 2, act=nn.LeakyReLU)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, betas=(0.5, 0.95))

    def flock(rows):
        turn = 4.5 * torch.rand(rows).sqrt()
        way = torch.stack([turn.cos(), turn.sin()], 1) * (0.3 + 0.3 * turn[:, None])
        return way + 0.05 * torch.randn(rows, 2)

    def loss_of(step, rows=64):
        made, real = net(torch.randn(rows, 4)), flock(rows)
        return transport(made, real) - 0.5 * transport(made, made) - 0.5 * transport(real, real)

    return fit(folder, net, optimizer, loss_of, 250, score=score_of(lambda step: loss_of(step, 200), 4))


@healthy()
def pears_seen_in_two_lights(folder):
    seeded(9479)
    body, expander = dense(24, 96, 96, 16), dense(16, 64, 64)
    net = nn.ModuleDict({"body": body, "expander": expander})
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)
    of_pear, of_light = torch.randn(3, 24), 1.5 * torch.randn(5, 24)

    def seen(pear):
        return (pear @ of_pear + torch.randn(len(pear), 5) @ of_light).tanh() + 0.05 * torch.randn(len(pear), 24)

    def apart(z):
        z = z - z.mean(0)
        covariance = z.T @ z / (len(z) - 1)
        spread = F.relu(1 - (covariance.diagonal() + 1e-4).sqrt()).mean()
        return spread, (covariance.square().sum() - covariance.diagonal().square().sum()) / z.shape[1]

    def loss_of(step):
        pear = torch.randn(128, 3)
        a, b = (expander(body(seen(pear))) for _ in range(2))
        same = F.mse_loss(a, b)
        spread, joint = (sum(parts) for parts in zip(apart(a), apart(b), strict=True))
        loss = 25 * same + 12.5 * spread + joint
        return loss, {"invariance": same.detach(), "variance": spread.detach(), "covariance": joint.detach()}

    def score():
        with torch.no_grad():
            pears = torch.randn(2000, 3)
            codes = torch.cat([body(seen(pears)), torch.ones(2000, 1)], 1)
            found = torch.linalg.lstsq(codes[:1000], pears[:1000]).solution
            return float(F.mse_loss(codes[1000:] @ found, pears[1000:]))

    return fit(folder, net, optimizer, loss_of, 500, score=score, schedule=schedule)


@healthy()
def fossils_of_which_the_curator_is_unsure(folder):
    seeded(9480)
    net = dense(8, 64, 64, 4)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, weight_decay=1e-5)
    bent, shift = torch.randn(8, 4) / 2, torch.randn(8, 4) / 2

    def draw(rows):
        x = torch.randn(rows, 8)
        return x, ((x @ bent).sin() * 1.5 + x @ shift).argmax(1)

    def evidence(x, y):
        alpha = F.softplus(net(x)) + 1
        total = alpha.sum(1, keepdim=True)
        share, wanted = alpha / total, F.one_hot(y, 4).float()
        error = ((wanted - share).square() + share * (1 - share) / (total + 1)).sum(1).mean()
        others = wanted + (1 - wanted) * alpha
        flat = torch.distributions.Dirichlet(torch.ones_like(others))
        return error, torch.distributions.kl_divergence(torch.distributions.Dirichlet(others), flat).mean(), 4 / total

    def loss_of(step):
        error, divergence, doubt = evidence(*draw(64))
        weight = 0.05 * min(1.0, step / 300)
        return error + weight * divergence, {"divergence": divergence.detach(), "doubt": doubt.mean().detach()}

    return fit(folder, net, optimizer, loss_of, 900, score=score_of(lambda step: evidence(*draw(256))[0]))


@healthy()
def landfall_of_a_gale_in_many_guesses(folder):
    seeded(9481)
    net = dense(9, 64, 64, 2, act=nn.ELU)
    optimizer = torch.optim.NAdam(net.parameters(), lr=2e-3)
    way = torch.randn(5, 2)

    def loss_of(step, guesses=8):
        x = torch.randn(48, 5)
        side = (torch.rand(48, 1) < torch.sigmoid(2 * x[:, :1])).float() * 2 - 1
        landed = (x @ way).tanh() + side * torch.tensor([0.8, -0.4]) + 0.15 * torch.randn(48, 2)
        told = net(torch.cat([x.expand(guesses, -1, -1), torch.randn(guesses, 48, 4)], 2))
        off = (told - landed).square().sum(2).add(1e-6).sqrt().mean()
        between = (told[:, None] - told[None]).square().sum(3).add(1e-6).sqrt()
        spread = between.sum((0, 1)).mean() / (guesses * (guesses - 1))
        return off - 0.5 * spread, {"off": off.detach(), "spread": spread.detach()}

    return fit(folder, net, optimizer, loss_of, 800, score=score_of(lambda step: loss_of(step, 32)[0]))


@healthy()
def skittles_put_in_order_by_soft_moves(folder):
    seeded(9482)
    pins = 7
    net = dense(4, 48, 48, pins, act=nn.ReLU)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [500, 650], 0.3)
    shape = torch.randn(3, 4)

    def draw(rows):
        height = torch.rand(rows, pins) * 2 - 1
        rest = 0.2 * torch.randn(rows, pins, 2)
        seen = (torch.cat([height[..., None], rest], 2) @ shape).tanh()
        return seen, height, height.sort(1).values

    def doubly(logits, rounds=15):
        for _ in range(rounds):
            logits = logits.log_softmax(2).log_softmax(1)
        return logits.exp()

    def loss_of(step):
        seen, height, wanted = draw(48)
        heat = max(0.5, 1 - step / 800)
        noise = -torch.empty(48, pins, pins).exponential_().log()
        places = doubly((net(seen) + 0.5 * noise) / heat)
        return F.mse_loss(torch.einsum("bip,bi->bp", places, height), wanted), {"heat": heat}

    def score():
        with torch.no_grad():
            seen, height, _ = draw(512)
            places = doubly(net(seen) / 0.25, 40)
            return float((places.argmax(2) != height.argsort(1).argsort(1)).float().mean())

    return fit(folder, net, optimizer, loss_of, 800, score=score, schedule=schedule)


@healthy()
def picnic_hampers_without_two_alike(folder):
    seeded(9483)
    foods = 8
    subsets = torch.tensor(list(itertools.product([0.0, 1.0], repeat=foods)))
    taste, worth = torch.randn(5, 4), torch.randn(5) / 2
    net = nn.ModuleDict({"likeness": dense(5, 32, 6, act=nn.Tanh), "worth": dense(5, 32, 1, act=nn.Tanh)})
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)

    def kernel(parts, worth):
        made = F.normalize(parts, dim=2) * worth.exp()[..., None]
        return made @ made.transpose(1, 2) + 0.02 * torch.eye(foods)

    def true_kernel(x):
        return kernel((x @ taste).sin(), (x @ worth).tanh())

    def our_kernel(x):
        return kernel(net["likeness"](x), net["worth"](x)[..., 0])

    def likely(L, chosen):
        """The logarithm of the chance that just these are packed; `[B, N]` for `[B, N, foods]`."""
        inside = chosen[..., :, None] * L[:, None] * chosen[..., None, :] + torch.diag_embed(1 - chosen)
        return torch.logdet(inside) - torch.logdet(L + torch.eye(foods))[:, None]

    def loss_of(step):
        x = torch.randn(12, foods, 5)
        with torch.no_grad():
            chances = likely(true_kernel(x), subsets.expand(12, -1, -1)).exp()
        packed = subsets[torch.multinomial(chances, 10, replacement=True)]
        return -likely(our_kernel(x), packed).mean(), {"packed": packed.sum(2).mean()}

    def score():
        with torch.no_grad():
            x = torch.randn(40, foods, 5)
            true, ours = (likely(L, subsets.expand(40, -1, -1)) for L in (true_kernel(x), our_kernel(x)))
            return mean((true.exp() * (true - ours)).sum(1).tolist())

    return fit(folder, net, optimizer, loss_of, 400, score=score)
