"""What is measured on other data gets worse while the training loss falls: said, and not of what only looks so."""

import numpy as np
import pytest
from make_run import changed, make_history

from gradwatch.analysis.rules import diagnose
from gradwatch.analysis.rules.overfitting import overfitting

STEPS = 600
ROW = np.arange(STEPS)
FALLS = 2.3 * np.exp(-ROW / 100) * (1 + 0.02 * np.sin(ROW * 1.7))


def measured(values, every=20):
    """What is logged in each `every`-th step, and else not."""
    return np.where(ROW % every == every - 1, values, np.nan)


def turns(at=200, slope=0.004, low=0.5):
    """A loss of other data that falls to `low` up to a step, and rises from there on."""
    return low + np.where(at > ROW, (at - ROW) * 0.008, (ROW - at) * slope) + 0.005 * np.sin(ROW * 0.7)


def run(loss=FALLS, status="FINISHED", **columns):
    history = make_history(STEPS, clip=None, logged=(), status=status)
    return changed(history, per_step={**history.per_step, "loss": loss, **columns})


@pytest.mark.parametrize("status", ["FINISHED", "RUNNING"])
@pytest.mark.parametrize("name", ["val_loss", "eval_loss", "test/loss", "validation-loss"])
def test_it_says_where_the_weights_to_keep_are(name, status):
    (found,) = overfitting(run(status=status, **{name: measured(turns())}))
    assert (found.rule, found.severity, found.layers, found.alternatives) == ("overfitting", "warning", (), ())
    assert abs(found.first_step - 200) <= 20
    assert found.last_step == STEPS - 1
    assert found.evidence["best"] == pytest.approx(0.5, abs=0.1)
    assert found.evidence["ended"] == pytest.approx(0.5 + 0.004 * 360, rel=0.15)
    assert f"Keep the weights from where {name} is lowest (about step {found.first_step})" in found.cure


def test_answers_that_stay_right_are_a_note():
    right = measured(0.8 - 0.6 * np.exp(-ROW / 40) + 0.01 * np.sin(ROW))
    (found,) = overfitting(run(val_loss=measured(turns()), val_accuracy=right))
    assert (found.severity, "label_smoothing=0.1" in found.cure) == ("note", True)
    assert "val_accuracy, at 0.8" in found.cause
    lost = measured(np.where(ROW < 200, 0.8, 0.8 - (ROW - 200) / 1000))
    (found,) = overfitting(run(val_loss=measured(turns()), val_accuracy=lost))
    assert found.severity == "warning"


def test_what_is_learnt_of_the_training_data_is_no_excuse():
    found = diagnose(run(val_loss=measured(turns()), accuracy=np.minimum(1, 0.5 + ROW / 100)))
    assert [(f.rule, f.severity) for f in found if f.rule == "overfitting"] == [("overfitting", "warning")]


def test_what_was_never_better_than_at_first_has_another_cause_too():
    (found,) = overfitting(run(val_loss=measured(0.5 + ROW * 0.004)))
    assert "was lowest when first measured, at step 19" in found.cause
    assert found.alternatives[1] == "the other data are prepared in another way, or asked for something else"


@pytest.mark.parametrize(
    "columns",
    [
        {"val_loss": measured(turns(slope=0.0001))},  # a tenth of its lowest, and noise
        {"val_loss": measured(turns(at=560))},  # too few measurements since
        {"val_loss": measured(turns(), every=120)},  # too few at all
        {"val_loss": measured(0.5 + 0.4 * np.abs(np.sin(ROW * 2.3)))},  # from batches of other data, each another
        {"val_loss": measured(np.where((ROW > 200) & (ROW < 400), turns(), 0.5))},  # came back
        {"val_loss": measured(turns()), "loss": np.maximum(FALLS, 0.25)},  # the training does not go on
        {"val_loss": measured(turns()), "loss": 2.3 + ROW * 0.01},  # nor does it get worse alone
        {"val_loss": measured(np.where(ROW < 300, turns(at=300), 2.6))},  # at once: other data, or a reload
        {"val_loss": measured(turns()), "reward": FALLS},  # an agent's own data
        {"loss_d": turns()},  # of the training data
        {"val_loss": measured(turns() - 1.0)},  # a likelihood, whose share says nothing
        {"val_loss": measured(FALLS + 0.5), "val_kl_loss": measured(0.1 + ROW / 100)},  # a term of what falls
        {"val_kl_loss": measured(0.1 + ROW / 100), "val_rec_loss": measured(FALLS + 0.5)},
    ],
)
def test_it_is_not_said_of(columns):
    assert overfitting(run(**columns)) == []


def test_that_nothing_got_better_on_other_data_follows_from_it():
    history = run(loss=np.r_[FALLS[:100], FALLS[100:] ** 2], val_loss=measured(turns(at=60, slope=0.006)))
    roots = [finding for finding in diagnose(history) if finding.rule in ("overfitting", "no-progress")]
    assert [finding.rule for finding in roots] == ["overfitting"]


def test_of_a_regression_no_probabilities_are_spoken_of():
    (found,) = overfitting(run(val_loss=measured(turns()), val_r2=measured(0.8 + 0.01 * np.sin(ROW))))
    assert found.severity == "note"
    assert "probabilities" not in found.cause + found.cure
    assert found.cure.startswith("If val_r2 is what counts, nothing has to be done. If not: Keep the weights")
