"""Healthy trainings, first part: pictures, signals, tables and graphs by ordinary recipes."""

from __future__ import annotations

import math

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import fit, healthy, score_of, seeded


def grid(size):
    """The coordinates of the pixels of a square picture, both `[size, size]`, from -1 to 1."""
    return torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")


@healthy(0.5)
def gratings_told_by_their_tilt(folder):
    seeded(9101)
    y, x = grid(16)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2, padding=2, bias=False),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 6),
    )

    def loss_of(step):
        kind = torch.randint(6, (64,))
        tilt = (kind * math.pi / 6 + 0.08 * torch.randn(64))[:, None, None]
        pace, phase = 6 + 6 * torch.rand(64, 1, 1), 6.2832 * torch.rand(64, 1, 1)
        wave = (pace * (tilt.cos() * x + tilt.sin() * y) + phase).cos()
        return F.cross_entropy(net((wave + 0.5 * torch.randn(64, 16, 16))[:, None]), kind)

    make = optim.SGD(net.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    plan = optim.lr_scheduler.OneCycleLR(make, max_lr=0.1, total_steps=300)
    return fit(folder, net, make, loss_of, 300, score=score_of(loss_of), schedule=plan)


class Clock(nn.Module):
    """A transformer over the patches of a picture, with a token that gathers them."""

    def __init__(self, width=32, kinds=12):
        super().__init__()
        self.patches = nn.Conv2d(1, width, 4, stride=4)
        self.gather = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, 17, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        for p in self.blocks.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, kinds)

    def forward(self, x):
        h = self.patches(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.gather.expand(len(h), -1, -1), h], 1) + self.places
        return self.head(self.norm(self.blocks(h))[:, 0])


@healthy(0.3)
def hours_read_from_the_faces_of_clocks(folder):
    """A short hand tells the hour, a long one the minute; labels are smoothed."""
    seeded(9102)
    y, x = grid(16)
    net = Clock()

    def hand(angle, length):
        """A line from the middle, `[B, 16, 16]`."""
        along = (x * angle.sin() - y * angle.cos()).clamp(0.0, length)
        gap = (x - along * angle.sin()).square() + (y + along * angle.cos()).square()
        return (-gap / 0.012).exp()

    def loss_of(step, smooth=0.1):
        hour, minute = torch.randint(12, (48,)), torch.rand(48, 1, 1)
        angle = 6.2832 * (hour[:, None, None] + minute) / 12
        face = torch.maximum(0.6 * hand(6.2832 * minute, 0.9), hand(angle, 0.55))
        face = face + 0.05 * torch.randn(48, 16, 16)
        return F.cross_entropy(net((face[:, None] - 0.15) / 0.25), hour, label_smoothing=smooth)

    make = optim.AdamW(net.parameters(), 2e-3, weight_decay=0.05)
    plan = optim.lr_scheduler.LambdaLR(
        make, lambda s: min((s + 1) / 40, 0.5 * (1 + math.cos(math.pi * min(1.0, s / 300))))
    )
    score = score_of(lambda step: loss_of(step, 0.0))
    return fit(folder, net, make, loss_of, 300, score=score, schedule=plan)


class Flow(nn.Module):
    """A U-Net with one way down, and how far each pixel moved."""

    def __init__(self, width=16):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(2, width, 3, padding=1), nn.LeakyReLU(0.1))
        self.deep = nn.Sequential(
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.LeakyReLU(0.1),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1),
            nn.LeakyReLU(0.1),
        )
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.out = nn.Sequential(
            nn.Conv2d(2 * width, width, 3, padding=1), nn.LeakyReLU(0.1), nn.Conv2d(width, 2, 3, padding=1)
        )

    def forward(self, x):
        high = self.down(x)
        return self.out(torch.cat([high, self.up(self.deep(high))], 1))


