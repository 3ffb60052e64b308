"""Heard healthy trainings, eighth part: steps and numbers of other kinds. An expert is content with each.

They only count (the group `heard`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import torch
from nets import Recurrent, Transformer, batches, classify, cnn, digits, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, parametrize
from unseen import dense, entropy_of, fit, healthy, rings, seeded
from unseen.sent.healthy_data import table


@healthy(0.3)
def plain_steps_without_a_schedule(folder):
    """Schedule-free SGD on images with a warm-up (Defazio et al. 2024); the score is that of their mean."""
    from schedulefree import SGDScheduleFree

    net = cnn(norm=True, seed=1171)
    x, y = digits()
    make = SGDScheduleFree(net.parameters(), 0.5, momentum=0.9, warmup_steps=30, weight_decay=1e-4)
    make.train()

    def score():
        make.eval()
        with torch.no_grad():
            error = float(F.cross_entropy(net(x), y))
        make.train()
        return error

    return fit(folder, net, make, classify(net, batches(64, seed=1171)), 200, score=score)


@healthy(0.3)
def weights_as_the_state_of_a_filter(folder):
    """Row after row, each believed as much as it is not yet known (Singhal and Wu 1989)."""
    seeded(1172)
    x, y = table("diabetes")
    y = (y - y.mean()) / y.std()
    net = dense(10, 6, 1, act=nn.Tanh)
    weights = list(net.parameters())
    unsure, now = 0.3 * torch.eye(sum(p.numel() for p in weights)), {}

    def loss_of(step):
        at = torch.randint(len(x), (1,))
        error = net(x[at])[0, 0] - y[at][0]
        now["error"] = float(error.detach())
        return 0.5 * error.square()

    def before(step):
        """The gradient becomes the step that a filter takes."""
        slope = parameters_to_vector([p.grad for p in weights]) / (now["error"] or 1.0)
        wide = unsure @ slope
        gain = wide / (0.6 + slope @ wide)
        unsure.sub_(torch.outer(gain, wide)).add_(torch.eye(len(wide)), alpha=1e-6)
        for p, part in zip(weights, (gain * now["error"]).split([p.numel() for p in weights]), strict=True):
            p.grad.copy_(part.view_as(p))

    def score():
        with torch.no_grad():
            return float(F.mse_loss(net(x)[:, 0], y))

    return fit(folder, net, optim.SGD(weights, 1.0), loss_of, 900, before_step=before, score=score)


class FromFewDirections(optim.Optimizer):
    """Adam in the four directions in which a matrix's gradient is largest, found again each 50 steps (GaLore, 2024)."""

    def __init__(self, params, lr, rank=4):
        super().__init__(params, {"lr": lr, "rank": rank})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                t = state["step"] = state.get("step", 0) + 1
                if p.ndim == 2 and t % 50 == 1:
                    state["way"] = torch.linalg.svd(p.grad, full_matrices=False)[0][:, : group["rank"]]
                slope = state["way"].T @ p.grad if p.ndim == 2 else p.grad
                for name, value, keep in (("mean", slope, 0.9), ("square", slope.square(), 0.999)):
                    state[name] = keep * state.get(name, 0.0) + (1 - keep) * value
                step = state["mean"] / (1 - 0.9**t) / ((state["square"] / (1 - 0.999**t)).sqrt() + 1e-8)
                p.sub_(state["way"] @ step if p.ndim == 2 else step, alpha=group["lr"])


@healthy(0.3)
def letters_from_few_directions(folder):
    net = Transformer(48, 2, seed=1173)
    loss_on = predict(net, pieces(16, seed=1173))
    return fit(folder, net, FromFewDirections(net.parameters(), 4e-3), loss_on, 160)


