"""Learning to learn, learning without names, learning from another."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, mean, rings, seeded
from unseen.tasks import clipped, held_out, tend

# -------------------------------------------------------------------------------------------------- learning to learn


@healthy()
def whistles_tuned_after_five_notes(folder):
    """MAML with gradients of the second order: a beginning from which two steps are enough."""
    seeded(3106)
    net = dense(1, 40, 40, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)

    def draw(tasks):
        height, phase = 1 + 2 * torch.rand(tasks, 1, 1), math.pi * torch.rand(tasks, 1, 1)
        x = 8 * torch.rand(tasks, 20, 1) - 4
        y = height * (x + phase).sin()
        return (x[:, :5] / 4, y[:, :5]), (x[:, 5:] / 4, y[:, 5:])

    def error(weights, x, y):
        for i in range(0, 6, 2):
            x = torch.baddbmm(weights[i + 1][:, None], x, weights[i].mT)
            x = x.tanh() if i < 4 else x
        return (x - y).square().mean((1, 2))

    def after(few, rest):
        weights = [p.expand(len(few[0]), *p.shape) for p in net.parameters()]
        for _ in range(2):
            slopes = torch.autograd.grad(error(weights, *few).sum(), weights, create_graph=True)
            weights = [w - 0.1 * slope for w, slope in zip(weights, slopes, strict=True)]
        return error(weights, *rest)

    def loss_of(step):
        losses = after(*draw(16))
        return losses.mean(), {"worst_task": losses.detach().max()}

    def score():
        return float(after(*draw(400)).detach().mean())

    return fit(folder, net, optimizer, loss_of, 450, score=score, before_step=clipped(net, 10.0))


# ----------------------------------------------------------------------------------------------------- without names


def two_looks(shared=5, noise=11):
    """`draw(rows)`: two measurements of the same things, of which a few numbers agree and the rest are of no use."""
    lift = torch.linalg.qr(torch.randn(shared + noise, shared + noise))[0]

    def draw(rows):
        same = torch.randn(rows, shared)
        each = (torch.cat([same + 0.1 * torch.randn(rows, shared), torch.randn(rows, noise)], 1) for _ in range(2))
        return [x @ lift + 0.3 * (x @ lift).square() for x in each]

    return draw


def mistaken(code, draw, rows=256):
    """`score()`: the share of things whose second measurement isn't the nearest by its code."""

    def score():
        a, b = (F.normalize(code(x) - code(x).mean(0), dim=1) for x in draw(rows))
        return ((a @ b.T).argmax(1) != torch.arange(rows)).float().mean()

    return score


@healthy()
def snowflakes_under_two_lenses(folder):
    """VICReg: alike, of a variance, not correlated."""
    seeded(3107)
    draw = two_looks()
    net = nn.ModuleDict({"code": dense(16, 96, 96, 16, norm=nn.BatchNorm1d), "wide": dense(16, 64, 64)})
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=600, pct_start=0.15)

    def spread(z):
        return F.relu(1 - (z.var(0) + 1e-4).sqrt()).mean()

    def together(z):
        z = z - z.mean(0)
        covariance = z.T @ z / (len(z) - 1)
        return (covariance - covariance.diag().diag()).square().sum() / z.shape[1]

    def loss_of(step):
        a, b = (net["wide"](net["code"](x)) for x in draw(192))
        alike, variance, covariance = F.mse_loss(a, b), spread(a) + spread(b), together(a) + together(b)
        loss = 25 * alike + 25 * variance + covariance
        return loss, {"alike": alike, "variance": variance, "covariance": covariance}

    score = held_out(net, mistaken(net["code"], draw))
    return fit(folder, net, optimizer, loss_of, 600, score=score, schedule=schedule)


@healthy()
def moths_that_chase_their_shadow(folder):
    """BYOL: a predictor, and a target that is a slow average of the learner."""
    seeded(3108)
    draw, steps = two_looks(shared=6, noise=10), 700
    code = nn.Sequential(dense(16, 128, 128, norm=nn.BatchNorm1d), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 24))
    net = nn.ModuleDict({"code": code, "guess": dense(24, 96, 24, norm=nn.BatchNorm1d)})
    target = copy.deepcopy(code).requires_grad_(False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    def loss_of(step):
        a, b = draw(128)
        with torch.no_grad():
            wanted = target(torch.cat([b, a]))
        return 2 - 2 * F.cosine_similarity(net["guess"](code(torch.cat([a, b]))), wanted).mean()

    @torch.no_grad()
    def follow(step):
        tau = 1 - 0.02 * (math.cos(math.pi * step / steps) + 1) / 2
        for slow, p in zip(target.parameters(), code.parameters(), strict=True):
            slow.lerp_(p, 1 - tau)

    score = held_out(net, mistaken(code, draw))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule, after_step=follow)


