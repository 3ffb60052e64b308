"""A lake, clouds, a clock, jumpers, soils, heaps and trams."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, update_bn
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


class Conditioned(nn.Module):
    """Layers that the traits of a lake stretch and shift (FiLM)."""

    def __init__(self):
        super().__init__()
        self.enters, self.leaves = nn.Linear(4, 48), nn.Linear(48, 1)
        self.layers = nn.ModuleList(nn.Linear(48, 48) for _ in range(2))
        self.traits = dense(3, 32, 4 * 48)

    def forward(self, x):
        weather, lake = x.split([4, 3], 1)
        h = self.enters(weather).relu()
        turns = self.traits(lake).chunk(4, 1)
        for layer, stretch, shift in zip(self.layers, turns[:2], turns[2:], strict=True):
            h = (layer(h) * (1 + stretch) + shift).relu()
        return self.leaves(h)[:, 0]


@healthy(gain=0.6)
def ice_that_bears_a_skater(folder):
    """How thick the ice is from the weather, on lakes of different traits; the rate goes up and down in triangles."""
    seeded(10073)
    x = torch.randn(4500, 7)
    frost = x[:, 0] + 0.5 * x[:, 1] * x[:, 4] + (x[:, 2] + x[:, 5]).tanh() + 0.3 * x[:, 3] * x[:, 6]
    y = frost + 0.1 * torch.randn(4500)
    net = Conditioned()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.005, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CyclicLR(
        optimizer, 0.005, 0.05, step_size_up=75, mode="triangular2", cycle_momentum=False
    )
    draw = rounds(64, x[:4000], y[:4000])

    def loss_of(step):
        rows, truth = draw()
        return F.mse_loss(net(rows), truth)

    return fit(folder, net, optimizer, loss_of, 600, schedule=schedule,
               score=held_out(net, lambda: F.mse_loss(net(x[4000:]), y[4000:])))  # fmt: skip


def apart(enters, leaves):
    """A convolution of each channel, then one over the channels."""
    return nn.Sequential(
        nn.Conv2d(enters, enters, 3, padding=1, groups=enters, bias=False), nn.Conv2d(enters, leaves, 1, bias=False),
        nn.BatchNorm2d(leaves), nn.ReLU(),
    )  # fmt: skip


@healthy(gain=0.6)
def cover_of_clouds_from_orbit(folder):
    """The share of sky that clouds cover; the weights of the last steps are averaged."""
    seeded(10074)
    lie = F.interpolate(torch.randn(1500, 1, 5, 5), 16, mode="bicubic", align_corners=False)
    cloud = torch.sigmoid(6 * (lie - 0.5 * torch.randn(1500, 1, 1, 1)))
    land = F.interpolate(torch.rand(1500, 2, 4, 4), 16)
    x = torch.cat([cloud + 0.3 * land[:, :1], cloud - 0.5 * land[:, 1:]], 1) + 0.2 * torch.randn(1500, 2, 16, 16)
    y = 4 * cloud.mean((1, 2, 3)) - 2
    net = nn.Sequential(
        nn.Conv2d(2, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), apart(16, 24),
        apart(24, 24), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 1),
    )  # fmt: skip
    average = AveragedModel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
    draw = rounds(32, x[:1200], y[:1200])

    def loss_of(step):
        rows, truth = draw()
        return F.smooth_l1_loss(net(rows)[:, 0], truth)

    def gather(step):
        if step >= 150:
            average.update_parameters(net)

    def score():
        update_bn(x[:1200].split(300), average)
        return held_out(average, lambda: F.smooth_l1_loss(average(x[1200:])[:, 0], y[1200:]))()

    return fit(folder, net, optimizer, loss_of, 240, after_step=gather, score=score)


class Ticks(nn.Module):
    """A causal transformer that gives the next beat and, at the end, what ails the clock."""

    def __init__(self):
        super().__init__()
        self.enters, self.place = nn.Linear(1, 32), nn.Parameter(0.1 * torch.randn(24, 32))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.norm, self.beat, self.fault = nn.LayerNorm(32), nn.Linear(32, 1), nn.Linear(32, 4)
        self.register_buffer("later", torch.ones(24, 24, dtype=torch.bool).triu(1))

    def forward(self, x):
        h = self.enters(x[..., None]) + self.place
        for layer in self.layers:
            h = layer(h, src_mask=self.later)
        h = self.norm(h)
        return self.beat(h)[..., 0], self.fault(h[:, -1])


@healthy(gain=0.5)
def what_ails_a_limping_clock(folder):
    """The next beat and the kind of fault at once: a limp, a bent tooth, a spring that slackens, or none."""
    seeded(10075)
    net = Ticks()
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3, alpha=0.99)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, 1.0, total_iters=40)

    def loss_of(rows):
        fault, t = torch.randint(4, (rows, 1)), torch.arange(25.0)
        much, start = 0.7 + 0.6 * torch.rand(rows, 1), torch.randint(5, (rows, 1))
        limp = much * (1 - 2 * ((t + start) % 2))
        tooth = 2 * much * ((t + start) % 5 == 0)
        slack = 1.5 * much * t / 24
        beat = 0.5 * torch.randn(rows, 1) + 0.1 * torch.randn(rows, 25)
        beat = beat + (fault == 1) * limp + (fault == 2) * tooth + (fault == 3) * slack
        ahead, named = net(beat[:, :-1])
        drift = F.mse_loss(ahead, beat[:, 1:])
        right = float((named.argmax(1) == fault[:, 0]).float().mean())
        return drift + 0.5 * F.cross_entropy(named, fault[:, 0]), {"beat_mse": float(drift), "accuracy": right}

    return fit(folder, net, optimizer, lambda step: loss_of(32), 280, before_step=clipped(net, 3.0),
               schedule=schedule, score=held_out(net, lambda: loss_of(512)[0]))  # fmt: skip


@healthy(gain=0.7)
def weight_of_a_jumper_by_its_skeins(folder):
    """A set of skeins without an order; warm restarts, the last cycle of which is run to its end."""
    seeded(10076)
    reads, tells = dense(7, 48, 48), dense(48, 48, 1)
    net = nn.ModuleList([reads, tells])
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 80, T_mult=2, eta_min=3e-5)
    heavy = torch.tensor([0.4, 0.7, 1.0, 1.3, 1.8])

    def gap(rows):
        yarn, used = torch.randint(5, (rows, 12)), torch.rand(rows, 12)
        there = (torch.rand(rows, 12) < 0.6).float()
        grams = heavy[yarn] * (used + 0.5 * used.square())
        weight = (grams * there).sum(1) / 3 + (grams * there).max(1).values + 0.05 * torch.randn(rows) - 3
        skeins = torch.cat([F.one_hot(yarn, 5), used[..., None], there[..., None]], 2)
        return F.huber_loss(tells((reads(skeins) * there[..., None]).sum(1) / 4)[:, 0], weight)

    return fit(folder, net, optimizer, lambda step: gap(64), 560, schedule=schedule,
               score=held_out(net, lambda: gap(1024)))  # fmt: skip


class Lion(torch.optim.Optimizer):
    """Steps of one size, along the sign of a momentum."""

    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            quick, slow = group["betas"]
            for p in group["params"]:
                memory = self.state[p].setdefault("memory", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(torch.lerp(p.grad, memory, quick).sign(), alpha=-group["lr"])
                memory.lerp_(p.grad, 1 - slow)


@healthy(gain=0.5)
def soil_samples_from_the_same_field(folder):
    """Two linear maps, of spectra and of tests in the laboratory, under a cosine loss; Lion with a falling rate."""
    seeded(10077)
    net = nn.ModuleDict({"spectrum": nn.Linear(24, 8, bias=False), "test": nn.Linear(14, 8, bias=False)})
    optimizer = Lion(net.parameters(), 2e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400, 1e-4)
    to_spectrum, to_test = torch.randn(6, 24) / 6**0.5, torch.randn(6, 14) / 6**0.5

    def loss_of(rows):
        field, same = torch.randn(rows, 6), torch.rand(rows) < 0.5
        other = torch.where(same[:, None], field, torch.randn(rows, 6))
        a = net["spectrum"](field @ to_spectrum + 0.2 * torch.randn(rows, 24))
        b = net["test"](other @ to_test + 0.2 * torch.randn(rows, 14))
        return F.cosine_embedding_loss(a, b, 2.0 * same - 1, margin=0.3)

    return fit(folder, net, optimizer, lambda step: loss_of(128), 400, schedule=schedule,
               score=held_out(net, lambda: loss_of(4096)))  # fmt: skip


class Diary(nn.Module):
    """A memory of entries that a question is held against, twice."""

    def __init__(self, width):
        super().__init__()
        self.heap, self.state = nn.Embedding(12, width), nn.Embedding(4, width)
        self.day = nn.Parameter(0.1 * torch.randn(10, width))
        self.keys, self.values = nn.Linear(width, width), nn.Linear(width, width)
        self.head = dense(width, width, 4)

    def forward(self, heaps, states, asked):
        memory = self.heap(heaps) + self.state(states) + self.day
        question = self.heap(asked)
        for _ in range(2):
            share = (self.keys(memory) @ question[:, :, None] / question.shape[1] ** 0.5).softmax(1)
            question = question + (share * self.values(memory)).sum(1)
        return self.head(question)


@healthy(gain=0.6)
def state_of_the_heap_that_is_asked_for(folder):
    """The latest of ten entries of a compost diary on one heap counts; rare states weigh more."""
    seeded(10078)
    often = torch.tensor([0.55, 0.25, 0.12, 0.08])
    weight = 1 / often / (1 / often).mean()
    net = Diary(32)
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=40)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 460)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, fall], [40])

    def loss_of(rows):
        heaps = torch.randint(12, (rows, 10))
        states = torch.multinomial(often, rows * 10, replacement=True).view(rows, 10)
        asked = heaps.gather(1, torch.randint(10, (rows, 1)))
        last = ((heaps == asked) * torch.arange(1, 11)).argmax(1, keepdim=True)
        found, truth = net(heaps, states, asked[:, 0]), states.gather(1, last)[:, 0]
        right = float((found.argmax(1) == truth).float().mean())
        return F.cross_entropy(found, truth, weight), {"accuracy": right}

    return fit(folder, net, optimizer, lambda step: loss_of(128), 500, schedule=schedule,
               score=held_out(net, lambda: loss_of(2048)[0]))  # fmt: skip


class Tagger(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.reads, self.head = nn.GRU(3, width, batch_first=True, bidirectional=True), nn.Linear(2 * width, 4)

    def forward(self, x):
        return self.head(self.reads(x)[0])


@healthy(gain=0.6)
def why_the_tram_stood_at_each_stop(folder):
    """A small tagger learns from the answers of a larger one; two warm restarts."""
    seeded(10079)
    teacher, net = Tagger(32), Tagger(16)

    def journeys(rows):
        x = torch.randn(rows, 12, 3)
        full, rain, jam = x.unbind(2)
        jam = jam + jam.roll(1, 1) - 0.5 * jam.roll(-1, 1)
        return x, torch.stack([full + rain, jam, 1.2 * rain - full, 0.6 + 0 * full], 2).argmax(2)

    first = torch.optim.Adam(teacher.parameters(), lr=1e-2)
    for _ in range(120):
        x, y = journeys(24)
        first.zero_grad()
        F.cross_entropy(teacher(x).flatten(0, 1), y.flatten()).backward()
        first.step()
    teacher.requires_grad_(False).eval()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 50, T_mult=2, eta_min=1e-4)

    def loss_of(rows):
        x, _ = journeys(rows)
        told, found = (F.log_softmax(model(x) / 2, 2).flatten(0, 1) for model in (teacher, net))
        return 4 * F.kl_div(found, told, reduction="batchmean", log_target=True)

    return fit(folder, net, optimizer, lambda step: loss_of(24), 350, schedule=schedule,
               score=held_out(net, lambda: loss_of(256)))  # fmt: skip