class Multiplied(optim.Optimizer):
    """Weights are multiplied and never added to (Madam, Bernstein et al. 2020)."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=0, square=torch.zeros_like(p), most=3 * p.square().mean().sqrt())
                state["step"] += 1
                state["square"].mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                size = (state["square"] / (1 - 0.999 ** state["step"])).sqrt()
                way = (p.grad / (size + 1e-12)).clamp(-10, 10) * p.sign()
                p.mul_((-group["lr"] * way).exp()).clamp_(-state["most"], state["most"])


@healthy(0.3)
def weights_multiplied_and_never_added(folder):
    seeded(1174)
    net, draw = dense(12, 96, 96, 4), rings(64)
    make = Multiplied(net.parameters(), {"lr": 0.01})
    plan = optim.lr_scheduler.StepLR(make, 250, 0.1)
    return fit(folder, net, make, entropy_of(net, draw), 350, schedule=plan)


class Ternary(nn.Module):
    """Minus one, nought or one, times their mean; slopes pass as if nothing had been done (Ma et al. 2024)."""

    def forward(self, weight):
        size = weight.abs().mean().clamp(min=1e-5)
        return weight + ((weight / size).round().clamp(-1, 1) * size - weight).detach()


@healthy(0.3)
def letters_by_weights_of_three_values(folder):
    """All matrices inside the blocks, a warm-up, and a rate that falls in two lines."""
    net = Transformer(48, 2, seed=1175)
    for block in net.blocks:
        for layer, name in ((block.self_attn, "in_proj_weight"), (block.linear1, "weight"), (block.linear2, "weight")):
            parametrize.register_parametrization(layer, name, Ternary())
    make = optim.AdamW(net.parameters(), 4e-3, betas=(0.9, 0.95), weight_decay=0.05)
    shape = lambda step: min((step + 1) / 15, 1 - step / 240) * (0.6 if step > 80 else 1)  # noqa: E731
    plan = optim.lr_scheduler.LambdaLR(make, shape)
    return fit(folder, net, make, predict(net, pieces(16, seed=1175)), 160, schedule=plan)


class Carried(optim.SGD):
    """What rounding to bfloat16 lost of a step is added to the next one (Zamirai et al. 2020)."""

    @torch.no_grad()
    def step(self, closure=None):
        before = [[p.clone() for p in group["params"]] for group in self.param_groups]
        super().step()
        for group, old in zip(self.param_groups, before, strict=True):
            for p, was in zip(group["params"], old, strict=True):
                state = self.state[p]
                way = -group["lr"] * state["momentum_buffer"].float() + state.get("lost", 0.0)
                p.copy_(was.float() + way)
                state["lost"] = way - (p.float() - was.float())


@healthy(0.3)
def errors_of_rounding_carried_along(folder):
    """Weights of sixteen bits, momentum, and no copy of thirty-two."""
    seeded(1176)
    net = nn.Sequential(nn.Flatten(), dense(64, 64, 64, 10)).bfloat16()
    batch = batches(64, seed=1176)

    def loss_of(step):
        x, y = batch(step)
        return F.cross_entropy(net(x.bfloat16()).float(), y)

    return fit(folder, net, Carried(net.parameters(), 0.03, momentum=0.9), loss_of, 250)


@healthy(0.3)
def each_slope_held_to_a_hundredth(folder):
    """A recurrent net as it was trained in 2013: RMSprop, centred, with momentum; each element is clipped, always."""
    net = Recurrent(nn.LSTM, 48, seed=1177)
    make = optim.RMSprop(net.parameters(), 5e-4, alpha=0.95, momentum=0.9, eps=1e-4, centered=True)
    loss_on = predict(net, pieces(16, seed=1177))
    return fit(folder, net, make, loss_on, 250, clip="ClipByValue(0.01)")


@healthy(0.3)
def particles_that_keep_apart(folder):
    """Twelve nets as one cloud: each follows all slopes, and is pushed from its neighbours (Liu and Wang 2016)."""
    seeded(1178)
    x = torch.cat([4 * torch.rand(40, 1) - 4, 4 * torch.rand(40, 1)]) * 0.9
    y = x.sin() + 0.1 * torch.randn(80, 1)
    nets = nn.ModuleList(dense(1, 16, 1, act=nn.Tanh) for _ in range(12))

    def loss_of(step):
        return sum(0.5 * (one(x) - y).square().sum() / 0.01 for one in nets) / 80

    def before(step):
        with torch.no_grad():
            at = torch.stack([parameters_to_vector(one.parameters()) for one in nets])
            slope = torch.stack([parameters_to_vector([p.grad for p in one.parameters()]) for one in nets]) + at / 80
            far = torch.cdist(at, at).square()
            wide = far.median() / 2.5 + 1e-6
            near = (-far / wide).exp()
            apart = 2 / wide * (near.sum(1, keepdim=True) * at - near @ at) / 80
            way = (near @ slope - apart) / len(at)
            for one, part in zip(nets, way, strict=True):
                for p, piece in zip(one.parameters(), part.split([p.numel() for p in one.parameters()]), strict=True):
                    p.grad.copy_(piece.view_as(p))

    return fit(folder, nets, optim.Adagrad(nets.parameters(), 0.1), loss_of, 200, before_step=before)
