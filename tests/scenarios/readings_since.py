"""As `readings`, of the trainings that were read once: written down when these were looked at, after the reading.

Where the thing to look at shows no fault, nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from readings import Reading, decay_less
from torch import nn, optim
from torch.nn import functional


def he(net: nn.Module, optimizer: optim.Optimizer) -> None:
    for weight in net.parameters():
        if weight.dim() > 1:
            nn.init.kaiming_normal_(weight)


def tenth_of_the_rate(net: nn.Module, optimizer: optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        group["lr"] /= 10


def norm_first(net: nn.Module, optimizer: optim.Optimizer) -> None:
    for module in net.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.norm_first = True


def around(net: nn.Module, optimizer: optim.Optimizer) -> None:
    """`x + conv(norm(x))` in the place of `conv(x)`, where that keeps the shape."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d) and module.in_channels == module.out_channels:
            module.forward = partial(_around, module.forward)


def _around(conv: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return x + conv(functional.batch_norm(x, None, None, training=True))


# By training and finding.
READ_SINCE = {
    ("divided-by-255-and-again", "inputs-not-normalised"): Reading(
        "the inputs are divided by their deviation", as_expert=True
    ),
    ("line-through-values-up-to-a-hundred", "inputs-not-normalised"): Reading(
        "the inputs are normalised", as_expert=True
    ),
    ("policy-that-climbs-down", "no-progress"): Reading(
        "the outputs differ, so the sign of the loss is looked at, and turned", as_expert=True
    ),
    ("profile-of-two-branches", "nonfinite"): Reading(
        "the root's argument is clamped in both branches", as_expert=True
    ),
    ("softmax-over-one-column", "dead-layer"): Reading(
        "the outputs of the first step are all 1: a share of one column, which becomes a sigmoid", as_expert=True
    ),
    ("tagger-clipped-under-its-scale", "clip-before-unscale"): Reading(
        "scaler.unscale_(optimizer) is called before the clip", as_expert=True
    ),
    ("weights-between-zero-and-one", "dead-layer"): Reading(
        "the initialisation is looked at: it becomes torch's own", as_expert=True
    ),
    ("error-clamped-before-its-square", "no-progress"): Reading(
        "one batch is not learnt, so the loss is looked at: the clamp before the square goes", as_expert=True
    ),
    ("logarithm-of-a-share-in-half", "nonfinite"): Reading(
        "the logarithm is found, whose epsilon is 0 in float16: log_softmax in float32", as_expert=True
    ),
    ("overlap-with-an-empty-mask", "nonfinite"): Reading(
        "the batch of that step has an empty mask: a small number is added to the denominators", as_expert=True
    ),
    ("power-mean-of-nothing", "nonfinite"): Reading(
        "the power of 0 between the layers that are named is clamped", as_expert=True
    ),
    ("advantage-of-a-single-row", "nonfinite"): Reading(
        "the batch of that step has a single row: such parts are left out", as_expert=True
    ),
    ("subjects-by-a-share-without-its-logarithm", "negative-loss"): Reading(
        "nll_loss is given log_softmax(logits)", as_expert=True
    ),
    ("schedule-that-counts-parts", "weights-unchanged"): Reading(
        "the end of the schedule lies behind the last step", as_expert=True
    ),
    ("tower-of-images-cut-off", "no-gradient"): Reading(
        "the output that was detached is detached no more", as_expert=True
    ),
    ("body-thawed-behind-the-optimizers-back", "no-gradient"): Reading(
        "what is thawed later is given to the optimizer by add_param_group", as_expert=True
    ),
    ("density-that-is-nowhere", "dead-layer"): Reading(
        "softplus in the place of the ReLU at the output", as_expert=True
    ),
    ("epsilon-that-bfloat16-has-not", "nonfinite"): Reading(
        "the logarithm is found, whose epsilon is nothing in bfloat16: a larger one", as_expert=True
    ),
    ("gamma-of-zero-for-no-schedule", "weights-unchanged"): Reading(
        "the scheduler is looked at: its gamma of 0 becomes 1", as_expert=True
    ),
    ("angle-between-two-directions", "nonfinite"): Reading("the cosine is clamped before acos", as_expert=True),
    ("box-without-a-width", "nonfinite"): Reading(
        "the batch of that step has a box without a width, which is left out", as_expert=True
    ),
    ("divergence-of-what-is-no-logarithm", "negative-loss"): Reading(
        "kl_div is given log_softmax(logits)", as_expert=True
    ),
    ("equation-for-a-net-of-corners", "no-progress"): Reading(
        "the term whose second derivative is 0 is found: tanh in the place of ReLU", as_expert=True
    ),
    ("executor-without-a-zero", "gradients-accumulate"): Reading("optimizer.zero_grad() in each step", as_expert=True),
    ("gains-drawn-as-if-they-were-weights", "bad-initialisation"): Reading("gains begin at 1", as_expert=True),
    ("houses-by-their-raw-columns", "inputs-not-normalised"): Reading("the inputs are normalised", as_expert=True),
    ("line-for-every-price", "inputs-not-normalised"): Reading("the inputs are normalised", as_expert=True),
    ("made-and-cut-off-from-its-maker", "no-gradient"): Reading(
        "the detach() that cuts the loss off from the weights is taken away", as_expert=True
    ),
    ("preferences-times-nothing", "dead-layer"): Reading(
        "the factor of the loss that is 0 throughout is found: beta is 0.1", as_expert=True
    ),
    ("table-of-unit-size-at-both-ends", "bad-initialisation"): Reading(
        "the table begins at a standard deviation of 0.02", as_expert=True
    ),
    ("layers-in-a-plain-list", "no-gradient"): Reading("the layers are in an nn.ModuleList", as_expert=True),
    ("loss-that-was-told-to-require-a-gradient", "no-gradient"): Reading(
        "the new tensor that cuts the loss off from the weights is taken away", as_expert=True
    ),
    ("rprop-on-tiny-batches", "noise-dominated"): Reading("Adam in the place of Rprop", as_expert=True),
    ("copy-zeroed-in-its-place", "gradients-accumulate"): Reading(
        "optimizer.zero_grad() in each step, of the net that learns", as_expert=True
    ),
    ("state-detached-between-reader-and-writer", "no-gradient"): Reading(
        "the state that was detached is detached no more", as_expert=True
    ),
    ("likes-and-dislikes-of-plus-and-minus-one", "negative-loss"): Reading("the targets are 0 and 1", as_expert=True),
    ("logarithm-of-a-share-written-by-hand", "nonfinite"): Reading(
        "the fused loss in the place of one's own logarithm", as_expert=True
    ),
    ("mean-over-no-mark-at-all", "nonfinite"): Reading(
        "the batch of that step has no mark: it is divided by one at least", as_expert=True
    ),
    ("time-in-steps-beside-the-point", "inputs-not-normalised"): Reading("the inputs are normalised", as_expert=True),
    ("warm-up-that-is-never-stepped", "weights-unchanged"): Reading(
        "the scheduler is looked at: it is stepped", as_expert=True
    ),
    ("dropout-behind-the-output", "no-progress"): Reading(
        "the Dropout behind the last layer is taken away", as_expert=True
    ),
    ("eight-layers-of-sigmoids", "vanishing"): Reading("the sigmoids become ReLUs", as_expert=True),
    ("groups-of-one-answer", "dead-layer"): Reading(
        "the factor of the loss that is 0 throughout is found: an advantage over one answer", as_expert=True
    ),
    ("half-of-the-net-never-zeroed", "gradients-accumulate"): Reading(
        "the gradients of the whole net are zeroed in each step", as_expert=True
    ),
    ("missing-value-read-as-nan", "nonfinite"): Reading(
        "the batch of that step has a NaN: what is missing is filled", as_expert=True
    ),
    ("sigmoid-before-a-loss-of-logits", "activation-on-logits"): Reading("the sigmoid is gone", as_expert=True),
    ("weights-drawn-by-randn", "bad-initialisation"): Reading("torch's own initialisation", as_expert=True),
    ("betas-the-wrong-way-round", "weight-growth"): Reading("betas=(0.9, 0.999)", as_expert=True),
    ("betas-the-wrong-way-round", "lr-too-high"): Reading("betas=(0.9, 0.999)", as_expert=True),
    ("rate-that-rises-by-a-fiftieth-each-step", "exploding"): Reading("the rate of the schedule falls", as_expert=True),
    ("rate-that-rises-by-a-fiftieth-each-step", "lr-too-high"): Reading(
        "the rate of the schedule falls", as_expert=True
    ),
    ("distance-of-a-row-to-itself", "nonfinite"): Reading("an epsilon is added inside the root", as_expert=True),
    ("eight-convolutions-begun-at-a-hundredth", "vanishing"): Reading("He's initialisation", as_expert=True),
    ("lbfgs-on-batches-of-four", "noise-dominated"): Reading("all of the data in each step", as_expert=True),
    ("norm-of-scaled-gradients-clipped", "clip-before-unscale"): Reading(
        "scaler.unscale_(optimizer) is called before the clip", as_expert=True
    ),
    ("pairs-that-only-attract", "no-progress"): Reading(
        "the outputs are found to be all alike: pairs that repel are added", as_expert=True
    ),
    ("predictions-broadcast-over-targets", "no-progress"): Reading(
        "one batch is not learnt, so the loss is looked at: its shapes are made one", as_expert=True
    ),
    ("zeroed-once-an-epoch", "gradients-accumulate"): Reading("zero_grad() in each step", as_expert=True),
    ("weights-of-one-over-the-noise", "noise-dominated"): Reading(
        "what one example can weigh is bounded: the weight", as_expert=True, beyond=True
    ),
    ("recurrence-that-multiplies", "exploding"): Reading(
        "the clip that is named, and recurrent weights that begin orthogonal", as_expert=True, beyond=True
    ),
    ("boxes-that-never-meet", "dead-layer"): Reading("the overlap is of boxes that do not meet: GIoU", as_expert=True),
    ("mean-of-bytes-taken-from-shares", "no-progress"): Reading(
        "the inputs have a mean of -1 and hardly a deviation: they are brought to 0 and 1", as_expert=True
    ),
    ("ten-means-over-neighbours", "no-progress"): Reading(
        "one batch is not learnt, and there are ten rounds of averages: residual connections", as_expert=True
    ),
    ("states-of-other-rows", "no-progress"): Reading(
        "other rows get a gradient: the transpose before the reshape", as_expert=True
    ),
    ("batch-norm-over-two-rows", "no-progress"): Reading(
        "rows are mixed by the BatchNorm, over two of them: LayerNorm in its place", as_expert=True
    ),
    ("norm-over-columns-of-unlike-size", "no-progress"): Reading(
        "the columns have means of 52,000 and 0.3: they are standardised", as_expert=True
    ),
    ("sum-of-all-weights-beside-a-mean", "weights-shrink"): Reading(
        "the sum of all sizes in the loss becomes their mean", as_expert=True
    ),
    ("critic-clamped-to-a-thousandth", "weights-unchanged"): Reading("nothing changes: no output is saturated"),
    ("time-taken-for-the-batch", "no-progress"): Reading("other rows get a gradient: batch_first=True", as_expert=True),
    ("layer-norm-of-one-feature", "no-progress"): Reading("the norm over one feature is taken away", as_expert=True),
    ("gates-drawn-between-zero-and-one", "vanishing"): Reading("He's initialisation", he),
    ("decay-of-adamw-handed-to-adam", "weights-shrink"): Reading("the weight decay is a hundredth: 0.001", decay_less),
    ("balance-a-hundred-times-the-error", "clip-is-your-learning-rate"): Reading(
        "of the two terms the balance outweighs the error: they are brought to one size", as_expert=True
    ),
    ("threshold-of-a-thousandth-under-sgd", "clip-is-your-learning-rate"): Reading(
        "the loop's own clip is gone, the one that the cure names acts instead, at the rate that it names",
        from_cure=True,
    ),
    ("summed-over-pixels-and-clipped-at-a-thousandth", "clip-is-your-learning-rate"): Reading(
        "the loop's own clip is gone, the one that the cure names acts instead, at the rate that it names",
        from_cure=True,
    ),
    ("variance-by-exp-of-a-raw-table", "nonfinite"): Reading(
        "the batch of that step has columns of a thousand: they are brought to unit size", as_expert=True
    ),
    ("only-the-biases-are-handed-over", "no-gradient"): Reading(
        "all parameters are given to the optimizer", as_expert=True
    ),
    ("state-detached-in-every-step", "no-progress"): Reading(
        "one batch is not learnt, so what is detached is looked at: the state, in every step", as_expert=True
    ),
    ("actor-at-its-ends", "inputs-not-normalised"): Reading("the states are normalised", as_expert=True),
    ("critic-clamped-to-a-thousandth", "generator-starves"): Reading(
        "the rival's weights are clamped to next to nothing: the bound is 0.1", as_expert=True
    ),
    ("displacements-in-metres", "below-epsilon"): Reading("the targets are divided by their deviation", as_expert=True),
    ("divergence-summed-error-averaged", "vanishing"): Reading(
        "the penalty that outweighs the rest of the loss is found: it is summed, and the error averaged", as_expert=True
    ),
    ("example-that-swings", "gradients-accumulate"): Reading("optimizer.zero_grad() in each step", as_expert=True),
    ("judge-that-is-squashed-twice", "activation-on-logits"): Reading(
        "the outputs that the loss is given lie between 0 and 1: the sigmoid is gone", as_expert=True
    ),
    ("nodes-named-by-a-softmax-of-a-softmax", "softmax-twice"): Reading("the softmax is gone", as_expert=True),
    ("weights-between-zero-and-one", "bad-initialisation"): Reading("torch's own initialisation", as_expert=True),
    ("router-whose-choice-is-not-weighed", "no-gradient"): Reading(
        "the router only chooses an index: what is chosen is weighed by its share", as_expert=True
    ),
    ("codebook-without-a-loss-of-its-own", "no-gradient"): Reading(
        "the codes are chosen as the nearest: they get a term of the loss of their own", as_expert=True
    ),
    ("adapters-behind-a-checkpoint", "no-gradient"): Reading(
        "the checkpoint is one that passes the gradient back to its blocks", as_expert=True
    ),
    ("code-rounded-with-no-way-back", "dead-layer"): Reading(
        "between the layers that are named the code is rounded: the gradient is passed straight through", as_expert=True
    ),
    ("neighbours-added-up", "lr-too-high"): Reading(
        "the sum over neighbours becomes a mean", as_expert=True, beyond=True
    ),
    ("images-in-bytes", "dead-layer"): Reading("the bytes are divided by 255", as_expert=True, beyond=True),
    ("weights-of-float16-under-adam", "nonfinite"): Reading("the weights are kept in float32", as_expert=True),
    ("spread-that-may-go-below-zero", "nonfinite"): Reading("the logarithm of the spread is learnt", as_expert=True),
    ("five-frames-for-four-signs", "nonfinite"): Reading(
        "ctc_loss is what is inf: there are more frames", as_expert=True
    ),
    ("likelihood-of-raw-scores", "negative-loss"): Reading(
        "the sign is right, and nll_loss is given scores: log_softmax of them", as_expert=True
    ),
    ("mask-of-nothing-and-255", "negative-loss"): Reading(
        "the sign is right, and the mask is of 0 and 255: it is divided by 255", as_expert=True
    ),
    ("plateau-schedule-that-wants-a-rise", "schedule-too-short"): Reading(
        "ReduceLROnPlateau waits for a loss to rise: mode='min'", as_expert=True
    ),
    ("line-that-goes-on-below-zero", "exploding"): Reading("the schedule ends at 0", as_expert=True),
    ("six-blocks-with-no-way-round", "vanishing"): Reading(
        "residual connections around each part of a block", as_expert=True
    ),
    ("sixteen-rounds-of-averages", "vanishing"): Reading("residual connections around each round", as_expert=True),
    ("thirteen-convolutions-without-their-norms", "vanishing"): Reading(
        "x = x + conv(norm(x)) for each convolution that keeps the shape", around
    ),
    ("ten-blocks-normed-behind-the-sum", "vanishing"): Reading(
        "the norm inside the residual connection: norm_first=True", norm_first
    ),
    ("state-read-after-the-padding", "vanishing"): Reading("the state of where each row ends is read", as_expert=True),
    ("noise-for-privacy-above-the-gradient", "lr-too-high"): Reading(
        "the noise that is added behind the clip is a fortieth", as_expert=True
    ),
    ("optimizer-made-anew-each-step", "lr-too-high"): Reading("the state of the optimizer is kept", as_expert=True),
    ("state-dropped-at-every-step", "spike"): Reading(
        "nothing changes: the batches of these steps are like the others"
    ),
    ("blocks-added-up-without-a-norm", "exploding"): Reading("a norm in each block", as_expert=True, beyond=True),
    ("products-of-raw-views-over-a-twentieth", "exploding"): Reading(
        "the vectors whose products are the logits are normalised", as_expert=True, beyond=True
    ),
    ("weights-of-losses-that-fall-below-zero", "negative-loss"): Reading(
        "the weights of the losses are what falls without end: they get a bound", as_expert=True
    ),
    ("batch-norm-over-two-rows", "norm-over-too-few"): Reading("each example is normed by itself", as_expert=True),
    ("predictions-broadcast-over-targets", "shapes-broadcast"): Reading("predictions.squeeze(-1)", as_expert=True),
    ("states-of-other-rows", "axes-mixed"): Reading("transposed before the reshape", as_expert=True),
    ("decay-of-adamw-handed-to-adam", "weight-decay-too-strong"): Reading("AdamW", as_expert=True),
    ("relu-behind-the-last-layer", "targets-out-of-range"): Reading("the last layer is linear", as_expert=True),
    ("rows-sorted-by-class", "data-not-shuffled"): Reading("the rows are shuffled", as_expert=True),
    ("sigmoid-for-images-of-mean-zero", "targets-out-of-range"): Reading("the last layer is linear", as_expert=True),
    ("zeroed-before-each-part", "accumulation-wiped"): Reading("zero_grad() once a step", as_expert=True),
}
