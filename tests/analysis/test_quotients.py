"""Causes that quotients of what is recorded show: of inputs, of weights that are put back, of sums; and of losses."""

from dataclasses import replace

import numpy as np
import pytest
from make_run import changed, make_history
from test_causes import NOISE, STEPS, choosing, learns, run

from gradwatch.analysis.rules import diagnose
from gradwatch.analysis.rules.dead_layers import dead_layer
from gradwatch.analysis.rules.epsilon import below_epsilon
from gradwatch.analysis.rules.gradient_scale import gradients_accumulate, scaled_gradients
from gradwatch.analysis.rules.initialisation import bad_initialisation
from gradwatch.analysis.rules.inputs import inputs_not_normalised, too_large_inside
from gradwatch.analysis.rules.long_steps import lr_too_high
from gradwatch.analysis.rules.negative_loss import negative_loss
from gradwatch.analysis.rules.spikes import spike
from gradwatch.analysis.rules.unchanged import weights_unchanged


def renamed(plain):
    """The same run of a net whose first layer has a bias, and whose last one has ten rows."""
    names = ("0.weight", "0.bias", *plain.layers[2:-1], "last.weight")
    shapes = ((4, 4), (4,), *[(4, 4)] * (len(names) - 3), (10, 4))
    layers = tuple(replace(layer, name=n, shape=s) for layer, n, s in zip(plain.run.layers, names, shapes, strict=True))
    return replace(changed(plain, layers=names), run=replace(plain.run, layers=layers))


def fed(times, *, bias=True, kinds=None):
    """A run whose first weight has `times` the gradient of its bias beside it."""
    plain = renamed(run(loss=learns(), modules=kinds or {}))
    norm = plain.layer("grad_norm").copy()
    norm[:, 1] = norm[:, 0] / times if bias else np.nan
    return changed(plain, per_layer={**plain.per_layer, "grad_norm": norm})


@pytest.mark.parametrize(("times", "found"), [(1.0, False), (8.0, False), (8000.0, True), (1e-3, True), (1e9, True)])
def test_the_size_of_the_inputs_is_that_of_a_weights_gradient_beside_its_biases(times, found):
    told = inputs_not_normalised(fed(times))
    assert bool(told) == found
    assert not found or told[0].layers == ("0.weight",)


@pytest.mark.parametrize(("before", "found"), [("ReLU", True), ("Tanh", False)])
def test_what_a_tanh_gives_is_not_far_above_1_whatever_a_loss_of_derivatives_makes_of_the_quotient(before, found):
    names = [f"{i}.{what}" for i in (0, 2, 4) for what in ("weight", "bias")]
    kinds = {"0": "Linear", "1": before, "2": "Linear", "3": before, "4": "Linear"}
    plain = make_history(STEPS, layers=tuple(names), clip=None, modules=kinds)
    norm = np.ones_like(plain.layer("grad_norm"))
    norm[:, ::2] *= 4 * np.array([1.0, 15.0, 60.0])
    shaped = tuple(replace(layer, shape=(16, 16) if i % 2 == 0 else (16,)) for i, layer in enumerate(plain.run.layers))
    history = replace(changed(plain, {**plain.per_layer, "grad_norm": norm}), run=replace(plain.run, layers=shaped))
    assert (too_large_inside(history) is not None) == found


@pytest.mark.parametrize(("gain", "found"), [(0.6, True), (8.0, False)])
def test_large_numbers_behind_a_matrix_that_began_large_are_its_own(gain, found):
    names = [f"{i}.{what}" for i in (0, 2, 4) for what in ("weight", "bias")]
    plain = make_history(STEPS, layers=tuple(names), clip=None, modules={"0": "Linear", "2": "Linear", "4": "Linear"})
    norm, weights = np.ones_like(plain.layer("grad_norm")), plain.layer("weight_norm").copy()
    norm[:, ::2] *= 4 * np.array([1.0, 2.0, 60.0])
    weights[:, :4:2] *= 4 * gain / weights[:1, :4:2]  # rms x 4 is the gain; of the last one it stays
    shaped = tuple(replace(layer, shape=(16, 16) if i % 2 == 0 else (16,)) for i, layer in enumerate(plain.run.layers))
    history = changed(plain, {**plain.per_layer, "grad_norm": norm, "weight_norm": weights})
    told = inputs_not_normalised(replace(history, run=replace(plain.run, layers=shaped)))
    assert [f.layers for f in told] == [("4.weight",)] * found


