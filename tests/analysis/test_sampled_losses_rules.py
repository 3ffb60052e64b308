"""What targets that were sampled are judged to be, and what keeps a rule silent: each line of a condition alone."""

from dataclasses import replace

import numpy as np
import pytest
from make_run import changed, make_history

from gradwatch.analysis.rules import diagnose
from gradwatch.analysis.rules.activations import dead_units, saturated
from gradwatch.analysis.rules.advantages import returns_not_normalised, values_overestimated
from gradwatch.analysis.rules.bounded_logits import logits_bounded
from gradwatch.analysis.rules.by_heart import labels_do_not_fit_inputs
from gradwatch.analysis.rules.codebook import codebook_collapse
from gradwatch.analysis.rules.dead_layers import dead_layer
from gradwatch.analysis.rules.double_clip import double_clip
from gradwatch.analysis.rules.epsilon import below_epsilon
from gradwatch.analysis.rules.gradient_scale import gradients_accumulate
from gradwatch.analysis.rules.initialisation import bad_initialisation
from gradwatch.analysis.rules.inputs import first_odds, inputs_not_normalised
from gradwatch.analysis.rules.large_updates import update_too_large
from gradwatch.analysis.rules.long_steps import lr_too_high
from gradwatch.analysis.rules.loss_targets import (
    accumulation_wiped,
    class_imbalance,
    data_not_shuffled,
    labels_ignored,
)
from gradwatch.analysis.rules.losses import first_values, scaled_losses
from gradwatch.analysis.rules.no_gradient import no_gradient
from gradwatch.analysis.rules.no_progress import no_progress
from gradwatch.analysis.rules.number_targets import targets_not_normalised, targets_out_of_range
from gradwatch.analysis.rules.open_choices import entropy_too_strong
from gradwatch.analysis.rules.padding import mask_inverted, padding_read_as_data, positions_missing
from gradwatch.analysis.rules.pairs import representation_collapse
from gradwatch.analysis.rules.posterior import posterior_collapse
from gradwatch.analysis.rules.sampled_losses import grows_harder, own_targets_grow, own_targets_move
from gradwatch.analysis.rules.small_updates import update_too_small
from gradwatch.analysis.rules.spikes import spike
from gradwatch.analysis.rules.token_targets import future_seen, labels_not_shifted, padding_in_loss
from gradwatch.analysis.rules.unbalanced_terms import loss_terms_unbalanced
from gradwatch.analysis.rules.wrong_sign import wrong_sign

SAMPLES = 24
LAST = make_history().layers[-1]
RNG = np.random.default_rng(0)


