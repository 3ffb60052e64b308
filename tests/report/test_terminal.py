"""What commands print fits the terminal: no line is wider, no word and no number is broken."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from make_run import make_history, make_run
from rich.cells import cell_len
from rich.console import Console

from gradwatch.analysis.comparison import settle
from gradwatch.analysis.rules import Finding
from gradwatch.cli import main
from gradwatch.open_run import open_history
from gradwatch.report import build_report
from gradwatch.report.fitted_table import Facts, FittedTable, Lines, wrapped
from gradwatch.report.terminal import PIPE, mildest, show_comparison, show_run, standing_out
from gradwatch.report.text import render_check_text

RECORDED = sorted((Path(__file__).parents[1] / "scenarios" / "recorded").iterdir())
WIDTHS = (80, 100, 200)
LONG = tuple(f"transformer.encoder.layers.{i}.attention.output.dense.{kind}" for i in (0, 11) for kind in "ab")


def printed(shown, width):
    console = Console(width=width, file=None, force_terminal=False, highlight=False)
    with console.capture() as capture:
        console.print(shown, crop=False)
    return capture.get()


def words(text):
    """The words of a text; a stacked row has a colon behind each header, a wrapped header is its words."""
    return (
        {word.strip("·:") for word in text.split()} - {"", "–"} - {word for word in text.split() if set(word) == {"─"}}
    )


def fits(shown, *widths):
    """Print it at each width; what is said beside the full width's words is only what was left out."""
    whole = words(printed(shown, PIPE))
    for width in widths:
        text = printed(shown, width)
        wide = [line for line in text.splitlines() if cell_len(line) > width and len(line.split()) > 1]
        assert not wide, (width, wide)
        left_out = re.sub(r"Not shown for want of width:.*?(has|have)\s+them\.", "", text, flags=re.DOTALL)
        assert words(left_out) <= whole, (width, words(left_out) - whole)


@pytest.mark.parametrize("part", range(2))
def test_recorded_runs_fit(part):
    for folder in RECORDED[part::16]:
        run = build_report([open_history(folder)]).runs[0]
        fits(show_run(run), *WIDTHS, 40)
        fits(Lines(render_check_text(run.name, run.findings).splitlines()), *WIDTHS, 40)


def test_comparisons_of_recorded_runs_fit():
    histories = [open_history(folder) for folder in RECORDED[::16]]
    fits(show_comparison(settle(histories)), *WIDTHS, 40)


@pytest.mark.parametrize("clips", [("none", "AGC(0.01)"), ("chain(SkipNonfinite(), ClipByGlobalNorm(1.0))", None)])
@pytest.mark.parametrize("seeds", [1, 3])
def test_comparisons_fit(clips, seeds):
    logged = ("loss", "val_accuracy", "some_very_long_name_of_a_test_accuracy")
    histories = [make_history(60, clip=clip, seed=seed, logged=logged) for clip in clips for seed in range(seeds)]
    fits(show_comparison(settle(histories)), *WIDTHS, 40)


def test_a_run_with_long_names_of_layers_fits():
    (run,) = build_report([make_history(60, LONG)]).runs
    fits(show_run(run), *WIDTHS, 40)
    assert all(name in printed(show_run(run), 20) for name in LONG)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("command", ["show", "check", "compare"])
def test_each_command_takes_the_width_of_the_terminal(command, width, tmp_path):
    runs = [str(make_run(tmp_path, steps=60, layers=LONG[:3], nan_at=50, seed=seed)) for seed in range(2)]
    args = runs if command == "compare" else runs[:1]
    text = CliRunner().invoke(main, [command, *args], env={"COLUMNS": str(width)}).stdout
    wide = [line for line in text.splitlines() if cell_len(line) > width]
    assert [line for line in wide if len(line.split()) > 2] == []  # `More: file:///...` is longer than it is wide
    assert max(map(cell_len, text.splitlines())) > 0.6 * width


def test_of_many_layers_a_terminal_shows_those_that_stand_out_and_ends_with_the_verdict(tmp_path):
    layers = tuple(f"blocks.{i}.weight" for i in range(300))
    folder = str(make_run(tmp_path, steps=60, layers=layers, nan_at=50))
    run = build_report([open_history(folder)]).runs[0]
    sick = [layer.name for layer in run.layers if layer.nonfinite]
    assert 0 < len(sick) < 20

    def shown(*words, columns="80"):
        return CliRunner().invoke(main, ["show", folder, *words], env={"COLUMNS": columns}).stdout

    def listed(text):
        return [line.split()[0] for line in text.splitlines() if re.match(r"blocks\.\d+\.weight ", line)]

    few = listed(shown())
    assert len(few) == 20
    assert few == [name for name in layers if name in few]  # in model order
    assert set(sick) <= set(few)
    assert "280 more layers: gradwatch show --all" in shown()
    assert run.verdict in " ".join(" ".join(shown().splitlines()[-5:]).split())
    assert listed(shown("--all")) == listed(shown(columns="")) == list(layers)