@healthy(0.3)
def how_far_each_pixel_has_moved(folder):
    """Optical flow between two frames of a texture, by its end-point error; a plateau halves the rate."""
    seeded(9103)
    y, x = grid(16)
    net = Flow()

    def loss_of(step):
        first = F.interpolate(torch.randn(12, 1, 6, 6), size=16, mode="bicubic", align_corners=True)
        turn, shift = 0.1 * torch.randn(12, 1, 1), 0.12 * torch.randn(12, 2, 1, 1)
        way = torch.stack([shift[:, 0] - turn * y, shift[:, 1] + turn * x], 1)
        where = torch.stack([x, y], 0) + way
        second = F.grid_sample(first, where.permute(0, 2, 3, 1), padding_mode="reflection", align_corners=True)
        gap = net(torch.cat([first, second], 1)) - way * 7.5
        return (gap.square().sum(1) + 1e-6).sqrt().mean()

    make = optim.Adam(net.parameters(), 3e-3)
    plan = optim.lr_scheduler.ReduceLROnPlateau(make, factor=0.5, patience=2)
    score = score_of(loss_of)

    def validate(step):
        if step % 30 == 29:
            plan.step(score())

    return fit(folder, net, make, loss_of, 300, score=score, after_step=validate)


@healthy(0.5)
def the_two_that_are_furthest_apart(folder):
    """A relation net: all pairs of eight points, the largest answer of each feature, then the distance."""
    seeded(9104)
    pair = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
    head = nn.Sequential(nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 1))
    net = nn.ModuleDict({"pair": pair, "head": head})

    def loss_of(step):
        at = torch.randn(64, 8, 2)
        both = torch.cat([at[:, :, None].expand(-1, -1, 8, -1), at[:, None].expand(-1, 8, -1, -1)], 3)
        far = (at[:, :, None] - at[:, None]).norm(dim=3).flatten(1).amax(1)
        return F.mse_loss(head(pair(both).flatten(1, 2).amax(1))[:, 0], (far - 3.4) / 0.7)

    make = optim.RMSprop(net.parameters(), 1e-3)
    plan = optim.lr_scheduler.StepLR(make, 120, 0.4)
    return fit(folder, net, make, loss_of, 350, score=score_of(loss_of), schedule=plan)


class Roads(nn.Module):
    """Graph convolutions over a fixed, normalised adjacency."""

    def __init__(self, links, past=6, ahead=3, width=32):
        super().__init__()
        self.register_buffer("links", links)
        self.inner = nn.ModuleList([nn.Linear(2 * past, width), nn.Linear(2 * width, width)])
        self.head = nn.Linear(width, ahead)

    def forward(self, x):
        for layer in self.inner:
            x = layer(torch.cat([x, self.links @ x], -1)).relu()
        return self.head(x)


@healthy(0.5)
def jams_on_a_ring_of_roads(folder):
    """The next three densities at each of twenty-four counting posts from the last six."""
    seeded(9105)
    ring = torch.eye(24)
    links = (ring.roll(1, 0) + ring.roll(-1, 0) + ring) / 3
    now, days = torch.rand(24), []
    for _ in range(1200):
        flow = now * (1.3 - now).clamp(min=0)
        now = (now + 0.5 * (flow.roll(1) - flow) + 0.02 * torch.randn(24)).clamp(0.05, 1.2)
        days.append(now)
    series = torch.stack(days)
    series = (series - series[:1000].mean()) / series[:1000].std()
    net = Roads(links)

    def error(low, high):
        def loss_of(step):
            start = torch.randint(low, high, (32, 1))
            cut = series[start + torch.arange(9)].transpose(1, 2)
            return F.mse_loss(net(cut[..., :6]), cut[..., 6:])

        return loss_of

    make = optim.Adam(net.parameters(), 3e-3, weight_decay=1e-4)
    return fit(folder, net, make, error(0, 990), 400, score=score_of(error(1000, 1190)))


