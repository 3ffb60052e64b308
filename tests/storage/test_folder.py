"""The run's folder: written whole or not at all, read back exactly, and honest about what is missing."""

import json
import sys
import time

import numpy as np
import pandas as pd
import pytest
from make_run import as_block, changed, make_history, make_run, same, write_parts

from gradwatch import RunError, open_history
from gradwatch.analysis.rules import diagnose
from gradwatch.report import build_report
from gradwatch.report.text import render_json
from gradwatch.storage import writer as writing
from gradwatch.storage.compaction import merge
from gradwatch.storage.folder import create_folder, list_parts
from gradwatch.storage.joining import concat
from gradwatch.storage.run_reader import read_run
from gradwatch.storage.writer import RunWriter


def test_what_is_written_is_read_to_the_bit(tmp_path):
    same(open_history(make_run(tmp_path, nan_at=50)), make_history(nan_at=50))


def test_any_tool_opens_the_parts(tmp_path):
    folder, history = make_run(tmp_path), make_history()
    frame = pd.read_parquet(folder / "layers")
    assert len(frame) == len(history) * len(history.layers)
    assert frame.grad_norm.dtype == np.float32
    assert len(pd.read_parquet(folder / "steps")) == len(history)


def test_merging_changes_nothing_and_bounds_the_number_of_files(tmp_path, monkeypatch):
    monkeypatch.setattr("gradwatch.storage.compaction.FAN_IN", 8)
    monkeypatch.setattr("gradwatch.storage.folder.FAN_IN", 8)
    history, folder = make_history(), create_folder(tmp_path, "merged")
    write_parts(folder, history, 20)
    assert [p.name for _, _, p in list_parts(folder / "layers")] == [
        "part-000000-000007.parquet",
        "part-000008-000015.parquet",
        *(f"part-{i:06d}.parquet" for i in range(16, 20)),
    ]
    same(open_history(folder), history)


def test_a_crash_between_merging_and_deleting_shows_nothing_twice(tmp_path):
    history, folder = make_history(), create_folder(tmp_path, "crash")
    write_parts(folder, history, 4)
    kept = {p: p.read_bytes() for _, _, p in list_parts(folder / "layers")}
    merge(list_parts(folder / "layers"))
    for path, data in kept.items():
        path.write_bytes(data)
    same(open_history(folder), history)


def test_a_scalar_that_appears_late_survives_a_merge(tmp_path):
    early, late = make_history(steps=100, logged=("loss",)), make_history(steps=200).slice(100, 200)
    folder = create_folder(tmp_path, "late")
    write_parts(folder, concat([early, late]).slice(0, 100), 1)
    history = concat([early, late])
    writer = RunWriter(folder, history.run, flush_seconds=1000)
    writer.append(as_block(late))
    writer.close()
    merge(list_parts(folder / "steps"))
    got = open_history(folder)
    assert np.isnan(got.total("val_accuracy")[:100]).all()
    np.testing.assert_array_equal(got.total("val_accuracy")[100:], late.total("val_accuracy"))


@pytest.mark.parametrize("damage", [b"", b"PAR1 not parquet", None])
@pytest.mark.parametrize("table", ["layers", "steps"])
def test_damaged_and_missing_parts_are_named_and_the_rest_opens(tmp_path, table, damage):
    history, folder = make_history(), create_folder(tmp_path, "damaged")
    write_parts(folder, history, 4)
    part = folder / table / "part-000001.parquet"
    part.unlink() if damage is None else part.write_bytes(damage)
    got = open_history(folder)
    assert len(got.problems) == 1
    assert "1 to 1 are missing" in got.problems[0] if damage is None else "part-000001" in got.problems[0]
    rest = np.r_[0:50, 100:200]
    np.testing.assert_array_equal(got.step, np.arange(200))
    np.testing.assert_array_equal(got.layer_step, rest if table == "layers" else np.arange(200))
    np.testing.assert_array_equal(got.layer("grad_norm"), history.layer("grad_norm")[got.layer_step])
    np.testing.assert_array_equal(got.total("loss")[rest], history.total("loss")[rest])
    assert np.isnan(got.total("loss")[50:100]).all() == (table == "steps")
    assert diagnose(got) == diagnose(history) == []
    assert json.loads(render_json(build_report([got])))["runs"][0]["steps"] == 200


