"""Sick trainings of the group `afresh`: the step, first part (clips, what an optimizer holds, decay, a scaler)."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn, optim
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, fit, seeded, sick
from unseen.tasks import play

import gradwatch


def drive(folder, net, optimizers, step_of, steps, score) -> Outcome:
    """A loop whose steps are its own: `step_of(step)` does all of one and hands the loss back."""
    options = TREATMENT[-1].begin(net, optimizers)
    first = float(score())
    watch = gradwatch.watch(net, optimizers, **{"log": None, "dir": folder, "verbose": False, **options})
    with watch:
        for step in range(steps):
            watch.log(loss=step_of(step))
    last = float(score())
    return Outcome(gradwatch.open_history(watch.dir), first, last if math.isfinite(last) else math.inf)


# ----------------------------------------------------------------------------------------------- two heads on one trunk


class Calls(nn.Module):
    """Of a call for help: which of five kinds it is, and how many hours it will take."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(dense(10, 64, 64), nn.ReLU())
        self.kind, self.hours = nn.Linear(64, 5), nn.Linear(64, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.kind(h), self.hours(h)[:, 0]


@sick(
    "clip-inert", "spike", "exploding", "clip-after-step", "heavy-tailed-targets",
    where="all layers, at the batches with the longest calls", cure="clip between backward and step, not behind it",
)  # fmt: skip
def calls_for_help_and_their_hours(folder, ill):
    seeded(7100)
    net, ways, slope = Calls(), torch.randn(10, 5), torch.randn(10) * 0.55

    def draw(batch=48):
        x = torch.randn(batch, 10)
        return x, (x.tanh() @ ways).argmax(1), (x @ slope + 0.3 * torch.randn(batch)).exp()

    def loss_of(step):
        x, kind, hours = draw()
        logits, guess = net(x)
        return F.cross_entropy(logits, kind) + 0.5 * F.mse_loss(guess, hours)

    held = draw(512)

    def score():
        with torch.no_grad():
            logits, guess = net(held[0])
            return F.cross_entropy(logits, held[1]) + F.smooth_l1_loss(guess, held[2])

    def clip(step):
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    hook = {"after_step" if ill else "before_step": clip}
    return fit(folder, net, optim.SGD(net.parameters(), 0.03, momentum=0.9), loss_of, 400, score=score, **hook)


# ------------------------------------------------------------------------------------------------------- sets of points


class Clouds(nn.Module):
    """Deep Sets: a net of each point, the mean and the largest over them, a net of these."""

    def __init__(self, kinds=4):
        super().__init__()
        self.point, self.whole = dense(3, 48, 48), dense(96, 48, kinds)

    def forward(self, x):
        h = self.point(x)
        return self.whole(torch.cat([h.mean(1), h.amax(1)], 1))


def clouds(batch=32, points=24):
    """Points on a sphere, on a disc, on a stick or in a cube, turned round at random; `[B, P, 3]` and `[B]`."""
    kind = torch.randint(4, (batch,))
    ball = F.normalize(torch.randn(batch, points, 3), dim=2)
    disc = ball * torch.tensor([1.0, 1.0, 0.05])
    stick = ball * torch.tensor([1.2, 0.05, 0.05])
    cube = 2 * torch.rand(batch, points, 3) - 1
    x = torch.stack([ball, disc, stick, cube], 1)[torch.arange(batch), kind]
    turn = torch.linalg.qr(torch.randn(batch, 3, 3)).Q
    return x @ turn + 0.03 * torch.randn_like(x), kind


@sick(
    "clip-is-your-learning-rate", "update-too-small",
    where="all layers, all steps: the coefficient is around a hundredth", cure="clip at 1, not at a thousandth",
)  # fmt: skip
def clouds_of_points_on_a_short_leash(folder, ill):
    seeded(7101)
    net = Clouds()

    def loss_of(step):
        x, kind = clouds()
        return F.cross_entropy(net(x), kind)

    def clip(step):
        nn.utils.clip_grad_norm_(net.parameters(), 0.001 if ill else 1.0)

    return fit(folder, net, optim.SGD(net.parameters(), 0.1, momentum=0.9), loss_of, 400, before_step=clip)


# ----------------------------------------------------------------------------------------------------- a walk on a grid


class Walker(nn.Module):
    """The worth of the four ways from a cell of a grid of five by five."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(dense(10, 64, 64), nn.ReLU())
        self.head = nn.Linear(64, 1)

    def forward(self, cell):
        x = torch.cat([F.one_hot(cell // 5, 5), F.one_hot(cell % 5, 5)], 1).float()
        return self.head(self.body(x))


def walks(batch=64):
    """A cell, a way, the cell behind it, the reward and whether it is the last: the goal is the cell 24."""
    cell, way = torch.randint(24, (batch,)), torch.randint(4, (batch,))
    row = (cell // 5 + torch.tensor([-1, 1, 0, 0])[way]).clamp(0, 4)
    column = (cell % 5 + torch.tensor([0, 0, -1, 1])[way]).clamp(0, 4)
    after = 5 * row + column
    done = after == 24
    return cell, way, after, torch.where(done, 1.0, -0.05), done


@sick(
    "not-in-optimizer",
    where="head, all steps", cure="make the optimizer once the head is there: it holds the head that was thrown away",
)  # fmt: skip
def walker_on_a_grid_fitted_for_four_ways(folder, ill):
    seeded(7102)
    net = Walker()
    early = optim.Adam(net.parameters(), 2e-3)
    net.head = nn.Linear(64, 4)
    nn.init.orthogonal_(net.head.weight, 0.01)
    nn.init.zeros_(net.head.bias)
    make = early if ill else optim.Adam(net.parameters(), 2e-3)
    slow = copy.deepcopy(net).requires_grad_(False)
    cells = torch.arange(24)
    far = (8 - cells // 5 - cells % 5).float() - 1
    best = 0.95**far - 0.05 * (1 - 0.95**far) / 0.05

    def loss_of(step):
        if step % 20 == 0:
            slow.load_state_dict(net.state_dict())
        cell, way, after, reward, done = walks()
        target = reward + 0.95 * slow(after).amax(1) * ~done
        return F.smooth_l1_loss(net(cell).gather(1, way[:, None])[:, 0], target)

    def score():
        with torch.no_grad():
            return float((net(cells).amax(1) - best).abs().mean())

    return fit(folder, net, make, loss_of, 500, score=score)


# -------------------------------------------------------------------------------------------- a table with many classes


class Prices(nn.Module):
    """Tables for the columns that are names, beside columns of numbers."""

    def __init__(self, counts=(60, 40, 12), numbers=4):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(count, 6) for count in counts)
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.05)
        self.body = dense(6 * len(counts) + numbers, 64, 32, 1)

    def forward(self, names, numbers):
        parts = [table(names[:, i]) for i, table in enumerate(self.tables)]
        return self.body(torch.cat([*parts, numbers], 1))[:, 0]


@sick(
    "not-in-optimizer",
    where="tables.0 to tables.2, all steps", cure="the first optimizer takes net.tables.parameters()",
)  # fmt: skip
def prices_by_shop_town_and_month(folder, ill):
    """An optimizer for the tables and one for the rest: the line was copied, and both hold the rest."""
    seeded(7103)
    net, counts = Prices(), (60, 40, 12)
    worth, way = [torch.randn(count) for count in counts], torch.randn(4)

    def draw(batch=128):
        names = torch.stack([torch.randint(count, (batch,)) for count in counts], 1)
        numbers = torch.randn(batch, 4)
        price = sum(worth[i][names[:, i]] for i in range(3)) + (numbers @ way).sin() * worth[0][names[:, 0]].tanh()
        return names, numbers, price + 0.1 * torch.randn(batch)

    of_tables = optim.Adam((net.body if ill else net.tables).parameters(), 1e-2)
    of_body = optim.AdamW(net.body.parameters(), 3e-3, weight_decay=1e-3)
    held = draw(1024)

    def step_of(step):
        names, numbers, price = draw()
        of_tables.zero_grad()
        of_body.zero_grad()
        loss = F.huber_loss(net(names, numbers), price)
        loss.backward()
        of_tables.step()
        of_body.step()
        return loss

    def score():
        with torch.no_grad():
            return F.huber_loss(net(held[0], held[1]), held[2])

    return drive(folder, net, [of_tables, of_body], step_of, 350, score)


# ------------------------------------------------------------------------------------------------ eight heaps in a ring


def heaps(batch=64):
    angle = torch.randint(8, (batch,)) * 0.7854
    return torch.stack([angle.cos(), angle.sin()], 1) * 2 + 0.15 * torch.randn(batch, 2)


@sick(
    "weight-decay-too-strong", "weights-shrink",
    where="all layers of both nets, within 100 steps", cure="a weight decay of 0.01",
)  # fmt: skip
def eight_heaps_in_a_ring(folder, ill):
    seeded(7104)
    make, judge = dense(4, 64, 64, 2), dense(2, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make, of_judge = (
        optim.AdamW(m.parameters(), 2e-3, betas=(0.0, 0.9), weight_decay=10.0 if ill else 0.01) for m in (make, judge)
    )

    def judge_loss(_, fake):
        return F.softplus(-judge(heaps())).mean() + F.softplus(judge(fake)).mean()

    return play(
        folder, make, judge, of_make, of_judge, judge_loss, lambda fake: F.softplus(-judge(fake)).mean(), 400
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------- curves cleaned


class Cleaner(nn.Module):
    """A curve of 64 values in, the same without its noise out, through eight numbers."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = dense(64, 96, 8, act=nn.GELU), dense(8, 96, 64, act=nn.GELU)

    def forward(self, x):
        return self.decoder(self.encoder(x))


@sick(
    "clip-before-unscale", "scaled-gradients", "clip-is-your-learning-rate",
    where="all layers, all steps: the coefficient is around 1e-5", cure="scaler.unscale_(optimizer) before the clip",
)  # fmt: skip
def curves_cleaned_in_half_precision(folder, ill):
    seeded(7105)
    net, at = Cleaner(), torch.linspace(0, 6.2832, 64)
    make = optim.SGD(net.parameters(), 0.3, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)

    def loss_of(step):
        clean = ((1 + 2 * torch.rand(64, 1)) * at + 6.2832 * torch.rand(64, 1)).sin()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(clean + 0.3 * torch.randn_like(clean))
        return F.mse_loss(out.float(), clean)

    def clip(step):
        if not ill:
            scaler.unscale_(make)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    return fit(folder, net, make, loss_of, 400, before_step=clip, scaler=scaler)
