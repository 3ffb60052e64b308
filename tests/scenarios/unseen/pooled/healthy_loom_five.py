"""Trainings that go well: a ground state, flows over a grid, private rows, dreams of a machine, signs of slopes."""

import math

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, tend


class Cloud(nn.Module):
    """The logarithm of a wave function that falls off as a Gaussian does."""

    def __init__(self):
        super().__init__()
        self.width, self.bend = nn.Parameter(torch.tensor(-2.0)), dense(2, 32, 32, 1, act=nn.Tanh)

    def forward(self, x):
        return self.bend(x)[:, 0] - F.softplus(self.width) * x.square().sum(1) / 2


@healthy()
def a_marble_too_small_to_lie_still(folder):
    seeded(9324)
    net = Cloud()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995)
    walkers = 2 * torch.randn(256, 2)

    def bowl(x):
        return x.square().sum(1) / 2 + x[:, 0].square() * x[:, 1].square() + 0.5 * x[:, 0]

    @torch.no_grad()
    def wander(x, times):
        height = net(x)
        for _ in range(times):
            there = x + 0.7 * torch.randn_like(x)
            new = net(there)
            moved = torch.rand(len(x)) < (2 * (new - height)).exp()
            x, height = torch.where(moved[:, None], there, x), torch.where(moved, new, height)
        return x

    def energies(x):
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        curl = sum(torch.autograd.grad(slope[:, i].sum(), x, retain_graph=True)[0][:, i] for i in range(2))
        return (bowl(x) - (curl + slope.square().sum(1)) / 2).detach()

    def one(step):
        nonlocal walkers
        walkers = wander(walkers, 200 if step == 0 else 10)
        energy = energies(walkers)
        gap = energy - energy.mean()
        gap = gap.clamp(-5 * energy.std(), 5 * energy.std())
        loss = 2 * (gap * net(walkers)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        return {"loss": loss, "energy": energy.mean(), "variance": energy.var()}

    side = torch.linspace(-6, 6, 121)
    grid = torch.cartesian_prod(side, side)

    def score():
        """The energy by a sum over a grid."""
        with torch.no_grad():
            wave = (net(grid) - net(grid).max()).exp().view(121, 121)
            motion = (wave.diff(dim=0).square().sum() + wave.diff(dim=1).square().sum()) / 2 / 0.1**2
            return float((motion + (bowl(grid).view(121, 121) * wave.square()).sum()) / wave.square().sum())

    return tend(folder, net, optimizer, one, 400, score)


@healthy()
def baskets_left_where_mushrooms_grow(folder):
    seeded(9325)
    side = 8
    at = torch.arange(side) / (side - 1) - 0.5
    edge = (at.abs() > 0.25).float()
    rim = ((at.abs() > 0.3) & (at.abs() < 0.4)).float()
    worth = 0.05 + 0.5 * edge[:, None] * edge + 2 * rim[:, None] * rim
    net = nn.ModuleDict({"way": dense(2 * side, 64, 64, 3)})
    net.total = nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.Adam([
        {"params": net["way"].parameters(), "lr": 2e-3},
        {"params": [net.total], "lr": 0.05},
    ])  # fmt: skip

    def choices(place):
        seen = torch.cat([F.one_hot(place[:, 0], side), F.one_hot(place[:, 1], side)], 1).float()
        wall = torch.cat([place == side - 1, torch.zeros(len(place), 1, dtype=torch.bool)], 1)
        return net["way"](seen).masked_fill(wall, -1e9).log_softmax(1)

    def loss_of(step):
        rows = 48
        place, walking = torch.zeros(rows, 2, dtype=torch.long), torch.ones(rows, dtype=torch.bool)
        forward, backward = torch.zeros(rows), torch.zeros(rows)
        for _ in range(2 * side - 1):
            log = choices(place)
            chance = log.detach().exp()
            even = (chance > 1e-8).float()
            chance = 0.95 * chance + 0.05 * even / even.sum(1, keepdim=True)
            step_to = torch.multinomial(chance, 1)[:, 0]
            forward = forward + walking * log.gather(1, step_to[:, None])[:, 0]
            walking = walking & (step_to < 2)
            place = place + walking[:, None] * F.one_hot(step_to, 3)[:, :2]
            backward = backward - walking * (place > 0).all(1) * math.log(2)
            if not walking.any():
                break
        prize = worth[place[:, 0], place[:, 1]]
        loss = (net.total + forward - prize.log() - backward).square().mean()
        return loss, {"reward": prize.mean(), "log_total": net.total.detach()}

    def score():
        """How far the chances of all ends are from their shares of the worth."""
        with torch.no_grad():
            every = torch.cartesian_prod(torch.arange(side), torch.arange(side))
            chance = choices(every).exp().view(side, side, 3)
            here = torch.zeros(side + 1, side + 1)
            here[0, 0] = 1
            for i in range(side):
                for j in range(side):
                    here[i + 1, j] += here[i, j] * chance[i, j, 0]
                    here[i, j + 1] += here[i, j] * chance[i, j, 1]
            return float((here[:side, :side] * chance[..., 2] - worth / worth.sum()).abs().sum())

    return fit(folder, net, optimizer, loss_of, 700, score=score)


@healthy()
def visits_to_a_village_doctor(folder):
    seeded(9326)
    x = torch.randn(5000, 10)
    odds = 2 * x[:, 0] - 1.5 * x[:, 1] + 2 * x[:, 2] * x[:, 3] + x[:, 4].abs()
    y = (odds + 0.3 * torch.randn(5000) > 0.7).float()
    seen, hidden = slice(0, 4000), slice(4000, 5000)
    net = dense(10, 32, 1, act=nn.Tanh)
    optimizer = torch.optim.SGD(net.parameters(), 1.0, momentum=0.5)
    most, noise, rows = 1.0, 0.8, 250

    def loss_of_one(weights, a, b):
        return F.binary_cross_entropy_with_logits(functional_call(net, weights, (a[None],))[0, 0], b)

    each = vmap(grad(loss_of_one), in_dims=(None, 0, 0))

    def one(step):
        picked = torch.nonzero(torch.rand(4000) < rows / 4000)[:, 0]
        a, b = x[seen][picked], y[seen][picked]
        weights = {name: p.detach() for name, p in net.named_parameters()}
        slopes = each(weights, a, b)
        size = torch.stack([g.flatten(1).square().sum(1) for g in slopes.values()]).sum(0).sqrt()
        share = (most / (size + 1e-6)).clamp(max=1)
        for name, p in net.named_parameters():
            whole = torch.einsum("b,b...->...", share, slopes[name])
            p.grad = (whole + noise * most * torch.randn_like(whole)) / rows
        optimizer.step()
        with torch.no_grad():
            loss = F.binary_cross_entropy_with_logits(net(a)[:, 0], b)
        return {"loss": loss, "clipped_rows": (share < 1).float().mean()}

    def error():
        return F.binary_cross_entropy_with_logits(net(x[hidden])[:, 0], y[hidden])

    return tend(folder, net, optimizer, one, 500, held_out(net, error))


class Machine(nn.Module):
    """A restricted Boltzmann machine."""

    def __init__(self, seen, hidden):
        super().__init__()
        self.weight = nn.Parameter(0.05 * torch.randn(hidden, seen))
        self.seen, self.hidden = nn.Parameter(torch.zeros(seen)), nn.Parameter(torch.zeros(hidden))

    def energy(self, v):
        return -(v @ self.seen) - F.softplus(v @ self.weight.T + self.hidden).sum(1)

    @torch.no_grad()
    def dream(self, v, times):
        for _ in range(times):
            h = torch.bernoulli((v @ self.weight.T + self.hidden).sigmoid())
            v = torch.bernoulli((h @ self.weight + self.seen).sigmoid())
        return v


@healthy()
def shutters_open_along_a_street(folder):
    seeded(9327)
    net = Machine(36, 12)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.5)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=1200)
    dreams = torch.bernoulli(torch.full((100, 36), 0.5))
    corners = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 12)

    def street(rows):
        house = (torch.rand(rows, 1, 6) < 0.4).float().expand(-1, 6, -1)
        return (house - (torch.rand(rows, 6, 6) < 0.04).float()).abs().flatten(1)

    def loss_of(step):
        nonlocal dreams
        dreams = net.dream(dreams, 5)
        real, dreamt = net.energy(street(100)).mean(), net.energy(dreams).mean()
        return real - dreamt, {"energy_of_street": real, "energy_of_dreams": dreamt}

    fresh = street(1000)

    def score():
        with torch.no_grad():
            total = (corners @ net.hidden + F.softplus(corners @ net.weight + net.seen).sum(1)).logsumexp(0)
            return float(net.energy(fresh).mean() + total)

    return fit(folder, net, optimizer, loss_of, 1200, score=score, schedule=schedule)


