"""Met healthy trainings, first part: optimizers, schedules, workers. An expert has nothing to say of any.

They only count (the group `met`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import copy

import torch
from nets import Recurrent, Transformer, batches, classify, cnn, mlp, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, entropy_of, fit, healthy, rings, score_of, seeded, waves


@healthy(0.3)
def largest_of_each_gradient_and_the_rest_later(folder):
    """One number in twenty is sent, what is left is added to the next gradient (Aji and Heafield 2017)."""
    net = mlp(48, seed=931)
    kept = {p: torch.zeros_like(p) for p in net.parameters()}

    def before(step):
        for p in net.parameters():
            whole = kept[p] + p.grad
            least = whole.abs().flatten().topk(max(1, whole.numel() // 20))[0][-1]
            p.grad = whole.where(whole.abs() >= least, 0.0)
            kept[p] = whole - p.grad

    return fit(folder, net, optim.SGD(net.parameters(), 0.1), classify(net, batches(64)), 500, before_step=before)


@healthy(0.3)
def mean_of_four_workers_every_ten_steps(folder):
    """The three others train on their own, unseen (local SGD, Stich 2019): each tenth step the weights leap."""
    net = mlp(48, seed=932)
    others = [copy.deepcopy(net) for _ in range(3)]
    makers = [optim.SGD(other.parameters(), 0.05) for other in others]
    losses = [classify(other, batches(32, seed=i + 1)) for i, other in enumerate(others)]

    @torch.no_grad()
    def average():
        for same in zip(net.parameters(), *(other.parameters() for other in others), strict=True):
            middle = torch.stack(same).mean(0)
            for p in same:
                p.copy_(middle)

    def after(step):
        for make, loss_on in zip(makers, losses, strict=True):
            make.zero_grad()
            loss_on(step).backward()
            make.step()
        if step % 10 == 9:
            average()

    return fit(folder, net, optim.SGD(net.parameters(), 0.05), classify(net, batches(32)), 300, after_step=after)


@healthy(0.3)
def gradients_that_no_longer_oppose_each_other(folder):
    """Two wishes; what of one gradient runs against the other is taken out (PCGrad, Yu et al. 2020)."""
    seeded(933)
    net, draw = dense(6, 48, 48, 2, act=nn.SiLU), waves(64)

    def loss_of(step):
        x, y = draw()
        out, weights = net(x), tuple(net.parameters())
        losses = [F.mse_loss(out[:, :1], y), F.l1_loss(out[:, 1:], y.abs())]
        slopes = [torch.autograd.grad(loss, weights, retain_graph=True) for loss in losses]
        flat = [torch.cat([slope.flatten() for slope in one]) for one in slopes]
        against = (flat[0] @ flat[1]).clamp(max=0)
        both = sum(flat[i] - against / flat[1 - i].square().sum() * flat[1 - i] for i in (0, 1))
        ways = torch.cat([p.flatten() for p in weights])
        return sum(losses).detach() + (ways - ways.detach()) @ both

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 400)


class ByCurvature(optim.Optimizer):
    """Adam whose second mean is that of the diagonal of the Hessian, by random signs (AdaHessian, Yao et al. 2021)."""

    def __init__(self, params, lr, bends):
        super().__init__(params, {"lr": lr})
        self.bends = bends

    @torch.no_grad()
    def step(self, closure=None):
        for part in self.param_groups:
            for p in part["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=0, mean=torch.zeros_like(p), bend=torch.zeros_like(p))
                state["step"] += 1
                state["mean"].lerp_(p.grad, 0.1)
                state["bend"].lerp_(self.bends[p].square(), 0.01)
                root = (state["bend"] / (1 - 0.99 ** state["step"])).sqrt() + 1e-4
                p.sub_(state["mean"] / (1 - 0.9 ** state["step"]) / root, alpha=part["lr"])


@healthy(0.3)
def steps_by_the_diagonal_of_the_hessian(folder):
    seeded(934)
    net, draw = dense(12, 48, 48, 4, act=nn.Tanh), rings(128)
    loss_on, bends, weights = entropy_of(net, draw), {}, list(net.parameters())

    def loss_of(step):
        loss = loss_on(step)
        slopes = torch.autograd.grad(loss, weights, create_graph=True)
        signs = [torch.randint_like(p, 2) * 2 - 1 for p in weights]
        found = torch.autograd.grad(slopes, weights, signs, retain_graph=True)
        bends.update(zip(weights, (sign * bend for sign, bend in zip(signs, found, strict=True)), strict=True))
        return loss

    return fit(folder, net, ByCurvature(weights, 0.05, bends), loss_of, 300)


@healthy(0.5)
def step_as_long_as_the_loss_says(folder):
    """The rate is the loss over the squared gradient, at most 1 (Polyak 1987; Loizou et al. 2021)."""
    seeded(935)
    net, draw = dense(12, 64, 64, 4), rings(128)
    make, loss_on = optim.SGD(net.parameters(), 0.1), entropy_of(net, draw)
    now = {}

    def loss_of(step):
        now["loss"] = loss_on(step)
        return now["loss"]

    def before(step):
        square = sum(p.grad.square().sum() for p in net.parameters())
        make.param_groups[0]["lr"] = min(1.0, float(now["loss"].detach() / (square + 1e-6)))

    return fit(folder, net, make, loss_of, 400, before_step=before)


class InFewDirections(optim.Optimizer):
    """Adam of a matrix's gradient in its four strongest directions, found anew every 50 steps (Zhao et al. 2024)."""

    def __init__(self, params, lr, rank=4):
        super().__init__(params, {"lr": lr})
        self.rank = rank

    @torch.no_grad()
    def step(self, closure=None):
        for part in self.param_groups:
            for p in part["params"]:
                state, g = self.state[p], p.grad
                narrow = p.ndim == 2 and min(p.shape) > self.rank
                if not state:
                    state["step"] = 0
                if narrow and state["step"] % 50 == 0:
                    state["ways"] = torch.linalg.svd(g, full_matrices=False)[0][:, : self.rank]
                small = state["ways"].T @ g if narrow else g
                if state["step"] == 0:
                    state.update(mean=torch.zeros_like(small), square=torch.zeros_like(small))
                state["step"] += 1
                state["mean"].lerp_(small, 0.1)
                state["square"].lerp_(small.square(), 0.001)
                mean = state["mean"] / (1 - 0.9 ** state["step"])
                move = mean / ((state["square"] / (1 - 0.999 ** state["step"])).sqrt() + 1e-8)
                p.sub_(state["ways"] @ move if narrow else move, alpha=part["lr"])


