"""As `readings`, of the trainings that were read once: written down when these were looked at, after the reading.

Where the thing to look at shows no fault, nothing changes.
"""

from __future__ import annotations

from readings import Reading, decay_less, eps_of
from torch import nn, optim


def he(net: nn.Module, optimizer: optim.Optimizer) -> None:
    for weight in net.parameters():
        if weight.dim() > 1:
            nn.init.kaiming_normal_(weight)


def tenth_of_the_rate(net: nn.Module, optimizer: optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        group["lr"] /= 10


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
    ("softmax-over-one-column", "weights-unchanged"): Reading(
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
    ("density-that-is-nowhere", "weights-unchanged"): Reading(
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
    ("made-and-cut-off-from-its-maker", "weights-unchanged"): Reading(
        "the detach() that cuts the loss off from the weights is taken away", as_expert=True
    ),
    ("preferences-times-nothing", "weights-unchanged"): Reading(
        "the factor of the loss that is 0 throughout is found: beta is 0.1", as_expert=True
    ),
    ("table-of-unit-size-at-both-ends", "bad-initialisation"): Reading(
        "the table begins at a standard deviation of 0.02", as_expert=True
    ),
    ("layers-in-a-plain-list", "no-gradient"): Reading("the layers are in an nn.ModuleList", as_expert=True),
    ("loss-that-was-told-to-require-a-gradient", "weights-unchanged"): Reading(
        "the new tensor that cuts the loss off from the weights is taken away", as_expert=True
    ),
    ("sigmoid-for-images-of-mean-zero", "no-progress"): Reading(
        "the Sigmoid behind the last layer is taken away", as_expert=True
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
    ("groups-of-one-answer", "weights-unchanged"): Reading(
        "the factor of the loss that is 0 throughout is found: an advantage over one answer", as_expert=True
    ),
    ("half-of-the-net-never-zeroed", "gradients-accumulate"): Reading(
        "the gradients of the whole net are zeroed in each step", as_expert=True
    ),
    ("missing-value-read-as-nan", "nonfinite"): Reading(
        "the batch of that step has a NaN: what is missing is filled", as_expert=True
    ),
    ("sigmoid-before-a-loss-of-logits", "softmax-twice"): Reading("the sigmoid is gone", as_expert=True),
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
    ("rows-sorted-by-class", "spike"): Reading("the rows are drawn in a random order", as_expert=True),
    ("zeroed-once-an-epoch", "gradients-accumulate"): Reading("zero_grad() in each step", as_expert=True),
    ("weights-of-one-over-the-noise", "noise-dominated"): Reading(
        "what one example can weigh is bounded: the weight", as_expert=True, beyond=True
    ),
    ("recurrence-that-multiplies", "exploding"): Reading(
        "the clip that is named, and recurrent weights that begin orthogonal", as_expert=True, beyond=True
    ),
    ("adapters-at-the-rate-of-whole-weights", "no-progress"): Reading(
        "nothing changes: of one batch nothing is learnt either, and nothing is found between the loss and the weights"
    ),
    ("boxes-that-never-meet", "weights-unchanged"): Reading(
        "nothing changes: no output of the first step is 0, and the boxes are not looked at"
    ),
    ("mean-of-bytes-taken-from-shares", "no-progress"): Reading(
        "nothing changes: nothing is found between the loss and the weights"
    ),
    ("exclusive-or-at-a-hundredth", "update-too-small"): Reading("nothing changes: no output is saturated"),
    ("ten-means-over-neighbours", "no-progress"): Reading(
        "nothing changes: nothing is found between the loss and the weights"
    ),
    ("adapters-behind-a-checkpoint", "no-gradient"): Reading(
        "nothing changes: the module is called, and its output is used"
    ),
    ("five-frames-for-four-signs", "nonfinite"): Reading("nothing changes: no batch looks odd"),
    ("mask-of-nothing-and-255", "negative-loss"): Reading("nothing changes: the sign of the loss is right"),
    ("spread-that-may-go-below-zero", "nonfinite"): Reading("nothing changes: no batch looks odd"),
    ("states-of-other-rows", "no-progress"): Reading(
        "nothing changes: one batch is learnt by heart, whatever row a state is of"
    ),
    ("batch-norm-over-two-rows", "no-progress"): Reading(
        "nothing changes: one batch is learnt, and its inputs and targets are put together as they should be"
    ),
    ("rate-of-one-pair-for-the-mean-of-many", "no-progress"): Reading(
        "nothing changes: nothing is found between the loss and the weights"
    ),
    ("norm-over-columns-of-unlike-size", "no-progress"): Reading(
        "nothing changes: nothing is found between the loss and the weights"
    ),
    ("sum-of-all-weights-beside-a-mean", "weights-shrink"): Reading(
        "nothing changes: the sum in the loss is not taken for a penalty"
    ),
    ("weights-of-float16-under-adam", "nonfinite"): Reading("nothing changes: a scaler is not tried here"),
    ("rate-that-came-back-with-the-state", "update-too-small"): Reading(
        "nothing changes: there is no warm-up to shorten"
    ),
    ("critic-clamped-to-a-thousandth", "weights-unchanged"): Reading("nothing changes: no output is saturated"),
    ("codebook-without-a-loss-of-its-own", "no-gradient"): Reading(
        "nothing changes: the codes are used, and meant to be trained"
    ),
    ("factor-that-is-the-rate-itself", "update-too-small"): Reading("nothing changes: there is no warm-up to shorten"),
    ("router-whose-choice-is-not-weighed", "no-gradient"): Reading(
        "nothing changes: the router is called, and its choice is used"
    ),
    ("time-taken-for-the-batch", "no-progress"): Reading(
        "nothing changes: one batch is learnt by heart, whatever row a state is of"
    ),
    ("likelihood-of-raw-scores", "negative-loss"): Reading("nothing changes: the sign of the loss is right"),
    ("code-rounded-with-no-way-back", "dead-layer"): Reading(
        "nothing changes: initialisation and biases are as torch makes them"
    ),
    ("layer-norm-of-one-feature", "no-progress"): Reading(
        "nothing changes: nothing is found between the loss and the weights"
    ),
    ("state-read-after-the-padding", "vanishing"): Reading(
        "nothing changes: the weights of a GRU stay as torch makes them"
    ),
    ("thirteen-convolutions-without-their-norms", "vanishing"): Reading("He's initialisation", he),
    ("sixteen-rounds-of-averages", "vanishing"): Reading("He's initialisation", he),
    ("six-blocks-with-no-way-round", "vanishing"): Reading("He's initialisation", he),
    ("ten-blocks-normed-behind-the-sum", "vanishing"): Reading("He's initialisation", he),
    ("gates-drawn-between-zero-and-one", "vanishing"): Reading("He's initialisation", he),
    ("decay-of-adamw-handed-to-adam", "weights-shrink"): Reading("the weight decay is a hundredth: 0.001", decay_less),
    ("relu-behind-the-last-layer", "dead-layer"): Reading("a tenth of the learning rate", tenth_of_the_rate),
    ("neighbours-added-up", "dead-layer"): Reading("a tenth of the learning rate", tenth_of_the_rate),
    ("balance-a-hundred-times-the-error", "clip-is-your-learning-rate"): Reading(
        "the loop's own clip is gone, the one that the cure names acts instead, at the rate that it names",
        from_cure=True,
    ),
    ("threshold-of-a-thousandth-under-sgd", "clip-is-your-learning-rate"): Reading(
        "the loop's own clip is gone, the one that the cure names acts instead, at the rate that it names",
        from_cure=True,
    ),
    ("summed-over-pixels-and-clipped-at-a-thousandth", "clip-is-your-learning-rate"): Reading(
        "the loop's own clip is gone, the one that the cure names acts instead, at the rate that it names",
        from_cure=True,
    ),
    ("plateau-schedule-that-wants-a-rise", "update-too-small"): Reading(
        "nothing changes: no schedule of so many steps is there to stretch"
    ),
    ("variance-by-exp-of-a-raw-table", "nonfinite"): Reading(
        "the batch of that step has columns of a thousand: they are brought to unit size", as_expert=True
    ),
    ("only-the-biases-are-handed-over", "no-gradient"): Reading(
        "all parameters are given to the optimizer", as_expert=True
    ),
    ("overlap-of-masks-cut-at-a-half", "no-progress"): Reading(
        "one batch is not learnt, so the loss is looked at: the cut that has no slope goes", as_expert=True
    ),
    ("state-detached-in-every-step", "no-progress"): Reading(
        "one batch is not learnt, so what is detached is looked at: the state, in every step", as_expert=True
    ),
    ("actor-at-its-ends", "inputs-not-normalised"): Reading("the states are normalised", as_expert=True),
    ("critic-clamped-to-a-thousandth", "generator-starves"): Reading(
        "the rival's weights are clamped to next to nothing: the bound is 0.1", as_expert=True
    ),
    ("displacements-in-metres", "below-epsilon"): Reading("eps is 1e-11, as the cure says", eps_of(1e-11)),
    ("divergence-summed-error-averaged", "vanishing"): Reading(
        "the penalty that outweighs the rest of the loss is found: it is summed, and the error averaged", as_expert=True
    ),
    ("example-that-swings", "gradients-accumulate"): Reading("optimizer.zero_grad() in each step", as_expert=True),
    ("images-in-bytes", "dead-layer"): Reading("a tenth of the learning rate", tenth_of_the_rate),
    ("judge-that-is-squashed-twice", "softmax-twice"): Reading(
        "the outputs that the loss is given lie between 0 and 1: the sigmoid is gone", as_expert=True
    ),
    ("nodes-named-by-a-softmax-of-a-softmax", "softmax-twice"): Reading("the softmax is gone", as_expert=True),
    ("weights-between-zero-and-one", "bad-initialisation"): Reading("torch's own initialisation", as_expert=True),
}