def test_without_a_bias_or_behind_an_embedding_the_size_of_the_inputs_is_not_known():
    assert inputs_not_normalised(fed(8000.0, bias=False)) == []
    assert inputs_not_normalised(fed(8000.0, kinds={"0": "Embedding"})) == []
    assert inputs_not_normalised(fed(1e9, kinds={"1": "BatchNorm1d"})) == []  # the bias's gradient is rounding


@pytest.mark.parametrize(("times", "found"), [(50.0, False), (1e5, True)])
def test_numbers_beside_what_embeddings_look_up_are_told_where_they_are_far_larger(times, found):
    plain = make_history(STEPS, layers=("who.weight", "0.weight", "0.bias"), modules={"who": "Embedding"})
    norm = plain.layer("grad_norm").copy()
    norm[:, 2] = norm[:, 1] / times
    told = inputs_not_normalised(changed(plain, per_layer={**plain.per_layer, "grad_norm": norm}))
    assert [f.layers for f in told] == [("0.weight",)] * found


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (-np.log(10) - np.arange(STEPS) / 10, "the wrong sign"),
        (-0.1 - 0.8 * np.arange(STEPS) / STEPS, "without their logarithm"),
        (-0.107 - 0.8 * np.arange(STEPS) / STEPS, "without their logarithm"),  # of a batch, which differs
        (-0.5 - np.arange(STEPS) ** 2 / 1000, "falls on and on"),
        (-2.2 + 0.3 * np.exp(-np.arange(STEPS) / 20), "kl_div was given probabilities"),
        (-0.9 + 0.3 * np.exp(-np.arange(STEPS) / 20), None),  # a cosine
        (0.69 - np.arange(STEPS) / 10, "targets that are not between 0 and 1"),
        (-2 - np.sqrt(np.arange(STEPS)), None),  # a likelihood of densities
        (np.linspace(-3, 2, STEPS), "the steps that lower a loss raise it"),
        (np.linspace(-3, 2, STEPS) + 40 * NOISE, None),  # a policy gradient's
        (np.log(10) - np.arange(STEPS) / 100, None),  # some are above 0
    ],
)
def test_a_loss_below_zero_is_told_by_where_it_begins(loss, words):
    told = negative_loss(renamed(run(loss=loss)))
    assert (words in told[0].cause) if words else told == []


def test_a_loss_that_falls_below_zero_ever_faster_has_no_floor_if_the_gradient_grows_with_it():
    loss, grows = 40 - 1e-4 * np.arange(STEPS) ** 3, np.exp(np.arange(STEPS) / 50)
    (found,) = negative_loss(renamed(run(loss=loss, grad_norm=grows)))
    assert (found.confidence, round(found.evidence["first"])) == ("possible", 40)
    assert negative_loss(renamed(run(loss=loss))) == []  # the gradient stays
    slows = 40 - 2000 * (1 - np.exp(-np.arange(STEPS) / 50))
    assert negative_loss(renamed(run(loss=slows, grad_norm=grows))) == []  # it comes to rest
    assert negative_loss(renamed(run(loss=36 + loss / 10, grad_norm=grows))) == []  # not far below what it was


def with_norms(plain, *of_layers):
    """The run with these gradient norms of its first layers, one number each, and 1 of the others."""
    norm = np.ones_like(plain.layer("grad_norm"))
    norm[:, : len(of_layers)] = of_layers
    return changed(plain, per_layer={**plain.per_layer, "grad_norm": norm})


def test_weights_and_biases_that_get_what_rounding_leaves_are_dead():
    plain = renamed(run(loss=learns()))
    (found,) = dead_layer(with_norms(plain, 1e-8, 1e-8))
    assert (found.layers, found.severity, found.confidence) == (("0.weight",), "warning", "possible")
    assert dead_layer(with_norms(plain, 1e-8)) == []  # the bias beside it learns: next to nothing comes in
    assert dead_layer(with_norms(plain, 1e-4, 1e-4)) == []  # small, and no chance
    assert dead_layer(with_norms(plain, *[1e-8] * 4)) == []  # most of the matrices
    held = with_norms(plain, 1e-8, 1e-8)
    wakes = held.layer("grad_norm").copy()
    wakes[30:, :2] = 0.1
    assert dead_layer(changed(held, per_layer={**held.per_layer, "grad_norm": wakes})) == []


