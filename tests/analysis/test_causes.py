"""Which cause a rule names where the record shows one: the scale's history, the schedule, the first steps, the loss."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from make_run import LAYERS, changed, make_history

from gradwatch.analysis.rules import diagnose
from gradwatch.analysis.rules.clipping import clip_is_your_learning_rate
from gradwatch.analysis.rules.dead_layers import dead_layer
from gradwatch.analysis.rules.finding import Finding
from gradwatch.analysis.rules.gradient_scale import gradients_accumulate, scaled_gradients
from gradwatch.analysis.rules.gradients import exploding
from gradwatch.analysis.rules.guard import too_few
from gradwatch.analysis.rules.initialisation import bad_initialisation
from gradwatch.analysis.rules.layer_facts import ends_in
from gradwatch.analysis.rules.long_steps import lr_too_high
from gradwatch.analysis.rules.losses import odd_batch
from gradwatch.analysis.rules.no_progress import no_progress
from gradwatch.analysis.rules.nonfinite import nonfinite
from gradwatch.analysis.rules.nonfinite_causes import meanwhile
from gradwatch.analysis.rules.outputs import activation_on_logits, softmax_twice
from gradwatch.analysis.rules.small_updates import _of_small_steps, update_too_small
from gradwatch.analysis.rules.spikes import spike
from gradwatch.analysis.rules.unchanged import weights_unchanged
from gradwatch.analysis.rules.weight_growth import weight_growth
from gradwatch.table import Table

STEPS = 400
NOISE = 0.1 * np.sin(np.arange(STEPS) * 1.7)


def run(optimizer="SGD", rate=0.1, ratio=None, status="FINISHED", modules=None, **columns):
    """A calm run with these columns of its steps; `ratio` is the update ratio of every layer when measured."""
    made = {"name": optimizer, "class": optimizer, "settings": {"lr": rate}}
    history = make_history(STEPS, clip=None, logged=(), optimizers=(made,), status=status, modules=dict(modules or {}))
    per_layer = dict(history.per_layer)
    if ratio is not None:
        per_layer["update_ratio"] = np.where(np.isnan(per_layer["update_ratio"]), np.nan, ratio).astype(np.float32)
    columns = {"lr": np.full(STEPS, rate), **columns}
    return changed(history, per_layer=per_layer, per_step={**history.per_step, **columns})


# -------------------------------------------------------------------------------------------------------- loss scale


def overflowed(scale):
    """Steps that a GradScaler dropped where its scale is halved in the next one."""
    dropped = np.append(np.diff(np.log2(scale)) < 0, False)
    norm = np.where(dropped, np.inf, 1.0)
    history = run(loss_scale=scale, skipped=dropped.astype(float), nonfinite=dropped.astype(float), grad_norm=norm)
    bad = np.where(dropped[:, None], np.array([1.0] + [0.0] * (len(LAYERS) - 1)), 0.0)
    return changed(history, per_layer={**history.per_layer, "nonfinite": bad.astype(np.float32)})


@pytest.mark.parametrize(
    ("scale", "words", "cure"),
    [
        (2.0 ** np.maximum(16 - np.arange(STEPS), -6), "halved down to 0.016, and numbers still", "bfloat16"),
        (2.0 ** (10 + np.arange(STEPS) // 20 % 2), "was doubled 10 times and halved 9 times", "growth_interval"),
        (2.0 ** np.maximum(16 - np.arange(STEPS), 8), "the loss scale is too high for these", "lower init_scale"),
    ],
)
def test_the_history_of_the_scale_says_why_steps_were_dropped(scale, words, cure):
    (found,) = nonfinite(overflowed(scale))
    assert words in found.cause
    assert cure in found.cure


def test_who_has_a_scaler_is_not_told_to_skip_steps():
    history = make_history(STEPS)
    scaled = changed(history, per_step={**history.per_step, "loss_scale": np.full(STEPS, 2.0**16)})
    assert meanwhile(history).startswith("SkipNonfinite() first in the chain drops such a step")
    assert meanwhile(scaled).startswith("The GradScaler drops such a step")


def test_a_scale_that_nothing_lowers_is_named():
    """As by `scaler.update(value)`, which sets it back."""
    steps = overflowed(2.0 ** (10 + np.arange(STEPS) // 20 % 2))
    held = changed(steps, per_step={**steps.per_step, "loss_scale": np.full(STEPS, 2.0**22)})
    (found,) = nonfinite(held)
    assert "The loss scale stays at 4.1943e+06 although steps are dropped" in found.cause
    assert "scaler.update()" in found.cure


def test_a_loss_that_is_multiplied_by_a_scale_is_told_from_the_first_look():
    looked = np.where(np.arange(STEPS) % 10 == 0, 1.0, np.nan)
    for factor, more, said in [
        (2.0**16, {}, ["warning"]), (1000.0, {}, []), (2.0**7, {}, []),
        (2.0**16, {"loss_scale": np.full(STEPS, 2.0**16)}, []),
    ]:  # fmt: skip
        history = run(loss=thrown(at=5, up=100.0), **{"in_loss/factor": factor * looked}, **more)
        found = [f for f in scaled_gradients(history) if "is multiplied by" in f.cause]
        assert [f.severity for f in found] == said, (factor, more)
    adam = run("Adam", loss=thrown(), **{"in_loss/factor": 2.0**16 * looked})
    assert [f.severity for f in scaled_gradients(adam)] == ["note"]


@pytest.mark.parametrize(("optimizer", "passes", "said"), [("SGD", 8, True), ("SGD", 2, False), ("Adam", 8, False)])
def test_steps_that_are_those_of_a_sum_over_micro_batches_say_so(optimizer, passes, said):
    looked = np.where(np.arange(STEPS) % 10 == 0, float(passes), np.nan)
    found = diagnose(run(optimizer, loss=thrown(at=5, up=100.0), **{"in_loss/summed": looked}))[0]
    assert (found.rule == "accumulation-not-averaged") == said
    assert said or found.rule in ("exploding", "lr-too-high")
    assert ("the sum of 8 backward passes" in found.cause, "(loss / 8).backward()" in found.cure) == (said, said)


# ---------------------------------------------------------------------------------------------------------- schedule


def test_a_warm_up_that_begins_anew_again_and_again_is_no_warm_up_that_is_too_long():
    (found,) = update_too_small(run(rate=0.1, ratio=1e-8, lr=1e-5 * (1 + np.arange(STEPS) % 8)))
    assert "begins anew again and again, 49 times, and comes to 8e-05 of the 0.1" in found.cause
    assert "scheduler.load_state_dict()" in found.cure
    (found,) = update_too_small(run(rate=0.1, ratio=1e-8, lr=1e-5 * (1 + np.arange(STEPS) / 50)))
    assert "never got there" in found.cause


def thrown(at=200, up=3.0):
    """A loss that falls, and jumps for good in one row."""
    row = np.arange(STEPS)
    return np.where(row < at, 2.3 - 2 * row / STEPS, up) + 0.1 * NOISE


ODDS = math.log(4)  # the last layer has four rows


@pytest.mark.parametrize(
    ("ratio", "then", "found"),
    [
        (0.3, 2.3, True),
        (0.3, 30.0, True),
        (0.1, 2.3, False),  # the first step was short
        (0.3, 0.3, False),  # it comes down again, as below the catapult's highest rate
        (0.3, ODDS, True),
        (0.3, 0.9 * ODDS, False),  # it learns something
        (0.3, 1.001 * ODDS, False),  # it began next to there
    ],
)
def test_a_loss_that_leapt_with_a_long_first_step_and_won_nothing_since(ratio, then, found):
    loss = np.where(np.arange(STEPS) < 3, [2.4, 9.0, 25.0, *[0] * (STEPS - 3)], then) + 0.01 * NOISE
    if then not in (2.3, 30.0, 0.3):  # half the leap, from a task before
        loss[:3] = np.array([11.3, 14.0, 16.0]) / (1 if then <= ODDS else 5)
    first = np.where(np.arange(STEPS) == 0, ratio, 0.01)
    leapt = run(loss=loss, ratio=first[:, None])
    told = [f for f in lr_too_high(leapt) if "leapt_to" in f.evidence]
    assert [f.first_step for f in told] == [0] * found
    assert [("rests at what equal odds give" in f.cause) for f in told] == [then == ODDS] * found


def test_a_schedule_that_raised_the_rate_before_is_named():
    raised = np.where(np.arange(STEPS) < 190, 0.01, 0.1)
    words = "At step 190 the schedule raised the learning rate from 0.01 to 0.1."
    for rule in (exploding, lr_too_high):
        (found,) = rule(run(loss=thrown(), lr=raised))
        assert words in found.cause
        assert not found.alternatives
        (other,) = rule(run(loss=thrown()))
        assert "the schedule" not in other.cause
    norm = np.where(np.arange(STEPS) == 200, 500.0, 1.0)
    assert words in spike(run(loss=thrown(up=1.3), lr=raised, grad_norm=norm))[0].cause


def test_a_warm_up_and_a_rise_long_before_are_not_named():
    for rate in (np.minimum(np.arange(STEPS) + 1, 200) / 2000, np.where(np.arange(STEPS) < 100, 0.01, 0.1)):
        (found,) = exploding(run(loss=thrown(), lr=rate))
        assert "the schedule" not in found.cause


# ------------------------------------------------------------------------------------------------------- first steps


def test_an_explosion_after_steps_that_an_adaptive_rate_made_too_long_names_the_rate_that_would_do():
    (found,) = exploding(run("Adam", rate=1.0, ratio=1.6, loss=thrown(at=5, up=100.0)))
    assert "change the weights by 160.0 % of their size already; under Adam 0.8 % is usual" in found.cause
    assert found.tries[0] == "--lr-scale 0.005"
    (found,) = exploding(run("Adam", rate=1.0, ratio=0.02, loss=thrown(at=5, up=100.0)))
    assert found.tries[0] == "--lr-scale 0.1"


def test_steps_that_are_long_are_not_called_usual_where_nothing_gets_better():
    (found,) = no_progress(run(ratio=6.6, loss=2.3 + NOISE))
    assert "changes the weights by 660.0 % of their size; under SGD 4.0 % is usual" in found.cause
    assert found.tries == ("--lr-scale 0.006",)


@pytest.mark.parametrize(("width", "found"), [(1, 0), (12, 1)])
def test_high_losses_in_a_random_order_are_noise_and_in_a_row_the_steps_that_throw_it(width, found):
    """The losses are the same ones, three tenths of them high: of single examples, a few of which are hard."""
    high = np.repeat(np.random.default_rng(4).random(-(-STEPS // width)) < 0.3, width)[:STEPS]
    loss = np.where(high, 3.0, 0.3) * (1 + 0.1 * NOISE)
    assert (
        len(lr_too_high(run("Adam", rate=0.001, ratio=0.004, loss=np.where(np.arange(STEPS) < 9, 2.0, loss)))) == found
    )


def test_a_loss_that_is_thrown_about_from_the_start_says_so_where_the_first_steps_were_far_too_long():
    wild = 2.3 + np.where(np.arange(STEPS) % 3 == 1, 20 * np.abs(np.sin(np.arange(STEPS) * 1.3)), 0)
    (found,) = lr_too_high(run("Muon", rate=1.0, ratio=1.6, loss=wild))
    assert (found.severity, found.tries[0]) == ("error", "--lr-scale 0.02")
    assert lr_too_high(run("Muon", rate=1.0, ratio=0.02, loss=wild)) == []
    (lower,) = lr_too_high(run("Muon", rate=1.0, ratio=1.6, loss=wild - 2 * np.arange(STEPS) / STEPS))
    assert (lower.severity, lower.cause.split(":")[0]) == ("warning", "The first step was far too long")
    assert lr_too_high(run("Muon", rate=1.0, ratio=1.6, loss=wild * np.geomspace(1, 0.05, STEPS))) == []  # it got there


def test_a_median_of_losses_that_is_high_but_once_is_noise_and_one_that_lasts_is_a_jump():
    row = np.arange(STEPS)
    calm = 2.0 + 0.01 * NOISE
    assert lr_too_high(run(loss=np.where(np.isin(row, (100, 102, 104, 106, 108)), 5.0, calm))) == []
    assert lr_too_high(run(loss=np.where((row >= 100) & (row < 109), 5.0, calm)))


def test_a_norm_that_leapt_after_calm_steps_is_bounded_first():
    norm = np.where(np.arange(STEPS) < 200, 1.0, 50.0)
    (leapt,) = exploding(run(loss=thrown(), grad_norm=norm))
    assert [option.split()[0] for option in leapt.tries][:2] == ["--clip", "--lr-scale"]
    (grown,) = exploding(run(loss=thrown(), grad_norm=np.exp(np.maximum(np.arange(STEPS) - 180, 0) / 8)))
    assert grown.tries[0].split()[0] == "--lr-scale"


# ------------------------------------------------------------------------------------------------------------- small

CREEPS = 2.3 - 0.15 * np.arange(STEPS) / STEPS + 0.02 * NOISE


@pytest.mark.parametrize(
    ("ratio", "loss", "found"),
    [
        (2e-4, CREEPS, True),
        (2e-3, CREEPS, False),  # steps of a usual size
        (2e-4, 2.15 + 0.15 * np.exp(-np.arange(STEPS) / 60) + 0.02 * NOISE, False),  # it came to its end
        (2e-4, CREEPS * np.linspace(1, 0.5, STEPS), False),  # it learns
    ],
)
def test_small_steps_under_a_loss_that_creeps_are_too_small(ratio, loss, found):
    assert bool(update_too_small(run(ratio=ratio, loss=loss))) == found


def test_a_warm_up_is_not_called_creeping():
    rate = np.linspace(0.01, 0.1, STEPS)
    assert update_too_small(run(ratio=2e-4, loss=CREEPS, lr=rate)) == []


def test_a_schedule_that_leaves_no_step_at_all_has_run_out():
    rate = 0.1 * 0.1 ** (np.arange(STEPS) // 10)
    history = run(ratio=np.where(np.arange(STEPS)[:, None] < 100, 0.01, 0.0), loss=1.2 + learns(), lr=rate)
    (found,) = update_too_small(history)
    assert (found.rule, found.evidence["lr_gone_at"]) == ("schedule-too-short", 20)
    assert "weights-unchanged" not in [f.rule for f in diagnose(history)]


def test_a_schedule_that_ran_out_is_said_though_the_loss_fell_before():
    rate = 0.1 * 0.9 ** np.arange(STEPS)
    falls = 1.2 + np.exp(-np.arange(STEPS) / 20)
    (found,) = update_too_small(run(ratio=0.01, loss=falls, lr=rate))
    assert found.cause.startswith("The schedule ran out: from step 66 on")
    assert (found.first_step, found.tries) == (70, ())  # the next step in which weights were measured
    late = np.where(np.arange(STEPS) < 300, 0.1, 1e-5)  # the end of a decay
    assert update_too_small(run(ratio=0.01, loss=falls, lr=late)) == []
    for cut, last, said in ((0.48, 1e-7, True), (0.52, 1e-7, False), (0.28, 1e-3, False)):  # one that stays is meant
        steps = np.arange(STEPS)
        rate = np.where(steps < cut * STEPS, 0.1, np.where(steps < 0.6 * STEPS, 1e-3, last))
        assert bool(update_too_small(run(ratio=0.005, loss=falls, lr=rate))) == said


# ------------------------------------------------------------------------------------------------------------- growth


@pytest.mark.parametrize(("begin", "grows", "found"), [(1.0, 20.0, True), (0.3, 20.0, False), (1.0, 5.0, False)])
def test_gains_that_run_away_are_weight_growth_and_no_constraint_is_advised(begin, grows, found):
    history = run(loss=2.3 + NOISE)
    layers = tuple(replace(layer, shape=(16,)) if layer.name == LAYERS[1] else layer for layer in history.run.layers)
    norm = history.layer("weight_norm").copy()
    norm[:, 1] = np.where(np.isnan(norm[:, 1]), np.nan, 4 * begin * np.geomspace(1, grows, STEPS))
    history = changed(history, per_layer={**history.per_layer, "weight_norm": norm})
    told = weight_growth(replace(history, run=replace(history.run, layers=layers)))
    assert bool(told) == found
    for finding in told:
        assert (finding.layers, finding.tries) == ((LAYERS[1],), ("--lr-scale 0.1",))
        assert "renorm" not in finding.cure


# -------------------------------------------------------------------------------------------------------------- words


def test_no_step_that_was_healthy_is_said_in_words():
    assert too_few(np.ones(1)).endswith("only 1 step was healthy, too few to take one from.")
    assert too_few(np.ones(3)).endswith("only 3 steps were healthy, too few to take one from.")
    assert too_few(np.ones(0)).endswith("no step was healthy.")


# -------------------------------------------------------------------------------------------------------------- loss

CLASSES = 4  # rows of the last layer of `make_history`, all of which are matrices
FLOOR = math.log(math.e + CLASSES - 1) - 1
SOFTMAX, LINEAR = {"0": "Linear", "1": "Softmax"}, {"0": "Softmax", "1": "Linear"}


def falls(to, steps=STEPS):
    """From the loss of even probabilities down to `to`, from above."""
    return to + (math.log(CLASSES) - to) * np.exp(-np.arange(steps) / 30) + 0.01 * np.abs(NOISE[:steps])


def test_a_loss_that_rests_on_the_floor_of_two_softmaxes_has_them():
    (found,) = softmax_twice(run(loss=falls(FLOOR)))
    assert (found.severity, found.alternatives, found.layers) == ("warning", (), LAYERS[-1:])
    assert found.evidence["lowest_possible"] == pytest.approx(FLOOR)
    assert diagnose(run(loss=falls(FLOOR)))[0].rule == "softmax-twice"


def test_a_dropout_made_after_the_normalisations_of_a_block_does_not_end_the_model():
    kinds = {"0": "Linear", "1": "Dropout"}
    assert ends_in(run(modules=kinds), "Dropout")
    assert not ends_in(run(modules={"a": "Linear", "b": "LayerNorm", "c": "Dropout", "d": "Dropout"}), "Dropout")


def test_a_model_that_ends_in_a_softmax_may_have_two():
    above = falls(FLOOR + 0.3)
    (found,) = softmax_twice(run(loss=above, modules=SOFTMAX))
    assert (found.severity, found.confidence, len(found.alternatives)) == ("warning", "possible", 2)
    assert softmax_twice(run(loss=above, modules=LINEAR)) == []
    assert softmax_twice(run(loss=above, modules=SOFTMAX, status="RUNNING")) == []


@pytest.mark.parametrize(
    "loss",
    [
        falls(FLOOR - 0.1),  # below what two softmaxes allow
        falls(FLOOR) + 1.0,  # begins elsewhere
        np.where(np.arange(STEPS) < 99, falls(FLOOR), np.nan),  # too few
    ],
)
def test_a_loss_that_two_softmaxes_do_not_give_is_left_alone(loss):
    assert softmax_twice(run(loss=loss, modules=SOFTMAX)) == []


def test_a_loss_that_comes_to_chance_from_above_and_no_further_is_no_progress():
    chance = math.log(CLASSES) + 0.01 * NOISE
    (found,) = no_progress(run(loss=chance + 0.4 * np.exp(-np.arange(STEPS) / 40)))
    assert "equal probabilities for all classes" in found.cause
    (rests,) = no_progress(run(loss=1.1 * chance + 0.4 * np.exp(-np.arange(STEPS) / 40)))
    assert "equal probabilities" not in rests.cause
    lower = np.where(np.arange(STEPS) % 100 > 80, 1.2, chance)  # it has been better
    assert no_progress(run(loss=lower + 0.4 * np.exp(-np.arange(STEPS) / 40))) == []


def test_a_bias_whose_gradient_is_0_but_for_rounding_is_not_said_to_stand_still():
    history = run(ratio=1e-3, loss=2.3 - np.arange(STEPS) / STEPS + NOISE)

    def rounded_away(at, shape):
        """The layer in this place gets gradients of the size of rounding errors, and does not move."""
        layers = tuple(replace(layer, shape=shape) if i == at else layer for i, layer in enumerate(history.run.layers))
        parts = {name: values.copy() for name, values in history.per_layer.items()}
        parts["grad_norm"][:, at] = 1e-9
        parts["update_ratio"][:, at] *= 0
        made = changed(history, per_layer=parts, per_step=history.per_step)
        return replace(made, run=replace(history.run, layers=layers))

    assert weights_unchanged(rounded_away(1, (16,))) == []
    (found,) = weights_unchanged(rounded_away(1, (4, 4)))
    assert found.layers == (LAYERS[1],)


# ---------------------------------------------------------------------------------------------------- goals and tasks


def learns(to=0.1):
    """A loss that falls."""
    return to + 2.2 * np.exp(-np.arange(STEPS) / 40) + 0.01 * NOISE


def test_a_training_loss_that_falls_alone_is_no_progress():
    seen = 8.0 + NOISE
    (found,) = no_progress(run(loss=learns(), val_loss=seen))
    assert (found.severity, found.evidence["metric"], found.confidence) == ("warning", "val_loss", "possible")
    assert "loss falls from" in found.cause
    assert no_progress(run(loss=learns(), val_loss=seen - learns())) == no_progress(run(loss=learns())) == []
    early = seen - 2 * np.exp(-(((np.arange(STEPS) - 140) / 40) ** 2))  # it was better once: that is over-fitting
    assert no_progress(run(loss=learns(), val_loss=early)) == []


def test_what_a_loss_does_is_a_note_where_another_metric_reaches_its_goal():
    grows = 0.5 + np.minimum(np.arange(STEPS) / 20, 6.0) + 0.1 * NOISE
    assert [f.severity for f in diagnose(run(loss=grows)) if f.evidence.get("metric") == "loss"] == ["error"]
    noted = diagnose(run(loss=grows, episode_return=1.0 + np.arange(STEPS) / 40))
    assert {f.severity for f in noted} == {"note"}


@pytest.mark.parametrize(("every", "rules"), [(1, (lr_too_high, exploding)), (6, (exploding,))])
def test_a_loss_that_rises_by_usual_steps_may_have_targets_that_grow(every, rules):
    at = np.arange(STEPS)
    risen = np.interp(at, [0, 60, STEPS], [1.0, 0.3, 4.0]) + NOISE / 100
    loss = np.where(at % every == every - 1, risen, np.nan)  # logged now and then
    for ratio, severity in ((0.004, "warning"), (0.05, "error")):
        found = [finding for rule in rules for finding in rule(run("Adam", rate=0.001, ratio=ratio, loss=loss))]
        assert [finding.severity for finding in found] == [severity] * len(rules)
        assert ("targets grow" in found[0].cause) == (severity == "warning" and every == 1)


def test_a_loss_that_rises_in_one_step_and_is_learnt_again_is_other_data():
    again = np.where(np.arange(STEPS) < 150, learns()[0:STEPS], np.roll(learns(), 150))
    (found,) = lr_too_high(run(loss=again))
    assert (found.severity, len(found.alternatives)) == ("note", 2)
    assert not [f for f in diagnose(run(loss=again)) if f.severity != "note"]
    norm = np.where((np.arange(STEPS) > 144) & (np.arange(STEPS) < 150), 20.0, 1.0)  # steps were long before
    (thrown_up,) = lr_too_high(run(loss=again, grad_norm=norm))
    assert thrown_up.alternatives == ()


@pytest.mark.parametrize(("begins", "open_causes"), [(100, 0), (200, 2)])
def test_attention_logits_that_had_grown_before_a_loss_rose_tell_of_the_steps(begins, open_causes):
    again = np.where(np.arange(STEPS) < 150, learns()[0:STEPS], np.roll(learns(), 150))
    history = run(loss=again)
    step = np.arange(0, STEPS, 10)
    logits = np.where(step < begins, 5.0, 300.0)[:, None].astype(np.float32)
    none, optimizer = np.zeros(len(step), np.int64), np.full(len(step), "SGD", object)
    table = Table(step, none, optimizer, {"logit_max": logits}, ("attn[0]",))
    (found,) = lr_too_high(replace(history, activations=table))
    assert len(found.alternatives) == open_causes
    assert found.evidence.get("logits_since") == (begins if open_causes == 0 else None)


def test_first_steps_of_half_the_weights_and_a_loss_that_comes_up_again_are_too_long():
    up = learns(1.8) + 1.0 * np.arange(STEPS) / STEPS
    assert [f.severity for f in lr_too_high(run("Adam", rate=0.1, ratio=0.9, loss=up))] == ["warning"]
    assert lr_too_high(run("Adam", rate=0.1, ratio=0.1, loss=up)) == []
    assert lr_too_high(run("Rprop", rate=0.1, ratio=0.9, loss=up)) == []  # its rate is that of the first step only
    assert lr_too_high(run("Adam", rate=0.1, ratio=0.9, loss=learns(1.8))) == []


# ------------------------------------------------------------------------------------------------------- beginnings


def weighing(times, history):
    """The history with every matrix's norm at `times[t]` that of its first step."""
    norm = history.layer("weight_norm")
    made = np.where(np.isnan(norm), np.nan, np.nanmax(norm[0]) * np.asarray(times)[:, None]).astype(np.float32)
    return changed(history, per_layer={**history.per_layer, "weight_norm": made})


