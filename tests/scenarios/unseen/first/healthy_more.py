"""Healthy trainings that no rule was written for, third part: lengths, schedules, optimizers, precision."""

from __future__ import annotations

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, entropy_of, fit, healthy, rings, score_of, seeded
from unseen.tasks import recall

# ------------------------------------------------------------------------------------------------ lengths and schedules


@healthy(0.8)
def five_thousand_tiny_steps(folder):
    """Converged for most of its steps: the noise of its labels is left."""
    seeded(120)
    net, way = nn.Linear(4, 1), torch.randn(4, 1)

    def loss_of(step):
        x = torch.randn(8, 4)
        return F.mse_loss(net(x), x @ way + 0.2 * torch.randn(8, 1))

    return fit(folder, net, optim.SGD(net.parameters(), 0.01), loss_of, 5000)


@healthy()
def thirty_steps_from_nothing(folder):
    seeded(121)
    net, draw = dense(12, 64, 4), rings(256)
    return fit(folder, net, optim.AdamW(net.parameters(), 1e-2), entropy_of(net, draw), 30)


@healthy()
def warm_restarts(folder):
    seeded(122)
    net, draw = dense(12, 48, 48, 4), rings()
    make = optim.SGD(net.parameters(), 0.1, momentum=0.9, nesterov=True)
    plan = optim.lr_scheduler.CosineAnnealingWarmRestarts(make, 40, 2)
    return fit(folder, net, make, entropy_of(net, draw), 280, schedule=plan)


@healthy()
def one_cycle(folder):
    """The rate rises to 0.3, and ends at next to nothing as it should."""
    seeded(123)
    net, draw = dense(12, 48, 48, 4, norm=nn.BatchNorm1d), rings()
    make = optim.SGD(net.parameters(), 0.3, momentum=0.9, weight_decay=5e-4)
    plan = optim.lr_scheduler.OneCycleLR(make, 0.3, total_steps=251)
    return fit(folder, net, make, entropy_of(net, draw), 250, schedule=plan)


@healthy()
def plateau_that_is_left(folder):
    """A deep linear net from small weights: next to nothing happens for a third of the run, and then it falls."""
    seeded(124)
    net, way = nn.Sequential(*(nn.Linear(6, 6, bias=False) for _ in range(3))), torch.randn(6, 6)
    for layer in net:
        nn.init.normal_(layer.weight, std=0.1)

    def loss_of(step):
        x = torch.randn(64, 6)
        return F.mse_loss(net(x), x @ way)

    return fit(folder, net, optim.SGD(net.parameters(), 0.05), loss_of, 800)


