"""A disk that is full, a folder that is gone, a permission that is lost, in the middle of a training."""

import errno
import logging
import os
import resource
import shutil
import signal
import subprocess
import threading
import time

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from make_run import as_block, changed, make_history
from training import mlp, train, watch

from gradwatch import RunError, open_history
from gradwatch.cli import main
from gradwatch.storage import writer as writing
from gradwatch.storage.compaction import merge
from gradwatch.storage.folder import create_folder, list_parts
from gradwatch.storage.run_reader import missing_steps
from gradwatch.storage.writer import RunWriter


def wait_for(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


@pytest.fixture
def training(tmp_path):
    """A watched training that hands over every few milliseconds, in a folder of its own."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (tmp_path / "runs").mkdir()
    watching = watch(model, optimizer, tmp_path / "runs", flush_every=0.02)

    def take(steps):
        train(model, optimizer, steps, after_step=lambda model, loss: watching.log(loss=loss))
        watching.state_dict()  # all of it is on disk, or was refused

    take.watch, take.weights = watching, model
    yield take
    watching.close()


@pytest.fixture
def refuse(monkeypatch):
    """`refuse(error)`: no part can be written; `refuse(None)`: they can again."""
    real, reason = writing.write_part, [None]

    def write(path, table, *rows):
        if reason[0] is not None:
            path.write_bytes(b"half a part")
            raise reason[0]
        real(path, table, *rows)

    monkeypatch.setattr(writing, "write_part", write)
    return lambda error: reason.__setitem__(0, error)


def said(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING and r.name == "gradwatch"]


REASONS = [OSError(errno.ENOSPC, "No space left on device"), PermissionError(errno.EACCES, "Permission denied"),
           OSError(errno.EROFS, "Read-only file system"), OSError(errno.EIO, "Input/output error")]  # fmt: skip


@pytest.mark.parametrize("reason", REASONS, ids=lambda reason: errno.errorcode[reason.errno])
def test_training_goes_on_with_one_warning_and_nothing_is_lost_when_the_disk_is_back(training, refuse, caplog, reason):
    training(10)
    refuse(reason)
    for _ in range(5):
        training(10)
    assert [reason.strerror in text for text in said(caplog)] == [True]
    assert not list(training.watch.dir.rglob("*.tmp")), "half a part takes room"
    refuse(None)
    training(10)
    training.watch.close()
    history = open_history(training.watch.dir)
    assert (history.step.tolist(), history.problems) == (list(range(70)), ())
    assert len(said(caplog)) == 1


def test_what_found_no_room_is_counted_and_the_history_names_it(training, refuse, caplog, monkeypatch, tmp_path):
    monkeypatch.setattr(writing, "MAX_WAITING_ROWS", 4 * 25)  # of 4 layers: 25 steps
    training(10)
    refuse(REASONS[0])
    for _ in range(10):
        training(10)
    refuse(None)
    training(10)
    training.watch.close()
    history = open_history(training.watch.dir)
    lost = 120 - len(history)
    assert 50 < lost < 100
    (problem,) = history.problems
    assert problem.startswith(f"{lost} steps were not recorded: 10 to ")
    assert f"{lost} steps found no room meanwhile" in said(caplog)[-1]
    assert len(said(caplog)) == 2
    page = tmp_path / "page.html"
    assert problem in CliRunner().invoke(main, ["show", str(training.watch.dir)]).output
    assert problem in CliRunner().invoke(main, ["check", str(training.watch.dir)]).output
    CliRunner().invoke(main, ["report", str(training.watch.dir), "-o", str(page)])
    assert problem in page.read_text()


def test_a_disk_that_stays_full_is_told_at_the_end(training, refuse, caplog):
    training(10)
    refuse(REASONS[0])
    training(30)
    training.watch.close()
    assert "30 steps of" in said(caplog)[-1]
    assert "could not be written" in said(caplog)[-1]
    assert open_history(training.watch.dir).step.tolist() == list(range(10))


def test_a_folder_that_was_removed_is_made_anew(training, caplog):
    training(10)
    shutil.rmtree(training.watch.dir)
    training(10)
    training(10)
    training.watch.close()
    history = open_history(training.watch.dir)
    assert history.step.tolist() == list(range(10, 30))
    assert any("parts 0 to " in problem for problem in history.problems)
    assert history.run.status == "FINISHED"
    with pytest.raises(FileExistsError):  # it has its lock again
        (training.watch.dir / "writer.lock").touch(exist_ok=False)


def test_where_a_disk_was_unmounted_nothing_is_made_until_it_is_back(training, caplog):
    training(10)
    away = training.watch.dir.parent
    away.rename(away.with_name("away"))
    training(10)
    training(10)
    assert not away.exists()
    assert len(said(caplog)) == 1
    away.with_name("away").rename(away)
    training(10)
    training.watch.close()
    assert open_history(training.watch.dir).step.tolist() == list(range(40))


def test_a_training_that_changes_its_working_directory_writes_where_it_began(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watching = watch(model, optimizer, "runs")
    monkeypatch.chdir(tmp_path / "elsewhere")
    train(model, optimizer, 5)
    watching.close()
    assert open_history(tmp_path / watching.dir).step.tolist() == list(range(5))
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_merge_that_the_disk_refuses_is_undone_and_said_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("gradwatch.storage.compaction.FAN_IN", 4)
    history, folder = make_history(steps=100), create_folder(tmp_path, "merge")
    writer = RunWriter(folder, history.run, flush_seconds=1000)

    def refuse(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("gradwatch.storage.compaction._joined", refuse)
    for start in range(0, 100, 10):
        writer.append(as_block(history.slice(start, start + 10)))
        writer.flush()
    writer.close()
    assert ["cannot be merged" in text for text in said(caplog)] == [True, True]  # of either table
    assert not list(folder.rglob("*.tmp"))
    monkeypatch.undo()
    merge(list_parts(folder / "layers"))
    assert (open_history(folder).step.tolist(), open_history(folder).problems) == (list(range(100)), ())


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() or subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=256k", "tmpfs", place], check=False, capture_output=True
    ).returncode:  # fmt: skip
        pytest.skip("a file system can be mounted by root only")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_real_disk_that_is_full_and_then_not(small_disk, caplog):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watching = watch(model, optimizer, small_disk, flush_every=0.02)
    ballast = small_disk / "ballast"

    def take(steps):
        train(model, optimizer, steps)
        watching.state_dict()

    take(10)
    file = os.open(ballast, os.O_CREAT | os.O_WRONLY)
    with pytest.raises(OSError, match="No space left"):
        os.posix_fallocate(file, 0, 1 << 20)
    while os.write(file, b"0" * 4096) == 4096 and os.statvfs(small_disk).f_bavail:
        pass
    os.close(file)
    take(100)
    assert len(said(caplog)) == 1
    ballast.unlink()
    take(10)
    watching.close()
    history = open_history(watching.dir)
    assert (history.step.tolist(), history.problems, history.run.status) == (list(range(120)), (), "FINISHED")


def test_a_limit_on_file_sizes_ends_no_training(tmp_path, caplog):
    """RLIMIT_FSIZE: the kernel sends SIGXFSZ, which Python ignores, and the write fails."""
    assert signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN
    history, folder = make_history(), create_folder(tmp_path, "limited")
    writer = RunWriter(folder, history.run, flush_seconds=1000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, hard))
    try:
        writer.append(as_block(history))
        writer.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(said(caplog)) == 1
    writer.close()
    assert open_history(folder).step.tolist() == list(range(200))


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ([], None), ([5], None), ([0, 1, 2], None), ([3, 4, 4, 5], None),
        ([0, 1, 3], "1 steps were not recorded: 2"),
        ([0, 5, 6, 2000], "1,997 steps were not recorded: 1 to 4, 7 to 1,999"),
        (range(0, 40, 2), "19 steps were not recorded: 1, 3, 5, 7, 9 and 14 more gaps"),
    ],
)  # fmt: skip
def test_gaps_are_counted_and_the_first_ones_named(steps, text):
    assert missing_steps(np.array(steps, np.int64)) == ([text] if text else [])


def test_memory_is_bounded_while_the_disk_refuses(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "write_part", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    history, folder = make_history(steps=1000), create_folder(tmp_path, "full")
    monkeypatch.setattr(writing, "MAX_WAITING_ROWS", 7 * 3000)
    writer = RunWriter(folder, history.run, flush_seconds=0.001)
    for k in range(20):
        writer.append(as_block(changed(history, step=history.step + 1000 * k)))
    writer.flush()
    assert sum(map(len, writer.pending)) == 3000
    assert writer.pending[-1].step[-1] == 19_999  # the newest stay
    assert sum(writer._gone) == 17_000
    writer.close()


def test_memory_is_bounded_while_a_write_does_not_come_back(tmp_path, monkeypatch, caplog):
    """A hard mount of a server that is gone: what is being written, and as much again of what came last."""
    begun, back, write = threading.Event(), threading.Event(), writing.write_part

    def hang(*args):
        begun.set()
        back.wait()
        write(*args)

    monkeypatch.setattr(writing, "write_part", hang)
    monkeypatch.setattr(writing, "MAX_WAITING_ROWS", 7 * 3000)
    history, folder = make_history(steps=1000), create_folder(tmp_path, "hung")
    writer = RunWriter(folder, history.run, flush_seconds=0.001)
    writer.append(as_block(history))
    begun.wait()
    for k in range(1, 20):
        writer.append(as_block(changed(history, step=history.step + 1000 * k)))
    assert sum(map(len, writer._new)) == 3000
    back.set()
    writer.close()
    assert (writer.lost, "16000 steps found no room meanwhile" in caplog.text) == (16_000, True)
    opened = open_history(folder)
    assert opened.step.tolist() == [*range(1000), *range(17_000, 20_000)]
    assert "16,000 steps were not recorded" in opened.problems[0]


def test_a_flush_that_had_nothing_to_write_ends_no_complaint(tmp_path, monkeypatch, caplog):
    """What a merge met first is not said again by the write that meets it next."""
    caplog.set_level("INFO", "gradwatch")
    history, folder = make_history(steps=10), create_folder(tmp_path, "away")
    writer = RunWriter(folder, history.run, flush_seconds=1000)

    def gone(*_):
        raise FileNotFoundError(2, "No such file or directory")

    with monkeypatch.context() as patched:
        patched.setattr(writing.Compactor, "compact", gone)
        writer._flush()
    writer._flush()
    with monkeypatch.context() as patched:
        patched.setattr(writing, "write_part", gone)
        writer.append(as_block(history))
        writer.flush()
    assert [r.getMessage().split(" (")[0] for r in caplog.records] == [f"gradwatch: cannot write to {folder}"]
    writer.close()
    assert "nothing is lost" in caplog.text
    assert len(open_history(folder)) == 10


def test_a_merge_that_fails_does_not_end_the_writing(training, caplog, monkeypatch):
    """A folder may go away between a flush and the look for what to merge."""

    def gone(compactor):
        raise FileNotFoundError(2, "No such file or directory")

    training(10)
    with monkeypatch.context() as patched:
        patched.setattr(writing.Compactor, "compact", gone)
        training(10)
        training(10)
    training(10)
    training.watch.close()
    history = open_history(training.watch.dir)
    assert (history.step.tolist(), history.problems) == (list(range(40)), ())
    assert "No such file" in said(caplog)[0]


# -------------------------------------------------------------------------------------------------- a tail that is lost


def test_a_lost_tail_is_a_gap_and_what_is_said_counts_what_is_on_disk(training, refuse, caplog, capfd, tmp_path):
    training(10)
    refuse(REASONS[0])
    training(30)
    training.watch._verbose = True
    training.watch.close()
    assert f"10 steps recorded in {training.watch.dir}; the other 30 could not be written" in capfd.readouterr().err
    history = open_history(training.watch.dir)
    assert (len(history), history.run.status) == (10, "FINISHED")
    (problem,) = history.problems
    assert problem == "30 steps were not recorded: 10 to 39"
    page = tmp_path / "page.html"
    assert problem in CliRunner().invoke(main, ["show", str(training.watch.dir)]).output
    assert problem in CliRunner().invoke(main, ["check", str(training.watch.dir)]).output
    CliRunner().invoke(main, ["report", str(training.watch.dir), "-o", str(page)])
    assert problem in page.read_text()


def test_a_lost_head_is_a_gap_too(tmp_path, refuse, monkeypatch):
    monkeypatch.setattr(writing, "MAX_WAITING_ROWS", 4 * 25)  # of 4 layers: 25 steps
    refuse(REASONS[0])
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watching = watch(model, optimizer, tmp_path, flush_every=0.02)
    for _ in range(10):
        train(model, optimizer, 10)
        watching.state_dict()
    refuse(None)
    watching.close()
    history = open_history(watching.dir)
    assert 0 < len(history) < 100
    assert history.problems == (f"{100 - len(history)} steps were not recorded: 0 to {99 - len(history)}",)


def test_where_nothing_could_be_written_it_is_said_how_much_is_missing(tmp_path, refuse, capfd):
    refuse(REASONS[0])
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watching = watch(model, optimizer, tmp_path, flush_every=0.02, verbose=True)
    train(model, optimizer, 7)
    watching.close()
    assert "0 steps recorded" in capfd.readouterr().err
    with pytest.raises(RunError, match="7 steps were not recorded: 0 to 6"):
        open_history(watching.dir)


def test_a_run_that_goes_on_from_a_checkpoint_alone_has_no_gap_before_it(tmp_path):
    """Its folder is gone, so it records to one of its own: what came before was never to be there."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = watch(model, optimizer, tmp_path)
    train(model, optimizer, 5)
    state = first.state_dict()
    first.close()
    shutil.rmtree(first.dir)
    second = watch(model, optimizer, tmp_path)
    second.load_state_dict(state)
    train(model, optimizer, 5)
    second.close()
    history = open_history(second.dir)
    assert (history.step.tolist(), history.problems) == (list(range(5, 10)), ())


def test_a_run_that_is_resumed_after_a_lost_tail_takes_it_again(training, refuse):
    training(10)
    state = training.watch.state_dict()
    refuse(REASONS[0])
    training(10)
    training.watch.close()
    refuse(None)
    optimizer = torch.optim.SGD(training.weights.parameters(), lr=0.1)
    again = watch(training.weights, optimizer, training.watch.dir.parent)
    again.load_state_dict(state)
    train(training.weights, optimizer, 5)
    again.state_dict()
    assert open_history(again.dir).problems == ()  # it goes on
    train(training.weights, optimizer, 5)
    again.close()
    history = open_history(again.dir)
    assert (history.step.tolist(), history.problems) == (list(range(20)), ())


@pytest.mark.parametrize(
    ("steps", "first", "end", "text"),
    [
        ([3, 4], None, None, None), ([3, 4], 3, 5, None), ([3, 4], 0, 4, "3 steps were not recorded: 0 to 2"),
        ([], 0, 0, None), ([], 0, None, None), ([], 0, 7, "7 steps were not recorded: 0 to 6"), ([], None, 7, None),
        ([0, 2], 0, 9, "7 steps were not recorded: 1, 3 to 8"),
    ],
)  # fmt: skip
def test_gaps_at_the_ends_are_counted_where_the_ends_are_known(steps, first, end, text):
    assert missing_steps(np.array(steps, np.int64), first, end) == ([text] if text else [])
