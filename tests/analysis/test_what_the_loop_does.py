"""What a loop does around its steps: it writes to weights, gradients and rates, and leaves steps out."""

import numpy as np
import pytest
from make_run import changed, make_history

from gradwatch.analysis.rules.long_steps import lr_too_high
from gradwatch.analysis.rules.loss_targets import accumulation_wiped
from gradwatch.analysis.rules.noise import noise_dominated
from gradwatch.analysis.rules.skips import skips_often
from gradwatch.analysis.rules.unchanged import weights_unchanged
from gradwatch.analysis.rules.weight_growth import weights_shrink
from gradwatch.analysis.rules.weights_reset import weights_reset

STEPS = 400
ROW = np.arange(STEPS)
NOISE = np.sin(ROW * 1.7)
CYCLE = ROW % 40  # since the loop wrote to the weights
WRITES = np.where((CYCLE == 0) & (ROW > 0), 1.0, 0.0)
FALLS = np.exp(-ROW / 60)


def run(optimizers=({"name": "Adam", "class": "Adam", "settings": {"lr": 0.1}},), weights=None, **columns):
    """A run that has ended, with these columns of its steps, and weights `[T]` times as large as at first."""
    history = make_history(STEPS, clip=None, logged=(), optimizers=optimizers, status="FINISHED")
    per_step = {**history.per_step, "lr": np.full(STEPS, 0.1), **columns}
    per_layer = dict(history.per_layer)
    if weights is not None:
        norm = per_layer["weight_norm"]
        per_layer["weight_norm"] = np.where(np.isnan(norm), np.nan, weights[:, None]).astype(np.float32)
    return changed(history, per_step=per_step, per_layer=per_layer)


@pytest.mark.parametrize(
    ("differs", "said"),
    [
        ({}, "loss leaps from 1.1"),
        ({"loss": 1 + np.exp(-CYCLE / 20) + 0.3 * NOISE}, "loss leaps from 1.1"),  # of which no leap by itself is clear
        ({"loss": 6 * FALLS + np.exp(-CYCLE / 20) + 0.05 * NOISE}, None),  # it begins ever lower
        ({"loss": 1 - np.exp(-CYCLE / 20) + 3 * FALLS + 0.05 * NOISE}, None),  # an average is loaded, and is better
        ({"loss": 1 + 0.05 * NOISE}, "loss is no better in the end than over its first"),
        ({"loss": 1 + 0.05 * NOISE, "weight_writes": 0.0 * ROW}, None),
        ({"weight_writes": np.where(CYCLE % 2, 1.0, 0.0)}, None),  # a part of each step, or of each other one
        ({"weight_writes": np.where(ROW < 161, WRITES, 0.0)}, None),  # four times: as a restart may, on purpose
    ],
)
def test_weights_that_are_loaded_back(differs, said):
    columns = {"weight_writes": WRITES, "loss": 1 + np.exp(-CYCLE / 20) + 0.05 * NOISE, **differs}
    found = weights_reset(run(**columns))
    assert [f.rule for f in found] == ["weights-reset"] * (said is not None)
    assert all(said in f.cause and len(f.alternatives) == 2 * ("no better" in said) for f in found)


def test_weights_that_fade_are_those_that_the_loop_writes_if_it_does():
    fading = run(weights=np.exp(-ROW / 30), loss=1 + 0.05 * NOISE)
    assert weights_shrink(fading)[0].alternatives
    (found,) = weights_shrink(changed(fading, per_step={**fading.per_step, "weight_writes": WRITES}))
    assert (found.evidence["writes"], found.alternatives) == (9, ())
    assert weights_reset(changed(fading, per_step={**fading.per_step, "weight_writes": WRITES})) == []


def test_long_steps_are_not_blamed_for_what_the_loop_puts_back():
    still = run(loss=1 + 0.05 * NOISE)
    ratio = np.where(np.isnan(still.per_layer["update_ratio"]), np.nan, 0.2).astype(np.float32)
    layers = {**still.per_layer, "update_ratio": ratio, "displacement": ratio / 1000}
    assert len(weights_unchanged(changed(still, per_layer=layers))[0].alternatives) == 2
    writes = changed(still, per_layer=layers, per_step={**still.per_step, "weight_writes": WRITES})
    assert weights_unchanged(writes)[0].alternatives == ()


