"""Odd data and parts: a rare fault, steps of one length, a body that stays as it is, sparse tables, replayed days."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR
from unseen import dense, fit, healthy, score_of, seeded
from unseen.tasks import clipped, tend


def wheels(rare=0.03):
    """`draw(rows, share)`: salt, acid, warmth and the like of a wheel of cheese, and whether it blows; a few do."""
    way = torch.randn(9, 3)

    def draw(rows, share=rare):
        blown = (torch.rand(rows, 1) < share).float()
        x = torch.randn(rows, 9)
        swelling = 1.2 * (torch.rand(rows, 1) * 6.2832).cos()
        lift = torch.cat([blown * 2.5, swelling * blown, swelling.square() * blown], 1)
        return 0.6 * x + lift @ way.T / 3, blown

    return draw


@healthy()
def ripening_of_a_wheel_of_cheese(folder, rare=0.03):
    seeded(2676)
    net, draw = dense(9, 48, 48, 1), wheels(rare)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01)

    def loss_of(step):
        x, blown = draw(256)
        weight = torch.where(blown > 0, 0.5 / rare, 0.5 / (1 - rare))
        guess = net(x)
        found = ((guess > 0) & (blown > 0)).sum() / blown.sum().clamp_min(1)
        return F.binary_cross_entropy_with_logits(guess, blown, weight), {"recall": found}

    def balanced_error(step):
        x, blown = draw(512, 0.5)
        return F.binary_cross_entropy_with_logits(net(x), blown)

    return fit(folder, net, optimizer, loss_of, 500, schedule=CosineAnnealingLR(optimizer, 500),
               score=score_of(balanced_error))  # fmt: skip


def meteorites(groups=6, oxides=9):
    """`draw()`: shares of oxides and metal in a stone that fell, on a log scale of ratios; the group it belongs to."""
    mean = 0.7 * torch.randn(groups, oxides)
    mixing = 0.5 * torch.randn(groups, oxides, 3)

    def draw():
        group = torch.randint(groups, (128,))
        parent = torch.randn(128, 3, 1)
        logs = mean[group] + (mixing[group] @ parent)[:, :, 0] + 0.45 * torch.randn(128, oxides)
        return logs - logs.mean(1, keepdim=True), group

    return draw


@healthy()
def meteorites_by_their_oxides(folder):
    """Steps of one length that only the schedule shortens: normalised gradient descent with momentum."""
    seeded(2677)
    net, draw = dense(9, 64, 64, 6, act=nn.GELU), meteorites()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.9)

    def loss_of(step):
        oxides, group = draw()
        return F.cross_entropy(net(oxides), group)

    return fit(folder, net, optimizer, loss_of, 600, before_step=clipped(net, 0.02),
               schedule=CosineAnnealingLR(optimizer, 600), score=score_of(loss_of))  # fmt: skip


class Adapter(nn.Module):
    """A frozen linear layer and a correction of low rank that begins at nothing."""

    def __init__(self, layer, rank=4):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x):
        return self.layer(x) + x @ self.down.T @ self.up.T


def hides(way, bend):
    """`draw()`: ten settings of the drums; how soft the leather comes out and at what heat it shrinks."""

    def draw():
        x = torch.randn(128, 10)
        made = torch.sin(x @ way)
        return x, made @ bend + 0.05 * torch.randn(128, 2)

    return draw


def trained_before(net, draw, steps=500):
    """On hides that were tanned with chrome."""
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    schedule = CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        x, leather = draw()
        optimizer.zero_grad()
        F.mse_loss(net(x), leather).backward()
        optimizer.step()
        schedule.step()
    return net


@healthy()
def tanning_of_hides(folder):
    seeded(2678)
    way, bend = torch.randn(10, 5) / 3, torch.randn(5, 2)
    body = trained_before(dense(10, 64, 64, 2, act=nn.SiLU), hides(way, bend))
    with_bark = hides(way + 0.2 * torch.randn(10, 1) * torch.randn(5), bend)
    net = nn.Sequential(Adapter(body[0]), nn.SiLU(), Adapter(body[2]), nn.SiLU(), body[4])
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=8e-3)

    def loss_of(step):
        x, leather = with_bark()
        return F.mse_loss(net(x), leather)

    return fit(
        folder, net, optimizer, loss_of, 400, schedule=CosineAnnealingLR(optimizer, 400), score=score_of(loss_of)
    )


class Watches(nn.Module):
    """A row for every clock and for every tooth of its wheel, sparse tables both; a small net reads them together."""

    def __init__(self, clocks, teeth, width=8):
        super().__init__()
        self.clock = nn.Embedding(clocks, width, sparse=True)
        self.tooth = nn.Embedding(teeth, width, sparse=True)
        self.read = dense(2 * width + 1, 48, 1, act=nn.SiLU)

    def forward(self, clock, tooth, warmth):
        return self.read(torch.cat([self.clock(clock), self.tooth(tooth), warmth], 1))


def beats(clocks, teeth):
    """`draw()`: a clock, the tooth that its anchor drops and the warmth; by how much the tick is early or late."""
    lean, worn = torch.randn(clocks), torch.randn(clocks)
    cut = torch.randn(teeth)

    def draw(rows=256):
        clock, tooth, warmth = torch.randint(clocks, (rows,)), torch.randint(teeth, (rows,)), torch.randn(rows, 1)
        late = lean[clock] * (1 + 0.3 * warmth[:, 0]) + 0.5 * worn[clock] * cut[tooth]
        return (clock, tooth, warmth), late[:, None] + 0.1 * torch.randn(rows, 1)

    return draw


@healthy()
def beat_of_a_clocks_escapement(folder, clocks=600, teeth=30):
    seeded(2679)
    net, draw = Watches(clocks, teeth), beats(clocks, teeth)
    tables = [net.clock.weight, net.tooth.weight]
    optimizers = [torch.optim.SparseAdam(tables, lr=0.03), torch.optim.Adam(net.read.parameters(), lr=4e-3)]
    schedules = [CosineAnnealingLR(optimizer, 700) for optimizer in optimizers]

    def error(step):
        seen, late = draw()
        return F.mse_loss(net(*seen), late)

    def one(step):
        net.zero_grad()
        loss = error(step)
        loss.backward()
        for part in (*optimizers, *schedules):
            part.step()
        return {"loss": loss}

    return tend(folder, net, optimizers, one, 700, score_of(error))


class Mews:
    """Falcons whose weight, in hundredths off the one at which they fly best, goes with cold and rations."""

    rations = torch.tensor([0.0, 1.5, 3.0, 4.5])

    def __init__(self, birds):
        self.weight, self.cold, self.crop = 6 * torch.rand(birds) - 3, torch.rand(birds), torch.zeros(birds)

    def seen(self):
        return torch.stack([self.weight / 4, 2 * self.cold - 1, self.crop / 3 - 0.5], 1)

    def day(self, ration):
        """How well each flies after a day with its ration; a bird far too heavy or too light is rested."""
        burnt = 1.5 + 1.5 * self.cold + 0.2 * torch.randn(len(ration))
        self.weight = self.weight + 0.5 * self.crop + 0.5 * self.rations[ration] - burnt
        self.crop = self.rations[ration]
        self.cold = (0.8 * self.cold + 0.2 * torch.rand(len(ration)) + 0.1 * torch.randn(len(ration))).clamp(0, 1)
        flown, lost = torch.exp(-self.weight.square() / 2), self.weight.abs() > 8
        self.weight = torch.where(lost, torch.zeros_like(self.weight), self.weight)
        return flown, lost.float()


class Replay:
    """The last days of all birds."""

    def __init__(self, most):
        self.days, self.most = [], most

    def keep(self, *day):
        self.days = [*self.days, day][-self.most :]

    def draw(self, rows):
        days = [self.days[i] for i in torch.randint(len(self.days), (16,)).tolist()]
        kept = [torch.cat(part) for part in zip(*days, strict=True)]
        chosen = torch.randperm(len(kept[0]))[:rows]
        return [part[chosen] for part in kept]


def flights_missed(net, days=40):
    """The share of the flying that is missed in some weeks of doing what the net thinks best."""
    mews, flown = Mews(64), 0.0
    with torch.no_grad():
        for _ in range(days):
            flown += float(mews.day(net(mews.seen()).argmax(1))[0].mean())
    return 1 - flown / days


@healthy()
def a_falcons_flying_weight(folder, birds=32, discount=0.95):
    seeded(2680)
    net, target = (dense(3, 64, 64, 4) for _ in range(2))
    target.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    mews, replay = Mews(birds), Replay(400)

    @torch.no_grad()
    def live(step):
        state = mews.seen()
        at_random = torch.rand(birds) < max(0.05, 1 - step / 250)
        ration = torch.where(at_random, torch.randint(4, (birds,)), net(state).argmax(1))
        flown, lost = mews.day(ration)
        replay.keep(state, ration, flown, lost, mews.seen())
        return flown.mean()

    def loss_of(step):
        flown_today = live(step)
        state, ration, flown, lost, later = replay.draw(128)
        with torch.no_grad():
            best = net(later).argmax(1, keepdim=True)
            worth = flown - lost + discount * (1 - lost) * target(later).gather(1, best)[:, 0]
        guess = net(state).gather(1, ration[:, None])[:, 0]
        return F.smooth_l1_loss(guess, worth), {"return": flown_today, "value": guess.mean()}

    @torch.no_grad()
    def follow(step):
        for kept, p in zip(target.parameters(), net.parameters(), strict=True):
            kept.lerp_(p, 0.02)

    return fit(folder, net, optimizer, loss_of, 800, before_step=clipped(net, 10.0), after_step=follow,
               score=lambda: flights_missed(net))  # fmt: skip
