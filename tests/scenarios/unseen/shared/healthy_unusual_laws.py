"""Trainings under laws of nature, and some that learn to learn."""

import math

import torch
from nets import digits
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded
from unseen.tasks import clipped, held_out, tend


def slopes(y, x):
    return torch.autograd.grad(y.sum(), x, create_graph=True)[0]


@healthy()
def a_poker_cooling_at_both_ends(folder):
    seeded(3648)
    net = dense(2, 32, 32, 32, 1, act=nn.Tanh)
    for part in net:
        if isinstance(part, nn.Linear):
            nn.init.xavier_normal_(part.weight)
            nn.init.zeros_(part.bias)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.997)

    def true(x, t):
        return (-0.1 * math.pi**2 * t).exp() * (math.pi * x).sin() + 0.5 * (-0.9 * math.pi**2 * t).exp() * (
            3 * math.pi * x
        ).sin()

    def loss_of(step):
        x, t = (torch.rand(128, 1).requires_grad_() for _ in range(2))
        u = net(torch.cat([x, t], 1))
        inside = (slopes(u, t) - 0.1 * slopes(slopes(u, x), x)).square().mean()
        end = torch.randint(2, (48, 1)).float()
        edge = net(torch.cat([end, torch.rand(48, 1)], 1)).square().mean()
        x0 = torch.rand(48, 1)
        start = (net(torch.cat([x0, torch.zeros(48, 1)], 1)) - true(x0, torch.zeros(48, 1))).square().mean()
        return inside + 10 * edge + 10 * start, {"residual": inside, "edge": edge, "start": start}

    def score():
        with torch.no_grad():
            x, t = torch.rand(1000, 1), torch.rand(1000, 1)
            return float((net(torch.cat([x, t], 1)) - true(x, t)).norm() / true(x, t).norm())

    return fit(folder, net, optimizer, loss_of, 700, score=score, schedule=schedule)


@healthy()
def a_swing_that_keeps_its_energy(folder):
    seeded(3649)
    net = dense(2, 64, 64, 1, act=nn.Softplus).double()
    optimizer = torch.optim.RAdam(net.parameters(), lr=3e-3)

    def draw(n=64):
        state = (torch.rand(n, 2, dtype=torch.float64) * 2 - 1) * 2.5
        return state, torch.stack([state[:, 1], -2 * state[:, 0].sin()], 1)

    def loss_of(step):
        state, flow = draw()
        state.requires_grad_()
        slope = slopes(net(state), state)
        found = torch.stack([slope[:, 1], -slope[:, 0]], 1)
        return F.mse_loss(found, flow + 0.05 * torch.randn_like(flow))

    def score():
        return sum(float(loss_of(0).detach()) for _ in range(8)) / 8

    return fit(folder, net, optimizer, loss_of, 400, score=score)


@healthy()
def algae_and_the_snails_that_graze_them(folder):
    seeded(3650)
    net = dense(2, 32, 32, 2, act=nn.Tanh)
    with torch.no_grad():
        net[-1].weight.mul_(0.1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, 300)

    def true(s):
        a, b = s.exp().unbind(-1)
        return torch.stack([1 - 0.9 * b, 0.8 * a - 0.9], -1)

    def follow(flow, s, moves, dt=0.1):
        path = []
        for _ in range(moves):
            k1 = flow(s)
            k2 = flow(s + dt / 2 * k1)
            k3 = flow(s + dt / 2 * k2)
            k4 = flow(s + dt * k3)
            s = s + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            path.append(s)
        return torch.stack(path, 1)

    def loss_of(step):
        start = 0.5 * torch.randn(48, 2)
        return F.smooth_l1_loss(
            follow(net, start, 10), follow(true, start, 10) + 0.02 * torch.randn(48, 10, 2), beta=0.1
        )

    return fit(
        folder, net, optimizer, loss_of, 300, score=score_of(loss_of), schedule=schedule, before_step=clipped(net, 1.0)
    )


@healthy()
def a_stump_seen_from_forty_sides(folder):
    seeded(3651)
    bands = 3 * torch.randn(2, 48)
    net = dense(96, 96, 96, 1, act=nn.SiLU)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [200, 260], 0.3)

    def wood(at):
        """How dense it is: rings, a hollow, air around."""
        r = at.norm(dim=-1)
        hollow = ((at - torch.tensor([0.3, 0.1])).norm(dim=-1) < 0.2).float()
        return (r < 0.8).float() * (0.6 + 0.3 * (18 * r).cos()) * (1 - hollow)

    def guess(at):
        turned = at @ bands
        return F.softplus(net(torch.cat([turned.sin(), turned.cos()], -1))[..., 0] - 1)

    angles, reach = torch.arange(40) * math.pi / 40, torch.linspace(-1, 1, 48)

    def rays(n):
        angle, off = angles[torch.randint(40, (n, 1))], 2 * torch.rand(n, 1) - 1
        along = reach + torch.rand(n, 1) * 2 / 48
        return torch.stack([off * angle.cos() - along * angle.sin(), off * angle.sin() + along * angle.cos()], -1)

    def loss_of(step):
        at = rays(48)
        loss = F.mse_loss(guess(at).mean(1), wood(at).mean(1))
        return loss, {"psnr": -10 * loss.detach().log10()}

    def score():
        with torch.no_grad():
            at = 2 * torch.rand(4000, 2) - 1
            return float((guess(at) - wood(at)).square().mean())

    return fit(folder, net, optimizer, loss_of, 300, score=score, schedule=schedule)


