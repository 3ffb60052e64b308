"""`GRADWATCH_FSYNC`: what is on the disk before it has its name, and which folder after it."""

import os
from pathlib import Path

import pytest
from make_run import as_block, make_history

from gradwatch import open_history
from gradwatch.storage.compaction import merge
from gradwatch.storage.folder import FSYNC, create_folder, list_parts
from gradwatch.storage.writer import RunWriter


@pytest.fixture
def calls(monkeypatch):
    """What was synced and what was renamed, in order: `("fsync", path)`, `("replace", path)` with its new name."""
    found, opened, real = [], {}, (os.open, os.fsync, Path.replace)

    def open_(path, *args, **more):
        descriptor = real[0](path, *args, **more)
        opened[descriptor] = Path(path)
        return descriptor

    def fsync(descriptor):
        real[1](descriptor)
        found.append(("fsync", opened[descriptor]))

    def replace(self, target):
        done = real[2](self, target)
        found.append(("replace", Path(target)))
        return done

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    return found


def write(tmp_path):
    """A run of two parts that become one."""
    history = make_history(steps=8)
    folder = create_folder(tmp_path, "run")
    writer = RunWriter(folder, history.run)
    for start in (0, 4):
        writer.append(as_block(history.slice(start, start + 4)))
        writer.flush()
    writer.close()
    for table in ("layers", "steps"):
        assert merge(list_parts(folder / table))
    assert open_history(folder).step.tolist() == list(range(8))


@pytest.mark.parametrize("text", ["1", "true"])
def test_each_file_is_synced_before_it_has_its_name_and_its_folder_after(tmp_path, calls, monkeypatch, text):
    monkeypatch.setenv(FSYNC, text)
    write(tmp_path)
    named = [i for i, (what, _) in enumerate(calls) if what == "replace"]
    names = [calls[i][1].name for i in named]
    assert names.count("run.json") >= 2
    for name in ("part-000000.parquet", "part-000001.parquet", "part-000000-000001.parquet"):
        assert names.count(name) == 2, "one of each table"
    for i in named:
        path = calls[i][1]
        (before, temporary), (after, folder) = calls[i - 1], calls[i + 1]
        assert (before, after) == ("fsync", "fsync")
        assert temporary.parent == path.parent == folder
        assert temporary.name.startswith(f".{path.name}.")


@pytest.mark.parametrize("text", [None, "", "0"])
def test_nothing_is_synced_unless_it_is_asked_for(tmp_path, calls, monkeypatch, text):
    if text is None:
        monkeypatch.delenv(FSYNC, raising=False)
    else:
        monkeypatch.setenv(FSYNC, text)
    write(tmp_path)
    assert [what for what, _ in calls if what == "fsync"] == []
    assert [what for what, _ in calls if what == "replace"]
