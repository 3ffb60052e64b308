"""Sound trainings of odd models: fixed points, energies, densities, experts, one-bit weights, tasks of unlike doubt."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm
from unseen import dense, fit, healthy, score_of, seeded
from unseen.tasks import tend

# -------------------------------------------------------------------------------------------------------- a fixed point


class Settled(nn.Module):
    """What a contraction settles at; its gradient is that of the fixed point (a deep equilibrium)."""

    def __init__(self, wines, width=48):
        super().__init__()
        self.enter, self.leave = nn.Linear(wines, width), nn.Linear(width, 3)
        self.again = spectral_norm(nn.Linear(width, width, bias=False))

    def forward(self, blend):
        pour, again = self.enter(blend), 0.8 * self.again.weight
        with torch.no_grad():
            z = torch.zeros_like(pour)
            for _ in range(25):
                z = (z @ again.T + pour).tanh()
        settled = (z @ again.T + pour).tanh()
        if torch.is_grad_enabled():
            z = z.requires_grad_()
            once = (z @ again.T + pour).tanh()
            settled.register_hook(lambda grad: self.settle_back(once, z, grad))
        return self.leave(settled)

    @staticmethod
    def settle_back(once, z, grad):
        total = grad
        for _ in range(16):
            total = torch.autograd.grad(once, z, total, retain_graph=True)[0] + grad
        return total


@healthy()
def notes_of_a_wine_blend(folder):
    seeded(2344)
    net, grapes = Settled(8), torch.randn(8, 3)
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3, weight_decay=1e-3)

    def loss_of(step):
        share = torch.softmax(torch.randn(96, 8), 1)
        body = 2 * share @ grapes
        notes = (body + body.roll(1, 1) * body.roll(2, 1)).tanh()
        return F.mse_loss(net(6 * (share - 1 / 8)), notes + 0.03 * torch.randn(96, 3))

    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 280)
    return fit(folder, net, optimizer, loss_of, 280, schedule=schedule)


# ----------------------------------------------------------------------------------------------------------- an energy


def stars(rows):
    """Colour and brightness: a main sequence, and a clump of giants."""
    along, giant = 4 * torch.rand(rows) - 2, torch.rand(rows) < 0.3
    main = torch.stack([along, 0.3 * along**3 / 2 - 0.5 * along], 1) * torch.tensor([1.0, 1.2])
    clump = torch.tensor([1.2, 1.6]) + 0.15 * torch.randn(rows, 2)
    return torch.where(giant[:, None], clump, main + 0.15 * torch.randn(rows, 2))


def langevin(net, x, steps=24, pace=0.025):
    for _ in range(steps):
        x = x.detach().requires_grad_()
        slope = torch.autograd.grad(net(x).sum(), x)[0]
        x = (x - pace * slope + (2 * pace) ** 0.5 * torch.randn_like(x)).clamp(-3, 3)
    return x.detach()


@healthy()
def colours_and_brightness_of_stars(folder):
    seeded(2345)
    net = dense(2, 64, 64, 1, act=nn.SiLU)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, betas=(0.5, 0.99))
    chains, line = 6 * torch.rand(512, 2) - 3, torch.linspace(-3, 3, 80)
    grid, cell = torch.cartesian_prod(line, line), math.log(36 / 80**2)

    def score():
        with torch.no_grad():
            return net(stars(2000)).mean() + torch.logsumexp(-net(grid)[:, 0], 0) + cell

    def one(step):
        some, fresh = torch.randperm(512)[:128], torch.rand(128, 1) < 0.05
        begun = torch.where(fresh, 6 * torch.rand(128, 2) - 3, chains[some])
        chains[some] = dreamt = langevin(net, begun)
        real, dreamt = net(stars(128)), net(dreamt)
        loss = real.mean() - dreamt.mean() + 0.01 * (real**2 + dreamt**2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "energy_gap": (dreamt - real).mean(), **({"nll": score()} if step % 50 == 49 else {})}

    return tend(folder, net, optimizer, one, 320, score)


# ----------------------------------------------------------------------------------------------------------- a density


class Coupling(nn.Module):
    """Half of the gauges are stretched and shifted by what the other half says."""

    def __init__(self, size, keep):
        super().__init__()
        self.register_buffer("keep", keep)
        self.says = dense(size, 48, 2 * size, act=nn.SiLU)
        nn.init.zeros_(self.says[-1].weight)
        nn.init.zeros_(self.says[-1].bias)

    def forward(self, x):
        stretch, shift = self.says(x * self.keep).chunk(2, 1)
        stretch = 1.5 * stretch.tanh() * (1 - self.keep)
        return x * stretch.exp() + shift * (1 - self.keep), stretch.sum(1)


@healthy()
def stages_at_the_gauges_of_a_river(folder):
    seeded(2346)
    gauges = 6
    halves = [(torch.arange(gauges) % 2 == turn % 2).float() for turn in range(6)]
    net = nn.ModuleList(Coupling(gauges, keep) for keep in halves)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    reach, rise = torch.linspace(0, 1, gauges), torch.linspace(1, 0.6, gauges)

    def loss_of(step):
        rain, thaw = torch.randn(2, 256, 1)
        stage = rise * rain + 0.5 * (2 * reach + thaw).sin() + 0.04 * torch.randn(256, gauges)
        stretched = torch.zeros(256)
        for coupling in net:
            stage, log_volume = coupling(stage)
            stretched = stretched + log_volume
        likelihood = stretched - 0.5 * (stage**2 + math.log(2 * math.pi)).sum(1)
        return -likelihood.mean()

    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600)
    return fit(folder, net, optimizer, loss_of, 600, schedule=schedule)


# ----------------------------------------------------------------------------------------------------------- experts


class Watchkeepers(nn.Module):
    """Each light is looked at by one of several keepers, whom a router picks."""

    def __init__(self, samples, lights, keepers=4, width=32):
        super().__init__()
        self.enter, self.route = nn.Linear(samples, width), nn.Linear(width, keepers)
        self.keepers = nn.ModuleList(dense(width, 48, width) for _ in range(keepers))
        self.leave = nn.Linear(width, lights)

    def forward(self, seen):
        x = self.enter(seen).relu()
        trust = self.route(x).softmax(1)
        gate, chosen = trust.max(1)
        told = torch.zeros_like(x)
        for i, keeper in enumerate(self.keepers):
            rows = (chosen == i).nonzero()[:, 0]
            told = told.index_add(0, rows, gate[rows, None] * keeper(x[rows]))
        load = F.one_hot(chosen, len(self.keepers)).float().mean(0)
        return self.leave(x + told), len(self.keepers) * load @ trust.mean(0), load


@healthy()
def lighthouses_known_by_their_flashes(folder):
    seeded(2347)
    lights, samples = 12, 24
    character = (torch.rand(lights, samples) < 0.1 + 0.8 * torch.rand(lights, 1)).float()
    net = Watchkeepers(samples, lights)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)

    def loss_of(step):
        light, haze = torch.randint(lights, (128,)), 0.4 + 0.6 * torch.rand(128, 1)
        shift = (torch.arange(samples) + torch.randint(4, (128, 1))) % samples
        seen = haze * character[light].gather(1, shift) + 0.25 * torch.randn(128, samples) - 0.4
        guess, unevenness, load = net(seen)
        named = F.cross_entropy(guess, light)
        return named + 0.1 * unevenness, {"named": named, "unevenness": unevenness, "busiest": load.max()}

    return fit(folder, net, optimizer, loss_of, 500)


# --------------------------------------------------------------------------------------------------- weights of one bit


class OneBit(nn.Linear):
    """Only the signs of its weights count; their gradients go straight through to the weights themselves."""

    def forward(self, x):
        signs = self.weight + (self.weight.sign() - self.weight).detach()
        return F.linear(x, signs / self.in_features**0.5)


@healthy()
def methods_of_change_ringing_by_one_bell(folder):
    seeded(2348)
    blows, bells, methods = 12, 6, 8
    line = torch.randint(bells, (methods, blows))
    net = nn.Sequential(
        OneBit(blows * bells, 128, bias=False), nn.BatchNorm1d(128), nn.Hardtanh(),
        OneBit(128, 64, bias=False), nn.BatchNorm1d(64), nn.Hardtanh(),
        nn.Linear(64, methods),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)

    def loss_of(step):
        method, lead = torch.randint(methods, (96,)), torch.randint(3, (96, 1))
        place = line[method].gather(1, (torch.arange(blows) + 4 * lead) % blows)
        slip = torch.rand(96, blows) < 0.1
        place = torch.where(slip, torch.randint(bells, (96, blows)), place)
        guess = net(F.one_hot(place, bells).flatten(1) - 1 / bells)
        return F.cross_entropy(guess, method), {"accuracy": (guess.argmax(1) == method).double().mean()}

    @torch.no_grad()
    def within_one(step):
        for layer in (net[0], net[3]):
            layer.weight.clamp_(-1, 1)

    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)
    return fit(folder, net, optimizer, loss_of, 500, after_step=within_one, schedule=schedule)


# ----------------------------------------------------------------------------------------------- uneven micro-batches


@healthy()
def sway_of_a_harbour_crane(folder):
    seeded(2349)
    net = dense(5, 64, 64, 2, act=nn.SiLU)
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, 450)

    def lifts(rows):
        angle, speed, pull, rope, load = torch.randn(rows, 5).unbind(1)
        pitch = (9.81 / (12 + 3 * rope.tanh())).sqrt()
        push = 0.5 * pull / (1 + 0.3 * load.tanh())
        turn = 1.5 * pitch
        later = (angle - push) * turn.cos() + speed * turn.sin() + push
        faster = speed * turn.cos() - (angle - push) * turn.sin()
        return torch.stack([angle, speed, pull, rope, load], 1), torch.stack([later, faster], 1)

    def loss_of(rows):
        state, later = lifts(rows)
        return F.mse_loss(net(state), later)

    def one(step):
        shifts = [int(rows) for rows in torch.randint(3, 60, (4,))]
        optimizer.zero_grad()
        total = 0.0
        for rows in shifts:
            part = loss_of(rows) * rows / sum(shifts)
            part.backward()
            total += part.item()
        optimizer.step()
        schedule.step()
        return {"loss": total, "lifts": sum(shifts)}

    return tend(folder, net, optimizer, one, 450, score_of(lambda step: loss_of(200)))


# ----------------------------------------------------------------------------------------- tasks that weigh themselves


class Hive(nn.Module):
    """Weight, warmth of the brood, and whether a swarm will leave; each with the doubt that it carries."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(dense(8, 64, 64), nn.ReLU())
        self.heads = nn.ModuleDict({name: nn.Linear(64, 1) for name in ("weight", "warmth", "swarm")})
        self.doubt = nn.ParameterDict({name: nn.Parameter(torch.zeros(())) for name in self.heads})

    def forward(self, readings):
        x = self.body(readings)
        return {name: head(x)[:, 0] for name, head in self.heads.items()}


@healthy()
def three_readings_of_a_beehive(folder):
    seeded(2350)
    net, ways = Hive(), torch.randn(3, 8) / 8**0.5
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)

    def errors():
        readings = torch.randn(128, 8)
        gain, brood, unrest = 2 * (readings @ ways.T).T
        said = net(readings)
        return {
            "weight": F.mse_loss(said["weight"], gain.sin() + 0.5 * brood + 0.05 * torch.randn(128)),
            "warmth": F.mse_loss(said["warmth"], brood.tanh() + 0.1 * torch.randn(128)),
            "swarm": F.binary_cross_entropy_with_logits(said["swarm"], (unrest * gain > 0).float()),
        }

    def loss_of(step):
        parts = errors()
        weighed = [part * (-net.doubt[name]).exp() + 0.5 * net.doubt[name] for name, part in parts.items()]
        return sum(weighed), {name: part.detach() for name, part in parts.items()}

    return fit(folder, net, optimizer, loss_of, 600, score=score_of(lambda step: sum(errors().values())))