class Gaps(nn.Module):
    """Patches of a curve, some of them behind one learned token, through a transformer."""

    def __init__(self, patches=16, size=6, width=48):
        super().__init__()
        self.inward, self.outward = nn.Linear(size, width), nn.Linear(width, size)
        self.hidden = nn.Parameter(0.02 * torch.randn(width))
        self.place = nn.Parameter(0.02 * torch.randn(patches, width))
        block = nn.TransformerEncoderLayer(width, 4, 96, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, nn.LayerNorm(width), enable_nested_tensor=False)

    def forward(self, x, gone):
        seen = torch.where(gone[..., None], self.hidden, self.inward(x))
        return self.outward(self.blocks(seen + self.place))


@healthy()
def gaps_in_an_old_tide_table(folder):
    seeded(3109)
    net, steps = Gaps(), 450
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min((s + 1) / 40, 0.5 * (1 + math.cos(math.pi * s / steps)))
    )

    def draw(rows):
        hour = torch.arange(96)
        moon, sun = (6.2832 * torch.rand(rows, 1) for _ in range(2))
        size = 0.5 + torch.rand(rows, 1)
        tide = size * (hour * 6.2832 / 12.4 + moon).sin() + 0.5 * (hour * 6.2832 / 24 + sun).sin()
        return (tide + 0.05 * torch.randn(rows, 96)).unflatten(1, (16, 6))

    def error(rows=32):
        x = draw(rows)
        gone = torch.rand(rows, 16).argsort(1) < 7
        return F.mse_loss(net(x, gone)[gone], x[gone])

    return fit(
        folder, net, optimizer, lambda step: error(), steps,
        score=held_out(net, lambda: error(256)), schedule=schedule, before_step=clipped(net, 1.0),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------ from another


@healthy()
def pocket_barometer_taught_by_a_big_one(folder):
    """Distillation with a hint from the middle of the teacher, which has learned before."""
    seeded(3110)
    draw = rings(128, classes=6, size=16)
    teacher = nn.ModuleDict({"low": dense(16, 128, 128), "high": nn.Sequential(nn.ReLU(), nn.Linear(128, 6))})
    its = torch.optim.Adam(teacher.parameters(), lr=3e-3)
    for _ in range(300):
        x, y = draw()
        its.zero_grad()
        F.cross_entropy(teacher["high"](teacher["low"](x)), y).backward()
        its.step()
    teacher.requires_grad_(False).eval()

    student = nn.ModuleDict({"low": dense(16, 24, 16), "high": nn.Sequential(nn.ReLU(), nn.Linear(16, 6))})
    net = nn.ModuleDict({"student": student, "hint": nn.Linear(16, 128)})
    optimizer, heat = torch.optim.NAdam(net.parameters(), lr=3e-3), 3.0

    def loss_of(step):
        x, y = draw()
        middle = teacher["low"](x)
        soft = (teacher["high"](middle) / heat).log_softmax(1)
        low = student["low"](x)
        out = student["high"](low)
        apart = heat**2 * F.kl_div((out / heat).log_softmax(1), soft, reduction="batchmean", log_target=True)
        named, hint = F.cross_entropy(out, y), F.mse_loss(net["hint"](low), middle) / middle.var()
        loss = 0.7 * apart + 0.3 * named + 0.1 * hint
        return loss, {"apart": apart, "named": named, "hint": hint}

    def fresh():
        pairs = (draw() for _ in range(8))
        return mean([float(F.cross_entropy(student["high"](student["low"](x)), y)) for x, y in pairs])

    return fit(folder, net, optimizer, loss_of, 700, score=held_out(net, fresh))


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, share):
        ctx.share = share
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -ctx.share * gradient, None


@healthy()
def truffles_of_two_forests(folder):
    """Names are known in one forest alone; a judge of the forest is fought by the gradient turned round (DANN)."""
    seeded(3111)
    net = nn.ModuleDict({"body": dense(10, 64, 32), "kind": dense(32, 32, 3), "forest": dense(32, 32, 2)})
    optimizer = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: (1 + 10 * s / 800) ** -0.75)
    centres, shift = 1.5 * torch.randn(3, 10), torch.zeros(10)
    shift[7:] = torch.tensor([1.5, -1.5, 1.0])
    centres[:, 7:] = 0

    def draw(rows, forest):
        y = torch.randint(3, (rows,))
        return centres[y] + torch.randn(rows, 10) + forest * shift, y

    def one(step):
        (x, y), (far, _) = draw(64, 0), draw(64, 1)
        optimizer.zero_grad()
        body = net["body"](torch.cat([x, far])).relu()
        share = 2 / (1 + math.exp(-10 * step / 800)) - 1
        kind = F.cross_entropy(net["kind"](body[:64]), y)
        where = torch.arange(2).repeat_interleave(64)
        guess = net["forest"](Reversed.apply(body, 0.3 * share))
        forest = F.cross_entropy(guess, where)
        (kind + forest).backward()
        optimizer.step()
        schedule.step()
        told = (guess.argmax(1) == where).float().mean()
        return {"loss": kind + forest, "kind": kind, "forest": forest, "forest_accuracy": told}

    x, y = draw(1500, 1)
    fresh = held_out(net, lambda: F.cross_entropy(net["kind"](net["body"](x).relu()), y))
    return tend(folder, net, optimizer, one, 800, fresh)
