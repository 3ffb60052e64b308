"""Healthy trainings by uncommon optimizers: flat minima, damped least squares, no schedule, votes, a curved space."""

import math

import torch
from torch import nn
from torch.func import functional_call, jacrev
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from unseen import dense, fit, healthy, score_of, seeded, waves
from unseen.tasks import held_out, rounds, tend


class SharpnessAware(torch.optim.Optimizer):
    """SAM (Foret et al., 2021) around another optimizer: the gradient is taken at the worst point nearby."""

    def __init__(self, params, base, rho=0.05, **options):
        super().__init__(params, {"rho": rho, **options})
        self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def step(self, closure):
        closure = torch.enable_grad()(closure)
        loss = closure()
        held = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in held]).norm()
        climbs = [p.grad * (self.param_groups[0]["rho"] / (norm + 1e-12)) for p in held]
        for p, climb in zip(held, climbs, strict=True):
            p.add_(climb)
        closure()
        for p, climb in zip(held, climbs, strict=True):
            p.sub_(climb)
        self.base.step()
        return loss


@healthy()
def mushrooms_told_by_gills_and_spores(folder):
    seeded(2878)
    centres = 1.5 * torch.randn(8, 2, 20)

    def collect(rows):
        y, form = torch.randint(8, (rows,)), torch.randint(2, (rows,))
        return centres[y, form] + torch.randn(rows, 20), y

    x, y = collect(768)
    y = torch.where(torch.rand(768) < 0.1, torch.randint(8, (768,)), y)
    fresh_x, fresh_y = collect(1024)
    net = dense(20, 64, 64, 8)
    optimizer = SharpnessAware(net.parameters(), torch.optim.SGD, rho=0.1, lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer.base, 360)
    draw = rounds(64, x, y)

    def one(step):
        rows, names = draw()

        def closure():
            optimizer.zero_grad()
            loss = F.cross_entropy(net(rows), names)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        schedule.step()
        return {"loss": loss.detach(), "rate": schedule.get_last_lr()[0]}

    return tend(folder, net, optimizer, one, 360, held_out(net, lambda: F.cross_entropy(net(fresh_x), fresh_y)))


class DampedLeastSquares(torch.optim.Optimizer):
    """Gauss-Newton steps with a damping that is adapted by how well they predict the loss (Levenberg, Marquardt)."""

    def __init__(self, net, damping=1.0, lr=1.0):
        super().__init__(net.parameters(), {"lr": lr, "damping": damping})
        self.net = net

    def try_on(self, x, y):
        self.rows = x, y

    @torch.no_grad()
    def step(self, closure=None):
        x, y = self.rows
        group = self.param_groups[0]
        weights = {name: p.detach() for name, p in self.net.named_parameters()}
        jacobian = jacrev(lambda w: functional_call(self.net, w, (x,))[:, 0])(weights)
        jacobian = torch.cat([jacobian[name].flatten(1) for name in weights], 1)
        gradient = parameters_to_vector([p.grad for p in group["params"]])
        curvature = 2 * jacobian.T @ jacobian / len(x)
        before = F.mse_loss(self.net(x), y)
        here = parameters_to_vector(group["params"])
        move = -torch.linalg.solve(curvature + group["damping"] * torch.eye(len(here)), gradient)
        vector_to_parameters(here + group["lr"] * move, group["params"])
        foreseen = -(gradient @ move + 0.5 * move @ curvature @ move)
        share = (before - F.mse_loss(self.net(x), y)) / foreseen
        if share < 0:
            vector_to_parameters(here, group["params"])
        if share > 0.75:
            group["damping"] = max(group["damping"] / 3, 1e-3)
        elif share < 0.25:
            group["damping"] = min(group["damping"] * 2, 1e3)


@healthy()
def stretch_of_a_rubber_band_by_load_and_warmth(folder):
    seeded(2879)
    way = torch.randn(2, 4)

    def measure(rows):
        x = 2 * torch.rand(rows, 2) - 1
        return x, (2 * x @ way).tanh().sum(1, keepdim=True) + 0.3 * (4 * x[:, :1]).sin() + 0.03 * torch.randn(rows, 1)

    fresh_x, fresh_y = measure(512)
    net = dense(2, 14, 14, 1, act=nn.Tanh)
    optimizer = DampedLeastSquares(net)

    def one(step):
        x, y = measure(400)
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.try_on(x, y)
        optimizer.step()
        return {"loss": loss, "damping": optimizer.param_groups[0]["damping"]}

    return tend(folder, net, optimizer, one, 100, held_out(net, lambda: F.mse_loss(net(fresh_x), fresh_y)))


