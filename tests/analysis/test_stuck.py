"""What is said of trainings that get nowhere, or not where they should: each by the record that shows it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from make_run import LAYERS, changed, make_history

from gradwatch.analysis.rules.activations import saturated
from gradwatch.analysis.rules.epsilon import below_epsilon
from gradwatch.analysis.rules.gradients import exploding
from gradwatch.analysis.rules.long_steps import lr_too_high
from gradwatch.analysis.rules.no_progress import no_progress
from gradwatch.analysis.rules.noise import noise_dominated
from gradwatch.analysis.rules.outputs import softmax_twice
from gradwatch.analysis.rules.progress import succeeds
from gradwatch.analysis.rules.registry import diagnose
from gradwatch.analysis.rules.rivals import both_won, generator_starves
from gradwatch.analysis.rules.small_updates import update_too_small
from gradwatch.analysis.rules.spikes import spike
from gradwatch.analysis.rules.unchanged import weights_unchanged
from gradwatch.analysis.rules.vanishing import vanishing
from gradwatch.analysis.rules.weight_growth import weights_shrink

STEPS = 400
ROW = np.arange(STEPS)
NOISE = np.sin(ROW * 1.7)
CHANCE = math.log(4)  # the last layer of `make_history` has four rows
FALLS = np.exp(-ROW / 60)


def run(optimizer="SGD", modules=None, part=None, layers=None, per_layer=None, settings=None, **columns):
    """A calm run with these columns of its steps and layers."""
    made = {"name": optimizer, "class": optimizer, "settings": {"lr": 0.1, **(settings or {})}}
    names = {} if layers is None else {"layers": layers}
    history = make_history(
        STEPS,
        clip=None,
        logged=(),
        optimizers=(made,),
        status="FINISHED",
        modules=dict(modules or {}),
        part=part,
        **names,
    )
    per_step = {**history.per_step, "lr": np.full(STEPS, 0.1), **columns}
    per_layer = {**history.per_layer, **(per_layer or {})}
    return changed(history, per_layer=per_layer, per_step=per_step)


def test_a_loss_that_stands_next_to_chance_is_no_progress_and_one_that_falls_on_is_not():
    (found,) = no_progress(run(loss=0.87 * CHANCE + 0.13 * CHANCE * FALLS + 0.005 * NOISE))
    assert found.cause.startswith("loss came to 1.207 and hardly any further")
    assert no_progress(run(loss=CHANCE * (1 - 0.2 * ROW / STEPS) + 0.005 * NOISE)) == []
    assert no_progress(run(loss=0.7 * CHANCE + 0.3 * CHANCE * FALLS + 0.005 * NOISE)) == []


@pytest.mark.parametrize(
    ("val_acc", "is_lost"),
    [
        ([0.5, 0.7, 0.8, 0.9, 0.95, 0.96, 0.02, 0.01, 0.01, 0.01], True),
        ([0.5, 0.7, 0.8, 0.9, 0.95, 0.96, 0.02, 0.5, 0.9, 0.95], False),  # a batch, and over
        ([0.5, 0.7, 0.9, 0.93, 0.94, 0.93, 0.9, 0.88, 0.86, 0.85], False),  # learnt by heart, little by little
        ([0.5, 0.7, 0.4, 0.8, 0.5, 0.9, 0.5, 0.4, 0.5, 0.6], False),  # moves so from value to value
        ([0.5, 0.7, 0.8, 0.9, 0.91, 0.92, 0.93, 0.94, 0.95, 0.96], False),
    ],
)
def test_what_is_measured_on_other_data_and_lost_at_once_is_said_with_its_step(val_acc, is_lost):
    """Whatever the training loss does, which learns the other data as well."""
    logged = np.full(STEPS, np.nan)
    logged[39::40] = val_acc
    found = no_progress(run(loss=0.05 + 2 * FALLS, val_acc=logged))
    assert bool(found) == is_lost
    if is_lost:
        assert (found[0].severity, found[0].first_step) == ("warning", 239)
        assert "val_acc had come to 0.95 by step 239, and stands at 0.01 from step 279 on" in found[0].cause


@pytest.mark.parametrize(("since", "back", "is_one"), [(330, 0.1, True), (370, 0.25, True), (370, 0.7, False)])
def test_a_loss_that_loses_most_of_what_it_had_won_at_the_very_end_is_no_success(since, back, is_one):
    assert succeeds(run(loss=0.05 + FALLS + back * (since < ROW) + 0.005 * NOISE)) is is_one


def test_an_accuracy_that_never_rises_is_no_progress_whatever_the_loss_does():
    flat, rising = 0.25 + 0.03 * NOISE, 0.25 + 0.6 * ROW / STEPS + 0.03 * NOISE
    (found,) = no_progress(run(loss=3 * FALLS + 0.3, accuracy=flat))
    assert found.evidence["metric"] == "accuracy"
    assert len(found.alternatives) == 2
    (found,) = no_progress(run(loss=NOISE - 3 * ROW, reward=flat))  # the loss has no scale
    assert found.evidence["metric"] == "reward"
    assert no_progress(run(loss=3 * FALLS + 0.3, accuracy=rising)) == []
    assert no_progress(run(loss=3 * FALLS + 0.3, accuracy=0.95 + 0.003 * NOISE)) == []  # it was good from the start


def test_a_loss_that_fell_and_rests_far_above_nothing_is_no_progress_and_one_that_falls_on_is_not():
    quick, small = np.exp(-ROW / 10), 0.02 * NOISE
    (found,) = no_progress(run(loss=3 + 6 * quick + small))
    assert found.cause.startswith("loss falls from 9 to ")
    assert "only the mean is learnt" in found.cause
    assert len(found.alternatives) == 2
    assert found.severity == "note"  # a third is left: a training whose targets have noise may end so
    assert no_progress(run(loss=6 + 3 * quick + small))[0].severity == "note"  # it got better by a third of the first
    assert no_progress(run(loss=8 + 1.7 * quick + small))[0].severity == "warning"
    for fine in (3 + 6 * np.exp(-ROW / 150), 0.4 + 6 * quick, 3 + 6 * quick - 0.002 * ROW):  # slower; nearer to 0; on
        assert no_progress(run(loss=fine + small)) == []
    assert no_progress(run(loss=3 + 6 * quick + small, accuracy=1 - quick + small)) == []  # it got there
    (found,) = no_progress(run(loss=3 + 6 * quick + small, kl=0.1 * quick + 1e-5))  # a term that vanished is no goal
    assert found.evidence["metric"] == "loss"


def test_a_loss_that_rests_explains_no_more_than_spikes_that_went_on():
    spiky = np.where(ROW % 60 == 59, 40.0, 8 + 1.7 * np.exp(-ROW / 10)) + 0.02 * NOISE
    norm = np.where(ROW % 60 == 59, 100.0, 1.0) + 0.02 * NOISE
    (root,) = [f for f in diagnose(run(loss=spiky, grad_norm=norm)) if f.severity != "note"]
    assert root.rule == "spike"
    assert "no-progress" in [f.rule for f in root.consequences]


@pytest.mark.parametrize(("began", "high"), [(1.3, 0.04), (1.3, 0.1), (4.0, 0.04)])
def test_noise_that_is_drawn_anew_holds_a_loss_somewhat_above_chance(began, high):
    above = CHANCE * (1 + high) + (began - 1 - high) * CHANCE * np.exp(-ROW / 30) + 0.1 * NOISE
    (found,) = no_progress(run(loss=above))
    assert "equal probabilities for all classes" in found.cause


def test_a_loss_next_to_log_2_is_chance_whatever_the_rows_of_the_last_layer():
    (found,) = no_progress(run(loss=math.log(2) * (1 + 0.1 * FALLS) + 0.01 * NOISE))
    assert "equal probabilities" in found.cause
    assert no_progress(run(loss=math.log(2) + 2 * np.exp(-ROW / 60) - 0.0004 * ROW)) == []  # it only passes by


def test_a_loss_of_large_targets_that_rests_at_a_small_part_is_a_warning_and_one_of_usual_size_is_a_note():
    rests = 0.1 + 0.9 * np.exp(-ROW / 10) + 0.002 * NOISE
    (found,) = no_progress(run(loss=20_000 * rests))
    assert (found.severity, found.confidence) == ("warning", "possible")
    assert "the targets" in found.cause
    assert no_progress(run(loss=5_000 * rests)) == []
    assert no_progress(run(loss=20_000 * np.exp(-ROW / 10) + 1)) == []
    (found,) = no_progress(run(loss=20_000 * rests, modules={"0": "Linear", "1": "ReLU"}))
    assert found.evidence["last_module"] == "ReLU"


@pytest.mark.parametrize(("until", "level", "said"), [(320, 1.0, True), (200, 1.0, False), (320, 1.2, False)])
def test_a_loss_that_leaves_equal_odds_late_is_no_progress_and_one_that_leaves_another_level_is_not(until, level, said):
    loss = level * CHANCE - 0.9 * np.maximum(ROW - until, 0) / (STEPS - until) + 0.005 * NOISE
    found = [f.evidence["left_at"] for f in no_progress(run(loss=loss)) if "left_at" in f.evidence]
    assert found == ([pytest.approx(until / STEPS, abs=0.05)] if said else [])


@pytest.mark.parametrize("last", ["ReLU", "Dropout", "Sigmoid", "Tanh"])
def test_a_last_module_that_takes_outputs_away_is_named_where_the_loss_stands(last):
    stands = 4 + 4 * np.exp(-ROW / 20)
    (found,) = no_progress(run(loss=stands, modules={"0": "Linear", "1": last}))
    assert found.evidence["last_module"] == last
    assert f"a {last}, takes away" in found.cause
    (found,) = no_progress(run(loss=stands, modules={"0": last, "1": "Linear"}))
    assert "last_module" not in found.evidence
    assert no_progress(run(loss=8 * FALLS + 0.01, modules={"0": "Linear", "1": last})) == []


def test_most_matrices_with_next_to_no_gradient_are_vanishing_though_there_is_no_line():
    names = ("memory.weight_ih", "memory.weight_hh", "head.weight")
    sizes = np.array([2e-7, 3e-7, 1.0], np.float32) * (1 + 0.1 * NOISE[:, None])
    stuck = {"loss": 2 + 0.1 * NOISE, "layers": names}
    (found,) = vanishing(run(**stuck, per_layer={"grad_norm": sizes.astype(np.float32)}))
    assert found.layers == names[:2]
    assert found.evidence["share_of_the_last"] == pytest.approx(3e-7, rel=0.1)
    even = {"grad_norm": (sizes**0.1).astype(np.float32)}
    assert vanishing(run(**stuck, per_layer=even)) == []
    learns = {"loss": 2 * FALLS, "layers": names}
    assert vanishing(run(**learns, per_layer={"grad_norm": sizes.astype(np.float32)})) == []


@pytest.mark.parametrize(
    ("comes_in", "falls", "found"), [(1e-5, False, True), (0.1, False, False), (1e-5, True, False)]
)
def test_what_is_lost_on_its_way_to_the_last_layer_shows_beside_its_bias(comes_in, falls, found):
    names = ("0.weight", "2.weight", "4.weight", "6.weight", "6.bias")
    sizes = np.tile(np.array([*[comes_in] * 4, 1.0], np.float32), (STEPS, 1))
    loss = 2 * FALLS if falls else 2 + 0.01 * NOISE
    history = run(loss=loss, layers=names, per_layer={"grad_norm": sizes})
    layers = (*history.run.layers[:-1], replace(history.run.layers[-1], shape=(4,)))
    told = vanishing(replace(history, run=replace(history.run, layers=layers)))
    assert ["lost on its way forward" in f.cause for f in told] == [True] * found


DEEP = tuple(f"{i}.weight" for i in range(9))
SHRINKS = 10.0 ** -np.linspace(4.5, 0, len(DEEP))  # from the last to the first, by half a decade each


@pytest.mark.parametrize(("waits", "decades", "found"), [(80, 1.0, True), (0, 1.0, False), (80, 0.3, False)])
def test_a_loss_that_waits_for_first_layers_without_a_gradient_is_said_though_they_get_one_later(waits, decades, found):
    loss = np.where(waits > ROW, 2.0, 2 * np.exp(-np.maximum(ROW - waits, 0) / 60)) + 0.001 * NOISE
    sizes = np.where(ROW[:, None] < 40, SHRINKS**decades, 1.0).astype(np.float32)
    told = vanishing(run(loss=loss, layers=DEEP, per_layer={"grad_norm": sizes}))
    assert [(f.layers, f.last_step) for f in told] == [(DEEP[:4], 39)] * found


@pytest.mark.parametrize(("alike", "found"), [(0.9999, True), (0.9, False)])
def test_less_of_a_decline_is_enough_where_the_last_layer_is_given_the_same_for_all(alike, found):
    sizes = np.tile(SHRINKS**0.75, (STEPS, 1)).astype(np.float32)
    looked = np.where(ROW % 20 == 0, 1.0, np.nan)
    seen = {"in_loss/end_alike": alike * looked, "in_loss/layer_of/end_alike": 8 * looked}
    told = vanishing(run(loss=2 + 0.01 * NOISE, layers=DEEP, per_layer={"grad_norm": sizes}, **seen))
    assert [f.evidence["decades"] for f in told] == [pytest.approx(3.4, abs=0.1)] * found


@pytest.mark.parametrize(
    ("optimizer", "decay", "said"), [("AdamW", 30.0, True), ("AdamW", 0.01, False), ("Adam", 30.0, False)]
)
def test_weights_that_a_strong_decay_halves_shrink(optimizer, decay, said):
    fades = make_history(STEPS).per_layer["weight_norm"] * (0.1 + 0.9 * FALLS[:, None]).astype(np.float32)
    history = run(optimizer, settings={"weight_decay": decay}, per_layer={"weight_norm": fades})
    assert [(f.rule, f.first_step) for f in weights_shrink(history)] == [("weights-shrink", 0)] * said
    learnt = run(optimizer, settings={"weight_decay": decay}, per_layer={"weight_norm": fades}, loss=0.01 + FALLS**4)
    assert [f.severity for f in weights_shrink(learnt)] == ["note"] * said


@pytest.mark.parametrize(("first", "said"), [(0.01, True), (30.0, False), (np.nan, False)])
def test_weights_that_come_back_from_a_long_first_step_do_not_shrink(first, said):
    plain = make_history(STEPS).per_layer
    ratio = np.where(ROW[:, None] == 0, first, plain["update_ratio"]).astype(np.float32)  # NaN: they began at 0
    fades = (plain["weight_norm"] * (0.02 + 0.98 * FALLS[:, None])).astype(np.float32)
    history = run(per_layer={"weight_norm": fades, "update_ratio": ratio})
    assert [f.rule for f in weights_shrink(history)] == ["weights-shrink"] * said


def test_a_schedule_that_ran_out_once_nothing_was_left_did_not_stop_the_training():
    rate = np.where(ROW < 50, 0.1, 1e-6)
    assert [f.rule for f in update_too_small(run(loss=2 + 0.1 * NOISE, lr=rate))] == ["schedule-too-short"]
    assert update_too_small(run(loss=np.where(ROW < 20, 2.0, 0.0), lr=rate)) == []


def test_a_loss_next_to_a_high_multiple_of_log_2_is_not_at_equal_odds():
    for batch, said in ((2**10, True), (2**61, False)):
        falls = math.log(batch) * (1 + 0.4 * np.exp(-ROW / 10))
        found = no_progress(run(loss=falls))
        assert any("equal probabilities for all classes" in f.cause for f in found) == said


def test_a_loss_that_came_back_after_a_spike_and_rises_later_is_no_error():
    loss = 2 * FALLS + 0.1 + 0.02 * NOISE + np.where(ROW == 200, 5.0, 0.0) + 0.6 * np.maximum(0, ROW - 300) / 100
    norm = np.where(ROW == 200, 50.0, 1.0) * (1 + 0.05 * NOISE)
    assert [f.severity for f in spike(run(loss=loss, grad_norm=norm))] != ["error"]
    stays = np.where(ROW > 200, 3.0, loss)
    assert [f.severity for f in spike(run(loss=stays, grad_norm=norm))] == ["error"]


def apart(rates, slow=1e-8, norm=2.0):
    """Weights of which most move by `slow` in a step and others as usual, with these rates of the groups."""
    ratio = make_history(STEPS).per_layer["update_ratio"]
    measured = np.where(np.isnan(ratio), np.nan, np.array([slow] * 5 + [0.01, 0.01])).astype(np.float32)
    columns = dict(zip(("lr", "lr/1"), (np.full(STEPS, rate) for rate in rates), strict=True))
    layers = {"update_ratio": measured, "weight_norm": np.where(np.isnan(ratio), np.nan, norm).astype(np.float32)}
    return run("Adam", per_layer=layers, loss=3 - ROW / STEPS, settings={"lr": 1e-3}, **columns)


def test_a_param_group_that_is_held_back_is_named_with_both_rates():
    (found,) = update_too_small(apart((1e-9, 1e-3)))
    assert len(found.layers) == 5
    assert "is 1e-09, of another 0.001" in found.cause
    assert update_too_small(apart((1e-3, 1e-3))) == []
    assert update_too_small(apart((1e-9, 1e-3), slow=1e-4)) == []  # weights that were trained before
    as_torch = math.sqrt(4 / 3)  # of [4, 4], each element between -1/2 and 1/2
    assert len(update_too_small(apart((1e-9, 1e-3), slow=1e-4, norm=as_torch))) == 1
    assert update_too_small(apart((1e-9, 1e-3), slow=1e-3, norm=as_torch)) == []


def test_weights_whose_own_group_has_next_to_no_rate_are_no_copies():
    """What their steps should be is by the rate of their group, not by the highest."""
    slow, fast = list(LAYERS[:3]), list(LAYERS[3:])
    groups = [{"settings": {"lr": rate}, "layers": layers} for rate, layers in ((1e-11, slow), (1e-3, fast))]
    made = {"name": "Adam", "class": "Adam", "settings": {}, "groups": groups}
    history = run("Adam", loss=3 - ROW / STEPS)
    still = np.where(np.isnan(history.per_layer["update_ratio"]), np.nan, [0.0] * 3 + [0.01] * (len(LAYERS) - 3))
    history = changed(
        replace(history, run=replace(history.run, optimizers=(made,))),
        per_layer={**history.per_layer, "update_ratio": still.astype(np.float32)},
        per_step={**history.per_step, "lr": np.full(STEPS, 1e-11), "lr/1": np.full(STEPS, 1e-3)},
    )
    (found,) = weights_unchanged(history)
    assert "it is rounded away. The learning rate of their param group is 1e-11." in found.cause
    assert found.cure == "Raise that rate by decades."
    assert found.evidence["lr"] == 1e-11


@pytest.mark.parametrize(
    ("dtype", "rate", "moved", "said"),
    [
        ("bfloat16", 1e-4, 0.3, True),
        ("bfloat16", 1e-4, 3.0, False),  # rounded by chance
        ("bfloat16", 1e-2, 0.3, False),
        ("float32", 1e-4, 0.3, False),
    ],
)
def test_a_rate_that_moves_only_the_smallest_of_weights_in_half_precision_is_rounded_away(dtype, rate, moved, said):
    """Adam moves each element by the rate at most; an eighth of a bfloat16's eps is 2**-10 of its size."""
    plain = run("Adam", settings={"lr": rate}, lr=np.full(STEPS, rate), loss=3 - ROW / STEPS)
    layers = tuple(replace(layer, dtype=dtype) for layer in plain.run.layers)
    sizes = np.sqrt([layer.numel for layer in layers]).astype(np.float32)  # weights of about 1
    known = ~np.isnan(plain.per_layer["weight_norm"])
    per_layer = {"weight_norm": np.where(known, sizes, np.nan), "update_ratio": np.where(known, moved * rate, np.nan)}
    history = changed(replace(plain, run=replace(plain.run, layers=layers)), per_layer={**plain.per_layer, **per_layer})
    found = weights_unchanged(history)
    assert [f.rule for f in found] == ["weights-unchanged"] * said
    assert not said or "smaller than bfloat16 can add to weights of this size" in found[0].cause


