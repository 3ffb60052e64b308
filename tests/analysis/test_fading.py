"""What is said of gradients that fade, or go on as they were, while the loss does not follow."""

import math
from dataclasses import replace

import numpy as np
import pytest
from make_run import LAYERS, changed, make_history

from gradwatch.analysis.rules.fading import fades
from gradwatch.analysis.rules.gradient_scale import gradients_accumulate
from gradwatch.analysis.rules.gradients import exploding
from gradwatch.analysis.rules.initialisation import bad_initialisation
from gradwatch.analysis.rules.no_gradient import no_gradient
from gradwatch.analysis.rules.no_progress import no_progress
from gradwatch.analysis.rules.outputs import activation_on_logits, softmax_twice
from gradwatch.analysis.rules.rivals import generator_starves
from gradwatch.analysis.rules.roots import group
from gradwatch.analysis.rules.small_updates import update_too_small

STEPS = 400
ROW = np.arange(STEPS)
NOISE = np.sin(ROW * 1.7)
SLOW = np.where(ROW % 10 == 0, 1.0, np.nan)[:, None]
FADES = np.exp(-ROW / 40) + 0.01


def run(optimizer="SGD", part=None, layers=LAYERS, per_layer=None, rate=0.1, **columns):
    """A calm run with these columns of its steps and layers, all of which are matrices."""
    made = {"name": optimizer, "class": optimizer, "settings": {"lr": rate}}
    history = make_history(
        STEPS, clip=None, logged=(), optimizers=(made,), status="FINISHED", part=part, layers=layers, modules={}
    )
    per_step = {**history.per_step, "lr": np.full(STEPS, rate), **columns}
    kept = {name: np.asarray(values, np.float32) for name, values in (per_layer or {}).items()}
    return changed(history, per_layer={**history.per_layer, **kept}, per_step=per_step)


def norms(*of_layers):
    """Gradient norms of all layers: those of the first ones, and 1 of the others."""
    rest = [np.ones(STEPS)] * (len(LAYERS) - len(of_layers))
    return {"grad_norm": np.stack([*of_layers, *rest], axis=1)}


def test_first_layers_whose_gradient_fades_beside_the_others_are_heard_no_more():
    falls = 0.5 + 0.5 * np.exp(-ROW / 100)
    (found,) = fades(run(loss=falls, per_layer=norms(FADES, 0.5 * FADES)))
    assert (found.rule, found.layers, found.confidence) == ("vanishing", LAYERS[:2], "possible")
    assert found.evidence["left_of_the_gradient"] == pytest.approx(0.01, rel=0.2)
    assert 30 < found.first_step < 80  # a third of it is left
    assert fades(run(loss=falls, per_layer=norms(*[FADES] * len(LAYERS)))) == []  # all of them do
    assert fades(run(loss=falls, per_layer=norms(np.ones(STEPS), FADES))) == []  # not the first ones
    assert fades(run(loss=FADES, per_layer=norms(FADES))) == []  # there is nothing left to learn
    assert fades(run(loss=1 + 0.01 * NOISE, per_layer=norms(FADES))) == []  # nor was there anything learnt


def test_layers_fade_after_the_steps_that_threw_them_up_and_not_before():
    small_first = np.where(ROW < 1, 0.01, 1.0)  # the first step's, before the others have grown
    falls = 0.5 + 0.5 * np.exp(-ROW / 100)
    (found,) = fades(run(loss=falls, per_layer=norms(small_first * FADES, small_first * FADES)))
    assert found.first_step > 30


