"""Reports and verdicts of runs in which several optimizers or parts step on their own."""

import base64

import numpy as np
import pytest
import torch
from make_run import changed, make_history, write_shared
from pages import figures, titles, unpack
from training import mlp, train, watch

from gradwatch import GradwatchWarning, open_history
from gradwatch.analysis.comparison import compare
from gradwatch.analysis.final_values import diverged
from gradwatch.analysis.rules import diagnose, verdict
from gradwatch.analysis.suggest import suggest
from gradwatch.report import build_report, render_html, write_overview
from gradwatch.report.downsample import heatmap
from gradwatch.report.run_charts import clip_charts, logged_charts, norm_chart
from gradwatch.report.text import render_json, render_markdown


def scaled(history, factor, rows=slice(None)):
    norm, total = history.layer("grad_norm").copy(), history.total("grad_norm").copy()
    norm[rows] *= factor
    total[rows] *= factor
    return changed(
        history,
        per_layer={**history.per_layer, "grad_norm": norm},
        per_step={**history.per_step, "grad_norm": total},
    )


def gan(parent, g=None, d=None, name="gan"):
    """200 steps of G with a clip, 400 of D without."""
    g = g if g is not None else make_history(steps=200)
    d = d if d is not None else make_history(steps=400, seed=1, clip=None, layers=("in.weight", "out.weight"))
    return open_history(write_shared(parent, name, G=g, D=d))


# ----------------------------------------------------------------------------------------------------------- verdicts


def test_a_healthy_run_of_parts_of_very_different_norms_is_healthy(tmp_path):
    large = scaled(make_history(steps=400, logged=()), 1e4)  # where D ends, the norms of all rows jump
    small = make_history(steps=50, seed=1, clip=None, logged=())
    assert verdict(gan(tmp_path, large, small)) == "no findings"


def test_a_part_that_explodes_is_found_beside_one_that_does_not(tmp_path):
    sick = scaled(make_history(steps=200, seed=1, clip=None, logged=()), 1e4, slice(100, None))
    history = gan(tmp_path, d=sick)
    assert verdict(history) == "exploding at step 100 in D"
    assert diagnose(history)[0].to_json()["optimizer"] == "D"


def rising(history):
    """A loss that falls to 0.7 and rises to 1.2, as in a game that the other side wins."""
    loss = 0.7 + 0.3 * np.exp(-history.step / 20) + 0.5 * np.clip(history.step / 100 - 1, 0, None)
    return changed(history, per_step={**history.per_step, "loss": loss})


def test_a_loss_that_another_part_drives_up_is_no_explosion(tmp_path):
    history = gan(tmp_path, rising(make_history(steps=200)))
    assert verdict(history) == "no findings"
    assert verdict(open_history(next(tmp_path.iterdir()) / "G")) == "no findings"
    assert verdict(rising(make_history(steps=200))).startswith("lr-too-high at step")  # of a run without rivals it is
    alone = gan(tmp_path, rising(make_history(steps=200)), make_history(steps=200, logged=()), "pipeline")
    assert verdict(alone).startswith("lr-too-high at step")  # nor has a pipeline any, whose last stage alone has a loss


def test_each_part_is_judged_by_its_own_policy(tmp_path):
    history = gan(tmp_path)
    assert {name: lane.run.clip for name, lane in history.lanes().items()} == {"D": None, "G": make_history().run.clip}
    assert [(s.optimizer, s.policy[:16], s.reasons[0][:4]) for s in suggest(history, [])] == [
        ("D", "ClipByGlobalNorm", "Noth"),
        ("G", "", "Keep"),
    ]


def test_a_dying_part_is_not_hidden_by_the_living_layers_of_another(tmp_path):
    dead = make_history(steps=200, layers=("a", "b"), clip=None)
    dead.layer("grad_norm")[100:] = 0
    (finding,) = diagnose(gan(tmp_path, d=dead))
    assert (finding.rule, finding.severity, finding.layers) == ("dead-layer", "error", ("D.a", "D.b"))


def test_the_earliest_part_to_fail_heads_the_verdict(tmp_path):
    history = gan(tmp_path, g=make_history(nan_at=50), d=make_history(nan_at=30, seed=1))
    assert verdict(history) == "nonfinite at step 30 in D.blocks.0.mlp.weight"
    assert [f.layers[0][0] for f in diagnose(history)] == ["D", "G"]


def test_what_no_optimizer_holds_is_named_once_and_in_its_own_part(tmp_path):
    d, g = (
        make_history(steps=50, unheld=(f"{part}.spare",), optimizers=({"name": part, "class": "Adam"},))
        for part in "DG"
    )
    found = diagnose(gan(tmp_path, g, d))
    assert [(f.rule, f.optimizer, f.layers) for f in found] == [
        ("not-in-optimizer", "D", ("D.spare",)),
        ("not-in-optimizer", "G", ("G.spare",)),
    ]


def test_of_two_optimizers_that_step_apart_one_lane_names_what_neither_holds():
    names = np.array(["SGD", "Adam"] * 100, dtype=object)
    run = {"unheld": ("spare",), "optimizers": ({"name": "SGD", "class": "SGD"}, {"name": "Adam", "class": "Adam"})}
    history = changed(make_history(steps=200, logged=(), clip=None, **run), optimizer=names)
    assert [(f.rule, f.optimizer, f.layers) for f in diagnose(history)] == [("not-in-optimizer", "SGD", ("spare",))]
    together = changed(history, optimizer=np.array(["SGD+Adam"] * 200, dtype=object))
    assert [(f.rule, f.layers) for f in diagnose(together)] == [("not-in-optimizer", ("spare",))]