@pytest.mark.parametrize(("optimizer", "said"), [("Rprop", True), ("LBFGS", True), ("Adam", False)])
def test_an_optimizer_of_whole_batches_on_noisy_ones(optimizer, said):
    history = run(optimizer, loss=3 * FALLS + 1 + 0.5 * NOISE)
    assert [f.rule for f in noise_dominated(history)] == ["noise-dominated"] * said


def test_gradients_below_an_eps_that_nobody_raised_are_what_is_small():
    tiny = {name: np.full((STEPS, 7), 1e-10, np.float32) for name in ("grad_norm", "clipped_norm")}
    ratio = np.where(np.isnan(make_history(STEPS).per_layer["update_ratio"]), np.nan, 1e-5).astype(np.float32)

    def with_loss(loss):
        settings = {"eps": 1e-8, "betas": [0.9, 0.999]}
        return run("Adam", loss=loss, settings=settings, per_layer={**tiny, "update_ratio": ratio})

    still = with_loss(1 + 0.001 * NOISE)
    assert below_epsilon(still) == []
    (found,) = update_too_small(still)
    assert "What reaches the optimizer is small" in found.cause
    assert [f.rule for f in below_epsilon(with_loss(1e-4 * (1 + 0.001 * NOISE)))] == ["below-epsilon"]  # scaled down


