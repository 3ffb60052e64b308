"""What is on disk when a process ends in any other way than by close(): killed, signalled, out of memory."""

import gc
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from make_run import as_block, changed, make_history, make_run
from training import mlp, train, watch
from writers import writers_ended

from gradwatch import RunError, WatchError, open_history
from gradwatch.cli import main
from gradwatch.recording import signals
from gradwatch.storage import compaction
from gradwatch.storage import folder as folder_module
from gradwatch.storage import writer as writer_module
from gradwatch.storage.compaction import merge
from gradwatch.storage.folder import create_folder, list_parts
from gradwatch.storage.lock import Lock
from gradwatch.storage.owner import here, is_gone
from gradwatch.storage.parquet import layers_blocks
from gradwatch.storage.run_reader import read_run
from gradwatch.storage.writer import RunWriter

ROOT = Path(__file__).parents[2]


def setting(tmp_path, **options):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, watch(model, optimizer, tmp_path, **options)


def on_disk(folder):
    """The steps that a process killed just now would leave."""
    return read_run(folder).step.tolist()


def wait_for(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


# --------------------------------------------------------------------------------------------- how long a row may wait


def test_a_checkpoint_has_its_past_on_disk_with_the_step_just_taken(tmp_path):
    model, optimizer, watching = setting(tmp_path)
    train(model, optimizer, 5, after_step=lambda model, loss: watching.log(loss=loss))
    assert 4 not in on_disk(watching.dir)
    watching.state_dict()
    assert on_disk(watching.dir) == [0, 1, 2, 3, 4]
    assert np.isfinite(open_history(watching.dir).total("loss")).all()
    watching.close()


def test_what_is_logged_for_a_step_that_has_left_is_not_lost(tmp_path):
    """An epoch's checkpoint, and then its validation: number and tensor; of twice the same name the last counts."""
    model, optimizer, watching = setting(tmp_path, every=1)
    for epoch in range(3):
        train(model, optimizer, 4, after_step=lambda model, loss: watching.log(loss=loss))
        watching.state_dict()
        watching.log(val_loss=0.0, val_accuracy=torch.tensor(0.5))
        watching.log(val_loss=epoch + 1.0)
    watching.close()
    got = open_history(watching.dir)
    assert got.step.tolist() == list(range(12))
    np.testing.assert_array_equal(got.total("val_loss")[[3, 7, 11]], [1, 2, 3])
    np.testing.assert_array_equal(got.total("val_accuracy")[[3, 7, 11]], [0.5] * 3)
    assert np.isfinite(got.total("val_loss")).sum() == 3
    assert np.isfinite(got.total("loss")).all()
    assert np.isfinite(got.layer("weight_norm")).all()
    assert got.problems == ()
    for parts in ("apart", "merged"):
        blocks = [len(b) for p in list_parts(watching.dir / "layers") for b in layers_blocks(p.path, 0, "layer")]
        assert sum(blocks) == (12 + 3 if parts == "apart" else 12)  # rows of one part that repeat are read once
        reduced = open_history(watching.dir, at_most=1)
        np.testing.assert_array_equal(reduced.total("val_loss"), got.total("val_loss"))
        assert np.nansum(reduced.layer("steps"), axis=0).tolist() == [12] * 4
        for table in ("layers", "steps"):
            merge(list_parts(watching.dir / table))
    merged = open_history(watching.dir)
    for name in ("val_loss", "val_accuracy", "loss", "grad_norm"):
        np.testing.assert_array_equal(merged.total(name), got.total(name))
    np.testing.assert_array_equal(merged.layer("grad_norm"), got.layer("grad_norm"))


@pytest.mark.parametrize("logged", [True, False])
def test_a_slow_step_does_not_wait_for_the_next_one(tmp_path, logged):
    """Each step takes longer than rows may wait: when the third has ended, and been logged for, it goes to disk."""
    model, optimizer, watching = setting(tmp_path, flush_every=0.05)

    def slowly(model, loss):
        if logged:
            watching.log(loss=loss)
        time.sleep(0.06)

    train(model, optimizer, 3, before_step=lambda model: time.sleep(0.06), after_step=slowly)
    wait_for(lambda: on_disk(watching.dir) == [0, 1, 2])
    assert sum(len(part) for part in watching_blocks(watching.dir)) == 3  # and none of them twice
    watching.close()
    if logged:
        assert np.isfinite(open_history(watching.dir).total("loss")).all()


def watching_blocks(folder):
    return [pd.read_parquet(part.path) for part in list_parts(folder / "steps")]


@pytest.mark.slow
def test_rows_are_on_disk_within_flush_every(tmp_path):
    model, optimizer, watching = setting(tmp_path, flush_every=0.5)
    late = []
    started = time.monotonic()

    def look(model, loss):
        times.append(time.monotonic() - started)
        if len(times) % 12 == 0:  # looking takes the writer's time too
            late.append(times[-1] - times[max(on_disk(watching.dir), default=0)])
        time.sleep(0.02)

    times = []
    train(model, optimizer, 120, after_step=look)
    watching.close()
    assert max(late) < 2.0  # a machine under load is slow; without the setting it would be four seconds
    assert len(list_parts(watching.dir / "steps")) >= 3


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "5"])
def test_what_is_no_time_is_refused(tmp_path, value):
    with pytest.raises(WatchError, match="flush_every="):
        setting(tmp_path, flush_every=value)


