"""A run that is read while it is written: what a reader sees is what was there at one moment."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
import torch
from make_run import as_block, make_history, same
from training import mlp, train, watch

from gradwatch import RunError, open_history
from gradwatch.analysis.rules import diagnose
from gradwatch.recording import recorder
from gradwatch.storage import folder as folders
from gradwatch.storage import run_reader
from gradwatch.storage.compaction import merge
from gradwatch.storage.folder import TABLES, create_folder, list_parts
from gradwatch.storage.owner import here
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
            writer.pending.append(as_block(history.slice(first, first + (stop - start) // parts)))
            writer._write_parts()

    write(0, 100, 4)
    yield folder, lambda: write(100, 200, 2), history
    writer.close()


def at_call(monkeypatch, name, number, act):
    """`act()` happens just before the `number`-th call of `name` in a module that reads folders, and once."""
    module = run_reader if hasattr(run_reader, name) else folders
    real, calls = getattr(module, name), count()

    def call(*args, **kwargs):
        if next(calls) == number:
            act()
        return real(*args, **kwargs)

    monkeypatch.setattr(module, name, call)
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


@pytest.mark.parametrize("name", ["layers_blocks", "read_steps"])
@pytest.mark.parametrize("number", range(4))
def test_parts_that_are_written_while_others_are_read_are_left_for_later(begun, monkeypatch, name, number):
    folder, write, history = begun
    at_call(monkeypatch, name, number, write)
    same(open_history(folder), history.slice(0, 100))


@pytest.mark.parametrize("name", ["list_parts", "layers_blocks", "read_steps"])
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


# ------------------------------------------------------------------------------------------------ a run that has begun


def begin(tmp_path, **options):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, watch(model, optimizer, tmp_path, **options)


def test_a_run_that_this_process_records_is_flushed_for_who_opens_it(tmp_path):
    model, optimizer, watching = begin(tmp_path, flush_every=1000.0)
    for steps in (1, 6):
        train(model, optimizer, steps if steps == 1 else 5)
        assert open_history(watching.dir).step.tolist() == list(range(steps))
    assert len(list_parts(watching.dir / "steps")) == 2
    watching.close()


def test_every_part_of_a_shared_run_is_flushed(tmp_path):
    first, second = mlp(), mlp()
    a, b = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (first, second))
    left = watch(first, a, tmp_path, name="D", flush_every=1000.0)
    right = watch(second, b, tmp_path, name="G", run=left, flush_every=1000.0)
    train(first, a, 3)
    train(second, b, 2)
    assert open_history(left.dir.parent).optimizer.tolist().count("D") == 3
    assert open_history(right.dir).step.tolist() == [0, 1]
    right.close()
    left.close()


def test_another_thread_than_the_one_that_trains_takes_no_rows_from_the_device(tmp_path):
    """It would read the ring while the training writes it; it still gets what has left the device."""
    model, optimizer, watching = begin(tmp_path, flush_every=1000.0)
    train(model, optimizer, 5)
    with ThreadPoolExecutor(1) as thread, pytest.raises(RunError, match="no recorded step yet"):
        thread.submit(open_history, watching.dir).result()
    watching._drain()
    with ThreadPoolExecutor(1) as thread:
        assert len(thread.submit(open_history, watching.dir).result()) == 5
    watching.close()


def test_the_first_rows_leave_the_device_early_and_the_later_ones_as_ever(tmp_path, monkeypatch):
    """On a clock of our own: one drain a quarter of a second after the first step, and then every two seconds."""
    now = [1000.0]
    monkeypatch.setattr(recorder.time, "monotonic", lambda: now[0])
    model, optimizer, watching = begin(tmp_path, flush_every=5.0)
    left = []
    monkeypatch.setattr(watching, "_keep", None)
    monkeypatch.setattr(watching._recorder, "sink", lambda block: left.append((round(now[0], 2), len(block))))
    now[0] += 60  # the data are being read
    start = now[0]
    for _ in range(500):
        train(model, optimizer, 1)
        now[0] += 0.05
    seconds = [round(at - start, 2) for at, _ in left]
    assert seconds[0] == pytest.approx(0.25, abs=0.06)
    assert np.diff(seconds) == pytest.approx(2.05, abs=0.06)
    monkeypatch.undo()
    watching.close()


def test_the_first_block_is_written_when_it_comes_and_the_next_ones_with_the_clock(tmp_path):
    history, folder = amp_history(), create_folder(tmp_path, "first")
    writer = RunWriter(folder, history.run, flush_seconds=1000)
    writer.append(as_block(history.slice(0, 10)))
    deadline = time.monotonic() + 30
    while not list_parts(folder / "steps") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert open_history(folder).step.tolist() == list(range(10))
    writer.append(as_block(history.slice(10, 20)))
    while not writer.queue.empty():
        time.sleep(0.01)
    time.sleep(0.05)
    assert [len(writer.pending), writer.lost] == [1, 10]
    writer.close()
    assert len(open_history(folder)) == 20


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, "process .* has it open, and its first steps are on disk half a second after"),
        ({"pid_started": "another boot/1"}, "killed before its first step, or within the half second"),
        ({"status": "FINISHED"}, "it ended before its first step"),
    ],
)
def test_a_run_without_a_step_says_why_and_what_then(tmp_path, change, says):
    history, folder = amp_history(), create_folder(tmp_path, "empty")
    writer = RunWriter(folder, replace(history.run, **{**here(), **change}), flush_seconds=1000)
    with pytest.raises(RunError, match=says):
        open_history(folder)
    writer.close()


@pytest.mark.slow
def test_a_process_that_is_killed_in_its_first_two_seconds_leaves_its_first_steps(tmp_path):
    script = (
        "import sys, time, torch, gradwatch\n"
        "model = torch.nn.Linear(3, 3)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "watch = gradwatch.watch(model, optimizer, log=None, dir=sys.argv[1], verbose=False)\n"
        "print('begun', flush=True)\n"
        "while True:\n"
        "    model(torch.ones(1, 3)).sum().backward(); optimizer.step(); optimizer.zero_grad(); time.sleep(0.01)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE)
    process.stdout.readline()
    time.sleep(1.5)
    process.kill()
    process.wait()
    process.stdout.close()
    (folder,) = tmp_path.iterdir()
    assert len(open_history(folder)) >= 5
