"""Sound trainings with two passes, slow weights, teachers, no backward at all, inner loops, equilibria and energies."""

import math

import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded
from unseen.tasks import clipped, tend

# ---------------------------------------------------------------------------------------------------- a kiln, glazes


def firing(controller, kilns=32, hours=16):
    """How far the temperatures of kilns are from what was asked, when a controller sets their burners."""
    leak, power = 0.05 + 0.1 * torch.rand(kilns), 0.25 + 0.1 * torch.rand(kilns)
    peak, heat, before, missed = 0.6 + 0.4 * torch.rand(kilns), torch.zeros(kilns), torch.zeros(kilns), []
    for hour in range(hours):
        wanted = peak * math.sin(math.pi * (hour + 1) / hours)
        seen = torch.stack([wanted, heat, wanted - heat, wanted - before], 1)
        before = wanted
        heat = heat + power * torch.sigmoid(controller(seen)[:, 0]) - leak * heat - 0.02
        missed.append((heat - wanted).square())
    return torch.stack(missed).mean()


def sharpness_aware(net, loss_of, radius):
    """`before_step(step)`: the gradient is taken again, uphill by `radius`."""

    def before_step(step):
        with torch.no_grad():
            length = torch.stack([p.grad.norm() for p in net.parameters()]).norm() + 1e-12
            climbs = [p.grad * radius / length for p in net.parameters()]
            for p, climb in zip(net.parameters(), climbs, strict=True):
                p.add_(climb)
        net.zero_grad()
        loss_of(step).backward()
        with torch.no_grad():
            for p, climb in zip(net.parameters(), climbs, strict=True):
                p.sub_(climb)

    return before_step


@healthy()
def temperature_of_a_kiln(folder):
    seeded(2196)
    net = dense(4, 24, 24, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def loss_of(step):
        return firing(net)

    uphill = sharpness_aware(net, loss_of, 0.02)
    return fit(folder, net, optimizer, loss_of, 250, score=score_of(loss_of), before_step=uphill)


@healthy()
def colour_of_a_pottery_glaze(folder):
    seeded(2197)
    net, oxides = dense(8, 64, 64, 3), torch.randn(7, 3)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    slow = [p.detach().clone() for p in net.parameters()]

    def loss_of(step):
        recipe, heat = torch.randn(96, 7).mul(1.5).softmax(1), torch.rand(96, 1)
        colour = torch.sigmoid(4 * (recipe @ oxides) * (1.5 - heat) + 2 * heat - 1)
        return F.mse_loss(net(torch.cat([recipe * 4, heat * 2 - 1], 1)), 3 * colour - 1.5)

    @torch.no_grad()
    def look_ahead(step):
        if step % 6 == 5:
            for kept, p in zip(slow, net.parameters(), strict=True):
                kept.lerp_(p, 0.5)
                p.copy_(kept)

    return fit(folder, net, optimizer, loss_of, 480, score=score_of(loss_of), after_step=look_ahead)


# ------------------------------------------------------------------------------------------------ birds, blends of tea


def songs(birds, kinds=5, length=32):
    """Contours of pitch: each kind of bird has a glide and a trill of its own, each bird another beginning."""
    kind, time = torch.randint(kinds, (birds,)), torch.linspace(0, 1, length)
    glide = torch.linspace(-1, 1, kinds)[kind][:, None] * time
    trill = 0.5 * torch.sin(6.2832 * (time * (2 + kind[:, None]) + torch.rand(birds, 1)))
    return (glide + trill)[:, None], kind


def heard(song):
    """A song as a microphone would have it: louder or softer, with noise."""
    loud = 0.7 + 0.6 * torch.rand(len(song), 1, 1)
    return loud * song + 0.3 * torch.randn_like(song)


@healthy()
def songs_of_bird_species(folder):
    seeded(2198)

    def listener():
        return nn.Sequential(
            nn.Conv1d(1, 24, 7, padding=3), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(24, 32, 5, padding=2), nn.ReLU(),
            nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(128, 5),
        )  # fmt: skip

    student, teacher = listener(), listener().requires_grad_(False)
    teacher.load_state_dict(student.state_dict())
    named, unnamed, later = songs(60), songs(1500)[0], songs(1000)
    optimizer = torch.optim.AdamW(student.parameters(), 2e-3, weight_decay=1e-3)

    def loss_of(step):
        some = unnamed[torch.randint(1500, (96,))]
        trust = 4.0 * math.exp(-5 * (1 - min(1.0, step / 150)) ** 2)
        agreement = F.mse_loss(student(heard(some)).softmax(1), teacher(heard(some)).softmax(1))
        right = F.cross_entropy(student(heard(named[0])), named[1])
        return right + trust * agreement, {"supervised": float(right), "consistency": float(agreement)}

    @torch.no_grad()
    def teach(step):
        keep = min(0.98, 1 - 1 / (step + 2))
        for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
            slow.lerp_(fast, 1 - keep)

    def on_later(step):
        return F.cross_entropy(teacher(heard(later[0])), later[1])

    return fit(folder, student, optimizer, loss_of, 400, score=score_of(on_later, 2), after_step=teach)


@healthy()
def notes_of_a_tea_blend(folder):
    seeded(2199)
    blender, flavours = dense(5, 16, 6, act=nn.Tanh), torch.rand(6, 5)
    optimizer = torch.optim.Adam(blender.parameters(), 2e-2)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.994)

    def displeasure(logits, wish):
        """A panel gives whole points for each note, and it is their sum that counts."""
        cup = logits.softmax(-1) @ flavours
        return ((cup - wish).abs() * 20).round().sum(-1).mean(-1)

    def wishes(rows):
        return (2 * torch.randn(rows, 6)).softmax(1) @ flavours

    def score():
        with torch.no_grad():
            return displeasure(blender(4 * wish_list - 2), wish_list)

    def of_one(weights, wish):
        return displeasure(functional_call(blender, weights, (4 * wish - 2,)), wish)

    @torch.no_grad()
    def one(step, sigma=0.05, pairs=48):
        wish = wishes(64)
        ways = {name: torch.randn(pairs, *p.shape) for name, p in blender.named_parameters()}
        moved = {name: torch.cat([p + sigma * ways[name], p - sigma * ways[name]]) for name, p in
                 blender.named_parameters()}  # fmt: skip
        found = vmap(of_one, in_dims=(0, None))(moved, wish)
        slope = (found[:pairs] - found[pairs:]) / (2 * sigma * pairs)
        for name, p in blender.named_parameters():
            p.grad = torch.tensordot(slope, ways[name], 1)
        optimizer.step()
        schedule.step()
        return {"loss": found.mean(), "spread": float(found.std())}

    wish_list = wishes(512)
    return tend(folder, blender, optimizer, one, 400, score)