@healthy(0.3)
def answers_of_a_survey_in_shuffled_epochs(folder):
    """A table with rules that cross columns; batch norms and a little dropout; scored on rows that were kept apart."""
    seeded(9106)
    x = torch.randn(2400, 12)
    said = ((x[:, 0] > 0) & (x[:, 1] + x[:, 2] > 0)) | (x[:, 3] * x[:, 4] > 0.6)
    said = said.float()
    net = nn.Sequential(
        *(nn.Linear(12, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1)),
        *(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1)),
        nn.Linear(64, 1),
    )
    rows = torch.utils.data.TensorDataset(x[:1920], said[:1920])
    loader = torch.utils.data.DataLoader(rows, batch_size=64, shuffle=True)
    stream = iter(())

    def loss_of(step):
        nonlocal stream
        if step % len(loader) == 0:
            stream = iter(loader)
        row, label = next(stream)
        return F.binary_cross_entropy_with_logits(net(row)[:, 0], label)

    @torch.no_grad()
    def score():
        net.eval()
        loss = F.binary_cross_entropy_with_logits(net(x[1920:])[:, 0], said[1920:])
        net.train()
        return loss

    return fit(folder, net, optim.RAdam(net.parameters(), 3e-3), loss_of, 600, score=score)


class Facts(nn.Module):
    """Complex embeddings of things and of relations; every thing is scored as the object (ComplEx)."""

    def __init__(self, things, relations, width=32):
        super().__init__()
        self.things, self.relations = nn.Embedding(things, 2 * width), nn.Embedding(relations, 2 * width)
        for table in (self.things, self.relations):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, subject, relation):
        (a, b), (c, d) = self.things(subject).chunk(2, 1), self.relations(relation).chunk(2, 1)
        return torch.cat([a * c - b * d, a * d + b * c], 1) @ self.things.weight.T


@healthy(0.3)
def facts_by_complex_products(folder):
    seeded(9107)
    near = torch.tensor([1, -1, 2, -2, 12, -12, 6, 24])
    subject, relation = (part.flatten() for part in torch.meshgrid(torch.arange(48), torch.arange(8), indexing="ij"))
    thing = (subject + near[relation]) % 48
    order = torch.randperm(len(subject))
    known, kept = order[:320], order[320:]
    net = Facts(48, 8)

    def loss_of(step):
        at = known[torch.randint(len(known), (64,))]
        return F.cross_entropy(net(subject[at], relation[at]), thing[at])

    @torch.no_grad()
    def score():
        return F.cross_entropy(net(subject[kept], relation[kept]), thing[kept])

    return fit(folder, net, optim.Adagrad(net.parameters(), 0.1), loss_of, 400, score=score)


class Beat(nn.Module):
    """A residual block of one dimension."""

    def __init__(self, width):
        super().__init__()
        self.way = nn.Sequential(
            *(nn.Conv1d(width, width, 5, padding=2, bias=False), nn.BatchNorm1d(width), nn.ReLU()),
            *(nn.Conv1d(width, width, 5, padding=2, bias=False), nn.BatchNorm1d(width)),
        )

    def forward(self, x):
        return (x + self.way(x)).relu()


@healthy(0.5)
def heart_beats_of_four_kinds(folder):
    seeded(9108)
    time = torch.arange(64.0)
    net = nn.Sequential(
        *(nn.Conv1d(1, 16, 7, stride=2, padding=3, bias=False), nn.BatchNorm1d(16), nn.ReLU()),
        *(Beat(16), Beat(16), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 4)),
    )

    def bump(at, wide, high):
        return high * (-0.5 * ((time - at) / wide).square()).exp()

    def loss_of(step):
        kind, at = torch.randint(4, (64, 1)), 28 + 8 * torch.rand(64, 1)
        early, wide, flat = (kind == 1).float(), (kind == 2).float(), (kind == 3).float()
        beat = bump(at, 1.2 + 1.5 * wide, 3.0) - bump(at + 3 + 2 * wide, 1.5, 1.0)
        beat = beat + bump(at - 12 + 5 * early, 2.5, 0.6) + bump(at + 15, 4.0, 0.9 * (1 - 1.6 * flat))
        return F.cross_entropy(net((beat + 0.2 * torch.randn(64, 64))[:, None]), kind[:, 0])

    make = optim.NAdam(net.parameters(), 2e-3)
    plan = optim.lr_scheduler.MultiStepLR(make, [150, 210], 0.1)
    return fit(folder, net, make, loss_of, 250, schedule=plan)
