"""Healthy trainings of researchers: few bits, local losses, sparse codes, optimizers of one's own, whole sets."""

from itertools import pairwise

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded, square_of, waves
from unseen.tasks import held_out, rounds, tend


def halves():
    """The digits as pictures, in an order of this run: what is learned from, and what is asked."""
    x, y = digits()
    order = torch.randperm(len(x))
    x, y = x[order, None], y[order]
    return (x[:1400], y[:1400]), (x[1400:], y[1400:])


# ----------------------------------------------------------------------------------------------- steps that are learned


def rounded(x):
    return x + (x.round() - x).detach()


class FewBits(nn.Linear):
    """Weights of three bits and inputs of four, both with a step that is learned."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.step_of_weights = nn.Parameter(2 * self.weight.detach().abs().mean() / 3**0.5)
        self.step_of_inputs = nn.Parameter(torch.tensor(0.1))

    def quantised(self, x, step, low, high):
        gain = 1 / (x.numel() * high) ** 0.5
        step = (step * gain) + (step - step * gain).detach()
        return rounded((x / step).clamp(low, high)) * step

    def forward(self, x):
        x = self.quantised(x, self.step_of_inputs, 0, 15)
        return F.linear(x, self.quantised(self.weight, self.step_of_weights, -4, 3), self.bias)


@healthy()
def a_letter_scale_that_reads_with_three_bits(folder):
    seeded(3359)
    train, test = halves()
    draw = rounds(64, *train)
    hidden = [FewBits(64, 64), nn.BatchNorm1d(64), nn.ReLU(), FewBits(64, 64), nn.BatchNorm1d(64), nn.ReLU()]
    net = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(64, 10))
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 350)

    def loss_of(step):
        x, y = draw()
        out = net(x)
        return F.cross_entropy(out, y), {"accuracy": (out.argmax(1) == y).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(test[0]), test[1]))
    return fit(folder, net, optimizer, loss_of, 350, score=score, schedule=schedule)


# ---------------------------------------------------------------------------------------------------------- local heads


class Storeys(nn.Module):
    """Each storey has a head of its own and hands on what it sees without a way back."""

    def __init__(self):
        super().__init__()
        sizes = [1, 12, 16, 24]
        self.storeys = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.GroupNorm(4, b), nn.ReLU())
            for a, b in pairwise(sizes)
        )
        self.heads = nn.ModuleList(nn.Linear(16 * b, 10) for b in sizes[1:])

    def forward(self, x):
        said = []
        for storey, head in zip(self.storeys, self.heads, strict=True):
            x = storey(x.detach())
            said.append(head(F.adaptive_avg_pool2d(x, 4).flatten(1)))
        return said


@healthy()
def postmarks_read_storey_by_storey(folder):
    seeded(3360)
    train, test = halves()
    draw, net = rounds(48, *train), Storeys()
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=300, pct_start=0.2)

    def loss_of(step):
        x, y = draw()
        losses = [F.cross_entropy(out, y) for out in net(x)]
        return sum(losses), {f"storey_{i}": loss.detach() for i, loss in enumerate(losses)}

    score = held_out(net, lambda: F.cross_entropy(net(test[0])[-1], test[1]))
    return fit(folder, net, optimizer, loss_of, 300, score=score, schedule=schedule)


# --------------------------------------------------------------------------------------------------------- sparse codes


class Shrink(nn.Module):
    """Eight rounds of iterated shrinkage with matrices and thresholds of their own, begun as the textbook's."""

    def __init__(self, atoms, depth=8):
        super().__init__()
        size = float(torch.linalg.matrix_norm(atoms, 2)) ** 2
        around = torch.eye(atoms.shape[1]) - atoms.T @ atoms / size
        self.inward = nn.ParameterList(atoms.T.clone() / size for _ in range(depth))
        self.around = nn.ParameterList(around.clone() for _ in range(depth))
        self.edge = nn.Parameter(torch.full((depth,), 0.1 / size))

    def forward(self, y):
        x, rounds_of = torch.zeros(len(y), self.around[0].shape[0]), []
        for inward, around, edge in zip(self.inward, self.around, self.edge, strict=True):
            x = F.linear(y, inward) + F.linear(x, around)
            x = x.sign() * F.relu(x.abs() - edge)
            rounds_of.append(x)
        return rounds_of


@healthy()
def echoes_off_a_few_cave_walls(folder):
    seeded(3361)
    atoms = F.normalize(torch.randn(30, 60), dim=0)
    net = Shrink(atoms)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [400, 520], 0.3)

    def draw():
        x = torch.randn(128, 60) * (torch.rand(128, 60) < 0.06)
        return x, x @ atoms.T + 0.01 * torch.randn(128, 30)

    def loss_of(step):
        x, y = draw()
        guesses = net(y)
        errors = torch.stack([(g - x).square().sum(1).mean() for g in guesses])
        return errors[-1] + 0.1 * errors[:-1].mean(), {"walls_named": (guesses[-1] != 0).float().sum(1).mean()}

    def score():
        x, y = draw()
        with torch.no_grad():
            return float((net(y)[-1] - x).square().sum() / x.square().sum())

    return fit(folder, net, optimizer, loss_of, 600, score=score, schedule=schedule)