OUT = np.minimum(1 + np.arange(STEPS) / 2, 12.0)  # six times in ten steps


def test_weights_that_run_away_in_their_first_steps_moved_too_far():
    history = run(ratio=0.01, loss=2.3 + NOISE)
    (found,) = lr_too_high(weighing(OUT, history))
    assert (found.severity, found.first_step) == ("error", 0)
    assert "most weights grew to 12 times their size" in found.cause
    assert lr_too_high(weighing(np.linspace(1, 2.5, STEPS), history)) == []
    assert lr_too_high(weighing(OUT, run(ratio=0.01, loss=learns()))) == []  # it succeeds all the same
    assert lr_too_high(weighing(OUT * 1e-3, history)) == []  # it begins next to 0: any step is long
    first = run("Adam", rate=0.1, ratio=0.9, loss=2.3 + NOISE)
    twice = np.minimum(1 + np.arange(STEPS) / 10, 2.5)
    assert [f.severity for f in lr_too_high(weighing(twice, first))] == ["error"]
    assert lr_too_high(weighing(twice, run("Adam", rate=0.1, ratio=0.9, loss=learns(0.5)))) == []
    one = changed(weighing(OUT, history), layers=("embed.weight",), per_layer={
        name: values[:, :1] for name, values in weighing(OUT, history).per_layer.items()
    })  # fmt: skip
    assert lr_too_high(one) == []  # nothing lies behind its only matrix: where it began says nothing