@pytest.mark.parametrize(("most", "found"), [(0.07, False), (70.0, True)])
def test_a_term_that_grows_and_stays_below_what_the_loss_has_won_is_no_explosion(most, found):
    terms = {"loss": 0.6 * FALLS + 0.01, "loss_color": 1e-4 + most * (1 - FALLS)}
    assert len(exploding(run(**terms, grad_norm=1 + 30 * (1 - FALLS)))) == found


def test_a_rival_whose_loss_runs_off_has_come_apart():
    (found,) = exploding(run(part="critic", loss=8 + 40 * np.maximum(ROW - 100, 0) / 10 + NOISE))
    assert found.evidence["start"] == pytest.approx(8, abs=1.5)
    assert exploding(run(part="critic", loss=8 + ROW / 40 + NOISE)) == []
    score = -8 + 40 * np.maximum(ROW - 100, 0) / 10 + NOISE  # whose level says nothing by itself
    assert exploding(run(part="critic", loss=score)) == []
    assert exploding(run(part="critic", loss=score, grad_norm=np.linspace(1, 30, STEPS)))


@pytest.mark.parametrize(("end", "said"), [(0.5, ["lr-too-high"]), (0.001, [])])
def test_a_first_step_that_a_rival_won_by_was_not_too_long_for_it(end, said):
    ratios = np.full((STEPS, 7), 0.8, np.float32)
    losses = {"loss/D": 0.9 + (end - 0.9) * (1 - FALLS)}
    history = run("Adam", part="D", per_layer={"update_ratio": ratios}, settings={"lr": 0.1}, **losses)
    assert [f.rule for f in lr_too_high(history)] == said


