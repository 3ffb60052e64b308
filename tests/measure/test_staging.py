"""Rows that leave a GPU: nobody waits for them, none is shown before it is written, a device that hangs is given up.

A stand-in for `torch.cuda` notes the order of what is asked of it; the tensors are the CPU's.
"""

import contextlib

import pytest
import torch
from training import mlp, train, watch

from gradwatch import open_history
from gradwatch.measure import ring_buffer
from gradwatch.measure.staging import OnStream, wait
from gradwatch.recording import recorder

CPU = torch.device("cpu")


class Stream:
    def __init__(self, name, calls):
        self.name, self.calls = name, calls

    def __ne__(self, other):
        return other is not None and self is not other  # torch says False of `stream != None`

    def wait_stream(self, other):
        self.calls.append(f"{self.name} waits for {other.name}")


class Cuda:
    """torch.cuda, as far as it is asked; the events pass when `passed` says so."""

    def __init__(self):
        self.calls, self.passed, self.queries = [], True, 0
        self.streams = {name: Stream(name, self.calls) for name in ("default", "side", "third")}
        self.current = "default"

    def current_stream(self, device):
        return self.streams[self.current]

    @contextlib.contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream.name
        yield
        self.current = before

    def Event(self):
        cuda = self

        class Event:
            def record(self, stream):
                cuda.calls.append(f"event on {stream.name}")

            def query(self):
                cuda.queries += 1
                return cuda.passed

        return Event()


@pytest.fixture
def cuda(monkeypatch):
    made = Cuda()
    monkeypatch.setattr(ring_buffer, "staging_for", lambda device: OnStream(device, made, torch.empty))
    return made


@pytest.fixture
def handle(cuda, tmp_path):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = watch(model, optimizer, tmp_path)
    made._recorder.pause = made._recorder.seconds = 1e6  # time stands still
    made.take = lambda steps: train(model, optimizer, steps, after_step=lambda _, loss: made.log(loss=loss))
    made.take(1)  # the first row leaves at once
    cuda.calls.clear()
    yield made
    cuda.passed = True
    made.close()


def test_the_copy_is_queued_behind_everybody_who_wrote(cuda):
    staging = OnStream(CPU, cuda, torch.empty)
    staging.follow()
    cuda.current = "side"
    staging.join()
    staging.join()
    cuda.current = "third"  # of whoever closes
    staged = staging.stage([torch.arange(2.0), torch.full((), 7.0)])
    assert cuda.calls == ["default waits for side", "event on default"]
    assert cuda.current == "third"
    assert staged.read().tolist() == [0, 1, 7]


def test_another_stream_writes_behind_the_one_before_and_its_copies(cuda):
    staging = OnStream(CPU, cuda, torch.empty)
    staging.follow()
    staging.stage([torch.zeros(1)])
    cuda.current = "side"
    staging.follow()
    staging.follow()
    staging.stage([torch.zeros(1)])
    assert cuda.calls == ["event on default", "side waits for default", "event on side"]


def test_a_row_that_was_written_in_place_asks_for_no_stream_again(cuda):
    ring = ring_buffer.Ring(["norm", "coef"], 2, 4, CPU)
    norm, coef = ring.row(0)
    cuda.current = "side"
    ring.write(0, norm, None)
    assert cuda.calls == []
    ring.write(0, norm, torch.ones(2))
    assert cuda.calls == ["side waits for default"]
    assert coef.tolist() == [1, 1]


def test_where_memory_is_short_the_parts_are_copied_one_by_one(cuda, monkeypatch):
    def cat(_):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(torch, "cat", cat)
    staged = OnStream(CPU, cuda, torch.empty).stage([torch.arange(4.0).view(2, 2), torch.full((), 7.0)])
    assert staged.read().tolist() == [0, 1, 2, 3, 7]


def test_what_was_read_does_not_follow_the_pinned_memory(cuda):
    staging = OnStream(CPU, cuda, torch.empty)
    first = staging.stage([torch.ones(3)]).read()
    staging.stage([torch.zeros(3)])
    assert first.tolist() == [1, 1, 1]


def test_a_training_never_waits_for_its_rows(cuda, handle, monkeypatch):
    monkeypatch.setattr("gradwatch.measure.staging.time.sleep", None)  # whoever waits raises
    blocks, sink = [], handle._recorder.sink
    handle._recorder.sink = lambda block: (blocks.append(len(block)), sink(block))
    handle.take(2)
    handle._recorder.drained, cuda.passed = -1e9, False  # the time has come, and the device is behind
    handle.take(20)
    assert cuda.calls.count("event on default") == 1
    assert not blocks
    cuda.passed = True
    handle.take(2)
    assert blocks == [2]
    handle.close()
    history = open_history(handle.dir)
    assert history.step.tolist() == list(range(25))
    assert (history.total("loss") == history.total("loss")).all()
    assert history.problems == ()


def test_what_is_logged_for_a_row_on_its_way_is_that_rows(cuda, handle):
    handle.take(2)
    cuda.passed = False
    handle._recorder.drain(waits=False)
    handle.log(late=5.0)
    handle.take(1)
    handle.log(late=6.0)
    cuda.passed = True
    handle._recorder.drain(waits=False)
    handle.close()
    late = open_history(handle.dir).total("late")
    assert late[2:].tolist() == [5, 6]


def test_the_next_row_waits_where_the_ring_has_no_room(cuda, handle, monkeypatch):
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        cuda.passed = True

    monkeypatch.setattr("gradwatch.measure.staging.time.sleep", sleep)
    cuda.passed = False
    handle.take(recorder.ROWS)  # which are sent off
    handle.take(recorder.ROWS - 1)
    assert not slept
    handle.take(1)
    assert len(slept) == 1
    handle.close()
    assert open_history(handle.dir).step.tolist() == list(range(2 * recorder.ROWS + 1))


def test_a_device_that_does_not_answer_is_given_up(cuda, handle, monkeypatch, caplog):
    handle.take(2)
    handle.state_dict()
    handle.take(2)
    monkeypatch.setattr(recorder, "WAIT_SECONDS", 0.01)
    cuda.passed = False
    handle.close()
    assert "the device has not answered for 0 s: the last 2 steps are not recorded" in caplog.text
    history = open_history(handle.dir)
    assert history.step.tolist() == [0, 1, 2]
    assert history.run.status == "FINISHED"


def test_who_waits_looks_again_and_again_until_the_end(cuda):
    cuda.passed = False
    staged = OnStream(CPU, cuda, torch.empty).stage([torch.zeros(1)])
    assert not wait(staged, 0.0)
    assert cuda.queries == 1
    assert not wait(staged, 0.05)
    assert cuda.queries > 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("side", [False, True])
def test_a_training_on_a_gpu_runs_through_where_waiting_is_an_error(tmp_path, side):
    model = mlp(torch.float32).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    inputs, stream = torch.randn(8, 6, device="cuda"), torch.cuda.Stream()
    handle = watch(model, optimizer, tmp_path, clip="ClipByGlobalNorm(0.1)")
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream) if side else contextlib.nullcontext():
        for step in range(3 * recorder.ROWS):
            if step == 20:  # constants and pinned memory are made by then
                torch.cuda.synchronize()
                torch.cuda.set_sync_debug_mode("error")
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()
            optimizer.step()
            handle.log(loss=loss)
    torch.cuda.set_sync_debug_mode("default")
    handle.close()  # on the default stream
    history = open_history(handle.dir)
    assert history.step.tolist() == list(range(3 * recorder.ROWS))
    assert not history.layer("nonfinite").any()
    assert (history.total("loss") == history.total("loss")).all()
