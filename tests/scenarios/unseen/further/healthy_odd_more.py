"""Healthy trainings of an unusual make: slopes under noise, tours, bounds, duals, springs, nets that write nets."""

from __future__ import annotations

import itertools
import math

import torch
from nets import batches, digits
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded
from unseen.tasks import tend

# ------------------------------------------------------------------------------------------------ densities and bounds


@healthy()
def moons_felt_at_twelve_loudnesses(folder):
    """Denoising score matching at twelve sizes of noise, weighed by their squares; what is scored is an average."""
    seeded(2079)
    net = dense(3, 96, 96, 2, act=nn.SiLU)
    shadow = optim.swa_utils.AveragedModel(net, multi_avg_fn=optim.swa_utils.get_ema_multi_avg_fn(0.98))
    sizes = torch.logspace(0.3, -1, 12)

    def moons(n):
        angle, side = math.pi * torch.rand(n), torch.randint(2, (n,)).float()
        x = torch.stack([angle.cos() + side, angle.sin() * (1 - 2 * side) + side / 2], 1)
        return (x - torch.tensor([0.5, 0.25])) * 1.5

    def error(model):
        def loss_of(step):
            x, at = moons(128), torch.randint(12, (128,))
            size, noise = sizes[at][:, None], torch.randn(128, 2)
            found = model(torch.cat([(x + size * noise) / (1 + size.square()).sqrt(), size.log()], 1)) / size
            return 0.5 * (size * found + noise).square().sum(1).mean()

        return loss_of

    first = score_of(error(shadow), 16)
    optimizer = optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, optimizer, error(net), 800, score=first, after_step=lambda _: shadow.update_parameters(net))


@healthy(0.4)
def parcels_delivered_by_one_who_points(folder):
    """A pointer net by REINFORCE against a greedy copy that is replaced when it is beaten; seven stops."""
    seeded(2080)
    stops = 7

    class Courier(nn.Module):
        def __init__(self):
            super().__init__()
            self.lift, self.ask, self.first = nn.Linear(2, 48), nn.Linear(144, 48), nn.Parameter(torch.zeros(96))
            self.read = nn.TransformerEncoderLayer(48, 4, 96, dropout=0.0, batch_first=True)
            self.key = nn.Linear(48, 48, bias=False)

        def forward(self, x, greedy=False):
            h = self.read(self.lift(x))
            key, whole, rows = self.key(h), h.mean(1), torch.arange(len(x))
            seen, tour, chance = torch.zeros(x.shape[:2], dtype=torch.bool), [], 0
            for i in range(stops):
                ends = torch.cat([h[rows, tour[0]], h[rows, tour[-1]]], 1) if i else self.first.expand(len(x), -1)
                query = self.ask(torch.cat([whole, ends], 1))
                logit = 10 * ((key @ query[:, :, None])[:, :, 0] / math.sqrt(48)).tanh()
                share = logit.masked_fill(seen, -math.inf).log_softmax(1)
                pick = share.argmax(1) if greedy else torch.multinomial(share.exp(), 1)[:, 0]
                chance = chance + share[rows, pick]
                seen = seen.scatter(1, pick[:, None], True)
                tour.append(pick)
            way = x[rows[:, None], torch.stack(tour, 1)]
            return (way - way.roll(1, 1)).norm(dim=2).sum(1), chance

    net, rival = Courier(), Courier()
    rival.load_state_dict(net.state_dict())
    optimizer = optim.Adam(net.parameters(), 1e-3)
    ways = torch.tensor([(0, *w) for w in itertools.permutations(range(1, stops))])
    test = torch.rand(200, stops, 2)
    best = torch.stack([(x[ways] - x[ways].roll(1, 1)).norm(dim=2).sum(1).amin() for x in test])

    def length(model):
        with torch.no_grad():
            return float((model(test, greedy=True)[0] - best).mean())

    def one(step):
        x = torch.rand(128, stops, 2)
        long, chance = net(x)
        with torch.no_grad():
            usual = rival(x, greedy=True)[0]
        loss = ((long.detach() - usual) * chance).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        if step % 40 == 39 and length(net) < length(rival):
            rival.load_state_dict(net.state_dict())
        return {"loss": loss.detach(), "return": -long.mean()}

    return tend(folder, net, optimizer, one, 240, lambda: length(net))