@pytest.mark.parametrize(("kind", "said"), [("end_saturated", 0), ("saturated", 1)])
def test_a_rival_may_be_sure_at_once_and_its_inside_may_not_be_flat(kind, said):
    sampled = {f"in_loss/{kind}": np.ones(STEPS), f"in_loss/layer_of/{kind}": np.zeros(STEPS)}
    assert len(saturated(run(part="G", loss=1 + 0.1 * NOISE, **sampled))) == said
    assert len(saturated(run(loss=1 + 0.1 * NOISE, **sampled))) == 1  # of a model of its own either is


@pytest.mark.parametrize(("first", "left", "said"), [(0.3, 1e-4, 1), (0.1, 1e-4, 0), (0.3, 1e-2, 0)])
def test_first_steps_after_which_no_gradient_is_left_were_too_long(first, left, said):
    """A policy that chose for good in its first steps: its loss has no scale."""
    ratios = np.where(ROW[:, None] == 0, first, 1e-4) * np.ones(7)
    norms = np.where(ROW < 20, 1.0, left)
    columns = {"grad_norm": norms, "loss": np.where(ROW < 9, -0.1, 0.0) + 1e-3 * NOISE}
    assert len(lr_too_high(run("Adam", per_layer={"update_ratio": ratios.astype(np.float32)}, **columns))) == said


