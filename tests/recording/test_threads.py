"""Threads: one that trains and others that log, save and close; two that train a model each."""

import sys
import threading
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from training import mlp, train, watch

from gradwatch import open_history
from gradwatch.recording import backward_calls
from gradwatch.recording.recorder import Recorder, Sending


@pytest.fixture(autouse=True)
def threads_take_turns_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@contextmanager
def meanwhile(call):
    """Call it again and again in a thread; what it raised comes out at the end."""
    over, raised = threading.Event(), []

    def work():
        try:
            while not over.is_set():
                call()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert raised == []


def count_up(watching, name="count"):
    """Log the number of the step just taken, as a number or as a tensor."""
    step = iter(range(10**9))

    def after_step(model, loss):
        k = next(step)
        watching.log(**{name: torch.tensor(float(k)) if k % 2 else float(k)})

    return after_step


@pytest.mark.slow
@pytest.mark.parametrize("what", ["logs", "saves"])
def test_what_another_thread_does_costs_no_step_and_moves_no_value(what, tmp_path):
    """A thread that logs the machine's state, or saves checkpoints, drains the rows that the training writes."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watching = watch(model, optimizer, tmp_path, clip="ClipByGlobalNorm(0.1)", every=1, flush_every=0.001)
    calls = {"logs": lambda: watching.log(temperature=30.0), "saves": watching.state_dict}
    with meanwhile(calls[what]):
        train(model, optimizer, 60, after_step=count_up(watching))
    watching.close()
    history = open_history(watching.dir)
    assert (len(history), history.problems) == (60, ())
    np.testing.assert_array_equal(history.total("count"), range(60))
    assert np.isfinite(history.layer("weight_norm")).all()


def test_rows_that_another_thread_hands_over_meanwhile_are_no_longer_due(tmp_path):
    """Between two looks at what is on its way, a thread that logs may have handed it over."""

    reads = []

    class Elsewhere(Recorder):
        sending = property(lambda self: reads.pop(0) if reads else None, lambda self, sending: None)

    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path) as watching:
        train(model, optimizer, 3)
        recorder = watching._recorder
        sending = Sending(0, 0, (), [], recorder.ring.stage(0, 0, []))
        recorder.__class__ = Elsewhere
        reads.append(sending)
        assert not recorder.full
        for left in ([sending], [sending, None, sending]):
            reads[:] = left
            assert recorder.due
        recorder.__class__, recorder.sending = Recorder, None


def test_a_value_for_a_step_that_left_meanwhile_is_kept_at_the_next_one(tmp_path):
    """Another thread looks which step is the last, and the training takes another before the value is there."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path) as watching:
        train(model, optimizer, 3)
        recorder = watching._recorder
        recorder.drain(2)
        recorder.values.append((0, "temperature", 30.0))
    np.testing.assert_array_equal(open_history(watching.dir).total("temperature"), [np.nan, np.nan, 30.0])


def test_a_watch_that_another_thread_closes_keeps_the_steps_before(tmp_path):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watching = watch(model, optimizer, tmp_path, flush_every=0.001)
    train(model, optimizer, 20)
    thread = threading.Thread(target=watching.close)
    thread.start()
    taken = 20 + train_until(lambda: watching.closed, model, optimizer)
    thread.join()
    history = open_history(watching.dir)
    assert history.step.tolist() == list(range(len(history)))
    assert 20 <= len(history) <= taken
    assert (history.problems, history.run.status) == ((), "FINISHED")


def train_until(over, model, optimizer):
    steps = 0
    while not over():
        train(model, optimizer, 1)
        steps += 1
    return steps


def test_a_backward_is_heard_by_the_watch_that_its_own_thread_trains(tmp_path):
    """Gradients that another thread's backward writes to meanwhile are not read: that ended the process."""

    def heard_in_a_thread(work):
        found = []
        thread = threading.Thread(target=lambda: (work(), found.extend(backward_calls.heard.of_this_thread())))
        thread.start()
        thread.join()
        return found

    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path, every=1):
        own = backward_calls.heard.of_this_thread()
        assert own
        assert heard_in_a_thread(lambda: None) == []
        assert heard_in_a_thread(lambda: train(model, optimizer, 2)) == [*backward_calls.heard.listeners] != []
        assert backward_calls.heard.of_this_thread() == []
        train(model, optimizer, 1)
        assert backward_calls.heard.of_this_thread() == [*backward_calls.heard.listeners]
    assert not backward_calls.heard.of_this_thread()


@pytest.mark.slow
def test_two_threads_train_a_model_each(tmp_path):
    watched = {}

    def work(name, clip):
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        watched[name] = watch(model, optimizer, tmp_path, run_name=name, clip=clip)
        train(model, optimizer, 100, after_step=count_up(watched[name], name))
        watched[name].close()

    threads = [threading.Thread(target=work, args=a) for a in (("one", None), ("two", "ClipByGlobalNorm(0.1)"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, watching in watched.items():
        history = open_history(watching.dir)
        assert (len(history), history.problems, history.run.name) == (100, (), name)
        np.testing.assert_array_equal(history.total(name), range(100))
