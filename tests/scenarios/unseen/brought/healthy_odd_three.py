"""Sound trainings: a decay of one, a body frozen at first, a sparse table, an adversary inside, a critic beside."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded
from unseen.tasks import clipped, held_out, rounds

# ------------------------------------------------------------------------------------------- lens, with a decay of one


def sensed_slopes(lenses, spots=8, terms=6):
    """The slopes of a wavefront at 8 x 8 spots, and the aberrations of the lens."""
    line = torch.linspace(-1, 1, spots)
    y, x = (axis.flatten() for axis in torch.meshgrid(line, line, indexing="ij"))
    one, none = torch.ones_like(x), torch.zeros_like(x)
    along = torch.stack([one, none, 2 * x, 2 * y, 3 * x.square() + y.square(), 2 * x * y])
    across = torch.stack([none, one, -2 * y, 2 * x, 2 * x * y, x.square() + 3 * y.square()])
    aberrations = torch.randn(lenses, terms)
    slopes = aberrations @ torch.cat([along, across], 1)
    return (0.5 * slopes).tanh() + 0.1 * torch.randn_like(slopes), aberrations


@healthy()
def aberrations_of_a_lens(folder):
    seeded(2762)
    slopes, aberrations = sensed_slopes(900)
    draw = rounds(50, slopes[:400], aberrations[:400])
    net = dense(128, 96, 6, act=nn.GELU)
    matrices, others = [p for p in net.parameters() if p.ndim > 1], [p for p in net.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 1.0}, {"params": others, "weight_decay": 0.0}])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    score = held_out(net, lambda: F.mse_loss(net(slopes[400:]), aberrations[400:]))
    return fit(folder, net, optimizer, loss_of, 600, score=score, schedule=schedule)


# ------------------------------------------------------------------------------------------ pollen, frozen, then thawed


def grains(batch, lobes, size=16):
    """`draw()`: pictures of pollen grains with some number of lobes, and which of the kinds they are."""
    line = torch.linspace(-1.3, 1.3, size)
    y, x = torch.meshgrid(line, line, indexing="ij")
    radius, angle, lobes = (x.square() + y.square()).sqrt(), torch.atan2(y, x), torch.tensor(lobes)

    def draw():
        kind, turn = torch.randint(len(lobes), (batch,)), 6.283 * torch.rand(batch, 1, 1)
        rim = 0.8 + 0.25 * (lobes[kind][:, None, None] * angle + turn).cos()
        grain = torch.sigmoid(8 * (rim - radius)) * (0.7 + 0.6 * torch.rand(batch, 1, 1))
        return (grain + 0.1 * torch.randn(batch, size, size))[:, None] * 2 - 1, kind

    return draw


def microscope():
    layers = [nn.Conv2d(1, 12, 3, 1, 1), nn.GELU(), nn.Conv2d(12, 24, 3, 2, 1), nn.GELU()]
    return nn.Sequential(*layers, nn.Conv2d(24, 24, 3, 2, 1), nn.GELU(), nn.Flatten(), nn.Linear(384, 48), nn.GELU())


def taught_elsewhere(body, draw, kinds, steps=250):
    """The body, trained on other kinds beforehand."""
    head = nn.Linear(48, kinds)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=2e-3)
    for _ in range(steps):
        x, y = draw()
        optimizer.zero_grad()
        F.cross_entropy(head(body(x)), y).backward()
        optimizer.step()
    optimizer.zero_grad()
    return body


@healthy()
def rare_pollen_with_an_eye_for_common_ones(folder):
    seeded(2763)
    body = taught_elsewhere(microscope(), grains(64, [0, 2, 4, 6]), 4).requires_grad_(False)
    net, draw = nn.Sequential(body, nn.Linear(48, 3)), grains(48, [1, 3, 5])
    groups = [{"params": net[1].parameters(), "lr": 2e-3}, {"params": body.parameters(), "lr": 3e-4}]
    optimizer = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)

    def loss_of(step):
        x, y = draw()
        found = net(x)
        return F.cross_entropy(found, y), {"accuracy": float((found.argmax(1) == y).float().mean())}

    def after_step(step):
        if step == 149:
            body.requires_grad_(True)

    score = score_of(lambda step: loss_of(step)[0])
    return fit(folder, net, optimizer, loss_of, 400, score=score, after_step=after_step, schedule=schedule)


# ----------------------------------------------------------------------------------------------- heart, a sparse table


def symbolised_beats(batch=64, kinds=5, symbols=12, length=40):
    """`draw()`: which triples of symbols an ECG runs through, as numbers below 12 cubed, and the kind of its rhythm."""
    chances = (0.7 * torch.randn(kinds, symbols, symbols)).softmax(2)

    def draw():
        kind = torch.randint(kinds, (batch,))
        beat = [torch.randint(symbols, (batch,))]
        for _ in range(length - 1):
            beat.append(torch.multinomial(chances[kind, beat[-1]], 1)[:, 0])
        beat = torch.stack(beat, 1)
        return (beat[:, :-2] * symbols + beat[:, 1:-1]) * symbols + beat[:, 2:], kind

    return draw


@healthy()
def rhythms_of_a_heart_by_triples(folder):
    seeded(2764)
    net, draw = nn.EmbeddingBag(12**3, 5, mode="sum", sparse=True), symbolised_beats()
    nn.init.normal_(net.weight, std=0.02)
    optimizer = torch.optim.SparseAdam(net.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 400)

    def loss_of(step):
        triples, kind = draw()
        found = net(triples)
        return F.cross_entropy(found, kind), {"accuracy": float((found.argmax(1) == kind).float().mean())}

    score = score_of(lambda step: loss_of(step)[0])
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule)


# -------------------------------------------------------------------------------------------- bees, an adversary inside


class Reversed(torch.autograd.Function):
    """Nothing forward; backward the gradient turns round and is scaled."""

    @staticmethod
    def forward(ctx, x, share):
        ctx.share = share
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.share * grad, None


class Hive(nn.Module):
    """What is heard in a hive: whether a queen is there and, by an adversary, in which yard it stands."""

    def __init__(self):
        super().__init__()
        self.ear, self.queen, self.yard = dense(20, 48, 24), dense(24, 2), dense(24, 24, 2)

    def forward(self, sound, share):
        heard = self.ear(sound).relu()
        return self.queen(heard), self.yard(Reversed.apply(heard, share))


def hums(batch=64, bands=20):
    """`draw(yard)`: sounds in bands of one of two yards, and whether there is a queen."""
    piping, wind, base = torch.randn(3, bands).unbind(0)
    wind = wind - piping * (wind @ piping) / piping.square().sum()

    def draw(yard):
        queen = torch.randint(2, (batch,))
        mood = (2 * queen[:, None] - 1) * (0.4 + 0.4 * torch.rand(batch, 1))
        return base + mood * piping + yard * 1.2 * wind + 0.8 * torch.randn(batch, bands), queen

    return draw


@healthy()
def queens_in_the_hives_of_another_yard(folder):
    seeded(2765)
    net, draw, steps = Hive(), hums(), 500
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    def loss_of(step):
        share = 2 / (1 + math.exp(-10 * step / steps)) - 1
        (here, queen), (there, _) = draw(0), draw(1)
        found, yard = net(torch.cat([here, there]), share)
        label = F.cross_entropy(found[: len(here)], queen)
        domain = F.cross_entropy(yard, torch.arange(2).repeat_interleave(len(here)))
        return label + domain, {"label": float(label.detach()), "domain": float(domain.detach())}

    def elsewhere(step):
        sound, queen = draw(1)
        return F.cross_entropy(net(sound, 0.0)[0], queen)

    score = score_of(elsewhere, 16)
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


# ------------------------------------------------------------------------------------------- molecules, a critic beside


class Chemist(nn.Module):
    """Which fragment to add to a chain, and how soluble the whole will be."""

    def __init__(self, kinds=6, length=8, width=64):
        super().__init__()
        self.kinds, self.length = kinds, length
        self.body = nn.Sequential(dense(2 * kinds + 1 + length, width, width, act=nn.Tanh), nn.Tanh())
        self.policy, self.value = nn.Linear(width, kinds), nn.Linear(width, 1)
        nn.init.normal_(self.policy.weight, std=0.01)

    def forward(self, counts, last, place):
        place = F.one_hot(torch.full_like(last, place), self.length)
        seen = self.body(torch.cat([counts, F.one_hot(last, self.kinds + 1), place], 1).float())
        return self.policy(seen), self.value(seen)[:, 0]


def solubility(kinds=6):
    """`gain(last, added)`: what a fragment adds next to another one."""
    table = 0.5 * torch.randn(kinds + 1, kinds)
    return lambda last, added: table[last, added]


def built(net, gain, chains=64):
    """Chains that the policy builds: log chances, entropies, values and gains, each `[steps, chains]`."""
    counts, last = torch.zeros(chains, net.kinds), torch.full((chains,), net.kinds)
    steps = []
    for place in range(net.length):
        logits, value = net(counts, last, place)
        choice = torch.distributions.Categorical(logits=logits)
        added = choice.sample()
        steps.append((choice.log_prob(added), choice.entropy(), value, gain(last, added)))
        counts, last = counts + F.one_hot(added, net.kinds), added
    return [torch.stack(part) for part in zip(*steps, strict=True)]


@healthy()
def soluble_molecules_from_fragments(folder):
    seeded(2766)
    net, gain, steps = Chemist(), solubility(), 300
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)

    def loss_of(step):
        chance, entropy, value, gains = built(net, gain)
        to_go = gains.flip(0).cumsum(0).flip(0)
        better = (to_go - value).detach()
        policy, critic = -(chance * better).mean(), F.smooth_l1_loss(value, to_go)
        loss = policy + 0.5 * critic - 0.03 * entropy.mean()
        logged = {"return": to_go[0].mean(), "critic": critic, "entropy": entropy.mean()}
        return loss, {name: float(term.detach()) for name, term in logged.items()}

    def score():
        with torch.no_grad():
            return 8 - float(built(net, gain, 512)[3].sum(0).mean())

    options = {"score": score, "before_step": clipped(net, 1.0), "schedule": schedule}
    return fit(folder, net, optimizer, loss_of, steps, **options)
