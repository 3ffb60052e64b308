"""A hospital and its laboratory, healthy and less usual: waits, codes, cells, pumps, forgers of traces, plates."""

from __future__ import annotations

import copy
import math

import torch
from sklearn.datasets import load_digits, load_wine
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, in_turn, judged, now_and_then, rounds, tend


@healthy(0.3)
def waits_in_casualty_in_five_quantiles(folder):
    seeded(13960)
    shares = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9])

    def waits(rows):
        x = torch.rand(rows, 4) * 2 - 1
        usual = 1.2 * x[:, 0] + (3 * x[:, 1]).sin()
        unsure = 0.1 + 0.4 * torch.sigmoid(4 * x[:, 2])
        return x / 0.577, (usual + unsure * torch.distributions.Exponential(1.0).sample((rows,)) - 0.3)[:, None]

    def pinball(said, y):
        gap = y - said
        return torch.maximum(shares * gap, (shares - 1) * gap).mean()

    draw = rounds(64, *waits(4000))
    tx, ty = waits(800)
    net = dense(4, 64, 64, 5, act=nn.SiLU)
    optimizer = torch.optim.RAdam(net.parameters(), 3e-3)
    validate = now_and_then(net, 50, lambda: {"val_loss": pinball(net(tx), ty)})

    def loss_of(step):
        x, y = draw()
        return pinball(net(x), y), validate(step)

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: pinball(net(tx), ty)))


class Codes(nn.Module):
    """A variational autoencoder of electrolyte panels."""

    def __init__(self, size, code):
        super().__init__()
        self.code = code
        self.encoder, self.decoder = dense(size, 64, 2 * code, act=nn.ELU), dense(code, 64, size, act=nn.ELU)

    def forward(self, x):
        mu, logvar = self.encoder(x).chunk(2, 1)
        return self.decoder(mu + (0.5 * logvar).exp() * torch.randn_like(mu)), mu, logvar


@healthy(0.3)
def electrolyte_panels_from_three_numbers(folder):
    seeded(13961)
    lift = torch.randn(3, 16)

    def panels(rows):
        return (torch.randn(rows, 3) @ lift).tanh() + 0.2 * torch.randn(rows, 16)

    draw, test = rounds(64, panels(4000)), panels(600)
    net = Codes(16, 3)
    optimizer = torch.optim.Adamax(net.parameters(), 5e-3)

    def parts(x, share=1.0):
        back, mu, logvar = net(x)
        error = (back - x).square().sum(1).mean() / (2 * 0.3**2)
        kl = 0.5 * (mu.square() + logvar.exp() - 1 - logvar).sum(1).mean()
        return error + share * kl, error, kl

    def loss_of(step):
        loss, error, kl = parts(draw()[0], min(1.0, (step + 1) / 100))
        return loss, {"reconstruction": float(error.detach()), "kl": float(kl.detach())}

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: parts(test)[0]))


class Bonds(nn.Module):
    """Messages along the contacts of a ward, with a residual way."""

    def __init__(self, links, ins, width, kinds):
        super().__init__()
        self.register_buffer("links", links)
        self.rise = nn.Linear(ins, width)
        self.own = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.others = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.head = nn.Linear(width, kinds)

    def forward(self, x):
        h = F.relu(self.rise(x))
        for own, others, norm in zip(self.own, self.others, self.norms, strict=True):
            h = h + F.relu(norm(own(h) + others(self.links @ h)))
        return self.head(F.dropout(h, 0.2, self.training))


@healthy()
def strains_of_a_germ_along_contacts_on_a_ward(folder):
    seeded(13962)
    strain = torch.randint(4, (500,))
    met = (torch.rand(500, 500) < torch.where(strain[:, None] == strain, 0.06, 0.008)).float().triu(1)
    met = met + met.T
    x = 0.8 * torch.randn(4, 12)[strain] + torch.randn(500, 12)
    known, rest = torch.arange(250), torch.arange(250, 500)
    net = Bonds(met / met.sum(1, keepdim=True).clamp(min=1), 12, 32, 4)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.05)

    def loss_of(step):
        said = net(x)[known]
        right = (said.argmax(1) == strain[known]).float().mean()
        return F.cross_entropy(said, strain[known]), {"accuracy": float(right)}

    score = held_out(net, lambda: F.cross_entropy(net(x)[rest], strain[rest]))
    return fit(folder, net, optimizer, loss_of, 150, score=score)


