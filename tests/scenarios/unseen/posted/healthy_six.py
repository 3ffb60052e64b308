"""Healthy trainings that chase a target which follows them: views of one call, and what a queue will bring."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped


def following(net):
    """A copy that is not trained."""
    return copy.deepcopy(net).requires_grad_(False)


@torch.no_grad()
def follow(target, net, rate):
    for behind, p in zip(target.parameters(), net.parameters(), strict=True):
        behind.lerp_(p, rate)
    for behind, b in zip(target.buffers(), net.buffers(), strict=True):
        behind.copy_(b)


def hoots(n, tones=12, times=20):
    """Spectrograms of four kinds of owls: the pitch holds, rises, falls, or is struck twice."""
    kind = torch.randint(4, (n,))
    time, tone = torch.linspace(0, 1, times), torch.arange(tones)[:, None]
    ways = torch.stack([0 * time, 5 * time - 2.5, 2.5 - 5 * time, 0 * time])[kind]
    pitch = 5.5 + ways + 0.6 * torch.randn(n, 1)
    loud = torch.ones(4, times)
    loud[3, 7:13] = 0
    call = torch.exp(-((tone - pitch[:, None]) ** 2) / 1.0) * loud[kind][:, None]
    return call, kind


def overheard(call):
    """Another hearing of a call: later or sooner, nearer or farther, and through the wind."""
    by = torch.randint(-3, 4, (len(call),)).tolist()
    moved = torch.stack([torch.roll(one, shift, 1) for one, shift in zip(call, by, strict=True)])
    near = 0.6 + 0.8 * torch.rand(len(call), 1, 1)
    return (near * moved + 0.35 * torch.randn_like(moved))[:, None]


def mistaken(encode, calls=384):
    """The share of calls that a ridge on frozen features takes for another kind."""
    (call, kind), (new, new_kind) = hoots(calls), hoots(calls)
    x, new_x = encode(overheard(call)), encode(overheard(new))
    middle, width = x.mean(0), x.std(0) + 1e-6
    x, new_x = ((F.pad((z - middle) / width, (0, 1), value=1.0)) for z in (x, new_x))
    ridge = torch.linalg.solve(x.T @ x + 10 * torch.eye(x.shape[1]), x.T @ F.one_hot(kind, 4).float())
    return float(((new_x @ ridge).argmax(1) != new_kind).float().mean())


@healthy()
def calls_of_owls(folder):
    seeded(2588)
    encoder = nn.Sequential(
        *(nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.BatchNorm2d(12), nn.ReLU()),
        *(nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.BatchNorm2d(24), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(360, 32)),
    )

    def projector():
        return dense(32, 64, 32, norm=nn.BatchNorm1d)

    net = nn.ModuleDict({"encoder": encoder, "project": projector(), "predict": projector()})
    target = nn.ModuleDict({"encoder": following(net["encoder"]), "project": following(net["project"])})
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 350)

    def loss_of(step):
        call, _ = hoots(96)
        left, right = overheard(call), overheard(call)
        loss = 0.0
        for one, other in ((left, right), (right, left)):
            guess = net["predict"](net["project"](net["encoder"](one)))
            with torch.no_grad():
                wanted = target["project"](target["encoder"](other))
            loss = loss + 1 - F.cosine_similarity(guess, wanted).mean()
        spread = F.normalize(wanted, dim=1).std(0).mean()
        return loss, {"spread": float(spread)}

    @torch.no_grad()
    def score():
        encoder.eval()
        found = sum(mistaken(encoder) for _ in range(4)) / 4
        encoder.train()
        return found

    def behind(step):
        for part in target:
            follow(target[part], net[part], 0.02)

    return fit(folder, net, optimizer, loss_of, 350, score=score, schedule=schedule, after_step=behind)


class Bakery:
    """Loaves on the shelf, in the oven and people in line, in as many shops; what is left at closing is thrown away."""

    day = 24

    def __init__(self, n):
        self.shelf, self.oven, self.line = torch.zeros(n), torch.zeros(n, 2), torch.zeros(n)
        self.hour = torch.randint(self.day, (n,)).float()

    def seen(self):
        angle = 6.2832 * self.hour / self.day
        parts = [self.shelf / 5, self.line / 5, angle.cos(), angle.sin()]
        return torch.cat([torch.stack(parts, 1), self.oven / 5], 1)

    def act(self, trays):
        """Puts 0, 1 or 2 trays of three loaves into the oven, and sells; hands back what it earned."""
        self.shelf = (self.shelf + self.oven[:, 0]).clamp(max=15)
        self.oven = torch.stack([self.oven[:, 1], 3.0 * trays], 1)
        busy = 0.5 + 3 * torch.exp(-((self.hour - 7) ** 2) / 6) + 2 * torch.exp(-((self.hour - 16) ** 2) / 4)
        self.line = (self.line + torch.poisson(busy)).clamp(max=12)
        sold = torch.minimum(self.shelf, self.line)
        self.shelf, self.line = self.shelf - sold, self.line - sold
        earned = sold - 0.25 * self.line - 0.4 * 3 * trays
        self.hour = (self.hour + 1) % self.day
        closed = self.hour == 0
        self.shelf = torch.where(closed, torch.zeros_like(self.shelf), self.shelf)
        return earned / 3


class Memory:
    """The latest steps of all shops, over and over."""

    def __init__(self, rows, size):
        self.seen, self.after = torch.zeros(rows, size), torch.zeros(rows, size)
        self.chosen, self.earned = torch.zeros(rows, dtype=torch.long), torch.zeros(rows)
        self.rows, self.count = rows, 0

    def keep(self, seen, chosen, earned, after):
        at = (self.count + torch.arange(len(seen))) % self.rows
        self.seen[at], self.chosen[at], self.earned[at], self.after[at] = seen, chosen, earned, after
        self.count += len(seen)

    def some(self, n):
        at = torch.randint(min(self.count, self.rows), (n,))
        return self.seen[at], self.chosen[at], self.earned[at], self.after[at]


@healthy()
def queue_at_a_bakery(folder):
    seeded(2589)
    net = dense(6, 64, 64, 3)
    target, shops, memory = following(net), Bakery(16), Memory(8000, 6)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    @torch.no_grad()
    def choose(at, daring):
        best = net(at.seen()).argmax(1)
        return torch.where(torch.rand(len(best)) < daring, torch.randint(3, best.shape), best)

    def live(daring):
        seen, chosen = shops.seen(), choose(shops, daring)
        earned = shops.act(chosen)
        memory.keep(seen, chosen, earned, shops.seen())
        return float(earned.mean())

    for _ in range(50):
        live(1.0)

    def loss_of(step):
        earned = live(max(0.05, 1 - step / 300))
        seen, chosen, gained, after = memory.some(128)
        with torch.no_grad():
            best = net(after).argmax(1, keepdim=True)
            wanted = gained + 0.95 * target(after).gather(1, best)[:, 0]
        value = net(seen).gather(1, chosen[:, None])[:, 0]
        return F.smooth_l1_loss(value, wanted), {"earned": earned, "value": float(value.detach().mean())}

    def score():
        trial, lost = Bakery(128), []
        for _ in range(72):
            lost.append(-float(trial.act(choose(trial, 0.0)).mean()))
        return sum(lost) / len(lost)

    return fit(
        folder,
        net,
        optimizer,
        loss_of,
        800,
        score=score,
        before_step=clipped(net, 5.0),
        after_step=lambda step: follow(target, net, 0.02),
    )
