"""The screen of a run that goes on: it fits, it says what is so, and it says each finding once."""

import re
from html import unescape

import numpy as np
import pytest
from make_run import changed, make_history
from rich.cells import cell_len
from rich.console import Console

from gradwatch.analysis.rules import diagnose
from gradwatch.report.live_view import BARS, LiveView, curves, mime_bundle, news, plain_line, sparkline, standing_out

NAMES = tuple(f"a.very.long.name.of.a.layer.that.is.deep.in.some.network.{i}.weight" for i in range(40))


def screen(history, width, height):
    console = Console(width=width, height=height, force_terminal=False)
    shown = LiveView(history, diagnose(history))
    options = console.options.update(width=width, height=height)
    return ["".join(s.text for s in line) for line in console.render_lines(shown, options, pad=False)][:height]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (200, 50), (40, 12)])
@pytest.mark.parametrize("nan_at", [None, 150])
def test_it_fits_the_screen(width, height, nan_at):
    history = make_history(200, NAMES, nan_at=nan_at, total_steps=5000, logged=("loss", "val_accuracy", "x" * 60))
    lines = list(LiveView(history, diagnose(history)).__rich_console__(Console(), _options(width, height)))
    assert len(lines) <= height
    assert max(cell_len(line.plain) for line in lines) <= width
    said = "\n".join(line.plain for line in lines)
    assert "step 200 of 5,000" in said
    assert "total norm" in said
    assert ("error: nonfinite at step 150" in said) == (nan_at is not None)
    assert "clip rate" in said
    if width >= 80:
        assert "threshold 1" in said


def _options(width, height):
    return Console(width=width).options.update(width=width, height=height)


def test_a_curve_is_drawn_from_low_to_high_and_steps_without_a_number_are_marked():
    assert sparkline(np.arange(8.0), 8) == BARS
    assert sparkline(np.array([1.0, np.inf, 2.0]), 3) == f"{BARS[0]}×{BARS[-1]}"
    assert sparkline(np.array([1.0, np.nan, 2.0]), 3) == BARS[0] + BARS[-1]  # not logged in that step
    assert sparkline(np.array([1.0, 10.0, 1.0, 100.0]), 2, log=True) == BARS[0] + BARS[-1]  # a spike is kept
    assert sparkline(np.array([3.0, 3.0]), 2) == BARS[0] * 2
    assert sparkline(np.array([np.nan, np.inf]), 2, log=True) == "××"
    assert sparkline(np.zeros(0), 5) == ""


def test_a_layer_stands_out_when_its_norm_leaves_what_is_usual():
    history = make_history(300)
    assert standing_out(history) == []
    norm = history.layer("grad_norm").copy()
    norm[-60:, 3] *= 50
    norm[-60:, 5] = 0
    found = standing_out(changed(history, per_layer={**history.per_layer, "grad_norm": norm}))
    assert [layer.name for layer in found] == [history.layers[5], history.layers[3]]
    assert found[1].now == pytest.approx(50 * np.median(norm[:250, 3]), rel=0.5)
    assert [layer.nonfinite for layer in standing_out(make_history(200, nan_at=50))] == [1]
    norm[20:, 2] = 0  # so long that 0 is its usual norm
    dead = standing_out(changed(history, per_layer={**history.per_layer, "grad_norm": norm}))
    assert history.layers[2] in [layer.name for layer in dead]


def test_what_a_policy_and_the_loss_do_is_said():
    said = {curve.name: curve.said for curve in curves(make_history(200))}
    assert list(said) == ["loss", "val_accuracy", "total norm", "clip rate"]
    assert "threshold 1" in said["total norm"]
    assert said["clip rate"].endswith("of the last 50")
    assert "clip rate" not in {curve.name for curve in curves(make_history(200, clip=None))}


def test_a_loss_that_is_lost_is_not_shown_as_its_last_number():
    history = make_history(100)
    loss, norm = history.total("loss").copy(), history.total("grad_norm").copy()
    loss[80:], norm[80:] = np.nan, np.nan
    lost = np.where(np.arange(100) >= 80, 7.0, 0.0)
    history = changed(history, per_step={**history.per_step, "loss": loss, "grad_norm": norm, "nonfinite": lost})
    said = {curve.name: curve.said for curve in curves(history)}
    assert said["loss"].startswith("inf or NaN (gradients since step 80); ")
    assert said["total norm"].startswith("inf or NaN")


def test_a_line_for_a_log_and_each_finding_once():
    history = make_history(200, nan_at=150)
    assert plain_line(history).startswith("step 200 of 200 · 20 steps/s · ")
    known: set[tuple[str, ...]] = set()
    found = diagnose(history)
    assert news(found, known).lines[0] == "error: nonfinite at step 150 in blocks.0.mlp.weight"
    assert news(found, known).lines == []


def test_names_of_strangers_do_not_steer_the_terminal():
    lines = screen(make_history(100, ("a\x1b[2Jb", "c"), logged=("lo\x1bss",), nan_at=None, name="n\x1b[31m"), 80, 24)
    assert not any("\x1b" in line for line in lines)


def test_a_notebook_gets_the_screen_as_html_and_as_text():
    history = make_history(200, nan_at=150, name="<script>alert(1)</script>")
    shown = mime_bundle(LiveView(history, diagnose(history)))
    text = re.sub("<[^>]+>", "", shown["text/html"])
    assert unescape(text).split() == shown["text/plain"].split()
    assert "error: nonfinite at step 150" in shown["text/plain"]
    assert "<script" not in shown["text/html"]