def test_a_history_prints_in_one_line():
    assert repr(make_history(status="FINISHED")) == "History('mlp', 200 steps x 7 layers, finished)"


@pytest.mark.parametrize("parts", [1, 3])
def test_what_an_attempt_threw_away_is_gone_also_where_the_next_one_ends_sooner(parts, tmp_path):
    old = make_history(100, nan_at=80)
    new = changed(make_history(100, seed=1).slice(50, 70), attempt=np.ones(20, np.int64))
    joined = concat([*(old.slice(100 * i // parts, 100 * (i + 1) // parts) for i in range(parts)), new])
    assert joined.step.tolist() == [*range(70)]
    assert joined.layer_step.tolist() == [*range(70)]
    assert np.isfinite(joined.total("grad_norm")).all()


def test_steps_recorded_again_belong_to_the_later_attempt():

    first = make_history(steps=30, seed=1)
    again = make_history(steps=40, seed=2).slice(20, 40)
    again = changed(again, attempt=np.ones(20, np.int64))
    got = concat([first, again])
    assert got.step.tolist() == list(range(40))
    assert got.attempt.tolist() == [0] * 20 + [1] * 20
    np.testing.assert_array_equal(got.layer("grad_norm")[20:], again.layer("grad_norm"))


def test_a_full_disk_loses_nothing_that_fits_in_memory(tmp_path, monkeypatch, caplog):
    history, folder = make_history(), create_folder(tmp_path, "full")
    real, refuse = writing.write_part, [True]

    def write(path, table, *rows):
        if refuse[0]:
            raise OSError(28, "No space left on device")
        real(path, table, *rows)

    monkeypatch.setattr(writing, "write_part", write)
    writer = RunWriter(folder, history.run, flush_seconds=0.02)
    writer.append(as_block(history.slice(0, 100)))
    deadline = time.monotonic() + 10
    while not caplog.records and time.monotonic() < deadline:
        time.sleep(0.01)
    refuse[0] = False
    writer.append(as_block(history.slice(100, 200)))
    writer.close()
    assert [r.message for r in caplog.records if "No space left" in r.message]
    assert len(caplog.records) == 1  # said once, not once a flush
    same(open_history(folder), history)


def test_no_half_written_part_has_a_parts_name(tmp_path, monkeypatch):
    history, folder = make_history(), create_folder(tmp_path, "half")
    writer = RunWriter(folder, history.run, flush_seconds=1000)
    monkeypatch.setattr(writing.Path, "replace", lambda self, target: (_ for _ in ()).throw(OSError("killed here")))
    writer.pending.append(as_block(history))
    with pytest.raises(OSError, match="killed here"):
        writer._write_parts()
    assert list_parts(folder / "layers") == list_parts(folder / "steps") == []
    monkeypatch.undo()
    writer.close()
    same(open_history(folder), history)


def test_two_runs_of_one_second_have_two_folders(tmp_path):
    assert len({create_folder(tmp_path, "a/../b c") for _ in range(3)}) == 3
    assert all(p.parent == tmp_path for p in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "is not a run folder"),
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"name": 1}', "cannot be read"),
    ],
)
def test_what_is_not_a_run_is_refused(tmp_path, text, says):
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(RunError, match=says):
        read_run(tmp_path)


@pytest.mark.parametrize("momentum", [10**400, float("inf"), "0.1", True])
def test_a_momentum_that_is_no_number_a_float_holds_is_refused(tmp_path, momentum):
    folder = make_run(tmp_path)
    manifest = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**manifest, "batch_norms": {"norm": momentum}}))
    with pytest.raises(RunError, match="batch_norms"):
        read_run(folder)


def test_a_manifest_of_a_newer_version_still_opens(tmp_path):
    folder = make_run(tmp_path)
    manifest = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**manifest, "format": 2, "from_the_future": {"x": 1}}))
    assert len(open_history(folder)) == 200


def test_a_name_is_in_letters_that_the_file_system_has(monkeypatch, tmp_path):
    assert create_folder(tmp_path, "Modèle").name.endswith("-Modèle")
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "ascii")  # as under LC_ALL=POSIX without UTF-8 mode
    assert create_folder(tmp_path, "Modèle").name.endswith("-Mod-le")
