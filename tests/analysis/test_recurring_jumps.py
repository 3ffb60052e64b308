"""Losses that jump every so many steps: a target network is copied, and no batch is odd."""

import numpy as np
import pytest
from make_run import changed, make_history

from gradwatch.analysis.rules.recurring_jumps import period
from gradwatch.analysis.rules.spikes import spike

T = 800


def jumping(starts, lasting):
    """A falling loss that is twenty times as high at each of these steps, and for some steps behind it."""
    loss = np.geomspace(0.05, 0.03, T) * (1 + 0.05 * np.random.default_rng(0).standard_normal(T))
    for start in starts:
        loss[start : start + lasting] *= np.linspace(20, 12, lasting)
    history = make_history(steps=T, logged=("loss",))
    return changed(history, per_step={**history.per_step, "loss": loss})


def test_jumps_every_hundred_steps_that_last_are_no_odd_batches():
    (found,) = spike(jumping(range(100, T, 100), 4))
    assert (found.severity, found.evidence["every"]) == ("note", 100)
    assert found.cause.startswith("The loss jumps every 100 steps")
    assert not found.tries
    assert not found.layers


@pytest.mark.parametrize(("starts", "lasting"), [([100, 190, 333, 470, 610], 4), ([100, 200, 300, 400, 500], 1)])
def test_others_are_as_are_single_batches_that_come_again_in_each_epoch(starts, lasting):
    (found,) = spike(jumping(starts, lasting))
    assert "every" not in found.evidence


@pytest.mark.parametrize(
    ("steps", "every"),
    [
        ([100, 101, 200, 201], 100),  # counted from the first step on
        ([150, 151, 250, 251], 0),
        ([150, 151, 250, 251, 350, 351], 100),  # from some warm-up on
        ([100, 101, 400, 401], 0),
        ([100, 101, 150, 151, 200, 201], 50),
        ([100, 101, 180, 181, 200, 201], 0),
        ([8, 9, 16, 17, 24, 25], 0),
    ],
)
def test_a_period_is_found_where_most_of_its_beginnings_have_a_jump(steps, every):
    assert period(np.array(steps)) == every