@healthy()
def tides_of_ports_met_for_the_first_time(folder):
    seeded(3652)
    net = dense(1, 40, 40, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def ports(n):
        high, late = 0.5 + 2 * torch.rand(n, 1, 1), 3.1416 * torch.rand(n, 1, 1)
        x = 10 * torch.rand(2, n, 10, 1) - 5
        return x, high * (x + late).sin()

    def cost(weights, x, y):
        return F.mse_loss(functional_call(net, weights, (x / 2,)), y)

    def adapted(weights, seen, told, asked, wanted):
        for _ in range(2):
            slope = grad(cost)(weights, seen, told)
            weights = {k: w - 0.05 * slope[k] for k, w in weights.items()}
        return cost(weights, asked, wanted)

    def loss_of(step, n=16):
        x, y = ports(n)
        return vmap(adapted, (None, 0, 0, 0, 0))(dict(net.named_parameters()), x[0], y[0], x[1], y[1]).mean()

    return fit(folder, net, optimizer, loss_of, 500, score=score_of(lambda step: loss_of(step, 200)))


@healthy()
def springs_of_any_stiffness(folder):
    seeded(3653)
    shapes = [(24, 1), (24,), (24, 24), (24,), (1, 24), (1,)]
    sizes = [math.prod(s) for s in shapes]
    net = dense(2, 64, 64, sum(sizes), act=nn.ReLU)
    with torch.no_grad():
        net[-1].weight.mul_(0.1)
        for at, (size, shape) in enumerate(zip(sizes, shapes, strict=True)):
            if len(shape) == 2:
                first = sum(sizes[:at])
                net[-1].bias[first : first + size] = torch.randn(size) * (2 if at == 0 else shape[1] ** -0.5)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def loss_of(step, n=32):
        about = torch.rand(n, 2)
        t = 3 * torch.rand(n, 32, 1)
        stiff, loss_rate = 1 + 2 * about[:, :1, None], 0.8 * about[:, 1:, None]
        y = (-loss_rate * t).exp() * (stiff * t).cos()
        w1, b1, w2, b2, w3, b3 = (
            w.reshape(n, *s) for w, s in zip(net(2 * about - 1).split(sizes, 1), shapes, strict=True)
        )
        h = ((t - 1.5) @ w1.mT + b1[:, None]).tanh()
        h = (h @ w2.mT + b2[:, None]).tanh()
        return F.mse_loss(h @ w3.mT + b3[:, None], y)

    return fit(folder, net, optimizer, loss_of, 500, score=score_of(loss_of), before_step=clipped(net, 1.0))


class Settled(torch.autograd.Function):
    """The point at which z = tanh(z W + u) rests; its gradient by the theorem of implicit functions."""

    @staticmethod
    def forward(ctx, weight, u):
        z = torch.zeros_like(u)
        for _ in range(30):
            z = (z @ weight + u).tanh()
        ctx.save_for_backward(weight, z)
        return z

    @staticmethod
    def backward(ctx, grad_z):
        weight, z = ctx.saved_tensors
        flat, v = 1 - z.square(), grad_z
        for _ in range(30):
            v = grad_z + (v * flat) @ weight.T
        before = v * flat
        return z.T @ before, before


class Resting(nn.Module):
    def __init__(self, size=48):
        super().__init__()
        self.lead = nn.Linear(64, size)
        self.back = nn.Parameter(torch.randn(size, size) * 0.3 / size**0.5)
        self.head = nn.Linear(size, 10)

    def forward(self, x):
        held = 0.9 * self.back / torch.linalg.matrix_norm(self.back, 2).detach().clamp(min=0.9)
        return self.head(Settled.apply(held, self.lead(x)))


@healthy()
def postcodes_read_until_settled(folder):
    seeded(3654)
    x, y = digits()
    x = x.flatten(1)
    net = Resting()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)

    def one(step):
        at = torch.randint(1400, (64,))
        out = net(x[at])
        loss = F.cross_entropy(out, y[at], label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "accuracy": (out.argmax(1) == y[at]).float().mean()}

    return tend(folder, net, optimizer, one, 300, held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:])))