@pytest.mark.parametrize(
    ("differs", "said"),
    [
        ({}, 1),
        ({"lr": np.full(STEPS, 1e-3)}, 0),
        ({"loss": 2 + 2 * np.exp(-ROW / 100) + 0.01 * NOISE}, 0),  # it still falls
        ({"loss": 2 + 2 * np.exp(-ROW / 20) + 0.01 * NOISE}, 0),  # all there is to learn, it may be
        ({"loss": 2 + 2 * np.exp(-ROW / 20) + 0.01 * NOISE, "first": 0.2}, 1),
        ({"layers": LAYERS}, 0),
        ({"layers": [*LAYERS[:-1], "q.weight"]}, 0),  # the values of an agent
        ({"layers": [name.replace("attn", "attn.out_proj") for name in LAYERS]}, 1),
    ],
)
def test_attention_at_a_high_rate_of_adam_stands_where_it_began(differs, said):
    layers = [*(name.replace("attn", "query") for name in LAYERS[:-1]), "key.weight"]
    columns = {"layers": layers, "loss": 4 + 0.1 * NOISE, "lr": np.full(STEPS, 1e-2), "first": 0.05} | differs
    ratios = np.where(ROW[:, None] == 0, columns.pop("first"), 1e-2) * np.ones(len(LAYERS))
    history = run("Adam", per_layer={"update_ratio": ratios.astype(np.float32)}, **columns)
    assert ["attention" in f.cause for f in lr_too_high(history)] == [True] * said