def test_no_eps_mends_gradients_that_are_nothing_beside_the_others():
    plain = run("Adam", loss=learns(), ratio=0.01)
    made = {"name": "Adam", "class": "Adam", "settings": {"lr": 0.1, "eps": 1e-8}}
    plain = replace(plain, run=replace(plain.run, optimizers=(made,)))
    for small, found in ((1e-9, True), (1e-18, False)):
        norm = np.ones_like(plain.layer("grad_norm"))
        norm[:, :5] = small
        norm[:, 5:] = 1e-4
        held = changed(plain, per_layer={**plain.per_layer, "grad_norm": norm, "clipped_norm": norm})
        assert bool(below_epsilon(held)) == found


def test_a_loss_scale_is_in_the_gradients_of_all_layers_and_steepness_in_those_of_the_first():
    plain = run(loss=learns(), ratio=0.01)
    moved = np.full(STEPS, 0.1)
    columns = {**plain.per_step, "update_norm": moved, "grad_norm": np.full(STEPS, 6e4)}
    for norms, rules in (([2e4] * 7, ["scaled-gradients"]), ([6e4, 1e3, 1, 0.5, 0.3, 0.2, 0.1], [])):
        held = with_norms(changed(plain, per_step=columns), *norms)
        assert [f.rule for f in scaled_gradients(held)] == rules
        policy = changed(held, per_step={**held.per_step, "loss": learns() - 2.0})  # one that falls below 0
        assert scaled_gradients(policy) == []


def test_gradients_that_grow_evenly_on_their_way_back_began_too_steep():
    plain = run(loss=learns(), ratio=0.01)
    (found,) = bad_initialisation(with_norms(plain, *(10.0 ** -np.arange(7))))
    assert found.evidence["grows_per_layer_by"] == pytest.approx(10, rel=0.1)
    assert bad_initialisation(with_norms(plain, *(10.0 ** -(np.arange(7) / 6)))) == []
    assert bad_initialisation(with_norms(plain, 1e3, 1, 1e3, 1, 1e-3, 1, 1e-3)) == []  # in no even line


@pytest.mark.parametrize(("times", "size", "found"), [(50.0, 40.0, True), (5.0, 40.0, False), (50.0, 0.1, False)])
def test_a_first_step_of_many_times_the_weights_replaced_them_whatever_came_of_it(times, size, found):
    plain = run(loss=learns(), ratio=0.01)
    ratio, norm = plain.layer("update_ratio").copy(), plain.layer("weight_norm").copy()
    ratio[0] = times
    norm[np.isfinite(norm)] = size
    held = changed(plain, per_layer={**plain.per_layer, "update_ratio": ratio, "weight_norm": norm})
    assert [f.cause.startswith("The first step was far too long") for f in lr_too_high(held)] == [True] * found


@pytest.mark.parametrize(
    ("times", "left", "found"), [(8.0, 0.6, True), (3.0, 0.6, False), (8.0, 0.1, False), (0.01, 0.6, False)]
)
def test_weights_that_outgrow_what_is_learnt_were_led_away_by_the_steps(times, left, found):
    plain = run(loss=learns(4 * left), ratio=0.01)
    norm, grows = plain.layer("weight_norm"), np.linspace(1, times, STEPS)[:, None]
    held = changed(
        plain, per_layer={**plain.per_layer, "weight_norm": np.where(np.isnan(norm), np.nan, norm[:1] * grows)}
    )
    assert [f.cause.startswith("The steps are too long for what is learnt") for f in lr_too_high(held)] == [
        True
    ] * found


@pytest.mark.parametrize(
    ("times", "words"), [(1.0, "while the gradients stayed usual"), (8.0, "times the usual. Either the batches")]
)
def test_what_the_gradient_was_in_a_step_whose_loss_alone_stands_out_is_said(times, words):
    hit = np.arange(STEPS) == 200
    norm = np.where(hit, times, 1.0 + 0.1 * np.sin(np.arange(STEPS)))
    (found,) = spike(run(loss=np.where(hit, 20, 0.5 + 0.1 * NOISE), grad_norm=norm))
    assert words in found.cause


