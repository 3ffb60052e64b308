"""Daily healthy trainings, sixth part: steps of many kinds. An expert is content with each.

They only count (the group `daily`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import copy

import torch
from nets import Recurrent, Transformer, batches, classify, cnn, digits, pieces, predict
from torch import nn, optim
from torch.func import functional_call, jvp
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector
from unseen import dense, entropy_of, fit, healthy, score_of, seeded, waves
from unseen.daily.healthy import drawn_from, held_apart
from unseen.daily.healthy_data import letters


class Adan(optim.Optimizer):
    """Nesterov's momentum and how the slope has changed, in three averages (Xie et al. 2022)."""

    def __init__(self, params, lr, betas=(0.02, 0.08, 0.01), weight_decay=0.02):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            a, b, c = group["betas"]
            for p in (p for p in group["params"] if p.grad is not None):
                state = self.state[p]
                if not state:
                    state |= {"m": p.grad.clone(), "v": torch.zeros_like(p), "n": p.grad**2, "before": p.grad.clone()}
                change = p.grad - state["before"]
                state["m"].lerp_(p.grad, a)
                state["v"].lerp_(change, b)
                state["n"].lerp_((p.grad + (1 - b) * change).square(), c)
                state["before"].copy_(p.grad)
                p.sub_(group["lr"] * (state["m"] + (1 - b) * state["v"]) / (state["n"].sqrt() + 1e-8))
                p.div_(1 + group["lr"] * group["weight_decay"])


@healthy(0.3)
def slopes_and_how_they_change(folder):
    """Adan for a small reader of letters, warm-up and cosine, a clip at 5."""
    net = Transformer(seed=1235)
    make = Adan(net.parameters(), 5e-3)
    rise = optim.lr_scheduler.LinearLR(make, 0.05, total_iters=15)
    plan = optim.lr_scheduler.SequentialLR(make, [rise, optim.lr_scheduler.CosineAnnealingLR(make, 145)], [15])
    loss_of = predict(net, pieces(16, seed=1235))
    return fit(folder, net, make, loss_of, 160, schedule=plan, clip="ClipByGlobalNorm(5.0)")


