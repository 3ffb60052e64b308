"""Many runs: a comparison and a report say the same of them as of whole runs, and hold one whole run at a time."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from multiprocessing import util
from pathlib import Path

import numpy as np
import pytest
from make_run import make_history, make_run
from processes import all_ended

import gradwatch
from gradwatch.analysis.comparison import settle
from gradwatch.errors import RunError
from gradwatch.open_run import open_history, open_report, open_steps
from gradwatch.report.build import build_report
from gradwatch.report.text import comparison_text, render_json
from gradwatch.storage import many_runs
from gradwatch.storage.writer import RunWriter

ROOT = Path(gradwatch.__file__).parents[1]


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
    assert found[0].step is found[3].step
    assert "lr" not in found[0].per_step


def test_a_report_is_the_same_whichever_process_read_the_runs(place, monkeypatch):
    monkeypatch.setattr(many_runs, "ALONE_SECONDS", 0.0)
    monkeypatch.setattr(many_runs, "cpus", lambda: 2)
    found, expected = open_report([str(place)]), build_report(whole(place))
    assert render_json(found) == render_json(expected)
    assert found.runs[1].findings
    assert found.runs[1].layers
    for ours, theirs in zip(found.heatmaps, expected.heatmaps, strict=True):
        np.testing.assert_array_equal(ours.value, theirs.value)
        np.testing.assert_array_equal(ours.nonfinite, theirs.nonfinite)
    assert [len(history.by_layer) for history in found.histories] == [0] * 4  # else a thousand runs fill the memory
    assert found.histories[0].step is found.histories[3].step


def test_of_a_folder_with_one_run_that_has_steps_the_whole_report_is_made(place):
    report = open_report([str(place / "at9"), str(place / "at0")])
    assert report.title == "run0"
    assert len(report.histories[0].by_layer) == 200


def test_a_process_that_is_killed_is_said_and_ends_nothing_else(monkeypatch):
    monkeypatch.setattr(many_runs, "ALONE_SECONDS", 0.0)
    monkeypatch.setattr(many_runs, "cpus", lambda: 2)
    with pytest.raises(RunError, match=r"was killed.*read fewer runs"):
        [*many_runs.each([1, 2, 3], os._exit)]


PARENT = """
import os, sys, time
from pathlib import Path
from gradwatch.storage import many_runs

def make(place):
    Path(place, f"{os.getpid()}").touch()
    time.sleep(600)

if __name__ == "__main__":
    many_runs.ALONE_SECONDS, many_runs.cpus = 0.0, lambda: 2
    [*many_runs.each([sys.argv[1]] * 8, make)]
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_processes_whose_parent_is_killed_end_with_it(tmp_path):
    (tmp_path / "parent.py").write_text(PARENT)
    place = tmp_path / "pids"
    place.mkdir()
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen([sys.executable, "parent.py", str(place)], env=env, cwd=tmp_path)
    deadline = time.monotonic() + 200
    while len([*place.iterdir()]) < 2:
        assert parent.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    all_ended(tmp_path)


def test_runs_that_are_read_soon_are_read_here(monkeypatch):
    monkeypatch.setattr(many_runs.multiprocessing, "get_context", None)
    assert [*many_runs.each([3, 4], str)] == ["3", "4"]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="needs masks of signals")
def test_ctrl_c_waits_while_the_processes_of_a_pool_begin(monkeypatch):
    masks, spawn = [], util.spawnv_passfds

    def noted(*arguments):
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))
        return spawn(*arguments)

    monkeypatch.setattr(util, "spawnv_passfds", noted)
    monkeypatch.setattr(many_runs, "ALONE_SECONDS", 0.0)
    monkeypatch.setattr(many_runs, "cpus", lambda: 2)
    assert list(many_runs.each([*range(8)], str)) == [str(i) for i in range(8)]
    assert len(masks) >= 2
    assert all(signal.SIGINT in mask for mask in masks)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
