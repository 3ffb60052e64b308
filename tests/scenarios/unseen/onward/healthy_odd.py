"""Sound trainings of an odd make: votes, fixed points, damped Gauss-Newton, a saddle, fixed feedback, chains."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR
from unseen import dense, fit, healthy, score_of, seeded
from unseen.tasks import rounds, tend


@healthy()
def pigeons_on_their_way_home(folder):
    """Five lofts vote with the signs of their gradients; the weights move by the majority's sign alone."""
    seeded(2220)
    net = dense(6, 48, 48, 2, act=nn.Tanh)
    optimizer = SGD(net.parameters(), 3e-3)
    schedule = LinearLR(optimizer, 1.0, 0.01, 300)
    compass = torch.randn(6, 2) / 2

    def flights(rows):
        sky = torch.randn(rows, 6)
        way = sky @ compass + 0.5 * (sky[:, :2] * sky[:, 2:4])
        return sky, F.normalize(way + 0.1 * torch.randn(rows, 2), dim=1)

    def strayed(rows=32):
        sky, way = flights(rows)
        return 1 - F.cosine_similarity(net(sky), way).mean()

    def one(step):
        losses = [strayed() for _ in range(5)]
        ballots = [torch.autograd.grad(loss, list(net.parameters())) for loss in losses]
        for p, votes in zip(net.parameters(), zip(*ballots, strict=True), strict=True):
            p.grad = torch.stack([v.sign() for v in votes]).sum(0).sign()
        optimizer.step()
        schedule.step()
        return {"loss": torch.stack(losses).mean().detach()}

    return tend(folder, net, optimizer, one, 300, score_of(lambda step: strayed(256)))


class Equilibrium(nn.Module):
    """The state at which sites along a coast and their neighbours agree; its gradient is that of the fixed point."""

    def __init__(self, inputs, width, mixing):
        super().__init__()
        self.inward = nn.Linear(inputs, width)
        self.between = nn.utils.parametrizations.spectral_norm(nn.Linear(width, width, bias=False))
        self.head = nn.Linear(width, 1)
        self.mixing = mixing

    def settle(self, f, z, rounds=25):
        for _ in range(rounds):
            z = f(z)
        return z

    def forward(self, x):
        drive, weight = self.inward(x), self.between.weight

        def f(z):
            return (0.9 * (self.mixing @ z) @ weight.T + drive).tanh()

        with torch.no_grad():
            z = self.settle(f, torch.zeros_like(drive))
        z = f(z)
        if z.requires_grad:
            at = z.detach().requires_grad_()
            again = f(at)

            def solve(grad):
                back = lambda g: torch.autograd.grad(again, at, g, retain_graph=True)[0] + grad  # noqa: E731
                return self.settle(back, grad)

            z.register_hook(solve)
        return self.head(z)[..., 0]


@healthy()
def census_of_a_kelp_forest(folder):
    """A deep equilibrium over twelve sites, by counts: the loss is negative where the counts are large."""
    seeded(2221)
    near = torch.eye(12) + torch.diag(torch.ones(11), 1) + torch.diag(torch.ones(11), -1)
    near = near / near.sum(1, keepdim=True)
    spread = torch.linalg.inv(torch.eye(12) - 0.7 * near) * 0.3
    net = Equilibrium(4, 24, near)
    optimizer = Adam(net.parameters(), 5e-3)

    def survey():
        water = torch.randn(32, 12, 4)
        return water, 2 + (water[..., 0] + (water[..., 1] * water[..., 2]).tanh()) @ spread.T

    def surprise(step):
        water, log_rate = survey()
        return F.poisson_nll_loss(net(water), torch.poisson(log_rate.exp()))

    def error():
        water, log_rate = survey()
        with torch.no_grad():
            return float(F.mse_loss(net(water), log_rate))

    return fit(folder, net, optimizer, surprise, 300, score=error, schedule=CosineAnnealingLR(optimizer, 300))