@pytest.mark.parametrize(("betas", "said"), [((0.999, 0.9), ["warning"]), ((0.9, 0.999), []), ((0.95, 0.9), [])])
def test_betas_that_are_the_wrong_way_round_make_steps_too_long_from_the_start(betas, said):
    history = run("Adam", settings={"betas": list(betas)}, loss=3 + 0.1 * NOISE)
    assert [(f.severity, f.first_step) for f in lr_too_high(history)] == [(each, 0) for each in said]
    for left, learns in ((0.5, said), (0.05, [])):  # of the loss
        falls = run("Adam", settings={"betas": list(betas)}, loss=3 * (left + (1 - left) * FALLS) + 0.01 * NOISE)
        assert [f.severity for f in lr_too_high(falls)] == learns


@pytest.mark.parametrize(("loss", "severity"), [(8 - 12 * (1 - FALLS), "note"), (-8 + 0.02 * ROW, "warning")])
def test_a_spike_that_passed_is_a_note_where_a_likelihood_goes_on_to_rise(loss, severity):
    norm = np.where(ROW == 200, 20.0, 1.0) * (1 + 0.05 * NOISE)
    below_0 = np.where(ROW == 3, -1.0, loss) + 0.01 * NOISE
    assert [f.severity for f in spike(run(loss=below_0, grad_norm=norm, clipped_norm=norm))] == [severity]


