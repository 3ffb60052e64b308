"""The report's data, its figures and its texts."""

import io
import json
import math
import re
import struct
import sys
import threading
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from make_run import make_history
from pages import figures, hostile_history, titles, unpack

from gradwatch.analysis.rules.facts import threshold
from gradwatch.errors import RunError
from gradwatch.formatting import percent, plus_minus, quantity_text
from gradwatch.report import build_report, render_html, write_overview
from gradwatch.report.comparison_charts import colors, sections
from gradwatch.report.downsample import GRID, bucket_mean, heatmap, thin
from gradwatch.report.heatmaps import heatmap_charts, heatmap_grid
from gradwatch.report.model import changed, summarize
from gradwatch.report.plotly_figures import PALETTE, short
from gradwatch.report.run_charts import logged_charts, noise_charts, norm_chart, update_charts
from gradwatch.report.terminal import show_run
from gradwatch.report.text import render_csv, render_json, render_markdown
from gradwatch.report.wording import facts
from gradwatch.tracking.views import description


def test_a_report_says_that_the_loop_itself_clips():
    history = make_history(steps=20, clip=None)
    assert "itself clips" not in render_markdown(build_report([history])) + render_html(build_report([history]))
    history.per_step["user_max_norm"] = np.where(np.arange(20) < 5, np.inf, 1.0)  # inf measures, it does not clip
    call = "The loop's own clip_grad_norm_(max_norm=1.0)"
    assert changed(history) == f"{call}: what it changed was not recorded"
    history.per_step["user_grad_norm"] = np.where(np.arange(20) % 2, 4.0, 0.5)
    assert changed(history) == f"{call} changed 40.0 % of 20 steps"
    history.per_step["user_clip_value"] = np.where(np.arange(20) < 5, 0.5, 2.0)
    report = build_report([history])
    calls = "clip_grad_norm_(max_norm=1.0), clip_grad_value_(clip_value=0.5 to 2.0)"
    assert ("the loop itself clips", calls) in facts(report.runs[0])
    assert calls in render_html(report)
    assert "itself clips" in render_markdown(report)


# ------------------------------------------------------------------------------------------------------- shrinking


def test_a_spike_of_one_step_survives_the_heat_map_and_the_line():
    history = make_history(steps=20_000)
    history.layer("grad_norm")[12_345, 3] = 1e6
    data = heatmap(history, "grad_norm")
    row, column = np.unravel_index(np.nanargmax(data.value), data.value.shape)
    assert data.rows[row] == history.layers[3]
    assert data.step[column] <= 12_345 < data.step[column] + data.steps_per_column
    values = np.random.default_rng(0).random(20_000)
    values[777], values[778] = 1e6, -1e6
    assert {777, 778} <= set(thin(values, 1000))
    assert len(thin(values, 1000)) <= 1000


def test_nonfinite_zero_and_absent_cells_are_three_things():
    history = make_history(steps=5_000, nan_at=2_500)
    norm = history.layer("grad_norm")
    norm[:, 4] = 0
    norm[:1000, 5] = np.nan
    data = heatmap(history, "grad_norm")
    assert data.nonfinite.sum() == 1
    assert data.nonfinite[2].any()
    assert data.zero.sum() == data.zero[4].sum() == len(data.step)
    absent = np.isnan(data.value) & ~data.nonfinite
    assert set(np.flatnonzero(absent.any(axis=1))) == {5}


def test_two_thousand_layers_become_two_hundred_rows_that_name_their_ends():
    history = make_history(steps=10, layers=tuple(f"l{i}" for i in range(2000)))
    data = heatmap(history, "grad_norm")
    assert data.value.shape == (200, 10)
    assert data.rows[0] == "l0 … l9"
    assert data.value[0, 0] == history.layer("grad_norm")[0, :10].max()


def test_bucket_mean_leaves_out_what_is_not_finite():
    rows, mean = bucket_mean(np.array([1.0, 3.0, np.nan, 5.0, np.nan, np.nan]), 3)
    assert list(rows) == [0, 2, 4]
    np.testing.assert_array_equal(mean, [2.0, 5.0, np.nan])


def test_a_quantity_that_was_never_recorded_has_no_heat_map():
    assert heatmap(make_history(steps=5), "renorm_rate") is None


