"""What the report and MLflow say of the histograms of gradients; nothing of a run without."""

from dataclasses import replace

import numpy as np
from make_run import make_history

from gradwatch.report.build import build_report
from gradwatch.report.gradient_histograms import histogram_charts
from gradwatch.report.html import render_html
from gradwatch.report.plotly_figures import unpacked
from gradwatch.table import Table
from gradwatch.tracking.metric_keys import windows

EXPONENTS = range(-48, 16, 2)


def with_histograms(history, lost=0.25, every=20):
    """The run with histograms: a share of the elements is below 2^-14, the rest in the bin above."""
    step = history.step[::every]
    shape = len(step), len(history.layers)
    values = {f"2^{e}": np.zeros(shape) for e in EXPONENTS}
    share = lost * np.linspace(0, 1, shape[1]) * np.ones((shape[0], 1))
    values["2^-16"], values["2^-14"] = share, 1 - share
    values |= {
        "zeros": np.zeros(shape),
        "below_fp16": share,
        "below_e4m3": np.ones(shape),
        "below_bf16": np.zeros(shape),
    }
    values = {name: v.astype(np.float32) for name, v in values.items()}
    table = Table(step, history.attempt[::every], history.optimizer[::every], values, history.layers)
    return replace(history, histograms=table)


def test_layers_stand_over_exponents_and_what_is_lost_over_steps():
    history = with_histograms(make_history())
    charts = histogram_charts(history)
    assert [chart.tab for chart in charts] == ["log2 |g|", "below fp16"]
    assert charts[0].title.endswith(f"at most 25.0 % ({history.layers[-1]})")
    drawn = unpacked(charts[0].figure["data"])[0]
    assert drawn["x"].tolist() == [*EXPONENTS]
    np.testing.assert_allclose(10 ** drawn["z"][-1][[16, 17]], [0.25, 0.75], rtol=1e-5)
    page = render_html(build_report([history]))
    assert "float16&#39;s normal numbers" in page or "float16's normal numbers" in page


def test_without_any_there_is_no_chart_and_without_a_loss_no_second():
    assert histogram_charts(make_history()) == []
    assert len(histogram_charts(with_histograms(make_history(), lost=0.0))) == 1


def test_mlflow_gets_three_curves():
    points = [p for w in windows(with_histograms(make_history()), 50, 16, ended=True) for p in w.points]
    found = {p.key: p.value for p in points if p.key.startswith("grad_below")}
    assert set(found) == {"grad_below_fp16/largest", "grad_below_fp16/median", "grad_below_e4m3/median"}
    assert found["grad_below_fp16/largest"] == 0.25
    assert not [p for w in windows(make_history(), 50, 16, ended=True) for p in w.points if "below" in p.key]