def test_a_recurrent_network_that_begins_out_of_scale_explodes_along_time():
    sizes = np.where(np.arange(2) == 0, 1.0, 0.1) * (1e8 * np.exp(-ROW / 10) + 1)[:, None]
    columns = {"grad_norm": sizes[:, 0], "loss": 1e6 * np.exp(-ROW / 10) + 3}
    names = ("rnn.weight_hh_l0", "head.weight")
    (found,) = exploding(run(layers=names, per_layer={"grad_norm": sizes.astype(np.float32)}, **columns))
    assert (found.first_step, found.evidence["along"]) == (0, "time")
    other = ("body.weight", "head.weight")
    assert exploding(run(layers=other, per_layer={"grad_norm": sizes.astype(np.float32)}, **columns)) == []


def test_a_norm_that_rises_out_of_a_plateau_over_some_steps_is_no_spike():
    rises = np.where(ROW < 300, 1.0, np.minimum(1.2 ** np.maximum(ROW - 300, 0), 15.0))
    falls = np.where(ROW > 330, 2.0, rises) * (1 + 0.05 * NOISE)
    assert spike(run(grad_norm=falls)) == []
    assert len(spike(run(grad_norm=np.where(ROW == 330, 30.0, 1.0) * (1 + 0.05 * NOISE)))) == 1


def test_a_spike_that_passed_does_not_explain_that_nothing_got_better():
    norm = np.where(ROW == 200, 100.0, 1.0) * (1 + 0.05 * NOISE)
    ratio = np.where(np.isnan(make_history(STEPS).per_layer["update_ratio"]), np.nan, 0.03).astype(np.float32)
    per_layer = {"update_ratio": ratio}
    found = diagnose(run(grad_norm=norm, clipped_norm=norm, loss=2.5 + 0.05 * NOISE, per_layer=per_layer))
    assert {f.rule for f in found} == {"spike", "no-progress"}


def test_a_loss_that_fell_within_the_first_steps_is_not_dominated_by_noise():
    noisy = 1 + 0.9 * np.sign(NOISE)
    assert [f.rule for f in noise_dominated(run(loss=noisy, grad_norm=noisy))] == ["noise-dominated"]
    assert noise_dominated(run(loss=np.where(ROW == 0, 20.0, noisy), grad_norm=noisy)) == []
    assert noise_dominated(run(loss=noisy * CHANCE / 4, grad_norm=noisy)) == []  # it was learnt before the first step
    assert noise_dominated(run(loss=noisy, grad_norm=1 + 0.3 * NOISE)) == []  # no example weighs more than others
    for targets, said in ((64.0, True), (2.0, False)):  # the squared errors of two are as noisy by themselves
        alone = run(loss=noisy, grad_norm=noisy, **{"in_loss/targets": np.full(STEPS, targets)})
        assert bool(noise_dominated(alone)) == said


def test_what_is_left_of_a_loss_at_the_float_floor_is_no_noise_of_batches():
    noisy = 1 + 0.9 * np.sign(NOISE)
    assert [f.rule for f in noise_dominated(run("LBFGS", loss=3 * FALLS + noisy))] == ["noise-dominated"]
    assert noise_dominated(run("LBFGS", loss=3 * FALLS + 0.01 * noisy)) == []


def test_a_softmax_over_the_batch_is_told_by_where_the_loss_begins_and_by_the_last_bias():
    names, norms = ("body.weight", "head.weight", "head.bias"), np.array([0.1, 0.1, 1e-8], np.float32)
    loss = math.log(2) + (math.log(64) - math.log(2)) * np.exp(-((ROW / 100) ** 2))

    def with_norms(norms, loss=loss):
        history = run(layers=names, per_layer={"grad_norm": np.tile(norms, (STEPS, 1)).astype(np.float32)}, loss=loss)
        flat = tuple(replace(at, shape=(4,)) if at.name == "head.bias" else at for at in history.run.layers)
        return replace(history, run=replace(history.run, layers=flat))

    (found,) = softmax_twice(with_norms(norms))
    assert "dim=1" in found.cure
    assert softmax_twice(with_norms(np.array([0.1, 0.1, 0.1]))) == []
    assert softmax_twice(with_norms(norms, loss=3 * FALLS + 0.1)) == []
    assert softmax_twice(with_norms(norms, loss=6e5 * FALLS + 0.1)) == []  # a batch of that many rows there is not


