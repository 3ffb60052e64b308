"""Trainings that go well though their make is odd: uneven parts, memories, simulators, curved spaces, codebooks."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


def cosine(optimizer, steps):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)


@healthy()
def overtones_of_a_violin(folder):
    seeded(2461)
    net = dense(10, 24, 1, act=nn.Tanh)

    def strings(rows):
        """The strengths of ten overtones, and how bright a listener calls the string."""
        strength = torch.randn(rows, 10) * torch.linspace(1, 0.4, 10)
        bright = (strength @ torch.linspace(-0.5, 1, 10)).tanh() + 0.5 * (2 * strength[:, 1]).sin()
        return strength, bright[:, None] + 0.1 * torch.randn(rows, 1)

    kept = strings(1000)

    def loss_of(step):
        x, y = strings(1)
        return F.mse_loss(net(x), y)

    optimizer = torch.optim.SGD(net.parameters(), 0.02)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.05, 3000)
    score = held_out(net, lambda: F.mse_loss(net(kept[0]), kept[1]))
    return fit(folder, net, optimizer, loss_of, 3000, score=score, schedule=schedule)


@healthy()
def glyphs_of_a_letterpress(folder):
    seeded(2462)
    types = (torch.rand(12, 1, 8, 8) < 0.4).float()
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(192, 48), nn.ReLU(),
        nn.Linear(48, 12),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)

    def prints(rows):
        """Types as printed: some ink is missing, some is smeared to the right."""
        kind = torch.randint(12, (rows,))
        smeared = types[kind] + 0.5 * torch.rand(rows, 1, 1, 1) * types[kind].roll(1, 3)
        return smeared * (torch.rand(rows, 1, 8, 8) < 0.8) - 0.4 + 0.3 * torch.randn(rows, 1, 8, 8), kind

    kept = prints(600)

    def sheet(rows=96):
        """Parts of a sheet, as many rows each as its lines happen to hold."""
        cuts = torch.randperm(rows - 1)[:4].add(1).sort()[0]
        return zip(*(part.tensor_split(cuts) for part in prints(rows)), strict=True)

    def one(step):
        optimizer.zero_grad()
        total = 0.0
        for x, kind in sheet():
            loss = F.cross_entropy(net(x), kind, reduction="sum") / 96
            loss.backward()
            total += float(loss.detach())
        optimizer.step()
        return {"loss": total}

    return tend(folder, net, optimizer, one, 300, held_out(net, lambda: F.cross_entropy(net(kept[0]), kept[1])))


class Glaze(nn.Module):
    """Colour, gloss and crazing from one body; how far each is to be trusted is learnt along with them."""

    def __init__(self):
        super().__init__()
        self.body = dense(7, 64, 64, act=nn.SiLU)
        self.heads = nn.ModuleList(nn.Linear(64, size) for size in (3, 1, 2))
        self.log_variance = nn.Parameter(torch.zeros(3))

    def forward(self, recipe):
        inner = F.silu(self.body(recipe))
        return [head(inner) for head in self.heads]

    def errors(self, recipe, *wanted):
        return torch.stack([F.mse_loss(a, b) for a, b in zip(self(recipe), wanted, strict=True)])


@healthy()
def colours_of_glazed_bowls(folder):
    seeded(2463)
    net, mix = Glaze(), torch.randn(7, 3) / 2

    def tiles(rows):
        """Seven oxides; colour, gloss in hundredths of its range, and width and depth of the cracks."""
        recipe = torch.randn(rows, 7)
        colour = (recipe @ mix).tanh() + 0.02 * torch.randn(rows, 3)
        gloss = 0.1 * (recipe[:, :1] - recipe[:, 1:2]).sigmoid()
        cracks = (recipe[:, 2:4] + recipe[:, 4:5]).relu() + 0.3 * torch.randn(rows, 2)
        return recipe, colour, gloss, cracks

    def loss_of(step):
        errors = net.errors(*tiles(96))
        loss = (0.5 * (-net.log_variance).exp() * errors + 0.5 * net.log_variance).sum()
        return loss, dict(zip(("colour", "gloss", "cracks"), errors.detach(), strict=True))

    kept = tiles(512)
    groups = [{"params": [*net.body.parameters(), *net.heads.parameters()]}, {"params": [net.log_variance], "lr": 0.02}]
    optimizer = torch.optim.Adam(groups, 2e-3)
    score = held_out(net, lambda: net.errors(*kept).sum())
    return fit(folder, net, optimizer, loss_of, 700, score=score, schedule=cosine(optimizer, 700))


class Tour:
    """Skiers on a tour of fifteen sections: the snow grows warmer, wax wears off; ski on, or stop for one of three."""

    best, sections = torch.tensor([-0.7, 0.0, 0.7]), 15

    def __init__(self, skiers):
        self.at, self.left = torch.randint(self.sections, (skiers,)), torch.ones(skiers)
        self.snow, self.wax = 1.6 * torch.rand(skiers) - 1.2, torch.randint(3, (skiers,))

    def seen(self):
        rest = torch.stack([self.snow, self.left, 1 - self.at / self.sections], 1)
        return torch.cat([rest, F.one_hot(self.wax, 3)], 1)

    def ski(self, act):
        """Minutes lost in a section, and whose tour is over; those start anew."""
        waxed = act > 0
        self.wax = torch.where(waxed, act - 1, self.wax)
        self.left = torch.where(waxed, 1.0, 0.9 * self.left)
        lost = 0.6 * waxed + (self.snow - self.best[self.wax]).square() + 0.5 * (1 - self.left)
        self.snow = (self.snow + 0.08 + 0.1 * torch.randn(len(act))).clamp(-1.5, 1.5)
        self.at = self.at + 1
        over = self.at >= self.sections
        fresh = Tour(len(act))
        self.at = torch.where(over, 0, self.at)
        for name in ("left", "snow", "wax"):
            setattr(self, name, torch.where(over, getattr(fresh, name), getattr(self, name)))
        return lost, over


@healthy()
def wax_of_skis(folder):
    seeded(2464)
    net, target = dense(6, 64, 64, 4), dense(6, 64, 64, 4)
    target.load_state_dict(net.state_dict())
    tour, memory = Tour(16), []

    def explore(share):
        with torch.no_grad():
            seen, best = tour.seen(), net(tour.seen()).argmax(1)
        act = torch.where(torch.rand(16) < share, torch.randint(4, (16,)), best)
        lost, over = tour.ski(act)
        memory.append((seen, act, lost, tour.seen(), over))
        del memory[:-300]
        return lost.mean()

    for _ in range(50):
        explore(1.0)

    def loss_of(step):
        lost = explore(max(0.05, 1 - step / 400))
        rows = zip(*(memory[i] for i in torch.randint(len(memory), (8,)).tolist()), strict=True)
        seen, act, cost, after, over = map(torch.cat, rows)
        with torch.no_grad():
            ahead = target(after).gather(1, net(after).argmax(1, keepdim=True))[:, 0]
            wanted = -cost + 0.97 * ahead * ~over
        worth = net(seen).gather(1, act[:, None])[:, 0]
        return F.smooth_l1_loss(worth, wanted), {"lost": lost, "worth": worth.detach().mean()}

    def follow(step):
        if step % 50 == 49:
            target.load_state_dict(net.state_dict())

    def score():
        """Minutes lost in a section by those who do what they think best."""
        group = Tour(256)
        with torch.no_grad():
            return float(torch.stack([group.ski(net(group.seen()).argmax(1))[0] for _ in range(30)]).mean())

    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    return fit(folder, net, optimizer, loss_of, 900, score=score, before_step=clipped(net, 5.0), after_step=follow)


@healthy()
def oven_of_a_bakery(folder):
    seeded(2465)
    net = dense(2, 40, 40, 1, act=nn.Tanh)
    spread = 0.2

    def warmth(x, t):
        return (math.pi * x).sin() * (-spread * math.pi**2 * t).exp()

    def unbalanced(x, t):
        """By how much the loaf's warmth does not obey the equation of heat."""
        at = torch.cat([x, t], 1).requires_grad_()
        slope = torch.autograd.grad(net(at).sum(), at, create_graph=True)[0]
        bend = torch.autograd.grad(slope[:, 0].sum(), at, create_graph=True)[0][:, :1]
        return (slope[:, 1:] - spread * bend).square().mean()

    def loss_of(step):
        inside = unbalanced(torch.rand(128, 1), torch.rand(128, 1))
        x, t = torch.rand(64, 1), torch.rand(64, 1)
        start = (net(torch.cat([x, 0 * t], 1)) - warmth(x, 0 * t)).square().mean()
        crust = net(torch.cat([torch.randint(2, (64, 1)).float(), t], 1)).square().mean()
        logged = {"inside": inside.detach(), "start": start.detach(), "crust": crust.detach()}
        return inside + 20 * (start + crust), logged

    grid = torch.cartesian_prod(torch.linspace(0, 1, 21), torch.linspace(0, 1, 21))
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    score = held_out(net, lambda: F.mse_loss(net(grid), warmth(grid[:, :1], grid[:, 1:])).sqrt())
    return fit(folder, net, optimizer, loss_of, 900, score=score, schedule=cosine(optimizer, 900))


