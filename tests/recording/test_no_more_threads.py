"""Where no more threads may be started (`ulimit -u`, `ulimit -v`): an error in words, or one thing less."""

import subprocess
import threading
from types import SimpleNamespace

import pytest
import torch
from training import mlp, train, watch

from gradwatch import RunError, open_history
from gradwatch.recording import courier_process, signals


@pytest.fixture
def refused(monkeypatch):
    """The names of threads that cannot be started."""
    names, start = set(), threading.Thread.start

    def start_unless_refused(thread):
        if thread.name in names:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_unless_refused)
    return names


def test_without_a_writer_nothing_is_watched_and_it_is_said(refused, tmp_path):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    refused.add("gradwatch-writer")
    with pytest.raises(RunError, match="can't start new thread; raise the limit"):
        watch(model, optimizer, tmp_path)
    assert not optimizer._optimizer_step_pre_hooks
    refused.clear()
    with watch(model, optimizer, tmp_path) as made:
        train(model, optimizer, 5)
    assert len(open_history(made.dir)) == 5


def test_signals_are_heard_by_the_main_thread_alone(refused, tmp_path, monkeypatch):
    monkeypatch.setattr(signals, "_pipe", [])
    refused.add("gradwatch-signals")
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path) as made:
        train(model, optimizer, 5)
    assert signals._pipe == []
    assert len(open_history(made.dir)) == 5


def test_a_courier_is_there_though_nobody_waits_for_its_end(refused, tmp_path, monkeypatch):
    made = SimpleNamespace(poll=lambda: None, wait=lambda: 0)
    monkeypatch.setattr(subprocess, "Popen", lambda *arguments, **options: made)
    refused.add("gradwatch-sync")
    assert courier_process.start_courier(tmp_path) is made