def test_weights_that_are_not_finite_did_not_outgrow_anything():
    lost = np.where(np.arange(STEPS) < 300, 1 + np.arange(STEPS) / 400, np.inf)
    assert lr_too_high(weighing(lost, run(ratio=0.01, loss=2.3 + NOISE))) == []
    slow = np.minimum(1 + np.arange(STEPS) / 50, 7.0)
    assert [f.evidence["growth"] for f in lr_too_high(weighing(slow, run(ratio=0.01, loss=2.3 + NOISE)))] == [7]


def test_weights_that_grow_in_a_training_that_succeeds_moved_no_too_far_where_its_loss_rose_in_between():
    row = np.arange(STEPS)
    rose = learns() + 1.5 * np.maximum(0, 1 - np.abs(row - 70) / 15)  # the peak of one cycle
    found = lr_too_high(weighing(OUT, run(ratio=0.01, loss=rose)))
    assert [(f.severity, "growth" in f.evidence) for f in found] == [("note", False)]


def test_a_rise_from_the_first_loss_on_is_a_note_where_the_training_succeeds():
    row = np.arange(STEPS)
    lucky = np.where(row == 0, 1.0, np.where(row < 60, 2.0, 0.3 + 1.7 * np.exp(-(row - 60) / 60))) * (1 + 0.05 * NOISE)
    assert [f.severity for f in lr_too_high(run(ratio=0.01, loss=lucky))] == ["note"]
    lost = np.where(row < 120, 1.0 + np.clip((row - 60) / 6, 0, 1), 0.6) * (1 + 0.01 * NOISE)
    assert [f.severity for f in lr_too_high(run(ratio=0.01, loss=lost))] == ["warning"]


