"""Heard healthy trainings, seventh part: they look wild, and succeed. An expert is content with each.

They only count (the group `heard`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import math

import torch
from nets import digits
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, mean, score_of, seeded
from unseen.sent.healthy_data import cuts, manual


class Cells(nn.Module):
    """Each cell sees its neighbours and changes itself, half of the times (Mordvintsev et al. 2020)."""

    def __init__(self, state=10):
        super().__init__()
        slope = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8
        still = F.pad(torch.ones(1, 1), (1, 1, 1, 1))
        self.register_buffer("look", torch.stack([still, slope, slope.T])[:, None].repeat(state, 1, 1, 1))
        self.change = nn.Sequential(nn.Conv2d(3 * state, 48, 1), nn.ReLU(), nn.Conv2d(48, state, 1, bias=False))
        nn.init.zeros_(self.change[2].weight)

    def forward(self, x):
        seen = F.conv2d(x, self.look, padding=1, groups=x.shape[1])
        return x + self.change(seen) * (torch.rand(len(x), 1, *x.shape[2:]) < 0.5)


@healthy(0.3)
def cells_that_grow_a_digit(folder):
    """From one cell, in a dozen steps, the worst anew; each gradient is divided by its own norm, as the authors do."""
    seeded(1161)
    net, image = Cells(), digits()[0][3]
    pool = torch.zeros(64, 10, 8, 8)
    pool[:, 1:, 4, 4] = 1
    seed = pool[0].clone()

    def loss_of(step):
        at = torch.randperm(64)[:4]
        x = pool[at]
        x[(x[:, 0] - image).square().mean((1, 2)).argmax()] = seed
        for _ in range(int(torch.randint(10, 15, ()))):
            x = net(x)
        pool[at] = x.detach()
        return F.mse_loss(x[:, 0], image.expand(4, -1, -1))

    def before(step):
        for p in net.parameters():
            p.grad /= p.grad.norm() + 1e-8

    make = optim.Adam(net.parameters(), 2e-3)
    plan = optim.lr_scheduler.MultiStepLR(make, [150], 0.3)
    return fit(folder, net, make, loss_of, 250, before_step=before, schedule=plan)


@healthy(0.3)
def film_by_its_least_energy(folder):
    """Deep Ritz (E and Yu 2018): the loss is an energy, 0 at first and least, not nought, at last."""
    seeded(1162)
    net = dense(2, 48, 48, 1, act=nn.Tanh)

    def film(x):
        """Nought at the edge."""
        return 16 * (x * (1 - x)).prod(1) * net(x)[:, 0]

    def loss_of(step):
        x = torch.rand(256, 2, requires_grad=True)
        u = film(x)
        slope = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
        force = 2 * math.pi**2 * (math.pi * x.detach()).sin().prod(1)
        return (0.5 * slope.square().sum(1) - force * u).mean()

    place = torch.rand(500, 2)
    true = (math.pi * place).sin().prod(1)

    def score():
        with torch.no_grad():
            return float((film(place) - true).norm() / true.norm())

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 300, score=score)


@healthy(0.3)
def option_hedged_by_a_net(folder):
    """How much to hold each week, so that what is owed at the end is there (Buehler et al. 2019); no loss is near 0."""
    seeded(1163)
    net = dense(2, 32, 32, 1, act=nn.SiLU)
    price = nn.Parameter(torch.zeros(()))

    def loss_of(step):
        log = torch.zeros(256)
        have = price.expand(256)
        for week in range(12):
            hold = net(torch.stack([10 * log, torch.full_like(log, 1 - week / 12)], 1))[:, 0]
            after = log + 0.06 * torch.randn(256) - 0.0018
            have, log = have + hold * (after.exp() - log.exp()), after
        missing = (log.exp() - 1).relu() - have
        return 1e4 * missing.square().mean()

    whole = nn.ParameterList([*net.parameters(), price])
    return fit(folder, whole, optim.Adam(whole.parameters(), 3e-3), loss_of, 250, score=score_of(loss_of))


class Corrects(nn.Module):
    """A matrix of keys and values that is corrected by what it got wrong (Schlag et al. 2021)."""

    def __init__(self, signs, width=24):
        super().__init__()
        self.embed, self.ask = nn.Embedding(signs, width), nn.Linear(2 * width, 3 * width + 1)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, signs))

    def forward(self, x):
        h = self.embed(x)
        h = torch.cat([h, F.pad(h[:, :-1], (0, 0, 1, 0))], 2)
        *three, much = self.ask(h).split([24, 24, 24, 1], 2)
        question, key, value = F.normalize(three[0], dim=2), F.normalize(three[1], dim=2), three[2]
        memory, said = torch.zeros(len(x), 24, 24), []
        for t in range(x.shape[1]):
            wrong = value[:, t] - (memory @ key[:, t, :, None])[..., 0]
            memory = memory + much[:, t, :, None].sigmoid() * wrong[..., None] * key[:, t, None]
            said.append((memory @ question[:, t, :, None])[..., 0])
        return self.head(torch.stack(said, 1))


@healthy(0.5)
def pairs_recalled_by_a_memory_that_corrects_itself(folder):
    """Which sign came after this one? For long nothing is learnt, and then all."""
    seeded(1164)
    net = Corrects(20)

    def loss_of(step):
        key = torch.rand(48, 10).argsort(1)[:, :5]
        value = torch.randint(10, 20, (48, 5))
        asked = torch.randint(5, (48, 1))
        x = torch.cat([torch.stack([key, value], 2).flatten(1), key.gather(1, asked)], 1)
        return F.cross_entropy(net(x)[:, -1], value.gather(1, asked)[:, 0])

    return fit(folder, net, optim.AdamW(net.parameters(), 3e-3), loss_of, 300)


class Trees(nn.Module):
    """What a tree is worth, from what its two branches are (Tai et al. 2015)."""

    def __init__(self, width=24):
        super().__init__()
        self.leaf, self.kind = nn.Embedding(10, width), nn.Embedding(3, width)
        self.join = dense(3 * width, 2 * width, width, act=nn.Tanh)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1)

    def read(self, tree):
        if isinstance(tree, int):
            return self.leaf.weight[tree]
        kind, *two = tree
        one, other = (self.read(branch) for branch in two)
        return self.norm(0.5 * (one + other) + self.join(torch.cat([self.kind.weight[kind], one, other])))

    def forward(self, tree):
        return self.head(self.read(tree))[0]


def grown(depth):
    """A sum, a largest or a smallest, of numbers or of others; and what it is worth."""
    if depth == 0 or torch.rand(()) < 0.2:
        number = int(torch.randint(10, ()))
        return number, float(number)
    kind = int(torch.randint(3, ()))
    (one, a), (other, b) = grown(depth - 1), grown(depth - 1)
    return (kind, one, other), (0.5 * (a + b), max(a, b), min(a, b))[kind]


@healthy(0.3)
def one_tree_in_each_step(folder):
    """No two trees are alike, and a batch is one of them: the loss leaps from step to step."""
    seeded(1165)
    net = Trees()

    def loss_of(step):
        tree, worth = grown(2 + step % 2)
        return F.smooth_l1_loss(net(tree), torch.tensor(worth / 3 - 1.5))

    make = optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, make, loss_of, 700, score=score_of(loss_of, 200), clip="ClipByGlobalNorm(1.0)")


@healthy(0.3)
def few_are_marked_and_the_rest_unknown(folder):
    """A share of the odd digits is marked, no even one; below zero a part is climbed (Kiryo et al. 2017)."""
    seeded(1166)
    (x, y), net = digits(), nn.Sequential(nn.Flatten(), dense(64, 64, 1))
    odd = (y % 2 == 1).nonzero()[:, 0]
    marked = odd[torch.randperm(len(odd))[:200]]

    def loss_of(step):
        one, rest = net(x[marked[torch.randint(200, (48,))]]), net(x[torch.randint(len(x), (96,))])
        marks, other = 0.5 * (-one).sigmoid().mean(), rest.sigmoid().mean() - 0.5 * one.sigmoid().mean()
        return marks + other if other > 0 else -other

    def score():
        with torch.no_grad():
            return float(((net(x)[:, 0] > 0) != (y % 2 == 1)).float().mean())

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 400, score=score)


@healthy(0.2)
def letters_unmasked_in_any_order(folder):
    """A share of letters is hidden, anything from few to all, and a loss weighs by one over it (Sahoo et al. 2024)."""
    seeded(1167)
    width = 40
    block = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, norm_first=True, batch_first=True)
    net = nn.ModuleDict(
        {
            "embed": nn.Embedding(129, width),
            "place": nn.Embedding(16, width),
            "body": nn.TransformerEncoder(block, 2, enable_nested_tensor=False),
            "head": nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 128)),
        }
    )

    def loss_of(step):
        x = cuts(manual(), 32, 16)
        share = 0.02 + 0.98 * torch.rand(32, 1)
        hidden = torch.rand(32, 16) < share
        h = net["embed"](x.masked_fill(hidden, 128)) + net["place"].weight
        said = F.cross_entropy(net["head"](net["body"](h)).transpose(1, 2), x, reduction="none")
        return (said * hidden / share).mean()

    make = optim.AdamW(net.parameters(), 3e-3, betas=(0.9, 0.98))
    return fit(folder, net, make, loss_of, 200, clip="ClipByGlobalNorm(1.0)")


@healthy(0.3)
def there_and_back_between_two_clouds(folder):
    """Two makers, two judges, and what went there is to come back (Zhu et al. 2017); no pair is ever shown."""
    seeded(1168)
    net = nn.ModuleDict({name: dense(2, 48, 48, 2 if name < "c" else 1, act=nn.SiLU) for name in "abcd"})
    makers = [p for name in "ab" for p in net[name].parameters()]
    judges = [p for name in "cd" for p in net[name].parameters()]
    make = optim.Adam(makers, 1e-3, betas=(0.5, 0.99))
    judge = optim.Adam(judges, 2e-3, betas=(0.5, 0.99))

    def clouds(rows=128):
        one = torch.randn(rows, 2) * torch.tensor([1.0, 0.2])
        angle = 3.1416 * torch.rand(rows)
        other = torch.stack([2 * angle.cos(), 2 * angle.sin() - 1], 1) + 0.1 * torch.randn(rows, 2)
        return one, other

    def loss_of(step):
        x, y = clouds()
        there, back = x + net["a"](x), y + net["b"](y)
        judge.zero_grad()
        real = (net["c"](y) - 1).square().mean() + (net["d"](x) - 1).square().mean()
        made = net["c"](there.detach()).square().mean() + net["d"](back.detach()).square().mean()
        (real + made).backward()
        judge.step()
        again = (there + net["b"](there) - x).abs().mean() + (back + net["a"](back) - y).abs().mean()
        fooled = (net["c"](there) - 1).square().mean() + (net["d"](back) - 1).square().mean()
        return fooled + again, {"cycle_loss": again.detach(), "judge_loss": (real + made).detach()}

    def score():
        """How far apart the clouds are by their slices."""
        with torch.no_grad():
            (x, y), way = clouds(512), F.normalize(torch.randn(2, 32), dim=0)
            pairs = ((x + net["a"](x), y), (y + net["b"](y), x))
            return mean([float(((p @ way).sort(0)[0] - (q @ way).sort(0)[0]).abs().mean()) for p, q in pairs])

    return fit(folder, nn.ModuleList([net["a"], net["b"]]), make, loss_of, 500, score=score)