@pytest.mark.parametrize(
    ("differs", "said"),
    [
        ({}, 1),
        ({"loss": 0.1 + 3 * FALLS**0.3 + 0.01 * NOISE}, 0),  # it learns all the same
        ({"grad_norm": 1.5 + 0.05 * NOISE}, 0),
        ({"user_clip_share": 0.5}, 0),  # a part of them is clipped
        ({"in_loss/passes": 4.0}, 0),  # of each micro-batch, which add up
        ({"in_loss/passes": np.nan}, 0),
        ({"user_grad_norm": np.roll(7 + 0.05 * NOISE, 1)}, 0),  # a clip that comes behind the step
    ],
)
def test_what_is_added_behind_a_clip_decides_the_steps(differs, said):
    columns = {"grad_norm": 7 + 0.05 * NOISE, "user_max_norm": 1.0, "user_grad_norm": 0.8 + 0.1 * NOISE,
               "user_clip_share": 1.0, "in_loss/passes": 1.0, "loss": 0.3 + FALLS**4 + 0.01 * NOISE}  # fmt: skip
    columns = {name: np.broadcast_to(value, STEPS).astype(float) for name, value in {**columns, **differs}.items()}
    found = noise_dominated(run(**columns))
    assert [f.cause.startswith("The loop clips its gradients to 1") for f in found] == [True] * said


LOOKS = np.where(ROW % 40 == 0, 1.0, np.nan)


@pytest.mark.parametrize(
    ("dropped", "rule"),
    [
        ([0, 0, 0, 2, 0, 9, 0, 64, 0, 3], "skips-often"),
        ([3] * 10, "accumulation-wiped"),
        ([3] * 9 + [1], "accumulation-wiped"),  # the last batch of an epoch
        ([0] * 10, None),
        ([0, 0, 1, 0, 0, 0, 0, 1, 0, 0], None),
    ],
)
def test_passes_that_come_to_nothing_now_and_then_are_steps_that_the_loop_leaves_out(dropped, rule):
    columns = {"in_loss/passes": LOOKS.copy(), "in_loss/dropped": LOOKS.copy(), "loss": 1 + 0.05 * NOISE}
    columns["in_loss/dropped"][LOOKS == 1] = np.where(np.array(dropped) > 0, dropped, np.nan)
    history = run(**columns)
    assert [f.rule for f in (*skips_often(history), *accumulation_wiped(history))] == [rule] * (rule is not None)


@pytest.mark.parametrize(
    ("given", "stepped", "loss", "said"),
    [
        ((1e-3, 1e-1), (1e-1, 1e-1), 1 + 0.05 * NOISE, 1),
        ((1e-3, 1e-1), (1e-3, 1e-1), 1 + 0.05 * NOISE, 0),
        ((1e-1, 1e-1), (1e-1, 1e-1), 1 + 0.05 * NOISE, 0),
        ((1e-3, 1e-1), (1e-3, 1e-3), 1 + 0.05 * NOISE, 0),  # the lowest for all
        ((1e-3, 1e-1), (1e-1, 1e-1), 0.1 + FALLS, 0),  # it suits them all
    ],
)
def test_one_rate_that_is_written_to_groups_that_were_given_several(given, stepped, loss, said):
    groups = [{"settings": {"lr": lr}, "layers": []} for lr in given]
    made = {"name": "Adam", "class": "Adam", "settings": {"lr": given[0]}, "groups": groups}
    columns = {"lr": np.full(STEPS, stepped[0]), "lr/1": np.full(STEPS, stepped[1])}
    found = lr_too_high(run((made,), loss=loss, **columns))
    assert ["writes one rate to all groups" in f.cause for f in found] == [True] * said
    assert all(f.cure.startswith("Multiply each group's own rate") and f.tries == () for f in found)
