"""Sound trainings: tasks that weigh themselves, lists that grow, a rate of dozens, mixed samples, a memory of moves."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded
from unseen.tasks import clipped, held_out, rounds

# ---------------------------------------------------------------------------------- birds, tasks that weigh themselves


class Listener(nn.Module):
    """The singer, the pitch and the length of a syllable, and the log of how uncertain each of the three is."""

    def __init__(self, bands=32, birds=5):
        super().__init__()
        self.body = nn.Sequential(dense(bands, 64, 64), nn.ReLU())
        self.bird, self.sound = nn.Linear(64, birds), nn.Linear(64, 2)
        self.log_variance = nn.Parameter(torch.zeros(3))

    def forward(self, syllable):
        heard = self.body(syllable)
        return self.bird(heard), self.sound(heard)


def syllables(batch=96, bands=32, birds=5):
    """`draw()`: the loudness of a syllable in bands, its singer, and its pitch and length, standardized."""
    line, timbre = torch.linspace(-2, 2, bands), torch.sigmoid(2 * torch.randn(birds, 3))

    def draw():
        bird, pitch, length = torch.randint(birds, (batch,)), torch.randn(batch), torch.randn(batch)
        places = 0.8 * pitch[:, None] + torch.tensor([-0.7, 0.0, 0.7])
        humps = (-((line - places[..., None]) / 0.2).square()).exp() * timbre[bird][..., None]
        song = humps.sum(1) * 2 * torch.sigmoid(length)[:, None] + 0.05 * torch.randn(batch, bands)
        return 2 * song, bird, torch.stack([pitch, length], 1)

    return draw


@healthy()
def syllables_of_birds(folder):
    seeded(2777)
    net, draw = Listener(), syllables()
    groups = [{"params": [p for p in net.parameters() if p is not net.log_variance]}]
    optimizer = torch.optim.Adam([*groups, {"params": [net.log_variance], "lr": 1e-2}], lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 700)

    def loss_of(step):
        syllable, bird, sound = draw()
        name, guess = net(syllable)
        pitch, length = (guess - sound).square().mean(0).unbind()
        terms = torch.stack([F.cross_entropy(name, bird), pitch, length])
        halves = torch.tensor([1.0, 0.5, 0.5])
        loss = (halves * terms * (-net.log_variance).exp() + 0.5 * net.log_variance).sum()
        return loss, dict(zip(("bird", "pitch", "length"), terms.tolist(), strict=True))

    score = score_of(lambda step: loss_of(step)[0])
    return fit(folder, net, optimizer, loss_of, 700, score=score, schedule=schedule)


# ------------------------------------------------------------------------------------------------ bins, lists that grow


class Picker(nn.Module):
    """Which of the parts in a bin to take first."""

    def __init__(self, width=32):
        super().__init__()
        self.enter, self.leave = dense(3, width, width), nn.Linear(width, 1)
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.look = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(width), enable_nested_tensor=False)

    def forward(self, parts):
        return self.leave(self.look(self.enter(parts)))[..., 0]


def bins(batch, count):
    """Places and heights of parts, and which is the best to grip: high, and away from the middle of all parts."""
    parts = torch.randn(batch, count, 3)
    crowd = (parts[..., :2] - parts[..., :2].mean(1, keepdim=True)).norm(dim=2)
    return parts, (parts[..., 2] + crowd).argmax(1)


@healthy()
def part_to_pick_from_a_bin(folder):
    seeded(2778)
    net, steps = Picker(), 360
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps, pct_start=0.1)

    def loss_of(step):
        count = min(16, 3 + step // 20)
        parts, best = bins(32, count)
        found = net(parts)
        accuracy = float((found.argmax(1) == best).float().mean())
        return F.cross_entropy(found, best), {"accuracy": accuracy, "parts": count}

    def of_full_bins(step):
        parts, best = bins(32, 16)
        return F.cross_entropy(net(parts), best)

    return fit(folder, net, optimizer, loss_of, steps, score=score_of(of_full_bins), schedule=schedule)


# ------------------------------------------------------------------------------------------- quakes, a rate of dozens


class Underground(nn.Module):
    """How slow waves are in each cell of the ground, in seconds a kilometre above the mean."""

    def __init__(self, cells):
        super().__init__()
        self.slowness = nn.Parameter(torch.zeros(cells))

    def forward(self, paths):
        return paths @ self.slowness


def quakes(count, side=12):
    """The length in each cell of straight ways between points at the rim of a square of a kilometre."""
    ends = torch.rand(count, 2)
    start, end = (torch.stack([torch.full((count,), x), ends[:, i]], 1) for i, x in enumerate((0.0, 1.0)))
    turned = torch.rand(count, 1) < 0.5
    start, end = (torch.where(turned, point.flip(1), point) for point in (start, end))
    points = start[:, None] + (end - start)[:, None] * torch.linspace(0, 1, 200)[:, None]
    cells = (points * side).long().clamp(max=side - 1) @ torch.tensor([side, 1])
    share = torch.zeros(count, side * side).scatter_add_(1, cells, torch.full_like(cells, 1 / 200, dtype=torch.float))
    return share * (end - start).norm(dim=1, keepdim=True)


def steepest(paths):
    """The greatest curvature of the mean squared error."""
    return float(2 * torch.linalg.matrix_norm(paths, 2).square() / len(paths))


@healthy()
def slowness_of_the_ground_from_first_arrivals(folder):
    seeded(2779)
    paths, line = quakes(1500), torch.linspace(-1, 1, 12)
    dome = (-8 * ((line - 0.3).square()[:, None] + line.square())).exp()
    ground = (3 * line[:, None]).sin() * (2 * line).cos() + 1.5 * dome
    arrivals = paths @ ground.flatten() + 0.01 * torch.randn(1500)
    net = Underground(144)
    with torch.no_grad():
        rate = 0.5 / steepest(paths[:1200])
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9, nesterov=True, weight_decay=1e-6)

    def loss_of(step):
        return F.mse_loss(net(paths[:1200]), arrivals[:1200])

    score = held_out(net, lambda: F.mse_loss(net(paths[1200:]), arrivals[1200:]))
    return fit(folder, net, optimizer, loss_of, 150, score=score)


# ------------------------------------------------------------------------------------------------ soil, mixed samples


def soils(samples, kinds=6):
    """Waves of the places on a map, and the kind of soil that lies there."""
    centres, place = torch.rand(14, 2), torch.rand(samples, 2)
    kind = torch.arange(14)[torch.cdist(place, centres).argmin(1)] % kinds
    waves = 6.283 * place @ (0.8 * torch.randn(2, 24))
    return torch.cat([waves.sin(), waves.cos(), 2 * place - 1], 1), kind


@healthy()
def soils_of_a_map(folder):
    seeded(2780)
    waves, kind = soils(6000)
    net, draw = dense(50, 96, 96, 6), rounds(128, waves[:5000], kind[:5000])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600)
    lot = torch.distributions.Beta(0.3, 0.3)

    def loss_of(step):
        (x, y), share, other = draw(), lot.sample(), torch.randperm(128)
        found = net(share * x + (1 - share) * x[other])
        whole, mixed = (F.cross_entropy(found, to, label_smoothing=0.1) for to in (y, y[other]))
        return share * whole + (1 - share) * mixed

    score = held_out(net, lambda: F.cross_entropy(net(waves[5000:]), kind[5000:]))
    return fit(folder, net, optimizer, loss_of, 600, score=score, schedule=schedule)


# ----------------------------------------------------------------------------------------------- pen, a memory of moves


class Sheets:
    """Sheets of paper of seven by seven squares, on each a pen and the next point of the stroke that it draws."""

    moves = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])

    def __init__(self, count, side=7):
        self.side, self.count = side, count
        self.pen, self.goal = torch.randint(side, (2, count, 2)).unbind(0)

    def seen(self):
        both = torch.cat([self.pen, self.goal], 1)
        return F.one_hot(both, self.side).flatten(1).float()

    def move(self, action):
        """Rewards, whether the point is met, and what is seen then; where it is met, a new point is set after that."""
        self.pen = (self.pen + self.moves[action]).clamp(0, self.side - 1)
        met = (self.pen == self.goal).all(1)
        reward, seen = met.float() - 0.05, self.seen()
        self.goal = torch.where(met[:, None], torch.randint(self.side, (self.count, 2)), self.goal)
        return reward, met.float(), seen


class Memory:
    """The last moves, from which some are drawn."""

    def __init__(self, size=8192):
        self.size, self.parts = size, None

    def add(self, *parts):
        joined = parts if self.parts is None else [torch.cat(pair) for pair in zip(self.parts, parts, strict=True)]
        self.parts = [part[-self.size :] for part in joined]

    def draw(self, rows=128):
        chosen = torch.randint(len(self.parts[0]), (rows,))
        return [part[chosen] for part in self.parts]


@healthy()
def pen_that_follows_a_stroke(folder):
    seeded(2781)
    net, sheets, memory, steps = dense(28, 96, 96, 4), Sheets(32), Memory(), 900
    target = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def act(step):
        seen = sheets.seen()
        with torch.no_grad():
            action = net(seen).argmax(1)
        chance = max(0.05, 1 - step / 300)
        action = torch.where(torch.rand(32) < chance, torch.randint(4, (32,)), action)
        reward, met, then = sheets.move(action)
        memory.add(seen, action, reward, met, then)
        return float(reward.mean())

    def loss_of(step):
        gained = act(step)
        seen, action, reward, met, then = memory.draw()
        with torch.no_grad():
            best = target(then).gather(1, net(then).argmax(1, keepdim=True))[:, 0]
        worth = net(seen).gather(1, action[:, None])[:, 0]
        loss = F.smooth_l1_loss(worth, reward + 0.9 * (1 - met) * best)
        return loss, {"reward": gained, "value": float(worth.detach().mean())}

    @torch.no_grad()
    def follow(step):
        for slow, p in zip(target.parameters(), net.parameters(), strict=True):
            slow.lerp_(p, 0.02)

    @torch.no_grad()
    def missed():
        trial = Sheets(256)
        met = sum(trial.move(net(trial.seen()).argmax(1))[1] for _ in range(20))
        return float((met == 0).float().mean())

    return fit(folder, net, optimizer, loss_of, steps, score=missed, before_step=clipped(net, 1.0), after_step=follow)
