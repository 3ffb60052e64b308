"""What a notebook shows of a Watch, a History and a Finding, and the figures that `history.plot()` gives."""

import re
from html import unescape

import pytest
import torch
from make_run import make_history, make_run

import gradwatch
from gradwatch.analysis.rules import Finding
from gradwatch.report import build_report, render_html

EVIL = "<script>alert(1)</script>"


@pytest.fixture
def history(tmp_path):
    return gradwatch.open_history(make_run(tmp_path, steps=120, nan_at=50))


def test_plot_gives_the_charts_of_the_report_as_figures(history):
    figures = history.plot()
    page = render_html(build_report([history]))
    titles = [unescape(figure.layout.title.text) for figure in figures]
    assert len(titles) > 8
    assert [title for title in titles if title not in unescape(page)] == []
    assert sum(len(figure.data) for figure in figures) > len(figures)
    (loss,) = (figure for figure in figures if figure.layout.title.text.startswith("loss: "))
    assert list(loss.data[0].y[:5]) == pytest.approx(history.total("loss")[:5], rel=1e-3)


def test_plot_takes_words_of_titles(history):
    (norm,) = history.plot("TOTAL gradient norm")
    assert norm.layout.title.text.startswith("Total gradient norm: ")
    with pytest.raises(ValueError, match=r"no chart has nothing-like-it in its title; there are: val_accuracy: "):
        history.plot("nothing-like-it")


def test_figures_show_themselves_in_a_frame_and_load_nothing(history):
    shown = history.plot("loss", "total")._repr_html_()
    assert shown.startswith('<iframe srcdoc="')
    inside = unescape(shown.partition('srcdoc="')[2].rpartition('" style=')[0])
    assert inside.count('class="plotly-graph-div"') == 3
    assert not re.findall(r"<script[^>]+src=|<link[^>]+href=", inside)


def test_a_history_is_one_line_and_shows_its_last_steps(history):
    assert repr(history) == "History('mlp', 120 steps x 7 layers, finished)"
    assert repr(history) in unescape(history._repr_html_())
    assert "grad_norm" in history._repr_html_()


def test_a_finding_shows_what_it_says_and_names_of_strangers_are_text():
    below = Finding("spike", "warning", (EVIL,), 5, 6)
    shown = Finding("exploding", "error", (EVIL,), 3, 9, {}, "Why.", f"Do {EVIL}.", consequences=(below,))._repr_html_()
    assert "<b>error: exploding at step 3 in " in shown
    assert "<br>Why." in shown
    assert "warning: spike at step 5" in shown
    assert EVIL not in shown
    assert EVIL not in make_history(40, name=EVIL)._repr_html_()


def test_a_watch_is_one_line_and_shows_its_plan_and_how_to_look_at_it(tmp_path):
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradwatch.watch(
        model, optimizer, clip="ClipByGlobalNorm(1.0)", log=None, dir=tmp_path, verbose=False
    ) as watch:
        for _ in range(3):
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
        assert repr(watch) == f"Watch('Linear', 3 steps, open, {watch.dir})"
        assert "ClipByGlobalNorm(1.0)" in watch._repr_html_()
    assert repr(watch) == f"Watch('Linear', 3 steps, closed, {watch.dir})"
    command = unescape(re.search("<code>(.*)</code>", watch._repr_html_())[1])
    assert len(eval(command)) > 3