def test_weights_begin_to_run_away_after_the_batch_that_threw_them():
    hit = np.arange(STEPS) == 18
    loss, norm = np.where(hit, 7e3, 2.3 + NOISE), np.where(hit, 3e3, 1.0)
    history = run(ratio=0.01, loss=loss + 40.0 * (np.arange(STEPS) > 18), grad_norm=norm)
    (root,) = diagnose(weighing(np.where(np.arange(STEPS) < 18, 1.0, 20.0), history))
    assert (root.rule, root.first_step, root.alternatives) == ("spike", 18, ())
    assert "The loss leapt in step 18 out of a calm, and the gradients leapt with it" in root.cause
    assert {"exploding", "lr-too-high"} <= {finding.rule for finding in root.consequences}


def test_a_batch_whose_gradients_are_not_finite_is_not_said_to_have_usual_ones():
    hit = np.arange(STEPS) == 100
    history = run(loss=np.where(hit, 1e30, 2.3 + NOISE), grad_norm=np.where(hit, np.inf, 1.0))
    (found,) = spike(history)
    assert "the gradients were not finite" in found.cause
    assert not found.cure.startswith("Nothing needs to change")


@pytest.mark.parametrize(("times", "found"), [(0.003, 1), (0.0125, 0)])
def test_tiny_weights_are_named_above_the_gradients_that_they_let_vanish(times, found, monkeypatch):
    vanishes = [Finding("vanishing", "error", ("0.weight",), 0, STEPS)]
    monkeypatch.setattr("gradwatch.analysis.rules.initialisation.vanishing", lambda history: vanishes)
    history = weighing(np.full(STEPS, times), run(ratio=0.01, loss=2 + learns(), modules={"0": "Linear"}))
    assert len(bad_initialisation(history)) == found


