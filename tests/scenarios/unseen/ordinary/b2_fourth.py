"""Bakeries, mills and breads, healthy but of an unusual make: flows, sines, rivals, quantiles, adapters, densities."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, in_turn, now_and_then, rounds


def digits():
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float() / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    return (x[order] - 0.3) / 0.38, y[order]


class Coupling(nn.Module):
    """One half is moved and stretched by what the other half says."""

    def __init__(self, size, flip):
        super().__init__()
        self.net = dense(size // 2, 32, size, act=nn.Tanh)
        self.flip = flip

    def forward(self, x):
        a, b = x.chunk(2, 1)
        a, b = (b, a) if self.flip else (a, b)
        stretch, shift = self.net(a).chunk(2, 1)
        stretch = stretch.tanh()
        b = b * stretch.exp() + shift
        return torch.cat([b, a] if self.flip else [a, b], 1), stretch.sum(1)


@healthy()
def sizes_of_meal_between_two_stones(folder):
    seeded(12860)
    mix = torch.randn(2, 4)

    def meal(rows):
        hidden = torch.randn(rows, 2)
        x = (hidden @ mix).tanh() + 0.1 * torch.randn(rows, 4)
        return x / 0.75

    net = nn.ModuleList(Coupling(4, bool(i % 2)) for i in range(4))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(128, meal(4000))

    def surprise(x):
        total = 0
        for layer in net:
            x, stretch = layer(x)
            total = total + stretch
        return (0.5 * x.square().sum(1) + 2 * math.log(2 * math.pi) - total).mean()

    test = meal(500)
    validate = now_and_then(net, 62, lambda: {"val_nll": surprise(test)})
    return fit(folder, net, optimizer, lambda step: (surprise(draw()[0]), validate(step)), 350,
               score=held_out(net, lambda: surprise(test)), before_step=clipped(net, 5.0))  # fmt: skip


class Sine(nn.Module):
    """A layer of sines (SIREN)."""

    def __init__(self, ins, outs, fast, first=False):
        super().__init__()
        self.linear, self.fast = nn.Linear(ins, outs), fast
        bound = 1 / ins if first else math.sqrt(6 / ins) / fast
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x):
        return (self.fast * self.linear(x)).sin()


@healthy(0.6)
def picture_of_a_millwheel_by_its_places(folder):
    seeded(12861)
    line = torch.linspace(-1, 1, 40)
    where = torch.stack(torch.meshgrid(line, line, indexing="ij"), 2).view(-1, 2)
    far, angle = where.norm(dim=1), torch.atan2(where[:, 1], where[:, 0])
    wheel = ((6 * angle).cos() * torch.exp(-((far - 0.55) ** 2) / 0.05) + 0.8 * torch.exp(-(far**2) / 0.02))[:, None]
    net = nn.Sequential(Sine(2, 48, 12.0, True), Sine(48, 48, 12.0), nn.Linear(48, 1))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def loss_of(step):
        some = torch.randint(len(where), (400,))
        loss = F.mse_loss(net(where[some]), wheel[some])
        return loss, {"psnr": -10 * math.log10(float(loss.detach()))}

    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, lambda: F.mse_loss(net(where), wheel)))


@healthy()
def croissants_bent_by_a_rival(folder):
    seeded(12862)

    def bends(rows=64):
        angle = math.pi * torch.rand(rows)
        return 1.5 * torch.stack([angle.cos(), angle.sin() - 0.6], 1) + 0.08 * torch.randn(rows, 2)

    make, judge = dense(4, 64, 64, 2), dense(2, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 2e-3, betas=(0.5, 0.999))
    real = bends(512)

    def judge_loss():
        fake = make(torch.randn(64, 4)).detach()
        return 0.5 * ((judge(bends()) - 1).square().mean() + judge(fake).square().mean())

    def make_loss():
        return 0.5 * (judge(make(torch.randn(64, 4))) - 1).square().mean()

    def score():
        with torch.no_grad():
            fake = make(torch.randn(512, 4))
            return float(2 * torch.cdist(real, fake).mean() - torch.cdist(real, real).mean()
                         - torch.cdist(fake, fake).mean())  # fmt: skip

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 400, score)


@healthy(0.5)
def sacks_counted_four_at_a_time(folder):
    seeded(12863)
    x, y = digits()
    draw = rounds(12, x[:1500], y[:1500])
    net = dense(64, 64, 10, act=nn.GELU, norm=nn.LayerNorm)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)

    def loss_of(part):
        image, count = draw()
        return F.cross_entropy(net(image), count) / 4

    score = held_out(net, lambda: F.cross_entropy(net(x[1500:]), y[1500:]))
    return fit(folder, net, optimizer, loss_of, 160, score=score, accumulate=4, before_step=clipped(net, 1.0))


class Pairs(nn.Module):
    """An encoder of two views, with a temperature that is learnt."""

    def __init__(self):
        super().__init__()
        self.body, self.head = dense(24, 64, 64), dense(64, 64, 16)
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.2)))

    def forward(self, a, b):
        a, b = (F.normalize(self.head(F.relu(self.body(x))), dim=1) for x in (a, b))
        return a @ b.T * self.log_scale.exp().clamp(max=100)


@healthy()
def two_photographs_of_one_loaf(folder):
    seeded(12864)
    lift = torch.randn(6, 24) / 2

    def photographs(rows):
        loaf = (torch.randn(rows, 6) @ lift).tanh()
        return [(0.8 + 0.4 * torch.rand(rows, 1)) * loaf + 0.25 * torch.randn(rows, 24) for _ in range(2)]

    net = Pairs()
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def loss_on(a, b):
        said, same = net(a, b), torch.arange(len(a))
        loss = (F.cross_entropy(said, same) + F.cross_entropy(said.T, same)) / 2
        return loss, (said.argmax(1) == same).float().mean()

    def loss_of(step):
        loss, found = loss_on(*photographs(64))
        return loss, {"top1": float(found), "scale": float(net.log_scale.detach().exp())}

    test = photographs(64)
    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: loss_on(*test)[0]))


@healthy(0.4)
def rolls_sold_at_least_and_at_most(folder):
    seeded(12865)
    levels = torch.tensor([0.1, 0.5, 0.9])
    way = torch.randn(8, 2) / 2

    def days(rows):
        x = torch.randn(rows, 8)
        level, wide = (x @ way).unbind(1)
        return x, (2 * level.sin() + 0.3 * (1 + wide.tanh()) * torch.randn(rows))[:, None]

    x, y = days(3000)
    middle, spread = y.mean(), y.std()
    draw = rounds(64, x, (y - middle) / spread)
    net = dense(8, 64, 64, 3, act=nn.SiLU)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)

    def pinball(said, y):
        gap = y - said
        return torch.maximum(levels * gap, (levels - 1) * gap).mean()

    tx, ty = days(600)
    ty = (ty - middle) / spread

    def measure():
        said = net(tx)
        return {"val_pinball": pinball(said, ty), "coverage": ((ty > said[:, :1]) & (ty < said[:, 2:])).float().mean()}

    validate = now_and_then(net, 46, measure)

    def loss_of(step):
        x, y = draw()
        return pinball(net(x), y), validate(step)

    score = held_out(net, lambda: pinball(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule)


class Adapted(nn.Module):
    """A linear layer that stays as it is, and a product of two thin ones beside it."""

    def __init__(self, linear, rank):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.down = nn.Linear(linear.in_features, rank, bias=False)
        self.up = nn.Linear(rank, linear.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.linear(x) + 2 * self.up(self.down(x))


@healthy()
def old_miller_and_a_new_kind_of_wheat(folder):
    seeded(12866)
    first, turn = torch.randn(16, 5), 1.2 * torch.randn(16, 5)

    def wheat(rows, way):
        x = torch.randn(rows, 16)
        return x, ((x @ way).sin() + 0.3 * (x @ way)).argmax(1)

    net = dense(16, 64, 64, 5)
    before = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(200):
        x, y = wheat(64, first)
        before.zero_grad()
        F.cross_entropy(net(x), y).backward()
        before.step()
    before.zero_grad()
    net = nn.Sequential(*(Adapted(part, 6) if isinstance(part, nn.Linear) else part for part in net))
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 5e-3, weight_decay=0.0)
    draw = rounds(64, *wheat(3000, first + turn))

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": float((said.argmax(1) == y).float().mean())}

    tx, ty = wheat(600, first + turn)
    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@healthy(0.5)
def apprentice_who_watches_the_baker(folder):
    seeded(12867)
    x, y = digits()
    baker = dense(64, 128, 128, 10)
    lessons = torch.optim.Adam(baker.parameters(), 2e-3)
    draw = rounds(64, x[:1500], y[:1500])
    for _ in range(150):
        image, figure = draw()
        lessons.zero_grad()
        F.cross_entropy(baker(image), figure).backward()
        lessons.step()
    baker.requires_grad_(False).eval()
    net = dense(64, 24, 10)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    heat = 3.0

    def loss_of(step):
        image, figure = draw()
        said, shown = net(image), baker(image)
        soft = F.kl_div((said / heat).log_softmax(1), (shown / heat).softmax(1), reduction="batchmean") * heat**2
        hard = F.cross_entropy(said, figure)
        logged = {"soft": float(soft.detach()), "hard": float(hard.detach())}
        return 0.7 * soft + 0.3 * hard, logged | {"accuracy": float((said.argmax(1) == figure).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[1500:]), y[1500:]))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


@healthy(0.5)
def cooling_of_a_loaf_as_an_equation(folder):
    seeded(12868)

    def cooled(rows):
        state = torch.randn(rows, 2)
        path = [state]
        for _ in range(12):
            core, crust = state.unbind(1)
            lost = 0.8 * crust + 0.1 * crust**3
            state = state + 0.15 * torch.stack([crust - core, 0.6 * (core - crust) - lost], 1)
            path.append(state)
        return torch.stack(path, 1)

    net = dense(2, 48, 48, 2, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)

    def loss_on(path):
        state, missed = path[:, 0], 0
        for moment in range(1, 13):
            state = state + 0.15 * net(state)
            missed = missed + F.mse_loss(state, path[:, moment])
        return missed / 12

    def loss_of(step):
        return loss_on(cooled(64) + 0.02 * torch.randn(64, 13, 2))

    test = cooled(300)
    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, loss_of, 200, score=score, schedule=schedule, before_step=clipped(net, 1.0))


@healthy(0.4)
def either_a_tall_loaf_or_a_flat_one(folder):
    seeded(12869)
    way = torch.randn(5) / 2

    def loaves(rows):
        x = torch.randn(rows, 5)
        side = torch.randint(2, (rows,)) * 2.0 - 1
        return x, side * (0.8 + 0.6 * (x @ way).tanh()) + 0.1 * torch.randn(rows)

    net = dense(5, 48, 48, 9)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(64, *loaves(3000))

    def surprise(x, y):
        share, middle, spread = net(x).chunk(3, 1)
        each = torch.distributions.Normal(middle, F.softplus(spread) + 0.02).log_prob(y[:, None])
        return -(share.log_softmax(1) + each).logsumexp(1).mean()

    test = loaves(600)
    validate = now_and_then(net, 46, lambda: {"val_nll": surprise(*test)})
    return fit(folder, net, optimizer, lambda step: (surprise(*draw()), validate(step)), 350,
               score=held_out(net, lambda: surprise(*test)), before_step=clipped(net, 5.0))  # fmt: skip