@healthy(0.1)
def curriculum_of_longer_lists(folder):
    """The loss jumps up where the task gets harder; the score is that of the hardest."""
    seeded(125)
    net, loss_of = recall(nn.GRU(4, 24, batch_first=True))
    score = score_of(lambda step: loss_of(step, length=10))
    make = optim.Adam(net.parameters(), 1e-2)
    return fit(folder, net, make, lambda step: loss_of(step, length=2 + step // 40), 360, score=score)


@healthy(0.02)
def tuning_what_is_good_already(folder):
    """It begins next to converged: the gradients are small, noisy, and stay so."""
    seeded(126)
    net, draw = dense(12, 64, 64, 4), rings()
    loss_of = entropy_of(net, draw)
    before = optim.Adam(net.parameters(), 3e-3)
    for step in range(200):
        before.zero_grad()
        loss_of(step).backward()
        before.step()
    before.zero_grad()
    return fit(folder, net, optim.AdamW(net.parameters(), 1e-4), loss_of, 150, score=score_of(loss_of, 30))


@healthy(0.2)
def one_row_at_a_time(folder):
    seeded(127)
    net, draw = dense(12, 32, 4), rings(1)
    score = score_of(entropy_of(net, draw), 200)
    return fit(folder, net, optim.SGD(net.parameters(), 0.01), entropy_of(net, draw), 1000, score=score)


# ------------------------------------------------------------------------------------------------ optimizers and loops


class Lion(optim.Optimizer):
    """The sign of a momentum (Chen et al. 2023)."""

    def __init__(self, params, lr=1e-3):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                kept = self.state[p].setdefault("kept", torch.zeros_like(p))
                p.sub_(group["lr"] * kept.lerp(p.grad, 0.1).sign())
                kept.lerp_(p.grad, 0.01)


class Lamb(optim.Optimizer):
    """Adam's direction, as long as a share of the weights (You et al. 2019)."""

    def __init__(self, params, lr=1e-2):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                first, second = (state.setdefault(k, torch.zeros_like(p)) for k in ("first", "second"))
                state["n"] = n = state.get("n", 0) + 1
                first.lerp_(p.grad, 0.1)
                second.lerp_(p.grad.square(), 0.01)
                way = first / (1 - 0.9**n) / ((second / (1 - 0.99**n)).sqrt() + 1e-6)
                p.sub_(group["lr"] * p.norm().clamp_min(0.01) / way.norm().clamp_min(1e-9) * way)


@healthy()
def lion_by_hand(folder):
    seeded(130)
    net, draw = dense(12, 64, 64, 4), rings()
    return fit(folder, net, Lion(net.parameters(), 1e-3), entropy_of(net, draw), 150)


@healthy()
def lamb_on_a_large_batch(folder):
    seeded(131)
    net, draw = dense(12, 64, 64, 4), rings(1024)
    return fit(folder, net, Lamb(net.parameters(), 0.02), entropy_of(net, draw), 80)


@healthy()
def sharpness_aware(folder):
    """SAM: the gradient is taken a little uphill."""
    seeded(132)
    net, draw = dense(12, 48, 48, 4), rings()
    loss_of = entropy_of(net, draw)
    weights = list(net.parameters())

    def uphill(step):
        size = sum(p.grad.square().sum() for p in weights).sqrt()
        climbs = [0.05 * p.grad / size for p in weights]
        net.zero_grad()
        with torch.no_grad():
            torch._foreach_add_(weights, climbs)
        loss_of(step).backward()
        with torch.no_grad():
            torch._foreach_sub_(weights, climbs)

    make = optim.SGD(weights, 0.1, momentum=0.9)
    return fit(folder, net, make, loss_of, 120, before_step=uphill)


@healthy()
def rare_words_by_sparse_adam(folder):
    seeded(133)
    table, label = nn.Embedding(200, 4, sparse=True), torch.randint(4, (200,))

    def loss_of(step):
        at = (200 * torch.rand(64) ** 2).long()
        return F.cross_entropy(table(at), label[at])

    return fit(folder, table, optim.SparseAdam(table.parameters(), 0.02), loss_of, 200)


@healthy()
def eight_micro_batches_averaged(folder):
    seeded(134)
    net, draw = dense(12, 48, 4), rings(16)
    loss_of = entropy_of(net, draw)
    make = optim.AdamW(net.parameters(), 1e-2)
    return fit(folder, net, make, lambda step: loss_of(step) / 8, 100, accumulate=8, score=score_of(loss_of))


@healthy()
def bfloat16_under_autocast(folder):
    seeded(135)
    net, draw = dense(12, 48, 48, 4, norm=nn.LayerNorm), rings()

    def loss_of(step):
        x, y = draw()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.cross_entropy(net(x).float(), y)

    return fit(folder, net, optim.AdamW(net.parameters(), 3e-3), loss_of, 120)


@healthy()
def float16_with_a_scaler(folder):
    """The scaler begins too high: it drops its first steps and halves, as it is meant to."""
    seeded(136)
    net, draw = dense(12, 32, 32, 4), rings(32)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=100)

    def loss_of(step):
        x, y = draw()
        with torch.autocast("cpu", dtype=torch.float16):
            return F.cross_entropy(net(x).float(), y)

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 150, scaler=scaler)


@healthy()
def scored_by_its_average(folder):
    """An exponential average of the weights, which is evaluated and never trained on."""
    seeded(137)
    net, draw = dense(12, 48, 48, 4), rings()
    average = optim.swa_utils.AveragedModel(net, multi_avg_fn=optim.swa_utils.get_ema_multi_avg_fn(0.95))
    make = optim.SGD(net.parameters(), 0.1, momentum=0.9)
    return fit(
        folder, net, make, entropy_of(net, draw), 120, score=score_of(entropy_of(average, draw)),
        after_step=lambda step: average.update_parameters(net),
    )  # fmt: skip
