"""Which finding leads: by the steps that it was about, the layers that it was in, and what came of it."""

from dataclasses import replace

import numpy as np
import pytest
from make_run import changed
from test_causes import NOISE, STEPS, learns, run, weighing

from gradwatch.analysis.rules.finding import Finding
from gradwatch.analysis.rules.gradients import exploding
from gradwatch.analysis.rules.initialisation import bad_initialisation
from gradwatch.analysis.rules.inputs import inputs_not_normalised
from gradwatch.analysis.rules.long_steps import lr_too_high
from gradwatch.analysis.rules.no_progress import no_progress
from gradwatch.analysis.rules.roots import group
from gradwatch.analysis.rules.small_updates import update_too_small
from gradwatch.analysis.rules.spikes import spike
from gradwatch.analysis.rules.unchanged import weights_unchanged
from gradwatch.analysis.rules.weight_growth import weight_growth

ROW = np.arange(STEPS)
SLOW = np.where(ROW % 10 == 0, 1.0, np.nan)[:, None]


def with_layers(history, **quantities):
    """The history with these values of every layer: `[T]`, or `[T, L]`."""
    made = {name: np.float32(np.ones(len(history.layers)) * values) for name, values in quantities.items()}
    return changed(history, per_layer={**history.per_layer, **made})


# ------------------------------------------------------------------------------------------------------------- steps


def test_steps_that_threw_a_loss_up_are_judged_by_their_own_length_not_by_that_of_later_ones():
    loss = np.interp(ROW, [0, 60, 72, 100, 112, STEPS], [2.3, 2.3, 9.0, 9.0, 2.5, 2.5]) + 0.1 * NOISE
    long = SLOW * np.where(ROW < 120, 0.05, 1e-4)[:, None]  # dead weights hardly move
    (found,) = lr_too_high(with_layers(run("Adam", loss=loss), update_ratio=long))
    assert (found.severity, found.alternatives) == ("error", ())
    (usual,) = lr_too_high(with_layers(run("Adam", loss=loss), update_ratio=SLOW * 1e-3))
    assert (usual.severity, len(usual.alternatives)) == ("warning", 2)


@pytest.mark.parametrize(("first", "times", "found"), [(0.5, 2.3, True), (0.5, 1.4, False), (0.1, 2.3, False)])
def test_a_first_step_that_makes_weights_twice_as_large_was_too_long_though_no_loss_leapt(first, times, found):
    ratio = SLOW * np.where(ROW == 0, first, 0.001)[:, None]
    grown = np.where(ROW == 0, 1.0, times)
    history = weighing(grown, with_layers(run("Adam", loss=2.3 + NOISE / 100), update_ratio=ratio))
    assert [f.cause.startswith("The first step was far too long") for f in lr_too_high(history)] == [True] * found


@pytest.mark.parametrize("size", [1.0, 1e6])
def test_weights_that_go_straight_to_targets_that_are_far_do_not_run_away(size):
    """Their gradient grows with them, and the loss does not fall yet."""
    moved = {"update_ratio": SLOW * 0.008, "displacement": SLOW * 0.08}
    norm = 3 * np.exp(ROW / 50)
    history = with_layers(run("Adam", rate=1e-3, loss=size * (2.3 + ROW / 1e4 + NOISE / 10), grad_norm=norm), **moved)
    history = weighing(1 + (ROW / 80) ** 2, history)
    far = size > 1
    assert [f.rule for f in weight_growth(history)] == ["weight-growth"] * (not far)
    assert [f.rule for f in exploding(history)] == ["exploding"] * (not far)
    assert [f.rule for f in update_too_small(history)] == ["update-too-small"] * far


def test_a_goal_that_fell_for_good_from_where_it_began_is_no_progress_though_it_came_back_for_a_while():
    falls = np.round(0.25 * np.exp(-ROW / 30) + 0.03 * np.sin(ROW) * (ROW < 100), 2)
    (found,) = no_progress(run(**{"return": falls}))
    assert found.evidence["metric"] == "return"
    rises = np.where((ROW > 100) & (ROW < 200), 0.6, falls)  # it was better once
    assert no_progress(run(**{"return": rises})) == []
    for name in ("recall", "train/precision", "rewards/chosen"):  # highest of an answer that is always the same
        assert no_progress(run(**{name: falls})) == []
    assert [f.evidence["metric"] for f in no_progress(run(recall_at_10=falls))] == ["recall_at_10"]