@pytest.mark.parametrize("part", ["G", "D"])
def test_a_run_has_diverged_when_any_part_ended_so(tmp_path, part):
    sick = make_history(steps=200, nan_at=199, seed=2)
    assert diverged(gan(tmp_path, **{part.lower(): sick}))
    assert not diverged(gan(tmp_path, **{part.lower(): make_history(steps=200, nan_at=100)}))


# ------------------------------------------------------------------------------------------------------------ reports


def test_the_page_has_all_layers_and_one_line_for_each_part(tmp_path):
    history = gan(tmp_path)
    page = render_html(build_report([history]))
    heat = figures(page)[0]["data"][0]
    assert heat["y"] == [*history.layers]
    assert heat["y"][0].startswith("D.")
    names = [trace["name"] for trace in norm_chart(history).figure["data"]]
    assert names == ["D: before the clip", "G: before the clip", "D: after the clip", "G: after the clip"]
    lane = history.lanes()["G"]
    line = norm_chart(history).figure["data"][1]
    np.testing.assert_array_equal(unpack(line["x"]), lane.step)
    np.testing.assert_allclose(unpack(line["y"]), lane.total("grad_norm"), rtol=1e-6)
    (coef, rate), _ = clip_charts(history)
    assert [len(chart.figure["data"]) for chart in (coef, rate)] == [2, 2]
    assert rate.title.startswith("Clip rate: D 0 %, G ")
    assert {"loss/D: ", "loss/G: "} <= {title[:8] for title in titles(page)}
    assert "600 (finished): D 400, G 200" in page
    assert "total norm of G" in page


def test_the_learning_rate_has_a_line_for_each_part_where_one_moved(tmp_path):
    history = gan(tmp_path)
    history.per_step["lr"][history.optimizer == "D"] = 0.5
    assert not [chart for chart in logged_charts(history, [])[0] if chart.title.startswith("lr")]
    history.per_step["lr"][history.optimizer == "G"] = np.linspace(0.1, 0, 200)
    (chart,) = [chart for chart in logged_charts(history, [])[0] if chart.title.startswith("lr")]
    assert [trace["name"] for trace in chart.figure["data"]] == ["D: lr", "G: lr"]


def test_a_spike_of_each_part_survives_in_the_cell_of_its_step(tmp_path):
    g, d = make_history(steps=200), make_history(steps=400, seed=1)
    g.layer("grad_norm")[123, 3] = 1e6
    d.layer("grad_norm")[123, 4] = 1e7
    data = heatmap(gan(tmp_path, g, d), "grad_norm")
    assert data.value.shape == (14, 400)
    assert data.step.tolist() == list(range(400))
    assert (data.value[7 + 3, 123], data.value[4, 123]) == (1e6, 1e7)
    assert np.isnan(data.value[7:, 200:]).all()


def test_the_texts_say_it_of_each_part(tmp_path):
    report = build_report([gan(tmp_path)])
    assert "| total norm of D | median" in render_markdown(report)
    assert '"lanes": [\n        {\n          "name": "D",\n          "steps": 400' in render_json(report)
    assert build_report([make_history()]).runs[0].lanes == ()


def test_the_overview_is_drawn(tmp_path):
    write_overview(gan(tmp_path), tmp_path / "overview.png")
    assert (tmp_path / "overview.png").stat().st_size > 10_000


def test_runs_of_parts_are_compared_part_by_part(tmp_path):
    runs = [
        gan(tmp_path, make_history(steps=50, seed=s), make_history(steps=100, seed=s + 9, clip=None), f"gan{s}")
        for s in (0, 1)
    ] + [make_history(steps=50, clip=None)]
    report = build_report(runs)
    assert {"loss/D", "loss/G"} <= set(report.metrics)
    assert dict(zip(compare(runs)["policy"], compare(runs)["runs"], strict=True))["ClipByGlobalNorm(1.0) in G"] == 2
    norms = [f for f in figures(render_html(report)) if "gradient norm" in f["layout"]["yaxis"]["title"]["text"]]
    (chart,) = [f for f in norms if any("gan0" in trace["name"] for trace in f["data"])]
    names = [trace["name"] for trace in chart["data"]]
    clip = "ClipByGlobalNorm(1.0) in G"
    for lane, steps in (("D", 100), ("G", 50)):
        assert f"{clip} · gan0 · {lane}" in names
        (mean,) = [trace for trace in chart["data"] if trace["name"] == f"{clip} · mean of 2 · {lane}"]
        assert len(base64.b64decode(mean["x"]["bdata"])) // 4 == steps
        assert mean["line"]["dash"] == {"D": "solid", "G": "dash"}[lane]


def test_optimizers_of_one_watch_that_step_apart_are_lanes_too(tmp_path):
    model = mlp()
    first, second = torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.Adam(model[2].parameters(), lr=0.1)
    with watch(model, [first, second], tmp_path) as handle:
        with pytest.warns(GradwatchWarning, match="step together"):
            train(model, first, 20)
        train(model, second, 20)
    history = open_history(handle.dir)
    assert {name: len(lane) for name, lane in history.lanes().items()} == {"SGD": 20, "Adam": 20}
    assert history.lanes()["Adam"].layers == ("2.weight", "2.bias")
    assert [t["name"] for t in norm_chart(history).figure["data"]] == ["SGD: gradient norm", "Adam: gradient norm"]