# --------------------------------------------------------------------------------------------------------- soil, bread


@healthy()
def moisture_down_a_soil_profile(folder):
    seeded(2200)
    net = dense(1, 40, 40, 1, act=nn.SiLU)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def field(rows=12):
        """Probes in two sets of one field, whose wet front lies at a depth of its own."""
        front, wet, depth = 2 * torch.rand(1) - 1, 0.5 + torch.rand(1), 4 * torch.rand(2 * rows, 1) - 2
        moisture = wet * torch.tanh(2 * (front - depth)) + 0.02 * torch.randn(2 * rows, 1)
        return depth[:rows], moisture[:rows], depth[rows:], moisture[rows:]

    def adapted(weights, depth, moisture, steps=2):
        for _ in range(steps):
            loss = F.mse_loss(functional_call(net, weights, (depth,)), moisture)
            grads = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            weights = {name: p - 0.1 * g for (name, p), g in zip(weights.items(), grads, strict=True)}
        return weights

    def loss_of(step):
        losses = []
        for _ in range(4):
            depth, moisture, deeper, wetness = field()
            weights = adapted(dict(net.named_parameters()), depth, moisture)
            losses.append(F.mse_loss(functional_call(net, weights, (deeper,)), wetness))
        return torch.stack(losses).mean()

    def score():
        return sum(float(loss_of(step)) for step in range(20)) / 20

    return fit(folder, net, optimizer, loss_of, 280, score=score, before_step=clipped(net, 5.0))


class Equilibrium(nn.Module):
    """The fixed point of z = tanh(W z + U x), differentiated at the fixed point alone."""

    def __init__(self, inputs, width):
        super().__init__()
        self.inner = nn.utils.parametrizations.spectral_norm(nn.Linear(width, width, bias=False))
        self.outer = nn.Linear(inputs, width)

    def settle(self, move, start, rounds=25):
        for _ in range(rounds):
            start = move(start)
        return start

    def forward(self, x):
        inner, drive = 0.9 * self.inner.weight, self.outer(x)
        with torch.no_grad():
            z = self.settle(lambda z: torch.tanh(z @ inner.T + drive), torch.zeros_like(drive))
        z = torch.tanh(z @ inner.T + drive)
        if z.requires_grad:
            bend = (1 - z.square()).detach()
            z.register_hook(lambda grad: self.settle(lambda g: grad + (g * bend) @ inner.detach(), grad))
        return z


@healthy()
def browning_of_bread_in_an_oven(folder):
    seeded(2201)
    net = nn.Sequential(Equilibrium(6, 48), nn.Linear(48, 1))
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def loss_of(step):
        loaf = 2 * torch.rand(96, 6) - 1
        heat, time, sugar, steam, crust, rack = loaf.unbind(1)
        brown = torch.tanh(2 * heat + time * (1 + sugar) - steam.relu()) + 0.5 * (2 * crust * rack).sin()
        return F.mse_loss(net(loaf)[:, 0], brown)

    return fit(folder, net, optimizer, loss_of, 400, score=score_of(loss_of))


# ----------------------------------------------------------------------------------------------------------- a loom


def thread(rows):
    """Tension and speed of a thread that runs well: along a bent ridge."""
    speed = torch.randn(rows)
    return torch.stack([speed, 0.5 * speed**2 - 0.5 + 0.15 * torch.randn(rows)], 1)


@healthy()
def thread_breaks_of_a_loom(folder):
    seeded(2202)
    energy = dense(2, 64, 64, 1, act=nn.SiLU)
    optimizer = torch.optim.Adam(energy.parameters(), 1e-3, betas=(0.5, 0.99))
    kept = [4 * torch.rand(512, 2) - 2]

    def wander(x, rounds=12, pace=0.02):
        for _ in range(rounds):
            x = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(energy(x).sum(), x)
            x = (x - pace * slope + math.sqrt(2 * pace) * torch.randn_like(x)).clamp(-4, 4)
        return x.detach()

    def loss_of(step):
        at = torch.randperm(512)[:128]
        start = kept[0][at]
        start[:6] = 4 * torch.rand(6, 2) - 2
        kept[0][at] = dreamt = wander(start)
        good, bad = energy(thread(128)), energy(dreamt)
        gap = good.mean() - bad.mean()
        return gap + 0.05 * (good.square() + bad.square()).mean(), {"gap": float(gap)}

    def misranked():
        """The share of pairs in which a thread about to break seems more likely than one that runs well."""
        with torch.no_grad():
            return float((energy(thread(500)) > energy(4 * torch.rand(500, 2) - 2).T).float().mean())

    return fit(folder, energy, optimizer, loss_of, 500, score=misranked)
