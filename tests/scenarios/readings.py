"""What a person does who follows a cure that is only words, to the letter: written down before it was tried.

An advice to look at something leads to the fault where that is the thing to look at, and the fault can be seen in it. A
cure that can be tried on an unchanged script is tried as it stands (`Finding.tries`), unless its words go on after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import nn, optim
from unseen import Outcome


@dataclass(frozen=True)
class Reading:
    """A sentence, and what is done: a change before the first step, or what the expert does as well. Or nothing.

    `from_cure`: the policy and the learning rate that the cure names, and none of the loop's own clips.
    `instead`: the whole training once more, where no change before its first step does what the words say.
    `beyond`: the finding has options that can be tried, and its words say more than these.
    """

    said: str
    change: Callable[[nn.Module, optim.Optimizer], object] | None = None
    as_expert: bool = False
    from_cure: bool = False
    instead: Callable[[Path], Outcome] | None = None
    beyond: bool = False


def decay_less(net: nn.Module, optimizer: optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        group["weight_decay"] /= 100


def even_router(net: nn.Module, optimizer: optim.Optimizer) -> None:
    nn.init.zeros_(net["router"].bias)


def unit_inputs(net: nn.Module, optimizer: optim.Optimizer) -> None:
    net.register_forward_pre_hook(lambda _, inputs: (inputs[0] / 255,))


def eps_of(eps: float) -> Callable[[nn.Module, optim.Optimizer], None]:
    """A change: the eps that a cure names."""

    def change(net: nn.Module, optimizer: optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            group["eps"] = eps

    return change


def zero_biases(net: nn.Module, optimizer: optim.Optimizer) -> None:
    for name, weight in net.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(weight)


# By training and finding.
READINGS = {
    ("adagrad-accumulator-full", "no-progress"): Reading("the sum of squares begins at 0", as_expert=True),
    ("adapters-both-zero", "dead-layer"): Reading(
        "one of the adapter's two factors begins at random, as torch makes it", as_expert=True
    ),
    ("all-weights-begin-at-zero", "dead-layer"): Reading(
        "the weights begin at random, as torch makes them", as_expert=True
    ),
    ("average-loaded-after-each-step", "weights-unchanged"): Reading(
        "the average is found that is loaded after the step: it is loaded no more", as_expert=True
    ),
    ("body-left-frozen", "no-gradient"): Reading("the body is unfrozen", as_expert=True),
    ("division-by-no-deviation", "nonfinite"): Reading(
        "the batch of step 60 is NaN in one column, which was divided by its deviation of 0: an epsilon is added there",
        as_expert=True,
    ),
    ("elements-clipped-to-a-millionth", "clip-is-your-learning-rate"): Reading(
        "the loop's own clip is gone, the one that the cure names acts instead, at the rate that it names",
        from_cure=True,
    ),
    ("forget-gate-that-begins-shut", "no-progress"): Reading(
        "the bias that holds the forget gate shut begins open", as_expert=True
    ),
    ("judge-that-wins", "generator-starves"): Reading(
        "the loss that does not saturate, and of the judge one shorter step for each of the generator's", as_expert=True
    ),
    ("l2-of-a-half", "weights-shrink"): Reading("the weight decay is a hundredth: 0.005", decay_less),
    ("micro-batches-not-averaged", "scaled-gradients"): Reading(
        "nothing changes: backward() is called on the losses that are logged, and there is no scaler"
    ),
    ("one-task-outweighs-the-other", "clip-is-your-learning-rate"): Reading(
        "of the two terms one outweighs the other: they are brought to one size", as_expert=True
    ),
    ("output-saturated-from-the-start", "update-too-small"): Reading(
        "the output is saturated by its bias of -20, which begins at 0 instead", as_expert=True
    ),
    ("router-to-one-expert", "dead-layer"): Reading(
        "the biases are looked at: the router's of 40 becomes 0", even_router
    ),
    ("softmax-before-cross-entropy", "softmax-twice"): Reading("the softmax is gone", as_expert=True),
    ("targets-of-ten-thousand", "exploding"): Reading(
        "the targets are divided by their deviation", as_expert=True, beyond=True
    ),
    ("attention-of-unscaled-products", "vanishing"): Reading(
        "behind queries and keys stands a softmax at its ends: the products are divided by the root of their size",
        as_expert=True,
    ),
    ("every-twentieth-batch-unscaled", "gradients-accumulate"): Reading(
        "nothing changes: zero_grad() is called in each step"
    ),
    ("router-to-one-expert", "below-epsilon"): Reading("eps is 1e-21, as the cure says", eps_of(1e-21)),
    # What rules were written for.
    ("update-too-large: AdamW at 1", "weights-shrink"): Reading("the weight decay is a hundredth: 0.009", decay_less),
    ("lr-too-high: Adam at 0.3", "no-progress"): Reading(
        "nothing changes: shapes, targets and the only term of the loss are as they should be"
    ),
    ("nonfinite: sqrt(x)", "nonfinite"): Reading("an epsilon is added inside the root", as_expert=True),
    ("vanishing: ten sigmoid layers", "vanishing"): Reading("the sigmoids become ReLUs", as_expert=True),
    ("imbalance: inputs from 0 to 255", "imbalance"): Reading(
        "the inputs are divided by 255, and the rate is the one that the cure names", unit_inputs
    ),
    ("scaled-gradients: optimizer.step()", "scaled-gradients"): Reading(
        "scaler.step(optimizer) divides the scale out", as_expert=True
    ),
    ("imbalance: inputs from 0 to 255", "inputs-not-normalised"): Reading(
        "the inputs are divided by 255, and the rate is the one that suits such inputs", as_expert=True
    ),
    ("inputs-not-normalised: inputs from 0 to 255, SGD", "inputs-not-normalised"): Reading(
        "the inputs are divided by 255", as_expert=True
    ),
    ("saturated: inputs from 0 to 1000", "inputs-not-normalised"): Reading(
        "the inputs are scaled to unit size", as_expert=True
    ),
    ("no-progress: labels apart from their images", "no-progress"): Reading(
        "one batch is learnt, so inputs and targets are looked at: the labels go with their images again",
        as_expert=True,
        beyond=True,
    ),
    ("weights-unchanged: a schedule of 30 steps", "weights-unchanged"): Reading(
        "the end of the schedule lies behind the last step", as_expert=True
    ),
    ("weights-shrink: a weight decay of 0.5", "weights-shrink"): Reading(
        "the weight decay is a hundredth: 0.005", decay_less
    ),
    ("below-epsilon: eps=10", "below-epsilon"): Reading("eps is 1e-05, as the cure says", eps_of(1e-5)),
    ("softmax-twice: a softmax before cross_entropy", "softmax-twice"): Reading("the softmax is gone", as_expert=True),
    ("activation-on-logits: a sigmoid before a loss of logits", "activation-on-logits"): Reading(
        "the sigmoid is gone", as_expert=True
    ),
    ("activation-outlier: one example grows by 5 % a step", "activation-outlier"): Reading(
        "the example that is far out of scale is mended where it comes in", as_expert=True
    ),
    ("dead-units: most biases begin at -20", "dead-units"): Reading("the biases begin at 0", zero_biases),
    ("saturated: inputs from 0 to 1000", "saturated"): Reading("the inputs are scaled to unit size", as_expert=True),
    ("bad-initialisation: weights ten times as large", "bad-initialisation"): Reading(
        "torch's own initialisation", as_expert=True
    ),
    ("clip-before-unscale: clip, then unscale_", "clip-before-unscale"): Reading(
        "scaler.unscale_(optimizer) is called before the clip", as_expert=True
    ),
    ("schedule-too-short: T_max of half the run", "schedule-too-short"): Reading("T_max=200", as_expert=True),
    ("warmup-too-long: a warm-up as long as the run", "warmup-too-long"): Reading(
        "the warm-up ends after a twentieth of the run: ten steps", as_expert=True
    ),
    ("weight-decay-too-strong: Adam, a decay of 0.1", "weight-decay-too-strong"): Reading("AdamW", as_expert=True),
    ("no-activation: nothing between three layers", "no-activation"): Reading("nn.ReLU between", as_expert=True),
    ("shapes-broadcast: [64, 1] against [64]", "shapes-broadcast"): Reading("predictions.squeeze(-1)", as_expert=True),
    ("softmax-over-the-batch: gates over the batch", "softmax-over-the-batch"): Reading("dim=-1", as_expert=True),
    ("norm-over-too-few: batches of two", "norm-over-too-few"): Reading("larger batches", as_expert=True),
    ("axes-mixed: heads by a view", "axes-mixed"): Reading("a view and a transpose", as_expert=True),
    ("dropout-too-strong: p=0.9", "dropout-too-strong"): Reading("p=0.1", as_expert=True),
    ("targets-out-of-range: a sigmoid at the end", "targets-out-of-range"): Reading(
        "the sigmoid is left out", as_expert=True
    ),
    ("data-not-shuffled: in the order of the labels", "data-not-shuffled"): Reading("shuffle=True", as_expert=True),
    ("accumulation-wiped: zero_grad() before each micro-batch", "accumulation-wiped"): Reading(
        "zero_grad() once a step", as_expert=True
    ),
}
