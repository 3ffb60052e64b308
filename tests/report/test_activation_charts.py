"""What the report says of activations: the maps, the modules that stand out, where a NaN was born; nothing without."""

from dataclasses import replace

import numpy as np
import pytest
from make_run import make_history

from gradwatch.analysis.rules import Finding, diagnose
from gradwatch.report.activations import activation_charts, as_layers, module_summaries, outlying
from gradwatch.report.build import build_report
from gradwatch.report.downsample import heatmap
from gradwatch.report.html import render_html
from gradwatch.report.terminal import make_console, show_run
from gradwatch.table import Table, stack
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


def test_modules_stand_in_the_order_of_the_forward_pass_though_the_model_defines_them_in_another():
    history = with_activations(make_history(), order={(..., 1): 7.0, (0, 0): 9.0})  # of the first step alone
    wanted = ("h.0.act", "h.1.act", "h.1", "<b>head</b>", "h.0")
    assert tuple(module.name for module in module_summaries(history)) == wanted
    assert as_layers(history, "rms").layers == wanted


def with_heads(history, entropy=0.5):
    """The run with activations of its modules and of three heads."""
    found = with_activations(history)
    heads = tuple(f"h.0.attn[{i}]" for i in range(3))
    t = len(found.activations)
    values = {
        "logit_bound": np.full((t, 3), 90),
        "logit_max": np.array([1.0, 2, 40]) * np.ones((t, 1)),
        "entropy": np.full((t, 3), entropy),
    }
    table = replace(found.activations, values={k: v.astype(np.float32) for k, v in values.items()}, layers=heads)
    both = stack([found.activations, table])
    rows = np.arange(t)
    joined = {q: np.where(np.isnan(v[rows]), v[rows + t], v[rows]) for q, v in both.values.items()}
    return replace(found, activations=replace(found.activations, values=joined, layers=both.layers))


def test_heads_have_maps_of_their_own_and_are_no_modules():
    history = with_heads(make_history())
    charts = activation_charts(history)
    assert [chart.tab for chart in charts] == ["RMS", "largest |a|", "saturated share", "attention logits",
                                               "attention entropy"]  # fmt: skip
    assert charts[-2].title == "Activations: attention logits, most in h.0.attn[2] (40), least in h.0.attn[0] (1)"
    assert charts[-2].figure["data"][0]["y"] == [f"h.0.attn[{i}]" for i in range(3)]
    assert charts[0].figure["data"][0]["y"][:2] == ["h.0.act", "h.0"]
    assert "attn" not in str(charts[0].figure["data"][0]["y"])
    assert charts[-1].note.startswith("Heads in the order")
    assert [m.name for m in module_summaries(history)] == [*MODULES]


def test_where_heads_are_too_many_to_draw_the_sharpest_is_kept():
    history = with_heads(make_history())
    history.activations.values["entropy"][0, -1] = 0.01
    shown = as_layers(history, "entropy")
    assert heatmap(shown, "entropy", max_rows=1, max_columns=1, lowest=True).value.tolist() == [[pytest.approx(0.01)]]
    assert heatmap(shown, "entropy", max_rows=1, max_columns=1).value.tolist() == [[pytest.approx(0.5)]]


def test_heads_that_were_scaled_have_maps_and_keys():
    history = make_history()
    steps = history.by_step.take(np.arange(0, len(history), 10))
    values = {"qk_clips": np.array([0.0, 2, 9]), "logit_max": np.array([50.0, 120, 300])}
    wide = {name: (each * np.ones((len(steps), 1))).astype(np.float32) for name, each in values.items()}
    history = replace(history, heads=replace(steps, values=wide, layers=tuple(f"h.0.attn[{i}]" for i in range(3))))
    first, second = activation_charts(history)
    assert first.title == (
        "Activations: steps in which QKClip scaled a head, most in h.0.attn[2] (180), least in h.0.attn[0] (0)"
    )  # in twenty samples of ten steps
    bar = first.figure["data"][0]
    assert (bar["zmin"], bar["zmax"]) == (0, 9)  # a count as it is, not its logarithm
    assert second.tab == "largest logits, which QKClip bounds"
    points = {p.key: p.value for w in windows(history, 50, 16, ended=True) for p in w.points}
    wanted = {"qk_clips/largest": 9, "qk_logit/largest": 300, "qk_logit/median": 120}
    assert {key: value for key, value in points.items() if key.startswith("qk_")} == wanted


