"""What is said of a loss that is one of several, or has no scale: a rival's, a term of a sum, a penalty, rewards."""

import numpy as np
import pytest
from make_run import changed, make_history

from gradwatch.analysis.rules.long_steps import lr_too_high
from gradwatch.analysis.rules.losses import has_rivals
from gradwatch.analysis.rules.negative_loss import negative_loss
from gradwatch.analysis.rules.no_progress import no_progress
from gradwatch.analysis.rules.registry import diagnose

STEPS = 400
ROW = np.arange(STEPS)
NOISE = np.sin(ROW * 1.7)
FALLS = np.exp(-ROW / 60)


def run(*names, rows=None, per_layer=None, **columns):
    """A calm run of these optimizers, which take turns, with these scalars logged (in those `rows`)."""
    made = tuple({"name": n, "class": "Adam", "settings": {"lr": 0.1}} for n in names or ["Adam"])
    history = make_history(STEPS, clip=None, logged=(), optimizers=made, status="FINISHED", modules={})
    at = np.ones(STEPS, bool) if rows is None else rows
    logged = {name: np.where(at, values, np.nan) for name, values in columns.items()}
    turns = [(names or ["Adam"])[i % max(1, len(names))] for i in ROW]
    layers = {**history.per_layer, **(per_layer or {})}
    return changed(history, per_layer=layers, per_step={**history.per_step, **logged}, optimizer=turns)


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


def test_a_loss_of_pairs_rests_where_no_more_of_them_can_be_told_apart():
    """It fell fast, so that its early median is no measure of what it won: 0.65 of its first value is left."""
    noise = np.random.default_rng(0).normal(size=STEPS)
    (found,) = no_progress(run(loss=2.07 + 1.1 * np.exp(-ROW / 40) + 0.3 * noise))
    assert found.severity == "note"
    assert 0.6 < found.evidence["left"] < 0.7


def test_first_weights_that_grow_are_no_long_steps_where_no_loss_has_a_size():
    """A table of moves grows from small first weights; the loss of a policy gradient does not say whether it should."""
    grows = np.where(ROW[:, None] % 10 == 0, 1.0 + 4 * np.minimum(ROW[:, None], 50) / 50, np.nan) * np.ones(7)
    of = {"per_layer": {"weight_norm": grows, "update_ratio": np.where(np.isnan(grows), np.nan, 0.03)}}
    assert lr_too_high(run(loss=0.3 * NOISE, **of)) == []
    (found,) = lr_too_high(run(loss=2 + 0.1 * NOISE, **of))
    assert "weights grew" in found.cause


def test_a_run_that_logs_a_loss_of_values_has_losses_that_follow_the_return():
    rises = 1 + ROW / 100 + 0.01 * NOISE
    for name in ("value_loss", "losses/v_loss", "train/critic_loss", "qf1_loss", "td_loss"):
        assert roots(run(**{name: rises})) == []
        assert roots(run(loss=rises, **{name: rises / 2})) == []  # their sum, with a policy's
    assert roots(run(loss=rises, policy=0.1 * NOISE, value=rises / 2)) == []  # no loss by their names
    assert roots(run(loss=rises, policy=0.1 * NOISE)) != []
    for name in ("aux_loss", "quality_loss", "loss_of_evolution"):
        assert roots(run(**{name: rises})) != []