def test_a_long_merge_does_not_hold_up_the_writing(tmp_path, monkeypatch):
    """The merge is given a block at each row group; it must be on disk before the merge has ended."""
    monkeypatch.setattr(compaction, "FAN_IN", 4)
    monkeypatch.setattr(folder_module, "FAN_IN", 4)
    monkeypatch.setattr(compaction, "GROUP_ROWS", 1)
    history, folder = make_history(steps=50), create_folder(tmp_path, "busy")
    writer = RunWriter(folder, history.run, flush_seconds=0.01)
    real, seen = compaction._joined, []

    def joined(tables):
        for number, table in enumerate(real(tables)):
            if not number and not seen:
                writer.append(as_block(history.slice(40, 50)))
                time.sleep(0.02)
            else:
                seen.append(max(on_disk(folder)))
            yield table

    monkeypatch.setattr(compaction, "_joined", joined)
    for start in range(0, 40, 10):
        writer.append(as_block(history.slice(start, start + 10)))
        writer.flush()
    wait_for(lambda: len(seen) >= 3)
    writer.close()
    assert seen[:3] == [49, 49, 49]
    assert on_disk(folder) == list(range(50))


# ------------------------------------------------------------------------------------------- a kill, at every file call


class Killed(BaseException):
    """The process ends here: from then on no call reaches the disk."""


@pytest.fixture
def kill_at(monkeypatch):
    """`kill_at(n)`: the n-th call that changes the disk, and all after it, do not happen."""

    def arm(n):
        calls = itertools.count()

        def deadly(real):
            def call(*args, **kwargs):
                if next(calls) >= n:
                    raise Killed
                return real(*args, **kwargs)

            return call

        for owner, name in ((Path, "replace"), (Path, "unlink"), (Path, "write_text"), (pq.ParquetWriter, "close"),
                            (pq.ParquetWriter, "write_table"), (Path, "mkdir")):  # fmt: skip
            monkeypatch.setattr(owner, name, deadly(getattr(owner, name)))
        return calls

    return arm


