"""Notes, strings, a kite, mushrooms, a loom and ships."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


@healthy(gain=0.5)
def varroa_mites_out_of_beekeepers_notes(folder):
    """A bag of words gives the rate of a count; four small batches make one step."""
    seeded(10050)
    words = torch.multinomial(1 / torch.arange(3.0, 303.0), 3600 * 14, replacement=True).view(3600, 14)
    rate = (1.2 + 2.2 * torch.randn(300)[words].mean(1)).exp()
    mites = torch.poisson(rate)
    net = nn.Sequential(nn.EmbeddingBag(300, 16, mode="mean"), dense(16, 32, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=0.01)
    draw = rounds(32, words[:3000], mites[:3000])

    def deviance():
        y, found = mites[3000:], net(words[3000:])[:, 0]
        return 2 * (torch.xlogy(y, y) - y * found - y + found.exp()).mean()

    def one(step):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(4):
            x, y = draw()
            loss = F.poisson_nll_loss(net(x)[:, 0], y, full=True) / 4
            loss.backward()
            total += loss.item()
        optimizer.step()
        return {"loss": total}

    return tend(folder, net, optimizer, one, 350, held_out(net, deviance))


class Denoiser(nn.Module):
    """Names the noise in a shape, told the time in sines."""

    def __init__(self, size, width):
        super().__init__()
        self.register_buffer("pace", 2.0 ** torch.arange(4))
        self.body = dense(size + 8, width, width, width, size, act=nn.SiLU)

    def forward(self, x, t):
        turns = t[:, None] * self.pace * math.pi
        return self.body(torch.cat([x, turns.sin(), turns.cos()], 1))


@healthy(gain=0.5)
def plucked_strings_out_of_hiss(folder):
    """Diffusion over the shapes of a string, a few overtones each."""
    seeded(10051)
    along = torch.linspace(0, 1, 18)[1:-1]
    overtones = torch.stack([(n * math.pi * along).sin() / n for n in (1, 2, 3)]) * 1.2
    kept = (torch.linspace(0, 1, 41)[1:] * math.pi / 2 * 0.98).cos().square()
    net = Denoiser(16, 96)
    steps = 900
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: (s + 1) / 60 if s < 60 else max(0.02, (steps - s) / (steps - 60))
    )

    def error(rows):
        shape = torch.randn(rows, 3) @ overtones
        t = torch.randint(40, (rows,))
        noise = torch.randn_like(shape)
        k = kept[t][:, None]
        return F.mse_loss(net(k.sqrt() * shape + (1 - k).sqrt() * noise, t / 40), noise)

    return fit(folder, net, optimizer, lambda step: error(96), steps, schedule=schedule,
               score=held_out(net, lambda: error(4096)))  # fmt: skip


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
        self.actor, self.critic = nn.Linear(48, 3), nn.Linear(48, 1)
        nn.init.orthogonal_(self.actor.weight, 0.1)
        nn.init.zeros_(self.actor.bias)

    def forward(self, state):
        seen = self.body(state)
        return torch.distributions.Categorical(logits=self.actor(seen)), self.critic(seen)[:, 0]


class Variational(nn.Module):
    def __init__(self, size, width, code):
        super().__init__()
        self.reads, self.writes = dense(size, width, width, 2 * code), dense(code, width, width, size)

    def forward(self, x):
        middle, spread = self.reads(x).chunk(2, 1)
        kl = 0.5 * (spread.exp() + middle.square() - 1 - spread).sum(1)
        return self.writes(middle + (spread / 2).exp() * torch.randn_like(middle)), kl


@healthy(gain=0.4)
def mushrooms_by_their_forty_marks(folder):
    """A variational autoencoder of twelve kinds with forty marks each, some of them unclear."""
    seeded(10053)
    kinds = (torch.rand(12, 40) < 0.4).float()
    marks = kinds[torch.randint(12, (3000,))]
    marks = (marks - (torch.rand(3000, 40) < 0.05).float()).abs()
    net = Variational(40, 64, 6)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
    draw = rounds(64, marks[:2500])

    def bound(x):
        found, kl = net(x)
        return F.binary_cross_entropy_with_logits(found, x, reduction="none").sum(1).mean() + kl.mean()

    return fit(folder, net, optimizer, lambda step: bound(*draw()), 700, before_step=clipped(net, 15.0),
               score=held_out(net, lambda: bound(marks[2500:])))  # fmt: skip


class Dilated(nn.Module):
    """Causal convolutions that look ever further back."""

    def __init__(self, width):
        super().__init__()
        self.enters = nn.Conv1d(1, width, 1)
        self.looks = nn.ModuleList(nn.Conv1d(width, width, 3, dilation=2**k) for k in range(4))
        self.leaves = nn.Conv1d(width, 1, 1)

    def forward(self, x):
        x = self.enters(x)
        for look in self.looks:
            x = x + look(F.pad(x, (2 * look.dilation[0], 0))).relu()
        return self.leaves(x)


@healthy(gain=0.5)
def next_tug_of_the_warp(folder):
    """The tension of a thread in the next instant, from two movements of the loom."""
    seeded(10054)
    net = Dilated(20)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 200, 0.3)

    def gap(rows):
        t = torch.arange(65.0)
        slow, quick = 14 + 8 * torch.rand(rows, 1), 5 + 3 * torch.rand(rows, 1)
        start = 6.2832 * torch.rand(2, rows, 1)
        pull = (6.2832 * t / slow + start[0]).sin() + 0.6 * (6.2832 * t / quick + start[1]).sin()
        pull = (pull + 0.03 * torch.randn_like(pull))[:, None]
        return (net(pull[:, :, :-1]) - pull[:, :, 1:])[:, :, 20:].abs().mean()

    return fit(folder, net, optimizer, lambda step: gap(24), 450, schedule=schedule,
               score=held_out(net, lambda: gap(256)))  # fmt: skip


@healthy(gain=0.4)
def ships_and_the_quays_that_take_them(folder):
    """Two towers meet in a product; all pairs at once and a quasi-Newton method."""
    seeded(10055)
    needs = torch.randn(700, 3)
    ships = (needs @ torch.randn(3, 8) / 2).tanh() + 0.05 * torch.randn(700, 8)
    quays = (needs @ torch.randn(3, 6) / 2).sin() + 0.05 * torch.randn(700, 6)
    net = nn.ModuleDict({"ship": dense(8, 24, 8, act=nn.Tanh), "quay": dense(6, 24, 8, act=nn.Tanh)})
    optimizer = torch.optim.LBFGS(net.parameters(), lr=1.0, max_iter=4, history_size=12, line_search_fn="strong_wolfe")

    def loss_of(rows):
        fit_of = net["ship"](ships[rows]) @ net["quay"](quays[rows]).T
        return F.cross_entropy(fit_of, torch.arange(len(fit_of)), label_smoothing=0.02)

    return fit(folder, net, optimizer, lambda step: loss_of(slice(0, 500)), 100, closure=True,
               score=held_out(net, lambda: loss_of(slice(500, 700))))  # fmt: skip