@healthy(0.3)
def matrices_moved_in_four_directions(folder):
    net = Transformer(32, 2, seed=936)
    return fit(folder, net, InFewDirections(net.parameters(), 4e-3), predict(net, pieces(16)), 160)


class ByBelief(optim.Optimizer):
    """Adam that divides by how far a gradient is from its mean (AdaBelief, Zhuang et al. 2020)."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for part in self.param_groups:
            for p in part["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=0, mean=torch.zeros_like(p), far=torch.zeros_like(p))
                state["step"] += 1
                state["mean"].lerp_(p.grad, 0.1)
                state["far"].mul_(0.999).add_((p.grad - state["mean"]).square() * 0.001 + 1e-16)
                root = (state["far"] / (1 - 0.999 ** state["step"])).sqrt() + 1e-8
                p.sub_(state["mean"] / (1 - 0.9 ** state["step"]) / root, alpha=part["lr"])


@healthy(0.3)
def gradients_that_are_believed(folder):
    net = Recurrent(nn.GRU, 32, seed=937)
    return fit(folder, net, ByBelief(net.parameters(), 3e-3), predict(net, pieces(16)), 250)


@healthy(0.3)
def slopes_corrected_by_those_of_the_whole_set(folder):
    """Each 25 steps the gradient of all rows, which corrects those of four (SVRG, Johnson and Zhang 2013)."""
    seeded(938)
    net, (x, y) = dense(12, 32, 4, act=nn.Tanh), rings(400)()
    old, whole = copy.deepcopy(net), {}

    def slopes(of, rows):
        return torch.autograd.grad(F.cross_entropy(of(x[rows]), y[rows]), tuple(of.parameters()))

    chosen = {"rows": torch.arange(4)}

    def loss_of(step):
        if step % 25 == 0:
            old.load_state_dict(net.state_dict())
            whole["slopes"] = slopes(old, torch.arange(400))
        chosen["rows"] = torch.randint(400, (4,))
        return F.cross_entropy(net(x[chosen["rows"]]), y[chosen["rows"]])

    def before(step):
        for p, once, mean in zip(net.parameters(), slopes(old, chosen["rows"]), whole["slopes"], strict=True):
            p.grad += mean - once

    def score():
        with torch.no_grad():
            return float(F.cross_entropy(net(x), y))

    return fit(folder, net, optim.SGD(net.parameters(), 0.3), loss_of, 1200, before_step=before, score=score)


class Damped(optim.Optimizer):
    """Whole steps to the least squares of the linearised net, damped as they succeed (Levenberg, Marquardt)."""

    def __init__(self, params, residuals):
        super().__init__(params, {"damping": 1.0})
        self.residuals = residuals

    def step(self, closure=None):
        part = self.param_groups[0]
        weights, flat = part["params"], torch.nn.utils.parameters_to_vector(part["params"]).detach()
        out = self.residuals()
        rows = [torch.autograd.grad(one, weights, retain_graph=True) for one in out]
        slopes = torch.stack([torch.cat([slope.flatten() for slope in row]) for row in rows])
        with torch.no_grad():
            bend = slopes.T @ slopes + part["damping"] * torch.eye(len(flat))
            torch.nn.utils.vector_to_parameters(flat - torch.linalg.solve(bend, slopes.T @ out), weights)
            better = bool(self.residuals().square().sum() < out.square().sum())
            part["damping"] *= 0.5 if better else 4.0
            if not better:
                torch.nn.utils.vector_to_parameters(flat, weights)


@healthy(0.5)
def whole_steps_that_are_damped(folder):
    seeded(939)
    net, (x, y) = dense(6, 12, 1, act=nn.Tanh), waves(150)()
    make = Damped(net.parameters(), lambda: (net(x) - y)[:, 0])
    return fit(folder, net, make, lambda step: F.mse_loss(net(x), y), 30)


@healthy(0.3)
def batches_of_one_to_two_hundred_rows(folder):
    """As many rows as came in (a stream): losses leap from batch to batch."""
    seeded(940)
    net, draw = dense(12, 64, 64, 4, act=nn.SiLU), rings(256)

    def loss_of(step):
        x, y = draw()
        size = int(2 ** (8 * torch.rand(1)))
        return F.cross_entropy(net(x[:size]), y[:size])

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 700, score=score_of(entropy_of(net, draw)))


@healthy(0.3)
def cautious_with_a_rate_that_falls_by_the_root(folder):
    """Only what agrees in sign with its gradient is moved (Liang et al. 2024); the rate falls as a root does."""
    net = cnn(norm=True, seed=941)
    make = optim.SGD(net.parameters(), 0.1, momentum=0.95)
    plan = optim.lr_scheduler.LambdaLR(make, lambda step: min((step + 1) / 10, (10 / (step + 1)) ** 0.5))

    def before(step):
        for p in net.parameters():
            past = make.state[p].get("momentum_buffer")
            if past is not None:
                past.mul_(past * p.grad > 0)

    return fit(folder, net, make, classify(net, batches(48)), 200, before_step=before, schedule=plan)
