"""Healthy trainings of researchers: calibration, great widths, periodic units, energies, soft orders."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, entropy_of, fit, healthy, rings, score_of, seeded
from unseen.tasks import clipped

# ------------------------------------------------------------------------------------------------------- how sure to be


class Humbler(nn.Module):
    """What a forecaster says, with a temperature and a leaning of each kind."""

    def __init__(self, kinds):
        super().__init__()
        self.log_heat = nn.Parameter(torch.zeros(()))
        self.lean = nn.Parameter(torch.zeros(kinds))

    def forward(self, said):
        return said / self.log_heat.exp() + self.lean


@healthy()
def forecasts_of_hail_that_are_too_sure(folder):
    seeded(3365)
    bias = torch.tensor([1.5, 0.0, -1.0, -0.5])

    def forecasts(rows):
        belief = 1.5 * torch.randn(rows, 4)
        kind = torch.distributions.Categorical(logits=belief).sample()
        return belief, 3 * belief + bias, kind

    _, heard, came = forecasts(3000)
    net = Humbler(4)
    optimizer = torch.optim.Adam(net.parameters(), 0.03)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)

    def loss_of(step):
        at = torch.randint(3000, (256,))
        return F.cross_entropy(net(heard[at]), came[at]), {"temperature": net.log_heat.detach().exp()}

    def score():
        """How far what is said is from what was meant, in nats."""
        belief, said, _ = forecasts(5000)
        with torch.no_grad():
            return float(F.kl_div(net(said).log_softmax(1), belief.softmax(1), reduction="batchmean"))

    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule)


# ---------------------------------------------------------------------------------------------------- as wide as can be


class Wide(nn.Module):
    """Widths of the maximal update: the head is divided by the width, and begins at nothing."""

    def __init__(self, inputs, width, outputs):
        super().__init__()
        self.into, self.middle, self.out = (
            nn.Linear(a, b) for a, b in ((inputs, width), (width, width), (width, outputs))
        )
        self.share = 64 / width
        nn.init.normal_(self.into.weight, std=inputs**-0.5)
        nn.init.normal_(self.middle.weight, std=(2 / width) ** 0.5)
        nn.init.zeros_(self.out.weight)

    def forward(self, x):
        return self.out(self.share * F.relu(self.middle(F.relu(self.into(x)))))


@healthy()
def glints_on_a_wide_lake(folder):
    seeded(3366)
    width = 1024
    net = Wide(12, width, 4)
    outer = [*net.into.parameters(), net.middle.bias, *net.out.parameters()]
    optimizer = torch.optim.Adam(
        [{"params": outer, "lr": 4e-3}, {"params": [net.middle.weight], "lr": 4e-3 * 64 / width}]
    )
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, 150)
    loss_of = entropy_of(net, rings(64))
    return fit(folder, net, optimizer, loss_of, 150, score=score_of(loss_of), schedule=schedule)


# ------------------------------------------------------------------------------------------------------ units that wave


class Snake(nn.Module):
    def __init__(self, units, pace):
        super().__init__()
        self.log_pace = nn.Parameter((pace * torch.rand(units) + 0.2).log())

    def forward(self, x):
        pace = self.log_pace.exp()
        return x + (pace * x).sin().square() / pace


@healthy()
def a_bay_between_spring_and_neap_tides(folder):
    seeded(3367)

    def level(t):
        return (2.0 * t).sin() + 0.45 * (2.3 * t + 1).sin() + 0.05 * t

    hours = torch.rand(1500, 1) * 20 - 10
    seen = level(hours) + 0.05 * torch.randn_like(hours)
    net = nn.Sequential(nn.Linear(1, 64), Snake(64, 4.0), nn.Linear(64, 64), Snake(64, 1.0), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 900)

    def loss_of(step):
        at = torch.randint(1500, (128,))
        return F.huber_loss(net(hours[at]), seen[at], delta=0.5)

    def score():
        t = torch.rand(1000, 1) * 20 - 10
        with torch.no_grad():
            return float(F.mse_loss(net(t), level(t)))

    steady = clipped(net, 5.0)
    return fit(folder, net, optimizer, loss_of, 900, score=score, schedule=schedule, before_step=steady)


# ----------------------------------------------------------------------------------------------- what a swing conserves


class Energies(nn.Module):
    """The energy of a place and that of a momentum; leaps of a frog follow their slopes."""

    def __init__(self):
        super().__init__()
        self.place, self.moving = (dense(2, 40, 40, 1, act=nn.Tanh) for _ in range(2))

    def slope(self, energy, x):
        with torch.enable_grad():
            x = x if x.requires_grad else x.detach().requires_grad_()
            return torch.autograd.grad(energy(x).sum(), x, create_graph=True)[0]

    def forward(self, q, p, dt, count):
        way = []
        for _ in range(count):
            p = p - dt / 2 * self.slope(self.place, q)
            q = q + dt * self.slope(self.moving, p)
            p = p - dt / 2 * self.slope(self.place, q)
            way.append(torch.cat([q, p], 1))
        return torch.stack(way, 1)


def two_swings(q, p, dt, count, within=10):
    """Two swings of unlike weight, tied by a weak spring."""
    weight, way = torch.tensor([1.0, 1.6]), []

    def pull(q):
        tie = 0.5 * (q[:, :1] - q[:, 1:])
        return -weight * q.sin() - torch.cat([tie, -tie], 1)

    for _ in range(count):
        for _ in range(within):
            p = p + dt / within / 2 * pull(q)
            q = q + dt / within * p / weight
            p = p + dt / within / 2 * pull(q)
        way.append(torch.cat([q, p], 1))
    return torch.stack(way, 1)


@healthy()
def two_swings_tied_by_a_cord(folder):
    seeded(3368)
    starts = 1.2 * torch.randn(400, 2), 0.8 * torch.randn(400, 2)
    films = two_swings(*starts, 0.2, 4)
    films = films + 0.005 * torch.randn_like(films)
    net = Energies()
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 350, 4e-5)

    def loss_of(step):
        at = torch.randint(400, (64,))
        return F.mse_loss(net(starts[0][at], starts[1][at], 0.2, 4), films[at])

    def score():
        q, p = 1.2 * torch.randn(300, 2), 0.8 * torch.randn(300, 2)
        return float(F.mse_loss(net(q, p, 0.2, 10).detach(), two_swings(q, p, 0.2, 10)))

    return fit(folder, net, optimizer, loss_of, 350, score=score, schedule=schedule)


# ---------------------------------------------------------------------------------------------- slips put back in order


class Orderer(nn.Module):
    """A soft permutation of six slips: Sinkhorn's rows and columns on what is said of each slip beside the rest."""

    def __init__(self, width=64):
        super().__init__()
        self.read = nn.Sequential(nn.Linear(5, width), nn.SiLU())
        self.place = dense(2 * width, width, 6, act=nn.SiLU)

    def forward(self, slips, heat, shaken):
        h = self.read(slips)
        said = self.place(torch.cat([h, h.mean(1, keepdim=True).expand_as(h)], 2))
        if shaken:
            said = said - shaken * (-torch.rand_like(said).clamp(1e-6, 1 - 1e-6).log()).log()
        said = said / heat
        for _ in range(12):
            said = said - said.logsumexp(2, keepdim=True)
            said = said - said.logsumexp(1, keepdim=True)
        return said.exp()


