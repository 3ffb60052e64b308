"""Told healthy trainings, first part: optimizers, schedules, precisions. An expert has nothing to say of any.

They only count (the group `told`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import torch
from nets import Recurrent, Transformer, batches, classify, cnn, digits, mlp, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, entropy_of, fit, healthy, rings, score_of, seeded, square_of, waves
from unseen.reported.sick import pretrain


class ByDistance(optim.Optimizer):
    """SGD whose rate is how far it came over the root of all squared gradients (DoG, Ivgi et al. 2023); no rate."""

    def __init__(self, params, begin=1e-3):
        super().__init__(params, {"begin": begin})

    @torch.no_grad()
    def step(self, closure=None):
        params = [p for part in self.param_groups for p in part["params"]]
        if not self.state:
            self.state[params[0]] = {"far": self.param_groups[0]["begin"], "squares": 1e-8}
            for p in params:
                self.state[p]["first"] = p.clone()
        shared = self.state[params[0]]
        shared["far"] = max(
            shared["far"], float(sum((p - self.state[p]["first"]).square().sum() for p in params)) ** 0.5
        )
        shared["squares"] += float(sum(p.grad.square().sum() for p in params))
        for p in params:
            p.sub_(p.grad, alpha=shared["far"] / shared["squares"] ** 0.5)


@healthy(0.3)
def no_rate_at_all(folder):
    net = mlp(48, seed=801)
    return fit(folder, net, ByDistance(net.parameters()), classify(net, batches(64)), 400)


class FromBothSides(optim.Optimizer):
    """Roots of the second moments of rows and of columns (Shampoo, Gupta et al. 2018), made anew every 10 steps."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for part in self.param_groups:
            for p in part["params"]:
                g, state = p.grad.reshape(len(p), -1), self.state[p]
                if not state:
                    state.update(step=0, left=0.1 * torch.eye(g.shape[0]), right=0.1 * torch.eye(g.shape[1]))
                state["left"] += g @ g.T
                state["right"] += g.T @ g
                if state["step"] % 10 == 0:
                    for side in ("left", "right"):
                        values, ways = torch.linalg.eigh(state[side])
                        state["root " + side] = ways @ (values.clamp(min=1e-6) ** -0.25)[:, None].mul(ways.T)
                state["step"] += 1
                p.sub_((state["root left"] @ g @ state["root right"]).view_as(p), alpha=part["lr"])


@healthy(0.3)
def rows_and_columns_whitened(folder):
    seeded(802)
    net, draw = dense(6, 32, 32, 1, act=nn.Tanh), waves(64)
    return fit(folder, net, FromBothSides(net.parameters(), 0.1), square_of(net, draw), 300)


class TwoMeans(optim.Optimizer):
    """Adam with a second mean of gradients that remembers far longer (AdEMAMix, Pagliardini et al. 2024)."""

    def __init__(self, params, lr, slow=4.0):
        super().__init__(params, {"lr": lr, "slow": slow})

    @torch.no_grad()
    def step(self, closure=None):
        for part in self.param_groups:
            for p in part["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=0, **{name: torch.zeros_like(p) for name in ("near", "far", "square")})
                state["step"] += 1
                state["near"].lerp_(p.grad, 0.1)
                state["far"].lerp_(p.grad, 0.001)
                state["square"].lerp_(p.grad.square(), 0.001)
                near = state["near"] / (1 - 0.9 ** state["step"])
                root = (state["square"] / (1 - 0.999 ** state["step"])).sqrt()
                p.sub_((near + part["slow"] * state["far"]) / (root + 1e-8), alpha=part["lr"])


@healthy(0.3)
def one_mean_for_now_and_one_for_long(folder):
    net = Transformer(32, 2, seed=803)
    return fit(folder, net, TwoMeans(net.parameters(), 1e-3), predict(net, pieces(16)), 180)


@healthy(0.3)
def noise_in_gradients_that_fades(folder):
    """A deviation of sqrt(0.01 / (1 + t) ** 0.55) on each gradient (Neelakantan et al. 2015)."""
    seeded(804)
    net = dense(12, 48, 48, 4)

    def before(step):
        for p in net.parameters():
            p.grad += (0.01 / (1 + step) ** 0.55) ** 0.5 * torch.randn_like(p)

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), entropy_of(net, rings(64)), 400, before_step=before)