@healthy(0.15)
def codes_that_are_paid_for_little_by_little(folder):
    """A variational autoencoder; the weight of the divergence rises from 0 to 1; a twentieth of a nat is free."""
    seeded(2081)
    net = nn.ModuleDict({"reader": dense(64, 128, 16), "writer": dense(8, 128, 64)})
    batch = batches(128, 2081)

    def parts(step):
        x = batch(step)[0].flatten(1)
        mean, log_var = net["reader"](x * 2 - 1).chunk(2, 1)
        z = mean + (log_var / 2).exp() * torch.randn_like(mean)
        missed = F.binary_cross_entropy_with_logits(net["writer"](z), x, reduction="sum") / len(x)
        return missed, 0.5 * (mean.square() + log_var.exp() - 1 - log_var).mean(0)

    def loss_of(step):
        missed, apart = parts(step)
        beta = min(1.0, step / 250)
        loss = missed + beta * apart.clamp_min(0.05).sum()
        return loss, {"reconstruction": missed, "kl": apart.sum(), "beta": beta}

    def bound(step):
        missed, apart = parts(step)
        return missed + apart.sum()

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 600, score=score_of(bound))


@healthy(0.5)
def sand_carried_at_prices_learned_by_two(folder):
    """The dual of transport with entropy, maximised: its loss is minus a bound and sinks below zero."""
    seeded(2082)
    net = nn.ModuleDict({"here": dense(2, 64, 64, 1, act=nn.SiLU), "there": dense(2, 64, 64, 1, act=nn.SiLU)})
    eps = 0.5

    def loss_of(step):
        x = torch.randn(128, 2) * 0.5
        y = torch.randn(128, 2) * 0.4 + torch.tensor([1.5, -1.0]) * (1 - 2 * torch.randint(2, (128, 1)))
        u, v = net["here"](x), net["there"](y)
        cost = torch.cdist(x, y).square() / 2
        gap = (u + v.T - cost) / eps
        beyond = torch.where(gap < 3, gap.clamp_max(3).exp(), math.exp(3) * (gap - 2))
        return -(u.mean() + v.mean() - eps * beyond.mean())

    optimizer = optim.Adam(net.parameters(), 1e-3)
    rate = optim.lr_scheduler.CosineAnnealingLR(optimizer, 600)
    return fit(folder, net, optimizer, loss_of, 600, schedule=rate)


# ------------------------------------------------------------------------------------------- slopes of slopes, written


@healthy(0.7)
def three_weights_on_springs_by_what_they_conserve(folder):
    """A Hamiltonian net: how a chain moves is the turned slope of one number; the slope is differentiated again."""
    seeded(2083)
    net = dense(6, 96, 96, 1, act=nn.Softplus)

    def truth(s):
        q, p = s.chunk(2, 1)
        wall = torch.zeros(len(q), 1)
        gap = torch.diff(torch.cat([wall, q, wall], 1))
        pull = gap + 0.1 * gap**3
        return torch.cat([p, pull[:, 1:] - pull[:, :-1]], 1)

    def loss_of(step):
        s = torch.randn(128, 6).requires_grad_()
        (slope,) = torch.autograd.grad(net(s).sum(), s, create_graph=True)
        dq, dp = slope.chunk(2, 1)
        return F.mse_loss(torch.cat([dp, -dq], 1), truth(s.detach()))

    def score():
        return sum(float(loss_of(0).detach()) for _ in range(8)) / 8

    optimizer = optim.Adam(net.parameters(), 3e-3)
    rate = optim.lr_scheduler.CosineAnnealingLR(optimizer, 700)
    return fit(folder, net, optimizer, loss_of, 700, score=score, schedule=rate)


@healthy(0.7)
def tones_of_bells_by_a_net_that_writes_nets(folder):
    """A hypernetwork: three numbers of a bell give the 97 weights of a net that says how it sounds at a time."""
    seeded(2084)
    trunk, write = dense(3, 64, 64, act=nn.SiLU), nn.Linear(64, 97)
    nn.init.normal_(write.weight, std=0.3 / 8)
    with torch.no_grad():
        write.bias.copy_(
            torch.cat([2 * torch.randn(32), torch.randn(32), torch.randn(32) / math.sqrt(32), torch.zeros(1)])
        )
    net = nn.Sequential(trunk, nn.SiLU(), write)

    def loss_of(step):
        bell, t = torch.rand(48, 3) * 2 - 1, torch.rand(48, 24) * 2 - 1
        w = net(bell)
        h = torch.tanh(t[:, :, None] * w[:, None, :32] + w[:, None, 32:64])
        found = (h * w[:, None, 64:96]).sum(2) + w[:, 96:]
        a, b, c = bell[:, :, None].unbind(1)
        return F.mse_loss(found, (1 + 0.5 * a) * torch.sin((2.5 + b) * t + c))

    optimizer = optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-4)
    rate = optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=700)
    return fit(folder, net, optimizer, loss_of, 700, score=score_of(loss_of), schedule=rate)


