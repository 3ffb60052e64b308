"""What is on disk when a process ends in any other way than by close(): killed, signalled, out of memory."""

import time
from pathlib import Path

import numpy as np
import pytest
import torch
from make_run import make_history
from training import mlp, train, watch

from gradwatch import RunError, WatchError, open_history
from gradwatch.stores import compact, files
from gradwatch.stores.files import create_folder, list_parts
from gradwatch.stores.writer import RunWriter

ROOT = Path(__file__).parents[1]


def setting(tmp_path, **options):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, watch(model, optimizer, tmp_path, **options)


def on_disk(folder):
    """The steps that a process killed just now would leave."""
    try:
        return open_history(folder).step.tolist()
    except RunError:
        return []


def wait_for(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


# --------------------------------------------------------------------------------------------- how long a row may wait


def test_a_checkpoint_has_its_past_on_disk_with_the_step_just_taken(tmp_path):
    model, optimizer, watching = setting(tmp_path)
    train(model, optimizer, 5, after_step=lambda model, loss: watching.log(loss=loss))
    assert on_disk(watching.dir) == []
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
    import pandas as pd

    return [pd.read_parquet(part.path) for part in list_parts(folder / "steps")]


def test_rows_are_on_disk_within_flush_every(tmp_path):
    model, optimizer, watching = setting(tmp_path, flush_every=0.5)
    late = []
    started = time.monotonic()

    def look(model, loss):
        times.append(time.monotonic() - started)
        known = max(on_disk(watching.dir), default=0)
        late.append(times[-1] - times[known])
        time.sleep(0.01)

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
    monkeypatch.setattr(compact, "FAN_IN", 4)
    monkeypatch.setattr(files, "FAN_IN", 4)
    monkeypatch.setattr(compact, "GROUP_ROWS", 1)
    history, folder = make_history(steps=50), create_folder(tmp_path, "busy")
    writer = RunWriter(folder, history.run, flush_seconds=0.01)
    real, seen = compact._joined, []

    def joined(tables):
        for number, table in enumerate(real(tables)):
            if not number and not seen:
                writer.append(history.slice(40, 50))
                time.sleep(0.02)
            else:
                seen.append(max(on_disk(folder)))
            yield table

    monkeypatch.setattr(compact, "_joined", joined)
    for start in range(0, 40, 10):
        writer.append(history.slice(start, start + 10))
        writer.flush()
    wait_for(lambda: len(seen) >= 3)
    writer.close()
    assert seen[:3] == [49, 49, 49]
    assert on_disk(folder) == list(range(50))