class ScheduleFree(torch.optim.Optimizer):
    """Schedule-free AdamW (Defazio et al., 2024): the gradient is taken between the steps and their average."""

    def __init__(self, params, lr=0.0025, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0, warmup=0):
        options = {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, options)
        self.warmup, self.steps, self.weights, self.training = warmup, 0, 0.0, True

    @torch.no_grad()
    def switch(self, training):
        if training != self.training:
            for group in self.param_groups:
                share = 1 - group["beta1"] if training else 1 - 1 / group["beta1"]
                for p in group["params"]:
                    if "z" in self.state[p]:
                        p.lerp_(self.state[p]["z"], share)
            self.training = training

    @torch.no_grad()
    def step(self, closure=None):
        self.steps += 1
        for group in self.param_groups:
            b1, b2 = group["beta1"], group["beta2"]
            lr = group["lr"] * min(1, self.steps / max(1, self.warmup)) * math.sqrt(1 - b2**self.steps)
            self.weights += lr**2
            share = lr**2 / self.weights
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state |= {"z": p.clone(), "square": torch.zeros_like(p)}
                state["square"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                way = p.grad / (state["square"].sqrt() + group["eps"]) + group["weight_decay"] * p
                p.lerp_(state["z"], share)
                p.add_(way, alpha=lr * (b1 * (1 - share) - 1))
                state["z"].sub_(way, alpha=lr)


@healthy()
def frogs_heard_at_a_pond(folder):
    seeded(2880)
    pitch, pulse = torch.tensor([0.08, 0.08, 0.13, 0.13, 0.2]), torch.tensor([0.01, 0.03, 0.01, 0.03, 0.02])
    t = torch.arange(192)

    def draw():
        y = torch.randint(5, (32,))
        turn = 6.2832 * torch.rand(2, 32, 1)
        pitched = 6.2832 * (pitch[y] * (1 + 0.05 * torch.randn(32)))[:, None] * t + turn[0]
        pulsed = 6.2832 * (pulse[y] * (1 + 0.1 * torch.randn(32)))[:, None] * t + turn[1]
        return (pitched.sin() * (0.5 + 0.5 * pulsed.sin()) + 0.4 * torch.randn(32, 192))[:, None], y

    net = nn.Sequential(
        *[nn.Conv1d(1, 16, 15, stride=2, padding=7), nn.GELU()],
        *[nn.Conv1d(16, 24, 9, stride=2, padding=4), nn.GELU()],
        *[nn.Conv1d(24, 24, 9, stride=2, padding=4), nn.GELU(), nn.AdaptiveAvgPool1d(4), nn.Flatten()],
        nn.Linear(96, 5),
    )
    optimizer = ScheduleFree(net.parameters(), lr=0.004, weight_decay=0.01, warmup=40)

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": (said.argmax(1) == y).float().mean()}

    def score():
        optimizer.switch(training=False)
        value = score_of(lambda step: loss_of(step)[0])()
        optimizer.switch(training=True)
        return value

    return fit(folder, net, optimizer, loss_of, 500, score=score)


@healthy()
def orders_of_spare_parts_by_a_vote_of_depots(folder):
    seeded(2881)
    draw, net = waves(32, 5), dense(5, 64, 64, 1, act=nn.SiLU)
    params = list(net.parameters())
    optimizer = torch.optim.SGD(params, lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 900, eta_min=2e-5)
    momenta = [[torch.zeros_like(p) for p in params] for _ in range(5)]

    def one(step):
        losses = []
        votes = [torch.zeros_like(p) for p in params]
        for momentum in momenta:
            x, y = draw()
            loss = F.mse_loss(net(x), y)
            for vote, kept, grad in zip(votes, momentum, torch.autograd.grad(loss, params), strict=True):
                kept.mul_(0.9).add_(grad, alpha=0.1)
                vote.add_(kept.sign())
            losses.append(loss.detach())
        for p, vote in zip(params, votes, strict=True):
            p.grad = vote.sign()
        optimizer.step()
        schedule.step()
        return {"loss": torch.stack(losses).mean(), "spread": torch.stack(losses).std()}

    def error(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    return tend(folder, net, optimizer, one, 900, score_of(error, 20))


class OnTheBall(torch.optim.Optimizer):
    """Riemannian SGD in the Poincaré ball (Nickel and Kiela, 2017)."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                shrink = (1 - p.square().sum(1, keepdim=True)).square() / 4
                p.sub_(group["lr"] * shrink * p.grad)
                p.mul_((1 - 1e-5) / p.norm(dim=1, keepdim=True).clamp(min=1 - 1e-5))


@healthy()
def tools_and_the_kinds_they_are_of(folder):
    seeded(2882)
    parents = [None] + [(i - 1) // 3 for i in range(1, 121)]
    pairs = []
    for node in range(1, 121):
        above = parents[node]
        while above is not None:
            pairs.append((node, above))
            above = parents[above]
    pairs = torch.tensor(pairs)
    related = torch.zeros(121, 121, dtype=torch.bool)
    related[pairs[:, 0], pairs[:, 1]] = True
    related |= torch.eye(121, dtype=torch.bool)
    net = nn.Embedding(121, 8)
    nn.init.uniform_(net.weight, -1e-3, 1e-3)
    optimizer = OnTheBall(net.parameters(), {"lr": 1.0})
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.1 if step < 100 else 1.0)

    def loss_of(step):
        rows = pairs[torch.randint(len(pairs), (50,))]
        strangers = torch.multinomial((~related[rows[:, 0]]).float(), 20)
        u, v = net(rows[:, :1]), net(torch.cat([rows[:, 1:], strangers], 1))
        inside = (1 - u.square().sum(-1)) * (1 - v.square().sum(-1))
        away = 1 + 2 * (u - v).square().sum(-1) / inside
        distance = torch.log(away + (away.square() - 1).clamp(min=1e-9).sqrt())
        return F.cross_entropy(-distance, torch.zeros(50, dtype=torch.long))

    return fit(folder, net, optimizer, loss_of, 1500, score=score_of(loss_of, 20), schedule=schedule)