def flushes(folder, history, attempt=0):
    """Five flushes, merged by twos on two levels, and an end; returns how many steps were written."""
    done, writer = [], None
    try:
        writer = RunWriter(folder, replace(history.run, attempt=attempt), flush_seconds=1000)
        block = changed(history, attempt=np.full(len(history), attempt))
        for start in range(0, 50, 10):
            writer.pending.append(as_block(block.slice(start, start + 10)))
            writer._write_parts()
            done.append(start + 10)
            for compactor in writer.compactors:
                compactor.compact()
        writer.run = replace(writer.run, status="FINISHED")
        folder_module.write_json(folder / "run.json", writer.run.to_json())
    except Killed:
        pass
    if writer is not None:  # the lock and the thread go with the process
        writer.pending.clear()
        writer.end()
    return max(done, default=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what is killed cleans nothing up
def test_a_kill_at_any_file_call_leaves_a_run_that_opens_and_goes_on(tmp_path, kill_at, monkeypatch):
    monkeypatch.setattr(compaction, "FAN_IN", 2)
    monkeypatch.setattr(folder_module, "FAN_IN", 2)
    monkeypatch.setattr(writer_module, "write_json", lambda *_: None)  # the first manifest is there before the kills
    history, real = make_history(steps=50), {owner: dict(vars(owner)) for owner in (Path, pq.ParquetWriter)}
    complete, n = False, 0
    while not complete:
        folder = create_folder(tmp_path, "killed")
        folder_module.write_json(folder / "run.json", history.run.to_json())
        calls = kill_at(n)
        done = flushes(folder, history)
        complete = next(calls) < n
        for owner, name in ((Path, "replace"), (Path, "unlink"), (Path, "write_text"), (pq.ParquetWriter, "close"),
                            (pq.ParquetWriter, "write_table"), (Path, "mkdir")):  # fmt: skip
            setattr(owner, name, real[owner][name])
        gc.collect()
        got = open_history(folder) if done else None
        if got is not None:
            assert len(got) in (done, done + 10)
            assert got.step.tolist() == list(range(len(got)))
            np.testing.assert_array_equal(got.layer("grad_norm"), history.layer("grad_norm")[: len(got)])
            np.testing.assert_array_equal(got.total("loss"), history.total("loss")[: len(got)])
            assert got.problems == ()
        if n % 8 == 0:
            assert flushes(folder, history, attempt=1) == 50
            again = open_history(folder)
            assert (again.step.tolist(), again.problems) == (list(range(50)), ())
            assert set(again.attempt) == {1}
            assert not [p for p in folder.rglob(".*") if p.suffix == ".tmp"]
        n += 1 if n < 60 else 3  # later ones are much alike: for time
    assert n > 40


# ------------------------------------------------------------------------------------------------------ other endings


@pytest.fixture(scope="session")
def endings(tmp_path_factory):
    """What the cases of `endings.py` left."""
    out = tmp_path_factory.mktemp("endings")
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "support" / "endings.py"), str(out)],
        check=False, capture_output=True, text=True, env=env, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "code", "status"),
    [
        ("sigterm", -15, "KILLED"), ("sighup", -1, "KILLED"), ("sigint", None, "KILLED"), ("sys_exit", 3, "FINISHED"),
        ("sigterm_while_rows_are_handed_over", -15, "KILLED"), ("sigterm_while_closing", -15, "FINISHED"),
        ("sigterm_with_an_own_handler", 7, "FINISHED"), ("sigterm_after_close", -15, "FINISHED"),
        ("sigterm_while_the_device_hangs", -15, "KILLED"), ("sigterm_while_the_main_thread_hangs", -15, "KILLED"),
        ("exception", 1, "FAILED"), ("memory_error", 1, "FAILED"), ("out_of_device_memory", 1, "FAILED"),
        ("fork", 0, "FINISHED"), ("loader", 0, "FINISHED"), ("persistent_loader", 0, "FINISHED"),
        ("spawned_loader", 0, "FINISHED"),
    ],
)  # fmt: skip
def test_an_ending_loses_nothing_and_keeps_its_exit_code(endings, case, code, status):
    folder = endings / case
    said = (folder / "stderr").read_text()
    found = int((folder / "code").read_text())
    assert found == code or (code is None and found in (-signal.SIGINT, 1)), said  # torch may cost Python its -2
    (run,) = [path for path in folder.iterdir() if path.is_dir()]
    history = open_history(run)
    assert history.step.tolist() == list(range(50)), said
    assert (history.run.status, history.problems) == (status, ())
    assert sum(map(len, watching_blocks(run))) == 50  # no row is there twice


@pytest.mark.slow
@pytest.mark.parametrize("what", ["device", "main_thread"])
def test_a_process_that_hangs_is_soon_over(endings, what):
    """The waits add up to ten seconds, of which a disk that answers takes half; the rest is for a machine's load."""
    assert float((endings / f"sigterm_while_the_{what}_hangs" / "seconds").read_text()) < 15


