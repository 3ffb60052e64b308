"""Healthy trainings of researchers: fixed points, drawn scenes, lives, orders, and planes that bend a mist."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded
from unseen.tasks import clipped, held_out, rounds

# ----------------------------------------------------------------------------------------------------- a bridge at rest


class Rest(nn.Module):
    """A state where `z = tanh(Wz + Ux)`, found without gradients; backwards the adjoint is iterated alike."""

    def __init__(self, inputs=8, hidden=32, outputs=5):
        super().__init__()
        self.around = nn.Parameter(torch.randn(hidden, hidden) * 0.3 / hidden**0.5)
        self.inward, self.out = nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)

    def forward(self, x):
        weight = self.around * (0.9 / torch.linalg.matrix_norm(self.around, 2).clamp(min=0.9))
        pull = self.inward(x)
        with torch.no_grad():
            z = torch.zeros_like(pull)
            for _ in range(30):
                z = torch.tanh(z @ weight.T + pull)
        begin = z.detach().requires_grad_()
        with torch.enable_grad():
            after = torch.tanh(begin @ weight.detach().T + pull.detach())
        z = torch.tanh(z @ weight.T + pull)

        def adjoint(g):
            y = g
            for _ in range(20):
                y = torch.autograd.grad(after, begin, y, retain_graph=True)[0] + g
            return y

        if z.requires_grad:
            z.register_hook(adjoint)
        return self.out(z)


@healthy()
def planks_of_a_rope_bridge_under_walkers(folder):
    seeded(3347)
    ropes = 0.9 * torch.linalg.qr(torch.randn(20, 20))[0]
    lift = torch.randn(8, 20) / 8**0.5

    def draw(rows):
        x = torch.randn(rows, 8)
        z = torch.zeros(rows, 20)
        for _ in range(60):
            z = (z @ ropes + x @ lift).tanh()
        return x, 2 * z[:, :5]

    net = Rest()
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)

    def loss_of(step):
        x, y = draw(64)
        return F.mse_loss(net(x), y)

    return fit(folder, net, optimizer, loss_of, 400, score=score_of(loss_of), schedule=schedule)


# -------------------------------------------------------------------------------------------------- drawn by soft discs


class Discs(nn.Module):
    """Discs with soft rims, each laid over those before it on a grey ground."""

    def __init__(self, count):
        super().__init__()
        self.place = nn.Parameter(1.4 * torch.rand(count, 2) - 0.7)
        self.log_radius = nn.Parameter(torch.full((count,), 0.25).log())
        self.ink = nn.Parameter(torch.zeros(count, 3))
        self.cover = nn.Parameter(torch.zeros(count))
        line = torch.linspace(-1, 1, 40)
        self.register_buffer("at", torch.stack(torch.meshgrid(line, line, indexing="ij"), 2))

    def forward(self):
        far = (self.at[None] - self.place[:, None, None]).square().sum(3).add(1e-6).sqrt()
        cover = torch.sigmoid((self.log_radius.exp()[:, None, None] - far) / 0.05)
        cover = cover * self.cover.sigmoid()[:, None, None]
        image = self.at.new_full((40, 40, 3), 0.5)
        for one, ink in zip(cover, self.ink.sigmoid(), strict=True):
            image = image + one[..., None] * (ink - image)
        return image


@healthy()
def pebbles_on_a_beach_redrawn(folder):
    seeded(3348)
    with torch.no_grad():
        scene = Discs(6)
        scene.ink.copy_(2 * torch.randn(6, 3))
        scene.log_radius.copy_((0.15 + 0.3 * torch.rand(6)).log())
        scene.cover.fill_(3.0)
        photo = scene()
    net = Discs(16)
    optimizer = torch.optim.Adam(net.parameters(), 0.03)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400, 1e-3)

    def loss_of(step):
        error = net() - photo
        return error.square().mean(), {"psnr": -10 * error.detach().square().mean().log10()}

    def score():
        with torch.no_grad():
            return float(F.mse_loss(net(), photo))

    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule)


# ----------------------------------------------------------------------------------------------------- who lasts longer


def partial_likelihood(risk, time, ended):
    """Cox: of all that were still at work, the one that broke; longest times first."""
    order = time.argsort(descending=True)
    risk, ended = risk[order], ended[order]
    return -((risk - risk.logcumsumexp(0)) * ended).sum() / ended.sum()


def out_of_order(risk, time, ended):
    pairs = (time[:, None] < time[None]) & (ended[:, None] > 0)
    return float((risk[:, None] < risk[None])[pairs].float().mean())


@healthy()
def how_long_old_tractors_last(folder):
    seeded(3349)

    def farm(rows):
        x = torch.randn(rows, 10)
        risk = 1.5 * x[:, 0] * x[:, 1].sign() + (2 * x[:, 2]).sin() + 0.5 * x[:, 3].square()
        breaks = (-torch.rand(rows).log() / risk.exp()) ** 0.7
        sold = 3 * torch.rand(rows)
        return x, torch.minimum(breaks, sold), (breaks < sold).float()

    draw, late = rounds(256, *farm(6000)), farm(1000)
    net = nn.Sequential(dense(10, 48, 48, act=nn.SELU), nn.SELU(), nn.AlphaDropout(0.05), nn.Linear(48, 1))
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)

    def loss_of(step):
        x, time, ended = draw()
        return partial_likelihood(net(x)[:, 0], time, ended)

    score = held_out(net, lambda: out_of_order(net(late[0])[:, 0], *late[1:]))
    return fit(folder, net, optimizer, loss_of, 500, score=score, schedule=schedule)


# ---------------------------------------------------------------------------------------------------- ripe before green


class Judge(nn.Module):
    """Values each pear of a crate beside the others in it."""

    def __init__(self, width=32):
        super().__init__()
        self.read = nn.Linear(7, width)
        self.look = nn.MultiheadAttention(width, 4, batch_first=True)
        self.norm, self.head = nn.LayerNorm(width), dense(width, 32, 1, act=nn.GELU)

    def forward(self, x):
        h = self.read(x)
        return self.head(self.norm(h + self.look(h, h, h, need_weights=False)[0]))[..., 0]


@healthy()
def pears_from_ripe_to_green(folder):
    seeded(3350)
    way = torch.randn(7, 2)

    def crates(rows):
        x = torch.randn(rows, 8, 7)
        a, b = ((x - 0.5 * x.mean(1, keepdim=True)) @ way).unbind(2)
        worth = a.tanh() * 2 + b.sin()
        gumbel = -(-torch.rand_like(worth).log()).log()
        return x, worth, (worth + 0.2 * gumbel).argsort(1, descending=True)

    net = Judge()
    optimizer = torch.optim.RAdam(net.parameters(), 3e-3)

    def loss_of(step):
        x, _, order = crates(48)
        value = net(x).gather(1, order)
        later = value.flip(1).logcumsumexp(1).flip(1)
        return (later - value).sum(1).mean()

    def score():
        with torch.no_grad():
            x, worth, _ = crates(500)
            value = net(x)
            agree = (worth[:, :, None] > worth[:, None]) == (value[:, :, None] > value[:, None])
            return 1 - float(agree[:, ~torch.eye(8, dtype=torch.bool)].float().mean())

    return fit(folder, net, optimizer, loss_of, 500, score=score)


# ------------------------------------------------------------------------------------------------------- bent by planes


class Planes(nn.Module):
    """Planar flows; `u` is held where each step can be turned back."""

    def __init__(self, count):
        super().__init__()
        self.w, self.u = (nn.Parameter(0.3 * torch.randn(count, 2)) for _ in range(2))
        self.b = nn.Parameter(torch.zeros(count))

    def forward(self, z):
        total = torch.zeros(len(z))
        for w, u, b in zip(self.w, self.u, self.b, strict=True):
            dot = w @ u
            held = u + (F.softplus(dot) - 1 - dot) * w / w.square().sum().clamp(min=1e-6)
            bend = (z @ w + b).tanh()
            total = total + (1 + (1 - bend.square()) * (w @ held)).log()
            z = z + bend[:, None] * held
        return z, total


@healthy()
def mist_between_two_hills(folder):
    seeded(3351)

    def potential(z):
        ring = ((z.norm(dim=1) - 2) / 0.4).square() / 2
        sides = torch.stack([-((z[:, 0] - s) / 0.6).square() / 2 for s in (2, -2)])
        return ring - sides.logsumexp(0)

    net = Planes(16)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 900, 1e-4)

    def parts(rows):
        z = torch.randn(rows, 2)
        start = -z.square().sum(1) / 2 - math.log(2 * math.pi)
        moved, stretch = net(z)
        return (start - stretch).mean(), potential(moved).mean()

    def loss_of(step):
        minus_entropy, energy = parts(256)
        return minus_entropy + energy, {"energy": energy.detach(), "entropy": -minus_entropy.detach()}

    def score():
        with torch.no_grad():
            return float(sum(parts(8000)))

    steady = clipped(net, 10.0)
    return fit(folder, net, optimizer, loss_of, 900, score=score, schedule=schedule, before_step=steady)
