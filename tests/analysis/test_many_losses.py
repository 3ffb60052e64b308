"""What is said of a loss that is one of several, or has no scale: a rival's, a term of a sum, a penalty, rewards."""

import numpy as np
import pytest
from make_run import changed, make_history

from gradwatch.analysis.rules.losses import has_rivals
from gradwatch.analysis.rules.negative_loss import negative_loss
from gradwatch.analysis.rules.registry import diagnose

STEPS = 400
ROW = np.arange(STEPS)
NOISE = np.sin(ROW * 1.7)
FALLS = np.exp(-ROW / 60)


def run(*names, rows=None, **columns):
    """A calm run of these optimizers, which take turns, with these scalars logged (in those `rows`)."""
    made = tuple({"name": n, "class": "Adam", "settings": {"lr": 0.1}} for n in names or ["Adam"])
    history = make_history(STEPS, clip=None, logged=(), optimizers=made, status="FINISHED", modules={})
    at = np.ones(STEPS, bool) if rows is None else rows
    logged = {name: np.where(at, values, np.nan) for name, values in columns.items()}
    turns = [(names or ["Adam"])[i % max(1, len(names))] for i in ROW]
    return changed(history, per_step={**history.per_step, **logged}, optimizer=turns)


def roots(history):
    return [(f.rule, f.severity) for f in diagnose(history) if f.severity != "note"]


def test_losses_of_rivals_are_those_of_rivals_where_all_are_logged_at_the_end_of_an_iteration():
    judge, maker = 1.4 - FALLS + 0.02 * NOISE, 0.7 + 2 * (1 - FALLS) + 0.02 * NOISE
    both = run("D", "G", rows=ROW % 2 == 1, d_loss=judge, g_loss=maker)
    assert all(map(has_rivals, both.lanes().values()))
    assert roots(both) == []
    one = run("Muon", "AdamW", rows=ROW % 2 == 1, loss=maker, val_loss=maker)  # two optimizers of one model
    assert not has_rivals(one.lanes()["AdamW"])
    assert not has_rivals(run(loss=judge, aux_loss=maker))


@pytest.mark.parametrize(("total", "severities"), [(3 * FALLS + 0.5, {"note"}), (3.5 - FALLS, {"error", "warning"})])
def test_a_term_that_rises_while_the_sum_falls_is_a_note(total, severities):
    found = diagnose(run(loss=total + 0.01 * NOISE, kl_loss=0.1 + 3 * (1 - FALLS) + 0.01 * NOISE))
    assert {f.severity for f in found if f.evidence.get("metric") == "kl_loss"} <= severities
    assert bool(roots(run(loss=total + 0.01 * NOISE, kl_loss=0.1 + 3 * (1 - FALLS)))) == ("note" not in severities)


def test_a_training_loss_that_falls_excuses_no_loss_of_other_data():
    (found,) = diagnose(run(loss=3 * FALLS + 0.01, val_loss=2 + 0.1 * NOISE))
    assert (found.rule, found.severity, found.evidence["metric"]) == ("no-progress", "warning", "val_loss")


def test_a_loss_that_begins_at_nothing_has_no_scale():
    """GRPO's: its advantages cancel out, and what is left is a penalty on the way from the reference."""
    rises = 0.02 * (1 - FALLS) + 0.001 * np.abs(NOISE)
    assert roots(run(loss=rises - rises[0])) == []  # beside a gradient of about 0.6
    assert roots(run(loss=rises + 0.001)) != []


def test_rewards_that_are_maximised_are_no_divergence_without_a_logarithm():
    """Nor where single batches pay more than 1: a divergence of four classes ends below that."""
    paid = -0.55 - 0.2 * (1 - FALLS) - 0.3 * (ROW % 7 == 6)
    assert paid.min() < -1
    assert negative_loss(run(reward_loss=paid)) == []
    assert len(negative_loss(run(loss=paid - 0.6))) == 1
