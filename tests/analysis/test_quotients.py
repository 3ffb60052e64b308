"""Causes that quotients of what is recorded show: of inputs, of weights that are put back, of sums; and of losses."""

from dataclasses import replace

import numpy as np
import pytest
from make_run import changed
from test_causes import NOISE, STEPS, learns, run

from gradwatch.analysis.rules import diagnose
from gradwatch.analysis.rules.dead_layers import dead_layer
from gradwatch.analysis.rules.gradient_scale import gradients_accumulate
from gradwatch.analysis.rules.inputs import inputs_not_normalised
from gradwatch.analysis.rules.outputs import negative_loss
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


@pytest.mark.parametrize(("times", "found"), [(1.0, False), (8.0, False), (8000.0, True), (1e-3, True), (1e9, False)])
def test_the_size_of_the_inputs_is_that_of_a_weights_gradient_beside_its_biases(times, found):
    told = inputs_not_normalised(fed(times))
    assert bool(told) == found
    assert not found or told[0].layers == ("0.weight",)


def test_without_a_bias_or_behind_an_embedding_the_size_of_the_inputs_is_not_known():
    assert inputs_not_normalised(fed(8000.0, bias=False)) == []
    assert inputs_not_normalised(fed(8000.0, kinds={"0": "Embedding"})) == []


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (-np.log(10) - np.arange(STEPS) / 10, "the wrong sign"),
        (-0.1 - 0.8 * np.arange(STEPS) / STEPS, "without their logarithm"),
        (-0.5 - np.arange(STEPS) ** 2 / 1000, "falls ever faster"),
        (-2.2 + 0.3 * np.exp(-np.arange(STEPS) / 20), "kl_div was given probabilities"),
        (-0.9 + 0.3 * np.exp(-np.arange(STEPS) / 20), None),  # a cosine
        (0.69 - np.arange(STEPS) / 10, "targets that are not between 0 and 1"),
        (-2 - np.sqrt(np.arange(STEPS)), None),  # a likelihood of densities
        (np.log(10) - np.arange(STEPS) / 100, None),  # some are above 0
    ],
)
def test_a_loss_below_zero_is_told_by_where_it_begins(loss, words):
    told = negative_loss(renamed(run(loss=loss)))
    assert (words in told[0].cause) if words else told == []


def test_weights_that_each_step_moves_and_that_are_soon_where_they_were_are_put_back():
    plain = run(ratio=0.01, loss=2.3 + 0.1 * NOISE)
    for share, rules in ((0.5, []), (0.005, ["weights-unchanged"])):
        away = plain.layer("update_ratio") * 10 * share
        moved = changed(plain, per_layer={**plain.per_layer, "displacement": away})
        assert [f.rule for f in weights_unchanged(moved)] == rules


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
