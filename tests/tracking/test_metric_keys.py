"""What MLflow is told: one point per window."""

import json

import numpy as np
import pytest
from make_run import make_history

from gradwatch.tracking.clip_rates import Rates
from gradwatch.tracking.metric_keys import LAST_TIME, Nonfinite, windows
from gradwatch.tracking.mlflow_names import blocks

GPT = [f"h.{i}.{m}.{p}" for i in range(24) for m in ("attn", "mlp") for p in ("weight", "bias")]


def points(history, size, **options):
    """{key: [(step, value), ...]} of all closed windows."""
    out = {}
    for window in windows(history, size, 16, **{"ended": True, **options}):
        for point in window.points:
            out.setdefault(point.key, []).append((point.step, point.value))
    return out


def test_norms_keep_a_spike_of_one_step_and_rates_are_means():
    history = make_history(steps=100)
    history.per_step["grad_norm"][37] = 1e4
    found = points(history, 20)
    assert found["grad_norm/total"][1] == (39, 1e4)
    expected = history.per_step["clip_rate"].reshape(5, 20).mean(axis=1)
    np.testing.assert_allclose([v for _, v in found["clip/rate"]], expected)
    assert found["loss"][-1] == (99, history.per_step["loss"][99])
    assert len(found["lr"]) == 5


def test_a_logged_value_sits_at_its_own_step():
    assert points(make_history(steps=100), 20)["val_accuracy"][0][0] == 24


def test_what_is_logged_rarely_keeps_every_value():
    history = make_history(steps=100)  # an accuracy every 25 steps, a loss on each
    found = points(history, 50)
    assert [step for step, *_ in found["val_accuracy"]] == [24, 49, 74, 99]
    assert [step for step, *_ in found["loss"]] == [49, 99]


def test_nonfinite_is_counted_and_never_sent():
    history = make_history(steps=100, nan_at=50)
    history.per_step["grad_norm"][60] = np.inf
    found = points(history, 20)
    assert all(np.isfinite(v) for series in found.values() for _, v in series)
    assert [v for _, v in found["clip/nonfinite_steps"]] == [0, 0, 1, 1, 1]
    last = list(windows(history, 20, 16, ended=True))[-1]
    assert last.nonfinite == Nonfinite(1, 50, "blocks.0.mlp.weight")


@pytest.mark.parametrize("clock", [-1.0, -1e12, 1e12, 9e15, 1e300])
def test_an_absurd_clock_is_the_nearest_time_that_mlflow_takes(clock):
    validation = pytest.importorskip("mlflow.utils.validation")
    history = make_history(steps=40)
    history.per_step["time"][20:] = clock
    found = list(windows(history, 20, 16, ended=True))
    assert [window.stop for window in found] == [20, 40]
    for window in found:
        for point in window.points:
            validation._validate_metric(point.key, point.value, point.timestamp, point.step)
            assert 0 <= point.timestamp <= LAST_TIME


def test_a_window_without_a_finite_value_gives_no_point():
    history = make_history(steps=40)
    history.per_step["grad_norm"][20:] = np.nan
    found = points(history, 20)
    assert len(found["grad_norm/total"]) == 1
    assert len(found["clip/rate"]) == 2


def test_blocks_sum_up_norms_in_quadrature_and_rates_as_means():
    history = make_history(steps=10, layers=GPT, every=1)
    found = points(history, 10)
    norms = history.per_layer["grad_norm"].astype(float)
    group = blocks(GPT, 16)["h.00..01"]
    expected = np.sqrt((norms[:, group] ** 2).sum(axis=1)).max()
    assert found["grad_norm/h.00..01"][0][1] == pytest.approx(expected)
    assert found["update_ratio/h.00..01"][0][1] == pytest.approx(history.per_layer["update_ratio"][:, group].max())
    assert found["clip_rate/h.00..01"][0][1] == pytest.approx(history.per_layer["clip_rate"][:, group].mean())


def test_of_adams_rms_the_largest_of_all_layers_is_kept():
    history = make_history(steps=20)
    rms = np.ones((20, len(history.layers)))
    rms[4], rms[13, 1] = np.nan, 700
    history.per_layer["adam_rms"] = rms
    assert points(history, 10)["adam_rms/largest"] == [(9, 1), (19, 700)]


def test_an_open_window_waits_and_its_rest_is_one_more_point():
    history = make_history(steps=50)
    first = list(windows(history.slice(0, 30), 20, 16, ended=False))
    assert [w.stop for w in first] == [20]
    assert not list(
        windows(history.slice(0, 40), 20, 16, ended=False, start=20)
    )  # its last step may still be logged to
    cut = list(windows(history.slice(0, 30), 20, 16, ended=True, start=20))
    assert [w.stop for w in cut] == [30]
    rest = list(windows(history, 20, 16, ended=True, start=30))
    assert [w.stop for w in rest] == [40, 50]
    assert [p.step for w in rest for p in w.points if p.key == "lr"] == [39, 49]


# ------------------------------------------------------------------------------------------------------- clip rates


def clipped_history(steps=200, itself=False, **options):
    """A history whose policy clips rarely, at first more than later; the loop itself clips in some steps, if asked."""
    history, at = make_history(steps=steps, **options), np.arange(steps)
    history.per_step["clip_rate"][:] = (at % 7 == 0) & (at < 150)
    if itself:  # from step 100 on: half of the steps of a part of the run
        history.per_step["user_max_norm"] = np.where(at >= 100, 1.0, np.nan)
        history.per_step["user_grad_norm"] = np.where(at >= 100, np.where(at % 2, 4.0, 0.5), np.nan)
        history.per_step["user_clip_coef"] = np.where(at >= 100, np.where(at % 2, 0.25, 1.0), np.nan)
    return history