def test_whatever_hangs_a_signal_ends_the_process_within_ten_seconds():
    """Every wait on the way of a signal has an end."""
    assert signals.STUCK + signals.WRITING + signals.DRAINING + signals.WRITING <= 10
    assert signals.CLOSING + signals.WRITING + signals.WRITING <= 10
    assert signals.PATIENCE < signals.CLOSING


# ---------------------------------------------------------------------------------------------------------- one writer


def test_a_run_has_one_writer(tmp_path):
    model, optimizer, first = setting(tmp_path)
    train(model, optimizer, 3)
    state = first.state_dict()
    again = torch.optim.SGD(model.parameters(), lr=0.1)
    second = watch(model, again, tmp_path)
    with pytest.raises(RunError, match="recorded to by a Watch of this process, and a run has one writer"):
        second.load_state_dict(state)
    assert second.dir.is_dir()
    with pytest.raises(RunError, match="one writer"):
        RunWriter(first.dir, first._writer.run)
    first.close()
    second.close()
    RunWriter(first.dir, first._writer.run).close()


def test_the_lock_of_a_killed_process_is_free_though_its_forks_live(tmp_path):
    """A data loader's worker outlives its parent by some seconds; it must not hold the run."""
    folder = make_run(tmp_path)
    code = (
        "import os, sys, time, signal; from pathlib import Path; from gradwatch.storage.lock import Lock\n"
        "lock = Lock(Path(sys.argv[1]))\n"
        "if not os.fork():\n    lock.abandon(); print('forked', flush=True); time.sleep(60)\n"
        "time.sleep(0.5); print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True,
                               start_new_session=True, env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip
    try:
        assert [process.stdout.readline().strip() for _ in range(2)] == ["forked", "held"]
        with pytest.raises(RunError, match=f"process {process.pid} on "):
            Lock(folder)
        process.kill()
        process.wait()
        Lock(folder).release()
    finally:
        os.killpg(process.pid, signal.SIGKILL)


def test_a_process_is_told_from_a_later_one_of_the_same_number():
    me = here()
    assert not is_gone(me["pid"], me["host"], me["pid_started"])
    assert not is_gone(me["pid"], me["host"])
    assert is_gone(me["pid"], me["host"], "another boot/123")
    assert not is_gone(me["pid"], "elsewhere", "another boot/123")
    assert not is_gone(None, me["host"])
    boot, tick, namespace = me["pid_started"].split("/")
    assert not is_gone(me["pid"], me["host"], f"{boot}/{tick}")  # as earlier versions have it
    assert is_gone(me["pid"], me["host"], f"{boot}/1/{namespace}")
    assert not is_gone(2**22 - 1, me["host"], f"{boot}/1/pid:[1]")  # of a container: it cannot be seen


@pytest.mark.parametrize("status", ["RUNNING", "KILLED"])
def test_a_crash_is_named_as_such_also_after_its_courier_has_marked_it(tmp_path, status):
    """A courier writes KILLED; so does Ctrl-C, which is no crash."""
    folder = make_run(tmp_path, close=None, pid=here()["pid"], host=here()["host"], pid_started="another boot/123")
    wait_for(lambda: len(on_disk(folder)) == 200)
    if status == "KILLED":
        manifest = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps({**manifest, "status": status, "crashed": True}))
    said = [CliRunner().invoke(main, [command, str(folder)]) for command in ("show", "check")]
    assert "ended without close at step 199" in said[0].output
    assert "ended without close at step 199" in said[1].output
    page = tmp_path / "page.html"
    assert CliRunner().invoke(main, ["report", str(folder), "-o", str(page)]).exit_code == 0
    assert "ended without close at step 199" in page.read_text()


def test_a_run_that_a_test_leaves_unfinished_is_written_no_further_after_it(tmp_path):
    def writers():
        return {thread for thread in threading.enumerate() if thread.name == "gradwatch-writer"}

    before = writers()
    with writers_ended():
        make_run(tmp_path, close=None)
        assert writers() > before
        begun = writers() - before
    for thread in begun:
        thread.join(timeout=10)  # the last of its code may still run on a slow machine
    assert not begun & writers()
