"""Sound trainings of an odd make: energies, flows, a dreaming machine, hard choices, ternary weights, spikes."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR
from trainings import TREATMENT
from unseen import Outcome, dense, fit, healthy, score_of, seeded
from unseen.tasks import clipped, rounds, tend

import gradwatch


def distance(a, b):
    """The energy distance of two clouds of points."""
    return float(2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean())


@healthy()
def veins_of_marble(folder):
    """An energy model with a replay buffer of Langevin chains: its loss stays about zero all along."""
    seeded(2226)
    net = dense(2, 64, 64, 1, act=nn.SiLU)
    optimizer = Adam(net.parameters(), 2e-3, betas=(0.5, 0.99))
    chains = torch.rand(1024, 2) * 4 - 2

    def quarry(rows):
        along = torch.rand(rows) * 4 - 2
        return torch.stack([along, (2 * along).sin()], 1) + 0.15 * torch.randn(rows, 2)

    def settle(x, beats):
        for _ in range(beats):
            x = x.detach().requires_grad_()
            slope = torch.autograd.grad(net(x).sum(), x)[0]
            x = x - 0.02 * slope + 0.2 * torch.randn_like(x)
        return x.detach().clamp(-3, 3)

    def loss_of(step):
        rows = torch.randint(1024, (128,))
        start = torch.where(torch.rand(128, 1) < 0.05, torch.rand(128, 2) * 4 - 2, chains[rows])
        chains[rows] = settle(start, 10)
        real, dreamt = net(quarry(128)), net(chains[rows])
        gap = real.mean() - dreamt.mean()
        return gap + 0.02 * (real.square() + dreamt.square()).mean(), {"gap": gap}

    def score():
        return distance(settle(torch.rand(500, 2) * 4 - 2, 100), quarry(500))

    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=LinearLR(optimizer, 1.0, 0.05, 400))


class Coupling(nn.Module):
    """Half of the values shift and scale the other half."""

    def __init__(self, size, flip):
        super().__init__()
        self.of, self.flip = dense(size // 2, 32, size, act=nn.Tanh), flip
        nn.init.zeros_(self.of[-1].weight)
        nn.init.zeros_(self.of[-1].bias)

    def forward(self, x):
        still, moved = x.chunk(2, 1)[:: -1 if self.flip else 1]
        scale, shift = self.of(still).chunk(2, 1)
        scale = 2 * scale.tanh()
        moved = moved * scale.exp() + shift
        return torch.cat([moved, still] if self.flip else [still, moved], 1), scale.sum(1)


@healthy()
def varnish_of_a_violin(folder):
    """A flow over colours that hardly vary: the negative log-likelihood ends far below zero."""
    seeded(2227)
    net = nn.ModuleList(Coupling(6, flip=bool(i % 2)) for i in range(4))
    optimizer = AdamW(net.parameters(), 3e-3, weight_decay=1e-3)
    layers = torch.randn(2, 6)

    def surprise(step):
        x = 0.5 * (torch.randn(128, 2) @ layers).tanh() + 0.03 * torch.randn(128, 6)
        volume = 0
        for part in net:
            x, more = part(x)
            volume = volume + more
        return (0.5 * x.square().sum(1) + 3 * math.log(2 * math.pi) - volume).mean()

    return fit(
        folder, net, optimizer, surprise, 500,
        score=score_of(surprise), before_step=clipped(net, 5.0), schedule=CosineAnnealingLR(optimizer, 500),
    )  # fmt: skip


@healthy()
def ripening_of_cheese(folder):
    """Reptile: the gradient is the way from the start to where five steps on a cheese lead, at a rate of one."""
    seeded(2228)
    net = dense(1, 32, 32, 1, act=nn.Tanh)
    optimizer = SGD(net.parameters(), 1.0)
    schedule = LinearLR(optimizer, 1.0, 0.02, 220)
    day = torch.linspace(-1, 1, 20)[:, None]

    def cheese():
        high, fast, when = 2 + torch.rand(1), 2 + 4 * torch.rand(1), torch.rand(1) - 0.5
        return 6 - high * (fast * (day - when)).sigmoid()

    @torch.enable_grad()
    def adapted(acidity, beats=5):
        weights = dict(net.named_parameters())
        for _ in range(beats):
            loss = F.mse_loss(torch.func.functional_call(net, weights, (day,)), acidity)
            slopes = torch.autograd.grad(loss, list(weights.values()))
            moved = [(w - 0.03 * g).detach() for w, g in zip(weights.values(), slopes, strict=True)]
            weights = {name: w.requires_grad_() for name, w in zip(weights, moved, strict=True)}
        return weights, float(F.mse_loss(torch.func.functional_call(net, weights, (day,)), acidity).detach())

    def one(step):
        ends = [adapted(cheese()) for _ in range(4)]
        for name, p in net.named_parameters():
            p.grad = p.detach() - torch.stack([weights[name].detach() for weights, _ in ends]).mean(0)
        optimizer.step()
        schedule.step()
        return {"loss": sum(loss for _, loss in ends) / 4}

    return tend(folder, net, optimizer, one, 220, score_of(lambda step: adapted(cheese())[1], 30))


@healthy()
def family_tree_of_finches(folder):
    """Wake and sleep: one optimizer learns to dream birds, another to name what was dreamt."""
    seeded(2229)
    dream = nn.ModuleDict({"prior": nn.Linear(1, 8), "birds": dense(8, 48, 24, act=nn.Tanh)})
    name_it = dense(24, 48, 8, act=nn.Tanh)
    wake, sleep = Adam(dream.parameters(), 3e-3), Adam(name_it.parameters(), 3e-3)
    descent = 3 * torch.randn(4, 24)

    def seen(rows=64):
        ancestors = torch.randint(2, (rows, 4)).float() * 2 - 1
        return torch.bernoulli((ancestors @ descent).sigmoid())

    def unlikely(logits, bits):
        return F.binary_cross_entropy_with_logits(logits, bits, reduction="none").sum(1)

    def dreaming(birds):
        names = torch.bernoulli(name_it(birds).sigmoid()).detach()
        rows = torch.ones(len(birds), 1)
        return names, (unlikely(dream["prior"](rows), names) + unlikely(dream["birds"](names), birds))

    def bound():
        with torch.no_grad():
            birds = seen(1000)
            names, cost = dreaming(birds)
            return float((cost - unlikely(name_it(birds), names)).mean())

    def take(optimizer, loss, watch):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watch.log(loss=loss.detach())

    first = bound()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(dream, wake)}
    w_dream = gradwatch.watch(dream, wake, name="dream", **options)
    w_name = gradwatch.watch(name_it, sleep, name="names", run=w_dream, **options)
    with w_dream, w_name:
        for _ in range(700):
            take(wake, dreaming(seen())[1].mean(), w_dream)
            with torch.no_grad():
                names = torch.bernoulli(dream["prior"](torch.ones(64, 1)).sigmoid())
                birds = torch.bernoulli(dream["birds"](names).sigmoid())
            take(sleep, unlikely(name_it(birds), names).mean(), w_name)
    return Outcome(gradwatch.open_history(w_dream.dir.parent), first, bound())


@healthy()
def recipes_for_dyed_wool(folder):
    """Four dyers share out the skeins: first softly, at the end each skein goes to the one who errs least."""
    seeded(2230)
    net = nn.ModuleList(dense(3, 24, 3, act=nn.Tanh) for _ in range(4))
    optimizer = Adam(net.parameters(), 5e-3)
    vats = torch.randn(4, 3, 3)
    pigment, vat = torch.randn(1200, 3), torch.randint(4, (1200,))
    colour = torch.einsum("ni,nij->nj", pigment, vats[vat]).tanh() + 0.03 * torch.randn(1200, 3)
    draw = rounds(100, pigment[:1000], colour[:1000])

    def errors(x, y):
        return torch.stack([(dyer(x) - y).square().mean(1) for dyer in net], 1)

    def loss_of(step):
        error = errors(*draw())
        heat = max(0.5 * (1 - step / 300), 0.0)
        share = (-error.detach() / heat).softmax(1) if heat > 0.01 else F.one_hot(error.argmin(1), 4).float()
        return (share * error).sum(1).mean(), {"heat": heat}

    def least():
        with torch.no_grad():
            return float(errors(pigment[1000:], colour[1000:]).min(1)[0].mean())

    schedule = CosineAnnealingLR(optimizer, 600)
    return fit(folder, net, optimizer, loss_of, 600, score=least, schedule=schedule)


class Ternary(nn.Linear):
    """Weights of minus one, nought and one times a scale; their gradients pass straight through."""

    def forward(self, x):
        w = self.weight
        kept = (w.abs() > 0.7 * w.abs().mean()).float()
        scale = (w.abs() * kept).sum() / kept.sum()
        return F.linear(x, w + (scale * kept * w.sign() - w).detach(), self.bias)


@healthy()
def brine_of_salt_pans(folder):
    """Ternary weights between two layers of full precision; what lies behind them is held within one."""
    seeded(2231)
    net = nn.Sequential(
        nn.Linear(7, 64), nn.BatchNorm1d(64), nn.ReLU(),
        Ternary(64, 64), nn.BatchNorm1d(64), nn.ReLU(),
        Ternary(64, 64), nn.BatchNorm1d(64), nn.ReLU(),
        nn.Linear(64, 1),
    )  # fmt: skip
    optimizer = Adam(net.parameters(), 3e-3)
    weather = torch.randn(3000, 7)
    wind, sun = weather[:, :1], weather[:, 1:2]
    brine = (wind + 0.5 * sun.square()).tanh() + 0.5 * (weather[:, 2:3] * wind) + 0.05 * torch.randn(3000, 1)
    draw = rounds(64, weather[:2600], brine[:2600])

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    def hold(step):
        with torch.no_grad():
            for part in net:
                if isinstance(part, Ternary):
                    part.weight.clamp_(-1, 1)

    def held_out():
        net.eval()
        with torch.no_grad():
            error = float(F.mse_loss(net(weather[2600:]), brine[2600:]))
        net.train()
        return error

    schedule = LinearLR(optimizer, 1.0, 0.0, 600)
    return fit(folder, net, optimizer, loss_of, 600, score=held_out, after_step=hold, schedule=schedule)


class Spike(torch.autograd.Function):
    """One where a voltage is above its threshold; the slope is that of a fast sigmoid."""

    @staticmethod
    def forward(ctx, voltage):
        ctx.save_for_backward(voltage)
        return (voltage > 0).float()

    @staticmethod
    def backward(ctx, grad):
        (voltage,) = ctx.saved_tensors
        return grad / (1 + 5 * voltage.abs()).square()


@healthy()
def slopes_before_an_avalanche(folder):
    """Spiking neurons that leak, over twelve hours of snow, wind and warmth; the slope of a spike is a stand-in."""
    seeded(2232)
    net = nn.ModuleDict({"inward": nn.Linear(6, 64), "deeper": nn.Linear(64, 64), "danger": nn.Linear(64, 3)})
    optimizer = Adam(net.parameters(), 3e-3)
    load = torch.randn(6)

    def winter(rows=48):
        hours = torch.randn(rows, 12, 6) + torch.randn(rows, 1, 6)
        stress = (hours @ load).tanh().mean(1)
        return hours, (stress > -0.3).long() + (stress > 0.3).long()

    def loss_of(step):
        hours, danger = winter()
        first = second = torch.zeros(len(hours), 64)
        spikes = []
        for hour in net["inward"](hours).unbind(1):
            first = 0.9 * first * (first < 1) + hour
            second = 0.9 * second * (second < 1) + net["deeper"](Spike.apply(first - 1))
            spikes.append(Spike.apply(second - 1))
        rate = torch.stack(spikes).mean(0)
        out = net["danger"](rate)
        right = (out.argmax(1) == danger).float().mean()
        return F.cross_entropy(out, danger), {"accuracy": right, "firing": rate.detach().mean()}

    schedule = CosineAnnealingLR(optimizer, 300)
    score = score_of(lambda step: loss_of(step)[0])
    return fit(folder, net, optimizer, loss_of, 300, score=score, schedule=schedule)