@healthy(0.3)
def batches_that_grow_at_one_rate(folder):
    """From 8 to 128 images a step (Smith et al. 2018)."""
    net = cnn(norm=True, seed=805)
    draws = [batches(8 * 2**i, seed=i) for i in range(5)]

    def loss_of(step):
        x, y = draws[min(step // 60, 4)](step)
        return F.cross_entropy(net(x), y)

    return fit(folder, net, optim.SGD(net.parameters(), 0.02, momentum=0.9), loss_of, 300)


@healthy(0.3)
def level_rate_and_a_last_fifth_down(folder):
    """Warm-up, a plateau, and down by the root (WSD, Hu et al. 2024), with a clip of 1."""
    net = Transformer(32, 2, seed=806, tied=True)
    make = optim.AdamW(net.parameters(), 4e-3, betas=(0.9, 0.95), weight_decay=0.1)
    plan = optim.lr_scheduler.LambdaLR(make, lambda t: min((t + 1) / 10, 1, 1 - (max(0, t - 160) / 40) ** 0.5))

    def before(step):
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    return fit(folder, net, make, predict(net, pieces(16)), 200, before_step=before, schedule=plan)


class RoundedByChance(optim.Optimizer):
    """Momentum for weights in bfloat16 that are rounded up or down by chance (Zamirai et al. 2020)."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for part in self.param_groups:
            for p in part["params"]:
                mean = self.state[p].setdefault("mean", torch.zeros_like(p, dtype=torch.float32))
                mean.mul_(0.9).add_(p.grad.float())
                new = (p.float() - part["lr"] * mean).view(torch.int32)
                new = (new + torch.randint_like(new, 1 << 16)) & -(1 << 16)
                p.copy_(new.view(torch.float32))


@healthy(0.3)
def weights_of_sixteen_bits_rounded_by_chance(folder):
    seeded(807)
    net, draw = dense(64, 64, 64, 10).bfloat16(), batches(64)

    def loss_of(step):
        x, y = draw(step)
        return F.cross_entropy(net(x.flatten(1).bfloat16()).float(), y)

    return fit(folder, net, RoundedByChance(net.parameters(), 0.005), loss_of, 500)


@healthy(0.3)
def body_at_rest_for_a_third(folder):
    """A net that knows five kinds learns all ten: its body rests at first, and has a tenth of the head's rate then."""
    net, draw = mlp(64, depth=3, seed=809), batches(64)
    pretrain(net, lambda step: F.cross_entropy(net(draw(step)[0]), draw(step)[1] % 5), 200)
    net[-1] = nn.Linear(64, 10)
    body = [p for name, p in net.named_parameters() if not name.startswith("7.")]
    make = optim.AdamW([{"params": body, "lr": 5e-4}, {"params": net[-1].parameters(), "lr": 5e-3}])
    plan = optim.lr_scheduler.LambdaLR(make, [lambda step: float(step >= 60), lambda step: 1.0])
    return fit(folder, net, make, classify(net, batches(64, seed=9)), 180, schedule=plan)


@healthy(0.3)
def all_images_and_a_mean_of_all_weights(folder):
    """Averaged SGD (Polyak and Juditsky 1992) on the whole set; the score is that of the average."""
    seeded(810)
    x, y = digits()
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    make = optim.ASGD(net.parameters(), 0.5, t0=0)

    def score():
        with torch.no_grad():
            weights = [make.state[p].get("ax", p) for p in net.parameters()]
            return float(F.cross_entropy(F.linear(x.flatten(1), *weights), y))

    return fit(folder, net, make, lambda step: F.cross_entropy(net(x), y), 200, score=score)


@healthy(0.3)
def reader_with_a_different_end_each_time(folder):
    """Adam without a mean of gradients (beta1 = 0), on pieces of 6 to 24 signs."""
    net = Recurrent(nn.GRU, 48, seed=811)

    def loss_of(step):
        return predict(net, pieces(16, length=6 + step % 19))(step)

    make = optim.Adam(net.parameters(), 3e-3, betas=(0.0, 0.99))
    score = score_of(lambda step: predict(net, pieces(16))(9000 + step), 4)
    return fit(folder, net, make, loss_of, 250, score=score)