def run_with(losses=None, steps=240, graph=(), logged=("loss", "val_accuracy"), **numbers):
    """A run of which every tenth loss was looked at; a number or one for each sample by name."""
    history = make_history(steps=steps, every=10, loss_graph=graph, logged=logged)
    columns = {}
    for name, value in numbers.items():
        column = columns[f"in_loss/{name}"] = np.full(steps, np.nan)
        column[:: steps // SAMPLES][:] = value
    columns["loss"] = losses if losses is not None else np.full(steps, 0.7) + 0.01 * RNG.standard_normal(steps)
    return changed(history, per_step={**history.per_step, **columns})


RARE = {"target_top": 0, "target_top_share": 0.98, "predicted_top_share": 1.0, "target_std": 0.1, "target_soft": 0.0}
LEARNT = np.where(np.arange(SAMPLES) < 3, 0.5, 1.0)
CLASSIFIER = (
    {"what": "path", "operations": "NllLoss LogSoftmax Addmm", "shapes": "1 32x5 32x5", "operands": "1 1 3",
     "layer": "head.weight"},
    {"what": "softmax", "operation": "LogSoftmax", "dim": 1, "shape": "32x5", "layer": "head.weight"},
)  # fmt: skip
PIXELS = (
    {"what": "path", "operations": "NllLoss2D LogSoftmax Convolution", "shapes": "1 8x2x24x24 8x2x24x24",
     "operands": "1 1 3", "layer": "head.weight"},
)  # fmt: skip


@pytest.mark.parametrize(
    ("differs", "found"),
    [
        ({}, 1),
        ({"target_top_share": 0.7}, 0),
        ({"predicted_top_share": 0.99}, 0),
        ({"target_top": np.arange(SAMPLES) % 2}, 0),
        ({"target_std": 0.0}, 0),
        ({"target_std": 0.0, "target_top_share": 1.0, "predicted_top_share": LEARNT}, 0),  # a judge of one answer
        ({"target_std": 0.0, "target_top_share": 1.0, "predicted_top_share": LEARNT, "graph": CLASSIFIER}, 1),
        ({"target_std": 0.0, "target_top_share": 1.0}, 1),  # said from the first batch on: all rows are of one class
        ({"target_std": 0.0, "target_top_share": 1.0, "target_top": np.arange(SAMPLES) // 8}, 0),  # in their order
        ({"target_soft": 0.1}, 0),  # grey levels
        ({"losses": np.geomspace(0.7, 0.02, 240)}, 0),  # below 0.098, what knowing the share alone gives
        ({"losses": np.geomspace(0.7, 0.095, 240)}, 1),
        ({"losses": np.geomspace(0.7, 0.02, 240), "target_top_weight": 4.0}, 1),  # of a loss that weighs it more
        ({"losses": np.geomspace(0.7, 0.02, 240), "target_top_weight": 1.2}, 0),
        ({"losses": np.where(np.arange(240) % 8 == 0, 0.7, 0.02)}, 1),  # most batches have none of the rare class
        ({"target_top_at_ends": 0.9, "ignored": 0.0}, 0),  # padding
        ({"losses": np.geomspace(0.7, 0.02, 240), "graph": PIXELS}, 1),  # of which only the highest score is drawn
        ({"losses": np.geomspace(0.7, 0.02, 240), "graph": PIXELS, "target_top_share": 0.93}, 0),
    ],
)
def test_one_class_for_everything(differs, found):
    assert len(class_imbalance(run_with(**{**RARE, **differs}))) == found


@pytest.mark.parametrize(("name", "found"), [("val_auc", 0), ("recall", 0), ("accuracy", 1)])
def test_where_what_is_rare_is_told_apart_one_class_may_score_highest(name, found):
    history = run_with(**RARE)
    rises = np.linspace(0.5, 0.65, 240)
    assert len(class_imbalance(changed(history, per_step={**history.per_step, name: rises}))) == found


UNSURE = {
    "logit_range_most": 1.6, "logit_range": 1.4, "cross_entropy": 1.4, "predicted_right": 0.99, "targets": 64,
    "target_top_share": 0.2,
}  # fmt: skip
ROWS = {
    "target_top_share": 1 / 64, "logit_range_most": 1.97, "logit_range": 1.88, "cross_entropy": 3.9,
    "predicted_right": 0.35,
    "graph": ({"what": "softmax", "operation": "LogSoftmax", "dim": 1, "shape": "64x64", "layer": ""},),
}  # fmt: skip
OF_TEN = ({"what": "softmax", "operation": "LogSoftmax", "dim": 1, "shape": "64x10", "layer": ""},)


@pytest.mark.parametrize(
    ("differs", "found"),
    [
        ({}, 1),
        ({"ignored": 0.01}, 0),
        ({"ignored_at_ends": 0.6}, 0),  # padding
        ({"ignored_at_ends": -1.0}, 0),
        ({"class_left_out": np.arange(SAMPLES) % 2}, 0),
    ],
)
def test_a_class_that_the_loss_leaves_out(differs, found):
    numbers = {**RARE, "target_top_share": 0.5, "class_left_out": 0.0, "ignored": 0.2, "ignored_at_ends": 0.02}
    said = labels_ignored(run_with(**{**numbers, **differs}))
    assert [f.cause.startswith("ignore_index=0 leaves 20") for f in said] == [True] * found


@pytest.mark.parametrize(
    ("differs", "found"),
    [
        ({}, 1),
        ({"predicted_right": 0.6}, 0),  # as unsure as it should be: 0.67 + 0.4 log 9
        ({"logit_range_most": 8.0, "logit_range": 7.0}, 0),  # the bound is far below the loss
        ({"logit_range_most": np.linspace(0.5, 1.6, SAMPLES)}, 0),  # they still come apart
        ({"logit_range_most": np.linspace(9.0, 1.6, SAMPLES)}, 0),  # they came together
        ({"logit_range": 0.5}, 0),  # a few stand out
        ({"cross_entropy": 0.2}, 0),
        ({"target_top_share": 1 / 64}, 0),  # rows that are told from each other
        (ROWS, 1),  # by cosines that nothing divides
        ({**ROWS, "predicted_right": 0.8, "cross_entropy": 2.6}, 0),
        ({**ROWS, "predicted_right": 0.93, "cross_entropy": 3.3}, 1),  # far above what it might be
        ({**ROWS, "logit_range_most": 3.9, "logit_range": 3.7}, 0),  # by 0.5
        ({**ROWS, "logit_range_most": 1, "logit_range": 0.9, "predicted_right": 0.84, "cross_entropy": 3.7}, 1),  # by 2
        ({**ROWS, "logit_range_most": 1, "logit_range": 0.9, "predicted_right": 0.3, "cross_entropy": 3.7}, 0),
        ({**ROWS, "logit_range_most": 0.14, "logit_range": 0.13}, 1),  # that a temperature multiplies
        ({**ROWS, "logit_range_most": 0.14, "logit_range": 0.13, "predicted_right": 1 / 64}, 0),  # nothing was learnt
        ({"graph": ()}, 0),  # of how many classes it is not known
    ],
)
def test_logits_that_come_no_further_apart(differs, found):
    assert len(logits_bounded(run_with(**{"graph": OF_TEN, **UNSURE, **differs}))) == found


AHEAD = {"target_is_next": 1.0, "target_is_input": 0.05, "target_top_share": 0.2, "causal": 0.5, "layer_of/causal": 0}


@pytest.mark.parametrize(
    ("differs", "found"),
    [
        ({}, 1),
        ({"causal": 1.0}, 0),
        ({"causal": 0.97}, 1),  # its mask is finite
        ({"target_is_next": 0.5}, 0),  # what is filled in
        ({"target_is_input": 0.9}, 0),
        ({"target_top_share": 0.95}, 0),  # what is always the same is the same as anything
        ({"target_top_share": np.nan}, 1),  # of a series of numbers
    ],
)
def test_attention_that_reads_what_is_asked_for(differs, found):
    assert len(future_seen(run_with(**{**AHEAD, **differs}))) == found


@pytest.mark.parametrize(
    ("used", "found"),
    [(0.02, 1), (np.geomspace(0.9, 0.01, SAMPLES), 1), (0.2, 0), (np.geomspace(0.01, 0.9, SAMPLES), 0)],
)
def test_codes_that_nobody_chooses(used, found):
    assert len(codebook_collapse(run_with(**{"codes_used": used, "layer_of/codes_used": 0}))) == found


@pytest.mark.parametrize(
    ("informative", "told", "found"),
    [
        (0.0, {}, 1),
        (np.geomspace(0.8, 0.001, SAMPLES), {}, 1),
        (0.1, {}, 0),
        (np.linspace(0, 1, SAMPLES), {}, 0),
        (0.75, {"code_nats": 0.1}, 1),  # of each unit next to nothing
        (1.0, {"code_nats": 0.4}, 0),  # all that there is to tell, perhaps
        (0.75, {"code_nats": 1.6}, 0),
    ],
)
def test_codes_that_are_drawn_from_the_prior(informative, told, found):
    run = run_with(**{"code_informative": informative, "layer_of/code_informative": 0, **told})
    assert sum(f.severity == "warning" for f in posterior_collapse(run)) == found


@pytest.mark.parametrize(("mean", "spread", "found"), [(100, 5, 1), (-100, 5, 1), (100, 200, 0), (3, 1, 0)])
def test_returns_as_they_are(mean, spread, found):
    run = run_with(advantage_mean=mean, advantage_std=spread)
    assert [f.alternatives != () for f in returns_not_normalised(run)] == [True] * found  # or weights of the examples
    of_agent = changed(run, per_step={**run.per_step, "return": np.linspace(10.0, 10.1, 240)})
    assert [f.alternatives for f in returns_not_normalised(of_agent)] == [()] * found
    better = changed(run, per_step={**run.per_step, "return": np.linspace(10.0, 100, 240)})
    assert returns_not_normalised(better) == []


@pytest.mark.parametrize(
    ("share", "found"),
    [(1.0, "the gradients to zero"), (0.5, "the gradients of 50.0 % of the layers to zero"), (0.0, "")],
)
def test_gradients_that_were_never_cleared(share, found):
    told = gradients_accumulate(run_with(never_cleared=share))
    assert [found in f.cause for f in told] == [True] * bool(found)


PADDED = {"target_top": 3, "target_top_share": 0.7, "target_top_at_ends": 0.9, "ignored": 0.0}


@pytest.mark.parametrize(
    ("differs", "found"),
    [
        ({}, 1),
        ({"target_top_at_ends": -0.9, "target_is_input": 0.1}, 1),
        ({"target_top_at_ends": -0.9}, 0),  # of what is no text: much of one kind comes before what is to be said
        ({"target_top_at_ends": 0.1}, 0),
        ({"target_top_share": 0.4}, 0),
        ({"ignored": 0.2}, 0),
        ({"target_top": np.arange(SAMPLES) % 2}, 0),
    ],
)
def test_padding(differs, found):
    told = padding_in_loss(run_with(**{**PADDED, **differs}))
    is_text = "target_is_input" in differs
    assert [f.alternatives == () for f in told] == [is_text] * found  # else it may be a state that lasts


@pytest.mark.parametrize(("same", "top", "found"), [(1.0, 0.2, 1), (0.85, 0.2, 0), (1.0, 0.95, 0)])
def test_the_token_itself(same, top, found):
    assert len(labels_not_shifted(run_with(target_is_input=same, target_top_share=top))) == found


@pytest.mark.parametrize(
    ("same", "causal", "ignored", "found"),
    [(0.85, 0.5, 0.0, 1), (0.85, 1.0, 0.0, 0), (0.85, np.nan, 0.0, 0), (0.85, 0.5, 0.8, 0), (0.3, 0.5, 0.0, 0)],
)
def test_masked_tokens_are_asked_for_with_all_others(same, causal, ignored, found):
    told = labels_not_shifted(run_with(target_is_input=same, target_top_share=0.2, causal=causal, ignored=ignored))
    assert ["labels[~masked] = -100" in f.cure for f in told] == [True] * found


@pytest.mark.parametrize(
    ("second", "following", "causal", "found"),
    [(1.0, 0.1, np.nan, 1), (1.0, 0.1, 1.0, 1), (1.0, 0.1, 0.5, 0), (0.9, 0.1, 1.0, 0), (1.0, 0.9, 1.0, 0)],
)
def test_the_token_after_the_next_one(second, following, causal, found):
    same = {"target_is_input": 0.1, "target_is_next": following, "target_top_share": 0.2, "causal": causal}
    assert len(labels_not_shifted(run_with(target_is_after_next=second, **same))) == found


@pytest.mark.parametrize(("rewarded", "advantage", "found"), [(0.0, 0.5, 1), (1.0, 0.5, 0), (0.0, np.nan, 0)])
def test_an_entropy_that_is_added_to_a_loss_of_weighed_choices(rewarded, advantage, found):
    falls = np.linspace(2, 1, 240)  # it may learn all the same
    told = wrong_sign(run_with(entropy_rewarded=rewarded, advantage_std=advantage, losses=falls))
    assert ["The loss rises with the entropy" in f.cause for f in told] == [True] * found


FALLS = -10 + 6 * np.exp(-np.arange(240) / 8)


@pytest.mark.parametrize(
    ("paid", "advantage", "found"),
    [
        (FALLS, 0.5, 1),
        (FALLS, np.nan, 0),  # nobody chooses
        (-FALLS, 0.5, 0),
        (FALLS + 12 * np.exp(-(((np.arange(240) - 100) / 20) ** 2)), 0.5, 0),  # it was better once
        (-10 + 0.1 * FALLS, 0.5, 0),
        (FALLS + 4 * RNG.standard_normal(240), 0.5, 0),
    ],
)
def test_a_reward_that_falls_and_stays_below(paid, advantage, found):
    history = run_with(advantage_std=advantage, logged=("loss", "return"))
    told = wrong_sign(changed(history, per_step={**history.per_step, "return": paid}))
    assert ["choices that bring less are made more likely" in f.cause for f in told] == [True] * found


@pytest.mark.parametrize(
    ("rewarded", "entropy", "found"),
    [(1.0, 0.97, 1), (0.0, 0.97, 0), (1.0, 0.8, 0), (1.0, np.r_[np.ones(10), np.full(SAMPLES - 10, 0.6)], 0)],
)
def test_choices_that_stay_as_open_as_they_began(rewarded, entropy, found):
    history = run_with(advantage_std=0.5, entropy_rewarded=rewarded, choice_entropy=entropy)
    said = entropy_too_strong(history, running=100)
    assert [f.evidence["advantage_std"] for f in said] == [0.5] * found


def of_first_layer(**numbers):
    return {**numbers, **{f"layer_of/{name}": 0.0 for name in numbers}}


@pytest.mark.parametrize(
    ("share", "losses", "severities"),
    [(0.5, None, ["warning"]), (0.2, None, []), (0.5, np.geomspace(1.4, 0.1, 240), ["note"])],
)
def test_a_state_that_is_read_behind_padding(share, losses, severities):
    found = padding_read_as_data(run_with(losses, **of_first_layer(padding_behind=share)))
    assert [(f.severity, len(f.layers)) for f in found] == [(severity, 1) for severity in severities]


@pytest.mark.parametrize(("real", "padding", "found"), [(1.0, 0.0, 1), (0.0, 1.0, 0), (0.0, 0.0, 0), (0.9, 0.9, 0)])
def test_a_mask_that_is_turned_round(real, padding, found):
    said = mask_inverted(run_with(**of_first_layer(real_masked=real, padding_masked=padding)))
    assert ["it is the wrong way round" in f.cause for f in said] == [True] * found


@pytest.mark.parametrize(
    ("causal", "found"),
    [
        (1 / 16, 1),  # the last row alone, whose mask leaves it nothing
        (0.2, 0),  # rows that are padded on their left
        (1.0, 0),
        (np.linspace(0.5, 0.1, SAMPLES), 0),  # without a mask, and what it learnt to look at comes later
        (np.linspace(0.2, 0.5, SAMPLES), 0),
    ],
)
def test_a_mask_that_leaves_what_comes_later(causal, found):
    graph = ({"what": "softmax", "operation": "Softmax", "dim": 3, "shape": "8x4x16x16", "layer": ""},)
    said = mask_inverted(run_with(graph=graph, **of_first_layer(causal=causal)))
    assert ["leaves what follows" in f.cause for f in said] == [True] * found


@pytest.mark.parametrize(("losses", "found"), [(None, 1), (np.geomspace(1.4, 0.4, 240), 0)])
def test_tokens_without_places_where_nothing_is_learnt(losses, found):
    row = {"what": "unplaced", "operation": "Softmax", "shape": "32x9x16", "layer": ""}
    said = positions_missing(run_with(losses, graph=(row,), logged=("loss",)), running=100)
    assert [f.evidence["shape"] for f in said] == ["[32, 9, 16]"] * found


@pytest.mark.parametrize(
    ("first", "dead", "found"),
    [
        (0.6, np.r_[0, np.full(SAMPLES - 1, 0.95)], 1),
        (0.05, np.r_[0, np.full(SAMPLES - 1, 0.95)], 0),  # something else killed them
        (0.6, np.full(SAMPLES, 0.95), 0),  # they were dead before
        (0.6, np.r_[0, np.full(SAMPLES - 1, 0.3)], 0),
        (0.6, np.r_[0, 0.95, np.full(SAMPLES - 2, 0.2)], 0),  # they came back
    ],
)
def test_a_first_step_that_throws_units_to_where_they_are_dead(first, dead, found):
    history = run_with(**of_first_layer(dead=dead))
    ratio = history.layer("update_ratio").copy()
    ratio[~np.isnan(ratio)] = 0.02
    ratio[0] = first
    history = changed(history, per_layer={**history.per_layer, "update_ratio": ratio})
    assert ["It threw units" in f.cause for f in update_too_large(history)] == [True] * found


RAW = np.geomspace(9e4, 3e3, 240)


@pytest.mark.parametrize(
    ("terms", "found"),
    [
        ({"mse_loss": RAW, "class_loss": np.full(240, 1.5)}, 1),
        ({"value_loss": 2 * RAW, "policy_loss": np.full(240, -0.01)}, 1),
        ({"mse_loss": RAW, "kl_loss": np.full(240, 0.5)}, 0),  # a penalty is small on purpose
        ({"mse_loss": RAW}, 0),
        ({"mse_loss": RAW / 1e3, "class_loss": np.full(240, 0.1)}, 0),  # of the size of any loss
        ({"mse_loss": RAW, "class_loss": np.full(240, 900.0)}, 0),
        ({"mse_loss": np.geomspace(9e4, 0.5, 240), "class_loss": np.full(240, 0.2)}, 0),  # it came down to the others
        ({"mse_loss": np.geomspace(9e4, 75, 240), "class_loss": np.full(240, 1.5)}, 1),  # which stands
        ({"mse_loss": np.geomspace(9e4, 75, 240), "class_loss": np.linspace(2.5, 1.3, 240)}, 0),
        ({"value_loss": RAW, "policy_loss": np.full(240, 0.01), "return": np.linspace(10, 50, 240)}, 0),  # and it works
    ],
)
def test_a_term_that_is_the_whole_loss(terms, found):
    weights = {"value_loss": 0.5, "return": 0.0}
    loss = sum(weights.get(name, 1.0) * values for name, values in terms.items())
    history = run_with(loss, logged=("loss", *terms))
    history = changed(history, per_step={**history.per_step, **terms})
    assert [f.evidence["term"] for f in loss_terms_unbalanced(history)] == [next(iter(terms))] * found


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.minimum(np.linspace(0, 1, 240), 0.8), True),
        (np.arange(240) // 40, True),
        (np.linspace(1, 0, 240), False),
        (np.linspace(0, 1, 240) + 0.1 * RNG.standard_normal(240), False),
        (np.r_[np.arange(20), np.full(220, 20)], False),  # soon done: a warm-up
    ],
)
def test_a_setting_that_only_rises_makes_the_task_harder(values, said):
    rises = np.r_[np.geomspace(2, 0.3, 80), np.geomspace(0.3, 1.5, 160)] + 0.02 * RNG.standard_normal(240)
    history = run_with(rises, logged=("loss", "noise"))
    history = changed(history, per_step={**history.per_step, "noise": values.astype(float)})
    assert grows_harder(history) == said
    assert [f.severity for f in lr_too_high(history)] == ["note" if said else "warning"]


@pytest.mark.parametrize(("ended", "said"), [(0.01, True), (0.3, False)])
def test_choices_that_became_certain_are_a_cause_that_nothing_is_won(ended, said):
    history = run_with(advantage_std=0.5, logged=("return", "entropy"))
    columns = {name: column for name, column in history.per_step.items() if name != "loss"}
    paid = np.full(240, 0.5)
    paid[20:60] += 0.01  # and no noise, by the median: nearly always the same is chosen
    columns |= {"return": paid, "entropy": np.geomspace(1.1, ended, 240)}
    (found,) = no_progress(changed(history, per_step=columns), running=100)
    assert ("the choices became certain before they were good" in found.cause) == said


SHUFFLED = {"explained": np.linspace(-0.03, 0.1, SAMPLES), "targets": 64.0, "target_soft": 0.0}


@pytest.mark.parametrize(
    ("differs", "norms", "found"),
    [
        ({}, (1.0, 2.0), 1),
        ({"moves": 1e-3}, (1.0, 2.0), 0),  # small steps explain it
        ({}, (2.0, 1.0), 0),  # it fades: what examples have in common
        ({}, (1.0, 1.1), 0),
        ({"explained": np.linspace(-0.03, 0.9, SAMPLES)}, (1.0, 2.0), 0),
        ({"explained": np.r_[-3, np.zeros(SAMPLES - 1)]}, (1.0, 2.0), 0),  # outputs that began far out
        ({"explained": np.r_[np.zeros(SAMPLES // 2), np.full(SAMPLES - SAMPLES // 2, 0.95)]}, (1.0, 2.0), 0),
        ({"explained": np.r_[np.zeros(9), np.full(SAMPLES - 9, 0.3)]}, (1.0, 2.0), 0),  # learnt before half of the run
        ({"explained": np.r_[np.full(12, np.nan), np.zeros(SAMPLES - 12)]}, (1.0, 2.0), 0),  # none of its first half
        ({"targets": 4.0}, (1.0, 2.0), 0),
        ({"target_soft": 0.3}, (1.0, 2.0), 0),
        ({"rises": "accuracy"}, (1.0, 4.0), 1),  # of the training data
        ({"rises": "accuracy", "moves": 1e-3}, (1.0, 4.0), 1),
        ({"rises": "accuracy"}, (1.0, 2.0), 0),
        ({"rises": "accuracy", "elsewhere": 0.2}, (1.0, 2.0), 1),  # nothing of it holds on other data
        ({"rises": "accuracy", "elsewhere": np.linspace(0.2, 0.3, 240)}, (1.0, 2.0), 0),
        ({"rises": "val_accuracy"}, (1.0, 4.0), 0),
    ],
)
def test_targets_that_are_learnt_by_heart_are_told_from_those_that_are_learnt(differs, norms, found):
    differs = dict(differs)
    moves, rises, elsewhere = differs.pop("moves", 0.04), differs.pop("rises", ""), differs.pop("elsewhere", np.nan)
    history = run_with(
        np.linspace(1, 0.9, 240),
        graph=path("MseLoss Addmm"),
        logged=(*("loss", rises)[: 1 + bool(rises)], "test_accuracy"),
        **{**SHUFFLED, **differs},
    )
    columns = {**history.per_step, "grad_norm": np.linspace(*norms, 240), rises: np.linspace(0.25, 0.6, 240),
               "test_accuracy": np.broadcast_to(elsewhere, 240)}  # fmt: skip
    ratio = history.layer("update_ratio")
    layers = {**history.per_layer, "update_ratio": np.where(np.isnan(ratio), ratio, moves).astype(np.float32)}
    history = changed(history, per_step=columns, per_layer=layers)
    assert len(labels_do_not_fit_inputs(history, running=150)) == found


@pytest.mark.parametrize("name", ["reward_mse", "return_loss", "return_std", "intrinsic_reward", "cost_return"])
def test_what_is_no_reward_may_fall(name):
    history = run_with(advantage_std=0.5, logged=("loss", name))
    assert wrong_sign(changed(history, per_step={**history.per_step, name: 20 + FALLS})) == []


def test_a_shaped_reward_may_fall_where_the_goal_is_reached():
    history = run_with(advantage_std=0.5, logged=("loss", "reward", "success_rate"))
    rises = {"success_rate": np.linspace(0.1, 0.9, 240), "reward": FALLS}
    assert wrong_sign(changed(history, per_step={**history.per_step, **rises})) == []


@pytest.mark.parametrize(
    ("one_way", "layer", "found"),
    [(1.0, 1, 1), (0.0, 1, 0), (np.arange(SAMPLES) < SAMPLES - 1, 1, 0), (1.0, -1, 0)],
)
def test_scores_that_are_pushed_one_way_by_both_terms(one_way, layer, found):
    told = wrong_sign(run_with(scored_one_way=one_way, **{"layer_of/scored_one_way": layer}))
    assert ["with one sign at all of them" in f.cause for f in told] == [True] * found


def pulled(operations, sides):
    """The graph of a loss of two embeddings, of as many `sides` with a gradient, above the division by their length."""
    operands = ["1"] * (len(operations.split()) - 2) + [str(sides), "2", "3"]
    shapes = " ".join(["32x5"] * len(operands))
    return ({"what": "path", "operations": f"{operations} Addmm", "shapes": shapes, "operands": " ".join(operands),
             "layer": "head.weight"},)  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({"embeddings_alike": 0.97}, "nothing pushes different examples apart"),
        ({"embeddings_alike": 0.97, "margins_alike": 0.5}, "the negatives are the hardest"),
        ({"margins_alike": 0.9995}, "equally far from one another"),
        ({"embeddings_alike": 0.9}, ""),
        ({"embeddings_alike": 0.9, "graph": pulled("Neg Mean Sum Mul Div", 2)}, "its gradient goes through both"),
        ({"embeddings_alike": 0.9, "graph": pulled("MseLoss Div", 2)}, "its gradient goes through both"),
        ({"embeddings_alike": 0.9, "graph": pulled("Neg Mean Sum Mul Div", 1)}, ""),  # one side is stopped
        ({"embeddings_alike": 0.9, "graph": pulled("Mean Relu Add Sub Sum Mul Div", 2)}, ""),  # a margin
        ({"embeddings_alike": 0.7, "graph": pulled("Neg Mean Sum Mul Div", 2)}, ""),
        ({"margins_alike": 0.99}, ""),
        ({"embeddings_alike": np.linspace(1, 0.5, SAMPLES)}, ""),
        ({"embeddings_alike": np.where(np.arange(SAMPLES) < 7, 1.0, np.nan)}, ""),
    ],
)
def test_embeddings_that_came_to_one(seen, words):
    told = representation_collapse(run_with(**seen))
    assert [words in f.cause for f in told] == [True] * bool(words)


STEADY, FASTER = np.linspace(1, 30, SAMPLES), np.geomspace(1, 100, SAMPLES)


@pytest.mark.parametrize(
    ("asked", "more", "found"),
    [
        (FASTER, {}, 1),
        (-FASTER, {}, 1),
        (STEADY, {}, 0),  # a value that has far to go
        (STEADY, {"logged": ("loss", "return")}, 1),  # which gets no better
        (np.geomspace(1, 15, SAMPLES), {}, 0),
        (FASTER, {"predicted_mean": 1.0}, 0),  # targets of their own
        (FASTER, {"losses": np.linspace(2, 0.1, 240)}, 0),
        (np.where(np.arange(SAMPLES) % 4 == 3, 1, FASTER), {}, 0),
    ],
)
def test_values_that_grow_with_what_the_model_says(asked, more, found):
    seen = {"target_mean": asked, "predicted_mean": asked, "target_std": 0.1, **more}
    assert len(values_overestimated(run_with(**seen))) == found


def test_a_number_that_climbs_is_a_multiplier_and_a_layer_is_not():
    for shape, found in (((), 0), ((4, 4), 1)):
        groups = {"layers": ["body.weight"]}, {"layers": ["last"], "settings": {"maximize": True}}
        made = {"name": "Adam", "class": "Adam", "settings": {}, "groups": groups}
        run = make_history(200, layers=("body.weight", "last"), optimizers=(made,), logged=())
        layers = (run.run.layers[0], replace(run.run.layers[1], shape=shape))
        run = replace(run, run=replace(run.run, layers=layers))
        assert len(wrong_sign(run)) == found


@pytest.mark.parametrize(
    ("operations", "shape", "rule", "words"),
    [
        ("BinaryCrossEntropy Round Sigmoid", "1", "no-gradient", "numbers that are rounded (round)"),
        ("NllLoss LogSoftmax", "32x1", "dead-layer", "a softmax over dim 1 of [32, 1]"),
        ("NllLoss LogSoftmax", "32x2", "dead-layer", "Either"),
        ("BinaryCrossEntropy Sigmoid", "1", "dead-layer", "Either"),
    ],
)
def test_gradients_that_are_0_by_what_has_no_slope(operations, shape, rule, words):
    (way,) = path(operations)
    graph = ({**way, "shapes": way["shapes"].replace("4x5", shape)},)
    if "Softmax" in operations:
        graph += ({"what": "softmax", "operation": "LogSoftmax", "dim": 1, "shape": shape, "layer": LAST},)
    run = run_with(graph=graph)
    nothing = {**run.per_layer, "grad_norm": np.zeros_like(run.layer("grad_norm"))}
    (found,) = dead_layer(changed(run, per_layer=nothing))
    assert found.rule == rule
    assert words in found.cause


def test_a_part_that_a_softmax_over_one_cuts_off_is_told_so():
    softmax = {"what": "softmax", "operation": "Softmax", "dim": 2, "layer": LAST}
    for shape, rule, words in (
        ("64x12x1", "dead-layer", "a softmax over dim 2 of [64, 12, 1] has one to choose from"),
        ("64x12x3", "no-gradient", "Either"),
    ):
        run = run_with(graph=({**softmax, "shape": shape},))
        norm = run.layer("grad_norm").copy()
        norm[:, -2:] = 0
        (found,) = dead_layer(changed(run, per_layer={**run.per_layer, "grad_norm": norm}))
        assert (found.rule, found.layers) == (rule, run.layers[-2:])
        assert words in found.cause


@pytest.mark.parametrize(("share", "severity"), [(0.9, "warning"), (0.3, "note")])
def test_inputs_that_hold_a_sigmoid_at_its_ends_are_no_note(share, severity):
    seen = {"input_rms": 80.0, "saturated": share, "layer_of/input_rms": 0, "layer_of/saturated": 0}
    (found,) = inputs_not_normalised(run_with(losses=np.geomspace(0.7, 0.1, 240), **seen))
    assert found.severity == severity


@pytest.mark.parametrize(
    ("operations", "found"),
    [
        ("NllLoss LogSoftmax Relu Addmm", True),
        ("BinaryCrossEntropyWithLogits View Relu Addmm", True),
        ("NllLoss LogSoftmax Addmm", False),
        ("MseLoss Relu Addmm", False),
    ],
)
def test_scores_that_a_relu_cuts_off_before_their_softmax(operations, found):
    told = dead_units(run_with(graph=path(operations)))
    assert [(f.rule, f.severity) for f in told] == [("dead-units", "warning")] * found


BY_AND_BY = np.clip(np.arange(SAMPLES) / 8, 0.1, 1)  # flat from the eighth sample on


@pytest.mark.parametrize(
    ("losses", "dead", "found"),
    [
        (None, BY_AND_BY, True),
        (np.geomspace(0.7, 0.1, 240), BY_AND_BY, False),  # it is learnt all the same
        (None, 0.8 * BY_AND_BY, False),
    ],
)
def test_units_that_died_on_the_way_are_dead_where_nothing_got_better(losses, dead, found):
    history = run_with(losses=losses, dead=dead, **{"layer_of/dead": 1})
    told = [(f.rule, f.layers, f.first_step) for f in dead_units(history)]
    assert told == ([("dead-units", (history.run.layers[1].name,), 60)] if found else [])


@pytest.mark.parametrize(
    ("norm", "losses", "found"),
    [
        (0.0, np.geomspace(45, 2.3, 240), True),  # it fell to where an output is sure, and wrong
        (0.01, np.geomspace(45, 2.3, 240), False),
        (0.0, np.geomspace(45, 1e-3, 240), False),  # sure, and right
    ],
)
def test_an_output_that_got_to_its_ends_and_has_no_gradient_left_is_saturated(norm, losses, found):
    history = run_with(losses=losses, end_saturated=BY_AND_BY, **{"layer_of/end_saturated": 1})
    late = {"grad_norm": np.where(np.arange(240) < 90, history.total("grad_norm"), norm)}
    history = changed(history, per_step={**history.per_step, **late})
    assert [(f.rule, f.first_step) for f in saturated(history)] == [("saturated", 60)] * found


def path(operations):
    n = len(operations.split())
    return (
        {
            "what": "path",
            "operations": operations,
            "shapes": "1 " + "4x5 " * (n - 1),
            "operands": "1 " * n,
            "layer": "",
        },
    )


@pytest.mark.parametrize(
    ("operations", "low", "high", "found"),
    [
        ("MseLoss Sigmoid Addmm", -2, 2, "sigmoid"),
        ("MseLoss Sigmoid Addmm", 0, 1, None),
        ("MseLoss Sigmoid Addmm", -0.01, 1.01, None),  # a little beyond
        ("HuberLoss Squeeze Tanh Addmm", -1, 1, None),
        ("HuberLoss Squeeze Tanh Addmm", -1, 3, "tanh"),
        ("MseLoss Relu Addmm", 0, 90, None),
        ("MseLoss Relu Addmm", -5, 90, "ReLU"),
        ("MseLoss Addmm Relu Addmm", -5, 90, None),
        ("NllLoss LogSoftmax Addmm", -5, 90, None),
    ],
)
def test_out_of_reach(operations, low, high, found):
    findings = targets_out_of_range(run_with(graph=path(operations), target_low=low, target_high=high))
    assert [f.evidence["operation"] for f in findings] == ([found] if found else [])


@pytest.mark.parametrize(("explained", "low", "found"), [(0.9, -0.15, 0), (0.1, -0.15, 1), (0.9, -0.6, 1)])
def test_noise_beyond_what_a_sigmoid_gives_is_no_target_that_cannot_be_met(explained, low, found):
    learns = explained * np.minimum(np.arange(SAMPLES) / 8, 1.0)
    run = run_with(graph=path("MseLoss Sigmoid Addmm"), target_low=low, target_high=1.05, explained=learns)
    assert len(targets_out_of_range(run)) == found


@pytest.mark.parametrize(("count", "ends", "found"), [(7, 0.1, 1), (5, 0.1, 0), (5, 1.9, 1)])
def test_masks_and_gates_that_begin_alike_are_no_copies_in_a_training_that_succeeds(count, ends, found):
    made = run_with(losses=ends + (2 - ends) * np.exp(-np.arange(240) / 40), logged=("loss",))
    known = np.where(np.arange(240) == 0, count, np.nan)
    history = changed(made, per_step={**made.per_step, "constant_weights": known})
    alike = [f for f in bad_initialisation(history) if "constant_matrices" in f.evidence]
    assert len(alike) == found


@pytest.mark.parametrize(
    ("at", "second", "found"), [(0, 3.0, True), (10, 3.0, False), (1, 3.0, True), (1, 5e4, False), (1, np.nan, True)]
)
def test_a_sample_that_comes_after_some_steps_is_no_beginning(at, second, found):
    """A watch that begins with the first step looks at the second next, whose loss that may have thrown."""
    entropy = np.where(np.arange(240) < 30, 5e4, 2.0)
    entropy[np.isin(np.arange(240), np.arange(at, 240, 10), invert=True)] = np.nan
    losses = np.geomspace(3, 2, 240)
    losses[1] = second
    history = run_with(losses=losses)
    history = changed(history, per_step={**history.per_step, "in_loss/cross_entropy": entropy})
    assert (first_odds(history) > 20) == found
    assert any("times that of equal odds" in f.cause for f in bad_initialisation(history)) == found


ENDS = np.where(np.arange(SAMPLES) < 4, 0.1, 1.0)


@pytest.mark.parametrize(
    ("differs", "found"),
    [
        ({}, True),
        ({"end_saturated": 0.9}, False),  # from the start: `saturated`
        ({"end_saturated": 0.9 * ENDS}, False),
        ({"targets": 64.0}, False),  # of torch's own, which are known
        ({"losses": np.geomspace(5, 2, 240)}, False),  # it was learnt
    ],
)
def test_outputs_that_came_to_their_ends_with_most_of_the_loss_left(differs, found):
    told = targets_out_of_range(run_with(**{"end_saturated": ENDS, "losses": np.geomspace(5, 4, 240), **differs}))
    assert [f.alternatives != () for f in told] == [True] * found


@pytest.mark.parametrize(("mean", "found"), [(0.5, True), (1 / 36, False), (0.001, True)])
def test_what_a_softmax_gives_adds_up_to_1_and_its_targets_may_not(mean, found):
    graph = ({"what": "path", "operations": "MseLoss Softmax Addmm", "shapes": "1 64x36 64x36", "operands": "1 1 3",
              "layer": LAST},
             {"what": "softmax", "operation": "Softmax", "dim": 1, "shape": "64x36", "layer": LAST})  # fmt: skip
    told = targets_out_of_range(run_with(graph=graph, target_low=0.0, target_high=0.9, target_mean=mean))
    assert ["add up to 1" in f.cause for f in told] == [True] * found


CYCLES = np.arange(SAMPLES)
SEVENTY = {"target_mean": 70.0, "predicted_mean": 70.0 * np.minimum(1, CYCLES / 10), "predicted_std": 6.0}
LARGE = {"target_mean": 4000.0, "target_std": 900.0, "predicted_mean": 10.0, "predicted_std": 3.0}


@pytest.mark.parametrize(
    ("differs", "found"),
    [
        ({}, 1),
        ({"predicted_mean": 3900.0, "predicted_std": 800.0}, 0),
        ({"predicted_mean": 3900.0}, 1),  # of the mean, and no more
        ({"target_mean": 4.0, "target_std": 0.9}, 0),
        ({"losses": np.geomspace(1e7, 10, 240)}, 0),
        ({"predicted_mean": 4000.0 * np.minimum(1, CYCLES / 10), "predicted_std": 800.0}, 1),  # they came there late
        ({"predicted_mean": 4000.0 * np.minimum(1, CYCLES / 2), "predicted_std": 800.0}, 0),
        ({**SEVENTY, "target_std": 6.0}, 1),  # far from 0 beside their deviation
        ({**SEVENTY, "target_std": 9.0}, 0),
    ],
)
def test_numbers_that_are_too_large(differs, found):
    assert len(targets_not_normalised(run_with(**{**LARGE, **differs}))) == found


CYCLE = np.arange(SAMPLES) % 5.0


PLACES = np.where(np.arange(SAMPLES) < SAMPLES // 2, 16.0, 256.0)  # of rows in batches that grow: 0, 1, 2, ...


@pytest.mark.parametrize(
    ("differs", "found"),
    [
        ({}, 1),
        ({"target_std": 3.0}, 0),
        ({"target_low": np.nan, "target_top": CYCLE}, 1),  # classes
        ({"target_low": np.where(np.arange(SAMPLES) < 13, 0.0, np.nan), "target_top": np.nan}, 1),
        ({"target_low": np.where(np.arange(SAMPLES) < 11, 0.0, np.nan), "target_top": np.nan}, 0),  # then another loss
        ({"targets": 4}, 0),  # of so few little is known
        ({"ignored": 0.95}, 0),  # the same: three of 64 are asked for
        ({"passes": 7}, 0),  # a step is of several batches
        ({"predicted_mean": CYCLE + 0.01 * RNG.standard_normal(SAMPLES)}, 0),  # answered rightly, or the model's own
        ({"predicted_mean": np.roll(CYCLE, 1)}, 1),  # what the batch before asked for
        ({"targets": PLACES, "target_mean": (PLACES - 1) / 2, "target_std": np.sqrt((PLACES**2 - 1) / 12)}, 0),
    ],
)
def test_rows_in_an_order(differs, found):
    numbers = {"target_mean": CYCLE, "target_std": 0.2, "targets": 64, "target_low": 0.0}
    assert len(data_not_shuffled(run_with(**{**numbers, **differs}))) == found


def test_what_an_agent_is_asked_for_moves_with_what_it_does():
    numbers = {"target_mean": CYCLE, "target_std": 0.2, "targets": 64, "target_low": 0.0}
    assert data_not_shuffled(run_with(**numbers, logged=("loss", "return"))) == []


@pytest.mark.parametrize(("dropped", "found"), [(3, 1), (15, 1), (1, 0)])
def test_gradients_that_are_thrown_away(dropped, found):
    findings = accumulation_wiped(run_with(dropped=dropped))
    assert [f.evidence["backwards"] for f in findings] == [dropped + 1] * found


def test_batches_of_which_the_mean_differs_by_chance_are_in_no_order():
    batches = RNG.integers(10, size=(SAMPLES, 8))
    numbers = {"target_mean": batches.mean(1), "target_std": batches.std(1), "targets": 8, "target_top": 0}
    assert data_not_shuffled(run_with(**numbers)) == []


@pytest.mark.parametrize(
    ("ratio", "explained", "found"), [(1e-4, 0.2, True), (4e-4, 0.2, False), (1e-4, 0.7, False), (1e-4, np.nan, False)]
)
def test_steps_of_which_none_changes_the_weights_are_too_small_where_little_is_learnt(ratio, explained, found):
    falls = np.geomspace(2.0, 1.2, 240)
    history = run_with(losses=falls, explained=explained)
    measured = np.where(np.isnan(history.layer("update_ratio")), np.nan, ratio).astype(np.float32)
    told = update_too_small(changed(history, per_layer={**history.per_layer, "update_ratio": measured}))
    assert [f.rule for f in told] == ["update-too-small"] * found


@pytest.mark.parametrize(("explained", "severity"), [(0.05, "warning"), (0.6, "note")])
def test_an_eps_that_stops_the_steps_is_a_warning_where_next_to_nothing_is_learnt(explained, severity):
    made = ({"name": "Adam", "class": "Adam", "settings": {"lr": 1e-3, "eps": 0.1}},)
    history = run_with(losses=np.geomspace(2.0, 0.1, 240), explained=explained)
    tiny = {name: 1e-3 * history.layer(name) for name in ("grad_norm",)}
    tiny["clipped_norm"] = tiny["grad_norm"]
    history = changed(history, per_layer={**history.per_layer, **tiny})
    told = below_epsilon(replace(history, run=replace(history.run, optimizers=made, clip=None)))
    assert [f.severity for f in told] == [severity]


def test_the_loss_of_values_that_grow_by_themselves_has_no_scale():
    mean, spread = np.geomspace(1, 12, SAMPLES), np.geomspace(0.1, 3, SAMPLES)
    of_values = {"target_mean": mean, "target_std": spread, "predicted_mean": 1.05 * mean}
    assert own_targets_grow(run_with(**of_values))
    assert scaled_losses(run_with(**of_values)) == {}
    assert own_targets_move(run_with(**{**of_values, "target_std": 1.0}))
    assert not own_targets_move(run_with(**{**of_values, "target_mean": 9 + mean}))
    for differs in ({"target_std": 1.0}, {"predicted_mean": np.cos(7 * np.arange(SAMPLES))}):
        assert not own_targets_grow(run_with(**{**of_values, **differs}))
        assert set(scaled_losses(run_with(**{**of_values, **differs}))) == {"loss"}


@pytest.mark.parametrize(
    ("differs", "found"),
    [
        ({}, 1),  # though the model says every class
        ({"target_top_weight": 1.2}, 0),
        ({"target_top_share": 0.7}, 0),  # costs may be meant
        ({"target_top_share": 0.53, "graph": CLASSIFIER}, 1),  # of five classes: the weight is the share
        ({"target_top_share": 0.66, "graph": CLASSIFIER}, 0),
        ({"target_top": np.arange(SAMPLES) % 2}, 0),
    ],
)
def test_weights_that_are_largest_for_the_most_frequent_class_are_the_wrong_way_round(differs, found):
    turned = {"target_top": 0, "target_top_share": 0.9, "target_top_weight": 2.7, "predicted_top_share": 0.9,
              "target_std": 0.4, "target_soft": 0.0}  # fmt: skip
    said = class_imbalance(run_with(np.geomspace(1, 0.02, 240), **{**turned, **differs}))
    assert ["the wrong way round" in f.cause for f in said] == [True] * found
    assert all(len(f.alternatives) == 2 for f in said)


@pytest.mark.parametrize(
    ("differs", "found"),
    [
        ({}, 1),
        ({"cross_entropy": 2.0}, 0),  # no more than a few times equal odds
        ({"predicted_right": 0.9}, 0),  # the share of that class is as the bias has it
        ({"predicted_top_share": 0.6}, 0),  # the answers differ, so that weights tell them apart
    ],
)
def test_a_model_that_begins_sure_of_one_class_has_a_bias_that_says_so(differs, found):
    sure = {"cross_entropy": 8.0, "predicted_right": 0.02, "predicted_top_share": 1.0}
    history = run_with(np.geomspace(8, 0.2, 240), graph=CLASSIFIER, **{**sure, **differs})
    told = [f for f in bad_initialisation(history) if "the last bias began far from 0" in f.cause]
    assert len(told) == found


def leaps(at, targets):
    """A loss that rests, leaps at a step and stays high for a while, of so many targets in each sample."""
    losses = 0.1 + 0.001 * RNG.standard_normal(240)
    losses[at : at + 30] = 2.0
    history = run_with(losses=losses, targets=targets)
    norm = history.total("grad_norm").copy()
    norm[at : at + 3] *= 100
    return changed(history, per_step={**history.per_step, "grad_norm": norm, "clipped_norm": norm})


@pytest.mark.parametrize(
    ("targets", "found"),
    [
        (np.where(np.arange(SAMPLES) < 12, 64, 128), 0),  # rows are twice as long from step 120 on
        (np.full(SAMPLES, 64), 1),
        (np.where(np.arange(SAMPLES) < 6, 64, 128), 1),  # long before
        (64 + np.arange(SAMPLES) % 7, 1),  # they differ all the time
        (np.where(np.arange(SAMPLES) < 14, 64, 96 + 32 * (np.arange(SAMPLES) % 3)), 0),  # longer rows among others
        (np.where(np.arange(SAMPLES) < 14, 64, 32 - np.arange(SAMPLES) % 3), 1),  # the last batch of each epoch
    ],
)
def test_a_leap_where_another_task_begins_is_no_odd_batch(targets, found):
    assert sum(f.severity != "note" for f in spike(leaps(115, targets))) == found


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        ({"target_in_data": 1.0}, 1),
        ({"target_in_data": 1.0, "target_top_share": 0.6}, 1),
        ({"target_in_data": 1.0, "target_top_share": 0.95}, 0),  # what is nearly always the same is like anything rare
        ({"target_in_data": 0.9}, 0),
    ],
)
def test_what_is_asked_for_stands_in_the_data(numbers, found):
    told = future_seen(run_with(**numbers))
    assert [(f.rule, f.evidence["share_in_data"]) for f in told] == [("future-seen", 1.0)] * found


@pytest.mark.parametrize(("passes", "found"), [(4, 1), (1, 0), (None, 1)])
def test_noise_behind_a_clip_is_no_clip_of_a_part(passes, found):
    history = run_with(**({} if passes is None else {"passes": passes}))
    early = {"user_early_coef": np.full(240, 0.5)}
    assert len(double_clip(changed(history, per_step={**history.per_step, **early}))) == found


@pytest.mark.parametrize(("apart", "std", "found"), [(8000.0, 600.0, 1), (50.0, 600.0, 0), (8000.0, 2.0, 0)])
def test_one_column_of_the_targets_is_all_of_the_loss(apart, std, found):
    numbers = {"target_mean": 0.0, "target_std": std, "predicted_mean": 0.0, "predicted_std": std, "explained": 0.99}
    told = targets_not_normalised(run_with(**numbers, target_columns_apart=apart))
    assert [f.evidence.get("columns_apart") for f in told] == [apart] * found


@pytest.mark.parametrize(("every", "known"), [(1, True), (2, True), (23, False)])
def test_a_loss_that_is_logged_at_the_end_of_an_epoch_is_none_of_the_beginning(every, known):
    history = make_history(200, clip=None)
    loss = np.where(np.arange(200) % every == every - 1, 15.9, np.nan)
    history = changed(history, per_step={**history.per_step, "loss": loss})
    assert first_values(history) == ({"loss": 15.9} if known else {})


@pytest.mark.parametrize(
    ("frozen", "trained", "explained", "found"),
    [
        (range(5), (100, 100), 0.1, True),
        (range(5), (100, 100), 0.6, False),
        (range(5), (10, 10), 0.1, False),  # about as large as what is trained
        (range(1), (100, 100), 0.1, False),  # much of it is trained
        (range(1, 5), (100, 100), 0.1, False),  # what is trained lies in front of it, too: a prompt, an adapter
    ],
)
def test_a_frozen_body_of_which_little_can_be_told(frozen, trained, explained, found):
    history = run_with(np.geomspace(2.2, 1.9, 240), graph=CLASSIFIER, explained=explained, targets=64)
    *body, head, bias = history.run.layers
    body = [replace(layer, shape=trained, frozen=i in frozen) for i, layer in enumerate(body)]
    layers = (*body, replace(head, shape=(5, 100)), replace(bias, shape=(5,)))
    history = replace(history, run=replace(history.run, layers=layers, status="FINISHED"))
    said = [f for f in no_gradient(history) if "Thaw the last blocks" in f.cure]
    assert bool(said) == found
    assert [f.rule for f in diagnose(history) if "Thaw the last blocks" in f.cure] == ["no-gradient"] * found
    assert all(f.alternatives for f in said)


@pytest.mark.parametrize(("choices", "found"), [(np.minimum(65 + 64 * np.arange(SAMPLES), 1024), 0), (1025, 1)])
def test_a_loss_that_chooses_among_ever_more_may_rise(choices, found):
    """Of the negatives in a queue, as MoCo's, which fills: what equal odds give grows with them."""
    loss = np.r_[np.linspace(1, 2.4, 80), np.full(160, 2.4)] + 0.02 * RNG.standard_normal(240)
    history = run_with(loss, choices=choices, targets=64, logged=("loss",))
    history = replace(history, run=replace(history.run, status="FINISHED"))
    assert [f.severity for f in lr_too_high(history)] == ["warning" if found else "note"]
    assert len(no_progress(history)) == found


@pytest.mark.parametrize(
    ("trained", "other", "found"),
    [
        ((0.5, 0.7), (0.68, 0.63), True),
        ((0.5, 0.7), (0.68, 0.68), False),  # nothing is lost: a dropout, or an augmentation
        ((0.5, 0.52), (0.68, 0.63), False),  # it stays below: nothing is learnt by heart
        ((0.65, 0.9), (0.68, 0.63), False),  # the training data were right as often
    ],
)
def test_labels_that_are_wrong_in_part(trained, other, found):
    steps = np.arange(240)
    late = np.clip((steps - 120) / 80, 0, 1)
    accuracy, there = (early + (last - early) * late for early, last in (trained, other))
    run = run_with()
    measured = {"accuracy": accuracy, "val_accuracy": np.where(steps % 20, np.nan, there)}
    history = changed(run, per_step={**run.per_step, **measured})
    said = labels_do_not_fit_inputs(history)
    assert [f.alternatives != () for f in said] == [True] * found


def test_a_training_accuracy_that_is_logged_now_and_then_warns_of_nothing(recwarn):
    """Beside most measurements of other data there is none of it."""
    steps, run = np.arange(240), run_with()
    measured = {"accuracy": np.where(steps % 60 == 59, 0.5, np.nan), "val_accuracy": np.where(steps % 20, np.nan, 0.6)}
    assert labels_do_not_fit_inputs(changed(run, per_step={**run.per_step, **measured})) == []
    assert [*recwarn] == []
