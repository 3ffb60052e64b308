"""How a report shows findings, in every format: first, each with its chart, what follows folded under its root."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from make_run import LAYERS, changed, make_history, write_shared
from pages import HOSTILE, figures, unpack
from rich.console import Console

from gradwatch import open_history
from gradwatch.analysis.rules import Finding
from gradwatch.analysis.suggest import suggest
from gradwatch.analysis.whatif import what_if
from gradwatch.report import build_report, render_html
from gradwatch.report.finding_charts import CHARTS, finding_chart
from gradwatch.report.run_charts import depth_charts
from gradwatch.report.terminal import show_run
from gradwatch.report.text import render_json, render_markdown
from gradwatch.report.wording import arguments, code_spans, evidence_text, where_text
from gradwatch.table import Table

LAYER = "blocks.1.mlp.weight"


def finding(rule="exploding", first=50, last=120, layers=(), severity="error", **more):
    more = {"cause": "Because.", "cure": "Use ClipByGlobalNorm(0.5) now.", **more}
    return Finding(rule, severity, tuple(layers), first, last, **more)


def report_of(history, *findings):
    report = build_report([history])
    return replace(report, runs=(replace(report.runs[0], findings=findings, verdict=findings[0].summary),))


def terminal(report):
    console = Console(record=True, width=200, file=io.StringIO(""))
    console.print(show_run(report.runs[0]))
    return console.export_text()


# --------------------------------------------------------------------------------------------------------- the charts


def test_the_chart_of_a_run_that_its_loop_clips_shows_that_clip():
    history = make_history(steps=200, clip=None)
    history.per_step["user_max_norm"] = np.full(200, 0.5)
    history.per_step["user_grad_norm"] = history.per_step["grad_norm"] * 3
    history.per_step["user_clip_coef"] = np.full(200, 1 / 3)
    history.per_step["user_clip_share"] = np.ones(200)
    chart = finding_chart(history, finding())
    (curve,) = chart.figure["data"]
    np.testing.assert_allclose(unpack(curve["y"]), history.per_step["user_grad_norm"], rtol=1e-6)
    assert "threshold 0.5" in [note["text"] for note in chart.figure["layout"]["annotations"]]


def frame(chart):
    (band,) = [shape for shape in chart.figure["layout"]["shapes"] if shape["type"] == "rect"]
    return band["x0"], band["x1"]


@pytest.mark.parametrize("rule", [*CHARTS, "exploding", "spike", "a rule nobody has written yet"])
def test_every_rule_has_a_chart_with_its_steps_marked(rule):
    history = make_history(steps=200)
    chart = finding_chart(history, finding(rule, 50, 120, [LAYER]))
    if rule == "vanishing":  # along the layers, in these steps alone
        assert frame(chart) == (4 - 0.3, 4 + 0.3)
        norms = history.layer("grad_norm")[50:121]
        np.testing.assert_allclose(unpack(chart.figure["data"][1]["y"]), np.median(norms, axis=0), rtol=1e-6)
        return
    assert frame(chart) == (49.5, 120.5)
    assert "steps 50 to 120" in [note["text"] for note in chart.figure["layout"]["annotations"]]
    assert chart.figure["data"]


def test_one_step_of_a_long_run_is_framed_wide_enough_to_be_seen():
    left, right = frame(finding_chart(make_history(steps=10_000), finding("spike", 5000, 5000)))
    assert left == 4999.5
    assert right - left >= 50


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        ("lr-too-high", "loss"),
        ("negative-loss", "loss"),
        ("schedule-too-short", "lr"),
        ("clip-is-your-learning-rate", "clip_coef"),
        ("spike", "grad_norm"),
    ],
)
def test_a_curve_shows_what_the_rule_is_about(rule, name):
    history = make_history(steps=200)
    chart = finding_chart(history, finding(rule))
    np.testing.assert_allclose(unpack(chart.figure["data"][0]["y"]), history.total(name), rtol=1e-6)


@pytest.mark.parametrize(
    ("rule", "quantity"),
    [("expert-starved", "tokens"), ("attention-collapsed", "entropy"), ("dead-units", "dead"),
     ("saturated", "saturated")],
)  # fmt: skip
def test_the_curve_of_a_share_lies_at_zero_where_it_is(rule, quantity):
    history = make_history(steps=60)
    at, shares = np.arange(0, 60, 10), np.tile(np.float32([0.6, 0.4, 0.0]), (6, 1))
    names = ("gate[0]", "gate[1]", "gate[2]")
    table = Table(at, np.zeros(6, np.int64), history.optimizer[at], {quantity: shares}, names)
    chart = finding_chart(replace(history, activations=table), finding(rule, 0, 59, ["gate[2]"]))
    assert unpack(chart.figure["data"][1]["y"]).tolist() == [0.0] * 6


def test_a_constraint_that_scales_no_unit_at_all_has_a_curve_at_zero():
    history = make_history(steps=60)
    history.per_layer["renorm_rate"] = np.zeros_like(history.per_layer["grad_norm"])
    chart = finding_chart(history, finding("renorm-binds", 0, 59, [LAYER]))
    assert set(unpack(chart.figure["data"][1]["y"])) == {0.0}


def test_the_loss_that_the_evidence_names_is_drawn():
    history = make_history(steps=100, logged=("loss", "kl_loss"))
    chart = finding_chart(history, finding("lr-too-high", evidence={"metric": "kl_loss"}))
    np.testing.assert_allclose(unpack(chart.figure["data"][0]["y"]), history.total("kl_loss"), rtol=1e-6)


@pytest.mark.parametrize("rule", ["lr-too-high", "update-too-large", "renorm-binds", "scaled-gradients"])
def test_what_was_not_recorded_is_shown_by_the_total_norm(rule):
    history = make_history(steps=100, logged=())
    history.per_layer.pop("update_ratio")
    chart = finding_chart(history, finding(rule, layers=[LAYER]))
    np.testing.assert_allclose(unpack(chart.figure["data"][0]["y"]), history.total("grad_norm"), rtol=1e-6)


def test_the_layers_of_a_finding_are_drawn_by_name():
    chart = finding_chart(make_history(steps=100), finding("update-too-large", layers=[LAYER, "head.bias"]))
    assert [trace["name"] for trace in chart.figure["data"]] == ["median of all layers", LAYER, "head.bias"]


def test_the_heat_map_shows_the_layers_and_their_neighbours_around_the_first_step():
    history = make_history(steps=5000, nan_at=2500, layers=tuple(f"l{i}.weight" for i in range(300)))
    history.layer("grad_norm")[2500, 200] = np.nan
    history.layer("nonfinite")[2500, 200] = 1
    chart = finding_chart(history, finding("nonfinite", 2500, 4999, ["l200.weight"]))
    rows = chart.figure["data"][0]["y"]
    assert "l200.weight" in rows
    assert len(rows) <= 20
    low, high = chart.figure["layout"]["xaxis"]["range"]
    assert 2400 < low < 2500 < high < 2600
    assert "of 300 layers" in chart.note
    assert "Red: inf or NaN" in chart.note


def test_a_part_is_drawn_from_its_own_steps(tmp_path):
    g, d = make_history(steps=100), make_history(steps=200, seed=1)
    history = open_history(write_shared(tmp_path, "gan", G=g, D=d))
    chart = finding_chart(history, replace(finding("exploding"), optimizer="G"))
    np.testing.assert_allclose(unpack(chart.figure["data"][0]["y"]), g.total("grad_norm"), rtol=1e-6)


def test_a_reduced_run_is_read_at_every_step():
    full = make_history(steps=300, clip=None, nan_at=100)
    full.total("grad_norm")[200] = 77.0
    third = full.by_layer.take(np.arange(0, 300, 3))
    steps = {"steps": np.full((100, len(full.layers)), 3, np.float32)}
    reduced = replace(full, by_layer=replace(third, values={**third.values, **steps}))
    chart = finding_chart(reduced, finding("spike", 200, 200))
    assert "highest 77 at step 200" in chart.title
    assert suggest(reduced, []) == suggest(full, [])
    totals = [outcome for outcome in what_if(full, []) if outcome.kind != "ClipByNorm"]
    assert list(what_if(reduced, [])) == totals
    assert "exploding at step 50" in render_html(report_of(reduced, finding()))


def test_a_run_without_norms_has_no_chart():
    history = make_history(steps=20)
    history.total("grad_norm")[:] = np.nan
    assert finding_chart(history, finding("exploding")) is None
    assert "exploding at step 50" in render_html(report_of(history, finding()))


# --------------------------------------------------------------------------------------------------------- the words


def test_a_cure_is_split_into_words_and_policy_texts():
    cure = 'Lower lr (a lot), then chain(SkipNonfinite(), ClipByGlobalNorm(0.5)) or only("rnn.*", AGC(0.01)).'
    texts = ["chain(SkipNonfinite(), ClipByGlobalNorm(0.5))", 'only("rnn.*", AGC(0.01))']
    assert [piece for piece, is_code in code_spans(cure) if is_code] == texts
    assert "".join(piece for piece, _ in code_spans(cure)) == cure
    assert arguments("Warm Adam(the rate of it), an open ClipByNorm(1.0, SGD (plain) and f(x) are prose.") == []
    assert arguments(cure) == [f'clip="{texts[0]}"', f"clip='{texts[1]}'"]
    assert arguments("MaxNorm(3.0) and MaxNorm(3.0)") == ['renorm="MaxNorm(3.0)"']
    constraints = "chain(MaxNorm(3.0), Renorm('inf', 0, 2.0))"
    assert arguments(constraints) == [f'renorm="{constraints}"']
    given = "Clip each layer: clip='AGC(0.01)', or renorm=\"Renorm(2, 0, 3.0)\"."
    assert arguments(given) == ["clip='AGC(0.01)'", 'renorm="Renorm(2, 0, 3.0)"']
    assert "".join(piece for piece, _ in code_spans(given)) == given


def test_where_names_steps_and_at_most_a_few_layers():
    assert where_text(finding(first=5, last=5)) == "step 5 · the whole model · possible cause"
    assert where_text(finding(first=1200, last=3400, layers="abc")) == "steps 1,200 to 3,400 · a, b, c · possible cause"
    assert where_text(finding(layers="abcdef")).endswith("a, b, c, d and 2 more layers · possible cause")
    assert where_text(replace(finding(), severity="note")).endswith("the whole model")
    assert where_text(finding(), follows=True).endswith("the whole model")
    assert where_text(replace(finding(), rule="nonfinite")).endswith("likely cause")
    assert evidence_text(finding(evidence={"grad_norm_growth": 412.34567, "metric": "loss", "steps": 31})) == (
        "grad norm growth: 412.3 · metric: loss · steps: 31"
    )


@pytest.mark.parametrize("render", [render_html, render_markdown, render_json, terminal])
def test_every_format_has_findings_suggestion_and_what_if(render):
    below = finding("vanishing", layers=[LAYER], cause="Thin.", cure="Add a norm.")
    report = report_of(make_history(clip=None), finding(evidence={"growth": 412.0}, consequences=(below,)))
    text = render(report).replace("\\", "").replace("&#34;", '"')
    suggested = report.runs[0].suggestions[0].policy
    for words in ("exploding", "412", "Because.", "vanishing", suggested, "AutoClip(99)", "ClipByNorm(", "ZClip(2.5)"):
        assert words in text, words
    whole = render is render_json
    assert ("Thin." in text, "Add a norm." in text) == (whole, whole)  # else its root has the cure
    if not whole:
        assert text.index("Because.") < text.index("vanishing") < text.index("AutoClip(99)")
        assert "the run would have gone another way" in " ".join(text.split())


def test_json_has_the_numbers():
    report = report_of(make_history(clip=None), finding())
    (run,) = json.loads(render_json(report))["runs"]
    assert run["what_if"][0]["policy"] == report.runs[0].what_if[0].policy
    assert run["what_if"][0]["clip_rate"] == report.runs[0].what_if[0].clip_rate
    assert run["suggestions"][0]["policy"] == report.runs[0].suggestions[0].policy


def test_findings_come_first_and_what_follows_is_folded():
    below = finding("vanishing", layers=[LAYER])
    page = render_html(report_of(make_history(), finding(consequences=(below,))))
    heading, details = page.index("Error: exploding at step 50"), page.index("<details>")
    end = page.index("</section>\n  </details>", details)
    assert heading < details < page.index("Error: vanishing at step 50") < end < page.index('<dl class="facts"')
    assert "clip=&#34;ClipByGlobalNorm(0.5)&#34;</pre>" in page
    assert len(figures(page)) == len(figures(render_html(report_of(make_history(), finding())))) + 1


def test_a_healthy_page_starts_with_its_facts():
    page = render_html(build_report([make_history()]))
    assert '<section class="card finding' not in page
    assert page.index('<dl class="facts"') < page.index("Keep ClipByGlobalNorm(1.0)")


def test_hostile_words_of_a_finding_add_no_element():
    evil = finding(HOSTILE, layers=[HOSTILE], cause=HOSTILE, cure=f"{HOSTILE} ClipByNorm({HOSTILE!r})",
                   evidence={HOSTILE: HOSTILE})  # fmt: skip
    page = render_html(report_of(make_history(layers=(HOSTILE, "b")), replace(evil, consequences=(evil,))))
    assert "<img" not in page
    assert page.count("<script") == render_html(build_report([make_history()])).count("<script")


# -------------------------------------------------------------------------------------------------- the depth profile


def test_the_depth_profile_is_the_median_of_each_layer_early_and_late():
    history = make_history(steps=100)
    history.layer("grad_norm")[90:] *= 1000
    chart = depth_charts(history)[0]
    early, whole, late = (unpack(trace["y"]) for trace in chart.figure["data"])
    norms = history.layer("grad_norm")
    np.testing.assert_allclose(early, np.median(norms[:10], axis=0), rtol=1e-6)
    np.testing.assert_allclose(whole, np.median(norms, axis=0), rtol=1e-6)
    np.testing.assert_allclose(late, np.median(norms[90:], axis=0), rtol=1e-6)
    times = whole[-1] / whole[0]
    assert chart.title == f"Depth profile: the gradient norm of head.bias is {times:.3g} times that of embed.weight"


def test_layers_that_are_0_in_most_steps_are_crosses_in_the_depth_profile():
    history = make_history(steps=20)
    assert all(trace.get("yaxis") is None for trace in depth_charts(history)[0].figure["data"])
    history.layer("grad_norm")[9:, 1] = 0
    history.layer("grad_norm")[12:, 2] = 0
    crosses = depth_charts(history)[0].figure["data"][-1]
    assert (crosses["name"], list(unpack(crosses["x"]))) == ("exactly 0 in most steps", [1])


def test_biases_are_left_out_of_the_depth_profile_where_shapes_are_known():
    history = make_history(steps=20)
    layers = tuple(replace(x, shape=(4,) if x.name.endswith("bias") else (4, 4)) for x in history.run.layers)
    chart = depth_charts(replace(history, run=replace(history.run, layers=layers)))[0]
    assert "head.bias" not in chart.figure["data"][0]["customdata"]
    assert "biases" in chart.note


def test_quantities_of_one_layer_or_none_have_no_depth_profile():
    assert depth_charts(make_history(steps=20, layers=("a",))) == []
    history = make_history(steps=20)
    history.per_layer.pop("update_ratio")
    assert len(depth_charts(history)) == 1
    history.layer("grad_norm")[:] = np.nan
    assert depth_charts(history) == []


def test_the_coefficient_of_the_loops_own_clip_is_drawn_and_not_that_of_no_policy():
    history = make_history(steps=200, clip=None)
    history.per_step["clip_coef"][:] = 1.0
    history.per_step.update(user_max_norm=np.full(200, 0.25), user_clip_coef=np.full(200, 0.25))
    chart = finding_chart(history, finding("clip-is-your-learning-rate"))
    drawn = next(trace for trace in chart.figure["data"] if trace.get("mode") == "lines")
    assert set(unpack(drawn["y"])) == {0.25}


def test_parts_have_depth_profiles_of_their_own():
    """A layer of one part is no deeper than one of another."""
    history = make_history(steps=40)
    turns = np.where(np.arange(40) % 2, "G", "D")
    norm = history.layer("grad_norm").copy()
    norm[np.ix_(turns == "D", range(4))] = norm[np.ix_(turns == "G", range(4, 7))] = np.nan
    columns = {"grad_norm": norm, "nonfinite": np.where(np.isnan(norm), np.nan, 0)}
    charts = depth_charts(changed(history, per_layer=columns, optimizer=turns))
    drawn = [{*chart.figure["data"][0]["customdata"]} for chart in charts]
    assert drawn == [{*LAYERS[4:]}, {*LAYERS[:4]}]