# ------------------------------------------------------------------------------------------------------------ words


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("ClipByGlobalNorm(1.0)", 1.0),
        ("ClipByGlobalNorm(max_norm=2.5, norm_type=2)", 2.5),
        ("chain(SkipNonfinite(), ClipByGlobalNorm(0.5))", 0.5),
        ("ClipByGlobalNorm(1.0, norm_type=1)", None),
        ("only('rnn.*', ClipByGlobalNorm(1.0))", None),
        ("ClipByNorm(1.0)", None),
        ("ClipByGlobalNorm(__import__('os').getpid())", None),
        ("ClipByGlobalNorm('a')", None),
        ("ClipByGlobalNorm(-1)", None),
        ("chain(" * 5000 + ")" * 5000, None),
        ("not python(", None),
        (None, None),
    ],
)
def test_threshold_reads_the_policy_and_evaluates_nothing(text, limit):
    assert threshold(text) == limit


def test_what_is_left_out_of_a_median_is_said():
    whole, sick = make_history(steps=100), make_history(steps=100, nan_at=50)
    sick.total("grad_norm")[50] = np.nan
    for history, told in ((whole, False), (sick, True)):
        run = build_report([history]).runs[0]
        said = [dict(facts(run))["total norm"], norm_chart(history).title, description(history, "1", "2", {}, {})]
        assert [("of finite steps" in text) for text in said] == [told] * 3


def test_changed_is_the_share_of_all_steps():
    history = make_history(steps=1000)
    share = (history.total("clip_coef") < 1).mean()
    assert changed(history) == f"ClipByGlobalNorm(1.0) changed {100 * share:.1f} % of 1,000 steps"
    assert changed(make_history(steps=1, clip=None)).startswith("No clipping policy")


def test_a_share_is_never_rounded_to_none_or_all():
    assert [percent(x) for x in (0, 1e-6, 0.245, 0.99999, 1, math.nan)] == [
        "0 %", "<0.1 %", "24.5 %", ">99.9 %", "100 %", "–",
    ]  # fmt: skip


def test_plus_minus_has_the_decimals_the_spread_deserves():
    assert plus_minus(0.9534, 0.00412) == "0.9534 ± 0.0041"
    assert plus_minus(0.9534, math.nan) == "0.953"
    assert plus_minus(4.4812, 0.0) == "4.48 ± 0"
    assert plus_minus(math.nan, math.nan) == quantity_text(math.nan) == "–"
    assert plus_minus(2.5e20, 1e20) == "2.50e+20 ± 1.0e+20"


# ----------------------------------------------------------------------------------------------------------- report


def test_the_titles_say_what_is_seen():
    history = make_history(steps=300)
    history.total("grad_norm")[123] = 77.0
    page = render_html(build_report([history]))
    assert "Total gradient norm: median" in page
    assert "highest 77 at step 123" in page
    assert any("ClipByGlobalNorm(1.0) changed" in title for title in titles(page))
    assert any(title.startswith("loss: ") for title in titles(page))
    assert "no findings" in page


def test_the_page_names_what_is_wrong_and_what_is_missing():
    history = make_history(nan_at=50)
    history = replace(history, problems=("layers: parts 3 to 4 are missing",))
    history.per_layer.pop("update_ratio")
    page = render_html(build_report([history]))
    assert "nonfinite at step 50 in blocks.0.mlp.weight" in page
    assert "layers: parts 3 to 4 are missing" in page
    assert "Update ratio is not shown: this run did not record it." in page


def test_a_quantity_of_some_layers_is_drawn_of_these_and_its_title_names_the_largest():
    history = make_history()
    nothing = np.full_like(history.layer("weight_norm"), np.nan)
    largest, rows = nothing.copy(), nothing.copy()
    largest[::10, [1, 2]], rows[:, 2] = [3.0, 8.0], 0.25
    history.per_layer.update(sigma_max=largest, row_share=rows)
    charts = {chart.tab: chart for chart in heatmap_charts(history, summarize(history, ()))[0]}
    second, third = history.layers[1:3]
    chart = charts["Largest singular value"]
    assert chart.title == f"Largest singular value: largest in {third} (8), smallest in {second} (3)"
    assert chart.figure["data"][0]["y"] == [second, third]
    assert chart.note.startswith(f"2 of {len(history.layers)} layers, in model order.")
    assert charts["The largest row's share of the norm"].title.endswith(f": 25.0 % in {third}")
    assert "largest in" in charts["Gradient norm"].title


def test_a_noise_scale_of_nothing_is_drawn_too():
    history = make_history(steps=40)
    history.per_step["micro_batches"] = np.full(40, 2.0)
    for noise, axis in ((1.2, "log"), (0.5, None)):
        history.per_step["micro_grad_norm"] = noise * history.total("grad_norm")
        (chart,) = noise_charts(history)
        assert chart.figure["layout"]["yaxis"].get("type") == axis
        assert bool(unpack(chart.figure["data"][0]["y"]).any()) == (axis == "log")


