"""A roof, ears, a sauna, snow, cloth and blood."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, in_turn, rounds, tend


class Cup(nn.Module):
    """A small U-Net: down twice, up twice, with bridges."""

    def __init__(self, leaves):
        super().__init__()
        self.down = nn.ModuleList([self.block(2, 12), self.block(12, 20)])
        self.floor = self.block(20, 28)
        self.up = nn.ModuleList([self.block(48, 20), self.block(32, 12)])
        self.last = nn.Conv2d(12, leaves, 1)

    def block(self, enters, width):
        return nn.Sequential(nn.Conv2d(enters, width, 3, padding=1), nn.GroupNorm(4, width), nn.SiLU())

    def forward(self, x):
        bridges = []
        for part in self.down:
            x = part(x)
            bridges.append(x)
            x = F.max_pool2d(x, 2)
        x = self.floor(x)
        for part in self.up:
            x = part(torch.cat([F.interpolate(x, scale_factor=2), bridges.pop()], 1))
        return self.last(x)


@healthy(gain=0.5)
def rain_that_stands_on_a_roof(folder):
    """How deep the water stands on each tile: three quantiles of it."""
    seeded(10061)
    net = Cup(3)
    share = torch.tensor([0.1, 0.5, 0.9]).view(1, 3, 1, 1)
    steps = 250
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps)

    def pinball(rows):
        tilt = F.interpolate(torch.randn(rows, 1, 4, 4), 16, mode="bilinear", align_corners=False)
        wind = torch.randn(rows, 1, 1, 1).expand(-1, -1, 16, 16)
        flow = F.avg_pool2d((1.5 * tilt + 0.5 * wind).relu(), 3, 1, 1)
        depth = flow + (0.05 + 0.15 * flow) * torch.randn_like(flow)
        gap = depth - net(torch.cat([tilt, wind], 1))
        return torch.maximum(share * gap, (share - 1) * gap).mean()

    return fit(folder, net, optimizer, lambda step: pinball(12), steps, schedule=schedule,
               score=held_out(net, lambda: pinball(128)))  # fmt: skip


class Listener(nn.Module):
    """An LSTM with a head for five levels in their order."""

    def __init__(self):
        super().__init__()
        self.memory, self.head = nn.LSTM(10, 40, batch_first=True), nn.Linear(40, 1)
        self.lowest, self.widths = nn.Parameter(torch.tensor([-1.5])), nn.Parameter(torch.full((3,), 0.5))

    def forward(self, x):
        cuts = torch.cat([self.lowest, self.lowest + F.softplus(self.widths).cumsum(0)])
        above = torch.sigmoid(self.head(self.memory(x)[0]) - cuts)
        one, zero = torch.ones_like(above[..., :1]), torch.zeros_like(above[..., :1])
        return torch.cat([one, above], -1) - torch.cat([above, zero], -1)


@healthy(gain=0.35)
def how_loud_the_next_tone_seems(folder):
    """Tones at four pitches in a row; each ear has its own thresholds, which the answers so far tell."""
    seeded(10062)
    net = Listener()
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3, amsgrad=True)

    def loss_of(rows):
        pitch, tone = torch.randint(4, (rows, 20)), 2 * torch.randn(rows, 20)
        ear = (2 * torch.randn(rows, 1) + 0.5 * torch.randn(rows, 4)).gather(1, pitch)
        answer = torch.bucketize(tone - ear + 0.2 * torch.randn(rows, 20), torch.tensor([-2.0, -0.7, 0.7, 2.0]))
        before = F.one_hot(answer, 5).float().roll(1, 1)
        before[:, 0] = 0
        x = torch.cat([F.one_hot(pitch, 4), tone[..., None] / 2, before], 2)
        return -net(x).gather(2, answer[..., None]).clamp_min(1e-6).log().mean()

    return fit(folder, net, optimizer, lambda step: loss_of(48), 350, score=held_out(net, lambda: loss_of(512)))


@healthy(gain=0.5)
def evenings_in_a_sauna(folder):
    """A Wasserstein GAN with a gradient penalty of how a sauna warms up in eight readings."""
    seeded(10063)
    make, judge = dense(4, 48, 48, 8, act=nn.SiLU), dense(8, 64, 64, 1, act=nn.LeakyReLU)
    of_make = torch.optim.RAdam(make.parameters(), lr=7e-4, betas=(0.0, 0.9))
    of_judge = torch.optim.RAdam(judge.parameters(), lr=2e-3, betas=(0.0, 0.9))
    ways = F.normalize(torch.randn(8, 32), dim=0)

    def real(rows):
        top, pace = 1.5 + 0.4 * torch.randn(rows, 1), 2 + 2 * torch.rand(rows, 1)
        warmth = top * (1 - torch.exp(-torch.arange(1.0, 9.0) / pace))
        return 2 * (warmth + 0.05 * torch.randn(rows, 8)) - 1.6

    def judge_loss():
        true, false = real(64), make(torch.randn(64, 4)).detach()
        between = torch.lerp(false, true, torch.rand(64, 1)).requires_grad_()
        slope = torch.autograd.grad(judge(between).sum(), between, create_graph=True)[0]
        return judge(false).mean() - judge(true).mean() + (slope.norm(dim=1) - 1).square().mean()

    def score():
        with torch.no_grad():
            true, false = (real(1024) @ ways).sort(0).values, (make(torch.randn(1024, 4)) @ ways).sort(0).values
            return float((true - false).abs().mean())

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, lambda: -judge(make(torch.randn(64, 4))).mean(),
                   180, score, rounds=5)  # fmt: skip


@healthy(gain=0.5)
def snow_that_wants_the_softer_wax(folder):
    """Of two pictures of crystals the coarser is told; sharpness-aware steps."""
    seeded(10064)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(24 * 9, 32), nn.ReLU(), nn.Linear(32, 1),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)

    def crystals(coarse):
        fine = torch.randn(len(coarse), 1, 12, 12)
        rough = 2.2 * F.avg_pool2d(fine, 3, 1, 1)
        return torch.lerp(fine, rough, coarse[:, None, None, None])

    def pairs(rows):
        coarse = torch.rand(rows, 2).sort(1).values
        return crystals(coarse[:, 1]), crystals(coarse[:, 0])

    def ranked(more, less):
        return F.softplus(net(less) - net(more)).mean()

    def one(step):
        more, less = pairs(32)
        optimizer.zero_grad()
        ranked(more, less).backward()
        slopes = [p.grad.clone() for p in net.parameters()]
        length = torch.stack([g.norm() for g in slopes]).norm() + 1e-12
        with torch.no_grad():
            for p, g in zip(net.parameters(), slopes, strict=True):
                p.add_(g, alpha=0.03 / float(length))
        optimizer.zero_grad()
        loss = ranked(more, less)
        loss.backward()
        with torch.no_grad():
            for p, g in zip(net.parameters(), slopes, strict=True):
                p.sub_(g, alpha=0.03 / float(length))
        optimizer.step()
        return {"loss": loss}

    return tend(folder, net, optimizer, one, 250, held_out(net, lambda: ranked(*pairs(512))))


class Sines(nn.Module):
    """A layer whose activation is a sine (SIREN)."""

    def __init__(self, enters, leaves, pace, first):
        super().__init__()
        self.linear, self.pace = nn.Linear(enters, leaves), pace
        bound = 1 / enters if first else (6 / enters) ** 0.5 / pace
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x):
        return (self.pace * self.linear(x)).sin()


@healthy(gain=0.6)
def pulled_thread_in_a_cloth(folder):
    """One picture of a weave with a fault, from where to how bright."""
    seeded(10065)
    net = nn.Sequential(Sines(2, 64, 12, True), Sines(64, 64, 12, False), Sines(64, 64, 12, False), nn.Linear(64, 1))
    nn.init.uniform_(net[-1].weight, -0.025, 0.025)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.006)
    place = torch.cartesian_prod(torch.linspace(-1, 1, 40), torch.linspace(-1, 1, 40))
    weave = (14 * place[:, 0]).sin() * (10 * place[:, 1]).sin()
    fault = torch.exp(-((place[:, 0] - 0.3 * place[:, 1] - 0.2) / 0.1).square())
    bright = (weave + 1.2 * fault)[:, None]
    draw = rounds(400, place, bright)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, lambda: F.mse_loss(net(place), bright)))


class Experts(nn.Module):
    """Four experts, the best two of which are mixed; also says how evenly they are asked."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(6, 4)
        self.experts = nn.ModuleList(dense(6, 32, 32, 1, act=nn.SiLU) for _ in range(4))

    def forward(self, x):
        share = self.router(x).float().softmax(1)
        best, which = share.topk(2, 1)
        out = torch.cat([e(x) for e in self.experts], 1).gather(1, which).float()
        asked = F.one_hot(which, 4).float().sum(1).mean(0) / 2
        return (out * best / best.sum(1, keepdim=True)).sum(1), 4 * asked @ share.mean(0)


@healthy(gain=0.6)
def volume_of_a_cell_from_its_scatter(folder):
    """Four sorts of blood cells, each with a curve of its own; the forward pass runs in bfloat16."""
    seeded(10066)
    net = Experts()
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    middles, ways = 1.5 * torch.randn(4, 6), torch.randn(4, 6)

    def cells(rows):
        sort = torch.randint(4, (rows,))
        x = middles[sort] + 0.6 * torch.randn(rows, 6)
        return x, (x * ways[sort]).sum(1).mul(0.7).sin() + 0.5 * (sort - 1.5) + 0.05 * torch.randn(rows)

    def loss_of(step):
        x, y = cells(96)
        with torch.autocast("cpu", torch.bfloat16):
            found, load = net(x)
        return F.mse_loss(found, y) + 0.01 * load

    def error():
        x, y = cells(1024)
        return F.mse_loss(net(x)[0], y)

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, error))