def test_of_other_thresholds_a_terminal_shows_one_of_each_kind(tmp_path):
    folder = str(make_run(tmp_path, steps=200))
    (run,) = build_report([open_history(folder)]).runs
    shown = mildest(run.what_if)
    assert [one.kind for one in shown] == list(dict.fromkeys(one.kind for one in run.what_if))
    for one in shown:
        same = [other.clip_rate for other in run.what_if if other.kind == one.kind]
        assert min(abs(rate - 0.01) for rate in same) == abs(one.clip_rate - 0.01)
    text, whole = (
        CliRunner().invoke(main, ["show", folder, *words], env={"COLUMNS": "80"}).stdout for words in ([], ["--all"])
    )
    assert [one.policy in text for one in run.what_if] == [one in shown for one in run.what_if]
    assert all(one.policy in whole for one in run.what_if)
    assert f"{len(run.what_if) - len(shown)} more thresholds: gradwatch show --all {folder}" in " ".join(text.split())


def test_dead_layers_and_those_of_a_finding_stand_out():
    history = make_history(60, tuple(f"l{i}" for i in range(100)))
    history.layer("grad_norm")[:, 70] = 0
    history.layer("grad_norm")[:, 30] *= 1e5
    (run,) = build_report([history]).runs
    found = Finding("vanishing", "warning", ("l50",), 0, 59, {}, "Small.", "Why.", "How.")
    named = [layer.name for layer in standing_out(replace(run, findings=(found,)), 3)]
    assert named == ["l30", "l50", "l70"]


def test_a_pipe_gets_all_columns_and_no_wrapped_line(tmp_path):
    result = CliRunner().invoke(main, ["show", str(make_run(tmp_path, steps=60, layers=LONG))], env={"COLUMNS": ""})
    assert "update ratio" in result.stdout
    assert "Not shown" not in result.stdout


def test_the_least_important_columns_go_first_and_are_named():
    table = FittedTable(
        ["policy", "loss", "norm", "ms"], [["a", "1.234", "5.6", "7"], ["b", "2", "3", "4"]], [0, 0, 2, 1]
    )
    assert printed(table, 25).splitlines()[0].split() == ["policy", "loss", "norm", "ms"]
    narrow = printed(table, 17)
    assert narrow.splitlines()[0].split() == ["policy", "loss", "ms"]
    assert "width: norm." in " ".join(narrow.split())


def test_a_column_that_says_the_same_of_every_row_goes_before_others():
    table = FittedTable(["policy", "diverged", "rate"], [["a", "0", "10 %"], ["b", "0", "20 %"]], [0, 1, 2])
    assert printed(table, 15).splitlines()[0].split() == ["policy", "rate"]


def test_prose_is_wrapped_for_the_column_that_matters_next_and_for_no_other():
    rows = [["inf or NaN, counts as 2.303", "3 of 3", "5 %"], ["0.1", "0", "7 %"]]
    table = FittedTable(["loss", "diverged", "rate"], rows, [0, 1, 2])
    assert printed(table, 28).splitlines()[0].split() == ["loss", "diverged"]
    assert "width: rate." in " ".join(printed(table, 28).split())


def test_rows_are_stacked_where_even_the_important_columns_do_not_fit():
    table = FittedTable(["policy", "seed", "loss"], [["ClipByGlobalNorm(1.0)", "", "0.5 ± 0.1"]], [0, 0, 0])
    assert printed(table, 24) == "ClipByGlobalNorm(1.0)\n  loss: 0.5 ± 0.1\n"


def test_a_number_is_never_wrapped_but_prose_is():
    table = FittedTable(["verdict", "difference"], [["no difference shown", "-41 % (-52 to -27 %)"]], [0, 0], left=2)
    body = printed(table, 32).splitlines()[2:]
    assert body == ["no          -41 % (-52 to -27 %)", "difference", "shown"]


def test_wrapped_lines_keep_their_indent_and_long_words():
    assert wrapped("  one two three", 9) == ["  one two", "  three"]
    assert wrapped("one two three", 8, hang=2) == ["one two", "  three"]
    assert wrapped("see https://example.org/a/b now", 10) == ["see", "https://example.org/a/b", "now"]
    assert (
        printed(Facts([("a", "one two three", ""), ("long", "x", "")]), 13) == "a     one two\n      three\nlong  x\n"
    )


def test_names_of_strangers_stay_one_line():
    shown = FittedTable(["a"], [["x\x1b[2Jy\nz"]], [0])
    assert "\x1b" not in printed(shown, 40)
    assert len(printed(shown, 40).splitlines()) == 3
