"""Everyday trainings without labels: contrast, pairs, adversaries, codes."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, in_turn, rounds

# ------------------------------------------------------------------------------------------------------------ contrast


def galaxies(batch):
    """Galaxies of all sizes, leans, bulges and arms, `[B, 1, 16, 16]`."""
    row, column = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")
    size, flat, lean, arms, bulge = torch.rand(5, batch, 1, 1)
    turn = 3.1416 * lean
    along, across = turn.cos() * row + turn.sin() * column, turn.cos() * column - turn.sin() * row
    far = (along.square() + (across * (1 + 2.5 * flat)).square()).sqrt() / (0.2 + 0.5 * size)
    spiral = 1 + arms * (2 * torch.atan2(across, along) + 4 * far).sin()
    return ((-far.square()).exp() * spiral + bulge * (-8 * far.square()).exp())[:, None]


def seen_again(x):
    """Another night: turned by quarters, perhaps mirrored, brighter or dimmer, with the noise of the sky."""
    x = torch.rot90(x, int(torch.randint(4, ())), (2, 3))
    x = x.flip(3) if torch.rand(()) < 0.5 else x
    x = (0.7 + 0.6 * torch.rand(len(x), 1, 1, 1)) * x
    return x + 0.15 * torch.randn_like(x)


def contrast(a, b, temperature):
    """NT-Xent: each view is to find the other one of its pair among all."""
    z = F.normalize(torch.cat([a, b]), dim=1)
    alike = (z @ z.T / temperature).fill_diagonal_(-math.inf)
    return F.cross_entropy(alike, torch.arange(len(z)).roll(len(a)))


@healthy()
def galaxies_seen_on_two_nights(folder):
    seeded(2795)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32),
        nn.ReLU(), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 24),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 350)

    def loss_of(step):
        x = galaxies(48)
        both = net(torch.cat([seen_again(x), seen_again(x)]))
        return contrast(*both.chunk(2), 0.2)

    score = held_out(net, lambda: loss_of(0))
    return fit(folder, net, optimizer, loss_of, 350, score=score, schedule=schedule)


def hardest(z, kind, margin):
    """Of each the farthest of its kind and the nearest of another (batch-hard triplets)."""
    far = (2 - 2 * z @ z.T).clamp(min=1e-6).sqrt()
    same = kind[:, None] == kind
    return (far.masked_fill(~same, 0).amax(1) - far.masked_fill(same, 9).amin(1) + margin).relu()


@healthy()
def fish_of_a_market_told_apart(folder):
    seeded(2796)
    typical, lift = torch.randn(30, 6), torch.randn(6, 24)
    net = dense(24, 64, 64, 16, norm=nn.BatchNorm1d)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=1e-5)

    def measured(kind):
        form = typical[kind] + 0.3 * torch.randn(len(kind), 6)
        return (form @ lift / 2).tanh() + 0.1 * torch.randn(len(kind), 24)

    def triplets(kind):
        return hardest(F.normalize(net(measured(kind)), dim=1), kind, 0.3)

    def loss_of(step):
        losses = triplets(torch.randperm(30)[:12].repeat_interleave(6))
        return losses.mean(), {"active": float((losses > 0).float().mean())}

    score = held_out(net, lambda: triplets(torch.arange(30).repeat_interleave(6)).mean())
    return fit(folder, net, optimizer, loss_of, 500, score=score)


# --------------------------------------------------------------------------------------------------------------- pairs


class Tower(nn.Module):
    """Who it is and what is known of it, in sixteen numbers."""

    def __init__(self, number, traits):
        super().__init__()
        self.register_buffer("traits", traits)
        self.embed, self.body = nn.Embedding(number, 8), dense(8 + traits.shape[1], 48, 16)
        nn.init.normal_(self.embed.weight, std=0.05)

    def forward(self, who):
        return self.body(torch.cat([self.embed(who), self.traits[who]], 1))


def visits(visitors, animals, taste):
    """Two hundred visitors' rounds of a zoo: who stood before which animal."""
    who = torch.arange(200).repeat_interleave(50)
    return who, torch.multinomial((1.5 * taste).softmax(1), 50).flatten()


