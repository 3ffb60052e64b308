"""Without labels, or with those of a teacher: a slower self, columns that must differ, soft answers."""

from __future__ import annotations

import copy
import math

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, mean, seeded
from unseen.tasks import held_out

# ------------------------------------------------------------ a slower self


def askew(images):
    """Each image put somewhere on a larger sheet, lighter or darker, with dust."""
    n = len(images)
    sheet = torch.zeros(n, 10, 10)
    down, right = torch.randint(3, (n, 1, 1)), torch.randint(3, (n, 1, 1))
    at = torch.arange(8)
    sheet[torch.arange(n)[:, None, None], down + at[:, None], right + at] = images
    return (sheet * (0.6 + 0.8 * torch.rand(n, 1, 1)) + 0.05 * torch.randn(n, 10, 10))[:, None]


def eyes():
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(100, 160),
        nn.LayerNorm(160),
        nn.ReLU(),
        nn.Linear(160, 160),
        nn.LayerNorm(160),
        nn.ReLU(),
        nn.Linear(160, 96),
    )


@healthy()
def postmarks_seen_askew(folder):
    seeded(3251)
    images = digits()[0][torch.randperm(1797)]
    net = nn.ModuleDict({"eyes": nn.Sequential(eyes(), nn.ReLU(), dense(96, 64, 32)), "guess": dense(32, 64, 32)})
    slow = copy.deepcopy(net["eyes"]).requires_grad_(False)
    steps, heat = 450, 0.2
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min(1, (s + 1) / 20) * (0.5 + 0.5 * math.cos(math.pi * s / steps))
    )

    def loss_of(step):
        some = images[torch.randperm(1500)[:128]]
        sights = [askew(some), askew(some)]
        with torch.no_grad():
            for late, early in zip(slow.parameters(), net["eyes"].parameters(), strict=True):
                late.lerp_(early, 0.02)
            keys = [F.normalize(slow(x), dim=1) for x in sights]
        asked = [F.normalize(net["guess"](net["eyes"](x)), dim=1) for x in sights]
        alike = [q @ k.T / heat for q, k in zip(asked, keys[::-1], strict=True)]
        own = torch.arange(128)
        right = mean([float((a.argmax(1) == own).float().mean()) for a in alike])
        return sum(2 * heat * F.cross_entropy(a, own) for a in alike), {"found": right}

    def score():
        """The share of fresh images that is not nearest to another sight of itself."""
        with torch.no_grad():
            seen, again = (F.normalize(net["eyes"](askew(images[1500:])), dim=1) for _ in range(2))
        return float(((seen @ again.T).argmax(1) != torch.arange(len(seen))).float().mean())

    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


# ------------------------------------------------------------ columns that differ, large batches


def with_norm(inner, wide, out):
    return nn.Sequential(nn.Linear(inner, wide, bias=False), nn.BatchNorm1d(wide), nn.ReLU(), nn.Linear(wide, out))


class Lars(torch.optim.Optimizer):
    """Momentum, each matrix at a rate of its own size over that of its gradient; vectors at a plain rate."""

    def __init__(self, params, lr, momentum=0.9, weight_decay=1e-6, trust=0.02, of_vectors=0.2):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust})
        self.of_vectors = of_vectors

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.ndim > 1:
                    slope = p.grad + group["weight_decay"] * p
                    way = slope * group["trust"] * p.norm() / slope.norm().clamp(min=1e-9)
                else:
                    way = p.grad * self.of_vectors
                state = self.state[p]
                state["speed"] = group["momentum"] * state["speed"] + way if "speed" in state else way
                p.sub_(group["lr"] * state["speed"])


@healthy()
def two_recordings_of_one_gong(folder):
    seeded(3252)
    time = torch.linspace(0, 1, 48)

    def gongs(n):
        return torch.rand(n, 1), torch.rand(n, 1)

    def heard(pitch, length):
        phase, loud = 2 * math.pi * torch.rand(len(pitch), 1), 0.5 + torch.rand(len(pitch), 1)
        tone = (2 * math.pi * (3 + 6 * pitch) * time + phase).sin()
        return loud * tone * torch.exp(-(0.5 + 4 * length) * time) + 0.1 * torch.randn(len(pitch), 48)

    net = nn.ModuleDict({
        "ear": nn.Sequential(nn.Linear(48, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 32)),
        "project": with_norm(32, 96, 48),
    })  # fmt: skip
    steps = 260
    optimizer = Lars(net.parameters(), 0.3)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=20)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - 20, eta_min=3e-3)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, fall], [20])

    def loss_of(step):
        gong = gongs(512)
        a, b = (net["project"](net["ear"](heard(*gong))) for _ in range(2))
        a, b = ((z - z.mean(0)) / (z.std(0) + 1e-5) for z in (a, b))
        cross = a.T @ b / len(a)
        same = (cross.diagonal() - 1).square().sum()
        other = cross.square().sum() - cross.diagonal().square().sum()
        return same + 0.01 * other, {"invariance": same, "redundancy": other}

    def score():
        """The error of a ridge regression of pitch and length from what the ear hands on."""
        gong, fresh = gongs(1000), gongs(1000)
        net.eval()
        with torch.no_grad():
            known, seen = (F.pad(net["ear"](heard(*g)), (0, 1), value=1.0) for g in (gong, fresh))
        net.train()
        true, wish = torch.cat(gong, 1), torch.cat(fresh, 1)
        way = torch.linalg.solve(known.T @ known + 0.1 * torch.eye(33), known.T @ true)
        return float((seen @ way - wish).square().mean() / wish.var(0).mean())

    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


# ------------------------------------------------------------ soft answers


@healthy()
def a_pocket_reader_of_meters(folder):
    seeded(3253)
    images, labels = digits()
    order = torch.randperm(len(images))
    images, labels = images[order].flatten(1), labels[order]
    teachers = [dense(64, 96, 96, 10) for _ in range(3)]
    of_teachers = torch.optim.Adam([p for net in teachers for p in net.parameters()], lr=2e-3, weight_decay=1e-4)

    def rows():
        at = torch.randint(1300, (80,))
        return images[at] + 0.15 * torch.randn(80, 64), labels[at]

    for _ in range(250):
        x, y = rows()
        of_teachers.zero_grad()
        sum(F.cross_entropy(net(x), y) for net in teachers).backward()
        of_teachers.step()

    net = nn.Sequential(
        nn.Linear(64, 10, bias=False), nn.Hardswish(), nn.Linear(10, 16), nn.Hardswish(), nn.Linear(16, 10)
    )
    optimizer = torch.optim.NAdam(net.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 250, 0.3)
    heat = 4.0

    def loss_of(step):
        x, y = rows()
        with torch.no_grad():
            said = torch.stack([(teacher(x) / heat).softmax(1) for teacher in teachers]).mean(0)
        out = net(x)
        soft = heat**2 * F.kl_div((out / heat).log_softmax(1), said, reduction="batchmean")
        hard = F.cross_entropy(out, y)
        right = (out.argmax(1) == y).float().mean()
        return 0.8 * soft + 0.2 * hard, {"soft": soft, "hard": hard, "accuracy": right}

    score = held_out(net, lambda: (net(images[1300:]).argmax(1) != labels[1300:]).float().mean())
    return fit(folder, net, optimizer, loss_of, 600, score=score, schedule=schedule)
