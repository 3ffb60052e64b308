"""As `readings`, of the group `afresh`, and of findings that came with it: written down before the advice was tried."""

from __future__ import annotations

from functools import partial

import torch
from readings import Reading
from torch import nn, optim
from torch.nn import functional


def norm_inside(net: nn.Module, optimizer: optim.Optimizer) -> None:
    for block in net.modules():
        if type(block).__name__ == "Block":
            block.forward = partial(_normed, block)


def _normed(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """`Block.forward` of two convolutions, whose branch is given what is normed."""
    y: torch.Tensor = x + block.two(functional.relu(block.one(functional.group_norm(x, 1))))
    return y


def tenth_of_the_highest(net: nn.Module, optimizer: optim.Optimizer) -> None:
    highest = max(group["lr"] for group in optimizer.param_groups)
    for group in optimizer.param_groups:
        group["lr"] = max(group["lr"], highest / 10)


# By training and finding.
READ_AFRESH = {
    ("logits-bounded: cosines without a scale", "logits-bounded"): Reading("16 times the cosines", as_expert=True),
    ("codebook-collapse: codes begin far out", "codebook-collapse"): Reading(
        "the codes begin at what the encoder gives out", as_expert=True
    ),
    ("posterior-collapse: a divergence summed over the batch", "posterior-collapse"): Reading(
        "the mean over the examples of both", as_expert=True
    ),
    ("wrong-sign: the head has maximize=True", "wrong-sign"): Reading("no maximize=True", as_expert=True),
    ("weights-reset: the worst is loaded back", "weights-reset"): Reading("the best is kept", as_expert=True),
    ("arm-with-its-elbow-up-or-down", "targets-out-of-range"): Reading("(labels + 1) / 2", as_expert=True),
    ("bars-coded-in-six-numbers", "schedule-too-short"): Reading(
        "scheduler.step() is found in the loop over batches: it is called once an epoch", as_expert=True
    ),
    ("brackets-counted-while-the-loss-is-watched", "schedule-too-short"): Reading("mode='min'", as_expert=True),
    ("cars-and-their-wait-at-a-crossing", "targets-not-normalised"): Reading(
        "the targets less their mean, over their deviation", as_expert=True
    ),
    ("clouds-of-points-on-a-short-leash", "clip-is-your-learning-rate"): Reading(
        "the loop's own clip is gone, the one that the cure names acts instead, at the rate that it names",
        from_cure=True,
    ),
    ("counts-of-a-converter-cleaned", "inputs-not-normalised"): Reading("the inputs are normalised", as_expert=True),
    ("curves-cleaned-in-half-precision", "clip-before-unscale"): Reading(
        "scaler.unscale_() before the clip", as_expert=True
    ),
    ("demand-on-machines-that-are-taken-away", "update-too-small"): Reading(
        "the schedule's state is loaded, too", as_expert=True
    ),
    ("digits-mixed-under-a-pinned-scale", "nonfinite"): Reading("scaler.update() without a value", as_expert=True),
    ("few-digits-brought-into-their-order", "padding-in-loss"): Reading("the mask is turned round", as_expert=True),
    ("hesitation-between-two-faces", "targets-not-normalised"): Reading("the times are standardised", as_expert=True),
    ("hours-since-1970-beside-the-load", "inputs-not-normalised"): Reading("the hours are normalised", as_expert=True),
    ("leaning-bars-in-sixteen-bits", "no-gradient"): Reading(
        "the bits are what cuts it off: the gradient is passed straight through", as_expert=True
    ),
    ("motifs-seen-twice-shard-by-shard", "optimizer-state-lost"): Reading(
        "the optimizer is made once, before the loop", as_expert=True
    ),
    ("prices-by-shop-town-and-month", "not-in-optimizer"): Reading("the tables are given to it", as_expert=True),
    ("readers-and-pages-after-a-gentle-start", "not-in-optimizer"): Reading(
        "add_param_group() of what is thawed", as_expert=True
    ),
    ("ring-out-of-noise-with-rates-by-depth", "update-too-small"): Reading(
        "the rates of the slow groups are a tenth of the highest", tenth_of_the_highest
    ),
    ("roles-with-a-quiet-partition", "negative-loss"): Reading(
        "of the terms the partition's falls without end: its sign is turned", as_expert=True
    ),
    ("second-hand-cars-by-make-and-town", "bad-initialisation"): Reading("He's initialisation", as_expert=True),
    ("six-arms-and-a-slow-second-opinion", "no-progress"): Reading("nothing changes: none of the three looks shows it"),
    ("societies-that-meet-at-random", "dropout-too-strong"): Reading("p=0.1", as_expert=True),
    ("solids-from-their-points", "no-gradient"): Reading("the rows are stacked as tensors", as_expert=True),
    ("songs-that-people-prefer", "gradients-accumulate"): Reading("zero_grad() in each step", as_expert=True),
    ("syllables-by-a-listener-in-two-groups", "wrong-sign"): Reading("no maximize=True", as_expert=True),
    ("two-marks-through-twelve-blocks", "bad-initialisation"): Reading(
        "x = x + block(norm(x)), a norm of each example", norm_inside
    ),
    ("walker-on-a-grid-fitted-for-four-ways", "not-in-optimizer"): Reading(
        "the optimizer is made when the model is complete", as_expert=True
    ),
    ("where-a-loaded-beam-gives-way", "class-imbalance"): Reading(
        "pos_weight is one over the share of the rare class", as_expert=True
    ),
}
