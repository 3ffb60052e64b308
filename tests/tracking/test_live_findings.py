"""The diagnosis of a run that goes on: when it is made, what it leaves behind, and that its failure harms nothing."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from make_run import as_block, changed, make_history, make_run

from gradwatch.analysis.rules import Finding, diagnose
from gradwatch.cli import main
from gradwatch.errors import RunError
from gradwatch.storage.folder import FINDINGS, create_folder, read_manifest, write_json
from gradwatch.storage.shared_folder import create_part, create_shared, read_facts, read_whole
from gradwatch.storage.writer import RunWriter
from gradwatch.tracking import live_findings
from gradwatch.tracking.live_findings import MAX_TAG, PAUSES, Diagnosis, current, finding_tags, looks, write_findings

HERE = {"pid": os.getpid(), "host": socket.gethostname()}


def dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def said(folder):
    return json.loads((folder / FINDINGS).read_text())["findings"]


def grow(folder, history, start, stop):
    """Another flush of the writer."""
    writer = RunWriter(folder, history.run, flush_seconds=0.01)
    writer.append(as_block(history.slice(start, stop)))
    writer.close("RUNNING")


@pytest.fixture
def clock(monkeypatch):
    """Seconds that the test sets."""

    class Clock:
        now = 1000.0

        def monotonic(self):
            return self.now

        def sleep(self, seconds):
            self.now += seconds

    clock = Clock()
    monkeypatch.setattr(live_findings, "time", clock)
    return clock


def test_new_steps_are_judged_when_it_is_due(tmp_path, clock):
    history = make_history(steps=120, nan_at=50, **HERE)
    folder = create_folder(tmp_path, "live")
    diagnosis = Diagnosis(folder)
    grow(folder, history, 0, 40)
    diagnosis.update()
    assert said(folder) == []
    grow(folder, history, 40, 80)
    diagnosis.update()
    assert said(folder) == []  # too early
    clock.now += 2.1
    diagnosis.update()
    (finding,) = said(folder)
    assert (finding["rule"], finding["first_step"]) == ("nonfinite", 50)
    assert Finding.from_json(finding).summary == diagnosis.findings[0].summary
    before = (folder / FINDINGS).stat().st_mtime_ns
    clock.now += 1000
    diagnosis.update()  # nothing new
    grow(folder, history, 80, 120)
    diagnosis.update()  # the same findings
    assert (folder / FINDINGS).stat().st_mtime_ns == before


def test_it_takes_a_twentieth_of_the_time_at_most(tmp_path, clock, monkeypatch):
    looked = []

    def slow(history):
        looked.append(clock.now)
        clock.now += 3
        return []

    monkeypatch.setattr(live_findings, "diagnose", slow)
    history = make_history(steps=400, **HERE)
    folder = create_folder(tmp_path, "live")
    diagnosis = Diagnosis(folder)
    for start in range(0, 400, 20):
        grow(folder, history, start, start + 20)
        diagnosis.update()
        clock.now += 10
    assert len(looked) > 2
    assert min(np.diff(looked)) >= 3 * (PAUSES + 1)
    diagnosis.update(last=True)  # the end of the run waits for nothing
    assert len(looked) == 1 + len(np.unique(looked[:-1]))


def test_without_new_steps_nothing_is_read(tmp_path, clock, monkeypatch):
    folder = make_run(tmp_path, nan_at=50)
    diagnosis = Diagnosis(folder)
    diagnosis.update()
    monkeypatch.setattr(live_findings, "read_whole", lambda *args, **options: pytest.fail("it was read again"))
    clock.now += 1000
    diagnosis.update()
    diagnosis.update(last=True)


def test_a_large_run_is_judged_in_bounded_memory(tmp_path, monkeypatch):
    asked = []

    def read(folder, at_most):
        asked.append(at_most)
        return read_whole(folder, at_most=at_most)

    monkeypatch.setattr(live_findings, "read_whole", read)
    monkeypatch.setattr(live_findings, "LIVE_VALUES", 10_000)
    folder = make_run(tmp_path, steps=2000, nan_at=50)
    Diagnosis(folder).update()
    assert asked == [10_000]
    assert said(folder)[0]["rule"] == "nonfinite"


def test_a_diagnosis_that_fails_harms_nothing(tmp_path, monkeypatch, caplog):
    def broken(history):
        raise ZeroDivisionError("a rule that cannot count")

    monkeypatch.setattr(live_findings, "diagnose", broken)
    folder = make_run(tmp_path)
    diagnosis = Diagnosis(folder)
    diagnosis.update()
    assert "a rule that cannot count" in caplog.text
    assert diagnosis.findings is None
    assert not (folder / FINDINGS).exists()
    Diagnosis(tmp_path / "nowhere").update()
    assert "nowhere could not be diagnosed" in caplog.text


def test_steps_of_an_attempt_that_was_given_up_do_not_count():
    old, new = make_history(steps=100, nan_at=80), make_history(steps=20)
    whole = changed(old, attempt=np.where(np.arange(100) < 20, 1, 0))
    whole.layer("nonfinite")  # steps 0 to 19 taken again, 20 to 99 are of the first attempt
    kept = current(whole)
    assert kept.step.tolist() == list(range(20))
    assert diagnose(kept) == diagnose(new) == []
    assert current(old) is old
    later = changed(old, attempt=np.where(np.arange(100) >= 40, 1, 0))
    assert len(current(later)) == 100


def test_of_the_parts_of_a_run_the_first_that_goes_on_is_asked(tmp_path):
    shared = create_shared(tmp_path, "gan")
    for name in "DG":
        history = make_history(steps=60, nan_at=30 if name == "G" else None, name=f"gan/{name}", part=name, **HERE)
        history = changed(history, optimizer=np.array([name] * 60, object))
        grow(create_part(shared, read_facts(shared), name), history, 0, 60)
    Diagnosis(shared, "G").update()
    assert not (shared / FINDINGS).exists()
    Diagnosis(shared, "D").update()
    (finding,) = said(shared)
    assert (finding["rule"], finding["optimizer"]) == ("nonfinite", "G")
    (shared / FINDINGS).unlink()
    write_json(shared / "D" / "run.json", replace(read_manifest(shared / "D"), status="FINISHED").to_json())
    Diagnosis(shared, "G").update()
    assert said(shared)


def test_the_only_part_with_steps_is_named(tmp_path):
    shared = create_shared(tmp_path, "gan")
    history = make_history(steps=60, nan_at=30, name="gan/G", part="G", **HERE)
    grow(create_part(shared, read_facts(shared), "G"), changed(history, optimizer=np.array(["G"] * 60, object)), 0, 60)
    Diagnosis(shared).update()
    assert said(shared)[0]["optimizer"] == "G"


def test_numbers_that_are_not_finite_are_null(tmp_path):
    found = Finding("spike", "error", (), 1, 2, {"a": float("inf"), "b": float("nan"), "c": 1})
    write_findings(tmp_path, "x", [found], "it grew")
    text = (tmp_path / FINDINGS).read_text()
    assert json.loads(text, parse_constant=pytest.fail)["findings"][0]["evidence"] == {"a": None, "b": None, "c": 1}


def test_the_tags_say_it_in_a_line():
    spike, note = Finding("spike", "warning", ("a",), 5, 6), Finding("clip-inert", "note", (), 0, 9)
    assert finding_tags([], "no findings") == {"gradwatch.verdict": "no findings", "gradwatch.findings": "none"}
    assert finding_tags([note], "running")["gradwatch.verdict"] == "running"
    assert finding_tags([spike, note], "running") == {
        "gradwatch.verdict": "spike at step 5 in a",
        "gradwatch.findings": "warning spike at step 5 in a; note clip-inert at step 0",
    }
    assert len(finding_tags([replace(spike, layers=("x" * 100,))] * 99, "running")["gradwatch.findings"]) == MAX_TAG


# -------------------------------------------------------------------------------------------------------- the process


def test_following_ends_with_the_run(tmp_path, clock):
    history = make_history(steps=120, nan_at=50, **HERE)
    folder = create_folder(tmp_path, "live")
    grow(folder, history, 0, 40)
    naps = []

    def sleep(seconds):
        clock.now += 0.5
        naps.append(len(said(folder)))
        if len(naps) == 2:
            grow(folder, history, 40, 120)
            write_json(folder / "run.json", replace(history.run, status="FINISHED").to_json())

    clock.sleep = sleep
    assert len([*looks(folder)]) == 3
    assert naps == [0, 0]
    assert len(said(folder)) == 1  # a last diagnosis, though it was not due


def test_following_ends_with_the_trainer(tmp_path):
    folder = make_run(tmp_path, close="RUNNING", nan_at=50, pid=dead_pid(), host=socket.gethostname())
    assert len([*looks(folder, poll=1000)]) == 1
    assert len(said(folder)) == 1


def test_only_a_run_folder_can_be_followed(tmp_path):
    with pytest.raises(RunError, match="is not a run folder"):
        next(looks(tmp_path))
    result = CliRunner().invoke(main, ["check", str(tmp_path), "--follow"])
    assert result.exit_code == 2


def test_check_follows_and_then_is_the_gate(tmp_path):
    folder = make_run(tmp_path, nan_at=50)
    result = CliRunner().invoke(main, ["check", str(folder), "--follow"])
    assert result.exit_code == 1
    assert "nonfinite at step 50" in result.stdout
    assert len(said(folder)) == 1


def test_the_process_itself(tmp_path):
    from gradwatch.recording.courier_process import start_diagnosis

    folder = make_run(tmp_path, nan_at=50)
    process = start_diagnosis(folder)
    assert process.wait(60) == 1
    assert len(said(folder)) == 1
    assert "nonfinite at step 50" in (folder / "check.log").read_text()