@healthy()
def slips_of_a_torn_receipt(folder):
    seeded(3369)
    t = torch.linspace(0, 1, 30)

    def receipts(rows):
        rise, wave, phase = 2 + torch.rand(rows, 1), 0.4 * torch.rand(rows, 1), 6.2832 * torch.rand(rows, 1)
        curve = rise * (t - 0.5) + wave * (2 * math.pi * 2 * t + phase).sin() + 0.8 * torch.randn(rows, 1)
        whole = (curve + 0.02 * torch.randn(rows, 30)).unflatten(1, (6, 5))
        order = torch.rand(rows, 6).argsort(1)
        return whole, whole.gather(1, order[:, :, None].expand(-1, -1, 5)), order

    net = Orderer()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500, 1e-4)

    def loss_of(step):
        whole, slips, order = receipts(64)
        soft = net(slips, 0.5, 0.2)
        right = soft.detach().argmax(2) == order
        return F.mse_loss(soft.transpose(1, 2) @ slips, whole), {"in_place": right.float().mean()}

    def score():
        _, slips, order = receipts(1000)
        with torch.no_grad():
            return float((net(slips, 0.5, 0).argmax(2) != order).float().mean())

    return fit(folder, net, optimizer, loss_of, 500, score=score, schedule=schedule)