def test_a_loss_that_keeps_most_of_what_it_was_while_the_gradient_fades_is_no_progress():
    loss = 0.8 + 0.2 * np.exp(-ROW / 150)
    on = np.exp(-ROW / 80)
    (found,) = no_progress(run(loss=loss, grad_norm=on))
    assert found.evidence["left_of_the_gradient"] < 0.02
    assert len(found.alternatives) == 2
    assert no_progress(run(loss=loss, grad_norm=np.ones(STEPS))) == []
    assert no_progress(run(loss=loss, grad_norm=FADES)) == []  # it came to what the noise of the targets leaves
    assert no_progress(run(loss=loss - 0.7, grad_norm=on)) == []
    (least,) = no_progress(run(loss=0.7 + 0.3 * np.exp(-ROW / 100), grad_norm=on))
    assert least.severity == "note"  # it got better by a fifth: so ends each that gets to the least of its loss


def squashed(positive):
    """A binary cross-entropy with logits of numbers between 0 and 1 that come to their ends."""
    begins, ends = (
        positive * math.log1p(math.exp(-right)) + (1 - positive) * math.log1p(math.exp(wrong))
        for right, wrong in ((0.5, 0.5), (1.0, 0.0))
    )
    return ends + (begins - ends) * np.exp(-ROW / 40) + 0.005 * NOISE


@pytest.mark.parametrize("positive", [0.5, 0.2])
def test_two_sigmoids_are_seen_without_the_module_where_the_gradient_fades(positive):
    (found,) = activation_on_logits(run(loss=squashed(positive), grad_norm=FADES))
    assert "between 0 and 1" in found.cause
    assert len(found.alternatives) == 2
    assert activation_on_logits(run(loss=squashed(positive), grad_norm=np.ones(STEPS))) == []
    assert activation_on_logits(run(loss=squashed(positive) - 0.05 * ROW / 40, grad_norm=FADES)) == []


def test_a_part_whose_rival_is_squashed_twice_is_seen_by_where_it_begins_and_stays():
    asks = math.log(2) - (math.log(2) - math.log1p(math.exp(-0.5))) * np.exp(-ROW / 40)
    (found,) = activation_on_logits(run(part="G", loss=asks))
    assert "between 0 and 1" in found.cause
    assert activation_on_logits(run(part="G", loss=asks + 0.2)) == []
    assert activation_on_logits(run(part="G", loss=np.where(ROW == 300, 0.8, asks))) == []


def test_a_loss_that_slows_down_low_in_the_band_of_two_softmaxes_may_have_them_whichever_layer_is_last():
    classes = 29  # rows of no layer of `make_history` but one
    floor, chance = math.log(math.e + classes - 1) - 1, math.log(classes)
    loss = floor + 0.15 + (chance - floor - 0.15) * np.exp(-np.maximum(ROW - 10, 0) / 60)
    history = run(loss=loss)
    shapes = tuple(
        replace(layer, shape=(classes, 4)) if i == 2 else layer for i, layer in enumerate(history.run.layers)
    )
    history = replace(history, run=replace(history.run, layers=shapes))
    (found,) = softmax_twice(history)
    assert "slows down" in found.cause
    assert found.evidence["classes"] == classes
    assert softmax_twice(run(loss=loss)) == []
    width = 64
    drawn = replace(history.run.layers[0], shape=(width, width), frozen=True)
    rest = {name: values.copy() for name, values in history.per_layer.items()}
    rest["weight_norm"][:, 0] = width / math.sqrt(3 * width)
    rest["grad_norm"][:, 0] = rest["nonfinite"][:, 0] = np.nan
    frozen = replace(changed(history, per_layer=rest), run=replace(history.run, layers=(drawn, *shapes[1:])))
    assert [f.evidence["missing"] for f in no_gradient(frozen)] == ["training"]
    assert softmax_twice(frozen) == []  # that it does not get lower has a cause


def test_a_part_that_is_handed_no_gradient_from_the_start_starves():
    loss = 0.7 + 0.01 * NOISE
    (found,) = generator_starves(run(part="G", loss=loss, per_layer={"grad_norm": np.full((STEPS, 7), 1e-10)}))
    assert "from the start" in found.cause
    assert generator_starves(run(part="G", loss=loss)) == []
    assert generator_starves(run(loss=loss, per_layer={"grad_norm": np.full((STEPS, 7), 1e-10)})) == []  # no rival