def test_two_rivals_that_are_both_sure_are_on_one_side():
    (judge,) = generator_starves(run(part="D", loss=1.38 * 0.9**ROW))
    (maker,) = generator_starves(run(part="G", loss=0.69 * 0.9**ROW))
    (lost,) = generator_starves(run(part="G", loss=0.7 + 5 * np.minimum(ROW / 200, 1) + 0.05 * NOISE))
    found = both_won(judge, maker)
    assert (found.rule, found.evidence["ended"], len(found.alternatives)) == ("wrong-sign", maker.evidence["ended"], 2)
    assert both_won(judge, lost) is None  # as it is where the judge has won
    assert both_won(judge, generator_starves(run(part="E", loss=1.4 * 0.9**ROW))[0]) is None  # two of a kind
    assert both_won(replace(judge, rule="nonfinite"), replace(maker, rule="nonfinite")) is None


def test_a_part_whose_loss_rose_far_above_that_of_even_odds_has_lost():
    lost = 0.7 + 5 * np.minimum(ROW / 200, 1) + 0.05 * NOISE
    assert generator_starves(run(part="G", loss=np.where(ROW == 9, -0.1, lost))) == []  # no entropy is below 0
    (found,) = generator_starves(run(part="G", loss=lost))
    assert found.evidence["ended"] == pytest.approx(5.7, abs=0.1)
    assert generator_starves(run(part="G", loss=0.7 + 0.5 * ROW / STEPS + 0.05 * NOISE)) == []
    assert generator_starves(run(loss=lost)) == []  # it has no rival


def test_a_discriminator_that_is_sure_starves_its_rival_whatever_the_rival_logs():
    sure = 1e-5 + 1.38 * np.exp(-ROW / 8)
    (found,) = generator_starves(run(part="D", **{"loss/D": sure}))
    assert "tells all that its rival makes" in found.cause
    for fine in (sure + 0.4, 5.0 * np.exp(-ROW / 8)):  # it is in doubt; it is another loss
        assert generator_starves(run(part="D", **{"loss/D": fine})) == []
    of_values = {"what": "path", "operations": "MseLoss Addmm", "shapes": "1 8x1", "operands": "1 1", "layer": ""}
    critic = run(part="D", **{"loss/D": sure})
    assert generator_starves(replace(critic, run=replace(critic.run, loss_graph=(of_values,)))) == []


@pytest.mark.parametrize(
    ("rate", "severity"),
    [(np.where(ROW < 190, 0.001, 0.1), "note"), (np.full(STEPS, 0.1), "warning")],
)
def test_a_restart_that_shakes_a_training_which_succeeds_is_meant(rate, severity):
    hit = np.isin(ROW, [192, 193])
    norm = np.where(hit, 60.0, 1.0)
    columns = {"loss": 0.3 + 0.7 * FALLS + hit + 0.01 * NOISE, "grad_norm": norm, "clipped_norm": norm, "lr": rate}
    (found,) = spike(run(**columns))
    assert found.severity == severity


@pytest.mark.parametrize(
    ("end", "at", "after", "severity"),
    [
        (-2.0, 28, 0.0, "note"),
        (4.0, 28, 0.0, "warning"),
        (-2.0, 370, 5.0, "warning"),  # most of the run it had come down, and not since
    ],
)
def test_a_likelihood_that_descends_came_back_though_its_gradients_grow(end, at, after, severity):
    norms = np.interp(ROW, [0, STEPS], [4.0, 16.0]) * np.where(np.isin(ROW, [at, at + 7]), 60, 1) * (1 + 0.1 * NOISE)
    loss = end + (4.0 - end) * FALLS + 0.05 * NOISE + after * (at <= ROW)
    (found,) = spike(run(loss=np.where(ROW == 1, -0.01, loss), grad_norm=norms))
    assert found.severity == severity


@pytest.mark.parametrize(("first", "last", "said"), [(0.93, 0.94, False), (0.53, 0.533, True)])
def test_what_is_good_from_the_first_epoch_on_need_not_get_better(first, last, said):
    every = np.where(ROW % 13 == 12, first + (last - first) * ROW / STEPS, np.nan)
    found = no_progress(run(loss=0.6 * FALLS + 0.001, test_accuracy=every))
    assert ["learnt by heart" in f.cause for f in found] == [True] * said