# --------------------------------------------------------------------------------------------------- optimizers by hand


class Shampoo(torch.optim.Optimizer):
    """Both sides of each matrix are whitened; the length of a step is that of Adagrad's."""

    def __init__(self, params, lr, momentum=0.9, every=10):
        super().__init__(params, {"lr": lr, "momentum": momentum, "every": every})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(self.way(p, p.grad, group), alpha=-group["lr"])

    def way(self, p, g, group):
        state = self.state[p]
        if not state:
            state["count"], state["sum"], state["moved"] = 0, torch.zeros_like(p), torch.zeros_like(p)
            state["sides"] = [1e-4 * torch.eye(n) for n in p.shape] if p.dim() == 2 else []
        state["sum"].add_(g.square())
        plain = g / (state["sum"].sqrt() + 1e-8)
        way = plain
        if state["sides"]:
            left, right = state["sides"]
            left.add_(g @ g.T)
            right.add_(g.T @ g)
            if state["count"] % group["every"] == 0:
                state["roots"] = [self.root(side) for side in state["sides"]]
            way = state["roots"][0] @ g @ state["roots"][1]
            way = way * plain.norm() / (way.norm() + 1e-12)
        state["count"] += 1
        return state["moved"].mul_(group["momentum"]).add_(way, alpha=1 - group["momentum"])

    def root(self, side):
        values, vectors = torch.linalg.eigh(side.double())
        return (vectors * values.clamp(min=1e-6) ** -0.25 @ vectors.T).float()


@healthy()
def hulls_of_walnuts_by_their_weight_and_sound(folder):
    seeded(3362)
    net, draw = dense(6, 48, 48, 1, act=nn.Mish), waves(128)
    optimizer = Shampoo(net.parameters(), 0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500, 1e-3)
    loss_of = square_of(net, draw)
    return fit(folder, net, optimizer, loss_of, 500, score=score_of(loss_of), schedule=schedule)


class AdaHessian(torch.optim.Optimizer):
    """Adam with the diagonal of the Hessian, guessed from signs drawn at random, where Adam has the gradient."""

    def __init__(self, params, lr, betas=(0.9, 0.999), eps=1e-4):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    def feel(self):
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        signs = [torch.randint_like(p, 2) * 2 - 1 for p in params]
        curved = torch.autograd.grad([p.grad for p in params], params, grad_outputs=signs)
        for p, sign, bent in zip(params, signs, curved, strict=True):
            self.state[p]["bent"] = (sign * bent).abs().mean(-1, keepdim=True).expand_as(p)
            p.grad = p.grad.detach()

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            one, two = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                state["count"] = n = state.get("count", 0) + 1
                m = state.setdefault("m", torch.zeros_like(p)).mul_(one).add_(p.grad, alpha=1 - one)
                v = state.setdefault("v", torch.zeros_like(p)).mul_(two)
                v.add_(state["bent"].square(), alpha=1 - two)
                p.sub_(group["lr"] * m / (1 - one**n) / ((v / (1 - two**n)).sqrt() + group["eps"]))


@healthy()
def heights_of_hop_vines_in_july(folder):
    seeded(3363)
    net, draw = dense(6, 40, 40, 1, act=nn.Tanh), waves(128)
    optimizer = AdaHessian(net.parameters(), 0.03)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)
    loss_of = square_of(net, draw)

    def one(step):
        optimizer.zero_grad()
        loss = loss_of(step)
        loss.backward(create_graph=True)
        optimizer.feel()
        optimizer.step()
        schedule.step()
        return {"loss": loss.detach()}

    return tend(folder, net, optimizer, one, 500, score_of(loss_of))


@healthy()
def dew_on_a_greenhouse_pane(folder):
    seeded(3364)

    def pane(rows):
        warm, wet = 35 * torch.rand(rows), 0.2 + 0.75 * torch.rand(rows)
        part = wet.log() + 17.6 * warm / (243 + warm)
        dew = 243 * part / (17.6 - part)
        return torch.stack([(warm - 17.5) / 10, (wet - 0.575) / 0.22], 1), ((dew - 8) / 12)[:, None]

    x, y = pane(400)
    new_x, new_y = pane(1000)
    net = dense(2, 4, 1, act=nn.Tanh)
    optimizer = torch.optim.Rprop(net.parameters(), 1e-2, step_sizes=(1e-6, 0.5))
    score = held_out(net, lambda: F.mse_loss(net(new_x), new_y))
    return fit(folder, net, optimizer, lambda step: F.mse_loss(net(x), y), 1000, score=score)
