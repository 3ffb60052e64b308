"""For each rule a training that has its disease, by what makes it ill, and its healthy twin: pictures, and cures."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import diseases as d
import graph_diseases as g
import inner_diseases as i
import step_diseases as s
import target_diseases as t
from torch import nn, optim
from unseen import Outcome, Sick, ends

from gradwatch.history import History

Train = Callable[[Path], History]
SGD = optim.SGD
TWINS: dict[str, tuple[tuple[str, Train], tuple[str, Train]]] = {
    "nonfinite": (("sqrt(x)", d.square_root), ("sqrt(x + 1e-12)", partial(d.square_root, safe=True))),
    "exploding": (
        ("RNN without a clip", partial(d.adding_rnn, gain=1.5)),
        ("ClipByGlobalNorm(1.0)", partial(d.adding_rnn, gain=1.5, clip="ClipByGlobalNorm(1.0)")),
    ),
    "vanishing": (("ten sigmoid layers", d.deep_sigmoid), ("ten ReLU layers", partial(d.deep_sigmoid, act=nn.ReLU))),
    "dead-layer": (
        ("one wrong batch, 1000 times too large", partial(d.dying_relu, lr=0.2, shock=1000.0)),
        ("no such batch", partial(d.dying_relu, lr=0.2)),
    ),
    "no-gradient": (("a head that is not used", d.two_heads), ("both heads used", partial(d.two_heads, both=True))),
    "not-in-optimizer": (
        ("a head that the optimizer was not given", partial(d.two_heads, both=True, forgotten=True)),
        ("all parameters given", partial(d.two_heads, both=True)),
    ),
    "imbalance": (
        ("inputs from 0 to 255", d.unscaled_inputs),
        ("inputs from 0 to 1", partial(d.unscaled_inputs, scale=1.0, lr=0.1)),
    ),
    "scaled-gradients": (
        ("optimizer.step()", partial(d.forgotten_scaler, kind=SGD, lr=1e-3, clip="ClipByGlobalNorm(1.0)")),
        ("scaler.step(optimizer)", partial(d.forgotten_scaler, right=True, kind=SGD, lr=0.1)),
    ),
    "gradients-accumulate": (
        ("without zero_grad()", d.never_zeroed),
        ("with zero_grad()", partial(d.never_zeroed, zero_grad=True)),
    ),
    **{
        rule: ((sick, train), (twin, partial(train, sick=False)))
        for rule, train, sick, twin in [
            ("weights-unchanged", s.rate_zero, "a schedule of 30 steps", "a schedule of 120 steps"),
            ("update-too-large", s.huge_rate, "AdamW at 1", "AdamW at 0.003"),
            ("update-too-small", s.tiny_rate, "Adam at 3e-9", "Adam at 1e-3"),
            ("weight-growth", s.runaway, "a loss without a bound", "with weight decay"),
            ("weights-shrink", s.fading, "a weight decay of 0.5", "of 1e-4"),
            ("weight-decay-too-strong", s.decayed_through_moments, "Adam, a decay of 0.1", "AdamW, a decay of 0.1"),
            ("below-epsilon", s.large_eps, "eps=10", "eps=1e-8"),
            (
                "generator-starves",
                s.starving_generator,
                "log(1 - D(G(z))), judge trained twice",
                "-log D(G(z)), in turn",
            ),
            ("softmax-twice", partial(s.softmaxed, lr=1.0), "a softmax before cross_entropy", "logits"),
            ("activation-on-logits", t.squashed_twice, "a sigmoid before a loss of logits", "logits"),
            ("bad-initialisation", s.begun_large, "weights ten times as large", "torch's own weights"),
            ("inputs-not-normalised", s.inputs_of_bytes, "inputs from 0 to 255, SGD", "inputs from 0 to 1"),
            ("negative-loss", s.wrong_sign, "minus the cross-entropy", "the cross-entropy"),
            ("left-in-eval", s.left_in_eval_mode, "model.eval() for good", "model.train() after it"),
            ("validation-in-train-mode", s.validated_in_training_mode, "in training mode", "behind model.eval()"),
            ("norm-statistics", s.average_of_one_batch, "momentum=0.9", "momentum=0.1"),
            ("optimizer-state-lost", s.resumed, "resumed without Adam's state", "resumed with it"),
            ("weights-reset", s.loaded_back, "the worst is loaded back", "the best"),
            ("schedule-too-short", s.outlasted_schedule, "T_max of half the run", "T_max of the whole run"),
            ("warmup-too-long", s.endless_warmup, "a warm-up as long as the run", "a warm-up of ten steps"),
            ("shapes-broadcast", g.broadcast, "[64, 1] against [64]", "one shape"),
            ("no-activation", g.without_activations, "nothing between three layers", "a ReLU"),
            ("softmax-over-the-batch", g.gated_over_the_batch, "gates over the batch", "over the experts"),
            ("norm-over-too-few", g.normed_over_two, "batches of two", "of 64"),
            ("axes-mixed", g.viewed_for_transposed, "heads by a view", "by a view and a transpose"),
            ("dropout-too-strong", g.nine_in_ten_dropped, "p=0.9", "p=0.1"),
            ("labels-not-shifted", t.not_shifted, "labels=tokens", "the next token"),
            ("targets-out-of-range", t.behind_a_sigmoid, "a sigmoid at the end", "a linear layer"),
            ("padding-in-loss", t.padded, "padding asked for", "padding ignored"),
            ("targets-not-normalised", t.prices, "prices around 4,000", "of mean 0 and deviation 1"),
            ("data-not-shuffled", t.sorted_by_label, "in the order of the labels", "in any order"),
            ("accumulation-not-averaged", t.added_up, "16 losses are added up", "each is divided by 16"),
            ("accumulation-wiped", t.wiped, "zero_grad() before each micro-batch", "before the first"),
            ("labels-do-not-fit-inputs", t.shuffled_apart, "labels in an order of their own", "each has its label"),
            ("overfitting", t.learnt_by_heart, "two labels of five are wrong", "each is right"),
            ("entropy-too-strong", t.rewarded_for_chance, "an entropy that weighs 2", "that weighs 0.01"),
            ("loss-terms-unbalanced", t.in_watts_beside_a_class, "a load in watts beside a class", "in its deviations"),
            ("class-imbalance", t.rare_and_never_said, "no weights", "pos_weight=50"),
            ("padding-read-as-data", t.read_behind_padding, "read behind the padding", "at each row's own end"),
            ("mask-inverted", t.looks_at_padding, "a mask that is True for words", "that is True for padding"),
            ("positions-missing", t.told_no_places, "tokens without their places", "with them"),
            ("over-smoothing", g.heard_too_often, "sixteen layers of neighbours", "two"),
            ("conditioning-missing", g.not_told_how_much_noise, "noise of an untold level", "its level is given"),
            ("future-seen", t.read_ahead, "attention without a mask", "is_causal=True"),
            ("codebook-collapse", t.far_codes, "codes begin far out", "codes begin at outputs"),
            ("posterior-collapse", t.summed_divergence, "a divergence summed over the batch", "a mean over it"),
            ("returns-not-normalised", t.paid_in_hundreds, "paid 100 or 105", "mean 0, deviation 1"),
            ("policy-loss-trains-critic", t.pulled_at_by_the_policy, "the value keeps its graph", "it is detached"),
            ("labels-ignored", t.class_left_out, "ignore_index=0", "ignore_index=-100"),
            ("views-identical", t.changed_in_place, "both views are one tensor", "each is a copy"),
            ("representation-collapse", t.hardest_first, "the hardest negatives from the start", "any negatives"),
            ("values-overestimated", t.past_the_end, "a value after the end of a walk", "none"),
            ("target-network-stale", t.never_updated, "the target network never follows", "it follows every 10 steps"),
            ("target-not-detached", t.moved_from_both_sides, "the next value keeps its graph", "it is detached"),
            ("optimizer-holds-both-networks", s.maker_that_moves_its_judge, "G's optimizer holds D", "its own alone"),
            ("wrong-sign", t.head_that_climbs, "the head has maximize=True", "no group has"),
            ("logits-bounded", t.bare_cosines, "cosines without a scale", "16 times as large"),
            ("dead-units", i.dead_units, "most biases begin at -20", "as torch begins"),
            ("saturated", i.saturated, "inputs from 0 to 1000", "inputs from 0 to 1"),
            ("attention-logits-grow", i.growing_logits, "Adam at 0.1", "Adam at 0.003"),
            ("attention-collapsed", i.collapsed_heads, "queries and keys begin 30 times as large", "as torch begins"),
            ("activation-outlier", i.drifting_sensor, "one example grows by 5 % a step", "as all others"),
            ("expert-starved", i.starved_experts, "no load-balancing loss", "one of weight 0.1"),
            ("stale-second-moment", i.rare_gradient, "one gradient 800 times as large", "never"),
            ("no-progress", s.labels_apart, "labels apart from their images", "labels of their images"),
            ("renorm-binds", s.tight_norm, "MaxNorm(0.3)", "MaxNorm(4.0)"),
            ("lr-too-high", s.rate_too_high, "Adam at 0.3", "Adam at 0.003"),
            ("clip-inert", s.inert, "ClipByGlobalNorm(100.0)", "ClipByGlobalNorm(1.5)"),
            ("clip-is-your-learning-rate", s.throttled, "ClipByGlobalNorm(0.02)", "ClipByGlobalNorm(2.0)"),
            ("double-clip", partial(s.clipped_twice, seen=False), "own lines clip to 0.25", "the policy alone"),
            ("clip-without-gradient", s.clipped_before, "clip_grad_norm_ before backward()", "behind it"),
            ("clip-after-step", s.clipped_late, "clip_grad_norm_ behind step()", "before it"),
            ("clip-before-unscale", s.clipped_while_scaled, "clip, then unscale_", "unscale_, then clip"),
        ]
    },
    "clip-over-muon": (
        ("Muon and AdamW: ClipByGlobalNorm(0.02)", s.muon_clipped),
        ('only("optimizer:AdamW", ClipByGlobalNorm(1.0))', partial(s.muon_clipped, sick=False)),
    ),
    "skips-often": (
        ("SkipNorm(0.4)", s.left_out),
        ("SkipNorm(40.0)", partial(s.left_out, sick=False)),
    ),
    "spike": (
        ("one odd batch, no clip", s.odd_batch),
        ("the same under ClipByGlobalNorm(1.0)", partial(s.odd_batch, clip="ClipByGlobalNorm(1.0)")),
    ),
}


def as_sick(rule: str) -> Sick:
    """The training of a rule, and its twin for a cure, scored by the losses."""
    (ill_words, ill), (twin_words, twin) = TWINS[rule]

    def train(folder: Path, sick: bool) -> Outcome:
        history = (ill if sick else twin)(folder)
        return Outcome(history, *ends(list(history.total("loss"))))

    return Sick(f"{rule}: {ill_words}", frozenset({rule}), "", twin_words, train)


# Of these the loss of the twin is not clearly better, or another one; a second clip hides the true norms only.
NOT_TOLD = {
    "no-gradient",
    "not-in-optimizer",
    "gradients-accumulate",
    "weight-growth",
    "generator-starves",
    "clip-inert",
    "clip-over-muon",
    "double-clip",
    "negative-loss",
    "expert-starved",
    "accumulation-not-averaged",
    "left-in-eval",
    "validation-in-train-mode",
    "norm-statistics",
    "optimizer-state-lost",
    "labels-not-shifted",
    "padding-in-loss",
    "targets-not-normalised",
    "class-imbalance",
    "labels-do-not-fit-inputs",
    "overfitting",
    "entropy-too-strong",
    "loss-terms-unbalanced",
    "padding-read-as-data",
    "mask-inverted",
    "positions-missing",
    "over-smoothing",
    "conditioning-missing",
    "future-seen",
    "returns-not-normalised",
    "policy-loss-trains-critic",
    "optimizer-holds-both-networks",
    "labels-ignored",
    "views-identical",
    "representation-collapse",
    "values-overestimated",
    "target-network-stale",
    "target-not-detached",
}
TOLD_BY_LOSSES = [as_sick(rule) for rule in TWINS if rule not in NOT_TOLD]
