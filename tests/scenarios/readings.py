"""What a person does who follows a cure that is only words, to the letter: written down before it was tried.

An advice to look at something leads to the fault where that is the thing to look at, and the fault can be seen in it. A
cure that can be tried on an unchanged script is tried as it stands (`Finding.tries`), unless its words go on after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn, optim


@dataclass(frozen=True)
class Reading:
    """A sentence, and what is done: a change before the first step, or what the expert does as well. Or nothing.

    `beyond`: the finding has options that can be tried, and its words say more than these.
    """

    said: str
    change: Callable[[nn.Module, optim.Optimizer], object] | None = None
    as_expert: bool = False
    beyond: bool = False


def decay_less(net: nn.Module, optimizer: optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        group["weight_decay"] /= 100


def even_router(net: nn.Module, optimizer: optim.Optimizer) -> None:
    nn.init.zeros_(net["router"].bias)


# By training and finding.
READINGS = {
    ("adagrad-accumulator-full", "no-progress"): Reading("the sum of squares begins at 0", as_expert=True),
    ("adapters-both-zero", "weights-unchanged"): Reading(
        "nothing changes: zero_grad, backward and step stand in that order"
    ),
    ("all-weights-begin-at-zero", "dead-layer"): Reading(
        "the initialisation is looked at, is all zeros, and becomes torch's own", as_expert=True
    ),
    ("average-loaded-after-each-step", "no-progress"): Reading(
        "a tenth of the rate does not help, so the average is what writes the weights: it is loaded no more",
        as_expert=True,
        beyond=True,
    ),
    ("division-by-no-deviation", "nonfinite"): Reading(
        "the batch of step 60 is NaN in one column, which was divided by its deviation of 0: an epsilon is added there",
        as_expert=True,
    ),
    ("forget-gate-that-begins-shut", "no-progress"): Reading(
        "nothing changes: one batch is learnt, and its inputs and targets are put together as they should be"
    ),
    ("l2-of-a-half", "weights-shrink"): Reading("the weight decay is a hundredth: 0.005", decay_less),
    ("micro-batches-not-averaged", "scaled-gradients"): Reading(
        "nothing changes: backward() is called on the losses that are logged, and there is no scaler"
    ),
    ("outliers-under-a-square", "spike"): Reading("nothing changes: the cure says so"),
    ("router-to-one-expert", "dead-layer"): Reading(
        "the biases are looked at: the router's of 40 becomes 0", even_router
    ),
}