def test_a_bias_before_a_norm_has_no_gradient_but_rounding_and_does_not_stand_still():
    plain = renamed(run("Adadelta", loss=learns(), ratio=0.01))
    ratio = plain.layer("update_ratio").copy()
    ratio[:, 1] = np.where(np.isnan(ratio[:, 1]), np.nan, 0)
    held = changed(plain, per_layer={**plain.per_layer, "update_ratio": ratio})
    for norm, rules in (([1, 1], ["weights-unchanged"]), ([1, 1e-7], [])):
        assert [f.rule for f in weights_unchanged(with_norms(held, *norm))] == rules


def test_weights_that_each_step_moves_and_that_are_soon_where_they_were_are_put_back():
    plain = run(ratio=0.01, loss=2.3 + 0.1 * NOISE)
    for share, rules in ((0.5, []), (0.005, ["weights-unchanged"])):
        away = plain.layer("update_ratio") * 10 * share
        moved = changed(plain, per_layer={**plain.per_layer, "displacement": away})
        assert [f.rule for f in weights_unchanged(moved)] == rules
        learnt = changed(moved, per_step={**moved.per_step, "loss": learns()})
        assert weights_unchanged(learnt) == []  # at what is wanted a proximal step takes back that of the gradient


def test_an_expert_that_is_chosen_now_and_then_is_not_put_back_between_its_steps():
    plain = run(ratio=0.01, loss=2.3 + 0.1 * NOISE)
    chosen, measured = np.arange(STEPS) % 20 == 0, np.arange(STEPS) % 10 == 0  # no gradient in between
    ratio, away = (plain.layer("update_ratio").copy() for _ in range(2))
    ratio[:, 1] = np.where(measured, np.where(chosen, 0.01, 0.0), np.nan)
    away[:, 1] = np.where(measured, np.where(chosen, 0.0, 0.01), np.nan)  # to where the step before had led it
    norm = plain.layer("grad_norm").copy()
    norm[~chosen, 1] = np.nan
    columns = {"update_ratio": ratio, "displacement": away, "grad_norm": norm}
    assert weights_unchanged(changed(plain, per_layer={**plain.per_layer, **columns})) == []


def test_weights_that_rest_once_all_is_learnt_stand_still_for_that():
    plain = run(ratio=0.01)
    ratio = np.where(np.arange(STEPS)[:, None] < 40, plain.layer("update_ratio"), 0 * plain.layer("update_ratio"))
    held = changed(plain, per_layer={**plain.per_layer, "update_ratio": ratio.astype(np.float32)})
    for loss, rules in ((2.3 + 0.1 * NOISE, ["weights-unchanged"]), (learns(), [])):
        kept = changed(held, per_step={**held.per_step, "loss": loss})
        assert [f.rule for f in weights_unchanged(kept)] == rules


def test_a_sum_that_bends_early_is_told_by_how_little_a_batch_changes_it():
    summed = 1 + 19 * (1 - np.exp(-np.arange(STEPS) / 25))
    loss = 2.3 + NOISE
    assert [f.rule for f in gradients_accumulate(run(loss=loss, grad_norm=summed))] == ["gradients-accumulate"]
    of_batches = summed * np.exp(0.3 * np.cos(np.arange(STEPS) * 2.1))  # the norms of batches that differ
    assert gradients_accumulate(run(loss=loss, grad_norm=of_batches)) == []


def test_a_weight_into_which_only_zeros_come_is_a_note():
    plain = renamed(run(loss=learns()))
    norm = plain.layer("grad_norm").copy()
    norm[:, 0] = 0
    (found,) = dead_layer(changed(plain, per_layer={**plain.per_layer, "grad_norm": norm}))
    assert (found.severity, found.layers) == ("note", ("0.weight",))
    assert found.cause.startswith("Gradients reach the biases")


