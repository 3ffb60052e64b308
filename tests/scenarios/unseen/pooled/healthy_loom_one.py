"""Trainings that go well: a sampled posterior, a law of physics, orthogonal steps, a fixed point, an equation."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, mean, seeded
from unseen.tasks import held_out, rounds, tend


class Langevin(torch.optim.Optimizer):
    """Steps along the gradient of a log posterior, with the noise that makes the weights samples of it."""

    def __init__(self, params, lr, rows, spread):
        super().__init__(params, {"lr": lr, "rows": rows, "spread": spread})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                whole = group["rows"] * p.grad + p / group["spread"] ** 2
                p.add_(whole, alpha=-group["lr"] / 2)
                p.add_(torch.randn_like(p), alpha=math.sqrt(group["lr"]))


@healthy()
def hives_that_come_through_winter(folder):
    seeded(9300)
    x = torch.randn(1200, 5)
    y = (x[:, 0] * x[:, 1] + x[:, 2].sin() - 0.5 * x[:, 3] > 0).float()
    seen, hidden = (x[:1000], y[:1000]), (x[1000:], y[1000:])
    net, draw = dense(5, 24, 1, act=nn.Tanh), rounds(100, *seen)
    sampler = Langevin(net.parameters(), 4e-4, rows=1000, spread=1.0)
    decay = torch.optim.lr_scheduler.LambdaLR(sampler, lambda step: (1 + step / 100) ** -0.55)
    chances = []

    def one(step):
        a, b = draw()
        sampler.zero_grad()
        loss = F.binary_cross_entropy_with_logits(net(a)[:, 0], b)
        loss.backward()
        sampler.step()
        decay.step()
        if step >= 600 and step % 10 == 0:
            with torch.no_grad():
                chances.append(net(hidden[0])[:, 0].sigmoid())
        return {"loss": loss, "samples": len(chances)}

    def score():
        with torch.no_grad():
            chance = torch.stack(chances).mean(0) if chances else net(hidden[0])[:, 0].sigmoid()
            return float(F.binary_cross_entropy(chance, hidden[1]))

    return tend(folder, net, sampler, one, 1200, score)


@healthy()
def warmth_along_a_copper_rod(folder):
    seeded(9301)
    net = dense(2, 24, 24, 1, act=nn.Tanh)
    spread = 0.08
    inner = torch.rand(300, 2)
    start = torch.stack([torch.linspace(0, 1, 60), torch.zeros(60)], 1)
    ends_of_rod = torch.stack([torch.arange(60) % 2, torch.rand(60)], 1)

    def heat(at):
        x, t = at[:, :1], at[:, 1:]
        slow = torch.exp(-spread * math.pi**2 * t) * (math.pi * x).sin()
        return slow + 0.5 * torch.exp(-4 * spread * math.pi**2 * t) * (2 * math.pi * x).sin()

    def loss_of(step):
        at = inner.clone().requires_grad_()
        u = net(at)
        slopes = torch.autograd.grad(u.sum(), at, create_graph=True)[0]
        bend = torch.autograd.grad(slopes[:, 0].sum(), at, create_graph=True)[0][:, 0]
        residual = (slopes[:, 1] - spread * bend).square().mean()
        return residual + 10 * F.mse_loss(net(start), heat(start)) + 10 * net(ends_of_rod).square().mean()

    fresh = torch.rand(1000, 2)
    optimizer = torch.optim.LBFGS(net.parameters(), lr=1.0, max_iter=5, history_size=30, line_search_fn="strong_wolfe")
    return fit(folder, net, optimizer, loss_of, 150, closure=True,
               score=held_out(net, lambda: F.mse_loss(net(fresh), heat(fresh))))  # fmt: skip


class Muon(torch.optim.Optimizer):
    """Momentum whose matrices are brought near orthogonal ones by a Newton-Schulz iteration."""

    def __init__(self, params, lr=0.02, momentum=0.95):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                pace = self.state[p].setdefault("pace", torch.zeros_like(p))
                pace.mul_(group["momentum"]).add_(p.grad)
                way = p.grad + group["momentum"] * pace
                way = way / (way.norm() + 1e-7)
                tall = way.shape[0] > way.shape[1]
                way = way.T if tall else way
                for _ in range(5):
                    square = way @ way.T
                    way = 3.4445 * way + (-4.7750 * square + 2.0315 * square @ square) @ way
                way = way.T if tall else way
                p.add_(way, alpha=-group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5)


@healthy()
def trees_told_by_the_outline_of_a_leaf(folder):
    seeded(9302)
    lobes = torch.tensor([2, 3, 4, 5, 7])

    def outlines(rows):
        kind = torch.randint(5, (rows,))
        angle = torch.linspace(0, 2 * math.pi, 49)[:-1] + 2 * math.pi * torch.rand(rows, 1)
        depth = 0.15 + 0.2 * torch.rand(rows, 1)
        return 1 + depth * (lobes[kind, None] * angle).cos() + 0.15 * torch.randn(rows, 48), kind

    net = dense(48, 96, 96, 5, act=nn.GELU)
    middle = [net[0].weight, net[2].weight]
    others = [p for p in net.parameters() if not any(p is m for m in middle)]
    muon, adam = Muon(middle), torch.optim.AdamW(others, 3e-3, weight_decay=0.01)
    steps = 350
    plans = [torch.optim.lr_scheduler.LambdaLR(o, lambda step: 1 - step / steps) for o in (muon, adam)]
    fresh = outlines(1000)

    def one(step):
        x, kind = outlines(128)
        muon.zero_grad()
        adam.zero_grad()
        out = net(x)
        loss = F.cross_entropy(out, kind)
        loss.backward()
        for optimizer, plan in zip((muon, adam), plans, strict=True):
            optimizer.step()
            plan.step()
        return {"loss": loss, "accuracy": (out.argmax(1) == kind).float().mean()}

    return tend(folder, net, [muon, adam], one, steps, held_out(net, lambda: F.cross_entropy(net(fresh[0]), fresh[1])))


class Settled(nn.Module):
    """The fixed point of one layer, and the gradient through it by the implicit function theorem."""

    def __init__(self, size, width):
        super().__init__()
        self.again = nn.utils.parametrizations.spectral_norm(nn.Linear(width, width, bias=False))
        self.into, self.out = nn.Linear(size, width), nn.Linear(width, size)

    def forward(self, x):
        pushed = self.into(x)

        weight = self.again.weight
        with torch.no_grad():
            z = torch.zeros_like(pushed)
            for _ in range(40):
                z = (0.9 * z @ weight.T + pushed).tanh()
        z = (0.9 * z @ weight.T + pushed).tanh()
        if self.training:
            at = z.detach().requires_grad_()
            after = (0.9 * at @ weight.T + pushed).tanh()

            def solve(grad):
                found = grad
                for _ in range(30):
                    found = grad + torch.autograd.grad(after, at, found, retain_graph=True)[0]
                return found

            z.register_hook(solve)
        return self.out(z)


@healthy()
def prices_in_eight_linked_markets(folder):
    seeded(9303)
    links = torch.randn(8, 8)
    links = 0.85 * links / torch.linalg.matrix_norm(links, 2)

    def markets(rows):
        demand = 1.5 * torch.randn(rows, 8)
        price = torch.zeros(rows, 8)
        for _ in range(60):
            price = (price @ links.T + demand).tanh() + 0.1 * demand
        return demand, price

    net = Settled(8, 32)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    fresh = markets(600)

    def loss_of(step):
        demand, price = markets(64)
        return F.mse_loss(net(demand), price)

    return fit(folder, net, optimizer, loss_of, 400,
               score=held_out(net, lambda: F.mse_loss(net(fresh[0]), fresh[1])))  # fmt: skip


def runge_kutta(rate, state, steps, dt):
    """The states after each of some steps of fourth order."""
    states = []
    for _ in range(steps):
        a = rate(state)
        b = rate(state + dt / 2 * a)
        c = rate(state + dt / 2 * b)
        d = rate(state + dt * c)
        state = state + dt / 6 * (a + 2 * b + 2 * c + d)
        states.append(state)
    return torch.stack(states, 1)


@healthy()
def hares_and_lynxes_from_the_trappers_book(folder):
    seeded(9304)

    def nature(state):
        hares, lynxes = state.exp().unbind(-1)
        return torch.stack([1.1 - 0.7 * lynxes, 0.6 * hares - 0.8], -1)

    begin = 0.5 * torch.randn(260, 2)
    years = runge_kutta(nature, begin, 12, 0.25)
    net = dense(2, 48, 2, act=nn.Tanh)
    draw = rounds(32, begin[:200], years[:200] + 0.02 * torch.randn(200, 12, 2))
    optimizer = torch.optim.AdamW(net.parameters(), 5e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)

    def loss_of(step):
        at, then = draw()
        return F.mse_loss(runge_kutta(net, at, 12, 0.25), then)

    def score():
        with torch.no_grad():
            return float(F.mse_loss(runge_kutta(net, begin[200:], 12, 0.25), years[200:]))

    return fit(folder, net, optimizer, loss_of, 300, score=score, schedule=schedule)


def energy_distance(a, b):
    """How far apart two clouds of points are."""
    return float(2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean())


@healthy()
def where_pigeons_land_on_a_square(folder):
    seeded(9305)
    spots = torch.tensor([[1.5, 1.5], [-1.5, 1.5], [0.0, -1.5]])
    net = dense(2, 64, 64, 1, act=nn.SiLU)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, betas=(0.5, 0.999))
    kept = 4 * torch.rand(1024, 2) - 2

    def land(rows):
        return spots[torch.randint(3, (rows,))] + 0.3 * torch.randn(rows, 2)

    def wander(points, times):
        for _ in range(times):
            points = points.detach().requires_grad_()
            (slope,) = torch.autograd.grad(net(points).sum(), points)
            points = points - 0.05 * slope + 0.316 * torch.randn_like(points)
        return points.detach().clamp(-4, 4)

    def one(step):
        at = torch.randint(1024, (128,))
        begun = torch.where(torch.rand(128, 1) < 0.05, 4 * torch.rand(128, 2) - 2, kept[at])
        kept[at] = dreamt = wander(begun, 20)
        low, high = net(land(128)), net(dreamt)
        gap = low.mean() - high.mean()
        loss = gap + 0.02 * (low.square() + high.square()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "gap": gap, "energy_real": low.mean(), "energy_dreamt": high.mean()}

    def score():
        return mean([energy_distance(wander(4 * torch.rand(500, 2) - 2, 200), land(500)) for _ in range(3)])

    return tend(folder, net, optimizer, one, 450, score)
