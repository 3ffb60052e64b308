"""Common healthy trainings of the wild kind, third part: layers, views and loops out of the ordinary.

They only count (the group `common`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import math

import torch
from torch import nn, optim
from torch.func import functional_call
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded, waves
from unseen.common.healthy_wild import kept_apart, of_digits


@healthy(0.3)
def functions_by_a_kernel_on_a_net(folder):
    """The evidence of sixty points by a Cholesky factor of a matrix that a net makes (Wilson et al. 2016)."""
    seeded(4340)
    net, draw = dense(6, 32, 32, 4, act=nn.Tanh), waves(400, 6)
    net.logs = nn.Parameter(torch.tensor([0.0, 0.0, -2.0]))
    (x, y), (kept, truth) = draw(), draw()
    y, truth = y[:, 0], truth[:, 0]

    def kernel(a, b):
        a, b = (torch.cat([net(its), 0.3 * its], 1) for its in (a, b))
        return net.logs[0].exp() * (-torch.cdist(a, b).square() / (2 * net.logs[1].exp())).exp()

    def inverse(at):
        noisy = kernel(x[at], x[at]) + (net.logs[2].exp() + 1e-4) * torch.eye(len(at))
        return torch.linalg.cholesky(noisy)

    def loss_of(step):
        at = torch.randperm(400)[:60]
        root = inverse(at)
        fit_of = torch.cholesky_solve(y[at, None], root)[:, 0] @ y[at] / 2
        return (fit_of + root.diagonal().log().sum()) / 60 + math.log(2 * math.pi) / 2

    def score():
        with torch.no_grad():
            at = torch.arange(400)
            mean = kernel(kept, x) @ torch.cholesky_solve(y[:, None], inverse(at))
            return float((mean[:, 0] - truth).square().mean())

    make = optim.Adam(net.parameters(), 3e-3)
    return fit(folder, net, make, loss_of, 1000, score=score)


@healthy(0.5)
def sines_one_step_away(folder):
    """MAML (Finn et al. 2017): one step inside on ten points, with second derivatives, four functions a batch."""
    seeded(4341)
    net = dense(1, 40, 40, 1)

    def loss_of(step, tasks=4):
        total = 0.0
        for _ in range(tasks):
            high, late = 0.1 + 4.9 * torch.rand(()), math.pi * torch.rand(())
            x = 10 * torch.rand(20, 1) - 5
            y, start = high * (x - late).sin(), dict(net.named_parameters())
            with torch.enable_grad():
                inner = F.mse_loss(functional_call(net, start, (x[:10],)), y[:10])
                slopes = torch.autograd.grad(inner, list(start.values()), create_graph=True)
            moved = {name: p - 0.01 * g for (name, p), g in zip(start.items(), slopes, strict=True)}
            total = total + F.mse_loss(functional_call(net, moved, (x[10:],)), y[10:])
        return total / tasks

    def score():
        return sum(float(loss_of(0, 20).detach()) for _ in range(10)) / 10

    make = optim.Adam(net.parameters(), 1e-3)
    return fit(folder, net, make, loss_of, 2000, score=score, clip="ClipByGlobalNorm(10.0)")


@healthy(0.5)
def ridge_solved_inside_a_net(folder):
    """Five kinds of digits from three of each: features by a net, the last layer in closed form (Bertinetto 2019)."""
    seeded(4342)
    net = nn.ModuleDict({"see": dense(64, 96, 96, 48, act=nn.GELU)})
    net.scale, net.much = nn.Parameter(torch.tensor(5.0)), nn.Parameter(torch.tensor(0.0))

    def loss_on(x, y):
        rows = torch.stack([torch.where(y == i)[0][: int(y.bincount().min())] for i in range(10)])

        def loss_of(step):
            total = 0.0
            for _ in range(2):
                kinds = torch.randperm(10)[:5]
                at = torch.stack([rows[i, torch.randperm(rows.shape[1])[:11]] for i in kinds])
                known, asked = at[:, :3].flatten(), at[:, 3:].flatten()
                truth = torch.eye(5).repeat_interleave(3, 0)
                a, b = F.normalize(net["see"](x[known]), dim=1), F.normalize(net["see"](x[asked]), dim=1)
                weights = a.T @ torch.linalg.solve(a @ a.T + net.much.exp() * torch.eye(15), truth)
                wanted = torch.arange(5).repeat_interleave(8)
                total = total + F.cross_entropy(net.scale * (b @ weights), wanted)
            return total / 2

        return loss_of

    learnt, kept = kept_apart()
    make = optim.Adam(net.parameters(), 1e-3)
    return fit(folder, net, make, loss_on(*learnt), 1200, score=score_of(loss_on(*kept), 20))


class Masked(nn.Linear):
    def __init__(self, mask):
        super().__init__(mask.shape[1], mask.shape[0])
        self.register_buffer("mask", mask.float())

    def forward(self, x):
        return F.linear(x, self.weight * self.mask, self.bias)


@healthy(0.4)
def pixels_each_from_those_before(folder):
    """Masks over the weights make one net of sixty-four (Germain et al. 2015); the loss is summed over the pixels."""
    seeded(4343)
    (x, _), (kept, _) = kept_apart()
    x, kept = (x > 0.4).float(), (kept > 0.4).float()
    ends, hidden = torch.arange(64), [torch.randint(63, (160,)).sort()[0] for _ in range(2)]
    net = nn.Sequential(
        *(Masked(hidden[0][:, None] >= ends), nn.ReLU(), Masked(hidden[1][:, None] >= hidden[0]), nn.ReLU()),
        Masked(ends[:, None] > hidden[1]),
    )

    def loss_on(rows):
        return F.binary_cross_entropy_with_logits(net(rows), rows, reduction="sum") / len(rows)

    def score():
        with torch.no_grad():
            return float(loss_on(kept))

    make = optim.Adam(net.parameters(), 1e-3, weight_decay=1e-5)
    return fit(folder, net, make, lambda step: loss_on(x[torch.randint(len(x), (100,))]), 1500, score=score)


@healthy(0.4)
def holes_filled_by_folding_pixels(folder):
    """Space to depth, a few convolutions with norms, and back by a pixel shuffle; a sigmoid and its own loss."""
    seeded(4344)
    (x, _), (kept, _) = kept_apart()
    x, kept = x.view(-1, 1, 8, 8), kept.view(-1, 1, 8, 8)
    net = nn.Sequential(
        *(nn.PixelUnshuffle(2), nn.Conv2d(8, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.Hardswish()),
        *(nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.Hardswish()),
        *(nn.Conv2d(32, 4, 1), nn.PixelShuffle(2), nn.Sigmoid()),
    )

    def loss_on(rows):
        hole = (F.max_pool2d((torch.rand(len(rows), 1, 8, 8) < 0.04).float(), 3, 1, 1) > 0).float()
        said = net(torch.cat([rows * (1 - hole), hole], 1))
        return F.binary_cross_entropy(said, rows)

    def score():
        net.eval()
        with torch.no_grad():
            loss = sum(float(loss_on(kept)) for _ in range(5)) / 5
        net.train()
        return loss - float(F.binary_cross_entropy(kept, kept))

    make = optim.AdamW(net.parameters(), 3e-3)
    plan = optim.lr_scheduler.OneCycleLR(make, 6e-3, 1200)
    draw = lambda: x[torch.randint(len(x), (32,))]  # noqa: E731
    return fit(folder, net, make, lambda step: loss_on(draw()), 1200, schedule=plan, score=score)


class Stacked(nn.Module):
    """Four frames become four channels by a view."""

    def __init__(self):
        super().__init__()
        self.see = nn.Sequential(
            *(nn.Conv2d(4, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 24, 3, 2, 1), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(600, 64), nn.ReLU(), nn.Linear(64, 8)),
        )

    def forward(self, frames):
        return self.see(frames.view(len(frames), -1, 10, 10))


@healthy(0.5)
def way_of_a_digit_in_four_frames(folder):
    """Which of eight ways it goes, step by step around the edges, in the noise of the camera."""
    seeded(4345)
    net, (learnt, kept) = Stacked(), kept_apart()
    ways = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j]

    def loss_on(x):
        def loss_of(step):
            image = F.pad(x[torch.randint(len(x), (40,))].view(-1, 8, 8), (1, 1, 1, 1))
            y = torch.arange(8).repeat(5)
            frames = [
                torch.stack(
                    [its.roll((n * ways[w][0], n * ways[w][1]), (0, 1)) for its, w in zip(image, y, strict=True)]
                )
                for n in range(4)
            ]
            frames = torch.stack(frames, 1)[:, :, None]
            return F.cross_entropy(net(frames + 0.3 * torch.randn_like(frames)), y)

        return loss_of

    make = optim.RMSprop(net.parameters(), 5e-4, alpha=0.95, eps=1e-5)
    return fit(folder, net, make, loss_on(learnt[0]), 700, score=score_of(loss_on(kept[0])))


@healthy(0.5)
def eight_units_of_ten_left_out(folder):
    """Wide, under dropout of eight tenths, three tenths of the pixels too, a high rate that falls by a cosine."""
    seeded(4346)
    net = nn.Sequential(
        *(nn.Dropout(0.3), nn.Linear(64, 512), nn.ReLU(), nn.Dropout(0.8)),
        *(nn.Linear(512, 512), nn.ReLU(), nn.Dropout(0.8), nn.Linear(512, 10)),
    )
    make = optim.SGD(net.parameters(), 0.1, momentum=0.9)
    plan = optim.lr_scheduler.CosineAnnealingLR(make, 1200)
    return of_digits(folder, net, make, 1200, rows=100, schedule=plan)


@healthy(0.6)
def norms_over_six_rows(folder):
    """Batch norm over six rows, whose running means follow slowly, at half the usual rate."""
    seeded(4347)
    parts, size = [nn.Unflatten(1, (1, 8, 8))], 1
    for out, stride in ((16, 1), (32, 2), (32, 1)):
        parts += [nn.Conv2d(size, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out, momentum=0.02), nn.ReLU()]
        size = out
    net = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10))
    make = optim.SGD(net.parameters(), 0.01, momentum=0.9, weight_decay=5e-4)
    plan = optim.lr_scheduler.CosineAnnealingLR(make, 1500)
    return of_digits(folder, net, make, 1500, rows=6, schedule=plan)


@healthy(0.6)
def momentum_of_ninety_nine_hundredths(folder):
    """Averaged momentum (dampening) at a rate of one under layer norms, with little noise."""
    seeded(4348)
    net = dense(64, 64, 64, 10, norm=nn.LayerNorm)
    make = optim.SGD(net.parameters(), 1.0, momentum=0.99, dampening=0.99, weight_decay=1e-4)
    plan = optim.lr_scheduler.LinearLR(make, 1.0, 0.02, 1500)
    return of_digits(folder, net, make, 1500, rows=256, schedule=plan)
