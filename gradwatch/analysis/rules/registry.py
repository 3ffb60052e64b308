"""Every rule over one run: `diagnose` gives the findings, `verdict` the one line that heads a report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from gradwatch.analysis.clips import incoming
from gradwatch.analysis.rules.activation_outliers import activation_outlier
from gradwatch.analysis.rules.activations import dead_units, saturated
from gradwatch.analysis.rules.advantages import (
    policy_loss_trains_critic,
    returns_not_normalised,
    target_network_stale,
    target_not_detached,
    values_overestimated,
)
from gradwatch.analysis.rules.attention import attention_collapsed, attention_logits_grow
from gradwatch.analysis.rules.axes_mixed import axes_mixed
from gradwatch.analysis.rules.both_networks import optimizer_holds_both_networks
from gradwatch.analysis.rules.bounded_logits import logits_bounded
from gradwatch.analysis.rules.broadcast import shapes_broadcast
from gradwatch.analysis.rules.by_heart import labels_do_not_fit_inputs
from gradwatch.analysis.rules.clipping import (
    clip_before_unscale,
    clip_inert,
    clip_is_your_learning_rate,
    no_step,
    policy_never_acts,
)
from gradwatch.analysis.rules.codebook import codebook_collapse
from gradwatch.analysis.rules.conditioning import conditioning_missing
from gradwatch.analysis.rules.dead_layers import dead_layer
from gradwatch.analysis.rules.depth import imbalance
from gradwatch.analysis.rules.double_clip import double_clip
from gradwatch.analysis.rules.epsilon import below_epsilon
from gradwatch.analysis.rules.experts import expert_starved
from gradwatch.analysis.rules.facts import LEAST_STEPS, steps_taken
from gradwatch.analysis.rules.finding import RANK, Finding, Rule, says_again
from gradwatch.analysis.rules.gradient_scale import gradients_accumulate, scaled_gradients
from gradwatch.analysis.rules.gradients import exploding
from gradwatch.analysis.rules.guard import with_guard
from gradwatch.analysis.rules.initialisation import bad_initialisation
from gradwatch.analysis.rules.inputs import inputs_not_normalised
from gradwatch.analysis.rules.large_updates import update_too_large
from gradwatch.analysis.rules.late_clip import clip_after_step, clip_without_gradient
from gradwatch.analysis.rules.long_steps import lr_too_high
from gradwatch.analysis.rules.loss_graph import norm_over_too_few, softmax_over_the_batch
from gradwatch.analysis.rules.loss_targets import (
    accumulation_wiped,
    class_imbalance,
    data_not_shuffled,
    labels_ignored,
)
from gradwatch.analysis.rules.losses import has_rivals, over_tasks
from gradwatch.analysis.rules.micro_batches import accumulation_not_averaged
from gradwatch.analysis.rules.modes import dropout_too_strong, left_in_eval, norm_statistics, validation_in_train_mode
from gradwatch.analysis.rules.muon import clip_over_muon
from gradwatch.analysis.rules.negative_loss import negative_loss
from gradwatch.analysis.rules.no_activation import no_activation
from gradwatch.analysis.rules.no_gradient import no_gradient
from gradwatch.analysis.rules.no_progress import no_progress
from gradwatch.analysis.rules.noise import noise_dominated
from gradwatch.analysis.rules.nonfinite import nonfinite
from gradwatch.analysis.rules.not_in_optimizer import not_in_optimizer
from gradwatch.analysis.rules.number_targets import targets_not_normalised, targets_out_of_range
from gradwatch.analysis.rules.open_choices import entropy_too_strong
from gradwatch.analysis.rules.optimizer_state import optimizer_state_lost
from gradwatch.analysis.rules.outputs import activation_on_logits, softmax_twice
from gradwatch.analysis.rules.over_smoothing import over_smoothing
from gradwatch.analysis.rules.overfitting import overfitting
from gradwatch.analysis.rules.padding import mask_inverted, padding_read_as_data, positions_missing
from gradwatch.analysis.rules.pairs import representation_collapse, views_identical
from gradwatch.analysis.rules.posterior import posterior_collapse
from gradwatch.analysis.rules.progress import progress, succeeds
from gradwatch.analysis.rules.rivals import generator_starves
from gradwatch.analysis.rules.roots import group, passed_on
from gradwatch.analysis.rules.schedule_length import schedule_too_short, warmup_too_long
from gradwatch.analysis.rules.second_moment import stale_second_moment
from gradwatch.analysis.rules.skips import skips_often
from gradwatch.analysis.rules.small_updates import update_too_small
from gradwatch.analysis.rules.spikes import spike
from gradwatch.analysis.rules.step_data import with_data
from gradwatch.analysis.rules.token_targets import future_seen, labels_not_shifted, padding_in_loss
from gradwatch.analysis.rules.unbalanced_terms import loss_terms_unbalanced
from gradwatch.analysis.rules.unchanged import weights_unchanged
from gradwatch.analysis.rules.vanishing import vanishing
from gradwatch.analysis.rules.weight_decay import weight_decay_too_strong
from gradwatch.analysis.rules.weight_growth import renorm_binds, weight_growth, weights_shrink
from gradwatch.analysis.rules.weights_reset import weights_reset
from gradwatch.analysis.rules.wrong_sign import wrong_sign
from gradwatch.errors import warn
from gradwatch.history import History
from gradwatch.storage.logged_names import HELD_OUT, is_training_loss

RULES: tuple[Rule, ...] = (
    nonfinite, exploding, vanishing, dead_layer, no_gradient, not_in_optimizer, imbalance, scaled_gradients,
    gradients_accumulate, noise_dominated, weights_unchanged, update_too_large, update_too_small, below_epsilon,
    generator_starves, weight_growth, weights_shrink, renorm_binds, spike, lr_too_high, softmax_twice, no_progress,
    labels_do_not_fit_inputs, activation_on_logits, accumulation_not_averaged,
    bad_initialisation, shapes_broadcast, softmax_over_the_batch, norm_over_too_few, axes_mixed, mask_inverted,
    padding_read_as_data, positions_missing, over_smoothing, conditioning_missing, dropout_too_strong,
    weight_decay_too_strong,
    labels_not_shifted, targets_out_of_range, padding_in_loss, targets_not_normalised, data_not_shuffled,
    class_imbalance, accumulation_wiped, logits_bounded, future_seen, codebook_collapse, posterior_collapse,
    returns_not_normalised, policy_loss_trains_critic, labels_ignored, views_identical,
    representation_collapse, values_overestimated, target_network_stale, target_not_detached,
    wrong_sign, no_activation, weights_reset, entropy_too_strong, loss_terms_unbalanced,
    inputs_not_normalised, negative_loss, left_in_eval, validation_in_train_mode, norm_statistics,
    dead_units, saturated,
    optimizer_holds_both_networks, optimizer_state_lost, schedule_too_short, warmup_too_long,
    overfitting,
    attention_logits_grow, attention_collapsed, activation_outlier, expert_starved, stale_second_moment,
    clip_without_gradient,
    clip_before_unscale, clip_after_step, double_clip, clip_is_your_learning_rate, clip_over_muon, clip_inert,
    policy_never_acts, skips_often,
)  # fmt: skip

NO_FINDINGS, TOO_SHORT = "no findings", "too short to judge"


def diagnose(history: History) -> list[Finding]:
    """What is wrong with a run: the worst first, and of equals the earliest. Empty for a healthy run.

    Findings that follow from another stand under it (`consequences`). Optimizers that step on their own are judged on
    their own; what one part hands on to its rival is said once (`passed_on`).
    """
    if not len(history):
        return no_step(history)
    with np.errstate(all="ignore"):  # the numbers of a run that comes apart overflow in its judge's hands too
        lanes = {name: over_tasks(lane) for name, lane in history.lanes().items()}
        findings = [
            root
            for name, lane in lanes.items()
            for root in with_guard(lane, group(replace(with_data(lane, f), optimizer=name) for f in _found(lane)))
        ]
        rivals = any(map(has_rivals, lanes.values()))
    findings.sort(key=_place)
    findings = [f for i, f in enumerate(findings) if not any(says_again(f, other) for other in findings[:i])]
    return passed_on(findings, {name: int(lane.step[-1]) for name, lane in lanes.items()}) if rivals else findings


def _place(finding: Finding) -> tuple[int, bool, int]:
    """What is worse stands first, then what names a cause before a stand-still that leaves it open, then what is
    earlier.
    """
    is_open = finding.rule == "no-progress" and bool(finding.alternatives)
    return RANK[finding.severity], is_open, finding.first_step


def _found(lane: History) -> list[Finding]:
    """What each rule says. A training that demonstrably succeeds is not ruined: no error but that of a number.

    What one metric shows is a note where another that counts for more succeeded (`_outweighed`); not that a loss falls
    below 0 where it cannot, which a term of it does with it.
    """
    found = [finding for rule in RULES for finding in _asked(rule, lane)]
    found = [
        replace(f, severity="note") if f.rule != "negative-loss" and _outweighed(lane, f.evidence.get("metric")) else f
        for f in found
    ]
    if any(f.severity == "error" and f.rule != "nonfinite" for f in found) and succeeds(lane):
        return [replace(f, severity="warning") if f.severity == "error" and f.rule != "nonfinite" else f for f in found]
    return found


def _asked(rule: Rule, lane: History) -> list[Finding]:
    """What one rule says. One that fails on a record, a bug of ours, costs the word of none but itself, and says so."""
    try:
        return rule(lane)
    except Exception as error:
        name = rule.__name__.replace("_", "-")
        warn(
            f"the rule {name} could not judge {lane.run.name} ({type(error).__name__}: {error}): the other rules did; "
            "please report it, with the run's folder if you can"
        )
        return []


def _outweighed(lane: History, metric: float | str | None, share: float = 0.2) -> bool:
    """Whether another metric ended better by the `share` for good, and this one is a training loss if that is a loss.

    The loss of a value grows with the return; and of the terms of a loss one rises while their sum falls. What is
    measured on other data is outweighed by what is measured there as well.
    """
    if metric not in lane.logged or has_rivals(lane):
        return False
    there = HELD_OUT.search(str(metric))
    others = (p for p in progress(lane) if p.metric != metric and p.succeeded(share))
    others = (p for p in others if HELD_OUT.search(p.metric) or not there)
    return any(is_training_loss(metric) or not p.is_loss for p in others)


def verdict(history: History, findings: Iterable[Finding] | None = None) -> str:
    """`no findings`, or what went wrong first, as in `nonfinite at step 50 in blocks.0.mlp.weight`.

    Where nothing did, in fewer than `LEAST_STEPS` steps: `too short to judge`. Most rules could not speak yet. Of a run
    without layers `no findings` is followed by what could not be judged.

    Args:
        history: the run.
        findings: what `diagnose` found in it, where that is known already.
    """
    said = headline(diagnose(history) if findings is None else findings)
    if not len(history):
        return "no steps recorded" if said == NO_FINDINGS else said
    if said == NO_FINDINGS and steps_taken(history) < LEAST_STEPS:
        return TOO_SHORT
    return f"{NO_FINDINGS}{unjudged(history)}" if said == NO_FINDINGS else said


def unjudged(history: History) -> str:
    """What of a run without layers (an imported one) could not be judged, as the end of a verdict; else empty."""
    if history.layers:
        return ""
    if np.isfinite(incoming(history)).any():
        return ", judged by its total norm and what was logged: layers were not recorded"
    return ", judged by what was logged alone: gradients were not recorded"


def has_no_findings(said: str) -> bool:
    """Whether a verdict is that nothing was found, as far as it could be judged: that is no proof of health."""
    return said.partition(",")[0] == NO_FINDINGS


def headline(findings: Iterable[Finding]) -> str:
    """`no findings`, or the summary of the first of these findings that is no note."""
    return next((finding.summary for finding in findings if finding.severity != "note"), NO_FINDINGS)