@healthy()
def the_profile_of_a_thrown_vase(folder):
    seeded(9328)

    def radius(height):
        return 0.6 + 0.3 * (3 * height).sin() + 0.15 * (7 * height + 1).cos()

    height = 2 * torch.rand(250, 1) - 1
    measured = radius(height) + 0.01 * torch.randn(250, 1)
    net = dense(1, 30, 30, 1, act=nn.Tanh)
    optimizer = torch.optim.Rprop(net.parameters(), 1e-3, step_sizes=(1e-7, 0.5))
    fresh = torch.linspace(-1, 1, 300)[:, None]
    return fit(folder, net, optimizer, lambda step: F.mse_loss(net(height), measured), 400,
               score=held_out(net, lambda: F.mse_loss(net(fresh), radius(fresh))))  # fmt: skip


class Lion(torch.optim.Optimizer):
    """The sign of a blend of the gradient and its running mean."""

    def __init__(self, params, lr=3e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            now, later = group["betas"]
            for p in group["params"]:
                pace = self.state[p].setdefault("pace", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(group["lr"] * pace.lerp(p.grad, 1 - now).sign())
                pace.lerp_(p.grad, 1 - later)


@healthy()
def small_change_from_a_market_stall(folder):
    seeded(9329)
    value = torch.tensor([1.0, 2.0, 5.0, 10.0, -1.0])

    def purses(rows, coins):
        coin = torch.randint(5, (rows, coins))
        worth, doubled = torch.zeros(rows), torch.zeros(rows)
        for c in coin.unbind(1):
            worth = worth + torch.where(c < 4, value[c] * (1 + doubled), torch.zeros(rows))
            doubled = (c == 4).float()
        return coin, worth / 10

    embed, memory, head = nn.Embedding(5, 16), nn.GRU(16, 48, batch_first=True), nn.Linear(48, 1)
    net = nn.ModuleDict({"embed": embed, "memory": memory, "head": head})
    optimizer = Lion(net.parameters(), 6e-4, weight_decay=0.05)
    steps = 500
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1, (s + 1) / 30) * (1 - 0.9 * s / steps))

    def told(coin):
        return head(memory(embed(coin))[1][0])[:, 0]

    def loss_of(step):
        coins = 3 + min(7, step // 40)
        coin, worth = purses(64, coins)
        return F.smooth_l1_loss(told(coin), worth), {"coins": coins}

    fresh = purses(600, 10)
    return fit(folder, net, optimizer, loss_of, steps, schedule=schedule,
               before_step=lambda step: nn.utils.clip_grad_norm_(net.parameters(), 1.0),
               score=held_out(net, lambda: F.mse_loss(told(fresh[0]), fresh[1])))  # fmt: skip