@pytest.mark.parametrize(
    ("times", "loss", "found"),
    [
        (40.0, 75 * np.exp(-np.arange(STEPS) / 90), "many times"),
        (0.003, 2 + learns(), "a small part of"),
        (0.003, learns(), ""),  # nearly all is learnt: tables of features begin so on purpose
        (1.0, 75 * np.exp(-np.arange(STEPS) / 90), ""),
    ],
)
def test_the_gain_that_weights_began_with_is_said(times, loss, found):
    told = bad_initialisation(weighing(np.full(STEPS, times), run(ratio=0.01, loss=loss, modules={"0": "Linear"})))
    assert bool(told) == bool(found)
    assert all(found in finding.cause for finding in told)
    norms = {"0": "Linear", "1": "LayerNorm"}
    told = bad_initialisation(weighing(np.full(STEPS, times), run(ratio=0.01, loss=learns(), modules=norms)))
    assert not told  # it succeeds


def begun(norms, *, ratio=0.01, kinds, first, loss=None):
    """A run of three layers of these root mean squares and classes; the first is a table of 40 rows and 64 columns."""
    plain = run(ratio=ratio, loss=learns() if loss is None else loss, modules=kinds)
    names, shapes = ("table.weight", "1.weight", "2.weight", "3.weight"), ((40, 64), (64,), (64,), first)
    kept = [plain.layers.index(name) for name in plain.layers[: len(names)]]
    layers = tuple(replace(plain.run.layers[i], name=n, shape=s) for i, n, s in zip(kept, names, shapes, strict=True))
    sizes = np.array([np.sqrt(np.prod(shape)) for shape in shapes]) * norms
    per_layer = {name: values[:, kept] for name, values in plain.per_layer.items()}
    at = np.where(np.isnan(per_layer["weight_norm"]), np.nan, sizes).astype(np.float32)
    made = changed(plain, layers=names, per_layer={**per_layer, "weight_norm": at})
    return replace(made, run=replace(made.run, layers=layers))


def choosing(history, entropy):
    """The same, whose loss chooses among ten classes and whose first cross-entropy is so large."""
    path = {"what": "path", "operations": "NllLoss LogSoftmax Addmm", "shapes": "1 64x10 64x10", "operands": "1 1 3"}
    seen = np.where(np.arange(len(history)) % 10 == 0, entropy, np.nan)
    history = changed(history, per_step={**history.per_step, "in_loss/cross_entropy": seen})
    return replace(history, run=replace(history.run, loss_graph=({**path, "layer": "3.weight"},)))