def test_the_rate_so_far_is_the_runs_rate_and_the_smoothed_one_follows_it():
    history = clipped_history()
    flags, found = history.per_step["clip_rate"], points(history, 20)
    steps = np.array([step for step, _ in found["clip/rate_so_far"]])
    np.testing.assert_allclose([v for _, v in found["clip/rate_so_far"]], [flags[: step + 1].mean() for step in steps])
    assert found["clip/rate_so_far"][-1] == (199, pytest.approx(flags.mean()))
    smoothed = np.array([v for _, v in found["clip/rate_smoothed"]])
    assert smoothed[0] == pytest.approx(flags[:20].mean())  # nothing is known before: no slow start from 0
    rate = np.array([v for _, v in found["clip/rate"]])
    assert np.abs(np.diff(smoothed)).max() < np.abs(np.diff(rate)).max() / 2
    assert 0 < smoothed[-1] < smoothed[7]  # the clip rests since step 150
    assert found["clip/rate"][-1] == (199, 0)  # which is what a table showed as the run's


@pytest.mark.parametrize("cuts", [(20,), (60, 100, 140), (100, 180)])
def test_a_courier_that_starts_anew_sends_the_same_points(cuts):
    """Each piece alone, as a courier reads it: the columns of the loop's clip are not there before its first call."""
    history = clipped_history(itself=True)
    whole = [window.points for window in windows(history, 20, 16, ended=True)]
    sent, state = [], {}
    for start, stop in zip((0, *cuts), (*cuts, 200), strict=True):
        piece = history.slice(start, stop)
        for name in [n for n in piece.per_step if n.startswith("user_") and np.isnan(piece.per_step[n]).all()]:
            del piece.per_step[name]
        found = list(windows(piece, 20, 16, ended=True, start=start, **state))
        sent += [window.points for window in found]
        kept = json.loads(json.dumps([found[-1].nonfinite, found[-1].rates]))  # as the cursor does
        state = {"nonfinite": Nonfinite(*kept[0]), "rates": Rates.from_json(kept[1])}
    assert sent == whole


def test_the_loops_own_clip_has_keys_of_its_own_from_its_first_call_on():
    found = points(clipped_history(itself=True), 20)
    assert [step for step, _ in found["loop_clip/rate"]] == [119, 139, 159, 179, 199]
    assert found["loop_clip/rate"][-1][1] == 0.5
    assert found["loop_clip/rate_so_far"][-1][1] == 0.25
    assert found["loop_clip/coef"][-1][1] == pytest.approx((0.25 + 1) / 2)
    last = points(clipped_history(itself=True), 20)["grad_norm/total"][-1][1]
    assert found["grad_norm/before_loop_clip"][-1][1] > last
    assert not [key for key in points(clipped_history(), 20) if "loop" in key]


def test_a_run_without_a_policy_sends_no_clip_rates_of_layers():
    def keys(**options):
        return {key for key in points(clipped_history(**options), 20) if key.startswith(("clip/", "clip_rate/"))}

    assert {key for key in keys() if key.startswith("clip_rate/")}
    assert keys(clip=None) == {key for key in keys() if key.startswith("clip/")}
    assert {"clip/rate", "clip/rate_so_far", "clip/rate_smoothed"} <= keys(clip=None)


@pytest.mark.parametrize(
    ("options", "brief"),
    [
        ({}, ["clip_rate_so_far", "loss", "norm_after", "norm_before", "norm_threshold"]),
        ({"clip": None}, ["loss", "norm_before"]),
        ({"clip": None, "itself": True}, ["clip_rate_so_far", "loss", "norm_after", "norm_before", "norm_threshold"]),
    ],
)
def test_a_runs_page_opens_on_what_has_a_shape(options, brief):
    """MLflow shows a section for each prefix, in the order of their bytes, and the charts of each in that of theirs."""
    history = clipped_history(**options)
    if "itself" in options:
        history.per_step["user_clip_share"] = np.where(history.step >= 100, 1.0, np.nan)
    found = points(history, 20)
    sections = sorted({key.partition("/")[0] for key in found if "/" in key})
    assert sections[0] == "Gradwatch"
    assert sorted(key.partition("/")[2] for key in found if key.startswith("Gradwatch/")) == brief
    assert found["Gradwatch/loss"] == found["loss"]
    before = found["grad_norm/before_loop_clip" if "itself" in options else "grad_norm/total"]
    assert found["Gradwatch/norm_before"][-len(before) :] == before
    if "norm_after" in brief:
        thresholds = {value for _, value in found["Gradwatch/norm_threshold"]}
        assert thresholds == {1.0}
        rates = found["loop_clip/rate_so_far" if "itself" in options else "clip/rate_so_far"]
        assert found["Gradwatch/clip_rate_so_far"] == rates
        assert [step for step, _ in found["Gradwatch/norm_after"]] == [step for step, _ in rates]


@pytest.mark.parametrize("name", ["loss", "train_loss", "train/loss", "training loss"])
def test_a_validation_loss_is_not_the_runs_loss(name):
    history = clipped_history(logged=(name, "val_loss", "loss_of_x", "val_accuracy"))
    found = [key for key in points(history, 20) if "loss" in key and key.startswith("Gradwatch")]
    assert found == [f"Gradwatch/{name}"]