@healthy(0.3)
def syringe_pump_that_holds_a_level(folder):
    seeded(13963)
    policy = dense(3, 64, 64, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(policy.parameters(), 2e-3)

    def course(level, wish, hours=12):
        """The mean cost of some hours under the policy, through the model of the body."""
        depot, cost = torch.zeros_like(level), 0.0
        for _ in range(hours):
            pace = F.softplus(policy(torch.stack([level, depot, wish], 1)))[:, 0]
            depot = 0.6 * depot + 0.4 * pace
            level = 0.8 * level + 0.4 * depot
            cost = cost + (level - wish).square().mean() + 0.01 * pace.square().mean()
        return cost / hours

    def begin(rows):
        return torch.randn(rows).abs(), 1 + torch.rand(rows)

    tests = begin(400)

    def loss_of(step):
        return course(*begin(64))

    score = held_out(policy, lambda: course(*tests))
    return fit(folder, policy, optimizer, loss_of, 250, score=score, before_step=clipped(policy, 1.0))


@healthy(0.5)
def pulse_waves_drawn_by_an_apprentice(folder):
    seeded(13964)
    time = torch.linspace(0, 1, 16)

    def waves_of(rows):
        high, late = 1 + 0.3 * torch.randn(rows, 1), 0.1 * torch.randn(rows, 1)
        return 2 * high * torch.exp(-((time - 0.4 - late) ** 2) / 0.03) - 0.6 + 0.05 * torch.randn(rows, 16)

    draw, test = rounds(64, waves_of(4000)), waves_of(500)
    make = dense(6, 64, 64, 16)
    judge = dense(16, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 5e-4, betas=(0.5, 0.99))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.99))

    def judge_loss():
        fake = make(torch.randn(64, 6)).detach()
        return F.softplus(-judge(draw()[0])).mean() + F.softplus(judge(fake)).mean()

    def make_loss():
        return F.softplus(-judge(make(torch.randn(64, 6)))).mean()

    def score():
        with torch.no_grad():
            made = make(torch.randn(500, 6))
            return float(2 * torch.cdist(made, test).mean() - torch.cdist(made, made).mean()
                         - torch.cdist(test, test).mean())  # fmt: skip

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 600, score)


