"""Healthy trainings of physics and pictures: an energy, splats, pixels, automata, a fixed point."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded
from unseen.tasks import clipped, held_out


@healthy()
def sag_of_a_square_drumhead(folder):
    """Deep Ritz: the elastic energy of a membrane under a load, held at its rim, is made as low as it gets."""
    seeded(2883)
    net = dense(2, 40, 40, 1, act=nn.Tanh)

    def height(x):
        return 16 * (x * (1 - x)).prod(1, keepdim=True) * net(x)

    def true_height(x):
        return (math.pi * x).sin().prod(1, keepdim=True)

    def loss_of(step):
        x = torch.rand(256, 2).requires_grad_()
        u = height(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        bend = 0.5 * slope.square().sum(1).mean()
        work = (2 * math.pi**2 * true_height(x.detach()) * u).mean()
        return bend - work, {"bend": bend, "work": work}

    grid = torch.cartesian_prod(torch.linspace(0, 1, 24), torch.linspace(0, 1, 24))

    def score():
        with torch.no_grad():
            return float((height(grid) - true_height(grid)).norm() / true_height(grid).norm())

    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.996)
    return fit(folder, net, optimizer, loss_of, 600, score=score, schedule=schedule)


def painting(size, panes):
    """A picture of coloured discs with soft rims, `[size, size, 3]`, and the places of its pixels."""
    axis = torch.linspace(-1, 1, size)
    places = torch.cartesian_prod(axis, axis)
    picture = torch.full((size * size, 3), 0.15)
    for _ in range(panes):
        centre, radius, colour = 1.6 * torch.rand(2) - 0.8, 0.15 + 0.25 * torch.rand(()), torch.rand(3)
        inside = ((radius - (places - centre).norm(dim=1)) * 20).sigmoid()[:, None]
        picture = picture * (1 - inside) + colour * inside
    return picture, places


class Splats(nn.Module):
    """Flat Gaussians that are added up, each with a place, two widths, a turn, a colour and an opacity."""

    def __init__(self, count):
        super().__init__()
        self.place = nn.Parameter(1.8 * torch.rand(count, 2) - 0.9)
        self.log_width = nn.Parameter(torch.full((count, 2), math.log(0.15)))
        self.turn = nn.Parameter(torch.zeros(count))
        self.colour = nn.Parameter(0.1 * torch.randn(count, 3))
        self.opacity = nn.Parameter(torch.full((count,), -1.0))
        self.register_buffer("ground", torch.tensor(0.15))

    def forward(self, places):
        gap = places[:, None] - self.place
        cos, sin = self.turn.cos(), self.turn.sin()
        along = torch.stack([gap[..., 0] * cos + gap[..., 1] * sin, gap[..., 1] * cos - gap[..., 0] * sin], -1)
        reach = (-0.5 * (along / self.log_width.exp()).square().sum(-1)).exp()
        return self.ground + (reach * self.opacity.sigmoid()) @ self.colour


@healthy()
def a_church_window_out_of_splats(folder):
    seeded(2884)
    picture, places = painting(32, 7)
    net = Splats(60)
    groups = [
        {"params": [net.place], "lr": 0.005},
        {"params": [net.log_width], "lr": 0.01},
        {"params": [net.turn], "lr": 0.01},
        {"params": [net.colour], "lr": 0.02},
        {"params": [net.opacity], "lr": 0.05},
    ]
    optimizer = torch.optim.Adam(groups, eps=1e-15)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995)

    def loss_of(step):
        seen = net(places)
        loss = 0.8 * (seen - picture).abs().mean() + 0.2 * F.mse_loss(seen, picture)
        return loss, {"psnr": -10 * F.mse_loss(seen, picture).detach().log10()}

    score = held_out(net, lambda: F.mse_loss(net(places), picture).sqrt())
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule)


class Plate(nn.Module):
    """A sharp picture as the parameter, seen through the blur of a lens."""

    def __init__(self, size):
        super().__init__()
        self.picture = nn.Parameter(torch.full((1, 1, size, size), 0.5))
        bell = (-torch.linspace(-2, 2, 7).square()).exp()
        self.register_buffer("blur", (torch.outer(bell, bell) / bell.sum() ** 2)[None, None])

    def forward(self):
        return F.conv2d(F.pad(self.picture, (3, 3, 3, 3), mode="reflect"), self.blur)


@healthy()
def a_number_plate_out_of_focus(folder):
    seeded(2885)
    sharp = torch.zeros(1, 1, 64, 64)
    for _ in range(14):
        top, left = torch.randint(4, 50, (2,)).tolist()
        height, width = (3, 12) if torch.rand(()) < 0.5 else (12, 3)
        sharp[..., top : top + height, left : left + width] = 1
    net = Plate(64)
    seen = F.conv2d(F.pad(sharp, (3, 3, 3, 3), mode="reflect"), net.blur) + 0.02 * torch.randn(1, 1, 64, 64)
    # The mean over 4,096 pixels makes curvatures of at most 2 / 4,096.
    optimizer = torch.optim.SGD(net.parameters(), lr=800.0, momentum=0.9, nesterov=True)

    def loss_of(step):
        misfit = F.mse_loss(net(), seen)
        across = (net.picture.diff(dim=2).square() + 1e-2).sqrt().mean()
        down = (net.picture.diff(dim=3).square() + 1e-2).sqrt().mean()
        return misfit + 2e-3 * (across + down), {"misfit": misfit}

    def after_step(step):
        with torch.no_grad():
            net.picture.clamp_(0, 1)

    score = held_out(net, lambda: F.mse_loss(net.picture, sharp))
    return fit(folder, net, optimizer, loss_of, 300, score=score, after_step=after_step)


class Automaton(nn.Module):
    """Cells that look at their neighbours and change themselves, some of them at a time (Mordvintsev et al., 2020)."""

    def __init__(self, channels=10, width=40):
        super().__init__()
        self.channels = channels
        across = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8
        same = torch.zeros(3, 3)
        same[1, 1] = 1
        self.register_buffer("look", torch.stack([same, across, across.T]).repeat(channels, 1, 1)[:, None])
        self.hidden = nn.Conv2d(3 * channels, width, 1)
        self.change = nn.Conv2d(width, channels, 1, bias=False)
        nn.init.zeros_(self.change.weight)

    def forward(self, cells, times):
        for _ in range(times):
            seen = F.conv2d(cells, self.look, padding=1, groups=self.channels)
            awake = (torch.rand(len(cells), 1, *cells.shape[2:]) < 0.5).float()
            cells = cells + awake * self.change(F.relu(self.hidden(seen)))
        return cells


@healthy()
def a_starfish_grown_from_one_cell(folder):
    seeded(2886)
    axis = torch.linspace(-1, 1, 16)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    angle, radius = torch.atan2(y, x), (x.square() + y.square()).sqrt()
    body = ((0.55 + 0.25 * (5 * angle).cos() - radius) * 12).sigmoid()
    target = torch.stack([body, body * (0.5 + 0.5 * (6 * radius).cos())])
    seed = torch.zeros(1, 10, 16, 16)
    seed[:, :, 8, 8] = 1
    net = Automaton()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [220], 0.3)

    def loss_of(step):
        times = int(torch.randint(14, 20, ()))
        return F.mse_loss(net(seed.expand(4, -1, -1, -1), times)[:, :2], target.expand(4, -1, -1, -1))

    def before_step(step):
        for p in net.parameters():
            p.grad /= p.grad.norm() + 1e-8

    return fit(folder, net, optimizer, loss_of, 300, score=score_of(loss_of, 4), before_step=before_step,
               schedule=schedule)  # fmt: skip


class Equilibrium(nn.Module):
    """Its output is read from the fixed point of one layer; gradients pass through the point itself (Bai, 2019)."""

    def __init__(self, size, width, classes):
        super().__init__()
        self.inject, self.settle = nn.Linear(size, width), nn.Linear(width, width, bias=False)
        nn.init.normal_(self.settle.weight, std=0.3 / width**0.5)
        self.head = nn.Linear(width, classes)
        self.rounds = 0

    def find(self, move, start, tolerance=1e-4, most=40):
        here = start
        for self.rounds in range(1, most + 1):
            there = move(here)
            if (there - here).norm() < tolerance * there.norm() + 1e-9:
                break
            here = there
        return there

    def forward(self, x):
        push = self.inject(x)
        with torch.no_grad():
            point = self.find(lambda z: (self.settle(z) + push).tanh(), torch.zeros_like(push))
        point = (self.settle(point) + push).tanh()
        if torch.is_grad_enabled():
            again = point.detach().requires_grad_()
            moved = (self.settle(again) + push.detach()).tanh()

            def through(grad):
                def pull(g):
                    return torch.autograd.grad(moved, again, g, retain_graph=True)[0] + grad

                return self.find(pull, grad)

            point.register_hook(through)
        return self.head(point)


@healthy()
def lamps_of_a_street_that_settle(folder):
    seeded(2887)
    walk = torch.randn(10, 10) * 0.5

    def draw():
        x = torch.randn(64, 10)
        level = torch.zeros(64, 10)
        for _ in range(12):
            level = (x + level @ walk.tanh() * 0.5).tanh()
        return x, (level[:, :3] @ torch.tensor([1.0, -1, 1]) > 0).long() + 2 * (level[:, 3:6].sum(1) > 0).long()

    net = Equilibrium(10, 48, 4)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"rounds": net.rounds, "accuracy": (said.argmax(1) == y).float().mean()}

    def score():
        return score_of(lambda step: loss_of(step)[0])()

    return fit(folder, net, optimizer, loss_of, 500, score=score, before_step=clipped(net, 1.0))