@healthy()
def animals_that_visitors_of_a_zoo_like(folder):
    seeded(2797)
    visitors, animals = torch.randn(200, 6), torch.randn(150, 6)
    taste = visitors @ animals.T / 6**0.5
    who, seen = visits(visitors, animals, taste)
    liked = torch.zeros(200, 150).index_put((who, seen), torch.tensor(1.0))
    order = torch.randperm(len(who))
    who, seen = who[order], seen[order]
    net = nn.ModuleDict({"visitor": Tower(200, visitors), "animal": Tower(150, animals)})
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=1e-5)

    def error(who, seen):
        other = torch.multinomial(1 - liked[who], 1)[:, 0]
        gap = (net["visitor"](who) * (net["animal"](seen) - net["animal"](other))).sum(1)
        return -F.logsigmoid(gap).mean(), {"auc": float((gap > 0).float().mean())}

    draw = rounds(128, who[:9000], seen[:9000])
    score = held_out(net, lambda: error(who[9000:], seen[9000:])[0])
    return fit(folder, net, optimizer, lambda step: error(*draw()), 500, score=score)


@healthy()
def words_that_a_printing_house_sets_together(folder):
    seeded(2798)
    words, subjects = 240, 12
    subject, width = torch.randint(subjects, (words,)), 24
    share = (torch.rand(words) + 0.2).log()
    net = nn.ModuleDict({"word": nn.Embedding(words, width), "near": nn.Embedding(words, width)})
    nn.init.uniform_(net["word"].weight, -0.5 / width, 0.5 / width)
    nn.init.zeros_(net["near"].weight)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, 600)
    together = (share + 4 * (subject[:, None] == subject)).softmax(1)

    def loss_of(step):
        word = torch.multinomial(share.exp(), 256, replacement=True)
        near = torch.multinomial(together[word], 1)[:, 0]
        others = torch.multinomial((0.75 * share).exp(), 256 * 5, replacement=True).view(256, 5)
        v = net["word"](word)
        meant = (v * net["near"](near)).sum(1)
        wrong = (v[:, None] * net["near"](others)).sum(2)
        return -(F.logsigmoid(meant) + F.logsigmoid(-wrong).sum(1)).mean()

    return fit(folder, net, optimizer, loss_of, 600, schedule=schedule)


# --------------------------------------------------------------------------------------------------------- adversaries


def apart(a, b):
    """How far two sets of points are from each other, along many ways (sliced Wasserstein)."""
    ways = F.normalize(torch.randn(a.flatten(1).shape[1], 64), dim=0)
    return float(((a.flatten(1) @ ways).sort(0)[0] - (b.flatten(1) @ ways).sort(0)[0]).abs().mean())


def mushrooms(batch):
    """Caps and stems from the side, `[B, 1, 8, 8]`, between -1 and 1."""
    row, column = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij")
    top, width, middle, stem = torch.rand(4, batch, 1, 1)
    middle, top = 3 + middle, 2 + 1.5 * top
    cap = ((row - top) / 1.5).square() + ((column - middle) / (2 + 1.5 * width)).square() < 1
    foot = ((column - middle).abs() < 0.6 + stem) & (row > top)
    return (torch.where(cap, 0.8, torch.where(foot, 0.2, -0.8)) + 0.05 * torch.randn(batch, 8, 8))[:, None]


def as_in_dcgan(net):
    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
            nn.init.normal_(module.weight, 0.0, 0.02)
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 1.0, 0.02)
    return net


@healthy()
def mushrooms_drawn_for_pickers(folder):
    seeded(2799)
    make = as_in_dcgan(nn.Sequential(
        nn.ConvTranspose2d(16, 32, 2, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Tanh(),
    ))  # fmt: skip
    judge = as_in_dcgan(nn.Sequential(
        nn.Conv2d(1, 16, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 32, 4, 2, 1, bias=False), nn.BatchNorm2d(32),
        nn.LeakyReLU(0.2), nn.Conv2d(32, 1, 2), nn.Flatten(),
    ))  # fmt: skip
    of_make, of_judge = (torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.999)) for net in (make, judge))

    def made():
        return make(torch.randn(48, 16, 1, 1))

    def says(x, truth):
        logits = judge(x)
        return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, truth))

    def judge_loss():
        return says(mushrooms(48), 1.0) + says(made().detach(), 0.0)

    score = held_out(make, lambda: apart(make(torch.randn(512, 16, 1, 1)), mushrooms(512)))
    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, lambda: says(made(), 1.0), 600, score)


