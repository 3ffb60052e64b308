"""What the report says of activations: the maps, the modules that stand out, where a NaN was born; nothing without."""

from dataclasses import replace

import numpy as np
import pytest
from make_run import make_history

from gradwatch.analysis.rules import diagnose
from gradwatch.report.activations import activation_charts, module_summaries, outlying
from gradwatch.report.html import render_html
from gradwatch.report.model import build_report
from gradwatch.report.terminal import make_console, show_run
from gradwatch.table import Table
from gradwatch.tracking.metric_keys import windows

MODULES = ("h.0.act", "h.0", "h.1.act", "h.1", "<b>head</b>")


def with_activations(history, every=20, **changed):
    """The run with activations of five modules; `changed[quantity]` is put in by (row, module)."""
    step = history.step[::every]
    t, m = len(step), len(MODULES)
    act = np.array([name.endswith("act") for name in MODULES])
    values = {
        "rms": np.linspace(1, 2, t)[:, None] * np.linspace(1, 3, m),
        "max": np.linspace(5, 9, t)[:, None] * np.ones(m),
        "zeros": np.zeros((t, m)),
        "saturated": np.where(act, 0.25, np.nan) * np.ones((t, 1)),
        "dead": np.where(act, 0.0, np.nan) * np.ones((t, 1)),
        "nonfinite": np.zeros((t, m)),
        "order": np.arange(m) * np.ones((t, 1)),
    }
    values = {name: v.astype(np.float32) for name, v in values.items()}
    for name, cells in changed.items():
        for at, value in cells.items():
            values[name][at] = value
    table = Table(step, history.attempt[::every], history.optimizer[::every], values, MODULES)
    return replace(history, activations=table)


def test_a_run_with_activations_has_maps_and_the_page_holds_them():
    history = with_activations(make_history(), dead={(..., 2): 0.75})
    charts = activation_charts(history)
    assert [chart.tab for chart in charts] == ["RMS", "largest |a|", "saturated share", "dead units"]
    assert charts[0].title == "Activations: RMS, most in <b>head</b> (4.5), least in h.0.act (1.5)"
    page = render_html(build_report([history]))
    assert "Activations: dead units, most in h.1.act (75.0 %)" in page
    assert "<b>head</b>" not in page


def test_a_run_without_has_none():
    history = make_history()
    assert activation_charts(history) == []
    assert module_summaries(history) == ()
    assert "Activations" not in render_html(build_report([history]))


@pytest.mark.parametrize(
    ("quantity", "value"), [("nonfinite", 3.0), ("dead", 0.9), ("max", 1e4), ("saturated", 1.0), ("rms", 1e-5)]
)
def test_the_module_that_stands_out_is_shown_first(quantity, value):
    history = with_activations(make_history(), **{quantity: {(-1, 2): value}})
    assert outlying(module_summaries(history))[0].name == "h.1.act"
    console = make_console()
    with console.capture() as shown:
        console.print(show_run(build_report([history]).runs[0]))
    lines = shown.get().splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("Activations of the modules"))
    assert lines[head + 3].startswith("h.1.act")


def test_the_finding_of_a_nan_names_the_module_whose_output_was_one_first():
    def born(at):
        found = with_activations(make_history(nan_at=100), nonfinite={(at, 3): 1.0, (at, 2): 1.0, (9, 0): 1.0})
        (finding,) = (f for f in diagnose(found) if f.rule == "nonfinite")
        return finding.evidence.get("first_activation"), "h.1.act" in finding.cause

    assert born(5) == ("h.1.act", True)  # step 100: the step of the first such gradient
    assert born(6) == (None, False)  # step 120: by then it is everywhere


def test_mlflow_gets_the_largest_and_the_median_of_all_modules():
    history = with_activations(make_history())
    points = {p.key: p.value for window in windows(history, 50, 16, ended=True) for p in window.points}
    wanted = {"rms/largest": 6.0, "rms/median": 4.0, "max/largest": 9.0, "max/median": 9.0, "dead/largest": 0.0}
    found = {k.removeprefix("activation_"): v for k, v in points.items() if k.startswith("activation_")}
    assert found == pytest.approx(wanted)