@healthy()
def delays_of_buses(folder):
    seeded(2466)
    net = dense(3, 24, 24, 1, act=nn.Tanh)

    def day(rides, stops=20):
        """Six buses on a ring: the late one finds more people and grows later still, unless others are held."""
        late = 0.3 * torch.randn(rides, 6)
        uneven = held = 0.0
        for _ in range(stops):
            ahead, behind = late - late.roll(1, 1), late.roll(-1, 1) - late
            hold = F.softplus(net(torch.stack([ahead, behind, late - late.mean(1, keepdim=True)], 2))[..., 0] - 1)
            late = late + 0.12 * ahead + hold + 0.1 * torch.randn(rides, 6)
            uneven = uneven + (late - late.roll(1, 1)).square().mean() / stops
            held = held + hold.mean() / stops
        return uneven + 0.05 * held, {"uneven": uneven.detach(), "held": held.detach()}

    optimizer = torch.optim.SGD(net.parameters(), 0.03, momentum=0.9)
    return fit(
        folder,
        net,
        optimizer,
        lambda step: day(48),
        250,
        score=held_out(net, lambda: day(512)[0]),
        before_step=clipped(net, 0.5),
        schedule=cosine(optimizer, 250),
    )


@healthy()
def melt_of_a_glacier(folder):
    seeded(2467)
    net = dense(12, 64, 64, 3)
    way = torch.randn(12)

    def summers(rows):
        """Snow, heat, dust and cloud in three zones, and whether the ice shrinks, holds or grows."""
        x = torch.randn(rows, 12)
        return x, torch.bucketize(x @ way + x[:, 0] * x[:, 1] + torch.randn(rows) / 2, torch.tensor([-1.5, 1.5]))

    draw, kept = rounds(50, *summers(600)), summers(1000)

    def loss_of(step):
        x, y = draw()
        other, share = torch.randperm(50), float(torch.distributions.Beta(0.4, 0.4).sample())
        out = net(share * x + (1 - share) * x[other])
        each = [F.cross_entropy(out, wanted, label_smoothing=0.1) for wanted in (y, y[other])]
        return share * each[0] + (1 - share) * each[1]

    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=1.0)
    score = held_out(net, lambda: F.cross_entropy(net(kept[0]), kept[1]))
    return fit(folder, net, optimizer, loss_of, 600, score=score, schedule=cosine(optimizer, 600))