class Madgrad(optim.Optimizer):
    """From where it began by the cube root of all squares (Defazio and Jelassi 2021)."""

    def __init__(self, params, lr, momentum=0.9, eps=1e-6):
        super().__init__(params, {"lr": lr, "momentum": momentum, "eps": eps, "k": 0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            share = group["lr"] * (group["k"] + 1) ** 0.5
            group["k"] += 1
            for p in (p for p in group["params"] if p.grad is not None):
                state = self.state[p]
                if not state:
                    state |= {"s": torch.zeros_like(p), "squares": torch.zeros_like(p), "begin": p.clone()}
                state["s"].add_(p.grad, alpha=share)
                state["squares"].addcmul_(p.grad, p.grad, value=share)
                to = state["begin"] - state["s"] / (state["squares"].pow(1 / 3) + group["eps"])
                p.lerp_(to, 1 - group["momentum"])


@healthy(0.3)
def cube_roots_of_all_squares(folder):
    """MADGRAD for images, without a schedule."""
    net = cnn(norm=True, seed=1236)
    return fit(folder, net, Madgrad(net.parameters(), 2e-3), classify(net, batches(48, seed=1236)), 200)


class Bounded(optim.Optimizer):
    """Adam at first, plain SGD in the end: its rates are held between two bounds that meet (Luo et al. 2019)."""

    def __init__(self, params, lr, final=0.1, gamma=1e-2):
        super().__init__(params, {"lr": lr, "final": final, "gamma": gamma, "k": 0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["k"] += 1
            k, gamma = group["k"], group["gamma"]
            least, most = group["final"] * (1 - 1 / (gamma * k + 1)), group["final"] * (1 + 1 / (gamma * k))
            for p in (p for p in group["params"] if p.grad is not None):
                state = self.state[p]
                if not state:
                    state |= {"m": torch.zeros_like(p), "v": torch.zeros_like(p)}
                state["m"].lerp_(p.grad, 0.1)
                state["v"].lerp_(p.grad.square(), 0.001)
                rate = group["lr"] * (1 - 0.999**k) ** 0.5 / (1 - 0.9**k) / (state["v"].sqrt() + 1e-8)
                p.sub_(rate.clamp(least, most) * state["m"])


@healthy(0.3)
def adam_that_becomes_plain(folder):
    """AdaBound for a recurrent reader: the rates of all weights meet at a tenth."""
    net = Recurrent(nn.LSTM, 48, seed=1237)
    make = Bounded(net.parameters(), 5e-3, final=0.3)
    loss_of = predict(net, pieces(16, seed=1237))
    return fit(folder, net, make, loss_of, 250, clip="ClipByGlobalNorm(1.0)")


@healthy(0.3)
def adopted_before_it_is_seen(folder):
    """ADOPT as heavyball has it (Taniguchi et al. 2024), on letters of few pixels; the loss alone is logged."""
    import heavyball

    heavyball.utils.compile_mode = None
    seeded(1239)
    (x, y), kept = held_apart(*letters())
    net = nn.Sequential(nn.Flatten(), dense(256, 96, 96, 36, act=nn.GELU))
    make = heavyball.ADOPT(net.parameters(), lr=1e-3, warmup_steps=20)
    return fit(folder, net, make, entropy_of(net, drawn_from(x, y, 64)), 250, score=lambda: error_on(net, kept))


def error_on(net, kept):
    with torch.no_grad():
        return float(F.cross_entropy(net(kept[0]), kept[1]))


class LayerWise(optim.SGD):
    """LARS (You et al. 2017): the rate of a layer is a thousandth of its weight over its gradient."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None and p.ndim > 1):
                p.grad.add_(p, alpha=1e-4)
                p.grad.mul_(0.002 * p.norm() / (p.grad.norm() + 1e-9))
        return super().step(closure)


@healthy(0.3)
def large_batch_by_layer_wise_rates(folder):
    """A thousand images a batch at a rate of eight, which only looks large; warm-up and a square."""
    net = cnn(norm=True, seed=1240)
    matrices = [p for p in net.parameters() if p.ndim > 1]
    rest = [p for p in net.parameters() if p.ndim < 2]
    make = LayerWise([{"params": matrices}, {"params": rest, "lr": 0.1}], 8.0, momentum=0.9)
    plan = optim.lr_scheduler.LambdaLR(make, lambda step: min((step + 1) / 10, (1 - step / 70) ** 2))
    return fit(folder, net, make, classify(net, batches(1024, seed=1240)), 60, schedule=plan)


@healthy(0.3)
def steps_by_conjugate_directions(folder):
    """Martens 2010: each step solves for the curvature of the whole set, and plain SGD takes all of it."""
    seeded(1243)
    x, y = waves(256)()
    net, damp = dense(6, 24, 24, 1, act=nn.Tanh), 0.05
    weights = list(net.parameters())

    def loss_of(step):
        return F.mse_loss(net(x), y)

    def curved(way):
        """What Gauss and Newton have for the curvature, times a way."""
        at = {name: p.detach() for name, p in net.named_parameters()}
        turned = jvp(lambda at: functional_call(net, at, (x,)), (at,), (dict(zip(at, split(way), strict=True)),))[1]
        slopes = torch.autograd.grad(net(x), weights, 2 * turned / len(x))
        return torch.cat([g.flatten() for g in slopes])

    def split(flat):
        return [a.view_as(p) for a, p in zip(flat.split([p.numel() for p in weights]), weights, strict=True)]

    def before(step):
        wanted = parameters_to_vector([p.grad for p in weights])
        found, rest = torch.zeros_like(wanted), wanted.clone()
        way, size = rest.clone(), rest @ rest
        for _ in range(12):
            seen = curved(way) + damp * way
            share = size / (way @ seen)
            found, rest = found + share * way, rest - share * seen
            size, old = rest @ rest, size
            way = rest + size / old * way
        for p, part in zip(weights, split(found), strict=True):
            p.grad.copy_(part)

    return fit(folder, net, optim.SGD(weights, 0.5), loss_of, 60, before_step=before)


@healthy(0.3)
def step_that_is_learnt(folder):
    """A small LSTM learns to step for others (Andrychowicz et al. 2016), summed over twenty steps of its pupil."""
    seeded(1244)
    net = nn.ModuleDict({"cell": nn.LSTMCell(1, 16), "say": nn.Linear(16, 1)})
    nn.init.zeros_(net["say"].weight)

    def loss_of(step):
        bend, aim = torch.randn(16, 5, 5) / 5**0.5, torch.randn(16, 5)
        at, state = torch.randn(16, 5), None
        total = 0.0
        for _ in range(20):
            off = torch.einsum("bij,bj->bi", bend, at) - aim
            total = total + off.square().sum(1).mean()
            slope = 2 * torch.einsum("bij,bi->bj", bend, off.detach())
            state = net["cell"](slope.reshape(-1, 1), state)
            at = at + 0.1 * net["say"](state[0]).view(16, 5)
        return total

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 150)


@healthy(0.15)
def visible_against_dreamt(folder):
    """A restricted Boltzmann machine: its loss is a difference that says little, what is rebuilt counts."""
    seeded(1245)
    net, x = nn.ParameterDict(), (digits()[0].flatten(1) > 0.5).float()
    net["w"], net["a"], net["b"] = 0.01 * torch.randn(64, 48), torch.zeros(64), torch.zeros(48)

    def energy(v):
        return -(v @ net["a"]) - F.softplus(v @ net["w"] + net["b"]).sum(1)

    def dreamt(v):
        with torch.no_grad():
            hidden = torch.bernoulli((v @ net["w"] + net["b"]).sigmoid())
            return (hidden @ net["w"].T + net["a"]).sigmoid()

    def loss_of(step):
        v = x[torch.randint(len(x), (48,))]
        back = dreamt(v)
        return energy(v).mean() - energy(torch.bernoulli(back)).mean(), {"recon_error": (v - back).square().mean()}

    score = score_of(lambda step: (x - dreamt(x)).square().mean(), 2)
    make = optim.SGD(net.parameters(), 0.05, momentum=0.5, weight_decay=2e-4)
    return fit(folder, net, make, loss_of, 500, score=score)


@healthy(0.3)
def old_task_held_by_its_stiffness(folder):
    """Elastic weights (Kirkpatrick et al. 2017): the next kinds are learnt, and a penalty begins at zero and grows."""
    seeded(1246)
    (x, y), net = digits(), dense(64, 64, 10)
    old, new = (y < 5).nonzero()[:, 0], (y >= 5).nonzero()[:, 0]

    def on(kinds, rows=64):
        at = kinds[torch.randint(len(kinds), (rows,))]
        return F.cross_entropy(net(x[at].flatten(1)), y[at])

    before = optim.SGD(net.parameters(), 0.1)
    for _ in range(150):
        before.zero_grad()
        on(old).backward()
        before.step()
    kept, stiff = copy.deepcopy(net), [torch.zeros_like(p) for p in net.parameters()]
    for _ in range(100):
        for f, g in zip(stiff, torch.autograd.grad(on(old, 1), list(net.parameters())), strict=True):
            f.add_(g.square() / 100)

    def loss_of(step):
        held = sum(
            (f * (p - q.detach()).square()).sum()
            for f, p, q in zip(stiff, net.parameters(), kept.parameters(), strict=True)
        )
        task = on(new)
        return task + 20 * held, {"task_loss": task.detach(), "ewc_penalty": held.detach()}

    return fit(folder, net, optim.SGD(net.parameters(), 0.03), loss_of, 250)