@pytest.mark.parametrize(("rms", "entropy", "found"), [(1.6, 28.0, True), (1.6, 6.0, False), (0.1, 28.0, False)])
def test_logits_that_are_far_apart_at_first_by_a_large_head_are_said_whatever_comes_of_it(rms, entropy, found):
    kinds = {"table": "Linear", "1": "LayerNorm", "2": "LayerNorm", "3": "Linear"}
    told = bad_initialisation(choosing(begun([0.07, 1.0, 1.0, rms], kinds=kinds, first=(10, 64)), entropy))
    assert [(f.layers, f.severity) for f in told] == [(("3.weight",), "warning")] * found


@pytest.mark.parametrize(("rms", "said", "found"), [(1.6, 300.0, True), (1.6, 9.0, False), (0.1, 300.0, False)])
def test_numbers_that_are_far_apart_at_first_by_large_weights_are_said_whatever_comes_of_it(rms, said, found):
    kinds = {"table": "Linear", "1": "LayerNorm", "2": "LayerNorm", "3": "Linear"}
    history = begun([0.07, 1.0, 1.0, rms], kinds=kinds, first=(10, 64))
    looked = np.where(np.arange(len(history)) % 10 == 0, 1.0, np.nan)
    seen = {"in_loss/predicted_std": said * looked, "in_loss/target_std": looked}
    told = bad_initialisation(changed(history, per_step={**history.per_step, **seen}))
    assert [(f.layers, f.evidence["times_the_targets"]) for f in told] == [(("3.weight",), said)] * found


