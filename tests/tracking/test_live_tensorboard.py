"""A run's event file while the run goes on: no point twice, none missing, whatever dies in between."""

import json
import time

import numpy as np
import pytest
from click.testing import CliRunner
from make_run import make_run
from torch.optim import SGD
from training import mlp, train

import gradwatch
from gradwatch.cli import main
from gradwatch.errors import RunError, WatchError
from gradwatch.recording.arguments import Settings
from gradwatch.storage.run_reader import read_run
from gradwatch.tracking import metric_points
from gradwatch.tracking.export import live_tensorboard as live
from gradwatch.tracking.metric_keys import windows

pytest.importorskip("tensorboard")


class Killed(BaseException):
    """What no `except` of ours stops."""


def points_of(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    size = {"scalars": 0}
    events = EventAccumulator(str(folder / live.EVENTS), size_guidance=size, purge_orphaned_data=False).Reload()
    return sorted((key, e.step, np.float32(e.value)) for key in events.Tags()["scalars"] for e in events.Scalars(key))


def expected(folder):
    history = read_run(folder)
    found = windows(history, history.run.window, history.run.mlflow_layers, ended=True)
    return sorted((point.key, point.step, np.float32(point.value)) for window in found for point in window.points)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(metric_points, "MAX_POINTS", 100)  # many batches
    return make_run(tmp_path, window=2, nan_at=50)


def event_file(folder):
    (path,) = (folder / live.EVENTS).iterdir()
    return path


def test_it_holds_the_points_that_mlflow_gets(run):
    assert live.follow(run) == run / "tensorboard"
    assert points_of(run) == expected(run)
    assert len(points_of(run)) > 400
    before = event_file(run).read_bytes()
    live.follow(run)  # again: nothing is added
    assert event_file(run).read_bytes() == before


@pytest.mark.parametrize("torn", [b"", b"\x18\x00\x00\x00half a record"])
def test_a_process_that_is_killed_between_file_and_cursor_is_gone_on_with(run, monkeypatch, torn):
    live.follow(run)
    whole = event_file(run).read_bytes()
    for path in (event_file(run), run / "tensorboard.json"):
        path.unlink()
    save, deaths = live.BoardCursor.save, 0

    def dies_every_other_time(cursor, folder):
        nonlocal deaths
        deaths += 1
        if deaths % 2:
            with event_file(run).open("ab") as file:
                file.write(torn)
            raise Killed
        save(cursor, folder)

    monkeypatch.setattr(live.BoardCursor, "save", dies_every_other_time)
    for _ in range(100):
        try:
            live.follow(run)
            break
        except Killed:
            continue
    assert deaths >= 6
    assert points_of(run) == expected(run)
    assert event_file(run).stat().st_size == len(whole)


def test_a_run_that_goes_on_gets_closed_windows_and_its_end_the_rest(tmp_path):
    running = make_run(tmp_path, steps=25, window=10)
    sender = live.BoardSender(running, read_run(running).run)
    sender.send(sender.cursor, ended=False)
    sender.file.close()
    assert {step for _, step, _ in points_of(running)} <= set(range(20))
    sender = live.BoardSender(running, read_run(running).run)
    sender.send(sender.cursor, ended=True)
    sender.file.close()
    assert points_of(running) == expected(running)


def test_a_full_disk_is_tried_again_and_leaves_no_half_record(run, monkeypatch):
    write, tries = live.BoardSender._write, 0

    def full(self, events):
        nonlocal tries
        tries += 1
        if tries in (2, 3):
            self.file.write(b"half")
            raise OSError(28, "No space left on device")
        write(self, events)

    monkeypatch.setattr(live.BoardSender, "_write", full)
    live.follow(run, poll=0.001)
    assert points_of(run) == expected(run)
    monkeypatch.setattr(live.BoardSender, "_write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    event_file(run).unlink()
    with pytest.raises(RunError, match=r"cannot write to .*No space left"):
        live.follow(run, poll=0.001)


def test_a_file_that_was_removed_is_written_anew(run):
    live.follow(run)
    event_file(run).unlink()
    live.follow(run)
    assert points_of(run) == expected(run)


def test_two_at_a_time_are_refused(run):
    with live.FileLock(run / "tensorboard.lock"), pytest.raises(RunError, match="another process writes"):
        live.follow(run)


def test_the_command_writes_each_part_of_a_run_and_only_for_tensorboard(run):
    done = CliRunner().invoke(main, ["export", str(run), "--to", "tensorboard", "--follow"])
    assert (done.exit_code, done.stdout) == (0, f"tensorboard --logdir {run / 'tensorboard'}\n")
    assert points_of(run) == expected(run)
    refused = CliRunner().invoke(main, ["export", str(run), "--to", "csv", "--follow"])
    assert (refused.exit_code, refused.stderr) == (
        2, "Error: --follow writes for TensorBoard: wanted --to tensorboard, and not csv\n"
    )  # fmt: skip


@pytest.mark.slow
def test_a_server_that_is_away_and_a_kill_hold_nothing_up(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    log = ("mlflow", "tensorboard")
    watch = gradwatch.watch(model, optimizer, log=log, dir=tmp_path, total_steps=300, flush_every=0.2, verbose=False)
    courier = watch._courier
    train(model, optimizer, steps=40, after_step=lambda *_: time.sleep(0.01))
    first = courier._board.process
    deadline = time.monotonic() + 60
    while not (watch.dir / "tensorboard.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    first.kill()
    first.wait()
    train(model, optimizer, steps=40)
    watch.close(timeout=0)
    try:
        assert courier._board.process is not first
        assert courier._board.process.wait(timeout=120) == 0
    finally:
        courier.process.kill()  # it would wait for the server for an hour
    assert json.loads((watch.dir / "tensorboard.json").read_text())["next_step"] == 80
    assert points_of(watch.dir) == expected(watch.dir)


@pytest.mark.parametrize(
    ("log", "processes"), [("mlflow", (True, False)), (["tensorboard"], (False, True)), (None, (False, False))]
)
def test_what_log_asks_for_is_what_is_started(log, processes):
    settings = {"every": 10, "total_steps": None, "mlflow_layers": 16, "halt_on": None, "flush_every": 5.0}
    asked = Settings(log=log, delivery="courier", higher_is_better={}, **settings)
    assert asked.couriers(writes=True) == processes
    assert asked.couriers(writes=False) == (False, False)
    assert Settings(log=log, delivery="none", higher_is_better={}, **settings).couriers(True) == (False, False)


@pytest.mark.parametrize("log", ["wandb", ("mlflow", "wandb"), 3, {"mlflow": True}, ("mlflow", 3)])
def test_other_places_are_refused(log, tmp_path):
    model = mlp()
    with pytest.raises(WatchError, match=r"log=.*wanted None, one of 'mlflow', 'tensorboard', or several"):
        gradwatch.watch(model, SGD(model.parameters(), lr=0.1), log=log, dir=tmp_path)
