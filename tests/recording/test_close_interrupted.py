"""Ctrl-C inside close(), wherever Python can raise it: nothing is lost, the next call goes on, the status is true."""

import gc
import json
import os

import numpy as np
import pytest
import torch
from interrupts import ExitFunctions, Injected, Stop
from training import mlp, train, watch

import gradwatch
from gradwatch.measure import ring_buffer
from gradwatch.recording import (
    callbacks,
    courier_process,
    hooks,
    learning_rate,
    open_watches,
    recorder,
    signals,
    stepper,
    torch_patches,
)
from gradwatch.recording import watch as watches
from gradwatch.storage import lock, writer

MODULES = [
    watches,
    recorder,
    ring_buffer,
    stepper,
    hooks,
    learning_rate,
    torch_patches,
    callbacks,
    courier_process,
    open_watches,
    signals,
    writer,
    lock,
]
FILES = {module.__file__ for module in MODULES}
STEPS = 5
STRIDE = int(os.environ.get("GRADWATCH_INTERRUPT_STRIDE", "4"))  # 1 takes longer


def patched_for():
    """For whom torch is patched, in other tests of this process too."""
    guards = [owner for _, owners in learning_rate._guards.values() for owner in owners]
    return {*guards, *map(id, torch_patches._seen.listeners)}


class Closing:
    """A training of a few steps that is about to be closed."""

    def __init__(self, folder):
        self.patched_before = patched_for()
        self.model = mlp(torch.float32)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.watch = watch(self.model, self.optimizer, folder, every=3, lr_scale=0.5)
        train(self.model, self.optimizer, STEPS, dtype=torch.float32, after_step=self.log)

    def log(self, model, loss):
        self.watch.log(loss=loss)

    def interrupted(self, close, at):
        """Whether `close` was interrupted at place `at`."""
        with Injected(FILES, at, calls=True, fresh=True) as injected:
            try:
                close()
            except Stop:
                assert injected.raised
        return injected.raised

    def check(self, status):
        """All is there, and nothing of the Watch is left."""
        assert self.watch.closed
        history = gradwatch.open_history(self.watch.dir)
        assert history.step.tolist() == list(range(STEPS))
        assert not np.isnan(history.total("loss")).any()
        assert history.problems == ()
        assert history.run.status == status
        assert json.loads((self.watch.dir / "run.json").read_text())["ended"] is not None
        assert not self.optimizer._optimizer_step_pre_hooks
        assert not self.optimizer._optimizer_step_post_hooks
        assert self.watch not in open_watches.watches
        assert patched_for() <= self.patched_before
        lock.Lock(self.watch.dir).release()  # it is free


def at_every_place(tmp_path, close, stride=1):
    """`close(closing, at)` for a training each, at every place (of `stride`) that there is; the last of them."""
    at, interrupted = -stride, True
    while interrupted:
        at += stride
        interrupted = close(Closing(tmp_path / str(at)), at)
    gc.collect()
    assert not [o for o in gc.get_objects() if type(o) is watches.Watch and tmp_path in o.dir.parents], "one stays"
    return at


@pytest.mark.slow
def test_a_second_call_finishes_the_first(tmp_path, caplog):
    """With the status that the first was given: an interrupted `close()` is no failed training."""
    late = []

    def close(closing, at):
        interrupted = closing.interrupted(lambda: closing.watch.close("FAILED"), at)
        late.append(not closing.watch._ending)  # interrupted before it began
        closing.watch.close("KILLED")
        closing.check("KILLED" if late[-1] else "FAILED")
        return interrupted

    assert at_every_place(tmp_path, close, stride=STRIDE) > 50, "the places were not reached"
    assert sum(late) < 5
    assert not caplog.records


@pytest.mark.slow
def test_an_interrupt_at_exit_loses_nothing(tmp_path, monkeypatch, caplog):
    functions = ExitFunctions()
    monkeypatch.setattr(open_watches, "atexit", functions)

    def close(closing, at):
        first, *others = functions
        interrupted = closing.interrupted(first, at)
        for function in others:
            function()
        closing.check("FINISHED")
        return interrupted

    assert at_every_place(tmp_path, close, stride=5) > 50, "the places were not reached"
    assert not caplog.records


def test_an_error_in_closing_is_not_tried_again(tmp_path, monkeypatch):
    """Unlike an interrupt, it would come again: what was handed over is written, and the Watch is closed."""
    closing = Closing(tmp_path)
    closing.watch._drain()
    monkeypatch.setattr(closing.watch._recorder, "drain", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        closing.watch.close()
    closing.check("FINISHED")