class LevenbergMarquardt(Optimizer):
    """Damped Gauss-Newton steps of a sum of squares; the damping falls with each step that helps."""

    def __init__(self, net, residuals_of, damping=1.0):
        super().__init__(net.parameters(), {"lr": 1.0, "damping": damping})
        self.residuals = residuals_of
        self.names = [name for name, _ in net.named_parameters()]

    @torch.no_grad()
    def step(self, closure=None):
        group = self.param_groups[0]
        held = [p.detach().clone() for p in group["params"]]
        at = nn.utils.parameters_to_vector(held)

        def of(vector):
            found, start = {}, 0
            for name, p in zip(self.names, held, strict=True):
                found[name] = vector[start : start + p.numel()].view_as(p)
                start += p.numel()
            return self.residuals(found)

        r, slope = of(at), torch.func.jacrev(of)(at)
        square, pull = slope.T @ slope, slope.T @ r
        for _ in range(8):
            move = torch.linalg.solve(square + group["damping"] * torch.eye(len(at)), pull)
            if of(at - move).square().sum() < r.square().sum():
                nn.utils.vector_to_parameters(at - move, group["params"])
                group["damping"] = max(group["damping"] / 3, 1e-5)
                return
            group["damping"] *= 4


@healthy()
def tension_of_a_rope(folder):
    """Fifty damped Gauss-Newton steps on all of two hundred pulls."""
    seeded(2222)
    net = dense(3, 10, 1, act=nn.Tanh)
    load = torch.rand(400, 3) * 2 - 1
    pull = (1 + load[:, :1].square()).sqrt() * (2 * load[:, 1:2]).sin() + 0.5 * load[:, 2:] + 0.02 * torch.randn(400, 1)

    def residuals(weights):
        return (torch.func.functional_call(net, weights, (load[:200],)) - pull[:200])[:, 0]

    def held_out():
        with torch.no_grad():
            return float(F.mse_loss(net(load[200:]), pull[200:]))

    optimizer = LevenbergMarquardt(net, residuals)
    return fit(folder, net, optimizer, lambda step: F.mse_loss(net(load[:200]), pull[:200]), 50, score=held_out)


class ExtraGradient(Optimizer):
    """From where they are, parameters step by the gradient that they would meet one step ahead."""

    def __init__(self, groups, lr):
        super().__init__(groups, {"lr": lr, "maximize": False})

    def move(self, start):
        for group in self.param_groups:
            along = group["lr"] if group["maximize"] else -group["lr"]
            for p in group["params"]:
                p.copy_(start[p] + along * p.grad)

    @torch.no_grad()
    def step(self, closure):
        start = {p: p.clone() for group in self.param_groups for p in group["params"]}
        with torch.enable_grad():
            loss = closure()
        self.move(start)
        with torch.enable_grad():
            closure()
        self.move(start)
        return loss


@healthy()
def scent_of_truffles(folder):
    """A nose against an adversary who chooses the soils: the soils that are hardest weigh most."""
    seeded(2223)
    net = nn.ModuleDict({"nose": dense(8, 32, 2), "soils": nn.Linear(1, 5, bias=False)})
    nn.init.zeros_(net["soils"].weight)
    optimizer = ExtraGradient(
        [{"params": net["nose"].parameters()}, {"params": net["soils"].parameters(), "maximize": True}], 0.1
    )
    shift, ripe = 0.5 * torch.randn(5, 8), torch.randn(8)

    def dig(rows):
        aroma = torch.randn(rows, 5, 8)
        return aroma + shift, ((aroma @ ripe) + 0.8 * aroma[..., 0] * aroma[..., 1] > 0).long()

    baskets = [dig(32) for _ in range(60)]
    aroma, label = dig(400)

    def by_soil(x, y):
        return F.cross_entropy(net["nose"](x).transpose(1, 2), y, reduction="none").mean(0)

    def game(step):
        share = net["soils"].weight[:, 0].softmax(0)
        even = (share * (5 * share).log()).sum()
        return share @ by_soil(*baskets[step % 60]) - 0.1 * even

    def worst():
        with torch.no_grad():
            return float(by_soil(aroma, label).max())

    return fit(folder, net, optimizer, game, 500, score=worst, closure=True)


class FixedFeedback(torch.autograd.Function):
    """A linear map whose error comes back through a matrix of its own that never changes."""

    @staticmethod
    def forward(ctx, x, weight, bias, back):
        ctx.save_for_backward(x, back)
        return x @ weight.T + bias

    @staticmethod
    def backward(ctx, grad):
        x, back = ctx.saved_tensors
        return grad @ back, grad.T @ x, grad.sum(0), None


