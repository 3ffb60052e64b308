"""Trainings that go well though their make is odd: a tree in a curved space, a codebook that no gradient moves."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out


class Curved(torch.optim.Optimizer):
    """Steps in the Poincare ball for the rows that were looked up; what would leave the ball is put back into it."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        loss = closure() if closure else None
        for group in self.param_groups:
            for table in group["params"]:
                slope = table.grad.coalesce()
                rows = slope.indices()[0]
                at = table[rows]
                shrink = (1 - at.square().sum(1, keepdim=True)).square() / 4
                at = at - group["lr"] * shrink * slope.values()
                table[rows] = at / (at.norm(dim=1, keepdim=True) / (1 - 1e-4)).clamp(min=1)
        return loss


def elders(child):
    """All forebears of a pattern in a family where each has two heirs."""
    while child:
        child = (child - 1) // 2
        yield child


def distance(a, b):
    room = (1 - a.square().sum(-1)) * (1 - b.square().sum(-1))
    return torch.acosh(1 + 2 * (a - b).square().sum(-1) / room + 1e-6)


@healthy()
def patterns_of_a_loom(folder):
    seeded(2468)
    table = nn.Embedding(127, 5, sparse=True)
    nn.init.uniform_(table.weight, -1e-3, 1e-3)
    kin = torch.tensor([(child, elder) for child in range(1, 127) for elder in elders(child)])
    related = torch.eye(127, dtype=torch.bool)
    related[kin[:, 0], kin[:, 1]] = True

    def ranked(pairs, others=10):
        """How well a weave's forebear is told from weaves that it does not descend from."""
        child, elder = pairs.T
        strange = torch.multinomial((~related[child]).float(), others)
        gap = distance(table(child)[:, None], table(torch.cat([elder[:, None], strange], 1)))
        return F.cross_entropy(-gap, torch.zeros(len(pairs), dtype=torch.long))

    optimizer = Curved(table.parameters(), 3.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.1 if step < 100 else 1.0)
    return fit(
        folder,
        table,
        optimizer,
        lambda step: ranked(kin[torch.randint(len(kin), (64,))]),
        900,
        score=held_out(table, lambda: ranked(kin)),
        schedule=schedule,
    )


class Codebook(nn.Module):
    """Codes that follow the mean of what is nearest to them; one that nothing is near to starts anew at some row."""

    def __init__(self, codes, size, keep=0.95):
        super().__init__()
        self.keep = keep
        self.register_buffer("codes", torch.randn(codes, size))
        self.register_buffer("count", torch.ones(codes))
        self.register_buffer("total", self.codes.clone())

    def forward(self, x):
        nearest = torch.cdist(x.detach(), self.codes).argmin(1)
        if self.training:
            self.follow(x.detach(), nearest)
        found = self.codes[nearest]
        return x + (found - x).detach(), F.mse_loss(x, found), nearest

    def follow(self, x, nearest):
        mine = F.one_hot(nearest, len(self.codes)).float()
        self.count.mul_(self.keep).add_(mine.sum(0), alpha=1 - self.keep)
        self.total.mul_(self.keep).add_(mine.T @ x, alpha=1 - self.keep)
        idle = self.count < 0.05
        fresh = x[torch.randint(len(x), (len(self.codes),))]
        self.total[idle], self.count[idle] = fresh[idle], 1.0
        self.codes.copy_(self.total / self.count[:, None])


@healthy()
def songs_of_birds(folder):
    seeded(2469)
    net = nn.ModuleDict({"read": dense(32, 64, 8), "codes": Codebook(48, 8), "sing": dense(8, 64, 32)})
    syllables = torch.randn(16, 3)

    def songs(rows):
        """Spectra of 32 bands with one of sixteen syllables each, sung higher or lower."""
        kind = torch.randint(16, (rows,))
        pitch = 12 + 3 * syllables[kind] + 0.7 * torch.randn(rows, 1)
        bands = torch.arange(32)[None, :, None]
        return (-((bands - pitch[:, None]) ** 2) / 6).exp().sum(2) + 0.05 * torch.randn(rows, 32)

    def parts(x):
        code, astray, nearest = net["codes"](net["read"](x))
        return F.mse_loss(net["sing"](code), x), astray, nearest

    def loss_of(step):
        error, astray, nearest = parts(songs(128))
        logged = {"error": error.detach(), "astray": astray.detach(), "codes in use": len(nearest.unique())}
        return error + 0.25 * astray, logged

    kept = songs(512)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, lambda: parts(kept)[0]))
