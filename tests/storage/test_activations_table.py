"""The table of activations in a run's folder: sparse parts, merges, a writer that was killed, a run that goes on."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from make_run import as_block, make_history

from gradwatch.storage.compaction import Compactor, due
from gradwatch.storage.folder import FAN_IN, list_parts, tidy
from gradwatch.storage.joining import concat
from gradwatch.storage.run_reader import read_run
from gradwatch.storage.writer import RunWriter
from gradwatch.table import EMPTY, Table

ACTIVATIONS = "activations"
MODULES = ("h.0", "h.1")


def history_of(steps, every=7, attempt=0):
    """A run whose activations say of which step and attempt they are."""
    history = make_history(steps, every=10)
    step = history.step[::every]
    values = {name: np.outer(step + 1000 * attempt, [1.0, 2.0]).astype(np.float32) for name in ("rms", "max")}
    table = Table(step, np.full(len(step), attempt), history.optimizer[::every], values, MODULES)
    by_step = replace(history.by_step, attempt=np.full(len(history), attempt))
    by_layer = replace(history.by_layer, attempt=np.full(len(history), attempt))
    return replace(history, by_step=by_step, by_layer=by_layer, activations=table)


def write(folder, blocks, run=None):
    writer = RunWriter(folder, run or blocks[0].run)
    for block in blocks:
        writer.append(as_block(block))
        writer.flush()
    writer.close()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def same(found, wanted):
    assert found.layers == wanted.layers
    np.testing.assert_array_equal(found.step, wanted.step)
    np.testing.assert_array_equal(found.values["rms"], wanted.values["rms"])


def test_flushes_without_any_have_no_part_and_what_is_merged_is_the_same(folder):
    history = history_of(3 * FAN_IN + 10, every=2)
    write(folder, [history.slice(i, i + 1) for i in range(len(history))])
    # The writer gives a merge up that is under way when it is closed
    Compactor(folder / ACTIVATIONS, lambda: False).compact()
    parts = list_parts(folder / ACTIVATIONS)
    assert parts[0].level == 1
    assert len(parts) < FAN_IN
    found = read_run(folder)
    same(found.activations, history.activations)
    assert found.problems == ()
    assert len(pd.read_parquet(folder / ACTIVATIONS)) == 2 * len(history.activations)


def test_a_part_that_is_left_alone_is_not_merged_across(folder):
    history = history_of(FAN_IN, every=2)
    write(folder, [history.slice(i, i + 1) for i in range(len(history))])
    parts = list_parts(folder / ACTIVATIONS)
    again = parts * 3
    assert due(again[:FAN_IN], sparse=True) == again[:FAN_IN]
    assert due(again[:FAN_IN]) == []  # with steps missing in between it would stand for them
    assert due(again[:FAN_IN], {parts[5].path}, sparse=True) == []
    Compactor(folder / ACTIVATIONS, lambda: False).compact()
    same(read_run(folder).activations, history.activations)


def test_a_run_without_has_no_such_folder(folder):
    write(folder, [make_history(20)])
    assert not (folder / ACTIVATIONS).exists()
    assert read_run(folder).activations is EMPTY or not len(read_run(folder).activations)


def test_what_a_killed_writer_left_of_a_flush_is_not_read_and_goes(folder):
    """The activations of a flush are written first."""
    history = history_of(30, every=5)
    write(folder, [history.slice(0, 10), history.slice(10, 20), history.slice(20, 30)])
    for table in ("layers", "steps"):
        list_parts(folder / table)[-1].path.unlink()
    assert read_run(folder).activations.step.tolist() == [0, 5, 10, 15]
    tidy(folder)
    assert [part.last for part in list_parts(folder / ACTIVATIONS)] == [0, 1]
    write(folder, [history.slice(20, 30)])
    assert read_run(folder).problems == ()
    assert read_run(folder).activations.step.tolist() == [0, 5, 10, 15, 20, 25]


def test_of_a_step_that_was_taken_again_the_later_attempt_counts(folder):
    old, new = history_of(30, every=5), history_of(30, every=10, attempt=1).slice(15, 30)
    write(folder, [old])
    write(folder, [new], replace(old.run, attempt=1))
    found = read_run(folder).activations
    assert found.step.tolist() == [0, 5, 10, 20]
    assert found.attempt.tolist() == [0, 0, 0, 1]
    assert found.values["rms"][-1, 0] == 1020


def test_a_part_of_a_run_and_several_runs_joined_keep_their_own(folder):
    history = history_of(30, every=5)
    assert history.take(history.step % 10 == 0).activations.step.tolist() == [0, 10, 20]
    assert concat([history.slice(0, 12), history.slice(12, 30)]).activations.step.tolist() == [0, 5, 10, 15, 20, 25]


def test_a_folder_that_is_removed_is_made_anew(folder):
    history = history_of(30, every=5)
    writer = RunWriter(folder, history.run)
    writer.append(as_block(history.slice(0, 10)))
    writer.flush()
    for path in (folder / ACTIVATIONS).iterdir():
        path.unlink()
    (folder / ACTIVATIONS).rmdir()
    writer.append(as_block(history.slice(10, 30)))
    writer.close()
    assert read_run(folder).activations.step.tolist() == [10, 15, 20, 25]
