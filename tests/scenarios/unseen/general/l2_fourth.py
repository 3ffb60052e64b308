"""A research vessel at sea, healthy and less usual: swell, drift, echograms, krill, heat, gliders, bathymetry."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds, tend


@healthy(0.4)
def swell_tomorrow_between_its_tenth_and_ninetieth_share(folder):
    seeded(13860)
    shares = torch.tensor([0.1, 0.5, 0.9])

    def days(rows):
        x = torch.randn(rows, 5)
        height = 0.9 * x[:, 0] + 0.5 * (2 * x[:, 1]).sin() + 0.3 * x[:, 2] * x[:, 3]
        return x, (height + (0.1 + 0.3 * torch.sigmoid(2 * x[:, 4])) * torch.randn(rows))[:, None]

    def pinball(said, y):
        gap = y - said
        return torch.maximum(shares * gap, (shares - 1) * gap).mean()

    draw = rounds(64, *days(4000))
    net = dense(5, 64, 64, 3, act=nn.SiLU)
    optimizer = torch.optim.NAdam(net.parameters(), 2e-3)
    tx, ty = days(600)
    validate = now_and_then(net, 50, lambda: {"val_loss": pinball(net(tx), ty)})

    def loss_of(step):
        x, y = draw()
        return pinball(net(x), y), validate(step)

    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, lambda: pinball(net(tx), ty)))


class Fork(nn.Module):
    """Where a drifter will be, as a mixture of Gaussians in two dimensions."""

    def __init__(self, ins, width, parts):
        super().__init__()
        self.body = nn.Sequential(dense(ins, width, width, act=nn.Tanh), nn.Tanh())
        self.weight, self.place, self.spread = (nn.Linear(width, n * parts) for n in (1, 2, 1))

    def forward(self, x):
        h = self.body(x)
        return self.weight(h).log_softmax(1), self.place(h).unflatten(1, (-1, 2)), self.spread(h).clamp(-4, 2)


@healthy(0.3)
def drifters_that_take_one_of_two_branches(folder):
    seeded(13861)

    def drifters(rows):
        x = 2 * torch.rand(rows, 2) - 1
        side = (torch.rand(rows) < torch.sigmoid(3 * x[:, 0])).float() * 2 - 1
        east = 1.5 + 0.5 * x[:, 1]
        north = side * (0.8 + 0.4 * x[:, 1].square())
        return x / 0.577, torch.stack([east, north], 1) + 0.12 * torch.randn(rows, 2)

    net = Fork(2, 48, 4)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    draw = rounds(64, *drifters(3000))
    tx, ty = drifters(500)

    def nll(x, y):
        weight, place, spread = net(x)
        far = (y[:, None] - place).square().sum(2) / (2 * (2 * spread).exp())
        return -torch.logsumexp(weight - far - 2 * spread - math.log(2 * math.pi), 1).mean()

    validate = now_and_then(net, 50, lambda: {"val_loss": nll(tx, ty)})

    def loss_of(step):
        return nll(*draw()), validate(step)

    score = held_out(net, lambda: nll(tx, ty))
    return fit(folder, net, optimizer, loss_of, 350, score=score, before_step=clipped(net, 5.0))


class Pair(nn.Module):
    """Echograms and catches in one space, with a scale that is learnt."""

    def __init__(self, width):
        super().__init__()
        self.echo = nn.Sequential(
            nn.Conv1d(1, 16, 5, stride=2, padding=2), nn.ReLU(), nn.Conv1d(16, 24, 5, stride=2, padding=2), nn.ReLU(),
            nn.Flatten(), nn.Linear(240, width),
        )  # fmt: skip
        self.catch = nn.Sequential(nn.Linear(12, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, width))
        self.scale = nn.Parameter(torch.tensor(math.log(10.0)))

    def forward(self, echo, catch):
        a, b = F.normalize(self.echo(echo), dim=1), F.normalize(self.catch(catch), dim=1)
        return self.scale.clamp(max=4.6).exp() * a @ b.T


@healthy(0.4)
def echograms_matched_with_what_the_trawl_brought_up(folder):
    seeded(13862)
    sound, count = torch.randn(6, 40) / 2.4, torch.randn(6, 12) / 2.4

    def hauls(rows):
        swarm = torch.randn(rows, 6)
        echo = (swarm @ sound).tanh() + 0.2 * torch.randn(rows, 40)
        return echo[:, None], (swarm @ count).tanh() + 0.2 * torch.randn(rows, 12)

    net = Pair(16)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    draw, test = rounds(64, *hauls(4000)), hauls(64)

    def loss_on(echo, catch):
        alike, own = net(echo, catch), torch.arange(len(echo))
        return (F.cross_entropy(alike, own) + F.cross_entropy(alike.T, own)) / 2

    def loss_of(step):
        return loss_on(*draw())

    return fit(folder, net, optimizer, loss_of, 260, score=held_out(net, lambda: loss_on(*test)))


class Spectra(nn.Module):
    """A variational autoencoder of wave spectra."""

    def __init__(self, size, code):
        super().__init__()
        self.encoder = nn.Sequential(dense(size, 64, 64, act=nn.GELU), nn.GELU())
        self.mu, self.logvar = nn.Linear(64, code), nn.Linear(64, code)
        self.decoder = dense(code, 64, 64, size, act=nn.GELU)

    def forward(self, x):
        h = self.encoder(x)
        mu, logvar = self.mu(h), self.logvar(h)
        code = mu + (0.5 * logvar).exp() * torch.randn_like(mu)
        return self.decoder(code), mu, logvar


@healthy(0.4)
def spectra_of_the_sea_surface_in_five_numbers(folder):
    seeded(13863)
    tone = torch.linspace(0, 1, 30)

    def spectra(rows):
        peak, wide, high, wind = torch.rand(4, rows, 1)
        swell = (0.5 + high) * torch.exp(-((tone - 0.15 - 0.3 * peak) ** 2) / (0.004 + 0.01 * wide))
        sea = 0.7 * wind * torch.exp(-((tone - 0.65) ** 2) / 0.02)
        return 2.2 * (swell + sea) - 0.7 + 0.1 * torch.randn(rows, 30)

    net = Spectra(30, 5)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw, test = rounds(64, spectra(4000)), spectra(500)

    def terms(x):
        back, mu, logvar = net(x)
        error = (back - x).square().sum(1).mean() / (2 * 0.25**2)
        return error, 0.5 * (mu.square() + logvar.exp() - 1 - logvar).sum(1).mean()

    def loss_of(step):
        error, kl = terms(*draw())
        logged = {"reconstruction": float(error.detach()), "kl": float(kl.detach())}
        return error + min(1.0, (step + 1) / 100) * kl, logged

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: sum(terms(test))))


class Coupling(nn.Module):
    """One half moves by what the other half says."""

    def __init__(self, width, turn):
        super().__init__()
        self.net, self.turn = dense(1, width, width, 2, act=nn.Tanh), turn
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        kept, moved = x.flip(1).chunk(2, 1) if self.turn else x.chunk(2, 1)
        scale, shift = self.net(kept).chunk(2, 1)
        scale = 1.5 * scale.tanh()
        return torch.cat([kept, moved * scale.exp() + shift], 1), scale.sum(1)


@healthy(0.15)
def where_gliders_come_up_round_an_eddy(folder):
    seeded(13864)

    def surfacings(rows):
        angle = math.pi * torch.rand(rows)
        other = (torch.rand(rows) < 0.5).float()
        x = torch.stack([angle.cos() + other - 0.5, (1 - 2 * other) * angle.sin() + 0.5 * other - 0.25], 1)
        return (x + 0.08 * torch.randn(rows, 2)) / 0.8

    flow = nn.ModuleList(Coupling(32, k % 2 == 1) for k in range(8))
    optimizer = torch.optim.Adam(flow.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 320)
    draw, test = rounds(128, surfacings(5000)), surfacings(800)

    def nll(x):
        logdet = 0.0
        for layer in flow:
            x, change = layer(x)
            logdet = logdet + change
        return (0.5 * x.square().sum(1) + math.log(2 * math.pi) - logdet).mean()

    validate = now_and_then(flow, 40, lambda: {"val_loss": nll(test)})

    def loss_of(step):
        return nll(*draw()), validate(step)

    return fit(folder, flow, optimizer, loss_of, 320, score=held_out(flow, lambda: nll(test)), schedule=schedule,
               before_step=clipped(flow, 2.0))  # fmt: skip


class Swarm(nn.Module):
    """Of a set of animals, whose order means nothing, the number of kinds and how dense they stand."""

    def __init__(self):
        super().__init__()
        self.each, self.all = dense(3, 48, 48), dense(96, 64, 2)

    def forward(self, x):
        h = F.relu(self.each(x))
        return self.all(torch.cat([h.mean(1), h.amax(1)], 1))


@healthy(0.5)
def krill_in_a_swarm_counted_as_a_set(folder):
    seeded(13865)

    def swarms(rows):
        centre, tight = torch.randn(rows, 1, 3), 0.3 + torch.rand(rows, 1, 1)
        x = centre + tight * torch.randn(rows, 24, 3)
        far = centre.norm(dim=2)[:, 0] / 0.7 - 2.2
        return x, torch.stack([(tight[:, 0, 0] - 0.8) / 0.29, far], 1)

    net = Swarm()
    optimizer = torch.optim.RMSprop(net.parameters(), 1e-3, alpha=0.95)
    draw = rounds(64, *swarms(3000))
    tx, ty = swarms(500)
    validate = now_and_then(net, 46, lambda: {"val_loss": F.smooth_l1_loss(net(tx), ty)})

    def loss_of(step):
        x, y = draw()
        return F.smooth_l1_loss(net(x), y), validate(step)

    return fit(folder, net, optimizer, loss_of, 320, score=held_out(net, lambda: F.smooth_l1_loss(net(tx), ty)))


@healthy(0.6)
def warmth_sinking_into_the_mixed_layer_by_its_law(folder):
    seeded(13866)
    net = dense(2, 40, 40, 40, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995)
    spread = 0.1

    def begin(z):
        return (math.pi * z).sin() + 0.5 * (2 * math.pi * z).sin()

    def law(rows):
        at = torch.rand(rows, 2, requires_grad=True)
        u = net(at)
        first = torch.autograd.grad(u.sum(), at, create_graph=True)[0]
        second = torch.autograd.grad(first[:, 1].sum(), at, create_graph=True)[0]
        return (first[:, 0] - spread * second[:, 1]).square().mean()

    def loss_of(step):
        z, t, ends = torch.rand(64, 1), torch.rand(64, 1), torch.randint(2, (64, 1)).float()
        start = (net(torch.cat([torch.zeros(64, 1), z], 1)) - begin(z)).square().mean()
        border = net(torch.cat([t, ends], 1)).square().mean()
        physics = law(128)
        logged = {"physics": float(physics.detach()), "start": float(start.detach())}
        return physics + 5 * start + 5 * border, logged

    t, z = torch.rand(2, 500, 1)
    truth = (-spread * math.pi**2 * t).exp() * (math.pi * z).sin()
    truth = truth + 0.5 * (-4 * spread * math.pi**2 * t).exp() * (2 * math.pi * z).sin()
    score = held_out(net, lambda: F.mse_loss(net(torch.cat([t, z], 1)), truth))
    return fit(folder, net, optimizer, loss_of, 450, score=score, schedule=schedule)


@healthy(0.3)
def a_sampler_that_picks_its_depth_at_each_station(folder):
    seeded(13867)
    best = torch.randn(6, 5)
    policy = nn.ModuleDict({"actor": dense(6, 64, 5, act=nn.Tanh), "critic": dense(6, 64, 1, act=nn.Tanh)})
    optimizer = torch.optim.Adam(policy.parameters(), 3e-3)

    def one(step):
        water = torch.randn(64, 6)
        choice = torch.distributions.Categorical(logits=policy["actor"](water))
        depth = choice.sample()
        reward = (water @ best / 2.4).gather(1, depth[:, None])[:, 0] + 0.3 * torch.randn(64)
        value = policy["critic"](water)[:, 0]
        advantage = (reward - value).detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        actor, critic = -(choice.log_prob(depth) * advantage).mean(), F.mse_loss(value, reward)
        entropy = choice.entropy().mean()
        loss = actor + 0.5 * critic - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        return {"loss": loss, "return": float(reward.mean()), "entropy": float(entropy.detach())}

    test = torch.randn(600, 6)

    def regret():
        worth = test @ best / 2.4
        return (worth.amax(1) - (worth * policy["actor"](test).softmax(1)).sum(1)).mean()

    return tend(folder, policy, optimizer, one, 350, held_out(policy, regret))


class Bathymetry(nn.Module):
    """The depth of the sea at a place, by random waves of its coordinates."""

    def __init__(self, width):
        super().__init__()
        self.register_buffer("waves", 3 * torch.randn(2, 48))
        self.body = dense(96, width, width, 1)

    def forward(self, x):
        angle = x @ self.waves
        return self.body(torch.cat([angle.sin(), angle.cos()], 1))


@healthy(0.5)
def a_sea_chart_filled_in_between_the_tracks(folder):
    seeded(13868)
    hill, high = 2 * torch.rand(24, 2) - 1, torch.randn(24)

    def depth(x):
        peaks = high * torch.exp(-torch.cdist(x, hill).square() / 0.06)
        return (peaks.sum(1, keepdim=True) - 0.05) / 0.85

    net = Bathymetry(64)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=350)
    x, tx = 2 * torch.rand(6000, 2) - 1, 2 * torch.rand(600, 2) - 1
    draw, ty = rounds(128, x, depth(x) + 0.05 * torch.randn(6000, 1)), depth(tx)
    validate = now_and_then(net, 46, lambda: {"val_loss": F.mse_loss(net(tx), ty)})

    def loss_of(step):
        place, deep = draw()
        return F.mse_loss(net(place), deep), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 350, score=score, schedule=schedule)


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), dense(width, 2 * width, width, act=nn.SiLU)

    def forward(self, x):
        return x + self.inner(self.norm(x))


@healthy(0.5)
def hydrophone_noise_named_by_a_slow_copy(folder):
    seeded(13869)
    sound = torch.randn(7, 3, 24)

    def noises(rows):
        y = torch.randint(7, (rows,))
        return sound[y, torch.randint(3, (rows,))] + 0.9 * torch.randn(rows, 24), y

    net = nn.Sequential(nn.Linear(24, 48), Residual(48), Residual(48), nn.LayerNorm(48), nn.Linear(48, 7))
    slow = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
    draw = rounds(64, *noises(4000))
    tx, ty = noises(600)
    validate = now_and_then(slow, 46, judged(slow, tx, ty))

    def follow(step):
        with torch.no_grad():
            for mine, its in zip(slow.parameters(), net.parameters(), strict=True):
                mine.lerp_(its, 0.05)

    def loss_of(step):
        x, y = draw()
        said = net(x)
        right = (said.argmax(1) == y).float().mean()
        loss = F.cross_entropy(said, y, label_smoothing=0.05)
        return loss, {"accuracy": float(right), **validate(step)}

    score = held_out(slow, lambda: F.cross_entropy(slow(tx), ty))
    return fit(folder, net, optimizer, loss_of, 300, score=score, after_step=follow)
