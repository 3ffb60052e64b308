"""What is measured on other data, what takes turns and what the loop writes: where a curve alone would say sick."""

import numpy as np
import pytest
from make_run import changed, make_history

from gradwatch.analysis.rules.held_out import knew, learns, rises_alone, tells
from gradwatch.analysis.rules.losses import over_tasks
from gradwatch.analysis.rules.no_progress import no_progress
from gradwatch.analysis.rules.owners import leaps_where_written
from gradwatch.analysis.rules.progress import comes_to_rest, loss_progress
from gradwatch.analysis.rules.standstill import at_chance

STEPS = 240
RNG = np.random.default_rng(0)
FELL = np.linspace(1.0, 0.0, 12) ** 3  # of what is won, at twelve measurements


def run_with(**columns):
    """A run whose scalars are these; of fewer values than steps one comes every so many steps."""
    history = make_history(steps=STEPS, every=10, logged=tuple(columns))
    per_step = dict(history.per_step)
    for name, values in columns.items():
        per_step[name] = np.full(STEPS, np.nan)
        per_step[name][:: STEPS // len(values)] = values
    return changed(history, per_step=per_step)


NOISE = 0.002 * RNG.standard_normal(12)


@pytest.mark.parametrize(
    ("metric", "values", "found"),
    [
        ("val_auc", 0.62 - 0.12 * FELL + NOISE, True),
        ("val_auc", 0.52 - 0.02 * FELL + NOISE, False),  # hardly anything
        ("val_auc", 0.62 - 0.02 * FELL + NOISE, True),  # by chance it is a half
        ("val_macro_score", 0.62 - 0.02 * FELL + NOISE, False),  # which of this is not known
        ("val_auc", 0.62 - 0.12 * FELL + 20 * NOISE, False),  # within what it moves
        ("val_auc", 0.5 + 0.12 * np.sin(np.arange(12) / 3.5), False),  # lost again
        ("train_auc", 0.62 - 0.12 * FELL + NOISE, False),
        ("val_loss", 0.67 + 0.02 * FELL + NOISE, False),  # what knowing nothing costs is not known
    ],
)
def test_what_is_learnt_shows_on_other_data(metric, values, found):
    assert bool(learns(run_with(loss=np.full(STEPS, 0.68), **{metric: values}))) == found


def test_in_words_and_of_rivals_nothing(monkeypatch):
    history = run_with(loss=np.full(STEPS, 0.68), val_auc=0.62 - 0.12 * FELL)
    assert learns(history) == "On other data val_auc came from 0.5 to 0.6199, and stays there"
    monkeypatch.setattr("gradwatch.analysis.rules.held_out.has_rivals", lambda history: True)
    assert learns(history) == ""


@pytest.mark.parametrize(
    ("other", "found"),
    [
        (np.repeat([0.4, 0.41], 6), True),
        (np.repeat([0.4, 0.9], 6), False),  # it rises as well
        (np.where(np.arange(12) == 9, 1.6, 0.4), False),  # it leaps in between
    ],
)
def test_a_training_loss_rises_alone(other, found):
    loss = np.repeat([0.3, 1.2], STEPS // 2) + 0.01 * RNG.standard_normal(STEPS)
    assert rises_alone(run_with(loss=loss, val_loss=other), loss, STEPS // 2) == found
    assert not rises_alone(run_with(loss=loss, val_loss=other[:4]), loss, STEPS // 2)  # too seldom


@pytest.mark.parametrize("tasks", [2, 3, 7])
def test_tasks_that_take_turns_are_judged_together(tasks):
    level = np.linspace(2, 1, STEPS) * (1 + 5 * np.arange(STEPS) % tasks)
    joined = over_tasks(run_with(loss=level)).total("loss")
    known = np.flatnonzero(np.isfinite(joined))
    assert known.tolist() == [*range(tasks - 1, STEPS // tasks * tasks, tasks)]
    np.testing.assert_allclose(joined[known], level[: len(known) * tasks].reshape(-1, tasks).mean(axis=1))


@pytest.mark.parametrize(
    "values",
    [
        2 + RNG.standard_normal(STEPS),
        np.linspace(2, 1, STEPS),
        np.full(STEPS, 0.5),
        np.where(np.arange(STEPS) == 3, np.nan, np.arange(STEPS) % 2),
    ],
)
def test_a_loss_of_one_task_is_left_as_it_is(values):
    history = run_with(loss=values)
    assert over_tasks(history) is history


def test_a_few_steps_do_not_tell_whether_tasks_take_turns():
    history = run_with(loss=np.arange(STEPS) % 2)
    assert over_tasks(history) is not history
    assert over_tasks(first := history.slice(0, 100)) is first


@pytest.mark.parametrize(
    ("every", "leap", "found"), [(10, 1.0, True), (10, -1.0, True), (10, 0.0, False), (2, 1.0, False), (80, 1.0, False)]
)
def test_a_loss_leaps_where_the_loop_writes_to_the_weights(every, leap, found):
    at = np.arange(1, STEPS)[np.arange(1, STEPS) % every == 0]
    writes, loss = np.zeros(STEPS), 2 + 0.01 * RNG.standard_normal(STEPS)
    writes[at] = 1
    for i, row in enumerate(at):
        loss[row:] += leap * (-1) ** i
    assert leaps_where_written(changed(run_with(loss=loss), per_step={"weight_writes": writes}), loss) == found


def explained(share, **columns):
    """A run of which every tenth loss was looked at, a cross-entropy over two classes that explains such a share."""
    graph = (
        {"what": "path", "operations": "BinaryCrossEntropyWithLogits Addmm", "shapes": "1 64x1", "operands": "1 3",
         "layer": "head.weight"},
    )  # fmt: skip
    history = make_history(steps=STEPS, every=10, logged=("loss",), loss_graph=graph, status="FINISHED")
    inside = {"explained": np.resize(share, 24), "targets": np.full(24, 64.0), "predicted_right": np.full(24, 0.6)}
    per_step = {
        **history.per_step,
        "loss": columns.get("loss", np.full(STEPS, 0.62) + 0.01 * RNG.standard_normal(STEPS)),
    }
    for name, values in inside.items():
        per_step[f"in_loss/{name}"] = np.full(STEPS, np.nan)
        per_step[f"in_loss/{name}"][::10] = values
    usual = np.where(np.isnan(history.layer("update_ratio")), np.nan, 0.003)
    return changed(history, per_step=per_step, per_layer={**history.per_layer, "update_ratio": usual})


ROSE = np.minimum(np.arange(24) / 40, 0.12)


@pytest.mark.parametrize(
    ("share", "found"),
    [(ROSE, True), (ROSE / 4, False), (np.full(24, 0.12), False), (ROSE[::-1], False)],
)
def test_what_is_explained_of_the_training_data_is_learnt_too(share, found):
    said = tells(explained(share))
    assert said == (
        "The outputs came to explain 12.0 % of the entropy of the classes that are asked for" if found else ""
    )


@pytest.mark.parametrize(("share", "found"), [(np.full(24, 0.4), True), (ROSE, False)])
def test_a_model_that_was_trained_before_knows_something_from_the_start(share, found):
    assert bool(knew(explained(share))) == found


@pytest.mark.parametrize(("share", "severity"), [(ROSE, "note"), (ROSE / 4, "warning"), (np.full(24, 0.4), "note")])
def test_a_loss_that_stands_is_a_note_where_something_is_known(share, severity):
    loss = 0.66 - 0.04 * np.minimum(np.arange(STEPS) / 20, 1) + 0.005 * RNG.standard_normal(STEPS)
    (found,) = no_progress(explained(share, loss=loss))
    assert found.severity == severity
    assert ("It may be all that can be learnt" in found.cause) == (severity == "note")


def test_differences_have_no_equal_odds():
    """Of a regression the logarithm of two is a number like any other."""
    path = {
        "what": "path",
        "operations": "MseLoss Addmm",
        "shapes": "1 64x1",
        "operands": "1 3",
        "layer": "head.weight",
    }
    loss = 0.84 - (0.84 - np.log(2)) * np.minimum(np.arange(STEPS) / 60, 1) + 0.001 * RNG.standard_normal(STEPS)
    for graph, found in (((path,), False), ((), True)):
        history = make_history(steps=STEPS, logged=("loss",), loss_graph=graph, status="FINISHED")
        history = changed(history, per_step={**history.per_step, "loss": loss})
        assert at_chance(history, loss_progress(history)[0]) == found


def test_a_metric_of_other_data_that_gets_no_worse_shows_that_the_data_are_harder():
    loss = np.repeat([0.3, 1.2], STEPS // 2) + 0.01 * RNG.standard_normal(STEPS)
    assert rises_alone(run_with(loss=loss, val_acc=0.3 + 0.05 * np.arange(12)), loss, STEPS // 2)
    assert not rises_alone(run_with(loss=loss, val_acc=np.repeat([0.8, 0.5], 6)), loss, STEPS // 2)


@pytest.mark.parametrize(
    ("gradient", "noise", "found"),
    [(1e-8, 0.0, True), (1e-1, 0.0, False), (1e-8, 1e-3, False)],
)
def test_a_loss_without_noise_comes_to_rest_at_its_least(gradient, noise, found):
    """Full-batch and convex: that its gradient is below any eps in the end is no disease."""
    loss = 0.61 + 0.08 * np.exp(-np.arange(STEPS) / 4) + noise * RNG.standard_normal(STEPS)
    history = make_history(steps=STEPS, clip=None, logged=("loss",), status="FINISHED")
    norm = np.maximum(np.exp(-np.arange(STEPS) / 5), gradient)
    columns = {**history.per_step, "loss": loss, "grad_norm": norm, "clipped_norm": norm}
    assert comes_to_rest(changed(history, per_step=columns)) == found