@pytest.mark.parametrize(
    ("rms", "said", "last", "named"),
    [
        (1.0, 9.0, -9.0, ("table.weight",)),  # its products are as large as the root of its width
        (0.07, 9.0, -9.0, ()),
        (1.0, 9.0, 0.6, None),  # nearer than the mean after a quarter of the run
        (1.0, 2.0, -9.0, None),
        (1.0, 9.0, -200.0, None),  # it came apart
    ],
)
def test_numbers_that_stay_worse_than_the_mean_of_the_targets_for_most_of_a_run_began_too_far_apart(
    rms, said, last, named
):
    kinds = {"table": "Embedding", "1": "LayerNorm", "2": "LayerNorm", "3": "Linear"}
    history = begun([rms, 1.0, 1.0, 0.1], kinds=kinds, first=(10, 64))
    looked = np.where(np.arange(len(history)) % 10 == 0, 1.0, np.nan)
    explained = np.where(np.arange(len(history)) < len(history) // 4, -79.0, last) * looked
    seen = {"predicted_std": said * looked, "target_std": looked, "explained": explained}
    per_step = {f"in_loss/{name}": values for name, values in seen.items()}
    told = bad_initialisation(changed(history, per_step={**history.per_step, **per_step}))
    assert [f.layers for f in told] == ([] if named is None else [named])


@pytest.mark.parametrize(("entropy", "found"), [(60.0, True), (9.0, False)])
def test_logits_that_are_very_far_apart_at_first_without_large_weights_are_sums(entropy, found):
    kinds = {"table": "Linear", "1": "LayerNorm", "2": "LayerNorm", "3": "Linear"}
    told = bad_initialisation(choosing(begun([0.07, 1.0, 1.0, 0.1], kinds=kinds, first=(10, 64)), entropy))
    assert ["are added up, layer after layer" in f.cause for f in told] == [True] * found


GAINS = {"table": "Embedding", "1": "LayerNorm", "2": "LayerNorm", "3": "BatchNorm2d"}


@pytest.mark.parametrize(("gain", "ratio", "found"), [(0.02, 0.01, True), (1.0, 0.01, False), (0.02, 1.0, False)])
def test_gains_of_normalisations_that_began_next_to_0_are_said_and_not_those_that_began_at_0(gain, ratio, found):
    told = bad_initialisation(begun([0.02, gain, gain, gain], ratio=ratio, kinds=GAINS, first=(64,)))
    assert [f.layers for f in told] == ([("1.weight", "2.weight", "3.weight")] if found else [])


@pytest.mark.parametrize(
    ("rms", "rows", "last", "loss", "found"),
    [
        (1.0, 192, "GRU", 120.0, True),
        (0.02, 192, "GRU", 120.0, False),
        (1.0, 192, "GRU", 3.7, False),  # it begins at the logarithm of 40
        (1.0, 40, "GRU", 120.0, False),  # another matrix gives out the 40
        (1.0, 192, "Linear", 120.0, False),  # something else is given out
        (1.0, 192, "Embedding", 120.0, False),  # tables alone, as the factors of ratings
    ],
)
def test_a_table_of_unit_size_that_is_the_last_layer_too_is_said(rms, rows, last, loss, found):
    kinds = {"table": "Embedding", "3": last}
    of_losses = partial(begun, [rms, 0.1, 0.1, 0.1], kinds=kinds, first=(rows, 64))
    told = bad_initialisation(of_losses(loss=loss * np.exp(-np.arange(STEPS) / 300)))
    assert (
        bad_initialisation(of_losses(loss=loss * np.exp(-np.arange(STEPS) / 90))) == []
    )  # it came down by nine tenths
    assert [(f.layers, f.confidence) for f in told] == ([(("table.weight",), "possible")] if found else [])


@pytest.mark.parametrize(
    ("first", "last", "rows", "found"),
    [
        (31.0, 28.0, 40, True),
        (31.0, 28.0, 41, False),  # outputs of another number than the table has rows
        (31.0, 5.0, 40, False),
        (3.7, 3.5, 40, False),  # it begins at the logarithm of 40
    ],
)
def test_logits_of_tokens_that_are_sure_of_what_is_wrong_are_said(first, last, rows, found):
    kinds = {"table": "Embedding", "3": "Linear"}
    loss = np.geomspace(first, last, STEPS) + 0.01 * NOISE
    told = bad_initialisation(begun([0.1] * 4, kinds=kinds, first=(rows, 64), loss=loss))
    assert [(f.layers, f.confidence) for f in told] == ([(("3.weight",), "possible")] if found else [])
    tables = {"table": "Embedding", "3": "Embedding"}
    assert bad_initialisation(begun([0.1] * 4, kinds=tables, first=(rows, 64), loss=loss)) == []


def test_small_weights_are_said_beside_a_layer_that_nothing_ever_comes_into():
    """As the inputs of a decoder that is given zeros."""
    plain = run(ratio=0.01, loss=2 + learns(), modules={"0": "Linear"})
    norm = plain.per_layer["grad_norm"].copy()
    norm[:, plain.layers.index("head.weight")] = 0
    history = weighing(np.full(STEPS, 0.003), changed(plain, per_layer={**plain.per_layer, "grad_norm": norm}))
    assert [f.severity for f in dead_layer(history)] == ["note"]
    row = {"what": "input", "operation": "Addmm", "layer": "head.weight", "shape": "32x4"}
    of_data = replace(history, run=replace(history.run, loss_graph=(row,)))
    assert ["the data, all of which comes to them, is 0" in f.cause for f in dead_layer(of_data)] == [True]
    assert [f.severity for f in dead_layer(of_data)] == ["warning"]
    assert ["a small part of" in f.cause for f in bad_initialisation(history)] == [True]


def test_a_sum_of_gradients_that_bends_is_still_one():
    bent = 2.5 * np.arange(1, STEPS + 1) ** 0.75
    (found,) = gradients_accumulate(run(loss=2.3 + NOISE, grad_norm=bent))
    assert found.evidence["first_grad_norm"] == 2.5
    multiplied = np.minimum(1.18 ** np.arange(STEPS), 60) * np.exp(0.2 * NOISE)  # each batch changes it
    assert gradients_accumulate(run(loss=2.3 + NOISE, grad_norm=multiplied)) == []


def test_a_sum_of_gradients_that_grow_may_outrun_the_steps_if_it_is_smooth():
    rows = np.arange(STEPS)
    outruns = 0.3 + 0.001 * rows**1.8  # of gradients that grow too
    (found,) = gradients_accumulate(run(loss=2.3 + 3 * NOISE, grad_norm=outruns))
    assert found.first_step == 0
    assert gradients_accumulate(run(loss=2.3 + 0.8 * NOISE, grad_norm=outruns)) == []  # the losses are as smooth
    rough = outruns * np.exp(0.04 * np.cos(rows * 2.1))
    assert gradients_accumulate(run(loss=2.3 + 3 * NOISE, grad_norm=rough)) == []


def test_a_smooth_sum_is_one_also_where_the_net_finds_its_way_at_once_or_against_a_rival():
    steep = np.interp(np.arange(STEPS), [0, 10, 30, 36, 60, STEPS - 1], [0.2, 0.5, 3, 12, 24, 25])
    steep *= np.exp(0.01 * np.cos(np.arange(STEPS) * 2.1))
    (found,) = gradients_accumulate(run("Adam", loss=1.3 + 3 * NOISE, grad_norm=steep))
    assert found.severity == "error"
    assert gradients_accumulate(run("Adam", loss=1.3 + 0.3 * NOISE, grad_norm=steep)) == []  # the losses are as smooth
    late = np.interp(np.arange(STEPS), [0, 10, 100, STEPS - 1], [0.1, 1.5, 18, 42])
    judge = run("Adam", loss=1.3 + 3 * NOISE, grad_norm=late)
    judge = replace(judge, run=replace(judge.run, part="D"))
    assert [f.rule for f in gradients_accumulate(judge)] == ["gradients-accumulate"]
    rough = late * np.exp(0.04 * np.cos(np.arange(STEPS) * 2.1))
    assert gradients_accumulate(changed(judge, per_step={**judge.per_step, "grad_norm": rough})) == []


def test_weights_grow_where_half_of_it_in_decades_is_done():
    late = np.where(np.arange(STEPS) < 300, np.linspace(1, 4, STEPS), 4 * 2.0 ** ((np.arange(STEPS) - 300) / 8))
    (found,) = weight_growth(weighing(late, run(ratio=0.01, loss=2.3 + NOISE)))
    assert found.first_step > 300


def test_what_a_decay_took_explains_steps_that_are_long_beside_it():
    history = run(ratio=0.7, loss=2.3 + NOISE)
    late = np.where(np.arange(STEPS)[:, None] < 200, 0.01, history.layer("update_ratio")).astype(np.float32)
    late = np.where(np.isnan(history.layer("update_ratio")), np.nan, late)
    history = changed(history, per_layer={**history.per_layer, "update_ratio": late})
    roots = {root.rule: root for root in diagnose(weighing(0.97 ** np.arange(STEPS), history))}
    assert "update-too-large" in [finding.rule for finding in roots["weights-shrink"].consequences]


def test_a_loss_that_begins_as_if_all_outputs_were_alike_may_have_two_softmaxes():
    above = falls(FLOOR + 0.3)
    above[:6] = math.log(CLASSES) * (1 - 1e-4)
    whole = run(loss=above, modules=LINEAR)
    (found,) = softmax_twice(whole)
    assert (found.confidence, len(found.alternatives)) == ("possible", 2)
    assert softmax_twice(weighing(np.full(STEPS, 0.001), whole)) == []  # the last weights began next to 0


# ---------------------------------------------------------------------------------------------- outputs and settings


def test_a_loss_that_lies_where_two_sigmoids_have_it_may_have_two():
    sigmoid = {"0": "Linear", "1": "Sigmoid"}
    comes_to_half = 0.6935 + 0.23 * np.exp(-np.arange(STEPS) / 40)
    (found,) = activation_on_logits(run(loss=comes_to_half, modules=sigmoid))
    assert (found.confidence, "two of them" in found.cause) == ("possible", True)
    assert activation_on_logits(run(loss=comes_to_half, modules=LINEAR)) == []
    assert activation_on_logits(run(loss=comes_to_half - 0.23, modules=sigmoid)) == []  # begins as of one
    assert activation_on_logits(run(loss=comes_to_half + 0.1, modules=sigmoid)) == []  # above what even outputs give
    (rests,) = no_progress(run(loss=comes_to_half, modules=sigmoid))
    assert "equal probabilities" in rests.cause


@pytest.mark.parametrize(
    ("betas", "words"), [((0.999, 0.9), "are the wrong way round"), ((0.99, 0.999), "A momentum of 0.99 makes")]
)
def test_a_momentum_among_the_betas_is_named_as_one(betas, words):
    made = {"name": "Adam", "class": "Adam", "settings": {"lr": 0.001, "betas": list(betas)}}
    history = run("Adam", ratio=0.01, loss=learns())
    history = replace(history, run=replace(history.run, optimizers=(made,)))
    (found,) = weight_growth(weighing(np.linspace(1, 5, STEPS) ** 2, history))
    assert found.severity == "warning"
    assert words in found.cause


@pytest.mark.parametrize(("begin", "found"), [(1.0, 1), (0.01, 0)])
def test_weights_that_only_come_to_their_usual_size_do_not_run_away(begin, found):
    history = weighing(begin * np.linspace(1, 5, STEPS) ** 2, run(ratio=0.01, loss=2.3 + NOISE))
    assert len(weight_growth(history)) == found


def test_weights_at_ten_thousand_times_their_size_are_no_success():
    severe, mild = (
        weight_growth(weighing(np.geomspace(1, times, STEPS), run(ratio=0.01, loss=learns())))[0].severity
        for times in (2e4, 200)
    )
    assert (severe, mild) == ("warning", "note")


def test_a_batch_that_leaps_in_the_first_steps_is_a_spike_if_all_is_as_before_it():
    hit = np.arange(STEPS) == 5
    history = run(loss=np.where(hit, 2.5e9, 2.3 + NOISE), grad_norm=np.where(hit, 9e4, 1.0))
    (found,) = spike(history)
    assert (found.first_step, found.evidence["odd_batch"]) == (5, 5)
    gone = np.arange(STEPS) >= 5
    assert spike(run(loss=np.where(gone, 2.5e9, 2.3 + NOISE), grad_norm=np.where(gone, 9e4, 1.0))) == []
    after = np.where(gone & ~hit, np.nan, 0.0)  # it came apart
    apart = run(loss=np.where(hit, 2.5e9, 2.3 + NOISE) + after, grad_norm=np.where(hit, 9e4, 1.0) + after)
    assert odd_batch(apart) is None


# ------------------------------------------------------------------------------------------------- nothing left to do


def test_gradients_that_are_0_where_the_loss_came_to_rest_at_its_lowest_are_no_death():
    rests = np.maximum(16 - np.arange(STEPS) / 10, 0.3)
    zero = np.where(np.arange(STEPS)[:, None] > 160, 0.0, 1.0) * np.ones((1, len(LAYERS)))

    def dying(loss, **of_run):
        history = run(loss=loss, **of_run)
        return changed(history, per_layer={**history.per_layer, "grad_norm": zero.astype(np.float32)})

    assert dead_layer(dying(rests)) == []
    (found,) = dead_layer(dying(np.where(np.arange(STEPS) > 160, 3.0, rests)))  # it had been better
    assert found.severity == "error"
    (found,) = dead_layer(dying(np.where(np.arange(STEPS) > 160, 3.0, rests), ratio=0.08))  # twice a usual step
    assert "lower the learning rate to about 0.01 or warm it up" in found.cure


def test_weights_that_stand_still_where_the_gradients_are_next_to_nothing_have_converged():
    history = run("LBFGS", ratio=0.0, loss=-7.0 + 60 * np.exp(-np.arange(STEPS) / 2))
    norm = np.where(np.arange(STEPS) < 8, 20.0, 1e-4)
    per_step = {**history.per_step, "grad_norm": norm}
    assert weights_unchanged(changed(history, per_step=per_step)) == []
    assert weights_unchanged(history)  # gradients of their first size


def test_a_judge_that_knew_nothing_at_first_does_not_make_its_rival_explode():
    norm = 0.03 + 0.5 * np.minimum(np.arange(STEPS) / 20, 1.0) + np.where(np.arange(STEPS) == 300, 8.0, 0)
    loss = 0.8 + np.where(np.arange(STEPS) > 15, 0.5, 0) + np.where(np.arange(STEPS) == 200, 4.0, 0) + 0.1 * NOISE
    for steady, found in ((True, False), (False, True)):
        norms = norm if steady else norm * np.geomspace(1, 100, STEPS)
        alone = run(**{"loss/G": loss, "grad_norm": norms, "loss/D": np.full(STEPS, np.nan)})
        alone = changed(alone, optimizer=["SGD"] * STEPS)
        both = tuple({**alone.run.optimizers[0], "name": name} for name in "DG")
        lane = replace(changed(alone, optimizer=["G"] * STEPS), run=replace(alone.run, optimizers=both))
        assert bool(exploding(lane)) == found
        assert exploding(alone), "the loss of a run of its own that was never finite makes nobody its rival"


# -------------------------------------------------------------------------------------------------- a clip as the rate


def test_beside_muon_a_clip_is_the_rate_of_the_optimizer_whose_steps_it_shortens():
    made = [
        {"name": kind.lower(), "class": kind, "settings": {"lr": rate}} for kind, rate in (("Muon", 0.02), ("SGD", 0.3))
    ]
    history = run(clip_coef=np.full(STEPS, 0.1), **{"lr": np.full(STEPS, 0.02), "lr/1": np.full(STEPS, 0.3)})
    for optimizers, rates in ((made, (0.02, 0.3)), (made[::-1], (0.3, 0.02))):
        columns = dict(zip(("lr", "lr/1"), (np.full(STEPS, rate) for rate in rates), strict=True))
        told = replace(history.run, clip="ClipByGlobalNorm(0.1)", optimizers=tuple(optimizers))
        both = replace(changed(history, per_step={**history.per_step, **columns}), run=told)
        (found,) = clip_is_your_learning_rate(both)
        assert found.evidence["lr"] == 0.3
        assert "the real learning rate of SGD is 0.03, not 0.3" in found.cause
        assert "with SGD at lr=" in found.cure
        assert not any("lr-scale" in each for each in found.tries)  # which would change Muon's rate, too
    (found,) = clip_is_your_learning_rate(replace(history, run=replace(history.run, clip="ClipByGlobalNorm(0.1)")))
    assert "the real learning rates are 0.1 times what each param group has" in found.cause
    assert any("lr-scale" in each for each in found.tries)


def test_a_clip_of_some_layers_alone_is_no_learning_rate_of_the_others():
    columns = {"user_max_norm": 0.1, "user_grad_norm": 1.0, "user_clip_coef": 0.1, "lr": 0.3}
    for share, said in ((1.0, "the real learning rate is 0.03, not 0.3"), (0.5, "a part of the layers is clipped")):
        history = run(**{name: np.full(STEPS, value) for name, value in (columns | {"user_clip_share": share}).items()})
        (found,) = clip_is_your_learning_rate(history)
        assert said in found.cause
        assert ("with lr=" in found.cure) == (share == 1)


@pytest.mark.parametrize(("ratio", "tried"), [(1e-2, ["--lr-scale 4"]), (1e-4, ["--lr-scale 400", "--lr-scale 40"])])
def test_a_rate_that_is_tried_is_a_higher_one(ratio, tried):
    history = run("SGD", ratio=ratio, lr=np.full(STEPS, 0.01))
    assert list(_of_small_steps(history, ratio, 0.01).tries) == tried


def test_steps_that_are_too_small_are_those_of_numbers_too_where_they_are_all_there_is():
    history = run(ratio=1e-9, loss=2 + 0.01 * np.sin(np.arange(STEPS) * 1.7))
    numbers = tuple(replace(layer, shape=(16,)) for layer in history.run.layers)
    assert [f.rule for f in update_too_small(replace(history, run=replace(history.run, layers=numbers)))] == [
        "update-too-small"
    ]