def test_steps_that_go_on_as_they_were_while_the_loss_rises_are_sums_of_gradients():
    norm = 2 + 2 * np.minimum(ROW, 4) / 4 + 0.2 * ROW / 10 * (1.3 + np.sin(ROW / 15))
    thrown = {"loss": 2 + ROW / 100 + NOISE, "grad_norm": norm}
    straight = {"update_ratio": SLOW * np.full((STEPS, 7), 0.05), "displacement": SLOW * np.full((STEPS, 7), 0.45)}
    (found,) = gradients_accumulate(run(per_layer=straight, **thrown))
    assert found.severity == "error"
    back = {**straight, "displacement": SLOW * np.full((STEPS, 7), 0.15)}
    assert gradients_accumulate(run(per_layer=back, **thrown)) == []  # each step takes the one before back
    assert gradients_accumulate(run("Adam", per_layer=straight, **thrown)) == []
    falls = {**thrown, "grad_norm": np.where(ROW < 20, norm, 1.0)}  # below its first value: no sum of all before
    assert gradients_accumulate(run(per_layer=straight, **falls)) == []
    for better in (2 * np.exp(-ROW / 60), 2 - ROW / 600 + 0.1 * NOISE):
        assert gradients_accumulate(run(per_layer=straight, **{**thrown, "loss": better})) == []


@pytest.mark.parametrize(("pace", "said"), [(300, True), (40, False)])
def test_a_loss_of_large_targets_that_came_down_has_not_far_to_go(pace, said):
    straight = {"update_ratio": SLOW * np.full((STEPS, 7), 0.05), "displacement": SLOW * np.full((STEPS, 7), 0.5)}
    found = update_too_small(run(per_layer=straight, loss=2e5 * np.exp(-ROW / pace)))
    assert ["far to go" in f.cause for f in found] == [True] * said


def test_a_loss_that_is_exactly_0_under_a_norm_that_grows_can_be_judged():
    norm = np.minimum(1 + ROW, 40.0)
    assert gradients_accumulate(run(loss=np.zeros(STEPS), grad_norm=norm * (1 + 0.1 * NOISE))) == []


def test_a_few_batches_with_huge_losses_are_no_explosion_where_the_others_stay():
    odd = np.where(ROW % 53 == 52, 300.0, 0.0)
    loss = 1.6 + 0.9 * NOISE
    assert exploding(run(loss=loss + odd, grad_norm=2 + odd)) == []
    (found,) = exploding(run(loss=loss + odd + 9 * (ROW > 60), grad_norm=2 + odd))
    assert found.evidence["end"] > 8


def test_weights_that_hold_units_at_their_ends_from_the_start_began_too_large():
    dead = norms(np.zeros(STEPS), np.zeros(STEPS), np.zeros(STEPS), np.zeros(STEPS))
    history = run(loss=2.3 + 0.1 * NOISE, per_layer={**dead, "update_ratio": SLOW * np.full((STEPS, 7), 0.01)})
    large = np.where(np.isnan(SLOW), np.nan, 1000.0) * np.ones(7)
    (found,) = bad_initialisation(changed(history, per_layer={**history.per_layer, "weight_norm": np.float32(large)}))
    assert "many times" in found.cause


def test_what_sums_up_a_run_stands_under_what_began_in_its_first_half():
    (slow,) = update_too_small(
        run(loss=2 + 0.01 * NOISE, per_layer={"update_ratio": SLOW * np.full((STEPS, 7), 1e-9)}, rate=1e-9)
    )
    dead = replace(slow, rule="dead-layer", first_step=20, tries=())
    assert [f.rule for f in group([slow, dead])] == ["dead-layer"]
    passed = replace(dead, last_step=100)
    assert [f.rule for f in group([slow, passed])] == ["dead-layer", "update-too-small"]