@pytest.mark.parametrize(
    ("kind", "weight", "found"), [("LSTM", 1.0, True), ("ReLU", 1.0, False), ("LSTM", 50.0, False)]
)
def test_units_that_stand_at_their_ends_from_the_start_are_given_what_is_too_large(kind, weight, found):
    plain = renamed(run(loss=learns(), modules={"0": kind}))
    norm, sizes = plain.layer("grad_norm").copy(), plain.layer("weight_norm") * weight
    norm[:, :2] = 0
    held = changed(plain, per_layer={**plain.per_layer, "grad_norm": norm, "weight_norm": sizes})
    told = inputs_not_normalised(held)
    assert [(f.layers, f.confidence) for f in told] == ([(("0.weight",), "possible")] if found else [])
    norm[:, 2] = 0  # what lies behind would learn all the same
    assert inputs_not_normalised(changed(held, per_layer={**held.per_layer, "grad_norm": norm})) == []


@pytest.mark.parametrize(("entropy", "severity"), [(28.0, "warning"), (2.5, "note")])
def test_what_is_given_is_more_than_a_note_where_the_first_logits_are_far_apart(entropy, severity):
    (found,) = inputs_not_normalised(choosing(fed(8000.0), entropy))
    assert found.severity == severity


@pytest.mark.parametrize(("since", "found"), [(3, True), (180, False)])
def test_a_loss_that_is_0_at_once_asks_for_nothing(since, found):
    """And one that comes to 0 in time is learnt."""
    over = np.arange(STEPS) >= since
    plain = run(ratio=0.01, loss=np.where(over, 0.0, 0.5 + 0.1 * NOISE))
    norm = np.where(over[:, None], 0, plain.layer("grad_norm")).astype(np.float32)
    total = np.sqrt((norm.astype(np.float64) ** 2).sum(axis=1))
    history = changed(plain, per_layer={**plain.per_layer, "grad_norm": norm},
                      per_step={**plain.per_step, "grad_norm": total})  # fmt: skip
    told = dead_layer(history)
    assert [(f.severity, f.first_step) for f in told] == [("warning", since)] * found
    assert not found or "the loss is exactly 0" in told[0].cause


@pytest.mark.parametrize(("fades", "rules"), [(True, ["no-progress"]), (False, ["dead-layer"])])
def test_gradients_that_fade_to_zero_are_no_dead_layer_and_those_that_stop_at_once_are(fades, rules):
    rows = np.arange(STEPS)
    level = np.where(rows < 180, np.exp(-rows / 10) if fades else 1.0, 0.0)
    plain = run(ratio=0.01, loss=2.3 + NOISE)
    norm = (plain.layer("grad_norm") * level[:, None]).astype(np.float32)
    total = np.sqrt((norm.astype(np.float64) ** 2).sum(axis=1))
    found = diagnose(changed(plain, per_layer={**plain.per_layer, "grad_norm": norm},
                             per_step={**plain.per_step, "grad_norm": total, "clipped_norm": total}))  # fmt: skip
    assert [f.rule for f in found] == rules
    assert not fades or "depend on the weights" in found[0].cause


@pytest.mark.parametrize(
    ("writes", "columns", "found"),
    [
        (np.nan, {}, True),  # not known: by the norm alone
        (0.0, {}, False),
        (1.0, {}, True),
        (2.0, {}, True),
        (2.0, {"user_max_norm": 1.0}, True),
    ],
)
def test_gradients_that_are_new_in_each_step_are_no_sum(writes, columns, found):
    row = np.arange(STEPS)
    summed = np.minimum(row + 1.0, 60)
    told = run(
        loss=2.3 + 0.1 * NOISE,
        grad_norm=summed,
        grad_writes=np.where(row, writes, np.nan),
        **{k: np.full(STEPS, v) for k, v in columns.items()},
    )
    assert bool(gradients_accumulate(told)) == found


@pytest.mark.parametrize(
    ("writes", "clip", "found"), [(1.0, np.nan, True), (2.0, 1.0, True), (2.0, np.nan, False), (1.0, 1.0, False)]
)
def test_a_norm_that_soon_rests_is_a_sum_where_backward_alone_writes(writes, clip, found):
    row = np.arange(STEPS)
    rests = np.minimum(1 + 0.5 * row, 2.0) + 0.3 * NOISE
    told = run(
        loss=2.3 + NOISE, grad_norm=rests, grad_writes=np.where(row, writes, np.nan), user_max_norm=np.full(STEPS, clip)
    )
    assert bool(gradients_accumulate(told)) == found