def test_layers_are_in_model_order_from_the_top():
    drawn = figures(render_html(build_report([make_history()])))[0]
    assert drawn["data"][0]["y"][0] == "embed.weight"
    assert drawn["layout"]["yaxis"]["autorange"] == "reversed"


def test_the_heat_map_is_the_log_of_the_norm():
    history = make_history(steps=50)
    drawn = figures(render_html(build_report([history])))[0]
    np.testing.assert_allclose(unpack(drawn["data"][0]["z"]), np.log10(history.layer("grad_norm").T), rtol=1e-6)


def test_a_nonfinite_cell_is_marked_with_a_cross():
    drawn = figures(render_html(build_report([make_history(steps=5000, nan_at=2500)])))[0]
    cross = drawn["data"][-1]
    assert cross["y"] == ["blocks.0.mlp.weight"]
    assert abs(unpack(cross["x"])[0] - 2500) < 10


def test_without_a_policy_there_is_a_sentence_instead_of_clip_charts():
    page = render_html(build_report([make_history(clip=None)]))
    assert "No clipping policy: no gradient was clipped." in page
    assert not any("Clip rate" in title for title in titles(page))


@pytest.mark.parametrize(("steps", "layers"), [(1, 1), (1, 3), (2, 1), (30, 1)])
def test_the_smallest_runs(steps, layers, tmp_path):
    history = make_history(steps=steps, layers=tuple("abc"[:layers]))
    assert "<html" in render_html(build_report([history]))
    write_overview(history, tmp_path / "a.png")


def test_a_run_of_nothing_but_nan(tmp_path):
    history = make_history(steps=20)
    for values in (*history.per_layer.values(), *(v for k, v in history.per_step.items() if k != "nonfinite")):
        values[:] = np.nan
    history.layer("nonfinite")[:] = 1
    page = render_html(build_report([history]))
    assert "no step had a finite one" in page
    write_overview(history, tmp_path / "a.png")


def test_many_runs_have_one_section_per_setting_and_one_colour_per_policy():
    runs = [
        make_history(steps=40, seed=seed, clip=clip, optimizers=({"class": "SGD", "settings": {"lr": lr}},))
        for lr in (0.1, 2.0) for clip in ("AGC(0.01)", None) for seed in (0, 1)
    ]  # fmt: skip
    page = render_html(build_report(runs))
    assert re.findall(r"<h2>(.*?)</h2>", page) == ["lr = 0.1", "lr = 2.0", "Runs"]
    shades = {}
    for drawn in figures(page):
        for trace in drawn["data"]:
            shades.setdefault(trace["legendgroup"], set())
            if trace["type"] == "scatter":
                shades[trace["legendgroup"]].add(trace["line"]["color"])
    assert {policy: len(found) for policy, found in shades.items()} == {"AGC(0.01)": 1, "none": 1}


def test_the_charts_of_several_settings_have_one_scale():
    runs = [
        make_history(steps=40, seed=i, optimizers=({"class": "SGD", "settings": {"lr": lr}},))
        for i, lr in enumerate((0.1, 2.0))
    ]
    for history, factor in zip(runs, (1.0, 3.0), strict=True):
        history.per_layer["grad_norm"] *= factor
        history.total("grad_norm")[:] *= factor

    def ranges(histories):
        drawn = figures(render_html(build_report(histories)))
        axes = [chart["layout"]["yaxis"] for chart in drawn if "total gradient norm" in str(chart["layout"])]
        return [axis.get("range") for axis in axes]

    first, second = ranges(runs)
    assert first == second
    norms = np.concatenate([history.total("grad_norm") for history in runs])
    assert first[0] < np.log10(norms.min()) < np.log10(norms.max()) < first[1] < np.log10(norms.max()) + 1
    assert ranges([runs[0], runs[0]]) == [None]  # one section alone has its own
    runs[1].total("grad_norm")[20:] = np.geomspace(1, 1e18, 20)  # it comes apart
    first, second = ranges(runs)
    assert first[1] < 8 < 18 < second[1]


def test_a_page_of_runs_that_the_loop_clips_otherwise_tells_them_apart_and_when_each_began():
    runs = [make_history(steps=40, seed=seed, clip=None) for seed in (0, 1)]
    for history, limit in zip(runs, (0.01, 5.0), strict=True):
        history.per_step["user_max_norm"] = np.full(40, limit)
    report = build_report(runs)
    for page in (render_html(report), render_markdown(report)):
        assert all(f"clip_grad_norm_(max_norm={limit})" in page.replace("\\", "") for limit in (0.01, 5.0))
        assert runs[0].run.created[:19].replace("T", " ") in page


