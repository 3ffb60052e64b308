"""What a cure says where the record shows more than the disease: the schedule, the layers between, what came near 0."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from make_run import LAYERS, changed, make_history
from test_causes import NOISE, STEPS, learns, run, thrown

from gradwatch.analysis.rules import diagnose
from gradwatch.analysis.rules.dead_layers import dead_layer
from gradwatch.analysis.rules.epsilon import below_epsilon
from gradwatch.analysis.rules.gradients import exploding
from gradwatch.analysis.rules.long_steps import lr_too_high
from gradwatch.analysis.rules.no_gradient import no_gradient
from gradwatch.analysis.rules.no_progress import no_progress
from gradwatch.analysis.rules.nonfinite import nonfinite
from gradwatch.analysis.rules.open_causes import reach
from gradwatch.analysis.rules.schedule_length import schedule_too_short
from gradwatch.analysis.rules.small_updates import update_too_small
from gradwatch.analysis.rules.spikes import spike

AT = np.arange(STEPS)
FLAT = 2.3 + NOISE


# ---------------------------------------------------------------------------------------------------------- schedules


def test_a_rate_that_is_cut_now_and_then_is_not_one_to_be_stretched():
    cut = 0.1 * 0.1 ** np.minimum(AT // 11, 7)
    (found,) = update_too_small(run(ratio=1e-9, loss=FLAT, lr=cut))
    assert "cut 7 times, at steps 11, 22, 33, 44 and so on" in found.cause
    assert "mode='min'" in found.cure
    (decays,) = update_too_small(run(ratio=1e-9, loss=FLAT, lr=0.1 * 0.9**AT))
    assert "cut" not in decays.cause
    assert "Stretch the schedule" in decays.cure
    assert "take the factor (gamma) to the power of 0.17." in decays.cure
    (straight,) = update_too_small(run(ratio=1e-9, loss=FLAT, lr=0.1 * np.maximum(1 - AT / 60, 1e-9)))
    assert "gamma" not in straight.cure
    (at_once,) = update_too_small(run(ratio=1e-9, loss=FLAT, lr=np.where(AT < 2, 0.1 * 0.5**AT, 1e-9 * 0.99**AT)))
    assert "Stretch the schedule" in at_once.cure
    assert "gamma" not in at_once.cure


@pytest.mark.parametrize(
    ("rate", "said", "tries"),
    [
        (np.full(STEPS, 1e-6), "load_state_dict", ("--lr-scale 100000",)),
        (np.full(STEPS, 0.01), "1 for the whole rate", ("--lr-scale 10",)),  # the square of what was set
        (np.linspace(1e-6, 1e-3, STEPS), "Shorten the warm-up", ()),
    ],
)
def test_a_rate_that_was_never_there_is_told_from_one_that_rises_too_slowly(rate, said, tries):
    set_to = 0.1 * (1 + 1e-9)
    schedule = partial(run, rate=set_to, loss=FLAT, lr=rate * (1 - 1e-3 * (rate == 0.01)))
    (found,) = update_too_small(schedule(ratio=1e-9))
    assert said in found.cure
    assert update_too_small(schedule(ratio=0.2)) == []  # its steps are long all the same
    assert found.tries == tries


def test_a_rate_below_0_is_the_cause_and_no_lower_one_the_cure():
    rate = 0.1 * (1 - AT / 180)
    found = diagnose(run(loss=thrown(), lr=rate))[0]
    assert (found.rule, found.tries) == ("schedule-too-short", ())
    assert "below 0 from step 181 on" in found.cause
    assert {"exploding", "lr-too-high"} & {f.rule for f in found.consequences}
    for other in (np.maximum(rate, 0), np.minimum(-rate, 0), -0.1 + 0 * rate):  # uphill at first, or meant so
        assert schedule_too_short(run(loss=thrown(), lr=other)) == []


# --------------------------------------------------------------------------------------------------------- dead layers


def without(layers, since=0, **options):
    """A run in which no gradient reaches these layers from a row on."""
    history = run(loss=options.pop("loss", FLAT), **options)
    norm = history.layer("grad_norm").copy()
    norm[since:, np.isin(history.layers, layers)] = 0
    return changed(history, per_layer={**history.per_layer, "grad_norm": norm})


def test_where_no_gradient_has_come_the_cure_names_the_layers_between_which_it_ends():
    (found,) = dead_layer(without(LAYERS[:3]))
    assert "between `blocks.0.mlp` and `blocks.1.attn`" in found.cure
    assert "(y - x).detach()" in found.cure
    (last,) = dead_layer(without(LAYERS[1:3]))
    assert "between them and the loss" in last.cure


@pytest.mark.parametrize(
    ("layers", "dead", "rule"),
    [
        (("actor.0", "actor.2", "critic.0", "critic.2"), 2, "no-gradient"),  # all that the actor gives out
        (("body.0", "body.2", "body.4", "head.0"), 2, "dead-layer"),  # units behind which others live
        (("one", "critic.0", "critic.2", "critic.4"), 1, "dead-layer"),
        (("0", "2", "4", "6"), 2, "dead-layer"),
    ],
)
def test_a_part_that_no_gradient_ever_comes_to_is_not_called_dead(layers, dead, rule):
    history = make_history(STEPS, layers=tuple(f"{name}.weight" for name in layers))
    norm = history.layer("grad_norm").copy()
    norm[:, :dead] = 0
    (found,) = dead_layer(changed(history, per_layer={**history.per_layer, "grad_norm": norm}))
    assert found.rule == rule
    assert ("this part of the model" in found.cause) == (rule == "no-gradient")


@pytest.mark.parametrize(("bias", "rule"), [(-4.2, "bad-initialisation"), (0.5, "dead-layer")])
def test_biases_that_let_nothing_through_are_what_layers_began_with(bias, rule):
    layers = ("0.weight", "0.bias", "2.weight", "2.bias")
    history = make_history(STEPS, layers=layers)
    norm, size = history.layer("grad_norm").copy(), history.layer("weight_norm").copy()
    norm[:, :3] = 0  # one reaches the last bias alone
    size[:, 1] = np.where(np.isnan(size[:, 1]), np.nan, abs(bias) * 2)
    shapes = tuple(replace(layer, shape=(4,) if "bias" in layer.name else (4, 4)) for layer in history.run.layers)
    per_layer = {**history.per_layer, "grad_norm": norm, "weight_norm": size}
    (found,) = dead_layer(replace(changed(history, per_layer=per_layer), run=replace(history.run, layers=shapes)))
    assert found.rule == rule
    assert ("biases began far from 0, those of `0` by 4.2" in found.cause) == (rule == "bad-initialisation")


@pytest.mark.parametrize(("operations", "rule"), [("Mean Sub Addmm", "no-gradient"), ("Mean Relu Addmm", "dead-layer")])
def test_a_head_right_behind_the_loss_that_no_gradient_comes_to_is_not_called_dead(operations, rule):
    layers = ("trunk.0.weight", "trunk.2.weight", "mean.weight", "spread.weight")
    path = {"what": "path", "operations": operations, "shapes": "1 8x1 8x1", "operands": "1 1 3", "layer": layers[2]}
    history = make_history(STEPS, layers=layers, loss_graph=(path,))
    norm = history.layer("grad_norm").copy()
    norm[:, 2] = 0
    (found,) = dead_layer(changed(history, per_layer={**history.per_layer, "grad_norm": norm}))
    assert (found.rule, found.layers) == (rule, layers[2:3])


RECTIFIED = {"0": "Linear", "1": "ReLU", "2": "Linear", "3": "ReLU", "4": "Linear"}
NET = ("0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias")


@pytest.mark.parametrize(
    ("kinds", "zero", "found"),
    [
        (RECTIFIED, [1, 3, 5], True),
        (RECTIFIED, [5], False),  # a loss of differences knows no constants
        ({**RECTIFIED, "1": "Tanh", "3": "Tanh"}, [1, 3, 5], False),
    ],
)
def test_a_loss_of_derivatives_of_a_net_of_relus_moves_no_bias(kinds, zero, found):
    history = make_history(STEPS, layers=NET, modules=kinds)
    norm = history.layer("grad_norm").copy()
    norm[:, zero] = 0
    told = dead_layer(changed(history, per_layer={**history.per_layer, "grad_norm": norm}))
    assert [(f.severity, f.layers) for f in told] == [("warning", ("0.bias", "2.bias"))] * found
    assert all("derivatives of the network alone" in f.cause for f in told)


MANY = tuple(f"{i}.weight" for i in range(12))


@pytest.mark.parametrize(("end", "severity"), [(0.2, "note"), (2.2, "warning")])
def test_one_layer_of_many_without_a_gradient_is_a_note_where_the_training_succeeds(end, severity):
    history = make_history(STEPS, layers=MANY, logged=("loss",))
    norm = history.layer("grad_norm").copy()
    norm[:, 0] = 0
    history = changed(history, per_step={**history.per_step, "loss": np.linspace(2.2, end, STEPS)})
    (found,) = dead_layer(changed(history, per_layer={**history.per_layer, "grad_norm": norm}))
    assert found.severity == severity
    norm[:, 0] = np.nan
    (found,) = no_gradient(changed(history, per_layer={**history.per_layer, "grad_norm": norm, "nonfinite": 0 * norm}))
    assert (found.rule, found.severity, found.layers) == ("no-gradient", severity, MANY[:1])


def test_a_recurrence_whose_state_is_never_handed_on_has_no_gradient():
    layers = ("rnn.weight_ih_l0", "rnn.weight_hh_l0", "rnn.bias_ih_l0", "rnn.bias_hh_l0", "out.weight")
    history = make_history(STEPS, layers=layers)
    norm = history.layer("grad_norm").copy()
    norm[:, 1] = 0
    (found,) = dead_layer(changed(history, per_layer={**history.per_layer, "grad_norm": norm}))
    assert (found.rule, found.severity, found.layers) == ("no-gradient", "warning", layers[1:2])
    assert "the state that they are given is 0" in found.cause


def test_a_product_of_zeros_is_a_bad_beginning():
    history = make_history(STEPS, layers=("down.weight", "up.weight"))
    nothing = np.zeros_like(history.layer("grad_norm"))
    columns = {"grad_norm": nothing, "weight_norm": np.where(np.isnan(history.layer("weight_norm")), np.nan, 0.0)}
    (found,) = dead_layer(changed(history, per_layer={**history.per_layer, **columns}))
    assert (found.rule, found.severity, found.layers) == ("bad-initialisation", "error", ())
    columns["weight_norm"][:, 1] = history.layer("weight_norm")[:, 1]
    (found,) = dead_layer(changed(history, per_layer={**history.per_layer, **columns}))
    assert (found.rule, found.layers) == ("bad-initialisation", ("down.weight",))


def test_a_bias_that_is_reached_where_its_weight_is_not_says_that_nothing_comes_in():
    layers = ("0.weight", "0.bias", "2.weight", "2.bias")
    history = make_history(STEPS, layers=layers)
    norm = history.layer("grad_norm").copy()
    norm[:, :3] = 0
    (found,) = dead_layer(changed(history, per_layer={**history.per_layer, "grad_norm": norm}))
    assert "one reaches the bias of `2`: all that comes into it is 0" in found.cause
    assert "Look at what is given to `2`" in found.cure
    recurrent = make_history(STEPS, layers=("0.weight", "2.weight_ih_l0", "2.weight_hh_l0", "2.bias_ih_l0"))
    norm = recurrent.layer("grad_norm").copy()
    norm[:, :2] = 0
    (other,) = dead_layer(changed(recurrent, per_layer={**recurrent.per_layer, "grad_norm": norm}))
    assert "reaches the bias" not in other.cause


def test_a_relu_behind_the_last_layer_is_taken_away():
    modules = {"0": "Linear", "1": "ReLU", "2": "Linear", "3": "ReLU"}
    (found,) = dead_layer(without(LAYERS, since=100, modules=modules))
    assert found.cure.startswith("Take the ReLU out")
    (other,) = dead_layer(without(LAYERS, since=100, modules={"0": "ReLU", "1": "Linear"}))
    assert other.tries == ("--lr-scale 0.1", "--warmup 80")


def test_a_loss_that_began_far_above_chance_asks_for_inputs_of_unit_size_first():
    for scale, said in ((1, False), (100, True)):
        (found,) = dead_layer(without(LAYERS, since=100, loss=scale * FLAT))
        assert ("unit size" in found.cure) == said
        (found,) = exploding(run(loss=scale * thrown(at=5, up=100.0)))
        assert ("unit size" in found.cure) == said


def test_a_first_step_that_was_too_long_names_the_rate_that_would_do():
    (found,) = dead_layer(without(LAYERS, since=100, ratio=4.0))
    assert found.tries[0] == "--lr-scale 0.01"
    assert "about 0.001" in found.cure


# ---------------------------------------------------------------------------------------------------------- nonfinite


def ruined(history, row=200):
    """The same with a NaN in all gradients from a row on."""
    bad = np.where(AT[:, None] >= row, np.nan, history.layer("grad_norm")).astype(np.float32)
    counts = np.where(np.isnan(bad), 1, 0).astype(np.float32)
    steps = {"grad_norm": np.where(row > AT, 1.0, np.nan), "nonfinite": counts.sum(axis=1).astype(float)}
    per_layer = {**history.per_layer, "grad_norm": bad, "nonfinite": counts}
    return changed(history, per_layer=per_layer, per_step={**history.per_step, **steps})


def test_weights_of_float16_are_not_sent_to_a_scaler_that_refuses_them():
    history = ruined(run(loss=FLAT))
    layers = tuple(replace(layer, dtype="float16") for layer in history.run.layers)
    (found,) = nonfinite(replace(history, run=replace(history.run, layers=layers)))
    assert "autocast" in found.cure
    (at_once,) = nonfinite(ruined(replace(run(loss=FLAT, ratio=30.0), run=replace(history.run, layers=layers)), row=1))
    assert at_once.evidence["after"] == "float16"  # no step was that long: it was divided by 0
    few = (layers[0], *history.run.layers[1:])
    (other,) = nonfinite(replace(history, run=replace(history.run, layers=few)))
    assert "init_scale" in other.cure


@pytest.mark.parametrize(("left", "said"), [(0.1, True), (0.9, False)])
def test_a_vector_that_came_near_0_before_is_named(left, said):
    history = run(loss=FLAT)
    norm = history.layer("weight_norm").copy()
    norm[:, 1] *= np.linspace(1, left, STEPS)[np.minimum(2 * AT, STEPS - 1)] / (1 + AT / STEPS)
    layers = tuple(
        replace(layer, name="spread", shape=(4,)) if i == 1 else layer for i, layer in enumerate(history.run.layers)
    )
    names = ("embed.weight", "spread", *LAYERS[2:])
    history = changed(history, layers=names, per_layer={**history.per_layer, "weight_norm": norm})
    history = replace(history, run=replace(history.run, layers=layers))
    (found,) = nonfinite(ruined(history))
    assert ("Learn the logarithm of spread" in found.cure) == said


# --------------------------------------------------------------------------------------------------------- no progress


def slow(steps=STEPS, **options):
    """A run in which nothing gets better, with steps of a usual size in one direction."""
    history = run(ratio=0.02, loss=FLAT, **options)
    at = np.isfinite(history.layer("update_ratio"))
    away = np.where(at, 0.02 * 10, np.nan).astype(np.float32)  # measured in every tenth step
    return changed(history, per_layer={**history.per_layer, "displacement": away})


def with_gradients(history, factor):
    scaled = {name: history.layer(name) * np.float32(factor) for name in ("grad_norm",)}
    return changed(history, per_layer={**history.per_layer, **scaled})


def test_steps_that_could_not_have_lowered_the_loss_ask_for_a_higher_rate():
    history = slow()
    usual = reach(history)
    lengths = history.layer("update_ratio").astype(float) * history.layer("weight_norm")
    at = np.isfinite(lengths).any(axis=1)
    by_hand = (lengths * history.layer("clipped_norm"))[at].sum() / at.sum() * STEPS
    assert usual == pytest.approx(by_hand, rel=1e-5)
    (open_,) = no_progress(history)
    assert open_.tries == ()
    (found,) = no_progress(with_gradients(history, 2.3e-3 / usual))
    assert found.tries == ("--lr-scale 100", "--lr-scale 10")
    assert "to about 10.0" in found.cure
    assert found.evidence["reach"] == pytest.approx(2.3e-3, rel=1e-4)


@pytest.mark.parametrize(
    ("kind", "shape", "said"), [("LayerNorm", (1,), True), ("LayerNorm", (4,), False), ("Linear", (1,), False)]
)
def test_a_norm_over_one_feature_is_named(kind, shape, said):
    history = slow(modules={"head": kind})
    layers = tuple(replace(layer, shape=shape) if layer.name == "head.bias" else layer for layer in history.run.layers)
    (found,) = no_progress(replace(history, run=replace(history.run, layers=layers)))
    assert ("`head` is a LayerNorm over one feature" in found.cause) == said


@pytest.mark.parametrize(("began", "said"), [(10.0, True), (1.0, False)])
def test_biases_that_begin_far_from_0_are_named(began, said):
    history = slow()
    layers = tuple(replace(layer, shape=(4,)) if layer.name == "head.bias" else layer for layer in history.run.layers)
    norm = history.layer("weight_norm").copy()
    norm[:, -1] *= 2 * began / norm[0, -1]  # of four elements
    history = changed(history, per_layer={**history.per_layer, "weight_norm": norm})
    (found,) = no_progress(replace(history, run=replace(history.run, layers=layers)))
    assert ("Begin head.bias at 0" in found.cure) == said


def test_batch_norms_are_said_to_mix_rows_themselves():
    assert "BatchNorm" in no_progress(slow(modules={"0": "BatchNorm1d"}))[0].cure
    assert "BatchNorm" not in no_progress(slow(modules={"0": "LayerNorm"}))[0].cure


# ------------------------------------------------------------------------------------------------------- longer steps


@pytest.mark.parametrize(("reaches", "said"), [(30.0, True), (1.5, False)])
def test_what_is_added_behind_the_loops_own_clip_comes_before_the_rate(reaches, said):
    own = {"user_max_norm": np.ones(STEPS), "user_grad_norm": np.full(STEPS, 2.0),
           "user_clip_share": np.ones(STEPS)}  # fmt: skip
    (found,) = exploding(run(loss=thrown(), grad_norm=np.full(STEPS, reaches), **own))
    assert ("1/30 or less" in found.cure) == said
    assert bool(found.tries) != said


@pytest.mark.parametrize(("share", "direct", "said"), [(1.0, 0.3, True), (0.5, 0.3, False), (1.0, 1.0, False)])
def test_an_adam_whose_steps_are_all_as_long_as_the_rate_is_made_anew_in_each(share, direct, said):
    """Whatever the loss does. Straight on they lead where all gradients have one sign: that is as it should be."""

    def stepping(loss):
        history = run("Adam", rate=0.01, loss=loss)
        layers = tuple(replace(layer, shape=(16, 16)) for layer in history.run.layers)
        ratio = share * 0.01 * 16 / history.layer("weight_norm")
        moved = {"update_ratio": np.float32(ratio), "displacement": np.float32(direct * 10 * ratio)}
        history = changed(history, per_layer={**history.per_layer, **moved})
        return replace(history, run=replace(history.run, layers=layers))

    (found,) = lr_too_high(stepping(thrown()))
    assert ("Build the optimizer once" in found.cure) == said
    assert bool(found.tries) != said
    assert [f.severity for f in lr_too_high(stepping(learns()))] == ["warning"] * said


# --------------------------------------------------------------------------------------------------- what did not help


def test_a_mild_spike_after_which_the_loss_came_back_asks_for_no_clip():
    for height, asked in ((15.0, False), (60.0, True)):
        norm = np.where(AT == 200, height, 1.0)
        (found,) = spike(run(loss=FLAT, grad_norm=norm, clipped_norm=norm))
        assert bool(found.tries) == asked


@pytest.mark.parametrize(
    ("begins", "lasts", "asked"), [((60, 110, 160, 210), 12, False), ((60, 110, 160, 210), 4, True), ((110,), 12, True)]
)
def test_long_stretches_of_a_higher_loss_that_come_again_are_data_to_learn_and_not_to_clip(begins, lasts, asked):
    """Short ones, or a single one, may be what an odd batch left behind."""
    stretch = np.isin(AT, [begin + i for begin in begins for i in range(lasts)])
    norm = np.where(np.isin(AT, begins), 60.0, 1.0)
    (found,) = spike(run(loss=0.1 * FLAT + stretch, grad_norm=norm, clipped_norm=norm))
    assert ("what is left out is not learnt" in found.cure) != asked
    assert any("--clip" in text or "--skip" in text for text in found.tries) == asked


@pytest.mark.parametrize(("size", "others"), [(1.0, False), (16.0, True)])
def test_data_of_another_size_from_a_spike_on_are_no_odd_batch(size, others):
    looked = np.where(AT % 10 == 0, np.where(AT > 110, size, 1.0), np.nan)
    lost = 0.1 * FLAT + np.where(AT >= 110, 2.0, 0.0)
    norm = np.where(AT == 110, 60.0, 1.0)
    columns = {"in_loss/input_rms": looked, "in_loss/layer_of/input_rms": np.where(np.isnan(looked), np.nan, 0.0)}
    (found,) = spike(run(loss=lost, grad_norm=norm, clipped_norm=norm, **columns))
    assert ("is of another size from there on" in found.cure) == others
    assert any("--clip" in text for text in found.tries) != others


@pytest.mark.parametrize(("height", "severity"), [(3.0, "note"), (30.0, "warning")])
def test_a_loss_that_was_thrown_far_above_where_it_began_is_no_low_first_value(height, severity):
    """Though it ends a third below that."""
    thrown_up = np.where((AT > 1) & (AT < 200), height * np.abs(np.sin(AT / 5)), 0)
    (found,) = lr_too_high(run(loss=np.maximum(4.6 - AT / 150, 2.9) + thrown_up + 0.01 * NOISE))
    assert found.severity == severity


@pytest.mark.parametrize("step", [20, 110])
def test_a_spike_before_skip_spike_acts_is_not_for_it(step):
    hit = step == AT
    (found,) = spike(run(loss=FLAT, grad_norm=np.where(hit, 60.0, 1.0), clipped_norm=np.where(hit, 60.0, 1.0)))
    assert ("SkipSpike()" in found.cure, "--skip" in found.tries) == (step >= 64, step >= 64)


@pytest.mark.parametrize("at", [97, 100, 104])
def test_other_data_come_in_the_step_in_which_the_loss_rises(at):
    later = np.maximum(AT - at, 0)
    loss = 0.3 + 0.01 * NOISE + np.where(at <= AT, 2.0 * np.exp(-later / 60), 0) + 1.9 * np.exp(-AT / 12)
    (found,) = lr_too_high(run(loss=loss))
    assert (found.severity, found.first_step, found.evidence["began_anew"]) == ("note", at, at)


def test_the_gradients_of_a_loss_that_had_all_but_gone_do_not_tell_of_its_rise():
    """They vary by themselves, and one task after another brings others, each learnt in turn."""
    loss = 0.003 + 0.7 * np.exp(-(AT % 80) / 12) + 0.001 * NOISE
    norm = loss * np.where(AT % 7 == 3, 5.0, 1.0)
    (found,) = lr_too_high(run(loss=loss, grad_norm=norm, clipped_norm=norm))
    assert (found.severity, found.first_step, found.evidence["began_anew"]) == ("note", 80, 80)


@pytest.mark.parametrize(("top", "height", "said"), [(1.0, 5.0, "note"), (0.9, 5.0, "warning"), (1.0, 7.0, "warning")])
def test_a_loss_that_rises_as_a_queue_fills_with_keys_is_no_work_of_the_steps(top, height, said):
    """A thousand random numbers are easy to tell from; but a loss above what equal odds give tells of more."""
    looked = np.where(AT % 10 == 0, 1.0, np.nan)
    columns = {"in_loss/choices": 1025 * looked, "in_loss/target_top_share": top * looked}
    loss = 3.3 + (height - 3.3) * np.minimum(AT / 15, 1) * np.exp(-AT / 300) + 0.01 * NOISE
    (found,) = lr_too_high(run(loss=loss, **columns))
    assert found.severity == said


@pytest.mark.parametrize(("decay", "said"), [(0.05, True), (1e-4, False)])
def test_a_decay_that_holds_the_weights_is_a_cause_of_a_loss_that_rests(decay, said):
    made = ({"name": "SGD", "class": "SGD", "settings": {"lr": 0.1, "weight_decay": decay}},)
    plain = run(loss=1.1 + 1.4 * np.exp(-AT / 10) + 0.001 * NOISE)
    (found,) = no_progress(replace(plain, run=replace(plain.run, optimizers=made)))
    assert ("a weight decay, which takes 0.5 % of the weights in each step" in found.cause) == said
    assert found.cure.startswith("Lower the weight decay a hundredfold") == said


@pytest.mark.parametrize(("part", "said"), [("G", True), (None, False)])
def test_of_rivals_no_lower_rate_for_both_is_advised_where_one_is_dead(part, said):
    history = without(LAYERS, 100)
    (found,) = dead_layer(replace(history, run=replace(history.run, part=part)))
    assert ("Lower the rival's learning rate" in found.cure) == said
    assert bool(found.tries) != said


@pytest.mark.parametrize(("scale", "said"), [(1e-9, "divide by their standard deviation"), (1.0, "Lower eps to about")])
def test_a_tiny_loss_is_brought_to_unit_size_before_eps_is_lowered(scale, said):
    made = {"name": "Adam", "class": "Adam", "settings": {"lr": 0.01, "eps": 1e-4}}
    history = run("Adam", loss=scale * FLAT, grad_norm=1e-6 * FLAT)
    history = replace(history, run=replace(history.run, optimizers=(made,)))
    small = {name: np.full_like(history.layer(name), 1e-6) for name in ("grad_norm", "clip_coef")}
    small["clip_coef"] = np.ones_like(small["clip_coef"])
    (found,) = below_epsilon(changed(history, per_layer={**history.per_layer, **small}))
    assert said in found.cure
