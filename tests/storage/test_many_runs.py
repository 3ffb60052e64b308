"""Many runs: a comparison and a report say the same of them as of whole runs, and hold one whole run at a time."""

import os
from dataclasses import replace

import numpy as np
import pytest
from make_run import make_history, make_run

from gradwatch.analysis.comparison import settle
from gradwatch.errors import RunError
from gradwatch.open_run import open_history, open_report, open_steps
from gradwatch.report.build import build_report
from gradwatch.report.text import comparison_text, render_json
from gradwatch.storage import workers
from gradwatch.storage.writer import RunWriter


@pytest.fixture
def place(tmp_path):
    """Two policies of two seeds; one run ends in NaN, and one folder holds a run without a step."""
    for i, (seed, clip) in enumerate(
        [(0, None), (1, None), (0, "ClipByGlobalNorm(1.0)"), (1, "ClipByGlobalNorm(1.0)")]
    ):
        make_run(tmp_path / f"at{i}", seed=seed, clip=clip, name=f"run{i}", nan_at=199 if i == 1 else None)
    empty = tmp_path / "at9" / "none"
    empty.mkdir(parents=True)
    RunWriter(empty, replace(make_history().run, name="none")).close()
    return tmp_path


def whole(place):
    return [open_history(path) for path in sorted(place.glob("at[0-3]/*"))]


def test_a_comparison_reads_the_steps_alone_and_says_the_same(place):
    found = open_steps([str(place)])
    assert [len(history.by_layer) for history in found] == [0] * 4
    assert comparison_text(settle(found), "json") == comparison_text(settle(whole(place)), "json")
    assert "diverged" in comparison_text(settle(found), "csv")


def test_a_report_is_the_same_whichever_process_read_the_runs(place, monkeypatch):
    monkeypatch.setattr(workers, "ALONE_SECONDS", 0.0)
    monkeypatch.setattr(workers, "cpus", lambda: 2)
    found, expected = open_report([str(place)]), build_report(whole(place))
    assert render_json(found) == render_json(expected)
    assert found.runs[1].findings
    assert found.runs[1].layers
    for ours, theirs in zip(found.heatmaps, expected.heatmaps, strict=True):
        np.testing.assert_array_equal(ours.value, theirs.value)
        np.testing.assert_array_equal(ours.nonfinite, theirs.nonfinite)
    assert [len(history.by_layer) for history in found.histories] == [0] * 4  # else a thousand runs fill the memory


def test_of_a_folder_with_one_run_that_has_steps_the_whole_report_is_made(place):
    report = open_report([str(place / "at9"), str(place / "at0")])
    assert report.title == "run0"
    assert len(report.histories[0].by_layer) == 200


def test_a_process_that_is_killed_is_said_and_ends_nothing_else(monkeypatch):
    monkeypatch.setattr(workers, "ALONE_SECONDS", 0.0)
    monkeypatch.setattr(workers, "cpus", lambda: 2)
    with pytest.raises(RunError, match=r"was killed.*read fewer runs"):
        workers.each([1, 2, 3], os._exit)


def test_runs_that_are_read_soon_are_read_here(monkeypatch):
    monkeypatch.setattr(workers.multiprocessing, "get_context", None)
    assert workers.each([3, 4], str) == ["3", "4"]