def test_the_mean_over_seeds_ends_where_a_seed_has_no_value():
    runs = [make_history(steps=40, seed=seed, logged=("accuracy",)) for seed in (0, 1)]
    for history, value in zip(runs, (0.2, 0.4), strict=True):
        history.total("accuracy")[:] = value
    runs[1].total("accuracy")[20:] = np.nan
    chart = figures(render_html(build_report(runs)))[0]
    (mean,) = [trace for trace in chart["data"] if "mean of 2" in trace["name"]]
    np.testing.assert_allclose(unpack(mean["y"]), 0.3, rtol=1e-6)
    assert unpack(mean["x"]).max() == 19


def test_the_title_of_what_was_logged_says_how_it_ended():
    history = make_history(steps=100, logged=("loss", "val_acc"))
    history.total("loss")[:] = np.where(np.arange(100) < 60, 2.0, np.nan)
    history.per_step["nonfinite"][59:] = 1
    history.per_step["was_nan/loss"] = np.where(np.arange(100) < 60, np.nan, 1.0)
    history.total("val_acc")[:] = np.nan
    history.total("val_acc")[[10, 50]] = 0.5, 0.75
    history.per_step["lr"] = np.linspace(1.0, 0.0, 100)
    made = {chart.title for chart in logged_charts(history, [])[0]}
    assert {t for t in made if t.startswith("loss")} == {"loss: 2 at first, inf or NaN at the end"}
    assert {t for t in made if t.startswith("val_acc")} == {"val_acc: 0.5 at first, 0.75 when it was last logged"}
    assert {t for t in made if t.startswith("lr")} == {"lr: 1 at first, 0 at the end"}


def test_a_run_that_was_resumed_says_with_which_steps():
    history = make_history(steps=40)
    attempt = np.repeat([0, 1, 2], [10, 20, 10])
    later = replace(history, by_step=replace(history.by_step, attempt=attempt))
    assert ("resumed", "at step 10, 30") in facts(summarize(later, []))
    apart = replace(history, run=replace(history.run, first_step=300))
    assert ("resumed", "at step 300") in facts(summarize(apart, []))
    assert "resumed" not in dict(facts(summarize(history, [])))


def test_nothing_to_report_is_an_error():
    with pytest.raises(RunError, match="no steps are recorded: mlp"):
        build_report([make_history(steps=3).slice(0, 0)])
    with pytest.raises(RunError, match="no runs were given"):
        build_report([])


def test_markdown_csv_and_json_hold_the_same_numbers():
    one, many = build_report([make_history()]), build_report([make_history(seed=s) for s in (0, 1)])
    assert render_markdown(one).count("\n| ") >= 7
    assert list(pd.read_csv(io.StringIO(render_csv(one)))["name"]) == list(one.histories[0].layers)
    assert pd.read_csv(io.StringIO(render_csv(many)))["runs"][0] == 2
    data = json.loads(render_json(many))
    assert data["comparison"][0]["loss"] == pytest.approx(many.comparison["loss"][0])
    assert [run["verdict"] for run in data["runs"]] == ["no findings", "no findings"]
    assert "NaN" not in render_json(one)


# ---------------------------------------------------------------------------------------------------- hostile names