def test_the_scale_of_counts_leaves_none_out():
    history = make_history()
    steps = history.by_step.take(np.arange(0, len(history), 10))
    clips = np.ones((len(steps), 12), np.float32)
    clips[:, 0] = 1000.0  # of what is drawn as its logarithm such a row is beyond the scale
    names = tuple(f"h.0.attn[{i}]" for i in range(12))
    for quantity, leaves_out in (("qk_clips", False), ("logit_max", True)):
        (chart,) = activation_charts(replace(history, heads=replace(steps, values={quantity: clips}, layers=names)))
        assert ("leaves out 1 row above" in chart.note) == leaves_out


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


def test_a_module_that_was_recorded_at_first_alone_stands_out_no_more():
    late = {(-1, at): np.nan for at in (1, 2)}
    history = with_activations(make_history(), rms=late, nonfinite={(-1, 2): 1.0})
    assert {module.name for module in outlying(module_summaries(history))} == {*MODULES} - {"h.0"}


def test_the_finding_of_a_nan_names_the_module_whose_output_was_one_first():
    def born(at):
        found = with_activations(make_history(nan_at=100), nonfinite={(at, 3): 1.0, (at, 2): 1.0, (9, 0): 1.0})
        (finding,) = (f for f in diagnose(found) if f.rule == "nonfinite")
        return finding.evidence.get("first_activation"), "h.1.act" in finding.cause

    assert born(5) == ("h.1.act", True)  # step 100: the step of the first such gradient
    assert born(6) == (None, False)  # step 120: by then it is everywhere


def test_while_all_such_steps_are_skipped_a_later_sample_and_the_weights_show_where_a_nan_is_born():
    def found(skipped, weight=None):
        history = with_activations(make_history(every=1), nonfinite={(6, 2): 1.0})
        history.layer("grad_norm")[100:, 1:3] = np.nan
        history.layer("nonfinite")[100:, 1:3] = 1
        for name in ("grad_norm", "clipped_norm"):
            history.per_step[name][100:] = np.nan
        history.per_step["skipped"][100:] = float(skipped)
        if weight is not None:
            history.layer("weight_norm")[weight:, 1] = np.nan
        (finding,) = (f for f in diagnose(history) if f.rule == "nonfinite")
        return finding, history.layers[1]

    finding, _ = found(skipped=True)
    assert finding.evidence["first_activation"] == "h.1.act"
    assert "weights" not in finding.evidence
    finding, _ = found(skipped=False)  # step 100 was sampled, and step 120, whose weights the steps before have ruined
    assert "first_activation" not in finding.evidence
    assert "the outputs of all 5 modules that were recorded were finite" in finding.cause
    finding, layer = found(skipped=True, weight=100)
    assert finding.evidence["weights"] == layer
    assert f"The weights of {layer} are not finite themselves" in finding.cause
    assert "weights" not in found(skipped=False, weight=100)[0].evidence
    assert found(skipped=False, weight=90)[0].evidence["weights"] == layer


def test_mlflow_gets_the_largest_and_the_median_of_all_modules():
    history = with_activations(make_history())
    points = {p.key: p.value for window in windows(history, 50, 16, ended=True) for p in window.points}
    wanted = {"rms/largest": 6.0, "rms/median": 4.0, "max/largest": 9.0, "max/median": 9.0, "dead/largest": 0.0}
    found = {k.removeprefix("activation_"): v for k, v in points.items() if k.startswith("activation_")}
    assert found == pytest.approx(wanted)
    points = {
        p.key: p.value for window in windows(with_heads(make_history()), 50, 16, ended=True) for p in window.points
    }
    wanted = {"attention_logit/largest": 40, "attention_logit/median": 2, "attention_entropy/median": 0.5}
    assert {k: v for k, v in points.items() if k.startswith("attention_")} == pytest.approx(wanted)
    assert points["activation_rms/largest"] == 6.0


def test_names_in_backticks_are_code_on_the_page_and_lone_backticks_are_themselves():
    report = build_report([make_history()])
    cause = "In `h.1.act`; <b>`<i>`</b> and ClipByNorm(1.0), ` too."
    finding = Finding("activation-outlier", "warning", (), 0, 9, {}, cause, "Look at `h.0`.")
    page = render_html(replace(report, runs=(replace(report.runs[0], findings=(finding,)),)))
    shown = (
        "In <code>h.1.act</code>; &lt;b&gt;<code>&lt;i&gt;</code>&lt;/b&gt; and <code>ClipByNorm(1.0)</code>, ` too."
    )
    assert shown in page
    assert "Look at <code>h.0</code>." in page