def lamp_days(batch):
    """Power that a street's lamps draw from noon to noon, in hours: when they come on, are dimmed and go out."""
    hour = torch.arange(24.0)
    on, out, dim = 6 + 2 * torch.rand(batch, 1), 16 + 3 * torch.rand(batch, 1), 0.4 + 0.4 * torch.rand(batch, 1)
    lit = ((hour - on) * 2).sigmoid() * ((out - hour) * 2).sigmoid()
    dimmed = ((hour - 10.5) * 2).sigmoid() * ((15.5 - hour) * 2).sigmoid()
    return 2 * lit * (1 - (1 - dim) * dimmed) - 1 + 0.05 * torch.randn(batch, 24)


@healthy()
def power_of_street_lamps_made_up(folder):
    seeded(2800)
    make, judge = dense(8, 64, 64, 24), dense(24, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make, of_judge = (torch.optim.Adam(net.parameters(), lr=5e-4, betas=(0.0, 0.9)) for net in (make, judge))

    def slope(real, fake):
        share = torch.rand(len(real), 1)
        between = (share * real + (1 - share) * fake).requires_grad_()
        (by,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
        return (by.norm(dim=1) - 1).square().mean()

    def judge_loss():
        real, fake = lamp_days(64), make(torch.randn(64, 8)).detach()
        return judge(fake).mean() - judge(real).mean() + 10 * slope(real, fake)

    def make_loss():
        return -judge(make(torch.randn(64, 8))).mean()

    score = held_out(make, lambda: apart(make(torch.randn(512, 8)), lamp_days(512)))
    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 300, score, rounds=5)


# --------------------------------------------------------------------------------------------------------------- codes


def logs(batch):
    """Half widths along a log in thirty-two places: taper, bow, a thick foot, a knot."""
    place = torch.linspace(-1, 1, 32)
    taper, bow, foot, knot = torch.randn(4, batch, 1)
    at = torch.rand(batch, 1) * 2 - 1
    shape = taper * place + bow * (place.square() - 0.33) + foot * (-4 * (place + 1)).exp() * 2
    return shape + 0.8 * knot.abs() * (-60 * (place - at).square()).exp() + 0.1 * torch.randn(batch, 32)


@healthy()
def logs_of_a_sawmill_in_a_few_numbers(folder):
    seeded(2801)
    net = nn.ModuleDict({"code": dense(32, 96, 96, 12), "back": dense(6, 96, 96, 32)})
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def parts(x):
        middle, log_var = net["code"](x).chunk(2, 1)
        z = middle + (0.5 * log_var).exp() * torch.randn_like(middle)
        misfit = 0.5 * ((net["back"](z) - x) / 0.3).square().sum(1).mean()
        return misfit, 0.5 * (middle.square() + log_var.exp() - log_var - 1).sum(1).mean()

    def loss_of(step):
        misfit, kl = parts(logs(64))
        return misfit + min(1.0, (step + 1) / 150) * kl, {"misfit": float(misfit), "kl": float(kl)}

    kept = logs(512)
    return fit(folder, net, optimizer, loss_of, 700, score=held_out(net, lambda: sum(parts(kept))))


def oven_days(rows):
    """The warmth of a baker's oven over forty-eight half hours: two or three firings, each cools by its own rate."""
    time = torch.arange(48.0)
    heat = torch.zeros(rows, 48)
    for start in (6, 20, 33):
        since = time - start - 5 * torch.rand(rows, 1)
        fired = (torch.rand(rows, 1) < 0.85) * (0.7 + 0.6 * torch.rand(rows, 1))
        heat = heat + fired * since.sigmoid() * (-since.clamp(min=0) / (4 + 8 * torch.rand(rows, 1))).exp()
    return 3 * (heat - 0.35)


@healthy()
def bakers_oven_without_the_noise(folder):
    seeded(2802)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 5, 2, 2), nn.ReLU(), nn.Conv1d(16, 32, 5, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(384, 32),
        nn.ReLU(), nn.Linear(32, 384), nn.ReLU(), nn.Unflatten(1, (32, 12)), nn.ConvTranspose1d(32, 16, 4, 2, 1),
        nn.ReLU(), nn.ConvTranspose1d(16, 1, 4, 2, 1),
    )  # fmt: skip
    clean = oven_days(4500)[:, None]
    draw = rounds(64, clean[:4000])
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def error(x):
        lost = torch.rand_like(x) < 0.1
        return F.mse_loss(net((x + 0.4 * torch.randn_like(x)).masked_fill(lost, 0)), x)

    score = held_out(net, lambda: error(clean[4000:]))
    return fit(folder, net, optimizer, lambda step: error(draw()[0]), 600, score=score)