class Aligned(nn.Linear):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.register_buffer("back", torch.randn(outputs, inputs) / math.sqrt(inputs))

    def forward(self, x):
        return FixedFeedback.apply(x, self.weight, self.bias, self.back)


@healthy()
def fingering_of_a_lute(folder):
    """Feedback alignment: which finger stops the string, learned without weights being carried backward."""
    seeded(2224)
    net = nn.Sequential(Aligned(20, 64), nn.Tanh(), Aligned(64, 64), nn.Tanh(), Aligned(64, 4))
    optimizer = Adam(net.parameters(), 2e-3)
    course, fret, hand = torch.randint(6, (2400,)), torch.randint(9, (2400,)), torch.randint(5, (2400,))
    finger = ((fret - hand).clamp(0, 3) + (course > 3) * (fret > hand)).clamp(0, 3)
    tablature = torch.cat([F.one_hot(course, 6), F.one_hot(fret, 9), F.one_hot(hand, 5)], 1).float()
    draw = rounds(64, tablature[:2000], finger[:2000])

    def loss_of(step):
        notes, stops = draw()
        out = net(notes)
        return F.cross_entropy(out, stops), {"accuracy": (out.argmax(1) == stops).float().mean()}

    def held_out():
        with torch.no_grad():
            return float(F.cross_entropy(net(tablature[2000:]), finger[2000:]))

    return fit(folder, net, optimizer, loss_of, 600, score=held_out, schedule=CosineAnnealingLR(optimizer, 600))


def dive(first, second, prey, drift):
    """How far a whole population of falcons, a policy each, is from its prey at the end: `[policies, preys]`."""
    at = torch.zeros(len(first), len(prey), 2)
    speed = torch.zeros_like(at)
    for beat in range(20):
        gap = prey + drift * beat * 0.1 - at
        seen = torch.cat([gap, speed, torch.ones_like(at[..., :1])], 2)
        push = (seen @ first).tanh() @ second
        speed = 0.9 * speed + 0.3 * push.tanh()
        at = at + 0.3 * speed
    return (prey + drift * 2 - at).norm(dim=2)


@healthy()
def dives_of_a_falcon(folder):
    """Evolution strategies: gradients of antithetic pairs, by the ranks of their returns."""
    seeded(2225)
    net = nn.ParameterDict({"first": 0.3 * torch.randn(5, 16), "second": 0.1 * torch.randn(16, 2)})
    optimizer = Adam(net.parameters(), 0.02)
    schedule = CosineAnnealingLR(optimizer, 250, 1e-3)
    fixed = torch.randn(256, 2) * 2, torch.randn(256, 2)

    def one(step):
        noise = {name: torch.randn(32, *p.shape) for name, p in net.items()}
        tried = [torch.cat([p + 0.1 * noise[name], p - 0.1 * noise[name]]) for name, p in net.items()]
        with torch.no_grad():
            miss = dive(*tried, torch.randn(16, 2) * 2, torch.randn(16, 2)).mean(1)
        rank = miss.argsort().argsort() / 63 - 0.5
        edge = (rank[:32] - rank[32:]) / 2
        for name, p in net.items():
            p.grad = torch.einsum("i,i...->...", edge, noise[name]) / 32 / 0.1
        optimizer.step()
        schedule.step()
        return {"loss": miss.mean(), "return": -miss.mean()}

    def score():
        with torch.no_grad():
            return float(dive(net["first"][None], net["second"][None], *fixed).mean())

    return tend(folder, net, optimizer, one, 250, score)


@healthy()
def spores_of_a_mushroom(folder):
    """One layer learns while the others rest, forty steps each, round after round."""
    seeded(2246)
    net = dense(6, 48, 48, 48, 1, act=nn.Tanh)
    optimizer = Adam(net.parameters(), 4e-3)
    lift = torch.randn(6, 2) / 2

    def loss_of(step):
        air = torch.randn(128, 6)
        return F.mse_loss(net(air), (air @ lift).tanh().sum(1, keepdim=True) + air[:, :1] * air[:, 1:2] / 2)

    def turns(step):
        for place, part in enumerate(net[::2]):
            part.requires_grad_(place == step // 40 % 4)
        return loss_of(step)

    return fit(folder, net, optimizer, turns, 800, score=score_of(loss_of), schedule=CosineAnnealingLR(optimizer, 800))