class Scripts(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag in ("script", "img", "iframe", "link"):
            self.found.append((tag, dict(attrs).get("id")))


def test_hostile_names_add_no_element_to_the_page():
    plain = Scripts(render_html(build_report([make_history()]))).found
    assert Scripts(render_html(build_report([hostile_history()]))).found == plain
    both = render_html(build_report([hostile_history(), replace(hostile_history(), run=make_history().run)]))
    assert Scripts(both).found == plain


def test_hostile_names_in_charts_terminal_and_markdown(tmp_path):
    from rich.console import Console

    history = hostile_history()
    write_overview(history, tmp_path / "a.png")  # mathtext in a name must not be parsed
    console = Console(record=True, width=300, file=io.StringIO(""))
    console.print(show_run(build_report([history]).runs[0]))
    text = console.export_text()
    assert "[red]" in text
    assert "\x1b" not in text
    assert "<script>" not in render_markdown(build_report([history])).replace("\\<", "")


# ------------------------------------------------------------------------------------------------------ the picture


def test_the_overview_is_a_png_drawn_without_pyplot(tmp_path):
    sys.modules.pop("matplotlib.pyplot", None)
    errors = []

    def draw(i):
        try:
            write_overview(make_history(steps=50, seed=i, nan_at=20), tmp_path / f"{i}.png")
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=draw, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert "matplotlib.pyplot" not in sys.modules
    for i in range(3):
        head = (tmp_path / f"{i}.png").read_bytes()[:24]
        assert head.startswith(b"\x89PNG")
        assert struct.unpack(">II", head[16:24]) == (1100, 620)


def test_an_overview_that_cannot_be_written_says_so(tmp_path):
    with pytest.raises(RunError, match="cannot write"):
        write_overview(make_history(steps=5), tmp_path / "nowhere" / "a.png")


def test_an_overview_without_matplotlib_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(RunError, match=r"pip install 'gradwatch\[mlflow\]'"):
        write_overview(make_history(steps=5), tmp_path / "a.png")


def test_a_notebook_shows_the_page_in_a_frame_of_its_own(tmp_path):
    report = build_report([make_history()])
    shown = report._repr_html_()
    found = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: found.append((tag, dict(attributes)))
    parser.feed(shown)
    ((tag, attributes),) = found
    assert tag == "iframe"
    assert attributes["srcdoc"] == render_html(report)


def test_the_maps_of_a_comparison_fill_their_chart():
    members = {clip: [make_history(60, clip=clip)] for clip in ("ClipByNorm(1.0)", "ClipByNorm(2.0)", "AGC(0.01)")}
    maps = {id(run): heatmap(run, "grad_norm", *GRID) for (run,) in members.values()}
    layout = heatmap_grid(members, maps).figure["layout"]
    assert min(axis["domain"][0] for name, axis in layout.items() if name.startswith("yaxis")) == pytest.approx(0)


@pytest.mark.parametrize("lrs", [("0.1",), ("0.1", "0.2")])
def test_of_many_policies_the_best_of_each_setting_are_drawn_and_none(lrs):
    """The later a policy is named the better it is; none is the worst."""
    runs = []
    for lr in lrs:
        for i, clip in enumerate([None, *(f"ClipByNorm({i}.0)" for i in range(1, 15))]):
            run = make_history(40, clip=clip, params={"lr": lr})
            run.per_step["val_accuracy"][:] = i / 100
            runs.append(run)
    report = build_report(runs)
    found = sections(report.histories, report.metrics, report.heatmaps, report.comparison)
    assert len(found) == len(lrs)
    for section in found:
        assert [*section.members] == [*(f"ClipByNorm({i}.0)" for i in range(14, 3, -1)), "none"]
        assert section.note == "Drawn are 12 of 15 policies: those that the table has first, and none."
    page = render_html(report)
    assert page.count("Drawn are 12 of 15") == len(lrs)
    assert page.count('aria-pressed="true"') == 12 * len(lrs)
    assert colors(report.histories, report.comparison)["ClipByNorm(14.0)"] == PALETTE[0]


def test_a_seed_that_the_script_was_given_stands_in_a_row_once():
    runs = [
        make_history(60, seed=i, params={"seed": str(i), "args.seed": str(i), "args.data_seed": "7"}) for i in (0, 1)
    ]
    assert ">seed 1 · args.data_seed 7<" in render_html(build_report(runs))


def test_a_seed_is_said_once():
    params = {"args.seed": "3", "seed": "3", "args.random_seed": "3", "args.data_seed": "4", "lr": "0.1"}
    (run,) = build_report([make_history(40, params=params)]).runs
    assert [pair for pair in facts(run) if "seed" in pair[0]] == [("seed", "3"), ("args.data_seed", "4")]


@pytest.mark.parametrize(("name", "shown"), [
    ("0.weight", "0.weight"),
    ("transformer.h.10.attn.c_attn.weight", "…h.10.attn.c_attn.weight"),
    ("model.layers.31.self_attention.query_key_value.weight", "…31.self_atte…key_value.weight"),
    ("vit.embeddings.patch_embeddings.projection.weight", "vit.embedding…rojection.weight"),
])  # fmt: skip
def test_a_shortened_layer_keeps_the_number_of_its_block(name, shown):
    assert short(name) == shown
    assert len(shown) <= 30


def test_the_size_of_every_update_says_whether_it_was_measured_or_worked_out():
    history = make_history(steps=40)
    (chart,) = update_charts(history)
    assert "of the steps that measured it: of each layer update ratio times weight norm" in chart.note
    by_layer = replace(history.by_layer, values={**history.per_layer, "update_norm": history.layer("grad_norm")})
    (chart,) = update_charts(replace(history, by_layer=by_layer))
    assert "from a sample of at most 4,096 elements" in chart.note
    assert len(unpack(chart.figure["data"][0]["x"])) == 40
