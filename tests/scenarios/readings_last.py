"""As `readings`, of the two groups that were read last: the advice stood before they were read, and then the reading.

Where the thing to look at shows no fault, nothing changes.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from readings import Reading, eps_of
from torch import nn, optim
from torch.nn import functional
from unseen import Outcome, dense, fit, seeded
from unseen.reported.sick import rivals
from unseen.tasks import play


def orthogonal_recurrence(net: nn.Module, optimizer: optim.Optimizer) -> None:
    for name, weight in net.named_parameters():
        if "weight_hh" in name:
            nn.init.orthogonal_(weight)


def straight_through(net: nn.Module, optimizer: optim.Optimizer) -> None:
    net.forward = partial(_straight, net)


def _straight(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """`Spiking.forward`, whose cells pass the gradient straight through."""
    state, total = [torch.zeros(())] * 3, torch.zeros(())
    for _ in range(8):
        h = x.flatten(1)
        for i in range(3):
            v = 0.75 * state[i] + net.layers[i](h)
            h = v + ((v >= 1).float() - v).detach()
            state[i] = v * (1 - h)
        total = total + net.layers[3](h)
    return total / 8


def densities_and_an_epsilon(folder: Path) -> Outcome:
    seeded(1116)
    net, way = dense(4, 48, 3 * (1 + 2 * 31), act=nn.Tanh), torch.randn(4, 31)

    def loss_of(step):
        x = torch.randn(64, 4)
        y = 0.6 * (x @ way) + 0.3 * torch.randn(64, 31)
        weight, mean, spread = net(x).split([3, 93, 93], 1)
        mean, spread = mean.view(64, 3, 31), spread.view(64, 3, 31).exp()
        log = -0.5 * ((y[:, None] - mean) / spread).square() - spread.log() - 0.9189
        return -((weight.softmax(1) * log.exp().prod(2)).sum(1) + 1e-8).log().mean()

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 300)


def shares_without_a_clamp(folder: Path) -> Outcome:
    seeded(1115)
    net = dense(4, 32, 32, 32, 1)
    middle, spread = torch.tensor([1800.0, 74.0, 1985.0, 3.0]), torch.tensor([600.0, 25.0, 20.0, 1.0])
    way = torch.tensor([1.0, -1.0, 0.5, 0.8])

    def loss_of(step):
        x = torch.randn(64, 4)
        y = ((x @ way).sin() > 0).float()
        return functional.binary_cross_entropy_with_logits(net(middle + spread * x)[:, 0], y)

    make = optim.Adam(net.parameters(), 1e-3)
    plan = optim.lr_scheduler.StepLR(make, 150, 0.5)
    return fit(folder, net, make, loss_of, 400, schedule=plan)


def slower_judge_of_logits(folder: Path) -> Outcome:
    make, judge = rivals(1137)

    def judge_loss(real, made):
        return (functional.softplus(-judge(real)) + functional.softplus(judge(made))).mean()

    def make_loss(made):
        return functional.softplus(-judge(made)).mean()

    with torch.no_grad():
        make[-1].bias += 15
    of_make, of_judge = (optim.Adam(net.parameters(), lr, (0.5, 0.9)) for net, lr in ((make, 3e-4), (judge, 5e-3)))
    return play(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 700)


# By training and finding.
READ_LAST = {
    ("bags-that-hold-nothing", "nonfinite"): Reading(
        "the division between the layers that are named gets a denominator of 1 at least", as_expert=True
    ),
    ("clock-that-hardly-moves", "no-progress"): Reading(
        "the column of the time has hardly a deviation: it is brought to unit size", as_expert=True
    ),
    ("densities-multiplied-over-thirty-columns", "nonfinite"): Reading(
        "an epsilon is added inside the logarithm", instead=densities_and_an_epsilon
    ),
    ("every-ratio-times-every-advantage", "below-epsilon"): Reading("eps is 1e-13, as the cure says", eps_of(1e-13)),
    ("gru-at-the-rate-of-an-lstm", "vanishing"): Reading(
        "nothing changes: between these layers and the next stands nothing"
    ),
    ("kinds-seen-once-in-a-batch", "nonfinite"): Reading(
        "the division of that batch is by no pair: the denominator is 1 at least", as_expert=True
    ),
    ("rewards-of-the-act-before", "no-progress"): Reading(
        "one batch is learnt, so inputs and targets are looked at: each reward is that of the act before",
        as_expert=True,
    ),
    ("shares-clamped-where-they-saturate", "dead-layer"): Reading(
        "the clamp of the outputs is found, and a loss of logits takes its place", instead=shares_without_a_clamp
    ),
    ("cells-out-of-reach-of-their-threshold", "dead-layer"): Reading(
        "the comparison passes the gradient straight through", straight_through
    ),
    ("critic-that-sees-metres", "inputs-not-normalised"): Reading(
        "the inputs of the critic are normalised", as_expert=True
    ),
    ("gradient-divided-by-its-norm-of-zero", "nonfinite"): Reading(
        "an epsilon is added in the denominator", as_expert=True
    ),
    ("judge-that-keeps-all-its-gradients", "gradients-accumulate"): Reading(
        "zero_grad() of the judge's optimizer in each step", as_expert=True
    ),
    ("largest-depth-by-a-depth-of-zero", "nonfinite"): Reading(
        "the batch of that step has a depth of 0: such places are left out", as_expert=True
    ),
    ("nodes-by-their-raw-counts", "inputs-not-normalised"): Reading("the inputs are normalised", as_expert=True),
    ("pressure-of-a-thousand-at-one-end", "update-too-small"): Reading(
        "the pressure of a thousand is brought to unit size", as_expert=True
    ),
    ("projected-memory-clipped-at-five", "exploding"): Reading(
        "the clip that is named, and recurrent weights that begin orthogonal", orthogonal_recurrence, beyond=True
    ),
    ("maker-behind-a-clipped-share", "dead-layer"): Reading(
        "a tenth of the judge's rate, and losses of its logits", instead=slower_judge_of_logits
    ),
    ("rate-that-climbs-back-up", "schedule-too-short"): Reading("T_max=400", as_expert=True),
    ("restarted-without-its-moments", "optimizer-state-lost"): Reading(
        "the optimizer's state is saved beside the weights, and loaded", as_expert=True
    ),
    ("statistics-of-the-last-batch", "norm-statistics"): Reading("momentum=0.1", as_expert=True),
    ("tables-that-a-penalty-empties", "weights-shrink"): Reading(
        "of the squares of the tables the loss has the mean, not the sum", as_expert=True
    ),
    ("weights-of-old-memory", "update-too-small"): Reading(
        "the largest weights before the first step are 1e18: they are drawn anew", as_expert=True
    ),
    ("every-ratio-times-every-advantage", "shapes-broadcast"): Reading("both are of one shape", as_expert=True),
    ("log-softmax-over-the-batch", "softmax-over-the-batch"): Reading("dim=-1", as_expert=True),
    ("projection-made-anew-in-every-call", "no-gradient"): Reading("it is made in __init__", as_expert=True),
}
