"""Fields and laws: equations, flows, densities, inner products of motion."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, rounds


class Energy(nn.Module):
    """Motion as Hamilton's equations of one learnt number."""

    def __init__(self):
        super().__init__()
        self.net = dense(2, 64, 64, 1, act=nn.Tanh)

    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.net(x).sum(), x, create_graph=True)
        return torch.stack([slope[:, 1], -slope[:, 0]], 1)


@healthy(gain=0.9)
def energy_of_a_church_bell_on_its_beam(folder):
    """A Hamiltonian network on noisy slopes of a pendulum."""
    seeded(10010)

    def motion(n):
        x = (2 * torch.rand(n, 2) - 1) * torch.tensor([2.5, 2.0])
        return x, torch.stack([x[:, 1], -3 * x[:, 0].sin()], 1) + 0.05 * torch.randn(n, 2)

    data, (x_test, y_test), net = motion(1500), motion(300), Energy()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, weight_decay=1e-4)
    draw = rounds(64, *data)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.mse_loss(net(x_test), y_test)))


class Coupling(nn.Module):
    def __init__(self, first):
        super().__init__()
        self.first, self.net = first, dense(1, 48, 48, 2)
        nn.init.zeros_(self.net[-1].weight)

    def forward(self, x):
        kept, moved = (x[:, :1], x[:, 1:]) if self.first else (x[:, 1:], x[:, :1])
        scale, shift = self.net(kept).chunk(2, 1)
        scale = scale.tanh()
        moved = moved * scale.exp() + shift
        return torch.cat([kept, moved] if self.first else [moved, kept], 1), scale[:, 0]


@healthy(gain=0.3)
def where_swifts_turn_between_two_towers(folder):
    """A flow of six affine couplings on two half moons, by likelihood."""
    seeded(10011)

    def turns(n):
        side, angle = torch.randint(2, (n,)).float(), math.pi * torch.rand(n)
        sign = 1 - 2 * side
        flat = torch.stack([angle.cos() * sign + side - 0.5, angle.sin() * sign + 0.5 * side - 0.25], 1)
        return (flat + 0.05 * torch.randn(n, 2)) / torch.tensor([0.87, 0.5])

    class Flow(nn.ModuleList):
        def forward(self, x):
            total = 0
            for layer in self:
                x, scale = layer(x)
                total = total + scale
            return (0.5 * (x**2).sum(1) + math.log(2 * math.pi) - total).mean()

    net, test = Flow(Coupling(i % 2 == 0) for i in range(6)), turns(1000)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    return fit(
        folder, net, optimizer, lambda step: net(turns(128)), 400,
        schedule=CosineAnnealingLR(optimizer, 400), score=held_out(net, lambda: net(test)),
        before_step=lambda step: nn.utils.clip_grad_norm_(net.parameters(), 5.0),
    )  # fmt: skip


class Sine(nn.Module):
    """A layer of sines with their own first weights (SIREN)."""

    def __init__(self, a, b, first=False):
        super().__init__()
        self.linear = nn.Linear(a, b)
        most = 1 / a if first else math.sqrt(6 / a) / 30
        nn.init.uniform_(self.linear.weight, -most, most)

    def forward(self, x):
        return (30 * self.linear(x)).sin()


@healthy(gain=0.9)
def grain_of_a_walnut_panel_from_its_places(folder):
    """Sines of sines from a place to a brightness, all places at once."""
    seeded(10012)
    at = torch.linspace(-1, 1, 40)
    place = torch.cartesian_prod(at, at)
    ring = ((place - torch.tensor([0.4, -1.5])) * torch.tensor([1.0, 0.6])).norm(dim=1)
    shade = (18 * ring + 2 * (5 * place[:, 1]).sin()).sin() + 0.4 * (23 * place[:, 0] + 9 * place[:, 1]).cos()
    shade = (shade / shade.abs().max())[:, None] + 0.1 * torch.randn(1600, 1)
    last = nn.Linear(64, 1)
    nn.init.uniform_(last.weight, -math.sqrt(6 / 64) / 30, math.sqrt(6 / 64) / 30)
    net = nn.Sequential(Sine(2, 64, first=True), Sine(64, 64), Sine(64, 64), last)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-4)

    def loss_of(step):
        loss = F.mse_loss(net(place), shade)
        return loss, {"psnr": 10 * torch.log10(4 / loss.detach())}

    return fit(folder, net, optimizer, loss_of, 250)