@healthy(0.5)
def clinics_that_keep_near_the_common_model(folder):
    """FedProx with Adam at the server: what six clinics of two or three kinds each move is its gradient."""
    seeded(2085)
    x, y = digits()
    x = x.flatten(1)
    own = [torch.isin(y, torch.tensor([i, (i + 3) % 10, (i + 5) % 10])).nonzero()[:, 0] for i in range(10)]
    net, local = dense(64, 64, 10), dense(64, 64, 10)
    server = optim.Adam(net.parameters(), 0.01, betas=(0.9, 0.99), eps=1e-3)

    def one(step):
        server.zero_grad(set_to_none=False)
        clinics, losses = torch.randperm(10)[:6], []
        for p in net.parameters():
            p.grad = torch.zeros_like(p)
        for clinic in clinics:
            local.load_state_dict(net.state_dict())
            for _ in range(5):
                at = own[clinic][torch.randint(len(own[clinic]), (32,))]
                loss = F.cross_entropy(local(x[at]), y[at])
                near = sum(
                    (a - b.detach()).square().sum() for a, b in zip(local.parameters(), net.parameters(), strict=True)
                )
                slopes = torch.autograd.grad(loss + 0.05 * near, list(local.parameters()))
                with torch.no_grad():
                    for p, slope in zip(local.parameters(), slopes, strict=True):
                        p.sub_(slope, alpha=0.1)
                losses.append(loss.detach())
            with torch.no_grad():
                for p, q in zip(net.parameters(), local.parameters(), strict=True):
                    p.grad += (p - q) / len(clinics)
        server.step()
        return {"loss": torch.stack(losses).mean()}

    def score():
        with torch.no_grad():
            return F.cross_entropy(net(x), y)

    return tend(folder, net, server, one, 60, score)


@healthy(0.15)
def drawers_chosen_ever_more_sharply(folder):
    """A discrete autoencoder by Gumbel-softmax: twelve choices of eight; the temperature goes from 1 to 0.4."""
    seeded(2086)
    net = nn.ModuleDict({"reader": dense(64, 128, 96), "writer": dense(96, 128, 64)})
    batch, heat = batches(128, 2086), [1.0]

    def loss_of(step):
        heat[0] = max(0.4, math.exp(-0.002 * step))
        x = batch(step)[0].flatten(1)
        logit = net["reader"](x * 2 - 1).unflatten(1, (12, 8))
        z = F.gumbel_softmax(logit, heat[0], dim=2).flatten(1)
        missed = F.binary_cross_entropy_with_logits(net["writer"](z), x, reduction="sum") / len(x)
        share = logit.softmax(2)
        apart = (share * (logit.log_softmax(2) + math.log(8))).sum((1, 2)).mean()
        return missed + apart, {"temperature": heat[0], "kl": apart.detach()}

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 550)


@healthy(0.7)
def strokes_in_cycles_that_shrink(folder):
    """Rate in triangles that lose a part of their height in each step, the momentum against it."""
    seeded(2087)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.GroupNorm(3, 12), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1, bias=False), nn.GroupNorm(3, 24), nn.ReLU(), nn.Flatten(), nn.Linear(384, 10),
    )  # fmt: skip
    batch = batches(64, 2087)
    optimizer = optim.SGD(net.parameters(), 0.01, 0.9, nesterov=True, weight_decay=5e-4)
    rate = optim.lr_scheduler.CyclicLR(
        optimizer, 0.005, 0.08, step_size_up=60, mode="exp_range", gamma=0.996, base_momentum=0.85, max_momentum=0.95
    )

    def loss_of(step):
        x, y = batch(step)
        out = net(x[:, None])
        return F.cross_entropy(out, y, label_smoothing=0.05), {"accuracy": (out.argmax(1) == y).float().mean()}

    return fit(folder, net, optimizer, loss_of, 480, schedule=rate)
