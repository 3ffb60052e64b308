"""Nine ordinary trainings that go well."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import circle, clipped, held_out, in_turn, rounds, tend


@healthy(0.5)
def kinds_of_cloud_over_an_observatory(folder):
    seeded(10550)

    def block(a, b):
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2))

    net = nn.Sequential(block(1, 16), block(16, 32), nn.Flatten(), nn.Dropout(0.2), nn.Linear(512, 4))
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=200)

    def clouds(rows):
        kind = torch.randint(4, (rows,))
        size = torch.tensor([2, 4, 8, 16])[kind]
        picture = torch.stack([F.interpolate(torch.randn(1, 1, int(s), int(s)), 16)[0] for s in size])
        return picture + 0.5 * torch.randn(rows, 1, 16, 16), kind

    pictures, kinds = clouds(1600)
    draw = rounds(64, pictures[:1200], kinds[:1200])

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": (said.argmax(1) == y).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(pictures[1200:]), kinds[1200:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score, schedule=schedule)


@healthy(0.4)
def frost_before_the_morning_from_the_evening(folder):
    seeded(10551)
    net = nn.ModuleDict({"memory": nn.LSTM(3, 32, 2, batch_first=True, dropout=0.1), "head": nn.Linear(32, 1)})
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    hours = torch.arange(18.0)

    def evenings(rows):
        start, clear, damp = torch.randn(rows, 3, 1).unbind(1)
        cooling = (1 + clear.sigmoid()) * (1 - 0.4 * damp.tanh())
        heat = start - cooling * hours / 18 + 0.1 * torch.randn(rows, 18)
        seen = torch.stack([heat, clear + 0.3 * torch.randn(rows, 18), damp + 0.3 * torch.randn(rows, 18)], 2)
        return seen, start - 2 * cooling

    def loss_of(step):
        x, y = evenings(64)
        return F.mse_loss(net["head"](net["memory"](x)[0][:, -1]), y)

    x, y = evenings(400)
    score = held_out(net, lambda: F.mse_loss(net["head"](net["memory"](x)[0][:, -1]), y))
    return fit(folder, net, optimizer, loss_of, 250, score=score, before_step=clipped(net, 1.0))


@healthy(0.25)
def spectra_of_the_night_sky_through_a_code(folder):
    seeded(10552)
    read, write = dense(40, 64, 8), dense(4, 64, 40)
    net = nn.ModuleDict({"read": read, "write": write})
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    wave = torch.linspace(-1, 1, 40)

    def spectra(rows):
        hot, line, deep = torch.randn(rows, 3, 1).unbind(1)
        return hot * wave + deep * torch.exp(-((wave - line / 2) ** 2) / 0.02) + 0.1 * torch.randn(rows, 40)

    def parts(x):
        mean, log_var = net["read"](x).chunk(2, 1)
        again = net["write"](mean + torch.randn_like(mean) * (log_var / 2).exp())
        off = (again - x).square().sum(1).mean()
        kl = -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum(1).mean()
        return off, kl

    def loss_of(step):
        off, kl = parts(spectra(64))
        beta = 0.2 * min(1, step / 150)
        return off + beta * kl, {"reconstruction": off, "kl": kl}

    test = spectra(512)
    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: parts(test)[0]))


@healthy(0.3)
def rings_of_ice_around_a_moon(folder):
    seeded(10553)
    make, judge = dense(6, 64, 64, 2), dense(2, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.9))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.9))

    def judge_loss():
        real, fake = judge(circle()), judge(make(torch.randn(64, 6)).detach())
        return F.softplus(-real).mean() + F.softplus(fake).mean()

    def score():
        with torch.no_grad():
            return float((make(torch.randn(512, 6)).norm(dim=1) - 2).abs().mean())

    def make_loss():
        return F.softplus(-judge(make(torch.randn(64, 6)))).mean()

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 500, score)


class Teller(nn.Module):
    """A decoder with a causal mask, and its embedding tied to its head."""

    def __init__(self, kinds, length, width=32):
        super().__init__()
        self.kind, self.place = nn.Embedding(kinds, width), nn.Embedding(length, width)
        for table in (self.kind, self.place):
            nn.init.normal_(table.weight, std=0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 96, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.body, self.norm = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.LayerNorm(width)
        self.register_buffer("mask", torch.full((length, length), -torch.inf).triu(1))

    def forward(self, seen):
        x = self.kind(seen) + self.place(torch.arange(seen.shape[1]))
        return self.norm(self.body(x, self.mask)) @ self.kind.weight.T


@healthy(0.3)
def watchwords_of_the_shipping_forecast(folder):
    seeded(10554)
    kinds, length, steps = 16, 24, 300
    net = Teller(kinds, length)
    matrices = [p for p in net.parameters() if p.ndim > 1]
    others = [p for p in net.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, 3e-3, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: (s + 1) / 40 if s < 40 else 0.1 + 0.45 * (1 + math.cos(math.pi * (s - 40) / (steps - 40)))
    )
    follows = (3 * torch.randn(kinds, kinds)).softmax(1)

    def words(rows):
        said = [torch.randint(kinds, (rows,))]
        for _ in range(length):
            said.append(torch.multinomial(follows[said[-1]], 1)[:, 0])
        return torch.stack(said, 1)

    def loss_on(text):
        return F.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    test = words(200)
    score, clip = held_out(net, lambda: loss_on(test)), clipped(net, 1.0)
    return fit(folder, net, optimizer, lambda step: loss_on(words(24)), steps, score=score, schedule=schedule,
               before_step=clip)  # fmt: skip


class Outliner(nn.Module):
    """Down once and up again, with a skip."""

    def __init__(self):
        super().__init__()

        def two(a, b):
            return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(4, b), nn.ReLU(),
                                 nn.Conv2d(b, b, 3, padding=1), nn.GroupNorm(4, b), nn.ReLU())  # fmt: skip

        self.high, self.low, self.again = two(3, 8), two(8, 16), two(24, 8)
        self.up, self.last = nn.Upsample(scale_factor=2), nn.Conv2d(8, 1, 1)

    def forward(self, x):
        high = self.high(x)
        low = self.up(self.low(F.max_pool2d(high, 2)))
        return self.last(self.again(torch.cat([high, low], 1)))


@healthy(0.5)
def floes_outlined_in_a_frozen_bay(folder):
    seeded(10555)
    net = Outliner()
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)

    def bays(rows):
        rough = F.interpolate(torch.randn(rows, 1, 5, 5), 20, mode="bilinear")
        floe = (rough > 0.2).float()
        return floe * torch.tensor([0.8, 0.9, 1.0])[:, None, None] + 0.4 * torch.randn(rows, 3, 20, 20), floe

    def loss_on(x, y):
        said = net(x)
        share = said.sigmoid()
        dice = 1 - (2 * (share * y).sum() + 1) / (share.sum() + y.sum() + 1)
        return F.binary_cross_entropy_with_logits(said, y) + dice, {"dice": 1 - dice}

    test = bays(48)
    score = held_out(net, lambda: loss_on(*test)[0])
    return fit(folder, net, optimizer, lambda step: loss_on(*bays(8)), 150, score=score)


@healthy(0.4)
def figures_on_a_flood_marker_after_a_repaint(folder):
    seeded(10556)
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
    y = torch.tensor(digits.target)
    body = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten())
    before = nn.Sequential(body, nn.Linear(512, 10))
    learn, draw = torch.optim.Adam(before.parameters(), 2e-3), rounds(64, x[:800], y[:800])
    for _ in range(120):
        a, b = draw()
        learn.zero_grad()
        F.cross_entropy(before(a), b).backward()
        learn.step()
    painted = -x.flip(3)
    net = nn.Sequential(body.requires_grad_(False), nn.Linear(512, 10))
    optimizer = torch.optim.Adam(net[1].parameters(), 1e-3)
    draw = rounds(32, painted[800:1500], y[800:1500])

    def loss_of(step):
        a, b = draw()
        return F.cross_entropy(net(a), b)

    score = held_out(net, lambda: F.cross_entropy(net(painted[1500:]), y[1500:]))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


@healthy(0.4)
def a_glider_taught_to_stay_in_thermals(folder):
    seeded(10557)
    net = nn.ModuleDict({"act": dense(2, 48, 3, act=nn.Tanh), "value": dense(2, 48, 1, act=nn.Tanh)})
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def glide(rows, hours=12):
        gap, drift = 2 * torch.rand(rows) - 1, 0.2 * torch.randn(rows)
        seen, done, got = [], [], []
        for _ in range(hours):
            state = torch.stack([gap, 5 * drift], 1)
            with torch.no_grad():
                action = torch.distributions.Categorical(logits=net["act"](state)).sample()
            gap = (gap + drift + 0.3 * (action - 1)).clamp(-2, 2)
            seen.append(state)
            done.append(action)
            got.append(-gap.abs())
        returns, follows = [], torch.zeros(rows)
        for reward in reversed(got):
            follows = reward + 0.8 * follows
            returns.insert(0, follows)
        return torch.stack(seen), torch.stack(done), torch.stack(returns), torch.stack(got).mean()

    def one(step):
        seen, done, returns, got = glide(32)
        policy, value = torch.distributions.Categorical(logits=net["act"](seen)), net["value"](seen)[..., 0]
        gain = (returns - value).detach()
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        actor, critic = -(policy.log_prob(done) * gain).mean(), F.mse_loss(value, returns)
        entropy = policy.entropy().mean()
        loss = actor + 0.5 * critic - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return {"loss": loss, "actor_loss": actor, "critic_loss": critic, "entropy": entropy, "reward": got}

    return tend(folder, net, optimizer, one, 200, lambda: -float(glide(512)[3]))


@healthy(0.4)
def the_same_storm_seen_from_two_ships(folder):
    seeded(10558)
    net = nn.ModuleDict({"body": dense(24, 96, 48), "project": dense(48, 48, 16)})
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=1e-2)
    basis = torch.randn(6, 24)

    def seen(storm):
        x = (storm @ basis).tanh() + 0.2 * torch.randn(len(storm), 24)
        return x * (torch.rand_like(x) > 0.15)

    def loss_on(storm):
        both = torch.cat([seen(storm), seen(storm)])
        z = F.normalize(net["project"](net["body"](both).relu()), dim=1)
        table = (z @ z.T / 0.2).fill_diagonal_(-torch.inf)
        rows = len(storm)
        return F.cross_entropy(table, torch.arange(2 * rows).roll(rows))

    test = torch.randn(128, 6)
    return fit(folder, net, optimizer, lambda step: loss_on(torch.randn(128, 6)), 250,
               score=held_out(net, lambda: loss_on(test)))  # fmt: skip
