"""An optimizer that went on without its moments: after a checkpoint, or in the middle of a run."""

from dataclasses import replace

import numpy as np
import pytest
from make_run import changed, make_history

from gradwatch.analysis.rules import diagnose
from gradwatch.analysis.rules.optimizer_state import optimizer_state_lost

STEPS = 200
AT = np.arange(STEPS)
NOISE = 0.01 * np.sin(12.9898 * AT)


def run(empty, kind="Adam", first=0, attempts=None, loss=None, momentum=0.0, betas=None, alpha=None, **columns):
    """A calm run that begins at the step `first`, and whose optimizer had no state in the rows `empty`."""
    settings = {"lr": 0.1, "momentum": momentum, "betas": betas, "alpha": alpha}
    optimizers = ({"name": kind, "class": kind, "settings": settings},)
    history = make_history(STEPS, clip=None, logged=("loss",), status="FINISHED", optimizers=optimizers)
    columns["empty_state"] = np.where(np.isin(AT, empty), 1.0, np.nan)
    columns["loss"] = 2.0 - AT / 400 + NOISE if loss is None else loss
    attempt = np.zeros(STEPS, np.int64) if attempts is None else attempts
    history = changed(history, step=history.step + first, attempt=attempt, per_step={**history.per_step, **columns})
    return replace(history, run=replace(history.run, first_step=first))


def test_a_first_step_without_state_is_how_trainings_begin():
    assert optimizer_state_lost(run([0])) == []


def test_an_optimizer_that_is_due_later_than_another_lost_nothing():
    late = run([0], first=100)
    assert optimizer_state_lost(replace(late, run=replace(late.run, first_step=0))) == []


@pytest.mark.parametrize(
    ("history", "step"),
    [
        (run([0, 80], attempts=(AT >= 80).astype(np.int64)), 80),
        (run([0], first=500), 500),
        (run([0], kind="SGD", momentum=0.9, first=500), 500),
    ],
)
def test_a_run_that_goes_on_without_it_is_warned(history, step):
    (found,) = optimizer_state_lost(history)
    assert (found.severity, found.first_step, found.alternatives) == ("warning", step, ())
    assert "not loaded" in found.cause


def test_sgd_without_momentum_has_none_to_lose():
    assert optimizer_state_lost(run([0], kind="SGD", first=500)) == []


def test_within_a_run_it_counts_where_the_loss_rises_after_it():
    lost = [50, 100, 150]
    (quiet,) = optimizer_state_lost(run(lost))
    assert (quiet.severity, quiet.evidence["times"]) == ("note", 3)
    after = np.isin(AT, np.add.outer(lost, np.arange(1, 12)))
    (loud,) = optimizer_state_lost(run(lost, loss=2.0 + NOISE + 0.3 * after))
    assert (loud.severity, loud.last_step) == ("warning", STEPS - 1)
    assert "at steps 50, 100, 150" in loud.cause
    rewound = np.isin(AT, np.add.outer(lost, np.arange(12)))  # it is high before the first step without a state
    (set_back,) = optimizer_state_lost(run(lost, loss=2.0 + NOISE + 0.3 * rewound))
    assert set_back.severity == "note"


@pytest.mark.parametrize(
    ("options", "severity"),
    [
        ({"empty": range(0, STEPS, 10), "betas": [0.9, 0.999]}, "warning"),
        ({"empty": range(0, STEPS, 60), "betas": [0.9, 0.999]}, "note"),  # three times: of a round or a task each
        ({"empty": range(0, STEPS, 10), "kind": "SGD", "momentum": 0.99}, "warning"),
        ({"empty": range(0, STEPS, 20), "kind": "SGD", "momentum": 0.9}, "note"),  # it was full by then
        ({"empty": range(0, STEPS, 10), "kind": "RMSprop", "momentum": 0, "alpha": 0.99}, "warning"),
    ],
)
def test_a_state_that_never_fills_is_lost_from_the_first_step_on(options, severity):
    (found,) = optimizer_state_lost(run(**options))
    assert found.severity == severity
    assert (found.first_step == 0) == ("They never hold more than 10 steps" in found.cause) == (severity == "warning")


def test_what_a_rewind_brought_back_is_not_lost():
    assert optimizer_state_lost(run([100], rewound_to=np.where(AT == 99, 0.0, np.nan))) == []


def test_a_rise_after_it_stands_under_it():
    loss = np.where(AT < 100, 1.0, 1.0 * 1.1 ** np.clip(AT - 100, 0, 60)) + NOISE
    plain = [f.rule for f in diagnose(run([], loss=loss)) if f.severity != "note"]
    (root,) = (f for f in diagnose(run([100], first=0, loss=loss)) if f.severity != "note")
    assert root.rule == "optimizer-state-lost"
    assert plain
    assert {*plain} <= {f.rule for f in root.consequences}
