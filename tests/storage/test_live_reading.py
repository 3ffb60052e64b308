"""A run that is read while it is written: what a reader sees is what was there at one moment."""

from itertools import count

import numpy as np
import pytest
from make_run import make_history, same

from gradwatch import open_history
from gradwatch.analysis.rules import diagnose
from gradwatch.storage import folder as folders
from gradwatch.storage.compaction import merge
from gradwatch.storage.folder import TABLES, create_folder, list_parts
from gradwatch.storage.writer import RunWriter


def amp_history():
    """200 sound steps under a GradScaler, which dropped one of them."""
    history = make_history(nan_at=120)
    history.per_step["loss_scale"] = np.full(200, 65_536.0)
    history.per_step["skipped"][120] = 1
    return history


@pytest.fixture
def begun(tmp_path):
    """`(folder, write, history)`: a run whose first half is on disk in four parts; `write()` writes the other half."""
    history, folder = amp_history(), create_folder(tmp_path, "live")
    writer = RunWriter(folder, history.run, flush_seconds=1000)

    def write(start, stop, parts):
        for first in range(start, stop, (stop - start) // parts):
            writer.pending.append(history.slice(first, first + (stop - start) // parts))
            writer._write_parts()

    write(0, 100, 4)
    yield folder, lambda: write(100, 200, 2), history
    writer.close()


def at_call(monkeypatch, name, number, act):
    """`act()` happens just before the `number`-th call of `name` in the module that reads folders, and once."""
    real, calls = getattr(folders, name), count()

    def call(*args, **kwargs):
        if next(calls) == number:
            act()
        return real(*args, **kwargs)

    monkeypatch.setattr(folders, name, call)
    return calls


@pytest.mark.parametrize("at_most", [None, 1])
@pytest.mark.parametrize("number", range(9))
def test_parts_that_are_written_between_two_looks_are_seen_in_both_tables_or_in_none(
    begun, monkeypatch, number, at_most
):
    folder, write, history = begun
    calls = at_call(monkeypatch, "list_parts", number, write)
    found = open_history(folder, at_most)
    assert next(calls) > 2, "nothing was looked at"
    assert len(found) in (100, 200)
    assert found.layer_step[-1] == found.step[-1]
    assert np.isfinite(found.total("skipped")).all(), "steps of which one table knows nothing"
    assert [f.severity for f in diagnose(found) if f.rule == "nonfinite"] == ["note"] * (len(found) > 100)
    assert found.problems == ()


@pytest.mark.parametrize("name", ["layers_blocks", "steps_blocks"])
@pytest.mark.parametrize("number", range(4))
def test_parts_that_are_written_while_others_are_read_are_left_for_later(begun, monkeypatch, name, number):
    folder, write, history = begun
    at_call(monkeypatch, name, number, write)
    same(open_history(folder), history.slice(0, 100))


@pytest.mark.parametrize("name", ["list_parts", "layers_blocks", "steps_blocks"])
@pytest.mark.parametrize("number", range(4))
def test_parts_that_are_merged_under_a_readers_eyes_are_read_merged(begun, monkeypatch, name, number):
    folder, _, history = begun
    at_call(monkeypatch, name, number, lambda: [merge(list_parts(folder / table)) for table in TABLES])
    found = open_history(folder)
    assert found.problems == ()
    same(found, history.slice(0, 100))


def test_a_part_that_only_one_table_has_is_left_out(begun):
    """Its writer is between the two, or was killed there."""
    folder, write, history = begun
    write()
    list_parts(folder / "steps")[-1].path.unlink()
    found = open_history(folder)
    same(found, history.slice(0, 150))
    assert found.problems == ()
