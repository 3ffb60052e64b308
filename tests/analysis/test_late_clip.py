"""A clip that sees the norm of the step before; each line of its condition alone."""

import numpy as np
import pytest
from make_run import changed, make_history

from gradwatch.analysis.clips import incoming, loop_limit, loop_rate
from gradwatch.analysis.rules import diagnose
from gradwatch.analysis.rules.late_clip import clip_after_step, clip_without_gradient
from gradwatch.analysis.rules.step_length import lengthened


def run_with(seen, steps=60, limit=0.5, loss=None):
    """A run whose loop clips to `limit`; `seen(norms)` are the norms that its clip sees, from the second step on."""
    history = make_history(steps, clip=None, logged=("loss",))
    norms = history.total("grad_norm")
    columns = {"user_grad_norm": np.r_[np.nan, seen(norms)], "user_max_norm": np.r_[np.nan, np.full(steps - 1, limit)]}
    if loss is not None:
        columns["loss"] = loss
    return changed(history, per_step={**history.per_step, **columns})


def test_a_clip_behind_the_step_is_told_with_its_limit():
    flat = np.full(60, 2.0) + 0.1 * np.random.default_rng(0).standard_normal(60)
    history = run_with(lambda norms: norms[:-1], loss=flat)
    (found,) = clip_after_step(history)
    assert (found.severity, found.first_step, found.last_step) == ("warning", 0, 59)
    assert found.evidence["of_the_step_before"] == found.evidence["calls"] == 59
    assert found.tries == ("--clip 'ClipByGlobalNorm(0.5)'",)
    assert "clip-after-step" in {root.rule for root in diagnose(history)}


@pytest.mark.parametrize(("lasted", "found"), [(1, 0), (2, 1), (5, 1)])
def test_two_calls_are_enough_of_a_run_that_came_apart(lasted, found):
    history = run_with(lambda norms: norms[:-1])
    per_step = {**history.per_step, "grad_norm": np.where(np.arange(60) < lasted, history.total("grad_norm"), np.nan)}
    per_step["user_grad_norm"] = np.r_[np.nan, per_step["grad_norm"][:-1]]
    assert len(clip_after_step(changed(history, per_step=per_step))) == found


def test_a_clip_that_comes_too_late_has_clipped_nothing():
    """Neither in the clip rate nor in the norms before it, from which thresholds are taken."""
    history = run_with(lambda norms: norms[:-1], limit=0.01)
    history = changed(history, per_step={**history.per_step, "user_clip_coef": np.r_[np.nan, np.full(59, 0.01)]})
    assert loop_rate(history) == 0
    assert loop_limit(history) is None
    np.testing.assert_array_equal(incoming(history), history.total("grad_norm"))
    in_time = changed(history, per_step={**history.per_step, "user_grad_norm": history.total("grad_norm")})
    assert loop_rate(in_time) > 0.9


def test_what_comes_too_late_has_left_nothing_that_something_was_added_to():
    def cause(seen):
        history = run_with(seen, limit=0.01)
        clipped = {"user_clip_coef": np.r_[np.nan, np.full(59, 0.01)], "user_clip_share": np.r_[np.nan, np.ones(59)]}
        return lengthened(changed(history, per_step={**history.per_step, **clipped})).cause

    assert "something is added after it" in cause(lambda norms: norms[1:])
    assert cause(lambda norms: norms[:-1]) == ""


@pytest.mark.parametrize(
    ("seen", "loss", "said"),
    [
        (0.0, np.full(60, 2.0), ["warning"]),
        (0.0, np.geomspace(2.0, 0.01, 60), ["note"]),
        (np.where(np.arange(59) % 2, 0.0, 1.0), np.full(60, 2.0), []),  # now here, now there
        (1e-30, np.full(60, 2.0), []),
    ],
)
def test_a_clip_that_sees_no_gradient(seen, loss, said):
    found = clip_without_gradient(run_with(lambda norms: np.broadcast_to(seen, 59), loss=loss))
    assert [f.severity for f in found] == said
    assert all(f.tries == ("--clip 'ClipByGlobalNorm(0.5)'",) for f in found)


def test_clips_of_parts_are_not_judged():
    """A critic, and an actor that has no gradient yet."""
    history = run_with(lambda norms: 0 * norms[1:], loss=np.full(60, 2.0))
    shares = {"user_clip_share": np.r_[np.nan, np.full(59, 0.5)]}
    assert clip_without_gradient(changed(history, per_step={**history.per_step, **shares})) == []


def test_of_a_training_that_succeeds_it_is_a_note():
    (found,) = clip_after_step(run_with(lambda norms: norms[:-1], loss=np.geomspace(2.0, 0.01, 60)))
    assert found.severity == "note"


def test_of_a_limit_that_no_norm_comes_to_it_is_a_note():
    (found,) = clip_after_step(run_with(lambda norms: norms[:-1], limit=1e9, loss=np.full(60, 2.0)))
    assert (found.severity, found.evidence["above"]) == ("note", 0)


@pytest.mark.parametrize(
    "seen",
    [
        lambda norms: norms[1:],  # between backward and step
        lambda norms: np.where(np.arange(len(norms) - 1) % 2, norms[:-1], norms[1:]),  # now here, now there
        lambda norms: np.where(np.arange(len(norms) - 1) < 9, norms[:-1], np.nan),  # too few calls
        lambda norms: 1.01 * norms[:-1],  # of other gradients
    ],
)
def test_of_others_nothing_is_said(seen):
    assert clip_after_step(run_with(seen)) == []


def test_gradients_that_never_change_are_not_told_apart():
    history = run_with(lambda norms: norms[:-1])
    same = np.full(len(history), 3.0)
    history = changed(history, per_step={**history.per_step, "grad_norm": same, "user_grad_norm": same})
    assert clip_after_step(history) == []