@pytest.mark.parametrize(("dead", "roots"), [(9, ["spike"]), (18, ["spike"]), (44, ["dead-layer", "spike"])])
def test_what_begins_long_after_a_spike_that_was_recovered_from_has_another_cause(dead, roots):
    spike = Finding("spike", "warning", (), 8, 8, {"recovered": "yes"})
    found = group([spike, Finding("dead-layer", "error", (), dead, 100)])
    assert sorted(f.rule for f in found) == roots
    left = replace(spike, evidence={"recovered": "no"})
    assert [f.rule for f in group([left, Finding("dead-layer", "error", (), 44, 100)])] == ["spike"]


# ------------------------------------------------------------------------------------------------------------ layers


def fed(*sizes, names=("0", "1", "2"), loss=None):
    """A run of three matrices of 16 columns, each with its bias, that are given numbers of these sizes."""
    history = run("Adam", ratio=0.008, loss=10 * learns() if loss is None else loss, modules={})
    order = [f"{name}.{what}" for name in names for what in ("weight", "bias")]
    keep = history.run.layers[: len(order)]
    shapes = [(16, 16), (16,)] * len(names)
    layers = tuple(replace(layer, name=n, shape=s) for layer, n, s in zip(keep, order, shapes, strict=True))
    per_layer = {name: values[:, : len(order)].copy() for name, values in history.per_layer.items()}
    per_layer["grad_norm"][:, ::2] = per_layer["grad_norm"][:, 1::2] * (4 * np.array(sizes))
    made = changed(history, layers=tuple(order), per_layer=per_layer)
    return replace(made, run=replace(made.run, layers=layers))


@pytest.mark.parametrize(
    ("sizes", "grows", "given"),
    [
        ((0.5, 6.0, 60.0), ["2.weight"], []),  # what passes through grows
        ((0.5, 25.0, 300.0), [], ["1.weight"]),  # fifty times: that is put in here
        ((0.5, 25.0, 1.0), [], []),  # a norm follows
        ((0.5, 2.0, 6.0), [], []),
        ((0.5, 2.0, 1e6), [], []),  # of a bias whose gradient is nothing but rounding
        ((60.0, 90.0, 300.0), [], ["0.weight"]),  # it comes in so
    ],
)
def test_numbers_that_grow_through_the_layers_are_told_from_those_that_come_into_one(sizes, grows, given):
    history = fed(*sizes)
    assert [f.layers[0] for f in bad_initialisation(history)] == grows
    assert [f.layers[0] for f in inputs_not_normalised(history)] == given
    assert all(f.alternatives for f in bad_initialisation(history))


def test_sizes_by_quotients_are_no_alarm_of_a_training_that_succeeds_from_equal_odds():
    assert bad_initialisation(fed(0.5, 6.0, 60.0, loss=learns())) == []  # a bias's gradients may cancel
    (found,) = inputs_not_normalised(fed(0.5, 25.0, 300.0, loss=learns()))
    assert found.severity == "note"
    flat = 2.3 + 0.01 * NOISE
    assert bad_initialisation(fed(0.5, 6.0, 60.0, loss=flat)) != []
    assert inputs_not_normalised(fed(0.5, 25.0, 300.0, loss=flat))[0].severity == "warning"


@pytest.mark.parametrize(("measured", "found"), [(0.5, True), (0.3, True), (0.1, False)])
def test_sizes_by_quotients_say_nothing_where_the_first_is_not_what_was_measured(measured, found):
    """The gradients of a bias cancel where two energies are subtracted; those of the weights do not."""
    history = fed(0.5, 6.0, 60.0)
    sampled = np.where(np.arange(STEPS) % 20 == 0, measured, np.nan)
    columns = {"in_loss/input_rms": sampled, "in_loss/layer_of/input_rms": 0 * sampled}
    history = changed(history, per_step={**history.per_step, **columns})
    assert bool(bad_initialisation(history)) == found


