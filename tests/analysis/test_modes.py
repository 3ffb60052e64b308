"""A model that is trained in eval mode, and batch norms whose momentum leaves an evaluation nothing to go by."""

import numpy as np
import pytest
from make_run import changed, make_history

from gradwatch.analysis.rules import diagnose
from gradwatch.analysis.rules.modes import left_in_eval, norm_statistics, validation_in_train_mode

STEPS = 300
ROW = np.arange(STEPS)
NORM = {"modules": {"a": "Linear", "norm": "BatchNorm1d"}, "batch_norms": {"norm": 0.1}}


def run(modules=None, batch_norms=None, **columns):
    """A calm run of these modules with these columns of its steps."""
    said = {"modules": modules or {}, "batch_norms": batch_norms or {}}
    history = make_history(STEPS, clip=None, logged=(), status="FINISHED", **said)
    return changed(history, per_step={**history.per_step, **columns})


def in_eval(rows, mean=0.0):
    first = np.where(ROW == 0, mean, np.nan)
    return {"eval_mode": np.where(rows, 1.0, np.nan), "norm_mean": first}


def test_who_does_not_come_back_from_an_evaluation_is_warned():
    (found,) = left_in_eval(run(**NORM, **in_eval(ROW >= 100)))
    assert (found.severity, found.first_step, found.alternatives) == ("warning", 100, ())
    assert "model.train() not after it" in found.cause
    assert "no batch changes them" not in found.cause


@pytest.mark.parametrize("rows", [(ROW >= 100) & (ROW < STEPS - 1), ROW >= STEPS - 19, ROW < 0])
def test_a_mode_that_was_left_again_or_just_begun_is_nothing(rows):
    assert left_in_eval(run(**NORM, **in_eval(rows))) == []


def test_all_along_it_is_a_note_but_for_norms_that_have_seen_nothing():
    def found(**given):
        (only,) = left_in_eval(run(**given))
        return only.severity

    assert found(**NORM, **in_eval(ROW >= 0)) == "warning"
    assert found(**NORM, **in_eval(ROW >= 0, mean=0.3)) == "note"
    assert found(modules={"a": "Linear", "b": "Dropout"}, eval_mode=np.ones(STEPS)) == "note"


def test_an_explosion_stands_under_it():
    grows = {"loss": 2.0 * 1.2 ** np.maximum(ROW - 150, 0), "grad_norm": 1.2 ** np.maximum(ROW - 150, 0)}
    plain = diagnose(run(**NORM, **grows))
    (root,) = (f for f in diagnose(run(**NORM, **grows, **in_eval(ROW >= 100))) if f.severity != "note")
    assert root.rule == "left-in-eval"
    assert {f.rule for f in plain if f.severity == "error"} <= {f.rule for f in root.consequences}
    assert plain


@pytest.mark.parametrize(
    ("momentum", "mean", "words"),
    [
        (0.9, 0.0, "the last batch or two"),
        (0.5, 2.0, "the last batch or two"),
        (0.0, 0.0, "those of no data, 0 and 1"),
        (1e-4, 0.0, "those of no data, 0 and 1"),
        (0.0, 2.0, ""),
        (0.3, 0.0, ""),
        (0.01, 0.0, ""),
    ],
)
def test_a_momentum_says_how_many_batches_the_statistics_are_of(momentum, mean, words):
    history = run(**{**NORM, "batch_norms": {"norm": momentum}}, **in_eval(ROW < 0, mean))
    found = norm_statistics(history)
    assert [f.severity for f in found] == (["warning"] if words else [])
    assert all(words in f.cause for f in found)
    assert norm_statistics(run(**{**NORM, "batch_norms": {"norm": momentum}}, **in_eval(ROW > 5, mean))) == []


@pytest.mark.parametrize(
    ("of_each_step", "of_each_measurement", "besides", "found"),
    [
        (1, 1, 0, True),
        (4, 3, 0, True),  # micro-batches; a validation of three batches
        (1, 0, 0, False),  # in eval mode
        (1, 1, 7, False),  # elsewhere too: a generator that makes examples for its judge
        (0, 1, 0, False),  # in eval mode in the steps themselves
    ],
)
def test_batches_of_other_data_in_training_mode(of_each_step, of_each_measurement, besides, found):
    others = ROW % 25 == 0
    batches = np.cumsum(of_each_step + of_each_measurement * others + (ROW % besides == 1 if besides else 0))
    looked = np.where(ROW % 5 == 2, batches, np.nan)
    history = run(**NORM, **{"in_loss/norm_batches": looked, "val_loss": np.where(others, 1.0, np.nan)})
    assert [f.evidence["of_each_step"] for f in validation_in_train_mode(history)] == [of_each_step] * found
