"""What MLflow is told: names of blocks, and one point per window."""

import numpy as np
import pytest
from make_run import LAYERS, make_history

from gradwatch.tracking.metric_keys import Nonfinite, blocks, safe_name, windows

GPT = [f"h.{i}.{m}.{p}" for i in range(24) for m in ("attn", "mlp") for p in ("weight", "bias")]


def points(history, size, **options):
    """{key: [(step, value), ...]} of all closed windows."""
    out = {}
    for window in windows(history, size, 16, **{"ended": True, **options}):
        for point in window.points:
            out.setdefault(point.key, []).append((point.step, point.value))
    return out


def test_few_layers_keep_their_names():
    assert list(blocks(LAYERS, 16)) == list(LAYERS)


def test_many_layers_become_module_blocks_that_sort_in_model_order():
    found = blocks(GPT[: 12 * 4], 16)
    assert list(found) == [f"h.{i:02d}" for i in range(12)] == sorted(found)
    assert found["h.03"] == [12, 13, 14, 15]


def test_a_deep_stack_is_cut_into_ranges_not_into_one_block():
    found = blocks(["wte.weight", *GPT, "ln_f.weight"], 16)
    assert len(found) == 16
    assert "h.01..02" in found
    assert sorted(i for group in found.values() for i in group) == list(range(len(GPT) + 2))


def test_a_wide_flat_model_is_cut_into_ranges():
    found = blocks([f"p{i}" for i in range(40)], 4)
    assert list(found) == ["p0..p9", "p10..p19", "p20..p29", "p30..p39"]


@pytest.mark.parametrize("name", ["a/b", "Genauigkeit ü", "x" * 300, "../a//b%c/", "///", "..", "loss(train)", "é@1"])
def test_safe_names_are_accepted_by_mlflow(name):
    validation = pytest.importorskip("mlflow.utils.validation")
    validation._validate_metric_name(safe_name(name))
    if name in {"a/b", "Genauigkeit ü"}:
        assert safe_name(name) == name


@pytest.mark.parametrize("limit", [1, 4, 16])
@pytest.mark.parametrize("layers", [LAYERS, GPT, [f"p{i}" for i in range(40)]], ids=["small", "gpt", "flat"])
def test_every_layer_is_in_exactly_one_block(layers, limit):
    found = blocks(layers, limit)
    assert len(found) <= limit
    assert [i for group in found.values() for i in group] == list(range(len(layers)))


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