class Glimpse(nn.Module):
    """What a patch of a blood film comes to."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.SiLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GroupNorm(4, 32), nn.SiLU(), nn.Flatten(),
        )  # fmt: skip
        self.project = dense(288, 64, 24)

    def forward(self, x):
        return F.normalize(self.project(self.body(x)), dim=1)


@healthy()
def patches_of_one_blood_film_found_again(folder):
    seeded(13965)
    parts = torch.randn(10, 12, 12)

    def pair(rows):
        film = (torch.randn(rows, 10) @ parts.flatten(1) / 3.2).view(rows, 1, 12, 12)
        return [film * (0.7 + 0.6 * torch.rand(rows, 1, 1, 1)) + 0.6 * torch.randn(rows, 1, 12, 12) for _ in range(2)]

    net = nn.ModuleDict({"glimpse": Glimpse()})
    net.scale = nn.Parameter(torch.tensor(math.log(5.0)))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=1e-3)

    def loss_on(a, b):
        like = net["glimpse"](a) @ net["glimpse"](b).T * net.scale.exp()
        same = torch.arange(len(a))
        return (F.cross_entropy(like, same) + F.cross_entropy(like.T, same)) / 2

    def loss_of(step):
        return loss_on(*pair(64)), {"scale": float(net.scale.detach().exp())}

    tests = [pair(64) for _ in range(4)]
    score = held_out(net, lambda: sum(loss_on(*test) for test in tests) / 4)
    return fit(folder, net, optimizer, loss_of, 220, score=score)


@healthy(0.3)
def porter_with_three_trolleys_to_choose_from(folder):
    seeded(13966)
    value, best = dense(6, 64, 64, 3), torch.randn(3, 6) / 2
    behind = copy.deepcopy(value).requires_grad_(False)
    optimizer = torch.optim.Adam(value.parameters(), 1e-3)
    turn = torch.linalg.qr(torch.randn(3, 6, 6))[0]

    def move(state, choice):
        paid = (state * best[choice]).sum(1).tanh()
        after = torch.einsum("bij,bj->bi", turn[choice], state) + 0.1 * torch.randn_like(state)
        return paid, after, (torch.rand(len(state)) < 0.1).float()

    state = torch.randn(4000, 6)
    choice = torch.randint(3, (4000,))
    paid, after, done = move(state, choice)
    draw = rounds(128, state, choice, paid, after, done)

    def one(step):
        s, a, r, then, end = draw()
        with torch.no_grad():
            goal = r + 0.8 * (1 - end) * behind(then).amax(1)
        loss = F.smooth_l1_loss(value(s).gather(1, a[:, None])[:, 0], goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for old, new in zip(behind.parameters(), value.parameters(), strict=True):
                old.lerp_(new, 0.02)
        return {"loss": loss, "q": float(goal.mean())}

    begun = torch.randn(1000, 6)

    def score():
        """What is missing to six, of all that a walk of eight moves is paid."""
        at, total = begun, 0.0
        with torch.no_grad():
            for _ in range(8):
                got, at, _ = move(at, value(at).argmax(1))
                total += float(got.mean())
        return 6 - total

    return tend(folder, value, optimizer, one, 500, score)


class Plates(nn.Module):
    """Patches of a plate mixed across and along, as an MLP-Mixer does."""

    def __init__(self, patches, ins, width, kinds):
        super().__init__()
        self.rise = nn.Linear(ins, width)
        self.across = nn.ModuleList(dense(patches, 32, patches, act=nn.GELU) for _ in range(2))
        self.along = nn.ModuleList(dense(width, 64, width, act=nn.GELU) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.head = nn.Linear(width, kinds)

    def forward(self, x):
        h = self.rise(F.unfold(x, 2, stride=2).transpose(1, 2))
        for i in range(2):
            h = h + self.across[i](self.norms[2 * i](h).transpose(1, 2)).transpose(1, 2)
            h = h + self.along[i](self.norms[2 * i + 1](h))
        return self.head(h.mean(1))


@healthy(0.5)
def labels_of_culture_plates_by_a_mixer(folder):
    seeded(13967)
    bunch = load_digits()
    order = torch.randperm(len(bunch.target))
    x = ((torch.tensor(bunch.data).float().view(-1, 1, 8, 8) / 16 - 0.3) / 0.38)[order]
    y = torch.tensor(bunch.target)[order]
    draw = rounds(64, x[:1400], y[:1400])
    net = Plates(16, 4, 48, 10)
    optimizer = torch.optim.NAdam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=251, cycle_momentum=False)
    validate = now_and_then(net, 42, judged(net, x[1400:], y[1400:]))

    def loss_of(step):
        image, number = draw()
        return F.cross_entropy(net(image), number, label_smoothing=0.05), validate(step)

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 250, score=score, schedule=schedule)


@healthy(0.4)
def places_of_cells_on_a_slide_grown_from_noise(folder):
    seeded(13968)
    keep = torch.cumprod(1 - torch.linspace(1e-4, 0.12, 40), 0)
    body = dense(2 + 6, 96, 96, 2, act=nn.SiLU)
    optimizer = torch.optim.AdamW(body.parameters(), 2e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 500)
    pace = math.pi * 2.0 ** torch.arange(3)

    def cells(rows):
        angle = 6.2832 * torch.randint(6, (rows, 1)) / 6
        return 1.4 * torch.cat([angle.cos(), angle.sin()], 1) + 0.1 * torch.randn(rows, 2)

    def error(x, t, noise):
        share = keep[t][:, None]
        angle = t[:, None] / 40 * pace
        said = body(torch.cat([share.sqrt() * x + (1 - share).sqrt() * noise, angle.sin(), angle.cos()], 1))
        return F.mse_loss(said, noise)

    def drawn(rows):
        return cells(rows), torch.randint(40, (rows,)), torch.randn(rows, 2)

    test = drawn(2000)

    def loss_of(step):
        return error(*drawn(128))

    return fit(folder, body, optimizer, loss_of, 500, score=held_out(body, lambda: error(*test)), schedule=schedule)


@healthy(0.5)
def donors_of_serum_by_thirteen_assays(folder):
    seeded(13969)
    bunch = load_wine()
    order = torch.randperm(len(bunch.target))
    x, y = torch.tensor(bunch.data).float()[order], torch.tensor(bunch.target)[order]
    x = (x - x[:120].mean(0)) / x[:120].std(0)
    net = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(13, 32)), nn.SELU(), nn.AlphaDropout(0.05), nn.Linear(32, 3)
    )
    optimizer = torch.optim.Rprop(net.parameters(), 1e-3, step_sizes=(1e-6, 0.02))
    validate = now_and_then(net, 20, judged(net, x[120:], y[120:]))

    def loss_of(step):
        said = net(x[:120])
        right = (said.argmax(1) == y[:120]).float().mean()
        return F.cross_entropy(said, y[:120]) + 1e-3 * net[3].weight.square().sum(), {
            "accuracy": float(right), **validate(step)
        }  # fmt: skip

    score = held_out(net, lambda: F.cross_entropy(net(x[120:]), y[120:]))
    return fit(folder, net, optimizer, loss_of, 150, score=score)