@healthy(gain=0.5)
def joints_of_a_crane_from_where_its_hook_hangs(folder):
    """A mixture density network: one height of the hook, up to three angles."""
    seeded(10013)

    def hooks(n):
        angle = torch.rand(n, 1)
        return angle + 0.3 * (6.2832 * angle).sin() + 0.02 * torch.randn(n, 1), angle

    data, test = hooks(2000), hooks(500)
    net = dense(1, 48, 48, 15, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    draw = rounds(128, *data)

    def surprise(x, y):
        share, middle, spread = net(2 * x - 1).chunk(3, 1)
        each = torch.distributions.Normal(middle, F.softplus(spread) + 0.01).log_prob(y)
        return -torch.logsumexp(share.log_softmax(1) + each, 1).mean()

    return fit(
        folder, net, optimizer, lambda step: surprise(*draw()), 600,
        schedule=CosineAnnealingLR(optimizer, 600), score=held_out(net, lambda: surprise(*test)),
    )  # fmt: skip


@healthy(gain=0.95)
def heat_along_a_buried_pipe(folder):
    """An equation of heat with its edges, no data: L-BFGS with a line search on fixed points."""
    seeded(10014)
    inside = torch.rand(300, 2)
    begin = torch.cat([torch.rand(60, 1), torch.zeros(60, 1)], 1)
    edge = torch.cat([(torch.arange(60) % 2).float()[:, None], torch.rand(60, 1)], 1)
    net = dense(2, 24, 24, 24, 1, act=nn.Tanh)
    for layer in net[::2]:
        nn.init.xavier_normal_(layer.weight)
        nn.init.zeros_(layer.bias)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=10, history_size=30, line_search_fn="strong_wolfe")
    grid = torch.cartesian_prod(torch.linspace(0, 1, 20), torch.linspace(0, 1, 20))
    truth = (math.pi * grid[:, :1]).sin() * (-0.2 * math.pi**2 * grid[:, 1:]).exp()

    def loss_of(step):
        x = inside.clone().requires_grad_()
        u = net(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (bend,) = torch.autograd.grad(slope[:, 0].sum(), x, create_graph=True)
        law = (slope[:, 1] - 0.2 * bend[:, 0]).square().mean()
        first = F.mse_loss(net(begin), (math.pi * begin[:, :1]).sin())
        return law + 5 * first + 5 * net(edge).square().mean()

    return fit(folder, net, optimizer, loss_of, 40, closure=True,
               score=held_out(net, lambda: F.mse_loss(net(grid), truth)))  # fmt: skip


class Slope(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = dense(2, 50, 2, act=nn.Tanh)
        for layer in self.net[::2]:
            nn.init.normal_(layer.weight, std=0.1)
            nn.init.zeros_(layer.bias)

    def forward(self, y):
        return self.net(y**3)


def along(slope, y, steps, dt=0.05):
    """Runge and Kutta's fourth order; `[steps + 1, ...]`."""
    path = [y]
    for _ in range(steps):
        a = slope(y)
        b = slope(y + dt / 2 * a)
        c = slope(y + dt / 2 * b)
        y = y + dt / 6 * (a + 2 * b + 2 * c + slope(y + dt * c))
        path.append(y)
    return torch.stack(path)


@healthy(gain=0.5)
def drift_of_a_coracle_in_a_whirlpool(folder):
    """A neural differential equation on short pieces of one spiral, with RMSprop."""
    seeded(10015)
    turn = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]])
    path = along(lambda y: y**3 @ turn, torch.tensor([[1.6, 0.0]]), 500, 0.04)[:, 0]
    net = Slope()
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)

    def miss(starts):
        found = along(net, path[starts], 6, 0.04)
        return (found - path[starts + torch.arange(7)[:, None]]).abs().mean()

    return fit(
        folder, net, optimizer, lambda step: miss(torch.randint(490, (32,))), 240,
        schedule=CosineAnnealingLR(optimizer, 240, 1e-5), score=held_out(net, lambda: miss(torch.arange(0, 490, 7))),
    )  # fmt: skip