def test_what_a_recurrence_hands_on_grew_in_it():
    assert inputs_not_normalised(fed(0.5, 25.0, 300.0)) != []
    cell = fed(0.5, 1.0, 300.0)
    names = tuple(name.replace("1.weight", "1.weight_hh_l0").replace("1.bias", "1.bias_hh_l0") for name in cell.layers)
    layers = tuple(replace(layer, name=n) for layer, n in zip(cell.run.layers, names, strict=True))
    cell = replace(changed(cell, layers=names), run=replace(cell.run, layers=layers))
    assert inputs_not_normalised(cell) == []
    assert [f.layers for f in bad_initialisation(cell)] == [("2.weight",)]


def test_a_recurrent_layer_whose_gradient_meets_no_input_says_nothing_of_the_size_of_inputs():
    assert inputs_not_normalised(fed(1e-9, 1.0, 1.0)) != []
    cell = fed(1e-9, 1.0, 1.0)
    names = ("weight_ih_l0", "bias_ih_l0", *cell.layers[2:])
    layers = tuple(replace(layer, name=n) for layer, n in zip(cell.run.layers, names, strict=True))
    assert inputs_not_normalised(replace(changed(cell, layers=names), run=replace(cell.run, layers=layers))) == []


@pytest.mark.parametrize(("share", "found"), [(1e-3, True), (1e-15, False)])
def test_a_matrix_whose_gradient_is_nothing_beside_the_whole_is_not_said_to_have_one(share, found):
    history = run("Adam", rate=1e-3, ratio=0.008, loss=learns())
    norm, ratio = history.layer("grad_norm").copy(), history.layer("update_ratio").copy()
    norm[:, 0] = share * history.total("grad_norm")
    ratio[:, 0] *= 0
    history = changed(history, per_layer={**history.per_layer, "grad_norm": norm, "update_ratio": ratio})
    assert [f.layers for f in weights_unchanged(history)] == [(history.layers[0],)] * found


@pytest.mark.parametrize(("height", "severity"), [(1.5, "note"), (6.0, "warning")])
def test_spikes_out_of_gradients_that_had_faded_are_a_note_up_to_the_size_that_these_began_with(height, severity):
    norm = np.where(np.isin(ROW, (300, 320, 340)), height, np.exp(-ROW / 20) + 1e-3)
    (found,) = spike(run("Adam", loss=learns(), grad_norm=norm, clipped_norm=norm))
    assert (found.severity, found.evidence["spikes"], found.evidence["recovered"]) == (severity, 3, "yes")
    (stuck,) = spike(run("Adam", loss=2 + learns(), grad_norm=norm, clipped_norm=norm))
    assert stuck.severity == "warning"


@pytest.mark.parametrize(
    ("seen", "root"),
    [({"rose_before": 8.0}, "lr-too-high"), ({}, "spike"), ({"rose_before": 8.0, "odd_batch": 9}, "spike")],
)
def test_steps_that_stand_out_while_the_norm_rises_are_those_that_are_too_long(seen, root):
    jumps = Finding("spike", "warning", (), 9, 21, {"spikes": 5, "recovered": "no", **seen})
    assert [f.rule for f in group([jumps, Finding("lr-too-high", "error", (), 13, 499)])] == [root]


@pytest.mark.parametrize(("before", "rose"), [([1.0] * 20, False), ([1.0] * 19 + [5.0], True), ([1.0] * 3, False)])
def test_whether_the_norm_rose_before_a_step_that_stands_out(before, rose):
    norms = np.r_[before, 100.0, np.ones(STEPS - len(before) - 1)] * (1 + 0.01 * NOISE)
    told = spike(changed(run(loss=2.3 + NOISE / 100), per_step={"grad_norm": norms, "loss": 2.3 + NOISE / 100}))
    assert ["rose_before" in found.evidence for found in told] == [rose] * len(told)
    assert told or len(before) == 3
